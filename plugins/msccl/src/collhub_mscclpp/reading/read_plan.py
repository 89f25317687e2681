"""Parse an execution plan from an untrusted JSON document; errors give their JSON path."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TypeVar

import numpy as np

from collhub_mscclpp.plan_records import (
    BUFFER_TYPES,
    CHANNEL_TYPES,
    Plan,
    PlanGpu,
    PlanHeader,
    RemoteBuffer,
    SwitchGroup,
    ThreadBlock,
)
from collhub_mscclpp.reading.json_values import (
    MAX_CHUNKS,
    MOST_BYTES,
    JsonValue,
    refuse_old_members,
    refuse_old_rank,
    refuse_old_switch,
)
from collhub_mscclpp.reading.read_operations import OperationReader
from hub_core import parse_json_object
from hub_core.columns import Int64Array
from hub_core.model import CAP, Diagnostic, InputError, Location, Severity

_Part = TypeVar("_Part")
_PAIRED = ("memory", "port")
_COUNT_CURE = "number them 0, 1, 2, ... in the order of the list"
# A semaphore is a signed 32-bit counter.
_MOST_INITIAL = (1 << 31) - 1
_NAME = re.compile(rb'"name"\s*:')


def parse_plan(content: bytes, file: str) -> Plan:
    """Parse the plan in a JSON document.

    `file`: name for errors. Raises `InputError` if the document is no JSON object.
    Otherwise raises one `InputError` with the first 8 faults of its structure: missing
    members, wrong types, numbers out of range, ids that are not positions, and references
    to missing entries. Faults of thread blocks are listed only if header and ranks have
    none. The rules of the executor, such as its limits, are not checked here but in
    `checking`.
    """
    root = JsonValue(parse_json_object(content, file), file)
    return _PlanParser(file).parse(root)


def list_operation_lines(content: bytes, num_operations: int) -> Int64Array:
    """Return the line of every operation of a valid plan: int64, from 1, in the order of rows.

    Lines are found by the members `name` in the text; only the plan and its operations have
    one. All are -1 (unknown) if their number is not `num_operations` + 1, or if two operations
    are on one line, as in a plan without line breaks.
    """
    unknown = np.full(num_operations, -1, np.int64)
    names = np.array([match.start() for match in _NAME.finditer(content)], np.int64)
    if len(names) != num_operations + 1:
        return unknown
    # The name of the plan precedes all others, or follows them.
    names = names[1:] if names[0] < content.find(b'"gpus"') else names[:-1]
    breaks = np.flatnonzero(np.frombuffer(content, np.uint8) == ord("\n"))
    lines = np.searchsorted(breaks, names) + 1
    return lines if len(np.unique(lines)) == num_operations else unknown


class _PlanParser:
    """Parses member by member; an error in one member does not hide errors in other members."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._errors: list[Diagnostic] = []
        self._hidden = 0

    def parse(
        self,
        root: JsonValue,
    ) -> Plan:
        """Return the plan that a root object describes.

        Defaults: flags are False, `buffer_alignment` is 16, `num_threads_per_block` is 1024
        (the maximum), message sizes are 0 to 2^64 - 1. The id of a rank or thread block must be
        its position in the list.

        Raises `InputError` (`plan-schema`, or `old-plan` for the format before July 2025) with
        a JSON path. The steps are in this order; a step with errors raises them together:

        1. `gpus` is no list, or a rank has a member of the old format: only the first such error.
        2. A missing member `gpus`, or, if the header is correct, an empty list.
        3. The first error of the header and of each rank, and each wrong id of a rank.
        4. Numbers of ranks that are not in the plan, then errors of thread blocks and operations.

        At most 8 errors are listed; a note gives the number of further ones.
        """
        # Other members of an old plan are wrong, too; they need no further errors.
        if root.has("gpus"):
            for entry in root.member("gpus").items():
                refuse_old_members(entry)
        header = self._parse_or_note(
            lambda: PlanHeader(
                name=root.member("name").text(),
                collective=root.member("collective").text(),
                protocol=root.member("protocol").choice(("Simple", "LL")),
                in_place=_parse_flag(root, "inplace"),
                reuse_resources=_parse_flag(root, "reuse_resources"),
                double_scratch=_parse_flag(root, "use_double_scratch_buffer"),
                alignment=_parse_number(root, "buffer_alignment", 16, 1, MAX_CHUNKS),
                threads_per_block=_parse_number(root, "num_threads_per_block", 1024, 1, 1024),
                min_bytes=_parse_number(root, "min_message_size", 0, 0, MOST_BYTES),
                max_bytes=_parse_number(root, "max_message_size", MOST_BYTES, 0, MOST_BYTES),
            )
        )
        listed = self._parse_or_note(root.member("gpus").items) or []
        if not listed and not self._errors:
            raise root.member("gpus").fail("a plan needs at least one rank", "list every rank")
        gpus = [self._parse_or_note(partial(_parse_gpu, gpu)) for gpu in listed]
        for rank, value in enumerate(listed):
            self._parse_or_note(partial(_check_id, value, rank, "the rank"))
        self._raise_errors()
        # Without errors every rank has been parsed.
        ranks = [gpu for gpu in gpus if gpu is not None]
        self._check_ranks(listed, ranks)
        blocks: list[ThreadBlock] = []
        reader = OperationReader(self._parse_or_note)
        for rank, (value, gpu) in enumerate(zip(listed, ranks, strict=True)):
            entries = self._parse_or_note(value.member("threadblocks").items) or []
            for position, entry in enumerate(entries):
                block = self._parse_block(entry, rank, position, gpu)
                if block is None:
                    continue
                reader.read(entry.member("ops"), block, len(blocks), gpu)
                blocks.append(block)
        self._raise_errors()
        assert header is not None
        return reader.plan(self._file, header, tuple(ranks), tuple(blocks))

    def _parse_block(
        self,
        value: JsonValue,
        rank: int,
        position: int,
        gpu: PlanGpu,
    ) -> ThreadBlock | None:
        """Parse a thread block without its operations; return None after recording an error.

        At most one error is recorded, that of the first rule that fails:

        1. `id` is the integer `position`.
        2. `ops` is a list; its entries are not examined here.
        3. `channels` is a list. Each entry has a `channel_type` of `CHANNEL_TYPES` and a list
           `channel_ids`. The ids are positions among the channels of this type in `gpu`; for the
           type switch, among its groups.
        4. `remote_buffer_refs` is missing or valid (`_parse_buffers_of_block`).

        If a channel type is listed several times, its ids are concatenated in the order of the
        list. A type that is not listed has no ids. `rank` is copied to the result.
        """

        def parse() -> ThreadBlock:
            _check_id(value, position, "the thread block")
            value.member("ops").items()
            # Rank-level ids of the channels, by type.
            ids_by_type: dict[str, list[int]] = {name: [] for name in CHANNEL_TYPES}
            for entry in value.member("channels", "write an empty list").items():
                kind = entry.member("channel_type").choice(CHANNEL_TYPES)
                cure = f"the rank has {gpu.channel_count(kind)} {kind} channels"
                maximum = gpu.channel_count(kind) - 1
                ids = entry.member("channel_ids").items()
                ids_by_type[kind] += [channel.integer(0, maximum, cure) for channel in ids]
            channels = {name: tuple(ids) for name, ids in ids_by_type.items()}
            return ThreadBlock(rank, position, channels, _parse_buffers_of_block(value, gpu))

        return self._parse_or_note(parse)

    def _check_ranks(
        self,
        listed: list[JsonValue],
        gpus: list[PlanGpu],
    ) -> None:
        """Record errors for rank numbers that are not below the number of ranks of the plan.

        `listed`: JSON objects of `gpus`. For each rank, three lists are checked: the peers of its
        channels, the ranks of its groups, and the ranks of its remote buffers. Each list gives at
        most one error, for its first wrong number. The error is located at `channels` (also for
        groups) or `remote_buffers`. Nothing is raised.
        """
        cure = f"the plan has ranks 0..{len(gpus) - 1}"
        for value, gpu in zip(listed, gpus, strict=True):
            named = [
                ("channels", [*gpu.peers["memory"], *gpu.peers["port"]]),
                ("channels", [rank for group in gpu.groups for rank in group.ranks]),
                ("remote_buffers", [buffer.rank for buffer in gpu.remote_buffers]),
            ]
            for key, ranks in named:
                wrong = [rank for rank in ranks if rank >= len(gpus)]
                if wrong:
                    self._note(value.member(key).fail(f"names rank {wrong[0]}", cure))

    def _parse_or_note(self, parse: Callable[[], _Part]) -> _Part | None:
        """Return the parsed member; None after an error, which is recorded."""
        try:
            return parse()
        except InputError as error:
            self._note(error)
            return None

    def _note(self, error: InputError) -> None:
        """Record an error, or count it if there are too many already."""
        # A defective generator repeats its error: further ones are only counted.
        if len(self._errors) < CAP:
            self._errors.extend(error.diagnostics)
        else:
            self._hidden += 1

    def _raise_errors(self) -> None:
        """Raise `InputError` with all recorded errors; do nothing if there are none.

        Only the first errors are recorded. If more occurred, a note at the end gives the number of
        those that were not recorded.
        """
        if not self._errors:
            return
        if self._hidden:
            message = f"and {self._hidden} more defects of the plan's structure"
            location = Location(self._file)
            self._errors.append(Diagnostic("plan-schema", message, Severity.NOTE, location))
        raise InputError(self._errors)


