"""The executor `torch`: right results, an end within the limit whatever happens, and clear words where torch is absent."""

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
from collhub_torch import health
from hub_core.execution.data import element_type, exact_inputs
from hub_core.execution.judgement import judge
from hub_core.execution.levels import LevelledProgram, levelled_program
from hub_core.execution.rank_tasks import rank_tasks
from hub_core.testing.planted import without_send

import hub_core
from hub_core.model import Algorithm, InputError, PluginError, ReduceOp
from hub_core.pipeline import work as pipeline
from hub_core.plugin_api import ExecutionRequest
from hub_core.testing.samples import all_samples

HAS_TORCH = importlib.util.find_spec("torch") is not None
needs_torch = pytest.mark.skipif(
    not HAS_TORCH, reason="torch is not installed: python -m pip install 'collhub-torch[torch]'"
)
# Importing torch takes seconds of a busy core, and every execution does that once.
slow = pytest.mark.slow
SAMPLES = all_samples(4)


# ---- one engine in this process ---------------------------------------------------------------------------------------


@needs_torch
@pytest.mark.parametrize(
    "dtype_name", ["float16", "bfloat16", "float32", "float64", "int32", "int64"]
)
def test_engine_keeps_every_element_type_and_reduces_as_numpy_does(dtype_name: str) -> None:
    if dtype_name == "bfloat16":
        pytest.importorskip("ml_dtypes")
    import torch
    from collhub_torch.engine import TorchEngine

    algorithm, dtype = SAMPLES["ring-all-reduce"], element_type(dtype_name)
    program = levelled_program(algorithm, True)
    inputs = exact_inputs(program, 2, dtype, ReduceOp.SUM)
    request = ExecutionRequest(algorithm, program, inputs, ReduceOp.SUM, dtype.type(7))
    task = next(rank_tasks(request))
    engine = TorchEngine(task, torch.device("cpu"), is_batched=False)
    engine.fill(task)
    engine.reduce(engine.part(0, 4), engine.part(4, 4))
    engine.copy(engine.part(6, 2), engine.part(0, 2))
    expected = inputs[0].copy()
    expected[:4] += expected[4:]
    expected[6:8] = expected[:2]
    output = engine.output(task)
    assert output.dtype == dtype
    assert output.tobytes() == expected.tobytes()


# ---- processes ---------------------------------------------------------------------------------------------------------


def is_right(
    name: str, dtype_name: str = "int64", op: ReduceOp = ReduceOp.SUM, **options: str
) -> bool:
    algorithm, dtype = SAMPLES[name], element_type(dtype_name)
    program = levelled_program(algorithm, not algorithm.collective.out_of_place)
    inputs = exact_inputs(program, 500, dtype, op)
    result = pipeline.execute(
        algorithm, inputs, name="torch", program=program, reduce_op=op, repeats=2, options=options
    )
    assert (len(result.repeat_times_s), len(result.native_times_s)) == (2, 2)
    return judge(algorithm.collective, inputs, result.outputs, op, True).is_right


@needs_torch
@slow
@pytest.mark.parametrize("name", sorted({*SAMPLES} - {"shift-to-next"}))
def test_samples_give_what_the_collective_promises(name: str) -> None:
    assert is_right(name)


@needs_torch
@slow
@pytest.mark.parametrize(
    ("dtype_name", "op"),
    [("float16", ReduceOp.PROD), ("bfloat16", ReduceOp.SUM), ("float32", ReduceOp.AVG)],
)
def test_other_element_types_and_operators_are_exact(dtype_name: str, op: ReduceOp) -> None:
    if dtype_name == "bfloat16":
        pytest.importorskip("ml_dtypes")
    assert is_right("ring-all-reduce", dtype_name, op)


@needs_torch
@slow
def test_levels_may_be_batches() -> None:
    assert is_right("all-pairs-all-reduce", batch="true")


