"""Collective Hub: read, verify, simulate and write collective-communication algorithms."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hub_core.algorithm import Algorithm, Provenance
    from hub_core.collectives import (
        Buffer,
        Collective,
        CollectiveKind,
        Contributions,
        CustomContract,
        ReduceOp,
    )
    from hub_core.composition import embed, relabel, replicate, rescale, sequential
    from hub_core.diagnostics import (
        Diagnostic,
        HubError,
        InputError,
        Location,
        LossyError,
        PluginError,
        UsageError,
    )
    from hub_core.losses import Loss, LossPolicy
    from hub_core.pipeline import Written, read, read_topology, simulate, write
    from hub_core.plugins.contract import SimulationResult
    from hub_core.plugins.discovery import discover
    from hub_core.steps import StepKind, StepTable, StepTableBuilder
    from hub_core.topologies import parse_topology
    from hub_core.topology import Topology
    from hub_core.verification import VerifyReport, verify
    from hub_core.version import __version__

__all__ = [
    "Algorithm",
    "Buffer",
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
    "hub_core.algorithm": ("Algorithm", "Provenance"),
    "hub_core.collectives": (
        "Buffer",
        "Collective",
        "CollectiveKind",
        "Contributions",
        "CustomContract",
        "ReduceOp",
    ),
    "hub_core.composition": ("embed", "relabel", "replicate", "rescale", "sequential"),
    "hub_core.diagnostics": (
        "Diagnostic",
        "HubError",
        "InputError",
        "Location",
        "LossyError",
        "PluginError",
        "UsageError",
    ),
    "hub_core.losses": ("Loss", "LossPolicy"),
    "hub_core.pipeline": ("Written", "read", "read_topology", "simulate", "write"),
    "hub_core.plugins.contract": ("SimulationResult",),
    "hub_core.plugins.discovery": ("discover",),
    "hub_core.steps": ("StepKind", "StepTable", "StepTableBuilder"),
    "hub_core.topologies": ("parse_topology",),
    "hub_core.topology": ("Topology",),
    "hub_core.verification": ("VerifyReport", "verify"),
    "hub_core.version": ("__version__",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    # Public names are imported on first use: `collhub --version` must start in 0.15 s, without numpy.
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'hub_core' has no attribute {name!r}")
    value: object = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
