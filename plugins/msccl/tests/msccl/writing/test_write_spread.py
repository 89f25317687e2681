"""How steps without stated thread blocks are shared among those of a runtime, and how well."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from collhub_msccl.plugin import LanguageOptions, ReadOptions, WriteOptions
from collhub_msccl.read_program import read as read_mscclang
from collhub_msccl.reading.read_xml import read, read_program
from collhub_msccl.runtimes.load_check import (
    check_executor,
    check_msccl,
    check_rccl,
    compute_fifo_safety,
)
from collhub_msccl.writing.execution_times import (
    BlockFigures,
    compute_block_figures,
    compute_link_times,
)
from collhub_msccl.writing.write_xml import write

from hub_core.model import Algorithm, StepKind
from hub_core.plugin_api import CheckRequest, NoOptions, Source
from hub_core.testing import direct_all_to_all, ring_all_reduce
from hub_core.verification import verify

pytestmark = pytest.mark.once

PROGRAMS = Path(__file__).parents[1] / "programs"
FOLDER = Path(__file__).resolve().parents[6] / "shared" / "corpus" / "msccl"
CHECKS = {"msccl": check_msccl, "executor": check_executor, "rccl": check_rccl}
Row = Mapping[str, str]
# What the public compiler (microsoft/msccl-tools 030a750) makes of programs with these constructs:
# the time in the model of `block_time`, of that of a whole buffer.
PUBLIC = {
    ("two_level_rings", "32 1 --nodes 4 --blocked"): 7 / 32,
    ("two_level_rings", "16 2 --nodes 2 --blocked"): 3 / 32,
    ("two_level_rings", "12 1 --nodes 3 --blocked"): 5 / 12,
    ("two_level_rings", "6 1 --nodes 2 --protocol LL"): 1 / 2,
    ("two_level_rings", "8 1 --nodes 4 --protocol LL"): 1.0,
    # Stated channels, no thread blocks.
    ("two_level_rings", "4 1 --nodes 2 --channels"): 1.0,
    ("two_level_rings", "16 1 --nodes 2 --channels"): 9 / 8,
    # Both rings between nodes on one channel: a sum is sent on while an earlier one is sent.
    ("two_level_rings", "16 1 --nodes 2 --channels --shared"): 9 / 8,
    ("passed_on_all_gather", "4 1"): 1 / 2,
    # Stated thread blocks, whose sums wait for operands that arrive one after the other.
    ("tree_sum_all_reduce", "4 1"): 6 / 4,
    ("tree_sum_all_reduce", "4 2"): 6 / 8,
    ("tree_sum_all_reduce", "8 1"): 7 / 8,
    ("tree_sum_all_reduce", "8 2"): 7 / 16,
}


def _algorithm(name: str, arguments: str) -> Algorithm:
    file = PROGRAMS / f"{name}.py"
    return read_mscclang(Source.of_bytes(file.name, file.read_bytes()), LanguageOptions(arguments))


def _written(algorithm: Algorithm, options: WriteOptions) -> Source:
    (artifact,) = write(algorithm, options).artifacts
    return Source.of_bytes("x.xml", artifact.content())


def _figures(file: Source) -> BlockFigures:
    return compute_block_figures(read_program(file)[1])


def _check(file: Source, runtime: str, protocol: str) -> None:
    """The file is right, can run with full connections at every size, and is loaded."""
    algorithm = read(file, ReadOptions())
    assert verify(algorithm).ok
    assert compute_fifo_safety(algorithm, 2 if protocol == "Simple" else 8).min_units == 1
    assert CHECKS[runtime](CheckRequest(source=file), NoOptions()).ok


@pytest.mark.parametrize(("name", "arguments"), PUBLIC)
def test_file_takes_no_longer_than_that_of_the_public_compiler(name: str, arguments: str) -> None:
    algorithm = _algorithm(name, arguments)
    file = _written(algorithm, WriteOptions())
    time = _figures(file).makespan / algorithm.collective.unit_count
    assert time <= PUBLIC[name, arguments]
    _check(file, "executor", "LL" if "LL" in arguments else "Simple")


@pytest.mark.parametrize("runtime", CHECKS)
def test_file_for_every_runtime_keeps_its_limits(runtime: str) -> None:
    file = _written(_algorithm("two_level_rings", "32 1 --nodes 4"), WriteOptions(runtime))
    _check(file, runtime, "Simple")
    assert _figures(file).blocks <= 64


def _public_files() -> list[Row]:
    if not (FOLDER / "index.csv").is_file():
        return []
    with (FOLDER / "index.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    return [
        row
        for row in rows
        if row["file"].startswith(("mt_", "az_"))
        and row["verdict"] == "ok"
        # Minutes for all sizes of one construct.
        and int(row["steps"]) <= 400
    ]


@pytest.mark.once
def test_what_the_public_compilers_wrote_gets_no_slower_with_thread_blocks_of_ours(
    corpus: Path,
) -> None:
    rows = _public_files()
    assert rows or not (corpus / "msccl" / "index.csv").is_file()
    for row in rows:
        content = (FOLDER / row["file"]).read_bytes()
        parts = Source.of_bytes(row["file"], content).parts
        source = Source(row["file"], parts, lambda _: None)
        given = _figures(source)
        algorithm = read(source, ReadOptions())
        file = _written(_without_lanes(algorithm), WriteOptions("msccl", channels=32))
        found = _figures(file)
        assert found.executed <= given.executed, row["file"]
        assert found.makespan <= given.makespan, row["file"]
        times = zip(
            compute_link_times(read(file, ReadOptions())),
            compute_link_times(algorithm),
            strict=True,
        )
        # One construct, all to next, gains 3 % in small calls and loses as much in large ones.
        assert all(ours <= 1.03 * theirs for ours, theirs in times), row["file"]


def _without_lanes(algorithm: Algorithm) -> Algorithm:
    steps = algorithm.steps
    lane = np.full(len(steps), -1, steps.lane.dtype)
    return replace(algorithm, steps=replace(steps, lane=lane))


@pytest.mark.parametrize("channels", [1, 2, 5])
def test_no_more_channels_are_used_than_the_option_says(channels: int) -> None:
    algorithm = _algorithm("two_level_rings", "16 1 --nodes 2")
    file = _written(algorithm, WriteOptions(channels=channels))
    assert _figures(file).channels == channels
    _check(file, "executor", "Simple")


def test_stated_channels_are_kept_unless_the_option_opens_them() -> None:
    algorithm = _algorithm("two_level_rings", "8 1 --nodes 2 --channels")
    assert _figures(_written(algorithm, WriteOptions())).channels == 6
    assert _figures(_written(algorithm, WriteOptions(channels=3))).channels == 3


def test_thread_blocks_of_the_source_are_kept_whatever_the_channels() -> None:
    algorithm = _algorithm("two_level_rings", "8 1 --nodes 2 --manual")
    written = {_written(algorithm, WriteOptions(channels=n)).content() for n in (None, 32)}
    assert len(written) == 1


def test_other_algorithms_are_spread_where_that_is_asked_for() -> None:
    ring = _without_lanes(ring_all_reduce(8))
    found = [_figures(_written(ring, WriteOptions(channels=channels))) for channels in (None, 8)]
    assert [figures.channels for figures in found] == [1, 8]
    # Eight chains in turn, or side by side.
    assert [figures.makespan for figures in found] == [15, 2]


@pytest.mark.parametrize("policy", ["", " --manual"])
def test_order_in_which_connections_would_fill_up_is_replaced_by_one_in_which_they_do_not(
    policy: str,
) -> None:
    # Both ends send all that they have before they receive; Simple holds two messages.
    algorithm = _algorithm("recursive_doubling_all_gather", "16 2" + policy)
    file = _written(algorithm, WriteOptions(proto="Simple"))
    assert b'maxBytes="0"' in file.content()
    _check(file, "executor", "Simple")


def test_a_run_of_reductions_takes_the_time_of_all_its_operands() -> None:
    figures = _figures(_written(_algorithm("all_pairs_all_reduce", "4 1"), WriteOptions()))
    algorithm = _algorithm("all_pairs_all_reduce", "4 1")
    reductions = int(np.count_nonzero(algorithm.steps.is_kind(StepKind.REDUCE)))
    # Three operands are one step for each of the four units of a rank.
    assert figures.executed == len(algorithm.steps) - reductions + reductions // 3
    # Four units arrive, are reduced in four blocks, and four are sent.
    assert figures.makespan == 4 + 3 + 4


def test_a_note_tells_blocks_channels_the_longest_block_and_fused_steps() -> None:
    algorithm = _algorithm("passed_on_all_gather", "4 1")
    assert list(write(algorithm, WriteOptions()).notes) == [
        "has 5 thread blocks a rank at most on 4 channels, the longest of 1 step, 8 steps fused;"
        " by the model of thread blocks they take 0.5 of the time of a buffer"
    ]


def test_thread_blocks_that_have_to_be_joined_are_a_loss() -> None:
    exchange = direct_all_to_all(40)
    steps = exchange.steps
    # A thread block for every end of a connection: 78 of a rank, where there may be 64.
    lane = np.where(steps.sends, steps.peer, steps.peer + 40)
    lane[~(steps.sends | steps.receives)] = 80
    stated = replace(exchange, steps=replace(steps, lane=lane.astype(steps.lane.dtype)))
    losses = {loss.feature: loss for loss in write(stated, WriteOptions("rccl")).losses}
    assert losses["lane"].where == "up to 79 thread blocks of a rank become 41"
    assert "lane" not in {loss.feature for loss in write(stated, WriteOptions("msccl")).losses}


def test_inspect_and_convert_show_thread_blocks(tmp_path: Path) -> None:
    out = tmp_path / "out.xml"
    command = [sys.executable, "-P", "-m", "hub_core.cli.main"]
    program = str(PROGRAMS / "passed_on_all_gather.py")
    convert = [*command, "convert", program, "-o", str(out), "--json", "--", "4", "1"]
    done = subprocess.run(convert, capture_output=True, text=True, check=True)
    (note,) = json.loads(done.stdout)["notes"]
    assert note.startswith("has 5 thread blocks a rank at most on 4 channels")
    inspect = [*command, "inspect", str(out), "--json"]
    done = subprocess.run(inspect, capture_output=True, text=True, check=True)
    report = json.loads(done.stdout)
    assert [report[name] for name in ("lanes", "channels", "longest_lane", "fused_steps")] == [
        5,
        4,
        1,
        8,
    ]
