"""Declared options turn text into values; everything else is an error with a cure."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub_core.model.diagnostics import UsageError
from hub_core.plugin_api.contract import Option, OptionType, OptionValue
from hub_core.registry.bind_options import bind_options

BINARY = Option("binary", OptionType.PATH, None, "program to run", environment="THE_BINARY")
MODEL = Option("model", OptionType.TEXT, "aware", "network model", ("aware", "unaware"))


def _bind(option: Option, value: OptionValue) -> OptionValue:
    return bind_options([option], {option.name: value}, {}, "writer x")[option.name]


@pytest.mark.parametrize(
    ("type_", "text", "value"),
    [
        (OptionType.TEXT, "a=b", "a=b"),
        (OptionType.PATH, "~/x", "~/x"),
        (OptionType.INT, "-12", -12),
        (OptionType.INT, 7, 7),
        (OptionType.FLOAT, "2.5e3", 2500.0),
        (OptionType.FLOAT, 2, 2.0),
        (OptionType.BOOL, "True", True),
        (OptionType.BOOL, False, False),
        (OptionType.SIZE, "1MiB", 1 << 20),
        (OptionType.SIZE, 512, 512),
    ],
)
def test_value_is_converted_to_its_type(
    type_: OptionType, text: OptionValue, value: OptionValue
) -> None:
    converted = _bind(Option("o", type_, None, "h"), text)
    assert converted == value
    assert type(converted) is type(value)


@pytest.mark.parametrize(
    ("type_", "text", "reason"),
    [
        (OptionType.INT, "1.5", "is not a whole number"),
        (OptionType.INT, "1_000", "is not a whole number"),
        (OptionType.INT, "9" * 5000, "is not a whole number"),
        (OptionType.INT, True, "is not a whole number"),
        (OptionType.FLOAT, "nan", "is not finite"),
        (OptionType.FLOAT, "fast", "is not a number"),
        (OptionType.BOOL, "maybe", "is not true or false"),
        (OptionType.BOOL, 1, "is not true or false"),
        (OptionType.SIZE, "10", "is not a size with a unit, such as 1MiB"),
        (OptionType.SIZE, 0, "is not a size"),
        (OptionType.TEXT, 3, "is not text"),
    ],
)
def test_value_that_does_not_fit_is_refused(
    type_: OptionType, text: OptionValue, reason: str
) -> None:
    with pytest.raises(UsageError, match=reason):
        _bind(Option("o", type_, None, "h"), text)


def test_value_outside_the_choices_names_the_closest() -> None:
    with pytest.raises(
        UsageError,
        match=r"writer x: option model 'awar' is not one of aware, unaware; did you mean 'aware'\?",
    ):
        _bind(MODEL, "awar")


def test_unknown_option_names_the_closest() -> None:
    with pytest.raises(UsageError, match=r"writer x has no option 'modle'; did you mean 'model'\?"):
        bind_options([MODEL], {"modle": "aware"}, {}, "writer x")


def test_all_problems_are_named_at_once() -> None:
    with pytest.raises(UsageError) as caught:
        bind_options([MODEL], {"model": "x", "a": 1, "b": 2}, {}, "writer x")
    assert len(caught.value.diagnostics) == 3


def test_defaults_fill_what_is_not_given() -> None:
    assert bind_options([MODEL, BINARY], {}, {}, "writer x") == {"model": "aware", "binary": None}


def test_default_in_text_is_converted() -> None:
    option = Option("limit", OptionType.SIZE, "1GiB", "h")
    assert bind_options([option], {}, {}, "writer x") == {"limit": 1 << 30}


def test_environment_variable_stands_between_value_and_default() -> None:
    environment = {"THE_BINARY": "/opt/sim"}
    assert bind_options([BINARY], {}, environment, "simulator x") == {"binary": "/opt/sim"}
    assert bind_options([BINARY], {"binary": "mine"}, environment, "simulator x") == {
        "binary": "mine"
    }


def test_bad_environment_variable_is_named() -> None:
    option = Option("ranks", OptionType.INT, 1, "h", environment="RANKS")
    with pytest.raises(
        UsageError, match="from the environment variable RANKS, 'two' is not a whole number"
    ):
        bind_options([option], {}, {"RANKS": "two"}, "simulator x")


def test_hyphens_stand_for_underscores() -> None:
    option = Option("time_limit", OptionType.INT, 1, "h")
    assert bind_options([option], {"time-limit": "5"}, {}, "simulator x") == {"time_limit": 5}


@given(st.sampled_from(OptionType), st.text())
def test_any_text_is_a_value_or_a_usage_error(type_: OptionType, text: str) -> None:
    try:
        value = _bind(Option("o", type_, None, "h"), text)
    except UsageError:
        return
    assert isinstance(value, str | int | float | bool)
