"""What lies in the working folder is data: no module of it is run, in no process that is started."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

MODULES = ("click", "json", "numpy", "pluggy", "pip", "setuptools", "hub_core", "tomllib", "ctypes")
LIMIT_S = 120


@pytest.fixture
def trap(tmp_path: Path) -> Path:
    """A folder whose modules and packages say in a file that they were run."""
    for name in MODULES:
        for file in (tmp_path / f"{name}.py", tmp_path / name / "__init__.py"):
            file.parent.mkdir(exist_ok=True)
            file.write_text(f"open({str(tmp_path / 'was-run')!r}, 'a').write({name!r})\n")
        (tmp_path / name / "__main__.py").write_text((tmp_path / f"{name}.py").read_text())
    return tmp_path


@pytest.mark.once
@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (("plugins", "list"), 0),
        (("doctor",), 0),
        (("plugins", "check", "core"), 0),
        (("plugins", "new", "zed"), 0),
        (("plugins", "install", "./nothing-here", "--", "--no-index"), 3),
        (("plugins", "install", "collhub", "--", "--no-index", "--no-deps", "-q"), 3),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_no_module_of_the_working_folder_is_run(
    trap: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], status: int
) -> None:
    program = Path(sys.executable).with_name("collhub")
    if not program.is_file():
        pytest.skip("the program is not installed beside this Python")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.chdir(trap)
    command = [program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    ran = trap / "was-run"
    assert not ran.exists(), ran.read_text()
    assert done.returncode == status, done.stdout + done.stderr
