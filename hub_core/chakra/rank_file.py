"""Open the files of ranks, in binary or JSON form; other files are refused by name.

Source of old schemas: the history of `et_def.proto` in mlcommons/chakra, 2023.

`chakra_jsonizer` does not write one JSON document but consecutive messages without separators:
GlobalMetadata, then the nodes, each in protobuf's JSON mapping (`dataDeps`, enumerations by name,
64-bit numbers as text). Source: src/jsonizer/jsonizer.py of mlcommons/chakra.

The feeder reads one object whose `workload_graph` lists the nodes: `Id`, `Name`, `NodeType` by
number, `data_deps`, `runtime` in microseconds, and attributes as members. The feeder ignores
`ctrlDeps`; here they are control dependencies. Source: src/feeder/json_node.cpp of
mlcommons/chakra.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping

from hub_core.chakra.metadata import Metadata, decode_metadata
from hub_core.chakra.nodes import TraceError
from hub_core.chakra.records import RankFile, located
from hub_core.chakra.wire import Field, WireError, WireType, record_bounds, varint, walk

# Sufficient for column-wise work, with little memory.
_BATCH_BYTES = 4 << 20

_GZIP = b"\x1f\x8b"

_RANK_IN_NAME = re.compile(r"(?:\.|(?<![A-Za-z])rank[-_]?)([0-9]{1,9})\.[^.]*\Z")

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

_METADATA_FIELDS = frozenset({"version", "attr"})

_GRAPH = "workload_graph"

_ATTRIBUTES = ("tensor_size", "comm_type", "comm_priority", "comm_size", "comm_src", "comm_dst",
               "comm_tag")  # fmt: skip

_SPACE = re.compile(r"[ \t\r\n]*")

# Maximum length of a text that is parsed in search of the first message.
_MAX_MESSAGE = 64 << 20


def find_rank_in_name(name: str) -> int | None:
    """Return the rank in the name of a rank file: 3 for `job.3.et` and `rank3.et`, else None.

    The rank has one to nine digits, precedes the suffix, and follows a point or `rank`, `rank-` or
    `rank_` that is not part of another word.
    """
    match = _RANK_IN_NAME.search(name)
    return int(match[1]) if match else None


def open_rank_file(name: str, rank: int, content: bytes) -> tuple[RankFile, Metadata]:
    """Return the node records of a file, which are not decoded, and its decoded metadata.

    A file in JSON form (`is_json_form`) is first converted to records. Then its name gets ` (as
    records)`, and bytes in later errors are positions in these records. Raises `TraceError` for the
    first of these defects:

    1. JSON that cannot be converted (`json-form`)
    2. empty content, gzip or another text (`_check_magic`)
    3. records that are cut (`truncated`), or a later record of length 0 (`empty-record`)
    4. a record 0 that is not metadata of the current schema (`_decode_record_0`)
    5. no record after the metadata (`no-nodes`)
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
        cure = "an idle rank needs one COMP_NODE"
        message = "metadata only, no node follows"
        raise TraceError(message, name, code="no-nodes", cure=cure)
    return RankFile(name, rank, content, starts[1:], stops[1:]), metadata


def in_batches(files: Iterable[RankFile]) -> Iterator[list[RankFile]]:
    """Yield the files in order, in batches of at least 4 MiB of content, except for the last.

    A batch ends with the file that reaches the size, so that it may be much larger. Without files,
    nothing is yielded.
    """
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


