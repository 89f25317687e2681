"""Sources: what a reader gets instead of paths."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import BinaryIO

from hub_core.model.diagnostics import Diagnostic, UsageError

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
