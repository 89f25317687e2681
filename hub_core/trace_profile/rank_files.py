"""Find the file of every rank of a trace, and report damaged files as input errors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from hub_core.chakra import TraceError
from hub_core.model import InputError, Location
from hub_core.plugin_api import Source, SourcePart

_RANK_IN_NAME = re.compile(r"\.([0-9]{1,9})\.[^.]*\Z")


def rank_parts(source: Source) -> list[SourcePart]:
    """Return the parts of ranks 0..n-1 in order.

    Raises `InputError` for missing or repeated ranks.
    """
    by_rank: dict[int, SourcePart] = {}
    for part in source.parts:
        rank = _find_rank(part, len(source.parts))
        if rank in by_rank:
            raise _create_error(part.name, f"{by_rank[rank].name} is of rank {rank} too")
        by_rank[rank] = part
    # Without repeated ranks, the set is complete if the highest rank is the number of files minus
    # 1.
    if not by_rank:
        raise _create_error(source.name, "there are no rank files")
    count = len(by_rank)
    for rank in range(count):
        if rank not in by_rank:
            details = f"found {count} files, the last one of rank {max(by_rank)}"
            message = f"the file of rank {rank} is missing: {details}"
            raise _create_error(source.name, message, "give the files of ranks 0..n-1")
    return [by_rank[rank] for rank in range(count)]


def _find_rank(part: SourcePart, count: int) -> int:
    """Return the rank in the source, else in the name of the file. Raises `InputError`."""
    if part.rank is not None:
        return part.rank
    if match := _RANK_IN_NAME.search(part.name):
        return int(match[1])
    if count == 1:
        return 0
    message = "the file name does not tell the rank"
    raise _create_error(part.name, message, "name the files PREFIX.<rank>.et")


def _create_error(name: str, message: str, cure: str = "") -> InputError:
    """Create an error about a file of the set, or about the set."""
    return InputError(message, location=Location(name), code="rank-files", cure=cure)


@contextmanager
def input_errors() -> Iterator[None]:
    """Convert `TraceError` in the body to `InputError` at the same position."""
    try:
        yield
    except TraceError as error:
        location = Location(error.file, byte=error.byte, rank=error.rank)
        raise InputError(
            error.reason, location=location, code=error.code, cure=error.cure
        ) from None
