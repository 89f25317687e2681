"""`collhub diagnose`: the truths of the corpus, reports, and files that are not dumps."""

from __future__ import annotations

import json
import pickle
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from collhub_diagnosis.plugin import collhub_commands
from collhub_diagnosis.read_evidence import rank_of, read_evidence
from collhub_diagnosis.report import create_report
from collhub_diagnosis.verdict import diagnose_evidence

from hub_core.model import InputError
from hub_core.reports import to_json

# kind, culprits, waiting, group, sequence; by torchfrtrace of PyTorch 2.14.1, corrected where two
# ranks differ (both are named), where states differ (skew), and for ranks that only wait.
TRUTHS = {
    "ok": ("none", [], [], [], None),
    "missing_rank": ("late", [2], [0, 1, 3], [0, 1, 2, 3], 3),
    "type_mismatch": ("type", [0, 1], [], [0, 1], 2),
    "size_mismatch": ("size", [0, 1], [], [0, 1], 1),
    "dtype_mismatch": ("dtype", [0, 1], [], [0, 1], 1),
    "state_mismatch": ("skew", [], [], [0, 1], 1),
    "a2a_ok": ("none", [], [], [], None),
    "a2a_bad": ("all-to-all", [0, 1], [], [0, 1], 1),
    "ring": ("late", [1], [0], [0, 1], 5),
    "subgroup_hang": ("late", [3], [0, 1, 2], [2, 3], 1),
    "no_dump": ("undecided", [], [0], [0, 1], 1),
    "p2p_coalesced": ("none", [], [], [], None),
    "gloo3_json": ("none", [], [], [], None),
}


@pytest.fixture(scope="module")
def samples(corpus: Path) -> Path:
    folder = corpus / "evidence" / "fr"
    if not folder.is_dir():
        pytest.skip("the corpus has no Flight Recorder dumps")
    return folder


def dump(**changes: object) -> dict[str, Any]:
    """The dump of a rank of two that waits in an all-reduce."""
    entry: dict[str, object] = {
        "record_id": 0,
        "pg_id": 0,
        "process_group": ["0", "default_pg"],
        "collective_seq_id": 1,
        "p2p_seq_id": 0,
        "op_id": 1,
        "profiling_name": "nccl:all_reduce",
        "time_created_ns": 1_700_000_000_000_000_000,
        "input_sizes": [[4, 2]],
        "output_sizes": [[4, 2]],
        "input_dtypes": ["Float"],
        "output_dtypes": ["Float"],
        "state": "started",
        "retired": False,
        "timeout_ms": 600000,
        "is_p2p": False,
    }
    groups = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
    return {"version": "2.10", "pg_config": groups, "entries": [entry | changes]}


def test_offers() -> None:
    assert [one.name for one in collhub_commands()] == ["diagnose"]


@pytest.mark.parametrize("name", TRUTHS)
def test_truths_of_the_corpus(collhub, samples: Path, name: str) -> None:
    run = collhub("diagnose", samples / name, "--json")
    report = run.report()
    keys = ("kind", "culprits", "waiting", "group", "sequence")
    assert tuple(report[key] for key in keys) == TRUTHS[name]
    assert report["missing_dumps"] == ([1] if name == "no_dump" else [])
    assert run.code == (0 if report["kind"] in ("none", "skew") else 1)


def test_the_hostile_sample_is_refused(collhub, samples: Path) -> None:
    run = collhub("diagnose", samples / "evil_rank_0")
    assert run.code == 1
    assert "evil_rank_0: byte 20: the opcode GLOBAL is not allowed in a dump" in run.err


def mutate(content: bytes, generator: random.Random) -> bytes:
    """Change some bytes, or cut, repeat or remove a part."""
    changed = bytearray(content)
    for _ in range(generator.randrange(1, 5)):
        at = generator.randrange(len(changed))
        end = at + generator.randrange(1, 40)
        kind = generator.randrange(8)
        if kind == 0:
            del changed[at:end]
        elif kind == 1:
            changed[at:at] = changed[at:end]
        elif kind == 2 and at > 10:
            del changed[at:]
        else:
            changed[at] = generator.randrange(256)
    return bytes(changed)


