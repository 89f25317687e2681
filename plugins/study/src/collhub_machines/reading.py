"""Helpers of readers of measurements: options, numbers, names, findings and refusals with line.

Small correct inputs of the readers, for the conformance kit, are at the end.
"""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from hub_core.model import (
    Diagnostic,
    InputError,
    Location,
    Severity,
    format_count,
    standard_kind,
)
from hub_core.plugin_api import (
    Library,
    Measurement,
    MeasurementRequest,
    OptionType,
    Source,
    choice,
    option,
)

# Collectives of which a rank exchanges all parts but its own.
_SHARED = frozenset({"all-gather", "reduce-scatter", "all-to-all"})
_NO_TIMES = {"out": "no time is measured out of place", "in": "no time is measured in place"}


@dataclass(frozen=True, slots=True)
class PlaceOptions:
    """Options of tests that measure out of place and in place."""

    place: str = choice(
        ("both", "out", "in"), "buffers whose times are read: out of place, in place"
    )

    def accepts(self, point: Measurement) -> bool:
        """Whether a point has the chosen place (`in` or `out`); `both` accepts every point."""
        return self.place == "both" or point.place == self.place

    def select(self, points: Iterable[Measurement]) -> Iterator[Measurement]:
        """Yield the points that `accepts` allows, in order."""
        return (point for point in points if self.accepts(point))

    def refuse(self, file: str, line: int) -> InputError:
        """Return the error `no-results` for a file without times of the chosen place.

        It is at `line` of `file`. If both places are chosen, it is the error of
        `refuse_without_results`, that the file has no times. The caller raises it.
        """
        if self.place == "both":
            return refuse_without_results(file, line=line)
        message = f"no result can be used: {_NO_TIMES[self.place]}"
        return refuse(file, line, message, "use -O place=both", "no-results")


@dataclass(frozen=True, slots=True)
class InspectorOptions:
    """Options of the reader of Inspector files."""

    warmup_calls: int = option(
        OptionType.INT, 0, "calls at the start of each communicator that are not used", minimum=0
    )


MAX_WHOLE = 2**62

# Rank before each line: of mpirun (Open MPI), of mpiexec (Hydra), and of srun.
_RANK_PREFIX = re.compile(r"^(?:\[[\w.@-]+,\d+\]<std\w+>:|\[\d{1,6}\][ \t]|\d{1,6}: ?(?=[# \t]))")
_NUMBER = re.compile(r"[+-]?[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]{1,3})?\Z")
_WHOLE_NUMBER = re.compile(r"[0-9]{1,19}\Z")


def text_of(source: Source) -> str:
    """Return the content of a source as text, decoded from UTF-8, without a byte order mark.

    Line ends are unchanged. Raises `InputError` (`measurements`) at the line of the first byte that
    is not UTF-8, and at line 1 for a file that is empty or has only white space.
    """
    content = source.content()
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        message = f"byte {error.start} is not UTF-8"
        cure = "give the text or JSON that a test wrote"
        raise refuse(source.name, line, message, cure) from None
    if not text.strip():
        raise refuse(source.name, 1, "the file is empty", "give the output of a run")
    return text


def without_rank(line: str) -> str:
    """Return a line without the rank that a launcher writes before it, as in `[1,0]<stdout>:`."""
    return _RANK_PREFIX.sub("", line)


def finite_number(text: str) -> float | None:
    """Return the value of a decimal number such as `-1.5e3`; None for any other text.

    The text has, in this order: an optional sign, at least one digit, optionally a point with
    any number of digits, and optionally `e` or `E` with an optional sign and 1 to 3 digits. So
    `5.` is a number, but `.5`, `1e1000`, `1e0003`, `nan` and `inf` are not. None is also returned
    for more than 40 characters, for any blank, and for a number too large for a float.
    """
    if len(text) > 40 or not _NUMBER.match(text):
        return None
    value = float(text)
    return value if math.isfinite(value) else None


def whole_number(text: str) -> int | None:
    """Return the value of a text of 1 to 19 ASCII digits, at most 2^62; None for any other text.

    Leading zeros are allowed; a sign or a blank is not.
    """
    if not _WHOLE_NUMBER.match(text) or int(text) > MAX_WHOLE:
        return None
    return int(text)


