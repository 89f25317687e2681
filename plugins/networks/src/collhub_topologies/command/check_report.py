"""Run `collhub topology check`, and report its results as text or JSON."""

from __future__ import annotations

from dataclasses import dataclass, replace

from collhub_topologies.command.topology_records import TopologyCheckReport
from hub_core import CommandContext, ProvenBound, best_bounds
from hub_core.model import (
    ROOTED,
    STANDARD_KINDS,
    Collective,
    CollectiveKind,
    Diagnostic,
    Severity,
    format_time,
)
from hub_core.network import Topology
from hub_core.plugin_api import CheckRequest, Subject
from hub_core.reports import list_findings


@dataclass(frozen=True, slots=True)
class NetworkVerdict:
    """Findings of all checks on a network, and lower bounds of the time for a size.

    `size`: bytes of the collectives, None if no size was given. `bounds`: the bound of every
    collective, by its name; empty without a size and for unusable networks.
    """

    network: Topology
    findings: tuple[Diagnostic, ...]
    size: int | None
    bounds: dict[str, ProvenBound]

    @property
    def is_usable(self) -> bool:
        """Whether no finding is an error; warnings and notes are allowed."""
        return all(finding.severity is not Severity.ERROR for finding in self.findings)

    def create_report(self) -> TopologyCheckReport:
        """Create the `--json` report: counts of NPUs, switches and links, lower bounds in ns and ps
        with their methods by kind of collective at `size` bytes, and all findings. `ok` is
        `is_usable`.
        """
        network, bounds = self.network, self.bounds
        return TopologyCheckReport(
            topology=network.name,
            ok=self.is_usable,
            npus=network.num_npus,
            switches=network.num_nodes - network.num_npus,
            num_links=network.num_links,
            collective_bytes=self.size,
            bounds_ns={kind: bound.time_ns for kind, bound in bounds.items()},
            bounds_ps={kind: bound.time_ps for kind, bound in bounds.items()},
            bound_methods={kind: bound.method for kind, bound in bounds.items()},
            diagnostics=list_findings(self.findings),
        )

    def print_text(self, context: CommandContext) -> None:
        """Print one line with the counts of NPUs and links and the verdict, then the table of
        bounds if there are any. The findings are reported on standard error.
        """
        network = self.network
        outcome = "not all NPUs reach one another"
        if self.is_usable:
            outcome = "every NPU reaches every other"
        counts = f"{network.num_npus} NPUs, {network.num_links} links"
        context.print_line(f"{network.name}: {counts}: {outcome}")
        if self.bounds:
            self._print_bounds(context)
        context.report(self.findings)

    def _print_bounds(self, context: CommandContext) -> None:
        """Print the table of bounds: rounded time, exact time and method per collective.

        The exact time is in ns with three decimal places, from the bound in ps.
        """
        rows = []
        for kind, bound in self.bounds.items():
            exact = f"{bound.time_ps // 1000}.{bound.time_ps % 1000:03} ns"
            rows.append((kind, format_time(bound.time_ns), exact, bound.method))
        header = ("collective", "takes at least", "exactly", "by")
        context.print_table(header, rows, right=header[1:3])


def check_network(context: CommandContext, network: Topology, size: int | None) -> NetworkVerdict:
    """Run the checks of networks of all installed plugins; return all findings and bounds.

    `size`: bytes of the collectives. Bounds are computed only with a size and if no check found an
    error; otherwise they are empty. Shows progress.
    """
    with context.progress("checking"):
        # Checks of all installed plugins.
        request = CheckRequest(name=network.name, topology=network)
        findings: list[Diagnostic] = []
        for report in context.run_checks(Subject.TOPOLOGY, request):
            findings += report.diagnostics
    verdict = NetworkVerdict(network, tuple(findings), size, {})
    if size is None or not verdict.is_usable:
        return verdict
    with context.progress("computing lower bounds"):
        return replace(verdict, bounds=_compute_bounds(context, network, size))


def _compute_bounds(
    context: CommandContext, network: Topology, size: int
) -> dict[str, ProvenBound]:
    """Compute the best lower bound of every collective that has one, by name of the collective.

    All NPUs are ranks, the root is NPU 0, and `size` is the size of the collective in bytes.
    Collectives that a table defines (custom and uneven ones), and those without a bound, are left
    out. The search for bounds is thorough.
    """
    npus = network.num_npus
    bounds = {}
    # In the order of the enumeration, which documents and reports show.
    for kind in (kind for kind in CollectiveKind if kind in STANDARD_KINDS):
        root = 0 if kind in ROOTED else None
        collective = Collective(kind, npus, npus, root=root)
        (bound,) = best_bounds(
            collective, network, (size,), registry=context.registry(), is_thorough=True
        )
        if bound is not None:
            bounds[str(kind)] = bound
    return bounds
