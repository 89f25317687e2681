"""Build the plain values of a pickle by its opcodes. Nothing is imported, called or executed.

The standard library's `pickle` is never used. Opcodes that can name, call or build an object are
refused by name and offset, as are lengths beyond the end of the file and too many containers.
"""

from __future__ import annotations

import struct
from typing import Final, NoReturn

from hub_core.model import InputError, Location

MAX_DEPTH = 64
MAX_TEXT_BYTES = 1 << 20
# Empty containers occupy 56 to 216 bytes of memory for one byte of the file.
MAX_CONTAINERS = 1 << 19
MAX_INTEGER_BYTES = 8
# A dump has about 80 opcodes per entry: 37 000 entries are allowed, which bounds time and memory.
MAX_OPCODES = 3_000_000

_WITHIN = "the file ends within an opcode"
_COPY = "copy the file again"

_REFUSED: Final = {
    ord("c"): "GLOBAL",
    0x93: "STACK_GLOBAL",
    ord("R"): "REDUCE",
    ord("b"): "BUILD",
    ord("i"): "INST",
    ord("o"): "OBJ",
    0x81: "NEWOBJ",
    0x92: "NEWOBJ_EX",
    0x82: "EXT1",
    0x83: "EXT2",
    0x84: "EXT4",
    ord("P"): "PERSID",
    ord("Q"): "BINPERSID",
    0x97: "NEXT_BUFFER",
    0x98: "READONLY_BUFFER",
    0x96: "BYTEARRAY8",
    ord("0"): "POP",
    ord("1"): "POP_MARK",
    ord("2"): "DUP",
    ord("F"): "FLOAT",
    ord("I"): "INT",
    ord("L"): "LONG",
    ord("S"): "STRING",
    ord("V"): "UNICODE",
    ord("d"): "DICT",
    ord("l"): "LIST",
    ord("g"): "GET",
    ord("p"): "PUT",
}
# Opcode: (unpacking of the length, its bytes, whether the value is text).
_LENGTHS: Final = {
    opcode: (struct.Struct(length_format).unpack_from, struct.calcsize(length_format), is_text)
    for opcode, length_format, is_text in (
        (0x58, "<I", True),  # BINUNICODE
        (0x8C, "<B", True),  # SHORT_BINUNICODE
        (0x8D, "<Q", True),  # BINUNICODE8
        (0x54, "<i", True),  # BINSTRING
        (0x55, "<B", True),  # SHORT_BINSTRING
        (0x42, "<I", False),  # BINBYTES
        (0x43, "<B", False),  # SHORT_BINBYTES
        (0x8E, "<Q", False),  # BINBYTES8
    )
}
_CONTAINERS: Final = frozenset({list, dict, set, frozenset, tuple})
_KEYS: Final = frozenset({str, int, bytes, bool, float, type(None)})
_INDEX: Final = struct.Struct("<I").unpack_from
_LONG: Final = struct.Struct("<q").unpack_from
_INTEGER: Final = struct.Struct("<i").unpack_from
_DOUBLE: Final = struct.Struct(">d").unpack_from
_CONSTANTS: Final = {0x4E: None, 0x88: True, 0x89: False}  # NONE, NEWTRUE, NEWFALSE


def parse_pickle(content: bytes, file: str) -> object:
    """Return the value that a pickle holds: numbers, texts, bytes and containers of them.

    One object that is referenced repeatedly is built once. A container that contains itself is
    refused. Raises `InputError` with the offset of the first refused opcode.
    """
    return _Walker(content, file).walk()


