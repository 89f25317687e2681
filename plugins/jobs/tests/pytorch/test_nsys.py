"""Exports of Nsight Systems: payloads, groups of calls, ranks, hostile files, long profiles."""

from __future__ import annotations

import importlib.util
import random
import sqlite3
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from collhub_pytorch.findings import collect_findings
from collhub_pytorch.formats import NsysOptions
from collhub_pytorch.nsys import activities
from collhub_pytorch.nsys.ranges import CallRange, NcclPayload
from collhub_pytorch.nsys.read import _merge_calls, read, read_folder
from collhub_pytorch.nsys.samples import Export, exports, parquet_parts, step_of
from collhub_pytorch.samples import file_part
from read_jobs import collectives

from hub_core.model import Diagnostic, HubError, InputError, NodeKind, UsageError, Workload
from hub_core.plugin_api import Source, SourcePart

SAME = NsysOptions(ranks_missing="assume-same")
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"


@pytest.fixture
def files(corpus: Path) -> Path:
    folder = corpus / "evidence" / "nsys"
    if not folder.is_dir():
        pytest.skip("the corpus has no exports of Nsight Systems")
    return folder


def read_files(
    files: Mapping[str, bytes], options: NsysOptions | None = None
) -> tuple[Workload, list[str]]:
    notes: list[Diagnostic] = []
    parts = tuple(file_part(name, content) for name, content in files.items())
    workload = read(Source("job", parts, notes.append), options or NsysOptions())
    return workload, [note.message for note in notes]


def read_exports(*given: Export, options: NsysOptions | None = None) -> tuple[Workload, list[str]]:
    files = {f"job.{place}.sqlite": export.content() for place, export in enumerate(given)}
    return read_files(files, options)


def test_the_published_export_has_its_all_reduce(files: Path) -> None:
    content = (files / "rank0.sqlite").read_bytes()
    workload, _ = read_files({"rank0.sqlite": content}, SAME)
    assert workload.num_ranks == 2
    assert collectives(workload, 0) == [("ALL_REDUCE", 4194304, 80_000)]
    facts = workload.extensions["pytorch"]
    assert isinstance(facts, dict)
    assert facts["idle"][0][0]["device"] == 0  # type: ignore[index,call-overload]
    assert facts["idle"][0][0]["stream"] == 20  # type: ignore[index,call-overload]


def test_a_payload_that_is_too_short_is_counted_and_never_a_size(files: Path) -> None:
    content = (files / "rank0_short_payload.sqlite").read_bytes()
    workload, notes = read_files({"rank0.sqlite": content}, SAME)
    assert collectives(workload, 0) == [("ALL_REDUCE", -1, 80_000)]
    assert "rank0.sqlite: 1 payloads of NCCL's ranges do not fit their schema" in notes[0]


def test_the_reports_are_those_of_the_same_step_in_kineto() -> None:
    findings = collect_findings(read(exports()[0], NsysOptions()))
    (reduce,) = findings.calls
    assert (reduce.transferring_ns, reduce.waiting_ns) == (120_000, 40_000)
    assert findings.job_ns == 221_000
    assert [one.times.computation_ns for one in findings.ranks] == [100_000, 100_000]


def test_files_of_any_order_and_ranks_in_one_process_are_numbered_by_communicators() -> None:
    forward, _ = read_exports(step_of(0, 100_000), step_of(1, 140_000))
    backward, _ = read_exports(step_of(1, 140_000), step_of(0, 100_000))
    assert np.array_equal(forward.nodes.duration_ns, backward.nodes.duration_ns)


def test_several_devices_of_one_process_are_several_ranks() -> None:
    export = step_of(0, 100_000)
    other = step_of(1, 140_000)
    other.pid = export.pid
    merged = merge(export, other)
    workload, _ = read_files({"one.sqlite": merged})
    assert workload.num_ranks == 2
    assert collectives(workload, 0)[0][:2] == ("ALL_REDUCE", 4 << 20)


def merge(one: Export, two: Export) -> bytes:
    """One file with the events of both, as of one process with two devices."""
    mask, offset = 1 << 24, 1000
    for table in ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS"):
        cursor = two.connection.execute(f"SELECT * FROM {table}")
        names = [column[0] for column in cursor.description]
        for row in cursor.fetchall():
            values = dict(zip(names, row, strict=True))
            if "globalPid" in values:
                values["globalPid"] = one.pid * mask
            if "globalTid" in values:
                values["globalTid"] = one.pid * mask | 200
            if values.get("correlationId"):
                values["correlationId"] += offset
            marks = ",".join("?" * len(names))
            one.connection.execute(f"INSERT INTO {table} VALUES ({marks})", [*values.values()])
    return one.content()


