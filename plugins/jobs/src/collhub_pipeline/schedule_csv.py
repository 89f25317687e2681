"""Read and write the schedules of `torch.distributed.pipelining` as CSV.

A row is a rank, a cell an action: `STAGE TYPE [MICRO-BATCH]` such as `3F0`, or forward and backward
pass together, `(0F3;3B1)OVERLAP_F_B`. Types: F, B (= I and W), I, W; SEND_F, RECV_F, SEND_B, RECV_B
of activations and gradients; UNSHARD, RESHARD, REDUCE_GRAD of sharded parameters. `compute_only`
files have no communication and may have empty cells for idle slots. Source: PyTorch,
`torch/distributed/pipelining/schedules.py`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from collhub_pipeline.passes import Pass, PipelinePass
from collhub_pipeline.timing import Schedule, format_pass
from hub_core import InputError, Location

MAX_BYTES = 64 << 20
MAX_ACTIONS = 10**6
_MAX_NUMBER = 10**6

_ACTION = re.compile(
    r"(\d{1,7})(F|I|B|W|UNSHARD|RESHARD|REDUCE_GRAD|SEND_F|RECV_F|SEND_B|RECV_B)(\d{0,7})",
    re.ASCII,
)
_OVERLAP = re.compile(r"\(([^;()]+);([^;()]+)\)OVERLAP_F_B")
_PASSES = {
    "F": Pass.FORWARD,
    "B": Pass.BACKWARD,
    "I": Pass.INPUT_GRADIENT,
    "W": Pass.WEIGHT_GRADIENT,
}
_LETTERS = {kind: letter for letter, kind in _PASSES.items()}
_DEADLOCK_CURE = "put every action behind those that it needs"
_OF_PARAMETERS = ("UNSHARD", "RESHARD", "REDUCE_GRAD")


class Action(NamedTuple):
    """Action of a cell; `micro` is -1 for actions on parameters. `place`: row and cell, from 1."""

    stage: int
    kind: str
    micro: int
    place: tuple[int, int]

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.micro if self.micro >= 0 else ''}"


def read_schedule_file(path: str) -> Schedule:
    """Read a schedule from a CSV file of PyTorch; see `read_schedule`.

    Raises `InputError` also if the file cannot be read, is too large, or is no text.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
        return read_schedule(data.decode(), path)
    except OSError as error:
        message = f"cannot read {path}: {error.strerror}"
        raise InputError(message, cure="check the path", code="unreadable-input") from None
    except UnicodeDecodeError as error:
        location = Location(file=path, byte=error.start)
        raise InputError(
            "the file is no UTF-8 text",
            location=location,
            cure="write it with _dump_csv",
            code="pipeline-csv",
        ) from None


def read_schedule(text: str, path: str) -> Schedule:
    """Read a schedule from the text of a CSV file of PyTorch, with or without messages.

    `path`: name of the file, for errors, and the name of the schedule. Row r + 1 has the actions
    of rank r in order. Empty cells and empty rows at the end are ignored. Only passes (F, B, I, W)
    become part of the orders; messages are only checked, actions on parameters ignored. The
    number of microbatches is the highest one plus 1. In a cell `(0F3;3B1)OVERLAP_F_B`, the forward
    pass overlaps with the backward pass. Raises `InputError` (`pipeline-csv`) with file and row
    for the first of:

    1. no rows, text above 2^26 characters, above 10^6 cells, or a cell that is no action
    2. a stage on two ranks, a rank without actions, a stage below the highest without a rank
    3. more than 10^6 stages x microbatches
    4. passes that are missing, repeated or before their inputs (`_check_passes`)
    5. if the file has any message: defects of messages (`_check_messages`)
    6. a deadlock (`_check_progress`)
    """
    if len(text) > MAX_BYTES:
        raise _refuse(path, 1, f"the file is larger than {MAX_BYTES} bytes", "use a smaller step")
    if text.count(",") > MAX_ACTIONS:
        raise _refuse(path, 1, f"the file has more than {MAX_ACTIONS} cells", "use a smaller step")
    lines = text.splitlines()
    while lines and not lines[-1].strip(" ,"):
        lines.pop()
    rows = [list(_parse_row(line, number, path)) for number, line in enumerate(lines, 1)]
    if not rows:
        raise _refuse(path, 1, "the file has no rows", "write one row of actions per rank")
    device_of = _place_stages(rows, path)
    micros = max((1 + action.micro for row in rows for action in row), default=0)
    if micros * len(device_of) > MAX_ACTIONS:
        message = f"{micros} micro-batches of {len(device_of)} stages are too many"
        raise _refuse(path, 1, message, f"use at most {MAX_ACTIONS} passes")
    orders = []
    for row in rows:
        order = [
            PipelinePass(_PASSES[action.kind], 0, action.stage, action.micro)
            for action in row
            if action.kind in _PASSES
        ]
        orders.append(tuple(order))
    _check_passes(rows, micros, path)
    overlapped = frozenset(
        PipelinePass(Pass.FORWARD, 0, first.stage, first.micro)
        for row in rows
        for first, second in pairwise(row)
        if first.place == second.place
    )
    schedule = Schedule(path, (device_of,), tuple(orders), overlapped=overlapped)
    has_messages = any("SEND" in a.kind or "RECV" in a.kind for row in rows for a in row)
    if has_messages:
        _check_messages(rows, device_of, path)
    _check_progress(rows, device_of, path, has_messages=has_messages)
    return schedule


