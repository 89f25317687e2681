"""Time of a program on a machine: the protocol of cost models, and one by formula."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol as TypingProtocol

from collhub_coconet.documents.text import reduces_scalar
from collhub_coconet.lowering.timing import peak_bytes
from collhub_coconet.program.operations import (
    CONTRACTIONS,
    REDUCTIONS_TO_SCALARS,
    Kind,
    Operation,
)
from collhub_coconet.program.program import Program
from collhub_coconet.program.tensors import Binding
from collhub_coconet.search.bounds import Least, least
from collhub_coconet.search.collective_times import CHUNK_COUNTS, PROTOCOLS, Means, best_choice
from collhub_coconet.search.rates import Rates
from collhub_coconet.transformations.costs import memory_bytes, operations_of


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of a program, and how its collectives and chains are carried out, by name."""

    seconds: float
    choices: Mapping[str, Means] = field(default_factory=dict)


class CostModel(TypingProtocol):
    """Times programs on one machine."""

    def timing(self, program: Program, binding: Binding) -> Timing:
        """The time with the best choices."""
        ...

    def bound(self, program: Program, binding: Binding, kinds: Sequence[str]) -> Least:
        """Time and memory that no program falls below that moves of these kinds lead to."""
        ...


@dataclass(frozen=True, slots=True)
class FormulaModel:
    """Kernels one after another on one stream; those of a chain overlap chunk by chunk.

    A kernel takes the longer of arithmetic and memory, a collective its best formula. Of a stage
    with communication, and of a chain of k chunks, the longest part counts, and 1/k of the others.
    """

    rates: Rates

    def timing(self, program: Program, binding: Binding) -> Timing:
        """The time with the best algorithm, protocol and chunk count for each part."""
        run = _Run(self.rates, program, binding)
        # Choices are made while the parts are timed.
        return Timing(run.seconds(), run.choices)

    def bound(self, program: Program, binding: Binding, kinds: Sequence[str]) -> Least:
        """The bound of `least`; where chains alone can change, by the kernels as they are."""
        found = least(program, binding, self.rates, kinds)
        if "fuse" in kinds:
            return found
        run = _Run(self.rates, program, binding)
        return Least(max(found.seconds, run.least_seconds()), peak_bytes(program, binding))


