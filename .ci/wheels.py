"""Build a wheel of every distribution of requirements.txt, and lists of them for pip.

    python .ci/wheels.py FOLDER

`FOLDER/core.txt` names the wheel of the core and those of this repository that it requires,
`FOLDER/all.txt` all of them.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    """Build anew: a wheel left from another version would be installed beside the new one."""
    folder = Path(sys.argv[1]).resolve()
    shutil.rmtree(folder, ignore_errors=True)
    pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps")
    # All are built with the hatchling of this environment: one of their own takes a second each.
    asked = ("--no-build-isolation", "--wheel-dir", str(folder), "-r", "requirements.txt")
    subprocess.run([*pip, *asked], cwd=ROOT, check=True)
    wheels = sorted(folder.glob("*.whl"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    required = [line.partition(">=")[0] for line in project["dependencies"]]
    stems = {name.replace("-", "_") for name in (project["name"], *required)}
    core = [wheel for wheel in wheels if wheel.name.split("-")[0] in stems]
    (folder / "core.txt").write_text("".join(f"{wheel}\n" for wheel in core))
    (folder / "all.txt").write_text("".join(f"{wheel}\n" for wheel in wheels))


if __name__ == "__main__":
    main()
