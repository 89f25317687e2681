"""The architecture: imports point down, guests use promised names only, the core names no plugin."""

from __future__ import annotations

import ast
import functools
import graphlib
import importlib
import importlib.util
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

import hub_core
from hub_core.plugin_api.offers import HOOKS

pytestmark = pytest.mark.once

REPOSITORY = Path(__file__).resolve().parents[1]
CORE = REPOSITORY / "hub_core"

# A package may import, at run time, itself and packages of the lines above its own.
FLOORS = """
version installed schemas
columns
chakra
model
network
verification plugin_api reports
trace_profile documents sandbox schedules selections
registry
pipeline
testing
cli
"""
FLOOR_OF = {name: floor for floor, line in enumerate(FLOORS.split("\n")) for name in line.split()}
PUBLIC_PACKAGES = ("model", "network", "plugin_api", "reports", "testing", "verification")

MOST_LINES = 400

CORE_FILES = sorted(CORE.rglob("*.py"))
PLUGINS = sorted(path.parent for path in REPOSITORY.glob("plugins/*/pyproject.toml"))
EXAMPLES = REPOSITORY / "examples"
EXAMPLE = EXAMPLES / "collhub-example"
GUESTS = [*PLUGINS, EXAMPLE]
# Packages of the core that the distributions of this repository share; other authors use the
# public ones only.
SHARED_PACKAGES = ("chakra", "columns", "sandbox", "schedules", "selections")


@functools.cache
def _source(file: Path) -> str:
    """The text of a file."""
    return file.read_text("utf-8")


@functools.lru_cache(maxsize=1)
def _tree(file: Path) -> ast.Module:
    """The syntax tree of a file. Trees of all files would take a gigabyte, so one is kept."""
    return ast.parse(_source(file))


def _for_checkers_alone(tree: ast.AST) -> set[int]:
    """Identities of the nodes below `if TYPE_CHECKING:`."""
    blocks = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    statements = [statement for block in blocks for statement in block.body]
    return {id(inner) for statement in statements for inner in ast.walk(statement)}


@functools.cache
def _imports(file: Path) -> tuple[str, ...]:
    """Return the dotted names that a module or its functions import at run time."""
    tree = _tree(file)
    skipped = _for_checkers_alone(tree) if "TYPE_CHECKING" in _source(file) else set()
    names: list[str] = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom | ast.Import) or id(node) in skipped:
            continue
        if isinstance(node, ast.ImportFrom):
            assert not node.level, f"{file}: a relative import"
            names += (f"{node.module}.{alias.name}" for alias in node.names)
        else:
            names += (alias.name for alias in node.names)
    return tuple(names)


def _dotted(file: Path) -> str:
    return ".".join(("hub_core", *file.relative_to(CORE).with_suffix("").parts))


def _floor_name(dotted: str) -> str | None:
    """The entry of `FLOORS` to which a name below `hub_core` belongs; None for the facade itself."""
    parts = dotted.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in FLOOR_OF else None


def _project(folder: Path) -> dict[str, object]:
    project: dict[str, object] = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    return project


def _packages(folder: Path) -> set[str]:
    """Import packages of a distribution."""
    names = {path.name for path in (folder / "src").iterdir() if path.suffix == ""}
    return {name for name in names if name.startswith("collhub_")}


def _requirements(folder: Path) -> set[str]:
    """Names of the distributions that a distribution requires."""
    lines = _project(folder)["dependencies"]
    assert isinstance(lines, list)
    return {re.split(r"[^\w.-]", line)[0] for line in lines}


@functools.cache
def _plugin_packages() -> set[str]:
    """Import packages that an entry point names: plugins, not shared code."""
    tables = [_project(folder)["entry-points"] for folder in PLUGINS]
    assert all(isinstance(table, dict) for table in tables)
    modules = [module for table in tables for module in table["collhub.plugins"].values()]  # type: ignore[index]
    return {module.split(".")[0] for module in modules}


