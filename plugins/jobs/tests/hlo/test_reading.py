"""Text, loops, overlap, work and limits of HLO modules."""

from __future__ import annotations

import gzip
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from collhub_hlo.plugin import HloOptions
from collhub_hlo.read import read
from collhub_hlo.samples import FUSED, TRAINING_LOOP, source_of
from collhub_hlo_modules.text import parse_shape

from hub_core.model import Diagnostic, HubError, InputError, NodeKind, Workload
from hub_core.plugin_api import Source

ADD = """%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %sum = f32[] add(%x, %y)
}
"""
ALL_REDUCE = "all-reduce(%a), channel_id=1, replica_groups={{0,1}}, use_global_device_ids=true"


def module(body: str, header: str = "is_scheduled=true, num_partitions=2", before: str = "") -> str:
    """A module whose entry has the parameter %a and this body."""
    head = f"HloModule test, {header}\n{ADD}{before}ENTRY %main (a: f32[4]) -> f32[4] {{\n"
    return f"{head}  %a = f32[4]{{0}} parameter(0)\n{body}\n}}\n"


def load(text: str, **options: Any) -> Workload:
    return read(source_of("test.hlo", text), HloOptions(**options))


def findings(text: str, **options: Any) -> list[str]:
    reported: list[Diagnostic] = []
    source = source_of("test.hlo", text)
    read(Source(source.name, source.parts, reported.append), HloOptions(**options))
    return [f"{one.severity.name.lower()}: {one.message}" for one in reported]


def parents(workload: Workload, row: int) -> list[str]:
    """Names of the nodes that a node waits for."""
    before, after = workload.nodes.edges()
    rows = before[after == row].tolist()
    return sorted(workload.names[workload.nodes.name[one]] for one in rows)


def row_of(workload: Workload, name: str, time: int = 0) -> int:
    """Row of the node of rank 0 with this name, in the given iteration."""
    nodes = workload.nodes
    rows = np.flatnonzero((nodes.name == workload.names.index(name)) & (nodes.rank == 0))
    return int(rows[time])


def count(workload: Workload, name: str) -> int:
    nodes = workload.nodes
    return int(((nodes.name == workload.names.index(name)) & (nodes.rank == 0)).sum())


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("f32[]", 4),
        ("bf16[8,128]{1,0:T(8,128)(2,1)S(1)}", 2048),
        ("s4[3]", 2),
        ("f8e4m3fn[10]", 10),
        ("f32[<=8]", 32),
        ("(f32[2]{0}, (bf16[2], token[]), u32[])", 16),
        ("pred[0,5]", 0),
    ],
)
def test_bytes_of_shapes(text: str, size: int) -> None:
    assert parse_shape(text).bytes == size


def test_a_collective_between_start_and_done_overlaps_computations() -> None:
    workload = load(TRAINING_LOOP)
    assert parents(workload, row_of(workload, "product")) == []
    assert parents(workload, row_of(workload, "gather-start")) == []
    assert parents(workload, row_of(workload, "next")) == ["gather-start", "product"]
    assert parents(workload, row_of(workload, "reduced")) == ["next"]
    assert parents(workload, row_of(workload, "product", 1)) == ["following"]


def test_a_synchronous_start_does_not_overlap() -> None:
    sync = TRAINING_LOOP.replace(
        "{0}, use_global_device_ids=true\n",
        '{0}, use_global_device_ids=true, backend_config={"is_sync":true}\n',
    )
    workload = load(sync)
    assert parents(workload, row_of(workload, "product")) == ["gather-start"]


def test_the_data_flow_is_an_option() -> None:
    workload = load(TRAINING_LOOP, order="data")
    assert parents(workload, row_of(workload, "next")) == ["gather-start", "product"]
    assert parents(workload, row_of(workload, "following")) == []
    # Iterations follow one another: a marker joins the first one.
    assert count(workload, "reduced") == 3
    assert len(parents(workload, row_of(workload, "product", 1))) >= 1


def test_names_without_percent_signs_comments_and_broken_lines_are_read() -> None:
    text = """HloModule test, replica_count=2
add {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT sum = f32[] add(x, y)
}
// a comment
ENTRY main {
  a = f32[4]{0} parameter(0), metadata={op_name="all-reduce(x) { \\" }"}
  b = (f32[4], /*index=1*/f32[4])
    tuple(f32[4]{0} a, f32[4]{0} %a)
  c = f32[4] get-tuple-element(b), index=1
  ROOT r = f32[4] all-reduce(c),
    replica_groups={},
    to_apply=add
}, execution_thread="main"
"""
    workload = load(text)
    assert workload.num_ranks == 2
    assert workload.nodes.bytes[row_of(workload, "r")] == 16
    assert workload.members(workload.nodes.group[row_of(workload, "r")]) == (0, 1)


