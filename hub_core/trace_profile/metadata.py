"""Metadata of rank files in collective profile v1: the table of attributes, and writing it.

Source: docs/profile-v1.md. The table `KINDS` defines the profile's metadata: attributes that are
written, their order, and attributes that readers know.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from enum import IntEnum

from hub_core.chakra import (
    AttributeKind,
    MetadataEntry,
)
from hub_core.model import (
    Algorithm,
)

VERSION = "0.0.4"

SCHEMA = "1.0.2-chakra.0.0.4"

PROFILE = "collective-algorithm/1"

UNIT_BYTES = 1 << 20

MAX_SCALED_UNITS = 1 << 20

CONTRACT_COLUMNS = ("rank", "offset", "source_rank", "source_unit")

ORIGIN_FIELDS = ("producer", "producer_version", "source_name", "source_sha256")

KINDS: Mapping[str, AttributeKind] = {
    "schema": AttributeKind.STRING,
    "profile": AttributeKind.STRING,
    "collective": AttributeKind.STRING,
    "num_ranks": AttributeKind.INT32,
    "rank": AttributeKind.INT32,
    "root": AttributeKind.INT32,
    "in_place": AttributeKind.BOOL,
    "out_of_place": AttributeKind.BOOL,
    "reduce_op": AttributeKind.STRING,
    "unit_count": AttributeKind.INT64,
    "collective_bytes": AttributeKind.INT64,
    "collective_bytes_is_default": AttributeKind.BOOL,
    "step_count": AttributeKind.INT64,
    "scratch_units": AttributeKind.INT64,
    "input_units": AttributeKind.INT64,
    "output_units": AttributeKind.INT64,
    "input_defined": AttributeKind.BOOL,
    **dict.fromkeys(ORIGIN_FIELDS, AttributeKind.STRING),
    "options": AttributeKind.STRING,
    "extensions": AttributeKind.STRING,
    **{f"expected_{column}": AttributeKind.INT64_LIST for column in CONTRACT_COLUMNS},
    "counts": AttributeKind.INT64_LIST,
}

METADATA_NAMES = frozenset(KINDS)
"""Every metadata attribute of the profile."""

_OF_ONE_RANK = {"schema", "rank", "step_count", "scratch_units", "input_units", "output_units"}

_OF_RANK_0 = {
    "options",
    "extensions",
    "counts",
    *(f"expected_{column}" for column in CONTRACT_COLUMNS),
}

_FREE = {*_OF_ONE_RANK, *_OF_RANK_0, "input_defined", "collective_bytes_is_default"}

SHARED_NAMES = tuple(name for name in KINDS if name not in _FREE)
"""Attributes that must be equal in all rank files of a set."""

_Value = int | bool | str | Sequence[int] | None


class CompKind(IntEnum):
    """Values of the attribute `comp_kind`."""

    REDUCE = 0
    COPY = 1
    OTHER = 2


def chakra_bytes(algorithm: Algorithm) -> int:
    """Return the size of the collective in bytes that traces use if no other size is given.

    It is the size of the algorithm, if that has one. Otherwise it is 1 MiB per unit or, for more
    than 2^20 units, 1 byte per unit.
    """
    if algorithm.collective_bytes is not None:
        return algorithm.collective_bytes
    units = algorithm.collective.unit_count
    return units * UNIT_BYTES if units <= MAX_SCALED_UNITS else units


def metadata_entries(
    algorithm: Algorithm, rank: int, size: int | None, is_stated: bool
) -> list[MetadataEntry]:
    r"""Return the metadata attributes of the file of one rank, in fixed order.

    1. `schema` to `unit_count` of `KINDS`: schema, profile and collective, and `rank`.
    2. `collective_bytes`: `size`, the bytes of the collective for which message sizes are written;
       None if sizes are not in bytes.
    3. `collective_bytes_is_default`: true if there is a `size` and `is_stated` is False, that is,
       no size was given; otherwise None.
    4. `step_count` and `scratch_units` of `rank`.
    5. For custom collectives: sizes of INPUT and OUTPUT of `rank`, and whether its INPUT is
       defined.
    6. The four texts of the origin (`ORIGIN_FIELDS`). Lone surrogates, which UTF-8 cannot encode,
       are written as `\udc80`.
    7. For rank 0 only: options, extensions, expected results, counts (`_collect_rank_0_values`).

    Attributes with the value None are omitted.
    """
    collective = algorithm.collective
    steps = algorithm.steps
    values: dict[str, _Value] = {
        "schema": SCHEMA,
        "profile": PROFILE,
        "collective": str(collective.kind),
        "num_ranks": collective.num_ranks,
        "rank": rank,
        "root": collective.root,
        "in_place": collective.in_place,
        "out_of_place": collective.out_of_place,
        "reduce_op": str(collective.reduce_op),
        "unit_count": collective.unit_count,
        "collective_bytes": size,
        "collective_bytes_is_default": None if size is None or is_stated else True,
        "step_count": int(steps.rank_indptr[rank + 1] - steps.rank_indptr[rank]),
        "scratch_units": int(algorithm.scratch_units[rank]),
    }
    if (contract := collective.contract) is not None:
        values["input_units"] = int(contract.input_units[rank])
        values["output_units"] = int(contract.output_units[rank])
        values["input_defined"] = bool(contract.defined[rank])
    for name in ORIGIN_FIELDS:
        text: str = getattr(algorithm.provenance, name)
        # File names may contain lone surrogates, which UTF-8 cannot encode.
        values[name] = text.encode("utf-8", "backslashreplace").decode()
    # Large values are only in the file of rank 0.
    values |= _collect_rank_0_values(algorithm) if rank == 0 else {}
    present = {name: value for name, value in values.items() if value is not None}
    return [MetadataEntry(name, KINDS[name], value) for name, value in present.items()]


def _collect_rank_0_values(algorithm: Algorithm) -> dict[str, _Value]:
    """Return the values that only the file of rank 0 has, by name of the attribute.

    - `options` and `extensions`: always, as compact JSON texts with sorted keys. They are None
      without members. The extension "chakra" is omitted, because ids, order and tags are read from
      the nodes.
    - `expected_rank`, `expected_offset`, `expected_source_rank` and `expected_source_unit`: the
      columns of the expected contents as lists, only if the collective has a contract with them
    - `counts`: the table of an uneven collective as one list, row by row; absent for others
    """
    # Ids, order and tags are read from the nodes.
    extensions = {name: value for name, value in algorithm.extensions.items() if name != "chakra"}
    values: dict[str, _Value] = {}
    for name, members in (("options", algorithm.provenance.options), ("extensions", extensions)):
        text = json.dumps(dict(members), sort_keys=True, separators=(",", ":"))
        values[name] = text if members else None
    contract = algorithm.collective.contract
    if contract is not None and contract.expected is not None:
        for column in CONTRACT_COLUMNS:
            values[f"expected_{column}"] = getattr(contract.expected, column).tolist()
    if (counts := algorithm.collective.counts) is not None:
        values["counts"] = counts.table.ravel().tolist()
    return values
