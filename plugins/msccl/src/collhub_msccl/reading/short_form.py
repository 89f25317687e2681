"""The short form of the `ncclize` programs: `<op>` instead of `<step>`, with one location each.

Source: msccl-tools 030a750 and TACCL 426bd1e, `ncclize` with `old_format` false. No runtime reads
it. An operation has one location: that a send reads or a receive writes. Counts, dependencies and
most attributes of `<algo>` are omitted if they have the usual value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from collhub_msccl.reading.element_tables import ElementTable, ScannedXml, Texts
from hub_core.model import InputError, Location

_DEFAULT_ATTRIBUTES = (("cnt", "1"), ("depid", "-1"), ("deps", "-1"), ("hasdep", "0"))
# The collectives for which TACCL's normal header has inplace="1".
_IN_PLACE_COLLECTIVES = frozenset({"allgather", "allreduce", "reduce_scatter"})
_TACCL_NAME = "taccl"


def to_step(attributes: list[str], file: str, line: int) -> list[str]:
    """Attributes of an `<op>` as those of a `<step>`: alternating names and values.

    Raises `InputError` for a local copy or reduction, which has two locations.
    """
    given_attributes = dict(zip(attributes[::2], attributes[1::2], strict=True))
    kind = given_attributes.get("type", "")
    if kind in ("cpy", "re"):
        raise InputError(
            f"an <op> of type {kind!r} has two locations, but the short form gives only one",
            location=Location(file, line),
            cure="write the file with old_format",
            code="short-form",
        )
    location = {"buf": given_attributes.pop("buf", ""), "off": given_attributes.pop("off", "")}
    step = {"s": given_attributes.pop("step", "")}
    for end in ("src", "dst"):
        step |= {f"{end}{name}": text for name, text in location.items()}
    step |= dict(_DEFAULT_ATTRIBUTES) | given_attributes
    return [text for pair in step.items() for text in pair]


def complete_header(document: ScannedXml, collective: str | None, file: str) -> ScannedXml:
    """The document with the attributes of `<algo>` that the short form omits.

    Any other document unchanged.

    `collective`: as in `coll`. Raises `InputError` if neither the file nor `collective` gives the
    name.
    """
    if not document.is_short:
        return document
    name = document.algo.get("coll", collective)
    if name is None:
        raise InputError(
            "this is the short form of ncclize, with <op>: it does not name its collective, "
            "and no runtime reads it",
            location=Location(file, document.algo_line),
            cure="give the collective: -O collective=allgather, or write it with old_format",
            code="short-form",
        )
    gpus, texts = document.gpus, document.texts
    unit_count = max(_find_maximum(gpus, texts, "i_chunks"), _find_maximum(gpus, texts, "o_chunks"))
    is_of_taccl = document.algo.get("name") == _TACCL_NAME
    usual: Mapping[str, str] = {
        "coll": name,
        "proto": "Simple",
        "ngpus": str(len(gpus)),
        "nchunksperloop": str(unit_count),
        "inplace": str(int(is_of_taccl and name in _IN_PLACE_COLLECTIVES)),
    }
    return replace(document, algo={**usual, **document.algo})


def _find_maximum(gpus: ElementTable, texts: Texts, attribute: str) -> int:
    """Maximum of a numeric attribute, at least 1; later checks report texts that are no numbers."""
    values, _ = texts.numbers
    return int(np.max(values[gpus.column(attribute)], initial=1))
