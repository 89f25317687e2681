"""Read a graph file as NCCL does.

Its XML dialect with its limits, the attributes that it needs, rings over all GPUs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

MOST_CHARACTERS = 253
MOST_ATTRIBUTES = 16
MOST_CHILDREN = 640
MOST_NODES = 65_536
MOST_CHANNELS = 32
REQUIRED = [
    "id",
    "pattern",
    "crossnic",
    "nchannels",
    "speedintra",
    "speedinter",
    "typeintra",
    "typeinter",
    "samechannels",
]
TYPES = frozenset(["LOC", "NVL", "NVB", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS"])
RING = "4"

# One tag: no declaration, one line, single blanks, no entities; only blanks and line feeds between
# tags.
_TAG = re.compile(r"[ \n\r]*<(/?)([a-z]+)((?: [a-z]+=(?:\"[^\"&<>\n\t]*\"|'[^'&<>\n\t]*'))*)(/?)>")
_ATTRIBUTE = re.compile(r" ([a-z]+)=[\"']([^\"']*)[\"']")


@dataclass
class Node:
    """One element."""

    name: str
    attributes: dict[str, str]
    children: list[Node] = field(default_factory=list)


def read_rings(text: str) -> list[list[int]]:
    """The devices of every ring of the ring graph, in order.

    Raises `ValueError` where NCCL would fail or misread.
    """
    root = _parse(text)
    _demand(
        root.name == "graphs" and root.attributes == {"version": "1"},
        "the root is graphs of version 1",
    )
    rings = [graph for graph in root.children if graph.attributes.get("id") == "0"]
    _demand(len(rings) == 1, "one graph has id 0")
    graph = rings[0]
    _demand(all(name in graph.attributes for name in REQUIRED), "all attributes are there")
    _demand(graph.attributes["pattern"] == RING, "the pattern is a ring")
    _demand(
        {graph.attributes["typeintra"], graph.attributes["typeinter"]} <= TYPES,
        "the types are known",
    )
    channels = [
        [int(gpu.attributes["dev"], 16) for gpu in channel.children if gpu.name == "gpu"]
        for channel in graph.children
    ]
    _demand(
        int(graph.attributes["nchannels"]) == len(channels) <= MOST_CHANNELS,
        "nchannels counts the channels",
    )
    _demand(
        all(len(set(ring)) == len(ring) and set(ring) == set(channels[0]) for ring in channels),
        "each GPU is in each ring once",
    )
    return channels


def _parse(text: str) -> Node:
    place, count, stack = 0, 0, [Node("", {})]
    while match := _TAG.match(text, place):
        place = match.end()
        is_end, name, attributes, is_empty = match.groups()
        if is_end:
            _demand(len(stack) > 1 and stack.pop().name == name, "tags are nested")
            continue
        node = Node(name, _attributes(attributes))
        count += 1
        stack[-1].children.append(node)
        _demand(
            len(stack[-1].children) <= MOST_CHILDREN and count <= MOST_NODES,
            "there is room for all elements",
        )
        if not is_empty:
            stack.append(node)
    _demand(
        not text[place:].strip(" \n\r") and len(stack) == 1 and len(stack[0].children) == 1,
        "the file is one element",
    )
    return stack[0].children[0]


def _attributes(text: str) -> dict[str, str]:
    found = _ATTRIBUTE.findall(text)
    _demand(len(found) <= MOST_ATTRIBUTES, "there are at most 16 attributes")
    _demand(
        all(
            len(name) <= MOST_CHARACTERS and len(value) <= MOST_CHARACTERS for name, value in found
        ),
        "texts are short",
    )
    return dict(found)


def _demand(holds: bool, what: str) -> None:
    if not holds:
        raise ValueError(f"does not hold: {what}")
