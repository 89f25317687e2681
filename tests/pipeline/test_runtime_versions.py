"""Versions of runtimes: which one a text means, and what is reported of it."""

from __future__ import annotations

import pytest

from hub_core.model import Severity, UsageError
from hub_core.pipeline.checks import choose_versions, report_unused_file, warn_of_newest
from hub_core.plugin_api import Check, CheckReport, RuntimeVersions, Subject

OLD = RuntimeVersions("1.2", "1.9", False, "https://old", "2025-01", "files came with 2.0")
USED = RuntimeVersions("2.0", "2.4", True, "https://used", "2025-06")
NEW = RuntimeVersions("2.5", None, False, "https://new", "2026-11", "files are gone")


def _check(*versions: RuntimeVersions) -> Check:
    return Check("zed", Subject.RUNTIME, "", "m:f", versions=versions, versioned_by="Zed")


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("1.2", OLD), ("1.9.7", OLD), ("2.0", USED), ("2.4.99", USED), ("v2.3", USED),
        ("2.5", NEW), ("2.10", NEW), ("3", NEW), ("newest", NEW),
    ],
)  # fmt: skip
def test_a_version_is_among_those_of_one_row(version: str, expected: RuntimeVersions) -> None:
    assert choose_versions(_check(OLD, USED, NEW), version) is expected


@pytest.mark.parametrize(
    ("version", "reason"),
    [
        (
            "1.1",
            "version 1.1 is not known; Zed 1.2 to 1.9 do not use such files, Zed 2.0 to 2.4 use",
        ),
        ("2", "version 2 is ambiguous"),
        ("2.x", "'2.x' is not a version"),
        ("\u0662", "is not a version"),
        ("2." + "9" * 5000, "is not a version"),
    ],
)
def test_any_other_version_is_refused_with_the_known_ones(version: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason) as caught:
        choose_versions(_check(OLD, USED, NEW), version)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


def test_a_runtime_without_a_table_has_no_versions() -> None:
    with pytest.raises(UsageError, match="runtime zed has no table of versions; leave out @1"):
        choose_versions(_check(), "1")


def test_a_refusal_gives_the_reason_its_source_and_the_versions_to_use() -> None:
    report = report_unused_file(_check(OLD, USED, NEW), NEW, "x.xml")
    assert (report.ok, report.facts) == (False, {"is_accepted": False})
    assert str(report.diagnostics[0]) == (
        "x.xml: zed of Zed 2.5 and later does not use such files: files are gone (https://new, "
        "2026-11); use Zed 2.0 to 2.4 (--runtime zed@2.4) or another runtime"
    )


def test_only_a_used_file_gets_the_warning_on_the_newest_version() -> None:
    used, refused = CheckReport(ok=True), CheckReport(ok=False)
    (warning,) = warn_of_newest(_check(USED, NEW), used, "x.xml").diagnostics
    assert warning.severity is Severity.WARNING
    assert warn_of_newest(_check(USED, NEW), refused, "x.xml") is refused
    assert warn_of_newest(_check(OLD, USED), used, "x.xml") is used
    assert warn_of_newest(_check(), used, "x.xml") is used
