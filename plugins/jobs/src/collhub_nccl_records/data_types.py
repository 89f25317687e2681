"""Element types of NCCL: numbers, names and bytes (`ncclDataType_t` of nccl.h, NCCL 2.30)."""

from __future__ import annotations

_TYPES = (
    ("int8", 1), ("uint8", 1), ("int32", 4), ("uint32", 4), ("int64", 8), ("uint64", 8),
    ("float16", 2), ("float32", 4), ("float64", 8), ("bfloat16", 2), ("float8e4m3", 1),
    ("float8e5m2", 1),
)  # fmt: skip
_BYTES = dict(_TYPES)
_ALIASES = {
    "half": "float16",
    "float": "float32",
    "double": "float64",
    "char": "int8",
    "int": "int32",
}


def type_of_number(number: int) -> tuple[str, int]:
    """Return name and bytes of a type by its number in a log; ("", -1) for unknown ones."""
    return _TYPES[number] if 0 <= number < len(_TYPES) else ("", -1)


def type_of_name(text: str) -> tuple[str, int]:
    """Return name and bytes of a type as `ncclFloat32`; ("", -1) for unknown ones."""
    word = text.strip().lower().removeprefix("nccl").replace("_", "")
    word = _ALIASES.get(word, word)
    return (word, _BYTES[word]) if word in _BYTES else ("", -1)
