"""The rank files of a source: which there are, in order, and a few at a time."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from hub_core.chakra.records import RankFile
from hub_core.model.diagnostics import InputError, Location
from hub_core.plugin_api.sources import Source, SourcePart

_BATCH_BYTES = 4 << 20
_RANK_IN_NAME = re.compile(r"\.([0-9]{1,9})\.[^.]*\Z")


def rank_parts(source: Source) -> list[SourcePart]:
    """The parts in order of rank, one for each of 0..n-1. Raises `InputError` where one is missing or doubled."""
    by_rank: dict[int, SourcePart] = {}
    for part in source.parts:
        rank = _rank(part, len(source.parts))
        if rank in by_rank:
            raise InputError(
                f"{by_rank[rank].name} is of rank {rank} too",
                location=Location(part.name),
                code="rank-files",
            )
        by_rank[rank] = part
    if not by_rank:
        raise InputError(
            "there are no rank files", location=Location(source.name), code="rank-files"
        )
    missing = [rank for rank in range(len(by_rank)) if rank not in by_rank]
    if missing:
        message = f"the file of rank {missing[0]} is missing: found {len(by_rank)} files, the last one of rank {max(by_rank)}"
        cure = "give the files of ranks 0..n-1"
        raise InputError(message, location=Location(source.name), code="rank-files", cure=cure)
    return [by_rank[rank] for rank in range(len(by_rank))]


def _rank(part: SourcePart, count: int) -> int:
    if part.rank is not None:
        return part.rank
    if match := _RANK_IN_NAME.search(part.name):
        return int(match[1])
    if count == 1:
        return 0
    cure = "name the files PREFIX.<rank>.et"
    raise InputError(
        "the file name does not tell the rank",
        location=Location(part.name),
        code="rank-files",
        cure=cure,
    )


def in_batches(files: Iterable[RankFile]) -> Iterator[list[RankFile]]:
    """Group files so that a batch is big enough for column-wise work and small enough for memory."""
    batch: list[RankFile] = []
    size = 0
    for file in files:
        batch.append(file)
        size += len(file.content)
        if size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
