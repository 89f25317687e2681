"""The architecture: imports point down, guests use promised names only, the core names no plugin."""

from __future__ import annotations

import ast
import graphlib
import importlib
import importlib.util
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import hub_core
from hub_core.plugin_api.offers import HOOKS

REPOSITORY = Path(__file__).resolve().parents[1]
CORE = REPOSITORY / "hub_core"

# A package may import, at run time, itself and packages of the lines above its own.
FLOORS = """
version installed schemas
model
network
verification plugin_api
chakra documents
registry
pipeline
testing
cli
"""
FLOOR_OF = {name: floor for floor, line in enumerate(FLOORS.split("\n")) for name in line.split()}
PUBLIC_PACKAGES = ("model", "network", "plugin_api", "testing", "verification")

MOST_LINES = 400

CORE_FILES = sorted(CORE.rglob("*.py"))
LIBRARIES = sorted(path.parent for path in REPOSITORY.glob("libraries/*/pyproject.toml"))
PLUGINS = sorted(path.parent for path in REPOSITORY.glob("plugins/*/pyproject.toml"))
EXAMPLE = REPOSITORY / "examples" / "collhub-example"
GUESTS = [*PLUGINS, EXAMPLE, *LIBRARIES]
# What the core itself stands on; they know nothing of it.
FOUNDATIONS = ("hub_core.chakra", "hub_core.columns")


def _for_checkers_alone(tree: ast.AST) -> set[int]:
    """Identities of the nodes below `if TYPE_CHECKING:`."""
    blocks = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    statements = [statement for block in blocks for statement in block.body]
    return {id(inner) for statement in statements for inner in ast.walk(statement)}


def _imports(file: Path, *, within_functions: bool = True) -> Iterator[str]:
    """Dotted names that a module imports at run time: `package.module.name`."""
    tree = ast.parse(file.read_text("utf-8"))
    skipped = _for_checkers_alone(tree)
    nodes = ast.walk(tree) if within_functions else iter(tree.body)
    for node in nodes:
        if id(node) in skipped:
            continue
        if isinstance(node, ast.ImportFrom):
            assert not node.level, f"{file}: a relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def _dotted(file: Path) -> str:
    return ".".join(("hub_core", *file.relative_to(CORE).with_suffix("").parts))


def _floor_name(dotted: str) -> str | None:
    """The entry of `FLOORS` to which a name below `hub_core` belongs; None for the facade itself."""
    parts = dotted.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in FLOOR_OF else None


def _project(folder: Path) -> dict[str, object]:
    project: dict[str, object] = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    return project


def _package(folder: Path) -> str:
    names = [path.name for path in (folder / "src").iterdir() if path.suffix == ""]
    (package,) = (name for name in names if name.startswith("collhub_"))
    return package


def _facade_names(file: Path) -> Iterator[str]:
    """Names that a module takes from the core's facade as `hub_core.name`."""
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        is_attribute = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
        if is_attribute and ast.unparse(node.value) == "hub_core":
            yield f"hub_core.{node.attr}"


def _names_used(folder: Path) -> set[str]:
    files = sorted((folder / "src").rglob("*.py"))
    imported = {name for file in files for name in _imports(file)}
    return imported | {name for file in files for name in _facade_names(file)}


def _promised() -> set[str]:
    """Every name that the core promises to guests, with its package: `hub_core.model.Algorithm`."""
    packages = [hub_core, *(importlib.import_module(f"hub_core.{p}") for p in PUBLIC_PACKAGES)]
    return {f"{package.__name__}.{name}" for package in packages for name in package.__all__}


PROMISED = _promised()


def test_every_package_has_a_floor() -> None:
    folders = {path.parent.name for path in CORE.glob("*/*.py")}
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
    modules = {_dotted(file).removesuffix(".__init__"): file for file in CORE_FILES}
    graph: dict[str, set[str]] = {}
    for module, file in modules.items():
        names = list(_imports(file, within_functions=False))
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
    assert len(file.read_text("utf-8").splitlines()) <= MOST_LINES


