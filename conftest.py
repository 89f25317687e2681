"""Fixtures shared by the tests of the core and of the plugins."""

from __future__ import annotations

import gc
import importlib.resources
import io
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hypothesis
import jsonschema
import pytest

import hub_core
from hub_core.plugin_api import Simulator, Synthesizer
from hub_core.testing import ring_all_reduce

# The machines that run the tests differ in speed and share their cores: no example is too slow.
hypothesis.settings.register_profile("collhub", deadline=None, max_examples=40)
# For a thorough run: COLLHUB_EXAMPLES=many pytest ...
hypothesis.settings.register_profile("many", deadline=None, max_examples=1000)
# For environments that repeat tests: `brief` also limits parameter sets, see below.
hypothesis.settings.register_profile("few", deadline=None, max_examples=20)
hypothesis.settings.register_profile("brief", deadline=None, max_examples=10)
_PROFILE = os.environ.get("COLLHUB_EXAMPLES", "collhub")
hypothesis.settings.load_profile(_PROFILE)

# A shell has its background processes ignore Ctrl-C, and theirs inherit it: tests send it to some.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With `COLLHUB_EXAMPLES=brief`, run test functions with their first and last parameters only.

    The other parameter sets of a function are reported as deselected and removed from
    `items` in place; the order of `items` stays. A test function without parameters runs as
    usual. With any other value of the variable, `items` is unchanged. The variable is read
    when this file is imported.
    """
    if _PROFILE != "brief":
        return
    functions: dict[str, list[pytest.Item]] = {}
    for item in items:
        functions.setdefault(item.nodeid.partition("[")[0], []).append(item)
    kept = {id(case) for cases in functions.values() for case in (cases[0], cases[-1])}
    config.hook.pytest_deselected(items=[item for item in items if id(item) not in kept])
    items[:] = [item for item in items if id(item) in kept]


def pytest_collection_finish() -> None:
    """Collect garbage once, then exempt all existing objects from later garbage collections.

    These are millions of objects of imported modules and collected tests, so every later
    collection takes less time.
    """
    gc.collect()
    gc.freeze()


CORPUS = Path(__file__).resolve().parent.parent / "shared" / "corpus"


@pytest.fixture(scope="session", autouse=True)
def _own_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep what the program remembers of its starts apart from what the user's remembers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture
def comparing() -> None:
    """Skip the test unless the simulator `analytical` and the synthesizer `ring` are installed.

    Tests that compare algorithms request it: otherwise there are no results to compare or to time.
    """
    registry = hub_core.discover()
    if "analytical" not in {found.name for found in registry.all(Simulator)}:
        pytest.skip("the simulator analytical (collhub-astra-sim) is not installed")
    if "ring" not in {found.name for found in registry.all(Synthesizer)}:
        pytest.skip("the synthesizers of collhub-synthesis are not installed")


@pytest.fixture(scope="session")
def corpus() -> Path:
    """Return the path of the folder of real files, `../shared/corpus` of the checkout.

    Skip the requesting test if the folder does not exist.
    """
    if not CORPUS.is_dir():
        pytest.skip("the corpus of real files (../shared/corpus) is not beside this checkout")
    return CORPUS


@dataclass(frozen=True)
class ProgramRun:
    """What one run of the program left: exit code and the two streams."""

    code: int
    out: str
    err: str

    @property
    def error_lines(self) -> list[str]:
        """The errors, one a line."""
        return [line for line in self.err.splitlines() if line.startswith("error: ")]

    def report(self) -> dict[str, Any]:
        """Return the JSON report on the standard output, after validation by its schema.

        Its entry `schema`, such as `collhub/NAME`, names the schema file `NAME.json` of
        `hub_core.schemas`. Raises `ValueError` if the output is no JSON, `KeyError` without a
        `schema`, `FileNotFoundError` for an unknown one, and `jsonschema` errors for an invalid
        report or schema.
        """
        report: dict[str, Any] = json.loads(self.out)
        name = report["schema"].removeprefix("collhub/")
        file = importlib.resources.files("hub_core.schemas").joinpath(f"{name}.json")
        schema = json.loads(file.read_bytes())
        jsonschema.Draft202012Validator.check_schema(schema)
        jsonschema.validate(report, schema)
        return report


@pytest.fixture
def collhub(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., ProgramRun]:
    """Return a function `collhub(*arguments, stdin=b"")` that runs the program in this process.

    Arguments are converted to texts. The result is a `ProgramRun` with the exit code,
    standard output and standard error of this run; output that was captured before is
    discarded. `sys.stdin` has the bytes `stdin` until the end of the test. Exceptions of
    the program are not caught.
    """
    # Imported here: most tests of plugins need no program.
    from hub_core.cli.main import main

    def run(*arguments: object, stdin: bytes = b"") -> ProgramRun:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capfd.readouterr()
        code = main([str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        return ProgramRun(code, out, err)

    return run


@pytest.fixture
def save() -> Callable[[hub_core.Algorithm, Path], Path]:
    """`save(algorithm, path)`: write the canonical JSON document of `algorithm`; returns `path`.

    The format is "json" for every suffix of `path`. Errors of `hub_core.write` are raised.
    """

    def write(algorithm: hub_core.Algorithm, path: Path) -> Path:
        hub_core.write(algorithm, path, format="json")
        return path

    return write


@pytest.fixture
def ring(tmp_path: Path) -> Path:
    """Write a correct ring all-reduce of 4 ranks to `ring.json` and return the path.

    It is a canonical JSON document in `tmp_path`. The algorithm is in place, has one unit per
    rank and 48 steps (see `ring_all_reduce`).
    """
    path = tmp_path / "ring.json"
    hub_core.write(ring_all_reduce(4), path, format="json")
    return path


@pytest.fixture
def racy(ring: Path) -> Path:
    """Return the path of `racy.json`, a copy of the document of fixture `ring` with a data race.

    Step 2 of the copy, a send of rank 0, has no data dependency (`data[2]` is empty).
    Therefore rank 0 does not wait for the sum of step 1 before it sends this sum. The 48
    steps get the source lines 1 to 48 of `ring.xml`. The file is written to the folder of
    `ring`.
    """
    root = json.loads(ring.read_bytes())
    root["steps"]["data"][2] = []
    root["steps"]["source_line"] = list(range(1, 49))
    root["provenance"]["source_name"] = "ring.xml"
    path = ring.with_name("racy.json")
    path.write_text(json.dumps(root))
    return path
