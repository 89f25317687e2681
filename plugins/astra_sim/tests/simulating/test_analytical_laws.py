"""Laws of the analytical model: closed forms, agreement with a plain implementation, symmetry."""

from __future__ import annotations

from math import log2, trunc

import numpy as np
import pytest
import trace_graphs as graphs
from collhub_astra_sim.simulating.analytical import simulate_nodes
from collhub_astra_sim.simulating.simulated_network import TimingModel
from hypothesis import given, settings
from hypothesis import strategies as st
from spec_simulator import SpecSimulator
from trace_graphs import COMP, RECV, SEND, Graph, GraphNode

from hub_core import parse_topology
from hub_core.network import Occupancy, Topology

# Bytes per ns; the name is the text that gives this bandwidth exactly.
BANDWIDTHS = {"50GiB/s": 50 * 2**30 / 1e9, "46.5GiB/s": 46.5 * 2**30 / 1e9, "12.5GB/s": 12.5}
LATENCIES = (0.0, 1.0, 30.5, 500.0, 936.25)


def finish(graph: Graph, topology: Topology, model: TimingModel | None = None) -> list[int | None]:
    return list(simulate_nodes(graph.table(), topology, model).rank_finish_ns)


# --- closed forms ---

sizes = st.integers(1, 1 << 24)
constants = st.tuples(st.sampled_from(sorted(BANDWIDTHS)), st.sampled_from(LATENCIES))


def build(shape: str, chosen: tuple[str, float]) -> Topology:
    return parse_topology(f"{shape}?bandwidth={chosen[0]}&latency={chosen[1]}ns")


def ser(size: int, chosen: tuple[str, float]) -> int:
    return trunc(size / BANDWIDTHS[chosen[0]])


def comm(size: int, chosen: tuple[str, float]) -> int:
    return trunc(chosen[1] + size / BANDWIDTHS[chosen[0]])


@given(sizes, st.integers(1, 6), constants)
def test_a_message_pays_every_hop_in_full(size: int, hops: int, chosen: tuple[str, float]) -> None:
    graph = Graph(7)
    graph.send(0, hops, size)
    graph.recv(hops, 0, size)
    assert finish(graph, build("line:7", chosen))[hops] == hops * comm(size, chosen)


@given(sizes, st.integers(1, 12), constants)
def test_messages_on_one_link_arrive_one_serialization_apart(
    size: int, count: int, chosen: tuple[str, float]
) -> None:
    graph = Graph(2)
    for tag in range(count):
        graph.send(0, 1, size, tag)
        graph.recv(1, 0, size, tag)
    table = graph.table()
    ends = simulate_nodes(table, build("fc:2", chosen)).end_ns[table.type == SEND]
    assert sorted(ends) == [i * ser(size, chosen) + comm(size, chosen) for i in range(count)]


@given(sizes, st.integers(2, 6), st.integers(1, 8), constants)
def test_a_pipeline_fills_once(
    size: int, ranks: int, messages: int, chosen: tuple[str, float]
) -> None:
    graph = Graph(ranks)
    for tag in range(messages):
        graph.send(0, 1, size, tag)
        for r in range(1, ranks):
            received = graph.recv(r, r - 1, size, tag)
            if r < ranks - 1:
                graph.send(r, r + 1, size, tag, [received])
    expected = (ranks - 1) * comm(size, chosen) + (messages - 1) * ser(size, chosen)
    assert finish(graph, build(f"line:{ranks}", chosen))[-1] == expected


@pytest.mark.once
@pytest.mark.parametrize("n", [2, 4, 8])
@given(size=sizes, chosen=constants)
@settings(max_examples=20)
def test_closed_forms_of_collectives(n: int, size: int, chosen: tuple[str, float]) -> None:
    message, total = comm(size, chosen), n * size
    ring = 2 * (n - 1) * message + (n - 1)
    assert finish(graphs.ring_all_reduce(n, total), build(f"ring:{n}", chosen)) == [ring] * n
    assert (
        finish(graphs.ring_all_gather(n, size), build(f"ring:{n}", chosen))
        == [(n - 1) * message] * n
    )
    halves = 2 * sum(comm(total >> k, chosen) for k in range(1, n.bit_length())) + int(log2(n))
    assert finish(graphs.halving_doubling(n, total), build(f"fc:{n}", chosen)) == [halves] * n
    assert finish(graphs.direct_all_to_all(n, size), build(f"fc:{n}", chosen)) == [message] * n
    star = 2 * message + (n - 2) * ser(size, chosen)
    assert finish(graphs.direct_all_to_all(n, size), build(f"switch:{n}", chosen)) == [star] * n


