"""Whatever one installed plugin does, the program ends in bounded time, names it, and runs without it.

Each test starts the program as users do, in processes of its own, with a state folder of its own.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from hub_core.testing.probe import TRIAL_LIMIT_S

pytestmark = pytest.mark.once

MakePlugin = Callable[..., Path]
WHO = "plugin subject (dist-subject 0.7)"
INTERRUPTED = 130
# Far more than any start takes on a busy machine, far less than a plugin that hangs.
LIMIT_S = TRIAL_LIMIT_S + 60

CRASH = "import ctypes; ctypes.string_at(0)"
HANG = "import time\nwhile True: time.sleep(1)"
LIST = ("plugins", "list")
ADVERSARIES = {
    "raises": ("1 / 0", "ZeroDivisionError: division by zero (dist_subject.py:"),
    "raises-system-exit": (
        "raise SystemExit(0)",
        "it tried to end the program with status 0 (dist_subject.py:",
    ),
    "exits-at-once": (
        "import os; os._exit(0)",
        "it tried to end the program with status 0",
    ),
    "keeps-the-exit": (
        "from os import _exit as leave\n@hookimpl\ndef collhub_producers(): leave(7)",
        "it tried to end the program with status 7",
    ),
    "prints": ("print('{')", "prints while it loads: '{'"),
    "returns-text": (
        "@hookimpl\ndef collhub_producers(): return 'reader'",
        "collhub_producers returned str, expected a list",
    ),
    "offers-the-same-a-lot": (
        "@hookimpl\ndef collhub_consumers(): return [Simulator('s', 'd', 'm:f')] * 200_000",
        "collhub_consumers returned two simulators named 's'",
    ),
    "discovers-while-it-is-imported": (
        "import hub_core; raise ValueError(len(hub_core.discover().plugins) > 1)",
        "ValueError: True",
    ),
}


@dataclass(frozen=True)
class Program:
    """The program in processes that see the plugins of one test, and remember in its folder."""

    site: Path
    state: Path

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        path = os.pathsep.join(filter(None, (str(self.site), os.environ.get("PYTHONPATH"))))
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "hub_core.cli.main", *arguments],
            env={**os.environ, "PYTHONPATH": path, "XDG_STATE_HOME": str(self.state)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # A signal of the test reaches the program as that of a terminal does.
            process_group=0,
        )

    def run(self, *arguments: str) -> tuple[int, str, str]:
        process = self.start(*arguments)
        try:
            out, err = process.communicate(timeout=LIMIT_S)
        finally:
            process.kill()
        return process.returncode, out, err

    def marks(self) -> list[Path]:
        return sorted(self.state.glob("collhub/*/start-*"))

    def wait_for_import(self, process: subprocess.Popen[str]) -> None:
        """Wait until a start has noted that it imports the subject."""
        end = time.monotonic() + LIMIT_S
        while time.monotonic() < end and process.poll() is None:
            if any(mark.read_text().startswith("subject ") for mark in self.marks()):
                return
            time.sleep(0.05)
        pytest.fail("the start has not come to the import")


@pytest.fixture
def program(site: Path, tmp_path: Path) -> Program:
    return Program(site, tmp_path / "state")


def _status(out: str) -> str:
    """What `plugins list` says below its table of the subject."""
    (line,) = (line for line in out.splitlines() if line.startswith("subject is "))
    return line


@pytest.mark.parametrize(("code", "reason"), ADVERSARIES.values(), ids=ADVERSARIES.keys())
def test_start_goes_on_and_names_the_plugin(
    program: Program, make_plugin: MakePlugin, code: str, reason: str
) -> None:
    make_plugin("subject", code)
    status, out, err = program.run(*LIST)
    assert (status, err) == (0, "")
    assert reason in _status(out)
    assert program.marks() == []


@pytest.mark.parametrize(
    "code",
    ["print('noise')", "import os; os.write(1, b'noise')", "import os; os.system('echo noise')"],
    ids=["in-python", "natively", "by-a-process"],
)
def test_printing_plugin_leaves_the_output_alone(
    program: Program, make_plugin: MakePlugin, code: str
) -> None:
    make_plugin("subject", code)
    status, out, _ = program.run(*LIST, "--json")
    assert status == 0
    assert json.loads(out)["schema"] == "collhub/plugin-report-1"


def test_hanging_plugin_is_named_at_ctrl_c_and_skipped_from_then_on(
    program: Program, make_plugin: MakePlugin
) -> None:
    make_plugin("subject", HANG)
    first = program.start(*LIST)
    program.wait_for_import(first)
    first.send_signal(signal.SIGINT)
    _, err = first.communicate(timeout=LIMIT_S)
    assert (first.returncode, err) == (
        INTERRUPTED,
        f"error: interrupted: {WHO} was being imported\n",
    )
    # The next start tries it in a process with a limit, the one after that does not.
    reason = f"a process that imports it was not done after {TRIAL_LIMIT_S:g} s"
    for expected_notes in (
        [f"the last start ended while {WHO} was imported: trying it in a process"],
        [],
    ):
        status, out, err = program.run(*LIST)
        assert status == 0
        cure = "'collhub plugins enable subject' lets it in again"
        warning = f"warning: {WHO} is skipped: {reason}; {cure} [skipped-plugin]"
        assert err.splitlines() == [*expected_notes, warning]
        assert _status(out) == f"subject is broken: skipped, since {reason}; {cure}"


def test_plugin_that_hangs_whatever_comes_is_skipped_after_a_kill(
    program: Program, make_plugin: MakePlugin
) -> None:
    deaf = "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])\n"
    make_plugin("subject", deaf + HANG)
    first = program.start(*LIST)
    program.wait_for_import(first)
    first.kill()
    first.communicate(timeout=LIMIT_S)
    assert "was not done after" in _status(program.run(*LIST)[1])


def test_crashing_plugin_is_told_by_its_file_and_skipped_from_then_on(
    program: Program, make_plugin: MakePlugin
) -> None:
    make_plugin("subject", CRASH)
    status, _, err = program.run(*LIST)
    assert status == -signal.SIGSEGV
    assert "Fatal Python error: Segmentation fault" in err
    assert "dist_subject.py" in err
    assert "a process that imports it was killed by SIGSEGV" in _status(program.run(*LIST)[1])


def test_plugin_that_ends_the_process_natively_is_skipped_at_the_next_start(
    program: Program, make_plugin: MakePlugin
) -> None:
    make_plugin("subject", "import ctypes; ctypes.CDLL(None)._exit(0)")
    assert program.run(*LIST) == (0, "", "")
    assert "a process that imports it ended with status 0" in _status(program.run(*LIST)[1])


def test_plugin_that_raises_an_interrupt_is_named_and_skipped_from_then_on(
    program: Program, make_plugin: MakePlugin
) -> None:
    make_plugin("subject", "raise KeyboardInterrupt")
    status, _, err = program.run(*LIST)
    assert (status, err) == (INTERRUPTED, f"error: interrupted: {WHO} was being imported\n")
    assert "was killed by SIGINT" in _status(program.run(*LIST)[1])


def test_enabled_plugin_is_imported_again(program: Program, make_plugin: MakePlugin) -> None:
    module = make_plugin("subject", CRASH)
    program.run(*LIST)
    assert "is skipped" in program.run(*LIST)[2]
    module.write_text(module.read_text().replace(CRASH, ""))
    assert "is skipped" in program.run(*LIST)[2]
    status, out, err = program.run("plugins", "enable", "dist-subject")
    assert (status, out) == (0, "")
    assert err == f"{WHO} is imported again from the next start on\n"
    status, out, err = program.run(*LIST)
    assert (status, err) == (0, "")
    assert re.search(r"^subject +dist-subject +0\.7 +loaded", out, re.MULTILINE)
    assert program.run("plugins", "enable", "subject")[2] == f"{WHO} was not kept out\n"


def test_another_version_of_a_skipped_plugin_is_imported(
    program: Program, make_plugin: MakePlugin
) -> None:
    module = make_plugin("subject", CRASH)
    program.run(*LIST)
    program.run(*LIST)
    module.write_text(module.read_text().replace(CRASH, ""))
    metadata = program.site / "dist_subject-0.7.dist-info" / "METADATA"
    metadata.write_text(metadata.read_text().replace("Version: 0.7", "Version: 0.8"))
    status, out, err = program.run(*LIST)
    assert (status, err) == (0, "")
    assert re.search(r"^subject +dist-subject +0\.8 +loaded", out, re.MULTILINE)


def test_plugin_whose_start_was_killed_from_outside_is_acquitted(
    program: Program, make_plugin: MakePlugin
) -> None:
    make_plugin("subject", "import time; time.sleep(1)")
    first = program.start(*LIST)
    program.wait_for_import(first)
    first.kill()
    first.communicate(timeout=LIMIT_S)
    status, out, err = program.run(*LIST)
    assert status == 0
    assert err == f"the last start ended while {WHO} was imported: trying it in a process\n"
    assert re.search(r"^subject +dist-subject +0\.7 +loaded", out, re.MULTILINE)
    assert program.marks() == []


def test_starts_at_the_same_time_accuse_nobody(program: Program, make_plugin: MakePlugin) -> None:
    make_plugin("subject", "import time; time.sleep(0.5)")
    starts = [program.start(*LIST) for _ in range(5)]
    ends = [start.communicate(timeout=LIMIT_S) for start in starts]
    assert [(start.returncode, err) for start, (_, err) in zip(starts, ends, strict=True)] == [
        (0, "")
    ] * 5
    assert program.marks() == []


def test_folder_that_cannot_be_written_changes_nothing(
    program: Program, make_plugin: MakePlugin
) -> None:
    make_plugin("subject", "")
    program.state.write_text("this is no folder")
    status, out, err = program.run(*LIST)
    assert (status, err) == (0, "")
    assert re.search(r"^subject +dist-subject +0\.7 +loaded", out, re.MULTILINE)


def test_plugin_with_a_long_or_odd_name_is_skipped_like_any_other(
    program: Program, make_plugin: MakePlugin
) -> None:
    make_plugin("subject", CRASH)
    info = program.site / "dist_subject-0.7.dist-info"
    metadata = (info / "METADATA").read_text().replace("Version: 0.7", f"Version: 0.7 ä{'ü' * 500}")
    (info / "METADATA").write_text(metadata)
    (info / "entry_points.txt").write_text("[collhub.plugins]\nodd name = dist_subject\n")
    program.run(*LIST)
    assert "killed by SIGSEGV" in program.run(*LIST)[1]
    assert "is imported again" in program.run("plugins", "enable", "odd name")[2]
    assert program.run(*LIST)[0] == -signal.SIGSEGV


def test_pytest_suite_of_the_kit_survives_the_plugin(
    program: Program, make_plugin: MakePlugin
) -> None:
    make_plugin("subject", CRASH)
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "--collhub-plugin", "subject", "--pyargs", "hub_core.testing.suite"],
        env={**os.environ, "PYTHONPATH": str(program.site)},
        cwd=program.site,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "is broken: a process that imports it was killed by SIGSEGV" in done.stdout


def test_folder_full_of_nonsense_changes_nothing(program: Program, make_plugin: MakePlugin) -> None:
    make_plugin("subject", "")
    program.run(*LIST)
    (folder,) = program.state.glob("collhub/*")
    (folder / "skipped.json").write_text("[")
    (folder / "start-1-x").write_bytes(b"\xff\x00\n" * 1000)
    (folder / "start-2-x").mkdir()
    status, out, err = program.run(*LIST)
    assert (status, err) == (0, "")
    assert re.search(r"^subject +dist-subject +0\.7 +loaded", out, re.MULTILINE)


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (HANG, f"was not done after {TRIAL_LIMIT_S:g} s"),
        (CRASH, "was killed by SIGSEGV"),
    ],
    ids=["hangs", "crashes"],
)
@pytest.mark.parametrize("command", [("doctor",), ("plugins", "check", "subject")], ids=" ".join)
def test_doctor_and_check_survive_at_the_first_start(
    program: Program, make_plugin: MakePlugin, command: tuple[str, ...], code: str, reason: str
) -> None:
    make_plugin("subject", code)
    status, out, err = program.run(*command)
    assert status == 3
    text = f"dist-subject 0.7 is broken: a process that imports it {reason}"
    said = out if command == ("doctor",) else err.replace("plugin subject (dist-subject 0.7)", "")
    assert text.removeprefix("dist-subject 0.7" if said is not out else "") in said


def test_thread_left_behind_does_not_keep_the_program(
    program: Program, make_plugin: MakePlugin
) -> None:
    code = "import threading\nthreading.Thread(target=threading.Event().wait, name='stuck').start()"
    make_plugin("subject", code)
    status, out, err = program.run(*LIST)
    assert status == 0
    assert _status(out) == "subject is loaded: leaves the thread 'stuck' behind"
    assert err == "not waited for: stuck, which a plugin left running\n"


def test_thread_that_ends_in_time_is_waited_for(program: Program, make_plugin: MakePlugin) -> None:
    code = "import threading, time\nthreading.Thread(target=time.sleep, args=(0.5,)).start()"
    make_plugin("subject", code)
    status, _, err = program.run(*LIST)
    assert (status, err) == (0, "")


def test_check_names_what_a_plugin_replaces(program: Program, make_plugin: MakePlugin) -> None:
    code = "import builtins, json, os\njson.loads = lambda text, real=json.loads: real(text)\n"
    make_plugin("subject", code + "builtins.sorted = lambda *a, real=sorted, **k: real(*a, **k)")
    status, out, _ = program.run("plugins", "check", "subject")
    assert status == 3
    assert "loading the plugin replaces builtins.sorted, json.loads" in out


def test_huge_metadata_are_not_read(program: Program, make_plugin: MakePlugin) -> None:
    make_plugin("subject", "")
    info = program.site / "dist_subject-0.7.dist-info"
    for name in ("METADATA", "entry_points.txt"):
        # Sparse files: they say that they are larger than the memory.
        os.truncate(info / name, 1 << 42)
    (program.site / "other-1.0.dist-info").mkdir()
    (program.site / "other-1.0.dist-info" / "METADATA").touch()
    os.truncate(program.site / "other-1.0.dist-info" / "METADATA", 1 << 42)
    status, out, _ = program.run(*LIST)
    assert status == 0
    assert "dist-subject" in out


def test_doctor_names_a_requirement_that_no_tool_can_read(
    program: Program, make_plugin: MakePlugin
) -> None:
    make_plugin("subject", "", requires="collhub >< 3")
    status, out, _ = program.run("doctor")
    assert status == 3
    text = "BAD  subject: dependencies: not met: 'collhub >< 3' (no tool can read it)"
    assert text in out


def test_doctor_names_a_slow_import_and_its_time(program: Program, make_plugin: MakePlugin) -> None:
    make_plugin("subject", "import time; time.sleep(2.5)")
    status, out, _ = program.run("doctor")
    assert status == 3
    found = re.search(
        r"^BAD  subject: plugin: dist-subject 0\.7 is loaded, imported in (\d+) ms; ", out, re.M
    )
    assert found is not None
    assert int(found[1]) >= 2500
