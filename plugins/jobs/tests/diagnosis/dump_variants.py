"""Write dumps of a Flight Recorder, also as small ring buffers and old releases write them."""

from __future__ import annotations

import json
import pickle
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Change = Callable[[int, dict[str, Any]], None]


def write_dumps(
    folder: Path,
    dumps: Mapping[int, dict[str, Any]],
    change: Change | None = None,
    *,
    as_json: bool = False,
) -> None:
    """Write the dumps by rank, each after `change(rank, dump)`, one file each.

    `as_json`: as JSON without frames, not as a pickle.
    """
    for rank, dump in dumps.items():
        if change is not None:
            change(rank, dump)
        if as_json:
            for entry in dump["entries"]:
                entry.pop("frames", None)
            (folder / f"rank_{rank}.json").write_text(json.dumps(dump))
        else:
            (folder / f"rank_{rank}").write_bytes(pickle.dumps(dump, protocol=2))


def keep_newest(seed: int, *, with_status: bool = True) -> Change:
    """Keep the newest entries of some ranks, as a ring buffer that is too small."""

    def change(rank: int, dump: dict[str, Any]) -> None:
        choose = random.Random(f"{seed} {rank}")
        if choose.randrange(2):
            dump["entries"] = dump["entries"][-choose.randrange(1, 8) :]
        if not with_status:
            del dump["pg_status"]

    return change


def keep_active(rank: int, dump: dict[str, Any]) -> None:
    """Leave out completed entries (TORCH_INCLUDE_ONLY_ACTIVE)."""
    dump["entries"] = [one for one in dump["entries"] if one["state"] != "completed"]


def write_version(version: str) -> Change:
    """Write the keys of an old format version, from 1.1 to 2.9."""
    major, minor = map(int, version.split("."))

    def change(rank: int, dump: dict[str, Any]) -> None:
        dump["version"] = version
        if (major, minor) < (2, 10):
            dump.pop("comm_lib_version")
        if (major, minor) >= (2, 6):
            dump["nccl_version"] = "2.21.5"
        if (major, minor) < (2, 2):
            dump.pop("pg_status")
        counts: dict[tuple[str, tuple[int, int]], int] = {}
        for entry in dump["entries"]:
            if (major, minor) < (2, 3):
                del entry["is_p2p"]
            if (major, minor) < (2, 2):
                del entry["input_dtypes"], entry["output_dtypes"], entry["timeout_ms"]
            if major == 1:
                name = entry["process_group"][0]
                numbers = entry.pop("collective_seq_id"), entry.pop("p2p_seq_id")
                # One counter for collectives and messages.
                entry["seq_id"] = counts.setdefault(
                    (name, numbers), 1 + sum(key[0] == name for key in counts)
                )

    return change


def write_json_values(rank: int, dump: dict[str, Any]) -> None:
    """Write values as `_dump_fr_trace_json`: numbers of the status as texts, 0 for no time."""
    for status in dump["pg_status"].values():
        status.update({key: str(value) for key, value in status.items()})
    for entry in dump["entries"]:
        entry.pop("frames")
        for key in ("time_discovered_started_ns", "time_discovered_completed_ns"):
            entry[key] = entry[key] or 0