def bus_factor(collective: str, ranks: int) -> float:
    """Return bus bandwidth / algorithm bandwidth of n = `ranks` ranks, as nccl-tests define it.

    It is 2 (n - 1) / n for all-reduce, (n - 1) / n for all-gather, reduce-scatter and all-to-all,
    otherwise 1.
    """
    share = (ranks - 1) / ranks
    if collective == "all-reduce":
        return 2 * share
    return share if collective in _SHARED else 1.0


def contradicts_bandwidth(bandwidth: float, size: int, time_us: float) -> bool:
    """Return whether a bandwidth in GB/s differs from size / time by a factor of 4 or more.

    `size`: bytes, above 0. `time_us`: above 0. The factor admits bus bandwidths, and old versions
    that count the bytes of an all-gather without the share of a rank. A larger one is due to a time
    in another unit, or with missing digits.
    """
    return not 0.25 < bandwidth * time_us * 1e3 / size < 4


def are_ranks_missing(ranks: set[int], group_size: int, all_ranks: set[int]) -> bool:
    """Return whether a list of ranks lacks some ranks of its group.

    `ranks`: numbers in the group, at least one. `group_size`: listed members of the group, also
    those without a number. `all_ranks`: numbers in all groups. Ranks of a group
    need not be consecutive: with NCCL_TESTS_SPLIT=MOD2 they are 0, 2, 4. So a rank that is not
    below the size of the group is a sign of missing ranks only if the ranks of all groups together
    are not 0 to their number - 1 either.
    """
    return max(ranks) >= group_size and max(all_ranks) >= len(all_ranks)


def note(
    file: str, line: int | None, message: str, cure: str = "", code: str = "skipped"
) -> Diagnostic:
    """Return a warning on a part of the input that is skipped; the caller reports it."""
    return Diagnostic(code, message, Severity.WARNING, Location(file, line), cure)


def refuse(
    file: str, line: int | None, message: str, cure: str, code: str = "measurements"
) -> InputError:
    """Return the `InputError` for a file that cannot be used; the caller raises it."""
    return InputError(message, location=Location(file, line), cure=cure, code=code)


def combine_notes(notes: Sequence[Diagnostic]) -> list[Diagnostic]:
    """Return the findings, with equal ones combined into one.

    Findings are equal if code, file and cure are equal, and the messages differ only in digits: a
    sequence of digits equals any other. Severity and line are not compared. The first finding of
    each group is returned unchanged except for the message, in the order of the first ones. With
    N >= 1 further findings the message ends in " (and N more lines)", or " (and 1 more line)".
    N counts findings, also several on one line.
    """
    groups: dict[tuple[object, ...], list[Diagnostic]] = {}
    for note in notes:
        text = re.sub(r"\d+", "0", note.message)
        groups.setdefault((note.code, text, note.cure, note.location.file), []).append(note)
    combined = []
    for group in groups.values():
        first, num_others = group[0], len(group) - 1
        if num_others:
            lines = format_count(num_others, "more line")
            first = replace(first, message=f"{first.message} (and {lines})")
        combined.append(first)
    return combined


def refuse_without_results(
    file: str, skipped: Sequence[Diagnostic] = (), line: int | None = 1
) -> InputError:
    """Return the `InputError` for a file without any usable result; the caller raises it.

    Its diagnostics are the warnings `skipped`, then one error with the code `no-results`. Warnings
    that differ only in numbers of their messages are combined to the first one (`combine_notes`).

    Without `skipped`, the error is at `line` (None: the entire file) and says that the file has no
    times. Otherwise it is on the entire file, and says that the other findings give the reasons.
    """
    reason = "the file has no times"
    if skipped:
        reason = "the other findings of this file give the reasons"
    message = f"no result can be used: {reason}"
    cure = "repeat the run and keep its entire output"
    location = Location(file, None if skipped else line)
    error = Diagnostic("no-results", message, location=location, cure=cure)
    return InputError([*combine_notes(skipped), error])


def collective_name(text: str) -> str | None:
    """Return the hub's name of a standard collective in any usual spelling; None for other texts.

    `AllReduce` and `all_reduce_perf` give `all-reduce`. One suffix `_perf` is removed. Upper case
    and all characters but letters and digits are ignored (`standard_kind`). Uneven collectives such
    as `all-to-all-v` give None.
    """
    kind = standard_kind(text.removesuffix("_perf"))
    return None if kind is None else str(kind)


