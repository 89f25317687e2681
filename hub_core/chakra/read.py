"""Read Chakra execution traces, of collective profile v1 or of any foreign dialect, as algorithms."""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import PurePath

import numpy as np
import numpy.typing as npt

from hub_core.chakra.chunks import Chunk, Joined, join
from hub_core.chakra.fields import NodeFields
from hub_core.chakra.formats import ReadOptions
from hub_core.chakra.links import link
from hub_core.chakra.metadata import Metadata
from hub_core.chakra.nodes import message_tags
from hub_core.chakra.numbering import CHANNEL_TAGS, EXTENSION, RankNodes, describe_rank
from hub_core.chakra.profile import METADATA_NAMES, Profile, RankProfile, check_rank
from hub_core.chakra.rank_files import in_batches, rank_parts
from hub_core.chakra.read_foreign import foreign_chunk, foreign_collective, refuse_workload
from hub_core.chakra.read_profile import ProfileReader
from hub_core.chakra.recognise import open_rank_file
from hub_core.chakra.records import Batch, RankFile, decode_nodes
from hub_core.chakra.shapes import ShapeBook
from hub_core.model.algorithm import Algorithm, JsonValue, Provenance
from hub_core.model.diagnostics import InputError, Location
from hub_core.model.steps import StepTable
from hub_core.plugin_api.sources import Source

Int64Array = npt.NDArray[np.int64]


SOURCE_EXTENSION = "chakra-source"
"""Key of `Algorithm.extensions` for what the files say besides the algorithm."""

KNOWN_SCALARS = (
    "comm_size",
    "comm_src",
    "comm_dst",
    "comm_tag",
    "msg_chunk_idx",
    "msg_chunk_cnt",
    "total_chunk_cnt",
    "channel",
    "lane",
    "is_rrc",
    "comp_kind",
    "duration_ns",
    "source_line",
    "tb_id",
)
KNOWN_LISTS = {"region": 3, "src_region": 3, "dst_region": 3}
_UNDERSTOOD = (
    frozenset(KNOWN_SCALARS)
    | frozenset(KNOWN_LISTS)
    | {"is_cpu_op", "comm_type", "num_ops", "tensor_size"}
)
_LONGEST_KEPT_TEXT = 256


def read(source: Source, options: ReadOptions) -> Algorithm:
    """Read the rank files of one algorithm. Options: see `formats.CHAKRA_READER`.

    Traces without the profile are timing only: buffers UNKNOWN, COMP_NODEs COMPUTE steps, channels tags. Raises
    `InputError` with file, byte and node for everything that is not an algorithm.
    """
    return _Reader(source, options.drop_dangling, options.size).read()


class _Reader:
    """One reading: files come in order of rank, some at a time, and leave only the columns of their steps."""

    def __init__(self, source: Source, drop_dangling: bool, size: int | None) -> None:
        self._name = source.name
        self._parts = rank_parts(source)
        self._drop_dangling = drop_dangling
        self._size = size
        self._metadata: list[Metadata] = []
        self._profiles: list[RankProfile] = []
        self._book = ShapeBook(KNOWN_SCALARS, KNOWN_LISTS)
        self._digest = hashlib.sha256()
        self._dropped = 0
        self._left_out: Counter[str] = Counter()

    def read(self) -> Algorithm:
        """Read everything."""
        chunks = [self._chunk(files) for files in in_batches(self._files())]
        joined = self._join(chunks)
        return self._of_profile(joined) if self._profiles else self._foreign(joined, chunks)

    def _files(self) -> Iterator[RankFile]:
        for rank, part in enumerate(self._parts):
            content = part.load()
            self._digest.update(content)
            file, metadata = open_rank_file(part.name, rank, content)
            if "profile" in metadata.attributes or self._profiles:
                profile = RankProfile(metadata, part.name)
                check_rank(
                    profile,
                    self._profiles[0] if self._profiles else profile,
                    rank,
                    len(self._parts),
                )
                self._profiles.append(profile)
            self._metadata.append(metadata)
            self._check_foreign(metadata, part.name)
            yield file

    def _check_foreign(self, metadata: Metadata, file: str) -> None:
        if len(self._profiles) not in (0, len(self._metadata)):
            message = "the file of rank 0 is a foreign trace, this one states a profile"
            raise InputError(
                message,
                location=Location(file, byte=0),
                code="rank-files",
                cure="give the files of one algorithm",
            )
        for name in ("collective", "schema", "input_file"):
            if (
                metadata.attributes.get(name) != self._metadata[0].attributes.get(name)
                and not self._profiles
            ):
                message = f"the metadata attribute {name} differs from that of rank 0"
                cure = "give the rank files of one algorithm"
                raise InputError(
                    message, location=Location(file, byte=0), code="rank-files", cure=cure
                )

    def _chunk(self, files: list[RankFile]) -> Chunk:
        nodes = decode_nodes(Batch(files), self._book)
        fields = NodeFields(nodes)
        if not self._profiles:
            refuse_workload(fields)
        links = link(nodes, self._drop_dangling)
        self._dropped += links.dropped
        for shape, members in nodes.attributes.groups:
            for attribute in shape.attributes:
                if attribute.name not in _UNDERSTOOD:
                    self._left_out[attribute.name] += len(members)
        if not self._profiles:
            return foreign_chunk(fields, links, len(self._parts))
        first = self._profiles[0]
        reader = ProfileReader(
            len(self._parts), first.integer("unit_count", 1, 1 << 62), first.size()
        )
        counts = [self._profiles[file.rank].integer("step_count", 0, 1 << 40) for file in files]
        return reader.chunk(fields, links, np.asarray(counts, np.int64))

    def _join(self, chunks: list[Chunk]) -> Joined:
        try:
            return join(chunks, len(self._parts), self._name)
        except InputError as error:
            irregular = {rank: nodes for chunk in chunks for rank, nodes in chunk.irregular.items()}
            raise _of_node(error, irregular) from None

    def _of_profile(self, joined: Joined) -> Algorithm:
        profile = Profile(self._profiles)
        extensions = dict(profile.extensions)
        if EXTENSION in extensions:
            raise self._profiles[0].fail(f"extensions holds the reserved name {EXTENSION!r}")
        return Algorithm(
            profile.collective,
            joined.steps,
            profile.scratch_units,
            profile.provenance,
            profile.collective_bytes,
            extensions | self._extensions(joined, METADATA_NAMES),
        )

    def _foreign(self, joined: Joined, chunks: list[Chunk]) -> Algorithm:
        sizes = foreign_collective(
            chunks, len(self._parts), self._metadata[0], self._name, self._size
        )
        steps = _with_sizes(joined.steps, sizes.count[joined.row], sizes.scale[joined.row])
        return Algorithm(
            sizes.collective,
            steps,
            np.zeros(len(self._parts), np.int64),
            Provenance(
                source_name=PurePath(self._name).name, source_sha256=self._digest.hexdigest()
            ),
            sizes.collective_bytes,
            self._extensions(joined, frozenset()),
        )

    def _extensions(self, joined: Joined, known_metadata: frozenset[str]) -> dict[str, JsonValue]:
        found: dict[str, JsonValue] = {}
        if numbering := _numbering(joined, self._name):
            found[EXTENSION] = numbering
        said: dict[str, JsonValue] = {}
        if metadata := _kept_metadata(self._metadata[0], known_metadata):
            said["metadata"] = metadata
        if self._left_out:
            said["attributes left out"] = dict[str, JsonValue](sorted(self._left_out.items()))
        if self._dropped:
            said["dangling dependencies dropped"] = self._dropped
        if said:
            found[SOURCE_EXTENSION] = said
        return found


