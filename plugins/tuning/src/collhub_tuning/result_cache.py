"""Results kept by content: the same question of the same versions is not measured twice.

A file a question, written as a whole or not at all, in the user's cache folder. What cannot be
read is measured again; what cannot be written is not kept.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from collhub_tuning.questions import ComparedAlgorithm, ComparisonQuestion, Measurement

_SCHEMA = "collhub/compared-1"


def cache_folder(environment: Mapping[str, str]) -> Path:
    """`$XDG_CACHE_HOME/collhub/compare`, by default below `~/.cache`."""
    base = environment.get("XDG_CACHE_HOME", "")
    return (Path(base) if base else Path.home() / ".cache") / "collhub" / "compare"


class ResultCache:
    """Measurements of algorithms at sizes, for one network and one state of the installation.

    `topology`: content of the network; `versions`: of all that takes part, by name. `defect`: why
    something could not be kept, empty where all was.
    """

    def __init__(self, folder: Path | None, topology: bytes, versions: Mapping[str, str]) -> None:
        self.defect = ""
        self._folder = folder
        self._network = hashlib.sha256(topology).hexdigest()
        self._versions = dict(sorted(versions.items()))

    def find(
        self, compared: ComparedAlgorithm, question: ComparisonQuestion
    ) -> list[Measurement] | None:
        """What is known of an algorithm, one measurement a size; None unless all sizes are."""
        if self._folder is None:
            return None
        known_by = _content(compared)
        found = []
        for size in question.sizes:
            content = _read(self._path(self._folder, known_by, question, size))
            if content is None:
                return None
            found.append(Measurement(compared.name, size, *content))
        return found

    def keep(
        self,
        compared: ComparedAlgorithm,
        question: ComparisonQuestion,
        measurements: Sequence[Measurement],
    ) -> None:
        """Keep what was measured, where the folder can be written."""
        if self._folder is None:
            return
        known_by = _content(compared)
        for found in measurements:
            path = self._path(self._folder, known_by, question, found.size)
            content = {"time_ns": found.time_ns, "failure": found.failure}
            self.defect = self.defect or _write(path, {"schema": _SCHEMA, **content})

    def _path(
        self, folder: Path, known_by: Sequence[str], question: ComparisonQuestion, size: int
    ) -> Path:
        asked = asdict(replace(question, topology=self._network, sizes=(size,)))
        key = json.dumps([_SCHEMA, asked, known_by, self._versions], sort_keys=True)
        name = hashlib.sha256(key.encode()).hexdigest()
        return folder / name[:2] / f"{name}.json"


def _content(compared: ComparedAlgorithm) -> list[str]:
    """What an algorithm is known by: its name, or the content of its file or files."""
    if not compared.is_file:
        return [compared.name]
    place = Path(compared.name)
    if place.is_dir():
        files = sorted(place.rglob("*"))
    elif place.is_file():
        files = [place]
    else:
        files = sorted(place.parent.glob(f"{place.name}.*"))
    return [hashlib.sha256(file.read_bytes()).hexdigest() for file in files if file.is_file()]


def _read(path: Path) -> tuple[int | None, str] | None:
    """(time, failure) that a file holds; None where there is none of this form."""
    try:
        found = json.loads(path.read_bytes())
        time_ns, failure = found["time_ns"], found["failure"]
    except (OSError, ValueError, TypeError, KeyError):
        return None
    is_time = time_ns is None or type(time_ns) is int
    return (time_ns, failure) if is_time and isinstance(failure, str) else None


def _write(path: Path, content: Mapping[str, object]) -> str:
    """Why it could not be written; empty where it was."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
            json.dump(content, file)
        os.replace(file.name, path)
    except OSError as error:
        # A cache is a favour: without it the result is the same.
        return f"{error.filename or path}: {error.strerror or error}"
    return ""
