"""What this distribution offers to the hub: the readers of MSCCL-IR XML and of MSCCLang programs."""

from __future__ import annotations

from collections.abc import Sequence

from hub_core.plugins.contract import Format, FormatReader, Option, OptionType
from hub_core.plugins.hookspecs import hookimpl

COLLHUB_PLUGIN_API = (1, 0)

# Other kinds of XML live beside this one (NCCL topologies start with <system>): the root element decides.
_SIGNATURE = rb"\A(?:\xef\xbb\xbf)?\s*(?:<\?xml[^>]*\?>\s*)?(?:<!--(?s:.*?)-->\s*)*<algo[\s/>]"

_READER = FormatReader(
    Format("msccl-xml", "MSCCL-IR XML, the programs of the MSCCL runtimes", (".xml",), _SIGNATURE),
    "collhub_msccl.read_xml:read",
    (
        Option("root", OptionType.INT, None, "root of a broadcast, reduce, gather or scatter, which the file does not name"),
        Option(
            "reading",
            OptionType.TEXT,
            "runtime",
            "local operand of reducing receives: srcbuf and srcoff (runtime) or dstbuf and dstoff, as MSCCLang means them (dsl)",
            ("runtime", "dsl"),
        ),
    ),
    samples="collhub_msccl.samples:samples",
)

_PROGRAM_READER = FormatReader(
    Format("mscclang", "MSCCLang programs; reading one EXECUTES it, in a process of its own", (".py",)),
    "collhub_msccl.read_program:read",
    (
        Option("arguments", OptionType.TEXT, None, "command line arguments of the program, quoted as in a shell; or after --"),
        Option("time_limit", OptionType.INT, 60, "CPU seconds that the program may take, and twice as many by the clock"),
        Option("memory_limit", OptionType.SIZE, "4GiB", "address space that the program may take"),
    ),
    samples="collhub_msccl.program_samples:samples",
    executes_source=True,
)


@hookimpl
def collhub_producers() -> Sequence[FormatReader]:
    """Describe the readers."""
    return [_READER, _PROGRAM_READER]
