"""NVIDIA machines as defined by the language."""

from __future__ import annotations

import re
import subprocess

from collhub_msccl.language.topologies.generic import Topology

# Names that `from msccl.topologies.nvidia import *` imports.
__all__ = ["dgx1", "dgx_a100", "nvlink_only"]

# Rows of destinations, one digit per source: NVLinks of the hybrid cube mesh.
_DGX1 = "02112000 20120100 11020020 12200001 20000211 01002012 00201102 00011220"


def dgx1() -> Topology:
    """DGX-1V: eight GPUs, one or two NVLinks between neighbours."""
    return Topology("DGX1", [[int(links) for links in row] for row in _DGX1.split()])


def dgx_a100() -> Topology:
    """DGX A100: twelve NVLinks from every GPU, through switches to all other GPUs."""
    gpus = range(8)
    return Topology("DGX_A100", [[12 if src != dst else 0 for src in gpus] for dst in gpus])


def nvlink_only(nvidia_smi_topo: str | None = None) -> Topology:
    """NVLinks of a host, from the text of `nvidia-smi topo -m`; default: run it on this host.

    Raises `ValueError` for a different text.
    """
    text = _run_nvidia_smi() if nvidia_smi_topo is None else nvidia_smi_topo
    lines = [line for line in text.splitlines() if re.match(r"\s*GPU\d+\s+\S", line)]
    rows = [line.split() for line in lines]
    # The line with the column names has a GPU name instead of a cell value.
    table = [row[1:] for row in rows if not re.fullmatch(r"GPU\d+", row[1])]
    size = len(table)
    if not size or any(len(cells) < size for cells in table):
        raise ValueError("this is not the table that nvidia-smi topo -m prints")
    # The table is from row to column; links are symmetric.
    return Topology(
        "NVLinkOnly", [[_parse_link_count(cell) for cell in cells[:size]] for cells in table]
    )


def _run_nvidia_smi() -> str:
    """Run `nvidia-smi topo -m` on this host and return its output."""
    command = ["nvidia-smi", "topo", "-m"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _parse_link_count(cell: str) -> int:
    """Number of NVLinks in a cell of the table."""
    match = re.fullmatch(r"NV(\d+)", cell)
    return int(match[1]) if match else 0
