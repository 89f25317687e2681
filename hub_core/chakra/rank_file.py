"""Open the files of ranks: what is not an execution trace of today's schema is said by name.

Source: the history of `et_def.proto` in mlcommons/chakra, 2023.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hub_core.chakra.json_records import is_json_form, records_of_json
from hub_core.chakra.metadata import Metadata, decode_metadata
from hub_core.chakra.nodes import TraceError
from hub_core.chakra.records import RankFile, located
from hub_core.chakra.wire import Field, WireError, WireType, record_bounds, walk

# Big enough for column-wise work, small enough for memory.
_BATCH_BYTES = 4 << 20
_GZIP = b"\x1f\x8b"
_PRINTABLE = frozenset(range(0x20, 0x7F)) | frozenset(b"\t\r\n")
_OLD_EG_FIELDS = range(12, 21)
_OF_2023 = (
    "old-schema",
    "the metadata is of the schema of August to October 2023, which is not supported",
)
_OF_JUNE_2023 = (
    "old-schema",
    "a trace of schema 0.0.2 or 0.0.3 (June and July 2023), which is not supported",
)
_LEGACY_EG = (
    "legacy-eg",
    "an execution graph (.eg) of before June 2023: convert it with a tool of that time",
)
_NODE = ("missing-metadata", "record 0 is a node: the GlobalMetadata record is missing")


def open_rank_file(name: str, rank: int, content: bytes) -> tuple[RankFile, Metadata]:
    """Frame the records of a file and decode its metadata. Raises `TraceError` for other files.

    A file in JSON form becomes records first, to which the bytes in errors then refer.
    """
    # Before the framing: a compressed file would be called truncated.
    if is_json_form(content):
        name, content = f"{name} (as records)", records_of_json(name, content)
    _check_magic(name, content)
    try:
        starts, stops = record_bounds(content)
        metadata = _metadata(content[int(starts[0]) : int(stops[0])], int(starts[0]))
    except WireError as error:
        raise located(error, name) from None
    if len(starts) == 1:
        # Simulators read a node from every rank and do not stop without one.
        cure = "a rank with nothing to do needs one COMP_NODE"
        message = "metadata only, no node follows"
        raise TraceError(message, name, code="no-nodes", cure=cure)
    return RankFile(name, rank, content, starts[1:], stops[1:]), metadata


def in_batches(files: Iterable[RankFile]) -> Iterator[list[RankFile]]:
    """Group files so that a batch has some megabytes."""
    batch: list[RankFile] = []
    size = 0
    for file in files:
        batch.append(file)
        size += len(file.content)
        if size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _check_magic(name: str, content: bytes) -> None:
    """Name files that are no records at all."""
    # What a failed download or a full disk leaves behind.
    if not content:
        raise TraceError("the file is empty", name, code="empty-file")
    if content.startswith(_GZIP):
        cure = "decompress it with gunzip: simulators do not read compressed traces either"
        raise TraceError("the file is compressed with gzip", name, code="gzip", byte=0, cure=cure)
    start = set(content[:64])
    is_text = len(content) > 1 and start <= _PRINTABLE
    # Only the first character: the length of a record may be a printable byte, too.
    if is_text and content.lstrip()[:1] in (b"<", b"{", b"["):
        message = "a text file (XML or JSON), not an execution trace"
        raise TraceError(message, name, code="not-a-trace", byte=0)


def _metadata(body: bytes, offset: int) -> Metadata:
    """The metadata in record 0, whose body starts at `offset` of the file."""
    try:
        fields = list(walk(body, 0, len(body)))
    except WireError as error:
        reason = f"record 0 is not GlobalMetadata ({error.reason})"
        raise WireError(reason, offset + error.position, "malformed-metadata") from None
    if problem := _foreign_schema(body, fields):
        code, reason = problem
        raise WireError(reason, offset, code)
    return decode_metadata(body)


def _foreign_schema(body: bytes, fields: list[Field]) -> tuple[str, str] | None:
    """Code and description of what record 0 is where it is not GlobalMetadata."""
    texts = [field for field in fields if field.wire is WireType.BYTES]
    numbers = {field.number for field in fields if field.wire is WireType.VARINT}
    if len(texts) == len(fields) and all(field.number in (1, 2) for field in texts):
        # GlobalMetadata of August to October 2023 held attributes in field 1: messages that start
        # with a name, where today's schema has the text of the version.
        starts = [field.start for field in texts if field.number == 1]
        return _OF_2023 if any(body.startswith(b"\n", start) for start in starts) else None
    if any(field.number == 11 for field in texts):
        return _OF_JUNE_2023
    # proto2 wrote the id 0 of the first node, which proto3 leaves out.
    if body[:2] == b"\x08\x00" or 4 in numbers or not numbers.isdisjoint(_OLD_EG_FIELDS):
        return _LEGACY_EG
    return _NODE
