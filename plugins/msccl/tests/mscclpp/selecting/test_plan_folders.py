"""Folders of plans: a plan a window and mode, and a program that chooses as the windows say."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from collhub_mscclpp.checking.check_plan import check_plan
from collhub_mscclpp.plugin import PlanSelectionOptions, PlanWriteOptions
from collhub_mscclpp.reading.read_plan import parse_plan
from collhub_mscclpp.selecting.read_plans import read
from collhub_mscclpp.selecting.write_plans import direct_exchange, write
from collhub_mscclpp.writing.work import NAMES
from collhub_mscclpp.writing.write import write as write_plan
from executor_model import schedules
from executor_plan import load_plan
from runtime_model import OWN_ALGORITHM, Query, RuntimeModel, write_folder

import hub_core
from hub_core.model import Algorithm, CollectiveKind, Diagnostic, InputError
from hub_core.plugin_api import Selection, ServedCalls, Source, SourcePart
from hub_core.testing import (
    binomial_broadcast,
    ring_all_gather,
    ring_all_reduce,
    ring_reduce_scatter,
    sample_selection,
    selected,
    staged_all_to_all,
)
from hub_core.verification import verify

pytestmark = pytest.mark.once

ALL_REDUCE = CollectiveKind.ALL_REDUCE
ORDER = schedules(6, 1)[:1]


def written(selection: Selection, **given: int) -> tuple[dict[str, bytes], list[str]]:
    result = write(selection, PlanSelectionOptions(**given))
    files = {artifact.name: artifact.content() for artifact in result.artifacts}
    return files, [str(loss) for loss in result.losses]


def served(files: Mapping[str, bytes]) -> tuple[list[ServedCalls], list[str]]:
    found: list[Diagnostic] = []
    parts = [SourcePart(name, lambda content=content: content) for name, content in files.items()]
    calls = read(Source("plans", tuple(parts), found.append))
    return list(calls), list(map(str, found))


def one(algorithm: Algorithm) -> Selection:
    times = {"one": (1,)}
    found = selected(algorithm.collective, (1 << 20,), times, lambda name, size: algorithm)
    return Selection("t", algorithm.num_ranks, 1, (found,))


def every_collective(num_ranks: int, num_nodes: int = 1) -> Selection:
    """Rings and exchanges for all collectives that plans name, two windows each."""
    exchanges = {
        "ring": ring_all_reduce(num_ranks),
        "gather": ring_all_gather(num_ranks),
        "scatter": ring_reduce_scatter(num_ranks),
        "staged": staged_all_to_all(num_ranks),
    }
    found = []
    for name, algorithm in exchanges.items():
        collective = replace(algorithm.collective, in_place=True, out_of_place=True)
        both = replace(algorithm, collective=collective)
        modes = [both] if verify(both).ok else [algorithm]
        for one in modes:
            # Two names, so that there are two windows.
            times = {name: (1, 9), f"{name}-2": (9, 1)}
            sizes = (1 << 14, 1 << 15)
            found.append(selected(one.collective, sizes, times, lambda name, size, one=one: one))
    return Selection("t", num_ranks, num_nodes, tuple(found))


def test_every_window_is_a_plan_that_runs_rightly() -> None:
    files, losses = written(sample_selection())
    assert losses == []
    assert sorted(files) == [
        "all-gather-0-inf-in-place.json",
        "all-gather-0-inf-out-of-place.json",
        "all-reduce-0-1048575-in-place-any.json",
        "all-reduce-0-1048575-in-place.json",
        "all-reduce-1048576-inf-in-place-any.json",
        "all-reduce-1048576-inf-in-place.json",
        "register.py",
    ]
    for name, content in files.items():
        if name.endswith(".json"):
            assert check_plan(parse_plan(content, name)).ok


def test_plans_are_read_with_the_windows_they_were_written_for() -> None:
    files, _ = written(sample_selection())
    calls, found = served(files)
    others = ("max, min and avg would run as a sum", "calls tried as the runtime names them")
    assert not [line for line in found if not any(other in line for other in others)]
    windows = [(call.min_bytes, call.max_bytes) for call in calls if call.kind == ALL_REDUCE]
    assert windows == [(0, (1 << 20) - 1), (1 << 20, None)]


def test_plans_use_the_switches_of_the_network() -> None:
    algorithm = direct_exchange(CollectiveKind.ALL_GATHER, 4, in_place=True)
    network = hub_core.parse_topology("switch:4?multicast=true")
    without, _ = written(one(algorithm))
    files, losses = written(replace(one(algorithm), network=network))
    assert losses == []
    (name,) = [name for name in files if name.endswith("in-place.json")]
    assert b"gstore" in files[name]
    assert b"gstore" not in without[name]
    assert check_plan(parse_plan(files[name], name)).ok


def test_windows_of_small_sizes_are_packets_within_a_node() -> None:
    for nodes, protocol in ((1, "LL"), (2, "Simple")):
        files, _ = written(sample_selection(4, nodes), packets_below=1 << 20)
        plan = json.loads(files["all-reduce-0-1048575-in-place.json"])
        assert plan["protocol"] == protocol
    files, _ = written(sample_selection(), packets_below=0)
    assert json.loads(files["all-reduce-0-1048575-in-place.json"])["protocol"] == "Simple"


def test_ranks_of_several_nodes_use_port_channels() -> None:
    files, _ = written(sample_selection(4, 2))
    assert b'"port"' in files["all-reduce-1048576-inf-in-place.json"]


def test_collective_without_a_name_is_left_to_the_runtime() -> None:
    files, losses = written(one(binomial_broadcast(4)))
    assert list(files) == ["register.py"]
    assert losses == [
        "collective (broadcast): plans of this collective have no name that the runtime asks for"
    ]


def test_damaged_plan_serves_nothing() -> None:
    files, _ = written(one(ring_all_reduce(4)))
    name = next(iter(files))
    calls, found = served({name: files[name].replace(b'"rlxwait"', b'"rlxwart"')})
    assert calls == []
    assert "rlxwart" in found[0]


@pytest.mark.parametrize(
    ("in_place", "size", "file"),
    [
        (True, 16, "all-reduce-0-1048575-in-place-any.json"),
        (True, 64, "all-reduce-0-1048575-in-place.json"),
        (True, 1 << 20, "all-reduce-1048576-inf-in-place.json"),
        (True, (1 << 20) + 16, "all-reduce-1048576-inf-in-place-any.json"),
        (True, 4, None),
        (False, 1024, None),
    ],
)
def test_program_registers_plans_and_chooses_by_window(
    tmp_path: Path, in_place: bool, size: int, file: str | None
) -> None:
    files, _ = written(sample_selection())
    runtime = RuntimeModel(write_folder(tmp_path, files), 4, 4)
    chosen = runtime.answer(Query("allreduce", size, in_place))
    assert chosen == (OWN_ALGORITHM if file is None else json.loads(files[file])["name"])
    other = RuntimeModel(tmp_path, 8, 8)
    assert other.answer(Query("allreduce", size, in_place)) == OWN_ALGORITHM


# Bytes of the application's count: one element, odd numbers of them, borders of the windows of
# 32 KiB of the full buffer and an element beside them, for results, parts and vectors.
SIZES = (4, 16, 48, 96, 100, 4096, 4100, 32_764, 32_768, 32_772, 65_536)


def sizes_of(collective: str, num_ranks: int) -> list[int]:
    parts = num_ranks if collective in ("allgather", "reducescatter") else 1
    border = 32_768 // parts
    return sorted({*SIZES, border - 4, border, border + 4, border // 16 * 16, border // 96 * 96})


@pytest.mark.parametrize(
    ("num_ranks", "num_nodes", "tbg", "names_input"),
    [(4, 1, 2, False), (6, 1, 1, False), (6, 1, 2, True), (6, 2, 1, True), (16, 1, 1, False)],
)
def test_no_call_of_the_runtime_throws(
    tmp_path: Path, num_ranks: int, num_nodes: int, tbg: int, names_input: bool
) -> None:
    files, _ = written(every_collective(num_ranks, num_nodes), tbg=tbg)
    per_node = num_ranks // num_nodes
    folder = write_folder(tmp_path, files)
    runtime = RuntimeModel(folder, num_ranks, per_node, names_input=names_input)
    orders = schedules(num_ranks, 1)[:1]
    served_calls = set()
    for collective in runtime.registered:
        for size in sizes_of(collective, num_ranks):
            for in_place in (True, False):
                query = Query(collective, size, in_place)
                # Larger ones do the same with more units.
                is_small = size <= (4100 if num_ranks < 16 else 48)
                if is_small or runtime.answer(query) == OWN_ALGORITHM:
                    outcome = runtime.run(query, orders)
                    assert outcome is None or outcome.verdict == "right", (query, outcome)
                else:
                    load_plan(runtime.plans[runtime.answer(query)], query.call(num_ranks))
                if runtime.answer(query) != OWN_ALGORITHM:
                    served_calls.add((collective, size))
    # Every multiple of 16 bytes has a plan, also where chunks do not divide it.
    assert {("allreduce", size) for size in (16, 48, 96, 4096, 65_536)} <= served_calls
    assert {("allgather", size) for size in (16, 48, 96, 4096)} <= served_calls


@pytest.mark.parametrize("kind", ["allreduce", "allgather", "reducescatter", "alltoall"])
@pytest.mark.parametrize("num_ranks", [2, 3, 6, 11])
@pytest.mark.parametrize("in_place", [True, False])
def test_direct_exchange_is_right_with_the_fewest_chunks(
    kind: str, num_ranks: int, in_place: bool
) -> None:
    collective = {name: one for one, name in NAMES.items()}[kind]
    algorithm = direct_exchange(collective, num_ranks, in_place=in_place)
    assert verify(algorithm).ok
    for options in (PlanWriteOptions(), PlanWriteOptions(protocol="LL")):
        (artifact,) = write_plan(algorithm, options).artifacts
        gpu = json.loads(artifact.content())["gpus"][0]
        chunks = max(gpu["input_chunks"], gpu["output_chunks"])
        assert chunks == (1 if kind == "allreduce" else num_ranks)


@pytest.mark.parametrize("kind", NAMES)
@pytest.mark.parametrize("in_place", [True, False])
def test_direct_exchange_of_one_rank_sets_the_output(kind: CollectiveKind, in_place: bool) -> None:
    assert verify(direct_exchange(kind, 1, in_place=in_place)).ok


def test_a_size_for_which_an_algorithm_cannot_be_built_is_a_loss() -> None:
    """The plan is made for the middle size; an error at another one ended the entire folder."""
    algorithm = direct_exchange(CollectiveKind.ALL_GATHER, 4, in_place=True)
    sizes = (1 << 14, 1 << 15, 1 << 16)

    def build(name: str, size: int) -> Algorithm:
        if size == sizes[0]:
            raise InputError("no schedule of this size")
        return algorithm

    collective = selected(algorithm.collective, sizes, {"one": (1, 1, 1)}, build)
    files, losses = written(Selection("t", 4, 1, (collective,)))
    assert [name for name in files if name.endswith(".json")]
    assert any("has no steps for" in str(loss) and "of this size" in str(loss) for loss in losses)


def changed(files: Mapping[str, bytes], name: str, old: str, new: str) -> dict[str, bytes]:
    text = files[name].decode()
    assert old in text
    return {**files, name: text.replace(old, new).encode()}


@pytest.mark.parametrize(
    ("name", "old", "new", "says"),
    [
        ("register.py", "full = size * ranks", "full = size", "not as 'collhub tune' writes it"),
        ("register.py", "'all-reduce-0", "'../all-reduce-0", "not as 'collhub tune' writes it"),
        ("register.py", "'all-reduce-0", "'/all-reduce-0", "not as 'collhub tune' writes it"),
        ("register.py", "RANKS = 4", "RANKS = 5", "4 ranks, expected 5"),
        ("register.py", ", 64, 'all-reduce-0", ", 16, 'all-reduce-0", "takes multiples of 64"),
        ("register.py", "False, 0, None, 64,", "False, 0, None, 0,", "not as 'collhub tune'"),
        (
            "all-gather-0-inf-in-place.json",
            '"min_message_size":0',
            '"min_message_size":128',
            "a call of allgather with 16 bytes throws: 64 bytes are outside 128",
        ),
        (
            "all-reduce-0-1048575-in-place.json",
            '"max_message_size":1048575',
            '"max_message_size":1048000',
            "its window is smaller than 0 B to",
        ),
    ],
)
def test_answers_that_throw_are_reported(name: str, old: str, new: str, says: str) -> None:
    files, _ = written(sample_selection())
    _, found = served(changed(files, name, old, new))
    assert any(says in line for line in found), found


def test_files_that_are_not_registered_or_gone_are_reported() -> None:
    files, _ = written(sample_selection())
    name = "all-gather-0-inf-in-place.json"
    calls, found = served({**files, "again.json": files[name]})
    assert any("again.json: register.py does not name it" in line for line in found)
    assert len(calls) == 4
    calls, found = served({file: content for file, content in files.items() if file != name})
    assert any(f"{name}: register.py registers it, but it is missing" in line for line in found)
    assert len(calls) == 3
    _, found = served({name: files[name]})
    assert any("register.py is missing" in line for line in found)


def test_conditions_on_sizes_are_in_bytes_of_the_full_buffer() -> None:
    calls, _ = served(written(every_collective(6))[0])
    multiples = {call.kind: call.byte_multiple for call in calls}
    assert multiples[ALL_REDUCE] == 16
    assert multiples[CollectiveKind.ALL_GATHER] == 96


def test_reductions_are_reported_to_run_as_sums() -> None:
    notes = write(sample_selection(), PlanSelectionOptions()).notes
    assert any("max, min and avg would run as a sum" in note for note in notes)
    gathers = replace(sample_selection(), collectives=sample_selection().collectives[1:])
    notes = write(gathers, PlanSelectionOptions()).notes
    assert not any("max, min and avg" in note for note in notes)


def test_tuned_folder_is_proved_and_answers_every_call(collhub, tmp_path: Path) -> None:
    pytest.importorskip("collhub_tuning")
    pytest.importorskip("collhub_classic")
    folder = tmp_path / "tuned"
    kinds = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")
    tuned = collhub(
        *("tune", "--topology", "fully-connected:6", "--size", "4KiB..64KiB", "--jobs", "1"),
        *("--with", "ring", "--with", "direct", "-o", folder, "--to", "mscclpp-plans"),
        *(word for kind in kinds for word in ("--collective", kind)),
    )
    assert tuned.code == 0, tuned.err
    assert "max, min and avg would run as a sum" in tuned.err
    assert "max, min and avg would run as a sum" in (folder / "report.md").read_text()
    check = collhub("tune", "--check", folder, "--json")
    assert check.code == 0, check.err
    findings = [one["message"] for one in check.report()["formats"][0]["findings"]]
    assert any("calls tried as the runtime names them" in line for line in findings)
    runtime = RuntimeModel(folder / "mscclpp-plans", 6, 6)
    served = {
        (collective, size, in_place): runtime.run(Query(collective, size, in_place), ORDER)
        for collective in runtime.registered
        for size in (4, 96, 100, 1024, 4100)
        for in_place in (True, False)
    }
    assert all(outcome is None or outcome.verdict == "right" for outcome in served.values())
    # No power of two is a multiple of six chunks.
    assert served["allreduce", 1024, True] is not None
    (folder / "mscclpp-plans" / "register.py").write_text("PLANS = []\n")
    assert collhub("tune", "--check", folder).code == 1
