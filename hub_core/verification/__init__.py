"""Whether an algorithm does what its collective promises: matching, deadlock, races, contents."""

from hub_core.verification.expectations import parse_expectation
from hub_core.verification.fifo import FifoSafety, fifo_safety
from hub_core.verification.report import ModeReport, VerifyReport
from hub_core.verification.verifier import verify

__all__ = ["FifoSafety", "ModeReport", "VerifyReport", "fifo_safety", "parse_expectation", "verify"]
