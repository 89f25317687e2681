"""Results kept by content: the same question of the same versions is not measured twice.

A file an algorithm and question, with all sizes, written as a whole or not at all, in the user's
cache folder. What cannot be read is measured again; what cannot be written is not kept.
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

_SCHEMA = "collhub/compared-4"
# Fields of a measurement without its algorithm: size, time, why there is none, made for which size.
_Row = tuple[int, int | None, str, int | None, int | None, int]


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
        """What is known of an algorithm, one measurement a size; None where nothing is."""
        if self._folder is None:
            return None
        rows = _read(self._path(self._folder, compared, question))
        if [size for size, *_ in rows] != list(question.sizes):
            return None
        return [Measurement(compared.name, *row) for row in rows]

    def keep(
        self,
        compared: ComparedAlgorithm,
        question: ComparisonQuestion,
        measurements: Sequence[Measurement],
    ) -> None:
        """Keep what was measured, where the folder can be written."""
        if self._folder is None:
            return
        rows = [
            (one.size, one.time_ns, one.failure, one.made_for, one.time_ps, one.slack_ps)
            for one in measurements
        ]
        self.defect = self.defect or _write(self._path(self._folder, compared, question), rows)

    def _path(
        self, folder: Path, compared: ComparedAlgorithm, question: ComparisonQuestion
    ) -> Path:
        asked = asdict(replace(question, topology=self._network))
        parts = [_SCHEMA, asked, _content(compared), self._versions]
        name = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
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


def _read(path: Path) -> list[_Row]:
    """What a file holds; nothing where there is none of this form."""
    try:
        rows = [_row(*row) for row in json.loads(path.read_bytes())["results"]]
    except (OSError, ValueError, TypeError, KeyError):
        return []
    return rows


def _row(*values: object) -> _Row:
    """The values of one row. Raises `ValueError` for values of other types."""
    size, time_ns, failure, made_for, time_ps, slack_ps = values
    if not (isinstance(size, int) and isinstance(failure, str) and isinstance(slack_ps, int)):
        raise ValueError("a row has no size, no reason or no slack")
    if not (
        isinstance(time_ns, int | None)
        and isinstance(made_for, int | None)
        and isinstance(time_ps, int | None)
    ):
        raise ValueError("a row has a time that is no integer")
    return size, time_ns, failure, made_for, time_ps, slack_ps


def _write(path: Path, rows: Sequence[_Row]) -> str:
    """Why it could not be written; empty where it was."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
            json.dump({"schema": _SCHEMA, "results": rows}, file)
        os.replace(file.name, path)
    except OSError as error:
        # A cache is a favour: without it the result is the same.
        return f"{error.filename or path}: {error.strerror or error}"
    return ""
