"""Operators of real captures: kinds of the language, and results equal to those of PyTorch."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
import pytest

torch: Any = pytest.importorskip("torch")

from collhub_captured_graphs import (  # noqa: E402
    CapturedGraph,
    GraphInput,
    GraphNode,
    GraphOutput,
    Tensor,
)
from collhub_captured_graphs.fx_graphs import convert_fx  # noqa: E402
from collhub_captured_graphs.graph import InputRole, OutputRole, Reference  # noqa: E402
from collhub_captured_graphs.operators import describe_node  # noqa: E402
from collhub_coconet import (  # noqa: E402
    LOCAL,
    Kind,
    program_from_json,
    program_to_json,
    sliced,
    text,
)
from collhub_coconet.documents.json_document import BoundProgram  # noqa: E402
from collhub_coconet.execution.ranks import simulate_ranks  # noqa: E402
from collhub_coconet.lowering.workload import lower  # noqa: E402
from collhub_coconet.plugin import TorchModuleOptions  # noqa: E402
from collhub_coconet.torch_programs.typing_graphs import TypingChoices, type_graph  # noqa: E402
from collhub_coconet.torch_programs.writing import write  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402
from torch.nn import functional  # noqa: E402

from hub_core.model import InputError  # noqa: E402

Function = Callable[..., Any]


def capture_function(function: Function, *inputs: Any) -> CapturedGraph:
    """Capture a function of replicated tensors; its outputs are those of the graph."""
    module = make_fx(function)(*inputs)
    module.graph.eliminate_dead_code()
    unknown = Tensor("", "float32", ())
    described = [GraphInput(unknown, InputRole.INPUT, "", "R") for _ in inputs]
    outputs = torch.utils._pytree.tree_leaves(function(*inputs))
    roles = [GraphOutput("", OutputRole.OUTPUT) for _ in outputs]
    return convert_fx(module, described, roles, "function")


def run_typed(bound: BoundProgram, inputs: Sequence[Any]) -> list[Any]:
    """Run a program of replicated values with numpy; returns the outputs of rank 0."""
    names = [argument.name for argument in bound.program.arguments]
    arrays = {name: [one.numpy()] * 2 for name, one in zip(names, inputs, strict=True)}
    run = simulate_ranks(bound.program, bound.binding, arrays)
    return [run.values[name][0] for name in bound.program.outputs]


def run_module(bound: BoundProgram, inputs: Sequence[Any]) -> list[Any]:
    """Run the written module in this process; it has no collective."""
    (artifact,) = write(lower(bound.program, bound.binding), TorchModuleOptions()).artifacts
    module: dict[str, Any] = {"__name__": "written"}
    exec(compile(artifact.content(), "written.py", "exec"), module)
    names = [argument.name for argument in bound.program.arguments]
    results = module["step"](dict(zip(names, inputs, strict=True)))
    return [results[name].numpy() for name in bound.program.outputs]


def draw(*shape: int) -> Any:
    return torch.rand(shape, generator=torch.Generator().manual_seed(prod(shape) + 7)) * 2 - 1


IDS = torch.tensor([[3, 0, 3], [1, 2, 4]])
UNORDERED = torch.tensor([[0.5, float("nan"), -1.0], [2.0, 0.0, float("nan")], [-1.0, 3.0, -0.5]])


def differentiate(function: Function) -> Function:
    """Return a function that computes the gradients of all floating inputs."""

    def run(*inputs: Any) -> Any:
        leaves = [x.detach().requires_grad_() if x.is_floating_point() else x for x in inputs]
        y = function(*leaves)
        return torch.autograd.grad(y, [x for x in leaves if x.requires_grad], y.detach())

    return run


FUNCTIONS: dict[str, tuple[Function, tuple[Any, ...]]] = {
    "permute": (lambda x: x.permute(2, 0, -2) * 1.0, (draw(2, 3, 4),)),
    "transpose": (lambda x: x.transpose(0, -1) + x.transpose(2, 0), (draw(2, 3, 4),)),
    "erf-gelu": (functional.gelu, (draw(3, 4),)),
    "tanh-gelu": (lambda x: functional.gelu(x, approximate="tanh"), (draw(3, 4),)),
    "gradient of erf-gelu": (differentiate(functional.gelu), (draw(3, 4),)),
    "gradient of tanh-gelu": (
        differentiate(lambda x: functional.gelu(x, approximate="tanh")), (draw(3, 4),),
    ),
    "unbind": (lambda x: x.unbind(1)[2] * x.unbind(1)[0], (draw(2, 3, 4),)),
    "gradient of unbind": (
        differentiate(lambda x: torch.stack(x.unbind(1), 2)), (draw(2, 3, 4),),
    ),
    "split": (lambda x: [one * 2.0 for one in x.split(2, 1)], (draw(3, 5),)),
    "split with sizes": (lambda x: [one * 2.0 for one in x.split([1, 4], -1)], (draw(3, 5),)),
    "chunk": (lambda x: [one * 2.0 for one in x.chunk(3, 1)], (draw(2, 8),)),
    "gradient of split": (
        differentiate(lambda x: torch.cat(x.split(2, 1)[::-1], 1)), (draw(3, 4),),
    ),
    "select and slice": (lambda x: x[:, -1] + x[:, 1:4, 0:1].select(2, 0)[:, 0:2], (draw(3, 5, 2),)),
    "cat and stack": (
        lambda x, y: (torch.cat([x, y], -1), torch.stack([x, y], 1)), (draw(2, 3), draw(3, 2).t()),
    ),
    "embedding": (lambda ids, weight: functional.embedding(ids, weight), (IDS, draw(5, 3))),
    "gradient of embedding": (
        differentiate(lambda weight, ids: functional.embedding(ids, weight)), (draw(5, 3), IDS),
    ),
    "addmm": (lambda b, x, w: torch.addmm(b, x, w, beta=0.5, alpha=2), (draw(4), draw(3, 2), draw(2, 4))),
    "baddbmm": (
        lambda b, x, w: torch.baddbmm(b, x, w, alpha=0.25), (draw(2, 3, 4), draw(2, 3, 5), draw(2, 5, 4)),
    ),
    "sums along dimensions": (
        lambda x: (x.sum((0, 2)), x.sum(1, keepdim=True), x.mean((-1, 0)), x.amax(1)), (draw(2, 3, 4),),
    ),
    "dropout without effect": (
        lambda x: functional.dropout(x, 0.0) * functional.dropout(x, 0.5, training=False), (draw(3, 4),),
    ),
    "comparisons": (
        lambda x, y: (x <= y, x >= y, x != y, x.le(0.5), y.ge(0.0), x.ne(y[0, 1]), x.maximum(y), y.minimum(x)),
        (UNORDERED, UNORDERED.t().contiguous()),
    ),
    "logic": (
        lambda x, y: ((x < 0).logical_and(y > 0), (x < 0).logical_or(y > 0), (x < y).logical_not()),
        (UNORDERED, UNORDERED.t().contiguous()),
    ),
    "masked fill": (lambda x: (x + 1).masked_fill(x < 0.25, -1e9).abs(), (draw(3, 4),)),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_operator_is_typed_and_computes_the_result_of_pytorch(name: str) -> None:
    function, inputs = FUNCTIONS[name]
    bound = type_graph(capture_function(function, *inputs), TypingChoices(2))
    assert Kind.OPAQUE not in {operation.kind for operation in bound.program.operations}
    expected = [one.numpy() for one in torch.utils._pytree.tree_leaves(function(*inputs))]
    for found in (run_typed(bound, inputs), run_module(bound, inputs)):
        for x, y in zip(found, expected, strict=True):
            assert (x.shape, x.dtype) == (y.shape, y.dtype)
            # float32; sums have another order, and erf and exp another library.
            np.testing.assert_allclose(x, y, rtol=4e-6, atol=4e-6)


def test_list_operators_of_adamw_are_typed_per_tensor() -> None:
    """`torch.optim` with foreach=True: `_foreach_lerp`, `_addcmul`, `_addcdiv`, `_sqrt`, ..."""
    from torch.optim.adamw import adamw

    def step(*tensors: Any) -> Any:
        lists = [[one.clone() for one in tensors[start : start + 2]] for start in range(0, 8, 2)]
        steps = [torch.tensor(1.0) for _ in range(2)]
        adamw(
            *lists, [], steps, foreach=True, amsgrad=False, beta1=0.9, beta2=0.99, lr=1e-2,
            weight_decay=0.1, eps=1e-3, maximize=False,
        )  # fmt: skip
        return [*lists[0], *lists[2], *lists[3]]

    inputs = [one.abs() for _ in range(4) for one in (draw(3, 4), draw(5))]
    graph = capture_function(torch.func.functionalize(step), *inputs)
    assert sum("._foreach_" in node.operator for node in graph.nodes) == 8
    bound = type_graph(graph, TypingChoices(2))
    assert Kind.OPAQUE not in {operation.kind for operation in bound.program.operations}
    for found in (run_typed(bound, inputs), run_module(bound, inputs)):
        for x, y in zip(found, step(*inputs), strict=True):
            np.testing.assert_allclose(x, y.numpy(), rtol=2e-6, atol=1e-6)


def test_list_operator_that_stays_opaque_has_the_work_of_all_entries() -> None:
    graph = capture_function(lambda x, y: torch._foreach_floor([x, y]), draw(3, 4), draw(3, 4))
    (node,) = (one for one in graph.nodes if "_foreach_" in one.operator)
    facts = describe_node(graph, node)
    assert (facts.is_known, facts.work, facts.traffic) == (True, 24, 4 * 48)
    assert not facts.sliceable


ATTENTION: dict[str, Function] = {
    "forward": lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, is_causal=True),
    "backward": differentiate(
        lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    ),
    "with a mask": lambda q, k, v: functional.scaled_dot_product_attention(
        q, k, v, attn_mask=torch.ones(5, 5).tril().bool()
    ),
    "layer norm": lambda q, k, v: functional.layer_norm(q, (8,)) * functional.rms_norm(k, (8,)),
    "gradient of layer norm": differentiate(
        lambda q, k, v: functional.layer_norm(q, (8,), v[0, 0, 0], k[0, 0, 0]) * v * k
    ),
}


@pytest.mark.parametrize("name", ATTENTION)
def test_fused_kernel_stays_one_opaque_operation_with_the_result_of_pytorch(name: str) -> None:
    """The language has no attention or layer norm: a chain of rows would count other traffic."""
    inputs = draw(2, 3, 5, 8), draw(2, 3, 5, 8) * 0.5, draw(2, 3, 5, 8) * 0.25
    function = ATTENTION[name]
    bound = type_graph(capture_function(function, *inputs), TypingChoices(2))
    opaque = [one for one in bound.program.operations if one.kind is Kind.OPAQUE]
    assert opaque
    assert all(one.traffic for one in opaque if one.work)
    expected = torch.utils._pytree.tree_leaves(function(*inputs))
    for x, y in zip(run_module(bound, inputs), expected, strict=True):
        np.testing.assert_allclose(x, y.numpy(), rtol=4e-6, atol=4e-6)


def test_attention_counts_two_products_forward_and_five_backward() -> None:
    inputs = draw(2, 3, 5, 8), draw(2, 3, 5, 8) * 0.5, draw(2, 3, 5, 8) * 0.25
    graph = capture_function(differentiate(functional.scaled_dot_product_attention), *inputs)
    facts = {
        re.sub(r".*attention", "", node.operator): describe_node(graph, node)
        for node in graph.nodes
        if "attention" in node.operator
    }
    product = 2 * (2 * 3) * (5 * 5) * 8
    works = [one.work for one in facts.values()]
    assert works == [2 * product, 5 * product]


def test_parts_of_a_sliced_dimension_are_not_typed() -> None:
    """A rank's part of its block is no part of the complete tensor."""
    x = draw(2, 3, 4)
    graph = capture_function(lambda x: x.unbind(1)[0] + x.unbind(1)[2], x)
    name = graph.inputs[0].tensor.name
    typed = type_graph(graph, TypingChoices(4, placements={name: "S(2)"})).program
    assert Kind.OPAQUE not in {operation.kind for operation in typed.operations}
    assert "Part" in text(typed)
    cut = type_graph(graph, TypingChoices(4, placements={name: "S(1)"})).program
    parts = [one for one in cut.operations if one.kind is Kind.PART]
    assert parts
    assert {cut.types[one.reads[0]].layout for one in parts} == {LOCAL}


