"""Declared options turn text into values; everything else is an error with a cure."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, dataclass, make_dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub_core.model.diagnostics import UsageError
from hub_core.plugin_api import OptionType, OptionValue, choice, declared_options, option, optional
from hub_core.registry.bind_options import bind_options


@dataclass(frozen=True, slots=True)
class BinaryOptions:
    """One option that the environment may give."""

    binary: str | None = option(OptionType.PATH, None, "program to run", environment="THE_BINARY")


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """One option with choices."""

    model: str = choice(("aware", "unaware"), "network model")


def _record(type_: OptionType, default: object = None, **details: object) -> type:
    """A record with the single option `o`."""
    declared = option(type_, default, "h", **details)  # type: ignore[arg-type]
    return make_dataclass("Record", [("o", object, declared)], frozen=True)


def _bind(record: type, value: OptionValue) -> object:
    (name,) = (declared.name for declared in declared_options(record))
    return getattr(bind_options(record, {name: value}, {}, "writer x"), name)


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
        (OptionType.BOOL, "yes", True),
        (OptionType.BOOL, "No", False),
        (OptionType.BOOL, "on", True),
        (OptionType.BOOL, "off", False),
        (OptionType.SIZE, "1MiB", 1 << 20),
        (OptionType.SIZE, 512, 512),
        (OptionType.TIME, "500ns", 5e-7),
        (OptionType.TIME, 2, 2.0),
        (OptionType.BANDWIDTH, "50GB/s", 50e9),
    ],
)
def test_value_is_converted_to_its_type(
    type_: OptionType, text: OptionValue, value: OptionValue
) -> None:
    converted = _bind(_record(type_), text)
    assert converted == value
    assert type(converted) is type(value)


@pytest.mark.parametrize(
    ("type_", "text", "reason"),
    [
        (OptionType.INT, "1.5", "is not a whole number"),
        (OptionType.INT, "1_000", "is not a whole number"),
        (OptionType.INT, "9" * 5000, "is not a whole number"),
        (OptionType.INT, True, "is not a whole number"),
        (OptionType.INT, "2147483648", r"is not in -2147483647\.\.2147483647"),
        (OptionType.INT, "-2147483648", r"is not in -2147483647\.\.2147483647"),
        (OptionType.FLOAT, "nan", "is not finite"),
        (OptionType.FLOAT, "fast", "is not a number"),
        (OptionType.BOOL, "maybe", "is not true or false"),
        (OptionType.BOOL, 1, "is not true or false"),
        (OptionType.SIZE, "10", "is not a size with a unit, such as 1MiB"),
        (OptionType.SIZE, 0, "is not a size"),
        (OptionType.TIME, "500", "is not a time with a unit, such as 500ns"),
        (OptionType.BANDWIDTH, "50GB", "is not a bandwidth with a unit, such as 50GB/s"),
        (OptionType.TEXT, 3, "is not text"),
    ],
)
def test_value_that_does_not_fit_is_refused(
    type_: OptionType, text: OptionValue, reason: str
) -> None:
    with pytest.raises(UsageError, match=reason):
        _bind(_record(type_), text)


def test_value_outside_the_choices_names_the_closest() -> None:
    with pytest.raises(
        UsageError,
        match=r"writer x: option model 'awar' is not one of aware, unaware; did you mean 'aware'\?",
    ):
        _bind(ModelOptions, "awar")


def test_a_choice_is_its_first_word_unless_given() -> None:
    assert bind_options(ModelOptions, {}, {}, "writer x") == ModelOptions("aware")
    record = make_dataclass("Record", [("o", object, choice((None, "a", "b"), "h"))], frozen=True)
    assert bind_options(record, {}, {}, "writer x") == record(None)
    assert _bind(record, "b") == "b"
    with pytest.raises(UsageError, match="is not one of a, b"):
        _bind(record, "None")


def test_an_optional_value_is_none_unless_given_and_keeps_its_range() -> None:
    declared = optional("h", OptionType.INT, minimum=1)
    record = make_dataclass("Record", [("o", object, declared)], frozen=True)
    assert bind_options(record, {}, {}, "writer x") == record(None)
    assert _bind(record, "2") == 2
    with pytest.raises(UsageError, match="is not at least 1"):
        _bind(record, "0")


def test_unknown_option_names_the_closest() -> None:
    with pytest.raises(UsageError, match=r"writer x has no option 'modle'; did you mean 'model'\?"):
        bind_options(ModelOptions, {"modle": "aware"}, {}, "writer x")


def test_all_problems_are_named_at_once() -> None:
    with pytest.raises(UsageError) as caught:
        bind_options(ModelOptions, {"model": "x", "a": 1, "b": 2}, {}, "writer x")
    assert len(caught.value.diagnostics) == 3


def test_defaults_fill_what_is_not_given() -> None:
    assert bind_options(ModelOptions, {}, {}, "writer x") == ModelOptions(model="aware")
    assert bind_options(BinaryOptions, {}, {}, "writer x") == BinaryOptions(binary=None)


def test_default_in_text_is_converted() -> None:
    record = _record(OptionType.SIZE, "1GiB")
    assert bind_options(record, {}, {}, "writer x") == record(o=1 << 30)


def test_environment_variable_stands_between_value_and_default() -> None:
    environment = {"THE_BINARY": "/opt/sim"}
    found = bind_options(BinaryOptions, {}, environment, "simulator x")
    assert found == BinaryOptions(binary="/opt/sim")
    given = bind_options(BinaryOptions, {"binary": "mine"}, environment, "simulator x")
    assert given == BinaryOptions(binary="mine")


def test_bad_environment_variable_is_named() -> None:
    record = _record(OptionType.INT, 1, environment="RANKS")
    with pytest.raises(
        UsageError, match="from the environment variable RANKS, 'two' is not a whole number"
    ):
        bind_options(record, {}, {"RANKS": "two"}, "simulator x")


def test_hyphens_stand_for_underscores() -> None:
    declared = option(OptionType.INT, 1, "h")
    record = make_dataclass("Record", [("time_limit", int, declared)], frozen=True)
    assert bind_options(record, {"time-limit": "5"}, {}, "simulator x") == record(time_limit=5)


@pytest.mark.parametrize(
    ("bounds", "value", "reason"),
    [
        ({"minimum": 1}, 0, "option o 0 is not at least 1"),
        ({"minimum": 1}, 2**31, "option o 2147483648 is not at most 2147483647"),
        ({"maximum": 8}, "9", "option o '9' is not at most 8"),
        ({"minimum": 1, "maximum": 8}, "-1", r"option o '-1' is not in 1\.\.8"),
    ],
)
def test_value_outside_the_range_is_refused(
    bounds: dict[str, object], value: OptionValue, reason: str
) -> None:
    with pytest.raises(UsageError, match=reason):
        _bind(_record(OptionType.INT, 2, **bounds), value)


def test_record_is_frozen() -> None:
    record = bind_options(ModelOptions, {}, {}, "writer x")
    with pytest.raises(FrozenInstanceError):
        record.model = "unaware"  # type: ignore[attr-defined]


@given(st.sampled_from(OptionType), st.text())
def test_any_text_is_a_value_or_a_usage_error(type_: OptionType, text: str) -> None:
    try:
        value = _bind(_record(type_), text)
    except UsageError:
        return
    assert isinstance(value, str | int | float | bool)


def test_pairs_are_lines_in_the_order_of_their_keys() -> None:
    record = _record(OptionType.PAIRS)
    given = {"o.b-c": "2GB/s", "o.a": "1=x"}
    assert bind_options(record, given, {}, "reader x").o == "a=1=x\nb-c=2GB/s\n"  # type: ignore[attr-defined]


def test_pair_of_an_option_that_takes_none_is_unknown() -> None:
    with pytest.raises(UsageError, match=r"reader x has no option 'o\.a'"):
        bind_options(_record(OptionType.TEXT), {"o.a": "1"}, {}, "reader x")
