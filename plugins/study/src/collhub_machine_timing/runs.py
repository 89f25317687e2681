"""Run an algorithm on a machine with one protocol and number of instances, or with the best ones.

Instances are copies of an algorithm, each with an equal part of the data, on thread blocks of their
own. As copies are equal, one is simulated, with messages of its part, on links that carry the
messages of all.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from collhub_machine_profiles.machine_profile import MachineProfile
from collhub_machine_profiles.nccl_choice import exchange_channels, nvls_chunk_bytes

from collhub_machine_timing.blocks import Instructions, build_instructions
from collhub_machine_timing.constants import (
    KernelTiming,
    kernel_timing,
    nominal_gigabytes_per_s,
)
from collhub_machine_timing.kernel import run
from collhub_machine_timing.options import PROTOCOLS_OF_KERNEL
from collhub_machine_timing.profiles import node_rate, select_profile
from collhub_machine_timing.world import MessagePaths, build_world, find_paths, link_rates
from hub_core.columns import Float64Array, Int64Array, distinct
from hub_core.model import Algorithm, StepKind, UsageError, message_bytes
from hub_core.network import Topology
from hub_core.schedules.switch_groups import SwitchGroups, switch_groups

# Further rounds repeat the time of the last simulated one.
_SIMULATED_ROUNDS = 2
# Limits of MSCCL's programs: channels, and thread blocks that run at once on a GPU.
_MAX_CHANNELS, _MAX_BLOCKS_PER_GPU = 32, 128
_MAX_ESTIMATE_RATIO = 1.5
_SMALL_BYTES, _LARGE_BYTES = 1 << 6, 1 << 30


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """An algorithm on a network with everything that does not depend on size and protocol."""

    algorithm: Algorithm
    topology: Topology
    profile: MachineProfile
    kernel: str
    paths: MessagePaths
    groups: SwitchGroups | None
    instructions: Instructions


@dataclass(frozen=True, slots=True, eq=False)
class CaseRun:
    """Result of one protocol: times in ps; -1 for an instruction that never ended.

    `rank_ps`: finish of each rank, -1 for never. `begin_ps`, `end_ps`: of every instruction, of the
    first and the last round.
    """

    timing: KernelTiming
    instances: int
    instructions: Instructions
    rank_ps: Int64Array
    begin_ps: Int64Array
    end_ps: Int64Array

    @property
    def time_ps(self) -> float:
        """Finish of the last rank, infinite if a rank never finishes."""
        return math.inf if (self.rank_ps < 0).any() else float(self.rank_ps.max(initial=0))


@lru_cache(maxsize=4)
def build_case(
    algorithm: Algorithm,
    topology: Topology,
    npus: tuple[int, ...] | None,
    machine: str | None,
    kernel: str | None,
) -> Case:
    """Build a case; the last ones are kept, because an algorithm is usually simulated repeatedly.

    Raises `HubError` for an unknown or unsuitable profile or kernel.
    """
    profile = select_profile(machine, topology)
    steps = algorithm.steps
    npu_of_rank = np.arange(algorithm.num_ranks) if npus is None else np.asarray(npus, np.int64)
    gpu = profile.known_gpu
    groups = None
    if kernel in (None, "nvls") and gpu is not None and gpu.nvls_channels:
        groups = switch_groups(algorithm, topology)
    if kernel is None:
        kernel = "exchange" if _is_exchange(algorithm) else "fifo"
        kernel = kernel if groups is None else "nvls"
    if kernel == "nvls" and groups is None:
        raise UsageError(
            f"no switch of {topology.name} adds up or copies a message of this algorithm",
            cure="choose -O kernel=fifo, or a topology with multicast and reduce",
            code="no-switch",
        )
    paths = find_paths(steps, topology, npu_of_rank, groups)
    has_fifos = kernel in ("fifo", "nvls")
    instructions = build_instructions(steps, groups, fuses=has_fifos, has_fifos=has_fifos)
    return Case(algorithm, topology, profile, kernel, paths, groups, instructions)


def _is_exchange(algorithm: Algorithm) -> bool:
    """Whether no step waits for another one, and no message is added up."""
    steps = algorithm.steps
    has_edges = bool(len(steps.data_indices) or len(steps.control_indices))
    return not has_edges and not steps.is_kind(StepKind.RECV_REDUCE).any()


def run_case(
    case: Case, collective_bytes: int, protocol: str, instances: int, chunk_bytes: int | None = None
) -> CaseRun:
    """Simulate one protocol; blocks that wait for each other in a circle are separated.

    `chunk_bytes`: largest message, by default that of the kernel.
    """
    steps = case.algorithm.steps
    units = case.algorithm.collective.unit_count
    sizes = message_bytes(collective_bytes, units, steps.count) / instances
    largest = float(sizes.max(initial=1.0))
    messages = int(np.bincount(steps.rank[steps.sends], minlength=1).max())
    timing = kernel_timing(
        case.profile,
        case.kernel,
        protocol,
        case.algorithm.num_ranks,
        int(largest),
        messages * instances,
    )
    # Efficiencies are relative to nominal rates, whatever rates the topology states.
    nominal = nominal_gigabytes_per_s(case.profile) * 1e9
    stated = node_rate(case.topology) or nominal
    timing = replace(timing, link_efficiency=timing.link_efficiency * nominal / stated)
    chunk = timing.chunk_bytes
    if case.kernel == "nvls":
        chunk = nvls_chunk_bytes(collective_bytes, max(1, round(collective_bytes / largest)))
    rounds = max(1.0, largest / min(chunk, chunk_bytes or chunk))
    simulated = min(math.ceil(rounds), _SIMULATED_ROUNDS)
    # Up to two rounds are equal ones, so that no partial round remains.
    rounds = max(rounds, simulated) if rounds > simulated else simulated
    arguments = (timing, sizes / rounds, simulated, rounds, instances)
    once = _run_rounds(case, case.instructions, *arguments)
    if math.isinf(once.time_ps) and (steps.lane < 0).all():
        apart = build_instructions(steps, case.groups, fuses=False)
        return _run_rounds(case, apart, *arguments)
    return once


def _run_rounds(
    case: Case,
    instructions: Instructions,
    timing: KernelTiming,
    row_bytes: Float64Array,
    simulated: int,
    rounds: float,
    instances: int,
) -> CaseRun:
    """Simulate the first rounds, and extend the time of the last one to all rounds.

    A further round takes at least the time of its bytes on the busiest link, which the first rounds
    may not reach, because links are idle until the first messages arrive.
    """
    world = build_world(
        case.algorithm.steps,
        instructions,
        case.paths,
        case.topology,
        timing,
        row_bytes,
        simulated,
        instances,
    )
    run(world, events=2 * len(world.instruction))
    begin = world.instruction["begin"].reshape(simulated, -1)
    end = world.instruction["end"].reshape(simulated, -1)
    finish = np.zeros((simulated, case.algorithm.num_ranks), np.int64)
    for number in range(simulated):
        np.maximum.at(finish[number], instructions.rank, end[number])
    finish = np.maximum.accumulate(finish, axis=0)
    extra_ps = 0
    if simulated > 1:
        last = int(finish[-1].max(initial=0)) - int(finish[-2].max(initial=0))
        last = max(last, round(_busiest_link_ps(case, timing, row_bytes * instances)))
        extra_ps = round((rounds - simulated) * last)
    rank_ps = finish[-1] + extra_ps
    rank_ps[distinct(instructions.rank[(end < 0).any(axis=0)])] = -1
    end_ps = np.where(end[-1] < 0, -1, end[-1] + extra_ps)
    return CaseRun(timing, instances, instructions, rank_ps, begin[0].copy(), end_ps)


def _busiest_link_ps(case: Case, timing: KernelTiming, row_bytes: Float64Array) -> float:
    """Return the time of the busiest link for one message of every row, in ps."""
    carried = load_links(case, row_bytes) * timing.wire
    rates = link_rates(case.topology, case.paths, timing)
    return float((carried / rates).max(initial=0.0)) * 1e12


def load_links(case: Case, row_bytes: Float64Array) -> Float64Array:
    """Return the bytes of every link for one message of every row: float64[links]."""
    weights = np.repeat(row_bytes, np.diff(case.paths.indptr))
    loads = np.bincount(case.paths.links, weights, minlength=case.topology.num_links)
    return loads.astype(np.float64)


def best_run(
    case: Case,
    collective_bytes: int,
    protocol: str | None,
    instances: int | None,
    chunk_bytes: int | None = None,
) -> CaseRun:
    """Simulate with the given protocol and instances; None: with the fastest ones.

    All protocols are simulated if the instances are given. Otherwise the number of instances is
    that with the lowest estimate, from a small and a large run, of each protocol.
    """
    protocols = PROTOCOLS_OF_KERNEL[case.kernel] if protocol is None else (protocol,)
    if instances is not None:
        variants = [(one, instances) for one in protocols]
    else:
        variants = _promising_variants(case, collective_bytes, protocols)
    runs = (run_case(case, collective_bytes, *variant, chunk_bytes) for variant in variants)
    return min(runs, key=lambda one: one.time_ps)


def _promising_variants(
    case: Case, collective_bytes: int, protocols: tuple[str, ...]
) -> list[tuple[str, int]]:
    """Return each protocol with the instances of its lowest estimate.

    Protocols whose estimate is more than 1.5 times the lowest one are left out.
    """
    if case.kernel == "exchange":
        # NCCL's own number of channels of each peer.
        peer_bytes = collective_bytes / case.algorithm.num_ranks
        return [(one, exchange_channels(peer_bytes, is_nvlink=True)) for one in protocols]
    numbers = list(_possible_instances(case))
    if case.kernel == "nvls":
        return [(protocols[0], numbers[-1])]
    estimates = {
        (one, number): _estimate_us(case, collective_bytes, one, number)
        for one in protocols
        for number in numbers
    }
    limit_us = _MAX_ESTIMATE_RATIO * min(estimates.values())
    best = [min((estimates[one, number], (one, number)) for number in numbers) for one in protocols]
    return [variant for estimate_us, variant in best if estimate_us <= limit_us]


def _possible_instances(case: Case) -> Iterator[int]:
    """Yield the powers of two up to the limits of channels and thread blocks.

    Other numbers would divide buffers of usual sizes into parts that runtimes cannot address.
    """
    gpu = case.profile.known_gpu
    assert gpu is not None, "profiles with constants name a known GPU"
    channels = gpu.nvls_channels if case.kernel == "nvls" else _MAX_CHANNELS
    used = len(distinct(case.algorithm.steps.channel))
    block, rank = case.instructions.block, case.instructions.rank
    width = int(block.max(initial=0)) + 1
    blocks = distinct((rank * width + block)[block >= 0])
    blocks_of_rank = np.bincount(blocks // width, minlength=1)
    limit = min(channels // used, _MAX_BLOCKS_PER_GPU // max(int(blocks_of_rank.max()), 1))
    number = 1
    while number <= max(limit, 1):
        yield number
        number *= 2


def _estimate_us(case: Case, collective_bytes: int, protocol: str, instances: int) -> float:
    """Estimate a time from the depth and the longest path in bytes of an algorithm."""
    depth, path_share, link_s_per_byte = _shape(case)
    ranks = case.algorithm.num_ranks
    sizes = case.algorithm.steps.count.max(initial=1) * collective_bytes
    largest = sizes / case.algorithm.collective.unit_count / instances
    timing = kernel_timing(case.profile, case.kernel, protocol, ranks, int(largest), 1)
    waits = depth * timing.visible_us
    rate = timing.rate_gigabytes_per_s * 1e3
    transfer = path_share * collective_bytes / instances / rate
    part = transfer / timing.slices
    blocks = transfer - part + max(part, waits)
    links = link_s_per_byte * collective_bytes * timing.wire * 1e6 / timing.link_efficiency
    return timing.start_us + max(blocks, links + waits / max(depth, 1.0))


@lru_cache(maxsize=16)
def _shape(case: Case) -> tuple[float, float, float]:
    """Return (messages on the longest path, its bytes, time of the busiest link), per byte.

    The path is derived from the times of a small and of a large run of one instance; the time of
    the link is in seconds per byte of the collective at its nominal rate.
    """
    protocol = PROTOCOLS_OF_KERNEL[case.kernel][0]
    small, large = (run_case(case, size, protocol, 1) for size in (_SMALL_BYTES, _LARGE_BYTES))
    depth = (small.time_ps / 1e6 - small.timing.start_us) / small.timing.visible_us
    rate = large.timing.rate_gigabytes_per_s * 1e3
    path_share = (large.time_ps / 1e6 - large.timing.start_us) * rate / _LARGE_BYTES
    units = case.algorithm.collective.unit_count
    loads = load_links(case, case.algorithm.steps.count / units)
    busiest = float((loads / case.topology.bandwidth_bytes_per_s).max(initial=0.0))
    return depth, path_share, busiest
