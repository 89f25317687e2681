"""What two algorithms have in common and where they differ.

Facts side by side, traffic by pair of ranks, and the first step that is not the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hub_core.cli.reports.summary import channel_count, critical_path, kind_counts, lanes, traffic
from hub_core.model import Algorithm, StepTable
from hub_core.model.kinds import Buffer, StepKind
from hub_core.model.steps import COLUMN_DTYPES
from hub_core.verification import verify

if TYPE_CHECKING:
    from hub_core.model import CustomContract, JsonValue
    from hub_core.verification import VerifyReport

_BOTH = 2
# Where a step stood in the file that it was read from is no property of the algorithm.
_COMPARED_COLUMNS = tuple(name for name in COLUMN_DTYPES if name != "source_line")
_PairKey = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Difference:
    """One fact that is not the same in A and B."""

    what: str
    a: JsonValue
    b: JsonValue


@dataclass(frozen=True, slots=True)
class PairTraffic:
    """What one rank sends to another.

    `messages`: how many; `units`: how much, in units of the full buffer.
    """

    messages: int
    units: int


@dataclass(frozen=True, slots=True)
class PairDifference:
    """A pair of ranks whose traffic is not the same, as a share of the buffer or in messages."""

    source: int
    destination: int
    a: PairTraffic
    b: PairTraffic


@dataclass(frozen=True, slots=True)
class StepDifference:
    """The first rank with other steps, and the first of them; None where a rank has ended."""

    rank: int
    step: int
    a: str | None
    b: str | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """How two algorithms differ. `pairs`: how many pairs of ranks exchange messages in A or B."""

    facts: tuple[Difference, ...]
    traffic: tuple[PairDifference, ...]
    pairs: int
    first_step: StepDifference | None

    @property
    def equal(self) -> bool:
        """Whether nothing that is compared differs."""
        # Provenance may differ: it is no part of what runs.
        return not self.facts and not self.traffic and self.first_step is None


def compare(a: Algorithm, b: Algorithm) -> Comparison:
    """Compare what they do, not where they come from: provenance and extensions are left out."""
    facts_a, facts_b = _facts(a), _facts(b)
    differing = (
        Difference(name, facts_a[name], facts_b[name])
        for name in facts_a
        if facts_a[name] != facts_b[name]
    )
    traffic_a, traffic_b = _traffic(a), _traffic(b)
    pairs = sorted(traffic_a.keys() | traffic_b.keys())
    units = (a.collective.unit_count, b.collective.unit_count)
    nothing = PairTraffic(0, 0)
    moved = (
        PairDifference(*pair, traffic_a.get(pair, nothing), traffic_b.get(pair, nothing))
        for pair in pairs
    )
    return Comparison(
        tuple(differing),
        tuple(pair for pair in moved if not _is_same_traffic(pair, units)),
        len(pairs),
        _first_step(a.steps, b.steps),
    )


def _facts(algorithm: Algorithm) -> dict[str, JsonValue]:
    """What is compared by its value, in the order in which it is told."""
    collective, steps = algorithm.collective, algorithm.steps
    report = verify(algorithm)
    longest = critical_path(steps)
    return {
        "collective": str(collective.kind),
        "root": collective.root,
        "operator": str(collective.reduce_op) if collective.reduces else None,
        "contract": _digest(collective.contract),
        "ranks": collective.num_ranks,
        "units": collective.unit_count,
        "size in bytes": algorithm.collective_bytes,
        "claims in place": collective.in_place,
        "claims out of place": collective.out_of_place,
        **_verdicts(report),
        "steps": len(steps),
        **{f"steps {kind}": count for kind, count in kind_counts(steps).items()},
        "channels": channel_count(steps),
        "lanes": lanes(steps).most,
        "scratch units": int(algorithm.scratch_units.max(initial=0)),
        "data dependencies": len(steps.data_indices),
        "control dependencies": len(steps.control_indices),
        "messages in a chain": None if longest is None else longest.messages,
        "steps in a chain": None if longest is None else longest.steps,
    }


def _verdicts(report: VerifyReport) -> dict[str, JsonValue]:
    """By mode; where contents cannot be judged, nothing found does not mean that all is right."""
    is_judged = report.method != "none"
    return {
        f"verdict {name.replace('_', ' ')}": mode.verdict
        if is_judged or mode.verdict != "ok"
        else "not judged"
        for name, mode in report.modes.items()
    }


def _digest(contract: CustomContract | None) -> str | None:
    """A few digits that are the same for the same contract of a custom collective."""
    if contract is None:
        return None
    # Imported here: most collectives are not custom.
    import hashlib

    columns = [contract.input_units, contract.output_units, contract.defined]
    if (expected := contract.expected) is not None:
        of_expected = (expected.rank, expected.offset, expected.source_rank, expected.source_unit)
        columns += [column.astype(np.int64) for column in of_expected]
    digest = hashlib.sha256()
    for column in columns:
        digest.update(len(column).to_bytes(8, "little") + column.tobytes())
    return digest.hexdigest()[:12]


def _traffic(algorithm: Algorithm) -> Mapping[_PairKey, PairTraffic]:
    sent = traffic(algorithm, None)
    columns = (sent.source, sent.destination, sent.messages, sent.units)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return {(source, destination): PairTraffic(*rest) for source, destination, *rest in rows}


def _is_same_traffic(pair: PairDifference, unit_counts: tuple[int, int]) -> bool:
    """Whether equally many messages carry the same share of the buffer, whatever a unit is."""
    units_a, units_b = unit_counts
    is_same_share = pair.a.units * units_b == pair.b.units * units_a
    return is_same_share and pair.a.messages == pair.b.messages


def _first_step(a: StepTable, b: StepTable) -> StepDifference | None:
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
                _said_step(a, start_a + step) if start_a + step < end_a else None,
                _said_step(b, start_b + step) if start_b + step < end_b else None,
            )
    return _first_dependency(a, b)


def _first_dependency(a: StepTable, b: StepTable) -> StepDifference | None:
    """The first step that waits for others than the same step of `b`: all else is equal."""
    if len(a) != len(b):
        return None
    for kind in ("data", "control"):
        waits_a, waits_b = _waits(a, kind), _waits(b, kind)
        if np.array_equal(waits_a, waits_b):
            continue
        shared = min(len(waits_a), len(waits_b))
        differs = np.flatnonzero((waits_a[:shared] != waits_b[:shared]).any(axis=1))
        at = int(differs[0]) if len(differs) else shared
        # Lines are in the order of the rows that wait: the lower one is missing in the other.
        row = min(int(waits[at, 0]) for waits in (waits_a, waits_b) if at < len(waits))
        said = (_said_waits(a, kind, row), _said_waits(b, kind, row))
        return StepDifference(int(a.rank[row]), a.step_of(row), *said)
    return None


def _waits(steps: StepTable, kind: str) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """One line a dependency: the row that waits, and the row for which it waits."""
    pointer, indices = getattr(steps, f"{kind}_indptr"), getattr(steps, f"{kind}_indices")
    waiting = np.repeat(np.arange(len(steps)), np.diff(pointer))
    return np.stack([waiting, indices], axis=1)


def _said_waits(steps: StepTable, kind: str, row: int) -> str:
    pointer, indices = getattr(steps, f"{kind}_indptr"), getattr(steps, f"{kind}_indices")
    awaited = [steps.step_of(int(other)) for other in indices[pointer[row] : pointer[row + 1]]]
    numbers = ", ".join(map(str, awaited)) or "none"
    return f"{kind} dependencies on steps {numbers}"


def _said_step(steps: StepTable, row: int) -> str:
    """A step in words: what it is, with whom, and the units that it reads and writes."""
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
