"""Read JSON results: nccl-tests, MSCCL++, NCCL's Inspector, and the hub's own points."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator, Mapping
from typing import Any

from collhub_nccl_records import SkippedLine, read_inspector_lines

from collhub_machines.perf_output import forced_choices, version_text
from collhub_machines.reading import (
    InspectorOptions,
    PlaceOptions,
    are_ranks_missing,
    collective_name,
    finite_number,
    library_of,
    note,
    refuse,
    refuse_without_results,
    text_of,
)
from hub_core import is_finite_number, parse_json_object
from hub_core.model import Diagnostic, InputError
from hub_core.plugin_api import (
    Library,
    Measurement,
    MeasurementRequest,
    MeasurementSet,
    NoOptions,
    Source,
)

PROGRAM_LIBRARY = "collhub program"
"""Library of times of an emitted program."""
_SHARE_OF_RANK = frozenset({"all-gather", "reduce-scatter"})
_DAY = re.compile(r"\d{4}-\d\d-\d\d")
# A text without its end reaches to the end of the document, so that the search is linear.
_JSON_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*(?:"|\Z)|[\[\]{}]', re.DOTALL)
_CLOSERS = {"{": "}", "[": "]"}
_MAX_GPUS_OF_A_PROCESS = 1024
_LICENCE_KEYS = ("repo", "url", "commit", "licence")


def parse_json_file(source: Source) -> dict[str, Any]:
    """Return the JSON object of a source. Raises `InputError` with the line of a defect."""
    return parse_json_object(source.content().removeprefix(codecs.BOM_UTF8), source.name)


def _whole(value: object) -> int:
    """Return an integer unchanged; -1 for any other value, also for booleans and floats."""
    return value if isinstance(value, int) and not isinstance(value, bool) else -1


def _number(value: object) -> float:
    """Return a finite number as a float; -1 for anything else.

    Booleans, texts, infinities and too large integers give -1.
    """
    return float(value) if is_finite_number(value) else -1.0


def _text(value: object) -> str:
    return value[:200] if isinstance(value, str) else ""


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


class _Collector:
    """Points and findings of one file; a point that cannot be used becomes a finding."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.points: list[Measurement] = []
        self.skipped: list[Diagnostic] = []

    def add(self, point: Measurement, where: str, line: int | None = None) -> None:
        """Store a point, or, if it has a defect (`Measurement.defect`), record a warning
        instead.

        The message of the warning (`skipped`) is `where: reason`. `where`: position in the
        file, such as `results[2]`. `line`: line of the warning, None if unknown.
        """
        reason = point.defect()
        if reason is None:
            self.points.append(point)
        else:
            self.skip(f"{where}: {reason}", line)

    def skip(self, message: str, line: int | None = None, cure: str = "") -> None:
        """Append a warning (`skipped`) on a part of the input that is not used to `skipped`."""
        self.skipped.append(note(self.file, line, message, cure))

    def result(self, sources: dict[str, dict[str, str]] | None = None) -> MeasurementSet:
        """Return the stored points with the warnings about skipped ones, both in the order of
        their addition.

        `sources` (repository, commit and licence by name of a source) are added; None means
        none. Raises `InputError` (`no-results`) with the warnings if there are no points.
        """
        if not self.points:
            raise refuse_without_results(self.file, self.skipped)
        return MeasurementSet(self.points, self.skipped, sources or {})


