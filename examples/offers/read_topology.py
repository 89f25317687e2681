"""Read a network from text: a title, then a line a link; every error names file and line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import numpy as np

from hub_core import InputError, Location, Topology
from hub_core.network import DEFAULT_BANDWIDTH_BYTES_PER_S, DEFAULT_LATENCY_S, Links
from hub_core.plugin_api import NoOptions, Source

TITLE = "example-links 1"
MOST_NPUS = 4096


def read(source: Source, options: NoOptions) -> Topology:
    """Build the topology. Raises `InputError` at the first line that does not fit."""
    lines = source.content().decode("ascii", "replace").splitlines()
    if len(lines) < 2 or lines[0] != TITLE:
        _fail(source, 1, f"the text does not begin with '{TITLE}' and a line with a link")
    pairs = [_ends(source, number, line) for number, line in enumerate(lines[1:], 2)]
    ends = np.asarray(pairs, np.int64)
    links = Links.uniform(ends[:, 0], ends[:, 1], DEFAULT_BANDWIDTH_BYTES_PER_S, DEFAULT_LATENCY_S)
    npus = int(ends.max()) + 1
    return links.topology(source.name, npus, npus)


def samples() -> Sequence[Source]:
    """Small correct files, by which the conformance checks try the reader."""
    return [Source.of_bytes("pair.example-links", f"{TITLE}\n0 1\n1 0\n".encode())]


def _ends(source: Source, number: int, line: str) -> tuple[int, int]:
    words = line.split()
    if len(words) != 2 or not all(word.isdecimal() and len(word) <= 4 for word in words):
        _fail(source, number, f"{line!r:.40} is not the numbers of two NPUs")
    one, other = map(int, words)
    if one == other or max(one, other) >= MOST_NPUS:
        _fail(source, number, f"NPUs {one} and {other} are one, or not below {MOST_NPUS}")
    return one, other


def _fail(source: Source, line: int, message: str) -> NoReturn:
    place = Location(source.name, line)
    raise InputError(message, location=place, cure="see the README of collhub-example")
