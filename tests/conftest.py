"""Make real, tiny plugin distributions: a module and its `.dist-info` folder, on `sys.path` for one test."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hub_core.plugin_api import API_VERSION
from hub_core.registry.discovery import discover
from hub_core.registry.plugins import Plugin

PREAMBLE = f"""
from dataclasses import dataclass
from hub_core.plugin_api import *
COLLHUB_PLUGIN_API = {API_VERSION}
"""

MakePlugin = Callable[..., Path]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of installed distributions; modules imported from it are forgotten afterwards."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    before = set(sys.modules)
    yield folder
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(folder)):
            del sys.modules[name]


@pytest.fixture
def make_plugin(site: Path) -> MakePlugin:
    """`make_plugin(name, code, preamble=..., requires=..., distribution=..., entry_points=...)` installs a plugin."""

    def make(
        name: str,
        code: str,
        *,
        preamble: str = PREAMBLE,
        requires: str = "collhub>=0.1",
        distribution: str = "",
        entry_points: str = "",
    ) -> Path:
        distribution = distribution or f"dist-{name}"
        module = distribution.replace("-", "_")
        (site / f"{module}.py").write_text(preamble + code)
        info = site / f"{module}-0.7.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 0.7\nRequires-Dist: {requires}\n"
        )
        (info / "entry_points.txt").write_text(
            entry_points or f"[collhub.plugins]\n{name} = {module}\n"
        )
        return site / f"{module}.py"

    return make


@pytest.fixture
def load(make_plugin: MakePlugin) -> Callable[..., Plugin]:
    """Make a plugin named `subject`, discover, and return it; a good neighbour must load whatever it does."""
    make_plugin("neighbour", NEIGHBOUR)

    def make_and_load(code: str, **details: str) -> Plugin:
        make_plugin("subject", code, **details)
        registry = discover(environment={})
        assert registry.plugin("neighbour").status.state == "loaded"
        return registry.plugin("subject")

    return make_and_load


NEIGHBOUR = """
@hookimpl
def collhub_checks():
    return [Check("neighbour", Subject.INSTALLATION, "is well", "dist_neighbour:check")]

def check(request, options):
    return CheckReport(True, lines=(CheckLine("neighbour", True),))
"""
