"""NCCL's choice for a call: algorithm, protocol, channels, threads, chunk, and symmetric kernels.

NCCL takes the alternative of the lowest cost (`nccl_costs`) and reduces channels and threads for
small calls (src/enqueue.cc of NCCL 2.18 to 2.30). NCCL 2.27 and later use symmetric kernels for
buffers that are registered as symmetric windows, within one node (src/sym_kernels.cc).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from collhub_machine_profiles.gpus import Gpu
from collhub_machine_profiles.nccl_costs import (
    Alternative,
    Communicator,
    cost_us,
    is_last_resort,
    list_alternatives,
)

MODELLED = frozenset({"all-reduce", "all-gather", "reduce-scatter", "all-to-all"})
"""Collectives for which a fitted model of one node exists."""

_MAX_THREADS = {"ll": 512, "ll128": 640, "simple": 512}
_ALL_THREADS = 640
_SLOW_THREADS, _SLOW_BANDWIDTH = 256, 12.0
_WORK_BYTES = {"ll": 8, "ll128": 8, "simple": 64}
# Payload of one step of a channel's buffer; a chunk of ring Simple has four of its steps.
_CHUNK_BYTES = {"ll": 32 * 1024, "ll128": 576_000, "simple": 512 * 1024}
_RING_SIMPLE_CHUNK_BYTES = 2 * 1024 * 1024
_KIB = 1024
# (limit, chunk in KiB): the chunk of calls below limit x channels x heads x current chunk.
_NVLS_CHUNKS: tuple[tuple[int, int], ...] = ((64, 64), (8, 32), (2, 16))
_NVLS_TREE_CHUNKS: tuple[tuple[int, int], ...] = ((32, 256), (16, 128), (4, 64), (1, 32))
_NVLS_TREE_CHUNK, _MANY_NODES_CHUNK = 512 * _KIB, 64 * _KIB
NVLS_CHUNK_BYTES = 128 * _KIB
"""Largest chunk of NVLS on one node."""
NVLS_MIN_CHUNK_BYTES = 16 * _KIB
"""Smallest chunk of NVLS on one node."""
_MANY_NODES = 4

_EXCHANGE_LL_BYTES = 16 * 1024
_EXCHANGE_STEP_BYTES = {True: 512 * 1024, False: 128 * 1024}
NVLINK_EXCHANGE_CHANNELS = 32
"""Largest number of channels of each peer in an all-to-all on one node with NVLink."""
_EXCHANGE_CHANNELS = {True: NVLINK_EXCHANGE_CHANNELS, False: 2}


@dataclass(frozen=True, slots=True)
class NcclChoice:
    """Execution of one call by NCCL.

    `chunk_bytes` is the payload that a channel sends in one step. For all-to-all `algorithm` is
    "p2p" and `channels` are those of each peer.
    """

    algorithm: str
    protocol: str
    channels: int
    threads: int
    chunk_bytes: int = 0


def choose(
    gpu: Gpu, version: str, collective: str, ranks: int, size_bytes: int, dtype: str = ""
) -> NcclChoice:
    """Return NCCL's choice for a call on one node: algorithm, protocol, channels, threads, chunk.

    It is the allowed algorithm and protocol with the lowest cost in NCCL's model; an all-to-all
    is always a group of sends and receives. `collective`: one of `MODELLED`; `KeyError` is
    raised for an unknown one. `size_bytes`: bytes of the full vector. `dtype`: "int8" or
    "uint8" for 8-bit integers. NVLS cannot add them, so it is not allowed for them in
    all-reduces and reduce-scatters. Raises `ValueError` if no algorithm is allowed for the
    call.
    """
    communicator = Communicator(gpu, ranks, 1, version)
    if collective == "all-to-all":
        return choose_exchange(communicator, size_bytes)
    best = cheapest_alternative(communicator, collective, size_bytes, dtype)
    return launch_of(communicator, collective, best, size_bytes)


def cheapest_alternative(
    communicator: Communicator, collective: str, size_bytes: int, dtype: str = ""
) -> Alternative:
    """Return the algorithm and protocol that NCCL chooses: the allowed pair with the lowest cost.

    The cost is the time in us of `cost_us` for `size_bytes`, the bytes of the full vector. Of equal
    costs, the first in NCCL's numbering (`list_alternatives`) wins. `dtype` has two effects: NVLS
    is not allowed to add int8 and uint8; and a ring with 8-bit floats on many ranks is a last
    resort (`is_last_resort`). A last resort is chosen only if no other pair is allowed.

    Raises `ValueError` if no pair is allowed, and `KeyError` for a collective that `ALGORITHMS_OF`
    does not have, such as all-to-all.
    """
    allowed = [
        alternative
        for alternative in list_alternatives(communicator, collective, dtype)
        if not alternative.refusal
    ]
    return min(
        allowed,
        key=lambda alternative: (
            is_last_resort(communicator, alternative.algorithm, dtype),
            cost_us(communicator, collective, alternative, size_bytes),
        ),
    )


def find_choice_windows(
    communicator: Communicator, collective: str, algorithm: str = ""
) -> list[tuple[int, int, Alternative]]:
    """Return ranges of sizes in which NCCL's choice is the same: (first, last, alternative).

    Sizes are in bytes, both ends are included, and the ranges ascend without gaps from 0 bytes to
    31/16 TiB. The last one also applies to larger sizes. Neighbouring ranges have different
    choices. The choice is the allowed algorithm and protocol with the lowest `cost_us`; of equal
    costs, the first in the order of `list_alternatives`. Last resorts are not treated differently.
    `algorithm` restricts the choice to one algorithm; "" means all. The list is empty if nothing is
    allowed.

    Only 16 sizes per power of two from 1 byte on are evaluated; size 0 has the choice of 1 byte.
    Where the choices at two neighbouring sizes differ, the border is found by bisection. A choice
    that is the best only between two such sizes can be missed.
    """
    allowed = [
        alternative
        for alternative in list_alternatives(communicator, collective)
        if not alternative.refusal and algorithm in ("", alternative.algorithm)
    ]
    if not allowed:
        return []

    def find_cheapest(size: int) -> Alternative:
        return min(
            allowed, key=lambda alternative: cost_us(communicator, collective, alternative, size)
        )

    sizes = sorted({(16 + step) << power >> 4 for power in range(41) for step in range(16)})
    windows: list[tuple[int, int, Alternative]] = []
    start, previous = 0, find_cheapest(sizes[0])
    for below, size in pairwise(sizes):
        best = find_cheapest(size)
        if best == previous:
            continue
        low, high = below, size
        while high - low > 1:
            middle = (low + high) // 2
            if find_cheapest(middle) == previous:
                low = middle
            else:
                high = middle
        windows.append((start, low, previous))
        start, previous = high, best
    windows.append((start, sizes[-1], previous))
    return windows


def launch_of(
    communicator: Communicator, collective: str, alternative: Alternative, size_bytes: int
) -> NcclChoice:
    """Return how NCCL executes a call: channels, threads per channel, and chunk in bytes.

    The algorithm and protocol are those of `alternative`. `size_bytes`: bytes of the full vector.

    - Rings and trees: channels and threads of `_reduce_blocks`, which are fewer for small calls.
      The chunk is `fifo_chunk_bytes`, which does not depend on the size.
    - NVLS and NVLS tree: 640 threads (`_ALL_THREADS`) and all NVLS channels, but NVLS on several
      nodes uses at most `collective_channels()`. The chunk is smaller for small calls
      (`_nvls_chunk_bytes`).
    """
    algorithm, protocol = alternative.algorithm, alternative.protocol
    if algorithm in {"nvls", "nvls_tree"}:
        channels = communicator.nvls_channels()
        if algorithm == "nvls" and communicator.nodes > 1:
            channels = min(channels, communicator.collective_channels())
        chunk = _nvls_chunk_bytes(communicator, algorithm, channels, size_bytes)
        return NcclChoice(algorithm, protocol, channels, _ALL_THREADS, chunk)
    channels, threads = _reduce_blocks(communicator, collective, algorithm, protocol, size_bytes)
    return NcclChoice(algorithm, protocol, channels, threads, fifo_chunk_bytes(algorithm, protocol))


def fifo_chunk_bytes(algorithm: str, protocol: str) -> int:
    """Return the payload in bytes that a channel of a ring or tree sends in one step.

    It is 2 MiB for a ring with Simple. Otherwise it depends on `protocol` only: 32 KiB for
    "ll", 576000 bytes for "ll128", 512 KiB for "simple". Raise `KeyError` for another
    protocol.
    """
    if (algorithm, protocol) == ("ring", "simple"):
        return _RING_SIMPLE_CHUNK_BYTES
    return _CHUNK_BYTES[protocol]


def choose_exchange(communicator: Communicator, size_bytes: int) -> NcclChoice:
    """Return NCCL's execution of an all-to-all, a group of one send and receive per peer.

    `size_bytes`: bytes of the buffer of one rank; the share of a peer is this divided by the
    ranks. The algorithm is "p2p", with 512 threads and the channels of `exchange_channels`.
    The chunk is 512 KiB on one node with NVLink, otherwise 128 KiB. The protocol is "ll" if
    the share has at most `_EXCHANGE_LL_BYTES` (16 KiB) per channel, otherwise "simple".
    """
    share = size_bytes / communicator.ranks
    is_nvlink = communicator.gpu.has_nvlink and communicator.nodes == 1
    channels = exchange_channels(share, is_nvlink=is_nvlink)
    protocol = "ll" if share <= _EXCHANGE_LL_BYTES * channels else "simple"
    return NcclChoice("p2p", protocol, channels, 512, _EXCHANGE_STEP_BYTES[is_nvlink])


def exchange_channels(peer_bytes: float, *, is_nvlink: bool) -> int:
    """Return the number of channels on which NCCL sends the data for one peer in an all-to-all.

    It is `peer_bytes` divided by 64 KiB with NVLink, 16 KiB without, rounded up (an eighth
    of a chunk per channel). It is at least 1, and at most 32 with NVLink, 2 without.
    """
    needed = -(-peer_bytes // (_EXCHANGE_STEP_BYTES[is_nvlink] // 8))
    return int(min(max(needed, 1), _EXCHANGE_CHANNELS[is_nvlink]))


def _reduce_blocks(
    communicator: Communicator, collective: str, algorithm: str, protocol: str, size_bytes: int
) -> tuple[int, int]:
    """Return how many channels and threads per channel a call uses: fewer for small calls.

    The rules in their order:

    1. There are 512 threads for LL and Simple, 640 for LL128 (`_MAX_THREADS`). A ring with Simple
       has 256 if NCCL's search finds at most 12 GB/s in all channels.
    2. Each thread should have W bytes: 8 for LL and LL128, 64 for Simple; for a ring with LL, 8
       times the ranks. The channels are `size_bytes` / (threads * W), rounded down. They are at
       least 1 and at most `collective_channels()`.
    3. If that is 1, the threads are halved while `size_bytes` is below threads * W and they are a
       multiple of 128. For example, 512 become at least 64.
    4. The channels are reduced, down to 1, to traffic / `minimum_channel_traffic` of the NCCL
       version, rounded up. The traffic is the size, twice the size for all-reduce, and four times
       that for LL.
    5. Algorithms other than rings have 640 threads (`_ALL_THREADS`) in the end.
    """
    threads = _MAX_THREADS[protocol]
    count, speed = communicator.search_channels()
    if (algorithm, protocol) == ("ring", "simple") and count * speed <= _SLOW_BANDWIDTH:
        threads = _SLOW_THREADS
    work = _WORK_BYTES[protocol]
    if (algorithm, protocol) == ("ring", "ll"):
        work *= communicator.ranks
    channels = min(communicator.collective_channels(), max(1, size_bytes // (threads * work)))
    while channels == 1 and size_bytes < threads * work and threads % 128 == 0:
        threads //= 2
    traffic = size_bytes * (2 if collective == "all-reduce" else 1)
    traffic *= 4 if protocol == "ll" else 1
    minimum = communicator.constants.minimum_channel_traffic
    channels = min(channels, max(1, -(-traffic // minimum)))
    return channels, threads if algorithm == "ring" else _ALL_THREADS


def _nvls_chunk_bytes(
    communicator: Communicator, algorithm: str, channels: int, size_bytes: int
) -> int:
    """Return the number of bytes that NVLS or an NVLS tree processes at a time (its chunk).

    `size_bytes`: bytes of the full vector. Let x be `size_bytes` divided by the product of
    `channels` and the ranks per node. The chunk is:

    - algorithm "nvls": 128 KiB; 64 KiB if x < 8 MiB; 32 KiB if x < 512 KiB; 16 KiB if x < 64 KiB
    - any other algorithm, up to 3 nodes: 512 KiB; 256 KiB if x < 16 MiB; 128 KiB if x < 4 MiB;
      64 KiB if x < 512 KiB; 32 KiB if x < 64 KiB
    - any other algorithm, 4 or more nodes: 64 KiB; 32 KiB if x < 64 KiB

    If several conditions hold, the last one applies.
    """
    parallel = channels * communicator.ranks_per_node
    if algorithm == "nvls":
        return nvls_chunk_bytes(size_bytes, parallel)
    is_large = communicator.nodes >= _MANY_NODES
    chunk = _MANY_NODES_CHUNK if is_large else _NVLS_TREE_CHUNK
    return _reduce_chunk(chunk, _NVLS_TREE_CHUNKS, size_bytes, parallel)


def nvls_chunk_bytes(size_bytes: int, parallel: int) -> int:
    """Return the chunk of NVLS in bytes, at most 128 KiB.

    It is halved for calls of few chunks in each of `parallel` (channels times heads of a node).
    """
    return _reduce_chunk(NVLS_CHUNK_BYTES, _NVLS_CHUNKS, size_bytes, parallel)


def _reduce_chunk(
    chunk: int, limits: tuple[tuple[int, int], ...], size_bytes: int, parallel: int
) -> int:
    """Reduce a chunk (bytes processed at a time) for small calls, and return it in bytes.

    `limits`: pairs (L, K), applied in order, each to the result of the previous one. If
    `size_bytes` is below L x `parallel` x chunk, the chunk becomes at most K KiB; otherwise
    it does not change. `parallel`: number of chunks that are processed at the same time.
    """
    for limit, smaller in limits:
        if size_bytes < limit * parallel * chunk:
            chunk = min(chunk, smaller * _KIB)
    return chunk


KERNELS: Mapping[str, tuple[str, ...]] = {
    "all-reduce": ("AGxLL_R", "AGxLLMC_R", "RSxLD_AGxST", "RSxLDMC_AGxSTMC"),
    "all-gather": ("LL", "LLMC", "ST", "STMC"),
    "reduce-scatter": ("LL", "LD", "LDMC"),
}
"""Symmetric kernels by collective; LL sends flags with the data, MC uses multicast of NVSwitch."""

MAX_BLOCKS = 64
MIN_RELATIVE_GAIN = 0.025
_GIB = 2**30
_SPREAD_BLOCKS = {"hopper": 16, "blackwell": 32}


@dataclass(frozen=True, slots=True)
class SymmetricLaunch:
    """A kernel, its number of thread blocks, and its time in us by NCCL's model."""

    kernel: str
    blocks: int
    time_us: float


