"""Print losses, and give findings the path of the file as the user named it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from hub_core.cli import output
from hub_core.model import Diagnostic, Location, Severity

if TYPE_CHECKING:
    from hub_core.model import Algorithm
    from hub_core.pipeline.outputs import Written


def say_losses(written: Written, out: str, work: str) -> None:
    """Print the losses of an output as warnings, and the notes of its writer."""
    for loss in written.losses:
        message = f"the {work} loses: {loss}"
        # A warning: whoever wants an error asks for --strict.
        found = Diagnostic("lossy", message, Severity.WARNING, Location(out))
        output.print_diagnostic(found)
    for note in written.notes:
        output.print_note(f"{out} {note}")


def with_path(found: Iterable[Diagnostic], algorithm: Algorithm, source: str) -> list[Diagnostic]:
    """Return the findings with the user's path if the algorithm was read from that file."""
    name = algorithm.provenance.source_name
    if not name or os.path.basename(source) != name:
        return list(found)
    return [_at(one, source) if one.location.file == name else one for one in found]


def _at(found: Diagnostic, file: str) -> Diagnostic:
    """Return the finding with the path that the user gave."""
    # Readers know the name alone.
    return replace(found, location=replace(found.location, file=file))
