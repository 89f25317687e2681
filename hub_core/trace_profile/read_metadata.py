"""Read algorithms from the metadata of rank files in collective profile v1, and check them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import TypeVar, cast

import numpy as np

from hub_core.chakra import (
    INTEGER_KINDS,
    INTEGER_LIST_KINDS,
    LARGEST,
    AttributeKind,
    AttributeValue,
    Metadata,
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
from hub_core.trace_profile.metadata import (
    CONTRACT_COLUMNS,
    KINDS,
    ORIGIN_FIELDS,
    PROFILE,
    SHARED_NAMES,
)

SAME_SET = "give the rank files of one algorithm"

_Name = TypeVar("_Name", bound=StrEnum)

_ACCEPTED = (
    (INTEGER_KINDS, "an integer"),
    (INTEGER_LIST_KINDS, "a list of integers"),
    (frozenset({AttributeKind.STRING}), "a string"),
)


class FileMetadata:
    """Typed access to the attributes of one file; every error names the file."""

    def __init__(self, metadata: Metadata, file: str) -> None:
        self._metadata = metadata
        self._file = file

    def fail(self, message: str, code: str = "invalid-metadata", cure: str = "") -> InputError:
        """Create an `InputError` about the metadata record of this file; the caller raises it.

        Its location is the file at byte 0. `code`: the error code. `cure`: the remedy, "" for
        none.
        """
        location = Location(self._file, byte=0)
        return InputError(message, location=location, code=code, cure=cure)

    def has(self, name: str) -> bool:
        """Return whether the file has the attribute."""
        return name in self._metadata.attributes

    def value(self, name: str) -> AttributeValue:
        """Return an attribute of any kind; None if it is absent."""
        return self._metadata.attributes.get(name)

    def integer(self, name: str, low: int = 0, high: int = LARGEST) -> int:
        """Return the value of an integer attribute of the profile, of any integer kind or bool.

        Raise `InputError` if the attribute is missing (`missing-metadata`), of another kind
        (`attribute-kind`), or not in `low`..`high`, both included (`invalid-metadata`). By
        default the range is 0..2^62.
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
        """Return a string attribute as the member of the enumeration `names` with this text.

        Raise `InputError` if the attribute is missing (`missing-metadata`), of another kind
        (`attribute-kind`), or if no member has exactly this text (`invalid-metadata`).
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
        """Parse an attribute whose text is a JSON object; return {} if the attribute is absent.

        Raise `InputError` for an attribute of another kind (`attribute-kind`), and for a text
        that is no JSON object, is empty, or is nested too deeply for the parser
        (`invalid-metadata`). Of equal names in the object, the last one counts.
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
        """Return the value of an attribute of the profile, after a check of its kind.

        The kind must be the one in `KINDS`. If that is a kind of integer or a boolean, any
        integer kind and the boolean kind are accepted, and the same for lists. Raise
        `InputError` if the attribute is missing (`missing-metadata`) or of another kind
        (`attribute-kind`), and `KeyError` if `KINDS` does not have its name.
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


def profile_algorithm(ranks: Sequence[FileMetadata], steps: StepTable) -> Algorithm:
    """Build the algorithm from the metadata of all files, in order of ranks, and its steps.

    Every file gives the scratch units of its rank and, for a custom collective, its part of the
    contract. All other values are those of the file of rank 0: collective, provenance with its
    options, extensions and size in bytes. The size is None if the file has no
    `collective_bytes`, or has `collective_bytes_is_default`, whatever its value. The steps are
    taken as given.

    Raises `InputError`, with the file, for missing or invalid values, for options that are not
    texts, and for extensions with the reserved name `EXTENSION`. Defects of the algorithm as a
    whole that the model finds pass through.
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


def check_rank(profile_of_rank: FileMetadata, first: FileMetadata, rank: int, files: int) -> None:
    """Raise `InputError` for a file that does not belong to the same set as the file of rank 0.

    `rank`: rank of the file name. `files`: number of files. The error names the file of
    `profile_of_rank`. Conditions are checked in this order; the first violation is raised with its
    code:

    1. `profile` is the one that this version reads: `unknown-profile`
    2. known attributes have the kinds of the profile: `attribute-kind`
    3. `num_ranks` is at least 1 (`invalid-metadata`) and equals `files` (`rank-files`)
    4. every attribute in `SHARED_NAMES` equals that of rank 0, or both are absent: `rank-files`
    5. `rank` is at least 0 (`invalid-metadata`) and equals the argument `rank`: `rank-files`

    If `profile`, `num_ranks` or `rank` is absent, the check of it raises `missing-metadata`.
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


def _build_collective(ranks: Sequence[FileMetadata]) -> Collective:
    """Build the collective from the metadata of all files; their number is that of the ranks.

    The file of rank 0 has the fields of the collective. A missing root becomes None. Counts are
    read only for uneven kinds, where they are required; other kinds get None. Only a custom
    collective gets a contract: the sizes and whether the input is defined from the file of each
    rank, the expected result from rank 0.

    Raises `InputError`, with the file, for fields that are missing (`missing-metadata`), of
    another kind (`attribute-kind`) or out of range (`invalid-metadata`). Values that the model
    refuses, such as a wrong number of counts, give `invalid-metadata` with the file of rank 0
    and the first message.
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


def _read_contract(ranks: Sequence[FileMetadata]) -> CustomContract:
    """Return the contract of a custom collective: sizes from all files, results from rank 0.

    The required contents of OUTPUT are in the order of the file: the lists in the attributes
    `expected_*`, one per column of `CONTRACT_COLUMNS`. They are None if the file has none of these
    attributes, and may be empty. A source rank of -1 means all ranks. They are not compared with
    the sizes of the buffers. Raises `InputError`, with the file:

    - `missing-metadata`: a size or flag of a rank, or a column, is missing
    - `invalid-metadata`: columns of different lengths, a rank that does not exist, or an offset or
      unit outside 0..2^62 - 1
    """
    first, num_ranks = ranks[0], len(ranks)
    sizes = [
        np.asarray([rank.integer(name) for rank in ranks], np.int64)
        for name in ("input_units", "output_units")
    ]
    defined = np.asarray([rank.integer("input_defined", 0, 1) for rank in ranks], np.bool_)
    if not any(first.has(f"expected_{column}") for column in CONTRACT_COLUMNS):
        return CustomContract(sizes[0], sizes[1], defined, None)
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
    return CustomContract(sizes[0], sizes[1], defined, Contributions(**columns))
