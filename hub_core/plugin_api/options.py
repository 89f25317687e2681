"""Options that offers declare, and references by which offers name their functions."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import TypeVar

OptionValue = str | int | float | bool | None
T = TypeVar("T")

BOOL_WORDS: Mapping[str, bool] = MappingProxyType(
    {"true": True, "false": False, "yes": True, "no": False, "on": True, "off": False}
)
"""Lower-case texts of a BOOL option, with their values."""

MAX_INTEGER = 2**31 - 1
"""Largest absolute value of an INT option that declares no maximum: it fits every array."""

_METADATA_KEY = "collhub-option"


class OptionType(StrEnum):
    """How the text of an option is read.

    BOOL: a word of `BOOL_WORDS`. SIZE: `1MiB` to bytes, int. TIME: `500ns` to seconds, float.
    BANDWIDTH: `50GB/s` to bytes per second, float. PATH: text kept as is. PAIRS: of
    `name.key=value`, each stated by itself, to text with a line `key=value` each, in the order of
    the keys.
    """

    TEXT = "text"
    INT = "int"
    FLOAT = "float"
    BOOL = "bool"
    SIZE = "size"
    TIME = "time"
    BANDWIDTH = "bandwidth"
    PATH = "path"
    PAIRS = "pairs"


@dataclass(frozen=True, slots=True)
class Option:
    """A declared option: what `option` makes of its arguments, with the name of its field.

    `default` None means: not given. `minimum` and `maximum` bound INT, FLOAT, SIZE, TIME and
    BANDWIDTH, both ends included; INT is at most `MAX_INTEGER` unless `maximum` allows more.
    """

    name: str
    type: OptionType
    default: OptionValue
    help: str
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    environment: str = ""


@dataclass(frozen=True, slots=True)
class NoOptions:
    """The options of an offer that has none."""


def option(
    type: OptionType,
    default: T,
    help: str,
    *,
    choices: tuple[str, ...] = (),
    minimum: float | None = None,
    maximum: float | None = None,
    environment: str = "",
) -> T:
    """Declare a field of a frozen dataclass as an option.

        @dataclass(frozen=True, slots=True)
        class RingOptions:
            chunks: int = option(OptionType.INT, 1, "Chunks a rank.", minimum=1)

    `environment` names a variable that the program reads where the option is not given; plugins
    themselves never read the environment.
    """
    # A default that is no option's value is kept, so that the border can refuse it.
    value: OptionValue = default  # type: ignore[assignment]
    declared = Option("", type, value, help, choices, minimum, maximum, environment)
    field: T = dataclasses.field(default=default, metadata={_METADATA_KEY: declared})
    return field


def choice(choices: tuple[T, ...], help: str) -> T:
    """Declare a field as an option that is one of these words, by default the first.

    A first None means: not given, so that none of them is the default.
    """
    words = tuple(word for word in choices if isinstance(word, str))
    return option(OptionType.TEXT, choices[0], help, choices=words)


def optional(
    help: str,
    type: OptionType = OptionType.TEXT,
    *,
    minimum: float | None = None,
    maximum: float | None = None,
) -> T | None:
    """Declare a field as an option that is None where it is not given."""
    return option(type, None, help, minimum=minimum, maximum=maximum)


def declared_options(record: type) -> tuple[Option, ...]:
    """The options that a record class declares, in the order of its fields.

    Raises `TypeError` for what is no dataclass, and for a field that was not made by `option`.
    """
    if not dataclasses.is_dataclass(record):
        raise TypeError(f"{record!r:.60} is not a dataclass of options")
    found = []
    for field in dataclasses.fields(record):
        declared = field.metadata.get(_METADATA_KEY)
        if not isinstance(declared, Option):
            raise TypeError(f"field {field.name} of {record.__name__} is not made by option(...)")
        found.append(dataclasses.replace(declared, name=field.name))
    return tuple(found)


Reference = str
"""`"package.module:function"`."""


def resolve(reference: Reference) -> Callable[..., object]:
    """Import the function that a reference names. Errors of the import pass through."""
    module, _, attribute = reference.partition(":")
    function: Callable[..., object] = getattr(importlib.import_module(module), attribute)
    return function
