"""Rules of folders and networks of ASTRA-sim, ns-3 and htsim."""

from __future__ import annotations

from collections.abc import Sequence

from hub_core.plugin_api import Rule, declare_rules

_FOLDERS = (
    (
        "astra-sim-folder",
        "The files of the folder contradict each other, or one is missing.",
        "A file is missing, or two files could be the same input.",
        "Name the complete folder, or the file by an option; the message names the file.",
        "a script that names traces which are not in the folder",
    ),
    (
        "congestion-unaware",
        "The folder is for ASTRA-sim's congestion-unaware backend.",
        "Its script starts this backend.",
        "Simulate with `-O network=congestion-unaware`.",
        "a script with AstraSim_Analytical_Congestion_Unaware",
    ),
    (
        "invalid-system",
        "The system configuration has a value that ASTRA-sim does not accept.",
        "A key is missing or misspelled.",
        "Correct the key that the message names.",
        '`"all-reduce-implementation": ["rings"]`',
    ),
    (
        "topology-too-small",
        "The network has fewer NPUs than the traces have ranks.",
        "The files belong to different runs.",
        "Give a network with enough NPUs.",
        "8 traces and a network of 4 NPUs",
    ),
)
_NETWORKS = (
    (
        "invalid-network-yaml",
        "The file is no network of the analytical backend.",
        "A key is missing, a list has another length, or a value is out of range.",
        "Correct the key that the message names.",
        "`topology: [ Rings ]`",
    ),
    (
        "invalid-ns3-topology",
        "The file is no topology of ns-3.",
        "A number, rate or delay is missing or out of range.",
        "Correct the line that the message names.",
        "`0 1 400 500ns 0`",
    ),
    (
        "link-count",
        "The header announces another number of links than the file has.",
        "Links were added by hand.",
        "Correct the header; the links of the file are read.",
        "a header with 3 links, and 4 lines",
    ),
    (
        "invalid-htsim-topology",
        "The file is no fat tree of htsim.",
        "A key is missing, occurs twice, or numbers are inconsistent.",
        "Correct the key that the message names.",
        "`Nodes 0`",
    ),
    (
        "inexpressible-topology",
        "The network cannot be written in the format.",
        "ASTRA-sim, htsim and ns-3 know fewer networks.",
        "Use the format that the message proposes.",
        "a torus as htsim file",
    ),
    (
        "too-few-npus",
        "ASTRA-sim needs at least two NPUs.",
        "The network has one NPU.",
        "Name a larger topology.",
        "`ring:1`",
    ),
    (
        "uneven-servers",
        "Servers have different numbers of NPUs, which ns-3 does not represent.",
        "NPUs are joined in groups of different sizes.",
        "Write it for another simulator.",
        "groups of 4 and 8 NPUs",
    ),
)


def list_rules() -> Sequence[Rule]:
    """Return the rules in the order of their declaration."""
    return [
        *declare_rules("folders of ASTRA-sim, when they are read", _FOLDERS),
        *declare_rules("network files of ASTRA-sim, ns-3 and htsim", _NETWORKS),
    ]
