"""Describe in the provenance of a composed algorithm from which parts it was composed, and how."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version

from hub_core.model import Algorithm, Provenance

_PRODUCER = "collhub-compose"
_DISTRIBUTION = "collhub-study"
_OPTION = "composition"


def build_provenance(operation: str, parts: Sequence[Algorithm], *arguments: object) -> Provenance:
    """Build the provenance of `operation(parts, arguments)`.

    If all parts come from one file, that is the source; otherwise the names of all parts.
    """
    # An expression that a user can type again: replicate(sequential(a.xml, b.xml), 2).
    words = [_describe_expression(part) for part in parts]
    words += [str(argument) for argument in arguments]
    source = parts[0].provenance
    name, sha256 = source.source_name, source.source_sha256
    if not have_one_source(parts):
        names = dict.fromkeys(get_display_name(part) for part in parts)
        name, sha256 = " + ".join(names), ""
    listed = ", ".join(words)
    options = {_OPTION: f"{operation}({listed})"}
    return Provenance(_PRODUCER, version(_DISTRIBUTION), name, sha256, options)


def have_one_source(parts: Sequence[Algorithm]) -> bool:
    """Whether all parts come from one file, so that their line numbers refer to the same text."""
    # Files in different folders may have equal names, hence the hash.
    sources = set()
    for part in parts:
        provenance = part.provenance
        sources.add((provenance.source_name, provenance.source_sha256))
    return len(sources) == 1


def get_display_name(part: Algorithm) -> str:
    """Name of an algorithm in messages: its file, else its collective."""
    return part.provenance.source_name or str(part.collective.kind)


def _describe_expression(part: Algorithm) -> str:
    """Return the expression that composed a part, or its name if it was not composed."""
    composition = part.provenance.options.get(_OPTION)
    return composition or get_display_name(part)
