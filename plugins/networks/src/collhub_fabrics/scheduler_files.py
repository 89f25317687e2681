"""Read networks as schedulers of clusters describe them: Slurm's topology.conf, Topograph's models.

Both describe trees of switches, or blocks of hosts. Sources: the manual of topology.conf (public),
where a line has `Key=Value` pairs with case-insensitive keys, # begins a comment, a line that ends
with a backslash is continued, and Slurm ignores LinkSpeed; and the models in Topograph's tests
(public), in the form of objects by name and in the older forms: lists, or hosts at switches.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from collhub_networks import DocumentValue, NetworkFindings, document_of

from collhub_fabrics.plan import CODE, refuse
from collhub_fabrics.plugin import TopographOptions, TreeOptions
from collhub_fabrics.trees import SwitchTree, TreeSwitch, expand_hosts
from hub_core.model import Diagnostic, Location, Severity, parse_whole
from hub_core.network import Topology
from hub_core.plugin_api import Source

_MAX_FILE_BYTES = 1 << 26
_KEYS = {"switchname", "switches", "nodes", "linkspeed", "blockname", "blocksizes"}
_MAX_BLOCK = 10**7 - 1
_CORE_SWITCH = "core"
# Key of a label whose domain is one of NVLink, such as network.topology.nvidia.com/accelerator.
_ACCELERATOR = re.compile(r"accelerat|nvlink", re.IGNORECASE)


def read_slurm(source: Source, options: TreeOptions) -> Topology:
    """Read the network of a topology.conf, of which either switches or blocks are described.

    A block is a set of hosts that a switch connects; it also becomes a group. Hosts, cables and
    bandwidths follow from `options` (`SwitchTree.plan`). Reports the note `one-cable` if a host has
    several GPUs and the option `nics` is not given. Then a host has one cable at each of its
    switches. Raises `InputError` (`invalid-fabric`), with the line if the cause is in one line:

    - a file of more than 64 MiB, or an invalid line
    - both switches and blocks, or neither of them
    - a block size that is not a larger multiple of the previous one
    - a missing switch, or a switch that is above itself
    - a name of both a host and a switch, or no host
    - `bandwidth` is missing, or has a number of values other than 1 and the number of levels
    - the number of NICs is not a multiple of `rails`, or `node_bandwidth` is missing for hosts of
      several GPUs

    Raises `UsageError` for a text in `bandwidth` that is no bandwidth.
    """
    topology = _TopologyFile(source).topology(options)
    if options.gpus_per_node > 1 and options.nics is None:
        source.report(
            Diagnostic(
                "one-cable",
                f"a host of {options.gpus_per_node} GPUs has one cable at each of its switches",
                Severity.NOTE,
                Location(source.name),
                f"give its NICs with FILE?nics={options.gpus_per_node}, and rails with &rails=",
            )
        )
    return topology


class _TopologyFile:
    """Parsed lines of a file: switches, or blocks and their sizes."""

    def __init__(self, source: Source) -> None:
        self._name = source.name
        content = source.content()
        if len(content) > _MAX_FILE_BYTES:
            refuse(self._name, None, f"the file is larger than {_MAX_FILE_BYTES >> 20} MiB")
        self._switches: dict[str, TreeSwitch] = {}
        self._blocks: dict[str, TreeSwitch] = {}
        self._sizes: list[int] = []
        for number, line in _generate_lines(content.decode("utf-8", "replace")):
            self._add_line(number, self._parse_pairs(number, line))

    def topology(self, options: TreeOptions) -> Topology:
        """Build the network; every block also becomes a group of its hosts, with its name.

        Raises `InputError` if the file describes both switches and blocks, or neither, and for
        a block size that is not a larger multiple of the previous one. Also raises the errors
        of `SwitchTree.plan` and `FabricPlan.topology`, for example for switches that do not
        form a tree, and for missing bandwidths.
        """
        # Slurm's plugins read either switches or blocks, never both.
        if self._switches and self._blocks:
            refuse(self._name, None, "switches and blocks are both described", "keep one of them")
        if not self._switches and not self._blocks:
            cure = "a line is SwitchName=s Nodes=node[01-16], or BlockName=b Nodes=..."
            refuse(self._name, None, "no switch and no block is described", cure)
        groups = {name: block.hosts for name, block in self._blocks.items()}
        switches = self._switches or self._build_block_levels()
        return SwitchTree(self._name, switches).plan(options).topology(groups)

    def _add_line(
        self,
        number: int,
        pairs: dict[str, str],
    ) -> None:
        """Add the object that a line describes: a switch, a block of hosts, or the sizes of blocks.

        `number`: of the line; `pairs`: its values by key in lower case. The first rule that
        applies:

        1. With `blocksizes`, the sizes replace earlier ones; other keys of the line are ignored.
        2. With `switchname`, the line is a switch. Otherwise it is a block (`blockname`).

        `switches` are the switches below, `nodes` the hosts, in Slurm's notation. Both may be
        given. Other keys are ignored. Raises `InputError` (`invalid-fabric`) at the line, in this
        order:

        - a size that is no number from 1 to `_MAX_BLOCK`
        - no name, or the name of an earlier line of the same type
        - an invalid list of switches, then of hosts
        - neither switches nor hosts
        """
        if "blocksizes" in pairs:
            self._sizes = []
            for part in pairs["blocksizes"].split(","):
                size = parse_whole(part, _MAX_BLOCK)
                if not size:
                    message = f"BlockSizes: {part[:80]!r} is not a number of hosts"
                    refuse(self._name, number, message)
                self._sizes.append(size)
            return
        entries = self._switches if "switchname" in pairs else self._blocks
        name = pairs.get("switchname") or pairs.get("blockname")
        if not name:
            refuse(self._name, number, "SwitchName or BlockName was expected")
        # Slurm silently uses the last one, which hides mistakes.
        if name in entries:
            refuse(self._name, number, f"{name[:80]} is described twice")
        below = self._parse_hosts(number, pairs.get("switches", ""))
        hosts = self._parse_hosts(number, pairs.get("nodes", ""))
        if not below and not hosts:
            refuse(self._name, number, f"{name[:80]} has neither Switches nor Nodes")
        entries[name] = TreeSwitch(below, hosts, number)

    def _build_block_levels(self) -> dict[str, TreeSwitch]:
        """Convert the blocks to switches, with a level of switches above per further block size.

        Units are first the blocks, in the order of the file. For each size after the first, which
        is k times the previous one, each k consecutive units get a switch above them. The last of
        these switches may have fewer units, also only one. They are named `FIRST..LAST` by their
        units, and are the units of the next size. The first size is only a divisor; it is not
        compared with the hosts of blocks.

        If several units remain, also without sizes, a switch `core` connects them. The result has
        the blocks, then the switches level by level from the bottom, then `core`. Raises
        `InputError` (`invalid-fabric`) for a size that is not a larger multiple of the previous
        one.
        """
        switches = dict(self._blocks)
        # The order of blocks in the file is the order in which Slurm joins them.
        top = list(self._blocks)
        for low, high in zip(self._sizes, self._sizes[1:], strict=False):
            if high % low or high == low:
                cure = "each size must be a larger multiple of the previous one"
                refuse(self._name, None, f"BlockSizes: {high} is not a multiple of {low}", cure)
            # Number of units of the level below per unit of this level.
            count = high // low
            parts = [top[first : first + count] for first in range(0, len(top), count)]
            top = [f"{part[0]}..{part[-1]}" for part in parts]
            switches |= {name: TreeSwitch(part) for name, part in zip(top, parts, strict=True)}
        if len(top) > 1:
            switches[_CORE_SWITCH] = TreeSwitch(top)
        return switches

    def _parse_pairs(
        self,
        number: int,
        line: str,
    ) -> dict[str, str]:
        """Parse the words `Key=value` of a line; return the values by key in lower case.

        Words are separated by blanks. A value is the text after the first `=` and may be empty.
        The pairs keep the order of the line. A line of blanks gives an empty dict.

        Raises `InputError` at line `number` for a word without `=`, a key that topology files do
        not have, and a key that occurs twice; upper and lower case are equal.
        """
        pairs: dict[str, str] = {}
        for word in line.split():
            key, equals, value = word.partition("=")
            name = key.lower()
            if not equals or name not in _KEYS:
                cure = "keys are SwitchName, Switches, Nodes, LinkSpeed, BlockName, BlockSizes"
                refuse(self._name, number, f"{word[:80]!r} has no known key", cure)
            if name in pairs:
                refuse(self._name, number, f"{key} is given twice")
            pairs[name] = value
        return pairs

    def _parse_hosts(self, number: int, text: str) -> list[str]:
        """Expand a list of hosts in Slurm's notation to names, in its order.

        In `node[01-04,07],login` commas separate names, and brackets contain numbers and
        ascending ranges. The numbers of a range have the width of its first one: `[08-10]`
        gives 08, 09, 10. Of several brackets in a name, the last one varies fastest. Names
        may repeat.

        The result is [] for an empty text. Raises `InputError` (`invalid-fabric`) with line
        `number` for an empty name, blanks outside of brackets, brackets that do not match, a
        decreasing range, numbers of more than 9 digits, and more than 2^20 hosts.
        """
        if not text:
            return []
        try:
            return expand_hosts(text)
        except ValueError as error:
            refuse(self._name, number, str(error), "write for example node[01-04,07]")


def _generate_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield (number, line) of the lines that are not blank, without comments and trailing blanks.

    A comment begins at `#`. A line that ends with a backslash, after its comment was removed,
    continues in the next one. The parts are joined with a blank in place of the backslash, and have
    the number of the first part. An empty line or the end of the file ends a continuation; only
    then the yielded line ends with a blank. Numbers count from 1. Leading blanks remain.
    """
    start, previous_parts = 0, ""
    for number, line in enumerate(text.splitlines(), 1):
        # A comment ends a line, also a continued one.
        plain = line.partition("#")[0].rstrip()
        start = start or number
        if plain.endswith("\\"):
            previous_parts += plain[:-1] + " "
            continue
        if (previous_parts + plain).strip():
            yield start, previous_parts + plain
        start, previous_parts = 0, ""
    if previous_parts.strip():
        yield start, previous_parts


