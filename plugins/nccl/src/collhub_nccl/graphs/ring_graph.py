"""The ring graph of a file for `NCCL_GRAPH_FILE`: channels, devices and attributes of one node.

Source: `src/graph/search.cc`, and the parser in `src/graph/xml.cc`, of NCCL 2.30.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import gcd
from xml.sax.saxutils import quoteattr

from hub_core.model import JsonValue

# NCCL_TOPO_PATTERN_RING
RING_PATTERN = 4
# NCCL has arrays for 64 channels and doubles those of the file. It reads more without a check.
MAX_CHANNELS = 32
# NCCL_TOPO_MAX_NODES: GPUs, network devices and switches of one node.
MAX_GPUS = 256
EXTENSION = "nccl-graph"
"""Key of `Algorithm.extensions` for the parts of a file that an algorithm does not express."""

# NCCL requires all of these except `latencyinter`; it reads speeds in GB/s for each channel.
DEFAULT_ATTRIBUTES: Mapping[str, str] = {
    "crossnic": "0",
    "speedintra": "20",
    "speedinter": "20",
    "latencyinter": "0",
    "typeintra": "NVL",
    "typeinter": "PIX",
    "samechannels": "0",
}
_NUMBER = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")
_PATH_TYPE = re.compile(r"[A-Z0-9]{1,8}")

Ring = tuple[int, ...]
"""GPUs in the order in which data passes them; the last one sends to the first."""


@dataclass(frozen=True, slots=True)
class RingGraph:
    """The rings of one node.

    `channels`: the ring of every channel, GPUs as positions 0..n-1; `devices[i]`: device number of
    GPU i; `ranks[i]`: its rank in the communicator, empty if the file has none; `nets`: per channel
    the devices through which data enters and leaves the node, empty for a single node;
    `attributes`: those of DEFAULT_ATTRIBUTES, as written.
    """

    channels: tuple[Ring, ...]
    devices: tuple[int, ...]
    ranks: tuple[int, ...] = ()
    nets: tuple[tuple[int, int], ...] = ()
    attributes: Mapping[str, str] = field(default_factory=lambda: DEFAULT_ATTRIBUTES)

    def as_xml(self) -> str:
        """The file in NCCL's dialect: no declaration, each tag on one line, hexadecimal device
        numbers."""
        # The order of NCCL's own dumps.
        attributes = {
            "id": "0",
            "pattern": str(RING_PATTERN),
            "crossnic": "",
            "nchannels": str(len(self.channels)),
            **self.attributes,
        }
        graph = " ".join(f"{name}={quoteattr(value)}" for name, value in attributes.items())
        lines = ['<graphs version="1">', f"  <graph {graph}>"]
        for number in range(len(self.channels)):
            lines += ["    <channel>", *self._format_elements(number), "    </channel>"]
        return "\n".join([*lines, "  </graph>", "</graphs>", ""])

    def _format_elements(self, number: int) -> Iterator[str]:
        """Yield the lines within one <channel>."""
        nets = self.nets[number] if self.nets else ()
        yield from (f'      <net dev="{net:x}"/>' for net in nets[:1])
        for gpu in self.channels[number]:
            rank = f' rank="{self.ranks[gpu]}"' if self.ranks else ""
            yield f'      <gpu dev="{self.devices[gpu]:x}"{rank}/>'
        yield from (f'      <net dev="{net:x}"/>' for net in nets[1:])

    def as_json(self) -> dict[str, JsonValue]:
        """The parts that the writer would not restore from the rings; empty if there are none."""
        derived = derived_channels(Counter(map(from_first_gpu, self.channels)))
        parts: dict[str, JsonValue] = {}
        if self.channels != derived:
            parts["channels"] = [list(ring) for ring in self.channels]
        if self.devices != tuple(range(len(self.devices))):
            parts["devices"] = list(self.devices)
        if self.ranks:
            parts["ranks"] = list(self.ranks)
        if self.nets:
            parts["nets"] = [list(pair) for pair in self.nets]
        changed = {
            name: value
            for name, value in self.attributes.items()
            if value != DEFAULT_ATTRIBUTES.get(name)
        }
        if changed:
            parts["attributes"] = dict(changed)
        return parts


def restored_graph(rings: Mapping[Ring, int], extension: JsonValue) -> RingGraph:
    """Combine rings and their shares with the parts from `as_json`, as far as these still fit.

    The extension may come from any document: parts with a different form or for different rings are
    ignored, because NCCL would misread them.
    """
    gpus = len(next(iter(rings)))
    stated = extension if isinstance(extension, dict) else {}
    channels = derived_channels(rings)
    lists = tuple(_to_lists(stated.get("channels")))
    if lists and Counter(derived_channels(Counter(map(from_first_gpu, lists)))) == Counter(
        channels
    ):
        channels = lists
    devices = next(iter(_to_lists([stated.get("devices")])), ())
    ranks = next(iter(_to_lists([stated.get("ranks")])), ())
    nets = _to_lists(stated.get("nets"))
    are_pairs = len(nets) == len(channels) and all(len(pair) == 2 for pair in nets)
    attributes = stated.get("attributes")
    texts = attributes if isinstance(attributes, dict) else {}
    return RingGraph(
        channels,
        devices if _are_distinct(devices, gpus) else tuple(range(gpus)),
        ranks if _are_distinct(ranks, gpus) else (),
        tuple((pair[0], pair[1]) for pair in nets) if are_pairs else (),
        {
            name: text if is_attribute(name, text := str(texts.get(name, ""))) else default
            for name, default in DEFAULT_ATTRIBUTES.items()
        },
    )


def is_attribute(name: str, text: str) -> bool:
    """Whether a text is valid for an attribute: a kind of path for the types, else a number."""
    pattern = _PATH_TYPE if name.startswith("type") else _NUMBER
    return pattern.fullmatch(text) is not None


def derived_channels(rings: Mapping[Ring, int]) -> tuple[Ring, ...]:
    """Minimum list of channels in which every ring has its share of the data.

    NCCL gives all channels the same amount, so a ring with twice the share has two channels.
    """
    unit = gcd(*rings.values())
    return tuple(ring for ring, share in rings.items() for _ in range(share // unit))


def from_first_gpu(ring: Sequence[int]) -> Ring:
    """The same ring starting at GPU 0, so that equal rings are equal tuples."""
    start = ring.index(0) if 0 in ring else 0
    return (*ring[start:], *ring[:start])


def _to_lists(value: JsonValue) -> list[Ring]:
    """Lists of numbers; empty for any other JSON value."""
    if not isinstance(value, list) or len(value) > MAX_CHANNELS:
        return []
    rows = [row for row in value if isinstance(row, list) and 0 < len(row) <= MAX_GPUS]
    numbers = [tuple(n for n in row if type(n) is int and 0 <= n < 1 << 63) for row in rows]
    is_complete = len(rows) == len(value) and [*map(len, rows)] == [*map(len, numbers)]
    return numbers if is_complete else []


def _are_distinct(numbers: Sequence[int], count: int) -> bool:
    return len(numbers) == len(set(numbers)) == count
