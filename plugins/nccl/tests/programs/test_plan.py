"""Plans of a rank: which copies and reductions are one pass over memory, which are one launch."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from emitted import make, missing_tools, tables, write_fixed

from hub_core.testing import samples

pytestmark = pytest.mark.once

# Prints a line a batch: for each job its first operand, its number of sources and its target.
_PRINTER = """
#include <cstdio>
#include "plan.hpp"
using namespace collhub;
static const Memory kMemory{{0, 100, 200}, {100, 100, 100}, 300, true};
static Record local(Kind kind, int source, int target, int count) {
  return {kind, kScratch, kOutput, 0, 1, -1, source, target, count};
}
int main() {
  Fusion fusion(kMemory);
  for (const Record& record : {RECORDS}) fusion.add(record);
  for (const Batch& batch : fusion.take()) {
    for (const Job& job : batch)
      std::printf("%s%zu->%d ", job.reads_target ? "+" : "=", job.sources.size(),
                  static_cast<int>(job.target.offset));
    std::printf("\\n");
  }
}
"""


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if reason := missing_tools():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("plan")
    write_fixed(folder, tables(samples.ring_all_reduce(2)))
    return folder


def batches(runtime: Path, records: str) -> list[str]:
    """What the printer says of local records."""
    (runtime / "printer.cpp").write_text(_PRINTER.replace("RECORDS", records), encoding="ascii")
    make(runtime, "CPPFLAGS=-I.", "LDLIBS=", "printer")
    done = subprocess.run(["./printer"], cwd=runtime, capture_output=True, check=True, timeout=60)
    (runtime / "printer").unlink()
    return done.stdout.decode().splitlines()


def test_reductions_of_one_target_are_one_pass(runtime: Path) -> None:
    records = "local(kReduce, 0, 8, 4), local(kReduce, 4, 8, 4), local(kReduce, 8, 8, 4)"
    assert batches(runtime, records) == ["+3->8 "]


def test_a_copy_and_the_reductions_into_it_are_one_pass(runtime: Path) -> None:
    records = "local(kCopy, 0, 8, 4), local(kReduce, 4, 8, 4)"
    assert batches(runtime, records) == ["=2->8 "]


def test_reductions_of_several_targets_are_one_launch(runtime: Path) -> None:
    records = (
        "local(kReduce, 0, 0, 1), local(kReduce, 1, 1, 1), local(kReduce, 2, 0, 1), "
        "local(kReduce, 3, 1, 1)"
    )
    assert batches(runtime, records) == ["+2->0 +2->1 "]


def test_what_reads_or_writes_an_earlier_target_waits_for_it(runtime: Path) -> None:
    overlapping = "local(kReduce, 0, 0, 4), local(kReduce, 4, 2, 4)"
    assert batches(runtime, overlapping) == ["+1->0 ", "+1->2 "]
    reading = "local(kReduce, 0, 0, 4), Record{kCopy, kOutput, kOutput, 0, 1, -1, 0, 8, 4}"
    assert batches(runtime, reading) == ["+1->0 ", "=1->8 "]
    spoiling = "Record{kCopy, kOutput, kOutput, 0, 1, -1, 0, 8, 4}, local(kReduce, 0, 0, 4)"
    assert batches(runtime, spoiling) == ["=1->8 ", "+1->0 "]


def test_more_sources_than_a_kernel_takes_are_several_passes(runtime: Path) -> None:
    records = ", ".join(f"local(kReduce, {source}, 50, 1)" for source in range(10))
    assert batches(runtime, records) == ["+8->50 ", "+2->50 "]
