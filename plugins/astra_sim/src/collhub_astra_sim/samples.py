"""Small networks and folders for the conformance kit."""

from __future__ import annotations

import json
from collections.abc import Sequence

from collhub_astra_sim.folders.folder import COLLECTIVE_KEYS, NETWORK, SYSTEM
from collhub_astra_sim.networks import network_yaml
from hub_core.model import CollectiveKind
from hub_core.plugin_api import Source, SourcePart

# As written by astra-network-ns3 and the generator of SimAI: NPUs at one switch, and a server with
# an NVSwitch and a network switch.
_NS3 = {
    "one-switch.txt": "3 1 2\n2\n0 2 400Gbps 0.0005ms 0\n1 2 400Gbps 0.0005ms 0\n",
    "simai": "4 2 1 1 4 H100\n2 3\n0 2 2880Gbps 0.000025ms 0\n1 2 2880Gbps 0.000025ms 0\n"
    "0 3 400Gbps 0.0005ms 0\n1 3 400Gbps 0.0005ms 0\n",
}
_TIERS = """Nodes 16
Tiers 3
Podsize 4

Tier 0
Downlink_speed_Gbps 400
Radix_Up 2
Radix_Down 2
Downlink_Latency_ns 1000

Tier 1
Downlink_speed_Gbps 400
Radix_Up 2
Radix_Down 2
Downlink_Latency_ns 1000

Tier 2
Downlink_speed_Gbps 400
Radix_Down 4
Downlink_Latency_ns 1000
"""


def ns3() -> Sequence[Source]:
    """Return topologies for ns-3: two NPUs at a switch, and one of SimAI with an NVSwitch."""
    return [Source.of_bytes(name, text.encode("ascii")) for name, text in _NS3.items()]


def htsim() -> Sequence[Source]:
    """Return a fat tree of switches of four ports."""
    return [Source.of_bytes("fat-tree.topo", _TIERS.encode("ascii"))]


def samples() -> Sequence[Source]:
    """Return small correct folders for the conformance kit, one per sample of network YAML.

    Each has the network and a system configuration that names traces for all-reduce; it has no
    traces. Names are `sample-0`, `sample-1`, ...
    """
    key = COLLECTIVE_KEYS[CollectiveKind.ALL_REDUCE]
    system = json.dumps({key: ["traces/ring"]}).encode("ascii")
    sources = []
    for number, file in enumerate(network_yaml.samples()):
        network = SourcePart(f"sample-{number}/{NETWORK}", file.content)
        configuration = SourcePart(f"sample-{number}/{SYSTEM}", lambda: system)
        sources.append(Source(f"sample-{number}", (network, configuration)))
    return sources
