"""Find the calls that a configuration of NCCL's example tuner serves, and lines that it misreads.

Source of the names: `plugins/tuner/example` of NCCL 2.30.7. It silently replaces unknown names by
allreduce, ring and simple, so the names must be exact.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from collhub_machine_profiles.nccl_constants import ALGORITHMS, PROTOCOLS
from collhub_machine_profiles.nccl_costs import ALGORITHMS_OF, WITH_LL

from hub_core.model import CollectiveKind, Diagnostic, Location, Severity, format_bytes
from hub_core.plugin_api import ServedCalls, Source

FILE = "nccl_tuner.conf"
LARGEST = (1 << 64) - 1
# The buffer of its reader, which truncates longer lines.
LONGEST_LINE = 255
ANY = "-1"
COLLECTIVES: Mapping[str, CollectiveKind] = {
    "allreduce": CollectiveKind.ALL_REDUCE,
    "broadcast": CollectiveKind.BROADCAST,
    "reduce": CollectiveKind.REDUCE,
    "allgather": CollectiveKind.ALL_GATHER,
    "reducescatter": CollectiveKind.REDUCE_SCATTER,
}
# The tuner starts with one channel; -1 keeps it, 0 selects NCCL's default number.
OWN_CHANNELS = "0"
# NCCL skips a line with another algorithm, and with ll or ll128 for algorithms not in WITH_LL.
ALLOWED: Mapping[CollectiveKind, frozenset[str]] = {
    kind: ALGORITHMS_OF[str(kind)] for kind in COLLECTIVES.values()
}

# NCCL runs one ring on every channel, so several rings correspond to its ring too.
_RINGS = {"ring": "ring", "rings": "ring"}
_OF_ALL_REDUCE = {**_RINGS, "double-binary-tree": "tree"}
_WITH_PAT = {**_RINGS, "pat": "pat"}


def own_algorithms(kind: CollectiveKind, num_ranks: int, num_nodes: int) -> Mapping[str, str]:
    """NCCL's name by the name of the classic algorithm, for those that NCCL has."""
    if kind is CollectiveKind.ALL_REDUCE:
        return _OF_ALL_REDUCE
    if kind in (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER):
        # Its parallel aggregated trees require one rank per node; otherwise NCCL ignores the line.
        return _WITH_PAT if num_nodes == num_ranks else _RINGS
    return _RINGS if kind in COLLECTIVES.values() else {}


_FIELDS = "collective,minBytes,maxBytes,algorithm,protocol,channels,nNodes,nRanks"
_CURE = "write lines for all sizes with -1,-1 for nNodes,nRanks, as collhub tune does"

# Sizes in bytes, both inclusive.
_Sizes = tuple[int, int]
# nNodes and nRanks as written, -1 for any.
_Communicator = tuple[str, str]


@dataclass(frozen=True, slots=True)
class TunerRule:
    """A line as the tuner interprets it; `channels` 0 leaves the number to NCCL."""

    line: int
    kind: CollectiveKind
    sizes: _Sizes
    algorithm: str
    protocol: str
    channels: int
    communicator: _Communicator

    @property
    def by(self) -> str:
        """Algorithm, protocol and channels for reports."""
        channels = self.channels or "NCCL's"
        return f"{self.algorithm} {self.protocol} {channels} channels"

    def fits(self, communicator: _Communicator) -> bool:
        """Whether the rule applies to a communicator; -1 in it requires a rule for any number."""
        pairs = zip(self.communicator, communicator, strict=True)
        return all(required in (ANY, actual) for required, actual in pairs)


def read(source: Source) -> Sequence[ServedCalls]:
    """Calls served by the first matching lines, in the communicator of the first line that names
    one.

    Lines that the tuner skips or misreads are reported as errors, and serve no calls. Sizes without
    a matching line run on one channel: an error in that communicator, a warning in others.
    """
    served: list[ServedCalls] = []
    for part in source.parts:
        if part.name != FILE:
            location = Location(part.name)
            source.report(Diagnostic("unknown-file", "no file of this format", location=location))
            continue
        rules, diagnostics = read_rules(part.load(), part.name)
        for diagnostic in diagnostics:
            source.report(diagnostic)
        stated = (rule.communicator for rule in rules if ANY not in rule.communicator)
        communicator = next(stated, (ANY, ANY))
        served += _find_served_calls(rules, communicator)
        _report_single_channels(rules, communicator, part.name, source)
    return served


