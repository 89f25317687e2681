"""Say in the provenance of a composed algorithm what it was made from, and how."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version

from hub_core.model import Algorithm, Provenance

_PRODUCER = "collhub-compose"
_OPTION = "composition"


def composed_provenance(
    operation: str, parts: Sequence[Algorithm], *arguments: object
) -> Provenance:
    """Provenance of `operation(parts, arguments)`.

    The source is named where all parts came from one file, else all of their names.
    """
    # An expression that a reader may type again: replicate(sequential(a.xml, b.xml), 2).
    words = [_expression(part) for part in parts]
    words += [str(argument) for argument in arguments]
    source = parts[0].provenance
    name, sha256 = source.source_name, source.source_sha256
    if not have_one_source(parts):
        names = dict.fromkeys(display_name(part) for part in parts)
        name, sha256 = " + ".join(names), ""
    listed = ", ".join(words)
    options = {_OPTION: f"{operation}({listed})"}
    return Provenance(_PRODUCER, version(_PRODUCER), name, sha256, options)


def have_one_source(parts: Sequence[Algorithm]) -> bool:
    """Whether all parts came from one file, so that their line numbers mean the same text."""
    # Names alone would do for files of one folder only.
    sources = set()
    for part in parts:
        stated = part.provenance
        sources.add((stated.source_name, stated.source_sha256))
    return len(sources) == 1


def display_name(part: Algorithm) -> str:
    """What messages call an algorithm: its file, else its collective."""
    return part.provenance.source_name or str(part.collective.kind)


def _expression(part: Algorithm) -> str:
    """How a part was made, where it was composed itself, else its name."""
    composition = part.provenance.options.get(_OPTION)
    return composition or display_name(part)
