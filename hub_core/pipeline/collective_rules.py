"""Rules that assign an algorithm to a collective: `KIND[@SIZE][/GROUP]=ALGORITHM`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches

from hub_core.model import STANDARD_KINDS, CollectiveKind, UsageError, parse_size, standard_kind

EVERY_KIND = "*"
NATIVE = "native"
_RULE = re.compile(
    r"(?P<kind>[^@/=]+)(@(?P<size>(>=|<=|>|<)?[^/=<>]+))?(/(?P<group>[^=]+))?=(?P<algorithm>.+)"
)
_NO_LIMIT = 1 << 63
_EXAMPLE = "write for example all-reduce=ring, 'all-gather@>1MiB=direct', all-to-all/tp=FILE"
# Range of bytes by comparison: (first, last + 1).
_RANGES: Mapping[str, Callable[[int], tuple[int, int]]] = {
    ">": lambda size: (size + 1, _NO_LIMIT),
    ">=": lambda size: (size, _NO_LIMIT),
    "<": lambda size: (0, size),
    "<=": lambda size: (0, size + 1),
    "": lambda size: (size, size + 1),
}


@dataclass(frozen=True, slots=True)
class CollectiveRule:
    """A condition on collectives, and the algorithm for those that meet it.

    `kind`: None for all kinds. `least`, `behind`: range of bytes of the collective in the workload,
    `behind` excluded. `group`: name of the process group, None for all. `algorithm`: a synthesizer,
    a file or `native`. `options`: options after its colon.
    """

    text: str
    kind: CollectiveKind | None
    least: int
    behind: int
    group: str | None
    algorithm: str
    options: Mapping[str, str] = field(default_factory=dict)

    def matches(self, kind: CollectiveKind, size: int, group: str) -> bool:
        """Whether a collective of this kind, size in bytes and group meets the condition."""
        is_kind = self.kind in (None, kind)
        is_group = self.group in (None, group)
        return is_kind and is_group and self.least <= size < self.behind


DEFAULT_RULE = CollectiveRule(f"{EVERY_KIND}={NATIVE}", None, 0, _NO_LIMIT, None, NATIVE)
"""The rule for collectives that no other rule matches."""


def parse_rule(text: str, synthesizers: Sequence[str]) -> CollectiveRule:
    """Parse a rule. Raises `UsageError` for an invalid text."""
    match = _RULE.fullmatch(text)
    if match is None:
        raise UsageError(f"{text[:80]!r} is no rule KIND[@SIZE][/GROUP]=ALGORITHM", cure=_EXAMPLE)
    first, end = _parse_range(match["size"], text)
    name, options = _parse_algorithm(match["algorithm"], synthesizers)
    return CollectiveRule(
        text, _parse_kind(match["kind"]), first, end, match["group"], name, options
    )


def choose_rule(
    rules: Sequence[CollectiveRule], kind: CollectiveKind, size: int, group: str
) -> int:
    """Return the index of the last rule that matches; -1 if none does."""
    for number in range(len(rules) - 1, -1, -1):
        if rules[number].matches(kind, size, group):
            return number
    return -1


def _parse_kind(text: str) -> CollectiveKind | None:
    """Parse the kind of a rule; None for `*`. Raises `UsageError` with the closest kind."""
    if text == EVERY_KIND:
        return None
    kind = standard_kind(text)
    if kind is None:
        known = [str(kind) for kind in STANDARD_KINDS]
        similar = get_close_matches(text, known, 1)
        cure = f"did you mean {similar[0]!r}?" if similar else f"use one of {', '.join(known)} or *"
        raise UsageError(f"{text[:60]!r} is no collective", cure=cure, code="unknown-collective")
    return kind


def _parse_range(text: str | None, rule: str) -> tuple[int, int]:
    """Parse a condition on the size: (first, last + 1) in bytes. Raises `UsageError`."""
    if text is None:
        return 0, _NO_LIMIT
    low, dots, high = text.partition("..")
    if dots:
        first, last = parse_size(low), parse_size(high)
        if first > last:
            raise UsageError(f"{rule[:80]!r} matches no size", cure="write the smaller size first")
        return first, last + 1
    size = text.lstrip("<>=")
    comparison = text[: len(text) - len(size)]
    # `=` ends the condition, so that only `<=` and `>=` contain it.
    return _RANGES[comparison](parse_size(size))


def _parse_algorithm(text: str, synthesizers: Sequence[str]) -> tuple[str, dict[str, str]]:
    """Parse an algorithm: (name or path, options). The name of a file may contain a colon."""
    name, colon, option_text = text.partition(":")
    if name == NATIVE:
        return name, {"algorithm": option_text} if colon else {}
    if name not in synthesizers or not colon:
        return text, {}
    options = {}
    # A value may contain commas, as in candidates=ring,direct.
    for pair in re.split(r",(?=[\w-]+=)", option_text):
        key, equals, value = pair.partition("=")
        if not (key and equals):
            cure = f"write {name}:key=value,key=value"
            raise UsageError(f"{pair[:60]!r} is no option of {name}", cure=cure)
        options[key.replace("-", "_")] = value
    return name, options
