"""Pickles are read without `pickle`: plain values are built, everything else is refused."""

from __future__ import annotations

import pickle
import pickletools
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from collhub_diagnosis.pickle_values import MAX_CONTAINERS, MAX_DEPTH, MAX_OPCODES, parse_pickle

from hub_core.model import InputError

FORBIDDEN = {
    "GLOBAL": b"cbuiltins\nlen\n",
    "STACK_GLOBAL": b"\x93",
    "REDUCE": b"R",
    "BUILD": b"b",
    "INST": b"ibuiltins\nlen\n",
    "OBJ": b"o",
    "NEWOBJ": b"\x81",
    "NEWOBJ_EX": b"\x92",
    "EXT1": b"\x82\x01",
    "EXT2": b"\x83\x01\x00",
    "EXT4": b"\x84\x01\x00\x00\x00",
    "PERSID": b"P1\n",
    "BINPERSID": b"Q",
    "NEXT_BUFFER": b"\x97",
    "READONLY_BUFFER": b"\x98",
}


def is_read_or_refused(content: bytes) -> bool:
    """Whether a pickle gives a value, or an error with an offset."""
    try:
        parse_pickle(content, "f")
    except InputError as error:
        return str(error).startswith("f: byte ")
    return True


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_plain_values_are_those_of_pickle(protocol: int) -> None:
    text = "name"
    value = {
        "numbers": [0, 255, 256, 65535, 65536, -1, -(2**31), 2**31, 2**40, -(2**63), 1.5, -0.0],
        "texts": [text, text, "", "ä" * 300],
        "plain": [None, True, False, (), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)],
        "nested": {"a": [{"b": [[]]}], 3: {}},
        "long": list(range(3000)),
    }
    # Protocol 2 has no opcode for bytes.
    if protocol > 2:
        value["bytes"] = [b"bytes", b"x" * 300]
    assert parse_pickle(pickle.dumps(value, protocol), "f") == value


@pytest.mark.parametrize("protocol", [4, 5])
def test_sets_are_read(protocol: int) -> None:
    value = [{1, "a"}, frozenset({2}), set()]
    assert parse_pickle(pickle.dumps(value, protocol), "f") == value


@pytest.mark.parametrize("name", FORBIDDEN)
def test_opcodes_for_objects_are_refused_by_name_and_offset(name: str) -> None:
    content = b"\x80\x02}q\x00(X\x01\x00\x00\x00a" + FORBIDDEN[name] + b"u."
    with pytest.raises(InputError, match=f"f: byte 12: the opcode {name} is not allowed"):
        parse_pickle(content, "f")


def test_every_other_opcode_is_refused_or_read() -> None:
    for opcode in pickletools.opcodes:
        content = b"\x80\x02(K\x01K\x02" + opcode.code.encode("latin-1") + b"\x00" * 9 + b"."
        assert is_read_or_refused(content)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\x80\x02X\xff\xff\xff\x7f.", "claims 2147483647 bytes, 1 remain"),
        (b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7f.", "claims 9223372036854775807 bytes"),
        (b"\x80\x02T\xff\xff\xff\xff.", "claims -1 bytes"),
        (b"\x80\x02\x8b\xff\xff\xff\x7f.", "claims 2147483647 bytes"),
        (b"\x80\x04\x95\xff\xff\xff\xff\x00\x00\x00\x00.", "claims 4294967295 bytes"),
        (b"\x80\x02\x8a\x09" + b"\x00" * 9 + b".", "an integer of 9 bytes"),
        (b"\x80\x02h\x07.", "no value has the memo number 7"),
        (b"\x80\x02]", "ends without STOP"),
        (b"\x80\x02K", "too few values|too few|ends within"),
        (b"\x80\x02a.", "too few values"),
        (b"\x80\x02K\x01K\x02.", "STOP does not leave exactly one value"),
        (b"\x80\x02(.", "STOP does not leave exactly one value"),
        (b"\x80\x02u.", "no MARK"),
        (b"\x80\x09].", "protocol 9"),
        (b"\x80\x02}(]K\x01u.", "a list is a key"),
        (b"\x80\x02}(K\x01u.", "a key without a value"),
        (b"\x80\x02}(K\x01K\x02K\x01K\x03u.", "one key appears twice"),
        (b"\x80\x02X\x01\x00\x00\x00\xff.", "not UTF-8"),
        (b"\x80\x02]q\x00h\x00a.", "contains itself"),
        (b"\x80\x02]q\x00]q\x01h\x00ah\x01h\x01a.", "contains itself|changed after"),
        (b"\x80\x02]q\x00]q\x01h\x00a0.", "POP"),
        (b"\x80\x02(((.", "exactly one value"),
        (b"\x80\x02]q\x00]q\x00.", "the memo number 0 is assigned twice"),
        (b"\x80\x02K\x00r\x00\x00\x00\x00K\x01q\x00.", "the memo number 0 is assigned twice"),
        (b"\x80\x02]r\x05\x00\x00\x00]r\x05\x00\x00\x00.", "the memo number 5 is assigned twice"),
    ],
)
def test_broken_pickles_are_refused_with_their_offset(content: bytes, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        parse_pickle(content, "f")
    assert str(caught.value).startswith("f: byte ")


def test_a_cycle_through_two_lists_is_refused() -> None:
    first: list[object] = []
    second: list[object] = [first]
    first.append(second)
    with pytest.raises(InputError, match="changed after a reference to it"):
        parse_pickle(pickle.dumps(first, 2), "f")


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x02" + b"(" * 100_000 + b".",
        b"\x80\x02" + b"]" * 1000 + b"a" * 999 + b".",
        b"\x80\x02K\x00" + b"\x85" * 100_000 + b".",
        b"\x80\x02]q\x00" + b"".join(b"]h%caq%c" % (n, n + 1) for n in range(200)) + b".",
    ],
    ids=["marks", "lists", "tuples", "memo"],
)
def test_deep_values_are_refused(content: bytes) -> None:
    with pytest.raises(InputError, match=f"deeper than {MAX_DEPTH} levels"):
        parse_pickle(content, "f")


