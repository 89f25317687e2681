"""Determine the calls that a selection file of MPICH serves, as written by `mpich_selection`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence

from collhub_mpi.tuned.mpich_names import (
    COLLECTIVES,
    CONDITIONS,
    FILE,
    SIZE_TESTS,
    message_parts,
    opposite,
)
from collhub_mpi.tuned.served_files import read_files
from hub_core.model import CollectiveKind, InputError
from hub_core.plugin_api import ServedCalls, Source, SourcePart

_OWN_CHOICE = "MPICH's own choice"
_ALGORITHM = re.compile(r"algorithm=MPIR_[A-Z][a-z_]*?_intra_(\w+)")


def read(source: Source) -> Sequence[ServedCalls]:
    """Return one row per size test, for built-in operators; none for a file with an error."""
    return read_files(source, {FILE: _read_calls})


def _read_calls(part: SourcePart) -> list[ServedCalls]:
    """Return the calls of all collectives. Raises `InputError` for other files."""
    try:
        document = json.loads(part.load())
    except (ValueError, RecursionError):
        raise InputError("no JSON", code="not-a-selection") from None
    calls: list[ServedCalls] = []
    for kind, names in COLLECTIVES.items():
        rows = [list(_read_collective(kind, name, document)) for name in names]
        if any(name_rows != rows[0] for name_rows in rows):
            raise _make_error(f"{' and '.join(names)} choose differently")
        calls += rows[0]
    return calls


def _read_collective(kind: CollectiveKind, name: str, document: object) -> Iterator[ServedCalls]:
    """Yield the rows of a tuned collective; no rows if the file keeps MPICH's default for it.

    Raises `InputError` for an invalid tree.
    """
    tree = _get_subtree(_get_subtree(document, f"collective={name}"), "comm_type=intra")
    ranks = _find_tuned_ranks(tree)
    if ranks is None:
        return
    tuned = _get_subtree(tree, f"comm_size<={ranks}")
    has_mode = False
    for condition in CONDITIONS.get(kind, ()):
        has_mode |= condition == "is_sendbuf_inplace=no"
        _get_subtree(tuned, opposite(condition))
        tuned = _get_subtree(tuned, condition)
    parts = message_parts(kind, ranks)
    for first, last, leaf in _read_windows(tuned, SIZE_TESTS[kind]):
        min_bytes = (first - 1) * parts + 1 if first else 0
        max_bytes = None if last is None else last * parts
        by = f"{_read_algorithm(leaf)} of {ranks} ranks"
        yield ServedCalls(kind, not has_mode, True, min_bytes, max_bytes, by)
    if has_mode:
        yield ServedCalls(kind, True, False, 0, None, _OWN_CHOICE)


def _find_tuned_ranks(tree: Mapping[str, object]) -> int | None:
    """Return the number of ranks of a tuned tree, None if the tree is not tuned."""
    keys = list(tree)
    match = re.fullmatch(r"comm_size<(\d+)", keys[0]) if keys else None
    if match is None or keys != [keys[0], f"comm_size<={match[1]}", "comm_size=any"]:
        return None
    return int(match[1])


def _read_windows(
    tree: Mapping[str, object], test: str
) -> Iterator[tuple[int, int | None, Mapping[str, object]]]:
    """Yield (first, last, subtree) of the tested sizes, in the order of the tests.

    Raises `InputError` for invalid tests.
    """
    first = 0
    for key, leaf in tree.items():
        if not isinstance(leaf, dict):
            raise _make_error(f"no tree below {key!r:.60}")
        if key == f"{test}=any":
            yield first, None, leaf
            if key != list(tree)[-1]:
                raise _make_error(f"tests follow {key}")
            return
        match = re.fullmatch(rf"{test}<=(\d+)", key)
        if match is None or int(match[1]) < first:
            raise _make_error(f"{key!r:.60} is no {test}<= of ascending sizes")
        yield first, int(match[1]), leaf
        first = int(match[1]) + 1
    raise _make_error(f"{test}=any is missing")


def _read_algorithm(leaf: Mapping[str, object]) -> str:
    """Return the name of the algorithm for calls of at least one element per rank."""
    selected = leaf if len(leaf) == 1 else _get_subtree(leaf, "count=any")
    match = _ALGORITHM.fullmatch(next(iter(selected), ""))
    if match is None:
        raise _make_error(f"{next(iter(selected), '')!r:.60} is no algorithm")
    return match[1]


def _get_subtree(tree: object, key: str) -> Mapping[str, object]:
    """Return the subtree of a key. Raises `InputError` if it is missing."""
    subtree = tree.get(key) if isinstance(tree, dict) else None
    if not isinstance(subtree, dict):
        raise _make_error(f"{key} is missing")
    return subtree


def _make_error(reason: str) -> InputError:
    """Return the error for a file that does not select as tuned."""
    return InputError(f"MPICH would not choose as tuned: {reason}", code="not-a-selection")
