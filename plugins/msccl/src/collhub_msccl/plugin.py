"""Offers for MSCCL-IR XML and MSCCLang: readers, writers, checks, targets, and their options.

The options are declared here, because they are listed without any of the readers or writers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from collhub_msccl.runtimes.known_runtimes import (
    HISTORIES,
    MAX_NODES,
    MAX_OFFSET,
    RESIDENT_BLOCKS,
    RUNTIMES,
    list_runtimes,
)
from hub_core.plugin_api import (
    Check,
    Format,
    FormatReader,
    FormatWriter,
    Layout,
    OptionType,
    RuleSet,
    Runtime,
    RuntimeFit,
    RuntimeLimits,
    SelectionWriter,
    Subject,
    WarmOptions,
    choice,
    hookimpl,
    option,
    optional,
)
from hub_core.sandbox import SourceProgramOptions

if TYPE_CHECKING:
    from hub_core.model import Algorithm
    from hub_core.network import Topology


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Options of the reader of MSCCL-IR XML."""

    # The valid range depends on the file's number of ranks, so the reader checks it.
    root: int | None = optional(
        "root of a broadcast, reduce, gather or scatter, which the file does not name",
        OptionType.INT,
    )
    collective: str | None = optional(
        "collective of a file without `coll`, as the short form of ncclize: allgather, ..."
    )
    reading: str = choice(
        ("runtime", "dsl"),
        "local operand of reducing receives: srcbuf and srcoff (runtime) or dstbuf and dstoff,"
        " as MSCCLang defines them (dsl)",
    )
    copies: str = choice(
        ("ignore", "run"),
        "<copy> elements, which TACCL writes and no runtime reads: ignore them, or run them"
        " before all steps, as TACCL intends",
    )


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Options of the writer of MSCCL-IR XML."""

    runtime: str | None = choice(
        (None, "msccl", "executor", "rccl"),
        "runtime that will load the file: microsoft/msccl (msccl), Azure/msccl-executor-nccl"
        " (executor) or ROCm/rccl (rccl); default: msccl for custom collectives, which only"
        " msccl supports, else executor",
    )
    name: str | None = optional("name of the algorithm in the file")
    proto: str | None = choice(
        (None, "Simple", "LL", "LL128"), "protocol; default: as imported, else Simple"
    )
    mode: str | None = choice(
        (None, "in-place", "out-of-place"),
        "calls that the file serves, if the algorithm is correct for both modes;"
        " msccl accepts one mode per file",
    )
    collective: str | None = optional("name of the collective in the file, for custom ones")
    min_bytes: int | None = optional("smallest size of calls that use the file", OptionType.SIZE)
    max_bytes: int | None = optional("largest size of calls that use the file", OptionType.SIZE)
    channels: int | None = optional(
        "number of channels over which steps without thread blocks are distributed; default:"
        " the algorithm's channels, or as many as shorten a program that declares none",
        OptionType.INT,
        minimum=1,
    )
    max_steps: int | None = optional(
        "maximum steps per thread block, if the runtime was built with a different limit",
        OptionType.INT,
        minimum=1,
    )
    max_blocks: int | None = optional(
        "maximum thread blocks of a rank; default: the limit of the runtime",
        OptionType.INT,
        minimum=1,
    )
    max_channels: int | None = optional(
        "maximum channels of the file; default: the limit of the runtime", OptionType.INT, minimum=1
    )


@dataclass(frozen=True, slots=True)
class LanguageOptions(SourceProgramOptions):
    """Options of the reader of MSCCLang programs."""

    mode: str | None = choice(
        (None, "in-place", "out-of-place"),
        "calls that the program serves; overrides the mode of its collective",
    )


@dataclass(frozen=True, slots=True)
class SelectionOptions:
    """Options of folders of programs from which a runtime selects by size."""

    runtime: str = option(
        OptionType.TEXT,
        "executor",
        "runtime that will load the folder: microsoft/msccl (msccl),"
        " Azure/msccl-executor-nccl (executor) or ROCm/rccl (rccl)",
        choices=("msccl", "executor", "rccl"),
    )
    proto: str | None = choice(
        (None, "Simple", "LL", "LL128"),
        "protocol of all files; default: as timed on a machine, else Simple",
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
    """Return the two readers of this plugin: of MSCCL-IR XML files and of MSCCLang programs.

    The reader of programs executes the file in a sandbox. The plugin system calls this function.
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
        LanguageOptions,
        samples="collhub_msccl.read_program:samples",
        executes_source=True,
    )
    return [xml_reader, program_reader]


