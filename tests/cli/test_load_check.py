"""`collhub verify --runtime`: whether a runtime uses a file, in words and in JSON, and exit codes."""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("msccl")


@pytest.fixture
def xml(collhub, ring: Path, tmp_path: Path, msccl: None) -> Path:
    """The ring as a file for executor."""
    path = tmp_path / "ring.xml"
    assert collhub("convert", ring, "-o", path).code == 0
    return path


def test_calls_and_sizes_are_listed_with_exit_0(collhub, xml: Path) -> None:
    run = collhub("verify", xml, "--runtime", "executor")
    assert (run.code, run.err) == (0, "")
    first, header, call = run.out.splitlines()
    assert first == f"{xml}: executor uses it for these calls"
    assert header.split() == ["collective", "ranks", "mode", "from", "bytes", "to", "bytes", "if"]
    assert call.split()[:7] == ["allreduce", "4", "in", "place", "0", "no", "limit"]


def test_reason_of_a_refusal_is_an_error_with_its_line_and_exit_1(collhub, xml: Path) -> None:
    run = collhub("verify", xml, "--runtime", "rccl")
    assert run.code == 1
    assert run.out == f"{xml}: rccl refuses it\n"
    assert run.error_lines[0].startswith(f"error: {xml}:")
    # The path is said once.
    assert run.error_lines[1].startswith("error: line ")
    assert "has no step type" in run.error_lines[0]


def test_report_says_the_same_in_fields(collhub, xml: Path) -> None:
    report = collhub("verify", xml, "--runtime", "executor", "--json").report()
    assert (report["runtime"], report["ok"], report["is_accepted"], report["diagnostics"]) == (
        "executor",
        True,
        True,
        [],
    )
    (call,) = report["calls"]
    assert (call["collective"], call["in_place"], call["min_bytes"], call["max_bytes"]) == (
        "allreduce",
        True,
        0,
        None,
    )
    refused = collhub("verify", xml, "--runtime", "rccl", "--json")
    assert (refused.code, refused.report()["ok"], refused.report()["calls"]) == (1, False, [])


def test_file_that_is_no_file_of_the_runtime_is_a_finding(collhub, ring: Path) -> None:
    report = collhub("verify", ring, "--runtime", "executor", "--json").report()
    assert [found["code"] for found in report["diagnostics"]] == ["not-xml"]


def test_unknown_runtime_is_a_usage_error_with_the_closest_name(collhub, xml: Path) -> None:
    run = collhub("verify", xml, "--runtime", "executer")
    assert run.code == 2
    assert "did you mean 'executor'?" in run.err


@pytest.mark.parametrize(
    "option",
    [("--expect", "o[r]=i[r]"), ("--root", "0"), ("--fifo-capacity", "2"), ("-O", "reading=dsl")],
)
def test_options_of_verification_have_no_meaning_with_it(
    collhub, xml: Path, option: tuple[str, str]
) -> None:
    assert collhub("verify", xml, "--runtime", "executor", *option).code == 2


def test_written_file_for_each_runtime_is_used_by_it(collhub, ring: Path, tmp_path: Path) -> None:
    for runtime in ("msccl", "executor", "rccl"):
        path = tmp_path / f"{runtime}.xml"
        assert (
            collhub("convert", ring, "-o", path, "-O", f"runtime={runtime}", "--strict").code == 0
        )
        assert collhub("verify", path, "--runtime", runtime).code == 0
