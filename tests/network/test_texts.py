from __future__ import annotations

import numpy as np
import pytest

from hub_core import parse_topology
from hub_core.model import UsageError
from hub_core.network import (
    Dimension,
    DimensionKind,
    Topology,
    TopologyText,
    build_topology,
    grid,
)
from hub_core.plugin_api import TopologyBuilder, resolve
from hub_core.registry.discovery import load_core_only

BUILDERS = [one.offer for one in load_core_only().all(TopologyBuilder)]


@pytest.mark.parametrize("builder", BUILDERS, ids=lambda builder: builder.name)
def test_every_own_builder_takes_its_example(builder):
    assert builder.name == builder.example.partition(":")[0]
    assert builder.description
    by_reference = build_topology(builder.example, {builder.name: resolve(builder.build)}.get)
    assert np.array_equal(by_reference.source, parse_topology(builder.example).source)


def pair(text: TopologyText) -> Topology:
    """`pair`: two NPUs."""
    text.without_argument()
    (constants,) = text.per_dimension(1)
    return grid(text.text, [Dimension(DimensionKind.LINE, 2, *constants)])


def test_a_foreign_builder_gets_products_planes_and_subsets_for_nothing():
    builders = {"pair": pair}.get
    assert (
        build_topology("pair?bandwidth=1GB/s", builders).bandwidth_bytes_per_s.tolist() == [1e9] * 2
    )
    assert build_topology("pair?npus=1", builders).num_npus == 1
    assert build_topology("pair+pair", builders).num_planes == 2
    assert build_topology("ring:3*line:2", builders).num_npus == 6


def test_a_text_is_parsed_to_quantities():
    text = TopologyText("mesh:2x3?latency=1us&bandwidth=1GB/s,2GB/s&npus=0-2")
    assert (text.name, text.argument, text.npus) == ("mesh", "2x3", (0, 1, 2))
    assert text.text == "mesh:2x3?latency=1us&bandwidth=1GB/s,2GB/s"
    assert text.sizes() == (2, 3)
    assert text.per_dimension(2) == [(1e9, 1e-6), (2e9, 1e-6)]
    with pytest.raises(UsageError, match="2 bandwidths for 3 dimensions; state one value, or 3"):
        text.per_dimension(3)
