"""`collhub astra-sim`: write several algorithms and sizes as one folder for ASTRA-sim."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING

import click

from collhub_astra_sim.options import CONGESTION_AWARE, NETWORKS, AstraFolderOptions
from hub_core import (
    CommandContext,
    OutputRequest,
    force_flag,
    output_option,
    strict_flag,
    topology_option,
    verify_option,
)
from hub_core.model import UsageError, parse_size
from hub_core.plugin_api import WriteResult

if TYPE_CHECKING:
    from collhub_astra_sim.folders.write import NamedAlgorithm

_FORMAT = "astra-sim"


@click.command()
@click.argument("sources", metavar="IN[@SIZE,...] ...", nargs=-1, required=True)
@output_option
@topology_option("The network (default: fully connected, 50GiB/s, 500ns).")
@click.option(
    "--network",
    type=click.Choice(NETWORKS),
    default=CONGESTION_AWARE,
    show_default=True,
    help="Which backend of ASTRA-sim will run the folder.",
)
@click.option("--group", metavar="N,N,...", help="The NPUs that the ranks run on, ascending.")
@verify_option
@strict_flag
@force_flag
@click.pass_obj
def astra_sim(
    context: CommandContext,
    sources: tuple[str, ...],
    out: str,
    topology_text: str | None,
    network: str,
    group: str | None,
    strict: bool,
    force: bool,
) -> None:
    """Write one folder with each IN at each SIZE, run one after the other by ASTRA-sim.

    Each IN@SIZE,SIZE gives one algorithm per size, IN without a size one at its own size. They
    run in the order of the command line. The traces of an algorithm have the name of the file
    up to its first dot and the size as typed: ring.xml@1MiB gives ring-1MiB, ring.xml gives
    ring.

    All algorithms must have different names and the same number of ranks. Losses are reported
    after the folder has been written.

    algorithms.yml maps the nodes of the workload to the traces; such a map also works with your
    own workload.
    """
    from collhub_astra_sim.folders.write import build_folder_of_several

    request = OutputRequest(_FORMAT, {}, strict=strict, force=force, as_json=False)
    target = context.output_target(out, request)
    named = [algorithm for source in sources for algorithm in _read(context, source)]
    _check(named)
    topology = None if topology_text is None else context.read_topology(topology_text)
    options = AstraFolderOptions(network=network, group=group)
    folder = build_folder_of_several(named, topology, options)
    result = WriteResult(folder.artifacts(), folder.losses)
    written = context.write_result(result, target, request)
    names = ", ".join(algorithm.name for algorithm in named)
    context.say_written(written, f"{names}: ")


def _read(context: CommandContext, source: str) -> list[NamedAlgorithm]:
    """Read the algorithm of `PATH` or `PATH@SIZE,SIZE`; return it once per size, in order.

    The text after the last `@` is the list of sizes. A path that contains `@` must end with `@`.
    STEM is the file name without folder, up to the first dot: `ring` for `a/ring.v2.xml`.

    - With sizes: one entry per size, also for equal sizes. Its name is STEM and the size as typed:
      `ring.xml@1MiB,2MB` gives `ring-1MiB` and `ring-2MB`.
    - Without sizes, or with nothing after `@`: one entry named STEM. Its size is that of
      `chakra_bytes`: the algorithm's size, else 1 MiB per unit up to 2^20 units, else 1 byte each.

    Raises `HubError` if the file cannot be read. Then raises `UsageError` for a size that is empty,
    has no unit, or is no positive whole number of bytes up to 2^62.
    """
    from collhub_astra_sim.folders.write import NamedAlgorithm
    from hub_core import chakra_bytes

    path, mark, texts = source.rpartition("@")
    if not mark:
        path, texts = source, ""
    algorithm = context.read_input(context.open_input(path), {})
    stem = PurePath(path).name.split(".")[0]
    if not texts:
        return [NamedAlgorithm(stem, algorithm, chakra_bytes(algorithm))]
    return [
        NamedAlgorithm(f"{stem}-{text}", algorithm, parse_size(text)) for text in texts.split(",")
    ]


def _check(named: Sequence[NamedAlgorithm]) -> None:
    """Raise `UsageError` if two algorithms have equal names or different numbers of ranks.

    Names are checked first: the message has the first name in the list that occurs more than once.
    Then all numbers of ranks must be equal; the message has all distinct numbers, ascending. With
    no or one algorithm, nothing is raised. Nothing is returned or changed.
    """
    names = [algorithm.name for algorithm in named]
    doubled = [name for name in names if names.count(name) > 1]
    if doubled:
        cure = "give each file a different size, or rename one"
        raise UsageError(f"two algorithms would be named {doubled[0]}", cure=cure)
    ranks = sorted({algorithm.algorithm.num_ranks for algorithm in named})
    if len(ranks) > 1:
        counts = " and ".join(map(str, ranks))
        cure = "write a folder for each number of ranks"
        raise UsageError(f"algorithms of {counts} ranks cannot share a folder", cure=cure)
