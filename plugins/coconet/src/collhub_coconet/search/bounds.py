"""Lower bounds of time and memory: of all programs that further transformations lead to.

Admissible for times by formula: nothing that counts here can be hidden or left out by a move that
is still allowed. Of a group of ranks its links carry what has to be communicated, one collective
after another, and its processors multiply what has to be multiplied; a chain hides the shorter of
both. All-reduces of single scalars are hidden by nothing, since a norm ends every chain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from collhub_coconet.documents.text import reduces_scalar
from collhub_coconet.program.graph import descendants
from collhub_coconet.program.operations import CONTRACTIONS, Kind, Operation
from collhub_coconet.program.program import Program
from collhub_coconet.program.tensors import REPLICATED, Binding, TensorType
from collhub_coconet.search.collective_times import best_choice
from collhub_coconet.search.rates import Rates
from collhub_coconet.transformations.costs import memory_bytes, operations_of


@dataclass(frozen=True, slots=True)
class Least:
    """Seconds and bytes of a rank that no reachable program falls below."""

    seconds: float
    peak_bytes: int


def least(program: Program, binding: Binding, rates: Rates, kinds: Sequence[str]) -> Least:
    """The bound of all programs that moves of these kinds lead to, itself included.

    Time: that of the busiest links or processors, and of scalars. An AllReduce counts in full when
    no split can come, else as the cheaper of itself and its ReduceScatter; an AllGather when no
    reorder can drop it, else one of the narrowest tensor that leads to an output; a product behind
    one as a p-th while it may move before it. Memory: arguments, a state as a slice while it may
    become one, and the largest result of a gathering or product.
    """
    found = _Least(program, binding, rates, frozenset(kinds))
    return Least(found.seconds(), found.peak())


@dataclass(slots=True)
class _Least:
    """A bound under construction; `movable`: operations that a reorder may still cut."""

    program: Program
    binding: Binding
    rates: Rates
    kinds: frozenset[str]
    movable: set[str] = field(init=False)

    def __post_init__(self) -> None:
        sources = [one.name for one in self.program.operations if self._may_scatter(one)]
        self.movable = descendants(self.program.operations, sources)

    def _may_scatter(self, operation: Operation) -> bool:
        """Whether a reorder may move what reads this operation onto slices."""
        if operation.kind is Kind.ALL_REDUCE:
            return "split" in self.kinds
        # An AllGather may be of the program's own, or half of a split.
        return operation.kind is Kind.ALL_GATHER and "reorder" in self.kinds

    # --- time ---

    def seconds(self) -> float:
        """The busiest resource, and behind it what nothing hides."""
        busy: dict[str, float] = {}
        for operation in self.program.operations:
            group = self.program.types[operation.name].group
            if operation.kind is Kind.SEND:
                resource, took = "network", self._message(operation)
            elif operation.is_communication:
                resource, took = f"links {group}", self._collective(operation)
            else:
                resource, took = f"processors {group}", self._product(operation)
            busy[resource] = busy.get(resource, 0.0) + took
        for group, width in self._gathered().items():
            if width:
                busy[f"links {group}"] += self._best(Kind.ALL_GATHER, width)
        scalars = [one for one in self.program.operations if reduces_scalar(self.program, one)]
        size = [self.program.types[one.name].element.element_bytes for one in scalars]
        behind = sum(self._best(Kind.ALL_REDUCE, one) for one in size)
        return max(busy.values(), default=0.0) + behind

    def _collective(self, operation: Operation) -> float:
        """Seconds of a collective that stays; an AllGather that may go counts with its tensor."""
        kind = self.program.types[operation.name]
        took = self._best(operation.kind, self._bytes(kind))
        if operation.kind is Kind.ALL_GATHER:
            return 0.0 if self._may_go(operation) else took
        # Of a stage with a ReduceScatter its AllGathers are launched with it.
        took += self.rates.launch_s
        if operation.kind is Kind.ALL_REDUCE and "split" in self.kinds:
            halved = self._best(Kind.REDUCE_SCATTER, self._bytes(kind)) + self.rates.launch_s
            return min(took, halved)
        return took

    def _may_go(self, operation: Operation) -> bool:
        """Whether a move may drop an AllGather: a reorder, or a state that becomes a slice."""
        readers = self.program.readers.get(operation.name, ())
        is_of_state = any(one.kind is Kind.UPDATE for one in readers)
        return "reorder" in self.kinds or ("as-slice" in self.kinds and is_of_state)

    def _message(self, operation: Operation) -> float:
        """Seconds of a Send, of a slice where it may become one."""
        size = self.binding.bytes_of_rank(self.program.types[operation.name])
        share = self.binding.num_ranks if operation.name in self.movable else 1
        return self._best(Kind.SEND, size // share)

    def _product(self, operation: Operation) -> float:
        """Seconds of a contraction; whatever else is computed may be hidden in a collective."""
        if operation.kind not in CONTRACTIONS:
            return 0.0
        work = operations_of(self.program, operation, self.binding)
        touched = memory_bytes(self.program, [operation], self.binding)
        took = max(work / self.rates.operations_per_s, touched / self.rates.memory_bytes_per_s)
        share = self.binding.num_ranks if operation.name in self.movable else 1
        return took / share + self.rates.launch_s

    def _best(self, kind: Kind, size: int) -> float:
        """Seconds of a collective by its best formula."""
        # The same that the cost model takes.
        return best_choice(kind, size, self.binding.num_ranks, self.rates)[0]

    # --- memory ---

    def peak(self) -> int:
        """The most of any group: arguments, and a result that no kernel keeps to itself."""
        fixed: dict[int, int] = {}
        for one in self.program.arguments:
            size = self.binding.bytes_of_rank(one.type)
            may_shrink = one.is_state and not one.whole_after and one.type.layout == REPLICATED
            if may_shrink and "as-slice" in self.kinds:
                size //= self.binding.num_ranks
            fixed[one.type.group] = fixed.get(one.type.group, 0) + size
        kept = self._gathered()
        for operation in self.program.operations:
            kind = self.program.types[operation.name]
            is_kept = operation.kind is Kind.ALL_GATHER and not self._may_go(operation)
            if is_kept:
                size = self.binding.bytes_of_rank(kind)
                kept[kind.group] = max(kept.get(kind.group, 0), size)
        groups = {*fixed, *kept}
        return max((fixed.get(one, 0) + kept.get(one, 0) for one in groups), default=0)

    # --- what has to be gathered ---

    def _gathered(self) -> dict[int, int]:
        """Bytes of a tensor of each group that some AllGather has to give, however all is moved.

        An output stays whole. On every path from a slice to it something is gathered, at least the
        narrowest tensor of the path; the path that is widest gives the bound.
        """
        if "reorder" not in self.kinds:
            return {}
        found: dict[int, int] = {}
        width: dict[str, int] = {}
        # In program order, so that operands have their width.
        for operation in self.program.operations:
            kind = self.program.types[operation.name]
            if operation.kind is Kind.ALL_GATHER:
                width[operation.name] = self._bytes(kind)
                continue
            # A reduction gives whole values without a gathering, a message leaves the group.
            is_end = operation.is_communication or not kind.shape
            behind = max((width.get(name, 0) for name in operation.reads), default=0)
            width[operation.name] = 0 if is_end else min(behind, self._bytes(kind))
        # States that may become slices need no gathering.
        for name in self.program.outputs:
            if self._stays_whole(name):
                group = self.program.types[name].group
                found[group] = max(found.get(group, 0), width.get(name, 0))
        return found

    def _stays_whole(self, name: str) -> bool:
        """Whether an output is replicated in the end: all but states that may become slices."""
        operation = self.program.by_name.get(name)
        if operation is None or self.program.types[name].layout != REPLICATED:
            return False
        state = self.program.states.get(operation.reads[0])
        return operation.kind is not Kind.UPDATE or state is None or state.whole_after

    def _bytes(self, kind: TensorType) -> int:
        """Bytes of a whole tensor."""
        # Blocks are gathered to all of it.
        return self.binding.elements(kind.shape) * kind.element.element_bytes
