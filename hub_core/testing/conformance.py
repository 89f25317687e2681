"""The conformance kit: the table of rules, and functions that run them on a plugin."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

from hub_core.installed import canonical_name
from hub_core.model.diagnostics import PluginError
from hub_core.plugin_api.formats import (
    FormatReader,
    FormatWriter,
    TopologyBuilder,
    TopologyReader,
    TopologyWriter,
    WorkloadGenerator,
    WorkloadWriter,
)
from hub_core.plugin_api.measurements import MeasurementReader
from hub_core.plugin_api.offers import Command, Offer
from hub_core.plugin_api.outputs import SelectionWriter
from hub_core.plugin_api.runs import Executor, Simulator, WorkloadSimulator
from hub_core.plugin_api.subjects import AlgorithmPass, Check
from hub_core.plugin_api.synthesis import Engine, LowerBound, Synthesizer
from hub_core.registry.bind_options import reason_of
from hub_core.registry.discovery import discover
from hub_core.registry.plugins import Plugin, PluginState, Registry
from hub_core.testing import (
    conversion_table,
    format_checks,
    loading_checks,
    selection_checks,
    synthesis_checks,
    work_checks,
    workloads,
)
from hub_core.testing.checked_plugin import CheckedPlugin, Skip
from hub_core.testing.probe import trial

# One fault often appears for every sample, so only the first problems are listed.
_MAX_LISTED_PROBLEMS = 8

Kinds = tuple[type[Offer], ...]


class Verdict(StrEnum):
    """Outcome of a rule. SKIPPED: the plugin has no offer that the rule could check."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule for plugins.

    `run` yields one line per violation, and a `Skip` for an offer that it could not check.
    `kinds`: the kinds of offers that the rule checks; empty if it checks the plugin itself.
    """

    name: str
    text: str
    run: Callable[[CheckedPlugin], Iterable[str | Skip]]
    kinds: Kinds = ()


@dataclass(frozen=True, slots=True)
class RuleResult:
    """Result of one rule. `details`: the problems, then the reasons for offers not checked."""

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
    (selection_checks.measurement_readers_read_samples, (MeasurementReader,)),
    (selection_checks.measurement_readers_refuse_bad_input, (MeasurementReader,)),
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
    (workloads.workloads_come_back, (WorkloadWriter,)),
    (workloads.workload_simulators_simulate, (WorkloadSimulator,)),
    (workloads.workload_generators_generate, (WorkloadGenerator,)),
    (workloads.workload_passes_keep_jobs_correct, (AlgorithmPass,)),
    (work_checks.work_is_silent, _WORKERS),
)


def _build_rule(run: Callable[[CheckedPlugin], Iterable[str | Skip]], kinds: Kinds) -> Rule:
    """Build a rule of the conformance kit from its function.

    Its name is the function's name with hyphens, its text the docstring on one line. `kinds`: the
    kinds of offers that it concerns.
    """
    text = " ".join((run.__doc__ or "").split())
    return Rule(run.__name__.replace("_", "-"), text, run, kinds)


RULES: tuple[Rule, ...] = tuple(_build_rule(run, kinds) for run, kinds in _RULES_BY_KINDS)
"""Every rule, in the order in which results are shown."""


def check_plugin(name: str, registry: Registry | None = None) -> tuple[RuleResult, ...]:
    """Run all `RULES` on an installed plugin and return one result per rule, in their order.

    A plugin that is absent or not loaded fails every rule. `registry`: default is
    `discover_for_check(name)`.
    """
    registry = registry or discover_for_check(name)
    return tuple(check_rule(rule, name, registry) for rule in RULES)


def discover_for_check(name: str) -> Registry:
    """Discover all installed plugins, for a check of the plugin or distribution `name`.

    In any spelling, `name` selects the plugin with this name and all plugins of the
    distribution with this name. Each selected plugin is first imported in a separate
    process of its own. If that process crashes, exits or takes more than 10 s, the
    plugin is not imported in this process: its state is BROKEN with the reason. An
    exception in the import does not prevent the import in this process.

    All other plugins are imported here only. An unknown `name` selects no plugin.
    """

    def admission(plugin: Plugin) -> str | None:
        """Return the reason not to load a plugin, or None.

        Only the plugin under check is imported in a separate process first; all others are loaded.
        """
        names = canonical_name(plugin.name), canonical_name(plugin.distribution)
        return trial(plugin.name).reason if canonical_name(name) in names else None

    return discover(admission=admission)


def check_rule(rule: Rule, name: str, registry: Registry) -> RuleResult:
    """Run one rule on the plugin `name` and return its result.

    `name`: name of the plugin or of its distribution. The first case that applies gives the
    verdict:

    1. FAILED: the plugin is unknown. The only detail is the message of the error.
    2. FAILED: it is not loaded. The only detail is its state with the reason.
    3. SKIPPED: the rule has kinds, and the plugin has no offer of them; one detail says so.
    4. FAILED: the rule reports a problem. An exception of the plugin is a problem and ends the
       rule; only `KeyboardInterrupt` is raised.
    5. SKIPPED: the rule gave at least as many reasons for unchecked offers as the plugin has offers
       of its kinds. A rule without kinds checks the plugin as one offer.
    6. PASSED: all other cases, also if some of the offers were not checked.

    In cases 4 to 6, the details are the first 8 problems, then `and N more` if there are more, then
    a line `not checked: REASON` for each reason.
    """
    try:
        plugin = registry.plugin(name)
    except PluginError as error:
        return RuleResult(rule, Verdict.FAILED, (str(error),))
    status = plugin.status
    if status.state is not PluginState.LOADED:
        problem = f"{plugin} is {status.state}: {status.reason}"
        return RuleResult(rule, Verdict.FAILED, (problem,))
    # A rule without kinds checks the plugin itself.
    num_subjects = (
        sum(isinstance(offer, rule.kinds) for offer in plugin.offers) if rule.kinds else 1
    )
    if not num_subjects:
        reason = "the plugin has no offer of this kind"
        return RuleResult(rule, Verdict.SKIPPED, (reason,))
    problems, skips = _run_rule(rule, CheckedPlugin(plugin, registry))
    details = [*problems[:_MAX_LISTED_PROBLEMS], *(f"not checked: {reason}" for reason in skips)]
    if len(problems) > _MAX_LISTED_PROBLEMS:
        hidden = len(problems) - _MAX_LISTED_PROBLEMS
        details.insert(_MAX_LISTED_PROBLEMS, f"and {hidden} more")
    if problems:
        return RuleResult(rule, Verdict.FAILED, tuple(details))
    # Passed as soon as one offer could be checked; each unchecked offer gave one reason.
    is_unchecked = len(skips) >= num_subjects
    verdict = Verdict.SKIPPED if is_unchecked else Verdict.PASSED
    return RuleResult(rule, verdict, tuple(details))


def _run_rule(rule: Rule, subject: CheckedPlugin) -> tuple[list[str], list[str]]:
    """Run a rule on a plugin; return (problems, reasons for unchecked offers).

    Both lists of texts are in the order in which the rule yields them; a `Skip` gives its reason,
    anything else is a problem. An exception, also `SystemExit`, ends the rule: its description on
    one line (`reason_of`) becomes the last problem, and the results before it are kept. Only
    `KeyboardInterrupt` is raised.
    """
    problems: list[str] = []
    skips: list[str] = []
    try:
        for outcome in rule.run(subject):
            if isinstance(outcome, Skip):
                skips.append(outcome.reason)
            else:
                problems.append(outcome)
    except KeyboardInterrupt:
        raise
    # BaseException: a plugin may also call sys.exit().
    except BaseException as error:
        problems.append(reason_of(error))
    return problems, skips
