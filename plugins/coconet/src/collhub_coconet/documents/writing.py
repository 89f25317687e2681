"""Write the program of a workload: as a document, which is read again, or as text for people."""

from __future__ import annotations

from collhub_coconet.documents.bound_document import bound_to_json
from collhub_coconet.documents.from_workload import program_of
from collhub_coconet.documents.text import text
from hub_core.model import Loss, Workload
from hub_core.plugin_api import Artifact, NoOptions, WriteResult


def write(workload: Workload, options: NoOptions) -> WriteResult:
    """The document `collhub/tensor-program-1` with ranks, sizes and transformations.

    Raises `InputError` for a workload whose nodes do not state a program.
    """
    content = bound_to_json(program_of(workload)).encode("ascii")
    return WriteResult((Artifact("", content),))


def lines(workload: Workload) -> list[str]:
    """The text of the program, for `collhub inspect`."""
    return text(program_of(workload).program).splitlines()


def write_text(workload: Workload, options: NoOptions) -> WriteResult:
    """One statement a line, layouts in brackets. Raises `InputError` as `write`."""
    content = text(program_of(workload).program).encode()
    # Nothing reads it back.
    losses = [Loss("sizes", "all symbols", "the text has symbols, and is for people")]
    return WriteResult((Artifact("", content),), losses)
