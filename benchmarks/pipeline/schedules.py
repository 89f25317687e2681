"""Compare the schedules of a pipeline: makespans, bubbles, peaks, closed forms and the bound.

    python benchmarks/pipeline/schedules.py [--sets 1000] [--quick]

First the schedules side by side for three sets of times, with the search under the memory of each.
Then the orders of PyTorch's five generators, read from their own CSV if PyTorch is installed, with
the search in the memory of each order; exits with 1 if a search is slower. Then random rational
parameter sets, on which closed forms have to hold inside their ranges and no schedule may be below
its bound. At the end the CPU seconds of one search. `--quick`: only the smallest pipeline.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from dataclasses import replace
from fractions import Fraction

from collhub_pipeline.bounds import closed_form, compute_lower_bound
from collhub_pipeline.named_schedules import (
    eager_warmups,
    gpipe_warmups,
    in_turns,
    one_forward_one_backward_warmups,
)
from collhub_pipeline.schedule_csv import read_schedule
from collhub_pipeline.search import (
    PipelineShape,
    compute_search_bound,
    fastest,
    schedule_of,
)
from collhub_pipeline.timing import PassTimes, Schedule, timed

_WARMUPS = {
    "gpipe": gpipe_warmups,
    "1f1b": one_forward_one_backward_warmups,
    "eager-1f1b": eager_warmups,
}
_NAMES = (
    *("gpipe", "1f1b", "eager-1f1b", "zb-h1", "zb-h2", "two-directions"),
    *("looped-bfs", "interleaved", "interleaved-zb", "zbv", "dualpipe-v"),
    *("v-half", "v-min", "hanayo"),
)
_OF_PYTORCH = {
    "looped-bfs": "ScheduleLoopedBFS",
    "interleaved": "ScheduleInterleaved1F1B",
    "interleaved-zb": "ScheduleInterleavedZeroBubble",
    "zbv": "ScheduleZBVZeroBubble",
    "dualpipe-v": "ScheduleDualPipeV",
}
_LOOPS = ("looped-bfs", "interleaved", "interleaved-zb")


def main() -> None:
    """Print the tables; exit with 1 where a closed form or a bound does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sets", type=int, default=1000)
    parser.add_argument("--quick", action="store_true")
    asked = parser.parse_args()
    print(f"{'t_f,t_b,t_w,c':14}{'schedule':16}{'makespan':>9}{'bubble':>8}{'peak':>6}{'bound':>7}")
    size = (4, 8) if asked.quick else (8, 32)
    for times in ((1, 1, 1, 0), (2, 2, 1, 1), (3, 4, 2, 1)):
        _print_schedules(PipelineShape(*size, PassTimes(*times)))
    sizes = ((4, 8),) if asked.quick else ((4, 8), (8, 16), (8, 32))
    slower = sum(_compare_with_pytorch(*size) for size in sizes)
    wrong = slower + sum(_disagreements(random.Random(seed)) for seed in range(asked.sets))
    print(f"{asked.sets} random parameter sets: {wrong - slower} disagree")
    before = time.process_time()
    shape = PipelineShape(*((4, 8) if asked.quick else (8, 64)), PassTimes(3, 4, 2, 1))
    fastest(shape)
    spent = time.process_time() - before
    print(f"search of {shape.devices} devices, {shape.micros} micro-batches: {spent:.1f} s of CPU")
    sys.exit(bool(wrong))


def _print_schedules(shape: PipelineShape) -> None:
    said = ",".join(str(one) for one in _parts(shape.times))
    for name in _NAMES:
        sized = replace(shape, chunks=2) if name in _LOOPS else shape
        _print_row(said, name, sized, schedule_of(name, sized))
    for memory in (shape.devices // 2, shape.devices, 2 * shape.devices - 1):
        limited = replace(shape, memory=memory)
        _print_row(said, f"search <= {memory}", limited, fastest(limited))


def _compare_with_pytorch(devices: int, micros: int) -> int:
    """Print PyTorch's orders beside the search in their memory; return how many are faster."""
    slower = 0
    print(f"{devices} devices, {micros} micro-batches, 2 chunks a device")
    print(f"{'t_f,t_b,t_w':12}{'order':16}{'read from':>11}{'peak':>6}{'makespan':>10}", end="")
    print(f"{'search':>9}{'bound':>8}{'ratio':>7}")
    for times in ((1, 1, 1), (2, 2, 1), (5, 6, 4), (1, 2, 2)):
        shape = PipelineShape(devices, micros, PassTimes(*times))
        for name, class_name in _OF_PYTORCH.items():
            sized = replace(shape, chunks=2)
            schedule, source = _read_pytorch(class_name, devices, micros), "PyTorch"
            if schedule is None:
                schedule, source = schedule_of(name, sized), "hub"
            peak = max(sized.peaks(schedule))
            limited = replace(sized, memory=peak)
            theirs, ours = sized.measure(schedule), limited.measure(fastest(limited))
            slower += ours > theirs
            said = ",".join(map(str, times))
            print(
                f"{said:12}{name:16}{source:>11}{float(peak):>6g}{float(theirs):>10g}"
                f"{float(ours):>9g}{float(compute_search_bound(limited)):>8g}"
                f"{float(Fraction(theirs) / ours):>7.3f}"
            )
    return slower


def _read_pytorch(class_name: str, devices: int, micros: int) -> Schedule | None:
    """Read the order of a generator of PyTorch from its CSV; None without PyTorch.

    The generators need a process group of all ranks; here only their rule is called.
    """
    try:
        from torch.distributed.pipelining import schedules
    except ImportError:
        return None
    generator = object.__new__(getattr(schedules, class_name))
    generator.pp_group_size, generator.n_local_stages = devices, 2
    generator._n_microbatches, generator._stages = micros, [None] * 2
    generator.number_of_rounds = max(1, micros // devices)
    generator.microbatches_per_round = micros // generator.number_of_rounds
    generator.num_stages = generator._num_stages = 2 * devices
    rows = []
    for rank in range(devices):
        generator.rank = rank
        cells = generator._calculate_single_rank_operations(rank)
        rows.append(",".join("" if cell is None else str(cell) for cell in cells))
    return read_schedule("\n".join(rows), class_name)


def _parts(times: PassTimes) -> tuple[object, ...]:
    return times.forward, times.input_gradient, times.weight_gradient, times.transfer


def _print_row(said: str, name: str, shape: PipelineShape, schedule: Schedule) -> None:
    timing = shape.timed(schedule)
    stated = ""
    if len(schedule.device_of) == 1:
        is_search = name.startswith("search")
        value = compute_search_bound(shape) if is_search else None
        stated = f"{float(value or shape.compute_bounds(schedule.device_of[0]).value):g}"
    print(
        f"{said:14}{name:16}{float(timing.makespan):>9g}{float(timing.bubble()):>8g}"
        f"{float(max(shape.peaks(schedule))):>6g}{stated:>7}"
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
