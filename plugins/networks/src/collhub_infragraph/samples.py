"""Small documents for the conformance kit."""

from __future__ import annotations

from collections.abc import Sequence

from hub_core.plugin_api import Source

# Two hosts of two NPUs each, with cards as nested devices, at one leaf switch.
_HOSTS = """\
name: two-hosts
devices:
- name: card
  components:
  - {name: slot, count: 1, choice: custom, custom: {type: pcie_slot}}
  - {name: port, count: 1, choice: port}
  links: [{name: inner}]
  edges:
  - {ep1: {component: slot}, ep2: {component: port}, scheme: one2one, link: inner}
- name: host
  components:
  - {name: xpu, count: 2, choice: xpu}
  - {name: nvswitch, count: 1, choice: switch}
  - {name: card, count: 2, choice: device}
  links:
  - name: nvlink
    physical:
      bandwidth: {choice: gigabytes_per_second, gigabytes_per_second: 450}
      latency: {choice: ns, ns: 250}
  - name: pcie
    physical: {bandwidth: {choice: gigabytes_per_second, gigabytes_per_second: 64}}
  edges:
  - {ep1: {component: xpu}, ep2: {component: nvswitch}, scheme: many2many, link: nvlink}
  - {ep1: {component: "xpu[0:2]"}, ep2: {component: "card[0:2].slot"}, scheme: one2one, link: pcie}
- name: leaf
  components:
  - {name: asic, count: 1, choice: cpu}
  - {name: port, count: 4, choice: port}
  links: [{name: ic}]
  edges:
  - {ep1: {component: asic}, ep2: {component: port}, scheme: many2many, link: ic}
links:
- name: eth
  physical:
    bandwidth: {choice: gigabits_per_second, gigabits_per_second: 400}
    latency: {choice: ns, ns: 600}
instances:
- {name: host, device: host, count: 2}
- {name: leaf, device: leaf, count: 1}
edges:
- ep1: {instance: "host[0:2]", component: "card[0:2].port[0]"}
  ep2: {instance: leaf, component: "port[0:4]"}
  scheme: one2one
  link: eth
"""
_NODE_LINK = """\
directed: false
nodes:
- {id: npu.0.xpu.0, type: xpu, rank: 1}
- {id: npu.1.xpu.0, type: xpu, rank: 0}
edges:
- {source: npu.0.xpu.0, target: npu.1.xpu.0, link: cable, bandwidth: 400 Gbps, latency: 250 ns}
"""


def build_samples() -> Sequence[Source]:
    """Return two hosts at a leaf switch, and two NPUs as a node-link graph."""
    texts = {"two-hosts.yaml": _HOSTS, "two-npus.yaml": _NODE_LINK}
    return [Source.of_bytes(name, text.encode("ascii")) for name, text in texts.items()]
