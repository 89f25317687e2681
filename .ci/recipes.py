"""Write what other package managers and catalogues need, from the pyproject files and constraints.

    python .ci/recipes.py [--check]

Written are `packaging/conda/recipe.yaml`, one output for each distribution, for rattler-build;
`constraints.txt`, the versions of `constraints/install.txt` without hashes; `CITATION.cff` and
`codemeta.json`. `--check` writes nothing and fails if a file differs.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Names on conda-forge that differ from those on PyPI.
CONDA_NAMES = {"ml-dtypes": "ml_dtypes", "pyyaml": "pyyaml"}
# Only builds from a checkout need these.
BUILD_ONLY = {"hatchling", "pathspec", "tomlkit", "trove-classifiers"}
AUTHORS = "The Collective Hub authors"
MARKER = "# Written by .ci/recipes.py from the pyproject files: change these.\n"


def main() -> None:
    """Write all files, or exit with the names of those that differ."""
    texts = {
        "packaging/conda/recipe.yaml": build_recipe(),
        "constraints.txt": build_constraints(),
        "CITATION.cff": build_citation(),
        "codemeta.json": build_codemeta(),
    }
    if "--check" in sys.argv[1:]:
        wrong = [name for name, text in texts.items() if read(name) != text]
        if wrong:
            sys.exit(f"{', '.join(wrong)}: run python .ci/recipes.py")
        return
    for name, text in texts.items():
        (ROOT / name).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / name).write_text(text)


def read(name: str) -> str:
    """Return the text of a file of the repository, empty if it is absent."""
    path = ROOT / name
    return path.read_text() if path.is_file() else ""


def load_projects() -> dict[str, dict[str, object]]:
    """Return the tables `project` of all distributions by folder, the core (`.`) first."""
    folders = [".", *re.findall(r"^\./(plugins/\w+)$", read("requirements.txt"), re.MULTILINE)]
    return {
        folder: tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"]
        for folder in sorted(folders)
    }


def find_version() -> str:
    """Return the version of the core, which all distributions share."""
    match = re.search(r'__version__ = "([^"]+)"', read("hub_core/version.py"))
    assert match is not None
    return match[1]


def to_conda(requirement: str) -> str:
    """Convert a requirement such as `numpy>=1.26` to the form of conda, `numpy >=1.26`."""
    match = re.fullmatch(r"([\w.-]+)(.*)", requirement)
    assert match is not None, requirement
    name = re.sub(r"[-_.]+", "-", match[1]).lower()
    return f"{CONDA_NAMES.get(name, name)} {match[2]}".strip()


def build_recipe() -> str:
    """Return the recipe: one noarch package per distribution, `collhub-all` with all of them."""
    projects = load_projects()
    lines = [
        "# yaml-language-server: $schema=https://raw.githubusercontent.com/prefix-dev/recipe-format/main/schema.json",
        MARKER + "# Build: rattler-build build --recipe packaging/conda/recipe.yaml",
        "schema_version: 1",
        "",
        "context:",
        f'  version: "{find_version()}"',
        "",
        "recipe:",
        "  name: collhub-recipe",
        "  version: ${{ version }}",
        "",
        "source:",
        "  path: ../..",
        "",
        "outputs:",
    ]
    for folder, project in projects.items():
        lines += build_output(folder, project)
    names = [str(project["name"]) for project in projects.values()]
    lines += [
        "  - package:",
        "      name: collhub-all",
        "      version: ${{ version }}",
        "    build:",
        "      noarch: generic",
        "    requirements:",
        "      run:",
        *(f"        - {name} ==${{{{ version }}}}" for name in names),
        "    about:",
        '      summary: "Collective Hub with all its plugins"',
        "      license: MIT",
        "      license_file: LICENSE",
    ]
    return "\n".join(lines) + "\n"


def build_output(folder: str, project: dict[str, object]) -> list[str]:
    """Return the lines of one distribution's output."""
    requirements = project["dependencies"]
    assert isinstance(requirements, list)
    modules = ["hub_core"] if folder == "." else sorted(
        path.name for path in (ROOT / folder / "src").iterdir() if path.name.startswith("collhub_")
    )  # fmt: skip
    install = f"pip install ./{folder} --no-deps --no-build-isolation -vv".replace("./.", ".")
    script = f"${{{{ PYTHON }}}} -m {install}"
    scripts = project.get("scripts")
    entry_points = [f"{name} = {target}" for name, target in scripts.items()] if isinstance(
        scripts, dict) else []  # fmt: skip
    lines = [
        "  - package:",
        f"      name: {project['name']}",
        "      version: ${{ version }}",
        "    build:",
        "      noarch: python",
        f"      script: {script}",
    ]
    if entry_points:
        lines += ["      python:", "        entry_points:"]
        lines += [f"          - {entry}" for entry in entry_points]
    lines += [
        "    requirements:",
        "      host:",
        f"        - python {project['requires-python']}",
        "        - pip",
        "        - hatchling >=1.27",
        "      run:",
        f"        - python {project['requires-python']}",
        *(f"        - {to_conda(one)}" for one in sorted(requirements, key=str.lower)),
        "    tests:",
        "      - python:",
        "          imports:",
        *(f"            - {module}" for module in modules),
        "          pip_check: true",
        "    about:",
        f'      summary: "{project["description"]}"',
        f"      license: {project['license']}",
        "      license_file: LICENSE",
    ]
    return lines


def build_constraints() -> str:
    """Return the versions of all third-party distributions, without those that only builds need."""
    lines = [MARKER.replace("pyproject files", "list constraints/install.txt").rstrip()]
    for entry in re.findall(
        r"^[\w.-]+==.*?(?= \\$)", read("constraints/install.txt"), re.MULTILINE
    ):
        if entry.partition("==")[0] not in BUILD_ONLY:
            lines.append(entry)
    return "\n".join(lines) + "\n"


def build_citation() -> str:
    """Return the citation file, Citation File Format 1.2.0."""
    project = load_projects()["."]
    keywords = project["keywords"]
    assert isinstance(keywords, list)
    lines = [
        MARKER.rstrip(),
        "cff-version: 1.2.0",
        "message: If you use this software, please cite it with these data.",
        "type: software",
        "title: Collective Hub",
        f"abstract: '{project['description']}'",
        f"version: {find_version()}",
        f"license: {project['license']}",
        "authors:",
        f"  - name: {AUTHORS}",
        "keywords:",
        *(f"  - {keyword}" for keyword in keywords),
    ]
    return "\n".join(lines) + "\n"


def build_codemeta() -> str:
    """Return the description of the software as CodeMeta 3.0."""
    project = load_projects()["."]
    requirements = project["dependencies"]
    assert isinstance(requirements, list)
    document = {
        "@context": "https://w3id.org/codemeta/3.0",
        "@type": "SoftwareSourceCode",
        "name": "Collective Hub",
        "identifier": project["name"],
        "description": project["description"],
        "version": find_version(),
        "license": f"https://spdx.org/licenses/{project['license']}",
        "author": [{"@type": "Organization", "name": AUTHORS}],
        "keywords": project["keywords"],
        "programmingLanguage": "Python",
        "runtimePlatform": f"Python {project['requires-python']}",
        "softwareRequirements": requirements,
        "developmentStatus": "active",
    }
    return json.dumps(document, indent=2) + "\n"


if __name__ == "__main__":
    main()
