"""`collhub calibrate`: fit a machine to measured times, or check a profile against them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

import click

from hub_core import (
    FILE,
    Assignments,
    CommandContext,
    check_stdout,
    collective_option,
    format_option,
    json_flag,
    number_option,
    option_pairs,
    topology_option,
)
from hub_core.model import ExitCode, UsageError
from hub_core.plugin_api import MeasurementReader

# Modules that need numpy are imported in the functions: the help of a command appears at once.
if TYPE_CHECKING:
    from collections.abc import Sequence

    from collhub_machine_profiles.gpus import Gpu
    from collhub_machine_profiles.machine_profile import ErrorEntry

    from collhub_machines.calibration import CalibratedMachine
    from collhub_machines.machine_records import CalibrateReport, HeldOutError
    from hub_core.plugin_api import MeasurementSet

_MODEL_NOTE_CURE = "accept it with --accept, or measure again"


class _Request(TypedDict):
    """Options of the command."""

    results: tuple[str, ...]
    source_format: str | None
    assignments: Assignments
    collective: str | None
    ranks: int | None
    nodes: int | None
    like: str | None
    topology: str | None
    selection: str | None
    hold_out: str
    accept: bool
    out: str | None
    checked: str | None
    picture: str | None
    as_json: bool


@click.command()
@click.argument("results", metavar="RESULT...", nargs=-1, required=True, type=FILE)
@format_option(
    "--from", "source_format", MeasurementReader, "Format of all results (default: by content)."
)
@option_pairs
@collective_option("Collective, if a file does not name it.", "collective")
@number_option("--ranks", "N", "Number of ranks, if a file does not state it.", least=2)
@number_option("--nodes", "M", "Number of nodes, if a file does not state it.")
@click.option(
    "--like",
    metavar="MACHINE",
    help="GPU or shipped profile, such as H100 or p5, if a file names no GPU.",
)
@topology_option(
    "Topology of the machine, such as dgx-h100:2, if a file names no GPU or no ranks.", "topology"
)
@click.option(
    "--select", "selection", metavar="TEXT", help="Use only machines whose name contains TEXT."
)
@click.option(
    "--holdout",
    "hold_out",
    type=click.Choice(["even", "none"]),
    default="even",
    show_default=True,
    help="Leave out every second size to measure the error of the model.",
)
@click.option("--accept", is_flag=True, help="Exit 0 even if the held-out error exceeds 15 %.")
@click.option("-o", "--output", "out", metavar="FILE", type=FILE, help="Profile to write (JSON).")
@click.option(
    "--check",
    "checked",
    metavar="PROFILE",
    type=FILE,
    help="Compare a profile, a file or the name of a shipped one, with the results.",
)
@click.option(
    "--picture", metavar="FILE", type=FILE, help="With --check: draw times as bus bandwidths."
)
@json_flag
@click.pass_obj
def calibrate(context: CommandContext, /, **request: Unpack[_Request]) -> int:
    """Fit a machine to measured times of collectives, or check its predictions.

    RESULT is output of nccl-tests, rccl-tests, mscclpp-test, nccom-test, OSU or DeepSpeed's
    communication logger, JSON of nccl-tests, MSCCL++ or the Inspector, a tuner sweep, or JSON of
    the hub. Exactly one of -o and --check is required.

    With -o FILE, the profile in FILE holds tables of the times and, for one node with NVLink, the
    constants of a model. Several machines give one file each, such as FILE-NAME.json. Exit 1 if the
    held-out median error of the model of any machine exceeds 15 %, unless --accept is given; the
    files are written nevertheless.

    With --check PROFILE, every point is compared with the predictions of PROFILE, and the exit code
    does not depend on the errors.
    """
    from collhub_machine_profiles.shipped import load_profile

    from collhub_machines.calibration import read_points
    from collhub_machines.profile_check import report_check

    if (request["out"] is None) == (request["checked"] is None):
        cure = "calibrate RESULT... -o machine.json, or --check machine.json RESULT..."
        raise UsageError("either -o or --check is needed", cure=cure)
    if request["picture"] is not None and request["checked"] is None:
        raise UsageError("--picture is for --check", cure="give --check machine.json")
    if request["out"] is not None:
        check_stdout(request["out"], request["as_json"])
    machine_options = _given_machine(context, request)
    with context.progress("reading"):
        read = read_points(
            request["results"],
            collective=request["collective"],
            ranks=request["ranks"] or machine_options.ranks,
            nodes=request["nodes"] or machine_options.nodes,
            format=request["source_format"],
            options=request["assignments"],
            registry=context.registry(),
        )
    if request["checked"] is None:
        return _calibrate(context, request, read, machine_options)
    profile = load_profile(request["checked"])
    selection = (request["selection"] or "").lower()
    points = [point for point in read.points if selection in point.machine.lower()]
    selected = replace(read, points=points)
    return report_check(
        context,
        profile,
        selected,
        machine_options.gpu,
        picture=request["picture"],
        as_json=request["as_json"],
    )


@dataclass(frozen=True, slots=True)
class _GivenMachine:
    """Machine of `--like` or `--topology`: its GPU and label, and what a topology says of calls."""

    gpu: Gpu | None = None
    label: str = ""
    ranks: int | None = None
    nodes: int | None = None


def _given_machine(context: CommandContext, request: _Request) -> _GivenMachine:
    """Return the machine that the user names by `--like` or `--topology`; empty for neither.

    - `--like`: the GPU is the one that the text names, otherwise the GPU of the shipped profile of
      this name. The label is the GPU's name. It is the label of the profile instead if the text is
      the profile's name in any case of letters, and differs from the GPU's name. `ranks` and
      `nodes` are None.
    - `--topology`: the GPU is the one that the text names, otherwise the one that the topology's
      name contains. The label is the GPU's name. `ranks` is the number of NPUs. `nodes` is `ranks`
      / GPUs per node, rounded up, at least 1.

    Only the first 200 characters of a text are searched for the name of a GPU. Raises `UsageError`
    if both options are given, and if no GPU is known. Errors of reading the topology pass through.
    """
    from collhub_machine_profiles import find_profile, shipped_names
    from collhub_machine_profiles.gpus import GPUS, known_gpu

    like, topology = request["like"], request["topology"]
    if like is not None and topology is not None:
        raise UsageError("--like and --topology exclude each other", cure="give one of them")
    if like is not None:
        profile = find_profile(like)
        gpu = known_gpu(like) or (profile.known_gpu if profile else None)
        if gpu is None:
            cure = f"known: {', '.join(GPUS)}, and the profiles {', '.join(shipped_names())}"
            raise UsageError(f"--like {like!r:.80} is not a known GPU", cure=cure)
        is_profile = profile is not None and profile.name == like.lower() != gpu.name.lower()
        return _GivenMachine(gpu, profile.label if profile and is_profile else gpu.name)
    if topology is not None:
        network = context.read_topology(topology)
        gpu = known_gpu(topology) or known_gpu(network.name)
        if gpu is None:
            message = f"topology {topology!r:.80} names no known GPU"
            raise UsageError(message, cure="give --like GPU instead")
        nodes = max(1, -(-network.num_npus // gpu.gpus_per_node))
        return _GivenMachine(gpu, gpu.name, network.num_npus, nodes)
    return _GivenMachine()


def _calibrate(
    context: CommandContext,
    request: _Request,
    read: MeasurementSet,
    machine_options: _GivenMachine,
) -> int:
    from collhub_machine_profiles.machine_profile import profile_bytes

    from collhub_machines.calibration import MAX_MEDIAN, CalibrationRequest, calibrate_machines
    from collhub_machines.reading import combine_notes

    _refuse_other_gpu(request, read, machine_options.gpu)
    settings = CalibrationRequest(
        machine_options.gpu,
        machine_options.label,
        request["selection"] or "",
        request["hold_out"] == "even",
    )
    machines = calibrate_machines(read, settings)
    context.report(combine_notes(read.skipped))
    out = request["out"] or ""
    paths = _paths(out, machines)
    if len(machines) > 1:
        context.say(f"{len(machines)} machines in the input: one profile each; --select chooses")
    for path, machine in zip(paths, machines, strict=True):
        context.report(machine.diagnostics)
        written = context.write_file(path, profile_bytes(machine.profile))
        if path != "-":
            context.say_written(written)
    if request["as_json"]:
        context.print_report(_create_report(machines, paths, read))
    elif out != "-":
        _print_errors(context, machines)
    poor = [machine for machine in machines if (machine.model_median or 0) > MAX_MEDIAN]
    for poor_machine in poor:
        context.say(
            f"{poor_machine.profile.label}: held-out median error of the model"
            f" {100 * (poor_machine.model_median or 0):.1f} % exceeds 15 %; {_MODEL_NOTE_CURE}"
        )
    return ExitCode.INVALID if poor and not request["accept"] else ExitCode.DONE


def _refuse_other_gpu(request: _Request, read: MeasurementSet, like: Gpu | None) -> None:
    """Raise `UsageError` if results are of another known GPU than the topology.

    `like`: GPU of the topology. Nothing is checked without `--topology` or if `like` is None.
    Points are compared if the name of their machine contains the text of `--select` (in any case);
    without it, all points. A point is of the GPU that its machine names (`known_gpu`). Machines
    without a known GPU are ignored. The error lists all other GPUs alphabetically.
    """
    from collhub_machine_profiles.gpus import known_gpu

    if request["topology"] is None or like is None:
        return
    selection = (request["selection"] or "").lower()
    chosen = [point.machine for point in read.points if selection in point.machine.lower()]
    names = {gpu.name for machine in chosen if (gpu := known_gpu(machine))}
    if names - {like.name}:
        other_gpus = ", ".join(sorted(names - {like.name}))
        message = f"the results are of {other_gpus}, the topology is of {like.name}"
        raise UsageError(message, cure="give the topology of the measured machine, or --select")


def _paths(out: str, machines: Sequence[CalibratedMachine]) -> list[str]:
    """Return the output path of every machine, in the order of `machines`.

    - One machine: `out` unchanged, also `-` (standard output).
    - Several: the name of the machine's profile is inserted before the suffix. `dir/out.json`
      becomes `dir/out-NAME.json`. If a name occurs several times, each of its machines gets a
      number, from 1 in order: `dir/out-NAME-1.json`.

    Raises `UsageError` for another number of machines than one and `-`. No file is written.
    """
    if len(machines) == 1:
        return [out]
    if out == "-":
        raise UsageError("several machines cannot share standard output", cure="give --select TEXT")
    path, names = Path(out), [machine.profile.name for machine in machines]
    # Labels that differ only beyond the length of a name get numbers.
    parts = [
        name if names.count(name) == 1 else f"{name}-{names[:index].count(name) + 1}"
        for index, name in enumerate(names)
    ]
    return [str(path.with_name(f"{path.stem}-{part}{path.suffix}")) for part in parts]


def _create_report(
    machines: Sequence[CalibratedMachine], paths: Sequence[str], read: MeasurementSet
) -> CalibrateReport:
    from collhub_machines.machine_records import CalibratedItem, CalibrateReport, SkippedInput

    items = []
    for path, machine in zip(paths, machines, strict=True):
        profile = machine.profile
        constants = profile.constants.items()
        items.append(
            CalibratedItem(
                name=profile.name,
                file=path,
                gpu=profile.gpu or None,
                library=str(profile.library),
                points=sum(len(table.sizes) for table in profile.tables),
                tables=len(profile.tables),
                has_model=bool(profile.constants),
                priors=[name for name, constant in constants if constant.source != "fit"],
                model_median_error=machine.model_median,
                errors=[_create_error_item(error) for error in profile.errors],
                notes=[str(note) for note in machine.diagnostics],
            )
        )
    skipped = [
        SkippedInput(
            file=diagnostic.location.file,
            line=diagnostic.location.line,
            reason=diagnostic.message,
            cure=diagnostic.cure,
        )
        for diagnostic in read.skipped
    ]
    return CalibrateReport(machines=items, skipped=skipped)


def _create_error_item(error: ErrorEntry) -> HeldOutError:
    """Return the record of the held-out errors of one predictor.

    All fields are copied; `median`, `p90` and `worst` (fractions) are rounded to four decimal
    places.
    """
    from collhub_machines.machine_records import HeldOutError

    return HeldOutError(
        predictor=error.predictor,
        collective=error.collective,
        ranks=error.ranks,
        nodes=error.nodes,
        library=error.library,
        version=error.version,
        points=error.points,
        median=round(error.median, 4),
        p90=round(error.p90, 4),
        worst=round(error.worst, 4),
    )


def _print_errors(context: CommandContext, machines: Sequence[CalibratedMachine]) -> None:
    rows = []
    for machine in machines:
        for error in machine.profile.errors:
            # As `NCCL 2.29.2, graph 1`: the version is inserted between name and variant.
            name, comma, variant = error.library.partition(", ")
            library = f"{f'{name} {error.version}'.strip()}{comma}{variant}"
            figures = (error.median, error.p90, error.worst)
            rows.append(
                (
                    machine.profile.name,
                    error.predictor,
                    error.collective,
                    str(error.ranks),
                    str(error.nodes),
                    library,
                    str(error.points),
                    *(f"{100 * value:.1f} %" for value in figures),
                )
            )
    if rows:
        header = (
            *("machine", "predictor", "collective", "ranks", "nodes", "library"),
            *("points", "median", "p90", "worst"),
        )
        context.print_table(header, rows, ("ranks", "nodes", "points", "median", "p90", "worst"))
