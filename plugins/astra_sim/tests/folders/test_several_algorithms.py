"""Several algorithms and sizes in one folder, which the workload's nodes choose by their numbers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import hub_core
from hub_core.cli.main import main
from hub_core.model import InputError
from hub_core.testing import ring_all_gather, ring_all_reduce

MIB = 1 << 20


@pytest.fixture
def pack(tmp_path, capsys):
    """Run the command on files in a folder: (exit code, the folder, what was said)."""

    def run(*arguments: str) -> tuple[int, Path, str]:
        names = [f"{tmp_path}/{name}" if ".json" in name else name for name in arguments]
        out = tmp_path / "packed"
        code = main(["astra-sim", *names, "-o", str(out)])
        return code, out, capsys.readouterr().err

    hub_core.write(ring_all_reduce(4), tmp_path / "ring.json")
    hub_core.write(ring_all_gather(4), tmp_path / "gather.json")
    hub_core.write(ring_all_reduce(8), tmp_path / "eight.json")
    return run


def test_folder_runs_its_algorithms_one_after_the_other(pack, run_script, aware):
    code, folder, _ = pack("ring.json@256KiB,1MiB", "gather.json@4MiB")
    assert code == 0
    # Rings of 4: 2 (n - 1) comm(T / n) + (n - 1), and a copy and (n - 1) comm(T / n); comm(64 KiB) =
    # 1720, comm(256 KiB) = 5382 and comm(1 MiB) = 20031, measured on ASTRA-sim 518bd51.
    time_ns = (6 * 1720 + 3) + (6 * 5382 + 3) + (1 + 3 * 20031)
    done = run_script(folder, aware)
    assert (done.returncode, done.stdout.count(f"finished, {time_ns} cycles")) == (0, 4)


def test_second_collective_begins_where_the_first_one_ends(
    tmp_path, pack, run_script, aware, message
):
    # Printed by ASTRA-sim 518bd51 for two nodes of 0 -> 1, 1 MiB, on three fully connected NPUs:
    # 40062 40062 2.
    hub_core.write(message(3), tmp_path / "one.json")
    hub_core.write(message(3), tmp_path / "two.json")
    # A broadcast that leaves one rank out is not correct, and runs all the same.
    code, folder, _ = pack("one.json@1MiB", "two.json@1MiB", "--verify", "off")
    printed = run_script(folder, aware).stdout
    times = [f"sys[{rank}] finished, {time} cycles" for rank, time in enumerate((40062, 40062, 2))]
    assert (code, [time in printed for time in times]) == (0, [True] * 3)


def test_nodes_of_the_workload_are_mapped_to_traces(pack):
    _, folder, err = pack("ring.json@256KiB,1MiB", "gather.json@4MiB")
    assert (folder / "algorithms.yml").read_text() == (
        "0: traces/ring-256KiB\n1: traces/ring-1MiB\n2: traces/gather-4MiB\n"
    )
    system = json.loads((folder / "system.json").read_text())
    assert system["per-node-custom-implementation"] == "algorithms.yml"
    assert system["all-reduce-implementation-custom"] == ["traces/ring-256KiB"]
    assert system["all-gather-implementation-custom"] == ["traces/gather-4MiB"]
    assert "ring-256KiB, ring-1MiB, gather-4MiB: wrote" in err


def test_each_algorithm_of_a_folder_is_one_input(pack):
    _, folder, _ = pack("ring.json@256KiB,1MiB", "gather.json@4MiB")
    for name, size in (("ring-256KiB", MIB // 4), ("ring-1MiB", MIB), ("gather-4MiB", 4 * MIB)):
        named = hub_core.read(folder, options={"algorithm": name})
        beside = hub_core.read(folder / "traces" / name)
        assert named.differences(beside) == []
        assert named.collective_bytes == size
    with pytest.raises(InputError, match="3 algorithms: gather-4MiB, ring-1MiB, ring-256KiB"):
        hub_core.read(folder)
    with pytest.raises(InputError, match="no algorithm 'tree' in it"):
        hub_core.read(folder, options={"algorithm": "tree"})


def test_algorithm_without_a_size_has_the_default_one(pack):
    _, folder, _ = pack("ring.json", "gather.json@1MiB")
    assert hub_core.read(folder, options={"algorithm": "ring"}).collective_bytes == 4 * MIB


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ("ring.json@1MiB", "eight.json@1MiB"),
            "algorithms of 4 and 8 ranks cannot share a folder",
        ),
        (("ring.json@1MiB", "ring.json@1MiB"), "two algorithms would be named ring-1MiB"),
        (("ring.json@much", "gather.json"), "size 'much' is not a number with a unit"),
        (
            ("ring.json@1MiB,2MiB", "--topology", "ring:8"),
            "inside a group ASTRA-sim uses the first algorithm of all-reduce",
        ),
    ],
)
def test_what_one_folder_cannot_hold_is_refused(pack, arguments, says):
    code, folder, err = pack(*arguments)
    assert (code, says in err, folder.exists()) == (2, True, False)


def test_group_may_have_one_algorithm_a_collective(pack, run_script, aware):
    code, folder, _ = pack("ring.json@1MiB", "gather.json@1MiB", "--topology", "fc:8")
    assert code == 0
    assert run_script(folder, aware).returncode == 0


def test_map_that_is_none_is_refused(pack):
    _, folder, _ = pack("ring.json@1MiB", "gather.json@1MiB")
    (folder / "algorithms.yml").write_text("- traces/ring-1MiB\n")
    with pytest.raises(InputError, match="no YAML map of workload nodes to prefixes"):
        hub_core.read(folder, options={"algorithm": "ring-1MiB"})
    (folder / "algorithms.yml").unlink()
    with pytest.raises(InputError, match="per-node-custom-implementation names no file"):
        hub_core.read(folder, options={"algorithm": "ring-1MiB"})
