"""Measured times of collectives: records, and the offer of readers of measurements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hub_core.model.diagnostics import Diagnostic
from hub_core.plugin_api.formats import FormatOffer, Source
from hub_core.plugin_api.options import NoOptions, Reference

MAX_MEASURED_BYTES = 2**62
MAX_MEASURED_US = 1e12
MAX_MEASURED_RANKS = 2**20


@dataclass(frozen=True, slots=True)
class Library:
    """Library that ran a collective. `version` and `variant` are "" if they are unknown.

    `variant` names settings that differ from the library's own choice, such as `NVLS off`,
    `kernel 6` or `graph 15`. Times of different variants are never mixed.
    """

    name: str
    version: str = ""
    variant: str = ""

    def __str__(self) -> str:
        text = " ".join(part for part in (self.name, self.version) if part)
        return f"{text}, {self.variant}" if self.variant else text


@dataclass(frozen=True, slots=True)
class Measurement:
    """One measured time. `size_bytes` is the full buffer of the collective.

    `collective` is the hub's name, such as `all-gather`. `machine` is the label of a machine or the
    name of its GPU, "" if the file names none; it never contains a host name. `place` is `out`,
    `in` or "" for the buffers. `dtype` is `int8` for sums of 8-bit integers and "" for all other
    calls. `day` is the date as YYYY-MM-DD, "" if unknown. `source` names the origin of published
    points. `call` identifies a call that several ranks have recorded, "" otherwise: the call takes
    the minimum over its ranks.
    """

    collective: str
    ranks: int
    nodes: int
    size_bytes: int
    time_us: float
    library: Library
    machine: str = ""
    place: str = ""
    dtype: str = ""
    day: str = ""
    source: str = ""
    file: str = ""
    line: int = 0
    call: str = ""

    def defect(self) -> str | None:
        """Return the reason why the point cannot be used as text, or None for a usable point.

        The first value outside of its limits, in this order, gives the reason:

        - `size_bytes`: 1 to 2^62, inclusive
        - `time_us`: above 0 and below 1e12; NaN is refused
        - `ranks`: 2 to 2^20, inclusive
        - `nodes`: 1 to `ranks`, inclusive
        """
        if not 1 <= self.size_bytes <= MAX_MEASURED_BYTES:
            return f"size {self.size_bytes} is not between 1 byte and 2^62"
        if not 0 < self.time_us < MAX_MEASURED_US:
            return f"time {self.time_us:g} us is not positive and below 1e12"
        if not 2 <= self.ranks <= MAX_MEASURED_RANKS:
            return f"{self.ranks} ranks are not between 2 and 2^20"
        if not 1 <= self.nodes <= self.ranks:
            return f"{self.nodes} nodes do not fit {self.ranks} ranks"
        return None


@dataclass(frozen=True, slots=True)
class MeasurementRequest:
    """A source of measurements, and facts of the user for files that lack them; None if not given.

    A file that states a fact takes precedence over the request.
    """

    source: Source
    collective: str | None = None
    ranks: int | None = None
    nodes: int | None = None


@dataclass(frozen=True, slots=True)
class MeasurementSet:
    """Points of one source or several sources, without defects.

    `skipped`: a diagnostic with file and line for each part of the input that gives no point.
    `sources`: repository, commit and licence of published points by the name of their source.
    """

    points: Sequence[Measurement]
    skipped: Sequence[Diagnostic] = ()
    sources: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MeasurementReader(FormatOffer):
    """Producer: `read(request: MeasurementRequest, options) -> MeasurementSet`.

    A file is recognised by its content only: `format.signature` is searched in all of it, `^`
    matches at the start of a line. `samples() -> Sequence[MeasurementRequest]`: small correct
    inputs for the conformance kit. A source without any usable point is refused with `InputError`.
    """

    read: Reference
    options: type = NoOptions
    samples: Reference = ""