def test_tables_of_files_are_skipped() -> None:
    tables = 'FileNames\n1 "a{.py"\n\nStackFrames\n1 {file_location_id=1 parent_frame_id=1}\n\n'
    assert len(load(TRAINING_LOOP.replace("\n\n", "\n\n" + tables, 1)).nodes) == 68


LOOP = TRAINING_LOOP.replace(', backend_config={"known_trip_count":{"n":"3"}}', "")


def test_iterations_follow_from_the_counter_of_a_loop() -> None:
    assert load(LOOP).differences(load(TRAINING_LOOP)) == ["provenance"]


def test_a_loop_of_unknown_length_needs_the_option() -> None:
    text = LOOP.replace("direction=LT", "direction=NE")
    with pytest.raises(InputError, match=r"unknown; give it with -O trip_count=N") as caught:
        load(text)
    assert caught.value.diagnostics[0].location.line == text[: text.index("%loop")].count("\n") + 1
    assert count(load(text, trip_count=5), "reduced") == 5


def test_iterations_beyond_the_limit_are_reported() -> None:
    assert count(load(TRAINING_LOOP, iterations=2), "reduced") == 2
    assert any(
        "loops of more than 2 iterations" in one for one in findings(TRAINING_LOOP, iterations=2)
    )


def test_a_module_with_too_many_nodes_is_refused_before_it_is_expanded() -> None:
    text = TRAINING_LOOP.replace('{"n":"3"}', '{"n":"99999999999"}')
    with pytest.raises(InputError, match=r"more than 1000 nodes on 4 devices; give -O iterations"):
        load(text, max_nodes=1000, iterations=1 << 40)


def test_calls_that_double_at_every_level_are_refused() -> None:
    levels = ["%level.0 (p.0: f32[4]) -> f32[4] {\n  %p.0 = f32[4] parameter(0)\n"
              "  ROOT %n.0 = f32[4] negate(%p.0)\n}\n"]  # fmt: skip
    for one in range(1, 80):
        levels.append(
            f"%level.{one} (p.{one}: f32[4]) -> f32[4] {{\n  %p.{one} = f32[4] parameter(0)\n"
            f"  %c.{one} = f32[4] call(%p.{one}), to_apply=%level.{one - 1}\n"
            f"  ROOT %d.{one} = f32[4] call(%c.{one}), to_apply=%level.{one - 1}\n}}\n"
        )
    text = module("  ROOT %r = f32[4] call(%a), to_apply=%level.79", before="".join(levels))
    with pytest.raises(InputError, match="more than 4096 nodes"):
        load(text, max_nodes=4096)


def test_deep_nesting_needs_no_recursion() -> None:
    levels = "".join(
        f"%level.{one} (p.{one}: f32[4]) -> f32[4] {{\n  %p.{one} = f32[4] parameter(0)\n  ROOT "
        + (f"%c.{one} = f32[4] call(%p.{one}), to_apply=%level.{one - 1}" if one else
           "%n = f32[4] negate(%p.0)")
        + "\n}\n"
        for one in range(5000)
    )  # fmt: skip
    workload = load(module("  ROOT %r = f32[4] call(%a), to_apply=%level.4999", before=levels))
    assert count(workload, "n") == 1
    nested = "(" * 50_000 + "f32[4]" + ")" * 50_000
    assert len(load(module(f"  ROOT %t = {nested} tuple(%a)")).nodes) == 0


def test_a_fusion_counts_its_operations_and_the_slices_that_it_accesses() -> None:
    fused = """%update (big: f32[100,4], part: f32[1,4], at: s32[]) -> f32[100,4] {
  %big = f32[100,4] parameter(0)
  %part = f32[1,4] parameter(1)
  %at = s32[] parameter(2)
  %twice = f32[1,4] add(%part, %part)
  ROOT %written = f32[100,4] dynamic-update-slice(%big, %twice, %at, %at)
}
"""
    body = """  %zeros = f32[100,4] broadcast(%a), dimensions={1}
  %part = f32[1,4] reshape(%a)
  %at = s32[] constant(0)
  ROOT %f = f32[100,4] fusion(%zeros, %part, %at), kind=kLoop, calls=%update"""
    workload = load(module(body, before=fused))
    row = row_of(workload, "f")
    assert workload.nodes.operations[row] == 4
    assert workload.nodes.bytes[row] == 16 + 4 + 16


def test_a_parameter_number_in_quotes_is_read_in_fusions_too() -> None:
    # Files of untrusted origin may have it; `int` refused it after it had been accepted.
    fused = """%twice (p: f32[4]) -> f32[4] {
  %p = f32[4] parameter("0")
  ROOT %sum = f32[4] add(%p, %p)
}
"""
    workload = load(module("  ROOT %f = f32[4] fusion(%a), calls=%twice", before=fused))
    assert workload.nodes.bytes[row_of(workload, "f")] == 16 + 16


