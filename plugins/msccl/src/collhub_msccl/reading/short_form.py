"""The short form of the `ncclize` programs: `<op>` in place of `<step>`, with one location each.

Source: msccl-tools 030a750 and TACCL 426bd1e, `ncclize` with `old_format` false. No runtime reads
it. An operation names where a send reads or a receive writes; counts, dependencies and most of what
`<algo>` states are left out where they have the usual value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from collhub_msccl.reading.element_tables import ElementTable, ScannedXml, Texts
from hub_core.model import InputError, Location

_DEFAULTS = (("cnt", "1"), ("depid", "-1"), ("deps", "-1"), ("hasdep", "0"))
# What TACCL's own header states of these.
_IN_PLACE = frozenset({"allgather", "allreduce", "reduce_scatter"})
_OF_TACCL = "taccl"


def as_step(attributes: list[str], file: str, line: int) -> list[str]:
    """The attributes of an `<op>` as those of a `<step>`: names and values in turn.

    Raises `InputError` for a local copy, which has two locations.
    """
    stated = dict(zip(attributes[::2], attributes[1::2], strict=True))
    kind = stated.get("type", "")
    if kind in ("cpy", "re"):
        raise InputError(
            f"an <op> of type {kind!r} has two locations, and the short form states one",
            location=Location(file, line),
            cure="write the file with old_format",
            code="short-form",
        )
    place = {"buf": stated.pop("buf", ""), "off": stated.pop("off", "")}
    step = {"s": stated.pop("step", "")}
    for end in ("src", "dst"):
        step |= {f"{end}{name}": text for name, text in place.items()}
    step |= dict(_DEFAULTS) | stated
    return [text for pair in step.items() for text in pair]


def with_header(document: ScannedXml, collective: str | None, file: str) -> ScannedXml:
    """The document with what the short form leaves out of `<algo>`; any other as it is.

    `collective`: as `coll` would name it. Raises `InputError` where nobody names it.
    """
    if not document.is_short:
        return document
    name = document.algo.get("coll", collective)
    if name is None:
        raise InputError(
            "this is the short form of ncclize, with <op>: it does not name its collective, "
            "and no runtime reads it",
            location=Location(file, document.algo_line),
            cure="state the collective: -O collective=allgather, or write it with old_format",
            code="short-form",
        )
    gpus, texts = document.gpus, document.texts
    most = max(_most(gpus, texts, "i_chunks"), _most(gpus, texts, "o_chunks"))
    is_of_taccl = document.algo.get("name") == _OF_TACCL
    usual: Mapping[str, str] = {
        "coll": name,
        "proto": "Simple",
        "ngpus": str(len(gpus)),
        "nchunksperloop": str(most),
        "inplace": str(int(is_of_taccl and name in _IN_PLACE)),
    }
    return replace(document, algo={**usual, **document.algo})


def _most(gpus: ElementTable, texts: Texts, attribute: str) -> int:
    """The largest number of an attribute; what is none is told by whoever reads the table."""
    values, _ = texts.numbers
    return int(np.max(values[gpus.column(attribute)], initial=1))
