"""Rules that say which algorithm a collective gets: `KIND[@SIZE][/GROUP]=ALGORITHM`."""

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
# Bytes that a comparison allows, lowest and behind the highest.
_RANGES: Mapping[str, Callable[[int], tuple[int, int]]] = {
    ">": lambda size: (size + 1, _NO_LIMIT),
    ">=": lambda size: (size, _NO_LIMIT),
    "<": lambda size: (0, size),
    "<=": lambda size: (0, size + 1),
    "": lambda size: (size, size + 1),
}


@dataclass(frozen=True, slots=True)
class CollectiveRule:
    """Collectives by kind, bytes and group, and the algorithm that they get.

    `kind`: None for every one. `least`, `behind`: bytes of a collective as its workload states
    them, the second excluded. `group`: name of the process group, None for any. `algorithm`: a
    synthesizer, a file or `native`; `options`: behind its colon.
    """

    text: str
    kind: CollectiveKind | None
    least: int
    behind: int
    group: str | None
    algorithm: str
    options: Mapping[str, str] = field(default_factory=dict)

    def matches(self, kind: CollectiveKind, size: int, group: str) -> bool:
        """Whether a collective of these bytes in a group of this name gets the algorithm."""
        is_kind = self.kind in (None, kind)
        is_group = self.group in (None, group)
        return is_kind and is_group and self.least <= size < self.behind


DEFAULT_RULE = CollectiveRule(f"{EVERY_KIND}={NATIVE}", None, 0, _NO_LIMIT, None, NATIVE)
"""The rule of collectives that no other rule matches."""


def parse_rule(text: str, synthesizers: Sequence[str]) -> CollectiveRule:
    """The rule that a text states. Raises `UsageError` for texts that mean nothing."""
    found = _RULE.fullmatch(text)
    if found is None:
        raise UsageError(f"{text[:80]!r} is no rule KIND[@SIZE][/GROUP]=ALGORITHM", cure=_EXAMPLE)
    least, behind = _range(found["size"], text)
    name, options = _named(found["algorithm"], synthesizers)
    return CollectiveRule(text, _kind(found["kind"]), least, behind, found["group"], name, options)


def choose_rule(
    rules: Sequence[CollectiveRule], kind: CollectiveKind, size: int, group: str
) -> int:
    """The number of the last rule that matches, -1 for none."""
    for number in range(len(rules) - 1, -1, -1):
        if rules[number].matches(kind, size, group):
            return number
    return -1


def _kind(text: str) -> CollectiveKind | None:
    if text == EVERY_KIND:
        return None
    kind = standard_kind(text)
    if kind is None:
        known = [str(kind) for kind in STANDARD_KINDS]
        near = get_close_matches(text, known, 1)
        cure = f"did you mean {near[0]!r}?" if near else f"use one of {', '.join(known)} or *"
        raise UsageError(f"{text[:60]!r} is no collective", cure=cure, code="unknown-collective")
    return kind


def _range(text: str | None, rule: str) -> tuple[int, int]:
    """Bytes from and up to which a condition holds, the second excluded."""
    if text is None:
        return 0, _NO_LIMIT
    low, dots, high = text.partition("..")
    if dots:
        least, most = parse_size(low), parse_size(high)
        if least > most:
            raise UsageError(f"{rule[:80]!r} matches no size", cure="write the smaller size first")
        return least, most + 1
    size = text.lstrip("<>=")
    comparison = text[: len(text) - len(size)]
    # `=` ends the condition, so that `<=` and `>=` are the only ones with it.
    return _RANGES[comparison](parse_size(size))


def _named(text: str, synthesizers: Sequence[str]) -> tuple[str, dict[str, str]]:
    """(algorithm, its options); a file may have a colon in its name."""
    name, colon, stated = text.partition(":")
    if name == NATIVE:
        return name, {"algorithm": stated} if colon else {}
    if name not in synthesizers or not colon:
        return text, {}
    options = {}
    # A value may have commas in it, as candidates=ring,direct.
    for pair in re.split(r",(?=[\w-]+=)", stated):
        key, equals, value = pair.partition("=")
        if not (key and equals):
            cure = f"write {name}:key=value,key=value"
            raise UsageError(f"{pair[:60]!r} is no option of {name}", cure=cure)
        options[key.replace("-", "_")] = value
    return name, options
