from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub_core.model.diagnostics import UsageError
from hub_core.model.quantities import (
    format_bandwidth,
    format_bytes,
    format_count,
    format_time,
    parse_bandwidth,
    parse_size,
    parse_time,
    parse_whole,
)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1B", 1),
        ("64KB", 64_000),
        ("64KiB", 65_536),
        ("1.5GiB", 1_610_612_736),
        (" 1 MiB ", 1 << 20),
        ("1e3MB", 10**9),
        ("0.5KiB", 512),
        ("4194304TiB", 1 << 62),
        ("9007199254740993B", (1 << 53) + 1),
    ],
)
def test_size_is_a_whole_number_of_bytes(text, size):
    assert parse_size(text) == size


@given(st.integers(1, 1 << 62))
def test_every_size_is_read_exactly(size):
    assert parse_size(f"{size}B") == size


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("1", "has no unit"),
        ("1048576", "has no unit"),
        ("1mb", "unknown unit 'mb'"),
        ("1Mib", "unknown unit 'Mib'"),
        ("0B", "not a positive whole number"),
        ("0.3B", "not a positive whole number"),
        ("1.0001KB", "not a positive whole number"),
        ("8388608TiB", "not a positive whole number"),
        ("-1MiB", "is not a number with a unit"),
        ("1 2MiB", "is not a number with a unit"),
        ("", "is not a number with a unit"),
        ("MiB", "is not a number with a unit"),
        ("nanB", "is not a number with a unit"),
        ("0x10B", "is not a number with a unit"),
        ("1" * 100 + "B", "is not a number with a unit"),
        ("1e60B", "not a positive whole number"),
        ("1e400B", "not a positive whole number"),
        ("1e99999999999B", "not a positive whole number"),
        ("1e-99999999999B", "not a positive whole number"),
        ("\u0661B", "is not a number with a unit"),
        ("1GB/s", "unknown unit"),
        ("1Gi", "unknown unit"),
    ],
)
def test_wrong_size_is_refused_with_an_example(text, says):
    with pytest.raises(UsageError, match=says) as caught:
        parse_size(text)
    cure = caught.value.diagnostics[0].cure
    assert "1MiB" in cure or "1GiB" in cure


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("50GB/s", 50e9),
        ("50GiB/s", 50 * 2**30),
        ("400Gbit/s", 50e9),
        ("1Tbit/s", 125e9),
        ("1B/s", 1.0),
        ("8Kbit/s", 1000.0),
    ],
)
def test_bandwidth_is_in_bytes_per_second(text, rate):
    assert parse_bandwidth(text) == rate


@pytest.mark.parametrize(
    "text", ["50", "50GB", "0GB/s", "1e30TB/s", "1e400B/s", "50gb/s", "", "infB/s"]
)
def test_wrong_bandwidth_is_refused(text):
    with pytest.raises(UsageError, match="bandwidth"):
        parse_bandwidth(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("500ns", 5e-7),
        ("0.5us", 5e-7),
        ("1ms", 1e-3),
        ("2s", 2.0),
        ("936.25ns", 936.25e-9),
        ("0ns", 0.0),
    ],
)
def test_time_is_in_seconds(text, seconds):
    assert parse_time(text) == seconds


@given(st.integers(0, 10**9))
def test_picoseconds_come_back_exactly(picoseconds):
    nanoseconds = picoseconds / 1000
    assert round(parse_time(f"{nanoseconds!r}ns") * 1e9, 6) == nanoseconds


@pytest.mark.parametrize("text", ["500", "500 NS", "-1ns", "1e20s", "1e400s", "nan s", ""])
def test_wrong_time_is_refused(text):
    with pytest.raises(UsageError, match="time"):
        parse_time(text)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (1 << 30, "1 GiB"),
        ((1 << 20) - 1, "1 MiB"),
        (1 << 50, "1024 TiB"),
    ],
)
def test_bytes_are_written_with_a_binary_unit(count, text):
    assert format_bytes(count) == text


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (0, "0 ns"),
        (999, "999 ns"),
        (1000, "1.00 us"),
        (41181, "41.18 us"),
        (999999.9, "1.00 ms"),
        (3e9, "3.00 s"),
    ],
)
def test_time_is_written_in_a_fitting_unit(nanoseconds, text):
    assert format_time(nanoseconds) == text


@pytest.mark.parametrize(
    ("rate", "text"),
    [
        (50e9, "50 GB/s"),
        (50 * 2.0**30, "53.69 GB/s"),
        (12.5e6, "12.5 MB/s"),
        (1.2e12, "1.2 TB/s"),
        (999, "999 B/s"),
        (999999999, "1 GB/s"),
    ],
)
def test_bandwidth_is_written_with_a_decimal_unit(rate, text):
    assert format_bandwidth(rate) == text


@pytest.mark.parametrize(
    ("count", "plural", "text"),
    [
        (0, None, "0 steps"),
        (1, None, "1 step"),
        (2, None, "2 steps"),
        (1, "switches", "1 step"),
        (2, "switches", "2 switches"),
    ],
)
def test_a_number_other_than_one_has_the_plural(count: int, plural: str | None, text: str) -> None:
    assert format_count(count, "step", plural) == text


@pytest.mark.parametrize("text", ["400Gb/s", "400Gbit/s", "400Gbps", "50GB/s", "50GBps"])
def test_bits_have_a_small_b(text: str) -> None:
    assert parse_bandwidth(text) == 50e9


@pytest.mark.parametrize(
    ("parse", "text", "meant"),
    [
        (parse_size, "1M", "did you mean 1MiB or 1MB?"),
        (parse_size, "64k", "did you mean 64KiB or 64KB?"),
        (parse_size, "2Gi", "did you mean 2GiB or 2GB?"),
        (parse_size, "1mb", "did you mean 1MiB or 1MB?"),
        (parse_size, "1mib", "did you mean 1MiB?"),
        (parse_bandwidth, "50G", "did you mean 50GiB/s or 50GB/s or 50Gb/s?"),
        (parse_bandwidth, "50gb/s", "did you mean 50GB/s or 50Gb/s?"),
        (parse_bandwidth, "400gbit/s", "did you mean 400Gbit/s?"),
        (parse_time, "5US", "did you mean 5us?"),
    ],
)
def test_a_unit_that_is_not_one_is_answered_by_what_may_be_meant(parse, text, meant) -> None:
    with pytest.raises(UsageError) as raised:
        parse(text)
    assert meant in str(raised.value)


@given(
    st.integers(1, 10**6),
    st.sampled_from([("GB/s", 10**9), ("MB/s", 10**6), ("Gb/s", 125 * 10**6)]),
)
def test_decimal_bandwidths_are_exact(thousandths: int, unit: tuple[str, int]) -> None:
    name, factor = unit
    text = f"{thousandths // 1000}.{thousandths % 1000:03}{name}"
    assert parse_bandwidth(text) == thousandths * factor / 1000


@pytest.mark.parametrize(("text", "number"), [("0", 0), ("7", 7), ("007", 7), ("499", 499)])
def test_a_whole_number_of_ascii_digits_is_parsed(text: str, number: int) -> None:
    assert parse_whole(text, 499) == number


@pytest.mark.parametrize(
    "text",
    ["", "500", "0007", "-1", "+1", " 1", "1_0", "1.0", "1e1", "\u0663", "\u00b2", "1" * 5000],
)
def test_other_texts_and_larger_numbers_are_none(text: str) -> None:
    assert parse_whole(text, 499) is None
