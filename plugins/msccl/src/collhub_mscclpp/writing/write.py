"""Write algorithms as execution plans (JSON) of MSCCL++, with the losses; resources of a plan."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence

import numpy as np

from collhub_mscclpp.checking.rules import MOST_SLICES
from collhub_mscclpp.plan_records import BUFFER_TYPES
from collhub_mscclpp.plugin import ALIGNMENT, PACKETS, PlanWriteOptions
from collhub_mscclpp.writing.draft import Draft
from collhub_mscclpp.writing.fusion import group_steps
from collhub_mscclpp.writing.networks import find_network
from collhub_mscclpp.writing.protocols import write_packets, write_simple
from collhub_mscclpp.writing.segments import SWITCH, RankTables, Segment
from collhub_mscclpp.writing.switch_stores import SwitchStores
from collhub_mscclpp.writing.work import NAMES, order_work
from hub_core import read_topology
from hub_core.columns import Int64Array
from hub_core.model import Algorithm, CollectiveKind, Loss, UsageError
from hub_core.network import Topology
from hub_core.plugin_api import Artifact, RuntimeFit, WriteResult


def list_losses(draft: Draft) -> Iterator[Loss]:
    """Yield the properties of the algorithm that its plan does not contain, in this order.

    1. `in_place`, if the collective supports both modes: a plan has one. The reason says whether
       the plan is correct in both modes or only out of place (`Draft.serves_in_place`).
    2. If the kind of the collective has no name in plans (`NAMES`), the losses of
       `_list_contract_losses`. Otherwise `unit_count`, if a chunk has several units or the option
       `tbg` is above 1: a reader takes chunks or their parts as units.
    3. `collective_bytes`, if the algorithm has a size and the option `max_size` is not given.
    """
    algorithm = draft.work.algorithm
    collective = algorithm.collective
    serves_both = collective.in_place and collective.out_of_place
    if serves_both:
        where = "calls in place"
        reason = "a plan has one mode; this one is correct in both"
        if not draft.serves_in_place():
            reason = (
                "correct only out of place: ports miss parts of buffers, packets need equal scratch"
            )
        yield Loss("in_place", where, reason)
    if collective.kind not in NAMES:
        yield from _list_contract_losses(draft)
    elif draft.work.unit * draft.options.tbg > 1:
        # The reader's units are chunks, or the parts of chunks of thread block groups.
        units = f"{draft.work.unit} units are a chunk"
        yield Loss("unit_count", units, "when read back, units are chunks or parts of them")
    if algorithm.collective_bytes is not None and draft.options.max_size is None:
        where = f"{algorithm.collective_bytes} bytes"
        yield Loss(
            "collective_bytes", where, "a plan serves a window of sizes; see -O min_size, max_size"
        )


def _list_contract_losses(draft: Draft) -> Iterator[Loss]:
    """Yield the properties that are lost when a plan names its collective `custom`, in this order.

    - `kind`: the kind is not CUSTOM.
    - `in_place`: a GATHER or SCATTER supports in-place calls only. A plan cannot define which part
      of the larger buffer is the smaller one.
    - `root`: the collective has a root.
    - `contract`: always, except if the sizes of the buffers describe the collective completely: it
      has a contract without an expected result, all inputs are defined, and the units of each input
      and output equal the plan's number of chunks.
    - `unit_count`: it differs from the largest number of chunks of any input or output. A reader of
      the plan assumes this maximum.

    The plan's number of chunks is that of `count_chunks` (at least 1) times the option `tbg`.
    Whether plans have a name for the collective is not checked here.
    """
    collective = draft.work.algorithm.collective
    where = f"{collective.kind} is written as custom"
    if collective.kind is not CollectiveKind.CUSTOM:
        yield Loss("kind", where, "only callers that name the plan use it")
    if not collective.out_of_place and collective.kind in UNSTATED_IN_PLACE:
        yield Loss(
            "in_place", where, "the plan does not define which part of a buffer the other one is"
        )
    if collective.root is not None:
        yield Loss("root", f"rank {collective.root}", "only the steps imply it")
    input_chunks, output_chunks = (count_chunks(draft)[:, :2] * draft.options.tbg).T
    contract = collective.contract
    is_described_by_sizes = (
        contract is not None
        and contract.expected is None
        and bool(np.all(contract.defined))
        and np.array_equal(contract.input_units, input_chunks)
        and np.array_equal(contract.output_units, output_chunks)
    )
    if not is_described_by_sizes:
        consequence = "the expected result is not in the plan; chunk counts are at least 1"
        yield Loss("contract", where, consequence)
    if collective.unit_count != max(int(input_chunks.max()), int(output_chunks.max())):
        yield Loss("unit_count", where, "when read back, it is the largest buffer of a rank")


# Parts that a plan expresses differently: as operations and as landing ranges in scratch.
_RESTATED = ("steps", "lane", "dependencies", "source_line", "scratch_units", "extensions")


def write(algorithm: Algorithm, options: PlanWriteOptions) -> WriteResult:
    """Write an algorithm as a plan in a single file with the name "".

    The losses are those of `list_losses`. The plan is not read back or checked. There is one note
    with these numbers:

    - the maximum number of thread blocks of a rank
    - the number of messages that arrive directly at their destination
    - the number of messages that the receiver reads from its sender
    - if there are switch operations: the numbers of multicasts and of sums

    Raises `UsageError` and `InputError` as `build_draft` does, then `UsageError` as `plan_text`.
    """
    draft = build_draft(algorithm, options)
    blocks = write_thread_blocks(draft)
    content = plan_text(draft, blocks)
    losses = list(list_losses(draft))
    max_blocks = max(len(segments) for segments in blocks)
    receives = draft.work.messages.receive
    direct = int(draft.landing.is_direct[receives].sum())
    pulled = int(draft.landing.is_pulled[receives].sum())
    landed = f"{direct} of {len(receives)} messages land in place"
    landed += f", {pulled} are pulled from their senders"
    note = f"thread blocks of a rank: {max_blocks} at most; {landed}"
    switches = draft.work.switches
    if not switches.is_empty:
        counts = f"{len(switches.multicasts)} multicasts and {len(switches.totals)} sums"
        note += f"; switch channels do {counts}"
    return WriteResult([Artifact("", content)], losses, _RESTATED, [note])


def build_draft(
    algorithm: Algorithm, options: PlanWriteOptions, topology: Topology | None = None
) -> Draft:
    """Choose order of steps, thread blocks, channels and message addresses of a plan.

    The network is `topology`, else `options.topology`. If both are None, the ranks are divided into
    `options.nodes` equal hosts of consecutive ranks. Switches add messages only if the network has
    such switches, with the option `pull`, and without packets. Errors, in the order of the checks:

    1. `UsageError`: options contradict each other or the number of ranks (`_check_options`).
    2. The errors of `read_topology` for `options.topology`.
    3. `UsageError`: the topology does not have one NPU per rank.
    4. `InputError`: no plan can express the algorithm (`order_work`).
    5. `UsageError`: with packets, a message leaves its memory domain.
    6. `UsageError`: with packets, the collective is only in place, and the bytes of a chunk of
       SCRATCH differ between ranks.
    """
    _check_options(algorithm, options)
    if topology is None and options.topology is not None:
        topology = read_topology(options.topology)
    network = find_network(algorithm.num_ranks, topology, options.nodes)
    work = order_work(
        algorithm,
        network,
        has_switch_sums=options.pull and options.protocol != PACKETS,
        is_sliced=options.slices is not None,
    )
    draft = Draft.of(work, network, options)
    if not algorithm.collective.out_of_place and not draft.serves_in_place():
        message = f"packets of a {algorithm.collective.kind} in place need equal scratch everywhere"
        raise UsageError(message, cure="choose -O protocol=Simple")
    return draft


def _check_options(algorithm: Algorithm, options: PlanWriteOptions) -> None:
    """Raise `UsageError` for options that contradict each other or the number of ranks.

    Only the first contradiction is reported. The rules:

    - Without a topology, the number of nodes divides the number of ranks.
    - `max_size` is at least `min_size` (0 if not given).
    - `slices` (bytes) excludes protocol LL and `tbg` above 1, and is a multiple of 16.
    """
    rest = algorithm.num_ranks % options.nodes
    if rest and options.topology is None:
        message = f"{algorithm.num_ranks} ranks do not divide into {options.nodes} nodes"
        raise UsageError(message, cure="choose a number of nodes that divides the ranks")
    min_bytes = options.min_size or 0
    max_bytes = options.max_size
    if max_bytes is not None and max_bytes < min_bytes:
        message = f"max_size={max_bytes} is less than min_size={min_bytes}"
        raise UsageError(message, cure="choose a window of sizes that is not empty")
    if options.slices is not None:
        if options.protocol == PACKETS or options.tbg > 1:
            # The executor divides neither packets nor parts of groups into slices.
            message = "slices are for protocol=Simple and tbg=1"
            raise UsageError(message, cure="omit one of the options")
        if options.slices % ALIGNMENT:
            message = f"slices={options.slices} is no multiple of {ALIGNMENT} bytes"
            raise UsageError(message, cure="choose one, such as 64KiB")


def write_thread_blocks(draft: Draft) -> list[list[Segment]]:
    """Write the operations of all thread blocks of a draft, divided to fit the executor's tables.

    Returns a list of segments per rank, empty for a rank without steps. Each segment becomes a
    thread block of the plan. Each block of the draft is written as `tbg` parts (an option) that
    share its work. A part is one segment, or several if its operations, channels or buffers
    exceed a table of the executor. The segments of a rank are sorted by block, then by part.

    Consecutive steps that one operation executes form a group. A group is written in this order:

    1. Acquire the semaphores for which its steps wait.
    2. The operations: packets if the option `protocol` is `PACKETS`, otherwise simple copies.
    3. Release the semaphores that its steps signal.

    New semaphores and remote buffers are added to `draft`, so a draft must be written only once.
    """
    write_steps = write_packets if draft.options.protocol == PACKETS else write_simple
    blocks: list[list[Segment]] = [[] for _ in draft.tables]
    for rows in draft.rows_of_blocks():
        rank = int(draft.work.steps.rank[rows[0]])
        groups = group_steps(draft, rows)
        for part in range(draft.options.tbg):
            writer = draft.writer(rank, part)
            for group in groups:
                for row in group.rows:
                    writer.acquire(draft.numbers(draft.semaphores.acquired, row, part))
                write_steps(draft, writer, group)
                released: list[int] = []
                for row in group.rows:
                    released += draft.numbers(draft.semaphores.released, row, part)
                writer.release(released)
            writer.finish()
            blocks[rank] += writer.segments
    return blocks


UNSTATED_IN_PLACE = (CollectiveKind.GATHER, CollectiveKind.SCATTER)
"""Collectives for which a plan cannot describe which part of a buffer the other one is in place.

