"""Compare two algorithms: facts, traffic by pair of ranks, and the first different step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hub_core.cli.reports.summary import count_channels, count_kinds, critical_path, lanes, traffic
from hub_core.model import Algorithm, StepTable
from hub_core.model.kinds import Buffer, StepKind
from hub_core.model.steps import COLUMN_DTYPES
from hub_core.reports import Count
from hub_core.verification import verify

if TYPE_CHECKING:
    from hub_core.model import Collective

_BOTH = 2
# The line of a step in its source file is not a property of the algorithm.
_COMPARED_COLUMNS = tuple(name for name in COLUMN_DTYPES if name != "source_line")
_PairKey = tuple[int, int]
Fact = str | int | bool | None


@dataclass(frozen=True, slots=True)
class Difference:
    """A fact with different values in A and B."""

    what: str
    a: Fact
    b: Fact


@dataclass(frozen=True, slots=True)
class PairTraffic:
    """Messages from one rank to another:

    their number, and their sum in units of the full buffer.
    """

    messages: Count
    units: Count


@dataclass(frozen=True, slots=True)
class PairDifference:
    """A pair of ranks with different traffic:

    different fractions of the buffer or numbers of messages.
    """

    source: Count
    destination: Count
    a: PairTraffic
    b: PairTraffic


@dataclass(frozen=True, slots=True)
class StepDifference:
    """The first rank with different steps, and its first different step, as text.

    None for an algorithm whose rank has no such step.
    """

    rank: Count
    step: Count
    a: str | None
    b: str | None


@dataclass(frozen=True, slots=True)
class AlgorithmComparison:
    """Differences of two algorithms. `pairs`: number of rank pairs with messages in A or B."""

    facts: tuple[Difference, ...]
    traffic: tuple[PairDifference, ...]
    pairs: int
    first_step: StepDifference | None

    @property
    def equal(self) -> bool:
        """Whether no compared property differs."""
        return not self.facts and not self.traffic and self.first_step is None


def compare(a: Algorithm, b: Algorithm) -> AlgorithmComparison:
    """Verify two algorithms and compare them; provenance and extensions are ignored.

    - `facts`: the facts of `_collect_facts` with different values, in their order; verdicts are
      among them
    - `traffic`: pairs of ranks whose numbers of messages differ, or whose sums of units differ as
      exact fractions of the full buffer; by source, then destination. A pair without messages in
      one of the algorithms counts as 0 there
    - `pairs`: number of pairs with messages in A or in B
    - `first_step`: the first different step, or None

    Only ranks that A and B both have are compared, in order. The first rank with a difference gives
    `first_step`: the lowest position at which a column other than the source line differs, or the
    end of the shorter rank. If no rank has a difference, dependencies are compared
    (`_find_different_step`). The result is None if they are equal, or if A and B have
    different numbers of steps, i.e. one has steps on further ranks.
    """
    facts_a, facts_b = _collect_facts(a), _collect_facts(b)
    differing = (
        Difference(name, facts_a[name], facts_b[name])
        for name in facts_a
        if facts_a[name] != facts_b[name]
    )
    traffic_a, traffic_b = _collect_traffic(a), _collect_traffic(b)
    pairs = sorted(traffic_a.keys() | traffic_b.keys())
    no_traffic = PairTraffic(0, 0)
    moved = []
    for pair in pairs:
        sent_a, sent_b = traffic_a.get(pair, no_traffic), traffic_b.get(pair, no_traffic)
        # Units are compared as exact fractions of the buffer.
        share_a = sent_a.units * b.collective.unit_count
        share_b = sent_b.units * a.collective.unit_count
        if share_a != share_b or sent_a.messages != sent_b.messages:
            moved.append(PairDifference(*pair, sent_a, sent_b))
    return AlgorithmComparison(
        tuple(differing),
        tuple(moved),
        len(pairs),
        _find_different_step(a.steps, b.steps),
    )


def _collect_facts(algorithm: Algorithm) -> dict[str, Fact]:
    """Return the facts of an algorithm by name, in the order of the report.

    - `collective`, `root` (None if not rooted), `operator` (None if nothing is reduced), `contract`
      (`_compute_digest`, may be None), `ranks`, `units`, `size in bytes` (None if unknown)
    - `claims in place`, `claims out of place`: whether the collective has the mode (bool)
    - `verdict MODE` per verified mode: `ok` without verified contents becomes `not judged`
    - `steps`, and `steps KIND` for every kind of step, 0 included
    - `channels` used by messages; `lanes` of the rank with the most; `scratch units` of the rank
      with the most (0 without ranks)
    - `data dependencies`, `control dependencies`
    - `messages in a chain`, `steps in a chain`: of the longest chains (`critical_path`), None if
      dependencies form a cycle
    """
    collective, steps = algorithm.collective, algorithm.steps
    report = verify(algorithm)
    longest = critical_path(steps)
    verdicts: dict[str, Fact] = {}
    for name, mode in report.modes.items():
        is_unjudged = report.method == "none" and mode.verdict == "ok"
        verdicts[f"verdict {name.replace('_', ' ')}"] = (
            "not judged" if is_unjudged else mode.verdict
        )
    return {
        "collective": str(collective.kind),
        "root": collective.root,
        "operator": str(collective.reduce_op) if collective.reduces else None,
        "contract": _compute_digest(collective),
        "ranks": collective.num_ranks,
        "units": collective.unit_count,
        "size in bytes": algorithm.collective_bytes,
        "claims in place": collective.in_place,
        "claims out of place": collective.out_of_place,
        **verdicts,
        "steps": len(steps),
        **{f"steps {kind}": count for kind, count in count_kinds(steps).items()},
        "channels": count_channels(steps),
        "lanes": lanes(steps).most,
        "scratch units": int(algorithm.scratch_units.max(initial=0)),
        "data dependencies": len(steps.data_indices),
        "control dependencies": len(steps.control_indices),
        "messages in a chain": None if longest is None else longest.messages,
        "steps in a chain": None if longest is None else longest.steps,
    }


def _compute_digest(collective: Collective) -> str | None:
    """Return a digest, 12 hexadecimal digits of SHA-256, of the contract or else of the counts.

    A contract comes first. Hashed are the input units, output units and defined flags by rank
    and, if there is a postcondition, its rows as four columns. Each column is preceded by its
    length. A contract with the same rows in another order has another digest. Without a
    contract, an uneven collective has the digest of its table of counts. Returns None without
    either.
    """
    contract, counts = collective.contract, collective.counts
    # Imported here: most collectives have no table.
    import hashlib

    if contract is None:
        return None if counts is None else hashlib.sha256(counts.data).hexdigest()[:12]
    columns = [contract.input_units, contract.output_units, contract.defined]
    if (expected := contract.expected) is not None:
        of_expected = (expected.rank, expected.offset, expected.source_rank, expected.source_unit)
        columns += [column.astype(np.int64) for column in of_expected]
    digest = hashlib.sha256()
    for column in columns:
        digest.update(len(column).to_bytes(8, "little") + column.tobytes())
    return digest.hexdigest()[:12]


def _collect_traffic(algorithm: Algorithm) -> Mapping[_PairKey, PairTraffic]:
    sent = traffic(algorithm, None)
    columns = (sent.source, sent.destination, sent.messages, sent.units)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return {(source, destination): PairTraffic(*rest) for source, destination, *rest in rows}


def _find_different_step(a: StepTable, b: StepTable) -> StepDifference | None:
    """Return the first step that differs, or else the first one whose dependencies differ.

    Steps are compared by rank (only ranks of both tables), then position. A difference in any
    column but the source line counts; the text of a missing step is None.

    Dependencies are compared only if all steps are equal and equally many; otherwise the result is
    None. First come data dependencies of all steps, then, if these are equal, control dependencies.
    The lowest row that differs counts; the order of the dependencies of a step matters: [1, 2]
    differs from [2, 1]. Both texts are such as `data dependencies on steps 0, 3` or `control
    dependencies on steps none`, with positions in the rank. Returns None if all are equal.
    """
    for rank in range(min(a.num_ranks, b.num_ranks)):
        start_a, end_a = a.rank_indptr[rank : rank + _BOTH].tolist()
        start_b, end_b = b.rank_indptr[rank : rank + _BOTH].tolist()
        shared = min(end_a - start_a, end_b - start_b)
        differs = np.zeros(shared, np.bool_)
        for name in _COMPARED_COLUMNS:
            column_a, column_b = getattr(a, name), getattr(b, name)
            of_a, of_b = column_a[start_a:][:shared], column_b[start_b:][:shared]
            differs |= of_a != of_b
        step = int(np.argmax(differs)) if differs.any() else shared
        if step < max(end_a - start_a, end_b - start_b):
            return StepDifference(
                rank,
                step,
                _describe_step(a, start_a + step) if start_a + step < end_a else None,
                _describe_step(b, start_b + step) if start_b + step < end_b else None,
            )
    if len(a) != len(b):
        return None
    for kind in ("data", "control"):
        waits_a, waits_b = _list_dependencies(a, kind), _list_dependencies(b, kind)
        if np.array_equal(waits_a, waits_b):
            continue
        shared = min(len(waits_a), len(waits_b))
        different_lines = np.flatnonzero((waits_a[:shared] != waits_b[:shared]).any(axis=1))
        at = int(different_lines[0]) if len(different_lines) else shared
        # Lines are ordered by waiting row: the lower row is missing in the other table.
        row = min(int(waits[at, 0]) for waits in (waits_a, waits_b) if at < len(waits))
        texts = (_describe_dependencies(a, kind, row), _describe_dependencies(b, kind, row))
        return StepDifference(int(a.rank[row]), a.step_of(row), *texts)
    return None


def _list_dependencies(
    steps: StepTable, kind: str
) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """Return one line per dependency: (the waiting row, the row for which it waits).

    The array is int64[dependencies, 2], ordered by waiting row and then as in the table. `kind`:
    `data` or `control`.
    """
    awaited, waiting = steps.data_edges if kind == "data" else steps.control_edges
    return np.stack([waiting, awaited], axis=1)


def _describe_dependencies(steps: StepTable, kind: str, row: int) -> str:
    pointer, indices = getattr(steps, f"{kind}_indptr"), getattr(steps, f"{kind}_indices")
    awaited = [steps.step_of(int(parent)) for parent in indices[pointer[row] : pointer[row + 1]]]
    numbers = ", ".join(map(str, awaited)) or "none"
    return f"{kind} dependencies on steps {numbers}"


def _describe_step(steps: StepTable, row: int) -> str:
    """Return a description of a step in one line: its kind and columns, joined by commas.

    An example is `send, count 4, from INPUT[0], peer 1 channel 0, lane 2, 500 ns`. In this
    order:

    - kind and count (units) always
    - `from BUFFER[offset]` (source), `to BUFFER[offset]`, offset in units; omitted for a buffer
      UNKNOWN
    - peer and channel; both omitted for a negative peer
    - lane, duration in ns; each omitted if negative

    Dependencies and the source line are not described.
    """
    kind = StepKind(int(steps.kind[row]))
    parts = [kind.name.lower().replace("_", "-"), f"count {int(steps.count[row])}"]
    for side, word in (("src", "from"), ("dst", "to")):
        buffer = Buffer(int(getattr(steps, f"{side}_buffer")[row]))
        if buffer is not Buffer.UNKNOWN:
            offset = int(getattr(steps, f"{side}_offset")[row])
            parts.append(f"{word} {buffer.name}[{offset}]")
    if int(steps.peer[row]) >= 0:
        parts.append(f"peer {int(steps.peer[row])} channel {int(steps.channel[row])}")
    if int(steps.lane[row]) >= 0:
        parts.append(f"lane {int(steps.lane[row])}")
    if int(steps.duration_ns[row]) >= 0:
        parts.append(f"{int(steps.duration_ns[row])} ns")
    return ", ".join(parts)
