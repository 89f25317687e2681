"""Small fictitious machines and a ring graph for the conformance kit and the tests.

One NVIDIA machine and one AMD machine as topology XML, and a matrix of nvidia-smi.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hub_core.plugin_api import Source

_PCI = (
    '<pci busid="0000:{bus:02x}:00.0" class="{pci_class}" link_speed="{speed} GT/s PCIe"'
    ' link_width="16">'
)
_CPU = (
    '  <cpu numaid="{cpu}" affinity="ff" arch="x86_64" vendor="{vendor}" familyid="{family}"'
    ' modelid="{model}">\n'
)
_PORT = (
    '<nic><net name="mlx5_{cpu}" dev="{cpu}" speed="400000" port="1" latency="0.5" guid="0x1"'
    ' maxconn="131072" gdr="1"/></nic>'
)
_NVIDIA_GPU = """\
      {pci}
        <gpu dev="{dev}" sm="90" rank="{dev}" gdr="1">
          <nvlink target="0000:f0:00.0" count="18" tclass="0x068000"/>
        </gpu>
      </pci>
"""
_NVIDIA_CPU = """\
    {switch}
{gpus}      {card}
        {port}
      </pci>
    </pci>
  </cpu>
"""
_AMD_CPU = """\
    {pci}
      <gpu dev="{dev}" sm="104" gcn="910" arch="38911" rank="{dev}" gdr="1">
        <xgmi target="0000:{peer:02x}:00.0" count="2" tclass="0x120000"/>
      </gpu>
    </pci>
  </cpu>
