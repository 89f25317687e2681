"""Read models of Topograph: trees of switches, and blocks of hosts with NVLink domains.

Source: the models in Topograph's tests (public), by name, and in the older form of lists.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from collhub_networks import NetworkFindings, Value, document_of

from collhub_fabrics.hostlists import expanded_hosts
from collhub_fabrics.options import TopographOptions
from collhub_fabrics.refusals import CODE
from collhub_fabrics.trees import SwitchTree, TreeSwitch
from hub_core.model import Location
from hub_core.network import Topology
from hub_core.plugin_api import Source


@dataclass(frozen=True, slots=True)
class _Block:
    """Hosts at one switch, and the names of their domains by annotation."""

    hosts: tuple[str, ...]
    domains: tuple[tuple[str, str], ...]


def read(
    source: Source,
    options: TopographOptions,
) -> Topology:
    """The network of a model. Raises `InputError` with the path of what is wrong."""
    root = document_of(source, CODE)
    switches = {
        name: TreeSwitch(_names(value, "switches")) for name, value in _named(root, "switches")
    }
    blocks = list(_blocks(root, switches))
    findings = NetworkFindings()
    plan = SwitchTree(source.name, switches).plan(options)
    groups: dict[str, list[str]] = {}
    nvlink: dict[str, list[str]] = {}
    for block in blocks:
        for key, name in block.domains:
            groups.setdefault(f"{key} {name}", []).extend(block.hosts)
        # Of several annotations the first is the widest domain.
        if block.domains:
            nvlink.setdefault(block.domains[0][1], []).extend(block.hosts)
    if options.nvlink_bandwidth is not None:
        for name, hosts in nvlink.items():
            domain = f"NVLink {name}"
            plan.add_switch(domain)
            for host in hosts:
                plan.add_cable(host, domain, options.nvlink_bandwidth)
    elif nvlink:
        message = f"{len(nvlink)} NVLink domains are groups without links"
        cure = "state their bandwidth as FILE?nvlink-bandwidth=900GB/s"
        findings.note(
            "nvlink-domains",
            Location(source.name),
            message,
            cure,
        )
    findings.tell(source.report)
    return plan.topology(groups)


def _blocks(
    root: Value,
    switches: dict[str, TreeSwitch],
) -> Iterator[_Block]:
    """All blocks; their hosts are added to their switches."""
    holders = {}
    # The older form names blocks at the switches, the newer one switches at the blocks.
    for name, value in _named(root, "switches"):
        for block in _names(value, "capacity_blocks"):
            holders[block] = name
    for value in root.items_of("blocks"):
        yield _block(
            value,
            value["switch"],
            value["switch"].text(),
            switches,
        )
    for name, value in _named(root, "capacity_blocks"):
        yield _block(
            value,
            value,
            holders.get(name, ""),
            switches,
        )


def _block(
    value: Value,
    place: Value,
    switch: str,
    switches: dict[str, TreeSwitch],
) -> _Block:
    if switch not in switches:
        found = f"{switch[:80]!r} is not described" if switch else "no switch has this block"
        place.fail(found, f"switches are: {', '.join(switches)[:200] or 'none'}")
    hosts = [host for entry in value["nodes"].items() for host in _expanded(entry)]
    switches[switch].hosts += hosts
    # Keys differ from site to site, so that every annotation of a block is a domain.
    stated = value.get("annotations")
    domains = [] if stated is None else [(key, name.text()) for key, name in stated.entries()]
    nvlink = value.get("nvlink")
    if nvlink is not None:
        domains.insert(0, ("nvlink", nvlink.text()))
    return _Block(tuple(hosts), tuple(domains))


def _expanded(value: Value) -> list[str]:
    try:
        return expanded_hosts(value.text())
    except ValueError as error:
        value.fail(str(error), "write for example node[01-04]")


def _named(root: Value, key: str) -> Iterator[tuple[str, Value]]:
    """Entries by name: of an object by its keys, of a list by the key `name`."""
    stated = root.get(key)
    if stated is None:
        return
    if isinstance(stated.raw, list):
        for value in stated.items():
            yield value["name"].text(), value
        return
    for name, value in stated.entries():
        yield name, value


def _names(
    value: Value,
    key: str,
) -> list[str]:
    return [entry.text() for entry in value.items_of(key)]
