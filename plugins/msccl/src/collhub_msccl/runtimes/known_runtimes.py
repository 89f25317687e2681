"""Table of the runtimes of MSCCL-IR: names, step types and limits, from their public sources.

microsoft/msccl (b23e9cd): `src/include/msccl.h`, `src/graph/topo.cc`; Azure/msccl-executor-nccl
(c6f6b36) and ROCm/rccl (0cbce2a7): `src/include/msccl`, `src/misc/msccl`. Limits are the largest
values that still load. The writer and the load check share this table.

The versions of the runtimes that load such files are listed with the source of this information;
the table of limits reflects these commits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hub_core.model import CollectiveKind
from hub_core.plugin_api import RuntimeVersions

_READ = "2026-11"


@dataclass(frozen=True, slots=True)
class RuntimeHistory:
    """Project name, the product that numbers its versions, and the versions in ascending order."""

    title: str
    versioned_by: str
    versions: tuple[RuntimeVersions, ...]


HISTORIES: Mapping[str, RuntimeHistory] = {
    "msccl": RuntimeHistory(
        "microsoft/msccl",
        "NCCL",
        (
            RuntimeVersions(
                "2.12", "2.12", True, "https://github.com/microsoft/msccl (b23e9cd)", _READ
            ),
        ),
    ),
    "executor": RuntimeHistory(
        "Azure/msccl-executor-nccl",
        "NCCL",
        (
            RuntimeVersions(
                "2.23",
                "2.23",
                True,
                "https://github.com/Azure/msccl-executor-nccl (c6f6b36)",
                _READ,
            ),
        ),
    ),
    # Rules: ROCm/rccl 0cbce2a7. RCCL's own version numbers do not decide: 2.28.3 is in ROCm 7.12
    # and 7.13.
    "rccl": RuntimeHistory(
        "ROCm/rccl",
        "ROCm",
        (
            RuntimeVersions(
                "5.5",
                "7.12",
                True,
                "https://github.com/ROCm/rccl/blob/develop/CHANGELOG.md",
                _READ,
                "MSCCL since RCCL 2.15.5",
            ),
            RuntimeVersions(
                "7.13",
                None,
                False,
                "https://github.com/ROCm/rocm-systems/blob/develop/projects/rccl/CHANGELOG.md",
                _READ,
                "MSCCL was removed, mscclLoadAlgo and mscclRunAlgo do nothing",
            ),
        ),
    ),
}
"""Histories by the name in `collhub verify --runtime`."""


def describe_versions(name: str, subject: str) -> list[str]:
    """Return one note if the newest version of a runtime does not use the files, otherwise [].

    `name`: the runtime. `subject`: beginning of the note with its verb, such as `the files are`.
    The note gives the last version that uses the files and the reason.
    """
    history = HISTORIES[name]
    newest, used = history.versions[-1], [row for row in history.versions if row.uses_files][-1]
    if newest.uses_files:
        return []
    product = history.versioned_by
    return [
        f"{subject} loaded by {history.title} up to {product} {used.last}; "
        f"{product} {newest.first} and later do not: {newest.reason}"
    ]


def list_runtimes(*names: str) -> list[str]:
    """Return the versions that use the files, by runtime and range, such as `ROCm/rccl of ROCm 5.5
    to 7.12`.

    `names`: runtimes; without a name those of all runtimes.
    """
    return [
        f"{history.title} of {history.versioned_by} {row.first}"
        + ("" if row.last == row.first else f" to {row.last}" if row.last else " and later")
        for history in map(HISTORIES.__getitem__, names or HISTORIES)
        for row in history.versions
        if row.uses_files
    ]


# Counts must be below MSCCL_MAX_COUNT, which is 72.
MAX_COUNT = 71
# `depid` is stored in 8 signed bits, offsets in 16.
MAX_DEPENDENCY_BLOCK = 127
MAX_OFFSET = (1 << 15) - 1
# Elements that one rank reads: <algo>, all <gpu>, and its thread blocks and steps.
MAX_NODES = 4095
# Children of one element; no parser checks the number, and more children overflow an array.
MAX_CHILDREN = 1024
# Thread blocks of a rank that send, or that receive, on one channel.
MAX_BLOCKS_PER_CHANNEL = 32
# The thread blocks of a rank wait for each other, so a GPU must run them at once: less than the
# multiprocessors of any GPU, and the lowest limit of the runtimes.
RESIDENT_BLOCKS = 64
# MSCCL_MAX_REDUCE_FUSION: maximum operands of a fused chain of reductions.
MAX_OPERANDS = 16
DEFAULT_MAX_BYTES = 1 << 27
"""Size below which microsoft/msccl uses a file without maxBytes."""
# A connection has 8 slots; a transfer takes 4 of them in Simple and one in the other protocols.
FIFO_CAPACITY: Mapping[str, int] = {"Simple": 2, "LL": 8, "LL128": 8}
"""Transfers that a connection holds, by protocol."""

_SPELLINGS: Mapping[CollectiveKind, str] = {
    CollectiveKind.ALL_REDUCE: "allreduce",
    CollectiveKind.ALL_GATHER: "allgather",
    CollectiveKind.REDUCE_SCATTER: "reducescatter",
    CollectiveKind.ALL_TO_ALL: "alltoall",
    CollectiveKind.BROADCAST: "broadcast",
    CollectiveKind.REDUCE: "reduce",
    CollectiveKind.GATHER: "gather",
    CollectiveKind.SCATTER: "scatter",
}
_WITHOUT_CUSTOM = frozenset({*_SPELLINGS.values(), "send", "recv", "alltoallv"})
_ALL_TYPES = ("s", "r", "rcs", "rrc", "rrs", "rrcs", "cpy", "re", "nop")
_SLICES = {"Simple": 2 << 20, "LL": 32 << 10, "LL128": 576_000}


@dataclass(frozen=True, slots=True)
class RuntimeRules:
    """Rules of one runtime.

    `spelling`: value of `coll` per supported kind; `collectives`: all accepted values of `coll`;
    `has_both_modes`: it reads `outofplace`, so one file can serve both modes, and it requires
    `minBytes` and `maxBytes`; `slice_bytes`: bytes of one chunk per iteration, by protocol;
    `reads_by_name`: it reads the files of a folder sorted by name, so that of two files for the
    same calls the first name wins; other runtimes read them in the order of the file system.
    """

    name: str
    title: str
    spelling: Mapping[CollectiveKind, str]
    collectives: frozenset[str]
    step_types: tuple[str, ...]
    max_blocks: int
    max_steps: int
    max_channels: int
    has_both_modes: bool
    slice_bytes: Mapping[str, int]
    reads_by_name: bool = False

    @property
    def has_fused_steps(self) -> bool:
        """Whether it executes steps that receive data and process or forward it."""
        return "rcs" in self.step_types


# microsoft/msccl has no gather and scatter, but `custom`, and an underscore in reduce_scatter.
_MSCCL_SPELLINGS = {
    **{kind: name for kind, name in _SPELLINGS.items() if name not in ("gather", "scatter")},
    CollectiveKind.REDUCE_SCATTER: "reduce_scatter",
    CollectiveKind.CUSTOM: "custom",
}

RUNTIMES: Mapping[str, RuntimeRules] = {
    runtime.name: runtime
    for runtime in (
        RuntimeRules(
            "msccl",
            HISTORIES["msccl"].title,
            _MSCCL_SPELLINGS,
            frozenset(_MSCCL_SPELLINGS.values()),
            (*_ALL_TYPES, "ra"),
            max_blocks=216,  # twice the multiprocessors of an A100
            max_steps=256,
            max_channels=32,
            has_both_modes=False,
            slice_bytes=_SLICES,
        ),
        RuntimeRules(
            "executor",
            HISTORIES["executor"].title,
            _SPELLINGS,
            _WITHOUT_CUSTOM,
            _ALL_TYPES,
            max_blocks=1024,
            max_steps=64,  # MSCCL_MAX_NUM_STEPS of the default build
            max_channels=32,
            has_both_modes=True,
            slice_bytes=_SLICES,
            reads_by_name=True,
        ),
        RuntimeRules(
            "rccl",
            HISTORIES["rccl"].title,
            _SPELLINGS,
            _WITHOUT_CUSTOM,
            # It parses the fused types, but refuses them at launch ("doesn't support full Ops").
            ("s", "r", "cpy", "re", "nop"),
            max_blocks=64,
            max_steps=64,
            max_channels=128,
            has_both_modes=True,
            slice_bytes={"Simple": 2 << 20, "LL": 16 << 10, "LL128": 50_176},
        ),
    )
}
"""Runtimes by the name in `-O runtime` and `collhub verify --runtime`."""
