"""Build a wheel of every distribution of requirements.txt, and lists of them for pip.

    python .ci/wheels.py FOLDER

`FOLDER/core.txt` names the wheel of the core, `FOLDER/all.txt` all of them.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    """Build anew: a wheel left from another version would be installed beside the new one."""
    folder = Path(sys.argv[1]).resolve()
    shutil.rmtree(folder, ignore_errors=True)
    pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir")
    subprocess.run([*pip, str(folder), "-r", "requirements.txt"], cwd=ROOT, check=True)
    wheels = sorted(folder.glob("*.whl"))
    core = [wheel for wheel in wheels if wheel.name.startswith("collhub-")]
    (folder / "core.txt").write_text("".join(f"{wheel}\n" for wheel in core))
    (folder / "all.txt").write_text("".join(f"{wheel}\n" for wheel in wheels))


if __name__ == "__main__":
    main()
