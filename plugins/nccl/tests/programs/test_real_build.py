"""The emitted sources with the real compiler and the real NCCL, where both are installed."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from pathlib import Path

import pytest
from collhub_nccl.programs.schedule_tables import format_schedule_cpp
from emitted import NAMES, make, tables, write_fixed

from hub_core.testing import samples

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def nccl_home() -> Path:
    """The folder of the Python package of NCCL."""
    found = importlib.util.find_spec("nvidia.nccl") if importlib.util.find_spec("nvidia") else None
    if shutil.which("nvcc") is None or found is None or not found.submodule_search_locations:
        pytest.skip("nvcc or the package nvidia-nccl-cu13 is not installed")
    return Path(found.submodule_search_locations[0])


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory, nccl_home: Path) -> Path:
    """A folder in which everything for GPUs is built."""
    folder = tmp_path_factory.mktemp("real")
    stated = tables(samples.ring_all_reduce(8))
    write_fixed(folder, stated)
    (folder / "schedule.cpp").write_text(format_schedule_cpp(stated), encoding="ascii")
    make(folder, f"NCCL_HOME={nccl_home}", "ARCHS=90", "all")
    return folder


def test_program_compiles_links_and_starts(real: Path) -> None:
    command = ["./collhub_program", "--help"]
    done = subprocess.run(command, cwd=real, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_library_shows_nothing_but_its_functions(real: Path) -> None:
    command = ["nm", "-D", "--defined-only", f"lib{NAMES.library}.so"]
    done = subprocess.run(command, cwd=real, capture_output=True, text=True, check=True)
    rows = [line.split() for line in done.stdout.splitlines()]
    # Names of the C++ library are weak, and the same everywhere.
    assert {row[2] for row in rows if row[1] == "T"} == set(NAMES.functions.values())


def test_program_of_a_training_job_links_the_library(real: Path, nccl_home: Path) -> None:
    header, run = f"{NAMES.library}.h", NAMES.functions["run"]
    (real / "job.c").write_text(
        f'#include "{header}"\nint main(void) {{ return {run}(0, 0, 1, ncclFloat, ncclSum, 0, 0)'
        " != ncclInvalidArgument; }\n",
        encoding="ascii",
    )
    cuda = Path(_include_of_cuda())
    command = [
        "gcc", "-Wall", "-Werror", f"-I{nccl_home}/include", f"-I{cuda}", "job.c", "-o", "job",
        "-L.", f"-l{NAMES.library}", f"-L{nccl_home}/lib", "-l:libnccl.so.2",
        "-Wl,-rpath,$ORIGIN", f"-Wl,-rpath,{nccl_home}/lib",
    ]  # fmt: skip
    subprocess.run(command, cwd=real, check=True, timeout=60)
    # A null communicator is refused before any GPU is needed.
    assert subprocess.run(["./job"], cwd=real, check=False, timeout=60).returncode == 0


def _include_of_cuda() -> str:
    """Where the compiler finds cuda_runtime.h."""
    command = ["nvcc", "-M", "-x", "cu", "/dev/null"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    header = next(word for word in done.stdout.split() if word.endswith("/cuda_runtime.h"))
    return str(Path(header).parent)


def test_reductions_load_and_store_whole_packs(real: Path, nccl_home: Path) -> None:
    command = [
        "nvcc", "-O2", "-std=c++17", "-arch=sm_90", f"-I{nccl_home}/include", "-ptx",
        "-o", "library.ptx", "library.cu",
    ]  # fmt: skip
    subprocess.run(command, cwd=real, check=True, timeout=300)
    text = (real / "library.ptx").read_text()
    for instruction in ("ld.global.v4.f32", "st.global.v4.f32", "ld.global.v2.f64"):
        assert instruction in text
