"""Write a selection as dynamic rules of Open MPI's coll/tuned, and determine the calls they serve.

Rules are classic text or JSON. Open MPI counts the bytes of the full buffer, as the hub does. The
classic text has one set of rules per collective, for the communicator size 0, because the meaning
of other sizes differs between versions. A rule applies from its size on, up to the next one.

Identifiers of `ompi/mca/coll/base/coll_base_functions.h`, numbers and names of the algorithms of
`ompi/mca/coll/tuned`, Open MPI 5.0.11. Number 0 is the built-in decision.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeGuard

from collhub_mpi.plugin import RulesOptions
from collhub_mpi.tuned import read_files
from hub_core.model import (
    CollectiveKind,
    Diagnostic,
    InputError,
    Location,
    Severity,
    parse_whole,
)
from hub_core.plugin_api import (
    Artifact,
    SelectedCollective,
    SelectedWindow,
    Selection,
    ServedCalls,
    Source,
    SourcePart,
    WriteResult,
)
from hub_core.selections import fill_gaps, first_of_kinds, own_windows

CLASSIC_FILE, JSON_FILE = "tuned_rules.conf", "tuned_rules.json"
JSON_VERSION = 3

COLLECTIVES: Mapping[CollectiveKind, tuple[int, str]] = {
    CollectiveKind.ALL_GATHER: (0, "allgather"),
    CollectiveKind.ALL_REDUCE: (2, "allreduce"),
    CollectiveKind.ALL_TO_ALL: (3, "alltoall"),
    CollectiveKind.BROADCAST: (7, "bcast"),
    CollectiveKind.REDUCE: (11, "reduce"),
    CollectiveKind.REDUCE_SCATTER: (12, "reduce_scatter"),
}
"""Number and name of a collective."""

_OTHER_COLLECTIVES: Mapping[int, str] = {
    1: "allgatherv",
    4: "alltoallv",
    5: "alltoallw",
    6: "barrier",
    8: "exscan",
    9: "gather",
    10: "gatherv",
    13: "reduce_scatter_block",
    14: "scan",
    15: "scatter",
    16: "scatterv",
    17: "neighbor_allgather",
    18: "neighbor_allgatherv",
    19: "neighbor_alltoall",
    20: "neighbor_alltoallv",
    21: "neighbor_alltoallw",
}
"""Number and name of the collectives of Open MPI for which the hub selects no algorithms."""

ALGORITHMS: Mapping[CollectiveKind, Mapping[str, tuple[int, str]]] = {
    CollectiveKind.ALL_REDUCE: {
        "recursive-doubling": (3, "recursive_doubling"),
        "ring": (4, "ring"),
        "halving-doubling": (6, "rabenseifner"),
    },
    CollectiveKind.ALL_GATHER: {
        "direct": (1, "linear"),
        "bruck": (2, "bruck"),
        "recursive-doubling": (3, "recursive_doubling"),
        "ring": (4, "ring"),
        "neighbour-exchange": (5, "neighbor"),
        "sparbit": (7, "sparbit"),
    },
    CollectiveKind.ALL_TO_ALL: {
        "direct": (1, "linear"),
        "pairwise": (2, "pairwise"),
        "bruck": (3, "modified_bruck"),
    },
    CollectiveKind.BROADCAST: {
        # A chain with segments.
        "ring": (3, "pipeline"),
        "binomial": (6, "binomial"),
        "k-nomial": (7, "knomial"),
    },
    CollectiveKind.REDUCE: {"binomial": (5, "binomial")},
    CollectiveKind.REDUCE_SCATTER: {
        "halving-doubling": (2, "recursive_halving"),
        "ring": (3, "ring"),
    },
}
"""Number and name of an algorithm, by the equivalent classic algorithm."""


ALGORITHM_COUNTS: Mapping[CollectiveKind, int] = {
    CollectiveKind.ALL_GATHER: 8,
    CollectiveKind.ALL_REDUCE: 7,
    CollectiveKind.ALL_TO_ALL: 5,
    CollectiveKind.BROADCAST: 9,
    CollectiveKind.REDUCE: 8,
    CollectiveKind.REDUCE_SCATTER: 4,
}
"""Largest number of an algorithm in any release, of `docs/tuning-apps/coll-tuned.rst`."""

# Names of JSON rules that `ALGORITHMS` lacks, as releases spell them.
_OTHER_NAMES: Mapping[CollectiveKind, tuple[str, ...]] = {
    CollectiveKind.ALL_GATHER: ("two_proc", "bruck-k-fanout", "direct-messaging"),
    CollectiveKind.ALL_REDUCE: (
        "basic_linear", "nonoverlapping", "segmented_ring", "allgather_reduce"
    ),
    CollectiveKind.ALL_TO_ALL: ("linear_sync", "two_proc"),
    CollectiveKind.BROADCAST: (
        "basic_linear", "chain", "split_binary_tree", "binary_tree", "scatter_allgather",
        "scatter_allgather_ring",
    ),
    CollectiveKind.REDUCE: (
        "linear", "chain", "pipeline", "binary", "in-order_binary", "rabenseifner", "knomial"
    ),
    CollectiveKind.REDUCE_SCATTER: ("non-overlapping", "butterfly"),
}  # fmt: skip


def get_algorithm_name(kind: CollectiveKind, number: int) -> str:
    """Return Open MPI's name for one of its algorithm numbers, such as `recursive_doubling`.

    It is "the built-in decision" for 0, and "algorithm N" for a number that is not in
    `ALGORITHMS`. Raises `KeyError` for a collective that is not in `ALGORITHMS`, unless the
    number is 0.
    """
    if number == 0:
        return "the built-in decision"
    names = dict(ALGORITHMS[kind].values())
    return names.get(number, f"algorithm {number}")


_USE = (
    "set OMPI_MCA_coll_tuned_use_dynamic_rules=1 and OMPI_MCA_coll_tuned_dynamic_rules_filename"
    " to {}; only coll/tuned obeys, not han or ucc"
)
# A multiple of the sizes of all element types.
_SEGMENT_MULTIPLE = 64


@dataclass(frozen=True, slots=True)
class _Rule:
    """An algorithm from a size on.

    `number`, `name`: Open MPI's identifiers in rules as text and as JSON; number 0 is its built-in
    decision. `max_bytes`: None for no limit. `segment_bytes`: size of the segments, 0 for
    unsegmented messages.
    """

    min_bytes: int
    max_bytes: int | None
    number: int
    name: str
    segment_bytes: int


_Rules = dict[CollectiveKind, list[_Rule]]


def write(selection: Selection, options: RulesOptions) -> WriteResult:
    """Return one file with the dynamic rules of all collectives, losses, notes and runtimes.

    The file is `tuned_rules.json` if `options.format` is `json`, else `tuned_rules.conf` (classic
    text). Collectives ascend by Open MPI's numbers, their rules by size in bytes. Windows of sizes
    are recomputed with only the algorithms that Open MPI has (`own_windows`). Sizes outside of them
    keep Open MPI's built-in decision: algorithm 0 in classic text, no rule in JSON. Classic rules
    apply to communicators of every size, JSON rules to `selection.num_ranks` only.

    Losses are first every selection of a kind after its first one. Then, per collective: sizes at
    which another algorithm is faster, sizes without a remaining algorithm, collectives without any.
    The last ones are left out of the file, which can be empty of rules. Notes: the use of the file,
    the condition of its format, and a remark on MPI_Reduce_scatter if it has rules.
    """
    rules: _Rules = {}
    chosen, losses = first_of_kinds(selection)
    for selected in chosen:
        kind = selected.collective.kind
        windows, lost = own_windows(selected, ALGORITHMS.get(kind, {}), "Open MPI")
        losses += lost
        if windows:
            rules[kind] = [
                _build_rule(selected, min_bytes, max_bytes, window)
                for min_bytes, max_bytes, window in fill_gaps(windows)
            ]
    ordered = dict(sorted(rules.items(), key=lambda item: COLLECTIVES[item[0]]))
    if options.format == "json":
        # The rules in the JSON format, which versions from 6.0 on read.
        collectives = {
            COLLECTIVES[kind][1]: [_build_set(kind_rules, selection.num_ranks)]
            for kind, kind_rules in ordered.items()
        }
        document = {
            "rule_file_version": JSON_VERSION,
            "module": "tuned",
            "collectives": collectives,
        }
        file, content = JSON_FILE, json.dumps(document, indent=1) + "\n"
        runtimes = ["Open MPI 6.0 and later"]
        notes = [_USE.format(file), "JSON is read from Open MPI 6.0 on; older ones ignore it"]
    else:
        file, content = CLASSIC_FILE, _format_classic(ordered, selection)
        runtimes = ["Open MPI, all versions (run with 5.0.11)"]
        notes = [_USE.format(file), "the rules hold for communicators of every size"]
    if CollectiveKind.REDUCE_SCATTER in rules:
        notes.append("reduce-scatter is MPI_Reduce_scatter, not MPI_Reduce_scatter_block")
    artifact = Artifact(file, content.encode("ascii", "replace"))
    return WriteResult([artifact], losses, (), notes, runtimes)


def _build_rule(
    selected: SelectedCollective,
    min_bytes: int,
    max_bytes: int | None,
    window: SelectedWindow | None,
) -> _Rule:
    """Return the rule for calls of `min_bytes` to `max_bytes` (None: no limit).

    With a window it selects the algorithm of the window, without one (None) the built-in decision,
    algorithm 0. Only a pipelined broadcast (`ring`) of several chunks has segments. Their size is
    that of its chunks at the middle entry of `window.sizes` (the higher one of two), rounded up to
    a multiple of `_SEGMENT_MULTIPLE` (64) bytes.
    """
    kind = selected.collective.kind
    if window is None:
        return _Rule(min_bytes, max_bytes, 0, get_algorithm_name(kind, 0), 0)
    number, name = ALGORITHMS[kind][window.algorithm]
    segment_bytes = 0
    if kind is CollectiveKind.BROADCAST and window.algorithm == "ring":
        size = window.sizes[len(window.sizes) // 2]
        chunks = selected.made(window.algorithm, size).collective.unit_count
        if chunks > 1:
            segment_bytes = -(-size // (chunks * _SEGMENT_MULTIPLE)) * _SEGMENT_MULTIPLE
    return _Rule(min_bytes, max_bytes, number, name, segment_bytes)


def _format_classic(rules: _Rules, selection: Selection) -> str:
    """Format the rules in the classic text format, which all versions of Open MPI read.

    The first line is a comment with the topology and the number of ranks; runs of blanks in it
    become one space. The second line is the number of collectives, 0 without rules. Each collective
    follows, in the order of `rules`, with these lines:

    - its number in Open MPI, `1` (one set of rules), `0` (communicators of every size)
    - the number of its rules
    - one line per rule, in order: the smallest message size in bytes, the number of the algorithm,
      `0` (the fan) and the segment size in bytes (0 for none). `max_bytes` is not written.

    Every line after the first one ends with a comment after `#`: the name or the meaning. The text
    has a final newline.
    """
    description = f"{selection.topology}, {selection.num_ranks} ranks"
    lines = [f"# collhub tune: {' '.join(description.split())}", f"{len(rules)} # collectives"]
    for kind, kind_rules in rules.items():
        number, name = COLLECTIVES[kind]
        lines += [f"{number} # {name}", "1 # set of rules", "0 # communicators of every size"]
        lines.append(f"{len(kind_rules)} # rules: from bytes, algorithm, fan, segment")
        lines += [
            f"{rule.min_bytes} {rule.number} 0 {rule.segment_bytes} # {rule.name}"
            for rule in kind_rules
        ]
    return "\n".join([*lines, ""])


def _build_set(rules: Sequence[_Rule], num_ranks: int) -> dict[str, object]:
    """Return the rules of one number of ranks as a JSON object.

    Rules have the given order. Sizes are in bytes, without an upper limit `inf`; fan-in and
    requests are 0. Rules without an algorithm number are omitted, since Open MPI decides these
    sizes itself.
    """
    return {
        "comm_size_min": num_ranks,
        "comm_size_max": num_ranks,
        "comm_rank_distribution": "any",
        "rules": [
            {
                "msg_size_min": rule.min_bytes,
                "msg_size_max": "inf" if rule.max_bytes is None else rule.max_bytes,
                "alg": rule.name,
                "faninout": 0,
                "seg_size": rule.segment_bytes,
                "reqs": 0,
            }
            for rule in rules
            # Open MPI decides sizes without a rule itself.
            if rule.number
        ],
    }


_DISTRIBUTIONS = ("any", "one-per-node", "single-node")
_VERSION_2 = "rule-file-version-2"
_KIND_OF_NUMBER = {number: kind for kind, (number, _) in COLLECTIVES.items()}
_KIND_OF_NAME = {name: kind for kind, (_, name) in COLLECTIVES.items()}


def read(source: Source) -> Sequence[ServedCalls]:
    """Return one row per rule; none for a file with an error.

    Open MPI ignores such a file, except for rules whose sizes do not ascend: it does not check
    them, and releases differ in the rules that they then use. Rules of collectives that the hub
    does not model give no rows, but one note per collective (`other-collective`). A note
    `communicator-size` is reported for a collective of a classic file whose rules depend on the
    size of the communicator.
    """
    return read_files(source, {CLASSIC_FILE: _read_classic, JSON_FILE: _read_json})


class _Numbers:
    """The integers of a classic file in sequence, without comments.

    `location`: the line of the last number that was read, or of the word in its place.
    """

    def __init__(self, text: str) -> None:
        lines = [line.partition("#")[0] for line in text.splitlines()]
        self._words = [(word, at) for at, line in enumerate(lines, 1) for word in line.split()]
        self._place = 0
        self.location = Location(line=1)
        self.has_requests = [word for word, _ in self._words[:1]] == [_VERSION_2]
        if self.has_requests:
            self._place = 1

    def next(self, expected: str) -> int:
        """Return the next number, a decimal integer from 0 to 2^63 - 1, and advance.

        Raise `InputError` (`not-a-rule`) at the end of the file and for any other word; the
        message contains `expected`, and the word if there is one. `location` is set to the line
        of the number or word.
        """
        if self.is_at_end:
            message = f"the file ends where {expected} is expected"
            cure = "complete the file, or correct the counts before"
            raise InputError(message, location=self.location, code="not-a-rule", cure=cure)
        word, line = self._words[self._place]
        self.location = Location(line=line)
        number = parse_whole(word, (1 << 63) - 1)
        if number is None:
            message = f"{word!r:.40} where {expected} is expected"
            cure = "write a whole number of at least 0"
            raise InputError(message, location=self.location, code="not-a-rule", cure=cure)
        self._place += 1
        return number

    @property
    def is_at_end(self) -> bool:
        """Whether all numbers have been read."""
        return self._place == len(self._words)

    @property
    def is_on_same_line(self) -> bool:
        """Whether the next word is in the line of the last number that was read."""
        return not self.is_at_end and self.next_location == self.location

    @property
    def next_location(self) -> Location:
        """The line of the next word. Raises `IndexError` if all have been read."""
        return Location(line=self._words[self._place][1])


def _read_classic(part: SourcePart, notes: list[Diagnostic]) -> list[ServedCalls]:
    """Return the calls of a rules file of Open MPI in its classic form (numbers), in file order.

    Text after `#` is ignored. A collective has any number of sets of rules, each for a size of
    communicators. The calls of a set for another size than 0, and of one of several sets, name the
    size. Notes with the line of the collective's number are appended to `notes`:

    - `other-collective`: the hub does not model the collective. Its rules are read, but its
      numbers of algorithms are not checked.
    - `communicator-size`: releases differ in the communicators that use the sets

    Raises `InputError` with the line of the last number that was read, or of the word that is
    wrong:

    - `not-a-rule`: a number is missing, a word is no number (an initial `rule-file-version-2` is
      allowed), a collective occurs twice, or text follows the last rule
    - `unknown-collective`: a number that is no collective of Open MPI
    - `not-ascending`: a collective whose communicator sizes do not ascend, or a set whose message
      sizes do not ascend from 0 (`_read_set`). Open MPI requires only that the first one is 0, and
      may never use the other rules.
    """
    numbers = _Numbers(part.load().decode("latin-1"))
    calls: list[ServedCalls] = []
    seen: set[int] = set()
    for _ in range(numbers.next("the number of collectives")):
        number = numbers.next("a collective")
        location = Location(part.name, numbers.location.line)
        kind = _KIND_OF_NUMBER.get(number)
        if kind is None and number not in _OTHER_COLLECTIVES:
            message = f"{number} is no collective of Open MPI"
            cure = f"write a number from 0 to {max(_OTHER_COLLECTIVES)}"
            raise InputError(message, location=location, code="unknown-collective", cure=cure)
        name = _OTHER_COLLECTIVES[number] if kind is None else str(kind)
        if number in seen:
            message = f"{name} has rules before"
            cure = "write all rules of a collective at one place"
            raise InputError(message, location=location, code="not-a-rule", cure=cure)
        seen.add(number)
        if kind is None:
            notes.append(_note_other(name, location))
        calls += _read_sets(kind, name, numbers, notes, location)
    if not numbers.is_at_end:
        message, cure = "more follows than is announced", "correct the counts before"
        raise InputError(message, location=numbers.next_location, code="not-a-rule", cure=cure)
    return calls


def _read_sets(
    kind: CollectiveKind | None,
    name: str,
    numbers: _Numbers,
    notes: list[Diagnostic],
    location: Location,
) -> list[ServedCalls]:
    """Return the calls of all sets of rules of one collective; `numbers` advances behind them.

    `kind`: None for a collective that the hub does not model; the result is then empty. `name` and
    `location`: the collective in messages, and its place. Unless the only set is for the
    communicator size 0, a note `communicator-size` is appended to `notes` for a known kind, and
    the calls name the size of their set. Raises `InputError` (`not-ascending`) if a communicator
    size is not above the previous one, and the errors of `_read_set`.
    """
    calls: list[ServedCalls] = []
    sizes: list[int] = []
    count = numbers.next("the number of sets")
    for _ in range(count):
        size = numbers.next("the communicator size")
        if sizes and size <= sizes[-1]:
            message = f"{name}: communicator sizes do not ascend"
            cure = "order the sets by communicator size"
            location = numbers.location
            raise InputError(message, location=location, code="not-ascending", cure=cure)
        sizes.append(size)
        suffix = "" if count == 1 and size == 0 else f", set of communicator size {size}"
        calls += _read_set(kind, name, numbers, suffix)
    if kind is not None and sizes not in ([], [0]):
        listed = ", ".join(map(str, sizes))
        message = f"{name}: releases differ in the communicators that use the sets of size {listed}"
        cure = "one set for the communicator size 0 holds in all releases"
        notes.append(
            Diagnostic("communicator-size", message, Severity.NOTE, location, cure),
        )
    return calls


def _note_other(name: str, location: Location) -> Diagnostic:
    """Return the note (`other-collective`) that the hub does not model a collective."""
    message = f"the hub does not model {name}: only the form of its rules is checked"
    return Diagnostic("other-collective", message, Severity.NOTE, location)


def _read_set(
    kind: CollectiveKind | None, name: str, numbers: _Numbers, suffix: str
) -> Iterator[ServedCalls]:
    """Yield the calls of one set of rules, one per rule, after all of its rules were read.

    A rule serves calls in and out of place from its first number of bytes to one byte before that
    of the next rule. The last rule has no upper limit. The calls name the rule's algorithm, the
    size of its segments in bytes if that is not 0, and `suffix`. Fan and number of requests are
    ignored. No calls are yielded, and numbers of algorithms are not checked, if `kind` is None. A
    set without rules yields no calls either: Open MPI then uses its built-in decision.

    `numbers` advances behind the rules. Raises `InputError` when the first call is requested. For
    the first defect in the file:

    - `not-a-rule`: a number is missing or invalid
    - `unknown-algorithm`: a number of an algorithm that no release has

    Then `not-ascending`: the first size is not 0, or a size is not above the previous one (at the
    line of this size).
    """
    rules = []
    locations = []
    for _ in range(numbers.next("the number of rules")):
        first = numbers.next("a size")
        locations.append(numbers.location)
        number = numbers.next("an algorithm")
        if kind is not None and number > ALGORITHM_COUNTS[kind]:
            raise _unknown_number(kind, number, location=numbers.location)
        numbers.next("a fan")
        segment = numbers.next("a segment")
        if numbers.has_requests and numbers.is_on_same_line:
            numbers.next("the number of requests")
        rules.append((first, number, segment))
    starts = [first for first, _, _ in rules]
    message = f"{name}: sizes do not ascend from 0"
    cure = "begin with a rule from 0 on, and order the rules by size"
    if starts and starts[0] != 0:
        raise InputError(message, location=locations[0], code="not-ascending", cure=cure)
    for (size, next_size), location in zip(pairwise(starts), locations[1:], strict=True):
        if size >= next_size:
            raise InputError(message, location=location, code="not-ascending", cure=cure)
    if kind is None or not rules:
        return
    ends = [*(start - 1 for start in starts[1:]), None]
    for (first, number, segment), last in zip(rules, ends, strict=True):
        by = _describe_algorithm(get_algorithm_name(kind, number), segment)
        yield ServedCalls(kind, True, True, first, last, f"{by}{suffix}")


def _read_json(part: SourcePart, notes: list[Diagnostic]) -> list[ServedCalls]:
    """Return the calls of all rules of a JSON file, in the order of the file.

    If a collective has several sets of rules, the server of a call ends with the communicator sizes
    of its set, as `, set of 2 to 8 ranks` (`0 to inf` if missing). A note `other-collective` is
    appended to `notes` for each collective that the hub does not model. Raises `InputError`
    (`not-a-rule`) if it is no JSON, is not for the module `tuned` in the known version, or lacks a
    member, and the errors of `_check_set` and `_read_rule`.
    """
    try:
        document = json.loads(part.load())
        if document["rule_file_version"] != JSON_VERSION or document["module"] != "tuned":
            raise ValueError("another document")
        collectives = document["collectives"]
        for name, sets in collectives.items():
            for position, rule_set in enumerate(sets):
                _check_set(rule_set, f"collectives.{name}[{position}]")
        calls: list[ServedCalls] = []
        for name, sets in collectives.items():
            for position, rule_set in enumerate(sets):
                first = rule_set.get("comm_size_min", 0)
                last = rule_set.get("comm_size_max", "inf")
                ranks = f"{first}" if first == last else f"{first} to {last}"
                suffix = "" if len(sets) == 1 else f", set of {ranks} ranks"
                for index, rule in enumerate(rule_set["rules"]):
                    where = f"collectives.{name}[{position}].rules[{index}]"
                    calls += _read_rule(name, rule, where, suffix)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        message = f"no rules of version {JSON_VERSION} in JSON"
        raise InputError(message, code="not-a-rule") from None
    location = Location(part.name)
    notes += [_note_other(name, location) for name in collectives if name not in _KIND_OF_NAME]
    return calls


def _check_set(rule_set: dict[str, object], where: str) -> None:
    """Raise `InputError` (`communicator-size`) for a set of rules that no communicator can use.

    The first of these cases is raised; `where` is the place in the message:

    1. `comm_size_min` is no number of ranks (`_is_size`), or `comm_size_max` is neither `inf` nor a
       number of ranks of at least `comm_size_min`. If missing, they are 0 and `inf`.
    2. `comm_rank_distribution` is not in `_DISTRIBUTIONS`. It may be missing.
    """
    first, last = rule_set.get("comm_size_min", 0), rule_set.get("comm_size_max", "inf")
    if not _is_size(first) or not (last == "inf" or (_is_size(last) and first <= last)):
        message = (
            f"{where}: comm_size_min {first!r:.40} and comm_size_max {last!r:.40} are no range"
        )
        cure = "write numbers of ranks in ascending order"
        raise InputError(message, code="communicator-size", cure=cure)
    distribution = rule_set.get("comm_rank_distribution", _DISTRIBUTIONS[0])
    if distribution not in _DISTRIBUTIONS:
        message = f"{where}: comm_rank_distribution {distribution!r:.40} is unknown"
        cure = f"write one of {', '.join(_DISTRIBUTIONS)}"
        raise InputError(message, code="communicator-size", cure=cure)


def _read_rule(
    name: str, rule: dict[str, object], where: str, suffix: str
) -> Iterator[ServedCalls]:
    """Yield the calls that one rule of an Open MPI file serves, both in and out of place.

    They are calls of the collective `name` from `msg_size_min` to `msg_size_max` bytes, both
    included; "inf" as maximum is no limit. If missing, they are 0 and "inf". `alg` is the name or
    number of an algorithm. A missing `seg_size`, or one that is no integer (as booleans), counts as
    0. `suffix` is appended to the name of the algorithm in the calls. Nothing is yielded, and `alg`
    is not compared, for a collective of `_OTHER_COLLECTIVES`. Errors, in this order, with the
    position `where`:

    - `InputError` (`unknown-collective`): Open MPI has no such collective.
    - `KeyError`: `alg` is missing.
    - `InputError` (`not-a-rule`): a size is negative or no integer, or they do not ascend.
    - `InputError` (`unknown-algorithm`): the collective has no such algorithm.
    """
    kind = _KIND_OF_NAME.get(name)
    if kind is None and name not in _OTHER_COLLECTIVES.values():
        message = f"{where}: {name[:40]!r} is no collective of Open MPI"
        cure = f"write one of {', '.join(sorted([*_KIND_OF_NAME, *_OTHER_COLLECTIVES.values()]))}"
        raise InputError(message, code="unknown-collective", cure=cure)
    first, last = rule.get("msg_size_min", 0), rule.get("msg_size_max", "inf")
    algorithm = rule["alg"]
    if not _is_size(first) or not (last == "inf" or (_is_size(last) and first <= last)):
        message = f"{where}: msg_size_min {first!r:.40} and msg_size_max {last!r:.40} are no range"
        cure = "write bytes in ascending order, or inf as msg_size_max"
        raise InputError(message, code="not-a-rule", cure=cure)
    if kind is None:
        return
    names = ["ignore", *(known for _, known in ALGORITHMS[kind].values()), *_OTHER_NAMES[kind]]
    if _is_integer(algorithm):
        if not 0 <= algorithm <= ALGORITHM_COUNTS[kind]:
            raise _unknown_number(kind, algorithm, f"{where}: ")
        algorithm = get_algorithm_name(kind, algorithm)
    elif algorithm not in names:
        message = f"{where}: {kind} has no algorithm {algorithm!r:.40}, so that the rule is ignored"
        cure = f"write one of {', '.join(sorted(names))}"
        raise InputError(message, code="unknown-algorithm", cure=cure)
    segment = rule.get("seg_size", 0)
    by = _describe_algorithm(str(algorithm), segment if _is_integer(segment) else 0)
    max_bytes = last if _is_size(last) else None
    yield ServedCalls(kind, True, True, first, max_bytes, f"{by}{suffix}")


def _unknown_number(
    kind: CollectiveKind, number: int, where: str = "", location: Location | None = None
) -> InputError:
    """Return the error (`unknown-algorithm`) about an algorithm number that no Open MPI has.

    The message is `where`, then the numbers that `kind` has, from 0 on, and `number`. The error is
    not raised. `location` is the line of the number. Raises `KeyError` if Open MPI has no
    algorithms for `kind`.
    """
    message = f"{where}{kind} has the algorithms 0 to {ALGORITHM_COUNTS[kind]}, not {number}"
    cure = "write one of these numbers; 0 is the built-in decision"
    return InputError(message, location=location, cure=cure, code="unknown-algorithm")


def _is_size(value: object) -> TypeGuard[int]:
    """Return whether a value of parsed JSON is a size in bytes: an integer of at least 0."""
    return _is_integer(value) and value >= 0


def _is_integer(value: object) -> TypeGuard[int]:
    """Return whether a value of parsed JSON is an integer; booleans are none."""
    return isinstance(value, int) and not isinstance(value, bool)


def _describe_algorithm(name: str, segment: int) -> str:
    """Describe the algorithm; `segment`: bytes per segment, 0 for unsegmented messages."""
    return f"{name} in segments of {segment} bytes" if segment else name
