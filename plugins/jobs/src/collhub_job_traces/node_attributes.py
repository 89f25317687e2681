"""Attributes of nodes for which the model has no column: texts in `Workload.extras`.

An extra is the row of tokens of a record (see `records`). One that begins with `+` stands for the
record that the writer makes of a node, with more attributes behind it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from collhub_job_traces.records import ATTRIBUTE, attribute, attribute_field, fields
from hub_core.chakra import Kind

MORE = "+"
"""First token of an extra that adds to a record of the writer's own making."""


def attributes_extra(attributes: Mapping[str, str]) -> str:
    """The extra by which a node carries these texts, as attributes of kind STRING.

    Documents of jobs keep it, traces write the attributes, and their reader gives them back.
    """
    written = [
        attribute_field(name, Kind.STRING, text.encode()) for name, text in attributes.items()
    ]
    return " ".join([MORE, *(f"={field.hex()}" for field in written)])


def attributes_of_extra(extra: str) -> dict[str, str]:
    """The texts among the attributes that an extra carries, by name.

    Empty for an extra of another making.
    """
    found = {}
    for token in extra.split():
        for raw in _raw(token):
            read = attribute(raw)
            if read.kind == Kind.STRING:
                found[read.name] = read.text
    return found


def _raw(token: str) -> Iterator[bytes]:
    """Encoded attributes in a token that holds bytes."""
    if token[0] not in "=!":
        return
    try:
        record = list(fields(bytes.fromhex(token[1:])))
    except ValueError:
        # Other formats keep other things in their extras.
        return
    for number, value, _ in record:
        if number == ATTRIBUTE and isinstance(value, bytes):
            yield value
