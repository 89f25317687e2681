"""What a user can choose about the analytical model."""

from __future__ import annotations

from dataclasses import dataclass

from hub_core.model import UsageError, parse_bandwidth
from hub_core.network import Occupancy
from hub_core.plugin_api import Options

NETWORKS = ("congestion-aware", "congestion-unaware")


@dataclass(frozen=True, slots=True)
class Model:
    """The choices, with ASTRA-sim's as defaults.

    `is_congestion_aware`: messages wait for one another on links. `reduce_bytes_per_s`, `copy_bytes_per_s`: speed
    of local steps whose time is not stated; None: 1 ns each.
    """

    is_congestion_aware: bool = True
    occupancy: Occupancy = Occupancy.SERIALIZATION
    reduce_bytes_per_s: float | None = None
    copy_bytes_per_s: float | None = None

    @classmethod
    def of_options(cls, options: Options) -> Model:
        """Read the declared options of the simulator. Raises `UsageError`."""
        return cls(
            _choice(options, "network", NETWORKS) == NETWORKS[0],
            Occupancy(_choice(options, "occupancy", tuple(Occupancy))),
            _bandwidth(options, "reduce_bandwidth"),
            _bandwidth(options, "copy_bandwidth"),
        )


def _choice(options: Options, name: str, choices: tuple[str, ...]) -> str:
    """The stated choice, or the first one."""
    stated = options.get(name) or choices[0]
    if stated not in choices:
        raise UsageError(
            f"option {name}: {stated!r} is not one of {', '.join(choices)}",
            cure=f"write for example {choices[0]}",
        )
    return str(stated)


def _bandwidth(options: Options, name: str) -> float | None:
    stated = options.get(name)
    return None if stated is None else parse_bandwidth(str(stated))
