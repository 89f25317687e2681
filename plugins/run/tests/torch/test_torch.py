"""The executor `torch`: right results, an end in time whatever happens, clear words without it."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from collhub_execution import element_type, levelled_request, rank_tasks
from collhub_execution.testing import LaunchedExecutor, request_for
from collhub_torch import executor as torch_executor
from collhub_torch.executor import execute, run_in_processes
from collhub_torch.plugin import TorchOptions

import hub_core
from hub_core.model import PluginError, ReduceOp
from hub_core.plugin_api import CheckRequest, NoOptions
from hub_core.testing import all_samples

HAS_TORCH = importlib.util.find_spec("torch") is not None
needs_torch = pytest.mark.skipif(
    not HAS_TORCH, reason="torch is not installed: python -m pip install torch"
)
# Importing torch takes seconds of a busy core, and every execution does that once.
slow = pytest.mark.slow
SAMPLES = all_samples(4)


@pytest.fixture
def ranks() -> Iterator[LaunchedExecutor]:
    """The executor with its defaults; no process may be left."""
    executor = executor_with(TorchOptions())
    yield executor
    assert executor.leaves_nothing(limit_s=60.0)


def executor_with(options: TorchOptions) -> LaunchedExecutor:
    return LaunchedExecutor(
        partial(execute, options=options),
        partial(run_in_processes, options=options),
        module="collhub_torch.rank",
        # The program that forks the ranks is one more.
        helpers=1,
    )


# ---- one engine in this process ------------------------------------------------------------------


@needs_torch
@pytest.mark.parametrize(
    "dtype_name", ["float16", "bfloat16", "float32", "float64", "int32", "int64"]
)
def test_engine_keeps_every_element_type_and_reduces_as_numpy_does(dtype_name: str) -> None:
    if dtype_name == "bfloat16":
        pytest.importorskip("ml_dtypes")
    import torch
    from collhub_torch.rank import TensorMemory

    dtype = element_type(dtype_name)
    request = request_for(SAMPLES["ring-all-reduce"], dtype, elements=2, in_place=True)
    task = next(rank_tasks(levelled_request(request)))
    memory = TensorMemory(task, torch.device("cpu"))
    memory.fill(task)
    memory.reduce(memory.part(0, 4), memory.part(4, 4))
    memory.copy(memory.part(6, 2), memory.part(0, 2))
    expected = request.inputs[0].copy()
    expected[:4] += expected[4:]  # type: ignore[operator]
    expected[6:8] = expected[:2]
    output = memory.output(task)
    assert output.dtype == dtype
    assert output.tobytes() == expected.tobytes()


# ---- processes -----------------------------------------------------------------------------------


@needs_torch
@slow
@pytest.mark.parametrize("name", sorted({*SAMPLES} - {"shift-to-next"}))
def test_samples_give_what_the_collective_promises(ranks: LaunchedExecutor, name: str) -> None:
    ranks.check_result(SAMPLES[name], native_runs=2)


@needs_torch
@slow
@pytest.mark.parametrize(
    ("dtype_name", "op"),
    [("float16", ReduceOp.PROD), ("bfloat16", ReduceOp.SUM), ("float32", ReduceOp.AVG)],
)
def test_other_element_types_and_operators_are_exact(
    ranks: LaunchedExecutor, dtype_name: str, op: ReduceOp
) -> None:
    if dtype_name == "bfloat16":
        pytest.importorskip("ml_dtypes")
    ranks.check_result(SAMPLES["ring-all-reduce"], dtype_name, op, native_runs=2)


@needs_torch
@slow
def test_modules_in_the_working_folder_are_not_executed(
    ranks: LaunchedExecutor, tmp_path: Path
) -> None:
    ranks.check_working_folder(tmp_path, "torch", "collhub_torch", native_runs=2)


@needs_torch
@slow
def test_levels_may_be_batches() -> None:
    batching = executor_with(TorchOptions(batch=True))
    batching.check_result(SAMPLES["all-pairs-all-reduce"], native_runs=2)


@needs_torch
@slow
def test_a_deadlock_ends_within_the_limit_with_positions(ranks: LaunchedExecutor) -> None:
    ranks.check_deadlock(timeout_s=25.0, limit_s=40.0)


@needs_torch
@slow
def test_a_rank_that_is_killed_ends_all(ranks: LaunchedExecutor) -> None:
    error = ranks.check_killed_rank(timeout_s=120.0, limit_s=90.0)
    assert "was ended by signal 9" in error.diagnostics[0].message


@needs_torch
@slow
def test_ranks_listen_to_their_own_machine_alone(
    ranks: LaunchedExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What a user has set for a cluster does not hold here.
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "no-such-interface")
    assert ranks.find_foreign_listeners(seconds=8.0) == set()


@needs_torch
@slow
def test_gpus_that_are_not_there_are_told() -> None:
    import torch

    if torch.cuda.device_count() >= 4:
        pytest.skip("this machine has GPUs")
    request = request_for(SAMPLES["ring-all-reduce"], elements=500)
    with pytest.raises(PluginError, match="a GPU for each of the 4 ranks"):
        execute(request, TorchOptions(device="cuda"))


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


# ---- without torch -------------------------------------------------------------------------------


def test_absent_torch_is_told_with_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    request = request_for(SAMPLES["ring-all-reduce"], elements=1, in_place=True)
    with pytest.raises(PluginError, match="torch, which is not installed") as caught:
        execute(request, TorchOptions())
    assert "the executor numpy works without it" in caught.value.diagnostics[0].cure


def test_doctor_tells_whether_torch_is_there() -> None:
    report = torch_executor.check(CheckRequest(), NoOptions())
    (line,) = report.lines
    assert report.ok
    assert line.is_ok
    assert ("pip install torch" in line.details) != HAS_TORCH
