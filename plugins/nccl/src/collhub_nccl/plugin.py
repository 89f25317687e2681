"""Offers of this distribution to the hub.

Programs and rings for NCCL are written, machines as NCCL and nvidia-smi see them are read.
"""

from __future__ import annotations

from collections.abc import Sequence

from hub_core.plugin_api import (
    Format,
    FormatWriter,
    HealthCheck,
    Layout,
    Option,
    OptionType,
    TopologyReader,
    hookimpl,
)

COLLHUB_PLUGIN_API = (1, 0)

# The keys of `profiles.PROFILES`, which is imported only by the readers.
_GPUS = ("v100", "t4", "a100", "a10", "l40", "h100", "h200", "b200", "b300", "mi250x", "mi300x")
# Comments may stand before the root.
_XML_SIGNATURE = (
    rb"\A(?:\xef\xbb\xbf)?\s*(?:<\?xml[^>]*\?>\s*)?(?><!--(?s:.*?)-->\s*)*+<system[\s/>]"
)

_OPTIONS = (
    Option(
        "profile",
        OptionType.TEXT,
        None,
        "the GPU, which supplies what the file does not say of NVLink or xGMI",
        _GPUS,
    ),
    Option(
        "latency", OptionType.TEXT, "500ns", "latency of every link for which the file states none"
    ),
    Option(
        "cpu_bandwidth",
        OptionType.TEXT,
        None,
        "bandwidth between two CPUs, as 22GB/s, instead of the derived one",
    ),
    Option(
        "net_bandwidth",
        OptionType.TEXT,
        None,
        "bandwidth of every network card, as 400Gbit/s, instead of the stated one",
    ),
    Option("nodes", OptionType.INT, 1, "number of such machines, joined by a network"),
    Option(
        "fabric",
        OptionType.TEXT,
        "nonblocking",
        "the network: one switch for all ports, or one for the k-th ports of all machines",
        ("nonblocking", "rail"),
    ),
)

TOPOLOGY_XML = TopologyReader(
    Format(
        "nccl-topology", "machines as NCCL and RCCL describe them in XML", (".xml",), _XML_SIGNATURE
    ),
    "collhub_nccl.topologies.topology_xml:read",
    (
        *_OPTIONS,
        Option(
            "gpus",
            OptionType.TEXT,
            None,
            "bus ids of GPUs, as 00:16.0,00:17.0, where no class tells them",
        ),
    ),
    samples="collhub_nccl.samples:xml_samples",
)

NVIDIA_SMI = TopologyReader(
    Format(
        "nvidia-smi",
        "text of nvidia-smi topo -m",
        (".txt",),
        # The line that names the devices, which is underlined where it went to a terminal.
        rb"(?m)^[^\S\n]*(?:\x1b\[[0-9;]*m)*\s*GPU0[^\S\n]",
    ),
    "collhub_nccl.topologies.nvidia_smi:read",
    (
        *_OPTIONS,
        # The XML states the rate of every PCI link, the matrix none.
        Option(
            "pci_bandwidth",
            OptionType.TEXT,
            None,
            "bandwidth of PCI links, as 24GB/s (default: the profile's)",
        ),
    ),
    samples="collhub_nccl.samples:text_samples",
)

PROGRAM = FormatWriter(
    Format(
        "nccl",
        "a folder with a program for NCCL: schedule tables, runtime, builds, CPU test double",
        (),
        layout=Layout.FOLDER,
    ),
    "collhub_nccl.programs.emit:write",
    (
        Option(
            "mode",
            OptionType.TEXT,
            None,
            "calls that the program serves; out of place where the algorithm is right for both",
            ("in-place", "out-of-place"),
        ),
    ),
)

RINGS = FormatWriter(
    # No suffix: .xml says nothing of the kind of XML that is wanted.
    Format("nccl-graph", "rings within a node as XML for NCCL_GRAPH_FILE", ()),
    "collhub_nccl.graphs.graph_xml:write",
    (
        Option(
            "gpus",
            OptionType.TEXT,
            None,
            "device number of every rank in its node, as 0,2,1,3 (default: rank r has r)",
        ),
        Option("copies", OptionType.INT, 1, "channels for each ring"),
        Option(
            "speed",
            OptionType.FLOAT,
            20.0,
            "bandwidth of one channel in GB/s, by which NCCL chooses between algorithms",
        ),
        Option(
            "type",
            OptionType.TEXT,
            "NVL",
            "the farthest kind of path between neighbours, by which NCCL chooses its protocol",
            ("NVL", "NVB", "PIX", "PXB", "PHB", "SYS"),
        ),
    ),
)


@hookimpl
def collhub_consumers() -> Sequence[FormatWriter]:
    """Describe the writers."""
    return [PROGRAM, RINGS]


@hookimpl
def collhub_topologies() -> Sequence[TopologyReader]:
    """Describe the readers."""
    return [TOPOLOGY_XML, NVIDIA_SMI]


@hookimpl
def collhub_health_checks() -> Sequence[HealthCheck]:
    """Describe the check of the compilers."""
    return [HealthCheck("nccl", "collhub_nccl.programs.health:check")]
