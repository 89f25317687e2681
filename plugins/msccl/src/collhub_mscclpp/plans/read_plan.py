"""Parse an execution plan from JSON that nobody vouches for: all defects with their JSON path."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TypeVar

from collhub_mscclpp.plans.json_values import (
    MOST_BYTES,
    MOST_CHUNKS,
    JsonValue,
    refuse_old_rank,
    refuse_old_switch,
)
from collhub_mscclpp.plans.operations import BUFFER_TYPES, CHANNEL_TYPES
from collhub_mscclpp.plans.read_operations import OperationReader
from collhub_mscclpp.plans.records import (
    Gpu,
    Plan,
    PlanHeader,
    RemoteBuffer,
    SwitchGroup,
    ThreadBlock,
)
from hub_core import parse_json_object
from hub_core.model import CAP, Diagnostic, InputError, Location, Severity

_Part = TypeVar("_Part")
_PAIRED = ("memory", "port")
_COUNT_CURE = "number them 0, 1, 2, ... in the order of the list"
# A semaphore is a signed 32-bit counter.
_MOST_INITIAL = (1 << 31) - 1


def parse_plan(content: bytes, file: str) -> Plan:
    """The plan in a JSON document.

    Raises `InputError` with every defect of its structure: what is missing, of a wrong type or out
    of range, ids that are not positions, references to what does not exist. Rules that the executor
    alone has, such as its limits, are judged by `checking`.
    """
    root = JsonValue(parse_json_object(content, file), file)
    return _PlanParser(file).parse(root)


class _PlanParser:
    """Parses part by part; a defect of one part does not hide those of the others."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._errors: list[Diagnostic] = []
        self._hidden = 0

    def parse(
        self,
        root: JsonValue,
    ) -> Plan:
        """The plan. Raises `InputError` with all that was found."""
        header = self._attempt(lambda: _header(root))
        listed = self._attempt(root.member("gpus").items) or []
        if not listed and not self._errors:
            raise root.member("gpus").fail("a plan needs at least one rank", "list every rank")
        gpus = [self._attempt(partial(_gpu, gpu)) for gpu in listed]
        for rank, gpu in enumerate(listed):
            self._attempt(partial(_check_id, gpu, rank, "the rank"))
        self._raise_errors()
        # Complete now: a part without an error was parsed.
        ranks = [gpu for gpu in gpus if gpu is not None]
        self._check_ranks(listed, ranks)
        blocks, reader = self._blocks(listed, ranks)
        self._raise_errors()
        assert header is not None
        return reader.plan(self._file, header, tuple(ranks), tuple(blocks))

    def _blocks(
        self,
        listed: list[JsonValue],
        gpus: list[Gpu],
    ) -> tuple[list[ThreadBlock], OperationReader]:
        """Thread blocks of all ranks, and the reader that holds their operations."""
        blocks: list[ThreadBlock] = []
        reader = OperationReader(self._attempt)
        for rank, (value, gpu) in enumerate(zip(listed, gpus, strict=True)):
            found = self._attempt(value.member("threadblocks").items) or []
            for position, one in enumerate(found):
                block = self._block(one, rank, position, gpu)
                if block is None:
                    continue
                reader.read(one.member("ops"), block, len(blocks), gpu)
                blocks.append(block)
        return blocks, reader

    def _block(
        self,
        value: JsonValue,
        rank: int,
        position: int,
        gpu: Gpu,
    ) -> ThreadBlock | None:
        def parse() -> ThreadBlock:
            _check_id(value, position, "the thread block")
            value.member("ops").items()
            channels = _channels_of_block(value, gpu)
            return ThreadBlock(rank, position, channels, _buffers_of_block(value, gpu))

        return self._attempt(parse)

    def _check_ranks(
        self,
        listed: list[JsonValue],
        gpus: list[Gpu],
    ) -> None:
        """Note peers, members of groups and owners of buffers that are no ranks of the plan."""
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

    def _attempt(self, parse: Callable[[], _Part]) -> _Part | None:
        """A part, or None with its defect noted."""
        try:
            return parse()
        except InputError as error:
            self._note(error)
            return None

    def _note(self, error: InputError) -> None:
        # A generator that is wrong is wrong everywhere: enough are shown, the rest counted.
        if len(self._errors) < CAP:
            self._errors.extend(error.diagnostics)
        else:
            self._hidden += 1

    def _raise_errors(self) -> None:
        if not self._errors:
            return
        if self._hidden:
            message = f"and {self._hidden} more defects of the plan's structure"
            place = Location(self._file)
            self._errors.append(Diagnostic("plan-schema", message, Severity.NOTE, place))
        raise InputError(self._errors)


def _header(root: JsonValue) -> PlanHeader:
    """The members of the plan itself, with the executor's defaults."""
    return PlanHeader(
        name=root.member("name").text(),
        collective=root.member("collective").text(),
        protocol=root.member("protocol").choice(("Simple", "LL")),
        in_place=_flag(root, "inplace"),
        reuse_resources=_flag(root, "reuse_resources"),
        double_scratch=_flag(root, "use_double_scratch_buffer"),
        alignment=_number(root, "buffer_alignment", 16, 1, MOST_CHUNKS),
        threads_per_block=_number(root, "num_threads_per_block", 1024, 1, 1024),
        min_bytes=_number(root, "min_message_size", 0, 0, MOST_BYTES),
        max_bytes=_number(root, "max_message_size", MOST_BYTES, 0, MOST_BYTES),
    )


