"""The tutorial's code is the example's code, and the example passes in a fresh environment as a user installs it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sysconfig
import venv
from pathlib import Path

import pytest
from packaging.version import Version

from hub_core.cli.commands.offer_scaffolds import SCAFFOLDS
from hub_core.installed import installed_version

REPOSITORY = Path(__file__).resolve().parents[1]
TUTORIAL = REPOSITORY / "docs" / "plugin-tutorial.md"
EXAMPLE = REPOSITORY / "examples" / "collhub-example"
MOST_LINES_OF_A_SMALL_PLUGIN = 40
OFFLINE = ("--no-deps", "--no-build-isolation", "--no-index", "--quiet")


def _blocks(language: str) -> list[str]:
    return re.findall(
        rf"^```{language}\n(.*?)^```$", TUTORIAL.read_text(), re.MULTILINE | re.DOTALL
    )


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Python of a new environment that sees the distributions of this one and installs into itself."""
    if (
        Version(installed_version("setuptools") or "0") < Version("77")
        or installed_version("pip") is None
    ):
        pytest.skip(
            "building a distribution without network needs pip and setuptools 77 in this environment"
        )
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    asked = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True,
        text=True,
    )
    # addsitedir, and not the bare path: it also reads the .pth files of editable installations.
    Path(asked.stdout.strip(), "outer.pth").write_text(
        f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
    )
    return python


def _run(*command: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in command], cwd=cwd, capture_output=True, text=True, check=False
    )


