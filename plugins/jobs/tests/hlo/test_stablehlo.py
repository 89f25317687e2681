"""StableHLO modules: both forms of operations, loops, captured values, groups and errors."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from collhub_hlo.plugin import HloOptions
from collhub_hlo.read import read, read_mlir
from collhub_hlo.samples import (
    STABLEHLO_GENERIC,
    STABLEHLO_LOOP,
    TRAINING_LOOP,
    source_of,
)
from collhub_hlo.stablehlo_attributes import parse_dense

from hub_core.model import Diagnostic, HubError, InputError, JobCollective, NodeKind, Workload
from hub_core.plugin_api import Source

HANDLE = "channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>"
ADD = """ ({
    ^bb0(%x: tensor<f32>, %y: tensor<f32>):
      %sum = stablehlo.add %x, %y : tensor<f32>
      stablehlo.return %sum : tensor<f32>
    }) : (tensor<4xf32>) -> tensor<4xf32>"""
GROUPS = "dense<[[0, 1]]> : tensor<1x2xi64>"
HEADER = "module @test attributes {mhlo.num_partitions = 2 : i32, mhlo.num_replicas = 1 : i32} {\n"


def all_reduce(value: str, operand: str, groups: str = GROUPS) -> str:
    """An all-reduce of 16 bytes."""
    return (
        f'    {value} = "stablehlo.all_reduce"({operand}) <{{{HANDLE}, replica_groups = {groups},'
        f" use_global_device_ids}}>{ADD}\n"
    )


def module(body: str, more: str = "", header: str = HEADER, result: str = "%r") -> str:
    """A module whose function main has the argument %a, this body, and returns %r."""
    return (
        f"{header}  func.func public @main(%a: tensor<4xf32>) -> tensor<4xf32> {{\n{body}\n"
        f"    return {result} : tensor<4xf32>\n  }}\n{more}}}\n"
    )


def load(text: str | bytes, **options: Any) -> Workload:
    content = text if isinstance(text, bytes) else text.encode()
    return read_mlir(Source.of_bytes("test.mlir", content), HloOptions(**options))


def findings(text: str) -> list[str]:
    reported: list[str] = []
    source = source_of("test.mlir", text)
    read_mlir(
        Source(source.name, source.parts, lambda one: reported.append(str(one))), HloOptions()
    )
    return reported


def calls(workload: Workload) -> list[tuple[str, int, int, int]]:
    """Kind, bytes of the operands and of the result, and number of calls, in order."""
    facts = workload.extensions["hlo"]
    assert isinstance(facts, dict)
    listed: Any = facts["collectives"]
    return [
        (one["kind"], one["operand_bytes"], one["result_bytes"], one["calls"]) for one in listed
    ]


def groups(workload: Workload) -> set[tuple[int, ...]]:
    nodes = workload.nodes
    rows = np.flatnonzero(nodes.kind == NodeKind.COLLECTIVE)
    return {workload.members(int(nodes.group[row])) for row in rows}


@pytest.fixture
def modules(corpus: Path) -> Path:
    folder = corpus / "evidence" / "hlo"
    if not folder.is_dir():
        pytest.skip("the corpus has no StableHLO modules")
    return folder


def test_a_sharded_map_of_jax_has_the_collectives_of_its_compiled_program(modules: Path) -> None:
    workload = load((modules / "coll_jax0.10.stablehlo.mlir").read_text())
    compiled = read(
        source_of("c", (modules / "coll_jax0.10_cpu8.hlo.txt").read_text()), HloOptions()
    )
    assert sorted(calls(workload)) == sorted(calls(compiled)) == [
        ("all-gather", 256, 512, 1),
        ("all-reduce", 256, 256, 1),
        ("all-to-all", 256, 256, 1),
        ("collective-permute", 256, 256, 1),
        ("reduce-scatter", 512, 256, 1),
    ]  # fmt: skip
    assert groups(workload) == groups(compiled)


def test_a_program_before_partitioning_is_not_reported_as_free_of_communication(
    modules: Path,
) -> None:
    text = (modules / "step_jax0.10.stablehlo.mlir").read_text()
    assert calls(load(text)) == []
    assert any("the collectives that partitioning will add" in one for one in findings(text))
    facts: Any = load(text).extensions["hlo"]
    # 18 products of a device are 4 718 592 operations, and 8 devices share them.
    assert (facts["products"], facts["product_operations"]) == (18, 8 * 4_718_592)


def test_the_same_loop_as_hlo_and_stablehlo_has_the_same_communication() -> None:
    compiled = read(source_of("train.hlo", TRAINING_LOOP), HloOptions(order="data"))
    workload = load(STABLEHLO_LOOP)
    assert calls(workload) == calls(compiled)
    assert groups(workload) == groups(compiled)
    # Markers only join the many values of an iteration.
    for kind in set(NodeKind) - {NodeKind.MARKER}:
        assert (workload.nodes.kind == kind).sum() == (compiled.nodes.kind == kind).sum()
    computes = [one.nodes.kind == NodeKind.COMPUTE for one in (workload, compiled)]
    assert (
        workload.nodes.operations[computes[0]].sum() == compiled.nodes.operations[computes[1]].sum()
    )


def test_the_generic_form_with_mesh_axes_and_captured_values_is_read() -> None:
    workload = load(STABLEHLO_GENERIC)
    assert calls(workload) == [("all-to-all", 64, 64, 1), ("all-gather", 64, 128, 1)]
    assert groups(workload) == {(0, 1), (2, 3), (0, 2), (1, 3)}


# Spelling of groups of 8 devices, and the groups: by the definitions of `dense` in MLIR and of
# mesh axes in StableHLO (axes that are named move last, in the order in which they are named).
HEXADECIMAL = "".join(struct.pack("<q", one).hex() for one in (0, 2, 4, 6, 1, 3, 5, 7)).upper()
MESH = '#stablehlo.mesh<axes = [#stablehlo.mesh_axis<name = "x", size = 2>,\
 #stablehlo.mesh_axis<name = "y", size = 4>]>'
SPELLINGS = {
    "dense<[[0, 1, 2, 3], [4, 5, 6, 7]]> : tensor<2x4xi64>": {(0, 1, 2, 3), (4, 5, 6, 7)},
    f'dense<"0x{HEXADECIMAL}"> : tensor<2x4xi64>': {(0, 2, 4, 6), (1, 3, 5, 7)},
    "dense<[[0, 1, 2, 3, 4], [5, 6, 7, -1, -1]]> : tensor<2x5xi64>": {
        (0, 1, 2, 3, 4),
        (5, 6, 7),
    },
    '#stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "x">]>': {
        (0, 4),
        (1, 5),
        (2, 6),
        (3, 7),
    },
    "#stablehlo.replica_group_mesh_axes<mesh_name = @mesh, axes = [#stablehlo.axis_ref<name ="
    ' "y", sub_axis_info = (1)2>]>': {(0, 2), (1, 3), (4, 6), (5, 7)},
    '#stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#sdy<axis_ref"y":(2)2>]>': {
        (0, 1),
        (2, 3),
        (4, 5),
        (6, 7),
    },
    f'#stablehlo.replica_group_mesh_axes<mesh = {MESH}, axes = [#stablehlo.axis_ref<name = "y">,'
    ' #stablehlo.axis_ref<name = "x">]>': {(0, 4, 1, 5, 2, 6, 3, 7)},
    '#stablehlo.replica_group_mesh_axes<mesh = @turned, axes = [#stablehlo.axis_ref<name = "x">]>': {
        (7, 3),
        (6, 2),
        (5, 1),
        (4, 0),
    },
}
MESHES = """  sdy.mesh @mesh = <["x"=2, "y"=4]>
  sdy.mesh @turned = <["x"=2, "y"=4], device_ids=[7, 6, 5, 4, 3, 2, 1, 0]>