@functools.cache
def _facade_names(file: Path) -> tuple[str, ...]:
    """Names that a module takes from the core's facade as `hub_core.name`."""
    return tuple(
        f"hub_core.{node.attr}"
        for node in ast.walk(_tree(file))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "hub_core"
    )


def _names_used(folder: Path) -> set[str]:
    files = sorted((folder / "src").rglob("*.py"))
    return {name for file in files for name in (*_imports(file), *_facade_names(file))}


def _promised() -> set[str]:
    """Every name that the core promises to guests, with its package: `hub_core.model.Algorithm`."""
    return {f"hub_core.{name}" for name in hub_core.__all__} | _listed(PUBLIC_PACKAGES)


def _listed(packages: Iterable[str]) -> set[str]:
    """Every name in the `__all__` of packages of the core, with its package."""
    modules = [importlib.import_module(f"hub_core.{package}") for package in packages]
    return {f"{module.__name__}.{name}" for module in modules for name in module.__all__}


PROMISED = _promised()


def test_every_package_has_a_floor() -> None:
    places = (file.relative_to(CORE).parts for file in CORE_FILES)
    folders = {parts[0] for parts in places if len(parts) > 1}
    files = {path.stem for path in CORE.glob("*.py")} - {"__init__"}
    assert folders | files | {"schemas"} == set(FLOOR_OF)


@pytest.mark.parametrize("file", CORE_FILES, ids=_dotted)
def test_imports_point_down(file: Path) -> None:
    own = _floor_name(_dotted(file))
    if own is None:
        return
    used = {_floor_name(name) for name in _imports(file) if name.startswith("hub_core.")}
    others = sorted(name for name in used if name not in (None, own))
    assert [name for name in others if FLOOR_OF[name] >= FLOOR_OF[own]] == []


def test_modules_import_each_other_in_no_circle() -> None:
    """Imports inside functions count: the modules need each other all the same."""
    modules = {_dotted(file).removesuffix(".__init__"): file for file in CORE_FILES}
    graph: dict[str, set[str]] = {}
    for module, file in modules.items():
        names = list(_imports(file))
        candidates = {candidate for name in names for candidate in (name, name.rpartition(".")[0])}
        graph[module] = (candidates & set(modules)) - {module}
    assert list(graphlib.TopologicalSorter(graph).static_order())


def test_only_the_command_line_imports_the_conformance_kit() -> None:
    importers = {
        _floor_name(_dotted(file))
        for file in CORE_FILES
        for name in _imports(file)
        if name.startswith("hub_core.testing")
    }
    assert importers <= {"testing", "cli"}


@pytest.mark.parametrize("file", CORE_FILES, ids=_dotted)
def test_files_of_the_core_are_short(file: Path) -> None:
    assert len(_source(file).splitlines()) <= MOST_LINES


@pytest.mark.parametrize("folder", GUESTS, ids=lambda folder: folder.name)
def test_guests_import_public_names_of_the_core(folder: Path) -> None:
    names = {name for name in _names_used(folder) if name.startswith("hub_core")}
    shared = set() if folder == EXAMPLE else _listed(SHARED_PACKAGES)
    allowed = PROMISED | {"hub_core"} | shared
    assert sorted(names - allowed) == []


@pytest.mark.parametrize("folder", GUESTS, ids=lambda folder: folder.name)
def test_no_plugin_imports_another_plugin(folder: Path) -> None:
    for package in sorted(_packages(folder)):
        files = sorted((folder / "src" / package).rglob("*.py"))
        imported = {name.split(".")[0] for file in files for name in _imports(file)}
        assert sorted((imported & _plugin_packages()) - {package}) == []


@pytest.mark.parametrize("folder", PLUGINS, ids=lambda folder: folder.name)
def test_guests_use_the_plugins_of_the_run(folder: Path) -> None:
    """`discover` would ignore disabled plugins, and import those that killed an earlier start."""
    found = [
        f"{file.relative_to(folder)}:{node.lineno}"
        for file in sorted((folder / "src").rglob("*.py"))
        if "discover" in _source(file)
        for node in ast.walk(_tree(file))
        if (isinstance(node, ast.Name) and node.id == "discover")
        or (
            isinstance(node, ast.Attribute)
            and node.attr == "discover"
            and ast.unparse(node.value) == "hub_core"
        )
        or (isinstance(node, ast.alias) and node.name.split(".")[-1] == "discover")
    ]
    assert found == []


