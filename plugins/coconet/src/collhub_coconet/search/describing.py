"""Report of a search in lines: winners, front of time and memory, completeness and restrictions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from collhub_coconet.program.operations import Binding
from collhub_coconet.search.bucket_sizes import BucketTrials
from collhub_coconet.search.explore import Candidate, Exploration
from collhub_coconet.search.hub_algorithms import Omission
from collhub_coconet.search.parts import PartClass, exchanged_values, is_stand_in
from collhub_coconet.search.simulation import Simulation
from collhub_coconet.transformations.passes import format_parameter
from hub_core.model import format_bytes, format_time


def describe_exploration(
    exploration: Exploration,
    bindings: Sequence[Binding],
    omissions: Sequence[Omission] = (),
    restrictions: Sequence[str] = (),
) -> Iterator[str]:
    """Yield lines that describe the result of a search.

    `bindings`: the compared sizes, at least one, in the order of the timings of a candidate. Order:

    1. Three lines per range of consecutive sizes with the same fastest program: sizes, time at the
       last size and speedup over the original program (`no time` if the time is 0); passes or `no
       pass`; algorithm, protocol and chunks per communication at the last size.
    2. A heading, and a line per program of the Pareto front of time and memory at the last of
       `bindings`, fastest first: time, memory, passes.
    3. The numbers of expanded and pruned programs.
    4. The line of `describe_completeness`; `omissions` (algorithms not compared) affect only it.
    5. One line per text of `restrictions`.
    """
    original = exploration.candidates[0]
    fastest = [exploration.fastest(size_index) for size_index in range(len(bindings))]
    start = 0
    while start < len(fastest):
        stop = start
        while stop + 1 < len(fastest) and fastest[stop + 1] is fastest[start]:
            stop += 1
        limits = dict.fromkeys(_format_sizes(bindings[index]) for index in (start, stop))
        timing = fastest[stop].timings[stop]
        seconds, original_seconds = timing.seconds, original.timings[stop].seconds
        gain = f"{original_seconds / seconds:.2f} times as fast as before" if seconds else "no time"
        yield f"winner for {' to '.join(limits)}: {_format_seconds(seconds)}, {gain}"
        yield f"  {format_passes(fastest[start]) or 'no pass'}"
        yield f"  {'; '.join(f'{name}: {means}' for name, means in timing.choices.items())}"
        start = stop + 1
    largest = len(bindings) - 1
    yield f"front of time and memory of a rank for {_format_sizes(bindings[largest])}:"
    for candidate in exploration.pareto_front(largest):
        time = _format_seconds(candidate.timings[largest].seconds)
        memory = format_bytes(candidate.peaks[largest])
        yield f"  {time}, {memory}: {format_passes(candidate) or 'no pass'}"
    yield f"{exploration.expanded} programs expanded, {exploration.pruned} pruned by their bound"
    yield describe_completeness(exploration, omissions, restrictions)
    for restriction in restrictions:
        yield f"restriction: {restriction}"


def describe_completeness(
    exploration: Exploration,
    omissions: Sequence[Omission] = (),
    restrictions: Sequence[str] = (),
) -> str:
    """Describe in one line whether the search covered all reachable programs and algorithms.

    The first rule that applies decides the text. Rules 1, 3 and 4 add a fixed explanation.

    1. `search is NOT complete: it stopped at a limit ...`: the exploration is not complete.
    2. `search is NOT complete: algorithms were not compared: A, B`: some omissions are not proven
       (`is_proven`). A, B are their distinct names in alphabetical order.
    3. `search is restricted: ...`: there are `restrictions`; their texts are not included.
    4. `search is complete: ...`: all other searches.

    So proven omissions (algorithms that are at most 1 % faster or do not exist) count as covered.
    """
    unproven = sorted({omission.name for omission in omissions if not omission.is_proven})
    if not exploration.is_complete:
        return "search is NOT complete: it stopped at a limit before all programs were expanded"
    if unproven:
        return f"search is NOT complete: algorithms were not compared: {', '.join(unproven)}"
    if restrictions:
        return (
            "search is restricted: every reachable program was expanded or pruned by its bound by "
            "formula, but not every choice was compared"
        )
    return "search is complete: every reachable program was expanded or pruned"


def list_restrictions(
    exploration: Exploration,
    classes: Sequence[PartClass],
    bindings: Sequence[Binding],
    simulation: Simulation | None,
    trials: BucketTrials,
) -> list[str]:
    """List every restriction that was applied to the search, one text per restriction.

    In this order; a restriction that did not occur has no text, so the list may be empty:

    - those that the exploration recorded
    - those of the simulation, for the fastest program of each size in `bindings`, in the order
      of the sizes, each text once; none if `simulation` is None because all times are by
      formula
    - the number of values that one part of `classes` computes and another one reads, without
      scalars; their layouts were not searched
    - separate kernels of tensors that share only scalars, if any part has an operation that
      stands for a scalar of another part (`is_stand_in`)
    - the number of bucket sizes (`trials.sizes`), if `trials.programs` is not 0

    Raises `InputError` as `Simulation.list_restrictions` does: the network has too few NPUs, or
    a collective has no algorithm.
    """
    restrictions = list(exploration.restrictions)
    if simulation is not None:
        limits: dict[str, None] = {}
        for size_index, binding in enumerate(bindings):
            program = exploration.fastest(size_index).program
            limits |= dict.fromkeys(simulation.list_restrictions(program, binding))
        restrictions += limits
    values = exchanged_values(classes)
    if values:
        restrictions.append(
            f"the layouts of {len(values)} values between separately searched parts are those of "
            "the original program"
        )
    if any(is_stand_in(each) for part in classes for each in part.program.operations):
        restrictions.append(
            "tensors that share only scalars have separate kernels, apart from equal computations, "
            "and all computations, that become one kernel"
        )
    if trials.programs:
        restrictions.append(
            f"buckets of {len(trials.sizes)} sizes were compared, for the original, the fastest "
            "and the smallest program"
        )
    return restrictions


def format_passes(candidate: Candidate) -> str:
    """Format the passes that produce a program as arguments of `collhub transform`.

    Each pass is `--pass NAME`, followed by `-O KEY=VALUE` for each of its parameters. The
    passes are in the order of their application, separated by blanks; values are not
    quoted. The text is empty for the original program.
    """
    words = []
    for step in candidate.steps:
        record = step.record
        words.append(f"--pass {record.transformation}")
        words += [f"-O {key}={format_parameter(value)}" for key, value in record.parameters.items()]
    return " ".join(words)


def _format_sizes(binding: Binding) -> str:
    """Format sizes as `B=8,S=1024`; `all sizes` for a program without symbols."""
    return ",".join(f"{name}={size}" for name, size in binding.sizes.items()) or "all sizes"


def _format_seconds(seconds: float) -> str:
    """Format seconds with a unit, rounded to ns."""
    return format_time(round(seconds * 1e9))


def describe_parts(classes: Sequence[PartClass]) -> Iterator[str]:
    """Yield one line about parts that were searched separately, if there are two or more.

    `classes`: each class has one or more equal parts and is one decision. The line has the
    number of parts in all classes, the number of classes as the decisions, and that equal
    parts have the passes of the first one. With fewer than two parts, no line is yielded.
    """
    num_parts = sum(len(part.copies) for part in classes)
    if num_parts > 1:
        yield (
            f"{num_parts} parts of the program were searched separately; equal ones are one "
            f"decision: {len(classes)} decisions, with the passes of the first of equal parts"
        )
