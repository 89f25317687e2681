"""Read the description of the library that is built in a folder of the format `nccl`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hub_core.model import InputError, Location

_FILE = "collhub.json"
_FORMAT, _VERSION = "collhub-nccl-library", 1
# Far above the size of valid files.
_MOST_BYTES = 1 << 16
_MOST_RANKS = 1 << 20
_FUNCTIONS = ("run", "release", "error", "level")
_CURE = "write the folder by collhub convert ALGORITHM --to nccl -o FOLDER"


@dataclass(frozen=True, slots=True)
class Manifest:
    """Contents of the folder's description.

    `library`: the file of the library for a kind of device; it may not be built yet. `functions`:
    the names of the C functions by role.
    """

    folder: Path
    name: str
    collective: str
    num_ranks: int
    root: int | None
    reduces: bool
    library: Mapping[str, Path]
    functions: Mapping[str, str]


def read_manifest(folder: Path) -> Manifest:
    """Read the description. Raises `InputError` with the file and the field."""
    path = folder / _FILE
    document = _Fields(path, _read_document(path))
    if (document.text("format"), document.number("version")) != (_FORMAT, _VERSION):
        document.refuse("format", f"{_FORMAT}, version {_VERSION}")
    ranks = document.number("num_ranks")
    if not 1 <= ranks <= _MOST_RANKS:
        document.refuse("num_ranks", f"a number of ranks in 1..{_MOST_RANKS}")
    libraries = document.fields("library")
    functions = document.fields("functions")
    return Manifest(
        folder,
        document.word("name"),
        document.text("collective"),
        ranks,
        document.optional_number("root"),
        document.flag("reduces"),
        {device: folder / libraries.file(device) for device in ("cuda", "cpu")},
        {role: functions.word(role) for role in _FUNCTIONS},
    )


def _read_document(path: Path) -> Mapping[str, object]:
    """Return the JSON object of the file. Raises `InputError`."""
    location = Location(str(path))
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise InputError(f"more than {_MOST_BYTES} bytes", location=location, cure=_CURE)
        content_object = json.loads(content)
    except OSError as error:
        message = f"the folder of a library has this file: {error.strerror}"
        raise InputError(message, location=location, cure=_CURE) from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"no JSON: {error}", location=location, cure=_CURE) from None
    if not isinstance(content_object, dict):
        raise InputError("expected an object", location=location, cure=_CURE)
    return content_object


@dataclass(frozen=True, slots=True)
class _Fields:
    """Fields of an object, with typed access that raises `InputError`."""

    path: Path
    values: Mapping[str, object]

    def refuse(self, name: str, expected: str) -> None:
        """Raise the `InputError` of a field."""
        shown = repr(self.values.get(name))[:60]
        message = f"{name}: expected {expected}, got {shown}"
        raise InputError(message, location=Location(str(self.path)), cure=_CURE)

    def text(self, name: str) -> str:
        """Return a string."""
        value = self.values.get(name)
        if not isinstance(value, str):
            self.refuse(name, "a string")
        return str(value)

    def word(self, name: str) -> str:
        """Return a C identifier, which becomes part of other names."""
        value = self.text(name)
        if not (value.isascii() and value.isidentifier()):
            self.refuse(name, "letters, digits and _")
        return value

    def file(self, name: str) -> str:
        """Return the name of a file in the folder: files outside must not be loaded."""
        value = self.text(name)
        if value != Path(value).name or not value:
            self.refuse(name, "the name of a file in this folder")
        return value

    def number(self, name: str) -> int:
        """Return an integer."""
        value = self.values.get(name)
        if not isinstance(value, int) or isinstance(value, bool):
            self.refuse(name, "a whole number")
            raise AssertionError
        return value

    def optional_number(self, name: str) -> int | None:
        """Return an integer, or None for null."""
        return None if self.values.get(name) is None else self.number(name)

    def flag(self, name: str) -> bool:
        """Return a boolean."""
        value = self.values.get(name)
        if not isinstance(value, bool):
            self.refuse(name, "true or false")
        return value is True

    def fields(self, name: str) -> _Fields:
        """Return a nested object."""
        value = self.values.get(name)
        if not isinstance(value, dict):
            self.refuse(name, "an object")
            raise AssertionError
        return _Fields(self.path, value)
