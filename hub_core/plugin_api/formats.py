"""Formats, their readers and writers, and the sources that readers get instead of paths."""

from __future__ import annotations

import gzip
import io
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, BinaryIO, cast

from hub_core.model.diagnostics import Diagnostic, InputError, Location, UsageError
from hub_core.plugin_api.options import NoOptions, Reference
from hub_core.plugin_api.runtimes import Runtime

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_CHUNK_BYTES = 1 << 20

_MAGIC = b"\x1f\x8b"

_BUFFER_BYTES = 1 << 20

# Traces expand 10 to 30 times; a file of zeros, the maximum of gzip, 1000 times.
MAX_EXPANSION = 300

# Content up to this size is accepted with any expansion.
UNCHECKED_BYTES = 64 << 20

_GZIP_WINDOW_BITS = 31


@dataclass(frozen=True, slots=True)
class SourcePart:
    """One file of a source: its name for messages, its rank if the name has one, its bytes.

    `open`: opens the file as a stream; None if only `load` returns the bytes.
    """

    name: str
    load: Callable[[], bytes]
    rank: int | None = None
    size: int | None = None
    open: Callable[[], BinaryIO] | None = None

    def stream(self) -> BinaryIO:
        """Return the bytes as a stream, which the caller closes; a file on disk is not loaded."""
        return io.BytesIO(self.load()) if self.open is None else self.open()


def log_diagnostic(diagnostic: Diagnostic) -> None:
    """Log a finding as a warning with the logger `collhub`, whatever its severity.

    Functions use it for findings if their caller gives no other receiver.
    """
    # Imported here: the program passes a receiver of its own and needs no logger.
    import logging

    logging.getLogger("collhub").warning("%s", diagnostic)


@dataclass(frozen=True, slots=True)
class Source:
    """Input of a reader: the name given by the user, and the parts (one for FILE formats).

    FOLDER: the parts are all files of the folder; the name is the folder or, if the user named a
    set of rank files in it, the prefix of that set. `report`: receives warnings and notes of the
    reader on an accepted input; errors are raised.
    """

    name: str
    parts: tuple[SourcePart, ...]
    report: Callable[[Diagnostic], None] = log_diagnostic

    @classmethod
    def of_bytes(cls, name: str, content: bytes) -> Source:
        """Create a source of one part that is in memory."""
        return cls(name, (SourcePart(name, lambda: content, None, len(content)),))

    def content(self) -> bytes:
        """Return the bytes of the only part, loaded now.

        Raises `UsageError` unless there is exactly one.
        """
        if len(self.parts) != 1:
            raise UsageError(f"{self.name}: one file was expected, {len(self.parts)} were given")
        return self.parts[0].load()

    def get_only_part(self, subject: str) -> SourcePart:
        """Return the only part, for readers that read it as a stream.

        `subject`: the content of the file in the message, such as `a workload text`. Raises
        `InputError` (`several-files`) for another number of parts.
        """
        if len(self.parts) != 1:
            message = f"{len(self.parts)} files; {subject} is one file"
            location = Location(self.name)
            raise InputError(message, location=location, cure="name one file", code="several-files")
        return self.parts[0]

    def sha256(self) -> str:
        """Return the hexadecimal SHA-256 of all parts in their order, for a `Provenance`.

        The contents are hashed as one sequence of bytes, without names and lengths. For
        compressed files, the decompressed content counts. Parts that can be opened as a stream
        are read in blocks of 1 MiB; a part without `open` is loaded completely.
        """
        # Imported here: it loads a library that only readers of files need.
        import hashlib

        digest = hashlib.sha256()
        for part in self.parts:
            with part.stream() as stream:
                while chunk := stream.read(_CHUNK_BYTES):
                    digest.update(chunk)
        return digest.hexdigest()


def is_gzip(head: bytes) -> bool:
    """Whether a file that begins with these bytes is a gzip archive."""
    return head.startswith(_MAGIC)


def decompress_head(head: bytes) -> bytes:
    """Decompress the first bytes of a gzip archive, to at most the length of `head`.

    An archive that ends early gives what it contains so far; b"" if the bytes are damaged or no
    archive.
    """
    try:
        return zlib.decompressobj(_GZIP_WINDOW_BITS).decompress(head, max(1, len(head)))
    except zlib.error:
        return b""


def decompressed(file: BinaryIO, name: str) -> BinaryIO:
    """Return a stream of the content of a file, decompressed if the file is gzip.

    The first two bytes decide whether it is gzip. Closing the stream closes `file`. `name`:
    the file in errors. For gzip, reading raises `InputError` for an archive that is damaged
    or ends early (`truncated`), and as soon as more than 64 MiB plus `MAX_EXPANSION` (300)
    times the compressed bytes read so far were decompressed (`bomb`).
    """
    raw = cast(io.RawIOBase, file)
    stored = file if isinstance(file, io.BufferedReader) else io.BufferedReader(raw)
    if not is_gzip(stored.peek(len(_MAGIC))):
        return stored
    return io.BufferedReader(_GunzipStream(stored, name), _BUFFER_BYTES)


