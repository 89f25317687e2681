"""Read Chakra execution traces, of collective profile v1 or of others, as algorithms."""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import PurePath

import numpy as np

from hub_core.chakra import (
    Batch,
    Metadata,
    NodeFields,
    RankFile,
    ShapeBook,
    decode_nodes,
    in_batches,
    link,
    open_rank_file,
)
from hub_core.model import Algorithm, InputError, JsonValue, Location, Provenance
from hub_core.plugin_api import Source
from hub_core.trace_profile.algorithms.chunks import Chunk, Joined, join
from hub_core.trace_profile.algorithms.numbering import EXTENSION
from hub_core.trace_profile.algorithms.profile import METADATA_NAMES
from hub_core.trace_profile.algorithms.rank_profile import (
    SAME_SET,
    RankProfile,
    check_rank,
    profile_algorithm,
)
from hub_core.trace_profile.algorithms.read_profile import StatedSizes, profile_chunk
from hub_core.trace_profile.foreign.read_foreign import (
    foreign_chunk,
    foreign_sizes,
    refuse_workload,
)
from hub_core.trace_profile.formats import ChakraReadOptions
from hub_core.trace_profile.rank_files import input_errors, rank_parts

SOURCE_EXTENSION = "chakra-source"
"""Key of `Algorithm.extensions` for what the files say besides the algorithm."""

KNOWN_SCALARS = (
    *("comm_size", "comm_src", "comm_dst", "comm_tag", "channel", "lane", "tb_id"),
    *("msg_chunk_idx", "msg_chunk_cnt", "total_chunk_cnt"),
    *("is_rrc", "comp_kind", "duration_ns", "source_line"),
)
KNOWN_REGIONS = ("region", "src_region", "dst_region")
# Attributes that say nothing that the others do not.
_REDUNDANT = ("is_cpu_op", "comm_type", "num_ops", "tensor_size")
_UNDERSTOOD = frozenset({*KNOWN_SCALARS, *KNOWN_REGIONS, *_REDUNDANT})
_LONGEST_KEPT_TEXT = 256


def read(source: Source, options: ChakraReadOptions) -> Algorithm:
    """Read the rank files of one algorithm.

    Traces without the profile are timing only: buffers UNKNOWN, COMP_NODEs COMPUTE steps, channels
    tags. Raises `InputError` with file, byte and node for everything that is not an algorithm.
    """
    with input_errors():
        return _Reader(source, options.drop_dangling).read(options.size)


class _Reader:
    """One reading: files come in order of rank, some at a time, and leave only their steps."""

    def __init__(self, source: Source, drop_dangling: bool) -> None:
        """`drop_dangling`: leave out dependencies on nodes that are not there."""
        self._name = source.name
        self._parts = rank_parts(source)
        # Of files that were read: one for each; profiles only where they state one.
        self._drop_dangling = drop_dangling
        self._metadata: list[Metadata] = []
        self._profiles: list[RankProfile] = []
        self._book = ShapeBook(KNOWN_SCALARS, KNOWN_REGIONS)
        # Of all files one behind the other, in order of rank.
        self._digest = hashlib.sha256()
        self._dropped = 0
        self._left_out: Counter[str] = Counter()

    def read(self, size: int | None) -> Algorithm:
        """Read everything; `size`: that of the collective of a foreign trace."""
        # Of the bytes nothing is kept beyond a batch.
        chunks = [self._chunk(files) for files in in_batches(self._files())]
        joined = join(chunks, len(self._parts), self._name)
        if self._profiles:
            stated = profile_algorithm(self._profiles, joined.steps)
            found = self._extensions(joined, METADATA_NAMES)
            return dataclasses.replace(stated, extensions={**stated.extensions, **found})
        return self._foreign(joined, size)

    def _files(self) -> Iterator[RankFile]:
        """Open the files in order; their metadata must agree."""
        for rank, part in enumerate(self._parts):
            content = part.load()
            file, metadata = open_rank_file(part.name, rank, content)
            # Where one file states a profile, all that follow must.
            if "profile" in metadata.attributes or self._profiles:
                profile = RankProfile(metadata, part.name)
                first = self._profiles[0] if self._profiles else profile
                check_rank(profile, first, rank, len(self._parts))
                self._profiles.append(profile)
            self._metadata.append(metadata)
            self._check_foreign(metadata, part.name)
            # A profile states where it came from; only of others the files are the origin.
            if not self._profiles:
                self._digest.update(content)
            yield file

    def _check_foreign(self, metadata: Metadata, file: str) -> None:
        """Refuse a set where only some files state a profile, or whose files differ in origin."""
        if len(self._profiles) == len(self._metadata):
            return
        place = Location(file, byte=0)
        if self._profiles:
            # A profile in the file of rank 0 alone was refused before: the others lack attributes.
            message = "the file of rank 0 is a foreign trace, this one states a profile"
            cure = "give the files of one algorithm"
            raise InputError(message, location=place, code="rank-files", cure=cure)
        first = self._metadata[0].attributes
        for name in ("collective", "schema", "input_file"):
            if metadata.attributes.get(name) != first.get(name):
                message = f"the metadata attribute {name} differs from that of rank 0"
                raise InputError(message, location=place, code="rank-files", cure=SAME_SET)

    def _chunk(self, files: Sequence[RankFile]) -> Chunk:
        """The steps of some files."""
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
        # Only rank 0 is asked: the others agree, or were refused.
        counts = [self._profiles[file.rank].integer("step_count", 0, 1 << 40) for file in files]
        stated = StatedSizes(len(self._parts), first.integer("unit_count", 1), first.size())
        return profile_chunk(fields, links, np.asarray(counts, np.int64), stated)

    def _foreign(self, joined: Joined, size: int | None) -> Algorithm:
        num_ranks = len(self._parts)
        sizes = foreign_sizes(joined, num_ranks, self._metadata[0], self._name, size)
        # Offsets and counts are known only now that all ranks are read.
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
            self._extensions(joined, frozenset()),
        )

    def _extensions(self, joined: Joined, known_metadata: frozenset[str]) -> dict[str, JsonValue]:
        """How the nodes were numbered, and what the files say besides the algorithm."""
        said: dict[str, JsonValue] = {
            "metadata": _kept_metadata(self._metadata[0], known_metadata),
            "attributes left out": {**dict(sorted(self._left_out.items()))},
            "dangling dependencies dropped": self._dropped,
        }
        found: dict[str, JsonValue] = {
            EXTENSION: joined.numbering(self._name),
            SOURCE_EXTENSION: {name: value for name, value in said.items() if value},
        }
        return {name: value for name, value in found.items() if value}


def _kept_metadata(metadata: Metadata, known: frozenset[str]) -> dict[str, JsonValue]:
    """Short values that the model has no place for; never a whole source text."""
    kept: dict[str, JsonValue] = {}
    for name, value in metadata.attributes.items():
        # Converters put whole source files into an attribute.
        is_long = isinstance(value, str) and len(value) > _LONGEST_KEPT_TEXT
        if name not in known and isinstance(value, str | int | float) and not is_long:
            kept[name] = value
    if metadata.version and not known:
        kept["version"] = metadata.version
    return kept
