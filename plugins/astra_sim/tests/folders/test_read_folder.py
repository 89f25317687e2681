"""A folder for ASTRA-sim is one input: its traces, size, network and groups."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
from astra_calls import write_folder
from collhub_astra_sim.folders.configurations import FolderFiles

import hub_core
from hub_core.cli.main import main
from hub_core.model import InputError, StepKind, StepTableBuilder, placement_of
from hub_core.plugin_api import Source, SourcePart
from hub_core.testing import ring_all_reduce

MIB = 1 << 20
CORPUS = Path(__file__).resolve().parents[5] / "shared" / "corpus" / "chakra"
# A ring of 8 on every second NPU of a ring of 16, 1 MiB: printed by ASTRA-sim 518bd51. Every
# message of 128 KiB takes two hops of 2941 ns, 14 follow one another, and 7 reductions take 1 ns.
EVERY_SECOND = tuple(range(0, 16, 2))
GROUP_NS = 82355


@pytest.fixture
def grouped(store) -> Path:
    """The folder of a ring on every second NPU."""
    group = ",".join(map(str, EVERY_SECOND))
    topology = "ring:16?bandwidth=50GiB/s&latency=500ns"
    return store(write_folder(ring_all_reduce(8), topology=topology, group=group, size=MIB))


@pytest.fixture
def collhub(capsys):
    """Run the program; returns (exit code, standard output, standard error)."""

    def run(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(list(map(str, arguments)))
        out, err = capsys.readouterr()
        return code, out, err

    return run


def simulated(collhub, *arguments: object) -> dict[str, object]:
    code, out, err = collhub("simulate", *arguments, "--json")
    assert code == 0, err
    return json.loads(out)


def test_folder_is_simulated_on_its_network_at_its_size_in_its_group(grouped, collhub):
    report = simulated(collhub, grouped)
    assert (report["time_ns"], report["collective_bytes"]) == (GROUP_NS, MIB)
    assert report["topology"] == str(grouped / "network.yml")
    assert report["npus"] == list(EVERY_SECOND)


def test_network_that_nobody_named_is_said(grouped, collhub):
    _, out, err = collhub("simulate", grouped)
    assert f"on the network that {grouped} states: {grouped / 'network.yml'}" in err
    assert "size           1 MiB" in out


@pytest.mark.parametrize("named", ["traces", "traces/all-reduce", "traces/all-reduce.3.et"])
def test_traces_of_a_group_alone_keep_its_npus(grouped, collhub, named):
    report = simulated(collhub, grouped / named, "--topology", grouped / "network.yml")
    assert report["time_ns"] == GROUP_NS


@pytest.mark.parametrize("reader", [(), ("--from", "chakra")])
def test_traces_that_left_their_folder_keep_their_npus(grouped, tmp_path, collhub, reader):
    shutil.copytree(grouped / "traces", tmp_path / "elsewhere")
    network = grouped / "network.yml"
    report = simulated(collhub, tmp_path / "elsewhere", "--topology", network, *reader)
    assert report["time_ns"] == GROUP_NS


def test_other_network_and_size_go_before_those_of_the_folder(grouped, collhub):
    topology = "fc:16?bandwidth=50GiB/s&latency=500ns"
    report = simulated(collhub, grouped, "--topology", topology, "--size", "2MiB")
    # 14 messages of 256 KiB of 5382 ns, and 7 reductions.
    assert (report["time_ns"], report["topology"]) == (14 * 5382 + 7, topology)


def test_group_of_a_folder_is_run_by_the_real_simulator_too(grouped, collhub, aware):
    backend = ("--backend", "astra-sim", "-O", f"binary={aware}")
    assert simulated(collhub, grouped, *backend)["time_ns"] == GROUP_NS


def test_network_without_the_npus_of_the_group_is_refused(grouped, collhub):
    code, _, err = collhub("simulate", grouped, "--topology", "ring:8")
    assert code == 2
    assert "ranks on NPUs 0,2,4,6,8,10,12,14; choose a topology of at least 15 NPUs" in err


def test_folder_is_verified_inspected_and_converted(grouped, collhub, tmp_path):
    assert collhub("verify", grouped)[0] == 0
    report = json.loads(collhub("inspect", grouped, "--json")[1])
    assert (report["format"], report["collective"]) == ("astra-sim", "all-reduce")
    assert report["topology"] == str(grouped / "network.yml")
    assert (report["npus"], report["collective_bytes"]) == (list(EVERY_SECOND), MIB)
    assert collhub("convert", grouped, "-o", tmp_path / "ring.json")[0] == 0
    assert placement_of(hub_core.read(tmp_path / "ring.json")) == EVERY_SECOND


def test_folder_written_from_a_folder_keeps_its_group(grouped, store):
    topology = "ring:16?bandwidth=50GiB/s&latency=500ns"
    again = store(write_folder(hub_core.read(grouped), topology=topology), "again")
    for file in ("groups.json", "network.yml", "system.json", "traces/all-reduce.5.et"):
        assert (again / file).read_bytes() == (grouped / file).read_bytes()


def test_workload_of_a_folder_is_still_surveyed(grouped, collhub):
    code, out, _ = collhub("inspect", grouped / "workload")
    assert (code, "8 COMM_COLL_NODE" in out) == (0, True)


def test_folder_of_the_whole_world_has_no_placement(store):
    assert placement_of(hub_core.read(store(write_folder(ring_all_reduce(4))))) is None


def test_folder_for_the_other_backend_says_so(store, collhub):
    options = {"topology": "ring:2*ring:2", "network": "congestion-unaware", "size": MIB}
    folder = store(write_folder(ring_all_reduce(4), **options))
    assert "-O network=congestion-unaware simulates as it does" in collhub("verify", folder)[2]


@pytest.fixture
def shipped(tmp_path: Path) -> Path:
    """A folder as others make it: ASTRA-sim's shipped ring, all in one folder, paths of elsewhere."""
    if not CORPUS.is_dir():
        pytest.skip(f"{CORPUS} is not there")
    folder = tmp_path / "shipped"
    shutil.copytree(CORPUS / "astra-sim-custom-ring-8", folder)
    for file in (CORPUS / "astra-sim-workload-all-reduce-8npus-1MB").iterdir():
        shutil.copy(file, folder)
    key = "all-reduce-implementation-custom"
    system = {"preferred-dataset-splits": 1, key: ["../examples/custom/custom_allreduce"]}
    (folder / "Ring_custom.json").write_text(json.dumps(system))
    network = "topology: [ Ring ]\nnpus_count: [ 8 ]\nbandwidth: [ 50.0 ]\nlatency: [ 500.0 ]\n"
    (folder / "Ring_8npus.yml").write_text(network)
    return folder


