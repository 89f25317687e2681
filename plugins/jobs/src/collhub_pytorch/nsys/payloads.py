"""Decode the ranges of NCCL in Nsight Systems: payloads by their schemas, and texts of ATLAHS.

A payload begins with a header of 32 bytes: domain, schema, size and offset of the fields (u64,
little-endian). Fields are found by their names, because numbers of schemas differ by release.
Sources: NVIDIA/nccl `src/include/nvtx_payload_schemas.h` (Apache-2.0); spcl/atlahs `goal_gen/ai`.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

from collhub_pytorch.nsys.database import Tables

_HEADER = struct.Struct("<QQQQ")
# Formats of `struct` by type code; codes from 2^24 on are enumerations of 4 bytes here.
_TYPES = {5: "<i", 6: "<I", 15: "<i", 16: "<I", 17: "<q", 18: "<Q", 22: "<Q"}
_ENUMERATION = "<i"
_FIRST_ENUMERATION = 1 << 24
_FIELDS = {
    "NCCL communicator ID": "communicator",
    "Message size [bytes]": "bytes",
    "Reduction operation": "operator",
    "Root": "root",
    "Peer rank": "peer",
    "No. of ranks": "rank_count",
    "Rank": "rank",
    "CUDA device": "device",
}
_MAX_SCHEMAS = 1 << 12
_ATLAHS_CALL = re.compile(r"nccl(\w{1,40})\(\): commHash (\w{1,20}),.{0,200}?data_size (\d{1,18})")
_ATLAHS_PEER = re.compile(r"(?:root|receiver_rank|sender_rank) (\d{1,7})")
_ATLAHS_MEMBER = re.compile(
    r"commHash (\w{1,20}) commId \w{1,40} rank (\d{1,7}) nranks (\d{1,7}) pid (\d{1,10})"
)


@dataclass(frozen=True, slots=True)
class NcclPayload:
    """Values of one range; -1 and "" if it lacks them. `communicator`: hash in hexadecimal.

    `operation`: `AllReduce` in texts of ATLAHS, "" else. `target`: root or peer.
    """

    communicator: str = ""
    bytes: int = -1
    target: int = -1
    rank: int = -1
    rank_count: int = 0
    device: int = -1
    operation: str = ""


@dataclass(slots=True)
class PayloadDecoder:
    """Decoder of one file. `undecodable`: number of payloads that do not fit their schema."""

    schemas: Mapping[tuple[int, int], tuple[int, Mapping[str, tuple[str, int]]]]
    undecodable: int = 0
    _cache: dict[bytes, NcclPayload | None] = field(default_factory=dict)

    @classmethod
    def of(cls, tables: Tables) -> PayloadDecoder:
        """Read the schemas of a file: size, and format and offset of each known field."""
        sizes: dict[tuple[int, int], int] = {}
        keys = ("domainId", "schemaId")
        columns: tuple[str, ...] = (*keys, "payloadSize")
        for chunk in tables.rows("NVTX_PAYLOAD_SCHEMAS", columns, columns):
            for domain, schema, size in chunk:
                if len(sizes) < _MAX_SCHEMAS:
                    sizes[int(str(domain)), int(str(schema))] = int(str(size))
        fields: dict[tuple[int, int], dict[str, tuple[str, int]]] = {}
        columns = (*keys, "type", "name", "offset")
        for chunk in tables.rows("NVTX_PAYLOAD_SCHEMA_ENTRIES", columns, columns[:3]):
            for domain, schema, code, name, offset in chunk:
                key = int(str(domain)), int(str(schema))
                number = int(str(code))
                form = _ENUMERATION if number >= _FIRST_ENUMERATION else _TYPES.get(number)
                start = offset if isinstance(offset, int) else 0
                if form is None or name not in _FIELDS or key not in sizes or start < 0:
                    continue
                if start + struct.calcsize(form) <= sizes[key]:
                    fields.setdefault(key, {})[_FIELDS[str(name)]] = (form, start)
        return cls({key: (sizes[key], values) for key, values in fields.items()})

    def decode(self, content: object, text: str) -> NcclPayload | None:
        """Decode a payload, or the text of a range of ATLAHS; None without any."""
        if content is None:
            return _decode_text(text)
        if isinstance(content, str):
            # Other tools store the bytes as hexadecimal text.
            try:
                content = bytes.fromhex(content)
            except ValueError:
                content = b""
        assert isinstance(content, bytes)
        if content not in self._cache:
            if len(self._cache) >= _MAX_SCHEMAS:
                self._cache.clear()
            self._cache[content] = self._decode_bytes(content)
        if self._cache[content] is None:
            self.undecodable += 1
        return self._cache[content]

    def _decode_bytes(self, content: bytes) -> NcclPayload | None:
        if len(content) < _HEADER.size:
            return None
        domain, schema, size, offset = _HEADER.unpack_from(content)
        if (domain, schema) not in self.schemas:
            return None
        expected, fields = self.schemas[domain, schema]
        if size != expected or len(content) < _HEADER.size + size:
            return None
        # Some exports have the size of header and payload in place of the offset.
        start = offset if _HEADER.size <= offset <= len(content) - size else _HEADER.size
        values = {
            name: struct.unpack_from(form, content, start + field_offset)[0]
            for name, (form, field_offset) in fields.items()
        }
        communicator = values.get("communicator", 0)
        return NcclPayload(
            hex(communicator & 0xFFFFFFFFFFFFFFFF) if communicator else "",
            min(values.get("bytes", -1), 1 << 62),
            max(values.get("root", values.get("peer", -1)), -1),
            max(values.get("rank", -1), -1),
            max(values.get("rank_count", 0), 0),
            max(values.get("device", -1), -1),
        )


def _decode_text(text: str) -> NcclPayload | None:
    if match := _ATLAHS_CALL.match(text):
        target = _ATLAHS_PEER.search(text)
        return NcclPayload(
            match[2], int(match[3]), int(target[1]) if target else -1, operation=match[1]
        )
    if match := _ATLAHS_MEMBER.match(text):
        return NcclPayload(match[1], rank=int(match[2]), rank_count=int(match[3]))
    return None
