"""The kinds of attribute values that the Chakra schema knows."""

from __future__ import annotations

from enum import IntEnum

LARGEST = 1 << 62
"""The largest number that readers take where a format gives no smaller bound."""


class Kind(IntEnum):
    """Kinds of attribute values: the number of the field of AttributeProto that holds the value."""

    DOUBLE = 3
    DOUBLE_LIST = 4
    FLOAT = 5
    FLOAT_LIST = 6
    INT32 = 7
    INT32_LIST = 8
    INT64 = 9
    INT64_LIST = 10
    UINT32 = 11
    UINT32_LIST = 12
    UINT64 = 13
    UINT64_LIST = 14
    SINT32 = 15
    SINT32_LIST = 16
    SINT64 = 17
    SINT64_LIST = 18
    FIXED32 = 19
    FIXED32_LIST = 20
    FIXED64 = 21
    FIXED64_LIST = 22
    SFIXED32 = 23
    SFIXED32_LIST = 24
    SFIXED64 = 25
    SFIXED64_LIST = 26
    BOOL = 27
    BOOL_LIST = 28
    STRING = 29
    STRING_LIST = 30
    BYTES = 31
    BYTES_LIST = 32

    @property
    def field(self) -> str:
        """Name of the field, for example `int64_val`."""
        name = self.name.lower()
        return name if name.endswith("_list") else f"{name}_val"


# The schema numbers every list by one more than its entries.
INTEGER_KINDS = frozenset(Kind(number) for number in range(Kind.INT32, Kind.BOOL + 1, 2))
INTEGER_LIST_KINDS = frozenset(Kind(kind + 1) for kind in INTEGER_KINDS)
