"""Loaded algorithms: the operator and the process group, on the test double of NCCL.

Most often ranks are threads of this process, which are started at once.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from collhub_execution.testing import in_threads
from collhub_torch import load
from collhub_torch.native_library import NativeLibrary, read_manifest

import hub_core
from hub_core.model import Algorithm, HubError, InputError, PluginError, UsageError
from hub_core.testing import samples

HAS_TORCH = importlib.util.find_spec("torch") is not None
needs_torch = pytest.mark.skipif(
    not HAS_TORCH, reason="torch is not installed: python -m pip install torch"
)
RANKS = 4
# Algorithms by the name in their functions.
ALGORITHMS: dict[str, Callable[[], Algorithm]] = {
    "sum": lambda: samples.ring_all_reduce(RANKS),
    "gather": lambda: samples.ring_all_gather(RANKS),
    "scatter": lambda: samples.ring_reduce_scatter(RANKS),
    "exchange": lambda: samples.direct_all_to_all(RANKS),
    "spread": lambda: samples.binomial_broadcast(RANKS),
    "collect": lambda: samples.binomial_reduce(RANKS),
}


def written(folder: Path, algorithm: Algorithm, name: str) -> Path:
    """A folder of the format `nccl`."""
    try:
        hub_core.write(algorithm, folder, format="nccl", options={"name": name})
    except UsageError as error:
        pytest.skip(str(error))
    return folder


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Built folders by name; what is the same for all is compiled once."""
    if shutil.which("g++") is None or shutil.which("make") is None:
        pytest.skip("g++ or make not found")
    found = {}
    for name, algorithm in ALGORITHMS.items():
        folder = written(tmp_path_factory.mktemp("load") / name, algorithm(), name)
        for shared in ("nccl.double.o", "cuda.double.o"):
            if found:
                shutil.copy2(next(iter(found.values())) / shared, folder / shared)
        command = ["make", "-s", "CXXFLAGS=-O0", f"libcollhub_{name}_double.so"]
        subprocess.run(command, cwd=folder, check=True, timeout=300)
        found[name] = folder
    return found


def on_ranks(work: Callable[[int, Any], Any]) -> list[Any]:
    """Results of work(rank, its gloo group of all ranks), a thread each."""
    import torch.distributed as dist

    store = dist.HashStore()
    return in_threads(lambda rank: work(rank, dist.ProcessGroupGloo(store, rank, RANKS)), RANKS)


def given(rank: int, count: int) -> Any:
    import torch

    return torch.arange(count, dtype=torch.float32) * (rank + 1)


# ---- the operator --------------------------------------------------------------------------------


@needs_torch
@pytest.mark.parametrize("count", [1, 7, 4096])
def test_operator_reduces_tensors_of_any_size(folders: dict[str, Path], count: int) -> None:
    import torch

    algorithm = load(folders["sum"], device="cpu")

    def on_rank(rank: int, group: Any) -> tuple[Any, Any]:
        name = algorithm.attach(group)
        source = given(rank, count)
        try:
            total = torch.ops.collhub.all_reduce_sum(source, "sum", name)
            mean = algorithm.op(source, "avg", name)
        finally:
            algorithm.detach(name)
        assert torch.equal(source, given(rank, count))
        return total, mean

    for total, mean in on_ranks(on_rank):
        assert torch.equal(total, given(9, count))
        assert torch.equal(mean, given(9, count) / RANKS)


