"""Diagnose the dumps of a large job: CPU seconds and memory of `collhub diagnose`.

`python benchmarks/diagnosis/dumps.py [RANKS [ENTRIES]]` writes Flight Recorder dumps of a job with
tensor-parallel groups of 8 ranks (by default 1000 ranks with 2000 entries each), of which one rank
does not issue the last all-reduce of all ranks. It prints the ranks, entries, MB of the dumps, CPU
seconds and peak memory in MB of the program, and the culprits. Texts, frames and lists of frames
are shared as PyTorch's writer shares them.
"""

from __future__ import annotations

import json
import pickle
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

_TENSOR_PARALLEL, _FRAMES, _STACKS = 8, 8, 40
_START_NS, _CALL_NS = 1_700_000_000_000_000_000, 10**6
_LATE_RANK = 17
_OPERATIONS = ("nccl:all_reduce", "nccl:_all_gather_base", "nccl:_reduce_scatter_base")
_FACTORS = ((1, 1), (1, _TENSOR_PARALLEL), (_TENSOR_PARALLEL, 1))
_FRAME_LISTS = [
    [
        {
            "name": f"function_{depth}",
            "filename": f"/app/file_{depth}.py",
            "line": 10 * stack + depth,
        }
        for depth in range(_FRAMES)
    ]
    for stack in range(_STACKS)
]


def build_dump(rank: int, rank_count: int, entry_count: int) -> dict[str, Any]:
    """Return the values of one dump; the last entry is an all-reduce of all ranks."""
    pair = str(1 + rank // _TENSOR_PARALLEL)
    names = ("0", "default_pg"), (pair, "tp")
    entries: list[dict[str, Any]] = []
    numbers = [0, 0]
    for position in range(entry_count):
        is_last = position == entry_count - 1
        if is_last and rank == _LATE_RANK:
            break
        kind = 0 if is_last else position % 3
        group = min(kind, 1)
        numbers[group] += 1
        elements = 1024 * (1 + position % _STACKS)
        created = _START_NS + position * _CALL_NS + rank * 1000
        entries.append(
            {
                "record_id": position,
                "pg_id": group,
                "process_group": names[group],
                "collective_seq_id": numbers[group],
                "p2p_seq_id": 0,
                "op_id": position,
                "profiling_name": _OPERATIONS[kind],
                "time_created_ns": created,
                "input_sizes": [[elements * _FACTORS[kind][0]]],
                "input_dtypes": ["BFloat16"],
                "output_sizes": [[elements * _FACTORS[kind][1]]],
                "output_dtypes": ["BFloat16"],
                "state": "started" if is_last else "completed",
                "time_discovered_started_ns": created + 5000,
                "time_discovered_completed_ns": None if is_last else created + 90000,
                "retired": not is_last,
                "timeout_ms": 600000,
                "is_p2p": False,
                "thread_id": "140543314983808",
                "thread_name": "python",
                "frames": list(_FRAME_LISTS[position % _STACKS]),
            }
        )
    first = rank - rank % _TENSOR_PARALLEL
    members = range(first, min(first + _TENSOR_PARALLEL, rank_count))
    config = {
        "0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(rank_count)))},
        pair: {"name": pair, "desc": "tp", "ranks": str(list(members))},
    }
    return {"version": "2.10", "comm_lib_version": "", "pg_config": config, "entries": entries}


def main(rank_count: int, entry_count: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        total = 0
        for rank in range(rank_count):
            content = pickle.dumps(build_dump(rank, rank_count, entry_count), protocol=2)
            (Path(folder) / f"rank_{rank}").write_bytes(content)
            total += len(content)
        command = [sys.executable, "-P", "-m", "hub_core.cli.main", "diagnose", folder, "--json"]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
    report = json.loads(result.stdout)
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = usage.ru_utime + usage.ru_stime
    print(f"ranks {rank_count}, entries {entry_count}, dumps {total / 1e6:.0f} MB")
    print(f"CPU {cpu_s:.1f} s, peak memory {usage.ru_maxrss * 1024 / 1e6:.0f} MB")
    print(f"verdict {report['kind']}, culprits {report['culprits']}")


if __name__ == "__main__":
    arguments = [int(text) for text in sys.argv[1:]]
    main(*(arguments + [1000, 2000][len(arguments) :]))
