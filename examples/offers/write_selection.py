"""Write a selection as text, a line a window, and tell what such a text serves."""

from __future__ import annotations

from hub_core import CollectiveKind, Diagnostic, Location
from hub_core.plugin_api import Artifact, NoOptions, Selection, ServedCalls, Source, WriteResult

FILE = "rules.txt"


def write(selection: Selection, options: NoOptions) -> WriteResult:
    """One file, in which sizes are those of the full buffer."""
    lines = []
    for selected in selection.collectives:
        for window in selected.windows(None):
            end = "inf" if window.max_bytes is None else window.max_bytes
            kind = selected.collective.kind
            lines.append(f"{kind} {window.min_bytes} {end} {window.algorithm}\n")
    return WriteResult([Artifact(FILE, "".join(lines).encode("utf-8"))])


def read(source: Source) -> list[ServedCalls]:
    """A row a line; what is no rule is told as an error."""
    found = []
    for part in source.parts:
        text = part.load().decode("utf-8", "replace")
        for number, line in enumerate(text.splitlines(), 1):
            try:
                kind, first, last, name = line.split()
                most = None if last == "inf" else int(last)
                served = (CollectiveKind(kind), True, True, int(first), most, name)
            except ValueError:
                place = Location(part.name, number)
                message = f"{line!r:.60} is not KIND FROM TO NAME"
                source.report(Diagnostic("not-a-rule", message, location=place))
                continue
            found.append(ServedCalls(*served))
    return found
