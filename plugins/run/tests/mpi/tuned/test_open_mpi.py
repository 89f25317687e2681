"""Dynamic rules of Open MPI: golden texts in both forms, and what it would misread."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest
from collhub_mpi.plugin import RulesOptions
from collhub_mpi.tuned.open_mpi import CLASSIC_FILE, JSON_FILE, read, write

from hub_core.model import Algorithm, Collective, CollectiveKind, Diagnostic
from hub_core.plugin_api import SelectedCollective, Selection, Source, SourcePart
from hub_core.testing import binomial_broadcast, ring_all_reduce, selected

SIZES = (1 << 10, 1 << 13, 1 << 20)
CLASSIC = """\
# collhub tune: ring:16, 16 ranks
2 # collectives
0 # allgather
1 # set of rules
0 # communicators of every size
1 # rules: from bytes, algorithm, fan, segment
0 2 0 0 # bruck
2 # allreduce
1 # set of rules
0 # communicators of every size
2 # rules: from bytes, algorithm, fan, segment
0 3 0 0 # recursive_doubling
8192 4 0 0 # ring
"""
GATHER_RULES = "1 # rules: from bytes, algorithm, fan, segment\n0 2 0 0"


def test_a_file_of_another_name_in_a_folder_is_refused_with_the_names() -> None:
    findings: list[Diagnostic] = []
    part = SourcePart("mine.conf", lambda: b"1", None, 1)
    assert read(Source("folder", (part,), findings.append)) == []
    (finding,) = findings
    assert (finding.code, finding.message) == (
        "unknown-file",
        f"no file of this format: the name is not {CLASSIC_FILE} or {JSON_FILE}",
    )
    assert finding.cure == f"name the file {CLASSIC_FILE}"


@pytest.mark.parametrize("form", ["classic", "json"])
def test_one_file_may_have_any_name(form: str) -> None:
    text, _ = _written(GATHERED, REDUCED, form=form)
    findings: list[Diagnostic] = []
    part = SourcePart("mine.txt", text.encode)
    served = read(Source("mine.txt", (part,), findings.append))
    assert [(str(s.kind), s.min_bytes, s.max_bytes, s.by) for s in served] == SERVED
    assert findings == []


def _selected(
    kind: CollectiveKind, times: dict[str, Sequence[int]], made: Algorithm | None = None
) -> SelectedCollective:
    root = 0 if kind.traits.is_rooted else None
    collective = Collective(kind, 16, 16, root, in_place=True)
    algorithm = made or ring_all_reduce(16)
    return selected(collective, SIZES, times, lambda name, size: algorithm)


REDUCED = _selected(CollectiveKind.ALL_REDUCE, {"recursive-doubling": (1, 5, 9), "ring": (2, 4, 4)})
GATHERED = _selected(CollectiveKind.ALL_GATHER, {"bruck": (1, 1, 1)})


def _written(*found: SelectedCollective, form: str = "classic") -> tuple[str, list[str]]:
    result = write(Selection("ring:16", 16, 1, found), RulesOptions(format=form))
    (artifact,) = result.artifacts
    return artifact.content().decode(), [str(loss) for loss in result.losses]


def _read(text: str, name: str = "tuned_rules.conf") -> tuple[list[tuple[object, ...]], list[str]]:
    found: list[Diagnostic] = []
    served = read(Source("openmpi", (SourcePart(name, text.encode),), found.append))
    return [(str(s.kind), s.min_bytes, s.max_bytes, s.by) for s in served], list(map(str, found))


SERVED = [
    ("all-gather", 0, None, "bruck"),
    ("all-reduce", 0, 8191, "recursive_doubling"),
    ("all-reduce", 8192, None, "ring"),
]


def test_classic_text() -> None:
    text, losses = _written(REDUCED, GATHERED)
    assert (text, losses) == (CLASSIC, [])
    assert _read(text) == (SERVED, [])


def test_json_of_version_3() -> None:
    text, _ = _written(REDUCED, GATHERED, form="json")
    document = json.loads(text)
    assert (document["rule_file_version"], document["module"]) == (3, "tuned")
    (rules,) = document["collectives"]["allreduce"]
    assert (rules["comm_size_min"], rules["comm_size_max"]) == (16, 16)
    assert rules["comm_rank_distribution"] == "any"
    sizes = [(one["msg_size_min"], one["msg_size_max"], one["alg"]) for one in rules["rules"]]
    assert sizes == [(0, 8191, "recursive_doubling"), (8192, "inf", "ring")]
    assert _read(text, "tuned_rules.json") == (SERVED, [])


def test_what_open_mpi_has_not_goes_to_the_best_that_it_has() -> None:
    found = _selected(CollectiveKind.ALL_REDUCE, {"swing": (1, 1, 1), "ring": (2, 2, 3)})
    text, losses = _written(found)
    assert "0 4 0 0 # ring" in text
    assert losses == [
        "algorithm (all-reduce, 1 KiB to 1 MiB): Open MPI has no swing;"
        " ring takes 2.33 times the time of the fastest"
    ]


def test_a_collective_without_an_own_algorithm_keeps_the_built_in_decision() -> None:
    text, losses = _written(_selected(CollectiveKind.ALL_REDUCE, {"swing": (1, 1, 1)}))
    assert text.splitlines()[1:] == ["0 # collectives"]
    assert "it chooses itself" in losses[0]


def test_a_pipelined_broadcast_has_segments() -> None:
    whole = binomial_broadcast(16)
    chunked = replace(whole, collective=replace(whole.collective, unit_count=8))
    text, _ = _written(_selected(CollectiveKind.BROADCAST, {"ring": (1, 1, 1)}, chunked))
    # 8 KiB, the size in the middle, in 8 chunks.
    assert "0 3 0 1024 # pipeline" in text
    assert _read(text)[0] == [("broadcast", 0, None, "pipeline in segments of 1024 bytes")]


def test_one_mode_serves_both() -> None:
    text, losses = _written(GATHERED, GATHERED)
    assert text.splitlines()[1] == "1 # collectives"
    assert "calls in and out of place are served alike" in losses[0]


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("8192 4", "0 4", ".conf:13: all-reduce: sizes do not ascend from 0"),
        ("0 3 0 0", "1 3 0 0", ".conf:12: all-reduce: sizes do not ascend from 0"),
        # The rule after the wrong one is valid.
        (GATHER_RULES, "3\n0 2 0 0\n0 3 0 0\n9 2 0 0", ".conf:8: all-gather: sizes do not ascend"),
        ("2 # collectives", "3 # collectives", "the file ends where a collective is expected"),
        ("2 # collectives", "1 # collectives", ".conf:8: more follows than is announced"),
        ("8192 4 0 0", "8192 ring 0 0", ".conf:13: 'ring' where an algorithm is expected"),
        ("8192 4 0 0", "1" * 5000 + " 4 0 0", "11 where"),
        ("2 # allreduce", "99 # allreduce", ".conf:8: 99 is no collective of Open MPI"),
    ],
)
def test_rules_that_open_mpi_misreads_serve_nothing(old: str, new: str, reason: str) -> None:
    assert old in CLASSIC
    served, found = _read(CLASSIC.replace(old, new, 1))
    assert served == []
    assert [reason in one and one.startswith("tuned_rules.conf:") for one in found] == [True]


def test_a_set_without_rules_keeps_the_built_in_decision() -> None:
    """Open MPI 5 and 6 accept it; the entire file was refused."""
    served, found = _read(CLASSIC.replace(GATHER_RULES, "0", 1))
    assert served == SERVED[1:]
    assert found == []


def test_requests_of_version_2_are_passed_over() -> None:
    text = "rule-file-version-2 1 2 1 0 2  0 3 0 0 0  8192 4 0 0 0"
    assert _read(text) == (SERVED[1:], [])


@pytest.mark.parametrize("text", ["{", "[]", '{"rule_file_version": 2, "module": "tuned"}'])
def test_other_json_serves_nothing(text: str) -> None:
    served, found = _read(text, "tuned_rules.json")
    assert (served, found) == ([], ["tuned_rules.json: no rules of version 3 in JSON"])


@pytest.mark.parametrize(
    ("member", "value", "served"),
    [("msg_size_min", False, 0), ("msg_size_max", True, 0), ("seg_size", True, 1)],
)
def test_booleans_of_json_are_no_integers(member: str, value: bool, served: int) -> None:
    rule = {"msg_size_min": 0, "msg_size_max": "inf", "alg": "ring", member: value}
    sets = {"allreduce": [{"rules": [rule]}]}
    document = {"rule_file_version": 3, "module": "tuned", "collectives": sets}
    calls, found = _read(json.dumps(document), "tuned_rules.json")
    assert (len(calls), len(found)) == (served, 1 - served)
    # An invalid size of a segment counts as 0.
    assert all(by == "ring" for *_, by in calls)


@pytest.mark.parametrize("form", ["classic", "json"])
def test_sizes_between_windows_keep_the_built_in_decision(form: str) -> None:
    first, last = REDUCED.windows(None)
    gap = replace(first, max_bytes=4095), replace(last, max_bytes=(1 << 20) - 1)
    text, _ = _written(replace(REDUCED, windows=lambda names: gap), form=form)
    name = "tuned_rules.json" if form == "json" else "tuned_rules.conf"
    rows, problems = _read(text, name)
    assert problems == []
    rules = [
        ("all-reduce", 0, 4095, "recursive_doubling"),
        ("all-reduce", 4096, 8191, "the built-in decision"),
        ("all-reduce", 8192, (1 << 20) - 1, "ring"),
        ("all-reduce", 1 << 20, None, "the built-in decision"),
    ]
    # Without a rule in JSON, Open MPI decides itself.
    assert rows == [rule for rule in rules if form == "classic" or "built-in" not in rule[3]]


def test_the_folder_of_a_file_does_not_matter() -> None:
    assert _read(CLASSIC, "some/folder/tuned_rules.conf") == (SERVED, [])


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (
            "8192 4 0 0",
            "8192 8 0 0",
            ".conf:13: all-reduce has the algorithms 0 to 7, not 8; write",
        ),
        ("2 # allreduce", "0 # allgather", ".conf:8: all-gather has rules before; write all rules"),
    ],
)
def test_rules_without_a_meaning_are_refused_with_a_cure(old: str, new: str, reason: str) -> None:
    served, found = _read(CLASSIC.replace(old, new, 1))
    assert served == []
    assert [reason in one for one in found] == [True]


def _read_set(**members: object) -> tuple[list[tuple[object, ...]], list[str]]:
    rule = {"msg_size_min": 0, "msg_size_max": "inf", "alg": "ring"}
    rule_set = {"comm_size_min": 8, "comm_size_max": 8, "rules": [rule]}
    for name, value in members.items():
        (rule if name in {"msg_size_min", "msg_size_max", "alg"} else rule_set)[name] = value
    sets = {"allreduce": [rule_set]}
    document = {"rule_file_version": 3, "module": "tuned", "collectives": sets}
    return _read(json.dumps(document), "tuned_rules.json")


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        (
            {"alg": "rings"},
            "[0].rules[0]: all-reduce has no algorithm 'rings', so that the rule is",
        ),
        ({"alg": 9}, "[0].rules[0]: all-reduce has the algorithms 0 to 7, not 9; write"),
        ({"msg_size_min": 9, "msg_size_max": 3}, "[0].rules[0]: msg_size_min 9 and msg_size_max 3"),
        ({"msg_size_min": -1}, "[0].rules[0]: msg_size_min -1 and"),
        ({"comm_size_min": 9}, "[0]: comm_size_min 9 and comm_size_max 8 are no range; write"),
        (
            {"comm_rank_distribution": "some"},
            "[0]: comm_rank_distribution 'some' is unknown; write",
        ),
    ],
)
def test_json_rules_that_open_mpi_ignores_are_refused(
    members: dict[str, object], reason: str
) -> None:
    served, (finding,) = _read_set(**members)
    assert served == []
    assert f"tuned_rules.json: collectives.allreduce{reason}" in finding


def test_algorithms_in_json_are_names_or_numbers() -> None:
    assert _read_set(alg=4) == ([("all-reduce", 0, None, "ring")], [])
    assert _read_set(alg="segmented_ring")[0] == [("all-reduce", 0, None, "segmented_ring")]


WHOLE = """\
3 # collectives
1 # allgatherv
2 # sets
0
1
0 1 0 0
8
2
0 5 0 0
4096 3 0 1024
2 # allreduce
2 # sets
2
1
0 3 0 0
16
2
0 3 0 0
65536 4 0 0
6 # barrier
1
0
1
0 4 0 0
"""


def test_files_with_all_collectives_and_several_communicator_sizes_are_checked() -> None:
    served, found = _read(WHOLE)
    assert served == [
        ("all-reduce", 0, None, "recursive_doubling, set of communicator size 2"),
        ("all-reduce", 0, 65535, "recursive_doubling, set of communicator size 16"),
        ("all-reduce", 65536, None, "ring, set of communicator size 16"),
    ]
    gathered, reduced, barrier = found
    assert ".conf:2: the hub does not model allgatherv: only the form" in gathered
    assert ".conf:11: all-reduce: releases differ" in reduced
    assert "the sets of size 2, 16" in reduced
    assert ".conf:20: the hub does not model barrier" in barrier


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("4096 3", "0 3", ".conf:10: allgatherv: sizes do not ascend from 0"),
        ("8\n2\n0 5", "0\n2\n0 5", ".conf:7: allgatherv: communicator sizes do not ascend"),
        ("16\n2", "1\n2", ".conf:16: all-reduce: communicator sizes do not ascend"),
        ("0 4 0 0", "0 four 0 0", ".conf:24: 'four' where an algorithm is expected"),
        ("6 # barrier", "1", ".conf:20: allgatherv has rules before"),
        ("6 # barrier", "22", ".conf:20: 22 is no collective of Open MPI; write a number from 0"),
        ("65536 4", "65536 8", ".conf:19: all-reduce has the algorithms 0 to 7"),
    ],
)
def test_errors_in_any_set_are_found(old: str, new: str, reason: str) -> None:
    assert WHOLE.count(old) == 1
    served, (finding,) = _read(WHOLE.replace(old, new))
    assert served == []
    assert reason in finding


def test_requests_of_version_2_may_be_missing() -> None:
    text = "rule-file-version-2\n1\n2\n1\n0\n2\n0 3 0 0\n8192 4 0 0 8\n"
    assert _read(text) == (SERVED[1:], [])


def test_json_with_other_collectives_and_several_sets() -> None:
    rule = {"alg": "ring"}
    sets = [{"comm_size_max": 8, "rules": [rule]}, {"comm_size_min": 9, "rules": [rule]}]
    collectives = {"scan": [{"rules": [{"alg": "linear"}]}], "allreduce": sets}
    document = {"rule_file_version": 3, "module": "tuned", "collectives": collectives}
    served, (finding,) = _read(json.dumps(document), "tuned_rules.json")
    assert served == [
        ("all-reduce", 0, None, "ring, set of 0 to 8 ranks"),
        ("all-reduce", 0, None, "ring, set of 9 to inf ranks"),
    ]
    assert "tuned_rules.json: the hub does not model scan" in finding
    refused = _read(json.dumps(document).replace("scan", "scans"), "tuned_rules.json")
    assert refused[0] == []
    assert (
        "'scans' is no collective of Open MPI; write one of allgather, allgatherv" in refused[1][0]
    )
