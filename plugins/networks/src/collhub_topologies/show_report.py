"""JSON reports of `collhub topology`, and the text of `collhub topology show`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec

from collhub_topologies.summary import Facts, HalfCut, Span
from hub_core import CommandContext
from hub_core.model import format_bandwidth, format_count, format_ranks, format_time
from hub_core.network import Dimension, Topology
from hub_core.reports import UNSET, Artifacts, Count, Finding, Meta, Record, Report, UnsetType

NodeKind = Annotated[str, Meta(extra_json_schema={"enum": ["NPU", "switch"]})]
Bandwidth = Annotated[float, Meta(gt=0)]
Latency = Annotated[float, Meta(ge=0)]
NumNpus = Annotated[int, Meta(ge=1)]
NumLinks = Annotated[int, Meta(ge=0, description="Number of directed links.")]
BothWays = Annotated[Sequence[Latency], Meta(min_length=2, max_length=2)]


class DimensionItem(Record, frozen=True, kw_only=True):
    """Dimension of a regular network."""

    kind: Annotated[
        str, Meta(extra_json_schema={"enum": ["line", "ring", "fully-connected", "switch"]})
    ]
    size: NumNpus
    bandwidth_bytes_per_s: Bandwidth
    latency_s: Latency


class LinkClassItem(Record, frozen=True, kw_only=True):
    """Directed links with equal kinds of ends, bandwidth and latency."""

    source: NodeKind = msgspec.field(name="from")
    destination: NodeKind = msgspec.field(name="to")
    bandwidth_bytes_per_s: Bandwidth
    latency_s: Latency
    count: NumNpus


class HalfCutItem(Record, frozen=True, kw_only=True):
    """Links between the lower and the upper half of a dimension: [upwards, downwards]."""

    dimension: Count
    links: BothWays
    bandwidth_bytes_per_s: BothWays


class LinkItem(Record, frozen=True, kw_only=True):
    """Directed link between two nodes."""

    source: Count = msgspec.field(name="from")
    destination: Count = msgspec.field(name="to")
    bandwidth_bytes_per_s: Bandwidth
    latency_s: Latency


class TopologyShowReport(Report, tag="collhub/report-topology-show-1", frozen=True, kw_only=True):
    """Report of `collhub topology show --json`; ids of nodes: NPUs from 0, then switches."""

    topology: str
    npus: NumNpus
    switches: Count
    num_links: NumLinks
    dimensions: Annotated[
        Sequence[DimensionItem],
        Meta(description="Of a regular network, the fastest first; otherwise empty."),
    ]
    link_classes: Annotated[
        Sequence[LinkClassItem], Meta(description="The class with most links first.")
    ]
    nodes: Annotated[
        Mapping[str, Mapping[str, BothWays]],
        Meta(
            description="By kind of node (NPU, switch): [smallest, largest] number of links and sum"
            " of their bandwidths, `links_out`, `links_in`, `bandwidth_out_bytes_per_s` and "
            "`bandwidth_in_bytes_per_s`."
        ),
    ]
    diameter_links: Annotated[
        int | None,
        Meta(
            description="Links of the longest shortest path between two NPUs; null if a path is "
            "missing or the search would take too long."
        ),
    ]
    half_cuts: Sequence[HalfCutItem]
    node_names: Annotated[Sequence[str], Meta(description="One name per node, or empty.")]
    groups: Mapping[str, Sequence[Count]]
    multicast: Annotated[
        Sequence[int], Meta(description="Switches that forward copies of a message.")
    ]
    reduce: Annotated[Sequence[int], Meta(description="Switches that reduce messages.")]
    switch_bytes_per_s: Annotated[
        float | None,
        Meta(
            description="Measured bytes per second of an all-reduce in these switches; null without"
            " such switches, and if they work at the rate of their links."
        ),
    ]
    links: Annotated[Sequence[LinkItem] | UnsetType, Meta(description="Only with --links.")] = UNSET


class TopologyCheckReport(Report, tag="collhub/report-topology-check-1", frozen=True, kw_only=True):
    """Report of `collhub topology check --json`."""

    topology: str
    ok: Annotated[bool, Meta(description="Every NPU reaches every other.")]
    npus: NumNpus
    switches: Count
    num_links: NumLinks
    collective_bytes: Annotated[
        int | None, Meta(description="Size of the bounds; null if no size was given.")
    ]
    bounds_ns: Annotated[
        Mapping[str, Count],
        Meta(
            description="Proven lower bound of the time by collective, with NPU 0 as root. Empty "
            "without a size, or if `ok` is false."
        ),
    ]
    bounds_ps: Mapping[str, Count]
    bound_methods: Annotated[
        Mapping[str, str],
        Meta(description="Offer that proves each bound; `links`: the bound of the core."),
    ]
    diagnostics: Sequence[Finding]


class TopologyWriteReport(Report, tag="collhub/report-topology-write-1", frozen=True, kw_only=True):
    """Report of `collhub topology draw --json` and `collhub topology convert --json`."""

    topology: str
    artifacts: Artifacts


def create_facts_report(network: Topology, facts: Facts, *, with_links: bool) -> TopologyShowReport:
    """Create the report that `topology show --json` prints, from a network and its facts.

    - From `network`, in its order: name, numbers of NPUs, switches (nodes that are no NPUs) and
      links, dimensions, names of nodes, groups.
    - From `facts`, in its order: link classes; `nodes`, with [minimum, maximum] of every quantity
      by kind of node; the diameter in links, None if it is unknown; the cut between the halves of
      dimensions, as pairs (up, down).
    - `multicast` and `reduce`: the switches that the network declares. If it declares none for
      either, both are its measured switches. `switch_bytes_per_s` is the measured rate only in
      this second case, else None.
    - `links`: every link in the order of the network if `with_links`, also if there are none.
      Otherwise the field is absent.

    Bandwidths are in bytes/s, latencies in seconds; no value is rounded.
    """
    links = [
        LinkItem(
            source=link.source,
            destination=link.destination,
            bandwidth_bytes_per_s=link.bandwidth_bytes_per_s,
            latency_s=link.latency_s,
        )
        for link in (network.links() if with_links else ())
    ]
    return TopologyShowReport(
        topology=network.name,
        npus=network.num_npus,
        switches=network.num_nodes - network.num_npus,
        num_links=network.num_links,
        dimensions=[
            DimensionItem(
                kind=str(dimension.kind),
                size=dimension.size,
                bandwidth_bytes_per_s=dimension.bandwidth_bytes_per_s,
                latency_s=dimension.latency_s,
            )
            for dimension in network.dimensions
        ],
        link_classes=[
            LinkClassItem(
                source=link_class.source,
                destination=link_class.destination,
                bandwidth_bytes_per_s=link_class.bandwidth_bytes_per_s,
                latency_s=link_class.latency_s,
                count=link_class.count,
            )
            for link_class in facts.classes
        ],
        nodes={
            kind: {name: (span.minimum, span.maximum) for name, span in spans.items()}
            for kind, spans in facts.spans.items()
        },
        diameter_links=facts.diameter,
        half_cuts=[
            HalfCutItem(
                dimension=cut.dimension,
                links=(cut.links_up, cut.links_down),
                bandwidth_bytes_per_s=(
                    cut.bandwidth_up_bytes_per_s,
                    cut.bandwidth_down_bytes_per_s,
                ),
            )
            for cut in facts.half_cuts
        ],
        node_names=network.node_names,
        groups=network.groups,
        multicast=network.with_measured_switches().multicast,
        reduce=network.with_measured_switches().reduction,
        switch_bytes_per_s=_find_switch_rate(network),
        links=links if with_links else UNSET,
    )


def _find_switch_rate(network: Topology) -> float | None:
    """Return the measured rate in bytes/s of the switches that multicast and reduce.

    It is `None` if the network has no measured switches, and if it declares other switches that
    multicast or reduce, because the measured switches are not used then.
    """
    machine = network.with_measured_switches()
    if machine is network or network.measured_switches is None:
        return None
    return network.measured_switches.bytes_per_s


# Maximum number of classes and groups that are listed; the remaining ones are counted.
_MAX_LISTED = 10


def print_facts(context: CommandContext, network: Topology, facts: Facts) -> None:
    """Print the facts of a network as text: fields, a table of link classes, a table of groups.

    The fields are `topology` (name), `nodes` (numbers of NPUs and switches), `links` (directed),
    `diameter` in links (`not known` for None), and then:

    - `multicast`, `reduce`: number of switches that can do this, left out if it is 0. With measured
      switches only, i.e. if the network declares none of its own, their measured rate is added.
    - `each NPU` and `each switch`: range of links and bandwidth, out and in
    - `dimension 0` and so on: kind, size, bandwidth, latency; the cut between its halves if known

    The table of link classes has the kinds of both ends, count, bandwidth and latency, in the
    order of `facts`. The table of groups has names and NPUs. Each lists 10 rows, then `and N
    classes more` or `and N groups more` if there are more. A table without rows is left out.
    """
    npus = format_count(network.num_npus, "NPU")
    switches = format_count(network.num_nodes - network.num_npus, "switch", "switches")
    diameter = "not known"
    if facts.diameter is not None:
        diameter = format_count(facts.diameter, "link")
    fields = {
        "topology": network.name,
        "nodes": f"{npus}, {switches}",
        "links": f"{network.num_links} directed",
        "diameter": diameter,
    }
    machine = network.with_measured_switches()
    rate = _find_switch_rate(network)
    at_rate = "" if rate is None else f", measured {format_bandwidth(rate)}"
    for name, switches_with in (("multicast", machine.multicast), ("reduce", machine.reduction)):
        if switches_with:
            fields[name] = format_count(len(switches_with), "switch", "switches") + at_rate
    for kind, spans in facts.spans.items():
        fields[f"each {kind}"] = _format_directions(spans)
    cuts = {cut.dimension: cut for cut in facts.half_cuts}
    for index, dimension in enumerate(network.dimensions):
        fields[f"dimension {index}"] = _format_dimension(dimension, cuts.get(index))
    context.print_fields(fields)
    rows = [
        (
            f"{link_class.source} -> {link_class.destination}",
            str(link_class.count),
            format_bandwidth(link_class.bandwidth_bytes_per_s),
            _format_latency(link_class.latency_s),
        )
        for link_class in facts.classes[:_MAX_LISTED]
    ]
    numbers = ("count", "bandwidth", "latency")
    if rows:
        context.print_table(("links", *numbers), rows, right=numbers)
    unlisted = len(facts.classes) - _MAX_LISTED
    if unlisted > 0:
        context.print_line(f"and {unlisted} classes more")
    groups = [(name, format_ranks(members)) for name, members in network.groups.items()]
    if groups:
        context.print_table(("group", "NPUs"), groups[:_MAX_LISTED])
    unlisted = len(groups) - _MAX_LISTED
    if unlisted > 0:
        context.print_line(f"and {unlisted} groups more")


def print_links(context: CommandContext, network: Topology) -> None:
    """Print all links of a network as a table: source and destination, bandwidth, latency.

    The rows are in the order of the links, with the names of the nodes.
    """
    rows = []
    for link in network.links():
        ends = f"{network.node_name(link.source)} -> {network.node_name(link.destination)}"
        rate = format_bandwidth(link.bandwidth_bytes_per_s)
        rows.append((ends, rate, _format_latency(link.latency_s)))
    numbers = ("bandwidth", "latency")
    context.print_table(("link", *numbers), rows, right=numbers)


def _format_dimension(dimension: Dimension, cut: HalfCut | None) -> str:
    """Format a dimension and the links between its two halves, which the cut describes.

    An example is `ring of 4, 50 GB/s, 500 ns; between its halves 2 links, 100 GB/s each
    way`. If the texts of both directions differ, it ends with `... up, ... down`, where up
    is from the lower to the upper half. If `cut` is None, the text has only kind, size,
    bandwidth and latency.
    """
    rate = format_bandwidth(dimension.bandwidth_bytes_per_s)
    latency = _format_latency(dimension.latency_s)
    text = f"{dimension.kind} of {dimension.size}, {rate}, {latency}"
    if cut is None:
        return text
    up = _format_crossing(cut.links_up, cut.bandwidth_up_bytes_per_s)
    down = _format_crossing(cut.links_down, cut.bandwidth_down_bytes_per_s)
    between = f"{up} up, {down} down"
    if up == down:
        between = f"{up} each way"
    return f"{text}; between its halves {between}"


def _format_crossing(links: int, bandwidth_bytes_per_s: float) -> str:
    """Format the links across a cut and their bandwidth, for example `2 links, 100 GB/s`.

    `bandwidth_bytes_per_s`: of all these links together.
    """
    count = format_count(links, "link")
    rate = format_bandwidth(bandwidth_bytes_per_s)
    return f"{count}, {rate}"


def _format_directions(spans: Mapping[str, Span]) -> str:
    """Format the number and the bandwidth of the links of nodes of one kind, out and in.

    `spans`: minimum and maximum over these nodes, by the names of `collect_spans`. If the
    texts of both directions are equal, the result is, for example, `2 to 4 links, 50 GB/s,
    out and in`, otherwise `1 link, 50 GB/s out; 2 links, 50 GB/s in`.
    """
    rates_out = spans["bandwidth_out_bytes_per_s"]
    rates_in = spans["bandwidth_in_bytes_per_s"]
    out = _format_direction(spans["links_out"], rates_out)
    into = _format_direction(spans["links_in"], rates_in)
    if out == into:
        return f"{out}, out and in"
    return f"{out} out; {into} in"


def _format_direction(links: Span, rates: Span) -> str:
    """Format one direction, for example `2 to 4 links, 50 GB/s to 100 GB/s`.

    Only one value is shown if the minimum and the maximum look the same as printed.
    """
    count = _format_range(f"{links.minimum}", f"{links.maximum}")
    # Compare as printed: rates may differ by less than the digits show.
    rate = _format_range(format_bandwidth(rates.minimum), format_bandwidth(rates.maximum))
    noun = "link" if count == "1" else "links"
    return f"{count} {noun}, {rate}"


def _format_range(minimum: str, maximum: str) -> str:
    """Format a range of values from their texts, for example `2 to 4`.

    If both texts are equal, only one is shown.
    """
    if minimum == maximum:
        return minimum
    return f"{minimum} to {maximum}"


def _format_latency(latency_s: float) -> str:
    """Format a latency in seconds, such as `500 ns`, as `format_time` does.

    It is first rounded to 1e-6 ns, so that errors of floating-point numbers do not show.
    """
    # Rounded to a millionth of a nanosecond, so that decimal inputs are printed as they were typed.
    return format_time(round(latency_s * 1e9, 6))
