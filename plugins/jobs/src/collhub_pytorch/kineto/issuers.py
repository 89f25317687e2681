"""Find the operator of torch.distributed that issued each collective of a host library.

gloo, mpi and ucc run a collective in a separate thread and mark it with an annotation; the
profile does not link the annotation to the operator (`c10d::allreduce_`) that issued it. Each
library starts the collectives in the order in which they are issued, so that the annotations, in
the order of their starts, are assigned to the first free operator that fits:

1. the innermost operator of the same kind that encloses the start on the same thread (messages);
2. of the same kind with an input of as many elements, issued before the start;
3. of the same kind, issued before the start;
4. as 2 and 3, for a kind by which the library implements the operator (gloo's reduce-scatter is an
   all-reduce of the input).

An operator that encloses another one of its kind only passes the call on; it is considered last.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass

from collhub_pytorch.calls import element_bytes
from collhub_pytorch.kineto.events import IssueInterval
from hub_core.model import JobCollective, NodeKind

Kind = tuple[NodeKind, int]
# Operators of one kind within one another; torch nests two or three.
_MAX_NESTING = 32
_ALL_REDUCE: Kind = (NodeKind.COLLECTIVE, int(JobCollective.ALL_REDUCE))
# Kinds of annotations that implement an operator of another kind.
_IMPLEMENTED_BY: dict[Kind, Kind] = {
    (NodeKind.COLLECTIVE, int(JobCollective.REDUCE_SCATTER)): _ALL_REDUCE,
}


@dataclass(frozen=True, slots=True)
class Issuer:
    """An operator of torch.distributed on the host; times in ns of the clock of its file.

    `sizes`: elements of each of its inputs, empty where the profile has no shapes. `target`: the
    root or peer, -1 if unknown. `is_wrapper`: it encloses an operator of its kind.
    """

    start: int
    end: int
    thread: int
    kind: Kind
    sizes: frozenset[int] = frozenset()
    target: int = -1
    is_wrapper: bool = False


def assign_spans(spans: Sequence[IssueInterval], issuers: Sequence[Issuer]) -> list[int]:
    """Return for every span the index of its issuer, or -1. Cost: sorting spans and issuers."""
    return _Assignment(spans, issuers).run()


class _Assignment:
    """Assigns spans, by start, to operators, by start; each operator is assigned once."""

    def __init__(self, spans: Sequence[IssueInterval], issuers: Sequence[Issuer]) -> None:
        self._spans = spans
        self._issuers = issuers
        self._by_start = sorted(range(len(issuers)), key=lambda one: issuers[one].start)
        self._issuer_of = [-1] * len(spans)
        self._is_free = [True] * len(issuers)

    def run(self) -> list[int]:
        """Return for every span the index of the operator that issued it; -1 for none.

        A span is the annotation of a collective of a host library. An operator is assigned at
        most once. Each pass takes the spans without an operator, by start:
        1. The last begun free operator of equal thread and kind within which the span starts.
        2. The first free operator by start of equal kind and size.
        3. The first one of equal kind.
        4. The first one of a kind that libraries implement by the span's kind.

        Passes 2 to 4 are done without operators that enclose another one of their kind, then
        again with all. If the first one starts after the span, none is assigned.
        """
        self._assign_enclosing()
        plain = [index for index in self._by_start if not self._issuers[index].is_wrapper]
        for candidates in (plain, self._by_start):
            self._assign_in_order(candidates, _sized_keys, _sized_key)
            self._assign_in_order(candidates, _kind_keys, _kind_key)
            self._assign_in_order(candidates, _implementing_keys, _kind_key)
        return self._issuer_of

    def _assign_enclosing(self) -> None:
        """Assign spans to free operators of their thread and kind within which they start.

        A free operator is assigned to no span yet; each operator gets at most one span. Spans are
        assigned in order of their start. Candidates are the last 32 operators (`_MAX_NESTING`) of
        the thread and kind that began before or at the start of the span, including those that are
        not free. Of the free candidates that end at or after this start, the one that began last is
        taken. A span without one remains unassigned.
        """
        on_thread: dict[tuple[int, Kind], list[int]] = {}
        for index in self._by_start:
            issuer = self._issuers[index]
            on_thread.setdefault((issuer.thread, issuer.kind), []).append(index)
        for span in self._unassigned():
            start = self._spans[span].start
            candidates = on_thread.get((self._spans[span].thread, _kind_key(self._spans[span])), [])
            position = bisect_right(candidates, start, key=lambda index: self._issuers[index].start)
            for index in reversed(candidates[max(0, position - _MAX_NESTING) : position]):
                if self._is_free[index] and self._issuers[index].end >= start:
                    self._assign(span, index)
                    break

    def _assign_in_order(
        self,
        candidates: Sequence[int],
        keys: Callable[[Issuer], Iterable[Hashable]],
        key: Callable[[IssueInterval], Hashable],
    ) -> None:
        """Assign spans that have no issuer yet, in order of start, to free candidates of equal key.

        For each span, only the first free candidate (by start) with the span's key is considered.
        It is assigned if it does not begin after the span, and is then no longer free; otherwise
        the span remains unassigned and the candidate free. `candidates`: issuers by start; `keys`:
        returns all keys of an issuer; `key`: returns that of a span.
        """
        queues: dict[Hashable, list[int]] = {}
        for index in reversed(candidates):
            for name in keys(self._issuers[index]):
                queues.setdefault(name, []).append(index)
        for span in self._unassigned():
            queue = queues.get(key(self._spans[span]), [])
            while queue and not self._is_free[queue[-1]]:
                queue.pop()
            if queue and self._issuers[queue[-1]].start <= self._spans[span].start:
                self._assign(span, queue.pop())

    def _unassigned(self) -> list[int]:
        """Return the indices of the spans that have no issuer yet, by start of the span."""
        spans = [span for span, issuer in enumerate(self._issuer_of) if issuer < 0]
        return sorted(spans, key=lambda span: self._spans[span].start)

    def _assign(self, span: int, issuer: int) -> None:
        self._issuer_of[span] = issuer
        self._is_free[issuer] = False


def _kind_key(span: IssueInterval) -> Kind:
    return span.call.kind, span.call.collective


def _sized_key(span: IssueInterval) -> Hashable:
    size = element_bytes(span.call.dtype)
    return _kind_key(span), span.call.bytes // size if size > 0 else -1


def _kind_keys(issuer: Issuer) -> Iterable[Hashable]:
    return [issuer.kind]


def _sized_keys(issuer: Issuer) -> Iterable[Hashable]:
    keys = [(issuer.kind, size) for size in issuer.sizes]
    if issuer.kind in _IMPLEMENTED_BY and issuer.sizes:
        # The implementation receives the input, which is the larger buffer.
        keys.append((_IMPLEMENTED_BY[issuer.kind], max(issuer.sizes)))
    return keys


def _implementing_keys(issuer: Issuer) -> Iterable[Hashable]:
    return [_IMPLEMENTED_BY[issuer.kind]] if issuer.kind in _IMPLEMENTED_BY else []
