"""Bandwidths and latencies that a document leaves open: from options, and never invented."""

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

# Times of messages on it round to nothing, and it is still a number.
UNLIMITED = 1e17
_MOST_NAMED = 6


def stated_bandwidths(text: str | None) -> dict[str, float]:
    """The lines `link=450GB/s` of the option `bandwidth`, in bytes per second."""
    found = {}
    for line in (text or "").splitlines():
        name, _, value = line.partition("=")
        found[name.strip()] = parse_bandwidth(value)
    return found


def with_stated(
    file: str,
    links: Sequence[LinkKind],
    stated: Mapping[str, float],
    findings: NetworkFindings,
) -> tuple[LinkKind, ...]:
    """The links, those that an option names with its bandwidth.

    `device/link` goes before `link`. Raises `UsageError` for a name that no link has.
    """
    known = {name for link in links for name in (link.name, link.title)}
    for name in stated:
        if name not in known and name != "*":
            named = ", ".join(sorted(known)) or "none"
            message = f"option bandwidth.{name}: {file} has no link of this name"
            raise UsageError(message, cure=f"links are: {named}", code="unknown-link")
    found = []
    for link in links:
        # What is said of one device is meant before what is said of a name.
        rate = stated.get(link.title, stated.get(link.name))
        if rate is None:
            found.append(link)
            continue
        message = f"{link.title}: {format_bandwidth(rate)} by option"
        if link.bandwidth_bytes_per_s is not None:
            message += f" instead of {format_bandwidth(link.bandwidth_bytes_per_s)}"
        findings.note(f"bandwidth-of-{link.title}", Location(file), message)
        found.append(replace(link, bandwidth_bytes_per_s=rate, flaw=""))
    return tuple(found)


def filled(
    file: str,
    graph: VertexGraph,
    hops: Sequence[Hop],
    options: InfragraphReadOptions,
    findings: NetworkFindings,
) -> list[Hop]:
    """The hops, each with a bandwidth and a latency.

    Raises `InputError` where a bandwidth is left open, with the links that lack one.
    """
    rate = stated_bandwidths(options.bandwidth).get("*")
    if rate is None and options.missing == "unlimited":
        rate = UNLIMITED
    bare = [hop for hop in hops if hop.bandwidth_bytes_per_s is None]
    if bare and rate is None:
        _refuse(file, graph, bare)
    if bare and rate is not None:
        shown = "unlimited" if rate == UNLIMITED else format_bandwidth(rate)
        where = Location(file)
        message = f"{len(bare)} links state no bandwidth: {shown} by option"
        findings.note("supplied-bandwidth", where, message)
    slow = [hop for hop in hops if hop.latency_s is None]
    if slow:
        _note_latency(file, len(slow), options.latency, findings)
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


def _note_latency(
    file: str, count: int, latency_s: float | None, findings: NetworkFindings
) -> None:
    """Say what links without a latency got."""
    if latency_s is None:
        what, cure = "0 ns is taken", "state one with FILE?latency=500ns"
    else:
        what, cure = f"{latency_s * 1e9:g} ns by option", ""
    message = f"{count} links state no latency: {what}"
    findings.note("supplied-latency", Location(file), message, cure)


def _refuse(
    file: str,
    graph: VertexGraph,
    hops: Sequence[Hop],
) -> None:
    """Raise `InputError`: which links lack a bandwidth, on how many edges, one of each."""
    # By link, not by edge: a network repeats its devices, and one option settles all of them.
    counts: Counter[str] = Counter()
    examples: dict[str, str] = {}
    flaws = {}
    for hop in hops:
        ends = f"{graph.names[hop.one]} - {graph.names[hop.other]}"
        for row in sorted(set(hop.links)):
            link = graph.links[row]
            counts[link.title] += 1
            examples.setdefault(link.title, ends)
            if link.flaw:
                flaws[link.title] = link.flaw
    named = counts.most_common(_MOST_NAMED)
    parts = [f"{title} ({count} edges, as {examples[title]})" for title, count in named]
    rest = f", and {len(counts) - len(named)} more" if len(counts) > len(named) else ""
    reason = f"; {next(iter(flaws.values()))}" if flaws else ""
    message = f"{len(hops)} edges state no bandwidth: {', '.join(parts)}{rest}{reason}"
    pairs = "&".join(f"bandwidth.{title}=50GB/s" for title, _ in named[:2])
    cure = f"state them as FILE?{pairs}, all as FILE?bandwidth.*=50GB/s, or missing=unlimited"
    raise InputError(
        message,
        location=Location(file),
        cure=cure,
        code="no-bandwidth",
    )
