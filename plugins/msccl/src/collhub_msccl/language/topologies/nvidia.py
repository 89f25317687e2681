"""Machines of NVIDIA as the language knows them."""

from __future__ import annotations

import re
import subprocess

from collhub_msccl.language.topologies.generic import Topology

__all__ = ["dgx1", "dgx_a100", "nvlink_only"]

_DGX1 = "02112000 20120100 11020020 12200001 20000211 01002012 00201102 00011220"


def dgx1() -> Topology:
    """DGX-1V: eight GPUs, one or two NVLinks between neighbours."""
    return Topology("DGX1", [[int(links) for links in row] for row in _DGX1.split()])


def dgx_a100() -> Topology:
    """DGX A100: twelve NVLinks from every GPU, through switches to any other."""
    return Topology("DGX_A100", [[12 if src != dst else 0 for src in range(8)] for dst in range(8)])


def nvlink_only(nvidia_smi_topo: str | None = None) -> Topology:
    """The NVLinks of a machine, from the text of `nvidia-smi topo -m`, by default of this one."""
    if nvidia_smi_topo is None:
        nvidia_smi_topo = subprocess.run(
            ["nvidia-smi", "topo", "-m"], capture_output=True, text=True, check=True
        ).stdout
    rows = [
        line.split() for line in nvidia_smi_topo.splitlines() if re.match(r"\s*GPU\d+\s+\S", line)
    ]
    table = [row for row in rows if not re.fullmatch(r"GPU\d+", row[1])]
    size = len(table)
    if not size or any(len(row) < size + 1 for row in table):
        raise ValueError("this is not the table that nvidia-smi topo -m prints")
    # The table says what a row's GPU has towards a column's; links work both ways.
    return Topology(
        "NVLinkOnly", [[_link_count(row[column + 1]) for column in range(size)] for row in table]
    )


def _link_count(cell: str) -> int:
    match = re.fullmatch(r"NV(\d+)", cell)
    return int(match[1]) if match else 0
