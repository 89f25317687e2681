"""Rules of files of NCCL that are not its tuner files: graphs, topologies and logs."""

from __future__ import annotations

from collections.abc import Sequence

from hub_core.plugin_api import Rule, declare_rules, declare_similar_rules

_GRAPHS = (
    (
        "invalid-nccl-graph",
        "The file is no graph of rings that NCCL reads.",
        "It is another dump, or was changed by hand.",
        "Write it with NCCL_GRAPH_DUMP_FILE; the message names the element and the expected value.",
        '`<graphs version="2">`',
    ),
    (
        "not-rings",
        "The algorithm is not a set of rings.",
        "Data takes a tree, or leaves the ring.",
        "Write it as a program: `--to nccl`.",
        "a tree all-reduce",
    ),
    (
        "graph-not-read",
        "A graph of the file is not used.",
        "NCCL searches trees and other graphs itself.",
        "No action is needed.",
        '`<graph id="1">`',
    ),
    (
        "one-node",
        "Rings continue in other nodes.",
        "The file describes one node of several.",
        "No action is needed; the rings of this node's ranks are read.",
        "a channel that begins at a network device",
    ),
    (
        "too-many-channels",
        "The rings need more channels than NCCL has.",
        "Rings have unequal fractions of the data.",
        "Write it as a program: `--to nccl`.",
        "fractions that need 64 equal channels",
    ),
    (
        "too-many-ranks",
        "The ranks do not fit one node.",
        "Graphs describe the GPUs of one node.",
        "Use fewer ranks.",
        "a ring of 1000 ranks",
    ),
    (
        "no-rings",
        "The log has lines of NCCL, but no rings and no trees.",
        "NCCL_DEBUG_SUBSYS lacks GRAPH, or the log ends before.",
        "Set NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=INIT,GRAPH.",
        "a log with only version lines",
    ),
    (
        "channel",
        "The rings or trees of a channel contradict each other.",
        "Lines of ranks are missing or mixed.",
        "Give the log of all ranks of one run.",
        "rank 1 follows ranks 0 and 2",
    ),
    (
        "nccl-log",
        "Facts of the log: version, number of ranks and channels.",
        "The reader reports the origin of its result.",
        "No action is needed.",
        "NCCL 2.19.3, 8 ranks, 2 channels",
    ),
)
_TUNING = (
    (
        "no-tuning-lines",
        "The file has no TUNING lines of NCCL.",
        "The subsystem is not logged.",
        "Set NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=TUNING.",
        "a log with only INIT lines",
    ),
    (
        "unknown-line",
        "A line of a choice has an unknown form.",
        "Another version of NCCL has written it, or the line is cut.",
        "Report the line and the version; the remaining lines are read.",
        "`AllReduce: 1024 Bytes`",
    ),
    (
        "unknown-machine",
        "The log does not identify the machine.",
        "It lacks the lines of the topology.",
        "Give `--machine` or `--topology`.",
        "a log with only TUNING lines",
    ),
    (
        "too-large",
        "The file exceeds the limit of the reader.",
        "The log is of all ranks and subsystems.",
        "Give the lines with `NCCL INFO` of rank 0.",
        "a log of more than 256 MiB",
    ),
)
_TOPOLOGIES = (
    (
        "invalid-nccl-topology",
        "An element or attribute is not as in topology files of NCCL.",
        "The file was changed by hand, or is another file.",
        "Write it with NCCL_TOPO_DUMP_FILE; the message names the element and the expected value.",
        '`<pci busid="gpu0">`',
    ),
    (
        "not-xml",
        "The file is not well-formed XML.",
        "It is cut off or damaged.",
        "Get the complete file, in UTF-8.",
        "`<system><cpu>`",
    ),
    (
        "doctype",
        "The file has a DOCTYPE.",
        "Entities could expand without bound.",
        "Remove it.",
        "`<!DOCTYPE system>`",
    ),
    (
        "no-gpu",
        "No GPU is known.",
        "The dump was written without GPUs.",
        "Name the GPUs: `FILE?gpus=`.",
        "a file with only CPUs",
    ),
    (
        "no-net",
        "The machine has no network port by which several machines are joined.",
        "The dump names no network card with a speed.",
        "Give it: `FILE?net_bandwidth=400Gbit/s`.",
        "`FILE?nodes=2` without a card",
    ),
    (
        "partial-topology",
        "The file names no GPU; PCI devices of the class of GPUs are taken.",
        "The topology was written before the GPUs were found.",
        "Give the links of GPUs: `FILE?profile=`.",
        '`<pci class="0x030200">`',
    ),
    (
        "unknown-element",
        "An element of the file is unknown and left out.",
        "A newer version of NCCL has written the file, or the name is misspelt.",
        "Correct the name; give links of GPUs with `FILE?profile=`.",
        "`<nvlnk>`",
    ),
    (
        "unknown-link",
        "A link of a GPU is unknown and left out.",
        "A newer version of NCCL has written the file.",
        "Give the links of GPUs: `FILE?profile=`.",
        "`<newlink>`",
    ),
    (
        "link-target",
        "A link leads to a device that is not in the file, or back to its own GPU.",
        "The file contains a part of the machine, or was written by hand, as that of Azure for "
        "NC A100 v4.",
        "Write the file again with `NCCL_TOPO_DUMP_FILE`, and use all of it.",
        '`<nvlink target="0000:ff:00.0">`',
    ),
    (
        "unknown-gpu",
        "The speed of the GPU's links is not known and assumed.",
        "The GPU is newer than the tables.",
        "Give the links of GPUs: `FILE?profile=`.",
        '`gcn="gfx9999"`',
    ),
    (
        "unknown-cpu",
        "The speed between CPUs is not known; it is taken as unlimited.",
        "The CPU has no architecture or vendor that the tables of NCCL contain.",
        "Give the attributes arch and vendor.",
        "`<cpu>` without attributes",
    ),
    (
        "no-link-speed",
        "A PCI device states no link_speed; a speed is assumed.",
        "The system hides it.",
        "Add link_speed and link_width.",
        "`<pci>` without link_speed",
    ),
    (
        "port-speed",
        "A network port is faster than any product.",
        "The speed is in another unit.",
        "Give it: `FILE?net_bandwidth=`.",
        '`speed="400000000"`',
    ),
    (
        "gpu-without-rank",
        "A GPU without a rank takes no part.",
        "The job used some GPUs of the machine.",
        "No action is needed.",
        "a `<gpu>` without rank next to others",
    ),
    (
        "pcilink-target",
        "A link between PCI switches leads to a switch that is not in the file.",
        "The file contains a part of the machine.",
        "Write the file again with `NCCL_TOPO_DUMP_FILE`, and use all of it.",
        "`<pcilink>` to an unknown bus id",
    ),
    (
        "port-without-device",
        "A network port has no device number, so that NCCL does not use it.",
        "The attribute `dev` of a `<net>` is missing: the port is unknown to NCCL's network "
        "plugin, or the file was written by hand.",
        "Add `dev` to the port, or write the file again with `NCCL_TOPO_DUMP_FILE`.",
        '`<net name="mlx5_0" speed="400000"/>`',
    ),
    (
        "invalid-nvidia-smi",
        "The text is not the matrix of `nvidia-smi topo -m`.",
        "Lines are cut, or it is the output of another command.",
        "Save the whole output; the message names line and cell.",
        "a matrix with 3 of 8 rows",
    ),
    (
        "pci-only-matrix",
        "The matrix has the PCI relations of GPUs, but not their NVLinks.",
        "It was printed by `nvidia-smi topo -mp`.",
        "Save the output of `nvidia-smi topo -m`.",
        "a matrix below the command line `nvidia-smi topo -mp`",
    ),
    (
        "unknown-nic",
        "The option names a network card that is not in the matrix.",
        "The name is that of another machine.",
        "Use a name that the message lists.",
        "`FILE?nics=mlx5_9`",
    ),
    (
        "storage-nics",
        "Network cards far from every GPU are taken for storage and left out.",
        "The machine has cards for storage.",
        "Name the cards of the network: `FILE?nics=`.",
        "a card with SYS to all GPUs",
    ),
)
_REQUESTS = (
    ("bus-id", "The text is no bus ID of a device.", "`FILE?gpus=x`"),
    (
        "profile-size",
        "The wiring of the profile is for another number of GPUs.",
        "a profile of 8 GPUs for 4",
    ),
    ("library-name", "The name cannot be part of the name of a function.", "`-O name=a-b`"),
)


def list_rules() -> Sequence[Rule]:
    """Return the rules in the order of their declaration."""
    return [
        *declare_rules("ring graphs and logs of NCCL, when they are read", _GRAPHS),
        *declare_rules(
            "logs with TUNING lines of NCCL, read by `collhub nccl explain --log`", _TUNING
        ),
        *declare_rules("topology files of NCCL and output of `nvidia-smi topo -m`", _TOPOLOGIES),
        *declare_similar_rules(
            "requests: files for runtimes and simulators",
            _REQUESTS,
            cause="An option does not fit the machine or the program.",
            cure="Correct the option according to the message.",
        ),
    ]