@pytest.mark.parametrize("folder", GUESTS, ids=lambda folder: folder.name)
def test_guests_import_promised_names_and_no_plugin(folder: Path) -> None:
    used = _names_used(folder)
    of_the_core = {name for name in used if name.startswith("hub_core")}
    assert sorted(of_the_core - PROMISED - {"hub_core"}) == []
    allowed = {_package(folder), *(_package(library) for library in LIBRARIES)}
    others = {name for name in used if name.startswith("collhub_")}
    assert sorted(name for name in others if name.split(".")[0] not in allowed) == []


@pytest.mark.parametrize("folder", [*PLUGINS, *LIBRARIES], ids=lambda folder: folder.name)
def test_guests_use_the_plugins_of_the_run(folder: Path) -> None:
    """`discover` would ignore disabled plugins, and import those that killed an earlier start."""
    found = [
        f"{file.relative_to(folder)}:{node.lineno}"
        for file in sorted((folder / "src").rglob("*.py"))
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if (isinstance(node, ast.Name) and node.id == "discover")
        or (isinstance(node, ast.Attribute) and ast.unparse(node) == "hub_core.discover")
        or (isinstance(node, ast.alias) and node.name.split(".")[-1] == "discover")
    ]
    assert found == []


@pytest.mark.parametrize("folder", GUESTS, ids=lambda folder: folder.name)
def test_guests_require_what_they_import_of_this_repository(folder: Path) -> None:
    stated = _project(folder)["dependencies"]
    assert isinstance(stated, list)
    packages = {name.split(".")[0] for name in _names_used(folder)} - {_package(folder)}
    used = {name.replace("_", "-") for name in packages if name.startswith("collhub_")}
    if "hub_core" in packages:
        used.add("collhub")
    required = {re.split(r"[^\w.-]", line)[0] for line in stated}
    assert sorted(used - required) == []


@pytest.mark.parametrize("package", FOUNDATIONS)
def test_foundations_know_nothing_of_the_core(package: str) -> None:
    (folder,) = (library for library in LIBRARIES if _package(library) == package)
    assert [name for name in _names_used(folder) if name.startswith("hub_core")] == []


def test_the_core_requires_its_foundations_alone_of_this_repository() -> None:
    stated = _project(REPOSITORY)["dependencies"]
    assert isinstance(stated, list)
    ours = [
        name for line in stated if (name := re.split(r"[^\w.-]", line)[0]).startswith("collhub")
    ]
    assert sorted(ours) == sorted(name.replace("_", "-") for name in FOUNDATIONS)
    imported = {name.split(".")[0] for file in CORE_FILES for name in _imports(file)}
    assert {name for name in imported if name.startswith("collhub")} == set(FOUNDATIONS)


def test_every_public_name_says_what_it_is() -> None:
    silent = []
    for promised in sorted(PROMISED):
        package, _, name = promised.rpartition(".")
        value = getattr(importlib.import_module(package), name)
        is_described = isinstance(value, type) or callable(value)
        if is_described and not (getattr(value, "__doc__", None) or "").strip():
            silent.append(promised)
    assert silent == []


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
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.Constant) and node.value in spellings
    ]
    assert named == []


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
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if not isinstance(node, ast.List | ast.Tuple):
            continue
        source = ast.unparse(node)
        if any(ast.unparse(item) == "sys.executable" for item in node.elts):
            yield source


@pytest.mark.parametrize("folder", [CORE, *GUESTS], ids=lambda folder: str(folder.name))
def test_python_is_started_without_the_working_folder_on_its_path(folder: Path) -> None:
    sources = [folder] if folder == CORE else [folder / "src"]
    files = [file for source in sources for file in source.rglob("*.py")]
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
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert packages <= set(settings["packages"])