def test_operator_in_place_is_refused_if_a_view_would_change() -> None:
    def fill(x: Any) -> Any:
        y = x * 2.0
        row = y[0]
        y.add_(1.0)
        return row + y

    with pytest.raises(InputError, match=r"add_.*writes to an operand"):
        capture_function(fill, draw(2, 3))
    graph = capture_function(lambda x: (x * 2.0).add_(1.0), draw(2, 3))
    assert [node.operator for node in graph.nodes] == ["aten.mul.Tensor", "aten.add.Tensor"]
    with pytest.raises(InputError, match=r"add_.*writes to an operand"):
        capture_function(lambda x: x.add_(1.0), draw(2, 3))


def normalize(x: Any, y: Any, z: Any) -> Any:
    return functional.layer_norm(x * y, (8,), torch.arange(8.0) / 8) * z


def attend(q: Any, k: Any, v: Any) -> Any:
    mask = torch.ones(q.shape[2], k.shape[2]).tril().bool()
    return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)


# Number of dimensions that may be sliced, of 4.
KERNELS: dict[str, tuple[int, Function]] = {
    "attention": (2, ATTENTION["forward"]),
    "attention with a mask": (2, attend),
    "gradients of attention": (2, ATTENTION["backward"]),
    "norms": (3, ATTENTION["layer norm"]),
    "gradients of a norm": (3, differentiate(normalize)),
    "softmax": (3, lambda q, k, v: (q.softmax(-1), k.log_softmax(-1))),
    "gradient of softmax": (3, differentiate(lambda q, k, v: q.softmax(-1) * k * v)),
    "softmax of heads": (1, lambda q, k, v: (q * v).softmax(1)),
}


