"""Fetch files that some tests need besides Python distributions; the tests skip without them.

    python .ci/test_tools.py nccl FOLDER
    python .ci/test_tools.py node FOLDER

`nccl` downloads the header of the oldest and of the newest supported release of NCCL.
`FOLDER/VERSION/nccl.h` is taken from the wheel of that release (210 and 350 MB), which is deleted
again. Headers that are already there are kept, so that only the first run downloads.

`node` installs the locked tools of the Node.js project in a folder, if npm is available.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

# Raise the second one when a release of NCCL appears.
VERSIONS = ("2.18.1", "2.32.3")
HEADER = "nvidia/nccl/include/nccl.h"


def main() -> None:
    """Run the command that the first argument names on the folder of the second one."""
    commands = {"nccl": fetch_nccl_headers, "node": install_node_tools}
    commands[sys.argv[1]](Path(sys.argv[2]).resolve())


def fetch_nccl_headers(folder: Path) -> None:
    """Write the missing headers; raise `CalledProcessError` if a download fails."""
    for version in VERSIONS:
        target = folder / version / "nccl.h"
        if target.exists():
            continue
        with tempfile.TemporaryDirectory() as place:
            pip = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps")
            wanted = f"nvidia-nccl-cu12=={version}"
            # The platform of the wheels, whatever this machine is: only a text is needed.
            platform = ("--only-binary=:all:", "--platform", "manylinux_2_27_x86_64")
            older = ("--platform", "manylinux1_x86_64")
            command = [*pip, *platform, *older, "--dest", place, wanted]
            subprocess.run(command, check=True)
            (wheel,) = Path(place).glob("*.whl")
            with zipfile.ZipFile(wheel) as archive:
                text = archive.read(HEADER)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(text)


def install_node_tools(folder: Path) -> None:
    """Run `npm ci` in the folder; without npm, or if it fails, print why the tools are absent."""
    npm = shutil.which("npm")
    if npm is None:
        print("npm is absent: tests of the build of the page are skipped")
        return
    command = [npm, "ci", "--no-audit", "--no-fund", "--silent"]
    if subprocess.run(command, cwd=folder, check=False).returncode:
        print("npm ci failed: tests of the build of the page are skipped")


if __name__ == "__main__":
    main()
