"""Flaws of bounds by cuts in time, and of packings on several planes, are named by their cause."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from collhub_certificates import check_certificate
from collhub_certificates.recheck import check_packing
from collhub_certificates.time_bounds import check_flow, check_time_cut

import hub_core
from hub_core.model import Algorithm, Collective, CollectiveKind
from hub_core.plugin_api import CheckReport, CheckRequest, NoOptions
from hub_core.schedules import find_certificate

RING = "ring:4?bandwidth=50GB/s&latency=500ns"


def synthesized(name: str, topology: str, kind: CollectiveKind, **options: str) -> Algorithm:
    network = hub_core.parse_topology(topology)
    collective = Collective(kind, network.num_npus, network.num_npus)
    return hub_core.synthesize(collective, network, 1 << 20, name=name, options=options).algorithm


@pytest.fixture(scope="module")
def all_gather() -> Algorithm:
    """An all-gather on a ring with the certificate of its bound."""
    return synthesized("tacos", RING, CollectiveKind.ALL_GATHER, chunks="1")


def with_changes(algorithm: Algorithm, key: str, change: Callable[[Any], None]) -> Algorithm:
    """The algorithm with a changed certificate."""
    for name, extension in algorithm.extensions.items():
        if isinstance(extension, Mapping) and isinstance(extension.get(key), Mapping):
            document = copy.deepcopy(extension[key])
            change(document)
            extensions = {**algorithm.extensions, name: {**extension, key: document}}
            return replace(algorithm, extensions=extensions)  # type: ignore[arg-type]
    raise AssertionError(f"no {key}")


def messages(report: CheckReport) -> str:
    assert not report.ok
    return "\n".join(one.message for one in report.diagnostics)


def flaw_of(algorithm: Algorithm, change: Callable[[Any], None]) -> str:
    changed = with_changes(algorithm, "bound_certificate", change)
    return messages(check_time_cut(CheckRequest(algorithm=changed), NoOptions()))


def test_ranks_that_share_an_npu_are_named(all_gather: Algorithm) -> None:
    flaw = flaw_of(all_gather, lambda document: document.update(ranks=[0, 0, 2, 3]))
    assert "the ranks are not different NPUs" in flaw


def test_units_of_another_algorithm_are_named(all_gather: Algorithm) -> None:
    def change(document: Any) -> None:
        document["unit_count"] *= 2

    assert "the bound is for 8 units, the algorithm has 4" in flaw_of(all_gather, change)


@pytest.mark.parametrize(("latency", "is_same"), [("500ns", True), ("700ns", False)])
def test_latencies_of_another_topology_are_named(
    all_gather: Algorithm, latency: str, is_same: bool
) -> None:
    topology = hub_core.parse_topology(f"ring:4?bandwidth=50GB/s&latency={latency}")
    report = check_time_cut(CheckRequest(algorithm=all_gather, topology=topology), NoOptions())
    assert report.ok == is_same
    if not is_same:
        assert "the bound is for other latencies than those of" in messages(report)


def test_a_cut_without_a_node_that_gives_proves_nothing(all_gather: Algorithm) -> None:
    def change(document: Any) -> None:
        document["since_ps"] = [time + 1 for time in document["since_ps"]]

    assert "messages can cross the cut in time, and only 0 must" in flaw_of(all_gather, change)


def test_as_many_messages_as_must_cross_are_enough(all_gather: Algorithm) -> None:
    # A message of 256 KiB at 50 GB/s arrives after 5.74 us: one by each of the two links on which
    # the parts of NPUs 2 and 3 enter the other half.
    def change(document: Any) -> None:
        document["since_ps"] = [6_000_000, 6_000_000, 0, 0]

    assert "2 messages can cross the cut in time, and only 2 must" in flaw_of(all_gather, change)


@pytest.mark.parametrize(("occupancy", "crossing"), [("serialization", 8), ("alpha-beta", 6)])
def test_links_are_busy_as_long_as_their_model_says(
    all_gather: Algorithm, occupancy: str, crossing: int
) -> None:
    # In 22 us, a link that is busy for 5.24 us per message takes four of them, one that is busy
    # until each arrives, after 5.74 us, takes three.
    def change(document: Any) -> None:
        document["since_ps"] = [22_000_000, 0, 0, 0]
        document["occupancy"] = occupancy

    assert f"{crossing} messages can cross the cut in time, and only 3 must" in flaw_of(
        all_gather, change
    )


def test_a_bound_of_zero_holds(all_gather: Algorithm) -> None:
    changed = with_changes(
        all_gather, "bound_certificate", lambda document: document.update(lower_bound_ns=0)
    )
    assert check_time_cut(CheckRequest(algorithm=changed), NoOptions()).ok


@pytest.mark.parametrize(
    ("kind", "parts"),
    [
        # Messages that must cross the stated cut: givers, takers, both, or each unit once.
        (CollectiveKind.ALL_GATHER, lambda givers, takers: givers),
        (CollectiveKind.REDUCE_SCATTER, lambda givers, takers: takers),
        (CollectiveKind.ALL_TO_ALL, lambda givers, takers: givers * takers),
        (CollectiveKind.ALL_REDUCE, lambda givers, takers: 4),
    ],
)
def test_the_messages_that_must_cross_are_those_of_the_collective(
    kind: CollectiveKind, parts: Callable[[int, int], int]
) -> None:
    algorithm = synthesized("tacos", RING, kind, chunks="1")
    for extension in algorithm.extensions.values():
        if isinstance(extension, Mapping) and "bound_certificate" in extension:
            document: Any = extension["bound_certificate"]
    since = document["since_ps"]
    givers, takers = sum(time <= 0 for time in since), sum(time == max(since) for time in since)
    report = check_time_cut(CheckRequest(algorithm=algorithm), NoOptions())
    assert report.ok
    assert report.details["cut in time"].endswith(f"can cross, {parts(givers, takers)} must")


@pytest.fixture(scope="module")
def two_planes() -> Algorithm:
    """An all-gather on two planes with the certificate of its trees."""
    algorithm = synthesized("blink", "dgx1v+dgx1-pcie", CollectiveKind.ALL_GATHER)
    assert check_packing(CheckRequest(algorithm=algorithm), NoOptions()).ok
    return algorithm


def _without_trees_of_plane_1(document: Any) -> None:
    document["trees"] = [tree for tree in document["trees"] if tree.get("plane", 0) == 0]


def _without_claim_of_plane_1(document: Any) -> None:
    document["planes"] = [one | {"share": "1"} for one in document["planes"] if one["plane"] == 0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_without_trees_of_plane_1, "the trees carry nothing"),
        (_without_claim_of_plane_1, "the trees of plane 1 carry"),
        (lambda c: c["planes"][1].update(rate="1"), "the trees of plane 1 carry"),
        (
            lambda c: c["planes"][1]["bound"].update(rate="1"),
            "the bound of plane 1 is not 1e-09 GB/s",
        ),
        (
            lambda c: c["planes"][1].update(share="1"),
            "the planes of the network do not share all data",
        ),
        (
            lambda c: c["trees"].append(c["trees"][0] | {"plane": 7}),
            "a tree is on a plane that the network does not have",
        ),
    ],
)
def test_flaws_of_planes_are_named(
    two_planes: Algorithm, change: Callable[[Any], None], message: str
) -> None:
    # Without the algorithm, whose messages a changed share would contradict first.
    certificate = copy.deepcopy(find_certificate(two_planes))
    assert certificate is not None
    change(certificate)
    report = check_certificate(certificate)
    assert not report.ok
    assert message in "\n".join(one.message for one in report.diagnostics)


def test_a_part_of_a_flow_is_the_whole_by_the_number_of_ranks() -> None:
    algorithm = synthesized("flows", RING, CollectiveKind.ALL_TO_ALL)
    changed = with_changes(algorithm, "flow_certificate", lambda c: c.update(parts=8))
    report = check_flow(CheckRequest(algorithm=changed), NoOptions())
    assert "a share is the whole by the number of ranks" in messages(report)


def test_a_flow_from_another_root_is_another_collective() -> None:
    collective = Collective(CollectiveKind.SCATTER, 4, 4, root=0)
    topology = hub_core.parse_topology(RING)
    algorithm = hub_core.synthesize(collective, topology, 1 << 20, name="flows").algorithm
    changed = with_changes(algorithm, "flow_certificate", lambda c: c.update(root=1))
    report = check_flow(CheckRequest(algorithm=changed), NoOptions())
    assert "the flow certificate is for another collective" in messages(report)


def test_a_price_may_be_zero_but_not_negative() -> None:
    algorithm = synthesized("flows", RING, CollectiveKind.ALL_TO_ALL)

    def priced(price: int) -> CheckReport:
        def change(document: Any) -> None:
            priced_links = {(a, b) for a, b, _ in document["prices"]}
            links = {(a, b) for a, b, _ in document["network"]["links"]}
            free = sorted(links - priced_links)
            if free:
                document["prices"].append([*free[0], price])
            else:
                document["prices"][0][2] = price
                document["lower_bound_ns"] = 0

        changed = with_changes(algorithm, "flow_certificate", change)
        return check_flow(CheckRequest(algorithm=changed), NoOptions())

    assert priced(0).ok
    assert "negative" in messages(priced(-1))


def test_ranks_of_a_flow_are_different() -> None:
    algorithm = synthesized("flows", RING, CollectiveKind.ALL_TO_ALL)
    changed = with_changes(algorithm, "flow_certificate", lambda c: c.update(ranks=[0, 0, 2, 3]))
    report = check_flow(CheckRequest(algorithm=changed), NoOptions())
    assert "ranks are named twice" in messages(report)


def test_a_bound_of_another_collective_is_refused(all_gather: Algorithm) -> None:
    flaw = flaw_of(all_gather, lambda document: document.update(collective="all-to-all"))
    assert "the bound certificate is for another collective" in flaw


@pytest.mark.parametrize(
    "change",
    [
        lambda document: document.update(ranks=[float("inf"), 1, 2, 3]),
        lambda document: document.update(since_ps=[float("inf"), 0, 0, 0]),
        lambda document: document.update(unit_count=float("inf")),
        lambda document: document["latencies_s"].__setitem__(0, float("inf")),
    ],
)
def test_infinite_numbers_are_refused(all_gather: Algorithm, change: Callable[[Any], None]) -> None:
    # JSON texts such as 1e999 are read as infinity.
    assert "the bound certificate cannot be read: OverflowError" in flaw_of(all_gather, change)


def test_a_missing_bound_is_a_flaw(all_gather: Algorithm) -> None:
    flaw = flaw_of(all_gather, lambda document: document.pop("lower_bound_ns"))
    assert "the bound None is no time in whole nanoseconds" in flaw
