"""Certificates are recomputed from the links alone; every claim that does not hold is named."""

from __future__ import annotations

import copy
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from collhub_certificates import check_certificate
from collhub_certificates.recheck import _check_lower_bound

from hub_core import parse_topology
from hub_core.model import Algorithm, Collective, CollectiveKind
from hub_core.network import Topology
from hub_core.schedules import Chunks, Transfers, algorithm_of, network_object

GB = 10**9
LINE = parse_topology("line:3?bandwidth=10GB/s")
STAR = parse_topology("switch:3?bandwidth=10GB/s")


def certificate(
    kind: str, topology: Topology, rate: str, bound: dict[str, Any], trees: list[dict[str, Any]]
) -> dict[str, Any]:
    root = {"root": 0} if kind in ("broadcast", "reduce", "gather", "scatter") else {}
    return {
        "schema": "collhub/certificate-1",
        "collective": kind,
        **root,
        "ranks": list(range(topology.num_npus)),
        "network": network_object(topology),
        "rate": rate,
        "bound": {"rate": rate, **bound},
        "is_optimal": True,
        "tree_count": {
            "trees": len(trees),
            "at_least": 1,
            "status": "feasible",
            "reason": "a packing has a tree",
        },
        "trees": trees,
    }


def tree(root: int, weight: int, parents: list[int], **more: Any) -> dict[str, Any]:
    depth = max(hops_from_root(parents, node) for node in range(len(parents)))
    return {"root": root, "weight": str(weight), "depth": depth, "parents": parents, **more}


def hops_from_root(parents: list[int], node: int) -> int:
    return 0 if parents[node] < 0 else 1 + hops_from_root(parents, parents[node])


CHAIN = tree(0, 10 * GB, [-1, 0, 1])
# One per kind: what is best on three NPUs in a line, or at a switch, by hand.
CORRECT: dict[str, dict[str, Any]] = {
    "broadcast": certificate(
        "broadcast", LINE, str(10 * GB), {"kind": "cut", "nodes": [0]}, [CHAIN]
    ),
    "reduce": certificate("reduce", LINE, str(10 * GB), {"kind": "cut", "nodes": [0]}, [CHAIN]),
    "all-reduce": certificate(
        "all-reduce", LINE, str(10 * GB), {"kind": "partition", "blocks": [[0], [1, 2]]}, [CHAIN]
    ),
    "all-gather": certificate(
        "all-gather",
        LINE,
        str(15 * GB),
        {"kind": "ingress-cut", "nodes": [0, 1]},
        [tree(0, 5 * GB, [-1, 0, 1]), tree(1, 5 * GB, [1, -1, 1]), tree(2, 5 * GB, [1, 2, -1])],
    ),
    "reduce-scatter": certificate(
        "reduce-scatter",
        LINE,
        str(15 * GB),
        {"kind": "ingress-cut", "nodes": [0, 1]},
        [tree(0, 5 * GB, [-1, 0, 1]), tree(1, 5 * GB, [1, -1, 1]), tree(2, 5 * GB, [1, 2, -1])],
    ),
    "scatter": certificate(
        "scatter",
        LINE,
        str(15 * GB),
        {"kind": "cut", "nodes": [0]},
        [tree(0, 5 * GB, [-1, 0, -1], target=1), tree(0, 5 * GB, [-1, 0, 1], target=2)],
    ),
    "gather": certificate(
        "gather",
        LINE,
        str(15 * GB),
        {"kind": "cut", "nodes": [0]},
        [tree(0, 5 * GB, [-1, 0, -1], target=1), tree(0, 5 * GB, [-1, 0, 1], target=2)],
    ),
}
AT_A_SWITCH = certificate(
    "broadcast",
    STAR,
    str(10 * GB),
    {"kind": "cut", "nodes": [0]},
    [tree(0, 10 * GB, [-1, 0, 1], routes={"1": [3], "2": [3]})],
)


def chain_broadcast() -> Algorithm:
    """Rank 0 to rank 1 to rank 2."""
    collective = Collective(CollectiveKind.BROADCAST, 3, 1, root=0, in_place=True)
    column = lambda *values: np.asarray(values, np.int64)  # noqa: E731
    transfers = Transfers(
        column(0, 0),
        column(0, 1),
        column(1, 2),
        column(0, 1),
        column(0, 1),
        column(1, 2),
        np.zeros(2, np.bool_),
        column(1, 1),
    )
    return algorithm_of(collective, Chunks.cut(collective, [1]), transfers)


