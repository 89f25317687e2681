"""Metadata of rank files in collective profile v1: build it, and read algorithms from it.

Source: docs/profile-v1.md. The table `KINDS` defines the profile's metadata: attributes that are
written, their order, and attributes that readers know.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from enum import IntEnum, StrEnum
from typing import TypeVar, cast

import numpy as np

from hub_core.chakra import (
    INTEGER_KINDS,
    INTEGER_LIST_KINDS,
    LARGEST,
    AttributeValue,
    Kind,
    Metadata,
    MetadataEntry,
)
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
    UnitCounts,
)
from hub_core.trace_profile.lowering import EXTENSION

VERSION = "0.0.4"

SCHEMA = "1.0.2-chakra.0.0.4"

PROFILE = "collective-algorithm/1"

UNIT_BYTES = 1 << 20

MAX_SCALED_UNITS = 1 << 20

CONTRACT_COLUMNS = ("rank", "offset", "source_rank", "source_unit")

ORIGIN_FIELDS = ("producer", "producer_version", "source_name", "source_sha256")

KINDS: Mapping[str, Kind] = {
    "schema": Kind.STRING,
    "profile": Kind.STRING,
    "collective": Kind.STRING,
    "num_ranks": Kind.INT32,
    "rank": Kind.INT32,
    "root": Kind.INT32,
    "in_place": Kind.BOOL,
    "out_of_place": Kind.BOOL,
    "reduce_op": Kind.STRING,
    "unit_count": Kind.INT64,
    "collective_bytes": Kind.INT64,
    "collective_bytes_is_default": Kind.BOOL,
    "step_count": Kind.INT64,
    "scratch_units": Kind.INT64,
    "input_units": Kind.INT64,
    "output_units": Kind.INT64,
    "input_defined": Kind.BOOL,
    **dict.fromkeys(ORIGIN_FIELDS, Kind.STRING),
    "options": Kind.STRING,
    "extensions": Kind.STRING,
    **{f"expected_{column}": Kind.INT64_LIST for column in CONTRACT_COLUMNS},
    "counts": Kind.INT64_LIST,
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

_ACCEPTED = (
    (INTEGER_KINDS, "an integer"),
    (INTEGER_LIST_KINDS, "a list of integers"),
    (frozenset({Kind.STRING}), "a string"),
)

_Value = int | bool | str | Sequence[int] | None

_Name = TypeVar("_Name", bound=StrEnum)

SAME_SET = "give the rank files of one algorithm"


class CompKind(IntEnum):
    """Values of the attribute `comp_kind`."""

    REDUCE = 0
    COPY = 1
    OTHER = 2


def chakra_bytes(algorithm: Algorithm) -> int:
    """Return the size of the collective in bytes for traces without another size.

    The size of the algorithm, else 1 MiB per unit (1 byte per unit above 2^20 units).
    """
    if algorithm.collective_bytes is not None:
        return algorithm.collective_bytes
    units = algorithm.collective.unit_count
    return units * UNIT_BYTES if units <= MAX_SCALED_UNITS else units


def metadata_entries(
    algorithm: Algorithm, rank: int, size: int | None, is_stated: bool
) -> list[MetadataEntry]:
    """Return the attributes of record 0 (the metadata) of the file of one rank, in fixed order.

    Values that are None are left out. `size`: bytes of the collective for which the sizes of
    messages are written, None without sizes in bytes. `is_stated`: the size is given; otherwise it
    is marked as a default. Sizes of buffers are those of `rank` for custom collectives. Large
    values, such as extensions, are only in the file of rank 0. Lone surrogates in texts are
    escaped.
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


