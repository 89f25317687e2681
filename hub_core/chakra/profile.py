"""Collective profile v1: what the metadata of every rank file says of the algorithm (docs/profile-v1.md)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import cast

import numpy as np

from hub_core.chakra.attributes import INTEGER_KINDS, Kind
from hub_core.chakra.metadata import AttributeValue, Metadata, MetadataEntry
from hub_core.model.algorithm import Algorithm, JsonValue, Provenance
from hub_core.model.collectives import Collective, Contributions, CustomContract
from hub_core.model.diagnostics import InputError, Location
from hub_core.model.kinds import CollectiveKind, ReduceOp

VERSION = "0.0.4"
SCHEMA = "1.0.2-chakra.0.0.4"
PROFILE = "collective-algorithm/1"
LARGEST = 1 << 62
UNIT_BYTES = 1 << 20
MAX_SCALED_UNITS = 1 << 20

_CONTRACT = ("expected_rank", "expected_offset", "expected_source_rank", "expected_source_unit")


class CompKind(IntEnum):
    """Values of the attribute `comp_kind`."""

    REDUCE = 0
    COPY = 1
    OTHER = 2


def default_bytes(algorithm: Algorithm) -> int:
    """The size that comm_size is written for: the algorithm's own, else 1 MiB a unit (a byte a unit above 2^20 units)."""
    if algorithm.collective_bytes is not None:
        return algorithm.collective_bytes
    units = algorithm.collective.unit_count
    return units * UNIT_BYTES if units <= MAX_SCALED_UNITS else units


def metadata_entries(
    algorithm: Algorithm, rank: int, steps: int, size: int | None, is_stated: bool
) -> list[MetadataEntry]:
    """The attributes of record 0 of one rank. `size`: what comm_size is for; `is_stated`: not merely a default."""
    collective, origin = algorithm.collective, algorithm.provenance
    entries = [
        MetadataEntry("schema", Kind.STRING, SCHEMA),
        MetadataEntry("profile", Kind.STRING, PROFILE),
        MetadataEntry("collective", Kind.STRING, str(collective.kind)),
        MetadataEntry("num_ranks", Kind.INT32, collective.num_ranks),
        MetadataEntry("rank", Kind.INT32, rank),
    ]
    if collective.root is not None:
        entries.append(MetadataEntry("root", Kind.INT32, collective.root))
    entries += [
        MetadataEntry("in_place", Kind.BOOL, collective.in_place),
        MetadataEntry("out_of_place", Kind.BOOL, collective.out_of_place),
        MetadataEntry("reduce_op", Kind.STRING, str(collective.reduce_op)),
        MetadataEntry("unit_count", Kind.INT64, collective.unit_count),
    ]
    if size is not None:
        entries.append(MetadataEntry("collective_bytes", Kind.INT64, size))
        if not is_stated:
            entries.append(MetadataEntry("collective_bytes_is_default", Kind.BOOL, True))
    entries.append(MetadataEntry("step_count", Kind.INT64, steps))
    entries.append(MetadataEntry("scratch_units", Kind.INT64, int(algorithm.scratch_units[rank])))
    if collective.contract is not None:
        entries += _contract_entries(collective.contract, rank)
    entries += [
        MetadataEntry("producer", Kind.STRING, _text(origin.producer)),
        MetadataEntry("producer_version", Kind.STRING, _text(origin.producer_version)),
        MetadataEntry("source_name", Kind.STRING, _text(origin.source_name)),
        MetadataEntry("source_sha256", Kind.STRING, _text(origin.source_sha256)),
    ]
    return entries if rank else entries + _entries_of_rank_0(algorithm)


def _contract_entries(contract: CustomContract, rank: int) -> list[MetadataEntry]:
    return [
        MetadataEntry("input_units", Kind.INT64, int(contract.input_units[rank])),
        MetadataEntry("output_units", Kind.INT64, int(contract.output_units[rank])),
        MetadataEntry("input_defined", Kind.BOOL, bool(contract.defined[rank])),
    ]


