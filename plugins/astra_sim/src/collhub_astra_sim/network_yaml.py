"""ASTRA-sim's network YAML: dimensions of kind, size, GiB/s and ns, written exactly and read back."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, NoReturn

from hub_core.model import InputError, Location, UsageError
from hub_core.network import Dimension, DimensionKind, Topology, grid
from hub_core.plugin_api import Source

if TYPE_CHECKING:
    from yaml import MappingNode, Node

    from hub_core.plugin_api import Options


KIND_NAMES = {
    DimensionKind.RING: "Ring",
    DimensionKind.FULLY_CONNECTED: "FullyConnected",
    DimensionKind.SWITCH: "Switch",
}
_KINDS = {name: kind for kind, name in KIND_NAMES.items()}
_KEYS = ("topology", "npus_count", "bandwidth", "latency")
# The simulator calls the unit GB/s and multiplies by 2^30.
_GIB = 1 << 30
_LONGEST_FILE = 1 << 20


def network_text(dimensions: Sequence[Dimension]) -> str:
    """The four lines of a network YAML; bandwidths come back as the same double, latencies to 1e-6 ns."""
    columns = {
        "topology": [KIND_NAMES[dimension.kind] for dimension in dimensions],
        "npus_count": [str(dimension.size) for dimension in dimensions],
        # Dividing by a power of two is exact, so that the simulator's product is the bandwidth itself.
        "bandwidth": [_decimal(dimension.bandwidth_bytes_per_s / _GIB) for dimension in dimensions],
        "latency": [_decimal(round(dimension.latency_s * 1e9, 6)) for dimension in dimensions],
    }
    return "".join(f"{key}: [ {', '.join(values)} ]\n" for key, values in columns.items())


def _decimal(value: float) -> str:
    """The shortest digits that give the same double, without an exponent, which YAML 1.1 may take for text."""
    return format(Decimal(repr(value)), "f")


def read(source: Source, options: Options) -> Topology:
    """Build the topology that a network YAML describes. Raises `InputError` naming file and line."""
    del options
    name, content = source.name, source.content()
    if len(content) > _LONGEST_FILE:
        _fail(name, None, "the file is larger than 1 MiB, a network YAML has four lines")
    values = _values(name, _parsed(name, content))
    sizes = {len(values[key]) for key in _KEYS}
    if len(sizes) != 1:
        lengths = ", ".join(f"{key} {len(values[key])}" for key in _KEYS)
        _fail(
            name,
            None,
            f"the lists differ in length: {lengths}",
            "state one value per dimension in every list",
        )
    dimensions = [
        _dimension(name, *entry) for entry in zip(*(values[key] for key in _KEYS), strict=True)
    ]
    try:
        return grid(name, dimensions)
    except UsageError as error:
        _fail(name, None, error.diagnostics[0].message, error.diagnostics[0].cure)


def samples() -> Sequence[Source]:
    """Small correct files for the conformance kit."""
    ring = Dimension(DimensionKind.RING, 8, 50.0 * _GIB, 500e-9)
    switch = Dimension(DimensionKind.SWITCH, 2, 25.0 * _GIB, 1e-6)
    texts = {"ring.yml": network_text([ring]), "ring-switch.yml": network_text([ring, switch])}
    return [Source.of_bytes(name, text.encode("ascii")) for name, text in texts.items()]


def _parsed(name: str, content: bytes) -> MappingNode:
    """The mapping at the root of the document, as nodes that know their lines."""
    # Imported here, as conversions that meet no YAML need not wait for it.
    import yaml

    try:
        root = yaml.compose(content.decode("utf-8"), Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else None
        _fail(name, line, f"this is not YAML: {error.problem}")
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        _fail(name, None, f"this is not YAML: {str(error).splitlines()[0]}")
    if not isinstance(root, yaml.MappingNode):
        _fail(name, None, f"this is not a network YAML: {', '.join(_KEYS)} were expected")
    return root


def _values(name: str, root: MappingNode) -> dict[str, list[tuple[str, int]]]:
    """The (text, line) of every entry, by key; a single value stands for a list of one."""
    found: dict[str, list[tuple[str, int]]] = {}
    for key_node, value_node in root.value:
        key, line = str(key_node.value), key_node.start_mark.line + 1
        if key in found:
            _fail(name, line, f"the key {key[:80]!r} stands twice")
        entries = value_node.value if isinstance(value_node.value, list) else [value_node]
        if key in _KEYS:
            found[key] = [_scalar(name, key, entry) for entry in entries]
    missing = [key for key in _KEYS if key not in found]
    if missing:
        _fail(
            name,
            None,
            f"missing: {', '.join(missing)}",
            "see `network.yml` of a folder written by the hub",
        )
    return found


def _scalar(name: str, key: str, node: Node) -> tuple[str, int]:
    line = node.start_mark.line + 1
    if not isinstance(node.value, str):
        _fail(name, line, f"{key}: one value, or a list of values, was expected")
    return node.value, line


def _dimension(
    name: str,
    kind: tuple[str, int],
    size: tuple[str, int],
    bandwidth: tuple[str, int],
    latency: tuple[str, int],
) -> Dimension:
    if kind[0] not in _KINDS:
        _fail(name, kind[1], f"topology {kind[0][:80]!r} is not one of {', '.join(_KINDS)}")
    if not (size[0].isascii() and size[0].isdecimal() and len(size[0]) <= 7 and int(size[0]) > 0):
        _fail(name, size[1], f"npus_count {size[0][:80]!r} is not a whole number of at least 1")
    rate, delay = _number(bandwidth[0]), _number(latency[0])
    if not 0 < rate < 1e9:
        _fail(
            name, bandwidth[1], f"bandwidth {bandwidth[0][:80]!r} is not a number of GiB/s above 0"
        )
    if not 0 <= delay < 1e18:
        _fail(name, latency[1], f"latency {latency[0][:80]!r} is not a number of ns of at least 0")
    return Dimension(_KINDS[kind[0]], int(size[0]), rate * _GIB, delay / 1e9)


def _number(text: str) -> float:
    """The number, or not-a-number, which no range holds."""
    try:
        return float(text)
    except ValueError:
        return float("nan")


def _fail(name: str, line: int | None, message: str, cure: str = "") -> NoReturn:
    raise InputError(message, location=Location(name, line), cure=cure, code="invalid-network-yaml")
