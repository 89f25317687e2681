"""Run the program inside the test process, as fast as a function call."""

from __future__ import annotations

import importlib.resources
import importlib.util
import io
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from hub_core.cli.main import main
from hub_core.documents import algorithms as document
from hub_core.model.algorithm import Algorithm
from hub_core.testing.samples import ring_all_reduce


@dataclass(frozen=True)
class Run:
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
        schema = json.loads(
            importlib.resources.files("hub_core.schemas").joinpath(f"{name}.json").read_bytes()
        )
        jsonschema.Draft202012Validator.check_schema(schema)
        jsonschema.validate(report, schema)
        return report


@pytest.fixture
def collhub(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Run]:
    """`collhub(*arguments, stdin=b"")`: run `main` and return code, stdout, stderr."""

    def run(*arguments: object, stdin: bytes = b"") -> Run:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capfd.readouterr()
        code = main([str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        return Run(code, out, err)

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


@pytest.fixture
def msccl() -> None:
    """Skip where the plugin is not installed: the core must pass its tests alone."""
    _needs("collhub_msccl")


@pytest.fixture
def simulator() -> None:
    """Skip where the plugin is not installed: the core must pass its tests alone."""
    _needs("collhub_astra_sim")


@pytest.fixture
def machines() -> None:
    """Skip where the plugin is not installed: the core must pass its tests alone."""
    _needs("collhub_topologies")


def _needs(module: str) -> None:
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"the plugin {module} is not installed")


def _save(algorithm: Algorithm, path: Path) -> Path:
    (artifact,) = document.write(algorithm, {}).artifacts
    path.write_bytes(artifact.content())
    return path
