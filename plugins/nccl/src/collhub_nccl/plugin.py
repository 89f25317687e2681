"""Readers, writers and checks of this distribution, and the rules of its findings.

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
    Rule,
    RuleSet,
    Runtime,
    RuntimeLimits,
    SelectionWriter,
    Subject,
    Synthesizer,
    TopologyReader,
    declare_rules,
    hookimpl,
)

COLLHUB_PLUGIN_API = (1, 0)


def _root_signature(root: bytes) -> bytes:
    """Return a pattern that matches XML with this root element.

    A byte order mark, a declaration and comments, in this order, may come before it, but no
    DOCTYPE. Matching takes linear time, also for a file that is one long comment.
    """
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
    rb"(?mi)^(?:#\s*)?collective\w*,min_?bytes,max_?bytes"
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
        rb'(?m)\A\s*\{\s*"rules"|^(?:#\s*)?collective,bytesPerRank'
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
            "collhub_nccl.plugin:list_rules",
        ),
        RuleSet(
            "nccl-files",
            "findings in graphs, topologies and logs of NCCL",
            "collhub_nccl.file_rules:list_rules",
        ),
    ]


EXPLAIN = Command("nccl", "Explain NCCL's decisions.", "collhub_nccl.explain.command:nccl")


@hookimpl
def collhub_commands() -> Sequence[Command]:
    """Command that explains NCCL's choices."""
    return [EXPLAIN]


_RULES = (
    (
        "unit",
        "A size has another unit than the tuner reads.",
        "A number has a unit such as K, or a comment names bytes per rank in place of total bytes.",
        "Write bytes, in total or per rank as the tuner reads them.",
        "allreduce,0,64K,ring,simple,2,1,8",
    ),
    (
        "not-a-rule",
        "A line is no rule, so that the tuner skips it or reads other values.",
        "It has too few fields, blanks, an empty field, or is too long; JSON has another form.",
        "Write all required fields; -1 means any number.",
        "allreduce,0,65536,tree,simple",
    ),
    (
        "unknown-word",
        "A word is not known to the tuner, which takes another one or skips the line.",
        "A name is misspelt or belongs to another library.",
        "Use a word that the error lists.",
        "allreduce,0,65536,rign,simple,2,1,8",
    ),
    (
        "out-of-range",
        "A number is outside of the range that the tuner accepts.",
        "The end of a range precedes its start, or numbers of nodes and ranks are exchanged.",
        "Write the number that the cure names.",
        "allreduce,65536,0,ring,simple,2,1,8",
    ),
    (
        "refused-choice",
        "The runtime refuses the choice of the line and uses its own.",
        "The algorithm does not implement the collective or protocol.",
        "Choose an algorithm that the cure names.",
        "broadcast,0,65536,tree,simple,2,1,8",
    ),
    (
        "slow-choice",
        "The choice is never faster than another one.",
        "A tree on one node is a chain of GPUs.",
        "Write ring.",
        "allreduce,0,65536,tree,simple,2,1,8",
    ),
    (
        "conditional-rule",
        "The line applies only under a condition of the call.",
        "It states numPipeOps or regBuff.",
        "None is needed; write -1 for any value.",
        "allreduce,0,65536,ring,simple,2,1,8,1,-1",
    ),
    (
        "too-many",
        "The file has more lines than the tuner reads.",
        "Its table has a fixed size.",
        "Join neighbouring ranges of sizes.",
        "one line per size and communicator",
    ),
    (
        "unknown-file",
        "A file of the folder is not read by the tuner.",
        "It has another name.",
        "Remove or rename it.",
        "notes.txt",
    ),
    (
        "heading",
        "A line names the columns and decides no call.",
        "The names of the columns are not a comment.",
        "Begin the line with #.",
        "collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks",
    ),
    (
        "ends-early",
        "A range ends at 4 GiB - 1, and no line matches larger calls.",
        "The largest number of 32 bits was taken as no limit.",
        "Write the largest size that the cure names.",
        "allreduce,0,4294967295,ring,simple,2,-1,-1",
    ),
    (
        "short-gap",
        "Fewer than 16 bytes between two ranges have no line.",
        "A range begins one element after the end of the range before it.",
        "Begin the line at the byte that the cure names.",
        "ranges 0 to 1023 and 1028 to 65536",
    ),
    (
        "never-reached",
        "A line is never used, because earlier lines match all its calls.",
        "The tuner takes the first line that matches.",
        "Remove the line, or move it before the others.",
        "the same line twice",
    ),
    (
        "overlap",
        "Two lines match the same calls and choose differently.",
        "Ranges of sizes overlap.",
        "Divide the ranges.",
        "allreduce to 65536 bytes by tree and from 1024 bytes by ring",
    ),
    (
        "gap",
        "No line matches 16 or more bytes between two ranges; the library chooses there.",
        "A range ends before the next one begins.",
        "Write lines without a gap.",
        "ranges 0 to 1023 and 2048 to 65536",
    ),
    (
        "one-channel",
        "The tuner gives calls without a matching line one channel, which is slow.",
        "NCCL's example tuner starts with one channel if no line matches.",
        "Write lines for all sizes with -1,-1 for nNodes,nRanks, as `collhub tune` does.",
        "a file with a line for all-reduces only",
    ),
    (
        "not-searched",
        "Sizes without a line are searched only for the first communicators.",
        "The file has lines for many communicators.",
        "None is needed.",
        "lines for 100 different numbers of ranks",
    ),
)


def list_rules() -> Sequence[Rule]:
    """Return the rules of the readers of tuner files."""
    return declare_rules("files of tuners of NCCL, RCCL and NCCLX, by `collhub verify`", _RULES)
