"""Rules of measured times and of profiles of machines."""

from __future__ import annotations

from collections.abc import Sequence

from hub_core.plugin_api import Rule, declare_rules

_MEASUREMENTS = (
    (
        "measurements",
        "The file is no complete output of the program that its format names.",
        "Columns or rows are missing, the file is empty, or it is no text.",
        "Keep the entire output of the program; the message names line and expected form.",
        "a table of nccl-tests without the column `time`",
    ),
    (
        "no-results",
        "The output contains no measured times.",
        "The run was aborted, or all results were wrong.",
        "Repeat the run and keep its entire output.",
        "nccl-tests that ends with an error",
    ),
    (
        "missing-facts",
        "The file does not name its collective, ranks or nodes, or names several devices.",
        "The header was removed.",
        "Give the facts: `--collective`, `--ranks`, `--nodes`.",
        "OSU output without its first line",
    ),
    (
        "skipped",
        "A part of the input is skipped: a wrong result, a damaged line, or a line of another "
        "program.",
        "The line is mixed with other output, or the test reports a wrong result.",
        "Repeat the measurement of this size; the remaining lines are used.",
        "`#wrong` of 3 in a row of nccl-tests",
    ),
)
_PROFILES = (
    (
        "invalid-profile",
        "The JSON document is no profile of a machine.",
        "It was changed by hand, or is of a newer version.",
        "Calibrate the machine again; the message names the member.",
        '`"tables": 3`',
    ),
    (
        "other-constants",
        "The constants of a profile belong to the version of the model that this collhub uses.",
        "The profile was calibrated by an earlier or later collhub, in whose model constants of "
        "the same names have other meanings.",
        "Calibrate the machine again, or upgrade collhub; the message says which.",
        '`"constants_version": 1` in a profile that an earlier collhub wrote',
    ),
    (
        "unknown-machine",
        "No profile has this name.",
        "The name is misspelled.",
        "Use a name that `collhub machines list` prints.",
        "`--machine h1000`",
    ),
)


def list_rules() -> Sequence[Rule]:
    """Return the rules in the order of their declaration."""
    return [
        *declare_rules("measured times: nccl-tests, OSU, NCCL Inspector and others", _MEASUREMENTS),
        *declare_rules(
            "profiles of machines, read by `--machine` and `collhub machines`", _PROFILES
        ),
    ]
