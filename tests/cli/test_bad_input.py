"""Bad input of every kind: a line that names the file, a documented exit code, nothing half-written, no traceback."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

XML = """<algo name="ring" nchannels="1" nchunksperloop="2" ngpus="2" proto="Simple" coll="allreduce" inplace="1">
  <gpu id="0" i_chunks="2" o_chunks="0" s_chunks="0">
    <tb id="0" send="1" recv="1" chan="0">
      <step s="0" type="s" srcbuf="i" srcoff="0" dstbuf="i" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
      <step s="1" type="rrcs" srcbuf="i" srcoff="1" dstbuf="i" dstoff="1" cnt="1" depid="-1" deps="-1" hasdep="0"/>
      <step s="2" type="r" srcbuf="i" srcoff="0" dstbuf="i" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
    </tb>
  </gpu>
  <gpu id="1" i_chunks="2" o_chunks="0" s_chunks="0">
    <tb id="0" send="0" recv="0" chan="0">
      <step s="0" type="s" srcbuf="i" srcoff="1" dstbuf="i" dstoff="1" cnt="1" depid="-1" deps="-1" hasdep="0"/>
      <step s="1" type="rrcs" srcbuf="i" srcoff="0" dstbuf="i" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
      <step s="2" type="r" srcbuf="i" srcoff="1" dstbuf="i" dstoff="1" cnt="1" depid="-1" deps="-1" hasdep="0"/>
    </tb>
  </gpu>
</algo>
"""


def changed(old: str, new: str) -> bytes:
    assert old in XML
    return XML.replace(old, new, 1).encode()


BAD_XML = {
    "empty": b"",
    "blank": b"  \n",
    "truncated": XML[:600].encode(),
    "binary": bytes(range(256)) * 16,
    "doctype": b'<!DOCTYPE algo [<!ENTITY a "b">]>\n' + XML.encode(),
    "entity": changed('name="ring"', 'name="&a;"'),
    "wrong root": b"<system/>",
    "other XML": b'<?xml version="1.0"?>\n<graphs version="1"><graph id="0"/></graphs>',
    "two roots": XML.encode() * 2,
    "unknown step type": changed('type="rrcs"', 'type="sx"'),
    "missing attribute": changed(' type="s"', ""),
    "missing ngpus": changed(' ngpus="2"', ""),
    "not a number": changed('srcoff="0"', 'srcoff="zero"'),
    "negative count": changed('cnt="1"', 'cnt="-1"'),
    "huge count": changed('cnt="1"', 'cnt="99999999999999999999"'),
    "1e9 ranks": changed('ngpus="2"', 'ngpus="1000000000"'),
    "1e9 chunks": changed('nchunksperloop="2"', 'nchunksperloop="99999999999999999999"'),
    "peer out of range": changed('send="1"', 'send="7"'),
    "send to itself": changed('send="1"', 'send="0"'),
    "rank twice": changed('gpu id="1"', 'gpu id="0"'),
    "unknown buffer": changed('srcbuf="i"', 'srcbuf="x"'),
    "unknown collective": changed('coll="allreduce"', 'coll="allredcue"'),
    "dependency on nothing": changed('depid="-1" deps="-1"', 'depid="5" deps="0"'),
}
LAST_RECEIVE = '      <step s="2" type="r" srcbuf="i" srcoff="0" dstbuf="i" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>\n'
WRONG_XML = {
    "negative offset": changed('srcoff="0"', 'srcoff="-5"'),
    "reference outside the buffer": changed('srcoff="0"', 'srcoff="9"'),
    "send without receive": changed(LAST_RECEIVE, ""),
    "unequal counts": changed(LAST_RECEIVE, LAST_RECEIVE.replace('cnt="1"', 'cnt="2"')),
}


def is_refused(run, file: str) -> None:
    """One or more lines with severity and rule; the first error names the file; no other output."""
    assert run.code in (1, 2, 3, 4)
    assert run.out == ""
    lines = run.err.splitlines()
    assert lines
    assert all(line.startswith(("error: ", "warning: ", "note: ")) for line in lines), run.err
    assert all(re.search(r" \[[a-z][a-z0-9-]*\]\Z", line) for line in lines), run.err
    assert run.error_lines[0].startswith(f"error: {file}"), run.err


def test_the_valid_file_of_this_module_is_valid(collhub, msccl: None, tmp_path: Path) -> None:
    (tmp_path / "good.xml").write_text(XML)
    assert collhub("verify", tmp_path / "good.xml").code == 0


@pytest.mark.parametrize("name", BAD_XML)
def test_bad_xml_is_refused_and_nothing_is_written(
    collhub, msccl: None, tmp_path: Path, name: str
) -> None:
    path = tmp_path / "bad.xml"
    path.write_bytes(BAD_XML[name])
    run = collhub("convert", path, "-o", tmp_path / "out" / "x")
    is_refused(run, str(path))
    assert run.code == 1
    assert len(run.err) < 4000
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", WRONG_XML)
def test_wrong_algorithms_fail_verification_with_file_and_line(
    collhub, msccl: None, tmp_path: Path, name: str
) -> None:
    path = tmp_path / "wrong.xml"
    path.write_bytes(WRONG_XML[name])
    run = collhub("verify", path)
    assert run.code == 1
    assert "wrong.xml:" in run.error_lines[0]


@pytest.mark.parametrize("suffix", [".json", ".0.et", ".xml", ".bin"])
def test_a_gigabyte_of_zeros_is_refused_at_once(collhub, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"zeros{suffix}"
    with path.open("wb") as file:
        file.truncate(1 << 30)
    run = collhub("inspect", path)
    is_refused(run, str(tmp_path / "zeros"))
    assert len(run.err.splitlines()) == 1


@pytest.mark.parametrize("name", ["missing.xml", "missing", "folder"])
def test_what_cannot_be_opened_is_named(collhub, tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    run = collhub("verify", tmp_path / name)
    is_refused(run, str(tmp_path / name))
    assert (run.code, len(run.err.splitlines())) == (1, 1)


def test_an_unknown_format_is_named(collhub, tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_text("hello")
    run = collhub("verify", path)
    is_refused(run, str(path))
    assert "collhub formats" in run.err


def test_an_unknown_format_name_is_exit_2(collhub, ring: Path) -> None:
    run = collhub("verify", ring, "--from", "jsn")
    assert (run.code, len(run.error_lines)) == (2, 1)
    assert "did you mean 'json'?" in run.err


def test_empty_standard_input_is_refused(collhub) -> None:
    is_refused(collhub("verify", "-"), "<stdin>")


def test_a_plugin_that_is_switched_off_is_named_with_the_cure(
    collhub, msccl: None, tmp_path: Path
) -> None:
    path = tmp_path / "good.xml"
    path.write_text(XML)
    run = collhub("--no-plugins", "verify", path)
    assert (run.code, len(run.error_lines)) == (3, 1)
    assert "disabled" in run.err


@pytest.fixture
def traces(collhub, ring: Path, tmp_path: Path) -> Path:
    """The prefix of the ring's traces."""
    assert collhub("convert", ring, "-o", tmp_path / "set" / "ring").code == 0
    return tmp_path / "set" / "ring"


