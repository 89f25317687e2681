"""Find the contract of a program's collective: one of the hub's kinds, or a table of the
results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from collhub_msccl.language.chunks import Buffer, Chunk, list_chunks
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
from collhub_msccl.language.trace import TracedContract

if TYPE_CHECKING:
    from collhub_msccl.language.program import MSCCLProgram

_KINDS: dict[type[Collective], str] = {
    AllReduce: "all-reduce",
    AllGather: "all-gather",
    AllToAll: "all-to-all",
    ReduceScatter: "reduce-scatter",
    Broadcast: "broadcast",
}
_MEANING_METHODS = ("init_buffers", "check", "get_buffer_index", "get_destination")


def find_kind(collective: Collective) -> str:
    """The hub's kind of a collective.

    `custom` for all other classes, and for a class derived from a known one that changes its
    meaning.
    """
    # A derived class may rename things or set defaults.
    for known, kind in _KINDS.items():
        if isinstance(collective, known) and _has_same_meaning(type(collective), known):
            return kind
    return "custom"


def _has_same_meaning(derived: type[Collective], known: type[Collective]) -> bool:
    """Whether a class overrides none of the methods that define a collective."""
    return all(getattr(derived, method) is getattr(known, method) for method in _MEANING_METHODS)


def build_contract(program: MSCCLProgram, initial: Sequence[RankBuffers]) -> TracedContract:
    """Contract of a collective that only its `check` method defines.

    If that check accepts the final buffers of the program, every run must produce these contents.
    `initial`: buffers of every rank before. Raises `ValueError` if it refuses them, or if data is
    initially outside of `Buffer.input`.
    """
    origins = _find_origins(program.collective, initial)
    defined = [any(value is not None for value in buffers[Buffer.input]) for buffers in initial]
    verdict = program.collective.check(program)
    if verdict is None:
        return TracedContract(defined, None)
    if not verdict:
        raise ValueError(
            f"the check of {type(program.collective).__name__} refuses the result of the program"
        )
    # A sum has one row per chunk.
    rows: list[list[int]] = []
    for rank, buffers in enumerate(program.buffers):
        for index, value in enumerate(buffers.get(Buffer.output, ())):
            rows += [[rank, index, *origins[id(chunk)]] for chunk in list_chunks(value)]
    return TracedContract(defined, rows)


def _find_origins(collective: Collective, initial: Sequence[RankBuffers]) -> dict[int, Origin]:
    """Initial (rank, index) in the input of every chunk object, by its `id`.

    Identity counts, not equality: `init_buffers` of a program may give equal chunks to several
    ranks, and copies move the objects. Raises `ValueError` for data in the output.
    """
    origins: dict[int, Origin] = {}
    for rank, buffers in enumerate(initial):
        for index, value in enumerate(buffers[Buffer.input]):
            if not isinstance(value, Chunk):
                continue
            # A chunk in several slots counts where its own fields locate it.
            is_at_origin = (rank, index) == (value.origin_rank, value.origin_index)
            if is_at_origin or id(value) not in origins:
                origins[id(value)] = rank, index
        _check_output(rank, buffers, collective.inplace)
    return origins


def _check_output(rank: int, buffers: RankBuffers, in_place: bool) -> None:
    """Raise `ValueError` for data in an output slot that is not also an input slot."""
    inputs = buffers[Buffer.input]
    for index, value in enumerate(buffers.get(Buffer.output, ())):
        is_shared = in_place and index < len(inputs) and inputs[index] is value
        if value is not None and not is_shared:
            raise ValueError(
                f"init_buffers: data in Buffer.output[{index}] of rank {rank}, "
                "expected in Buffer.input"
            )
