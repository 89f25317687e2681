"""All-gather in lockstep: as fast as known bounds, valid everywhere, the same on any threads."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from collhub_tacos.link_network import LinkNetwork, LinkTimes
from collhub_tacos.schedules.replay import replay, replay_log
from collhub_tacos.spreading.homogeneous import (
    LockstepResult,
    all_gather,
    bound_steps,
    estimate_memory_bytes,
    find_best_all_gather,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from tacos_networks import TESTS_OF_THE_RELEASE

import hub_core
from hub_core import Collective, CollectiveKind, InputError, Topology, parse_topology
from hub_core.network import Links, Occupancy
from hub_core.schedules import Chunks, algorithm_of

STEP_PS = 1000
EXPECTED = [case for case in TESTS_OF_THE_RELEASE if "GiB/s," not in case[0]]
# Chunks a node and steps of the bound; TACOS v1.3.0 needs one more on 2-D tori.
BOUNDS = [
    ("mesh:8x8", 1, 32),
    ("mesh:16x16", 1, 128),
    ("mesh:8x8", 4, 126),
    ("torus:8x8", 1, 16),
    ("torus:16x16", 1, 64),
    ("torus:8x8", 4, 63),
    ("torus:4x4x4", 1, 11),
    ("torus:6x6x6", 1, 36),
    ("torus:4x4x4", 4, 42),
    ("mesh:4x4x4", 1, 21),
    ("mesh:6x6x6", 1, 72),
    ("mesh:4x4x4", 4, 84),
]
LARGER_BOUNDS = [
    ("mesh:32x32", 1, 512),
    ("mesh:45x45", 1, 1012),
    ("mesh:64x64", 1, 2048),
    ("mesh:16x16", 4, 510),
    ("mesh:32x32", 4, 2046),
    ("torus:32x32", 1, 256),
    ("torus:16x16", 4, 255),
    ("torus:8x8x8", 1, 86),
    ("torus:10x10x10", 1, 167),
    ("torus:6x6x6", 4, 144),
    ("torus:8x8x8", 4, 341),
    ("mesh:8x8x8", 1, 171),
    ("mesh:10x10x10", 1, 333),
    ("mesh:6x6x6", 4, 287),
]


def network_of(text: str) -> LinkNetwork:
    return LinkNetwork.of(parse_topology(text))


def each(network: LinkNetwork, chunks: int) -> npt.NDArray[np.int64]:
    """Origins: so many chunks at every NPU."""
    return np.repeat(np.arange(network.num_npus), chunks)


def times_of(network: LinkNetwork, busy_ps: int = STEP_PS, arrival_ps: int = STEP_PS) -> LinkTimes:
    return LinkTimes(np.full(network.num_links, busy_ps), np.full(network.num_links, arrival_ps))


def checked(found: LockstepResult, origin: npt.NDArray[np.int64], busy_ps: int = STEP_PS) -> int:
    """The time after replaying log and schedule."""
    times = times_of(found.log.network, busy_ps, found.log.arrival_ps)
    assert (
        replay_log(found.log, times, origin)
        == replay(found.log.schedule(), times, origin)
        == found.log.time_ps
    )
    return found.log.time_ps


def graph(num_nodes: int, pairs: list[tuple[int, int]], name: str = "drawn") -> Topology:
    columns = np.asarray(pairs, np.int64).reshape(-1, 2).T
    return Links.uniform(columns[0], columns[1], 50e9, 5e-7).topology(name, num_nodes, num_nodes)


@st.composite
def connected(draw: st.DrawFn) -> Topology:
    """A one-way ring in random order, and more links."""
    n = draw(st.integers(2, 9))
    ring = draw(st.permutations(range(n)))
    pairs = {(ring[i], ring[(i + 1) % n]) for i in range(n)}
    more = draw(st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=20))
    return graph(n, sorted(pairs | {(a, b) for a, b in more if a != b}))


@pytest.mark.parametrize(("text", "chunks", "total", "expected_us"), EXPECTED)
def test_the_releases_expectations_are_met(
    text: str, chunks: int, total: int, expected_us: float
) -> None:
    network = network_of(text)
    times = network.link_times(total // (network.num_npus * chunks), Occupancy.ALPHA_BETA)
    found = find_best_all_gather(network, int(times.busy[0]), each(network, chunks))
    assert replay_log(found.log, times, each(network, chunks)) / 1e6 == pytest.approx(
        expected_us, abs=0.005
    )


@pytest.mark.parametrize(("text", "chunks", "steps"), BOUNDS)
def test_meshes_and_tori_take_the_steps_of_the_bound(text: str, chunks: int, steps: int) -> None:
    network = network_of(text)
    found = find_best_all_gather(network, STEP_PS, each(network, chunks))
    assert bound_steps(network, each(network, chunks)) == steps
    assert checked(found, each(network, chunks)) == steps * STEP_PS


@pytest.mark.slow
@pytest.mark.parametrize(("text", "chunks", "steps"), LARGER_BOUNDS)
def test_larger_meshes_and_tori_take_the_steps_of_the_bound(
    text: str, chunks: int, steps: int
) -> None:
    network = network_of(text)
    found = find_best_all_gather(network, STEP_PS, each(network, chunks))
    assert replay_log(found.log, times_of(network), each(network, chunks)) == steps * STEP_PS


@given(connected(), st.integers(1, 3), st.integers(0, 3), st.integers(STEP_PS, 4 * STEP_PS))
@settings(max_examples=60, deadline=None)
def test_any_connected_network_gets_a_valid_schedule_not_below_the_bound(
    topology: Topology, chunks: int, seed: int, arrival_ps: int
) -> None:
    network = LinkNetwork.of(topology)
    origin = each(network, chunks)
    found = find_best_all_gather(
        network, STEP_PS, origin, arrival_ps=arrival_ps, seeds=2, first_seed=seed
    )
    assert checked(found, origin) >= (bound_steps(network, origin) - 1) * STEP_PS + arrival_ps


@given(st.lists(st.integers(0, 5), min_size=1, max_size=9))
@settings(max_examples=20, deadline=None)
def test_chunks_may_start_anywhere(origins: list[int]) -> None:
    network, origin = network_of("mesh:2x3"), np.asarray(origins)
    checked(find_best_all_gather(network, STEP_PS, origin, seeds=1), origin)


@given(st.permutations(range(12)))
@settings(max_examples=20, deadline=None)
def test_renumbering_a_torus_changes_no_bound(numbers: list[int]) -> None:
    topology = parse_topology("torus:3x4")
    number = np.asarray(numbers)
    network = LinkNetwork.of(
        graph(12, list(zip(number[topology.source], number[topology.destination], strict=True)))
    )
    found = find_best_all_gather(network, STEP_PS, each(network, 2), seeds=1)
    assert (
        checked(found, each(network, 2)) - bound_steps(network, each(network, 2)) * STEP_PS
        <= STEP_PS
    )


def test_one_nodes_part_is_moved_to_all_on_a_torus_but_not_on_a_mesh() -> None:
    torus, mesh = network_of("torus:4x4"), network_of("mesh:4x4")
    assert find_best_all_gather(torus, STEP_PS, each(torus, 1)).is_symmetric
    assert not find_best_all_gather(mesh, STEP_PS, each(mesh, 1)).is_symmetric


def test_a_circulant_network_without_dimensions_looks_alike_from_all_nodes() -> None:
    network = LinkNetwork.of(
        graph(10, [(i, (i + step) % 10) for i in range(10) for step in (1, 3)])
    )
    found = find_best_all_gather(network, STEP_PS, each(network, 2))
    assert found.is_symmetric
    assert checked(found, each(network, 2)) == 9 * STEP_PS


def test_a_chunk_goes_on_only_after_its_arrival() -> None:
    network = network_of("line:4")
    found = find_best_all_gather(network, STEP_PS, each(network, 1), arrival_ps=2500)
    assert checked(found, each(network, 1)) >= 3 * 2500


def test_the_result_does_not_depend_on_threads() -> None:
    network = network_of("mesh:4x2x3")
    results = [
        find_best_all_gather(
            network, STEP_PS, each(network, 1), arrival_ps=1300, seeds=6, threads=t
        )
        for t in (1, 2, 5)
    ]
    assert (
        len(
            {
                (found.seed, found.log.log.tobytes(), found.log.carried.tobytes())
                for found in results
            }
        )
        == 1
    )


def test_the_same_seed_gives_the_same_log() -> None:
    network = network_of("mesh:3x4")
    first, second = (all_gather(network, STEP_PS, each(network, 2), 7) for _ in range(2))
    assert np.array_equal(first.log, second.log)
    assert np.array_equal(first.carried, second.carried)


def test_some_nodes_transfers_are_those_of_the_whole_schedule_that_touch_them() -> None:
    network = network_of("mesh:4x4")
    log = all_gather(network, STEP_PS, each(network, 1), 3)
    whole, part = log.schedule(), log.schedule([5, 0])
    touching = np.isin(network.source[whole.link], (5, 0)) | np.isin(
        network.destination[whole.link], (5, 0)
    )
    for column in ("chunk", "link", "start", "finish"):
        assert np.array_equal(getattr(whole, column)[touching], getattr(part, column))


def test_progress_ends_at_one_and_its_exceptions_end_the_work() -> None:
    network = network_of("mesh:3x3")
    seen: list[float] = []
    all_gather(network, STEP_PS, each(network, 1), progress=seen.append)
    assert seen[-1] == 1.0

    def stop(fraction: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        all_gather(network, STEP_PS, each(network, 1), progress=stop)


@pytest.mark.parametrize("threads", [1, 3])
def test_interrupted_search_keeps_the_best_so_far(threads: int) -> None:
    network = network_of("mesh:4x2x3")
    reports: list[float] = []

    def stop_at_the_second(fraction: float, what: str) -> None:
        reports.append(fraction)
        if len(reports) > 1:
            raise KeyboardInterrupt

    found = find_best_all_gather(
        network,
        STEP_PS,
        each(network, 1),
        arrival_ps=1300,
        seeds=9,
        threads=threads,
        progress=stop_at_the_second,
    )
    assert found.is_interrupted
    checked(found, each(network, 1))


def test_disconnected_networks_are_refused_with_the_cut() -> None:
    network = LinkNetwork.of(graph(4, [(0, 1), (1, 0), (1, 2), (2, 3), (3, 2)], "broken"))
    with pytest.raises(
        InputError, match="topology broken: NPU 2 cannot reach NPU 0: no link leaves NPUs 2,3"
    ):
        find_best_all_gather(network, STEP_PS, each(network, 1))


def test_disconnected_networks_that_look_alike_everywhere_are_refused() -> None:
    network = LinkNetwork.of(graph(6, [(i, (i + 2) % 6) for i in range(6)], "broken"))
    with pytest.raises(InputError, match="cannot reach NPU 0: no link leaves NPUs 1,3,5"):
        find_best_all_gather(network, STEP_PS, each(network, 1))


def test_switches_and_impossible_times_are_refused() -> None:
    network, ring = network_of("switch:4"), network_of("ring:4")
    with pytest.raises(InputError, match="without switches"):
        all_gather(network, STEP_PS, each(network, 1))
    with pytest.raises(InputError, match="busy for 1000 ps and deliver after 900 ps"):
        all_gather(ring, STEP_PS, each(ring, 1), arrival_ps=900)


def test_one_npu_has_nothing_to_send() -> None:
    network = network_of("ring:1")
    assert find_best_all_gather(network, STEP_PS, each(network, 3)).log.time_ps == 0


def test_a_schedule_becomes_an_algorithm_that_verifies_and_takes_its_time_in_the_simulator() -> (
    None
):
    topology, size = parse_topology("torus:3x4?bandwidth=50GiB/s&latency=500ns"), 12 << 20
    network, collective = LinkNetwork.of(topology), Collective(CollectiveKind.ALL_GATHER, 12, 24)
    times = network.link_times(size // 24, Occupancy.ALPHA_BETA)
    log = find_best_all_gather(network, int(times.busy[0]), each(network, 2)).log
    algorithm = algorithm_of(
        collective, Chunks.cut(collective, [1, 1]), log.schedule().transfers(times)
    )
    assert hub_core.verify(algorithm).ok
    time_ns = hub_core.simulate(
        algorithm, topology, size, options={"occupancy": "alpha-beta"}
    ).time_ns
    assert time_ns == pytest.approx(log.time_ps / 1000, abs=log.num_steps)


@pytest.mark.parametrize(("text", "chunks"), [("mesh:16x16", 4), ("fully-connected:64", 64)])
def test_memory_is_known_beforehand(text: str, chunks: int) -> None:
    network = network_of(text)
    origin = each(network, chunks)
    log = all_gather(network, STEP_PS, origin)
    taken = log.log.nbytes + log.carried.nbytes
    assert taken < estimate_memory_bytes(network, len(origin)) < 1.5 * taken


def test_several_seeds_take_a_log_per_thread_and_the_best_one() -> None:
    network = network_of("mesh:16x16")
    assert estimate_memory_bytes(network, 1024, seeds=20, threads=2) == 3 * estimate_memory_bytes(
        network, 1024
    )


@pytest.mark.slow
def test_more_than_65536_chunks_have_wider_numbers() -> None:
    network = network_of("mesh:2x2")
    origin = each(network, 16_385)
    log = all_gather(network, STEP_PS, origin)
    assert log.log.dtype == np.uint32
    assert replay_log(log, times_of(network), origin) == bound_steps(network, origin) * STEP_PS


def test_where_latency_dominates_steps_are_not_shorter_than_they_need_be() -> None:
    network = network_of("mesh:3x3")
    found = find_best_all_gather(network, 20, each(network, 1), arrival_ps=500_000)
    assert found.log.lag == 64
    assert checked(found, each(network, 1), 20) < 4.5 * 500_000
