"""Which `-O` belongs to which `--pass`."""

from __future__ import annotations

import click
import pytest

from hub_core.cli.commands.pass_arguments import PassCommand, PassStep, pass_steps, shared_pairs
from hub_core.plugin_api import Option, OptionType


def parsed(*words: str) -> tuple[list[PassStep], tuple[str, ...]]:
    """Steps of a command line, and the options that stand before all passes."""
    command = PassCommand(
        "transform",
        params=[
            click.Option(["--pass", "passes"], multiple=True),
            click.Option(["-O", "pairs"], multiple=True),
            click.Argument(["rest"], nargs=-1),
        ],
    )
    context = command.make_context("transform", list(words))
    return pass_steps(context), context.params["pairs"]


def option(name: str) -> Option:
    return Option(name, OptionType.TEXT, None, "")


def test_options_belong_to_the_pass_before_them() -> None:
    steps, pairs = parsed("-O", "a=1", "--pass", "x", "-O", "a=2", "--pass=y", "-Oa=3", "IN")
    assert [(step.name, step.pairs) for step in steps] == [("x", {"a": "2"}), ("y", {"a": "3"})]
    assert pairs == ("a=1",)


def test_a_pass_takes_what_it_declares() -> None:
    step = PassStep(
        "as-slice", {"states": "m", "as_slice.name": "n", "other": "1", "w.states": "2"}
    )
    taken = step.own([option("states"), option("name")])
    assert taken == {"states": "m", "as_slice.name": "n"}
    assert shared_pairs({}, [step], [taken]) == {"other": "1", "w.states": "2"}


def test_what_no_pass_takes_is_given_once() -> None:
    with pytest.raises(click.UsageError, match="'k' is given twice"):
        shared_pairs({"k": "1"}, [PassStep("x", {"k": "2"})], [{}])


def test_malformed_options_are_left_to_the_parser() -> None:
    steps, pairs = parsed("--pass", "x", "-O", "novalue", "-O", "a=1", "-O", "a=2")
    assert steps[0].pairs == {"a": "1"}
    assert pairs == ("novalue", "a=2")


def test_what_stands_behind_two_dashes_is_no_option() -> None:
    steps, _ = parsed("--pass", "x", "--", "-O", "a=1")
    assert steps[0].pairs == {}
