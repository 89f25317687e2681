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

from collhub_reshard.fabric_streams import StreamPlan
from collhub_reshard.layout import BoxLayout, Region, build_packed_layout, build_row_layout
from collhub_reshard.scheduling.host_tasks import HostTasks
from collhub_reshard.scheduling.schedule import HostSchedule, Piece
from collhub_reshard.step_writer import BoxOrigin, StepWriter
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


def build_collective(layout: BoxLayout, origins: Sequence[BoxOrigin]) -> Collective:
    """Build the custom collective whose contract gives the source of every byte of a resharding.

    For each unit of OUTPUT, the contract names the rank and the unit of its INPUT that contains the
    data. Each entry of `origins` is a range of units of a box, with the receiver and the device
    whose INPUT it comes from. Entries with an empty range are skipped. So of several devices that
    hold a box, only the one that sends it is named. If several origins have the same output unit,
    the output is their sum. Without origins the contract is empty.

    Buffer sizes are those of `layout`; a rank without input units has no defined INPUT. The unit
    count of the collective is the largest size of any INPUT or OUTPUT, at least 1.
    """
    # Receiving rank, unit of its OUTPUT, source rank, unit of its INPUT.
    parts: list[tuple[Int64Array, ...]] = []
    for origin in origins:
        if origin.high <= origin.low:
            continue
        inside = slice(origin.low, origin.high)
        offset = _list_units(layout.outputs[origin.row, origin.receiver])[inside]
        source_unit = _list_units(layout.inputs[origin.row, origin.device])[inside]
        receiver = np.full_like(offset, origin.receiver)
        source = np.full_like(offset, origin.device)
        parts.append((receiver, offset, source, source_unit))
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    if not parts:
        columns = [np.zeros(0, np.int64)] * 4
    # The size of the collective is this count times the bytes of a unit.
    total = int(max(layout.input_units.max(), layout.output_units.max(), 1))
    # Ranks that are only in the destination have no INPUT.
    contract = CustomContract(
        layout.input_units, layout.output_units, layout.input_units > 0, Contributions(*columns)
    )
    return Collective(CollectiveKind.CUSTOM, len(layout.input_units), total, contract=contract)


def _list_units(region: Region) -> Int64Array:
    """Return the numbers of all units of a region: int64, `run_units` per entry of `region.starts`.

    A run is a range of contiguous units. The units of the first run come first, ascending, then
    those of the second, and so on.
    """
    inside = np.arange(region.run_units, dtype=np.int64)
    units: Int64Array = (region.starts[:, None] + inside).reshape(-1)
    return units


@dataclass(frozen=True, slots=True)
class FinishedPiece:
    """The last piece on a card: its unit task, sender, end, and receiving device."""

    row: int
    sender: int
    end: Fraction
    entry: int


@dataclass(slots=True)
class ReceiverTurns:
    """The last piece on every card in and out, in the order of the schedule.

    Without it, senders that are early would share a receiver's card with the senders before them.
    """

    _last_in: dict[int, FinishedPiece] = field(default_factory=dict)
    _last_out: dict[int, Fraction] = field(default_factory=dict)

    def awaited(self, piece: Piece, audience: Audience) -> FinishedPiece | None:
        """Return the piece of another sender that must arrive before this piece starts, or `None`.

        A piece is a scheduled part of the data that one task moves. Pieces that enter the same host
        share its network card. So the result is the last recorded piece that enters the first host
        of `audience`, called the previous piece here. The result is `None` if:

        - no piece is recorded for this host
        - the sender of `piece` also sent the previous piece
        - the last recorded piece of the sender of `piece` ends no earlier than the previous piece;
          this sender then is busy long enough, and needs no token (a message that only signals that
          a device may send)

        Nothing is recorded here (see `pass_on`).
        """
        sender_free_at = self._last_out.get(piece.sender, Fraction(0))
        # Chains begin at the first host and keep their order after it.
        entry = next(iter(audience.hosts))
        before = self._last_in.get(entry)
        if before is None or before.sender == piece.sender:
            return None
        return before if before.end > sender_free_at else None

    def pass_on(self, piece: Piece, row: int, audience: Audience) -> None:
        """Record a piece as the last one that its sender sends and its receiving hosts receive.

        A piece is a scheduled part of the data that a unit task moves. Its end becomes the time
        at which the card of `piece.sender` is free again. On each host of `audience`, the piece
        replaces the last one that enters the host. The first device of the host is recorded as
        the device at which it arrives. Times are not compared, so pieces must be recorded in the
        order of the schedule. `row`: number of the unit task (a box with its senders and
        receivers).
        """
        self._last_out[piece.sender] = piece.end
        for host, devices in audience.hosts.items():
            self._last_in[host] = FinishedPiece(row, piece.sender, piece.end, devices[0])