def test_work_of_convolutions_and_library_calls() -> None:
    body = """  %image = f32[2,8,8,3] broadcast(%a), dimensions={}
  %kernel = f32[3,3,3,16] broadcast(%a), dimensions={}
  %conv = f32[2,8,8,16] convolution(%image, %kernel), window={size=3x3}, dim_labels=b01f_01io->b01f
  %q = f32[2,4,128,64] broadcast(%a), dimensions={}
  %attention = f32[2,4,128,64] custom-call(%q, %q, %q), custom_call_target="__cudnn$fmhaSoftmax"
  ROOT %other = f32[4] custom-call(%a), custom_call_target="mine" """
    workload = load(module(body))
    assert workload.nodes.operations[row_of(workload, "conv")] == 2 * 2048 * 27
    assert workload.nodes.operations[row_of(workload, "attention")] == 4 * 65536 * 128
    assert any("custom calls of unknown work" in one for one in findings(module(body)))


def test_the_collectives_of_a_custom_call_are_those_of_a_call() -> None:
    gather = "all-gather(%p), channel_id=1, replica_groups=mesh['x'=2] {'x'}, dimensions={0}"
    before = (
        f"%remote (p: f32[4]) -> f32[8] {{\n  %p = f32[4]{{0}} parameter(0)\n"
        f"  ROOT %g = f32[8]{{0}} {gather}, use_global_device_ids=true\n}}\n"
    )
    start = 'custom-call(%a), custom_call_target="compute-on-start", called_computations={%remote}'
    text = module(f"  ROOT %c = f32[8]{{0}} {start}", before=before)
    assert load(text).nodes.bytes.tolist() == [16, 16]
    assert not [one for one in findings(text) if one.startswith("warning")]
    # Computations without collectives, such as comparators, are not executed by the call.
    topk = 'custom-call(%a), custom_call_target="TopK", called_computations={%add}'
    assert count(load(module(f"  ROOT %t = f32[4]{{0}} {topk}")), "t") == 1


def test_broadcasts_have_a_root_and_messages_a_pair() -> None:
    data = '{_xla_send_recv_source_target_pairs="{{0,1}}"}'
    body = f"""  %b = f32[4] collective-broadcast(%a), channel_id=1, replica_groups={{{{1,0}}}}
  %t = token[] after-all()
  %r = (f32[4], u32[], token[]) recv(%t), channel_id=2, frontend_attributes={data}
  %s = (f32[4], u32[], token[]) send(%b, %t), channel_id=2, frontend_attributes={data}
  %sd = token[] send-done(%s), channel_id=2
  ROOT %rd = (f32[4], token[]) recv-done(%r), channel_id=2"""
    workload = load(module(body))
    nodes = workload.nodes
    assert nodes.root[row_of(workload, "b")] == 1
    sends, receives = (np.flatnonzero(nodes.kind == one) for one in (NodeKind.SEND, NodeKind.RECV))
    assert (nodes.rank[sends].tolist(), nodes.peer[sends].tolist()) == ([0], [1])
    assert (nodes.rank[receives].tolist(), nodes.peer[receives].tolist()) == ([1], [0])
    assert nodes.tag[sends] == nodes.tag[receives]


def test_a_module_before_partitioning_is_not_reported_as_free_of_communication() -> None:
    text = module("  ROOT %b = f32[4] negate(%a), sharding={devices=[2]<=[2]}")
    assert any("dump before partitioning" in one for one in findings(text))


def test_a_conditional_takes_the_branch_with_the_most_communication() -> None:
    branches = f"""%quiet (a.0: f32[4]) -> f32[4] {{
  %a.0 = f32[4] parameter(0)
  ROOT %n.0 = f32[4] negate(%a.0)
}}
%loud (a.1: f32[4]) -> f32[4] {{
  %a.1 = f32[4] parameter(0)
  ROOT %r.1 = f32[4] {ALL_REDUCE.replace("%a", "%a.1")}, to_apply=%add
}}
"""
    body = """  %p = pred[] constant(true)
  ROOT %c = f32[4] conditional(%p, %a, %a), true_computation=%quiet, false_computation=%loud"""
    text = module(body, before=branches)
    assert count(load(text), "r.1") == 1
    assert any("conditionals" in one for one in findings(text))


