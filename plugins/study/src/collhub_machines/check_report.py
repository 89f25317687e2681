"""Report the comparison of a profile with measured times: text, JSON and a picture."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from collhub_machines.profile_check import ProfileCheck, check_profile
from collhub_machines.profile_picture import picture_request
from hub_core import CommandContext
from hub_core.model import Diagnostic, ExitCode, UsageError

if TYPE_CHECKING:
    from collhub_machine_profiles.gpus import Gpu
    from collhub_machine_profiles.machine_profile import MachineProfile

    from hub_core.plugin_api import MeasurementSet


def report_check(
    context: CommandContext,
    profile: MachineProfile,
    read: MeasurementSet,
    like: Gpu | None,
    *,
    picture: str | None = None,
    as_json: bool = False,
    max_median: float | None = None,
) -> int:
    """Compare every point with the predictions of a profile; return the exit code.

    `like` is the GPU of points without a machine, `picture` a file to draw. Above `max_median`, the
    median error of the model (of the table without a model) gives the exit code 1. Raises
    `UsageError` for a profile of another GPU and `InputError` if no point is of its machine.
    """
    if like is not None and profile.gpu and like.name != profile.gpu:
        message = f"the profile is of {profile.gpu}, not of {like.name}"
        raise UsageError(message, cure="name the profile of this machine")
    check = check_profile(profile, read.points, like)
    context.report((*combine_notes(read.skipped), *check.diagnostics))
    if picture is not None:
        drawn = picture_request(check, profile.label)
        context.say_written(context.draw_report(drawn, picture))
    if as_json:
        context.print_report(check.create_report(profile))
    else:
        _print_check(context, check)
    errors = (check.compute_errors(predictor).median_error for predictor in ("model", "table"))
    median = next((error for error in errors if error is not None), 0.0)
    if max_median is None or median <= max_median:
        return ExitCode.DONE
    context.say(
        f"{profile.name}: median error {100 * median:.1f} % exceeds {100 * max_median:.0f} %;"
        " calibrate this machine"
    )
    return ExitCode.INVALID


def _print_check(context: CommandContext, check: ProfileCheck) -> None:
    rows = [
        (
            checked_point.point.collective,
            str(checked_point.point.ranks),
            str(checked_point.point.nodes),
            str(checked_point.point.size_bytes),
            f"{checked_point.point.time_us:.2f}",
            *(
                "-" if us is None else f"{us:.2f}"
                for us in (checked_point.table_us, checked_point.model_us)
            ),
            f"{checked_point.choice.algorithm} {checked_point.choice.protocol}"
            if checked_point.choice
            else "-",
        )
        for checked_point in check.points
    ]
    header = ("collective", "ranks", "nodes", "bytes", "measured", "table", "model", "chosen")
    context.print_table(header, rows, header[1:7])
    for predictor in ("table", "model"):
        error = check.compute_errors(predictor)
        if error.median_error is not None and error.p90_error is not None:
            median, p90 = 100 * error.median_error, 100 * error.p90_error
            context.print_line(f"{predictor}: median error {median:.1f} %, p90 {p90:.1f} %")


def combine_notes(notes: Sequence[Diagnostic]) -> list[Diagnostic]:
    """Combine equal findings on lines of one file into one, at the first line, with their number.

    Texts that differ only in numbers count as equal.
    """
    groups: dict[tuple[object, ...], list[Diagnostic]] = {}
    for note in notes:
        text = re.sub(r"\d+", "0", note.message)
        groups.setdefault((note.code, text, note.cure, note.location.file), []).append(note)
    combined = []
    for group in groups.values():
        first, num_others = group[0], len(group) - 1
        if num_others:
            noun = "line" if num_others == 1 else "lines"
            first = replace(first, message=f"{first.message} (and {num_others} more {noun})")
        combined.append(first)
    return combined
