"""Runtimes that execute written algorithms: their limits, and the target of a synthesis."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from hub_core.model.diagnostics import InputError
from hub_core.model.kinds import CollectiveKind
from hub_core.plugin_api.options import Reference

if TYPE_CHECKING:
    from hub_core.model.algorithm import Algorithm

IDEAL = "ideal"
"""Name of the target without limits: messages of any size, any number of thread blocks."""

TIE = 0.01
"""Relative difference up to which times count as equal: then fewer messages win."""

# Divisors above this number are not listed: no runtime executes that many chunks of a share.
_MAX_DIVISOR = 1 << 14


@dataclass(frozen=True, slots=True)
class RuntimeLimits:
    """Limits of a runtime for one program; None where it has no limit.

    `unit_bytes`: every chunk is a multiple of this number of bytes, at least of one element; 0 if
    the runtime serves all sizes with every number of chunks.
    `max_units`: chunks of a buffer. `max_blocks`: thread blocks of a rank, which wait for each
    other, so that its GPU must run all of them at once. `max_block_operations`: steps or operations
    of a thread block. `max_channels`: channels of a program. `max_operations`: operations of a rank
    above which the runtime spends more time on starting operations than on data.
    """

    unit_bytes: int = 4
    max_units: int | None = None
    max_blocks: int | None = None
    max_block_operations: int | None = None
    max_channels: int | None = None
    max_operations: int | None = None


@dataclass(frozen=True, slots=True)
class RuntimeFit:
    """Resources of an algorithm as a runtime executes it.

    `blocks`, `operations`: thread blocks, and steps or operations, of the rank with the most.
    `block_operations`: those of the longest block. `channels`: channels in use. `units`: chunks
    into which the runtime divides the full buffer. `max_bytes`: largest size that the program
    serves, None for no limit.
    """

    blocks: int
    operations: int
    block_operations: int
    channels: int
    units: int
    max_bytes: int | None = None

    def find_excess(self, limits: RuntimeLimits) -> str:
        """Return the first limit that is exceeded as a clause, such as `80 thread blocks of a rank,
        at most 64 run at once`; empty if the algorithm respects all limits.
        """
        for number, limit, text in (
            (self.blocks, limits.max_blocks, "thread blocks of a rank, at most {} run at once"),
            (self.block_operations, limits.max_block_operations, "operations of a block, limit {}"),
            (self.channels, limits.max_channels, "channels, limit {}"),
            (self.operations, limits.max_operations, "operations of a rank, limit {}"),
            (self.units, limits.max_units, "chunks of the buffer, limit {}"),
        ):
            if limit is not None and number > limit:
                return f"{number} {text.format(limit)}"
        return ""


@dataclass(frozen=True, slots=True)
class Runtime:
    """A runtime that loads the files of a writer: an entry of `FormatWriter.runtimes`.

    `fit(algorithm: Algorithm, collective_bytes: int, topology: Topology) -> RuntimeFit`: the
    resources of the program that the writer would write; it raises `HubError` if the runtime cannot
    execute the algorithm. `collectives`: kinds that its files can express. `writer_options`:
    options of the writer that select this runtime. `remainder`: how calls are served whose sizes
    the chunks of a program do not divide. `kernel`: value of the option `kernel` with which
    simulators of machines time its programs; empty for their default.
    """

    name: str
    description: str
    limits: RuntimeLimits
    collectives: tuple[CollectiveKind, ...]
    fit: Reference
    writer_options: Mapping[str, str] = field(default_factory=dict)
    remainder: str = ""
    kernel: str = ""


@dataclass(frozen=True, slots=True)
class UnitLimits:
    """Numbers of units into which a synthesizer may divide the full buffer.

    A number is allowed if it divides `granules`, the smallest addressable parts of the buffer (of
    every size to be served: their greatest common divisor; 0: any number divides it), and is at
    most `max_units`.
    """

    granules: int
    max_units: int | None = None

    def allows(self, units: int) -> bool:
        """Whether the full buffer may be divided into this number of units."""
        is_few = self.max_units is None or units <= self.max_units
        return units > 0 and self.granules % units == 0 and is_few

    def list_counts(self, shares: int) -> list[int]:
        """List the allowed numbers of units of one of `shares` equal shares, ascending.

        At most 2^14 each. Empty if the shares do not divide the buffer, or exceed the limit.
        """
        if shares < 1 or self.granules % shares:
            return []
        count = self.granules // shares
        largest = count or _MAX_DIVISOR
        if self.max_units is not None:
            largest = min(largest, self.max_units // shares)
        return [one for one in range(1, min(largest, _MAX_DIVISOR) + 1) if count % one == 0]

    def choose_count(self, shares: int, number: int) -> int | None:
        """Return the largest allowed number of units of a share that is at most `number`.

        The smallest allowed one if all are larger; None if none is allowed.
        """
        counts = self.list_counts(shares)
        return max((one for one in counts if one <= number), default=counts[0] if counts else None)

    def build_error(self, units: str) -> InputError:
        """Build the error for an algorithm whose chunks do not fit the runtime.

        `units`: the chunks that it would need, such as `24 chunks`.
        """
        limit = "" if self.max_units is None else f" into at most {self.max_units} chunks"
        return InputError(
            f"{units}: the runtime divides a buffer of {self.granules} elements equally{limit}",
            cure="choose another size, or --for ideal",
            code="units-not-allowed",
        )


@dataclass(frozen=True, slots=True)
class FittedAlgorithm:
    """An algorithm in the form in which a runtime executes it, its time in ns and its resources.

    `variant`: description of copies and pieces of the algorithm; empty if there are none.
    """

    algorithm: Algorithm
    time_ns: int
    fit: RuntimeFit
    variant: str = ""


@dataclass(frozen=True, slots=True)
class SynthesisTarget:
    """The runtime for which an algorithm is synthesized, as constraints of the search.

    `runtime`: its name. `units`: allowed numbers of units. `max_chunks`: maximum number of units if
    every unit is a message to every rank, so that each costs operations; None for no limit.
    `fit(algorithm)`: the fastest form of the algorithm that the runtime executes at the requested
    size; it raises `InputError` with the exceeded limit if there is none. `is_fitted_later`: the
    caller of the synthesizer calls `fit` itself, for the best of several results.
    """

    runtime: str
    units: UnitLimits
    max_chunks: int | None
    fit: Callable[[Algorithm], FittedAlgorithm]
    is_fitted_later: bool = False

    @property
    def chunks(self) -> UnitLimits:
        """Allowed numbers of units if every unit is a message to every rank."""
        limits = [one for one in (self.units.max_units, self.max_chunks) if one is not None]
        return replace(self.units, max_units=min(limits, default=None))

    def with_fewer(self, units: int) -> SynthesisTarget:
        """Return the target with at most this number of units."""
        return replace(self, units=replace(self.units, max_units=units), max_chunks=units)
