"""Whatever the bytes, reading ends with an algorithm or a HubError, and soon."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hub_core.model import Diagnostic, HubError

_NUMBERS = st.one_of(
    st.integers(-3, 9).map(str),
    st.sampled_from(
        [
            "",
            "abc",
            "1e9",
            "0x10",
            "010",
            "-0",
            "2147483647",
            "2147483648",
            "9" * 30,
            "1000000000",
            "65536",
            "\u0663",
        ]
    ),
)
_COLLECTIVES = [
    "allreduce",
    "allgather",
    "reduce_scatter",
    "alltoall",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "custom",
    "send",
    "x",
]
_STEP = st.fixed_dictionaries(
    dict.fromkeys(("s", "srcoff", "dstoff", "cnt", "depid", "deps"), _NUMBERS)
    | {"type": st.sampled_from("s r rcs rrc rrs rrcs cpy re nop ra x".split())}  # noqa: SIM905
    | {name: st.sampled_from(["i", "o", "s", "x", ""]) for name in ("srcbuf", "dstbuf")}
    | {"hasdep": st.sampled_from(["0", "1", "2"])}
)
_SANE_STEP = st.fixed_dictionaries(
    {name: st.integers(0, 3).map(str) for name in ("s", "srcoff", "dstoff", "deps")}
    | {
        "cnt": st.integers(1, 2).map(str),
        "depid": st.integers(-1, 2).map(str),
        "hasdep": st.sampled_from(["0", "1"]),
    }
    | {"type": st.sampled_from("s r rcs rrc rrs rrcs cpy re nop".split())}  # noqa: SIM905
    | {name: st.sampled_from(["i", "o", "s"]) for name in ("srcbuf", "dstbuf")}
)


def _check_only_refused(reader, content: bytes | str) -> bool:
    found: tuple[Diagnostic, ...] = ()
    try:
        reader(content)
    except HubError as error:
        found = error.diagnostics
    assert all("\n" not in str(one) for one in found)
    return not found


@given(st.binary(max_size=400))
def test_any_bytes(reader_of, content: bytes) -> None:
    assert not _check_only_refused(reader_of, content)


@settings(deadline=None)
@given(st.data())
def test_damaged_files(reader_of, xml, data: st.DataObject) -> None:
    content = bytearray(
        xml.local(
            [xml.step("cpy", flag=True)],
            [xml.step("nop", wait=(0, 0)), xml.step("re", wait=(0, 0))],
        ).encode()
    )
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(content)))
        content[start : start + data.draw(st.integers(0, 8))] = data.draw(st.binary(max_size=8))
    _check_only_refused(reader_of, bytes(content))


def _text(xml, draw: st.DrawFn, steps: st.SearchStrategy, numbers: st.SearchStrategy) -> str:
    gpus = [
        xml.gpu(
            *(
                xml.block(
                    *draw(st.lists(steps, max_size=4)),
                    send=draw(numbers),
                    recv=draw(numbers),
                    chan=draw(numbers),
                )
                for _ in range(draw(st.integers(0, 3)))
            ),
            i=draw(numbers),
            o=draw(numbers),
            s=draw(numbers),
        )
        for _ in range(draw(st.integers(0, 3)))
    ]
    coll = draw(st.sampled_from(_COLLECTIVES))
    modes = {name: draw(st.sampled_from(["0", "1", None])) for name in ("inplace", "outofplace")}
    return xml.algo(*gpus, coll=coll, nchunksperloop=draw(numbers), **modes)


@pytest.mark.once
@settings(deadline=None)
@given(st.data())
def test_structured_nonsense(reader_of, xml, data: st.DataObject) -> None:
    text = _text(xml, data.draw, _STEP, _NUMBERS)
    _check_only_refused(reader_of, text)


@pytest.mark.once
@settings(deadline=None, max_examples=100)
@given(st.data())
def test_plausible_structure(reader_of, xml, data: st.DataObject) -> None:
    _check_only_refused(reader_of, _text(xml, data.draw, _SANE_STEP, st.integers(-1, 2).map(str)))


def test_plausible_structure_is_sometimes_read(reader_of, xml) -> None:
    """The fuzz above reaches the last stage of reading, too."""
    chance = random.Random(7)

    def step() -> dict[str, object]:
        return xml.step(
            chance.choice(["cpy", "re"]),
            f"i{chance.randrange(3)}",
            f"s{chance.randrange(3)}",
            flag=True,
        )

    assert all(
        _check_only_refused(reader_of, xml.local([step() for _ in range(5)], [step()]))
        for _ in range(20)
    )
