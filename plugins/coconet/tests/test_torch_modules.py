"""Programs as modules for torch.distributed: statements, order, buckets, refusals, results."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from collhub_coconet import (
    LOCAL,
    Binding,
    Kind,
    Program,
    ProgramBuilder,
    Value,
    all_gather,
    all_gather_v,
    all_reduce,
    all_to_all_v,
    as_slice,
    dropout,
    matmul,
    movable,
    norm,
    overlap,
    reduce_scatter_v,
    reorder,
    row_reduce,
    send,
    split,
    sqrt,
    total,
    update,
)
from collhub_coconet.lowering.workload import lower
from collhub_coconet.plugin import TorchModuleOptions
from collhub_coconet.program.operations import ElementType, LayoutRule, sliced
from collhub_coconet.program.program import Chain
from collhub_coconet.torch_programs.measuring import measure
from collhub_coconet.torch_programs.writing import write
from expert_tokens import expert_tokens

from hub_core.model import InputError, Workload
from hub_core.plugin_api import WriteResult

RANKS = 4
HAS_TORCH = importlib.util.find_spec("torch") is not None


def write_module(program: Program, bucket: int | None = None) -> WriteResult:
    return write(lower(program, Binding(RANKS, {})), TorchModuleOptions(bucket_size=bucket))


def format_module(program: Program, bucket: int | None = None) -> str:
    (artifact,) = write_module(program, bucket).artifacts
    return artifact.content().decode()


def statements(program: Program, bucket: int | None = None) -> list[str]:
    """Lines of the function `step` after its arguments."""
    text = format_module(program, bucket)
    compile(text, "written.py", "exec")
    step = text[text.index("def step") : text.index("\n\n\nif __name__")]
    lines = [line.strip() for line in step.splitlines()]
    return lines[lines.index(next(line for line in lines if line.startswith("device_"))) + 1 :]


def momentum() -> Program:
    build = ProgramBuilder("momentum")
    g = build.argument("g", "float32", 8, 3, layout=LOCAL)
    m = build.state("m", "float32", 8, 3)
    w = build.state("w", "float32", 8, 3, whole_after=True)
    m1 = update(m, 0.9 * m + all_reduce(g).named("g1")).named("m1")
    return build.program(m1, update(w, w - 0.01 * m1).named("w1"))


def test_statements_of_a_step() -> None:
    assert statements(momentum()) == [
        "g1 = _all_reduce(g, 'sum', group)",
        "_1 = 0.9 * m",
        "g1 = g1.wait()",
        "_3 = _1 + g1",
        "m1 = _3",
        "_5 = 0.01 * m1",
        "_6 = w - _5",
        "w1 = _6",
        "return {'m1': m1, 'w1': w1}",
    ]


def test_sharded_state_is_a_block() -> None:
    program = split(momentum(), "g1", 0).program
    program = reorder(program, "g1", movable(program, "g1")).program
    program = as_slice(program, ["m"]).program
    text = format_module(program)
    assert "'m': ('float32', [8, 3], 0)" in text
    lines = statements(program)
    assert any(line.endswith("= _reduce_scatter(g, 0, 'sum', group)") for line in lines)
    assert sum("_all_gather(" in line for line in lines) == 1


def test_collective_starts_before_independent_work_and_is_awaited_after_it() -> None:
    build = ProgramBuilder("overlapped")
    g = build.argument("g", "float32", 8, layout=LOCAL)
    x = build.argument("x", "float32", 8)
    independent = (x * 2.0 + x).named("independent")
    total = all_reduce(g).named("total")
    lines = statements(build.program((independent + total).named("y")))
    start = lines.index("total = _all_reduce(g, 'sum', group)")
    wait = lines.index("total = total.wait()")
    work = next(n for n, line in enumerate(lines) if line.startswith("independent"))
    assert start < work < wait


def gradients(count: int) -> Program:
    build = ProgramBuilder("gradients")
    inputs = [build.argument(f"g{n}", "float32", 16, layout=LOCAL) for n in range(count)]
    return build.program(*(all_reduce(g).named(f"a{n}") for n, g in enumerate(inputs)))


@pytest.mark.parametrize(
    ("bucket", "calls"),
    [
        (None, ["_all_reduce"] * 5),
        (10**6, ["_all_reduce_bucket"]),
        (128, ["_all_reduce_bucket", "_all_reduce_bucket", "_all_reduce"]),
        (64, ["_all_reduce"] * 5),
    ],
)
def test_small_all_reduces_share_buckets(bucket: int | None, calls: list[str]) -> None:
    lines = [line for line in statements(gradients(5), bucket) if "_all_reduce" in line]
    assert [line.split(" = ")[1].split("(")[0] for line in lines] == calls


def test_norm_of_blocks_is_reduced_over_the_ranks() -> None:
    build = ProgramBuilder("norm")
    x = build.argument("x", "float32", 8, layout=sliced(0))
    line = statements(build.program(norm(x).named("n")))[0]
    assert line == "n = torch.sqrt(_all_reduce_scalar((x * x).sum(), 'sum', group))"


def test_replicated_operand_of_a_block_is_cut() -> None:
    build = ProgramBuilder("cut")
    x = build.argument("x", "float32", 8, 3, layout=sliced(0))
    r = build.argument("r", "float32", 8, 3)
    b = build.argument("b", "float32", 3)
    lines = statements(build.program(((x + r) + b).named("y")))
    assert lines[:2] == ["_1 = x + _block(r, 0, group)", "y = _1 + b"]


def test_overlapped_product_is_written_in_chunks() -> None:
    build = ProgramBuilder("chunks")
    x = build.argument("x", "float32", 8, 4, layout=sliced(1))
    w = build.argument("w", "float32", 4, 6, layout=sliced(0))
    y = matmul(x, w).named("y")
    program = overlap(build.program(all_reduce(y).named("z")), ["y", "z"]).program
    result = write_module(program)
    assert result.losses == []
    assert "for part in x.chunk(4, 0)" in statements(program)


def test_overlapped_exchanges_are_written_in_chunks_of_rows() -> None:
    program = expert_tokens(tokens=64, popularity=(5, 1, 1, 1))
    names = [one.name for one in program.operations]
    after = overlap(program, names).program
    workload = lower(after, Binding(RANKS, {"H": 8, "F": 8}))
    result = write(workload, TorchModuleOptions())
    assert result.losses == []
    text = result.artifacts[0].content().decode()
    compile(text, "written.py", "exec")
    lines = [line.strip() for line in text[text.index("_combined_parts = [") :].splitlines()]
    counts = [[40, 8, 8, 8]] * RANKS
    assert lines[1] == f"_send_chunk(x, {counts}, chunk_, 4, group)"
    start = lines.index("for chunk_ in range(4):")
    assert lines[start + 1 : start + 5] == [
        "dispatched = _combined_parts[chunk_].wait()",
        "inner = torch.matmul(dispatched, w1)",
        "hidden = torch.tanh(inner)",
        "y = torch.matmul(hidden, w2)",
    ]
    # A chain without its dispatch is written as separate statements.
    chain = lower(overlap(program, names[1:]).program, Binding(RANKS, {"H": 8, "F": 8}))
    (loss,) = write(chain, TorchModuleOptions()).losses
    assert "inner > hidden > y > combined" in str(loss)


@pytest.mark.parametrize(
    ("axes", "counts"),
    [("ep", [[1, 3], [2, 2]]), ("dp", [[2, 2], [2, 2]]), (None, [[1, 3], [2, 2]])],
)
def test_a_chain_of_other_blocks_of_rows_is_written_as_separate_statements(
    axes: str | None, counts: list[list[int]]
) -> None:
    """`overlap` refuses the first two chains, but a document may have them."""
    build = ProgramBuilder("rows", mesh=("dp", "ep"))
    x = build.argument("x", "float32", 8, 4, layout={"dp": LOCAL, "ep": LOCAL})
    sent = all_to_all_v(x, [[1, 2], [3, 2]], axes="dp").named("sent")
    program = build.program(all_to_all_v(sent, counts, axes=axes or "dp").named("back"))
    program = program.with_stages((), (Chain(("sent", "back"), (1,)),))
    result = write(lower(program, Binding.of_mesh((2, 2), {})), TorchModuleOptions())
    step = result.artifacts[0].content().decode().partition("def step")[2]
    assert ("_send_chunk(" in step, bool(result.losses)) == (axes is None, axes is not None)


def opaque(x: Value, call: dict[str, Any], rule: str = "per_rank", *shape: int) -> Value:
    return x.builder.apply(
        Kind.OPAQUE,
        [x],
        element=ElementType.FLOAT32,
        call=json.dumps(call),
        shape=shape or x.type.shape,
        rule=LayoutRule(rule),
        work=1,
        traffic=1,
    )


def call(operator: str, **arguments: Any) -> dict[str, Any]:
    values = {"self": {"operand": 0}} | arguments
    return {"operator": operator, "arguments": values, "keywords": [], "results": 1, "output": 0}


def test_opaque_operation_is_a_call_of_its_operator() -> None:
    build = ProgramBuilder("call")
    x = build.argument("x", "float32", 8)
    infinite = call("aten.masked_fill.Scalar", mask={"operand": 0}, value={"float": "-inf"})
    lines = statements(build.program(opaque(x, infinite).named("y")))
    assert lines[0] == "y = torch.ops.aten.masked_fill.Scalar(x, x, float('-inf'))"


@pytest.mark.parametrize(
    "wrong",
    [
        call("aten.gelu.default(); import os; os"),
        call("load_library.x"),
        call("aten.from_file.default"),
        call("aten.gelu.default", **{"x=open": 1}),
        call("aten.gelu.default", other={"operand": 7}),
        call("aten.gelu.default", other={"float": "__import__('os')"}),
        {"operator": "aten.gelu.default"},
        call("aten.sort.default") | {"results": 2, "output": "second"},
        call("aten.sort.default") | {"results": 2, "output": 2},
        call("aten.sort.default") | {"results": "two", "output": 0},
    ],
)
def test_call_that_is_no_plain_operator_is_refused(wrong: dict[str, Any]) -> None:
    build = ProgramBuilder("call")
    x = build.argument("x", "float32", 8)
    with pytest.raises(InputError):
        write_module(build.program(opaque(x, wrong).named("y")))


def test_texts_of_a_document_are_written_as_literals() -> None:
    build = ProgramBuilder("call")
    x = build.argument("x", "float32", 8)
    text = call("aten.gelu.default", approximate="'); import os; ('")
    lines = statements(build.program(opaque(x, text).named("y")))
    assert lines[0] == "y = torch.ops.aten.gelu.default(x, \"'); import os; ('\")"


def test_program_without_a_form_in_one_group_is_refused() -> None:
    build = ProgramBuilder("row")
    x = build.argument("x", "float32", 8)
    with pytest.raises(InputError, match="several groups of a pipeline"):
        write_module(build.program(send(x).named("y")))
    build = ProgramBuilder("random")
    x = build.argument("x", "float32", 8)
    with pytest.raises(InputError, match="y: Dropout is not written for PyTorch"):
        write_module(build.program(dropout(x, 0.5, 1).named("y")))


def test_uneven_collectives_state_their_counts() -> None:
    build = ProgramBuilder("uneven")
    x = build.argument("x", "float32", 8, 2, layout=LOCAL)
    counts = [[1, 2, 0, 0], [0, 0, 3, 0], [0, 0, 0, 0], [4, 0, 0, 1]]
    program = build.program(
        all_to_all_v(x, counts).named("a"),
        all_gather_v(x, [2, 0, 8, 1]).named("g"),
        reduce_scatter_v(x, [0, 5, 3, 0], "max").named("r"),
    )
    assert statements(program)[:3] == [
        f"a = _all_to_all_rows(x, {counts}, 5, group)",
        "g = _all_gather_rows(x, [2, 0, 8, 1], group)",
        "r = _reduce_scatter_rows(x, [0, 5, 3, 0], 'max', group)",
    ]


def test_sums_of_integers_keep_their_type() -> None:
    build = ProgramBuilder("sums")
    x = build.argument("x", "int32", 8, 2)
    program = build.program(row_reduce(x, 1).named("r"), total(x).named("t"))
    assert statements(program)[:2] == [
        "r = x.sum(1, keepdim=True).to(torch.int32)",
        "t = x.sum().to(torch.int32)",
    ]


def test_name_that_python_reserves_is_refused() -> None:
    build = ProgramBuilder("names")
    x = build.argument("lambda", "float32", 8, layout=sliced(0))
    with pytest.raises(InputError, match="lambda is no name in Python"):
        write_module(build.program(all_gather(x).named("y")))


@pytest.fixture
def step(tmp_path: Path) -> Path:
    """The example document: a gradient is reduced and subtracted from a parameter."""
    from collhub_coconet.torch_programs.reading import list_documents

    (source,) = list_documents()
    path = tmp_path / source.name
    path.write_bytes(source.content())
    return path


def test_search_writes_a_module_with_its_predicted_times(step: Path, collhub: Any) -> None:
    module = step.parent / "optimized.py"
    search = ("--search", "--topology", "ring:4", "--jobs", 1)
    run = collhub("transform", step, *search, "-o", module)
    assert run.code == 0, run.err
    gain = re.search(r"([0-9.]+) times as fast as before", run.err)
    assert gain is not None
    assert float(gain[1]) > 1
    text = module.read_text()
    compile(text, "optimized.py", "exec")
    times = re.search(r"Predicted time: ([0-9.]+) ms, ([0-9.]+) ms before\.", text)
    assert times is not None
    assert float(times[2]) / float(times[1]) == pytest.approx(float(gain[1]), abs=0.01)


def test_network_with_another_number_of_ranks_is_refused(step: Path, collhub: Any) -> None:
    run = collhub("transform", step, "--search", "--topology", "ring:8", "--jobs", 1)
    assert run.code == 1
    assert "the program was captured on 4 ranks, not 8" in run.err
    document = step.parent / "step.program.json"
    assert collhub("convert", step, "-o", document).code == 0
    run = collhub("inspect", document, "-O", "num_ranks=8")
    assert run.code == 1
    assert "the program was captured on 4 ranks, not 8" in run.err


def test_module_of_a_mesh_has_a_group_per_axis() -> None:
    build = ProgramBuilder("layer", ("dp", "tp"))
    x = build.argument("x", "float32", 8, 4, layout={"dp": sliced(0), "tp": sliced(1)})
    w = build.argument("w", "float32", 4, 6, layout={"tp": sliced(0)})
    y = all_reduce(matmul(x, w), axes="tp").named("y")
    n = norm(y).named("n")
    t = all_reduce(build.argument("g", "float32", 3, layout=LOCAL), axes=("dp", "tp")).named("t")
    program = build.program(y, n, t)
    text = module_of_mesh(program, (2, 2))
    assert "MESH = {'dp': 2, 'tp': 2}\nGROUPS = [['dp'], ['tp'], ['dp', 'tp']]" in text
    assert "'x': ('float32', [8, 4], [0, 1])" in text
    assert "_all_reduce_scalar((y * y).sum(), 'sum', groups_['dp'])" in text
    assert "t = _all_reduce(g, 'sum', groups_['dp+tp'])" in text
    with pytest.raises(InputError, match="x has blocks of unequal length on a mesh"):
        module_of_mesh(program, (3, 2))


def module_of_mesh(program: Program, mesh: tuple[int, ...]) -> str:
    workload = lower(program, Binding.of_mesh(mesh, {}))
    (artifact,) = write(workload, TorchModuleOptions()).artifacts
    return artifact.content().decode()


def test_document_cannot_be_run(step: Path, collhub: Any) -> None:
    out = step.parent / "split.program.json"
    run = collhub("transform", step, "--pass", "split", "--run", "-o", out)
    assert run.code == 2
    assert "files of the format tensor-program cannot be run" in run.err


@pytest.mark.skipif(not HAS_TORCH, reason="PyTorch is not installed")
def test_run_reports_the_measured_gain(step: Path, collhub: Any) -> None:
    out = step.parent / "split.py"
    run = collhub("transform", step, "--pass", "split", "-o", out, "--run", "--json")
    assert run.code == 0, run.err
    measured = run.report()["measured"]
    assert measured["max_relative_error"] == 0.0
    assert measured["before_ns"] > 0
    assert measured["after_ns"] > 0


@pytest.mark.skipif(not HAS_TORCH, reason="PyTorch is not installed")
def test_a_module_refuses_to_measure_no_steps(step: Path, collhub: Any) -> None:
    """Its ranks ended with a traceback about the median of no times."""
    module = step.parent / "module.py"
    assert collhub("convert", step, "-o", module).code == 0
    command = [sys.executable, str(module), "--repeats", "0"]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert run.returncode == 2
    assert run.stderr.endswith("error: --repeats: expected 1 or more, got 0\n")


@pytest.mark.skipif(not HAS_TORCH, reason="PyTorch is not installed")
def test_run_refuses_outputs_that_are_nan_in_one_program_only() -> None:
    def write_root(minimum: float) -> Workload:
        build = ProgramBuilder("root")
        x = build.argument("x", "float32", 8)
        return lower(build.program(sqrt(x - minimum).named("y")), Binding(2, {}))

    options = TorchModuleOptions()
    # Random arguments are in 0.1..1, so that all roots after subtraction of 2 are NaN.
    assert measure(write_root(2.0), write_root(2.0), options).max_relative_error == 0
    with pytest.raises(InputError, match="NaN or infinite in only one"):
        measure(write_root(0.0), write_root(2.0), options)


@pytest.mark.skipif(not HAS_TORCH, reason="PyTorch is not installed")
def test_written_modules_compute_the_results_of_pytorch() -> None:
    """Four gloo ranks: transformer block, AdamW with clipping and sharded states, experts."""
    script = Path(__file__).parent / "torch_ranks.py"
    command = [sys.executable, "-W", "ignore", str(script)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    results = json.loads(run.stdout.splitlines()[-1])
    assert set(results) == {
        "transformer block",
        "AdamW with clipping, sharded states",
        "experts",
        "tensor parallel",
        "tensor and data parallel",
        "buckets",
    }
    # float32 with sums in another order; the largest differences were 6e-6.
    assert all(case["difference"] < 5e-5 for case in results.values()), results
    collectives = results["AdamW with clipping, sharded states"]["collectives"]
    assert collectives["_reduce_scatter"] == collectives["_all_gather"] == 12
    assert results["buckets"]["collectives"] == [1, 1, 1]
    assert results["tensor and data parallel"]["groups"] == [1, 1]
    assert results["transformer block"]["collectives"]["_all_reduce_bucket"] == 1


def run_uneven_programs(ranks: int, first: int, count: int, *more: str) -> dict[str, Any]:
    """Run random programs with uneven collectives on gloo ranks; returns the report."""
    script = Path(__file__).parent / "torch_uneven_ranks.py"
    numbers = map(str, (ranks, first, count))
    command = [sys.executable, "-W", "ignore", str(script), *numbers, *more]
    run = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    report: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    assert report["kinds"] == ["AllGatherV", "AllToAllV", "ReduceScatterV"]
    assert report["different"] == []
    # Two overlapped layers of experts are written in chunks.
    assert report["losses"] == 0
    return report


@pytest.mark.skipif(not HAS_TORCH, reason="PyTorch is not installed")
@pytest.mark.parametrize("ranks", [2, 4])
def test_modules_with_uneven_collectives_compute_the_results_of_the_executor(ranks: int) -> None:
    assert run_uneven_programs(ranks, 0, 20)["programs"] == 20


@pytest.mark.slow
@pytest.mark.skipif(not HAS_TORCH, reason="PyTorch is not installed")
@pytest.mark.parametrize("ranks", [2, 4])
def test_five_hundred_uneven_programs_are_equal_in_pytorch(ranks: int) -> None:
    assert run_uneven_programs(ranks, 1000, 500)["programs"] == 500
