"""The page's program in the package is the result of the build of its sources."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from page_samples import PAGE_FOLDER

SOURCES = Path(__file__).parents[2] / "viewer"


def node() -> str:
    """Path of node; skips if node or the tools of the page's sources are absent."""
    program = shutil.which("node")
    if program is None:
        pytest.skip("node is absent")
    if not (SOURCES / "node_modules/esbuild").is_dir():
        pytest.skip("run 'npm ci' in plugins/study/viewer for the tools of the page")
    return program


def test_the_package_contains_the_built_program(tmp_path: Path) -> None:
    subprocess.run([node(), SOURCES / "build.js", tmp_path], check=True, timeout=60)
    for name in ("viewer.js", "viewer.css"):
        built = (tmp_path / name).read_bytes()
        assert built == (PAGE_FOLDER / name).read_bytes(), f"run 'npm run build' for {name}"


@pytest.mark.slow
def test_the_sources_pass_the_type_checker() -> None:
    compiler = SOURCES / "node_modules/typescript/bin/tsc"
    program = node()
    if not compiler.is_file():
        pytest.skip("run 'npm ci' in plugins/study/viewer for the type checker")
    result = subprocess.run(
        [program, compiler, "--noEmit", "-p", SOURCES],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout


def test_the_program_can_be_inlined() -> None:
    assert "</script" not in (PAGE_FOLDER / "viewer.js").read_text().lower()
    assert "</style" not in (PAGE_FOLDER / "viewer.css").read_text().lower()
