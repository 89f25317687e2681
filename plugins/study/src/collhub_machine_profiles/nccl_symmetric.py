"""NCCL's symmetric kernels: the kernel, the number of blocks and the time of a call.

NCCL 2.27 and later use them for buffers that are registered as symmetric windows, within one node
(src/sym_kernels.cc). Sizes in bytes, times in us, rates in 2^30 bytes per second.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from collhub_machine_profiles.nccl_costs import Communicator

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
    """Return all symmetric kernels of a collective, NCCL's choice first.

    NCCL adds 2.5 % to the time for every block. Empty if the version, the GPU or the collective has
    no such kernel, and for several nodes. `size_bytes` is the full vector.
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
    """Return the smallest number of blocks whose time is at most 2.5 % above that of all blocks."""
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
        rate = 65.0 if is_all_reduce else 44.0
        peak = 480.0 if name == "RSxLDMC_AGxSTMC" else 320.0
    else:
        rate = 55.0
        peak = 1000.0 if name == "RSxLDMC_AGxSTMC" else 600.0
    base_us = _base_us(collective, is_hopper, is_ll)
    times = [
        _time_us(moved, base_us, blocks, rate, multiplier, peak) for blocks in range(1, limit + 1)
    ]
    blocks = next(
        index for index, time in enumerate(times, 1) if time <= times[-1] * (1 + MIN_RELATIVE_GAIN)
    )
    prefix = {"all-reduce": "AllReduce", "all-gather": "AllGather"}.get(collective, "ReduceScatter")
    return SymmetricLaunch(f"{prefix}_{name}", blocks, times[blocks - 1])


def _base_us(collective: str, is_hopper: bool, is_ll: bool) -> float:
    if is_hopper:
        return 4.5 if is_ll else 7.8
    if is_ll:
        return 8.5 if collective == "all-gather" else 11.0
    return 19.5 if collective == "all-reduce" else 13.0


def _time_us(
    moved: float, base_us: float, blocks: int, rate: float, multiplier: float, peak: float
) -> float:
    """Return base + softplus(bytes / bandwidth - 1 us); the bandwidth saturates smoothly."""
    attained = blocks * rate * multiplier
    # A smooth minimum of `attained` and `peak`, which bends within one block's rate.
    bandwidth = peak - rate * math.log1p(math.expm1(peak / rate) * math.exp(-attained / rate))
    transfer_us = moved / (bandwidth * _GIB) * 1e6 - 1
    return base_us + (transfer_us if transfer_us > 100 else math.log1p(math.exp(transfer_us)))
