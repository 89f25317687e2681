"""Values of parsed JSON, and content that is refused as JSON."""

from __future__ import annotations

import sys

import pytest

from hub_core import is_finite_number, parse_json_object
from hub_core.model import InputError


@pytest.mark.parametrize("value", [0, -1, 0.5, int(sys.float_info.max), -sys.float_info.max])
def test_a_number_in_the_range_of_floats_is_finite(value: object) -> None:
    assert is_finite_number(value)


@pytest.mark.parametrize(
    "value",
    [True, None, "1", [1], float("nan"), float("inf"), -float("inf"), 10**400, -(10**400)],
)
def test_booleans_and_what_no_float_holds_are_no_finite_numbers(value: object) -> None:
    assert not is_finite_number(value)


@pytest.mark.parametrize("constant", [b"NaN", b"Infinity", b"-Infinity"])
def test_nan_and_infinity_are_refused_unless_they_are_allowed(constant: bytes) -> None:
    content = b'{"a": ' + constant + b"}"
    with pytest.raises(InputError, match=f"{constant.decode()} is not JSON"):
        parse_json_object(content, "a.json")
    assert not is_finite_number(parse_json_object(content, "a.json", allow_nan=True)["a"])
