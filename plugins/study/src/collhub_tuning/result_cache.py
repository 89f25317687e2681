"""Results cached by content: the same question to the same versions is not measured twice.

One file holds an algorithm and a question, with all sizes, in the user's cache folder. A file is
written completely or not at all. Its digest covers its name and its results, so that a file that
was damaged or renamed is not used; neither are times that cannot be true. Such results are measured
again. A cache that cannot be written does not change a result.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from collhub_tuning.questions import ComparedAlgorithm, ComparisonQuestion, Measurement

_SCHEMA = "collhub/compared-5"
# 100 days in nanoseconds: no simulated collective takes longer.
_MAX_TIME_NS = 100 * 86_400 * 10**9
# Fields of a measurement without its algorithm: size, time, why there is none, made for which size.
_Row = tuple[int, int | None, str, int | None, int | None, int]


def cache_folder(environment: Mapping[str, str]) -> Path | None:
    """`$XDG_CACHE_HOME/collhub/compare`, by default below `~/.cache`; None without a home.

    A relative `$XDG_CACHE_HOME` is ignored, as the XDG Base Directory Specification demands.
    """
    base = environment.get("XDG_CACHE_HOME", "")
    if base and Path(base).is_absolute():
        return Path(base) / "collhub" / "compare"
    try:
        return Path.home() / ".cache" / "collhub" / "compare"
    except RuntimeError:
        # The user has neither $HOME nor an entry in the user database.
        return None


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
        self._distrusted: set[ComparedAlgorithm] = set()
        self._used: set[ComparedAlgorithm] = set()

    def distrust(self, names: Collection[str]) -> bool:
        """Forget the cached results of these algorithms; whether any of them was used."""
        suspects = {one for one in self._used if one.name in names}
        self._distrusted |= suspects
        self._used -= suspects
        return bool(suspects)

    def find(
        self, compared: ComparedAlgorithm, question: ComparisonQuestion
    ) -> list[Measurement] | None:
        """What is known of an algorithm, one measurement a size; None where nothing is."""
        if self._folder is None or compared in self._distrusted:
            return None
        rows = _read(self._path(self._folder, compared, question))
        if [size for size, *_ in rows] != list(question.sizes):
            return None
        self._used.add(compared)
        return [Measurement(compared.name, *row) for row in rows]

    def keep(
        self,
        compared: ComparedAlgorithm,
        question: ComparisonQuestion,
        measurements: Sequence[Measurement],
    ) -> None:
        """Keep what was measured, where the folder can be written.

        Answers of a search that a limit has cut are never kept.
        """
        if self._folder is None or any(one.cuts for one in measurements):
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


def _digest(path: Path, rows: Sequence[Sequence[object]]) -> str:
    """SHA-256 of the name of an entry, which stands for its question, and of its results."""
    text = json.dumps([path.name, [list(row) for row in rows]])
    return hashlib.sha256(text.encode()).hexdigest()


def _read(path: Path) -> list[_Row]:
    """The rows of a file; empty if there is none, or if it is damaged."""
    try:
        document = json.loads(path.read_bytes())
        rows = [_row(*row) for row in document["results"]]
        is_intact = document["digest"] == _digest(path, rows)
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return []
    return rows if is_intact else []


def _row(*values: object) -> _Row:
    """The values of one row. Raises `ValueError` for values of other types, and for wrong times."""
    size, time_ns, failure, made_for, time_ps, slack_ps = values
    if not (isinstance(size, int) and isinstance(failure, str) and isinstance(slack_ps, int)):
        raise ValueError("a row has no size, no reason or no slack")
    if not (
        isinstance(time_ns, int | None)
        and isinstance(made_for, int | None)
        and isinstance(time_ps, int | None)
    ):
        raise ValueError("a row has a time that is no integer")
    times_ns = [time_ns or 0, (time_ps or 0) // 1000, slack_ps // 1000]
    if not all(0 <= time <= _MAX_TIME_NS for time in times_ns):
        raise ValueError("a row has an impossible time")
    return size, time_ns, failure, made_for, time_ps, slack_ps


def _write(path: Path, rows: Sequence[_Row]) -> str:
    """Why it could not be written; empty where it was."""
    document = {"schema": _SCHEMA, "digest": _digest(path, rows), "results": rows}
    # One name for an entry: the next process overwrites what a killed one has left. Where two
    # processes write it at once, the digest tells whether the entry is complete.
    unfinished = path.with_suffix(".unfinished")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            unfinished.write_text(json.dumps(document))
            # The file is missing if another process has moved it, with the same results.
            with contextlib.suppress(FileNotFoundError):
                os.replace(unfinished, path)
        except BaseException:
            # A full disk must not fill up with unfinished files.
            with contextlib.suppress(OSError):
                unfinished.unlink()
            raise
    except OSError as error:
        return f"{error.filename or path}: {error.strerror or error}"
    return ""
