"""Faults of tuner files of NCCL, RCCL and NCCLX, and files of the three writers read back."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from collhub_nccl.options import NcclxTunerOptions, RcclTunerOptions, TunerOptions
from collhub_nccl.plugin import NCCLX_TUNER, RCCL_TUNER
from collhub_nccl.tuner import ncclx, read, write
from collhub_nccl.tuner.ncclx import parse_interval
from collhub_nccl.tuner.rules import EVERY, LARGEST, MAX_RULES, TunerRule, check_rules

import hub_core
from hub_core.model import Collective, CollectiveKind, Diagnostic, Severity
from hub_core.plugin_api import Selection, ServedCalls, Source
from hub_core.testing import ring_all_reduce, selected

Reader = Callable[[Source], Sequence[ServedCalls]]
END = LARGEST
# Lines for all sizes of all collectives, without which NCCL's tuner leaves one channel.
DEFAULTS = "".join(
    f"{name},0,{END},ring,simple,0,-1,-1\n"
    for name in ("allreduce", "broadcast", "reduce", "allgather", "reducescatter")
)


def _read(
    text: str, reader: Reader = read.read, name: str = "file.conf"
) -> tuple[list[tuple[str, int, int | None, str]], list[Diagnostic]]:
    found: list[Diagnostic] = []
    source = Source.of_bytes(name, text.encode())
    served = reader(Source(source.name, source.parts, found.append))
    return [(str(one.kind), one.min_bytes, one.max_bytes, one.by) for one in served], found


def _codes(text: str, reader: Reader = read.read) -> list[tuple[str, int | None]]:
    _, found = _read(text, reader)
    return [(one.code, one.location.line) for one in found]


@pytest.mark.parametrize(
    ("content", "rule"),
    [
        # Without the member `rules`, only the suffix identifies a tuner file.
        ("{}", "unknown-format"),
        ("[1, 2]", "unknown-format"),
        ('{"rules": 3}', "not-a-rule"),
    ],
)
def test_json_is_a_tuner_file_if_it_has_rules(
    collhub: Any, tmp_path: Path, content: str, rule: str
) -> None:
    (tmp_path / "a.json").write_text(content)
    run = collhub("verify", tmp_path / "a.json")
    assert [line.rpartition(" ")[2] for line in run.error_lines] == [f"[{rule}]"]


def test_a_file_with_lines_for_all_sizes_has_no_faults() -> None:
    assert _read(f"allreduce,0,65535,ring,ll,8,1,8\n{DEFAULTS}")[1] == []


def test_a_line_after_one_for_the_same_calls_is_never_reached() -> None:
    text = f"allreduce,0,{END},ring,ll,8,-1,-1\nallreduce,0,9,tree,simple,8,2,16\n{DEFAULTS}"
    _, found = _read(text)
    # The default of all-reduce at the end is not reached either.
    assert [(one.code, one.location.line) for one in found] == [
        ("never-reached", 2), ("never-reached", 3)
    ]  # fmt: skip
    assert found[0].message == "the line is never reached: line 1 before it decides all its calls"
    assert found[0].cure == "remove it, or move it before line 1"


def test_two_lines_together_hide_a_third() -> None:
    rows = ["0,9,ring,ll,8,1,8", f"10,{END},ring,simple,8,1,8", "5,20,tree,ll,8,1,8"]
    _, found = _read("".join(f"allreduce,{row}\n" for row in rows) + DEFAULTS)
    assert [one.location.line for one in found if one.code == "never-reached"] == [3]
    assert "lines 1, 2 before it" in found[1].message


def test_a_line_with_nvls_hides_no_ring_because_some_machines_lack_it() -> None:
    text = f"allreduce,0,{END},nvls,simple,16,1,8\nallreduce,0,{END},ring,simple,8,1,8\n{DEFAULTS}"
    assert _codes(text) == []


def test_a_line_with_other_filters_is_not_hidden() -> None:
    text = f"allreduce,0,{END},ring,ll,8,1,8\nallreduce,0,{END},ring,ll,8,2,16\n{DEFAULTS}"
    assert _codes(text) == []


def test_windows_that_share_their_border_overlap() -> None:
    rows = "allreduce,0,65536,ring,ll,8,1,8\nallreduce,65536,131072,ring,simple,8,1,8\n"
    _, (finding,) = _read(rows + DEFAULTS)
    assert (finding.code, finding.severity) == ("overlap", Severity.WARNING)
    assert finding.location.line == 2
    assert finding.message == "overlap: line 1 matches sizes 65536 too, and decides them"
    assert finding.cure.startswith("begin it at 65537")


def test_a_wide_line_after_a_narrow_one_is_a_default() -> None:
    text = f"allreduce,5,9,ring,ll,8,1,8\nallreduce,0,{END},ring,simple,8,1,8\n{DEFAULTS}"
    assert _codes(text) == []


def test_sizes_served_only_by_nvls_lose_channels_elsewhere() -> None:
    text = DEFAULTS.replace(f"allreduce,0,{END},ring", f"allreduce,0,{END},nvls")
    _, (finding,) = _read(text)
    assert (finding.code, finding.severity) == ("one-channel", Severity.WARNING)
    assert "matches all-reduce of all sizes" in finding.message


@pytest.mark.parametrize(
    ("line", "code", "cure"),
    [
        ("allreduce,0,64K,ring,ll,8,1,8", "unit", "write 65536"),
        ("allreduce,0,1MiB,ring,ll,8,1,8", "unit", "write 1048576"),
        ("allreduce,0,1e6,ring,ll,8,1,8", "out-of-range", "write bytes"),
        ("allreduce,0,-1,ring,ll,8,1,8", "out-of-range", "write bytes"),
        ("allreduce,0,9,ring,ll,65,1,8", "out-of-range", "write 0"),
        ("allreduce,0,9,ring,ll,-2,1,8", "out-of-range", "write 0"),
        ("allreduce,0,9,ring,ll,8,0,8", "out-of-range", "write the number, or -1"),
        ("allreduce,0,9,ring,ll,8,16,2", "out-of-range", "nNodes comes before nRanks"),
        ("allreduce,0,9,ring,ll,8,1,8,-1,2", "out-of-range", "write -1"),
        ("alltoall,0,9,ring,ll,8,1,8", "unknown-word", "remove the line"),
        ("allreduce,0,9,RING,ll,8,1,8", "unknown-word", "write ring"),
        ("allreduce,,0,9,ring,ll,8,1,8", "not-a-rule", "write -1 for any number"),
        ("allreduce,0,4294967295,ring,ll,8,1,8", "ends-early", f"write {END}"),
        ("allreduce,0,9,nvls_tree,simple,8,1,8", "refused-choice", "write nvls for one node"),
        ("allgather,0,9,pat,simple,8,2,16", "refused-choice", "write ring"),
        ("allreduce,0,9,tree,ll,8,1,8", "slow-choice", "write ring"),
        ("# allreduce,0,9,ring,ll,8,1,8", "", ""),
        (" # a comment after blanks", "", ""),
        (" #allreduce,0,9,ring,ll,8,1,8", "unknown-word", "remove the line"),
        ("# collective,bytesPerRank", "unit", "multiply sizes per rank"),
    ],
)
def test_a_fault_has_line_and_cure(line: str, code: str, cure: str) -> None:
    _, found = _read(f"\n{line}\n{DEFAULTS}")
    here = [one for one in found if one.location.line == 2]
    assert [one.code for one in here] == [code] * bool(code)
    assert all(one.cure.startswith(cure) for one in here)


def test_all_faults_of_a_line_are_reported() -> None:
    assert _codes(f"alltoall,0,65536,rings,ll256,-1,1,8\n{DEFAULTS}") == [
        *[("unknown-word", 1)] * 3, ("one-channel", 1)
    ]  # fmt: skip


def test_rccl_keeps_its_channels_and_its_choice_without_a_line() -> None:
    text = "# a comment\r\nallreduce,0,65536,tree,ll128,-1,2,16,-1,-1\r\n"
    served, found = _read(text, read.read_rccl)
    assert served == [("all-reduce", 0, 65536, "tree ll128 NCCL's channels")]
    assert found == []


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("allreduce,0,,ring,ll,8,1,8", "an empty field, so that RCCL skips the line"),
        ("allreduce,0,9,rings,ll,8,1,8", "RCCL skips the line"),
        ("allreduce,0,9,nvls,simple,8,1,8", "RCCL skips the line: nvls needs NVSwitch"),
        ("reduce,0,9,tree,simple,8,1,8", "RCCL skips the line: reduce has ring"),
    ],
)
def test_lines_that_rccl_skips(line: str, message: str) -> None:
    served, (finding,) = _read(line, read.read_rccl)
    assert served == []
    assert message in finding.message


def test_a_gap_of_one_byte_is_a_wrong_border() -> None:
    rows = "allreduce,0,65535,ring,ll,-1,1,8\nallreduce,65537,131071,ring,simple,-1,1,8\n"
    _, (finding,) = _read(rows, read.read_rccl)
    assert (finding.code, finding.location.line) == ("short-gap", 2)
    assert finding.message == "gap: no line matches all-reduce of 65536 to 65536 bytes"
    assert finding.cure == "begin this line at 65536"


def test_a_wide_gap_is_a_note_because_rccl_chooses_there() -> None:
    rows = "allreduce,0,9,ring,ll,-1,1,8\nallreduce,1000,2000,ring,simple,-1,1,8\n"
    _, (finding,) = _read(rows, read.read_rccl)
    assert (finding.code, finding.severity) == ("gap", Severity.NOTE)


@pytest.mark.parametrize(
    ("text", "interval"),
    [
        ("*", EVERY),
        ("", EVERY),
        ("8", (8, 8)),
        ("[1,2]", (1, 2)),
        ("(1,4)", (2, 3)),
        ("[ 1 , )", (1, LARGEST)),
        ("(,4]", (0, 4)),
        ("(4,5)", (5, 4)),
        ("[4", None),
        ("-1", None),
        ("4K", None),
        ("9" * 5000, None),
        ("0" * 5000, None),
    ],
)
def test_intervals_of_ncclx(text: str, interval: tuple[int, int] | None) -> None:
    assert parse_interval(text) == interval


def test_ncclx_counts_bytes_per_rank() -> None:
    text = "allgather,[0,1024),ring,ll,-1,2,8\nallgather,[1024,),ring,simple,16,2,8,524288\n"
    served, found = _read(text, ncclx.read)
    assert served == [
        ("all-gather", 0, 16 * 1024 - 1, "ring ll NCCL's channels"),
        ("all-gather", 16 * 1024, None, "ring simple 16 channels"),
    ]
    assert found == []


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("allgather,[9,1],ring,ll,-1,2,8", "out-of-range"),
        ("allgather,64KiB,ring,ll,-1,2,8", "unit"),
        ("allgather,0,1024,ring,ll,-1,2,8", "unknown-word"),
        ("allgather,[0,9],tree,ll,-1,2,8", "refused-choice"),
        ("allgather,[0,9],ring,ll,100,2,8", "out-of-range"),
        (f"allgather,{'9' * 5000},ring,ll,-1,2,8", "out-of-range"),
        (f"allgather,[0,9],ring,ll,-1,2,8,{'9' * 5000}", "out-of-range"),
        ("allgather,[0,9],ring,ll,-1,2", "not-a-rule"),
        ("# collective,min_bytes,max_bytes", "unit"),
    ],
)
def test_lines_that_ncclx_refuses(line: str, code: str) -> None:
    served, found = _read(line, ncclx.read)
    assert served == []
    assert found[0].code == code
    assert found[0].location.line == 1


def test_the_first_rule_of_ncclx_hides_later_ones() -> None:
    rows = "allreduce,*,nvls,simple,-1,*,*\nallreduce,*,ring,simple,-1,*,*\n"
    assert _codes(rows, ncclx.read) == [("never-reached", 2)]


def _json(text: str) -> tuple[list[tuple[str, int, int | None, str]], list[Diagnostic]]:
    return _read(text, ncclx.read, "tuner.json")


def test_faults_of_json_have_the_line_of_their_rule() -> None:
    rule = (
        '{"filter": {"collective": "allgather"}, "config": {"algorithm": "%s", "protocol": "ll"}}'
    )
    text = '{"rules": [\n' + rule % "ring" + ",\n\n" + rule % "rings" + "\n]}"
    served, (finding,) = _json(text)
    assert served == [("all-gather", 0, None, "ring ll NCCL's channels, sizes per rank")]
    assert (finding.code, finding.location.line) == ("unknown-word", 4)


@pytest.mark.parametrize(
    "text",
    ["{", "[]", '{"rules": 1}', '{"rules": [1]}', '{"rules": [{"filter": {}}]}', "[" * 10**5],
)
def test_other_json_is_one_error(text: str) -> None:
    served, (finding,) = _json(text)
    assert served == []
    assert finding.code == "not-a-rule"


def test_a_number_of_thousands_of_digits_in_json_is_named() -> None:
    _, (finding,) = _json(f'{{"rules": [{"9" * 5000}]}}')
    assert (finding.code, "a number is too long" in finding.message) == ("not-a-rule", True)


def _selection(topology: str, kind: CollectiveKind, times: dict[str, Sequence[int]]) -> Selection:
    network = hub_core.parse_topology(topology)
    ranks = network.num_npus
    collective = Collective(kind, ranks, ranks, None, in_place=True)
    chosen = selected(
        collective, (1 << 10, 1 << 15, 1 << 22), times, lambda name, size: ring_all_reduce(ranks)
    )
    return Selection(topology, ranks, max(1, len(network.groups)), (chosen,), network)


TIMES: dict[str, Sequence[int]] = {"double-binary-tree": (1, 2, 9), "ring": (2, 3, 4)}


@pytest.mark.parametrize("topology", ["dgx-h100", "dgx-a100:2", "dgx-h100:2", "ring:6"])
@pytest.mark.parametrize("kind", [CollectiveKind.ALL_REDUCE, CollectiveKind.ALL_GATHER])
def test_written_files_have_no_faults(topology: str, kind: CollectiveKind) -> None:
    selection = _selection(topology, kind, TIMES)
    for result, reader in (
        (write.write(selection, TunerOptions()), read.read),
        (write.write_rccl(selection, RcclTunerOptions()), read.read_rccl),
        (write.write_ncclx(selection, NcclxTunerOptions()), ncclx.read),
        (write.write_ncclx(selection, NcclxTunerOptions(form="json")), ncclx.read),
    ):
        (artifact,) = result.artifacts
        served, found = _read(artifact.content().decode(), reader, artifact.name)
        faults = [one for one in found if one.severity is not Severity.NOTE]
        assert faults == [], artifact.name
        # On H100 nodes large all-reduces keep NVLS, which is faster than rings.
        if (topology, str(kind)) != ("dgx-h100", "all-reduce"):
            assert [row for row in served if row[0] == str(kind)][-1][2] is None, artifact.name


def test_ncclx_windows_are_divided_by_the_ranks() -> None:
    selection = _selection("ring:6", CollectiveKind.ALL_REDUCE, TIMES)
    (artifact,) = write.write_ncclx(selection, NcclxTunerOptions()).artifacts
    assert artifact.content().decode().splitlines()[2:] == [
        "allreduce,[0,10922],ring,ll,-1,1,6",
        "allreduce,[10923,),ring,simple,-1,1,6",
    ]


@pytest.mark.parametrize(("topology", "has_tree"), [("dgx-a100", False), ("dgx-a100:2", True)])
def test_trees_are_for_several_nodes(topology: str, has_tree: bool) -> None:
    result = write.write(_selection(topology, CollectiveKind.ALL_REDUCE, TIMES), TunerOptions())
    (artifact,) = result.artifacts
    tuned = artifact.content().decode().partition("# All other")[0]
    assert (",tree," in tuned) == has_tree


def test_a_ring_that_is_slower_than_nvls_on_the_machine_gets_no_line() -> None:
    network = hub_core.parse_topology("dgx-h100")
    collective = Collective(CollectiveKind.ALL_REDUCE, 8, 8, None, in_place=True)
    sizes = (1 << 10, 1 << 28)
    chosen = selected(collective, sizes, {"ring": (1, 1)}, lambda name, size: ring_all_reduce(8))
    result = write.write(Selection("dgx-h100", 8, 1, (chosen,), network), TunerOptions())
    (artifact,) = result.artifacts
    tuned, _, others = artifact.content().decode().partition("# All other")
    assert [line.split(",")[:5] for line in tuned.splitlines()[1:]] == [
        ["allreduce", "0", tuned.splitlines()[1].split(",")[2], "ring", "ll"]
    ]
    # NCCL's own choice fills the rest, and the loss says why.
    assert f"{END},nvls,simple,0,1,8" in others
    text = "NCCL's own choice is faster than its ring there, and stays"
    assert result.losses
    assert all(str(loss).endswith(text) for loss in result.losses)


def test_rules_are_checked_in_bounded_time() -> None:
    rules = [
        TunerRule(
            number, CollectiveKind.ALL_REDUCE, (number, 2 * number), "ring", "ll",
            ranks=(number % 7, number % 7),
        )
        for number in range(1, 1500)
    ]  # fmt: skip
    assert any(one.code == "overlap" for one in check_rules(rules, read.NCCL, "file"))


def test_rules_beyond_the_limit_are_an_error() -> None:
    lines = "".join(f"allreduce,{n},{n},ring,ll,8,1,8\n" for n in range(MAX_RULES + 1))
    served, found = _read(lines)
    assert len(served) == MAX_RULES
    assert [one.location.line for one in found if one.code == "too-many"] == [MAX_RULES + 1]


@pytest.mark.parametrize("reader", [read.read, read.read_rccl, ncclx.read])
def test_mutated_files_raise_nothing(reader: Reader) -> None:
    chance = random.Random(7)
    lines = (
        "allreduce,0,1048576,ring,ll,-1,1,8,1,0\nallgather,(2097152,),ring,simple,16,[2,),*,524288"
    )
    alphabet = ",[]()*-#09AZkx \n\r\t\0\xff"
    num_findings = 0
    for _ in range(1000):
        text = list(lines)
        for _ in range(chance.randint(1, 8)):
            position = chance.randrange(len(text))
            text[position : position + chance.randint(0, 2)] = chance.choice(alphabet)
        _, findings = _read("".join(text), reader)
        num_findings += bool(findings)
    # Most mutations damage a field or change what a line matches.
    assert num_findings > 500


@pytest.mark.parametrize("reader", [read.read, read.read_rccl])
def test_heading_of_columns_is_one_note(reader: Reader) -> None:
    heading = "collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks\n"
    served, found = _read(heading + DEFAULTS, reader)
    assert [(one.code, one.severity, one.location.line) for one in found] == [
        ("heading", Severity.NOTE, 1)
    ]
    assert len(served) == 5
    assert re.search(RCCL_TUNER.format.signature, heading.encode())


def test_heading_of_columns_of_ncclx_is_one_note() -> None:
    heading = "collective,bytesPerRank,algorithm,protocol,channels,nNodes,nLocalRanks\n"
    _, found = _read(heading + "allreduce,*,ring,simple,4,*,*\n", ncclx.read, "file.csv")
    assert ("heading", 1) in [(one.code, one.location.line) for one in found]
    assert not [one for one in found if one.severity is Severity.ERROR]
    assert re.search(NCCLX_TUNER.format.signature, heading.encode())