def build_tree_transfers(topology: Topology, audience: Audience, chunks: int) -> list[Transfer]:
    """List the transfers that send a box (block of a tensor) over several spanning trees at once.

    The trees start at the sender and reach all receivers of `audience`, with the largest possible
    total rate. Only the sender, the receivers and switches forward data. Other NPUs could help too,
    so the result is a heuristic. Each tree carries a fraction of the box in proportion to its rate.
    The fractions are consecutive, in the order of the trees, and each has `chunks` equal parts.

    Transfers are listed by chunk, tree, depth, then position of the receiver in `audience`.
    `parent` is the index of the transfer that brings the part to its source, -1 at the sender.

    Raises `InputError` (`unreachable`) without receivers, or if one cannot be reached over these
    nodes. Raises `UsageError` for a device that occurs twice.
    """
    receivers = [device for devices in audience.hosts.values() for device in devices]
    nodes = (audience.sender, *receivers)
    trees = _pack_trees(topology, nodes)
    total = sum(tree.weight for tree in trees)
    transfers: list[Transfer] = []
    for chunk in range(chunks):
        begun = 0
        for tree in trees:
            low = Fraction(begun, total)
            share = Fraction(tree.weight, total)
            begun += tree.weight
            part = (low + share * chunk / chunks, low + share * (chunk + 1) / chunks)
            number = {0: -1}
            for node in sorted(range(1, len(nodes)), key=tree.depths.tolist().__getitem__):
                parent = int(tree.parent[node])
                transfers.append(Transfer(nodes[parent], nodes[node], *part, number[parent]))
                number[node] = len(transfers) - 1
    return transfers


@lru_cache(maxsize=256)
def _pack_trees(topology: Topology, nodes: tuple[int, ...]) -> tuple[SpanningTree, ...]:
    """Pack spanning trees from the first of `nodes` to all other nodes, with maximum total rate.

    `nodes`: numbers of NPUs; only they and switches take part. Switches are first replaced
    by direct links between NPUs. Node i of a tree is `nodes[i]`, so every root is 0. The
    weight of a tree is its rate, an integer. Results are cached. Raises `InputError`
    (`unreachable`) if a node cannot be reached, and for a single node. Raises `UsageError`
    for a node that is listed twice.
    """
    graph = CapacityGraph.of(topology.subset(nodes))
    rate = broadcast_rate(graph, 0)
    sent = np.zeros(len(nodes), np.int64)
    sent[0] = int(rate.value)
    direct = without_switches(graph, sent) if graph.has_switches else None
    return tuple(pack_rooted_trees(graph if direct is None else direct.graph, sent))


# A token is one unit: with this number of units per chunk its cost is small.
_UNITS_PER_CHUNK = 16
# Chunks of a stream in flight: with more, forwarded chunks would wait behind them.
_STREAM_WINDOW = 8


@dataclass(frozen=True, slots=True)
class Lowered:
    """The algorithm, the layout of its buffers, and the cost of the layout.

    `copies`: COPY and REDUCE steps at the ends; `copied_bytes`: bytes that they move. `tokens`:
    messages that only signal that a device may send.
    """

    algorithm: Algorithm
    layout: BoxLayout
    copies: int
    copied_bytes: int
    tokens: int