class _Walker:
    """The stack machine of pickles without its opcodes for objects.

    A container that was fetched from the memo is not changed later, so no cycle can arise, and the
    depth of a container is final when it is enclosed. No value is ever dropped (POP is refused,
    and so are repeated keys and memo numbers), so identities of values remain unique.

    `memo` has plain values, and containers that were fetched; `unfetched` the other containers.
    `offset`: of the opcode that is being executed.
    """

    def __init__(self, content: bytes, file: str) -> None:
        self.content = content
        self.file = file
        self.offset = 0
        self.stack: list[object] = []
        self.marks: list[list[object]] = []
        self.memo: dict[int, object] = {}
        self.unfetched: dict[int, object] = {}
        self.fetched: set[int] = set()
        self.depth_of: dict[int, int] = {}
        self.container_count = 0
        self.checked_keys: list[object] = []

    def walk(self) -> object:  # noqa: C901
        """Execute the opcodes of the pickle until STOP, and return the only value on the stack.

        Only plain values and containers are created; no code of the pickle is called. Bytes after
        STOP are ignored. Raises `InputError`, located at the opcode, with the code
        `forbidden-opcode` for an opcode that is not permitted, otherwise `invalid-pickle`:

        - An opcode is incomplete, has too few values on the stack, or lacks its MARK.
        - There is no STOP within the file or 3,000,000 opcodes, or not exactly one value at STOP.
        - A memo number is assigned twice, or is used without a value. A container is changed after
          it was fetched from the memo.
        - A container has the wrong type for the opcode. A key of a dict is repeated or is a
          container, or an element of a set is a container.
        - The protocol is above 5, an integer or a text is too long, or a text is not UTF-8.
        - There are more than 2^19 lists and dicts, or more than 2^19 other containers, or more than
          64 nested levels.
        """
        content, memo, unfetched, position = self.content, self.memo, self.unfetched, 0
        fetched, depth_of, stack = self.fetched, self.depth_of, self.stack
        push = stack.append
        containers_left = MAX_CONTAINERS
        try:
            for _ in range(MAX_OPCODES):
                opcode = content[position]
                if opcode == 0x68:  # BINGET
                    try:
                        push(memo[content[position + 1]])
                    except KeyError:
                        self.offset = position
                        push(self.fetch(content[position + 1]))
                    position += 2
                elif opcode == 0x5D:  # EMPTY_LIST
                    value: object = []
                    push(value)
                    containers_left -= 1
                    if content[position + 1 : position + 2] == b"r":  # LONG_BINPUT
                        position += 1
                        (number,) = _INDEX(content, position + 1)
                        if number in memo or number in unfetched:
                            self.offset = position
                            self.memoize(number)
                        unfetched[number] = value
                        position += 4
                    position += 1
                    if containers_left < 0:
                        self.offset = position
                        self.refuse(f"more than {MAX_CONTAINERS} containers")
                elif opcode == 0x72:  # LONG_BINPUT
                    (number,) = _INDEX(content, position + 1)
                    if number in memo or number in unfetched:
                        self.offset = position
                        self.memoize(number)
                    value = stack[-1]
                    (unfetched if type(value) in _CONTAINERS else memo)[number] = value
                    position += 5
                elif opcode == 0x6A:  # LONG_BINGET
                    (number,) = _INDEX(content, position + 1)
                    if number not in memo:
                        self.offset = position
                        self.fetch(number)
                    push(memo[number])
                    position += 5
                elif opcode == 0x61:  # APPEND
                    value = stack.pop()
                    target = stack[-1]
                    if type(target) is not list or id(target) in fetched or id(value) in depth_of:
                        self.offset = position
                        self.append([value])
                    else:
                        if type(value) in _CONTAINERS:
                            depth_of.setdefault(id(target), 1)
                        target.append(value)
                    position += 1
                elif opcode == 0x4D:  # BININT2
                    push(content[position + 1] | content[position + 2] << 8)
                    position += 3
                elif opcode == 0x8A and content[position + 1] <= MAX_INTEGER_BYTES:  # LONG1
                    end = position + 2 + content[position + 1]
                    if end - position == 10:
                        push(_LONG(content, position + 2)[0])
                    elif end > len(content):
                        self.offset = position
                        self.refuse(_WITHIN, cure=_COPY)
                    else:
                        push(int.from_bytes(content[position + 2 : end], "little", signed=True))
                    position = end
                elif opcode == 0x4B:  # BININT1
                    push(content[position + 1])
                    position += 2
                elif opcode == 0x28:  # MARK
                    if len(self.marks) >= MAX_DEPTH:
                        self.offset = position
                        self.refuse(f"values are nested deeper than {MAX_DEPTH} levels")
                    self.marks.append(stack)
                    stack = self.stack = []
                    push = stack.append
                    position += 1
                elif opcode in _CONSTANTS:
                    push(_CONSTANTS[opcode])
                    position += 1
                elif opcode == 0x4A:  # BININT
                    push(_INTEGER(content, position + 1)[0])
                    position += 5
                elif opcode == 0x75 or opcode == 0x65:  # SETITEMS, APPENDS
                    items = stack
                    self.offset = position
                    stack = self.stack = self.pop_mark()
                    push = stack.append
                    if opcode == 0x75:
                        self.set_items(items)
                    else:
                        self.append(items)
                    position += 1
                elif opcode == 0x7D:  # EMPTY_DICT
                    push({})
                    containers_left -= 1
                    position += 1
                    if containers_left < 0:
                        self.offset = position
                        self.refuse(f"more than {MAX_CONTAINERS} containers")
                elif opcode == 0x2E:  # STOP
                    self.offset = position
                    if self.marks or len(stack) != 1:
                        self.refuse("STOP does not leave exactly one value")
                    return stack[0]
                else:
                    self.offset = position
                    position = self.step(opcode, position)
                    stack = self.stack
                    push = stack.append
        except IndexError:
            self.offset = position
            if position >= len(content):
                self.refuse("the pickle ends without STOP", cure=_COPY)
            self.refuse("the opcode has too few values on the stack or bytes after it")
        except struct.error:
            self.offset = position
            self.refuse(_WITHIN, cure=_COPY)
        self.offset = position
        cure = "reduce TORCH_FR_BUFFER_SIZE, or dump JSON"
        return self.refuse(f"more than {MAX_OPCODES} opcodes", cure=cure)

    def memoize(self, number: int) -> None:
        """Assign a memo number to the value on top of the stack, by which opcodes can fetch it.

        Containers are stored as not yet fetched, because they may still be filled. Raises
        `InputError` if the number is assigned already, so that a value cannot be replaced, and
        `IndexError` for an empty stack.
        """
        if number in self.memo or number in self.unfetched:
            self.refuse(f"the memo number {number} is assigned twice")
        value = self.stack[-1]
        (self.unfetched if type(value) in _CONTAINERS else self.memo)[number] = value

    def fetch(self, number: int) -> object:
        """Return the value with a memo number; a container cannot be changed from now on.

        A later change could make the container part of itself, so methods that fill containers
        raise `InputError` for it. A plain value is returned as it is. Raises `InputError` if
        the memo number is not assigned.
        """
        if number in self.memo:
            return self.memo[number]
        if number not in self.unfetched:
            self.refuse(f"no value has the memo number {number}")
        value = self.memo[number] = self.unfetched.pop(number)
        self.fetched.add(id(value))
        return value

    def step(self, opcode: int, position: int) -> int:
        """Execute one of the less frequent opcodes, and return the offset of the next one.

        `position`: offset of the opcode. Texts, bytes, long integers and floats are pushed. BINPUT
        and MEMOIZE assign a memo number to the value on top of the stack. PROTO and FRAME are only
        checked. `container` executes all other opcodes.

        Raises `InputError` for a protocol above 5, a length (also of a frame) beyond the end of the
        file, a text above `MAX_TEXT_BYTES`, and an integer above `MAX_INTEGER_BYTES`. It is also
        raised for a memo number that is assigned twice, and for the reasons of `container`. Raises
        `IndexError` or `struct.error` for too few values on the stack or bytes in the file; `walk`
        converts both.
        """
        if opcode in _LENGTHS:
            return self.text(opcode, position)
        if opcode == 0x71:  # BINPUT
            self.memoize(self.content[position + 1])
            return position + 2
        if opcode == 0x94:  # MEMOIZE
            self.memoize(len(self.memo) + len(self.unfetched))
            return position + 1
        if opcode == 0x8A or opcode == 0x8B:  # LONG1 that is too long, LONG4
            return self.long_integer(opcode, position)
        if opcode == 0x47:  # BINFLOAT
            self.stack.append(_DOUBLE(self.content, position + 1)[0])
            return position + 9
        if opcode == 0x80:  # PROTO
            if self.take(position, 1, 1)[0] > 5:
                self.refuse(f"protocol {self.content[position + 1]} is not known")
            return position + 2
        if opcode == 0x95:  # FRAME
            claimed = int.from_bytes(self.take(position, 1, 8), "little")
            self.check_length(claimed, position + 9)
            return position + 9
        self.container(opcode)
        return position + 1

    def container(self, opcode: int) -> None:
        """Execute an opcode that creates or fills a container on the stack, as pickle does.

        TUPLE, ADDITEMS and FROZENSET take all values after the last MARK. The number of containers
        increases per call by 1 for EMPTY_TUPLE, SETITEM and ADDITEMS, 2 for another tuple, 4 for
        EMPTY_SET and FROZENSET.

        Raises `IndexError` if the stack has too few values. Raises `InputError`: `forbidden-opcode`
        for any further opcode, otherwise `invalid-pickle`:

        - The number before the call is already `MAX_CONTAINERS` (2^19) or more.
        - There is no MARK, or the target of SETITEM is no dict, or that of ADDITEMS no set.
        - A key of a dict or an element of a set is a container.
        - A key is already in the dict. Elements of sets may be repeated.
        - Values are nested too deeply.
        - The dict or set to fill was fetched from the memo before.
        """
        stack = self.stack
        self.container_count += 1
        if self.container_count > MAX_CONTAINERS:
            self.refuse(f"more than {MAX_CONTAINERS} containers")
        if opcode == 0x73:  # SETITEM
            value, key = stack.pop(), stack.pop()
            self.set_items([key, value])
        elif opcode == 0x29:  # EMPTY_TUPLE
            stack.append(())
        elif opcode in (0x85, 0x86, 0x87):  # TUPLE1, TUPLE2, TUPLE3
            count = opcode - 0x84
            if len(stack) < count:
                raise IndexError
            values = stack[-count:]
            del stack[-count:]
            stack.append(self.build_tuple(values))
        elif opcode == 0x74:  # TUPLE
            self.stack = self.pop_mark()
            self.stack.append(self.build_tuple(stack))
        elif opcode == 0x8F:  # EMPTY_SET
            self.container_count += 3
            stack.append(set())
        elif opcode == 0x90:  # ADDITEMS
            self.stack = self.pop_mark()
            self.add_items(stack)
        elif opcode == 0x91:  # FROZENSET
            self.stack = self.pop_mark()
            self.check_keys(stack)
            self.container_count += 3
            self.stack.append(frozenset(stack))
        else:
            name = _REFUSED.get(opcode)
            subject = f"the opcode {name}" if name else f"the byte 0x{opcode:02x}"
            cure = "a Flight Recorder dump has plain values only; do not load this file with pickle"
            self.refuse(f"{subject} is not allowed in a dump", "forbidden-opcode", cure)

    def text(self, opcode: int, position: int) -> int:
        """Push a text (UTF-8) or bytes with a length prefix, and return the offset after it.

        `opcode` is a key of `_LENGTHS`, which gives the format of the length and whether it is a
        text; `position` is the offset of the opcode. Raises `InputError` (`invalid-pickle`),
        checked in this order: a length that is negative or beyond the end of the file, more than
        `MAX_TEXT_BYTES` (also for bytes), and invalid UTF-8 of a text. Nothing is pushed then.
        Raises `struct.error` if the length itself is incomplete.
        """
        unpack, width, is_text = _LENGTHS[opcode]
        start = position + 1 + width
        length = int(unpack(self.content, position + 1)[0])
        if not 0 <= length <= len(self.content) - start:
            self.check_length(length, start)
        if length > MAX_TEXT_BYTES:
            self.refuse(f"a text of {length} bytes; at most {MAX_TEXT_BYTES} are read")
        value = self.content[start : start + length]
        if not is_text:
            self.stack.append(value)
            return start + length
        try:
            self.stack.append(value.decode("utf-8"))
        except UnicodeDecodeError:
            self.refuse("a text is not UTF-8")
        return start + length

    def long_integer(self, opcode: int, position: int) -> int:
        """Push the integer of opcode LONG1 or LONG4, and return the file position after it.

        `position`: that of the opcode in the file. Next is the unsigned length in bytes: 1 byte
        for LONG1, 4 bytes for LONG4. The integer follows, little-endian in two's complement;
        length 0 is 0. Raises `InputError` if the length or the integer extends beyond the end
        of the file, then for more than `MAX_INTEGER_BYTES` (8) bytes.
        """
        width = 1 if opcode == 0x8A else 4
        length = int.from_bytes(self.take(position, 1, width), "little")
        self.check_length(length, position + 1 + width)
        if length > MAX_INTEGER_BYTES:
            self.refuse(f"an integer of {length} bytes; at most {MAX_INTEGER_BYTES} are read")
        digits = self.take(position, 1 + width, length)
        self.stack.append(int.from_bytes(digits, "little", signed=True))
        return position + 1 + width + length

    def append(self, values: list[object]) -> None:
        """Append values to the list on top of the stack, which stays there.

        Raise `InputError` if it is no list, if it was fetched from the memo (even without
        values), or if the nesting becomes deeper than `MAX_DEPTH` (64). Raise `IndexError` for
        an empty stack.
        """
        target = self.stack[-1]
        if type(target) is not list:
            self.refuse(f"the target of APPEND is a {type(target).__name__}, not a list")
        self.enclose(target, values)
        target.extend(values)

    def set_items(self, items: list[object]) -> None:
        """Add `items` (key, value, key, value, ...) to the dict that is on top of the stack.

        The dict stays on the stack. Raises `InputError` (`invalid-pickle`), checked in this order:

        1. The top is no dict.
        2. The last key has no value.
        3. A key is neither a text, bytes, a number, a boolean nor None.
        4. The dict was fetched from the memo before (it could become part of itself), or values are
           nested too deeply.
        5. A key occurs twice or is already in the dict. The items have been added then.

        Raises `IndexError` for an empty stack.
        """
        target = self.stack[-1]
        if type(target) is not dict:
            self.refuse(f"the target of SETITEM is a {type(target).__name__}, not a dict")
        if len(items) % 2:
            self.refuse("SETITEMS with a key without a value")
        keys, values = items[::2], items[1::2]
        # Dicts of one kind have the same keys.
        if keys != self.checked_keys:
            self.check_keys(keys)
            self.checked_keys = keys
        self.enclose(target, values)
        size = len(target)
        target.update(zip(keys, values, strict=True))
        if len(target) != size + len(keys):
            self.refuse("one key appears twice in one dict")

    def add_items(self, items: list[object]) -> None:
        """Add values that are no containers to the set on top of the stack, which stays there.

        Duplicates are allowed. Raise `InputError`, checked in this order, if the top is no set,
        for containers (also tuples) among the values, and if the set was fetched from the memo
        before, even without values. Raise `IndexError` for an empty stack.
        """
        target = self.stack[-1]
        if type(target) is not set:
            self.refuse(f"the target of ADDITEMS is a {type(target).__name__}, not a set")
        self.check_keys(items)
        self.enclose(target, items)
        target.update(items)

    def build_tuple(self, values: list[object]) -> tuple[object, ...]:
        """Return a tuple of the values, and count it as a container.

        The count is not compared with its limit here. Raises `InputError` if the values are nested
        too deeply.
        """
        self.container_count += 1
        value = tuple(values)
        self.enclose(value, values)
        return value

    def enclose(self, target: object, values: list[object]) -> None:
        """Check that the container `target` may contain `values`, and record its nesting depth.

        The caller adds the values. First raises `InputError` if `target` is no tuple and was
        fetched from the memo before, even without values, because it could become part of
        itself.

        If some values are containers, the depth of `target` becomes one more than that of the
        deepest one, unless it is already greater. A container without a recorded depth counts
        as 0. Raises `InputError` if the depth would exceed `MAX_DEPTH`. If all values are
        plain, no depth is recorded.
        """
        if id(target) in self.fetched and type(target) is not tuple:
            self.refuse("a container contains itself, or is changed after a reference to it")
        if _CONTAINERS.isdisjoint(map(type, values)):
            return
        depth_of = self.depth_of
        depth = max([depth_of.get(id(value), 0) for value in values if type(value) in _CONTAINERS])
        if depth >= MAX_DEPTH:
            self.refuse(f"values are nested deeper than {MAX_DEPTH} levels")
        if depth >= depth_of.get(id(target), 0):
            depth_of[id(target)] = depth + 1

    def check_keys(self, keys: list[object]) -> None:
        """Refuse keys that are containers: hashing nested tuples may exhaust the C stack."""
        if not _KEYS.issuperset(map(type, keys)):
            name = next(type(key).__name__ for key in keys if type(key) not in _KEYS)
            self.refuse(f"a {name} is a key or member of a set")

    def pop_mark(self) -> list[object]:
        """Remove the last MARK, and return the stack as it was when the MARK was set.

        A MARK saves the current stack and begins an empty one. The values that were pushed after
        the MARK are therefore in `stack` until the caller replaces it: the caller must keep that
        list as the arguments of its opcode, and assign the result to `stack`. This function does
        not change `stack`.

        Raises `InputError`, at the offset of the opcode, if there is no MARK.
        """
        if not self.marks:
            self.refuse("the opcode has no MARK before it")
        return self.marks.pop()

    def take(self, position: int, start: int, length: int) -> bytes:
        """Return `length` bytes from `position` + `start` on; `position` is that of the opcode.

        Raises `InputError` if the file has fewer.
        """
        value = self.content[position + start : position + start + length]
        if len(value) < length:
            self.refuse(_WITHIN, cure=_COPY)
        return value

    def check_length(self, length: int, start: int) -> None:
        """Raise `InputError` if the file has fewer than `length` bytes from `start` on.

        Negative lengths are refused too.
        """
        remaining = len(self.content) - start
        if not 0 <= length <= remaining:
            message = f"the opcode claims {length} bytes, {remaining} remain"
            self.refuse(message, cure=_COPY)

    def refuse(self, message: str, code: str = "invalid-pickle", cure: str = "") -> NoReturn:
        """Raise `InputError` at the byte offset of the current opcode (`self.offset`).

        `cure`: advice, "" for none.
        """
        location = Location(self.file, byte=self.offset)
        raise InputError(message, location=location, code=code, cure=cure)
