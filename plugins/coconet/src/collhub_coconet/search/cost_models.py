"""Times of programs on a machine: the interface of cost models, and a model by formula."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol as TypingProtocol

from collhub_coconet.lowering.timing import compute_peak_bytes
from collhub_coconet.program.operations import (
    CONTRACTIONS,
    REDUCTIONS_TO_SCALARS,
    Binding,
    Kind,
    Operation,
)
from collhub_coconet.program.program import Program, reduces_scalar
from collhub_coconet.search.bounds import ProgramBound, compute_bound
from collhub_coconet.search.collective_times import (
    CHUNK_COUNTS,
    PROTOCOLS,
    CollectiveTimes,
    FormulaTimes,
    Means,
    Rates,
    find_demand,
)
from collhub_coconet.transformations.costs import count_memory_bytes, count_operations


@dataclass(frozen=True, slots=True)
class ProgramTiming:
    """Time of a program in seconds, and the means of its collectives, stages and chains by name."""

    seconds: float
    choices: Mapping[str, Means] = field(default_factory=dict)


class CostModel(TypingProtocol):
    """Computes times, and bounds of times and memory, for programs on one machine."""

    def timing(self, program: Program, binding: Binding) -> ProgramTiming:
        """Compute the time of a program with the fastest means at the sizes of `binding`."""
        ...

    def bound(self, program: Program, binding: Binding, kinds: Sequence[str]) -> ProgramBound:
        """Compute bounds for the program and all that transformations of `kinds` reach from it."""
        ...


@dataclass(frozen=True, slots=True)
class FormulaModel:
    """Cost model by formula: kernels run one after another on one stream, chains overlap.

    A computation takes the longer of its arithmetic and its memory traffic, a collective the time
    of its fastest formula. A stage with communication overlaps its computation and communication in
    k chunks, a chain the work on each of its resources: the longest takes its full time, and the
    remaining ones 1/k of theirs. `collective_times`: times of collectives alone; None: by formula.
    Messages between groups are always timed by formula.
    """

    rates: Rates
    collective_times: CollectiveTimes | None = None

    def timing(self, program: Program, binding: Binding) -> ProgramTiming:
        """Return the time of a program in s by formula, and the selected means by name.

        Each communication uses the algorithm, protocol and chunk count (the means) that are
        fastest in isolation. Its name is that of the operation, with the suffix ` (scalar)` for
        the all-reduce of a scalar. Stages and chains that overlap have their number of chunks
        as means. Raises `InputError` for symbols without a number, invalid counts, and
        collectives without an algorithm (`compute_seconds`).
        """
        calculation = _TimeCalculation(self.rates, program, binding, self.find_times())
        # Evaluated in this order: `compute_seconds` fills `choices`.
        return ProgramTiming(calculation.compute_seconds(), calculation.choices)

    def bound(self, program: Program, binding: Binding, kinds: Sequence[str]) -> ProgramBound:
        """Compute lower bounds of time and memory of a program and all that are reachable from it.

        `kinds`: the transformations that may still be applied. The bounds are those of
        `compute_bound`. Without `fuse` the kernels no longer change, only their overlap: the
        time is then the maximum of this bound and the minimum time of these kernels in any
        arrangement of chains (`compute_minimum_seconds`), and the memory is the peak memory of
        the program. Raises `InputError` in the cases of `timing`.
        """
        bound = compute_bound(program, binding, self.rates, kinds, self.find_times())
        if "fuse" in kinds:
            return bound
        calculation = _TimeCalculation(self.rates, program, binding, self.find_times())
        seconds = max(bound.seconds, calculation.compute_minimum_seconds())
        return ProgramBound(seconds, compute_peak_bytes(program, binding))

    def find_times(self) -> CollectiveTimes:
        """Return the times of collectives, by default those by formula."""
        return self.collective_times or FormulaTimes(self.rates)


@dataclass(slots=True)
class _TimeCalculation:
    """Time of one program by formula; `choices`: means selected so far, by name."""

    rates: Rates
    program: Program
    binding: Binding
    times: CollectiveTimes
    choices: dict[str, Means] = field(default_factory=dict)

    def compute_seconds(self) -> float:
        """Return the time of the program in s: the kernels outside of chains, plus every chain.

        Kernels outside of chains run one after the other. In a chain, kernels on different
        resources (network, links or processors of a group) overlap. Let T be the sum of the kernel
        times of the busiest resource, and S that of the other resources together. With k chunks a
        chain takes T + S / k + (k - 1) * N * launch time, for N kernels that take time. Of all k
        in `CHUNK_COUNTS`, the one with the smallest time is used; of equal ones the smallest k.

        The result is 0 without kernels. `self.choices` is changed: it gets the means (algorithm,
        protocol, chunk count) of each collective, and the chunk count of each chain and of each
        kernel that overlaps computation and communication. The key of a chain is such as `a -> b`.
        Raises `InputError` for a symbol without a number (`symbol`), counts that are invalid or too
        large (`invalid-counts`, `size`), and if `times` has no algorithm for a collective.
        """
        total = 0.0
        labels = {member: stage.name for stage in self.program.stages for member in stage.members}
        chain_of = {member: chain for chain in self.program.chains for member in chain.members}
        # By chain: seconds by resource, and number of kernels.
        busy_by_chain: dict[str, dict[str, float]] = {}
        launches: dict[str, int] = {}
        for kernel in self.program.kernels():
            label = labels.get(kernel[0].name, kernel[0].name)
            seconds = self._compute_kernel_s(kernel, label)
            chain = chain_of.get(label)
            # Views take no time and are not launched.
            if chain is None or not seconds:
                total += seconds
            else:
                name = " -> ".join(chain.members)
                busy = busy_by_chain.setdefault(name, {})
                resource = self._find_resource(kernel)
                busy[resource] = busy.get(resource, 0.0) + seconds
                launches[name] = launches.get(name, 0) + 1
        for name, busy in busy_by_chain.items():
            overhead_s = launches[name] * self.rates.launch_s
            total += self._compute_overlapped_s(name, list(busy.values()), overhead_s)
        return total

    def compute_minimum_seconds(self) -> float:
        """Return a lower bound, in s, of the time of the kernels in any arrangement of chains.

        It is the sum of two times:

        - All kernels with a reduction to a scalar, which cannot be in a chain, one after the
          other.
        - The busiest resource: the processors, the links of one group, or the network. Its time
          is the sum of all other kernels that use it, because these never overlap.

        It is 0 without kernels. Side effect: the means (algorithm, protocol, chunk count) of each
        collective are written to `self.choices` by name. Those of fused kernels are written under
        the name "", so that they overwrite each other. Raises `InputError` as `compute_seconds`.
        """
        unchained_s, busy = 0.0, dict[str, float]()
        for kernel in self.program.kernels():
            seconds = self._compute_kernel_s(kernel, "")
            if any(operation.kind in REDUCTIONS_TO_SCALARS for operation in kernel):
                unchained_s += seconds
                continue
            resource = self._find_resource(kernel)
            busy[resource] = busy.get(resource, 0.0) + seconds
        return unchained_s + max(busy.values(), default=0.0)

    def _find_resource(self, kernel: list[Operation]) -> str:
        """Return the name of the resource that a kernel occupies.

        Kernels of one resource never overlap. It is `network` for a kernel with a Send, which
        all groups share; otherwise `links of group G` for one with a collective, and
        `processors of group G` for one without. G is the group of the first result of the
        kernel.
        """
        kinds = {operation.kind for operation in kernel if operation.is_communication}
        if Kind.SEND in kinds:
            return "network"
        group = self.program.types[kernel[0].name].group
        return f"{'links' if kinds else 'processors'} of group {group}"

    def _compute_kernel_s(self, kernel: list[Operation], label: str) -> float:
        """Return the time in s of a kernel (computation, collectives, or both), launched once.

        The computation takes the longer one of two times: that of its contractions and that of the
        memory traffic of the kernel. The collectives take the sum of their times. The first rule
        that applies:

        1. There is no collective and all computations are free (`is_free`), such as views; or all
           operations write results of collectives to states: 0, without a launch.
        2. There is no collective, or all computations are free: the time of the part that exists.
        3. The kernel has a reduction to a scalar: the sum of both parts.
        4. Otherwise both parts overlap in chunks (`_compute_overlapped_s`). The number of chunks is
           the fastest one; each chunk after the first costs a latency and a protocol step. The
           choice is stored in `self.choices[label]`.

        Rules 2 to 4 add the launch and the all-reduces that complete reductions to scalars. The
        algorithm, protocol and chunk count of each collective, and with the suffix ` (scalar)` of
        each all-reduce, are stored in `self.choices`. Raises `InputError` as `compute_seconds`.
        """
        communications = [operation for operation in kernel if operation.is_communication]
        scalars = [operation for operation in kernel if reduces_scalar(self.program, operation)]
        computations = [operation for operation in kernel if not operation.is_communication]
        parts = []
        if communications:
            parts.append(
                sum(
                    self._compute_collective_s(operation, operation.name)
                    for operation in communications
                )
            )
        if not all(operation.is_free for operation in computations):
            # Seconds of the computations: the longer of contractions and memory traffic.
            contractions = [
                operation for operation in computations if operation.kind in CONTRACTIONS
            ]
            work = sum(
                count_operations(self.program, operation, self.binding)
                for operation in contractions
            )
            traffic = count_memory_bytes(self.program, kernel, self.binding)
            rates = self.rates
            parts.append(max(work / rates.operations_per_s, traffic / rates.memory_bytes_per_s))
        if not parts or self._is_in_place(kernel):
            return 0.0
        scalars_s = sum(
            self._compute_collective_s(operation, f"{operation.name} (scalar)")
            for operation in scalars
        )
        if len(parts) == 1:
            return parts[0] + scalars_s + self.rates.launch_s
        # A reduction to a scalar needs all chunks before its readers can start: no overlap.
        if any(operation.kind in REDUCTIONS_TO_SCALARS for operation in kernel):
            return sum(parts) + scalars_s + self.rates.launch_s
        launch_s, step_s = self.rates.launch_s, self.rates.latency_s + PROTOCOLS[-1].step_s
        return self._compute_overlapped_s(label, parts, step_s) + scalars_s + launch_s

    def _is_in_place(self, kernel: list[Operation]) -> bool:
        """Return whether all operations update states with results of communications.

        The communication can then write its result directly to the state. A result that is
        computed or is an argument gives False.
        """
        sources = (self.program.by_name.get(operation.reads[-1]) for operation in kernel)
        return all(
            operation.kind is Kind.UPDATE and source is not None and source.is_communication
            for operation, source in zip(kernel, sources, strict=True)
        )

    def _compute_collective_s(self, operation: Operation, name: str) -> float:
        """Return the time in s of a collective or of the all-reduce of a scalar, without launch.

        Such an all-reduce completes a reduction of slices to a scalar. The time is that of the
        fastest algorithm, protocol and chunk count (the means), of equally fast ones the first by
        name of the algorithm. The time of a Send is always that by formula, other times are those
        of `self.times`. The means, also that of a Send, is stored in `self.choices[name]`.

        Return 0.0 and store no means if there is no demand (`find_demand`): for one rank, for all
        members of a bucket except the first, whose time includes them, and for a scalar that needs
        no all-reduce. Raise `InputError` if no algorithm fits.
        """
        demand = find_demand(self.program, self.binding, operation)
        if demand is None:
            return 0.0
        times = FormulaTimes(self.rates) if demand.kind is Kind.SEND else self.times
        seconds, means = times.find_fastest(demand)
        self.choices[name] = means
        return seconds

    def _compute_overlapped_s(self, name: str, times_s: list[float], overhead_s: float) -> float:
        """Return the time in s of parts that overlap in chunks, for the fastest chunk count.

        With k chunks it is the time of the longest part, plus 1/k of the other parts, plus
        `overhead_s` for every chunk after the first. The best k of `CHUNK_COUNTS`, of equal
        ones the smallest, is stored in `self.choices[name]`. Raise `ValueError` without parts.
        """
        longest_s = max(times_s)
        remaining_s = sum(times_s) - max(times_s)
        seconds, chunks = min(
            (longest_s + remaining_s / chunks + (chunks - 1) * overhead_s, chunks)
            for chunks in CHUNK_COUNTS
        )
        self.choices[name] = Means("overlap", "chunks", chunks)
        return seconds
