"""Faults of the cache of comparisons: the answer stays the same, and no damaged entry is used."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from fault_injection import (
    NO_MEMORY,
    Fault,
    Injection,
    contents,
    count_operations,
    fail_with,
    lack_memory,
    restore,
    run_with_faults,
)

pytestmark = [pytest.mark.needs_plugins, pytest.mark.usefixtures("comparing")]

COMPARE = [
    "compare",
    "--collective",
    "all-reduce",
    "--topology",
    "ring:4",
    "--size",
    "1KiB",
    "--with",
    "ring",
    "--jobs",
    "1",
    "--json",
]
Files = dict[str, bytes | None]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "collhub" / "compare"


@pytest.fixture
def answer(collhub, cache: Path) -> str:
    """The answer of a run that fills the cache."""
    run = collhub(*COMPARE)
    assert run.code == 0
    assert len([data for data in contents(cache).values() if data]) == 1
    return run.out


# What compare says of every network that is not a known machine.
NOMINAL_NOTE = "nominal links, not a machine\n"


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    folder = tmp_path / "empty"
    folder.mkdir()
    return folder


def files_of(contents: Files) -> Files:
    return {name: data for name, data in contents.items() if data is not None}


@pytest.mark.parametrize("state", ["empty", "filled"])
@pytest.mark.parametrize(
    ("action", "cause"),
    [
        (fail_with(errno.ENOSPC), os.strerror(errno.ENOSPC)),
        (fail_with(errno.EIO), os.strerror(errno.EIO)),
        (lack_memory, ""),
    ],
    ids=["ENOSPC", "EIO", "no memory"],
)
def test_a_fault_of_the_cache_changes_no_answer(
    collhub,
    cache: Path,
    answer: str,
    empty: Path,
    tmp_path: Path,
    fault: Fault,
    action: Callable[[str], None],
    cause: str,
    state: str,
) -> None:
    entry = files_of(contents(cache))
    filled = tmp_path / "filled"
    restore(filled, cache)
    before = {"empty": empty, "filled": filled}[state]
    fault.counts_reads = True
    restore(cache, before)
    operations = count_operations(fault, cache, lambda: collhub(*COMPARE).code)
    assert operations > 0
    fault.action = action
    for number in range(1, operations + 1):
        restore(cache, before)
        fault.folder, fault.left = str(cache), number
        run = collhub(*COMPARE)
        assert fault.folder is None
        assert files_of(contents(cache)) in ({}, entry), f"operation {number}"
        if action is lack_memory:
            assert (run.code, run.err) == (1, NO_MEMORY), f"operation {number}"
            continue
        assert (run.code, run.out) == (0, answer), f"operation {number}"
        # A file that cannot be read is measured again and replaced, without a word.
        assert cause in run.err or files_of(contents(cache)) == entry
        assert len(run.err.replace(NOMINAL_NOTE, "").splitlines()) <= 1, run.err
    restore(cache, before)
    assert collhub(*COMPARE).out == answer


def test_a_kill_leaves_no_file_that_stays(cache: Path, answer: str, empty: Path) -> None:
    entry = files_of(contents(cache))
    injections = []
    for number in range(1, 8):
        # Killed twice at the same operation, then asked again.
        injections += [Injection(number), Injection(number, continues=True)]
        injections += [Injection(is_none=True, continues=True)]
    outcomes = run_with_faults(COMPARE, cache, injections, before=empty, counts_reads=True)
    assert {outcome.code for outcome in outcomes} == {-9, 0}
    for outcome in outcomes:
        files = files_of(outcome.contents)
        assert {name: data for name, data in files.items() if name in entry} in ({}, entry)
        # At most one unfinished file, however often the process is killed.
        assert len(files) <= 1, outcome.injection
        if outcome.code == 0:
            assert (outcome.out, files) == (answer, entry), outcome.injection


@pytest.mark.parametrize("limit", [1, 100])
def test_an_entry_of_which_a_part_fits_is_not_left(
    cache: Path, answer: str, tmp_path: Path, limit: int
) -> None:
    # Writing fails after this many bytes: Python ignores the signal, and write() gives EFBIG.
    result = subprocess.run(
        [sys.executable, "-P", "-B", "-m", "hub_core.cli.main", *COMPARE],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path / "other")},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )
    assert (result.returncode, result.stdout) == (0, answer)
    assert os.strerror(errno.EFBIG) in result.stderr
    assert files_of(contents(tmp_path / "other" / "collhub" / "compare")) == {}
