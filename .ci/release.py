"""Build wheels and source archives of all distributions, check, install by name, run the demo.

    python .ci/release.py [--output dist]

Needs build, twine and cyclonedx-python-lib. Every distribution is built from its source archive, as
users build it. A fresh environment gets all third-party distributions in the versions and with the
hashes of `constraints/install.txt`, and `collhub[all]` only from the output folder. Of what is
installed there, `sbom.py` writes the bill of materials, `sbom.json`, and checks the licences.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CORE_VERSION = re.compile(r'__version__ = "([^"]+)"')


def main() -> None:
    """Build, check, install, run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=ROOT / "dist")
    output: Path = parser.parse_args().output.resolve()
    folders = [ROOT, *sorted(path.parent for path in ROOT.glob("*/*/pyproject.toml"))]
    folders = [folder for folder in folders if folder.parent.name != "examples"]
    versions = {name_of(folder): version_of(folder) for folder in folders}
    for folder in folders:
        check_changelog(folder, versions[name_of(folder)])
    shutil.rmtree(output, ignore_errors=True)
    for folder in folders:
        print(f"building {folder.relative_to(ROOT)}", flush=True)
        run(sys.executable, "-m", "build", "--outdir", output, folder)
    check_files(output, versions)
    run(sys.executable, "-m", "twine", "check", "--strict", *sorted(output.iterdir()))
    with tempfile.TemporaryDirectory() as place:
        install_and_run(Path(place), output, versions)
    print(f"{len(versions)} distributions are in {output}")


def name_of(folder: Path) -> str:
    """The name of the distribution in a folder."""
    name: str = project(folder)["name"]
    return name


def version_of(folder: Path) -> str:
    """Its version; the core's stands in its package."""
    stated = project(folder).get("version")
    if stated is not None:
        return str(stated)
    match = CORE_VERSION.search((folder / "hub_core" / "version.py").read_text())
    assert match is not None, "hub_core/version.py states no version"
    return match[1]


def project(folder: Path) -> dict[str, str]:
    """The table `project` of a folder's pyproject.toml."""
    table: dict[str, str] = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    return table


def check_changelog(folder: Path, version: str) -> None:
    """Exit where a distribution does not say what is new in this version."""
    changelog = folder / "CHANGELOG.md"
    if not changelog.is_file() or f"## {version}" not in changelog.read_text():
        sys.exit(f"{changelog.relative_to(ROOT)} has no section '## {version}'")


def check_files(output: Path, versions: dict[str, str]) -> None:
    """Exit unless there are a wheel and a source archive of each distribution, and no more."""
    stems = {f"{name.replace('-', '_')}-{version}" for name, version in versions.items()}
    expected = {f"{stem}.tar.gz" for stem in stems}
    expected |= {f"{stem}-py3-none-any.whl" for stem in stems}
    found = {path.name for path in output.iterdir()}
    if found != expected:
        sys.exit(f"missing {sorted(expected - found)}, unexpected {sorted(found - expected)}")


def install_and_run(place: Path, output: Path, versions: dict[str, str]) -> None:
    """Install all distributions by name into a fresh environment and run the demo there."""
    venv.create(place / "venv", with_pip=True)
    python = place / "venv" / "bin" / "python"
    pip = (python, "-m", "pip", "install", "--quiet")
    # Third-party distributions by their hashes; then, as users do, ours by the extra `all`, only
    # from that folder.
    run(*pip, "--require-hashes", "-r", ROOT / "constraints" / "install.txt")
    constraints = ("--constraint", ROOT / "constraints.txt")
    core = f"collhub[all]=={versions['collhub']}"
    run(*pip, "--no-index", "--find-links", output, *constraints, core)
    run(python, "-m", "pip", "check")
    check_installed(python, versions)
    run(place / "venv" / "bin" / "collhub", "demo", "--output", place / "demo", cwd=place)
    # Last: the output folder holds wheels and source archives only, while they are checked.
    run(sys.executable, ROOT / ".ci" / "sbom.py", python, output, output / "sbom.json")


def check_installed(python: Path, versions: dict[str, str]) -> None:
    """Exit unless all distributions are installed in the versions of this repository."""
    code = "import importlib.metadata as m, sys; print(*map(m.version, sys.argv[1:]))"
    command = [str(python), "-c", code, *versions]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    if listed != list(versions.values()):
        sys.exit(f"installed are {listed}, expected {versions}")


def run(*command: object, cwd: Path = ROOT) -> None:
    """Run a command and stop where it fails."""
    result = subprocess.run([str(word) for word in command], cwd=cwd, check=False)
    if result.returncode:
        sys.exit(f"failed: {' '.join(map(str, command))}")


if __name__ == "__main__":
    main()
