"""Names of collectives and algorithms in coll/tuned of Open MPI, and the equivalent classic
algorithms.

Identifiers of `ompi/mca/coll/base/coll_base_functions.h`, numbers and names of the algorithms of
`ompi/mca/coll/tuned`, Open MPI 5.0.11. Number 0 is the built-in decision.
"""

from __future__ import annotations

from collections.abc import Mapping

from hub_core.model import CollectiveKind

CLASSIC_FILE, JSON_FILE = "tuned_rules.conf", "tuned_rules.json"
JSON_VERSION = 3

COLLECTIVES: Mapping[CollectiveKind, tuple[int, str]] = {
    CollectiveKind.ALL_GATHER: (0, "allgather"),
    CollectiveKind.ALL_REDUCE: (2, "allreduce"),
    CollectiveKind.ALL_TO_ALL: (3, "alltoall"),
    CollectiveKind.BROADCAST: (7, "bcast"),
    CollectiveKind.REDUCE: (11, "reduce"),
    CollectiveKind.REDUCE_SCATTER: (12, "reduce_scatter"),
}
"""Number and name of a collective."""

ALGORITHMS: Mapping[CollectiveKind, Mapping[str, tuple[int, str]]] = {
    CollectiveKind.ALL_REDUCE: {
        "recursive-doubling": (3, "recursive_doubling"),
        "ring": (4, "ring"),
        "halving-doubling": (6, "rabenseifner"),
    },
    CollectiveKind.ALL_GATHER: {
        "direct": (1, "linear"),
        "bruck": (2, "bruck"),
        "recursive-doubling": (3, "recursive_doubling"),
        "ring": (4, "ring"),
        "neighbour-exchange": (5, "neighbor"),
        "sparbit": (7, "sparbit"),
    },
    CollectiveKind.ALL_TO_ALL: {
        "direct": (1, "linear"),
        "pairwise": (2, "pairwise"),
        "bruck": (3, "modified_bruck"),
    },
    CollectiveKind.BROADCAST: {
        # A chain with segments.
        "ring": (3, "pipeline"),
        "binomial": (6, "binomial"),
        "k-nomial": (7, "knomial"),
    },
    CollectiveKind.REDUCE: {"binomial": (5, "binomial")},
    CollectiveKind.REDUCE_SCATTER: {
        "halving-doubling": (2, "recursive_halving"),
        "ring": (3, "ring"),
    },
}
"""Number and name of an algorithm, by the equivalent classic algorithm."""


def algorithm_name(kind: CollectiveKind, number: int) -> str:
    """Return the name of an algorithm of Open MPI, or its number if no classic algorithm is
    equivalent.
    """
    if number == 0:
        return "the built-in decision"
    names = dict(ALGORITHMS[kind].values())
    return names.get(number, f"algorithm {number}")
