"""Options of the synthesizers; free of heavy imports, since listing the plugin imports them."""

from __future__ import annotations

from dataclasses import dataclass

from hub_core.plugin_api import OptionType, choice, option


@dataclass(frozen=True, slots=True)
class ClassicOptions:
    """Options of every algorithm."""

    order: str = option(
        OptionType.TEXT,
        "auto",
        "the NPU of every position in the algorithm: as numbered (given), by the topology (auto),"
        " or a list such as 0,3,2,1",
    )
    rounds: str = choice(
        ("data", "blocking"),
        "when a rank continues: as soon as its data has arrived, or when its round has finished,"
        " as with blocking calls",
    )


@dataclass(frozen=True, slots=True)
class ChunkedOptions(ClassicOptions):
    """Options of algorithms that send chunks one after another."""

    chunks: int = option(
        OptionType.INT,
        0,
        "chunks of the data on a chain or tree (0: chosen by the formula of the cost)",
        minimum=0,
        maximum=1 << 20,
    )


@dataclass(frozen=True, slots=True)
class RadixOptions(ClassicOptions):
    """Options of k-nomial trees."""

    radix: int = option(
        OptionType.INT, 4, "a rank sends to this number of ranks minus one per round", minimum=2
    )


@dataclass(frozen=True, slots=True)
class PatOptions(ClassicOptions):
    """Options of parallel aggregated trees."""

    aggregation: int = option(
        OptionType.INT,
        0,
        "blocks that are sent at once, a power of two (0: the maximum)",
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
        "links that parts of the data use at once: those of all dimensions in both directions, one,"
        " or of all dimensions only if they have equal sizes (auto)",
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
