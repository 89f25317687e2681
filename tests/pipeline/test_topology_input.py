"""Topology texts: who builds them, and what is said of one that nobody builds."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hub_core import PluginError, UsageError, discover, parse_topology, read_topology
from hub_core.registry import discovery
from hub_core.registry.discovery import load_core_only

MakePlugin = Callable[..., object]

PAIR = """
@hookimpl
def collhub_topologies():
    return [TopologyBuilder("pair", "two NPUs", f"{__name__}:build", "pair")]

def build(text):
    from hub_core.network import Dimension, DimensionKind, grid
    text.without_argument()
    (constants,) = text.per_dimension(1)
    return grid(text.text, [Dimension(DimensionKind.LINE, 2, *constants)])
"""


@pytest.fixture
def pair(make_plugin: MakePlugin) -> None:
    make_plugin("pairs", PAIR)


@pytest.mark.usefixtures("pair")
def test_a_text_of_an_installed_plugin_is_built() -> None:
    assert parse_topology("pair?bandwidth=1GB/s").bandwidth_bytes_per_s.tolist() == [1e9] * 2
    assert parse_topology("pair", discover()).num_npus == 2
    assert read_topology("pair+pair").num_planes == 2


@pytest.mark.usefixtures("pair")
def test_plugins_are_discovered_once_where_the_text_needs_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = []
    found = discovery.discover()
    monkeypatch.setattr(
        "hub_core.pipeline.inputs.run_registry", lambda: calls.append("discover") or found
    )
    parse_topology("mesh:2x2+ring-switch:2x2")
    assert calls == []
    parse_topology("pair+pair+ring:2")
    assert calls == ["discover"]


def test_an_unknown_name_is_answered_with_the_closest_builder_that_there_is() -> None:
    known = "fc, fully-connected, line, mesh, ring, switch, torus"
    with pytest.raises(UsageError, match=f"unknown topology 'star'; use one of {known}, or a file"):
        parse_topology("star:4", load_core_only())
    with pytest.raises(UsageError, match="unknown topology 'rign'; did you mean 'ring'"):
        parse_topology("rign:4", load_core_only())


def test_an_unknown_name_hints_at_plugins_that_are_not_loaded(make_plugin: MakePlugin) -> None:
    make_plugin("pairs", "raise RuntimeError('no pairs today')" + PAIR)
    with pytest.raises(PluginError, match=r"unknown topology 'pair'; .*no pairs today") as caught:
        parse_topology("pair")
    assert caught.value.diagnostics[0].code == "not-available"
    with pytest.raises(UsageError, match=r"no pairs today.*; did you mean 'ring'\?"):
        parse_topology("rign:4")


def test_a_name_of_two_plugins_is_refused(make_plugin: MakePlugin) -> None:
    make_plugin("one", PAIR)
    make_plugin("other", PAIR)
    with pytest.raises(PluginError, match="both offer a topology builder 'pair'"):
        parse_topology("pair")
