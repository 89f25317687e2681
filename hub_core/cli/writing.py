"""Write the result of a command: choose the writer, apply the policy on losses, say what was written and what was lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hub_core.cli.arguments import Assignments
from hub_core.cli.output import print_diagnostic, progress
from hub_core.model.diagnostics import Diagnostic, Location, Severity, UsageError
from hub_core.model.losses import Loss, LossPolicy

if TYPE_CHECKING:
    from hub_core.model.algorithm import Algorithm, JsonValue
    from hub_core.pipeline.work import Written
    from hub_core.plugin_api.contract import FormatWriter
    from hub_core.registry.plugins import Provided, Registry


def check_stdout(out: str, as_json: bool) -> None:
    """Raise `UsageError` where the report and the output both want standard output."""
    if as_json and out == "-":
        raise UsageError("--json and the output both want standard output", cure="give -o a path")


def chosen_writer(
    registry: Registry, out: str, target_format: str | None
) -> Provided[FormatWriter]:
    """The writer that --to names, else the one that OUT names by its suffix."""
    # Imported here: the help of a command needs no plugins.
    from hub_core.pipeline.detection import writer_for
    from hub_core.plugin_api.contract import FormatWriter

    return (
        registry.find(FormatWriter, target_format)
        if target_format is not None
        else writer_for(out, registry)
    )


def policy_of(strict: bool) -> LossPolicy:
    """What --strict means for losses."""
    return LossPolicy.REFUSE if strict else LossPolicy.WARN


def write_out(
    algorithm: Algorithm,
    out: str,
    writer: Provided[FormatWriter],
    options: Assignments,
    strict: bool,
    force: bool,
    registry: Registry,
) -> Written:
    """Write `algorithm` to OUT, all or nothing, with progress on a terminal."""
    # Imported here: the help of a command needs no numpy.
    from hub_core.pipeline import work as pipeline

    with progress(f"writing {out}"):
        return pipeline.write(
            algorithm,
            out,
            format=writer.name,
            options=options,
            policy=policy_of(strict),
            force=force,
            registry=registry,
        )


def print_losses(losses: Sequence[Loss], work: str, out: str) -> None:
    """One warning a loss: what the `work` (conversion, composition) loses."""
    for loss in losses:
        print_diagnostic(
            Diagnostic("lossy", f"the {work} loses: {loss}", Severity.WARNING, Location(out))
        )


def loss_objects(losses: Sequence[Loss]) -> list[JsonValue]:
    """Losses as the reports carry them."""
    return [
        {"feature": loss.feature, "where": loss.where, "consequence": loss.consequence}
        for loss in losses
    ]


def wrote(written: Written) -> str:
    """`wrote FIRST and N more`."""
    first, rest = written.paths[0], len(written.paths) - 1
    return f"wrote {first}" + (f" and {rest} more" if rest else "")
