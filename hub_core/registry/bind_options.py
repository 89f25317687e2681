"""Calls of plugin code: options as values of the declared types, and isolation of the call.

Exceptions, exits and output of plugin code do not affect the program.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, NoReturn, TypeGuard, TypeVar

from hub_core.model.diagnostics import Diagnostic, HubError, PluginError, UsageError, closest
from hub_core.plugin_api.options import (
    BOOL_WORDS,
    MAX_INTEGER,
    Option,
    OptionType,
    OptionValue,
    Reference,
    declared_options,
)

OptionText = Mapping[str, OptionValue]
_MAX_NUMBER_LENGTH = 40


def bind_options(
    record: type, values: OptionText, environment: Mapping[str, str], owner: str
) -> object:
    """Create the record of options: each from `values`, else the environment, else its default.

    `record`: a dataclass whose fields are declared with `option` (`TypeError` if not). The
    names in `values` are applied in alphabetical order:

    - `NAME.KEY`, where NAME is the declared name of an option of type PAIRS, adds the line
      `KEY=VALUE` to the text of this option. So its lines are sorted by key.
    - In all other names, `-` means `_`. If two names then are equal, the one written with `_`
      counts.

    An environment variable counts only if the option declares its name and it is not empty.
    Every value except None, also a default, is converted to the type of the option and checked
    by `convert_value`. None stays None.

    If there are findings, raises one `UsageError` with all of them: first `unknown-option` for
    every undeclared name, in alphabetical order, then `option-value` for every value that
    `convert_value` refuses, in the order of declaration. Errors of the record's constructor
    pass through. `owner`: the component in messages, such as `writer chakra`.
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
    known = f"known: {', '.join(names)}" if names else "it takes none"
    findings = []
    for name in sorted(by_name.keys() - set(names)):
        message = f"{owner} has no option {name!r}"
        findings.append(Diagnostic("unknown-option", message, cure=closest(name, names) or known))
    bound: dict[str, OptionValue] = {}
    for option in declared:
        raw, origin = option.default, f"default of option {option.name}"
        if option.name in by_name:
            raw, origin = by_name[option.name], f"option {option.name}"
        elif option.environment and environment.get(option.environment):
            raw = environment[option.environment]
            origin = f"option {option.name}, from the environment variable {option.environment},"
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

    - INT, FLOAT: a number or its text, without `_` and of at most 40 characters. It must be
      finite, and an integer for INT.
    - BOOL: a boolean, or a word of `BOOL_WORDS` in any case.
    - SIZE (bytes), TIME (s), BANDWIDTH (bytes/s): a text, which must have a unit, or a number
      (for SIZE an integer above 0).
    - All other types: a text, unchanged.

    The converted value must be one of the choices, if there are any. The limits of the range
    are allowed values. INT must also be within +-`MAX_INTEGER` (2^31 - 1) on a side without a
    limit. Raises `ValueError` with the reason, which continues a sentence about the value.
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
    """Raise `ValueError` for a number below `low` or above `high`; both limits are allowed.

    None is no limit. NaN is refused if there is a limit.
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


T = TypeVar("T")

# The standard streams belong to the process: two threads that load plugins must not replace them at
# the same time. The lock is reentrant, because a plugin may discover plugins while it is loaded.
_STREAMS = threading.RLock()


@dataclass(frozen=True, slots=True)
class Attempt(Generic[T]):
    """Result of plugin code: its value or the reason of its failure, and its output."""

    value: T | None
    reason: str | None
    printed: str


def attempt(work: Callable[[], T]) -> Attempt[T]:
    """Run `work`; return its value or the reason of its failure, and the text that it printed.

    After an exception the value is None; without one the reason is None. Ctrl-C and `MemoryError`
    are raised; all other exceptions are caught, and also `SystemExit` and calls of `os._exit`.
    Standard output and error are captured together; if `work` closes them, the text is empty.
    Standard input is empty. Only one thread at a time runs such work; others wait.
    """
    with _STREAMS, _intercept_exit(), _capture_streams() as stream:
        try:
            value, reason = work(), None
        except (KeyboardInterrupt, MemoryError):
            raise
        except BaseException as error:
            value, reason = None, reason_of(error)
        printed = "" if stream.closed else stream.buffer.getvalue().decode(errors="replace")
    return Attempt(value, reason, printed)


@contextlib.contextmanager
def blamed_on(owner: str, reference: Reference) -> Iterator[None]:
    """Convert exceptions of plugin code in the body to `PluginError` with plugin and function.

    `owner`: the plugin; `reference`: the function. A missing module has its own message and remedy.
    Not converted: `HubError`, which the plugin raised on purpose; Ctrl-C; lack of memory, which is
    not the plugin's fault. `SystemExit` is converted.
    """
    try:
        yield
    except (HubError, KeyboardInterrupt, MemoryError):
        raise
    except ModuleNotFoundError as error:
        cure = (
            f"install the distribution of {error.name!r}, or the plugin again with its dependencies"
        )
        raise PluginError(
            f"{owner}: {reference} needs the module {error.name!r}, which is missing", cure=cure
        ) from error
    except BaseException as error:
        cure = "report it to the plugin's authors; --debug shows the traceback"
        raise PluginError(f"{owner}: {reference} failed: {reason_of(error)}", cure=cure) from error


def reason_of(error: BaseException) -> str:
    """Describe an error in one line: `TYPE: MESSAGE (FILE:LINE)`, `: MESSAGE` only if it has one.

    FILE is the name without its folder, and LINE where the error was raised; both are omitted
    without a traceback. White space in the message is reduced to single spaces, and the message is
    truncated to 300 characters. For a `HubError`, the unchanged message of its first finding is the
    result. For `SystemExit`, it is `it tried to end the program with status STATUS (FILE:LINE)`.
    """
    # Only the frames: the library's `extract_tb` would read every source file for its lines.
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    origin = ""
    if frame is not None:
        origin = f" ({Path(frame.tb_frame.f_code.co_filename).name}:{frame.tb_lineno})"
    if isinstance(error, SystemExit):
        return f"it tried to end the program with status {error.code!r}{origin}"
    if isinstance(error, HubError):
        return error.diagnostics[0].message
    try:
        message = " ".join(str(error).split())[:300]
    except Exception:
        message = "an error without a readable message"
    kind = type(error).__name__
    return f"{kind}: {message}{origin}" if message else f"{kind}{origin}"


@contextlib.contextmanager
def _intercept_exit() -> Iterator[None]:
    """Convert `os._exit(status)` in the body, which would end the program, to `SystemExit(status)`.

    `os._exit` is replaced for all threads during the body, and restored afterwards, also after
    an exception. `SystemExit` is raised in the calling thread. If the body stores the
    replacement, calls of it after the body end the program. Calls in a forked process always
    end that process.
    """
    real_exit, owner = os._exit, os.getpid()

    def refused(status: int) -> NoReturn:
        # Plugin code may store this function and call it in a child process, or later.
        if os._exit is real_exit or os.getpid() != owner:
            real_exit(status)
        raise SystemExit(status)

    os._exit = refused
    try:
        yield
    finally:
        os._exit = real_exit


@contextlib.contextmanager
def _capture_streams() -> Iterator[_Captured]:
    """Replace the standard streams during the body; yield the stream that captures its output.

    Standard output and standard error go to that one stream, in the order of writing; standard
    input is empty. Only the objects in `sys` are replaced, not the file descriptors. The previous
    streams are restored, also after an exception.
    """
    saved = sys.stdin, sys.stdout, sys.stderr
    stream = _Captured()
    sys.stdin, sys.stdout, sys.stderr = io.TextIOWrapper(io.BytesIO()), stream, stream
    try:
        yield stream
    finally:
        sys.stdin, sys.stdout, sys.stderr = saved


class _Captured(io.TextIOWrapper):
    """A UTF-8 text stream into memory without buffering; `buffer` has the bytes so far."""

    buffer: io.BytesIO

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", errors="replace", write_through=True)
