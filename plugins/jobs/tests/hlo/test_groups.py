"""Replica groups: three spellings, five modes, and the errors of XLA's verifier."""

from __future__ import annotations

import pytest
from collhub_hlo_modules.groups import (
    Devices,
    Groups,
    find_groups,
    find_pairs,
    find_placement,
    parse_groups,
)

ODD_EVEN = ((0, 2, 4, 6), (1, 3, 5, 7))
FAR = ((0, 4), (1, 5), (2, 6), (3, 7))
NEAR = ((0, 1), (2, 3), (4, 5), (6, 7))

# Computed by hand, and in section 4.3 of the specification.
SPELLINGS = {
    "{{0,1},{2,3},{4,5},{6,7}}": NEAR,
    "{ {0, 1}, {2,3},{4,5}, {6,7} }": NEAR,
    "[2,4]<=[8]": ((0, 1, 2, 3), (4, 5, 6, 7)),
    "[1,8]<=[8]": (tuple(range(8)),),
    "[2,4]<=[4,2]T(1,0)": ODD_EVEN,
    "[4,2]<=[2,4]T(1,0)": FAR,
    "[4,2]<=[2,2,2]T(2,1,0)": ((0, 4), (2, 6), (1, 5), (3, 7)),
    "mesh['a'=2,'b'=1,'c'=4] {'a'}": FAR,
    "mesh['a'=2,'b'=1,'c'=4] {'b'}": tuple((rank,) for rank in range(8)),
    "mesh[a=2,b=4] {b}": ((0, 1, 2, 3), (4, 5, 6, 7)),
    "mesh['a'=8] {'a':(1)2}": FAR,
    "mesh['a'=8] {'a':(4)2}": NEAR,
    "mesh['a'=8] {'a':(1)2,'a':(4)2}": ((0, 1, 4, 5), (2, 3, 6, 7)),
    "mesh['x'=2,'y'=4] {'x','y'}": (tuple(range(8)),),
    "mesh['x'=2,'y'=4] {'y','x'}": ((0, 4, 1, 5, 2, 6, 3, 7),),
    "mesh['x'=2,'y'=4], device_ids=(7,6,5,4,3,2,1,0) {'x'}": ((7, 3), (6, 2), (5, 1), (4, 0)),
    "mesh['x'=2,'y'=4], device_ids=([2,4]<=[4,2]T(1,0)) {'y'}": ODD_EVEN,
    "{}": (),
    "{{}, {0,1},{}}": ((0, 1),),
}


@pytest.mark.parametrize("text", SPELLINGS)
def test_spellings(text: str) -> None:
    assert parse_groups(text, 8) == SPELLINGS[text]


WRONG = {
    "[2,4]<=[4,4]": "an iota of 16 ids, but there are 8",
    "[3,3]<=[8]": "8 ids in groups of 3",
    "[8]<=[8]": "not .groups, size.",
    "[2,4]<=[4,2]T(1,1)": "no order of 2 dimensions",
    "mesh['a'=4] {'a'}": "4 devices, but there are 8",
    "mesh['a'=8] {'b'}": "there is no axis",
    "mesh['a'=8] {'a':(3)2}": "is no factor",
    "mesh['a'=8] {'a','a':(1)2}": "twice",
    "mesh['a'=8], device_ids=(0,0,1,2,3,4,5,6) {'a'}": "no permutation of 8",
    "groups": "no list, iota or mesh",
    "{0,1}": "no list of groups",
    "{{0,1},{2,x}}": "no list, iota or mesh",
    "{0,{1}}": "no list of groups",
    "{{0,1} 5}": "no list of groups",
    "{{0,1} {2,3}}": "no list of groups",
    "{{0,1},}": "no list of groups",
    "{{0},{1}": "no list of groups",
    "[3,2]<=[8]": "groups of 2 in the ids below 8: 4, not 3",
    "[2,8]<=[8]": "groups of 8 in the ids below 8: 1, not 2",
}