def write_schedule(schedule: Schedule, *, has_messages: bool) -> str:
    """Write a schedule as CSV in PyTorch's format: one row per device, with CRLF line breaks.

    A row has the passes of its device in order. An overlapped forward pass shares the cell with the
    next pass. With `has_messages`, each row begins with an UNSHARD per stage of the device, in the
    order of first passes. Then each round visits the devices in order. A device adds its next cell
    if all inputs are computed, also in this round. After the cell follow, per pass:

    - If the next stage (for gradients: the previous one) is on another device, a send; the row of
      that device gets a receive at the same moment. Weight gradients send nothing.
    - After the last pass of a stage: REDUCE_GRAD and RESHARD.

    Raises `InputError` (`pipeline-csv`) for two directions, for token slices, and, with messages,
    if a round adds no cell (deadlock).
    """
    if len(schedule.device_of) > 1 or schedule.slices > 1:
        kind = "two directions" if len(schedule.device_of) > 1 else "token slices"
        message = f"PyTorch's CSV cannot express {kind}"
        raise InputError(message, cure="choose a schedule without", code="pipeline-csv")
    rows: list[list[str]] = [[] for _ in schedule.orders]
    if not has_messages:
        for device, order in enumerate(schedule.orders):
            rows[device] = [_format_cell(cell) for cell in _generate_cells(schedule, order)]
        return _join(rows)
    left: dict[int, int] = defaultdict(int)
    for device, order in enumerate(schedule.orders):
        for operation in order:
            left[operation.stage] += 1
        rows[device] += [f"{stage}UNSHARD" for stage in dict.fromkeys(op.stage for op in order)]
    cells = [list(_generate_cells(schedule, order)) for order in schedule.orders]
    position = [0] * len(cells)
    device_of = schedule.device_of[0]
    done: set[str] = set()
    while waiting := [at for at, line in enumerate(cells) if position[at] < len(line)]:
        before = list(position)
        for device, line in enumerate(cells):
            if position[device] == len(line):
                continue
            cell = line[position[device]]
            if not _has_inputs(cell, device_of, done):
                continue
            position[device] += 1
            rows[device].append(_format_cell(cell))
            for operation in cell:
                done.add(format_pass(operation))
                _add_messages(operation, device_of, rows)
                left[operation.stage] -= 1
                if not left[operation.stage]:
                    rows[device] += [f"{operation.stage}REDUCE_GRAD", f"{operation.stage}RESHARD"]
        if position == before:
            waits = (f"{at} waits in {_format_cell(cells[at][position[at]])}" for at in waiting)
            message = f"the schedule deadlocks: rank {', rank '.join(waits)}"
            raise InputError(message, cure=_DEADLOCK_CURE, code="pipeline-csv")
    return _join(rows)


def _generate_cells(
    schedule: Schedule, order: Sequence[PipelinePass]
) -> Iterator[tuple[PipelinePass, ...]]:
    """Yield the passes of each cell of a row: one, or an overlapped forward and backward pass.

    `order`: passes of a device. A pass in `schedule.overlapped` shares its cell with the next pass.
    """
    at = 0
    while at < len(order):
        count = 2 if order[at] in schedule.overlapped else 1
        yield tuple(order[at : at + count])
        at += count


