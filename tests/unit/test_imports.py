"""Imports point one way, plugins and libraries import only public modules, and the core names no plugin."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import hub_core

REPOSITORY = Path(__file__).resolve().parents[2]
CORE = REPOSITORY / "hub_core"

# Each module may import modules of the lines above its own, at run time; a package counts as one module. The contract
# with plugins is values only and stands low, because the core's own formats speak it too.
LAYERS = """
version diagnostics schemas
losses units strict_json schema_check
plugins.contract
plugins.hookspecs collectives rank_lists
topology
steps bounds switched_topologies
algorithm machines
topologies
timing transfers topology_facts
topology_check
topology_drawing
verification document chakra topology_document certificates
summary composition execution timeline
plugins.metadata plugins.registry plugins.border plugins.builtin
plugins.options plugins.compatibility
plugins.descriptions
plugins.discovery
sources
artifacts detection
pipeline
testing
cli
"""
LAYER_OF = {
    module: layer for layer, line in enumerate(LAYERS.split("\n")) for module in line.split()
}

PRIVATE_MODULES = re.compile(
    r"hub_core\.(cli|pipeline|sources|artifacts|detection|plugins\.(?!contract|hookspecs)\w+)(\.|$)"
)
LIBRARY_FOLDERS = sorted(path.parent for path in REPOSITORY.glob("libraries/*/pyproject.toml"))
PLUGIN_FOLDERS = [
    *sorted(path.parent for path in REPOSITORY.glob("plugins/*/pyproject.toml")),
    REPOSITORY / "examples" / "collhub-example",
]


def _runtime_imports(file: Path) -> Iterator[str]:
    """Dotted names that a module imports, inside functions too; not those for type checkers alone."""
    tree = ast.parse(file.read_text("utf-8"))
    for_checkers = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for statement in node.body
        for inner in ast.walk(statement)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and id(node) not in for_checkers:
            assert not node.level, f"{file}: a relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import) and id(node) not in for_checkers:
            yield from (alias.name for alias in node.names)


def _module_of(dotted: str) -> str | None:
    """The entry of `LAYERS` that a dotted name below `hub_core` belongs to; None for the package itself."""
    parts = dotted.split(".")[1:]
    if parts[:1] == ["plugins"]:
        return (
            ".".join(parts[:2])
            if (CORE / "plugins" / f"{'.'.join(parts[1:2])}.py").exists()
            else None
        )
    return parts[0] if parts and parts[0] != "__init__" else None


def _dotted(file: Path) -> str:
    return ".".join(("hub_core", *file.relative_to(CORE).with_suffix("").parts))


CORE_FILES = sorted(CORE.rglob("*.py"))


def test_every_module_has_a_place() -> None:
    modules = {
        module
        for file in CORE_FILES
        if (module := _module_of(_dotted(file))) and module != "plugins.__init__"
    }
    assert modules == set(LAYER_OF)


@pytest.mark.parametrize("file", CORE_FILES, ids=_dotted)
def test_imports_point_one_way(file: Path) -> None:
    own = _module_of(_dotted(file))
    if own is None or own == "plugins.__init__":
        return
    imported = {
        module
        for name in _runtime_imports(file)
        if name.startswith("hub_core.") and (module := _module_of(name))
    }
    assert [
        module for module in sorted(imported - {own}) if LAYER_OF[module] >= LAYER_OF[own]
    ] == []


def test_only_the_command_line_imports_the_conformance_kit() -> None:
    importers = {
        _module_of(_dotted(file))
        for file in CORE_FILES
        for name in _runtime_imports(file)
        if name.startswith("hub_core.testing")
    }
    assert importers <= {"testing", "cli"}


def _package(folder: Path) -> str:
    (package,) = (
        path.name
        for path in (folder / "src").iterdir()
        if path.name.startswith("collhub_") and path.suffix == ""
    )
    return package


@pytest.mark.parametrize(
    "folder", [*PLUGIN_FOLDERS, *LIBRARY_FOLDERS], ids=lambda folder: folder.name
)
def test_distribution_imports_public_modules_and_no_plugin(folder: Path) -> None:
    allowed = {
        _package(folder),
        *(map(_package, LIBRARY_FOLDERS) if folder in PLUGIN_FOLDERS else ()),
    }
    names = {name for file in (folder / "src").rglob("*.py") for name in _runtime_imports(file)}
    assert [name for name in sorted(names) if PRIVATE_MODULES.match(name)] == []
    assert [
        name
        for name in sorted(names)
        if name.startswith("collhub_") and name.split(".")[0] not in allowed
    ] == []
    assert [
        name
        for name in sorted(names)
        if re.search(r"(^|\.)_[a-z]", name) and name.startswith("hub_core")
    ] == []


@pytest.mark.parametrize(
    "folder", [*PLUGIN_FOLDERS, *LIBRARY_FOLDERS], ids=lambda folder: folder.name
)
def test_distribution_requires_what_it_imports_of_this_repository(folder: Path) -> None:
    stated = tomllib.loads((folder / "pyproject.toml").read_text())["project"]["dependencies"]
    names = {
        name.split(".")[0]
        for file in (folder / "src").rglob("*.py")
        for name in _runtime_imports(file)
    }
    libraries = {name.replace("_", "-") for name in names if name.startswith("collhub_")} - {
        _package(folder).replace("_", "-")
    }
    assert (
        sorted(
            name
            for name in {"collhub", *libraries}
            if not any(re.match(rf"{name}\b(?!-)", line) for line in stated)
        )
        == []
    )


def test_core_names_no_plugin() -> None:
    projects = [
        tomllib.loads((folder / "pyproject.toml").read_text()) for folder in PLUGIN_FOLDERS[:-1]
    ]
    names = {
        name
        for p in projects
        for name in (p["project"]["name"], *p["project"]["entry-points"]["collhub.plugins"])
    }
    spellings = {
        spelling
        for name in names
        for spelling in (name, name.replace("-", "_"), name.replace("_", "-"))
    }
    named = [
        f"{_dotted(file)}:{node.lineno}: {node.value}"
        for file in CORE_FILES
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.Constant) and node.value in spellings
    ]
    assert named == []


def test_public_names_are_those_that_are_declared() -> None:
    assert sorted(hub_core.__all__) == hub_core.__all__
    for name in hub_core.__all__:
        assert getattr(hub_core, name) is not None
    with pytest.raises(AttributeError, match="module 'hub_core' has no attribute 'nothing'"):
        _ = hub_core.nothing  # type: ignore[attr-defined]


def test_checker_and_runtime_see_the_same_public_names() -> None:
    tree = ast.parse((CORE / "__init__.py").read_text("utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    declared = {
        alias.name: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert declared == hub_core._HOME_OF


def test_package_imports_nothing_heavy() -> None:
    script = "import sys, hub_core; print(*(name for name in sys.modules if name.startswith(('numpy', 'hub_core', 'google'))))"
    loaded = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout.split()
    assert loaded == ["hub_core"]


def test_installed_package_holds_every_module() -> None:
    packages = {".".join(file.parent.relative_to(REPOSITORY).parts) for file in CORE_FILES}
    assert [
        package for package in sorted(packages) if importlib.util.find_spec(package) is None
    ] == []
    stated = set(
        tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    )
    assert packages <= stated
