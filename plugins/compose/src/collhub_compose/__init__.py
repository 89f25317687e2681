"""Make algorithms from algorithms: in sequence, side by side, on other ranks, in finer units."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hub_core import names_from

if TYPE_CHECKING:
    from collhub_compose.ranks import embed, relabel
    from collhub_compose.replication import replicate
    from collhub_compose.sequence import sequential
    from collhub_compose.units import rescale

__all__ = ["embed", "relabel", "replicate", "rescale", "sequential"]

# Imported on first use: the hub lists the plugin without numpy.
__getattr__ = names_from(
    __name__,
    {
        "collhub_compose.ranks": "embed relabel",
        "collhub_compose.replication": "replicate",
        "collhub_compose.sequence": "sequential",
        "collhub_compose.units": "rescale",
    },
)
