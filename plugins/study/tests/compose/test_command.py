"""`collhub compose`: sequence, copies, ranks, losses, and requests that mean nothing."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hub_core.testing.samples import (
    binomial_broadcast,
    binomial_reduce,
    ring_all_gather,
    ring_all_reduce,
    ring_reduce_scatter,
)


@pytest.fixture
def scatter(save, tmp_path: Path) -> Path:
    return save(ring_reduce_scatter(4), tmp_path / "scatter.json")


@pytest.fixture
def ring(save, tmp_path: Path) -> Path:
    return save(ring_all_reduce(4), tmp_path / "ring.json")


@pytest.fixture
def gather(save, tmp_path: Path) -> Path:
    return save(ring_all_gather(4), tmp_path / "gather.json")


def test_reduce_scatter_and_all_gather_are_an_all_reduce(
    collhub, scatter: Path, gather: Path, tmp_path: Path
) -> None:
    run = collhub("compose", scatter, gather, "-o", tmp_path / "sum")
    assert (run.code, run.out) == (0, "")
    what = "all-reduce of 4 ranks, in place and out of place"
    assert run.err == f"{what}: wrote {tmp_path}/sum.0.et and 3 more\n"
    assert collhub("verify", tmp_path / "sum", "--json").report()["ok"] is True


def test_the_report_says_what_was_made_of_what(
    collhub, scatter: Path, gather: Path, tmp_path: Path
) -> None:
    out = tmp_path / "sum.json"
    report = collhub("compose", scatter, gather, "-o", out, "--json").report()
    assert report["sources"] == [
        {"source": str(scatter), "from": "json"},
        {"source": str(gather), "from": "json"},
    ]
    assert (report["collective"], report["root"], report["num_ranks"], report["unit_count"]) == (
        "all-reduce",
        None,
        4,
        4,
    )
    assert (report["in_place"], report["out_of_place"], report["steps"]) == (True, True, 52)
    assert (report["to"], report["artifacts"], report["losses"]) == ("json", [str(out)], [])


def test_sequence_then_copies_then_ranks_of_a_larger_communicator(
    collhub, scatter: Path, gather: Path, tmp_path: Path
) -> None:
    out = tmp_path / "wide.json"
    run = collhub(
        "compose",
        scatter,
        gather,
        "-o",
        out,
        "--instances",
        2,
        "--embed",
        8,
        "--ranks",
        "1,3,5,7",
        "--json",
    )
    report = run.report()
    assert (report["collective"], report["num_ranks"], report["unit_count"]) == ("custom", 8, 8)
    assert set(json.loads(out.read_text())["steps"]["rank"]) == {1, 3, 5, 7}
    assert collhub("verify", out).code == 0


def test_ranks_alone_give_other_numbers(collhub, save, tmp_path: Path) -> None:
    broadcast = save(binomial_broadcast(4), tmp_path / "broadcast.json")
    report = collhub(
        "compose", broadcast, "-o", tmp_path / "x.json", "--ranks", "3,1,2,0", "--json"
    ).report()
    assert (report["collective"], report["root"]) == ("broadcast", 3)


def test_embedding_without_ranks_takes_the_first_ones(
    collhub, gather: Path, tmp_path: Path
) -> None:
    assert collhub("compose", gather, "-o", tmp_path / "x.json", "--embed", 6).code == 0
    assert set(json.loads((tmp_path / "x.json").read_text())["steps"]["rank"]) == {0, 1, 2, 3}


def test_copies_take_parts_or_turns(collhub, save, tmp_path: Path) -> None:
    source = save(binomial_broadcast(2), tmp_path / "broadcast.json")
    for name, arguments in (("parts", ()), ("turns", ("--interleaved",))):
        assert (
            collhub(
                "compose", source, "-o", tmp_path / f"{name}.json", "--instances", 2, *arguments
            ).code
            == 0
        )
        assert collhub("verify", tmp_path / f"{name}.json").code == 0


def test_one_part_may_come_from_standard_input(collhub, scatter: Path, gather: Path) -> None:
    run = collhub("compose", "-", gather, "-o", "-", "--to", "json", stdin=scatter.read_bytes())
    assert (run.code, run.err) == (0, "")
    assert json.loads(run.out)["collective"]["kind"] == "all-reduce"


def test_what_the_whole_does_not_keep_is_a_loss(
    collhub, save, gather: Path, tmp_path: Path
) -> None:
    scatter = ring_reduce_scatter(4)
    lines = replace(scatter.steps, source_line=np.arange(1, len(scatter.steps) + 1, dtype=np.int32))
    vendor = save(
        replace(scatter, steps=lines, extensions={"x-vendor": 1}), tmp_path / "vendor.json"
    )
    named = json.loads(vendor.read_text())
    named["provenance"]["source_name"] = "vendor.xml"
    vendor.write_text(json.dumps(named))
    arguments = ("compose", vendor, gather, "-o", tmp_path / "x.json")
    refused = collhub(*arguments, "--strict")
    assert (refused.code, (tmp_path / "x.json").exists()) == (4, False)
    report = collhub(*arguments, "--json")
    assert [loss["feature"] for loss in report.report()["losses"]] == ["extensions", "source lines"]
    assert report.err.count("warning: ") == 2


def test_losses_of_the_target_format_are_listed_too(
    collhub, ring: Path, gather: Path, tmp_path: Path
) -> None:
    root = json.loads(ring.read_text())
    root["steps"]["control"] = [[], [0], *[[]] * 46]
    ring.write_text(json.dumps(root))
    arguments = ("compose", ring, gather, "-o", tmp_path / "t", "-O", "flatten=true")
    assert collhub(*arguments, "--strict").code == 4
    assert collhub(*arguments, "--json").report()["losses"][0]["feature"] == "control dependencies"


def test_parts_that_do_not_fit_name_rank_and_unit(
    collhub, save, gather: Path, tmp_path: Path
) -> None:
    reduce = save(binomial_reduce(4), tmp_path / "reduce.json")
    run = collhub("compose", reduce, gather, "-o", tmp_path / "x.json")
    assert (run.code, len(run.error_lines), (tmp_path / "x.json").exists()) == (2, 1, False)
    assert "rank 1: all-gather needs INPUT[0], but reduce leaves nothing in OUTPUT[0]" in run.err


def test_parts_of_different_numbers_of_ranks_are_refused(
    collhub, save, gather: Path, tmp_path: Path
) -> None:
    run = collhub(
        "compose",
        gather,
        save(ring_all_gather(3), tmp_path / "three.json"),
        "-o",
        tmp_path / "x.json",
    )
    assert (run.code, len(run.error_lines)) == (2, 1)
    assert "has 4 ranks" in run.err


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--instances", "1"), "a single algorithm without options"),
        (
            ("--interleaved", "--ranks", "0,1,2,3"),
            "--interleaved has no meaning without --instances",
        ),
        (("--ranks", "0,1,two,3"), "is not a list of ranks"),
        (("--ranks", "0,1,2"), "3 ranks are given, the algorithm has 4"),
        (("--ranks", "0,1,2,4"), "rank 4 is not in 0..3"),
        (("--ranks", "0,1,2,2"), "rank 2 is given more than once"),
        (("--embed", "3"), "rank 3 is not in 0..2"),
        (("--instances", "0"), "--instances"),
        (("--instances", "2", "-O", "colour=red"), "there is no option 'colour' here"),
    ],
)
def test_requests_that_mean_nothing_are_refused(
    collhub, gather: Path, tmp_path: Path, arguments, reason: str
) -> None:
    run = collhub("compose", gather, "-o", tmp_path / "x.json", *arguments)
    assert (run.code, run.out, len(run.error_lines)) == (2, "", 1)
    assert reason in run.err
    assert not (tmp_path / "x.json").exists()


def test_standard_streams_are_used_once(collhub, gather: Path, tmp_path: Path) -> None:
    assert collhub("compose", "-", "-", "-o", tmp_path / "x.json").code == 2
    assert collhub("compose", gather, gather, "-o", "-", "--to", "json", "--json").code == 2


def test_no_input_is_a_usage_error(collhub) -> None:
    run = collhub("compose", "-o", "x.json")
    assert (run.code, len(run.error_lines)) == (2, 1)


def test_options_reach_the_readers_that_declare_them(collhub, tmp_path: Path) -> None:
    pytest.importorskip("collhub_msccl")
    moves = 'srcbuf="i" srcoff="0" dstbuf="o" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"'
    blocks = {"r": 'send="-1" recv="1"', "s": 'send="0" recv="-1"', "cpy": 'send="-1" recv="-1"'}
    ranks = [
        f'<gpu id="{rank}" i_chunks="1" o_chunks="1" s_chunks="0">'
        + "".join(
            f'<tb id="{number}" {blocks[kind]} chan="0"><step s="0" type="{kind}" {moves}/></tb>'
            for number, kind in enumerate(kinds)
        )
        + "</gpu>"
        for rank, kinds in enumerate((["r"], ["s", "cpy"]))
    ]
    header = 'name="x" proto="Simple" nchannels="1" nchunksperloop="1" ngpus="2"'
    header += ' coll="broadcast" inplace="0" outofplace="1"'
    xml = tmp_path / "broadcast.xml"
    xml.write_text(f"<algo {header}>{''.join(ranks)}</algo>")
    run = collhub("compose", xml, xml, "-o", tmp_path / "x.json", "-O", "root=1", "--json")
    assert run.code == 0, run.err
    assert (run.report()["collective"], run.report()["root"]) == ("broadcast", 1)


def test_an_input_that_is_wrong_is_refused_unless_asked_otherwise(
    collhub, save, ring: Path, gather: Path, tmp_path: Path
) -> None:
    root = json.loads(ring.read_text())
    root["steps"]["data"][2] = []
    racy = tmp_path / "racy.json"
    racy.write_text(json.dumps(root))
    out = tmp_path / "x.json"
    run = collhub("compose", racy, gather, "-o", out)
    assert (run.code, out.exists()) == (1, False)
    assert "not correct as claimed" in run.err
    assert collhub("compose", racy, gather, "-o", out, "--verify", "warn").code == 0
