"""Turn the values of one Flight Recorder dump into columns; every field is checked.

Format: `FlightRecorder.hpp` and `FlightRecorderDetail.hpp` of PyTorch (BSD-3), versions 1.1 to
2.10. Fields are read by key, not by version. Relatives with the same shape: torch_npu, torchcomms.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NoReturn, cast

from collhub_waits.records import (
    Dump,
    Frame,
    Group,
    GroupStatus,
    OperationState,
    RecordedCall,
    RecordedOperation,
    Shapes,
    SharedTables,
    to_columns,
)

from hub_core.model import InputError, Location

MAX_TENSORS = 4096
MAX_DIMENSIONS = 64
MAX_RANK = 1 << 24
MAX_GROUP_RANKS = 1 << 18
MAX_RANKS_OF_GROUPS = 1 << 21
# Tensors of all entries together, and innermost frames per entry that are read.
MAX_TENSORS_PER_DUMP = 1 << 22
MAX_FRAMES = 32
KNOWN_MAJOR_VERSIONS = ("1", "2")

_STATES = {state.name.lower(): state for state in OperationState}
_MESSAGE = re.compile(r"(send|recv) (\d{1,8})(->|<-)(\d{1,8})\Z")
_INT64 = 1 << 63
_LIST = frozenset({list})
_CALL_KEYS = ("input_sizes", "output_sizes", "input_dtypes", "output_dtypes")
_TIME_KEYS = (
    "time_created_ns",
    "time_discovered_started_ns",
    "time_discovered_completed_ns",
    "timeout_ms",
)
_INTEGER_KEYS = ("record_id", "pg_id", "collective_seq_id", "p2p_seq_id", *_TIME_KEYS)


def parse_dump(root: object, rank: int, file: str, tables: SharedTables) -> Dump:
    """Convert the value of a Flight Recorder file to the dump of a rank.

    The operations are in the order of the entries. `root`: unpickled or JSON value of the file;
    missing members count as empty. `rank`: rank of the job that wrote the file. `file`: its name,
    for messages. New calls, stacks and groups are added to `tables`, which all dumps share.

    Raises `InputError` (`invalid-dump`) if `root` is no dump: no dict, or with none of the keys
    `entries`, `version` and `pg_config`. The same error is raised for values of a wrong type or
    range, in entries with the position from 0 and the key.
    """
    if not isinstance(root, dict) or not ({"entries", "version", "pg_config"} & set(root)):
        _fail(
            file,
            "this is not a Flight Recorder dump: it has no 'entries' and no 'version'",
            cure="see TORCH_FR_DUMP_TEMP_FILE for the location of the dumps",
        )
    return _DumpParser(root, rank, file, tables).parse()


class _DumpParser:
    """State of the parsing of one dump: its groups, and operations by group and sequence."""

    def __init__(
        self, root: Mapping[object, object], rank: int, file: str, tables: SharedTables
    ) -> None:
        self.root = root
        self.rank = rank
        self.file = file
        self.tables = tables
        self.notes: list[str] = []
        self.known_shapes: dict[Shapes, Shapes] = {}
        self.stack_of: dict[tuple[int, ...], int] = {}
        self.known_calls: dict[tuple[object, ...], tuple[RecordedCall, int]] = {}
        self.tensors_left = MAX_TENSORS_PER_DUMP
        self.operations: list[RecordedOperation] = []
        # Integer fields of all entries, by key.
        self.numbers: dict[str, list[int]] = {}
        # The last record number by operation.
        self.last_records: list[int] = []
        self.row_of: dict[tuple[int, bool, int], int] = {}
        self.group_of: dict[tuple[str, str], int] = {}
        self.group_of_id: dict[int, int] = {}
        # Counted sequence numbers by the recorded number, for every group and kind.
        self.old_numbers: dict[tuple[int, bool], dict[int, int]] = {}

    def parse(self) -> Dump:
        """Convert the file to a `Dump` of its operations, in the order of entries, and its groups.

        - `version`: "" if missing. Another major version than 1 and 2 adds a note and is read.
        - Without `entries` there are no operations; groups and status are read.
        - `groups`: numbers of the groups of the entries and of `pg_config`, also without this rank.
        - `is_overwritten`: the `record_id` of the first entry is above 0.
        - `has_completed`: some entry is completed. If none is, `complete_batches` is called.
        - `records_starts`: an operation then has a start time or the state started.
        - `has_gaps`: `has_completed` is False, and the record numbers are not 0, 1, 2 and so on.

        Adds new groups, calls and stacks to the shared tables. Raises `InputError`
        (`invalid-dump`) for a wrong type or range in a member that is read, and if two entries are
        one Python object (pickle permits it). Errors in entries name position (from 0) and key.
        """
        version = self.root.get("version", "")
        if not isinstance(version, str):
            _fail(self.file, f"version {version!r:.40} is not a text")
        if version and version.split(".")[0] not in KNOWN_MAJOR_VERSIONS:
            self.notes.append(f"{self.file}: version {version[:40]!r} is not known, read by key")
        members = self.parse_groups()
        entries = self.root.get("entries") or []
        if not isinstance(entries, list):
            _fail(self.file, "'entries' is not a list")
        if len({id(entry) for entry in entries}) != len(entries):
            _fail(self.file, "one object occurs as several entries")
        self.members = members
        for position, entry in enumerate(entries):
            if not isinstance(entry, dict):
                self.fail(position, f"it is a {type(entry).__name__}, not an object")
        self.numbers = {key: self.parse_integers(entries, key) for key in _INTEGER_KEYS}
        self.is_overwritten = bool(entries) and self.numbers["record_id"][0] > 0
        for position, entry in enumerate(entries):
            self.add_entry(position, entry)
        has_completed = any(
            operation.state == OperationState.COMPLETED for operation in self.operations
        )
        if not has_completed:
            self.complete_batches()
        status = self.parse_status()
        first, count = self.numbers["record_id"][:1], len(entries)
        is_gapless = not first or self.numbers["record_id"] == list(range(count))
        groups = {
            self.find_group(name, description) for name, (_, description, _) in members.items()
        }
        return Dump(
            self.rank,
            self.file,
            version,
            to_columns(self.operations),
            frozenset(groups | set(self.group_of.values())),
            status,
            self.is_overwritten,
            has_completed,
            any(
                operation.started_ns or operation.state == OperationState.STARTED
                for operation in self.operations
            ),
            tuple(self.notes),
            not has_completed and not is_gapless,
        )

    def complete_batches(self) -> None:
        """Set the state of incomplete batches of messages to completed, in `self.operations`.

        An operation of messages (`is_p2p`) is such a batch if all of these conditions hold:

        - It has several calls, or its last record number is below the highest one of the dump.
        - Its last call is not `coalesced`.
        - No operation has the next record number as its last one.

        Other fields and operations are not changed. Reason: a dump of active operations only
        (TORCH_INCLUDE_ONLY_ACTIVE) omits the completed last entry `coalesced` of a batch, whose
        other entries have no state. The caller decides whether a dump is of this kind.
        """
        records = set(self.last_records)
        newest = max(records, default=0)
        for row, (operation, record) in enumerate(
            zip(self.operations, self.last_records, strict=True)
        ):
            calls = self.tables.calls[operation.calls]
            is_batch = len(calls) > 1 or record < newest
            has_end = calls[-1].operation == "coalesced" or record + 1 in records
            if operation.is_p2p and is_batch and not has_end:
                self.operations[row] = operation._replace(state=OperationState.COMPLETED)

    def parse_groups(self) -> dict[str, tuple[tuple[int, ...], str, int]]:
        """Return ranks, description and ordinal of each process group of `pg_config`, by its name.

        `pg_config` is an object by name, or a list whose positions from 0 are the names. A group is
        an object with `ranks` and `desc` (default `undefined`), or only the ranks (see
        `parse_ranks`). Any empty or absent `pg_config` gives {}. A group is dropped if its name is
        "", or its ranks are absent or empty; the text "[]" is not empty and gives ().

        Names of at most 18 decimal digits come first, by value, then all others as texts. Groups
        with equal sets of ranks and equal description get the ordinals 0, 1, 2 in this order.

        Raises `InputError` (`invalid-dump`) for another type of `pg_config`, a `desc` that is no
        text (null included), more than 2^21 ranks in all groups, and as `parse_ranks`.
        """
        config = self.root.get("pg_config") or {}
        if isinstance(config, list):
            config = {str(number): value for number, value in enumerate(config)}
        if not isinstance(config, dict):
            _fail(self.file, "'pg_config' is not an object")
        members: dict[str, tuple[tuple[int, ...], str, int]] = {}
        counts: dict[tuple[frozenset[int], str], int] = {}
        ranks_left = MAX_RANKS_OF_GROUPS
        for key in sorted(config, key=_natural):
            value = config[key]
            name, description, ranks = str(key), "undefined", value
            if isinstance(value, dict):
                description, ranks = value.get("desc", description), value.get("ranks")
            if not isinstance(description, str):
                _fail(self.file, f"pg_config {name[:40]!r}: desc is not a text")
            if name and ranks:
                numbers = self.parse_ranks(name, ranks)
                ranks_left -= len(numbers)
                if ranks_left < 0:
                    _fail(self.file, f"the groups have more than {MAX_RANKS_OF_GROUPS} ranks")
                identity = (frozenset(numbers), description)
                ordinal = counts[identity] = counts.get(identity, -1) + 1
                members[name] = (numbers, description, ordinal)
        return members

    def parse_ranks(self, name: str, ranks: object) -> tuple[int, ...]:
        """Return the ranks of a group in the given order; `ranks` is a list, a tuple or a text.

        A text has decimal numbers that are separated by commas or blanks; a bracket at either end
        may be absent. "[0, 1]", "(0, 1)" and "0 1" give (0, 1); "[]", "" and [] give (). `name`:
        name of the group, for messages.

        Raises `InputError` (`invalid-dump`) for other texts and types, for more than 2^18 ranks,
        for a number of more than 8 digits in a text, for a rank that is not an integer from 0 to
        2^24 (a bool is none), and for a rank that appears twice.
        """
        if isinstance(ranks, str):
            if not re.fullmatch(r"[\[(]?[\d\s,]*[\])]?", ranks):
                _fail(
                    self.file, f"pg_config {name[:40]!r}: ranks {ranks!r:.60} is no list of ranks"
                )
            digits = re.findall(r"\d+", ranks)
            if len(digits) > MAX_GROUP_RANKS:
                _fail(self.file, f"pg_config {name[:40]!r}: more than {MAX_GROUP_RANKS} ranks")
            if any(len(digit) > 8 for digit in digits):
                _fail(self.file, f"pg_config {name[:40]!r}: a rank is above {MAX_RANK}")
            ranks = [int(digit) for digit in digits]
        if not isinstance(ranks, list | tuple) or len(ranks) > MAX_GROUP_RANKS:
            _fail(self.file, f"pg_config {name[:40]!r}: ranks is no list of ranks")
        if not all(type(rank) is int and 0 <= rank <= MAX_RANK for rank in ranks):
            _fail(self.file, f"pg_config {name[:40]!r}: a rank is not between 0 and {MAX_RANK}")
        if len(set(ranks)) != len(ranks):
            _fail(self.file, f"pg_config {name[:40]!r}: a rank appears twice")
        return tuple(ranks)

    def find_group(self, name: str, description: str) -> int:
        """Return the number of a process group in the table of all dumps; a new group is added.

        - If `pg_config` of this dump has ranks for `name`, and this dump's rank is one of them:
          the group is identified by its ranks, `description` and ordinal. The ordinal is its
          position among the groups of `pg_config` with equal ranks and description. `name` is
          not compared or stored, because the ranks of a group may name it differently.
        - Otherwise: `name` and `description` identify the group, and its ranks are unknown.
        """
        number = self.group_of.get((name, description))
        if number is None:
            known = self.members.get(name)
            group = Group(None, description, 0, name)
            if known is not None and self.rank in known[0]:
                # Names of one group may differ between ranks: they are no part of its identity.
                group = Group(known[0], description, known[2])
            number = self.group_of[name, description] = self.tables.groups.number(group)
        return number

    def add_entry(self, position: int, entry: Mapping[object, object]) -> None:
        """Add an entry as a new operation, or as the next call of an existing operation (a batch).

        1. Kind: `is_p2p` decides between message and collective. Without it, sends and receives are
           messages, and so is a `coalesced` call after a message of the group (`ends_messages`).
        2. Sequence number: `p2p_seq_id` of a message or `collective_seq_id` of a collective, 0 for
           null. Without the field it is that of `parse_old_sequence`.
        3. The newest operation with this group, kind and number, if among the last 64, gets the
           calls of the entry and its other fields, but keeps position, `created_ns` and stack.
           Otherwise an operation is appended. Its last record is that of the entry.

        `self.group_of_id` gets the group for the `pg_id` even if a later check fails. Raises
        `InputError` (`invalid-dump`) for an `is_p2p` that is no bool (null included), a batch of
        more than 4096 calls, and invalid groups, calls, states, stacks or `seq_id`.
        """
        record = self.numbers["record_id"][position]
        pg_id = self.numbers["pg_id"][position]
        group = self.parse_entry_group(position, entry, pg_id)
        self.group_of_id[pg_id] = group
        call, number = self.find_call(position, entry)
        is_p2p = entry.get("is_p2p", call.is_message or self.ends_messages(call, group))
        if not isinstance(is_p2p, bool):
            self.fail(position, "is_p2p is neither true nor false")
        key = "p2p_seq_id" if is_p2p else "collective_seq_id"
        if key in entry:
            sequence = self.numbers[key][position]
        else:
            sequence = self.parse_old_sequence(position, entry, group, is_p2p)
        operation = self.parse_operation(position, entry, (group, is_p2p, sequence, number), call)
        row = self.row_of.get((group, is_p2p, sequence))
        if row is not None and row >= len(self.operations) - 64:
            # The last entry of a batch, `coalesced`, has the state of all its calls.
            first = self.operations[row]
            calls = self.tables.calls[first.calls] + self.tables.calls[operation.calls]
            if len(calls) > MAX_TENSORS:
                self.fail(position, f"a batch of more than {MAX_TENSORS} calls")
            self.last_records[row] = record
            self.operations[row] = operation._replace(
                calls=self.tables.calls.number(calls),
                created_ns=first.created_ns,
                stack=first.stack,
            )
            return
        self.row_of[group, is_p2p, sequence] = len(self.operations)
        self.operations.append(operation)
        self.last_records.append(record)

    def parse_old_sequence(
        self, position: int, entry: Mapping[object, object], group: int, is_p2p: bool
    ) -> int:
        """Return the sequence number of an entry of a version before 2.0.

        These versions have one counter `seq_id` per group for collectives and messages, so
        collectives of ranks with different messages have different numbers. Distinct values are
        therefore numbered from 1 in the order of their first entry, separately for collectives and
        messages of a group; an absent `seq_id` is 0. If entries were overwritten, `seq_id` is
        returned unchanged. Raises `InputError` for a `seq_id` that `parse_integer` refuses.
        """
        number = self.parse_integer(position, entry, "seq_id", 0)
        if self.is_overwritten:
            return number
        numbers = self.old_numbers.setdefault((group, is_p2p), {})
        return numbers.setdefault(number, len(numbers) + 1)

    def ends_messages(self, call: RecordedCall, group: int) -> bool:
        """Check whether an entry ends a batch of messages (sends and receives).

        It does if its call is `coalesced` and the last operation so far is a message of the same
        group. The rule is needed because versions before 2.3 do not write `is_p2p`.
        """
        if call.operation != "coalesced" or not self.operations:
            return False
        return self.operations[-1].is_p2p and self.operations[-1].group == group

    def parse_entry_group(self, position: int, entry: Mapping[object, object], pg_id: int) -> int:
        """Return the number of the group of an entry in the tables; a new group is added.

        Name and description of the group decide whether it is new. They are the texts in the
        list `process_group`. A missing description is `undefined`. An entry without
        `process_group` has the name `pg_id` and the description `undefined`. Raises
        `InputError` with `position` unless `process_group` is a list of one or two texts.
        """
        pair = entry.get("process_group", (str(pg_id), "undefined"))
        if not isinstance(pair, list | tuple) or not pair or len(pair) > 2:
            self.fail(position, "process_group is no pair of name and description")
        if not all(isinstance(text, str) for text in pair):
            self.fail(position, "process_group has a member that is not a text")
        return self.find_group(pair[0], pair[1] if len(pair) == 2 else "undefined")

    def find_call(self, position: int, entry: Mapping[object, object]) -> tuple[RecordedCall, int]:
        """Return the call of an entry, and the number of the tuple `(call,)` in the table of calls.

        An entry with the same unparsed fields (`_call_key`) as an earlier one is not parsed again:
        the same pair is returned. Any other entry is parsed (`parse_call`), and its tuple is added
        to the shared table if it is not there yet. An entry with a field that cannot be part of a
        key is always parsed.

        Every call lowers `self.tensors_left` by its number of input and output shapes, a parsed one
        also by its number of dtypes. Raises `InputError` (`invalid-dump`) with `position` if more
        than 2^22 are used in the dump, and the errors of `parse_call`.
        """
        key = _call_key(entry)
        try:
            known = None if key is None else self.known_calls.get(key)
        except TypeError:
            # A part is not hashable: its error is located below.
            known = key = None
        if known is not None:
            call = known[0]
            self.tensors_left -= len(call.input_shapes) + len(call.output_shapes)
            if self.tensors_left < 0:
                self.refuse_tensors(position)
            return known
        call = self.parse_call(position, entry)
        known = call, self.tables.calls.number((call,))
        if key is not None:
            self.known_calls[key] = known
        return known

    def parse_call(self, position: int, entry: Mapping[object, object]) -> RecordedCall:
        """Return the call of an entry: backend, operation, shapes, dtypes, source and destination.

        `profiling_name` (missing: "") is split at its last colon: `nccl:all_reduce` gives backend
        `nccl` and operation `all_reduce`. Without a colon the backend is "".

        An operation such as `send 1->2` or `recv 3<-0`, with numbers of 1 to 8 digits, becomes
        `send` or `recv`. Its numbers are ranks in the group. The first is the source of a `send`
        and the destination of a `recv`, whatever the direction of the arrow. For any other
        operation, source and destination are -1.

        The call is not stored. Its shapes and dtypes lower `self.tensors_left`. Raises `InputError`
        (`invalid-dump`) with `position` for a name that is no text or has more than 4096
        characters, and the errors of `parse_shapes` and `parse_dtypes`.
        """
        name = entry.get("profiling_name", "")
        if not isinstance(name, str) or len(name) > 4096:
            self.fail(position, "profiling_name is not a text")
        backend, colon, operation = name.rpartition(":")
        source = destination = -1
        message = _MESSAGE.match(operation)
        if message is not None:
            operation = message[1]
            source, destination = int(message[2]), int(message[4])
            if operation == "recv":
                # `recv 3<-0`: rank 3 receives from rank 0.
                source, destination = destination, source
        return RecordedCall(
            backend if colon else "",
            operation,
            self.parse_shapes(position, entry, "input_sizes"),
            self.parse_shapes(position, entry, "output_sizes"),
            self.parse_dtypes(position, entry, "input_dtypes"),
            self.parse_dtypes(position, entry, "output_dtypes"),
            source,
            destination,
        )

    def parse_operation(
        self,
        position: int,
        entry: Mapping[object, object],
        identity: tuple[int, bool, int, int],
        call: RecordedCall,
    ) -> RecordedOperation:
        """Convert an entry to an operation.

        `identity`: its first four fields (group, whether it is a message, sequence number, call
        number).

        - state: `scheduled` (default), `started` or `completed`. An entry of the backend gloo is
          completed if `retired` is true.
        - has_timed_out: `retired` (default false) is true, and the operation is not completed.
        - created_ns, started_ns, completed_ns: those of `self.numbers` at `position`, 0 if absent.
        - timeout_ns: the timeout in ms x 10^6, where ms is at most 922337203685; 0 if absent.
        - stack: number of `parse_stack`, which adds a new stack to the shared table.

        Raises `InputError` (`invalid-dump`) with `position` for any other `state`, for a `retired`
        that is no bool, and for the errors of `parse_stack`. Null is refused for both fields.
        """
        text = entry.get("state", "scheduled")
        state = _STATES.get(text) if isinstance(text, str) else None
        if state is None:
            self.fail(position, f"state {text!r:.40} is not scheduled, started or completed")
        is_retired = entry.get("retired", False)
        if not isinstance(is_retired, bool):
            self.fail(position, "retired is neither true nor false")
        if is_retired and call.backend == "gloo":
            # Gloo has no events: its entries never leave `scheduled`.
            state = OperationState.COMPLETED
        times = [self.numbers[key][position] for key in _TIME_KEYS]
        return RecordedOperation(
            *identity,
            int(state),
            is_retired and state != OperationState.COMPLETED,
            times[0],
            times[1],
            times[2],
            min(times[3], _INT64 // 10**7) * 10**6,
            self.parse_stack(position, entry),
        )

    def parse_integers(self, entries: Sequence[Mapping[object, object]], key: str) -> list[int]:
        """Return the integer field `key` of all entries in order; 0 where it is absent or null.

        Raises `InputError`, with the number of the entry, for the first value that is not an
        integer of at least -1 and below 2^63; a bool is not an integer here.
        """
        values = [0 if (value := entry.get(key)) is None else value for entry in entries]
        if {*map(type, values)} <= {int}:
            numbers = cast(list[int], values)
            if not numbers or (min(numbers) >= -1 and max(numbers) < _INT64):
                return numbers
        # One of these calls reports the value that is wrong.
        return [self.parse_integer(at, entry, key, 0) for at, entry in enumerate(entries)]

    def parse_integer(
        self, position: int, entry: Mapping[object, object], key: str, default: int
    ) -> int:
        """Return an integer field of one entry, `default` where it is absent or null.

        `position`: number of the entry, for the error message. Raises `InputError` for a value that
        is not an integer of at least -1 and below 2^63; a bool is not an integer here. An absent
        field is checked in the same way, so `default` must be in this range.
        """
        value = entry.get(key, default)
        if value is None:
            return default
        if type(value) is not int or not -1 <= value < _INT64:
            self.fail(position, f"{key} {value!r:.40} is not an integer from -1 to 2^63")
        return value

    def parse_shapes(self, position: int, entry: Mapping[object, object], key: str) -> Shapes:
        """Return the shapes of all tensors on one side of a call, as a tuple of tuples of sizes.

        `key`: `input_sizes` or `output_sizes`. An absent, null or empty field gives (), and `[[]]`
        gives `((),)`, one scalar. Lists and tuples are accepted. Equal results are one object. Each
        call subtracts the number of tensors from `self.tensors_left`.

        Raises `InputError` (`invalid-dump`) with `position` in these cases:
        - The field is no list of lists, has more than 4096 tensors, or a tensor of more than 64
          dimensions.
        - `self.tensors_left` falls below 0: more than 2^22 tensors and dtypes in the dump so far.
        - A size is not an integer from 0 to 2^63 - 1; a bool is none.
        """
        sizes = entry.get(key) or []
        try:
            if not isinstance(sizes, list | tuple) or len(sizes) > MAX_TENSORS:
                raise TypeError
            self.tensors_left -= len(sizes)
            if any(
                not isinstance(shape, list | tuple) or len(shape) > MAX_DIMENSIONS
                for shape in sizes
            ):
                raise TypeError
            shapes = tuple(map(tuple, sizes))
            known = self.known_shapes.get(shapes)
        except TypeError:
            self.fail(position, f"{key} is no list of shapes")
        if self.tensors_left < 0:
            self.refuse_tensors(position)
        # Equal keys may have other types: (True,) == (1,) == (1.0,).
        if known is None or any({*map(type, shape)} - {int} for shape in shapes):
            for shape in shapes:
                if not all(type(size) is int and 0 <= size < _INT64 for size in shape):
                    self.fail(position, f"{key} has a size that is not an integer from 0 to 2^63")
            known = self.known_shapes[shapes] = shapes
        return known

    def refuse_tensors(self, position: int) -> NoReturn:
        """Raise `InputError`: all entries of the dump together have too many tensors."""
        self.fail(position, f"the entries have more than {MAX_TENSORS_PER_DUMP} tensors")

    def parse_dtypes(
        self, position: int, entry: Mapping[object, object], key: str
    ) -> tuple[str, ...]:
        """Return the names of the dtypes of one side of a call; () if absent, null or empty.

        `key`: `input_dtypes` or `output_dtypes`. Each dtype is subtracted from
        `self.tensors_left`, the number of tensors that the dump may still have; a number below
        0 is not refused here. Raise `InputError` (`invalid-dump`) with `position` for a value
        that is no list of texts, or has more than `MAX_TENSORS` members.
        """
        names = entry.get(key) or []
        if not isinstance(names, list | tuple) or len(names) > MAX_TENSORS:
            self.fail(position, f"{key} is no list of texts")
        self.tensors_left -= len(names)
        if not all(isinstance(name, str) for name in names):
            self.fail(position, f"{key} is no list of texts")
        return tuple(names)

    def parse_stack(self, position: int, entry: Mapping[object, object]) -> int:
        """Return the number of an entry's stack in the shared table; a new stack is added.

        A stack is the tuple of the first 32 members of `frames`, in the given order (PyTorch: the
        innermost first). Further frames are neither read nor checked. Stacks with equal frames have
        one number. Without `frames`, and if the field is null or empty, it is the number of the
        empty stack, which is added too.

        Raises `InputError` (`invalid-dump`) with `position` if `frames` is neither a list nor a
        tuple, or if a frame is no object with texts `name` and `filename` and an integer `line`.
        """
        frames = entry.get("frames") or []
        if not isinstance(frames, list | tuple):
            self.fail(position, "frames is not a list")
        # Frames are alive as long as the dump, so their identities are unique.
        key = tuple(map(id, frames[:MAX_FRAMES]))
        number = self.stack_of.get(key)
        if number is not None:
            return number
        stack: list[Frame] = []
        for frame in frames[:MAX_FRAMES]:
            if not isinstance(frame, dict):
                self.fail(position, "a frame is not an object")
            name, file, line = frame.get("name"), frame.get("filename"), frame.get("line")
            if not isinstance(name, str) or not isinstance(file, str) or type(line) is not int:
                self.fail(position, "a frame has no name, filename and line")
            stack.append(Frame(name, file, line))
        number = self.stack_of[key] = self.tables.stacks.number(tuple(stack))
        return number

    def parse_status(self) -> dict[int, GroupStatus]:
        """Return `pg_status` by group number: the last collective enqueued, started and completed.

        An absent or empty `pg_status` gives {}. The values are `last_enqueued_collective`,
        `last_started_collective` and `last_completed_collective`; an absent one is -1. A key is
        assigned to a group by the first rule that applies:

        1. It is the `pg_id` of an entry: the group of the last such entry.
        2. It is a name in `pg_config`: this group, which `find_group` adds to the shared table if
           new.
        3. Otherwise the value is checked, but left out.

        Of several values of one group the last remains. Raises `InputError` (`invalid-dump`) if
        `pg_status` or a value is no object, for a key that is neither text nor integer, and for a
        number that `parse_status_number` refuses.
        """
        root = self.root.get("pg_status") or {}
        if not isinstance(root, dict):
            _fail(self.file, "'pg_status' is not an object")
        status: dict[int, GroupStatus] = {}
        for key, value in root.items():
            if not isinstance(key, str | int) or not isinstance(value, dict):
                _fail(self.file, f"pg_status {key!r:.40} is no object of numbers")
            names = ("last_enqueued", "last_started", "last_completed")
            numbers = [
                self.parse_status_number(value.get(f"{name}_collective", -1)) for name in names
            ]
            group = self.group_of_id.get(int(key)) if _is_number(key) else None
            known = self.members.get(str(key))
            if group is None and known is not None:
                # A group without entries: its name usually is its number.
                group = self.find_group(str(key), known[1])
            if group is not None:
                status[group] = GroupStatus(*numbers)
        return status

    def parse_status_number(self, value: object) -> int:
        """Convert a sequence number of `pg_status`, an integer or a decimal text, to an integer.

        -1 means that there is none. JSON dumps contain texts: at most 18 digits, with an optional
        minus sign; their range is not checked. Raises `InputError` for other texts and types (a
        bool is no integer), and for integers outside -1..2^63 - 1.
        """
        if isinstance(value, str) and re.fullmatch(r"-?\d{1,18}", value, re.ASCII):
            return int(value)
        if type(value) is not int or not -1 <= value < _INT64:
            _fail(self.file, f"pg_status: {value!r:.40} is not a sequence number")
        return value

    def fail(self, position: int, message: str) -> NoReturn:
        """Raise `InputError` with code `invalid-dump` at an entry of this file."""
        _fail(self.file, f"entry {position}: {message}")


def _call_key(entry: Mapping[object, object]) -> tuple[object, ...] | None:
    """Return the unparsed fields of a call as a key of the cache of calls, or None.

    The key is (`profiling_name`, `input_sizes`, `output_sizes`, `input_dtypes`, `output_dtypes`).
    Sizes are tuples of tuples, dtypes are tuples, and an absent name is None. The result is None if
    one of the four last fields is absent or no list (a tuple is none), or if a member of the sizes
    is no list. Other values are not checked: a name, a size or a dtype that is a list or an object
    makes the key unhashable.
    """
    lists = [entry.get(key) for key in _CALL_KEYS]
    sent, received, sent_types, received_types = lists
    if (
        not isinstance(sent, list)
        or not isinstance(received, list)
        or not isinstance(sent_types, list)
        or not isinstance(received_types, list)
        or not _LIST.issuperset(map(type, sent + received))
    ):
        return None
    return (
        entry.get("profiling_name"),
        tuple(map(tuple, sent)),
        tuple(map(tuple, received)),
        tuple(sent_types),
        tuple(received_types),
    )


def _is_number(key: object) -> bool:
    """Whether a key is a decimal number of at most 18 digits."""
    return re.fullmatch(r"\d{1,18}", str(key), re.ASCII) is not None


def _natural(key: object) -> tuple[int, str]:
    """Return a sort key: decimal numbers by value, other names after them by text.

    Numbers have at most 18 digits and no sign; the key is converted to text first.
    """
    text = str(key)
    return (int(text), "") if _is_number(text) else (1 << 63, text)


def _fail(file: str, message: str, cure: str = "") -> NoReturn:
    """Raise `InputError` with code `invalid-dump` at a file."""
    raise InputError(message, location=Location(file), cure=cure, code="invalid-dump")


def describe_calls(calls: Sequence[RecordedCall]) -> str:
    """Return the name of an operation that consists of these calls, at least one.

    It is the name of the call if there is one, `batch of N calls (first, ...)` for several. The
    call `coalesced`, which ends a batch, is not counted unless all calls are `coalesced`.
    """
    named = [call for call in calls if call.operation != "coalesced"] or list(calls)
    return str(named[0]) if len(named) == 1 else f"batch of {len(named)} calls ({named[0]}, ...)"
