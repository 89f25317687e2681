"""Random correct programs compose to correct programs, whatever modes of calling they claim."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from collhub_compose import embed, relabel, replicate, sequential
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hub_core.model.algorithm import Algorithm
from hub_core.model.kinds import Buffer, StepKind
from hub_core.model.steps import StepTableBuilder
from hub_core.testing import promise_of
from hub_core.verification import verify

pytestmark = pytest.mark.once

RANKS, UNITS = 3, 2
Place = tuple[int, Buffer, int]


@dataclass
class CheckedProgram:
    """Steps that run in turn within a rank, beside a plain interpretation: what units hold."""

    builder: StepTableBuilder = field(default_factory=lambda: StepTableBuilder(RANKS))
    last: dict[int, int] = field(default_factory=dict)
    held: dict[Place, Counter[tuple[int, int]]] = field(
        default_factory=lambda: {
            (rank, Buffer.INPUT, unit): Counter({(rank, unit): 1})
            for rank in range(RANKS)
            for unit in range(UNITS)
        }
    )

    def step(
        self, rank: int, kind: StepKind, source: Place | None, target: Place | None, **values: int
    ) -> None:
        for side, place in (("src", source), ("dst", target)):
            if place is not None:
                values |= {f"{side}_buffer": place[1], f"{side}_offset": place[2]}
        self.last[rank] = self.builder.add(
            rank, kind, data=[self.last[rank]] if rank in self.last else [], count=1, **values
        )

    def move(self, source: Place, target: Place, adds: bool, channel: int) -> None:
        """Copy or send one unit; `adds`: onto what the target holds."""
        local = source[0] == target[0]
        if local:
            self.step(source[0], StepKind.REDUCE if adds else StepKind.COPY, source, target)
        else:
            self.step(source[0], StepKind.SEND, source, None, peer=target[0], channel=channel)
            kind = StepKind.RECV_REDUCE if adds else StepKind.RECV
            self.step(
                target[0], kind, target if adds else None, target, peer=source[0], channel=channel
            )
        self.held[target] = self.held[source] + (self.held[target] if adds else Counter())

    def algorithm(self) -> Algorithm:
        promise = promise_of(self.held, RANKS, UNITS)
        return Algorithm(promise, self.builder.build(), np.full(RANKS, UNITS, np.int64))


places = st.tuples(
    st.integers(0, RANKS - 1), st.sampled_from(list(Buffer)[:3]), st.integers(0, UNITS - 1)
)


@st.composite
def programs(draw: st.DrawFn) -> Algorithm:
    """A correct algorithm that writes every unit of OUTPUT.

    Its claims are those modes that it may claim, or one of them.
    """
    program = CheckedProgram()
    for source, target, adds, channel in draw(
        st.lists(
            st.tuples(places, places, st.booleans(), st.integers(0, 1)), min_size=3, max_size=10
        )
    ):
        if source in program.held and source != target:
            program.move(source, target, adds and target in program.held, channel)
    for rank in range(RANKS):
        for unit in range(UNITS):
            if (rank, Buffer.OUTPUT, unit) not in program.held:
                program.move((rank, Buffer.INPUT, unit), (rank, Buffer.OUTPUT, unit), False, 0)
    found = program.algorithm()
    assume(max(max(contents.values()) for contents in program.held.values()) < 50)
    modes = verify(found).modes
    assert modes["out_of_place"].verdict == "ok"
    in_place = modes["in_place"].verdict == "ok"
    claims = (
        draw(st.sampled_from([(False, True), (True, True), (True, False)]))
        if in_place
        else (False, True)
    )
    return replace(
        found, collective=replace(found.collective, in_place=claims[0], out_of_place=claims[1])
    )


@settings(max_examples=40)
@given(programs(), programs())
def test_sequence_of_correct_programs_is_correct(one: Algorithm, other: Algorithm) -> None:
    report = verify(sequential([one, other]))
    assert report.ok, report.diagnostics


@settings(max_examples=50)
@given(programs(), st.booleans())
def test_copies_of_a_correct_program_are_correct(program: Algorithm, interleaved: bool) -> None:
    report = verify(replicate(program, 3, interleaved))
    assert report.ok, report.diagnostics


@settings(max_examples=50)
@given(programs(), st.permutations(range(RANKS)), st.permutations(range(5)))
def test_correct_program_is_correct_on_other_ranks(
    program: Algorithm, order: list[int], wide: list[int]
) -> None:
    for moved in (relabel(program, order), embed(program, wide[:RANKS], 5)):
        report = verify(moved)
        assert report.ok, report.diagnostics
