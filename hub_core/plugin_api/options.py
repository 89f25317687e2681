"""Options and rules of findings that offers declare, and references to the functions of offers."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
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
    """How the text of an option is parsed.

    BOOL: a word of `BOOL_WORDS`. SIZE: `1MiB` to bytes, int. TIME: `500ns` to seconds, float.
    BANDWIDTH: `50GB/s` to bytes per second, float. PATH: unchanged text. PAIRS: several options
    `name.key=value`, to text with one line `key=value` each, ordered by key.
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
    """A declared option: the arguments of `option`, with the name of the field.

    `default` None means: not given. `minimum` and `maximum` limit INT, FLOAT, SIZE, TIME and
    BANDWIDTH, both inclusive; INT is at most `MAX_INTEGER` unless `maximum` is larger.
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
    """Options of an offer that has none."""


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

    An example is `chunks: int = option(OptionType.INT, 1, "Chunks a rank.", minimum=1)`. `choices`:
    allowed texts, () for any. `minimum`, `maximum`: limits of numbers, included. `environment`:
    name of a variable that the program reads if the option is not given; plugins never read the
    environment themselves. Nothing is checked here: the check of the plugin reports an invalid
    default.
    """
    # An invalid default is kept, so that the check of the plugin can report it.
    value: OptionValue = default  # type: ignore[assignment]
    declared = Option("", type, value, help, choices, minimum, maximum, environment)
    field: T = dataclasses.field(default=default, metadata={_METADATA_KEY: declared})
    return field


def choice(choices: tuple[T, ...], help: str) -> T:
    """Declare a field as an option of type TEXT with these values; the first one is the default.

    If the first value is None, it means that the option is not given.
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
    """Declare a field as an option that is None if it is not given."""
    return option(type, None, help, minimum=minimum, maximum=maximum)


@lru_cache(maxsize=256)
def declared_options(record: type) -> tuple[Option, ...]:
    """Return the options that a record class declares, in the order of its fields; cached.

    They have the names of the fields; those of base classes come first. Raises `TypeError` if it is
    not a dataclass, and for the first field that was not declared with `option`.
    """
    if not dataclasses.is_dataclass(record):
        raise TypeError(f"{record!r:.60} is not a dataclass of options")
    options = []
    for field in dataclasses.fields(record):
        declared = field.metadata.get(_METADATA_KEY)
        if not isinstance(declared, Option):
            raise TypeError(f"field {field.name} of {record.__name__} is not made by option(...)")
        options.append(dataclasses.replace(declared, name=field.name))
    return tuple(options)


Reference = str
"""`"package.module:function"`."""


def resolve(reference: Reference) -> Callable[..., object]:
    """Import and return the function of a reference `module:function`.

    Raises `ImportError` or `AttributeError` if it does not exist; other exceptions of the module's
    code pass through.
    """
    module, _, attribute = reference.partition(":")
    function: Callable[..., object] = getattr(importlib.import_module(module), attribute)
    return function


@dataclass(frozen=True, slots=True)
class Rule:
    """Declaration of the findings with one identifier, which is `code` of their diagnostics.

    `name`: kebab-case; several plugins may declare the same name, each for its own `subject`.
    `subject`: the checked files or the check, in a few words, such as `plans of MSCCL++`.
    `meaning`: one sentence. `cause`: how such an input comes about. `cure`: action that removes the
    finding. `example`: part of an input that causes it.
    """

    name: str
    subject: str
    meaning: str
    cause: str
    cure: str
    example: str

    @property
    def page(self) -> str:
        """The page of the rule in Markdown, without its heading."""
        return (
            f"{self.meaning}\n\n"
            f"- Checked: {self.subject}\n"
            f"- Cause: {self.cause}\n"
            f"- Cure: {self.cure}\n"
            f"- Example: {self.example}\n"
        )


@dataclass(frozen=True, slots=True)
class RuleSet:
    """`rules() -> Sequence[Rule]`: declarations of the findings of a plugin's checks and readers.

    They are listed when `collhub explain` or a report needs them, not when the plugin is loaded.
    """

    name: str
    description: str
    rules: Reference


def declare_rules(subject: str, rows: Iterable[tuple[str, str, str, str, str]]) -> list[Rule]:
    """Return one rule per row of name, meaning, cause, cure and example, all of one subject."""
    return [
        Rule(name, subject, meaning, cause, cure, example)
        for name, meaning, cause, cure, example in rows
    ]


def declare_similar_rules(
    subject: str, rows: Iterable[tuple[str, str, str]], *, cause: str, cure: str
) -> list[Rule]:
    """Return one rule per row of name, meaning and example, all of one subject, cause and cure."""
    return [Rule(name, subject, meaning, cause, cure, example) for name, meaning, example in rows]
