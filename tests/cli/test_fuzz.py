"""Damaged input of every format, through the whole program: only documented exit codes, one-line errors, no leftovers."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import hub_core
from hub_core.cli.main import main
from hub_core.documents import algorithms as document
from hub_core.testing.samples import ring_all_reduce

pytestmark = pytest.mark.once

EXAMPLES = 40
CONFIGURATION = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

XML = """<algo name="r" nchannels="1" nchunksperloop="2" ngpus="2" proto="Simple" coll="allreduce" inplace="1">
<gpu id="0" i_chunks="2" o_chunks="0" s_chunks="0"><tb id="0" send="1" recv="1" chan="0">
<step s="0" type="s" srcbuf="i" srcoff="0" dstbuf="i" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
<step s="1" type="rrcs" srcbuf="i" srcoff="1" dstbuf="i" dstoff="1" cnt="1" depid="-1" deps="-1" hasdep="0"/>
<step s="2" type="r" srcbuf="i" srcoff="0" dstbuf="i" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/></tb></gpu>
<gpu id="1" i_chunks="2" o_chunks="0" s_chunks="0"><tb id="0" send="0" recv="0" chan="0">
<step s="0" type="s" srcbuf="i" srcoff="1" dstbuf="i" dstoff="1" cnt="1" depid="-1" deps="-1" hasdep="0"/>
<step s="1" type="rrcs" srcbuf="i" srcoff="0" dstbuf="i" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
<step s="2" type="r" srcbuf="i" srcoff="1" dstbuf="i" dstoff="1" cnt="1" depid="-1" deps="-1" hasdep="0"/></tb></gpu>
</algo>"""


def program(*arguments: str) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(arguments)
    return code, out.getvalue(), err.getvalue()


def check_survives(files: dict[str, bytes], source: str) -> None:
    """Convert, verify and inspect the files; whatever they hold, the outcome is one of those that the manual states."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, content in files.items():
            (folder / file).write_bytes(content)
        code, out, err = program(
            "convert", str(folder / source), "-o", str(folder / "out" / "x.json")
        )
        assert code in (0, 1), err
        assert out == ""
        assert (folder / "out" / "x.json").exists() == (code == 0)
        assert (folder / "out").exists() == (code == 0)
        lines = err.splitlines()
        assert all(
            line.startswith(("error: ", "warning: ", "note: ", "wrote ")) for line in lines
        ), err
        assert any(line.startswith("error: ") for line in lines) == (code == 1)
        for command in ("verify", "inspect"):
            code, _, err = program(command, str(folder / source))
            assert code in (0, 1), err
            assert "Traceback" not in err


@pytest.mark.parametrize("name", ["x.json", "x.0.et", "x.xml", "x"])
@CONFIGURATION
@given(content=st.binary(max_size=300))
def test_any_bytes_under_any_name(name: str, content: bytes) -> None:
    if name == "x.xml" and importlib.util.find_spec("collhub_msccl") is None:
        return
    check_survives({name: content}, name)


def document_bytes() -> bytes:
    (artifact,) = document.write(ring_all_reduce(3), {}).artifacts
    return artifact.content()


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from([-1, 2**31, 2**63, 10**30]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)


def mutated(value: Any, data: st.DataObject) -> Any:
    """Replace, remove or repeat one thing somewhere in a JSON value."""
    if isinstance(value, dict | list) and value and data.draw(st.integers(0, 5)):
        keys = sorted(value) if isinstance(value, dict) else range(len(value))
        key = data.draw(st.sampled_from(keys))
        action = data.draw(st.sampled_from(["descend", "descend", "descend", "remove", "repeat"]))
        copy = value.copy()
        if action == "remove":
            del copy[key]
        elif action == "repeat" and isinstance(copy, list):
            copy.insert(key, copy[key])
        else:
            copy[key] = mutated(copy[key], data)
        return copy
    return data.draw(JSON_VALUES)


@CONFIGURATION
@given(data=st.data())
def test_a_json_document_of_damaged_structure(data: st.DataObject) -> None:
    root = mutated(json.loads(document_bytes()), data)
    check_survives({"x.json": json.dumps(root).encode()}, "x.json")


NUMBERS = ["", "-1", "0", "1", "2", "9", "0x10", "010", "1e9", "99999999999999999999"]
WORDS = st.sampled_from(
    [
        *NUMBERS,
        "i",
        "o",
        "s",
        "r",
        "rcs",
        "rrs",
        "rrc",
        "rrcs",
        "re",
        "cpy",
        "nop",
        "allgather",
        "custom",
    ]
)


@CONFIGURATION
@given(data=st.data())
def test_an_xml_file_of_damaged_structure(data: st.DataObject) -> None:
    if importlib.util.find_spec("collhub_msccl") is None:
        pytest.skip("the plugin collhub_msccl is not installed")
    pieces = XML.split('"')
    for _ in range(data.draw(st.integers(1, 4))):
        # Every second piece is the value of an attribute.
        place = 2 * data.draw(st.integers(0, len(pieces) // 2 - 1)) + 1
        pieces[place] = data.draw(WORDS)
    lines = '"'.join(pieces).splitlines()
    if data.draw(st.booleans()):
        line = data.draw(st.integers(0, len(lines) - 1))
        lines[line : line + 1] = data.draw(st.sampled_from([[], [lines[line]] * 2]))
    check_survives({"x.xml": "\n".join(lines).encode()}, "x.xml")


@CONFIGURATION
@given(data=st.data())
def test_traces_of_damaged_bytes(data: st.DataObject) -> None:
    files = trace_files()
    name = data.draw(st.sampled_from(sorted(files)))
    content = bytearray(files[name])
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, max(len(content) - 1, 0)))
        match data.draw(st.sampled_from(["flip", "cut", "insert", "repeat"])):
            case "flip" if content:
                content[place] ^= 1 << data.draw(st.integers(0, 7))
            case "cut":
                del content[place:]
            case "insert":
                content[place:place] = data.draw(st.binary(min_size=1, max_size=4))
            case _:
                content += content[place:]
    check_survives({**files, name: bytes(content)}, "x")


def trace_files() -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as name:
        written = hub_core.write(ring_all_reduce(3), Path(name) / "x")
        return {path.name: path.read_bytes() for path in written.paths}