@hookimpl
def collhub_consumers() -> Sequence[FormatWriter | SelectionWriter]:
    """Return the two writers of this plugin: of an MSCCL-IR XML file, and of a folder of them.

    The folder is written for a tuned selection of algorithms. The plugin system calls this
    function.
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
    """Return checks of three runtimes, the sandbox and the kernels, and the rules of MSCCL XML.

    The list has this order. The runtimes are `msccl`, `executor` and `rccl` (the order of
    `HISTORIES`). Each check reports whether the runtime uses an MSCCL-IR XML file, and has no
    options. The check `program-sandbox` reports how well MSCCLang programs are isolated, and
    `msccl-kernels` compiles the kernels in advance, for `doctor --warm`. The last element
    is a `RuleSet`, not a `Check`. The plugin system calls this function.
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
            reads=(_XML.name,),
        )
        for name, history in HISTORIES.items()
    ]
    sandbox = Check(
        "program-sandbox",
        Subject.INSTALLATION,
        "how far programs are kept from files, connections and other processes",
        "hub_core.sandbox.confinement:check_sandbox",
    )
    kernels = Check(
        "msccl-kernels",
        Subject.INSTALLATION,
        "compiles the kernels in advance, for doctor --warm",
        "collhub_msccl.writing.warming:check",
        WarmOptions,
    )
    return [
        *runtimes,
        sandbox,
        kernels,
        RuleSet("msccl", "findings in MSCCL XML", "collhub_msccl.runtimes.rules:list_rules"),
    ]


_DEFAULT_TARGET = "executor"
_ELEMENT_BYTES = 4
# More steps and channels than any file has.
_ANY = 1 << 20
_REMAINDER = "calls of other sizes are served by NCCL's own algorithms, or padded by the caller"


def list_targets() -> tuple[Runtime, ...]:
    """Return all runtimes as targets of the writer, the default first.

    The other runtimes follow in the order of `RUNTIMES`.
    """
    names = sorted(RUNTIMES, key=lambda name: name != _DEFAULT_TARGET)
    return tuple(_build_target(name) for name in names)


def _build_target(name: str) -> Runtime:
    runtime = RUNTIMES[name]
    return Runtime(
        name,
        runtime.title,
        RuntimeLimits(
            unit_bytes=_ELEMENT_BYTES,
            max_units=MAX_OFFSET,
            max_blocks=min(runtime.max_blocks, RESIDENT_BLOCKS),
            max_block_operations=runtime.max_steps,
            max_channels=runtime.max_channels,
            # A rank reads its thread blocks and steps as elements.
            max_operations=MAX_NODES - min(runtime.max_blocks, RESIDENT_BLOCKS) - 2,
        ),
        tuple(runtime.spelling),
        f"collhub_msccl.plugin:fit_{name}",
        {"runtime": name},
        _REMAINDER,
        limit_options={
            "blocks": "max_blocks",
            "block_operations": "max_steps",
            "channels": "max_channels",
        },
        fits_quickly=True,
    )


def fit_msccl(
    algorithm: Algorithm,
    collective_bytes: int,
    topology: Topology,
    limits: RuntimeLimits,
    *,
    is_quick: bool = False,
) -> RuntimeFit:
    """Return the resources of an algorithm on microsoft/msccl; raises as the writer does."""
    return _fit(algorithm, collective_bytes, "msccl", limits, is_quick)


def fit_executor(
    algorithm: Algorithm,
    collective_bytes: int,
    topology: Topology,
    limits: RuntimeLimits,
    *,
    is_quick: bool = False,
) -> RuntimeFit:
    """Return the resources of an algorithm on Azure/msccl-executor-nccl; raises as the writer."""
    return _fit(algorithm, collective_bytes, "executor", limits, is_quick)


def fit_rccl(
    algorithm: Algorithm,
    collective_bytes: int,
    topology: Topology,
    limits: RuntimeLimits,
    *,
    is_quick: bool = False,
) -> RuntimeFit:
    """Return the resources of an algorithm on ROCm/rccl; raises as the writer does."""
    return _fit(algorithm, collective_bytes, "rccl", limits, is_quick)


def _fit(
    algorithm: Algorithm,
    collective_bytes: int,
    runtime: str,
    limits: RuntimeLimits,
    is_quick: bool,
) -> RuntimeFit:
    """Return the resources of the file that would be written for a runtime (see `measure_fit`).

    `runtime`: a key of `RUNTIMES`. `collective_bytes`: the option `max_bytes` of the writer;
    `max_bytes` of the result never exceeds it.

    Three members of `limits` replace the limits of the runtime: the maximum numbers of blocks,
    of operations per block and of channels. None permits any number of operations or channels;
    for blocks None keeps the limit of the runtime.

    With `is_quick`, the first program without list scheduling is measured if it fits all
    members of `limits`. Otherwise, and without `is_quick`, the program of the writer is
    measured. Raises `InputError` if the runtime cannot execute the algorithm within the limits,
    and `UsageError` if the options do not fit the algorithm.
    """
    # Imported here: the offers of the plugin refer to this module, and need no writer.
    from collhub_msccl.writing.write_xml import measure_fit

    usual = _build_target(runtime).limits
    options = WriteOptions(runtime=runtime, max_bytes=collective_bytes)
    if limits.max_blocks != usual.max_blocks:
        options = replace(options, max_blocks=limits.max_blocks)
    if limits.max_block_operations != usual.max_block_operations:
        options = replace(options, max_steps=limits.max_block_operations or _ANY)
    if limits.max_channels != usual.max_channels:
        options = replace(options, max_channels=limits.max_channels or _ANY)
    return measure_fit(algorithm, options, limits if is_quick else None)
