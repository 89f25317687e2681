"""Rules `--collective KIND=ALGORITHM` of commands on jobs: parse them and apply them to a job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hub_core.cli.command_context import CommandContext
    from hub_core.model import Algorithm, Workload
    from hub_core.network import Topology


def apply_rules(
    context: CommandContext, workload: Workload, rules: Sequence[str], topology: Topology
) -> Workload:
    """Assign algorithms to the collectives of a job by rules, verified as `--verify` says.

    A rule is `KIND[@SIZE][/GROUP]=ALGORITHM`; for each collective, the last matching rule applies.
    Raises `HubError`.
    """
    # Imported here: the help of a command needs no numpy.
    from hub_core.pipeline.collective_rules import parse_rule
    from hub_core.pipeline.job_algorithms import with_algorithms
    from hub_core.plugin_api import Synthesizer

    registry = context.registry()
    known = [provided.name for provided in registry.all(Synthesizer)]
    parsed = [parse_rule(text, known) for text in rules]

    def read(name: str) -> Algorithm:
        return context.read_input(context.open_input(name), {})

    with context.progress("making algorithms"):
        return with_algorithms(workload, parsed, topology, registry, read=read, admit=context.admit)
