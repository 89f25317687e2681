"""Offers of this package: commands and readers of measured times, and the rules."""

from __future__ import annotations

from collections.abc import Sequence

from collhub_machines.reading import InspectorOptions, PlaceOptions
from hub_core.plugin_api import (
    Command,
    Format,
    MeasurementReader,
    NoOptions,
    Rule,
    RuleSet,
    declare_rules,
    hookimpl,
)

COLLHUB_PLUGIN_API = (1, 0)

OWN_SCHEMA = "measured-collectives/1"


def _reader(
    name: str, description: str, signature: str, read: str, options: type = NoOptions
) -> MeasurementReader:
    sample = name.replace("-", "_")
    return MeasurementReader(
        Format(name, description, (), signature.encode()),
        f"collhub_machines.{read}",
        options,
        f"collhub_machines.reading:{sample}",
    )


# A file of one JSON object starts with it. The members that identify a format are near the start.
_READERS = (
    _reader(
        "measured-json",
        "points in the hub's own form",
        rf'\A\s*\{{(?s:.){{0,4000}}?"{OWN_SCHEMA}"',
        "structured_results:read_own_points",
    ),
    _reader(
        "inspector",
        "JSON lines of NCCL's or RCCL's Inspector",
        r'\A\s*\{.*"(?:coll_perf|p2p_perf|dump_stats)"\s*:',
        "structured_results:read_inspector",
        InspectorOptions,
    ),
    _reader(
        "mscclpp-tuned",
        "tuned configuration of MSCCL++",
        r'\A\s*\{(?s:.){0,4000}?"profiles"\s*:\s*\[',
        "structured_results:read_mscclpp_tuned",
    ),
    _reader(
        "mscclpp-lines",
        "JSON lines of mscclpp-test",
        r'\A\s*\{(?=.*"name"\s*:)(?=.*"ranksPerNode"\s*:)(?!.*"inPlace"\s*:)',
        "structured_results:read_mscclpp_lines",
    ),
    _reader(
        "collhub-program",
        "JSON lines of the program that the writer nccl emits",
        r'\A\s*\{"ok":.*"native_time_s":',
        "structured_results:read_program_lines",
    ),
    _reader(
        "nccl-tests-json",
        "JSON of nccl-tests (-J)",
        r'\A\s*\{(?s:.){0,4000}?"args"\s*:\s*\[',
        "structured_results:read_nccl_tests_json",
        PlaceOptions,
    ),
    _reader(
        "rccl-tests-json",
        "JSON of rccl-tests (-Z json)",
        r'\A\s*(?:\[\s*)?\{(?=[^{}]*"name"\s*:)(?=[^{}]*"inPlace"\s*:)(?=[^{}]*"algBw"\s*:)',
        "rccl_results:read_rccl_tests_json",
        PlaceOptions,
    ),
    _reader(
        "rccl-tests-csv",
        "CSV of rccl-tests (-Z csv)",
        r"\A\s*(?:numCycle\s*,\s*)?collective\s*,(?=[^\n]*\binplace\b)(?=[^\n]*\balgbw\b)",
        "rccl_results:read_rccl_tests_csv",
        PlaceOptions,
    ),
    _reader(
        "tuner-sweep",
        "measurements of a tuner sweep, CSV",
        r"\A(?:\s*#[^\n]*\n)*\s*(?=[^\n{#]*\bcollective\b)(?=[^\n{#]*\bsize_[a-z]+\b)"
        r"(?=[^\n{#]*\blatency_[a-z]+\b)[^\n{#]*,",
        "tabular_results:read_sweep",
    ),
    _reader(
        "nccl-tests",
        "text of nccl-tests, rccl-tests and mscclpp-test",
        # The launcher may write any text before each line.
        r"^(?:[^\"{#\n]{0,160}#\s*(?:nThread\s+\d+\s+nGpus\s|\w{2,20}-tests version\s"
        r"|Collective test starting:)|"
        r"(?:\[[\w.@-]+,\d+\]<std\w+>:|\[\d+\][ \t]|\d+: ?)?\s*(?:#\s*(?:nThread\b|minBytes\b"
        r"|\w*-tests version\b|Collective test\b)|#?\s*size\s+count\s"
        r"|nThread \d+ nGpus \d+ minBytes\b|#\s*Avg bus bandwidth\s*:"
        r"|\d+\s+\d+\s+(?:u?int\d+|half|float|double|bfloat16)\s+(?:\w+\s+(?:-?\d+\s+)?)?\d[\d.]*"
        r"\s+\d+\.\d+\s+\d+\.\d+[ \t]+\S))",
        "perf_output:read_perf_output",
        PlaceOptions,
    ),
    _reader(
        "osu",
        "OSU micro-benchmarks",
        r"^(?:\[[\w.@-]+,\d+\]<std\w+>:\s*|\[\d+\]\s+|\d+: ?)?(?:\\?#?\s*OSU .*Test\b"
        r"|\\?#?\s*Size\s{2,}.*(?:Latency|Bandwidth))",
        "tabular_results:read_osu",
    ),
    _reader(
        "nccom-test",
        "table or JSON of nccom-test (AWS Neuron)",
        r"^[^\"#\n]{0,60}?\bsize\(B\)\s+count\(elems\)\s|\A\s*\{(?s:.){0,4000}?\"size\(B\)\"\s*:",
        "neuron_results:read_nccom_test",
    ),
    _reader(
        "deepspeed-times",
        "log of DeepSpeed's communication logger, or its summary as JSON",
        r"comm op: [^\n]{1,200}?\| time \(ms\): "
        r"|Comm\. Op +Message Size +Count +Total Latency\(ms\)"
        r"|\A\s*\{(?s:.){0,4000}?\"(?:avg_latency_ms|avg_comm_lat_ms)\"\s*:",
        "deepspeed_results:read_deepspeed",
    ),
    _reader(
        "aiconfigurator",
        "nccl_perf.parquet of aiconfigurator",
        r"\APAR1",
        "tabular_results:read_aiconfigurator",
    ),
)


@hookimpl
def collhub_producers() -> Sequence[MeasurementReader]:
    """Return the readers of measured times, one per format."""
    return _READERS


@hookimpl
def collhub_commands() -> Sequence[Command]:
    """Return the commands `collhub calibrate` and `collhub machines`, in this order."""
    return [
        Command(
            "calibrate",
            "Fit a machine to measured times, or check its predictions.",
            "collhub_machines.calibrate_command:calibrate",
        ),
        Command(
            "machines",
            "List, show and check profiles of measured machines.",
            "collhub_machines.machines_command:machines",
        ),
    ]


@hookimpl
def collhub_checks() -> Sequence[RuleSet]:
    """Return the rules of measurements and profiles."""
    return [
        RuleSet(
            "measurements",
            "findings in measured times and profiles",
            "collhub_machines.plugin:list_rules",
        )
    ]


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
    (
        "waits",
        "The times of a framework are those of one rank.",
        "A collective ends when the last rank has arrived, so that they include the wait for it.",
        "Log the minimum over the ranks, or measure with a benchmark.",
        "a summary of DeepSpeed without `show_straggler`",
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
        "contradicting-bandwidth",
        "A time and its bandwidth in a table of nccl-tests contradict each other.",
        "The times are in another unit than microseconds, or the line has lost digits.",
        "Give times in us, or remove the line; the time is used as it is.",
        "1 GiB in 4.1 us with 262 GB/s",
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
