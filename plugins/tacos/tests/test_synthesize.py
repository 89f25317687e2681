"""Every collective on every network: correct, and as fast in the simulator as by its account."""

from __future__ import annotations

import numpy as np
import pytest

import hub_core
from hub_core import (
    Algorithm,
    Collective,
    CollectiveKind,
    InputError,
    StepKind,
    Topology,
    UsageError,
    parse_topology,
    verify,
)
from hub_core.model import ROOTED, STANDARD_KINDS
from hub_core.network import Links, Occupancy
from hub_core.plugin_api import SynthesisResult

CONSTANTS = "?bandwidth=50GiB/s&latency=500ns"
PLAIN = [
    f"mesh:3x3{CONSTANTS}",
    f"ring:5{CONSTANTS}",
    "fc:4",
    "mesh:2x3?bandwidth=16GiB/s,73GiB/s&latency=1.5us",
]
SWITCHED = ["switch:4", "ring:2*switch:3", "rail:2x2"]
SIZE = 1 << 20


def one_way_ring(npus: int) -> Topology:
    """Links to the next NPU alone, every other one slower."""
    node = np.arange(npus, dtype=np.int64)
    rates = np.where(node % 2 == 0, 50e9, 20e9)
    return Links(node, (node + 1) % npus, rates, np.full(npus, 5e-7)).topology(
        "one-way", npus, npus
    )


def unequal_ring(npus: int) -> Topology:
    """Both ways, with other bandwidths back."""
    node = np.arange(npus, dtype=np.int64)
    source, destination = (
        np.concatenate([node, (node + 1) % npus]),
        np.concatenate([(node + 1) % npus, node]),
    )
    rates = np.repeat([50e9, 30e9], npus)
    return Links(source, destination, rates, np.full(2 * npus, 5e-7)).topology(
        "unequal", npus, npus
    )


def make(
    kind: CollectiveKind, topology: Topology, size: int = SIZE, **given: object
) -> SynthesisResult:
    """Synthesize; `given`: npus, occupancy, wanted and options by name."""
    names = ("npus", "occupancy", "wanted")
    details = {name: given.pop(name) for name in names if name in given}
    npus = details.get("npus")
    ranks = topology.num_npus if npus is None else len(npus)
    units = (
        1
        if kind in (CollectiveKind.ALL_REDUCE, CollectiveKind.BROADCAST, CollectiveKind.REDUCE)
        else ranks
    )
    collective = Collective(kind, ranks, units, 1 if kind in ROOTED else None, in_place=True)
    options = {name: str(value) for name, value in given.items()}
    return hub_core.synthesize(collective, topology, size, name="tacos", options=options, **details)


def simulated_ns(
    algorithm: Algorithm, topology: Topology, occupancy: Occupancy, size: int = SIZE
) -> int:
    time = hub_core.simulate(
        algorithm, topology, size, options={"occupancy": str(occupancy)}
    ).time_ns
    assert time is not None
    return time


def check(result: SynthesisResult, topology: Topology, occupancy: Occupancy) -> None:
    report = verify(result.algorithm)
    assert report.ok, report.diagnostics[:3]
    # Every message of a chain is truncated to whole nanoseconds, every reduction takes one.
    chain = len(result.algorithm.steps) // topology.num_npus + topology.num_npus
    assert abs(simulated_ns(result.algorithm, topology, occupancy) - result.time_ns) <= 2 * chain
    # What is as fast as can be is below the bound by what simulators truncate.
    assert result.time_ns + chain >= (result.bound_ns or 1) - 1


@pytest.mark.parametrize("occupancy", list(Occupancy))
@pytest.mark.parametrize("text", PLAIN)
@pytest.mark.parametrize("kind", STANDARD_KINDS)
def test_result_is_correct_and_takes_the_time_it_says(
    kind: CollectiveKind, text: str, occupancy: Occupancy
) -> None:
    topology = parse_topology(text)
    check(make(kind, topology, occupancy=occupancy, seeds=2), topology, occupancy)


@pytest.mark.parametrize("occupancy", list(Occupancy))
@pytest.mark.parametrize("text", SWITCHED)
@pytest.mark.parametrize("kind", STANDARD_KINDS)
def test_switches_store_and_forward(kind: CollectiveKind, text: str, occupancy: Occupancy) -> None:
    topology = parse_topology(text)
    check(make(kind, topology, occupancy=occupancy, seeds=2), topology, occupancy)


@pytest.mark.parametrize("network", [one_way_ring, unequal_ring])
@pytest.mark.parametrize("kind", STANDARD_KINDS)
def test_directions_may_differ(kind: CollectiveKind, network: object) -> None:
    topology = network(5)  # type: ignore[operator]
    check(make(kind, topology, seeds=2), topology, Occupancy.SERIALIZATION)


@pytest.mark.parametrize("kind", STANDARD_KINDS)
def test_groups_use_the_others_as_relays(kind: CollectiveKind) -> None:
    topology = parse_topology("ring:6")
    result = make(kind, topology, npus=(4, 1, 3), seeds=2)
    check(result, topology, Occupancy.SERIALIZATION)
    assert result.algorithm.num_ranks == 6