def test_calls_of_a_group_are_paired_with_its_kernels_in_order() -> None:
    ranks = []
    for rank in range(2):
        export = Export(pid=rank + 1, device=rank)
        export.initialise(rank, 2)
        export.mark("ncclGroupStart", 6000, 6100)
        export.call("ncclAllReduce", 6200, 6300, 4096)
        export.call("ncclAllReduce", 6400, 6500, 8192)
        export.mark("ncclGroupEnd", 6600, 9000)
        export.launch(ALL_REDUCE, 10_000, 20_000, stream=20, called=7000)
        export.launch(ALL_REDUCE, 20_000, 30_000, stream=20, called=8000)
        ranks.append(export)
    workload, _ = read_exports(*ranks)
    assert [one[1] for one in collectives(workload, 0)] == [4096, 8192]


def test_a_kernel_that_performs_two_calls_has_the_sum_of_their_sizes() -> None:
    export = Export()
    export.initialise(0, 1)
    export.mark("ncclGroupStart", 6000, 6100)
    export.call("ncclAllReduce", 6200, 6300, 4096)
    export.call("ncclAllReduce", 6400, 6500, 8192)
    export.mark("ncclGroupEnd", 6600, 9000)
    export.launch(ALL_REDUCE, 10_000, 20_000, stream=20, called=7000)
    workload, notes = read_exports(export)
    assert [one[1] for one in collectives(workload, 0)] == [12288]
    assert any("1 kernels of NCCL perform several calls" in note for note in notes)


def test_sends_and_receives_of_one_kernel_are_messages_with_peers() -> None:
    ranks = []
    for rank in range(2):
        export = Export(pid=rank + 1, device=rank)
        export.initialise(rank, 2)
        export.mark("ncclGroupStart", 6000, 6100)
        export.call("ncclSend", 6200, 6300, 4096, peer=1 - rank)
        export.call("ncclRecv", 6400, 6500, 4096, peer=1 - rank)
        export.mark("ncclGroupEnd", 6600, 9000)
        export.launch(SEND_RECV, 10_000, 20_000, stream=20, called=7000)
        ranks.append(export)
    workload, _ = read_exports(*ranks)
    nodes = workload.nodes
    is_message = nodes.is_kind(NodeKind.SEND, NodeKind.RECV)
    assert nodes.peer[is_message].tolist() == [1, 1, 0, 0]
    idle = workload.extensions["pytorch"]["idle"]  # type: ignore[call-overload,index]
    assert [one["stream"] for one in idle[0]] == [20]


def test_sizes_of_segments_are_multiplied_by_the_ranks() -> None:
    ranks = []
    for rank in range(2):
        export = Export(pid=rank + 1, device=rank)
        export.initialise(rank, 2)
        export.call("ncclReduceScatter", 6000, 9000, 4096)
        name = ALL_REDUCE.replace("AllReduce", "ReduceScatter")
        export.launch(name, 10_000, 20_000, stream=20, called=7000)
        ranks.append(export)
    assert collectives(read_exports(*ranks)[0], 0)[0][:2] == ("REDUCE_SCATTER", 8192)


def test_without_initialisation_names_of_files_and_shared_communicators_decide() -> None:
    given = [step_of(rank, 100_000) for rank in range(2)]
    for export in given:
        export.connection.execute("DELETE FROM NVTX_EVENTS WHERE start = 1000")
    files = {f"trace_rank{1 - place}.sqlite": one.content() for place, one in enumerate(given)}
    workload, notes = read_files(files)
    assert workload.num_ranks == 2
    assert "initialisations of communicators are not recorded" in notes[0]


def test_old_releases_without_communicators_are_one_group() -> None:
    given = [step_of(rank, 100_000) for rank in range(2)]
    for export in given:
        export.connection.execute("DELETE FROM NVTX_EVENTS WHERE start = 1000")
        export.connection.execute("DELETE FROM NVTX_PAYLOAD_SCHEMA_ENTRIES WHERE idx = 0")
    workload, notes = read_exports(*given)
    assert collectives(workload, 1)[0][:2] == ("ALL_REDUCE", 4 << 20)
    assert "calls without a communicator are assumed to be calls of all ranks" in notes


