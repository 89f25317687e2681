"""Pages of the viewer from small synthetic data, in the format that the page's program reads."""

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

import collhub_viewer.columns
import numpy as np
from collhub_viewer.columns import StepColumnWriter, compute_gaps

PAGE_FOLDER = Path(__file__).parents[2] / "src/collhub_viewer/page"


class ColumnLines(collhub_viewer.columns.ColumnLines):
    """Lines of the column block without a limit of their size."""

    def __init__(self) -> None:
        super().__init__(10**12)


def write_page(
    path: Path, index: dict[str, Any], columns: collhub_viewer.columns.ColumnLines
) -> Path:
    """Write one HTML file with the built program, the index and the columns."""
    script = (PAGE_FOLDER / "viewer.js").read_text()
    style = (PAGE_FOLDER / "viewer.css").read_text()
    data = json.dumps(index)
    for character in "<>&":
        data = data.replace(character, f"\\u{ord(character):04x}")

    def content_hash(text: str) -> str:
        return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

    policy = (
        f"default-src 'none'; script-src 'sha256-{content_hash(script)}'; "
        f"style-src 'sha256-{content_hash(style)}'; img-src data: blob:"
    )
    block = b"\n".join(columns.lines).decode()
    path.write_text(
        f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f'<title>page</title><style>{style}</style></head><body><div id="collhub-app"></div>'
        f'<script type="application/json" id="collhub-view">{data}</script>'
        f'<script type="text/plain" id="collhub-columns">{block}</script>'
        f"<script>{script}</script></body></html>"
    )
    return path


def ring_run(
    columns: ColumnLines, ranks: int = 4, message_ns: int = 1000, name: str = "ring"
) -> dict[str, Any]:
    """All-gather over a ring as a run: rank r sends chunk (r - k) in step k.

    Lanes: one for sends, one for receives of each rank. Each receive follows a wait of 100 ns for
    the previous rank. Step k occupies [k * (message_ns + 100), ...) nanoseconds.
    """
    rows: dict[tuple[int, int], list[dict[str, int]]] = {}
    period = message_ns + 100
    for rank in range(ranks):
        rows[rank, 0] = [
            {"start": k * period + 100, "duration": message_ns, "kind": 0,
             "peer": (rank + 1) % ranks, "chunk": (rank - k) % ranks, "k": k}
            for k in range(ranks - 1)
        ]  # fmt: skip
        previous = (rank - 1) % ranks
        rows[rank, 1] = []
        for k in range(ranks - 1):
            start = k * period
            rows[rank, 1] += [
                {"start": start, "duration": 100, "kind": 2, "peer": -1, "chunk": -1, "k": -1},
                {"start": start + 100, "duration": message_ns, "kind": 1, "peer": previous,
                 "chunk": (previous - k) % ranks, "k": k},
            ]  # fmt: skip
    lanes = sorted(rows)
    first = np.cumsum([0] + [len(rows[lane]) for lane in lanes])
    steps = [step for lane in lanes for step in rows[lane]]
    place = {
        (rank, part, step["k"]): int(first[lanes.index((rank, part))]) + i
        for (rank, part) in lanes
        for i, step in enumerate(rows[rank, part])
        if step["k"] >= 0
    }
    partner = []
    for rank, part in lanes:
        for step in rows[rank, part]:
            other = (step["peer"], 1 - part, step["k"])
            partner.append(place.get(other, -1) if step["k"] >= 0 else -1)
    count = len(steps)
    starts = np.array([step["start"] for step in steps])
    durations = [step["duration"] for step in steps]
    sends = [place[rank, 0, k] for rank in range(ranks) for k in range(ranks - 1)]
    path = [place[0, 0, 0], *(place[(k) % ranks, 1, k - 1] for k in range(1, ranks))]
    totals = {
        name: [float(period * (ranks - 1)) * share] * ranks
        for name, share in (
            ("compute", 0.4),
            ("communication", 0.5),
            ("exposed", 0.3),
            ("idle", 0.1),
        )
    }
    angles = 2 * np.pi * np.arange(ranks) / ranks
    return {
        "name": name,
        "facts": [["Ranks", str(ranks)], ["Time", f"{period * (ranks - 1)} ns"]],
        "tick_ps": 1000,
        "end": period * (ranks - 1),
        "ranks": ranks,
        "rank_names": None,
        "lanes": {
            "rank": columns.add([rank for rank, _ in lanes]),
            "names": ["sends", "receives"],
            "name": columns.add([part for _, part in lanes]),
            "first": columns.add(first),
        },
        "kinds": [
            {"name": "send", "class": "send"},
            {"name": "receive", "class": "receive"},
            {"name": "wait", "class": "wait"},
        ],
        "steps": {
            "count": count,
            "gap": columns.add(compute_gaps(starts, starts + np.array(durations), first)),
            "duration": columns.add(durations),
            "kind": columns.add([step["kind"] for step in steps]),
            "peer": columns.add([step["peer"] for step in steps]),
            "partner": columns.add(partner),
            "bytes": columns.add([65536 if s["kind"] < 2 else 0 for s in steps]),
            "chunk": columns.add([step["chunk"] for step in steps]),
            "chunks": columns.add([1] * count),
            "number": columns.add(np.arange(count)),
            "label": None,
            "labels": [],
            "waits_for": columns.add([0 for step in steps if step["kind"] == 2]),
        },
        "links": {
            "names": [f"{rank}->{(rank + 1) % ranks}" for rank in range(ranks)],
            "from": columns.add(np.arange(ranks)),
            "to": columns.add((np.arange(ranks) + 1) % ranks),
            "first": columns.add(np.arange(ranks + 1) * (ranks - 1)),
            "gap": columns.add(
                compute_gaps(
                    starts[sends], starts[sends] + message_ns, np.arange(ranks + 1) * (ranks - 1)
                )
            ),
            "duration": columns.add([message_ns] * len(sends)),
            "queued": columns.add([50] * len(sends)),
            "step": columns.add(sends),
            "capacity": columns.add([65.536e9] * ranks),
        },
        "topology": {
            "nodes": [
                {"name": f"NPU {rank}", "kind": "npu", "x": float(np.cos(a)), "y": float(np.sin(a))}
                for rank, a in enumerate(angles)
            ],
            "links": None,
        },
        "critical_path": {
            "steps": path,
            "entries": [
                {"step": step, "reason": "message", "start": int(starts[step]),
                 "duration": durations[step], "text": f"entry {i} waits for the message"}
                for i, step in enumerate(path)
            ],
        },
        "chunks": {"names": [f"chunk {rank}" for rank in range(ranks)]},
        "collectives": [
            {"name": "all-gather", "bytes": 65536 * ranks, "ranks": ranks, "start": 0,
             "duration": period, "exposed": 700, "first_step": 0},
            {"name": "all-reduce", "bytes": 4096, "ranks": ranks, "start": period,
             "duration": period, "exposed": 900, "first_step": 1},
        ],
        "rank_totals": totals,
        "blocks": None,
        "waits": None,
    }  # fmt: skip


