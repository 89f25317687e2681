"""Tell what a selection file of MPICH serves that `mpich_selection` has written."""

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
    """A row a size test, for built-in operators; a file with an error serves nothing."""
    return read_files(source, {FILE: _served})


def _served(part: SourcePart) -> list[ServedCalls]:
    try:
        document = json.loads(part.load())
    except (ValueError, RecursionError):
        raise InputError("no JSON", code="not-a-selection") from None
    found: list[ServedCalls] = []
    for kind, names in COLLECTIVES.items():
        rows = [list(_of_collective(kind, name, document)) for name in names]
        if any(other != rows[0] for other in rows):
            raise _wrong(f"{' and '.join(names)} choose differently")
        found += rows[0]
    return found


def _of_collective(kind: CollectiveKind, name: str, document: object) -> Iterator[ServedCalls]:
    """The rows of a tuned collective; none where it is as MPICH has it."""
    tree = _below(_below(document, f"collective={name}"), "comm_type=intra")
    ranks = _tuned_ranks(tree)
    if ranks is None:
        return
    tuned = _below(tree, f"comm_size<={ranks}")
    has_mode = False
    for condition in CONDITIONS.get(kind, ()):
        has_mode |= condition == "is_sendbuf_inplace=no"
        _below(tuned, opposite(condition))
        tuned = _below(tuned, condition)
    parts = message_parts(kind, ranks)
    for first, last, leaf in _windows(tuned, SIZE_TESTS[kind]):
        least = (first - 1) * parts + 1 if first else 0
        most = None if last is None else last * parts
        by = f"{_algorithm(leaf)} of {ranks} ranks"
        yield ServedCalls(kind, not has_mode, True, least, most, by)
    if has_mode:
        yield ServedCalls(kind, True, False, 0, None, _OWN_CHOICE)


def _tuned_ranks(tree: Mapping[str, object]) -> int | None:
    """The number of ranks between the tests of a tuned tree."""
    keys = list(tree)
    below = re.fullmatch(r"comm_size<(\d+)", keys[0]) if keys else None
    if below is None or keys != [keys[0], f"comm_size<={below[1]}", "comm_size=any"]:
        return None
    return int(below[1])


def _windows(
    tree: Mapping[str, object], test: str
) -> Iterator[tuple[int, int | None, Mapping[str, object]]]:
    """(first, last, what is done) of the sizes that MPICH tests, in the order of the tests."""
    first = 0
    for key, leaf in tree.items():
        if not isinstance(leaf, dict):
            raise _wrong(f"nothing stands below {key!r:.60}")
        if key == f"{test}=any":
            yield first, None, leaf
            if key != list(tree)[-1]:
                raise _wrong(f"tests follow {key}")
            return
        match = re.fullmatch(rf"{test}<=(\d+)", key)
        if match is None or int(match[1]) < first:
            raise _wrong(f"{key!r:.60} is no {test}<= of ascending sizes")
        yield first, int(match[1]), leaf
        first = int(match[1]) + 1
    raise _wrong(f"{test}=any is absent")


def _algorithm(leaf: Mapping[str, object]) -> str:
    """The name of an algorithm for calls of an element a rank or more."""
    chosen = leaf if len(leaf) == 1 else _below(leaf, "count=any")
    match = _ALGORITHM.fullmatch(next(iter(chosen), ""))
    if match is None:
        raise _wrong(f"{next(iter(chosen), '')!r:.60} is no algorithm")
    return match[1]


def _below(tree: object, key: str) -> Mapping[str, object]:
    found = tree.get(key) if isinstance(tree, dict) else None
    if not isinstance(found, dict):
        raise _wrong(f"{key} is absent")
    return found


def _wrong(reason: str) -> InputError:
    return InputError(f"MPICH would not choose as tuned: {reason}", code="not-a-selection")
