"""Parse the matrix of `nvidia-smi topo -m`: the relation of every two devices.

Source: the manual page of nvidia-smi, "topo", and the legend below the matrix.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

from collhub_nccl.topologies.bandwidths import PROFILES
from hub_core.model import InputError, Location

# Far above any machine; the text grows with the square of the number of devices.
MAX_BYTES = 4 << 20
MAX_DEVICES = 1024
# Shared part of two devices, nearest first: a PCI switch, several of them, a host bridge, a NUMA
# node.
SHARED = ("PIX", "PXB", "PHB", "NODE")
# SOC is the old name of SYS.
_BETWEEN_SOCKETS = ("SYS", "SOC")
_NVLINKS = re.compile(r"NV([0-9]{1,3})\Z")
# The first line is underlined in terminal output.
_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
# A line of "NIC Legend:", such as "  NIC0: mlx5_0".
_LEGEND = re.compile(r"^\s*(NIC[0-9]+):\s*(\S+)\s*$", re.MULTILINE)
# First words of the columns after the matrix: "CPU Affinity", "NUMA Affinity", "GPU NUMA ID".
_AFFINITIES = ("CPU", "NUMA", "GPU")
PROFILE_CURE = f"name the GPU with FILE?profile= ({', '.join(PROFILES)})"


@dataclass(frozen=True, slots=True)
class SmiDevice:
    """A row of the matrix: name, line, relation to every device, NUMA node (empty if unknown).

    `alias`: driver name such as mlx5_0, from the legend after the matrix.
    """

    name: str
    line: int
    cells: tuple[str, ...]
    numa: str
    alias: str = ""

    @property
    def is_gpu(self) -> bool:
        """Whether the row belongs to a GPU, else to a network card."""
        return self.name.startswith("GPU")

    def nvlinks_to(self, column: int) -> int | None:
        """Return the number of NVLinks to the device of a column; None for any other relation."""
        match = _NVLINKS.match(self.cells[column])
        return int(match[1]) if match else None


def pairs_of(devices: Sequence[SmiDevice]) -> Iterator[tuple[int, int]]:
    """Yield the numbers of every two rows, the lower one first, in ascending order."""
    return itertools.combinations(range(len(devices)), 2)


def read_matrix(name: str, content: bytes) -> list[SmiDevice]:
    """Return the rows of the matrix in a file, with the aliases of its legend ("" without one).

    Text before the matrix and escape sequences of terminals are ignored. Raises `InputError` with
    the line of the first defect: a file above `MAX_BYTES`, no matrix, an invalid or missing row, or
    a matrix that is not symmetric.
    """
    if len(content) > MAX_BYTES:
        _fail(name, None, f"the file is larger than {MAX_BYTES >> 20} MiB")
    text = content.decode("utf-8", "replace")
    lines = _ESCAPE.sub("", text).splitlines()
    start = _first_line(name, lines)
    heads = _device_names(name, lines, start)
    devices: list[SmiDevice] = []
    for number, line in enumerate(lines[start + 1 : start + 1 + len(heads)], start + 2):
        row = _Row(name, number, line.split(), heads, len(devices))
        devices.append(row.device())
    if len(devices) < len(heads):
        _fail(
            name,
            len(lines),
            f"the matrix ends after {len(devices)} of {len(heads)} rows",
            "save the whole output",
        )
    _check_symmetry(name, devices)
    aliases = dict(_LEGEND.findall("\n".join(lines[start + 1 + len(heads) :])))
    return [replace(device, alias=aliases.get(device.name, "")) for device in devices]


def _first_line(name: str, lines: Sequence[str]) -> int:
    """Return the index of the line with the names of all devices.

    It is the first one whose first word is GPU0. Raises `InputError` if there is none.
    """
    header_lines = (index for index, line in enumerate(lines) if line.split()[:1] == ["GPU0"])
    start = next(header_lines, None)
    if start is None:
        _fail(name, None, "this is not the output of nvidia-smi topo -m: no line begins with GPU0")
    return start


def _device_names(name: str, lines: Sequence[str], start: int) -> list[str]:
    """Return the names of all devices: the column headings before the columns of affinities.

    `start`: index of the heading's line; rows have the same order. Raises `InputError` for a
    repeated name and for more than `MAX_DEVICES`.
    """
    words = lines[start].split()
    heads = list(itertools.takewhile(lambda word: word not in _AFFINITIES, words))
    if len(heads) > MAX_DEVICES or len(set(heads)) < len(heads):
        _fail(name, start + 1, f"the first line names a device twice, or more than {MAX_DEVICES}")
    return heads


def _check_symmetry(name: str, devices: Sequence[SmiDevice]) -> None:
    """Raise `InputError` at the first pair of devices whose relations differ by direction.

    The two cells of the matrix must be equal texts. The error has the line of the second device.
    """
    for first, second in pairs_of(devices):
        forward = devices[first].cells[second]
        back = devices[second].cells[first]
        if forward != back:
            _fail(
                name,
                devices[second].line,
                f"{devices[first].name} and {devices[second].name} are {forward} one way, "
                f"{back} the other",
            )


@dataclass(frozen=True, slots=True)
class _Row:
    """A line of the matrix: its words, the names of all devices, and its position among them."""

    file: str
    line: int
    words: Sequence[str]
    heads: Sequence[str]
    position: int

    def device(self) -> SmiDevice:
        """Return the device of the row: its name, line, relations and NUMA node.

        The row must begin with the name of its position in the head and have a relation per device;
        further words give the NUMA node. Raises `InputError` for a wrong name, missing columns or
        unknown relations.
        """
        size, words = len(self.heads), self.words
        expected_head = self.heads[self.position]
        if len(words) < size + 1 or words[0] != expected_head:
            _fail(
                self.file,
                self.line,
                f"the row of {expected_head[:40]} was expected, with {size} columns",
                "save the whole output",
            )
        cells = tuple(words[1 : size + 1])
        for column, cell in enumerate(cells):
            if not self._fits(column, cell):
                self._refuse_cell(column, cell)
        # The second word is a NUMA node, a range of nodes or "N/A".
        affinities = words[size + 1 :]
        return SmiDevice(
            words[0],
            self.line,
            cells,
            affinities[1] if len(affinities) > 1 and affinities[1].isdecimal() else "",
        )

    def _fits(self, column: int, cell: str) -> bool:
        """Return whether a cell is valid: X on the diagonal, else a relation or `NV<n>`."""
        if column == self.position:
            return cell == "X"
        return cell in SHARED or cell in _BETWEEN_SOCKETS or _NVLINKS.match(cell) is not None

    def _refuse_cell(self, column: int, cell: str) -> NoReturn:
        """Raise `InputError` for a cell that is not valid, at the line of the row.

        The message has both devices, the text, and the valid relations.
        """
        known = ", ".join((*SHARED, *_BETWEEN_SOCKETS))
        _fail(
            self.file,
            self.line,
            f"{self.heads[self.position]} and {self.heads[column]}: "
            f"{cell[:40]!r} is not one of X, NV#, {known}",
            f"write the PCI relation there; for links, {PROFILE_CURE}",
        )


def _fail(name: str, line: int | None, message: str, cure: str = "") -> NoReturn:
    raise InputError(message, location=Location(name, line), cure=cure, code="invalid-nvidia-smi")
