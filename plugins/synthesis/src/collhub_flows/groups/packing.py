"""Trees of all pieces by packing: each is grown anew where links are loaded, round after round."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from collhub_flows.groups.shares import Shares
from collhub_flows.groups.trees import Pieces, Trees
from collhub_flows.groups.wishes import GroupWish
from collhub_flows.linear_program import unreachable
from collhub_flows.network import FlowNetwork
from hub_core.columns import BoolArray, Int64Array, csr, expanded_ranges, row_pointer

_ROUNDS = 6
_STEEPNESS = 10.0


def packed_trees(
    network: FlowNetwork, wishes: Sequence[GroupWish], shares: Shares, pieces_each: int
) -> Trees:
    """Trees for `pieces_each` equal pieces of every share.

    Raises `InputError` where a member is out of reach of another.
    """
    # Imported here: numba takes a second.
    from collhub_flows.groups.kernels import packed

    if not network.num_arcs:
        raise unreachable(network)
    count = len(shares) * pieces_each
    share = np.repeat(np.arange(len(shares)), pieces_each)
    pieces = Pieces.one_behind_another(share, np.ones(count, np.int64), pieces_each)
    piece, inward = _trees_of_pieces(shares, share)
    of_tree = share[piece]
    target_indptr, targets = _targets(wishes, shares, of_tree)
    nodes = network.topology.num_npus
    everyone = np.arange(network.num_arcs)
    size, arcs, parent = packed(
        shares.root[of_tree],
        inward,
        shares.bytes[of_tree] / pieces_each,
        target_indptr,
        targets,
        *csr(network.source, everyone, nodes),
        *csr(network.destination, everyone, nodes),
        network.source,
        network.destination,
        network.routes.indptr,
        network.routes.links,
        1.0 / network.topology.bandwidth_bytes_per_s,
        _ROUNDS,
        _STEEPNESS,
    )
    if size.min() < 0:
        raise unreachable(network)
    indptr = row_pointer(size)
    # Rows of the tables are as long as the largest tree could be.
    kept = expanded_ranges(np.arange(len(size)) * nodes, size)
    local = parent.ravel()[kept]
    shift = np.repeat(indptr[:-1], size)
    hung = np.where(local < 0, -1, local + shift)
    return Trees(pieces, piece, inward, indptr, arcs.ravel()[kept], hung)


def _trees_of_pieces(shares: Shares, share: Int64Array) -> tuple[Int64Array, BoolArray]:
    """Piece and direction of every tree: inward where it is summed, outward where it spreads."""
    inward = np.flatnonzero(shares.gathers[share])
    outward = np.flatnonzero(shares.spreads[share])
    piece = np.concatenate([inward, outward])
    is_inward = np.arange(len(piece)) < len(inward)
    # Both trees of a piece side by side, the inward one first.
    order = np.lexsort((~is_inward, piece))
    return piece[order], is_inward[order]


def _targets(
    wishes: Sequence[GroupWish], shares: Shares, of_tree: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """NPUs that each tree spans besides its root, as a table by rows."""
    found = []
    for share in of_tree.tolist():
        target = int(shares.target[share])
        others = wishes[int(shares.group[share])].npus
        if target >= 0 and not shares.gathers[share]:
            others = (target,)
        root = int(shares.root[share])
        found.append([npu for npu in others if npu != root])
    lengths = [len(each) for each in found]
    return row_pointer(lengths), np.concatenate(found).astype(np.int64)
