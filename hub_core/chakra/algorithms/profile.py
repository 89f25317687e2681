"""Collective profile v1: what the metadata of every rank file says of the algorithm.

Source: docs/profile-v1.md. The table `_ENTRIES` is the profile's metadata: what is written, in which
order, what readers know and what all files of a set must agree on.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from hub_core.chakra.codec.attributes import Kind
from hub_core.chakra.codec.metadata import MetadataEntry
from hub_core.model import Algorithm, Collective, Contributions, CustomContract, Provenance

VERSION = "0.0.4"
SCHEMA = "1.0.2-chakra.0.0.4"
PROFILE = "collective-algorithm/1"
UNIT_BYTES = 1 << 20
MAX_SCALED_UNITS = 1 << 20

_Value = int | bool | str | Sequence[int] | None


class CompKind(IntEnum):
    """Values of the attribute `comp_kind`."""

    REDUCE = 0
    COPY = 1
    OTHER = 2


def default_bytes(algorithm: Algorithm) -> int:
    """The size that comm_size is written for unless another one is asked for.

    The algorithm's own, else 1 MiB a unit (a byte a unit above 2^20 units).
    """
    if algorithm.collective_bytes is not None:
        return algorithm.collective_bytes
    units = algorithm.collective.unit_count
    return units * UNIT_BYTES if units <= MAX_SCALED_UNITS else units


@dataclass(frozen=True, slots=True)
class RankStatement:
    """What the metadata of one rank states: the algorithm, and how its file is written.

    `size`: what comm_size is for, None without sizes in bytes; `is_stated`: not merely a default.
    """

    algorithm: Algorithm
    rank: int
    steps: int
    size: int | None
    is_stated: bool

    @property
    def collective(self) -> Collective:
        """The collective of the algorithm."""
        return self.algorithm.collective

    @property
    def origin(self) -> Provenance:
        """The provenance of the algorithm."""
        return self.algorithm.provenance

    @property
    def contract(self) -> CustomContract | None:
        """The contract of a custom collective."""
        return self.algorithm.collective.contract

    @property
    def expected(self) -> Contributions | None:
        """The table of a contract; bulky, so that it stands in the file of rank 0 only."""
        return None if self.rank or self.contract is None else self.contract.expected

    @property
    def options(self) -> str | None:
        """The options of the producer, in the file of rank 0 only."""
        return None if self.rank else _json(self.origin.options)

    @property
    def extensions(self) -> str | None:
        """The extensions, in the file of rank 0 only."""
        # What the file itself shows (ids, order, tags) is read from there again.
        kept = {
            name: value for name, value in self.algorithm.extensions.items() if name != "chakra"
        }
        return None if self.rank else _json(kept)


class _Entry(NamedTuple):
    """An attribute: name, kind, its value (None: left out), whether all ranks must agree on it."""

    name: str
    kind: Kind
    value: Callable[[RankStatement], _Value]
    is_shared: bool = False


def _of_contract(column: str) -> Callable[[RankStatement], _Value]:
    def value(of: RankStatement) -> _Value:
        return None if of.contract is None else getattr(of.contract, column)[of.rank].item()

    return value


def _of_expected(column: str) -> Callable[[RankStatement], _Value]:
    def value(of: RankStatement) -> _Value:
        return None if of.expected is None else getattr(of.expected, column).tolist()

    return value


def _of_origin(field: str) -> Callable[[RankStatement], _Value]:
    def value(of: RankStatement) -> _Value:
        # UTF-8 must carry it: file names may hold lone surrogates.
        text: str = getattr(of.origin, field)
        return text.encode("utf-8", "backslashreplace").decode()

    return value


def _json(value: Mapping[str, object]) -> str | None:
    text = json.dumps(dict(value), sort_keys=True, separators=(",", ":"))
    return text if value else None


CONTRACT_COLUMNS = ("rank", "offset", "source_rank", "source_unit")
ORIGIN_FIELDS = ("producer", "producer_version", "source_name", "source_sha256")

_ENTRIES = (
    _Entry("schema", Kind.STRING, lambda of: SCHEMA),
    _Entry("profile", Kind.STRING, lambda of: PROFILE, True),
    _Entry("collective", Kind.STRING, lambda of: str(of.collective.kind), True),
    _Entry("num_ranks", Kind.INT32, lambda of: of.collective.num_ranks, True),
    _Entry("rank", Kind.INT32, lambda of: of.rank),
    _Entry("root", Kind.INT32, lambda of: of.collective.root, True),
    _Entry("in_place", Kind.BOOL, lambda of: of.collective.in_place, True),
    _Entry("out_of_place", Kind.BOOL, lambda of: of.collective.out_of_place, True),
    _Entry("reduce_op", Kind.STRING, lambda of: str(of.collective.reduce_op), True),
    _Entry("unit_count", Kind.INT64, lambda of: of.collective.unit_count, True),
    _Entry("collective_bytes", Kind.INT64, lambda of: of.size, True),
    _Entry(
        "collective_bytes_is_default",
        Kind.BOOL,
        lambda of: None if of.size is None or of.is_stated else True,
    ),
    _Entry("step_count", Kind.INT64, lambda of: of.steps),
    _Entry("scratch_units", Kind.INT64, lambda of: int(of.algorithm.scratch_units[of.rank])),
    _Entry("input_units", Kind.INT64, _of_contract("input_units")),
    _Entry("output_units", Kind.INT64, _of_contract("output_units")),
    _Entry("input_defined", Kind.BOOL, _of_contract("defined")),
    *(_Entry(field, Kind.STRING, _of_origin(field), True) for field in ORIGIN_FIELDS),
    _Entry("options", Kind.STRING, lambda of: of.options),
    _Entry("extensions", Kind.STRING, lambda of: of.extensions),
    *(
        _Entry(f"expected_{column}", Kind.INT64_LIST, _of_expected(column))
        for column in CONTRACT_COLUMNS
    ),
)
METADATA_NAMES = frozenset(entry.name for entry in _ENTRIES)
"""Every metadata attribute of the profile."""
SHARED_NAMES = tuple(entry.name for entry in _ENTRIES if entry.is_shared)
"""Those on which all rank files of a set must agree."""


def metadata_entries(statement: RankStatement) -> list[MetadataEntry]:
    """The attributes of record 0 of one rank."""
    entries = []
    for name, kind, value_of, _ in _ENTRIES:
        value = value_of(statement)
        if value is not None:
            entries.append(MetadataEntry(name, kind, value))
    return entries
