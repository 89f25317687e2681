"""Every plan that a test of this plugin writes is run in the model of the executor."""

from written_plans import every_written_plan_runs, known_plans

__all__ = ["every_written_plan_runs", "known_plans"]
