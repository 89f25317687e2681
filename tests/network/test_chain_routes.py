"""Routes on rings and lines need no search, and are those of a search."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import hub_core
from hub_core import InputError
from hub_core.columns import Arcs
from hub_core.network import Topology, source_routes
from hub_core.network import routes as routes_module


def _shuffled(text: str, seed: int) -> Topology:
    """A network with other numbers of its NPUs, parallel links, and another order of its links."""
    topology = hub_core.parse_topology(text)
    random = np.random.default_rng(seed)
    number = random.permutation(topology.num_npus)
    rows = random.permutation(np.repeat(np.arange(topology.num_links), 2))
    columns = ("bandwidth_bytes_per_s", "latency_s", "plane")
    return replace(
        topology,
        source=number[topology.source[rows]],
        destination=number[topology.destination[rows]],
        dimensions=(),
        **{name: getattr(topology, name)[rows] for name in columns},
    )


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("text", ["ring:3", "ring:7", "ring:10", "mesh:2", "mesh:9"])
def test_routes_on_a_chain_are_those_of_a_search(
    text: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    topology = _shuffled(text, seed)
    size = topology.num_npus
    pairs = np.repeat(np.arange(size), size), np.tile(np.arange(size), size)
    routes = topology.routes(*pairs)
    monkeypatch.setattr(routes_module, "find_chain", lambda *_: None)
    expected = topology.routes(*pairs)
    assert np.array_equal(routes.indptr, expected.indptr)
    assert np.array_equal(routes.links, expected.links)


def test_a_chain_needs_no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a ring of 100000 NPUs each search took seconds, and one was made for ten sources."""
    monkeypatch.delattr(Arcs, "hops")
    topology = hub_core.parse_topology("ring:100000")
    npus = np.arange(100_000)
    assert len(topology.routes(npus, (npus + 3) % 100_000).links) == 300_000


def test_two_rings_are_no_chain() -> None:
    """Only a network of one ring or line is one; others are searched."""
    ring = hub_core.parse_topology("ring:4")
    ends = (np.concatenate([column, column + 4]) for column in (ring.source, ring.destination))
    columns = (np.tile(column, 2) for column in (ring.bandwidth_bytes_per_s, ring.latency_s))
    pair = Topology("two rings", 8, 8, *ends, *columns)
    assert pair.routes(np.asarray([0]), np.asarray([2])).indptr.tolist() == [0, 2]
    with pytest.raises(InputError, match="no path from 0 to 6"):
        pair.routes(np.asarray([0]), np.asarray([6]))


@pytest.mark.parametrize("text", ["ring:9", "torus:3x3", "switch:9"])
def test_routes_of_too_many_links_are_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    topology = hub_core.parse_topology(text)
    monkeypatch.setattr(source_routes, "_MAX_LINKS", 5)
    with pytest.raises(InputError, match=r"links or more, which are too many \(limit 5\)") as info:
        topology.routes(np.zeros(8, np.int64), np.arange(1, 9))
    assert info.value.diagnostics[0].code == "too-large"
    assert len(topology.routes(np.zeros(1, np.int64), np.arange(4, 5)).links) <= 4


@pytest.mark.parametrize("destinations_per_source", [0, 100])
def test_searches_of_too_many_rounds_are_refused(
    destinations_per_source: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    topology = hub_core.parse_topology("torus:2x64")
    monkeypatch.setattr(routes_module, "_DESTINATIONS_PER_SOURCE", destinations_per_source)
    monkeypatch.setattr(routes_module, "SEARCH_CELLS", 1)
    monkeypatch.setattr(source_routes, "SEARCH_CELLS", 1)
    monkeypatch.setattr(source_routes, "_MAX_ROUNDS", 300)
    sources = np.arange(20)
    with pytest.raises(InputError, match=r"takes about \d+ rounds, which are too many") as info:
        topology.routes(sources, sources + 20)
    assert info.value.diagnostics[0].code == "too-large"
    assert len(topology.routes(sources[:1], sources[:1] + 20).links) == 10
