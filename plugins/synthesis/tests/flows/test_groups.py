"""Groups at once: right contents, never behind one by one, never below the bounds."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from collhub_flows.groups.jobs import own_provenance
from collhub_flows.groups.joining import Turns, combine_algorithms
from collhub_flows.groups.kernels import compute_longest_tails
from collhub_flows.groups.planning import GroupChoices, GroupPlan, plan_groups
from collhub_flows.groups.schedules import compute_joint_bounds
from collhub_flows.groups.shares import CommonWish, GroupWish, Shares, parse_groups
from collhub_flows.optimal_flow import FlowArcs
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import hub_core
from hub_core import parse_topology
from hub_core.model import (
    STANDARD_KINDS,
    UNEVEN_KINDS,
    CollectiveKind,
    InputError,
    StepKind,
    UnitCounts,
    UsageError,
)
from hub_core.network import Occupancy
from hub_core.plugin_api import SearchBudget, synthesis
from hub_core.testing import ring_all_reduce
from hub_core.verification import verify

pytestmark = pytest.mark.once

MIB = 1 << 20
# The groups' own schedules alone: quick, and the same on every machine.
OWN = GroupChoices(work=0)


def wish(npus: list[int], kind: str, size: int = MIB) -> GroupWish:
    return GroupWish(tuple(npus), CollectiveKind(kind), size)


def planned(text: str, *wishes: GroupWish, choices: GroupChoices = OWN) -> GroupPlan:
    return plan_groups(wishes, parse_topology(text), choices)


def random_groups(npus: int, kind: str, size: int, seed: int = 0) -> list[GroupWish]:
    order = np.random.default_rng(seed).permutation(npus)
    return [wish(part.tolist(), kind, size) for part in np.split(order, npus // 8)]


@pytest.mark.parametrize("kind", [str(kind) for kind in STANDARD_KINDS])
@pytest.mark.parametrize("text", ["mesh:3x3", "switch:9"])
def test_contents_of_each_group_and_of_all_are_right(kind: str, text: str) -> None:
    # Groups share NPU 4, and NPU 8 relays.
    plan = planned(text, wish([0, 4, 2, 6], kind), wish([7, 5, 4], kind, 3 * MIB))
    assert all(verify(algorithm).ok for algorithm in plan.algorithms)
    assert plan.joint is not None
    assert verify(plan.joint).ok


def uneven_wish(npus: list[int], kind: str, table: object, size: int = MIB) -> GroupWish:
    counts = UnitCounts.from_table(table, CollectiveKind(kind).traits.has_counts_per_pair)
    return replace(wish(npus, kind, size), counts=counts)


@pytest.mark.parametrize("kind", [str(kind) for kind in UNEVEN_KINDS])
@pytest.mark.parametrize("text", ["mesh:3x3", "switch:9"])
def test_contents_of_uneven_groups_are_right(kind: str, text: str) -> None:
    # Some parts are empty, some stay on their rank; groups share NPU 4, and NPU 8 relays.
    is_per_pair = CollectiveKind(kind).traits.has_counts_per_pair
    table = [[0, 40, 10, 10], [5, 7, 30, 0], [20, 0, 0, 20], [0, 0, 1, 0]]
    first = uneven_wish([0, 4, 2, 6], kind, table if is_per_pair else [3, 0, 97, 1])
    second = uneven_wish([7, 5, 4], kind, [[1] * 3] * 3 if is_per_pair else [1, 2, 0], 3 * MIB)
    plan = planned(text, first, second)
    assert all(verify(algorithm).ok for algorithm in plan.algorithms)
    assert plan.joint is not None
    assert verify(plan.joint).ok
    assert plan.bound_ns <= plan.time.ns <= plan.one_by_one.ns


def test_equal_counts_take_the_time_of_equal_parts() -> None:
    groups = [[0, 5, 10, 15], [1, 4, 11, 14]]
    even = planned("torus:4x4", *(wish(npus, "all-gather") for npus in groups))
    uneven = planned("torus:4x4", *(uneven_wish(npus, "all-gather-v", [1] * 4) for npus in groups))
    assert uneven.time == even.time
    assert uneven.bounds_ps == even.bounds_ps


def test_equal_exchanges_with_counts_in_other_units_take_equal_times() -> None:
    texts = ["uniform:1", "uniform:1048576"]
    plans = [
        planned("ring:8", *parse_groups(None, [f"0-7:all-gather-v:64MiB::{text}"], CommonWish()))
        for text in texts
    ]
    assert plans[0].time == plans[1].time
    assert plans[1].algorithms[0].collective == plans[0].algorithms[0].collective


def test_parts_of_many_units_without_common_divisor_are_divided() -> None:
    # The counts sum to more than 2^22 units, the limit of groups whose units are divided.
    counts = [(1 << 21) + 1, 1 << 20, 1 << 20]
    large = planned("ring:3", uneven_wish([0, 1, 2], "all-gather-v", counts, 64 * MIB))
    small = planned("ring:3", uneven_wish([0, 1, 2], "all-gather-v", [2, 1, 1], 64 * MIB))
    assert large.time.ps <= 1.001 * small.time.ps
    assert verify(large.algorithms[0]).ok


def test_shares_have_the_bytes_of_their_counts() -> None:
    table = [[9, 1, 0], [0, 0, 3], [2, 0, 0]]
    shares = Shares.of([uneven_wish([4, 2, 7], "all-to-all-v", table, 15_000)])
    # Nine units stay on their rank.
    assert list(zip(shares.root, shares.target, shares.bytes, strict=True)) == [
        (4, 2, 1000.0),
        (2, 7, 3000.0),
        (7, 4, 2000.0),
    ]


@settings(max_examples=12, deadline=None)
@given(st.lists(st.lists(st.integers(0, 50), min_size=4, max_size=4), min_size=4, max_size=4))
def test_random_counts_are_right_and_not_faster_than_the_bound(table: list[list[int]]) -> None:
    assume(sum(map(sum, table)) > sum(table[rank][rank] for rank in range(4)))
    plan = planned("ring:8", uneven_wish([0, 3, 4, 7], "all-to-all-v", table))
    assert verify(plan.algorithms[0]).ok
    assert plan.bound_ns <= plan.time.ns


def test_counts_of_groups_are_common_or_of_one_group(tmp_path: Path) -> None:
    file = tmp_path / "counts.csv"
    file.write_text("1,0,3\n")
    common = CommonWish("all-to-all-v", "1MiB", counts="shift:1")
    wishes = parse_groups(
        "0-3,4-7", ["1,5,6:all-gather-v:2MiB::" + str(file), "2,3:all-gather"], common
    )
    assert [wish.counts and wish.counts.total for wish in wishes] == [4, 4, 4, None]
    assert wishes[2].counts_text == str(file)
    assert wishes[0].counts_text == "shift:1"


def test_counts_are_in_the_report_and_the_manifest(collhub, tmp_path: Path) -> None:
    out = tmp_path / "plan"
    arguments = ["synthesize", "direct", "--groups", "0-3,4-7", "--collective", "all-to-all-v"]
    arguments += ["--counts", "zipf:1.2,units=64", "--size", "1MiB", "--topology", "ring:8"]
    run = collhub(*arguments, "-O", "work=0", "-o", out, "--json")
    assert run.code == 0, run.err
    assert [group["counts"] for group in run.report()["groups"]] == ["zipf:1.2,units=64"] * 2
    manifest = json.loads((out / "groups.json").read_text())
    assert manifest["groups"][1]["counts"] == "zipf:1.2,units=64"


@pytest.mark.parametrize(
    ("group", "line"),
    [
        ("0-3:all-gather:1MiB::zipf:1", "zipf:1': its fifth field COUNTS has no meaning for all"),
        ("0-3:all-to-all-v:1MiB::shift:0", "::shift:0': shift:0: shift is 0, expected 1..3"),
        ("0-3:all-gather-v:1MiB", "group '0-3:all-gather-v:1MiB': all-gather-v needs the units of"),
        ("0-3:all-gather-v:1MiB", "of each part: its fifth field COUNTS"),
        ("0-3:all-to-all-v:1MiB::zipf:x", "zipf is 'x', expected a number"),
        ("0-3:all-to-all-v:1MiB::none.csv", "none.csv: neither a file nor a generator"),
        ("0-3:all-to-all-v:16B::zipf:1", "too few bytes for 4 ranks: 16"),
    ],
)
def test_invalid_counts_of_a_group_are_one_line(collhub, group: str, line: str) -> None:
    run = collhub("groups", "direct", "--group", group, "--topology", "ring:8")
    assert run.code != 0
    assert line in run.err
    assert run.err.count("\n") == 1


def test_a_table_of_another_size_than_the_group_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "counts.csv"
    file.write_text("1,0,3\n")
    with pytest.raises(InputError, match="the table is for 3 ranks, expected 4") as refused:
        parse_groups(None, [f"0-3:all-gather-v:1MiB::{file}"], CommonWish())
    assert refused.value.diagnostics[0].cure == "give one count per NPU of the group"


def test_counts_without_an_uneven_group_are_refused() -> None:
    with pytest.raises(UsageError, match="no group has an uneven collective"):
        parse_groups("0-3", [], CommonWish("all-gather", "1MiB", counts="uniform"))


def test_a_group_whose_data_stay_on_their_ranks_is_refused() -> None:
    alone = uneven_wish([0, 1], "all-to-all-v", [[5, 0], [0, 3]])
    with pytest.raises(UsageError, match="no rank of the group 0,1 sends data to another rank"):
        planned("ring:4", alone)


def test_too_many_units_are_refused() -> None:
    large = uneven_wish([0, 1], "all-gather-v", [1 << 50, (1 << 50) + 1], 1 << 52)
    with pytest.raises(UsageError, match="units, at most"):
        planned("ring:4", large)


def test_a_group_sends_nothing_before_its_start() -> None:
    """Two buckets of gradients on the same NPUs: the second is ready after 5 us."""
    text, ranks = "ring:4", [0, 1, 2, 3]
    first, second = wish(ranks, "all-reduce"), wish(ranks, "all-reduce", MIB // 2)
    late = replace(second, start_ns=5_000)
    plan = planned(text, first, late)
    assert verify(plan.joint).ok
    assert plan.bound_ns <= plan.time.ns <= plan.one_by_one.ns
    assert plan.one_by_one.ns == sum(one.ns for one in plan.alone)
    # A start after the end of the first one determines the end.
    very_late = replace(second, start_ns=10**6)
    plan = planned(text, first, very_late)
    assert plan.time.ns == 10**6 + plan.alone[1].ns
    waits = plan.joint.steps.duration_ns[plan.joint.steps.is_kind(StepKind.COMPUTE)]
    assert waits.tolist() == [10**6] * 4


def test_a_single_group_has_the_faster_of_its_schedules() -> None:
    choices = GroupChoices(registry=hub_core.discover())
    plan = planned("ring:4", wish([0, 1, 2, 3], "all-gather"), choices=choices)
    # The synthesizer sends fewer chunks than the packed trees, so it is 11 % faster.
    assert plan.time.ns == plan.alone[0].ns == 8363
    assert plan.method == "at once"
    assert plan.joint is not None
    assert verify(plan.joint).ok


def test_a_group_waits_for_its_start_also_after_steps_of_an_earlier_group() -> None:
    algorithm = replace(ring_all_reduce(2), collective_bytes=MIB)
    rows = len(algorithm.steps)
    # The first step of the second algorithm on each rank waits for the last step of the first one.
    ranks = algorithm.steps.rank
    last = np.array([np.flatnonzero(ranks == rank)[-1] for rank in (0, 1)])
    first = np.array([np.flatnonzero(ranks == rank)[0] for rank in (0, 1)])
    turns = replace(Turns.none([algorithm] * 2), earlier=last, later=first + rows)
    start_ns = 10**9
    joint = combine_algorithms([algorithm] * 2, own_provenance("x"), turns, [0, start_ns])
    result = hub_core.simulate(joint, parse_topology("ring:2"), joint.collective_bytes or 0)
    alone = hub_core.simulate(algorithm, parse_topology("ring:2"), MIB)
    assert result.time_ns == start_ns + (alone.time_ns or 0)


def test_the_start_of_a_group_is_a_time() -> None:
    (parsed,) = parse_groups(None, ["0-3:all-gather:1MiB:20us"], CommonWish())
    assert parsed.start_ns == 20_000
    with pytest.raises(UsageError, match="20"):
        parse_groups(None, ["0-3:all-gather:1MiB:20"], CommonWish())


_KINDS = st.sampled_from([str(kind) for kind in STANDARD_KINDS])
_GROUPS = st.lists(
    st.tuples(
        st.lists(st.integers(0, 7), min_size=2, max_size=5, unique=True),
        _KINDS,
        st.sampled_from([64, 1000, 1 << 16, MIB]),
    ),
    min_size=1,
    max_size=3,
)


@pytest.mark.once
@settings(max_examples=12, deadline=None)
@given(_GROUPS, st.sampled_from(["ring:8", "hypercube:3", "switch:8"]), st.sampled_from(Occupancy))
def test_law_right_between_the_bound_and_one_by_one(
    groups: list[tuple[list[int], str, int]], text: str, occupancy: Occupancy
) -> None:
    wishes = [wish(npus, kind, size) for npus, kind, size in groups]
    plan = planned(text, *wishes, choices=replace(OWN, occupancy=occupancy))
    assert all(verify(algorithm).ok for algorithm in plan.algorithms)
    assert plan.bound_ns <= plan.time.ns
    if len(wishes) > 1:
        assert plan.time.ps <= plan.one_by_one.ps
    # Without a promise, units of unlike sizes are too many to be judged.
    if plan.joint is not None and plan.joint.collective.postcondition() is not None:
        assert verify(plan.joint).ok


@pytest.mark.slow
def test_random_groups_on_a_torus_are_twice_as_fast_together() -> None:
    # Golden: 2.06 to 2.21 by the fluid optimum, three placements (specification).
    plan = planned("torus:8x8", *random_groups(64, "all-to-all", 64 * MIB))
    assert plan.method == "together"
    assert plan.ratio >= 2.0
    assert plan.ratio_to_bound <= 1.02


def test_joint_algorithm_takes_the_time_that_is_stated() -> None:
    plan = planned("torus:4x4", wish([0, 5, 10], "all-gather"), wish([1, 4, 9], "broadcast"))
    assert plan.joint is not None
    size = plan.joint.collective_bytes
    assert size is not None
    simulated = hub_core.simulate(plan.joint, parse_topology("torus:4x4"), size)
    assert simulated.time_ns == plan.time.ns


def test_a_named_synthesizer_makes_groups_alone() -> None:
    choices = GroupChoices(name="flows")
    plan = planned(
        "ring:6", wish([0, 1, 2], "all-gather"), wish([3, 4], "scatter"), choices=choices
    )
    # flows does not support all-gather, so the algorithm of the package is used.
    assert plan.alone_makers[0] == "collhub-flows"
    assert plan.one_by_one.ns == sum(one.ns for one in plan.alone)


def test_same_groups_give_the_same_steps() -> None:
    wishes = random_groups(16, "all-gather", MIB)
    first, second = (planned("torus:4x4", *wishes) for _ in range(2))
    assert [each.differences(other) for each, other in zip(
        first.algorithms, second.algorithms, strict=True
    )] == [[], []]  # fmt: skip


def test_algorithms_side_by_side_share_no_channel_and_no_memory() -> None:
    plan = planned("ring:4", wish([0, 1], "all-gather"), wish([0, 1], "all-gather", 2 * MIB))
    joint = combine_algorithms(plan.algorithms, own_provenance("ring:4"))
    assert verify(joint).ok
    assert len(joint.steps) == sum(len(each.steps) for each in plan.algorithms)
    # A unit of the larger group is two of the smaller one.
    assert joint.collective.input_units()[0] % 3 == 0


def test_sizes_without_a_common_unit_are_refused() -> None:
    first, second = (
        planned("ring:4", wish([0, 1], "broadcast", size)).algorithms[0]
        for size in ((1 << 50) + 1, (1 << 49) - 1)
    )
    with pytest.raises(InputError, match="no common unit"):
        combine_algorithms([first, second], own_provenance("ring:4"))


def test_tails_are_longest_ways() -> None:
    # 0 before 1 and 2, both before 3.
    indptr = np.array([0, 2, 3, 4, 4])
    following = np.array([1, 2, 3, 3])
    arrival = np.array([5, 1, 7, 2])
    assert compute_longest_tails(indptr, following, arrival).tolist() == [14, 3, 9, 2]


def test_bounds_of_one_link_are_exact() -> None:
    # Two groups send 1 MB and 3 MB over one link of 1 GB/s: 4 ms.
    topology = parse_topology("ring:2?bandwidth=1GB/s&latency=1us")
    wishes = [wish([0, 1], "broadcast", 10**6), wish([0, 1], "broadcast", 3 * 10**6)]
    found = compute_joint_bounds(FlowArcs.of(topology), wishes, Shares.of(wishes))
    assert found["latency"] == pytest.approx(10**6, abs=1)
    assert found["cut"] == pytest.approx(4 * 10**9, rel=1e-8)


def test_dual_of_pairs_is_at_least_the_cut() -> None:
    topology = parse_topology("ring:8")
    wishes = [wish([0, 2, 4], "all-to-all"), wish([1, 3, 5, 7], "all-to-all")]
    found = compute_joint_bounds(FlowArcs.of(topology), wishes, Shares.of(wishes))
    assert found["flow"] >= found["cut"] - 1000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0-3,4-7", [(0, 1, 2, 3), (4, 5, 6, 7)]),
        ("0,5;1,2-4", [(0, 5), (1, 2, 3, 4)]),
        ("0-3;", [(0, 1, 2, 3)]),
    ],
)
def test_lists_of_groups(text: str, expected: list[tuple[int, ...]]) -> None:
    found = parse_groups(text, (), CommonWish("all-gather", "1MiB"))
    assert [each.npus for each in found] == expected


def test_a_group_says_what_it_wants() -> None:
    found = parse_groups(None, ("0-3:broadcast:2KiB", "4,5::"), CommonWish("reduce", "1KiB"))
    assert found == (wish([0, 1, 2, 3], "broadcast", 2048), wish([4, 5], "reduce", 1024))


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("--groups", "0-7,8-16"), "has no NPU 16; name NPUs of 0..15"),
        (("--groups", "0,1,2"), "group '0' has one NPU"),
        (("--group", "0,1,0"), "NPU 0 is listed more than once in '0,1,0'"),
        (("--group", "0-3:nothing"), "there is no collective 'nothing'"),
        (("--group", "0-3:all-gather:x"), "size 'x' is not a number with a unit"),
        (("--group", "0-3:a:b:c:d"), "time 'c' is not a number with a unit"),
        (("--groups", "a;b"), "'a' is not a list of NPUs"),
        (("--groups", ";"), "no group is named"),
        (("--groups", "0-3", "--ranks", "0-3"), "--ranks has no meaning with --groups"),
        (("--groups", "0-3", "--relays"), "--relays has no meaning with --groups"),
        (("--groups", "0-3", "--root", "0"), "--root has no meaning with --groups"),
        (("--groups", "0-3", "-o", "-"), "groups are written into a folder"),
        (("--groups", "0-3", "--to", "json"), "--to has no meaning without -o"),
        (("--groups", "0-3", "-O", "work=-1"), "work=-1"),
    ],
)
def test_bad_input_is_one_line(collhub, arguments: tuple[str, ...], line: str) -> None:
    common = ("--topology", "torus:4x4", "--size", "1MiB", "--collective", "all-gather")
    run = collhub("synthesize", "flows", *arguments, *common)
    assert run.code == 2
    assert len(run.error_lines) == 1
    assert line in run.error_lines[0]


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ((), "--collective is needed"),
        (("--groups", "0-3"), "its collective is not said"),
        (("--groups", "0-3", "--collective", "all-gather"), "its size is not said"),
    ],
)
def test_what_is_not_said_is_one_line(collhub, given: tuple[str, ...], line: str) -> None:
    run = collhub("synthesize", "flows", *given, "--topology", "torus:4x4")
    assert (run.code, len(run.error_lines)) == (2, 1)
    assert line in run.error_lines[0]


def test_less_than_a_byte_a_share_is_refused() -> None:
    with pytest.raises(UsageError, match="too few bytes for 4 ranks: 2"):
        planned("ring:4", wish([0, 1, 2, 3], "all-gather", 2))


def test_less_than_a_byte_a_unit_is_refused() -> None:
    # The counts have no common divisor; each share has more than a byte.
    group = uneven_wish([0, 1, 3], "all-gather-v", [500, 501, 502], 1000)
    line = "1000 bytes of the group 0,1,3 are too few for the 1503 units of its counts"
    with pytest.raises(UsageError, match=line) as refused:
        planned("ring:4", group)
    assert refused.value.diagnostics[0].code == "size-too-small"


def test_units_of_one_byte_are_not_divided() -> None:
    # 16 pieces of the smallest part, 10 bytes, would need units of half a byte.
    group = uneven_wish([0, 1, 2], "all-gather-v", [10, 201, 301], 512)
    (algorithm,) = planned("ring:3", group).algorithms
    assert algorithm.collective.unit_count == 512


def test_a_synthesizer_that_finds_the_size_too_small_is_no_candidate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*arguments: object, **named: object) -> None:
        raise UsageError("4 bytes are too few", code="size-too-small")

    monkeypatch.setattr(hub_core, "synthesize", refuse)
    plan = planned("ring:4", wish([0, 1, 2, 3], "all-gather"), choices=GroupChoices("direct"))
    assert plan.alone_makers == ("collhub-flows",)


def test_several_planes_are_refused() -> None:
    with pytest.raises(UsageError, match="one plane, not 2"):
        planned("fc:2+fc:2", wish([0, 1], "all-gather"))


def test_members_that_cannot_be_reached_are_refused() -> None:
    one_way = parse_topology("ring:4").subset([0, 2])
    with pytest.raises(InputError, match="cannot be reached"):
        plan_groups([wish([0, 1], "all-gather")], one_way, OWN)


def test_too_many_shares_are_refused() -> None:
    with pytest.raises(InputError, match="are too many to schedule together"):
        planned("torus:8x8x8", wish(list(range(512)), "all-to-all", 1 << 30))


def test_folder_holds_groups_joint_and_manifest(collhub, tmp_path: Path) -> None:
    out = tmp_path / "plan"
    common = ("--topology", "torus:4x4", "--size", "1MiB", "--collective", "all-to-all")
    run = collhub("synthesize", "flows", "--groups", "0-7,8-15", *common, "-o", out, "--json")
    report = run.report()
    assert report["verified"] == 3
    assert report["one_by_one_ns"] >= report["time_ns"] >= report["bound_ns"]
    listed = json.loads((out / "groups.json").read_text())
    assert [group["file"] for group in listed["groups"]] == ["group_0.json", "group_1.json"]
    timed = collhub("simulate", out / listed["joint"], "--topology", "torus:4x4", "--json")
    assert timed.report()["time_ns"] == report["time_ns"] == listed["time_ns"]
    # What is there is not overwritten unasked.
    again = collhub("groups", "flows", "--groups", "0-7,8-15", *common, "-o", out)
    assert len(again.error_lines) <= 1


def test_the_clock_changes_nothing_without_a_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is stopped between two groups asks the synthesizer for all of them."""
    hours = iter(range(0, 10**6, 3600))
    monkeypatch.setattr(synthesis.time, "monotonic", lambda: float(next(hours)))
    wishes = [wish([0, 1], "all-to-all", 1024), wish([2, 3], "all-to-all", 1024)]
    topology = parse_topology("ring:4")
    plan = plan_groups(wishes, topology, GroupChoices(name="flows"))
    assert (dict(plan.not_tried), plan.cuts) == ({}, ())


