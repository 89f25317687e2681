"""Options of the engine `dask`; light, since listing the plugin imports them."""

from __future__ import annotations

from dataclasses import dataclass

from hub_core.plugin_api import OptionType, option


@dataclass(frozen=True, slots=True)
class DaskOptions:
    """A cluster that is there, or how one is started on this machine."""

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
