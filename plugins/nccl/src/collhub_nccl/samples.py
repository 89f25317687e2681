"""Small machines, invented for the conformance kit and the tests: one of NVIDIA's, one of AMD's, and a matrix of nvidia-smi."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hub_core.plugin_api import Source

_PORT = '<nic><net name="{name}" dev="{dev}" speed="400000" port="1" latency="0.5" guid="0x1" maxconn="131072" gdr="1"/></nic>'


def _nvidia_machine() -> str:
    """Four GPUs on NVSwitch, two a CPU, each CPU with a PCI switch and a network card."""
    cpus = []
    for cpu in range(2):
        devices = "".join(
            f'      <pci busid="0000:{16 * cpu + k + 1:02x}:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16">\n'
            f'        <gpu dev="{2 * cpu + k}" sm="90" rank="{2 * cpu + k}" gdr="1">\n'
            f'          <nvlink target="0000:f0:00.0" count="18" tclass="0x068000"/>\n        </gpu>\n      </pci>\n'
            for k in range(2)
        )
        cpus.append(
            f'  <cpu numaid="{cpu}" affinity="ff" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">\n'
            f'    <pci busid="0000:{16 * cpu:02x}:00.0" class="0x060400" link_speed="32.0 GT/s PCIe" link_width="16">\n{devices}'
            f'      <pci busid="0000:{16 * cpu + 8:02x}:00.0" class="0x020000" link_speed="32.0 GT/s PCIe" link_width="16">\n'
            f"        {_PORT.format(name=f'mlx5_{cpu}', dev=cpu)}\n      </pci>\n    </pci>\n  </cpu>\n"
        )
    return f'<system version="1">\n{"".join(cpus)}</system>\n'


def _amd_machine() -> str:
    """Two GPUs joined by two xGMI links, a CPU each."""
    cpus = [
        f'  <cpu numaid="{cpu}" affinity="ff" arch="x86_64" vendor="AuthenticAMD" familyid="175" modelid="1">\n'
        f'    <pci busid="0000:{cpu + 1:02x}:00.0" class="0x120000" link_speed="16.0 GT/s PCIe" link_width="16">\n'
        f'      <gpu dev="{cpu}" sm="104" gcn="910" arch="38911" rank="{cpu}" gdr="1">\n'
        f'        <xgmi target="0000:{2 - cpu:02x}:00.0" count="2" tclass="0x120000"/>\n      </gpu>\n    </pci>\n  </cpu>\n'
        for cpu in range(2)
    ]
    return f'<system version="2">\n{"".join(cpus)}</system>\n'


MATRIX = """\
\tGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tNV12\tNV12\tNV12\tPIX\tSYS\t0-31\t0\t\tN/A
GPU1\tNV12\t X \tNV12\tNV12\tPXB\tSYS\t0-31\t0\t\tN/A
GPU2\tNV12\tNV12\t X \tNV12\tSYS\tPIX\t32-63\t1\t\tN/A
GPU3\tNV12\tNV12\tNV12\t X \tSYS\tNODE\t32-63\t1\t\tN/A
NIC0\tPIX\tPXB\tSYS\tSYS\t X \tSYS
NIC1\tSYS\tSYS\tPIX\tNODE\tSYS\t X

Legend:

  X    = Self
  NV#  = Connection traversing a bonded set of # NVLinks

NIC Legend:

  NIC0: mlx5_0
  NIC1: mlx5_1
"""


def xml_samples() -> Sequence[Source]:
    """Topology XML."""
    texts = {"four-gpus.xml": _nvidia_machine(), "two-amd-gpus.xml": _amd_machine()}
    return [Source.of_bytes(name, text.encode("ascii")) for name, text in texts.items()]


def text_samples() -> Sequence[Source]:
    """Output of `nvidia-smi topo -m`."""
    source = Source.of_bytes("matrix.txt", MATRIX.encode("ascii"))
    # Read without a profile, it gives a warning, which a check of the plugin need not show.
    return [replace(source, report=lambda found: None)]
