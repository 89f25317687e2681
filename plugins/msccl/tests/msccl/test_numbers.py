"""Numbers as the runtimes read them: strtol with base 0 (MSCCL parsers)."""

from __future__ import annotations

import pytest
from collhub_msccl.findings import NumberState, parse_number
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("12", 12),
        ("-1", -1),
        ("+3", 3),
        (" 7", 7),
        ("0x10", 16),
        ("0X1f", 31),
        ("010", 8),
        ("-010", -8),
        ("00", 0),
    ],
)
def test_number_forms_of_strtol_are_read(text: str, value: int) -> None:
    assert parse_number(text) == (value, NumberState.FINE)


@pytest.mark.parametrize(
    ("text", "value"), [("5x", 5), ("3 ", 3), ("08", 0), ("0x", 0), ("1.5", 1), ("019", 1)]
)
def test_text_after_the_number_is_cut(text: str, value: int) -> None:
    assert parse_number(text) == (value, NumberState.CUT)


@pytest.mark.parametrize("text", ["", " ", "abc", "-", "x1", "--1", "\u0663"])
def test_text_without_digits_is_no_number(text: str) -> None:
    assert parse_number(text)[1] is NumberState.NO_NUMBER


@pytest.mark.parametrize("text", ["2147483648", "1e9"[:1] * 30, "0x" + "f" * 5000, "9" * 10000])
def test_numbers_beyond_an_int_are_out_of_range(text: str) -> None:
    assert parse_number(text)[1] is NumberState.OUT_OF_RANGE


@given(st.integers(-(2**31) + 1, 2**31 - 1))
def test_every_int_is_read_from_its_decimal_text(value: int) -> None:
    assert parse_number(str(value)) == (value, NumberState.FINE)


@pytest.mark.once
@given(st.text(max_size=40))
def test_no_text_is_fatal(text: str) -> None:
    value, _ = parse_number(text)
    assert abs(value) < 2**31
