"""Figures of an algorithm and their reports: `collhub inspect`.

The figures are steps by kind, lanes, traffic by pair of ranks, and longest chains.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hub_core.cli.output import print_fields, print_line, print_note, print_table
from hub_core.cli.reports.inspection_records import (
    ChainLengths,
    DependencyCounts,
    InspectReport,
    ModeFlags,
    describe_origin,
)
from hub_core.model import Algorithm, StepTable, matched_messages, message_bytes
from hub_core.model.algorithm import JsonValue, placement_of
from hub_core.model.kinds import StepKind
from hub_core.model.quantities import format_bytes, format_ranks
from hub_core.verification.fifo import fused_pairs
from hub_core.verification.step_order import find_longest_chains, happens_before

Int64Array = npt.NDArray[np.int64]
LISTED_LINKS = 10


@dataclass(frozen=True, slots=True)
class MessagePairs:
    """Messages between pairs of ranks: one entry per pair, ordered by source, then destination.

    Columns int64: `source`, `destination`, `messages`, `units`, and `bytes`, None if the size is
    unknown.
    """

    source: Int64Array
    destination: Int64Array
    messages: Int64Array
    units: Int64Array
    bytes: Int64Array | None


@dataclass(frozen=True, slots=True)
class CriticalPath:
    """Lower limits of the length of an execution, for any number of lanes.

    `steps`: length of the longest chain of dependent steps. `messages`: maximum number of messages
    in such a chain.
    """

    steps: int
    messages: int


@dataclass(frozen=True, slots=True)
class DeclaredLanes:
    """Lanes (thread blocks, streams) that the source declares.

    `most`: maximum number of lanes of a rank, 0 if the source declares none. `longest`: steps of
    the longest lane. `fused`: sends, of all ranks, that form one instruction with the preceding
    receive; `longest` does not count them.
    """

    most: int
    longest: int
    fused: int


def lanes(steps: StepTable) -> DeclaredLanes:
    """Count the lanes of each rank, the steps of each lane, and the fused sends.

    A lane is a pair of rank and lane number; steps without a lane (-1) are ignored. A fused
    send forms one instruction with the preceding receive of its lane (see `fused_pairs`).
    The result has `most`, the maximum number of lanes of a rank; `longest`, the maximum
    number of steps of a lane, where fused sends do not count as steps; and `fused`, the
    number of fused sends of all ranks. All are 0 if no step has a lane.
    """
    named = np.flatnonzero(steps.lane >= 0)
    pairs = np.stack([steps.rank[named], steps.lane[named]])
    distinct, lane = np.unique(pairs, axis=1, return_inverse=True)
    _, fused = fused_pairs(steps, matched_messages(steps))
    is_counted = ~np.isin(named, fused)
    length = np.bincount(lane.reshape(-1), weights=is_counted)
    lane_count = np.bincount(distinct[0]).max(initial=0)
    return DeclaredLanes(int(lane_count), int(length.max(initial=0)), len(fused))


def count_kinds(steps: StepTable) -> dict[str, int]:
    """Count the steps by kind: number by name, such as `send` or `recv-reduce`.

    All kinds are present, in the order of `StepKind`; a kind without steps has 0.
    """
    counts = np.bincount(steps.kind, minlength=len(StepKind)).tolist()
    return {kind.name.lower().replace("_", "-"): counts[kind] for kind in StepKind}


def count_channels(steps: StepTable) -> int:
    """Count the channels that messages use."""
    return len(np.unique(steps.channel[steps.sends | steps.receives]))


def traffic(algorithm: Algorithm, collective_bytes: int | None) -> MessagePairs:
    """Sum messages, units and bytes for each pair of ranks, sorted by source, then destination.

    Every SEND is one message from its rank to its peer; its units are its `count`. Pairs without
    messages have no entry. Without SENDs all columns are empty. `collective_bytes`: size of the
    full buffer in bytes. A message of n units has ceil(n * collective_bytes / unit_count) bytes,
    rounded up before the sizes are summed. If `collective_bytes` is None, `bytes` is None. Raises
    `InputError` (`size-range`) if all messages together have 2^63 bytes or more (estimate of
    `message_bytes`, which is at least the exact sum).
    """
    steps = algorithm.steps
    sends = np.flatnonzero(steps.sends)
    # Source and destination as one number.
    source, destination = (ends[sends].astype(np.int64) for ends in (steps.rank, steps.peer))
    pairs = source << 32 | (destination & 0xFFFFFFFF)
    distinct, entry, messages = np.unique(pairs, return_inverse=True, return_counts=True)
    units = _sum_by_entry(entry, steps.count[sends], len(distinct))
    sent_bytes = None
    if collective_bytes is not None:
        sizes = message_bytes(collective_bytes, algorithm.collective.unit_count, steps.count[sends])
        sent_bytes = _sum_by_entry(entry, sizes, len(distinct))
    return MessagePairs(
        distinct >> 32, distinct & 0xFFFFFFFF, messages.astype(np.int64), units, sent_bytes
    )


def critical_path(steps: StepTable) -> CriticalPath | None:
    """Find the longest chains of steps that wait for each other; None if there is a cycle.

    A step waits for its dependencies, and a RECV for the SEND that it matches; an unmatched RECV
    waits for no message. Returns the most steps and the most messages in a chain; the two may come
    from different chains, and are 0 without steps. Takes O(steps + dependencies) time plus a
    constant per level.
    """
    relation = happens_before(steps)
    if not relation.order.is_complete:
        return None
    is_message = np.arange(len(relation.parents)) >= relation.num_dependencies
    messages = find_longest_chains(relation, is_message)
    levels = len(relation.order.level_indptr) - 1
    return CriticalPath(levels, int(messages.max(initial=0)))


def _sum_by_entry(entry: Int64Array, values: Int64Array, length: int) -> Int64Array:
    """Sum the values by entry exactly: int64[length].

    `entry`: index into the result for each value; an index without values has the sum 0.
    """
    sums = np.zeros(length, np.int64)
    # Exact, whereas `bincount` sums weights in floating point.
    np.add.at(sums, entry, values)
    return sums


def create_inspect_report(
    source: str,
    source_format: str,
    algorithm: Algorithm,
    network: str | None,
    sent: MessagePairs,
    longest: CriticalPath | None,
) -> InspectReport:
    """Create the JSON report of an algorithm, for `collhub inspect --json`.

    - `source`, `source_format`: name and format of the input.
    - `network`: name of the network that the input contains, None without one.
    - `sent`: traffic by pair of ranks. Its units give `units_by_link`, with keys such as `0->1` in
      the order of `sent`. Its bytes give `bytes_by_link`, None if `sent.bytes` is None.
    - `longest`: lengths of the longest chains of dependent steps. None, if steps wait for each
      other in a cycle, gives None for `critical_path`.

    All other members are computed from `algorithm`. `reduce_op` is None for a collective without a
    reduction. `npus` are 0, 1, ... if the algorithm gives no NPUs. `extensions` are all names, in
    alphabetical order; `stated` has their scalar members (`_collect_scalars`). Raises `InputError`
    (`invalid-placement`) if the algorithm's NPUs are not a list of different integers of at least
    0, one per rank.
    """
    collective, steps = algorithm.collective, algorithm.steps
    lane_counts = lanes(steps)
    path = None
    if longest is not None:
        path = ChainLengths(steps=longest.steps, messages=longest.messages)
    return InspectReport(
        source=source,
        format=source_format,
        collective=str(collective.kind),
        root=collective.root,
        reduce_op=str(collective.reduce_op) if collective.reduces else None,
        claims=ModeFlags(in_place=collective.in_place, out_of_place=collective.out_of_place),
        has_contents=algorithm.has_contents,
        num_ranks=collective.num_ranks,
        npus=placement_of(algorithm) or tuple(range(collective.num_ranks)),
        topology=network,
        unit_count=collective.unit_count,
        scratch_units=algorithm.scratch_units.tolist(),
        collective_bytes=algorithm.collective_bytes,
        steps=len(steps),
        steps_by_kind=count_kinds(steps),
        channels=count_channels(steps),
        lanes=lane_counts.most,
        longest_lane=lane_counts.longest,
        fused_steps=lane_counts.fused,
        dependencies=DependencyCounts(
            data=len(steps.data_indices), control=len(steps.control_indices)
        ),
        units_by_link=_sum_by_link(sent, sent.units),
        bytes_by_link=None if sent.bytes is None else _sum_by_link(sent, sent.bytes),
        critical_path=path,
        provenance=describe_origin(algorithm.provenance),
        extensions=sorted(algorithm.extensions),
        stated=_collect_scalars(algorithm),
    )


def _collect_scalars(algorithm: Algorithm) -> dict[str, dict[str, JsonValue]]:
    """Return the scalar members (texts, numbers, booleans) of extensions, by name of the extension.

    Extensions are in alphabetical order; their members keep their order. Lists, objects and null
    are omitted, and so are extensions that are no objects or have no scalar member.
    """
    values_by_extension: dict[str, dict[str, JsonValue]] = {}
    for name, extension in sorted(algorithm.extensions.items()):
        if not isinstance(extension, dict):
            continue
        single: dict[str, JsonValue] = {
            key: value
            for key, value in extension.items()
            if value is not None and not isinstance(value, dict | list)
        }
        if single:
            values_by_extension[name] = single
    return values_by_extension


def _sum_by_link(sent: MessagePairs, values: Int64Array) -> dict[str, int]:
    pairs = zip(sent.source.tolist(), sent.destination.tolist(), values.tolist(), strict=True)
    return {f"{source}->{destination}": value for source, destination, value in pairs}


def _describe_lanes(lane_counts: DeclaredLanes) -> str:
    """Describe the lanes in one line, as `2 of a rank at most, the longest of 9 steps`.

    The numbers are the most lanes of a rank, and the steps of the longest lane without
    fused sends. The number of fused sends of all ranks follows (`, 3 steps fused`) if it is
    not 0. Returns `not stated` if no step has a lane.
    """
    if not lane_counts.most:
        return "not stated"
    fused = f", {lane_counts.fused} steps fused" if lane_counts.fused else ""
    return (
        f"{lane_counts.most} of a rank at most, the longest of {lane_counts.longest} steps{fused}"
    )


def print_algorithm(
    source: str,
    source_format: str,
    algorithm: Algorithm,
    network: str | None,
    sent: MessagePairs,
    longest: CriticalPath | None,
) -> None:
    """Print the fields of an algorithm, then the pairs of ranks with the most traffic.

    The fields are, in this order: file with its format, collective, ranks, units, size, network,
    steps by kind, dependencies, channels, lanes, critical path, made by (producer), made from
    (source), and the scalars that the file declares. Special cases:

    - ranks: with the NPUs, if the algorithm has a placement
    - size, made from: `not stated` if unknown
    - network: `network`, its name in the input; the field is absent for None
    - critical path: from `longest`. None means that steps wait for each other in a cycle; the field
      then refers to `collhub verify`.

    `sent`: traffic by pair of ranks. At most 10 pairs are listed, the most units first, ties by
    sender, then receiver; nothing without traffic. If the contents of the algorithm are unknown, a
    note on stderr reports that it cannot be verified. Raises `InputError` (`invalid-placement`)
    before any output if the placement does not give every rank its own NPU.
    """
    collective, steps = algorithm.collective, algorithm.steps
    provenance = algorithm.provenance
    scratch = int(algorithm.scratch_units.max(initial=0))
    kinds = ", ".join(f"{count} {kind}" for kind, count in count_kinds(steps).items() if count)
    npus = placement_of(algorithm)
    path = "none: steps wait for each other in a circle; see collhub verify"
    if longest is not None:
        path = f"{longest.messages} messages, {longest.steps} steps"
    print_fields(
        {
            "file": f"{source} ({source_format})",
            "collective": _describe_collective(algorithm),
            "ranks": f"{algorithm.num_ranks}"
            + ("" if npus is None else f", on NPUs {format_ranks(npus)}"),
            "units": f"{collective.unit_count}, scratch {scratch} at most",
            "size": "not stated"
            if algorithm.collective_bytes is None
            else format_bytes(algorithm.collective_bytes),
            **({} if network is None else {"network": network}),
            "steps": f"{len(steps)}: {kinds}" if kinds else "0",
            "dependencies": f"{len(steps.data_indices)} data, {len(steps.control_indices)} control",
            "channels": str(count_channels(algorithm.steps)),
            "lanes": _describe_lanes(lanes(steps)),
            "critical path": path,
            "made by": f"{provenance.producer} {provenance.producer_version}".strip(),
            "made from": algorithm.provenance.source_name or "not stated",
            **{
                name: _format_values(values) for name, values in _collect_scalars(algorithm).items()
            },
        }
    )
    _print_links(sent)
    if not algorithm.has_contents:
        print_note(
            "a timing-only trace: it can be matched and simulated, its contents cannot be verified"
        )


def _format_values(values: JsonValue) -> str:
    """Format the members of an extension as `name value, ...`, in their order; "" without members.

    `values` must be a dict. `_` in a name becomes a space; a value is formatted by `str`.
    """
    assert isinstance(values, dict)
    return ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in values.items())


def _describe_collective(algorithm: Algorithm) -> str:
    collective = algorithm.collective
    modes = " and ".join(
        name
        for name, claimed in (
            ("in place", collective.in_place),
            ("out of place", collective.out_of_place),
        )
        if claimed
    )
    root = "" if collective.root is None else f", root {collective.root}"
    return f"{collective.kind}{root}, {modes}"


def _print_links(sent: MessagePairs) -> None:
    """Print a table of the pairs of ranks with the most units, at most `LISTED_LINKS` (10) of them.

    The pair with the most units is first; equal ones are ordered by sender, then receiver. A line
    with the number of all pairs precedes the table. The columns are link (`0 -> 1`), messages,
    units and bytes; bytes are `-` if the size of the collective is unknown. Prints nothing without
    traffic.
    """
    if not len(sent.source):
        return
    heaviest = np.lexsort((sent.destination, sent.source, -sent.units))[:LISTED_LINKS].tolist()
    print_line(f"heaviest of {len(sent.source)} pairs of ranks:")
    rows = [
        (
            f"{sent.source[row]} -> {sent.destination[row]}",
            str(sent.messages[row]),
            str(sent.units[row]),
            "-" if sent.bytes is None else format_bytes(int(sent.bytes[row])),
        )
        for row in heaviest
    ]
    print_table(("link", "messages", "units", "bytes"), rows, right=("messages", "units", "bytes"))
