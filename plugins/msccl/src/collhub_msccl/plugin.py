"""Offers of this plugin: read, write and check MSCCL-IR XML; read MSCCLang programs."""

from __future__ import annotations

from collections.abc import Sequence

from hub_core.plugin_api import (
    Format,
    FormatReader,
    FormatWriter,
    LoadCheck,
    Option,
    OptionType,
    hookimpl,
)

COLLHUB_PLUGIN_API = (1, 0)

# Other kinds of XML live beside this one (NCCL topologies start with <system>): the root element
# decides. Possessive groups keep the match linear in hostile files that are one long comment.
_SIGNATURE = rb"\A(?:\xef\xbb\xbf)?\s*(?:<\?xml[^>]*\?>\s*)?(?><!--(?s:.*?)-->\s*)*+<algo[\s/>]"

_XML = Format(
    "msccl-xml", "MSCCL-IR XML, the programs of the MSCCL runtimes", (".xml",), _SIGNATURE
)
_READER = FormatReader(
    _XML,
    "collhub_msccl.reading.read_xml:read",
    (
        Option(
            "root",
            OptionType.INT,
            None,
            "root of a broadcast, reduce, gather or scatter, which the file does not name",
        ),
        Option(
            "reading",
            OptionType.TEXT,
            "runtime",
            "local operand of reducing receives: srcbuf and srcoff (runtime) or dstbuf and dstoff,"
            " as MSCCLang means them (dsl)",
            ("runtime", "dsl"),
        ),
    ),
    samples="collhub_msccl.samples:samples",
)

_WRITER = FormatWriter(
    _XML,
    "collhub_msccl.writing.write_xml:write",
    (
        Option(
            "runtime",
            OptionType.TEXT,
            "executor",
            "who will load the file: microsoft/msccl (msccl), Azure/msccl-executor-nccl (executor)"
            " or ROCm/rccl (rccl)",
            ("msccl", "executor", "rccl"),
        ),
        Option("name", OptionType.TEXT, None, "name of the algorithm in the file"),
        Option(
            "proto",
            OptionType.TEXT,
            None,
            "protocol; as imported, else Simple",
            ("Simple", "LL", "LL128"),
        ),
        Option(
            "mode",
            OptionType.TEXT,
            None,
            "calls that the file serves, where the algorithm is right for both;"
            " msccl takes one mode a file",
            ("in-place", "out-of-place"),
        ),
        Option(
            "collective",
            OptionType.TEXT,
            None,
            "name of the collective in the file, for custom ones",
        ),
        Option("min_bytes", OptionType.SIZE, None, "smallest size of calls that use the file"),
        Option("max_bytes", OptionType.SIZE, None, "largest size of calls that use the file"),
        Option(
            "max_steps",
            OptionType.INT,
            None,
            "steps that a thread block may have, where the runtime was built for others",
        ),
        Option(
            "max_channels",
            OptionType.INT,
            None,
            "channels that the file may use, if not all that the runtime has",
        ),
    ),
)

_PROGRAM_READER = FormatReader(
    Format(
        "mscclang", "MSCCLang programs; reading one EXECUTES it, in a process of its own", (".py",)
    ),
    "collhub_msccl.programs.read_program:read",
    (
        Option(
            "arguments",
            OptionType.TEXT,
            None,
            "command line arguments of the program, quoted as in a shell; or after --",
        ),
        Option(
            "time_limit",
            OptionType.INT,
            60,
            "CPU seconds that the program may take; by the clock twice as many and 5",
        ),
        Option("memory_limit", OptionType.SIZE, "4GiB", "address space that the program may take"),
    ),
    samples="collhub_msccl.programs.samples:samples",
    executes_source=True,
)


@hookimpl
def collhub_producers() -> Sequence[FormatReader]:
    """Describe the readers of MSCCL-IR XML and of MSCCLang programs."""
    return [_READER, _PROGRAM_READER]


# Options of a check would be options of the file: a runtime reads it as it is, or not at all.
_LOAD_CHECKS = [
    LoadCheck(
        name,
        f"whether {title} uses an MSCCL-IR XML file",
        f"collhub_msccl.runtimes.load_check:check_{name}",
    )
    for name, title in (
        ("msccl", "microsoft/msccl"),
        ("executor", "Azure/msccl-executor-nccl"),
        ("rccl", "ROCm/rccl"),
    )
]


@hookimpl
def collhub_consumers() -> Sequence[FormatWriter | LoadCheck]:
    """Describe the writer and the load checks."""
    return [_WRITER, *_LOAD_CHECKS]
