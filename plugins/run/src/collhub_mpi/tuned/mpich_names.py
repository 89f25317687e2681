"""MPICH's names of collectives and algorithms in selection files, and the equivalent classic
algorithms.

Names and tests of `maint/tuning/coll/mpir/generic.json`, MPICH 5.0.2. A test is a key; its value
applies if the test is true, otherwise the next sibling.
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
"""Names of a collective; reduce-scatter corresponds to two functions of MPI."""

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
"""MPICH's algorithms by the equivalent classic algorithm."""

SIZE_TESTS: Mapping[CollectiveKind, str] = {
    CollectiveKind.ALL_REDUCE: "avg_msg_size",
    CollectiveKind.ALL_GATHER: "total_msg_size",
    # The bytes sent to one rank.
    CollectiveKind.ALL_TO_ALL: "avg_msg_size",
    CollectiveKind.BROADCAST: "avg_msg_size",
    CollectiveKind.REDUCE: "avg_msg_size",
    CollectiveKind.REDUCE_SCATTER: "total_msg_size",
}
"""The test of the size: that of the full buffer, except for all-to-all."""

CONDITIONS: Mapping[CollectiveKind, tuple[str, ...]] = {
    CollectiveKind.ALL_REDUCE: ("is_commutative=yes", "is_op_built_in=yes"),
    CollectiveKind.ALL_TO_ALL: ("is_sendbuf_inplace=no",),
    CollectiveKind.REDUCE_SCATTER: ("is_commutative=yes",),
}
"""Conditions under which the algorithms apply; other calls keep MPICH's choice."""

LARGEST_TEST = (1 << 31) - 1
"""MPICH reads the number of a test as a C int."""


def opposite(condition: str) -> str:
    """Return the negation of a yes/no condition."""
    name, _, value = condition.partition("=")
    return f"{name}={'no' if value == 'yes' else 'yes'}"


def message_parts(kind: CollectiveKind, num_ranks: int) -> int:
    """Return the size of the full buffer divided by the size that is tested."""
    return num_ranks if kind is CollectiveKind.ALL_TO_ALL else 1
