"""Choice of the fastest packing and chunks, and candidate schedules for networks with switches.

A schedule orders the messages of each link, but not those that meet inside a switch. Its planned
time is therefore only an estimate on such networks, and every candidate is simulated. A message
that arrives later than planned delays the messages queued behind it on its link, and those delay
others in turn. Three variants of a schedule are tried against this:

- with the planned order of messages on each link;
- without that order: a message is sent as soon as its data has arrived;
- if both take longer than planned, with slack: data waits at an NPU before it is forwarded, so
  that late arrivals do not delay the next message.

Plans have the nominal rates of links. Planned times and bandwidth times are scaled to those of a
simulator with lower rates (`SimulatorPace`) before they are compared with simulated times.

Coarse schedules (few chunks) of all packings come first. The most promising are then refined: more
chunks shorten the time in which the pipelines fill.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush

import numpy as np

from collhub_blink.packing.packings import PlacedPacking
from collhub_blink.packing.task import PackingTask
from collhub_blink.scheduling.schedules import (
    MIN_GAIN_OF_DOUBLING,
    PackingSchedule,
    TimedSchedule,
    TimeEvaluator,
    bandwidth_time_ns,
    build_coarse_schedule,
    build_schedule,
    build_schedule_by_rounds,
    build_schedule_with_half_the_chunks,
    estimate_fine_grained_time_ns,
    find_schedule,
    maximum_chunks,
    planned_time_ns,
    remove_link_order,
)
from hub_core.model import CollectiveKind
from hub_core.schedules import fastest_of

# Lower bound of planned times, relative to bandwidth times: plans round times of messages to ps.
_MIN_PLANNED_OVER_BANDWIDTH_TIME = 0.98
# Simulated time over planned time up to which a schedule counts as free of contention.
_MAX_SLOWDOWN = 1.004
# Time to fill the pipelines, relative to the bandwidth time, below which a packing gets no more
# chunks. The first is relative to the best possible rate and applies to schedules that take
# seconds to simulate; the second is relative to the packing's own rate and applies to all.
_FILL_OVERHEAD_AT_BEST_RATE = 6.5e-3
_FILL_OVERHEAD_AT_OWN_RATE = 4e-3
# Relative gain that a refinement must promise: all users of the algorithm pay for its
# steps. Simulating many messages takes seconds, so the gain must be larger there.
_MIN_RELATIVE_GAIN = 1e-3
_MIN_RELATIVE_GAIN_IF_SLOW = 3e-3
# A refinement multiplies the chunks by at most this factor, and the packing is refined again only
# if it achieves this fraction of the predicted gain.
_MAX_REFINEMENT_FACTOR = 4
_MIN_ACHIEVED_FRACTION = 0.5
# Amounts of slack tried per refinement, unless it takes seconds to simulate.
_MAX_SLACK_TRIALS = 3


def generate_candidates(
    task: PackingTask,
    packings: Sequence[PlacedPacking],
    evaluate_time_ns: TimeEvaluator,
) -> Iterator[TimedSchedule]:
    """Yield coarse schedules for a network with switches, then refinements with more chunks.

    With a fixed number of chunks (`task.chunks`) there are no refinements. Otherwise the fastest
    coarse schedule of each packing is kept, the first of equal ones. Each round:

    1. Choose the kept schedule with the smallest predicted time after refinement, the first of
       equal ones. Stop if none is kept.
    2. Stop if 1.001 times this prediction is at or above the best time so far. The factor is 1.003
       if the refinement is slow to simulate (`_is_slow_to_simulate`).
    3. Stop if its time with more chunks (`_estimate_limit_ns`) is at or above `task.within_ns`, the
       time of a known algorithm. None is no limit.
    4. Remove it and yield its refinements. Of those that achieve at least half of the predicted
       gain, the fastest is kept.
    """
    fastest: dict[PlacedPacking, TimedSchedule] = {}
    for candidate in _generate_coarse_candidates(task, packings, evaluate_time_ns):
        yield candidate
        _keep_faster(fastest, candidate)
    if task.chunks is not None:
        return
    best_time_ns = min((candidate.time_ns for candidate in fastest.values()), default=0)
    while fastest:
        candidate = min(
            fastest.values(), key=lambda candidate: _predict_refined_time_ns(task, candidate)
        )
        predicted_ns = _predict_refined_time_ns(task, candidate)
        is_slow = _is_slow_to_simulate(task, candidate.packing, _refined_chunks(task, candidate))
        min_gain = _MIN_RELATIVE_GAIN_IF_SLOW if is_slow else _MIN_RELATIVE_GAIN
        # No other packing has a better prediction, so the search ends with this one.
        if predicted_ns * (1 + min_gain) >= best_time_ns:
            return
        if _cannot_beat_known_time(task, candidate):
            return
        del fastest[candidate.packing]
        for refined in _generate_refinements(task, candidate, evaluate_time_ns):
            yield refined
            best_time_ns = min(best_time_ns, refined.time_ns)
            # A smaller gain means contention, which more chunks do not cure.
            if _achieves_predicted_gain(task, candidate, refined.time_ns):
                _keep_faster(fastest, refined)


def _keep_faster(fastest: dict[PlacedPacking, TimedSchedule], candidate: TimedSchedule) -> None:
    """Record a candidate in `fastest` if it is faster than the recorded one of its packing.

    Of equal times the first stays.
    """
    previous = fastest.get(candidate.packing)
    if previous is None or candidate.time_ns < previous.time_ns:
        fastest[candidate.packing] = candidate


def _generate_coarse_candidates(
    task: PackingTask, packings: Sequence[PlacedPacking], evaluate_time_ns: TimeEvaluator
) -> Iterator[TimedSchedule]:
    """Yield the coarse schedules (few chunks) of packings with their times from `evaluate_time_ns`.

    The packings and their order are those of `_generate_coarse_schedules`. Each one gives the
    candidates of `_generate_variants`: with and without an order of messages on links, and with
    slack. The refined time of a schedule is its estimated time with four times the chunks. The
    first packing with a schedule is always evaluated. A later one is skipped if one of these holds:

    - Its planned time is not below the best time so far, and its refined time is not below the best
      refined time so far.
    - `task.within_ns` is given, and its refined time is not below it.

    Planned times are scaled to those of the simulator by `task.pace`, and rounded up to ns. Before
    each evaluated packing, its method and a fraction below 1 are reported to `task.progress`.
    """
    candidates: list[TimedSchedule] = []
    for packing, schedule in _generate_coarse_schedules(task, packings, candidates):
        planned_ns = task.pace.to_simulated_ns(planned_time_ns(schedule))
        planned = TimedSchedule(packing, schedule, math.ceil(planned_ns))
        # The first packing is always evaluated, so that there is a result.
        if candidates and (
            _is_slower_than_best(task, packing, planned.time_ns, candidates)
            or _cannot_beat_known_time(task, planned)
        ):
            continue
        # The number of variants is unknown: count each remaining packing as one.
        done = len(candidates) / (len(candidates) + len(packings))
        task.progress(done, packing.method)
        for candidate in _generate_variants(task, packing, schedule, evaluate_time_ns):
            candidates.append(candidate)
            yield candidate


def _is_slower_than_best(
    task: PackingTask, packing: PlacedPacking, time_ns: float, candidates: Sequence[TimedSchedule]
) -> bool:
    """Return whether a packing that takes `time_ns` is no faster than the `candidates`.

    True if two conditions hold: its time is not below the best time of the candidates, and
    its estimated time with four times the chunks (`_estimate_limit_ns`) is not below the
    best such estimate of the candidates. The second one is needed because deep trees gain
    more from refinement and may overtake flat ones. At least one candidate is required.
    """
    if time_ns < min(candidate.time_ns for candidate in candidates):
        return False
    best_limit_ns = min(_estimate_limit_ns(task, one.packing, one.time_ns) for one in candidates)
    return _estimate_limit_ns(task, packing, time_ns) >= best_limit_ns


def _generate_coarse_schedules(
    task: PackingTask, packings: Sequence[PlacedPacking], candidates: Sequence[TimedSchedule]
) -> Iterator[tuple[PlacedPacking, PackingSchedule]]:
    """Yield (packing, coarse schedule) for each packing, by ascending planned time.

    Of equal planned times the packing with the lower index is first. A packing is left out in
    these cases:

    - It has no coarse schedule.
    - Its schedule equals a yielded one in planned time and in the sorted starts and finishes of
      all messages.
    - `candidates` is not empty, and the packing is slower than the best of them
      (`_is_slower_than_best`) even at its lower bound, 0.98 times its bandwidth time.

    The caller may append to `candidates` during the iteration. A packing is compared with their
    state after all schedules with an earlier planned time than its lower bound were yielded. It is
    scheduled directly after this comparison.
    """
    # By time and packing: schedules by their planned times, and packings without one yet by lower
    # bounds, so that a schedule is taken when all that may be planned earlier are built.
    waiting: list[tuple[float, int, PackingSchedule | None]] = [
        (_MIN_PLANNED_OVER_BANDWIDTH_TIME * bandwidth_time_ns(task, packing), index, None)
        for index, packing in enumerate(packings)
    ]
    heapify(waiting)
    distinct: list[PackingSchedule] = []
    while waiting:
        least_ns, index, schedule = heappop(waiting)
        if schedule is None:
            if candidates and _is_slower_than_best(task, packings[index], least_ns, candidates):
                continue
            schedule = build_coarse_schedule(task, packings[index])
            if schedule is not None:
                heappush(waiting, (planned_time_ns(schedule), index, schedule))
        # Packings may be equal but for their method's name or the numbering of NPUs.
        elif not any(_have_equal_times(schedule, known) for known in distinct):
            distinct.append(schedule)
            yield packings[index], schedule


def _have_equal_times(schedule: PackingSchedule, known: PackingSchedule) -> bool:
    """Return whether two schedules have equal planned times in ps, in total and per message.

    True if the total times are equal, the numbers of messages are equal, the sorted starts of
    all messages are equal, and so are the sorted finishes. A start need not belong to the same
    message, and routes are not compared.
    """
    if schedule.pipeline.time_ps != known.pipeline.time_ps:
        return False
    messages, known_messages = schedule.pipeline.transfers, known.pipeline.transfers
    return (
        len(messages) == len(known_messages)
        and np.array_equal(np.sort(messages.start), np.sort(known_messages.start))
        and np.array_equal(np.sort(messages.finish), np.sort(known_messages.finish))
    )


def _generate_variants(
    task: PackingTask,
    packing: PlacedPacking,
    schedule: PackingSchedule,
    evaluate_time_ns: TimeEvaluator,
) -> Iterator[TimedSchedule]:
    """Yield timed variants of a schedule: as given, without link order, then with slack.

    `schedule` has a link order: the messages of each link are sent in the planned order. The first
    two variants are both evaluated before the first one is yielded. Then up to two schedules
    follow, with the same number of chunks, the link order and a slack of 1, then 2 rounds divided
    by the depth of the packing. Before each of them, the iteration ends if the best time of the
    variants so far is at most 1.004 times the planned time of `schedule`, scaled by `task.pace`:
    contention then costs little. A slack for which there is no schedule is skipped.
    `evaluate_time_ns` is called once per variant.
    """
    unordered = remove_link_order(schedule)
    # Which of the two is faster depends on the contention at switches.
    candidates = [
        TimedSchedule(packing, variant, evaluate_time_ns(packing, variant))
        for variant in (schedule, unordered)
    ]
    yield from candidates
    best_time_ns = min(candidate.time_ns for candidate in candidates)
    for slack in (1 / packing.depth, 2 / packing.depth):
        planned_ns = task.pace.to_simulated_ns(planned_time_ns(schedule))
        if best_time_ns <= _MAX_SLOWDOWN * planned_ns:
            return
        slackened = build_schedule(task, packing, schedule.chunks, slack)
        if slackened is not None:
            time_ns = evaluate_time_ns(packing, slackened)
            yield TimedSchedule(packing, slackened, time_ns)
            best_time_ns = min(best_time_ns, time_ns)


def _generate_refinements(
    task: PackingTask, coarse: TimedSchedule, evaluate_time_ns: TimeEvaluator
) -> Iterator[TimedSchedule]:
    """Yield schedules with more chunks for the packing of `coarse`, until one is fast enough.

    A time in ns is fast enough if its gain over `coarse` is at least half of the gain that the
    model predicts (`_achieves_predicted_gain`). All schedules have the number of chunks of
    `_refined_chunks`. There are at most 3 trials, and only one if a simulation of so many chunks
    takes seconds (slow). Trial n = 0, 1, 2 has the slack of `coarse` + n / depth of the packing.
    Schedules have a link order; only trial 0 has none if `coarse` has none. Per trial:

    1. If no schedule exists (a chunk would be below one byte), the generator ends.
    2. If simulations are slow, the slack is 0 and the planned time is not fast enough, the
       generator ends.
    3. Otherwise the schedule is yielded with its time by `evaluate_time_ns`, which is called once.
       If this time is fast enough, the generator ends.
    """
    packing, chunks = coarse.packing, _refined_chunks(task, coarse)
    is_slow = _is_slow_to_simulate(task, packing, chunks)
    for trial in range(1 if is_slow else _MAX_SLACK_TRIALS):
        slack = coarse.schedule.slack + trial / packing.depth
        schedule = build_schedule(task, packing, chunks, slack)
        if schedule is None:
            return
        # Do not spend seconds on a schedule whose plan already falls short. The planned
        # time of a schedule with slack is no prediction.
        if (
            is_slow
            and not slack
            and not _achieves_predicted_gain(
                task, coarse, task.pace.to_simulated_ns(planned_time_ns(schedule))
            )
        ):
            return
        # Additional slack needs the link order: only the first trial drops it, as `coarse` did.
        if not coarse.schedule.has_link_order and trial == 0:
            schedule = remove_link_order(schedule)
        refined = TimedSchedule(packing, schedule, evaluate_time_ns(packing, schedule))
        yield refined
        if _achieves_predicted_gain(task, coarse, refined.time_ns):
            return


def _refined_chunks(task: PackingTask, candidate: TimedSchedule) -> int:
    """Return the number of chunks with which a candidate is refined.

    c is the number of chunks of the candidate, T its time, and B the time of its packing by
    bandwidth alone. R is the time by bandwidth at the rate bound of the packing. All times are
    simulated times in ns. The overhead T - B is assumed to be proportional to 1 / chunks. So n(f) =
    c * (T / B - 1) / f chunks, rounded up, have an overhead of at most f * B. The result is the
    larger of two numbers:

    - n(0.4 %) (`_FILL_OVERHEAD_AT_OWN_RATE`), limited to `maximum_chunks` for packings that are
      fast to simulate
    - n(f) with f = 0.65 % (`_FILL_OVERHEAD_AT_BEST_RATE`) + 1 - B / R, but f at least 0.4 %,
      limited to `maximum_chunks`

    Then the result is limited to at most 4 * c (`_MAX_REFINEMENT_FACTOR`), and to at least c.
    """
    packing, chunks = candidate.packing, candidate.schedule.chunks
    bandwidth_ns = _attainable_ns(task, packing)
    best_rate_ns = float(task.collective_bytes * 10**9 / packing.bound.rate)
    best_rate_ns = task.pace.to_simulated_ns(best_rate_ns)
    # A packing below the best rate has already spent that part of the allowed overhead.
    max_overhead = max(
        _FILL_OVERHEAD_AT_BEST_RATE + 1 - bandwidth_ns / best_rate_ns, _FILL_OVERHEAD_AT_OWN_RATE
    )
    # Number of chunks at which filling takes as long as the bandwidth time.
    fill_chunks = chunks * (candidate.time_ns / bandwidth_ns - 1)
    slow_chunks = min(math.ceil(fill_chunks / max_overhead), maximum_chunks(task, packing))
    fast_chunks = min(
        math.ceil(fill_chunks / _FILL_OVERHEAD_AT_OWN_RATE),
        maximum_chunks(task, packing, is_fast_to_simulate=True),
    )
    return max(chunks, min(max(slow_chunks, fast_chunks), _MAX_REFINEMENT_FACTOR * chunks))


def _is_slow_to_simulate(task: PackingTask, packing: PlacedPacking, chunks: int) -> bool:
    """Whether a schedule with `chunks` chunks takes seconds to simulate."""
    return chunks > maximum_chunks(task, packing, is_fast_to_simulate=True)


def _attainable_ns(task: PackingTask, packing: PlacedPacking) -> float:
    """Return the bandwidth time of a packing in ns at the rates of the simulator."""
    return task.pace.to_simulated_ns(bandwidth_time_ns(task, packing))


def _predict_refined_time_ns(task: PackingTask, candidate: TimedSchedule) -> float:
    """Predict the time in ns of a candidate after one refinement.

    The candidate takes T ns with c chunks; refined, it has r chunks (`_refined_chunks`).
    With the bandwidth time B at the rates of the simulator, the result is B + (T - B) * c /
    r: the time above B, which fills the pipelines, is inversely proportional to the chunks.
    Contention is assumed not to grow.
    """
    bandwidth_ns = _attainable_ns(task, candidate.packing)
    chunk_ratio = candidate.schedule.chunks / _refined_chunks(task, candidate)
    return bandwidth_ns + (candidate.time_ns - bandwidth_ns) * chunk_ratio


def _achieves_predicted_gain(
    task: PackingTask, candidate: TimedSchedule, refined_time_ns: float
) -> bool:
    """Return whether a refined schedule gains enough time compared with `candidate`.

    True if the time of `candidate` minus `refined_time_ns` (evaluated, in ns) is at least
    `_MIN_ACHIEVED_FRACTION` of the gain that `_predict_refined_time_ns` predicts.
    """
    predicted_gain_ns = candidate.time_ns - _predict_refined_time_ns(task, candidate)
    return candidate.time_ns - refined_time_ns >= _MIN_ACHIEVED_FRACTION * predicted_gain_ns


def _estimate_limit_ns(task: PackingTask, packing: PlacedPacking, time_ns: float) -> float:
    """Return the estimated shortest time in ns that refining a schedule of `time_ns` can reach."""
    return estimate_fine_grained_time_ns(time_ns, _attainable_ns(task, packing))


def _cannot_beat_known_time(task: PackingTask, candidate: TimedSchedule) -> bool:
    """Return whether even a refined candidate is no faster than a known algorithm.

    True if the time of the candidate after refinement, estimated from its time
    (`_estimate_limit_ns`), is not below `task.within_ns`, the time of the known algorithm.
    False if that is None.
    """
    within_ns = task.within_ns
    if within_ns is None:
        return False
    return _estimate_limit_ns(task, candidate.packing, candidate.time_ns) >= within_ns


# A schedule whose planned time exceeds the best simulated time by this factor is not simulated:
# planned and simulated times do not differ that much.
_MAX_PLANNED_OVER_BEST = 1.3
# Up to this ratio of time to bandwidth time no other number of chunks is tried.
_MAX_TIME_OVER_BANDWIDTH_TIME = 1.02


def find_fastest(
    task: PackingTask,
    packings: Sequence[PlacedPacking],
    evaluate_time_ns: TimeEvaluator,
) -> TimedSchedule | None:
    """Return the fastest schedule of the packings by the evaluator's time.

    The first if times are equal; None if there is too little data for any packing. Ctrl-C ends the
    search with the best schedule so far, and is raised again without one.
    """
    if task.budget.is_interrupted:
        # Ctrl-C has ended a proof: only the first packing is searched.
        packings = packings[:1]
    if task.network.is_switchless:
        candidates = _generate_candidates_without_switches(task, packings, evaluate_time_ns)
    else:
        candidates = generate_candidates(task, packings, evaluate_time_ns)
    return fastest_of(candidates, lambda candidate: candidate.time_ns)


def _generate_candidates_without_switches(
    task: PackingTask,
    packings: Sequence[PlacedPacking],
    evaluate_time_ns: TimeEvaluator,
) -> Iterator[TimedSchedule]:
    """Yield schedules of the packings that may beat the best time so far, with their times.

    The packings are visited in the given order. The best time is the smallest evaluated time of
    all yielded schedules, infinite before the first one. A packing is skipped if one of these
    holds:

    - Its bandwidth time is not below the best time.
    - `find_schedule` returns None.
    - Its planned time exceeds `_MAX_PLANNED_OVER_BEST` (1.3) times the best time.

    For any other packing, the schedules of `_generate_halved_schedules` are yielded, even if
    they turn out slower. Before each packing, its position divided by their number and its
    method are reported to `task.progress`. Errors of `find_schedule` pass through.
    """
    best_ns = math.inf
    for position, packing in enumerate(packings):
        task.progress(position / len(packings), packing.method)
        if bandwidth_time_ns(task, packing) >= best_ns:
            continue
        schedule = find_schedule(task, packing)
        if schedule is None or planned_time_ns(schedule) > _MAX_PLANNED_OVER_BEST * best_ns:
            continue
        for candidate in _generate_halved_schedules(task, packing, schedule, evaluate_time_ns):
            best_ns = min(best_ns, candidate.time_ns)
            yield candidate


def _generate_halved_schedules(
    task: PackingTask,
    packing: PlacedPacking,
    schedule: PackingSchedule,
    evaluate_time_ns: TimeEvaluator,
) -> Iterator[TimedSchedule]:
    """Yield `schedule` with its time; for an all-reduce, also alternatives that may be faster.

    Times come from `evaluate_time_ns`, in ns. Alternatives are yielded only for an all-reduce, and
    only if the task does not request a number of chunks. The current schedule is the fastest one so
    far, at first `schedule`. It is late if its time exceeds 1 + `MIN_GAIN_OF_DOUBLING` times its
    planned time.

    1. If `schedule` is late and its messages have deadlines, it is yielded again in the form in
       which earlier chunks always go first.
    2. Then schedules with half the chunks of the current one (rounded down) are yielded, one after
       the other.

    Step 2 ends before a schedule if the time of the current one is at most
    `_MAX_TIME_OVER_BANDWIDTH_TIME` (1.02) times the bandwidth time of the packing. It also ends if
    the current one is not late, if it has one chunk, or if a chunk would be below one byte. It ends
    after the first schedule that is not faster than the current one.
    """
    best_time_ns = evaluate_time_ns(packing, schedule)
    yield TimedSchedule(packing, schedule, best_time_ns)
    is_bidirectional = task.collective.kind is CollectiveKind.ALL_REDUCE
    if not is_bidirectional or task.chunks is not None:
        return
    # Messages that should arrive just in time may be late if their order differs from the plan.
    if best_time_ns > (1 + MIN_GAIN_OF_DOUBLING) * planned_time_ns(schedule):
        by_rounds = build_schedule_by_rounds(task, packing, schedule)
        if by_rounds is not None:
            time_ns = evaluate_time_ns(packing, by_rounds)
            yield TimedSchedule(packing, by_rounds, time_ns)
            if time_ns < best_time_ns:
                schedule, best_time_ns = by_rounds, time_ns
    while best_time_ns > _MAX_TIME_OVER_BANDWIDTH_TIME * bandwidth_time_ns(task, packing):
        # By the plan fewer chunks are slower: they help only if the evaluated time exceeds the
        # plan.
        if best_time_ns <= (1 + MIN_GAIN_OF_DOUBLING) * planned_time_ns(schedule):
            return
        halved_schedule = build_schedule_with_half_the_chunks(task, packing, schedule)
        if halved_schedule is None:
            return
        time_ns = evaluate_time_ns(packing, halved_schedule)
        yield TimedSchedule(packing, halved_schedule, time_ns)
        if time_ns >= best_time_ns:
            return
        schedule, best_time_ns = halved_schedule, time_ns
