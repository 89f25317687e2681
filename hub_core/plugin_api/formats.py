"""Formats, their readers and writers, and other sources of topologies and workloads."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from hub_core.plugin_api.options import NoOptions, Reference


class Layout(StrEnum):
    """How a format's artifacts lie on disk: one file; one file a rank behind a prefix; a folder."""

    FILE = "file"
    PREFIX = "prefix"
    FOLDER = "folder"


@dataclass(frozen=True, slots=True)
class Format:
    """A format by name. Detection is declarative: suffixes first, then `signature`.

    `suffixes`: file name endings with the dot (`.xml`). `signature`: a regular expression (bytes)
    searched in the first 4096 bytes, empty for none. PREFIX: part files are
    `PREFIX.<rank><suffix>`. FOLDER: both are those of a file directly in the folder that tells what
    the folder is. A format of which a suffix ends in `.gz` is also read from gzip archives of any
    name: its reader gets the decompressed content, in which the signature is searched. `members`:
    the usual top-level members of a JSON format, by which errors name the format nearest to a file
    that no reader recognises.
    """

    name: str
    description: str
    suffixes: tuple[str, ...]
    signature: bytes = b""
    layout: Layout = Layout.FILE
    members: tuple[str, ...] = ()

    @property
    def accepts_gzip(self) -> bool:
        """Whether files of the format may be gzip archives."""
        return any(suffix.endswith(".gz") for suffix in self.suffixes)


@dataclass(frozen=True, slots=True)
class FormatOffer:
    """What readers and writers have in common: they are called as their format is."""

    format: Format

    @property
    def name(self) -> str:
        """The name of the format."""
        return self.format.name


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


@dataclass(frozen=True, slots=True)
class FormatWriter(FormatOffer):
    """Consumer: `write(algorithm: Algorithm, options) -> WriteResult`."""

    write: Reference
    options: type = NoOptions


@dataclass(frozen=True, slots=True)
class TopologyBuilder:
    """`build(text: TopologyText) -> Topology` for texts `NAME` or `NAME:ARGUMENT[?KEY=VALUE&...]`.

    Planes (`a+b`), subsets (`npus=0-3`) and products of dimensions are the core's; the builder sees
    one text without them. `example`: a text that the builder takes, for help and for the
    conformance kit. Wrong arguments are refused with `text.error(...)`.
    """

    name: str
    description: str
    build: Reference
    example: str


@dataclass(frozen=True, slots=True)
class TopologyReader(FormatOffer):
    """`read(source: Source, options) -> Topology`; `samples` as in `FormatReader`."""

    read: Reference
    options: type = NoOptions
    samples: Reference = ""


@dataclass(frozen=True, slots=True)
class TopologyWriter(FormatOffer):
    """Consumer: `write(topology: Topology, options) -> WriteResult`."""

    write: Reference
    options: type = NoOptions


@dataclass(frozen=True, slots=True)
class WorkloadReader(FormatReader):
    """Producer: `read(source: Source, options) -> Workload`, otherwise as `FormatReader`.

    `claims(source: Source) -> bool`: whether what a reader of algorithms would take is a workload;
    never raises; default: no. `lines(workload: Workload) -> Sequence[str]`: shown by `inspect`.
    `network(source: Source, options: NoOptions) -> Topology`: the network that the source states
    beside the job; default: none.
    """

    claims: Reference = ""
    lines: Reference = ""
    network: Reference = ""


@dataclass(frozen=True, slots=True)
class WorkloadWriter(FormatOffer):
    """Consumer: `write(workload: Workload, options) -> WriteResult`."""

    write: Reference
    options: type = NoOptions


@dataclass(frozen=True, slots=True)
class WorkloadGenerator:
    """Producer: `generate(options) -> Workload`, run by `collhub generate`.

    Equal options make equal jobs, which pass every check. Options that fit no job are refused with
    a `UsageError` that names them. `searches`: it may search for the best job; `generate` is then
    given `budget: SearchBudget` behind its options, and records in it what a limit has cut.
    """

    name: str
    description: str
    generate: Reference
    options: type = NoOptions
    searches: bool = False
