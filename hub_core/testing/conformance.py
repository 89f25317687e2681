"""The conformance kit: checks as data, run alike by `collhub plugins check` and by pytest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from hub_core.installed import canonical_name
from hub_core.model.diagnostics import PluginError
from hub_core.plugin_api.algorithm_pass import AlgorithmPass
from hub_core.plugin_api.check import Check
from hub_core.plugin_api.command import Command
from hub_core.plugin_api.engine import Engine
from hub_core.plugin_api.executor import Executor
from hub_core.plugin_api.lower_bound import LowerBound
from hub_core.plugin_api.offers import Offer
from hub_core.plugin_api.reader import FormatReader
from hub_core.plugin_api.selection_writer import SelectionWriter
from hub_core.plugin_api.simulator import Simulator
from hub_core.plugin_api.synthesizer import Synthesizer
from hub_core.plugin_api.topology_builder import TopologyBuilder
from hub_core.plugin_api.topology_reader import TopologyReader
from hub_core.plugin_api.topology_writer import TopologyWriter
from hub_core.plugin_api.workload_generator import WorkloadGenerator
from hub_core.plugin_api.workload_simulator import WorkloadSimulator
from hub_core.plugin_api.workload_writer import WorkloadWriter
from hub_core.plugin_api.writer import FormatWriter
from hub_core.registry.border import reason_of
from hub_core.registry.discovery import discover
from hub_core.registry.plugins import Plugin, PluginState, Registry
from hub_core.testing import (
    conversion_table,
    format_checks,
    loading_checks,
    selection_checks,
    synthesis_checks,
    work_checks,
    workload_checks,
)
from hub_core.testing.checked_plugin import CheckedPlugin, Skip
from hub_core.testing.probe import trial

# One fault often shows on every sample: the first lines tell it.
_MOST_PROBLEMS = 8

Kinds = tuple[type[Offer], ...]


class Verdict(StrEnum):
    """Outcome of a check; SKIPPED says why there was nothing to check."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule for plugins: the function yields a line for every way in which the rule is broken.

    It yields `Skip` for an offer that it could not check. `kinds`: the kinds of offers that the
    rule is about, empty for every plugin.
    """

    name: str
    text: str
    run: Callable[[CheckedPlugin], Iterable[str | Skip]]
    kinds: Kinds = ()


@dataclass(frozen=True, slots=True)
class RuleResult:
    """What became of one check.

    The problems where it failed, and the reasons why something was not checked.
    """

    rule: Rule
    verdict: Verdict
    details: tuple[str, ...] = ()


_FORMATS = (FormatReader, FormatWriter, TopologyReader)
_READERS = (FormatReader, TopologyReader)
_CONVERTED = (*_FORMATS, TopologyWriter, WorkloadWriter)
_WORKERS = (Simulator, Executor, AlgorithmPass, Check)

_RULES_BY_KINDS: tuple[tuple[Callable[[CheckedPlugin], Iterable[str | Skip]], Kinds], ...] = (
    (loading_checks.loads_quietly, ()),
    (loading_checks.offers_something, ()),
    (loading_checks.requirements_are_met, ()),
    (loading_checks.imports_lightly, ()),
    (loading_checks.replaces_nothing, ()),
    (loading_checks.references_resolve, ()),
    (format_checks.readers_read_samples, _READERS),
    (format_checks.bad_input_is_refused, _READERS),
    (format_checks.writers_write_samples, (FormatWriter,)),
    (format_checks.writers_are_deterministic, (FormatWriter,)),
    (format_checks.writers_keep_their_input, (FormatWriter,)),
    (format_checks.losses_are_honest, (FormatWriter,)),
    (conversion_table.conversions_are_honest, _CONVERTED),
    (format_checks.formats_leave_the_system_alone, _FORMATS),
    (work_checks.simulators_simulate, (Simulator,)),
    (synthesis_checks.synthesizers_synthesize, (Synthesizer,)),
    (work_checks.executors_compute, (Executor,)),
    (work_checks.passes_keep_the_promise, (AlgorithmPass,)),
    (work_checks.checks_answer, (Check,)),
    (work_checks.builders_build_their_example, (TopologyBuilder,)),
    (work_checks.topologies_come_back, (TopologyWriter,)),
    (selection_checks.selections_come_back, (SelectionWriter,)),
    (work_checks.commands_are_click_commands, (Command,)),
    (work_checks.engines_run_tasks, (Engine,)),
    (work_checks.bounds_hold, (LowerBound,)),
    (workload_checks.workloads_come_back, (WorkloadWriter,)),
    (workload_checks.workload_simulators_simulate, (WorkloadSimulator,)),
    (workload_checks.workload_generators_generate, (WorkloadGenerator,)),
    (workload_checks.workload_passes_keep_jobs_correct, (AlgorithmPass,)),
    (work_checks.work_is_silent, _WORKERS),
)


def _rule(run: Callable[[CheckedPlugin], Iterable[str | Skip]], kinds: Kinds) -> Rule:
    """The rule by its function: the docstring is what people read, on one line."""
    name = run.__name__.replace("_", "-")
    words = (run.__doc__ or "").split()
    return Rule(name, " ".join(words), run, kinds)


RULES: tuple[Rule, ...] = tuple(_rule(run, kinds) for run, kinds in _RULES_BY_KINDS)
"""Every rule, in the order in which results are shown."""


def check_plugin(name: str, registry: Registry | None = None) -> tuple[RuleResult, ...]:
    """Run every check on an installed plugin.

    A plugin that is absent or not loaded fails every check.
    """
    registry = registry or registry_for(name)
    return tuple(check_rule(rule, name, registry) for rule in RULES)


def registry_for(name: str) -> Registry:
    """All installed plugins; that of the name only where another process survives its import."""

    def admission(plugin: Plugin) -> str | None:
        names = canonical_name(plugin.name), canonical_name(plugin.distribution)
        return trial(plugin.name).reason if canonical_name(name) in names else None

    return discover(admission=admission)


def check_rule(rule: Rule, name: str, registry: Registry) -> RuleResult:
    """Run one check. Whatever the plugin raises is a problem, not an end."""
    try:
        plugin = registry.plugin(name)
    except PluginError as error:
        return RuleResult(rule, Verdict.FAILED, (str(error),))
    status = plugin.status
    if status.state is not PluginState.LOADED:
        problem = f"{plugin} is {status.state}: {status.reason}"
        return RuleResult(rule, Verdict.FAILED, (problem,))
    if not _num_subjects(rule, plugin):
        reason = "the plugin offers nothing of this kind"
        return RuleResult(rule, Verdict.SKIPPED, (reason,))
    return _judged(rule, CheckedPlugin(plugin, registry))


def _num_subjects(rule: Rule, plugin: Plugin) -> int:
    """How many offers a rule is about: 1 for a rule about the plugin as a whole."""
    if not rule.kinds:
        return 1
    return sum(isinstance(offer, rule.kinds) for offer in plugin.offers)


def _judged(rule: Rule, subject: CheckedPlugin) -> RuleResult:
    """Problems and skips of one rule as its result."""
    problems, skips = _found(rule, subject)
    unchecked = [f"not checked: {reason}" for reason in skips]
    details = (*_shortened(problems), *unchecked)
    if problems:
        return RuleResult(rule, Verdict.FAILED, details)
    # Passed as soon as one offer could be checked; each that could not gives one reason.
    is_unchecked = len(skips) >= _num_subjects(rule, subject.plugin)
    verdict = Verdict.SKIPPED if is_unchecked else Verdict.PASSED
    return RuleResult(rule, verdict, details)


def _found(rule: Rule, subject: CheckedPlugin) -> tuple[list[str], list[str]]:
    """What a rule yields: problems, and reasons why something was not checked."""
    problems: list[str] = []
    skips: list[str] = []
    try:
        for found in rule.run(subject):
            if isinstance(found, Skip):
                skips.append(found.reason)
            else:
                problems.append(found)
    except KeyboardInterrupt:
        raise
    # A plugin may raise, or exit with, anything.
    except BaseException as error:
        problems.append(reason_of(error))
    return problems, skips


def _shortened(problems: Sequence[str]) -> tuple[str, ...]:
    """The first problems, and how many more there are."""
    # One mistake may show in every sample.
    hidden = len(problems) - _MOST_PROBLEMS
    if hidden <= 0:
        return tuple(problems)
    return (*problems[:_MOST_PROBLEMS], f"and {hidden} more")
