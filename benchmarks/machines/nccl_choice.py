"""NCCL's predicted choices against public measurements on one NVLink node.

`python benchmarks/machines/nccl_choice.py [measured.json]` computes for every point the time of
each algorithm and protocol by the model of the machine's shipped profile. A choice is confirmed if
the time of NCCL's predicted choice is nearest to the measured one, or within 5 % of the nearest. It
prints confirmed choices by machine and run, and the contradicted ones. Trees on one node have no
model and are never chosen.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from collhub_machine_profiles import find_profile
from collhub_machine_profiles.gpus import machine_label
from collhub_machine_profiles.nccl_baseline import expected_time_of_choice_us, nccl_version_of
from collhub_machine_profiles.nccl_choice import cheapest_alternative, launch_of
from collhub_machine_profiles.nccl_costs import ALGORITHMS_OF, Communicator, list_alternatives

from hub_core import read_measurements
from hub_core.plugin_api import Measurement

CORPUS = Path(__file__).resolve().parents[2].parent / "shared/corpus/measured/measured.json"
TOLERANCE = 0.05


@dataclass(frozen=True, slots=True)
class JudgedChoice:
    """A predicted choice and the one that fits the measured time best, with |ln| errors."""

    point: Measurement
    predicted: str
    predicted_error: float
    best: str
    best_error: float

    @property
    def is_confirmed(self) -> bool:
        """Whether the predicted choice fits as well as the best one."""
        return self.predicted_error <= self.best_error + TOLERANCE


def judge_choices(points: Sequence[Measurement]) -> Iterator[JudgedChoice]:
    """Yield the choices of all points on one node that the model of a shipped profile covers."""
    for point in points:
        profile = find_profile(point.machine)
        gpu = None if profile is None else profile.known_gpu
        is_own_choice = point.library.name == "NCCL" and not point.library.variant
        if profile is None or gpu is None or not profile.constants or not is_own_choice:
            continue
        if (
            point.nodes > 1
            or point.ranks > gpu.gpus_per_node
            or point.collective not in ALGORITHMS_OF
        ):
            continue
        version = point.library.version or nccl_version_of(profile)
        communicator = Communicator(gpu, point.ranks, 1, version)
        errors: dict[str, float] = {}
        for alternative in list_alternatives(communicator, point.collective):
            if alternative.refusal:
                continue
            choice = launch_of(communicator, point.collective, alternative, point.size_bytes)
            time_us = expected_time_of_choice_us(
                profile, communicator, point.collective, point.size_bytes, choice
            )
            if time_us is not None:
                name = f"{choice.algorithm} {choice.protocol}"
                errors[name] = abs(math.log(time_us / point.time_us))
        predicted = cheapest_alternative(communicator, point.collective, point.size_bytes)
        name = f"{predicted.algorithm} {predicted.protocol}"
        best = min(errors, key=lambda one: errors[one])
        yield JudgedChoice(point, name, errors[name], best, errors[best])


def main() -> None:
    """Print the numbers by run, and every contradicted choice."""
    file = sys.argv[1] if len(sys.argv) > 1 else str(CORPUS)
    runs: dict[str, list[JudgedChoice]] = {}
    for judged in judge_choices(read_measurements([file]).points):
        label = f"{machine_label(judged.point.machine)} ({judged.point.source})"
        runs.setdefault(label, []).append(judged)
    for label, judged_choices in sorted(runs.items()):
        confirmed = sum(judged.is_confirmed for judged in judged_choices)
        print(f"{label:<80} {confirmed:4} of {len(judged_choices):4} choices confirmed")
        for judged in judged_choices:
            if not judged.is_confirmed:
                point = judged.point
                print(
                    f"    {point.collective} of {point.ranks}, {point.size_bytes} B: predicted"
                    f" {judged.predicted} ({100 * judged.predicted_error:.0f} % off),"
                    f" {judged.best} fits ({100 * judged.best_error:.0f} %)"
                )


if __name__ == "__main__":
    main()
