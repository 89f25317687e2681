"""Register the engine `dask`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hub_core.plugin_api import Engine, OptionType, hookimpl, option


@dataclass(frozen=True, slots=True)
class DaskOptions:
    """Address of a running cluster, or parameters of a new one on this host."""

    scheduler: str | None = option(
        OptionType.TEXT,
        None,
        "address of a running scheduler, as tls://host:8786 (default: a cluster is started here)",
    )
    insecure: bool = option(
        OptionType.BOOL,
        False,
        "also use a scheduler on another machine without TLS: whoever can answer there can run any "
        "program as you",
    )
    workers: int | None = option(
        OptionType.INT, None, "workers of the cluster here (default: one a core)", minimum=1
    )
    memory: int | None = option(
        OptionType.SIZE,
        None,
        "memory that a worker of the cluster here has, as 8GiB; one that takes more is ended",
        minimum=1 << 28,
    )


COLLHUB_PLUGIN_API = (1, 0)


DASK = Engine(
    "dask",
    "workers of a Dask cluster, or of one that is started on this machine",
    "collhub_dask.engine:start",
    DaskOptions,
)


@hookimpl
def collhub_engines() -> Sequence[Engine]:
    """Return the plugin's only engine, which runs tasks on a Dask cluster."""
    return [DASK]
