"""The simulator `analytical`: options, costs, results, refusals, and why ranks never finish."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
from astra_calls import simulate_analytically
from collhub_astra_sim.simulating.analytical import NodeTimes, simulate_nodes
from collhub_astra_sim.simulating.simulated_network import TimingModel
from trace_graphs import COMP, Graph, GraphNode

from hub_core import NodeType, parse_topology
from hub_core.model import (
    Algorithm,
    Buffer,
    Collective,
    CollectiveKind,
    CustomContract,
    InputError,
    Severity,
    StepKind,
    StepTable,
    StepTableBuilder,
    UsageError,
)
from hub_core.network import Topology
from hub_core.plugin_api import LinkLoad, OptionValue
from hub_core.testing import ring_all_reduce

GB_PER_S = "bandwidth=1GB/s&latency=10ns"
"""One byte per nanosecond."""


def custom(steps: StepTable, unit_count: int = 1000) -> Algorithm:
    """A timing-only algorithm whose unit is one byte."""
    ranks = steps.num_ranks
    contract = CustomContract(
        np.zeros(ranks, np.int64), np.zeros(ranks, np.int64), np.zeros(ranks, np.bool_)
    )
    collective = Collective(CollectiveKind.CUSTOM, ranks, unit_count, contract=contract)
    return Algorithm(collective, steps, np.zeros(ranks, np.int64), collective_bytes=unit_count)


def one_message(last: StepKind = StepKind.RECV, count: int = 1000, **local: int) -> Algorithm:
    """Rank 0 sends to rank 1, which works on what came if `last` says so."""
    builder = StepTableBuilder(2)
    builder.add(0, StepKind.SEND, peer=1, count=count)
    if last in (StepKind.RECV, StepKind.RECV_REDUCE):
        builder.add(1, last, peer=0, count=count)
    else:
        received = builder.add(1, StepKind.RECV, peer=0, count=count)
        builder.add(1, last, count=count, data=[received], **local)
    return custom(builder.build(), count)


def finish(
    algorithm: Algorithm, topology: str = f"fc:2?{GB_PER_S}", **options: OptionValue
) -> tuple[int | None, ...]:
    return simulate_analytically(
        algorithm, parse_topology(topology), algorithm.collective.unit_count, **options
    ).rank_finish_ns


# --- results ---


def test_a_receive_reduce_starts_with_its_receive_and_ends_with_its_reduction() -> None:
    result = simulate_analytically(
        one_message(StepKind.RECV_REDUCE), parse_topology(f"fc:2?{GB_PER_S}"), 1000
    )
    assert result.step_start_ns is not None
    assert result.step_end_ns is not None
    assert result.step_start_ns.tolist() == [0, 0]
    assert result.step_end_ns.tolist() == [1010, 1011]
    assert result.time_ns == 1011


def test_links_tell_bytes_and_busy_time_the_busiest_first() -> None:
    builder = StepTableBuilder(3)
    builder.add(0, StepKind.SEND, peer=2, count=400)
    builder.add(2, StepKind.RECV, peer=0, count=400)
    builder.add(1, StepKind.SEND, peer=2, count=600)
    builder.add(2, StepKind.RECV, peer=1, count=600)
    algorithm = custom(builder.build())
    result = simulate_analytically(algorithm, parse_topology(f"switch:3?{GB_PER_S}"), 1000)
    assert result.link_loads == (
        LinkLoad(3, 2, 1000, 1000),
        LinkLoad(1, 3, 600, 600),
        LinkLoad(0, 3, 400, 400),
    )


def test_without_congestion_there_are_no_links_to_tell_about() -> None:
    topology = parse_topology(f"fc:2?{GB_PER_S}")
    assert (
        simulate_analytically(
            one_message(), topology, 1000, network="congestion-unaware"
        ).link_loads
        == ()
    )


def test_ranks_without_steps_finish_as_one_comp() -> None:
    assert finish(custom(one_message().steps), f"fc:2?{GB_PER_S}") == (1010, 1010)
    builder = StepTableBuilder(3)
    builder.add(0, StepKind.COMPUTE, duration_ns=5000)
    assert finish(custom(builder.build()), "fc:3") == (5000, 1, 1)


def test_an_algorithm_with_contents_runs_at_any_size() -> None:
    topology = parse_topology("ring:4?bandwidth=1GB/s&latency=0ns")
    assert simulate_analytically(ring_all_reduce(4), topology, 4000).time_ns == 6 * 1000 + 3
    assert simulate_analytically(ring_all_reduce(4), topology, 4001).time_ns == 6 * 1001 + 3


def test_more_npus_than_ranks_are_fine() -> None:
    assert finish(one_message(), f"fc:5?{GB_PER_S}") == (1010, 1010)


def test_inputs_stay_as_they_were() -> None:
    table = Graph(2).table()
    before = [np.array(getattr(table, name)) for name in table.__slots__]
    simulate_nodes(table, parse_topology("fc:2"))
    assert all(
        np.array_equal(old, getattr(table, name))
        for old, name in zip(before, table.__slots__, strict=True)
    )


# --- options ---


def test_alpha_beta_links_stay_busy_for_the_latency_too() -> None:
    builder = StepTableBuilder(2)
    for _ in range(3):
        builder.add(0, StepKind.SEND, peer=1, count=1000)
        builder.add(1, StepKind.RECV, peer=0, count=1000)
    algorithm = custom(builder.build())
    assert finish(algorithm) == (3010, 3010)
    assert finish(algorithm, occupancy="alpha-beta") == (3030, 3030)


@pytest.mark.parametrize(
    ("last", "options", "took"),
    [
        (StepKind.RECV_REDUCE, {}, 1),
        (StepKind.RECV_REDUCE, {"reduce_bandwidth": "10GB/s"}, 100),
        (StepKind.REDUCE, {"reduce_bandwidth": "10GB/s"}, 100),
        (StepKind.REDUCE, {"reduce_bandwidth": "10TB/s"}, 1),
        (StepKind.REDUCE, {"copy_bandwidth": "10GB/s"}, 1),
        (StepKind.COPY, {"copy_bandwidth": "0.3GB/s"}, 3333),
        (StepKind.COMPUTE, {"copy_bandwidth": "1GB/s", "reduce_bandwidth": "1GB/s"}, 1),
    ],
)
def test_local_steps_cost_their_bytes_by_bandwidth_and_at_least_1_ns(
    last: StepKind, options: dict[str, OptionValue], took: int
) -> None:
    assert finish(one_message(last), **options) == (1010, 1010 + took)


def test_a_stated_duration_beats_a_bandwidth() -> None:
    assert finish(one_message(StepKind.REDUCE, duration_ns=7000), reduce_bandwidth="1GB/s") == (
        1010,
        8010,
    )


def test_without_congestion_an_irregular_network_adds_latencies_and_takes_the_least_bandwidth() -> (
    None
):
    links = [(0, 2, 4e9, 5e-9), (2, 1, 2e9, 7e-9), (1, 0, 1e9, 0.0)]
    columns = [np.asarray(column) for column in zip(*links, strict=True)]
    topology = Topology("by hand", 2, 3, *columns)
    result = simulate_analytically(one_message(), topology, 1000, network="congestion-unaware")
    assert result.rank_finish_ns == (512, 512)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"network": "aware"}, "'aware' is not one of congestion-aware, congestion-unaware"),
        ({"occupancy": "beta"}, "'beta' is not one of serialization, alpha-beta"),
        ({"reduce_bandwidth": "200"}, "'200' is not a bandwidth with a unit"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, OptionValue], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        finish(one_message(), **options)


def test_a_small_simulation_imports_no_compiler() -> None:
    script = (
        "import sys; from hub_core import parse_topology, simulate; "
        "from hub_core.testing import ring_all_reduce; "
        "simulate(ring_all_reduce(4), parse_topology('ring:4'), 4096); "
        "sys.exit(bool({'numba', 'llvmlite', 'highspy'} & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


# --- refusals ---


def test_a_topology_needs_an_npu_per_rank() -> None:
    with pytest.raises(InputError, match="fc:2 has 2 NPUs, the algorithm has 4 ranks"):
        simulate_analytically(ring_all_reduce(4), parse_topology("fc:2"), 1000)


def test_ranks_that_talk_need_a_path() -> None:
    one_way = Topology(
        "one-way", 2, 2, np.asarray([1]), np.asarray([0]), np.asarray([1e9]), np.asarray([0.0])
    )
    for network in ("congestion-aware", "congestion-unaware"):
        with pytest.raises(InputError, match="no path from 0 to 1"):
            simulate_analytically(one_message(), one_way, 1000, network=network)


def test_a_trace_of_bytes_has_one_size() -> None:
    with pytest.raises(InputError, match="for a size of 1000 bytes in all, not 2000"):
        simulate_analytically(one_message(), parse_topology("fc:2"), 2000)


def test_a_size_is_at_least_one_byte() -> None:
    with pytest.raises(UsageError, match="a collective of 0 bytes"):
        simulate_analytically(ring_all_reduce(2), parse_topology("fc:2"), 0)


@pytest.mark.parametrize(
    ("node", "code"),
    [
        (GraphNode(0, NodeType.COMM_SEND, 0, 10), "self-message"),
        (GraphNode(0, NodeType.COMM_RECV, 7, 10), "peer-range"),
        (GraphNode(0, NodeType.COMM_SEND, 1, -10), "negative-size"),
    ],
)
def test_impossible_messages_are_refused_by_place(node: GraphNode, code: str) -> None:
    graph = Graph(2)
    graph.add(0, node)
    with pytest.raises(InputError) as caught:
        simulate_nodes(graph.table(), parse_topology("fc:2"))
    finding = caught.value.diagnostics[0]
    assert (finding.code, finding.location.rank, finding.location.step) == (code, 0, 0)


@pytest.mark.parametrize(
    ("size", "chosen"),
    [(1 << 60, "bandwidth=1B/s&latency=0ns"), (1 << 61, "bandwidth=1GB/s&latency=0ns")],
)
def test_times_that_do_not_fit_are_refused(size: int, chosen: str) -> None:
    graph = Graph(2)
    for tag in range(2):
        graph.send(0, 1, size, tag)
    with pytest.raises(InputError, match="146 years"):
        simulate_nodes(graph.table(), parse_topology(f"fc:2?{chosen}"))


# --- ranks that never finish ---


def stuck(build: Callable[[Graph], object], num_ranks: int = 2) -> NodeTimes:
    graph = Graph(num_ranks)
    build(graph)
    return simulate_nodes(graph.table(), parse_topology(f"fc:{num_ranks}?{GB_PER_S}"))


def send_and_receive(sends: dict[str, int], receives: dict[str, int]) -> Callable[[Graph], object]:
    return lambda graph: (graph.send(0, 1, **sends), graph.recv(1, 0, **receives))


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (lambda graph: graph.recv(1, 0, 500), "which rank 0 never sends"),
        (
            send_and_receive({"size": 400}, {"size": 500}),
            "which rank 0 sends with 400 bytes (step 0 of rank 0)",
        ),
        (
            send_and_receive({"size": 500, "tag": 4}, {"size": 500}),
            "which rank 0 sends with tag 4 (step 0 of rank 0)",
        ),
    ],
)
def test_a_receive_without_its_message_is_named_with_what_comes_close(
    build: Callable[[Graph], object], reason: str
) -> None:
    times = stuck(build)
    assert times.rank_finish_ns[0] is not None
    assert times.rank_finish_ns[1] is None
    (finding,) = times.diagnostics
    assert (finding.code, finding.location.rank, finding.location.step) == ("never-finishes", 1, 0)
    assert (
        finding.message
        == "rank 1 never finishes: it waits for a message of 500 bytes with tag 0 from rank 0, "
        f"{reason}"
    )


def test_too_few_messages_are_named_as_such() -> None:
    times = stuck(
        lambda graph: (graph.send(0, 1, 500), graph.recv(1, 0, 500), graph.recv(1, 0, 500))
    )
    assert "rank 0 sends less often than it is received" in times.diagnostics[0].message


def test_a_deadlock_is_named_step_by_step() -> None:
    def build(graph: Graph) -> None:
        for here, there in ((0, 1), (1, 0)):
            graph.comp(here)
            graph.send(here, there, 500, 0, [graph.comp(here, 0, [graph.recv(here, there, 500)])])

    times = stuck(build)
    assert [str(finding) for finding in times.diagnostics] == [
        f"rank {here}, step 1: rank {here} never finishes: "
        f"it waits for a message of 500 bytes with tag 0 from rank {there}, but "
        f"step 3 of rank {there} that sends it never starts: "
        f"it waits for step 1 of rank {there} (2 steps after it never start)"
        for here, there in ((0, 1), (1, 0))
    ]


def test_steps_of_an_algorithm_are_named_by_their_numbers_there() -> None:
    builder = StepTableBuilder(2)
    builder.add(1, StepKind.RECV_REDUCE, peer=0, count=500, dst_buffer=Buffer.UNKNOWN)
    builder.add(1, StepKind.RECV, peer=0, count=1000)
    builder.add(0, StepKind.SEND, peer=1, count=500)
    result = simulate_analytically(
        custom(builder.build()), parse_topology(f"fc:2?{GB_PER_S}"), 1000
    )
    assert result.rank_finish_ns == (510, None)
    assert result.time_ns is None
    assert (result.diagnostics[0].location.rank, result.diagnostics[0].location.step) == (1, 1)
    assert result.step_end_ns is not None
    assert result.step_end_ns.tolist() == [510, 511, -1]


def test_a_node_of_a_foreign_type_holds_its_rank_for_ever() -> None:
    times = stuck(lambda graph: graph.add(0, GraphNode(0, NodeType.COMM_COLL)))
    assert times.rank_finish_ns == (None, 1)
    assert "a node of type COMM_COLL has no place in an algorithm" in times.diagnostics[0].message


def test_a_rank_that_is_one_cycle_never_starts() -> None:
    times = stuck(
        lambda graph: [
            graph.add(0, GraphNode(place, COMP, data=(1 - place,))) for place in range(2)
        ]
    )
    assert times.rank_finish_ns == (None, 1)
    assert "every step waits for another one" in times.diagnostics[0].message


def test_a_cycle_beside_other_work_is_skipped_with_a_warning() -> None:
    """As ASTRA-sim does: the rank counts as finished."""
    times = stuck(lambda graph: (graph.comp(0, 5), graph.add(0, GraphNode(1, COMP, data=(1,)))))
    assert times.rank_finish_ns == (5000, 1)
    (finding,) = times.diagnostics
    assert (finding.code, finding.severity) == ("cyclic-dependencies", Severity.WARNING)


# --- where ASTRA-sim itself would stop ---


@pytest.mark.parametrize(
    ("topology", "size", "aborts"),
    [
        ("fc:3?bandwidth=50GiB/s", 53, True),
        ("fc:3?bandwidth=50GiB/s", 54, False),
        # ASTRA-sim has no meshes, so there is nothing to warn about.
        ("mesh:3?bandwidth=50GiB/s", 53, False),
    ],
)
def test_a_start_that_aborts_astra_sim_is_warned_about(
    topology: str, size: int, aborts: bool
) -> None:
    graph = Graph(3)
    graph.send(0, 1, size)
    graph.recv(1, 0, size)
    times = simulate_nodes(graph.table(), parse_topology(topology))
    assert [finding.code for finding in times.diagnostics] == ["astra-sim-aborts"] * aborts


def test_without_congestion_only_a_message_of_no_time_aborts() -> None:
    graph = Graph(3)
    graph.send(0, 1, 1)
    graph.recv(1, 0, 1)
    unaware = TimingModel(is_congestion_aware=False)
    assert simulate_nodes(graph.table(), parse_topology("fc:3"), unaware).diagnostics == ()
    (finding,) = simulate_nodes(
        graph.table(), parse_topology("fc:3?latency=0ns"), unaware
    ).diagnostics
    assert (finding.code, finding.severity) == ("astra-sim-aborts", Severity.WARNING)
