"""Rules: what they match, which one holds, and texts that mean nothing."""

from __future__ import annotations

import pytest

from hub_core import UsageError, choose_rule, parse_rule
from hub_core.model import CollectiveKind

KNOWN = ("ring", "direct")
REDUCE, GATHER = CollectiveKind.ALL_REDUCE, CollectiveKind.ALL_GATHER


# Condition: a size that it has, and the nearest that it has not.
_SIZES = {
    ">1KiB": (1025, 1024),
    ">=1KiB": (1024, 1023),
    "<1KiB": (1023, 1024),
    "<=1KiB": (1024, 1025),
    "1KiB": (1024, 1023),
    "1KiB..2KiB": (2048, 2049),
}


def chosen(kind: CollectiveKind, size: int, group: str, *texts: str) -> int:
    return choose_rule([parse_rule(text, KNOWN) for text in texts], kind, size, group)


@pytest.mark.parametrize("condition", _SIZES)
def test_a_condition_bounds_the_size(condition: str) -> None:
    matching, other = _SIZES[condition]
    text = f"all-reduce@{condition}=ring"
    assert chosen(REDUCE, matching, "", text) == 0
    assert chosen(REDUCE, other, "", text) == -1


def test_a_rule_is_for_its_kind_and_group() -> None:
    assert chosen(GATHER, 1, "tp", "all-gather/tp=ring") == 0
    assert chosen(GATHER, 1, "dp", "all-gather/tp=ring") == -1
    assert chosen(REDUCE, 1, "tp", "all-gather/tp=ring") == -1


def test_the_last_rule_that_matches_holds() -> None:
    rules = ("all-reduce@>1KiB=ring", "*=direct", "all-gather=ring")
    assert chosen(REDUCE, 1 << 20, "", *rules) == 1
    assert chosen(GATHER, 1 << 20, "", *rules) == 2


def test_options_stand_behind_the_synthesizer() -> None:
    rule = parse_rule("all-reduce=ring:order=given,chunks=4", KNOWN)
    assert (rule.algorithm, rule.options) == ("ring", {"order": "given", "chunks": "4"})
    several = parse_rule("all-reduce=ring:order=0,1,chunks=4", KNOWN)
    assert several.options == {"order": "0,1", "chunks": "4"}
    file = parse_rule("all-reduce=C:ring.xml", KNOWN)
    assert (file.algorithm, file.options) == ("C:ring.xml", {})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ring", "is no rule"),
        ("all-reduse=ring", "is no collective; did you mean 'all-reduce'?"),
        ("all-reduce@2KiB..1KiB=ring", "matches no size"),
        ("all-reduce@>big=ring", "size"),
        ("all-reduce=ring:order", "is no option of ring"),
    ],
)
def test_what_means_nothing_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message.replace("?", r"\?")):
        parse_rule(text, KNOWN)
