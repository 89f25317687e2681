"""Rules of the conformance kit for generators of workloads and passes over them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hub_core.registry.discovery import discover
from hub_core.testing.conformance import RULES, RuleResult, Verdict, check_rule

MakePlugin = Callable[..., object]

# A generator, a pass, and a check that wants at most four ranks; each test spoils one of them.
CODE = """
from dataclasses import replace
from hub_core.model import NodeColumns, NodeKind, UsageError, Workload
from hub_core.testing import training_step

runs = []

@hookimpl
def collhub_producers():
    return [WorkloadGenerator("made", "a step", f"{__name__}:generate")]

@hookimpl
def collhub_passes():
    return [AlgorithmPass("kept", "does nothing", f"{__name__}:run", subject=Subject.WORKLOAD)]

@hookimpl
def collhub_checks():
    return [Check("small", Subject.WORKLOAD, "at most four ranks", f"{__name__}:check")]

def check(request, options):
    from hub_core import Diagnostic
    if request.workload.num_ranks <= 4:
        return CheckReport(True)
    return CheckReport(False, diagnostics=(Diagnostic("large", "the job is too large"),))

def generate(options):
    runs.append(0)
    GENERATE

def run(workload, options):
    RUN
"""


def result(make_plugin: MakePlugin, rule: str, generate: str, run: str) -> RuleResult:
    """What a rule says of the plugin with these bodies."""
    make_plugin("subject", CODE.replace("GENERATE", generate).replace("RUN", run))
    (found,) = (one for one in RULES if one.name == rule)
    return check_rule(found, "subject", discover(environment={}))


SOUND = "return training_step()", "return workload, PassReport(())"


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (SOUND[0], None),
        ("return 3", "returned int, expected Workload"),
        ("return training_step(1 + len(runs))", "two runs differ in"),
        ("return training_step(5)", "the job is too large"),
    ],
)
def test_generators_that_keep_no_promise_are_found(
    make_plugin: MakePlugin, body: str, problem: str | None
) -> None:
    found = result(make_plugin, "workload-generators-generate", body, SOUND[1])
    assert (found.verdict is Verdict.FAILED) == (problem is not None), found.details
    assert problem is None or problem in " ".join(found.details)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (SOUND[1], None),
        ("return workload", "not (Workload, PassReport)"),
        ("return training_step(5), PassReport(())", "the job is too large"),
        (
            "workload.extensions['seen'] = True\n    return workload, PassReport(())",
            "the input workload was changed",
        ),
    ],
)
def test_passes_that_keep_no_promise_are_found(
    make_plugin: MakePlugin, body: str, problem: str | None
) -> None:
    found = result(make_plugin, "workload-passes-keep-jobs-correct", SOUND[0], body)
    assert (found.verdict is Verdict.FAILED) == (problem is not None), found.details
    assert problem is None or problem in " ".join(found.details)


def test_a_pass_that_takes_no_job_of_the_kit_is_skipped(make_plugin: MakePlugin) -> None:
    body = 'raise UsageError("not this one")'
    found = result(make_plugin, "workload-passes-keep-jobs-correct", SOUND[0], body)
    assert found.verdict is Verdict.SKIPPED
    assert "refuses every workload of the kit" in " ".join(found.details)
