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
MAX_CONTAINERS = 1 << 20
MAX_INTEGER_BYTES = 8

_WITHIN = "the file ends within an opcode"
_FROZEN = "a container is changed after another one contains it"
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
# Opcode: struct format of the number.
_NUMBERS: Final = {0x4A: "<i", 0x47: ">d"}  # BININT, BINFLOAT
_CONSTANTS: Final = {0x4E: None, 0x88: True, 0x89: False}  # NONE, NEWTRUE, NEWFALSE
_CONTAINERS: Final = frozenset({list, dict, set, frozenset, tuple})
_KEYS: Final = frozenset({str, int, bytes, bool, float, type(None)})


def parse_pickle(content: bytes, file: str) -> object:
    """Return the value that a pickle holds: numbers, texts, bytes and containers of them.

    One object that is referenced repeatedly is built once. A container that contains itself is
    refused. Raises `InputError` with the offset of the first refused opcode.
    """
    return _Walker(content, file).walk()


class _Walker:
    """The stack machine of pickles without its opcodes for objects.

    A container is frozen once another one contains it, and is not changed later. So no cycle can
    arise, and the depth of a container is final when it is enclosed. No value is ever dropped (POP
    is refused, and so are repeated keys), so identities of values remain unique.
    """

    __slots__ = ("containers", "content", "depth_of", "file", "frozen", "marks", "memo", "stack")

    def __init__(self, content: bytes, file: str) -> None:
        self.content = content
        self.file = file
        self.stack: list[object] = []
        self.marks: list[list[object]] = []
        self.memo: dict[int, object] = {}
        self.depth_of: dict[int, int] = {}
        self.frozen: set[int] = set()
        self.containers = 0

    def walk(self) -> object:  # noqa: C901
        """Execute the opcodes until STOP.

        The opcodes are in the order of their frequency in dumps, and are executed without a call:
        a dump has some 200 000 of them, and this loop takes most of the time of a diagnosis.
        """
        content, memo, position, size = self.content, self.memo, 0, len(self.content)
        frozen = self.frozen
        stack = self.stack
        push = stack.append
        unpack_index = struct.Struct("<I").unpack_from
        try:
            while True:
                opcode = content[position]
                if opcode == 0x68:  # BINGET
                    push(memo[content[position + 1]])
                    position += 2
                elif opcode == 0x72:  # LONG_BINPUT
                    memo[unpack_index(content, position + 1)[0]] = stack[-1]
                    position += 5
                elif opcode == 0x6A:  # LONG_BINGET
                    push(memo[unpack_index(content, position + 1)[0]])
                    position += 5
                elif opcode == 0x4B:  # BININT1
                    push(content[position + 1])
                    position += 2
                elif opcode == 0x71:  # BINPUT
                    memo[content[position + 1]] = stack[-1]
                    position += 2
                elif opcode == 0x94:  # MEMOIZE
                    memo[len(memo)] = stack[-1]
                    position += 1
                elif opcode == 0x5D or opcode == 0x7D:  # EMPTY_LIST, EMPTY_DICT
                    self.push_container([] if opcode == 0x5D else {}, position)
                    position += 1
                elif opcode == 0x61:  # APPEND
                    value, target = stack.pop(), stack[-1]
                    if type(value) in _CONTAINERS or type(target) is not list:
                        self.append([value], position)
                    elif id(target) in frozen:
                        self.refuse(position, _FROZEN)
                    else:
                        target.append(value)
                    position += 1
                elif opcode == 0x28:  # MARK
                    if len(self.marks) >= MAX_DEPTH:
                        self.refuse(position, f"values are nested deeper than {MAX_DEPTH} levels")
                    self.marks.append(stack)
                    stack = self.stack = []
                    push = stack.append
                    position += 1
                elif opcode == 0x75:  # SETITEMS
                    items = self.pop_mark(position)
                    stack = self.stack
                    push = stack.append
                    self.set_items(items, position)
                    position += 1
                elif opcode == 0x4D:  # BININT2
                    push(content[position + 1] | content[position + 2] << 8)
                    position += 3
                elif opcode in _CONSTANTS:
                    push(_CONSTANTS[opcode])
                    position += 1
                elif opcode == 0x8A and content[position + 1] <= MAX_INTEGER_BYTES:  # LONG1
                    end = position + 2 + content[position + 1]
                    if end > size:
                        self.refuse(position, _WITHIN, cure=_COPY)
                    push(int.from_bytes(content[position + 2 : end], "little", signed=True))
                    position = end
                elif opcode == 0x2E:  # STOP
                    return self.result(position)
                else:
                    position = self.step(opcode, position)
                    stack = self.stack
                    push = stack.append
        except IndexError:
            if position >= size:
                self.refuse(position, "the pickle ends without STOP", cure=_COPY)
            self.refuse(position, "the opcode has too few values on the stack or bytes after it")
        except struct.error:
            self.refuse(position, _WITHIN, cure=_COPY)
        except KeyError as error:
            self.refuse(position, f"no value has the memo number {error.args[0]}")

    def step(self, opcode: int, position: int) -> int:
        """Execute one opcode that is less frequent. Returns the offset of the next one."""
        if opcode in _LENGTHS:
            return self.text(opcode, position)
        if opcode in _NUMBERS:
            width = struct.calcsize(_NUMBERS[opcode])
            (number,) = struct.unpack(_NUMBERS[opcode], self.take(position, 1, width))
            self.stack.append(number)
            return position + 1 + width
        if opcode == 0x8A or opcode == 0x8B:  # LONG1 that is too long, LONG4
            return self.long_integer(opcode, position)
        if opcode == 0x80:  # PROTO
            if self.take(position, 1, 1)[0] > 5:
                self.refuse(position, f"protocol {self.content[position + 1]} is not known")
            return position + 2
        if opcode == 0x95:  # FRAME
            claimed = int.from_bytes(self.take(position, 1, 8), "little")
            self.check_length(position, claimed, position + 9)
            return position + 9
        self.container(opcode, position)
        return position + 1

    def container(self, opcode: int, position: int) -> None:
        """Create or fill a container; every opcode has one byte."""
        stack = self.stack
        if opcode == 0x65:  # APPENDS
            self.append(self.pop_mark(position), position)
        elif opcode == 0x73:  # SETITEM
            value, key = stack.pop(), stack.pop()
            self.set_items([key, value], position)
        elif opcode == 0x29:  # EMPTY_TUPLE
            stack.append(())
        elif opcode in (0x85, 0x86, 0x87):  # TUPLE1, TUPLE2, TUPLE3
            count = opcode - 0x84
            if len(stack) < count:
                raise IndexError
            values = stack[-count:]
            del stack[-count:]
            self.push_tuple(values, position)
        elif opcode == 0x74:  # TUPLE
            self.push_tuple(self.pop_mark(position), position)
        elif opcode == 0x8F:  # EMPTY_SET
            self.containers += 3
            self.push_container(set(), position)
        elif opcode == 0x90:  # ADDITEMS
            self.add_items(self.pop_mark(position), position)
        elif opcode == 0x91:  # FROZENSET
            items = self.pop_mark(position)
            self.check_keys(items, position)
            self.push_container(frozenset(items), position)
        else:
            name = _REFUSED.get(opcode)
            what = f"the opcode {name}" if name else f"the byte 0x{opcode:02x}"
            cure = "a Flight Recorder dump has plain values only; do not load this file with pickle"
            self.refuse(position, f"{what} is not allowed in a dump", "forbidden-opcode", cure)

    def text(self, opcode: int, position: int) -> int:
        """Push a text or bytes with a length prefix."""
        unpack, width, is_text = _LENGTHS[opcode]
        start = position + 1 + width
        length = int(unpack(self.content, position + 1)[0])
        if not 0 <= length <= len(self.content) - start:
            self.check_length(position, length, start)
        if length > MAX_TEXT_BYTES:
            self.refuse(position, f"a text of {length} bytes; at most {MAX_TEXT_BYTES} are read")
        value = self.content[start : start + length]
        if not is_text:
            self.stack.append(value)
            return start + length
        try:
            self.stack.append(value.decode("utf-8"))
        except UnicodeDecodeError:
            self.refuse(position, "a text is not UTF-8")
        return start + length

    def long_integer(self, opcode: int, position: int) -> int:
        """Push a little-endian integer of two's complement."""
        width = 1 if opcode == 0x8A else 4
        length = int.from_bytes(self.take(position, 1, width), "little")
        self.check_length(position, length, position + 1 + width)
        if length > MAX_INTEGER_BYTES:
            self.refuse(
                position, f"an integer of {length} bytes; at most {MAX_INTEGER_BYTES} are read"
            )
        digits = self.take(position, 1 + width, length)
        self.stack.append(int.from_bytes(digits, "little", signed=True))
        return position + 1 + width + length

    def append(self, values: list[object], position: int) -> None:
        """Append values to the list on top of the stack."""
        target = self.stack[-1]
        if type(target) is not list:
            self.refuse(position, f"the target of APPEND is a {type(target).__name__}, not a list")
        self.enclose(target, values, position)
        target.extend(values)

    def set_items(self, items: list[object], position: int) -> None:
        """Set pairs of key and value in the dict on top of the stack."""
        target = self.stack[-1]
        if type(target) is not dict:
            self.refuse(position, f"the target of SETITEM is a {type(target).__name__}, not a dict")
        if len(items) % 2:
            self.refuse(position, "SETITEMS with a key without a value")
        keys, values = items[::2], items[1::2]
        self.check_keys(keys, position)
        self.enclose(target, values, position)
        size = len(target)
        target.update(zip(keys, values, strict=True))
        if len(target) != size + len(keys):
            self.refuse(position, "one key appears twice in one dict")

    def add_items(self, items: list[object], position: int) -> None:
        """Add plain values to the set on top of the stack."""
        target = self.stack[-1]
        if type(target) is not set:
            self.refuse(position, f"the target of ADDITEMS is a {type(target).__name__}, not a set")
        self.check_keys(items, position)
        target.update(items)

    def push_tuple(self, values: list[object], position: int) -> None:
        value = tuple(values)
        self.push_container(value, position)
        self.enclose(value, values, position)

    def push_container(self, value: object, position: int) -> None:
        self.containers += 1
        if self.containers > MAX_CONTAINERS:
            self.refuse(position, f"more than {MAX_CONTAINERS} containers")
        self.stack.append(value)

    def enclose(self, target: object, values: list[object], position: int) -> None:
        """Freeze containers that `target` will contain, and limit the depth of `target`."""
        if id(target) in self.frozen:
            self.refuse(position, _FROZEN)
        if _CONTAINERS.isdisjoint(map(type, values)):
            return
        depth = 0
        for value in values:
            if type(value) in _CONTAINERS and value != ():
                if value is target:
                    self.refuse(position, "a container contains itself")
                depth = max(depth, self.depth_of.get(id(value), 0) + 1)
                self.frozen.add(id(value))
        if depth > MAX_DEPTH:
            self.refuse(position, f"values are nested deeper than {MAX_DEPTH} levels")
        if depth > self.depth_of.get(id(target), 0):
            self.depth_of[id(target)] = depth

    def check_keys(self, keys: list[object], position: int) -> None:
        """Refuse keys that are containers: hashing nested tuples may exhaust the C stack."""
        if not _KEYS.issuperset(map(type, keys)):
            name = next(type(key).__name__ for key in keys if type(key) not in _KEYS)
            self.refuse(position, f"a {name} is a key or member of a set")

    def pop_mark(self, position: int) -> list[object]:
        """Return the values above the last MARK and remove them with the mark."""
        if not self.marks:
            self.refuse(position, "the opcode has no MARK before it")
        values, self.stack = self.stack, self.marks.pop()
        return values

    def take(self, position: int, start: int, length: int) -> bytes:
        """Return `length` bytes of the argument of the opcode at `position`."""
        value = self.content[position + start : position + start + length]
        if len(value) < length:
            self.refuse(position, _WITHIN, cure=_COPY)
        return value

    def check_length(self, position: int, length: int, start: int) -> None:
        remaining = len(self.content) - start
        if not 0 <= length <= remaining:
            message = f"the opcode claims {length} bytes, {remaining} remain"
            self.refuse(position, message, cure=_COPY)

    def result(self, position: int) -> object:
        if self.marks or len(self.stack) != 1:
            self.refuse(position, "STOP does not leave exactly one value")
        return self.stack[0]

    def refuse(
        self, position: int, message: str, code: str = "invalid-pickle", cure: str = ""
    ) -> NoReturn:
        location = Location(self.file, byte=position)
        raise InputError(message, location=location, code=code, cure=cure)
