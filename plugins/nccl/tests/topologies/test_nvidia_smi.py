"""Text of nvidia-smi topo -m: NVLink, NVSwitch, the tree of PCI switches and CPUs, bad matrices."""

from __future__ import annotations

from pathlib import Path

import pytest
from collhub_nccl.options import SmiMatrixOptions
from collhub_nccl.plugin import NVIDIA_SMI
from collhub_nccl.samples import MATRIX
from collhub_nccl.topologies.nvidia_smi import read

from hub_core.model import Diagnostic, InputError
from hub_core.network import Topology
from hub_core.plugin_api import Source
from hub_core.registry.bind_options import bind_options

PAIR = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \t{}\t0-3\nGPU1\t{}\t X \t0-3\n"


def read_text(text: str, reports: list[Diagnostic] | None = None, **options: str | int) -> Topology:
    source = Source.of_bytes("matrix.txt", text.encode())
    source = Source(source.name, source.parts, (reports if reports is not None else []).append)
    bound = bind_options(NVIDIA_SMI.options, options, {}, "topology reader")
    assert isinstance(bound, SmiMatrixOptions)
    return read(source, bound)


def neighbours(topology: Topology, name: str) -> set[tuple[str, float]]:
    node = topology.node_names.index(name)
    return {
        (topology.node_name(link.destination), round(link.bandwidth_bytes_per_s / 1e9, 6))
        for link in topology.links()
        if link.source == node
    }


def test_more_links_in_a_row_than_a_gpu_has_mean_nvswitch() -> None:
    topology = read_text(MATRIX, profile="a100")
    assert topology.num_npus == 4
    assert ("nvswitch", 240.0) in neighbours(topology, "gpu 0")


def test_few_links_are_direct() -> None:
    topology = read_text(PAIR.format("NV4", "NV4"), profile="a100")
    assert ("gpu 1", 80.0) in neighbours(topology, "gpu 0")


def test_devices_that_share_a_switch_or_a_cpu_hang_below_one_node() -> None:
    topology = read_text(MATRIX, profile="a100")
    assert neighbours(topology, "nic NIC0") == {("pci 0", 24.0)}
    assert neighbours(topology, "gpu 3") == {("nvswitch", 240.0), ("cpu 1", 24.0)}
    assert neighbours(topology, "cpu 0") >= {("cpu 1", 10.0)}


def test_colours_and_the_legend_are_no_content() -> None:
    coloured = MATRIX.replace("\tGPU0\tGPU1", "\x1b[4mGPU0\tGPU1", 1).replace(
        "NUMA ID\n", "NUMA ID\x1b[0m\n", 1
    )
    assert (
        read_text(coloured, profile="a100").num_links == read_text(MATRIX, profile="a100").num_links
    )


def test_without_a_profile_the_speed_of_nvlink_is_assumed_aloud() -> None:
    reports: list[Diagnostic] = []
    read_text(MATRIX, reports)
    assert ["FILE?profile=" in found.cure for found in reports] == [True]


