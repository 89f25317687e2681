from __future__ import annotations

import dataclasses
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from astra_calls import write_folder
from collhub_astra_sim.plugin import ASTRA_SIM, FOLDER

import hub_core
from hub_core.model import (
    Algorithm,
    Buffer,
    Collective,
    CollectiveKind,
    InputError,
    Loss,
    StepKind,
    StepTableBuilder,
    UsageError,
)
from hub_core.plugin_api import declared_options
from hub_core.testing import custom_collective, ring_all_reduce
from hub_core.trace_profile.formats import CHAKRA_WRITER

MIB = 1 << 20
RING = {"topology": "ring:4?bandwidth=50GiB/s&latency=500ns", "size": MIB}
# Closed form of a ring: 2 (n - 1) comm(T / n) + (n - 1) t, with comm(256 KiB) = 5382 measured on
# ASTRA-sim 518bd51.
RING_TIME_NS = 6 * 5382 + 3 * 1


def contents(result):
    return {artifact.name: artifact.content() for artifact in result.artifacts}


def all_gather(ranks):
    """Every rank sends its unit to every other one."""
    steps = StepTableBuilder(ranks)
    for rank in range(ranks):
        for other in range(ranks):
            if other != rank:
                steps.add(
                    rank,
                    StepKind.SEND,
                    peer=other,
                    src_buffer=Buffer.OUTPUT,
                    src_offset=rank,
                    count=1,
                )
        for other in range(ranks):
            if other != rank:
                steps.add(
                    rank,
                    StepKind.RECV,
                    peer=other,
                    dst_buffer=Buffer.OUTPUT,
                    dst_offset=other,
                    count=1,
                )
    collective = Collective(
        CollectiveKind.ALL_GATHER, ranks, ranks, in_place=True, out_of_place=False
    )
    return Algorithm(collective, steps.build(), np.zeros(ranks, np.int64))


def workload_size(files, rank=0):
    """comm_size of a workload node, cut out of its bytes: an attribute of field 9 (tag 48)."""
    trace = files[f"workload.{rank}.et"]
    value = trace[trace.index(b"comm_size") + len(b"comm_size") + 1 :]
    size = 0
    for index, byte in enumerate(value):
        size |= (byte & 127) << 7 * index
        if byte < 128:
            return size
    raise AssertionError


def test_folder_has_all_files_that_the_simulator_opens():
    names = set(contents(write_folder(ring_all_reduce(4), **RING)))
    traces = {f"traces/all-reduce.{rank}.et" for rank in range(4)} | {
        f"workload.{rank}.et" for rank in range(4)
    }
    assert names == traces | {"system.json", "network.yml", "memory.json", "run.sh"}


def test_only_the_script_is_executable():
    assert [
        artifact.name
        for artifact in write_folder(ring_all_reduce(4), **RING).artifacts
        if artifact.executable
    ] == ["run.sh"]


def test_same_algorithm_gives_same_bytes():
    assert contents(write_folder(ring_all_reduce(4), **RING)) == contents(
        write_folder(ring_all_reduce(4), **RING)
    )


def test_configurations_are_these_bytes():
    files = contents(write_folder(ring_all_reduce(4), **RING, name="ring-4"))
    system = {
        "scheduling-policy": "FIFO",
        "preferred-dataset-splits": 1,
        "all-reduce-implementation-custom": ["traces/ring-4"],
    }
    assert json.loads(files["system.json"]) == system
    assert (
        files["network.yml"]
        == b"topology: [ Ring ]\nnpus_count: [ 4 ]\nbandwidth: [ 50.0 ]\nlatency: [ 500.0 ]\n"
    )
    assert json.loads(files["memory.json"]) == {"memory-type": "NO_MEMORY_EXPANSION"}


def test_folder_runs_as_it_is_and_keeps_the_input_contract(store, run_script, aware):
    done = run_script(store(write_folder(ring_all_reduce(4), **RING)), aware)
    assert (done.returncode, done.stdout.count(f"finished, {RING_TIME_NS} cycles")) == (0, 4)


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        (CollectiveKind.ALL_REDUCE, "all-reduce-implementation-custom"),
        (CollectiveKind.ALL_GATHER, "all-gather-implementation-custom"),
        (CollectiveKind.REDUCE_SCATTER, "reduce-scatter-implementation-custom"),
        (CollectiveKind.ALL_TO_ALL, "all-to-all-implementation-custom"),
    ],
)
def test_collective_is_run_under_its_own_name(kind, key, store, run_script, aware):
    collective = Collective(kind, 4, 4, in_place=True, out_of_place=False)
    result = write_folder(dataclasses.replace(ring_all_reduce(4), collective=collective), **RING)
    folder = store(result)
    assert key in json.loads((folder / "system.json").read_text())
    assert not result.losses
    assert run_script(folder, aware).returncode == 0