def _format_cell(cell: Sequence[PipelinePass]) -> str:
    texts = [format_pass(operation) for operation in cell]
    return texts[0] if len(texts) == 1 else f"({';'.join(texts)})OVERLAP_F_B"


def _join(rows: Sequence[Sequence[str]]) -> str:
    return "".join(",".join(row) + "\r\n" for row in rows)


def _has_inputs(cell: Sequence[PipelinePass], device_of: Sequence[int], done: set[str]) -> bool:
    """Return whether the inputs of all passes of a cell are computed, on any device.

    `done`: texts of the completed passes, such as `3F0`. A pass needs one pass of the stage before
    (for gradients: after), as in `_find_awaited`; without such a stage, and for weight gradients,
    it needs none.
    """
    needed = (
        _find_awaited(stage, _LETTERS[kind], micro, device_of, has_messages=False)
        for kind, _, stage, micro in cell
    )
    return all(not texts or not done.isdisjoint(texts) for texts in needed)


def _add_messages(
    operation: PipelinePass, device_of: Sequence[int], rows: Sequence[list[str]]
) -> None:
    """Append the send and the receive of the result of a pass to the rows.

    The receiver is the next stage for a forward pass, and the previous stage for a backward pass.
    If this stage exists and is on another rank, an action such as `3SEND_F0` is appended to the row
    of the sender's rank, and one such as `4RECV_F0` to that of the receiver's. A weight gradient
    has no result. `device_of`: rank of each stage.
    """
    kind, _, stage, micro = operation
    onward = stage - 1 if kind.is_backward else stage + 1
    if kind is Pass.WEIGHT_GRADIENT or not 0 <= onward < len(device_of):
        return
    if device_of[onward] != device_of[stage]:
        letter = "B" if kind.is_backward else "F"
        rows[device_of[stage]].append(f"{stage}SEND_{letter}{micro}")
        rows[device_of[onward]].append(f"{onward}RECV_{letter}{micro}")


def _parse_row(line: str, row: int, path: str) -> Iterator[Action]:
    """Yield the actions of a row in order, such as `3F0` (stage, kind, microbatch).

    Empty cells are idle and yield nothing. A cell is one action, or two overlapped ones: F, then B
    or I. Actions on parameters (UNSHARD, RESHARD, REDUCE_GRAD) have no microbatch, which becomes
    -1; all others must have one. Numbers are below 10^6. Raises `InputError` at the first cell that
    breaks one of these rules, after yielding the actions of the cells before it.
    """
    for column, cell in enumerate(line.split(","), 1):
        text = cell.strip().strip('"')
        if not text:
            continue
        overlap = _OVERLAP.fullmatch(text)
        actions = []
        for part in overlap.groups() if overlap else (text,):
            match = _ACTION.fullmatch(part)
            if match is None:
                continue
            stage, kind, micro = match.groups()
            number = int(micro) if micro else -1
            is_numbered = bool(micro) == (kind not in _OF_PARAMETERS)
            if is_numbered and max(int(stage), number) < _MAX_NUMBER:
                actions.append(Action(int(stage), kind, number, (row, column)))
        kinds = [action.kind for action in actions]
        is_valid = kinds in (["F", "B"], ["F", "I"]) if overlap else len(kinds) == 1
        if not is_valid:
            cure = "write actions such as 3F0, 3SEND_F0, 3REDUCE_GRAD or (0F3;3B1)OVERLAP_F_B"
            raise _refuse(path, row, f"cell {column}: {text[:40]!r} is no action", cure)
        yield from actions


def _place_stages(rows: Sequence[Sequence[Action]], path: str) -> tuple[int, ...]:
    """Return the rank of each stage: the position, from 0, of the row that has its actions.

    Raises `InputError` with the first row that has an action of a stage of an earlier row, or
    no actions. Then raises it, with row 1, if the stages are not 0 to the highest without gaps.
    """
    rank_of: dict[int, int] = {}
    for rank, row in enumerate(rows):
        for action in row:
            first = rank_of.setdefault(action.stage, rank)
            if first != rank:
                message = f"{action}: stage {action.stage} is on ranks {first} and {rank}"
                raise _refuse(path, rank + 1, message, "put every stage on one rank")
        if not row:
            raise _refuse(path, rank + 1, "the rank has no actions", "remove the row")
    missing = next(stage for stage in range(len(rank_of) + 1) if stage not in rank_of)
    if missing < len(rank_of):
        message = f"no rank has stage {missing}, but there is stage {max(rank_of)}"
        raise _refuse(path, 1, message, "number the stages from 0 without gaps")
    return tuple(rank_of[stage] for stage in range(missing))


