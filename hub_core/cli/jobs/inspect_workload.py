"""The report of `collhub inspect` on execution traces that are neither algorithms nor workloads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hub_core.cli.output import print_fields, print_json, print_note, print_table

if TYPE_CHECKING:
    from hub_core.cli.jobs.workload_survey import TraceSurvey
    from hub_core.model import JsonValue


def print_survey(survey: TraceSurvey, as_json: bool) -> None:
    """Print a survey as text or as `collhub/report-survey-1`."""
    if as_json:
        print_json(_to_json(survey))
        return
    kinds = ", ".join(f"{count} {name}" for name, count in survey.nodes_by_type.items())
    references = f"{survey.forward_references} to later nodes, {survey.dangling_references} to none"
    dependencies = f"{survey.data_dependencies} data, {survey.control_dependencies} control"
    print_fields(
        {
            "file": f"{survey.name} (chakra)",
            "dialect": survey.dialect,
            "ranks": str(survey.num_ranks),
            "nodes": f"{sum(survey.nodes_by_rank)}: {kinds}",
            "dependencies": f"{dependencies}; {references}",
            "metadata": ", ".join(f"{name}={value}" for name, value in survey.metadata.items()),
        }
    )
    rows = [
        (use.node_type, use.name, use.kind or "none", str(use.count)) for use in survey.attributes
    ]
    if rows:
        print_table(("node", "attribute", "kind", "count"), rows, right=("count",))
    print_note(
        "a workload trace: it can be inspected; verify, convert and simulate want algorithms"
    )


def _to_json(survey: TraceSurvey) -> dict[str, JsonValue]:
    return {
        "schema": "collhub/report-survey-1",
        "source": survey.name,
        "format": "chakra",
        "dialect": survey.dialect,
        "num_ranks": survey.num_ranks,
        "nodes_by_rank": list(survey.nodes_by_rank),
        "nodes_by_type": dict(survey.nodes_by_type),
        "dependencies": {
            "data": survey.data_dependencies,
            "control": survey.control_dependencies,
            "forward": survey.forward_references,
            "dangling": survey.dangling_references,
        },
        "metadata": dict(survey.metadata),
        "attributes": [
            {"node_type": use.node_type, "name": use.name, "kind": use.kind, "count": use.count}
            for use in survey.attributes
        ],
    }
