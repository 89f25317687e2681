"""Options of the synthesizers; light, since listing the plugin imports them."""

from __future__ import annotations

from dataclasses import dataclass

from hub_core.plugin_api import OptionType, choice, option


@dataclass(frozen=True, slots=True)
class ClassicOptions:
    """What every algorithm lets the user choose."""

    order: str = option(
        OptionType.TEXT,
        "auto",
        "the NPU of every place in the algorithm: as numbered (given), by the topology (auto),"
        " or a list such as 0,3,2,1",
    )
    rounds: str = choice(
        ("data", "blocking"),
        "when a rank goes on: as soon as the data are there, or when its round is over, as with"
        " blocking calls",
    )


@dataclass(frozen=True, slots=True)
class ChunkedOptions(ClassicOptions):
    """Options of algorithms in which chunks follow each other."""

    chunks: int = option(
        OptionType.INT,
        0,
        "pieces of what goes down a chain or tree (0: by the closed form of the cost)",
        minimum=0,
        maximum=1 << 20,
    )


@dataclass(frozen=True, slots=True)
class RadixOptions(ClassicOptions):
    """Options of k-nomial trees."""

    radix: int = option(
        OptionType.INT, 4, "a rank sends to so many others less one a round", minimum=2
    )


@dataclass(frozen=True, slots=True)
class PatOptions(ClassicOptions):
    """Options of parallel aggregated trees."""

    aggregation: int = option(
        OptionType.INT,
        0,
        "blocks that travel at once, a power of two (0: as many as can be)",
        minimum=0,
    )


@dataclass(frozen=True, slots=True)
class GridOptions(ClassicOptions):
    """Options of algorithms along dimensions."""

    sizes: str = option(
        OptionType.TEXT,
        "auto",
        "ranks along each dimension, the closest first, as 8x4 (default: the groups or the"
        " dimensions of the topology)",
    )
    ports: str = choice(
        ("auto", "all", "one"),
        "links that parts of the data use at once: those of all dimensions both ways round, one,"
        " or of all dimensions only where they are of one size (auto)",
    )


@dataclass(frozen=True, slots=True)
class RingsOptions(ClassicOptions):
    """Options of several rings."""

    rings: int = option(
        OptionType.INT,
        0,
        "rings that share the data (0: as many as the topology has without a common link)",
        minimum=0,
    )
