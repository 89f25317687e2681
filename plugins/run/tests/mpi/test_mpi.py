"""The executor `mpi`: right results, an end in time whatever happens, clear words without MPI."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from collhub_execution import FAILED, JobFolder, execute_levelled
from collhub_execution.testing import LaunchedExecutor, levelled_for, request_for
from collhub_mpi import executor
from collhub_mpi.plugin import MpiOptions

import hub_core
from hub_core.model import PluginError, ReduceOp, UsageError
from hub_core.plugin_api import CheckRequest, NoOptions
from hub_core.testing import all_samples

HAS_MPI = importlib.util.find_spec("mpi4py") is not None
needs_mpi = pytest.mark.skipif(
    not HAS_MPI, reason="mpi4py is not installed: python -m pip install mpi4py mpich"
)
SAMPLES = all_samples(4)

# One rank that sends to itself: this process itself is not to start MPI.
TWO_RUNS = """
import numpy as np
from collhub_execution import Post
from collhub_execution.rank_plans import MessageEnd
from collhub_mpi.rank import MpiTransport
from mpi4py import MPI

source, target = np.arange(5, dtype=np.int16), np.empty(5, np.int16)
sends, receives = ([Post(MessageEnd(0, 0, 0, 0, 5, False), part)] for part in (source, target))
post = MpiTransport(MPI.COMM_SELF).prepare(sends, receives)
posted = []
for run in range(2):
    source += 1
    target[:] = -1
    posted.append(list(post()))
    for message in posted[run]:
        message.wait()
    assert target.tolist() == source.tolist()
assert all(first is second for first, second in zip(*posted, strict=True))
"""

# The only rank of a job whose folder is the first argument.
FAILING_START = """
from collhub_mpi import rank

def fail(world: object) -> None:
    raise OSError("no shared memory")

