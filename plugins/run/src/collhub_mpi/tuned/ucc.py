"""Write and read selections as the tune string of UCC's transport UCP.

collective:from-to:[ranks-ranks]:inf:@algorithm#...

Size ranges are half-open and refer to the destination: the full buffer, but for reduce-scatter one
rank's part of it. The score inf gives a choice precedence over all other transports. The grammar is
that of openucx/ucc, `src/coll_score/ucc_coll_score.c`, with the sizes of UCX (`4K`, `1MB`, `inf`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import NoReturn, TypedDict

from collhub_mpi.tuned import read_files
from hub_core.model import CollectiveKind, Diagnostic, InputError, Location
from hub_core.plugin_api import (
    Artifact,
    NoOptions,
    Selection,
    ServedCalls,
    Source,
    SourcePart,
    WriteResult,
)
from hub_core.selections import first_of_kinds, own_windows

FILE = "ucc.conf"
_VARIABLE = "UCC_TL_UCP_TUNE"
_NAMES: Mapping[CollectiveKind, str] = {
    CollectiveKind.ALL_REDUCE: "allreduce",
    CollectiveKind.ALL_GATHER: "allgather",
    CollectiveKind.ALL_TO_ALL: "alltoall",
    CollectiveKind.REDUCE_SCATTER: "reduce_scatter",
}
_KIND_OF = {name: kind for kind, name in _NAMES.items()}
_ALGORITHMS: Mapping[CollectiveKind, Mapping[str, str]] = {
    CollectiveKind.ALL_REDUCE: {
        # Radix chosen by UCC; recursive doubling is the case of radix 2.
        "recursive-doubling": "knomial",
        "halving-doubling": "sra_knomial",
        "double-binary-tree": "dbt",
        "ring": "ring",
    },
    CollectiveKind.ALL_GATHER: {
        "recursive-doubling": "knomial",
        "ring": "ring",
        "neighbour-exchange": "neighbor",
        "bruck": "bruck",
        "sparbit": "sparbit",
        "direct": "linear",
    },
    CollectiveKind.ALL_TO_ALL: {"pairwise": "pairwise", "bruck": "bruck"},
    CollectiveKind.REDUCE_SCATTER: {"halving-doubling": "knomial", "ring": "ring"},
}
_SIZE = re.compile(r"(\d{1,18})(?:([BKMGT])B?)?", re.IGNORECASE)
_UNITS = {"": 1, "B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_RANKS = re.compile(r"(\d{1,18})(?:-(\d{1,18}|inf))?", re.IGNORECASE)
# Every choice is compared with all earlier ones.
_MAX_CHOICES = 1000
_MEMORIES = ("host", "cuda", "cuda_managed", "rocm", "rocm_managed")


def write(selection: Selection, options: NoOptions) -> WriteResult:
    """Return the configuration file `ucc.conf` of UCC with the tune string of a selection.

    The file has a comment with the name of the topology, and the line `UCC_TL_UCP_TUNE = TOKENS`.
    There is one token per window of sizes, joined by `#`, collective by collective in the order of
    `selection`: `NAME:FIRST-END:[N-N]:inf:@ALGORITHM` for N ranks, with UCC's names. FIRST and END
    (excluded) limit the bytes of a rank's destination buffer. They are `min_bytes` and `max_bytes`
    + 1 (`inf` without a limit), for a reduce-scatter divided by N and rounded up. A window with
    equal ones has no token. Without tokens there is no line. Non-ASCII characters become `?`.
    Nothing is written to disk. The losses, in order:

    - each selection of a kind after the first one
    - per collective: sizes at which an algorithm is faster that UCC lacks, and measured sizes
      without a window. A collective without any algorithm of UCC has no token.

    The notes of the result explain how UCC loads the file and that radixes are UCC's.
    """
    tokens: list[str] = []
    chosen, losses = first_of_kinds(selection)
    for selected in chosen:
        kind = selected.collective.kind
        windows, lost = own_windows(selected, _ALGORITHMS.get(kind, {}), "UCC")
        losses += lost
        ranks = selection.num_ranks
        parts = _count_parts(kind, ranks)
        for window in windows:
            # The smallest destination size of a full buffer in the window.
            first = -(-window.min_bytes // parts)
            end = "inf" if window.max_bytes is None else str(-(-(window.max_bytes + 1) // parts))
            # Skip a window smaller than one part, which contains no destination size.
            if str(first) != end:
                name = _ALGORITHMS[kind][window.algorithm]
                tokens.append(f"{_NAMES[kind]}:{first}-{end}:[{ranks}-{ranks}]:inf:@{name}")
    text = f"# collhub tune: {' '.join(selection.topology.split())}\n"
    if tokens:
        text += f"{_VARIABLE} = {'#'.join(tokens)}\n"
    notes = [
        f"set {_VARIABLE} to the value in {FILE}, or UCC_CONFIG_FILE to the file",
        "radixes are UCC's own",
    ]
    return WriteResult([Artifact(FILE, text.encode("ascii", "replace"))], losses, (), notes)


def read(source: Source) -> Sequence[ServedCalls]:
    """Return one row per choice; none for a file with a choice that UCC cannot parse."""
    return read_files(source, {FILE: _read_calls})


def _read_calls(part: SourcePart, notes: list[Diagnostic]) -> list[ServedCalls]:
    """Return the calls of a file with one line `UCC_TL_UCP_TUNE = ...`, one per token.

    Tokens are separated by `#`; sizes are those of the full buffer in bytes. Blank lines and lines
    that start with `#` are ignored. A file without other lines has no calls. Raises `InputError`
    (`not-a-rule`) for any other line, several lines with the variable, an invalid or empty token,
    more than `_MAX_CHOICES` choices, and two that serve a common call, which UCC refuses. No notes
    are appended to `notes`.
    """
    del notes
    lines = enumerate(part.load().decode("latin-1").splitlines(), 1)
    values = [
        (number, line.partition("="))
        for number, line in lines
        if line.strip() and not line.startswith("#")
    ]
    if not values:
        return []
    for index, (number, (name, _, _)) in enumerate(values):
        if index or name.strip() != _VARIABLE:
            message, cure = f"not one line {_VARIABLE} = ...", "remove the other lines"
            location = Location(line=number)
            raise InputError(message, location=location, code="not-a-rule", cure=cure)
    location = Location(line=values[0][0])
    choices: list[_Choice] = []
    for token in values[0][1][2].strip().split("#"):
        for choice in _parse_token(token, location, _MAX_CHOICES - len(choices)):
            if any(map(choice.overlaps, choices)):
                cure = "end the earlier sizes where the later ones begin"
                _refuse_token(location, token, ": an earlier choice has some of its sizes", cure)
            choices.append(choice)
    return [choice.calls for choice in choices]


Interval = tuple[int, int | None]
"""First and last value, both included; None: no limit."""


@dataclass(frozen=True, slots=True)
class _Choice:
    """The calls of one collective, range of sizes and range of ranks, with types of memory."""

    calls: ServedCalls
    ranks: Interval
    memories: Sequence[str]

    def overlaps(self, other: _Choice) -> bool:
        """Return whether some call belongs to both choices, which UCC refuses."""
        first, second = self.calls, other.calls
        return (
            first.kind is second.kind
            and not {*self.memories}.isdisjoint(other.memories)
            and _intersect(self.ranks, other.ranks)
            and _intersect((first.min_bytes, first.max_bytes), (second.min_bytes, second.max_bytes))
        )


def _intersect(first: Interval, second: Interval) -> bool:
    return (second[1] is None or first[0] <= second[1]) and (
        first[1] is None or second[0] <= first[1]
    )


def _parse_token(token: str, location: Location, most: int) -> list[_Choice]:
    """Parse one token of UCC's tune string, and return its choices.

    Form: `collective:from-to:[ranks-ranks]:inf:@algorithm`, in any order. Only collective and
    algorithm are required; missing sizes, ranks and types of memory mean all. Collectives, sizes,
    ranks and types of memory may be lists (`allreduce,allgather`). Sizes have units of 1024 (`4K`);
    `to` is exclusive or `inf`. Ranks are a number, or a range that may end with `inf`. The score is
    `inf` or an integer above 0, and is ignored.

    There is a choice per collective, range of ranks and range of sizes, in this order. It serves
    calls in place and out of place; `by` is such as `ring of 4 to 8 ranks in cuda memory`. Its
    sizes are of the full buffer in bytes, both ends included. In a token for reduce-scatter they
    are of one rank's part: `2-5` with 4 ranks gives 5 to 16 bytes, otherwise 2 to 4.

    Raises `InputError` (`not-a-rule`) at `location` for another form, an unknown collective, an
    algorithm that a collective lacks, an empty range, sizes of a reduce-scatter of several numbers
    of ranks, and more than `most` choices.
    """
    refuse = partial(_refuse_token, location, token)
    fields = _parse_fields(token, refuse)
    kinds, names = fields.get("collectives"), fields.get("algorithm")
    if not kinds or not names or any(names[0] not in _ALGORITHMS[kind].values() for kind in kinds):
        cure = "write collectives and algorithms as UCC names them"
        refuse(" is not collective:from-to:[ranks-ranks]:inf:@algorithm", cure)
    teams = fields.get("ranks") or [(1, None)]
    sizes = fields.get("sizes") or [(0, None)]
    if len(kinds) * len(teams) * len(sizes) > most:
        refuse(f" exceeds {_MAX_CHOICES} choices", "write fewer ranges of sizes and ranks")
    memories = fields.get("memories")
    suffix = f" in {' or '.join(memories)} memory" if memories else ""
    choices: list[_Choice] = []
    for kind, (least, largest) in product(kinds, teams):
        if largest is not None and not 1 <= least <= largest:
            refuse(" has no number of ranks", "write the smaller one first")
        is_limited = sizes != [(0, None)]
        if is_limited and least != largest and kind is CollectiveKind.REDUCE_SCATTER:
            cure = "write one token for each number of ranks"
            reason = " has several numbers of ranks, by which the sizes of a reduce-scatter differ"
            refuse(reason, cure)
        parts = _count_parts(kind, least)
        of_ranks = f" of {least} or more ranks" if least > 1 else ""
        if largest is not None:
            of_ranks = f" of {least if least == largest else f'{least} to {largest}'} ranks"
        by = f"{names[0]}{of_ranks}{suffix}"
        for first, stop in sizes:
            # Full buffers between two multiples count as the larger one.
            min_bytes = (first - 1) * parts + 1 if first else 0
            max_bytes = None if stop is None else (stop - 1) * parts
            if max_bytes is not None and max_bytes < min_bytes:
                cure = "write the smaller size first; the second one is excluded"
                refuse(" has an empty range of sizes", cure)
            calls = ServedCalls(kind, True, True, min_bytes, max_bytes, by)
            choices.append(_Choice(calls, (least, largest), memories or _MEMORIES))
    return choices


class _TokenFields(TypedDict, total=False):
    """Fields of a token; each has at least one entry, `algorithm` exactly one."""

    collectives: list[CollectiveKind]
    sizes: list[Interval]
    ranks: list[Interval]
    memories: list[str]
    algorithm: list[str]


def _parse_fields(token: str, refuse: Callable[[str, str], NoReturn]) -> _TokenFields:
    """Parse the fields of a token, separated by `:`, in any order; absent fields have no key.

    A field is the first of these that fits and has not occurred. Names are in any case, except that
    of the algorithm. Fields 1, 2, 4 and 6 have one or more values, separated by commas:

    1. `collectives`: names of collectives, such as `allreduce`
    2. `memories`: types of memory (`_MEMORIES`)
    3. a score, i.e. `inf` or an integer above 0, which is not stored
    4. `sizes`: ranges such as `0-4K` in bytes; the upper end is excluded (None for `inf`)
    5. `algorithm`: any name after `@`, which is not checked
    6. `ranks`: `[16]` or `[2-8]`; the last number is included (None for `inf`)

    Empty fields are ignored, as UCC does. `refuse` raises an error for any other or second field.
    """
    fields: _TokenFields = {}
    has_score = False
    for text in filter(None, token.split(":")):
        parts = text.lower().split(",")
        kinds = [_KIND_OF.get(part) for part in parts]
        ranges = [_parse_sizes(part) for part in parts]
        is_score = text.lower() == "inf" or (text.isdecimal() and int(text[:18]) > 0)
        if "collectives" not in fields and None not in kinds:
            fields["collectives"] = [kind for kind in kinds if kind is not None]
        elif "memories" not in fields and all(part in _MEMORIES for part in parts):
            fields["memories"] = parts
        elif not has_score and is_score:
            has_score = True
        elif "sizes" not in fields and None not in ranges:
            fields["sizes"] = [sizes for sizes in ranges if sizes is not None]
        elif "algorithm" not in fields and text.startswith("@"):
            fields["algorithm"] = [text[1:]]
        elif "ranks" not in fields and text.startswith("[") and text.endswith("]"):
            teams = [_RANKS.fullmatch(part) for part in text[1:-1].split(",")]
            if None in teams:
                refuse(f" has no number of ranks: {text!r:.40}", "write for example [16] or [2-8]")
            fields["ranks"] = [_get_ranks(team) for team in teams if team is not None]
        else:
            cure = "write collectives and algorithms as UCC names them, and sizes as 0-4K or 4K-inf"
            expected = "collective:from-to:[ranks-ranks]:inf:@algorithm"
            refuse(f" is not {expected}: {text!r:.40}", cure)
    return fields


def _get_ranks(match: re.Match[str]) -> Interval:
    """Return the least and the largest number of ranks; None for `inf`."""
    last = (match[2] or match[1]).lower()
    return int(match[1]), None if last == "inf" else int(last)


def _parse_sizes(text: str) -> Interval | None:
    """Return (first, stop) in bytes of a range such as `0-4K` or `1M-inf`; None for other texts."""
    first, dash, stop = text.partition("-")
    begin = _SIZE.fullmatch(first)
    end = _SIZE.fullmatch(stop)
    if not dash or begin is None or (end is None and stop.lower() != "inf"):
        return None
    return _compute_bytes(begin), None if end is None else _compute_bytes(end)


def _compute_bytes(match: re.Match[str]) -> int:
    return int(match[1]) * _UNITS[(match[2] or "").upper()]


def _refuse_token(location: Location, token: str, reason: str, cure: str) -> NoReturn:
    """Raise the error about a token: its text, followed by `reason`."""
    raise InputError(f"{token!r:.60}{reason}", location=location, code="not-a-rule", cure=cure)


def _count_parts(kind: CollectiveKind, num_ranks: int) -> int:
    """Return the size of the full buffer divided by that of the destination."""
    return num_ranks if kind is CollectiveKind.REDUCE_SCATTER else 1
