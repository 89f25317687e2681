"""Lines that `collhub tune` writes for NCCL's tuner, against public measurements of one node.

`python benchmarks/machines/tuned_lines.py [measured.json]` tunes the collectives of one node of
every machine with a profile, and looks up the line of each measured size of the same GPUs. Profiles
without points of their GPU have 0 sizes. A line contradicts a
measurement if it names another algorithm than NCCL chooses itself and the machine's model predicts
a longer time for it than was measured, beyond the held-out error. It prints the numbers of sizes,
of lines with another algorithm than NCCL's, of contradictions, and of trees on one node: both of
the last columns must be 0.
"""

from __future__ import annotations

import contextlib
import io
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from collhub_machine_profiles import find_profile
from collhub_machine_profiles.gpus import known_gpu
from collhub_machine_profiles.nccl_baseline import (
    communicator_of_topology,
    expected_time_of_choice_us,
)
from collhub_machine_profiles.nccl_choice import cheapest_alternative, launch_of
from collhub_machine_profiles.nccl_costs import list_alternatives
from collhub_nccl.tuner.read import read_rules
from collhub_nccl.tuner.rules import TunerRule

import hub_core
from hub_core.cli.main import main as collhub
from hub_core.plugin_api import Measurement

CORPUS = Path(__file__).resolve().parents[2].parent / "shared/corpus/measured/measured.json"
TOPOLOGIES = (
    *("dgx-a100", "dgx-h100", "dgx-h200", "dgx-b200", "dgx-b300", "gb200", "gb300", "p4de", "p5"),
    *("p6-b200", "gh200-slingshot", "l40s", "rtx-pro-6000"),
)
COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter")
ALGORITHMS = ("ring", "double-binary-tree", "direct", "recursive-doubling")
TOLERANCE = 0.1


@dataclass(frozen=True, slots=True)
class JudgedLine:
    """The line that serves a measured call, None without one.

    `predicted_us` is None for NCCL's own algorithm.
    """

    point: Measurement
    rule: TunerRule | None
    predicted_us: float | None

    @property
    def contradicts(self) -> bool:
        """Whether the line is slower than the measurement, beyond the tolerance."""
        limit_us = self.point.time_us * (1 + TOLERANCE)
        return self.predicted_us is not None and self.predicted_us > limit_us


def tune_lines(topology: str) -> list[TunerRule]:
    """Return the rules that `collhub tune` writes for a topology.

    Empty if every size keeps the library's choice. Raises `SystemExit` on errors.
    """
    with tempfile.TemporaryDirectory() as folder:
        arguments = ["tune", "--topology", topology, "--size", "1KiB..256MiB", "--no-cache"]
        arguments += [word for kind in COLLECTIVES for word in ("--collective", kind)]
        arguments += [word for name in ALGORITHMS for word in ("--with", name)]
        arguments += ["-o", f"{folder}/tuned", "--to", "nccl-tuner"]
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            status = collhub(arguments)
        if status:
            raise SystemExit(f"{topology}: {printed.getvalue()}")
        file = Path(folder) / "tuned" / "nccl-tuner" / "nccl_tuner.conf"
        if not file.exists():
            return []
        rules, findings = read_rules(file.read_bytes(), file.name)
        assert not findings, findings
        return rules


def judge_lines(topology: str, points: list[Measurement]) -> Iterator[JudgedLine]:
    """Yield the line of every measured call of all GPUs of a topology.

    Without a line, the library's own choice stays. Machines whose channels are unknown have no
    predictions, so that only trees count there.
    """
    network = hub_core.parse_topology(topology)
    profile, communicator = find_profile(network), communicator_of_topology(network)
    assert profile is not None
    rules = tune_lines(topology)
    for point in points:
        gpu = known_gpu(point.machine)
        if gpu is None or gpu.name != profile.gpu or point.collective not in COLLECTIVES:
            continue
        if (point.ranks, point.nodes) != (network.num_npus, 1) or point.library.variant:
            continue
        rule = next(
            (
                rule
                for rule in rules
                if str(rule.kind) == point.collective
                and rule.fits(1, point.ranks)
                and rule.sizes[0] <= point.size_bytes <= rule.sizes[1]
            ),
            None,
        )
        if rule is None or communicator is None:
            yield JudgedLine(point, rule, None)
            continue
        own = cheapest_alternative(communicator, point.collective, point.size_bytes)
        predicted_us = None
        if rule.algorithm != own.algorithm:
            (alternative,) = (
                one
                for one in list_alternatives(communicator, point.collective)
                if (one.algorithm, one.protocol) == (rule.algorithm, rule.protocol)
            )
            choice = launch_of(communicator, point.collective, alternative, point.size_bytes)
            predicted_us = expected_time_of_choice_us(
                profile, communicator, point.collective, point.size_bytes, choice
            )
        yield JudgedLine(point, rule, predicted_us)


def count_failures(points: list[Measurement]) -> tuple[int, int]:
    """Print one row per topology; return the numbers of looked-up sizes and of failures.

    A failure is a line that contradicts a measurement, or a tree on one node.
    """
    print(
        f"{'topology':<16} {'sizes':>6} {'other algorithm':>16} {'contradicted':>13} {'trees':>6}"
    )
    looked_up = failures = 0
    for topology in TOPOLOGIES:
        lines = list(judge_lines(topology, points))
        others = sum(line.predicted_us is not None for line in lines)
        contradicted = [line for line in lines if line.contradicts]
        trees = sum(line.rule is not None and line.rule.algorithm == "tree" for line in lines)
        row = (len(lines), others, len(contradicted), trees)
        print(f"{topology:<16} {row[0]:>6} {row[1]:>16} {row[2]:>13} {row[3]:>6}")
        for line in contradicted:
            point = line.point
            assert line.rule is not None
            print(
                f"  {point.collective} {point.size_bytes}: measured {point.time_us:.1f} us,"
                f" {line.rule.by} {line.predicted_us:.1f} us"
            )
        looked_up += len(lines)
        failures += len(contradicted) + trees
    return looked_up, failures


def main() -> None:
    """Print one row per topology; exit 1 if a line contradicts a measurement."""
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else CORPUS
    points = list(hub_core.read_measurements([str(path)]).points)
    raise SystemExit(int(count_failures(points)[1] > 0))


if __name__ == "__main__":
    main()
