"""Names and contents of files are not to be trusted: nothing of theirs drives the terminal."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import hub_core
from hub_core.cli import output

REPOSITORY = Path(__file__).resolve().parents[2]
# A title by OSC, colours by CSI, a line over this one, a forged line, a bidirectional override, DEL.
HOSTILE = "ring\x1b]0;title\x07\x1b[31m\rok\nerror: forged\u202egnp.\u2028\x7f\x9b1m"
_UNSAFE = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


def assert_harmless(text: str) -> None:
    """No character that drives a terminal, and no line that the file has forged."""
    assert _UNSAFE.findall(text) == []
    assert [line for line in text.splitlines() if line.startswith("error: forged")] == []
    # What was escaped is still told.
    assert "\\x1b]0;title" in text


@pytest.fixture
def hostile(ring: Path) -> Path:
    """An algorithm whose provenance and names of extensions are hostile."""
    root = json.loads(ring.read_bytes())
    root["provenance"].update(producer=HOSTILE, producer_version=HOSTILE, source_name=HOSTILE)
    path = ring.with_name("hostile.json")
    path.write_text(json.dumps(root))
    return path


@pytest.fixture
def hostile_network(tmp_path: Path) -> Path:
    """A ring of four whose NPUs and whose own name are hostile."""
    network = json.loads(hub_core.topology_to_json(hub_core.parse_topology("ring:4")))
    network["name"] = HOSTILE
    network["npus"] = [f"{HOSTILE}{npu}" for npu in range(4)]
    path = tmp_path / "network.json"
    path.write_text(json.dumps(network))
    return path


def test_fields_from_a_file_are_escaped(collhub, hostile: Path) -> None:
    run = collhub("inspect", hostile)
    assert run.code == 0
    assert_harmless(run.out)


def test_tables_of_names_from_a_file_are_escaped(
    collhub, ring: Path, hostile_network: Path, simulator: None
) -> None:
    run = collhub("simulate", ring, "--topology", hostile_network, "--size", "1MiB")
    assert run.code == 0
    assert_harmless(run.out)


def test_names_of_files_are_escaped_on_both_streams(collhub, ring: Path) -> None:
    named = ring.rename(ring.with_name(f"{HOSTILE}.json"))
    assert_harmless(collhub("verify", named).out)
    named.write_text("{")
    assert_harmless(collhub("verify", named).err)


def test_what_the_user_typed_is_escaped_in_errors_of_usage(collhub) -> None:
    for arguments in ([HOSTILE], ["verify", HOSTILE], ["verify", f"--{HOSTILE}", "x"]):
        run = collhub(*arguments)
        assert run.code != 0
        assert_harmless(run.err)


def test_the_traceback_of_debug_is_escaped(collhub) -> None:
    run = collhub("--debug", "verify", HOSTILE)
    assert "Traceback (most recent call last)" in run.err
    assert_harmless(run.err)


def test_progress_is_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys.stderr, "write", shown.append)
    monkeypatch.setattr(output, "PROGRESS_DELAY_S", 0.0)
    with output.progress_bar(HOSTILE[:20]) as show:
        show(0.0, HOSTILE[:20])
    line = "".join(shown).split("\r")[1]
    assert_harmless(line)


def test_json_stays_json_and_holds_no_character_that_drives_a_terminal(
    collhub, hostile: Path
) -> None:
    run = collhub("inspect", hostile, "--json")
    assert run.report()["provenance"]["producer"] == HOSTILE
    assert_harmless(run.out.replace("\\u001b", "\\x1b"))


def test_a_character_that_the_encoding_lacks_is_escaped(ring: Path) -> None:
    named = ring.rename(ring.with_name("é.json"))
    command = [sys.executable, "-P", "-m", "hub_core.cli.main", "verify", str(named)]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    run = subprocess.run(command, capture_output=True, timeout=60, check=False, env=environment)
    assert (run.returncode, run.stderr) == (0, b"")
    assert rb"\xe9.json: all-reduce, 4 ranks" in run.stdout


PRINTERS = {"output.py"}
COMMANDS = [
    file
    for file in sorted((REPOSITORY / "hub_core" / "cli").rglob("*.py"))
    if file.name not in PRINTERS
]


@pytest.mark.parametrize("file", COMMANDS, ids=lambda file: file.name)
def test_commands_print_by_output_alone(file: Path) -> None:
    tree = ast.parse(file.read_text("utf-8"))
    calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    assert [call.lineno for call in calls if ast.unparse(call) in ("print", "click.echo")] == []
