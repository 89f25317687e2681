"""Build an algorithm from a schedule: the last step of every synthesizer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import Field, replace
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np

from hub_core.columns import Int64Array
from hub_core.model import (
    Algorithm,
    Collective,
    CollectiveKind,
    Contributions,
    CustomContract,
    JsonValue,
    Provenance,
    StepTable,
)
from hub_core.schedules.lowered_steps import (
    allocate_scratch,
    build_copies,
    build_message_steps,
    build_startup_steps,
    concatenate_columns,
)
from hub_core.schedules.message_ends import (
    ChunkHolders,
    MessageEnds,
    RowPairs,
    check_causality,
    order_links,
)
from hub_core.schedules.transfers import Chunks, Transfers, link_channels


def algorithm_of(
    collective: Collective,
    chunks: Chunks,
    transfers: Transfers,
    *,
    npus: Sequence[int] | None = None,
    num_npus: int | None = None,
    wanted: Sequence[int] | None = None,
    provenance: Provenance | None = None,
    collective_bytes: int | None = None,
    extensions: Mapping[str, JsonValue] | None = None,
    startup_ns: Sequence[int] = (),
) -> Algorithm:
    """Build the algorithm that performs `transfers`; rank v of the algorithm is NPU v.

    - `npus[r]`: the NPU of rank r of `collective`, by default r. Other NPUs only relay data.
    - `num_npus`: by default the highest NPU in `npus` + 1; `IndexError` if it is smaller.
    - `wanted`: the NPUs whose steps are created, None for all.
    - `startup_ns[p]`: time in ns until plane p of the topology is ready; empty: all are ready.
      Channel c belongs to plane c mod `len(startup_ns)`. A COMPUTE step of this time, if above 0,
      precedes those sends of an NPU on the plane that read INPUT.
    - `provenance`, `extensions`: None means empty. `collective_bytes` is stored as it is.

    A transfer becomes a SEND and a RECV, or a RECV_REDUCE if it reduces and the destination already
    has an operand. A received chunk is stored in OUTPUT if the rank needs it, otherwise in SCRATCH;
    later sends read it there. `build_steps` gives the channels and the dependencies. A chunk whose
    only contributor also needs it is copied at the end.

    The collective of the algorithm is that of `collective_among`. An all-to-all, also an uneven
    one, is out-of-place only: in place, arriving chunks would overwrite chunks still to be sent.
    Raises `InputError` (`schedule-acausal`) for a chunk that is sent before its source has it, and
    as `StepTable.from_columns` and `collective_among`.
    """
    members = np.arange(collective.num_ranks) if npus is None else np.asarray(npus, np.int64)
    if collective.kind in (CollectiveKind.ALL_TO_ALL, CollectiveKind.ALL_TO_ALL_V):
        collective = replace(collective, in_place=False, out_of_place=True)
    total = int(members.max()) + 1 if num_npus is None else num_npus
    message_ends = MessageEnds.from_transfers(transfers, len(chunks), wanted)
    holders = ChunkHolders.from_members(chunks, members, total)
    startups = np.asarray(startup_ns, np.int64)
    steps, scratch_units = build_steps(message_ends, transfers, holders, startups)
    return Algorithm(
        collective_among(collective, members.tolist(), total),
        steps,
        scratch_units,
        provenance or Provenance(),
        collective_bytes,
        extensions or {},
    )


def collective_among(collective: Collective, npus: Sequence[int], num_npus: int) -> Collective:
    """Convert a collective to `num_npus` ranks, in which rank `npus[r]` has the role of rank r.

    Returns `collective` itself if `npus` is 0, 1, 2 to `num_npus` - 1 in this order. Otherwise the
    result is a copy of kind custom, without root and counts. Unit count and reduction operator are
    kept. Its contract is the postcondition with NPUs instead of ranks, in the same order of rows; a
    sum over all ranks has a row per source rank. Ranks that are not in `npus` have empty INPUT and
    OUTPUT.

    The copy supports out-of-place calls, even if `collective` does not. It supports in-place calls
    only if `collective` does and its kind has no part per rank (`traits.is_split`), such as an
    all-reduce: a custom collective in place uses one buffer as INPUT and OUTPUT.

    `npus` must be distinct and below `num_npus`. Raises `InputError` (`too-large`) if the required
    contents are too many to be listed (`Collective.postcondition`), `IndexError` for an NPU of
    `num_npus` or more, and `AssertionError` for a custom collective without contents.
    """
    if list(npus) == list(range(num_npus)):
        return collective
    postcondition = collective.postcondition()
    assert postcondition is not None
    expected = postcondition.with_ranks_named(collective.num_ranks)
    npu_of_rank = np.asarray(npus, np.int64)
    inputs = np.zeros(num_npus, np.int64)
    outputs = np.zeros(num_npus, np.int64)
    defined = np.zeros(num_npus, np.bool_)
    inputs[npu_of_rank] = collective.input_units()
    outputs[npu_of_rank] = collective.output_units()
    defined[npu_of_rank] = collective.defined_inputs()
    contributions = Contributions(
        npu_of_rank[expected.rank],
        expected.offset,
        npu_of_rank[expected.source_rank],
        expected.source_unit,
    )
    return replace(
        collective,
        kind=CollectiveKind.CUSTOM,
        num_ranks=num_npus,
        root=None,
        contract=CustomContract(inputs, outputs, defined, contributions),
        counts=None,
        in_place=collective.in_place and not collective.kind.traits.is_split,
        out_of_place=True,
    )


def build_steps(
    message_ends: MessageEnds, transfers: Transfers, holders: ChunkHolders, startup_ns: Int64Array
) -> tuple[StepTable, Int64Array]:
    """Build the step table of a schedule; also return the SCRATCH units per NPU (int64[num_npus]).

    An NPU has its start-up steps, then a send or receive per end in `message_ends` (in that order),
    then its local copies. A step is moved only if a dependency requires it. If the chunk of a
    message arrived at the NPU before, the step has a data dependency on the last such arrival.
    Control dependencies lead from start-up steps to sends (`build_startup_steps`), keep the order
    on links (`order_links`), and lead from sends to copies (`build_copies`).

    The channel of a message is that in `transfers.channel`. If that is None, it is the number of
    its link among the used links of its pair of NPUs (`link_channels`). `startup_ns`: int64 per
    plane, empty if all planes are ready at time 0.

    Raises `InputError` for a chunk that is sent before its source has it (`schedule-acausal`), and
    for the errors of `StepTable.from_columns`, for example a cycle (`cyclic-dependencies`).
    """
    check_causality(message_ends, transfers, holders)
    channels = link_channels(transfers) if transfers.channel is None else transfers.channel
    channel = channels[message_ends.transfer]
    needs = holders.needs(message_ends.rank, message_ends.chunk)
    slot, scratch_units = allocate_scratch(message_ends, needs, holders)
    startups, startup_edges = build_startup_steps(message_ends, channel, startup_ns)
    messages = build_message_steps(message_ends, transfers, holders, needs, slot, channel)
    copies, copy_edges = build_copies(message_ends, holders)

    first_end = len(startups["rank"])
    # A send, or a reduction, depends on the last arrival of its chunk.
    rows = np.flatnonzero(message_ends.has_arrived)
    control = [
        startup_edges,
        _shift_rows(order_links(message_ends, transfers), first_end),
        _shift_rows(copy_edges, first_end),
    ]
    parents, children = zip(*control, strict=True)
    steps = StepTable.from_columns(
        holders.num_npus,
        concatenate_columns([startups, messages, copies]),
        _shift_rows((message_ends.previous[rows], rows), first_end),
        (np.concatenate(parents), np.concatenate(children)),
    )
    return steps, scratch_units


def _shift_rows(pairs: RowPairs, rows: int) -> RowPairs:
    """Add `rows` to all parent and child rows."""
    return pairs[0] + rows, pairs[1] + rows


class Searched(Protocol):
    """A dataclass: result of a search, or a candidate of one."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def is_interrupted(self) -> bool:
        """Whether Ctrl-C stopped the search early."""


Candidate = TypeVar("Candidate", bound=Searched)


def fastest_of(
    candidates: Iterable[Candidate], time: Callable[[Candidate], int]
) -> Candidate | None:
    """Return the candidate with the minimum time, the first of equal ones; None without candidates.

    Candidates are timed one by one, in order. The search ends early in two cases:

    - A candidate with `is_interrupted` was timed. It competes like the others.
    - Ctrl-C (`KeyboardInterrupt`) ends the timing or the iteration. The candidate that is being
      timed does not compete. If no candidate was timed before, the exception is raised again.

    Then a copy of the best candidate so far with `is_interrupted=True` is returned; otherwise it is
    the candidate itself. Other exceptions of `time` and `candidates` pass through.
    """
    best: Candidate | None = None
    best_time = 0
    try:
        for candidate in candidates:
            candidate_time = time(candidate)
            if best is None or candidate_time < best_time:
                best, best_time = candidate, candidate_time
            if candidate.is_interrupted:
                return replace(best, is_interrupted=True)
    except KeyboardInterrupt:
        if best is None:
            raise
        return replace(best, is_interrupted=True)
    return best
