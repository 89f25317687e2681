"""Input and report of a verification, and the expected result of a custom collective as a text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hub_core.columns import BoolArray
from hub_core.model import (
    STANDARD_KINDS,
    Algorithm,
    Collective,
    Contributions,
    Findings,
    InputError,
    Messages,
    UsageError,
    match_messages,
)
from hub_core.model.diagnostics import Diagnostic
from hub_core.verification.regions import check_regions
from hub_core.verification.step_order import HappensBefore, OrderGraph, happens_before

_NAMED = re.compile(r"(?P<kind>[a-z]+(?:[-_ ]?[a-z]+)*?)(?:\s+root\s+(?P<root>\d{1,9}))?")

_TERM = re.compile(r"(?P<buffer>[io])\[(?P<rank>r|\d{1,9})(?P<shift>[+-]\d{1,9})?\]")

_KINDS = {kind.value.replace("-", ""): kind for kind in STANDARD_KINDS}

_CURE = 'write "broadcast root 0", "all-gather", ... or "o[r]=i[r+1]", "o[1]=o[2]=i[0]"'


class VerificationInput:
    """An algorithm, its messages, and the order of its steps.

    Shared by both modes of calling and by verifications against several expectations; later work on
    the algorithm can use them too. Errors in messages and regions become findings.
    """

    def __init__(self, algorithm: Algorithm) -> None:
        """Match the messages and check the regions; defects become findings, not errors.

        The regions of a timing-only algorithm are not checked; `is_valid` is then True for every
        row. `algorithm` is stored and not modified.
        """
        self.algorithm = algorithm
        self._findings = Findings(algorithm.provenance.source_name or None)
        self.messages: Messages = match_messages(algorithm.steps, self._findings)
        self.has_contents = algorithm.has_contents
        # bool[rows]: the regions are within their buffers; all True for timing-only algorithms.
        self.is_valid: BoolArray = np.ones(len(algorithm.steps), np.bool_)
        if self.has_contents:
            self.is_valid = check_regions(algorithm, self._findings)

    @property
    def findings(self) -> Findings:
        """A new copy of the findings on messages and regions, to which the caller adds its own."""
        return self._findings.copy()

    @cached_property
    def relation(self) -> HappensBefore:
        """The happens-before relation: the order of steps in every run."""
        return happens_before(self.algorithm.steps)

    @cached_property
    def graph(self) -> OrderGraph:
        """The happens-before relation as a graph for path searches."""
        return OrderGraph(self.algorithm.steps, self.relation)


@dataclass(frozen=True, slots=True)
class ModeReport:
    """The result for one mode of calling: in place or out of place.

    `is_claimed`: the algorithm declares that it supports the mode. `verdict`: "ok", "wrong", "race"
    (correct in one sequential order, but conflicting accesses are not ordered) or "wrong+race".
    Errors common to all modes (matching, bounds, deadlock) make every mode "wrong" but are listed
    in `VerifyReport.diagnostics` only. `diagnostics`: races and wrong contents of this mode.
    """

    is_claimed: bool
    verdict: str
    diagnostics: tuple[Diagnostic, ...] = ()


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The result of `verify`.

    `modes`: reports by mode, "in_place" and "out_of_place"; unclaimed modes may be missing.
    `diagnostics`: findings common to all modes, then those of the claimed modes, causes before
    consequences. `method`: how contents were compared: "exact" (multisets of contributions),
    "fingerprint" (64-bit sums of random numbers) or "none". `error_probability`: upper bound on the
    probability that a wrong output was accepted; 0.0 unless fingerprints were used.
    """

    modes: Mapping[str, ModeReport]
    diagnostics: tuple[Diagnostic, ...]
    method: str
    error_probability: float = 0.0

    def __repr__(self) -> str:
        claimed = {name: mode.verdict for name, mode in self.modes.items() if mode.is_claimed}
        modes = ", ".join(f"{name} {verdict}" for name, verdict in claimed.items())
        return f"<VerifyReport: {modes}, {len(self.diagnostics)} findings>"

    @property
    def ok(self) -> bool:
        """Return whether the verdict of every claimed mode is "ok"; True if no mode is claimed.

        A mode is a call in place or out of place; unclaimed ones do not count.
        """
        # Unclaimed modes may be wrong; `modes` reports them for information.
        claimed = [mode for mode in self.modes.values() if mode.is_claimed]
        return all(mode.verdict == "ok" for mode in claimed)


def parse_expectation(text: str, collective: Collective) -> Contributions:
    """Return the expected contents of OUTPUT that a text describes; case does not matter.

    A text without `=` is the name of a standard collective, such as `all-gather` or
    `broadcast root 0`, over all ranks and the units of `collective`. Other texts are
    assignments, separated by `,` or `;`. An assignment such as `o[r]=i[r+1]` or
    `o[1]=o[2]=i[0]` copies INPUT buffers of `unit_count` units to OUTPUT buffers; `r`
    stands for every rank. Ranks do not wrap around: pairs with a rank outside 0..n-1 are
    dropped. A buffer that is assigned several times must contain the sum of all its
    sources. Raise `UsageError` for any other text, and for a collective that is not
    possible.
    """
    words = text.strip().lower()
    if "=" in words:
        return _parse_assignments(words, collective)
    return _parse_name(text, words, collective)


