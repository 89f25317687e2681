"""The time of a program on a machine: its flat graph, simulated, and its peak memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from collhub_coconet.lowering.algorithms import Choice, Choices
from collhub_coconet.lowering.flat import flatten
from collhub_coconet.lowering.flat_program import FlatProgram, Segment
from collhub_coconet.program.operations import Kind
from collhub_coconet.program.program import Program
from collhub_coconet.program.tensors import Binding
from hub_core import InputError, Registry, Topology, parse_topology, run_registry
from hub_core.columns import Int64Array
from hub_core.model import Workload
from hub_core.plugin_api import WorkloadRequest, WorkloadSimulator, WorkloadTimes, resolve

_SIMULATOR = "analytical"


@dataclass(frozen=True, slots=True)
class Machine:
    """What computes and what joins the ranks.

    `operations_per_s`, `memory_bytes_per_s`: of a rank; a kernel takes the longer of both times,
    and `launch_s` once. `tile_s`: added to every tile of a kernel that is cut. `topology`: the
    network, as such or as a text like `ring:8?bandwidth=130.5GB/s&latency=0ns`; where it is None,
    every pair of ranks has a link of `beta_bytes_per_s` and `alpha_s`. `measured_s`: seconds of
    single operations by name, in the place of what the rates say.
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
        """The network of so many ranks. Raises `InputError` for one with fewer NPUs."""
        stated = self.topology
        if stated is None:
            latency = f"{self.alpha_s * 1e9:.6f}ns"
            bandwidth = f"{self.beta_bytes_per_s / 1e9:.9f}GB/s"
            stated = f"fully-connected:{num_ranks}?bandwidth={bandwidth}&latency={latency}"
        found = parse_topology(stated, registry=registry) if isinstance(stated, str) else stated
        if found.num_npus < num_ranks:
            message = f"topology {found.name} has {found.num_npus} NPUs for {num_ranks} ranks"
            cure = "state a topology with one NPU for every rank of every group"
            raise InputError(message, cure=cure, code="topology-too-small")
        return found


@dataclass(frozen=True, slots=True)
class Makespan:
    """Time until the last rank is done, and the most bytes of tensors that a rank holds."""

    time_s: float
    peak_bytes_per_rank: int


def makespan(
    program: Program,
    binding: Binding,
    machine: Machine,
    choices: Choices | None = None,
    *,
    registry: Registry | None = None,
) -> Makespan:
    """Simulated time and peak memory of a program.

    `choices`: by the name of a communication, or "" for all others, `Choice(algorithm, chunks,
    options, tiles)`; by default rings in one piece. The flat graph (`flat.flatten`) runs on the
    simulator of workloads with any number of nodes in flight; kernels of a rank run one after the
    other, those that communicate beside them. `registry`: pass one for many calls. Raises
    `HubError`.
    """
    registry = registry or run_registry()
    ranks = binding.num_ranks * program.num_groups
    network = machine.network(ranks, registry)
    flat = flatten(program, binding, network, choices, registry=registry)
    times = simulated(flat, machine, network, registry)
    if times.time_ns is None:
        raise InputError("some rank never finishes", code="never-ends")
    return Makespan(times.time_ns / 1e9, peak_bytes(program, binding))


def simulated(
    flat: FlatProgram, machine: Machine, network: Topology, registry: Registry
) -> WorkloadTimes:
    """Times of all nodes of a flat program in ns."""
    found = registry.find(WorkloadSimulator, _SIMULATOR)
    simulate = resolve(found.offer.simulate)
    options = found.offer.options(slots="unlimited")
    times = simulate(WorkloadRequest(timed(flat, machine), network), options)
    assert isinstance(times, WorkloadTimes)
    return times


def timed(flat: FlatProgram, machine: Machine) -> Workload:
    """The workload with the durations of its computations on a machine."""
    nodes = flat.workload.nodes
    seconds = np.zeros(len(nodes))
    is_computed = np.zeros(len(nodes), np.bool_)
    launched: set[int] = set()
    for number, part in enumerate(flat.parts):
        if not isinstance(part, Segment):
            continue
        rows = np.flatnonzero(flat.part == number)
        is_computed[rows] = True
        seconds[rows] = _seconds(flat, machine, part, rows)
        # A kernel is launched once on every rank.
        if part.kernel not in launched:
            _, first = np.unique(nodes.rank[rows], return_index=True)
            seconds[rows[first]] += machine.launch_s
            launched.add(part.kernel)
    duration = np.where(is_computed, np.rint(seconds * 1e9).astype(np.int64), nodes.duration_ns)
    return replace(flat.workload, nodes=replace(nodes, duration_ns=duration))


def _seconds(
    flat: FlatProgram, machine: Machine, part: Segment, rows: Int64Array
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Seconds of the tiles of a segment without launches."""
    nodes = flat.workload.nodes
    computing = nodes.operations[rows] / machine.operations_per_s
    moving = nodes.bytes[rows] / machine.memory_bytes_per_s
    found = np.maximum(computing, moving)
    stated = [
        machine.measured_s[one.name] for one in part.operations if one.name in machine.measured_s
    ]
    if stated:
        found = sum(stated) / np.bincount(nodes.rank[rows])[nodes.rank[rows]]
    is_cut = len(rows) > len(np.unique(nodes.rank[rows]))
    return found + (machine.tile_s if is_cut else 0.0)


def peak_bytes(program: Program, binding: Binding) -> int:
    """Most bytes of arguments and values that a rank of any group holds at once.

    Arguments stay, values live from their kernel to the last one that reads them; those that only
    their own kernel reads stay in registers, slices are views, and a state is updated in place.
    """
    kernels = program.kernels()
    of_kernel = {one.name: place for place, kernel in enumerate(kernels) for one in kernel}
    last = dict(of_kernel)
    for name in reversed([one.name for one in program.operations]):
        operation = program.by_name[name]
        for read in operation.reads:
            # Who reads a view reads what it is a view of.
            reach = last[name] if operation.kind is Kind.SLICE else of_kernel[name]
            last[read] = max(last.get(read, 0), reach)
    last |= dict.fromkeys(program.outputs, len(kernels) - 1)
    peak = 0
    for group in range(program.num_groups):
        fixed = sum(
            binding.bytes_of_rank(one.type) for one in program.arguments if one.type.group == group
        )
        change = np.zeros(len(kernels) + 1, np.int64)
        for operation in program.operations:
            kind, name = program.types[operation.name], operation.name
            is_kept = last[name] > of_kernel[name] or name in program.outputs
            is_new = operation.kind not in (Kind.SLICE, Kind.UPDATE)
            if is_kept and is_new and kind.group == group:
                change[of_kernel[name]] += binding.bytes_of_rank(kind)
                change[last[name] + 1] -= binding.bytes_of_rank(kind)
        peak = max(peak, fixed + int(np.cumsum(change).max(initial=0)))
    return peak


__all__ = ["Choice", "Machine", "Makespan", "makespan", "peak_bytes", "simulated", "timed"]
