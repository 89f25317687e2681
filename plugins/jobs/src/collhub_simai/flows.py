"""Flows of SimAI as steps: a flow is one message, which waits for the flows that it forwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from hub_core.model import (
    MAX_UNITS,
    Algorithm,
    Collective,
    CollectiveKind,
    CustomContract,
    InputError,
    JsonValue,
    Location,
    Provenance,
    StepKind,
    StepTableBuilder,
)
from hub_core.plugin_api import Source

MAX_FLOWS = 1 << 20
_MAX_RANKS = 1 << 20
_MAX_CHANNEL = 1 << 30
_MAX_DELAY_NS = 10**15


@dataclass(frozen=True, slots=True)
class FlowMessage:
    """One message of `size` bytes. `parents`: ids of flows whose data it forwards.

    `previous`: ids of flows that its source sends before. `delay_ns`: time between the arrival of
    the parents and the send.
    """

    line: int
    flow_id: int
    source: int
    destination: int
    channel: int
    size: int
    parents: tuple[int, ...]
    previous: tuple[int, ...] = ()
    delay_ns: int = 0


def refuse(file: str, line: int, message: str, cure: str, code: str) -> NoReturn:
    """Raise `InputError` at a line (at least 1) of a file."""
    raise InputError(message, location=Location(file, max(1, line)), cure=cure, code=code)


def check_flow(flow: FlowMessage, file: str, code: str) -> FlowMessage:
    """Return a flow unchanged, or refuse it.

    Raises `InputError` (`code`) at the flow's line of `file` in these cases, in this order:

    - The source and the destination are the same rank.
    - A rank is 2^20 or more.
    - The channel is negative or above 2^30, the size is not from 1 to `MAX_UNITS`, or the
      delay is above 10^15 ns.

    Negative ranks and delays are not checked.
    """
    if flow.source == flow.destination:
        message = f"flow {flow.flow_id} goes from rank {flow.source} to itself"
        refuse(file, flow.line, message, "leave it out", code)
    if max(flow.source, flow.destination) >= _MAX_RANKS:
        refuse(file, flow.line, f"a rank above {_MAX_RANKS - 1}", "use smaller ranks", code)
    is_in_range = 0 <= flow.channel <= _MAX_CHANNEL and 0 < flow.size <= MAX_UNITS
    if not is_in_range or flow.delay_ns > _MAX_DELAY_NS:
        message = "the channel, the size or the delay of the flow is out of range"
        refuse(file, flow.line, message, "correct the row", code)
    return flow


def build_algorithm(
    source: Source,
    flows: Sequence[FlowMessage],
    file: str,
    facts: Mapping[str, JsonValue],
    code: str,
) -> Algorithm:
    """Return a timing-only algorithm with a send and a receive for each of at least one flow.

    The collective is CUSTOM, and a unit is a byte. The unit count, the size and the length of all
    buffers are the most bytes that one rank sends, or receives if that is more. The number of ranks
    is the highest rank plus 1, at least 2. The extension named `code` gets a copy of `facts`.

    - A flow with a delay has a computation of this duration before its send. The send then has a
      data dependency on the computation.
    - Data dependencies: the computation, or without delay the send, depends on the receives of the
      flow's parents.
    - Control dependencies: the send depends on the sends of previous flows with the same source.
      Other previous flows are ignored.
    - Steps keep the order of the flows unless a dependency requires another one.

    Raises `InputError`, with file, line and `code`, for a repeated flow id, an unknown parent or
    previous id, and a parent that does not end at the source. At line 1 it is raised for a rank
    with more than 2^62 (`MAX_UNITS`) bytes. For a cycle the code is `cyclic-dependencies`.
    """
    positions: dict[int, int] = {}
    # Numbers of the send of each flow; its receive follows, and its delay is before it.
    sends: list[int] = []
    count = 0
    for position, flow in enumerate(flows):
        if flow.flow_id in positions:
            first = flows[positions[flow.flow_id]].line
            message = f"flow {flow.flow_id} is also on line {first}"
            refuse(file, flow.line, message, "number flows differently", code)
        positions[flow.flow_id] = position
        sends.append(count + bool(flow.delay_ns))
        count = sends[-1] + 2
    num_ranks = max(2, max(max(flow.source, flow.destination) for flow in flows) + 1)
    builder = StepTableBuilder(num_ranks)
    sent, received = np.zeros((2, num_ranks), np.int64)
    for number, flow in zip(sends, flows, strict=True):
        parents = [_position(each, positions, flow, file, code) for each in flow.parents]
        previous = [_position(each, positions, flow, file, code) for each in flow.previous]
        data = [sends[each] + 1 for each in parents if flows[each].destination == flow.source]
        control = [sends[each] for each in previous if flows[each].source == flow.source]
        if len(data) < len(parents):
            message = f"a parent of flow {flow.flow_id} does not end at rank {flow.source}"
            refuse(file, flow.line, message, "correct the parents of the flow", code)
        if flow.delay_ns:
            builder.add(
                flow.source, StepKind.COMPUTE, data=data, duration_ns=flow.delay_ns,
                source_line=flow.line,
            )  # fmt: skip
            data = [number - 1]
        builder.add(
            flow.source, StepKind.SEND, data=data, control=control, peer=flow.destination,
            channel=flow.channel, count=flow.size, source_line=flow.line,
        )  # fmt: skip
        builder.add(
            flow.destination, StepKind.RECV, peer=flow.source, channel=flow.channel,
            count=flow.size, source_line=flow.line,
        )  # fmt: skip
        sent[flow.source] += flow.size
        received[flow.destination] += flow.size
    units = int(max(sent.max(), received.max()))
    if units > MAX_UNITS:
        message = f"a rank moves {units} bytes; at most {MAX_UNITS}"
        refuse(file, 1, message, "read a smaller size", code)
    steps = builder.build(file)
    buffers = np.full(num_ranks, units, np.int64)
    contract = CustomContract(buffers, buffers, np.ones(num_ranks, np.bool_))
    collective = Collective(CollectiveKind.CUSTOM, num_ranks, units, contract=contract)
    provenance = Provenance(code, "", source.name, source.sha256())
    roots = np.zeros(num_ranks, np.int64)
    return Algorithm(collective, steps, roots, provenance, units, {code: {**facts}})


def _position(
    flow_id: int, positions: Mapping[int, int], flow: FlowMessage, file: str, code: str
) -> int:
    """Return the position of the flow with an id. Raises `InputError` if there is none."""
    if flow_id not in positions:
        refuse(file, flow.line, f"flow {flow_id} is not in the file", "correct the ids", code)
    return positions[flow_id]
