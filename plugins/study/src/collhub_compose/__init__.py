"""Compose algorithms: sequences, parallel copies, pipelines, other ranks, finer units."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hub_core import names_from

if TYPE_CHECKING:
    from collhub_compose.ranks import embed, relabel
    from collhub_compose.replication import pipeline, replicate, rescale
    from collhub_compose.sequence import sequential

__all__ = ["embed", "pipeline", "relabel", "replicate", "rescale", "sequential"]

# Imported on first use, so that the hub can list the plugin without numpy.
__getattr__ = names_from(
    __name__,
    {
        "collhub_compose.ranks": "embed relabel",
        "collhub_compose.sequence": "sequential",
        "collhub_compose.replication": "pipeline replicate rescale",
    },
)
