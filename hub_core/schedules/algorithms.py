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

    `npus[r]`: the NPU of rank r of `collective`, by default r; ranks of other NPUs only relay.
    `num_npus`: by default the highest NPU in `npus` plus 1. `wanted`: ranks whose steps are
    created, None for all. `startup_ns[p]`: time until plane p of the topology is ready; channel c
    belongs to plane c % len(startup_ns). A COMPUTE step of that time precedes the sends on the
    plane that wait for no data.

    Every transfer becomes a SEND and a RECV or RECV_REDUCE, on its channel in `transfers.channel`
    or, without channels, on that of `link_channels`. A received chunk is stored in OUTPUT if the
    rank needs it, otherwise in SCRATCH, and is forwarded from there. A SEND has a data dependency
    on the arrival of its chunk, and control dependencies that keep the order on its link
    (`order_links`, by `transfers.window`). A chunk that a rank both contributes and needs is copied
    at the end.

    An all-to-all, also an uneven one, supports only out-of-place mode, because in place, arriving
    chunks would overwrite chunks that are still to be sent. Takes three sorts of the transfers.
    Raises `InputError` (`schedule-acausal`) for a chunk that is sent before its source has it.
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

    Returns `collective` itself if `npus` is 0, 1, ..., `num_npus` - 1. Otherwise the result is a
    custom collective without root and counts, in which the remaining ranks have empty INPUT and
    OUTPUT. It supports out-of-place mode. It supports in-place mode only if `collective` does and
    its kind does not split the buffer (`traits.is_split`), because a custom collective in place
    uses one buffer as INPUT and OUTPUT.
    """
    if list(npus) == list(range(num_npus)):
        return collective
    return replace(
        collective,
        kind=CollectiveKind.CUSTOM,
        num_ranks=num_npus,
        root=None,
        contract=_build_contract(collective, np.asarray(npus, np.int64), num_npus),
        counts=None,
        in_place=collective.in_place and not collective.kind.traits.is_split,
        out_of_place=True,
    )


def _build_contract(collective: Collective, npus: Int64Array, num_npus: int) -> CustomContract:
    """Build the contract in which NPU `npus[r]` has the role of rank r of a standard collective.

    Sizes of INPUT and OUTPUT, defined inputs and expected results are those of the ranks. NPUs
    without a rank have empty buffers and undefined inputs. `npus`: int64[ranks], distinct.
    `num_npus`: number of all NPUs.
    """
    postcondition = collective.postcondition()
    assert postcondition is not None
    expected = postcondition.with_ranks_named(collective.num_ranks)
    inputs = np.zeros(num_npus, np.int64)
    outputs = np.zeros(num_npus, np.int64)
    defined = np.zeros(num_npus, np.bool_)
    inputs[npus] = collective.input_units()
    outputs[npus] = collective.output_units()
    defined[npus] = collective.defined_inputs()
    contributions = Contributions(
        npus[expected.rank],
        expected.offset,
        npus[expected.source_rank],
        expected.source_unit,
    )
    return CustomContract(inputs, outputs, defined, contributions)


def build_steps(
    message_ends: MessageEnds, transfers: Transfers, holders: ChunkHolders, startup_ns: Int64Array
) -> tuple[StepTable, Int64Array]:
    """Build the step table of a schedule; also return the SCRATCH units per NPU (int64[num_npus]).

    The steps of an NPU are its start-up steps, its messages and its local copies, in this order,
    unless a dependency requires another one. A send or reduction has a data dependency on the last
    arrival of its chunk. Start-up steps, the order on links and copies give control dependencies.
    Channels are those of the transfers, if given; otherwise each link of a pair of NPUs has its own
    channel. `startup_ns`: int64 per plane. Raises `InputError` (`schedule-acausal`) for a chunk
    that is sent before its source has it.
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

    `time` is called once per candidate. After a candidate with `is_interrupted` (which also
    competes), or on Ctrl-C, no further candidates are timed, and the best one so far is returned
    with `is_interrupted=True`. Raises `KeyboardInterrupt` on Ctrl-C if no candidate was timed yet.
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
