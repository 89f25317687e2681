"""Synthesis by blink: every collective on every sort of network, and what is refused.

Its proof and its time are checked as well.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from blink_requests import KINDS, MIB, build_certificate, checked, synthesized
from collhub_certificates import check_certificate
from golden_classes import ROWS

import hub_core
from hub_core import parse_topology
from hub_core.model import Collective, CollectiveKind, HubError, InputError, UsageError
from hub_core.network import Links, Occupancy, Topology
from hub_core.schedules import find_certificate

GB = 10**9


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("topology", ["dgx1v", "mesh:3x2", "switch:4", "rail:2x2", "line:2"])
def test_every_collective_is_correct_and_its_rate_proved(kind: str, topology: str) -> None:
    report = checked(synthesized(kind, topology, chunks=4, trees="fewest"), topology)
    assert report.is_optimal


@pytest.mark.once
@pytest.mark.parametrize("occupancy", ["serialization", "alpha-beta"])
@pytest.mark.parametrize("topology", ["dgx1p", "switch:4"])
@pytest.mark.parametrize("kind", ["scatter", "all-reduce"])
def test_the_time_is_the_simulators(kind: str, topology: str, occupancy: str) -> None:
    made = synthesized(kind, topology, occupancy=occupancy)
    simulated = hub_core.simulate(
        made.algorithm, parse_topology(topology), MIB, options={"occupancy": occupancy}
    )
    assert made.bound_ns is not None
    if simulated.time_ns < made.bound_ns:
        # Whole nanoseconds a message add up to less than the wire takes: told in finer ones.
        assert made.bound_ns <= made.time_ns < 1.02 * simulated.time_ns
    else:
        assert made.time_ns == simulated.time_ns


@pytest.mark.parametrize("occupancy", list(Occupancy))
@pytest.mark.parametrize("kind", KINDS)
def test_without_a_simulator_the_schedule_tells_about_the_same_time(
    kind: str, occupancy: Occupancy
) -> None:
    topology, size = parse_topology("dgx1p"), 16 * MIB
    times = [
        synthesized(
            kind,
            topology,
            size,
            occupancy=str(occupancy),
            backend=backend,
            chunks=8,
            trees="fewest",
        ).time_ns
        for backend in ("analytical", "none")
    ]
    # The simulator truncates every message's time to whole nanoseconds and charges one for every
    # reduction.
    assert times[0] == pytest.approx(times[1], rel=0.001)


# Algorithm bandwidth of the optimum in bytes/s, computed exactly 2026-11 by other means than this
# plugin.
GOLDEN = {
    ("broadcast", "dgx1v"): Fraction(150 * GB),
    ("broadcast", "dgx1p"): Fraction(80 * GB),
    ("all-reduce", "dgx1v"): Fraction(600 * GB, 7),
    ("all-reduce", "dgx1p"): Fraction(320 * GB, 7),
    ("all-gather", "dgx1v"): Fraction(1200 * GB, 7),
    ("all-gather", "dgx1p"): Fraction(640 * GB, 7),
    ("all-gather", "dgx-a100"): Fraction(2400 * GB, 7),
    ("all-gather", "dgx2"): Fraction(160 * GB),
    ("all-reduce", "dgx2"): Fraction(80 * GB),
    ("all-reduce", "mesh:4x4?bandwidth=1GB/s"): Fraction(8 * GB, 5),
    ("all-reduce", "torus:4x4x4?bandwidth=1GB/s"): Fraction(64 * GB, 21),
}


@pytest.mark.parametrize(("kind", "topology"), GOLDEN, ids=str)
def test_rates_are_the_known_optima(kind: str, topology: str) -> None:
    made = synthesized(kind, topology, 64 * MIB, chunks=1, trees="fewest", time_limit=0, seeds=1)
    certificate = build_certificate(made)
    report = check_certificate(certificate, made.algorithm, parse_topology(topology))
    assert (report.is_optimal, report.bound) == (True, GOLDEN[kind, topology])


@pytest.mark.parametrize(
    ("npus", "rate"), [(row[0], row[2]) for row in ROWS["dgx1v"][18:28:3]], ids=str
)
def test_at_least_95_percent_of_the_certified_rate_is_simulated(
    npus: tuple[int, ...], rate: int
) -> None:
    network = parse_topology("dgx1v").subset(npus)
    for kind in ("broadcast", "all-reduce"):
        made = synthesized(kind, network, 256 * MIB)
        simulated = hub_core.simulate(made.algorithm, network, 256 * MIB).time_ns
        assert made.bound_ns is not None
        assert simulated is not None
        assert made.bound_ns >= 0.95 * simulated


def test_fewest_trees_are_made_on_demand() -> None:
    made = synthesized("broadcast", "dgx1v", 64 * MIB, trees="fewest")
    stated = build_certificate(made)["tree_count"]
    assert (stated["trees"], stated["status"]) == (4, "optimal")
    checked(made, "dgx1v")


def test_the_front_of_trees_and_depth_is_told() -> None:
    # Computed 2026-11 by another solver: none but these two has neither fewer trees nor less depth.
    assert synthesized("broadcast", "dgx1v").statistics["trees x depth"] == "4 x 7, 6 x 4"


def test_a_depth_is_kept() -> None:
    made = synthesized("broadcast", "dgx1v", 64 * MIB, depth=4, trees="fewest")
    assert max(tree["depth"] for tree in build_certificate(made)["trees"]) == 4
    with pytest.raises(InputError, match=r"no trees of depth 3 .*no packing of 6 trees"):
        synthesized("broadcast", "dgx1v", depth=3)


def test_small_data_goes_over_shallow_trees() -> None:
    small, large = (
        synthesized("all-reduce", "dgx1v", 4096),
        synthesized("all-reduce", "dgx1v", 64 * MIB),
    )
    assert int(str(small.statistics["depth"])) < int(str(large.statistics["depth"]))
    assert checked(small, "dgx1v").is_optimal is False


def test_one_hop_trees_win_behind_a_switch() -> None:
    made = synthesized("all-reduce", "dgx2", MIB)
    assert (made.statistics["trees"], made.statistics["depth"]) == (16, 1)


def test_ranks_without_routes_between_all_of_them_have_trees_over_a_switch() -> None:
    # All NPUs reach NPU 3, but none reaches NPU 0; node 6 is a switch.
    pairs = [(0, 1), (0, 2), (1, 2), (3, 1), (2, 3), (0, 4), (4, 1), (2, 4), (4, 3), (1, 5)]
    pairs += [(5, 2), (6, 0), (6, 4), (6, 5)]
    source, destination = (np.array(column, np.int64) for column in zip(*pairs, strict=True))
    count = len(pairs)
    bandwidth, latency = np.full(count, 50e9), np.full(count, 5e-7)
    network = Topology("one-way", 6, 7, source, destination, bandwidth, latency)
    collective = Collective(CollectiveKind.REDUCE, 6, 6, root=3)
    result = hub_core.synthesize(collective, network, MIB, name="blink")
    assert hub_core.verify(result.algorithm).ok
    assert result.bound_ns is not None
    assert result.bound_ns <= result.time_ns < 1.05 * result.bound_ns


def test_large_data_behind_a_switch_is_at_its_bound() -> None:
    made = synthesized("all-reduce", "dgx2", 64 * MIB)
    assert checked(made, "dgx2").is_optimal
    assert made.ratio_to_bound is not None
    assert made.ratio_to_bound < 1.01


def test_the_three_phase_plan_is_kept_where_it_is_faster() -> None:
    made = synthesized("all-reduce", "rail:2x4", 64 * MIB)
    assert made.statistics["method"] == "three phases"
    assert checked(made, "rail:2x4").is_optimal


@pytest.mark.parametrize("kind", KINDS)
def test_others_relay_for_those_who_take_part(kind: str) -> None:
    npus = (1, 4, 5, 6)
    alone = synthesized(
        kind, parse_topology("dgx1v").subset(npus), 64 * MIB, chunks=32, trees="fewest"
    )
    relayed = synthesized(kind, "dgx1v", 64 * MIB, npus=npus, chunks=32, trees="fewest")
    assert checked(relayed, "dgx1v").is_optimal
    assert relayed.time_ns < alone.time_ns / 3


@pytest.mark.parametrize("kind", KINDS)
def test_relays_serve_all_whose_paths_meet_there(kind: str) -> None:
    made = synthesized(kind, "rail:2x4", npus=(0, 5, 2), chunks=4, trees="fewest")
    assert checked(made, "rail:2x4").is_optimal


def test_messages_of_one_pair_take_one_route_and_so_arrive_in_order() -> None:
    # Its trees pass from one NPU to another by two routes; on both at once, messages would overtake
    # each other.
    checked(
        synthesized("all-reduce", "dragonfly:2,1,1", 64 * MIB, chunks=32, trees="fewest"),
        "dragonfly:2,1,1",
    )


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_request_gives_the_same_bytes(kind: str, tmp_path: Path) -> None:
    one, other = tmp_path / "one.json", tmp_path / "other.json"
    for path in (one, other):
        hub_core.write(synthesized(kind, "dgx1v").algorithm, path)
    assert one.read_bytes() == other.read_bytes()


def test_some_ranks_alone_have_the_steps_that_they_have_in_the_whole() -> None:
    whole, part = (
        synthesized("broadcast", "dgx1p", chunks=4, wanted=wanted) for wanted in (None, (2, 5))
    )
    assert part.is_partial
    for rank in (2, 5):
        peers = [
            made.algorithm.steps.peer[made.algorithm.steps.rank == rank] for made in (whole, part)
        ]
        assert np.array_equal(*peers)


def test_bandwidths_are_what_their_decimal_text_says() -> None:
    rates = np.full(6, 1e8)
    rates[:2] = 33333333.3
    topology = replace(parse_topology("ring:3"), bandwidth_bytes_per_s=rates, dimensions=())
    report = checked(synthesized("broadcast", topology), topology)
    assert report.is_optimal
    assert report.bound is not None
    assert report.bound.denominator in (1, 2, 5, 10)


def one_way(*links: tuple[int, int], npus: int = 3) -> Topology:
    source, destination = np.asarray(links, np.int64).T
    return Topology(
        "one way",
        npus,
        npus,
        source.copy(),
        destination.copy(),
        np.full(len(links), 1e9),
        np.zeros(len(links)),
    )


@pytest.mark.parametrize("kind", KINDS)
def test_links_may_differ_by_direction(kind: str) -> None:
    circle = one_way((0, 1), (1, 2), (2, 3), (3, 0), npus=4)
    made = synthesized(kind, circle, chunks=4)
    assert checked(made, circle).is_optimal


def test_an_all_reduce_on_links_that_differ_by_direction_reaches_its_bound() -> None:
    rates = parse_topology("dgx1v").bandwidth_bytes_per_s.copy()
    rates[::3] *= 0.6
    uneven = replace(parse_topology("dgx1v"), bandwidth_bytes_per_s=rates)
    assert checked(synthesized("all-reduce", uneven, chunks=4), uneven).is_optimal


def test_a_directed_partition_proves_a_rate_below_all_cuts_and_partitions() -> None:
    # Ranks 0 and 1 send little to ranks 2 and 3: at least three messages of every element take
    # links of 3, 2, 3 and 3 GB/s. Every cut allows 5 GB/s.
    rates = {(0, 2): 3, (0, 3): 2, (1, 2): 3, (1, 3): 3, (2, 0): 3, (2, 1): 3, (3, 0): 12}
    rates[3, 1] = 16
    network = one_way(*rates, npus=4)
    network = replace(network, bandwidth_bytes_per_s=np.asarray([*rates.values()]) * 1e9)
    result = synthesized("all-reduce", network, chunks=4)
    assert checked(result, network).is_optimal
    certificate = build_certificate(result)
    assert certificate["rate"] == "11000000000/3"
    assert certificate["bound"]["kind"] == "directed-partition"
    assert certificate["bound"]["senders"] == 2


def test_a_rank_that_cannot_be_reached_is_named_with_the_cut() -> None:
    with pytest.raises(InputError, match="NPU 0 cannot reach NPU 2: no link leaves NPUs 0,1"):
        synthesized("broadcast", one_way((0, 1), (1, 0), (2, 0)))
    with pytest.raises(InputError, match="NPU 2 cannot reach NPU 0: no link leaves NPU 2"):
        synthesized("reduce", one_way((0, 1), (1, 0), (0, 2)))
    with pytest.raises(InputError, match="NPU 2 cannot reach NPU 0"):
        synthesized("all-gather", one_way((0, 1), (1, 0), (0, 2)))


@pytest.mark.parametrize(
    ("message", "kind", "more"),
    [
        ("blink does not support all-to-all; it supports all-gather", "all-to-all", {}),
        ("neither auto nor a number", "broadcast", {"chunks": "many"}),
        ("neither auto nor a number", "broadcast", {"chunks": 0}),
        ("neither auto nor a number", "broadcast", {"chunks": "000000001" + "0" * 12}),
        ("neither auto nor a number", "broadcast", {"chunks": "1" * 5000}),
        ("option seeds '0' is not at least 1", "broadcast", {"seeds": 0}),
        ("option depth '-1' is not at least 0", "broadcast", {"depth": -1}),
        ("option time_limit '-1' is not in 0", "broadcast", {"time_limit": -1}),
        ("there are no shallow trees for a scatter", "scatter", {"trees": "shallow"}),
        ("too few bytes to be divided among the trees: 3", "all-gather", {"size": 3}),
        ("too few bytes to be divided among the trees: 1", "all-gather", {"size": 1}),
        (
            "too few bytes for 400 chunks: 100",
            "broadcast",
            {"size": 100, "chunks": 100, "trees": "fewest"},
        ),
    ],
)
def test_what_cannot_be_made_is_refused_in_one_line(
    message: str, kind: str, more: dict[str, object]
) -> None:
    size = int(str(more.pop("size", MIB)))
    with pytest.raises(HubError, match=message) as caught:
        synthesized(kind, "dgx1p", size, **more)
    assert "\n" not in str(caught.value)


def test_one_rank_is_refused() -> None:
    with pytest.raises(UsageError, match="one rank has nothing to send"):
        synthesized("broadcast", parse_topology("dgx1p").subset([3]))


def test_without_time_for_proofs_the_gap_is_told() -> None:
    made = synthesized("all-reduce", "dgx1v", 64 * MIB, time_limit=0, trees="fewest")
    stated = build_certificate(made)["tree_count"]
    assert stated["status"] == "feasible"
    assert stated["at_least"] < stated["trees"]
    assert checked(made, "dgx1v").is_optimal


@pytest.mark.parametrize("kind", KINDS)
def test_traces_come_back_with_their_certificate(kind: str, tmp_path: Path) -> None:
    made = synthesized(kind, "dgx1p", chunks=2)
    hub_core.write(made.algorithm, tmp_path / "out")
    again = hub_core.read(tmp_path / "out")
    assert find_certificate(again) == find_certificate(made.algorithm)
    assert hub_core.verify(again).ok


@pytest.mark.parametrize(
    "kind", ["broadcast", "reduce", "all-reduce", "all-gather", "reduce-scatter"]
)
def test_the_runtime_of_msccl_gets_a_file(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("collhub_msccl")
    made = synthesized(kind, "dgx1p", chunks=2, trees="fewest", depth=0)
    hub_core.write(made.algorithm, tmp_path / "out.xml")
    assert hub_core.verify(hub_core.read(tmp_path / "out.xml")).ok


@pytest.mark.parametrize("drawn", [False, True])
@pytest.mark.parametrize("kind", ["all-gather", "all-reduce", "broadcast"])
def test_bandwidths_without_a_common_unit_are_rounded_to_a_tolerance(
    kind: str, drawn: bool
) -> None:
    """One rate with an error in its last digit, and measured rates that differ everywhere."""
    ring = parse_topology("ring:4?bandwidth=16GB/s&latency=500ns")
    rates = np.full(ring.num_links, 16.6e9)
    rates[3] = 16600000000.000002
    if drawn:
        rates *= np.random.default_rng(7).uniform(0.5, 2.0, len(rates))
    topology = replace(ring, bandwidth_bytes_per_s=rates, dimensions=())
    made = synthesized(kind, topology, chunks=4)
    assert hub_core.verify(made.algorithm).ok
    tolerance = made.statistics["bandwidths rounded by up to"]
    assert isinstance(tolerance, float)
    assert 0 < tolerance < (0.051 if drawn else 1e-9)
    assert made.bound_ns is not None
    # The bound of the rounded network is not later than that of the exact rates.
    links = hub_core.network.lower_bound_ns(made.algorithm.collective, topology, MIB)
    assert links is not None
    assert made.bounds_ns["links"] <= links
    assert made.time_ns >= made.bound_ns


def test_a_reduction_follows_links_that_lead_one_way() -> None:
    line = parse_topology("line:3")
    rows = line.source < line.destination
    one_way = replace(
        line,
        source=line.source[rows],
        destination=line.destination[rows],
        bandwidth_bytes_per_s=line.bandwidth_bytes_per_s[rows],
        latency_s=line.latency_s[rows],
        plane=line.plane[rows],
        dimensions=(),
    )
    collective = Collective(CollectiveKind.REDUCE, 3, 1, root=2)
    assert hub_core.verify(hub_core.synthesize(collective, one_way, MIB, name="blink").algorithm).ok


@pytest.mark.once
def test_bandwidths_whose_trees_need_too_many_units_are_rounded() -> None:
    # 25 and 12.3456789 GB/s have a common unit, but the trees' weights do not fit 64 bits.
    fast = [
        *((0, 1), (0, 2), (0, 3), (1, 0), (1, 3), (2, 1), (2, 6), (3, 1), (3, 2), (3, 4)),
        *((4, 1), (5, 2), (5, 4), (6, 1)),
    ]
    slow = [
        *((1, 2), (1, 6), (2, 0), (2, 3), (2, 5), (3, 0), (4, 3), (4, 5), (4, 6), (5, 0)),
        *((5, 1), (6, 4)),
    ]
    ends = np.array(sorted([*fast, *slow]), np.int64)
    rates = np.array([25e9 if tuple(pair) in fast else 12.3456789e9 for pair in ends.tolist()])
    latencies = np.full(len(ends), 1e-12)
    topology = Links(ends[:, 0], ends[:, 1], rates, latencies).topology("graph", 5, 7)
    collective = Collective(CollectiveKind.ALL_REDUCE, 5, 1)
    result = hub_core.synthesize(collective, topology, 1 << 40, name="blink")
    # Contents of so many units are compared in blocks, or not at all.
    codes = {one.code for one in hub_core.verify(result.algorithm).diagnostics}
    assert codes <= {"checked-by-ranges", "checked-in-blocks", "too-large"}
    assert 0 < float(str(result.statistics["bandwidths rounded by up to"])) < 0.01


def test_routes_that_carry_less_than_the_trees_are_reported() -> None:
    """Two machines of two NPUs; each NPU has a NIC switch, on core switch 8 (100 GB/s) or 9 (50).

    Simulators choose one route per pair of NPUs, and the trees of 60 GB/s run at 52.5 GB/s on
    these.
    """
    npu_links = [(0, 1, 28), (2, 3, 28), *((npu, npu + 4, 32) for npu in range(4))]
    core_links = [(4, 8, 100), (6, 8, 100), (5, 9, 50), (7, 9, 50), (8, 9, 50)]
    one_way = [*npu_links, *core_links]
    both_ways = sorted([*one_way, *((end, start, rate) for start, end, rate in one_way)])
    source, destination, rate = (np.asarray(column) for column in zip(*both_ways, strict=True))
    latency_s = np.full(len(source), 500e-9)
    network = Links(source, destination, rate * 1e9, latency_s).topology("two NICs", 4, 10)
    collective = Collective(CollectiveKind.BROADCAST, 4, 1, 0)
    statistics = hub_core.synthesize(collective, network, 64 * MIB, name="blink").statistics
    assert statistics["rate GB/s"] == pytest.approx(60)
    assert statistics["rate on routes GB/s"] == pytest.approx(52.5)
    assert "rate on routes GB/s" not in synthesized("broadcast", "switch:4").statistics
