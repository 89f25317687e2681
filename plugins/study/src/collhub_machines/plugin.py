"""Offers of this package: commands and readers of measured times."""

from __future__ import annotations

from collections.abc import Sequence

from collhub_machines.reading import InspectorOptions, PlaceOptions
from hub_core.plugin_api import (
    Command,
    Format,
    MeasurementReader,
    NoOptions,
    RuleSet,
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
        r'\A\s*\{.*"(?:coll_perf|p2p_perf)"\s*:',
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
        r'\A\s*\{(?=.*"name"\s*:)(?=.*"ranksPerNode"\s*:)',
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
        "tuner-sweep",
        "measurements of a tuner sweep, CSV",
        r"\A\s*collective,size_bytes,.*latency_us",
        "tabular_results:read_sweep",
    ),
    _reader(
        "nccl-tests",
        "text of nccl-tests, rccl-tests and mscclpp-test",
        r"^(?:\[\d+,\d+\]<std\w+>:|\d+: ?)?#\s*(?:nThread\b|minBytes\b|\w*-tests version\b"
        r"|Collective test\b|\s*size\s+count\b)",
        "perf_output:read_perf_output",
        PlaceOptions,
    ),
    _reader(
        "osu",
        "OSU micro-benchmarks",
        r"^(?:#?\s*OSU .*Test\b|#?\s*Size\s{2,}.*(?:Latency|Bandwidth))",
        "tabular_results:read_osu",
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
            "collhub_machines.rules:list_rules",
        )
    ]
