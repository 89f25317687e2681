"""Routes from few sources are those of a search per destination."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

import hub_core
from hub_core import InputError
from hub_core.columns import Arcs, Int64Array
from hub_core.network import routes as routes_module
from hub_core.network import source_routes
from hub_core.network.links import Links


@pytest.mark.parametrize(
    "text",
    [
        "torus:6x5x4",
        "mesh:5x7",
        *(
            pytest.param(text, marks=pytest.mark.needs_plugins)
            for text in ("fat-tree:8", "rail:6x8", "leaf-spine:8,4,4", "hypercube:5")
        ),
    ],
)
def test_routes_from_a_source_are_those_to_every_destination(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topology = hub_core.parse_topology(text)
    npus = topology.num_npus
    sources = np.repeat([0, npus // 2, npus - 1], npus)
    destinations = np.tile(np.arange(npus), 3)
    results = []
    for destinations_per_source in (0, npus):
        monkeypatch.setattr(routes_module, "_DESTINATIONS_PER_SOURCE", destinations_per_source)
        results.append(topology.routes(sources, destinations))
    assert np.array_equal(results[0].indptr, results[1].indptr)
    assert np.array_equal(results[0].links, results[1].links)


def test_memory_limits_the_sources_that_are_searched_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Batches of one source and pairs have the routes of a search of all sources at once."""
    topology = hub_core.parse_topology("torus:4x4")
    # The pairs of a source are not consecutive.
    sources, destinations = np.tile(np.asarray([7, 0, 2]), 16), np.repeat(np.arange(16), 3)
    expected = topology.routes(sources, destinations)
    searched = []
    hops = Arcs.hops

    def record_hops(arcs: Arcs, starts: Int64Array) -> npt.NDArray[np.int32]:
        searched.append(len(starts))
        return hops(arcs, starts)

    monkeypatch.setattr(Arcs, "hops", record_hops)
    monkeypatch.setattr(routes_module, "_DESTINATIONS_PER_SOURCE", 0)
    monkeypatch.setattr(source_routes, "SEARCH_CELLS", 2 * topology.num_nodes)
    monkeypatch.setattr(source_routes, "_PAIRS_AT_ONCE", 5)
    routes = topology.routes(sources, destinations)
    assert searched == [2, 1]
    assert np.array_equal(routes.indptr, expected.indptr)
    assert np.array_equal(routes.links, expected.links)


def test_a_pair_without_a_path_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    links = Links.uniform(np.asarray([0, 1]), np.asarray([1, 2]), 1e9, 1e-6)
    topology = links.topology("apart", 4, 4)
    monkeypatch.setattr(routes_module, "_DESTINATIONS_PER_SOURCE", 0)
    with pytest.raises(InputError, match="no path from 0 to 3"):
        topology.routes(np.zeros(3, np.int64), np.arange(1, 4))
