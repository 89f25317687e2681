"""Plan the measurements that decide the sizes at which no choice is certain.

A size needs a measurement of the runtime's default unless one exists, and one of every algorithm
that may win there. The results are given to `collhub tune --measured`, which then decides or plans
further algorithms that may win according to the new times.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from collhub_machine_profiles.nccl_baseline import count_nodes

from collhub_tuning.tuning_records import PlannedRunItem
from hub_core.model import format_count

if TYPE_CHECKING:
    from collhub_tuning.baseline import SizeDecision
    from collhub_tuning.tuned_collectives import TunedCollective

DEFAULT = "default"
"""Subject of a measurement of the runtime's own choice."""

_TESTS = {
    "all-reduce": "all_reduce_perf", "all-gather": "all_gather_perf",
    "reduce-scatter": "reduce_scatter_perf", "all-to-all": "alltoall_perf",
    "broadcast": "broadcast_perf", "reduce": "reduce_perf",
    "gather": "gather_perf", "scatter": "scatter_perf",
}  # fmt: skip
# NCCL_ALGO by algorithm of the hub; NCCL chooses protocol and channels, as for a tuner line.
_NCCL_ALGORITHMS = {"ring": "Ring", "rings": "Ring", "double-binary-tree": "Tree", "pat": "PAT"}
_TREES_OF = "all-reduce"
_ITERATIONS = "-w 20 -n 100"


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """One measurement: commands to prepare and run it, and the file with its result.

    `subject`: an algorithm, or `DEFAULT`. `sizes` in bytes, ascending. `environment`: variables
    that select the algorithm. `commands`: shell commands that write `output`.
    """

    collective: str
    subject: str
    sizes: tuple[int, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    prepare: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    output: str = ""

    @property
    def argument(self) -> str:
        """Value of `--measured` for the result: `FILE`, or `NAME=FILE` for an algorithm."""
        return self.output if self.subject == DEFAULT else f"{self.subject}={self.output}"

    def create_item(self) -> PlannedRunItem:
        """Return the run as a record of the report of `collhub tune`, without changes; `argument`
        becomes the field `measured`.
        """
        return PlannedRunItem(
            collective=self.collective,
            subject=self.subject,
            sizes=self.sizes,
            environment=self.environment,
            prepare=self.prepare,
            commands=self.commands,
            output=self.output,
            measured=self.argument,
        )


def plan_measurements(
    tuned: Sequence[TunedCollective], *, has_msccl: bool = False
) -> list[PlannedRun]:
    """Return the test runs that measure all undecided sizes, in the order of the collectives.

    The runs of a collective are those of `find_missing_measurements`: one per algorithm,
    and one for the runtime's default. Algorithms that NCCL has itself are runs of
    nccl-tests with NCCL_ALGO. Other algorithms run as a program for NCCL, or, with
    `has_msccl`, as an MSCCL program in nccl-tests. Calls in place and out of place share a
    run, which then has the sizes of both, ascending. Different algorithms whose outputs
    would have equal names have separate runs, whose names are numbered. The list is empty
    if every size is decided. Uneven collectives have no runs, because nccl-tests has no such test.
    """
    runs: dict[tuple[str, str], PlannedRun] = {}
    for one in tuned:
        if one.outcome.question.counts:
            continue
        for subject, sizes in find_missing_measurements(one).items():
            key = (one.outcome.question.kind, subject)
            known = runs.get(key)
            outputs = {other.output for other in runs.values() if other is not known}
            all_sizes = sizes if known is None else sorted({*known.sizes, *sizes})
            run, number = _plan_run(one, subject, all_sizes, has_msccl), 1
            # Files of different folders may have equal names.
            while run.output in outputs:
                number += 1
                run = _plan_run(one, subject, all_sizes, has_msccl, number)
            runs[key] = run
    return list(runs.values())


def find_missing_measurements(tuned: TunedCollective) -> dict[str, list[int]]:
    """Return the sizes at which a measurement may decide, by algorithm; {} if all are decided.

    At every size without a winner, the runtime's default (key `DEFAULT`) is listed unless it
    was measured, and so is each unmeasured algorithm that may be the fastest
    (`find_possible_winners`). Only subjects with a size have a key, also `DEFAULT`, which then
    comes first. Sizes are in the order of the decisions.
    """
    missing: dict[str, list[int]] = {DEFAULT: []}
    for decision in tuned.decisions.values():
        if decision.winner is not None:
            continue
        if decision.default is None or not decision.default.band.is_measured:
            missing[DEFAULT].append(decision.size)
        for name in find_possible_winners(decision):
            missing.setdefault(name, []).append(decision.size)
    return {subject: sizes for subject, sizes in missing.items() if sizes}


def find_possible_winners(decision: SizeDecision) -> list[str]:
    """Return the algorithms without a measurement that may be the fastest, in their order.

    The first rule that applies decides:

    1. All algorithms are measured: none.
    2. The first one without a measurement has no upper limit of its time, because its error
       is unknown, or 100 % or more: only this one.
    3. Otherwise: those whose lower limit is below the upper limits of all algorithms,
       measured ones included, and of the runtime's default, if that is known. Equal limits do
       not count.
    """
    simulated = [name for name, band in decision.candidates.items() if not band.is_measured]
    if not simulated:
        return []
    if math.isinf(decision.candidates[simulated[0]].high_us):
        return simulated[:1]
    limits = [band.high_us for band in decision.candidates.values()]
    if decision.default is not None:
        limits.append(decision.default.band.high_us)
    return [name for name in simulated if decision.candidates[name].low_us < min(limits)]


def plan_lines(plan: Sequence[PlannedRun]) -> list[str]:
    """Return the plan as lines of a shell script; [] without runs.

    A first comment gives the numbers of measurements and of undecided sizes (different pairs of
    collective and size). Then each run has a comment with collective and subject, its lines to
    prepare, and its commands, each preceded by assignments of the environment. A last comment
    gives the arguments `--measured` for the next call of `tune`.
    """
    if not plan:
        return []
    cases = {(run.collective, size) for run in plan for size in run.sizes}
    measurements = format_count(len(plan), "measurement decides", "measurements decide")
    lines = [f"# {measurements} {format_count(len(cases), 'undecided size')}:"]
    for run in plan:
        variables = "".join(
            f"{name}={shlex.quote(value)} " for name, value in run.environment.items()
        )
        lines += [f"# {run.collective}, {run.subject}", *run.prepare]
        lines += [f"{variables}{command}" for command in run.commands]
    arguments = " ".join(f"--measured {shlex.quote(run.argument)}" for run in plan)
    return [*lines, f"# then repeat this command with {arguments}"]


def _plan_run(
    tuned: TunedCollective,
    subject: str,
    sizes: Sequence[int],
    has_msccl: bool,
    number: int = 1,
) -> PlannedRun:
    """Return the run that measures an algorithm, or the runtime's default, at ascending sizes.

    `subject`: name of the algorithm, or `DEFAULT`. `sizes`: bytes, ascending, at least one. STEM is
    COLLECTIVE-NAME, with -`number` if it is above 1; NAME is the last component of the subject,
    with `-` for all but letters, digits, `-` and `_`. Nothing is executed. The first rule applies:

    1. `DEFAULT`: a run of nccl-tests with output `STEM.txt`.
    2. An algorithm of NCCL (`_NCCL_ALGORITHMS`): the same with NCCL_ALGO. Not for the tree unless
       it is an all-reduce, and not for PAT unless there is one rank per node.
    3. `has_msccl`: as 1, with MSCCL_ALGO_FILES. `prepare` creates the program `STEM.xml`.
    4. A loop that calls a generated NCCL program once per size, with output `STEM.jsonl`.
       `prepare` creates the folder `STEM` and calls make.

    Programs are created for the largest size. On several nodes, mpirun starts the processes, and
    variables of the environment are part of the commands; on one node they are in `environment`.
    Rules 1 to 3 raise `KeyError` for a collective without a test in nccl-tests.
    """
    question = tuned.outcome.question
    kind, ranks = question.kind, question.num_npus
    nodes = count_nodes(tuned.outcome.topology)
    # Different subjects may get equal stems, which `number` distinguishes.
    name = subject.replace("\\", "/").rstrip("/").rpartition("/")[2]
    file_name = "".join(one if one.isalnum() or one in "-_" else "-" for one in name)
    stem = f"{kind}-{file_name}" + (f"-{number}" if number > 1 else "")
    nccl_word = _NCCL_ALGORITHMS.get(subject)
    if (nccl_word == "Tree" and kind != _TREES_OF) or (nccl_word == "PAT" and nodes != ranks):
        nccl_word = None
    ordered = tuple(sizes)
    if subject == DEFAULT or nccl_word is not None:
        environment = {} if nccl_word is None else {"NCCL_ALGO": nccl_word}
        output = f"{stem}.txt"
        commands = tuple(_test_commands(tuned, nodes, ordered, environment, output))
        shown = {} if nodes > 1 else environment
        return PlannedRun(kind, subject, ordered, shown, (), commands, output)
    if has_msccl:
        program = f"{stem}.xml"
        environment = {"MSCCL_ALGO_FILES": program}
        output = f"{stem}.txt"
        commands = tuple(_test_commands(tuned, nodes, ordered, environment, output))
        prepare = _creation_command(tuned, subject, ordered[-1], program, "msccl-xml")
        shown = {} if nodes > 1 else environment
        return PlannedRun(kind, subject, ordered, shown, (prepare,), commands, output)
    output = f"{stem}.jsonl"
    prepare = _creation_command(tuned, subject, ordered[-1], stem, "nccl")
    launcher, process = "", ""
    if nodes > 1:
        launcher = f"mpirun -np {ranks} -N {ranks // nodes} "
        process = " --id-file $PWD/id-$RANDOM"
    words = " ".join(map(str, ordered))
    call = f"{launcher}{stem}/collhub_program --size $size{process}"
    commands = (f"for size in {words}; do {call}; done > {output}",)
    return PlannedRun(kind, subject, ordered, {}, (prepare, f"make -C {stem}"), commands, output)


def _test_commands(
    tuned: TunedCollective,
    nodes: int,
    sizes: Sequence[int],
    environment: Mapping[str, str],
    output: str,
) -> Iterator[str]:
    """Yield commands of nccl-tests, one per series of sizes.

    A series is extended while the next size in `sizes` is the double of the last one. The sizes 4,
    8, 32 give two commands: 4 to 8, and 32. Without sizes nothing is yielded.

    - One node: a single process uses all GPUs. `environment` is not part of the command.
    - Several nodes: mpirun starts one process per GPU, ranks // `nodes` per node, and passes
      `environment`. Its values are not quoted.

    The first command overwrites the file `output`, later ones append to it. A root other than 0 is
    passed with -r. Raises `KeyError` for a collective without a test in `_TESTS`.
    """
    question = tuned.outcome.question
    ranks = question.num_npus
    launcher, gpus = "", ranks
    if nodes > 1:
        variables = "".join(f"-x {name}={value} " for name, value in environment.items())
        launcher, gpus = f"mpirun -np {ranks} -N {ranks // nodes} {variables}", 1
    root = f" -r {question.root}" if question.root else ""
    series: list[list[int]] = []
    for size in sizes:
        if series and size == 2 * series[-1][-1]:
            series[-1].append(size)
        else:
            series.append([size])
    for number, row in enumerate(series):
        range_text = f"-b {row[0]} -e {row[-1]} -f 2"
        test = f"{_TESTS[question.kind]} {range_text} -g {gpus} {_ITERATIONS}{root}"
        yield f"{launcher}{test} {'>>' if number else '>'} {output}"


def _creation_command(
    tuned: TunedCollective, subject: str, size: int, out: str, format: str
) -> str:
    """Return the shell command that writes an algorithm in `format` to the file or folder `out`.

    `subject`: name of a compared algorithm. If it is a file, it is converted; otherwise the
    synthesizer of this name is executed for `size` bytes and the collective, root and topology of
    the question. The file and the topology are quoted; `out` and the name of a synthesizer are not.
    """
    question = tuned.outcome.question
    if any(one.name == subject and one.is_file for one in tuned.algorithms):
        return f"collhub convert {shlex.quote(subject)} -o {out} --to {format}"
    root = f" --root {question.root}" if question.root is not None else ""
    return (
        f"collhub synthesize {subject} --collective {question.kind}{root}"
        f" --topology {shlex.quote(question.topology)} --size {size}B -o {out} --to {format}"
    )
