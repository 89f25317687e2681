"""Lower bounds of the search: below all that is reachable, and high enough to prune."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import cast

import pytest
from adam import adam
from attention_parallel import ring_attention
from collhub_coconet import REPLICATED, Binding, ElementType, Kind, Operation, Program, TensorType
from collhub_coconet.search.bounds import ProgramBound, _BoundCalculation
from collhub_coconet.search.collective_times import FormulaTimes, Rates
from collhub_coconet.search.cost_models import FormulaModel
from collhub_coconet.search.explore import explore
from collhub_coconet.transformations.moves import TRANSFORMATIONS
from flat_programs import momentum
from moe import moe
from transformer_blocks import attention, pipeline_boundary

# The V100s of CoCoNet's measurements.
RATES = Rates(90e12, 765e9, 130.5e9, 0.0, 5e-6)
# Links of a switch, and slow ones of a ring on which latency counts.
MACHINES = [RATES, Rates(90e12, 765e9, 5e9, 2e-6, 1e-6, is_any_to_any=False)]
EXAMPLES = [momentum, attention, pipeline_boundary, moe, ring_attention]


class Blind(FormulaModel):
    """A model that bounds nothing, so that a search looks at every program."""

    def bound(self, program: Program, binding: Binding, kinds: Sequence[str]) -> ProgramBound:
        return ProgramBound(0.0, 0)


def small_and_large(program: Program) -> list[Binding]:
    """Each size within its bounds, once small and once large."""
    found = []
    for size in (24, 4096):
        numbers = {name: max(low, min(high, size)) for name, (low, high) in program.sizes.items()}
        found.append(Binding(4, numbers))
    return found


@pytest.mark.parametrize("rates", MACHINES, ids=["switch", "ring"])
@pytest.mark.parametrize("make", EXAMPLES)
def test_no_program_falls_below_the_bound_of_one_before_it(
    make: Callable[[], Program], rates: Rates
) -> None:
    bindings = small_and_large(make())
    model = FormulaModel(rates)
    for one in explore(make(), bindings, Blind(rates), 150).candidates:
        last = ["split", *(step.record.transformation for step in one.steps)]
        for before, kind in zip([make(), *(step.program for step in one.steps)], last, strict=True):
            kinds = TRANSFORMATIONS[TRANSFORMATIONS.index(kind) :]
            for place, binding in enumerate(bindings):
                least = model.bound(before, binding, kinds)
                assert least.seconds <= one.timings[place].seconds * (1 + 1e-9)
                assert least.peak_bytes <= one.peaks[place]


@pytest.mark.parametrize("make", EXAMPLES)
def test_bounds_cost_no_program_of_the_front(make: Callable[[], Program]) -> None:
    bindings = small_and_large(make())
    pruned = explore(make(), bindings, FormulaModel(RATES), 4000)
    whole = explore(make(), bindings, Blind(RATES), 4000)
    assert pruned.is_complete
    assert whole.is_complete
    for place in range(len(bindings)):
        fronts = [
            [(each.timings[place].seconds, each.peaks[place]) for each in one.pareto_front(place)]
            for one in (pruned, whole)
        ]
        assert fronts[0] == fronts[1]


@pytest.mark.once
def test_optimizer_is_searched_to_the_end() -> None:
    # Without bounds Adam has 1607 programs: counted once.
    found = explore(adam(), [Binding(16, {"N": 2**20})], FormulaModel(RATES), 1000)
    assert found.is_complete
    assert found.pruned > found.expanded
    assert {one.family for one in found.fastest(0).program.stages} >= {"RS-C-AG"}


def test_outputs_that_read_no_value_stay_replicated() -> None:
    operation = Operation("x", Kind.ADD, (1.0, 2.0))
    kind = TensorType(ElementType.FLOAT32, (), REPLICATED)
    program = SimpleNamespace(
        operations=(),
        by_name={"x": operation},
        types={"x": kind},
        outputs=("x",),
        states={},
        mesh=("x",),
    )
    calculation = _BoundCalculation(
        cast(Program, program),
        Binding(4, {}),
        RATES,
        frozenset({"reorder"}),
        FormulaTimes(RATES),
    )
    assert calculation._stays_replicated("x")