@dataclass(frozen=True, slots=True)
class LoweringChoices:
    """Strategy and chunks per unit task; `layout`: packed or rows; `topology`: for trees."""

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
    """Convert a schedule of the hosts' network cards to an algorithm.

    A piece is the part of a unit task that one entry of the schedule sends. Pieces are sent in the
    order of the schedule. Messages within hosts, copies and sums follow.

    - `choices` gives the strategy and the number of chunks of each unit task (`KeyError` if
      missing). The strategy TREE uses the topology of `choices` if there is one.
    - `choices.layout` "rows" gives buffers of tile rows. Any other text gives packed boxes.
    - With one card per host, a piece waits for a message (token) from host H, its first receiving
      host, if both hold: the last earlier piece into H has another sender, and it ends after the
      last earlier piece of this sender. The token says that the earlier piece has arrived.

    `extension` is stored under `reshard`. Raises `InputError`: `too-many-runs` above 2^18 runs of
    rows, `unreachable` if a tree of the topology cannot reach a receiver.
    """
    max_chunks = max(choices.chunks.values(), default=1)
    if choices.layout == "rows":
        layout = build_row_layout(units, moves)
    else:
        layout = build_packed_layout(units, moves, max_chunks * _UNITS_PER_CHUNK)
    writer = StepWriter(units, layout)
    turns = ReceiverTurns()
    for piece in schedule.pieces:
        row = tasks.rows[piece.task]
        audience = find_audience(units, row, piece.sender, tasks.receivers[piece.task])
        strategy = choices.strategies[row]
        if strategy is Strategy.TREE and choices.topology is not None:
            transfers = build_tree_transfers(choices.topology, audience, choices.chunks[row])
        else:
            transfers = list_transfers(strategy, audience, choices.chunks[row])
        # Several cards of a host need no turns: a piece takes any that is free.
        awaited = turns.awaited(piece, audience) if tasks.cards == 1 else None
        tokens: dict[int, list[int]] = {}
        if awaited is not None:
            steps = writer.send_token(awaited.row, awaited.entry, audience.sender)
            tokens = {audience.sender: steps}
        writer.send(row, transfers, (piece.first, piece.last), tokens)
        turns.pass_on(piece, row, audience)
    return build_lowered(writer, extension)


def lower_streams(
    units: UnitTasks,
    moves: Sequence[Move],
    plan: StreamPlan,
    choices: LoweringChoices,
    extension: JsonValue,
) -> Lowered:
    """Convert a plan of streams (parts of deliveries, each over one tree) to an algorithm.

    Every stream is divided into n equal chunks. n is the largest number in `choices.chunks`, 1 if
    it is empty. First come the first chunks of all streams in the order of `plan`, then the second
    ones, and so on. Messages within hosts, copies and sums follow at the end.

    Chunk c of a stream, for c from `_STREAM_WINDOW` (8) on, waits for its chunk c - 8: messages
    that a device sends from INPUT wait for all messages that it sent from INPUT for that chunk.
    Messages over one network card do not wait for each other otherwise.

    The buffers contain rows of tiles if `choices.layout` is "rows". Otherwise they contain packed
    boxes, of which the smallest has 16 n units if possible. Strategies and topology of `choices`
    are not used. `extension` is stored in the algorithm under the key `reshard`. Raises
    `InputError` (`too-many-runs`) for a row layout of more than 2^18 runs.
    """
    count = max(choices.chunks.values(), default=1)
    if choices.layout == "rows":
        layout = build_row_layout(units, moves)
    else:
        layout = build_packed_layout(units, moves, count * _UNITS_PER_CHUNK)
    writer = StepWriter(units, layout, takes_turns=False)
    sent: dict[tuple[int, int], dict[int, list[int]]] = {}
    for chunk in range(count):
        for number, stream in enumerate(plan.streams):
            first, last = stream.part
            step = (last - first) / count
            part = (first + step * chunk, first + step * (chunk + 1))
            awaited = sent.get((number, chunk - _STREAM_WINDOW), {})
            sent_by_device = sent.setdefault((number, chunk), {})
            for row, bounds in plan.deliveries[stream.delivery].boxes(part):
                sends = writer.send(row, list_tree_transfers(stream.edges), bounds, awaited)
                for device, steps in sends.items():
                    sent_by_device.setdefault(device, []).extend(steps)
    return build_lowered(writer, extension)


def build_lowered(writer: StepWriter, extension: JsonValue) -> Lowered:
    """Build the algorithm of all steps that a writer has collected, with its contract.

    This finishes the writer, which adds the messages within hosts, the copies to OUTPUT and the
    sums; it must not be used afterwards. The size of the collective in bytes is its units
    (`build_collective`) times the bytes of a unit. `extension` is stored in the algorithm under
    the key `reshard`. The result also has the layout, the number of copies and sums, their
    bytes, and the number of tokens.
    """
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
