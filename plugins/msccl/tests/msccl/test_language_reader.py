"""The reader of programs: what it refuses, with which words and which line."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from collhub_msccl.plugin import LanguageOptions
from collhub_msccl.read_program import read, samples

from hub_core.model import Algorithm, Diagnostic, HubError, UsageError
from hub_core.plugin_api import Source
from hub_core.verification import verify

pytestmark = pytest.mark.once

IMPORTS = (
    "from msccl.language import *; from msccl.topologies import *; "
    "from msccl.language.collectives import *\n"
)
OPTIONS = LanguageOptions(time_limit=20)
PROGRAM = 'with MSCCLProgram("p", fully_connected(4), AllReduce(4, 4, True), 1):\n    '


def run(text: str, reported: list[Diagnostic] | None = None, **options: Any) -> Algorithm:
    """Read a text; its imports are line 1."""
    parts = Source.of_bytes("prog.py", (IMPORTS + text).encode()).parts
    report = (lambda found: None) if reported is None else reported.append
    return read(
        Source("prog.py", parts, report),
        replace(OPTIONS, **options),
    )


def refusal(text: str, **options: Any) -> str:
    """The message of the refusal."""
    return str(refused(text, **options))


def refused(text: str, **options: Any) -> Diagnostic:
    """The finding of the refusal."""
    with pytest.raises(HubError) as caught:
        run(text, **options)
    (finding,) = caught.value.diagnostics
    return finding


REFUSALS = {
    "chunk(0, Buffer.scratch, 0)": (
        "prog.py:3: rank 0: Buffer.scratch has 0 chunks, index 0 is outside"
    ),
    "chunk(0, 'x', 0)": "prog.py:3: rank 0 has no buffer 'x'",
    "chunk(0, Buffer.input, 2, 3)": (
        "prog.py:3: rank 0: Buffer.input has 4 chunks, indices 2..4 is outside"
    ),
    "chunk(0, Buffer.input, -1)": (
        "prog.py:3: rank 0: Buffer.input has 4 chunks, index -1 is outside"
    ),
    "c = chunk(0, Buffer.input, 0); c.reduce(c)": (
        "prog.py:3: rank 0: i[0] is reduced into itself (rank 0: i[0])"
    ),
    "c = chunk(0, Buffer.input, 0, 2); c.copy(0, Buffer.input, 1)": (
        "prog.py:3: rank 0: i[0..1] is copied onto rank 0: i[1..2], which overlaps it"
    ),
    "chunk(0, Buffer.input, 0).copy(4)": "prog.py:3: rank 4 is not one of ranks 0..3",
    "chunk(0, Buffer.input, 0).copy(-1)": "prog.py:3: rank -1 is not one of ranks 0..3",
    "chunk(7, Buffer.input, 0)": "prog.py:3: rank 7 is not one of ranks 0..3",
    "chunk(Buffer.input, 0, 0)": (
        "prog.py:3: Buffer.input is no rank: ranks are numbers; the order is chunk(rank, buffer, "
        "index)"
    ),
    "chunk(0, Buffer.input, 0).copy(1, Buffer.output)": (
        "prog.py:3: copy to Buffer.output without an index: give one"
    ),
    "chunk(0, Buffer.input, 0).copy(1, index=2)": (
        "prog.py:3: copy to index 2 of no buffer: name the buffer too"
    ),
    "chunk(0, Buffer.input, 0).copy(1, Buffer.output, 9)": (
        "prog.py:3: rank 1: Buffer.input has 4 chunks, index 9 is outside"
    ),
    "chunk(0, Buffer.input, 0).reduce(chunk(1, Buffer.input, 0, 2))": (
        "prog.py:3: rank 1: i[0..1] cannot be reduced into rank 0: i[0]: 2 chunks into 1"
    ),
    "chunk(0, Buffer.input, 0).reduce(3)": "prog.py:3: reduce takes a reference, not int",
    "chunk(0, Buffer.input, 0, 3).split(2)": (
        "prog.py:3: a reference of 3 chunks cannot be split in 2 equal parts"
    ),
    "chunk(0, Buffer.input, 0).copy(1, ch=-2)": (
        "prog.py:3: sendtb, recvtb and ch are (-1, -1, -2): expected numbers from 0, or -1 if "
        "not given"
    ),
    "chunk(0, Buffer.input, 0).copy(1, 'x', 2); chunk(1, 'x', 1).copy(0)": (
        "prog.py:3: uses a chunk that was never written: rank 1: x[1] is empty"
    ),
    "chunk(0, Buffer.input, 0).copy(1, 'x', 2); chunk(1, 'x', 2).group(chunk(1, 'x', 2)).copy(0, "
    "'y', 1); chunk(0, 'y', 0, 2)"
    " or chunk(0, 'y', 1).group(Ref(0, 'y', 0, 1, chunk(0, 'y', 1).prog)).copy(2)": (
        "prog.py:3: rank 0: 'y'[0] was never written"
    ),
    "with MSCCLProgram('q', fully_connected(4), AllReduce(4, 4, True), 1): pass": (
        "prog.py:3: There is already a MSCCL Program in context"
    ),
    "1 / 0": "prog.py:3: ZeroDivisionError: division by zero",
    "raise ValueError('no good')": "prog.py:3: ValueError: no good",
    "sys.exit(3)": "prog.py:3: the program ends itself with status 3",
    "sys.exit('no more')": "prog.py:3: the program ends itself with status 1: no more",
    "chunk(0, Buffer.input, 0).send(1)": (
        "prog.py:3: AttributeError: 'Ref' object has no attribute 'send'"
    ),
    "import os; os._exit(0)": (
        "prog.py: the program's process ended by status 0 before the program did"
    ),
}


@pytest.mark.parametrize("statement", REFUSALS)
def test_refused_statement_is_named_with_its_line(statement: str) -> None:
    assert refusal(PROGRAM + statement) == REFUSALS[statement]


RULES = {
    "x = 1": "no-program",
    "import mscclpp.language": "mscclpp-program",
    "MSCCLPPProgram()": "mscclpp-program",
}
WHOLE = {
    "x = 1": "prog.py: defines no MSCCLProgram",
    "sys.exit()": "prog.py:2: defines no MSCCLProgram: it called sys.exit in line 2",
    f"{PROGRAM}pass\n{PROGRAM}pass": (
        "prog.py: defines 2 programs: 1 'p' (all-reduce of 4 ranks, line 2), 2 'p' (all-reduce of "
        "4 ranks, line 4); choose one: -O program=NUMBER or -O program=NAME"
    ),
    "import mscclpp.language": (
        "prog.py:2: is a program of MSCCL++, not of MSCCLang; it was not executed; read it with "
        "--from mscclpp-program"
    ),
    "MSCCLPPProgram()": (
        "prog.py:2: is a program of MSCCL++ for msccl-tools, whose plans no release since July 2025"
        " loads; it was not executed; write it with mscclpp.language, the language of MSCCL++"
    ),
    "chunk(0, Buffer.input, 0)": "prog.py:2: No Program in context",
    "MSCCLProgram('p', ring(4), AllReduce(4, 4, True), 1, protocol='LL64')": (
        "prog.py:2: protocol 'LL64' is not one of Simple, LL, LL128"
    ),
    "MSCCLProgram('p', ring(4), AllReduce(3, 4, True), 1)": (
        "prog.py:2: the topology has 4 nodes, the collective 3 ranks"
    ),
    "MSCCLProgram('p', ring(4), AllReduce(4, 4, True), 0)": (
        "prog.py:2: 0 instances: expected 1 or more"
    ),
    "MSCCLProgram('p', ring(4), Collective(4, 4, True), 1)": (
        "prog.py:2: Collective does not define the contents of buffers: it has no init_buffers"
    ),
    "with with": "prog.py:2: is no Python program: invalid syntax",
    "with MSCCLProgram('p', ring(4), AllReduce(4, 4, True), 1):\n"
    "    chunk(0, Buffer.input, 0).copy(2)": ("prog.py:3: No link from 0 to 2"),
    "import argparse\np = argparse.ArgumentParser()\np.add_argument('n')\np.parse_args()": (
        "prog.py:5: the program ends itself with status 2: prog.py: error: the following "
        "arguments are required: n; if the program needs arguments, give them after --: FILE -- 8 1"
    ),
}


@pytest.mark.parametrize("text", WHOLE)
def test_refused_program_is_named_with_its_line(text: str) -> None:
    finding = refused(text)
    assert str(finding) == WHOLE[text]
    assert finding.code == RULES.get(text, finding.code)


def test_endless_program_is_stopped_with_its_line() -> None:
    message = refusal(PROGRAM + "while True: pass", time_limit=1)
    assert (
        message
        == "prog.py:3: the program did not end within 1 s of CPU time; if it needs longer: -O "
        "time_limit=SECONDS"
    )


@pytest.mark.once
def test_sleeping_program_is_stopped_with_its_line() -> None:
    finding = refused("import time\ntime.sleep(60)", time_limit=1)
    assert finding.code == "time-limit"
    assert str(finding).startswith("prog.py:3: the program did not end within 7 s by the clock")


_DAEMON = """\
import os, time
reader, writer = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.write(writer, str(os.getpid()).encode())
        time.sleep(300)
    os._exit(0)
