"""The emitted program, built for the CPU with the test double of NCCL."""

from __future__ import annotations

import importlib
import json
import queue
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from collhub_execution import RecordKind
from collhub_nccl.options import NcclProgramOptions
from collhub_nccl.programs.emit import check, write
from collhub_nccl.programs.schedule_tables import format_schedule_json
from emitted import link, run, tables

from hub_core import parse_topology, synthesize
from hub_core.model import Algorithm, Collective, CollectiveKind, PluginError, UsageError
from hub_core.plugin_api import CheckRequest, NoOptions, WriteResult
from hub_core.testing import samples

pytestmark = pytest.mark.once


@pytest.fixture(scope="session")
def ring(folder: Path) -> Path:
    """The program of a ring all-reduce of four ranks, in a folder of its own."""
    path = folder.parent / "ring"
    if not path.exists():
        shutil.copytree(folder, path)
        link(path, tables(samples.ring_all_reduce(4)))
    return path


def synthesized(name: str, topology: str, kind: CollectiveKind) -> Algorithm:
    network = parse_topology(topology)
    root = 0 if kind is CollectiveKind.BROADCAST else None
    collective = Collective(kind, network.num_npus, network.num_npus, root)
    try:
        return synthesize(collective, network, 1 << 20, name=name).algorithm
    except PluginError as error:
        pytest.skip(str(error))


