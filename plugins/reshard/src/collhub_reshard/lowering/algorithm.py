"""Convert a schedule or streams to an algorithm, with its contract.

The algorithm is verified, simulated, run and written like any other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache

import numpy as np
from collhub_packing import (
    CapacityGraph,
    SpanningTree,
    broadcast_rate,
    pack_rooted_trees,
    without_switches,
)
from collhub_shardings import Move, UnitTasks

from collhub_reshard.fabric.streams import StreamPlan
from collhub_reshard.lowering.layout import BoxLayout, Region, build_packed_layout, build_row_layout
from collhub_reshard.lowering.step_writer import Origin, StepWriter
from collhub_reshard.scheduling.host_tasks import HostTasks
from collhub_reshard.scheduling.schedule import HostSchedule, Piece
from collhub_reshard.strategies import (
    Audience,
    Strategy,
    Transfer,
    find_audience,
    list_transfers,
    list_tree_transfers,
)
from hub_core import installed_version
from hub_core.columns import Int64Array
from hub_core.model import (
    Algorithm,
    Collective,
    CollectiveKind,
    Contributions,
    CustomContract,
    JsonValue,
    Provenance,
)
from hub_core.network import Topology


def build_collective(layout: BoxLayout, origins: Sequence[Origin]) -> Collective:
    """A custom collective.

    The inputs of replicas are equal, which a contract cannot say: it names those that are sent.
    """
    parts = [_build_contributions(layout, origin) for origin in origins if origin.high > origin.low]
    # One table for all ranks, as contracts are.
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    if not parts:
        columns = [np.zeros(0, np.int64)] * 4
    # Bytes of the collective follow from this count and a unit's bytes.
    total = int(max(layout.input_units.max(), layout.output_units.max(), 1))
    # Ranks of the destination alone have no INPUT to read.
    contract = CustomContract(
        layout.input_units, layout.output_units, layout.input_units > 0, Contributions(*columns)
    )
    return Collective(CollectiveKind.CUSTOM, len(layout.input_units), total, contract=contract)


def _build_contributions(layout: BoxLayout, origin: Origin) -> tuple[Int64Array, ...]:
    """(rank, offset, source rank, source unit) of one part of a box at one receiver."""
    inside = slice(origin.low, origin.high)
    offset = _list_units(layout.outputs[origin.row, origin.receiver])[inside]
    source = _list_units(layout.inputs[origin.row, origin.device])[inside]
    receiver = np.full_like(offset, origin.receiver)
    return receiver, offset, np.full_like(offset, origin.device), source


def _list_units(region: Region) -> Int64Array:
    """All units of a region, in order."""
    inside = np.arange(region.run_units, dtype=np.int64)
    # Runs follow one another as they do in the box.
    units: Int64Array = (region.starts[:, None] + inside).reshape(-1)
    return units


@dataclass(frozen=True, slots=True)
class FinishedPiece:
    """A piece that has had a card: its unit task, its sender, its end, and where it arrived."""

    row: int
    sender: int
    end: Fraction
    entry: int


@dataclass(slots=True)
class ReceiverTurns:
    """The last piece on every card in and out, in the order of the schedule.

    Without it, senders that are early would share a receiver's card with whom they should follow.
    """

    _last_in: dict[int, FinishedPiece] = field(default_factory=dict)
    _last_out: dict[int, Fraction] = field(default_factory=dict)

    def awaited(self, piece: Piece, audience: Audience) -> FinishedPiece | None:
        """The piece of another sender that must have arrived before this one may start."""
        own = self._last_out.get(piece.sender, Fraction(0))
        # Chains begin at the first host, behind which the order stays as it is.
        entry = next(iter(audience.hosts))
        before = self._last_in.get(entry)
        if before is None or before.sender == piece.sender:
            return None
        # A sender that is busy until then needs nobody to hold it back.
        return before if before.end > own else None

    def pass_on(self, piece: Piece, row: int, audience: Audience) -> None:
        """Note that a piece is the last on its cards."""
        self._last_out[piece.sender] = piece.end
        for host, devices in audience.hosts.items():
            # The first receiver of a host is where the box comes in.
            self._last_in[host] = FinishedPiece(row, piece.sender, piece.end, devices[0])


def build_tree_transfers(topology: Topology, audience: Audience, chunks: int) -> list[Transfer]:
    """Every tree carries its share of the box in `chunks` parts, from parents to children."""
    receivers = [device for devices in audience.hosts.values() for device in devices]
    nodes = (audience.sender, *receivers)
    trees = _packed(topology, nodes)
    total = sum(tree.weight for tree in trees)
    found: list[Transfer] = []
    for chunk in range(chunks):
        begun = 0
        for tree in trees:
            low = Fraction(begun, total)
            share = Fraction(tree.weight, total)
            begun += tree.weight
            part = (low + share * chunk / chunks, low + share * (chunk + 1) / chunks)
            found += _send_down_tree(tree, nodes, part, len(found))
    return found


@lru_cache(maxsize=256)
def _packed(topology: Topology, nodes: tuple[int, ...]) -> tuple[SpanningTree, ...]:
    """The trees from the first of some NPUs to the others, as much as the network carries."""
    graph = CapacityGraph.of(topology.subset(nodes))
    rate = broadcast_rate(graph, 0)
    sent = np.zeros(len(nodes), np.int64)
    sent[0] = int(rate.value)
    direct = without_switches(graph, sent) if graph.has_switches else None
    return tuple(pack_rooted_trees(graph if direct is None else direct.graph, sent))


def _send_down_tree(
    tree: SpanningTree, nodes: tuple[int, ...], part: tuple[Fraction, Fraction], first: int
) -> list[Transfer]:
    """The transfers of one part down a tree; `first`: the number of the first of them."""
    depths = tree.depths
    order = sorted(range(1, len(nodes)), key=lambda node: (int(depths[node]), node))
    number = {0: -1}
    found = []
    for node in order:
        parent = int(tree.parent[node])
        found.append(Transfer(nodes[parent], nodes[node], *part, number[parent]))
        number[node] = first + len(found) - 1
    return found


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


def lower_schedule(
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
        layout = build_row_layout(units, moves)
    else:
        layout = build_packed_layout(units, moves, most * _UNITS_A_CHUNK)
    writer = StepWriter(units, layout)
    turns = ReceiverTurns()
    for piece in schedule.pieces:
        row = tasks.rows[piece.task]
        heard = find_audience(units, row, piece.sender, tasks.receivers[piece.task])
        strategy = choices.strategies[row]
        if strategy is Strategy.TREE and choices.topology is not None:
            transfers = build_tree_transfers(choices.topology, heard, choices.chunks[row])
        else:
            transfers = list_transfers(strategy, heard, choices.chunks[row])
        # Several cards of a host need no turns: a piece takes any that is free.
        passed = turns.awaited(piece, heard) if tasks.cards == 1 else None
        told: dict[int, list[int]] = {}
        if passed is not None:
            steps = writer.send_token(passed.row, passed.entry, heard.sender)
            told = {heard.sender: steps}
        writer.send(row, transfers, (piece.first, piece.last), told)
        turns.pass_on(piece, row, heard)
    return build_lowered(writer, extension)


def lower_streams(
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
        layout = build_row_layout(units, moves)
    else:
        layout = build_packed_layout(units, moves, count * _UNITS_A_CHUNK)
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
                made = writer.send(row, list_tree_transfers(stream.edges), bounds, awaited)
                for device, steps in made.items():
                    here.setdefault(device, []).extend(steps)
    return build_lowered(writer, extension)


def build_lowered(writer: StepWriter, extension: JsonValue) -> Lowered:
    """The algorithm of all that a writer has sent."""
    layout = writer.layout
    steps, scratch = writer.finish()
    collective = build_collective(layout, writer.origins)
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
