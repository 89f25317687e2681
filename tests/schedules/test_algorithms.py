"""From schedules to algorithms: random schedules of a plain scheduler on random networks."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field, replace
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub_core.model import (
    ALL_RANKS,
    ROOTED,
    STANDARD_KINDS,
    Collective,
    CollectiveKind,
    InputError,
    StepKind,
)
from hub_core.schedules import Chunks, Transfers, algorithm_of
from hub_core.verification import verify

SEEDS = st.integers(0, 2**32 - 1)
COLUMNS = (
    "kind",
    "peer",
    "channel",
    "src_buffer",
    "src_offset",
    "dst_buffer",
    "dst_offset",
    "count",
)


@dataclass(frozen=True)
class Wire:
    source: int
    destination: int
    latency: int
    time_per_unit: int


@dataclass
class Scheduler:
    """Sends chunks over the wires of a network, one after the other on each, as early as may be."""

    wires: list[Wire]
    is_alpha_beta: bool
    random: Random
    free: dict[int, int] = field(default_factory=dict)
    rows: list[tuple[int, ...]] = field(default_factory=list)

    def send(self, chunk: int, size: int, wire: int, ready: int, reduces: bool) -> int:
        """When the chunk is there."""
        used = self.wires[wire]
        work = size * used.time_per_unit
        start = max(ready, self.free.get(wire, 0))
        finish = start + used.latency + work
        self.free[wire] = finish if self.is_alpha_beta else start + work
        window = 1 if self.is_alpha_beta else min(12, 1 + math.ceil(used.latency / work))
        self.rows.append(
            (chunk, used.source, used.destination, wire, start, finish, int(reduces), window)
        )
        return finish

    def spread(
        self, chunk: int, size: int, ready: dict[int, int], root: int, targets: set[int]
    ) -> None:
        """Copies go from `root` down a tree to all `targets`."""
        parent = self.tree(root, backwards=False)
        needed = on_the_way(parent, targets, lambda wire: self.wires[wire].source)
        for node, wire in parent.items():
            if node in needed:
                ready[node] = self.send(chunk, size, wire, ready[self.wires[wire].source], False)

    def collect(self, chunk: int, size: int, members: set[int], root: int) -> dict[int, int]:
        """Contributions of all `members` go up a tree to `root`; when each node has its sum."""
        parent = self.tree(root, backwards=True)
        needed = on_the_way(parent, members, lambda wire: self.wires[wire].destination)
        ready: dict[int, int] = dict.fromkeys([root, *parent], 0)
        for node, wire in reversed(parent.items()):
            if node in needed:
                above = self.wires[wire].destination
                ready[above] = max(ready[above], self.send(chunk, size, wire, ready[node], True))
        return {root: ready[root]}

    def tree(self, root: int, backwards: bool) -> dict[int, int]:
        """Node to the wire from (backwards: to) its parent, breadth first; without the root."""
        found: dict[int, int] = {}
        queue = deque([root])
        order = self.random.sample(range(len(self.wires)), len(self.wires))
        while queue:
            here = queue.popleft()
            for index in order:
                wire = self.wires[index]
                near, far = (
                    (wire.destination, wire.source)
                    if backwards
                    else (wire.source, wire.destination)
                )
                if near == here and far != root and far not in found:
                    found[far] = index
                    queue.append(far)
        return found

    def transfers(self) -> Transfers:
        columns = np.asarray(self.rows, np.int64).reshape(-1, 8).T
        return Transfers(*columns[:6], columns[6].astype(bool), columns[7])


def on_the_way(parent: dict[int, int], ends: set[int], above) -> set[int]:
    needed: set[int] = set()
    for node in ends:
        while node in parent and node not in needed:
            needed.add(node)
            node = above(parent[node])
    return needed


@dataclass(frozen=True)
class Case:
    """A random schedule and what it is for."""

    collective: Collective
    members: list[int]
    num_npus: int
    chunks: Chunks
    transfers: Transfers

    def algorithm(self, **more):
        return algorithm_of(
            self.collective,
            self.chunks,
            self.transfers,
            npus=self.members,
            num_npus=self.num_npus,
            **more,
        )


def network(random: Random, num_npus: int) -> list[Wire]:
    """A ring of all NPUs in random order and some wires more, parallel ones among them."""
    ring = random.sample(range(num_npus), num_npus)
    ends = [(a, b) for a, b in zip(ring, [*ring[1:], ring[0]], strict=True) if a != b]
    ends += [
        tuple(random.sample(range(num_npus), 2)) for _ in range(random.randrange(8)) if num_npus > 1
    ]
    random.shuffle(ends)
    return [Wire(*pair, random.randrange(40), random.randrange(1, 10)) for pair in ends]


def case(kind: CollectiveKind, seed: int, in_place: bool = False) -> Case:
    random = Random(seed)
    num_npus = random.randrange(1, 7)
    num_ranks = random.randrange(1, num_npus + 1)
    members = (
        random.sample(range(num_npus), num_ranks)
        if random.random() < 0.7
        else list(range(num_ranks))
    )
    sizes = [random.randrange(1, 6) for _ in range(random.randrange(1, 4))]
    whole = kind in (CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE, CollectiveKind.BROADCAST)
    root = random.randrange(num_ranks) if kind in ROOTED else None
    collective = Collective(
        kind, num_ranks, sum(sizes) * (1 if whole else num_ranks), root, in_place
    )
    chunks = Chunks.cut(collective, sizes)
    scheduler = Scheduler(network(random, num_npus), random.random() < 0.5, random)
    everyone = set(members)
    for chunk in random.sample(range(len(chunks)), len(chunks)):
        origin, target, size = (
            int(column[chunk]) for column in (chunks.origin, chunks.target, chunks.count)
        )
        targets = everyone if target == ALL_RANKS else {members[target]}
        start = (
            members[origin]
            if origin != ALL_RANKS
            else random.choice(range(num_npus) if len(targets) > 1 else [*targets])
        )
        ready = (
            {start: 0} if origin != ALL_RANKS else scheduler.collect(chunk, size, everyone, start)
        )
        scheduler.spread(chunk, size, ready, start, targets)
    return Case(collective, members, num_npus, chunks, scheduler.transfers())


@pytest.mark.parametrize("kind", STANDARD_KINDS)
@pytest.mark.parametrize("in_place", [False, True])
@given(seed=SEEDS)
def test_algorithm_of_a_schedule_is_correct(kind, in_place, seed):
    made = case(kind, seed, in_place).algorithm()
    report = verify(made)
    assert report.ok, report.diagnostics


@pytest.mark.parametrize("kind", STANDARD_KINDS)
@given(seed=SEEDS)
def test_each_transfer_is_one_message(kind, seed):
    made = case(kind, seed)
    steps = made.algorithm().steps
    assert int(steps.sends.sum()) == int(steps.receives.sum()) == len(made.transfers)
    assert int(steps.count[steps.sends].sum()) == int(made.chunks.count[made.transfers.chunk].sum())
    assert not np.any(steps.is_kind(StepKind.RECV_REDUCE)) or kind in (
        CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE, CollectiveKind.REDUCE_SCATTER,
    )  # fmt: skip


def test_messages_that_start_together_are_sent_in_the_order_of_their_arrival() -> None:
    # Both take no time on their first link, and a switch forwards the second one first.
    columns = {"source": [0, 0], "destination": [1, 1], "link": [0, 0], "chunk": [0, 1]}
    times = {"start": [5, 5], "finish": [9, 7], "window": [0, 0]}
    arrays = {name: np.array(values) for name, values in (columns | times).items()}
    transfers = Transfers(**arrays, reduces=np.zeros(2, np.bool_))
    collective = Collective(CollectiveKind.BROADCAST, 2, 2, 0)
    chunks = Chunks.cut(collective, [1, 1])
    steps = algorithm_of(collective, chunks, transfers).steps
    assert steps.src_offset[steps.sends].tolist() == [1, 0]
    assert steps.dst_offset[steps.receives].tolist() == [1, 0]


@given(st.sampled_from(STANDARD_KINDS), SEEDS)
def test_message_waits_for_the_one_a_window_before_it_on_its_link(kind, seed):
    made = case(kind, seed)
    transfers, algorithm = made.transfers, made.algorithm()
    rows = rows_of_sends(made, algorithm.steps)
    waits = {*zip(*(column.tolist() for column in algorithm.steps.edges()), strict=True)}
    for link in set(transfers.link.tolist()):
        turn = sorted(
            np.flatnonzero(transfers.link == link).tolist(),
            key=lambda index: (transfers.start[index], transfers.finish[index]),
        )
        for place, index in enumerate(turn):
            window = int(transfers.window[index])
            if place >= window:
                assert (rows[turn[place - window]], rows[index]) in waits


def rows_of_sends(made: Case, steps) -> dict[int, int]:
    """The row of the SEND of each transfer.

    Sends of a rank are in the order of their starts, ties in that of their arrivals, then in that
    of the transfers.
    """
    rows: dict[int, int] = {}
    for npu in range(made.num_npus):
        own = np.flatnonzero(made.transfers.source == npu)
        own = own[np.lexsort((made.transfers.finish[own], made.transfers.start[own]))]
        sends = np.flatnonzero(steps.sends & (steps.rank == npu))
        rows |= dict(zip(own.tolist(), sends.tolist(), strict=True))
    return rows


@given(st.sampled_from(STANDARD_KINDS), SEEDS)
def test_send_has_a_data_dependency_on_the_last_arrival_of_what_it_sends(kind, seed):
    made = case(kind, seed)
    transfers, steps = made.transfers, made.algorithm().steps
    for index, row in rows_of_sends(made, steps).items():
        is_arrival = (transfers.destination == transfers.source[index]) & (
            transfers.chunk == transfers.chunk[index]
        )
        arrivals = transfers.finish[is_arrival & (transfers.finish <= transfers.start[index])]
        parents = steps.data_indices[steps.data_indptr[row] : steps.data_indptr[row + 1]]
        assert len(parents) == (1 if len(arrivals) else 0)
        assert np.all(steps.receives[parents])


@pytest.mark.once
@given(st.sampled_from(STANDARD_KINDS), SEEDS, st.data())
def test_steps_of_wanted_ranks_are_those_of_the_whole(kind, seed, data):
    made = case(kind, seed)
    wanted = data.draw(st.sets(st.integers(0, made.num_npus - 1), min_size=1))
    whole, part = made.algorithm().steps, made.algorithm(wanted=sorted(wanted)).steps
    for npu in range(made.num_npus):
        rows, own = (slice(*steps.rank_indptr[npu : npu + 2]) for steps in (whole, part))
        if npu not in wanted:
            assert own.start == own.stop
        else:
            assert all(
                np.array_equal(getattr(whole, name)[rows], getattr(part, name)[own])
                for name in COLUMNS
            )
            waits = [
                np.diff(table.data_indptr)[span] for table, span in ((whole, rows), (part, own))
            ]
            assert np.array_equal(*waits)


@given(st.sampled_from(STANDARD_KINDS), SEEDS, st.data())
def test_schedule_that_sends_what_is_not_there_is_refused(kind, seed, data):
    made = case(kind, seed)
    transfers = made.transfers
    origins = made.chunks.origin[transfers.chunk].tolist()
    owners = [made.members if origin == ALL_RANKS else [made.members[origin]] for origin in origins]
    forwarded = [
        index
        for index, source in enumerate(transfers.source.tolist())
        if source not in owners[index]
    ]
    if not forwarded:
        return
    early = transfers.start.copy()
    early[data.draw(st.sampled_from(forwarded))] = -1
    with pytest.raises(
        InputError, match="at time -1, before the chunk has arrived there"
    ) as caught:
        replace(made, transfers=replace(transfers, start=early)).algorithm()
    assert caught.value.diagnostics[0].code == "schedule-acausal"


@given(st.sampled_from(STANDARD_KINDS), SEEDS, st.randoms(use_true_random=False))
def test_order_of_transfers_with_distinct_times_does_not_matter(kind, seed, random):
    made = case(kind, seed)
    transfers = made.transfers
    if len(set(transfers.start.tolist())) < len(transfers) or len(
        set(transfers.finish.tolist())
    ) < len(transfers):
        return
    order = np.asarray(random.sample(range(len(transfers)), len(transfers)), np.int64)
    names = [name for name in Transfers.__dataclass_fields__ if name != "channel"]
    other = replace(made, transfers=Transfers(*(getattr(transfers, name)[order] for name in names)))
    assert made.algorithm().differences(other.algorithm()) == []


@pytest.mark.once
@given(st.sampled_from(STANDARD_KINDS), SEEDS, st.data())
def test_renumbering_of_npus_renumbers_the_steps(kind, seed, data):
    made = case(kind, seed)
    number = np.asarray(data.draw(st.permutations(range(made.num_npus))), np.int64)
    transfers = replace(
        made.transfers,
        source=number[made.transfers.source],
        destination=number[made.transfers.destination],
    )
    other = replace(made, members=number[made.members].tolist(), transfers=transfers).algorithm()
    steps = made.algorithm().steps
    assert verify(other).ok
    for npu in range(made.num_npus):
        rows, own = (
            slice(*table.rank_indptr[rank : rank + 2])
            for table, rank in ((steps, npu), (other.steps, number[npu]))
        )
        for name in ("kind", "count", "src_buffer", "src_offset", "dst_buffer", "dst_offset"):
            assert np.array_equal(getattr(steps, name)[rows], getattr(other.steps, name)[own])


def test_messages_on_parallel_links_may_overtake_one_another():
    collective = Collective(CollectiveKind.BROADCAST, 2, 3, 0)
    chunks = Chunks.cut(collective, [2, 1])
    column = np.asarray
    slow_first = Transfers(
        column([0, 1]), column([0, 0]), column([1, 1]),
        column([4, 7]), column([0, 1]), column([9, 3]),
        column([False, False]), column([1, 1]),
    )  # fmt: skip
    made = algorithm_of(collective, chunks, slow_first)
    assert verify(made).ok
    assert made.steps.channel[made.steps.sends].tolist() == [0, 1]


def test_messages_of_one_link_are_on_one_channel():
    made = case(CollectiveKind.ALL_TO_ALL, 7)
    steps, transfers = made.algorithm().steps, made.transfers
    channel = {index: int(steps.channel[row]) for index, row in rows_of_sends(made, steps).items()}
    by_link = {(int(transfers.link[index]), value) for index, value in channel.items()}
    assert len(by_link) == len(set(transfers.link.tolist()))


def test_relay_without_a_contribution_receives_first_and_adds_then():
    collective = Collective(CollectiveKind.REDUCE, 2, 1, 0)
    chunks = Chunks.cut(collective, [1])
    column = np.asarray
    # NPU 3 relays for NPUs 1 and 2, of which NPU 2 is rank 0 and the root.
    up = Transfers(
        column([0, 0]), column([1, 3]), column([3, 2]),
        column([0, 1]), column([0, 5]), column([5, 9]),
        column([True, True]), column([1, 1]),
    )  # fmt: skip
    made = algorithm_of(collective, chunks, up, npus=[2, 1], num_npus=4)
    assert verify(made).ok
    assert [StepKind(kind) for kind in made.steps.kind[made.steps.rank == 3]] == [
        StepKind.RECV,
        StepKind.SEND,
    ]
    assert made.scratch_units.tolist() == [0, 0, 0, 1]


def test_all_to_all_is_not_claimed_in_place():
    claimed = case(CollectiveKind.ALL_TO_ALL, 3, in_place=True).algorithm().collective
    assert (claimed.in_place, claimed.out_of_place) == (False, True)
