"""Read the flows that SimAI writes for a replay (`flow_output.txt`) as a timing-only algorithm.

The first line is the number of flows (0 if the simulation did not finish), then one flow a line:
flow_id src dest flow_size channel_id chunk_id chunk_count conn_type start_time pg maxPacketCount
port dport, the ranks that the source receives from, the parents and the children (each as a count
and its numbers), layer_num group_type op loopstate and, in newer files, relative_delay_ns. Source:
aliyun/SimAI, `MockNcclGroup.cc` and its plan of the decoupled replay (Apache-2.0).
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple, NoReturn

from collhub_simai.flows import MAX_FLOWS, FlowMessage, build_algorithm, check_flow, refuse
from collhub_simai.plugin import SIMAI_FLOWS, SimaiFlowOptions
from hub_core.model import Algorithm, Diagnostic, InputError, JsonValue, Location, Severity
from hub_core.plugin_api import Source, decompressed

# Enum ComType of SimAI.
_OPERATIONS = ("none", "reduce-scatter", "all-gather", "all-reduce", "all-to-all")
_NUMBER = re.compile(r"[0-9]{1,18}\Z")
_MAX_LINE = 1 << 20
_NAMES = ("flow_id", "src", "dest", "flow_size", "channel_id")
# Position of the list of ranks before the flow, after conn_type, start_time and numbers of ns-3.
_LISTS = 13
_TAIL = ("layer_num", "group_type", "op", "loopstate")
_FLOW_COMPLETION = re.compile(rb"\s*[0-9a-f]{8} [0-9a-f]{8} (?:\d+ ){5}\d+(?: \d+)?\s*\Z")


class _Collective(NamedTuple):
    """Identity of a collective: numbers of its layer, group type, operation and loop state."""

    layer: int
    group_type: int
    operation: int
    loop_state: int


def read(source: Source, options: SimaiFlowOptions) -> Algorithm:
    """Read the flows of one collective as a timing-only CUSTOM algorithm whose units are bytes.

    The collective is that of the first flow; with `options.layer`, of the first flow of this layer.
    Its flows have the same layer, group type, operation and loop state (in `SIMAI_FLOWS`). A delay
    above 0 ns becomes a computation before the flow's send.

    Reports a note with the number of flows of other collectives, if any, and a warning if the first
    line announces more flows than the file has. Raises `InputError` for several files
    (`several-files`), flow completion times of ns-3 (`no-schedule`), no flow of the layer
    (`empty`), more than `MAX_FLOWS` flows, invalid lines, and the errors of `build_algorithm` (ids,
    cycles, size).
    """
    part = source.get_only_part("the text of the flows of a job")
    collective: _Collective | None = None
    flows: list[FlowMessage] = []
    num_others = 0
    with decompressed(part.stream(), part.name) as stream:
        lines = _lines(stream, part.name)
        announced = next(lines, (1, []))
        for line, words in lines:
            flow, identity = _parse_line(line, words, part.name)
            if collective is None and options.layer in (None, identity.layer):
                collective = identity
            if identity != collective:
                num_others += 1
                continue
            if len(flows) == MAX_FLOWS:
                cure = "write the flows of a smaller collective"
                _fail(part.name, line, f"more than {MAX_FLOWS} flows", cure)
            flows.append(flow)
    if collective is None or not flows:
        message = f"the file has no flows of this layer, and {num_others} others"
        cure = "give -O layer=, or a file with flows"
        raise InputError(message, location=Location(part.name, 1), cure=cure, code="empty")
    if num_others:
        message = f"{num_others} flows of other collectives are not read; see -O layer"
        source.report(Diagnostic(SIMAI_FLOWS, message, Severity.NOTE, Location(part.name)))
    announced_line, total_words = announced
    total = int(total_words[0]) if total_words else 0
    if total > len(flows) + num_others:
        message = f"{len(flows) + num_others} of {total} flows: the file is cut"
        cure = "run the simulation to its end"
        place = Location(part.name, announced_line)
        source.report(Diagnostic(SIMAI_FLOWS, message, Severity.WARNING, place, cure))
    operation = collective.operation
    facts: dict[str, JsonValue] = {
        "layer": collective.layer,
        "group_type": collective.group_type,
        "operation": _OPERATIONS[operation] if operation < len(_OPERATIONS) else str(operation),
        "loop_state": collective.loop_state,
    }
    return build_algorithm(source, flows, part.name, facts, SIMAI_FLOWS)


def _lines(stream: BinaryIO, file: str) -> Iterator[tuple[int, list[str]]]:
    """Yield (line number from 1, words): first the header of the file, then one pair per flow.

    Lines without words are skipped; an empty file yields nothing. The header depends on the
    first line with words:

    - It is one number of at most 18 digits, i.e. the total of flows: the pair has its words.
    - Otherwise the pair has no words, and the same line is yielded again as a flow.

    A byte order mark of the first line is removed, and bytes outside ASCII are replaced.
    Raises `InputError` for a line of 2^20 bytes or more. The code `no-schedule` is raised if
    the first line with words is that of a file of flow completion times of ns-3.
    """
    is_first = True
    number = 0
    while content := stream.readline(_MAX_LINE):
        number += 1
        if len(content) == _MAX_LINE:
            _fail(file, number, "the line is too long", "write the file again")
        if number == 1:
            content = content.removeprefix(codecs.BOM_UTF8)
        if is_first and _FLOW_COMPLETION.match(content):
            message = "flow completion times of ns-3 have no dependencies: they are no schedule"
            cure = (
                "read the flows that were replayed (flow_output.txt), or the workload text, and "
                "simulate it"
            )
            raise InputError(message, location=Location(file, 1), cure=cure, code="no-schedule")
        words = content.decode("ascii", "replace").split()
        if not words:
            continue
        if is_first:
            is_first = False
            has_total = len(words) == 1 and _NUMBER.match(words[0]) is not None
            yield number, (words if has_total else [])
            if has_total:
                continue
        yield number, words


def _parse_line(line: int, words: list[str], file: str) -> tuple[FlowMessage, _Collective]:
    """Parse the words of a flow's line; return the flow and the identity of its collective.

    The fields, numbers of 1 to 18 decimal digits unless they are ignored, in this order:
    - flow id, source rank, destination rank, bytes, channel
    - eight words that are ignored and not checked
    - three lists, each preceded by its length: previous ranks, parents, children; only the parents
      (ids of flows) are kept
    - layer, group type, operation and loop state, which identify the collective
    - optional: delay of the flow in ns, by default 0
    Raises `InputError` at the line for a missing or invalid number, for words after the last field,
    for a flow from a rank to itself, and for values out of range (`check_flow`).
    """
    values = [_number(words, index, name, line, file) for index, name in enumerate(_NAMES)]
    flow_id, rank, peer, size, channel = values
    position = _LISTS
    lists: list[tuple[int, ...]] = []
    for name in ("number of previous ranks", "number of parents", "number of children"):
        length = _number(words, position, name, line, file)
        if position + length >= len(words):
            message = f"the line ends within {length} entries after the {name}"
            _fail(file, line, message, "complete the line")
        entries = range(position + 1, position + 1 + length)
        lists.append(tuple(_number(words, each, "an id", line, file) for each in entries))
        position += 1 + length
    tail = [_number(words, position + index, name, line, file) for index, name in enumerate(_TAIL)]
    position += len(_TAIL)
    delay_ns = 0
    if position < len(words):
        delay_ns = _number(words, position, "relative_delay_ns", line, file)
        position += 1
    if position < len(words):
        message = f"{len(words) - position} words after the last field"
        _fail(file, line, message, "write the line again")
    parents = lists[1]
    flow = FlowMessage(line, flow_id, rank, peer, channel, size, parents, delay_ns=delay_ns)
    return check_flow(flow, file, SIMAI_FLOWS), _Collective(*tail)


def _number(words: list[str], index: int, name: str, line: int, file: str) -> int:
    """Return the word at an index of a line as a number.

    It must have 1 to 18 decimal digits, without a sign. Otherwise, and if the line has too
    few words, `InputError` is raised at `line` of `file`. `name`: meaning of the word, for
    the message.
    """
    if index >= len(words):
        message = f"the line has {len(words)} words, and {name} is missing"
        _fail(file, line, message, "complete the line")
    if not _NUMBER.match(words[index]):
        message = f"word {index + 1} ({name}) is {words[index][:40]!r}, no number"
        _fail(file, line, message, "write a decimal number")
    return int(words[index])


def _fail(file: str, line: int, message: str, cure: str) -> NoReturn:
    refuse(file, line, message, cure, SIMAI_FLOWS)
