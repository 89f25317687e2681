"""Constants of thread blocks and links, by kernel and protocol, from the profile of a machine.

A *kernel* is the code that executes an algorithm:

- `fifo`: blocks of NCCL and MSCCL that copy through FIFO buffers, with a protocol;
- `exchange`: NCCL's sends and receives in one group, which do not depend on one another;
- `nvls`: NCCL's blocks that add up and multicast in NVSwitches;
- `direct`: kernels of MSCCL++, which write to the buffers of their peers.

Fitted constants of the profile (`collhub_machine_profiles.time_models`) give the times of the first
three. `START_VALUES` has the constants that no profile contains yet, with their evidence.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np
from collhub_machine_profiles.machine_profile import MachineProfile
from collhub_machine_profiles.nccl_choice import (
    NVLINK_EXCHANGE_CHANNELS,
    NVLS_CHUNK_BYTES,
    NVLS_MIN_CHUNK_BYTES,
    fifo_chunk_bytes,
)
from collhub_machine_profiles.time_models import (
    NETWORK_NAMES,
    NVLS_FILL_CHUNKS,
    drain_us,
    smooth_maximum,
    start_growth,
)

from hub_core.columns import Float64Array
from hub_core.model import UsageError


@dataclass(frozen=True, slots=True)
class StartValue:
    """Value of a constant by architecture, where no profile has a fitted one; and its evidence."""

    ampere: float
    hopper: float
    blackwell: float
    evidence: str

    def value(self, architecture: str) -> float:
        """Return the value of an architecture, by the name of its field.

        Raises `AttributeError` for another one.
        """
        return float(getattr(self, architecture))


_CI = "reference values of MSCCL++'s CI (microsoft/mscclpp 1f5f065d, test/deploy)"
START_VALUES = {
    "link_efficiency": StartValue(
        0.80, 0.80, 0.80, "bandwidth of NCCL's rings at 512 MiB relative to the sum of the channels"
    ),
    "network_efficiency": StartValue(
        0.90, 0.90, 0.90, "all-reduce of 1 GiB and more on 2 to 64 nodes: 0.86 to 0.95 of the NICs"
    ),
    "network_ll_us": StartValue(
        5.0, 5.0, 5.0, "InfiniBand: all-reduce of 8 KiB on two nodes; NCCL's own table: 5.0"
    ),
    "network_ll128_us": StartValue(8.5, 8.5, 8.5, "NCCL's own table of latencies"),
    "network_simple_us": StartValue(14.0, 14.0, 14.0, "NCCL's own table of latencies"),
    "direct_start_us": StartValue(5.0, 4.2, 4.2, f"all pairs of 24 to 72 KiB; {_CI}"),
    "direct_ll_us": StartValue(0.87, 0.80, 0.80, f"all pairs of 24 to 72 KiB; {_CI}"),
    "direct_ll_efficiency": StartValue(
        0.55, 0.52, 0.52, f"165 of 300 and 235 of 450 GB/s on the wire; {_CI}"
    ),
    "direct_simple_us": StartValue(
        3.2, 3.2, 3.2, "MSCCL++ tutorial: put and signal of 1 KiB takes 2.4 us more than packets"
    ),
    "direct_rate_GBps": StartValue(
        47.0, 47.0, 59.0, "NCCL's symmetric kernels: 44 GiB/s a block, 55 on Blackwell"
    ),
    "direct_efficiency": StartValue(
        0.83, 0.785, 0.785, f"1 GiB on 8 GPUs: 0.81 to 0.85, 0.77 to 0.80; {_CI}"
    ),
    "concurrent_blocks": StartValue(
        108, 132, 148, "streaming multiprocessors of A100, H100 and B200; one block of NCCL on each"
    ),
}
"""Constants without fitted values. Rates are payload per thread block."""

# Bytes on the wire per byte of payload: LL has a flag of 4 bytes for 4 bytes, LL128 8 for 120.
_WIRE = {"ll": 2.0, "ll128": 16 / 15, "simple": 1.0}
# Chunks in flight: the FIFO buffer has 8 steps, of which a chunk of Simple takes 4.
_SLOTS = {"ll": 8, "ll128": 8, "simple": 2}
_POWER = {"ll": 3, "ll128": 3, "simple": 4}
_UNLIMITED = 1 << 62
# Replaces a time of 0 where a time is a divisor; it is less than the resolution of 1 ps.
_MIN_US = 1e-9
_LL_BYTES_PER_THREAD = 8


@dataclass(frozen=True, slots=True)
class KernelTiming:
    """Constants of one kernel and protocol.

    `start_us`: before the first instruction. `visible_us`: until a receiver sees a message within
    the node; `network_us`: across the network. `rate_gigabytes_per_s`: payload of a thread block.
    `slices`: 2 if a message becomes visible in two halves, 1 if as it is written.
    `received_share`: work of the receiving end of a chain and of local steps, as a fraction of the
    time of a send.
    `wire`: bytes on links per byte of payload. `chunk_bytes`: largest message; larger ones are sent
    in several rounds of the algorithm. `slots`: messages in flight on a connection.
    `chunk_us`: additional time of each instruction with a message. `growth`: increase of the start
    with threads and channels. `fill_messages`: messages whose transfers fill the pipeline of the
    kernel, before the rate of a block counts. Efficiencies: fractions of nominal rates that
    messages get on links within the node, on the network, and between a GPU and its network card
    (`card_efficiency`, which the protocol does not change).
    """

    kernel: str
    protocol: str
    start_us: float
    visible_us: float
    network_us: float
    rate_gigabytes_per_s: float
    link_efficiency: float
    network_efficiency: float
    slices: int = 1
    received_share: float = 0.0
    wire: float = 1.0
    chunk_bytes: int = _UNLIMITED
    slots: int = _UNLIMITED
    power: int = 3
    chunk_us: float = 0.0
    growth: float = 0.0
    fill_messages: int = 0
    card_efficiency: float = 1.0

    def with_threads(self, message_bytes: int, channels: int) -> KernelTiming:
        """Return the constants for the numbers of threads and channels that NCCL uses.

        The start time is multiplied by 1 + growth * `start_growth`, for `channels` and for
        `message_bytes` / 8 threads (`_LL_BYTES_PER_THREAD`); the growth of the result is 0. If
        the growth is 0 already, as with every protocol but LL, the object itself is returned.
        """
        if not self.growth:
            return self
        threads = message_bytes / _LL_BYTES_PER_THREAD
        factor = 1 + self.growth * float(start_growth(threads, channels))
        return replace(self, start_us=self.start_us * factor, growth=0.0)

    def with_filled_pipeline(self, message_bytes: float) -> KernelTiming:
        """Return constants whose start time includes the time that fills the pipeline.

        This time is that of `fill_messages` messages at the rate of a thread block; it is 0 for
        kernels other than nvls. A message has `message_bytes` bytes, or the smallest chunk of
        NVLS if that is larger. `fill_messages` of the result is 0.
        """
        message_bytes = max(message_bytes, NVLS_MIN_CHUNK_BYTES)
        fill_us = self.fill_messages * message_bytes / (self.rate_gigabytes_per_s * 1e3)
        return replace(self, start_us=self.start_us + fill_us, fill_messages=0)

    def with_block_share(self, share: float) -> KernelTiming:
        """Return the constants for thread blocks that run for a share of the time, above 0 and at
        most 1: the rate is multiplied by it, the time per chunk divided.
        """
        return replace(
            self,
            rate_gigabytes_per_s=self.rate_gigabytes_per_s * share,
            chunk_us=self.chunk_us / share,
        )

    def message_times_us(
        self, sizes: Float64Array, crosses_network: bool
    ) -> tuple[Float64Array, Float64Array, Float64Array, Float64Array]:
        """Return the times of messages in us: (busy, first, lag, tail), float64 by size.

        - busy: time for which the sender is occupied
        - first: time until the first part is visible to the receiver
        - lag: time from the end of sending until the end is visible
        - tail: time of the last part, 0 if `slices` is 1

        `sizes`: bytes of the messages, float64; empty `sizes` give empty arrays. Formulas:

        - transfer = size / rate + `chunk_us`, and part = transfer / `slices`
        - visible = `network_us` if `crosses_network`, otherwise `visible_us`
        - longer = (part^p + visible^p)^(1/p) with p = `power`, and visible at least 1e-9. The
          transfer of a part overlaps with the visible time of the previous part.
        - If part >= visible: busy = transfer - part + longer, lag = visible. Otherwise: busy =
          transfer, lag = longer.
        - tail = part if `slices` is above 1. first = tail + lag, or busy + lag if `slices` is 1 and
          `crosses_network`.
        """
        transfer = sizes / (self.rate_gigabytes_per_s * 1e3) + self.chunk_us
        visible = np.full(len(sizes), self.network_us if crosses_network else self.visible_us)
        part = transfer / self.slices
        longer = smooth_maximum(part, np.maximum(visible, _MIN_US), self.power)
        is_long = part >= visible
        busy = np.where(is_long, transfer - part + longer, transfer)
        lag = np.where(is_long, visible, longer)
        tail = part if self.slices > 1 else np.zeros(len(sizes))
        first = tail + lag
        if crosses_network and self.slices == 1:
            # The host sends a chunk of LL when all of its flags are set.
            first = busy + lag
        return busy, first, lag, tail


def nominal_gigabytes_per_s(profile: MachineProfile) -> float:
    """Return the nominal rate of a GPU's links within the node in GB/s, in one direction.

    It is read from the description of the GPU; 0.0 for an unknown GPU or a description without a
    rate.
    """
    gpu = profile.known_gpu
    match = re.search(r"(\d+) GB/s", gpu.links if gpu else "")
    return float(match[1]) if match else 0.0


def has_model(profile: MachineProfile) -> bool:
    """Return whether a profile has constants and names a known GPU that has a model."""
    gpu = profile.known_gpu
    return bool(profile.constants) and gpu is not None and gpu.has_model


def check_model(profile: MachineProfile) -> None:
    """Raise `UsageError` (`no-model`) if no model of thread blocks belongs to a profile.

    This is so if the profile has no constants (only measured tables), or if its GPU is unknown or
    has no model (`has_model`).
    """
    if has_model(profile):
        return
    raise UsageError(
        f"the profile {profile.name} has measured tables alone, no constants of thread blocks",
        cure="choose a machine with NVLink between all GPUs of a node, or --machine none",
        code="no-model",
    )


def kernel_timing(
    profile: MachineProfile,
    kernel: str,
    protocol: str,
    ranks: int,
    message_bytes: int,
    blocks: int,
    channels: int = 1,
) -> KernelTiming:
    """Return the constants of the timing model for a kernel and protocol of a profile.

    They are those of `base_timing`. For the kernel `exchange`, those that depend on the
    messages are replaced (`_exchange`); for any other kernel, the start time is adapted to
    threads and channels (`with_threads`).

    `message_bytes`: bytes of the largest message. `blocks`: largest number of messages that
    a rank sends, used by an exchange only. `channels`: channels of a rank, not used by an
    exchange. Errors are those of `base_timing`: `UsageError` (`no-model`) for a profile
    without a model, and `KeyError` for an unknown protocol.
    """
    timing = base_timing(profile, kernel, protocol, ranks)
    if kernel == "exchange":
        return _exchange(timing, profile, ranks, blocks, message_bytes)
    return timing.with_threads(message_bytes, channels)


def base_timing(profile: MachineProfile, kernel: str, protocol: str, ranks: int) -> KernelTiming:
    """Return the constants of a kernel and protocol that do not depend on messages and channels.

    - Kernel `direct`: those of `_direct`.
    - Other kernels: fitted constants of the protocol. Only `simple` has two slices per message and
      a `received_share`, a third of the fitted one for 2 `ranks`. Only `ll` has a `growth`.
    - Kernel `nvls`: as other kernels, but start, rate, time per chunk, filling messages and chunk
      size are those of NVLS. `visible_us`, `received_share` and `growth` are 0, slices 1.

    Times are in us, rates in GB/s. Raises `UsageError` (`no-model`) for a profile without a model,
    with any kernel. Raises `KeyError` for a protocol other than `ll`, `ll128` and `simple`, and for
    a constant that the profile lacks.
    """
    check_model(profile)
    if kernel == "direct":
        return _direct(profile, protocol)
    value = _constant_values(profile)
    names = {"ll": ("b", "hLL", "rLL"), "ll128": ("b128", "h128", "r128")}
    start, visible, rate = (value[name] for name in names.get(protocol, ("bS", "LS", "rS")))
    is_simple = protocol == "simple"
    timing = KernelTiming(
        kernel,
        protocol,
        start,
        visible,
        network_us(profile, protocol),
        rate,
        _fifo_link_efficiency(profile, protocol, rate),
        network_efficiency(profile),
        slices=2 if is_simple else 1,
        received_share=(value["yS"] / (3 if ranks == 2 else 1)) if is_simple else 0.0,
        wire=_WIRE[protocol],
        chunk_bytes=fifo_chunk_bytes("ring", protocol),
        slots=_SLOTS[protocol],
        power=_POWER[protocol],
        growth=value["gLL"] if protocol == "ll" else 0.0,
    )
    if kernel == "nvls":
        # A chunk is one sum in the switch and one multicast: half of its time each.
        return replace(
            timing,
            start_us=value["bN"],
            visible_us=0.0,
            rate_gigabytes_per_s=2 * value["rN"],
            chunk_us=value["oN"] / 2,
            fill_messages=2 * NVLS_FILL_CHUNKS,
            slices=1,
            received_share=0.0,
            chunk_bytes=NVLS_CHUNK_BYTES,
            growth=0.0,
        )
    return timing


def _constant_values(profile: MachineProfile) -> dict[str, float]:
    """Return the values of the fitted constants of a profile by their names."""
    return {name: constant.value for name, constant in profile.constants.items()}


def _fifo_link_efficiency(profile: MachineProfile, protocol: str, rate: float) -> float:
    """Return the fraction of the nominal rate of links that FIFO kernels reach.

    For LL128 and Simple it is the start value `link_efficiency` of the profile. For LL it
    is the larger of two fractions:

    - channels x `rate` x 2 / nominal rate in GB/s. Channels are those that NCCL uses on the
      GPU; more do not exceed it. `rate` is the payload of a channel in GB/s, and LL sends
      twice the payload.
    - the start value `direct_ll_efficiency`, that of MSCCL++'s packets

    `protocol`: `ll`, `ll128` or `simple`. The profile must name a known GPU. NCCL's own
    cost model also has such a limit for a full node (141 GB/s on Hopper).
    """
    if protocol != "ll":
        return start_value(profile, "link_efficiency")
    gpu = profile.known_gpu
    assert gpu is not None, "check_model refuses such profiles"
    channels = gpu.channels * rate * _WIRE["ll"] / nominal_gigabytes_per_s(profile)
    return max(channels, start_value(profile, "direct_ll_efficiency"))


def _exchange(
    timing: KernelTiming,
    profile: MachineProfile,
    ranks: int,
    blocks: int,
    message_bytes: int,
) -> KernelTiming:
    """Return the timing constants of a group of sends and receives without a limit by FIFOs.

    `timing`: constants of the protocol. `blocks`: number of messages of `message_bytes` that a rank
    sends at once; for the rate, 0 counts as 1. n is `ranks`; the other letters are values fitted to
    measurements, from the profile. Replaced are:

    - Rate of a block (GB/s): for LL a fitted value. Otherwise (a^-p + b^-p)^(-1/p), a smooth
      minimum of a and b = 32 r (n - 1) / (n `blocks`). r is the rate of one of 32 channels, p is
      `timing.power`.
    - Start (us): for LL s (1 + g (n - 1)). Otherwise this times a factor, plus the time to copy the
      last slices of all messages (`drain_us`).
    - Link efficiency: a fitted rate / nominal rate of the GPU's links.
    - `visible_us`, `received_share`, `growth`: 0. `slices`: 1. Chunk size and slots: unlimited.

    Raises `KeyError` for a fitted value that the profile lacks.
    """
    value = _constant_values(profile)
    share = NVLINK_EXCHANGE_CHANNELS * value["rP"] * (ranks - 1) / (ranks * max(blocks, 1))
    power = timing.power
    simple_rate = (value["cP"] ** -power + share**-power) ** (-1 / power)
    start = value["bP"] * (1 + value["nP"] * (ranks - 1))
    is_ll = timing.protocol == "ll"
    drain = float(drain_us(blocks, message_bytes, value["cP"]))
    return replace(
        timing,
        start_us=start if is_ll else start * value["bPS"] + drain,
        visible_us=0.0,
        rate_gigabytes_per_s=value["pLL"] if is_ll else simple_rate,
        link_efficiency=value["BP"] / nominal_gigabytes_per_s(profile),
        slices=1,
        received_share=0.0,
        chunk_bytes=_UNLIMITED,
        slots=_UNLIMITED,
        growth=0.0,
    )


def _direct(profile: MachineProfile, protocol: str) -> KernelTiming:
    """Return the constants of MSCCL++'s kernels, which write to the memory of peers directly.

    `protocol`: `ll` gives time and efficiency of packets; `simple` and `ll128` give those of puts
    with a signal. Times are in us, rates in GB/s. The constants are `START_VALUES` for the
    architecture of the profile's GPU, which must be known, with these exceptions:

    - The time of a hop between nodes is that of the protocol by `network_us`: from the profile's
      first network, if it has one.
    - The bytes on the wire per byte of payload depend only on the protocol (`_WIRE`).
    - Each message has one slice; chunk size and slots are unlimited.

    Raises `KeyError` for another protocol, and `AttributeError` for an architecture other than
    Ampere, Hopper and Blackwell.
    """
    is_ll = protocol == "ll"
    return KernelTiming(
        "direct",
        protocol,
        start_value(profile, "direct_start_us"),
        start_value(profile, "direct_ll_us" if is_ll else "direct_simple_us"),
        network_us(profile, protocol),
        start_value(profile, "direct_rate_GBps"),
        start_value(profile, "direct_ll_efficiency" if is_ll else "direct_efficiency"),
        network_efficiency(profile),
        wire=_WIRE[protocol],
    )


def start_value(profile: MachineProfile, name: str) -> float:
    """Return a constant of `START_VALUES` for the architecture of the profile's GPU.

    The name ends with the unit, such as `_us` or `_GBps`; otherwise it is a factor or a
    number. Raise `KeyError` for an unknown name, and `AttributeError` for an architecture
    other than Ampere, Hopper and Blackwell. The profile must name a known GPU.
    """
    gpu = profile.known_gpu
    assert gpu is not None, "check_model refuses such profiles"
    return START_VALUES[name].value(gpu.architecture)


def network_us(profile: MachineProfile, protocol: str) -> float:
    """Return the time of a hop between nodes in us.

    It is that of the profile's first fitted network: its hop for large messages with Simple,
    otherwise its hop for small messages (64 KiB). Without a network it is the start value of the
    protocol.
    """
    for network in profile.networks:
        hops = dict(zip(NETWORK_NAMES, network.values, strict=True))
        return hops["hop_large_us" if protocol == "simple" else "hop_small_us"]
    return start_value(profile, f"network_{protocol}_us")


def network_efficiency(profile: MachineProfile) -> float:
    """Return the fraction of the NICs' nominal bandwidth that messages get, by architecture."""
    return start_value(profile, "network_efficiency")