def _parse_flag(
    root: JsonValue,
    key: str,
) -> bool:
    return root.member(key).flag() if root.has(key) else False


def _parse_number(
    root: JsonValue,
    key: str,
    default: int,
    minimum: int,
    maximum: int,
) -> int:
    return root.member(key).integer(minimum, maximum) if root.has(key) else default


def _check_id(
    value: JsonValue,
    position: int,
    noun: str,
) -> None:
    """Raise `InputError` unless an element's `id` is its position in the list.

    A missing `id`, or one that is no integer, raises it too. The executor finds elements by
    position. `noun`: name of the element for the message.
    """
    identifier = value.member("id")
    if identifier.integer(0, MAX_CHUNKS) != position:
        raise identifier.fail(
            f"{noun} at position {position} has id {identifier.value}", _COUNT_CURE
        )


def _parse_gpu(value: JsonValue) -> PlanGpu:
    """Parse one rank without its thread blocks.

    Channels of one type (memory, port) are concatenated in the order of the list; their peers are
    the ranks in `connected_to`. Switch channels become groups in that order. Raises `InputError`
    for the first violation, in this order:

    1. The rank is in the plan format before July 2025, or lacks `remote_buffers` (`old-plan`).
    2. `channels` is a list, and each entry has a known `channel_type` and integers as peers, or
       valid groups (`_parse_groups`).
    3. `remote_buffers` and `threadblocks` are lists. The thread blocks are not examined.
    4. `input_chunks`, `output_chunks` and `scratch_chunks` are integers from 0 to 2^32 - 1.
    5. Each remote buffer has a known `type`, a list of channel types (memory or port), which may be
       empty, and a `rank` that is an integer from 0.
    6. `semaphores` is missing, or a list with an `init_value` from 0 to 2^31 - 1 in each entry.

    Lists may be empty. The member `id` is not examined, nor whether named ranks exist.
    """
    refuse_old_rank(value)
    peers: dict[str, list[int]] = {name: [] for name in _PAIRED}
    groups: list[SwitchGroup] = []
    for channel in value.member("channels", "write an empty list").items():
        kind = channel.member("channel_type").choice(CHANNEL_TYPES)
        if kind == "switch":
            groups += _parse_groups(channel)
        else:
            peers[kind] += _parse_integers(channel.member("connected_to"))
    buffers = value.member("remote_buffers", "write an empty list").items()
    value.member("threadblocks", "write an empty list").items()
    input_chunks = value.member("input_chunks").integer(0, MAX_CHUNKS)
    output_chunks = value.member("output_chunks").integer(0, MAX_CHUNKS)
    scratch_chunks = value.member("scratch_chunks").integer(0, MAX_CHUNKS)
    remote_buffers = []
    for buffer in buffers:
        kind = buffer.member("type").choice(BUFFER_TYPES)
        listed_types = buffer.member("access_channel_types").items()
        types = tuple(channel_type.choice(_PAIRED) for channel_type in listed_types)
        rank = buffer.member("rank").integer(0, MAX_CHUNKS)
        remote_buffers.append(RemoteBuffer(rank, BUFFER_TYPES.index(kind), types))
    listed = value.member("semaphores").items() if value.has("semaphores") else []
    initial = [semaphore.member("init_value").integer(0, _MOST_INITIAL) for semaphore in listed]
    return PlanGpu(
        input_chunks,
        output_chunks,
        scratch_chunks,
        peers={name: tuple(ranks) for name, ranks in peers.items()},
        groups=tuple(groups),
        remote_buffers=tuple(remote_buffers),
        semaphores=tuple(initial),
    )


