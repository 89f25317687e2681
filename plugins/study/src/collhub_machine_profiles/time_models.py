"""Models of NCCL's times: within one node with NVLink, and between nodes.

The model of a node is a closed form of 21 constants; the model between nodes has a latency by hop
and the rate of the network cards. Units: us, bytes, GB/s. Rates are per channel; `BP` is per GPU.
The choice of algorithm and channels is NCCL's (`nccl_choice`); the constants describe the machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from collhub_machine_profiles.calls import CollectiveCall, MedianTimes, may_be_equal
from collhub_machine_profiles.gpus import Gpu
from collhub_machine_profiles.nccl_choice import (
    MODELLED,
    NVLINK_EXCHANGE_CHANNELS,
    NcclChoice,
    choose,
)
from collhub_machine_profiles.nccl_constants import DEFAULT_VERSION
from collhub_machine_profiles.nccl_costs import ring_steps
from hub_core.plugin_api import Library

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

NAMES = (
    "b", "hLL", "gLL", "rLL", "b128", "h128", "r128", "bS", "LS", "rS", "yS",
    "bN", "oN", "rN", "bP", "nP", "pLL", "bPS", "cP", "BP", "rP",
)  # fmt: skip

MEANINGS = {
    "b": "start of a ring call with LL, us",
    "hLL": "step of LL, us",
    "gLL": "growth of the start with LL by threads and channels, fraction",
    "rLL": "rate of a channel with LL, GB/s",
    "b128": "start of a ring call with LL128, us",
    "h128": "step of LL128, us",
    "r128": "rate of a channel with LL128, GB/s",
    "bS": "start of a ring call with Simple, us",
    "LS": "visibility of a slice with Simple, us",
    "rS": "rate of a channel with Simple, GB/s",
    "yS": "steps without a transfer with Simple",
    "bN": "start of an NVLS call, us",
    "oN": "cost of an NVLS chunk, us",
    "rN": "rate of an NVLS channel, GB/s",
    "bP": "start of an exchange, us",
    "nP": "growth of the start of an exchange per peer, fraction",
    "pLL": "rate of an exchange channel with LL, GB/s",
    "bPS": "start of an exchange with Simple relative to LL",
    "cP": "rate of an exchange channel with Simple, GB/s",
    "BP": "rate of a GPU in an exchange, GB/s",
    "rP": "rate of one of 32 channels in an exchange, GB/s",
}

# A chunk of NVLS passes three stages: into the buffer of the switch, sum, and out of the buffer.
# Each stage works on another chunk, so that two more chunk times pass until all are busy.
NVLS_FILL_CHUNKS = 2
EXCHANGE_SLICE_BYTES = 128 * 1024
"""Largest part of a message that an exchange copies after the last transfer."""
# A call with all threads starts later than one with 128, and one with more channels later than one
# with a single channel: a doubling of the channels counts as a quarter of one of the threads.
_DOUBLINGS_OF_THREADS, _DOUBLINGS_OF_CHANNELS = 2, 8

_FORMS = ("ring ll", "ring ll128", "ring simple", "nvls simple", "p2p ll", "p2p simple")


@dataclass(frozen=True, slots=True)
class CallColumns:
    """Calls as columns of equal length: the formula of each call and its inputs.

    `form` indexes `_FORMS`; `share` is the bytes of one rank and channel of a ring; `growth` is
    that of `start_growth`.
    """

    form: IntArray
    ranks: FloatArray
    steps: FloatArray
    size: FloatArray
    channels: FloatArray
    share: FloatArray
    growth: FloatArray
    chunk: FloatArray

    def take(self, rows: NDArray[np.bool_]) -> CallColumns:
        """Return the calls for which the mask `rows` is True, in order."""
        columns = (getattr(self, name)[rows] for name in self.__slots__)
        return CallColumns(*columns)


def is_modelled(gpu: Gpu, point: CollectiveCall) -> bool:
    """Whether the closed form applies: NCCL's unforced choice on one node, with at most the node's
    number of GPUs, for a GPU with a model and a collective in `MODELLED`.
    """
    return (
        gpu.has_model
        and point.library.name == "NCCL"
        and not point.library.variant
        and point.nodes == 1
        and point.ranks <= gpu.gpus_per_node
        and point.collective in MODELLED
    )


def choice_of(gpu: Gpu, point: CollectiveCall, version: str) -> NcclChoice:
    """Return NCCL's choice of algorithm and channels for a call on one node (`choose`).

    The version of NCCL is that of the call's library, if known, else `version` if it is not
    empty, else `DEFAULT_VERSION`. The number of nodes of the call is ignored. Errors are
    those of `choose`: `KeyError` for an unknown collective, `ValueError` if no algorithm is
    allowed.
    """
    used = point.library.version or version or DEFAULT_VERSION
    return choose(gpu, used, point.collective, point.ranks, point.size_bytes, point.dtype)


def call_columns(
    gpu: Gpu,
    points: Sequence[CollectiveCall],
    version: str,
    choices: Sequence[NcclChoice] | None = None,
) -> CallColumns:
    """Convert calls to the columns from which `predict` computes times, in the order of `points`.

    `choices`: how each call is executed (algorithm, protocol, channels, threads, chunk), one per
    call. By default NCCL's choice on this GPU counts, for the version of the call's library, else
    `version`, else `DEFAULT_VERSION`. Sizes are bytes of the full buffer. `share` is size / (ranks
    * channels), `steps` is `ring_steps`, and `chunk` is in bytes and at least 1. Without points
    all columns are empty. Raises `ValueError` if algorithm and protocol of a choice are not one of
    `_FORMS`.
    """
    if choices is None:
        choices = [choice_of(gpu, point, version) for point in points]
    ranks = np.array([point.ranks for point in points], dtype=float)
    size = np.array([point.size_bytes for point in points], dtype=float)
    channels = np.array([choice.channels for choice in choices], dtype=float)
    threads = np.array([choice.threads for choice in choices], dtype=float)
    return CallColumns(
        np.array(
            [_FORMS.index(f"{choice.algorithm} {choice.protocol}") for choice in choices], dtype=int
        ),
        ranks,
        np.array([ring_steps(point.collective, point.ranks) for point in points], dtype=float),
        size,
        channels,
        size / (ranks * channels),
        start_growth(threads, channels),
        np.array([max(choice.chunk_bytes, 1) for choice in choices], dtype=float),
    )


def start_growth(threads: FloatArray | float, channels: FloatArray | float) -> FloatArray:
    """Return the factor of the constant `gLL` by which the start of a call with LL takes longer.

    It grows with the launch, logarithmically: 0 for one channel of 128 threads; 512 threads add 1,
    and 32 channels add 5/8. Fewer threads count as 128, more as 512.
    """
    of_threads = np.log2(np.maximum(threads, 1) / 128) / _DOUBLINGS_OF_THREADS
    return np.clip(of_threads, 0, 1) + np.log2(channels) / _DOUBLINGS_OF_CHANNELS


def predict(constants: FloatArray, calls: CallColumns) -> FloatArray:
    """Return the times of calls in us, each by the formula that its column `form` selects.

    The result is float64, one entry per call. A form is a pair of algorithm and protocol, given
    as its index in `_FORMS`; a call with another number has time 0. `constants`: one per name
    of `NAMES`, in this order. Another number of constants raises `ValueError`. They must be
    positive, which is not checked.
    """
    value = dict(zip(NAMES, constants, strict=True))
    ring_ll_step_us = smooth_maximum(value["hLL"], _us(calls.share, value["rLL"]), 3)
    ring_ll_us = value["b"] * (1 + value["gLL"] * calls.growth) + calls.steps * ring_ll_step_us

    ring_ll128_step_us = smooth_maximum(value["h128"], _us(calls.share, value["r128"]), 3)
    ring_ll128_us = value["b128"] + calls.steps * ring_ll128_step_us

    # A chunk is sent in two slices; the second is sent while the first becomes visible.
    half_us = _us(calls.share, 2 * value["rS"])
    ring_simple_step_us = half_us + smooth_maximum(half_us, value["LS"], 4)
    # A ring of two overlaps its local step with the transfers: a third of the time.
    local = np.where(calls.ranks == 2, value["yS"] / 3, value["yS"])
    ring_simple_us = value["bS"] + calls.steps * ring_simple_step_us + local * 2 * half_us

    # A call of less than a chunk waits as long as one of a chunk: NCCL counts 25 us for any size.
    chunk_us = _us(calls.chunk, value["rN"])
    loops = calls.size / (calls.channels * calls.ranks * calls.chunk)
    nvls_us = value["bN"] + NVLS_FILL_CHUNKS * chunk_us + loops * (value["oN"] + chunk_us)

    exchange_start_us = value["bP"] * (1 + value["nP"] * (calls.ranks - 1))
    exchange_ll_us = exchange_start_us + _us(
        calls.size / calls.ranks / calls.channels, value["pLL"]
    )

    share = calls.size / calls.ranks
    channels_us = _us(calls.size, NVLINK_EXCHANGE_CHANNELS * value["rP"])
    wire_us = smooth_maximum(channels_us, _us((calls.ranks - 1) * share, value["BP"]), 6)
    part = share / calls.channels
    moved_us = smooth_maximum(_us(part, value["cP"]), wire_us, 3)
    last_us = drain_us((calls.ranks - 1) * calls.channels, part, value["cP"])
    exchange_simple_us = exchange_start_us * value["bPS"] + moved_us + last_us

    # In the order of `_FORMS`.
    times_us = [
        *(ring_ll_us, ring_ll128_us, ring_simple_us, nvls_us),
        *(exchange_ll_us, exchange_simple_us),
    ]
    return np.select([calls.form == index for index in range(len(_FORMS))], times_us)


def _us(size_bytes: FloatArray, rate: float) -> FloatArray:
    """Return microseconds for bytes at a rate in GB/s."""
    return size_bytes / (rate * 1e3)


def smooth_maximum(first: FloatArray | float, second: FloatArray | float, power: int) -> FloatArray:
    """Return a smooth maximum of two positive times: (first^p + second^p)^(1/p), p = `power`."""
    top = np.maximum(first, second)
    return np.asarray(top * ((first / top) ** power + (second / top) ** power) ** (1 / power))


def drain_us(messages: FloatArray | float, part: FloatArray | float, rate: float) -> FloatArray:
    """Return the time in us in which a GPU copies the last slices of its messages from the FIFOs.

    It is messages / 32 * min(part, `EXCHANGE_SLICE_BYTES`) / rate, because the messages share the
    `NVLINK_EXCHANGE_CHANNELS` = 32 channels. `messages`: number of messages over all peers and
    channels; `part`: bytes of each; both may be arrays. `rate`: GB/s of one channel. So the time
    does not grow for parts larger than a slice. Example: at 1.43 GB/s, 7 peers on 32 channels each
    take 20 us for such parts, 3 peers 9 us.
    """
    slices = np.minimum(part, EXCHANGE_SLICE_BYTES)
    return np.asarray(messages / NVLINK_EXCHANGE_CHANNELS * slices / (rate * 1e3))


NETWORK_NAMES = (
    "hop_small_us",
    "hop_growth",
    "rate_small_GBps",
    "hop_large_us",
    "rate_large_GBps",
)
MIN_TABLES = 3
MAX_GROWTH = 0.35

_START_US = 7.0
_HOP_BYTES = 64 * 1024
_MIN_HOP = 0.1
_POWER = 6


@dataclass(frozen=True, slots=True)
class NetworkModel:
    """Constants in the order of `NETWORK_NAMES` of one number of GPUs per node.

    `points` is the number of fitted measurements, `nodes` the numbers of nodes that they cover.
    """

    library: Library
    ranks_per_node: int
    values: tuple[float, ...]
    points: int
    nodes: tuple[int, ...]

    def applies_to(self, point: CollectiveCall) -> bool:
        """Whether the model predicts a point: `is_between_nodes`, a library that may be equal to
        the model's, exactly `ranks_per_node` ranks per node, and a node count from the smallest to
        the largest measured one.
        """
        return (
            is_between_nodes(point)
            and may_be_equal(point.library, self.library)
            and point.ranks == self.ranks_per_node * point.nodes
            and self.nodes[0] <= point.nodes <= self.nodes[-1]
        )

    def times_us(self, points: Sequence[CollectiveCall]) -> FloatArray:
        """Return the predicted times of points in us, float64.

        Whether the model applies (`applies_to`) is not checked.
        """
        return np.exp(log_network_times(np.log(self.values), *network_columns(points)))


def is_between_nodes(point: CollectiveCall) -> bool:
    """Whether the form describes a point: an all-reduce on at least two nodes with the same number
    of ranks, of no particular dtype.
    """
    return (
        point.collective == "all-reduce"
        and point.nodes > 1
        and point.ranks % point.nodes == 0
        and not point.dtype
    )


def bandwidth_factor(point: CollectiveCall) -> float:
    """Return the algorithm bandwidth of a large all-reduce relative to the NICs of a node.

    Two nodes use a tree, whose node sends the vector once; more nodes use rings.
    """
    return 1.0 if point.nodes == 2 else point.ranks / (2 * (point.ranks - 1))


def network_columns(
    points: Sequence[CollectiveCall],
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return (sizes in bytes, 2 log2(nodes), bandwidth factors): float64, one entry per call.

    The factor (`bandwidth_factor`) is 1 for two nodes, otherwise n / (2 (n - 1)) for n ranks. All
    calls must have at least two ranks.
    """
    sizes = np.array([point.size_bytes for point in points], dtype=float)
    nodes = np.array([point.nodes for point in points], dtype=float)
    factor = np.array([bandwidth_factor(point) for point in points])
    return sizes, 2 * np.log2(nodes), factor


