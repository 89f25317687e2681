"""Lists of ranks as text: what is written is read back, and what is no list is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub_core.model.diagnostics import UsageError
from hub_core.model.quantities import format_ranks, parse_ranks


@given(st.lists(st.integers(0, 10**6), min_size=1, unique=True))
def test_list_of_ranks_comes_back_in_its_order(ranks):
    assert parse_ranks(format_ranks(ranks)) == tuple(ranks)


@given(st.integers(0, 1000), st.integers(3, 50))
def test_run_of_three_or_more_is_written_as_its_ends(first, count):
    assert format_ranks(range(first, first + count)) == f"{first}-{first + count - 1}"


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        ("0", (0,)),
        ("0,2,4-7", (0, 2, 4, 5, 6, 7)),
        ("5,1-2", (5, 1, 2)),
        (" 1 , 3 ", (1, 3)),
        ("4-4", (4,)),
    ],
)
def test_list_is_read_in_the_order_of_the_text(text, ranks):
    assert parse_ranks(text) == ranks


@pytest.mark.parametrize(
    "text",
    ["", ",", "1,", "a", "-1", "1-", "3-1", "1.5", "1 2", "0-99999999", "0-1048576", "\u0663"],
)
def test_what_is_no_list_is_refused(text):
    with pytest.raises(UsageError, match="is not a list of ranks; write for example 0,2,4-7"):
        parse_ranks(text)


@pytest.mark.parametrize("text", ["1,1", "0-3,2", "5,0-9"])
def test_rank_that_stands_twice_is_refused(text):
    with pytest.raises(UsageError, match=r"rank \d is listed more than once in .*; name each once"):
        parse_ranks(text)
