"""Combine the searches of the parts of a program into candidates for the whole program.

Times of parts add up, since kernels of one rank run one after another. Equal parts have equal
decisions, so that the number of equal tensors does not change a decision.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from collhub_coconet.lowering.timing import compute_peak_bytes
from collhub_coconet.program.operations import Binding
from collhub_coconet.program.program import Program
from collhub_coconet.search.collective_times import Means
from collhub_coconet.search.cost_models import ProgramTiming
from collhub_coconet.search.explore import Candidate, Exploration, list_part_steps
from collhub_coconet.search.parts import PartClass, ValueOrigin, assemble, exchanged_values
from collhub_coconet.search.simulation import Simulation

# Communications above which a program is not simulated as a whole.
_MAX_SIMULATED = 100


def combine(
    program: Program,
    classes: Sequence[PartClass],
    explorations: Sequence[Exploration],
    bindings: Sequence[Binding],
    simulation: Simulation | None,
) -> tuple[Exploration, str]:
    """Combine the searches of all parts of a program to one result for the entire program.

    `classes`: classes of equal parts; `explorations`: the search of each class; `bindings`: sizes.
    Each result candidate takes one candidate per class. They are, in this order without
    repetitions:

    1. the original parts
    2. for each size: the fastest of every class, then those with the least memory of every class
    3. for each size: the selection of `_descend`, which simulates the entire program; only if
       programs are simulated and parts read values of each other

    Programs are simulated if `simulation` is not None and there are at most 100 communications. If
    it is not so, or one candidate cannot be simulated, all times are sums over the parts. Only
    simulated parts overlap.

    The numbers of expanded and pruned states are summed, and the restrictions are united. The
    result is complete if all searches are. The text gives the origin of the times, and the reason
    if a given `simulation` was not used.
    """
    selections = [[exploration.candidates[0] for exploration in explorations]]
    for size_index in range(len(bindings)):
        selections.append([exploration.fastest(size_index) for exploration in explorations])
        selections.append([each.pareto_front(size_index)[-1] for each in explorations])
    candidates: dict[tuple[int, ...], Candidate] = {}
    simulated: list[Candidate] = []
    num_parts = sum(len(part.copies) for part in classes)
    num_communications = sum(operation.is_communication for operation in program.operations)
    reason = f"{num_communications} communications are too many to simulate at once"
    is_simulated = simulation is not None and num_communications <= _MAX_SIMULATED
    if simulation is not None and is_simulated and exchanged_values(classes):
        for size_index in range(len(bindings)):
            selections.append(
                _descend(program, classes, explorations, bindings, size_index, simulation)
            )
    for selection in selections:
        key = tuple(map(id, selection))
        if key in candidates:
            continue
        programs = [candidate.program for candidate in selection]
        whole, origins = assemble(program, classes, programs)
        candidate = _add_up(whole, origins, classes, selection, bindings)
        candidates[key] = candidate
        if simulation is not None and is_simulated:
            times = _simulate(whole, origins, selection, bindings, simulation)
            if isinstance(times, str):
                is_simulated, reason = False, times
            else:
                timings = [
                    replace(timing, seconds=seconds)
                    for timing, seconds in zip(candidate.timings, times, strict=True)
                ]
                simulated.append(replace(candidate, timings=tuple(timings)))
    exploration = Exploration(
        simulated if is_simulated else list(candidates.values()),
        sum(exploration.expanded for exploration in explorations),
        sum(exploration.pruned for exploration in explorations),
        all(exploration.is_complete for exploration in explorations),
        _unite_restrictions(classes, explorations, is_simulated=is_simulated),
    )
    if is_simulated:
        return exploration, f"simulated as a whole with {num_parts} parts"
    if simulation is None:
        return exploration, f"of {num_parts} parts, added"
    return exploration, f"of {num_parts} parts, added, since {reason}"


def _unite_restrictions(
    classes: Sequence[PartClass], explorations: Sequence[Exploration], *, is_simulated: bool
) -> tuple[str, ...]:
    """Return the restrictions of the search in all parts and in their combination as texts.

    Each text occurs once, in the order of its first occurrence. The restrictions of the
    parts come first, by class. One text follows if a class has several equal parts
    (copies), and one if the program was simulated and has several classes.
    """
    texts = [text for exploration in explorations for text in exploration.restrictions]
    if any(len(part.copies) > 1 for part in classes):
        texts.append("equal parts have equal decisions, apart from their buckets")
    if is_simulated and len(classes) > 1:
        texts.append("not all combinations of candidates of different parts were simulated")
    return tuple(dict.fromkeys(texts))


def _descend(
    program: Program,
    classes: Sequence[PartClass],
    explorations: Sequence[Exploration],
    bindings: Sequence[Binding],
    size_index: int,
    simulation: Simulation,
) -> list[Candidate]:
    """Select one candidate per class by simulating the entire program at one size.

    The start is the fastest candidate of each class in isolation. It is simulated first. Then the
    candidates of each class that communicates are tried once, in order of class and candidate. All
    other classes keep their present selection, and a candidate that is already selected is not
    tried again. A trial replaces the selection if the entire program, in which parts overlap, takes
    less time than the best so far.

    All copies of a class have the same candidate. A trial that cannot be simulated is never
    selected. If the start cannot be simulated, the first trial that can be replaces it; if there is
    none, the start is returned. Raises `InputError` if stages of different parts would wait for
    each other (`assemble`), and the `HubError` of `Simulation.simulate_means`.
    """
    selection = [exploration.fastest(size_index) for exploration in explorations]
    best_s = math.inf
    changes = [(-1, selection[0])] + [
        (index, candidate)
        for index, exploration in enumerate(explorations)
        if any(operation.is_communication for operation in classes[index].program.operations)
        for candidate in exploration.candidates
    ]
    for index, candidate in changes:
        if index >= 0 and candidate is selection[index]:
            continue
        trial = list(selection)
        if index >= 0:
            trial[index] = candidate
        whole, origins = assemble(program, classes, [each.program for each in trial])
        means = _spread_means(origins, trial, size_index)
        seconds = simulation.simulate_means(whole, bindings[size_index], means)
        if not isinstance(seconds, str) and seconds < best_s:
            best_s, selection = seconds, trial
    return selection


def _add_up(
    whole: Program,
    origins: Mapping[str, ValueOrigin],
    classes: Sequence[PartClass],
    selection: Sequence[Candidate],
    bindings: Sequence[Binding],
) -> Candidate:
    """Build the candidate of an entire program from the candidates of its classes of equal parts.

    `whole`: the program. `origins`: for each of its operations, the class and the operation of
    the part. `selection`: one candidate per class, in the order of `classes`. For each
    binding:

    - The seconds, and the numbers of unevenly sliced values, are summed over all copies of
      parts.
    - The means of communications (algorithm, protocol, chunks) are those of the first copy
      only.
    - Peak memory is computed for `whole`.

    The steps of all classes are sorted by transformation in the order of `TRANSFORMATIONS`, so
    that they can be applied to `whole`. Steps of the same transformation are in the order of
    classes, then of their candidate. `part_steps` has the same order; each has the program of
    its part before the step, and the number of copies. Raises `ValueError` unless `classes`
    and `selection` have equal lengths.
    """
    steps = list_part_steps(classes, [candidate.steps for candidate in selection])
    counted = [
        (len(part.copies), candidate) for part, candidate in zip(classes, selection, strict=True)
    ]
    timings, uneven = [], []
    for size_index in range(len(bindings)):
        seconds = sum(count * each.timings[size_index].seconds for count, each in counted)
        means = _spread_means(origins, selection, size_index)
        choices = {name: value for name, value in means.items() if origins[name].is_first}
        timings.append(ProgramTiming(seconds, choices))
        uneven.append(sum(count * each.uneven_values[size_index] for count, each in counted))
    return Candidate(
        whole,
        tuple(step.rewrite for step in steps),
        tuple(timings),
        tuple(compute_peak_bytes(whole, binding) for binding in bindings),
        tuple(uneven),
        tuple(steps),
    )


def _simulate(
    whole: Program,
    origins: Mapping[str, ValueOrigin],
    selection: Sequence[Candidate],
    bindings: Sequence[Binding],
    simulation: Simulation,
) -> list[float] | str:
    """Simulate a program at every size with the means chosen for its communications.

    Means are the algorithm, protocol and chunks of a communication. Those of the size are
    taken from the candidates in `selection`; `origins` has, for each operation of the
    program, the operation of a part from which it was copied. `whole`: the entire program,
    assembled from parts.

    Return the seconds in the order of `bindings`, one per size. If the means or the network
    do not fit at a size, return the reason as text at once. Raise `HubError` for any other
    failure of the simulation.
    """
    times = []
    for size_index, binding in enumerate(bindings):
        means = _spread_means(origins, selection, size_index)
        seconds = simulation.simulate_means(whole, binding, means)
        if isinstance(seconds, str):
            return seconds
        times.append(seconds)
    return times


def _spread_means(
    origins: Mapping[str, ValueOrigin], selection: Sequence[Candidate], size_index: int
) -> dict[str, Means]:
    """Return the means of the communications of the entire program by name, at one size.

    The means (algorithm, protocol, chunks) were selected for the parts. `selection`: the
    candidate of each class of equal parts. `origins`: for each value of the program, its
    class and its name in the part. A value gets the means that this name has in the timing
    of the candidate at `size_index`, so that copies have equal means. Values without means
    there are omitted.
    """
    means = {}
    for name, origin in origins.items():
        choices = selection[origin.class_index].timings[size_index].choices
        if origin.name in choices:
            means[name] = choices[origin.name]
    return means