def log_network_times(
    position: FloatArray, sizes: FloatArray, hops: FloatArray, factor: FloatArray
) -> FloatArray:
    """Return ln of the times in us of all-reduces between nodes, by the model of a network.

    `position`: ln of the five constants (`NETWORK_NAMES`). The other arguments have one
    entry per call (see `network_columns`): `sizes` in bytes, `hops` (2 log2(nodes)), and
    `factor`, by which the rate of the protocol for large sizes is multiplied.

    The time is a smooth minimum of two protocols, one for small and one for large sizes.
    The time of each is a constant start + hops x the time per hop + size / rate. The time
    per hop of the protocol for small sizes has its constant value at 64 KiB. With every
    doubling of the size it grows by the fraction `growth` of that value, and smoothly
    approaches 0 for the smallest sizes. Measured on Slingshot, for 2 to 64 nodes: 8 us at
    1 KiB, 17 at 4, 24 at 16 and 32 at 64 KiB.
    """
    hop_small, growth, rate_small, hop_large, rate_large = np.exp(position)
    line = 1 + growth * np.log2(sizes / _HOP_BYTES)
    hop = hop_small * _MIN_HOP * np.logaddexp(0, line / _MIN_HOP)
    small = _START_US + hops * hop + sizes / (rate_small * 1e3)
    large = _START_US + hops * hop_large + sizes / (rate_large * factor * 1e3)
    minimum = np.minimum(small, large)
    power = (small / minimum) ** -_POWER + (large / minimum) ** -_POWER
    return np.asarray(np.log(minimum) - np.log(power) / _POWER)