@dataclass(frozen=True, slots=True)
class _SwitchHosts:
    """Hosts at one switch, and the names of their domains as (annotation or label, name).

    `nvlink`: NVLink domain, "" for none.
    """

    hosts: tuple[str, ...]
    domains: tuple[tuple[str, str], ...]
    nvlink: str


def read_topograph(
    source: Source,
    options: TopographOptions,
) -> Topology:
    """Read the network of a Topograph model: switches, and blocks of hosts at these switches.

    Hosts, cables and bandwidths follow from `options`, as in `read_slurm`. In older models switches
    list the hosts, and `nodes` may name NVLink domains of hosts.

    - A switch without entry is a leaf if a block names it and a switch lists it. The note
      `empty-leaves` names leaves without hosts (`_find_leaves`).
    - Hosts that only blocks without a switch list are left out (warning `hosts-without-switch`).
    - Groups `KEY NAME`: the hosts of all blocks with this key and name in `nvlink`, annotations or
      labels, in the order of the blocks.
    - NVLink domain of a block: `nvlink`, else its first annotation, else its first label of an
      accelerator, else none. With the option `nvlink_bandwidth` a switch `NVLink NAME` with a cable
      to each host; otherwise only the note `nvlink-domains`.

    Raises `InputError` (`invalid-fabric`) with the path, and the errors of `read_slurm`.
    """
    root = document_of(source, CODE)
    switches = {
        name: TreeSwitch(_list_texts(value, "switches"), _list_hosts(value))
        for name, value in _generate_named(root, "switches")
    }
    findings = NetworkFindings()
    place = Location(source.name)
    # The leaves of newer models are described by their blocks only.
    leaves, empty = _find_leaves(root, switches)
    switches |= {name: TreeSwitch() for name in (*leaves, *empty)}
    if empty:
        listed = ", ".join(empty)[:200]
        message = f"{len(empty)} leaf switches have no hosts, because no block names them: {listed}"
        findings.note("empty-leaves", place, message)
    blocks = [*_generate_blocks(root, switches), *_generate_host_domains(root, switches)]
    known = {host for switch in switches.values() for host in switch.hosts}
    lost = [host for block in blocks for host in block.hosts if host not in known]
    if lost:
        listed = ", ".join(lost)[:200]
        message = f"{len(lost)} hosts of blocks without a switch are left out: {listed}"
        findings.warn("hosts-without-switch", place, message, "add `switch` to their block")
    plan = SwitchTree(source.name, switches).plan(options)
    groups: dict[str, list[str]] = {}
    nvlink: dict[str, list[str]] = {}
    for block in blocks:
        hosts = [host for host in block.hosts if host in known]
        for key, name in block.domains if hosts else ():
            groups.setdefault(f"{key} {name}", []).extend(hosts)
        if block.nvlink and hosts:
            nvlink.setdefault(block.nvlink, []).extend(hosts)
    if options.nvlink_bandwidth is not None:
        for name, hosts in nvlink.items():
            domain = f"NVLink {name}"
            plan.add_switch(domain)
            for host in hosts:
                plan.add_cable(host, domain, options.nvlink_bandwidth)
    elif nvlink:
        message = f"{len(nvlink)} NVLink domains are groups without links"
        cure = "give their bandwidth as FILE?nvlink-bandwidth=900GB/s"
        findings.note("nvlink-domains", place, message, cure)
    findings.tell(source.report)
    return plan.topology(groups)