def test_folder_of_others_is_one_input(shipped, collhub):
    # Printed by ASTRA-sim 518bd51 for its shipped custom ring.
    assert simulated(collhub, shipped)["time_ns"] == 90174


def test_traces_in_a_folder_of_others_keep_their_group(shipped, collhub):
    for rank in range(8, 16):
        shutil.copy(shipped / "all_reduce.0.et", shipped / f"all_reduce.{rank}.et")
    for rank in range(16):
        place = f"{rank}.et"
        workload = write_folder(ring_all_reduce(8), group="0,2,4,6,8,10,12,14", npus=16)
        files = {artifact.name: artifact for artifact in workload.artifacts}
        (shipped / f"all_reduce.{place}").write_bytes(files[f"workload.{place}"].content())
    (shipped / "my_groups.json").write_text(json.dumps({"1": list(EVERY_SECOND)}))
    topology = "ring:16?bandwidth=50GiB/s&latency=500ns"
    report = simulated(collhub, shipped / "custom_allreduce", "--topology", topology)
    assert report["npus"] == list(EVERY_SECOND)
    # Two hops a message where the ring of 8 has one, 2941 ns each: 14 messages of 128 KiB.
    assert report["time_ns"] == 90174 + 14 * 2941


def spoilt(folder: Path, file: str, text: str | None) -> Path:
    (folder / file).unlink() if text is None else (folder / file).write_text(text)
    return folder


KEY = '"all-reduce-implementation-custom"'


@pytest.mark.parametrize(
    ("file", "text", "says"),
    [
        ("system.json", f'{{{KEY}: "traces/all-reduce"}}', "no list of exactly one prefix"),
        ("system.json", f'{{{KEY}: ["traces/other"]}}', "'traces/other' .* are not in the folder"),
        ("system.json", f"{{{KEY}", "no system configuration"),
        ("groups.json", '{"1": [2, 0, 4, 6, 8, 10, 12, 14]}', "do not ascend"),
        ("groups.json", '{"1": [0, 2]}', "8 ranks have traces, 2 NPUs run them"),
        ("groups.json", '{"2": [0, 2, 4, 6, 8, 10, 12, 14]}', "'1' is in no groups file"),
        ("groups.json", None, "'1' is in no groups file"),
        ("traces/all-reduce.3.et", None, "the file of rank 3 is missing"),
        ("workload.0.et", "no trace", "workload.0.et"),
    ],
)
def test_folder_that_contradicts_itself_is_refused(grouped, file, text, says):
    with pytest.raises(InputError, match=says):
        hub_core.read(spoilt(grouped, file, text))


