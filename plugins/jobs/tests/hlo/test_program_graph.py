"""Operators of a captured graph that an HLO module becomes."""

from __future__ import annotations

import pytest
from collhub_captured_graphs.graph import CapturedGraph, Reference
from collhub_hlo.mlir_text import parse_operation
from collhub_hlo.samples import source_of
from collhub_hlo_modules import program_graph
from collhub_hlo_modules.module import read_module
from collhub_hlo_modules.program_graph import build_graph
from collhub_hlo_modules.text import StatementReader

from hub_core import InputError


def graph_of(*instructions: str, element: str = "s32") -> CapturedGraph:
    """The graph of an entry with one parameter `p` of 4 elements; the last instruction is its root."""
    lines = [f"%p = {element}[4] parameter(0)", *instructions]
    lines[-1] = f"ROOT {lines[-1]}"
    body = "\n".join(lines)
    text = f"HloModule m\nENTRY %main (p: {element}[4]) -> {element}[4] {{\n{body}\n}}\n"
    with source_of("module.hlo", text).parts[0].stream() as stream:
        module = read_module(StatementReader(stream, "module.hlo"), None, is_complete=True)
    return build_graph(module, "module.hlo")


@pytest.mark.parametrize(
    ("operands", "operators"),
    [
        ("%b, %p", ["aten.full.default", "aten.div.Tensor_mode"]),
        ("%p, %b", ["aten.div.Scalar_mode"]),
        ("%p, %p", ["aten.div.Tensor_mode"]),
    ],
)
def test_quotients_of_integers_round_toward_zero(operands: str, operators: list[str]) -> None:
    """The reciprocal of an integer is no integer: 7 * (1 / 2) is 0 or 3.5, and 7 / 2 is 3."""
    graph = graph_of(
        "%c = s32[] constant(7)",
        "%b = s32[4] broadcast(%c), dimensions={}",
        f"%r = s32[4] divide({operands})",
    )
    assert [node.operator for node in graph.nodes] == operators
    assert graph.nodes[-1].arguments["rounding_mode"] == "trunc"


def test_quotients_of_floats_are_not_rounded() -> None:
    graph = graph_of("%r = f32[4] divide(%p, %p)", element="f32")
    assert graph.nodes[0].arguments == {"self": Reference("p"), "other": Reference("p")}
    assert graph.nodes[0].operator == "aten.div.Tensor"


@pytest.mark.parametrize(
    ("element", "instructions", "expected"),
    [
        ("u32", ("%x = u32[] constant(4000000000)", "%n = u32[] add(%x, %x)"), 8000000000 - 2**32),
        ("u32", ("%x = u32[] constant(0)", "%y = u32[] constant(1)", "%n = u32[] subtract(%x, %y)"),
         2**32 - 1),
        ("s8", ("%x = s8[] constant(100)", "%n = s8[] add(%x, %x)"), -56),
        ("pred", ("%x = pred[] constant(true)", "%n = pred[] add(%x, %x)"), 1),
        ("s32", ("%x = f32[] constant(-2.75)", "%n = s32[] convert(%x)"), -2),
        ("s32", ("%x = f32[] constant(nan)", "%n = s32[] convert(%x)"), 0),
        ("u8", ("%x = f32[] constant(1e9)", "%n = u8[] convert(%x)"), 255),
        ("u8", ("%x = s32[] constant(-1)", "%n = u8[] convert(%x)"), 255),
        ("pred", ("%x = f32[] constant(0.5)", "%n = pred[] convert(%x)"), 1),
        ("f32", ("%x = s32[] constant(3)", "%n = f32[] convert(%x)"), 3.0),
    ],
)  # fmt: skip
def test_numbers_are_computed_in_their_element_type(
    element: str, instructions: tuple[str, ...], expected: float
) -> None:
    graph = graph_of(
        *instructions,
        f"%b = {element}[4] broadcast(%n), dimensions={{}}",
        f"%r = {element}[4] power(%b, %p)",
        element=element,
    )
    value = graph.nodes[0].arguments["fill_value"]
    assert (value, type(value)) == (expected, type(expected))


def test_an_output_that_is_a_broadcast_is_a_tensor() -> None:
    """A broadcast is only added where it is read; the caller reads the outputs."""
    graph = graph_of(
        "%b = s32[2,4] broadcast(%p), dimensions={1}",
        "%t = (s32[2,4], s32[4]) tuple(%b, %p)",
    )
    shapes = [graph.tensors[output.value].shape for output in graph.outputs]
    assert shapes == [(2, 4), (4,)]
    assert [node.operator for node in graph.nodes] == [
        "aten.reshape.default",
        "aten.expand.default",
    ]


def test_the_colon_of_an_argument_does_not_begin_the_types() -> None:
    """The list of arguments of a region ends with `)`, as a list of types does."""
    text = "%0 = sdy.manual_computation(%a) manual_axes={} (%x : tensor<4xf32>, %y : tensor<2xf32>)"
    assert parse_operation(text, 1).types == ""
    types = " : (tensor<4xf32>) -> (tensor<4xf32>, tensor<2xf32>)"
    assert parse_operation(text + types, 1).types.strip() == types.removeprefix(" : ")


@pytest.mark.parametrize(
    "instruction",
    [
        "%r = s32[4] add(%p)",
        "%r = s32[4] negate()",
        "%r = s32[4] select(%p, %p)",
        "%r = s32[4] reduce()",
        "%r = s32[4] transpose(%p), dimensions={7}",
        "%r = s32[4] broadcast(%p), dimensions={x}",
        "%r = s32[4] transpose(%p), dimensions={x}",
        "%r = s32[4] get-tuple-element(%p), index=x",
        "%r = s32[4] concatenate(%p, %p), dimensions={0,1}",
        "%r = s32[4] dot(%p, %p), lhs_contracting_dims={3}, rhs_contracting_dims={0}",
    ],
)
def test_an_instruction_that_does_not_fit_its_operands_is_one_line(instruction: str) -> None:
    """The text may be cut or changed; operands and attributes are read where they are used."""
    with pytest.raises(InputError, match=r"^module\.hlo:5: .*; dump the module again"):
        graph_of("%c = s32[] constant(7)", instruction)


def test_a_token_is_no_input_of_a_program() -> None:
    graph = graph_of("%t = token[] parameter(1)", "%r = s32[4] negate(%p)")
    assert [entry.tensor.name for entry in graph.inputs] == ["p"]


def test_an_error_of_the_converter_is_not_taken_for_a_damaged_module(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A table of the converter without its entries is a programming error.
    monkeypatch.setattr(program_graph, "_WHERE", {})
    with pytest.raises(KeyError):
        graph_of("%c = pred[4] compare(%p, %p), direction=LT", "%r = s32[4] select(%c, %p, %p)")
