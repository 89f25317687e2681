"""Compiled HLO as typed programs, compared with the mathematics of the source programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from collhub_coconet import REPLICATED, compare, legal_moves, sliced
from collhub_coconet.documents.json_document import BoundProgram
from collhub_coconet.execution.array_operations import distribute
from collhub_coconet.execution.ranks import simulate_ranks
from collhub_coconet.torch_programs.typing_graphs import TypingChoices, type_graph
from collhub_hlo.samples import source_of
from collhub_hlo_modules.groups import find_placement
from collhub_hlo_modules.module import read_module
from collhub_hlo_modules.program_graph import build_graph
from collhub_hlo_modules.text import StatementReader

from hub_core import read_workload
from hub_core.model import InputError

STEP = Path(__file__).with_name("momentum_step.hlo.txt").read_text()
SUM = "%sum (a: f32[], b: f32[]) -> f32[] {\n%a = f32[] parameter(0)\n%b = f32[] parameter(1)\n\
ROOT %c = f32[] add(%a, %b)\n}\n"


def type_module(text: str, **choices: Any) -> BoundProgram:
    with source_of("module.hlo", text).parts[0].stream() as stream:
        module = read_module(StatementReader(stream, "module.hlo"), None, is_complete=True)
    return type_graph(build_graph(module, "module.hlo"), TypingChoices(**choices))


def module_of(*instructions: str, parameters: str = "f32[8,4]", before: str = "") -> str:
    """An entry for 4 devices with one parameter `p` (per device); the last one is the root."""
    lines = [f"%p = {parameters} parameter(0)", *instructions]
    lines[-1] = f"ROOT {lines[-1]}"
    body = "\n".join(lines)
    return f"HloModule m, num_partitions=4\n{SUM}{before}ENTRY %main (p: {parameters}) -> f32[] {{\n{body}\n}}\n"


def run_module(
    bound: BoundProgram, **arguments: np.ndarray[Any, Any]
) -> list[np.ndarray[Any, Any]]:
    """Run a program; the outputs of rank 0. Arguments are complete, or stacked if local."""
    program = bound.program
    values = {
        argument.name: distribute(arguments[argument.name], argument.type, bound.binding)
        for argument in program.arguments
    }
    run = simulate_ranks(program, bound.binding, values)
    return [run.values[name][0] for name in program.outputs]


def test_a_compiled_step_computes_what_its_source_states() -> None:
    """mean((tanh(x @ w1) @ w2 - y)**2), momentum 0.9, rate 0.1; gradients by the chain rule."""
    bound = type_module(STEP)
    layouts = {one.name: one.type.layout for one in bound.program.arguments}
    assert layouts == {
        "param": REPLICATED, "param_3": REPLICATED, "param_1": REPLICATED, "param_5": REPLICATED,
        "param_2": sliced(0), "param_4": sliced(0),
    }  # fmt: skip
    states = [one.name for one in bound.program.arguments if one.is_state]
    assert states == ["param", "param_3", "param_1", "param_5"]
    random = np.random.default_rng(1)
    shapes = {"param": (6, 8), "param_3": (8, 4), "param_1": (6, 8), "param_5": (8, 4),
              "param_2": (16, 6), "param_4": (16, 4)}  # fmt: skip
    data = {name: random.uniform(-1, 1, shape) for name, shape in shapes.items()}
    w1, w2, m1, m2, x, y = data.values()
    h = np.tanh(x @ w1)
    error = 2 * (h @ w2 - y) / y.size
    m2 = 0.9 * m2 + h.T @ error
    m1 = 0.9 * m1 + x.T @ (error @ w2.T * (1 - h**2))
    results = run_module(bound, **{name: one.astype(np.float32) for name, one in data.items()})
    for result, expected in zip(results, (w1 - 0.1 * m1, w2 - 0.1 * m2, m1, m2), strict=True):
        np.testing.assert_allclose(result, expected, rtol=0, atol=1e-6)


def test_moves_of_a_compiled_step_keep_its_results() -> None:
    bound = type_module(STEP)
    moves = legal_moves(bound.program, bound.binding)
    assert {"split", "fuse"} <= {str(move).partition("(")[0] for move in moves}
    for move in moves[:12]:
        assert compare(bound.program, move.rewrite.program, bound.binding).ok, move


def test_a_step_is_a_workload_whose_collectives_are_those_of_the_module(tmp_path: Path) -> None:
    path = tmp_path / "step.hlo.txt"
    path.write_text(STEP)
    workload = read_workload(path, format="hlo-program")
    assert workload.num_ranks == 4
    # One combined all-reduce of both gradients per device: 8 x 6 and 4 x 8 numbers.
    assert (
        sorted(workload.nodes.bytes[workload.nodes.collective >= 0].tolist())
        == [128] * 4 + [192] * 4
    )


@pytest.mark.parametrize(
    ("instruction", "expected"),
    [
        ("%r = f32[4,8] transpose(%p), dimensions={1,0}", lambda p: p.T),
        ("%r = f32[4,8]{0,1} bitcast(%p)", lambda p: p.T),
        ("%r = f32[2,16] bitcast(%p)", lambda p: p.reshape(2, 16)),
        ("%r = f32[8,8] dot(%p, %p), lhs_contracting_dims={1}, rhs_contracting_dims={1}",
         lambda p: p @ p.T),
        ("%r = f32[4,4] dot(%p, %p), lhs_contracting_dims={0}, rhs_contracting_dims={0}",
         lambda p: p.T @ p),
        ("%c = f32[] constant(2)\n%b = f32[8,4] broadcast(%c), dimensions={}\n"
         "%r = f32[8,4] divide(%b, %p)", lambda p: 2 / p),
        ("%c = f32[] constant(2)\n%b = f32[8,4] broadcast(%c), dimensions={}\n"
         "%r = f32[8,4] subtract(%b, %p)", lambda p: 2 - p),
        ("%c = f32[] constant(0.5)\n%b = f32[8,4] broadcast(%c), dimensions={}\n"
         "%r = f32[8,4] maximum(%b, %p)", lambda p: np.maximum(p, 0.5)),
        ("%z = f32[] constant(0)\n%r = f32[] reduce(%p, %z), dimensions={0,1}, to_apply=%sum",
         lambda p: p.sum()),
    ],
)  # fmt: skip
def test_operators_have_the_meaning_of_hlo(instruction: str, expected: Any) -> None:
    bound = type_module(module_of(*instruction.split("\n")), placements={"p": "R"}, num_ranks=4)
    known = all(operation.call is None for operation in bound.program.operations)
    p = np.random.default_rng(2).uniform(0.1, 1, (8, 4)).astype(np.float32)
    if known:
        (result,) = run_module(bound, p=p)
        np.testing.assert_allclose(result, expected(p), rtol=1e-6)
    else:
        # Opaque operators of PyTorch: only the shapes are known here.
        kind = bound.program.types[bound.program.outputs[0]]
        assert kind.shape == expected(p).shape


LOOP = """\
%body (s: (s32[], f32[8,4])) -> (s32[], f32[8,4]) {
%s = (s32[], f32[8,4]) parameter(0)
%i = s32[] get-tuple-element(%s), index=0
%x = f32[8,4] get-tuple-element(%s), index=1
%r = f32[8,4] all-reduce(%x), channel_id=1, replica_groups={{0,1,2,3}}, \
use_global_device_ids=true, to_apply=%sum
%one = s32[] constant(1)
%n = s32[] add(%i, %one)
ROOT %t = (s32[], f32[8,4]) tuple(%n, %r)
}
%condition (s.1: (s32[], f32[8,4])) -> pred[] {
%s.1 = (s32[], f32[8,4]) parameter(0)
%i.1 = s32[] get-tuple-element(%s.1), index=0
%k = s32[] constant(3)
ROOT %c.1 = pred[] compare(%i.1, %k), direction=LT
}
"""
WHILE = (
    "%z = s32[] constant(0)",
    "%start = (s32[], f32[8,4]) tuple(%z, %p)",
    "%loop = (s32[], f32[8,4]) while(%start), condition=%condition, body=%body",
    "%result = f32[8,4] get-tuple-element(%loop), index=1",
)


def test_a_loop_of_known_length_is_unrolled() -> None:
    bound = type_module(module_of(*WHILE, before=LOOP))
    p = np.random.default_rng(3).uniform(-1, 1, (4, 8, 4)).astype(np.float32)
    (result,) = run_module(bound, p=p)
    # The first all-reduce adds the four values; the others multiply by the number of devices.
    np.testing.assert_allclose(result, p.sum(axis=0) * 16, rtol=1e-5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (module_of("%r = f32[8,4] collective-permute(%p), channel_id=1, "
                   "source_target_pairs={{0,1}}"),
         "collective-permute 'r' is a message between devices, not a collective; read the module"
         " as a workload: --from hlo"),
        (module_of("%r = f32[8,4] all-reduce(%p), channel_id=1, replica_groups={{0,1},{2,3}}, "
                   "use_global_device_ids=true, to_apply=%sum",
                   "%q = f32[8,4] all-reduce(%r), channel_id=2, replica_groups={{0,2},{3,1}}, "
                   "use_global_device_ids=true, to_apply=%sum"),
         "all-reduce 'q' has groups 0,2|3,1 of no mesh; read the module as a workload"),
        (module_of(*WHILE, before=LOOP.replace("constant(3)", "constant(999999999)")),
         "all-reduce 'r' exceeds 100 nodes; use fewer iterations"),
        (module_of(*WHILE, before=LOOP.replace("direction=LT", "direction=NE")),
         "has collectives and an unknown length; give the number of iterations"),
        (module_of("%r = f32[8,4] all-reduce(%p), channel_id=1, replica_groups={{0,1,2,3}}, "
                   "use_global_device_ids=true, to_apply=%diff",
                   before=SUM.replace("%sum", "%diff").replace("add", "subtract")),
         "all-reduce 'r' reduces with subtract; reduce with add, maximum, minimum or multiply"),
    ],
)  # fmt: skip
def test_a_module_outside_of_the_language_is_one_line(
    text: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("collhub_hlo_modules.program_graph.MAX_NODES", 100)
    with pytest.raises(InputError) as caught:
        type_module(text)
    assert message in str(caught.value)


def test_partitions_with_long_names_that_begin_alike_are_different_groups() -> None:
    """Of 512 devices, groups of 128 and of 256 list the same first 128 devices."""
    text = module_of(
        *(
            f"%{name} = f32[8,4] all-reduce({operand}), channel_id={number}, "
            f"replica_groups=[{512 // size},{size}]<=[512], use_global_device_ids=true, "
            "to_apply=%sum"
            for number, (name, operand, size) in enumerate((("q", "%p", 128), ("r", "%q", 256)), 1)
        )
    )
    text = text.replace("num_partitions=4", "num_partitions=512")
    with source_of("module.hlo", text).parts[0].stream() as stream:
        module = read_module(StatementReader(stream, "module.hlo"), None, is_complete=True)
    assert sorted(map(len, build_graph(module, "module.hlo").groups.values())) == [128, 256]


def test_groups_of_two_partitions_are_axes_of_a_mesh() -> None:
    """The first sum is over devices 0, 1; the gather over devices 0, 2."""
    bound = type_module(
        module_of(
            "%r = f32[8,4] all-reduce(%p), channel_id=1, replica_groups={{0,1},{2,3}}, "
            "use_global_device_ids=true, to_apply=%sum",
            "%q = f32[16,4] all-gather(%r), channel_id=2, replica_groups={{0,2},{1,3}}, "
            "use_global_device_ids=true, dimensions={0}",
        )
    )
    assert bound.binding.mesh == (2, 2)
    p = np.random.default_rng(3).uniform(-1, 1, (4, 8, 4)).astype(np.float32)
    values = simulate_ranks(bound.program, bound.binding, {"p": [*p]}).values
    expected = np.concatenate([p[0] + p[1], p[2] + p[3]])
    for result in values[bound.program.outputs[0]]:
        np.testing.assert_allclose(result, expected, rtol=1e-6)


LAYER = f"""HloModule layer, num_partitions=4
{SUM}ENTRY %main () -> f32[] {{
%x = f32[4,6] parameter(0), sharding={{devices=[2,1,2]<=[4] last_tile_dim_replicate}}
%w = f32[6,4] parameter(1), sharding={{devices=[1,2,2]<=[2,2]T(1,0) last_tile_dim_replicate}}
%v = f32[4,5] parameter(2), sharding={{devices=[2,1,2]0,2,1,3 last_tile_dims={{replicated}}}}
%a = f32[4,4] dot(%x, %w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
%h = f32[4,4] tanh(%a)
%b = f32[4,5] dot(%h, %v), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
%y = f32[4,5] all-reduce(%b), channel_id=1, replica_groups=[2,2]<=[4], use_global_device_ids=true, \
to_apply=%sum
%c = f32[4,5] dot(%h, %y), lhs_contracting_dims={{0}}, rhs_contracting_dims={{0}}
ROOT %g = f32[4,5] all-reduce(%c), channel_id=2, replica_groups={{{{0,2}},{{1,3}}}}, \
use_global_device_ids=true, to_apply=%sum
}}
"""


def test_shardings_on_two_axes_are_layouts() -> None:
    """Data parallel on the first axis, tensor parallel on the second, as JAX compiles it."""
    bound = type_module(LAYER)
    layouts = {name: str(kind.layout) for name, kind in bound.program.types.items()}
    assert {name: layouts[name] for name in "xwvbyg"} == {
        "x": "(S_0, R)", "w": "(R, S_1)", "v": "(R, S_0)",
        "b": "(S_0, P(sum))", "y": "(S_0, R)", "g": "(R, S_0)",
    }  # fmt: skip
    random = np.random.default_rng(2)
    shapes = {"x": (8, 6), "w": (6, 8), "v": (8, 5)}
    data = {name: random.uniform(-1, 1, shape) for name, shape in shapes.items()}
    h = np.tanh(data["x"] @ data["w"])
    expected = h.T @ (h @ data["v"])
    arrays = {name: one.astype(np.float32) for name, one in data.items()}
    np.testing.assert_allclose(run_module(bound, **arrays)[0], expected[:4], rtol=1e-4)
    moves = legal_moves(bound.program, bound.binding)
    assert moves
    for move in moves:
        assert compare(bound.program, move.rewrite.program, bound.binding).ok, move


@pytest.mark.parametrize(
    ("sharding", "placement"),
    [
        ("{replicated}", "R"),
        ("{devices=[4,1]<=[4]}", "(S(0), S(0))"),
        ("{devices=[4,1]<=[2,2]T(1,0)}", ""),
        ("{devices=[2,2]<=[4]}", "(S(0), S(1))"),
        ("{devices=[2,2]0,2,1,3}", "(S(1), S(0))"),
        ("{devices=[2,1,2]<=[4] last_tile_dims={manual}}", ""),
        ("{devices=[3,1]<=[4]}", ""),
        ("{devices=[2,2]0,0,1,3}", ""),
        ("{manual}", ""),
        ("{maximal device=1}", ""),
        ("{{replicated}, {devices=[4,1]<=[4]}}", ""),
    ],
)
def test_placement_of_a_sharding(sharding: str, placement: str) -> None:
    assert find_placement(sharding, range(4), (2, 2), 4) == placement


def test_nodes_of_a_module_have_the_shapes_of_its_instructions() -> None:
    with source_of("module.hlo", STEP).parts[0].stream() as stream:
        module = read_module(StatementReader(stream, "m"), None, is_complete=True)
    graph = build_graph(module, "m")
    shapes = {tensor.shape for tensor in graph.tensors.values()}
    assert shapes == {(6, 8), (8, 4), (4, 6), (4, 4), (4, 8), (8, 6)}
    assert [one for one in graph.nodes if one.operator.startswith("hlo.")] == []
