"""Read the attributes of `<algo>`: what the file claims to be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from collhub_msccl.findings import FileFindings
from collhub_msccl.numbers import NumberState, parse_number
from collhub_msccl.reading.element_tables import ScannedXml
from hub_core.model import CollectiveKind

# Both spellings of reduce-scatter are in use: microsoft/msccl and its MSCCLang write the
# underscore, Azure/msccl-executor-nccl and ROCm/rccl do not.
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
    (
        "name",
        "proto",
        "nchannels",
        "nchunksperloop",
        "ngpus",
        "coll",
        "inplace",
        "outofplace",
        "minBytes",
        "maxBytes",
        "nthreads",
        "redop",
    )
)
_LONGEST_SHOWN = 40


@dataclass(frozen=True, slots=True)
class AlgoHeader:
    """The attributes of `<algo>`. `written`: all of them, verbatim."""

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
    reader.check_protocol()
    in_place, out_of_place = reader.modes()
    reader.check_sizes()
    return AlgoHeader(
        written=dict(document.algo),
        line=document.algo_line,
        kind=kind,
        # 1 stands in for a defect until the errors are raised.
        num_ranks=reader.number("ngpus", 1),
        unit_count=reader.number("nchunksperloop", 1),
        channel_count=reader.number("nchannels", 1),
        is_in_place=in_place,
        is_out_of_place=out_of_place,
    )


class _AttributeReader:
    """Reads attributes one by one; a defect is recorded and a usable value returned."""

    def __init__(self, document: ScannedXml, findings: FileFindings) -> None:
        """Take the attributes of <algo>, and warn of those that no runtime knows."""
        self._algo = document.algo
        self._line = document.algo_line
        self._findings = findings
        for name in sorted(set(self._algo) - _KNOWN):
            message = f"attribute {name!r} of <algo> is kept, but no runtime knows it"
            self._warn("unknown-attribute", message)

    def number(self, name: str, least: int) -> int:
        """A required number, at least `least`."""
        if name not in self._algo:
            self._error("missing-attribute", f"<algo> has no attribute {name!r}")
            return least
        value = self._parsed(name)
        if value is None:
            return least
        if value < least:
            self._error("attribute-range", f"{name} is {value}, which is less than {least}")
            return least
        return value

    def modes(self) -> tuple[bool, bool]:
        """Whether the file serves calls in place, and calls out of place."""
        in_place = self._flag("inplace", False)
        if "inplace" not in self._algo:
            self._warn(
                "missing-attribute",
                "<algo> has no attribute 'inplace', which the runtimes require; read as 0",
            )
        # microsoft/msccl and the files written for it have no `outofplace`: inplace="0" means it.
        out_of_place = self._flag("outofplace", not in_place)
        if not (in_place or out_of_place):
            self._warn(
                "no-mode",
                "inplace and outofplace are both 0; read as out of place, as microsoft/msccl does",
            )
        return in_place, out_of_place or not in_place

    def collective(self) -> CollectiveKind:
        """The kind that `coll` names; custom where it is missing, as in broadcasts of TACCL."""
        name = self._algo.get("coll")
        if name is None:
            self._warn(
                "missing-attribute",
                "<algo> has no attribute 'coll', which the runtimes require; read as custom",
            )
            return CollectiveKind.CUSTOM
        if name not in _COLLECTIVES:
            known = ", ".join(_COLLECTIVES)
            self._error("unknown-collective", f"coll {name!r} is not one of {known}")
        return _COLLECTIVES.get(name, CollectiveKind.CUSTOM)

    def check_protocol(self) -> None:
        """Record a protocol that no runtime has."""
        name = self._algo.get("proto")
        if name is None:
            self._error("missing-attribute", "<algo> has no attribute 'proto'")
        elif name not in _PROTOCOLS:
            known = ", ".join(_PROTOCOLS)
            self._error("unknown-protocol", f"proto {name!r} is not one of {known}")

    def check_sizes(self) -> None:
        """Warn of a range of sizes that no call is in."""
        lowest, lowest_state = parse_number(self._algo.get("minBytes", "0"))
        highest, highest_state = parse_number(self._algo.get("maxBytes", "0"))
        # Some writers state 64-bit sizes: compared only where they fit the runtimes' numbers.
        if lowest_state is not NumberState.FINE or highest_state is not NumberState.FINE:
            return
        # A maxBytes of 0 means "no limit" to two of the three runtimes.
        if lowest > highest > 0:
            message = f"minBytes {lowest} is greater than maxBytes {highest}: no call is in between"
            self._warn("size-range", message)

    def _flag(self, name: str, default: bool) -> bool:
        """An attribute that is 0 or 1."""
        # Absent is told by whoever knows what that means.
        if name not in self._algo:
            return default
        # A text that is no number has been told; 0 and 1 are all that the parsers take.
        value = self._parsed(name)
        if value not in (0, 1, None):
            self._error("attribute-range", f"{name} is {value}, expected 0 or 1")
        return value == 1

    def _parsed(self, name: str) -> int | None:
        """Value of an attribute; None with an error where it is no number below 2^31."""
        text = self._algo[name]
        shown = text[:_LONGEST_SHOWN]
        value, state = parse_number(text)
        if state is NumberState.NO_NUMBER:
            self._error("not-a-number", f"{name} is {shown!r}, expected a number")
            return None
        if state is NumberState.OUT_OF_RANGE:
            self._error("attribute-range", f"{name} is {shown!r}, expected a number below 2^31")
            return None
        if state is NumberState.CUT:
            message = f"{name} is {shown!r}, read as {value}, as the runtimes do"
            self._warn("odd-number", message)
        return value

    def _warn(self, code: str, message: str) -> None:
        """Add a warning at the line of the header."""
        self._findings.warn(code, message, self._line)

    def _error(self, code: str, message: str) -> None:
        """Add an error at the line of the header."""
        self._findings.error(code, message, self._line)