def test_at_the_time_limit_the_plan_is_of_the_best_so_far() -> None:
    wishes = [wish([0, 1], "all-to-all", MIB), wish([2, 3], "all-to-all", MIB)]
    choices = GroupChoices(name="flows", budget=SearchBudget(timeout_s=1e-9))
    plan = plan_groups(wishes, parse_topology("ring:4"), choices)
    assert all(verify(algorithm).ok for algorithm in plan.algorithms)
    assert list(plan.not_tried) == [0, 1]
    assert "time limit was reached" in plan.not_tried[0]
    assert plan.cuts[0].name == "groups together"


def test_ratios_are_those_of_picoseconds() -> None:
    """In whole nanoseconds, 3.414 ns by a bound of 3.413 ns would be 2 by 3."""
    wishes = [wish([0, 2], "all-to-all", 1024), wish([1, 3], "all-to-all", 1024)]
    plan = planned("mesh:4?bandwidth=300GB/s&latency=0ns", *wishes)
    assert plan.time.ns < plan.bound_ns
    assert plan.ratio_to_bound == pytest.approx(3414 / 3413, abs=1e-4)
    assert plan.ratio >= 1.0


def test_groups_that_were_not_tried_are_in_text_and_json(collhub) -> None:
    """One simulation is more work than the limit: only the first group is tried."""
    asked = ("groups", "flows", "--groups", "0,1;2,3", "--collective", "all-to-all")
    asked += ("--size", "1KiB", "--topology", "ring:4", "-O", "work=1")
    run = collhub(*asked)
    assert "1 groups alone (1), so the plan is partial: the work limit" in run.out
    document = json.loads(collhub(*asked, "--json").out)
    assert document["is_partial"] is True
    assert [one["name"] for one in document["not_tried"]] == ["group 1"]
