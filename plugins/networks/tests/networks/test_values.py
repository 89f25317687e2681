from __future__ import annotations

from decimal import Decimal

import pytest
from collhub_networks import DocumentValue

from hub_core.model import InputError

ROOT = DocumentValue("f.yaml", {"a": {"b": [1, "x", 2.5, None]}, "n": "3", "t": True, "e": None})


def refused(act) -> str:
    with pytest.raises(InputError) as caught:
        act()
    found = caught.value.diagnostics[0]
    assert (found.location.file, found.code) == ("f.yaml", "invalid-document")
    return f"{found.message}; {found.cure}"


def test_values_know_their_path() -> None:
    assert [one.path for one in ROOT["a"]["b"].items()] == [f"$.a.b[{row}]" for row in range(4)]


def test_missing_key_names_those_that_are_there() -> None:
    assert refused(lambda: ROOT["c"]) == "$: 'c' is missing; add c; the keys are: a, n, t, e"


def test_null_counts_as_absent() -> None:
    assert ROOT.get("e") is None
    assert ROOT.text_of("e", "default") == "default"


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (lambda: ROOT["a"].text(), "$.a: expected text, got an object"),
        (lambda: ROOT["t"].text(), "$.t: expected text, got true or false"),
        (lambda: ROOT["t"].count(9), "$.t: expected a whole number, got true or false"),
        (lambda: ROOT["n"].count(9), "$.n: expected a whole number, got text '3'"),
        (lambda: list(ROOT["n"].items()), "$.n: expected a list, got text '3'"),
        (lambda: list(ROOT["n"].entries()), "$.n: expected an object, got text '3'"),
        (
            lambda: DocumentValue("f.yaml", 10).count(9),
            "$: 10 is not in 1..9; check for a digit too many",
        ),
        (lambda: DocumentValue("f.yaml", "1_0").number(), "$: expected a number, got text '1_0'"),
        (lambda: DocumentValue("f.yaml", float("inf")).number(), "$: expected a finite number"),
        (lambda: DocumentValue("f.yaml", "1e999999").number(), "$: expected a number below 1e100"),
    ],
)
def test_other_values_are_refused_with_what_was_expected(act, said) -> None:
    assert said in refused(act)


def test_numbers_are_exact_to_their_digits() -> None:
    assert DocumentValue("f", 53.6870912).number() == Decimal("53.6870912")
    assert DocumentValue("f", "1e3").number() == 1000


def test_numbers_are_names_too() -> None:
    assert DocumentValue("f", 7).text() == "7"