Plans name them custom, and the pointers of the call decide.
"""
_MOST_BYTES = 2**64 - 1
_SEPARATOR = ",\n"


def plan_text(draft: Draft, blocks: Sequence[Sequence[Segment]]) -> bytes:
    """Return the plan with the given thread blocks as JSON in UTF-8, with a line feed at the end.

    The name is COLLECTIVE_RANKS_HASH: the collective ("custom" if it has no name in plans), the
    number of ranks, and the first 16 hexadecimal digits of the SHA-256 of the text after the
    name. The hash is needed because the executor caches plans by name.

    Other members are options and fixed values, except: `inplace` is true if only calls in place
    are supported and the kind is not in `UNSTATED_IN_PLACE`. Double scratch is used only for
    packets. The largest message size is that of `_find_max_bytes`; the smallest is the option
    `min_size` (default 0), with several thread blocks (`tbg`) at least 16 bytes * `tbg` per chunk
    of the message. One object per rank follows (`_format_gpu`), in the order of the ranks. Raises
    `UsageError` if slices do not suffice for the requested `max_size`.
    """
    work = draft.work
    # All chunks of a plan have one size, also chunks of scratch.
    counts = count_chunks(draft)
    collective, options = draft.work.algorithm.collective, draft.options
    is_packets = options.protocol == PACKETS
    min_bytes = options.min_size or 0
    if options.tbg != 1:
        # With less, the executor loses data: it takes the part number modulo the number of 16-byte
        # units of a chunk (`calcOffset`).
        chunks = _count_message_chunks(draft, counts)
        min_bytes = max(min_bytes, options.tbg * ALIGNMENT * chunks)
    members = {
        "collective": NAMES.get(collective.kind, "custom"),
        "protocol": options.protocol,
        "inplace": not collective.out_of_place and collective.kind not in UNSTATED_IN_PLACE,
        "reuse_resources": False,
        "use_double_scratch_buffer": is_packets,
        "buffer_alignment": ALIGNMENT,
        "num_threads_per_block": 1024,
        "min_message_size": min_bytes,
        "max_message_size": _find_max_bytes(draft, counts),
    }
    header = json.dumps(members, separators=(",", ":"))[1:-1]
    gpus = [
        _format_gpu(rank, table, segments, counts[rank].tolist(), draft.stores)
        for rank, (table, segments) in enumerate(zip(draft.tables, blocks, strict=True))
    ]
    body = f'{header},"gpus":[\n{_SEPARATOR.join(gpus)}]'
    # 64 bits: short enough to read, and collisions are improbable.
    digest = hashlib.sha256(body.encode()).hexdigest()[:16]
    name = f"{NAMES.get(work.algorithm.collective.kind, 'custom')}_{len(gpus)}_{digest}"
    return f'{{"name":"{name}",{body}}}\n'.encode()


def _find_max_bytes(draft: Draft, counts: Int64Array) -> int:
    """Return the largest message size that the plan serves, in bytes.

    It is the option `max_size`, by default 2^64 - 1. With the option `slices` (bytes per slice) and
    at least one message, it is at most P = (65535 x slice bytes // m) x b:

    - m: chunks of the largest message
    - b: chunks of the output for an all-gather, otherwise of the input; the least of all ranks
      (`counts`, the result of `count_chunks`)

    At larger sizes the executor could not count the slices of a pipeline. Raises `UsageError` if
    `max_size` is given and above P.
    """
    work, options = draft.work, draft.options
    requested = _MOST_BYTES if options.max_size is None else options.max_size
    if options.slices is None or not len(work.messages.send):
        return requested
    chunks = int(work.steps.count[work.messages.send].max()) // work.unit
    possible = MOST_SLICES * options.slices // chunks * _count_message_chunks(draft, counts)
    if options.max_size is not None and possible < requested:
        message = (
            f"slices of {options.slices} bytes reach {possible} bytes, not max_size={requested}"
        )
        raise UsageError(message, cure="choose larger slices")
    return min(requested, possible)


def _count_message_chunks(draft: Draft, counts: Int64Array) -> int:
    """Return the number of chunks of the buffer to which message sizes refer.

    This buffer is the output in an all-gather, otherwise the input. The result is the minimum over
    ranks. `counts`: result of `count_chunks`.
    """
    # Message sizes are bytes of the input, in an all-gather of the output.
    is_gather = draft.work.algorithm.collective.kind is CollectiveKind.ALL_GATHER
    return int(counts[:, 1 if is_gather else 0].min())


def count_chunks(draft: Draft) -> Int64Array:
    """Return the chunks of input, output and scratch of every rank: int64[ranks, 3].

    A chunk is `work.unit` units, the common divisor of all ranges. Empty inputs and outputs
    count as 1 chunk, because the executor divides by both numbers. Scratch can be 0; it is
    the scratch of the algorithm and the added stages of messages.
    """
    collective, unit = draft.work.algorithm.collective, draft.work.unit
    # The executor divides by both counts, so an empty buffer is declared as one chunk.
    input_chunks = np.maximum(collective.input_units() // unit, 1)
    output_chunks = np.maximum(collective.output_units() // unit, 1)
    return np.stack([input_chunks, output_chunks, draft.landing.scratch], axis=1)


def _format_gpu(
    rank: int,
    table: RankTables,
    segments: Sequence[Segment],
    counts: Sequence[int],
    stores: SwitchStores,
) -> str:
    """Return one rank as a JSON object; every thread block begins on a new line.

    Members, in this order: `id` (the rank); the chunks of input, output and scratch from
    `counts`; `channels`; `remote_buffers` in the order of `table`; `semaphores`, which all
    begin at 0; `threadblocks`. Channels are one object per type with its peers, omitted for a
    type without peers. Then there is one switch channel per group of `table`, with the buffer
    and ranks that `stores` has for it. The id of a thread block is its position in `segments`.
    """
    channels: list[dict[str, object]] = [
        {"channel_type": channel_type, "connected_to": peers}
        for channel_type, peers in table.peers.items()
        if peers
    ]
    for group in table.groups:
        buffer, ranks = stores.groups[group]
        members = {"size": len(ranks), "ranks": ranks}
        channels.append(
            {
                "channel_type": SWITCH,
                "buffer_type": BUFFER_TYPES[buffer],
                "rank_groups": [members],
            }
        )
    buffers = [
        {"rank": peer, "type": BUFFER_TYPES[buffer], "access_channel_types": [channel_type]}
        for peer, buffer, channel_type in table.buffers
    ]
    parts = {
        "id": rank,
        "input_chunks": counts[0],
        "output_chunks": counts[1],
        "scratch_chunks": counts[2],
        "channels": channels,
        "remote_buffers": buffers,
        "semaphores": [{"init_value": 0}] * table.semaphores,
    }
    blocks = [_format_block(position, segment) for position, segment in enumerate(segments)]
    text = json.dumps(parts, separators=(",", ":"))
    return f'{text[:-1]},"threadblocks":[\n{_SEPARATOR.join(blocks)}]}}'


def _format_block(position: int, segment: Segment) -> str:
    """Return one thread block as a JSON object; each operation after the first begins a new line.

    `position`: id of the block. Members, in this order: `id`, `channels`, `remote_buffer_refs` and
    `ops`. Types of channels without ids are omitted from `channels` and `remote_buffer_refs`.

    `ops` begins with the greetings, i.e. signals to senders that the rank has begun the launch. The
    operations of the segment follow in order. `segment` is changed: its lists of channels get the
    channels of greetings that they do not have yet.
    """
    # Greetings come first: they do not wait, and they let senders begin.
    ops = [*segment.format_greetings(), *segment.ops]
    channels = [
        {"channel_type": channel_type, "channel_ids": list(ids)}
        for channel_type, ids in segment.channels.items()
        if ids
    ]
    references = [
        {"access_channel_type": channel_type, "remote_buffer_ids": list(ids)}
        for channel_type, ids in segment.buffers.items()
        if ids
    ]
    members = {"id": position, "channels": channels, "remote_buffer_refs": references}
    text = json.dumps(members, separators=(",", ":"))
    return f'{text[:-1]},"ops":[{_SEPARATOR.join(ops)}]}}'


def fit(algorithm: Algorithm, collective_bytes: int, topology: Topology) -> RuntimeFit:
    """Return the resources of the plan of an algorithm on a network, with default options.

    `topology`: decides which ranks share a host or switch. `collective_bytes`: the largest message
    size in bytes, also `max_bytes` of the result. All other numbers are maxima:

    - `blocks`, `operations`: over ranks; `block_operations`: over thread blocks
    - `channels`: over ranks, the channels to single peers plus one per switch group
    - `units`: over ranks, the chunks of INPUT or OUTPUT, whichever has more

    Raises `InputError` and `UsageError` as `build_draft`.
    """
    draft = build_draft(algorithm, PlanWriteOptions(max_size=collective_bytes), topology)
    counts = [[one.count_operations() for one in row] for row in write_thread_blocks(draft)]
    peers = [sum(map(len, table.peers.values())) + len(table.groups) for table in draft.tables]
    return RuntimeFit(
        blocks=max(map(len, counts)),
        operations=max(map(sum, counts)),
        block_operations=max((max(row, default=0) for row in counts), default=0),
        channels=max(peers),
        units=int(count_chunks(draft)[:, :2].max()),
        max_bytes=collective_bytes,
    )