def list_symmetric_launches(
    communicator: Communicator, collective: str, size_bytes: int
) -> list[SymmetricLaunch]:
    """Return how NCCL would run each of its symmetric kernels of a collective, its choice first.

    Symmetric kernels use buffers that are registered as symmetric windows. The order is by
    `time_us` * (1 + 0.025 * `blocks`), ties in the order of `KERNELS`; `time_us` itself is
    without this factor. `size_bytes`: bytes of the full vector. The result is empty for several
    nodes, and if the NCCL version, the GPU architecture or the collective has no such kernels.
    """
    if (
        not communicator.constants.has_symmetric_kernels
        or communicator.gpu.architecture not in _SPREAD_BLOCKS
        or communicator.nodes > 1
        or collective not in KERNELS
    ):
        return []
    launches = [_launch(communicator, collective, name, size_bytes) for name in KERNELS[collective]]
    return sorted(launches, key=lambda one: one.time_us * (1 + MIN_RELATIVE_GAIN * one.blocks))


def _launch(
    communicator: Communicator, collective: str, name: str, size_bytes: int
) -> SymmetricLaunch:
    """Return the number of blocks of a symmetric kernel of NCCL and its expected time in us.

    `name`: without the collective, e.g. `AGxLL_R`; the result has `AllReduce_AGxLL_R`. A collective
    other than all-reduce and all-gather counts as reduce-scatter. `LL` in the name marks
    low-latency kernels, `MC` multicast. `size_bytes`: full buffer.

    - Blocks: the fewest whose time is at most 2.5 % above that with the limit. The limit is 64
      (`MAX_BLOCKS`); for MC without LL 16 (Hopper) or 32 (Blackwell) / ranks, rounded up.
    - Bytes moved, with share = size / ranks: LL 9 * ranks * share, in an all-reduce 9 * ranks *
      size; MC all-reduce share + size; else (ranks - 1) * share, twice that in an all-reduce.
    - The other inputs of `_time_us` are constants of NCCL, by architecture, collective, LL, MC and
      `name`. All architectures except Hopper have those of Blackwell.
    - Raises `KeyError` for MC without LL on an architecture other than these two.
    """
    ranks, architecture = communicator.ranks, communicator.gpu.architecture
    share = size_bytes / ranks
    is_hopper, is_all_reduce = architecture == "hopper", collective == "all-reduce"
    is_ll, is_multicast = "LL" in name, "MC" in name
    multiplier, limit = 1.0, MAX_BLOCKS
    if is_ll:
        # Every rank sends its data to all others; flags and processing cost nine times the bytes.
        moved = 9.0 * ranks * (size_bytes if is_all_reduce else share)
        multiplier = 1.1 if is_multicast else 1.0
    elif is_all_reduce and is_multicast:
        moved, multiplier = share + size_bytes, float(ranks)
    else:
        moved = (2 if is_all_reduce else 1) * (ranks - 1) * share
        multiplier = 0.55 * ranks if is_multicast else 1.0
    if is_multicast and not is_ll:
        limit = -(-_SPREAD_BLOCKS[architecture] // ranks)
    if is_hopper:
        base_us = 4.5 if is_ll else 7.8
        rate = 65.0 if is_all_reduce else 44.0
        peak = 480.0 if name == "RSxLDMC_AGxSTMC" else 320.0
    else:
        base_us = 19.5 if is_all_reduce else 13.0
        if is_ll:
            base_us = 8.5 if collective == "all-gather" else 11.0
        rate = 55.0
        peak = 1000.0 if name == "RSxLDMC_AGxSTMC" else 600.0
    times = [
        _time_us(moved, base_us, blocks, rate, multiplier, peak) for blocks in range(1, limit + 1)
    ]
    blocks = next(
        index for index, time in enumerate(times, 1) if time <= times[-1] * (1 + MIN_RELATIVE_GAIN)
    )
    prefix = {"all-reduce": "AllReduce", "all-gather": "AllGather"}.get(collective, "ReduceScatter")
    return SymmetricLaunch(f"{prefix}_{name}", blocks, times[blocks - 1])


def _time_us(
    moved: float, base_us: float, blocks: int, rate: float, multiplier: float, peak: float
) -> float:
    """Return the time in us of a symmetric kernel that moves `moved` bytes on `blocks` blocks.

    `rate` (of one block) and `peak` (of all) are bandwidths in GiB/s (2^30 bytes).

    1. a = `blocks` x `rate` x `multiplier`, the bandwidth of these blocks without a limit.
    2. The bandwidth is a smooth minimum of a and `peak`:
       peak - rate * ln(1 + (e^(peak/rate) - 1) * e^(-a/rate)).
    3. The transfer time t is `moved` divided by this bandwidth, in us.
    4. The result is `base_us` + ln(1 + e^(t - 1)); above t = 101 it is `base_us` + t - 1.

    `blocks` must be at least 1. Raises `ZeroDivisionError` for `rate` 0 or a bandwidth of 0,
    and `OverflowError` if `peak` / `rate` is above about 709.
    """
    attained = blocks * rate * multiplier
    # A smooth minimum of `attained` and `peak`, which bends within one block's rate.
    bandwidth = peak - rate * math.log1p(math.expm1(peak / rate) * math.exp(-attained / rate))
    transfer_us = moved / (bandwidth * _GIB) * 1e6 - 1
    return base_us + (transfer_us if transfer_us > 100 else math.log1p(math.exp(transfer_us)))