def test_traces_beside_a_configuration_of_others_are_read_with_a_warning(
    grouped, tmp_path, collhub
):
    (grouped / "work").mkdir()
    hub_core.write(ring_all_reduce(8), grouped / "work" / "mine")
    spoilt(grouped, "system.json", f'{{{KEY}: ["traces/other"]}}')
    code, _, err = collhub("verify", grouped / "work" / "mine")
    assert (code, "are read without size, network and groups" in err) == (0, True)


def test_folder_without_network_is_verified_but_not_simulated(grouped, collhub):
    (grouped / "network.yml").unlink()
    assert collhub("verify", grouped)[0] == 0
    code, _, err = collhub("simulate", grouped)
    assert (code, "the folder has no network; name the network with --topology" in err) == (1, True)


@pytest.mark.parametrize("name", ["network.yml", "HGX-H100.json"])
def test_network_of_a_job_with_native_collectives_is_read(tmp_path, collhub, name):
    """ASTRA-sim reads its networks as YAML, of which JSON is a kind, from a file of any name."""
    folder = tmp_path / "job"
    folder.mkdir()
    (folder / "system.json").write_text('{"all-reduce-implementation": ["ring"]}')
    (folder / "memory.json").write_text('{"memory-type": "NO_MEMORY_EXPANSION"}')
    keys = {"topology": ["Switch"], "npus_count": [8], "bandwidth": [400], "latency": [936.25]}
    (folder / name).write_text(json.dumps(keys, indent=1))
    code, out, _ = collhub("topology", "show", folder)
    assert (code, "8 NPUs, 1 switch" in out) == (0, True)


def test_algorithm_that_deadlocks_is_not_written(tmp_path, collhub, message):
    steps = StepTableBuilder(2)
    for rank in range(2):
        received = steps.add(rank, StepKind.RECV, peer=1 - rank, count=1)
        steps.add(rank, StepKind.SEND, peer=1 - rank, count=1, data=[received])
    stuck = dataclasses.replace(message(), steps=steps.build())
    hub_core.write(stuck, tmp_path / "stuck.json")
    out = tmp_path / "folder"
    code, _, err = collhub("convert", tmp_path / "stuck.json", "--to", "astra-sim", "-o", out)
    assert (code, "deadlock" in err, out.exists()) == (1, True, False)


def test_size_that_nobody_stated_is_said_and_written(tmp_path, collhub):
    hub_core.write(ring_all_reduce(4), tmp_path / "ring.json")
    out = tmp_path / "folder"
    _, _, err = collhub("convert", tmp_path / "ring.json", "--to", "astra-sim", "-o", out)
    assert f"{out} is written for 4 MiB, because no size was given; -O size=... sets one" in err
    assert "all-reduce of 4194304 bytes on 4 ranks" in (out / "run.sh").read_text()
    assert hub_core.read(out).collective_bytes == 4 * MIB


def test_sizes_in_chunks_are_a_loss_unless_their_reader_is_named(tmp_path, collhub):
    hub_core.write(ring_all_reduce(4), tmp_path / "ring.json")
    command = ("convert", tmp_path / "ring.json", "--to", "astra-sim", "-o", tmp_path / "out")
    symbolic = ("-O", "dialect=symbolic")
    code, _, err = collhub(*command, *symbolic, "--strict")
    assert (code, "the public ASTRA-sim does not read them and aborts" in err) == (4, True)
    assert not (tmp_path / "out").exists()
    asked = ("-O", "simulator=pull-request-343", "--strict")
    assert collhub(*command, *symbolic, *asked)[0] == 0
    absolute = ("-O", "dialect=absolute", "--force")
    assert collhub(*command, *absolute, *asked)[0] == 4


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("x/b/c", "y/b/c", "c"), None),
        (("x/b/c", "y/b/c", "b/c"), "b/c"),
        (("x/b/c", "y/c", "c"), "x/b/c"),
        (("y/c", "c"), "c"),
        (("y/c", "z/c"), None),
    ],
)
def test_a_path_that_several_files_match_best_names_none(
    names: tuple[str, ...], expected: str | None
) -> None:
    parts = tuple(SourcePart(f"f/{name}", lambda: b"") for name in (*names, "other"))
    part = FolderFiles.of(Source("f", parts)).part_at("a/b/c")
    assert (part and part.name) == (expected and f"f/{expected}")
