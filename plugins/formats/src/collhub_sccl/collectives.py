"""Collectives in SCCL's form: which ranks have each chunk before and after, and its address."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from hub_core.model import CollectiveKind

NAMES: Mapping[CollectiveKind, str] = {
    CollectiveKind.BROADCAST: "Broadcast",
    CollectiveKind.SCATTER: "Scatter",
    CollectiveKind.GATHER: "Gather",
    CollectiveKind.ALL_GATHER: "Allgather",
    CollectiveKind.ALL_TO_ALL: "Alltoall",
    CollectiveKind.REDUCE: "Reduce",
    CollectiveKind.ALL_REDUCE: "Allreduce",
    CollectiveKind.REDUCE_SCATTER: "ReduceScatter",
}
RUNTIME_NAMES: Mapping[CollectiveKind, str] = {
    CollectiveKind.ALL_GATHER: "allgather",
    CollectiveKind.ALL_TO_ALL: "alltoall",
    CollectiveKind.ALL_REDUCE: "allreduce",
    CollectiveKind.REDUCE_SCATTER: "reduce_scatter",
    CollectiveKind.BROADCAST: "broadcast",
    CollectiveKind.REDUCE: "reduce",
}


@dataclass(frozen=True, slots=True)
class ScclChunk:
    """Ranks that have a chunk before, ranks that need it after, and its address."""

    before: frozenset[int]
    after: frozenset[int]
    address: int


def count_addresses(kind: CollectiveKind, ranks: int) -> int:
    """Number of addresses of an undivided collective."""
    traits = kind.traits
    if traits.split_by_source and traits.split_by_target:
        return ranks * ranks
    return ranks if traits.split_by_source or traits.split_by_target else 1


def find_share(kind: CollectiveKind, address: int, ranks: int) -> int:
    """Number of the share at an address, in the order of `hub_core.schedules.Chunks.cut`."""
    if kind is CollectiveKind.ALL_TO_ALL:
        # Addresses are ordered by target, shares by source.
        target, source = divmod(address, ranks)
        return source * ranks + target
    return address


def iterate_chunks(
    kind: CollectiveKind, ranks: int, root: int | None, parts: int
) -> Iterator[ScclChunk]:
    """Yield all chunks of a collective, each address divided into `parts`.

    Part i of address a has the address a * parts + i. A reducing collective has one chunk per
    contributing rank.
    """
    # Compared as sets: files list ranks in any order.
    all_ranks = frozenset(range(ranks))
    traits = kind.traits
    for address in range(count_addresses(kind, ranks)):
        share = find_share(kind, address, ranks)
        source, target = (
            divmod(share, ranks) if kind is CollectiveKind.ALL_TO_ALL else (share, share)
        )
        owner = root if traits.from_root else source
        after = all_ranks
        if traits.to_root:
            after = frozenset({root if root is not None else 0})
        elif traits.split_by_target:
            after = frozenset({target})
        # Every contribution is a separate chunk at the same address.
        contributors = range(ranks) if traits.reduces else [owner if owner is not None else 0]
        for part in range(parts):
            for contributor in contributors:
                yield ScclChunk(frozenset({contributor}), after, address * parts + part)
