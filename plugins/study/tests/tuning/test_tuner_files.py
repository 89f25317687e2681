"""`collhub tune --check FILE...`: exit codes, findings and formats of single tuner files."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import hub_core
from hub_core.plugin_api import SelectionWriter

END = (1 << 64) - 1
COMPLETE = "".join(
    f"{name},0,{END},ring,simple,0,-1,-1\n"
    for name in ("allreduce", "broadcast", "reduce", "allgather", "reducescatter")
)


@pytest.fixture(autouse=True)
def has_readers() -> None:
    names = {provided.name for provided in hub_core.discover().all(SelectionWriter)}
    if not {"nccl-tuner", "rccl-tuner", "ncclx-tuner"} <= names:
        pytest.skip("the readers of collhub-nccl are not installed")


def _file(folder: Path, text: str, name: str = "mine.conf") -> Path:
    file = folder / name
    file.write_text(text)
    return file


def test_a_file_without_faults_is_exit_0(collhub, tmp_path: Path) -> None:
    run = collhub("tune", "--check", _file(tmp_path, COMPLETE))
    assert run.code == 0
    assert run.err == ""
    assert run.out.splitlines()[1].split()[1:] == [
        *("nccl-tuner", "all-reduce", "all", "sizes", "ring", "simple", "NCCL's", "channels")
    ]


def test_a_finding_has_file_line_and_cure(collhub, tmp_path: Path) -> None:
    file = _file(tmp_path, f"allreduce,0,64K,ring,ll,8,1,8\n{COMPLETE}")
    run = collhub("tune", "--check", file, "--json")
    assert run.code == 1
    (checked,) = run.report()["files"]
    (finding,) = checked["findings"]
    assert (finding["file"], finding["line"]) == (str(file), 1)
    assert (finding["code"], finding["cure"]) == ("unit", "write 65536")


def test_several_files_are_checked_together(collhub, tmp_path: Path) -> None:
    right = _file(tmp_path, COMPLETE)
    wrong = _file(tmp_path, "allgather,[9,1],ring,ll,-1,2,8\n", "ncclx.csv")
    run = collhub("tune", "--check", right, wrong, "--json")
    assert run.code == 1
    report = run.report()
    assert not report["ok"]
    runtimes = [one["runtimes"] for one in report["files"]]
    assert ["NCCL 2.27 to 2.30" in runtimes[0][0], "torchcomms" in runtimes[1][0]] == [True, True]
    assert [(one["format"], one["ok"]) for one in report["files"]] == [
        ("nccl-tuner", True),
        ("ncclx-tuner", False),
    ]


def test_a_named_format_decides_how_a_file_is_read(collhub, tmp_path: Path) -> None:
    # RCCL keeps its number of channels, NCCL's example tuner leaves one.
    file = _file(tmp_path, "allreduce,0,9,ring,ll,-1,1,8\n", "tuner.csv")
    assert collhub("tune", "--check", file).code == 0
    run = collhub("tune", "--check", file, "--to", "nccl-tuner")
    assert run.code == 1
    assert "channels -1 leaves one channel" in run.err


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("absent.conf", None, "cannot be read"),
        ("notes.txt", "no rule\n", "is of no known format"),
        ("rules.txt", COMPLETE, "name one: --to nccl-tuner"),
        (
            "sweep.csv",
            "collective,size_bytes,algorithm,protocol,channels,nodes,ranks,pipeOps,regBuff,"
            "cost_metric,bandwidth_gbps,latency_us\n",
            "give it to tune --measured",
        ),
    ],
)
def test_a_file_that_is_no_tuner_file_is_exit_2(
    collhub, tmp_path: Path, name: str, text: str | None, says: str
) -> None:
    file = tmp_path / name if text is None else _file(tmp_path, text, name)
    run = collhub("tune", "--check", file)
    assert run.code == 2
    assert run.out == ""
    (line,) = run.error_lines
    assert says in line


def test_files_need_the_option(collhub, tmp_path: Path) -> None:
    run = collhub("tune", _file(tmp_path, COMPLETE))
    assert run.code == 2
    assert "give --check FILE..." in run.err


def test_every_line_of_the_samples_is_explained(collhub, measured_corpus: Path) -> None:
    samples = measured_corpus / "samples"
    run = collhub("tune", "--check", samples / "bad_nccl_tuner.conf", "--json")
    assert run.code == 1
    (checked,) = run.report()["files"]
    assert {one["line"] for one in checked["findings"]} == {None, 1, 2, 3}
    for name, code in (
        ("nccl_tuner.conf", 1),
        ("ncclx_tuner.csv", 0),
        ("ncclx_tuner.json", 0),
        ("rccl_tuner_gfx950.csv", 0),
        ("nccl_sweep.csv", 2),
    ):
        assert collhub("tune", "--check", samples / name).code == code, name


def test_all_formats_that_tune_writes_are_without_faults(collhub, tmp_path: Path) -> None:
    folder = tmp_path / "tuned"
    formats = "nccl-tuner,rccl-tuner,ncclx-tuner"
    asked = ("--topology", "dgx-h100", "--collective", "all-reduce", "--size", "1MiB..4MiB")
    run = collhub("tune", *asked, "--jobs", "1", "--with", "ring", "-o", folder, "--to", formats)
    assert run.code == 0, run.err
    files = [path for path in sorted(folder.rglob("*")) if path.suffix in (".conf", ".csv")]
    assert [file.name for file in files] == ["nccl_tuner.conf", "ncclx_tuner.csv", "rccl_tuner.csv"]
    run = collhub("tune", "--check", *files)
    assert run.code == 0, run.err
    assert run.err == ""


@pytest.mark.parametrize(
    "options", [("--tolerance", "3%"), ("--mode", "both"), ("--root", "0"), ("--force",)]
)
def test_options_of_tuning_are_refused_in_a_check(
    collhub, tmp_path: Path, options: tuple[str, ...]
) -> None:
    run = collhub("tune", "--check", _file(tmp_path, COMPLETE), *options)
    assert run.code == 2
    assert f"{options[0]} has no meaning with --check" in run.err


OPEN_MPI = "# rules\n1 # collectives\n2 # allreduce\n1\n0\n1\n0 4 0 0 # ring\n"
OPEN_MPI_JSON = (
    '{"rule_file_version": 3, "module": "tuned", "collectives": {"allreduce": [{"rules": '
    '[{"msg_size_min": 0, "msg_size_max": "inf", "alg": "ring"}]}]}}'
)
UCC = "UCC_TL_UCP_TUNE = allreduce:0-inf:[8-8]:inf:@ring\n"


@pytest.mark.parametrize(
    ("name", "text", "format"),
    [
        ("tuned_rules.conf", OPEN_MPI, "openmpi"),
        ("tuned_rules.json", OPEN_MPI_JSON, "openmpi"),
        ("ucc.conf", UCC, "ucc"),
    ],
)
def test_files_of_mpi_libraries_are_recognized_by_their_content(
    collhub, tmp_path: Path, name: str, text: str, format: str
) -> None:
    report = collhub("tune", "--check", _file(tmp_path, text, name), "--json").report()
    (checked,) = report["files"]
    assert (checked["format"], checked["ok"], checked["findings"]) == (format, True, [])
    assert len(checked["served"]) == 1
    wrong = text.replace("2 # allreduce", "77").replace("allreduce", "all_reduce")
    report = collhub("tune", "--check", _file(tmp_path, wrong, name), "--json").report()
    assert [one["format"] for one in report["files"]] == [format]
    assert not report["ok"]


def test_a_selection_file_of_mpich_is_recognized_by_its_content(collhub, tmp_path: Path) -> None:
    file = _file(tmp_path, '{"collective=bcast": {}}', "coll_selection.json")
    run = collhub("tune", "--check", file)
    assert run.code == 1
    assert "collective=allreduce is missing" in run.err


def _create_mpich_file(**others: object) -> str:
    """Return the shape of MPICH's own selection file, which has no tests of a tuned number of ranks.

    `others`: members that are added to the file.
    """
    names = ("allreduce", "allgather", "alltoall", "bcast", "reduce")
    names += ("reduce_scatter", "reduce_scatter_block")
    tree = {"comm_type=intra": {"comm_size<8": {"algorithm=MPIR_Any_intra_smp": {}}}}
    return json.dumps({f"collective={name}": tree for name in names} | others)


def test_a_file_that_tunes_nothing_leaves_the_choice_to_the_runtime(
    collhub, tmp_path: Path
) -> None:
    run = collhub("tune", "--check", _file(tmp_path, _create_mpich_file(), "generic.json"))
    assert run.code == 0
    assert re.search(r"generic\.json +mpich +all +all sizes +the runtime's own choice", run.out)


def test_a_file_with_an_error_serves_no_call(collhub, tmp_path: Path) -> None:
    text = _create_mpich_file(other=3)
    run = collhub("tune", "--check", _file(tmp_path, text, "generic.json"))
    assert run.code == 1
    assert re.search(r"generic\.json +mpich +no call, because of errors", run.out)