def _find_leaves(
    root: DocumentValue, switches: Mapping[str, TreeSwitch]
) -> tuple[Sequence[str], Sequence[str]]:
    """Return the leaves that only `blocks` describe, and those that nothing describes.

    A leaf of the first kind has a block and is below another switch, but is no entry of `switches`.
    A leaf of the second kind has neither entry nor block, and is below a switch that also has a
    leaf of the first kind: a place for hosts that has none. Any other missing switch is a mistake,
    which `SwitchTree` refuses. Both are in the order in which switches list them.
    """
    named = {value["switch"].text() for value in root.items_of("blocks") if value.get("switch")}
    leaves: dict[str, None] = {}
    empty: dict[str, None] = {}
    for switch in switches.values():
        missing = [below for below in switch.switches if below not in switches]
        found = [below for below in missing if below in named]
        leaves |= dict.fromkeys(found)
        if found:
            empty |= dict.fromkeys(below for below in missing if below not in named)
    return list(leaves), list(empty)


def _generate_blocks(
    root: DocumentValue,
    switches: dict[str, TreeSwitch],
) -> Iterator[_SwitchHosts]:
    """Yield all blocks in document order; add the hosts of each block to its switch.

    First come the entries of the list `blocks`, whose member `switch` names their switch; without
    it, they have none. Then come the entries of `capacity_blocks`, an object by name or a list with
    names. Their switch is the last entry of `switches` in the document whose list `capacity_blocks`
    has the name of the block. A block of the second kind needs no switch if the hosts of all
    switches include its hosts.

    The entries of `switches` are changed: the hosts of a block are appended when it is yielded,
    except those that its switch has already. Raises `InputError` for an unknown switch, a block of
    the second kind without a needed switch, and invalid members.
    """
    switch_of = {}
    # The older form lists blocks at the switches, the newer one gives the switch of each block.
    for name, value in _generate_named(root, "switches"):
        for block in _list_texts(value, "capacity_blocks"):
            switch_of[block] = name
    for value in root.items_of("blocks"):
        switch_value = value.get("switch")
        yield _build_block(
            value,
            switch_value or value,
            None if switch_value is None else switch_value.text(),
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
    value: DocumentValue,
    switch_value: DocumentValue,
    switch: str | None,
    switches: dict[str, TreeSwitch],
) -> _SwitchHosts:
    """Build a block from the object `value`, and append its new hosts to its switch in `switches`.

    Hosts are the entries of `nodes`, expanded in Slurm's notation. Hosts that the switch already
    lists are not appended. Nothing is appended if `switch` is None, or if it is "" and every host
    of the block is already listed by some switch.

    Domains are (key, text) of `nvlink`, then of annotations, then of labels, in the order of the
    document. A text has the name of its member as key, an object gives its entries. The NVLink
    domain of the block is the text of the first `nvlink` entry, else of the first annotation, else
    of the first label whose key names an accelerator (`_ACCELERATOR`), else "".

    Raises `InputError`, in this order: for missing `nodes` or invalid hosts; at `switch_value` for
    an unknown `switch`, or "" with a host that no switch lists; for a domain without text.
    """
    hosts = _list_hosts(value, is_required=True)
    if switch is None:
        pass
    elif switch in switches:
        listed = set(switches[switch].hosts)
        switches[switch].hosts += [host for host in hosts if host not in listed]
    elif switch or not {h for entry in switches.values() for h in entry.hosts}.issuperset(hosts):
        problem = f"{switch[:80]!r} is not described" if switch else "no switch has this block"
        switch_value.fail(problem, f"switches are: {', '.join(switches)[:200] or 'none'}")
    # Keys differ from site to site, so that every annotation and label of a block is a domain.
    nvlink, annotations = _read_texts(value, "nvlink"), _read_texts(value, "annotations")
    labels = _read_texts(value, "labels")
    accelerators = [(key, name) for key, name in labels if _ACCELERATOR.search(key)]
    # The first of several annotations or labels is the widest domain.
    widest = next(iter([*nvlink, *annotations, *accelerators]), ("", ""))
    return _SwitchHosts(tuple(hosts), (*nvlink, *annotations, *labels), widest[1])


