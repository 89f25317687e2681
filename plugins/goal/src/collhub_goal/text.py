"""Print a schedule as GOAL text, with a label for every operation and its dependencies at the end of its rank."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from collhub_goal.schedule import Int64Array, Operation, Schedule


def goal_text(schedule: Schedule) -> bytes:
    """The whole file. Only what is stated is printed: no cpu and nic of -1."""
    bounds = np.searchsorted(schedule.rank, np.arange(schedule.num_ranks + 1))
    edges = [
        _sorted(schedule.parent, schedule.child),
        _sorted(schedule.early_parent, schedule.early_child),
    ]
    words = ("requires", "irequires")
    parts = [f"num_ranks {schedule.num_ranks}\n"]
    for rank, (start, stop) in enumerate(
        zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)
    ):
        parts.append(f"\nrank {rank} {{\n")
        parts.extend(_operations(schedule, start, stop))
        for (parent, child), word in zip(edges, words, strict=True):
            rows = slice(*np.searchsorted(child, [start, stop]))
            pairs = zip(
                (child[rows] - start).tolist(), (parent[rows] - start).tolist(), strict=True
            )
            parts.extend(f"l{later} {word} l{earlier}\n" for later, earlier in pairs)
        parts.append("}\n")
    return "".join(parts).encode("ascii")


def _sorted(parent: Int64Array, child: Int64Array) -> Sequence[Int64Array]:
    order = np.lexsort((parent, child))
    return parent[order], child[order]


def _operations(schedule: Schedule, start: int, stop: int) -> Iterator[str]:
    names = ("operation", "amount", "peer", "tag", "cpu", "nic")
    columns = (getattr(schedule, name)[start:stop].tolist() for name in names)
    for row, (operation, amount, peer, tag, cpu, nic) in enumerate(zip(*columns, strict=True)):
        on_cpu = f" cpu {cpu}" if cpu >= 0 else ""
        if operation == Operation.CALC:
            yield f"l{row}: calc {amount}{on_cpu}\n"
            continue
        direction = "send {}b to {}" if operation == Operation.SEND else "recv {}b from {}"
        on_nic = f" nic {nic}" if nic >= 0 else ""
        yield f"l{row}: {direction.format(amount, peer)} tag {tag}{on_cpu}{on_nic}\n"