def _collhub(python: Path, *arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    return _run(python, "-P", "-m", "hub_core.cli.main", *arguments, cwd=cwd)


@pytest.mark.parametrize("name", ["plugin.py", "options.py", "write.py", "read.py"])
def test_tutorial_shows_the_code_of_the_example(name: str) -> None:
    assert (EXAMPLE / "src" / "collhub_example" / name).read_text() in _blocks("python")


def test_new_plugin_named_example_is_the_example(python: Path, tmp_path: Path) -> None:
    done = _collhub(python, "plugins", "new", "example", "--directory", "made", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    made = {
        path.relative_to(tmp_path / "made").as_posix()
        for path in (tmp_path / "made").rglob("*")
        if path.is_file()
    }
    assert made == {line.split()[0] for line in _blocks("text")[0].splitlines()} | {
        "src/collhub_example/__init__.py",
        "src/collhub_example/py.typed",
    }
    assert all(
        (tmp_path / "made" / name).read_bytes() == (EXAMPLE / name).read_bytes() for name in made
    )


def test_new_plugin_installs_and_passes(python: Path, tmp_path: Path) -> None:
    folder, name = tmp_path / "plugin", "example"
    assert (
        _collhub(python, "plugins", "new", name, "--directory", folder, cwd=tmp_path).returncode
        == 0
    )
    installed = _collhub(python, "plugins", "install", folder, "--", *OFFLINE, cwd=tmp_path)
    assert installed.returncode == 0, installed.stderr
    assert re.search(rf"^{name} +collhub-{name} +0\.1\.0 +loaded$", installed.stdout, re.MULTILINE)
    checked = _collhub(python, "plugins", "check", name, cwd=tmp_path)
    assert (checked.returncode, checked.stdout.splitlines()[-1]) == (
        0,
        f"{name}: 14 passed, 18 skipped",
    ), checked.stdout
    suite = _run(
        python,
        "-m",
        "pytest",
        "-q",
        "--collhub-plugin",
        name,
        "--pyargs",
        "hub_core.testing.suite",
        cwd=tmp_path,
    )
    assert "14 passed, 18 skipped" in suite.stdout, suite.stdout
    own = _run(
        python,
        "-m",
        "pytest",
        "-q",
        "-c",
        "/dev/null",
        "--rootdir",
        folder,
        folder / "tests",
        cwd=tmp_path,
    )
    assert own.returncode == 0, own.stdout


def test_new_plugin_of_all_kinds_installs_and_passes(python: Path, tmp_path: Path) -> None:
    folder, offers = tmp_path / "plugin", ("--offers", ",".join(SCAFFOLDS))
    made = _collhub(
        python, "plugins", "new", "all-kinds", "--directory", folder, *offers, cwd=tmp_path
    )
    assert made.returncode == 0, made.stderr
    installed = _collhub(python, "plugins", "install", folder, "--", *OFFLINE, cwd=tmp_path)
    assert installed.returncode == 0, installed.stderr
    checked = _collhub(python, "plugins", "check", "all-kinds", cwd=tmp_path)
    assert checked.returncode == 0, checked.stdout
    own = _run(python, "-m", "pytest", "-q", "-c", "/dev/null", folder / "tests", cwd=tmp_path)
    assert own.returncode == 0, own.stdout
    shown = _collhub(python, "all-kinds", "all-kinds:4", cwd=tmp_path)
    assert shown.stdout == "NPU  links\n0    3\n1    1\n2    1\n3    1\n"


def test_plugin_that_is_installed_again_is_no_error(python: Path, tmp_path: Path) -> None:
    folder = tmp_path / "made"
    made = _collhub(python, "plugins", "new", "my-steps", "--directory", folder, cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    row = re.compile(r"^my-steps +collhub-my-steps +0\.1\.0 +loaded$", re.MULTILINE)
    # A folder, the same folder, and the name of what is there.
    for target in (folder, folder, "collhub-my-steps"):
        done = _collhub(python, "plugins", "install", target, "--", *OFFLINE, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert row.search(done.stdout), done.stdout
    # A name of two words passes like one of one word.
    checked = _collhub(python, "plugins", "check", "my-steps", cwd=tmp_path)
    assert checked.stdout.splitlines()[-1] == "my-steps: 14 passed, 18 skipped"


def test_plugin_that_stops_every_start_is_named_when_it_is_installed(
    python: Path, tmp_path: Path
) -> None:
    (tmp_path / "collhub_fatal.py").write_text("import ctypes; ctypes.string_at(0)\n")
    project = _blocks("toml")[0].replace("messages", "fatal")
    (tmp_path / "pyproject.toml").write_text(project)
    done = _collhub(python, "plugins", "install", tmp_path, "--", *OFFLINE, cwd=tmp_path)
    assert done.returncode == 3
    assert "its plugin fatal is broken: skipped, since a process that imports it was killed by" in (
        done.stderr
    )
    # The environment is that of the other tests, too.
    removed = _run(python, "-m", "pip", "uninstall", "-qy", "collhub-fatal", cwd=tmp_path)
    assert removed.returncode == 0, removed.stderr


def test_smallest_plugin_of_the_tutorial_installs_and_works(python: Path, tmp_path: Path) -> None:
    folder = tmp_path / "messages"
    folder.mkdir()
    (folder / "collhub_messages.py").write_text(_blocks("python")[0])
    (folder / "pyproject.toml").write_text(_blocks("toml")[0])
    installed = _collhub(python, "plugins", "install", folder, "--", *OFFLINE, cwd=tmp_path)
    assert installed.returncode == 0, installed.stderr
    checked = _collhub(python, "plugins", "check", "messages", cwd=tmp_path)
    assert checked.returncode == 0, checked.stdout
    script = "import hub_core; from hub_core.testing.samples import ring_all_reduce; hub_core.write(ring_all_reduce(3), 'r.csv')"
    assert _run(python, "-c", script, cwd=tmp_path).returncode == 0
    assert (tmp_path / "r.csv").read_text() == "0,1,1\n" * 4 + "1,2,1\n" * 4 + "2,0,1\n" * 4


def test_command_and_topology_text_of_the_tutorial_work(python: Path, tmp_path: Path) -> None:
    folder = tmp_path / "star"
    folder.mkdir()
    (code,) = (block for block in _blocks("python") if block.startswith('"""Stars'))
    assert len(code.splitlines()) <= MOST_LINES_OF_A_SMALL_PLUGIN
    (folder / "collhub_star.py").write_text(code)
    project = _blocks("toml")[0].replace("messages", "star")
    (folder / "pyproject.toml").write_text(project)
    installed = _collhub(python, "plugins", "install", folder, "--", *OFFLINE, cwd=tmp_path)
    assert installed.returncode == 0, installed.stderr
    checked = _collhub(python, "plugins", "check", "star", cwd=tmp_path)
    assert checked.returncode == 0, checked.stdout
    shown = _collhub(python, "degree", "star:4", cwd=tmp_path)
    assert shown.stdout == "NPU  links\n0    3\n1    1\n2    1\n3    1\n"
    listed = _collhub(python, "--help", cwd=tmp_path)
    assert "degree" in listed.stdout
    part = _collhub(python, "degree", "star:8?npus=0-2", cwd=tmp_path)
    assert part.stdout == "NPU  links\n0    2\n1    1\n2    1\n"
    closest = _collhub(python, "degree", "stra:8", cwd=tmp_path)
    assert "did you mean 'star'?" in closest.stderr


def test_distribution_without_a_plugin_is_named(python: Path, tmp_path: Path) -> None:
    shutil.copytree(EXAMPLE, tmp_path / "plain")
    project = tmp_path / "plain" / "pyproject.toml"
    project.write_text(
        project.read_text()
        .replace("collhub.plugins", "other.group")
        .replace("collhub-example", "plain-dist")
    )
    done = _collhub(python, "plugins", "install", tmp_path / "plain", "--", *OFFLINE, cwd=tmp_path)
    assert done.returncode == 3
    assert "is installed, but it added or changed no plugin" in done.stderr


def test_installed_plugin_that_is_broken_is_named(python: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("raise SystemExit(4)\n")
    text = (
        _blocks("toml")[0]
        .replace("collhub_messages", "bad")
        .replace("collhub-messages", "collhub-bad")
        .replace("messages =", "bad =")
    )
    (tmp_path / "pyproject.toml").write_text(text)
    done = _collhub(python, "plugins", "install", tmp_path, "--", *OFFLINE, cwd=tmp_path)
    assert done.returncode == 3
    assert (
        "collhub-bad is installed, but its plugin bad is broken: importing bad: it tried to end the program"
        in done.stderr
    )
