"""Tell what a program's collective promises.

It is one of the hub's kinds, or a table from what the program leaves behind.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from collhub_msccl.language.chunks import Buffer, Chunk, chunks_of
from collhub_msccl.language.collectives import (
    AllGather,
    AllReduce,
    AllToAll,
    Broadcast,
    Collective,
    Origin,
    RankBuffers,
    ReduceScatter,
)
from collhub_msccl.language.trace import StatedContract

if TYPE_CHECKING:
    from collhub_msccl.language.program import MSCCLProgram

_KINDS: dict[type[Collective], str] = {
    AllReduce: "all-reduce",
    AllGather: "all-gather",
    AllToAll: "all-to-all",
    ReduceScatter: "reduce-scatter",
    Broadcast: "broadcast",
}
_OWN_WAYS = ("init_buffers", "check", "get_buffer_index", "get_destination")


def kind_of(collective: Collective) -> str:
    """The hub's kind of a collective.

    `custom` also for a class derived from a known one that changes its meaning.
    """
    # Derived classes may only rename things, or set defaults.
    for known, kind in _KINDS.items():
        if isinstance(collective, known) and _keeps_meaning(type(collective), known):
            return kind
    return "custom"


def _keeps_meaning(derived: type[Collective], known: type[Collective]) -> bool:
    """Whether a class overrides nothing that says what a collective does."""
    return all(getattr(derived, way) is getattr(known, way) for way in _OWN_WAYS)


def stated_contract(program: MSCCLProgram, initial: Sequence[RankBuffers]) -> StatedContract:
    """The contract of a collective that only its own `check` knows.

    Where that check accepts what the program leaves in its buffers, this is what any run must
    leave. `initial`: buffers of every rank before. Raises `ValueError` where it refuses, or where
    data stands outside of `Buffer.input` at the start.
    """
    origins = _origins(program.collective, initial)
    defined = [any(value is not None for value in buffers[Buffer.input]) for buffers in initial]
    verdict = program.collective.check(program)
    if verdict is None:
        return StatedContract(defined, None)
    if not verdict:
        raise ValueError(
            f"the check of {type(program.collective).__name__} refuses the result of the program"
        )
    # A sum has a row for each chunk in it.
    rows: list[list[int]] = []
    for rank, buffers in enumerate(program.buffers):
        for index, value in enumerate(buffers.get(Buffer.output, ())):
            rows += [[rank, index, *origins[id(chunk)]] for chunk in chunks_of(value)]
    return StatedContract(defined, rows)


def _origins(collective: Collective, initial: Sequence[RankBuffers]) -> dict[int, Origin]:
    """Where every chunk object stands in the input at the start, by its `id`.

    Objects are told apart, not chunks: a program's `init_buffers` may give equal chunks to several
    ranks, which a copy then moves about as objects.
    """
    origins: dict[int, Origin] = {}
    for rank, buffers in enumerate(initial):
        for index, value in enumerate(buffers[Buffer.input]):
            if not isinstance(value, Chunk):
                continue
            # A chunk in several places counts where its own fields say.
            is_at_origin = (rank, index) == (value.origin_rank, value.origin_index)
            if is_at_origin or id(value) not in origins:
                origins[id(value)] = rank, index
        _check_output(rank, buffers, collective.inplace)
    return origins


def _check_output(rank: int, buffers: RankBuffers, in_place: bool) -> None:
    """Refuse data in an output that is not the input too."""
    inputs = buffers[Buffer.input]
    for index, value in enumerate(buffers.get(Buffer.output, ())):
        is_shared = in_place and index < len(inputs) and inputs[index] is value
        if value is not None and not is_shared:
            raise ValueError(
                f"init_buffers: data stands in Buffer.output[{index}] of rank {rank}, "
                "expected in Buffer.input"
            )
