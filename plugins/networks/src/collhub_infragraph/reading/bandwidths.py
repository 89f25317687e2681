"""Supply bandwidths and latencies that a document does not contain, only from options."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from collhub_networks import NetworkFindings

from collhub_infragraph.graph import LinkKind, VertexGraph
from collhub_infragraph.options import InfragraphReadOptions
from collhub_infragraph.reading.hops import Hop
from hub_core.model import (
    InputError,
    Location,
    UsageError,
    format_bandwidth,
    parse_bandwidth,
)

# Finite, but message times on it round to zero.
UNLIMITED = 1e17
_MAX_NAMED = 6


def parse_bandwidths(text: str | None) -> dict[str, float]:
    """Parse the lines `link=450GB/s` of the option `bandwidth`, in bytes per second by name."""
    bandwidths = {}
    for line in (text or "").splitlines():
        name, _, value = line.partition("=")
        bandwidths[name.strip()] = parse_bandwidth(value)
    return bandwidths


def apply_bandwidths(
    file: str,
    links: Sequence[LinkKind],
    bandwidths: Mapping[str, float],
    findings: NetworkFindings,
) -> tuple[LinkKind, ...]:
    """Replace the bandwidths of links that the option names, and report each.

    `device/link` takes precedence over `link`. Raises `UsageError` for a name without a link.
    """
    known = {name for link in links for name in (link.name, link.title)}
    for name in bandwidths:
        if name not in known and name != "*":
            named = ", ".join(sorted(known)) or "none"
            message = f"option bandwidth.{name}: {file} has no link of this name"
            raise UsageError(message, cure=f"links are: {named}", code="unknown-link")
    updated_links = []
    for link in links:
        rate = bandwidths.get(link.title, bandwidths.get(link.name))
        if rate is None:
            updated_links.append(link)
            continue
        message = f"{link.title}: {format_bandwidth(rate)} by option"
        if link.bandwidth_bytes_per_s is not None:
            message += f" instead of {format_bandwidth(link.bandwidth_bytes_per_s)}"
        findings.note(f"bandwidth-of-{link.title}", Location(file), message)
        updated_links.append(replace(link, bandwidth_bytes_per_s=rate, flaw=""))
    return tuple(updated_links)


def supply_missing_values(
    file: str,
    graph: VertexGraph,
    hops: Sequence[Hop],
    options: InfragraphReadOptions,
    findings: NetworkFindings,
) -> list[Hop]:
    """Give every hop a bandwidth and a latency, from the options if missing.

    Supplied values are reported. Raises `InputError` for missing bandwidths, with the links that
    lack one.
    """
    rate = parse_bandwidths(options.bandwidth).get("*")
    if rate is None and options.missing == "unlimited":
        rate = UNLIMITED
    bare = [hop for hop in hops if hop.bandwidth_bytes_per_s is None]
    if bare and rate is None:
        _refuse_missing_bandwidths(file, graph, bare)
    if bare and rate is not None:
        shown = "unlimited" if rate == UNLIMITED else format_bandwidth(rate)
        message = f"{len(bare)} links have no bandwidth: {shown} by option"
        findings.note("supplied-bandwidth", Location(file), message)
    slow = [hop for hop in hops if hop.latency_s is None]
    if slow:
        _report_latency(file, len(slow), options.latency, findings)
    rates = () if rate is None else (rate,)
    delays = (options.latency or 0.0,)
    return [
        replace(
            hop,
            bandwidths=hop.bandwidths or rates,
            latencies=hop.latencies or delays,
        )
        for hop in hops
    ]


def _report_latency(
    file: str, count: int, latency_s: float | None, findings: NetworkFindings
) -> None:
    """Report the latency that links without one get."""
    if latency_s is None:
        supplied, cure = "0 ns is used", "give one with FILE?latency=500ns"
    else:
        supplied, cure = f"{latency_s * 1e9:g} ns by option", ""
    message = f"{count} links have no latency: {supplied}"
    findings.note("supplied-latency", Location(file), message, cure)


def _refuse_missing_bandwidths(
    file: str,
    graph: VertexGraph,
    hops: Sequence[Hop],
) -> None:
    """Raise `InputError` with the links that lack a bandwidth, their numbers of edges and an
    example.
    """
    # By link, not by edge: a network repeats its devices, and one option applies to all of them.
    counts: Counter[str] = Counter()
    examples: dict[str, str] = {}
    flaws = {}
    for hop in hops:
        ends = f"{graph.names[hop.first_vertex]} - {graph.names[hop.second_vertex]}"
        for row in sorted(set(hop.links)):
            link = graph.links[row]
            counts[link.title] += 1
            examples.setdefault(link.title, ends)
            if link.flaw:
                flaws[link.title] = link.flaw
    named = counts.most_common(_MAX_NAMED)
    parts = [f"{title} ({count} edges, as {examples[title]})" for title, count in named]
    rest = f", and {len(counts) - len(named)} more" if len(counts) > len(named) else ""
    reason = f"; {next(iter(flaws.values()))}" if flaws else ""
    message = f"{len(hops)} edges have no bandwidth: {', '.join(parts)}{rest}{reason}"
    pairs = "&".join(f"bandwidth.{title}=50GB/s" for title, _ in named[:2])
    cure = f"give them as FILE?{pairs}, all as FILE?bandwidth.*=50GB/s, or missing=unlimited"
    raise InputError(
        message,
        location=Location(file),
        cure=cure,
        code="no-bandwidth",
    )