class RankProfile:
    """Typed access to the attributes of one file; every error names the file."""

    def __init__(self, metadata: Metadata, file: str) -> None:
        self._metadata = metadata
        self._file = file

    def fail(self, message: str, code: str = "invalid-metadata", cure: str = "") -> InputError:
        """Create an error about record 0 of this file."""
        location = Location(self._file, byte=0)
        return InputError(message, location=location, code=code, cure=cure)

    def has(self, name: str) -> bool:
        """Return whether the file has the attribute."""
        return name in self._metadata.attributes

    def value(self, name: str) -> AttributeValue:
        """Return an attribute of any kind; None if it is absent."""
        return self._metadata.attributes.get(name)

    def integer(self, name: str, low: int = 0, high: int = LARGEST) -> int:
        """Return an attribute of any integer kind.

        Raises `InputError` if it is missing, no integer, or outside `low..high`.
        """
        value = self._get(name)
        if isinstance(value, int) and low <= value <= high:
            return value
        raise self.fail(f"metadata attribute {name} is {value!r}, expected {low}..{high}")

    def size(self) -> int | None:
        """Return the size for which comm_size is written.

        None for a trace without sizes in bytes.
        """
        return self.integer("collective_bytes", 1) if self.has("collective_bytes") else None

    def string(self, name: str) -> str:
        """Return an attribute of kind string."""
        return str(self._get(name))

    def one_of(self, name: str, names: type[_Name]) -> _Name:
        """Return an attribute of kind string as a member of the enumeration `names`.

        Raises `InputError` if it is missing or has another value.
        """
        value = self.string(name)
        if value not in list(names):
            # Members of a StrEnum are equal to their names.
            expected = f"expected one of {', '.join(names)}"
            raise self.fail(f"metadata attribute {name} is {value!r}, {expected}")
        return names(value)

    def integers(self, name: str) -> Int64Array:
        """Return an attribute that is a list of integers of any kind."""
        return np.asarray(self._get(name), np.int64)

    def json_object(self, name: str) -> dict[str, JsonValue]:
        """Return an attribute that contains a JSON object as text; {} if it is absent.

        Raises `InputError` for any other text, also one that is nested too deeply for the parser,
        and for an attribute of another kind.
        """
        try:
            value = json.loads(self.string(name)) if self.has(name) else {}
        # Deep nesting exhausts the stack of the parser.
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise self.fail(f"metadata attribute {name} is not a JSON object")
        return value

    def check_kinds(self) -> None:
        """Raise `InputError` for the first attribute of the profile that is of another kind."""
        for name in KINDS:
            if self.has(name):
                self._get(name)

    def _get(self, name: str) -> AttributeValue:
        """Return the value of an attribute of the kind that the profile defines for its name.

        Any kind of integers is accepted for an integer, and any kind of integer lists for a list.
        Raises `InputError` if the attribute is missing (code `missing-metadata`) or of another kind
        (`attribute-kind`).
        """
        if not self.has(name):
            raise self.fail(f"metadata attribute {name} is missing", "missing-metadata")
        kind = self._metadata.kinds[name]
        for kinds, expected in _ACCEPTED:
            # Writers may choose any kind of integers.
            if KINDS[name] in kinds and kind not in kinds:
                actual = kind.field if kind else "without a value"
                message = f"metadata attribute {name} is {actual}, expected {expected}"
                raise self.fail(message, "attribute-kind")
        return self._metadata.attributes[name]


def profile_algorithm(ranks: Sequence[RankProfile], steps: StepTable) -> Algorithm:
    """Build the algorithm from the metadata of all files, in order of ranks, and its steps.

    The file of rank 0 gives the shared values; SCRATCH is stated by every file. A size that is
    marked as a default becomes None. Raises `InputError` for invalid values, options that are no
    texts, and extensions that use the reserved name `EXTENSION`.
    """
    first = ranks[0]
    collective = _build_collective(ranks)
    scratch = [rank.integer("scratch_units") for rank in ranks]
    # A default size is not a property of the algorithm.
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