@pytest.mark.parametrize("dimension", [0, 1, 2])
@pytest.mark.parametrize("name", KERNELS)
def test_blocks_of_a_fused_kernel_are_blocks_of_its_complete_result(
    name: str, dimension: int
) -> None:
    """Batches and heads of attention, and dimensions that are not normalized, stay sliced."""
    count, function = KERNELS[name]
    inputs = [draw(4, 4, 4, 8) * size for size in (1, 0.5, 0.25)]
    parts = [one.chunk(2, dimension) for one in inputs]
    blocks = [[one[rank] for one in parts] for rank in range(2)]
    graph = capture_function(function, *blocks[0])
    placements = {one.tensor.name: f"S({dimension})" for one in graph.inputs if one.tensor.shape}
    program = type_graph(graph, TypingChoices(2, placements=placements)).program
    layouts = [program.types[one].layout for one in program.outputs]
    assert set(layouts) == {sliced(dimension) if dimension < count else LOCAL}
    if dimension < count:
        complete, *of_ranks = (
            torch.utils._pytree.tree_leaves(function(*one)) for one in (inputs, *blocks)
        )
        for expected, *found in zip(complete, *of_ranks, strict=True):
            joined = torch.cat(found, dimension)
            np.testing.assert_allclose(joined, expected, rtol=4e-6, atol=4e-6)


