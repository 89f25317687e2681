"""Turn option values, given as text or as Python values, into what the declared options promise."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeGuard

from hub_core.model.diagnostics import Diagnostic, HubError, UsageError, closest
from hub_core.plugin_api.options import (
    BOOL_WORDS,
    MAX_INTEGER,
    Option,
    OptionType,
    OptionValue,
    declared_options,
)

OptionText = Mapping[str, OptionValue]
_LONGEST_NUMBER = 40


def bind_options(
    record: type, given: OptionText, environment: Mapping[str, str], owner: str
) -> object:
    """The record with every option: as given, else from its environment variable, else default.

    `owner` is named in messages (`writer chakra`). `-` in a given name stands for `_`. Raises
    `UsageError` with a finding for every unknown name and every value that does not fit.
    """
    declared = declared_options(record)
    pairs = {option.name for option in declared if option.type is OptionType.PAIRS}
    by_name: dict[str, OptionValue] = {}
    for stated, value in sorted(given.items()):
        name, _, key = stated.partition(".")
        if key and name in pairs:
            by_name[name] = f"{by_name.get(name, '')}{key}={value}\n"
        else:
            by_name[stated.replace("-", "_")] = value
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
        known = f"is not one of {', '.join(option.choices)}"
        close = closest(str(value), option.choices)
        raise ValueError(f"{known}; {close}" if close else known)
    if isinstance(value, int | float):
        _check_range(value, option.minimum, option.maximum)
        if option.type is OptionType.INT:
            low = None if option.minimum is not None else -MAX_INTEGER
            _check_range(value, low, None if option.maximum is not None else MAX_INTEGER)
    return value


def _check_range(value: float, low: float | None, high: float | None) -> None:
    """Raise `ValueError` for a number outside of the range, in the units of the record."""
    if (low is None or value >= low) and (high is None or value <= high):
        return
    if high is None:
        raise ValueError(f"is not at least {_exact(low)}")
    if low is None:
        raise ValueError(f"is not at most {_exact(high)}")
    raise ValueError(f"is not in {_exact(low)}..{_exact(high)}")


def _exact(bound: float | None) -> str:
    """A bound of a range: whole numbers with all digits."""
    return str(bound) if isinstance(bound, int) else f"{bound:g}"


def _raw_value(
    option: Option, given: OptionText, environment: Mapping[str, str]
) -> tuple[OptionValue, str]:
    """The unconverted value and how to call its origin in a message."""
    if option.name in given:
        return given[option.name], f"option {option.name}"
    if option.environment and environment.get(option.environment):
        origin = f"option {option.name}, from the environment variable {option.environment},"
        return environment[option.environment], origin
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
        number = float(raw if _is_number(raw) else _number_text(raw))
    except (ValueError, OverflowError):
        raise ValueError("is not a number") from None
    if not math.isfinite(number):
        raise ValueError("is not finite")
    return number


def _number_text(raw: object) -> str:
    # `_` between digits is Python's, not the user's; long texts take quadratic time to convert.
    if not isinstance(raw, str) or "_" in raw or len(raw) > _LONGEST_NUMBER:
        raise ValueError
    return raw


def _truth(raw: object) -> bool:
    if isinstance(raw, bool):
        return raw
    truth = BOOL_WORDS.get(raw.lower()) if isinstance(raw, str) else None
    if truth is None:
        raise ValueError("is not true or false (yes, no, on and off are accepted too)")
    return truth


def _size(raw: object) -> int:
    if isinstance(raw, int) and not isinstance(raw, bool) and raw > 0:
        return raw
    return int(_parsed(raw, "size", "1MiB"))


def _time(raw: object) -> float:
    return _number(raw) if _is_number(raw) else _parsed(raw, "time", "500ns")


def _bandwidth(raw: object) -> float:
    return _number(raw) if _is_number(raw) else _parsed(raw, "bandwidth", "50GB/s")


def _is_number(raw: object) -> TypeGuard[float]:
    return isinstance(raw, int | float) and not isinstance(raw, bool)


def _parsed(raw: object, quantity: str, example: str) -> float:
    # Imported here: few starts of the program see a quantity as text.
    from hub_core.model import quantities

    try:
        value: float = getattr(quantities, f"parse_{quantity}")(_text(raw))
    except (HubError, ValueError):
        raise ValueError(f"is not a {quantity} with a unit, such as {example}") from None
    return value


_CONVERTERS: dict[OptionType, Callable[[object], str | int | float | bool]] = {
    OptionType.TEXT: _text,
    OptionType.PATH: _text,
    OptionType.PAIRS: _text,
    OptionType.INT: _whole_number,
    OptionType.FLOAT: _number,
    OptionType.BOOL: _truth,
    OptionType.SIZE: _size,
    OptionType.TIME: _time,
    OptionType.BANDWIDTH: _bandwidth,
}
