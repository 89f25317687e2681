"""The executor `mpi`: right results, an end within the limit whatever happens, and clear words where MPI is absent."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from collhub_mpi import executor, health
from hub_core.execution.data import element_type, exact_inputs
from hub_core.execution.judgement import judge
from hub_core.execution.levels import LevelledProgram, levelled_program
from hub_core.testing.planted import without_send

import hub_core
from hub_core.model import Algorithm, InputError, PluginError, ReduceOp
from hub_core.pipeline import work as pipeline
from hub_core.testing.samples import all_samples

HAS_MPI = importlib.util.find_spec("mpi4py") is not None
needs_mpi = pytest.mark.skipif(
    not HAS_MPI, reason="mpi4py is not installed: python -m pip install 'collhub-mpi[mpich]'"
)
SAMPLES = all_samples(4)


def is_right(name: str, dtype_name: str = "int64", op: ReduceOp = ReduceOp.SUM) -> bool:
    algorithm, dtype = SAMPLES[name], element_type(dtype_name)
    program = levelled_program(algorithm, not algorithm.collective.out_of_place)
    inputs = exact_inputs(program, 500, dtype, op)
    result = pipeline.execute(
        algorithm, inputs, name="mpi", program=program, reduce_op=op, repeats=2
    )
    assert len(result.repeat_times_s) == 2
    assert len(result.native_times_s) == (0 if dtype_name == "float16" else 2)
    return judge(algorithm.collective, inputs, result.outputs, op, True).is_right


@needs_mpi
@pytest.mark.parametrize("name", ["ring-all-reduce", "binomial-broadcast", "direct-all-to-all"])
def test_samples_give_what_the_collective_promises(name: str) -> None:
    assert is_right(name)


@needs_mpi
@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({*SAMPLES} - {"shift-to-next"}))
def test_all_samples_give_what_the_collective_promises(name: str) -> None:
    assert is_right(name)


@needs_mpi
@pytest.mark.parametrize(
    ("dtype_name", "op"), [("float16", ReduceOp.PROD), ("float32", ReduceOp.AVG)]
)
def test_other_element_types_and_operators_are_exact(dtype_name: str, op: ReduceOp) -> None:
    assert is_right("ring-all-reduce", dtype_name, op)


def failure(
    algorithm: Algorithm, program: LevelledProgram, timeout_s: float, repeats: int = 1
) -> InputError:
    inputs = exact_inputs(program, 500, np.dtype(np.float32), ReduceOp.SUM)
    with pytest.raises(InputError) as caught:
        pipeline.execute(
            algorithm, inputs, name="mpi", program=program, timeout_s=timeout_s, repeats=repeats
        )
    return caught.value


def ranks() -> list[int]:
    """Processes of this executor."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"collhub_mpi.rank" in words and b"mpiexec" not in words[0]:
            found.append(int(process.name))
    return found


def wait_until(is_so: Callable[[], bool], limit_s: float = 20.0) -> bool:
    deadline = time.monotonic() + limit_s
    while not is_so() and time.monotonic() < deadline:
        time.sleep(0.05)
    return is_so()


@needs_mpi
def test_a_deadlock_ends_within_the_limit_with_positions() -> None:
    algorithm = SAMPLES["ring-all-reduce"]
    start = time.monotonic()
    error = failure(algorithm, without_send(levelled_program(algorithm, True)), timeout_s=6.0)
    assert time.monotonic() - start < 20
    assert error.diagnostics[0].code == "deadlock"
    assert "waits for rank" in error.diagnostics[1].message
    assert wait_until(lambda: not ranks())


@needs_mpi
@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="finding the ranks needs /proc")
def test_a_rank_that_is_killed_ends_all() -> None:
    algorithm = SAMPLES["ring-all-reduce"]

    def kill_one() -> None:
        if wait_until(lambda: len(ranks()) >= 4):
            os.kill(ranks()[0], signal.SIGKILL)

    thread = threading.Thread(target=kill_one)
    thread.start()
    start = time.monotonic()
    error = failure(algorithm, levelled_program(algorithm, True), timeout_s=60.0, repeats=100000)
    thread.join()
    assert time.monotonic() - start < 40
    assert error.diagnostics[0].code == "rank-died"
    assert wait_until(lambda: not ranks())


@needs_mpi
def test_script_runs_under_mpiexec(tmp_path: Path) -> None:
    hub_core.write(SAMPLES["ring-all-reduce"], tmp_path / "ring", format="chakra")
    command = [
        *executor.found_launcher(),
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
    wrong = subprocess.run(
        [*command, "--size", "65537B"], capture_output=True, check=False, timeout=60
    )
    assert wrong.returncode != 0
    assert b"use a multiple of 16 bytes" in wrong.stderr


def test_absent_mpi4py_is_told_with_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    algorithm = SAMPLES["ring-all-reduce"]
    inputs = exact_inputs(levelled_program(algorithm, True), 1, np.dtype(np.int64), ReduceOp.SUM)
    with pytest.raises(PluginError, match="mpi4py, which is not installed") as caught:
        pipeline.execute(algorithm, inputs, name="mpi")
    assert "the executor numpy works without it" in caught.value.diagnostics[0].cure


def test_absent_mpiexec_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name, path=None: None)
    with pytest.raises(PluginError, match="mpiexec, which is not on the path"):
        executor.found_launcher()


def test_open_mpi_is_told_to_take_more_ranks_than_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher = tmp_path / "mpiexec"
    launcher.write_text("#!/bin/sh\necho 'mpiexec (Open MPI) 5.0.11'\n")
    launcher.chmod(0o755)
    monkeypatch.setattr("shutil.which", lambda name, path=None: str(launcher))
    assert list(executor.found_launcher())[:2] == [str(launcher), "--oversubscribe"]


def test_doctor_tells_whether_mpi_is_there() -> None:
    first = health.check({})[0]
    assert first.is_healthy
    assert ("collhub-mpi[mpich]" in first.details) != HAS_MPI


def test_doctor_tells_of_mpi4py_without_mpiexec(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("collhub_mpi.health.version", lambda name: "4.1.2")
    monkeypatch.setattr("shutil.which", lambda name, path=None: None)
    assert [line.is_healthy for line in health.check({})] == [True, False]