def check_rank(profile_of_rank: RankProfile, first: RankProfile, rank: int, files: int) -> None:
    """Raise `InputError` for a file that does not belong to the set of `files` files of `first`.

    Checked in this order: the profile is the one that this release reads (code `unknown-profile`);
    attributes have the kinds of the profile (`attribute-kind`); the number of ranks is `files`; the
    attributes `SHARED_NAMES` equal those of rank 0; the stated rank is `rank`, that of the file
    name (all `rank-files`).
    """
    # The version is checked first, because other profiles have unknown attributes.
    if (profile := profile_of_rank.string("profile")) != PROFILE:
        cure = f"this release reads {PROFILE}"
        raise profile_of_rank.fail(f"the profile {profile!r} is not known", "unknown-profile", cure)
    profile_of_rank.check_kinds()
    if (claimed := profile_of_rank.integer("num_ranks", 1)) != files:
        message = f"the metadata claims {claimed} ranks, {files} files are there"
        raise profile_of_rank.fail(message, "rank-files", "give all rank files of one algorithm")
    for name in SHARED_NAMES:
        actual, expected = profile_of_rank.value(name), first.value(name)
        if actual != expected:
            message = f"{name} is {actual!r}, but {expected!r} in the file of rank 0"
            raise profile_of_rank.fail(message, "rank-files", SAME_SET)
    if (declared := profile_of_rank.integer("rank")) != rank:
        message = f"the metadata says rank {declared}, the file name rank {rank}"
        raise profile_of_rank.fail(message, "rank-files")


def _collect_rank_0_values(algorithm: Algorithm) -> dict[str, _Value]:
    """Return the values that only the file of rank 0 has, by name of the attribute.

    `options` and `extensions` are JSON texts with sorted keys, None if empty; the extension
    "chakra" is left out, since ids, order and tags are read from the nodes. A contract with
    expected contents adds its columns as lists `expected_*`; an uneven collective its counts, row
    by row.
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


def _build_collective(ranks: Sequence[RankProfile]) -> Collective:
    """Build the collective from the metadata of all files; those of rank 0 state its fields.

    A custom collective's contract is read from the files of all ranks. A missing root is None.
    Raises `InputError` for missing or invalid fields, and for values that the model refuses, at the
    file of rank 0.
    """
    first = ranks[0]
    kind = first.one_of("collective", CollectiveKind)
    counts = first.integers("counts").tolist() if kind.traits.is_uneven else []
    try:
        return Collective(
            kind,
            len(ranks),
            first.integer("unit_count", 1),
            root=first.integer("root", 0, len(ranks) - 1) if first.has("root") else None,
            in_place=bool(first.integer("in_place", 0, 1)),
            out_of_place=bool(first.integer("out_of_place", 0, 1)),
            reduce_op=first.one_of("reduce_op", ReduceOp),
            contract=_read_contract(ranks) if kind is CollectiveKind.CUSTOM else None,
            counts=UnitCounts.from_flat(counts, kind, len(ranks)) if counts else None,
        )
    except InputError as error:
        # The model does not know the file.
        if error.diagnostics[0].location.file:
            raise
        raise first.fail(error.diagnostics[0].message) from None


def _read_contract(ranks: Sequence[RankProfile]) -> CustomContract:
    sizes = [
        np.asarray([rank.integer(name) for rank in ranks], np.int64)
        for name in ("input_units", "output_units")
    ]
    defined = np.asarray([rank.integer("input_defined", 0, 1) for rank in ranks], np.bool_)
    has_table = any(ranks[0].has(f"expected_{column}") for column in CONTRACT_COLUMNS)
    expected = _read_expected(ranks[0], len(ranks)) if has_table else None
    return CustomContract(sizes[0], sizes[1], defined, expected)


def _read_expected(first: RankProfile, num_ranks: int) -> Contributions:
    """Return the table of a contract from the metadata attributes `expected_*` of rank 0.

    A source rank of -1 stands for all ranks. Raises `InputError` for columns of different lengths,
    for ranks that do not exist, and for negative or too large units; the model checks the offsets.
    """
    columns = {name: first.integers(f"expected_{name}") for name in CONTRACT_COLUMNS}
    if len({len(column) for column in columns.values()}) != 1:
        raise first.fail("the columns of the contract differ in length")
    for name, column in columns.items():
        # -1 abbreviates one row per rank.
        low = -1 if name == "source_rank" else 0
        stop = num_ranks if name in ("rank", "source_rank") else LARGEST
        if len(column) and not (low <= int(column.min()) and int(column.max()) < stop):
            message = f"metadata attribute expected_{name} holds a value outside {low}..{stop - 1}"
            raise first.fail(message)
    return Contributions(**columns)
