"""Every installed reader times every installed writer: formats that come later join by themselves."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from hub_core import discover
from hub_core.model import InputError
from hub_core.network import Links
from hub_core.plugin_api import FormatReader, FormatWriter, TopologyReader, TopologyWriter
from hub_core.testing import (
    Outcome,
    conversions,
    uneven_all_gather,
    uneven_all_to_all,
    validate_all,
)
from hub_core.testing.checked_plugin import render

pytestmark = pytest.mark.needs_plugins

REGISTRY = discover()
READ = sorted(
    {
        one.name
        for kind in (FormatReader, TopologyReader)
        for one in REGISTRY.all(kind)
        if not getattr(one.offer, "executes_source", False)
    }
)
# Two NPUs and a cable of 400 Gbit/s and 500 ns, as people of each field write it.
INFRAGRAPH = b"""\
infrastructure:
  devices:
  - name: npu
    components: [{name: xpu, count: 1, choice: xpu}]
  links:
  - name: cable
    physical:
      bandwidth: {choice: gigabits_per_second, gigabits_per_second: 400}
      latency: {choice: us, us: 0.5}
  instances: [{name: npu, device: npu, count: 2}]
  edges:
  - ep1: {instance: "npu[0]", component: xpu}
    ep2: {instance: "npu[1]", component: xpu}
    scheme: one2one
    link: cable
annotations:
  graph: [{attribute: collhub-exact, value: "1"}]
"""
NS3 = b"2 0 1\n\n0 1 400Gbps 500ns 0\n"


@pytest.mark.parametrize("name", READ)
def test_whatever_is_read_comes_back_from_every_format_but_for_losses(name) -> None:
    table = [one for one in conversions(REGISTRY, [name]) if one.read == name]
    assert [str(one) for one in table if one.outcome is Outcome.WRONG] == []


@pytest.mark.parametrize("build", [uneven_all_gather, uneven_all_to_all])
def test_uneven_collectives_are_written_or_refused_in_one_line(build) -> None:
    written, refusals = {}, []
    for writer in REGISTRY.all(FormatWriter):
        try:
            written[writer.name] = render(writer.offer, build(4))
        except InputError as error:
            refusals.append(error)
    assert {"chakra", "json", "nccl"} <= set(written)
    assert not [error for error in refusals if "\n" in str(error)]
    for name in {"mscclpp", "goal"} & set(written):
        assert "contract" in " ".join(loss.feature for loss in written[name].losses)


def test_one_cable_is_the_same_network_in_every_format() -> None:
    ends = np.asarray([0, 1])
    pair = Links.uniform(ends, 1 - ends, 50e9, 5e-7).topology("pair", 2, 2)
    texts = {"infragraph": INFRAGRAPH, "ns3": NS3}
    expected = {"ns3": NS3, "infragraph": None, "topology-json": None}
    validate_all(pair, read=texts, write=expected, registry=REGISTRY)


@pytest.mark.once
def test_every_writer_takes_part() -> None:
    table = list(conversions(REGISTRY))
    writers = {one.name for kind in (FormatWriter, TopologyWriter) for one in REGISTRY.all(kind)}
    assert writers <= {one.written for one in table}
    # Some pairs are refused, with a reason; a format that refuses everything would go unseen.
    taken = Counter(one.written for one in table if one.outcome is not Outcome.REFUSED)
    assert writers - taken.keys() <= {"htsim"}
