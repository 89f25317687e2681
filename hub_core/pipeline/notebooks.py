"""HTML of models in notebooks: facts with a picture, and interactive pages in frames."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape

import numpy as np

from hub_core.model import (
    Algorithm,
    HubError,
    NodeKind,
    StepKind,
    Workload,
    format_bytes,
    format_time,
)
from hub_core.network.topology import Topology
from hub_core.pipeline.inputs import as_topology
from hub_core.pipeline.job_simulation import simulate_job
from hub_core.pipeline.outputs import render_report
from hub_core.pipeline.simulation import simulate
from hub_core.plugin_api import (
    BandwidthComparison,
    InteractivePage,
    JobTimeline,
    PageSubject,
    ReportSubject,
    RunTimeline,
    SimulationResult,
    TopologyDrawing,
    WorkloadRequest,
)
from hub_core.registry.discovery import run_registry

DEFAULT_SIZE = 1 << 20
_HEIGHT = 640
_MAX_CELLS = 64
_BAR_WIDTH = 320
_SIMULATOR = "analytical"


@dataclass(frozen=True, slots=True)
class NotebookView:
    """An interactive page in a frame that is `height` pixels high."""

    page: str
    height: int

    def _repr_html_(self) -> str:
        """Return the frame. The page is its content: nothing is loaded from elsewhere."""
        return (
            f'<iframe srcdoc="{escape(self.page)}" title="interactive page"'
            f' sandbox="allow-scripts allow-downloads"'
            f' style="width:100%;height:{self.height}px;border:1px solid #8888"></iframe>'
        )


def describe(model: object) -> str:
    """Return a table of facts about a model, followed by a picture of it, as HTML.

    The picture depends on the type of the model:

    - Algorithm: the units between each pair of ranks; none for more than 64 (`_MAX_CELLS`) ranks.
    - Workload: the number of nodes of each kind that occurs, in the order of `NodeKind`.
    - Simulation result: the finish times of the first 64 ranks, 0 for a rank that does not finish.
      The table has total time and number of ranks; without a total time, `not all ranks finish`.
    - Topology and comparison: drawn by a plugin. Without a plugin for it, or if the drawing raises
      `HubError`, there is only the table.

    Texts of the table are escaped. Raises `AssertionError` for a model of another type.
    """
    if isinstance(model, Algorithm):
        return _join(_list_algorithm_facts(model), _draw_sent_units(model))
    if isinstance(model, Workload):
        facts = {
            "workload": f"{model.num_ranks} ranks",
            "nodes": str(len(model.nodes)),
            "groups": str(len(model.groups)),
            "bytes": format_bytes(int(model.nodes.bytes.clip(0).sum())),
            "producer": model.provenance.producer or "unknown",
        }
        counts = np.bincount(model.nodes.kind, minlength=len(NodeKind)).tolist()
        kinds = {kind.name.lower(): n for kind, n in zip(NodeKind, counts, strict=True) if n}
        return _join(facts, _draw_bars("number of nodes of each kind", kinds, str))
    if isinstance(model, Topology):
        return _join(_list_topology_facts(model), _draw(TopologyDrawing(model.name, model)))
    if isinstance(model, BandwidthComparison):
        return _join(_list_comparison_facts(model), _draw(model))
    assert isinstance(model, SimulationResult)
    time = "not all ranks finish" if model.time_ns is None else format_time(model.time_ns)
    facts = {"time": time, "ranks": str(len(model.rank_finish_ns))}
    ends = {f"rank {rank}": end or 0 for rank, end in enumerate(model.rank_finish_ns[:_MAX_CELLS])}
    return _join(facts, _draw_bars("time at which each rank finishes", ends, format_time))


def create_view(
    model: object,
    *,
    topology: Topology | str | None = None,
    size: int | None = None,
    algorithm: Algorithm | None = None,
    workload: Workload | None = None,
    height: int = _HEIGHT,
) -> NotebookView:
    """Return the interactive page of a model; algorithms and workloads are simulated first.

    - Topology and bandwidth comparison: shown without simulation.
    - Algorithm: simulated on `topology`, which is required. The size in bytes is `size`, else the
      size of the algorithm, else 1 MiB; 0 and None count as not given.
    - Workload: simulated by the simulator `analytical`, on `topology` if it is given.
    - Simulation result: not simulated again. Requires `algorithm` or `workload`, the input of the
      simulation; with both, `workload` is ignored. The size of the algorithm is chosen as above.
      `topology`, if given, is the network that the page shows.

    Arguments that a model does not need are ignored. A text `topology` is always parsed. `height`:
    of the frame in pixels. Raises `TypeError` for a missing argument and `AssertionError` for a
    model of another type. Raises `HubError` for an invalid topology, a failed simulation, and if no
    installed plugin writes the page.
    """
    registry = run_registry()
    network = None if topology is None else as_topology(topology, registry)
    subject: PageSubject
    if isinstance(model, Topology):
        subject = TopologyDrawing(model.name, model)
    elif isinstance(model, Algorithm):
        if network is None:
            raise TypeError("view() of an algorithm needs topology=, such as topology='ring:8'")
        size = size or model.collective_bytes or DEFAULT_SIZE
        result = simulate(model, network, size, registry=registry, wants_transfers=True)
        subject = _create_run(model, size, result, network)
    elif isinstance(model, Workload):
        request = WorkloadRequest(model, network, registry, wants_transfers=True)
        subject = _create_job(model, simulate_job(request, _SIMULATOR, {}), network)
    elif isinstance(model, BandwidthComparison):
        subject = model
    else:
        assert isinstance(model, SimulationResult)
        if algorithm is not None:
            size = size or algorithm.collective_bytes or DEFAULT_SIZE
            subject = _create_run(algorithm, size, model, network)
        elif workload is not None:
            subject = _create_job(workload, model, network)
        else:
            raise TypeError("view() of a result needs algorithm= or workload=, which was simulated")
    page = InteractivePage(subject.title, (subject,))
    return NotebookView(render_report(page, registry=registry).decode(), height)


def _create_run(
    algorithm: Algorithm, size: int, result: SimulationResult, network: Topology | None
) -> RunTimeline:
    title = f"{algorithm.collective.kind}, {algorithm.num_ranks} ranks"
    times = (result.step_start_ns, result.step_end_ns)
    return RunTimeline(title, algorithm, size, *times, network, result)


def _create_job(
    workload: Workload, result: SimulationResult, network: Topology | None
) -> JobTimeline:
    title = f"workload, {workload.num_ranks} ranks"
    times = (result.step_start_ns, result.step_end_ns)
    return JobTimeline(title, workload, *times, network, result)


def _join(facts: Mapping[str, str], picture: str) -> str:
    rows = "".join(
        f"<tr><th style='text-align:left'>{escape(label)}</th>"
        f"<td style='text-align:left'>{escape(value)}</td></tr>"
        for label, value in facts.items()
    )
    return f"<div><table>{rows}</table>{picture}</div>"


def _list_algorithm_facts(algorithm: Algorithm) -> dict[str, str]:
    steps = algorithm.steps
    kinds = np.bincount(steps.kind, minlength=len(StepKind)).tolist()
    counted = [
        f"{count} {kind.name.lower().replace('_', ' ')}"
        for kind, count in zip(StepKind, kinds, strict=True)
        if count
    ]
    return {
        "algorithm": str(algorithm.collective.kind),
        "ranks": str(algorithm.num_ranks),
        "units": str(algorithm.collective.unit_count),
        "steps": f"{len(steps)}: {', '.join(counted)}",
        "producer": algorithm.provenance.producer or "unknown",
    }


def _list_topology_facts(topology: Topology) -> dict[str, str]:
    rates = topology.bandwidth_bytes_per_s
    low, high = float(rates.min(initial=np.inf)), float(rates.max(initial=0))
    bandwidth = "none" if not len(rates) else f"{low / 1e9:g} to {high / 1e9:g} GB/s"
    return {
        "topology": topology.name,
        "NPUs": str(topology.num_npus),
        "switches": str(topology.num_nodes - topology.num_npus),
        "links": f"{topology.num_links}, {bandwidth}",
    }


def _list_comparison_facts(comparison: BandwidthComparison) -> dict[str, str]:
    """Return the facts of a comparison of algorithms as texts by label.

    The labels are `comparison` (title), `algorithms` (their number), `sizes` (first to
    last) and `fastest at SIZE`: the algorithm with the highest bandwidth at the last size.
    A missing bandwidth counts as 0; of equal ones the first is named. Without sizes the
    last two facts are missing, without bandwidths the last one.
    """
    rates = {
        series.name: series.bandwidths[-1] or 0 for series in comparison.series if series.bandwidths
    }
    facts = {"comparison": comparison.title, "algorithms": str(len(comparison.series))}
    if comparison.sizes:
        first, last = format_bytes(comparison.sizes[0]), format_bytes(comparison.sizes[-1])
        facts["sizes"] = f"{first} to {last}"
        if rates:
            facts[f"fastest at {last}"] = max(rates, key=rates.__getitem__)
    return facts


def _draw(subject: ReportSubject) -> str:
    """Return an `img` element with the picture that a plugin draws of `subject`.

    The picture is embedded as base64. "" if no plugin draws the subject or the drawing fails.
    """
    try:
        content = render_report(subject, registry=run_registry(), suffix=".svg")
    except HubError:
        return ""
    data = base64.b64encode(content).decode()
    source = f"data:image/svg+xml;base64,{data}"
    name = escape(subject.title)
    return f'<img alt="picture of {name}" style="max-width:100%" src="{source}">'


def _draw_sent_units(algorithm: Algorithm) -> str:
    """Return an SVG of the units that each rank sends to each other: one square per pair.

    "" for more than `_MAX_CELLS` ranks. Rows are senders, columns receivers. All pairs have a
    square, also those without units and a rank with itself. The distance of squares is 320 // ranks
    pixels, limited to 4 to 24; a square is one pixel smaller. The opacity is the units divided by
    the largest number of units (at least 1), but at least 0.06. A tooltip per square has the two
    ranks and the units.
    """
    steps, count = algorithm.steps, algorithm.num_ranks
    if count > _MAX_CELLS:
        return ""
    sends = np.flatnonzero(steps.sends)
    units = np.zeros((count, count), np.int64)
    np.add.at(units, (steps.rank[sends], steps.peer[sends]), steps.count[sends])
    cell = max(4, min(24, 320 // count))
    largest = max(1, int(units.max(initial=0)))
    shapes = [
        f'<rect x="{to * cell}" y="{source * cell}" width="{cell - 1}" height="{cell - 1}"'
        f' fill="#0072b2" fill-opacity="{max(0.06, number / largest):.2f}">'
        f"<title>rank {source} sends {number} units to rank {to}</title></rect>"
        for source, row in enumerate(units.tolist())
        for to, number in enumerate(row)
    ]
    side = count * cell
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{side}" height="{side}">'
        f"<title>units from rank (row) to rank (column)</title>{''.join(shapes)}</svg>"
    )


def _draw_bars(title: str, values: Mapping[str, int], write: object) -> str:
    """Return an SVG with a horizontal bar per value, from top to bottom in the order of `values`.

    The largest value, or 1 if that is larger, has a bar of 320 pixels (`_BAR_WIDTH`); other bars
    are in proportion. Without values there is no bar, and the height is 0. Keys are the labels.
    `write` formats a value as the text next to its bar; if it is not callable, `AssertionError` is
    raised. Labels and these texts are escaped. `title`: meaning of the values, for screen readers,
    not escaped.
    """
    assert callable(write)
    most = max(1, *values.values()) if values else 1
    lines = []
    for row, (label, value) in enumerate(values.items()):
        y, width = 18 * row, _BAR_WIDTH * value / most
        lines.append(
            f'<text x="0" y="{y + 12}">{escape(label)}</text>'
            f'<rect x="90" y="{y + 2}" width="{width:.1f}" height="13" fill="#0072b2"/>'
            f'<text x="{95 + width:.1f}" y="{y + 12}">{escape(write(value))}</text>'
        )
    size = f'width="{_BAR_WIDTH + 190}" height="{18 * len(values)}"'
    style = "font:11px sans-serif;fill:currentColor"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" {size} style="{style}">'
        f"<title>{title}</title>{''.join(lines)}</svg>"
    )
