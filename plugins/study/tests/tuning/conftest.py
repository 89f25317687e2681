"""Plans for MSCCL++ that a test of tuning writes are run in the model of its executor."""

import importlib.util

if importlib.util.find_spec("collhub_mscclpp") is not None:
    from written_plans import every_written_plan_runs, known_plans

    __all__ = ["every_written_plan_runs", "known_plans"]