@dataclass(slots=True)
class _Run:
    """One program being timed."""

    rates: Rates
    program: Program
    binding: Binding
    choices: dict[str, Means] = field(default_factory=dict)

    def seconds(self) -> float:
        """All chains, and all kernels that are in none."""
        # Stages are launched as one, chains are timed when all their kernels are known.
        total = 0.0
        labels = {one: stage.name for stage in self.program.stages for one in stage.members}
        chain_of = {one: chain for chain in self.program.chains for one in chain.members}
        parts: dict[str, dict[str, float]] = {}
        launches: dict[str, int] = {}
        for kernel in self.program.kernels():
            label = labels.get(kernel[0].name, kernel[0].name)
            took = self._kernel(kernel, label)
            chain = chain_of.get(label)
            # Views take no time and break no chain.
            if chain is None or not took:
                total += took
            else:
                name = " -> ".join(chain.members)
                busy = parts.setdefault(name, {})
                resource = self._resource(kernel)
                busy[resource] = busy.get(resource, 0.0) + took
                launches[name] = launches.get(name, 0) + 1
        for name, busy in parts.items():
            overhead = launches[name] * self.rates.launch_s
            total += self._overlapped(name, list(busy.values()), overhead)
        return total

    def least_seconds(self) -> float:
        """Seconds that no chains of these kernels fall below.

        Kernels of one resource wait for one another in a chain too, and one that reduces to a
        scalar is in none.
        """
        alone, busy = 0.0, dict[str, float]()
        for kernel in self.program.kernels():
            took = self._kernel(kernel, "")
            if any(one.kind in REDUCTIONS_TO_SCALARS for one in kernel):
                alone += took
                continue
            resource = self._resource(kernel)
            busy[resource] = busy.get(resource, 0.0) + took
        return alone + max(busy.values(), default=0.0)

    def _resource(self, kernel: list[Operation]) -> str:
        """What a kernel keeps busy: a group's processors or links, or the network between groups.

        Kernels of one resource wait for one another, chunks or not.
        """
        kinds = {one.kind for one in kernel if one.is_communication}
        if Kind.SEND in kinds:
            return "network"
        group = self.program.types[kernel[0].name].group
        return f"{'links' if kinds else 'processors'} of group {group}"

    def _kernel(self, kernel: list[Operation], label: str) -> float:
        """A computation, a collective, or a stage of both; a view costs nothing."""
        talking = [one for one in kernel if one.is_communication]
        scalars = [one for one in kernel if reduces_scalar(self.program, one)]
        computing = [one for one in kernel if one not in talking]
        parts = []
        if talking:
            parts.append(sum(self._collective(one) for one in talking))
        if any(one.kind is not Kind.SLICE for one in computing):
            parts.append(self._computation(kernel, computing))
        if not parts or self._is_in_place(kernel):
            return 0.0
        behind = sum(self._scalar(one) for one in scalars)
        if len(parts) == 1:
            return parts[0] + behind + self.rates.launch_s
        # A norm needs all chunks before anything behind it has one.
        if any(one.kind in REDUCTIONS_TO_SCALARS for one in kernel):
            return sum(parts) + behind + self.rates.launch_s
        # Chunk by chunk within one kernel, which is launched once.
        launch, step_s = self.rates.launch_s, self.rates.latency_s + PROTOCOLS[-1].step_s
        return self._overlapped(label, parts, step_s) + behind + launch

    def _is_in_place(self, kernel: list[Operation]) -> bool:
        """Whether a kernel only updates states by what a collective can write there itself."""
        makers = (self.program.by_name.get(one.reads[-1]) for one in kernel)
        return all(
            one.kind is Kind.UPDATE and maker is not None and maker.is_communication
            for one, maker in zip(kernel, makers, strict=True)
        )

    def _computation(self, kernel: list[Operation], computing: list[Operation]) -> float:
        """The longer of arithmetic and memory; pointwise operations are bound by memory alone."""
        # A kernel is bound by one of both; tensor units are fast enough for all else.
        products = [one for one in computing if one.kind in CONTRACTIONS]
        work = sum(operations_of(self.program, one, self.binding) for one in products)
        touched = memory_bytes(self.program, kernel, self.binding)
        rates = self.rates
        return max(work / rates.operations_per_s, touched / rates.memory_bytes_per_s)

    def _collective(self, operation: Operation) -> float:
        """The best time of a collective or message."""
        # What an all-gather gives, and what the others begin with, has this size.
        kind = self.program.types[operation.name]
        size = self.binding.elements(kind.shape) * kind.element.element_bytes
        if operation.kind is Kind.SEND:
            size = self.binding.bytes_of_rank(kind)
        return self._best(operation.name, operation.kind, size)

    def _scalar(self, operation: Operation) -> float:
        """The all-reduce of one scalar behind a norm of slices."""
        size = self.program.types[operation.name].element.element_bytes
        return self._best(f"{operation.name} (scalar)", Kind.ALL_REDUCE, size)

    def _best(self, name: str, kind: Kind, size: int) -> float:
        seconds, choice = best_choice(kind, size, self.binding.num_ranks, self.rates)
        self.choices[name] = choice
        return seconds

    def _overlapped(self, name: str, times: list[float], overhead_s: float) -> float:
        """The longest part, a chunk of each other one, and an overhead for every further chunk."""
        longest, rest = max(times), sum(times) - max(times)
        found = [(longest + rest / k + (k - 1) * overhead_s, k) for k in CHUNK_COUNTS]
        seconds, chunks = min(found)
        self.choices[name] = Means("overlap", "chunks", chunks)
        return seconds