def read_rules(
    content: bytes, file: str, *, as_interpreted: bool = False
) -> tuple[list[TunerRule], list[Diagnostic]]:
    """Read the rules of a configuration, and findings for lines that are not applied as written.

    Lines with a finding are left out. With `as_interpreted` they are read as the tuner does:
    unknown words become allreduce, ring and simple, and -1 channels one channel.
    """
    rules, diagnostics = [], []
    for number, line in enumerate(content.decode("latin-1").splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        fields = [field.strip() for field in line.split(",")]
        location = Location(file, number)
        defect = _find_defect(line, fields)
        if defect:
            diagnostics.append(Diagnostic("not-a-rule", defect, location=location, cure=_FIELDS))
            if not as_interpreted or not _has_numbers(line, fields):
                continue
        if any(field != ANY for field in fields[8:10]):
            message = "the line holds for some numPipeOps or regBuff only, and is not counted"
            diagnostics.append(Diagnostic("conditional-rule", message, Severity.NOTE, location))
            continue
        rules.append(
            TunerRule(
                number,
                COLLECTIVES.get(fields[0], CollectiveKind.ALL_REDUCE),
                (int(fields[1]), min(int(fields[2]), LARGEST)),
                fields[3] if fields[3] in ALGORITHMS else "ring",
                fields[4] if fields[4] in PROTOCOLS else "simple",
                1 if fields[5] == ANY else int(fields[5]),
                (fields[6], fields[7]),
            )
        )
    return rules, diagnostics


def _has_numbers(line: str, fields: Sequence[str]) -> bool:
    """Whether the tuner reads the sizes, channels, nodes and ranks of a line."""
    if len(line) > LONGEST_LINE or len(fields) < len(_FIELDS.split(",")):
        return False
    numbers = (*fields[1:3], *(field for field in fields[5:8] if field != ANY))
    return all(field.isascii() and field.isdecimal() and len(field) <= 20 for field in numbers)


def _find_served_calls(
    rules: Sequence[TunerRule], communicator: _Communicator
) -> Iterator[ServedCalls]:
    """Yield the sizes that each rule serves because no earlier rule matches."""
    free = {kind: [(0, LARGEST)] for kind in COLLECTIVES.values()}
    for rule in rules:
        if not rule.fits(communicator):
            continue
        for first, last in _intersect(free[rule.kind], rule.sizes):
            yield ServedCalls(
                rule.kind,
                in_place=True,
                out_of_place=True,
                min_bytes=first,
                max_bytes=None if last == LARGEST else last,
                by=rule.by,
            )
        free[rule.kind] = _subtract(free[rule.kind], rule.sizes)


def _report_single_channels(
    rules: Sequence[TunerRule], communicator: _Communicator, file: str, source: Source
) -> None:
    """Report sizes without a matching line, for which the tuner leaves one channel."""
    # The communicator of the tuned lines, then any other one.
    for searched in dict.fromkeys((communicator, (ANY, ANY))):
        lost = []
        for kind in COLLECTIVES.values():
            free = [(0, LARGEST)]
            for rule in rules:
                if rule.kind is kind and rule.fits(searched):
                    free = _subtract(free, rule.sizes)
            lost += [f"{kind} {_format_sizes(sizes)}" for sizes in free]
        if not lost:
            continue
        is_own = searched == communicator
        where = "" if is_own else ", in communicators of other numbers of nodes and ranks"
        message = f"one channel: no line matches {', '.join(lost)}{where}"
        severity = Severity.ERROR if is_own else Severity.WARNING
        source.report(Diagnostic("one-channel", message, severity, Location(file), _CURE))


def _intersect(free: Sequence[_Sizes], sizes: _Sizes) -> list[_Sizes]:
    """Parts of ascending ranges within `sizes`."""
    cut = [(max(first, sizes[0]), min(last, sizes[1])) for first, last in free]
    return [(first, last) for first, last in cut if first <= last]


def _subtract(free: Sequence[_Sizes], sizes: _Sizes) -> list[_Sizes]:
    """Parts of ascending ranges outside `sizes`."""
    before, after = (0, sizes[0] - 1), (sizes[1] + 1, LARGEST)
    return [
        part for row in free for part in (*_intersect([row], before), *_intersect([row], after))
    ]


def _format_sizes(sizes: _Sizes) -> str:
    first, last = sizes
    if last == LARGEST:
        return f"from {format_bytes(first)}" if first else "of all sizes"
    return f"{format_bytes(first)} to {format_bytes(last)}"


def _find_defect(line: str, fields: Sequence[str]) -> str:
    """Reason why the tuner does not interpret a line as intended; empty if it does."""
    if len(line) > LONGEST_LINE:
        return f"the line has more than {LONGEST_LINE} characters, of which the tuner reads so many"
    if len(fields) < len(_FIELDS.split(",")):
        return f"{len(fields)} fields, so that the tuner skips the line"
    for field, known in ((0, tuple(COLLECTIVES)), (3, ALGORITHMS), (4, PROTOCOLS)):
        if fields[field] not in known:
            # It silently falls back to allreduce, ring and simple.
            return f"{fields[field]!r:.40} is not one of {', '.join(known)}"
    if fields[5] == ANY:
        return "channels -1 leaves one channel; 0 keeps NCCL's own number"
    if not all(field.isdecimal() for field in (*fields[1:3], fields[5])):
        return "sizes and channels are not all whole numbers"
    if int(fields[1]) > int(fields[2]):
        return f"no size is at least {fields[1]} and at most {fields[2]}"
    if not all(field == ANY or field.isdecimal() for field in fields[6:8]):
        return "nodes and ranks are not whole numbers, or -1 for any"
    return _explain_skipping(fields[0], fields[3], fields[4])


def _explain_skipping(collective: str, algorithm: str, protocol: str) -> str:
    """Reason why NCCL skips a well-formed line; empty if it does not."""
    allowed = ALLOWED[COLLECTIVES[collective]]
    if algorithm not in allowed:
        names = ", ".join(name for name in ALGORITHMS if name in allowed)
        return f"NCCL skips the line: {collective} has {names}, not {algorithm}"
    if protocol != "simple" and algorithm not in WITH_LL:
        return f"NCCL skips the line: {algorithm} has the protocol simple only"
    return ""
