"""`collhub topology check`: run it and report its results; read loads of links from `simulate`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from collhub_topologies.show_report import TopologyCheckReport
from hub_core import CommandContext, ProvenBound, best_bounds
from hub_core.model import (
    ROOTED,
    STANDARD_KINDS,
    Collective,
    CollectiveKind,
    Diagnostic,
    InputError,
    Location,
    Severity,
    format_time,
)
from hub_core.network import Topology
from hub_core.plugin_api import CheckRequest, LinkLoad, Subject
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
        """Create the report that `topology check --json` prints.

        It has the network's name, the numbers of NPUs, switches and links, and the size in bytes
        (None without a size). All findings are listed in their order, also warnings and notes. `ok`
        is `is_usable`: no finding is an error.

        `bounds_ns`, `bounds_ps` and `bound_methods` map each collective of `bounds` to its time or
        its method, in the order of `bounds`. They are empty without bounds. Times in ns are rounded
        down.
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
        """Print counts of NPUs and links with the verdict, the lower bounds, and the findings.

        The verdict is `every NPU reaches every other` if no finding is an error, else `not all
        NPUs reach one another`, also if the error comes from another check. The table of lower
        bounds on the times of collectives is omitted without bounds; a row has the collective, the
        rounded time, the exact time in ns with three decimals, and the method. Line and table are
        written to standard output, the findings to standard error.
        """
        network = self.network
        outcome = "not all NPUs reach one another"
        if self.is_usable:
            outcome = "every NPU reaches every other"
        counts = f"{network.num_npus} NPUs, {network.num_links} links"
        context.print_line(f"{network.name}: {counts}: {outcome}")
        if self.bounds:
            rows = []
            for kind, bound in self.bounds.items():
                exact = f"{bound.time_ps // 1000}.{bound.time_ps % 1000:03} ns"
                rows.append((kind, format_time(bound.time_ns), exact, bound.method))
            header = ("collective", "takes at least", "exactly", "by")
            context.print_table(header, rows, right=header[1:3])
        context.report(self.findings)


def check_network(context: CommandContext, network: Topology, size: int | None) -> NetworkVerdict:
    """Run the network checks of all installed plugins on a network, and return the verdict.

    The findings are in the order of the names of the checks. `bounds` is empty unless `size` (bytes
    of a collective) is given and no finding is an error. Then it has the largest known lower bound
    of the time of every standard collective, by its name, in the order of `CollectiveKind`; not of
    the custom one or those with a table of counts. Every NPU is a rank, the root is NPU 0. A
    collective without a bound has no entry, for example if NPUs cannot reach each other. Plugins
    get the work limit `THOROUGH_WORK`, so this may take long.

    Progress is shown on a terminal. Raises `HubError` if a check fails, or a bound of a plugin
    other than by `InputError`.
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
    npus = network.num_npus
    bounds = {}
    with context.progress("computing lower bounds"):
        # In the order of the enumeration, which documents and reports show.
        for kind in (kind for kind in CollectiveKind if kind in STANDARD_KINDS):
            root = 0 if kind in ROOTED else None
            collective = Collective(kind, npus, npus, root=root)
            (bound,) = best_bounds(
                collective, network, (size,), registry=context.registry(), is_thorough=True
            )
            if bound is not None:
                bounds[str(kind)] = bound
    return replace(verdict, bounds=bounds)


SCHEMA = "collhub/report-simulate-1"
MAX_BYTES = 1 << 28
_MAX_COUNT = 1 << 62
_DEFAULT_CURE = "give the output of collhub simulate --json"
_COLUMNS = ("source", "destination", "bytes", "busy_ns")


@dataclass(frozen=True, slots=True)
class SimulatedLoads:
    """Loads of links during a run of `time_ns` nanoseconds, None if the run did not finish."""

    loads: Sequence[LinkLoad]
    time_ns: int | None


def read_loads(path: str) -> SimulatedLoads:
    """Read the loads of links and the time in ns from the output of `collhub simulate --json`.

    The loads are the entries of `link_loads`, in their order: source, destination, bytes and busy
    time in ns. The time is `time_ns`; None if it is missing or null.

    Raises `InputError` (`loads`) for the first of these faults:

    1. The file cannot be read, is larger than `MAX_BYTES` (256 MiB), or is no JSON (also: no valid
       Unicode, nested too deeply).
    2. It is no object or has another `schema`.
    3. It has a member `results`: several sizes were simulated.
    4. `link_loads` is missing, no list, or empty.
    5. `time_ns` is not an integer in 0..2^62 - 1.
    6. An entry is no object, or one of its numbers is missing or not such an integer.
    """
    try:
        with Path(path).open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise _build_error(path, f"cannot be read: {error.strerror}", "check the path") from None
    if len(content) > MAX_BYTES:
        raise _build_error(path, f"is larger than {MAX_BYTES >> 20} MiB")
    try:
        report = json.loads(content)
    except (ValueError, RecursionError):
        raise _build_error(path, "this is not JSON") from None
    if not isinstance(report, dict) or report.get("schema") != SCHEMA:
        raise _build_error(path, "this is not the output of 'collhub simulate --json'")
    if "results" in report:
        raise _build_error(path, "several sizes were simulated", "simulate one: --size 1MiB")
    rows = report.get("link_loads")
    if not isinstance(rows, list) or not rows:
        cure = "use a --backend that does, such as analytical"
        raise _build_error(path, "the simulation does not report loads of links", cure)
    time_ns = report.get("time_ns")
    if time_ns is not None and not _is_count(time_ns):
        raise _build_error(path, "time_ns is not a number of nanoseconds")
    loads = []
    for number, row in enumerate(rows):
        values = [row.get(name) for name in _COLUMNS] if isinstance(row, dict) else [None]
        if not all(_is_count(value) for value in values):
            raise _build_error(path, f"link_loads[{number}] lacks a number: {', '.join(_COLUMNS)}")
        loads.append(LinkLoad(*values))
    return SimulatedLoads(loads, time_ns)


def _is_count(value: object) -> bool:
    """Whether a JSON value is an integer from 0 to below 2^62."""
    # In Python, True and False are integers.
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MAX_COUNT


def _build_error(path: str, message: str, cure: str = _DEFAULT_CURE) -> InputError:
    """Build the `InputError` (code `loads`) for the file `path`; the caller raises it."""
    return InputError(message, location=Location(path), cure=cure, code="loads")