KINDS = ("send", "receive", "wait", "compute")
SEND, RECEIVE, WAIT, COMPUTE = range(4)
# The orders of one round in which the wait directly precedes the receive.
ROUNDS = (
    *(
        (SEND, COMPUTE, WAIT, RECEIVE),
        (COMPUTE, SEND, WAIT, RECEIVE),
        (SEND, WAIT, RECEIVE, COMPUTE),
    ),
    *(
        (COMPUTE, WAIT, RECEIVE, SEND),
        (WAIT, RECEIVE, SEND, COMPUTE),
        (WAIT, RECEIVE, COMPUTE, SEND),
    ),
)
SIZES = 16
CHUNKS = 1000


def random_run(
    lines: collhub_viewer.columns.ColumnLines, ranks: int, rounds: int, longest: int
) -> tuple[dict[str, Any], dict[str, np.ndarray[Any, Any]]]:
    """Return a run of random steps and the values of its columns; each rank has one lane.

    In every round, each rank sends a message to a random rank, computes, waits and receives one.
    """
    generator = np.random.default_rng(1)
    kind = np.array(ROUNDS)[generator.integers(len(ROUNDS), size=(ranks, rounds))]
    kind = kind.reshape(ranks, 4 * rounds)
    target = np.argsort(generator.random((rounds, ranks)), axis=1)
    source = np.argsort(target, axis=1)
    place = np.arange(kind.size).reshape(ranks, 4 * rounds)
    sends, receives = (place[kind == one].reshape(ranks, rounds) for one in (SEND, RECEIVE))
    peer, partner = np.full(place.size, -1), np.full(place.size, -1)
    peer[sends], peer[receives] = target.T, source.T
    partner[sends] = receives[target.T, np.arange(rounds)]
    partner[receives] = sends[source.T, np.arange(rounds)]
    kind = kind.ravel()
    is_wait = kind == WAIT
    waits = np.flatnonzero(is_wait)
    peer[waits] = peer[waits + 1]
    sizes = generator.choice(generator.integers(1, 1 << 24, SIZES), place.size)
    chunk = generator.integers(CHUNKS, size=place.size)
    for values in (sizes, chunk):
        values[receives] = values[partner[receives]]
        values[waits] = values[waits + 1]
    sizes[kind == COMPUTE], chunk[kind == COMPUTE] = 0, -1
    duration = generator.integers(1, longest + 1, place.size)
    end = duration.reshape(ranks, -1).cumsum(axis=1).ravel()
    first = np.arange(ranks + 1) * 4 * rounds
    rank = np.repeat(np.arange(ranks), 4 * rounds)
    columns = StepColumnWriter(lines, rank, is_wait, kind == SEND, kind == RECEIVE, partner)
    awaited = np.where(is_wait, peer, -1)
    steps = {
        "gap": columns.add_gaps(end - duration, end, first),
        "duration": lines.add(duration),
        "kind": lines.add(kind),
        "peer": columns.add("peers", peer, has_partners=False, is_required=True),
        "partner": columns.add_partners(peer),
        "waits_for": columns.add_awaited(awaited, peer),
        "bytes": columns.add("bytes", sizes, has_partners=True),
        "chunk": columns.add("chunks", chunk, has_partners=True),
    }
    run = {
        "name": "random", "facts": [["Ranks", str(ranks)]], "tick_ps": 1000,
        "end": int(end.max()), "ranks": ranks, "rank_names": None,
        "lanes": {
            "rank": lines.add(np.arange(ranks)), "names": [""],
            "name": lines.add(np.zeros(ranks, np.int64)), "first": lines.add(first),
        },
        "kinds": [{"name": name, "class": name} for name in KINDS],
        "steps": {
            "count": place.size, **steps, "chunks": None, "number": None, "label": None,
            "labels": [],
        },
    }  # fmt: skip
    values = {
        "start": end - duration, "duration": duration, "kind": kind, "peer": peer,
        "partner": partner, "waits_for": awaited, "bytes": sizes, "chunk": chunk,
    }  # fmt: skip
    return run, values


