"""The emitted sources compile without warnings, with the headers of old and new NCCL versions.

Headers of real releases are used if COLLHUB_NCCL_HEADERS names a folder with VERSION/nccl.h, as
`.ci/test_tools.py` fills it; CUDA's own headers are replaced by those of the test double.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from collhub_nccl.programs.schedule_tables import format_schedule_cpp
from emitted import make, missing_tools, run, tables, write_fixed

from hub_core.testing import samples

pytestmark = pytest.mark.once

# Beyond -Wconversion, for which clang also means -Wsign-conversion.
WARNINGS = ("-Wall", "-Wextra", "-Wconversion", "-Wsign-conversion", "-Wshadow", "-Werror")
CUDA_SOURCES = ("library.cu", "main.cu")
DOUBLE_SOURCES = ("double/nccl_double.cpp", "double/cuda_double.cpp", "schedule.cpp")
# What headers declare only from a version on, by the release notes and headers of NCCL.
SINCE = {
    (2, 19): r"^ncclResult_t ncclMem(Alloc|Free)\(.*\n|^ncclResult_t ncclComm(Der|R)egister\(.*\n",
    (2, 24): r",\n  ncclFloat8e4m3 = 10,\n  ncclFloat8e5m2 = 11",
    (2, 30): r",\n  ncclTimeout = 8",
}
COMPILERS = [name for name in ("g++", "clang++") if shutil.which(name)]


def _headers() -> list[Path]:
    """Folders with the header of one release each."""
    folder = os.environ.get("COLLHUB_NCCL_HEADERS")
    return sorted(path.parent for path in Path(folder).glob("*/nccl.h")) if folder else []


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An emitted folder."""
    if reason := missing_tools():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("headers")
    stated = tables(samples.ring_all_reduce(4))
    write_fixed(folder, stated)
    (folder / "schedule.cpp").write_text(format_schedule_cpp(stated), encoding="ascii")
    return folder


def _compile(sources: Path, compiler: str, name: str, *flags: str) -> str:
    """What the compiler says."""
    command = [
        compiler, "-std=c++17", "-fsyntax-only", "-pthread", *WARNINGS, *flags, "-I.", "-xc++", name
    ]  # fmt: skip
    done = subprocess.run(
        command, cwd=sources, capture_output=True, text=True, timeout=120, check=False
    )
    return "" if done.returncode == 0 and not done.stderr else done.stdout + done.stderr


@pytest.mark.parametrize("name", [*CUDA_SOURCES, *DOUBLE_SOURCES])
@pytest.mark.parametrize("compiler", COMPILERS)
def test_no_source_gives_a_warning(sources: Path, compiler: str, name: str) -> None:
    assert _compile(sources, compiler, name, "-Idouble") == ""


@pytest.mark.parametrize("version", [(2, 18), *SINCE])
@pytest.mark.parametrize("name", CUDA_SOURCES)
def test_sources_need_no_declaration_of_a_later_version(
    sources: Path, tmp_path: Path, version: tuple[int, int], name: str
) -> None:
    text = (sources / "double" / "nccl.h").read_text()
    for since, declarations in SINCE.items():
        if version < since:
            text, count = re.subn(declarations, "", text, flags=re.MULTILINE)
            assert count
    code = version[0] * 10_000 + version[1] * 100
    text, count = re.subn("NCCL_VERSION_CODE [0-9]+", f"NCCL_VERSION_CODE {code}", text)
    assert count == 1
    (tmp_path / "nccl.h").write_text(text)
    shutil.copy(sources / "double" / "cuda_runtime.h", tmp_path)
    assert _compile(sources, "g++", name, f"-I{tmp_path}") == ""


def test_a_header_without_communicator_splits_is_refused_by_name(
    sources: Path, tmp_path: Path
) -> None:
    text = (sources / "double" / "nccl.h").read_text().replace("CODE 23007", "CODE 21700")
    (tmp_path / "nccl.h").write_text(text)
    shutil.copy(sources / "double" / "cuda_runtime.h", tmp_path)
    said = _compile(sources, "g++", "library.cu", f"-I{tmp_path}")
    assert "NCCL 2.18 or later is needed" in said


@pytest.mark.once
def test_the_library_for_the_oldest_version_runs(sources: Path) -> None:
    make(sources, "CXXFLAGS=-O0 -DNCCL_VERSION_CODE=21800", "double")
    done = run(sources, "--size", "4096")
    assert done.report is not None, done.errors
    assert done.report["ok"]


@pytest.fixture(scope="module")
def cuda_stubs(tmp_path_factory: pytest.TempPathFactory, sources: Path) -> Path:
    """Headers that stand in for those of CUDA 12 which NCCL's header includes."""
    folder = tmp_path_factory.mktemp("cuda")
    runtime = (sources / "double" / "cuda_runtime.h").read_text()
    (folder / "cuda_runtime.h").write_text(runtime + "#define CUDART_VERSION 12000\n")
    for name in ("fp16", "bf16", "fp8"):
        text = f"#pragma once\n#define __CUDA_{name.upper()}_TYPES_EXIST__\n"
        (folder / f"cuda_{name}.h").write_text(text)
    return folder


@pytest.mark.skipif(
    not os.environ.get("COLLHUB_NCCL_HEADERS"),
    reason="COLLHUB_NCCL_HEADERS names no folder of headers; see .ci/test_tools.py",
)
@pytest.mark.parametrize("header", _headers(), ids=lambda path: path.name)
@pytest.mark.parametrize("name", CUDA_SOURCES)
@pytest.mark.parametrize("compiler", COMPILERS)
def test_sources_compile_with_the_header_of_a_release(
    sources: Path, cuda_stubs: Path, header: Path, name: str, compiler: str
) -> None:
    assert _compile(sources, compiler, name, f"-I{header}", f"-I{cuda_stubs}") == ""


@pytest.mark.skipif(
    not os.environ.get("COLLHUB_NCCL_HEADERS"), reason="COLLHUB_NCCL_HEADERS is not set"
)
def test_the_oldest_and_the_newest_header_are_available() -> None:
    versions = [tuple(map(int, path.name.split("."))) for path in _headers()]
    assert min(versions)[:2] == (2, 18)
    assert max(versions)[:2] >= (2, 32)