def _flag(
    root: JsonValue,
    key: str,
) -> bool:
    return root.member(key).flag() if root.has(key) else False


def _number(
    root: JsonValue,
    key: str,
    default: int,
    least: int,
    most: int,
) -> int:
    return root.member(key).integer(least, most) if root.has(key) else default


def _check_id(
    value: JsonValue,
    position: int,
    what: str,
) -> None:
    """Refuse an id that is not the position: the executor looks it up by position."""
    stated = value.member("id")
    if stated.integer(0, MOST_CHUNKS) != position:
        raise stated.fail(f"{what} at position {position} has id {stated.value}", _COUNT_CURE)


def _gpu(value: JsonValue) -> Gpu:
    """One rank, without its thread blocks."""
    refuse_old_rank(value)
    peers: dict[str, list[int]] = {name: [] for name in _PAIRED}
    groups: list[SwitchGroup] = []
    for channel in value.member("channels", "write an empty list").items():
        kind = channel.member("channel_type").choice(CHANNEL_TYPES)
        if kind == "switch":
            groups += _groups(channel)
        else:
            peers[kind] += _integers(channel.member("connected_to"))
    buffers = value.member("remote_buffers", "write an empty list").items()
    value.member("threadblocks", "write an empty list").items()
    return Gpu(
        input_chunks=value.member("input_chunks").integer(0, MOST_CHUNKS),
        output_chunks=value.member("output_chunks").integer(0, MOST_CHUNKS),
        scratch_chunks=value.member("scratch_chunks").integer(0, MOST_CHUNKS),
        peers={name: tuple(ranks) for name, ranks in peers.items()},
        groups=tuple(groups),
        remote_buffers=tuple(_remote_buffer(one) for one in buffers),
        semaphores=_semaphores(value),
    )


def _groups(channel: JsonValue) -> Iterable[SwitchGroup]:
    refuse_old_switch(channel)
    kind = channel.member("buffer_type").choice(BUFFER_TYPES)
    for group in channel.member("rank_groups").items():
        ranks = tuple(_integers(group.member("ranks")))
        stated = group.member("size")
        if stated.integer(0, MOST_CHUNKS) != len(ranks):
            raise stated.fail(f"the group has {len(ranks)} ranks", "state their number")
        if len(set(ranks)) < len(ranks) or not ranks:
            raise group.member("ranks").fail("a group lists each of its ranks once")
        yield SwitchGroup(BUFFER_TYPES.index(kind), ranks)


def _remote_buffer(value: JsonValue) -> RemoteBuffer:
    kind = value.member("type").choice(BUFFER_TYPES)
    types = [one.choice(_PAIRED) for one in value.member("access_channel_types").items()]
    rank = value.member("rank").integer(0, MOST_CHUNKS)
    return RemoteBuffer(rank, BUFFER_TYPES.index(kind), tuple(types))


def _semaphores(value: JsonValue) -> tuple[int, ...]:
    if not value.has("semaphores"):
        return ()
    listed = value.member("semaphores").items()
    return tuple(one.member("init_value").integer(0, _MOST_INITIAL) for one in listed)


def _integers(value: JsonValue) -> list[int]:
    return [one.integer(0, MOST_CHUNKS) for one in value.items()]


def _channels_of_block(
    value: JsonValue,
    gpu: Gpu,
) -> Mapping[str, tuple[int, ...]]:
    """Rank-level ids of the channels of a thread block, by type."""
    found: dict[str, list[int]] = {name: [] for name in CHANNEL_TYPES}
    for one in value.member("channels", "write an empty list").items():
        kind = one.member("channel_type").choice(CHANNEL_TYPES)
        cure = f"the rank has {gpu.channel_count(kind)} {kind} channels"
        most = gpu.channel_count(kind) - 1
        ids = one.member("channel_ids").items()
        found[kind] += [channel.integer(0, most, cure) for channel in ids]
    return {name: tuple(ids) for name, ids in found.items()}


def _buffers_of_block(
    value: JsonValue,
    gpu: Gpu,
) -> Mapping[str, tuple[int, ...]]:
    """Positions in `Gpu.remote_buffers` that a thread block refers to, by type of channel."""
    found: dict[str, list[int]] = {name: [] for name in _PAIRED}
    if not value.has("remote_buffer_refs"):
        return dict.fromkeys(found, ())
    cure = f"the rank has {len(gpu.remote_buffers)} remote buffers"
    for one in value.member("remote_buffer_refs").items():
        kind = one.member("access_channel_type").choice(_PAIRED)
        ids = one.member("remote_buffer_ids").items()
        most = len(gpu.remote_buffers) - 1
        for position in ids:
            buffer = gpu.remote_buffers[position.integer(0, most, cure)]
            if kind not in buffer.channel_types:
                raise position.fail(f"the buffer is not reached by {kind} channels")
        found[kind] += [int(position.integer(0, most, cure)) for position in ids]
    return {name: tuple(ids) for name, ids in found.items()}
