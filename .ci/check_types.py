"""Run `mypy --strict` on the installed packages of all distributions, and on the examples."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def main() -> int:
    """Check all packages in one run, so that what they share is read once."""
    sources = sorted(ROOT.glob("*/*/src/collhub_*"))
    packages = [path.name for path in sources if path.is_dir() and path.suffix == ""]
    packages = ["hub_core", *(name for name in packages if name != "collhub_example")]
    named = [word for package in packages for word in ("-p", package)]
    mypy = (sys.executable, "-m", "mypy", "--strict")
    example = ROOT / "examples" / "collhub-example" / "src" / "collhub_example"
    results = [
        subprocess.run([*mypy, *named], cwd=ROOT, check=False),
        subprocess.run([*mypy, str(example)], cwd=ROOT, check=False),
        subprocess.run([*mypy, str(ROOT / "examples" / "offers")], cwd=ROOT, check=False),
    ]
    return max(result.returncode for result in results)


if __name__ == "__main__":
    sys.exit(main())