def library_of(text: str) -> Library:
    """Return the library that a text such as `NCCL 2.27.7, NVLS off` describes.

    The result has name, version and variant, here `NCCL`, `2.27.7` and `NVLS off`.

    Remarks in parentheses are dropped first, then all characters after the first 120. The variant
    is the text after the first comma. The name is the first word of the text before the comma, and
    the version is the remaining text there. A missing name becomes "unknown", other missing parts
    "".

    If this version does not begin with a digit, it is the first part of the variant and the version
    is "". `RCCL fast, x` gives ("RCCL", "", "fast, x"). `NCCL 2.27.7 (NVLS from 2 MiB)` gives
    ("NCCL", "2.27.7", "").
    """
    plain = re.sub(r"\s*\([^)]*\)", "", text)[:120].strip()
    head, _, variant = plain.partition(",")
    name, _, version = head.strip().partition(" ")
    if version and not version[0].isdigit():
        variant = ", ".join(part for part in (version, variant.strip()) if part)
        version = ""
    return Library(name or "unknown", version.strip(), variant.strip())


_PERF_HEADER = """\
# nccl-tests version 2.19.6 nccl-headers=23007 nccl-library=22902
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 2 minBytes 1024 maxBytes 2048 step: 2(factor) iters: 20 agg iters: 1 graph: 0
#  Rank  0 Group  0 Pid   1201 on  node device  0 [0000:1b:00] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid   1201 on  node device  1 [0000:43:00] NVIDIA H100 80GB HBM3
#                                out-of-place                       in-place
#   size count type redop root time algbw busbw #wrong time algbw busbw #wrong
"""
_PERF_ROWS = """\
    1024   256 float   sum   -1 7.11  0.14  0.14      0 7.02  0.15  0.15      0
    2048   512 float   sum   -1 7.24  0.28  0.28      0 7.15  0.29  0.29      0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 0.215
"""


def _requests(name: str, content: str | bytes) -> Sequence[MeasurementRequest]:
    """Return a list of one request to read `content` as a file `name`, to test a reader.

    A text is encoded in UTF-8. The request has the facts that a file may lack, for an
    all-reduce on 8 ranks of one node; facts in the file take precedence.
    """
    data = content if isinstance(content, bytes) else content.encode()
    return [MeasurementRequest(Source.of_bytes(name, data), "all-reduce", 8, 1)]


def nccl_tests() -> Sequence[MeasurementRequest]:
    """Sample of nccl-tests: the requests read from a table of two sizes, each out of place and in
    place.
    """
    return _requests("run.txt", _PERF_HEADER + _PERF_ROWS)


def nccl_tests_json() -> Sequence[MeasurementRequest]:
    """Return a list of one request to read a small JSON file of nccl-tests, to test the reader.

    The file `run.json` has one result: an all-reduce of 1024 bytes on two GPUs of one host, in 7.11
    us out of place; `in_place` is null. The request also states an all-reduce on 8 ranks of one
    node, which readers use only for facts that the file lacks.
    """
    times = {"time": 7.11, "alg_bw": 0.14, "bus_bw": 0.14, "nwrong": 0}
    document = {
        "version": 3,
        "args": ["./all_reduce_perf", "-g", "2"],
        "nccl_version": 22902,
        "config": {
            "devices": [
                {"rank": rank, "group": 0, "hostname": "node", "device_info": "NVIDIA H100"}
                for rank in range(2)
            ]
        },
        "results": [
            {"size": 1024, "type": "float", "out_of_place": times, "in_place": None},
        ],
    }
    return _requests("run.json", json.dumps(document, indent=1))


def rccl_tests_json() -> Sequence[MeasurementRequest]:
    """Sample of rccl-tests: the requests read from a JSON list with the times of one all-reduce of
    1024 bytes on 4 GPUs, out of place and in place.
    """
    times = '"size":1024, "type":"float", "redop":"sum", "inPlace":'
    return _requests(
        "rccl.json",
        f'[\n{{"numCycle":0, "name":"AllReduce", "gpus":4, {times}0, "time":19.184150, '
        '"algBw":0.053377, "busBw":0.080066, "wrong":"0"},\n'
        f'{{"numCycle":0, "name":"AllReduce", "gpus":4, {times}1, "time":19.897650, '
        '"algBw":0.051463, "busBw":0.077195, "wrong":"0"}\n]\n',
    )


