"""The facts of a network as JSON and as text, for `collhub topology show`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hub_core.cli.output import print_fields, print_table
from hub_core.model import format_bandwidth, format_time

if TYPE_CHECKING:
    from hub_core.model import JsonValue
    from hub_core.network import Dimension, Facts, HalfCut, Span, Topology


_LISTED = 10


def facts_object(network: Topology, facts: Facts) -> dict[str, JsonValue]:
    """What `--json` prints, all but the list of links."""
    return {
        "schema": "collhub/report-topology-show-1",
        "topology": network.name,
        "npus": network.num_npus,
        "switches": network.num_nodes - network.num_npus,
        "num_links": network.num_links,
        "dimensions": [
            {
                "kind": str(dimension.kind),
                "size": dimension.size,
                "bandwidth_bytes_per_s": dimension.bandwidth_bytes_per_s,
                "latency_s": dimension.latency_s,
            }
            for dimension in network.dimensions
        ],
        "link_classes": [
            {
                "from": one.source,
                "to": one.destination,
                "bandwidth_bytes_per_s": one.bandwidth_bytes_per_s,
                "latency_s": one.latency_s,
                "count": one.count,
            }
            for one in facts.classes
        ],
        "nodes": {
            kind: {name: [span.least, span.largest] for name, span in spans.items()}
            for kind, spans in facts.spans.items()
        },
        "diameter_links": facts.diameter,
        "half_cuts": [
            {
                "dimension": cut.dimension,
                "links": [cut.links_up, cut.links_down],
                "bandwidth_bytes_per_s": [
                    cut.bandwidth_up_bytes_per_s,
                    cut.bandwidth_down_bytes_per_s,
                ],
            }
            for cut in facts.half_cuts
        ],
        "node_names": list(network.node_names),
        "groups": {name: list(members) for name, members in network.groups.items()},
    }


def link_objects(network: Topology) -> list[JsonValue]:
    """All links, in their order."""
    return [
        {
            "from": link.source,
            "to": link.destination,
            "bandwidth_bytes_per_s": link.bandwidth_bytes_per_s,
            "latency_s": link.latency_s,
        }
        for link in network.links()
    ]


def print_facts(network: Topology, facts: Facts) -> None:
    """Print fields, the classes of links, and groups where there are any."""
    npus = _count(network.num_npus, "NPU", "NPUs")
    switches = network.num_nodes - network.num_npus
    cuts = {cut.dimension: cut for cut in facts.half_cuts}
    fields = {
        "topology": network.name,
        "nodes": f"{npus}, {_count(switches, 'switch', 'switches')}",
        "links": f"{network.num_links} directed",
        "diameter": "not known"
        if facts.diameter is None
        else _count(facts.diameter, "link", "links"),
    }
    for kind, spans in facts.spans.items():
        out, back = _ends(spans, "out"), _ends(spans, "in")
        fields[f"each {kind}"] = f"{out}, out and in" if out == back else f"{out} out; {back} in"
    for index, dimension in enumerate(network.dimensions):
        fields[f"dimension {index}"] = _dimension(dimension, cuts.get(index))
    print_fields(fields)
    _print_classes(facts)
    _print_groups(network)


def print_links(network: Topology) -> None:
    """All links as a table, in their order."""
    rows = [
        (
            f"{network.node_name(link.source)} -> {network.node_name(link.destination)}",
            format_bandwidth(link.bandwidth_bytes_per_s),
            _latency(link.latency_s),
        )
        for link in network.links()
    ]
    print_table(("link", "bandwidth", "latency"), rows, right=("bandwidth", "latency"))


def _dimension(dimension: Dimension, cut: HalfCut | None) -> str:
    constants = (
        f"{format_bandwidth(dimension.bandwidth_bytes_per_s)}, {_latency(dimension.latency_s)}"
    )
    text = f"{dimension.kind} of {dimension.size}, {constants}"
    if cut is None:
        return text
    up, down = (
        f"{_count(links, 'link', 'links')}, {format_bandwidth(rate)}"
        for links, rate in (
            (cut.links_up, cut.bandwidth_up_bytes_per_s),
            (cut.links_down, cut.bandwidth_down_bytes_per_s),
        )
    )
    return f"{text}; between its halves {up}{' each way' if up == down else f' up, {down} down'}"


def _ends(spans: dict[str, Span], direction: str) -> str:
    links, rates = spans[f"links_{direction}"], spans[f"bandwidth_{direction}_bytes_per_s"]
    count = (
        f"{links.least}" if links.least == links.largest else f"{links.least} to {links.largest}"
    )
    least, largest = format_bandwidth(rates.least), format_bandwidth(rates.largest)
    name = "link" if count == "1" else "links"
    return f"{count} {name}, {least if least == largest else f'{least} to {largest}'}"


def _print_classes(facts: Facts) -> None:
    rows = [
        (
            f"{one.source} -> {one.destination}",
            str(one.count),
            format_bandwidth(one.bandwidth_bytes_per_s),
            _latency(one.latency_s),
        )
        for one in facts.classes[:_LISTED]
    ]
    if rows:
        print_table(
            ("links", "count", "bandwidth", "latency"),
            rows,
            right=("count", "bandwidth", "latency"),
        )
    if len(facts.classes) > _LISTED:
        print(f"and {len(facts.classes) - _LISTED} classes more")


def _print_groups(network: Topology) -> None:
    from hub_core.model import format_ranks

    rows = [
        (name, format_ranks(members)) for name, members in list(network.groups.items())[:_LISTED]
    ]
    if rows:
        print_table(("group", "NPUs"), rows)
    if len(network.groups) > _LISTED:
        print(f"and {len(network.groups) - _LISTED} groups more")


def _count(count: int, one: str, more: str) -> str:
    return f"{count} {one if count == 1 else more}"


def _latency(latency_s: float) -> str:
    return format_time(round(latency_s * 1e9, 6))
