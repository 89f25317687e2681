"""`collhub diagnose`: the ranks that make a job hang, by dumps of its ranks and output of NCCL."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from hub_core import FILE, CommandContext, json_flag, view_option
from hub_core.model import ExitCode, HubError
from hub_core.plugin_api import InteractivePage

if TYPE_CHECKING:
    from collhub_diagnosis.read_evidence import Evidence


@click.command()
@click.argument("dumps", metavar="DUMP [DUMP ...]", type=FILE, nargs=-1, required=True)
@click.option(
    "--picture",
    metavar="FILE",
    type=FILE,
    help="Also draw the ranks that wait for others, with the culprits in red, such as waits.svg.",
)
@view_option
@json_flag
@click.pass_obj
def diagnose(
    context: CommandContext,
    /,
    dumps: tuple[str, ...],
    picture: str | None,
    view_out: str | None,
    as_json: bool,
) -> ExitCode:
    """Find the ranks that make a job hang, by Flight Recorder dumps of its ranks.

    DUMP is a file or a folder; the rank is the member `rank` of the dump, else the number at the
    end of the file name or before `iterN`. JSON of NCCL's RAS subsystem and lines of its Inspector
    are further evidence. Reports the culprits, the ranks that only wait for them, and the questions
    that remain open because dumps are missing or entries were overwritten. Pickles are read without
    being executed. Instead of dumps, a workload may be given (Chakra, Kineto, execution traces, a
    document of the hub): it is executed without times until no rank can continue, and reported in
    the same way. Exit 1 if a fault is found, or if ranks hang and the cause remains undecided.
    """
    # Imported here: the help of a command needs no numpy.
    from collhub_diagnosis import report
    from collhub_diagnosis.read_evidence import read_evidence
    from collhub_diagnosis.verdict import diagnose_evidence

    evidence = _read_workload(context, dumps)
    if evidence is None:
        with context.progress("reading dumps"):
            evidence = read_evidence(dumps)
    with context.progress("matching operations"):
        verdict = diagnose_evidence(evidence)
    if as_json:
        context.print_report(report.create_report(verdict))
    else:
        for note in verdict.notes:
            context.say(f"note: {note}")
        context.print_fields(report.verdict_fields(verdict))
        for line in report.finding_lines(verdict):
            context.print_line(line)
        header, rows = report.wait_table(verdict)
        if rows:
            context.print_line("")
            context.print_table(header, rows)
    if picture is not None:
        context.say_written(context.draw_report(report.create_picture(verdict), picture))
    if view_out is not None:
        page = InteractivePage(f"diagnosis of {dumps[0]}", (report.create_picture(verdict),))
        context.say_written(context.draw_report(page, view_out))
    return ExitCode.INVALID if verdict.has_fault else ExitCode.DONE


def _read_workload(context: CommandContext, files: tuple[str, ...]) -> Evidence | None:
    """Read a workload and execute it without times; return its records as evidence.

    Only `files[0]` decides whether there is a workload; `files[1:]` are further files of it.
    Returns None if `files[0]` begins like a dump or output of NCCL (`is_evidence`), cannot be
    opened by the hub, or holds no workload. The caller then reads all files as dumps, which
    reports their defects.

    If the reader of the workload has the option `mismatches`, it is set to `keep`: collectives
    that differ between ranks are read, not refused. The workload is not verified. Errors of
    reading it (after it was opened) and of executing it propagate, as does `InputError`
    (`not-exported`) for a file that a tool must export first. Progress is shown during the
    execution.
    """
    from collhub_waits.workloads import record_job

    from collhub_diagnosis.nccl_evidence import combine_evidence
    from collhub_diagnosis.read_evidence import Evidence, is_evidence

    if is_evidence(files[0]):
        return None
    try:
        opened = context.open_input(files[0], None, files[1:])
    except HubError as error:
        if error.diagnostics[0].code == "not-exported":
            raise
        # The reader of dumps reports the location of the defect.
        return None
    if not opened.holds_workload:
        return None
    # Readers of profiles refuse collectives that differ, by which they would align clocks.
    declared = {option.name for option in opened.options}
    options = {"mismatches": "keep"} if "mismatches" in declared else {}
    workload = context.read_unverified_workload(opened, options)
    with context.progress("executing the workload"):
        records = record_job(workload)
    return Evidence(records, combine_evidence((), ()))
