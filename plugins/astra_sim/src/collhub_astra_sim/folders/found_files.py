"""The files of a folder that somebody made for ASTRA-sim: configurations, and sets of traces."""

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
"""Bytes of a configuration; longer files are taken for something else."""

_MOST_TEXTS = 64
_RANK_FILE = re.compile(r"(?P<prefix>.+)\.(?P<rank>0|[1-9][0-9]{0,6})\.et\Z", re.DOTALL)


@dataclass(frozen=True, slots=True)
class FolderFiles:
    """A folder as its reader gets it.

    `source`: what the user named. `root`: the folder. `files`: by path in the folder. `sets`: the
    files PREFIX.<rank>.et by prefix in the folder, each part with its rank.
    """

    source: Source
    root: str
    files: Mapping[str, SourcePart]
    sets: Mapping[str, tuple[SourcePart, ...]]

    @classmethod
    def of(cls, source: Source) -> FolderFiles:
        """Sort the parts of a source by what their names say."""
        folders = {os.path.dirname(part.name) for part in source.parts}
        root = os.path.commonpath(folders) if folders else ""
        files = {_relative(part.name, root): part for part in source.parts}
        sets: dict[str, list[SourcePart]] = {}
        for name, part in files.items():
            match = _RANK_FILE.match(name)
            if match:
                ranked = SourcePart(part.name, part.load, int(match["rank"]), part.size)
                sets.setdefault(match["prefix"], []).append(ranked)
        return cls(source, root, files, {prefix: tuple(sets[prefix]) for prefix in sorted(sets)})

    @property
    def chosen_prefix(self) -> str | None:
        """The set of traces that the user named, None where it is the folder as a whole.

        The name of the source, relative to the root, is looked up among the prefixes.
        """
        name = _relative(self.source.name, self.root)
        return name if name in self.sets else None

    def source_of(self, prefix: str) -> Source:
        """A set of traces as a source of its own.

        It reports to where the whole source does. Raises `KeyError` for a prefix without traces.
        """
        name = os.path.join(self.root, prefix)
        return Source(name, self.sets[prefix], self.source.report)

    def part_at(self, stated: str) -> SourcePart | None:
        """The file that a path in a configuration names.

        None where no file fits it, or where several fit it equally well.
        """
        found = _matching(stated, list(self.files))
        return self.files[found] if found is not None else None

    def set_at(self, stated: str) -> str | None:
        """The prefix of the set of traces that a path in a configuration names."""
        return _matching(stated, list(self.sets))

    def texts(self, *suffixes: str) -> Iterator[tuple[str, bytes]]:
        """(path in the folder, content) of short files with one of these suffixes.

        The first ones alone, those least deep before all others.
        """
        named = [name for name in self.files if name.endswith(suffixes)]
        named.sort(key=lambda name: (name.count("/"), name))
        for name in named[:_MOST_TEXTS]:
            part = self.files[name]
            if part.size is None or 0 < part.size <= LONGEST_TEXT:
                yield name, part.load()

    def objects(self) -> Iterator[tuple[str, dict[str, object]]]:
        """(path in the folder, content) of the JSON files that hold an object."""
        for name, content in self.texts(".json"):
            try:
                value = json.loads(content)
            except (ValueError, RecursionError):
                continue
            if isinstance(value, dict):
                yield name, value

    def error(self, message: str, cure: str = "", file: str = "") -> InputError:
        """An error about a file of the folder, or about the folder."""
        place = Location(self.files[file].name if file else self.source.name)
        return InputError(message, location=place, cure=cure, code="astra-sim-folder")


def _relative(name: str, root: str) -> str:
    path = PurePath(name)
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else path.as_posix()


def _matching(stated: str, names: list[str]) -> str | None:
    """The only name that ends like a stated path, by as many of its components as possible.

    Paths hold from where the simulator runs, which for a folder of somebody else may be anywhere.
    """
    parts = PurePath(os.path.normpath(stated)).parts
    for first in range(len(parts)):
        tail = parts[first:]
        fitting = [name for name in names if PurePath(name).parts[-len(tail) :] == tail]
        if len(fitting) == 1:
            return fitting[0]
        if PurePath(*tail).as_posix() in fitting:
            return PurePath(*tail).as_posix()
    return None
