"""Epochs that TE-CCL claims for its schedules beside those that they need when simulated.

    python benchmarks/synthesis/teccl.py SCHEDULE.json ...

What is compared, and on which links, is told in `collhub_teccl.schedules`.
"""

from __future__ import annotations

import sys

from collhub_teccl.schedules import EXTENSION, simulate_epochs

import hub_core


def main() -> None:
    """Print one row a schedule."""
    print(f"{'schedule':44}{'ranks':>6}{'claimed epochs':>16}{'simulated':>11}{'ratio':>7}")
    for path in sys.argv[1:]:
        algorithm = hub_core.read(path)
        claimed = algorithm.extensions[EXTENSION]["epochs"]
        epochs = simulate_epochs(algorithm)
        name = path.rsplit("/", 1)[-1]
        ranks = algorithm.num_ranks
        print(f"{name:44}{ranks:6}{claimed:16}{epochs:11.2f}{epochs / claimed:7.3f}", flush=True)


if __name__ == "__main__":
    main()
