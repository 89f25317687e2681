"""Convert option values, given as text or as Python values, to the declared types."""

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
_MAX_NUMBER_LENGTH = 40


def bind_options(
    record: type, values: OptionText, environment: Mapping[str, str], owner: str
) -> object:
    """Create the record of options: values as given, else from the environment, else defaults.

    `owner`: name in messages (`writer chakra`). `-` in a name stands for `_`; `NAME.KEY` adds a
    pair to an option of type PAIRS, pairs in alphabetical order of the keys. An empty environment
    variable counts as unset; an option without any value is bound to None. Values are converted to
    the declared types. Raises one `UsageError` with a finding for every unknown name, in
    alphabetical order, then for every invalid value.
    """
    declared = declared_options(record)
    pairs = {option.name for option in declared if option.type is OptionType.PAIRS}
    by_name: dict[str, OptionValue] = {}
    for text, value in sorted(values.items()):
        name, _, key = text.partition(".")
        if key and name in pairs:
            by_name[name] = f"{by_name.get(name, '')}{key}={value}\n"
        else:
            by_name[text.replace("-", "_")] = value
    names = [option.name for option in declared]
    findings = [
        _create_unknown_option(name, names, owner) for name in sorted(by_name.keys() - set(names))
    ]
    bound: dict[str, OptionValue] = {}
    for option in declared:
        raw, origin = _find_raw_value(option, by_name, environment)
        try:
            bound[option.name] = None if raw is None else convert_value(option, raw)
        except ValueError as error:
            message = f"{owner}: {origin} {raw!r:.60} {error}"
            findings.append(Diagnostic("option-value", message, cure=option.help))
    if findings:
        raise UsageError(findings)
    return record(**bound)


def convert_value(option: Option, raw: str | int | float | bool) -> OptionValue:
    """Convert a value to the type of the option, and check its choices and range.

    Choices are compared after the conversion. The limits of the range belong to it; they are
    checked for numbers only. Integers must be within +-`MAX_INTEGER` (2^31 - 1) where the option
    gives no own limit. Raises `ValueError` with the reason, which names the closest choice.
    """
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
    """Raise `ValueError` for a number below `low` or above `high`; None is no limit.

    Both limits belong to the range. Limits are printed in the units of the record. A number that is
    not comparable (NaN) is refused if there is a limit.
    """
    if (low is None or value >= low) and (high is None or value <= high):
        return
    if high is None:
        raise ValueError(f"is not at least {_format_limit(low)}")
    if low is None:
        raise ValueError(f"is not at most {_format_limit(high)}")
    raise ValueError(f"is not in {_format_limit(low)}..{_format_limit(high)}")


def _format_limit(bound: float | None) -> str:
    """Format a limit of a range; integers with all digits."""
    return str(bound) if isinstance(bound, int) else f"{bound:g}"


def _find_raw_value(
    option: Option, values: OptionText, environment: Mapping[str, str]
) -> tuple[OptionValue, str]:
    """Return the unconverted value of an option, and the description of its origin for messages.

    A given value takes precedence over the environment variable of the option, and that over its
    default; an empty variable is ignored.
    """
    if option.name in values:
        return values[option.name], f"option {option.name}"
    if option.environment and environment.get(option.environment):
        origin = f"option {option.name}, from the environment variable {option.environment},"
        return environment[option.environment], origin
    return option.default, f"default of option {option.name}"


def _create_unknown_option(name: str, known: Sequence[str], owner: str) -> Diagnostic:
    cure = closest(name, known) or (f"known: {', '.join(known)}" if known else "it takes none")
    return Diagnostic("unknown-option", f"{owner} has no option {name!r}", cure=cure)


def _check_text(raw: object) -> str:
    if not isinstance(raw, str):
        raise ValueError("is not text")
    return raw


def _parse_integer(raw: object) -> int:
    if isinstance(raw, int) and not isinstance(raw, bool):
        return raw
    try:
        return int(_check_number_text(raw))
    except ValueError:
        raise ValueError("is not a whole number") from None


def _parse_number(raw: object) -> float:
    try:
        number = float(raw if _is_number(raw) else _check_number_text(raw))
    except (ValueError, OverflowError):
        raise ValueError("is not a number") from None
    if not math.isfinite(number):
        raise ValueError("is not finite")
    return number


def _check_number_text(raw: object) -> str:
    # `_` between digits is allowed in Python, but not here. Long texts take quadratic time to
    # convert.
    if not isinstance(raw, str) or "_" in raw or len(raw) > _MAX_NUMBER_LENGTH:
        raise ValueError
    return raw


def _parse_truth(raw: object) -> bool:
    if isinstance(raw, bool):
        return raw
    truth = BOOL_WORDS.get(raw.lower()) if isinstance(raw, str) else None
    if truth is None:
        raise ValueError("is not true or false (yes, no, on and off are accepted too)")
    return truth


def _parse_size(raw: object) -> int:
    if isinstance(raw, int) and not isinstance(raw, bool) and raw > 0:
        return raw
    return int(_parse_quantity(raw, "size", "1MiB"))


def _parse_time(raw: object) -> float:
    return _parse_number(raw) if _is_number(raw) else _parse_quantity(raw, "time", "500ns")


def _parse_bandwidth(raw: object) -> float:
    return _parse_number(raw) if _is_number(raw) else _parse_quantity(raw, "bandwidth", "50GB/s")


def _is_number(raw: object) -> TypeGuard[float]:
    return isinstance(raw, int | float) and not isinstance(raw, bool)


def _parse_quantity(raw: object, quantity: str, example: str) -> float:
    # Imported here: few runs of the program get a quantity as text.
    from hub_core.model import quantities

    try:
        value: float = getattr(quantities, f"parse_{quantity}")(_check_text(raw))
    except (HubError, ValueError):
        raise ValueError(f"is not a {quantity} with a unit, such as {example}") from None
    return value


_CONVERTERS: dict[OptionType, Callable[[object], str | int | float | bool]] = {
    OptionType.TEXT: _check_text,
    OptionType.PATH: _check_text,
    OptionType.PAIRS: _check_text,
    OptionType.INT: _parse_integer,
    OptionType.FLOAT: _parse_number,
    OptionType.BOOL: _parse_truth,
    OptionType.SIZE: _parse_size,
    OptionType.TIME: _parse_time,
    OptionType.BANDWIDTH: _parse_bandwidth,
}
