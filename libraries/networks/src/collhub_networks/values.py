"""Values of documents that know where they stand, so that every error names file and path."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import NoReturn

from hub_core.model import InputError, Location

_LONGEST = 80
_MOST_DIGITS = 40
_NAMES: dict[type, str] = {
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
    """One value of a document: `raw` as parsed, `path` as in `$.links[3].name`, and the file.

    `code`: that of the errors. All methods raise `InputError` with file, path, what was expected
    and what was found.
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
        """Raise `InputError` for this value."""
        place = Location(self.file)
        raise InputError(
            f"{self.path}: {message}",
            location=place,
            cure=cure,
            code=self.code,
        )

    def __getitem__(self, key: str) -> Value:
        """The value of a key that has to be there."""
        # Null stands for absent: writers leave keys without values.
        found = self.get(key)
        if found is None:
            stated = ", ".join(map(str, list(self._object())[:8]))
            self.fail(f"{key!r} is missing", f"state {key}; the keys are: {stated or 'none'}")
        return found

    def get(self, key: str) -> Value | None:
        """The value of a key, None where the key, or its value, is absent."""
        raw = self._object().get(key)
        return None if raw is None else self._within(f".{key}", raw)

    def entries(self) -> Iterator[tuple[str, Value]]:
        """Keys and values of an object, in the order of the file."""
        for key, raw in self._object().items():
            name = str(key)
            yield name, self._within(f".{name[:_LONGEST]}", raw)

    def items(self) -> Iterator[Value]:
        """The values of a list."""
        if not isinstance(self.raw, list):
            self._expected("a list")
        for index, raw in enumerate(self.raw):
            yield self._within(f"[{index}]", raw)

    def items_of(self, key: str) -> Iterator[Value]:
        """The values of the list that a key names; nothing where the key is absent."""
        found = self.get(key)
        if found is not None:
            yield from found.items()

    def text(self) -> str:
        """Text of at least one character. Numbers are taken as text: YAML makes 7 of a name `7`."""
        if isinstance(self.raw, int) and not isinstance(self.raw, bool):
            return str(self.raw)
        if not isinstance(self.raw, str) or not self.raw:
            self._expected("text")
        return self.raw

    def text_of(
        self,
        key: str,
        default: str,
    ) -> str:
        """The text of a key, or the default where the key is absent."""
        found = self.get(key)
        return default if found is None else found.text()

    def count(self, most: int) -> int:
        """A whole number from 1 to `most`."""
        # True is a whole number to Python, and none to a document.
        if not isinstance(self.raw, int) or isinstance(self.raw, bool):
            self._expected("a whole number")
        if not 1 <= self.raw <= most:
            shown = str(self.raw)[:_LONGEST]
            self.fail(f"{shown} is not in 1..{most}", "check for a digit too many")
        return self.raw

    def number(self) -> Decimal:
        """A finite number, exact to the digits of the file."""
        # YAML takes 1e3, without a point and a sign, for text.
        is_number = isinstance(self.raw, int | float | str) and not isinstance(self.raw, bool)
        # Its shortest text is what the file said, up to digits that no double keeps.
        text = repr(self.raw) if isinstance(self.raw, float) else str(self.raw)
        if not is_number or len(text) > _MOST_DIGITS or "_" in text:
            self._expected("a number")
        try:
            number = Decimal(text)
        except InvalidOperation:
            self._expected("a number")
        if not number.is_finite():
            self._expected("a finite number")
        return number

    def _object(self) -> dict[str, object]:
        if not isinstance(self.raw, dict):
            self._expected("an object")
        return self.raw

    def _expected(self, what: str) -> NoReturn:
        found = _NAMES.get(type(self.raw), type(self.raw).__name__)
        shown = f" {self.raw[:_LONGEST]!r}" if isinstance(self.raw, str) else ""
        self.fail(f"expected {what}, got {found}{shown}")

    def _within(
        self,
        step: str,
        raw: object,
    ) -> Value:
        return Value(
            self.file,
            raw,
            self.path + step,
            self.code,
        )
