"""Offers of this distribution to the hub: generators of jobs."""

from __future__ import annotations

from collections.abc import Sequence

from collhub_models.options import DlrmOptions, TransformerOptions
from hub_core.plugin_api import WorkloadGenerator, hookimpl

COLLHUB_PLUGIN_API = (1, 0)

TRANSFORMER = WorkloadGenerator(
    "transformer",
    "a training step of a transformer, cut in every usual way",
    "collhub_models.transformer:generate",
    TransformerOptions,
)
DLRM = WorkloadGenerator(
    "dlrm", "a training step of a recommendation model", "collhub_models.dlrm:generate", DlrmOptions
)


@hookimpl
def collhub_producers() -> Sequence[WorkloadGenerator]:
    """Describe the generators."""
    return [TRANSFORMER, DLRM]