def test_calls_without_a_communicator_are_not_counted_as_one() -> None:
    given = [step_of(rank, 100_000) for rank in range(2)]
    for export in given:
        export.connection.execute("DELETE FROM NVTX_EVENTS WHERE start = 1000")
        export.call("ncclAllReduce", 240_000, 241_000, 4096, communicator=0)
        export.launch(ALL_REDUCE, 242_000, 250_000, stream=20, called=240_500)
    _, notes = read_exports(*given)
    assert "1 communicator: each has the ranks whose files use it as group" in notes
    assert "calls without a communicator are assumed to be calls of all ranks" in notes


def test_texts_of_atlahs_have_their_sizes() -> None:
    export = step_of(0, 100_000)
    export.connection.execute("DELETE FROM NVTX_EVENTS")
    texts = {
        "commHash 77 commId 0x1 rank 0 nranks 1 pid 4096": (1000, 2000),
        "ncclAllReduce(): commHash 77, stream 0x1, data_size 512, type_size 4, red_op 0, pid 4096":
            (39_000, 41_000),
    }  # fmt: skip
    for text, (start, end) in texts.items():
        export.mark(text, start, end)
    assert collectives(read_exports(export)[0], 0)[0][:2] == ("ALL_REDUCE", 512)


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS SELECT 1 AS start, 2 AS end",
        "CREATE VIEW NVTX_EVENTS AS SELECT 1 AS start",
    ],
)
def test_views_in_place_of_tables_are_refused(statement: str) -> None:
    export = step_of(0, 100_000)
    export.connection.execute(f"DROP TABLE {statement.split()[2]}")
    export.connection.execute(statement)
    with pytest.raises(InputError, match=r"job.0.sqlite: .* is a view, not a stored table; export"):
        read_exports(export, options=SAME)


def test_triggers_and_generated_columns_are_not_run() -> None:
    export = step_of(0, 100_000)
    export.connection.execute(
        "CREATE TRIGGER t AFTER INSERT ON StringIds BEGIN DELETE FROM StringIds; END"
    )
    export.connection.execute(
        "ALTER TABLE NVTX_EVENTS ADD COLUMN jsonText TEXT AS (hex(zeroblob(1000000)))"
    )
    assert collectives(read_exports(export, options=SAME)[0], 0)


@pytest.mark.parametrize(
    ("table", "column", "value"),
    [
        ("CUPTI_ACTIVITY_KIND_KERNEL", "start", "'x'"),
        ("CUPTI_ACTIVITY_KIND_KERNEL", "end", "-9223372036854775808"),
        ("CUPTI_ACTIVITY_KIND_KERNEL", "demangledName", "9223372036854775807"),
        ("CUPTI_ACTIVITY_KIND_KERNEL", "globalPid", "NULL"),
        ("CUPTI_ACTIVITY_KIND_RUNTIME", "globalTid", "1.5"),
        ("CUPTI_ACTIVITY_KIND_RUNTIME", "correlationId", "x'00'"),
        ("NVTX_EVENTS", "binaryData", "'zz'"),
        ("NVTX_EVENTS", "textId", "x'01'"),
        ("NVTX_PAYLOAD_SCHEMAS", "payloadSize", "-1"),
        ("NVTX_PAYLOAD_SCHEMA_ENTRIES", "offset", "9223372036854775807"),
        ("StringIds", "value", "x'ff'"),
    ],
)
def test_values_of_other_types_are_read_or_refused(table: str, column: str, value: str) -> None:
    export = step_of(0, 100_000)
    export.connection.execute(f"UPDATE {table} SET {column} = {value}")
    try:
        read_exports(export, options=SAME)
    except InputError as error:
        assert error.diagnostics[0].location.file  # noqa: PT017


def test_damaged_files_are_read_or_refused() -> None:
    generator = random.Random(3)
    sound = step_of(0, 100_000).content()
    outcomes = set()
    for _ in range(300):
        content = bytearray(sound)
        for _ in range(generator.randint(1, 30)):
            content[generator.randrange(len(content))] = generator.randrange(256)
        del content[generator.choice([len(content), generator.randrange(100, len(content))]) :]
        try:
            read_files({"x.sqlite": bytes(content)}, SAME)
            outcomes.add("read")
        except HubError:
            outcomes.add("refused")
    assert outcomes == {"read", "refused"}