def _parse_name(text: str, words: str, collective: Collective) -> Contributions:
    """Return the postcondition of the collective that `words` name, such as `broadcast root 0`.

    `words`: lower case, without white space at the ends. They are the name of a kind in
    `STANDARD_KINDS`, for a rooted kind followed by `root` and a rank of at most 9 digits. One
    hyphen, blank or underscore between two letters of the name is ignored: `allgather`, `all
    gather`. The numbers of ranks and units are those of `collective`; its kind and root do not
    matter. `text`: the full expectation, for messages.

    Raises `UsageError` for other words, then for a missing or superfluous root, then for a
    collective that these numbers do not allow, for example a root that is no rank.
    """
    # Hyphens, blanks and underscores are equivalent: allgather, all-gather, all_gather.
    match = _NAMED.fullmatch(words)
    kind = _KINDS.get(re.sub(r"[-_ ]", "", match["kind"])) if match else None
    if match is None or kind is None:
        message = f"expectation {text!r} is neither a collective nor an assignment"
        raise UsageError(message, cure=_CURE)
    root = int(match["root"]) if match["root"] else None
    if (root is None) == kind.traits.is_rooted:
        wrong = "needs" if root is None else "has no"
        raise UsageError(f"expectation {text!r}: {kind} {wrong} root", cure=_CURE)
    try:
        meant = Collective(kind, collective.num_ranks, collective.unit_count, root).postcondition()
    except InputError as error:
        raise UsageError(f"expectation {text!r}: {error}") from error
    assert meant is not None
    return meant


def _parse_assignments(text: str, collective: Collective) -> Contributions:
    """Return the contents of OUTPUT that assignments of full buffers require.

    `text`: assignments such as `o[r]=i[r+1]`, separated by `,` or `;`; empty ones are
    ignored. For every pair of a destination and a source rank (`_parse_pairs`), the result
    has one row for each of the `unit_count` units: unit k of the destination contains unit
    k of the source. Rows are in the order of the pairs, then by unit. A destination that is
    assigned more than once must contain the sum of its sources. Raise `UsageError` for an
    invalid assignment.
    """
    pairs: list[tuple[int, int]] = []
    for assignment in filter(None, re.split(r"[;,]", text)):
        pairs += _parse_pairs(assignment, collective.num_ranks)
    units = collective.unit_count
    offset = np.tile(np.arange(units, dtype=np.int64), len(pairs))
    pairs_array = np.asarray(pairs, np.int64).reshape(-1, 2)
    destination, source = np.repeat(pairs_array, units, axis=0).T
    return Contributions(destination, offset, source, offset)


def _parse_pairs(assignment: str, num_ranks: int) -> list[tuple[int, int]]:
    """Return the (destination rank, source rank) pairs of an assignment such as `o[r]=i[r+1]`.

    The last term of the text must be a source `i[...]`, and each term before it a destination
    `o[...]`. In the brackets is `r` or a number of at most 9 digits, optionally plus or minus
    such a number. White space is ignored. The pairs of the first destination are followed by
    those of the second, and so on:

    - If the destination or the source has `r`, there is one pair for every r = 0..n-1,
      ascending. `o[0]=i[r]` gives (0, 0), (0, 1), ...
    - Otherwise there is one pair: `o[0]=o[1]=i[2]` gives (0, 2), (1, 2).

    Pairs with a rank outside 0..n-1 are dropped; ranks do not wrap around. Raises `UsageError`
    for any other text, also without a destination.
    """
    *left, right = assignment.split("=")
    source, targets = _match_term(right, "i"), [_match_term(part, "o") for part in left]
    known = [target for target in targets if target is not None]
    if source is None or not targets or len(known) < len(targets):
        message = f"{assignment.strip()!r} is not an assignment of inputs to outputs"
        raise UsageError(message, cure=_CURE)
    pairs: list[tuple[int, int]] = []
    for target in known:
        # Without r the assignment applies once instead of once per rank.
        is_for_all = "r" in (target["rank"], source["rank"])
        ranks = range(num_ranks if is_for_all else 1)
        pairs += [(_to_rank(target, r), _to_rank(source, r)) for r in ranks]
    return [pair for pair in pairs if min(pair) >= 0 and max(pair) < num_ranks]


def _match_term(text: str, buffer: str) -> re.Match[str] | None:
    """Match a term such as `o[r+1]` whose buffer is `buffer` (`i` or `o`).

    The match has the groups `buffer`, `rank` (`r` or a number) and `shift` (`+1` or None).
    White space is ignored, upper case is not accepted. Return None for other texts and for
    a term of the other buffer.
    """
    term = _TERM.fullmatch(re.sub(r"\s", "", text))
    return term if term is not None and term["buffer"] == buffer else None


def _to_rank(term: re.Match[str], r: int) -> int:
    """Return the rank that a term denotes for rank `r`; it may be outside 0..n-1."""
    return (r if term["rank"] == "r" else int(term["rank"])) + int(term["shift"] or 0)
