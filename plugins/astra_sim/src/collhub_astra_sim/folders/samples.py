"""Small folders for the conformance kit, as sources of the reader of their networks."""

from __future__ import annotations

import json
from collections.abc import Sequence

from collhub_astra_sim.folders.run_script import NETWORK, SYSTEM
from collhub_astra_sim.folders.workload_traces import COLLECTIVE_KEYS
from collhub_astra_sim.networks import network_yaml
from hub_core.model import CollectiveKind
from hub_core.plugin_api import Source, SourcePart


def samples() -> Sequence[Source]:
    """Return a folder for each sample of network YAML, with a system configuration."""
    key = COLLECTIVE_KEYS[CollectiveKind.ALL_REDUCE]
    system = json.dumps({key: ["traces/ring"]}).encode("ascii")
    sources = []
    for number, file in enumerate(network_yaml.samples()):
        network = SourcePart(f"sample-{number}/{NETWORK}", file.content)
        configuration = SourcePart(f"sample-{number}/{SYSTEM}", lambda: system)
        sources.append(Source(f"sample-{number}", (network, configuration)))
    return sources