class Layout(StrEnum):
    """Layout of a format's artifacts on disk.

    FILE: one file. PREFIX: one file per rank, with a common prefix. FOLDER: the files of a folder.
    """

    FILE = "file"
    PREFIX = "prefix"
    FOLDER = "folder"


@dataclass(frozen=True, slots=True)
class UnexportedFiles:
    """Files of a tool that no reader reads before the tool exports them to a format.

    `suffixes`: endings of their names in lower case, such as `.nsys-rep`. `description`: what a
    file is, after "this is"; `cure`: the command of the export. `signature`: a regular expression
    (bytes) that is searched in the first 4096 bytes, empty for none.
    """

    suffixes: tuple[str, ...]
    description: str
    cure: str
    signature: bytes = b""

    def find_error(self, name: str, head: bytes) -> InputError | None:
        """Return the error (`not-exported`) if a file is one of these, otherwise None.

        It is one if its `name` has a suffix, in upper or lower case, or if its first bytes, `head`,
        have the signature.
        """
        has_signature = bool(self.signature) and re.search(self.signature, head) is not None
        if not has_signature and not name.lower().endswith(self.suffixes):
            return None
        message, location = f"this is {self.description}", Location(name)
        return InputError(message, location=location, cure=self.cure, code="not-exported")


@dataclass(frozen=True, slots=True)
class Format:
    """A format by name. It is detected by `suffixes` first, then by `signature`.

    `suffixes`: endings of file names with the dot (`.xml`). `signature`: a regular expression
    (bytes) that is searched in the first 4096 bytes, empty for none. PREFIX: rank files are
    `PREFIX.<rank><suffix>`. FOLDER: suffixes and signature are those of a file directly in the
    folder that identifies the format. A format with a suffix that ends in `.gz` is also read from
    gzip archives of any name: its reader gets the decompressed content, in which the signature is
    searched. `members`: usual top-level members of a JSON format; the error for an unknown JSON
    file names the nearest format by them. `unexported`: files that a tool exports to the format;
    the error for such a file has their cure.
    """

    name: str
    description: str
    suffixes: tuple[str, ...]
    signature: bytes = b""
    layout: Layout = Layout.FILE
    members: tuple[str, ...] = ()
    unexported: tuple[UnexportedFiles, ...] = ()

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
    """Consumer: `write(algorithm: Algorithm, options) -> WriteResult`.

    `runtimes`: the runtimes that load its files, as targets of a synthesis; the first one is the
    default.
    """

    write: Reference
    options: type = NoOptions
    runtimes: tuple[Runtime, ...] = ()


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
class MeasuredGain:
    """Times of two programs that were run on the same data, and the difference of their results.

    `method`: how they were run, for readers. Times are those of one step, in s.
    `max_relative_error`: largest difference of an output, relative to its largest value.
    """

    method: str
    before_s: float
    after_s: float
    max_relative_error: float


@dataclass(frozen=True, slots=True)
class WorkloadWriter(FormatOffer):
    """Consumer: `write(workload: Workload, options) -> WriteResult`.

    `run(before: Workload, after: Workload, options) -> MeasuredGain`: runs the files of both
    workloads in separate processes, for `collhub transform --run`; default: not possible.
    """

    write: Reference
    options: type = NoOptions
    run: Reference = ""


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


class _GunzipStream(io.RawIOBase):
    """Decompressed content of an archive, whose expansion is checked while it is read."""

    def __init__(self, file: io.BufferedReader, name: str) -> None:
        self._file = file
        self._name = name
        self._archive = gzip.GzipFile(fileobj=file)
        self._size = 0

    def readable(self) -> bool:
        """Return True: `BufferedReader` requires it."""
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Read decompressed bytes into the buffer; return their number, 0 at the end.

        Raises `InputError` with the code `truncated` for a damaged archive or one that ends early,
        and with the code `bomb` if the bytes so far exceed 64 MiB plus 300 times the compressed
        bytes read.
        """
        try:
            count = self._archive.readinto(buffer)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            message = f"the gzip archive ends early or is damaged: {error}"
            cure = "copy it again, or let the program that writes it finish"
            raise self._error(message, cure, "truncated") from None
        self._size += count
        if self._size > UNCHECKED_BYTES + MAX_EXPANSION * self._file.tell():
            message = (
                f"the archive expands to more than {MAX_EXPANSION} times the bytes read so far"
            )
            cure = "decompress it with gunzip if its content is needed"
            raise self._error(message, cure, "bomb")
        return count

    def close(self) -> None:
        """Close the archive and the compressed file below it.

        It has no effect if it is closed already.
        """
        if not self.closed:
            self._archive.close()
            self._file.close()
        super().close()

    def _error(self, message: str, cure: str, code: str) -> InputError:
        place = Location(self._name, byte=self._file.tell())
        return InputError(message, location=place, cure=cure, code=code)