def test_machines_are_joined_through_their_cards() -> None:
    topology = read_text(MATRIX, nodes=2, fabric="rail", net_bandwidth="200Gbit/s", profile="a100")
    assert (topology.num_npus, topology.node_names[-1]) == (8, "rail 1")


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("nothing", None, "no line begins with GPU0"),
        (PAIR.format("FOO", "SYS"), 2, "'FOO' is not one of"),
        (PAIR.format("PIX", "SYS"), 3, "one way"),
        ("\tGPU0\tGPU1\nGPU0\t X \tSYS\n", 2, "1 of 2 rows"),
        ("\tGPU0\tGPU1\nGPU0\t X \n", 2, "the row of GPU0"),
    ],
)
def test_bad_matrices_are_refused_with_their_line(text: str, line: int | None, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        read_text(text, profile="h100")
    assert caught.value.diagnostics[0].location.line == line


DGX_H100 = Path(__file__).parents[4].parent / "shared/corpus/strangers/cluster/dgx-h100-topo.txt"


def nics_of(topology: Topology) -> set[str]:
    return {name for name in topology.node_names if name.startswith("nic ")}


@pytest.mark.skipif(not DGX_H100.exists(), reason="the corpus is not next to the checkout")
@pytest.mark.parametrize(
    ("nics", "numbers"),
    [
        ("auto", (0, 1, 2, 3, 6, 7, 8, 9)),
        ("all", tuple(range(10))),
        ("0-3,6", (0, 1, 2, 3, 6)),
        ("NIC4,mlx5_5", (4, 5)),
    ],
)
def test_nics_of_the_network_are_those_near_gpus_or_those_named(nics: str, numbers) -> None:
    reports: list[Diagnostic] = []
    text = DGX_H100.read_text()
    topology = read_text(text, reports, profile="h100", nics=nics, net_bandwidth="400Gb/s")
    assert nics_of(topology) == {f"nic NIC{number}" for number in numbers}
    ports = [name for name in topology.node_names if name.startswith("net ")]
    assert len(ports) == len(numbers)
    noted = [one for one in reports if one.code == "storage-nics"]
    assert len(noted) == (nics == "auto")
    # By the matrix: both PIX to each other, NODE or SYS to every GPU.
    assert all("NIC4, NIC5" in one.message for one in noted)


@pytest.mark.skipif(not DGX_H100.exists(), reason="the corpus is not next to the checkout")
def test_machines_join_on_eight_rails_of_compute_nics() -> None:
    options = {"profile": "h100", "net_bandwidth": "400Gb/s", "nodes": 4, "fabric": "rail"}
    topology = read_text(DGX_H100.read_text(), **options)
    assert [name for name in topology.node_names if name.startswith("rail ")] == [
        f"rail {k}" for k in range(8)
    ]


def test_cards_are_all_kept_where_none_shares_a_switch_with_a_gpu() -> None:
    far = MATRIX.replace("PIX", "NODE").replace("PXB", "NODE")
    assert len(nics_of(read_text(far, profile="a100"))) == len(
        nics_of(read_text(far, profile="a100", nics="all"))
    )


@pytest.mark.parametrize(
    ("nics", "message"),
    [
        ("mlx5_77", "there is no network card 'mlx5_77'; the cards are"),
        ("mlx5_0,", "there is no network card ''; the cards are"),
        ("NIC" + "9" * 5000, "there is no network card 'NIC9.*'; the cards are"),
    ],
)
def test_a_card_that_is_not_there_is_refused(nics: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_text(MATRIX, profile="a100", nics=nics)


def test_a_byte_order_mark_is_no_content() -> None:
    with_mark = read_text("\ufeff" + MATRIX, profile="a100")
    assert with_mark.node_names == read_text(MATRIX, profile="a100").node_names


def test_a_row_cut_before_its_numa_node_is_refused() -> None:
    text = PAIR.replace("Affinity", "Affinity\tNUMA Affinity").replace("0-3", "0-3\t0")
    with pytest.raises(InputError, match=r"matrix\.txt:3: the row of GPU1 has 1 of 2 affinities"):
        read_text(text.format("SYS", "SYS").removesuffix("\t0\n"))


def test_an_empty_cpu_affinity_keeps_the_numa_node() -> None:
    head = "\tGPU0\tGPU1\tGPU2\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
    rows = (
        "GPU0\t X \tSYS\tSYS\t\t0\t\tN/A\n"
        "GPU1\tSYS\t X \tSYS\t0-3\t1\t\tN/A\n"
        "GPU2\tSYS\tSYS\t X \t\t1\t\tN/A\n"
    )
    topology = read_text(head + rows)
    assert neighbours(topology, "gpu 0") == {("cpu 0", 12.0)}
    assert neighbours(topology, "gpu 2") == neighbours(topology, "gpu 1") == {("cpu 1", 12.0)}


def test_relations_without_a_space_between_them_are_separate() -> None:
    glued = MATRIX.replace("NV12\tNV12", "NV12NV12").replace("SYS\tSYS", "SYSSYS")
    assert glued != MATRIX
    topology, expected = read_text(glued, profile="a100"), read_text(MATRIX, profile="a100")
    assert list(topology.links()) == list(expected.links())


def test_a_matrix_of_pci_relations_only_is_read_with_a_warning() -> None:
    reports: list[Diagnostic] = []
    read_text("$ nvidia-smi topo -mp\n" + PAIR.format("SYS", "SYS"), reports)
    assert [(found.code, str(found.location)) for found in reports] == [
        ("pci-only-matrix", "matrix.txt:2")
    ]


def test_a_matrix_of_peer_access_is_named_in_its_refusal() -> None:
    with pytest.raises(InputError, match=r"matrix\.txt:2: GNS is a state of .* -p2p.*topo -m"):
        read_text(PAIR.format("GNS", "GNS"))


def test_the_output_of_rocm_smi_is_refused_with_the_file_to_give() -> None:
    text = "==== Weight between two GPUs ====\n  GPU0  GPU1\nGPU0  0  15\nGPU1  15  0\n"
    with pytest.raises(InputError, match=r"matrix\.txt:2: .*rocm-smi.*NCCL_TOPO_DUMP_FILE"):
        read_text(text)