rank.drop_names = fail
rank.main()
"""


@pytest.fixture
def ranks() -> Iterator[LaunchedExecutor]:
    """The executor with its defaults; no process may be left."""
    launched = LaunchedExecutor(
        partial(executor.execute, options=MpiOptions()),
        partial(executor.run_in_processes, options=MpiOptions()),
        module="collhub_mpi.rank",
    )
    yield launched
    assert launched.leaves_nothing(limit_s=20.0)


@needs_mpi
@pytest.mark.parametrize("name", ["ring-all-reduce", "binomial-broadcast", "direct-all-to-all"])
def test_samples_give_what_the_collective_promises(ranks: LaunchedExecutor, name: str) -> None:
    ranks.check_result(SAMPLES[name], native_runs=2)


@needs_mpi
@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({*SAMPLES} - {"shift-to-next"}))
def test_all_samples_give_what_the_collective_promises(ranks: LaunchedExecutor, name: str) -> None:
    ranks.check_result(SAMPLES[name], native_runs=2)


@needs_mpi
@pytest.mark.parametrize(
    ("dtype_name", "op", "native_runs"),
    [("float16", ReduceOp.PROD, 0), ("float32", ReduceOp.AVG, 2)],
)
def test_other_element_types_and_operators_are_exact(
    ranks: LaunchedExecutor, dtype_name: str, op: ReduceOp, native_runs: int
) -> None:
    ranks.check_result(SAMPLES["ring-all-reduce"], dtype_name, op, native_runs=native_runs)


@needs_mpi
def test_every_run_starts_the_same_messages_again_and_mpi_ends_without_complaint() -> None:
    done = subprocess.run([sys.executable, "-c", TWO_RUNS], capture_output=True, timeout=60)
    # MPICH names requests that nobody gave back.
    assert (done.returncode, done.stderr) == (0, b"")


@needs_mpi
def test_an_error_of_the_start_is_stored_in_the_folder_of_the_job(tmp_path: Path) -> None:
    job = JobFolder(tmp_path)
    with job.written(levelled_for(all_samples(1)["ring-all-reduce"])):
        command = [sys.executable, "-c", FAILING_START, str(tmp_path)]
        assert subprocess.run(command, timeout=60).returncode == FAILED
        assert "no shared memory" in str(job.failure())


@needs_mpi
def test_modules_in_the_working_folder_are_not_executed(
    ranks: LaunchedExecutor, tmp_path: Path
) -> None:
    ranks.check_working_folder(tmp_path, "mpi4py", "collhub_mpi", native_runs=2)


@needs_mpi
def test_a_deadlock_ends_within_the_limit_with_positions(ranks: LaunchedExecutor) -> None:
    ranks.check_deadlock(timeout_s=6.0, limit_s=20.0)


@needs_mpi
def test_a_rank_that_is_killed_ends_all(ranks: LaunchedExecutor) -> None:
    ranks.check_killed_rank(timeout_s=60.0, limit_s=40.0)


@needs_mpi
def test_ranks_listen_to_their_own_machine_alone(ranks: LaunchedExecutor) -> None:
    assert ranks.find_foreign_listeners(seconds=3.0) == set()


@needs_mpi
def test_script_runs_under_mpiexec(tmp_path: Path) -> None:
    hub_core.write(SAMPLES["ring-all-reduce"], tmp_path / "ring", format="chakra")
    command = [
        *executor.find_launcher(),
        "-n",
        "4",
        sys.executable,
        "-m",
        "collhub_mpi",
        str(tmp_path / "ring"),
    ]
    done = subprocess.run(
        [*command, "--size", "64KiB", "--json"], capture_output=True, check=True, timeout=60
    )
    assert json.loads(done.stdout)["ok"] is True
    rounded = subprocess.run(
        [*command, "--size", "65551B", "--json"], capture_output=True, check=True, timeout=60
    )
    assert json.loads(rounded.stdout)["collective_bytes"] == 65536
    assert rounded.stderr.count(b"65536 bytes are run") == 1


def test_absent_mpi4py_is_told_with_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    request = request_for(SAMPLES["ring-all-reduce"], elements=1, in_place=True)
    with pytest.raises(PluginError, match="mpi4py, which is not installed") as caught:
        executor.execute(request, MpiOptions())
    assert "the executor numpy works without it" in caught.value.diagnostics[0].cure


def test_absent_mpiexec_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name, path=None: None)
    with pytest.raises(PluginError, match="mpiexec, which is not on the path"):
        executor.find_launcher()


def test_unclosed_quote_in_the_launcher_is_refused() -> None:
    request = request_for(SAMPLES["ring-all-reduce"])
    options = MpiOptions(launcher="mpiexec --host 'a")
    with pytest.raises(UsageError, match="option launcher: No closing quotation"):
        execute_levelled(request, partial(executor.run_in_processes, options=options))


def test_open_mpi_is_told_to_take_more_ranks_than_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher = tmp_path / "mpiexec"
    launcher.write_text("#!/bin/sh\necho 'mpiexec (Open MPI) 5.0.11'\n")
    launcher.chmod(0o755)
    monkeypatch.setattr("shutil.which", lambda name, path=None: str(launcher))
    assert list(executor.find_launcher())[:2] == [str(launcher), "--oversubscribe"]


def test_mpich_starts_ranks_without_listening(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher, forking = tmp_path / "mpiexec", tmp_path / "mpiexec.gforker"
    launcher.write_text("#!/bin/sh\necho 'HYDRA build details:'\n")
    launcher.chmod(0o755)
    monkeypatch.setattr("shutil.which", lambda name, path=None: str(launcher))
    assert executor.find_launcher() == [str(launcher)]
    forking.touch()
    assert executor.find_launcher() == [str(forking)]


def test_doctor_tells_whether_mpi_is_there() -> None:
    first = executor.check(CheckRequest(), NoOptions()).lines[0]
    assert first.is_ok
    assert ("pip install mpi4py mpich" in first.details) != HAS_MPI


def test_doctor_tells_of_mpi4py_without_mpiexec(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("collhub_mpi.executor.version", lambda name: "4.1.2")
    monkeypatch.setattr("shutil.which", lambda name, path=None: None)
    report = executor.check(CheckRequest(), NoOptions())
    assert not report.ok
    assert [line.is_ok for line in report.lines] == [True, False]