def test_collective_without_key_runs_as_all_reduce_and_says_so(store, run_script, aware, message):
    result = write_folder(message())
    folder = store(result)
    assert "all-reduce-implementation-custom" in json.loads((folder / "system.json").read_text())
    assert [loss.feature for loss in result.losses] == ["collective broadcast"]
    assert run_script(folder, aware).returncode == 0


def test_workload_of_an_all_gather_states_the_input_of_one_rank():
    assert workload_size(contents(write_folder(all_gather(4), size=MIB))) == MIB // 4


def test_workload_of_a_symbolic_all_gather_states_the_whole_output():
    assert workload_size(contents(write_folder(all_gather(4), size=MIB, dialect="symbolic"))) == MIB


def test_workload_of_an_all_gather_is_never_of_zero_bytes():
    assert workload_size(contents(write_folder(all_gather(4), size=3))) == 1


def test_default_world_is_fully_connected(store, run_script, aware):
    folder = store(write_folder(all_gather(4), size=MIB))
    assert (
        (folder / "network.yml")
        .read_text()
        .startswith("topology: [ FullyConnected ]\nnpus_count: [ 4 ]\n")
    )
    assert run_script(folder, aware).stdout.count("finished, 5382 cycles") == 4


def test_group_runs_on_its_npus_and_the_others_idle(store, run_script, aware, message):
    # Golden (ASTRA-sim 518bd51): group {"1":[1,3]} in 5 ranks, algorithm 0->1 of 1 MiB:
    # 1 20031 1 20031 1.
    folder = store(write_folder(message(), size=MIB, group="1,3", npus=5))
    assert json.loads((folder / "groups.json").read_text()) == {"1": [1, 3]}
    printed = run_script(folder, aware).stdout
    assert [
        f"sys[{rank}] finished, {time} cycles" in printed
        for rank, time in enumerate((1, 20031, 1, 20031, 1))
    ] == [True] * 5


def test_larger_topology_makes_a_group_of_the_first_npus(store, run_script, aware):
    folder = store(write_folder(all_gather(3), topology="switch:5", size=MIB))
    assert json.loads((folder / "groups.json").read_text()) == {"1": [0, 1, 2]}
    assert run_script(folder, aware).returncode == 0


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"group": "3,1", "npus": 5}, "do not ascend"),
        ({"group": "1,1", "npus": 5}, "NPU 1 is listed more than once"),
        ({"group": "1", "npus": 5}, "1 NPUs for 2 ranks"),
        ({"group": "a,b"}, "not a list of NPUs"),
        ({"group": "1,5", "npus": 5}, "needs NPU 5, the world has 5"),
        ({"npus": 1}, "needs NPU 1, the world has 1"),
        ({"npus": 0}, "needs NPU 1, the world has 0"),
        ({"npus": 1 << 21}, "more than"),
        ({"npus": 3, "topology": "ring:4"}, "option npus: 3, but topology ring:4 has 4 NPUs"),
        ({"topology": "ring:1"}, "needs NPU 1"),
        ({"name": "../x"}, "option name"),
        ({"name": ""}, None),
    ],
)
def test_wrong_group_world_or_name_is_refused(options, says, message):
    if says is None:
        assert write_folder(message(), **options)
        return
    with pytest.raises(UsageError, match=says):
        write_folder(message(), **options)


def test_one_rank_has_no_world(message):
    collective = Collective(CollectiveKind.ALL_REDUCE, 1, 1)
    alone = Algorithm(collective, StepTableBuilder(1).build(), np.zeros(1, np.int64))
    with pytest.raises(UsageError, match="at least two NPUs"):
        write_folder(alone)


def test_message_of_no_units_is_refused_with_its_step(message):
    steps = StepTableBuilder(2)
    steps.add(0, StepKind.SEND, peer=1, src_buffer=Buffer.OUTPUT, count=1)
    steps.add(0, StepKind.SEND, peer=1, src_buffer=Buffer.OUTPUT, count=0, source_line=7)
    empty = dataclasses.replace(message(), steps=steps.build())
    with pytest.raises(InputError, match="0 bytes, on which ASTRA-sim aborts") as caught:
        write_folder(empty)
    assert (
        caught.value.diagnostics[0].location.line,
        caught.value.diagnostics[0].location.step,
    ) == (7, 1)