@needs_torch
def test_operators_of_all_collectives_give_tensors_of_their_shapes(
    folders: dict[str, Path],
) -> None:
    import torch

    inputs = [torch.arange(24.0).reshape(8, 3) + 100 * rank for rank in range(RANKS)]
    stacked = torch.stack(inputs)
    expected: dict[str, Callable[[int], Any]] = {
        "sum": lambda rank: stacked.sum(0),
        "gather": lambda rank: torch.cat(inputs),
        "scatter": lambda rank: stacked.sum(0)[2 * rank : 2 * rank + 2],
        "exchange": lambda rank: torch.cat([part[2 * rank : 2 * rank + 2] for part in inputs]),
        "spread": lambda rank: inputs[0],
    }
    for name, result in expected.items():
        algorithm = load(folders[name], device="cpu")

        def on_rank(rank: int, group: Any, algorithm: Any = algorithm) -> Any:
            attached = algorithm.attach(group)
            try:
                return algorithm.op(inputs[rank], "sum", attached)
            finally:
                algorithm.detach(attached)

        for rank, output in enumerate(on_ranks(on_rank)):
            assert torch.equal(output, result(rank)), name


@needs_torch
def test_all_ranks_fail_if_rank_0_gets_no_id(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other ranks waited in the broadcast until its time limit."""
    from collhub_torch.native_library import NativeLibrary

    def fail(library: NativeLibrary) -> bytes:
        raise PluginError("ncclGetUniqueId: no network", code="nccl")

    monkeypatch.setattr(NativeLibrary, "new_id", fail)
    algorithm = load(folders["sum"], "cpu")

    def call(rank: int, group: Any) -> str:
        name = algorithm.attach(group)
        with pytest.raises(PluginError) as caught:
            algorithm.op(given(rank, 4), "sum", name)
        return str(caught.value)

    first, *others = on_ranks(call)
    assert "no network" in first
    assert all("rank 0 could not create an NCCL ID" in one for one in others)


@needs_torch
def test_operator_tells_the_compiler_its_shape(folders: dict[str, Path]) -> None:
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    load(folders["gather"], device="cpu")
    with FakeTensorMode():
        source = torch.empty(5, 2)
        assert torch.ops.collhub.all_gather_gather(source, "sum", "1").shape == (20, 2)


@needs_torch
def test_operator_refuses_what_the_library_cannot_take(folders: dict[str, Path]) -> None:
    import torch

    algorithm = load(folders["scatter"], device="cpu")

    def on_rank(rank: int, group: Any) -> list[str]:
        name = algorithm.attach(group)
        found = []
        for tensor, op, attached in (
            (torch.zeros(8, 8).t(), "sum", name),
            (torch.zeros(8, dtype=torch.bool), "sum", name),
            (torch.zeros(7), "sum", name),
            (torch.zeros(8), "xor", name),
            (torch.zeros(8), "sum", "nobody"),
        ):
            with pytest.raises(UsageError) as caught:
                algorithm.op(tensor, op, attached)
            found.append(str(caught.value))
        return found

    contiguous, dtype, parts, op, group = on_ranks(on_rank)[0]
    assert "is not contiguous" in contiguous
    assert "torch.bool, not one of float16" in dtype
    assert "no 4 equal parts" in parts
    assert "'xor' is not one of sum" in op
    assert "'nobody' is not attached" in group


# ---- the process group ---------------------------------------------------------------------------


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts of the calls that a library ran."""
    from collhub_torch.native_library import NativeLibrary

    found: list[int] = []
    run = NativeLibrary.run

    def counted(library: Any, communicator: int, call: Any) -> None:
        found.append(call.count)
        run(library, communicator, call)

    monkeypatch.setattr(NativeLibrary, "run", counted)
    return found


def group_of(algorithm: Any, group: Any, **window: int) -> Any:
    """The wrapper around a group, without the registry of torch, of which a process has one."""
    from collhub_torch.process_group import CollhubGroup, GroupOptions, SizeWindow

    options = GroupOptions(
        algorithm.session, algorithm.kind, algorithm.device, SizeWindow(**window)
    )
    return CollhubGroup(group, options)


@needs_torch
def test_group_runs_its_collective_by_the_algorithm_and_the_rest_by_its_fallback(
    folders: dict[str, Path], calls: list[int]
) -> None:
    import torch
    import torch.distributed as dist

    algorithm = load(folders["sum"], device="cpu")

    def on_rank(rank: int, below: Any) -> tuple[Any, Any, Any]:
        group = group_of(algorithm, below)
        total, gathered, spread = given(rank, 10), torch.zeros(40), given(rank, 3)
        work = group.allreduce([total], dist.AllreduceOptions())
        assert work.wait()
        assert work.get_future().wait()[0] is total
        group._allgather_base(gathered, given(rank, 10)).wait()
        options = dist.BroadcastOptions()
        options.rootRank = 2
        options.rootTensor = 0
        group.broadcast([spread], options).wait()
        group.barrier().wait()
        group.shutdown()
        return total, gathered, spread

    for total, gathered, spread in on_ranks(on_rank):
        assert torch.equal(total, given(9, 10))
        assert torch.equal(gathered, torch.cat([given(rank, 10) for rank in range(RANKS)]))
        assert torch.equal(spread, given(2, 3))
    assert calls == [10] * RANKS


@needs_torch
def test_sizes_types_and_operators_that_are_not_its_own_go_to_the_fallback(
    folders: dict[str, Path], calls: list[int]
) -> None:
    import torch
    import torch.distributed as dist

    algorithm = load(folders["sum"], device="cpu")

    def on_rank(rank: int, below: Any) -> list[Any]:
        group = group_of(algorithm, below, min_bytes=40, max_bytes=80)
        tensors = [given(rank, 9), given(rank, 10), given(rank, 20), given(rank, 21)]
        small = torch.full((20,), rank, dtype=torch.uint8)
        for tensor in (*tensors, small):
            group.allreduce([tensor], dist.AllreduceOptions()).wait()
        bits = torch.full((15,), 1 << rank, dtype=torch.int32)
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.BOR
        group.allreduce([bits], options).wait()
        group.shutdown()
        return [*tensors, small, bits]

    for results in on_ranks(on_rank):
        for tensor, count in zip(results, (9, 10, 20, 21), strict=False):
            assert torch.equal(tensor, given(9, count))
        assert set(results[4].tolist()) == {6}
        assert set(results[5].tolist()) == {15}
    assert sorted(calls) == [10] * RANKS + [20] * RANKS


@needs_torch
@pytest.mark.parametrize(
    ("name", "source", "target"),
    [("gather", 10, 30), ("scatter", 40, 9), ("scatter", 42, 10), ("exchange", 40, 36)],
)
def test_group_leaves_wrong_sizes_to_its_fallback(
    folders: dict[str, Path], calls: list[int], name: str, source: int, target: int
) -> None:
    import torch

    algorithm = load(folders[name], device="cpu")

    def on_rank(rank: int, below: Any) -> str:
        group = group_of(algorithm, below)
        output, given_values = torch.zeros(target), given(rank, source)
        call = {
            "gather": group._allgather_base,
            "scatter": group._reduce_scatter_base,
            "exchange": lambda *tensors: group.alltoall_base(*tensors, [], []),
        }[name]
        with pytest.raises(Exception, match=r"(?i)size|shape|divi") as caught:
            call(output, given_values).wait()
        group.shutdown()
        return str(caught.value)

    assert all(on_ranks(on_rank))
    assert calls == []


@needs_torch
@pytest.mark.parametrize("name", ["gather", "scatter", "exchange", "spread", "collect"])
def test_groups_of_other_collectives_run_them(
    folders: dict[str, Path], calls: list[int], name: str
) -> None:
    import torch
    import torch.distributed as dist

    algorithm = load(folders[name], device="cpu")
    inputs = [given(rank, 8) for rank in range(RANKS)]

    def on_rank(rank: int, below: Any) -> Any:
        group, source = group_of(algorithm, below), inputs[rank].clone()
        if name == "gather":
            output = torch.zeros(32)
            group.all_gather_single(output, source).wait()
        elif name == "scatter":
            output = torch.zeros(2)
            group.reduce_scatter_single(output, source, dist.ReduceScatterOptions()).wait()
        elif name == "exchange":
            output = torch.zeros(8)
            group.all_to_all_single(output, source, [], []).wait()
        elif name == "spread":
            output = source
            group.broadcast([source], dist.BroadcastOptions()).wait()
        else:
            output = source
            group.reduce([source], dist.ReduceOptions()).wait()
        group.shutdown()
        return output

    outputs = on_ranks(on_rank)
    total = torch.stack(inputs).sum(0)
    for rank, output in enumerate(outputs):
        own = slice(2 * rank, 2 * rank + 2)
        expected = {
            "gather": torch.cat(inputs),
            "scatter": total[own],
            "exchange": torch.cat([part[own] for part in inputs]),
            "spread": inputs[0],
            "collect": total if rank == 0 else inputs[rank],
        }
        assert torch.equal(output, expected[name])
    assert calls == [2 if name in ("scatter", "exchange") else 8] * RANKS


_REGISTERED = """
import sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
import collhub_torch

dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=0, world_size=1)
algorithm = collhub_torch.load(sys.argv[1], device="cpu")
group = algorithm.new_group(max_bytes=1 << 20)
tensor = torch.arange(5.0)
dist.all_reduce(tensor, op=dist.ReduceOp.AVG, group=group)
assert tensor.tolist() == [0, 1, 2, 3, 4]
assert algorithm.op(tensor, "sum", algorithm.attach()).tolist() == tensor.tolist()
model = DistributedDataParallel(torch.nn.Linear(3, 2), process_group=group)
model(torch.ones(4, 3)).sum().backward()
assert model.module.bias.grad.tolist() == [4, 4]
gathered = [torch.zeros(5)]
dist.all_gather(gathered, tensor, group=group)
assert gathered[0].tolist() == tensor.tolist()
dist.barrier(group=group)
dist.destroy_process_group(group)
dist.destroy_process_group()
print("done")
"""


@needs_torch
def test_group_is_one_of_torch_for_its_functions_and_for_ddp(
    tmp_path: Path, folders: dict[str, Path]
) -> None:
    folder = written(tmp_path / "one", samples.ring_all_reduce(2), "one")
    # A schedule of one rank is none; the library is the same.
    _make_single(folder, next(iter(folders.values())))
    command = [sys.executable, "-P", "-c", _REGISTERED, str(folder), str(tmp_path / "meet")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=180)
    assert done.stdout == "done\n", done.stderr


def _make_single(folder: Path, built: Path) -> None:
    """Build the library of an all-reduce of one rank, which moves nothing."""
    manifest = json.loads((folder / "collhub.json").read_text())
    manifest["num_ranks"] = 1
    (folder / "collhub.json").write_text(json.dumps(manifest))
    (folder / "schedule.cpp").write_text(
        '#include "schedule.hpp"\n'
        "namespace collhub {\n"
        "namespace {\n"
        "const Record kRecords[] = {{}};\n"
        "const std::int64_t kBegin[] = {0, 0};\n"
        "const Memory kMemory[] = {{{0, 0, 1}, {1, 1, 0}, 1, true}};\n"
        "const Promise kPromises[] = {{0, -1, 0, 1}};\n"
        "const std::int64_t kPromiseBegin[] = {0, 1};\n"
        "}\n"
        'const Schedule kSchedule = {"all-reduce", Native::kAllReduce, 1, 1, 1, 1, -1, true, true,\n'
        '  true, "sum", 1.0, kRecords, kBegin, kMemory, kPromises, kPromiseBegin};\n'
        "}\n",
        encoding="ascii",
    )
    for shared in ("nccl.double.o", "cuda.double.o"):
        shutil.copy2(built / shared, folder / shared)
    command = ["make", "-s", "CXXFLAGS=-O0", "libcollhub_one_double.so"]
    subprocess.run(command, cwd=folder, check=True, timeout=300)


_PROCESS = """
import os
import sys
import torch
import torch.distributed as dist
import collhub_torch

rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method="file://" + sys.argv[3], rank=rank, world_size=4)
algorithm = collhub_torch.load(sys.argv[2], device="cpu")
ran = []
run = algorithm._library.run
algorithm._library.run = lambda communicator, call: (ran.append(call.count), run(communicator, call))
group = algorithm.new_group(min_bytes=4000)
for count in (999, 100_001):
    tensor = torch.full((count,), float(rank))
    work = dist.all_reduce(tensor, group=group, async_op=True)
    work.wait()
    assert set(tensor.tolist()) == {6.0}
assert ran == [100_001]
everyone = algorithm.attach()
assert set(algorithm.op(torch.full((7,), float(rank)), "max", everyone).tolist()) == {3.0}
algorithm.detach(everyone)
model = torch.nn.Linear(30, 50)
parallel = torch.nn.parallel.DistributedDataParallel(model, process_group=group)
parallel(torch.full((1, 30), float(rank))).sum().backward()
assert set(model.weight.grad.flatten().tolist()) == {1.5}
assert ran[2:] == [30 * 50 + 50]
root = torch.full((3,), float(rank))
dist.broadcast(root, src=2, group=group)
assert set(root.tolist()) == {2.0}
if rank < 2:
    tensor = torch.full((3,), float(rank))
    (dist.send(tensor, 1, group=group) if rank == 0 else dist.recv(tensor, 0, group=group))
    assert set(tensor.tolist()) == {0.0}
dist.barrier(group=group)
dist.barrier(group=group)
dist.destroy_process_group()
"""


@needs_torch
@pytest.mark.slow
def test_processes_of_a_job_use_operator_group_and_fallback(
    tmp_path: Path, folders: dict[str, Path]
) -> None:
    command = [sys.executable, "-P", "-c", _PROCESS]
    running = [
        subprocess.Popen(
            [*command, str(rank), str(folders["sum"]), str(tmp_path / "meet")],
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(RANKS)
    ]
    try:
        for process in running:
            _, errors = process.communicate(timeout=180)
            assert process.returncode == 0, errors
    finally:
        for process in running:
            process.kill()


@needs_torch
@pytest.mark.slow
def test_library_for_gpus_is_loaded_with_nccl(tmp_path: Path) -> None:
    home = importlib.util.find_spec("nvidia.nccl") if importlib.util.find_spec("nvidia") else None
    if shutil.which("nvcc") is None or home is None or not home.submodule_search_locations:
        pytest.skip("nvcc or the package nvidia-nccl-cu13 is not installed")
    folder = written(tmp_path / "real", samples.ring_all_reduce(RANKS), "real")
    where = f"NCCL_HOME={home.submodule_search_locations[0]}"
    subprocess.run(
        ["make", "-s", where, "ARCHS=90", "library"], cwd=folder, check=True, timeout=300
    )
    algorithm = load(folder)
    assert algorithm.device == "cuda"
    # NCCL itself answers, which needs no GPU for this.
    assert algorithm._library.new_id() != algorithm._library.new_id()


# ---- folders that are not what they should be ----------------------------------------------------


def manifest_of(folder: Path, **changes: object) -> Path:
    """A folder with a manifest and nothing else."""
    stated: dict[str, object] = {
        "format": "collhub-nccl-library",
        "version": 1,
        "name": "x",
        "collective": "all-reduce",
        "num_ranks": 2,
        "root": None,
        "reduces": True,
        "library": {"cuda": "libcollhub_x.so", "cpu": "libcollhub_x_double.so"},
        "functions": {role: f"collhub_{role}_x" for role in ("run", "release", "error", "level")},
    }
    (folder / "collhub.json").write_text(json.dumps({**stated, **changes}))
    return folder


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"format": "other"}, "expected collhub-nccl-library, version 1"),
        ({"version": "1"}, "version: expected a whole number"),
        ({"num_ranks": 0}, "num_ranks: expected a number of ranks"),
        ({"num_ranks": True}, "num_ranks: expected a whole number"),
        ({"library": {"cuda": "../x.so", "cpu": "y.so"}}, "cuda: expected the name of a file in"),
        ({"library": {"cuda": "..", "cpu": "y.so"}}, "cuda: expected the name of a file in"),
        ({"library": {"cuda": "/lib/x.so", "cpu": "y.so"}}, "cuda: expected the name of a file in"),
        ({"library": []}, "library: expected an object"),
        ({"functions": {"run": "system(1)"}}, "run: expected letters, digits and _"),
    ],
)
def test_manifest_that_is_not_right_is_refused_with_its_place(
    tmp_path: Path, changes: dict[str, object], words: str
) -> None:
    with pytest.raises(InputError, match=r"collhub\.json") as caught:
        read_manifest(manifest_of(tmp_path, **changes))
    assert words in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"[]", b"[" * 60_000, b" " * 70_000, b"\xff"])