def codes(
    document: dict[str, Any], algorithm: Algorithm | None = None, topology: Topology | None = None
) -> list[str]:
    return [found.code for found in check_certificate(document, algorithm, topology).diagnostics]


@pytest.mark.parametrize("kind", CORRECT)
def test_a_correct_certificate_proves_the_optimum(kind: str) -> None:
    report = check_certificate(CORRECT[kind])
    assert report.diagnostics == ()
    assert report.is_optimal
    assert report.rate == report.bound == Fraction(CORRECT[kind]["rate"])


def test_messages_through_a_switch_load_both_of_its_links() -> None:
    assert check_certificate(AT_A_SWITCH).is_optimal
    doubled = copy.deepcopy(AT_A_SWITCH)
    doubled["trees"][0]["parents"] = [-1, 0, 0]
    assert codes(doubled) == ["certificate-load"]


def test_a_cut_bounds_an_all_reduce_too() -> None:
    by_cut = copy.deepcopy(CORRECT["all-reduce"])
    by_cut["bound"] = {"kind": "cut", "nodes": [0], "rate": str(10 * GB)}
    assert check_certificate(by_cut).is_optimal


def test_the_way_up_of_an_all_reduce_may_be_another_tree() -> None:
    circle = Topology(
        "circle", 3, 3, np.asarray([0, 1, 2]), np.asarray([1, 2, 0]), np.full(3, 1e10), np.zeros(3)
    )
    trees = [
        tree(root, 5 * GB // 2, [-1 if node == root else (node + 2) % 3 for node in range(3)])
        | {"up": {"parents": [-1 if node == root else (node + 1) % 3 for node in range(3)]}}
        for root in range(3)
    ]
    document = certificate(
        "all-reduce",
        circle,
        str(15 * GB // 2),
        {"kind": "partition", "blocks": [[0], [1], [2]]},
        trees,
    )
    assert check_certificate(document).is_optimal
    del document["trees"][0]["up"]
    assert codes(document) == ["certificate-load"]


def test_a_directed_partition_counts_links_out_of_senders_and_into_all_others() -> None:
    # On a line of 10 GB/s, NPU 0 must send once, and NPUs 1 and 2 together must receive once.
    document = copy.deepcopy(CORRECT["all-reduce"])
    bound = {"kind": "directed-partition", "rate": str(10 * GB), "blocks": [[0], [1, 2]]}
    document["bound"] = {**bound, "senders": 1}
    assert check_certificate(document).is_optimal
    # Without senders, links into both blocks count.
    document["bound"] = {**bound, "rate": str(20 * GB), "senders": 0}
    document["is_optimal"] = False
    assert codes(document) == []
    for blocks, senders in (([[0, 1, 2]], 1), ([[0], [0, 1]], 1), ([[0], [7]], 1), ([[0], [1]], 3)):
        document["bound"] = {**bound, "blocks": blocks, "senders": senders}
        assert codes(document) == ["certificate-bound"]
    document["bound"] = {**bound, "senders": -1}
    assert codes(document) == ["certificate-form"]


def test_the_algorithm_must_send_what_the_trees_send() -> None:
    assert codes(CORRECT["broadcast"], chain_broadcast()) == []
    other = copy.deepcopy(AT_A_SWITCH)
    other["trees"][0]["parents"] = [-1, 2, 0]
    assert codes(other, chain_broadcast()) == ["certificate-traffic"]


def test_an_algorithm_for_another_collective_is_refused() -> None:
    assert codes(CORRECT["all-reduce"], chain_broadcast()) == ["certificate-collective"]


def test_a_stated_topology_must_be_that_of_the_certificate() -> None:
    assert codes(CORRECT["broadcast"], None, parse_topology("line:3?bandwidth=10GB/s")) == []
    assert codes(CORRECT["broadcast"], None, parse_topology("line:3?bandwidth=11GB/s")) == [
        "certificate-topology"
    ]


def test_links_come_from_the_topology_where_the_certificate_has_only_their_hash() -> None:
    short = copy.deepcopy(CORRECT["broadcast"])
    del short["network"]["links"]
    assert codes(short) == ["certificate-topology"]
    assert check_certificate(short, None, LINE).is_optimal


def test_without_trees_only_the_bound_is_checked() -> None:
    short = copy.deepcopy(CORRECT["broadcast"])
    del short["trees"]
    report = check_certificate(short)
    assert (report.ok, report.is_optimal, report.rate) == (True, False, None)
    assert [found.code for found in report.diagnostics] == ["certificate-partial"]


def test_a_rate_below_the_bound_is_no_error_unless_it_is_called_optimal() -> None:
    half = copy.deepcopy(CORRECT["broadcast"])
    half["rate"] = half["trees"][0]["weight"] = str(5 * GB)
    assert codes(half) == ["certificate-optimal"]
    half["is_optimal"] = False
    report = check_certificate(half)
    assert (report.ok, report.is_optimal) == (True, False)


WRONG: dict[str, tuple[str, str, Callable[[dict[str, Any]], Any]]] = {
    "a cycle": ("broadcast", "tree", lambda c: c["trees"][0].update(parents=[-1, 2, 1])),
    "a rank left out": ("broadcast", "tree", lambda c: c["trees"][0].update(parents=[-1, 0, -1])),
    "another root": (
        "broadcast",
        "tree",
        lambda c: c["trees"][0].update(root=1, parents=[1, -1, 1]),
    ),
    "a root with a parent": (
        "broadcast",
        "tree",
        lambda c: c["trees"][0].update(parents=[1, 0, 1]),
    ),
    "no such link": ("broadcast", "load", lambda c: c["trees"][0].update(parents=[-1, 0, 0])),
    "too much weight": ("broadcast", "load", lambda c: c["trees"][0].update(weight=str(11 * GB))),
    "both ways too much": (
        "all-reduce",
        "load",
        lambda c: c["trees"].append(tree(2, 1, [1, 2, -1])),
    ),
    "another rate": ("broadcast", "rate", lambda c: c.update(rate=str(9 * GB))),
    "another bound": ("broadcast", "bound", lambda c: c["bound"].update(rate=str(9 * GB))),
    "a cut with all ranks": ("broadcast", "bound", lambda c: c["bound"].update(nodes=[0, 1, 2])),
    "a cut without the root": ("broadcast", "bound", lambda c: c["bound"].update(nodes=[1])),
    "a cut of no nodes": ("all-gather", "bound", lambda c: c["bound"].update(nodes=[])),
    "a cut beyond the nodes": ("broadcast", "bound", lambda c: c["bound"].update(nodes=[0, 7])),
    "a rank in two blocks": (
        "all-reduce",
        "bound",
        lambda c: c["bound"].update(blocks=[[0, 1], [1, 2]]),
    ),
    "a rank in no block": ("all-reduce", "bound", lambda c: c["bound"].update(blocks=[[0], [1]])),
    "one block": ("all-reduce", "bound", lambda c: c["bound"].update(blocks=[[0, 1, 2]])),
    "unequal parts": ("all-gather", "parts", lambda c: c["trees"][1].update(weight=str(4 * GB))),
    "a target unserved": ("scatter", "parts", lambda c: c["trees"][1].update(target=1)),
    "another number of trees": ("broadcast", "trees", lambda c: c["tree_count"].update(trees=2)),
    "a rank twice": ("broadcast", "ranks", lambda c: c.update(ranks=[0, 1, 1])),
    "no such rank": ("broadcast", "ranks", lambda c: c.update(ranks=[0, 1, 5])),
    "no root": ("broadcast", "ranks", lambda c: c.pop("root")),
    "a weight that is no number": (
        "broadcast",
        "form",
        lambda c: c["trees"][0].update(weight="ten"),
    ),
    "an unknown kind": ("broadcast", "form", lambda c: c.update(collective="all-to-all")),
}


@pytest.mark.parametrize("flaw", WRONG)
def test_a_wrong_claim_is_named(flaw: str) -> None:
    kind, code, change = WRONG[flaw]
    document = copy.deepcopy(CORRECT[kind])
    change(document)
    report = check_certificate(document)
    assert [found.code for found in report.diagnostics] == [f"certificate-{code}"]
    assert not report.ok


# By the message: (kind of the certificate, change).
MESSAGES: dict[str, tuple[str, Callable[[dict[str, Any]], Any]]] = {
    "the trees carry nothing": ("broadcast", lambda c: c["trees"][0].update(weight="0")),
    "the tree of root 2 starts at no rank, or leads to none": (
        "all-gather",
        lambda c: c.update(ranks=[0, 1]),
    ),
    "the tree of root 0 starts at no rank, or leads to none": (
        "scatter",
        lambda c: c["trees"][0].update(target=7),
    ),
    "a tree is rooted at 1, not at the root 0": (
        "broadcast",
        lambda c: c["trees"][0].update(root=1, parents=[1, -1, 1]),
    ),
    "the root 0 of a tree hangs on another node": (
        "broadcast",
        lambda c: c["trees"][0].update(parents=[1, 0, 1]),
    ),
    "NPU 1 does not hang on the tree of root 0": (
        "broadcast",
        lambda c: c["trees"][0].update(parents=[-1, 2, 1]),
    ),
    "the tree of root 0 names nodes that are none of its NPUs": (
        "broadcast",
        lambda c: c["trees"][0].update(routes={"0": [1]}),
    ),
    "the tree of root 0 has depth 2, not 1": (
        "broadcast",
        lambda c: c["trees"][0].update(depth=1),
    ),
    "the trees put 11 GB/s on the link 0 -> 1 of 10 GB/s": (
        "broadcast",
        lambda c: c["trees"][0].update(weight=str(11 * GB)),
    ),
    "the trees carry 5 GB/s for NPU 0, not a 3th of 14 GB/s": (
        "all-gather",
        lambda c: c["trees"][1].update(weight=str(4 * GB)),
    ),
    "a partition is no bound of a broadcast": (
        "broadcast",
        lambda c: c["bound"].update(kind="partition", blocks=[[0], [1, 2]]),
    ),
    "a ingress-cut is no bound of a broadcast": (
        "broadcast",
        lambda c: c["bound"].update(kind="ingress-cut"),
    ),
    "a node is named twice in the cut": (
        "broadcast",
        lambda c: c["bound"].update(nodes=[0, 0]),
    ),
    "the cut does not part the ranks as it must": (
        "broadcast",
        lambda c: c["bound"].update(nodes=[1]),
    ),
    "the blocks are no partition of the ranks": (
        "all-reduce",
        lambda c: c["bound"].update(blocks=[[0, 1], [1, 2]]),
    ),
    "a partition has two or more blocks": (
        "all-reduce",
        lambda c: c["bound"].update(blocks=[[0, 1, 2]]),
    ),
    "a block of the partition names a node that does not exist": (
        "all-reduce",
        lambda c: c["bound"].update(blocks=[[0, 7], [1, 2]]),
    ),
    "a block of the partition holds no rank": (
        "all-reduce",
        lambda c: (c.update(ranks=[0, 1]), c["bound"].update(blocks=[[0, 1], [2]])),
    ),
    "the blocks of the directed partition are no disjoint sets": (
        "all-reduce",
        lambda c: c["bound"].update(kind="directed-partition", blocks=[[0, 1], [1, 2]]),
    ),
    "3 of 2 blocks cannot be senders": (
        "all-reduce",
        lambda c: c["bound"].update(kind="directed-partition", senders=3),
    ),
    "a time is stated, but no size to which it belongs": (
        "broadcast",
        lambda c: c.update(lower_bound_ns=1),
    ),
    "the bound proves 1000 ns, not 1001 ns as claimed": (
        "broadcast",
        lambda c: c.update(lower_bound_ns=1001, collective_bytes=10_000),
    ),
    "1 trees are stated, not 2 as claimed": (
        "broadcast",
        lambda c: c["tree_count"].update(trees=2),
    ),
    "at least 2 trees are claimed to be needed, 1 do": (
        "broadcast",
        lambda c: c["tree_count"].update(at_least=2),
    ),
    "the number of trees is called optimal, but fewer are not excluded": (
        "all-gather",
        lambda c: c["tree_count"].update(status="optimal"),
    ),
    "a weight is no multiple of the unit 3": (
        "broadcast",
        lambda c: c["tree_count"].update(unit="3"),
    ),
    "claimed not to be optimal, but the rate equals the bound": (
        "broadcast",
        lambda c: c.update(is_optimal=False),
    ),
    "the certificate does not state the links of line:3?bandwidth=10GB/s": (
        "broadcast",
        lambda c: c["network"].pop("links"),
    ),
    "the digest of the network is not that of its nodes and links": (
        "broadcast",
        lambda c: c["network"]["links"].pop(),
    ),
}


@pytest.mark.parametrize("message", MESSAGES)
def test_a_wrong_claim_is_described(message: str) -> None:
    kind, change = MESSAGES[message]
    document = copy.deepcopy(CORRECT[kind])
    change(document)
    report = check_certificate(document)
    assert message in [found.message for found in report.diagnostics]
    assert not report.ok


@pytest.mark.parametrize(
    "change",
    [
        lambda c: c.update(lower_bound_ns=1000, collective_bytes=10_000),
        lambda c: c["tree_count"].update(unit=str(5 * GB)),
        lambda c: c["tree_count"].update(status="optimal"),
    ],
)
def test_a_claim_at_its_limit_holds(change: Callable[[dict[str, Any]], Any]) -> None:
    document = copy.deepcopy(CORRECT["broadcast"])
    change(document)
    assert codes(document) == []


def test_switches_that_multicast_are_part_of_the_network() -> None:
    switch = parse_topology("switch:3?bandwidth=10GB/s&multicast=true")
    assert switch.multicast
    document = copy.deepcopy(AT_A_SWITCH)
    document["network"] = network_object(switch)
    assert codes(document, None, switch) == []
    # Without a topology, the digest reveals the change; with one, the comparison of both.
    del document["network"]["multicast"]
    assert codes(document) == ["certificate-topology"]
    report = check_certificate(document, None, switch)
    assert [found.message for found in report.diagnostics] == [
        "the certificate states other nodes or links than its digest stands for"
    ]


@pytest.mark.parametrize("kind", ["partition", "directed-partition"])
def test_where_switches_multicast_a_partition_bounds_nothing(kind: str) -> None:
    switch = parse_topology("switch:3?bandwidth=10GB/s&multicast=true")
    document = copy.deepcopy(CORRECT["all-reduce"])
    document["network"] = network_object(switch)
    document["bound"]["kind"] = kind
    messages = [found.message for found in check_certificate(document).diagnostics]
    assert "where switches multicast or reduce, a partition bounds nothing" in messages


@pytest.mark.parametrize("kind", ["reduce", "gather", "broadcast", "scatter"])
def test_data_flow_to_the_root_or_from_it(kind: str) -> None:
    """Links that only lead to the root suffice for a reduce or gather, not for a broadcast."""
    one_way = Topology(
        "one way", 3, 3, np.asarray([1, 2]), np.asarray([0, 1]), np.full(2, 1e10), np.zeros(2)
    )
    document = copy.deepcopy(CORRECT[kind])
    document["network"] = network_object(one_way)
    report = check_certificate(document)
    assert report.ok == (kind in ("reduce", "gather"))


def test_a_weight_of_half_a_unit_too_much_is_no_multiple() -> None:
    document = copy.deepcopy(CORRECT["broadcast"])
    document["tree_count"]["unit"] = str(4 * GB)
    assert codes(document) == ["certificate-trees"]


def test_without_trees_their_claims_are_not_proved() -> None:
    names = {"rate", "is_optimal", "tree_count.trees", "planes.share", "planes.rate"}
    document = copy.deepcopy(CORRECT["broadcast"])
    assert not names & set(check_certificate(document).unproved)
    del document["trees"]
    assert names <= set(check_certificate(document).unproved)


def test_trees_of_another_plane_carry_nothing_on_the_only_one() -> None:
    document = copy.deepcopy(CORRECT["broadcast"])
    document["trees"][0]["plane"] = 5
    assert codes(document) == ["certificate-rate"]


def test_a_cut_without_links_permits_any_claimed_time() -> None:
    # No data can leave the set, so the collective never ends.
    document: Any = {"lower_bound_ns": 10**9, "collective_bytes": 1}
    _check_lower_bound(document, Fraction(0))
