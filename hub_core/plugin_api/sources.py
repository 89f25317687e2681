"""Sources: inputs as readers get them, instead of paths."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, cast

from hub_core.model.diagnostics import Diagnostic, InputError, Location, UsageError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


_CHUNK_BYTES = 1 << 20


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
    """Log a finding with the logger `collhub`: the default receiver of findings."""
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
        """Return the bytes of the only part. Raises `UsageError` if there are several."""
        if len(self.parts) != 1:
            raise UsageError(f"{self.name}: one file was expected, {len(self.parts)} were given")
        return self.parts[0].load()

    def sha256(self) -> str:
        """Return the hexadecimal SHA-256 of all parts, for `Provenance.source_sha256`.

        For compressed files, the decompressed content counts.
        """
        # Imported here: it loads a library that only readers of files need.
        import hashlib

        digest = hashlib.sha256()
        for part in self.parts:
            with part.stream() as stream:
                while chunk := stream.read(_CHUNK_BYTES):
                    digest.update(chunk)
        return digest.hexdigest()


_MAGIC = b"\x1f\x8b"
_BUFFER_BYTES = 1 << 20
# Traces expand 10 to 30 times; a file of zeros, the maximum of gzip, 1000 times.
MAX_EXPANSION = 300
# Content up to this size is accepted with any expansion.
UNCHECKED_BYTES = 64 << 20
_GZIP_WINDOW_BITS = 31


def is_gzip(head: bytes) -> bool:
    """Whether a file that begins with these bytes is a gzip archive."""
    return head.startswith(_MAGIC)


def decompress_head(head: bytes) -> bytes:
    """Decompress the first bytes of an archive, to at most the length of `head`; b"" if damaged."""
    try:
        return zlib.decompressobj(_GZIP_WINDOW_BITS).decompress(head, max(1, len(head)))
    except zlib.error:
        return b""


def decompressed(file: BinaryIO, name: str) -> BinaryIO:
    """Return a stream of the decompressed content of `file`, or `file` itself if it is no archive.

    Closing the stream closes `file`. `name`: for errors. Reading raises `InputError` for a damaged
    archive, and for one that expands more than `MAX_EXPANSION` times.
    """
    raw = cast(io.RawIOBase, file)
    stored = file if isinstance(file, io.BufferedReader) else io.BufferedReader(raw)
    if not is_gzip(stored.peek(len(_MAGIC))):
        return stored
    return io.BufferedReader(_GunzipStream(stored, name), _BUFFER_BYTES)


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
        """Read up to the length of the buffer. Raises `InputError` as `decompressed` describes."""
        try:
            count = self._archive.readinto(buffer)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            message = f"the gzip archive ends early or is damaged: {error}"
            cure = "copy it again, or let the program that writes it finish"
            raise self._error(message, cure, "truncated") from None
        self._size += count
        if self._size > UNCHECKED_BYTES + MAX_EXPANSION * self._file.tell():
            message = f"the archive expands to more than {MAX_EXPANSION} times its size"
            cure = "decompress it with gunzip if its content is needed"
            raise self._error(message, cure, "bomb")
        return count

    def close(self) -> None:
        """Close the archive and its file."""
        if not self.closed:
            self._archive.close()
            self._file.close()
        super().close()

    def _error(self, message: str, cure: str, code: str) -> InputError:
        place = Location(self._name, byte=self._file.tell())
        return InputError(message, location=place, cure=cure, code=code)