open({file!r}, "wb").write(os.read(reader, 20))
"""


@pytest.mark.once
@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no subreapers")
@pytest.mark.parametrize("ending", [PROGRAM + "pass", "time.sleep(300)", "os._exit(0)", "1 / 0"])
def test_process_that_leaves_its_group_and_its_parent_ends_with_the_program(
    tmp_path: Path, ending: str
) -> None:
    file = tmp_path / "pid"
    text = _DAEMON.format(file=str(file)) + ending
    if "with" in ending:
        run(text, sandbox=False)
    else:
        refusal(text, time_limit=1, sandbox=False)
    assert not Path("/proc", file.read_text()).exists()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no subreapers")
def test_program_ends_with_the_process_that_reads_it(tmp_path: Path) -> None:
    file, program = tmp_path / "pid", tmp_path / "prog.py"
    program.write_text(IMPORTS + _DAEMON.format(file=str(file)) + "time.sleep(300)")
    command = [sys.executable, "-P", "-m", "hub_core.cli.main", "verify", str(program)]
    command += ["-O", "sandbox=off"]
    reader = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _wait_for(lambda: file.is_file() and file.read_text() != "")
    reader.kill()
    reader.wait()
    _wait_for(lambda: not Path("/proc", file.read_text()).exists())


def _wait_for(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_modules_of_the_working_folder_are_not_imported(tmp_path: Path) -> None:
    (tmp_path / "lurking.py").write_text("print('imported')")
    (tmp_path / "part").mkdir()
    program = tmp_path / "part" / "prog.py"
    program.write_text(f"{IMPORTS}import lurking\n{PROGRAM}pass")
    command = [sys.executable, "-m", "hub_core.cli.main", "verify", str(program)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "No module named 'lurking'" in done.stderr


def test_program_that_wants_too_much_memory_is_stopped_with_its_line() -> None:
    assert (
        refusal("x = [0] * 10**10", memory_limit=1 << 30)
        == "prog.py:2: needs more memory than the limit"
    )


def test_output_of_the_program_is_reported_and_kept_off_standard_output(
    capfd: pytest.CaptureFixture[str],
) -> None:
    reported: list[Diagnostic] = []
    run(PROGRAM + "print('hello'); import os; os.write(1, b'x')", reported)
    assert capfd.readouterr() == ("", "")
    assert [str(found) for found in reported] == [
        "prog.py:3: the output of the program is ignored: 'hello'"
    ]


def test_failed_check_is_reported_with_its_line() -> None:
    reported: list[Diagnostic] = []
    assert not verify(run(PROGRAM + "chunk(0, Buffer.input, 0).copy(1)\n    Check()", reported)).ok
    assert [(found.location.line, found.code) for found in reported] == [(4, "check-failed")]


def test_file_that_is_no_program_of_the_language_is_not_executed(tmp_path: Path) -> None:
    trace = tmp_path / "ran"
    source = Source.of_bytes("setup.py", f"open({str(trace)!r}, 'w')".encode())
    with pytest.raises(HubError, match=r"setup\.py: is no MSCCLang program.*it was not executed"):
        read(source, replace(OPTIONS, time_limit=5, memory_limit=1 << 30))
    assert not trace.exists()


def test_msccl_is_importable_for_the_program_only() -> None:
    read(samples()[0], OPTIONS)
    assert "msccl" not in sys.modules


def test_programs_with_the_former_names_of_the_language_are_read() -> None:
    ring = samples()[0].content().replace(b"msccl.", b"sccl.").replace(b"MSCCLP", b"SCCLP")
    assert verify(read(Source.of_bytes("ring.py", ring), OPTIONS)).ok
    text = ring.replace(b"import *", b"import SCCLProgram", 1)
    with pytest.raises(HubError, match="name 'chunk' is not defined"):
        read(Source.of_bytes("ring.py", text), OPTIONS)


def test_programs_import_modules_beside_them(tmp_path: Path) -> None:
    (tmp_path / "shared_part.py").write_text("def go(c):\n    c.copy(1, 'x', 0)\n")
    file = tmp_path / "prog.py"
    file.write_text(
        f"{IMPORTS}from shared_part import go\n{PROGRAM}go(chunk(0, Buffer.input, 0))\n"
    )
    algorithm = read(
        Source.of_bytes(str(file), file.read_bytes()),
        OPTIONS,
    )
    assert algorithm.steps.source_line.tolist() == [4, 4]


def test_arguments_are_split_as_in_a_shell() -> None:
    text = "assert sys.argv == ['prog.py', '8', 'two words'], sys.argv\n" + PROGRAM + "pass"
    run(text, arguments="8 'two words'")
    with pytest.raises(HubError, match="option arguments: No closing quotation"):
        run(text, arguments="8 'two")


def test_same_program_gives_the_same_algorithm_though_it_walks_sets() -> None:
    text = PROGRAM + "for n in {'a', 'b', 'c', 'd'}: chunk(0, Buffer.input, 0).copy(1, n, 0)"
    assert run(text).differences(run(text)) == []


def test_custom_check_that_refuses_stops_the_reading() -> None:
    text = (
        "class Mine(AllReduce):\n    def check(self, prog):\n"
        "        print('bad slot')\n        return False\n"
        'with MSCCLProgram("p", fully_connected(4), Mine(4, 4, True), 1):\n    pass'
    )
    assert (
        refusal(text) == "prog.py:6: the check of Mine refuses the result of the program; bad slot"
    )


def test_collective_in_place_with_two_buffers_is_reported() -> None:
    reported: list[Diagnostic] = []
    text = (
        "class Mine(Collective):\n    def init_buffers(self):\n"
        "        return [{Buffer.input: [Chunk(r, 0)], Buffer.output: [None]} for r in range(2)]\n"
        'with MSCCLProgram("p", fully_connected(2), Mine(2, 1, True), 1):\n    pass'
    )
    run(text, reported)
    assert [(found.location.line, found.code) for found in reported] == [(5, "two-buffers")]


SEVERAL = (
    PROGRAM.replace('"p"', '"first"')
    + "chunk(0, Buffer.input, 0).copy(1, 'x', 0); Check()\n"
    + PROGRAM.replace("4", "2")
    + "pass"
)


@pytest.mark.parametrize(("chosen", "ranks"), [("1", 4), ("first", 4), ("2", 2), ("p", 2)])
def test_one_of_several_programs_is_chosen_by_number_or_name(chosen: str, ranks: int) -> None:
    reported: list[Diagnostic] = []
    assert run(SEVERAL, reported, program=chosen).num_ranks == ranks
    # What is told of one program is not told of another.
    assert [found.code for found in reported] == ["check-failed"] * (ranks == 4)
    assert run(SEVERAL, arguments=f"--program {chosen}").num_ranks == ranks


@pytest.mark.parametrize("chosen", ["3", "0", "second"])
def test_program_that_is_not_there_is_a_usage_error_that_lists_all(chosen: str) -> None:
    with pytest.raises(UsageError, match=r"1 'first' .* 2 'p' "):
        run(SEVERAL, program=chosen)


def test_argument_of_the_name_program_stays_with_a_program_that_has_one() -> None:
    text = "# takes --program\nassert sys.argv[1:] == ['--program', '2']\n" + PROGRAM + "pass"
    assert run(text, arguments="--program 2").num_ranks == 4


def test_help_behind_the_separator_is_that_of_the_program() -> None:
    file = Path(__file__).parent / "programs" / "two_level_rings.py"
    command = [sys.executable, "-P", "-m", "hub_core.cli.main", "verify", str(file), "--", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    # The program printed its help, and there is nothing to verify.
    assert done.returncode == 1
    assert "usage: " in done.stderr
    assert "state channels, but no thread blocks" in done.stderr


def test_program_that_is_right_only_out_of_place_is_written_so(tmp_path: Path) -> None:
    program, out = tmp_path / "exchange.py", tmp_path / "exchange.xml"
    program.write_text(
        f"{IMPORTS}class Exchange(Collective):\n"
        "    def init_buffers(self):\n"
        "        return [{Buffer.input: [Chunk(r, 0)], Buffer.output: [None]} for r in range(2)]\n"
        "    def check(self, prog):\n        return True\n"
        'with MSCCLProgram("p", fully_connected(2), Exchange(2, 1, True), 1):\n'
        "    chunk(0, Buffer.input, 0).copy(1, Buffer.output, 0)\n"
        "    chunk(1, Buffer.input, 0).copy(0, Buffer.output, 0)\n"
    )
    command = [sys.executable, "-P", "-m", "hub_core.cli.main", "convert", str(program), "-o"]
    done = subprocess.run([*command, str(out)], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "-O mode=out-of-place" in done.stderr
    done = subprocess.run(
        [*command, str(out), "-O", "mode=out-of-place"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert 'inplace="0"' in out.read_text()


def test_arguments_behind_the_separator_reach_the_program() -> None:
    file = Path(__file__).parent / "programs" / "every_name.py"
    command = [sys.executable, "-P", "-m", "hub_core.cli.main", "verify", str(file)]
    done = subprocess.run(
        [*command, "--", "--all", "two words"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "2 ranks, 16 steps: correct as claimed" in done.stdout
    done = subprocess.run([*command, "--all"], capture_output=True, text=True, check=False)
    assert done.returncode == 2


def test_readers_of_other_formats_take_no_arguments(tmp_path: Path) -> None:
    file = tmp_path / "ring.xml"
    file.write_text("<algo/>")
    command = [sys.executable, "-P", "-m", "hub_core.cli.main", "verify", str(file), "--", "8"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "which takes no arguments, but '8' follows it" in done.stderr
