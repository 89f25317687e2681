"""Read the attributes of `<algo>`: what the file claims to be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from collhub_msccl.findings import FileFindings
from collhub_msccl.numbers import NumberState, parse_number
from collhub_msccl.reading.scan import ScannedXml
from hub_core.collectives import CollectiveKind

_COLLECTIVES: Mapping[str, CollectiveKind] = {
    "allreduce": CollectiveKind.ALL_REDUCE,
    "allgather": CollectiveKind.ALL_GATHER,
    "reduce_scatter": CollectiveKind.REDUCE_SCATTER,
    "reducescatter": CollectiveKind.REDUCE_SCATTER,
    "alltoall": CollectiveKind.ALL_TO_ALL,
    "broadcast": CollectiveKind.BROADCAST,
    "reduce": CollectiveKind.REDUCE,
    "gather": CollectiveKind.GATHER,
    "scatter": CollectiveKind.SCATTER,
    "custom": CollectiveKind.CUSTOM,
    # Their contract is a matter of the call, not of the file.
    "alltoallv": CollectiveKind.CUSTOM,
    "send": CollectiveKind.CUSTOM,
    "recv": CollectiveKind.CUSTOM,
}
_PROTOCOLS = ("Simple", "LL", "LL128")
_KNOWN = frozenset(
    "name proto nchannels nchunksperloop ngpus coll inplace outofplace minBytes maxBytes nthreads redop".split()  # noqa: SIM905
)


@dataclass(frozen=True, slots=True)
class AlgoHeader:
    """What `<algo>` says. `written`: its attributes verbatim."""

    written: Mapping[str, str]
    line: int
    kind: CollectiveKind
    num_ranks: int
    unit_count: int
    channel_count: int
    is_in_place: bool
    is_out_of_place: bool


def read_header(document: ScannedXml, findings: FileFindings) -> AlgoHeader:
    """Read the header; defects go to `findings`, values in their place are usable."""
    reader = _AttributeReader(document, findings)
    kind = reader.collective()
    reader.protocol()
    in_place = reader.flag("inplace", False)
    if "inplace" not in document.algo:
        reader.warn(
            "missing-attribute",
            "<algo> has no attribute 'inplace', which the runtimes require; read as 0",
        )
    out_of_place = reader.flag("outofplace", not in_place)
    if not (in_place or out_of_place):
        reader.warn(
            "no-mode",
            "inplace and outofplace are both 0; read as out of place, as microsoft/msccl does",
        )
    reader.sizes()
    return AlgoHeader(
        dict(document.algo),
        document.algo_line,
        kind,
        reader.number("ngpus", 1),
        reader.number("nchunksperloop", 1),
        reader.number("nchannels", 1),
        in_place,
        out_of_place or not in_place,
    )


class _AttributeReader:
    def __init__(self, document: ScannedXml, findings: FileFindings) -> None:
        self._algo = document.algo
        self._line = document.algo_line
        self._findings = findings
        for name in sorted(set(self._algo) - _KNOWN):
            self.warn(
                "unknown-attribute",
                f"attribute {name!r} of <algo> is kept, but no runtime knows it",
            )

    def warn(self, code: str, message: str, cure: str = "") -> None:
        self._findings.warn(code, message, self._line, cure=cure)

    def error(self, code: str, message: str, cure: str = "") -> None:
        self._findings.error(code, message, self._line, cure=cure)

    def number(self, name: str, least: int) -> int:
        """A required number, at least `least`."""
        if name not in self._algo:
            self.error("missing-attribute", f"<algo> has no attribute {name!r}")
            return least
        value = self._parsed(name)
        if value is not None and value < least:
            self.error("attribute-range", f"{name} is {value}, which is less than {least}")
            return least
        return least if value is None else value

    def flag(self, name: str, default: bool) -> bool:
        if name not in self._algo:
            return default
        value = self._parsed(name)
        if value not in (0, 1, None):
            self.error("attribute-range", f"{name} is {value}, expected 0 or 1")
        return value == 1

    def collective(self) -> CollectiveKind:
        name = self._algo.get("coll")
        if name is None:
            self.warn(
                "missing-attribute",
                "<algo> has no attribute 'coll', which the runtimes require; read as custom",
            )
            return CollectiveKind.CUSTOM
        if name not in _COLLECTIVES:
            self.error(
                "unknown-collective", f"coll {name!r} is not one of {', '.join(_COLLECTIVES)}"
            )
        return _COLLECTIVES.get(name, CollectiveKind.CUSTOM)

    def protocol(self) -> None:
        name = self._algo.get("proto")
        if name is None:
            self.error("missing-attribute", "<algo> has no attribute 'proto'")
        elif name not in _PROTOCOLS:
            self.error("unknown-protocol", f"proto {name!r} is not one of {', '.join(_PROTOCOLS)}")

    def sizes(self) -> None:
        """Warn of a range of sizes that no call is in."""
        # Sizes are 64-bit in some writers, so they are compared only where they fit the runtimes' numbers.
        lowest, highest = (
            parse_number(self._algo.get(name, "0")) for name in ("minBytes", "maxBytes")
        )
        is_readable = lowest[1] is NumberState.FINE and highest[1] is NumberState.FINE
        if is_readable and lowest[0] > highest[0] > 0:
            self.warn(
                "size-range",
                f"minBytes {lowest[0]} is greater than maxBytes {highest[0]}: no call is in between",
            )

    def _parsed(self, name: str) -> int | None:
        text = self._algo[name]
        value, state = parse_number(text)
        if state is NumberState.NO_NUMBER:
            self.error("not-a-number", f"{name} is {text[:40]!r}, expected a number")
            return None
        if state is NumberState.OUT_OF_RANGE:
            self.error("attribute-range", f"{name} is {text[:40]!r}, expected a number below 2^31")
            return None
        if state is NumberState.CUT:
            self.warn("odd-number", f"{name} is {text[:40]!r}, read as {value}, as the runtimes do")
        return value
