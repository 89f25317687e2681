from __future__ import annotations

import numpy as np
import pytest

from hub_core.model import UsageError
from hub_core.network import (
    OWN_BUILDERS,
    Dimension,
    DimensionKind,
    Topology,
    TopologyText,
    build_topology,
    grid,
    parse_topology,
)


@pytest.mark.parametrize("name", OWN_BUILDERS)
def test_every_own_builder_takes_its_example(name):
    own = OWN_BUILDERS[name]
    assert own.name == name == own.example.partition(":")[0]
    assert own.description
    by_reference = build_topology(own.example, {name: own.load()})
    assert np.array_equal(by_reference.source, parse_topology(own.example).source)


def pair(text: TopologyText) -> Topology:
    """`pair`: two NPUs."""
    text.without_argument()
    (constants,) = text.per_dimension(1)
    return grid(text.text, [Dimension(DimensionKind.LINE, 2, *constants)])


def test_a_foreign_builder_gets_products_planes_and_subsets_for_nothing():
    builders = {"pair": pair}
    assert (
        build_topology("pair?bandwidth=1GB/s", builders).bandwidth_bytes_per_s.tolist() == [1e9] * 2
    )
    assert build_topology("pair?npus=1", builders).num_npus == 1
    assert build_topology("pair+pair", builders).num_planes == 2
    assert build_topology("ring:3*line:2", builders).num_npus == 6


def test_an_unknown_name_is_answered_with_the_closest_builder_that_there_is():
    with pytest.raises(UsageError, match="unknown topology 'ring'; use one of pair, or a file"):
        build_topology("ring:4", {"pair": pair})
    with pytest.raises(UsageError, match="did you mean 'pair'"):
        build_topology("pari", {"pair": pair})


def test_a_text_is_parsed_to_quantities():
    text = TopologyText("mesh:2x3?latency=1us&bandwidth=1GB/s,2GB/s&npus=0-2")
    assert (text.name, text.argument, text.npus) == ("mesh", "2x3", (0, 1, 2))
    assert text.text == "mesh:2x3?latency=1us&bandwidth=1GB/s,2GB/s"
    assert text.sizes() == (2, 3)
    assert text.per_dimension(2) == [(1e9, 1e-6), (2e9, 1e-6)]
    with pytest.raises(UsageError, match="2 bandwidths for 3 dimensions; state one value, or 3"):
        text.per_dimension(3)
