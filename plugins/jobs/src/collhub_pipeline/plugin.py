"""Offers of this distribution to the hub: the generator of pipelines."""

from __future__ import annotations

from collections.abc import Sequence

from collhub_pipeline.options import PipelineOptions
from hub_core.plugin_api import WorkloadGenerator, hookimpl

COLLHUB_PLUGIN_API = (1, 0)


@hookimpl
def collhub_producers() -> Sequence[WorkloadGenerator]:
    """Describe the generator."""
    return [
        WorkloadGenerator(
            "pipeline",
            "a training step on a pipeline, by every usual schedule",
            "collhub_pipeline.job:generate",
            PipelineOptions,
            searches=True,
        )
    ]
