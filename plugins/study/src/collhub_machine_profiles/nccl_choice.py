"""NCCL's choice on one node: algorithm, protocol, channels, threads and chunk of a call.

The formulas restate NCCL's cost model (src/graph/tuning.cc, src/enqueue.cc, 2.18 to 2.30). A tree
on one node is a chain and never cheaper than the ring, so trees are not considered.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from collhub_machine_profiles.gpus import Gpu

DEFAULT_VERSION = "2.29.2"
MODELLED = frozenset({"all-reduce", "all-gather", "reduce-scatter", "all-to-all"})

# Latencies in us: base and hop over NVLink of the ring, by protocol.
_RING_LATENCY = {"ll": (6.6, 0.6), "ll128": (14.0, 1.9), "simple": (8.4, 3.4)}
_NVLS_EFFICIENCY = {"hopper": 0.85, "blackwell": 0.74}
_MAX_THREADS = {"ll": 512, "ll128": 640, "simple": 512}
_EXCHANGE_LL_BYTES = 16 * 1024


@dataclass(frozen=True, slots=True)
class Choice:
    """Execution of one call by NCCL.

    `chunk_bytes` is the chunk of NVLS and 0 elsewhere. For all-to-all `algorithm` is "p2p" and
    `channels` are those of each peer.
    """

    algorithm: str
    protocol: str
    channels: int
    threads: int
    chunk_bytes: int = 0


@functools.cache
def version_numbers(version: str) -> tuple[int, int]:
    """Return (minor, patch) of NCCL 2; those of the default version if the text has no number."""
    match = re.match(r"2\.(\d{1,3})(?:\.(\d{1,3}))?", version)
    if match is None:
        return version_numbers(DEFAULT_VERSION)
    return int(match[1]), int(match[2] or 0)


def ring_steps(collective: str, ranks: int) -> int:
    """Return the number of steps of a ring."""
    return (2 if collective == "all-reduce" else 1) * (ranks - 1)


def choose(
    gpu: Gpu, version: str, collective: str, ranks: int, size_bytes: int, dtype: str = ""
) -> Choice:
    """Return NCCL's choice for a call on one node.

    `collective` is one of `MODELLED`, `size_bytes` is the full vector, `dtype` is "int8" for
    sums of 8-bit integers, which NVLS cannot compute.
    """
    if collective == "all-to-all":
        return _exchange(ranks, size_bytes)
    costs = ring_costs(gpu, version, collective, ranks)
    nvls = None if dtype == "int8" else nvls_cost(gpu, version, collective, ranks)
    if nvls is not None:
        costs["nvls"] = nvls
    # Latency in us plus bytes over GB/s; the first minimum wins.
    best = min(costs, key=lambda name: costs[name][0] + size_bytes / costs[name][1] / 1e3)
    if best == "nvls":
        return _nvls(gpu, version, ranks, size_bytes)
    return _ring(gpu, best, ranks, size_bytes)


def ring_costs(
    gpu: Gpu, version: str, collective: str, ranks: int
) -> dict[str, tuple[float, float]]:
    """Return latency in us and algorithm bandwidth in GB/s of the ring by protocol."""
    bandwidth = gpu.search_channels * gpu.channel_speed
    ll_cap, ll128_cap = _ring_caps(gpu.architecture, version)
    ll_share = 0.5
    if version_numbers(version)[0] <= 18:
        ll_share = 0.25 if collective == "all-reduce" else 1 / 3
    bus = {
        "ll": min(ll_cap, bandwidth * ll_share),
        "ll128": min(0.92 * bandwidth, gpu.search_channels * ll128_cap),
        "simple": bandwidth,
    }
    steps = ring_steps(collective, ranks)
    return {
        protocol: (base + steps * hop, bus[protocol] * ranks / steps)
        for protocol, (base, hop) in _RING_LATENCY.items()
    }


def _ring_caps(architecture: str, version: str) -> tuple[float, float]:
    """Return the caps of LL, and of LL128 per channel, in GB/s."""
    number = version_numbers(version)
    hopper = (87.7 if number[0] <= 18 else 141.0, 36.7)
    if architecture == "hopper":
        return hopper
    if architecture != "blackwell":
        return 87.7, 20.0
    if number < (29, 0):
        return 2 * hopper[0], 73.4
    return 282.0, 34.5 if number < (29, 7) else 40.0


def nvls_cost(gpu: Gpu, version: str, collective: str, ranks: int) -> tuple[float, float] | None:
    """Return latency in us and algorithm bandwidth in GB/s of NVLS; None if not available."""
    if not gpu.nvls_channels or ranks < 2:
        return None
    number = version_numbers(version)
    heads = ranks
    is_all_reduce = collective == "all-reduce"
    share = (ranks - 1) / ranks
    if number >= (28, 0):
        speed = gpu.nvls_speed * _NVLS_EFFICIENCY[gpu.architecture] * (heads - 1) / heads
        speed *= 2 if is_all_reduce else share
        factor = ranks / ring_steps(collective, ranks) if is_all_reduce else 1.0
    else:
        speed = gpu.nvls_speed if is_all_reduce else gpu.nvls_speed * min(share, 0.9)
        factor = 5 / 6 if is_all_reduce else 1.0
    latency = 23.0 if number[0] <= 18 else 25.0
    return latency, heads * speed * factor


def _ring(gpu: Gpu, protocol: str, ranks: int, size_bytes: int) -> Choice:
    """Drop channels, then halve threads, until every thread has its minimum of work."""
    threads = _MAX_THREADS[protocol]
    work = {"ll": 8 * ranks, "ll128": 8, "simple": 64}[protocol]
    channels = min(gpu.channels, max(1, size_bytes // (threads * work)))
    if channels == 1:
        while size_bytes < threads * work and threads % 128 == 0:
            threads //= 2
    return Choice("ring", protocol, channels, threads)


def _nvls(gpu: Gpu, version: str, ranks: int, size_bytes: int) -> Choice:
    channels = gpu.nvls_channels
    parallel = channels * ranks
    chunk = 128 * 1024
    for limit, smaller in ((64, 64), (8, 32), (2, 16)):
        if size_bytes < limit * parallel * chunk:
            chunk = min(chunk, smaller * 1024)
    return Choice("nvls", "simple", channels, 640, chunk)


def _exchange(ranks: int, size_bytes: int) -> Choice:
    share = size_bytes / ranks
    channels = int(min(max(-(-share // (64 * 1024)), 1), 32))
    protocol = "ll" if share <= _EXCHANGE_LL_BYTES * channels else "simple"
    return Choice("p2p", protocol, channels, 512)
