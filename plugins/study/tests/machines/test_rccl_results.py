"""Readers of the files of rccl-tests: every version of JSON and CSV, refusals, warnings.

The inputs follow the statements of rccl-tests that write them: names, order, separators and quotes
of each version. Values with six decimals are those of `std::to_string`.
"""

from __future__ import annotations

import functools
import random
import re
from pathlib import Path
from typing import Any

import pytest
from collhub_machines.calibration import read_points
from collhub_machines.plugin import collhub_producers

from hub_core import Registry, discover
from hub_core.model import InputError
from hub_core.plugin_api import Measurement

pytestmark = pytest.mark.once

CYCLE = '"numCycle":0, '
GPUS = '"gpus":4, '
# Two processes with two GPUs each.
MPI = '"nodes":1, "ranks":2, "ranksPerNode":2, "gpusPerRank":2, '


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@functools.cache
def _installed_plugins() -> Registry:
    return discover()


def _read(text: str, name: str = "run.out", **facts: Any) -> tuple[list[Measurement], list[str]]:
    Path(name).write_bytes(text.encode())
    read = read_points([name], registry=_installed_plugins(), **facts)
    return list(read.points), [str(one) for one in read.skipped]


def _record(
    place: int = 0,
    *,
    ranks: str = GPUS,
    cycle: str = CYCLE,
    name: str = "AllReduce",
    size: int = 1024,
    time: str = "19.184150",
    bandwidths: tuple[str, str] = ("0.053377", "0.080066"),
    wrong: str = '"0"',
) -> str:
    return (
        f'{{{cycle}"name":"{name}", {ranks}"size":{size}, "type":"float", "redop":"sum", '
        f'"inPlace":{place}, "time":{time}, "algBw":{bandwidths[0]}, "busBw":{bandwidths[1]}, '
        f'"wrong":{wrong}}}'
    )


IN_PLACE: dict[str, Any] = {"place": 1, "time": "19.897650", "bandwidths": ("0.051463", "0.077195")}


def _list(*records: str) -> str:
    return "[\n" + ",\n".join(records) + "\n]\n"


def _lines(*records: str) -> str:
    return "".join(f"{record}\n" for record in records)


HEADER = "numCycle,collective,gpus,size,type,redop,inplace,time,algbw,busbw,#wrong\n"
ROW = '0,"AllReduce",4,1024,"float","sum",0,19.184150,0.053377,0.080066,"0"\n'
IN_ROW = '0,"AllReduce",4,1024,"float","sum",1,19.897650,0.051463,0.077195,"0"\n'
MPI_ROW = '0,"AllReduce",1,2,2,2,1024,"float","sum",0,19.184150,0.053377,0.080066,"0"\n'
MPI_IN_ROW = '0,"AllReduce",1,2,2,2,1024,"float","sum",1,19.897650,0.051463,0.077195,"0"\n'
FIRST_HEADER = "collective, gpus, size, type, redop, inplace, time, algbw, busbw, #wrong\n"
REST = "size,type,redop,inplace,time,algbw,busbw,#wrong\n"


@pytest.mark.parametrize(
    "text",
    [
        _list(_record(), _record(**IN_PLACE)),
        _lines(_record(cycle=""), _record(cycle="", **IN_PLACE)),
        _lines(_record(), _record(**IN_PLACE)),
        _list(_record(ranks=MPI), _record(ranks=MPI, **IN_PLACE)),
        _lines(_record(ranks=MPI, cycle=""), _record(ranks=MPI, cycle="", **IN_PLACE)),
        # A tool has written it again, with one member per line.
        _list(_record(), _record(**IN_PLACE)).replace(", ", ",\n "),
        HEADER + ROW + IN_ROW,
        FIRST_HEADER + (ROW + IN_ROW).replace("0,", "", 1).replace("\n0,", "\n").replace(",", ", "),
        "numCycle,collective,ranks,rankspernode,gpusperrank," + REST + MPI_ROW + MPI_IN_ROW,
        "numCycle,collective,nodes,ranks,ranksPerNode,gpusPerRank," + REST + MPI_ROW + MPI_IN_ROW,
        # A spreadsheet has removed the quotes.
        (HEADER + ROW + IN_ROW).replace('"', "").replace("\n", "\r\n"),
    ],
)
def test_every_version_gives_both_places_and_the_ranks(text: str) -> None:
    points, skipped = _read(text, nodes=1)
    assert skipped == []
    assert [(one.place, one.size_bytes, one.time_us) for one in points] == [
        ("out", 1024, 19.18415),
        ("in", 1024, 19.89765),
    ]
    assert {(one.collective, one.ranks, one.nodes) for one in points} == {("all-reduce", 4, 1)}
    assert {(str(one.library), one.machine, one.source) for one in points} == {
        ("RCCL", "", "rccl-tests")
    }


def test_the_name_of_the_first_version_for_wrong_elements_is_read() -> None:
    text = _lines(_record(cycle="")).replace('"wrong"', '"#wrong"')
    assert len(_read(text)[0]) == 1


