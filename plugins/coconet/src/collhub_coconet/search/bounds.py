"""Lower bounds of time and memory for all programs that further transformations can reach.

The bounds are admissible for times by formula: they count only work that no allowed transformation
can hide or remove. The links of a group of ranks carry the necessary collectives one after another,
and its processors compute the necessary contractions one after another. A chain can overlap links
and processors, so that the bound is the busier of both. All-reduces of single scalars are added to
it: each belongs to a norm, sum or maximum, which no chain can contain, so that nothing hides them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from collhub_coconet.program.operations import (
    CONTRACTIONS,
    REPLICATED,
    Binding,
    Kind,
    Operation,
    TensorType,
)
from collhub_coconet.program.program import Program, find_descendants, reduces_scalar
from collhub_coconet.search.collective_times import (
    CollectiveTimes,
    Demand,
    FormulaTimes,
    Rates,
    find_demand,
)
from collhub_coconet.transformations.costs import count_memory_bytes, count_operations


@dataclass(frozen=True, slots=True)
class ProgramBound:
    """Lower bounds for all reachable programs: time in s, and peak memory of a rank in bytes."""

    seconds: float
    peak_bytes: int


def compute_bound(
    program: Program,
    binding: Binding,
    rates: Rates,
    kinds: Sequence[str],
    times: CollectiveTimes | None = None,
) -> ProgramBound:
    """Compute lower bounds of time and memory for a program and all programs reachable from it.

    `kinds`: names of the transformations that may be applied, such as `split`. `times`: of
    collectives in isolation, None: by formula. The time is that of the busiest resource,
    plus all-reduces of scalars (`_BoundCalculation.compute_seconds`). The resources are the
    network between groups, and the links and the processors of each group.

    - An AllReduce counts as the faster of itself and its ReduceScatter if `split` is
      allowed.
    - An AllGather that a transformation can remove counts as 0, any other with its time. If
      `reorder` is allowed, each group also counts one AllGather that must remain somewhere
      on a path to a replicated output. Its bytes are those of the smallest tensor of the
      path, for the path with the most (`_find_necessary_gathers`).
    - A contraction that can still be moved onto slices counts as 1 / ranks of its time.

    The memory is that of the group with the most: its arguments (a state counts as a slice
    if it may become one), plus the largest result of an AllGather that must remain.
    """
    times = times or FormulaTimes(rates)
    calculation = _BoundCalculation(program, binding, rates, frozenset(kinds), times)
    return ProgramBound(calculation.compute_seconds(), calculation.compute_peak_bytes())


@dataclass(slots=True)
class _BoundCalculation:
    """Bounds of one program.

    `kinds`: transformations that may still be applied. `movable`: names of operations that a
    reorder may still move onto slices: those that depend on an AllReduce if `split` is allowed, or
    on an AllGather if `reorder` is allowed.
    """

    program: Program
    binding: Binding
    rates: Rates
    kinds: frozenset[str]
    times: CollectiveTimes
    movable: set[str] = field(init=False)

    def __post_init__(self) -> None:
        # Results that transformations may change to slices: `split` those of an AllReduce, and
        # `reorder` those of an AllGather.
        sliceable = {Kind.ALL_REDUCE} if "split" in self.kinds else set()
        if "reorder" in self.kinds:
            sliceable.add(Kind.ALL_GATHER)
        sources = [
            operation.name for operation in self.program.operations if operation.kind in sliceable
        ]
        self.movable = find_descendants(self.program.operations, sources)

    # --- time ---

    def compute_seconds(self) -> float:
        """Return a lower bound of the time in s for all programs that the search can reach.

        It is the largest sum of times on one resource, plus the times of the scalar all-reduces:

        - The network: all Sends of all groups, by formula and without launches.
        - The links of each group: its collectives (`_compute_collective_s`), and the AllGather of
          `_find_necessary_gathers`, without a launch.
        - The processors of each group: contractions, each with its launch and the longer of its
          arithmetic and memory traffic. Other computations count 0: they may be fused.

        The bytes of a Send and the time of a contraction (without its launch) are divided by the
        ranks of a group if a transformation may move it onto slices (`movable`). Each reduction of
        slices to a scalar, such as a norm, has a scalar all-reduce. That counts its time for one
        element among all ranks of its group, without a launch. On a mesh of several axes it and the
        AllGather count 0. Raises `InputError` for a symbol without a value and for invalid counts
        of an uneven collective.
        """
        busy: dict[str, float] = {}
        for operation in self.program.operations:
            tensor = self.program.types[operation.name]
            # Operations that a transformation may move onto slices count with one slice.
            parts = self.binding.num_ranks if operation.name in self.movable else 1
            seconds = 0.0
            if operation.kind is Kind.SEND:
                resource, size = "network", self.binding.bytes_of_rank(tensor) // parts
                demand = Demand(Kind.SEND, size, tuple(self.binding.ranks_of(0)))
                seconds = FormulaTimes(self.rates).find_fastest(demand)[0]
            elif operation.is_communication:
                resource = f"links {tensor.group}"
                seconds = self._compute_collective_s(operation)
            else:
                # Other computations may be fused into a collective, and be hidden by it.
                resource = f"processors {tensor.group}"
                if operation.kind in CONTRACTIONS:
                    work = count_operations(self.program, operation, self.binding)
                    traffic = count_memory_bytes(self.program, [operation], self.binding)
                    work_s = work / self.rates.operations_per_s
                    seconds = max(work_s, traffic / self.rates.memory_bytes_per_s) / parts
                    seconds += self.rates.launch_s
            busy[resource] = busy.get(resource, 0.0) + seconds
        for group, size in self._find_necessary_gathers().items():
            if size:
                busy[f"links {group}"] += self._find_seconds(Kind.ALL_GATHER, size, group)
        scalars_s = sum(
            self._find_seconds(Kind.ALL_REDUCE, tensor.element.element_bytes, tensor.group)
            for tensor in (
                self.program.types[operation.name]
                for operation in self.program.operations
                if reduces_scalar(self.program, operation)
            )
        )
        return max(busy.values(), default=0.0) + scalars_s

    def _compute_collective_s(self, operation: Operation) -> float:
        """Return the minimum time of a collective in s that no transformation can avoid.

        Times are those of `self.times` for the fastest algorithm. The first rule that applies:

        1. An AllGather that a transformation may remove (`_can_be_removed`): 0.
        2. No demand (`find_demand`), as for a group of one rank and for all members of a bucket
           except the first: 0.
        3. Any other AllGather: its time without a launch, since it may share the launch of a
           stage.
        4. An AllReduce, if `split` is allowed: the smaller of its time and the time of a
           ReduceScatter of the same bytes, plus one launch.
        5. Any other collective: its time plus one launch.

        Raises `InputError` for invalid counts of an uneven collective (`find_demand`).
        """
        if operation.kind is Kind.ALL_GATHER and self._can_be_removed(operation):
            return 0.0
        demand = find_demand(self.program, self.binding, operation)
        if demand is None:
            return 0.0
        seconds = self.times.find_fastest(demand)[0]
        if operation.kind is Kind.ALL_GATHER:
            return seconds
        seconds += self.rates.launch_s
        if operation.kind is Kind.ALL_REDUCE and "split" in self.kinds:
            scatter = replace(demand, kind=Kind.REDUCE_SCATTER)
            scatter_s = self.times.find_fastest(scatter)[0] + self.rates.launch_s
            return min(seconds, scatter_s)
        return seconds

    def _can_be_removed(self, gather: Operation) -> bool:
        """Check whether a transformation may remove an AllGather.

        It may if `reorder` is allowed, or if an update of a state reads it and `as-slice` is
        allowed.
        """
        readers = self.program.readers.get(gather.name, ())
        is_of_state = any(reader.kind is Kind.UPDATE for reader in readers)
        return "reorder" in self.kinds or ("as-slice" in self.kinds and is_of_state)

    def _find_seconds(self, kind: Kind, size: int, group: int) -> float:
        """Return the time in s of a collective in isolation, among all ranks of a group.

        `size`: bytes of the full buffer; `group`: number of the group. The time is that of the
        fastest algorithm (`self.times`). Return 0 if there is less than one byte per rank, except
        for an AllReduce. Return 0 on a mesh of several axes, because the ranks that would take part
        are unknown.
        """
        if size < self.binding.num_ranks and kind is not Kind.ALL_REDUCE:
            return 0.0
        if len(self.program.mesh) > 1:
            return 0.0
        members = tuple(self.binding.ranks_of(group))
        return self.times.find_fastest(Demand(kind, size, members))[0]

    # --- memory ---

    def compute_peak_bytes(self) -> int:
        """Return a lower bound of the peak memory of a rank in bytes: the largest over all groups.

        The bound of a group of ranks is the sum of the bytes of its arguments on a rank, plus the
        bytes of its largest AllGather result:

        - An argument counts with its bytes on a rank. They are divided by the number of ranks,
          rounded down, if `as-slice` is allowed and the argument is a state that is replicated on
          some axis and not needed as a whole after the program (`whole_after`).
        - An AllGather result counts with its bytes on a rank if no transformation can remove the
          AllGather (`_can_be_removed`). The number of `_find_necessary_gathers` for the group is a
          further candidate. Without any candidate this part is 0.

        Other results count as 0, because they may be internal to a kernel. Without groups the
        bound is 0.
        """
        argument_bytes: dict[int, int] = {}
        for argument in self.program.arguments:
            group = argument.type.group
            size = self.binding.bytes_of_rank(argument.type)
            is_replicated = REPLICATED in argument.type.layout.by_axis
            can_be_sliced = argument.is_state and not argument.whole_after and is_replicated
            if can_be_sliced and "as-slice" in self.kinds:
                size //= self.binding.num_ranks
            argument_bytes[group] = argument_bytes.get(group, 0) + size
        gathered_bytes = self._find_necessary_gathers()
        for operation in self.program.operations:
            if operation.kind is Kind.ALL_GATHER and not self._can_be_removed(operation):
                tensor = self.program.types[operation.name]
                size = self.binding.bytes_of_rank(tensor)
                gathered_bytes[tensor.group] = max(gathered_bytes.get(tensor.group, 0), size)
        groups = {*argument_bytes, *gathered_bytes}
        return max(
            (argument_bytes.get(group, 0) + gathered_bytes.get(group, 0) for group in groups),
            default=0,
        )

    # --- AllGathers that no reorder avoids ---

    def _find_necessary_gathers(self) -> dict[int, int]:
        """Return by group the bytes that one AllGather must produce after any `reorder`.

        A `reorder` moves an AllGather past its readers towards an output. It then produces the
        tensor at its new position, so at least the smallest tensor on its path to the output. A
        path is a sequence of operations, each of which reads the one before:

        - Its first operation is an AllGather. Its last one is an output that is replicated in
          every reachable program (`_stays_replicated`).
        - Operations after the first are no communication, and their results are no scalars.
        - Its size is its smallest tensor, first and last included, in bytes of the complete
          tensor.

        The value of a group is the largest size of all paths to its replicated outputs, 0 without
        a path. Groups without such outputs are missing. The result is {} if `reorder` is not
        allowed.
        """
        if "reorder" not in self.kinds:
            return {}
        bytes_by_group: dict[int, int] = {}
        narrowest: dict[str, int] = {}
        # In program order, operands are processed before their readers.
        for operation in self.program.operations:
            tensor = self.program.types[operation.name]
            if operation.kind is Kind.ALL_GATHER:
                narrowest[operation.name] = self._count_bytes(tensor)
                continue
            # A collective or a reduction to a scalar gives complete values without an AllGather,
            # and a Send leaves the group.
            ends_path = operation.is_communication or not tensor.shape
            operands = max((narrowest.get(name, 0) for name in operation.reads), default=0)
            narrowest[operation.name] = 0 if ends_path else min(operands, self._count_bytes(tensor))
        for name in self.program.outputs:
            if self._stays_replicated(name):
                group = self.program.types[name].group
                size = max(bytes_by_group.get(group, 0), narrowest.get(name, 0))
                bytes_by_group[group] = size
        return bytes_by_group

    def _stays_replicated(self, output: str) -> bool:
        """Return whether an output is replicated now and in every reachable program.

        False for an argument, and for a value that is not replicated now or is on a mesh of
        several axes. For an Update of a state it is True only if the complete state is needed
        after the program (`whole_after`). Otherwise the state may become a slice, whether or
        not `as-slice` is still allowed.
        """
        operation = self.program.by_name.get(output)
        if operation is None or self.program.types[output].layout != REPLICATED:
            return False
        if operation.kind is not Kind.UPDATE:
            return True
        state = self.program.states.get(operation.reads[0])
        return state is None or state.whole_after

    def _count_bytes(self, tensor: TensorType) -> int:
        """Bytes of the complete tensor, also if each rank stores only a slice."""
        return self.binding.elements(tensor.shape) * tensor.element.element_bytes
