"""All-reduce in one phase: planned partial sums, their steps, and the candidates.

Every NPU sends partial sums along the in-trees of `partial_sums`; the steps contain all additions,
so that the algorithm does not follow from transfers of chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from collhub_tacos.link_network import LinkTimes, get_links_of_arcs
from collhub_tacos.phases.partial_sums import (
    LOCAL_CONTRIBUTION,
    InTrees,
    PartialSums,
    Vectors,
    build_in_trees,
    build_partial_sums,
)
from collhub_tacos.search.candidates import Nodes, SynthesisCandidate
from collhub_tacos.search.seeds import Progress
from collhub_tacos.search.setting import Setting, bound_one_tree_ps
from hub_core.columns import Int64Array, expanded_ranges
from hub_core.model import Algorithm, Buffer, StepKind, StepTable, StepTableBuilder
from hub_core.schedules import Chunks, Transfers


@dataclass(frozen=True, slots=True, eq=False)
class PlannedSums:
    """Vectors that are sent and returned, and times of the messages on idle links.

    `vectors`: of every NPU. `sent`: by message, the number of its vector at the source. `received`:
    its number at the destination. `result`: by NPU. `start`, `finish`: int64 picoseconds by
    message.
    """

    vectors: Sequence[Vectors]
    sent: Sequence[int]
    received: Sequence[int]
    result: Sequence[int]
    start: Int64Array
    finish: Int64Array

    @classmethod
    def of(cls, trees: InTrees, sums: PartialSums, times: LinkTimes) -> PlannedSums:
        """Plan the messages of a reduction and the sums that they carry; times are in ps.

        A message carries the sum of its source's contribution and of the received messages
        `sums.parts_of`. The result of an NPU is the sum of its contribution and its parts.
        Contributions (available at 0), received messages and sums are vectors, numbered per NPU.

        - Order: messages are planned by descending `sums.remaining`, then by (destination -
          source) modulo the number of nodes, then by number. The results follow last.
        - Sum: repeatedly, the two vectors that are available first are added; ties by vector
          number. An addition takes 1000 ps. An NPU reuses an existing sum of the same two vectors.
        - Message: it starts when its sum is complete and takes `times.arrival` of its arc.
          Messages do not wait for each other on links.

        `start`, `finish`, `sent` and `received` are indexed by message, `result` and `vectors` by
        NPU.
        """
        source, destination = _find_ends(trees, sums)
        vectors = [Vectors() for _ in range(trees.network.num_nodes)]
        sent, received = [LOCAL_CONTRIBUTION] * len(sums), [LOCAL_CONTRIBUTION] * len(sums)
        start, finish = np.zeros(len(sums), np.int64), np.zeros(len(sums), np.int64)
        # Summands of a message have longer remaining times than the message, so they come first.
        rotation = (destination - source) % trees.network.num_nodes
        for message in np.lexsort((rotation, -sums.remaining)).tolist():
            at_source = vectors[source[message]]
            summands = [LOCAL_CONTRIBUTION, *(received[part] for part in sums.parts_of(message))]
            sent[message] = at_source.add_total(summands)
            at_source[sent[message]].uses += 1
            start[message] = at_source[sent[message]].time_ps
            finish[message] = start[message] + times.arrival[sums.arc[message]]
            at_destination = vectors[destination[message]]
            received[message] = at_destination.add_received(message, int(finish[message]))
        result = []
        for npu, at_npu in enumerate(vectors):
            parts = sums.parts_of(len(sums) + npu)
            result.append(
                at_npu.add_total([LOCAL_CONTRIBUTION, *(received[part] for part in parts)])
            )
        return cls(vectors, sent, received, result, start, finish)


def build_steps(
    trees: InTrees, sums: PartialSums, times: LinkTimes, pieces: int
) -> tuple[StepTable, Int64Array]:
    """Build the steps of an all-reduce in one phase, with the vector divided into `pieces` units.

    Returns (steps, SCRATCH units by NPU as int64); a vector in SCRATCH takes `pieces` units. A send
    or receive is one step of one unit per piece. Within an NPU they are ordered by planned time
    (`PlannedSums.of`): start of a send, finish of a receive. Ties: receives before sends; then by
    descending `sums.remaining` (ps until the farthest NPU has the message); then by (destination -
    source) modulo the number of nodes; then by number of the message.

    A receive is a RECV_REDUCE, which adds to the other summand, if only one sum reads the message,
    that summand is ready, and, for a sum that is the NPU's result, no later step reads INPUT
    (`_StepWriter.receive`). Otherwise it is a RECV into SCRATCH. COPY and REDUCE steps compute all
    other sums before the first send that needs them, and results, in OUTPUT, after all messages.
    """
    plan = PlannedSums.of(trees, sums, times)
    source, destination = _find_ends(trees, sums)
    rotation = (destination - source) % trees.network.num_nodes
    count = len(sums)
    message = np.tile(np.arange(count), 2)
    is_start = np.repeat([False, True], count)
    time = np.concatenate([plan.finish, plan.start])
    order = np.lexsort((message, rotation[message], -sums.remaining[message], is_start, time))
    writer = _StepWriter(plan, pieces)
    for event in order.tolist():
        sender, receiver = int(source[message[event]]), int(destination[message[event]])
        if is_start[event]:
            writer.send(int(message[event]), sender, receiver)
        else:
            writer.receive(int(message[event]), sender, receiver)
    for npu in range(trees.network.num_nodes):
        writer.finish(npu)
    return writer.build()


def _find_ends(trees: InTrees, sums: PartialSums) -> tuple[Int64Array, Int64Array]:
    """Return source and destination of every message, int64."""
    return trees.network.source[sums.arc], trees.network.destination[sums.arc]


class _StepWriter:
    """Writes steps in an order in which causes precede effects."""

    def __init__(self, plan: PlannedSums, pieces: int) -> None:
        self._plan = plan
        self._pieces = pieces
        npus = len(plan.vectors)
        self._steps = StepTableBuilder(npus)
        self._slots = [0] * npus
        # Steps that read INPUT, by NPU and piece.
        self._readers: list[list[list[int]]] = [[[] for _ in range(pieces)] for _ in range(npus)]

    def send(self, message: int, sender: int, receiver: int) -> None:
        """Write the SENDs of a message, one per piece, after the steps that compute its sum.

        Steps of a sum that was written for an earlier message are not repeated.
        """
        number = self._plan.sent[message]
        self._write_sum(sender, number)
        for piece in range(self._pieces):
            self._add_step(sender, StepKind.SEND, piece, read=number, peer=receiver)

    def receive(self, message: int, sender: int, receiver: int) -> None:
        """Add the receive of a message at `receiver`, one step per piece of the vector.

        The plan assigns one sum to the received vector. The addend is the other summand of this
        sum. The steps are RECV_REDUCE, which read the addend and write the sum, if all of this
        holds:

        - This sum is the only reader of the received vector, which is also not sent on.
        - The steps of the addend are written, or it is the local contribution.
        - The sum is not the NPU's result in OUTPUT, or this is the last step that reads INPUT.

        The sum then reuses the buffer of the addend if nothing else reads that, or gets a new slot
        of SCRATCH (`_assign_buffer`). Otherwise the steps are RECV into a new slot of SCRATCH. The
        numbers of the steps are appended to `steps` of the sum, or of the received vector for RECV.
        """
        number = self._plan.received[message]
        vectors = self._plan.vectors[receiver]
        total = vectors[number].adder
        # Every message is at least part of a result, so a sum exists.
        addend = vectors[total].left + vectors[total].right - number
        # OUTPUT may be the memory of INPUT: only the last step that reads INPUT may write a result.
        reads_of_input = len(self._readers[receiver][0]) + (addend == LOCAL_CONTRIBUTION)
        is_last_read = reads_of_input == vectors[LOCAL_CONTRIBUTION].uses
        may_overwrite = is_last_read or total != self._plan.result[receiver]
        is_free = vectors[number].uses == 1 and may_overwrite
        if is_free and self._exists(receiver, addend):
            kind, read, written = StepKind.RECV_REDUCE, addend, total
            self._assign_buffer(receiver, total, addend)
        else:
            kind, read, written = StepKind.RECV, None, number
            vectors[number].slot = self._reserve_slot(receiver)
        for piece in range(self._pieces):
            step = self._add_step(receiver, kind, piece, read=read, written=written, peer=sender)
            vectors[written].steps.append(step)

    def finish(self, npu: int) -> None:
        """Write the steps of the result of an NPU."""
        self._write_sum(npu, self._plan.result[npu])

    def build(self) -> tuple[StepTable, Int64Array]:
        """Return all steps, and the SCRATCH units by NPU."""
        return self._steps.build(), np.asarray(self._slots, np.int64) * self._pieces

    def _exists(self, npu: int, number: int) -> bool:
        """Return whether the steps of a vector are written; the local contribution exists."""
        return number == LOCAL_CONTRIBUTION or bool(self._plan.vectors[npu][number].steps)

    def _write_sum(self, npu: int, number: int) -> None:
        """Add the steps that compute sum `number` at an NPU, and first those of its summands.

        Nothing is added for a vector whose steps are written, or for the local contribution.
        Otherwise the steps of the left and then of the right summand are written in the same way.
        The first summand is the one with the lower planned time (the left one of equal ones). The
        sum gets a buffer:

        - The sum is the NPU's result: OUTPUT.
        - The first summand is not the local contribution, and only this sum reads it: its buffer.
        - Otherwise: a new slot of SCRATCH.

        For each piece, a COPY moves the first summand to this buffer, unless it is already there.
        Then a REDUCE adds the other summand. The numbers of the REDUCE steps are appended to
        `steps` of the sum.
        """
        if self._exists(npu, number):
            return
        vectors = self._plan.vectors[npu]
        total = vectors[number]
        self._write_sum(npu, total.left)
        self._write_sum(npu, total.right)
        # The first summand is copied while the other one is still to arrive.
        first, last = sorted((total.left, total.right), key=lambda part: vectors[part].time_ps)
        is_in_place = self._assign_buffer(npu, number, first)
        for piece in range(self._pieces):
            if is_in_place:
                first_step = vectors[first].steps[piece]
            else:
                first_step = self._add_step(npu, StepKind.COPY, piece, read=first, written=number)
            step = self._add_step(
                npu, StepKind.REDUCE, piece, read=last, written=number, after=(first_step,)
            )
            total.steps.append(step)

    def _assign_buffer(self, npu: int, number: int, part: int) -> bool:
        """Assign a buffer to sum `number`; return whether it already contains summand `part`.

        1. The sum is the result of the NPU: it is in OUTPUT and needs no buffer. False.
        2. No other addition and no send reads `part` (its `uses` is 1), and `part` is not the local
           contribution, which is in INPUT: the sum gets the buffer of `part`. True.
        3. Otherwise: a new slot of SCRATCH is reserved. False.
        """
        vectors = self._plan.vectors[npu]
        is_result = number == self._plan.result[npu]
        is_in_place = not is_result and part != LOCAL_CONTRIBUTION and vectors[part].uses == 1
        if is_in_place:
            vectors[number].slot = vectors[part].slot
        elif not is_result:
            vectors[number].slot = self._reserve_slot(npu)
        return is_in_place

    def _reserve_slot(self, npu: int) -> int:
        """Reserve the next slot of SCRATCH at an NPU and return its number, from 0 on.

        A slot contains all pieces of a vector.
        """
        self._slots[npu] += 1
        return self._slots[npu] - 1

    def _locate(self, npu: int, number: int, piece: int) -> tuple[Buffer, int]:
        """Return buffer and offset of a piece of a vector: units in INPUT, OUTPUT or SCRATCH.

        The local contribution is in INPUT, the NPU's result in OUTPUT, any other vector at its
        slot, of as many units as pieces, in SCRATCH.
        """
        if number == LOCAL_CONTRIBUTION:
            return Buffer.INPUT, piece
        if number == self._plan.result[npu]:
            return Buffer.OUTPUT, piece
        return Buffer.SCRATCH, self._plan.vectors[npu][number].slot * self._pieces + piece

    def _add_step(
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
        """Add a step that reads a piece of a vector and writes it to another; return its number.

        The step is executed by `npu`. `read`, `written`: numbers of its vectors, None for none.
        `peer`: the other rank of a message, -1 for none. The step depends on the steps `after`, and
        on the step that wrote this piece of `read` (none for INPUT). A step that writes the result
        also waits, by a control dependency, for all earlier steps of this NPU and piece that read
        INPUT, because OUTPUT may be the same memory. The step is recorded as a reader if it reads
        INPUT. It is not recorded as the writer of `written`; the caller does that.
        """
        columns = {"count": 1, "peer": peer}
        data, control = list(after), []
        readers = self._readers[npu][piece]
        if read is not None:
            columns["src_buffer"], columns["src_offset"] = self._locate(npu, read, piece)
            data += self._plan.vectors[npu][read].steps[piece : piece + 1]
        if written is not None:
            columns["dst_buffer"], columns["dst_offset"] = self._locate(npu, written, piece)
            # If the collective is in place, OUTPUT is the same memory as INPUT.
            if written == self._plan.result[npu]:
                control = [reader for reader in readers if reader not in after]
        step = self._steps.add(npu, kind, data=data, control=control, **columns)
        # Steps that overwrite INPUT must wait for all steps that read it.
        if read == LOCAL_CONTRIBUTION:
            readers.append(step)
        return step


# More pieces are of no use: the links are then busy, and latency no longer matters.
_LADDER = (1, 2, 4, 8)
# Maximum size of the trees, NPUs times links, and of the pairs of NPUs: building them takes about a
# second.
_MAX_CELLS, _MAX_PAIRS = 1 << 24, 1 << 16
_ACTIVITY = "collecting in one phase"


def find_unsuitability(setting: Setting) -> str | None:
    """Return why an all-reduce in one phase is not built, or None if it is.

    The first reason that applies is returned: rank r is not on NPU r for all NPUs
    (`has_relays`), for example because some NPUs do not take part; only the steps of some ranks
    are requested; NPUs x links is above 2^24 (`_MAX_CELLS`), or NPUs x NPUs above 2^16
    (`_MAX_PAIRS`).
    """
    npus, links = setting.network.num_npus, setting.network.num_links
    if setting.has_relays:
        return "some NPUs take no part"
    if setting.requested_ranks is not None:
        return "the steps of some ranks alone are wanted"
    if npus * links > _MAX_CELLS or npus * npus > _MAX_PAIRS:
        return f"{npus} NPUs with {links} links are too many"
    return None


def build_one_shot_candidates(
    setting: Setting, limit_ps: Callable[[], int | None], progress: Progress
) -> Iterator[SynthesisCandidate]:
    """Yield all-reduces in one phase with more and more pieces (of 1, 2, 4, 8), while they improve.

    The numbers of pieces are those of `Setting.choose_piece_counts`, ascending. `limit_ps()`: the
    fastest time so far in ps, None if there is none; the consumer updates it between candidates.
    Yields none if some NPU cannot reach another one, or if the fastest link takes longer than the
    limit to send all bytes once. Stops before a candidate whose busiest link takes longer than the
    limit, and after one that did not change a limit which existed before it.

    A candidate is for calls in place and out of place. It has an algorithm (`build_steps`) and no
    transfers: `transfers` raises `AssertionError`, `replay` returns False. Its time is only a lower
    bound, the time of its busiest link (`_compute_minimum_ps`). `progress` is called with 0.0 at
    the start, and before each candidate with its index / number of piece counts. Raises
    `UsageError` (`size-too-small`) for units below one byte.
    """
    progress(0.0, _ACTIVITY)
    limit = limit_ps()
    # This bound needs no trees: every NPU except the last sends entire vectors.
    if limit is not None and bound_one_tree_ps(setting) > limit:
        return
    trees = build_in_trees(setting.network, setting.link_times(1))
    if not trees.connects_all:
        return
    sums = build_partial_sums(trees)
    ladder = setting.choose_piece_counts(_LADDER)
    for index, pieces in enumerate(ladder):
        limit = limit_ps()
        minimum_ps = _compute_minimum_ps(setting, sums, pieces)
        if limit is not None and minimum_ps > limit:
            return
        progress(index / len(ladder), _ACTIVITY)
        collective = replace(
            setting.collective,
            unit_count=setting.count_units(pieces),
            in_place=True,
            out_of_place=True,
        )
        steps, scratch_units = build_steps(trees, sums, setting.link_times(pieces), pieces)
        size = setting.collective_bytes
        yield SynthesisCandidate(
            form="one-shot",
            pieces=pieces,
            collective=collective,
            chunks=Chunks.cut(collective, np.ones(pieces, np.int64)),
            num_transfers=len(sums) * pieces,
            time_ps=minimum_ps,
            transfers=_refuse_transfers,
            # The candidate must be verified in another way.
            replay=lambda progress: False,
            algorithm=Algorithm(collective, steps, scratch_units, collective_bytes=size),
        )
        if limit is not None and limit_ps() == limit:
            return


def _compute_minimum_ps(setting: Setting, sums: PartialSums, pieces: int) -> int:
    """Return a lower bound in ps on the time if the vector is sent in `pieces` pieces.

    Every message of `sums` is sent once per piece, over all links of its arc (the path between
    two NPUs). Each link must send its messages one after the other. So its time is the number of
    its messages times the busy time of one, plus the time from the end of the last busy time
    until that message has arrived at the end of this link. The result is the maximum over all
    links with a message, and 0 if there is no message.
    """
    times = setting.link_times(pieces)
    paths, hops = get_links_of_arcs(setting.network, times)
    first, lengths = paths.indptr[sums.arc], np.diff(paths.indptr)[sums.arc]
    links = paths.links[expanded_ranges(first, lengths)]
    messages = pieces * np.bincount(links, minlength=len(hops.busy))
    takes = messages * hops.busy + hops.arrival - hops.busy
    return int(np.max(takes[messages > 0], initial=0))


def _refuse_transfers(nodes: Nodes) -> Transfers:
    """Raise an error: transfers cannot distinguish several sums of one chunk at an NPU."""
    raise AssertionError("the steps of one phase are made at once")
