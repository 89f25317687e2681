"""Build the system.json of jobs without one from options."""

from __future__ import annotations

from dataclasses import fields

from collhub_astra_sim.options import SystemOptions
from hub_core import UsageError

_COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
_GB = 1e9


def stated_system(options: SystemOptions) -> dict[str, object]:
    """Return the content of a system.json with the options' values; required keys have defaults."""
    content: dict[str, object] = {
        f"{kind.replace('_', '-')}-implementation": (getattr(options, kind) or "ring").split(",")
        for kind in _COLLECTIVES
    }
    content |= {
        "scheduling-policy": "FIFO",
        "endpoint-delay": 10 if options.endpoint_delay is None else options.endpoint_delay,
        "preferred-dataset-splits": options.splits or 1,
        "active-chunks-per-dimension": options.active_chunks or 1,
        "collective-optimization": options.optimization or "localBWAware",
    }
    if options.memory_bandwidth is not None:
        content["local-mem-bw"] = options.memory_bandwidth / _GB
    if options.peak_tflops is not None:
        content |= {"roofline-enabled": 1, "peak-perf": options.peak_tflops}
    return content


def refuse_given(options: SystemOptions) -> None:
    """Raise `UsageError` if an option conflicts with the system of the job's folder."""
    names = [item.name for item in fields(SystemOptions) if item.default is None]
    conflicting = [name for name in names if getattr(options, name) is not None]
    if conflicting:
        message = f"the folder has a system.json: option {conflicting[0]} has no effect"
        raise UsageError(message, cure="change system.json of the folder")