@pytest.mark.parametrize("text", WRONG)
def test_wrong_spellings_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=WRONG[text]):
        parse_groups(text, 8)


# (operation, channel, use_global_device_ids, replica_groups) of 2 replicas x 3 partitions.
MODES: dict[tuple[str, str, str, str], Groups] = {
    ("all-reduce", "", "", "{{0,1}}"): ((0, 3), (1, 4), (2, 5)),
    ("all-reduce", "", "", "{}"): ((0, 3), (1, 4), (2, 5)),
    ("all-to-all", "", "", "{{1,0}}"): ((3, 0), (4, 1), (5, 2)),
    ("all-to-all", "1", "", "{{0,1,2}}"): ((0, 1, 2), (3, 4, 5)),
    ("collective-broadcast", "1", "", "{{2,0}}"): ((2, 0), (5, 3)),
    ("all-reduce", "1", "", "{{0},{1}}"): ((0, 1, 2), (3, 4, 5)),
    ("all-gather", "1", "false", "{{0,1}}"): ((0, 1, 2, 3, 4, 5),),
    ("all-gather", "1", "true", "{{0,1},{2,3},{4,5}}"): ((0, 1), (2, 3), (4, 5)),
    ("reduce-scatter", "1", "true", "[2,3]<=[3,2]T(1,0)"): ((0, 2, 4), (1, 3, 5)),
}


@pytest.mark.parametrize("case", MODES)
def test_modes(case: tuple[str, str, str, str]) -> None:
    assert find_groups(case[0], attributes(*case[1:]), Devices(2, 3)) == MODES[case]


WRONG_MODES = {
    ("all-reduce", "", "true", "{{0,1}}"): "needs a channel_id",
    ("all-reduce", "1", "true", "{}"): "empty replica_groups",
    ("all-reduce", "1", "true", "{{0,1,2},{3,4}}"): "id 5 is in no group",
    ("all-reduce", "1", "true", "{{0,1,2},{3,4,6}}"): "id 6 is not in 0..5",
    ("all-reduce", "1", "", "{{0,1,2},{3,4,5}}"): "replica 2 is not in 0..1",
    ("all-reduce", "", "", "{{0,0}}"): "id 0 occurs twice",
}


@pytest.mark.parametrize("case", WRONG_MODES)
def test_groups_that_xla_refuses(case: tuple[str, str, str, str]) -> None:
    with pytest.raises(ValueError, match=WRONG_MODES[case]):
        find_groups(case[0], attributes(*case[1:]), Devices(2, 3))


def attributes(channel: str, is_global: str, groups: str) -> dict[str, str]:
    named = {"channel_id": channel, "use_global_device_ids": is_global, "replica_groups": groups}
    return {name: value for name, value in named.items() if value}


def test_pairs_name_partitions_with_a_channel_and_replicas_without() -> None:
    text, devices = "{{0,1},{1,0}}", Devices(2, 3)
    pairs = find_pairs(text, "collective-permute", {"channel_id": "1"}, devices)
    assert pairs == ((0, 1), (1, 0), (3, 4), (4, 3))
    pairs = find_pairs(text, "collective-permute", {}, devices)
    assert pairs == ((0, 3), (3, 0), (1, 4), (4, 1), (2, 5), (5, 2))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{{0,1},{0,2}}", "source 0 occurs twice"),
        ("{{0,1},{2,1}}", "target 1 occurs twice"),
        ("{{0,3}}", "target 3 is not in 0..2"),
        ("{{0,1,2}}", "no list of pairs"),
    ],
)
def test_wrong_pairs_are_refused(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        find_pairs(text, "collective-permute", {"channel_id": "1"}, Devices(1, 3))


@pytest.mark.parametrize(
    ("sharding", "placement"),
    [("{devices=[2,2]0,1,2,3}", "(S(0), S(1))"), ("{devices=[2,,2]0,1,2,3}", "")],
)
def test_a_sharding_with_an_empty_number_has_no_placement(sharding: str, placement: str) -> None:
    assert find_placement(sharding, range(4), (2, 2), 4) == placement
