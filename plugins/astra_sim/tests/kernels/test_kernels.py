"""Kernels give equal results as plain Python and as machine code, which later processes load."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
from collhub_kernels import Kernel, compile_at_once, compiled, kernels, machine_code
from collhub_kernels.kernels import LazyRecords, interpreted

from hub_core.model import InputError

ROW = np.dtype([("value", np.int32), ("rate", np.float64), ("is_set", np.bool_)], align=True)
OFFSET = 5


class Table(NamedTuple):
    """A state: records, numbers and scalars."""

    row: npt.NDArray[np.void]
    grid: npt.NDArray[np.void]
    total: npt.NDArray[np.int64]
    key: npt.NDArray[np.uint64]
    factor: float
    is_doubled: bool


@compiled
def add(table: Table, index: int) -> int:
    """Add to a record, and return a sum that needs 64 bits."""
    row = table.row[index]
    row["value"] += OFFSET
    row["is_set"] = not row["is_set"]
    row["rate"] = row["rate"] * table.factor
    table.grid[index, 1]["value"] = index
    return np.int64(row["value"]) << 33


def total(table: Table) -> bool:
    """Kernel: the sum over all rows."""
    for index in range(len(table.row)):
        number = add(table, index)
        table.total[0] += 2 * number if table.is_doubled else number
        table.key[index] = table.key[index] % np.uint64(7)
    part = table.total[1:]
    part[0] = len(part)
    return table.total[0] > 0


def table(rows: int = 4) -> Table:
    """A state with known content."""
    row = np.zeros(rows, ROW)
    row["value"] = np.arange(rows) * 1000
    row["rate"] = 0.1
    key = np.arange(rows, dtype=np.uint64) + np.uint64(1 << 63)
    return Table(row, np.zeros((rows, 2), ROW), np.zeros(3, np.int64), key, 1.5, True)


def test_python_and_machine_code_agree(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    kernel = Kernel(total)
    plain, native = table(), table()
    assert kernel(plain, events=4) == 1
    assert not list(tmp_path.iterdir())
    with compile_at_once():
        assert kernel(native, events=4) == 1
    assert len(list(tmp_path.iterdir())) == 1
    for one, other in zip(plain[:4], native[:4], strict=True):
        assert one.tobytes() == other.tobytes()
    assert plain.total.tolist() == [2 * (6000 + 4 * OFFSET) << 33, 2, 0]


def test_small_inputs_are_interpreted_and_their_events_add_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    # Nothing is stored in these folders.
    monkeypatch.setattr(kernels, "MAX_EVENTS_BEFORE_LOADING", 100)
    monkeypatch.setattr(kernels, "MAX_EVENTS_BEFORE_COMPILING", 300)
    kernel = Kernel(total)
    for _ in range(3):
        kernel(table(), events=100)
    assert not list(tmp_path.iterdir())
    kernel(table(), events=100)
    assert len(list(tmp_path.iterdir())) == 1


_SECOND = """
import sys
sys.path.insert(0, {folder!r})
from test_kernels import table, total
from collhub_kernels import Kernel
state = table()
print(Kernel(total)(state, events=10**6), state.total.tolist(), "numba" in sys.modules)
"""


def run_second(cache: Path) -> str:
    """The output of a process with stored machine code in `cache`."""
    script = _SECOND.format(folder=str(Path(__file__).parent))
    command = [sys.executable, "-c", script]
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(cache)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    return done.stdout


def test_a_second_process_loads_the_code_without_numba(tmp_path: Path) -> None:
    first = run_second(tmp_path)
    assert first.endswith("True\n")
    assert run_second(tmp_path) == first.replace("True", "False")


def test_a_damaged_file_is_compiled_again(tmp_path: Path) -> None:
    first = run_second(tmp_path)
    (stored,) = tmp_path.iterdir()
    content = stored.read_bytes()
    stored.write_bytes(content[:-100] + bytes(100))
    assert run_second(tmp_path) == first
    assert stored.read_bytes() == content


def test_the_digest_covers_parts_and_constants(monkeypatch: pytest.MonkeyPatch) -> None:
    parts, before = Kernel(total).sources()
    assert parts == [add]
    monkeypatch.setitem(total.__globals__, "OFFSET", OFFSET + 1)
    assert Kernel(total).sources()[1] != before


def test_numba_can_be_turned_off(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    with compile_at_once():
        assert Kernel(total)(table(), events=10**9) == 1
    assert not list(tmp_path.iterdir())


def test_numbers_beyond_64_bits_are_refused() -> None:
    state = table()
    state.row["value"][0] = (1 << 31) - 1
    with pytest.raises(InputError, match="does not fit into 64 bits"):
        Kernel(total)(state, events=1)


def test_an_unwritable_folder_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    blocked, second = tmp_path / "file", tmp_path / "second"
    blocked.write_text("")
    monkeypatch.setattr(machine_code, "_list_folders", lambda: [blocked / "below", second])
    with compile_at_once():
        assert Kernel(total)(table(), events=1) == 1
    assert len(list(second.iterdir())) == 1


def test_a_full_disk_leaves_no_unfinished_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full(*paths: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(machine_code, "_list_folders", lambda: [tmp_path])
    monkeypatch.setattr(machine_code.os, "chmod", full)
    with compile_at_once():
        assert Kernel(total)(table(), events=1) == 1
    assert not list(tmp_path.iterdir())


def test_a_relative_cache_folder_is_ignored(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "below")
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    assert list(machine_code._list_folders())[-1] == tmp_path / ".cache" / "collhub" / "kernels"


def test_records_are_written_back_only_where_they_were_read() -> None:
    array = np.zeros(3, ROW)
    records: list[LazyRecords] = []
    view = interpreted(array, records)
    view[1]["value"] += 7
    assert len(view) == 3
    array["value"][2] = 9
    records[0].write_back()
    assert array["value"].tolist() == [0, 7, 9]
    view[1]["value"] = 1 << 40
    with pytest.raises(OverflowError):
        records[0].write_back()
