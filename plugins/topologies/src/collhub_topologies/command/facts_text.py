"""The facts of a network as text, for `collhub topology show`."""

from __future__ import annotations

from collections.abc import Mapping

from collhub_topologies.facts.summary import Facts, HalfCut, LinkClass, Span
from hub_core import CommandContext
from hub_core.model import format_bandwidth, format_ranks, format_time
from hub_core.network import Dimension, Link, Topology

# Classes of links, and groups, that are listed before the others are only counted.
_LISTED = 10


def print_facts(context: CommandContext, network: Topology, facts: Facts) -> None:
    """Print fields, the classes of links, and groups where there are any."""
    npus = _count(network.num_npus, "NPU", "NPUs")
    switches = _count(network.num_nodes - network.num_npus, "switch", "switches")
    diameter = "not known"
    if facts.diameter is not None:
        diameter = _count(facts.diameter, "link", "links")
    fields = {
        "topology": network.name,
        "nodes": f"{npus}, {switches}",
        "links": f"{network.num_links} directed",
        "diameter": diameter,
    }
    for what, able in (("multicast", network.multicast), ("reduce", network.reduction)):
        if able:
            fields[what] = _count(len(able), "switch", "switches")
    for kind, spans in facts.spans.items():
        fields[f"each {kind}"] = _both_ends(spans)
    cuts = {cut.dimension: cut for cut in facts.half_cuts}
    for index, dimension in enumerate(network.dimensions):
        fields[f"dimension {index}"] = _dimension(dimension, cuts.get(index))
    context.print_fields(fields)
    _print_classes(context, facts)
    _print_groups(context, network)


def print_links(context: CommandContext, network: Topology) -> None:
    """Print all links as a table, in their order."""
    rows = [_link_row(network, link) for link in network.links()]
    numbers = ("bandwidth", "latency")
    context.print_table(("link", *numbers), rows, right=numbers)


def _link_row(network: Topology, link: Link) -> tuple[str, str, str]:
    source = network.node_name(link.source)
    destination = network.node_name(link.destination)
    return (
        f"{source} -> {destination}",
        format_bandwidth(link.bandwidth_bytes_per_s),
        _latency(link.latency_s),
    )


def _dimension(dimension: Dimension, cut: HalfCut | None) -> str:
    """`ring of 4, 50 GB/s, 500 ns; between its halves 2 links, 100 GB/s each way`."""
    rate = format_bandwidth(dimension.bandwidth_bytes_per_s)
    latency = _latency(dimension.latency_s)
    text = f"{dimension.kind} of {dimension.size}, {rate}, {latency}"
    # A dimension of one NPU has no halves.
    if cut is None:
        return text
    up = _crossing(cut.links_up, cut.bandwidth_up_bytes_per_s)
    down = _crossing(cut.links_down, cut.bandwidth_down_bytes_per_s)
    between = f"{up} up, {down} down"
    if up == down:
        between = f"{up} each way"
    return f"{text}; between its halves {between}"


def _crossing(links: int, bandwidth_bytes_per_s: float) -> str:
    """`2 links, 100 GB/s`."""
    count = _count(links, "link", "links")
    rate = format_bandwidth(bandwidth_bytes_per_s)
    return f"{count}, {rate}"


def _both_ends(spans: Mapping[str, Span]) -> str:
    """Links and bandwidth of the nodes of one kind, both directions apart where they differ."""
    rates_out = spans["bandwidth_out_bytes_per_s"]
    rates_in = spans["bandwidth_in_bytes_per_s"]
    out = _one_end(spans["links_out"], rates_out)
    back = _one_end(spans["links_in"], rates_in)
    if out == back:
        return f"{out}, out and in"
    return f"{out} out; {back} in"


def _one_end(links: Span, rates: Span) -> str:
    """`2 to 4 links, 50 GB/s to 100 GB/s`."""
    count = _range(f"{links.least}", f"{links.largest}")
    # As printed: rates may differ by less than the digits show.
    rate = _range(format_bandwidth(rates.least), format_bandwidth(rates.largest))
    noun = "link" if count == "1" else "links"
    return f"{count} {noun}, {rate}"


def _range(least: str, largest: str) -> str:
    """`2 to 4`, or one of them where they are the same."""
    if least == largest:
        return least
    return f"{least} to {largest}"


def _print_classes(context: CommandContext, facts: Facts) -> None:
    rows = [_class_row(one) for one in facts.classes[:_LISTED]]
    numbers = ("count", "bandwidth", "latency")
    if rows:
        context.print_table(("links", *numbers), rows, right=numbers)
    unlisted = len(facts.classes) - _LISTED
    if unlisted > 0:
        context.print_line(f"and {unlisted} classes more")


def _class_row(one: LinkClass) -> tuple[str, str, str, str]:
    return (
        f"{one.source} -> {one.destination}",
        str(one.count),
        format_bandwidth(one.bandwidth_bytes_per_s),
        _latency(one.latency_s),
    )


def _print_groups(context: CommandContext, network: Topology) -> None:
    names = list(network.groups)
    rows = []
    for name in names[:_LISTED]:
        rows.append((name, format_ranks(network.groups[name])))
    if rows:
        context.print_table(("group", "NPUs"), rows)
    unlisted = len(names) - _LISTED
    if unlisted > 0:
        context.print_line(f"and {unlisted} groups more")


def _count(count: int, one: str, more: str) -> str:
    # Zero has the plural.
    noun = one if count == 1 else more
    return f"{count} {noun}"


def _latency(latency_s: float) -> str:
    # Rounded to a millionth of a nanosecond, so that decimal inputs come back as they were typed.
    return format_time(round(latency_s * 1e9, 6))