def failure(
    algorithm: Algorithm, program: LevelledProgram, timeout_s: float, repeats: int = 1
) -> InputError:
    inputs = exact_inputs(program, 500, np.dtype(np.float32), ReduceOp.SUM)
    with pytest.raises(InputError) as caught:
        pipeline.execute(
            algorithm, inputs, name="torch", program=program, timeout_s=timeout_s, repeats=repeats
        )
    return caught.value


def processes() -> list[int]:
    """Processes of this executor, the youngest last."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if b"collhub_torch.rank" in (process / "cmdline").read_bytes().split(b"\0"):
                found.append(int(process.name))
        except OSError:
            continue
    return sorted(found)


def wait_until(is_so: Callable[[], bool], limit_s: float = 60.0) -> bool:
    deadline = time.monotonic() + limit_s
    while not is_so() and time.monotonic() < deadline:
        time.sleep(0.05)
    return is_so()


@needs_torch
@slow
def test_a_deadlock_ends_within_the_limit_with_positions() -> None:
    algorithm = SAMPLES["ring-all-reduce"]
    start = time.monotonic()
    error = failure(algorithm, without_send(levelled_program(algorithm, True)), timeout_s=25.0)
    assert time.monotonic() - start < 40
    assert error.diagnostics[0].code == "deadlock"
    assert "waits for rank" in error.diagnostics[1].message
    assert wait_until(lambda: not processes())


@needs_torch
@slow
@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="finding the ranks needs /proc")
def test_a_rank_that_is_killed_ends_all() -> None:
    algorithm = SAMPLES["ring-all-reduce"]

    def kill_one() -> None:
        if wait_until(lambda: len(processes()) >= 5):
            os.kill(processes()[-1], signal.SIGKILL)

    thread = threading.Thread(target=kill_one)
    thread.start()
    start = time.monotonic()
    error = failure(algorithm, levelled_program(algorithm, True), timeout_s=120.0, repeats=100000)
    thread.join()
    assert time.monotonic() - start < 90
    assert error.diagnostics[0].code == "rank-died"
    assert "was ended by signal 9" in error.diagnostics[0].message
    assert wait_until(lambda: not processes())


@needs_torch
@slow
def test_gpus_that_are_not_there_are_told() -> None:
    import torch

    if torch.cuda.device_count() >= 4:
        pytest.skip("this machine has GPUs")
    with pytest.raises(PluginError, match="a GPU for each of the 4 ranks"):
        is_right("ring-all-reduce", device="cuda")


@needs_torch
@slow
def test_script_runs_under_torchrun(tmp_path: Path) -> None:
    hub_core.write(SAMPLES["ring-all-reduce"], tmp_path / "ring", format="chakra")
    start = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "4",
        "-m",
        "collhub_torch",
    ]
    command = [*start, str(tmp_path / "ring"), "--size", "64KiB", "--json"]
    done = subprocess.run(command, capture_output=True, check=True, timeout=120)
    assert json.loads(done.stdout)["ok"] is True


@needs_torch
def test_script_outside_torchrun_says_how_to_start_it() -> None:
    environment = {
        name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")
    }
    command = [sys.executable, "-m", "collhub_torch", "ring", "--size", "64KiB"]
    done = subprocess.run(command, capture_output=True, check=False, timeout=60, env=environment)
    assert done.returncode == 2
    assert b"start it by torchrun" in done.stderr


# ---- without torch -----------------------------------------------------------------------------------------------------


def test_absent_torch_is_told_with_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    algorithm = SAMPLES["ring-all-reduce"]
    inputs = exact_inputs(levelled_program(algorithm, True), 1, np.dtype(np.int64), ReduceOp.SUM)
    with pytest.raises(PluginError, match="torch, which is not installed") as caught:
        pipeline.execute(algorithm, inputs, name="torch")
    assert "the executor numpy works without it" in caught.value.diagnostics[0].cure


def test_doctor_tells_whether_torch_is_there() -> None:
    (line,) = health.check({})
    assert line.is_healthy
    assert ("collhub-torch[torch]" in line.details) != HAS_TORCH
