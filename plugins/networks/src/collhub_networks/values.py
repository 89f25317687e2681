"""Values of documents with their position, and findings about accepted input.

Every error names file and path; findings of a reader are collected and reported once per kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation
from typing import NoReturn

from hub_core.model import Diagnostic, InputError, Location, Severity

_MAX_SHOWN_CHARACTERS = 80
_MAX_DIGITS = 40
_TYPE_NAMES: dict[type, str] = {
    dict: "an object",
    list: "a list",
    str: "text",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    type(None): "nothing",
}


@dataclass(frozen=True, slots=True)
class Value:
    """A value of a document: `raw` as parsed, `path` such as `$.links[3].name`, and the file.

    `code`: code of the errors. All methods raise `InputError` with file, path, expected and actual
    value.
    """

    file: str
    raw: object
    path: str = "$"
    code: str = "invalid-document"

    def fail(
        self,
        message: str,
        cure: str = "",
    ) -> NoReturn:
        """Raise `InputError` whose message begins with the path of this value; its location is the
        file, its code that of the value.
        """
        place = Location(self.file)
        raise InputError(
            f"{self.path}: {message}",
            location=place,
            cure=cure,
            code=self.code,
        )

    def __getitem__(self, key: str) -> Value:
        """Return the value of a required key.

        Raises `InputError` if the key is absent or null (with the first 8 keys), and for a value
        that is no object.
        """
        # Null counts as absent: some writers emit keys without values.
        value = self.get(key)
        if value is None:
            keys = ", ".join(map(str, list(self._require_object())[:8]))
            self.fail(f"{key!r} is missing", f"add {key}; the keys are: {keys or 'none'}")
        return value

    def get(self, key: str) -> Value | None:
        """The value of a key; None if the key is absent or its value is null.

        Raises `InputError` for a value that is no object.
        """
        raw = self._require_object().get(key)
        return None if raw is None else self._build_child(f".{key}", raw)

    def entries(self) -> Iterator[tuple[str, Value]]:
        """Yield keys (as text) and values of an object, in the order of the file.

        Raises `InputError` for a value that is no object.
        """
        for key, raw in self._require_object().items():
            name = str(key)
            yield name, self._build_child(f".{name[:_MAX_SHOWN_CHARACTERS]}", raw)

    def items(self) -> Iterator[Value]:
        """Yield the values of a list in order; `InputError` for a value that is no list."""
        if not isinstance(self.raw, list):
            self._fail_type("a list")
        for index, raw in enumerate(self.raw):
            yield self._build_child(f"[{index}]", raw)

    def items_of(self, key: str) -> Iterator[Value]:
        """Yield the values of the list at a key in order; none if the key is absent or null.

        Raises `InputError` for a value that is no list.
        """
        value = self.get(key)
        if value is not None:
            yield from value.items()

    def text(self) -> str:
        """The value as text of at least one character.

        Integers are converted, since YAML parses a name `7` as a number. Raises `InputError` for
        other types, including true and false, and for an empty text.
        """
        if isinstance(self.raw, int) and not isinstance(self.raw, bool):
            return str(self.raw)
        if not isinstance(self.raw, str) or not self.raw:
            self._fail_type("text")
        return self.raw

    def text_of(
        self,
        key: str,
        default: str,
    ) -> str:
        """The text at a key, or `default` if the key is absent or null.

        Raises `InputError` for another type.
        """
        value = self.get(key)
        return default if value is None else value.text()

    def count(self, maximum: int) -> int:
        """Return the value as an integer from 1 to `maximum`, both included.

        Raises `InputError` for other types, including true, false and all numbers with a point, and
        for integers out of range.
        """
        # In Python, True is an integer; in a document it is not.
        if not isinstance(self.raw, int) or isinstance(self.raw, bool):
            self._fail_type("a whole number")
        if not 1 <= self.raw <= maximum:
            shown = str(self.raw)[:_MAX_SHOWN_CHARACTERS]
            self.fail(f"{shown} is not in 1..{maximum}", "check for a digit too many")
        return self.raw

    def number(self) -> Decimal:
        """Return the value as a finite number, exact to the digits of the file.

        Texts that are numbers are accepted, since YAML parses 1e3 as text. Raises `InputError` for
        other values, true and false, infinity, and more than 40 characters.
        """
        # YAML parses 1e3, without point and sign, as text.
        is_number = isinstance(self.raw, int | float | str) and not isinstance(self.raw, bool)
        # The shortest text of a float is the text of the file, up to digits beyond double
        # precision.
        text = repr(self.raw) if isinstance(self.raw, float) else str(self.raw)
        if not is_number or len(text) > _MAX_DIGITS or "_" in text:
            self._fail_type("a number")
        try:
            number = Decimal(text)
        except InvalidOperation:
            self._fail_type("a number")
        if not number.is_finite():
            self._fail_type("a finite number")
        return number

    def _require_object(self) -> dict[str, object]:
        """Return the value as an object, possibly empty; raise `InputError` for another type."""
        if not isinstance(self.raw, dict):
            self._fail_type("an object")
        return self.raw

    def _fail_type(self, expected: str) -> NoReturn:
        """Raise `InputError` for a wrong type; the message has `expected` (in words), the actual
        type and, of a text, its first `_MAX_SHOWN_CHARACTERS` characters.
        """
        actual = _TYPE_NAMES.get(type(self.raw), type(self.raw).__name__)
        shown = f" {self.raw[:_MAX_SHOWN_CHARACTERS]!r}" if isinstance(self.raw, str) else ""
        self.fail(f"expected {expected}, got {actual}{shown}")

    def _build_child(
        self,
        step: str,
        raw: object,
    ) -> Value:
        """Wrap `raw` as a value of the same file and code; `step` is appended to the path without a
        separator.
        """
        return Value(
            self.file,
            raw,
            self.path + step,
            self.code,
        )


class NetworkFindings:
    """Warnings and notes by code, in order of their first occurrence.

    A network repeats its devices, so missing data is missing in many places: the user gets the
    first place and the number of places.
    """

    def __init__(self) -> None:
        self._by_code: dict[str, tuple[Diagnostic, int]] = {}

    def warn(self, code: str, place: Location, message: str, cure: str = "") -> None:
        """Record a warning at a place; the first one of a code gives the message."""
        self._add(Diagnostic(code, message, Severity.WARNING, place, cure))

    def note(self, code: str, place: Location, message: str, cure: str = "") -> None:
        """Record a note, for example about supplied values; otherwise as `warn`."""
        self._add(Diagnostic(code, message, Severity.NOTE, place, cure))

    def tell(self, report: Callable[[Diagnostic], None]) -> None:
        """Report the first finding of every code, in the order of their first occurrence.

        If there are more of a code, their number is appended to the message.
        """
        for first, count in self._by_code.values():
            # Hundreds of equal lines would hide the remaining ones.
            more = f" (and {count - 1} more such places)" if count > 1 else ""
            report(replace(first, message=first.message + more))

    def _add(self, new: Diagnostic) -> None:
        """Count a finding under its code; only the first one of a code is stored."""
        first, count = self._by_code.get(new.code, (new, 0))
        self._by_code[new.code] = (first, count + 1)