def test_same_seed_gives_the_same_algorithm_on_any_number_of_threads() -> None:
    topology = parse_topology("mesh:3x4?bandwidth=16GiB/s,73GiB/s&latency=1.5us")
    one = make(CollectiveKind.ALL_REDUCE, topology, seed=3, seeds=4, threads=1)
    other = make(CollectiveKind.ALL_REDUCE, topology, seed=3, seeds=4, threads=4)
    assert one.algorithm.differences(other.algorithm) == ["provenance"]


def test_wanted_ranks_are_those_of_the_whole() -> None:
    topology = parse_topology("mesh:4x4")
    for kind in (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER):
        part = make(kind, topology, wanted=(5, 6), chunks=2, occupancy=Occupancy.ALPHA_BETA)
        whole = make(kind, topology, chunks=2, occupancy=Occupancy.ALPHA_BETA)
        assert part.is_partial
        assert part.is_replayed
        assert part.time_ns == whole.time_ns
        for rank in (5, 6):
            assert messages(part.algorithm, rank) == messages(whole.algorithm, rank)


@pytest.mark.parametrize("failed", [(3, 21), (9, 19)])
@pytest.mark.parametrize("kind", [CollectiveKind.ALL_GATHER, CollectiveKind.ALL_REDUCE])
def test_rail_networks_with_a_failed_link_are_spread_over(
    kind: CollectiveKind, failed: tuple[int, int]
) -> None:
    """Two machines of 8 NPUs, a switch each, and a switch per rail: no equal groups are left."""
    cables = [(npu, 16 + npu // 8) for npu in range(16)]
    cables += [(npu, 18 + npu % 8) for npu in range(16)]
    left = [cable for cable in cables if cable != failed]
    assert len(left) == len(cables) - 1
    pairs = np.array([*left, *((b, a) for a, b in left)]).T
    is_within = pairs.max(axis=0) < 18
    rate = np.where(is_within, 300e9, 25e9)
    latency = np.where(is_within, 3e-7, 1.5e-6)
    topology = Links(pairs[0], pairs[1], rate, latency).topology("rail", 16, 26)
    result = make(kind, topology, 2**20, seeds=1)
    assert verify(result.algorithm).ok


def messages(algorithm: Algorithm, rank: int) -> dict[tuple[int, int], list[tuple[int, ...]]]:
    """What a rank sends to and receives from each other rank, in order."""
    steps, found = algorithm.steps, {}
    for row in range(*steps.rank_indptr[rank : rank + 2].tolist()):
        side = "src" if steps.kind[row] == StepKind.SEND else "dst"
        columns = (getattr(steps, f"{side}_buffer"), getattr(steps, f"{side}_offset"), steps.count)
        found.setdefault((int(steps.kind[row]), int(steps.peer[row])), []).append(
            tuple(int(column[row]) for column in columns)
        )
    return found


def test_metadata_says_how_it_was_made() -> None:
    result = make(CollectiveKind.ALL_GATHER, parse_topology("mesh:3x3"), chunks=2, seed=7)
    record = result.algorithm.extensions["collhub-tacos"]
    assert isinstance(record, dict)
    assert (record["chunks"], record["occupancy"]) == (2, "serialization")
    again = make(
        CollectiveKind.ALL_GATHER,
        parse_topology("mesh:3x3"),
        chunks=2,
        seed=record["seed"],
        seeds=1,
    )
    assert again.time_ns == result.time_ns
    assert record["bounds_ns"] == dict(result.bounds_ns)
    assert record["topology"] == "mesh:3x3"


def two_islands() -> Topology:
    ends = np.asarray([0, 1, 2, 3], np.int64)
    return Links.uniform(ends, ends ^ 1, 50e9, 0.0).topology("islands", 4, 4)


@pytest.mark.parametrize("kind", STANDARD_KINDS)
def test_network_in_pieces_is_refused_with_a_pair(kind: CollectiveKind) -> None:
    with pytest.raises(
        InputError, match=r"topology islands: NPU \d cannot reach NPU \d|no path from \d to \d"
    ):
        make(kind, two_islands())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"chunks": "0"}, "option chunks is '0', expected auto or 1..1048576"),
        ({"chunks": "some"}, "option chunks is 'some', expected auto or 1..1048576"),
        ({"seeds": -1}, "option seeds '-1' is not in 0..10000"),
        ({"switches": "unwind", "degree": 10}, "option degree is 10, expected 0..9"),
        ({"chunks": "400000"}, "too few bytes for 3600000 chunks: 1048576"),
        ({"memory": "1KiB"}, "the option memory allows 0.0 GiB"),
    ],
)
def test_bad_options_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises((UsageError, InputError), match=message):
        make(CollectiveKind.ALL_GATHER, parse_topology("mesh:3x3"), **options)
