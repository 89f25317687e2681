"""Collectives as SCCL states them: which chunk is where before and after, and its address."""

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
class StatedChunk:
    """Ranks that have a chunk before, those that need it after, and its address."""

    before: frozenset[int]
    after: frozenset[int]
    address: int


def num_addresses(kind: CollectiveKind, ranks: int) -> int:
    """Addresses of an undivided collective."""
    traits = kind.traits
    if traits.split_by_source and traits.split_by_target:
        return ranks * ranks
    return ranks if traits.split_by_source or traits.split_by_target else 1


def share_of(kind: CollectiveKind, address: int, ranks: int) -> int:
    """Number of the share at an address, in the order of `collhub_schedules.Chunks.cut`."""
    if kind is CollectiveKind.ALL_TO_ALL:
        # Addresses count targets in rows, shares sources.
        target, source = divmod(address, ranks)
        return source * ranks + target
    return address


def stated_chunks(
    kind: CollectiveKind, ranks: int, root: int | None, parts: int
) -> Iterator[StatedChunk]:
    """All chunks of a collective, each address cut in `parts`: part i of address a at `a * D + i`.

    A combining collective has one for every rank that contributes.
    """
    # Compared as sets: files list ranks in any order.
    everyone = frozenset(range(ranks))
    traits = kind.traits
    for address in range(num_addresses(kind, ranks)):
        share = share_of(kind, address, ranks)
        source, target = (
            divmod(share, ranks) if kind is CollectiveKind.ALL_TO_ALL else (share, share)
        )
        owner = root if traits.from_root else source
        after = everyone
        if traits.to_root:
            after = frozenset({root if root is not None else 0})
        elif traits.split_by_target:
            after = frozenset({target})
        # Every contribution is a chunk of its own at the one address.
        givers = range(ranks) if traits.reduces else [owner if owner is not None else 0]
        for part in range(parts):
            for giver in givers:
                yield StatedChunk(frozenset({giver}), after, address * parts + part)
