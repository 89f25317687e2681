"""Algorithms with the minimum number of chunks: every rank exchanges data with every other rank.

Their plans serve sizes that are not multiples of the chunks of faster plans.
"""

from __future__ import annotations

from hub_core.model import (
    Algorithm,
    Buffer,
    Collective,
    CollectiveKind,
    StepKind,
    StepTableBuilder,
)

_LANE = 0


def direct_exchange(kind: CollectiveKind, num_ranks: int, *, in_place: bool) -> Algorithm:
    """Build the direct algorithm: an all-reduce has one unit, other collectives one per rank.

    Every rank sends all its data before it writes any, so the algorithm is correct in place.
    """
    units = 1 if kind is CollectiveKind.ALL_REDUCE else num_ranks
    collective = Collective(kind, num_ranks, units, in_place=in_place, out_of_place=not in_place)
    steps = StepTableBuilder(num_ranks)
    is_by_target = kind.traits.split_by_target
    finish = _add_up if kind.traits.reduces else _store
    for rank in range(num_ranks):
        # Every rank begins with a different peer, so that no rank receives from all at once.
        peers = [(rank + distance) % num_ranks for distance in range(1, num_ranks)]
        sent = [
            steps.add(
                rank,
                StepKind.SEND,
                peer=peer,
                src_buffer=Buffer.INPUT,
                src_offset=peer if is_by_target else 0,
                count=1,
                lane=_LANE,
            )
            for peer in peers
        ]
        finish(steps, rank, peers[::-1], sent, rank if is_by_target else 0)
    return Algorithm(collective, steps.build(), collective.input_units() * 0)


def _store(
    steps: StepTableBuilder, rank: int, peers: list[int], sent: list[int], own_unit: int
) -> None:
    """Add steps that store all units in the output after the sends `sent`.

    `own_unit`: the unit of the input that is copied within the rank.
    """
    steps.add(
        rank,
        StepKind.COPY,
        control=sent,
        src_buffer=Buffer.INPUT,
        src_offset=own_unit,
        dst_buffer=Buffer.OUTPUT,
        dst_offset=rank,
        count=1,
        lane=_LANE,
    )
    for peer in peers:
        steps.add(
            rank,
            StepKind.RECV,
            control=sent,
            peer=peer,
            dst_buffer=Buffer.OUTPUT,
            dst_offset=peer,
            count=1,
            lane=_LANE,
        )


def _add_up(
    steps: StepTableBuilder, rank: int, peers: list[int], sent: list[int], own_unit: int
) -> None:
    """Add steps that sum input unit `own_unit` and all received units after the sends `sent`."""
    buffer, offset, before = Buffer.INPUT, own_unit, sent
    for peer in peers:
        row = steps.add(
            rank,
            StepKind.RECV_REDUCE,
            control=before,
            peer=peer,
            src_buffer=buffer,
            src_offset=offset,
            dst_buffer=Buffer.OUTPUT,
            dst_offset=0,
            count=1,
            lane=_LANE,
        )
        buffer, offset, before = Buffer.OUTPUT, 0, [row]
