"""The command example: how many links leave each NPU of a network."""

from __future__ import annotations

import click

from hub_core import CommandContext


@click.command()
@click.argument("text", metavar="T")
@click.pass_obj
def command(context: CommandContext, text: str) -> None:
    """Say how many links leave each NPU of the network T."""
    topology = context.read_topology(text)
    sources = topology.source.tolist()
    rows = [(str(npu), str(sources.count(npu))) for npu in range(topology.num_npus)]
    context.print_table(("NPU", "links"), rows)
