"""Lack of memory: whichever allocation fails, a command leaves all of its output or none."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest
from fault_injection import (
    COMMANDS,
    NO_MEMORY,
    WITH_PLUGINS,
    Fault,
    Injection,
    Outcome,
    contents,
    count_operations,
    restore,
    run_with_faults,
    words,
)

import hub_core
from hub_core.testing import ring_all_reduce

pytest.importorskip("_testcapi", reason="this interpreter cannot fail its allocations")

# Allocations after an operation on files.
NEAR = (1, 3, 20)
# Allocations of a command, of some 10 000. The first ones come before its errors are caught.
SPREAD = [int(60 * 1.6**power) for power in range(14)]
# CPython reports some allocations that fail as other errors.
MISREPORTED = re.compile(
    r"error: internal error: (SystemError: error return without exception set"
    r"|SystemError: .* returned NULL without setting an exception|TypeError: .* not PosixPath"
    r"|RuntimeError: can't allocate (read )?lock);.*\n"
)

# CPython and numpy do not check every allocation of theirs: rarely, one that fails ends the process.
CRASHES = (-signal.SIGSEGV, -signal.SIGABRT)


def check_all_or_nothing(
    outcomes: list[Outcome], old: dict[str, bytes | None], new: dict[str, bytes | None]
) -> None:
    """Refuse partial files, other errors than a lack of memory, and more than one crash."""
    assert sum(outcome.code in CRASHES for outcome in outcomes) <= 1
    for outcome in outcomes:
        assert outcome.contents in (old, new), outcome.injection
        if outcome.code == 0:
            assert outcome.contents == new, outcome.injection
        elif outcome.code == 70:
            assert MISREPORTED.fullmatch(outcome.error), outcome
        elif outcome.code not in CRASHES:
            assert outcome.code == 1, outcome
            assert outcome.error.endswith(NO_MEMORY), outcome
            assert "Traceback" not in outcome.error
    assert {outcome.code for outcome in outcomes} & {1}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_failed_allocation_leaves_all_or_nothing(
    collhub, ring: Path, before: Path, tmp_path: Path, fault: Fault, name: str
) -> None:
    out = tmp_path / "out"
    # Plugins take part in nothing, and each start would look for them.
    command = ["--no-plugins", *words(COMMANDS[name], ring, out)]
    restore(out, before)
    operations = count_operations(fault, out, lambda: collhub(*command).code)
    injections = [
        Injection(operation, allocation)
        for operation in range(1, operations + 1)
        for allocation in NEAR
    ]
    injections += [Injection(allocation=allocation) for allocation in SPREAD]
    new = contents(out)
    outcomes = run_with_faults(command, out, injections, before=before)
    check_all_or_nothing(outcomes, contents(before), new)


@pytest.mark.needs_plugins
@pytest.mark.parametrize("name", WITH_PLUGINS)
def test_a_failed_allocation_of_plugins_leaves_all_or_nothing(
    collhub, ring: Path, before: Path, tmp_path: Path, fault: Fault, name: str
) -> None:
    out = tmp_path / "out"
    command = words(WITH_PLUGINS[name], ring, out)
    restore(out, before)
    operations = count_operations(fault, out, lambda: collhub(*command).code)
    injections = [
        Injection(operation, NEAR[operation % len(NEAR)])
        for operation in range(1, operations + 1, 1 + operations // 5)
    ]
    new = contents(out)
    outcomes = run_with_faults(command, out, injections, before=before)
    check_all_or_nothing(outcomes, contents(before), new)


def test_a_limit_of_address_space_leaves_all_or_nothing(
    collhub, before: Path, tmp_path: Path
) -> None:
    # Arrays of numpy and buffers of files are not allocated by the interpreter.
    ring, out = tmp_path / "large.json", tmp_path / "out"
    hub_core.write(ring_all_reduce(32), ring, format="json")
    command = ["--no-plugins", *words(COMMANDS["set of ranks"], ring, out)]
    restore(out, before)
    assert collhub(*command).code == 0
    injections = [Injection(free_bytes=count << 20) for count in (0, 1, 2, 4, 256)]
    outcomes = run_with_faults(command, out, injections, before=before)
    check_all_or_nothing(outcomes, contents(before), contents(out))
    assert outcomes[-1].code == 0
