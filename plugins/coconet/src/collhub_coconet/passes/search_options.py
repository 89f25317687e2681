"""Options of the pass `search`."""

from __future__ import annotations

from dataclasses import dataclass

from collhub_coconet.passes.options import StatedOptions
from hub_core.plugin_api import OptionType, option, optional


@dataclass(frozen=True, slots=True)
class SearchOptions(StatedOptions):
    """Sizes, network, rates of a rank, and limits of the search."""

    sizes: str = option(
        OptionType.TEXT,
        "",
        "sizes of symbols, as B=8,S=1024 or N=1024..1048576 (default: of the program)",
    )
    points: int = option(OptionType.INT, 7, "number of sizes per range", minimum=2, maximum=64)
    topology: str | None = optional("network, as ring:8 or a file; rank r runs on NPU r")
    states: int = option(
        OptionType.INT, 5000, "maximum number of programs", minimum=1, maximum=100000
    )
    simulate: int = option(
        OptionType.INT,
        3,
        "number of programs per size, and per front, to simulate; 0: only times by formula",
        minimum=0,
        maximum=100,
    )
    compute_tflops: float = option(
        OptionType.FLOAT, 90.0, "rate of matrix products, in 1e12 operations/s", minimum=1e-6
    )
    memory_bandwidth: float = option(OptionType.BANDWIDTH, 765e9, "rate of the memory of a rank")
    launch_time: float = option(OptionType.TIME, 5e-6, "time to launch a kernel")
