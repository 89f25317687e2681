"""Which side an `-O key=value` belongs to."""

from __future__ import annotations

import pytest

from hub_core.cli.assignments import assign
from hub_core.model.diagnostics import UsageError
from hub_core.plugin_api import Option, OptionType


def options(*names: str) -> tuple[Option, ...]:
    return tuple(Option(name, OptionType.TEXT, None, "help") for name in names)


SIDES = {"reader": options("root", "size"), "writer": options("size", "flatten_all")}


def test_a_key_goes_to_the_side_that_declares_it() -> None:
    assert assign({"root": "1"}, SIDES) == {"reader": {"root": "1"}, "writer": {}}


def test_a_key_that_both_declare_goes_to_both() -> None:
    assert assign({"size": "1MiB"}, SIDES) == {
        "reader": {"size": "1MiB"},
        "writer": {"size": "1MiB"},
    }


def test_a_qualified_key_goes_to_that_side_alone() -> None:
    assert assign({"writer.size": "1MiB"}, SIDES) == {"reader": {}, "writer": {"size": "1MiB"}}


def test_a_qualified_key_goes_before_a_bare_one() -> None:
    given = {"reader.size": "2MiB", "size": "1MiB"}
    assert assign(given, SIDES) == {"reader": {"size": "2MiB"}, "writer": {"size": "1MiB"}}


def test_hyphens_stand_for_underscores() -> None:
    assert assign({"flatten-all": "x"}, SIDES)["writer"] == {"flatten_all": "x"}


@pytest.mark.parametrize(
    ("key", "cure"),
    [
        ("rot", "did you mean 'root'"),
        ("xyz", "use one of flatten_all, root, size"),
        ("reader.flatten_all", "did you mean 'writer."),
    ],
)
def test_a_key_that_no_side_declares_is_refused_with_the_closest(key: str, cure: str) -> None:
    with pytest.raises(UsageError, match=cure):
        assign({key: "1"}, SIDES)


def test_where_nobody_has_options_that_is_said() -> None:
    with pytest.raises(UsageError, match="no option is declared by the reader or the writer"):
        assign({"x": "1"}, {"reader": (), "writer": ()})


PAIRS = {
    "reader": (Option("bandwidth", OptionType.PAIRS, None, "help"),),
    "writer": (Option("bandwidth", OptionType.PAIRS, None, "help"), *options("size")),
}


def test_a_key_of_an_option_of_pairs_goes_to_all_that_declare_the_option() -> None:
    given = {"bandwidth.nv-link": "1GB/s", "bandwidth.*": "2GB/s"}
    assert assign(given, PAIRS) == {"reader": given, "writer": given}


def test_a_qualified_key_of_an_option_of_pairs_goes_to_that_side_alone() -> None:
    given = assign({"reader.bandwidth.a.b": "1GB/s"}, PAIRS)
    assert given == {"reader": {"bandwidth.a.b": "1GB/s"}, "writer": {}}


def test_a_key_of_an_option_without_pairs_is_refused() -> None:
    with pytest.raises(UsageError, match=r"there is no option 'size\.a' here"):
        assign({"size.a": "1"}, PAIRS)


@pytest.mark.needs_plugins
def test_a_collective_is_taken_in_every_usual_spelling(collhub) -> None:
    arguments = ("--topology", "ring:4", "--size", "1MiB", "--json", "-O", "candidates=ring")
    found = {
        name: collhub("synthesize", "ring", "--collective", name, *arguments[:5], "-o", "-")
        for name in ("all-reduce", "all_reduce", "allreduce", "AllReduce")
    }
    assert {run.code for run in found.values()} <= {0, 2}
    wrong = collhub("synthesize", "ring", "--collective", "all-reduct", *arguments[:4])
    assert wrong.code == 2
    assert "did you mean 'all-reduce'?" in wrong.err
