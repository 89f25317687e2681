"""The system.json that options state, for jobs that come without one."""

from __future__ import annotations

from dataclasses import fields

from collhub_astra_sim.options import SystemOptions
from hub_core import UsageError

_COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
_GB = 1e9


def stated_system(options: SystemOptions) -> dict[str, object]:
    """The content of a system.json that says what options say; keys that have to be there are."""
    chosen: dict[str, object] = {
        f"{kind.replace('_', '-')}-implementation": (getattr(options, kind) or "ring").split(",")
        for kind in _COLLECTIVES
    }
    chosen |= {
        "scheduling-policy": "FIFO",
        "endpoint-delay": 10 if options.endpoint_delay is None else options.endpoint_delay,
        "preferred-dataset-splits": options.splits or 1,
        "active-chunks-per-dimension": options.active_chunks or 1,
        "collective-optimization": options.optimization or "localBWAware",
    }
    if options.memory_bandwidth is not None:
        chosen["local-mem-bw"] = options.memory_bandwidth / _GB
    if options.peak_tflops is not None:
        chosen |= {"roofline-enabled": 1, "peak-perf": options.peak_tflops}
    return chosen


def refuse_given(options: SystemOptions) -> None:
    """Raise `UsageError` where an option says what the folder of the job says already."""
    names = [one.name for one in fields(SystemOptions) if one.default is None]
    given = [name for name in names if getattr(options, name) is not None]
    if given:
        message = f"the folder states its system: option {given[0]} has no meaning"
        raise UsageError(message, cure="change system.json of the folder")
