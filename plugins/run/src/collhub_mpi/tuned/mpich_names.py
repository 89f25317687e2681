"""What MPICH calls collectives and algorithms in selection files, and which classic is which.

Names and tests of `maint/tuning/coll/mpir/generic.json`, MPICH 5.0.2. A test is a key; what stands
below it holds where it is true, and the next sibling where it is not.
"""

from __future__ import annotations

from collections.abc import Mapping

from hub_core.model import CollectiveKind

FILE = "coll_selection.json"
VARIABLE = "MPIR_CVAR_COLL_SELECTION_TUNING_JSON_FILE"

COLLECTIVES: Mapping[CollectiveKind, tuple[str, ...]] = {
    CollectiveKind.ALL_REDUCE: ("allreduce",),
    CollectiveKind.ALL_GATHER: ("allgather",),
    CollectiveKind.ALL_TO_ALL: ("alltoall",),
    CollectiveKind.BROADCAST: ("bcast",),
    CollectiveKind.REDUCE: ("reduce",),
    CollectiveKind.REDUCE_SCATTER: ("reduce_scatter", "reduce_scatter_block"),
}
"""Names of a collective; reduce-scatter is two functions of MPI."""

ALGORITHMS: Mapping[CollectiveKind, Mapping[str, str]] = {
    CollectiveKind.ALL_REDUCE: {
        "recursive-doubling": "recursive_doubling",
        "halving-doubling": "reduce_scatter_allgather",
        "ring": "ring",
    },
    CollectiveKind.ALL_GATHER: {
        "recursive-doubling": "recursive_doubling",
        "bruck": "brucks",
        "ring": "ring",
    },
    CollectiveKind.ALL_TO_ALL: {
        "bruck": "brucks",
        "pairwise": "pairwise",
        # All messages at once, in batches of a size that MPICH chooses.
        "direct": "scattered",
    },
    CollectiveKind.BROADCAST: {"binomial": "binomial"},
    CollectiveKind.REDUCE: {"binomial": "binomial"},
    CollectiveKind.REDUCE_SCATTER: {"halving-doubling": "recursive_halving"},
}
"""Name of an algorithm, by the classic that it is."""

SIZE_TESTS: Mapping[CollectiveKind, str] = {
    CollectiveKind.ALL_REDUCE: "avg_msg_size",
    CollectiveKind.ALL_GATHER: "total_msg_size",
    # The bytes for one other rank.
    CollectiveKind.ALL_TO_ALL: "avg_msg_size",
    CollectiveKind.BROADCAST: "avg_msg_size",
    CollectiveKind.REDUCE: "avg_msg_size",
    CollectiveKind.REDUCE_SCATTER: "total_msg_size",
}
"""The test of the size: that of the full buffer, but for all-to-all."""

CONDITIONS: Mapping[CollectiveKind, tuple[str, ...]] = {
    CollectiveKind.ALL_REDUCE: ("is_commutative=yes", "is_op_built_in=yes"),
    CollectiveKind.ALL_TO_ALL: ("is_sendbuf_inplace=no",),
    CollectiveKind.REDUCE_SCATTER: ("is_commutative=yes",),
}
"""Calls that the algorithms can serve; others keep MPICH's own choice."""

LARGEST_TEST = (1 << 31) - 1
"""MPICH reads the number of a test as a C int."""


def opposite(condition: str) -> str:
    """The test that holds where `condition` does not."""
    name, _, value = condition.partition("=")
    return f"{name}={'no' if value == 'yes' else 'yes'}"


def message_parts(kind: CollectiveKind, num_ranks: int) -> int:
    """How many times the size that is tested fits the full buffer."""
    return num_ranks if kind is CollectiveKind.ALL_TO_ALL else 1
