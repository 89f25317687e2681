"""Say in the provenance of a composed algorithm what it was made from, and how."""

from __future__ import annotations

from collections.abc import Sequence

from hub_core.model.algorithm import Algorithm, Provenance
from hub_core.version import __version__

_OPTION = "composition"


def composed_provenance(
    operation: str, parts: Sequence[Algorithm], *arguments: object
) -> Provenance:
    """Provenance of `operation(parts, arguments)`; the source is named where all parts came from one file."""
    words = [_expression(part) for part in parts] + [str(argument) for argument in arguments]
    source = parts[0].provenance
    if have_one_source(parts):
        name, sha256 = source.source_name, source.source_sha256
    else:
        name, sha256 = " + ".join(dict.fromkeys(display_name(part) for part in parts)), ""
    return Provenance(
        "collhub-compose", __version__, name, sha256, {_OPTION: f"{operation}({', '.join(words)})"}
    )


def have_one_source(parts: Sequence[Algorithm]) -> bool:
    """Whether all parts came from one file, so that their line numbers mean the same text."""
    return (
        len({(part.provenance.source_name, part.provenance.source_sha256) for part in parts}) == 1
    )


def display_name(part: Algorithm) -> str:
    """What messages call an algorithm: its file, else its collective."""
    return part.provenance.source_name or str(part.collective.kind)


def _expression(part: Algorithm) -> str:
    return part.provenance.options.get(_OPTION) or display_name(part)
