"""Verify that an algorithm performs its collective: matching, deadlock, races, contents."""

from __future__ import annotations

from hub_core.verification.fifo import FifoBuffers
from hub_core.verification.reachability import unordered_in
from hub_core.verification.regions import (
    Regions,
    adjacent_conflicts,
    check_regions,
    common_unit,
    find_regions,
    in_largest_units,
)
from hub_core.verification.report import (
    ModeReport,
    VerificationInput,
    VerifyReport,
    parse_expectation,
)
from hub_core.verification.step_order import (
    HappensBefore,
    OrderGraph,
    describe_cycle,
    find_cycle,
    happens_before,
    order_with,
    report_deadlock,
    sequential_positions,
)
from hub_core.verification.verifier import verify, verify_input

__all__ = [
    "FifoBuffers",
    "HappensBefore",
    "ModeReport",
    "OrderGraph",
    "Regions",
    "VerificationInput",
    "VerifyReport",
    "adjacent_conflicts",
    "check_regions",
    "common_unit",
    "describe_cycle",
    "find_cycle",
    "find_regions",
    "happens_before",
    "in_largest_units",
    "order_with",
    "parse_expectation",
    "report_deadlock",
    "sequential_positions",
    "unordered_in",
    "verify",
    "verify_input",
]  # fmt: skip