def read_nccl_tests_json(facts: MeasurementRequest, options: PlaceOptions) -> MeasurementSet:
    """Read the JSON file that `-J` of nccl-tests writes, as points in bytes and us.

    Collective, ranks and nodes (default 1) are those of the file, otherwise of the request. Only
    the devices in the group of the first one count. The version of the library is unknown if
    `nccl_version` is no number from 1000 to 999999. Each result has up to two entries,
    `out_of_place` and then `in_place`. The first rule that applies to an entry:

    1. It is missing, null or empty: it is ignored.
    2. It has CPU times (`cpu_time`): `InputError`.
    3. It has wrong elements (`nwrong` above 0): a warning in `skipped`.
    4. `options` does not select its place: it is ignored.
    5. It is an invalid point: a warning in `skipped`. Otherwise it is a point of the result.

    Truncated files and errors that the test reports also give warnings. Raises `InputError` for
    invalid JSON, an unknown collective `..._perf`, a collective or number of ranks that neither
    file nor request has, an incomplete group (`_check_devices`), and if no point remains.
    """
    text, file = text_of(facts.source), facts.source.name
    collector = _Collector(file)
    complete = close_json(text)
    if complete != text:
        line = text.count("\n") + 1
        cure = "the run was aborted: repeat it if larger sizes are missing"
        collector.skip("the file ends before its JSON does", line, cure)
    document = parse_json_object(complete.encode(), file)
    devices = _devices(_object(document.get("config")))
    all_ranks = {_whole(device.get("rank")) for device in devices}
    devices = [device for device in devices if device.get("group") == devices[0].get("group")]
    _check_devices(devices, all_ranks, file)
    program = _text((_list(document.get("args")) or [""])[0]).rpartition("/")[2]
    collective = collective_name(program.rpartition("_perf")[0] or program)
    if collective is None and "_perf" in program:
        message = f"{program[:40]} is not a collective with a model"
        raise refuse(file, 1, message, "give results of a collective, such as all_gather_perf")
    collective = collective or facts.collective
    if collective is None:
        message = f"args[0] {program[:40]!r} names no collective"
        raise refuse(file, 1, message, "give --collective, such as all-gather", "missing-facts")
    ranks = len(devices) or facts.ranks or 0
    if not ranks:
        raise refuse(file, 1, "config.devices lists no ranks", "give --ranks N and --nodes M")
    nodes = len({_text(device.get("hostname")) for device in devices}) or facts.nodes or 1
    machine = _text(devices[0].get("device_info")) if devices else ""
    code = _whole(document.get("nccl_version"))
    version = version_text(str(code)) if 1000 <= code < 10**6 else ""
    library = Library("NCCL", version, _json_variant(document))
    day = _DAY.match(_text(document.get("start_time")))
    for index, entry in enumerate(_list(document.get("results"))):
        result = _object(entry)
        for key, place in (("out_of_place", "out"), ("in_place", "in")):
            half = _object(result.get(key))
            where = f"results[{index}].{key}"
            if not half:
                continue
            if "cpu_time" in half:
                message = f"{where} has CPU times (cpu_time), not times of the GPU"
                raise refuse(file, 1, message, "run the test without -C 1")
            if _is_wrong(half.get("nwrong")):
                collector.skip(f"{where}: the result is wrong (nwrong {half['nwrong']})")
                continue
            point = Measurement(
                collective, ranks, nodes, _whole(result.get("size")), _number(half.get("time")),
                library, machine, place, _dtype(_text(result.get("type")), collective),
                day[0] if day else "", "nccl-tests", file,
            )  # fmt: skip
            if options.accepts(point):
                collector.add(point, where)
    if not collector.points and not collector.skipped:
        raise options.refuse(file, 1)
    if _object(document.get("out_of_bounds")).get("okay") == "false":
        message = "the test reports wrong results (out_of_bounds.okay is false)"
        cure = "repair the installation before its times are used"
        collector.skipped.append(note(file, None, message, cure, "wrong-results"))
    # Without an error the test writes an empty text.
    if errors := [error for error in _list(document.get("errors")) if error != ""]:
        cure = "repeat the run if sizes are missing"
        collector.skip(f"the test reports an error: {str(errors[0])[:80]!r}", cure=cure)
    return collector.result()


