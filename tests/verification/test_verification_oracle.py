"""Verification against an independent brute-force oracle.

Random algorithms, and every small mutation of correct ones.

The rule for a harmless mutation: the mutated algorithm is still right by the plain definitions of
this file. That is, every message has its partner with an equal count, every region lies in its
buffer, the closure of dependencies and messages (Floyd and Warshall) has no cycle, every two
conflicting accesses of a rank are in that closure, no undefined unit is read, and the interpreter,
one step after the other, leaves every output unit with exactly its contributions.
For tiny algorithms the same is decided without any closure: by running every possible schedule.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hub_core.model.algorithm import Algorithm
from hub_core.model.collectives import Collective
from hub_core.model.diagnostics import InputError
from hub_core.model.kinds import Buffer, CollectiveKind, StepKind
from hub_core.model.steps import COLUMN_DTYPES, StepTable, StepTableBuilder
from hub_core.testing import all_samples, custom_collective, ring_all_reduce
from hub_core.verification import verify

SEND, RECV, RECV_REDUCE, COPY, REDUCE, COMPUTE = StepKind
RECEIVES = (RECV, RECV_REDUCE)


# ---- the oracle ----------------------------------------------------------------------------------


class Oracle:
    """Plain definitions over Python lists; the model is all it shares with what it judges."""

    def __init__(self, algorithm: Algorithm, in_place: bool) -> None:
        self.collective = algorithm.collective
        self.in_place = in_place
        table = algorithm.steps
        self.rows = [
            {name: int(getattr(table, name)[i]) for name in COLUMN_DTYPES}
            for i in range(len(table))
        ]
        self.scratch = algorithm.scratch_units.tolist()
        self.dependencies = [
            (int(table_indices[k]), row)
            for indptr, table_indices in (
                (table.data_indptr, table.data_indices),
                (table.control_indptr, table.control_indices),
            )
            for row in range(len(table))
            for k in range(indptr[row], indptr[row + 1])
        ]
        self.send_of: dict[int, int] = {}

    def is_right(self) -> bool:
        return (
            self.is_well_formed() and not self.has_cycle_or_race() and self.gives_right_contents()
        )

    def is_well_formed(self) -> bool:
        return all(self.is_valid_step(row) for row in self.rows) and self.match()

    def is_valid_step(self, row: dict[str, int]) -> bool:
        if row["kind"] in (SEND, *RECEIVES) and (
            not 0 <= row["peer"] < self.collective.num_ranks or row["peer"] == row["rank"]
        ):
            return False
        regions = [*self.reads(row), *self.writes(row)]
        return row["kind"] == COMPUTE or (
            row["count"] >= 1 and all(cell is not None for cell in regions)
        )

    def match(self) -> bool:
        sends: dict[tuple[int, int, int], list[int]] = {}
        receives: dict[tuple[int, int, int], list[int]] = {}
        for number, row in enumerate(self.rows):
            if row["kind"] == SEND:
                sends.setdefault((row["rank"], row["peer"], row["channel"]), []).append(number)
            elif row["kind"] in RECEIVES:
                receives.setdefault((row["peer"], row["rank"], row["channel"]), []).append(number)
        if {key: len(rows) for key, rows in sends.items()} != {
            key: len(rows) for key, rows in receives.items()
        }:
            return False
        for key, rows in sends.items():
            self.send_of |= dict(zip(receives[key], rows, strict=True))
        return all(
            self.rows[send]["count"] == self.rows[receive]["count"]
            for receive, send in self.send_of.items()
        )

    def cell(self, rank: int, buffer: int, unit: int) -> tuple[int, str, int] | None:
        """One name for every unit of memory; None outside. Aliases follow NCCL's definitions."""
        kind, n, total = self.collective.kind, self.collective.num_ranks, self.collective.unit_count
        share = total // n
        if self.collective.contract is not None:
            sizes = [
                int(self.collective.contract.input_units[rank]),
                int(self.collective.contract.output_units[rank]),
            ]
        else:
            is_root = rank == self.collective.root
            sizes = {
                CollectiveKind.ALL_GATHER: [share, total],
                CollectiveKind.REDUCE_SCATTER: [total, share],
                CollectiveKind.GATHER: [share, total if is_root else 0],
                CollectiveKind.SCATTER: [total if is_root else 0, share],
            }.get(kind, [total, total])
        if buffer == Buffer.UNKNOWN or not 0 <= unit < [*sizes, self.scratch[rank]][buffer]:
            return None
        name = "ios"[buffer]
        if self.in_place and buffer != Buffer.SCRATCH:
            if kind is CollectiveKind.ALL_GATHER and name == "i":
                return rank, "o", rank * share + unit
            if kind is CollectiveKind.REDUCE_SCATTER and name == "o":
                return rank, "i", rank * share + unit
            if kind is CollectiveKind.GATHER and rank == self.collective.root and name == "i":
                return rank, "o", rank * share + unit
            if kind is CollectiveKind.SCATTER and rank == self.collective.root and name == "o":
                return rank, "i", rank * share + unit
            if kind not in (
                CollectiveKind.ALL_GATHER,
                CollectiveKind.REDUCE_SCATTER,
                CollectiveKind.GATHER,
                CollectiveKind.SCATTER,
            ):
                return rank, "io", unit
        return rank, name, unit

    def region(self, row: dict[str, int], side: str) -> list[tuple[int, str, int] | None]:
        units = range(row[f"{side}_offset"], row[f"{side}_offset"] + row["count"])
        return [self.cell(row["rank"], row[f"{side}_buffer"], unit) for unit in units]

    def reads(self, row: dict[str, int]) -> list[tuple[int, str, int] | None]:
        source = self.region(row, "src") if row["kind"] in (SEND, RECV_REDUCE, COPY, REDUCE) else []
        return source + (self.region(row, "dst") if row["kind"] == REDUCE else [])

    def writes(self, row: dict[str, int]) -> list[tuple[int, str, int] | None]:
        return self.region(row, "dst") if row["kind"] in (RECV, RECV_REDUCE, COPY, REDUCE) else []

    def closure(self) -> np.ndarray:
        reach = np.zeros((len(self.rows), len(self.rows)), np.bool_)
        for parent, child in self.dependencies:
            reach[parent, child] = True
        for receive, send in self.send_of.items():
            reach[send, receive] = True
        for k in range(len(self.rows)):
            reach |= np.outer(reach[:, k], reach[k])
        return reach

    def has_cycle_or_race(self) -> bool:
        reach = self.closure()
        return bool(reach.diagonal().any()) or bool(self.races(reach))

    def races(self, reach: np.ndarray) -> list[tuple[int, int]]:
        reads = [set(self.reads(row)) for row in self.rows]
        writes = [set(self.writes(row)) for row in self.rows]
        return [
            (a, b)
            for a, b in combinations(range(len(self.rows)), 2)
            if (writes[a] & (reads[b] | writes[b]) or writes[b] & reads[a])
            and not reach[a, b]
            and not reach[b, a]
        ]

    def initial_memory(self) -> dict[object, Counter]:
        collective, memory = self.collective, {}
        only_root = collective.kind in (CollectiveKind.BROADCAST, CollectiveKind.SCATTER)
        for rank in range(collective.num_ranks):
            if not only_root or rank == collective.root:
                for unit in range(int(collective.input_units()[rank])):
                    memory[self.cell(rank, Buffer.INPUT, unit)] = Counter({(rank, unit): 1})
        return memory

    def execute(self, number: int, memory: dict[object, Counter]) -> bool:
        """Run one step on `memory`; messages lie at ("m", row of the send, k).

        False: it read something undefined.
        """
        row = self.rows[number]
        cells = range(row["count"])
        if row["kind"] == COMPUTE:
            return True
        inputs = (
            [self.region(row, "src")] if row["kind"] in (SEND, COPY, REDUCE, RECV_REDUCE) else []
        )
        inputs += [self.region(row, "dst")] if row["kind"] == REDUCE else []
        inputs += (
            [[("m", self.send_of[number], k) for k in cells]] if row["kind"] in RECEIVES else []
        )
        target = (
            [("m", number, k) for k in cells] if row["kind"] == SEND else self.region(row, "dst")
        )
        if any(cell not in memory for cells in inputs for cell in cells):
            return False
        values = [sum((memory[cells[k]] for cells in inputs), Counter()) for k in cells]
        memory |= dict(zip(target, values, strict=True))
        return True

    def is_expected(self, memory: dict[object, Counter]) -> bool:
        collective = self.collective
        n, share, root, kind = (
            collective.num_ranks,
            collective.unit_count // collective.num_ranks,
            collective.root,
            collective.kind,
        )

        def everyone(unit: int) -> Counter:
            return Counter({(rank, unit): 1 for rank in range(n)})

        rules = {
            CollectiveKind.ALL_REDUCE: lambda r, k: everyone(k),
            CollectiveKind.REDUCE: lambda r, k: everyone(k) if r == root else None,
            CollectiveKind.REDUCE_SCATTER: lambda r, k: everyone(r * share + k),
            CollectiveKind.ALL_GATHER: lambda r, k: Counter({(k // share, k % share): 1}),
            CollectiveKind.GATHER: lambda r, k: Counter({(k // share, k % share): 1}),
            CollectiveKind.ALL_TO_ALL: lambda r, k: Counter(
                {(k // share, r * share + k % share): 1}
            ),
            CollectiveKind.BROADCAST: lambda r, k: Counter({(root, k): 1}),
            CollectiveKind.SCATTER: lambda r, k: Counter({(root, r * share + k): 1}),
            CollectiveKind.CUSTOM: lambda r, k: Counter({(r - 1, k): 1}) if r > 0 else None,
        }
        wanted = [
            (self.cell(rank, Buffer.OUTPUT, unit), rules[kind](rank, unit))
            for rank in range(n)
            for unit in range(int(collective.output_units()[rank]))
        ]
        return all(value is None or memory.get(cell) == value for cell, value in wanted)

    def gives_right_contents(self) -> bool:
        memory, done = self.initial_memory(), set()
        while len(done) < len(self.rows):
            for number in self.ready(done):
                if not self.execute(number, memory):
                    return False
                done.add(number)
        return self.is_expected(memory)

    def ready(self, done: set[int] | frozenset[int]) -> list[int]:
        blocked = {child for parent, child in self.dependencies if parent not in done}
        blocked |= {receive for receive, send in self.send_of.items() if send not in done}
        return [
            number
            for number in range(len(self.rows))
            if number not in done and number not in blocked
        ]

    def is_right_in_every_schedule(self) -> bool:
        """Run all orders of execution, states met before left out."""
        start = (frozenset(), frozenset())
        seen, open_states = {start}, [(frozenset(), self.initial_memory())]
        while open_states:
            done, memory = open_states.pop()
            ready = self.ready(done)
            if not ready and (len(done) < len(self.rows) or not self.is_expected(memory)):
                return False
            for number in ready:
                following = dict(memory)
                if not self.execute(number, following):
                    return False
                state = done | {number}
                key = (
                    state,
                    frozenset(
                        (cell, frozenset(value.items())) for cell, value in following.items()
                    ),
                )
                if key not in seen:
                    seen.add(key)
                    open_states.append((state, following))
        return True


def oracle_says_right(algorithm: Algorithm) -> bool:
    claims = [
        mode
        for mode, claimed in (
            (True, algorithm.collective.in_place),
            (False, algorithm.collective.out_of_place),
        )
        if claimed
    ]
    return all(Oracle(algorithm, mode).is_right() for mode in claims)


# ---- mutations -----------------------------------------------------------------------------------


def columns_of(steps: StepTable) -> dict[str, np.ndarray]:
    return {name: getattr(steps, name).astype(np.int64) for name in COLUMN_DTYPES}


def edges_of(steps: StepTable) -> tuple[np.ndarray, np.ndarray]:
    return steps.data_indices.copy(), np.repeat(np.arange(len(steps)), np.diff(steps.data_indptr))


def with_steps(
    algorithm: Algorithm, columns: dict[str, np.ndarray], data: tuple[np.ndarray, np.ndarray]
) -> Algorithm:
    return replace(algorithm, steps=StepTable.from_columns(algorithm.num_ranks, columns, data))


def with_value(algorithm: Algorithm, column: str, row: int, value: int) -> Algorithm:
    columns = columns_of(algorithm.steps)
    columns[column][row] = value
    return with_steps(algorithm, columns, edges_of(algorithm.steps))


def mutations(algorithm: Algorithm) -> Iterator[tuple[str, Algorithm]]:
    """A dependency less, two receives swapped, a count, offset, buffer, peer or kind changed."""
    steps = algorithm.steps
    parents, children = edges_of(steps)
    for k in range(len(parents)):
        removed = (np.delete(parents, k), np.delete(children, k))
        yield (
            f"no dependency {parents[k]} -> {children[k]}",
            with_steps(algorithm, columns_of(steps), removed),
        )
    for one, other in combinations(np.flatnonzero(steps.receives).tolist(), 2):
        if steps.rank[one] == steps.rank[other]:
            columns = columns_of(steps)
            for name in COLUMN_DTYPES:
                columns[name][[one, other]] = columns[name][[other, one]]
            yield f"swap {one}, {other}", with_steps(algorithm, columns, edges_of(steps))
    for row in range(len(steps)):
        for name, change in (
            ("count", 1),
            ("count", -1),
            ("src_offset", 1),
            ("src_offset", -1),
            ("dst_offset", 1),
            ("dst_offset", -1),
        ):
            yield (
                f"{name} {change:+} at {row}",
                with_value(algorithm, name, row, int(getattr(steps, name)[row]) + change),
            )
        for name, values in (("src_buffer", 3), ("dst_buffer", 3), ("peer", algorithm.num_ranks)):
            now = int(getattr(steps, name)[row])
            is_used = now < values if name != "peer" else now >= 0
            for value in range(values if is_used else 0):
                if value != now:
                    yield f"{name} {value} at {row}", with_value(algorithm, name, row, value)


def assert_agreement(name: str, mutant: Algorithm) -> None:
    report, right = verify(mutant), oracle_says_right(mutant)
    assert report.ok == right, (
        f"{name}: verify says {report.ok} {report.diagnostics[:2]}, the oracle {right}"
    )


SAMPLES = {
    f"{name}-{n}": algorithm for n in (2, 3, 4) for name, algorithm in all_samples(n).items()
}


@pytest.mark.parametrize("name", SAMPLES)
def test_oracle_accepts_every_sample(name: str) -> None:
    assert oracle_says_right(SAMPLES[name])


@pytest.mark.parametrize("name", [name for name in SAMPLES if name.endswith(("-2", "-3"))])
def test_every_small_mutation_is_caught_or_harmless(name: str) -> None:
    for what, mutant in mutations(SAMPLES[name]):
        assert_agreement(f"{name}, {what}", mutant)


@pytest.mark.parametrize("name", [name for name in SAMPLES if name.endswith("-4")])
def test_small_mutations_of_four_ranks_are_caught_or_harmless(name: str) -> None:
    mutants = list(mutations(SAMPLES[name]))
    # Seeded, so that every run tries the same ones.
    for what, mutant in random.Random(1).sample(mutants, min(60, len(mutants))):
        assert_agreement(f"{name}, {what}", mutant)


@pytest.mark.parametrize(
    "kind", ["no dependency", "swap", "count", "src_offset", "dst_offset", "dst_buffer", "peer"]
)
def test_some_mutation_of_each_kind_is_caught(kind: str) -> None:
    caught = [
        what
        for what, mutant in mutations(ring_all_reduce(3))
        if what.startswith(kind) and not verify(mutant).ok
    ]
    assert caught


@pytest.mark.parametrize(
    "name", [name for name in SAMPLES if name.endswith("-2") and len(SAMPLES[name].steps) <= 8]
)
def test_what_passes_is_right_in_every_schedule(name: str) -> None:
    passed = [mutant for _, mutant in mutations(SAMPLES[name]) if verify(mutant).ok]
    for mutant in [SAMPLES[name], *passed[:5]]:
        for in_place, claimed in (
            (True, mutant.collective.in_place),
            (False, mutant.collective.out_of_place),
        ):
            oracle = Oracle(mutant, in_place)
            assert not claimed or (oracle.match() and oracle.is_right_in_every_schedule())


def test_schedules_of_a_racy_algorithm_differ() -> None:
    columns, (parents, children) = (
        columns_of(ring_all_reduce(2).steps),
        edges_of(ring_all_reduce(2).steps),
    )
    racy = with_steps(ring_all_reduce(2), columns, (parents[:0], children[:0]))
    oracle = Oracle(racy, True)
    assert oracle.match()
    assert not oracle.is_right_in_every_schedule()
    assert not verify(racy).ok


# ---- random algorithms ---------------------------------------------------------------------------


@st.composite
def random_algorithms(draw: st.DrawFn) -> Algorithm:
    """Up to 3 ranks, dependencies and messages at random, most racy or reading undefined units."""
    n = draw(st.integers(1, 3))
    units = draw(st.integers(1, 4))
    builder = StepTableBuilder(n)
    made: list[list[int]] = [[] for _ in range(n)]
    waiting: list[tuple[int, int, int, int]] = []

    def place(side: str, count: int) -> dict[str, int]:
        return {
            f"{side}_buffer": draw(st.integers(0, 2)),
            f"{side}_offset": draw(st.integers(0, units - count)),
        }

    def add(rank: int, kind: StepKind, **values: int) -> None:
        parents = draw(st.lists(st.sampled_from(made[rank]), max_size=2)) if made[rank] else []
        made[rank].append(
            builder.add(
                rank, kind, data=parents, control=(), lane=draw(st.integers(-1, 1)), **values
            )
        )

    for _ in range(draw(st.integers(1, 14))):
        rank, count = draw(st.integers(0, n - 1)), draw(st.integers(1, units))
        kind = draw(st.sampled_from([SEND, SEND, COPY, REDUCE, COMPUTE, RECV]))
        mine = [message for message in waiting if message[1] == rank]
        if kind == SEND and n > 1:
            peer = draw(st.sampled_from([other for other in range(n) if other != rank]))
            channel = draw(st.integers(0, 1))
            add(rank, SEND, peer=peer, channel=channel, count=count, **place("src", count))
            waiting.append((rank, peer, channel, count))
        elif kind == RECV and mine:
            source, _, channel, count = mine[0]
            waiting.remove(mine[0])
            reduces = draw(st.booleans())
            values = place("dst", count) | (place("src", count) if reduces else {})
            add(
                rank,
                RECV_REDUCE if reduces else RECV,
                peer=source,
                channel=channel,
                count=count,
                **values,
            )
        elif kind in (COPY, REDUCE):
            add(rank, kind, count=count, **place("src", count), **place("dst", count))
        elif kind == COMPUTE:
            add(rank, COMPUTE)
    for source, rank, channel, count in waiting:
        add(rank, RECV, peer=source, channel=channel, count=count, **place("dst", count))
    collective = custom_collective(n, units, in_place=draw(st.booleans()))
    return Algorithm(collective, builder.build(), np.full(n, units, np.int64))


@settings(max_examples=200, deadline=None)
@given(random_algorithms())
def test_race_and_undefined_reads_agree_with_the_closure(algorithm: Algorithm) -> None:
    report = verify(algorithm)
    for name, in_place in (("in_place", True), ("out_of_place", False)):
        oracle = Oracle(algorithm, in_place)
        assert oracle.is_well_formed()
        reach = oracle.closure()
        assert not reach.diagonal().any()
        races = oracle.races(reach)
        assert ("race" in report.modes[name].verdict) == bool(races)
        if not races:
            memory, done, undefined = oracle.initial_memory(), set(), False
            while len(done) < len(oracle.rows) and not undefined:
                for number in oracle.ready(done):
                    undefined |= not oracle.execute(number, memory)
                    done.add(number)
            assert (report.modes[name].verdict == "wrong") == undefined


# ---- invariance ----------------------------------------------------------------------------------


MUTANTS = {
    name: [mutant for _, mutant in mutations(SAMPLES[name])][::7]
    for name in (
        "ring-all-reduce-3",
        "all-pairs-all-reduce-3",
        "staged-all-to-all-3",
        "weighted-broadcast-3",
    )
}


def outcome(algorithm: Algorithm) -> dict[str, tuple[bool, bool]]:
    """Whether each mode is right, and whether it races: what no renaming may change."""
    return {
        name: (mode.verdict == "ok", "race" in mode.verdict)
        for name, mode in verify(algorithm).modes.items()
    }


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_verdict_does_not_depend_on_the_numbering_of_ranks(data: st.DataObject) -> None:
    base_name = data.draw(st.sampled_from(["ring-all-reduce-3", "all-pairs-all-reduce-3"]))
    base = SAMPLES[base_name]
    mutant = data.draw(st.sampled_from([base, *MUTANTS[base_name]]))
    new_number = np.asarray(data.draw(st.permutations(range(base.num_ranks))))
    columns = columns_of(mutant.steps)
    columns["rank"] = new_number[columns["rank"]]
    columns["peer"] = np.where(
        columns["peer"] < 0,
        columns["peer"],
        new_number[np.clip(columns["peer"], 0, base.num_ranks - 1)],
    )
    renamed = with_steps(mutant, columns, edges_of(mutant.steps))
    assert outcome(renamed) == outcome(mutant)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_verdict_does_not_depend_on_the_order_of_rows(data: st.DataObject) -> None:
    """Rows may move as long as dependencies point back and each connection keeps its order."""
    base_name = data.draw(
        st.sampled_from(["ring-all-reduce-3", "staged-all-to-all-3", "weighted-broadcast-3"])
    )
    mutant = data.draw(st.sampled_from([SAMPLES[base_name], *MUTANTS[base_name]]))
    steps = mutant.steps
    parents, children = edges_of(steps)
    before: dict[int, set[int]] = {row: set() for row in range(len(steps))}
    for parent, child in zip(parents.tolist(), children.tolist(), strict=True):
        before[child].add(parent)
    last: dict[tuple[int, int, int, bool], int] = {}
    for row in np.flatnonzero(steps.sends | steps.receives).tolist():
        key = (
            int(steps.rank[row]),
            int(steps.peer[row]),
            int(steps.channel[row]),
            bool(steps.sends[row]),
        )
        before[row] |= {last[key]} if key in last else set()
        last[key] = row
    chance, order, placed = random.Random(data.draw(st.integers(0, 1000))), [], set()
    while len(order) < len(steps):
        ready = [row for row in range(len(steps)) if row not in placed and before[row] <= placed]
        order.append(chance.choice(ready))
        placed.add(order[-1])
    position = np.empty(len(order), np.int64)
    position[order] = np.arange(len(order))
    columns = {name: column[order] for name, column in columns_of(steps).items()}
    assert outcome(with_steps(mutant, columns, (position[parents], position[children]))) == outcome(
        mutant
    )


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_any_table_gets_a_report(data: st.DataObject) -> None:
    """Whatever the columns say, `verify` answers; nothing that does not fit is ok."""
    rows = data.draw(st.integers(0, 8))
    huge = st.sampled_from([0, 0, 0, 1, 2, 3, -1, 2**31, 2**62, -(2**63), 2**63 - 1])
    choices = {
        "rank": st.integers(0, 1),
        "kind": st.integers(0, 5),
        "peer": st.integers(-2, 2),
        "channel": st.sampled_from([0, 0, 1, -1, 2**31 - 1]),
        "src_buffer": st.integers(0, 3),
        "src_offset": huge,
        "dst_buffer": st.integers(0, 3),
        "dst_offset": huge,
        "count": huge,
        "lane": st.integers(-1, 1),
    }
    columns = {
        name: np.asarray(data.draw(st.lists(values, min_size=rows, max_size=rows)), np.int64)
        for name, values in choices.items()
    }
    kind = data.draw(
        st.sampled_from(
            [CollectiveKind.ALL_REDUCE, CollectiveKind.ALL_GATHER, CollectiveKind.ALL_TO_ALL]
        )
    )
    collective = Collective(
        kind, 2, data.draw(st.sampled_from([2, 4, 2**40, 2**61])), in_place=True
    )
    scratch = np.asarray([data.draw(st.sampled_from([0, 3, 2**62]))] * 2, np.int64)
    algorithm = Algorithm(collective, StepTable.from_columns(2, columns), scratch)
    report = verify(
        algorithm, fifo_capacity=2, fifo_units=data.draw(st.sampled_from([None, 1, 2**61]))
    )
    assert not report.ok or not algorithm.has_contents


def test_a_cycle_within_a_rank_cannot_be_built() -> None:
    builder = StepTableBuilder(1)
    builder.add(0, COMPUTE, data=[1])
    builder.add(0, COMPUTE, data=[0])
    with pytest.raises(InputError, match="cycle"):
        builder.build()