@pytest.mark.parametrize("folder", GUESTS, ids=lambda folder: folder.name)
def test_guests_require_the_distributions_whose_packages_they_import(folder: Path) -> None:
    owners = {package: _project(owner)["name"] for owner in GUESTS for package in _packages(owner)}
    imported = {name.split(".")[0] for name in _names_used(folder)} - _packages(folder)
    needed = {owners[name] for name in imported if name in owners}
    if "hub_core" in imported:
        needed.add("collhub")
    assert sorted(map(str, needed - _requirements(folder))) == []


def test_distributions_require_each_other_in_no_circle() -> None:
    graph = {str(_project(folder)["name"]): _requirements(folder) for folder in PLUGINS}
    assert list(graphlib.TopologicalSorter(graph).static_order())


def test_the_core_requires_and_imports_no_distribution_of_this_repository() -> None:
    assert [name for name in _requirements(REPOSITORY) if name.startswith("collhub")] == []
    imported = {name.split(".")[0] for file in CORE_FILES for name in _imports(file)}
    assert [name for name in imported if name.startswith("collhub")] == []


def test_the_extra_for_everything_names_every_distribution() -> None:
    extras = _project(REPOSITORY)["optional-dependencies"]
    assert isinstance(extras, dict)
    names = {re.split(r"[^\w.-]", line)[0] for line in extras["all"]}
    assert names == {str(_project(folder)["name"]) for folder in PLUGINS}


def test_every_public_name_says_what_it_is() -> None:
    silent = []
    for promised in sorted(PROMISED):
        package, _, name = promised.rpartition(".")
        value = getattr(importlib.import_module(package), name)
        is_described = isinstance(value, type) or callable(value)
        if is_described and not (getattr(value, "__doc__", None) or "").strip():
            silent.append(promised)
    assert silent == []


# Names of the languages MSCCLang and MSCCL++, whose programs use them, and of concepts that two
# interfaces define: a plugin's and the conformance kit's rules, formats and tensors on ranks,
# a transformation of a program and of a tensor, and a run of the program and of torch.
SHARED_CLASS_NAMES = {
    "AllGather", "AllReduce", "AllToAll", "Buffer", "Chunk", "Collective", "Layout", "Move",
    "ReduceScatter", "ReplicationPolicy", "Rule", "SendRecv", "Session", "Topology",
}  # fmt: skip


def test_a_class_name_denotes_one_class() -> None:
    files = [*CORE_FILES, *sorted(REPOSITORY.glob("plugins/*/src/**/*.py"))]
    counts = Counter(
        node.name
        for file in files
        for node in ast.walk(_tree(file))
        if isinstance(node, ast.ClassDef)
    )
    assert {name for name, count in counts.items() if count > 1} == SHARED_CLASS_NAMES


def test_core_names_no_plugin() -> None:
    names: set[str] = set()
    for folder in PLUGINS:
        project = _project(folder)
        entry_points = project["entry-points"]
        assert isinstance(entry_points, dict)
        names |= {str(project["name"]), *entry_points["collhub.plugins"]}
    spellings = names | {name.replace("-", "_") for name in names}
    spellings |= {name.replace("_", "-") for name in names}
    # A distribution may be called after what it offers, as a hook is.
    spellings -= set(HOOKS)
    named = [
        f"{_dotted(file)}:{node.lineno}: {node.value}"
        for file in CORE_FILES
        for node in ast.walk(_tree(file))
        if isinstance(node, ast.Constant) and node.value in spellings
    ]
    assert named == []


