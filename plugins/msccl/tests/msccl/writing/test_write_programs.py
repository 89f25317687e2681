"""Random correct programs keep their contents through files for every runtime.

Whatever lanes and channels they have.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from dataclasses import dataclass, field, replace
from types import ModuleType

import numpy as np
import pytest
from collhub_msccl.plugin import ReadOptions, WriteOptions
from collhub_msccl.reading.read_xml import read
from collhub_msccl.writing.write_xml import write
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hub_core.model import (
    Algorithm,
    Buffer,
    HubError,
    StepKind,
    StepTableBuilder,
)
from hub_core.plugin_api import Source
from hub_core.testing import algorithms, promise_of
from hub_core.verification import verify

pytestmark = pytest.mark.once

RANKS, UNITS = 3, 4
RUNTIMES = ("msccl", "executor", "rccl")
Cell = tuple[int, Buffer, int]


@dataclass
class RandomMoves:
    """Moves in one order, with the dependencies that memory asks for, and what they should do."""

    builder: StepTableBuilder = field(default_factory=lambda: StepTableBuilder(RANKS))
    writers: dict[Cell, int] = field(default_factory=dict)
    readers: dict[Cell, list[int]] = field(default_factory=dict)
    held: dict[Cell, Counter[tuple[int, int]]] = field(
        default_factory=lambda: {
            (rank, Buffer.INPUT, unit): Counter({(rank, unit): 1})
            for rank in range(RANKS)
            for unit in range(UNITS)
        }
    )

    def step(self, kind: StepKind, source: list[Cell], target: list[Cell], **values: int) -> None:
        rank = (source or target)[0][0]
        parents = {self.writers[cell] for cell in source + target if cell in self.writers}
        parents |= {reader for cell in target for reader in self.readers.get(cell, ())}
        for side, cells in (("src", source), ("dst", target)):
            if cells:
                values |= {f"{side}_buffer": cells[0][1], f"{side}_offset": cells[0][2]}
        row = self.builder.add(
            rank, kind, data=sorted(parents), count=len(source or target), **values
        )
        for cell in source:
            self.readers.setdefault(cell, []).append(row)
        for cell in target:
            self.writers[cell], self.readers[cell] = row, []

    def move(
        self, source: list[Cell], target: list[Cell], operand: list[Cell], channel: int, lane: int
    ) -> None:
        """Copy or send; with `operand` the sum of both is stored."""
        sums = [self.held[cell].copy() for cell in source]
        if operand:
            sums = [held + self.held[cell] for held, cell in zip(sums, operand, strict=True)]
        if source[0][0] == target[0][0]:
            self.step(StepKind.REDUCE if operand else StepKind.COPY, source, target, lane=lane)
        else:
            self.step(StepKind.SEND, source, [], peer=target[0][0], channel=channel, lane=lane)
            kind = StepKind.RECV_REDUCE if operand else StepKind.RECV
            self.step(kind, operand, target, peer=source[0][0], channel=channel, lane=lane)
        self.held |= dict(zip(target, sums, strict=True))

    def algorithm(self) -> Algorithm:
        promise = promise_of(self.held, RANKS, UNITS)
        return Algorithm(promise, self.builder.build(), np.full(RANKS, UNITS, np.int64))


def _cells(place: Cell, count: int) -> list[Cell]:
    rank, buffer, start = place
    return [(rank, buffer, unit) for unit in range(start, min(start + count, UNITS))]


places = st.tuples(
    st.integers(0, RANKS - 1), st.sampled_from(list(Buffer)[:3]), st.integers(0, UNITS - 1)
)
moves = st.tuples(
    places,
    places,
    st.integers(1, 3),
    st.sampled_from(["", "same", "other"]),
    st.integers(0, 1),
    st.integers(0, 3),
)


@st.composite
def programs(draw: st.DrawFn) -> Algorithm:
    """A correct algorithm with lanes or without, reductions into the operand's place or another."""
    program, has_lanes = RandomMoves(), draw(st.booleans())
    for start, end, count, adds, channel, lane in draw(st.lists(moves, min_size=3, max_size=24)):
        source, target = _cells(start, count), _cells(end, count)
        length = min(len(source), len(target))
        source, target = source[:length], target[:length]
        operand: list[Cell] = []
        if adds:
            is_local = start[0] == end[0]
            place = end if is_local or adds == "same" else (end[0], Buffer.INPUT, 0)
            operand = _cells(place, length)
        known = all(cell in program.held for cell in source + operand) and len(operand) in (
            0,
            length,
        )
        apart = set(source).isdisjoint(target) and (
            operand == target or set(operand).isdisjoint(target)
        )
        if (
            known
            and apart
            and max((max(program.held[cell].values()) for cell in source + operand), default=0) < 20
        ):
            program.move(source, target, operand, channel, lane if has_lanes else -1)
    found = program.algorithm()
    assert verify(found).modes["out_of_place"].verdict == "ok"
    in_place = verify(found).modes["in_place"].verdict == "ok" and draw(st.booleans())
    return replace(found, collective=replace(found.collective, in_place=in_place))


def _outputs(algorithm: Algorithm) -> dict[tuple[int, int], Counter[tuple[int, int]]]:
    contract = algorithm.collective.contract
    assert contract is not None
    assert contract.expected is not None
    found: dict[tuple[int, int], Counter[tuple[int, int]]] = {}
    expected = contract.expected
    columns = (expected.rank, expected.offset, expected.source_rank, expected.source_unit)
    for rank, offset, *contribution in zip(*(column.tolist() for column in columns), strict=True):
        found.setdefault((rank, offset), Counter())[tuple(contribution)] += 1
    return found


@pytest.mark.parametrize("runtime", RUNTIMES)
@settings(
    max_examples=40, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)
@given(program=programs(), channels=st.sampled_from([None, 1, 3, 32]))
def test_random_program_keeps_its_contents(
    loaders: ModuleType, runtime: str, program: Algorithm, channels: int | None
) -> None:
    name = "custom" if runtime == "msccl" else "allreduce"
    options = WriteOptions(runtime, collective=name, channels=channels)
    contract = program.collective.contract
    assert contract is not None
    (artifact,) = write(program, options).artifacts
    text = artifact.content()
    assert loaders.refusals(text.decode(), runtime) == []
    back = read(Source.of_bytes("random.xml", text), ReadOptions())
    report = verify(back, expected=contract.expected)
    assert report.ok, report.diagnostics
    for in_place in (True, False):
        if (program.collective.in_place, program.collective.out_of_place)[not in_place] and (
            runtime != "msccl" or in_place == back.collective.in_place
        ):
            machine = loaders.run(text.decode(), in_place, 2)
            outputs = _outputs(program)
            assert {
                place: machine.cells[machine.cell(place[0], "o", place[1])] for place in outputs
            } == outputs


@settings(max_examples=40)
@given(algorithm=algorithms(max_steps=20), runtime=st.sampled_from(RUNTIMES))
def test_any_algorithm_is_written_or_refused_with_a_reason(
    loaders: ModuleType, algorithm: Algorithm, runtime: str
) -> None:
    with contextlib.suppress(HubError):
        (artifact,) = write(algorithm, WriteOptions(runtime)).artifacts
        assert loaders.refusals(artifact.content().decode(), runtime) == []