def rccl_tests_csv() -> Sequence[MeasurementRequest]:
    """Sample of rccl-tests: the requests read from a CSV file with the times of one all-reduce of
    1024 bytes on 4 GPUs, out of place and in place.
    """
    return _requests(
        "rccl.csv",
        "numCycle,collective,gpus,size,type,redop,inplace,time,algbw,busbw,#wrong\n"
        '0,"AllReduce",4,1024,"float","sum",0,19.184150,0.053377,0.080066,"0"\n'
        '0,"AllReduce",4,1024,"float","sum",1,19.897650,0.051463,0.077195,"0"\n',
    )


def osu() -> Sequence[MeasurementRequest]:
    """Sample of OSU benchmarks: the requests read from a table of average all-reduce latencies of
    two sizes.
    """
    return _requests(
        "osu.txt",
        "# OSU MPI-CUDA Allreduce Latency Test v7.4\n# Size       Avg Latency(us)\n"
        "1024                  12.31\n2048                  13.02\n",
    )


def nccom_test() -> Sequence[MeasurementRequest]:
    """Sample of nccom-test: the requests read from a table of two sizes of an all-gather, with its
    command line.
    """
    return _requests(
        "nccom.txt",
        "nccom-test -r 8 -b 4096 -e 8192 -f 2 -d fp32 allg\n"
        "    size(B)    count(elems)    type    time:avg(us)    algbw(GB/s)    busbw(GB/s)\n"
        "       4096            1024    fp32            7.50           0.51           0.45\n"
        "       8192            2048    fp32            8.10           0.94           0.82\n"
        "Avg bus bandwidth:      0.6350GB/s\n",
    )


def deepspeed_times() -> Sequence[MeasurementRequest]:
    """Return a list of one request to read a small log of DeepSpeed, to test the reader.

    The file `summary.log` has an all-gather of 1 MiB per rank, called 4 times: a table with
    its average times, and a table with the minima over the ranks. The request also gives an
    all-reduce on 8 ranks of one node, for facts that the file lacks.
    """
    columns = "".join(
        f"{name: <20}" for name in ("Comm. Op", "Message Size", "Count", "Total Latency(ms)",
                                    "Avg Latency(ms)", "tput_avg (Gbps)", "busbw_avg (Gbps)")
    )  # fmt: skip
    minima = "".join(
        f"{name: <20}" for name in ("Comm. Op", "Message Size", "Count", "Total comm lat(ms)",
                                    "Total straggler(ms)", "Avg comm lat(ms)", "Avg straggler(ms)")
    )  # fmt: skip
    row = f"{' ': <20}{'1.0 MB': <20}{4: <20}"
    return _requests(
        "summary.log",
        f"{columns}\nall_gather_into_tensor\n{row}"
        + "".join(f"{value: <20.2f}" for value in (2.4, 0.6, 111.85, 97.87))
        + f"\n_______________________________\nBreakdown with straggler effect\n"
        f"-------------------------------\n{minima}\nall_gather_into_tensor\n{row}"
        + "".join(f"{value: <20.2f}" for value in (2.0, 0.4, 0.5, 0.1))
        + "\n",
    )


def tuner_sweep() -> Sequence[MeasurementRequest]:
    """Sample of a tuner sweep: the requests read from a CSV file with two forced choices (ring
    Simple, tree LL128) of one all-reduce of 1 MiB.
    """
    return _requests(
        "sweep.csv",
        "collective,size_bytes,algorithm,protocol,channels,nodes,ranks,pipeOps,regBuff,"
        "bandwidth_gbps,latency_us\n"
        "allreduce,1048576,ring,simple,8,1,8,-1,-1,40.2,26.1\n"
        "allreduce,1048576,tree,ll128,8,1,8,-1,-1,44.7,23.5\n",
    )


def mscclpp_lines() -> Sequence[MeasurementRequest]:
    """Return one request to read a small `perf.jsonl` file of MSCCL++ measurements.

    The file has two JSON lines of the same all-reduce kernel (number 6) on 8 ranks of one
    node: 24576 bytes in 6.2 us and 49152 bytes in 6.6 us. The request states all-reduce,
    8 ranks and 1 node.
    """
    lines = [
        {
            "name": "allreduce", "kernel": 6, "ranks": 8, "ranksPerNode": 8,
            "size": size, "time": time_us, "algBw": 4.0, "busBw": 7.0,
        }
        for size, time_us in ((24576, 6.2), (49152, 6.6))
    ]  # fmt: skip
    return _requests("perf.jsonl", "".join(json.dumps(line) + "\n" for line in lines))