def test_functions_named_by_the_document_exist() -> None:
    text = _source(REPOSITORY / "docs" / "architecture.md").partition("### Where to read")[2]
    named = re.findall(r"`([a-z_.]+):(\w+)`", text.partition("\n## ")[0])
    assert len(named) > 20
    for module, name in named:
        path = module.replace(".", "/") + ".py"
        (file,) = (
            [CORE / path] if (CORE / path).exists() else REPOSITORY.glob(f"plugins/*/src/{path}")
        )
        assert re.search(rf"^(def |class )?{name}( = |\(|:)", _source(file), re.MULTILINE), name


@pytest.mark.parametrize("package", ["", *(f".{name}" for name in PUBLIC_PACKAGES)])
def test_public_names_are_those_that_are_declared(package: str) -> None:
    module = importlib.import_module(f"hub_core{package}")
    assert len(set(module.__all__)) == len(module.__all__)
    for name in module.__all__:
        assert getattr(module, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = module.nothing


@pytest.mark.parametrize("package", ["", *(f".{name}" for name in PUBLIC_PACKAGES)])
def test_no_module_hides_a_public_name_of_its_package(package: str) -> None:
    # Once `package.name` is imported as a module, the name of the package is that module.
    module = importlib.import_module(f"hub_core{package}")
    assert module.__file__ is not None
    folder = Path(module.__file__).parent
    modules = {path.stem for path in folder.glob("*.py")} | {path.name for path in folder.iterdir()}
    assert sorted(modules & set(module.__all__)) == []


@pytest.mark.parametrize(
    "package",
    [
        "hub_core",
        "hub_core.model",
        "hub_core.network",
        "hub_core.testing",
        "hub_core.chakra",
        "hub_core.columns",
    ],
)
def test_checker_and_runtime_see_the_same_public_names(package: str) -> None:
    module = importlib.import_module(package)
    assert module.__file__ is not None
    tree = ast.parse(Path(module.__file__).read_text("utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    declared = {
        (node.module, alias.name)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    homes = {(home, name) for home, names in module._HOMES.items() for name in names.split()}
    assert declared == homes
    assert {name for _, name in homes} == set(module.__all__)


def _started_pythons(file: Path) -> Iterator[str]:
    """Source of every list of arguments that starts the interpreter of this process."""
    for node in ast.walk(_tree(file)):
        if not isinstance(node, ast.List | ast.Tuple):
            continue
        source = ast.unparse(node)
        if any(ast.unparse(item) == "sys.executable" for item in node.elts):
            yield source


@pytest.mark.parametrize("folder", [CORE, *GUESTS], ids=lambda folder: str(folder.name))
def test_python_is_started_without_the_working_folder_on_its_path(folder: Path) -> None:
    sources = [folder] if folder == CORE else [folder / "src"]
    files = [file for source in sources for file in source.rglob("*.py")]
    files = [file for file in files if "sys.executable" in _source(file)]
    commands = [command for file in files for command in _started_pythons(file)]
    unsafe = [command for command in commands if "'-P'" not in command and "'-I'" not in command]
    assert unsafe == []


def test_package_imports_nothing_heavy() -> None:
    heavy = "('numpy', 'google', 'jsonschema', 'click')"
    script = f"import sys, hub_core; print(*(n for n in sys.modules if n.startswith({heavy})))"
    command = [sys.executable, "-c", script]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout.split() == []


def test_installed_package_holds_every_module() -> None:
    packages = {".".join(file.parent.relative_to(REPOSITORY).parts) for file in CORE_FILES}
    assert [name for name in sorted(packages) if importlib.util.find_spec(name) is None] == []


def test_the_wheel_holds_every_example_and_schema() -> None:
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["hatch"]
    included = settings["build"]["targets"]["wheel"]["force-include"]
    assert all((REPOSITORY / source).exists() for source in included)
    listed = {
        f"examples/{path.name}" for end in ("xml", "json") for path in EXAMPLES.glob(f"*.{end}")
    }
    assert listed | {"schemas", "examples/__init__.py", "examples/offers"} <= set(included)
