"""Read logs of NCCL and RCCL (`NCCL_DEBUG=INFO`): communicators, rings, trees, choices, calls.

Lines of all processes may be mixed, torn, and preceded by timestamps, ranks or colours. A line
names a thread and a device, not a rank: the ranks follow from the lines of initialisation. The
lines of choices (subsystem TUNING) differ by release: 2.20 to 2.22 give numbers and a time, 2.23
also the operation, 2.24 and later names and channels. Source: NVIDIA/nccl 2.30.7 (Apache-2.0);
variants down to 2.8 and of RCCL.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from collhub_nccl_records.calls import CallRecord, Member, SkippedLine, type_of_number

_PREFIX = re.compile(
    r"(?<![\w.\-])([\w.\-]{1,255}):(\d{1,10}):(\d{1,10}) \[(-?\d{1,5})\][^\n]{0,300}?"
    r" NCCL (?:INFO|WARN)[ ]?"
)
_COLOUR = re.compile(r"\x1b\[[0-9;]{0,20}[A-Za-z]")
_INIT = re.compile(
    r"\bcomm (0x[0-9a-fA-F]{1,16}) rank (\d{1,7}) n[rR]anks (\d{1,7}) cudaDev (\d{1,5})(.*)"
)
_INIT_END = re.compile(r"- Init (?:START|COMPLETE)")
_HASH = re.compile(r"\bcommId (0x[0-9a-fA-F]{1,16})")
_SPLIT = re.compile(r"\bparent (0x[0-9a-fA-F]{1,16}).{0,60}?\bcolor (-?\d{1,11})")
_MEMBERSHIP = re.compile(
    r"\bcomm (0x[0-9a-fA-F]{1,16}) rank \d{1,7} nRanks (\d{1,7}) nNodes (\d{1,7})"
)
_COMM = re.compile(r"\bcomm (0x[0-9a-fA-F]{1,16})")
_RING = re.compile(r"Channel (\d{1,4})/(\d{1,4}) :((?:\s+\d{1,7})+)\s*(\.{3})?")
_RING_OF_RANK = re.compile(r"Ring (\d{1,4}) : (\d{1,7}) -> (\d{1,7}) -> (\d{1,7})")
_RANKS = r"(-?\d{1,7}(?:/-?\d{1,7}){0,2})"
_TREE = re.compile(rf"\[(\d{{1,4}})\] {_RANKS}->(\d{{1,7}})->{_RANKS}")
_TREE_OF_RANK = re.compile(
    r"Tree (\d{1,4}) : (-?\d{1,7}) -> (\d{1,7}) -> (-?\d{1,7}(?:/-?\d{1,7}){0,2})"
)
_CONNECTION = re.compile(
    r"Channel (\d{1,4})(?:/(\d{1,4}))? : (\d{1,7})\[\w{1,12}\] -> (\d{1,7})\[\w{1,12}\]"
    r"(?: \[(send|receive)\])? via (\S{1,120})"
)
_CHANNELS = re.compile(r"\d{1,4} coll channels,.{0,200}")
_CALL = re.compile(
    r"(\w{1,40}): opCount ([0-9a-fA-F]{1,16}) sendbuff \S{1,20} recvbuff \S{1,20}"
    r" count (\d{1,19}) datatype (-?\d{1,4}) op (-?\d{1,20}) root (-?\d{1,7})"
    r" comm (0x[0-9a-fA-F]{1,16})(?: \[nranks=(\d{1,7})\])?"
)
_CHOICE_LINE = re.compile(
    r"(?:(\w{1,40}): )?(\d{1,19}) Bytes -> Algo (\w{1,20}) proto (\w{1,20})"
    r"(?: time (\d{1,12}(?:\.\d{1,12})?)| channel\{Lo\.\.Hi\}=\{(\d{1,4})\.\.(\d{1,4})\})?"
)
# NCCL's number of an algorithm or a protocol.
_CODE = re.compile(r"\d{1,2}")
_ALGORITHMS = dict(
    enumerate(("TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT"))
)
_PROTOCOLS = dict(enumerate(("LL", "LL128", "SIMPLE")))
_MAX_ENTRIES = 1 << 20
_MAX_RANKS = 1 << 20
# Ranks in a line of a ring; further ones are not printed, older releases do not mark it with "...".
_MAX_PRINTED_RANKS = 20
_ROOTED = ("Broadcast", "Reduce", "Scatter", "Gather", "Send", "Recv")
# Rank without parent or child in a line of trees.
NO_RANK = -1


@dataclass(frozen=True, slots=True)
class _Line:
    """One message. `thread`: host, process and thread; `process`: host and process."""

    number: int
    process: str
    thread: str
    device: int
    text: str


class NcclLog:
    """Facts of a log, filled while `read` is iterated.

    `communicators`: by identity, in the order of their first line. `version`: of NCCL, "" if it is
    not logged. `lines`: number of lines of NCCL; `call_lines`: of those, lines of calls, also torn
    ones. `unassigned`: number of lines whose communicator is not known.
    """

    def __init__(self) -> None:
        self.communicators: dict[str, CommunicatorFacts] = {}
        self.version = ""
        self.lines = 0
        self.call_lines = 0
        self.unassigned = 0
        # Member by process and pointer; the communicator that a thread initialises.
        self._members: dict[tuple[str, str], Member] = {}
        self._of_thread: dict[str, CommunicatorFacts] = {}
        self._splits: dict[tuple[str, str, str], int] = {}
        self._entries = 0

    def read(
        self, lines: Iterable[tuple[int, bytes | None]], file: str
    ) -> Iterator[CallRecord | SkippedLine]:
        """Yield the calls (lines of the subsystem COLL), and findings; collect all other facts."""
        for number, content in lines:
            if content is None:
                yield SkippedLine(number, "the line is too long")
                continue
            for line in _split(number, content):
                self.lines += 1
                if ": opCount " in line.text:
                    self.call_lines += 1
                    yield from self._call(line)
                else:
                    self._add_fact(line)

    def _call(self, line: _Line) -> Iterator[CallRecord | SkippedLine]:
        match = _CALL.match(line.text)
        if match is None:
            yield SkippedLine(line.number, "the line of a call is torn or truncated")
            return
        operation, count, pointer = match[1], int(match[3]), match[7]
        member = self._members.get((line.process, pointer.lower()))
        if member is None:
            cure = "log the start of the job as well: NCCL_DEBUG_SUBSYS=INIT,COLL"
            message = f"the log has no line of initialisation of comm {pointer} in this process"
            yield SkippedLine(line.number, message, cure)
            return
        dtype, element_bytes = type_of_number(int(match[4]))
        self.communicators[member.communicator].calls += 1
        yield CallRecord(
            member,
            line.number,
            operation,
            -1,
            count * element_bytes if element_bytes > 0 else -1,
            dtype,
            int(match[6]) if operation in _ROOTED else -1,
        )

    def _add_fact(self, line: _Line) -> None:
        for words, add in _FACTS:
            if words in line.text and add(self, line):
                return

    def _add_version(self, line: _Line) -> bool:
        match = re.search(r"NCCL version (\d[\w.+\-]{1,40})", line.text)
        self.version = self.version or (match[1] if match else "")
        return match is not None

    def _add_member(self, line: _Line) -> bool:
        """Add the rank of an initialization line to its communicator; return whether it was added.

        The name is that of `_identity`. Lines of old releases (`Init START` or `Init COMPLETE`)
        without a name and without a split get `name_without_id`, also if the pointer had a name of
        this kind before, with another size. A communicator without a name ("", from earlier lines
        of rings) takes this name too, if it is the only one and has at most as many ranks.

        False for other lines, a rank that is not below the number of ranks, more than `_MAX_RANKS`
        ranks, a line without a name, and as soon as the log has `_MAX_ENTRIES` entries.
        """
        match = _INIT.search(line.text)
        if match is None or int(match[2]) >= int(match[3]) or int(match[3]) > _MAX_RANKS:
            return False
        pointer, rank, rank_count, rest = match[1].lower(), int(match[2]), int(match[3]), match[5]
        identity = self._identity(line, pointer, rest)
        known = self._members.get((line.process, pointer))
        # A pointer without an id may belong to another communicator by now.
        lacks_id = identity is None or (
            known is not None and identity == name_without_id(known.rank_count)
        )
        if lacks_id and _SPLIT.search(rest) is None and _INIT_END.search(rest):
            identity = name_without_id(rank_count)
            unnamed = self.communicators.get("")
            if unnamed and len(self.communicators) == 1 and unnamed.size() <= rank_count:
                # Old releases log the rings before the only line of initialisation.
                unnamed.identity = identity
                self.communicators[identity] = self.communicators.pop("")
        if identity is None or self._entries >= _MAX_ENTRIES:
            return False
        self._entries += 1
        facts = self.communicators.setdefault(identity, CommunicatorFacts(identity))
        facts.rank_count = rank_count
        facts.processes[rank] = line.process
        facts.devices[rank] = int(match[4])
        key = (line.process, pointer)
        self._members[key] = Member(line.process, identity, rank, rank_count)
        self._of_thread[line.thread] = self._of_thread[line.process] = facts
        return True

    def _identity(self, line: _Line, pointer: str, rest: str) -> str | None:
        """Return the name of the communicator that an initialization line creates, or None.

        `rest` is the end of the line. The first rule that applies gives the name:

        1. `rest` has a `commId`: this id in lower case
        2. `rest` lacks `parent` with `color`: the last name of `pointer` in this process, or None
           if this pointer is unknown
        3. the parent is unknown in this process: None
        4. otherwise `PARENT/COLOUR`, for example `0xab/1`; with `#k` appended if k is above 1

        `self` counts k per process, parent and colour, from 0. Rule 4 increases k by 1 if `rest`
        has `Init START`, or if k is 0. The name has the k after this increase.
        """
        if match := _HASH.search(rest):
            return match[1].lower()
        known = self._members.get((line.process, pointer))
        match = _SPLIT.search(rest)
        if match is None:
            return None if known is None else known.communicator
        parent = self._members.get((line.process, match[1].lower()))
        if parent is None:
            return None
        is_start = "Init START" in rest
        counter = (line.process, parent.communicator, match[2])
        count = self._splits.get(counter, 0)
        if is_start or count == 0:
            count = self._splits[counter] = count + 1
        return f"{parent.communicator}/{match[2]}" + (f"#{count}" if count > 1 else "")

    def _facts_of(self, line: _Line) -> CommunicatorFacts | None:
        """Return the facts of the communicator that a line of the log belongs to.

        It is the first of these that exists:

        1. The communicator of the pointer in the line, if that pointer is known in its
           process.
        2. The last communicator that the line's thread initialised.
        3. The last communicator that the line's process initialised.
        4. The only communicator of the log. If the log has none, an unnamed one is added
           to it.

        If none of these exists, the line is counted in `self.unassigned`, and the result
        is None. Each line that case 1 does not decide is counted. From the 2^20-th
        counted line on, the result for these lines is None, to limit the memory.
        """
        if match := _COMM.search(line.text):
            member = self._members.get((line.process, match[1].lower()))
            if member is not None:
                return self.communicators[member.communicator]
        facts = self._of_thread.get(line.thread) or self._of_thread.get(line.process)
        if facts is None and len(self.communicators) < 2:
            facts = next(iter(self.communicators.values()), None)
            facts = facts or self.communicators.setdefault("", CommunicatorFacts(""))
        self.unassigned += facts is None
        self._entries += 1
        return facts if self._entries < _MAX_ENTRIES else None

    def _add_place(self, line: _Line) -> bool:
        match = _MEMBERSHIP.search(line.text)
        member = self._members.get((line.process, match[1].lower())) if match else None
        if match is None or member is None:
            return False
        self.communicators[member.communicator].node_count = int(match[3])
        return True

    def _add_connection(self, line: _Line) -> bool:
        match = _CONNECTION.search(line.text)
        if match is None or (facts := self._facts_of(line)) is None:
            return False
        index = int(match[2]) if match[2] else -1
        connection = Connection(
            int(match[1]), index, int(match[3]), int(match[4]), match[6], match[5] or ""
        )
        facts.connections[connection] = facts.connections.get(connection, 0) + 1
        return True

    def _add_ring(self, line: _Line) -> bool:
        match = _RING.match(line.text)
        if match is None or (facts := self._facts_of(line)) is None:
            return False
        channel = int(match[1])
        facts.channel_count = max(facts.channel_count, int(match[2]))
        facts.rings[channel] = tuple(map(int, match[3].split()))
        facts.ring_lines[channel] = line.number
        if match[4]:
            facts.cut_rings.add(channel)
        return True

    def _add_ring_of_rank(self, line: _Line) -> bool:
        match = _RING_OF_RANK.match(line.text)
        if match is None or (facts := self._facts_of(line)) is None:
            return False
        channel = int(match[1])
        facts.successors.setdefault(channel, {})[int(match[3])] = int(match[4])
        facts.ring_lines.setdefault(channel, line.number)
        return True

    def _add_trees(self, line: _Line) -> bool:
        matches = list(_TREE.finditer(line.text))
        if not matches or (facts := self._facts_of(line)) is None:
            return False
        for match in matches:
            # NCCL 2.4 has the parent first, later releases the children.
            below, above = match[2], match[4]
            if "/" in above:
                below, above = above, below
            if "/" in above:
                continue
            node = TreeNode(int(above), _children(below))
            facts.trees.setdefault(int(match[1]), {})[int(match[3])] = node
        return True

    def _add_tree_of_rank(self, line: _Line) -> bool:
        match = _TREE_OF_RANK.match(line.text)
        if match is None or (facts := self._facts_of(line)) is None:
            return False
        node = TreeNode(int(match[2]), _children(match[4]))
        facts.trees.setdefault(int(match[1]), {})[int(match[3])] = node
        return True

    def _add_channels(self, line: _Line) -> bool:
        match = _CHANNELS.search(line.text)
        if match is None or (facts := self._facts_of(line)) is None:
            return False
        facts.channels = facts.channels or match[0].rstrip()
        return True

    def _add_choice(self, line: _Line) -> bool:
        parsed = parse_choice(line.text)
        if parsed is None or (facts := self._facts_of(line)) is None:
            return False
        facts.choices[parsed.choice] = facts.choices.get(parsed.choice, 0) + 1
        return True


# The first words of the kinds of lines, most frequent first, and the methods that read them.
_FACTS: tuple[tuple[str, Callable[[NcclLog, _Line], bool]], ...] = (
    (" Bytes -> Algo ", NcclLog._add_choice),
    (" via ", NcclLog._add_connection),
    ("Channel ", NcclLog._add_ring),
    ("Trees [", NcclLog._add_trees),
    ("Ring ", NcclLog._add_ring_of_rank),
    ("Tree ", NcclLog._add_tree_of_rank),
    (" coll channels", NcclLog._add_channels),
    (" nNodes ", NcclLog._add_place),
    (" cudaDev ", NcclLog._add_member),
    ("NCCL version ", NcclLog._add_version),
)


def _split(number: int, content: bytes) -> Iterator[_Line]:
    """Yield one message for each prefix of NCCL in a line, in order.

    Processes may write into each other's lines, so a line may have several. A message
    extends to the next prefix or the end of the line. Text before the first prefix, and
    colour codes, are dropped; bytes that are not UTF-8 are replaced. `number`: of the line,
    used for all messages. A line without a prefix yields no message.
    """
    if b" NCCL " not in content:
        return
    text = _COLOUR.sub("", content.decode("utf-8", "replace"))
    matches = list(_PREFIX.finditer(text))
    for index, match in enumerate(matches):
        end = matches[index + 1].start() if index + 1 < len(matches) else len(text)
        process = f"{match[1]}:{match[2]}"
        message = text[match.end() : end]
        yield _Line(number, process, f"{process}:{match[3]}", int(match[4]), message)


def name_without_id(rank_count: int) -> str:
    """Return the name of the communicator of a size in logs of old releases, which have no ids."""
    return f"{rank_count} ranks"


def _children(text: str) -> tuple[int, ...]:
    return tuple(rank for rank in map(int, text.split("/")) if rank != NO_RANK)


@dataclass(frozen=True, slots=True)
class TreeNode:
    """Position of one rank in the tree of a channel; `parent` is -1 for the root."""

    parent: int
    children: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Connection:
    """One connection of a channel between two ranks.

    `index`: 0 for rings and trees, 1 for send and receive, -1 in old releases. `transport`: as in
    the log, `P2P/CUMEM/read` or `NET/IB/0/GDRDMA`. `end`: `send` or `receive`, "" if the line is
    for both.
    """

    channel: int
    index: int
    source: int
    target: int
    transport: str
    end: str = ""


@dataclass(slots=True)
class CommunicatorFacts:
    """Facts of one communicator; -1 and empty containers if the log lacks them.

    `identity`: its hash, parent and colour of a split, or `name_without_id`. `processes`: host
    and process by rank; `devices`: CUDA device by rank. `rings`: ranks by channel, from the line of
    rank 0; `channel_count`: number of channels that these lines announce, 0 if there are none.
    `successors`: next rank by channel and rank, from lines of every rank. `cut_rings`: channels of
    which the line is truncated. `trees`: by channel and rank. `connections`, `choices`: with their
    number of lines. `channels`: the line with the numbers of channels.
    """

    identity: str
    rank_count: int = -1
    node_count: int = -1
    processes: dict[int, str] = field(default_factory=dict)
    devices: dict[int, int] = field(default_factory=dict)
    rings: dict[int, tuple[int, ...]] = field(default_factory=dict)
    ring_lines: dict[int, int] = field(default_factory=dict)
    channel_count: int = 0
    cut_rings: set[int] = field(default_factory=set)
    successors: dict[int, dict[int, int]] = field(default_factory=dict)
    trees: dict[int, dict[int, TreeNode]] = field(default_factory=dict)
    connections: dict[Connection, int] = field(default_factory=dict)
    choices: dict[ChoiceRecord, int] = field(default_factory=dict)
    calls: int = 0
    channels: str = ""

    def ring(self, channel: int) -> tuple[int, ...]:
        """Return the ranks on the ring of a channel, in order; () if nothing is known.

        The logged ring line is used if it was not truncated and has at least as many ranks as the
        communicator. Otherwise the ring is built from the successors that the lines of all ranks
        name: from the lowest rank with a successor, rank by rank, until the next rank is the first
        one again or unknown. If the successors form a cycle without the first rank, the walk ends
        after one rank more than there are successors, so that ranks are repeated. Without any
        successor, the logged line is used as it is.
        """
        line, successors = self.rings.get(channel, ()), self.successors.get(channel, {})
        is_complete = channel not in self.cut_rings and len(line) >= self.size()
        if line and (is_complete or not successors):
            return line
        if not successors:
            return ()
        first = min(successors)
        ring = [first]
        while len(ring) <= len(successors) and successors.get(ring[-1], first) != first:
            ring.append(successors[ring[-1]])
        return tuple(ring)

    @property
    def ring_channels(self) -> list[int]:
        """Channels with a ring, sorted."""
        return sorted({*self.rings, *self.successors})

    def transports(self) -> Counter[str]:
        """Count the connections by transport, without the device number of a network.

        `NET/IB/0` counts as `NET/IB`; names that do not begin with `NET/` are counted as they are.
        """
        counts: Counter[str] = Counter()
        for connection, count in self.connections.items():
            kind = connection.transport.split("/")
            counts["/".join(kind[:2] if kind[0] == "NET" else kind)] += count
        return counts

    def size(self) -> int:
        """Return the number of ranks: as logged, else the highest rank that occurs plus 1.

        A logged number of 0 or less counts as missing; one above 0 has priority over the ranks.
        Ranks occur in rings, in trees as nodes, parents and children, in processes, and in pairs
        of a rank and its successor. The result is 0 without any.
        """
        if self.rank_count > 0:
            return self.rank_count
        ranks = {rank for ring in self.rings.values() for rank in ring}
        ranks |= {rank for tree in self.trees.values() for rank in tree} | set(self.processes)
        for tree in self.trees.values():
            ranks |= {rank for node in tree.values() for rank in (node.parent, *node.children)}
        for successors in self.successors.values():
            ranks |= {*successors, *successors.values()}
        return max(ranks, default=-1) + 1


def describe_ring_defect(facts: CommunicatorFacts, channel: int) -> str:
    """Return why the ring of a channel does not contain each rank once; "" if it does.

    The ring is `facts.ring(channel)`, the ranks are 0 to `facts.size()` - 1. Checked in this
    order:

    - the logged line is truncated, and the log has no successors (GRAPH lines) of this channel
    - a rank occurs twice or more; the first one in the order of the ring is named
    - a rank is missing; the lowest one is named. If the ring has exactly 20 ranks (NCCL prints
      no more) and the log has no successors of this channel, the reason is the limit of NCCL
      instead.
    - a rank is not below the size; the lowest one is named

    A channel without a ring lacks rank 0; with size 0 it has no defect.
    """
    ring, size = facts.ring(channel), facts.size()
    if channel in facts.cut_rings and channel not in facts.successors:
        return "the line is truncated, and the log has no GRAPH lines of the ring"
    if twice := [rank for rank, count in Counter(ring).items() if count > 1]:
        return f"rank {twice[0]} occurs twice"
    if (missing := _find_missing_rank(ring, size)) is not None:
        if len(ring) == _MAX_PRINTED_RANKS and channel not in facts.successors:
            return f"NCCL prints {len(ring)} ranks, and the log has no GRAPH lines of the ring"
        return f"rank {missing} of {size} is missing"
    if excess_ranks := sorted(rank for rank in ring if not 0 <= rank < size):
        return f"rank {excess_ranks[0]} is not below {size}"
    return ""


def _find_missing_rank(ranks: Iterable[int], size: int) -> int | None:
    """Return the lowest of the ranks 0 to `size` - 1 that is not in `ranks`, None if all are.

    The memory depends on the number of `ranks`, not on `size`: a log may name any rank.
    """
    present = set(ranks)
    return next((rank for rank in range(size) if rank not in present), None)


def describe_tree_defect(tree: Mapping[int, TreeNode], size: int) -> str:
    """Return the first reason why the nodes are no tree over `size` ranks; "" if they are one.

    Checked in this order:

    - a rank from 0 to `size` - 1 has no node; the lowest one is named
    - a rank is not from 0 to `size` - 1; the lowest one is named
    - the number of roots (nodes with parent -1) is not 1; only the number is given
    - a child does not name the rank as its parent, or a parent does not name the rank as a
      child. Ranks are checked in ascending order, first their children, then their parent.
    - the root does not reach a rank, which is thus in a cycle; the lowest one is named

    Without nodes and with `size` 0, the reason is that 0 ranks have no parent.
    """
    if (missing := _find_missing_rank(tree, size)) is not None:
        return f"the line of rank {missing} is missing"
    if excess_ranks := sorted(rank for rank in tree if not 0 <= rank < size):
        return f"rank {excess_ranks[0]} is not below {size}"
    roots = [rank for rank, node in sorted(tree.items()) if node.parent == NO_RANK]
    if len(roots) != 1:
        return f"{len(roots)} ranks have no parent"
    for rank, node in sorted(tree.items()):
        for child in node.children:
            if child not in tree or tree[child].parent != rank:
                return f"rank {rank} has the child {child}, whose parent is another rank"
        parent = tree.get(node.parent)
        if node.parent != NO_RANK and (parent is None or rank not in parent.children):
            return f"rank {rank} has the parent {node.parent}, of which it is no child"
    reached = {roots[0]}
    level = [roots[0]]
    while level:
        level = [child for rank in level for child in tree[rank].children if child not in reached]
        reached.update(level)
    if len(reached) < size:
        return f"rank {min(set(tree) - reached)} is in a cycle"
    return ""


@dataclass(frozen=True, slots=True)
class ChoiceRecord:
    """Algorithm and protocol that NCCL chose for one call.

    `operation` is "" in releases that do not name it; `bytes`: as logged. Names are in upper case:
    `RING`, `SIMPLE`; unknown numbers are kept.
    """

    operation: str
    bytes: int
    algorithm: str
    protocol: str


@dataclass(frozen=True, slots=True)
class ChoiceLine:
    """One logged choice. `time_us`: of lines with numbers; `channels`: of lines with names.

    `time_us` is None and `channels` is 0 if the line lacks them. The channels of a damaged line may
    be 0 or negative.
    """

    choice: ChoiceRecord
    time_us: float | None
    channels: int


def parse_choice(text: str) -> ChoiceLine | None:
    """Parse a message with the algorithm that NCCL chose; None if `text` does not begin with one.

    There are two forms:

    - Numbers: `8 Bytes -> Algo 1 proto 2 time 5.1`. Algorithm and protocol are both numbers of at
      most two digits. They are converted to names; a number without a name stays as text.
      `time_us` is the time in us, None if the message lacks it. `channels` is 0.
    - Names: `AllReduce: 8 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..3}`. `time_us` is None.
      `channels` is Hi - Lo + 1, 0 if the message lacks them.

    Both forms may have an operation before the size; it is "" if missing, and keeps its case.
    Algorithm and protocol are converted to upper case.
    """
    match = _CHOICE_LINE.match(text)
    if match is None:
        return None
    operation, size, algorithm, protocol, time_us, first, last = match.groups()
    is_numbered = all(map(_CODE.fullmatch, (algorithm, protocol)))
    if is_numbered:
        algorithm = _ALGORITHMS.get(int(algorithm), algorithm)
        protocol = _PROTOCOLS.get(int(protocol), protocol)
    choice = ChoiceRecord(operation or "", int(size), algorithm.upper(), protocol.upper())
    return ChoiceLine(
        choice,
        float(time_us) if time_us and is_numbered else None,
        int(last) - int(first) + 1 if first and not is_numbered else 0,
    )
