"""Defects of a plan's structure: one line each, with the JSON path and a cure."""

from __future__ import annotations

import json
from typing import Any

import pytest
from collhub_mscclpp.reading.read_plan import parse_plan
from made_plans import fragment, operations, two_ranks

from hub_core.model import InputError

_MOST = (1 << 32) - 1


def _defects(plan: dict[str, Any]) -> list[str]:
    with pytest.raises(InputError) as caught:
        parse_plan(json.dumps(plan).encode(), "plan.json")
    assert {found.code for found in caught.value.diagnostics} == {"plan-schema"}
    return [str(found) for found in caught.value.diagnostics]


def _only(plan: dict[str, Any]) -> str:
    defects = _defects(plan)
    assert len(defects) == 1, defects
    return defects[0]


def test_errors_show_a_wrong_value_as_json_writes_it() -> None:
    assert _only(two_ranks() | {"name": None}) == ("plan.json: $.name: expected a string, got null")
    assert _only(two_ranks() | {"name": True}).endswith("expected a string, got true")


def test_an_id_of_a_rank_that_is_not_its_position_is_refused() -> None:
    plan = two_ranks()
    plan["gpus"][1]["id"] = 5
    assert _only(plan) == (
        "plan.json: $.gpus[1].id: the rank at position 1 has id 5; "
        "number them 0, 1, 2, ... in the order of the list"
    )


def test_an_id_of_a_thread_block_that_is_not_its_position_is_refused() -> None:
    plan = two_ranks()
    plan["gpus"][0]["threadblocks"][1]["id"] = 0
    assert "$.gpus[0].threadblocks[1].id: the thread block at position 1 has id 0" in _only(plan)


@pytest.mark.parametrize("key", ["channels", "threadblocks"])
def test_a_missing_list_of_a_rank_is_named(key: str) -> None:
    plan = two_ranks()
    del plan["gpus"][1][key]
    assert (
        _only(plan) == f"plan.json: $.gpus[1]: the member {key!r} is missing; write an empty list"
    )


def test_a_channel_out_of_range_says_how_many_there_are() -> None:
    plan = two_ranks()
    operations(plan, 1, 0)[0]["channel_ids"] = [4]
    assert _only(plan) == (
        "plan.json: $.gpus[1].threadblocks[0].ops[0].channel_ids[0]: "
        "expected a whole number in 0..0, got 4; the thread block has 1 memory channels"
    )


def test_a_billion_ranks_in_a_channel_cost_nothing() -> None:
    plan = two_ranks()
    plan["gpus"][0]["channels"][0]["connected_to"] = [1, 10**9]
    plan["gpus"][0]["remote_buffers"][0]["rank"] = 10**9
    assert [line.partition(";")[0] for line in _defects(plan)] == [
        "plan.json: $.gpus[0].channels: names rank 1000000000",
        "plan.json: $.gpus[0].remote_buffers: names rank 1000000000",
    ]


def test_a_size_of_no_chunks_is_refused() -> None:
    plan = two_ranks()
    operations(plan, 0, 1)[2]["src_buff"][0]["size"] = 0
    assert f"src_buff[0].size: expected a whole number in 1..{_MOST}, got 0" in _only(plan)


def test_true_is_no_number() -> None:
    plan = two_ranks()
    plan["gpus"][0]["input_chunks"] = True
    assert "$.gpus[0].input_chunks: expected a whole number" in _only(plan)


def test_all_defects_are_told_and_those_beyond_a_screen_counted() -> None:
    plan = two_ranks()
    for rank in range(2):
        for block in range(2):
            for one in operations(plan, rank, block):
                one["name"] = 7
    defects = _defects(plan)
    assert len(defects) == 9
    assert defects[-1] == "plan.json: and 12 more defects of the plan's structure"


def test_a_pipeline_in_a_pipeline_is_refused() -> None:
    context = {"iter_context": {"unit_size": 1024, "num_chunks": 1}}
    inner = {"name": "pipeline", **context, "ops": []}
    plan = fragment({"name": "pipeline", **context, "ops": [inner]})
    assert "ops[0].ops[0]: a pipeline within a pipeline" in _only(plan)


def test_as_many_destinations_as_sources_are_asked_for() -> None:
    plan = two_ranks()
    put = operations(plan, 0, 1)[2]
    put["src_buff"] = put["src_buff"] * 2
    assert "2 ranges in src_buff, 1 in dst_buff" in _only(plan)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda gpu: gpu.pop("remote_buffers"), "'remote_buffers'"),
        (lambda gpu: gpu.update(inputChunks=1), "'inputChunks'"),
        (lambda gpu: gpu["threadblocks"][0]["ops"][0].update(i_cids=[]), "'i_cids'"),
        (
            lambda gpu: gpu["channels"].append({"channel_type": "switch", "buff": "i"}),
            "switch channel with 'buff'",
        ),
    ],
)
def test_older_formats_are_refused_by_name(change: Any, word: str) -> None:
    plan = two_ranks()
    change(plan["gpus"][0])
    with pytest.raises(InputError) as caught:
        parse_plan(json.dumps(plan).encode(), "plan.json")
    assert {found.code for found in caught.value.diagnostics} == {"old-plan"}
    assert word in str(caught.value)
    assert "before" in str(caught.value)


def test_operations_are_numbered_with_those_of_pipelines_behind_them() -> None:
    context = {"iter_context": {"unit_size": 1024, "num_chunks": 1}}
    inner = [{"name": "nop"}, {"name": "nop"}]
    plan = fragment({"name": "nop"}, {"name": "pipeline", **context, "ops": inner})
    parsed = parse_plan(json.dumps(plan).encode(), "plan.json")
    assert parsed.operations.pipeline.tolist() == [-1, -1, 1, 1]
    assert parsed.path(3) == "$.gpus[0].threadblocks[0].ops[1].ops[1]"


def test_an_older_plan_has_one_error_whatever_else_its_header_lacks() -> None:
    plan = two_ranks()
    # The name of this member in files of 2024.
    plan["colletive"] = plan.pop("collective")
    for gpu in plan["gpus"]:
        gpu["inputChunks"] = gpu.pop("input_chunks")
    with pytest.raises(InputError) as caught:
        parse_plan(json.dumps(plan).encode(), "plan.json")
    (finding,) = caught.value.diagnostics
    assert finding.code == "old-plan"
    assert "$.gpus[0]: 'inputChunks' is a member of the plan format" in str(finding)