"""


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_spellings_of_groups(spelling: str) -> None:
    header = HEADER.replace("partitions = 2", "partitions = 8") + MESHES
    workload = load(module(all_reduce("%r", "%a", spelling), header=header))
    assert groups(workload) == SPELLINGS[spelling]


def test_empty_groups_without_a_channel_are_all_replicas() -> None:
    for spelling in ("dense<> : tensor<0x0xi64>", "dense<> : tensor<1x0xi64>"):
        body = all_reduce("%r", "%a", spelling)
        body = body.replace(HANDLE + ", ", "").replace(", use_global_device_ids", "")
        header = HEADER.replace("partitions = 2", "partitions = 1").replace("replicas = 1", "replicas = 3")  # fmt: skip
        assert groups(load(module(body, header=header))) == {(0, 1, 2)}


def test_one_group_of_one_device_is_a_splat() -> None:
    header = HEADER.replace("partitions = 2", "partitions = 1")
    body = all_reduce("%r", "%a", "dense<0> : tensor<1x1xi64>")
    assert calls(load(module(body, header=header))) == [("all-reduce", 16, 16, 1)]


def test_a_module_without_numbers_of_devices_has_the_fewest_that_its_groups_allow() -> None:
    text = module(all_reduce("%r", "%a"), header="module @test {\n")
    assert load(text).num_ranks == 2
    assert any("2 are assumed, the fewest that its groups allow" in one for one in findings(text))
    replicas = text.replace(HANDLE + ", ", "").replace(", use_global_device_ids", "")
    facts: Any = load(replicas).extensions["hlo"]
    assert (facts["replicas"], facts["partitions"]) == (2, 1)


def test_the_pairs_of_messages_count_for_the_number_of_devices() -> None:
    text = module(
        """    %k = stablehlo.create_token : !stablehlo.token
    %s = "stablehlo.send"(%a, %k) <{channel_handle = #stablehlo.channel_handle<handle = 5, type =\
 1>, is_host_transfer = false, source_target_pairs = dense<[[0, 3]]> : tensor<1x2xi64>}> :\
 (tensor<4xf32>, !stablehlo.token) -> !stablehlo.token""",
        header="module @test {\n",
        result="%a",
    )
    workload = load(text)
    facts: Any = workload.extensions["hlo"]
    assert (facts["replicas"], facts["partitions"]) == (1, 4)
    assert workload.nodes.peer[workload.nodes.kind == NodeKind.SEND].tolist() == [3]


def loop(condition: str, step: str, start: int = 0, extra: str = "") -> str:
    """A loop whose counter %i is compared with %end and changed by a step; it all-reduces %v."""
    return f"""    %start = stablehlo.constant dense<{start}> : tensor<i32>
    %end = stablehlo.constant dense<9> : tensor<i32>
    %two = stablehlo.constant dense<2> : tensor<i32>
    %l:3 = stablehlo.while(%i = %start, %v = %a, %last = %end) : tensor<i32>, tensor<4xf32>,\
 tensor<i32>{extra}
    cond {{
      %t = stablehlo.compare {condition} : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %t : tensor<i1>
    }} do {{
{all_reduce("%n", "%v")}      %j = {step} : tensor<i32>
      stablehlo.return %j, %n, %last : tensor<i32>, tensor<4xf32>, tensor<i32>
    }}"""


COUNTED = {
    ("LT, %i, %last, SIGNED", "stablehlo.add %i, %two", 0): 5,
    ("LE, %i, %end, SIGNED", "stablehlo.add %two, %i", 1): 5,
    ("GT, %last, %i, SIGNED", "stablehlo.add %i, %two", 3): 3,
    ("GE, %i, %last, SIGNED", "stablehlo.subtract %i, %two", 12): 2,
    ("GT, %i, %last, SIGNED", "stablehlo.subtract %i, %two", 12): 2,
    ("LT, %i, %last, SIGNED", "stablehlo.add %i, %two", 9): 0,
}


@pytest.mark.parametrize("case", COUNTED)
def test_iterations_follow_from_constants_that_are_carried_or_captured(
    case: tuple[str, str, int],
) -> None:
    workload = load(module(loop(*case), result="%l#1"))
    listed = calls(workload)
    assert (listed[0][3] if listed else 0) == COUNTED[case]


def test_attributes_may_follow_the_types_of_a_loop() -> None:
    attributes = ' attributes {mhlo.frontend_attributes = {note = "cond { \\" : i32"}}'
    text = module(loop(*next(iter(COUNTED)), extra=attributes), result="%l#1")
    assert calls(load(text)) == [("all-reduce", 16, 16, 5)]


@pytest.mark.parametrize(
    ("condition", "step"),
    [
        ("NE, %i, %last, SIGNED", "stablehlo.add %i, %two"),
        ("LT, %i, %last, SIGNED", "stablehlo.multiply %i, %two"),
        ("LT, %i, %last, SIGNED", "stablehlo.subtract %i, %two"),
        ("LT, %i, %last, SIGNED", "stablehlo.subtract %two, %i"),
    ],
)
def test_other_loops_need_the_option(condition: str, step: str) -> None:
    text = module(loop(condition, step), result="%l#1")
    with pytest.raises(InputError, match="unknown; give it with -O trip_count=N"):
        load(text)
    assert calls(load(text, trip_count=7)) == [("all-reduce", 16, 16, 7)]


def test_locations_aliases_comments_and_broken_lines_are_read() -> None:
    text = f"""#loc = loc(unknown)
