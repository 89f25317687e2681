"""Faults of the disk and kills: whichever operation fails, a command leaves all of its output or none."""

from __future__ import annotations

import errno
import os
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from fault_injection import (
    COMMANDS,
    NO_MEMORY,
    WITH_PLUGINS,
    Fault,
    Injection,
    contents,
    count_operations,
    fail_with,
    lack_memory,
    restore,
    run_with_faults,
    words,
)

FULL = (fail_with(errno.ENOSPC), 2, f"error: .*{os.strerror(errno.ENOSPC)}.*\n")
# The action of an operation that fails, the exit code and the pattern of the error.
FAILURES = {
    "ENOSPC": FULL,
    "EIO": (fail_with(errno.EIO), 2, f"error: .*{os.strerror(errno.EIO)}.*\n"),
    "no memory": (lack_memory, 1, NO_MEMORY),
}
Failure = tuple[Callable[[str], None], int, str]


def check_all_or_nothing(
    collhub,
    command: list[str],
    before: Path,
    out: Path,
    fault: Fault,
    failure: Failure,
    max_runs: int = 40,
) -> None:
    """Fail each operation of the command, or about `max_runs` of them, from the first on."""
    restore(out, before)
    operations = count_operations(fault, out, lambda: collhub(*command).code)
    assert operations > 1
    fault.action, code, error = failure
    for number in range(1, operations + 1, -(-operations // max_runs)):
        restore(out, before)
        fault.folder, fault.left = str(out), number
        run = collhub(*command)
        assert fault.folder is None
        assert contents(out) == contents(before), f"operation {number}"
        assert run.code == code, f"operation {number}"
        assert re.fullmatch(error, run.err), f"operation {number}"


@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES)
@pytest.mark.parametrize("name", COMMANDS)
def test_the_operation_that_fails_leaves_what_stood_there(
    collhub, ring: Path, before: Path, tmp_path: Path, fault: Fault, name: str, failure: Failure
) -> None:
    out = tmp_path / "out"
    command = words(COMMANDS[name], ring, out)
    check_all_or_nothing(collhub, command, before, out, fault, failure)


@pytest.mark.needs_plugins
@pytest.mark.parametrize("name", WITH_PLUGINS)
def test_commands_of_plugins_leave_what_stood_there(
    collhub, ring: Path, before: Path, tmp_path: Path, fault: Fault, name: str
) -> None:
    out = tmp_path / "out"
    command = words(WITH_PLUGINS[name], ring, out)
    # They write as the commands of the core do, and run much longer.
    check_all_or_nothing(collhub, command, before, out, fault, FULL, max_runs=6)


@pytest.mark.needs_plugins
def test_a_demo_that_fails_leaves_complete_files(collhub, tmp_path: Path, fault: Fault) -> None:
    # It writes a set for each example: those that were written before the fault stay.
    whole, out = tmp_path / "whole", tmp_path / "out"
    assert collhub("demo", "--output", whole).code == 0
    written = contents(whole)
    fault.action = fail_with(errno.ENOSPC)
    for number in (1, 2, 10, 20, len(written)):
        shutil.rmtree(out, ignore_errors=True)
        fault.folder, fault.left = str(out), number
        run = collhub("demo", "--output", out)
        assert fault.folder is None
        assert run.code == 2
        left = contents(out) if out.exists() else {}
        assert {name: written[name] for name in left} == left


@pytest.mark.parametrize("limit", [1, 100, 1000])
def test_a_file_of_which_a_part_fits_is_not_left(
    ring: Path, before: Path, tmp_path: Path, limit: int
) -> None:
    # Writing fails after this many bytes: Python ignores the signal, and write() gives EFBIG.
    out = tmp_path / "out"
    restore(out, before)
    command = [sys.executable, "-P", "-B", "-m", "hub_core.cli.main"]
    result = subprocess.run(
        [*command, *words(COMMANDS["file"], ring, out)],
        stderr=subprocess.PIPE,
        timeout=60,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )
    assert (result.returncode, contents(out)) == (2, contents(before))
    assert re.fullmatch(rb"error: [^\n]*\n", result.stderr)


def test_a_killed_command_leaves_no_half_written_file(
    collhub, ring: Path, before: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    command = words(COMMANDS["smaller set over another"], ring, out)
    restore(out, before)
    assert collhub(*command).code == 0
    old, new = contents(before), contents(out)
    injections = [Injection(operation=number) for number in range(1, 20)]
    outcomes = run_with_faults(command, out, injections, before=before)
    assert {outcome.code for outcome in outcomes} == {-9, 0}
    for outcome in outcomes:
        for name, data in outcome.contents.items():
            if not name.startswith(".collhub-"):
                assert data in (old.get(name), new.get(name)), f"{name}, {outcome.injection}"
