"""A schedule as an algorithm: verified, simulated, run and written like any other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from collhub_shardings import Move, UnitTasks

from collhub_reshard.fabric.streams import StreamPlan
from collhub_reshard.lowering.audiences import audience
from collhub_reshard.lowering.contract import reshard_collective
from collhub_reshard.lowering.layout import BoxLayout, packed_layout, row_layout
from collhub_reshard.lowering.receiver_turns import ReceiverTurns
from collhub_reshard.lowering.step_writer import StepWriter
from collhub_reshard.lowering.transfers import transfers_of, tree_messages
from collhub_reshard.lowering.trees import tree_transfers
from collhub_reshard.scheduling.host_tasks import HostTasks
from collhub_reshard.scheduling.schedule import HostSchedule
from collhub_reshard.scheduling.strategies import Strategy
from hub_core import installed_version
from hub_core.model import Algorithm, JsonValue, Provenance
from hub_core.network import Topology

# A token is one unit: chunks of so many make it cheap.
_UNITS_A_CHUNK = 16
# Chunks of a stream under way: more would keep what devices pass on waiting behind them.
_STREAM_WINDOW = 8


@dataclass(frozen=True, slots=True)
class Lowered:
    """The algorithm, how its buffers are laid out, and what the layout costs.

    `copies`: COPY and REDUCE steps at the ends; `copied_bytes`: what they move. `tokens`: messages
    that only tell whose turn it is.
    """

    algorithm: Algorithm
    layout: BoxLayout
    copies: int
    copied_bytes: int
    tokens: int


@dataclass(frozen=True, slots=True)
class LoweringChoices:
    """Per unit task its strategy and chunks; `layout`: packed or rows; `topology`: of trees."""

    strategies: Mapping[int, Strategy]
    chunks: Mapping[int, int]
    layout: str = "packed"
    topology: Topology | None = None


def lowered(
    units: UnitTasks,
    moves: Sequence[Move],
    tasks: HostTasks,
    schedule: HostSchedule,
    choices: LoweringChoices,
    extension: JsonValue,
) -> Lowered:
    """The algorithm of a schedule. Raises `InputError` for a layout of too many runs."""
    most = max(choices.chunks.values(), default=1)
    if choices.layout == "rows":
        layout = row_layout(units, moves)
    else:
        layout = packed_layout(units, moves, most * _UNITS_A_CHUNK)
    writer = StepWriter(units, layout)
    turns = ReceiverTurns()
    for piece in schedule.pieces:
        row = tasks.rows[piece.task]
        heard = audience(units, row, piece.sender, tasks.receivers[piece.task])
        strategy = choices.strategies[row]
        if strategy is Strategy.TREE and choices.topology is not None:
            transfers = tree_transfers(choices.topology, heard, choices.chunks[row])
        else:
            transfers = transfers_of(strategy, heard, choices.chunks[row])
        # Several cards of a host need no turns: a piece takes any that is free.
        passed = turns.awaited(piece, heard) if tasks.cards == 1 else None
        told: dict[int, list[int]] = {}
        if passed is not None:
            steps = writer.token_after(passed.row, passed.entry, heard.sender)
            told = {heard.sender: steps}
        writer.send(row, transfers, (piece.first, piece.last), told)
        turns.pass_on(piece, row, heard)
    return finished(writer, extension)


def lowered_streams(
    units: UnitTasks,
    moves: Sequence[Move],
    plan: StreamPlan,
    choices: LoweringChoices,
    extension: JsonValue,
) -> Lowered:
    """The algorithm of streams, each in as many chunks as all others.

    Chunk after chunk of all streams leaves in turn, so that they share links in proportion.
    """
    count = max(choices.chunks.values(), default=1)
    if choices.layout == "rows":
        layout = row_layout(units, moves)
    else:
        layout = packed_layout(units, moves, count * _UNITS_A_CHUNK)
    writer = StepWriter(units, layout, takes_turns=False)
    sent: dict[tuple[int, int], dict[int, list[int]]] = {}
    for chunk in range(count):
        for number, stream in enumerate(plan.streams):
            first, last = stream.part
            step = (last - first) / count
            part = (first + step * chunk, first + step * (chunk + 1))
            awaited = sent.get((number, chunk - _STREAM_WINDOW), {})
            here = sent.setdefault((number, chunk), {})
            for row, bounds in plan.deliveries[stream.delivery].boxes(part):
                made = writer.send(row, tree_messages(stream.edges), bounds, awaited)
                for device, steps in made.items():
                    here.setdefault(device, []).extend(steps)
    return finished(writer, extension)


def finished(writer: StepWriter, extension: JsonValue) -> Lowered:
    """The algorithm of all that a writer has sent."""
    layout = writer.layout
    steps, scratch = writer.finish()
    collective = reshard_collective(layout, writer.origins)
    algorithm = Algorithm(
        collective,
        steps,
        np.asarray(scratch, np.int64),
        Provenance("reshard", installed_version("collhub-reshard") or ""),
        collective_bytes=collective.unit_count * layout.unit_bytes,
        extensions={"reshard": extension},
    )
    copied = writer.copied_units * layout.unit_bytes
    return Lowered(algorithm, layout, writer.copies, copied, writer.tokens)