def test_tables_that_are_missing_are_not_needed() -> None:
    export = step_of(0, 100_000)
    for table in ("NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_PAYLOAD_SCHEMAS"):
        export.connection.execute(f"DROP TABLE {table}")
    workload, _ = read_exports(export, options=SAME)
    # Only the name of the kernel is left.
    assert collectives(workload, 0) == [("ALL_REDUCE", -1, 100_000)]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"SQLite format 3\x00" + b"\x00" * 200, "the SQLite file is damaged"),
        (b"hello", "this is no SQLite file; export the report"),
    ],
)
def test_other_files_are_refused(content: bytes, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_files({"x.sqlite": content})


def test_an_export_without_kernels_is_refused() -> None:
    with pytest.raises(InputError, match="no kernels of a device; profile with nsys profile"):
        read_exports(Export())


def long_step() -> Export:
    """300 kernels, and an all-reduce on another stream."""
    export = Export()
    export.initialise(0, 1)
    for number in range(300):
        start = 10_000 + number * 1000
        export.launch("gemm", start, start + 900, stream=7, called=start - 5000)
    export.call("ncclAllReduce", 90_000, 95_000, 4096)
    export.launch(ALL_REDUCE, 100_000, 150_000, stream=20, called=92_000)
    return export


def test_long_profiles_are_merged_around_calls_of_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    full, _ = read_exports(long_step())
    monkeypatch.setattr(activities, "_MERGE_ABOVE", 100)
    merged, notes = read_exports(long_step())
    assert any("297 kernels and copies are merged" in note for note in notes)
    assert collectives(merged, 0) == collectives(full, 0)
    times, exact = collect_findings(merged), collect_findings(full)
    assert (times.job_ns, times.ranks[0].span_ns) == (exact.job_ns, exact.ranks[0].span_ns)
    # 300 kernels of 900 ns with gaps of 100 ns, which count as computation.
    assert exact.ranks[0].times.computation_ns == 270_000
    assert times.ranks[0].times.computation_ns == pytest.approx(300_000, abs=300)


def test_profile_reads_exports_on_disk(collhub, tmp_path: Path) -> None:
    paths: Sequence[Path] = []
    for part in exports()[0].parts:
        paths = [*paths, tmp_path / part.name]
        paths[-1].write_bytes(part.load())
    report = collhub("profile", *paths, "--json").report()
    assert report["job_ns"] == 221_000
    assert report["collectives"][0]["bytes"] == 4 << 20
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "report.0.sqlite",
        "report.1.sqlite",
    ]
    assert sqlite3.connect(paths[0]).execute("SELECT COUNT(*) FROM NVTX_EVENTS").fetchone() == (2,)


def write_parquet(content: bytes, folder: Path) -> None:
    """Write the tables of a SQLite export as `nsys export --type parquetdir` does."""
    folder.mkdir(parents=True, exist_ok=True)
    for part in parquet_parts(content, folder.name):
        (folder / Path(part.name).name).write_bytes(part.load())


def read_parquet(folder: Path) -> tuple[Workload, list[str]]:
    notes: list[Diagnostic] = []
    parts = tuple(
        SourcePart(str(file), file.read_bytes, None, None, lambda file=file: file.open("rb"))
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    )
    workload = read_folder(Source(str(folder), parts, notes.append), NsysOptions())
    return workload, [note.message for note in notes]


needs_pyarrow = [
    pytest.mark.oracle,
    pytest.mark.skipif(
        importlib.util.find_spec("pyarrow") is None,
        reason="pyarrow is not installed: python -m pip install 'collhub-jobs[parquet]'",
    ),
]


