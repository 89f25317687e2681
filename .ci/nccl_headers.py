"""Download the header of the oldest and of the newest supported release of NCCL.

    python .ci/nccl_headers.py FOLDER

`FOLDER/VERSION/nccl.h` is taken from the wheel of that release (210 and 350 MB), which is deleted
again. Headers that are already there are kept, so that only the first run downloads.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

# Raise the second one when a release of NCCL appears.
VERSIONS = ("2.18.1", "2.32.3")
HEADER = "nvidia/nccl/include/nccl.h"


def main() -> None:
    """Fetch the missing headers."""
    folder = Path(sys.argv[1]).resolve()
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


if __name__ == "__main__":
    main()
