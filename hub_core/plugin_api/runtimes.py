"""Runtimes that execute written algorithms: their limits, and the target of a synthesis."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from hub_core.model.diagnostics import InputError
from hub_core.model.kinds import CollectiveKind
from hub_core.model.quantities import format_bytes
from hub_core.plugin_api.options import Reference
from hub_core.plugin_api.runtime_limits import RuntimeFit, RuntimeLimits

if TYPE_CHECKING:
    from hub_core.model.algorithm import Algorithm

UNSERVED = "size-not-served"
"""Code of errors for a size that an algorithm or a runtime does not serve."""

IDEAL = "ideal"
"""Name of the target without limits: messages of any size, any number of thread blocks."""

TIE = 0.01
"""Relative difference up to which times count as equal: then fewer messages win."""

PREFERENCE_TOLERANCE = 0.05
"""Relative slowdown that is accepted for resources within the preferred limits of a runtime."""

# Divisors above this number are not listed: no runtime executes that many chunks of a share.
_MAX_DIVISOR = 1 << 14


@dataclass(frozen=True, slots=True)
class Merit:
    """Time in ns and messages of an algorithm, by which the best of several ones is chosen.

    `excess`: ratio of its resources to the preferred limits of its runtime, 1 within them.
    """

    time_ns: int
    messages: int
    excess: float = 1.0


def find_tolerance(merits: Sequence[Merit]) -> float:
    """Return the relative slowdown up to which a further algorithm can still be the best one.

    It is 1 % if one of `merits` is within the preferred limits, else 5 % (`choose_best`).
    """
    return TIE if any(one.excess <= 1 for one in merits) else PREFERENCE_TOLERANCE


def choose_best(merits: Sequence[Merit]) -> int:
    """Return the index of the best algorithm; `merits` must not be empty.

    Candidates are all algorithms within 1 % of the fastest time. If each of them exceeds the
    preferred limits (`excess` > 1), candidates are instead all algorithms within 5 %. Of the
    candidates with the smallest `excess` (1 if within the limits), the one with the fewest messages
    is chosen; of these the fastest, then the first.
    """
    fastest_ns = min(one.time_ns for one in merits)
    ties: list[int] = []
    least = 0.0
    for tolerance in (TIE, PREFERENCE_TOLERANCE):
        ties = [
            index for index, one in enumerate(merits) if one.time_ns <= (1 + tolerance) * fastest_ns
        ]
        least = min(merits[index].excess for index in ties)
        if least <= 1:
            break
    best = [index for index in ties if merits[index].excess <= least]
    return min(best, key=lambda index: (merits[index].messages, merits[index].time_ns, index))


@dataclass(frozen=True, slots=True)
class Runtime:
    """A runtime that loads the files of a writer: an entry of `FormatWriter.runtimes`.

    `fit(algorithm: Algorithm, collective_bytes: int, topology: Topology) -> RuntimeFit`: the
    resources of the program that the writer would write; it raises `HubError` if the runtime cannot
    execute the algorithm. `collectives`: kinds that its files can express. `writer_options`:
    options of the writer that select this runtime. `remainder`: how calls are served whose sizes
    the chunks of a program do not divide. `kernel`: value of the option `kernel` with which
    simulators of machines time its programs; empty for their default. `limit_options`: option of
    the writer by the resource (`RESOURCES`) whose limit it replaces. If it is not empty, `fit` has
    a fourth parameter `limits: RuntimeLimits`, and the program that it measures respects these;
    otherwise its resources do not depend on limits. `fits_quickly`: `fit` has a keyword parameter
    `is_quick: bool`; if that is True, the resources may be those of any program that the runtime
    executes within its limits. It must then have no preferred limits, and must refuse the same
    algorithms for their limits as without it.
    """

    name: str
    description: str
    limits: RuntimeLimits
    collectives: tuple[CollectiveKind, ...]
    fit: Reference
    writer_options: Mapping[str, str] = field(default_factory=dict)
    remainder: str = ""
    kernel: str = ""
    limit_options: Mapping[str, str] = field(default_factory=dict)
    fits_quickly: bool = False


def format_size(size: int) -> str:
    """Format a size exactly: with a unit if that divides it, else in bytes."""
    return format_bytes(size) if size % 1024 == 0 else f"{size} bytes"


def describe_multiple(multiple: int, runtime: str, size: int) -> str:
    """Return the sentence that a runtime does not serve a size; "" if it serves the size.

    `multiple`: the algorithm serves multiples of this number of bytes, 0 for every size. `size`: in
    bytes. `runtime`: its name, or several joined by `and`. The sentence ends with the next smaller
    and the next larger multiple or, if `size` is below the first multiple, with this minimum.
    """
    if not multiple or size % multiple == 0:
        return ""
    below = size // multiple * multiple
    served = [format_size(one) for one in (below, below + multiple) if one]
    nearest = f"the nearest are {' and '.join(served)}" if below else f"at least {served[0]}"
    verb = "do" if " and " in runtime else "does"
    return (
        f"{runtime} {verb} not serve {format_size(size)}: the algorithm serves multiples of "
        f"{format_size(multiple)}, {nearest}"
    )


@dataclass(frozen=True, slots=True)
class UnitLimits:
    """Numbers of units into which a synthesizer may divide the full buffer.

    A number is allowed if it divides `granules`, the smallest addressable parts of the buffer (of
    every size to be served: their greatest common divisor; 0: any number divides it), and is at
    most `max_units`. `unit_bytes`, `size`, `runtime`: bytes of a granule, the requested size in
    bytes, and the name of the runtime, for errors.
    """

    granules: int
    max_units: int | None = None
    unit_bytes: int = 1
    size: int = 0
    runtime: str = "the runtime"

    def allows(self, units: int) -> bool:
        """Return whether the full buffer may be divided into this number of units.

        The number must be positive, a divisor of `granules` (0 granules allow any number), and at
        most `max_units`.
        """
        is_few = self.max_units is None or units <= self.max_units
        return units > 0 and self.granules % units == 0 and is_few

    def list_counts(self, shares: int) -> list[int]:
        """List the allowed numbers of units of one of `shares` equal buffer parts, ascending.

        They divide the number of granules (smallest addressable parts) of one part; 0 granules
        allow any number. All parts together have at most `max_units` units, and one part at most
        2^14. Empty if `shares` is below 1, if the granules cannot be divided into `shares` equal
        parts, and if `max_units` is less than `shares`.
        """
        if shares < 1 or self.granules % shares:
            return []
        count = self.granules // shares
        largest = count or _MAX_DIVISOR
        if self.max_units is not None:
            largest = min(largest, self.max_units // shares)
        return [one for one in range(1, min(largest, _MAX_DIVISOR) + 1) if count % one == 0]

    def choose_count(self, shares: int, number: int) -> int | None:
        """Return the largest number of units, at most `number`, into which a part may be divided.

        The parts are `shares` equal parts of the full buffer; the allowed numbers are those of
        `list_counts`. If all are larger than `number`, the smallest one is returned; None if no
        number is allowed.
        """
        counts = self.list_counts(shares)
        return max((one for one in counts if one <= number), default=counts[0] if counts else None)

    def build_error(self, units: int) -> InputError:
        """Build the error (`size-not-served`) for an algorithm with a forbidden number of units.

        `units`: number of units into which the algorithm divides the full buffer; above 0. Granules
        are the smallest addressable parts of the buffer. The error is returned, not raised. Its
        message is the first that applies:

        - The size is no multiple of the bytes of `units` granules; the nearest multiples are
          named. The size is `size` or, if that is 0, the bytes of all granules.
        - `granules` is no multiple of `units`: some size that must be served cannot be divided.
        - `units` exceeds `max_units`; this is the last case and is not checked.
        """
        size = self.size or self.granules * self.unit_bytes
        message = describe_multiple(units * self.unit_bytes, self.runtime, size)
        cure = "choose one of these sizes, or --for ideal"
        if not message:
            cure = "choose --for ideal, or another synthesizer"
            if self.granules % units:
                message = f"{units} chunks do not divide all sizes of the window"
            else:
                message = f"the algorithm needs {units} chunks, {self.runtime} allows "
                message += f"{self.max_units}"
        return InputError(message, cure=cure, code=UNSERVED)


@dataclass(frozen=True, slots=True)
class FittedAlgorithm:
    """An algorithm in the form in which a runtime executes it, its time in ns and its resources.

    `variant`: description of copies and pieces of the algorithm; empty if there are none. `merit`:
    its time, messages and excess of the preferred limits.
    """

    algorithm: Algorithm
    time_ns: int
    fit: RuntimeFit
    variant: str
    merit: Merit


@dataclass(frozen=True, slots=True)
class SynthesisTarget:
    """The runtime for which an algorithm is synthesized, as constraints of the search.

    `runtime`: its name. `units`: allowed numbers of units. `max_chunks`: maximum number of units if
    every unit is a message to every rank, so that each costs operations; None for no limit.
    `fit(algorithm)`: the fastest form of the algorithm that the runtime executes at the requested
    size; it raises `InputError` with the exceeded limit if there is none. `is_fitted_later`: the
    caller of the synthesizer calls `fit` itself, for the best of several results.
    `limits`: those of the runtime, and `replace_limits(limits)`: the target with other limits of
    resources by name, None for no limit. Both are None with several runtimes, whose limits are not
    varied. `text`: the runtime with the limits of the user, such as `executor?blocks=16`, for
    reports; "" for only its name.
    """

    runtime: str
    units: UnitLimits
    max_chunks: int | None
    fit: Callable[[Algorithm], FittedAlgorithm]
    is_fitted_later: bool = False
    limits: RuntimeLimits | None = None
    replace_limits: Callable[[Mapping[str, int | None]], SynthesisTarget] | None = None
    text: str = ""

    @property
    def chunks(self) -> UnitLimits:
        """Limits of units for algorithms in which every unit is a message between each two ranks.

        They are `units` with `max_units` reduced to `max_chunks` if that is smaller. A limit of
        None does not count.
        """
        limits = [one for one in (self.units.max_units, self.max_chunks) if one is not None]
        return replace(self.units, max_units=min(limits, default=None))

    def with_fewer(self, units: int) -> SynthesisTarget:
        """Return the target with at most this number of units."""
        return replace(self, units=replace(self.units, max_units=units), max_chunks=units)