def test_file_that_is_no_manifest_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "collhub.json").write_bytes(content)
    with pytest.raises(InputError, match=r"collhub\.json"):
        read_manifest(tmp_path)


def test_folder_of_another_kind_is_refused_with_the_cure(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read_manifest(tmp_path)
    assert "collhub convert ALGORITHM --to nccl" in caught.value.diagnostics[0].cure


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ not found")
def test_library_without_nccl_is_refused(tmp_path: Path) -> None:
    manifest = read_manifest(manifest_of(tmp_path))
    code = "".join(
        f'extern "C" int {name}() {{ return 0; }}\n' for name in manifest.functions.values()
    )
    source = tmp_path / "x.cpp"
    source.write_text(code)
    command = ["g++", "-shared", "-fPIC", "-o", str(manifest.library["cpu"]), str(source)]
    subprocess.run(command, check=True)
    with pytest.raises(PluginError, match=r"cannot be loaded: .*ncclGetErrorString") as caught:
        NativeLibrary(manifest, "cpu")
    assert "make clean double" in caught.value.diagnostics[0].cure


@needs_torch
def test_folder_that_is_not_built_says_what_to_run(tmp_path: Path) -> None:
    for device, target in (("cuda", "make library"), ("cpu", "make double")):
        with pytest.raises(PluginError, match="is not built") as caught:
            load(manifest_of(tmp_path), device=device)
        assert target in caught.value.diagnostics[0].cure


@needs_torch
@pytest.mark.parametrize("content", [b"", b"no library"])
def test_file_that_is_no_library_is_named(tmp_path: Path, content: bytes) -> None:
    (manifest_of(tmp_path) / "libcollhub_x.so").write_bytes(content)
    with pytest.raises(PluginError, match=r"libcollhub_x\.so cannot be loaded"):
        load(tmp_path)


@needs_torch
def test_collective_without_tensors_of_one_shape_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PluginError, match="gather is not one of all-reduce"):
        load(manifest_of(tmp_path, collective="gather"))


@needs_torch
def test_a_name_is_one_algorithm_of_a_process(tmp_path: Path, folders: dict[str, Path]) -> None:
    again = load(folders["sum"], device="cpu")
    assert load(str(folders["sum"]), device="cpu") is again
    copied = tmp_path / "copied"
    shutil.copytree(folders["sum"], copied)
    with pytest.raises(UsageError, match="collhub_all_reduce_sum is loaded from another folder"):
        load(copied, device="cpu")


@needs_torch
def test_group_of_another_size_is_refused(folders: dict[str, Path]) -> None:
    import torch.distributed as dist

    algorithm = load(folders["sum"], device="cpu")
    alone = dist.ProcessGroupGloo(dist.HashStore(), 0, 1)
    with pytest.raises(HubError, match="is for 4 ranks, the group has 1"):
        algorithm.attach(alone)
