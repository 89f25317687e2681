"""The oracle of levelled programs: random algorithms, run row by row with unlimited buffers."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from hub_core.model import Algorithm, Buffer, StepKind, StepTableBuilder
from hub_core.testing import custom_collective

SEND, RECV, RECV_REDUCE, COPY, REDUCE, COMPUTE = StepKind
IN, OUT, TMP = Buffer.INPUT, Buffer.OUTPUT, Buffer.SCRATCH
UNITS = 3
BACKGROUND = np.int64(-77)


def custom(num_ranks: int, builder: StepTableBuilder, scratch: int = UNITS) -> Algorithm:
    """An algorithm with INPUT and OUTPUT of three units a rank that promises nothing."""
    collective = custom_collective(num_ranks, UNITS)
    return Algorithm(collective, builder.build(), np.full(num_ranks, scratch))


@st.composite
def eager_runs(draw: st.DrawFn) -> tuple[Algorithm, list[int]]:
    """A random algorithm without race, and its rows in an order that unlimited buffers allow."""
    num_ranks = draw(st.integers(2, 4))
    builder, order, flying = StepTableBuilder(num_ranks), [], []
    last: dict[int, int] = {}
    ranks, units = st.integers(0, num_ranks - 1), st.integers(0, UNITS - 1)
    places = st.tuples(st.sampled_from([IN, OUT, TMP]), units)

    def add(rank: int, kind: StepKind, **values: int) -> None:
        chain = [last[rank]] if rank in last else []
        edges = {draw(st.sampled_from(["data", "control"])): chain}
        last[rank] = builder.add(rank, kind, count=1, **edges, **values)  # type: ignore[arg-type]
        order.append(last[rank])

    def receive(message: tuple[int, int, int]) -> None:
        source, destination, channel = message
        kind, (buffer, offset) = draw(st.sampled_from([RECV, RECV_REDUCE])), draw(places)
        read = draw(st.one_of(places, st.just((buffer, offset))))
        local = {"src_buffer": read[0], "src_offset": read[1]} if kind is RECV_REDUCE else {}
        add(
            destination,
            kind,
            peer=source,
            channel=channel,
            dst_buffer=buffer,
            dst_offset=offset,
            **local,
        )

    for channel in range(draw(st.integers(1, 12))):
        what = draw(st.sampled_from(["send", "send", "receive", "local"]))
        if what == "receive" and flying:
            receive(flying.pop(draw(st.integers(0, len(flying) - 1))))
        elif what == "local":
            (read, source), (written, target) = draw(places), draw(places)
            kind = draw(st.sampled_from([COPY, REDUCE]))
            add(
                draw(ranks),
                kind,
                src_buffer=read,
                src_offset=source,
                dst_buffer=written,
                dst_offset=target,
            )
        else:
            source, hop, (read, offset) = (
                draw(ranks),
                draw(st.integers(1, num_ranks - 1)),
                draw(places),
            )
            destination = (source + hop) % num_ranks
            add(source, SEND, peer=destination, channel=channel, src_buffer=read, src_offset=offset)
            flying.append((source, destination, channel))
    for message in flying:
        receive(message)
    handles = sorted(
        range(len(order)), key=lambda handle: (builder._columns["rank"][handle], handle)
    )
    return custom(num_ranks, builder), [handles.index(handle) for handle in order]


def eager(
    algorithm: Algorithm, order: list[int], in_place: bool, inputs: list[npt.NDArray[np.int64]]
) -> list[list[int]]:
    """OUTPUT of every rank after running row by row; messages fly in buffers without limit."""
    steps, layout = (
        algorithm.steps,
        algorithm.collective.memory_layout(in_place, algorithm.scratch_units),
    )
    memory = np.full(layout.total, BACKGROUND)
    for rank, values in enumerate(inputs):
        memory[layout.base[rank, IN] : layout.base[rank, IN] + UNITS] = values
    flying: dict[int, int] = {}
    for row in order:
        rank, kind, channel = int(steps.rank[row]), steps.kind[row], int(steps.channel[row])
        source = layout.base[rank, min(steps.src_buffer[row], TMP)] + steps.src_offset[row]
        target = layout.base[rank, min(steps.dst_buffer[row], TMP)] + steps.dst_offset[row]
        if kind == SEND:
            flying[channel] = memory[source]
        else:
            arrived = flying.pop(channel) if kind in (RECV, RECV_REDUCE) else 0
            added = memory[target] if kind == REDUCE else 0
            memory[target] = arrived + added + (memory[source] if kind != RECV else 0)
    return [memory[base : base + UNITS].tolist() for base in layout.base[:, OUT].tolist()]
