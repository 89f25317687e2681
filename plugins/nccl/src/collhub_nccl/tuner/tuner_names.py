"""What the tuner's configuration calls collectives and algorithms, and which classic is which.

`plugins/tuner/example` of NCCL 2.30.7. Names that it does not know become, without a word,
allreduce, ring and simple: those written here are exact.
"""

from __future__ import annotations

from collections.abc import Mapping

from hub_core.model import CollectiveKind

FILE = "nccl_tuner.conf"
LARGEST = (1 << 64) - 1
# The buffer of its reader, which cuts what does not fit.
LONGEST_LINE = 255
ANY = "-1"
COLLECTIVES: Mapping[str, CollectiveKind] = {
    "allreduce": CollectiveKind.ALL_REDUCE,
    "broadcast": CollectiveKind.BROADCAST,
    "reduce": CollectiveKind.REDUCE,
    "allgather": CollectiveKind.ALL_GATHER,
    "reducescatter": CollectiveKind.REDUCE_SCATTER,
}
ALGORITHMS = ("tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat")
PROTOCOLS = ("ll", "ll128", "simple")
# The tuner starts from one channel, which -1 keeps and 0 replaces by NCCL's own number.
OWN_CHANNELS = "0"
# NCCL skips a line with another algorithm, and with ll or ll128 for an algorithm other than these.
_GATHERING = frozenset({"ring", "nvls", "collnet_direct", "pat"})
ALLOWED: Mapping[CollectiveKind, frozenset[str]] = {
    CollectiveKind.ALL_REDUCE: frozenset(ALGORITHMS) - {"pat"},
    CollectiveKind.ALL_GATHER: _GATHERING,
    CollectiveKind.REDUCE_SCATTER: _GATHERING,
    CollectiveKind.BROADCAST: frozenset({"ring"}),
    CollectiveKind.REDUCE: frozenset({"ring"}),
}
WITH_LL = frozenset({"tree", "ring"})

# NCCL runs one ring on every channel, so that several rings are its ring as well.
_RINGS = {"ring": "ring", "rings": "ring"}
_OF_ALL_REDUCE = {**_RINGS, "double-binary-tree": "tree"}
_WITH_PAT = {**_RINGS, "pat": "pat"}


def own_algorithms(kind: CollectiveKind, num_ranks: int, num_nodes: int) -> Mapping[str, str]:
    """NCCL's name by that of the classic algorithm, for those that NCCL has."""
    if kind is CollectiveKind.ALL_REDUCE:
        return _OF_ALL_REDUCE
    if kind in (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER):
        # Its parallel aggregated trees are for one rank a node; others ignore the line.
        return _WITH_PAT if num_nodes == num_ranks else _RINGS
    return _RINGS if kind in COLLECTIVES.values() else {}
