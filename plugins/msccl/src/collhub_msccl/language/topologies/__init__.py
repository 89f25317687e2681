"""The topologies of the language: which ranks may send to which ranks."""

from collhub_msccl.language.topologies.amd import amd4, amd8
from collhub_msccl.language.topologies.distributed import (
    distributed_fully_connected,
    distributed_hub_and_spoke,
)
from collhub_msccl.language.topologies.generic import (
    Topology,
    binarize_topology,
    fully_connected,
    hub_and_spoke,
    line,
    reverse_topology,
    ring,
    star,
)
from collhub_msccl.language.topologies.nvidia import dgx1, dgx_a100, nvlink_only

# Names that `from msccl.topologies import *` imports.
__all__ = [
    "Topology",
    "amd4",
    "amd8",
    "binarize_topology",
    "dgx1",
    "dgx_a100",
    "distributed_fully_connected",
    "distributed_hub_and_spoke",
    "fully_connected",
    "hub_and_spoke",
    "line",
    "nvlink_only",
    "reverse_topology",
    "ring",
    "star",
]
