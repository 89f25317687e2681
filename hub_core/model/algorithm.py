"""A collective algorithm: its collective, steps and provenance, and the NPUs of its ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from hub_core.columns import Int64Array
from hub_core.model.diagnostics import InputError
from hub_core.model.kinds import READING, WRITING, Buffer
from hub_core.model.notebook_display import NotebookDisplay

if TYPE_CHECKING:
    from hub_core.model.collectives import Collective
    from hub_core.model.steps import StepTable

JsonValue = str | int | float | bool | None | list["JsonValue"] | dict[str, "JsonValue"]

# Below 2^63 by more than the rounding of a float.
_MAX_TOTAL_BYTES = 2.0**63 * (1 - 1e-9)

PLACEMENT = "npus"
"""Key of `Algorithm.extensions`: list of the NPU of every rank. Without it rank r runs on NPU r.

Formats that preserve extensions preserve it; the others report it as a loss.
"""


@dataclass(frozen=True, slots=True)
class Provenance:
    """Producer of an algorithm, its version and options, and name and sha256 of the source file."""

    producer: str = "unknown"
    producer_version: str = ""
    source_name: str = ""
    source_sha256: str = ""
    options: Mapping[str, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, JsonValue]:
        """Return the fields as a JSON object, as used in documents and reports.

        All fields are included, also empty texts. The object and its `options` are new copies.
        """
        return {
            "producer": self.producer,
            "producer_version": self.producer_version,
            "source_name": self.source_name,
            "source_sha256": self.source_sha256,
            "options": dict(self.options),
        }


@dataclass(frozen=True, slots=True, eq=False)
class Algorithm(NotebookDisplay):
    """A `Collective`, the `StepTable` that performs it, and provenance.

    `scratch_units`: int64[num_ranks], size of SCRATCH in units, read-only. `collective_bytes`: the
    size given by the source, or None; if buffers are UNKNOWN and messages have bytes, one unit is
    one byte and this equals `unit_count`. `extensions`: vendor data, preserved verbatim, keyed by
    format or plugin name. Raises `InputError` if the parts have different numbers of ranks.
    """

    collective: Collective
    steps: StepTable
    scratch_units: Int64Array
    provenance: Provenance = field(default_factory=Provenance)
    collective_bytes: int | None = None
    extensions: Mapping[str, JsonValue] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # Modules use any of the three numbers, so that a difference would cause later errors.
        counts = {self.collective.num_ranks, self.steps.num_ranks, len(self.scratch_units)}
        if len(counts) > 1:
            message = "collective, steps and scratch_units disagree on the number of ranks"
            raise InputError(message, code="rank-count")
        # Algorithms are shared, also between plugins.
        self.scratch_units.flags.writeable = False

    def __repr__(self) -> str:
        sizes = f"{self.num_ranks} ranks, {self.collective.unit_count} units"
        maker = self.provenance.producer
        return f"<Algorithm {self.collective.kind}: {sizes}, {len(self.steps)} steps, by {maker}>"

    @property
    def num_ranks(self) -> int:
        """Number of ranks of the collective."""
        return self.collective.num_ranks

    @property
    def has_contents(self) -> bool:
        """Return whether the regions of all steps that read or write are known.

        False for timing-only traces, which have `UNKNOWN` buffers. True without steps.
        """
        steps = self.steps
        reads_unknown = steps.is_kind(*READING) & (steps.src_buffer == Buffer.UNKNOWN)
        writes_unknown = steps.is_kind(*WRITING) & (steps.dst_buffer == Buffer.UNKNOWN)
        return not bool(np.any(reads_unknown | writes_unknown))

    def differences(self, other: Algorithm) -> list[str]:
        """Return the names of all parts that differ; [] if both algorithms are equal.

        The order is: columns and dependency arrays of the step table, `provenance`,
        `collective_bytes`, `extensions`, `scratch_units`, and fields of the collective. Values are
        compared exactly, and arrays by their contents. Different counts of an uneven collective, or
        contracts of a custom one, are reported once as `contract`.
        """
        differing = self.steps.differences(other.steps)
        names = ("provenance", "collective_bytes", "extensions")
        differing += [name for name in names if getattr(self, name) != getattr(other, name)]
        if not np.array_equal(self.scratch_units, other.scratch_units):
            differing.append("scratch_units")
        mine, theirs = self.collective, other.collective
        for part in fields(mine):
            if not _are_same(getattr(mine, part.name), getattr(theirs, part.name)):
                name = "contract" if part.name == "counts" else part.name
                differing += [name] if name not in differing else []
        return differing


def message_bytes(collective_bytes: int, unit_count: int, counts: Int64Array) -> Int64Array:
    """Return the size in bytes of messages of `counts` units: int64[messages].

    The size is ceil(count * collective_bytes / unit_count), computed exactly. Unit k of a buffer of
    S bytes and U units is bytes [k * S // U, (k + 1) * S // U). If U does not divide S, the result
    is the maximum size of `count` consecutive units at any offset, so that both ends of a message
    have the same size. Raises `InputError` (`size-range`) if the sum of all sizes, estimated as a
    float and at least the exact sum, is 2^63 bytes or more (less 1e-9 for rounding).
    """
    total = float(counts.sum(dtype=np.float64)) * (collective_bytes / unit_count) + len(counts)
    if total >= _MAX_TOTAL_BYTES:
        message = f"the messages have {total:.3g} bytes together, more than can be counted"
        raise InputError(message, cure="choose a smaller size", code="size-range")
    full_units, rest = divmod(collective_bytes, unit_count)
    if rest * int(counts.max(initial=0)) < 2**62:
        rounded_up = -(-counts * np.int64(rest) // np.int64(unit_count))
        return counts * np.int64(full_units) + rounded_up
    # The products do not fit 64 bits: Python's integers.
    sizes = [-(-count * collective_bytes // unit_count) for count in counts.tolist()]
    return np.asarray(sizes, np.int64)


def placement_of(algorithm: Algorithm) -> tuple[int, ...] | None:
    """Return the NPU of every rank; None if the algorithm has no placement (rank r on NPU r).

    It is the extension `PLACEMENT`, which must be a list of different integers of at least 0, one
    per rank; otherwise raises `InputError` (code `invalid-placement`). Whether the NPUs exist is
    not checked.
    """
    stated = algorithm.extensions.get(PLACEMENT)
    if stated is None:
        return None
    named = stated if isinstance(stated, list) else []
    npus = tuple(npu for npu in named if type(npu) is int and npu >= 0)
    if not len(named) == len(set(npus)) == algorithm.num_ranks:
        raise InputError(
            f"the extension {PLACEMENT!r} is no list of {algorithm.num_ranks} different NPUs",
            cure="state the NPU of every rank, as [0, 2, 4]",
            code="invalid-placement",
        )
    return npus


def placed(algorithm: Algorithm, npus: Sequence[int]) -> Algorithm:
    """Return a copy of the algorithm that places rank r on NPU `npus[r]`.

    The placement is stored as an extension, which replaces an existing one. It is omitted if rank r
    is on NPU r for all ranks. `npus` is not checked.
    """
    extensions = {key: value for key, value in algorithm.extensions.items() if key != PLACEMENT}
    if tuple(npus) != tuple(range(algorithm.num_ranks)):
        extensions[PLACEMENT] = list(npus)
    return replace(algorithm, extensions=extensions)


def _are_same(first: object, second: object) -> bool:
    """Return whether two values are equal, also if they are arrays or have array fields.

    - Two arrays are equal if they have the same shape and equal contents. The dtypes may
      differ. A NaN makes them unequal.
    - Two dataclasses of the same type are compared field by field, by these rules.
    - All other pairs are compared by `==`. Lists and mappings must not contain arrays, and
      an array must not be compared with another kind of value.
    """
    if isinstance(first, np.ndarray) and isinstance(second, np.ndarray):
        return np.array_equal(first, second)
    if is_dataclass(first) and type(first) is type(second):
        names = [part.name for part in fields(first)]
        return all(_are_same(getattr(first, name), getattr(second, name)) for name in names)
    return first == second