def test_points_have_the_lines_of_their_records() -> None:
    assert [one.line for one in _read(_list(_record(), _record(**IN_PLACE)))[0]] == [2, 3]
    assert [one.line for one in _read(HEADER + ROW + "\n" + IN_ROW)[0]] == [2, 4]


def test_each_file_has_one_reader() -> None:
    texts = [
        _list(_record(ranks=MPI)),
        _lines(_record(ranks=MPI)),
        HEADER + ROW,
        FIRST_HEADER + ROW,
    ]
    claimed = [
        [
            reader.name
            for reader in collhub_producers()
            if re.search(reader.format.signature, text.encode(), re.MULTILINE)
        ]
        for text in texts
    ]
    json_reader, csv_reader = ["rccl-tests-json"], ["rccl-tests-csv"]
    assert claimed == [json_reader, json_reader, csv_reader, csv_reader]


@pytest.mark.parametrize("text", [_list(_record(), _record(**IN_PLACE)), HEADER + ROW + IN_ROW])
def test_the_place_is_an_option(text: str) -> None:
    assert [one.place for one in _read(text, options={"place": "in"})[0]] == ["in"]
    only_out = text.replace('"inPlace":1', '"inPlace":0').replace('"sum",1,', '"sum",0,')
    with pytest.raises(InputError, match=r"run\.out:2: .*no time is measured in place; use -O"):
        _read(only_out, options={"place": "in"})


def test_nodes_of_a_build_with_mpi_are_those_of_the_request() -> None:
    points, skipped = _read(_list(_record(ranks=MPI)), nodes=2)
    assert (skipped, points[0].ranks, points[0].nodes) == ([], 4, 2)
    points, skipped = _read(_list(_record(ranks=MPI)))
    assert points[0].nodes == 1
    assert len(skipped) == 1
    assert re.search(r"run\.out:2: .*one node is assumed; give --nodes M", skipped[0])


def test_ranks_of_a_split_run_are_those_of_one_group() -> None:
    """With NCCL_TESTS_SPLIT, `nodes` is the number of groups, `ranksPerNode` the processes of one."""
    groups = '"nodes":2, "ranks":4, "ranksPerNode":2, "gpusPerRank":2, '
    points, _ = _read(_list(_record(ranks=groups)), nodes=1)
    assert [one.ranks for one in points] == [4]


def test_bandwidths_of_other_ranks_are_skipped() -> None:
    text = _list(_record(), _record(ranks='"gpus":8, '))
    points, skipped = _read(text)
    assert len(points) == 1
    assert re.search(r"run\.out:3: the bandwidths are not those of 8 ranks; give", skipped[0])


@pytest.mark.parametrize("size", [1024, 4096])
@pytest.mark.parametrize("name", ["ReduceScatter", "Scatter"])
def test_sizes_of_a_share_are_those_of_the_full_buffer(name: str, size: int) -> None:
    """4096 bytes on 4 GPUs in 20 us: first versions name the 1024 bytes that a rank receives."""
    bandwidths = ("0.204800", "0.153600")
    text = _list(_record(name=name, size=size, time="20.000000", bandwidths=bandwidths))
    points, skipped = _read(text)
    assert skipped == []
    assert [one.size_bytes for one in points] == [4096]


def test_a_share_that_rounded_bandwidths_do_not_tell_is_skipped() -> None:
    bandwidths = ("0.000001", "0.000001")
    record = _record(name="Scatter", size=16, time="20000.000000", bandwidths=bandwidths)
    with pytest.raises(InputError, match="contradict algBw"):
        _read(_list(record))
    other = _record(name="Broadcast", size=16, time="20000.000000", bandwidths=bandwidths)
    assert [one.size_bytes for one in _read(_list(other))[0]] == [16]


@pytest.mark.parametrize(
    "text",
    [_list(_record(), _record(time="3.100000")), HEADER + ROW + ROW.replace("19.184150", "3.1")],
)
def test_cpu_times_are_skipped(text: str) -> None:
    """With -C 1 the time is that of the CPU, and the bandwidth still that of the GPU."""
    points, skipped = _read(text)
    assert len(points) == 1
    assert re.search(r"run\.out:3: time 3\.1 us .* contradict algBw .*; run .* -C 1", skipped[0])


@pytest.mark.parametrize(("wrong", "reason"), [("3", "is wrong"), ("x", "neither"), ("-1", "nei")])
def test_wrong_results_are_skipped(wrong: str, reason: str) -> None:
    for text in (
        _list(_record(), _record(wrong=f'"{wrong}"')),
        HEADER + ROW + ROW.replace('"0"', f'"{wrong}"'),
    ):
        points, skipped = _read(text)
        assert len(points) == 1
        assert re.search(rf"run\.out:3: .*{reason}", skipped[0])


def test_results_without_a_check_are_used() -> None:
    assert len(_read(_list(_record(wrong='"N/A"')))[0]) == 1


def test_all_wrong_results_end_with_an_error() -> None:
    with pytest.raises(InputError) as caught:
        _read(HEADER + ROW.replace('"0"', '"9"'))
    assert [one.code for one in caught.value.diagnostics] == ["skipped", "no-results"]


