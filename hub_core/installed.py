"""The metadata of installed distributions, read from their folders as text.

The standard library parses each METADATA file as an e-mail, with a package that takes longer to
import than all plugins together; here a few header lines are enough. What is no folder on
`sys.path`, such as a zip archive, is left to the standard library.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

_INFO_FOLDER = re.compile(r"(?P<name>.+?)(-(?P<version>[^-]+)(-.*)?)?\.(dist|egg)-info\Z")
_HEADER_FILES = ("METADATA", "PKG-INFO")


@dataclass(frozen=True)
class EntryPoint:
    """One line of a group in `entry_points.txt`: `name = module:attribute`."""

    name: str
    value: str

    def load(self) -> object:
        """Import the module and return it, or the attribute behind the colon."""
        module, _, attribute = self.value.partition(":")
        found: object = importlib.import_module(module.strip())
        for part in filter(None, attribute.strip().split(".")):
            found = getattr(found, part)
        return found


@dataclass(frozen=True)
class Distribution:
    """An installed distribution by the folder of its metadata."""

    folder: Path

    @cached_property
    def name(self) -> str:
        """The name as its author writes it, else that of the folder."""
        return self._headers("Name")[0] if self._headers("Name") else self._of_folder("name")

    @cached_property
    def version(self) -> str:
        """The version, else that of the folder's name."""
        stated = self._headers("Version")
        return stated[0] if stated else self._of_folder("version")

    @property
    def requires(self) -> list[str]:
        """The requirement lines, unparsed."""
        return self._headers("Requires-Dist")

    def entry_points(self, group: str) -> list[EntryPoint]:
        """The entry points of one group. Raises `ValueError` for a line that names no module."""
        text = self.entry_point_text()
        found = []
        current = ""
        for line in map(str.strip, text.splitlines()):
            if line.startswith("["):
                current = line.strip("[]").strip()
            elif line and current == group and not line.startswith(("#", ";")):
                name, equals, value = line.partition("=")
                if not equals or not re.match(r"\s*\w+(\.\w+)*\s*(:|\Z|\[)", value):
                    raise ValueError(f"{line!r} is not 'name = module'")
                found.append(EntryPoint(name.strip(), value.partition("[")[0].strip()))
        return found

    def entry_point_text(self) -> str:
        """The text of `entry_points.txt`, empty where there is none."""
        try:
            return _start_of(self.folder / "entry_points.txt").decode("utf-8")
        except FileNotFoundError:
            return ""

    @cached_property
    def _header_lines(self) -> list[str]:
        for name in _HEADER_FILES:
            path = self.folder / name
            if path.is_file():
                # The description behind the first empty line is not looked at.
                text = _start_of(path).decode("utf-8", "replace").replace("\r\n", "\n")
                return text.partition("\n\n")[0].split("\n")
        return []

    def _headers(self, key: str) -> list[str]:
        prefix = f"{key}:"
        lines = [line for line in self._header_lines if line.startswith(prefix)]
        return [line.removeprefix(prefix).strip() for line in lines]

    def _of_folder(self, part: str) -> str:
        match = _INFO_FOLDER.match(self.folder.name)
        return (match[part] or "") if match else ""


def _start_of(path: Path) -> bytes:
    """A file's first 64 KiB, which hold headers and entry points; a file may be of any size."""
    with path.open("rb") as file:
        return file.read(1 << 16)


def canonical_name(name: str) -> str:
    """The name by which distributions are compared (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def installed_distributions() -> Iterator[Distribution]:
    """Every installed distribution, in the order of `sys.path`; one installed twice comes twice."""
    for entry in dict.fromkeys(sys.path):
        try:
            names = sorted(os.listdir(entry or "."))
        except NotADirectoryError:
            yield from _archived(entry)
            continue
        except OSError:
            continue
        for name in names:
            if name.endswith((".dist-info", ".egg-info")):
                yield Distribution(Path(entry or ".", name))


def find_distribution(name: str) -> Distribution:
    """The distribution of this name. Raises `ModuleNotFoundError` where it is not installed."""
    wanted = canonical_name(name)
    for found in installed_distributions():
        stem = canonical_name(found.folder.name)
        if stem.startswith(wanted) and canonical_name(found.name) == wanted:
            return found
    raise ModuleNotFoundError(f"the distribution {name!r} is not installed")


def installed_version(name: str) -> str | None:
    """The version of an installed distribution, or None."""
    try:
        return find_distribution(name).version
    except ModuleNotFoundError:
        return None


def _archived(entry: str) -> Iterator[Distribution]:
    """Distributions within a zip archive on the path; their metadata are files of the archive."""
    # Imported here: hardly anybody has one, and the package takes long to import.
    import zipfile

    if not zipfile.is_zipfile(entry):
        return
    root = zipfile.Path(entry)
    for folder in root.iterdir():
        if folder.name.endswith((".dist-info", ".egg-info")):
            # A path within an archive has the methods of `Path` that are used here.
            yield Distribution(folder)  # type: ignore[arg-type]