class TestParquet:
    """Folders of Parquet files give the workloads of the SQLite files with the same tables."""

    pytestmark = needs_pyarrow

    def test_folders_of_several_ranks_are_joined_like_sqlite_files(self, tmp_path: Path) -> None:
        for part in exports()[0].parts:
            write_parquet(part.load(), tmp_path / part.name.removesuffix(".sqlite"))
        (tmp_path / "report.0" / "notes.txt").write_text("other files are ignored")
        workload, notes = read_parquet(tmp_path)
        expected = read(exports()[0], NsysOptions())
        assert workload.nodes.differences(expected.nodes) == []
        assert workload.groups == expected.groups
        assert any("clocks aligned" in note for note in notes)

    def test_long_profiles_are_merged_alike(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(activities, "_MERGE_ABOVE", 100)
        write_parquet(long_step().content(), tmp_path)
        workload, _ = read_parquet(tmp_path)
        expected, _ = read_exports(long_step())
        assert workload.nodes.differences(expected.nodes) == []

    def test_damaged_payloads_and_files_are_reported(self, tmp_path: Path) -> None:
        write_parquet(exports()[0].parts[0].load(), tmp_path)
        table = tmp_path / "CUPTI_ACTIVITY_KIND_KERNEL.parquet"
        content = table.read_bytes()
        table.write_bytes(content[: len(content) // 2])
        with pytest.raises(InputError, match=r"Parquet file is damaged.*export the report again"):
            read_parquet(tmp_path)
        (tmp_path / "StringIds.parquet").unlink()
        with pytest.raises(InputError, match=r"the folder has no StringIds\.parquet"):
            read_parquet(tmp_path)

    @pytest.mark.once
    @pytest.mark.parametrize("seed", range(2))
    def test_mutated_files_are_read_or_refused(self, tmp_path: Path, seed: int) -> None:
        generator = random.Random(seed)
        write_parquet(exports()[0].parts[0].load(), tmp_path)
        files = {file: file.read_bytes() for file in sorted(tmp_path.iterdir())}
        refused = 0
        for _ in range(150):
            file = generator.choice(list(files))
            content = bytearray(files[file])
            for _ in range(generator.randint(1, 8)):
                content[generator.randrange(len(content))] = generator.randrange(256)
            file.write_bytes(content)
            try:
                read_parquet(tmp_path)
            except HubError:
                refused += 1
            file.write_bytes(files[file])
        assert refused

    def test_the_folder_is_recognised_and_profiled(self, collhub, tmp_path: Path) -> None:
        export = step_of(0, 100_000)
        write_parquet(export.content(), tmp_path / "report_pqtdir")
        folder = tmp_path / "report_pqtdir"
        out = collhub("inspect", folder, "-O", "ranks_missing=assume-same").out
        assert "(nsys-parquet)" in out
        report = collhub("profile", folder, "--ranks-missing", "assume-same", "--json").report()
        assert report["collectives"][0]["bytes"] == 4 << 20


def test_parquet_without_the_library_is_refused_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for name in ("StringIds", activities.KERNELS):
        (tmp_path / f"{name}.parquet").write_bytes(b"PAR1")
    with pytest.raises(UsageError, match=r"collhub-jobs\[parquet\]"):
        read_parquet(tmp_path)


def test_merged_collectives_of_a_kernel_have_unknown_bytes_if_one_has() -> None:
    calls = [CallRange(0, 1, "AllReduce", NcclPayload("0x1", bytes=size)) for size in (-1, 100, 50)]
    assert [call.bytes for call in _merge_calls(calls[1:])] == [150]
    assert [call.bytes for call in _merge_calls(calls)] == [-1]
    assert [call.bytes for call in _merge_calls(calls[::-1])] == [-1]


@pytest.mark.needs_plugins
@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("job.0.nsys-rep", b"\x00\x01\x02", "which only nsys can read"),
        ("sum.csv", b"Time (%),Total Time (ns),Instances\n1,2,3\n", "a table of nsys stats"),
    ],
)
def test_files_before_their_export_are_refused_with_the_command(
    collhub, tmp_path: Path, name: str, content: bytes, reason: str
) -> None:
    (tmp_path / name).write_bytes(content)
    run = collhub("profile", tmp_path / name)
    assert run.code == 1
    assert reason in run.err
    assert "nsys export --type sqlite" in run.err


@pytest.mark.needs_plugins
@pytest.mark.parametrize("command", ["inspect", "simulate", "diagnose"])
def test_commands_name_the_export_of_a_summary(collhub, tmp_path: Path, command: str) -> None:
    """Only `profile` recognised the tables of `nsys stats`."""
    table = tmp_path / "sum.csv"
    table.write_text("Time (%),Total Time (ns),Instances\n1,2,3\n")
    run = collhub(command, table)
    assert run.code == 1
    assert "this is a table of nsys stats, which has no single operations; export" in run.err
    assert "[not-exported]" in run.err


@pytest.mark.needs_plugins
@pytest.mark.parametrize("command", ["inspect", "verify", "simulate", "diagnose"])
@pytest.mark.parametrize("name", ["job.0.nsys-rep", "job.QDREP"])
def test_commands_name_the_export_of_a_report(
    collhub, tmp_path: Path, command: str, name: str
) -> None:
    (tmp_path / name).write_bytes(b"\x00\x01\x02")
    run = collhub(command, tmp_path / name)
    assert run.code == 1
    assert f"{name}: this is a report of Nsight Systems, which only nsys can read" in run.err
    assert "export the report: nsys export --type sqlite REPORT.nsys-rep" in run.err
