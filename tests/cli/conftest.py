"""Run the program inside the test process, as fast as a function call."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from hub_core.cli.main import main


@dataclass(frozen=True)
class Run:
    """What one run of the program left: exit code and the two streams."""

    code: int
    out: str
    err: str

    @property
    def error_lines(self) -> list[str]:
        return [line for line in self.err.splitlines() if line.startswith("error: ")]


Collhub = Callable[..., Run]


@pytest.fixture
def collhub(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Collhub:
    """`collhub(*arguments, stdin=b"")`: run `main` and return code, stdout, stderr."""

    def run(*arguments: object, stdin: bytes = b"") -> Run:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capfd.readouterr()
        code = main([str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        return Run(code, out, err)

    return run
