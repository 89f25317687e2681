"""Formats, their readers and writers, and other sources of topologies and workloads."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from hub_core.plugin_api.options import NoOptions, Reference


class Layout(StrEnum):
    """Layout of a format's artifacts on disk.

    FILE: one file. PREFIX: one file per rank, with a common prefix. FOLDER: the files of a folder.
    """

    FILE = "file"
    PREFIX = "prefix"
    FOLDER = "folder"


@dataclass(frozen=True, slots=True)
class Format:
    """A format by name. It is detected by `suffixes` first, then by `signature`.

    `suffixes`: endings of file names with the dot (`.xml`). `signature`: a regular expression
    (bytes) that is searched in the first 4096 bytes, empty for none. PREFIX: rank files are
    `PREFIX.<rank><suffix>`. FOLDER: suffixes and signature are those of a file directly in the
    folder that identifies the format. A format with a suffix that ends in `.gz` is also read from
    gzip archives of any name: its reader gets the decompressed content, in which the signature is
    searched. `members`: usual top-level members of a JSON format; the error for an unknown JSON
    file names the nearest format by them.
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
    """Common part of readers and writers, whose name is that of their format."""

    format: Format

    @property
    def name(self) -> str:
        """Name of the format."""
        return self.format.name


@dataclass(frozen=True, slots=True)
class FormatReader(FormatOffer):
    """Producer: `read(source: Source, options) -> Algorithm`.

    It never opens paths, prints, exits or reads the environment. `samples() -> Sequence[Source]`:
    small correct inputs that the conformance kit reads; optional if the format also has a writer.
    `executes_source`: the input is a program, which the reader executes in a separate process. Such
    a reader may start that process, its description says so, and its option `arguments` (TEXT,
    quoted as in a shell) gets the arguments after `--` on the command line.
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

    The core handles planes (`a+b`), subsets (`npus=0-3`) and products of dimensions; the builder
    gets a text without them. `example`: a valid text, for help and for the conformance kit. Invalid
    arguments are refused with `text.error(...)`.
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

    `claims(source: Source) -> bool`: whether a source that a reader of algorithms could also read
    is a workload; never raises; default False. `lines(workload: Workload) -> Sequence[str]`: lines
    that `inspect` prints. `network(source: Source, options: NoOptions) -> Topology`: the network
    that the source contains in addition to the job; default none.
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

    Equal options generate equal jobs, which pass every check. Options that do not fit together
    raise a `UsageError` that names them. `searches`: the generator may search for the best job;
    `generate` then gets `budget: SearchBudget` after its options, and records in it the parts that
    a limit ended.
    """

    name: str
    description: str
    generate: Reference
    options: type = NoOptions
    searches: bool = False
