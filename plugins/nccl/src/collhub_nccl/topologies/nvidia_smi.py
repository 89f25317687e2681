"""Read the text of `nvidia-smi topo -m` as a topology.

The text is a matrix with the relation of every two devices: the NVLinks between GPUs, and the PCI
switches and CPUs that devices share. Source: the manual page of nvidia-smi, "topo", and the legend
below the matrix.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

from collhub_networks import NetworkFindings

from collhub_nccl.options import SmiMatrixOptions
from collhub_nccl.topologies import bandwidths
from collhub_nccl.topologies.bandwidths import PROFILE_CURE, PROFILES, GpuProfile
from collhub_nccl.topologies.fabric import (
    Fabric,
    LinkType,
    MachineGraph,
    MachineNodeKind,
    gigabytes_per_s,
    topology_of,
)
from hub_core.model import InputError, Location, parse_ranks, parse_whole
from hub_core.network import Topology
from hub_core.plugin_api import Source

_AUTO, _ALL = "auto", "all"
# Relations of a card that shares PCI switches with a GPU, as cards for GPUDirect RDMA do.
_NEAR_RELATIONS = ("PIX", "PXB")
# Maximum links of a GPU of any generation; NCCL's rates of Ampere and between two Skylakes.
_MOST_NVLINKS = 18
_DEFAULT_NVLINK = 20.0
_DEFAULT_SYS = 10.0
_Pairs = dict[tuple[int, int], int]
"""Number of NVLinks by pairs of rows."""
# Far above any machine; the text grows with the square of the number of devices.
_MAX_BYTES = 4 << 20
_MAX_DEVICES = 1024
# Shared part of two devices, nearest first: a PCI switch, several of them, a host bridge, a NUMA
# node.
_SHARED = ("PIX", "PXB", "PHB", "NODE")
# SOC is the old name of SYS.
_BETWEEN_SOCKETS = ("SYS", "SOC")
_NVLINKS = re.compile(r"NV([0-9]{1,3})\Z")
# Several relations without a space: text copied from a terminal lacks the tab at its right edge.
_RELATION = re.compile(r"X|PIX|PXB|PHB|NODE|SYS|SOC|NV[0-9]{1,3}")
_RELATIONS = re.compile(rf"(?:{_RELATION.pattern}){{2,}}\Z")
# An empty CPU affinity, as in a container that may use no CPU of the GPU's NUMA node.
_NO_CPUS = re.compile(rf"(?:{_RELATION.pattern}) *\t\t\s*[0-9]")
# The first line is underlined in terminal output.
_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
# A line of "NIC Legend:", such as "  NIC0: mlx5_0".
_LEGEND = re.compile(r"^\s*(NIC[0-9]+):\s*(\S+)\s*$", re.MULTILINE)
# First words of the columns after the matrix: "CPU Affinity", "NUMA Affinity", "GPU NUMA ID".
_AFFINITIES = ("CPU", "NUMA", "GPU")
# Cells of `nvidia-smi topo -p2p`, which shows whether GPUs may access each other.
_ACCESS_STATES = ("OK", "CNS", "GNS", "TNS", "NS", "DR", "U")
# Command of a matrix of PCI relations only, and headings of the matrices of other programs.
_PCI_ONLY = re.compile(r"\btopo\s+-mp\b")
_OTHER_PROGRAM = re.compile(r"ROCm System Management Interface|(?:Weight|Hops) between two GPUs")


def read(source: Source, options: SmiMatrixOptions) -> Topology:
    """Read one or several equal machines from a matrix of `nvidia-smi topo -m`.

    NPU k of machine m is m * GPUs + k, where k is the position of the GPU in the matrix. The
    number of machines is the option `nodes`. All other nodes are switches:

    - the network cards that the option `nics` selects (`_network_devices`), with names `nic NAME`
    - an NVSwitch, if the numbers of NVLinks imply one (`_add_nvlinks`)
    - PCI switches and CPUs (`_add_tree`)
    - with `net_bandwidth` one port per card; with several machines the switches of `fabric`

    An NVLink has the rate of `profile`. Without a profile 20 GB/s per direction are assumed, with
    the warning `unknown-gpu` if the matrix has NVLinks. Findings are reported at the end.

    Raises `InputError`: for an invalid matrix (`invalid-nvidia-smi`, with file and line), an
    unknown card (`unknown-nic`), several machines without network ports (`no-net`). Raises
    `UsageError` for an invalid range of cards (`invalid-ranks`) and for too many nodes or links.
    """
    fabric = Fabric.of(options)
    findings = NetworkFindings()
    devices = _network_devices(
        _read_matrix(source.name, source.content(), findings), options.nics, source.name, findings
    )
    profile = None if options.profile is None else PROFILES[options.profile]
    machine = MachineGraph()
    for device in devices:
        if device.is_gpu:
            machine.add(MachineNodeKind.GPU, f"gpu {device.name.removeprefix('GPU')}")
        else:
            machine.add(MachineNodeKind.NIC, f"nic {device.name}")
    counts: _Pairs = {}
    for first, second in _pairs_of(devices):
        count = devices[first].nvlinks_to(second)
        if count is not None:
            counts[first, second] = count
    if counts:
        _add_nvlinks(machine, counts, profile)
    if counts and profile is None:
        findings.warn(
            "unknown-gpu",
            Location(source.name),
            "how fast an NVLink is, the file does not say; "
            f"{_DEFAULT_NVLINK:g} GB/s one way is assumed",
            PROFILE_CURE,
        )
    _add_tree(machine, devices, options, profile)
    if fabric.net_bandwidth is not None:
        # The matrix contains no ports of network cards.
        for nic in machine.of_kind(MachineNodeKind.NIC):
            net = machine.add(MachineNodeKind.NET, f"net {machine.names[nic]}")
            machine.join(LinkType.NET, net, nic, fabric.net_bandwidth)
    topology = topology_of(machine, machine.of_kind(MachineNodeKind.GPU), source.name, fabric)
    findings.tell(source.report)
    return topology


def _network_devices(
    devices: Sequence[_SmiDevice], nics: str, file: str, findings: NetworkFindings
) -> list[_SmiDevice]:
    """Return all GPUs and the network cards that `nics` selects, in the order of the matrix.

    `nics` is one of:

    - `all`.
    - `auto`: the cards with the relation PIX or PXB to a GPU, or all cards if none has one. If
      cards are left out, a note `storage-nics` in `findings` names them.
    - Any other text: the list of cards for `_named_cards`.

    The cells of each returned device are reduced to the columns of the returned devices. The
    arguments are not changed, except for `findings`. Raises `InputError` (`unknown-nic`) for an
    unknown card in the list, and `UsageError` (`invalid-ranks`) for an invalid range of numbers.
    """
    cards = [row for row, device in enumerate(devices) if not device.is_gpu]
    gpus = [row for row, device in enumerate(devices) if device.is_gpu]
    chosen = set(cards) if nics == _ALL else set()
    if nics == _AUTO:
        near_cards = [
            row for row in cards if any(devices[row].cells[gpu] in _NEAR_RELATIONS for gpu in gpus)
        ]
        chosen = set(near_cards or cards)
        if storage := [devices[row].name for row in cards if row not in chosen]:
            findings.note(
                "storage-nics",
                Location(file),
                f"{', '.join(storage)}: far from every GPU, taken for storage and left out; "
                f"{len(near_cards)} NICs near GPUs are for the network",
                "name the NICs of the network with FILE?nics=, or FILE?nics=all",
            )
    elif nics != _ALL:
        chosen = set(_named_cards(devices, cards, nics, file))
    used_rows = [row for row in range(len(devices)) if row in chosen or devices[row].is_gpu]
    return [
        replace(devices[row], cells=tuple(devices[row].cells[column] for column in used_rows))
        for row in used_rows
    ]


def _named_cards(
    devices: Sequence[_SmiDevice], cards: Sequence[int], nics: str, file: str
) -> list[int]:
    """Return the rows of the cards that the text `nics` lists, such as `NIC0,mlx5_1,4-7`.

    Commas separate the elements, and the result has their order; a repeated card is repeated. An
    element is:

    - a number or a range (`4-7`, both included) if it begins with a digit; number N means NICN
    - otherwise a name or driver name; case and blanks count

    A text NICN is first searched among the names and driver names (of equal ones the last card
    has it). If none is equal, it is the N-th card from 0 on. `cards`: rows of all cards.

    Raises `InputError` (`unknown-nic`, at the file) for any other name and for an empty element.
    Raises `UsageError` (`invalid-ranks`) for an element that begins with a digit but is no number
    or ascending range.
    """
    # Most cards have no alias, so an empty part names none.
    row_of = {
        name: row for row in cards for name in (devices[row].name, devices[row].alias) if name
    }
    rows_of_names = []
    for part in nics.split(","):
        names = [part]
        if part[:1].isdecimal():
            names = [f"NIC{number}" for number in parse_ranks(part, "NIC")]
        for name in names:
            # Matrices of older versions have the driver's names, which are numbered in order.
            number = parse_whole(name.removeprefix("NIC"), 10**9 - 1)
            numbered = None if number is None or number >= len(cards) else cards[number]
            row = row_of.get(name, numbered)
            if row is None:
                known = ", ".join(devices[row].name for row in cards) or "none"
                message = f"option nics: there is no network card {name[:40]!r}"
                cure = f"the cards are: {known}"
                raise InputError(message, location=Location(file), cure=cure, code="unknown-nic")
            rows_of_names.append(row)
    return rows_of_names


def _add_nvlinks(machine: MachineGraph, counts: _Pairs, profile: GpuProfile | None) -> None:
    """Add the NVLinks to the machine: links between GPUs, or from every GPU to an NVSwitch.

    `counts`: number of NVLinks by pair of GPUs. The matrix of nvidia-smi does not show an NVSwitch;
    behind one, all links of a GPU count for every other GPU. So an NVSwitch is assumed if the
    counts of some GPU add up to more than the maximum number of links of a GPU.

    - Without an NVSwitch, every pair in `counts` gets a link of its count times the rate.
    - With an NVSwitch, one node `nvswitch` is added. Every GPU gets a link to it, of its largest
      count times the rate, 0 for a GPU without counts.

    All links exist in both directions. `profile` (known properties of a GPU model) gives the rate
    in GB/s per direction and the maximum number of links. The defaults are `_DEFAULT_NVLINK` (20)
    and `_MOST_NVLINKS` (18), also for a profile without a number of links. Raises `ValueError` if
    the machine has no GPU.
    """
    rate, max_nvlinks = _DEFAULT_NVLINK, _MOST_NVLINKS
    if profile is not None:
        rate = profile.link
        max_nvlinks = profile.wiring.links or _MOST_NVLINKS
    counts_of_gpu = {
        gpu: [count for pair, count in counts.items() if gpu in pair]
        for gpu in machine.of_kind(MachineNodeKind.GPU)
    }
    # Without a profile, few links to a switch are taken for direct links.
    if max(map(sum, counts_of_gpu.values())) <= max_nvlinks:
        for (first, second), count in counts.items():
            machine.join(LinkType.NVLINK, first, second, count * rate)
        return
    switch = machine.add(MachineNodeKind.NVSWITCH, "nvswitch")
    for gpu, link_counts in counts_of_gpu.items():
        machine.join(LinkType.NVLINK, gpu, switch, max(link_counts, default=0) * rate)


def _add_tree(
    machine: MachineGraph,
    devices: Sequence[_SmiDevice],
    options: SmiMatrixOptions,
    profile: GpuProfile | None,
) -> None:
    """Add a node for every PCI switch above several devices, and a CPU above every device.

    At first, each device is a group and the topmost node above itself. For PIX, PXB, PHB and NODE,
    in this order, the groups of every two devices with this relation are merged, for NODE also
    those with the same known NUMA node. Then each group gets a node, in the order of its lowest
    device: `pci N` if its devices have several topmost nodes, otherwise none; for NODE always
    `cpu N`. PCI links join the topmost nodes of the group to the new one, which takes their place.
    N counts the nodes of a kind from 0. Every two CPUs are linked.

    PCI links have the rate of the option `pci_bandwidth`, else that of the profile, else
    `DEFAULT_PCI` (12). Links between CPUs have the rate of the option `cpu_bandwidth`, else
    `_DEFAULT_SYS` (10). All rates are in GB/s; links exist in both directions. The node number of
    a device must be its index.
    """
    rate = gigabytes_per_s(options.pci_bandwidth)
    # The matrix contains no PCI generations: switches and cards are assumed to have the GPU's.
    if rate is None:
        rate = profile.pci if profile else bandwidths.DEFAULT_PCI
    between_cpus = gigabytes_per_s(options.cpu_bandwidth)
    if between_cpus is None:
        between_cpus = _DEFAULT_SYS

    # Topmost node above every device so far, and the lowest device in its group.
    top = list(range(len(devices)))
    group = list(range(len(devices)))
    for relation in _SHARED:
        is_last = relation == _SHARED[-1]
        _merge_groups(group, devices, relation)
        for first in sorted(set(group)):
            members = [
                device for device, group_of_device in enumerate(group) if group_of_device == first
            ]
            below = sorted({top[device] for device in members})
            # Every device gets a CPU above it, but only shared switches become nodes.
            if len(below) == 1 and not is_last:
                continue
            kind = MachineNodeKind.CPU if is_last else MachineNodeKind.PCI
            number = len(machine.of_kind(kind))
            node = machine.add(kind, f"{kind} {number}")
            for child in below:
                machine.join(LinkType.PCI, child, node, rate)
            for device in members:
                top[device] = node

    for first, second in itertools.combinations(machine.of_kind(MachineNodeKind.CPU), 2):
        machine.join(LinkType.SYS, first, second, between_cpus)


def _merge_groups(group: list[int], devices: Sequence[_SmiDevice], relation: str) -> None:
    """Merge, in place, the groups of every two devices that have this relation in the matrix.

    A group has the devices below one PCI switch or CPU. `group` has the number of each device's
    group; the lower number of the two remains. If `relation` is `NODE` (the last one of `_SHARED`),
    two devices with the same NUMA node are merged too, unless their NUMA node is missing ("").
    """
    is_last = relation == _SHARED[-1]
    for first, second in _pairs_of(devices):
        numa = devices[first].numa
        # An empty text is not a node: older versions print none.
        has_common_numa = is_last and numa != "" and numa == devices[second].numa
        if has_common_numa or devices[first].cells[second] == relation:
            low, high = sorted((group[first], group[second]))
            group[:] = [low if number == high else number for number in group]


@dataclass(frozen=True, slots=True)
class _SmiDevice:
    """A row of the matrix: name, line, relation to every device, NUMA node (empty if unknown).

    `affinities`: number of words after the relations. `alias`: driver name such as mlx5_0, from the
    legend after the matrix.
    """

    name: str
    line: int
    cells: tuple[str, ...]
    numa: str
    affinities: int = 0
    alias: str = ""

    @property
    def is_gpu(self) -> bool:
        """Whether the row belongs to a GPU, else to a network card."""
        return self.name.startswith("GPU")

    def nvlinks_to(self, column: int) -> int | None:
        """Return the number of NVLinks to the device of a column, such as 2 for `NV2`.

        None for every other relation, and for the device itself.
        """
        match = _NVLINKS.match(self.cells[column])
        return int(match[1]) if match else None


def _pairs_of(devices: Sequence[_SmiDevice]) -> Iterator[tuple[int, int]]:
    """Yield the numbers of every two rows, the lower one first, in ascending order."""
    return itertools.combinations(range(len(devices)), 2)


def _read_matrix(name: str, content: bytes, findings: NetworkFindings) -> list[_SmiDevice]:
    """Return the rows of the matrix in a file, in their order, one `_SmiDevice` per device.

    The heading is the first line whose first word is GPU0; the next lines are the rows. A row's
    `alias` is the driver name in a line such as `NIC0: mlx5_0` after the matrix, otherwise "".
    Ignored are a byte order mark, other text, and escape sequences of terminals. The command
    `topo -mp` in the text before the heading gives the warning `pci-only-matrix`.

    `name`: the file's name for messages. Raises `InputError` (`invalid-nvidia-smi`) for the first
    of these faults, with the line except for the first one:

    - a file above 4 MiB (`_MAX_BYTES`), or without a heading
    - the output of rocm-smi, recognized by a line up to the heading
    - a heading with a repeated name or more than 1024 devices
    - an invalid row (`_read_row`), or fewer rows than devices
    - a GPU with fewer words after the relations than another GPU (a cut row)
    - two cells of a pair of devices that are not equal
    """
    if len(content) > _MAX_BYTES:
        _fail(name, None, f"the file is larger than {_MAX_BYTES >> 20} MiB")
    text = content.decode("utf-8-sig", "replace")
    lines = _ESCAPE.sub("", text).splitlines()
    header_lines = (index for index, line in enumerate(lines) if line.split()[:1] == ["GPU0"])
    start = next(header_lines, None)
    if start is None:
        _fail(name, None, "this is not the output of nvidia-smi topo -m: no line begins with GPU0")
    if any(_OTHER_PROGRAM.search(line) for line in lines[: start + 1]):
        message = "this is the output of rocm-smi, which shows weights and hops, not links"
        cure = "give the topology of RCCL: run a job with NCCL_TOPO_DUMP_FILE=topo.xml"
        _fail(name, start + 1, message, cure)
    if any(_PCI_ONLY.search(line) for line in lines[:start]):
        findings.warn(
            "pci-only-matrix",
            Location(name, start + 1),
            "this is the matrix of nvidia-smi topo -mp, which shows no NVLinks",
            "save the output of nvidia-smi topo -m",
        )
    # The columns of affinities follow those of the devices.
    words = lines[start].split()
    heads = list(itertools.takewhile(lambda word: word not in _AFFINITIES, words))
    if len(heads) > _MAX_DEVICES or len(set(heads)) < len(heads):
        _fail(name, start + 1, f"the first line names a device twice, or more than {_MAX_DEVICES}")
    devices: list[_SmiDevice] = []
    for number, line in enumerate(lines[start + 1 : start + 1 + len(heads)], start + 2):
        devices.append(_read_row(name, number, line, heads, len(devices)))
    if len(devices) < len(heads):
        _fail(
            name,
            len(lines),
            f"the matrix ends after {len(devices)} of {len(heads)} rows",
            "save the whole output",
        )
    _check_matrix(name, devices)
    aliases = dict(_LEGEND.findall("\n".join(lines[start + 1 + len(heads) :])))
    return [replace(device, alias=aliases.get(device.name, "")) for device in devices]


def _check_matrix(name: str, devices: Sequence[_SmiDevice]) -> None:
    """Raise `InputError` for a cut row of a GPU, then for a pair of devices with unequal cells.

    The code is `invalid-nvidia-smi`. A row is cut if it has fewer affinities than that of another
    GPU. Affinities are the words after the relations, such as CPUs and NUMA node; a GPU without its
    NUMA node would be taken for one of another CPU. Rows of other devices may have any number.

    The two cells of a pair of devices must be equal texts. The first fault is reported, at the line
    of the GPU or of the second device; `name`: of the file.
    """
    gpus = [device for device in devices if device.is_gpu]
    columns = max((device.affinities for device in gpus), default=0)
    for gpu in gpus:
        if gpu.affinities < columns:
            message = f"the row of {gpu.name} has {gpu.affinities} of {columns} affinities"
            _fail(name, gpu.line, message, "save the whole output")
    for first, second in _pairs_of(devices):
        forward = devices[first].cells[second]
        back = devices[second].cells[first]
        if forward != back:
            _fail(
                name,
                devices[second].line,
                f"{devices[first].name} and {devices[second].name} are {forward} one way, "
                f"{back} the other",
            )


def _read_row(file: str, line: int, text: str, heads: Sequence[str], position: int) -> _SmiDevice:
    """Return the device of a row of the matrix: its name, line, relations and NUMA node.

    The first word must be the name at `position` in `heads`, the heading. Then one relation per
    device of the heading follows: X for the device itself, and PIX, PXB, PHB, NODE, SYS, SOC or
    `NV` with 1 to 3 digits for each other device. A space between them may be missing.

    `affinities` is the number of words after the relations, plus one if the first of them, the
    CPUs, is empty: two tabs and a digit follow the relations. The NUMA node is the second affinity,
    "" if it is missing or has a character that is no digit. `alias` is "".

    Raises `InputError` (`invalid-nvidia-smi`, at the line) for another name, fewer words than name
    and relations, or an invalid relation; a state of `topo -p2p` such as `NS` has its own message.
    """
    size = len(heads)
    words = [
        part
        for word in text.split()
        for part in (_RELATION.findall(word) if _RELATIONS.match(word) else [word])
    ]
    if len(words) < size + 1 or words[0] != heads[position]:
        message = f"the row of {heads[position][:40]} was expected, with {size} columns"
        _fail(file, line, message, "save the whole output")
    cells = tuple(words[1 : size + 1])
    for column, cell in enumerate(cells):
        is_relation = cell in _SHARED or cell in _BETWEEN_SOCKETS or _NVLINKS.match(cell)
        is_valid = cell == "X" if column == position else is_relation
        if is_valid:
            continue
        if cell in _ACCESS_STATES:
            message = f"{cell} is a state of nvidia-smi topo -p2p, which shows no links"
            _fail(file, line, message, "save the output of nvidia-smi topo -m")
        known = ", ".join((*_SHARED, *_BETWEEN_SOCKETS))
        _fail(
            file,
            line,
            f"{heads[position]} and {heads[column]}: {cell[:40]!r} is not one of X, NV#, {known}",
            f"write the PCI relation there; for links, {PROFILE_CURE}",
        )
    # The second word is a NUMA node, a range of nodes or "N/A".
    affinities = [""] if _NO_CPUS.search(text) else []
    affinities += words[size + 1 :]
    numa = affinities[1] if len(affinities) > 1 and affinities[1].isdecimal() else ""
    return _SmiDevice(words[0], line, cells, numa, len(affinities))


def _fail(name: str, line: int | None, message: str, cure: str = "") -> NoReturn:
    raise InputError(message, location=Location(name, line), cure=cure, code="invalid-nvidia-smi")
