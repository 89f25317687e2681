"""NCCL's tuner configuration: golden lines, sizes covered, and what the tuner misreads."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from collhub_nccl.options import TunerOptions
from collhub_nccl.tuner.read import read
from collhub_nccl.tuner.write import write

from hub_core.model import Collective, CollectiveKind, Diagnostic
from hub_core.plugin_api import SelectedCollective, Selection, Source, SourcePart
from hub_core.testing import ring_all_reduce, selected

SIZES = (1 << 10, 1 << 15, 1 << 22)


def _selected(kind: CollectiveKind, times: dict[str, Sequence[int]]) -> SelectedCollective:
    root = 0 if kind.traits.is_rooted else None
    collective = Collective(kind, 16, 16, root, in_place=True)
    return selected(collective, SIZES, times, lambda name, size: ring_all_reduce(16))


def _written(
    *found: SelectedCollective, num_nodes: int = 2, options: TunerOptions | None = None
) -> tuple[list[str], list[str]]:
    """Lines without the first, and losses."""
    selection = Selection("two nodes", 16, num_nodes, found)
    result = write(selection, options or TunerOptions())
    (artifact,) = result.artifacts
    title, *lines = artifact.content().decode().splitlines()
    assert title == f"# collhub tune: two nodes, {num_nodes} nodes, 16 ranks"
    return lines, [str(loss) for loss in result.losses]


def _read(text: str, name: str = "nccl_tuner.conf") -> tuple[list[tuple[object, ...]], list[str]]:
    found: list[Diagnostic] = []
    part = SourcePart(name, text.encode)
    served = read(Source("nccl-tuner", (part,), found.append))
    return [(str(s.kind), s.min_bytes, s.max_bytes, s.by) for s in served], list(map(str, found))


def test_lines_of_the_specification() -> None:
    times = {"double-binary-tree": (1, 2, 9), "ring": (2, 3, 4)}
    lines, losses = _written(_selected(CollectiveKind.ALL_REDUCE, times))
    assert lines == [
        "allreduce,0,65535,tree,ll,16,2,16",
        "allreduce,65536,4194303,tree,simple,16,2,16",
        "allreduce,4194304,18446744073709551615,ring,simple,16,2,16",
    ]
    assert losses == []


def test_what_nccl_has_not_goes_to_the_best_that_it_has() -> None:
    times = {"swing": (1, 2, 9), "double-binary-tree": (2, 3, 9), "ring": (4, 4, 4)}
    lines, losses = _written(_selected(CollectiveKind.ALL_REDUCE, times))
    assert [line.split(",")[3] for line in lines] == ["tree", "tree", "ring"]
    assert losses == [
        "algorithm (all-reduce, 1 KiB to 32 KiB): NCCL has no swing;"
        " double-binary-tree takes 1.75 times the time of the fastest"
    ]


@pytest.mark.parametrize(("num_nodes", "algorithm"), [(16, "pat"), (2, "ring")])
def test_pat_is_for_one_rank_a_node(num_nodes: int, algorithm: str) -> None:
    times = {"pat": (1, 1, 1), "ring": (2, 2, 2)}
    lines, _ = _written(_selected(CollectiveKind.ALL_GATHER, times), num_nodes=num_nodes)
    assert {line.split(",")[3] for line in lines} == {algorithm}
    # Its trees know no other protocol.
    assert ("ll" in {line.split(",")[4] for line in lines}) == (algorithm == "ring")


def test_all_to_all_is_left_to_nccl() -> None:
    lines, losses = _written(_selected(CollectiveKind.ALL_TO_ALL, {"direct": (1, 1, 1)}))
    assert lines == []
    assert losses == [
        "collective (all-to-all): NCCL's tuner is not asked for it; NCCL chooses itself"
    ]


def test_channels_and_the_border_of_protocols_are_options() -> None:
    options = TunerOptions(channels=24, ll_below=1)
    found = _selected(CollectiveKind.BROADCAST, {"ring": (1, 1, 1)})
    lines, _ = _written(found, options=options)
    assert lines == [
        "broadcast,0,0,ring,ll,24,2,16",
        "broadcast,1,18446744073709551615,ring,simple,24,2,16",
    ]


def test_what_is_written_is_read() -> None:
    times = {"double-binary-tree": (1, 2, 9), "ring": (2, 3, 4)}
    lines, _ = _written(_selected(CollectiveKind.ALL_REDUCE, times))
    assert _read("# comment\n\n" + "\n".join(lines)) == (
        [
            ("all-reduce", 0, 65535, "tree ll 16 channels"),
            ("all-reduce", 65536, 4194303, "tree simple 16 channels"),
            ("all-reduce", 4194304, None, "ring simple 16 channels"),
        ],
        [],
    )


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("AllReduce,0,9,ring,simple,16,2,16", "'AllReduce' is not one of allreduce"),
        ("allreduce,0,9,Ring,simple,16,2,16", "'Ring' is not one of tree, ring"),
        ("allreduce,0,9,ring,LL,16,2,16", "'LL' is not one of ll, ll128, simple"),
        ("allreduce,0,9,ring,simple,16,2", "7 fields, so that the tuner skips the line"),
        ("allreduce,0,9,ring,simple,-1,2,16", "with at least one channel"),
        ("allreduce,9,0,ring,simple,16,2,16", "no size is at least 9 and at most 0"),
        ("allreduce,0,9,ring,simple,16,two,16", "nodes and ranks are not whole numbers"),
        ("allreduce,0,9,ring,simple,16,2,16" + " " * 240, "more than 255 characters"),
    ],
)
def test_a_line_that_the_tuner_misreads_serves_nothing(line: str, reason: str) -> None:
    served, found = _read(line)
    assert served == []
    assert [reason in one and one.startswith("nccl_tuner.conf:1: ") for one in found] == [True]


def test_other_files_are_none_of_the_format() -> None:
    assert _read("", "other.conf") == ([], ["other.conf: no file of this format"])