def _entries_of_rank_0(algorithm: Algorithm) -> list[MetadataEntry]:
    """What would be bulky in every file stands in that of rank 0 only."""
    entries = []
    if algorithm.provenance.options:
        entries.append(
            MetadataEntry("options", Kind.STRING, _json(dict(algorithm.provenance.options)))
        )
    # What the file itself shows (ids, order, tags) is read from there again.
    extensions = {name: value for name, value in algorithm.extensions.items() if name != "chakra"}
    if extensions:
        entries.append(MetadataEntry("extensions", Kind.STRING, _json(extensions)))
    contract = algorithm.collective.contract
    if contract is not None and contract.expected is not None:
        expected = contract.expected
        columns = (expected.rank, expected.offset, expected.source_rank, expected.source_unit)
        entries += [
            MetadataEntry(name, Kind.INT64_LIST, column.tolist())
            for name, column in zip(_CONTRACT, columns, strict=True)
        ]
    return entries


def _json(value: Mapping[str, object]) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _text(text: str) -> str:
    """Text that UTF-8 can carry: file names may hold lone surrogates."""
    return text.encode("utf-8", "backslashreplace").decode()


class RankProfile:
    """Typed access to the attributes of one file; every complaint names the file."""

    def __init__(self, metadata: Metadata, file: str) -> None:
        self._metadata = metadata
        self.file = file

    def fail(self, message: str, code: str = "invalid-metadata", cure: str = "") -> InputError:
        """An error about record 0 of this file."""
        return InputError(message, location=Location(self.file, byte=0), code=code, cure=cure)

    def has(self, name: str) -> bool:
        """Whether the attribute stands in the file."""
        return name in self._metadata.attributes

    def integer(self, name: str, low: int, high: int) -> int:
        """An attribute of any integer kind within bounds."""
        value = self._get(name, INTEGER_KINDS, "an integer")
        if not isinstance(value, int) or not low <= value <= high:
            raise self.fail(f"metadata attribute {name} is {value!r}, expected {low}..{high}")
        return value

    def value(self, name: str) -> AttributeValue:
        """An attribute of any kind, None where it is absent."""
        return self._metadata.attributes.get(name)

    def size(self) -> int | None:
        """What comm_size is written for; None in a trace without sizes in bytes."""
        return (
            self.integer("collective_bytes", 1, LARGEST) if self.has("collective_bytes") else None
        )

    def boolean(self, name: str) -> bool:
        """An attribute of kind bool or integer."""
        return bool(self.integer(name, 0, 1))

    def string(self, name: str) -> str:
        """An attribute of kind string."""
        return str(self._get(name, {Kind.STRING}, "a string"))

    def integers(self, name: str) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """An attribute of kind int64_list."""
        return np.asarray(self._get(name, {Kind.INT64_LIST}, "an int64_list"), np.int64)

    def json_object(self, name: str) -> dict[str, JsonValue]:
        """An attribute that holds a JSON object as text; empty where it is absent."""
        if not self.has(name):
            return {}
        try:
            value = json.loads(self.string(name))
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise self.fail(f"metadata attribute {name} is not a JSON object")
        return value

    def _get(self, name: str, kinds: frozenset[Kind] | set[Kind], expected: str) -> AttributeValue:
        if not self.has(name):
            raise self.fail(f"metadata attribute {name} is missing", "missing-metadata")
        kind = self._metadata.kinds[name]
        if kind not in kinds:
            found = kind.field if kind else "without a value"
            raise self.fail(
                f"metadata attribute {name} is {found}, expected {expected}", "attribute-kind"
            )
        return self._metadata.attributes[name]


class Profile:
    """What the metadata of ranks 0, 1, ... say together. Raises `InputError`."""

    def __init__(self, ranks: Sequence[RankProfile]) -> None:
        first = ranks[0]
        self.collective = _collective(ranks)
        self.scratch_units = np.asarray(
            [rank.integer("scratch_units", 0, LARGEST) for rank in ranks], np.int64
        )
        self.collective_bytes = None if first.has("collective_bytes_is_default") else first.size()
        self.extensions = first.json_object("extensions")
        options = cast(Mapping[str, str], first.json_object("options"))
        if not all(isinstance(value, str) for value in options.values()):
            raise first.fail("metadata attribute options holds a value that is not text")
        origin = [
            first.string(name)
            for name in ("producer", "producer_version", "source_name", "source_sha256")
        ]
        self.provenance = Provenance(origin[0], origin[1], origin[2], origin[3], options)


