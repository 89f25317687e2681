"""Time of a program on a machine, simulated on its flat graph, and its peak memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import accumulate

import numpy as np

from collhub_coconet.lowering.algorithms import Algorithms, Choice, Choices
from collhub_coconet.lowering.flat import flatten
from collhub_coconet.lowering.flat_program import FlatProgram, KernelSegment, Launch
from collhub_coconet.program.operations import Binding, Kind
from collhub_coconet.program.program import Program
from hub_core import InputError, Registry, Topology, parse_topology, run_registry
from hub_core.columns import Int64Array
from hub_core.model import Workload
from hub_core.plugin_api import WorkloadRequest, WorkloadSimulator, WorkloadTimes, resolve

_SIMULATOR = "analytical"


@dataclass(frozen=True, slots=True)
class Machine:
    """Rates of the ranks, and the network between them.

    `operations_per_s`, `memory_bytes_per_s`: of a rank; a kernel takes the longer of both times,
    plus `launch_s`. A kernel that communicates starts `launch_s` after its operands are ready and
    the previous one of the rank is launched. `tile_s`: added to every tile of a kernel that is
    cut. `topology`: the network, or a text such as `ring:8?bandwidth=130.5GB/s&latency=0ns`; if it
    is None, every pair of ranks has a link with `beta_bytes_per_s` and `alpha_s`. `measured_s`:
    seconds of single operations by name, which replace the times by rates.
    """

    operations_per_s: float
    memory_bytes_per_s: float
    launch_s: float = 0.0
    tile_s: float = 0.0
    topology: Topology | str | None = None
    alpha_s: float = 0.0
    beta_bytes_per_s: float = 50e9
    measured_s: Mapping[str, float] = field(default_factory=dict)

    def network(self, num_ranks: int, registry: Registry) -> Topology:
        """Return the network of the machine for `num_ranks` ranks (ranks of all groups).

        It is `self.topology`; a text is parsed with `registry`. If it is None, the network is fully
        connected with `num_ranks` NPUs. Each link then has the latency `alpha_s`, rounded to 1e-6
        ns, and the bandwidth `beta_bytes_per_s`, rounded to 1 byte/s.

        A network with more NPUs than ranks is accepted. Raises `InputError` (`topology-too-small`)
        if it has fewer, and the errors of `parse_topology`.
        """
        topology = self.topology
        if topology is None:
            latency = f"{self.alpha_s * 1e9:.6f}ns"
            bandwidth = f"{self.beta_bytes_per_s / 1e9:.9f}GB/s"
            topology = f"fully-connected:{num_ranks}?bandwidth={bandwidth}&latency={latency}"
        if isinstance(topology, str):
            topology = parse_topology(topology, registry=registry)
        if topology.num_npus < num_ranks:
            message = f"topology {topology.name} has {topology.num_npus} NPUs for {num_ranks} ranks"
            cure = "state a topology with one NPU for every rank of every group"
            raise InputError(message, cure=cure, code="topology-too-small")
        return topology


@dataclass(frozen=True, slots=True)
class Makespan:
    """Time until the last rank finishes, and maximum number of bytes of tensors on a rank."""

    time_s: float
    peak_bytes_per_rank: int


def makespan(
    program: Program,
    binding: Binding,
    machine: Machine,
    choices: Choices | None = None,
    *,
    registry: Registry | None = None,
    algorithms: Algorithms | None = None,
) -> Makespan:
    """Return the simulated time of a program in s, and its peak memory in bytes per rank.

    The analytical simulator of jobs runs all ranks of all groups on `machine.network`, without a
    limit on simultaneous nodes. On a rank, kernels without communication run one after the other.
    If `machine.launch_s` is above 0, kernels that communicate are launched in sequence. The memory
    is that of `compute_peak_bytes`.

    - `choices`: algorithm and chunks by name of a communication; "" is for any other. None: trees
      if there is a root, direct for AllToAll and AllToAllV, else rings; one piece.
    - `registry`: None for that of the run. `algorithms`: those of an earlier call for this network.

    Raises `InputError` (`topology-too-small`, `never-ends`: a node or rank never finishes), and
    other `HubError`s: unfit layouts or algorithms, a simulator that is not installed or fails.
    """
    registry = registry or run_registry()
    ranks = binding.num_ranks * program.num_groups
    network = machine.network(ranks, registry)
    flat = flatten(
        program, binding, network, choices,
        registry=registry, algorithms=algorithms, has_launches=machine.launch_s > 0,
    )  # fmt: skip
    times = simulate_flat(flat, machine, network, registry)
    # A deadlocked node has no end, even if its rank has a time.
    ends = times.step_end_ns
    if times.time_ns is None or (ends is not None and ends.min(initial=0) < 0):
        raise InputError("some rank never finishes", code="never-ends")
    return Makespan(times.time_ns / 1e9, compute_peak_bytes(program, binding))


def simulate_flat(
    flat: FlatProgram, machine: Machine, network: Topology, registry: Registry
) -> WorkloadTimes:
    """Simulate all nodes of a flat program with unlimited slots per rank; times are in ns.

    The simulator is the analytical one of jobs. Computations have their durations on
    `machine` (`add_durations`; the program is not changed). Messages take the times of
    `network`; rank r is its NPU r. Raise `HubError` if the simulator is not installed or
    fails.
    """
    offer = registry.find(WorkloadSimulator, _SIMULATOR).offer
    simulate = resolve(offer.simulate)
    options = offer.options(slots="unlimited")
    times = simulate(WorkloadRequest(add_durations(flat, machine), network), options)
    assert isinstance(times, WorkloadTimes)
    return times


def add_durations(flat: FlatProgram, machine: Machine) -> Workload:
    """Copy the workload of a flat program with the duration of every computation on a machine.

    Durations are rounded to ns. The launch time of a kernel is the duration of the nodes of its
    `Launch`, if the program has one. Otherwise it is added once per rank: to the rank's first node
    (by row) of the kernel's first segment that has an operation other than views (`is_free`). Nodes
    of collectives and messages keep their durations. The input is not changed.
    """
    nodes = flat.workload.nodes
    seconds = np.zeros(len(nodes))
    is_computed = np.zeros(len(nodes), np.bool_)
    launched = {part.kernel for part in flat.parts if isinstance(part, Launch)}
    for number, part in enumerate(flat.parts):
        if isinstance(part, Launch):
            rows = np.flatnonzero(flat.part == number)
            is_computed[rows] = True
            seconds[rows] = machine.launch_s
            continue
        if not isinstance(part, KernelSegment):
            continue
        rows = np.flatnonzero(flat.part == number)
        is_computed[rows] = True
        seconds[rows] = _compute_seconds(flat, machine, part, rows)
        # A kernel is launched once on every rank.
        is_launched = not all(operation.is_free for operation in part.operations)
        if is_launched and part.kernel not in launched:
            _, first = np.unique(nodes.rank[rows], return_index=True)
            seconds[rows[first]] += machine.launch_s
            launched.add(part.kernel)
    duration = np.where(is_computed, np.rint(seconds * 1e9).astype(np.int64), nodes.duration_ns)
    return replace(flat.workload, nodes=replace(nodes, duration_ns=duration))


def _compute_seconds(
    flat: FlatProgram, machine: Machine, part: KernelSegment, rows: Int64Array
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return the times of the nodes of a segment in s, without launches: float64[rows].

    `rows`: the nodes (tiles) of the segment, in any order; the result has this order. By default,
    the time of a node is the longer one of operations / `operations_per_s` and bytes /
    `memory_bytes_per_s`.

    If `machine.measured_s` has a time for at least one operation of the segment (by name), these
    times replace the default. Their sum is divided equally among the nodes of each rank. Operations
    without a measured time then count 0.

    In both cases, `machine.tile_s` is added to the time of every node if some rank has several
    nodes.
    """
    nodes = flat.workload.nodes
    computing = nodes.operations[rows] / machine.operations_per_s
    moving = nodes.bytes[rows] / machine.memory_bytes_per_s
    seconds = np.maximum(computing, moving)
    measured = [
        machine.measured_s[operation.name]
        for operation in part.operations
        if operation.name in machine.measured_s
    ]
    if measured:
        seconds = sum(measured) / np.bincount(nodes.rank[rows])[nodes.rank[rows]]
    is_cut = len(rows) > len(np.unique(nodes.rank[rows]))
    return seconds + (machine.tile_s if is_cut else 0.0)