def _check_passes(rows: Sequence[Sequence[Action]], micros: int, path: str) -> None:
    """Check that every stage runs the passes of `micros` microbatches once, after their inputs.

    Only F, B, I and W are passes; other actions are ignored. Rows are read one after the other.
    B and I need F of the same stage and microbatch before them, W needs I. Of every microbatch
    below `micros`, a stage needs F, and either B or both I and W, and no other pass.

    Raises `InputError` at the row of the first pass that occurs twice or lacks its input.
    Without such a pass, raises it for the lowest stage, then the lowest microbatch, with other
    passes than needed. The row is then the first with an action of this stage. Stages are
    checked up to the highest one with a pass; each of them must have an action.
    """
    needs = {"B": "F", "I": "F", "W": "I"}
    seen: set[tuple[int, str, int]] = set()
    stages = 0
    for number, row in enumerate(rows, 1):
        for action in row:
            if action.kind not in _PASSES:
                continue
            stages = max(stages, action.stage + 1)
            key = action.stage, action.kind, action.micro
            needed = needs.get(action.kind)
            place = f"cell {action.place[1]}: {action}"
            if key in seen:
                raise _refuse(path, number, f"{place} runs twice", "remove one of them")
            if needed and (action.stage, needed, action.micro) not in seen:
                missing = f"{action.stage}{needed}{action.micro}"
                message = f"{place} runs without {missing} before it"
                raise _refuse(path, number, message, f"put {missing} before it")
            seen.add(key)
    for stage in range(stages):
        for micro in range(micros):
            kinds = "".join(kind for kind in "FBIW" if (stage, kind, micro) in seen)
            if kinds not in ("FB", "FIW"):
                message = f"stage {stage} runs {kinds or 'nothing'} of micro-batch {micro}"
                cure = "run F and either B or both I and W of every micro-batch"
                number = next(a.place[0] for row in rows for a in row if a.stage == stage)
                raise _refuse(path, number, message, cure)


def _check_messages(rows: Sequence[Sequence[Action]], device_of: Sequence[int], path: str) -> None:
    """Check the sends and receives between the ranks of a pipeline schedule.

    `device_of`: rank of each stage. `rows`: actions of each rank. An action requires an earlier
    action of the same row, stage and microbatch. Raises `InputError`, with the row, for the first
    violation by row, then by action:

    1. An F whose previous stage is on another rank requires RECV_F. A B or I whose next stage is
       on another rank requires RECV_B.
    2. A SEND_F requires F. A SEND_B requires B or I.
    3. The other stage of a message exists and is on another rank.
    4. A message occurs only once in the row.

    Then each ordered pair of ranks is checked, ascending: the k-th send must match the k-th
    receive, because NCCL has no tags. The row of the error is that of the sender. It is that of the
    receiver if all sends match and receives are left over.
    """
    sent: dict[tuple[int, int], list[str]] = defaultdict(list)
    received: dict[tuple[int, int], list[str]] = defaultdict(list)
    last = len(device_of) - 1
    for rank, row in enumerate(rows):
        before: set[str] = set()
        for action in row:
            number, place = rank + 1, f"cell {action.place[1]}: {action}"
            stage, kind, micro = action.stage, action.kind, action.micro
            needed: tuple[str, ...] = ()
            if kind in ("F", "B", "I"):
                neighbour = stage - 1 if kind == "F" else stage + 1
                if 0 <= neighbour <= last and device_of[neighbour] != rank:
                    needed = (f"{stage}RECV_{'F' if kind == 'F' else 'B'}{micro}",)
            elif kind.startswith("SEND"):
                passes = "F" if kind == "SEND_F" else "BI"
                needed = tuple(f"{stage}{one}{micro}" for one in passes)
            if needed and not before.intersection(needed):
                message = f"{place} has no {' or '.join(needed)} before it"
                raise _refuse(path, number, message, "add it, or write the passes alone")
            if kind[:4] in ("SEND", "RECV"):
                is_send, letter = kind[:4] == "SEND", kind[-1]
                step = 1 if (letter == "F") == is_send else -1
                other = stage + step
                if not 0 <= other <= last or device_of[other] == rank:
                    message = f"{place} has no other rank: stage {other} is none, or on this rank"
                    raise _refuse(path, number, message, "remove it")
                if str(action) in before:
                    raise _refuse(path, number, f"{place} occurs twice", "remove one of them")
                sender, receiver = (rank, device_of[other])[:: 1 if is_send else -1]
                name = f"{letter}{micro} of stage {stage if is_send else other}"
                (sent if is_send else received)[sender, receiver].append(name)
            before.add(str(action))
    for pair in sorted({*sent, *received}):
        sends, receives = sent[pair], received[pair]
        for at, name in enumerate(sends):
            if at >= len(receives) or receives[at] != name:
                actual = f"receives {receives[at]}" if at < len(receives) else "receives nothing"
                message = f"rank {pair[0]} sends {name}, but rank {pair[1]} {actual} next from it"
                raise _refuse(path, pair[0] + 1, message, "receive in the order of the sends")
        if len(receives) > len(sends):
            message = f"rank {pair[1]} receives {receives[len(sends)]}, which rank {pair[0]} never"
            raise _refuse(path, pair[1] + 1, f"{message} sends", "add the send")


