"""NCCL and RCCL topology XML.

Nodes, links and bandwidths by NCCL's tables, partial files, several machines, bad files.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from collhub_nccl.options import MachineXmlOptions
from collhub_nccl.plugin import TOPOLOGY_XML
from collhub_nccl.samples import xml_samples
from collhub_nccl.topologies import bandwidths
from collhub_nccl.topologies.bandwidths import PROFILES
from collhub_nccl.topologies.topology_xml import read

from hub_core.model import Diagnostic, InputError, UsageError
from hub_core.network import Topology
from hub_core.plugin_api import Source, declared_options
from hub_core.registry.bind_options import bind_options

NVIDIA, AMD = (source.content().decode() for source in xml_samples())
GPU = (
    '<pci busid="0000:{bus}:00.0" class="0x030200" link_speed="{speed}" link_width="16">'
    '<gpu dev="{dev}" sm="{sm}">{links}</gpu></pci>'
)


def read_text(text: str, reports: list[Diagnostic] | None = None, **options: str | int) -> Topology:
    source = Source.of_bytes("machine.xml", text.encode())
    source = Source(source.name, source.parts, (reports if reports is not None else []).append)
    bound = bind_options(TOPOLOGY_XML.options, options, {}, "topology reader")
    assert isinstance(bound, MachineXmlOptions)
    return read(source, bound)


def gpu(bus: str, dev: int, links: str = "", sm: int = 80, speed: str = "16 GT/s") -> str:
    return GPU.format(bus=bus, dev=dev, links=links, sm=sm, speed=speed)


def machine(*devices: str, cpu: str = 'numaid="0" arch="x86_64" vendor="AuthenticAMD"') -> str:
    return f'<system version="1"><cpu {cpu}>{"".join(devices)}</cpu></system>'


def rates(topology: Topology, source: str, destination: str) -> list[float]:
    """GB/s of the links from one named node to another, in link order."""
    a, b = topology.node_names.index(source), topology.node_names.index(destination)
    rows = (topology.source == a) & (topology.destination == b)
    return [float(round(rate / 1e9, 6)) for rate in topology.bandwidth_bytes_per_s[rows]]


def test_gpus_are_npus_and_everything_else_is_a_switch() -> None:
    topology = read_text(NVIDIA)
    assert topology.num_npus == 4
    assert topology.node_names[:4] == ("gpu 0", "gpu 1", "gpu 2", "gpu 3")
    assert sorted(topology.node_names[4:]) == [
        "cpu 0", "cpu 1", "net mlx5_0", "net mlx5_1", "nic 0000:08:00.0", "nic 0000:18:00.0",
        "nvswitch", "pci 0000:00:00.0", "pci 0000:10:00.0",
    ]  # fmt: skip


def test_bandwidths_are_those_of_nccl() -> None:
    topology = read_text(NVIDIA)
    assert (
        rates(topology, "gpu 0", "nvswitch") == rates(topology, "nvswitch", "gpu 0") == [18 * 20.6]
    )
    assert rates(topology, "gpu 0", "pci 0000:00:00.0") == [48.0]
    assert rates(topology, "cpu 0", "cpu 1") == [22.0]
    assert rates(topology, "net mlx5_0", "nic 0000:08:00.0") == [50.0]


def test_network_ports_keep_the_latency_that_the_file_states() -> None:
    topology = read_text(NVIDIA, latency="2us")
    port = topology.node_names.index("net mlx5_0")
    assert set(topology.latency_s[topology.source == port]) == {0.5e-6}
    assert set(topology.latency_s[topology.source < 4]) == {2e-6}


def test_a_device_with_a_nic_child_is_a_card_also_without_a_class() -> None:
    port = '<nic><net name="mlx5_0" dev="0" speed="200000"/></nic>'
    card = f'<pci busid="0000:08:00.0" link_speed="32.0 GT/s PCIe" link_width="4">{port}</pci>'
    topology = read_text(machine(gpu("01", 0), card))
    assert rates(topology, "net mlx5_0", "nic 0000:08:00.0") == [25.0]


def test_a_port_without_a_device_number_is_left_out_with_a_warning() -> None:
    reports: list[Diagnostic] = []
    read_text(NVIDIA.replace('dev="1" speed', "speed"), reports)
    assert [(found.code, found.location.line) for found in reports] == [("port-without-device", 32)]
    assert "the network port mlx5_1 without a device number" in reports[0].message


def test_a_link_of_a_gpu_to_itself_is_left_out_with_a_warning() -> None:
    reports: list[Diagnostic] = []
    link = '<nvlink target="0000:01:00.0" count="12" tclass="0x030200"/>'
    topology = read_text(machine(gpu("01", 0, link), gpu("02", 1)), reports)
    assert rates(topology, "gpu 0", "gpu 0") == []
    assert [found.code for found in reports] == ["link-target"]
    assert "<nvlink> to 0000:01:00.0, which is the GPU itself" in reports[0].message


def test_gpus_are_numbered_by_dev_wherever_they_stand() -> None:
    topology = read_text(machine(gpu("01", 1), gpu("02", 0)))
    assert topology.node_names[:2] == ("gpu 0", "gpu 1")


def test_links_between_gpus_are_directed_and_come_first() -> None:
    link = '<nvlink target="0000:02:00.0" count="4" tclass="0x030200"/>'
    topology = read_text(machine(gpu("01", 0, link), gpu("02", 1)))
    assert rates(topology, "gpu 0", "gpu 1") == [80.0]
    assert rates(topology, "gpu 1", "gpu 0") == []
    assert (topology.source[0], topology.destination[0]) == (0, 1)


def test_repeated_links_add_up() -> None:
    link = '<nvlink target="0000:02:00.0" count="1" tclass="0x030200"/>'
    topology = read_text(machine(gpu("01", 0, link * 3), gpu("02", 1)))
    assert rates(topology, "gpu 0", "gpu 1") == [60.0]


@pytest.mark.parametrize("counts", [(5, 4, 4, 5), (4, 5, 5, 4), (4, 4, 5, 5), (1, 6, 8, 3)])
def test_chips_of_nvswitch_in_any_order_give_equal_bandwidths(counts: tuple[int, ...]) -> None:
    chips = [
        f'<nvlink target="0000:f{chip}:00.0" count="{count}" tclass="0x068000"/>'
        for chip, count in enumerate(counts)
    ]
    topology = read_text(machine(gpu("01", 0, "".join(chips), sm=90), gpu("02", 1)))
    rate = topology.bandwidth_bytes_per_s[topology.destination == 0]
    # Not nearly: links of unequal bandwidth are told apart in tables and by synthesizers.
    assert 18 * 20.6e9 in rate.tolist()


def test_c2c_and_nvlink_bridges_lead_to_the_cpu() -> None:
    links = '<c2c bw="25000" count="10"/><nvlink target="x" count="2" tclass="0x068001"/>'
    topology = read_text(machine(gpu("01", 0, links, sm=90)))
    assert rates(topology, "gpu 0", "cpu 0") == [41.2, 250.0, 24.0]


def test_a_switch_to_switch_link_is_directed() -> None:
    switches = (
        '<pci busid="0000:0a:00.0" class="0x060400" link_speed="16 GT/s" link_width="16">'
        f'<pcilink target="0000:0b:00.0"/>{gpu("01", 0)}</pci>'
        '<pci busid="0000:0b:00.0" class="0x060400" link_speed="16 GT/s" link_width="16"/>'
    )
    topology = read_text(machine(switches))
    assert rates(topology, "pci 0000:0a:00.0", "pci 0000:0b:00.0") == [5000.0]
    assert rates(topology, "pci 0000:0b:00.0", "pci 0000:0a:00.0") == []


def test_two_level_broadcom_switches_are_one() -> None:
    ids = (
        'class="0x060400" link_speed="32 GT/s" link_width="16" vendor="0x1000" device="0xc030"'
        ' subsystem_vendor="0x1000"'
    )
    lower = f'<pci busid="0000:0b:00.0" {ids} subsystem_device="0x1005">{gpu("01", 0)}</pci>'
    topology = read_text(
        machine(f'<pci busid="0000:0a:00.0" {ids} subsystem_device="0x0005">{lower}</pci>')
    )
    assert topology.node_names == ("gpu 0", "cpu 0", "pci 0000:0a:00.0")


def test_partitions_of_one_gpu_are_two_npus() -> None:
    two = (
        '<gpu dev="0" sm="100" mlopart="0"><nvlink target="s" count="18" tclass="0x068000"/></gpu>'
    )
    both = two + two.replace('dev="0"', 'dev="1"')
    pci = '<pci busid="0000:01:00.0" class="0x030200" link_speed="32 GT/s" link_width="16">'
    topology = read_text(machine(f"{pci}{both}</pci>"))
    assert rates(topology, "gpu 0", "gpu 1") == [2618.0]
    assert rates(topology, "gpu 0", "nvswitch") == [360.9]


def test_pci_bandwidth_follows_the_prefix_that_nccl_finds_first() -> None:
    speeds = ("2.5 GT/s PCIe", "5.0 GT/s", "32 GT/s PCIe/s", "8 GT/s")
    widths = (16, 16, 16, 8)
    assert list(map(bandwidths.pci, speeds, widths)) == [3.0, 12.0, 48.0, 6.0]
    # Without a width, that of 16 lanes.
    assert bandwidths.pci("64.0 GT/s PCIe", 0) == 96.0


@pytest.mark.parametrize(
    ("capability", "expected"),
    [(50, 20.0), (61, 18.0), (75, 20.0), (86, 12.0), (89, 20.0), (90, 20.6), (120, 40.1)],
)
def test_nvlink_bandwidth_follows_the_compute_capability(capability: int, expected: float) -> None:
    assert bandwidths.nvlink(capability) == expected


def test_amd_files_have_xgmi_links() -> None:
    topology = read_text(AMD)
    assert rates(topology, "gpu 0", "gpu 1") == rates(topology, "gpu 1", "gpu 0") == [72.0]


def test_a_partial_file_gets_gpus_by_class_and_nvlinks_by_profile(corpus: Path) -> None:
    text = (corpus / "nccl-topology" / "azure-ndv5-topo.xml").read_text()
    reports: list[Diagnostic] = []
    bare = read_text(text, reports)
    assert (bare.num_npus, [found.code for found in reports]) == (8, ["partial-topology"])
    assert "FILE?profile=" in reports[0].cure
    full = read_text(text, profile="h100")
    assert rates(full, "gpu 0001:00:00.0", "nvswitch") == [18 * 20.6]


def test_a_file_without_gpus_needs_their_bus_ids(corpus: Path) -> None:
    text = (corpus / "nccl-topology" / "aws-g5.48xl-topo.xml").read_text()
    with pytest.raises(InputError, match=r"FILE\?gpus="):
        read_text(text)
    gpus = ",".join(f"00:1{digit}.0" for digit in "6789abcd")
    reports: list[Diagnostic] = []
    topology = read_text(text, reports, gpus=gpus, profile="a10", cpu_bandwidth="16GB/s")
    assert (topology.num_npus, rates(topology, "cpu 0", "cpu 1")) == (8, [16.0])
    assert [found.code for found in reports] == ["no-link-speed"]


@pytest.mark.parametrize(
    ("cpu", "rate"),
    [
        ('vendor="AuthenticAMD"', 16.0),
        ('arch="arm64"', 6.0),
        ('arch="x86_64"', bandwidths.UNLIMITED),
        ('arch="riscv64" vendor="Other"', bandwidths.UNLIMITED),
    ],
)
def test_a_cpu_is_reported_exactly_if_its_rate_is_assumed(cpu: str, rate: float) -> None:
    cpus = [
        f'<cpu numaid="{number}" {cpu}>{gpu(f"0{number + 1}", number)}</cpu>' for number in (0, 1)
    ]
    reports: list[Diagnostic] = []
    topology = read_text(f'<system version="1">{"".join(cpus)}</system>', reports)
    assert rates(topology, "cpu 0", "cpu 1") == [rate]
    is_assumed = rate == bandwidths.UNLIMITED
    assert ("unknown-cpu" in {found.code for found in reports}) == is_assumed


def test_every_file_of_the_corpus_has_the_gpus_that_it_names(corpus: Path) -> None:
    for file in sorted((corpus / "nccl-topology").glob("rccl-*.xml")):
        text = file.read_text()
        topology = read_text(text)
        assert topology.num_npus == text.count("<gpu "), file.name
        # All GPUs reach one another.
        pairs = np.arange(1, topology.num_npus)
        topology.routes(np.zeros_like(pairs), pairs)


def test_machines_are_joined_by_one_switch_or_by_rails() -> None:
    flat, rails = (read_text(NVIDIA, nodes=3, fabric=fabric) for fabric in ("nonblocking", "rail"))
    single = read_text(NVIDIA)
    assert (flat.num_npus, flat.num_nodes) == (12, 3 * single.num_nodes + 1)
    assert (rails.num_npus, rails.num_nodes) == (12, 3 * single.num_nodes + 2)
    assert rates(flat, "machine 2 net mlx5_1", "network") == [50.0]
    assert rates(rails, "machine 2 net mlx5_1", "rail 1") == [50.0]
    assert rails.groups["machine 1"] == (4, 5, 6, 7)


def test_machines_without_ports_need_their_speed(corpus: Path) -> None:
    text = (corpus / "nccl-topology" / "azure-ndv5-topo.xml").read_text()
    with pytest.raises(InputError, match=r"FILE\?net_bandwidth="):
        read_text(text, nodes=2)
    assert (
        read_text(text, nodes=2, net_bandwidth="400Gbit/s", fabric="rail").node_names[-1]
        == "rail 7"
    )


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("<graphs/>", 1, "<system> was expected"),
        ("<system>\n<gpu dev='0'/></system>", 2, "stands in <system>"),
        ("<system>\n<cpu>", 2, "not well-formed"),
        ("<!DOCTYPE system>\n<system/>", 1, "DOCTYPE"),
        (
            '<!DOCTYPE topology SYSTEM "hwloc2.dtd">\n<topology/>',
            1,
            "by hwloc .lstopo., not by NCCL",
        ),
        ('<system version="1">\n<cpu', 2, "ends too early: give the complete file"),
        ("<system/>\n<system/>", 2, "keep one document"),
        ("<system>\n&lol;</system>", 2, "not well-formed"),
        (machine("\n<pci busid='zz'/>"), 2, "bus id"),
        (
            machine(gpu("01", 0, "\n<nvlink count='x' target='0000:01:00.0' tclass='0x03'/>")),
            2,
            "whole number",
        ),
        (machine(gpu("01", 0, "\n<nvlink count='2'/>")), 2, "no tclass"),
        (
            machine(
                "<pci busid='0000:01:00.0'>\n<gpu><nvlink count='1' tclass='0x068000'/></gpu></pci>"
            ),
            2,
            "FILE.profile=",
        ),
        (
            machine("<pci busid='0000:01:00.0'>\n<gpu><xgmi count='1' tclass='0x03'/></gpu></pci>"),
            2,
            "gcn.*profile=",
        ),
        ("<system>" + "<cpu>" * 70, 1, "inside one another"),
    ],
)
def test_bad_files_are_refused_with_their_line(text: str, line: int, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        read_text(text)
    place = caught.value.diagnostics[0].location
    assert (place.file, place.line) == ("machine.xml", line)


def test_unknown_gpus_and_links_are_named_with_the_option_that_helps() -> None:
    reports: list[Diagnostic] = []
    read_text(AMD.replace('gcn="910"', 'gcn="gfx1300"'), reports)
    read_text(machine(gpu("01", 0, "<ualink/>")), reports)
    assert ["gfx1300" in reports[0].message, "<ualink>" in reports[1].message] == [True, True]
    assert all("FILE?profile=" in found.cure for found in reports)


def test_a_profile_for_another_number_of_gpus_is_refused() -> None:
    with pytest.raises(UsageError, match="8 GPUs"):
        read_text(machine(gpu("01", 0), gpu("02", 1)), profile="v100")


@pytest.mark.parametrize(("name", "lanes"), [("v100", 6), ("mi250x", 7)])
def test_the_pairs_of_a_profile_use_all_lanes_of_every_gpu(name: str, lanes: int) -> None:
    total = [0] * 8
    for one, other, count in PROFILES[name].wiring.lanes(8):
        total[one] += count
        total[other] += count
    assert total == [lanes] * 8


def test_dies_of_the_mi250x_profile_are_joined_as_in_a_real_dump(corpus: Path) -> None:
    real = read_text((corpus / "nccl-topology" / "rccl-topo_8p_90a.xml").read_text())
    pairs = {
        (link.source, link.destination)
        for link in real.links()
        if link.source < link.destination < real.num_npus
    }
    assert pairs == set(PROFILES["mi250x"].wiring.pairs)


def test_the_plugin_lists_the_profiles() -> None:
    assert next(
        option for option in declared_options(TOPOLOGY_XML.options) if option.name == "profile"
    ).choices == tuple(PROFILES)
