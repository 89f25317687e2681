"""NCCL's tuner configuration: golden lines, sizes covered, and what the tuner misreads."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from collhub_machine_profiles.nccl_baseline import communicator_of_topology, count_nodes
from collhub_machine_profiles.nccl_choice import cheapest_alternative
from collhub_nccl.options import TunerOptions
from collhub_nccl.tuner import ncclx
from collhub_nccl.tuner.read import read
from collhub_nccl.tuner.write import write

import hub_core
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
    """Lines of tuned collectives, and losses."""
    selection = Selection("two nodes", 16, num_nodes, found)
    result = write(selection, options or TunerOptions())
    (artifact,) = result.artifacts
    title, *lines = artifact.content().decode().splitlines()
    assert title == f"# collhub tune: two nodes, {num_nodes} nodes, 16 ranks"
    others = lines.index("# All other calls, which the tuner would leave a single channel.")
    return lines[:others], [str(loss) for loss in result.losses]


def _file(*found: SelectedCollective, num_nodes: int = 2) -> str:
    selection = Selection("two nodes", 16, num_nodes, found)
    (artifact,) = write(selection, TunerOptions()).artifacts
    return artifact.content().decode()


# What the cost table of NCCL allows, by its cost model: all but PAT for all-reduce, rings alone for
# broadcast and reduce. NVLS is there on some machines only.
_RUN = {
    "allreduce": {"tree", "ring"},
    "broadcast": {"ring"},
    "reduce": {"ring"},
    "allgather": {"ring"},
    "reducescatter": {"ring"},
}


def _channels_of_call(
    text: str, collective: str, size: int, nodes: int, ranks: int, *, has_nvls: bool
) -> tuple[str, int]:
    """(algorithm, channels) of a call, by the rules of NCCL's example tuner and its core.

    The tuner starts from one channel; the first line wins whose algorithm NCCL allows, and -1 keeps
    the one channel. The core applies every number but 0, which leaves its own.
    """
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        name, first, last, algorithm, _, channels, of_nodes, of_ranks = line.split(",")
        is_match = name == collective and int(first) <= size <= int(last)
        is_match &= of_nodes in ("-1", str(nodes)) and of_ranks in ("-1", str(ranks))
        is_nvls = algorithm == "nvls" and has_nvls and collective == "allreduce"
        if is_match and (algorithm in _RUN[collective] or is_nvls):
            return algorithm, 1 if channels == "-1" else int(channels)
    return "", 1


@pytest.mark.parametrize("has_nvls", [False, True])
def test_no_call_of_any_communicator_loses_its_channels(has_nvls: bool) -> None:
    times = {"double-binary-tree": (1, 2, 9), "ring": (2, 3, 4)}
    text = _file(_selected(CollectiveKind.ALL_REDUCE, times))
    sizes = [0, 1, 65535, 65536, (2 << 20) - 1, 2 << 20, 4 << 20, 1 << 40, (1 << 64) - 1]
    for nodes, ranks in ((1, 8), (2, 16), (2, 2), (64, 512)):
        for collective in _RUN:
            for size in sizes:
                algorithm, channels = _channels_of_call(
                    text, collective, size, nodes, ranks, has_nvls=has_nvls
                )
                is_tuned = (collective, nodes, ranks) == ("allreduce", 2, 16)
                assert channels == (16 if is_tuned else 0)
                assert algorithm != ("tree" if nodes == 1 else "nvls")


def test_a_file_of_a_tuning_without_windows_keeps_all_channels() -> None:
    text = _file(_selected(CollectiveKind.ALL_TO_ALL, {"direct": (1, 1, 1)}))
    assert _channels_of_call(text, "allreduce", 1 << 20, 2, 16, has_nvls=False) == ("tree", 0)
    assert _read(text)[1] == []


def test_the_report_names_the_collectives_that_were_not_tuned() -> None:
    found = _selected(CollectiveKind.ALL_REDUCE, {"ring": (1, 1, 1)})
    notes = write(Selection("two nodes", 16, 2, (found,)), TunerOptions()).notes
    assert [
        note.startswith(
            "broadcast, reduce, all-gather, reduce-scatter, and all calls of communicators other "
            "than 2 nodes, 16 ranks were not tuned"
        )
        for note in notes
    ] == [False, False, True]


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


def test_channels_may_be_left_to_nccl() -> None:
    found = _selected(CollectiveKind.BROADCAST, {"ring": (1, 1, 1)})
    lines, _ = _written(found, options=TunerOptions(channels=0))
    assert [line.split(",")[5] for line in lines] == ["0", "0"]


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
    served, found = _read("# comment\n\n" + _file(_selected(CollectiveKind.ALL_REDUCE, times)))
    assert [row for row in served if row[0] == "all-reduce"] == [
        ("all-reduce", 0, 65535, "tree ll 16 channels"),
        ("all-reduce", 65536, 4194303, "tree simple 16 channels"),
        ("all-reduce", 4194304, None, "ring simple 16 channels"),
    ]
    # Further lines serve other communicators, and the collectives that were not tuned.
    assert [row[1:] for row in served if row[0] == "broadcast"] == [
        (0, 65535, "ring ll NCCL's channels"),
        (65536, None, "ring simple NCCL's channels"),
    ]
    assert found == []


def test_a_collective_that_loses_its_channels_is_reported() -> None:
    text = "allreduce,0,18446744073709551615,ring,simple,16,2,16\nbroadcast,0,9,ring,ll,16,2,16\n"
    _, found = _read(text)
    cure = "write lines for all sizes with -1,-1 for nNodes,nRanks, as collhub tune does"
    assert found == [
        "nccl_tuner.conf: one channel: no line matches broadcast from 10 B, reduce of all sizes, "
        "all-gather of all sizes, reduce-scatter of all sizes, in communicators of 2 nodes and 16 "
        f"ranks; {cure}",
        "nccl_tuner.conf: one channel: no line matches all-reduce of all sizes, broadcast of all "
        "sizes, reduce of all sizes, all-gather of all sizes, reduce-scatter of all sizes, in "
        f"communicators of other numbers of nodes and ranks; {cure}",
    ]


def test_a_line_for_registered_buffers_alone_serves_not_all_calls() -> None:
    served, found = _read("allreduce,0,9,ring,simple,16,2,16,-1,1")
    assert served == []
    assert found[0].startswith("nccl_tuner.conf:1: the line holds for some numPipeOps")


def test_the_first_of_two_matching_lines_serves() -> None:
    lines = ["allreduce,5,9,ring,ll,8,2,16", "allreduce,0,20,ring,simple,16,-1,16"]
    served, _ = _read("\n".join(lines))
    assert served == [
        ("all-reduce", 5, 9, "ring ll 8 channels"),
        ("all-reduce", 0, 4, "ring simple 16 channels"),
        ("all-reduce", 10, 20, "ring simple 16 channels"),
    ]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("AllReduce,0,9,ring,simple,16,2,16", "'AllReduce' is not one of allreduce"),
        ("allreduce,0,9,Ring,simple,16,2,16", "'Ring' is not one of tree, ring"),
        ("allreduce,0,9,ring,LL,16,2,16", "'LL' is not one of ll, ll128, simple"),
        ("allreduce,0,9,ring,simple,16,2", "7 fields, so that the tuner skips the line"),
        (
            "allreduce,0,9,ring,simple,-1,2,16",
            "channels -1 leaves one channel; 0 keeps NCCL's own number",
        ),
        ("allgather,0,9,tree,ll,16,2,16", "NCCL skips the line: allgather has ring"),
        ("allreduce,0,9,nvls,ll,16,2,16", "NCCL skips the line: nvls has the protocol simple only"),
        ("allreduce,9,0,ring,simple,16,2,16", "no size is at least 9 and at most 0"),
        ("allreduce,0,9,ring,simple,16,two,16", "nodes and ranks are not whole numbers"),
        ("allreduce,0,9,ring,simple,16,2,16" + " " * 240, "more than 255 characters"),
    ],
)
def test_a_line_that_the_tuner_misreads_serves_nothing(line: str, reason: str) -> None:
    served, found = _read(line)
    assert served == []
    assert reason in found[0]
    assert found[0].startswith("nccl_tuner.conf:1: ")


def test_the_finding_on_another_file_names_the_expected_files() -> None:
    message = "other.conf: no file of this format: the name is not nccl_tuner.conf"
    assert _read("", "other.conf") == ([], [f"{message}; name the file nccl_tuner.conf"])
    part = SourcePart("other.conf", "".encode)
    found: list[Diagnostic] = []
    ncclx.read(Source("folder", (part,), found.append))
    assert "the name is not ncclx_tuner.csv or ncclx_tuner.json" in found[0].message


def _known(topology: str, *found: SelectedCollective) -> list[str]:
    """Lines for the communicator of a known machine, without those of other communicators."""
    network = hub_core.parse_topology(topology)
    nodes = count_nodes(network)
    selection = Selection(topology, network.num_npus, nodes, found, network)
    (artifact,) = write(selection, TunerOptions()).artifacts
    lines = artifact.content().decode().splitlines()
    return [line for line in lines if line.endswith(f",{nodes},{network.num_npus}")]


def test_on_a_known_machine_protocols_follow_the_cost_model() -> None:
    found = _selected(CollectiveKind.ALL_REDUCE, {"ring": (1, 1, 1)})
    lines = _known("dgx-a100:2", found)
    tuned = [line for line in lines if line.startswith("allreduce,")]
    assert tuned[0].startswith("allreduce,0,")
    assert [line.split(",")[3:6] for line in tuned[:3]] == [
        ["ring", "ll", "0"], ["ring", "ll128", "0"], ["ring", "simple", "0"]
    ]  # fmt: skip


def test_on_a_known_machine_other_collectives_keep_the_choice_of_nccl() -> None:
    found = _selected(CollectiveKind.ALL_GATHER, {"ring": (1, 1, 1)})
    lines = _known("dgx-h100:2", found)
    communicator = communicator_of_topology(hub_core.parse_topology("dgx-h100:2"))
    assert communicator is not None
    reduces = [line.split(",") for line in lines if line.startswith("allreduce,")]
    for size in (1, 255_452, 255_453, 1 << 22, 1 << 34):
        (algorithm, protocol) = next(
            (fields[3], fields[4]) for fields in reduces if int(fields[1]) <= size <= int(fields[2])
        )
        best = cheapest_alternative(communicator, "all-reduce", size)
        assert (algorithm, protocol) == (best.algorithm, best.protocol), size


def test_a_file_for_a_known_machine_has_no_findings() -> None:
    network = hub_core.parse_topology("dgx-h100")
    found = _selected(CollectiveKind.ALL_REDUCE, {"ring": (1, 1, 1)})
    selection = Selection("dgx-h100", 8, 1, (found,), network)
    (artifact,) = write(selection, TunerOptions()).artifacts
    reported: list[Diagnostic] = []
    part = SourcePart("nccl_tuner.conf", artifact.content)
    read(Source("tuned", (part,), report=reported.append))
    assert reported == []
