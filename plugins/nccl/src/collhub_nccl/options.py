"""Options of the readers and writers; imports no reader or writer."""

from __future__ import annotations

from dataclasses import dataclass

from hub_core.plugin_api import OptionType, choice, option, optional

# The keys of `bandwidths.PROFILES`, which only the readers import.
_GPUS = ("v100", "t4", "a100", "a10", "l40", "h100", "h200", "b200", "b300", "mi250x", "mi300x")


@dataclass(frozen=True, slots=True)
class NcclMachineOptions:
    """Facts that a description of a machine omits, and the number of equal machines.

    `latency` in seconds, bandwidths in bytes per second.
    """

    profile: str | None = choice(
        (None, *_GPUS), "the GPU model, which supplies missing facts about NVLink or xGMI"
    )
    latency: float = option(
        OptionType.TIME, 500e-9, "latency of every link without one in the file", minimum=0
    )
    cpu_bandwidth: float | None = optional(
        "bandwidth between two CPUs, as 22GB/s, instead of the derived one", OptionType.BANDWIDTH
    )
    net_bandwidth: float | None = optional(
        "bandwidth of every network card, as 400Gbit/s, instead of the one in the file",
        OptionType.BANDWIDTH,
    )
    nodes: int = option(
        OptionType.INT, 1, "number of equal machines, joined by a network", minimum=1
    )
    fabric: str = choice(
        ("nonblocking", "rail"),
        "the network: one switch for all ports, or one for the k-th ports of all machines",
    )


@dataclass(frozen=True, slots=True)
class MachineXmlOptions(NcclMachineOptions):
    """Options of the reader `nccl-topology`."""

    gpus: str | None = optional(
        "bus ids of GPUs, as 00:16.0,00:17.0, if the file does not mark them"
    )


@dataclass(frozen=True, slots=True)
class SmiMatrixOptions(NcclMachineOptions):
    """Options of the reader `nvidia-smi`, whose text contains no rates of PCI links."""

    pci_bandwidth: float | None = optional(
        "bandwidth of PCI links, as 24GB/s (default: the profile's)", OptionType.BANDWIDTH
    )
    nics: str = option(
        OptionType.TEXT,
        "auto",
        "NICs of the network between machines: names or numbers, as NIC0,mlx5_1 or 0-3,6-9; all; "
        "auto: if some share a PCI switch with a GPU, only those; the rest is for storage",
    )


@dataclass(frozen=True, slots=True)
class NcclProgramOptions:
    """Options of the writer `nccl`."""

    mode: str | None = choice(
        (None, "in-place", "out-of-place"),
        "calls that need no copy; default: out of place if the algorithm is correct for both",
    )
    name: str | None = optional(
        "suffix of the names of the library's functions (default: from the algorithm's source)"
    )
    lanes: int = option(
        OptionType.INT,
        4,
        "maximum number of concurrent channels, each on a separate communicator and stream",
        minimum=1,
        maximum=16,
    )


@dataclass(frozen=True, slots=True)
class NcclRingOptions:
    """Options of the writer `nccl-graph`; `speed` in GB/s, as in NCCL's file.

    Options that are not given keep the values of the file that was read, if it was such a file.
    """

    gpus: str | None = optional(
        "device number of every rank in its node, as 0,2,1,3 (default: rank r has r)"
    )
    copies: int = option(OptionType.INT, 1, "channels for each ring", minimum=1)
    speed: float | None = optional(
        "bandwidth of one channel in GB/s, by which NCCL chooses between algorithms (default: 20)",
        OptionType.FLOAT,
    )
    type: str | None = choice(
        (None, "NVL", "NVB", "PIX", "PXB", "PHB", "SYS"),
        "the longest kind of path between neighbours, by which NCCL chooses its protocol "
        "(default: NVL)",
    )


@dataclass(frozen=True, slots=True)
class RingReadOptions:
    """Options of the reader `nccl-graph`: a file applies to all collectives that use rings."""

    collective: str = choice(
        ("all-reduce", "all-gather", "reduce-scatter", "broadcast", "reduce"),
        "the collective that the rings perform",
    )
    root: int | None = optional(
        "root of a broadcast or reduce (default: 0)", OptionType.INT, minimum=0
    )


@dataclass(frozen=True, slots=True)
class LogReadOptions(RingReadOptions):
    """Options of the reader `nccl-log`."""

    graph: str = choice(("ring", "tree"), "the graph that the collective uses; tree: all-reduce")
    communicator: str | None = optional(
        "hash of the communicator, as in the log (default: the one with most ranks)"
    )


@dataclass(frozen=True, slots=True)
class TunerOptions:
    """Options of the configuration of NCCL's tuner."""

    channels: int | None = optional(
        "channels of the tuned collectives; 0 leaves the number to NCCL, by size (default: 0 on a "
        "known machine, else 16)",
        OptionType.INT,
        minimum=0,
        maximum=64,
    )
    ll_below: int = option(
        OptionType.SIZE,
        64 << 10,
        "size below which the protocol is ll, above it simple, on machines that are not known; on "
        "known ones NCCL's cost model chooses the protocol of each size",
    )


@dataclass(frozen=True, slots=True)
class RcclTunerOptions:
    """Options of the file of RCCL's tuner."""

    channels: int = option(
        OptionType.INT,
        0,
        "channels of the tuned collectives; 0 leaves the number to the library",
        minimum=0,
        maximum=64,
    )
    ll_below: int = option(
        OptionType.SIZE,
        64 << 10,
        "size below which the protocol is ll, above it simple, if no cost model chooses it",
    )


@dataclass(frozen=True, slots=True)
class NcclxTunerOptions(RcclTunerOptions):
    """Options of the file of NCCLX's tuner."""

    form: str = choice(("csv", "json"), "form of the file")


@dataclass(frozen=True, slots=True)
class NcclSynthesisOptions:
    """Options of the synthesizer `nccl`."""

    algorithm: str = choice(
        ("auto", "ring", "tree", "nvls"),
        "auto: NCCL's choice for the size on a known machine, else rings",
    )
    channels: int = option(
        OptionType.INT,
        0,
        "number of channels; 0: NCCL's number on a known machine, else 1",
        minimum=0,
        maximum=64,
    )
    chunks: int = option(
        OptionType.INT,
        0,
        "parts that a channel sends one after the other; 0: NCCL's number, at most 16; 1 for NVLS",
        minimum=0,
        maximum=256,
    )
    version: str | None = optional("version of NCCL, as 2.29.2 (default: that of the profile)")
