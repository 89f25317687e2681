"""Offers of this plugin: MSCCL-IR XML, read, written, selected by size, checked; MSCCLang read."""

from __future__ import annotations

from collections.abc import Sequence

from collhub_msccl.options import ProgramOptions, ReadOptions, SelectionOptions, WriteOptions
from collhub_msccl.runtimes.versions import HISTORIES
from hub_core.plugin_api import (
    Check,
    Format,
    FormatReader,
    FormatWriter,
    Layout,
    SelectionWriter,
    Subject,
    hookimpl,
)

COLLHUB_PLUGIN_API = (1, 0)

# Other kinds of XML live beside this one (NCCL topologies start with <system>): the root element
# decides. Possessive groups keep the match linear in hostile files that are one long comment.
_SIGNATURE = rb"\A(?:\xef\xbb\xbf)?\s*(?:<\?xml[^>]*\?>\s*)?(?><!--(?s:.*?)-->\s*)*+<algo[\s/>]"

_XML = Format(
    "msccl-xml", "MSCCL-IR XML, the programs of the MSCCL runtimes", (".xml",), _SIGNATURE
)
_PROGRAM = Format(
    "mscclang",
    "MSCCLang programs; reading one EXECUTES it, in a process of its own",
    (".py",),
)
_FOLDER = Format(
    "msccl",
    "programs for MSCCL_ALGO_DIR, among which the runtime chooses by size",
    (),
    layout=Layout.FOLDER,
)


@hookimpl
def collhub_producers() -> Sequence[FormatReader]:
    """Offer the readers of MSCCL-IR XML and of MSCCLang programs."""
    xml_reader = FormatReader(
        _XML,
        "collhub_msccl.reading.read_xml:read",
        ReadOptions,
        samples="collhub_msccl.samples:samples",
    )
    program_reader = FormatReader(
        _PROGRAM,
        "collhub_msccl.programs.read_program:read",
        ProgramOptions,
        samples="collhub_msccl.programs.samples:samples",
        executes_source=True,
    )
    return [xml_reader, program_reader]


@hookimpl
def collhub_consumers() -> Sequence[FormatWriter | SelectionWriter]:
    """Offer the writers of MSCCL-IR XML: of one program, and of folders of them."""
    folder = SelectionWriter(
        _FOLDER,
        "collhub_msccl.selecting.write_folder:write",
        "collhub_msccl.selecting.load_calls:read",
        SelectionOptions,
    )
    return [FormatWriter(_XML, "collhub_msccl.writing.write_xml:write", WriteOptions), folder]


@hookimpl
def collhub_checks() -> Sequence[Check]:
    """Offer a check a runtime: whether it uses a file as it stands."""
    # Without options: a runtime reads the file as it is, or not at all.
    runtimes = [
        Check(
            name,
            Subject.RUNTIME,
            f"whether {history.title} uses an MSCCL-IR XML file",
            f"collhub_msccl.runtimes.load_check:check_{name}",
            versions=history.versions,
            versioned_by=history.versioned_by,
        )
        for name, history in HISTORIES.items()
    ]
    sandbox = Check(
        "program-sandbox",
        Subject.INSTALLATION,
        "how far programs are kept from files, connections and other processes",
        "collhub_source_programs.sandbox_check:check_sandbox",
    )
    return [*runtimes, sandbox]
