"""Parse topology XML: elements that know their lines, and the entries of machines.

DOCTYPE, entities, and files above the limits are refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NoReturn
from xml.parsers import expat

from collhub_networks import NetworkFindings

from collhub_nccl.topologies import bandwidths
from collhub_nccl.topologies.bandwidths import GpuProfile
from hub_core.model import InputError, Location

# The largest known files have a few hundred elements at depth ten; these limits protect the memory
# from hostile files.
MAX_BYTES = 16 << 20
MAX_ELEMENTS = 100_000
MAX_DEPTH = 64
_CURES_OF_REASONS = dict.fromkeys(
    (expat.errors.XML_ERROR_NO_ELEMENTS, expat.errors.XML_ERROR_UNCLOSED_TOKEN),
    "the file ends too early: give the complete file",
) | {expat.errors.XML_ERROR_JUNK_AFTER_DOC_ELEMENT: "keep one document in the file"}
_NUMBER = re.compile(r"\s*(-?0[xX][0-9a-fA-F]{1,16}|-?[0-9]{1,18})\s*\Z")
_REAL = re.compile(r"\s*-?[0-9]{1,30}(\.[0-9]{0,30})?([eE][+-]?[0-9]{1,2})?\s*\Z")


@dataclass(slots=True)
class Element:
    """An element: attributes as written, line from 1, children in order."""

    name: str
    attributes: dict[str, str]
    file: str
    line: int
    children: list[Element] = field(default_factory=list)

    def named(self, *names: str) -> Iterator[Element]:
        """Yield the direct children with one of these names, in the order of the file."""
        return (child for child in self.children if child.name in names)

    def walk(self) -> Iterator[Element]:
        """Yield this element and all its descendants, in the order of the file.

        A parent comes before its children.
        """
        yield self
        for child in self.children:
            yield from child.walk()

    def text(self, name: str, default: str = "") -> str:
        """Return an attribute as written in the file, or the default if it is absent."""
        return self.attributes.get(name, default)

    def whole(self, name: str) -> int | None:
        """Return an integer attribute in C notation (`17`, `-1`, `0x11`); None if missing or empty.

        Numbers without 0x are decimal, even with leading zeros. White space around the number
        is permitted. Raises `InputError` for other texts, and for more than 18 decimal or 16
        hexadecimal digits.
        """
        text = self.text(name)
        if not text:
            return None
        match = _NUMBER.match(text)
        if match is None:
            self.fail_value(name, "a whole number")
        digits = match[1]
        # Python's base 0, which distinguishes the two like C, refuses leading zeros.
        base = 16 if "x" in digits.lower() else 10
        return int(digits, base)

    def real(self, name: str) -> float | None:
        """Return a decimal attribute as a float; None if it is missing or empty.

        The number has 1 to 30 digits, and optionally `-` before them, `.` with up to 30 further
        digits, and an exponent of 1 or 2 digits such as `e-3`. Blanks around it are allowed.
        Raises `InputError` for other texts, including inf, nan, `+1` and `.5`.
        """
        text = self.text(name)
        if not text:
            return None
        if not _REAL.match(text):
            self.fail_value(name, "a number")
        return float(text)

    def fail_value(self, name: str, expected: str) -> NoReturn:
        """Raise `InputError` for the value of an attribute."""
        self.fail(f"<{self.name}>: {name}={self.text(name)!r:.80} is not {expected}")

    def fail(self, message: str, cure: str = "") -> NoReturn:
        """Raise `InputError` at the line of this element."""
        raise InputError(message, location=self.place, cure=cure, code="invalid-nccl-topology")

    @property
    def place(self) -> Location:
        """File and line of the element."""
        return Location(self.file, self.line)


def parse(content: bytes, file: str) -> Element:
    """Return the root element of an XML file with its attributes and descendants.

    Text between elements is dropped. `file`: name for messages. Raises `InputError`, except for the
    first case with the line:
    1. content above `MAX_BYTES` (16 MiB) (`too-large`)
    2. malformed XML, also an empty file, or an unknown encoding (`not-xml`)
    3. a DOCTYPE (`doctype`)
    4. more than `MAX_ELEMENTS` (100 000) elements or `MAX_DEPTH` (64) levels, the root included
       (`invalid-nccl-topology`)

    The size is checked first; of the other defects the first one in the file is reported.
    """
    if len(content) > MAX_BYTES:
        raise InputError(
            f"the file is larger than {MAX_BYTES >> 20} MiB",
            location=Location(file),
            code="too-large",
        )
    builder = _ElementBuilder(file)
    try:
        builder.parser.Parse(content, True)
    except expat.ExpatError as error:
        reason = expat.ErrorString(error.code)
        raise InputError(
            f"this is not well-formed XML: {reason}",
            location=Location(file, error.lineno),
            cure=_CURES_OF_REASONS.get(reason, ""),
            code="not-xml",
        ) from None
    # Expat uses Python's codecs for encodings that it does not support.
    except (LookupError, ValueError):
        raise InputError(
            "the XML declaration names an encoding that is not supported",
            location=Location(file, 1),
            cure="write the file in UTF-8",
            code="not-xml",
        ) from None
    return builder.root.children[0]


class _ElementBuilder:
    """Expat handlers that build the elements.

    Without a DOCTYPE, which is refused, XML has only five predefined entities, so no file grows
    when it is read.
    """

    def __init__(self, file: str) -> None:
        self.root = Element("", {}, file, 0)
        # The open elements, outermost first.
        self._open = [self.root]
        self._count = 0
        self.parser = expat.ParserCreate()
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.StartDoctypeDeclHandler = self._refuse_doctype

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        """Add an element to the innermost open one, and open it; it keeps its line in the file.

        Raises `InputError` above `MAX_ELEMENTS` elements or `MAX_DEPTH` levels.
        """
        element = Element(name, attributes, self.root.file, self.parser.CurrentLineNumber)
        self._count += 1
        if self._count > MAX_ELEMENTS or len(self._open) > MAX_DEPTH:
            element.fail(
                f"there are more than {MAX_ELEMENTS} elements, "
                f"or more than {MAX_DEPTH} inside one another"
            )
        self._open[-1].children.append(element)
        self._open.append(element)

    def _end(self, name: str) -> None:
        self._open.pop()

    def _refuse_doctype(
        self, name: str, system: str | None, public: str | None, has_internal: bool
    ) -> None:
        location = Location(self.root.file, self.parser.CurrentLineNumber)
        if (system or "").startswith("hwloc"):
            raise InputError(
                "this is the topology of a machine by hwloc (lstopo), not by NCCL",
                location=location,
                cure="run a job with NCCL_TOPO_DUMP_FILE=topo.xml, and give that file",
                code="doctype",
            )
        raise InputError(
            "a DOCTYPE is not accepted",
            location=location,
            cure="remove it",
            code="doctype",
        )


class TargetKind(StrEnum):
    """Kind of device of a PCI class."""

    BRIDGE = "bridge"
    NVSWITCH = "nvswitch"
    CPU = "cpu"
    GPU = "gpu"
    NIC = "nic"


# Prefixes in the order in which NCCL compares them (`src/graph/topo.cc`); the last one is RCCL's.
# 0x068001 is the NVLink bridge of POWER machines, which leads to the CPU.
_CLASSES = (
    ("0x060400", TargetKind.BRIDGE),
    ("0x080100", TargetKind.BRIDGE),
    ("0x068000", TargetKind.NVSWITCH),
    ("0x068001", TargetKind.CPU),
    ("0x03", TargetKind.GPU),
    ("0x02", TargetKind.NIC),
    ("0x120000", TargetKind.GPU),
)
# Domain, bus, device and function in hexadecimal; some files omit the first, the last or both.
_BUS_ID = re.compile(r"\s*[0-9a-fA-F]{1,8}(:[0-9a-fA-F]{1,2}){1,2}(\.[0-9a-fA-F])?\s*\Z")


def device_kind(pci_class: str) -> TargetKind:
    """Return the kind of a PCI device by its class; an unknown class counts as a bridge."""
    return _kind_of_class(pci_class) or TargetKind.BRIDGE


def target_kind(pci_class: str) -> TargetKind:
    """Return the kind of device at the far end of an NVLink or xGMI link: GPU, CPU or NVSwitch.

    `pci_class` is the text of the attribute `tclass` of the link, such as `0x068000`. Every
    text that `_CLASSES` does not list as GPU or CPU gives NVSwitch, also the classes of
    network cards and "".
    """
    kind = _kind_of_class(pci_class)
    if kind in (TargetKind.GPU, TargetKind.CPU):
        return kind
    return TargetKind.NVSWITCH


def _kind_of_class(pci_class: str) -> TargetKind | None:
    """Return the kind of device of a PCI class, or None if no prefix in `_CLASSES` fits.

    The first entry of `_CLASSES` decides with whose prefix the text `pci_class` begins.
    Letters are compared as written, so `0X03` fits no prefix.
    """
    for prefix, kind in _CLASSES:
        if pci_class.startswith(prefix):
            return kind
    return None


def is_gpu_class(pci_class: str) -> bool:
    """Whether a PCI class denotes a GPU."""
    return device_kind(pci_class) is TargetKind.GPU


def bus_number(text: str) -> int | None:
    """Return a bus id such as `0000:07:00.0` or `07:00.0` as a number; None for other texts.

    The parts are hexadecimal. A missing domain or function is 0. From the lowest bit on, the number
    has 4 bits of function, 8 of device, 8 of bus, and the domain.
    """
    if not _BUS_ID.match(text):
        return None
    head, _, function = text.strip().partition(".")
    parts = [int(part, 16) for part in head.split(":")]
    # Short texts omit the PCI domain, which is 0 on most machines.
    domain, bus, device = parts if len(parts) == 3 else (0, *parts)
    return domain << 20 | bus << 12 | device << 4 | int(function or "0", 16)


def bus_of(element: Element, name: str = "busid") -> int:
    """Return the PCI bus id in the attribute `name` of an element, as an integer (`bus_number`).

    Raise `InputError` if the attribute is missing, empty or not a bus id such as
    `0000:07:00.0` or `07:00.0`.
    """
    number = bus_number(element.text(name))
    if number is None:
        element.fail_value(name, "a bus id such as 0000:07:00.0")
    return number


_IDS = ("vendor", "device", "subsystem_vendor", "subsystem_device")
_BROADCOM = 0x1000
_GENERATION_4 = 0xC010
_GENERATION_5 = 0xC030
_UPPER, _LOWER = 0, 1


def flatten_switches(element: Element) -> None:
    """Replace every lower PCI switch directly in an upper one by its children, in place.

    The vendor and device ids of a `pci` element decide whether it is an upper or a lower
    switch, and of which generation (`_generation`); its position does not matter. Both must
    have the same generation: they are one switch with two levels. Ids of generation 4 do not
    tell levels apart, so all of its chips count as lower switches. The children take the
    position of their switch, and are not replaced again. `element` is treated first, then
    each of its new children with their descendants. Raise `InputError` for an id that is no
    integer.
    """
    generation = _generation(element, _UPPER)
    children: list[Element] = []
    for child in element.children:
        is_merged = generation > 0 and _generation(child, _LOWER) == generation
        children += child.children if is_merged else [child]
    element.children = children
    for child in children:
        flatten_switches(child)


def _generation(element: Element, level: int) -> int:
    """Return the PCI generation (4 or 5) of a Broadcom switch chip at this level, else 0.

    `level`: `_UPPER` (0) or `_LOWER` (1). The element must be a `pci` with the vendor and subsystem
    vendor of Broadcom. The result then depends on `device` and the topmost 4 bits of
    `subsystem_device`:
    - 4 for the device `_GENERATION_4` and bits 0xA, at both levels
    - 5 for the device `_GENERATION_5` and bits equal to `level`
    - 0 otherwise

    A missing id counts as 0. Raises `InputError` for an id of a `pci` that is no integer.
    """
    if element.name != "pci":
        return 0
    vendor, device, subsystem_vendor, subsystem = (element.whole(name) or 0 for name in _IDS)
    if (vendor, subsystem_vendor) != (_BROADCOM, _BROADCOM):
        return 0
    family = subsystem & 0xF000
    # Generation 4 has the same family at both levels, generation 5 the level itself.
    if device == _GENERATION_4 and family == 0xA000:
        return 4
    if device == _GENERATION_5 and family == level << 12:
        return 5
    return 0


# PCI Express defines links of up to 32 lanes; a larger width is an error in the file.
_MOST_LANES = 64


@dataclass(frozen=True, slots=True)
class LinkRates:
    """Rates in GB/s per direction, from the elements of a file.

    `profile`: the GPU model, if the option gives one; `cpu_bandwidth`: between two CPUs, instead of
    the derived one.
    """

    is_rccl: bool
    profile: GpuProfile | None
    cpu_bandwidth: float | None
    findings: NetworkFindings

    def of_pci(self, element: Element) -> float:
        """Return the GB/s per direction of the link from a PCI device to its parent.

        It is the number of lanes (`link_width`) times the rate of a lane (`link_speed`). As in
        NCCL, a width that is missing or 0 counts as 16 lanes, and an unknown speed as 8 GT/s.
        If `link_speed` is missing or empty, the result does not depend on the width: it is the
        PCI rate of `profile`, or 12 GB/s without a profile. The warning `no-link-speed` is then
        added to `findings`.

        Raise `InputError` for a width that is no integer, and, if there is a `link_speed`, for
        a width that is not from 0 to `_MOST_LANES` (64).
        """
        speed, width = element.text("link_speed"), element.whole("link_width")
        if not speed:
            rate, cure = (
                bandwidths.DEFAULT_PCI,
                "with FILE?profile= the GPU's PCI generation is taken",
            )
            if self.profile is not None:
                rate, cure = self.profile.pci, ""
            message = f"a PCI device states no link_speed; {rate:g} GB/s is assumed"
            self.findings.warn("no-link-speed", element.place, message, cure)
            return rate
        if width is not None and not 0 <= width <= _MOST_LANES:
            element.fail_value("link_width", "a number of lanes of at most 64")
        return bandwidths.pci(speed, width or 0)

    def of_port(self, port: Element, net_bandwidth: float | None) -> float:
        """Return the rate of a network port in GB/s: `net_bandwidth`, else the port's own speed.

        The attribute `speed` is in Mbit/s: 8000 gives 1.0. A missing speed and one of at most 0
        count as 10 Gbit/s (1.25 GB/s). A result above `bandwidths.UNLIMITED` (5000 GB/s), also from
        `net_bandwidth`, is returned unchanged, with the warning `port-speed` in `findings`. Raises
        `InputError` for a speed that is no integer, unless `net_bandwidth` is given.
        """
        rate = net_bandwidth
        if rate is None:
            rate = bandwidths.net(port.whole("speed"))
        # Occurs in RCCL's models of machines, which give some port speeds in kb/s.
        if rate > bandwidths.UNLIMITED:
            self.findings.warn(
                "port-speed",
                port.place,
                f"a port of {port.text('speed')} Mb/s is faster than any that is sold; "
                "it is taken as written",
                "state the speed with FILE?net_bandwidth=200Gbit/s",
            )
        return rate

    def between_sockets(self, cpu: Element) -> float:
        """Return the rate of the link from a CPU to another CPU in GB/s.

        It is the option `cpu_bandwidth` if given; nothing else is examined then. Otherwise it is
        the value for the architecture, vendor, family and model of `cpu`
        (`bandwidths.socket_to_socket`), with the values of RCCL if `is_rccl`, else of NCCL. A
        missing family or model counts as 0.

        An unknown or missing vendor gives `bandwidths.UNLIMITED` (5000) and adds the warning
        `unknown-cpu` to `findings`, unless the architecture alone determines the rate. Raises
        `InputError` for a family or model that is no integer.
        """
        if self.cpu_bandwidth is not None:
            return self.cpu_bandwidth
        architecture, vendor = cpu.text("arch"), cpu.text("vendor")
        family = cpu.whole("familyid") or 0
        model = cpu.whole("modelid") or 0
        rate = bandwidths.socket_to_socket(architecture, vendor, family, model, self.is_rccl)
        if rate >= bandwidths.UNLIMITED:
            self.findings.warn(
                "unknown-cpu",
                cpu.place,
                f"a CPU of architecture {architecture!r:.40} and vendor {vendor!r:.40} is unknown; "
                f"{bandwidths.UNLIMITED:g} GB/s between CPUs are assumed, which limits nothing",
                "state the bandwidth with FILE?cpu_bandwidth=22GB/s",
            )
        return rate
