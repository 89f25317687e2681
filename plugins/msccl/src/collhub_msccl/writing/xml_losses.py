"""List what MSCCL-IR XML, or the runtime that a file is written for, cannot express."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from collhub_msccl.reading.roots import find_possible_roots
from collhub_msccl.writing.block_time import BlockFigures
from collhub_msccl.writing.choose import ChosenProgram
from collhub_msccl.writing.emission_header import Target
from hub_core.model import COLUMN_DTYPES, Algorithm, Collective, Loss, ReduceOp

_HEADER_KEPT = frozenset(
    (
        "name",
        "proto",
        "nchannels",
        "nchunksperloop",
        "ngpus",
        "coll",
        "inplace",
        "outofplace",
        "minBytes",
        "maxBytes",
    )
)


def losses_of(
    algorithm: Algorithm,
    coarse: Algorithm,
    target: Target,
    largest: int | None,
    chosen: ChosenProgram,
) -> list[Loss]:
    """The losses in a fixed order. `coarse`: the algorithm in the units of the file."""
    return [
        *_of_modes(algorithm.collective, target),
        *_of_spelling(algorithm.collective, target),
        *_of_contract(algorithm.collective, target),
        *_of_operator(algorithm.collective),
        *_of_root(algorithm.collective, coarse),
        *_of_steps(algorithm, coarse),
        *_of_extensions(algorithm, target),
        *_of_sizes(target, largest),
        *_of_blocks(target, chosen),
    ]


def _of_modes(collective: Collective, target: Target) -> Iterator[Loss]:
    """A mode that the algorithm serves and the file does not claim."""
    written = target.collective
    where = f"a file for {target.runtime.title} or with -O mode serves one mode"
    consequence = "write a second file with -O mode for calls of this kind"
    if collective.in_place and not written.in_place:
        yield Loss("in_place", where, consequence)
    if collective.out_of_place and not written.out_of_place:
        yield Loss("out_of_place", where, consequence)


def _of_spelling(collective: Collective, target: Target) -> Iterator[Loss]:
    """Another collective's name, which is none of this kind and was not imported."""
    own_name = target.runtime.spelling.get(collective.kind)
    if target.spelling in (own_name, target.imported.get("coll")):
        return
    where = f"{collective.kind} is written as coll={target.spelling!r}"
    yield Loss("kind", where, "only calls of that collective use it")


def _of_contract(collective: Collective, target: Target) -> Iterator[Loss]:
    """The contract of a custom collective, and buffers of other sizes than the runtime takes."""
    if collective.contract is not None and not _is_plain(collective):
        yield Loss("contract", "the custom collective", "what it must do is not in the file")
    declared_input, declared_output = target.declared_chunks
    is_input_kept = np.array_equal(declared_input, target.collective.input_units())
    is_output_kept = np.array_equal(declared_output, target.collective.output_units())
    if not (is_input_kept and is_output_kept):
        consequence = f"{target.runtime.title} takes no other size than nchunksperloop"
        yield Loss("contract", "buffers of uneven sizes", consequence)


def _is_plain(collective: Collective) -> bool:
    """Whether a custom contract states buffer sizes alone."""
    contract = collective.contract
    if contract is None or contract.expected is not None:
        return False
    return bool(np.all(contract.defined))


def _of_operator(collective: Collective) -> Iterator[Loss]:
    """The operator is that of the call."""
    if collective.reduce_op is not ReduceOp.SUM:
        consequence = "the file serves calls with every operator that the runtime knows"
        yield Loss("reduce_op", str(collective.reduce_op), consequence)


def _of_root(collective: Collective, coarse: Algorithm) -> Iterator[Loss]:
    """The root, unless the steps tell it."""
    if collective.root is not None and not _names_root(coarse):
        consequence = "it cannot be told from the steps; reading back asks for it"
        yield Loss("root", f"rank {collective.root}", consequence)


def _names_root(algorithm: Algorithm) -> bool:
    """Whether the reader will infer the right root."""
    collective, steps = algorithm.collective, algorithm.steps
    # As the reader will have them.
    columns = {name: getattr(steps, name).astype(np.int64) for name in COLUMN_DTYPES}
    is_aliased = collective.in_place and not collective.out_of_place
    found = find_possible_roots(collective.kind, columns, collective.num_ranks, is_aliased)
    return found == [collective.root]


def _of_steps(algorithm: Algorithm, coarse: Algorithm) -> Iterator[Loss]:
    """Units, durations and the bound size."""
    if algorithm is not coarse:
        units = f"{algorithm.collective.unit_count} to {coarse.collective.unit_count}"
        feature = "unit_count and offsets and counts of steps"
        yield Loss(feature, units, "the same program in larger units")
    timed = int(np.count_nonzero(algorithm.steps.duration_ns >= 0))
    if timed:
        yield Loss("durations", f"{timed} steps", "the file states no times")
    if algorithm.collective_bytes is not None:
        size = str(algorithm.collective_bytes)
        yield Loss("collective bytes", size, "the file serves a range of sizes")


def _of_extensions(algorithm: Algorithm, target: Target) -> Iterator[Loss]:
    """Data of other formats, and attributes of the imported file that have no place here."""
    foreign = sorted(set(algorithm.extensions) - {"msccl"})
    if foreign:
        consequence = "the file has no place for data of other formats"
        yield Loss("extensions", ", ".join(foreign), consequence)
    # Of the three, microsoft/msccl alone reads nthreads.
    kept = _HEADER_KEPT if target.runtime.has_both_modes else _HEADER_KEPT | {"nthreads"}
    dropped = sorted(set(target.imported) - kept)
    if dropped:
        where = f"attributes {', '.join(dropped)} of <algo>"
        yield Loss("extensions", where, f"{target.runtime.title} does not know them")


def _of_sizes(target: Target, largest: int | None) -> Iterator[Loss]:
    """Sizes that were served, but at which connections could fill up."""
    if largest is None:
        return
    # Lowered by the writer, not by the user.
    if target.max_bytes is None or largest < target.max_bytes:
        consequence = (
            "the runtime does not use the file above,"
            " where the FIFOs of connections could fill up and deadlock"
        )
        yield Loss("extensions: maxBytes", f"{largest} bytes", consequence)


def _of_blocks(target: Target, chosen: ChosenProgram) -> Iterator[Loss]:
    """Thread blocks that had to be joined."""
    blocks = chosen.figures.blocks
    if blocks < chosen.source_blocks:
        where = f"up to {chosen.source_blocks} thread blocks of a rank become {blocks}"
        consequence = f"within the limits of {target.runtime.title}, less is done side by side"
        yield Loss("lane", where, consequence)


def note_of(figures: BlockFigures, unit_count: int) -> str:
    """What the file asks of a runtime, in words."""
    time = figures.makespan / max(unit_count, 1)
    blocks = f"{_counted(figures.blocks, 'thread block')} a rank at most"
    longest, fused = _counted(figures.longest, "step"), _counted(figures.fused, "step")
    model = f"by the model of thread blocks they take {time:.3g} of the time of a buffer"
    channels = _counted(figures.channels, "channel")
    return f"has {blocks} on {channels}, the longest of {longest}, {fused} fused; {model}"


def _counted(number: int, what: str) -> str:
    """A number of things."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