def test_message_to_its_own_rank_is_refused(message):
    steps = StepTableBuilder(2)
    steps.add(0, StepKind.SEND, peer=0, src_buffer=Buffer.OUTPUT, count=1)
    with pytest.raises(InputError, match="own rank"):
        write_folder(dataclasses.replace(message(), steps=steps.build()))


def test_message_faster_than_1_ns_at_the_start_is_a_loss_where_the_simulator_aborts(
    store, run_script, aware, message
):
    # 53 bytes take less than 1 ns at 50 GiB/s, 54 do not.
    assert "collective broadcast" in [
        loss.feature for loss in write_folder(message(), size=54).losses
    ]
    assert not [
        loss for loss in write_folder(message(), size=54).losses if "aborts" in loss.consequence
    ]
    result = write_folder(message(), size=53)
    (loss,) = [loss for loss in result.losses if "aborts" in loss.consequence]
    assert loss == Loss(
        "1 messages that are sent at the start and take less than 1 ns",
        "first rank 0, step 0",
        "ASTRA-sim aborts (exit status 134); use a larger size",
    )
    assert run_script(store(result), aware).returncode == 1


def test_latency_lets_small_messages_pass_without_congestion(store, run_script, unaware, message):
    result = write_folder(message(), size=53, network="congestion-unaware")
    assert not [loss for loss in result.losses if "aborts" in loss.consequence]
    assert run_script(store(result), unaware).returncode == 0


@pytest.mark.parametrize("dialect", ["both", "absolute"])
@pytest.mark.parametrize("flatten", [False, True])
def test_options_of_the_traces_are_passed_on(dialect, flatten, store, run_script, aware):
    result = write_folder(ring_all_reduce(4), **RING, dialect=dialect, flatten=flatten)
    files = {
        name: content for name, content in contents(result).items() if name.startswith("traces/")
    }
    assert all((b"msg_chunk_cnt" in content) == (dialect == "both") for content in files.values())
    folder = store(write_folder(ring_all_reduce(4), **RING, dialect=dialect, flatten=flatten))
    assert run_script(folder, aware).returncode == 0


def test_rank_without_steps_finishes_after_1_ns(store, run_script, aware, message):
    printed = run_script(store(write_folder(message(ranks=3), size=MIB)), aware).stdout
    assert "sys[2] finished, 1 cycles" in printed


def test_written_traces_can_be_opened_for_appending(store):
    folder = store(write_folder(ring_all_reduce(4), **RING))
    assert all(os.access(file, os.W_OK) for file in folder.rglob("*.et"))


def test_readme_states_every_option_and_file():
    text = (Path(__file__).parents[2] / "README.md").read_text()
    names = [
        option.name for offer in (FOLDER, ASTRA_SIM) for option in declared_options(offer.options)
    ]
    files = [*write_folder(ring_all_reduce(4), topology="ring:5").artifacts]
    assert [name for name in names if f"`{name}`" not in text and f"-O {name}=" not in text] == []
    generic = {
        re.sub(r"\.\d+\.et", "", artifact.name).replace("all-reduce", "NAME") for artifact in files
    }
    assert [name for name in generic if f"`{name}" not in text] == []


def test_command_of_the_readme_writes_the_folder(tmp_path):
    (command,) = re.findall(
        r"^\$ (collhub convert .*)$",
        (Path(__file__).parents[2] / "README.md").read_text(),
        re.MULTILINE,
    )
    hub_core.write(ring_all_reduce(8), tmp_path / "ring.json")
    program, *arguments = shlex.split(command.replace("ring.xml", "ring.json"))
    done = subprocess.run(
        [Path(sys.executable).with_name(program), *arguments], cwd=tmp_path, check=False
    )
    assert (done.returncode, (tmp_path / "ring-8" / "run.sh").exists()) == (0, True)


def test_trace_of_bytes_is_written_at_its_own_size_only(message):
    steps = StepTableBuilder(2)
    steps.add(0, StepKind.SEND, peer=1, count=4096)
    steps.add(1, StepKind.RECV, peer=0, count=4096)
    collective = custom_collective(2, 4096)
    timing_only = dataclasses.replace(
        message(), collective=collective, steps=steps.build(), collective_bytes=4096
    )
    assert write_folder(timing_only).losses
    with pytest.raises(InputError, match="for a size of 4096 bytes in all, not 8192"):
        write_folder(timing_only, size=8192)


def test_options_of_the_traces_are_those_of_the_writer_chakra_but_ranks():
    own = {option.name: option for option in declared_options(FOLDER.options)}
    of_traces = {option.name: option for option in declared_options(CHAKRA_WRITER.options)}
    del of_traces["ranks"]
    assert {name: own[name] for name in of_traces} == of_traces