def compute_peak_bytes(program: Program, binding: Binding) -> int:
    """Return the peak memory in bytes of one rank: the maximum over the groups of ranks.

    Time advances by kernels in the order of `program.kernels()`. The memory at a kernel is the sum
    of these tensors of the group; a sliced tensor has the size of its longest block:

    - each argument, at all times
    - each value, from its kernel to the last kernel that reads it or a view of it (inclusive)
    - each output, and each value of which an output is a view, from its kernel to the end

    Values that no later kernel reads count 0, unless they are outputs. Views and other operations
    without a kernel, and updates of states, count 0. Without operations the result is the bytes of
    the arguments. Raises `InputError` if stages wait for each other, and for a symbol without a
    number.
    """
    kernels = program.kernels()
    of_kernel = {
        operation.name: kernel_index
        for kernel_index, kernel in enumerate(kernels)
        for operation in kernel
    }
    # Outputs are read by one more kernel, after all kernels of the program.
    last = of_kernel | dict.fromkeys(program.outputs, len(kernels))
    for operation in reversed(program.operations):
        # A reader of a view reads the viewed value.
        reach = (last if operation.is_free else of_kernel)[operation.name]
        for read in operation.reads:
            if last.get(read, 0) < reach:
                last[read] = reach
    peak = 0
    for group in range(program.num_groups):
        fixed = sum(
            binding.bytes_of_rank(argument.type)
            for argument in program.arguments
            if argument.type.group == group
        )
        change = [0] * (len(kernels) + 2)
        for operation in program.operations:
            kind, name = program.types[operation.name], operation.name
            is_kept = last[name] > of_kernel[name]
            is_new = not operation.is_free and operation.kind is not Kind.UPDATE
            if is_kept and is_new and kind.group == group:
                size = binding.bytes_of_rank(kind)
                change[of_kernel[name]] += size
                change[last[name] + 1] -= size
        peak = max(peak, fixed + max(accumulate(change)))
    return peak


__all__ = [
    "Choice",
    "Machine",
    "Makespan",
    "add_durations",
    "compute_peak_bytes",
    "makespan",
    "simulate_flat",
]