def _parse_groups(channel: JsonValue) -> Iterable[SwitchGroup]:
    """Yield the groups of a switch channel, all with the buffer of the channel.

    Raises `InputError` if `size` is not the number of ranks, if a group has no ranks or repeated
    ones, or for the format of old releases. Whether the ranks exist is not checked here.
    """
    refuse_old_switch(channel)
    kind = channel.member("buffer_type").choice(BUFFER_TYPES)
    for group in channel.member("rank_groups").items():
        ranks = tuple(_parse_integers(group.member("ranks")))
        size = group.member("size")
        if size.integer(0, MAX_CHUNKS) != len(ranks):
            raise size.fail(f"the group has {len(ranks)} ranks", "give the number of ranks")
        if len(set(ranks)) < len(ranks) or not ranks:
            raise group.member("ranks").fail("a group lists each of its ranks once")
        yield SwitchGroup(BUFFER_TYPES.index(kind), ranks)


def _parse_integers(value: JsonValue) -> list[int]:
    return [number.integer(0, MAX_CHUNKS) for number in value.items()]


def _parse_buffers_of_block(
    value: JsonValue,
    gpu: PlanGpu,
) -> Mapping[str, tuple[int, ...]]:
    """Return the remote buffers of a thread block, as positions in `gpu.remote_buffers`.

    The result maps `memory` and `port`, the channel types, to positions counted from 0. Positions
    of one type are in the order of the list `remote_buffer_refs`, with repetitions. A type without
    entries has (). Without that list, both types have ().

    Raises `InputError` at the first of these faults:

    - The list or an entry has the wrong form, or an entry lacks a member.
    - The channel type is neither `memory` nor `port`.
    - A position is not an integer from 0 to the number of remote buffers - 1.
    - The remote buffer does not have the channel type of the entry.
    """
    buffers: dict[str, list[int]] = {name: [] for name in _PAIRED}
    if not value.has("remote_buffer_refs"):
        return dict.fromkeys(buffers, ())
    cure = f"the rank has {len(gpu.remote_buffers)} remote buffers"
    for entry in value.member("remote_buffer_refs").items():
        kind = entry.member("access_channel_type").choice(_PAIRED)
        ids = entry.member("remote_buffer_ids").items()
        maximum = len(gpu.remote_buffers) - 1
        for position in ids:
            buffer = gpu.remote_buffers[position.integer(0, maximum, cure)]
            if kind not in buffer.channel_types:
                raise position.fail(f"the buffer is not reached by {kind} channels")
        buffers[kind] += [int(position.integer(0, maximum, cure)) for position in ids]
    return {name: tuple(ids) for name, ids in buffers.items()}
