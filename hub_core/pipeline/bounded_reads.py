"""Read files and streams, also as parts of sources, with limits; every error names the file."""

from __future__ import annotations

import contextlib
import io
import os
import stat
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import BinaryIO

from hub_core.model.diagnostics import InputError, Location
from hub_core.plugin_api import SourcePart, decompressed

HEAD_BYTES = 4096
MAX_FILE_BYTES = 4 << 30
MAX_STREAM_BYTES = 1 << 30
_CHUNK_BYTES = 1 << 20


def load_file(file: Path) -> bytes:
    """Read a file of at most 4 GiB; a pipe or device is read like a stream, up to 1 GiB.

    Raises `InputError`, which names the file, if it is missing or cannot be read, is larger, or
    is an empty regular file. An empty pipe gives b"". The content is not decompressed.
    """
    name = str(file)
    with open_file(file) as opened, convert_read_errors(name):
        if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
            return read_bounded(opened, name, b"")
        if os.fstat(opened.fileno()).st_size > MAX_FILE_BYTES:
            message = f"is larger than {MAX_FILE_BYTES >> 30} GiB"
            raise create_read_error(name, message, "split it, or name another file")
        content = opened.read()
    if not content:
        raise create_read_error(name, "is empty", "name a file with content")
    return content


def read_bounded(file: BinaryIO, name: str, head: bytes, limit: int | None = None) -> bytes:
    """Read the rest of a stream, and return `head` followed by it.

    The stream is read in blocks of 1 MiB. After each block that is not empty, `InputError` is
    raised, naming the stream `name`, if `head` and the bytes read so far are longer than `limit`
    (default: `MAX_STREAM_BYTES`, 1 GiB). An empty stream is no error, and then `head` may have any
    length. Errors of reading are not converted.
    """
    limit = MAX_STREAM_BYTES if limit is None else limit
    content = io.BytesIO()
    content.write(head)
    while chunk := file.read(_CHUNK_BYTES):
        content.write(chunk)
        if content.tell() > limit:
            message = f"gives more than {limit >> 30} GiB"
            raise create_read_error(name, message, "save it as a file and name that")
    return content.getvalue()


def read_head(file: Path) -> bytes:
    """Return the first 4096 bytes of a file, or all bytes of a shorter one.

    Raise `InputError` (`unreadable-input`) if the file cannot be read, is empty or begins
    with 4096 zero bytes.
    """
    with open_file(file) as opened, convert_read_errors(str(file)):
        head = opened.read(HEAD_BYTES)
    check_head(str(file), head)
    return head


def check_head(name: str, head: bytes) -> None:
    """Raise `InputError` for an empty file and for one that begins with 4096 zero bytes.

    `head`: the first bytes of the file, at most `HEAD_BYTES` (4096). A shorter file of zeros is
    accepted. `name`: the file in the message.
    """
    if not head:
        raise create_read_error(name, "is empty", "name a file with content")
    # Files of zeros are refused before they are loaded.
    if len(head) == HEAD_BYTES and not any(head):
        message = f"begins with {HEAD_BYTES} zero bytes, as no format does"
        raise create_read_error(name, message, "write the file again")


def open_file(file: Path) -> BinaryIO:
    """Open a file for reading. Raises `InputError`."""
    with convert_read_errors(str(file)):
        return open(file, "rb")


@contextlib.contextmanager
def convert_read_errors(name: str) -> Iterator[None]:
    """Convert errors of the file system in the body to `InputError` on the file `name`.

    These are `OSError` and `ValueError`, as for a null byte in a path. For a missing file, the
    message says that there is no such file or set of rank files; otherwise it has the system's
    reason.
    """
    try:
        yield
    except FileNotFoundError:
        message = "there is no such file or set of rank files"
        raise create_read_error(name, message, "check the path") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        cure = "check the path and its permissions"
        raise create_read_error(name, f"cannot be read: {reason}", cure) from None


def create_read_error(name: str, message: str, cure: str) -> InputError:
    """Create the error for a file that cannot be read."""
    return InputError(message, location=Location(name), cure=cure, code="unreadable-input")


def create_part(file: Path, rank: int | None = None) -> SourcePart:
    """Return a file as a part of a source; its content is read on demand.

    `rank`: the rank whose file it is, None if it is not a file of one rank. Raises `InputError` if
    the file does not exist or cannot be examined.
    """
    with convert_read_errors(str(file)):
        size = file.stat().st_size
    return SourcePart(str(file), partial(load_file, file), rank, size, partial(_open_part, file))


def _open_part(file: Path) -> BinaryIO:
    """Open a file as a stream of bytes, which the caller closes.

    A regular file with content is opened and not yet read; its size is not limited. Any
    other file, such as a pipe or device, is loaded completely first (at most 1 GiB). Raise
    `InputError` if the file is missing or cannot be read, is an empty regular file, or is
    too long.
    """
    opened = open_file(file)
    status = os.fstat(opened.fileno())
    if stat.S_ISREG(status.st_mode) and status.st_size:
        return opened
    opened.close()
    return io.BytesIO(load_file(file))


def decompress_part(part: SourcePart) -> SourcePart:
    """Return the part with its content decompressed if it is a gzip archive; it is not read yet.

    Other content is unchanged; the size of the result is unknown (None). Both `load` and `open`
    of the result raise `InputError` on reading a damaged archive. They also raise it as soon as
    the decompressed bytes exceed 64 MiB plus 300 times the compressed bytes read so far; so an
    archive is refused if only its beginning expands that much. `load` also raises it for content
    of more than 4 GiB.
    """

    def open_content() -> BinaryIO:
        return decompressed(part.stream(), part.name)

    def load() -> bytes:
        with open_content() as content:
            return read_bounded(content, part.name, b"", MAX_FILE_BYTES)

    return replace(part, load=load, open=open_content, size=None)
