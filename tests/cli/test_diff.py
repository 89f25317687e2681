"""`collhub diff`: equal, or what differs, in words and in JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hub_core import Algorithm, Buffer, Collective, CollectiveKind, StepKind, StepTableBuilder
from hub_core.testing import ring_all_reduce
from hub_core.testing.samples import shift_to_next


@pytest.fixture
def changed(ring: Path):
    """`changed(path, value)`: the ring with one value of its document changed."""

    def change(*path: str | int, value: Any) -> Path:
        document = json.loads(ring.read_bytes())
        place = document
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value
        other = ring.with_name("other.json")
        other.write_text(json.dumps(document))
        return other

    return change


def test_the_same_in_another_format_is_equal_and_exit_0(
    collhub, ring: Path, tmp_path: Path
) -> None:
    assert collhub("convert", ring, "-o", tmp_path / "t").code == 0
    run = collhub("diff", ring, tmp_path / "t")
    assert (run.code, run.out, run.err) == (0, "equal: all-reduce, 4 ranks, 48 steps\n", "")
    report = collhub("diff", ring, tmp_path / "t", "--json").report()
    assert (report["equal"], report["facts"], report["traffic"]) == (True, [], [])


def test_where_an_algorithm_comes_from_is_not_compared(collhub, ring: Path, changed) -> None:
    assert collhub("diff", ring, changed("provenance", "producer", value="another")).code == 0


def test_other_traffic_is_named_by_pair_and_exit_1(collhub, ring: Path, save) -> None:
    other = save(ring_all_reduce(5), ring.with_name("five.json"))
    run = collhub("diff", ring, other)
    assert run.code == 1
    report = collhub("diff", ring, other, "--json").report()
    assert {"what": "ranks", "a": 4, "b": 5} in report["facts"]
    pairs = {(pair["source"], pair["destination"]): pair for pair in report["traffic"]}
    # The ring of four closes at 3, that of five goes on.
    assert (pairs[3, 0]["a"]["messages"], pairs[3, 0]["b"]["messages"]) == (6, 0)
    assert (pairs[3, 4]["a"]["messages"], pairs[3, 4]["b"]["messages"]) == (0, 8)
    assert "3 -> 4           0           8          0" in run.out


def test_traffic_is_compared_as_a_share_of_the_buffer(collhub, ring: Path, tmp_path: Path) -> None:
    pytest.importorskip("collhub_compose")
    finer = tmp_path / "finer.json"
    passes = ("--pass", "rescale", "-O", "factor=2")
    assert collhub("transform", ring, *passes, "-o", finer).code == 0
    report = collhub("diff", ring, finer, "--json").report()
    assert {"what": "units", "a": 4, "b": 8} in report["facts"]
    assert report["traffic"] == []


def test_lost_contents_and_verdicts_differ(collhub, ring: Path, racy: Path) -> None:
    report = collhub("diff", ring, racy, "--json").report()
    facts = {fact["what"]: (fact["a"], fact["b"]) for fact in report["facts"]}
    assert facts["verdict in place"] == ("ok", "wrong+race")
    assert facts["data dependencies"][0] > facts["data dependencies"][1]


def test_the_first_step_that_differs_is_named(collhub, ring: Path, changed) -> None:
    channels = [0] * 48
    channels[14] = 1
    other = changed("steps", "channel", value=channels)
    run = collhub("diff", ring, other)
    assert run.code == 1
    assert "channels             1   2\n" in run.out
    report = collhub("diff", ring, other, "--json").report()
    first = report["first_different_step"]
    assert (first["rank"], first["step"]) == (1, 2)
    assert ("channel 0" in first["a"], "channel 1" in first["b"]) == (True, True)


def test_other_dependencies_of_the_same_steps_are_a_difference(
    collhub, ring: Path, changed
) -> None:
    waits = json.loads(ring.read_bytes())["steps"]["data"]
    row = next(row for row, awaited in enumerate(waits) if awaited)
    first = collhub("diff", ring, changed("steps", "data", row, value=[]), "--json").report()
    step = first["first_different_step"]
    assert (step["rank"], step["step"]) == (row // 12, row % 12)
    assert step["b"] == "data dependencies on steps none"


def test_a_step_that_one_side_lacks_is_a_difference(collhub, tmp_path: Path, save) -> None:
    builder = StepTableBuilder(2)
    builder.add(0, StepKind.SEND, peer=1, src_buffer=Buffer.INPUT, count=1)
    builder.add(1, StepKind.RECV, peer=0, dst_buffer=Buffer.OUTPUT, count=1)
    collective = Collective(CollectiveKind.BROADCAST, 2, 1, root=0, in_place=True)
    short = save(
        Algorithm(collective, builder.build(), np.zeros(2, np.int64)), tmp_path / "short.json"
    )
    builder.add(1, StepKind.COMPUTE)
    long = save(
        Algorithm(collective, builder.build(), np.zeros(2, np.int64)), tmp_path / "long.json"
    )
    first = collhub("diff", short, long, "--json").report()["first_different_step"]
    assert first == {"rank": 1, "step": 1, "a": None, "b": "compute, count 0"}


def test_other_contracts_of_custom_collectives_are_a_difference(
    collhub, tmp_path: Path, save
) -> None:
    shift = shift_to_next(3)
    contract = shift.collective.contract
    assert contract is not None
    unstated = replace(shift.collective, contract=replace(contract, expected=None))
    a = save(shift, tmp_path / "a.json")
    b = save(replace(shift, collective=unstated), tmp_path / "b.json")
    facts = collhub("diff", a, b, "--json").report()["facts"]
    assert "contract" in [fact["what"] for fact in facts]
    # Nothing found is no verdict where there is nothing to compare with.
    assert {"what": "verdict out of place", "a": "ok", "b": "not judged"} in facts


def test_an_input_that_is_missing_is_one_error(collhub, ring: Path) -> None:
    run = collhub("diff", ring, "missing.json")
    assert (run.code, run.out, len(run.error_lines)) == (1, "", 1)


def test_options_of_one_side_reach_it_alone(collhub, ring: Path) -> None:
    run = collhub("diff", ring, ring, "-O", "a.nonsense=1")
    assert (run.code, "there is no option 'a.nonsense' here" in run.err) == (2, True)
