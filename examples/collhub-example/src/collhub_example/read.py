"""Read what `write` writes; every error names file and line."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NoReturn, TypeVar

import numpy as np

from hub_core import (
    Algorithm,
    Buffer,
    Collective,
    CollectiveKind,
    InputError,
    Location,
    Provenance,
    ReduceOp,
    StepKind,
    StepTableBuilder,
)
from hub_core.plugin_api import NoOptions, Source

TITLE = "example 1"
T = TypeVar("T")


def read(source: Source, options: NoOptions) -> Algorithm:
    """Build the algorithm. Raises `InputError` at the first line that does not fit."""
    lines = source.content().decode("ascii", "replace").splitlines()
    if len(lines) < 3 or lines[0] != TITLE:
        expected = f"the text begins with '{TITLE}' and has three lines or more"
        _fail(source, 1, f"this is no file of the format example: {expected}")
    collective = _parsed(source, 2, partial(_collective, lines[1]))
    scratch = np.asarray(_parsed(source, 3, partial(_numbers, lines[2])), np.int64)
    if len(scratch) != collective.num_ranks or scratch.min() < 0:
        _fail(source, 3, f"expected {collective.num_ranks} scratch sizes, one a rank")
    builder = StepTableBuilder(collective.num_ranks)
    for number, line in enumerate(lines[3:], 4):
        if not line.startswith("#"):
            _parsed(source, number, partial(_add_step, builder, line))
    provenance = Provenance("collhub-example", "0.1.0", source.name, source.sha256())
    return Algorithm(collective, builder.build(source.name), scratch, provenance)


def _numbers(line: str) -> list[int]:
    return [int(word) for word in line.split()]


def _collective(line: str) -> Collective:
    kind, ranks, units, root, modes, operator = line.split()
    return Collective(
        CollectiveKind(kind),
        int(ranks),
        int(units),
        None if root == "-" else int(root),
        "in" in modes.split(","),
        "out" in modes.split(","),
        ReduceOp(operator),
    )


def _add_step(builder: StepTableBuilder, line: str) -> None:
    rank, kind, peer, channel, source, target, count, data, control = line.split()
    src_buffer, src_offset = _place(source)
    dst_buffer, dst_offset = _place(target)
    builder.add(
        int(rank),
        StepKind[kind.upper()],
        data=_rows(data),
        control=_rows(control),
        peer=int(peer),
        channel=int(channel),
        src_buffer=src_buffer,
        src_offset=src_offset,
        dst_buffer=dst_buffer,
        dst_offset=dst_offset,
        count=int(count),
    )


def _place(text: str) -> tuple[Buffer, int]:
    buffer, offset = text.split(":")
    return Buffer[buffer.upper()], int(offset)


def _rows(text: str) -> list[int]:
    return [] if text == "-" else [int(row) for row in text.split(",")]


def _parsed(source: Source, line: int, parse: Callable[[], T]) -> T:
    """What `parse` returns; what it raises becomes an error at this line."""
    try:
        return parse()
    except (ValueError, KeyError, InputError) as error:
        _fail(source, line, f"this line cannot be read: {error}")


def _fail(source: Source, line: int, message: str) -> NoReturn:
    place = Location(source.name, line)
    raise InputError(message, location=place, cure="see the README of collhub-example")
