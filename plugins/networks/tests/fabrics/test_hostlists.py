from __future__ import annotations

import pytest
from collhub_fabrics.trees import expand_hosts
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a", ["a"]),
        ("a,b", ["a", "b"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("n[01-03,07],login", ["n01", "n02", "n03", "n07", "login"]),
        ("n[9-11]", ["n9", "n10", "n11"]),
        ("r[1-2]n[1-2]x", ["r1n1x", "r1n2x", "r2n1x", "r2n2x"]),
    ],
)
def test_lists_are_expanded_as_slurm_does(text, names) -> None:
    assert expand_hosts(text) == names


@pytest.mark.parametrize(
    "text", ["", "a,", ",a", "n[", "n[1-", "n]1[", "n[a]", "n[3-1]", "n[]", "a b", "n[1]]"]
)
def test_what_is_no_list_is_refused(text) -> None:
    with pytest.raises(ValueError, match=r"no list of|no range"):
        expand_hosts(text)


def test_list_of_more_hosts_than_any_cluster_has_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match=r"more than 1048576 hosts|no range"):
        expand_hosts("n[1-999999]m[1-999999]")


@given(st.integers(0, 500), st.integers(0, 99), st.integers(1, 4))
def test_range_has_every_number_once_in_order(first, more, width) -> None:
    text = f"n[{str(first).zfill(width)}-{first + more}]"
    found = [int(name[1:]) for name in expand_hosts(text)]
    assert found == list(range(first, first + more + 1))