@pytest.mark.parametrize("placement", ["S(0)", "R", "L"])
def test_a_bias_with_the_rows_of_a_block_is_added_on_every_rank(placement: str) -> None:
    """A bias in blocks is added to blocks. Another one has no rows of the complete product: product
    and sum are then those of the rank, which no transformation divides as blocks.
    """
    inputs = draw(2, 4), draw(2, 3), draw(3, 4)
    graph = capture_function(torch.addmm, *inputs)
    names = [one.tensor.name for one in graph.inputs]
    placements = {names[0]: placement, names[1]: "S(0)", names[2]: "R"}
    bound = type_graph(graph, TypingChoices(2, placements=placements))
    (output,) = bound.program.outputs
    layout = sliced(0) if placement == "S(0)" else LOCAL
    assert bound.program.types[output].layout == layout
    (result,) = run_module(bound, inputs)
    np.testing.assert_allclose(result, torch.addmm(*inputs).numpy(), rtol=4e-6, atol=4e-6)


def test_gradients_of_weights_of_a_layer_norm_are_local_beside_blocks() -> None:
    """They are sums of the rows of one rank, even if they have as many elements as rows."""
    function = differentiate(lambda x, weight: functional.layer_norm(x, (4,), weight))
    graph = capture_function(function, draw(4, 4), draw(4))
    names = [one.tensor.name for one in graph.inputs]
    bound = type_graph(graph, TypingChoices(2, placements={names[0]: "S(0)"}))
    layouts = [bound.program.types[one].layout for one in bound.program.outputs]
    assert layouts == [sliced(0), LOCAL]
    assert program_from_json(program_to_json(bound.program)) == bound.program
    (artifact,) = write(lower(bound.program, bound.binding), TorchModuleOptions()).artifacts
    assert "_results[1]" in artifact.content().decode()


def test_attention_with_dropout_differs_between_ranks() -> None:
    call = {
        "query": Reference("q"), "key": Reference("q"), "value": Reference("q"), "dropout_p": 0.5,
    }  # fmt: skip
    tensor = Tensor("q", "float32", (2, 3, 4, 8))
    name = "aten.scaled_dot_product_attention.default"
    node = GraphNode("y", name, call, (Tensor("y", "float32", tensor.shape),))
    inputs = (GraphInput(tensor, InputRole.INPUT, "", "R"),)
    graph = CapturedGraph("dropout", inputs, (node,), (GraphOutput("y", OutputRole.OUTPUT),))
    assert type_graph(graph, TypingChoices(2)).program.types["y"].layout == LOCAL
