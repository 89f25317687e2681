"""Which part of the data goes on which tree, and in what form."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from collhub_columns import Int64Array

from collhub_packing.pipelining.operations import (
    Operations,
    PrunedTree,
    broadcast,
    paths,
    pruned,
    reduce_and_broadcast,
    reduction,
    turned_round,
)
from collhub_packing.trees import SpanningTree
from hub_core.model import Collective, CollectiveKind, InputError


@dataclass(frozen=True, slots=True, eq=False)
class Stream:
    """A part of the data that is cut in chunks, all sent alike.

    `part` of share `share` (as in `Chunks.cut`) from `begin` on; both are fractions of the share.
    `tree` is the number of the tree that carries it.
    """

    tree: int
    share: int
    begin: Fraction
    part: Fraction
    operations: Operations


# Every rank sends, or receives, a share of its own from its own trees.
_ROOTED_AT_RANKS = frozenset({CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER})


def _to_and_fro(tree: PrunedTree, members: Int64Array) -> list[Operations]:
    """Up and down again, whoever is a member."""
    return [reduce_and_broadcast(tree)]


def _down(tree: PrunedTree, members: Int64Array) -> list[Operations]:
    """From the root to all."""
    return [broadcast(tree)]


def _up(tree: PrunedTree, members: Int64Array) -> list[Operations]:
    """From all to the root."""
    return [reduction(tree)]


def _gathering(tree: PrunedTree, members: Int64Array) -> list[Operations]:
    """From every member to the root, each by itself."""
    return [turned_round(path) for path in paths(tree, members)]


_FORMS: Mapping[CollectiveKind, Callable[[PrunedTree, Int64Array], list[Operations]]] = {
    CollectiveKind.ALL_REDUCE: _to_and_fro,
    CollectiveKind.BROADCAST: _down,
    CollectiveKind.ALL_GATHER: _down,
    CollectiveKind.REDUCE: _up,
    CollectiveKind.REDUCE_SCATTER: _up,
    CollectiveKind.SCATTER: paths,
    CollectiveKind.GATHER: _gathering,
}


def streams_of(
    trees: Sequence[SpanningTree],
    collective: Collective,
    members: Int64Array,
) -> Iterator[Stream]:
    """The streams of a collective whose rank r runs on NPU `members[r]`, tree by tree.

    Every share of the data is split by the weights of the trees that carry it. Raises
    `InputError` for a collective that does not run on trees and for trees with wrong roots.
    """
    if collective.kind not in _FORMS:
        message = f"{collective.kind} does not run on spanning trees"
        raise InputError(message, code="trees-unsuitable")
    form = _FORMS[collective.kind]
    shares = _first_shares(trees, collective, members)
    _check_roots(trees, shares, collective, members)
    weight = _weight_by_share(trees, shares)
    begin = dict.fromkeys(weight, Fraction(0))
    for number, (tree, first) in enumerate(zip(trees, shares, strict=True)):
        part = Fraction(tree.weight, weight[first])
        # A scatter's tree has a path, and so a stream, for the share of every rank.
        for place, operations in enumerate(form(pruned(tree, members), members)):
            yield Stream(number, first + place, begin[first], part, operations)
        begin[first] += part


def _first_shares(
    trees: Sequence[SpanningTree],
    collective: Collective,
    members: Int64Array,
) -> list[int]:
    """The first share that each tree carries: that of its root, or 0; -1 for a foreign root."""
    if collective.kind not in _ROOTED_AT_RANKS:
        return [0] * len(trees)
    # Shares are numbered by ranks, trees are rooted at NPUs.
    rank_of = {int(npu): rank for rank, npu in enumerate(members)}
    return [rank_of.get(tree.root, -1) for tree in trees]


def _weight_by_share(trees: Sequence[SpanningTree], shares: Sequence[int]) -> dict[int, int]:
    """Weight of all trees that carry a share together."""
    weight: dict[int, int] = {}
    for tree, share in zip(trees, shares, strict=True):
        weight[share] = weight.get(share, 0) + tree.weight
    return weight


def _check_roots(
    trees: Sequence[SpanningTree],
    shares: Sequence[int],
    collective: Collective,
    members: Int64Array,
) -> None:
    """Refuse shares that no tree carries and trees with another root than the collective."""
    wanted = collective.num_ranks if collective.kind in _ROOTED_AT_RANKS else 1
    lost = set(range(wanted)) - set(shares)
    where = f"{collective.kind} on {len(trees)} trees"
    if lost:
        raise _wrong_root(f"{where}: no tree is rooted at rank {min(lost)}")
    if -1 in shares:
        raise _wrong_root(f"{where}: a tree is rooted at an NPU that is no member")
    if collective.root is None:
        return
    root = int(members[collective.root])
    if any(tree.root != root for tree in trees):
        raise _wrong_root(f"{collective.kind}: a tree is not rooted at NPU {root}")


def _wrong_root(message: str) -> InputError:
    return InputError(message, code="tree-root")
