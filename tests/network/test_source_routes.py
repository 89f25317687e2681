"""Routes from few sources are those of a search per destination."""

from __future__ import annotations

import numpy as np
import pytest

import hub_core
from hub_core import InputError
from hub_core.network import routes as routes_module
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


def test_a_pair_without_a_path_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    links = Links.uniform(np.asarray([0, 1]), np.asarray([1, 2]), 1e9, 1e-6)
    topology = links.topology("apart", 4, 4)
    monkeypatch.setattr(routes_module, "_DESTINATIONS_PER_SOURCE", 0)
    with pytest.raises(InputError, match="no path from 0 to 3"):
        topology.routes(np.zeros(3, np.int64), np.arange(1, 4))
