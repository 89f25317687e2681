"""The offer of this distribution: the engine `dask`."""

from __future__ import annotations

from collections.abc import Sequence

from collhub_dask.options import DaskOptions
from hub_core.plugin_api import Engine, hookimpl

COLLHUB_PLUGIN_API = (1, 0)


DASK = Engine(
    "dask",
    "workers of a Dask cluster, or of one that is started on this machine",
    "collhub_dask.engine:start",
    DaskOptions,
)


@hookimpl
def collhub_engines() -> Sequence[Engine]:
    """Describe the engine."""
    return [DASK]