def test_shared_references_are_not_copied() -> None:
    value: list[object] = [1]
    for _ in range(40):
        value = [value, value]
    started = time.process_time()
    root = parse_pickle(pickle.dumps(value, 2), "f")
    assert isinstance(root, list)
    assert root[0] is root[1]
    assert time.process_time() - started < 1


def test_too_many_containers_are_refused() -> None:
    with pytest.raises(InputError, match=f"more than {MAX_CONTAINERS} containers"):
        parse_pickle(b"\x80\x02(" + b"}" * 2_000_000 + b"l.", "f")


def test_too_many_opcodes_are_refused() -> None:
    # A list of small integers: two bytes of the file for each element.
    content = b"\x80\x02](" + b"K\x01" * (MAX_OPCODES + 1) + b"e."
    with pytest.raises(InputError, match=f"more than {MAX_OPCODES} opcodes"):
        parse_pickle(content, "f")


def test_mutated_pickles_are_read_or_refused() -> None:
    value = {"version": "2.10", "entries": [{"a": [1, 2**40, None, ("x", 1.5)]}] * 3}
    content = pickle.dumps(value, 2)
    generator = random.Random(7)
    for _ in range(3000):
        changed = bytearray(content)
        for _ in range(generator.randrange(1, 4)):
            changed[generator.randrange(len(changed))] = generator.randrange(256)
        assert is_read_or_refused(bytes(changed))


def test_the_module_pickle_is_not_imported(tmp_path: Path) -> None:
    (tmp_path / "rank_0").write_bytes(b"\x80\x02}(X\x01\x00\x00\x00acos\nsystem\nu.")
    script = (
        "import builtins, sys\n"
        "from collhub_diagnosis.pickle_values import parse_pickle\n"
        "before = set(sys.modules)\n"
        "try:\n"
        f"    parse_pickle(open({str(tmp_path / 'rank_0')!r}, 'rb').read(), 'f')\n"
        "except Exception as error:\n"
        "    print(error)\n"
        "print(sorted(set(sys.modules) - before))\n"
    )
    command = [sys.executable, "-c", script]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    first, last = result.stdout.splitlines()
    assert first.startswith("f: byte 10: the opcode GLOBAL is not allowed")
    assert last == "[]"


HOSTILE = {
    "empty-dicts": b"\x80\x02(" + b"}" * 20_000_000 + b"l.",
    "empty-lists": b"\x80\x02(" + b"]" * 20_000_000 + b"l.",
    "empty-sets": b"\x80\x04(" + b"\x8f" * 20_000_000 + b"l.",
    "tuples": b"\x80\x02(" + b"K\x01K\x01\x86" * 4_000_000 + b"t.",
    "marks": b"\x80\x02" + b"(" * 20_000_000 + b".",
    "nested-lists": b"\x80\x02" + b"]" * 5000 + b"a" * 4999 + b".",
    "text-of-2-gb": b"\x80\x02X\xff\xff\xff\x7f" + b"a" * 1_000_000 + b".",
    "text-of-8-eb": b"\x80\x04\x8d" + b"\xff" * 7 + b"\x7f.",
    "bytes-of-2-gb": b"\x80\x03B\xff\xff\xff\x7f.",
    "integer-of-2-gb": b"\x80\x02\x8b\xff\xff\xff\x7f.",
    "frame-of-2-gb": b"\x80\x04\x95\xff\xff\xff\x7f\x00\x00\x00\x00.",
    "memo-of-4-billion": b"\x80\x02]r\xff\xff\xff\xff.",
    "shared-lists": b"\x80\x02]q\x00"
    + b"".join(b"]q%c(h%ch%ce" % (n + 1, n, n) for n in range(200))
    + b".",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_pickles_take_less_than_a_second_and_200_mb(tmp_path: Path, name: str) -> None:
    file = tmp_path / "rank_0"
    file.write_bytes(HOSTILE[name])
    script = (
        "import resource, sys, time\n"
        "from collhub_diagnosis.pickle_values import parse_pickle\n"
        "from hub_core.model import InputError\n"
        f"content = open({str(file)!r}, 'rb').read()\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "started = time.process_time()\n"
        "try:\n"
        "    parse_pickle(content, 'f')\n"
        "except InputError as error:\n"
        "    assert str(error).startswith('f: byte '), error\n"
        "used_s = time.process_time() - started\n"
        "after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "print(used_s, (after - before) // 1024)\n"
    )
    command = [sys.executable, "-c", script]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    used_s, used_mib = map(float, result.stdout.split())
    assert used_s < 1
    assert used_mib < 200
