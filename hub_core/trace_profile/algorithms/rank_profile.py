"""Read what the metadata of the rank files of collective profile v1 say together."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import TypeVar, cast

import numpy as np

from hub_core.chakra import INTEGER_KINDS, LARGEST, AttributeValue, Metadata
from hub_core.columns import Int64Array
from hub_core.model import (
    Algorithm,
    Collective,
    CollectiveKind,
    Contributions,
    CustomContract,
    InputError,
    JsonValue,
    Location,
    Provenance,
    ReduceOp,
    StepTable,
)
from hub_core.trace_profile.algorithms.numbering import EXTENSION
from hub_core.trace_profile.algorithms.profile import (
    CONTRACT_COLUMNS,
    KINDS,
    ORIGIN_FIELDS,
    PROFILE,
    SHARED_NAMES,
)

_Name = TypeVar("_Name", bound=StrEnum)
SAME_SET = "give the rank files of one algorithm"


class RankProfile:
    """Typed access to the attributes of one file; every complaint names the file."""

    def __init__(self, metadata: Metadata, file: str) -> None:
        self._metadata = metadata
        self._file = file

    def fail(self, message: str, code: str = "invalid-metadata", cure: str = "") -> InputError:
        """An error about record 0 of this file."""
        place = Location(self._file, byte=0)
        return InputError(message, location=place, code=code, cure=cure)

    def has(self, name: str) -> bool:
        """Whether the attribute stands in the file."""
        return name in self._metadata.attributes

    def value(self, name: str) -> AttributeValue:
        """An attribute of any kind, None where it is absent."""
        return self._metadata.attributes.get(name)

    def integer(self, name: str, low: int = 0, high: int = LARGEST) -> int:
        """An attribute of any integer kind within bounds."""
        value = self._get(name, "an integer")
        if isinstance(value, int) and low <= value <= high:
            return value
        raise self.fail(f"metadata attribute {name} is {value!r}, expected {low}..{high}")

    def size(self) -> int | None:
        """What comm_size is written for; None in a trace without sizes in bytes."""
        return self.integer("collective_bytes", 1) if self.has("collective_bytes") else None

    def string(self, name: str) -> str:
        """An attribute of kind string."""
        return str(self._get(name, "a string"))

    def one_of(self, name: str, names: type[_Name]) -> _Name:
        """An attribute of kind string that is one of these names."""
        value = self.string(name)
        if value not in list(names):
            # An enumeration of texts: its members are equal to their names.
            expected = f"expected one of {', '.join(names)}"
            raise self.fail(f"metadata attribute {name} is {value!r}, {expected}")
        return names(value)

    def integers(self, name: str) -> Int64Array:
        """An attribute of kind int64_list."""
        return np.asarray(self._get(name, "an int64_list"), np.int64)

    def json_object(self, name: str) -> dict[str, JsonValue]:
        """An attribute that holds a JSON object as text; empty where it is absent."""
        try:
            value = json.loads(self.string(name)) if self.has(name) else {}
        # Deep nesting exhausts the stack of the parser.
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise self.fail(f"metadata attribute {name} is not a JSON object")
        return value

    def _get(self, name: str, expected: str) -> AttributeValue:
        """The value of an attribute of the profile, of the kind that the profile gives it."""
        if not self.has(name):
            raise self.fail(f"metadata attribute {name} is missing", "missing-metadata")
        kind = self._metadata.kinds[name]
        # Whoever writes may choose among the kinds of integers.
        wanted = KINDS[name]
        both_are_integers = kind in INTEGER_KINDS and wanted in INTEGER_KINDS
        if kind is not wanted and not both_are_integers:
            found = kind.field if kind else "without a value"
            message = f"metadata attribute {name} is {found}, expected {expected}"
            raise self.fail(message, "attribute-kind")
        return self._metadata.attributes[name]


def profile_algorithm(ranks: Sequence[RankProfile], steps: StepTable) -> Algorithm:
    """The algorithm of which the metadata of all files state a part. Raises `InputError`."""
    first = ranks[0]
    collective = _collective(ranks)
    scratch = [rank.integer("scratch_units") for rank in ranks]
    # A default is what was written for want of a size; it is none of the algorithm.
    size = None if first.has("collective_bytes_is_default") else first.size()
    extensions = first.json_object("extensions")
    options = cast(Mapping[str, str], first.json_object("options"))
    if not all(isinstance(value, str) for value in options.values()):
        raise first.fail("metadata attribute options holds a value that is not text")
    origin = {name: first.string(name) for name in ORIGIN_FIELDS}
    provenance = Provenance(options=options, **origin)
    if EXTENSION in extensions:
        raise first.fail(f"extensions holds the reserved name {EXTENSION!r}")
    scratch_units = np.asarray(scratch, np.int64)
    return Algorithm(collective, steps, scratch_units, provenance, size, extensions)


def check_rank(other: RankProfile, first: RankProfile, rank: int, files: int) -> None:
    """Refuse the file of a rank that does not belong to the set of `files` files of `first`."""
    # The version goes first: nothing else is known of another profile.
    if (profile := other.string("profile")) != PROFILE:
        cure = f"this release reads {PROFILE}"
        raise other.fail(f"the profile {profile!r} is not known", "unknown-profile", cure)
    if (claimed := other.integer("num_ranks", 1)) != files:
        message = f"the metadata claims {claimed} ranks, {files} files are there"
        raise other.fail(message, "rank-files", "give all rank files of one algorithm")
    for name in SHARED_NAMES:
        found, expected = other.value(name), first.value(name)
        if found != expected:
            message = f"{name} is {found!r}, but {expected!r} in the file of rank 0"
            raise other.fail(message, "rank-files", SAME_SET)
    if (stated := other.integer("rank")) != rank:
        message = f"the metadata says rank {stated}, the file name rank {rank}"
        raise other.fail(message, "rank-files")


def _collective(ranks: Sequence[RankProfile]) -> Collective:
    """The collective; what the model refuses is reported at the file of rank 0."""
    first = ranks[0]
    kind = first.one_of("collective", CollectiveKind)
    try:
        return Collective(
            kind,
            len(ranks),
            first.integer("unit_count", 1),
            root=first.integer("root", 0, len(ranks) - 1) if first.has("root") else None,
            in_place=bool(first.integer("in_place", 0, 1)),
            out_of_place=bool(first.integer("out_of_place", 0, 1)),
            reduce_op=first.one_of("reduce_op", ReduceOp),
            contract=_contract(ranks) if kind is CollectiveKind.CUSTOM else None,
        )
    except InputError as error:
        # The model complains without a place; ours name one already.
        if error.diagnostics[0].location.file:
            raise
        raise first.fail(error.diagnostics[0].message) from None


def _contract(ranks: Sequence[RankProfile]) -> CustomContract:
    sizes = [
        np.asarray([rank.integer(name) for rank in ranks], np.int64)
        for name in ("input_units", "output_units")
    ]
    defined = np.asarray([rank.integer("input_defined", 0, 1) for rank in ranks], np.bool_)
    has_table = ranks[0].has(f"expected_{CONTRACT_COLUMNS[0]}")
    expected = _expected(ranks[0], len(ranks)) if has_table else None
    return CustomContract(sizes[0], sizes[1], defined, expected)


def _expected(first: RankProfile, num_ranks: int) -> Contributions:
    """The table of a contract, held within the ranks; offsets are left to the model."""
    columns = {name: first.integers(f"expected_{name}") for name in CONTRACT_COLUMNS}
    if len({len(column) for column in columns.values()}) != 1:
        raise first.fail("the columns of the contract differ in length")
    for name, column in columns.items():
        # -1 abbreviates one row a rank.
        low = -1 if name == "source_rank" else 0
        stop = num_ranks if name in ("rank", "source_rank") else LARGEST
        if len(column) and not (low <= int(column.min()) and int(column.max()) < stop):
            message = f"metadata attribute expected_{name} holds a value outside {low}..{stop - 1}"
            raise first.fail(message)
    return Contributions(**columns)
