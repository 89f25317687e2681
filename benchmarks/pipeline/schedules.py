"""Compare the schedules of a pipeline: makespans, bubbles, peaks, closed forms and the bound.

    python benchmarks/pipeline/schedules.py [--sets 1000]

First the schedules side by side for three sets of times, with the search under the memory of each;
then random rational parameter sets, on which closed forms have to hold inside their ranges and no
schedule may be below its bound; then the CPU seconds of one search.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from fractions import Fraction

from collhub_pipeline.catalogue import (
    Shape,
    bound,
    closed_form,
    compute_lower_bound,
    fastest,
    schedule_of,
)
from collhub_pipeline.orders import (
    eager_warmups,
    gpipe_warmups,
    in_turns,
    one_forward_one_backward_warmups,
)
from collhub_pipeline.timing import PassTimes, Schedule, timed

_WARMUPS = {
    "gpipe": gpipe_warmups,
    "1f1b": one_forward_one_backward_warmups,
    "eager-1f1b": eager_warmups,
}
_NAMES = ("gpipe", "1f1b", "eager-1f1b", "zb-h1", "zb-h2", "two-directions")


def main() -> None:
    """Print the tables; exit with 1 where a closed form or a bound does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sets", type=int, default=1000)
    asked = parser.parse_args()
    print(f"{'t_f,t_b,t_w,c':14}{'schedule':16}{'makespan':>9}{'bubble':>8}{'peak':>6}{'bound':>7}")
    for times in ((1, 1, 1, 0), (2, 2, 1, 1), (3, 4, 2, 1)):
        _print_schedules(Shape(8, 32, PassTimes(*times)))
    wrong = sum(_disagreements(random.Random(seed)) for seed in range(asked.sets))
    print(f"{asked.sets} random parameter sets: {wrong} disagree")
    before = time.process_time()
    fastest(Shape(8, 64, PassTimes(3, 4, 2, 1)))
    print(f"search of 8 stages and 64 micro-batches: {time.process_time() - before:.1f} s of CPU")
    sys.exit(bool(wrong))


def _print_schedules(shape: Shape) -> None:
    said = ",".join(str(one) for one in _parts(shape.times))
    for name in _NAMES:
        schedule = schedule_of(name, shape)
        _print_row(said, name, shape, schedule)
    for memory in (8, 15):
        limited = Shape(shape.devices, shape.micros, shape.times, memory=memory)
        found = fastest(limited)
        _print_row(said, f"search <= {memory}", shape, found)


def _parts(times: PassTimes) -> tuple[object, ...]:
    return times.forward, times.input_gradient, times.weight_gradient, times.transfer


def _print_row(said: str, name: str, shape: Shape, schedule: Schedule) -> None:
    timing = shape.timed(schedule)
    kind = "search" if name.startswith("search") else name
    stated = "" if kind == "two-directions" else str(bound(shape, kind))
    print(
        f"{said:14}{name:16}{timing.makespan!s:>9}{timing.bubble()!s:>8}"
        f"{max(schedule.peaks()):>6}{stated:>7}"
    )


def _disagreements(generator: random.Random) -> int:
    """How many closed forms and bounds do not hold for random exact times."""
    stages, micros = generator.randint(2, 8), generator.randint(1, 40)
    forward, inputs, weights, transfer = (
        Fraction(generator.randint(1, 16), generator.randint(1, 8)) for _ in range(4)
    )
    wrong = 0
    for name, warmups in _WARMUPS.items():
        for is_blocking, delayed in ((True, False), (False, False), (False, True)):
            times = PassTimes(forward, inputs, weights, transfer, is_blocking)
            schedule = in_turns(name, warmups(stages, micros), micros, delayed=delayed)
            makespan = timed(schedule, times).makespan
            stated = closed_form(name, stages, micros, times, delayed=delayed)
            below = makespan < compute_lower_bound(
                stages, micros, times, floating=False, delayed=delayed
            )
            wrong += below or stated not in (None, makespan)
    return wrong


if __name__ == "__main__":
    main()
