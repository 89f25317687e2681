"""Run the program inside the test process, on small algorithms."""

from __future__ import annotations

import importlib.resources
import io
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import hub_core
from hub_core.cli.main import main
from hub_core.model import Algorithm
from hub_core.testing import ring_all_reduce


@dataclass(frozen=True)
class ProgramRun:
    """What one run of the program left: exit code and the two streams."""

    code: int
    out: str
    err: str

    @property
    def error_lines(self) -> list[str]:
        return [line for line in self.err.splitlines() if line.startswith("error: ")]

    def report(self) -> dict[str, Any]:
        """The JSON on stdout, held against the schema that it names."""
        report: dict[str, Any] = json.loads(self.out)
        name = report["schema"].removeprefix("collhub/")
        text = importlib.resources.files("hub_core.schemas").joinpath(f"{name}.json").read_bytes()
        jsonschema.validate(report, json.loads(text))
        return report


@pytest.fixture
def collhub(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., ProgramRun]:
    """`collhub(*arguments)`: run `main` and return code, stdout, stderr."""

    def run(*arguments: object) -> ProgramRun:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
        capfd.readouterr()
        code = main([str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        return ProgramRun(code, out, err)

    return run


@pytest.fixture
def save() -> Callable[[Algorithm, Path], Path]:
    """`save(algorithm, path)`: write the canonical document."""
    return _save


@pytest.fixture
def ring(tmp_path: Path) -> Path:
    """The canonical document of a correct in-place ring all-reduce of four ranks."""
    return _save(ring_all_reduce(4), tmp_path / "ring.json")


@pytest.fixture
def racy(ring: Path) -> Path:
    """The same ring, whose rank 0 does not wait for the sum that it sends on."""
    root = json.loads(ring.read_bytes())
    root["steps"]["data"][2] = []
    root["steps"]["source_line"] = list(range(1, 49))
    root["provenance"]["source_name"] = "ring.xml"
    path = ring.with_name("racy.json")
    path.write_text(json.dumps(root))
    return path


def _save(algorithm: Algorithm, path: Path) -> Path:
    hub_core.write(algorithm, path, format="json")
    return path
