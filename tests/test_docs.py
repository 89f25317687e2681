"""The examples of the documents run, and print what the documents say.

In a fenced `console` block, `$ ...` lines are commands and what follows is their output, standard
output and error together; a line `...` stands for any lines, `...` within a line for any text.
`python -m ...` commands, which install things, are left alone. `python` blocks are run as scripts.
All blocks of one document run in order, in one folder.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted(ROOT.glob("plugins/*/README.md")),
    *sorted(ROOT.glob("plugins/*/docs/*.md")),
]
GALLERY = ROOT / "docs" / "gallery.md"
FENCE = re.compile(r"^```(console|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
IMPORT = re.compile(r"^(?:from|import) (hub_core[\w.]*)", re.MULTILINE)
PUBLIC_PACKAGES = {
    "hub_core",
    "hub_core.model",
    "hub_core.network",
    "hub_core.plugin_api",
    "hub_core.testing",
    "hub_core.verification",
    # Shared by the distributions of this repository.
    "hub_core.chakra",
    "hub_core.chakra.trace_records",
    "hub_core.columns",
    "hub_core.sandbox",
    "hub_core.schedules",
    "hub_core.selections",
}
# The modules of the tutorial's own plugin.
EXAMPLE_SOURCES = ROOT / "examples" / "collhub-example" / "src"
# The user guide lists the offers of them all.
PLUGINS = (
    "collhub_astra_sim",
    "collhub_blink",
    "collhub_certificates",
    "collhub_classic",
    "collhub_coconet",
    "collhub_compose",
    "collhub_dask",
    "collhub_diagnosis",
    "collhub_expansion",
    "collhub_fabrics",
    "collhub_flows",
    "collhub_goal",
    "collhub_hlo",
    "collhub_infragraph",
    "collhub_local",
    "collhub_machine_timing",
    "collhub_machines",
    "collhub_mpi",
    "collhub_msccl",
    "collhub_mscclpp",
    "collhub_nccl",
    "collhub_pictures",
    "collhub_pipeline",
    "collhub_pytorch",
    "collhub_reshard",
    "collhub_sccl",
    "collhub_simai",
    "collhub_tacos",
    "collhub_teccl",
    "collhub_topologies",
    "collhub_torch",
    "collhub_tuning",
    "collhub_viewer",
    "collhub_zoo",
    "collhub_jobs",
    "collhub_models",
)


@dataclass(frozen=True)
class Example:
    """A command, or a script, its stated output, and where it stands."""

    language: str
    text: str
    output: str
    line: int


def examples(document: Path) -> list[Example]:
    content = document.read_text()
    found = []
    for fence in FENCE.finditer(content):
        line = content.count("\n", 0, fence.start()) + 1
        if fence[1] == "python":
            found.append(Example("python", fence[2], "...", line))
            continue
        for command in re.split(r"^\$ ", fence[2], flags=re.MULTILINE)[1:]:
            first, _, output = re.sub(r"\\\n *", "", command).partition("\n")
            found.append(Example("console", first, output, line))
    return found


def pattern(output: str) -> re.Pattern[str]:
    lines = [
        "(?:.*\n)*" if line == "..." else re.escape(line).replace(r"\.\.\.", ".*") + "\n"
        for line in output.splitlines()
    ]
    return re.compile("".join(lines) + r"\Z")


def name_of(document: Path) -> str:
    return document.relative_to(ROOT).as_posix()


def run(example: Example, folder: Path) -> str:
    programs = Path(sys.executable).parent
    environment = {
        **os.environ,
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "COLUMNS": "100",
        "PYTHONPATH": os.pathsep.join(
            [str(EXAMPLE_SOURCES), *filter(None, [os.environ.get("PYTHONPATH")])]
        ),
    }
    command = (
        [sys.executable, "-c", example.text]
        if example.language == "python"
        else ["sh", "-c", example.text]
    )
    result = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=300,
        check=False,
    )
    if example.language == "python":
        assert result.returncode == 0, result.stdout.decode()
    return result.stdout.decode()


@pytest.mark.needs_plugins
@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_examples_print_what_the_document_says(document: Path, tmp_path: Path) -> None:
    for module in PLUGINS if document.name != "how-to-add.md" else ():
        pytest.importorskip(module, reason="the documents use all plugins of this repository")
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    if document.name == "profile-v1.md":
        shutil.copytree(ROOT / "conformance", tmp_path / "conformance")
    for example in examples(document):
        if example.text.startswith("python -m "):
            continue
        printed = run(example, tmp_path)
        place = f"{document.name}:{example.line}: {example.text}"
        assert pattern(example.output).match(printed), (
            f"{place}\nprinted\n{printed}\nexpected\n{example.output}"
        )
    if document == GALLERY:
        for picture in sorted((GALLERY.parent / "pictures" / "gallery").iterdir()):
            drawn = (tmp_path / picture.name).read_bytes()
            assert picture.read_bytes() == drawn, f"copy {picture.name} of the test's folder"


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_links_between_documents_lead_somewhere(document: Path) -> None:
    targets = re.findall(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)", document.read_text())
    missing = [target for target in targets if not (document.parent / target).exists()]
    assert missing == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_examples_import_what_is_promised(document: Path) -> None:
    imported = {
        module
        for example in examples(document)
        for module in IMPORT.findall(example.text)
        if example.language == "python"
    }
    assert imported <= PUBLIC_PACKAGES
