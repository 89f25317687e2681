"""The conformance kit: checks as data, run alike by `collhub plugins check` and by pytest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from hub_core.model.diagnostics import PluginError
from hub_core.plugin_api.algorithm_pass import AlgorithmPass
from hub_core.plugin_api.check import Check
from hub_core.plugin_api.command import Command
from hub_core.plugin_api.executor import Executor
from hub_core.plugin_api.offers import Offer
from hub_core.plugin_api.reader import FormatReader
from hub_core.plugin_api.simulator import Simulator
from hub_core.plugin_api.synthesizer import Synthesizer
from hub_core.plugin_api.topology_builder import TopologyBuilder
from hub_core.plugin_api.topology_reader import TopologyReader
from hub_core.plugin_api.writer import FormatWriter
from hub_core.registry.border import reason_of
from hub_core.registry.discovery import discover
from hub_core.registry.plugins import PluginState, Registry
from hub_core.testing import format_checks, loading_checks, synthesis_checks, work_checks
from hub_core.testing.subject import Skip, Subject

_MOST_PROBLEMS = 8


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
    run: Callable[[Subject], Iterable[str | Skip]]
    kinds: tuple[type[Offer], ...] = ()


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
_WORKERS = (Simulator, Executor, AlgorithmPass, Check)

RULES: tuple[Rule, ...] = tuple(
    Rule(run.__name__.replace("_", "-"), " ".join((run.__doc__ or "").split()), run, kinds)
    for run, kinds in (
        (loading_checks.loads_quietly, ()),
        (loading_checks.offers_something, ()),
        (loading_checks.requirements_are_met, ()),
        (loading_checks.imports_lightly, ()),
        (loading_checks.references_resolve, ()),
        (format_checks.readers_read_samples, _READERS),
        (format_checks.bad_input_is_refused, _READERS),
        (format_checks.writers_write_samples, (FormatWriter,)),
        (format_checks.writers_are_deterministic, (FormatWriter,)),
        (format_checks.writers_keep_their_input, (FormatWriter,)),
        (format_checks.losses_are_honest, (FormatWriter,)),
        (format_checks.formats_leave_the_system_alone, _FORMATS),
        (work_checks.simulators_simulate, (Simulator,)),
        (synthesis_checks.synthesizers_synthesize, (Synthesizer,)),
        (work_checks.executors_compute, (Executor,)),
        (work_checks.passes_keep_the_promise, (AlgorithmPass,)),
        (work_checks.checks_answer, (Check,)),
        (work_checks.builders_build_their_example, (TopologyBuilder,)),
        (work_checks.commands_are_click_commands, (Command,)),
        (work_checks.work_is_silent, _WORKERS),
    )
)


def check_plugin(name: str, registry: Registry | None = None) -> tuple[RuleResult, ...]:
    """Run every check on an installed plugin.

    A plugin that is absent or not loaded fails every check.
    """
    registry = registry or discover()
    return tuple(check_rule(rule, name, registry) for rule in RULES)


def check_rule(rule: Rule, name: str, registry: Registry) -> RuleResult:
    """Run one check. Whatever the plugin raises is a problem, not an end."""
    try:
        plugin = registry.plugin(name)
    except PluginError as error:
        return RuleResult(rule, Verdict.FAILED, (str(error),))
    if plugin.status.state is not PluginState.LOADED:
        return RuleResult(
            rule, Verdict.FAILED, (f"{plugin} is {plugin.status.state}: {plugin.status.reason}",)
        )
    if rule.kinds and not any(isinstance(offer, rule.kinds) for offer in plugin.offers):
        return RuleResult(rule, Verdict.SKIPPED, ("the plugin offers nothing of this kind",))
    return _judged(rule, Subject(plugin, registry))


def _judged(rule: Rule, subject: Subject) -> RuleResult:
    problems: list[str] = []
    skips: list[str] = []
    try:
        for found in rule.run(subject):
            skips.append(found.reason) if isinstance(found, Skip) else problems.append(found)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # A plugin may raise, or exit with, anything.
        problems.append(reason_of(error))
    details = (*_shortened(problems), *(f"not checked: {reason}" for reason in skips))
    if problems:
        return RuleResult(rule, Verdict.FAILED, details)
    checkable = (
        sum(isinstance(offer, rule.kinds) for offer in subject.plugin.offers) if rule.kinds else 1
    )
    return RuleResult(rule, Verdict.SKIPPED if len(skips) >= checkable else Verdict.PASSED, details)


def _shortened(problems: Sequence[str]) -> tuple[str, ...]:
    hidden = len(problems) - _MOST_PROBLEMS
    return (*problems[:_MOST_PROBLEMS], *([f"and {hidden} more"] if hidden > 0 else []))
