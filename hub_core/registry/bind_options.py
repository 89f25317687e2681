"""Turn option values, given as text or as Python values, into what the declared options promise."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from hub_core.model.diagnostics import Diagnostic, HubError, UsageError
from hub_core.plugin_api.options import Option, OptionType, OptionValue, declared_options
from hub_core.registry.closest_match import closest

OptionText = Mapping[str, OptionValue]
_LONGEST_NUMBER = 40


def bind_options(
    record: type, given: OptionText, environment: Mapping[str, str], owner: str
) -> object:
    """The record with every declared option.

    Given, else from its environment variable, else default.

    `owner` is named in messages (`writer chakra`). `-` in a given name stands for `_`. Raises
    `UsageError` with a finding for every unknown name and every value that does not fit.
    """
    declared = declared_options(record)
    by_name = {name.replace("-", "_"): value for name, value in given.items()}
    names = [option.name for option in declared]
    findings = [_unknown(name, names, owner) for name in sorted(by_name.keys() - set(names))]
    values: dict[str, OptionValue] = {}
    for option in declared:
        raw, origin = _raw_value(option, by_name, environment)
        try:
            values[option.name] = None if raw is None else converted(option, raw)
        except ValueError as error:
            message = f"{owner}: {origin} {raw!r:.60} {error}"
            findings.append(Diagnostic("option-value", message, cure=option.help))
    if findings:
        raise UsageError(findings)
    return record(**values)


def converted(option: Option, raw: str | int | float | bool) -> OptionValue:
    """The value as the option's type has it. Raises `ValueError` with the reason."""
    value = _CONVERTERS[option.type](raw)
    if option.choices and value not in option.choices:
        close = closest(str(value), option.choices)
        known = ", ".join(option.choices)
        raise ValueError(f"is not one of {known}; {close}" if close else f"is not one of {known}")
    if isinstance(value, int | float) and not _is_within(option, value):
        raise ValueError(f"is not {_range_text(option)}")
    return value


def _is_within(option: Option, value: float) -> bool:
    is_too_small = option.minimum is not None and value < option.minimum
    is_too_large = option.maximum is not None and value > option.maximum
    return not (is_too_small or is_too_large)


def _range_text(option: Option) -> str:
    """`at least 1`, `at most 8` or `in 1..8`, in the units of the option's record."""
    if option.maximum is None:
        return f"at least {option.minimum:g}"
    if option.minimum is None:
        return f"at most {option.maximum:g}"
    return f"in {option.minimum:g}..{option.maximum:g}"


def _raw_value(
    option: Option, given: OptionText, environment: Mapping[str, str]
) -> tuple[OptionValue, str]:
    """The unconverted value and how to call its origin in a message."""
    if option.name in given:
        return given[option.name], f"option {option.name}"
    if option.environment and environment.get(option.environment):
        return environment[
            option.environment
        ], f"option {option.name}, from the environment variable {option.environment},"
    return option.default, f"default of option {option.name}"


def _unknown(name: str, known: Sequence[str], owner: str) -> Diagnostic:
    cure = closest(name, known) or (f"known: {', '.join(known)}" if known else "it takes none")
    return Diagnostic("unknown-option", f"{owner} has no option {name!r}", cure=cure)


def _text(raw: object) -> str:
    if not isinstance(raw, str):
        raise ValueError("is not text")
    return raw


def _whole_number(raw: object) -> int:
    if isinstance(raw, int) and not isinstance(raw, bool):
        return raw
    try:
        return int(_number_text(raw))
    except ValueError:
        raise ValueError("is not a whole number") from None


def _number(raw: object) -> float:
    try:
        number = (
            float(raw)
            if isinstance(raw, int | float) and not isinstance(raw, bool)
            else float(_number_text(raw))
        )
    except (ValueError, OverflowError):
        raise ValueError("is not a number") from None
    if not math.isfinite(number):
        raise ValueError("is not finite")
    return number


def _number_text(raw: object) -> str:
    # `_` between digits is Python's, not the user's; long digit strings take quadratic time to
    # convert.
    if not isinstance(raw, str) or "_" in raw or len(raw) > _LONGEST_NUMBER:
        raise ValueError
    return raw


def _truth(raw: object) -> bool:
    if isinstance(raw, bool):
        return raw
    truth = {"true": True, "false": False}.get(raw.lower()) if isinstance(raw, str) else None
    if truth is None:
        raise ValueError("is not true or false")
    return truth


def _size(raw: object) -> int:
    if isinstance(raw, int) and not isinstance(raw, bool) and raw > 0:
        return raw
    return int(_quantity(raw, "parse_size", "a size with a unit, such as 1MiB"))


def _time(raw: object) -> float:
    return _measure(raw, "parse_time", "a time with a unit, such as 500ns")


def _bandwidth(raw: object) -> float:
    return _measure(raw, "parse_bandwidth", "a bandwidth with a unit, such as 50GB/s")


def _measure(raw: object, parser: str, what: str) -> float:
    if isinstance(raw, int | float) and not isinstance(raw, bool):
        return _number(raw)
    return _quantity(raw, parser, what)


def _quantity(raw: object, parser: str, what: str) -> float:
    """The number that a function of `model.quantities` makes of a text."""
    # Imported here: few starts of the program see a quantity.
    from hub_core.model import quantities

    try:
        number: float = getattr(quantities, parser)(_text(raw))
    except (HubError, ValueError):
        raise ValueError(f"is not {what}") from None
    return number


_CONVERTERS: dict[OptionType, Callable[[object], str | int | float | bool]] = {
    OptionType.TEXT: _text,
    OptionType.PATH: _text,
    OptionType.INT: _whole_number,
    OptionType.FLOAT: _number,
    OptionType.BOOL: _truth,
    OptionType.SIZE: _size,
    OptionType.TIME: _time,
    OptionType.BANDWIDTH: _bandwidth,
}
