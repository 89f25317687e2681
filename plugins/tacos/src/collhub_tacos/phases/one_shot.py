"""Candidates for an all-reduce in one phase, where whole vectors are small enough for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from collhub_tacos.candidates import Nodes, SynthesisCandidate
from collhub_tacos.networks.link_network import LinkTimes
from collhub_tacos.networks.switches import get_links_of_arcs
from collhub_tacos.phases.partial_sums import (
    OWN,
    InTrees,
    PartialSums,
    Vectors,
    in_trees,
    partial_sums,
)
from collhub_tacos.seed_search import Progress
from collhub_tacos.setting import Setting, bound_one_tree_ps
from hub_core.columns import Int64Array, expanded_ranges
from hub_core.model import Algorithm, Buffer, StepKind, StepTable, StepTableBuilder
from hub_core.schedules import Chunks, Transfers


@dataclass(frozen=True, slots=True, eq=False)
class PlannedSums:
    """Which vectors are sent and result, and when messages start and arrive on idle links.

    `vectors`: of every NPU. `sent`: by message, the number of its vector at the source. `received`:
    that at the destination. `result`: by NPU. `start`, `finish`: int64 picoseconds by message.
    """

    vectors: Sequence[Vectors]
    sent: Sequence[int]
    received: Sequence[int]
    result: Sequence[int]
    start: Int64Array
    finish: Int64Array

    @classmethod
    def of(cls, trees: InTrees, sums: PartialSums, times: LinkTimes) -> PlannedSums:
        """Plan all sums of all NPUs, those that others wait for first."""
        source, destination = _ends(trees, sums)
        vectors = [Vectors() for _ in range(trees.network.num_nodes)]
        sent, received = [OWN] * len(sums), [OWN] * len(sums)
        start, finish = np.zeros(len(sums), np.int64), np.zeros(len(sums), np.int64)
        # What a message is the sum of has farther to go than the message.
        way_round = (destination - source) % trees.network.num_nodes
        for message in np.lexsort((way_round, -sums.remaining)).tolist():
            here = vectors[source[message]]
            sent[message] = here.total([OWN, *(received[part] for part in sums.parts_of(message))])
            here[sent[message]].uses += 1
            start[message] = here[sent[message]].time_ps
            finish[message] = start[message] + times.arrival[sums.arc[message]]
            there = vectors[destination[message]]
            received[message] = there.arriving(message, int(finish[message]))
        result = []
        for npu, here in enumerate(vectors):
            parts = sums.parts_of(len(sums) + npu)
            result.append(here.total([OWN, *(received[part] for part in parts)]))
        return cls(vectors, sent, received, result, start, finish)


def steps_of_sums(
    trees: InTrees, sums: PartialSums, times: LinkTimes, pieces: int
) -> tuple[StepTable, Int64Array]:
    """Steps with the vector in `pieces` units, and the units of SCRATCH by NPU, int64.

    Every NPU sends what has farthest to go first, of equals to the next one round.
    """
    plan = PlannedSums.of(trees, sums, times)
    source, destination = _ends(trees, sums)
    way_round = (destination - source) % trees.network.num_nodes
    count = len(sums)
    message = np.tile(np.arange(count), 2)
    is_start = np.repeat([False, True], count)
    time = np.concatenate([plan.finish, plan.start])
    order = np.lexsort((message, way_round[message], -sums.remaining[message], is_start, time))
    writer = _StepWriter(plan, pieces)
    for event in order.tolist():
        here, there = int(source[message[event]]), int(destination[message[event]])
        if is_start[event]:
            writer.send(int(message[event]), here, there)
        else:
            writer.receive(int(message[event]), here, there)
    for npu in range(trees.network.num_nodes):
        writer.finish(npu)
    return writer.built()


def _ends(trees: InTrees, sums: PartialSums) -> tuple[Int64Array, Int64Array]:
    """Source and destination of every message, int64."""
    return trees.network.source[sums.arc], trees.network.destination[sums.arc]


class _StepWriter:
    """Writes steps in an order in which causes stand before effects."""

    def __init__(self, plan: PlannedSums, pieces: int) -> None:
        self._plan = plan
        self._pieces = pieces
        npus = len(plan.vectors)
        self._steps = StepTableBuilder(npus)
        self._slots = [0] * npus
        # Steps that read INPUT, by NPU and piece.
        self._readers: list[list[list[int]]] = [[[] for _ in range(pieces)] for _ in range(npus)]

    def send(self, message: int, here: int, there: int) -> None:
        """Send a message from `here`."""
        number = self._plan.sent[message]
        self._make(here, number)
        for piece in range(self._pieces):
            self._step(here, StepKind.SEND, piece, read=number, peer=there)

    def receive(self, message: int, here: int, there: int) -> None:
        """Receive a message at `there`, and add it where one sum alone needs it."""
        number = self._plan.received[message]
        vectors = self._plan.vectors[there]
        total = vectors[number].adder
        # A message is part of a result at least.
        other = vectors[total].left + vectors[total].right - number
        is_free = vectors[number].uses == 1 and self._may_be_written(there, total, other)
        if is_free and self._is_made(there, other):
            kind, read, written = StepKind.RECV_REDUCE, other, total
            self._put(there, total, other)
        else:
            kind, read, written = StepKind.RECV, None, number
            vectors[number].slot = self._new_slot(there)
        for piece in range(self._pieces):
            step = self._step(there, kind, piece, read=read, written=written, peer=here)
            vectors[written].steps.append(step)

    def finish(self, npu: int) -> None:
        """Make the result of an NPU."""
        self._make(npu, self._plan.result[npu])

    def built(self) -> tuple[StepTable, Int64Array]:
        """All steps, and the units of SCRATCH by NPU."""
        return self._steps.build(), np.asarray(self._slots, np.int64) * self._pieces

    def _may_be_written(self, npu: int, number: int, part: int) -> bool:
        """Whether nothing but this addition to `part` reads INPUT any more, for a result."""
        reads = len(self._readers[npu][0]) + (part == OWN)
        is_last = reads == self._plan.vectors[npu][OWN].uses
        return is_last or number != self._plan.result[npu]

    def _is_made(self, npu: int, number: int) -> bool:
        return number == OWN or bool(self._plan.vectors[npu][number].steps)

    def _make(self, npu: int, number: int) -> None:
        """Make a sum, and what it is the sum of, unless it is made."""
        if self._is_made(npu, number):
            return
        vectors = self._plan.vectors[npu]
        total = vectors[number]
        self._make(npu, total.left)
        self._make(npu, total.right)
        # What comes first is copied, while the other one is still to come.
        first, last = sorted((total.left, total.right), key=lambda part: vectors[part].time_ps)
        is_there = self._put(npu, number, first)
        for piece in range(self._pieces):
            if is_there:
                begun = vectors[first].steps[piece]
            else:
                begun = self._step(npu, StepKind.COPY, piece, read=first, written=number)
            step = self._step(
                npu, StepKind.REDUCE, piece, read=last, written=number, after=(begun,)
            )
            total.steps.append(step)

    def _put(self, npu: int, number: int, part: int) -> bool:
        """Give a sum its place; return whether that is where a part of it stands already.

        So it is where nothing else reads the part; a result stands in OUTPUT.
        """
        vectors = self._plan.vectors[npu]
        is_result = number == self._plan.result[npu]
        is_there = not is_result and part != OWN and vectors[part].uses == 1
        if is_there:
            vectors[number].slot = vectors[part].slot
        elif not is_result:
            vectors[number].slot = self._new_slot(npu)
        return is_there

    def _new_slot(self, npu: int) -> int:
        """Take the next slot of SCRATCH at an NPU, from 0 on; it holds all pieces of a vector."""
        self._slots[npu] += 1
        return self._slots[npu] - 1

    def _place(self, npu: int, number: int, piece: int) -> tuple[Buffer, int]:
        """Buffer and offset of a piece of a vector."""
        if number == OWN:
            return Buffer.INPUT, piece
        if number == self._plan.result[npu]:
            return Buffer.OUTPUT, piece
        return Buffer.SCRATCH, self._plan.vectors[npu][number].slot * self._pieces + piece

    def _step(
        self,
        npu: int,
        kind: StepKind,
        piece: int,
        *,
        read: int | None = None,
        written: int | None = None,
        after: tuple[int, ...] = (),
        peer: int = -1,
    ) -> int:
        """Add a step that reads a piece of one vector and writes one of another."""
        columns = {"count": 1, "peer": peer}
        data, control = list(after), []
        readers = self._readers[npu][piece]
        if read is not None:
            columns["src_buffer"], columns["src_offset"] = self._place(npu, read, piece)
            data += self._plan.vectors[npu][read].steps[piece : piece + 1]
        if written is not None:
            columns["dst_buffer"], columns["dst_offset"] = self._place(npu, written, piece)
            # In place, that is where INPUT stands.
            if written == self._plan.result[npu]:
                control = [reader for reader in readers if reader not in after]
        step = self._steps.add(npu, kind, data=data, control=control, **columns)
        # What overwrites the own vector must wait for everyone who reads it.
        if read == OWN:
            readers.append(step)
        return step


# Messages on the way fill the links: latencies are then no longer what counts.
_LADDER = (1, 2, 4, 8)
# Cells of trees on links, and pairs of NPUs, up to which building them takes about a second.
_MOST_CELLS, _MOST_PAIRS = 1 << 24, 1 << 16
_WORK = "collecting in one phase"


def unsuitability(setting: Setting) -> str | None:
    """Why an all-reduce in one phase is not made, None where it is."""
    npus, links = setting.network.num_npus, setting.network.num_links
    if setting.has_relays:
        return "some NPUs take no part"
    if setting.requested_ranks is not None:
        return "the steps of some ranks alone are wanted"
    if npus * links > _MOST_CELLS or npus * npus > _MOST_PAIRS:
        return f"{npus} NPUs with {links} links are too many"
    return None


def one_shot(
    setting: Setting, limit_ps: Callable[[], int | None], progress: Progress
) -> Iterator[SynthesisCandidate]:
    """Candidates with the vector in more and more pieces, for as long as that helps.

    None where the fullest link alone takes longer than `limit_ps()`, the fastest time so far.
    """
    progress(0.0, _WORK)
    limit = limit_ps()
    # Every NPU but the last sends whole vectors: that needs no trees to be told.
    if limit is not None and bound_one_tree_ps(setting) > limit:
        return
    trees = in_trees(setting.network, setting.link_times(1))
    if not trees.connects_all:
        return
    sums = partial_sums(trees)
    ladder = setting.choose_piece_counts(_LADDER)
    for place, pieces in enumerate(ladder):
        limit = limit_ps()
        if limit is not None and _least_ps(setting, sums, pieces) > limit:
            return
        progress(place / len(ladder), _WORK)
        yield _candidate(setting, trees, sums, pieces)
        if limit is not None and limit_ps() == limit:
            return


def _least_ps(setting: Setting, sums: PartialSums, pieces: int) -> int:
    """What the fullest link is busy for, and what a message takes longer; picoseconds."""
    times = setting.link_times(pieces)
    paths, hops = get_links_of_arcs(setting.network, times)
    first, lengths = paths.indptr[sums.arc], np.diff(paths.indptr)[sums.arc]
    links = paths.links[expanded_ranges(first, lengths)]
    messages = pieces * np.bincount(links, minlength=len(hops.busy))
    takes = messages * hops.busy + hops.arrival - hops.busy
    return int(np.max(takes[messages > 0], initial=0))


def _candidate(
    setting: Setting, trees: InTrees, sums: PartialSums, pieces: int
) -> SynthesisCandidate:
    collective = replace(
        setting.collective, unit_count=setting.count_units(pieces), in_place=True, out_of_place=True
    )
    steps, scratch_units = steps_of_sums(trees, sums, setting.link_times(pieces), pieces)
    whole = Algorithm(collective, steps, scratch_units, collective_bytes=setting.collective_bytes)
    return SynthesisCandidate(
        form="one-shot",
        pieces=pieces,
        collective=collective,
        chunks=Chunks.cut(collective, np.ones(pieces, np.int64)),
        num_transfers=len(sums) * pieces,
        time_ps=_least_ps(setting, sums, pieces),
        transfers=_no_transfers,
        replay=lambda progress: False,
        whole=whole,
    )


def _no_transfers(nodes: Nodes) -> Transfers:
    """None: an NPU may hold several sums of one chunk, which transfers do not tell apart."""
    raise AssertionError("the steps of one phase are made at once")
