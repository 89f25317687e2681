"""Read Chakra execution traces, with or without collective profile v1, as algorithms.

A trace has one file per rank; damaged files are input errors.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import PurePath

import numpy as np

from hub_core.chakra import (
    Batch,
    Metadata,
    NodeFields,
    RankFile,
    ShapeBook,
    TraceError,
    decode_nodes,
    find_rank_in_name,
    in_batches,
    link,
    open_rank_file,
)
from hub_core.model import Algorithm, InputError, JsonValue, Location, Provenance
from hub_core.plugin_api import Source, SourcePart
from hub_core.trace_profile.formats import ChakraReadOptions
from hub_core.trace_profile.lowering import EXTENSION
from hub_core.trace_profile.metadata import METADATA_NAMES
from hub_core.trace_profile.read_foreign import (
    foreign_chunk,
    foreign_sizes,
    refuse_workload,
)
from hub_core.trace_profile.read_metadata import (
    SAME_SET,
    FileMetadata,
    check_rank,
    profile_algorithm,
)
from hub_core.trace_profile.read_profile import StatedSizes, profile_chunk
from hub_core.trace_profile.step_chunks import Joined, StepChunk, join

SOURCE_EXTENSION = "chakra-source"
"""Key of `Algorithm.extensions` for data of the files that the model does not represent."""

KNOWN_SCALARS = (
    *("comm_size", "comm_src", "comm_dst", "comm_tag", "channel", "lane", "tb_id"),
    *("msg_chunk_idx", "msg_chunk_cnt", "total_chunk_cnt"),
    *("is_rrc", "comp_kind", "duration_ns", "source_line"),
)

KNOWN_REGIONS = ("region", "src_region", "dst_region")

# Attributes without additional information.
_REDUNDANT = ("is_cpu_op", "comm_type", "num_ops", "tensor_size")

_UNDERSTOOD = frozenset({*KNOWN_SCALARS, *KNOWN_REGIONS, *_REDUNDANT})

_MAX_KEPT_TEXT = 256


def chakra_algorithm(source: Source, options: ChakraReadOptions) -> Algorithm:
    """Read the rank files of one algorithm.

    Traces without the profile are timing-only: buffers are UNKNOWN, COMP_NODEs become COMPUTE
    steps, and tags become channels. Raises `InputError` with file, byte and node for traces that
    are not algorithms.
    """
    with input_errors():
        return _BatchReader(source, options.drop_dangling).read(options.size)


def rank_parts(source: Source) -> list[SourcePart]:
    """Return the parts of ranks 0..n-1, in this order, for a source of n files.

    The first rule that applies gives the rank of a part:

    1. The rank that the part declares.
    2. The rank in its name, such as 3 in `trace.3.et` (`find_rank_in_name`).
    3. Rank 0, if it is the only file.

    Raises `InputError` (`rank-files`) at the first file that has no rank or repeats the rank of an
    earlier file. Then raises it for a source without files, or with the lowest missing rank. A
    single file of rank 3 therefore lacks rank 0.
    """
    by_rank: dict[int, SourcePart] = {}
    for part in source.parts:
        rank = part.rank if part.rank is not None else find_rank_in_name(part.name)
        if rank is None and len(source.parts) == 1:
            rank = 0
        if rank is None:
            message = "the file name does not contain the rank"
            raise _create_error(part.name, message, "name the files PREFIX.<rank>.et")
        if rank in by_rank:
            message = f"{by_rank[rank].name} is of rank {rank} too"
            raise _create_error(part.name, message, "keep the files of one set in the folder")
        by_rank[rank] = part
    # Without repeated ranks, the set is complete if the highest rank is the number of files minus
    # 1.
    if not by_rank:
        raise _create_error(source.name, "there are no rank files")
    count = len(by_rank)
    for rank in range(count):
        if rank not in by_rank:
            details = f"found {count} files, the last one of rank {max(by_rank)}"
            message = f"the file of rank {rank} is missing: {details}"
            raise _create_error(source.name, message, "give the files of ranks 0..n-1")
    return [by_rank[rank] for rank in range(count)]


@contextmanager
def input_errors() -> Iterator[None]:
    """Context manager that converts a `TraceError` in the body to an `InputError`.

    Position (file, byte, rank), code, reason and cure stay. Other exceptions pass unchanged.
    """
    try:
        yield
    except TraceError as error:
        location = Location(error.file, byte=error.byte, rank=error.rank)
        raise InputError(
            error.reason, location=location, code=error.code, cure=error.cure
        ) from None


class _BatchReader:
    """Reads files in order of rank, in batches, and keeps only their steps."""

    def __init__(self, source: Source, drop_dangling: bool) -> None:
        """Sort the parts of `source` by rank; their contents are not read yet.

        `drop_dangling`: omit dependencies on missing nodes instead of raising an error. Raise
        `InputError` (`rank-files`) if the parts are not the files of ranks 0..n-1, each once
        (`rank_parts`).
        """
        self._name = source.name
        self._parts = rank_parts(source)
        # One entry per file that was read; profiles only if the files have one.
        self._drop_dangling = drop_dangling
        self._metadata: list[Metadata] = []
        self._profiles: list[FileMetadata] = []
        self._book = ShapeBook(KNOWN_SCALARS, KNOWN_REGIONS)
        # Digest of all files in order of rank.
        self._digest = hashlib.sha256()
        self._dropped = 0
        self._left_out: Counter[str] = Counter()

    def read(self, size: int | None) -> Algorithm:
        """Read all files, one batch of some megabytes at a time, and return the algorithm.

        `size`: size in bytes of the collective of a foreign trace (one without a profile), None
        if unknown; ignored for files with a profile. The algorithm of a foreign trace has the
        collective and sizes of `foreign_sizes`, no SCRATCH, and in its provenance only the name of
        the source without its folder and the digest. Raises `InputError` or `TraceError` for
        invalid files. Call this only once, because the reader accumulates data of the files.
        """
        # Only the bytes of one batch are in memory.
        chunks = [self._decode_chunk(files) for files in in_batches(self._open_files())]
        joined = join(chunks, len(self._parts), self._name)
        if self._profiles:
            algorithm = profile_algorithm(self._profiles, joined.steps)
            extensions = {
                **algorithm.extensions,
                **self._collect_extensions(joined, METADATA_NAMES),
            }
            return dataclasses.replace(algorithm, extensions=extensions)
        num_ranks = len(self._parts)
        sizes = foreign_sizes(joined, num_ranks, self._metadata[0], self._name, size)
        # Offsets and counts are known only after all ranks are read.
        steps, scale = joined.steps, sizes.scale[joined.row]
        steps = dataclasses.replace(
            steps,
            count=sizes.count[joined.row],
            src_offset=steps.src_offset * scale,
            dst_offset=steps.dst_offset * scale,
        )
        name, sha256 = PurePath(self._name).name, self._digest.hexdigest()
        return Algorithm(
            sizes.collective,
            steps,
            np.zeros(num_ranks, np.int64),
            Provenance(source_name=name, source_sha256=sha256),
            sizes.collective_bytes,
            self._collect_extensions(joined, frozenset()),
        )

    def _open_files(self) -> Iterator[RankFile]:
        """Yield the files of all ranks in order, opened one at a time; their metadata must agree.

        Metadata and profiles are collected in the reader, and the digest covers the files as long
        as none has a profile. If one file has a profile, all later ones must have one. Raises
        `InputError` or `TraceError` with the file if a file cannot be opened, and for metadata that
        contradict those of the first file.
        """
        for rank, part in enumerate(self._parts):
            content = part.load()
            file, metadata = open_rank_file(part.name, rank, content)
            # If one file has a profile, all later files must have one.
            if "profile" in metadata.attributes or self._profiles:
                profile = FileMetadata(metadata, part.name)
                first = self._profiles[0] if self._profiles else profile
                check_rank(profile, first, rank, len(self._parts))
                self._profiles.append(profile)
            self._metadata.append(metadata)
            self._check_foreign(metadata, part.name)
            # A profile contains its origin; for other traces, the files are the origin.
            if not self._profiles:
                self._digest.update(content)
            yield file

    def _check_foreign(self, metadata: Metadata, file: str) -> None:
        """Raise `InputError` (`rank-files`) for a file of another origin than that of rank 0.

        Call this after the metadata of the file, and its profile if it has one, were appended to
        `_metadata` and `_profiles`. The first case that applies:

        1. All files so far have a profile: nothing is checked.
        2. A file so far has a profile: raises the error. This file is then the one with the
           profile; a file without one after a file with one was refused before.
        3. No file has a profile: `collective`, `schema` and `input_file` in `metadata` must equal
           those of rank 0. A missing one equals only a missing one.
        """
        if len(self._profiles) == len(self._metadata):
            return
        location = Location(file, byte=0)
        if self._profiles:
            # If only rank 0 has a profile, the other files lack attributes and were refused before.
            message = "the file of rank 0 is a foreign trace, this one states a profile"
            cure = "give the files of one algorithm"
            raise InputError(message, location=location, code="rank-files", cure=cure)
        first = self._metadata[0].attributes
        for name in ("collective", "schema", "input_file"):
            if metadata.attributes.get(name) != first.get(name):
                message = f"the metadata attribute {name} differs from that of rank 0"
                raise InputError(message, location=location, code="rank-files", cure=SAME_SET)

    def _decode_chunk(self, files: Sequence[RankFile]) -> StepChunk:
        """Return the steps of some files of consecutive ranks, all with or all without a profile.

        Also updates `_book`, `_dropped` (number of dropped dependencies) and `_left_out` (number of
        nodes per attribute that the model does not represent). With a profile, units and size are
        taken from the metadata of rank 0, the number of steps from those of each file.

        Errors, in this order:

        - `TraceError`: a malformed node; without a profile, a node that shows that the trace is not
          an algorithm (`refuse_workload`).
        - `TraceError`: a repeated id; without `drop_dangling`, a dependency on a missing node.
        - `InputError`, with a profile: the metadata have no `step_count` or `unit_count`, or an
          invalid one, or an invalid `collective_bytes`.
        - `TraceError`: nodes that are invalid as steps (`profile_chunk`, otherwise
          `foreign_chunk`).
        """
        nodes = decode_nodes(Batch(files), self._book)
        fields = NodeFields(nodes)
        if not self._profiles:
            refuse_workload(fields)
        links = link(nodes, self._drop_dangling)
        self._dropped += links.dropped
        for shape, members in nodes.attributes.groups:
            for name, _ in shape.attributes:
                if name not in _UNDERSTOOD:
                    self._left_out[name] += len(members)
        if not self._profiles:
            return foreign_chunk(fields, links, len(self._parts))
        first = self._profiles[0]
        # Only the metadata of rank 0 is used: the others are equal.
        counts = [self._profiles[file.rank].integer("step_count", 0, 1 << 40) for file in files]
        sizes = StatedSizes(len(self._parts), first.integer("unit_count", 1), first.size())
        return profile_chunk(fields, links, np.asarray(counts, np.int64), sizes)

    def _collect_extensions(
        self, joined: Joined, known_metadata: frozenset[str]
    ) -> dict[str, JsonValue]:
        """Return the entries of `Algorithm.extensions` with data that the model cannot represent.

        - `EXTENSION`: the numbering of nodes (`Joined.numbering`).
        - `SOURCE_EXTENSION`: the metadata of rank 0 that are not in `known_metadata`
          (`_select_metadata`), the number of nodes per attribute that was not read, by name,
          and the number of dropped dependencies.

        Empty entries and values, and a number of 0, are omitted; the result may be {}. Raise
        `InputError` as `Joined.numbering` does.
        """
        details: dict[str, JsonValue] = {
            "metadata": _select_metadata(self._metadata[0], known_metadata),
            "attributes left out": {**dict(sorted(self._left_out.items()))},
            "dangling dependencies dropped": self._dropped,
        }
        extensions: dict[str, JsonValue] = {
            EXTENSION: joined.numbering(self._name),
            SOURCE_EXTENSION: {name: value for name, value in details.items() if value},
        }
        return {name: value for name, value in extensions.items() if value}


def _select_metadata(metadata: Metadata, known: frozenset[str]) -> dict[str, JsonValue]:
    """Return by name the metadata, except `known`, that are numbers, booleans or short texts.

    Texts of more than `_MAX_KEPT_TEXT` (256) characters are omitted, because converters
    store source files in the metadata. Lists, bytes, attributes without a value, and numbers
    that JSON lacks (NaN and infinite ones) are omitted too. If `known` is empty and the file has
    a version, the version is added as `version` and replaces an attribute of this name.
    """
    selected: dict[str, JsonValue] = {}
    for name, value in metadata.attributes.items():
        # Converters store complete source files in an attribute.
        is_long = isinstance(value, str) and len(value) > _MAX_KEPT_TEXT
        is_finite = not isinstance(value, float) or math.isfinite(value)
        if name not in known and isinstance(value, str | int | float) and is_finite and not is_long:
            selected[name] = value
    if metadata.version and not known:
        selected["version"] = metadata.version
    return selected


def _create_error(name: str, message: str, cure: str = "") -> InputError:
    """Create an error about a file of the set, or about the set."""
    return InputError(message, location=Location(name), code="rank-files", cure=cure)
