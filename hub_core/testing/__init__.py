"""Tools with which third parties test their plugins: samples, conformance rules, strategies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hub_core.columns import names_from

if TYPE_CHECKING:
    from hub_core.testing.conformance import (
        RULES,
        Rule,
        RuleResult,
        Verdict,
        check_plugin,
        check_rule,
    )
    from hub_core.testing.conversion_table import Conversion, Outcome, conversions, validate_all
    from hub_core.testing.document_examples import check_examples
    from hub_core.testing.reference_results import check_cabling, check_routes, check_subset
    from hub_core.testing.sample_builders import CustomSteps, custom_collective, promise_of
    from hub_core.testing.samples import (
        all_pairs_all_reduce,
        all_samples,
        binomial_broadcast,
        binomial_reduce,
        direct_all_to_all,
        direct_gather,
        direct_scatter,
        flooding_exchange,
        halving_doubling_all_reduce,
        ring_all_gather,
        ring_all_reduce,
        ring_reduce_scatter,
        shift_to_next,
        staged_all_to_all,
        uneven_all_gather,
        uneven_all_to_all,
        weighted_broadcast,
    )
    from hub_core.testing.selection_checks import sample_selection, selected
    from hub_core.testing.strategies import (
        algorithms,
        collectives,
        json_values,
        some_npus,
        step_tables,
    )
    from hub_core.testing.workloads import pipeline, sample_workloads, training_step

__all__ = [
    "RULES", "Conversion", "CustomSteps", "Outcome", "Rule", "RuleResult", "Verdict", "algorithms",
    "all_pairs_all_reduce", "all_samples", "binomial_broadcast", "binomial_reduce",
    "check_cabling", "check_examples", "check_plugin", "check_routes", "check_rule",
    "check_subset", "collectives", "conversions", "custom_collective", "direct_all_to_all",
    "direct_gather", "direct_scatter", "flooding_exchange", "halving_doubling_all_reduce",
    "json_values",
    "pipeline", "promise_of", "ring_all_gather", "ring_all_reduce", "ring_reduce_scatter",
    "sample_selection", "sample_workloads", "selected", "shift_to_next", "some_npus",
    "staged_all_to_all", "step_tables", "training_step", "uneven_all_gather",
    "uneven_all_to_all", "validate_all", "weighted_broadcast",
]  # fmt: skip

_HOMES = {
    "hub_core.testing.conformance": "RULES Rule RuleResult Verdict check_plugin check_rule",
    "hub_core.testing.sample_builders": "CustomSteps custom_collective promise_of",
    "hub_core.testing.conversion_table": "Conversion Outcome conversions validate_all",
    "hub_core.testing.document_examples": "check_examples",
    "hub_core.testing.reference_results": "check_cabling check_routes check_subset",
    "hub_core.testing.samples": (
        "all_pairs_all_reduce all_samples binomial_broadcast binomial_reduce "
        "direct_all_to_all direct_gather direct_scatter flooding_exchange "
        "halving_doubling_all_reduce "
        "ring_all_gather ring_all_reduce ring_reduce_scatter shift_to_next staged_all_to_all "
        "uneven_all_gather uneven_all_to_all weighted_broadcast"
    ),
    "hub_core.testing.selection_checks": "sample_selection selected",
    "hub_core.testing.workloads": "pipeline sample_workloads training_step",
    "hub_core.testing.strategies": "algorithms collectives json_values some_npus step_tables",
}

__getattr__ = names_from(__name__, _HOMES)
