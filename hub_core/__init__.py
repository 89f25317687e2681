"""Collective Hub: read, verify, simulate and write collective-communication algorithms."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hub_core.public_names import names_from

if TYPE_CHECKING:
    from hub_core.chakra.codec.nodes import NodeTable, NodeType
    from hub_core.chakra.formats import CHAKRA_WRITER
    from hub_core.chakra.traces import (
        chakra_bytes,
        chakra_messages,
        chakra_nodes,
        chakra_record,
        chakra_traces,
    )
    from hub_core.composition import embed, relabel, replicate, rescale, sequential
    from hub_core.model.algorithm import Algorithm, Provenance
    from hub_core.model.collectives import (
        Buffer,
        Collective,
        CollectiveKind,
        Contributions,
        CustomContract,
        ReduceOp,
    )
    from hub_core.model.diagnostics import (
        Diagnostic,
        HubError,
        InputError,
        Location,
        LossyError,
        PluginError,
        UsageError,
    )
    from hub_core.model.losses import Loss, LossPolicy
    from hub_core.model.steps import StepKind, StepTable, StepTableBuilder
    from hub_core.network.texts import parse_topology
    from hub_core.network.topology import Topology
    from hub_core.pipeline.work import Written, read, read_topology, simulate, write
    from hub_core.plugin_api.contract import SimulationResult
    from hub_core.registry.discovery import discover
    from hub_core.verification import VerifyReport, verify
    from hub_core.version import __version__

__all__ = [
    "Algorithm",
    "Buffer",
    "CHAKRA_WRITER",
    "Collective",
    "CollectiveKind",
    "Contributions",
    "CustomContract",
    "Diagnostic",
    "HubError",
    "InputError",
    "Location",
    "Loss",
    "LossPolicy",
    "LossyError",
    "NodeTable",
    "NodeType",
    "PluginError",
    "Provenance",
    "ReduceOp",
    "SimulationResult",
    "StepKind",
    "StepTable",
    "StepTableBuilder",
    "Topology",
    "UsageError",
    "VerifyReport",
    "Written",
    "__version__",
    "chakra_bytes",
    "chakra_messages",
    "chakra_nodes",
    "chakra_record",
    "chakra_traces",
    "discover",
    "embed",
    "parse_topology",
    "read",
    "read_topology",
    "relabel",
    "replicate",
    "rescale",
    "sequential",
    "simulate",
    "verify",
    "write",
]

_HOMES = {
    "hub_core.model.algorithm": ("Algorithm", "Provenance"),
    "hub_core.model.collectives": (
        "Buffer",
        "Collective",
        "CollectiveKind",
        "Contributions",
        "CustomContract",
        "ReduceOp",
    ),
    "hub_core.chakra.codec.nodes": ("NodeTable", "NodeType"),
    "hub_core.chakra.formats": ("CHAKRA_WRITER",),
    "hub_core.chakra.traces": (
        "chakra_bytes",
        "chakra_messages",
        "chakra_nodes",
        "chakra_record",
        "chakra_traces",
    ),
    "hub_core.composition": ("embed", "relabel", "replicate", "rescale", "sequential"),
    "hub_core.model.diagnostics": (
        "Diagnostic",
        "HubError",
        "InputError",
        "Location",
        "LossyError",
        "PluginError",
        "UsageError",
    ),
    "hub_core.model.losses": ("Loss", "LossPolicy"),
    "hub_core.pipeline.work": ("Written", "read", "read_topology", "simulate", "write"),
    "hub_core.plugin_api.contract": ("SimulationResult",),
    "hub_core.registry.discovery": ("discover",),
    "hub_core.model.steps": ("StepKind", "StepTable", "StepTableBuilder"),
    "hub_core.network.texts": ("parse_topology",),
    "hub_core.network.topology": ("Topology",),
    "hub_core.verification": ("VerifyReport", "verify"),
    "hub_core.version": ("__version__",),
}

__getattr__ = names_from(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