WRONG = {
    "": "no HloModule",
    "ENTRY %m (a: f32[]) -> f32[] {\n": "does not begin with HloModule",
    "HloModule x\n": "no ENTRY",
    "HloModule x\nword\n": "no statement of HLO text",
    module("  ROOT %b = f32[4] negate(%z)"): "operand 'z' is not defined",
    module("  ROOT %b = f32[4] fusion(%a), calls=%z"): "computation 'z' is not defined",
    module("  ROOT %b = f32[4] fusion(%a)"): "names no computation",
    module("  ROOT %a = f32[4] negate(%a)"): "defined twice",
    module("  ROOT %b = f99[4] negate(%a)"): "element type 'f99' is unknown",
    module("  ROOT %b = f32[-4] negate(%a)"): "no array has the dimensions",
    module("  ROOT %b = f32[4] negate(%a"): "ends within",
    module("  ROOT %b = f32[4]"): "no operation follows",
    module(f"  ROOT %b = f32[8] {ALL_REDUCE}, to_apply=%add"): "cannot give 32 bytes",
    module("  ROOT %b = f32[4] dot(%a, %a), lhs_contracting_dims={3}"): "has no dimension 3",
    module("  ROOT %b = f32[4] negate(%a)", "num_partitions=99999999"): "partitions; 1 to 65536",
    module("  ROOT %b = f32[4] negate(%a)", "replica_count=x"): "is no integer",
    TRAINING_LOOP[:-200]: "ends within",
}


@pytest.mark.parametrize("text", WRONG, ids=range(len(WRONG)))
def test_wrong_modules_are_refused_in_one_line_with_a_cure(text: str) -> None:
    with pytest.raises(InputError, match=WRONG[text]) as caught:
        load(text)
    finding = caught.value.diagnostics[0]
    assert "\n" not in str(finding)
    assert finding.cure
    assert finding.location.line


@pytest.mark.parametrize("seed", range(4))
def test_mutated_modules_are_read_or_refused(seed: int) -> None:
    generator = random.Random(seed)
    words = ["{", "}", "(", ")", ",", '"', "=", "%", "\n", "999999999999999999999", "-1", "while"]
    refused = 0
    for turn in range(500):
        text = list(FUSED if turn % 2 else TRAINING_LOOP)
        for _ in range(generator.randint(1, 4)):
            start = generator.randrange(len(text))
            text[start : start + generator.randint(0, 12)] = generator.choice(words)
        try:
            load("".join(text), max_nodes=10_000)
        except HubError:
            refused += 1
    # Some changes concern names and texts alone.
    assert 0 < refused < 500


def test_files_are_recognised_by_their_content(tmp_path: Path, collhub: Callable[..., Any]) -> None:
    plain, archive = tmp_path / "module_0001.txt", tmp_path / "module.bin"
    plain.write_text(TRAINING_LOOP)
    archive.write_bytes(gzip.compress(TRAINING_LOOP.encode()))
    for path in (plain, archive):
        assert "(hlo)" in collhub("inspect", str(path)).out


@pytest.mark.parametrize(
    ("call", "devices"),
    [
        ("all-reduce(%a), replica_groups={{0,1},{2,3}}, to_apply=%add", 4),
        ("all-reduce(%a), replica_groups=[2,4]<=[4,2]T(1,0), to_apply=%add", 8),
        (f"{ALL_REDUCE}, to_apply=%add", 2),
        # Without the attribute, the ids of an all-reduce are replicas also with a channel.
        ("all-reduce(%a), channel_id=1, replica_groups={{0,1,2}}, to_apply=%add", 3),
        ("collective-permute(%a), channel_id=1, source_target_pairs={{0,1},{1,2}}", 3),
    ],
)
def test_module_without_devices_has_the_fewest_that_its_groups_allow(
    call: str, devices: int
) -> None:
    text = module(f"  ROOT %c = f32[4]{{0}} {call}", "is_scheduled=true")
    assert load(text).num_ranks == devices
    expected = f"warning: the module states no number of devices: {devices} are assumed"
    assert any(found.startswith(expected) for found in findings(text))


def test_stated_number_of_devices_is_not_changed() -> None:
    call = "all-reduce(%a), replica_groups={{0,1}}, to_apply=%add"
    text = module(f"  ROOT %c = f32[4]{{0}} {call}", "is_scheduled=true, replica_count=1")
    with pytest.raises(InputError, match=r"id 1 is not in 0\.\.0"):
        load(text)


@pytest.mark.parametrize("groups", ["{{0,%s}}", "[1,2]<=[%s]"])
def test_ids_of_thousands_of_digits_are_refused(groups: str) -> None:
    call = f"all-reduce(%a), replica_groups={groups % ('9' * 5000)}, to_apply=%add"
    with pytest.raises(InputError, match="no integer of at most 18 digits"):
        load(module(f"  ROOT %c = f32[4]{{0}} {call}", "is_scheduled=true"))
