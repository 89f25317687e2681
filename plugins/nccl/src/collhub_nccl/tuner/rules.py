"""Rules of tuner files in any format, and faults that show only when the rules are read together.

A tuner takes the first rule that matches a call. NCCL and RCCL skip a matching rule whose algorithm
the communicator does not have and take the next match.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from collhub_machine_profiles.nccl_constants import ALGORITHMS
from collhub_machine_profiles.nccl_costs import ALGORITHMS_OF, WITH_LL

from hub_core.model import CollectiveKind, Diagnostic, Location, Severity, format_bytes
from hub_core.plugin_api import ServedCalls

Range = tuple[int, int]
"""Whole numbers from the first to the last, both included."""

LARGEST = (1 << 64) - 1
EVERY: Range = (0, LARGEST)
MAX_RULES = 2000
"""Largest number of rules of a file; the check compares every pair."""

COLLECTIVES: Mapping[str, CollectiveKind] = {
    "allreduce": CollectiveKind.ALL_REDUCE,
    "broadcast": CollectiveKind.BROADCAST,
    "reduce": CollectiveKind.REDUCE,
    "allgather": CollectiveKind.ALL_GATHER,
    "reducescatter": CollectiveKind.REDUCE_SCATTER,
}
"""Collectives by the keyword of tuner files. No tuner decides calls of other collectives."""
MAX_CHANNELS = 64

# A shorter gap between two windows is a wrong border: sizes are multiples of an element.
_SHORT_GAP_BYTES = 16
_MAX_LISTED = 8


@dataclass(frozen=True, slots=True)
class Dialect:
    """Differences between the tuners that read rules.

    `runtime`: its name in messages. `loses_channels`: whether a call without a matching rule runs
    on one channel instead of the library's own number. `skips_refused`: whether a matching rule
    that the communicator cannot execute is skipped. `default_channels`: the word that leaves the
    number of channels to the library. `counts_per_rank`: whether sizes are bytes per rank instead
    of bytes of the full buffer.
    """

    runtime: str
    default_channels: str
    loses_channels: bool = False
    skips_refused: bool = True
    counts_per_rank: bool = False


@dataclass(frozen=True, slots=True)
class TunerRule:
    """A rule as the tuner interprets it.

    `line`: its line in the file. `sizes`: bytes as the format counts them. `channels`: 0 leaves the
    number to the library. `nodes`, `ranks`: numbers that the communicator must have; `ranks` are
    all ranks, in NCCLX those of a node. `pipeline_operations`, `registration`: further conditions.
    """

    line: int
    kind: CollectiveKind
    sizes: Range
    algorithm: str
    protocol: str
    channels: int = 0
    nodes: Range = EVERY
    ranks: Range = EVERY
    pipeline_operations: Range = EVERY
    registration: Range = EVERY
    chunk_bytes: int = 0

    @property
    def by(self) -> str:
        """Return algorithm, protocol and channels as text, such as `ring ll 16 channels`.

        For 0 channels it is `ring ll NCCL's channels`.
        """
        channels = self.channels or "NCCL's"
        return f"{self.algorithm} {self.protocol} {channels} channels"

    @property
    def is_conditional(self) -> bool:
        """Whether the rule requires a number of pipeline operations or registered buffers."""
        return (self.pipeline_operations, self.registration) != (EVERY, EVERY)

    @property
    def filters(self) -> tuple[Range, Range, Range, Range]:
        """All conditions on a call other than collective and size."""
        return self.nodes, self.ranks, self.pipeline_operations, self.registration

    @property
    def is_always_allowed(self) -> bool:
        """Return whether every communicator has this algorithm with this protocol.

        It is true for rings, and for trees of all-reduce, unless the protocol is LL128. LL128 and
        all other algorithms depend on the machine.
        """
        has_algorithm = self.algorithm == "ring" or (
            self.algorithm == "tree" and self.kind is CollectiveKind.ALL_REDUCE
        )
        return has_algorithm and self.protocol != "ll128"

    def fits(self, nodes: int | None, ranks: int | None) -> bool:
        """Return whether the rule applies to communicators of `nodes` nodes and `ranks` ranks.

        Both numbers must be in the ranges `self.nodes` and `self.ranks`, ends included. None
        means that the number is not known: only the range `EVERY` includes it. Collective, size
        and further conditions are not compared.
        """
        pairs = ((self.nodes, nodes), (self.ranks, ranks))
        return all(
            required == EVERY if actual is None else required[0] <= actual <= required[1]
            for required, actual in pairs
        )


def check_rules(rules: Sequence[TunerRule], dialect: Dialect, file: str) -> Iterator[Diagnostic]:
    """Yield faults of the order, borders and coverage of rules; the first matching rule decides.

    A window is the range of sizes of a rule. Conditions are its numbers of nodes and ranks and
    optional columns. `file` is the place of the findings. Their kinds are, in this order:

    1. `never-reached` (warning): earlier rules decide every call of a rule.
    2. `overlap` (warning): a rule and an earlier one, of one collective and with equal conditions,
       have common sizes, and neither window contains the other.
    3. Only if calls without a rule keep the library's number of channels (not
       `dialect.loses_channels`): `short-gap` (warning) for 1 to 15 bytes, or `gap` (note) for more
       bytes, between the windows of rules with one collective and equal conditions. Sizes that a
       rule with wider conditions covers are no gap.
    4. Otherwise: `one-channel` for sizes without a rule. It is an error for communicators that
       rules name, and for all if rules name none; a warning for the others. It is also a warning
       for sizes whose only rules name an algorithm or protocol that some machines lack.
       `not-searched` (note) comes before it if rules name more than 8 communicators, of which the
       first 8 are searched.

    If the dialect skips refused rules, an earlier rule counts in 1 and 2 only if all communicators
    have its algorithm and protocol, or if the later rule names the same ones.
    """
    yield from _find_unreached_rules(rules, dialect, file)
    yield from _find_overlaps(rules, dialect, file)
    if dialect.loses_channels:
        yield from _find_single_channels(rules, file)
    else:
        yield from _find_gaps(rules, dialect, file)


def find_served_calls(
    rules: Sequence[TunerRule], nodes: int | None, ranks: int | None, bytes_per_unit: int = 1
) -> Iterator[ServedCalls]:
    """Yield which calls of a communicator each rule decides, because no earlier rule does.

    A result is a range of sizes of one collective, in place and out of place. Results are in the
    order of the rules; a rule with several such ranges yields them ascending, a rule without any
    yields none. `by` of a result is the text of the choice (`TunerRule.by`).

    Only rules that fit `nodes` and `ranks` count (`TunerRule.fits`; None: not known). Rules with
    further conditions (pipelined operations, registered buffers) are ignored, so they also take no
    sizes from later ones.

    `bytes_per_unit` is the number of bytes of the full buffer per byte in the rules. With 8, the
    rule sizes 2 to 3 give 16 to 31 bytes. An end of `LARGEST` gives no upper limit (None).
    """
    free = {kind: [EVERY] for kind in COLLECTIVES.values()}
    for rule in rules:
        if rule.is_conditional or not rule.fits(nodes, ranks):
            continue
        for first, last in _take(free[rule.kind], rule.sizes):
            yield ServedCalls(
                rule.kind,
                in_place=True,
                out_of_place=True,
                min_bytes=first * bytes_per_unit,
                max_bytes=None if last == LARGEST else (last + 1) * bytes_per_unit - 1,
                by=rule.by,
            )


def find_stated_communicators(
    rules: Iterable[TunerRule],
) -> list[tuple[int | None, int | None]]:
    """List the communicators that rules name, as (nodes, ranks); None means any number.

    Each is listed once. Pairs of two numbers come first; otherwise the order is that of the rules.
    Rules for every communicator add no pair. An interval counts as its first number, or as its last
    if it begins at 0.
    """
    pairs = dict.fromkeys(
        (_represent(rule.nodes), _represent(rule.ranks))
        for rule in rules
        if (rule.nodes, rule.ranks) != (EVERY, EVERY)
    )
    return sorted(pairs, key=lambda pair: None in pair)


def find_uncovered(rules: Iterable[TunerRule], sizes: Sequence[Range]) -> list[Range]:
    """Return the parts of ascending `sizes` that no rule contains, ascending.

    All of them without rules; other filters of the rules are not considered.
    """
    return _find_free((rule.sizes for rule in rules), sizes)


def subtract(ranges: Sequence[Range], removed: Range) -> list[Range]:
    """Return the parts of ascending, disjoint ranges that are outside of `removed`, ascending.

    A range within `removed` has no such part. A range around it has two. Ends are included.
    """
    before, after = (0, removed[0] - 1), (removed[1] + 1, LARGEST)
    return [
        part for row in ranges for part in (*_intersect([row], before), *_intersect([row], after))
    ]


def explain_refusal(kind: CollectiveKind, algorithm: str, protocol: str) -> str:
    """Return why no communicator executes a choice, such as `reduce has ring, not tree`; else "".

    A collective has only some algorithms, and some algorithms have only the protocol
    simple. The first reason is returned. Refusals that depend on the machine are not
    considered. `algorithm` and `protocol` must be known words (not checked). Raises
    `KeyError` for a collective that no tuner decides, such as all-to-all.
    """
    allowed = ALGORITHMS_OF[str(kind)]
    if algorithm not in allowed:
        names = ", ".join(name for name in ALGORITHMS if name in allowed)
        return f"{kind.replace('-', '')} has {names}, not {algorithm}"
    if protocol != "simple" and algorithm not in WITH_LL:
        return f"{algorithm} has the protocol simple only"
    return ""


def explain_machine_refusal(rule: TunerRule) -> str:
    """Return why no communicator of a rule's numbers of nodes and ranks executes it; else "".

    Two cases are found: an NVLS tree in a rule for exactly one node, and a parallel
    aggregated tree (`pat`), which needs one rank on each node, in a rule for a single
    number of nodes and another single number of ranks. Rules for intervals or for any
    number are not refused. Other properties of the machine are not considered.
    """
    if rule.algorithm == "nvls_tree" and rule.nodes == (1, 1):
        return "nvls_tree needs several nodes; write nvls for one node"
    is_single = rule.nodes[0] == rule.nodes[1] and rule.ranks[0] == rule.ranks[1]
    if rule.algorithm == "pat" and is_single and rule.nodes != rule.ranks:
        return "pat needs one rank on each node; write ring"
    return ""


def _represent(numbers: Range) -> int | None:
    return None if numbers == EVERY else numbers[0] or numbers[1]


def _find_unreached_rules(
    rules: Sequence[TunerRule], dialect: Dialect, file: str
) -> Iterator[Diagnostic]:
    """Yield a warning `never-reached` for each rule whose calls all go to earlier rules, in order.

    An earlier rule takes calls of a later one if all of this holds:

    - Both have the same collective, and their ranges of sizes overlap.
    - The ranges of nodes, ranks, pipeline operations and registration of the earlier rule contain
      those of the later one.
    - The runtime does not skip refused rules (`dialect`), or the earlier rule is always allowed
      (`is_always_allowed`), or both have the same algorithm and protocol.

    A rule is never reached if these earlier rules together cover its sizes. Rules that are never
    reached also count as earlier rules. The warning is located at the line of the rule. It names
    the lines of earlier rules, in order, that take sizes which no line before takes, at most 8
    (`_MAX_LISTED`).
    """
    earlier_of: dict[CollectiveKind, list[TunerRule]] = {}
    for rule in rules:
        first, last = rule.sizes
        earlier_rules = earlier_of.setdefault(rule.kind, [])
        # Most rules of a long file have other sizes, so these are compared first.
        deciding = [
            earlier
            for earlier in earlier_rules
            if earlier.sizes[1] >= first
            and earlier.sizes[0] <= last
            and _contains_filters(earlier, rule)
            and _decides_before(earlier, rule, dialect)
        ]
        earlier_rules.append(rule)
        if not deciding or find_uncovered(deciding, [rule.sizes]):
            continue
        remaining, lines = [rule.sizes], []
        for earlier in deciding:
            rest = subtract(remaining, earlier.sizes)
            if rest != remaining:
                lines.append(str(earlier.line))
                remaining = rest
            if not remaining:
                break
        named = ", ".join(lines[:_MAX_LISTED])
        noun, verb = ("line", "decides") if len(lines) == 1 else ("lines", "decide")
        message = f"the line is never reached: {noun} {named} before it {verb} all its calls"
        cure = f"remove it, or move it before {noun} {named}"
        yield Diagnostic(
            "never-reached", message, Severity.WARNING, Location(file, rule.line), cure
        )


def _find_overlaps(rules: Sequence[TunerRule], dialect: Dialect, file: str) -> Iterator[Diagnostic]:
    """Yield a warning `overlap` for each rule that shares some sizes with an earlier rule.

    Two rules are compared if they have the same collective and equal conditions
    (`filters`). A warning is yielded for the later rule if both hold:

    - Some sizes are common, but neither window contains all sizes of the other. Both limits
      of a window belong to it.
    - The earlier rule decides the common sizes (`_decides_before`).

    A rule has at most one warning, for the first such earlier rule. The warnings are in the
    order of the later rules. The location is the line of the later rule. The message names
    the earlier line and the common sizes; the cure is a limit for the later rule that
    avoids them.
    """
    earlier_of: dict[object, list[TunerRule]] = {}
    for rule in rules:
        earlier_rules = earlier_of.setdefault((rule.kind, rule.filters), [])
        for earlier in earlier_rules:
            if earlier.sizes[1] < rule.sizes[0] or earlier.sizes[0] > rule.sizes[1]:
                continue
            first, last = (
                max(rule.sizes[0], earlier.sizes[0]),
                min(rule.sizes[1], earlier.sizes[1]),
            )
            contains = (first, last) in (rule.sizes, earlier.sizes)
            if contains or not _decides_before(earlier, rule, dialect):
                continue
            sizes = f"{first}" if first == last else f"{first} to {last}"
            message = f"overlap: line {earlier.line} matches sizes {sizes} too, and decides them"
            is_above = rule.sizes[0] > earlier.sizes[0]
            border = f"begin it at {last + 1}" if is_above else f"end it at {first - 1}"
            cure = f"{border}: both ends of a window belong to it"
            yield Diagnostic("overlap", message, Severity.WARNING, Location(file, rule.line), cure)
            break
        earlier_rules.append(rule)


def _find_gaps(rules: Sequence[TunerRule], dialect: Dialect, file: str) -> Iterator[Diagnostic]:
    """Yield a finding for each gap between the sizes of rules with equal collective and conditions.

    Such rules form a group. Only groups of two or more rules are checked, from the smallest to the
    largest size of the group. A gap is a maximal range of sizes in bytes that no rule covers. A
    rule covers its sizes if it has the same collective and its conditions contain those of the
    group.

    A gap of fewer than `_SHORT_GAP_BYTES` (16) bytes is the warning `short-gap`, a longer one the
    note `gap`. Its location is the line of the group's rule with the next larger sizes.

    Findings are in the order of the first rules of the groups, then by ascending size.
    """
    groups: dict[tuple[CollectiveKind, object], list[TunerRule]] = {}
    for rule in rules:
        groups.setdefault((rule.kind, rule.filters), []).append(rule)
    for (kind, _), group in groups.items():
        if len(group) == 1:
            continue
        covering = [
            rule for rule in rules if rule.kind is kind and _contains_filters(rule, group[0])
        ]
        ends = min(rule.sizes[0] for rule in group), max(rule.sizes[1] for rule in group)
        for first, last in find_uncovered(covering, [ends]):
            is_short = last - first < _SHORT_GAP_BYTES - 1
            after = min(
                (rule for rule in group if rule.sizes[0] > last), key=lambda rule: rule.sizes[0]
            )
            message = f"gap: no line matches {kind} of {first} to {last} bytes"
            cure = f"begin this line at {first}" if is_short else f"{dialect.runtime} chooses there"
            yield Diagnostic(
                "short-gap" if is_short else "gap",
                message,
                Severity.WARNING if is_short else Severity.NOTE,
                Location(file, after.line),
                cure,
            )


_CURE = "write lines for all sizes with -1,-1 for nNodes,nRanks, as collhub tune does"


def _find_single_channels(rules: Sequence[TunerRule], file: str) -> Iterator[Diagnostic]:
    """Yield `one-channel` for sizes without a rule, where the tuner leaves a single channel.

    A communicator is a pair (nodes, ranks), each a number or any. Searched are the first 8 of
    `find_stated_communicators`, then (any, any), which stands for all further communicators. If
    there are more than 8, a note `not-searched` comes first. A rule counts if it fits the
    communicator (`TunerRule.fits`) and has no further conditions (pipelined operations,
    registered buffers). Each communicator has at most two findings, which list the sizes of all
    collectives from 0 without an upper limit:

    1. Sizes without a rule. It is an error, but for (any, any) a warning if rules name a
       communicator.
    2. A warning for sizes that have rules, none of which is always allowed
       (`TunerRule.is_always_allowed`), i.e. works on every machine.
    """
    stated = find_stated_communicators(rules)
    if len(stated) > _MAX_LISTED:
        message = f"sizes without a line were searched in the first {_MAX_LISTED} of {len(stated)}"
        yield Diagnostic("not-searched", f"{message} communicators", Severity.NOTE, Location(file))
    every = (None, None)
    for nodes, ranks in dict.fromkeys((*(stated[:_MAX_LISTED] or [every]), every)):
        lost, uncertain = [], []
        for kind in COLLECTIVES.values():
            matching = [
                rule
                for rule in rules
                if rule.kind is kind and not rule.is_conditional and rule.fits(nodes, ranks)
            ]
            free = find_uncovered(matching, [EVERY])
            lost += [f"{kind} {_format_sizes(sizes)}" for sizes in free]
            certain = [rule for rule in matching if rule.is_always_allowed]
            rest = _find_free((*(rule.sizes for rule in certain), *free), [EVERY])
            uncertain += [f"{kind} {_format_sizes(sizes)}" for sizes in rest]
        is_stated = (nodes, ranks) != every
        where = ", in communicators of other numbers of nodes and ranks" if stated else ""
        if is_stated:
            parts = [] if nodes is None else [f"{nodes} {'node' if nodes == 1 else 'nodes'}"]
            parts += [] if ranks is None else [f"{ranks} ranks"]
            where = f", in communicators of {' and '.join(parts)}"
        if lost:
            message = f"one channel: no line matches {', '.join(lost)}{where}"
            severity = Severity.ERROR if is_stated or not stated else Severity.WARNING
            yield Diagnostic("one-channel", message, severity, Location(file), _CURE)
        if uncertain:
            message = (
                "one channel on machines without the named algorithm or protocol: no line with ring"
                f" and ll or simple matches {', '.join(uncertain)}{where}"
            )
            yield Diagnostic("one-channel", message, Severity.WARNING, Location(file), _CURE)


def _contains_filters(outer: TunerRule, inner: TunerRule) -> bool:
    """Whether every communicator and call of `inner` fulfils the conditions of `outer`."""
    # Written out, because long files need millions of comparisons.
    return (
        outer.nodes[0] <= inner.nodes[0]
        and inner.nodes[1] <= outer.nodes[1]
        and outer.ranks[0] <= inner.ranks[0]
        and inner.ranks[1] <= outer.ranks[1]
        and _contains_range(outer.pipeline_operations, inner.pipeline_operations)
        and _contains_range(outer.registration, inner.registration)
    )


def _contains_range(outer: Range, inner: Range) -> bool:
    return outer[0] <= inner[0] and inner[1] <= outer[1]


def _decides_before(earlier: TunerRule, later: TunerRule, dialect: Dialect) -> bool:
    """Return whether `earlier` decides all calls that match both, so that `later` gets none.

    It does if one of this holds: the runtime does not skip refused rules; every
    communicator has the earlier choice (`is_always_allowed`); or both rules have the same
    algorithm and protocol, so that both are refused together. Channels, sizes and other
    conditions are not compared.
    """
    is_same = (earlier.algorithm, earlier.protocol) == (later.algorithm, later.protocol)
    return not dialect.skips_refused or earlier.is_always_allowed or is_same


def _find_free(covered: Iterable[Range], sizes: Sequence[Range]) -> list[Range]:
    """Return the parts of `sizes` that are outside of all `covered` ranges, ascending.

    Ranges are (first, last), both included. Those in `sizes` are ascending. Those in `covered` may
    overlap and have any order.
    """
    free: list[Range] = []
    ascending = sorted(covered)
    for first, last in sizes:
        start = first
        for low, high in ascending:
            if low > last:
                break
            if low > start:
                free.append((start, low - 1))
            start = max(start, high + 1)
        if start <= last:
            free.append((start, last))
    return free


def _take(free: list[Range], sizes: Range) -> list[Range]:
    """Remove `sizes` from `free`, in place; return the parts of `free` that were removed.

    `free` has ascending, disjoint ranges; so has the result, which is [] if none is in `sizes`. All
    ranges include both ends.
    """
    begin = bisect_left(free, sizes[0], key=lambda row: row[1])
    end = bisect_right(free, sizes[1], key=lambda row: row[0])
    affected = free[begin:end]
    free[begin:end] = subtract(affected, sizes)
    return _intersect(affected, sizes)


def _intersect(ranges: Sequence[Range], sizes: Range) -> list[Range]:
    """Return the parts of ascending ranges that are within `sizes`, in their order.

    All ranges include both ends; a range outside of `sizes` gives none.
    """
    cut = [(max(first, sizes[0]), min(last, sizes[1])) for first, last in ranges]
    return [(first, last) for first, last in cut if first <= last]


def _format_sizes(sizes: Range) -> str:
    first, last = sizes
    if last == LARGEST:
        return f"from {format_bytes(first)}" if first else "of all sizes"
    return f"{format_bytes(first)} to {format_bytes(last)}"