#loc1 = loc("stablehlo.all_reduce : (\\" )"("a.py":1:2 to :3))
// a comment with a brace {{
{HEADER}
  func.func @main(
      %a: tensor<4xf32> loc("a : b"))
      -> (tensor<4xf32> {{jax.result_info = "x : y"}}) {{
    %r = "stablehlo.all_reduce"(%a) ({{
    ^bb0(%x: tensor<f32> loc("x"), %y: tensor<f32> loc("y")):  // the reducer
      %m = stablehlo.maximum %x, %y : tensor<f32> loc(#loc1)
      "stablehlo.return"(%m) : (tensor<f32>) -> () loc(#loc)
    }}) {{
      {HANDLE},
      replica_groups =
        dense<[[0, 1]]> : tensor<1x2xi64>,
      use_global_device_ids
    }} : (tensor<4xf32>)
      -> tensor<4xf32> loc(callsite("f"("a.py":1:1) at #loc1))
    func.return %r : tensor<4xf32> loc(#loc)
  }} loc(#loc)
}} loc(#loc)
#loc2 = loc("after")
{{-#
  dialect_resources: {{ builtin: {{ blob: "0x40" }} }}
#-}}
"""
    workload = load(text)
    assert calls(workload) == [("all-reduce", 16, 16, 1)]
    facts: Any = workload.extensions["hlo"]
    assert facts["collectives"][0]["reduction"] == "maximum"


def test_regions_on_the_line_of_their_operation_are_read() -> None:
    body = (
        f'%r = "stablehlo.all_reduce"(%a) ({{ ^bb0(%x: tensor<f32>, %y: tensor<f32>): %s ='
        " stablehlo.add %x, %y : tensor<f32> stablehlo.return %s : tensor<f32> }) {"
        f"{HANDLE}, replica_groups = {GROUPS}, use_global_device_ids}} : (tensor<4xf32>) ->"
        " tensor<4xf32>"
    )
    assert calls(load(module(body))) == [("all-reduce", 16, 16, 1)]


def test_an_asynchronous_region_overlaps_until_its_value_is_used() -> None:
    body = f"""    %f = "stablehlo.async_start"(%a) ({{
    ^bb0(%b: tensor<4xf32>):
{all_reduce("%q", "%b")}      stablehlo.return %q : tensor<4xf32>
    }}) : (tensor<4xf32>) -> !stablehlo.future<tensor<4xf32>>
    %c = stablehlo.negate %a : tensor<4xf32>
    %d = "stablehlo.async_done"(%f) : (!stablehlo.future<tensor<4xf32>>) -> tensor<4xf32>
    %r = stablehlo.add %c, %d : tensor<4xf32>"""
    workload = load(module(body))
    assert calls(workload) == [("all-reduce", 16, 16, 1)]
    before, after = workload.nodes.edges()
    first = workload.nodes.rank[before] == 0
    # The sum waits for both; the negation waits for none.
    assert sorted(zip(before[first].tolist(), after[first].tolist(), strict=True)) == [
        (0, 2),
        (1, 2),
    ]


def test_an_asynchronous_call_of_a_function_overlaps_like_a_region() -> None:
    body = """    %f = "mhlo.async_start"(%a) {called_computation = @reduced, execution_thread = "main"} :\
 (tensor<4xf32>) -> !mhlo.async_bundle<tensor<4xf32>, tensor<4xf32>>
    %c = stablehlo.negate %a : tensor<4xf32>
    %d = "mhlo.async_done"(%f) {called_computation = @reduced, execution_thread = "main"} :\
 (!mhlo.async_bundle<tensor<4xf32>, tensor<4xf32>>) -> tensor<4xf32>
    %r = stablehlo.add %c, %d : tensor<4xf32>"""
    function = f"""  func.func private @reduced(%b: tensor<4xf32>) -> tensor<4xf32> {{
{all_reduce("%q", "%b")}    return %q : tensor<4xf32>
  }}
"""
    text = module(body)
    end = text.rindex("}")
    workload = load(text[:end] + function + text[end:])
    assert calls(workload) == [("all-reduce", 16, 16, 1)]
    before, after = workload.nodes.edges()
    first = workload.nodes.rank[before] == 0
    assert sorted(zip(before[first].tolist(), after[first].tolist(), strict=True)) == [
        (0, 2),
        (1, 2),
    ]
    with pytest.raises(InputError, match="async_start names no function"):
        load(text.replace("called_computation = @reduced, ", "", 1))


def test_several_operands_add_up_and_their_results_are_parts() -> None:
    body = f"""    %b = stablehlo.constant dense<0.0> : tensor<2xbf16>
    %p:2 = "stablehlo.all_gather"(%a, %b) <{{all_gather_dim = 0 : i64, {HANDLE}, replica_groups =\
 {GROUPS}, use_global_device_ids}}> : (tensor<4xf32>, tensor<2xbf16>) -> (tensor<8xf32>,\
 tensor<4xbf16>)
    %r = stablehlo.slice %p#0 [0:4] : (tensor<8xf32>) -> tensor<4xf32>"""
    assert calls(load(module(body))) == [("all-gather", 20, 40, 1)]


def test_the_root_of_a_broadcast_that_the_program_computes_is_no_data() -> None:
    text = module(
        "    %root = stablehlo.constant dense<1> : tensor<1xi32>\n"
        f'    %r = "stablehlo.collective_broadcast"(%a, %root) <{{{HANDLE}, replica_groups ='
        f" {GROUPS}, has_dynamic_root}}> : (tensor<4xf32>, tensor<1xi32>) -> tensor<4xf32>"
    )
    reported: list[Diagnostic] = []
    source = source_of("test.mlir", text)
    workload = read_mlir(Source(source.name, source.parts, reported.append), HloOptions())
    assert workload.nodes.bytes.tolist() == [16, 16]
    assert any("the first device of the group is assumed" in one.message for one in reported)


def test_complex_numbers_have_the_bytes_of_both_parts() -> None:
    text = module(all_reduce("%r", "%a"))
    assert calls(load(text.replace("xf32>", "xcomplex<f32>>"))) == [("all-reduce", 32, 32, 1)]
    assert calls(load(text.replace("xf32>", "xcomplex<f64>>"))) == [("all-reduce", 64, 64, 1)]


def test_messages_and_ragged_exchanges_of_custom_calls_are_read() -> None:
    body = f"""    %k = stablehlo.create_token : !stablehlo.token
    %s = "stablehlo.send"(%a, %k) <{{channel_handle = #stablehlo.channel_handle<handle = 5, type =\
 1>, is_host_transfer = false, source_target_pairs = dense<[[0, 1]]> : tensor<1x2xi64>}}> :\
 (tensor<4xf32>, !stablehlo.token) -> !stablehlo.token
    %q:2 = "stablehlo.recv"(%s) <{{channel_handle = #stablehlo.channel_handle<handle = 5, type =\
 1>, is_host_transfer = false, source_target_pairs = dense<[[0, 1]]> : tensor<1x2xi64>}}> :\
 (!stablehlo.token) -> (tensor<4xf32>, !stablehlo.token)
    %o = stablehlo.constant dense<0> : tensor<2xi32>
    %r = stablehlo.custom_call @ragged_all_to_all(%q#0, %a, %o, %o, %o, %o) {{api_version = 4 : i32,\
 backend_config = {{channel_id = 1 : i64, replica_groups = {GROUPS}}}}} : (tensor<4xf32>,\
 tensor<4xf32>, tensor<2xi32>, tensor<2xi32>, tensor<2xi32>, tensor<2xi32>) -> tensor<4xf32>"""
    text = module(body)
    assert calls(load(text)) == [
        ("send", 16, 0, 1),
        ("recv", 16, 16, 1),
        ("ragged-all-to-all", 16, 16, 1),
    ]
    nodes = load(text).nodes
    sends, receives = (np.flatnonzero(nodes.kind == one) for one in (NodeKind.SEND, NodeKind.RECV))
    assert (nodes.rank[sends].tolist(), nodes.peer[sends].tolist()) == ([0], [1])
    assert (nodes.rank[receives].tolist(), nodes.peer[receives].tolist()) == ([1], [0])
    assert any("upper bound" in one for one in findings(text))


def test_work_of_products_convolutions_and_loops_of_functions() -> None:
    body = """    %p = stablehlo.constant dense<0.0> : tensor<2x8x16xf32>
    %q = stablehlo.constant dense<0.0> : tensor<2x16x4xf32>
    %d = stablehlo.dot_general %p, %q, batching_dims = [0] x [0], contracting_dims = [2] x [1] :\
 (tensor<2x8x16xf32>, tensor<2x16x4xf32>) -> tensor<2x8x4xf32>
    %g = "stablehlo.dot_general"(%p, %q) <{dot_dimension_numbers =\
 #stablehlo.dot<lhs_batching_dimensions = [0], rhs_batching_dimensions = [0],\
 lhs_contracting_dimensions = [2], rhs_contracting_dimensions = [1]>}> : (tensor<2x8x16xf32>,\
 tensor<2x16x4xf32>) -> tensor<2x8x4xf32>
    %m = stablehlo.constant dense<0.0> : tensor<8x16xf32>
    %v = stablehlo.constant dense<0.0> : tensor<16x4xf32>
    %o = stablehlo.dot %m, %v : (tensor<8x16xf32>, tensor<16x4xf32>) -> tensor<8x4xf32>
    %i = stablehlo.constant dense<0.0> : tensor<2x8x8x3xf32>
    %k = stablehlo.constant dense<0.0> : tensor<3x3x3x16xf32>
    %c = stablehlo.convolution(%i, %k) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],\
 window = {stride = [1, 1], pad = [[1, 1], [1, 1]]} {batch_group_count = 1 : i64,\
 feature_group_count = 1 : i64} : (tensor<2x8x8x3xf32>, tensor<3x3x3x16xf32>) ->\
 tensor<2x8x8x16xf32>
    %r = stablehlo.negate %a : tensor<4xf32>"""
    workload = load(module(body))
    nodes = workload.nodes
    first = (nodes.rank == 0) & (nodes.kind == NodeKind.COMPUTE)
    operations = dict(
        zip(
            [workload.names[one] for one in nodes.name[first]],
            nodes.operations[first].tolist(),
            strict=True,
        )
    )
    assert operations["dot.d"] == operations["dot.g"] == 2 * (2 * 8 * 4) * 16
    assert operations["dot.o"] == 2 * (8 * 4) * 16
    assert operations["convolution.c"] == 2 * (2 * 8 * 8 * 16) * 27


def test_a_vector_of_complex_numbers_is_contracted_along_its_only_dimension() -> None:
    body = """    %v = stablehlo.constant dense<0.0> : tensor<16xcomplex<f32>>
    %m = stablehlo.constant dense<0.0> : tensor<16x4xcomplex<f32>>
    %o = stablehlo.dot %v, %m : (tensor<16xcomplex<f32>>, tensor<16x4xcomplex<f32>>) ->\
 tensor<4xcomplex<f32>>
    %r = stablehlo.negate %a : tensor<4xf32>"""
    nodes = load(module(body)).nodes
    (operations,) = set(nodes.operations[nodes.operations > 4].tolist())
    assert operations == 2 * 4 * 16


def test_reductions_of_both_forms_count_their_operands() -> None:
    body = """    %z = stablehlo.constant dense<0.0> : tensor<f32>
    %s = stablehlo.reduce(%a init: %z) applies stablehlo.add across dimensions = [0] :\
 (tensor<4xf32>, tensor<f32>) -> tensor<f32>
    %t:2 = stablehlo.reduce(%a init: %z), (%a init: %z) across dimensions = [0] : (tensor<4xf32>,\
 tensor<4xf32>, tensor<f32>, tensor<f32>) -> (tensor<f32>, tensor<f32>)
     reducer(%b: tensor<f32>, %d: tensor<f32>) (%c: tensor<f32>, %e: tensor<f32>)  {
      %f = stablehlo.add %b, %d : tensor<f32>
      stablehlo.return %f, %c : tensor<f32>, tensor<f32>
    }
    %r = stablehlo.broadcast_in_dim %t#1, dims = [] : (tensor<f32>) -> tensor<4xf32>"""
    workload = load(module(body))
    nodes = workload.nodes
    names = [workload.names[one] for one in nodes.name[nodes.rank == 0]]
    assert names == ["reduce.s", "reduce.t", "broadcast.r"]
    assert nodes.operations[:3].tolist() == [4, 4, 0]


def test_older_shardings_of_jax_have_local_shapes_in_the_called_function() -> None:
    body = """    %0 = stablehlo.custom_call @Sharding(%a) {mhlo.sharding = "{devices=[2]<=[2]}"} :\
 (tensor<4xf32>) -> tensor<4xf32>
    %1 = stablehlo.custom_call @SPMDFullToShardShape(%0) {mhlo.sharding = "{manual}"} :\
 (tensor<4xf32>) -> tensor<2xf32>
    %2 = call @body(%1) : (tensor<2xf32>) -> tensor<2xf32>
    %r = stablehlo.custom_call @SPMDShardToFullShape(%2) {mhlo.sharding = "{devices=[2]<=[2]}"} :\
 (tensor<2xf32>) -> tensor<4xf32>"""
    function = """  func.func private @body(%b: tensor<2xf32>) -> tensor<2xf32> {
    %0 = stablehlo.negate %b : tensor<2xf32>
    return %0 : tensor<2xf32>
  }
"""
    assert not any("partitioning" in one for one in findings(module(body, function)))
    outside = body.replace("%0 =", "%n = stablehlo.negate %a : tensor<4xf32>\n    %0 =")
    assert any(
        "1 computations have the shapes" in one for one in findings(module(outside, function))
    )


def test_collectives_of_shardy_are_reported() -> None:
    body = """    %r = sdy.all_gather [{"x"}] %a out_sharding=<@mesh, [{}]> : tensor<4xf32>"""
    text = module(body, header=HEADER + MESHES)
    assert any("collectives of Shardy" in one for one in findings(text))


def test_large_constants_are_skipped_while_they_are_read() -> None:
    values = "00" * (20 << 20)
    body = f"""    %big = stablehlo.constant dense<"0x{values}"> : tensor<5242880xf32>
    %list = stablehlo.constant dense<[{"1.0, " * 40000}1.0]> : tensor<40001xf32>
    %s = stablehlo.slice %big [0:4] : (tensor<5242880xf32>) -> tensor<4xf32>
    %u = stablehlo.slice %list [0:4] : (tensor<40001xf32>) -> tensor<4xf32>
    %r = stablehlo.add %s, %u : tensor<4xf32>"""
    nodes = load(module(body)).nodes
    assert nodes.bytes[nodes.rank == 0].tolist() == [32, 32, 48]


def test_bytecode_is_refused_with_the_commands_that_write_text() -> None:
    with pytest.raises(InputError, match=r"MLIR bytecode.*lowered\.as_text\(\)"):
        load(b"ML\xefR\x0dMLIR23.0.0git\x00")


NESTED = "    %r = stablehlo.negate %a : tensor<4xf32>"
WRONG = {
    "": "the file has no function",
    "module {\n": "ends within a region",
    "module {\n}\n}\n": "closed that was not opened",
    HEADER + "}\n": "the file has no function",
    "module {\n}\nmodule {\n}\n": "second module",
    module(NESTED.replace("%a", "%z")): "value %z is not defined",
    module(NESTED.replace("%a", "%a#3")): "value %a#3 is not defined",
    module(NESTED.replace("4xf32", "4xf99")): "type 'f99' is unknown",
    module(NESTED.replace("4xf32", "4xcomplex<f16>")): "type 'complex<f16>' is unknown",
    module(NESTED.replace("4xf32", "?xf32")): "dimension of unknown size",
    module(NESTED.replace(" : tensor<4xf32>", "")): "1 results, but the types are",
    module(NESTED + "\n" + NESTED): "is defined twice",
    module("    %r = call @f(%a) : (tensor<4xf32>) -> tensor<4xf32>"): "@f is called, but has no body",
    module("    %r = call @main(%a) : (tensor<4xf32>) -> tensor<4xf32>"): "@main calls itself",
    module("    cf.br ^bb1"): "control flow cf.br is not read",
    module(NESTED + "\n  ^bb1(%b: tensor<4xf32>):"): "branches between blocks",
    module(NESTED, "  func.func @main() {\n    return\n  }\n"): "@main is defined twice",
    module(NESTED).replace("@main", "@f") .replace("}\n}\n", "}\n  func.func @g() {\n    return\n  }\n}\n"): "no function is called main",
    module(NESTED, header=HEADER.replace("= 2", "= 99999999")): "partitions; 1 to 65536",
    module(all_reduce("%r", "%a", "dense<[[0, 0]]> : tensor<1x2xi64>")): "id 0 occurs twice",
    module(all_reduce("%r", "%a", "dense<[[0, 2]]> : tensor<1x2xi64>")): "id 2 is not in 0..1",
    module(all_reduce("%r", "%a", "dense<[[0]]> : tensor<1x2xi64>")): "1 ids, but the type has 2",
    module(all_reduce("%r", "%a", "dense<[[0.5, 1]]> : tensor<1x2xi64>")): "are no integers",
    module(all_reduce("%r", "%a", 'dense<"0x00"> : tensor<1x2xi64>')): "elements are cut",
    module(all_reduce("%r", "%a", "dense<0> : tensor<99999x99999xi64>")): "ids; at most",
    module(all_reduce("%r", "%a", "dense_resource<x> : tensor<1x2xi64>")): "no dense attribute",
    module(all_reduce("%r", "%a", "#stablehlo.replica_group_mesh_axes<mesh = @m, axes = []>")): "mesh @m is not defined",
    module(all_reduce("%r", "%a").replace("-> tensor<4xf32>", "-> tensor<8xf32>")): "cannot give 32",
    module(NESTED).rpartition("    return")[0]: "ends within",
}  # fmt: skip


@pytest.mark.parametrize("text", WRONG, ids=range(len(WRONG)))
def test_wrong_modules_are_refused_in_one_line_with_a_cure(text: str) -> None:
    with pytest.raises(InputError, match=WRONG[text]) as caught:
        load(text)
    finding = caught.value.diagnostics[0]
    assert "\n" not in str(finding)
    assert finding.cure
    assert finding.location.line


def test_functions_that_double_their_calls_are_refused() -> None:
    levels = "".join(
        f"  func.func private @f{one}(%b: tensor<4xf32>) -> tensor<4xf32> {{\n    %0 = call"
        f" @f{one + 1}(%b) : (tensor<4xf32>) -> tensor<4xf32>\n    %1 = call @f{one + 1}(%0) :"
        " (tensor<4xf32>) -> tensor<4xf32>\n    return %1 : tensor<4xf32>\n  }\n"
        for one in range(80)
    )
    last = (
        "  func.func private @f80(%b: tensor<4xf32>) -> tensor<4xf32> {\n    %0 = stablehlo.negate"
        " %b : tensor<4xf32>\n    return %0 : tensor<4xf32>\n  }\n"
    )
    text = module("    %r = call @f0(%a) : (tensor<4xf32>) -> tensor<4xf32>", levels + last)
    with pytest.raises(InputError, match="more than 4096 nodes"):
        load(text, max_nodes=4096)


@pytest.mark.parametrize("depth", [200, 5000])
def test_nested_regions_are_read_without_recursion_up_to_a_limit(depth: int) -> None:
    opening = "    %c = stablehlo.constant dense<0> : tensor<i32>\n" + "".join(
        f'    %v{one} = "stablehlo.case"(%c) ({{\n' for one in range(depth)
    )
    middle = all_reduce("%in", "%a") + "      stablehlo.return %in : tensor<4xf32>\n"
    closing = "".join(
        "    }) : (tensor<i32>) -> tensor<4xf32>\n"
        + (f"      stablehlo.return %v{one} : tensor<4xf32>\n" if one else "")
        for one in reversed(range(depth))
    )
    text = module(opening + middle + closing, result="%v0")
    if depth > 1000:
        with pytest.raises(InputError, match="more than 1000 nested regions"):
            load(text)
        return
    assert calls(load(text)) == [("all-reduce", 16, 16, 1)]


@pytest.mark.parametrize("seed", range(4))
def test_mutated_modules_are_read_or_refused(seed: int) -> None:
    generator = random.Random(seed)
    words = ["{", "}", "({", "})", "<", ">", ",", '"', "=", "%", "#", ":", "\n", "->", "-1", "while",
             "999999999999999999999", "dense<", "tensor<", "^bb0(", "loc("]  # fmt: skip
    refused = 0
    for turn in range(500):
        text = list((STABLEHLO_LOOP, STABLEHLO_GENERIC, module(loop(*next(iter(COUNTED))), result="%l#1"))[turn % 3])  # fmt: skip
        for _ in range(generator.randint(1, 4)):
            start = generator.randrange(len(text))
            text[start : start + generator.randint(0, 12)] = generator.choice(words)
        try:
            load("".join(text), max_nodes=10_000)
        except HubError:
            refused += 1
    assert 0 < refused < 500


def test_files_are_recognised_by_their_content(tmp_path: Path, collhub: Callable[..., Any]) -> None:
    debug = '#loc = loc(unknown)\n#loc1 = loc("x")\n' + STABLEHLO_LOOP
    bare = STABLEHLO_LOOP.partition("\n")[2].rpartition("}")[0]
    for number, text in enumerate((STABLEHLO_LOOP, STABLEHLO_GENERIC, debug, bare)):
        path = tmp_path / f"program{number}"
        path.write_text(text)
        assert "(stablehlo)" in collhub("inspect", str(path)).out


def test_kinds_and_dtypes_reach_the_workload() -> None:
    nodes = load(STABLEHLO_LOOP).nodes
    rows = nodes.kind == NodeKind.COLLECTIVE
    kinds = {JobCollective.ALL_GATHER, JobCollective.ALL_REDUCE}
    assert set(nodes.collective[rows].tolist()) == kinds


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dense<1> : tensor<2xf32>", "is no dense attribute of integers"),
        ("dense<1234567890123456789> : tensor<2xi64>", "an element has more than 18 digits"),
    ],
)
def test_other_elements_than_short_integers_are_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_dense(text)
