"""`collhub synthesize` with a synthesizer that every test can see through.

It sends everything in turn over one ring.
"""

from __future__ import annotations

import importlib.resources
import json
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest

from hub_core.cli.main import main

# The synthesizer makes its algorithm of a schedule.
pytest.importorskip("hub_core.schedules")

MakePlugin = Callable[..., Path]
Program = Callable[..., tuple[int, str, str]]

RELAY = """
@dataclass(frozen=True, slots=True)
class RoundsOptions:
    pieces: int = option(OptionType.INT, 1, "h")
    hops_left_out: int = option(OptionType.INT, 0, "h")

@hookimpl
def collhub_producers():
    reference = f"{__name__}:synthesize"
    return [Synthesizer("rounds", "a ring, hop by hop", reference, RoundsOptions)]

def synthesize(request, options):
    import numpy as np
    from dataclasses import replace
    from hub_core import CollectiveKind, UsageError
    from hub_core.schedules import Chunks, Transfers, algorithm_of

    kind, ranks = request.collective.kind, request.collective.num_ranks
    if kind not in (CollectiveKind.BROADCAST, CollectiveKind.ALL_GATHER):
        raise UsageError("only broadcasts and all-gathers")
    n, pieces = request.topology.num_npus, options.pieces
    shares = 1 if kind is CollectiveKind.BROADCAST else ranks
    collective = replace(request.collective, unit_count=pieces * shares)
    chunks = Chunks.cut(collective, [1] * pieces)
    start = np.asarray(request.npus)[chunks.origin]
    chunk, hop = (axis.ravel() for axis in np.indices((len(chunks), n - 1 - options.hops_left_out)))
    source = (start[chunk] + hop) % n
    columns = [chunk, source, (source + 1) % n, source, hop, hop + 1]
    ones = np.ones(len(chunk), np.int64)
    request.progress(0.5, "halfway")
    algorithm = algorithm_of(
        collective,
        chunks,
        Transfers(*columns, ones > 1, ones),
        npus=request.npus,
        num_npus=n,
        wanted=request.wanted,
        collective_bytes=request.collective_bytes,
    )
    return SynthesisResult(
        algorithm,
        1000 * (n - 1),
        {"diameter": 1000},
        {"pieces": pieces},
        request.wanted is not None,
        True,
    )
"""


