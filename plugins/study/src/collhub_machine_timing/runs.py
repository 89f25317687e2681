"""Run an algorithm on a machine with given protocol, instances and pieces, or the fastest ones.

Instances are copies of an algorithm, each with an equal part of the data, on thread blocks of their
own. As copies are equal, one is simulated, with messages of its part, on links that carry the
messages of all.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
from collhub_machine_profiles.machine_profile import MachineProfile
from collhub_machine_profiles.nccl_choice import exchange_channels, nvls_chunk_bytes

from collhub_machine_timing.blocks import Instructions, build_instructions
from collhub_machine_timing.constants import (
    KernelTiming,
    base_timing,
    kernel_timing,
    nominal_gigabytes_per_s,
    start_value,
)
from collhub_machine_timing.copies import find_copies
from collhub_machine_timing.kernel import run
from collhub_machine_timing.plugin import PROTOCOLS_OF_KERNEL
from collhub_machine_timing.profiles import node_rate, select_profile
from collhub_machine_timing.world import (
    MessagePaths,
    build_world,
    compute_durations_ps,
    find_paths,
    link_rates,
)
from hub_core.columns import Float64Array, Int64Array, distinct, run_starts
from hub_core.model import Algorithm, StepKind, UsageError, message_bytes
from hub_core.network import Topology
from hub_core.schedules import SwitchGroups, find_switch_groups, separate_phases

# Further rounds repeat the time of the last simulated one.
_SIMULATED_ROUNDS = 2
# More rounds of pipelines, whose phases overlap only after the first rounds.
_SIMULATED_PIECES = 4
_PIECES = (4, 16)
# Ratio of times below which a variant with more blocks is not worthwhile.
_MIN_GAIN = 1.02
# Instructions that the search for the fastest pipeline simulates.
_MAX_WORK = 200_000
# Channels of MSCCL and of NCCL's collectives.
_MAX_CHANNELS = 32
_MAX_ESTIMATE_RATIO = 1.5
_SMALL_BYTES, _LARGE_BYTES = 1 << 6, 1 << 30


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """An algorithm on a network with everything that does not depend on size and protocol.

    `algorithm`: one of `copies` equal copies that the given algorithm consists of; `row_of_copy`:
    its row for each row of the given algorithm. `blocks`: largest number of thread blocks of a rank
    for all copies. `endless`: (simulated rounds, slots of a connection) with which a run of
    `instructions` did not finish; `run_case` adds them. Whether a run finishes depends only on the
    order of the instructions, not on sizes and times.
    """

    algorithm: Algorithm
    copies: int
    row_of_copy: Int64Array
    topology: Topology
    profile: MachineProfile
    kernel: str
    paths: MessagePaths
    groups: SwitchGroups | None
    instructions: Instructions
    blocks: int
    endless: set[tuple[int, int]] = field(default_factory=set)


@dataclass(frozen=True, slots=True, order=True)
class ExecutionVariant:
    """How a runtime executes an algorithm.

    `instances`: copies that share the data; `pieces`: smallest number of rounds into which each
    copy divides its data. With several pieces, phases of a connection have blocks of their own, so
    that a piece need not wait until the previous one has passed all phases.
    """

    protocol: str
    instances: int
    pieces: int = 1


@dataclass(frozen=True, slots=True, eq=False)
class CaseRun:
    """Result of one variant: times in ps; -1 for an instruction that never ended.

    `case`: the simulated case, whose blocks depend on the variant. `rank_ps`: finish of each rank,
    -1 for never. `begin_ps`, `end_ps`: of every instruction, of the first and the last round.
    """

    case: Case
    variant: ExecutionVariant
    timing: KernelTiming
    instructions: Instructions
    rank_ps: Int64Array
    begin_ps: Int64Array
    end_ps: Int64Array

    @property
    def time_ps(self) -> float:
        """Time in ps at which the last rank finishes; infinite if a rank never finishes (negative
        time).
        """
        return math.inf if (self.rank_ps < 0).any() else float(self.rank_ps.max(initial=0))


@dataclass(frozen=True, slots=True)
class Search:
    """Result of a search among variants.

    `best`: the fastest run. `simulated`: number of simulated variants. `not_tried`: number of
    variants that the limit of work excluded.
    """

    best: CaseRun
    simulated: int = 1
    not_tried: int = 0


@lru_cache(maxsize=4)
def build_cases(
    algorithm: Algorithm,
    topology: Topology,
    npus: tuple[int, ...] | None,
    machine: str | None,
    kernel: str | None,
) -> tuple[Case, ...]:
    """Build the cases to simulate, one per kernel (the way in which a GPU runs the steps).

    - `kernel` given: only this one. It is not checked, except that `nvls` must suit as below.
    - `kernel` None: `exchange` if no step has a dependency and none is a RECV_REDUCE, otherwise
      `fifo`. Then also `nvls` if the GPU has NVLS and switches can add or copy its messages.

    `npus`: NPU of each rank; None means 0, 1, 2, .... `machine`: name of the profile; None means
    that of the topology. If the algorithm consists of equal copies, a case has one of them
    (`find_copies`). Its topology has the measured rates of switches.

    The last four results are cached, by identity of algorithm and topology. Raises `HubError` for
    an unknown, missing or unsuitable profile, `InputError` for ranks without a path, `UsageError`
    (`no-switch`) if the given `nvls` does not suit.
    """
    profile = select_profile(machine, topology)
    topology = _with_measured_switches(topology)
    algorithm, row_of_copy, copies = find_copies(algorithm, topology.num_planes)
    steps = algorithm.steps
    npu_of_rank = np.arange(algorithm.num_ranks) if npus is None else np.asarray(npus, np.int64)
    gpu = profile.known_gpu
    groups = None
    if kernel in (None, "nvls") and gpu is not None and gpu.nvls_channels:
        groups = find_switch_groups(algorithm, topology)
    kernels = [kernel]
    if kernel is None:
        has_edges = bool(len(steps.data_indices) or len(steps.control_indices))
        is_exchange = not has_edges and not steps.is_kind(StepKind.RECV_REDUCE).any()
        kernels = ["exchange" if is_exchange else "fifo", "nvls"]
    cases = []
    for name in kernels:
        if name == "nvls" and groups is None:
            continue
        paths, groups_of_kernel = find_paths(
            steps, topology, npu_of_rank, groups if name == "nvls" else None
        )
        if name is None or (name == "nvls" and groups_of_kernel is None):
            continue
        has_fifos = name in ("fifo", "nvls")
        instructions = build_instructions(
            steps, groups_of_kernel, fuses=has_fifos, has_fifos=has_fifos
        )
        cases.append(
            Case(
                algorithm,
                copies,
                row_of_copy,
                topology,
                profile,
                name,
                paths,
                groups_of_kernel,
                instructions,
                copies * _count_blocks(instructions),
            )
        )
    if not cases:
        raise UsageError(
            f"no switch of {topology.name} adds up or copies a message of this algorithm",
            cure="choose -O kernel=fifo, or a topology with multicast and reduce",
            code="no-switch",
        )
    return tuple(cases)


@lru_cache(maxsize=4)
def _with_measured_switches(topology: Topology) -> Topology:
    """Return `Topology.with_measured_switches`; the last four results are cached, so that all
    algorithms share one network with its routes and bounds.
    """
    return topology.with_measured_switches()


def _count_blocks(instructions: Instructions) -> int:
    """Return the largest number of thread blocks of a rank, at least 1.

    Instructions without a block (negative) do not count. All instructions of a block have one rank.
    """
    has_block = instructions.block >= 0
    block = instructions.block[has_block]
    rank_of_block = np.full(int(block.max(initial=-1)) + 1, -1, np.int64)
    rank_of_block[block] = instructions.rank[has_block]
    return max(1, int(np.bincount(rank_of_block[rank_of_block >= 0], minlength=1).max()))


def _concurrent_blocks(case: Case) -> int:
    """Return the number of thread blocks that run at once on a GPU: one on each processor."""
    return round(start_value(case.profile, "concurrent_blocks"))


def _block_share(case: Case, instances: int) -> float:
    """Return the fraction of time that a thread block gets, at most 1.

    For fifo and nvls it is the smaller of two ratios: processors of a GPU to the largest
    number of thread blocks of a rank, and the limit of channels (`_channel_limit`) to the
    channels used. Thread blocks and channels are those of all copies in the case, times
    `instances`. Other kernels have 1, because they distribute their messages over the blocks
    that they launch.
    """
    if case.kernel not in ("fifo", "nvls"):
        return 1.0
    processors = _concurrent_blocks(case) / (case.blocks * instances)
    return min(1.0, processors, _channel_limit(case) / (_count_channels(case) * instances))


def _channel_limit(case: Case) -> int:
    """Return the largest number of channels that the runtime can use.

    For the kernel nvls it is the number of NVLS channels of the profile's GPU, otherwise
    `_MAX_CHANNELS` (32). The profile must name a known GPU.
    """
    gpu = case.profile.known_gpu
    assert gpu is not None, "profiles with constants name a known GPU"
    return gpu.nvls_channels if case.kernel == "nvls" else _MAX_CHANNELS


@lru_cache(maxsize=16)
def _count_channels(case: Case) -> int:
    """Return the number of different channels of the steps, times the number of copies. The last
    sixteen results are cached.
    """
    return case.copies * len(distinct(case.algorithm.steps.channel))


@lru_cache(maxsize=16)
def _count_sends(case: Case) -> int:
    """Return the largest number of messages that one rank sends, times the copies of the case.

    It is 0 without messages. The last sixteen results are cached.
    """
    steps = case.algorithm.steps
    return case.copies * int(np.bincount(steps.rank[steps.sends], minlength=1).max())


def run_case(
    case: Case, collective_bytes: int, variant: ExecutionVariant, chunk_bytes: int | None = None
) -> CaseRun:
    """Simulate a variant of a case, and return its times.

    With several pieces, the phases first get separate thread blocks. The data are sent in rounds,
    each with an equal part of every message: the largest message / the kernel's chunk (at most
    `chunk_bytes`, unless None or 0), at least `variant.pieces`. Up to 2 rounds are simulated, 4
    with several pieces; `_run_rounds` extrapolates the others.

    If no step has a lane (all are -1) and the simulation never ends, it is repeated without fused
    receives and sends, and may again be endless. Then (simulated rounds, slots of a connection) is
    added to `case.endless`, or to that of the cached case with separate phases. Later runs with
    this pair skip the first simulation. Raises `InputError` (`size-range`) for messages of 2^63
    bytes or more in all, and the errors of `kernel_timing`.
    """
    if variant.pieces > 1:
        case = _separate_phases_of(case)
    plan = _plan_run(case, collective_bytes, variant, chunk_bytes)
    has_lanes = not (case.algorithm.steps.lane < 0).all()
    key = (plan.simulated, plan.timing.slots)
    if has_lanes or key not in case.endless:
        once = _run_rounds(case, case.instructions, variant, plan)
        if has_lanes or not math.isinf(once.time_ps):
            return once
        case.endless.add(key)
    return _run_rounds(case, _separate_messages_of(case), variant, plan)


@dataclass(frozen=True, slots=True, eq=False)
class _RunPlan:
    """Constants of a run, the bytes of every row's message in a round (float64), the number of
    `simulated` rounds, and that of all rounds.
    """

    timing: KernelTiming
    row_bytes: Float64Array
    simulated: int
    rounds: float


def _plan_run(
    case: Case, collective_bytes: int, variant: ExecutionVariant, chunk_bytes: int | None
) -> _RunPlan:
    """Compute the message sizes, the number of rounds and the constants of a run.

    - Message size in bytes: the size in the algorithm / instances of the variant.
    - Rounds: see `_count_rounds`, at least the pieces of the variant; can be fractional.
      `chunk_bytes`: upper limit of a chunk, None or 0 for none.
    - `simulated`: rounds, rounded up, but at most 2 with one piece, at most 4 with more pieces.
    - Rounds below `simulated` are then raised to `simulated`: 1.5 become 2, but 7.5 remain 7.5.
    - `row_bytes`: message size / rounds.

    The constants are those of `kernel_timing`, with the share of time of a thread block
    (`_block_share`) and the time to fill the pipeline (`with_filled_pipeline`). With r = nominal
    rate / rate of the topology (1 if it states none), `link_efficiency` is multiplied by r, and
    `card_efficiency` is the link efficiency of the profile x r. For the kernel nvls,
    `link_efficiency` is at most the measured rate of the switches / rate of the topology, if it is
    measured.
    """
    instances = variant.instances
    sizes, largest = _message_sizes(case, collective_bytes, instances)
    timing = kernel_timing(
        case.profile,
        case.kernel,
        variant.protocol,
        case.algorithm.num_ranks,
        int(largest),
        _count_sends(case) * instances,
        min(_count_channels(case) * instances, _MAX_CHANNELS),
    )
    timing = timing.with_block_share(_block_share(case, instances))
    # Efficiencies are relative to nominal rates, whatever rates the topology states.
    nominal = nominal_gigabytes_per_s(case.profile) * 1e9
    stated = node_rate(case.topology) or nominal
    derated = nominal / stated
    timing = replace(
        timing,
        link_efficiency=timing.link_efficiency * derated,
        card_efficiency=start_value(case.profile, "link_efficiency") * derated,
    )
    measured = case.topology.measured_switches
    if case.kernel == "nvls" and measured is not None:
        # The links of a GPU carry the vector once in each direction.
        limit = measured.bytes_per_s / stated
        timing = replace(timing, link_efficiency=min(timing.link_efficiency, limit))
    rounds = _count_rounds(case, collective_bytes, largest, timing.chunk_bytes, chunk_bytes)
    rounds = max(rounds, variant.pieces)
    timing = timing.with_filled_pipeline(largest / rounds)
    limit = _SIMULATED_ROUNDS if variant.pieces == 1 else _SIMULATED_PIECES
    simulated = min(math.ceil(rounds), limit)
    # Up to the limit rounds are equal ones, so that no partial round remains.
    rounds = max(rounds, simulated)
    return _RunPlan(timing, sizes / rounds, simulated, rounds)


@lru_cache(maxsize=4)
def _separate_messages_of(case: Case) -> Instructions:
    """Return the instructions of a case without fused messages; the last four are cached."""
    return build_instructions(case.algorithm.steps, case.groups, fuses=False)


@lru_cache(maxsize=4)
def _separate_phases_of(case: Case) -> Case:
    """Return a case with separate thread blocks for the phases of each connection.

    The new case has the algorithm of `separate_phases`, with its instructions and number
    of blocks, and no recorded endless runs. If nothing can be separated, the given case
    itself is returned. The last four results are cached, by identity of the case.
    """
    algorithm = separate_phases(case.algorithm)
    if algorithm is case.algorithm:
        return case
    has_fifos = case.kernel in ("fifo", "nvls")
    instructions = build_instructions(
        algorithm.steps, case.groups, fuses=has_fifos, has_fifos=has_fifos
    )
    blocks = case.copies * _count_blocks(instructions)
    return replace(
        case, algorithm=algorithm, instructions=instructions, blocks=blocks, endless=set()
    )


def _message_sizes(case: Case, collective_bytes: int, instances: int) -> tuple[Float64Array, float]:
    """Return the bytes of every row's message (float64), and the largest of them, at least 1.

    The bytes are those of the row's units (`message_bytes`, rounded up to an integer, also
    for local steps), divided by `instances` and not rounded afterwards. Raise `InputError`
    (`size-range`) for 2^63 bytes or more in all.
    """
    units = case.algorithm.collective.unit_count
    sizes = message_bytes(collective_bytes, units, case.algorithm.steps.count) / instances
    return sizes, float(sizes.max(initial=1.0))


def _count_rounds(
    case: Case,
    collective_bytes: int,
    largest: float,
    kernel_chunk_bytes: int,
    chunk_bytes: int | None,
) -> float:
    """Return the number of rounds in which the largest message is sent, not rounded, at least 1.

    It is `largest` divided by the chunk, which a round sends. The chunk is
    `kernel_chunk_bytes`, but for nvls that of `nvls_chunk_bytes`, computed from
    `collective_bytes` and `largest`. It is `chunk_bytes` if that is smaller; None and 0 mean
    no such limit. All sizes are in bytes.
    """
    chunk = kernel_chunk_bytes
    if case.kernel == "nvls":
        chunk = nvls_chunk_bytes(collective_bytes, max(1, round(collective_bytes / largest)))
    return max(1.0, largest / min(chunk, chunk_bytes or chunk))


def _run_rounds(
    case: Case, instructions: Instructions, variant: ExecutionVariant, plan: _RunPlan
) -> CaseRun:
    """Simulate the first rounds, and extrapolate the time of the last one to all rounds.

    `plan.simulated` rounds are simulated. One simulated round: no time is added. Otherwise the
    added time is (`plan.rounds` - `plan.simulated`) times the larger of two times:

    - the end of the last simulated round minus the end of the round before
    - the transfer time of the bytes of a round on the busiest link

    `plan.rounds` may be a fraction. Times of the result are integers in ps:

    - `rank_ps`: latest end of each rank in all simulated rounds, plus the added time. It is -1 if
      an instruction of the rank does not finish in some simulated round. It is the added time
      for a rank without instructions.
    - `begin_ps`: begin of each instruction in the first round, -1 if it never begins.
    - `end_ps`: its end in the last simulated round plus the added time, -1 if it never ends.
    """
    instances, timing, simulated = variant.instances, plan.timing, plan.simulated
    world = build_world(
        case.algorithm.steps,
        instructions,
        case.paths,
        case.topology,
        timing,
        plan.row_bytes,
        simulated,
        instances * case.copies,
    )
    run(world, events=2 * len(world.instruction))
    # Instructions are grouped by rank, so that a rank is a range of columns.
    starts = run_starts(instructions.rank)
    ranks = instructions.rank[starts]
    end = np.ascontiguousarray(world.progress["end"]).reshape(simulated, -1)
    finish = np.zeros((simulated, case.algorithm.num_ranks), np.int64)
    finish[:, ranks] = np.maximum(np.maximum.reduceat(end, starts, axis=1), 0)
    finish = np.maximum.accumulate(finish, axis=0)
    extra_ps = 0
    if simulated > 1:
        last = int(finish[-1].max(initial=0)) - int(finish[-2].max(initial=0))
        last = max(last, round(_busiest_link_ps(case, timing, plan.row_bytes * instances)))
        extra_ps = round((plan.rounds - simulated) * last)
    rank_ps = finish[-1] + extra_ps
    rank_ps[ranks[(np.minimum.reduceat(end, starts, axis=1) < 0).any(axis=0)]] = -1
    end_ps = np.where(end[-1] < 0, -1, end[-1] + extra_ps)
    begin_ps = world.progress["begin"][: len(instructions)].copy()
    return CaseRun(case, variant, timing, instructions, rank_ps, begin_ps, end_ps)


def _busiest_link_ps(case: Case, timing: KernelTiming, row_bytes: Float64Array) -> float:
    """Return the transfer time in ps of the busiest link for one message of every row.

    The time of a link is its bytes (`load_links`), with the overhead of the protocol, divided by
    its attainable rate (`link_rates`). Latencies are not included. 0 without links.
    """
    carried = load_links(case, row_bytes) * timing.wire
    rates = link_rates(case.topology, case.paths, timing)
    return float((carried / rates).max(initial=0.0)) * 1e12


def load_links(case: Case, row_bytes: Float64Array) -> Float64Array:
    """Return the bytes on every link if each row sends one message: float64[links].

    `row_bytes`: bytes of the message of every row of `case.algorithm`. Each message is counted
    `case.copies` times, once per equal copy of the algorithm, on all links of its path. Rows
    without a path have no effect.
    """
    weights = np.repeat(row_bytes * case.copies, np.diff(case.paths.indptr))
    loads = np.bincount(case.paths.links, weights, minlength=case.topology.num_links)
    return loads.astype(np.float64)


def find_best_run(
    cases: Sequence[Case],
    collective_bytes: int,
    protocol: str | None,
    instances: int | None,
    pieces: int | None,
    chunk_bytes: int | None = None,
) -> Search:
    """Simulate the variants of an algorithm and return the fastest run.

    `cases`: the kernels of one algorithm, at least one. A kernel without the given
    `protocol` is skipped. A variant is a protocol, a number of instances (copies) and a
    number of pieces:

    - Instances: with `instances`, this number for each protocol of the kernel. Otherwise
      the promising protocols and numbers are chosen.
    - Pieces: with `pieces`, this number. Otherwise 1; for the kernel `fifo` without lanes,
      further numbers are tried then.
    - For an uneven collective, both are 1 unless given.

    A variant of the kernel nvls is skipped if its lower bound exceeds the best time of the
    kernels before it. `chunk_bytes`: largest message; None is the chunk of the kernel.

    Of equally fast runs the first one counts, in the order of `cases` and variants. A run
    that never finishes is infinitely slow. In the result, `simulated` is the number of
    simulated variants, and `not_tried` the number that a limit of work excluded.

    Raises `UsageError` (`no-protocol`) if no kernel has the protocol.
    """
    if cases[0].algorithm.collective.kind.traits.is_uneven:
        # Copies and pieces divide equal shares; uneven parts run as they are.
        instances, pieces = instances or 1, pieces or 1
    searches: list[Search] = []
    for case in cases:
        protocols = PROTOCOLS_OF_KERNEL[case.kernel]
        if protocol is not None and protocol not in protocols:
            continue
        tried = protocols if protocol is None else (protocol,)
        if instances is None:
            promising = _promising_variants(case, collective_bytes, tried)
            variants = [replace(one, pieces=pieces or 1) for one in promising]
        else:
            variants = [ExecutionVariant(one, instances, pieces or 1) for one in tried]
        if case.kernel == "nvls":
            best_ps = min((one.best.time_ps for one in searches), default=math.inf)
            variants = [
                one
                for one in variants
                if _work_floor_ps(case, collective_bytes, one, chunk_bytes) <= best_ps
            ]
        if not variants:
            continue
        runs = [run_case(case, collective_bytes, one, chunk_bytes) for one in variants]
        if pieces is None and case.kernel == "fifo" and (case.algorithm.steps.lane < 0).all():
            searches.append(_search_pieces(case, collective_bytes, runs, instances, chunk_bytes))
        else:
            searches.append(Search(min(runs, key=lambda one: one.time_ps), len(runs)))
    if not searches:
        names = [name for case in cases for name in PROTOCOLS_OF_KERNEL[case.kernel]]
        raise UsageError(
            f"the kernel {cases[0].kernel} has no protocol {protocol}",
            cure=f"use {', '.join(dict.fromkeys(names))}",
            code="no-protocol",
        )
    return Search(
        min((one.best for one in searches), key=lambda run: run.time_ps),
        sum(one.simulated for one in searches),
        sum(one.not_tried for one in searches),
    )


def _work_floor_ps(
    case: Case, collective_bytes: int, variant: ExecutionVariant, chunk_bytes: int | None
) -> float:
    """Return a lower bound of the time of a variant in ps, without waiting for data or FIFOs.

    The bound is the start time plus the number of rounds (may be fractional) times the time of a
    round. The time of a round is the larger one of:

    - the sum of the durations of the instructions on the busiest thread block
    - the time of the bytes of all instances on the busiest link

    `chunk_bytes`: upper limit of a chunk, None or 0 for none. If the variant has several pieces,
    the phases of each connection have separate thread blocks. For more than two rounds it is not
    proven, because the simulation extrapolates the time of further rounds.
    """
    if variant.pieces > 1:
        case = _separate_phases_of(case)
    plan = _plan_run(case, collective_bytes, variant, chunk_bytes)
    instructions = case.instructions
    durations = compute_durations_ps(
        case.algorithm.steps, instructions, case.paths, plan.timing, plan.row_bytes
    )
    has_block = instructions.block >= 0
    work = np.bincount(instructions.block[has_block], durations[has_block], minlength=1)
    link_ps = _busiest_link_ps(case, plan.timing, plan.row_bytes * variant.instances)
    return plan.timing.start_us * 1e6 + plan.rounds * max(float(work.max()), link_ps)


def _search_pieces(
    case: Case,
    collective_bytes: int,
    runs: Sequence[CaseRun],
    instances: int | None,
    chunk_bytes: int | None,
) -> Search:
    """Repeat runs with their data divided into pieces, and return the best of all runs.

    `runs`, not empty, are examined from the fastest on; of equal times the first comes first. A run
    is skipped if 1.02 x its estimated minimum time exceeds the best time so far. Otherwise the run
    is simulated again with its protocol and `instances` copies (None or 0: the most possible): with
    4 and 16 pieces, without numbers up to its number of rounds, or with 2 pieces if no number
    remains. A simulation becomes the best run if 1.02 x its time is below the best time so far.

    A simulation costs its instructions x simulated rounds. Before one that would raise the sum of
    the costs above 200 000, the run is left, and its remaining simulations are counted in
    `not_tried`. `simulated` counts `runs` and all new simulations. Nothing is simulated if
    `_separate_phases_of` returns the case itself. `chunk_bytes`: upper limit of the bytes per
    round; None and 0 mean no limit.
    """
    best = min(runs, key=lambda one: one.time_ps)
    simulated, not_tried, work = len(runs), 0, 0
    for whole in sorted(runs, key=lambda one: one.time_ps):
        # The latencies of the longest path, or the transfer time of the busiest link.
        timing = whole.timing
        depth, _, link_s_per_byte = _shape(case)
        links_us = link_s_per_byte * collective_bytes * timing.wire * 1e6 / timing.link_efficiency
        floor_us = timing.start_us + max(depth * timing.visible_us, links_us)
        if floor_us * 1e6 > best.time_ps / _MIN_GAIN:
            continue
        phased = _separate_phases_of(case)
        if phased is case:
            break
        copies = instances or max(_possible_instances(phased))
        _, largest = _message_sizes(case, collective_bytes, copies)
        rounds = _count_rounds(
            case, collective_bytes, largest, whole.timing.chunk_bytes, chunk_bytes
        )
        # With fewer pieces than rounds, only the phases are separated.
        numbers = [number for number in _PIECES if number > rounds] or [2]
        previous_ps = math.inf
        for index, number in enumerate(numbers):
            cost = len(phased.instructions) * min(max(number, math.ceil(rounds)), _SIMULATED_PIECES)
            if work + cost > _MAX_WORK:
                not_tried += len(numbers) - index
                break
            work += cost
            simulated += 1
            variant = ExecutionVariant(whole.variant.protocol, copies, number)
            piped = run_case(case, collective_bytes, variant, chunk_bytes)
            if piped.time_ps * _MIN_GAIN < best.time_ps:
                best = piped
            if piped.time_ps * _MIN_GAIN > previous_ps:
                break
            previous_ps = piped.time_ps
    return Search(best, simulated, not_tried)


def _promising_variants(
    case: Case, collective_bytes: int, protocols: tuple[str, ...]
) -> list[ExecutionVariant]:
    """Return the variants (protocol, instances) that are likely to be the fastest.

    Instances are copies of the algorithm; their possible numbers are those of
    `_possible_instances`. Each variant sends its data undivided (one piece).

    - `exchange`: one variant per protocol, with NCCL's number of channels per peer over NVLink
      as instances, whether possible or not.
    - `nvls`: only the first protocol, with the largest possible number.
    - Other kernels: for each protocol, the number with the lowest estimated time
      (`_estimate_us`), the smallest if equal. Protocols with a time above 1.5
      (`_MAX_ESTIMATE_RATIO`) times the lowest time of all are left out.

    The order is that of `protocols`, which must not be empty (not checked). Only other kernels
    raise errors, those of `_shape`: `UsageError` (`no-model`) and `InputError` (`size-range`).
    """
    if case.kernel == "exchange":
        # NCCL's own number of channels of each peer.
        peer_bytes = collective_bytes / case.algorithm.num_ranks
        return [
            ExecutionVariant(one, exchange_channels(peer_bytes, is_nvlink=True))
            for one in protocols
        ]
    numbers = list(_possible_instances(case))
    if case.kernel == "nvls":
        return [ExecutionVariant(protocols[0], numbers[-1])]
    estimates = {}
    for one in protocols:
        timing = base_timing(case.profile, case.kernel, one, case.algorithm.num_ranks)
        for number in numbers:
            estimates[one, number] = _estimate_us(case, collective_bytes, timing, number)
    limit_us = _MAX_ESTIMATE_RATIO * min(estimates.values())
    best = [min((estimates[one, number], (one, number)) for number in numbers) for one in protocols]
    return [ExecutionVariant(*variant) for estimate_us, variant in best if estimate_us <= limit_us]


def _possible_instances(case: Case) -> Iterator[int]:
    """Yield the possible numbers of instances (copies of the algorithm), ascending.

    They are powers of two: 1, 2, 4, ....

    1 is always yielded. Any other number must meet both limits:

    - Its channels are within those of the runtime. Copies of nvls can share channels: if
      the channels suffice for n copies, up to 2 n - 1 are possible.
    - Its thread blocks can all run at once on a GPU.

    Numbers that are no powers of two would divide buffers of usual sizes into parts that
    runtimes cannot address.
    """
    limit = _channel_limit(case) // _count_channels(case)
    if case.kernel == "nvls":
        # More copies than channels, such as 32 instead of 24, share them.
        limit = 2 * limit - 1
    limit = min(limit, _concurrent_blocks(case) // case.blocks)
    number = 1
    while number <= max(limit, 1):
        yield number
        number *= 2


def _estimate_us(case: Case, collective_bytes: int, timing: KernelTiming, instances: int) -> float:
    """Estimate the time of a variant in us without simulating it.

    The result is start + max(B, L), from the figures of the case (`_shape`) and of `timing`, the
    `base_timing` of the protocol:

    - W = messages on the longest path * wait per message (`visible_us`)
    - T = bytes on the longest path / `instances` / rate of a thread block
    - S = T / `timing.slices`: time of the first slice, which overlaps with the waits
    - B = T - S + max(S, W): time of the thread blocks
    - L = time of the busiest link * `timing.wire` / `timing.link_efficiency` + W / max(messages, 1)

    The start depends on the threads for the largest message and on the number of channels (times
    `instances`, at most `_MAX_CHANNELS`). Simulates two runs per case (`_shape`, cached).
    """
    depth, path_share, link_s_per_byte = _shape(case)
    sizes = case.algorithm.steps.count.max(initial=1) * collective_bytes
    largest = sizes / case.algorithm.collective.unit_count / instances
    channels = min(_count_channels(case) * instances, _MAX_CHANNELS)
    timing = timing.with_threads(int(largest), channels)
    waits = depth * timing.visible_us
    rate = timing.rate_gigabytes_per_s * 1e3
    transfer = path_share * collective_bytes / instances / rate
    part = transfer / timing.slices
    blocks = transfer - part + max(part, waits)
    links = link_s_per_byte * collective_bytes * timing.wire * 1e6 / timing.link_efficiency
    return timing.start_us + max(blocks, links + waits / max(depth, 1.0))


@lru_cache(maxsize=16)
def _shape(case: Case) -> tuple[float, float, float]:
    """Return three figures of a case from which times are estimated, independent of the
    size.

    1. The number of messages on the longest path: the time of 64 bytes without the start,
       divided by the wait per message.
    2. The bytes on that path per byte of the collective: the time of 1 GiB without the
       start, times the rate of a thread block, divided by 1 GiB.
    3. The largest time of a link in seconds per byte of the collective, at the bandwidth
       in the topology; 0 without links.

    Both times are simulated with the first protocol of the kernel, one instance and one
    piece. The first two figures are infinite if these runs never end. The last sixteen
    results are cached. Raises `UsageError` (`no-model`) for a profile without a model, and
    `InputError` (`size-range`) if all messages at 1 GiB have 2^63 bytes or more.
    """
    protocol = PROTOCOLS_OF_KERNEL[case.kernel][0]
    small, large = (
        run_case(case, size, ExecutionVariant(protocol, 1)) for size in (_SMALL_BYTES, _LARGE_BYTES)
    )
    depth = (small.time_ps / 1e6 - small.timing.start_us) / small.timing.visible_us
    rate = large.timing.rate_gigabytes_per_s * 1e3
    path_share = (large.time_ps / 1e6 - large.timing.start_us) * rate / _LARGE_BYTES
    units = case.algorithm.collective.unit_count
    loads = load_links(case, case.algorithm.steps.count / units)
    busiest = float((loads / case.topology.bandwidth_bytes_per_s).max(initial=0.0))
    return depth, path_share, busiest