# --- against the plain implementation ---


@st.composite
def random_graphs(draw: st.DrawFn, num_ranks: int) -> Graph:
    """Graphs with tags used again, ids far apart, any order, and dependencies of both sorts."""
    spread = draw(st.sampled_from([1, 13, 29, 1 << 40]))
    nodes: list[list[GraphNode]] = [[] for _ in range(num_ranks)]

    def add(rank: int, node: GraphNode) -> None:
        earlier = [other.identity for other in nodes[rank]]
        parents = draw(st.lists(st.sampled_from(earlier), max_size=3)) if earlier else []
        cut = draw(st.integers(0, len(parents)))
        data, control = tuple(parents[:cut]), tuple(parents[cut:])
        nodes[rank].append(
            node._replace(identity=len(earlier) * spread, data=data, control=control)
        )

    for _ in range(draw(st.integers(1, 30))):
        source, destination = draw(st.permutations(range(num_ranks)))[:2]
        size, tag = draw(st.sampled_from([4096, 65536, 777777])), draw(st.integers(0, 2))
        if draw(st.booleans()):
            add(source, GraphNode(0, COMP, duration_ns=draw(st.sampled_from([0, 1000, 3000]))))
        add(source, GraphNode(0, SEND, destination, size, tag))
        add(destination, GraphNode(0, RECV, source, size, tag))
    graph = Graph(num_ranks)
    graph.ranks = [draw(st.permutations(rank)) if draw(st.booleans()) else rank for rank in nodes]
    return graph


@st.composite
def random_topologies(draw: st.DrawFn, num_npus: int) -> Topology:
    """Connected link lists with switches and links of different speeds."""
    nodes = num_npus + draw(st.integers(0, 2))
    pairs = {(a, (a + 1) % nodes) for a in range(nodes)}
    pairs |= set(
        draw(
            st.lists(
                st.tuples(*[st.integers(0, nodes - 1)] * 2).filter(lambda p: p[0] != p[1]),
                max_size=8,
            )
        )
    )
    ends = draw(st.permutations(sorted(pairs)))
    # Equal links make many things happen in the same instant, unequal ones few.
    kinds = draw(st.integers(1, 3))
    values = st.lists(
        st.sampled_from(sorted(BANDWIDTHS.values())[:kinds]), min_size=len(ends), max_size=len(ends)
    )
    delays = st.lists(st.sampled_from(LATENCIES[-kinds:]), min_size=len(ends), max_size=len(ends))
    return Topology(
        "random",
        num_npus,
        nodes,
        np.asarray([a for a, _ in ends], np.int64),
        np.asarray([b for _, b in ends], np.int64),
        np.asarray(draw(values)) * 1e9,
        np.asarray(draw(delays)) * 1e-9,
    )


def links_of(topology: Topology) -> dict[tuple[int, int], tuple[float, float]]:
    return {
        (link.source, link.destination): (
            link.bandwidth_bytes_per_s / 1e9,
            round(link.latency_s * 1e9, 6),
        )
        for link in topology.links()
    }


def nodes_on_route(topology: Topology, source: int, destination: int) -> list[int]:
    """The route that the simulator takes; which one that is, the tests of the topology check."""
    links = topology.routes(np.asarray([source]), np.asarray([destination])).links
    return [source, *topology.destination[links].tolist()]


@given(st.data(), st.integers(2, 6), st.sampled_from(Occupancy))
@settings(max_examples=50, deadline=None)
def test_kernel_and_plain_implementation_agree_on_any_links(
    data: st.DataObject, ranks: int, occupancy: Occupancy
) -> None:
    graph, topology = data.draw(random_graphs(ranks)), data.draw(random_topologies(ranks))
    alpha_beta = occupancy is Occupancy.ALPHA_BETA
    plain = SpecSimulator(
        graph,
        links_of(topology),
        lambda a, b: nodes_on_route(topology, a, b),
        is_alpha_beta=alpha_beta,
    )
    assert finish(graph, topology, TimingModel(occupancy=occupancy)) == plain.run()


