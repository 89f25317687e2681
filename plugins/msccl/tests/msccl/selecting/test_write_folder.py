"""Folders of programs: a file a window, each one that its runtime takes for all of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from collhub_msccl.plugin import SelectionOptions
from collhub_msccl.selection_folder import read, write

from hub_core.model import (
    Algorithm,
    Buffer,
    Collective,
    CollectiveKind,
    Diagnostic,
    StepKind,
    StepTableBuilder,
)
from hub_core.plugin_api import Selection, ServedCalls, Source, SourcePart
from hub_core.testing import (
    binomial_broadcast,
    direct_all_to_all,
    halving_doubling_all_reduce,
    ring_all_gather,
    ring_all_reduce,
    sample_selection,
    selected,
)


def _written(selection: Selection, runtime: str = "executor") -> tuple[dict[str, bytes], list[str]]:
    result = write(selection, SelectionOptions(runtime=runtime))
    files = {artifact.name: artifact.content() for artifact in result.artifacts}
    return files, [str(loss) for loss in result.losses]


def _read(files: Mapping[str, bytes]) -> tuple[list[ServedCalls], list[str]]:
    found: list[Diagnostic] = []
    parts = [SourcePart(name, lambda content=content: content) for name, content in files.items()]
    served = read(Source("msccl", tuple(parts), found.append))
    return list(served), list(map(str, found))


def _one(algorithm: Algorithm, name: str = "one", size: int = 1 << 20) -> Selection:
    found = selected(algorithm.collective, (size,), {name: (1,)}, lambda name, size: algorithm)
    return Selection("t", algorithm.num_ranks, 1, (found,))


@pytest.mark.parametrize("runtime", ["executor", "rccl"])
def test_every_window_is_a_file_that_the_runtime_takes(runtime: str) -> None:
    files, losses = _written(sample_selection(), runtime)
    assert losses == []
    assert sorted(files) == [
        f"{runtime}/all-gather-0-inf.xml",
        f"{runtime}/all-reduce-0-1048575-in-place.xml",
        f"{runtime}/all-reduce-1048576-inf-in-place.xml",
    ]
    served, found = _read(files)
    assert found == []
    rows = [(str(s.kind), s.min_bytes, s.max_bytes, s.in_place, s.out_of_place) for s in served]
    assert sorted(rows) == [
        ("all-gather", 0, None, True, True),
        ("all-reduce", 0, 1048575, True, False),
        ("all-reduce", 1048576, None, True, False),
    ]


def test_no_upper_end_is_0_in_the_file() -> None:
    files, _ = _written(sample_selection())
    header = files["executor/all-reduce-1048576-inf-in-place.xml"].decode().splitlines()[0]
    assert 'minBytes="1048576"' in header
    assert 'maxBytes="0"' in header


def test_one_mode_a_file_for_the_runtime_that_takes_one() -> None:
    files, losses = _written(sample_selection(), "msccl")
    assert losses == []
    assert "msccl/all-gather-0-inf-in-place.xml" in files
    assert "msccl/all-gather-0-inf-out-of-place.xml" in files
    served, found = _read(files)
    assert found == []
    assert {(s.in_place, s.out_of_place) for s in served} == {(True, False), (False, True)}
    # Its upper end is the first size that is not served, which is none of the model's.
    assert {s.max_bytes for s in served if s.kind is CollectiveKind.ALL_REDUCE} == {1048575, None}


def test_rooted_collectives_are_left_to_the_runtime() -> None:
    files, losses = _written(_one(binomial_broadcast(4)))
    assert files == {}
    assert "a file would be used for calls with any root" in losses[0]


def test_a_window_goes_to_the_next_best_where_the_best_cannot_be_written() -> None:
    ring = ring_all_reduce(4)
    steps = {
        "wrong": replace(
            ring, collective=replace(ring.collective, in_place=False, out_of_place=True)
        ),
        "ok": ring,
    }
    collective = Collective(CollectiveKind.ALL_REDUCE, 4, 4, in_place=True, out_of_place=False)
    times = {"wrong": (1,), "ok": (2,)}
    found = selected(collective, (1 << 20,), times, lambda name, size: steps[name])
    files, losses = _written(Selection("t", 4, 1, (found,)))
    assert list(files) == ["executor/all-reduce-0-inf-in-place.xml"]
    assert losses == [
        "algorithm (all-reduce, from 0 B): not wrong: option mode: the algorithm does not claim"
        " to be usable in place; ok takes 2.00 times the time of the fastest"
    ]


def test_a_file_that_serves_no_measured_size_is_not_written() -> None:
    files, losses = _written(_one(ring_all_reduce(6), size=1 << 20))
    assert files == {}
    assert "not one: it serves only multiples of 6 elements" in losses[0]
    assert "left to the runtime" in losses[1]


def test_parts_of_all_ranks_are_of_whole_elements() -> None:
    # 1 MiB is no multiple of 6 elements, but no all-gather of 6 ranks has such a buffer.
    files, losses = _written(_one(ring_all_gather(6), size=1 << 20))
    assert (len(files), losses) == (1, [])


def _three_before_receiving() -> Algorithm:
    """An all-gather of two ranks that send three units before they receive.

    Two transfers fit a connection of Simple, so that one must take two units.
    """
    builder = StepTableBuilder(2)
    for rank in range(2):
        theirs, own = 3 * (1 - rank), 3 * rank
        builder.add(rank, StepKind.SEND, peer=1 - rank, src_buffer=Buffer.INPUT, count=3, lane=0)
        builder.add(
            rank,
            StepKind.RECV,
            peer=1 - rank,
            dst_buffer=Buffer.OUTPUT,
            dst_offset=theirs,
            count=3,
            lane=0,
        )
        # One unit alone keeps the three from being taken as one.
        for first, count in ((0, 1), (1, 2)):
            builder.add(
                rank,
                StepKind.COPY,
                src_buffer=Buffer.INPUT,
                src_offset=first,
                dst_buffer=Buffer.OUTPUT,
                dst_offset=own + first,
                count=count,
                lane=1,
            )
    collective = Collective(CollectiveKind.ALL_GATHER, 2, 6)
    return Algorithm(collective, builder.build(), np.zeros(2, np.int64))


def test_sizes_at_which_fifos_fill_up_go_to_the_next_best() -> None:
    steps = {"three": _three_before_receiving(), "ring": ring_all_gather(2)}
    collective = steps["three"].collective
    times = {"three": (1, 1), "ring": (2, 2)}
    sizes = (6 << 10, 12 << 20)
    found = selected(collective, sizes, times, lambda name, size: steps[name])
    files, losses = _written(Selection("t", 2, 1, (found,)))
    assert list(files) == [
        f"executor/all-gather-0-{6 << 20}-out-of-place.xml",
        f"executor/all-gather-0-{6 << 20}-out-of-place_rest.xml",
        f"executor/all-gather-{(6 << 20) + 1}-inf-out-of-place.xml",
    ]
    assert losses == [
        "algorithm (all-gather, from 6 MiB): not three:"
        " the FIFOs of its connections can fill up at such sizes;"
        " ring takes 2.00 times the time of the fastest"
    ]
    served, problems = _read(files)
    assert problems == []
    assert [one.max_bytes for one in served] == [6 << 20, None]


def test_calls_in_place_that_the_runtime_refuses_get_no_file() -> None:
    algorithm = direct_all_to_all(4)
    both = replace(algorithm.collective, in_place=True, out_of_place=True)
    found = selected(both, (1 << 20,), {"one": (1,)}, lambda name, size: algorithm)
    files, losses = _written(Selection("t", 4, 1, (found,)), "msccl")
    assert list(files) == ["msccl/all-to-all-0-inf-out-of-place.xml"]
    assert losses == ["in_place (all-to-all): microsoft/msccl refuses calls in place"]


def test_elements_that_chunks_do_not_divide_are_told() -> None:
    served, _ = _read(_written(_one(ring_all_reduce(4)))[0])
    assert served[0].element_multiple == 4


# What is taken out: what stands there then, and the reason.
_DAMAGE = {
    'maxBytes="0"': ("", "has no attribute 'maxBytes'"),
    'coll="allreduce"': ('coll="alreduce"', "knows no coll='alreduce'"),
    'type="s"': ('type="nop"', ""),
    "</algo>": ("", ""),
}


@pytest.mark.parametrize("old", _DAMAGE)
def test_a_damaged_file_serves_nothing(old: str) -> None:
    new, reason = _DAMAGE[old]
    files, _ = _written(_one(ring_all_reduce(4)))
    name, content = next(iter(files.items()))
    damaged = re.sub(old.encode(), new.encode(), content, count=1)
    served, found = _read({name: damaged})
    assert served == []
    assert found
    assert reason in found[0]
    assert found[0].startswith(name)


def test_a_file_outside_the_folder_of_a_runtime_is_said() -> None:
    served, found = _read({"all.xml": b"<algo/>"})
    assert served == []
    assert found == ["all.xml: is in no folder of a runtime (msccl, executor, rccl)"]


def test_later_files_for_the_same_calls_are_joined_in_the_order_of_their_names() -> None:
    """The runtime takes the first file by name whose chunks divide the elements."""
    files = {}
    for file, factor in (("c", 1), ("b", 2), ("a", 4)):
        algorithm = _in_smaller_units(ring_all_reduce(4), factor)
        content = _written(_one(algorithm, f"by{4 * factor}"))[0].popitem()[1]
        # All files serve the calls of the coarsest one.
        largest = re.sub(rb'maxBytes="[0-9]+"', b'maxBytes="1048577"', content)
        files[f"executor/{file}.xml"] = largest
    (calls,), problems = _read(files)
    assert problems == []
    assert (
        calls.by == "a.xml: by16 of 4 ranks else b.xml: by8 of 4 ranks else c.xml: by4 of 4 ranks"
    )
    assert calls.element_multiple == 4


def test_a_later_file_with_more_chunks_than_an_earlier_one_stays_an_overlap() -> None:
    fine, coarse, _ = _written(_select_rings())[0].values()
    served, _ = _read({"executor/c.xml": fine, "executor/b.xml": coarse, "executor/a.xml": fine})
    assert [one.by.partition(":")[0] for one in served] == ["c.xml", "a.xml"]
    assert [one.element_multiple for one in served] == [16, 4]


def test_steps_that_depend_on_the_size_are_a_loss() -> None:
    steps = {1 << 10: ring_all_reduce(4), 1 << 20: halving_doubling_all_reduce(4)}
    collective = ring_all_reduce(4).collective
    found = selected(collective, tuple(steps), {"one": (1, 1)}, lambda name, size: steps[size])
    _, losses = _written(Selection("t", 4, 1, (found,)))
    assert losses == [
        "steps (all-reduce, from 0 B): one has the steps for 1 MiB,"
        " but was measured with steps for each size"
    ]


def _in_smaller_units(algorithm: Algorithm, factor: int) -> Algorithm:
    """The same algorithm with units that are smaller by the factor."""
    steps, collective = algorithm.steps, algorithm.collective
    columns = {
        name: getattr(steps, name) * factor for name in ("src_offset", "dst_offset", "count")
    }
    return replace(
        algorithm,
        collective=replace(collective, unit_count=factor * collective.unit_count),
        steps=replace(steps, **columns),
    )


def _select_rings(coarse_time: int = 3) -> Selection:
    """A fast all-reduce of 16 chunks, which takes 2, and a slower one of 4, on 4 ranks."""
    fine = _in_smaller_units(ring_all_reduce(4), 4)
    steps = {"fine": fine, "coarse": ring_all_reduce(4)}
    times = {"fine": (2,), "coarse": (coarse_time,)}
    found = selected(fine.collective, (1 << 20,), times, lambda name, size: steps[name])
    return Selection("t", 4, 1, (found,))


def test_a_second_file_serves_the_sizes_that_the_chunks_of_the_first_do_not_divide() -> None:
    result = write(_select_rings(), SelectionOptions(runtime="executor"))
    names = [artifact.name for artifact in result.artifacts]
    assert names == [
        "executor/all-reduce-0-16777216-in-place.xml",
        "executor/all-reduce-0-16777216-in-place_rest.xml",
        "executor/all-reduce-16777217-inf-in-place.xml",
    ]
    # The runtime takes the first file that fits, in the order of the names.
    assert names == sorted(names)
    assert any(
        "_rest.xml: coarse serves the sizes that 16 chunks do not divide, in multiples of 4"
        " elements; it takes 1.50 times the time of the fastest" in note
        for note in result.notes
    )
    assert any(
        "no multiple of 4 elements are served by the runtime's own" in n for n in result.notes
    )
    (calls, larger), problems = _read(_written(_select_rings())[0])
    assert problems == []
    assert calls.element_multiple == 4
    assert calls.by == (
        "all-reduce-0-16777216-in-place.xml: fine of 4 ranks else "
        "all-reduce-0-16777216-in-place_rest.xml: coarse of 4 ranks"
    )
    assert larger.by == "all-reduce-16777217-inf-in-place.xml: coarse of 4 ranks"


def test_a_runtime_that_reads_files_in_any_order_gets_no_second_file() -> None:
    assert list(_written(_select_rings(), "rccl")[0]) == [
        "rccl/all-reduce-0-16777216-in-place.xml",
        "rccl/all-reduce-16777217-inf-in-place.xml",
    ]


def test_a_slow_second_program_is_left_to_the_runtime() -> None:
    result = write(_select_rings(coarse_time=5), SelectionOptions(runtime="executor"))
    assert not [one.name for one in result.artifacts if one.name.endswith("_rest.xml")]
    assert any(
        "no multiple of 16 elements are served by the runtime's own" in n for n in result.notes
    )


def test_a_second_file_that_is_read_first_is_an_overlap() -> None:
    files, _ = _written(_select_rings())
    fine, coarse, _ = files.values()
    served, _ = _read({"executor/a.xml": coarse, "executor/b.xml": fine})
    assert [one.element_multiple for one in served] == [4, 16]


def test_without_sizes_for_a_second_file_no_other_algorithm_is_built() -> None:
    gather = ring_all_gather(4)
    built = set()

    def build(name: str, size: int) -> Algorithm:
        built.add(name)
        return gather

    times = {"fast": (2,), "slow": (3,)}
    found = selected(gather.collective, (1 << 20,), times, build)
    # Every buffer of 4 ranks is divisible by the 4 chunks.
    result = write(Selection("t", 4, 1, (found,)), SelectionOptions(runtime="executor"))
    assert built == {"fast"}
    assert not [note for note in result.notes if "do not divide" in note or "no multiple" in note]