def _kept_metadata(metadata: Metadata, known: frozenset[str]) -> dict[str, JsonValue]:
    """Short values of metadata attributes that the model has no place for; never a whole source text."""
    kept: dict[str, JsonValue] = {}
    for name, value in metadata.attributes.items():
        is_short = isinstance(value, int | float) or (
            isinstance(value, str) and len(value) <= _LONGEST_KEPT_TEXT
        )
        if name not in known and is_short and isinstance(value, str | int | float):
            kept[name] = value
    if metadata.version and not known:
        kept["version"] = metadata.version
    return kept


def _of_node(error: InputError, irregular: Mapping[int, RankNodes]) -> InputError:
    """The complaint about a step that can never run as one about its node."""
    found = error.diagnostics[0]
    place = found.location
    if found.code != "cyclic-dependencies" or place.rank is None or place.step is None:
        return error
    nodes = irregular[place.rank]
    node = int(np.argmax(nodes.row == place.step))
    where = Location(nodes.file, byte=int(nodes.byte[node]), rank=place.rank)
    message = f"node {nodes.ids[node]} can never run: the dependencies form a cycle"
    return InputError(message, location=where, code=found.code, cure=found.cure)


def _with_sizes(steps: StepTable, count: Int64Array, scale: Int64Array) -> StepTable:
    return dataclasses.replace(
        steps, count=count, src_offset=steps.src_offset * scale, dst_offset=steps.dst_offset * scale
    )


def _numbering(joined: Joined, file: str) -> dict[str, JsonValue]:
    """What `lower` needs to give the nodes of this trace again; empty for a trace in the plain form."""
    numbering: dict[str, JsonValue] = {}
    steps = joined.steps
    tags = message_tags(steps)
    if not np.array_equal(tags, joined.tag):
        if np.array_equal(joined.tag[tags >= 0], steps.channel[tags >= 0]):
            numbering["tags"] = CHANNEL_TAGS
        else:
            _check_pairs(steps, tags, joined.tag, file)
    ranks = {
        str(rank): describe_rank(nodes, _positions(joined, rank))
        for rank, nodes in sorted(joined.irregular.items())
    }
    if entries := {rank: entry for rank, entry in ranks.items() if entry}:
        numbering["ranks"] = dict[str, JsonValue](entries)
    return numbering


def _positions(joined: Joined, rank: int) -> Int64Array:
    """Where each row of a rank, counted in file order, stands in the table; one entry for a rank without steps."""
    start, stop = joined.steps.rank_indptr[rank : rank + 2].tolist()
    positions = np.zeros(max(stop - start, 1), np.int64)
    positions[joined.row[start:stop] - start] = np.arange(stop - start)
    return positions


def _check_pairs(
    steps: StepTable, expected: npt.NDArray[np.int32], tags: npt.NDArray[np.int32], file: str
) -> None:
    """Tags that are neither ours nor the channels must still pair the messages that channels and order pair."""
    is_send = steps.sends
    rows = np.flatnonzero(expected >= 0)
    source = np.where(is_send, steps.rank, steps.peer)[rows]
    target = np.where(is_send, steps.peer, steps.rank)[rows]
    by_order, by_tag = (
        np.lexsort((is_send[rows], key[rows], target, source)) for key in (expected, tags)
    )
    for order, key, other in ((by_order, expected, tags), (by_tag, tags, expected)):
        ends = rows[order]
        same = (source[order][1:] == source[order][:-1]) & (target[order][1:] == target[order][:-1])
        same &= key[ends][1:] == key[ends][:-1]
        wrong = np.flatnonzero(same & (other[ends][1:] != other[ends][:-1]))
        if len(wrong):
            row = int(ends[wrong[0] + 1])
            message = f"the tag {tags[row]} pairs this message with another one than its channel and order do"
            raise InputError(message, location=steps.location(row, file), code="tag-mismatch")