METADATA_NAMES = frozenset(
    {
        *(
            "schema",
            "profile",
            "collective",
            "num_ranks",
            "rank",
            "root",
            "in_place",
            "out_of_place",
            "reduce_op",
        ),
        *(
            "unit_count",
            "collective_bytes",
            "collective_bytes_is_default",
            "step_count",
            "scratch_units",
        ),
        *("input_units", "output_units", "input_defined", *_CONTRACT),
        *("producer", "producer_version", "source_name", "source_sha256", "options", "extensions"),
    }
)
"""Every metadata attribute of the profile."""
_SHARED = (
    "profile",
    "collective",
    "num_ranks",
    "root",
    "in_place",
    "out_of_place",
    "reduce_op",
    "unit_count",
    "collective_bytes",
    "producer",
    "producer_version",
    "source_name",
    "source_sha256",
)


def check_rank(other: RankProfile, first: RankProfile, rank: int, files: int) -> None:
    """Refuse the file of a rank that does not belong to the set of `files` files that begins with `first`."""
    if (profile := other.string("profile")) != PROFILE:
        raise other.fail(
            f"the profile {profile!r} is not known",
            "unknown-profile",
            f"this release reads {PROFILE}",
        )
    if (claimed := other.integer("num_ranks", 1, LARGEST)) != files:
        cure = "give all rank files of one algorithm"
        raise other.fail(
            f"the metadata claims {claimed} ranks, {files} files are there", "rank-files", cure
        )
    for name in _SHARED:
        if other.value(name) != first.value(name):
            message = (
                f"{name} is {other.value(name)!r}, but {first.value(name)!r} in the file of rank 0"
            )
            raise other.fail(message, "rank-files", "give the rank files of one algorithm")
    if (stated := other.integer("rank", 0, LARGEST)) != rank:
        raise other.fail(
            f"the metadata says rank {stated}, the file name rank {rank}", "rank-files"
        )


def _collective(ranks: Sequence[RankProfile]) -> Collective:
    first = ranks[0]
    kind = CollectiveKind(_one_of(first, "collective", list(CollectiveKind)))
    try:
        return Collective(
            kind,
            len(ranks),
            first.integer("unit_count", 1, LARGEST),
            root=first.integer("root", 0, len(ranks) - 1) if first.has("root") else None,
            in_place=first.boolean("in_place"),
            out_of_place=first.boolean("out_of_place"),
            reduce_op=ReduceOp(_one_of(first, "reduce_op", list(ReduceOp))),
            contract=_contract(ranks) if kind is CollectiveKind.CUSTOM else None,
        )
    except InputError as error:
        if error.diagnostics[0].location.file:
            raise
        raise first.fail(error.diagnostics[0].message) from None


def _one_of(file: RankProfile, attribute: str, names: Sequence[str]) -> str:
    value = file.string(attribute)
    if value not in names:
        raise file.fail(
            f"metadata attribute {attribute} is {value!r}, expected one of {', '.join(names)}"
        )
    return value


def _contract(ranks: Sequence[RankProfile]) -> CustomContract:
    first = ranks[0]
    return CustomContract(
        np.asarray([rank.integer("input_units", 0, LARGEST) for rank in ranks], np.int64),
        np.asarray([rank.integer("output_units", 0, LARGEST) for rank in ranks], np.int64),
        np.asarray([rank.boolean("input_defined") for rank in ranks], np.bool_),
        _expected(first, len(ranks)) if first.has(_CONTRACT[0]) else None,
    )


def _expected(first: RankProfile, num_ranks: int) -> Contributions:
    columns = [first.integers(name) for name in _CONTRACT]
    if len({len(column) for column in columns}) != 1:
        raise first.fail("the columns of the contract differ in length")
    for name, column, low, stop in zip(
        _CONTRACT, columns, (0, 0, -1, 0), (num_ranks, LARGEST, num_ranks, LARGEST), strict=True
    ):
        if len(column) and not (low <= int(column.min()) and int(column.max()) < stop):
            raise first.fail(f"metadata attribute {name} holds a value outside {low}..{stop - 1}")
    return Contributions(*columns)
