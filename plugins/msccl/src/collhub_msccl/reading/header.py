"""Read and check the attributes of `<algo>`, and infer the root, which no file names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from collhub_msccl.findings import FileFindings, NumberState, parse_number
from collhub_msccl.reading.element_tables import ScannedXml
from hub_core.columns import Int64Array
from hub_core.model import Buffer, CollectiveKind, StepKind

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
    # The call defines the contract of these, not the file.
    "alltoallv": CollectiveKind.CUSTOM,
    "send": CollectiveKind.CUSTOM,
    "recv": CollectiveKind.CUSTOM,
}
_PROTOCOLS = ("Simple", "LL", "LL128")
RUNTIME_ATTRIBUTES = frozenset(
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
    )
)
"""Attributes of `<algo>` that all runtimes read."""
_MAX_SHOWN_CHARACTERS = 40


@dataclass(frozen=True, slots=True)
class AlgoHeader:
    """Attributes of `<algo>`. `written`: all of them, verbatim."""

    written: Mapping[str, str]
    line: int
    kind: CollectiveKind
    num_ranks: int
    unit_count: int
    channel_count: int
    is_in_place: bool
    is_out_of_place: bool


def read_header(document: ScannedXml, findings: FileFindings) -> AlgoHeader:
    """Read the attributes of `<algo>`; defects are recorded in `findings`, and reading continues.

    Nothing is raised, so that the result may have replaced values. Attributes that no runtime
    knows are warnings (`unknown-attribute`), but remain. In this order are read:

    1. The collective is CUSTOM if `coll` is missing (warning `missing-attribute`) or unknown
       (error `unknown-collective`).
    2. The protocol is only checked: a missing or unknown one is an error.
    3. Whether calls are in place and out of place is decided by `read_modes` from `inplace` and
       `outofplace`.
    4. The sizes are only checked: `minBytes` above `maxBytes` is a warning (`size-range`).
    5. The numbers `ngpus`, `nchunksperloop` and `nchannels` are 1 if they are missing, no
       number, below 1, or 2^31 and more; each case is an error. Of a text such as `4x` the
       number 4 is used, with a warning.

    `written` of the result has all attributes as text, also unknown ones.
    """
    reader = _AttributeReader(document, findings)
    kind = reader.read_collective()
    reader.check_protocol()
    in_place, out_of_place = reader.read_modes()
    reader.check_sizes()
    return AlgoHeader(
        written=dict(document.algo),
        line=document.algo_line,
        kind=kind,
        # Defective values are 1 until the errors are raised.
        num_ranks=reader.read_number("ngpus", 1),
        unit_count=reader.read_number("nchunksperloop", 1),
        channel_count=reader.read_number("nchannels", 1),
        is_in_place=in_place,
        is_out_of_place=out_of_place,
    )


_CURES = {
    "ngpus": 'add ngpus="{ranks}", the number of <gpu>',
    "nchunksperloop": 'add nchunksperloop="NUMBER", the chunks of the larger buffer',
}


class _AttributeReader:
    """Read attributes one by one; a defect is recorded and a usable value returned."""

    def __init__(self, document: ScannedXml, findings: FileFindings) -> None:
        """Store the attributes of `<algo>`, and warn of those that no runtime knows.

        Each such attribute except `nthreads` and `redop` gives one warning `unknown-attribute`,
        in alphabetical order, at the line of `<algo>`. All attributes are kept.
        """
        self._algo = document.algo
        self._line = document.algo_line
        self._gpu_count = len(document.gpus)
        self._findings = findings
        for name in sorted(set(self._algo) - RUNTIME_ATTRIBUTES - {"nthreads", "redop"}):
            message = f"attribute {name!r} of <algo> is kept, but no runtime knows it"
            self._warn("unknown-attribute", message)

    def read_number(self, name: str, minimum: int) -> int:
        """Return a required number from the attribute `name`, which must be at least `minimum`.

        The number has the notation of C: `12`, `-1`, `0x10` (16), `010` (octal, 8), after
        optional white space. Characters after the number are ignored with a warning
        (`odd-number`). In these cases an error is recorded and `minimum` is returned:

        - `missing-attribute`: there is no such attribute.
        - `not-a-number`: the text does not begin with a number.
        - `attribute-range`: the number is below `minimum`, or its magnitude is 2^31 or more.
        """
        if name not in self._algo:
            cure = _CURES.get(name, f'add {name}="NUMBER"').format(ranks=self._gpu_count)
            self._add_error("missing-attribute", f"<algo> has no attribute {name!r}", cure)
            return minimum
        value = self._parse(name)
        if value is None:
            return minimum
        if value < minimum:
            self._add_error("attribute-range", f"{name} is {value}, which is less than {minimum}")
            return minimum
        return value

    def read_modes(self) -> tuple[bool, bool]:
        """Return (whether the file is for in-place calls, whether it is for out-of-place calls).

        Without the attribute `outofplace` the file is for exactly one mode, given by `inplace`. If
        both attributes are 0, it is for out-of-place calls (warning `no-mode`). A missing `inplace`
        counts as 0 (warning `missing-attribute`). Other values than 0 and 1 are recorded as errors
        and count as 0.
        """
        in_place = self._read_flag("inplace", False)
        if "inplace" not in self._algo:
            self._warn(
                "missing-attribute",
                "<algo> has no attribute 'inplace', which the runtimes require; read as 0",
            )
        # microsoft/msccl and its files have no `outofplace`: there inplace="0" means out of place.
        out_of_place = self._read_flag("outofplace", not in_place)
        if not (in_place or out_of_place):
            self._warn(
                "no-mode",
                "inplace and outofplace are both 0; read as out of place, as microsoft/msccl does",
            )
        return in_place, out_of_place or not in_place

    def read_collective(self) -> CollectiveKind:
        """Return the kind in `coll`; CUSTOM if it is missing or unknown.

        A missing one is the warning `missing-attribute` (TACCL's broadcasts have none). An unknown
        one is the error `unknown-collective`. The comparison is exact.
        """
        name = self._algo.get("coll")
        if name is None:
            self._warn(
                "missing-attribute",
                "<algo> has no attribute 'coll', which the runtimes require; read as custom"
                " without -O collective=NAME",
            )
            return CollectiveKind.CUSTOM
        if name not in _COLLECTIVES:
            known = ", ".join(_COLLECTIVES)
            self._add_error("unknown-collective", f"coll {name!r} is not one of {known}")
        return _COLLECTIVES.get(name, CollectiveKind.CUSTOM)

    def check_protocol(self) -> None:
        """Record an error for a missing protocol, or one that is not Simple, LL or LL128.

        The comparison is exact; the codes are "missing-attribute" and "unknown-protocol".
        """
        name = self._algo.get("proto")
        if name is None:
            cure = f'add proto="Simple", or another one of {", ".join(_PROTOCOLS[1:])}'
            self._add_error("missing-attribute", "<algo> has no attribute 'proto'", cure)
        elif name not in _PROTOCOLS:
            known = ", ".join(_PROTOCOLS)
            self._add_error("unknown-protocol", f"proto {name!r} is not one of {known}")

    def check_sizes(self) -> None:
        """Warn (`size-range`) if minBytes exceeds a positive maxBytes, so that no call fits.

        A missing attribute counts as 0. A maxBytes of 0 or less means no limit, so there is no
        warning. Neither is there one if a value is not a complete number with a magnitude below
        2^31.
        """
        lowest, lowest_state = parse_number(self._algo.get("minBytes", "0"))
        highest, highest_state = parse_number(self._algo.get("maxBytes", "0"))
        # Some writers use 64-bit sizes: compare only if both fit the runtimes' 32-bit numbers.
        if lowest_state is not NumberState.FINE or highest_state is not NumberState.FINE:
            return
        # A maxBytes of 0 means "no limit" to two of the three runtimes.
        if lowest > highest > 0:
            message = f"minBytes {lowest} is greater than maxBytes {highest}: no call is in between"
            self._warn("size-range", message)

    def _read_flag(self, name: str, default: bool) -> bool:
        """Return an attribute with the values 0 and 1 as a bool; `default` if it is missing.

        Any other value is recorded as an error and returned as False. Characters after the number
        are ignored with a warning.
        """
        # The caller reports a missing attribute if that matters.
        if name not in self._algo:
            return default
        # None: `_parse` has recorded the error. The runtimes accept only 0 and 1.
        value = self._parse(name)
        if value not in (0, 1, None):
            self._add_error("attribute-range", f"{name} is {value}, expected 0 or 1")
        return value == 1

    def _parse(self, name: str) -> int | None:
        """Return the number in an existing attribute, or None after recording an error.

        The number is parsed as by C's `strtol`: `-1`, `0x10` and `010` (octal) are accepted.
        The errors are `not-a-number` if the text does not begin with a number, and
        `attribute-range` if its magnitude is 2^31 or more. Characters after the number are
        ignored with the warning `odd-number`.
        """
        text = self._algo[name]
        shown = text[:_MAX_SHOWN_CHARACTERS]
        value, state = parse_number(text)
        if state is NumberState.NO_NUMBER:
            self._add_error("not-a-number", f"{name} is {shown!r}, expected a number")
            return None
        if state is NumberState.OUT_OF_RANGE:
            self._add_error("attribute-range", f"{name} is {shown!r}, expected a number below 2^31")
            return None
        if state is NumberState.CUT:
            message = f"{name} is {shown!r}, read as {value}, as the runtimes do"
            self._warn("odd-number", message)
        return value

    def _warn(self, code: str, message: str) -> None:
        """Warn at the line of the header."""
        self._findings.warn(code, message, self._line)

    def _add_error(self, code: str, message: str, cure: str = "") -> None:
        """Record an error at the line of the header."""
        self._findings.add_error(code, message, self._line, cure=cure)


Columns = Mapping[str, Int64Array]

_FROM_ROOT = (CollectiveKind.BROADCAST, CollectiveKind.SCATTER)
_READS_SRC = [StepKind.SEND, StepKind.RECV_REDUCE, StepKind.COPY, StepKind.REDUCE]
_WRITES_DST = [StepKind.RECV, StepKind.RECV_REDUCE, StepKind.COPY, StepKind.REDUCE]


def find_possible_roots(
    kind: CollectiveKind,
    columns: Columns,
    num_ranks: int,
    is_aliased: bool,
) -> list[int]:
    """List the ranks that can be the root of a broadcast, scatter, reduce or gather, ascending.

    A candidate reaches all ranks by messages (broadcast, scatter), or is reached by all of them
    (reduce, gather). Candidates with evidence are returned; without any, all candidates; []
    without candidates. Evidence is:

    - Broadcast, scatter: the rank reads a unit of INPUT that none of its steps writes. Only the
      first unit of an access counts. In an in-place broadcast (`is_aliased`: input and output are
      one buffer), OUTPUT counts as INPUT.
    - Reduce, gather: the rank writes OUTPUT. An in-place reduce has no evidence, because every
      rank may store partial sums there.

    Any kind except broadcast and scatter is treated as a reduce. Cost: linear in steps and edges.
    """
    is_send = columns["kind"] == StepKind.SEND
    source = columns["rank"][is_send].tolist()
    target = columns["peer"][is_send].tolist()
    if kind in _FROM_ROOT:
        connected = _find_mother_vertices(source, target, num_ranks)
        is_one_buffer = is_aliased and kind is CollectiveKind.BROADCAST
        # Forwarding ranks read their buffer too, but only data that was written before.
        reads = _find_input_accesses(columns, _READS_SRC, "src", is_one_buffer)
        writes = _find_input_accesses(columns, _WRITES_DST, "dst", is_one_buffer)
        evident = {rank for rank, _ in reads - writes}
    else:
        connected = _find_mother_vertices(target, source, num_ranks)
        # In place, every rank of a reduce may keep partial sums in its output.
        evident = set()
        if not (is_aliased and kind is CollectiveKind.REDUCE):
            is_write = np.isin(columns["kind"], _WRITES_DST)
            is_write &= columns["dst_buffer"] == Buffer.OUTPUT
            evident = set(columns["rank"][is_write].tolist())
    # Without evidence the connections decide, which may leave several ranks.
    return sorted(connected & evident or connected)


def _find_input_accesses(
    columns: Columns,
    kinds: list[StepKind],
    side: str,
    is_output_too: bool,
) -> set[tuple[int, int]]:
    """Return (rank, first unit) of each step of some kinds that reads or writes the input buffer.

    `kinds`: step kinds to consider. `side`: `src` for accesses of the source operand, `dst` for
    those of the destination. With `is_output_too`, accesses of OUTPUT count too, because it is the
    same buffer. Each pair occurs once.
    """
    buffers = [Buffer.INPUT, Buffer.OUTPUT] if is_output_too else [Buffer.INPUT]
    is_kind = np.isin(columns["kind"], kinds)
    is_used = is_kind & np.isin(columns[f"{side}_buffer"], buffers)
    ranks = columns["rank"][is_used].tolist()
    offsets = columns[f"{side}_offset"][is_used].tolist()
    return set(zip(ranks, offsets, strict=True))


def _find_mother_vertices(
    source: list[int],
    target: list[int],
    num_ranks: int,
) -> set[int]:
    """Return the ranks from which all ranks can be reached along the edges source[i] -> target[i].

    The set is empty if there is none. Method: search from every rank that no earlier search has
    reached. If such a rank exists, the start of the last search is one; the result is then all
    ranks from which that start can be reached. Cost: three searches.
    """
    forward: list[list[int]] = [[] for _ in range(num_ranks)]
    backward: list[list[int]] = [[] for _ in range(num_ranks)]
    # Deduplicate: there are many messages, but few connections.
    for sender, receiver in set(zip(source, target, strict=True)):
        forward[sender].append(receiver)
        backward[receiver].append(sender)
    # The last rank that no search from an earlier rank reached.
    seen: set[int] = set()
    last_start = 0
    for start in range(len(forward)):
        if start not in seen:
            last_start = start
            seen |= _find_reachable(forward, start, seen)
    if len(_find_reachable(forward, last_start, set())) < num_ranks:
        return set()
    return _find_reachable(backward, last_start, set())


def _find_reachable(
    neighbours: list[list[int]],
    start: int,
    known: set[int],
) -> set[int]:
    """Return the ranks that can be reached from `start` without entering ranks in `known`.

    `neighbours`: for each rank, the ranks that can be reached directly. `start` is always in the
    result, even if it is in `known`. The arguments are not changed.
    """
    reached = {start}
    # Breadth first; the list grows during iteration.
    queue = [start]
    for rank in queue:
        for neighbour in neighbours[rank]:
            if neighbour not in reached and neighbour not in known:
                reached.add(neighbour)
                queue.append(neighbour)
    return reached
