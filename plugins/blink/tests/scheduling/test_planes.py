"""Several planes in one algorithm: shares, start-up times, the proof, and what is refused."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from blink_requests import KINDS, MIB, build_certificate, checked, synthesized
from collhub_certificates import check_certificate
from collhub_packing.compiling import COMPILING

import hub_core
from hub_core import parse_topology
from hub_core.model import Collective, CollectiveKind, InputError, UsageError
from hub_core.network import Topology

pytestmark = pytest.mark.once

PAIR = "fc:2?bandwidth=50GB/s+fc:2?bandwidth=10GB/s"
MIXED = "fc:3?bandwidth=40GB/s+switch:3?bandwidth=10GB/s"


# Wang et al., MLSys 2020, section 3.5, with 2 ms to switch peer access: GB/s by its formula,
# computed 2026-11.
@pytest.mark.once
@pytest.mark.parametrize(
    ("topology", "gigabytes", "expected"),
    [
        (PAIR, 0.5, 57.7),
        (PAIR, 1, 58.8),
        (PAIR.replace("50GB", "150GB"), 0.5, 153.8),
        (PAIR.replace("50GB", "150GB"), 1, 156.9),
        ("dgx1v+dgx1-pcie", 1, 156.9),
    ],
)
def test_both_planes_reach_the_published_balance_in_simulation(
    topology: str, gigabytes: float, expected: float
) -> None:
    size = int(gigabytes * 1e9)
    made = synthesized("broadcast", topology, size, setup="0ns,2ms", trees="fewest", seeds=1)
    simulated = hub_core.simulate(made.algorithm, parse_topology(topology), size)
    assert simulated.time_ns == made.time_ns
    assert size / made.time_ns == pytest.approx(expected, rel=0.02)
    assert checked(made, topology).is_optimal


def test_a_plane_that_starts_too_late_gets_nothing() -> None:
    made = synthesized("broadcast", PAIR, 10**8, setup="0ns,2ms")
    assert set(made.algorithm.steps.channel.tolist()) == {0}
    report = checked(made, PAIR)
    assert (report.rate, report.bound, report.is_optimal) == (50 * 10**9, 60 * 10**9, False)


@pytest.mark.parametrize("occupancy", ["serialization", "alpha-beta"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_collective_is_correct_on_two_planes(kind: str, occupancy: str) -> None:
    made = synthesized(
        kind, MIXED, 16 * MIB, setup="0ns,10us", chunks=16, trees="fewest", occupancy=occupancy
    )
    assert set(made.algorithm.steps.channel.tolist()) == {0, 1}
    report = checked(made, MIXED)
    assert report.rate is not None
    simulated = hub_core.simulate(
        made.algorithm, parse_topology(MIXED), 16 * MIB, options={"occupancy": occupancy}
    )
    alone = synthesized(
        kind, "fc:3?bandwidth=40GB/s", 16 * MIB, chunks=16, trees="fewest", occupancy=occupancy
    )
    assert simulated.time_ns == made.time_ns
    assert made.time_ns < alone.time_ns


def test_without_a_simulator_the_schedule_tells_about_the_same_time() -> None:
    times = [
        synthesized("all-reduce", MIXED, 16 * MIB, setup="0ns,10us", backend=name).time_ns
        for name in ("analytical", "none")
    ]
    assert times[0] == pytest.approx(times[1], rel=0.01)


def test_ranks_that_one_plane_does_not_join_use_the_other() -> None:
    network = parse_topology("dgx1v+dgx1-pcie").subset([0, 1, 6, 7])
    made = synthesized("all-reduce", network, MIB, chunks=1)
    assert set(made.algorithm.steps.channel.tolist()) == {1}
    assert checked(made, network).bound > checked(made, network).rate  # type: ignore[operator]


def test_relays_serve_on_every_plane() -> None:
    made = synthesized("broadcast", MIXED, 16 * MIB, npus=[0, 2], chunks=4)
    assert checked(made, MIXED).is_optimal


def test_ranks_that_no_plane_joins_are_named() -> None:
    lonely = Topology(
        "lonely",
        3,
        3,
        *(np.asarray(ends) for ends in ([0, 1], [1, 0])),
        np.full(2, 1e9),
        np.zeros(2),
        plane=np.arange(2),
    )
    with pytest.raises(InputError, match="NPU 0 cannot reach NPU 2"):
        synthesized("broadcast", lonely, MIB)


def _crossed() -> Topology:
    """A path of three, wide at one end on one plane and at the other end on the other."""
    source, destination = np.tile([0, 1, 1, 2], 2), np.tile([1, 0, 2, 1], 2)
    rates = np.asarray([10e9, 10e9, 1e9, 1e9, 1e9, 1e9, 10e9, 10e9])
    return Topology(
        "crossed", 3, 3, source, destination, rates, np.full(8, 500e-9), plane=np.repeat([0, 1], 4)
    )


@pytest.mark.parametrize(
    ("kind", "bound"), [("broadcast", 11), ("all-reduce", 11), ("all-gather", Fraction(33, 2))]
)
def test_where_the_planes_together_could_do_more_the_certificate_says_so(
    kind: str, bound: Fraction
) -> None:
    made = synthesized(kind, _crossed(), MIB)
    report = checked(made, _crossed())
    assert (report.bound, report.is_optimal) == (bound * 10**9, False)
    assert build_certificate(made)["is_optimal"] is False


@pytest.mark.parametrize(
    ("flaw", "message"),
    [
        (lambda stated: stated["planes"][0].update(share="1/2"), "do not share all data"),
        (lambda stated: stated["planes"][0].update(rate="1"), "carry 50 GB/s, not what is claimed"),
        (lambda stated: stated["planes"][1]["bound"].update(rate="1"), "bound of plane 1"),
        (lambda stated: stated["trees"][1].update(weight="60000000000"), "put 60 GB/s on the link"),
        (lambda stated: stated["trees"][0].update(plane=1), "carry nothing"),
        (
            lambda stated: stated["trees"].append({**stated["trees"][0], "plane": 2}),
            "does not have",
        ),
        (lambda stated: stated.pop("planes"), "do not share all data"),
    ],
)
def test_a_false_claim_about_planes_is_found(flaw, message: str) -> None:
    made = synthesized("broadcast", PAIR, 10**9, setup="0ns,2ms", chunks=4, trees="fewest")
    certificate = build_certificate(made)
    flaw(certificate)
    report = check_certificate(certificate, made.algorithm, parse_topology(PAIR))
    assert not report.ok
    assert any(message in found.message for found in report.diagnostics)


def test_shares_that_the_algorithm_does_not_send_are_found() -> None:
    made = synthesized("broadcast", PAIR, 10**9, setup="0ns,2ms", chunks=4, trees="fewest")
    certificate = build_certificate(made)
    certificate["planes"][0]["share"], certificate["planes"][1]["share"] = "1/2", "1/2"
    report = check_certificate(certificate, made.algorithm, parse_topology(PAIR))
    assert "does not send what the trees say" in report.diagnostics[0].message


@pytest.mark.parametrize(
    ("topology", "setup"),
    [(PAIR, "1ms"), (PAIR, "0ns,1ms,2ms"), ("fc:2", "1ms"), (PAIR, "0ns,soon")],
)
def test_start_up_times_that_do_not_fit_are_refused(topology: str, setup: str) -> None:
    with pytest.raises(UsageError):
        synthesized("broadcast", topology, MIB, setup=setup)


def test_an_interrupt_keeps_the_best_so_far() -> None:
    calls = []

    def progress(fraction: float, what: str) -> None:
        if what != COMPILING:
            calls.append(what)
        if len(calls) == 3:
            raise KeyboardInterrupt

    collective = Collective(CollectiveKind.BROADCAST, 2, 1, root=0, in_place=True)
    made = hub_core.synthesize(
        collective, parse_topology(PAIR), 10**9, name="blink", progress=progress
    )
    assert made.statistics["interrupted"] is True
    assert hub_core.verify(made.algorithm).ok


@pytest.mark.parametrize("chunks", ["auto", 8])
@pytest.mark.parametrize("size", [8, 100, 5000])
def test_data_too_small_to_share_stays_on_one_plane(size: int, chunks: str | int) -> None:
    assert checked(synthesized("broadcast", PAIR, size, chunks=chunks), PAIR).rate is not None


def test_too_little_data_is_refused() -> None:
    with pytest.raises(InputError, match="too few"):
        synthesized("broadcast", PAIR, 3, chunks=8)
