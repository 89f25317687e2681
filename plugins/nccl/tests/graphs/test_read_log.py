"""Logs of NCCL as algorithms: rings, trees, damaged channels, variants of releases."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest
from collhub_nccl.graphs.read_log import read
from collhub_nccl.options import LogReadOptions
from collhub_nccl.samples import log_samples
from collhub_nccl_records import ChoiceRecord, NcclLog, read_lines

import hub_core
from hub_core.model import Algorithm, Diagnostic, InputError, Severity, UsageError
from hub_core.plugin_api import Source

INIT = (
    "ncclCommInitRank comm 0xa{rank} rank {rank} nranks {count} cudaDev {rank} busId 1000"
    " commId 0x{identity} - Init COMPLETE"
)


@pytest.fixture
def logs(corpus: Path) -> Path:
    folder = corpus / "evidence" / "nccl"
    if not folder.is_dir():
        pytest.skip("the corpus has no logs of NCCL")
    return folder


def read_text(
    text: str, options: LogReadOptions | None = None
) -> tuple[Algorithm, list[Diagnostic]]:
    notes: list[Diagnostic] = []
    source = Source("job.log", Source.of_bytes("job.log", text.encode()).parts, notes.append)
    return read(source, options or LogReadOptions()), notes


def line(rank: int, message: str, prefix: str = "") -> str:
    return f"{prefix}node0:{100 + rank}:{100 + rank} [{rank}] NCCL INFO {message}\n"


def init(count: int, identity: str = "9ca7") -> str:
    return "".join(
        line(rank, INIT.format(rank=rank, count=count, identity=identity)) for rank in range(count)
    )


def pairs(algorithm: Algorithm) -> set[tuple[int, int, int]]:
    """(channel, source, target) of the messages."""
    steps = algorithm.steps
    sends = steps.kind == 0
    return set(
        zip(
            steps.channel[sends].tolist(),
            steps.rank[sends].tolist(),
            steps.peer[sends].tolist(),
            strict=True,
        )
    )


def test_rings_trees_connections_and_choices_of_the_published_log(logs: Path) -> None:
    text = (logs / "init_4ranks.log").read_text()
    ring, notes = read_text(text)
    links = {(0, 1), (1, 3), (3, 2), (2, 0)}
    assert pairs(ring) == {(channel, *link) for channel in range(2) for link in links}
    messages = [note.message for note in notes]
    assert "4 connections via P2P/CUMEM/read" in messages
    assert "NCCL chose RING SIMPLE for AllReduce of 1 MiB (1 calls)" in messages
    tree, _ = read_text(text, LogReadOptions(graph="tree"))
    up = {(1, 0), (3, 1), (2, 3)}
    assert pairs(tree) == {
        (channel, *link) for channel in range(2) for link in up | {(b, a) for a, b in up}
    }
    assert hub_core.verify(ring).ok
    assert hub_core.verify(tree).ok


def test_calls_of_the_published_log(logs: Path) -> None:
    log = NcclLog()
    with (logs / "init_4ranks.log").open("rb") as stream:
        (call,) = log.read(read_lines(stream), "x")
    assert (call.operation, call.bytes, call.dtype) == ("AllReduce", 1048576, "float32")
    (facts,) = log.communicators.values()
    assert (facts.identity, facts.rank_count) == ("0x9ca74fa6e40df7f4", 4)


@pytest.mark.parametrize(
    ("text", "algorithm", "protocol"),
    [
        ("AllReduce: 64 Bytes -> Algo 1 proto 2 time 1.5", "RING", "SIMPLE"),
        ("AllReduce: 64 Bytes -> Algo 9 proto 2 time 1.5", "9", "SIMPLE"),
        ("AllReduce: 64 Bytes -> Algo nvls proto LL channel{Lo..Hi}={0..3}", "NVLS", "LL"),
        # A digit of Unicode that is no decimal number.
        ("AllReduce: 64 Bytes -> Algo \u00b2 proto \u00b2 time 1.5", "\u00b2", "\u00b2"),
    ],
)
def test_choices_are_named_by_their_numbers(text: str, algorithm: str, protocol: str) -> None:
    log = NcclLog()
    lines = (init(2) + line(0, text)).encode().splitlines()
    assert not list(log.read(enumerate(lines, 1), "x"))
    (facts,) = log.communicators.values()
    assert facts.choices == {ChoiceRecord("AllReduce", 64, algorithm, protocol): 1}


def test_a_channel_that_is_no_ring_is_left_out_and_reported(logs: Path) -> None:
    ring, notes = read_text((logs / "init_broken_ring.log").read_text())
    assert {channel for channel, _, _ in pairs(ring)} == {0}
    (warning,) = [note for note in notes if note.severity is Severity.WARNING]
    assert warning.location.line == 3
    assert "channel 1 is no ring over all ranks: rank 1 occurs twice" in warning.message


def test_a_log_without_any_valid_channel_is_refused() -> None:
    text = init(3) + line(0, "Channel 00/01 : 0 1 1")
    with pytest.raises(InputError, match=r"^job.log:4: channel 0 .*rank 1 occurs twice.*; give"):
        read_text(text)


def test_communicator_of_one_rank_is_refused_as_such() -> None:
    """NCCL prints rings of one rank for a process that works alone."""
    text = init(1) + line(0, "Channel 00/01 : 0")
    with pytest.raises(InputError, match="has one rank, which sends no messages; give the log of"):
        read_text(text)


@pytest.mark.parametrize(
    "prefix", ["0: ", "[1,0]<stdout>: ", "\x1b[32m", "2026-01-05 10:00:00 | ", "[2026-01-05] "]
)
def test_text_of_launchers_before_a_line_is_ignored(prefix: str) -> None:
    text = init(2) + line(0, "Channel 00/01 : 0 1", prefix)
    assert pairs(read_text(text)[0]) == {(0, 0, 1), (0, 1, 0)}


def test_torn_lines_are_split_at_the_prefixes() -> None:
    text = init(2) + line(1, "Connected all").rstrip() + line(0, "Channel 00/01 :    0   1")
    assert pairs(read_text(text)[0]) == {(0, 0, 1), (0, 1, 0)}


def test_rings_in_lines_of_every_rank_replace_a_truncated_line() -> None:
    text = init(3) + line(0, "Channel 00/01 : 0 2 ...")
    with pytest.raises(InputError, match="truncated, and the log has no GRAPH lines"):
        read_text(text)
    for previous, rank, following in ((1, 0, 2), (0, 2, 1), (2, 1, 0)):
        text += line(rank, f"Ring 00 : {previous} -> {rank} -> {following}")
    assert pairs(read_text(text)[0]) == {(0, 0, 2), (0, 2, 1), (0, 1, 0)}


def test_connections_of_old_and_new_releases_are_no_rings() -> None:
    text = init(2) + line(0, "Channel 00/01 : 0 1")
    text += line(0, "Channel 00 : 0[1a000] -> 1[1b000] via P2P/IPC")
    text += line(1, "Channel 00 : 1[1b000] -> 0[1a000] via SHM/direct/direct comm 0xa1 nRanks 02")
    text += line(0, "Channel 00/0 : 1[1] -> 0[0] [receive] via NET/IB/3(1)/GDRDMA")
    _, notes = read_text(text)
    assert {note.message for note in notes if "connections" in note.message} == {
        "1 connections via P2P/IPC",
        "1 connections via SHM/direct/direct",
        "1 connections via NET/IB",
    }


def test_one_of_several_communicators_is_read() -> None:
    text = init(3, "aa") + line(0, "Channel 00/01 : 0 2 1")
    text += init(2, "bb") + line(0, "Channel 00/01 : 0 1")
    assert read_text(text)[0].num_ranks == 3
    assert read_text(text, LogReadOptions(communicator="0xBB"))[0].num_ranks == 2
    with pytest.raises(UsageError, match="communicators with rings: 0xaa, 0xbb"):
        read_text(text, LogReadOptions(communicator="0xcc"))


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ("-1/-1/-1->1->-1", "2 ranks have no parent"),
        ("-1/-1/-1->2->0", "the line of rank 1 is missing"),
        ("0/-1/-1->1->0", "whose parent is another rank"),
    ],
)
def test_trees_whose_ends_contradict_each_other_are_refused(second: str, message: str) -> None:
    text = init(2) + line(0, "Trees [0] 1/-1/-1->0->-1") + line(1, f"Trees [0] {second}")
    with pytest.raises(InputError, match=message):
        read_text(text, LogReadOptions(graph="tree"))


def test_trees_in_lines_of_the_graph_are_the_same() -> None:
    text = init(2) + line(0, "Tree 0 : -1 -> 0 -> 1/-1/-1") + line(1, "Tree 0 : 0 -> 1 -> -1/-1/-1")
    tree, _ = read_text(text, LogReadOptions(graph="tree"))
    assert pairs(tree) == {(0, 0, 1), (0, 1, 0)}


def test_other_collectives_have_no_trees() -> None:
    with pytest.raises(UsageError, match="NCCL runs no all-gather over trees"):
        read(log_samples()[0], LogReadOptions(graph="tree", collective="all-gather"))


def test_roots_are_ranks_of_rooted_collectives() -> None:
    assert read(log_samples()[0], LogReadOptions(collective="broadcast", root=3)).num_ranks == 4
    with pytest.raises(UsageError, match="4 is not one of 4 ranks"):
        read(log_samples()[0], LogReadOptions(collective="broadcast", root=4))


@pytest.mark.needs_plugins
def test_the_choice_of_nccl_is_compared_with_that_of_the_hub(
    collhub, logs: Path, tmp_path: Path
) -> None:
    log, dump = logs / "init_4ranks.log", logs / "graphs.dump"
    assert collhub("diff", log, dump).code == 0
    ring = tmp_path / "ring.json"
    made = collhub("synthesize", "ring", "--collective", "all-reduce", "--topology", "ring:4",
                   "--size", "1MiB", "-o", ring)  # fmt: skip
    assert made.code == 0
    run = collhub("diff", log, ring)
    assert run.code == 1
    assert "1 -> 3" in run.out


def test_the_graph_dump_of_the_corpus_has_its_rings(collhub, logs: Path) -> None:
    report = collhub("inspect", logs / "graphs.dump", "--json").report()
    assert (report["num_ranks"], report["channels"]) == (4, 2)
    refused = collhub("inspect", logs / "graphs_bad.dump")
    assert refused.code == 1
    assert "version '2' is not 1" in refused.err


def test_channels_without_a_line_are_reported() -> None:
    text = init(3) + line(0, "Channel 00/03 :    0   1   2")
    algorithm, notes = read_text(text)
    assert pairs(algorithm) == {(0, 0, 1), (0, 1, 2), (0, 2, 0)}
    warnings = [str(note) for note in notes if note.severity is Severity.WARNING]
    assert warnings == [
        "job.log: the lines of channels 1,2 of 3 are missing; give the complete log"
    ]


def test_a_ring_line_of_twenty_ranks_is_completed_by_the_lines_of_all_ranks() -> None:
    size = 24
    text = init(size) + line(0, "Channel 00/01 : " + "".join(f"{rank:4}" for rank in range(20)))
    with pytest.raises(InputError, match=r"NCCL prints 20 ranks, and the log has no GRAPH lines"):
        read_text(text)
    for rank in range(size):
        ring = f"Ring 00 : {(rank - 1) % size} -> {rank} -> {(rank + 1) % size}"
        text += line(rank, ring)
    assert len(pairs(read_text(text)[0])) == size


def test_a_log_with_trees_only_names_the_option_that_reads_them() -> None:
    text = init(2) + line(0, "Trees [0] 1/-1/-1->0->-1") + line(1, "Trees [0] -1/-1/-1->1->0")
    with pytest.raises(InputError, match=r"trees, but no rings; .*-O graph=tree"):
        read_text(text)
    assert pairs(read_text(text, LogReadOptions(graph="tree"))[0]) == {(0, 0, 1), (0, 1, 0)}


def test_trees_of_nccl_2_4_have_the_parent_first() -> None:
    text = init(3) + line(0, "Trees [0] -1->0->1/-1/-1") + line(1, "Trees [0] 0->1->2/-1/-1")
    text += line(2, "Trees [0] 1->2->-1/-1/-1")
    root_first = [
        line(0, "Trees [0] 1/-1/-1->0->-1"),
        line(1, "Trees [0] 2/-1/-1->1->0"),
        line(2, "Trees [0] -1/-1/-1->2->1"),
    ]
    trees = LogReadOptions(graph="tree")
    old, new = read_text(text, trees)[0], read_text(init(3) + "".join(root_first), trees)[0]
    assert old.steps.peer.tolist() == new.steps.peer.tolist()
    assert old.steps.kind.tolist() == new.steps.kind.tolist()


@pytest.mark.parametrize(
    ("message", "graph", "says"),
    [
        ("Channel 00/01 : 0 9999999", "ring", "rank 1 of 10000000 is missing"),
        ("Trees [0] 9999999/-1/-1->0->-1", "tree", "the line of rank 1 is missing"),
    ],
)
def test_the_memory_for_a_log_does_not_depend_on_its_highest_rank(
    message: str, graph: str, says: str
) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match=says):
            read_text(line(0, message), LogReadOptions(graph=graph))
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # A set of all ranks has more than 500 MB.
    assert peak_bytes < 50_000_000


def test_neighbours_in_lines_of_single_ranks_count_as_ranks_of_a_log_without_start() -> None:
    text = line(0, "Ring 00 : 3 -> 0 -> 1") + line(1, "Ring 00 : 0 -> 1 -> 0")
    with pytest.raises(InputError, match="rank 1 of 3 is missing"):
        read_text(line(0, "Ring 00 : 2 -> 0 -> 2") + line(1, "Ring 00 : 0 -> 1 -> 0"))
    tree = text + line(0, "Trees [0] 3/-1/-1->0->-1") + line(3, "Trees [0] -1/-1/-1->3->0")
    with pytest.raises(InputError, match=r"the line of rank 1 is missing"):
        read_text(tree, LogReadOptions(graph="tree"))


def test_log_with_calls_of_unknown_ranks_says_what_to_log() -> None:
    call = "AllReduce: opCount 1 sendbuff 0x1 recvbuff 0x2 count 64 datatype 7 op 0 root 0 comm 0x3"
    with pytest.raises(InputError) as caught:
        read_text(line(0, f"{call} [nranks=2] stream 0x4"))
    finding = caught.value.diagnostics[0]
    assert "no rings and no trees; 1 lines are calls" in finding.message
    assert "NCCL_DEBUG_SUBSYS=INIT,COLL" in finding.cure


def test_unknown_facts_of_a_log_are_left_out() -> None:
    algorithm, _ = read_text(line(0, "Channel 00/01 : 0 1"))
    assert set(algorithm.extensions["nccl-log"]) == {"transports", "choices"}
