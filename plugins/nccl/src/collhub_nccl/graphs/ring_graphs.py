"""Ring graphs of one node: channels, devices and attributes of a file, and rings of algorithms.

An algorithm is executed on numbers of parts instead of data, so that every message shows the parts
that it moves. A part uses a ring if its messages give every rank at most one successor, and these
form one cycle over all ranks, possibly without one link. Cost: linear in the blocks moved. Source
of the file: `src/graph/search.cc`, and the parser in `src/graph/xml.cc`, of NCCL 2.30.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import gcd
from xml.sax.saxutils import quoteattr

import numpy as np
from collhub_execution import LevelledProgram, RecordKind, levelled_program

from hub_core.columns import Int64Array, csr
from hub_core.model import Algorithm, Buffer, Collective, CollectiveKind, InputError, JsonValue

# NCCL_TOPO_PATTERN_RING
RING_PATTERN = 4
# NCCL has arrays for 64 channels and doubles those of the file. It reads more without a check.
MAX_CHANNELS = 32
# NCCL_TOPO_MAX_NODES: GPUs, network devices and switches of one node.
MAX_GPUS = 256
EXTENSION = "nccl-graph"
"""Key of `Algorithm.extensions` for the parts of a file that an algorithm does not express."""

# NCCL requires all of these except `latencyinter`; it reads speeds in GB/s for each channel.
DEFAULT_ATTRIBUTES: Mapping[str, str] = {
    "crossnic": "0",
    "speedintra": "20",
    "speedinter": "20",
    "latencyinter": "0",
    "typeintra": "NVL",
    "typeinter": "PIX",
    "samechannels": "0",
}
_NUMBER = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")
_PATH_TYPE = re.compile(r"[A-Z0-9]{1,8}")

Ring = tuple[int, ...]
"""GPUs in the order in which data passes them; the last one sends to the first."""


@dataclass(frozen=True, slots=True)
class RingGraph:
    """The rings of one node.

    `channels`: the ring of every channel, GPUs as positions 0..n-1; `devices[i]`: device number of
    GPU i; `ranks[i]`: its rank in the communicator, empty if the file has none; `nets`: per channel
    the devices through which data enters and leaves the node, empty for a single node;
    `attributes`: those of DEFAULT_ATTRIBUTES, as written.
    """

    channels: tuple[Ring, ...]
    devices: tuple[int, ...]
    ranks: tuple[int, ...] = ()
    nets: tuple[tuple[int, int], ...] = ()
    attributes: Mapping[str, str] = field(default_factory=lambda: DEFAULT_ATTRIBUTES)

    def as_xml(self) -> str:
        """Return the graph as XML text in the form of NCCL's own files, with a final line feed.

        There is no XML declaration, and each tag has its own line. <graphs version="1"> has one
        <graph>, and this has one <channel> per channel, in order. A channel lists the first network
        device, the GPUs in the order of the ring, and the second network device. Devices are
        hexadecimal, ranks are decimal. Ranks and network devices are left out if the graph has
        none.

        The attributes of <graph> are id (0), pattern (4, a ring), crossnic (empty) and nchannels
        (the number of channels), then the remaining ones of `attributes`. A value in `attributes`
        replaces the one of the same name, at its position. Attribute values are quoted for XML.
        """
        # The order of NCCL's own dumps.
        attributes = {
            "id": "0",
            "pattern": str(RING_PATTERN),
            "crossnic": "",
            "nchannels": str(len(self.channels)),
            **self.attributes,
        }
        graph = " ".join(f"{name}={quoteattr(value)}" for name, value in attributes.items())
        lines = ['<graphs version="1">', f"  <graph {graph}>"]
        for number, channel in enumerate(self.channels):
            nets = [f'      <net dev="{net:x}"/>' for net in self.nets[number]] if self.nets else []
            lines += ["    <channel>", *nets[:1]]
            for gpu in channel:
                rank = f' rank="{self.ranks[gpu]}"' if self.ranks else ""
                lines.append(f'      <gpu dev="{self.devices[gpu]:x}"{rank}/>')
            lines += [*nets[1:], "    </channel>"]
        return "\n".join([*lines, "  </graph>", "</graphs>", ""])

    def as_json(self) -> dict[str, JsonValue]:
        """Return the properties of the graph that its rings and their shares do not determine.

        The share of a ring is its number of channels; equal up to rotation counts as one ring. A
        key is present only if its value differs from the default. Without keys the result is {}.

        - `channels`: GPUs of each channel. Default: the shortest list with the same ratios of
          shares. In the default, each ring begins at GPU 0 (if it has it), channels of a ring are
          adjacent, and rings are in the order of their first channel.
        - `devices`: list of devices; default 0, 1, 2 ...
        - `ranks`: list of ranks; default empty.
        - `nets`: two devices per channel; default empty.
        - `attributes`: only those whose value differs from `DEFAULT_ATTRIBUTES`.
        """
        derived = derived_channels(Counter(map(from_first_gpu, self.channels)))
        parts: dict[str, JsonValue] = {}
        if self.channels != derived:
            parts["channels"] = [list(ring) for ring in self.channels]
        if self.devices != tuple(range(len(self.devices))):
            parts["devices"] = list(self.devices)
        if self.ranks:
            parts["ranks"] = list(self.ranks)
        if self.nets:
            parts["nets"] = [list(pair) for pair in self.nets]
        changed = {
            name: value
            for name, value in self.attributes.items()
            if value != DEFAULT_ATTRIBUTES.get(name)
        }
        if changed:
            parts["attributes"] = dict(changed)
        return parts


def restored_graph(rings: Mapping[Ring, int], extension: JsonValue) -> RingGraph:
    """Build the graph of some rings, with those properties of an extension that fit them.

    `rings`: share of the data by ring, at least one ring (`StopIteration` otherwise), each from
    GPU 0 on. The length of the first one is the number of GPUs, n. `extension`: any JSON value;
    usually the result of `as_json`. A key that is missing or does not fit gets its default,
    because NCCL would misread it. All other keys are ignored; without an object all defaults are
    used.

    - `channels`: at most 32 lists of GPUs with the same rings in the same ratio of shares. The
      rotation and the order of the lists are kept. Default: `derived_channels(rings)`.
    - `devices`: n distinct integers from 0 to 2^63 - 1. Default: 0, 1, 2 and so on.
    - `ranks`: n distinct integers as for `devices`. Default: none.
    - `nets`: one pair of such integers per channel of the result. Default: none.
    - `attributes`: an object. Each name of `DEFAULT_ATTRIBUTES` gets its value here, converted to
      text, if that is valid (`is_attribute`), otherwise its default.
    """
    gpus = len(next(iter(rings)))
    stated = extension if isinstance(extension, dict) else {}
    channels = derived_channels(rings)
    lists = tuple(_to_lists(stated.get("channels")))
    if lists and Counter(derived_channels(Counter(map(from_first_gpu, lists)))) == Counter(
        channels
    ):
        channels = lists
    devices = next(iter(_to_lists([stated.get("devices")])), ())
    ranks = next(iter(_to_lists([stated.get("ranks")])), ())
    nets = _to_lists(stated.get("nets"))
    are_pairs = len(nets) == len(channels) and all(len(pair) == 2 for pair in nets)
    attributes = stated.get("attributes")
    texts = attributes if isinstance(attributes, dict) else {}
    return RingGraph(
        channels,
        devices if _are_distinct(devices, gpus) else tuple(range(gpus)),
        ranks if _are_distinct(ranks, gpus) else (),
        tuple((pair[0], pair[1]) for pair in nets) if are_pairs else (),
        {
            name: text if is_attribute(name, text := str(texts.get(name, ""))) else default
            for name, default in DEFAULT_ATTRIBUTES.items()
        },
    )


def is_attribute(name: str, text: str) -> bool:
    """Return whether a text has a valid form for an attribute of a graph.

    Attributes whose name begins with "type" need a kind of path: 1 to 8 upper-case letters
    or digits, such as NVL. All others need a number without sign: 1 to 9 digits, after
    which a point and 1 to 9 digits are permitted. Whether NCCL knows the path is not
    checked.
    """
    pattern = _PATH_TYPE if name.startswith("type") else _NUMBER
    return pattern.fullmatch(text) is not None


def derived_channels(rings: Mapping[Ring, int]) -> tuple[Ring, ...]:
    """Return the shortest list of channels in which the rings have their shares of the data.

    `rings`: share of each ring, a positive integer in any unit. NCCL sends the same amount
    over every channel, so a ring with twice the share has twice as many channels. The
    channels of a ring are adjacent; rings keep their order. Without rings the result is
    empty.
    """
    unit = gcd(*rings.values())
    return tuple(ring for ring, share in rings.items() for _ in range(share // unit))


def from_first_gpu(ring: Sequence[int]) -> Ring:
    """Return the ring rotated so that it starts at GPU 0; unchanged if it has no GPU 0.

    Rings that are equal up to rotation become equal tuples.
    """
    start = ring.index(0) if 0 in ring else 0
    return (*ring[start:], *ring[:start])


def _to_lists(value: JsonValue) -> list[Ring]:
    """Return lists of numbers as tuples; [] unless the value has exactly that form.

    The value must be a list of at most `MAX_CHANNELS` (32) rows. Every row must be a list of 1
    to `MAX_GPUS` (256) integers from 0 to 2^63 - 1; booleans are not integers here. An empty
    list gives [] too, and one wrong row suffices for [].
    """
    if not isinstance(value, list) or len(value) > MAX_CHANNELS:
        return []
    rows = [row for row in value if isinstance(row, list) and 0 < len(row) <= MAX_GPUS]
    numbers = [tuple(n for n in row if type(n) is int and 0 <= n < 1 << 63) for row in rows]
    is_complete = len(rows) == len(value) and [*map(len, rows)] == [*map(len, numbers)]
    return numbers if is_complete else []


def _are_distinct(numbers: Sequence[int], count: int) -> bool:
    return len(numbers) == len(set(numbers)) == count


RankPair = tuple[int, int]

# Number of links that a part passes, as a multiple of n - 1: an all-reduce passes it once to reduce
# it and once to distribute the result.
_PASSES = {
    CollectiveKind.ALL_REDUCE: 2,
    CollectiveKind.ALL_GATHER: 1,
    CollectiveKind.REDUCE_SCATTER: 1,
    CollectiveKind.BROADCAST: 1,
    CollectiveKind.REDUCE: 1,
}
RING_KINDS = tuple(_PASSES)
# Content of memory without data.
_NOTHING = -1


def rings_of(algorithm: Algorithm) -> dict[Ring, int]:
    """Return the rings over which an algorithm sends, with the number of parts on each.

    The data are divided into parts (the blocks of `levelled_program`), and every part is
    followed through all messages. A ring lists the ranks in the order in which a part passes
    them, from rank 0 on. A path through all ranks is closed by its missing link. Rings are in
    the order of their first part.

    Raises the errors of `levelled_program`. Raises `InputError` (`not-rings`) in these cases:

    - There are fewer than 2 ranks, or the kind is not in `RING_KINDS`.
    - A part has another number of messages than n - 1 for n ranks, or 2 (n - 1) in an all-reduce.
    - The links of a part are neither a path through all ranks nor a cycle through all ranks.
    - No rank sends anything, or a rank reduces a part with a different part.
    """
    kind, n = algorithm.collective.kind, algorithm.num_ranks
    if kind not in _PASSES or n < 2:
        raise _build_refusal(
            f"NCCL has no rings for {kind} of {n} ranks; it has for {', '.join(RING_KINDS)}"
        )
    program = levelled_program(algorithm, not algorithm.collective.out_of_place)
    collective = replace(algorithm.collective, unit_count=program.unit_count)
    expected = _PASSES[kind] * (n - 1)
    part_counts: Counter[Ring] = Counter()
    for part, links in enumerate(_iterate_links_by_part(collective, program)):
        if len(links) != expected:
            raise _build_refusal(
                f"part {part} passes over {len(links)} links; "
                f"in a ring {kind} of {n} ranks it passes {expected}"
            )
        part_counts[_find_ring(part, n, set(links))] += 1
    return dict(part_counts)


def _build_refusal(reason: str) -> InputError:
    return InputError(
        f"not a set of rings: {reason}",
        cure="write it as a program: --to nccl",
        code="not-rings",
    )


def _find_ring(part: int, n: int, links: Iterable[RankPair]) -> Ring:
    """Find the ring along which a part of the data is sent, from the (source, target) pairs.

    The pairs, `links`, are those of the part's messages. The ring starts at rank 0, so equal rings
    are equal tuples. A path over all `n` ranks is closed by its missing link. Raises `InputError`
    (`not-rings`) if the links are not one cycle through all ranks, and if two have the same source
    or the same target.
    """
    # By sending rank, the rank to which it sends the part.
    successor: dict[int, int] = {}
    for source, target in sorted(links):
        if source in successor:
            raise _build_refusal(
                f"rank {source} sends part {part} to rank {successor[source]} and to rank {target}"
            )
        successor[source] = target
    targets = Counter(successor.values())
    if len(targets) < len(successor):
        twice, _ = targets.most_common(1)[0]
        raise _build_refusal(f"rank {twice} receives part {part} from more than one rank")
    if len(successor) == n - 1:
        # A path over all ranks: the missing link closes the ring.
        (end,) = set(range(n)) - set(successor)
        (start,) = set(range(n)) - set(successor.values())
        successor[end] = start
    # Every ring contains rank 0; starting there makes equal rings equal.
    ring = [0]
    # At most n ranks, because a cycle without rank 0 would never terminate.
    while len(ring) <= n and successor.get(ring[-1], 0) != 0:
        ring.append(successor[ring[-1]])
    if len(ring) != n:
        raise _build_refusal(f"part {part} does not pass all {n} ranks in one cycle")
    return tuple(ring)


def _iterate_links_by_part(
    collective: Collective, program: LevelledProgram
) -> Iterator[list[RankPair]]:
    """Execute a program on numbers of parts; yield the (source, target) ranks of each part.

    Parts are the blocks of the full buffer, numbered from 0. One list per part is yielded, in this
    order. It has one pair for each time that a message carries the part, in the order of
    `_execute_messages`; it is empty for a part that no message carries. Copies within a rank move
    parts, but give no pairs.

    Raises `InputError` with the code `not-rings` in two cases: no rank sends anything, or a rank
    reduces a block with a block of a different part. Raises `ValueError` if a message has a block
    of undefined memory.
    """
    moved = list(_execute_messages(collective, program))
    if not moved:
        raise _build_refusal("no rank sends anything")
    # One row for each block of each message.
    part = np.concatenate([parts for parts, _, _ in moved])
    lengths = [len(parts) for parts, _, _ in moved]
    sources = np.repeat([source for _, source, _ in moved], lengths)
    targets = np.repeat([target for _, _, target in moved], lengths)
    indptr, row_of = csr(part, np.arange(len(part)), program.unit_count)
    for first, last in pairwise(indptr.tolist()):
        rows = row_of[first:last]
        yield list(zip(sources[rows].tolist(), targets[rows].tolist(), strict=True))


def _execute_messages(
    collective: Collective, program: LevelledProgram
) -> Iterator[tuple[Int64Array, int, int]]:
    """Execute a program on numbers of parts; yield (parts, source, target) for every message.

    The memory of all ranks has one number per block instead of data: at first, the number of its
    part of the full buffer for a defined INPUT (in place it may share memory with OUTPUT), -1 for
    all other blocks. Block i of an INPUT of n blocks is part rank * n + i in an all-gather, whose
    full buffer is the output, else part i. A message or a copy overwrites its target with these
    numbers. A REDUCE requires that target and source have equal numbers, and raises `InputError`
    (`not-rings`) if one differs.

    Records are executed by ascending level; within a level messages come before local work,
    then in the order of the program. Only messages are yielded. `parts`: int64, a copy of
    the received numbers, one per block. `source` and `target` are ranks.
    """
    layout = program.layout
    memory = np.full(layout.total, _NOTHING, np.int64)
    for rank in np.flatnonzero(collective.defined_inputs()).tolist():
        size = int(layout.size[rank, Buffer.INPUT])
        base = int(layout.base[rank, Buffer.INPUT])
        shift = rank * size if collective.kind is CollectiveKind.ALL_GATHER else 0
        memory[base : base + size] = shift + np.arange(size)
    read, written = program.addresses()
    # The source of a receive is that of its send.
    sends, receives = program.message_ends()
    source_addresses = read.copy()
    source_addresses[receives] = read[sends]
    source, target = source_addresses.tolist(), written.tolist()
    # Lists, because elements of columns cost more, and some columns are computed at each access.
    counts, kinds = program.count.tolist(), program.kind.tolist()
    ranks, peers = program.rank.tolist(), program.peer.tolist()
    # By level; in a level, messages before local records.
    rows = np.flatnonzero(program.kind != RecordKind.SEND)
    order = np.lexsort((rows, program.is_local[rows], program.level[rows]))
    in_order: list[int] = rows[order].tolist()
    for row in in_order:
        count, kind = counts[row], kinds[row]
        rank, peer = ranks[row], peers[row]
        # A copy within one rank may overlap its source.
        parts = memory[source[row] : source[row] + count].copy()
        target_parts = memory[target[row] : target[row] + count]
        # A sum of different parts never belongs to the result of these collectives.
        if kind == RecordKind.REDUCE and not np.array_equal(target_parts, parts):
            raise _build_refusal(f"rank {rank} reduces different parts of the buffer together")
        if kind == RecordKind.RECV:
            yield parts, peer, rank
        target_parts[:] = parts
