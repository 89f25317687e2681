"""Read what a custom collective is meant to do from a short text."""

from __future__ import annotations

import re

import numpy as np

from hub_core.model.collectives import ROOTED, Collective, CollectiveKind, Contributions
from hub_core.model.diagnostics import InputError, UsageError

_NAMED = re.compile(r"(?P<kind>[a-z]+(?:[-_ ]?[a-z]+)*?)(?:\s+root\s+(?P<root>\d{1,9}))?")
_TERM = re.compile(r"(?P<buffer>[io])\[(?P<rank>r|\d{1,9})(?P<shift>[+-]\d{1,9})?\]")
_KINDS = {
    kind.value.replace("-", ""): kind
    for kind in CollectiveKind
    if kind is not CollectiveKind.CUSTOM
}
_CURE = 'write "broadcast root 0", "all-gather", ... or "o[r]=i[r+1]", "o[1]=o[2]=i[0]"'


def parse_expectation(text: str, collective: Collective) -> Contributions:
    """Return what must lie where after, from the name of a collective or from an assignment of whole buffers.

    A name (`broadcast root 0`, `all-gather`) means that collective over the ranks and the full buffer (`unit_count`
    units) of `collective`. An assignment (`o[r]=i[r+1]`, `o[1]=o[2]=i[0]`; several are separated by commas or
    semicolons) copies INPUT buffers of `unit_count` units to OUTPUT buffers; `r` stands for every rank, and ranks
    that fall outside 0..n-1 have no requirement. Raises `UsageError` for any other text.
    """
    words = text.strip().lower()
    if "=" in words:
        return _assignments(words, collective)
    match = _NAMED.fullmatch(words)
    kind = _KINDS.get(re.sub(r"[-_ ]", "", match["kind"])) if match else None
    if match is None or kind is None:
        raise UsageError(
            f"expectation {text!r} is neither a collective nor an assignment", cure=_CURE
        )
    root = int(match["root"]) if match["root"] else None
    if (root is None) == (kind in ROOTED):
        raise UsageError(
            f"expectation {text!r}: {kind} {'needs' if root is None else 'has no'} root", cure=_CURE
        )
    try:
        meant = Collective(kind, collective.num_ranks, collective.unit_count, root).postcondition()
    except InputError as error:
        raise UsageError(f"expectation {text!r}: {error}") from error
    assert meant is not None
    return meant


def _assignments(text: str, collective: Collective) -> Contributions:
    destinations: list[int] = []
    sources: list[int] = []
    for assignment in filter(None, re.split(r"[;,]", text)):
        for destination, source in _pairs(assignment, collective.num_ranks):
            destinations.append(destination)
            sources.append(source)
    units = collective.unit_count
    offset = np.tile(np.arange(units, dtype=np.int64), len(destinations))
    rank = np.repeat(np.asarray(destinations, np.int64), units)
    return Contributions(rank, offset, np.repeat(np.asarray(sources, np.int64), units), offset)


def _pairs(assignment: str, num_ranks: int) -> list[tuple[int, int]]:
    """(destination rank, source rank) of one assignment."""
    terms = [_TERM.fullmatch(re.sub(r"\s", "", part)) for part in assignment.split("=")]
    *targets, source = terms
    if (
        source is None
        or source["buffer"] != "i"
        or not targets
        or any(t is None or t["buffer"] != "o" for t in targets)
    ):
        raise UsageError(
            f"{assignment.strip()!r} is not an assignment of inputs to outputs", cure=_CURE
        )
    pairs = [
        (_rank(target, r), _rank(source, r))
        for target in targets
        if target is not None
        for r in (range(num_ranks) if "r" in (target["rank"], source["rank"]) else range(1))
    ]
    return [(to, origin) for to, origin in pairs if 0 <= to < num_ranks and 0 <= origin < num_ranks]


def _rank(term: re.Match[str], r: int) -> int:
    return (r if term["rank"] == "r" else int(term["rank"])) + int(term["shift"] or 0)