ALGORITHMS: dict[str, Callable[[], Algorithm]] = {
    "ring": lambda: samples.ring_all_reduce(8),
    "tree": lambda: samples.binomial_broadcast(6),
    "tree-reduce": lambda: samples.binomial_reduce(5),
    "all-to-all": lambda: samples.direct_all_to_all(5),
    "staged-all-to-all": lambda: samples.staged_all_to_all(4),
    "custom": lambda: samples.shift_to_next(3),
    "tacos": lambda: synthesized(
        "tacos", "mesh:2x2?bandwidth=50GiB/s&latency=500ns", CollectiveKind.ALL_GATHER
    ),
    "blink": lambda: synthesized("blink", "dgx1v", CollectiveKind.BROADCAST),
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_result_is_what_the_collective_defines(folder: Path, name: str) -> None:
    stated = tables(ALGORITHMS[name]())
    link(folder, stated)
    for dtype in ("float16", "int64"):
        found = run(folder, "--dtype", dtype, "--size", str(stated.program.unit_count * 800))
        assert found.status == 0, found.errors
        assert found.report is not None
        assert found.report["ok"] is True
        assert found.report["max_abs_error"] == 0


@pytest.mark.parametrize(
    "name", ["ring-all-gather", "ring-reduce-scatter", "direct-gather", "direct-scatter"]
)
@pytest.mark.parametrize("in_place", [False, True])
def test_calls_in_place_and_out_of_place_are_right(folder: Path, name: str, in_place: bool) -> None:
    algorithm = samples.all_samples(4)[name]
    if in_place and not algorithm.collective.in_place:
        pytest.skip("the sample does not serve calls in place")
    link(folder, tables(algorithm, in_place))
    found = run(folder)
    assert found.status == 0, found.errors
    assert found.report is not None
    assert found.report["in_place"] is in_place


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int32", "int64"])
def test_every_dtype_runs_with_every_operator(ring: Path, dtype: str) -> None:
    for op in ("sum", "prod", "min", "max", "avg"):
        found = run(ring, "--dtype", dtype, "--op", op, "--size", "4096")
        assert found.status == 0, (op, found.errors)
        assert found.report is not None
        assert (found.report["matches_definition"], found.report["matches_nccl"]) == (True, True)
        assert (found.report["reduce_op"], found.report["ranks_agree_bitwise"]) == (op, True)


def test_ranks_may_be_processes_and_leave_no_file_behind(ring: Path, tmp_path: Path) -> None:
    command = ["./collhub_double", "--id-file", str(tmp_path / "id"), "--size", "200000"]
    # Messages of 50 000 bytes go in several pieces.
    command += ["--repeats", "2", "--warmups", "0", "--dtype", "float16"]
    folder = tmp_path / "temporary"
    folder.mkdir()
    environment = {"TMPDIR": str(folder), "COLLHUB_DOUBLE_TIMEOUT_S": "60"}
    running = [
        subprocess.Popen(
            [*command, "--rank", str(rank)],
            cwd=ring,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for rank in range(4)
    ]
    for rank, process in enumerate(running):
        output, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors.decode()
        report = json.loads(output)
        assert (report["first_rank"], report["ok"], report["matches_nccl"]) == (rank, True, True)
    assert list(folder.iterdir()) == []


def test_report_states_bandwidths_as_nccl_tests_does(ring: Path) -> None:
    report = run(ring, "--size", "65536").report
    assert report is not None
    names = ("time_s", "algorithm_bandwidth_bytes_per_s", "bus_bandwidth_bytes_per_s")
    time_s, algorithm, bus = (float(str(report[name])) for name in names)
    assert algorithm == pytest.approx(65536 / time_s, rel=1e-6)
    assert bus == pytest.approx(algorithm * 2 * 3 / 4, rel=1e-6)


def test_size_that_is_not_whole_elements_is_rounded_down_and_said(ring: Path) -> None:
    found = run(ring, "--size", "1001")
    assert found.status == 0
    assert "992 bytes are taken" in found.errors
    assert found.report is not None
    assert found.report["collective_bytes"] == 992


def test_unknown_dtype_is_refused_with_the_known_ones(ring: Path) -> None:
    found = run(ring, "--dtype", "float8")
    assert found.status == 2
    assert "float16, bfloat16" in found.errors


def test_sends_and_receives_in_groups_of_their_own_deadlock_and_every_rank_is_named(
    folder: Path,
) -> None:
    stated = tables(samples.ring_all_reduce(4))
    records = stated.records.copy()
    is_receive_or_later = records[:, 0] >= RecordKind.RECV
    records[:, 3] = 2 * records[:, 3] + is_receive_or_later
    records = records[np.lexsort((records[:, 3], stated.program.rank))]
    link(folder, replace(stated, records=records))
    found = run(folder, limit_s=0.5)
    assert (found.status, found.report) == (3, None)
    # The first rank whose time is up speaks for all.
    assert re.search(r"deadlock: rank \d waits: the send to rank \d", found.errors)
    assert all(f"rank {rank} stands at level 2" in found.errors for rank in range(4))


def test_receive_of_another_size_is_refused(folder: Path) -> None:
    stated = tables(samples.halving_doubling_all_reduce(4))
    records = stated.records.copy()
    records[np.flatnonzero(records[:, 0] == RecordKind.RECV)[0], 7] = 1
    link(folder, replace(stated, records=records))
    found = run(folder, limit_s=5)
    assert found.status == 3
    assert "of 65536 elements meets a send of 131072" in found.errors


def test_send_and_receive_of_one_group_in_the_same_memory_are_refused(folder: Path) -> None:
    stated = tables(samples.ring_all_gather(3), in_place=True)
    records = stated.records.copy()
    is_receive = records[:, 0] == RecordKind.RECV
    records[is_receive, 6] = records[np.flatnonzero(is_receive) - 1, 5]
    link(folder, replace(stated, records=records))
    found = run(folder, limit_s=5)
    assert found.status == 3
    assert "touch the same memory in one group" in found.errors


def test_wrong_contents_are_reported(folder: Path) -> None:
    stated = tables(samples.direct_all_to_all(3))
    records = stated.records.copy()
    send = np.flatnonzero(records[:, 0] == RecordKind.SEND)[0]
    records[send, 5] = (records[send, 5] + 1) % 3
    link(folder, replace(stated, records=records))
    found = run(folder)
    assert found.status == 1
    assert found.report is not None
    assert found.report["matches_definition"] is False
    assert "elements of OUTPUT differ from the definition" in found.errors


def test_program_ends_within_the_time_limit(ring: Path) -> None:
    found = run(ring, "--repeats", "100000000", "--size", "16", "--timeout", "1")
    assert found.status == 3
    assert "not done after 1 seconds" in found.errors


CONVERSIONS = """
#include <cstdio>
#include "elements.hpp"
int main() {
  for (unsigned bits = 0; bits < 65536; ++bits) {
    const float wide = collhub::widened(collhub::Float16{static_cast<std::uint16_t>(bits)});
    std::fwrite(&wide, sizeof wide, 1, stdout);
  }
  for (float value; std::fread(&value, sizeof value, 1, stdin) == 1;) {
    const auto rounded = collhub::Rounded<collhub::Float16>::of(value);
    std::fwrite(&rounded, sizeof rounded, 1, stdout);
  }
}
"""


def test_float16_is_converted_as_numpy_converts_it(folder: Path) -> None:
    (folder / "conversions.cpp").write_text(CONVERSIONS, encoding="ascii")
    subprocess.run(
        ["g++", "-std=c++17", "-o", "conversions", "conversions.cpp"],
        cwd=folder,
        timeout=60,
        check=True,
    )
    halves = np.arange(65536, dtype=np.uint16).view(np.float16).astype(np.float32)
    rng = np.random.default_rng(1)
    floats = np.concatenate(
        [
            halves[np.isfinite(halves)] * np.float32(1 + 2.0**-11),
            rng.uniform(-7e4, 7e4, 10000),
            rng.normal(0, 1e-5, 10000),
        ]
    )
    floats = floats.astype(np.float32)
    done = subprocess.run(
        ["./conversions"],
        cwd=folder,
        input=floats.tobytes(),
        capture_output=True,
        timeout=60,
        check=True,
    )
    np.testing.assert_array_equal(np.frombuffer(done.stdout[: 4 * 65536], np.float32), halves)
    with np.errstate(over="ignore"):
        expected = floats.astype(np.float16)
    np.testing.assert_array_equal(np.frombuffer(done.stdout[4 * 65536 :], np.float16), expected)


def test_program_is_written_for_the_mode_that_is_asked_for() -> None:
    algorithm = samples.ring_all_gather(2)
    facts = {}
    for mode in ("in-place", "out-of-place"):
        schedule = {
            artifact.name: artifact.content() for artifact in _written(algorithm, mode).artifacts
        }["schedule.json"]
        facts[mode] = json.loads(schedule)["in_place"]
    assert facts == {"in-place": True, "out-of-place": False}


def test_build_without_nvcc_says_what_works_instead(ring: Path) -> None:
    command = ["make", "-s", "NVCC=no-such-nvcc", "collhub_program"]
    done = subprocess.run(
        command, cwd=ring, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode != 0
    assert "run 'make double' for the CPU" in done.stdout


def test_gpus_newer_than_the_stated_architectures_get_ptx(ring: Path) -> None:
    # Without PTX, a library for sm_90 does not start on Blackwell.
    command = ["make", "-n", "-B", "library", "ARCHS=80 90"]
    done = subprocess.run(command, cwd=ring, capture_output=True, text=True, check=True)
    compiled = [line for line in done.stdout.splitlines() if "library.cu" in line]
    for code in ("code=sm_80", "code=sm_90", "arch=compute_90,code=compute_90"):
        assert any(code in line for line in compiled)


def test_cmake_without_nccl_says_how_to_name_it(ring: Path, tmp_path: Path) -> None:
    if shutil.which("cmake") is None or shutil.which("nvcc") is None:
        pytest.skip("cmake or nvcc is not installed")
    command = ["cmake", "-S", str(ring), "-B", str(tmp_path), "-DNCCL_HOME=/none"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if "NCCL_INCLUDE" in (tmp_path / "CMakeCache.txt").read_text() and done.returncode == 0:
        pytest.skip("NCCL is installed in the system")
    assert "-DNCCL_HOME=" in done.stderr
    assert "-DCOLLHUB_DOUBLE=ON" in done.stderr


def test_doctor_says_what_can_be_built(tmp_path: Path) -> None:
    (tmp_path / "g++").write_text("")
    (tmp_path / "g++").chmod(0o755)
    lines = check(CheckRequest(environment={"PATH": str(tmp_path)}), NoOptions()).lines
    assert [(line.subject, "not found" in line.details) for line in lines] == [
        ("g++", False),
        ("nvcc", True),
    ]


def test_mode_that_the_algorithm_does_not_serve_is_refused() -> None:
    with pytest.raises(UsageError, match="does not serve calls out-of-place"):
        _written(samples.ring_all_reduce(2), "out-of-place")


def test_losses_name_what_the_program_does_not_hold() -> None:
    algorithm = samples.ring_all_gather(2)
    features = [loss.feature for loss in _written(algorithm, "out-of-place").losses]
    # Not that it is for calls in place too: the library serves both.
    assert features == ["data and control dependencies"]


def _written(algorithm: Algorithm, mode: str) -> WriteResult:
    return write(algorithm, NcclProgramOptions(mode, None, 1))


def entry() -> ModuleType:
    """The Python entry, as a module."""
    return importlib.import_module("collhub_nccl.runtime.run_nccl4py")


def test_python_entry_runs_no_module_of_its_folder(tmp_path: Path) -> None:
    for artifact in _written(samples.ring_all_reduce(2), "in-place").artifacts:
        if artifact.name in ("run_nccl4py.py", "schedule.json"):
            (tmp_path / artifact.name).write_bytes(artifact.content())
    for module in ("nccl", "torch", "argparse", "json"):
        (tmp_path / f"{module}.py").write_text(f"open('{module} was run', 'w')\n")
    # As launchers start it: by its path, without -P.
    command = [sys.executable, "run_nccl4py.py", "--id-file", "id", "--rank", "0"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert list(tmp_path.glob("* was run")) == []
    # Here there is no GPU, or none of its libraries.
    assert done.returncode in (0, 1), done.stderr


def test_python_entry_takes_the_id_as_all_releases_of_nccl4py_give_it(tmp_path: Path) -> None:
    # `nccl4py` 0.1 to 0.6 have the property `as_bytes`; `bytes(id)` came with 0.3.
    nccl = SimpleNamespace(
        get_unique_id=lambda: SimpleNamespace(as_bytes=b"unique"),
        UniqueId=SimpleNamespace(from_bytes=lambda content: content),
    )
    arguments = SimpleNamespace(rank=0, id_file=tmp_path / "id")
    assert entry()._shared_id(nccl, arguments) == b"unique"


class Wires:
    """Messages of ranks that are threads, by (source, destination).

    A group posts its sends before it waits.
    """

    def __init__(self, num_ranks: int) -> None:
        self.queues: dict[tuple[int, int], queue.Queue[Any]] = {
            (source, target): queue.Queue()
            for source in range(num_ranks)
            for target in range(num_ranks)
        }

    def calls(self, module: ModuleType, rank: int, copied: Callable[[Any], Any] = np.copy) -> Any:
        pending: list[tuple[Any, int]] = []

        @contextmanager
        def group() -> Iterator[None]:
            yield
            for region, peer in pending:
                region[:] = self.queues[peer, rank].get(timeout=30)
            pending.clear()

        return module.Calls(
            lambda region, peer: self.queues[rank, peer].put(copied(region)),
            lambda region, peer: pending.append((region, peer)),
            group,
            np.copyto,
            lambda target, source: np.add(target, source, out=target),
        )


def test_python_entry_runs_the_same_records() -> None:
    module, n, block = entry(), 4, 3
    schedule = json.loads(format_schedule_json(tables(samples.ring_all_reduce(n))))
    given = [np.arange(n * block) + 100.0 * rank for rank in range(n)]
    wires = Wires(n)
    memories = []
    for rank in range(n):
        layout = schedule["memory"][rank]
        memories.append(module.Buffers(np.zeros(layout["total"] * block), layout["begin"], block))
        memories[rank].region(module.INPUT, 0, n)[:] = given[rank]
    threads = [
        threading.Thread(
            target=module.run_records,
            args=(schedule["records"][rank], memories[rank], wires.calls(module, rank)),
        )
        for rank in range(n)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for memory in memories:
        np.testing.assert_array_equal(memory.region(module.OUTPUT, 0, n), sum(given))


def test_python_entry_gets_what_the_collective_defines_on_tensors() -> None:
    torch = pytest.importorskip("torch")
    module, n, block = entry(), 4, 5
    schedule = json.loads(format_schedule_json(tables(samples.ring_all_reduce(n))))
    for dtype, op in [
        ("float16", "sum"),
        ("int32", "prod"),
        ("bfloat16", "max"),
        ("int64", "avg"),
        ("float32", "min"),
    ]:
        wires, reduce = Wires(n), module.reductions(torch)[op]
        memories, threads = [], []
        for rank, layout in enumerate(schedule["memory"]):
            memory = torch.zeros(layout["total"] * block, dtype=getattr(torch, dtype))
            memories.append(module.Buffers(memory, layout["begin"], block))
            memories[rank].region(module.INPUT, 0, n).copy_(
                module.values(torch, rank, n * block, n, dtype, op)
            )
            calls = wires.calls(module, rank, torch.clone)
            calls = replace(calls, copy=lambda target, source: target.copy_(source), reduce=reduce)
            threads.append(
                threading.Thread(
                    target=module.run_records,
                    args=(schedule["records"][rank], memories[rank], calls),
                )
            )
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        for rank, memory in enumerate(memories):
            output = memory.region(module.OUTPUT, 0, n)
            if op == "avg":
                module.divide(output, n)
            for place, unit in module.promised(torch, schedule, rank, block, dtype, op):
                assert torch.equal(output[place], unit), (dtype, op, rank)
