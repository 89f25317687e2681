"""The notebook of the documents runs, prints what it holds, and every object displays itself."""

from __future__ import annotations

import ast
import base64
import contextlib
import html
import io
import json
import re
from pathlib import Path

import pytest

import hub_core
from hub_core.model import PluginError
from hub_core.plugin_api import BandwidthComparison, BandwidthSeries, InteractivePage
from hub_core.testing import ring_all_reduce

NOTEBOOK = Path(__file__).resolve().parents[1] / "docs" / "notebook.ipynb"


def run_cell(source: str, names: dict[str, object]) -> tuple[str, object]:
    """Run a cell; return what it prints, and the value of its last line if that is an expression."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, str(NOTEBOOK), "exec"), names)
        value = None
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), str(NOTEBOOK), "eval"), names)
    return printed.getvalue(), value


@pytest.mark.needs_plugins
def test_the_notebook_prints_and_displays_what_it_says() -> None:
    for module in ("collhub_classic", "collhub_astra_sim", "collhub_viewer", "collhub_pictures"):
        pytest.importorskip(module, reason="the notebook uses this plugin")
    names: dict[str, object] = {}
    shown = []
    for cell in json.loads(NOTEBOOK.read_text("utf-8"))["cells"]:
        if cell["cell_type"] != "code":
            continue
        printed, value = run_cell("".join(cell["source"]), names)
        stored = "".join(line for output in cell["outputs"] for line in output["text"])
        assert printed == stored
        if value is not None:
            shown.append(value._repr_html_())  # type: ignore[attr-defined]
    network, algorithm, result, comparison, *pages = shown
    assert "mesh:4x2" in network
    assert "data:image/svg+xml;base64," in network
    assert "all-gather" in algorithm
    assert result.count("<rect") == 8
    picture = re.search(r'src="data:image/svg\+xml;base64,([^"]+)"', comparison)
    assert picture is not None
    assert base64.b64decode(picture[1]).startswith(b"<svg")
    assert "fastest at 8 MiB</th><td style='text-align:left'>ring</td>" in comparison
    assert len(pages) == 2
    for page in pages:
        assert page.startswith("<iframe srcdoc=")
        assert "collhub-view-1" in html.unescape(page)


def test_texts_of_a_model_are_escaped() -> None:
    topology = hub_core.parse_topology("ring:2")
    hostile = hub_core.Topology(
        "<script>x</script>",
        2,
        2,
        topology.source,
        topology.destination,
        topology.bandwidth_bytes_per_s,
        topology.latency_s,
    )
    assert "<script>" not in hostile._repr_html_()


def test_an_algorithm_shows_the_bytes_between_its_ranks() -> None:
    shown = ring_all_reduce(4)._repr_html_()
    assert "rank 3 sends 6 units to rank 0" in shown
    assert "rank 0 sends 0 units to rank 2" in shown


def test_a_view_without_the_network_says_what_is_missing() -> None:
    with pytest.raises(TypeError, match="needs topology="):
        ring_all_reduce(4).view()


def test_a_comparison_shows_the_fastest_algorithm() -> None:
    series = [BandwidthSeries("ring", (1e9, 2e9)), BandwidthSeries("tree", (2e9, None))]
    comparison = BandwidthComparison("all-reduce on ring:4", (1024, 2048), series)
    shown = comparison._repr_html_()
    assert "fastest at 2 KiB</th><td style='text-align:left'>ring</td>" in shown


def test_a_comparison_is_viewed_with_its_bandwidths() -> None:
    pytest.importorskip("collhub_viewer", reason="collhub-study writes the page")
    series = [BandwidthSeries("ring", (1e9, 2e9))]
    bound = BandwidthSeries("bound", (3e9, 4e9))
    view = BandwidthComparison("all-reduce on ring:4", (1024, 2048), series, bound).view()
    assert "&quot;rates&quot;:[3000000000.0,4000000000.0]" in view._repr_html_()


@pytest.mark.needs_plugins
def test_report_of_a_missing_suffix_is_not_rendered_in_another_format() -> None:
    pytest.importorskip("collhub_viewer", reason="it is the only writer of pages")
    page = InteractivePage("ring", ())
    with pytest.raises(PluginError, match=r"no plugin shows a .* as \.svg; see"):
        hub_core.render_report(page, registry=hub_core.run_registry(), suffix=".svg")