def is_json_form(content: bytes) -> bool:
    """Return whether a file is in a JSON form of a trace; at most its first object is parsed.

    The object must begin within the first 64 bytes, after white space only (a byte order mark is
    refused), and be complete within the first 64 MiB. Otherwise the result is False, also for
    invalid JSON; no error is raised. The file is in JSON form in two cases:
    - The object has a list `workload_graph`.
    - All keys of the object are `version` or `attr` (it may be empty), and after it follows a `{`
      or the end of the examined text.
    """
    if content[:64].lstrip()[:1] != b"{":
        return False
    try:
        text = content[:_MAX_MESSAGE].decode("utf-8", "replace")
        first, end = json.JSONDecoder().raw_decode(text, _skip_space(text, 0))
    except (ValueError, RecursionError):
        return False
    if isinstance(first, dict) and isinstance(first.get(_GRAPH), list):
        return True
    is_followed = text[_skip_space(text, end) :][:1] in ("", "{")
    return is_followed and isinstance(first, dict) and first.keys() <= _METADATA_FIELDS


def convert_json(name: str, content: bytes) -> bytes:
    """Return the records of a file in JSON form: each message preceded by its length as a varint.

    The first message becomes GlobalMetadata, each further one a node. An object with a list
    `workload_graph` counts as an empty message and one message per entry of the list. An empty or
    blank text gives no bytes.

    Raises `TraceError` (`json-form`) for the first defect:

    - A text that is not UTF-8, and incomplete or invalid JSON, at the byte of the error.
    - A message that is no object or does not match the schema, at the first byte of the message.
    - An entry of `workload_graph` that cannot be converted or does not match, at the first byte of
      the object that contains the list.
    """
    # Imported here: it loads protobuf, which readers of the usual form do not need.
    from google.protobuf import json_format

    from hub_core.chakra.trace_records import message_class

    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _create_error("the text is not UTF-8", name, error.start) from None
    records = []
    for number, (start, value) in enumerate(_parse_messages(text, name)):
        message = message_class("Node" if number else "GlobalMetadata")()
        try:
            json_format.ParseDict(value, message)
        except (json_format.ParseError, RecursionError) as error:
            byte = len(text[:start].encode())
            subject = "a node" if number else "the metadata"
            # Protobuf lists all fields on further lines.
            reason = (str(error).splitlines() or [""])[0].strip()
            raise _create_error(
                f"{subject} is not of the Chakra schema: {reason}", name, byte
            ) from None
        body = message.SerializeToString(deterministic=True)
        records.append(varint(len(body)) + body)
    return b"".join(records)


def _check_magic(name: str, content: bytes) -> None:
    """Raise `TraceError` for content that cannot be records; other content is not checked here.

    The code is `empty-file` for empty content, `gzip` for a gzip header, and `not-a-trace` for a
    text: content of at least two bytes that begins, after blanks and line ends, with `<`, `{` or
    `[`, and whose first 64 bytes are printable ASCII characters, tabs or line ends.
    """
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
        cure = (
            "give a binary trace, or JSON as chakra_jsonizer writes it: the metadata, then one "
            "object per node"
        )
        raise TraceError(message, name, code="not-a-trace", byte=0, cure=cure)


def _decode_record_0(body: bytes, offset: int) -> Metadata:
    """Decode the metadata in record 0, whose body starts at byte `offset` of the file.

    An empty body gives empty metadata. Raise `WireError` for the first of these defects:
    - The body is not a protobuf message: `malformed-metadata`, at the defect's byte of the
      file.
    - The record belongs to another schema: `old-schema`, `legacy-eg` or `missing-metadata`
      (see `_identify_schema`), at `offset`.
    - The message is not GlobalMetadata (`malformed-metadata`) or repeats an attribute
      (`duplicate-attribute`), at position 0.
    """
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
    """Return (code, description) of the schema of a record 0, or None for current GlobalMetadata.

    `fields`: the fields of `body`. A byte field has the wire type 2 (length and bytes), an integer
    field the wire type 0 (varint). The first rule that applies decides:

    1. There is no field, or all fields are byte fields 1 or 2: `old-schema` (August to October
       2023) if the content of some field 1 starts with byte 0x0a, otherwise None.
    2. There is a byte field 11: `old-schema` (June and July 2023).
    3. The body begins with the bytes 08 00 (integer field 1 of value 0), or there is an integer
       field 4 or 12 to 20: `legacy-eg`, an execution graph of before June 2023.
    4. Anything else: `missing-metadata`, because record 0 is a node of the current schema.
    """
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


