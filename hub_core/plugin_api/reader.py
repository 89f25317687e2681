"""The offer `FormatReader`: a format becomes an algorithm."""

from __future__ import annotations

from dataclasses import dataclass

from hub_core.plugin_api.formats import FormatOffer
from hub_core.plugin_api.options import NoOptions
from hub_core.plugin_api.references import Reference


@dataclass(frozen=True, slots=True)
class FormatReader(FormatOffer):
    """Producer: `read(source: Source, options) -> Algorithm`.

    It never opens paths, prints, exits or reads the environment. `samples() -> Sequence[Source]`:
    small correct inputs that the conformance kit reads; may be left out where the format also has a
    writer. `executes_source`: the input is a program that reading executes, in a process of its
    own; such a reader may start that process, its description says so, and an option `arguments`
    (TEXT, quoted as in a shell) gets what follows `--` on the command line.
    """

    read: Reference
    options: type = NoOptions
    samples: Reference = ""
    executes_source: bool = False
