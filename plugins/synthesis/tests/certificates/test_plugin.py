"""The offer, and the example of the README."""

from __future__ import annotations

from pathlib import Path

from collhub_certificates.plugin import collhub_checks

from hub_core.plugin_api import CheckRequest, NoOptions, Subject, resolve
from hub_core.testing import check_examples, ring_all_reduce

README = Path(__file__).resolve().parents[2] / "docs" / "certificates.md"


def test_the_checks_are_for_certificates() -> None:
    checks = collhub_checks()
    assert [check.name for check in checks] == ["packing", "flow", "time-cut"]
    assert {check.subject for check in checks} == {Subject.CERTIFICATE}


def test_an_algorithm_without_a_certificate_is_not_its_subject() -> None:
    for check in collhub_checks():
        report = resolve(check.run)(CheckRequest(algorithm=ring_all_reduce(4)), NoOptions())
        assert (report.ok, report.is_applicable) == (False, False)


def test_the_example_of_the_readme_runs() -> None:
    check_examples(README)