def extrapolate_nodes(tables: Sequence[MedianTimes], point: CollectiveCall) -> float | None:
    """Estimate the time in us of a call on more nodes than were measured, or return None.

    A table counts if it has two or more nodes, and the collective, data type and ranks per node of
    the call. Its library must be equal too; an unknown version equals any (`may_be_equal`). The
    estimate is t + slope * log2(nodes of the call / nodes of the largest table). t is the time of
    the largest table for the size of the call, interpolated between its sizes. The slope is the
    median over all pairs of tables (Theil-Sen) of the difference of times divided by that of
    log2(nodes). It is limited to 0..`MAX_GROWTH` * t, that is 0.35 t per doubling.

    Of several tables with equal numbers of nodes, which differ in the version of the library, only
    one counts: the first that has the version of the call, else the first. Returns None for fewer
    than `MIN_TABLES` (3) such tables, or if the call has no more nodes than
    the largest of them.
    """
    table_of_nodes: dict[int, MedianTimes] = {}
    # Stable: tables with the version of the call come first.
    for table in sorted(tables, key=lambda table: table.library != point.library):
        if (
            table.nodes > 1
            and (table.collective, table.dtype) == (point.collective, point.dtype)
            and may_be_equal(table.library, point.library)
            and table.ranks * point.nodes == point.ranks * table.nodes
        ):
            table_of_nodes.setdefault(table.nodes, table)
    same = [table_of_nodes[nodes] for nodes in sorted(table_of_nodes)]
    if len(same) < MIN_TABLES or point.nodes <= same[-1].nodes:
        return None
    size = np.array([point.size_bytes], dtype=float)
    doublings = np.log2([table.nodes for table in same])
    times_us = np.array([float(table.time_us(size)[0]) for table in same])
    first, second = np.triu_indices(len(same), 1)
    slopes = (times_us[second] - times_us[first]) / (doublings[second] - doublings[first])
    slope = float(np.clip(np.median(slopes), 0, MAX_GROWTH * times_us[-1]))
    return float(times_us[-1] + slope * (np.log2(point.nodes) - doublings[-1]))