@pytest.fixture
def collhub(make_plugin: MakePlugin, capsys: pytest.CaptureFixture[str]) -> Program:
    make_plugin("rounds", RELAY)

    def run(*arguments: object) -> tuple[int, str, str]:
        code = main(["synthesize", "rounds", *map(str, arguments)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_algorithm_is_verified_and_written(collhub: Program, tmp_path: Path) -> None:
    out = tmp_path / "ring"
    code, text, errors = collhub(
        "--collective", "all-gather", "--topology", "ring:4", "--size", "1MiB", "-o", out
    )
    assert code == 0
    assert "algorithm     all-gather by rounds, 4 ranks, 28 steps" in text
    assert "verification  correct" in text
    assert "bounds        diameter 1.00 us; time is 3.000 times the largest" in text
    assert errors == f"wrote {out}.0.et and 3 more\n"
    assert main(["verify", str(out)]) == 0


WRONG = (
    *("--collective", "all-gather", "--topology", "ring:4", "--size", "1MiB"),
    *("-O", "hops_left_out=1"),
)


def test_wrong_algorithm_is_not_written(collhub: Program, tmp_path: Path) -> None:
    out = tmp_path / "ring"
    code, text, errors = collhub(*WRONG, "-o", out)
    assert (code, text) == (1, "")
    assert "the algorithm of rounds: not correct as claimed" in errors
    assert not list(tmp_path.glob("ring*"))


@pytest.mark.parametrize(("policy", "verdict"), [("warn", "wrong"), ("off", "not asked for")])
def test_wrong_algorithm_is_written_where_the_user_says_so(
    collhub: Program, tmp_path: Path, policy: str, verdict: str
) -> None:
    out = tmp_path / "ring"
    code, text, errors = collhub(*WRONG, "-o", out, "--verify", policy)
    assert code == 0
    assert f"verification  {verdict}" in text
    assert ("warning:" in errors) is (policy == "warn")
    assert out.with_name("ring.0.et").exists()


def test_what_is_made_is_called_after_its_collective_in_a_folder(
    collhub: Program, tmp_path: Path
) -> None:
    arguments = ("--collective", "broadcast", "--topology", "ring:4", "--size", "1MiB")
    code, _, errors = collhub(*arguments, "-o", f"{tmp_path}/", "--to", "json")
    assert (code, errors) == (0, f"wrote {tmp_path}/broadcast.json\n")


def test_report_follows_its_schema(collhub: Program) -> None:
    code, text, _ = collhub(
        "--collective",
        "all-gather",
        "--topology",
        "ring:4",
        "--size",
        "1MiB",
        "--json",
        "-O",
        "pieces=2",
    )
    assert code == 0
    report = json.loads(text)
    schema = json.loads(
        importlib.resources.files("hub_core.schemas")
        .joinpath("report-synthesize-1.json")
        .read_bytes()
    )
    jsonschema.validate(report, schema)
    assert (report["time_ns"], report["bound_ns"], report["ratio_to_bound"]) == (3000, 1000, 3.0)
    assert report["statistics"] == {"pieces": 2}
    assert report["is_verified"] is True


def test_ranks_without_relays_are_the_whole_network(collhub: Program) -> None:
    arguments = (
        "--collective",
        "broadcast",
        "--topology",
        "fc:8",
        "--size",
        "1MiB",
        "--ranks",
        "2,4-6",
        "--root",
        5,
        "--json",
    )
    report = json.loads(collhub(*arguments)[1])
    assert (report["num_ranks"], report["topology"]) == (4, "fc:8?npus=2,4-6")


def test_relays_take_part_in_the_algorithm(collhub: Program, tmp_path: Path) -> None:
    out = tmp_path / "group.json"
    arguments = (
        "--collective",
        "broadcast",
        "--topology",
        "ring:6",
        "--size",
        "1MiB",
        "--ranks",
        "1,4",
        "--relays",
        "-o",
        out,
    )
    assert collhub(*arguments)[0] == 0
    assert json.loads(out.read_bytes())["collective"]["num_ranks"] == 6


def test_steps_of_some_ranks_are_written_alone(collhub: Program, tmp_path: Path) -> None:
    arguments = (
        "--collective",
        "all-gather",
        "--topology",
        "ring:8",
        "--size",
        "1MiB",
        "--write-ranks",
        "0,5-6",
    )
    code, text, _ = collhub(*arguments, "-o", tmp_path / "part")
    assert code == 0
    assert "replayed by the synthesizer as a whole" in text
    assert sorted(path.name for path in tmp_path.glob("part*")) == [
        "part.0.et",
        "part.5.et",
        "part.6.et",
    ]


def test_traces_of_some_ranks_are_those_of_the_whole(collhub: Program, tmp_path: Path) -> None:
    arguments = ("--collective", "all-gather", "--topology", "ring:8", "--size", "1MiB", "-o")
    collhub(*arguments, tmp_path / "part", "--write-ranks", "5")
    collhub(*arguments, tmp_path / "whole")
    assert (tmp_path / "part.5.et").read_bytes() == (tmp_path / "whole.5.et").read_bytes()


GOOD = ("--collective", "all-gather", "--topology", "ring:4", "--size", "1MiB")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            (*GOOD, "--root", "1"),
            "--root has no meaning for all-gather; "
            "it belongs to broadcast, reduce, gather, scatter",
        ),
        (
            (*GOOD, "--relays"),
            "--relays has no meaning where all NPUs take part; "
            "name those that take part with --ranks",
        ),
        ((*GOOD, "--to", "json"), "--to has no meaning without -o; say where to write: -o OUT"),
        (
            (*GOOD, "--ranks", "1,9"),
            "topology ring:4: NPU 9 is not in 0..3; name each NPU once, as 0,2,4-7",
        ),
        ((*GOOD, "--ranks", "1,,2"), "'1,,2' is not a list of ranks; write for example 0,2,4-7"),
        ((*GOOD, "-O", "pices=2"), "there is no option 'pices' here; did you mean 'pieces'?"),
        ((*GOOD, "--write-ranks", "9"), "topology ring:4 has no NPU 9; name NPUs of 0..3"),
        (
            (*GOOD, "--json", "-o", "-"),
            "--json and the output both use standard output; give -o a path",
        ),
        (
            ("--collective", "all-gather", "--topology", "rong:4", "--size", "1MiB"),
            "unknown topology 'rong'; did you mean 'ring'?",
        ),
        (
            ("--collective", "all-gather", "--topology", "ring:4", "--size", "1"),
            "size '1' has no unit; use one of B, KB,",
        ),
        (
            (
                "--collective",
                "broadcast",
                "--topology",
                "fc:8",
                "--size",
                "1MiB",
                "--ranks",
                "1,2",
                "--root",
                "5",
            ),
            "the root, NPU 5, does not take part on fc:8; name one of 1,2",
        ),
        (
            ("--collective", "reduce", "--topology", "ring:4", "--size", "1MiB"),
            "only broadcasts and all-gathers",
        ),
    ],
)
def test_bad_requests_are_refused_in_one_line(
    collhub: Program, arguments: tuple[str, ...], message: str
) -> None:
    code, text, errors = collhub(*arguments)
    assert (code, text) == (2, "")
    assert errors.startswith(f"error: {message}")
    assert errors.count("\n") == 1


def test_format_that_cannot_hold_a_part_is_refused(collhub: Program, tmp_path: Path) -> None:
    code, _, errors = collhub(*GOOD, "--write-ranks", "1", "-o", tmp_path / "part.json")
    assert code == 2
    assert "the format json cannot hold only some ranks; write Chakra traces: --to chakra" in errors


def test_unknown_synthesizer_names_the_closest(
    collhub: Program, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["synthesize", "round", *GOOD]) == 2
    assert (
        capsys.readouterr().err
        == "error: there is no synthesizer 'round'; did you mean 'rounds'? [unknown-name]\n"
    )
