"""Fixtures: build small MSCCL-IR texts, one element a line, and read them."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from collhub_msccl.plugin import ReadOptions
from collhub_msccl.reading.read_xml import read

from hub_core.model import Algorithm, Diagnostic, HubError
from hub_core.plugin_api import Source

_HEADER = {
    "name": "test",
    "proto": "Simple",
    "nchannels": "1",
    "nchunksperloop": "2",
    "ngpus": None,
    "coll": "custom",
    "inplace": "0",
    "outofplace": "1",
    "minBytes": "0",
    "maxBytes": "0",
}


def _element(tag: str, attributes: dict[str, object], close: str = ">") -> str:
    pairs = "".join(f' {name}="{value}"' for name, value in attributes.items() if value is not None)
    return f"<{tag}{pairs}{close}"


def step(
    type: str,
    src: str = "i0",
    dst: str = "o0",
    cnt: int = 1,
    wait: tuple[int, int] = (-1, -1),
    flag: bool = False,
    **other: object,
) -> dict[str, object]:
    """Attributes of a step; None leaves one out.

    `src` and `dst` such as `i0`; `wait`: (depid, deps); `flag`: hasdep.
    """
    sides = {"srcbuf": src[0], "srcoff": src[1:], "dstbuf": dst[0], "dstoff": dst[1:]}
    waits = {"depid": wait[0], "deps": wait[1], "hasdep": int(flag)}
    return {"s": None, "type": type, **sides, "cnt": cnt, **waits, **other}


def block(
    *steps: dict[str, object],
    send: object = -1,
    recv: object = -1,
    chan: object = 0,
    **other: object,
) -> list[str]:
    """Lines of a thread block but for its id, which counts up unless it is given."""
    lines = []
    for number, attributes in enumerate(steps):
        lines.append(
            _element(
                "step",
                {"s": number} | {k: v for k, v in attributes.items() if k != "s" or v is not None},
                "/>",
            )
        )
    return [
        _element("tb", {"id": "ID", "send": send, "recv": recv, "chan": chan, **other}),
        *lines,
        "</tb>",
    ]


def gpu(
    *blocks: list[str], i: object = 2, o: object = 2, s: object = 0, **other: object
) -> list[str]:
    """Lines of a rank but for its id, which counts up unless it is given."""
    lines = [_element("gpu", {"id": "ID", "i_chunks": i, "o_chunks": o, "s_chunks": s, **other})]
    for number, part in enumerate(blocks):
        lines += [part[0].replace('"ID"', f'"{number}"'), *part[1:]]
    return [*lines, "</gpu>"]


def algo(*gpus: list[str], **header: object) -> str:
    """A whole file, of a custom collective with two chunks unless the header says otherwise."""
    attributes = {**_HEADER, "ngpus": len(gpus), **header}
    lines = [_element("algo", attributes)]
    for number, part in enumerate(gpus):
        lines += [part[0].replace('"ID"', f'"{number}"'), *part[1:]]
    return "\n".join([*lines, "</algo>", ""])


def local(*blocks: Iterable[dict[str, object]], **header: object) -> str:
    """A file of one rank whose thread blocks have these steps, without peers; scratch of 8."""
    return algo(
        gpu(*(block(*steps) for steps in blocks), i=8, o=8, s=8), **{"nchunksperloop": 8, **header}
    )


def pair(sending: dict[str, object], receiving: dict[str, object], **header: object) -> str:
    """Rank 0 executes `sending` towards rank 1, which executes `receiving`."""
    return algo(gpu(block(sending, send=1), s=2), gpu(block(receiving, recv=0), s=2), **header)


class Reader:
    """Reads texts and keeps what was reported."""

    def __init__(self) -> None:
        self.reported: list[Diagnostic] = []

    def __call__(self, text: str | bytes, **options: Any) -> Algorithm:
        content = text if isinstance(text, bytes) else text.encode()
        parts = Source.of_bytes("test.xml", content).parts
        return read(Source("test.xml", parts, self.reported.append), ReadOptions(**options))

    def refusal(self, text: str | bytes, **options: Any) -> list[str]:
        """`line: code: message` of every error."""
        with pytest.raises(HubError) as caught:
            self(text, **options)
        return [
            f"{found.location.line}: {found.code}: {found.message}"
            for found in caught.value.diagnostics
        ]

    @property
    def warnings(self) -> list[str]:
        """`line: code` of everything that was reported."""
        return [f"{found.location.line}: {found.code}" for found in self.reported]


@pytest.fixture
def reader() -> Reader:
    """A reader with an empty list of reports."""
    return Reader()


@pytest.fixture(scope="session")
def loaders() -> ModuleType:
    """The oracle `runtime_loaders.py` beside this file."""
    spec = importlib.util.spec_from_file_location(
        "runtime_loaders", Path(__file__).with_name("runtime_loaders.py")
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Its dataclasses look their module up by name.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def xml() -> SimpleNamespace:
    """The functions that build texts."""
    return SimpleNamespace(step=step, block=block, gpu=gpu, algo=algo, local=local, pair=pair)


@pytest.fixture(scope="session")
def reader_of() -> Reader:
    """A reader for tests that read many texts and look at no reports."""
    return Reader()
