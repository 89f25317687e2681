"""Comparisons as `compare` and `tune` run them: on which engine, from which cache, how shown."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from hub_core import (
    CommandContext,
    assign,
    number_option,
    offer_option,
    timeout_option,
)
from hub_core.model import UsageError
from hub_core.plugin_api import Engine, EngineRequest, Option, Simulator

if TYPE_CHECKING:
    from collhub_tuning.comparison_report import ComparisonOutcome
    from collhub_tuning.questions import ComparedAlgorithm, ComparisonQuestion
    from collhub_tuning.sweep import Measuring
    from hub_core.network import Topology

Function = TypeVar("Function", bound=Callable[..., object])
Compare = Callable[["ComparisonQuestion", "Topology"], "ComparisonOutcome"]
OptionsBySide = dict[str, dict[str, str]]
_OWN_ENGINE = "processes"
_SCHEDULER = "scheduler"
_OPTIONS = (
    offer_option("--backend", Simulator, "The simulator that times them.", "analytical"),
    number_option(
        "--jobs", "N", "Algorithms at once (default: one a core, or all workers of an engine)."
    ),
    offer_option(
        "--engine",
        Engine,
        "What runs them at once; its options are given as -O key=value.",
        _OWN_ENGINE,
    ),
    click.option(
        "--scheduler",
        metavar="ADDRESS",
        help="The running cluster of an engine that has one, short for -O scheduler=ADDRESS.",
    ),
    timeout_option,
    click.option("--no-cache", is_flag=True, help="Measure anew, and keep nothing."),
)


def comparison_options(function: Function) -> Function:
    """How comparisons run: `--backend` to `--no-cache`, kept for `comparisons`."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def side_of(name: str) -> str:
    """What options call an offer in `side.key=value`, as `assign` spells it."""
    return name.replace("-", "_")


def options_by_side(
    context: CommandContext, asked: Mapping[str, Any], others: Mapping[str, Sequence[Option]]
) -> OptionsBySide:
    """The options `-O` of the engine that is named and of `others`, by side as `assign` has them.

    Raises `UsageError` for one that nobody declares.
    """
    name = asked["engine"]
    declared = context.options_of(Engine, name)
    side = side_of(name)
    assignments = dict(asked["assignments"])
    if asked[_SCHEDULER] is not None:
        if _SCHEDULER not in [one.name for one in declared]:
            raise _no_scheduler(context, name)
        assignments[f"{side}.{_SCHEDULER}"] = asked[_SCHEDULER]
    return assign(assignments, {side: declared, **others})


@contextmanager
def comparisons(
    context: CommandContext,
    asked: Mapping[str, Any],
    algorithms: Sequence[ComparedAlgorithm],
    options: OptionsBySide,
) -> Iterator[Compare]:
    """What compares the algorithms for a question on a network, from the cache where it is known.

    `asked`: of `comparison_options`. Workers that it starts end with the context.
    """
    # Imported here: the help of the commands needs no numpy.
    import hub_core
    from collhub_tuning.comparison_report import ComparisonOutcome
    from collhub_tuning.installation import installation_versions
    from collhub_tuning.result_cache import ResultCache, cache_folder
    from collhub_tuning.sweep import compared

    folder = None if asked["no_cache"] else cache_folder(os.environ)
    versions = {} if folder is None else installation_versions(context.registry())
    defects: list[str] = []

    def compare(question: ComparisonQuestion, topology: Topology) -> ComparisonOutcome:
        cache = ResultCache(folder, hub_core.topology_to_json(topology), versions)
        what = f"{question.kind} on {topology.name}: comparing {len(algorithms)} algorithms"

        def measure() -> ComparisonOutcome:
            with context.progress_bar(what) as progress:
                found = compared(
                    algorithms,
                    question,
                    cache,
                    measuring=measuring,
                    progress=progress,
                    network=topology,
                )
            cuts = tuple(cut for one in found for cut in one.cuts)
            return ComparisonOutcome(question, topology, found, context.registry(), cuts)

        outcome = measure()
        # A cached time that beats a proven bound is wrong: it is measured again.
        if cache.distrust(outcome.defects_by_algorithm):
            outcome = measure()
        defects.append(cache.defect)
        return outcome

    with _measuring(context, asked, len(algorithms), options) as measuring:
        yield compare
    for defect in filter(None, dict.fromkeys(defects)):
        context.say(f"results are not kept: {defect}")


def _measuring(
    context: CommandContext, asked: Mapping[str, Any], count: int, options: OptionsBySide
) -> Measuring:
    """Where `count` algorithms are measured. Raises `HubError` for an engine that is not there."""
    import hub_core
    from collhub_tuning.sweep import Measuring

    name, registry = asked["engine"], context.registry()
    budget = asked["budget"]
    shares_files = registry.find(Engine, name).offer.shares_files
    if name == _OWN_ENGINE:
        return Measuring(
            min(asked["jobs"] or os.cpu_count() or 1, count), budget, registry=registry
        )

    def start(workers: int, task_timeout_s: float | None) -> Executor:
        request = EngineRequest(workers, task_timeout_s)
        given = options[side_of(name)]
        return hub_core.start_engine(name, request, options=given, registry=registry)

    # How many it has is known to the engine: no more than there are tasks.
    return Measuring(min(asked["jobs"] or count, count), budget, start, shares_files, registry)


def _no_scheduler(context: CommandContext, engine: str) -> UsageError:
    """The error for an engine without a cluster, with those that have one."""
    able = [
        found.name
        for found in context.registry().all(Engine)
        if _SCHEDULER in [one.name for one in context.options_of(Engine, found.name)]
    ]
    cure = f"give --engine {' or '.join(able)}" if able else "no engine that is installed has one"
    return UsageError(f"the engine {engine} has no --scheduler", cure=cure)
