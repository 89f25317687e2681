"""Readers and writers of MSCCL-IR XML, the reader of MSCCLang programs, and the runtime checks."""

from __future__ import annotations

from collections.abc import Sequence

from collhub_msccl.options import ProgramOptions, ReadOptions, SelectionOptions, WriteOptions
from collhub_msccl.runtimes.known_runtimes import HISTORIES, list_runtimes
from collhub_msccl.runtimes.targets import list_targets
from hub_core.plugin_api import (
    Check,
    Format,
    FormatReader,
    FormatWriter,
    Layout,
    RuleSet,
    SelectionWriter,
    Subject,
    hookimpl,
)

COLLHUB_PLUGIN_API = (1, 0)

# The root element distinguishes this format from other XML formats (NCCL topologies start with
# <system>). Possessive groups keep the match linear for hostile files that consist of one long
# comment.
_SIGNATURE = rb"\A(?:\xef\xbb\xbf)?\s*(?:<\?xml[^>]*\?>\s*)?(?><!--(?s:.*?)-->\s*)*+<algo[\s/>]"

_XML = Format(
    "msccl-xml", "MSCCL-IR XML, the programs of the MSCCL runtimes", (".xml",), _SIGNATURE
)
_PROGRAM = Format(
    "mscclang",
    "MSCCLang programs; reading one EXECUTES it, in a separate process",
    (".py",),
)
_FOLDER = Format(
    "msccl",
    "programs for MSCCL_ALGO_DIR, from which the runtime selects by size",
    (),
    layout=Layout.FOLDER,
)


@hookimpl
def collhub_producers() -> Sequence[FormatReader]:
    """Return the offers of two readers: of MSCCL-IR XML and of MSCCLang programs.

    The latter executes the program in the sandbox. The plugin system calls this function.
    """
    xml_reader = FormatReader(
        _XML,
        "collhub_msccl.reading.read_xml:read",
        ReadOptions,
        samples="collhub_msccl.reading.read_xml:samples",
    )
    program_reader = FormatReader(
        _PROGRAM,
        "collhub_msccl.read_program:read",
        ProgramOptions,
        samples="collhub_msccl.read_program:samples",
        executes_source=True,
    )
    return [xml_reader, program_reader]


@hookimpl
def collhub_consumers() -> Sequence[FormatWriter | SelectionWriter]:
    """Return the offers of two writers: of one MSCCL-IR XML file, and of a folder of them.

    The folder serves a tuned selection of algorithms. The plugin system calls this function.
    """
    folder = SelectionWriter(
        _FOLDER,
        "collhub_msccl.selection_folder:write",
        "collhub_msccl.selection_folder:read",
        SelectionOptions,
        list_runtimes(),
        list_targets(),
    )
    write = "collhub_msccl.writing.write_xml:write"
    return [FormatWriter(_XML, write, WriteOptions, list_targets()), folder]


@hookimpl
def collhub_checks() -> Sequence[Check | RuleSet]:
    """Return the offers of checks: one per runtime, and the check of the program sandbox.

    The former report whether the runtime loads a file unchanged.
    """
    # No options: a runtime reads the file unchanged or refuses it.
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
        "hub_core.sandbox.landlock:check_sandbox",
    )
    return [
        *runtimes,
        sandbox,
        RuleSet("msccl", "findings in MSCCL XML", "collhub_msccl.runtimes.rules:list_rules"),
    ]
