"""The algorithms that collectives name, in the traces of their job.

The file of rank r holds, as metadata, the canonical trace of rank r of every algorithm with more
than r ranks, in base64; a collective names its algorithm by number.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence

from collhub_chakra import Kind, Metadata, MetadataEntry

from hub_core import ChakraReadOptions, InputError, Location, TraceOptions
from hub_core import chakra_algorithm as algorithm_of
from hub_core import chakra_traces as traces_of
from hub_core.model import Algorithm
from hub_core.plugin_api import Artifact, Source, SourcePart

ALGORITHM = "collhub_algorithm"
"""Attribute of collective nodes: the number of their algorithm."""

_PREFIX = "algorithm."
_ENTRY = re.compile(r"algorithm\.(0|[1-9][0-9]{0,6})")
Traces = Sequence[Sequence[Artifact]]


def embedded_traces(algorithms: Sequence[Algorithm]) -> Traces:
    """The traces of every algorithm by rank, encoded when they are asked for."""
    # A file needs one trace of each.
    return [tuple(traces_of(each, TraceOptions()).artifacts) for each in algorithms]


def entries(traces: Traces, rank: int) -> list[MetadataEntry]:
    """What the file of a rank holds of the algorithms."""
    return [
        MetadataEntry(f"{_PREFIX}{number}", Kind.STRING, _text(of_ranks[rank]))
        for number, of_ranks in enumerate(traces)
        if rank < len(of_ranks)
    ]


def _text(trace: Artifact) -> str:
    # Attributes of metadata are texts.
    return base64.b64encode(trace.content()).decode("ascii")


def algorithms_of(files: Sequence[Metadata], name: str) -> tuple[Algorithm, ...]:
    """The algorithms that files hold, by rank; `name`: of the job, for messages.

    Raises `InputError` for texts that are no trace, and where a number is left out.
    """
    parts: dict[int, list[SourcePart]] = {}
    for rank, metadata in enumerate(files):
        for attribute in metadata.attributes:
            match = _ENTRY.fullmatch(attribute)
            if match is None:
                continue
            content = _decoded(metadata.text(attribute), name, rank, attribute)
            part = SourcePart(f"{name} {attribute}", content.__bytes__, rank, len(content))
            parts.setdefault(int(match[1]), []).append(part)
    if sorted(parts) != list(range(len(parts))):
        message = f"of its {len(parts)} algorithms the highest is {max(parts)}"
        raise InputError(message, location=Location(name), code="algorithm")
    sources = [Source(f"{name} algorithm {one}", tuple(parts[one])) for one in sorted(parts)]
    return tuple(algorithm_of(source, ChakraReadOptions()) for source in sources)


def _decoded(text: str, name: str, rank: int, attribute: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        message, place = f"the metadata {attribute!r} is not base64", Location(name, rank=rank)
        raise InputError(message, location=place, code="algorithm") from None
