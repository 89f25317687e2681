"""Read models of Topograph: trees of switches, and blocks of hosts with NVLink domains.

Source: the models in Topograph's tests (public), in the form of objects by name and in the older
form of lists.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from collhub_networks import NetworkFindings, Value, document_of

from collhub_fabrics.plan import CODE
from collhub_fabrics.plugin import TopographOptions
from collhub_fabrics.trees import SwitchTree, TreeSwitch, expand_hosts
from hub_core.model import Location
from hub_core.network import Topology
from hub_core.plugin_api import Source


@dataclass(frozen=True, slots=True)
class _Block:
    """Hosts at one switch, and the names of their domains as (annotation, name)."""

    hosts: tuple[str, ...]
    domains: tuple[tuple[str, str], ...]


def read(
    source: Source,
    options: TopographOptions,
) -> Topology:
    """Read the network of a Topograph model: its switches, and its blocks as hosts at switches.

    Every domain of a block becomes a group `KEY NAME` of its hosts. The first domain of a block
    (its `nvlink`, else its first annotation) is an NVLink domain: with the option
    `nvlink_bandwidth` it is a switch to which all its hosts are linked; without the option a note
    says that it is only a group. Blocks of the same domain are merged. Raises `InputError` with the
    path of the error.
    """
    root = document_of(source, CODE)
    switches = {
        name: TreeSwitch(_list_texts(value, "switches"))
        for name, value in _generate_named(root, "switches")
    }
    blocks = list(_generate_blocks(root, switches))
    findings = NetworkFindings()
    plan = SwitchTree(source.name, switches).plan(options)
    groups: dict[str, list[str]] = {}
    nvlink: dict[str, list[str]] = {}
    for block in blocks:
        for key, name in block.domains:
            groups.setdefault(f"{key} {name}", []).extend(block.hosts)
        # The first of several annotations is the widest domain.
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
        cure = "give their bandwidth as FILE?nvlink-bandwidth=900GB/s"
        findings.note(
            "nvlink-domains",
            Location(source.name),
            message,
            cure,
        )
    findings.tell(source.report)
    return plan.topology(groups)


def _generate_blocks(
    root: Value,
    switches: dict[str, TreeSwitch],
) -> Iterator[_Block]:
    """Yield all blocks, and append their hosts to their switches in `switches`.

    Entries of the list `blocks` name their switch. Then follow entries of `capacity_blocks`, whose
    switch lists the block; if several switches list it, the last one counts. Raises `InputError`
    for a block without a known switch.
    """
    switch_of = {}
    # The older form lists blocks at the switches, the newer one gives the switch of each block.
    for name, value in _generate_named(root, "switches"):
        for block in _list_texts(value, "capacity_blocks"):
            switch_of[block] = name
    for value in root.items_of("blocks"):
        yield _build_block(
            value,
            value["switch"],
            value["switch"].text(),
            switches,
        )
    for name, value in _generate_named(root, "capacity_blocks"):
        yield _build_block(
            value,
            value,
            switch_of.get(name, ""),
            switches,
        )


def _build_block(
    value: Value,
    switch_value: Value,
    switch: str,
    switches: dict[str, TreeSwitch],
) -> _Block:
    """Build a block, and append its hosts to its switch in `switches`.

    Its domains are `nvlink` first, then all its annotations in order. Raises `InputError` at
    `switch_value` for an unknown or empty `switch`, and at the entry for an invalid list of hosts.
    """
    if switch not in switches:
        problem = f"{switch[:80]!r} is not described" if switch else "no switch has this block"
        switch_value.fail(problem, f"switches are: {', '.join(switches)[:200] or 'none'}")
    hosts = [host for entry in value["nodes"].items() for host in _expand_entry(entry)]
    switches[switch].hosts += hosts
    # Keys differ from site to site, so that every annotation of a block is a domain.
    annotations = value.get("annotations")
    domains = (
        [] if annotations is None else [(key, name.text()) for key, name in annotations.entries()]
    )
    nvlink = value.get("nvlink")
    if nvlink is not None:
        domains.insert(0, ("nvlink", nvlink.text()))
    return _Block(tuple(hosts), tuple(domains))


def _expand_entry(value: Value) -> list[str]:
    """Expand an entry of a list of hosts in Slurm's notation; `InputError` if it is invalid."""
    try:
        return expand_hosts(value.text())
    except ValueError as error:
        value.fail(str(error), "write for example node[01-04]")


def _generate_named(root: Value, key: str) -> Iterator[tuple[str, Value]]:
    """Yield (name, value) of the entries at a key, which are an object or a list with `name`s.

    Nothing if the key is absent or null. Names may repeat in a list. Raises `InputError` for any
    other value, and for an entry of a list without a name.
    """
    entries = root.get(key)
    if entries is None:
        return
    if isinstance(entries.raw, list):
        for value in entries.items():
            yield value["name"].text(), value
        return
    for name, value in entries.entries():
        yield name, value


def _list_texts(
    value: Value,
    key: str,
) -> list[str]:
    """Return the texts of the list at a key; empty if the key is absent.

    Raises `InputError` for another type.
    """
    return [entry.text() for entry in value.items_of(key)]
