"""The short form of ncclize: the same program, written with `<op>`."""

from __future__ import annotations

import re

import pytest
from collhub_msccl.plugin import ReadOptions
from collhub_msccl.reading.read_xml import read

from hub_core import InputError, verify
from hub_core.plugin_api import Source

# Two ranks that give each other their part, in place.
LONG = """<algo name="taccl" nchannels="1" nchunksperloop="2" proto="Simple" coll="allgather"
 inplace="1" ngpus="2">
<gpu id="0" i_chunks="1" o_chunks="2" s_chunks="0">
<tb id="0" send="1" recv="1" chan="0">
<step s="0" type="s" srcbuf="o" srcoff="0" dstbuf="o" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
<step s="1" type="r" srcbuf="o" srcoff="1" dstbuf="o" dstoff="1" cnt="1" depid="-1" deps="-1" hasdep="0"/>
</tb>
</gpu>
<gpu id="1" i_chunks="1" o_chunks="2" s_chunks="0">
<tb id="0" send="0" recv="0" chan="0">
<step s="0" type="s" srcbuf="o" srcoff="1" dstbuf="o" dstoff="1" cnt="1" depid="-1" deps="-1" hasdep="0"/>
<step s="1" type="r" srcbuf="o" srcoff="0" dstbuf="o" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
</tb>
</gpu>
</algo>
"""


def _short() -> str:
    """As ncclize shortens it: one location, and nothing that has its usual value."""
    header = '<algo name="taccl" nchannels="1">'
    short = re.sub(r"<algo[^>]*>", header, LONG)
    op = r'<op step="\1" type="\2" buf="\3" off="\4"/>'
    return re.sub(r'<step s="(\d)" type="(\w)" srcbuf="(\w)" srcoff="(\d)"[^>]*/>', op, short)


def _source(text: str) -> Source:
    return Source.of_bytes("a.xml", text.encode())


def test_the_short_form_is_the_same_algorithm() -> None:
    stated = ReadOptions(collective="allgather")
    short = read(_source(_short()), stated)
    long = read(_source(LONG), ReadOptions())
    assert verify(short).ok
    assert short.collective == long.collective
    # Its lines alone are others.
    assert short.steps.differences(long.steps) == ["source_line"]


def test_the_collective_has_to_be_stated() -> None:
    with pytest.raises(InputError, match=r"a.xml:1: this is the short form .* -O collective="):
        read(_source(_short()), ReadOptions())


def test_a_copy_has_two_locations() -> None:
    copied = _short().replace('type="s"', 'type="cpy"', 1)
    with pytest.raises(InputError, match=r"a.xml:4: an <op> of type 'cpy' has two locations"):
        read(_source(copied), ReadOptions(collective="allgather"))
