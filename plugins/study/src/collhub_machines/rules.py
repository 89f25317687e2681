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
_CALIBRATION = (
    (
        "wrong-results",
        "The test reports wrong results.",
        "The installation has a defect.",
        "Repair it before its times are used.",
        "`Out of bounds values : 1 FAILED`",
    ),
    (
        "few-repeats",
        "Some sizes have few measurements.",
        "The run has few iterations.",
        "Repeat the run to reduce the influence of outliers.",
        "one measurement of each size",
    ),
    (
        "mixed-versions",
        "The files have several libraries or versions, of which one is fitted.",
        "Results of several runs were combined.",
        "Calibrate each version from its own files.",
        "NCCL 2.27 and 2.29",
    ),
    (
        "no-machine",
        "The file does not name its GPU.",
        "The program does not print it.",
        "Give `--like GPU`, or `--topology`.",
        "output of OSU benchmarks",
    ),
    (
        "no-points",
        "No measured time can be used.",
        "All times are of other machines.",
        "Name one of the machines that the message lists.",
        "`--like h100` for times of an A100",
    ),
    (
        "table-only",
        "Only tables of times are written, no model.",
        "The links of the GPU have no model, or there are few measurements.",
        "Give `--like GPU` if it equals a known one, or measure more numbers of ranks.",
        "a GPU without NVLink",
    ),
    (
        "prior-constants",
        "Constants of the model are priors, which no measurement determines.",
        "The files lack the numbers of ranks or sizes that determine them.",
        "Measure the points that the message lists.",
        "measurements with only 8 ranks",
    ),
    (
        "other-machine",
        "The profile is of another machine than the results.",
        "A wrong profile was named.",
        "Calibrate this machine, or name another profile.",
        "results of an A100 compared with `h100`",
    ),
    (
        "sibling",
        "The results are of a sibling of the machine, so that only the model is compared.",
        "Profiles of siblings share constants, not tables.",
        "No action is needed.",
        "results of an H200 compared with `h100`",
    ),
    (
        "no-table",
        "The profile has no table for some results.",
        "This collective or number of ranks was not measured.",
        "Calibrate with results of it.",
        "a reduce compared with tables of all-reduces",
    ),
    (
        "beyond-table",
        "Some results are larger than the table, and are compared with extrapolated times.",
        "The calibration measured smaller sizes.",
        "Measure larger sizes.",
        "16 GiB and a table up to 8 GiB",
    ),
)


def list_rules() -> Sequence[Rule]:
    """Return the rules in the order of their declaration."""
    return [
        *declare_rules("measured times: nccl-tests, OSU, NCCL Inspector and others", _MEASUREMENTS),
        *declare_rules(
            "profiles of machines, read by `--machine` and `collhub machines`", _PROFILES
        ),
        *declare_rules("calibration: `collhub calibrate` and its check", _CALIBRATION),
    ]