def mutated_samples(samples: Path, count: int) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of changed samples; the same ones in every run."""
    files = sorted([*samples.glob("*/fr_rank_0*"), samples / "fr_rank_0.json"])
    generator = random.Random(36)
    for number in range(count):
        source = files[number % len(files)]
        yield source.name, mutate(source.read_bytes(), generator)


@pytest.mark.once
def test_the_command_reads_or_refuses_mutated_samples(
    collhub, samples: Path, tmp_path: Path
) -> None:
    for name, content in mutated_samples(samples, 100):
        (tmp_path / name).write_bytes(content)
        run = collhub("diagnose", tmp_path / name, "--json")
        assert run.code in (0, 1), run.err
        assert run.out or len(run.error_lines) == 1


@pytest.mark.once
def test_2000_mutated_samples_give_a_verdict_or_an_error_with_the_file(
    samples: Path, tmp_path: Path
) -> None:
    verdicts = 0
    for name, content in mutated_samples(samples, 2000):
        (tmp_path / name).write_bytes(content)
        started = time.process_time()
        message = name
        try:
            to_json(create_report(diagnose_evidence(read_evidence([str(tmp_path / name)]))))
            verdicts += 1
        except InputError as error:
            message = str(error)
        assert name in message
        assert time.process_time() - started < 1
    assert 0 < verdicts < 2000


def test_the_text_names_culprits_and_frames(collhub, samples: Path) -> None:
    run = collhub("diagnose", samples / "subgroup_hang")
    assert run.code == 1
    lines = run.out.splitlines()
    assert lines[:3] == [
        "verdict   late: ranks have not issued an operation in which others wait",
        "culprits  rank 3",
        "waiting   ranks 0-2",
    ]
    assert "  at step (train.py:11)" in lines


def test_files_and_folders_are_read_together(collhub, tmp_path: Path) -> None:
    (tmp_path / "trace").mkdir()
    (tmp_path / "trace" / "rank_0").write_bytes(pickle.dumps(dump(), 2))
    (tmp_path / "trace" / "readme.txt").write_text("no dump")
    (tmp_path / "rank_1.json").write_text(json.dumps(dump()))
    run = collhub("diagnose", tmp_path / "trace", tmp_path / "rank_1.json", "--json")
    report = run.report()
    assert (report["kind"], report["dumps"]) == ("network", 2)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("rank", b"{}", "does not end with a rank"),
        ("rank_1000000000007", b"{}", "does not end with a rank"),
        ("rank_0", b"", "the file is empty"),
        ("rank_0", b"\x7fELF", "neither a pickle nor a JSON object"),
        ("rank_0", b"{", "this is not JSON"),
        ("rank_0", b'{"traceEvents": []}', "there is no event of a profile in it"),
        ("rank_0", pickle.dumps([1], 2), "neither a pickle|this is not a Flight Recorder dump"),
        ("rank_0", b'{"version": 2}', "version 2 is not a text"),
        ("rank_0", b'{"entries": {"a": 1}}', "'entries' is not a list"),
        ("rank_0", b'{"entries": [3]}', "entry 0: it is a int, not an object"),
        ("rank_0", b'{"version": "2.1", "pg_config": {"0": {"ranks": "[x]"}}}', "no list of ranks"),
        ("rank_0", b'{"version": "2.1", "pg_config": {"0": {"ranks": "[1, 1]"}}}', "appears twice"),
        (
            "rank_0",
            b'{"version": "2.1", "pg_status": {"0": {"last_started_collective": "x"}}}',
            "'x' is not a sequence number",
        ),
    ],
)
def test_other_files_are_refused(
    collhub, tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    run = collhub("diagnose", tmp_path / name)
    assert run.code == 1
    (line,) = run.error_lines
    assert name in line
    assert any(part in line for part in message.split("|")), line


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"collective_seq_id": "1"}, "collective_seq_id '1' is not an integer"),
        ({"collective_seq_id": 2**64}, "is not an integer from -1 to 2^63"),
        ({"record_id": True}, "record_id True is not an integer"),
        ({"state": "running"}, "state 'running' is not scheduled, started or completed"),
        ({"retired": 1}, "retired is neither true nor false"),
        ({"is_p2p": None}, "is_p2p is neither true nor false"),
        ({"process_group": "0"}, "process_group is no pair"),
        ({"process_group": [1, 2]}, "process_group has a member that is not a text"),
        ({"profiling_name": 1}, "profiling_name is not a text"),
        ({"input_sizes": "ab"}, "input_sizes is no list of shapes"),
        ({"input_sizes": [[-1]]}, "input_sizes has a size that is not an integer"),
        ({"output_sizes": [[[1]]]}, "output_sizes is no list of shapes"),
        ({"input_dtypes": [1]}, "input_dtypes is no list of texts"),
        ({"frames": 1}, "frames is not a list"),
        ({"frames": [{"name": "f"}]}, "a frame has no name, filename and line"),
    ],
)
def test_wrong_fields_are_refused_with_their_entry(
    collhub, tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    (tmp_path / "rank_0.json").write_text(json.dumps(dump(**changes)))
    run = collhub("diagnose", tmp_path)
    assert run.code == 1
    (line,) = run.error_lines
    assert "rank_0.json: entry 0: " in line
    assert message in line


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"process_group": ("0", ["tp"])}, "process_group has a member that is not a text"),
        ({"output_sizes": (([1],),)}, "output_sizes is no list of shapes"),
        ({"input_dtypes": (["Float"],)}, "input_dtypes is no list of texts"),
    ],
)
def test_tuples_with_members_of_wrong_types_are_refused(
    collhub, tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    (tmp_path / "rank_0").write_bytes(pickle.dumps(dump(**changes), 2))
    run = collhub("diagnose", tmp_path / "rank_0")
    assert run.code == 1
    (line,) = run.error_lines
    assert f"rank_0: entry 0: {message}" in line


@pytest.mark.parametrize("size", [True, 1.0])
def test_a_size_that_equals_an_integer_of_an_earlier_entry_is_refused(
    collhub, tmp_path: Path, size: object
) -> None:
    document = dump(input_sizes=[[1]], output_sizes=[[4]])
    document["entries"] += dump(record_id=1, input_sizes=[[size]])["entries"]
    (tmp_path / "rank_0.json").write_text(json.dumps(document))
    run = collhub("diagnose", tmp_path)
    assert run.code == 1
    assert "entry 1: input_sizes has a size that is not an integer" in run.err


def test_two_dumps_of_one_rank_are_refused(collhub, tmp_path: Path) -> None:
    for name in ("a_rank_0", "b_rank_0"):
        (tmp_path / name).write_text(json.dumps(dump()))
    run = collhub("diagnose", tmp_path)
    assert run.code == 1
    assert "b_rank_0: two dumps of rank 0: the other one is" in run.err


def _name_dumps(tmp_path: Path, name: str) -> None:
    """Write the dumps of ranks 0 and 1 under `name`, formatted with `rank`."""
    for rank in (0, 1):
        (tmp_path / name.format(rank=rank)).write_text(json.dumps(dump()))


@pytest.mark.parametrize(
    "name",
    [
        "_dump_{rank}_iter120.json",
        "_dump_{rank}_step000120.json",
        "trace_{rank}-iteration-7",
        "trace{rank}iter_7.pkl",
        "my_step_prefix_step{rank}x{rank}",
    ],
)
def test_the_number_of_an_iteration_is_not_the_rank(collhub, tmp_path: Path, name: str) -> None:
    _name_dumps(tmp_path, name)
    report = collhub("diagnose", tmp_path, "--json").report()
    assert (report["kind"], report["dumps"]) == ("network", 2)
    assert sorted(read_evidence([str(tmp_path)]).records.dumps) == [0, 1]


def test_the_number_of_a_chunk_is_not_the_rank(collhub, tmp_path: Path) -> None:
    """Monitors write `_dump_{rank}_{chunk:04d}.json`; the chunk counted as the rank."""
    _name_dumps(tmp_path, "_dump_{rank}_0012.json")
    assert sorted(read_evidence([str(tmp_path)]).records.dumps) == [0, 1]
    (tmp_path / "_dump_1_0013.json").write_text(json.dumps(dump()))
    run = collhub("diagnose", tmp_path)
    assert run.code == 1
    assert "_dump_1_0013.json: two dumps of rank 1" in run.err
    assert "of one iteration or chunk" in run.err


@pytest.mark.parametrize(
    ("name", "rank"), [("_dump_3_4096", 4096), ("trace_3_0012.json", 12), ("_dump_3_12.json", 12)]
)
def test_other_names_with_two_numbers_end_with_the_rank(name: str, rank: int) -> None:
    """PyTorch appends the rank to a prefix, which may end with a number."""
    assert rank_of(name) == rank


def test_a_name_with_only_an_iteration_has_no_rank(collhub, tmp_path: Path) -> None:
    (tmp_path / "dump_iter1.json").write_text(json.dumps(dump()))
    run = collhub("diagnose", tmp_path)
    assert run.code == 1
    assert "dump_iter1.json: the name of the file does not end with a rank" in run.err


def test_the_rank_in_a_dump_decides(collhub, tmp_path: Path) -> None:
    for number, rank in ((8, 0), (9, 1)):
        (tmp_path / f"dump_{number}.json").write_text(json.dumps(dump() | {"rank": rank}))
    assert sorted(read_evidence([str(tmp_path)]).records.dumps) == [0, 1]
    (tmp_path / "dump_8.json").write_text(json.dumps(dump() | {"rank": "0"}))
    run = collhub("diagnose", tmp_path)
    assert run.code == 1
    assert "dump_8.json: rank '0' is not an integer from 0 to 16777216" in run.err


def test_folders_without_dumps_and_missing_files_are_refused(collhub, tmp_path: Path) -> None:
    assert "has no file whose name ends with a rank" in collhub("diagnose", tmp_path).err
    assert "No such file" in collhub("diagnose", tmp_path / "rank_0").err
    assert collhub("diagnose").code == 2


def test_unknown_versions_are_read_with_a_note(collhub, tmp_path: Path) -> None:
    (tmp_path / "rank_0.json").write_text(json.dumps(dump() | {"version": "3.0"}))
    run = collhub("diagnose", tmp_path)
    assert "note: " in run.err
    assert "version '3.0' is not known, read by key" in run.err


def test_the_wait_for_graph_is_drawn(collhub, samples: Path, tmp_path: Path) -> None:
    pytest.importorskip("collhub_pictures")
    out = tmp_path / "waits.svg"
    run = collhub("diagnose", samples / "subgroup_hang", "--picture", out)
    assert run.code == 1
    assert f"wrote {out}" in run.err
    content = out.read_text()
    assert ">rank 3</text>" in content
    assert ">all_reduce (1)</text>" in content
