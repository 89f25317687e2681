"""The offer `WorkloadGenerator`: a job is made from the numbers of a model, not read."""

from __future__ import annotations

from dataclasses import dataclass

from hub_core.plugin_api.options import NoOptions
from hub_core.plugin_api.references import Reference


@dataclass(frozen=True, slots=True)
class WorkloadGenerator:
    """Producer: `generate(options) -> Workload`, run by `collhub generate`.

    Equal options make equal jobs, which pass every check. Options that fit no job are refused with
    a `UsageError` that names them. `searches`: it may search for the best job; `generate` is then
    given `budget: SearchBudget` behind its options, and records in it what a limit has cut.
    """

    name: str
    description: str
    generate: Reference
    options: type = NoOptions
    searches: bool = False
