"""`collhub verify --runtime`: whether a runtime uses a file, in words and in JSON, and exit codes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hub_core.pipeline.checks import checks_of, format_span
from hub_core.plugin_api import Subject
from hub_core.registry.discovery import discover

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
    assert [found["code"] for found in report["diagnostics"]] == ["not-applicable"]
    assert (report["ok"], report["is_applicable"]) == (False, False)


def test_unknown_runtime_is_a_usage_error_with_the_closest_name(collhub, xml: Path) -> None:
    run = collhub("verify", xml, "--runtime", "executer")
    assert run.code == 2
    assert "did you mean 'executor'?" in run.err


@pytest.fixture
def rccl_xml(collhub, ring: Path, tmp_path: Path, msccl: None) -> Path:
    """The ring as a file for RCCL."""
    path = tmp_path / "rccl.xml"
    assert collhub("convert", ring, "-o", path, "-O", "runtime=rccl").code == 0
    return path


@pytest.mark.parametrize("version", ["5.5", "6.4.1", "7.12", "7.12.3", "v7.0"])
def test_versions_before_the_removal_use_the_file(collhub, rccl_xml: Path, version: str) -> None:
    run = collhub("verify", rccl_xml, "--runtime", f"rccl@{version}")
    assert (run.code, run.err) == (0, "")


@pytest.mark.parametrize("version", ["7.13", "7.13.1", "8.0", "10", "newest", "latest"])
def test_versions_from_the_removal_on_are_an_error(collhub, rccl_xml: Path, version: str) -> None:
    # RCCL's changelog: MSCCL was removed in ROCm 7.13.
    run = collhub("verify", rccl_xml, "--runtime", f"rccl@{version}")
    assert (run.code, run.out) == (1, f"{rccl_xml}: rccl of ROCm 7.13 and later does not use it\n")
    (error,) = run.error_lines
    assert "MSCCL was removed" in error
    assert "CHANGELOG.md, 2026-" in error
    assert error.endswith(
        "use ROCm 5.5 to 7.12 (--runtime rccl@7.12) or another runtime [not-used-by-version]"
    )


def test_without_a_version_the_newest_one_that_cannot_use_it_is_a_warning(
    collhub, rccl_xml: Path
) -> None:
    run = collhub("verify", rccl_xml, "--runtime", "rccl")
    assert run.code == 0
    assert run.out.startswith(f"{rccl_xml}: rccl uses it for these calls\n")
    assert run.err.startswith(f"warning: {rccl_xml}: rccl of ROCm 7.13 and later does not use")
    report = collhub("verify", rccl_xml, "--runtime", "rccl", "--json").report()
    assert (report["ok"], report["runtime"], report["version"]) == (True, "rccl", None)
    assert [one["code"] for one in report["diagnostics"]] == ["not-used-by-newest"]


def test_the_version_is_a_field_of_the_report(collhub, rccl_xml: Path) -> None:
    report = collhub("verify", rccl_xml, "--runtime", "rccl@7.13", "--json").report()
    assert (report["runtime"], report["version"], report["ok"]) == ("rccl", "7.13", False)
    assert report["is_accepted"] is False


@pytest.mark.parametrize(
    ("runtime", "message"),
    [
        ("rccl@5.4", "runtime rccl: version 5.4 is not known; ROCm 5.5 to 7.12 use such files"),
        ("rccl@2.28.3", "runtime rccl: version 2.28.3 is not known; ROCm 5.5 to 7.12 use"),
        ("rccl@7", "runtime rccl: version 7 is ambiguous; ROCm 5.5 to 7.12 use such files"),
        ("rccl@", "runtime rccl: '' is not a version"),
        ("rccl@newst", "did you mean 'newest'?"),
        ("rcl@7.12", "there is no runtime 'rcl'; did you mean 'rccl'?"),
        ("executor@2.18", "runtime executor: version 2.18 is not known; NCCL 2.23 use such files"),
        ("msccl@3", "runtime msccl: version 3 is not known; NCCL 2.12 use such files"),
    ],
)
def test_an_unknown_version_is_one_line_with_the_known_ones(
    collhub, rccl_xml: Path, runtime: str, message: str
) -> None:
    run = collhub("verify", rccl_xml, rccl_xml, "--runtime", runtime)
    assert (run.code, run.out) == (2, "")
    (error,) = run.error_lines
    assert message in error


def test_a_missing_file_is_an_error_whatever_the_version_is(collhub, tmp_path: Path) -> None:
    run = collhub("verify", tmp_path / "none.xml", "--runtime", "rccl@7.13")
    assert run.code != 0
    assert "none.xml" in run.error_lines[0]
    assert "does not use" not in run.err


def test_writing_for_a_runtime_notes_the_versions_that_do_not_load_it(
    collhub, ring: Path, tmp_path: Path
) -> None:
    run = collhub("convert", ring, "-o", tmp_path / "new.xml", "-O", "runtime=rccl")
    assert "new.xml is loaded by ROCm/rccl up to ROCm 7.12; ROCm 7.13 and later do not" in run.err
    other = collhub("convert", ring, "-o", tmp_path / "other.xml", "-O", "runtime=executor")
    assert "loaded by" not in other.err


def test_the_guide_lists_the_versions_of_all_runtimes() -> None:
    text = (Path(__file__).parents[2] / "docs" / "user-guide.md").read_text()
    checks = checks_of(Subject.RUNTIME, discover(environment={}))
    own = [check for check in checks if check.plugin.distribution.startswith("collhub-")]
    assert {"msccl", "executor", "rccl"} <= {check.name for check in own}
    for check in own:
        assert check.offer.versions
        for row in check.offer.versions:
            assert row.source
            assert re.fullmatch("20[0-9]{2}-[01][0-9]", row.date)
            use = "yes" if row.uses_files else "no"
            span = format_span(check.offer, row)
            assert f"| `{check.name}` | {span} | {use} | {row.source} | {row.date} |" in text


@pytest.mark.parametrize(
    "option",
    [
        ("--expect", "o[r]=i[r]"),
        ("--root", "0"),
        ("--fifo-capacity", "2"),
        ("--fifo-units", "2"),
        ("-O", "reading=dsl"),
    ],
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


def test_formats_shows_the_versions_of_a_runtime(collhub, msccl: None) -> None:
    (rccl,) = [
        one
        for one in collhub("formats", "rccl", "--json").report()["formats"]
        if one["does"] == "check runtime"
    ]
    assert rccl["versioned_by"] == "ROCm"
    spans = [(row["first"], row["last"], row["uses_files"]) for row in rccl["versions"]]
    assert spans == [("5.5", "7.12", True), ("7.13", None, False)]
    assert all(row["source"] and row["date"] for row in rccl["versions"])
    assert "ROCm 7.13 and later" in collhub("formats", "rccl").out


@pytest.mark.needs_plugins
def test_all_runtimes_are_a_table_by_runtime_and_version(collhub, tmp_path: Path) -> None:
    example = Path(__file__).resolve().parents[2] / "examples" / "ring_all_reduce_8.xml"
    run = collhub("verify", example, "--runtime", "all")
    assert run.code == 0
    first, header, *rows, note = run.out.splitlines()
    assert note.startswith("not applicable: mscclpp reads mscclpp")
    assert note.endswith("the file is msccl-xml")
    assert first == f"{example}: 2 of 4 runtimes use it"
    assert header.split()[:2] == ["runtime", "NCCL"]
    assert "ROCm 5.5 to 7.12" in header
    cells = {row.split()[0]: row.split(maxsplit=1)[1].split("  ") for row in rows}
    assert cells["executor"] == ["loads"]
    assert [cell.strip() for cell in cells["mscclpp"] if cell] == ["not applicable"]
    assert [cell.strip() for cell in cells["rccl"] if cell] == [
        "refused: refused-type",
        "refused: not-used-by-version",
    ]
    wrong = tmp_path / "wrong.xml"
    wrong.write_text(example.read_text().replace('type="s"', 'type="x"'))
    run = collhub("verify", wrong, example, "--runtime", "all", "--json")
    report = run.report()
    assert (run.code, [item["ok"] for item in report["results"]]) == (1, [False, True])
    rules = {item["runtime"]: item["rule"] for item in report["results"][0]["runtimes"]}
    assert (rules["msccl"], rules["mscclpp"]) == ("refused-type", "not-applicable")
    # Runtimes that read other formats give no finding.
    assert {item["code"] for item in report["results"][0]["diagnostics"]} == {"refused-type"}
    assert report["results"][0]["diagnostics"][0]["line"] is not None
    assert collhub("verify", example, "--runtime", "all", "-O", "a=b").code == 2


@pytest.mark.needs_plugins
def test_a_file_that_no_runtime_reads_has_a_finding_per_runtime(collhub, ring: Path) -> None:
    run = collhub("verify", ring, "--runtime", "all", "--json")
    report = run.report()
    assert (run.code, report["ok"]) == (1, False)
    assert {item["is_applicable"] for item in report["runtimes"]} == {False}
    assert {item["code"] for item in report["diagnostics"]} == {"not-applicable"}
    assert {item["message"].split()[0] for item in report["diagnostics"]} == {
        *("executor", "msccl", "mscclpp", "rccl")
    }