def _parse_messages(text: str, name: str) -> Iterator[tuple[int, dict[str, object]]]:
    """Yield metadata and nodes in protobuf's JSON mapping, with their positions in the text.

    An object with a list of nodes yields empty metadata, and then its nodes in this form, at the
    position of the object; other objects are yielded as they are. Raises `TraceError` for invalid
    JSON and for nodes that cannot be converted.
    """
    for start, value in _parse_objects(text, name):
        nodes = value.get(_GRAPH)
        if not isinstance(nodes, list):
            yield start, value
            continue
        yield start, {}
        for index, node in enumerate(nodes):
            try:
                yield start, _convert_node(node)
            except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
                reason = f"node {index} of {_GRAPH} cannot be read: {error}"
                raise _create_error(reason, name, len(text[:start].encode())) from None


def _convert_node(node: Mapping[str, object]) -> dict[str, object]:
    """Return a node of the feeder's JSON form in protobuf's JSON mapping, with unchecked values.

    The keys of the result are, in this order:

    - `id`: `Id`. `name`: `Name` as a text, default "". `type`: `NodeType`.
    - `ctrlDeps`, `dataDeps`: `ctrlDeps` and `data_deps`, default [].
    - `durationMicros`: `runtime` in microseconds, default 0. It may be a text; fractions are cut
      off.
    - `attr`: the keys of `_ATTRIBUTES` that `node` has, in the order of `_ATTRIBUTES`, as integers
      (`int64Val`). If `node` has `is_cpu_op`, it follows as a boolean: False for 0, "", null and
      other empty values.

    Other keys are ignored. Raises `KeyError` without `Id` or `NodeType`, `ValueError` for a runtime
    that is not a number (also null), and `OverflowError` for an infinite one.
    """
    attributes: list[dict[str, object]] = [
        {"name": key, "int64Val": node[key]} for key in _ATTRIBUTES if key in node
    ]
    if "is_cpu_op" in node:
        attributes.append({"name": "is_cpu_op", "boolVal": bool(node["is_cpu_op"])})
    return {
        "id": node["Id"],
        "name": str(node.get("Name", "")),
        "type": node["NodeType"],
        "ctrlDeps": node.get("ctrlDeps", []),
        "dataDeps": node.get("data_deps", []),
        "durationMicros": int(float(str(node.get("runtime", 0)))),
        "attr": attributes,
    }


def _parse_objects(text: str, name: str) -> Iterator[tuple[int, dict[str, object]]]:
    """Yield (index of first character, object) for each of the consecutive objects of a text.

    Blanks, tabs and line ends between objects are skipped; a text of these only yields nothing.
    Raises `TraceError` (`json-form`) with a position in bytes of UTF-8; earlier objects have been
    yielded already:

    - invalid or incomplete JSON: at the error
    - JSON that is nested too deeply, or has a number that is too long: at the start of the message
    - a value that is not an object: at the start of the value

    `name`: the file, for the error.
    """
    decode = json.JSONDecoder().raw_decode
    at = _skip_space(text, 0)
    while at < len(text):
        try:
            value, end = decode(text, at)
        except (ValueError, RecursionError) as error:
            position = error.pos if isinstance(error, json.JSONDecodeError) else at
            message = "this is no complete JSON message"
            raise _create_error(message, name, len(text[:position].encode())) from None
        if not isinstance(value, dict):
            raise _create_error("a message is no JSON object", name, len(text[:at].encode()))
        yield at, value
        at = _skip_space(text, end)


def _skip_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _create_error(reason: str, name: str, byte: int) -> TraceError:
    cure = "write the file again with chakra_jsonizer, or name the trace that it was made from"
    return TraceError(reason, name, code="json-form", byte=byte, cure=cure)
