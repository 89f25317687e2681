"""Rates of the links in a topology file; every assumption about missing facts is reported."""

from __future__ import annotations

from dataclasses import dataclass

from collhub_networks import NetworkFindings

from collhub_nccl.topologies import bandwidths
from collhub_nccl.topologies.elements import Element
from collhub_nccl.topologies.profiles import GpuProfile

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
        """Rate of the link from a PCI device to its parent.

        Raises `InputError` for an invalid width.
        """
        speed, width = element.text("link_speed"), element.whole("link_width")
        if not speed:
            return self._assumed_pci(element)
        if width is not None and not 0 <= width <= _MOST_LANES:
            element.fail_value("link_width", "a number of lanes of at most 64")
        return bandwidths.pci(speed, width or 0)

    def _assumed_pci(self, element: Element) -> float:
        if self.profile is None:
            rate = bandwidths.DEFAULT_PCI
            cure = "with FILE?profile= the GPU's PCI generation is taken"
        else:
            rate, cure = self.profile.pci, ""
        message = f"a PCI device states no link_speed; {rate:g} GB/s is assumed"
        self.findings.warn("no-link-speed", element.place, message, cure)
        return rate

    def of_port(self, port: Element, net_bandwidth: float | None) -> float:
        """Rate of the link of a network port, from the option `net_bandwidth`, else from its
        speed."""
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
        """Rate of the link from a CPU to another CPU of its machine."""
        if self.cpu_bandwidth is not None:
            return self.cpu_bandwidth
        architecture, vendor = cpu.text("arch"), cpu.text("vendor")
        # Only x86_64 has several vendors with different rates.
        if not architecture or (architecture == "x86_64" and not vendor):
            self._warn_of_unknown_cpu(cpu)
        family = cpu.whole("familyid") or 0
        model = cpu.whole("modelid") or 0
        return bandwidths.socket_to_socket(architecture, vendor, family, model, self.is_rccl)

    def _warn_of_unknown_cpu(self, cpu: Element) -> None:
        self.findings.warn(
            "unknown-cpu",
            cpu.place,
            "a CPU states no architecture or vendor; "
            f"{bandwidths.UNLIMITED:g} GB/s between CPUs are assumed, which limits nothing",
            "state the bandwidth with FILE?cpu_bandwidth=22GB/s",
        )
