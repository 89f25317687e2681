"""Reading executes a file only if the user names its format, or names it with the suffix .py."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import hub_core
from hub_core.model import HubError
from hub_core.plugin_api import FormatReader, TopologyReader, WorkloadReader
from hub_core.registry.discovery import discover

pytestmark = pytest.mark.needs_plugins

ROOT = Path(__file__).resolve().parents[2]
# Python's audit events of everything that starts a process.
STARTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.exec", "os.posix_spawn", "os.system"}
PROGRAMS = {
    "tensor-program-python": "from collhub_coconet import *\nopen({mark!r}, 'w')\n",
    "mscclpp-program": "from mscclpp.language import *\nopen({mark!r}, 'w')\n",
    "mscclang": "from msccl.language import *\nopen({mark!r}, 'w')\n",
}
NAMES = (
    "x.json",
    "x.xml",
    "x.txt",
    "x",
    "x.py.json",
    "x.0.et",
    "x.goal",
    "x.yaml",
    "x.pt.trace.json",
)

_started: list[str] = []
_is_watching = [False]


def _watch(event: str, arguments: object) -> None:
    if _is_watching[0] and event in STARTS:
        _started.append(event)


sys.addaudithook(_watch)


@contextmanager
def started_processes() -> Iterator[list[str]]:
    """Audit events of processes that are started inside the block."""
    _started.clear()
    _is_watching[0] = True
    try:
        yield _started
    finally:
        _is_watching[0] = False


def test_the_formats_that_execute_are_these() -> None:
    registry = discover()
    kinds = (FormatReader, WorkloadReader, TopologyReader)
    readers = [one for kind in kinds for one in registry.all(kind)]
    found = {one.name for one in readers if getattr(one.offer, "executes_source", False)}
    assert found == set(PROGRAMS)


def test_a_package_that_executes_programs_declares_it() -> None:
    """Whoever calls the process that executes programs offers a reader with `executes_source`."""
    packages = {
        file.relative_to(ROOT).parts[1]
        for file in ROOT.glob("plugins/*/src/**/*.py")
        if "run_program(" in file.read_text("utf-8")
    }
    declaring = {
        file.relative_to(ROOT).parts[1]
        for file in ROOT.glob("plugins/*/src/*/plugin.py")
        if "executes_source=True" in file.read_text("utf-8")
    }
    assert packages == declaring


@pytest.mark.parametrize("language", PROGRAMS)
@pytest.mark.parametrize("name", NAMES)
def test_contents_never_select_a_format_that_executes(
    tmp_path: Path, language: str, name: str
) -> None:
    mark = tmp_path / "executed"
    path = tmp_path / name
    path.write_text(PROGRAMS[language].format(mark=str(mark)))
    for read in (hub_core.read, hub_core.read_workload, hub_core.read_topology):
        with started_processes() as started, pytest.raises(HubError):
            read(path)
        assert started == []
    assert not mark.exists()


@pytest.mark.parametrize("language", PROGRAMS)
def test_standard_input_is_not_executed(
    tmp_path: Path, language: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = tmp_path / "executed"
    content = PROGRAMS[language].format(mark=str(mark)).encode()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
    with started_processes() as started, pytest.raises(HubError):
        hub_core.read("-")
    assert started == []
    assert not mark.exists()


@pytest.mark.parametrize("language", PROGRAMS)
def test_a_folder_with_a_program_is_not_executed(tmp_path: Path, language: str) -> None:
    mark = tmp_path / "executed"
    (tmp_path / "folder").mkdir()
    program = tmp_path / "folder" / "x.py"
    program.write_text(PROGRAMS[language].format(mark=str(mark)))
    with started_processes() as started, pytest.raises(HubError):
        hub_core.read(tmp_path / "folder")
    assert started == []
    assert not mark.exists()


def test_the_named_format_executes_a_file_of_any_name(tmp_path: Path) -> None:
    path = tmp_path / "program.txt"
    path.write_text(
        "from collhub_coconet import LOCAL, ProgramBuilder, all_reduce\n"
        "build = ProgramBuilder('step', N=16)\n"
        "g = build.argument('g', 'float32', 'N', layout=LOCAL)\n"
        "program = build.program(all_reduce(g))\n"
    )
    with started_processes() as started:
        workload = hub_core.read_workload(path, format="tensor-program-python")
    assert workload.num_ranks > 0
    assert started
