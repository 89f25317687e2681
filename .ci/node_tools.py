"""Install the locked tools of a Node.js project, if npm is available.

    python .ci/node_tools.py FOLDER

Tests of the project that need the tools skip with the reason if they are absent.
"""

from __future__ import annotations

import shutil
import subprocess
import sys


def main() -> None:
    """Run `npm ci` in the folder; without npm, or if it fails, print why the tools are absent."""
    npm = shutil.which("npm")
    if npm is None:
        print("npm is absent: tests of the build of the page are skipped")
        return
    command = [npm, "ci", "--no-audit", "--no-fund", "--silent"]
    if subprocess.run(command, cwd=sys.argv[1], check=False).returncode:
        print("npm ci failed: tests of the build of the page are skipped")


if __name__ == "__main__":
    main()
