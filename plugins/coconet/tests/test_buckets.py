"""Buckets: several collectives become one, with the same results."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from collhub_coconet import (
    LOCAL,
    Binding,
    Program,
    ProgramBuilder,
    RefusedMoveError,
    all_gather,
    all_reduce,
    cast,
    coalesce,
    coalesce_by_size,
    compare,
    fuse,
    matmul,
    overlap,
    program_from_json,
    program_to_json,
    reduce_scatter,
    row_reduce,
    sliced,
    split,
    statements,
    tanh,
    text,
)
from collhub_coconet.documents.from_workload import extract_program
from collhub_coconet.execution.running import execute_and_compare
from collhub_coconet.lowering.algorithms import Choice
from collhub_coconet.lowering.flat import flatten
from collhub_coconet.lowering.workload import lower
from collhub_coconet.search.bucket_sizes import add_buckets
from collhub_coconet.search.collective_times import Rates
from collhub_coconet.search.cost_models import FormulaModel, ProgramTiming
from collhub_coconet.search.explore import Candidate, Exploration
from collhub_coconet.search.parts import Copy, PartClass
from collhub_coconet.search.simulation import Simulation
from collhub_coconet.transformations.buckets import find_largest_buckets, list_bucket_sizes
from test_parts import momentum

import hub_core
from hub_core.model import InputError, JobCollective
from hub_core.plugin_api import SearchBudget

SHAPES = (("N",), ("M", "N"), (3, "M"), ("N",), (2,))
SIZES = {"N": 7, "M": 5}


def gradients(kind: str, count: int = 4, *, reduction: str = "sum") -> Program:
    """Independent collectives of several shapes, and computations before and after them."""
    build = ProgramBuilder("gradients", N=(1, 64), M=(1, 64))
    outputs = []
    for index in range(count):
        shape = SHAPES[index % len(SHAPES)]
        dimension = index % len(shape)
        layout = sliced(dimension) if kind == "gather" else LOCAL
        x = tanh(build.argument(f"x{index}", "float32", *shape, layout=layout))
        if kind == "reduce":
            y = all_reduce(x, reduction)
        else:
            y = all_gather(x) if kind == "gather" else reduce_scatter(x, dimension, reduction)
        outputs.append((y.named(f"y{index}") * 0.5).named(f"z{index}"))
    return build.program(*outputs)


@pytest.mark.parametrize("kind", ["reduce", "scatter", "gather"])
@pytest.mark.parametrize("algorithm", ["ring", "pat"])
@pytest.mark.parametrize("chunks", [1, 3])
def test_bucket_gives_every_member_its_result(kind: str, algorithm: str, chunks: int) -> None:
    if kind == "reduce" and algorithm == "pat":
        algorithm = "halving-doubling"
    program = gradients(kind)
    rewrite = coalesce(program, ["y0", "y1", "y2", "y3"])
    for ranks in (2, 4):
        binding = Binding(ranks, SIZES)
        network = hub_core.parse_topology(f"fully-connected:{ranks}")
        flat = flatten(rewrite.program, binding, network, {"": Choice(algorithm, chunks)})
        result = execute_and_compare(program, flat, seed=ranks)
        assert result.ok, result.differences
        assert all(error <= 1 for error in result.errors.values())


@pytest.mark.parametrize("seed", range(10))
def test_random_buckets_are_equal(seed: int) -> None:
    draw = random.Random(seed)
    kind = draw.choice(["reduce", "scatter", "gather"])
    program = gradients(kind, 6, reduction=draw.choice(["sum", "max"]))
    binding = Binding(draw.choice([2, 3, 4]), {"N": draw.randint(1, 9), "M": draw.randint(1, 9)})
    size = draw.choice(list_bucket_sizes(program, binding) or [1 << 20])
    after = coalesce_by_size(program, binding, size).program
    assert compare(program, after, binding, seed).ok
    assert program_from_json(program_to_json(after)) == after
    assert extract_program(lower(after, binding)).program == after
    network = hub_core.parse_topology(f"ring:{binding.num_ranks}")
    flat = flatten(after, binding, network, {"": Choice("ring", draw.choice([1, 2]))})
    assert execute_and_compare(program, flat, seed).ok


def test_bucket_is_one_collective_of_all_bytes() -> None:
    program = gradients("reduce")
    after = coalesce(program, ["y0", "y1", "y2", "y3"], "grads").program
    binding = Binding(4, SIZES)
    nodes = lower(after, binding).nodes
    rows = (nodes.rank == 0) & (nodes.collective == JobCollective.ALL_REDUCE)
    # 7 + 35 + 15 + 7 floats.
    assert nodes.bytes[rows].tolist() == [4 * 64]
    assert text(after).splitlines()[-1] == "fuse grads (bucket): y0, y1, y2, y3"
    assert statements(after) == statements(program)


def test_bucket_starts_when_its_last_member_is_ready() -> None:
    after = coalesce(gradients("reduce", 2), ["y0", "y1"]).program
    network = hub_core.parse_topology("ring:2")
    flat = flatten(after, Binding(2, SIZES), network, {"": Choice("ring")})
    (part,) = [number for number, one in enumerate(flat.parts) if hasattr(one, "contents")]
    parents, children = flat.workload.nodes.edges()
    produced = {
        flat.workload.names[flat.workload.nodes.name[row]]
        for row in parents[flat.part[children] == part].tolist()
        if flat.part[row] != part
    }
    assert len(produced) == 2


def test_sizes_of_buckets_follow_the_order_of_execution() -> None:
    program = gradients("scatter", 8)
    binding = Binding(2, {"N": 8, "M": 4})
    buckets = [stage.members for stage in coalesce_by_size(program, binding, 128).program.stages]
    # 32 and 128 bytes; 64 (padded to 2 blocks), 32, 8 and 32; then 128 bytes are complete alone.
    assert buckets == [("y0", "y1"), ("y2", "y3", "y4", "y5")]
    assert len(coalesce_by_size(program, binding, 1 << 30).program.stages) == 1


def test_dependent_collectives_are_in_different_buckets() -> None:
    build = ProgramBuilder("p", N=(1, 64))
    x, y = (build.argument(name, "float32", "N", layout=LOCAL) for name in "xy")
    first = all_reduce(x).named("first")
    second = all_reduce(first * y).named("second")
    third = all_reduce(y).named("third")
    program = build.program(first, second, third)
    assert find_largest_buckets(program) == [["second", "third"]]
    with pytest.raises(RefusedMoveError, match="second: it depends on another member"):
        coalesce(program, ["first", "second"])


def mixed() -> Program:
    build = ProgramBuilder("p", N=(1, 64))
    x = build.argument("x", "float32", "N", layout=LOCAL)
    a = all_reduce(x).named("a")
    b = all_reduce(x, "max").named("b")
    c = all_reduce(cast(x, "float16")).named("c")
    d = all_reduce(x * 2).named("d")
    e = (d * 0.5).named("e")
    return build.program(a, b, c, e, reduce_scatter(x, 0).named("s"))


@pytest.mark.parametrize(
    ("members", "message"),
    [
        (["a"], "one collective is no bucket"),
        (["a", "b"], "b: it differs from a in kind, reduction"),
        (["a", "c"], "c: it differs from a"),
        (["a", "s"], "s: it differs from a"),
        (["a", "e"], "e: Multiply is no AllReduce"),
        (["a", "missing"], "missing: no operation has this name"),
    ],
)
def test_illegal_buckets_are_refused(members: list[str], message: str) -> None:
    with pytest.raises(RefusedMoveError, match=message):
        coalesce(mixed(), members)


def test_fused_chained_and_divided_members_are_refused() -> None:
    program = mixed()
    fused = fuse(program, ["d", "e"]).program
    with pytest.raises(RefusedMoveError, match="it is a member of a stage"):
        coalesce(fused, ["a", "d"])
    chained = overlap(program, ["d", "e"]).program
    with pytest.raises(RefusedMoveError, match="overlap is the last"):
        coalesce(chained, ["a", "d"])
    bucket = coalesce(program, ["a", "d"]).program
    with pytest.raises(RefusedMoveError, match="a bucket starts when"):
        overlap(bucket, ["bucket", "e"])
    with pytest.raises(RefusedMoveError, match="collectives of bucket bucket differ"):
        split(bucket, "a", 0)


def test_buckets_that_would_wait_for_each_other_are_refused_or_divided() -> None:
    build = ProgramBuilder("p", N=(1, 64))
    x = build.argument("x", "float32", "N", layout=LOCAL)
    y = build.argument("y", "float32", "N", layout=sliced(0))
    s1 = reduce_scatter(x, 0).named("s1")
    g1 = all_gather(y).named("g1")
    g2 = all_gather(s1 * 2).named("g2")
    s2 = reduce_scatter(x * g1, 0).named("s2")
    program = build.program(g2, s2)
    bucket = coalesce(program, ["s1", "s2"]).program
    with pytest.raises(RefusedMoveError, match="would wait for one another"):
        coalesce(bucket, ["g1", "g2"])
    divided = coalesce_by_size(program, Binding(2, {"N": 8}), 1 << 20).program
    assert len(divided.stages) == 1


def test_buckets_of_documents_are_checked() -> None:
    document = program_to_json(coalesce(gradients("reduce"), ["y0", "y1"]).program)
    with pytest.raises(InputError, match="the collectives of bucket bucket differ"):
        program_from_json(document.replace('"members": ["y0", "y1"]', '"members": ["y0", "z1"]'))


def test_pass_puts_collectives_into_buckets(collhub: Callable[..., Any], tmp_path: Path) -> None:
    path, out = tmp_path / "p.program.json", tmp_path / "o.program.json"
    path.write_text(program_to_json(gradients("reduce")))
    sizes = ("--size", "N=7,M=5")
    run = collhub(
        *("transform", path, *sizes, "--pass", "coalesce", "-O", "bucket_size=1KiB", "-o", out)
    )
    assert run.code == 0, run.err
    assert "4 collectives in 1 buckets of 1024 bytes or more" in run.err
    (stage,) = program_from_json(out.read_bytes()).stages
    assert stage.members == ("y0", "y1", "y2", "y3")
    both = collhub("transform", path, *sizes, "--pass", "coalesce", "-o", out)
    assert both.code == 2
    assert "coalesce needs either members or bucket_size" in both.err


def layers(count: int = 4, width: int = 6) -> Program:
    """Backward pass: a product per layer, then one kernel with the gradients of several tensors."""
    build = ProgramBuilder("backward", B=(1, 2**16), H=(1, 2**16))
    slope = build.argument("slope", "float32", "B", "H", layout=LOCAL)
    outputs, kernels = [], []
    for layer in range(count):
        slope = matmul(slope, build.argument(f"w{layer}", "float32", "H", "H")).named(f"s{layer}")
        row = row_reduce(slope, 0).named(f"r{layer}")
        gradients = [(row * (1.0 + index)).named(f"g{layer}_{index}") for index in range(width)]
        kernels.append([gradient.name for gradient in gradients])
        outputs += [all_reduce(each).named(f"h{layer}_{i}") for i, each in enumerate(gradients)]
    program = build.program(*outputs)
    for names in kernels:
        program = fuse(program, names).program
    return program


def add_buckets_to(
    program: Program, binding: Binding, simulation: Simulation
) -> list[ProgramTiming]:
    """Times of the program apart, with the best buckets, and with one bucket."""
    timing = simulation.estimate(program, binding)
    assert not isinstance(timing, str)
    known = Candidate(program, (), (timing,), (1,), (0,))
    exploration = Exploration([known])
    identity = {name: name for name in program.types}
    classes = [PartClass(program, (Copy(identity, {}, 0),))]
    model = FormulaModel(simulation.rates, simulation.hub)
    result, trials = add_buckets(
        program, classes, [exploration], exploration, [binding], model, simulation, SearchBudget()
    )
    assert trials.programs
    best = result.fastest(0)
    assert compare(program, best.program, Binding(2, {"B": 3, "H": 5})).ok
    single = simulation.estimate(coalesce_by_size(program, binding, 1 << 40).program, binding)
    assert not isinstance(single, str)
    return [timing, best.timings[0], single]


def test_one_bucket_loses_the_overlap_with_the_backward_pass() -> None:
    # A layer takes 56 us, the AllReduces of its gradients 25 us, and every launch 10 us.
    rates = Rates(1e12, 1e12, 4e9, 1e-6, 1e-5)
    network = hub_core.parse_topology("ring:2?bandwidth=4GB/s&latency=1us")
    simulation = Simulation(rates, network)
    apart, best, single = add_buckets_to(layers(), Binding(2, {"B": 1, "H": 4096}), simulation)
    assert best.seconds < 0.98 * apart.seconds
    assert best.seconds < 0.9 * single.seconds


def test_many_small_gradients_are_faster_in_buckets() -> None:
    program = momentum(8)
    binding = Binding(2, {"N": 256})
    options = {"topology": "ring:2", "simulate": "1"}
    result, report = hub_core.transform(lower(program, binding), "search", options=options)
    winner = extract_program(result).program
    assert compare(program, winner, Binding(3, {"N": 10})).ok
    buckets = [stage for stage in winner.stages if stage.family == "bucket"]
    assert sum(len(stage.members) for stage in buckets) == 8
    steps = [entry["transformation"] for entry in extract_program(result).history]
    assert steps[-1] == "search"
    assert "coalesce" in steps
    front = [line for line in report.changes if " us, " in line and "KiB: " in line]
    # Without buckets, every tensor has a kernel that communicates.
    assert float(front[0].split()[0]) < 0.8 * float(front[1].split()[0])
    assert any(line.startswith("search is restricted") for line in report.changes)
    assert "restriction: buckets of" in " ".join(report.changes)
