"""Traces of jobs in JSON form are the same jobs as in binary form."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from google.protobuf.json_format import MessageToJson

import hub_core
from hub_core.chakra import decoded_records
from hub_core.model import Algorithm, Workload

pytestmark = pytest.mark.once

JOBS = ("stage-llama-dp2tp2pp2/workload", "torus-2d-user/trace", "mlc-chakra-generator/ALL_GATHER",
        "astra-sim-workload-all-to-all-8npus-1MB/all_to_all")  # fmt: skip
ALGORITHMS = ("astra-sim-custom-ring-8/custom_allreduce",
              "paper-converter-allgather_recdbl_8_1/allgather_recdbl_8_1")  # fmt: skip


def jsonized(corpus: Path, prefix: str, folder: Path, *, packed: bool = False) -> Path:
    """The set in the form of chakra_jsonizer."""
    files = sorted((corpus / "chakra" / prefix).parent.glob(f"{Path(prefix).name}.*.et"))
    if not files:
        pytest.skip(f"the corpus has no {prefix}")
    for file in files:
        records = decoded_records(file.read_bytes(), file.name)
        content = "".join(map(MessageToJson, records)).encode()
        name = file.with_suffix(".json.gz" if packed else ".json").name
        (folder / name).write_bytes(gzip.compress(content) if packed else content)
    return folder / Path(prefix).name


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("prefix", JOBS)
def test_jobs_are_read_as_in_binary_form(
    corpus: Path, tmp_path: Path, prefix: str, packed: bool
) -> None:
    expected = hub_core.read_workload(corpus / "chakra" / prefix, report=lambda found: None)
    given = jsonized(corpus, prefix, tmp_path, packed=packed)
    workload = hub_core.read_workload(given, report=lambda found: None)
    assert isinstance(workload, Workload)
    assert set(workload.differences(expected)) <= {"provenance", "extensions"}


@pytest.mark.parametrize("prefix", ALGORITHMS)
def test_algorithms_are_read_as_in_binary_form(corpus: Path, tmp_path: Path, prefix: str) -> None:
    expected = hub_core.read(corpus / "chakra" / prefix, report=lambda found: None)
    algorithm = hub_core.read(jsonized(corpus, prefix, tmp_path), report=lambda found: None)
    assert isinstance(algorithm, Algorithm)
    assert set(algorithm.differences(expected)) <= {"provenance", "extensions"}


def test_a_trace_with_dangling_dependencies_is_surveyed(
    collhub, corpus: Path, tmp_path: Path
) -> None:
    given = jsonized(corpus, "mlc-chakra-feeder-trace/chakra", tmp_path)
    run = collhub("inspect", f"{given}.0.json")
    assert run.code == 0
    assert "error:" not in run.err
    assert "3664: 21 COMM_COLL_NODE, 3643 COMP_NODE" in run.out


def test_members_of_other_formats_are_no_set(collhub, tmp_path: Path) -> None:
    from hub_core.testing.samples import ring_all_reduce

    hub_core.write(ring_all_reduce(4), tmp_path / "ring.4.json")
    hub_core.write(ring_all_reduce(8), tmp_path / "ring.8.json")
    run = collhub("inspect", tmp_path / "ring.8.json")
    assert (run.code, "(json)" in run.out) == (0, True), run.err


def test_traces_of_the_feeder_are_jobs(collhub, corpus: Path) -> None:
    folder = corpus / "evidence" / "workload"
    if not folder.is_dir():
        pytest.skip("the corpus has no traces of the feeder")
    workload = hub_core.read_workload(folder / "chakra_jsondata.json", report=lambda found: None)
    assert workload.nodes.duration_ns.tolist() == [40_000, -1, -1]
    assert workload.nodes.bytes.tolist() == [-1, 4096, -1]
    assert collhub("inspect", folder / "chakra_jsondata.json").code == 0
    assert collhub("verify", folder / "chakra_jsondata_bad.json").code == 1