def view_index(*runs: dict[str, Any], title: str = "Sample", **more: Any) -> dict[str, Any]:
    return {
        "format": "collhub-view-1",
        "title": title,
        "created_by": "test",
        "notes": [],
        "runs": list(runs),
        "comparisons": [],
        "job_comparisons": [],
        "files": None,
        **more,
    }


def comparison() -> dict[str, Any]:
    """Two algorithms over five sizes, with bound and measured curves."""
    sizes = [1024, 16384, 262144, 4194304, 67108864]
    ring = [40_000 + size * 0.04 for size in sizes]
    tree = [12_000 + size * 0.08 for size in sizes]
    return {
        "title": "All-reduce on 32 ranks",
        "collective": "all_reduce",
        "axis": "size_bytes",
        "algorithms": [{"name": "ring", "facts": [["Steps", "62"]]}, {"name": "tree", "facts": []}],
        "sizes": sizes,
        "curves": [
            {"algorithm": 0, "kind": "simulated", "time_ns": ring, "low_ns": None, "high_ns": None},
            {"algorithm": 1, "kind": "simulated", "time_ns": tree, "low_ns": None, "high_ns": None},
            {"algorithm": 0, "kind": "bound", "time_ns": [8000 + s * 0.038 for s in sizes],
             "low_ns": None, "high_ns": None},
            {"algorithm": 0, "kind": "measured", "time_ns": [t * 1.1 for t in ring[:-1]] + [None],
             "low_ns": [t * 1.05 for t in ring[:-1]] + [None],
             "high_ns": [t * 1.2 for t in ring[:-1]] + [None]},
        ],
        "winners": [
            {"from_bytes": 1024, "to_bytes": 524288, "algorithm": 1, "text": "tree to 512 KiB"},
            {"from_bytes": 524288, "to_bytes": 67108864, "algorithm": 0, "text": "ring above"},
        ],
    }  # fmt: skip


WAITS = {
    "nodes": [
        {"rank": 0, "state": "culprit", "text": "sends to 2 instead of 1"},
        {"rank": 1, "state": "waiting"},
        {"rank": 2, "state": "waiting"},
        {"rank": 3, "state": "unknown"},
    ],
    "edges": [
        {"from": 1, "to": 0, "text": "receive 4 KiB"},
        {"from": 2, "to": 1, "text": "receive 4 KiB"},
        {"from": 3, "to": 2, "text": "barrier"},
    ],
}
