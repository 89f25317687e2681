"""Sources: what a reader gets instead of paths."""

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
    """One file of a source: its name for messages, its rank where the name has one, its bytes.

    `open`: opens the file as a stream; None where only `load` gives the bytes.
    """

    name: str
    load: Callable[[], bytes]
    rank: int | None = None
    size: int | None = None
    open: Callable[[], BinaryIO] | None = None

    def stream(self) -> BinaryIO:
        """The bytes as a stream that the caller closes; a file on disk is not loaded."""
        return io.BytesIO(self.load()) if self.open is None else self.open()


def log_diagnostic(diagnostic: Diagnostic) -> None:
    """Say a finding through the logger `collhub`: the default where nobody asked for findings."""
    # Imported here: the program takes findings itself, and reading needs no logger.
    import logging

    logging.getLogger("collhub").warning("%s", diagnostic)


@dataclass(frozen=True, slots=True)
class Source:
    """What a reader gets: the name that the user gave, and the parts (one for FILE formats).

    FOLDER: the parts are all files of the folder; the name is the folder or, where the user named a
    set of rank files in it, the prefix of that set.
    `report`: where a reader says what it accepted but the user should know (warnings, notes);
    errors are raised.
    """

    name: str
    parts: tuple[SourcePart, ...]
    report: Callable[[Diagnostic], None] = log_diagnostic

    @classmethod
    def of_bytes(cls, name: str, content: bytes) -> Source:
        """A source of one part that is already in memory."""
        return cls(name, (SourcePart(name, lambda: content, None, len(content)),))

    def content(self) -> bytes:
        """Bytes of the only part."""
        if len(self.parts) != 1:
            raise UsageError(f"{self.name}: one file was expected, {len(self.parts)} were given")
        return self.parts[0].load()

    def sha256(self) -> str:
        """Hexadecimal SHA-256 of the content of all parts, for `Provenance.source_sha256`.

        The content of compressed files counts, not the archive.
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
# Traces expand 10 to 30 times; a file of zeros, gzip's limit, expands 1000 times.
MAX_EXPANSION = 300
# Content up to this size is accepted whatever its expansion.
UNCHECKED_BYTES = 64 << 20
_GZIP_WINDOW_BITS = 31


def is_gzip(head: bytes) -> bool:
    """Whether a file that begins with these bytes is a gzip archive."""
    return head.startswith(_MAGIC)


def decompress_head(head: bytes) -> bytes:
    """The first bytes of the content of an archive, at most as many as `head` has; b"" if damaged.

    `head`: the first bytes of the archive.
    """
    try:
        return zlib.decompressobj(_GZIP_WINDOW_BITS).decompress(head, max(1, len(head)))
    except zlib.error:
        return b""


def decompressed(file: BinaryIO, name: str) -> BinaryIO:
    """The content of `file`: decompressed as it is read if it is an archive, else as it is.

    `file` is closed with the result; `name`: for errors. Reading raises `InputError` for a damaged
    archive, and for one that expands more than `MAX_EXPANSION` times.
    """
    raw = cast(io.RawIOBase, file)
    stored = file if isinstance(file, io.BufferedReader) else io.BufferedReader(raw)
    if not is_gzip(stored.peek(len(_MAGIC))):
        return stored
    return io.BufferedReader(_GunzipStream(stored, name), _BUFFER_BYTES)


class _GunzipStream(io.RawIOBase):
    """The content of an archive; its size is checked against the archive's while it is read."""

    def __init__(self, file: io.BufferedReader, name: str) -> None:
        self._file = file
        self._name = name
        self._archive = gzip.GzipFile(fileobj=file)
        self._size = 0

    def readable(self) -> bool:
        """True, which `BufferedReader` checks."""
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Read up to the length of the buffer."""
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
