"""The functions as passes of `collhub transform`: options, results, and what is said of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from collhub_compose import embed, relabel, replicate, rescale
from collhub_compose.passes import run_embed, run_relabel, run_replicate, run_rescale
from collhub_compose.plugin import EmbedOptions, RelabelOptions, ReplicateOptions, RescaleOptions

from hub_core.model import Algorithm, UsageError
from hub_core.testing import binomial_broadcast, ring_all_gather, ring_all_reduce

RING = ring_all_reduce(4)


def assert_same(one: Algorithm, other: Algorithm) -> None:
    assert one.differences(other) == []


def test_passes_do_what_the_functions_do() -> None:
    assert_same(run_replicate(RING, ReplicateOptions(3))[0], replicate(RING, 3))
    turns = run_replicate(RING, ReplicateOptions(2, interleaved=True))[0]
    assert_same(turns, replicate(RING, 2, interleaved=True))
    assert_same(run_relabel(RING, RelabelOptions("3,0-2"))[0], relabel(RING, [3, 0, 1, 2]))
    assert_same(run_embed(RING, EmbedOptions(8, "4-7"))[0], embed(RING, [4, 5, 6, 7], 8))
    assert_same(run_embed(RING, EmbedOptions(8))[0], embed(RING, [0, 1, 2, 3], 8))
    assert_same(run_rescale(RING, RescaleOptions(5))[0], rescale(RING, 5))


def test_changes_are_said_one_a_line() -> None:
    changes = run_replicate(RING, ReplicateOptions(2))[1].changes
    assert changes == ("units: 4 -> 8", "steps: 48 -> 96", "channels: 1 -> 2")
    moved = run_relabel(binomial_broadcast(4), RelabelOptions("1,0,2,3"))[1].changes
    assert moved == ("root: 0 -> 1",)
    wide = run_embed(ring_all_gather(4), EmbedOptions(6))[1].changes
    assert wide[0] == "collective: all-gather -> custom"
    assert wide[-1] == "in place: claimed -> not claimed"


def test_a_pass_that_changes_nothing_says_nothing() -> None:
    result, report = run_replicate(RING, ReplicateOptions(1))
    assert result is RING
    assert report.changes == ()


def test_dropped_extensions_are_said() -> None:
    named = replace(RING, extensions={"x-vendor": 1})
    assert run_rescale(named, RescaleOptions(2))[1].changes[-1] == "extensions dropped: x-vendor"


def test_a_pass_without_numbers_changes_nothing_and_says_so() -> None:
    for result, report in (run_relabel(RING, RelabelOptions()), run_embed(RING, EmbedOptions())):
        assert result is RING
        assert report.changes[0].startswith("unchanged: give ")


def test_ranks_that_are_none_are_refused() -> None:
    with pytest.raises(UsageError, match="is not a list of ranks"):
        run_relabel(RING, RelabelOptions("3,two"))


def test_passes_run_one_after_another(collhub, save, tmp_path: Path) -> None:
    ring = save(RING, tmp_path / "ring.json")
    out = tmp_path / "out.json"
    passes = ("--pass", "replicate", "--pass", "relabel")
    options = ("-O", "instances=2", "-O", "relabel.ranks=3,0-2")
    run = collhub("transform", ring, *passes, *options, "-o", out)
    assert (run.code, run.out) == (0, "")
    assert run.err.splitlines() == [
        "replicate: units: 4 -> 8",
        "replicate: steps: 48 -> 96",
        "replicate: channels: 1 -> 2",
        f"wrote {out}",
    ]
    assert collhub("verify", out).code == 0


def test_an_option_out_of_range_is_refused(collhub, save, tmp_path: Path) -> None:
    ring = save(RING, tmp_path / "ring.json")
    arguments = ("--pass", "rescale", "-O", "factor=0", "-o", tmp_path / "x.json")
    run = collhub("transform", ring, *arguments)
    assert (run.code, len(run.error_lines)) == (2, 1)
    assert "factor" in run.error_lines[0]