def _check_progress(
    rows: Sequence[Sequence[Action]], device_of: Sequence[int], path: str, *, has_messages: bool
) -> None:
    """Run the actions of all ranks, each rank in its order, and raise `InputError` for a deadlock.

    `rows`: actions of each rank; `device_of`: rank of each stage. F waits for F of the previous
    stage, B and I wait for B or I of the next stage, of the same microbatch. With
    `has_messages`, a pass whose other stage is on another rank waits for the send from that
    stage instead. F of the first stage, B and I of the last stage and all other actions, also
    receives, do not wait.

    The error is at the first row that cannot continue. It names, for every waiting rank, the
    action that waits and the first action that it waits for.
    """
    position = [0] * len(rows)
    done: set[str] = set()
    waits: list[str] = []
    is_moving = True
    while is_moving:
        is_moving = False
        waits = []
        for rank, row in enumerate(rows):
            while position[rank] < len(row):
                action = row[position[rank]]
                awaited = _find_awaited(
                    action.stage, action.kind, action.micro, device_of, has_messages=has_messages
                )
                if awaited and not done.intersection(awaited):
                    waits.append(f"rank {rank} waits in {action} (stage {action.stage}) for ")
                    waits[-1] += awaited[0]
                    break
                done.add(str(action))
                position[rank] += 1
                is_moving = True
    if waits:
        number = next(rank for rank, row in enumerate(rows, 1) if position[rank - 1] < len(row))
        message = f"the schedule deadlocks: {', '.join(waits)}"
        raise _refuse(path, number, message, _DEADLOCK_CURE)


def _find_awaited(
    stage: int, kind: str, micro: int, device_of: Sequence[int], *, has_messages: bool
) -> tuple[str, ...]:
    """Return the texts of the actions of which a pass needs one; () for all other actions.

    A forward pass needs the forward pass of the stage before, a backward pass or input gradient
    either of these two of the stage after, with the same microbatch. With `has_messages`, it
    needs the send (`3SEND_F0`) if that stage is on another rank. () for a pass without such a
    stage. `device_of`: rank of each stage.
    """
    if kind not in ("F", "B", "I"):
        return ()
    before = stage - 1 if kind == "F" else stage + 1
    if not 0 <= before < len(device_of):
        return ()
    if has_messages and device_of[before] != device_of[stage]:
        return (f"{before}SEND_{'F' if kind == 'F' else 'B'}{micro}",)
    return tuple(f"{before}{one}{micro}" for one in ("F" if kind == "F" else "BI"))


def _refuse(path: str, row: int, message: str, cure: str) -> InputError:
    """Create the error for a row of the file."""
    return InputError(
        message, location=Location(file=path, line=row), cure=cure, code="pipeline-csv"
    )
