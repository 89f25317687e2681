"""Open the files of ranks; files that are no traces of the current schema are refused by name.

Source: the history of `et_def.proto` in mlcommons/chakra, 2023.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hub_core.chakra.json_records import convert_json, is_json_form
from hub_core.chakra.metadata import Metadata, decode_metadata
from hub_core.chakra.nodes import TraceError
from hub_core.chakra.records import RankFile, located
from hub_core.chakra.wire import Field, WireError, WireType, record_bounds, walk

# Sufficient for column-wise work, with little memory.
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
    """Find the records of a file and decode its metadata. Raises `TraceError` for other files.

    A file in JSON form is converted to records first; bytes in errors refer to these records.
    """
    # Checked first, because a compressed file would be reported as truncated.
    if is_json_form(content):
        name, content = f"{name} (as records)", convert_json(name, content)
    _check_magic(name, content)
    try:
        starts, stops = record_bounds(content)
        metadata = _decode_record_0(content[int(starts[0]) : int(stops[0])], int(starts[0]))
    except WireError as error:
        raise located(error, name) from None
    if len(starts) == 1:
        # Simulators expect a node of every rank, and do not terminate without one.
        cure = "a rank with nothing to do needs one COMP_NODE"
        message = "metadata only, no node follows"
        raise TraceError(message, name, code="no-nodes", cure=cure)
    return RankFile(name, rank, content, starts[1:], stops[1:]), metadata


def in_batches(files: Iterable[RankFile]) -> Iterator[list[RankFile]]:
    """Group files into batches of some megabytes."""
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
    """Refuse files that contain no records: empty, compressed, and text files."""
    # Result of a failed download or a full disk.
    if not content:
        raise TraceError("the file is empty", name, code="empty-file")
    if content.startswith(_GZIP):
        cure = "decompress it with gunzip: simulators do not read compressed traces either"
        raise TraceError("the file is compressed with gzip", name, code="gzip", byte=0, cure=cure)
    start = set(content[:64])
    is_text = len(content) > 1 and start <= _PRINTABLE
    # Only the first character is decisive, because the length of a record may be a printable byte.
    if is_text and content.lstrip()[:1] in (b"<", b"{", b"["):
        message = "a text file (XML or JSON), not an execution trace"
        raise TraceError(message, name, code="not-a-trace", byte=0)


def _decode_record_0(body: bytes, offset: int) -> Metadata:
    """Decode the metadata in record 0, whose body starts at `offset` of the file."""
    try:
        fields = list(walk(body, 0, len(body)))
    except WireError as error:
        reason = f"record 0 is not GlobalMetadata ({error.reason})"
        raise WireError(reason, offset + error.position, "malformed-metadata") from None
    if problem := _identify_schema(body, fields):
        code, reason = problem
        raise WireError(reason, offset, code)
    return decode_metadata(body)


def _identify_schema(body: bytes, fields: list[Field]) -> tuple[str, str] | None:
    """Identify a record 0 that is not GlobalMetadata: (code, description), or None."""
    texts = [field for field in fields if field.wire is WireType.BYTES]
    numbers = {field.number for field in fields if field.wire is WireType.VARINT}
    if len(texts) == len(fields) and all(field.number in (1, 2) for field in texts):
        # GlobalMetadata of August to October 2023 had attributes in field 1: messages that start
        # with a name, whereas field 1 of the current schema is the text of the version.
        starts = [field.start for field in texts if field.number == 1]
        return _OF_2023 if any(body.startswith(b"\n", start) for start in starts) else None
    if any(field.number == 11 for field in texts):
        return _OF_JUNE_2023
    # proto2 wrote the id 0 of the first node, which proto3 omits.
    if body[:2] == b"\x08\x00" or 4 in numbers or not numbers.isdisjoint(_OLD_EG_FIELDS):
        return _LEGACY_EG
    return _NODE
