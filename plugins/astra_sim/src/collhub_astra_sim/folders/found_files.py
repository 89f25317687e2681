"""The files of a folder that was written for ASTRA-sim: configurations, and sets of traces."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePath

from hub_core.model import InputError, Location
from hub_core.plugin_api import Source, SourcePart

LONGEST_TEXT = 1 << 20
"""Maximum bytes of a configuration; longer files are ignored."""

_MOST_TEXTS = 64
_RANK_FILE = re.compile(r"(?P<prefix>.+)\.(?P<rank>0|[1-9][0-9]{0,6})\.et\Z", re.DOTALL)


@dataclass(frozen=True, slots=True)
class FolderFiles:
    """A folder as its reader receives it.

    `source`: as named by the user. `root`: the folder. `files`: by path in the folder. `sets`: the
    files PREFIX.<rank>.et by prefix in the folder, each part with its rank.
    """

    source: Source
    root: str
    files: Mapping[str, SourcePart]
    sets: Mapping[str, tuple[SourcePart, ...]]

    @classmethod
    def of(cls, source: Source) -> FolderFiles:
        """Classify the parts of a source: files `PREFIX.<rank>.et` form sets, by their prefixes.

        Names are relative to the deepest folder that contains all parts.
        """
        folders = {os.path.dirname(part.name) for part in source.parts}
        root = os.path.commonpath(folders) if folders else ""
        files = {_make_relative(part.name, root): part for part in source.parts}
        sets: dict[str, list[SourcePart]] = {}
        for name, part in files.items():
            match = _RANK_FILE.match(name)
            if match:
                ranked = SourcePart(part.name, part.load, int(match["rank"]), part.size)
                sets.setdefault(match["prefix"], []).append(ranked)
        return cls(source, root, files, {prefix: tuple(sets[prefix]) for prefix in sorted(sets)})

    @property
    def chosen_prefix(self) -> str | None:
        """The set of traces that the user named, None if the user named the folder.

        The name of the source, relative to the root, is looked up among the prefixes.
        """
        name = _make_relative(self.source.name, self.root)
        return name if name in self.sets else None

    def source_of(self, prefix: str) -> Source:
        """Return a set of traces as a separate source, which reports to the same receiver.

        Raises `KeyError` for a prefix without traces.
        """
        name = os.path.join(self.root, prefix)
        return Source(name, self.sets[prefix], self.source.report)

    def part_at(self, path: str) -> SourcePart | None:
        """Return the file that a path in a configuration names.

        None if no file matches, or if several match equally well.
        """
        name = _find_match(path, list(self.files))
        return self.files[name] if name is not None else None

    def set_at(self, path: str) -> str | None:
        """Return the prefix of the set of traces that a path in a configuration names.

        None as in `part_at`.
        """
        return _find_match(path, list(self.sets))

    def texts(self, *suffixes: str) -> Iterator[tuple[str, bytes]]:
        """Yield (path in the folder, content) of short files with one of these suffixes.

        In order of depth, then of name; at most `_MOST_TEXTS` files.
        """
        names = [name for name in self.files if name.endswith(suffixes)]
        names.sort(key=lambda name: (name.count("/"), name))
        for name in names[:_MOST_TEXTS]:
            part = self.files[name]
            if part.size is None or 0 < part.size <= LONGEST_TEXT:
                yield name, part.load()

    def objects(self) -> Iterator[tuple[str, dict[str, object]]]:
        """Yield (path in the folder, content) of the JSON files that contain an object."""
        for name, content in self.texts(".json"):
            try:
                value = json.loads(content)
            except (ValueError, RecursionError):
                continue
            if isinstance(value, dict):
                yield name, value

    def error(self, message: str, cure: str = "", file: str = "") -> InputError:
        """Create an error about a file of the folder, or about the folder."""
        location = Location(self.files[file].name if file else self.source.name)
        return InputError(message, location=location, cure=cure, code="astra-sim-folder")


def _make_relative(name: str, root: str) -> str:
    """Return a path relative to the root, if it is below it, with `/` as separator."""
    path = PurePath(name)
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else path.as_posix()


def _find_match(path: str, names: list[str]) -> str | None:
    """Return the only name that matches the longest possible tail of a path.

    Paths are relative to the simulator's working directory, which is unknown for folders of other
    programs. None without a match.
    """
    parts = PurePath(os.path.normpath(path)).parts
    for first in range(len(parts)):
        tail = parts[first:]
        fitting = [name for name in names if PurePath(name).parts[-len(tail) :] == tail]
        if len(fitting) == 1:
            return fitting[0]
        if PurePath(*tail).as_posix() in fitting:
            return PurePath(*tail).as_posix()
    return None
