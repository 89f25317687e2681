"""Whether an algorithm does what its collective promises: matching, deadlock, races, contents."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hub_core.public_names import names_from

if TYPE_CHECKING:
    from hub_core.verification.conflicts import adjacent_conflicts
    from hub_core.verification.expectations import parse_expectation
    from hub_core.verification.fifo import FifoSafety, fifo_safety
    from hub_core.verification.happens_before import (
        HappensBefore,
        find_cycle,
        happens_before,
        order_with,
        report_deadlock,
        sequential_positions,
    )
    from hub_core.verification.reachability import unordered_pairs
    from hub_core.verification.regions import (
        READING,
        WRITING,
        Regions,
        check_regions,
        common_unit,
        find_regions,
    )
    from hub_core.verification.report import ModeReport, VerifyReport
    from hub_core.verification.verifier import verify

__all__ = [
    "READING",
    "WRITING",
    "FifoSafety",
    "HappensBefore",
    "ModeReport",
    "Regions",
    "VerifyReport",
    "adjacent_conflicts",
    "check_regions",
    "common_unit",
    "fifo_safety",
    "find_cycle",
    "find_regions",
    "happens_before",
    "order_with",
    "parse_expectation",
    "report_deadlock",
    "sequential_positions",
    "unordered_pairs",
    "verify",
]

_HOMES = {
    "hub_core.verification.conflicts": "adjacent_conflicts",
    "hub_core.verification.expectations": "parse_expectation",
    "hub_core.verification.fifo": "FifoSafety fifo_safety",
    "hub_core.verification.happens_before": (
        "HappensBefore find_cycle happens_before order_with report_deadlock sequential_positions"
    ),
    "hub_core.verification.reachability": "unordered_pairs",
    "hub_core.verification.regions": (
        "READING Regions WRITING check_regions common_unit find_regions"
    ),
    "hub_core.verification.report": "ModeReport VerifyReport",
    "hub_core.verification.verifier": "verify",
}

__getattr__ = names_from(__name__, _HOMES)
