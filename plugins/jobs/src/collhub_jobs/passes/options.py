"""Options of the passes."""

from __future__ import annotations

from dataclasses import dataclass

from hub_core.plugin_api import OptionType, option, optional


@dataclass(frozen=True, slots=True)
class ScaleOptions:
    """How much longer which ranks compute."""

    factor: float = option(
        OptionType.FLOAT, 1.5, "by which computations take longer", minimum=1e-6, maximum=1e6
    )
    ranks: str | None = optional("of these ranks alone, as 0,4-7: stragglers (default: all)")


@dataclass(frozen=True, slots=True)
class SplitOptions:
    """Into how many pieces a collective falls."""

    pieces: int = option(
        OptionType.INT, 2, "collectives in place of one", minimum=2, maximum=1 << 16
    )


@dataclass(frozen=True, slots=True)
class FuseOptions:
    """How large a bucket grows."""

    size: int = option(OptionType.SIZE, 25 << 20, "bytes of a bucket at most", minimum=1)
