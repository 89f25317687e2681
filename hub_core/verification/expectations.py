"""Parse the expected result of a custom collective from a short text."""

from __future__ import annotations

import re

import numpy as np

from hub_core.model import STANDARD_KINDS, Collective, Contributions, InputError, UsageError

_NAMED = re.compile(r"(?P<kind>[a-z]+(?:[-_ ]?[a-z]+)*?)(?:\s+root\s+(?P<root>\d{1,9}))?")
_TERM = re.compile(r"(?P<buffer>[io])\[(?P<rank>r|\d{1,9})(?P<shift>[+-]\d{1,9})?\]")
_KINDS = {kind.value.replace("-", ""): kind for kind in STANDARD_KINDS}
_CURE = 'write "broadcast root 0", "all-gather", ... or "o[r]=i[r+1]", "o[1]=o[2]=i[0]"'


def parse_expectation(text: str, collective: Collective) -> Contributions:
    """Return the expected contents of OUTPUT buffers described by a text.

    A name (`broadcast root 0`, `all-gather`) means that collective over all ranks and the full
    buffer (`unit_count` units) of `collective`. An assignment (`o[r]=i[r+1]`, `o[1]=o[2]=i[0]`;
    several are separated by commas or semicolons) copies INPUT buffers of `unit_count` units to
    OUTPUT buffers. `r` means every rank; pairs with a rank outside 0..n-1 are dropped. Raises
    `UsageError` for any other text.
    """
    words = text.strip().lower()
    if "=" in words:
        return _parse_assignments(words, collective)
    return _parse_name(text, words, collective)


def _parse_name(text: str, words: str, collective: Collective) -> Contributions:
    """Return the postcondition of the collective that a text such as `broadcast root 0` names."""
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
    """Return the contents that assignments of full buffers, separated by `,` or `;`, require."""
    pairs: list[tuple[int, int]] = []
    for assignment in filter(None, re.split(r"[;,]", text)):
        pairs += _parse_pairs(assignment, collective.num_ranks)
    units = collective.unit_count
    offset = np.tile(np.arange(units, dtype=np.int64), len(pairs))
    pairs_array = np.asarray(pairs, np.int64).reshape(-1, 2)
    destination, source = np.repeat(pairs_array, units, axis=0).T
    return Contributions(destination, offset, source, offset)


def _parse_pairs(assignment: str, num_ranks: int) -> list[tuple[int, int]]:
    """Return the (destination rank, source rank) pairs of one assignment; ranks are 0..n-1."""
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
    """Match a term such as `o[r+1]`, ignoring blanks; None if it differs or has another buffer."""
    term = _TERM.fullmatch(re.sub(r"\s", "", text))
    return term if term is not None and term["buffer"] == buffer else None


def _to_rank(term: re.Match[str], r: int) -> int:
    """Return the rank that a term denotes for rank `r`; it may be outside 0..n-1."""
    return (r if term["rank"] == "r" else int(term["rank"])) + int(term["shift"] or 0)