def rank_file(traces: Path, rank: int) -> Path:
    return traces.with_name(f"{traces.name}.{rank}.et")


def damage_missing(traces: Path) -> None:
    rank_file(traces, 2).unlink()


def damage_truncated(traces: Path) -> None:
    file = rank_file(traces, 1)
    file.write_bytes(file.read_bytes()[:-3])


def damage_empty(traces: Path) -> None:
    rank_file(traces, 3).write_bytes(b"")


def damage_gzip(traces: Path) -> None:
    rank_file(traces, 0).write_bytes(b"\x1f\x8b\x08\x00" + bytes(64))


def damage_binary(traces: Path) -> None:
    rank_file(traces, 1).write_bytes(bytes(range(256)))


def damage_exchanged(traces: Path) -> None:
    rank_file(traces, 1).write_bytes(rank_file(traces, 2).read_bytes())


def damage_twice(traces: Path) -> None:
    file = rank_file(traces, 1)
    content = file.read_bytes()
    size = content[0] if content[0] < 128 else content[0] % 128 + 128 * content[1]
    start = 1 if content[0] < 128 else 2
    file.write_bytes(content + content[start + size :])


@pytest.mark.parametrize(
    "damage",
    [
        damage_missing,
        damage_truncated,
        damage_empty,
        damage_gzip,
        damage_binary,
        damage_exchanged,
        damage_twice,
    ],
)
def test_damaged_trace_sets_are_refused_and_nothing_is_written(
    collhub, traces: Path, tmp_path: Path, damage
) -> None:
    damage(traces)
    run = collhub("convert", traces, "-o", tmp_path / "out" / "x.json")
    is_refused(run, str(traces))
    assert run.code == 1
    assert not (tmp_path / "out").exists()


def test_ranks_of_another_algorithm_are_refused(
    collhub, traces: Path, save, tmp_path: Path
) -> None:
    from hub_core.testing.samples import ring_all_reduce

    save(ring_all_reduce(5), tmp_path / "five.json")
    assert collhub("convert", tmp_path / "five.json", "-o", tmp_path / "five").code == 0
    rank_file(traces, 3).write_bytes((tmp_path / "five.3.et").read_bytes())
    is_refused(collhub("verify", traces), str(traces))


def test_a_cycle_of_dependencies_is_refused(collhub, ring: Path) -> None:
    root = json.loads(ring.read_text())
    root["steps"]["data"][0] = [1]
    root["steps"]["data"][1] = [0]
    ring.write_text(json.dumps(root))
    run = collhub("verify", ring)
    is_refused(run, f"{ring}: rank 0, step 0")
    assert "cycle" in run.err


def test_an_output_folder_that_is_not_empty_is_refused(collhub, ring: Path, tmp_path: Path) -> None:
    formats = json.loads(collhub("formats", "--json").out)["formats"]
    folder_format = next(
        (way["name"] for way in formats if way["does"] == "write" and way["layout"] == "folder"),
        None,
    )
    if folder_format is None:
        pytest.skip("no installed plugin writes folders")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("keep")
    run = collhub("convert", ring, "-o", tmp_path / "out", "--to", folder_format, "-O", "size=1MiB")
    assert (run.code, len(run.error_lines)) == (2, 1)
    assert "--force" in run.err
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine.txt"]


def test_a_topology_that_is_too_small_is_refused(collhub, simulator: None, ring: Path) -> None:
    run = collhub("simulate", ring, "--topology", "ring:2", "--size", "1MiB")
    assert run.code == 2
    assert run.error_lines == [
        "error: topology ring:2 has 2 NPUs, the algorithm 4 ranks; choose a topology with at least one NPU per rank [topology-too-small]"
    ]


@pytest.mark.parametrize("command", ["verify", "inspect"])
def test_a_name_that_no_file_can_have_is_one_error(collhub, command: str) -> None:
    run = collhub(command, "a\0b")
    assert (run.code, run.out, len(run.error_lines)) == (1, "", 1)


def test_an_output_that_no_file_can_be_is_one_error(collhub, ring: Path) -> None:
    run = collhub("convert", ring, "-o", "a\0b.json")
    assert (run.code, run.out, len(run.error_lines)) == (2, "", 1)