def _generate_host_domains(
    root: DocumentValue, switches: Mapping[str, TreeSwitch]
) -> Iterator[_SwitchHosts]:
    """Yield a block with one host for each NVLink domain that a host of the object `nodes` names.

    The domains of a host are in the member `nvlink` of its `attributes`. If it has no `attributes`,
    the member `nvlink` of the host itself is used. If `nvlink` is an object, each of its entries is
    a domain. Hosts without a domain are skipped. `switches` must list every host that has a domain.
    Raises `InputError` (`invalid-fabric`) if a host with a domain is in no switch, and for a
    domain that is empty or no text.
    """
    known = {host for switch in switches.values() for host in switch.hosts}
    for name, value in _generate_named(root, "nodes"):
        for key, domain in _read_texts(value.get("attributes") or value, "nvlink"):
            if name not in known:
                value.fail(f"host {name!r} is at no switch", "list it in `nodes` of its switch")
            yield _SwitchHosts((name,), ((key, domain),), domain)


def _read_texts(value: DocumentValue, key: str) -> list[tuple[str, str]]:
    """Return the text at a key as [(key, text)], or all entries of the object at the key.

    The entries are (name, text), in the order of the document. The result is [] if the key
    is absent or null. Integers become texts. Raises `InputError` for any other value, for
    an empty text, and for such an entry.
    """
    member = value.get(key)
    if member is None:
        return []
    if isinstance(member.raw, dict):
        return [(name, entry.text()) for name, entry in member.entries()]
    return [(key, member.text())]


def _list_hosts(value: DocumentValue, is_required: bool = False) -> list[str]:
    """Return the hosts of the list `nodes`, whose entries are expanded in Slurm's notation.

    The order is that of the list; hosts may repeat. If the list is absent, the result is
    [], unless `is_required`. Raises `InputError` for a required list that is absent, for
    another value than a list, and for an invalid entry.
    """
    entries = value["nodes"].items() if is_required else value.items_of("nodes")
    hosts: list[str] = []
    for entry in entries:
        try:
            hosts += expand_hosts(entry.text())
        except ValueError as error:
            entry.fail(str(error), "write for example node[01-04]")
    return hosts


def _generate_named(root: DocumentValue, key: str) -> Iterator[tuple[str, DocumentValue]]:
    """Yield (name, value) of the entries at a key.

    The entries are either an object by name or a list of objects with a member `name`; names may
    repeat in a list. Yields nothing if the key is absent or null. Raises `InputError` for any other
    value, and for an entry of a list without a name.
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
    value: DocumentValue,
    key: str,
) -> list[str]:
    """Return the texts of the list at a key; empty if the key is absent.

    Raises `InputError` for another type.
    """
    return [entry.text() for entry in value.items_of(key)]