"""
_SWITCH, _GPU, _CARD, _AMD_GPU = "0x060400", "0x030200", "0x020000", "0x120000"


def _pci(bus: int, pci_class: str, speed: str = "32.0") -> str:
    """Opening tag of a PCI device."""
    return _PCI.format(bus=bus, pci_class=pci_class, speed=speed)


def _nvidia_gpu(cpu: int, position: int) -> str:
    """Return the XML of a GPU on NVSwitch, below the PCI switch of CPU number `cpu`.

    `position`, 0 or 1, is its place there. Its device number is 2 * cpu + position.
    """
    pci = _pci(16 * cpu + position + 1, _GPU)
    return _NVIDIA_GPU.format(pci=pci, dev=2 * cpu + position)


def _nvidia_cpu(cpu: int) -> str:
    """Return the XML of a CPU with a PCI switch, which has two GPUs and a network card below it.

    CPU number c (from 0) has NUMA id c. Its GPUs have the device numbers and ranks 2c and 2c + 1,
    the card's port has the name `mlx5_c` and the device number c. Bus ids: 16c for the switch, 16c
    + 1 and 16c + 2 for the GPUs, 16c + 8 for the card. So CPUs do not collide. The text is complete
    lines; the element `cpu` is closed.
    """
    gpus = _nvidia_gpu(cpu, 0) + _nvidia_gpu(cpu, 1)
    devices = _NVIDIA_CPU.format(
        switch=_pci(16 * cpu, _SWITCH),
        gpus=gpus,
        card=_pci(16 * cpu + 8, _CARD),
        port=_PORT.format(cpu=cpu),
    )
    return _CPU.format(cpu=cpu, vendor="GenuineIntel", family=6, model=143) + devices


def _amd_cpu(cpu: int) -> str:
    """Return the XML of an AMD CPU, number 0 or 1, with one GPU.

    The bus id of the GPU is `cpu` + 1. It is linked to the GPU of the other CPU.
    """
    pci = _pci(cpu + 1, _AMD_GPU, speed="16.0")
    # The bus ids of the two GPUs are 1 and 2.
    devices = _AMD_CPU.format(pci=pci, dev=cpu, peer=2 - cpu)
    return _CPU.format(cpu=cpu, vendor="AuthenticAMD", family=175, model=1) + devices


_GRAPH = (
    '<graph id="0" pattern="4" crossnic="0" nchannels="{channels}" speedintra="30" speedinter="24"'
    ' latencyinter="0" typeintra="NVL" typeinter="PXB" samechannels="1">'
)

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
    """Return two small topology files for the conformance kit.

    `four-gpus.xml` is a machine of four NVIDIA GPUs, `two-amd-gpus.xml` one of two AMD GPUs.
    """
    cpus = _nvidia_cpu(0) + _nvidia_cpu(1)
    texts = {
        "four-gpus.xml": f'<system version="1">\n{cpus}</system>\n',
        "two-amd-gpus.xml": f'<system version="2">\n{_amd_cpu(0)}{_amd_cpu(1)}</system>\n',
    }
    return [Source.of_bytes(name, text.encode("ascii")) for name, text in texts.items()]


def text_samples() -> Sequence[Source]:
    """Return an output of `nvidia-smi topo -m` as a file in memory, for tests of the reader.

    The list has one source, `matrix.txt`. Findings that the reader reports on it are
    dropped, for example the warning that no profile is given.
    """
    source = Source.of_bytes("matrix.txt", MATRIX.encode("ascii"))
    # Suppress the warning about the missing profile: the checks do not need it.
    return [replace(source, report=lambda diagnostic: None)]


def graph_samples() -> Sequence[Source]:
    """Return one ring graph as NCCL writes it on one of several nodes, for tests of the reader.

    The list has one source in memory, `graphs.dump`. Its graph has three channels, numbered 0 to 2
    in the order of the file. Each channel has the network device of its number, four GPUs (device
    numbers 0 to 3, ranks 4 to 7), and the device again. Channels 0 and 2 have the ranks in the
    order 4, 5, 7, 6, channel 1 in the order 4, 6, 7, 5. Findings that a reader reports on the
    source are dropped.
    """
    orders = ((0, 1, 3, 2), (0, 2, 3, 1), (0, 1, 3, 2))
    lines = ['<graphs version="1">', _GRAPH.format(channels=len(orders))]
    for net, order in enumerate(orders):
        gpus = [f'<gpu dev="0x{gpu:x}" rank="{gpu + 4}"/>' for gpu in order]
        lines += ["<channel>", f'<net dev="{net}"/>', *gpus, f'<net dev="{net}"/>', "</channel>"]
    text = "\n".join([*lines, "</graph>", "</graphs>", ""])
    source = Source.of_bytes("graphs.dump", text.encode("ascii"))
    # Suppress the note that the rings continue in other nodes: the checks do not need it.
    return [replace(source, report=lambda diagnostic: None)]


def log_samples() -> Sequence[Source]:
    """Return one log of a communicator of four ranks with two channels, for tests of the readers.

    The only source is `job.nccl.log`, in memory. Findings that a reader reports for this source are
    dropped. The lines give, in this order:

    - the start of ranks 0 to 3
    - the rings 0 1 3 2 and 0 2 3 1
    - the trees of every rank, equal on both channels: 0 is the parent of 1, 1 of 3, 3 of 2. The
      trees of ranks 3 and 2 are on one line without a separator, as if two processes wrote at once.
    - the numbers of channels
    - with a time stamp, a choice of NCCL: all-reduce of 1 MiB, ring, protocol SIMPLE, both channels
    """
    lines = [_log_line(rank, _LOG_INIT.format(rank=rank)) for rank in range(4)]
    rings = ((0, 1, 3, 2), (0, 2, 3, 1))
    for channel, ring in enumerate(rings):
        text = " ".join(map(str, ring))
        lines.append(_log_line(0, f"Channel {channel:02}/02 : {text}"))
    parents = {0: "1/-1/-1->0->-1", 1: "3/-1/-1->1->0", 3: "2/-1/-1->3->1", 2: "-1/-1/-1->2->3"}
    lines += [_log_line(rank, f"Trees [0] {tree} [1] {tree}") for rank, tree in parents.items()]
    # Two processes wrote to one line.
    lines[-1] = lines[-2].rstrip() + lines.pop()
    lines.append(_log_line(0, "2 coll channels, 2 collnet channels, 0 nvls channels"))
    choice = "AllReduce: 1048576 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..1}"
    lines.append("[2026-01-05 10:00:00] " + _log_line(0, choice))
    source = Source.of_bytes("job.nccl.log", "".join(lines).encode("ascii"))
    return [replace(source, report=lambda diagnostic: None)]


_LOG_INIT = (
    "ncclCommInitRankConfig comm 0xa{rank} rank {rank} nranks 4 cudaDev {rank} nvmlDev {rank}"
    " busId 1000 commId 0x9ca74fa6e40df7f4 - Init COMPLETE"
)


def _log_line(rank: int, message: str) -> str:
    return f"node0:{100 + rank}:{100 + rank} [{rank}] NCCL INFO {message}\n"
