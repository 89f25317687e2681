"""`collhub plugins new`: what it writes passes the conformance checks, for every kind of offer."""

from __future__ import annotations

import ast
import importlib
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hub_core
from hub_core.cli.commands.offer_scaffolds import SCAFFOLDS
from hub_core.model.diagnostics import ExitCode
from hub_core.plugin_api import OFFER_KINDS, SimulationResult
from hub_core.registry.discovery import discover
from hub_core.testing import Rule, Verdict, check_plugin, ring_all_gather

Collhub = Callable[..., Any]
MakePlugin = Callable[..., Path]
ALL = ",".join(SCAFFOLDS)
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def _made(collhub: Collhub, folder: Path, name: str, offers: str) -> Path:
    run = collhub("plugins", "new", name, "--directory", folder, "--offers", offers)
    assert run.code == ExitCode.DONE, run.err
    return folder


def _installed(folder: Path, site: Path, name: str) -> None:
    """Do what pip does with the distribution, without a process."""
    package = f"collhub_{name}"
    shutil.copytree(folder / "src" / package, site / package)
    info = site / f"{package}-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: collhub-{name}\nVersion: 0.1.0\nRequires-Dist: collhub>=0.1\n"
    )
    (info / "entry_points.txt").write_text(f"[collhub.plugins]\n{name} = {package}.plugin\n")


def test_scaffolds_import_promised_names_alone() -> None:
    named = [
        (node.module, alias.name)
        for file in sorted((EXAMPLES / "offers").glob("*.py"))
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("hub_core")
        for alias in node.names
    ]
    assert len(named) > 30
    assert [name for name in named if name[1] not in importlib.import_module(name[0]).__all__] == []


def test_every_kind_of_offer_has_a_scaffold() -> None:
    assert list(SCAFFOLDS) == [kind.word for kind in OFFER_KINDS]


@pytest.mark.parametrize("offers", [*SCAFFOLDS, ALL])
def test_new_plugin_passes_as_written(
    collhub: Collhub, site: Path, tmp_path: Path, offers: str
) -> None:
    _installed(_made(collhub, tmp_path / "new", "zed", offers), site, "zed")
    registry = discover(environment={})
    offered = [type(offer) for offer in registry.plugin("zed").offers]
    kinds = [kind.word for kind in OFFER_KINDS if kind.type in offered]
    assert kinds == offers.split(",")
    results = check_plugin("zed", registry)
    assert [(r.rule.name, r.details) for r in results if r.verdict is Verdict.FAILED] == []
    # Only a writer without a reader cannot be judged by what is read back.
    about = [
        r.rule for r in results if r.verdict is Verdict.SKIPPED and _concerns(r.rule, registry)
    ]
    unjudged = {"writer": ["losses-are-honest"], "workload-writer": ["workloads-come-back"]}
    assert [rule.name for rule in about] == unjudged.get(offers, [])


def _concerns(rule: Rule, registry: hub_core.Registry) -> bool:
    offers = registry.plugin("zed").offers
    return any(isinstance(offer, rule.kinds) for offer in offers)


def test_work_of_the_scaffolds_fits_together(collhub: Collhub, site: Path, tmp_path: Path) -> None:
    _installed(_made(collhub, tmp_path / "new", "zed", ALL), site, "zed")
    registry = discover(environment={})
    wanted = hub_core.Collective(hub_core.CollectiveKind.ALL_GATHER, 4, 4, in_place=True)
    made = hub_core.synthesize(
        wanted, "zed:4", 1 << 20, name="zed", backend="zed", registry=registry
    )
    assert hub_core.verify(made.algorithm).ok
    assert made.time_ns >= (made.bound_ns or 0)
    result = hub_core.simulate(ring_all_gather(4), "zed:4", 1024, backend="zed", registry=registry)
    assert isinstance(result, SimulationResult)


def test_what_is_written_is_in_the_form_of_this_repository(
    collhub: Collhub, tmp_path: Path
) -> None:
    ruff = Path(sys.executable).with_name("ruff")
    if not ruff.is_file():
        pytest.skip("ruff is not installed in this environment")
    folder = _made(collhub, tmp_path / "new", "zed", ALL)
    for command in (
        ("check", "--select", "E,F,W,I,B,UP,SIM,RUF", "--line-length", "100"),
        ("format", "--check", "--line-length", "100"),
    ):
        done = subprocess.run([ruff, *command, folder], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("name", "offers", "reason"),
    [
        ("good", "simulator", "plugin good (dist-good 0.7) is installed"),
        ("dist-good", "simulator", "plugin good (dist-good 0.7) is installed"),
        ("there", "simulator", "the package collhub_there is installed, at "),
        (
            "ring",
            "topology-builder",
            "plugin core (collhub 0.1.0) offers a topology builder 'ring'",
        ),
        ("demo", "check,command", "plugin core (collhub 0.1.0) offers a command 'demo'"),
        ("json", "reader,writer", "plugin core (collhub 0.1.0) offers a reader 'json'"),
    ],
)
def test_taken_name_is_refused(
    collhub: Collhub,
    make_plugin: MakePlugin,
    site: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    offers: str,
    reason: str,
) -> None:
    make_plugin("good", "")
    (site / "collhub_there").mkdir()
    (site / "collhub_there" / "__init__.py").touch()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    run = collhub("plugins", "new", name, "--offers", offers)
    assert run.code == ExitCode.USAGE
    assert f"error: the name '{name}' is taken: {reason}" in run.err
    assert list((tmp_path / "here").iterdir()) == []


@pytest.mark.parametrize("offers", ["simulatr", "", "reader;writer"])
def test_unknown_kind_is_refused_with_those_that_there_are(
    collhub: Collhub, tmp_path: Path, offers: str
) -> None:
    run = collhub("plugins", "new", "zed", "--directory", tmp_path / "new", "--offers", offers)
    assert run.code == ExitCode.USAGE
    assert "is no kind of offer; " in run.err
    assert not (tmp_path / "new").exists()
