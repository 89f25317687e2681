"""Write an algorithm as a GOAL schedule for one size, and list what GOAL has no words for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from collhub_goal.read import algorithm_of
from collhub_goal.schedule import Int64Array, Operation, Schedule
from collhub_goal.text import goal_text
from hub_core.model import (
    Algorithm,
    InputError,
    Loss,
    StepKind,
    StepTable,
    UsageError,
    message_bytes,
    parse_bandwidth,
)
from hub_core.plugin_api import Artifact, Options, WriteResult

DEFAULT_BYTES = 1 << 20
LARGEST_BYTES = 10**18 - 1
_UNSTATED_NS = 1
# Feature, consequence, and the parts of an algorithm of which one is read back different.
_OF_MODEL: Sequence[tuple[str, str, frozenset[str]]] = (
    (
        "steps: buffers, offsets and kinds of local work",
        "GOAL carries sizes and times only; what is read back can be simulated, not verified or run",
        frozenset(
            {
                "kind",
                "src_buffer",
                "src_offset",
                "dst_buffer",
                "dst_offset",
                "count",
                "rank",
                "rank_indptr",
            }
        ),
    ),
    (
        "collective: kind, root, contract, unit count, in place, out of place, reduce op",
        "a schedule does not say what it computes; it is read back as custom, one unit a byte",
        frozenset({"root", "contract", "unit_count", "in_place", "out_of_place", "reduce_op"}),
    ),
    ("scratch units", "there are no buffers", frozenset({"scratch_units"})),
    (
        "collective bytes",
        "the size is not written; it is read back as the most bytes that a rank moves",
        frozenset({"collective_bytes"}),
    ),
    ("extensions", "there is no place for them", frozenset({"extensions"})),
)


def write(algorithm: Algorithm, options: Options) -> WriteResult:
    """One file. Losses: whatever the algorithm that would be read back differs in."""
    size = options["size"] or algorithm.collective_bytes
    is_assumed = size is None
    if size is None:
        size = DEFAULT_BYTES
    assert isinstance(size, int)
    schedule = schedule_of(algorithm, size, options)
    losses = [*_losses(algorithm, schedule, options)]
    if is_assumed:
        cure = "the algorithm states no size, so it is written for 1 MiB; choose one with -O size="
        losses.append(Loss("size", "all messages", cure))
    return WriteResult([Artifact("", partial(goal_text, schedule))], losses, ("source line",))


def schedule_of(algorithm: Algorithm, size: int, options: Options) -> Schedule:
    """The schedule of an algorithm for `size` bytes. A reducing receive becomes a recv, and a calc after it.

    Raises `InputError` where sends and receives do not match, `UsageError` for a size that GOAL cannot state.
    """
    steps = algorithm.steps
    if int(steps.count.max(initial=0)) * size // algorithm.collective.unit_count > LARGEST_BYTES:
        raise UsageError(
            "a message has more bytes than GOAL can state", cure="choose a smaller size"
        )
    sizes = message_bytes(size, algorithm.collective.unit_count, steps.count)
    fuses = steps.is_kind(StepKind.RECV_REDUCE)
    last = np.cumsum(1 + fuses) - 1
    first = last - fuses
    rows = np.repeat(np.arange(len(steps)), 1 + fuses)
    is_message = np.zeros(len(rows), np.bool_)
    is_message[first[steps.sends | steps.receives]] = True
    parent, child = steps.edges()
    message_kind = np.where(steps.sends[rows], Operation.SEND, Operation.RECV)
    nothing = np.zeros(0, np.int64)
    return Schedule(
        algorithm.num_ranks,
        rank=steps.rank[rows].astype(np.int64),
        operation=np.where(is_message, message_kind, Operation.CALC).astype(np.int64),
        amount=np.where(is_message, sizes[rows], _work_ns(steps, sizes, options)[rows]),
        peer=np.where(is_message, steps.peer[rows], -1).astype(np.int64),
        tag=np.where(is_message, _tags(steps)[rows], 0),
        cpu=np.where(options["cpu"] == "lane", np.maximum(steps.lane[rows], -1), -1).astype(
            np.int64
        ),
        nic=np.where(is_message & (options["nic"] == "channel"), steps.channel[rows], -1).astype(
            np.int64
        ),
        line=np.full(len(rows), -1, np.int64),
        parent=np.concatenate([last[parent], first[fuses]]),
        child=np.concatenate([first[child], last[fuses]]),
        early_parent=nothing,
        early_child=nothing,
    )


def _losses(algorithm: Algorithm, schedule: Schedule, options: Options) -> Iterator[Loss]:
    steps = algorithm.steps
    read_back = algorithm_of(schedule, None, algorithm.provenance)
    changed = set(algorithm.differences(read_back))
    yield from (
        Loss(feature, "the whole schedule", what)
        for feature, what, parts in _OF_MODEL
        if changed & parts
    )
    renumbered = np.count_nonzero(_tags(steps) != steps.channel)
    if renumbered:
        yield Loss(
            "channel",
            f"{renumbered} steps",
            "a message gets a tag of its own, which is read back as its channel",
        )
    if len(steps.control_indices):
        consequence = "every dependency is written as requires, and read back as data"
        yield Loss(
            "control dependencies", f"{len(steps.control_indices)} dependencies", consequence
        )
    lanes = np.count_nonzero(steps.lane >= 0)
    if lanes and options["cpu"] != "lane":
        yield Loss("lane", f"{lanes} steps", "not written, as the option cpu asks")
    untimed = np.count_nonzero(
        ~steps.sends & ~steps.is_kind(StepKind.RECV) & (steps.duration_ns < 0)
    )
    if untimed:
        consequence = "local work without a stated time takes that of its bytes, or 1 ns where no bandwidth is given"
        yield Loss("duration", f"{untimed} steps", consequence)


def _work_ns(steps: StepTable, sizes: Int64Array, options: Options) -> Int64Array:
    """Time of the local part of every step: as stated, else by its bytes where a bandwidth is given, else 1 ns."""
    time = np.full(len(steps), _UNSTATED_NS, np.int64)
    kinds = {
        "reduce_bandwidth": (StepKind.REDUCE, StepKind.RECV_REDUCE),
        "copy_bandwidth": (StepKind.COPY,),
    }
    for option, members in kinds.items():
        if options[option] is not None:
            nanoseconds = sizes / parse_bandwidth(str(options[option])) * 1e9
            time = np.where(steps.is_kind(*members), np.rint(nanoseconds).astype(np.int64), time)
    return np.where(steps.duration_ns >= 0, steps.duration_ns, time)


def _tags(steps: StepTable) -> Int64Array:
    """Channels where they tell all messages of a pair of ranks apart, else a number of its own for every message."""
    sends, receives = np.flatnonzero(steps.sends), np.flatnonzero(steps.receives)
    sides = [
        _in_order(rows, source, destination, steps.channel)
        for rows, source, destination in (
            (sends, steps.rank, steps.peer),
            (receives, steps.peer, steps.rank),
        )
    ]
    if any(
        not np.array_equal(one, other)
        for one, other in zip(sides[0][1:], sides[1][1:], strict=True)
    ):
        message = "sends and receives do not match: GOAL could not be simulated to its end"
        raise InputError(message, cure="see what 'collhub verify' says", code="unmatched-message")
    tags = steps.channel.astype(np.int64)
    if (len(sends) and _has_twins(sides[0][1:])) or int(tags.min(initial=0)) < 0:
        for rows, *_ in sides:
            tags[rows] = np.arange(len(rows))
    return tags


def _in_order(
    rows: Int64Array, source: np.ndarray, destination: np.ndarray, channel: np.ndarray
) -> Sequence[Int64Array]:
    """Rows by (source, destination, channel), those of one in the order of the table, and the three columns."""
    order = rows[np.lexsort((channel[rows], destination[rows], source[rows]))]
    return order, source[order], destination[order], channel[order]


def _has_twins(columns: Sequence[Int64Array]) -> bool:
    return bool(np.any(np.all([column[1:] == column[:-1] for column in columns], axis=0)))
