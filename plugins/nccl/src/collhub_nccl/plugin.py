"""Readers, writers and checks of this distribution.

Writes libraries and rings for NCCL; reads its graphs and logs, and machines in the formats of NCCL
and nvidia-smi.
"""

from __future__ import annotations

from collections.abc import Sequence

from collhub_nccl.options import (
    LogReadOptions,
    MachineXmlOptions,
    NcclProgramOptions,
    NcclRingOptions,
    NcclSynthesisOptions,
    NcclxTunerOptions,
    RcclTunerOptions,
    RingReadOptions,
    SmiMatrixOptions,
    TunerOptions,
)
from hub_core.model import STANDARD_KINDS, CollectiveKind
from hub_core.plugin_api import (
    Check,
    Command,
    Format,
    FormatReader,
    FormatWriter,
    Layout,
    RuleSet,
    Runtime,
    RuntimeLimits,
    SelectionWriter,
    Subject,
    Synthesizer,
    TopologyReader,
    hookimpl,
)

COLLHUB_PLUGIN_API = (1, 0)


def _root_signature(root: bytes) -> bytes:
    """Pattern for XML with this root element, possibly after comments."""
    declaration = rb"\A(?:\xef\xbb\xbf)?\s*(?:<\?xml[^>]*\?>\s*)?"
    # Possessive groups keep the match linear for hostile files that consist of one long comment.
    return declaration + rb"(?><!--(?s:.*?)-->\s*)*+<" + root + rb"[\s/>]"


PROGRAM = FormatWriter(
    Format(
        "nccl",
        "a folder with a library and a program for NCCL: tables, builds, CPU test double",
        (),
        layout=Layout.FOLDER,
    ),
    "collhub_nccl.programs.emit:write",
    NcclProgramOptions,
    (
        Runtime(
            "nccl",
            "NCCL's sends and receives in groups, called by an emitted library",
            # Any size: a rest runs as a native collective, parts of ranks are padded.
            RuntimeLimits(unit_bytes=0),
            STANDARD_KINDS,
            "collhub_nccl.programs.emit:fit",
            remainder="the library sends a rest by a native collective, or pads the parts of ranks",
        ),
    ),
)

# No suffix: several formats are XML, and NCCL's dumps have arbitrary names.
_GRAPH = Format(
    "nccl-graph", "rings within a node as XML, of NCCL_GRAPH_FILE", (), _root_signature(b"graphs")
)
RINGS = FormatWriter(_GRAPH, "collhub_nccl.graphs.graph_files:write", NcclRingOptions)
RING_READER = FormatReader(
    _GRAPH,
    "collhub_nccl.graphs.graph_files:read",
    RingReadOptions,
    samples="collhub_nccl.samples:graph_samples",
)

LOG_READER = FormatReader(
    Format(
        "nccl-log",
        "rings and trees of a communicator in logs of NCCL and RCCL (NCCL_DEBUG=INFO)",
        (".nccl.log", ".nccl.log.gz"),
        # A line of NCCL, possibly after lines of the program.
        rb"[\w.\-]+:\d+:\d+ \[-?\d+\][^\n]{0,300}? NCCL (?:INFO|WARN) ",
        Layout.PREFIX,
    ),
    "collhub_nccl.graphs.read_log:read",
    LogReadOptions,
    samples="collhub_nccl.samples:log_samples",
)

