"""Cache results by question, algorithm content, network and installed versions.

Each file of the user's cache folder contains the results of one algorithm and question at all
sizes. It is written atomically. Its digest covers its name and its results, so that damaged and
renamed files are ignored, as are impossible times; these results are measured again. A cache that
cannot be written does not change a result.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import platform
import sysconfig
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from collhub_tuning.questions import AlgorithmAtSize, ComparedAlgorithm, ComparisonQuestion
from hub_core import installed_distributions, installed_version

if TYPE_CHECKING:
    from hub_core import Registry


_SCHEMA = "collhub/compared-8"
# 100 days in nanoseconds: no simulated collective takes longer.
_MAX_TIME_NS = 100 * 86_400 * 10**9
# Fields of a measurement without its algorithm: size, time, failure, made_for, time_ps, slack_ps,
# instances, protocol, pieces, messages.
_Row = tuple[int, int | None, str, int | None, int | None, int, int, str, int, int]


def find_cache_folder(environment: Mapping[str, str]) -> Path | None:
    """Return the folder of the cache: `$XDG_CACHE_HOME/collhub/compare`. It is not created.

    `environment`: the environment variables. If the variable is not set, empty or relative
    (as the XDG Base Directory Specification requires), the folder is
    `.cache/collhub/compare` in the home folder of the user of this process. None if the
    user has no home.
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

    `topology`: content of the network; `versions`: all versions that affect results, by name.
    `defect`: the first error of a write, empty without one.
    """

    def __init__(self, folder: Path | None, topology: bytes, versions: Mapping[str, str]) -> None:
        self.defect = ""
        self._folder = folder
        self._network = hashlib.sha256(topology).hexdigest()
        self._versions = dict(sorted(versions.items()))
        self._distrusted: set[ComparedAlgorithm] = set()
        self._used: set[ComparedAlgorithm] = set()

    def distrust(self, names: Collection[str]) -> bool:
        """Ignore from now on the cached results of the named algorithms, if any were used.

        Only algorithms whose results `find` has returned are affected; `find` returns None for
        them afterwards. The files are kept, and `store` still replaces them. Return whether
        there are any such algorithms; a second call with the same names returns False.
        """
        suspects = {compared for compared in self._used if compared.name in names}
        self._distrusted |= suspects
        self._used -= suspects
        return bool(suspects)

    def find(
        self, compared: ComparedAlgorithm, question: ComparisonQuestion
    ) -> list[AlgorithmAtSize] | None:
        """Return the cached measurements of an algorithm, one per size; None without a valid entry.

        An entry is a file for exactly this algorithm (content of its files), question, network
        and versions. It is valid if it is not damaged, and its sizes are those of the question
        in the same order, which is also the order of the result. None without a cache folder,
        and for an algorithm that `distrust` excluded. If measurements are returned, the
        algorithm is recorded as used. Raises `OSError` if a file of the algorithm cannot be
        read.
        """
        if self._folder is None or compared in self._distrusted:
            return None
        path = self._get_path(self._folder, compared, question)
        try:
            document = json.loads(path.read_bytes())
            rows = [_check_row(*row) for row in document["results"]]
            is_intact = document["digest"] == _digest(path, rows)
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            return None
        if not is_intact or [size for size, *_ in rows] != list(question.sizes):
            return None
        self._used.add(compared)
        return [
            AlgorithmAtSize(
                compared.name,
                *row[:6],
                instances=row[6],
                protocol=row[7],
                pieces=row[8],
                messages=row[9],
            )
            for row in rows
        ]

    def store(
        self,
        compared: ComparedAlgorithm,
        question: ComparisonQuestion,
        measurements: Sequence[AlgorithmAtSize],
    ) -> None:
        """Store the measurements of an algorithm on disk, and replace an existing entry.

        There is one file per algorithm content, question, network and installed versions. It has
        all given rows in their order. Nothing is written without a folder, if any of the
        measurements has `cuts` (a limit ended the search), and if `defect` is not empty.

        If the file cannot be written, `defect` becomes the reason, and no exception is raised. An
        `OSError` from reading the files of the algorithm is raised.
        """
        if self._folder is None or any(measured.cuts for measured in measurements):
            return
        rows = [
            (
                *(row.size, row.time_ns, row.failure, row.made_for),
                *(row.time_ps, row.slack_ps, row.instances, row.protocol, row.pieces),
                row.messages,
            )
            for row in measurements
        ]
        self.defect = self.defect or _write_rows(
            self._get_path(self._folder, compared, question), rows
        )

    def _get_path(
        self, folder: Path, compared: ComparedAlgorithm, question: ComparisonQuestion
    ) -> Path:
        """Return the path of the entry of an algorithm, from a digest of all that it depends on.

        A synthesizer is identified by its name. Files are identified by the SHA-256 digests of
        their contents, sorted by path; paths are not part of them. They are all files in a folder,
        also in subfolders, or the file. If neither exists, they are the files whose names are this
        name, a dot and a suffix. Raises `OSError` for a file that cannot be read.
        """
        identity = [compared.name]
        if compared.is_file:
            path = Path(compared.name)
            if path.is_dir():
                files = sorted(path.rglob("*"))
            elif path.is_file():
                files = [path]
            else:
                files = sorted(path.parent.glob(f"{path.name}.*"))
            identity = [
                hashlib.sha256(file.read_bytes()).hexdigest() for file in files if file.is_file()
            ]
        fields = asdict(replace(question, topology=self._network))
        parts = [_SCHEMA, fields, identity, self._versions]
        name = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
        return folder / name[:2] / f"{name}.json"


def _digest(path: Path, rows: Sequence[Sequence[object]]) -> str:
    """Return the SHA-256 of an entry in hexadecimal digits.

    It covers the rows and the file name, which identifies the question.
    """
    text = json.dumps([path.name, [list(row) for row in rows]])
    return hashlib.sha256(text.encode()).hexdigest()


def _check_row(*values: object) -> _Row:
    """Check the ten values of one row of an entry, and return them as a row.

    They are size, time_ns, failure, made_for, time_ps, slack_ps, instances, protocol, pieces,
    messages. Failure and protocol are texts, the other fields integers (booleans are accepted);
    `time_ns`, `made_for` and `time_ps` may be None. Raises `ValueError` for a wrong type or
    another number of values, and for a time or slack that is negative or above 100 days; other
    integers have no limits.
    """
    size, time_ns, failure, made_for, time_ps, slack_ps, instances, protocol, pieces = values[:9]
    (messages,) = values[9:]
    if not (isinstance(size, int) and isinstance(failure, str) and isinstance(slack_ps, int)):
        raise ValueError("a row has no size, no reason or no slack")
    if not (isinstance(instances, int) and isinstance(protocol, str) and isinstance(pieces, int)):
        raise ValueError("a row has no instances, no protocol or no pieces")
    if not isinstance(messages, int):
        raise ValueError("a row has no messages")
    if not (
        isinstance(time_ns, int | None)
        and isinstance(made_for, int | None)
        and isinstance(time_ps, int | None)
    ):
        raise ValueError("a row has a time that is no integer")
    times_ns = [time_ns or 0, (time_ps or 0) // 1000, slack_ps // 1000]
    if not all(0 <= time <= _MAX_TIME_NS for time in times_ns):
        raise ValueError("a row has an impossible time")
    fields = size, time_ns, failure, made_for, time_ps, slack_ps, instances, protocol, pieces
    return *fields, messages


def _write_rows(path: Path, rows: Sequence[_Row]) -> str:
    """Write an entry with its digest to a file; return the reason if that failed, otherwise "".

    The entry is JSON with the schema, the digest of file name and rows (`_digest`), and the rows.
    The folder is created if needed. An existing entry is replaced at once, by renaming a file with
    the suffix .unfinished, which is removed after an error. Of two processes that write at the same
    time, either may win; if the other process has already renamed the file, the result is "".

    Only `OSError` becomes a reason, such as `FILE: No space left on device`; other exceptions are
    raised.
    """
    document = {"schema": _SCHEMA, "digest": _digest(path, rows), "results": rows}
    # A fixed name, so that the next process overwrites the file of a killed one. If two processes
    # write it at once, the digest detects incomplete entries.
    unfinished = path.with_suffix(".unfinished")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            unfinished.write_text(json.dumps(document))
            # The file is missing if another process has moved it, with the same results.
            with contextlib.suppress(FileNotFoundError):
                os.replace(unfinished, path)
        except BaseException:
            # Unfinished files would fill the disk.
            with contextlib.suppress(OSError):
                unfinished.unlink()
            raise
    except OSError as error:
        return f"{error.filename or path}: {error.strerror or error}"
    return ""


# Libraries whose versions may affect results: rounding, solvers, compilation.
_LIBRARIES = ("numpy", "numba", "llvmlite", "highspy", "ortools")
_PREFIX = "collhub"
_CORE = {"collhub": "hub_core"}


def collect_versions(registry: Registry) -> dict[str, str]:
    """Return the versions of Python and of distributions that may affect results, by name.

    The names are:

    - the distributions of the plugins in `registry`, with the version of the plugin
    - `python`
    - the names in `_LIBRARIES` (such as `numpy`); one that is not installed is left out
    - `collhub` and all installed `collhub-...` distributions; their names are written in
      lower case with `-` for `_`

    If a `collhub` distribution is used from a checkout, `+` and a digest of its sources
    follow its version (`_sources_digest`). A later entry replaces one of the same name.
    """
    versions = {plugin.distribution: plugin.version for plugin in registry.plugins}
    versions["python"] = platform.python_version()
    for name in _LIBRARIES:
        version = installed_version(name)
        if version is not None:
            versions[name] = version
    for distribution in installed_distributions():
        name = distribution.name.lower().replace("_", "-")
        if name == _PREFIX or name.startswith(f"{_PREFIX}-"):
            versions[name] = f"{distribution.version}{_sources_digest(name)}"
    return versions


def _sources_digest(name: str) -> str:
    """Return `+` and a digest of a distribution's sources if it is used from a checkout.

    `name`: that of the distribution. Its package has the same name with `_` for `-`; that
    of `collhub` is `hub_core`. The package is used from a checkout if its first folder is
    not below the folders of installed packages. The digest has 16 hexadecimal digits and
    covers path and content of all its Python files. Otherwise, and if the package is not
    found, the text is empty.
    """
    spec = importlib.util.find_spec(_CORE.get(name, name.replace("-", "_")))
    folders = [] if spec is None else [Path(path) for path in spec.submodule_search_locations or ()]
    installed = tuple(sysconfig.get_path(kind) for kind in ("purelib", "platlib"))
    if not folders or str(folders[0]).startswith(installed):
        return ""
    digest = hashlib.sha256()
    for folder in folders:
        for file in sorted(folder.rglob("*.py")):
            digest.update(str(file.relative_to(folder)).encode() + b"\0" + file.read_bytes())
    return f"+{digest.hexdigest()[:16]}"
