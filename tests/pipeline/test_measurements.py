"""Read measured times by the readers of plugins: detection, options, limits, broken readers."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest

from hub_core import read_measurements
from hub_core.model import InputError, PluginError, UsageError
from hub_core.pipeline import measurements
from hub_core.registry.discovery import discover
from hub_core.registry.plugins import Registry
from hub_core.testing.conformance import RULES, RuleResult, Verdict, check_rule

MakePlugin = Callable[..., Path]

# A reader of `RANKS BYTES MICROSECONDS` behind the line `times 1`; each test spoils it.
CODE = """
from dataclasses import dataclass
from hub_core import InputError, Location
from hub_core.plugin_api import Library, Measurement, MeasurementReader, MeasurementRequest
from hub_core.plugin_api import MeasurementSet, OptionType, Source, option

@dataclass(frozen=True, slots=True)
class TimeOptions:
    factor: int = option(OptionType.INT, 1, "factor of all times", minimum=1)

@hookimpl
def collhub_producers():
    format = Format("times", "a time a line", (), rb"SIGNATURE")
    return [MeasurementReader(format, f"{__name__}:read", TimeOptions, f"{__name__}:samples")]

def samples():
    return [MeasurementRequest(Source.of_bytes("a.txt", b"times 1\\n8 1024 15\\n"))]

def read(request, options):
    file = request.source.name
    BODY
    points = []
    for number, line in enumerate(request.source.content().decode("ascii", "replace").split("\\n"), 1):
        words = line.split()
        if len(words) == 3 and all(word.isdecimal() for word in words):
            ranks, size, time_us = map(int, words)
            point = Measurement(
                request.collective or "all-reduce", ranks, request.nodes or 1, size,
                float(time_us * options.factor), Library("mine"), file=file, line=number,
            )
            if not point.defect():
                points.append(point)
    if not points:
        raise InputError("no times", location=Location(file), cure="measure")
    return MeasurementSet(points)
"""


def make_reader(
    make_plugin: MakePlugin, name: str = "subject", *, body: str = "", signature: str = "^times 1$"
) -> Registry:
    """Install a plugin with this reader; return all plugins."""
    make_plugin(name, CODE.replace("SIGNATURE", signature).replace("BODY", body or "pass"))
    return discover(environment={})


@pytest.fixture
def times(tmp_path: Path) -> Path:
    file = tmp_path / "run.txt"
    file.write_text("noise of another program\ntimes 1\n8 1024 15\n8 2048 16\n")
    return file


def test_files_are_recognised_by_their_content_and_joined_in_order(
    make_plugin: MakePlugin, times: Path
) -> None:
    registry = make_reader(make_plugin)
    read = read_measurements([str(times)] * 2, collective="all-gather", nodes=2, registry=registry)
    assert [point.size_bytes for point in read.points] == [1024, 2048, 1024, 2048]
    assert {(point.collective, point.nodes) for point in read.points} == {("all-gather", 2)}


def test_options_go_to_the_readers_that_declare_them(make_plugin: MakePlugin, times: Path) -> None:
    registry = make_reader(make_plugin)
    read = read_measurements([str(times)], options={"factor": 3}, registry=registry)
    assert [point.time_us for point in read.points] == [45, 48]
    with pytest.raises(UsageError, match="no option 'facter'; did you mean 'factor'"):
        read_measurements([str(times)], options={"facter": 3}, registry=registry)


def test_a_file_that_no_reader_recognises_lists_the_formats(
    make_plugin: MakePlugin, tmp_path: Path
) -> None:
    file = tmp_path / "other.txt"
    file.write_text("8 1024 15\n")
    registry = make_reader(make_plugin)
    with pytest.raises(InputError, match=r"other\.txt:1: no reader .*known are: .*a time a line"):
        read_measurements([str(file)], registry=registry)
    assert read_measurements([str(file)], format="times", registry=registry).points


def test_archives_and_large_files_are_refused(
    make_plugin: MakePlugin, times: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = make_reader(make_plugin)
    archive = times.with_suffix(".gz")
    archive.write_bytes(gzip.compress(times.read_bytes()))
    with pytest.raises(InputError, match=r"run\.gz: is compressed.*gunzip"):
        read_measurements([str(archive)], registry=registry)
    monkeypatch.setattr(measurements, "MAX_MEASUREMENT_FILE_BYTES", 30)
    with pytest.raises(InputError, match=r"run\.txt: the file exceeds .*; split it"):
        read_measurements([str(times)], registry=registry)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return 3", "returned int, expected MeasurementSet"),
        ("raise KeyError('x')", "KeyError"),
        (
            "return MeasurementSet([Measurement('all-reduce', 1, 1, 8, 1.0, Library('x'))])",
            "not valid: 1 ranks are not between 2",
        ),
    ],
)
def test_a_reader_that_breaks_its_contract_is_named(
    make_plugin: MakePlugin, times: Path, body: str, message: str
) -> None:
    registry = make_reader(make_plugin, body=body)
    with pytest.raises(PluginError, match=f"subject.*{message}"):
        read_measurements([str(times)], registry=registry)


def check(make_plugin: MakePlugin, rule: str, **reader: str) -> RuleResult:
    """Run a rule of the conformance kit on a plugin with this reader."""
    registry = make_reader(make_plugin, **reader)
    (named,) = (one for one in RULES if one.name == rule)
    return check_rule(named, "subject", registry)


@pytest.mark.parametrize(
    ("reader", "problem"),
    [
        ({}, None),
        ({"signature": "^other 1$"}, "the signature of the format is not in the sample"),
        ({"body": "return MeasurementSet([])"}, "no point is read"),
        ({"body": "return 3"}, "returned int, expected MeasurementSet"),
        ({"body": "file = 'secret'"}, "the file of a point is 'secret'"),
    ],
)
def test_readers_that_do_not_read_their_samples_fail_the_check(
    make_plugin: MakePlugin, reader: dict[str, str], problem: str | None
) -> None:
    result = check(make_plugin, "measurement-readers-read-samples", **reader)
    assert (result.verdict is Verdict.FAILED) == (problem is not None), result.details
    assert problem is None or problem in " ".join(result.details)


@pytest.mark.parametrize(
    ("reader", "problem"),
    [
        ({}, None),
        ({"body": "return MeasurementSet([])"}, "accepted as MeasurementSet"),
        ({"body": "request.source.content().decode()"}, "UnicodeDecodeError"),
        ({"body": "raise InputError('no')"}, "the error names no file"),
    ],
)
def test_readers_that_do_not_refuse_bad_input_fail_the_check(
    make_plugin: MakePlugin, reader: dict[str, str], problem: str | None
) -> None:
    result = check(make_plugin, "measurement-readers-refuse-bad-input", **reader)
    assert (result.verdict is Verdict.FAILED) == (problem is not None), result.details
    assert problem is None or problem in " ".join(result.details)