# A heading, or a line with two whole numbers: NCCL's and RCCL's files look alike.
_TUNER_LINE = (
    rb"(?mi)^#\s*collective\w*,min_?bytes,max_?bytes"
    rb"|^[ \t]*[a-z]\w*[ \t]*,[ \t]*\d+[ \t]*,[ \t]*\d+[ \t]*,[ \t]*[a-z]"
)
TUNER = SelectionWriter(
    Format(
        "nccl-tuner",
        "configuration of NCCL's tuner: which of NCCL's built-in algorithms, by size",
        (".conf",),
        _TUNER_LINE,
        Layout.FOLDER,
    ),
    "collhub_nccl.tuner.write:write",
    "collhub_nccl.tuner.read:read",
    TunerOptions,
    ("NCCL 2.27 to 2.30 with its example tuner (plugin interfaces v4 to v6)",),
)
RCCL_TUNER = SelectionWriter(
    Format(
        "rccl-tuner",
        "file of RCCL's tuner: which of RCCL's built-in algorithms, by size",
        (".csv",),
        _TUNER_LINE,
        Layout.FOLDER,
    ),
    "collhub_nccl.tuner.write:write_rccl",
    "collhub_nccl.tuner.read:read_rccl",
    RcclTunerOptions,
    ("RCCL of ROCm 7.13 and later",),
)
NCCLX_TUNER = SelectionWriter(
    Format(
        "ncclx-tuner",
        "file of NCCLX's tuner, CSV or JSON: which of its built-in algorithms, by size",
        (".csv", ".json"),
        # JSON with the list `rules`, a heading, or a line with a number or an interval and a word.
        rb'(?m)\A\s*\{\s*"rules"|^#\s*collective,bytesPerRank'
        rb"|^[ \t]*[A-Za-z]\w*[ \t]*,[ \t]*(?:\*|\d*|[\[(][\d ]*,[\d ]*[\])])[ \t]*,[ \t]*[A-Za-z]",
        Layout.FOLDER,
    ),
    "collhub_nccl.tuner.write:write_ncclx",
    "collhub_nccl.tuner.ncclx:read",
    NcclxTunerOptions,
    ("NCCLX of torchcomms (read at commit 59426ba4)",),
)


ALGORITHMS = Synthesizer(
    "nccl",
    "NCCL's rings, trees and NVLS, as NCCL runs them on the machine; tried only if it is named",
    "collhub_nccl.synthesize:synthesize",
    NcclSynthesisOptions,
    only_by_name=True,
    collectives=(
        CollectiveKind.ALL_REDUCE,
        CollectiveKind.ALL_GATHER,
        CollectiveKind.REDUCE_SCATTER,
        CollectiveKind.BROADCAST,
        CollectiveKind.REDUCE,
    ),
)


@hookimpl
def collhub_producers() -> Sequence[FormatReader | Synthesizer]:
    """Readers of ring graphs and logs; the synthesizer of NCCL's own algorithms."""
    return [RING_READER, LOG_READER, ALGORITHMS]


@hookimpl
def collhub_consumers() -> Sequence[FormatWriter | SelectionWriter]:
    """Writers of libraries, ring graphs and tuner configurations."""
    return [PROGRAM, RINGS, TUNER, RCCL_TUNER, NCCLX_TUNER]


TOPOLOGY_XML = TopologyReader(
    Format(
        "nccl-topology",
        "machines as NCCL and RCCL describe them in XML",
        (".xml",),
        _root_signature(b"system"),
    ),
    "collhub_nccl.topologies.topology_xml:read",
    MachineXmlOptions,
    samples="collhub_nccl.samples:xml_samples",
)

NVIDIA_SMI = TopologyReader(
    Format(
        "nvidia-smi",
        "text of nvidia-smi topo -m",
        (".txt",),
        # The line with the device names, which is underlined in terminal output.
        rb"(?m)^[^\S\n]*(?:\x1b\[[0-9;]*m)*\s*GPU0[^\S\n]",
    ),
    "collhub_nccl.topologies.nvidia_smi:read",
    SmiMatrixOptions,
    samples="collhub_nccl.samples:text_samples",
)


@hookimpl
def collhub_topologies() -> Sequence[TopologyReader]:
    """Readers of machines."""
    return [TOPOLOGY_XML, NVIDIA_SMI]


COMPILERS = Check(
    "nccl",
    Subject.INSTALLATION,
    "whether compilers for emitted libraries are installed",
    "collhub_nccl.programs.emit:check",
)


@hookimpl
def collhub_checks() -> Sequence[Check | RuleSet]:
    """Check of the compilers."""
    return [
        COMPILERS,
        RuleSet(
            "nccl",
            "findings in files of NCCL's tuner",
            "collhub_nccl.tuner.declared_rules:list_rules",
        ),
    ]


EXPLAIN = Command("nccl", "Explain NCCL's decisions.", "collhub_nccl.explain.command:nccl")


@hookimpl
def collhub_commands() -> Sequence[Command]:
    """Command that explains NCCL's choices."""
    return [EXPLAIN]