def _devices(config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the entries of the devices of a configuration, one for each rank of the test.

    nccl-tests lists only the first GPU of each process. If the listed ranks are 0, n, 2n and so on,
    with n = `nthreads` x `ngpus` GPUs per process, each entry is repeated for the n ranks of its
    process. Otherwise the entries are those of the file.
    """
    devices = [_object(device) for device in _list(config.get("devices"))]
    per_process = max(_whole(config.get("nthreads")), 0) * max(_whole(config.get("ngpus")), 0)
    first = [_whole(device.get("rank")) for device in devices]
    is_short = first == [per_process * process for process in range(len(devices))]
    if not is_short or not 1 < per_process <= _MAX_GPUS_OF_A_PROCESS:
        return devices
    return [
        {**device, "rank": rank + gpu}
        for rank, device in zip(first, devices, strict=True)
        for gpu in range(per_process)
    ]


def _check_devices(devices: list[dict[str, Any]], all_ranks: set[int], file: str) -> None:
    """Raise `InputError` (`missing-facts`) if `devices` are not the devices of a complete group.

    `devices`: the entries of one group in the file. `all_ranks`: the ranks of all groups. Entries
    whose `rank` is no integer of at least 0 are not checked by rules 1 and 2. The first rule that
    is violated gives the error:

    1. No rank occurs twice.
    2. No rank is missing. A rank is missing if the largest rank of the group is not below the
       number of entries, and the ranks in `all_ranks` are not 0 to their number - 1. Ranks of a
       group thus need not be consecutive.
    3. All entries have the same `device_info`.
    """
    ranks = [rank for device in devices if (rank := _whole(device.get("rank"))) >= 0]
    if len(set(ranks)) < len(ranks):
        message = "config.devices lists a rank twice"
        cure = "build the tests with MPI=1, and measure again"
        raise refuse(file, 1, message, cure, "missing-facts")
    if ranks and are_ranks_missing(set(ranks), len(devices), all_ranks):
        message = f"config.devices lists {len(devices)} ranks, among them rank {max(ranks)}"
        raise refuse(file, 1, message, "give the complete file of the test", "missing-facts")
    names = sorted({_text(device.get("device_info")) for device in devices})
    if len(names) > 1:
        message = f"ranks use different devices: {', '.join(names[:4])}"
        raise refuse(file, 1, message, "measure one kind of device at a time", "missing-facts")


def _is_wrong(count: object) -> bool:
    """Whether a count of wrong elements is above 0, also as text such as `3` or `2e+00`."""
    if isinstance(count, str):
        return (finite_number(count.strip()) or 0.0) > 0
    return _number(count) > 0


def _dtype(name: str, collective: str) -> str:
    reduces = collective in {"all-reduce", "reduce-scatter", "reduce"}
    return "int8" if reduces and name in {"int8", "uint8"} else ""


def _json_variant(document: dict[str, Any]) -> str:
    config = _object(document.get("config"))
    aggregated, graph = config.get("aggregated_iterations", 1), config.get("graph", 0)
    parts = [f"agg iters {_whole(aggregated)}"] if aggregated != 1 else []
    parts += [f"graph {_whole(graph)}"] if graph not in (0, "false", False) else []
    for setting in sorted(_text(one) for one in _list(document.get("env"))):
        if setting.startswith("NCCL_"):
            parts += [f"{name}={value}" for name, value in forced_choices(setting).items()]
    return ", ".join(parts)


def close_json(text: str) -> str:
    """Repair a truncated JSON text: cut it after its last complete object or list, and close it.

    The closing brackets of all objects and lists around this position are appended. The text is
    returned unchanged if it is complete, if no complete object or list is inside another one, or if
    its brackets do not match.
    """
    closers: list[str] = []
    end, tail = 0, ""
    for token in _JSON_TOKEN.finditer(text):
        mark = token[0]
        if mark in _CLOSERS:
            closers.append(_CLOSERS[mark])
        elif mark in "}]":
            if not closers or closers.pop() != mark:
                return text
            end, tail = token.end(), "".join(reversed(closers))
    return text[:end] + tail if closers and tail else text


def _lines(text: str, collector: _Collector) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the objects of JSON lines with their line numbers, from 1.

    Empty lines are ignored; lines that are no JSON object are reported as skipped.
    """
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            yield number, parse_json_object(line.encode(), collector.file)
        except InputError as error:
            collector.skip(error.diagnostics[0].message, number)


def read_mscclpp_lines(facts: MeasurementRequest, options: NoOptions) -> MeasurementSet:
    """Read JSON lines of mscclpp-test and of MSCCL++'s reference values, as points in bytes and us.

    A line gives one point, with the line number, in file order. `name` is the collective, `size`
    the bytes, `time` the time. Nodes are `ranks` / `ranksPerNode`. The library is MSCCL++ with
    variant `kernel N`, -1 if `kernel` is no integer. Request facts are not used. Empty lines are
    ignored.

    A line gives a warning in `skipped` instead if it is no JSON object, if `name` is no known
    collective, if `ranks` or `ranksPerNode` is no integer of at least 1, if `ranks` is no multiple
    of `ranksPerNode`, or if the point is invalid (`Measurement.defect`), such as with a time of 0.

    Raises `InputError` for a file of only white space, for bytes that are not UTF-8, and
    (`no-results`, with the warnings) if there is no point.
    """
    text, file = text_of(facts.source), facts.source.name
    collector = _Collector(file)
    for number, entry in _lines(text, collector):
        collective = collective_name(_text(entry.get("name")))
        if collective is None:
            collector.skip(f"name {_text(entry.get('name'))[:40]!r} is no collective", number)
            continue
        ranks, per_node = _whole(entry.get("ranks")), _whole(entry.get("ranksPerNode"))
        if ranks < 1 or per_node < 1:
            collector.skip("ranks and ranksPerNode are not whole numbers of at least 1", number)
            continue
        if ranks % per_node:
            collector.skip(f"{ranks} ranks are not a multiple of ranksPerNode", number)
            continue
        library = Library("MSCCL++", "", f"kernel {_whole(entry.get('kernel'))}")
        point = Measurement(
            collective, ranks, ranks // per_node, _whole(entry.get("size")),
            _number(entry.get("time")), library, source="mscclpp", file=file, line=number,
        )  # fmt: skip
        collector.add(point, "result", number)
    return collector.result()


def read_program_lines(facts: MeasurementRequest, options: NoOptions) -> MeasurementSet:
    """Read JSON lines of the program that the writer `nccl` generates, as points in bytes and us.

    A line gives one point with the time of the algorithm (`time_s`, library `PROGRAM_LIBRARY`),
    and a second point for NCCL's own collective unless `native_time_s` is missing or null. Points
    have the order of the file. Ranks, bytes, NCCL version and mode (out of place if `in_place` is
    missing) come from the line. Nodes come from the request, otherwise 1. A replayed CUDA graph
    (`is_graph`) has the variant `graph`. Empty lines are ignored. The first rule that applies:

    - No JSON object, an unknown collective, or `ok` is not true: a warning in `skipped`.
    - `first_rank` is above 0: ignored without a warning.
    - Each invalid point (`Measurement.defect`), also without `time_s`: a warning in `skipped`.

    Raises `InputError` for a file with only white space, for bytes that are not UTF-8, and
    (`no-results`, with the warnings) if there is no point.
    """
    text, file = text_of(facts.source), facts.source.name
    collector = _Collector(file)
    for number, entry in _lines(text, collector):
        collective = collective_name(_text(entry.get("collective")))
        if collective is None or entry.get("ok") is not True:
            reason = "the results were wrong" if collective else "the collective is not known"
            collector.skip(reason, number)
            continue
        if _whole(entry.get("first_rank")) > 0:
            continue
        code = _whole(entry.get("nccl_version"))
        version = version_text(str(code)) if code > 0 else ""
        variant = "graph" if entry.get("is_graph") is True else ""
        times = {"time_s": PROGRAM_LIBRARY, "native_time_s": "NCCL"}
        for key, name in times.items():
            if key != "time_s" and entry.get(key) is None:
                continue
            point = Measurement(
                collective, _whole(entry.get("num_ranks")), facts.nodes or 1,
                _whole(entry.get("collective_bytes")), _number(entry.get(key)) * 1e6,
                Library(name, version, variant), place="in" if entry.get("in_place") else "out",
                file=file, line=number,
            )  # fmt: skip
            collector.add(point, key, number)
    return collector.result()


def read_mscclpp_tuned(facts: MeasurementRequest, options: NoOptions) -> MeasurementSet:
    """Read the tuned configuration of mscclpp_benchmark, as points in bytes and us.

    Every entry of every list in `profiles[i].collectives` gives one point, in the order of the
    file. The entry has the size (`message_size`), the time (`time_us`) and the variant of the
    library MSCCL++ (`algorithm`). The profile has the machine (`sku`) and the ranks (`scale`; those
    of the request if it is no integer above 0). Nodes are those of the request, otherwise 1. A
    member that is missing or of another type counts as empty. `options` is ignored.

    An entry of an unknown collective gives a warning in `skipped` instead of a point. So does an
    invalid point (`Measurement.defect`), e.g. of unknown ranks. Raises `InputError` for a file that
    is no JSON object, and (`no-results`) if there is no point.
    """
    file = facts.source.name
    collector = _Collector(file)
    for index, entry in enumerate(_list(parse_json_file(facts.source).get("profiles"))):
        profile = _object(entry)
        scale = _whole(profile.get("scale"))
        ranks = scale if scale > 0 else facts.ranks or -1
        for name, results in _object(profile.get("collectives")).items():
            collective = collective_name(name)
            for row, value in enumerate(_list(results)):
                result, where = _object(value), f"profiles[{index}].collectives.{name[:40]}[{row}]"
                if collective is None:
                    collector.skip(f"{where}: no such collective")
                    continue
                library = Library("MSCCL++", "", _text(result.get("algorithm")))
                point = Measurement(
                    collective, ranks, facts.nodes or 1, _whole(result.get("message_size")),
                    _number(result.get("time_us")), library, _text(profile.get("sku")),
                    source="mscclpp", file=file,
                )  # fmt: skip
                collector.add(point, where)
    return collector.result()


def read_inspector(facts: MeasurementRequest, options: InspectorOptions) -> MeasurementSet:
    """Read JSON lines of the Inspector of NCCL or RCCL: the times of calls on the GPU, in us.

    One line gives one point, in the order of the file. Its size is that of the full buffer: the
    size in the file, for all-gather and reduce-scatter times the number of ranks. Its library is
    NCCL without a version. `call` is `COMMUNICATOR:SEQUENCE`, by which `merge_calls` combines the
    ranks of a call.

    A line is skipped with a warning in `skipped` by the first of these rules that applies:

    1. It is no readable record, or counts calls that the Inspector has overwritten.
    2. It is a send or receive.
    3. Its timing source is not `kernel_gpu`.
    4. Its collective is unknown.
    5. Its sequence number is below `options.warmup_calls`; such a line gives no warning. A missing
       number counts as -1.
    6. The point is invalid (`Measurement.defect`), for example without a size or time.

    Records of proxies and empty lines are ignored. Facts of the request are not used, except for
    the source. Raises `InputError` for a file that is empty or not UTF-8, and (`no-results`, with
    the warnings) if no point remains.
    """
    text, file = text_of(facts.source), facts.source.name
    collector = _Collector(file)
    lines = ((number, line.encode()) for number, line in enumerate(text.splitlines(), 1))
    for record in read_inspector_lines(lines, file):
        if isinstance(record, SkippedLine):
            collector.skip(record.message, record.line, record.cure)
            continue
        if record.is_message:
            collector.skip("not a collective (p2p records have no model)", record.line)
            continue
        source, member = record.timing_source, record.member
        if source != "kernel_gpu":
            message = f"timed by {source[:20] or 'an unnamed source'}, not by the GPU"
            cure = "use an Inspector that writes coll_timing_source kernel_gpu"
            collector.skip(message, record.line, cure)
            continue
        collective = collective_name(record.operation)
        if collective is None:
            collector.skip(f"{record.operation[:40]!r} is no collective", record.line)
            continue
        total = record.bytes
        if collective in _SHARE_OF_RANK:
            total *= member.rank_count
        if record.sequence < options.warmup_calls:
            continue
        point = Measurement(
            collective, member.rank_count, member.node_count, total, record.duration_us,
            Library("NCCL"), source="inspector", file=file, line=record.line,
            call=f"{member.communicator}:{record.sequence}",
        )  # fmt: skip
        collector.add(point, "record", record.line)
    return collector.result()


def read_own_points(facts: MeasurementRequest, options: NoOptions) -> MeasurementSet:
    """Read the points of the hub's JSON format, schema `measured-collectives/1`, in their order.

    A point is skipped if its collective is unknown or if `Measurement.defect` refuses it. The
    warning of a skipped point names `points[i]`, i from 0. Wrong and missing values:

    - Number: -1, so that the point is skipped. If `nodes` is missing, it is 1.
    - Text: empty. Texts are cut to 200 characters, `day` to 10.
    - `dtype`: empty, unless it is `int8` or `uint8` and the collective adds data.
    - A point that is no object has no values. `points` that is no list is empty.

    `sources` of the result has every source by name (cut to 80 characters), with those of the texts
    repo, url, commit and licence that exist. Neither the schema nor other facts of the request are
    used. Raises `InputError` for invalid JSON, and (`no-results`) without a valid point.
    """
    file = facts.source.name
    collector = _Collector(file)
    document = parse_json_file(facts.source)
    for index, entry in enumerate(_list(document.get("points"))):
        fields, where = _object(entry), f"points[{index}]"
        collective = collective_name(_text(fields.get("collective")))
        if collective is None:
            collector.skip(f"{where}: collective {_text(fields.get('collective'))[:40]!r}")
            continue
        point = Measurement(
            collective, _whole(fields.get("ranks")), _whole(fields.get("nodes", 1)),
            _whole(fields.get("size_bytes")), _number(fields.get("time_us")),
            library_of(_text(fields.get("library"))), _text(fields.get("machine")),
            _text(fields.get("place")), _dtype(_text(fields.get("dtype")), collective),
            _text(fields.get("day"))[:10], _text(fields.get("source")), file,
        )  # fmt: skip
        collector.add(point, where)
    sources: dict[str, dict[str, str]] = {}
    for name, value in _object(document.get("sources")).items():
        described = _object(value)
        sources[name[:80]] = {
            key: _text(described[key]) for key in _LICENCE_KEYS if key in described
        }
    return collector.result(sources)
