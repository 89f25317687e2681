"""Names of collectives and algorithms in the tuner's configuration, and equivalents of classic
ones.

Source: `plugins/tuner/example` of NCCL 2.30.7. It silently replaces unknown names by allreduce,
ring and simple, so the names must be exact.
"""

from __future__ import annotations

from collections.abc import Mapping

from hub_core.model import CollectiveKind

FILE = "nccl_tuner.conf"
LARGEST = (1 << 64) - 1
# The buffer of its reader, which truncates longer lines.
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
# The tuner starts with one channel; -1 keeps it, 0 selects NCCL's default number.
OWN_CHANNELS = "0"
# NCCL skips a line with any other algorithm, and with ll or ll128 for algorithms not listed in
# WITH_LL.
_GATHERING = frozenset({"ring", "nvls", "collnet_direct", "pat"})
ALLOWED: Mapping[CollectiveKind, frozenset[str]] = {
    CollectiveKind.ALL_REDUCE: frozenset(ALGORITHMS) - {"pat"},
    CollectiveKind.ALL_GATHER: _GATHERING,
    CollectiveKind.REDUCE_SCATTER: _GATHERING,
    CollectiveKind.BROADCAST: frozenset({"ring"}),
    CollectiveKind.REDUCE: frozenset({"ring"}),
}
WITH_LL = frozenset({"tree", "ring"})

# NCCL runs one ring on every channel, so several rings correspond to its ring too.
_RINGS = {"ring": "ring", "rings": "ring"}
_OF_ALL_REDUCE = {**_RINGS, "double-binary-tree": "tree"}
_WITH_PAT = {**_RINGS, "pat": "pat"}


def own_algorithms(kind: CollectiveKind, num_ranks: int, num_nodes: int) -> Mapping[str, str]:
    """NCCL's name by the name of the classic algorithm, for those that NCCL has."""
    if kind is CollectiveKind.ALL_REDUCE:
        return _OF_ALL_REDUCE
    if kind in (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER):
        # Its parallel aggregated trees require one rank per node; otherwise NCCL ignores the line.
        return _WITH_PAT if num_nodes == num_ranks else _RINGS
    return _RINGS if kind in COLLECTIVES.values() else {}
