"""`collhub generate`: generate a workload from model parameters, check it and write it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from hub_core.cli.arguments import (
    OutputRequest,
    output_option,
    output_options,
    timeout_option,
)
from hub_core.cli.assignments import assign
from hub_core.cli.command_context import Session
from hub_core.cli.page_options import draw_job_page, view_option
from hub_core.cli.parameter_types import OfferName
from hub_core.cli.reports.report_objects import cut_fields
from hub_core.cli.session_outputs import written_paths
from hub_core.plugin_api import WorkloadGenerator

if TYPE_CHECKING:
    from hub_core.plugin_api import SearchBudget


@click.command()
@click.argument("name", metavar="NAME", type=OfferName(WorkloadGenerator))
@timeout_option
@output_option
@view_option
@output_options
@click.pass_obj
def generate(
    session: Session,
    name: str,
    budget: SearchBudget,
    out: str,
    view_out: str | None,
    output: OutputRequest,
) -> None:
    """Generate a workload with the generator NAME (`collhub formats` lists them), and write it.

    -O sets an option of the generator and the writer that declare it; generator.KEY and writer.KEY
    name one of them. `collhub formats NAME` shows those of a generator. The result is verified
    before it is written.
    """
    # Imported here: the help of the command needs no numpy.
    from hub_core.pipeline.calls import generate_job

    sides = {"generator": session.options_of(WorkloadGenerator, name)}
    target = session.output_target(out, output, is_workload=True)
    options = assign(output.assignments, {**sides, "writer": target.options})
    with session.progress(f"generating {name}"):
        workload = generate_job(name, options["generator"], session.registry(), budget)
    # Generators of plugins are trusted no more than files.
    session.admit(workload, f"the workload of {name}")
    written = session.write_output(workload, target, options["writer"], output, work="generation")
    if view_out is not None:
        draw_job_page(session, workload, name, None, view_out)
    if output.as_json:
        from hub_core.cli.reports.algorithm_records import GenerateReport
        from hub_core.reports import list_cuts, list_losses

        report = GenerateReport(
            generator=name,
            target_format=target.format_name,
            num_ranks=workload.num_ranks,
            nodes=len(workload.nodes),
            is_partial=bool(budget.cuts),
            cut=list_cuts(budget.cuts),
            artifacts=written_paths(written.paths),
            losses=list_losses(written.losses),
        )
        session.print_report(report)
        return
    nodes = len(workload.nodes)
    session.say(f"{name}: {workload.num_ranks} ranks, {nodes} nodes")
    for field, line in cut_fields(budget.cuts).items():
        session.say(f"{field}: {line}")
    session.say_written(written)
