"""Packages, catalogues and CONTRIBUTING agree with the pyproject files and the repository."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from hub_core.version import __version__

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = [ROOT, *sorted(path.parent for path in (ROOT / "plugins").glob("*/pyproject.toml"))]
PROJECTS: dict[str, Any] = {
    project["name"]: project
    for folder in FOLDERS
    for project in [tomllib.loads((folder / "pyproject.toml").read_text())["project"]]
}


def load_yaml(name: str) -> Any:
    yaml = pytest.importorskip("yaml", reason="PyYAML comes with collhub-networks")
    return yaml.safe_load((ROOT / name).read_text())


def test_generated_files_are_current() -> None:
    command = [sys.executable, str(ROOT / ".ci" / "recipes.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_versions_of_catalogues_are_that_of_the_package() -> None:
    assert json.loads((ROOT / "codemeta.json").read_text())["version"] == __version__
    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert (
        f'\n  version: "{__version__}"\n'
        in (ROOT / "packaging" / "conda" / "recipe.yaml").read_text()
    )
    stated = {project.get("version", __version__) for project in PROJECTS.values()}
    assert stated == {__version__}


def test_the_citation_has_what_the_format_requires() -> None:
    citation = load_yaml("CITATION.cff")
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    assert citation["cff-version"] == "1.2.0"
    assert citation["license"] == PROJECTS["collhub"]["license"]


def test_the_recipe_has_every_distribution_with_its_requirements() -> None:
    recipe = load_yaml("packaging/conda/recipe.yaml")
    outputs = {output["package"]["name"]: output for output in recipe["outputs"]}
    assert outputs.keys() == {*PROJECTS, "collhub-all"}
    for name, project in PROJECTS.items():
        run = {re.sub("[_ ]", "-", line.replace(" ", "", 1).replace(">", "  >", 1).split()[0])
               for line in outputs[name]["requirements"]["run"]}  # fmt: skip
        required = {
            re.split(r"[<>=!]", line)[0].lower().replace("_", "-")
            for line in project["dependencies"]
        }
        assert run == {*required, "python"}, name
        for line in outputs[name]["requirements"]["run"]:
            bounds = line.partition(" ")[2]
            assert bounds == project["requires-python"] or any(
                one.endswith(bounds) for one in project["dependencies"]
            )
    every = outputs["collhub-all"]["requirements"]["run"]
    assert every == [f"{name} ==${{{{ version }}}}" for name in outputs if name != "collhub-all"]


def test_rattler_build_renders_the_recipe() -> None:
    rattler = pytest.importorskip("rattler_build", reason="py-rattler-build is not installed")
    recipe = rattler.Stage0Recipe.from_file(str(ROOT / "packaging" / "conda" / "recipe.yaml"))
    rendered = [variant.recipe.package for variant in recipe.render(rattler.VariantConfig())]
    assert {package.name for package in rendered} == {*PROJECTS, "collhub-all"}
    assert {package.version for package in rendered} == {__version__}


def test_constraints_have_the_versions_of_the_list_with_hashes() -> None:
    listed = set((ROOT / "constraints.txt").read_text().splitlines()[1:])
    hashed = re.findall(
        r"^(\S+==.*?) \\$", (ROOT / "constraints" / "install.txt").read_text(), re.M
    )
    assert listed < set(hashed)
    names = {re.split("==", line)[0].replace("_", "-") for line in listed}
    for project in PROJECTS.values():
        for line in project["dependencies"]:
            name = re.split(r"[<>=!]", line)[0].lower().replace("_", "-")
            assert name in {*names, *PROJECTS}


def test_the_container_has_two_stages_hashes_and_another_user_than_root() -> None:
    text = (ROOT / "packaging" / "Containerfile").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    stages = [index for index, line in enumerate(lines) if line.startswith("FROM ")]
    assert [lines[index] for index in stages] == ["FROM ${BASE} AS build", "FROM ${BASE}"]
    build, final = lines[stages[0] : stages[1]], lines[stages[1] :]
    installs = [line for line in build if "pip install" in line]
    assert "--require-hashes -r constraints/install.txt" in installs[0]
    assert "--no-deps --no-build-isolation -r requirements.txt" in installs[1]
    assert len(installs) == 2
    # Only the environment reaches the image; nothing is installed or downloaded there.
    assert [line for line in final if line.startswith("COPY")] == [
        "COPY --from=build /opt/collhub /opt/collhub"
    ]
    assert not any("pip" in line or "http" in line for line in final)
    assert final.index("USER 10001") < final.index('ENTRYPOINT ["collhub"]')
    assert not any(line.startswith("ADD") for line in lines)
    for line in build:
        if line.startswith("COPY"):
            assert all((ROOT / source).exists() for source in line.split()[1:-1]), line
    # Packages contain links to folders of the repository, which are copied too.
    copied = {
        ROOT / source for line in build if line.startswith("COPY") for source in line.split()[1:-1]
    }
    linked = [path for path in ROOT.glob("plugins/*/src/*/*") if path.is_symlink()]
    assert linked
    for path in linked:
        assert copied & {path.resolve(), *path.resolve().parents}, path


def find_commands(document: str) -> list[str]:
    blocks = re.findall(r"```console\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)
    return [line[2:] for block in blocks for line in block.splitlines() if line.startswith("$ ")]


def test_commands_of_contributing_name_what_exists() -> None:
    commands = find_commands("CONTRIBUTING.md")
    assert len(commands) >= 8
    for command in commands:
        words = [word for part in command.split("&&") for word in shlex.split(part)]
        assert words[0] in ("python", "ruff", "ln"), command
        # The targets of links, which are relative to the link, and the environment are no files.
        for word in words:
            if "/" in word and not word.startswith((".venv", "../", "hub_core/")):
                assert (ROOT / word).exists(), command
    environments = re.findall(r"tox -e (\w+)", (ROOT / "CONTRIBUTING.md").read_text())
    tox = (ROOT / "tox.ini").read_text()
    assert len(environments) >= 5
    assert all(f"[testenv:{name}]" in tox for name in environments)


@pytest.mark.slow
def test_the_tests_that_contributing_runs_are_collected() -> None:
    for command in find_commands("CONTRIBUTING.md"):
        if command.startswith("python -m pytest"):
            words = [*shlex.split(command)[3:], "--collect-only"]
            done = subprocess.run(
                [sys.executable, "-m", "pytest", *words],
                cwd=ROOT,
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, done.stdout


def test_links_of_contributing_lead_somewhere() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", text)
    targets += re.findall(r"`((?:tests|docs|hub_core|conformance)/[\w./]+)`", text)
    assert [target for target in targets if not (ROOT / target).exists()] == []


def test_issue_forms_have_identified_fields() -> None:
    forms = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
    assert [form.name for form in forms] == ["bug.yml", "config.yml", "format.yml"]
    for form in forms:
        content = load_yaml(form.relative_to(ROOT).as_posix())
        if form.name == "config.yml":
            continue
        assert content["name"]
        assert content["description"]
        identifiers = [field["id"] for field in content["body"]]
        assert len(set(identifiers)) == len(identifiers) > 0
        assert all(field["attributes"]["label"] for field in content["body"])


def test_the_changelog_states_the_required_actions_of_every_version() -> None:
    for file in (ROOT / "CHANGELOG.md", *sorted(ROOT.glob("plugins/*/CHANGELOG.md"))):
        sections = re.split(r"^## ", file.read_text(), flags=re.M)[1:]
        assert sections[0].startswith(__version__), file
        for section in sections:
            assert re.match(r"[^\n]*\n\nRequired actions:", section), file
