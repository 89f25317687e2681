"""Metadata of installed distributions, read from their folders as text.

The standard library parses each METADATA file as an e-mail, with a package that takes longer to
import than all plugins together; here a few header lines are sufficient. Entries of `sys.path` that
are no folders, such as zip archives, use the standard library.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

_INFO_FOLDER = re.compile(r"(?P<name>.+?)(-(?P<version>[^-]+)(-.*)?)?\.(dist|egg)-info\Z")
_HEADER_FILES = ("METADATA", "PKG-INFO")


@dataclass(frozen=True)
class EntryPoint:
    """One line of a group in `entry_points.txt`: `name = module:attribute`."""

    name: str
    value: str

    def load(self) -> object:
        """Import the module of the entry point; return it, or its attribute after the colon.

        The attribute may be dotted, such as `Class.method`. Raise `ImportError` if the module
        cannot be imported, and `AttributeError` if the attribute is missing. Other exceptions
        of the module's code are not caught.
        """
        module, _, attribute = self.value.partition(":")
        target: object = importlib.import_module(module.strip())
        for part in filter(None, attribute.strip().split(".")):
            target = getattr(target, part)
        return target


@dataclass(frozen=True)
class Distribution:
    """An installed distribution, given by the folder of its metadata."""

    folder: Path

    @cached_property
    def name(self) -> str:
        """Name in the metadata, else in the name of the folder."""
        return (
            self._get_headers("Name")[0]
            if self._get_headers("Name")
            else self._parse_folder_name("name")
        )

    @cached_property
    def version(self) -> str:
        """The version of the distribution as text, or "" if it is unknown.

        It is taken from the metadata, otherwise from the folder's name
        `NAME-VERSION.dist-info`.
        """
        versions = self._get_headers("Version")
        return versions[0] if versions else self._parse_folder_name("version")

    @property
    def requires(self) -> list[str]:
        """Unparsed requirement lines."""
        return self._get_headers("Requires-Dist")

    def entry_points(self, group: str) -> list[EntryPoint]:
        """Return the entry points of a group, in the order of `entry_points.txt`.

        A group has all lines from a line `[GROUP]` to the next line that begins with `[`. A group
        that occurs twice is read twice. Blank lines and lines that begin with `#` or `;` are
        skipped. `name = module:object [extra]` gives the name `name` and the value
        `module:object`, without surrounding blanks and extras. The result is [] without the file
        or the group. Only the first 64 KiB of the file are read.

        Raises `ValueError` for a line of the group without `=` or a module after it (other groups
        are not checked), and for text that is not UTF-8. Raises `OSError` for an unreadable file.
        """
        text = self.entry_point_text()
        entries = []
        current = ""
        for line in map(str.strip, text.splitlines()):
            if line.startswith("["):
                current = line.strip("[]").strip()
            elif line and current == group and not line.startswith(("#", ";")):
                name, equals, value = line.partition("=")
                if not equals or not re.match(r"\s*\w+(\.\w+)*\s*(:|\Z|\[)", value):
                    raise ValueError(f"{line!r} is not 'name = module'")
                entries.append(EntryPoint(name.strip(), value.partition("[")[0].strip()))
        return entries

    def entry_point_text(self) -> str:
        """Return the text of `entry_points.txt`; empty if the file is missing."""
        try:
            return _read_start(self.folder / "entry_points.txt").decode("utf-8")
        except FileNotFoundError:
            return ""

    @cached_property
    def _header_lines(self) -> list[str]:
        for name in _HEADER_FILES:
            path = self.folder / name
            if path.is_file():
                # The description after the first empty line is ignored.
                text = _read_start(path).decode("utf-8", "replace").replace("\r\n", "\n")
                return text.partition("\n\n")[0].split("\n")
        return []

    def _get_headers(self, key: str) -> list[str]:
        prefix = f"{key}:"
        lines = [line for line in self._header_lines if line.startswith(prefix)]
        return [line.removeprefix(prefix).strip() for line in lines]

    def _parse_folder_name(self, part: str) -> str:
        match = _INFO_FOLDER.match(self.folder.name)
        return (match[part] or "") if match else ""


def _read_start(path: Path) -> bytes:
    """Read the first 64 KiB of a file, which contain headers and entry points."""
    with path.open("rb") as file:
        return file.read(1 << 16)


def canonical_name(name: str) -> str:
    """Return the name by which distributions are compared (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def installed_distributions() -> Iterator[Distribution]:
    """Yield all installed distributions in the order of `sys.path`, including repeated ones.

    They are the folders and files `*.dist-info` and `*.egg-info` in an entry, by name, or those
    at the top of a zip archive. "" means the current folder. Repeated, missing and
    unreadable entries of the path are skipped.
    """
    for entry in dict.fromkeys(sys.path):
        try:
            names = sorted(os.listdir(entry or "."))
        except NotADirectoryError:
            yield from _find_archived(entry)
            continue
        except OSError:
            continue
        for name in names:
            if name.endswith((".dist-info", ".egg-info")):
                yield Distribution(Path(entry or ".", name))


def find_distribution(name: str) -> Distribution:
    """Find an installed distribution by its name, in any usual spelling.

    Of several, the first one on the search path is returned. Raises `ModuleNotFoundError` if it is
    not installed.
    """
    canonical = canonical_name(name)
    for distribution in installed_distributions():
        stem = canonical_name(distribution.folder.name)
        if stem.startswith(canonical) and canonical_name(distribution.name) == canonical:
            return distribution
    raise ModuleNotFoundError(f"the distribution {name!r} is not installed")


def installed_version(name: str) -> str | None:
    """Return the version of an installed distribution, or None.

    A version that was found once on a path is not searched for again.
    """
    try:
        return _find_version(name, tuple(sys.path))
    except ModuleNotFoundError:
        return None


@lru_cache(maxsize=64)
def _find_version(name: str, path: tuple[str, ...]) -> str:
    """Return the version of a distribution on `path`, which is `sys.path`; raises as
    `find_distribution`.
    """
    return find_distribution(name).version


def _find_archived(entry: str) -> Iterator[Distribution]:
    """Yield the distributions in a zip archive on the search path, in the archive's order.

    They are the folders `*.dist-info` and `*.egg-info` at the top of the archive. Yields no
    items if `entry` does not exist, or is no archive or a damaged one, which Python's own
    import ignores too.
    """
    # Imported here: archives are rare, and the package takes long to import.
    import zipfile

    try:
        root = zipfile.Path(entry)
    except (OSError, zipfile.BadZipFile):
        return
    for folder in root.iterdir():
        if folder.name.endswith((".dist-info", ".egg-info")):
            # A path in an archive has the methods of `Path` that are used here.
            yield Distribution(folder)  # type: ignore[arg-type]