def test_cycles_and_data_types_of_one_run_are_all_read() -> None:
    text = HEADER + ROW + ROW.replace("0,", "1,", 1) + ROW.replace("float", "int8")
    points, skipped = _read(text)
    assert skipped == []
    assert [one.dtype for one in points] == ["", "", "int8"]


def test_several_files_in_one_are_read() -> None:
    assert len(_read(_list(_record()) + _list(_record(**IN_PLACE)))[0]) == 2
    points, skipped = _read(HEADER + ROW + HEADER.replace("gpus", "ranks,rankspernode,gpusperrank")
                            + MPI_ROW, nodes=1)  # fmt: skip
    assert (skipped, [one.ranks for one in points]) == ([], [4, 4])


def test_operations_that_are_no_collective_are_skipped() -> None:
    points, skipped = _read(_list(_record(), _record(name="AlltoAllv")))
    assert len(points) == 1
    assert "'AlltoAllv' is not a collective with a model" in skipped[0]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"algBw":0.053377, ', "", "has no algBw"),
        ('"gpus":4, ', "", "has no gpus"),
        ('"gpus":4', '"gpus":' + "9" * 4000, "gpus '99999999999999999999' is not a number"),
        ('"gpus":4', '"gpus":4.5', "gpus '4.5' is not a number"),
        ('"gpus":4', '"ranks":4', "has no ranksPerNode, gpusPerRank"),
        ('"inPlace":0', '"inPlace":2', "inPlace '2' is not 0 or 1"),
        ('"time":19.184150', '"time":nan', "not JSON"),
        ('"time":19.184150', '"time":true', "time 'True' is not a number"),
        ('"size":1024', '"size":0', "size 0 is not between"),
        ('"gpus":4', '"gpus":1', "1 ranks are not between"),
    ],
)
def test_a_record_with_a_defect_is_skipped_with_its_line(old: str, new: str, message: str) -> None:
    text = _list(_record(**IN_PLACE), _record().replace(old, new))
    points, skipped = _read(text)
    assert len(points) == 1
    assert re.search(rf"run\.out:3: .*{re.escape(message)}", skipped[0])


@pytest.mark.parametrize("length", [3, 60])
def test_json_that_is_cut_gives_its_complete_records(length: int) -> None:
    text = _list(_record(), _record(**IN_PLACE))
    points, skipped = _read(text[:-length])
    assert len(points) == (2 if length == 3 else 1)
    assert re.search(r"run\.out:3: the file ends before its JSON does; give", skipped[0])


def test_other_text_between_records_gives_a_warning() -> None:
    points, skipped = _read(_lines(_record(), "srun: error: x", _record(**IN_PLACE)))
    assert len(points) == 2
    assert re.search(r"run\.out:2: text between the records is skipped; give", skipped[0])


def test_rows_that_do_not_fit_the_columns_are_skipped() -> None:
    points, skipped = _read(HEADER + ROW + "0,AllReduce,4\n" + ROW[:40])
    assert len(points) == 1
    assert re.search(r"run\.out:3: 3 values do not fit the 11 columns; give", skipped[0])
    assert re.search(r"run\.out:4: the file ends within this line; give", skipped[1])


def test_a_row_of_mpi_that_is_cut_is_not_taken_for_one_without_nodes() -> None:
    header = "numCycle,collective,ranks,rankspernode,gpusperrank," + REST
    points, skipped = _read(header + MPI_ROW + MPI_ROW.rpartition(",")[0], nodes=1)
    assert len(points) == 1
    assert "the file ends within this line" in skipped[0]


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (HEADER.replace("time,", ""), "the header has no column time; keep"),
        (HEADER.replace("gpus,", ""), "the header has no column gpus; keep"),
        (HEADER.replace("gpus,", "ranks,"), "no column ranksPerNode, gpusPerRank; keep"),
        (HEADER.replace("time,", "time,time,"), "the header has the column time twice; keep"),
    ],
)
def test_a_header_with_other_columns_is_refused(header: str, message: str) -> None:
    with pytest.raises(InputError, match=rf"run\.out:1: .*{message}"):
        _read(header + ROW)


@pytest.mark.parametrize("name", ["run.json", "run.csv"])
def test_damaged_files_give_points_or_an_error_of_the_file(name: str) -> None:
    random_numbers = random.Random(7)
    text = HEADER + ROW + IN_ROW if name == "run.csv" else _list(_record(), _record(**IN_PLACE))
    signs = '0123456789-.,:"{}[]\n aeN'
    refusals = []
    for _ in range(600):
        place = random_numbers.randrange(len(text))
        width = random_numbers.choice((0, 1, 20))
        damaged = text[:place] + random_numbers.choice(signs) + text[place + width :]
        try:
            points, _ = _read(damaged, name)
        except InputError as error:
            refusals.append(str(error))
        else:
            assert all(one.defect() is None for one in points)
    assert [one for one in refusals if not one.startswith(name)] == []


def test_a_header_without_rows_is_refused() -> None:
    with pytest.raises(InputError, match=r"run\.out:1: .*the file has no times"):
        _read(HEADER)