def collhub_program() -> Sequence[MeasurementRequest]:
    """Return one request to read the output of a generated program, to test the reader.

    The file `program.jsonl` has one JSON line: an all-reduce of 1 MiB on 8 ranks, out of
    place, in 41 us (39 us by NCCL itself).
    """
    line = {
        "ok": True, "collective": "all-reduce", "num_ranks": 8, "first_rank": 0,
        "in_place": False, "collective_bytes": 1 << 20, "time_s": 4.1e-05,
        "native_time_s": 3.9e-05, "is_graph": False, "nccl_version": 22902,
    }  # fmt: skip
    return _requests("program.jsonl", json.dumps(line) + "\n")


def mscclpp_tuned() -> Sequence[MeasurementRequest]:
    """Return a list of one request to read a tuned configuration of MSCCL++, to test the
    reader.

    The file `tuned.json` has one entry: an all-reduce of 8192 bytes on 8 ranks of H100 in
    6.1 us.
    """
    entry = {"message_size": 8192, "algorithm": "packets", "nblocks": 28, "time_us": 6.1}
    profile = {"sku": "H100", "scale": 8, "collectives": {"allreduce": [entry]}}
    return _requests("tuned.json", json.dumps({"version": 1, "profiles": [profile]}))


def inspector() -> Sequence[MeasurementRequest]:
    """Return a list of one request to read records of the NCCL Inspector, to test the reader.

    The file `rank.jsonl` has one record each of ranks 0 and 1, about the same all-reduce of 1 MiB
    among 8 ranks on one node. It takes 30 us on rank 0 and 31 us on rank 1. The request also states
    an all-reduce on 8 ranks of one node, which readers use only for facts that the file lacks.
    """
    lines = [
        {
            "header": {"id": "0x1", "rank": rank, "n_ranks": 8, "nnodes": 1},
            "coll_perf": {
                "coll": "AllReduce",
                "coll_sn": 3,
                "coll_msg_size_bytes": 1048576,
                "coll_exec_time_us": 30 + rank,
                "coll_timing_source": "kernel_gpu",
            },
        }
        for rank in range(2)
    ]
    return _requests("rank.jsonl", "".join(json.dumps(line) + "\n" for line in lines))


def measured_json() -> Sequence[MeasurementRequest]:
    """Return a list of one request to read a file of the hub's measured points, for tests.

    The file has one point, an all-gather of 8192 bytes on 8 ranks of one node in 15.9 us by
    NCCL 2.29.2 on H100, and a description of its source. The request also states an
    all-reduce on 8 ranks of one node, which readers use only for facts that the file lacks.
    """
    point = {
        "source": "example", "machine": "H100", "collective": "all-gather", "ranks": 8,
        "nodes": 1, "size_bytes": 8192, "time_us": 15.9, "library": "NCCL 2.29.2",
    }  # fmt: skip
    sources = {"example": {"repo": "example/results", "licence": "MIT"}}
    document = {"schema": "measured-collectives/1", "sources": sources, "points": [point]}
    return _requests("points.json", json.dumps(document))


def aiconfigurator() -> Sequence[MeasurementRequest]:
    """Return a list of one request to read a Parquet table of aiconfigurator, to test the reader.

    The file `nccl_perf.parquet` has one row: an all-reduce with `message_size` 512 of
    half-precision numbers on 8 GPUs, with a latency of 0.0156 ms. The request also states an
    all-reduce on 8 ranks of one node, which readers use only for facts that the file lacks. The
    list is empty if pyarrow is not installed.
    """
    try:
        # Imported here: pyarrow is an extra, and only this format needs it.
        import pyarrow  # type: ignore[import-not-found,import-untyped,unused-ignore]
        import pyarrow.parquet as parquet  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError:
        return []
    columns = {
        "op_name": ["all_reduce"], "nccl_dtype": ["half"], "num_gpus": [8],
        "message_size": [512], "latency": [0.0156], "version": ["2.29.2"],
        "device": ["NVIDIA H100 80GB HBM3"],
    }  # fmt: skip
    content = io.BytesIO()
    parquet.write_table(pyarrow.table(columns), content)
    return _requests("nccl_perf.parquet", content.getvalue())