@given(st.data(), st.integers(3, 6), st.sampled_from(["ring", "fc", "switch"]), constants)
@settings(max_examples=50, deadline=None)
def test_kernel_and_plain_implementation_agree_without_congestion(
    data: st.DataObject, ranks: int, shape: str, chosen: tuple[str, float]
) -> None:
    graph = data.draw(random_graphs(ranks))

    def private(a: int, b: int) -> tuple[float, float]:
        hops = {"ring": min((a - b) % ranks, (b - a) % ranks), "fc": 1, "switch": 2}[shape]
        return BANDWIDTHS[chosen[0]], hops * chosen[1]

    plain = SpecSimulator(graph, {}, lambda a, b: [], private)
    assert (
        finish(graph, build(f"{shape}:{ranks}", chosen), TimingModel(is_congestion_aware=False))
        == plain.run()
    )


@given(st.data(), st.sampled_from([14, 20, 40, 70]), st.sampled_from([0, 1, 20, 40]))
@settings(max_examples=60, deadline=None)
def test_kernel_and_plain_implementation_agree_on_many_nodes_at_once(
    data: st.DataObject, count: int, roots: int
) -> None:
    """Beyond 13 nodes that are free together, hash sets scramble their order.

    A set that grew once stays large.
    """
    identities = data.draw(
        st.lists(st.integers(0, 1 << 63), min_size=count, max_size=count, unique=True)
    )
    soon, late = max(identities) + 1, max(identities) + 2
    graph = graphs.equal_sends(identities)
    choices = data.draw(
        st.sampled_from([[(), (soon,), (soon, late)], [(soon,), (late,)], [(soon,), (soon, late)]])
    )
    waits = data.draw(st.lists(st.sampled_from(choices), min_size=count, max_size=count))
    sends = [
        node._replace(data=parents) for node, parents in zip(graph.ranks[0], waits, strict=True)
    ]
    others = [GraphNode(soon, COMP), GraphNode(late, COMP, duration_ns=1000)]
    others += [GraphNode(late + 1 + place, COMP) for place in range(roots)]
    graph.ranks[0] = data.draw(st.permutations(sends + others))
    # When one of the receives ends is seen in the time at which rank 1 ends.
    chosen = data.draw(st.sampled_from(graph.ranks[1])).identity
    graph.ranks[1].append(GraphNode(count, COMP, duration_ns=10**9, data=(chosen,)))
    topology = build("fc:2", ("50GiB/s", 500.0))
    plain = SpecSimulator(graph, links_of(topology), lambda a, b: [a, b]).run()
    assert finish(graph, topology) == plain


# --- symmetry ---


@given(st.data(), st.integers(3, 6), st.sampled_from(["ring", "fc", "switch"]))
@settings(max_examples=40, deadline=None)
def test_turning_a_symmetric_network_turns_the_times(
    data: st.DataObject, ranks: int, shape: str
) -> None:
    """Each rank sends alone here.

    Messages of different ranks that meet at a link in the same instant could change places.
    """
    graph = Graph(ranks)
    previous: list[int] = []
    here = 0
    for tag in range(data.draw(st.integers(1, 12))):
        there = data.draw(st.sampled_from([r for r in range(ranks) if r != here]))
        graph.send(here, there, data.draw(sizes), tag, previous)
        size = graph.ranks[here][-1].size
        previous = [graph.recv(there, here, size, tag)]
        here = there
    turn = data.draw(st.integers(1, ranks - 1))
    turned = Graph(ranks)
    for rank, nodes in enumerate(graph.complete().ranks):
        turned.ranks[(rank + turn) % ranks] = [
            node._replace(peer=(node.peer + turn) % ranks) for node in nodes
        ]
    topology = build(f"{shape}:{ranks}", ("50GiB/s", 500.0))
    times = finish(graph, topology)
    assert finish(turned, topology) == [times[(rank - turn) % ranks] for rank in range(ranks)]
