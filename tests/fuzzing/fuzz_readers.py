"""Coverage-guided fuzzing of all installed readers, through the whole program.

    python tests/fuzzing/fuzz_readers.py [--executions 400] [--seed 1] [--seconds S] [--reader NAME]
        [--jobs 2] [--keep FOLDER] [--json]

Inputs begin with the samples of the readers, the output of the writers for the samples of the
conformance kit, and the files in `corpus/<reader>/`. Mutated inputs that reach lines of the hub or
its plugins that no input reached before are mutated further. The number of executions, per reader,
limits the work, so that a seed gives the same inputs on every machine; `--seconds` may end a run
earlier, which the report says.

An execution is `collhub inspect FILE`, `collhub topology show FILE` or, for measured times,
`collhub calibrate FILE`. Defects: an exit code other
than 0, 1 and 2; a traceback; control characters in messages; an error that does not name the input;
a process, a connection or a file outside the folder of the input; more than 5 s of CPU time, or
500 MB more memory than before; the end of the process. `--keep` stores the inputs of defects, and
those that reached new lines.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import multiprocessing
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import hub_core
from hub_core.cli.command_context import Session
from hub_core.cli.main import main as run_program
from hub_core.model import HubError
from hub_core.plugin_api import (
    FormatReader,
    FormatWriter,
    Layout,
    MeasurementReader,
    Source,
    TopologyReader,
    WorkloadReader,
    WorkloadWriter,
    resolve,
)
from hub_core.testing import sample_workloads
from hub_core.testing.checked_plugin import load_declared_samples, render, render_samples, to_source

CORPUS = Path(__file__).with_name("corpus")
MAX_CPU_S = 5
MAX_MEMORY_BYTES = 500 * 10**6
# Of samples and of corpus files; larger ones take longer and reach nothing else.
MAX_SEED_BYTES = 40_000
MAX_INPUT_BYTES = 100_000

# Facts that files of measured times may lack are given for all of them.
CALIBRATE = (
    *("calibrate", "--collective", "all-reduce", "--ranks", "8", "--nodes", "1", "--like", "H100"),
    *("--check", "h100"),
)
COMMANDS: dict[type[Any], tuple[str, ...]] = {
    FormatReader: ("inspect",),
    WorkloadReader: ("inspect",),
    TopologyReader: ("topology", "show"),
    MeasurementReader: CALIBRATE,
}
# Formats whose inputs need an optional library (pyarrow) to be written: their own tests mutate them.
OPTIONAL = frozenset(("nsys-parquet",))
FOLDER_PREFIXES = {"inspect": "", "topology": "topology-", "calibrate": "measurements-"}

Parts = Mapping[str, bytes]
"""The files of an input by name, relative to its folder."""

INTERESTING = (
    *(b"-1", b"0", b"1", b"2", b"7", b"255", b"65536", b"2147483647", b"2147483648", b"4294967296"),
    *(b"9223372036854775807", b"9223372036854775808", b"18446744073709551616", b"1e308", b"1e-320"),
    *(b"10" * 20, b"9" * 5000, b"NaN", b"Infinity", b"null", b"true", b'""', b"[]", b"{}", b"[[]]"),
    *(b"\x00", b"\x1b[31m", b"\xff\xfe", "\u202e".encode(), b"../../etc/passwd", b"&a;", b"*a"),
)
NUMBER = re.compile(rb"-?\d+(?:\.\d+)?")
TOKEN = re.compile(rb"[A-Za-z_][A-Za-z_0-9.-]*|-?\d+(?:\.\d+)?")
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
# Code that runs alike for every input: tracing it takes longer than all readers.
UNTRACED = re.compile(r"hub_core/(?:cli|registry|plugin_api|installed)|/plugin\.py\Z")
# Audit events that no reading may cause; `open` is looked at separately.
FORBIDDEN_EVENTS = (
    *("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork"),
    *("os.forkpty", "socket.connect", "socket.bind", "socket.getaddrinfo", "pty.spawn"),
    *("os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.chmod", "os.symlink", "os.link"),
)
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


@dataclass(frozen=True)
class Target:
    """A reader under test: its name, its layout, and the command that reads with it."""

    name: str
    layout: Layout
    suffix: str
    command: tuple[str, ...]

    @property
    def folder(self) -> str:
        """The folder of this reader in the corpus; readers of one name may be of two kinds."""
        return FOLDER_PREFIXES[self.command[0]] + self.name


@dataclass
class Outcome:
    """The result for one reader. `lines`: lines of code that all inputs together reached."""

    reader: str
    executions: int = 0
    seeds: int = 0
    lines: int = 0
    kept: int = 0
    is_complete: bool = True
    defects: list[str] = field(default_factory=list)


class TooLong(BaseException):
    """Ends an execution that used up its CPU time."""


class Timer:
    """The handler of the timer of one execution. `is_over`: whether the CPU time was used up."""

    def __init__(self) -> None:
        self.is_over = False

    def stop(self, number: int, frame: FrameType | None) -> None:
        """End the execution; whoever catches the exception, the flag stays."""
        self.is_over = True
        raise TooLong


def targets() -> list[Target]:
    """All installed readers that do not execute their input and need no optional library."""
    registry = hub_core.discover()
    found: dict[str, Target] = {}
    for kind, command in COMMANDS.items():
        for provided in registry.all(kind):
            offer: Any = provided.offer
            if getattr(offer, "executes_source", False) or provided.name in OPTIONAL:
                continue
            suffix = offer.format.suffixes[0] if offer.format.suffixes else ""
            target = Target(provided.name, offer.format.layout, suffix, command)
            found.setdefault(target.folder, target)
    return [found[name] for name in sorted(found)]


def seeds_of(target: Target) -> list[Parts]:
    """Valid inputs of a reader: its samples, writers' outputs, and the stored corpus."""
    registry = hub_core.discover()
    sources: list[Source] = []
    for kind in (kind for kind, command in COMMANDS.items() if command == target.command):
        for provided in registry.all(kind):
            offer: Any = provided.offer
            if provided.name == target.name and isinstance(offer, MeasurementReader):
                requests: Any = resolve(offer.samples)()
                sources += [request.source for request in requests]
            elif provided.name == target.name:
                sources += load_declared_samples(offer).values()
    if target.command[0] == "inspect":
        sources += _written(target)
    parts = [{part.name: part.load() for part in source.parts} for source in sources]
    unique = {repr(sorted(one.items())): one for one in [*parts, *_stored(target)]}
    return [one for one in unique.values() if sum(map(len, one.values())) <= MAX_SEED_BYTES]


def _written(target: Target) -> list[Source]:
    registry = hub_core.discover()
    sources = []
    for algorithms in registry.all(FormatWriter):
        if algorithms.name == target.name:
            samples = render_samples(algorithms.offer).values()
            sources += [to_source(one, algorithms.offer.format) for one in samples]
    for workloads in registry.all(WorkloadWriter):
        if workloads.name in (target.name, target.name.removesuffix("-job")):
            for workload in sample_workloads().values():
                with contextlib.suppress(HubError):
                    written = render(workloads.offer, workload)
                    sources.append(to_source(written, workloads.offer.format))
    return sources


def _stored(target: Target) -> Iterator[Parts]:
    """The inputs in `corpus/<reader>/`: files, and folders of inputs of several files."""
    folder = CORPUS / target.folder
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.is_file():
            yield {f"stored{target.suffix}": path.read_bytes()}
        else:
            files = sorted(file for file in path.rglob("*") if file.is_file())
            yield {str(file.relative_to(path)): file.read_bytes() for file in files}


class Mutator:
    """Draws mutated inputs; `words` are tokens of all seeds, which replace tokens of an input."""

    def __init__(self, draw: random.Random, words: Sequence[bytes]) -> None:
        self.draw = draw
        self.words = words

    def mutated(self, parts: Parts, other: Parts) -> dict[str, bytes]:
        """An input with one file changed 1 to 4 times, rarely without that file or another's."""
        result = dict(parts)
        name: str = self.draw.choice(sorted(result))
        if len(result) > 1 and self.draw.random() < 0.03:
            del result[name]
            return result
        content = result[name]
        for _ in range(self.draw.choice((1, 1, 1, 2, 3, 4))):
            content = self._change(content, self.draw.choice(sorted(other.values())))
        result[name] = content[:MAX_INPUT_BYTES]
        return result

    def _change(self, content: bytes, other: bytes) -> bytes:
        draw = self.draw
        changes = (self._bytes, self._range, self._token, self._number, self._line, self._json)
        change = draw.choice((*changes, self._json, self._number))
        if draw.random() < 0.05:
            start, end = sorted(draw.randrange(len(other) + 1) for _ in range(2))
            place = draw.randrange(len(content) + 1)
            return content[:place] + other[start:end] + content[place:]
        return change(content)

    def _bytes(self, content: bytes) -> bytes:
        data = bytearray(content)
        for _ in range(self.draw.choice((1, 1, 2, 8))):
            place = self.draw.randrange(len(data) + 1)
            if place == len(data):
                data += bytes((self.draw.randrange(256),))
            elif self.draw.random() < 0.5:
                data[place] ^= 1 << self.draw.randrange(8)
            else:
                data[place] = self.draw.choice((0, 1, 127, 128, 255, self.draw.randrange(256)))
        return bytes(data)

    def _range(self, content: bytes) -> bytes:
        start = self.draw.randrange(len(content) + 1)
        end = min(len(content), start + self.draw.choice((1, 4, 16, 256, len(content))))
        match self.draw.choice(("cut", "repeat", "end", "swap")):
            case "cut":
                return content[:start] + content[end:]
            case "repeat":
                return content[:end] + content[start:end] * self.draw.choice((1, 2, 20))
            case "end":
                return content[:start]
            case _:
                return content[:start] + content[end:] + content[start:end]

    def _replaced(self, pattern: re.Pattern[bytes], content: bytes, values: Any) -> bytes:
        found = list(pattern.finditer(content))
        if not found:
            return self._bytes(content)
        place = self.draw.choice(found)
        return content[: place.start()] + self.draw.choice(values) + content[place.end() :]

    def _token(self, content: bytes) -> bytes:
        return self._replaced(TOKEN, content, self.words or INTERESTING)

    def _number(self, content: bytes) -> bytes:
        return self._replaced(NUMBER, content, INTERESTING)

    def _line(self, content: bytes) -> bytes:
        lines = content.split(b"\n")
        place, other = (self.draw.randrange(len(lines)) for _ in range(2))
        match self.draw.choice(("cut", "repeat", "swap")):
            case "cut":
                del lines[place]
            case "repeat":
                lines.insert(other, lines[place])
            case _:
                lines[place], lines[other] = lines[other], lines[place]
        return b"\n".join(lines)

    def _json(self, content: bytes) -> bytes:
        """A JSON document with one value replaced, removed or repeated; else another change."""
        try:
            root = json.loads(content)
        except (ValueError, RecursionError):
            return self._token(content)
        holders = list(_holders(root))
        if not holders:
            return self._number(content)
        holder, key = self.draw.choice(holders)
        match self.draw.choice(("value", "value", "remove", "repeat", "nest")):
            case "value":
                values = (None, True, -1, 0, 2**31, 2**63, 10**30, 1e308, "", "x" * 300, [], {})
                _, source = self.draw.choice(holders), self.draw.choice(holders)
                holder[key] = self.draw.choice((*values, source[0][source[1]]))
            case "remove":
                del holder[key]
            case "repeat" if isinstance(holder, list):
                holder.insert(key, holder[key])
            case _:
                holder[key] = self.draw.choice(([holder[key]], {"x": holder[key]}))
        try:
            return json.dumps(root).encode()
        except (ValueError, RecursionError, UnicodeError):
            return content


def _holders(root: Any) -> Iterator[tuple[Any, Any]]:
    """All (container, key) of a JSON value; the limit keeps large documents fast."""
    waiting, count = [root] if isinstance(root, dict | list) else [], 0
    while waiting and count < 2000:
        value = waiting.pop()
        keys = list(value) if isinstance(value, dict) else range(len(value))
        for key in keys:
            count += 1
            yield value, key
            if isinstance(value[key], dict | list):
                waiting.append(value[key])


class Coverage:
    """Lines of the hub and its plugins that were executed, as (code object, line)."""

    def __init__(self) -> None:
        self.lines: set[tuple[CodeType, int]] = set()
        self._is_new = False
        self._is_watched: dict[CodeType, bool] = {}

    @contextlib.contextmanager
    def tracing(self) -> Iterator[None]:
        """Record the lines of the block."""
        self._is_new = False
        sys.settrace(self._on_call)
        try:
            yield
        finally:
            sys.settrace(None)

    @property
    def is_new(self) -> bool:
        """Whether the last block reached a line that no earlier block reached."""
        return self._is_new

    def _on_call(self, frame: FrameType, event: str, argument: object) -> Any:
        code = frame.f_code
        is_watched = self._is_watched.get(code)
        if is_watched is None:
            file = code.co_filename
            is_watched = ("collhub" in file or "hub_core" in file) and not UNTRACED.search(file)
            self._is_watched[code] = is_watched
        return self._on_line if is_watched else None

    def _on_line(self, frame: FrameType, event: str, argument: object) -> Any:
        if event == "line":
            key = frame.f_code, frame.f_lineno
            if key not in self.lines:
                self.lines.add(key)
                self._is_new = True
        return self._on_line


class Watch:
    """Notes forbidden audit events while it is active. A hook stays for the life of a process."""

    def __init__(self) -> None:
        self.folder: str | None = None
        self.events: list[str] = []
        # Kernels are compiled and cached when they are first used.
        home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        self.cache = f"{home}/collhub"
        sys.addaudithook(self._hook)

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.folder is None:
            return
        path = str(arguments[0]) if arguments else ""
        is_allowed = path.startswith((str(self.folder), self.cache)) or "__pycache__" in path
        is_writing = event == "open" and isinstance(arguments[0], str) and arguments[2] & WRITING
        if (is_writing or event in FORBIDDEN_EVENTS) and not is_allowed and path != os.devnull:
            self.events.append(f"{event} {path[:100]}")


def execute(
    target: Target, parts: Parts, folder: Path, watch: Watch, *, is_seed: bool, with_format: bool
) -> str:
    """Run the program on an input in an empty folder; the defect, or an empty text."""
    for name, content in parts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    path = folder / input_name(target, parts)
    command = [*target.command, str(path)]
    if with_format:
        command += ["--from", target.name]
    out, err = io.StringIO(), io.StringIO()
    watch.events, watch.folder = [], str(folder.parent)
    # The first inputs, which are valid, import the reader and compile its kernels.
    signal.setitimer(signal.ITIMER_PROF, 0 if is_seed else MAX_CPU_S)
    timer = Timer()
    signal.signal(signal.SIGPROF, timer.stop)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run_program(command)
    except BaseException as error:
        if not timer.is_over:
            return f"{type(error).__name__}: {error}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        watch.folder = None
    if timer.is_over:
        return f"took more than {MAX_CPU_S} s of CPU time"
    message = err.getvalue()
    if watch.events:
        return watch.events[0]
    if code not in (0, 1, 2):
        return f"exit code {code}: {message[:300]}"
    if "Traceback" in message:
        return f"traceback: {message[:300]}"
    if CONTROL.search(message) or CONTROL.search(out.getvalue()):
        return f"control character: {(message + out.getvalue())[:300]!r}"
    if code == 1 and str(folder) not in message and path.name not in message:
        return f"the error does not name the input: {message[:300]}"
    return ""


def input_name(target: Target, parts: Parts) -> str:
    """The name of an input for the program: its file, its folder, or the prefix of its files."""
    names = sorted(parts)
    if target.layout is Layout.FOLDER:
        return names[0].partition("/")[0]
    if target.layout is Layout.PREFIX and len(names) > 1:
        return re.sub(r"\.\d+\.[^/]*\Z", "", names[0])
    return names[0]


def fuzz(target: Target, executions: int, seed: int, end: float, keep: Path | None) -> Outcome:
    """Fuzz one reader in this process."""
    outcome = Outcome(target.folder)
    pool = [dict(one) for one in seeds_of(target)]
    outcome.seeds = len(pool)
    if not pool:
        outcome.defects.append(
            f"the reader {target.name} has no input to begin with: give its offer `samples`, or "
            f"store a small file in tests/fuzzing/corpus/{target.folder}"
        )
        return outcome
    draw = random.Random(f"{seed} {target.folder}")
    tokens = {token[0] for one in pool for text in one.values() for token in TOKEN.finditer(text)}
    mutator = Mutator(draw, sorted(tokens)[:5000])
    coverage, watch = Coverage(), Watch()
    waiting = list(pool)
    # Plugins are discovered once instead of for every input; this process ends after this reader.
    registry = hub_core.discover()
    Session.registry = lambda session: registry  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as place:
        # The program records its starts in a folder of the user.
        os.environ["XDG_STATE_HOME"] = f"{place}/state"
        limit_memory()
        for number in range(executions + len(waiting)):
            if time.monotonic() > end:
                outcome.is_complete = False
                break
            is_seed = number < len(waiting)
            parts = (
                waiting[number]
                if is_seed
                else mutator.mutated(draw.choice(pool), draw.choice(pool))
            )
            folder = Path(place) / "input"
            folder.mkdir()
            with coverage.tracing():
                defect = execute(
                    target,
                    parts,
                    folder,
                    watch,
                    is_seed=is_seed,
                    with_format=is_seed or draw.random() < 0.8,
                )
            shutil.rmtree(folder)
            outcome.executions += 1
            if defect:
                outcome.defects.append(f"{store(keep, target, parts, 'defects')}: {defect}")
            elif coverage.is_new and not is_seed:
                pool.append(parts)
                outcome.kept += 1
                store(keep, target, parts, "corpus")
    outcome.lines = len(coverage.lines)
    return outcome


def limit_memory() -> None:
    """Let this process allocate at most `MAX_MEMORY_BYTES` more than now."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MAX_MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def store(keep: Path | None, target: Target, parts: Parts, kind: str) -> str:
    """Store an input, named by its digest; its path, or the start of it if nothing is kept."""
    digest = hashlib.sha256(repr(sorted(parts.items())).encode()).hexdigest()[:12]
    if keep is None:
        return f"{target.folder} {digest} {next(iter(parts.values()))[:200]!r}"
    place = keep / kind / target.folder / digest
    for name, content in parts.items():
        path = place if len(parts) == 1 and "/" not in name else place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return str(place)


def _fuzz_and_send(connection: Connection, *arguments: Any) -> None:
    connection.send(fuzz(*arguments))


def fuzz_all(
    chosen: Sequence[Target], executions: int, seed: int, end: float, keep: Path | None, jobs: int
) -> Iterator[Outcome]:
    """Fuzz readers, each in a process of its own; the results in the order of `chosen`."""
    context = multiprocessing.get_context("fork")
    running: list[tuple[Target, Any, Connection]] = []
    waiting = list(chosen)
    while waiting or running:
        while waiting and len(running) < jobs:
            target = waiting.pop(0)
            receiver, sender = context.Pipe(duplex=False)
            arguments = (sender, target, executions, seed, end, keep)
            process = context.Process(target=_fuzz_and_send, args=arguments)
            process.start()
            sender.close()
            running.append((target, process, receiver))
        target, process, receiver = running.pop(0)
        try:
            yield receiver.recv()
        except EOFError:
            process.join()
            defect = f"the process ended with code {process.exitcode}"
            yield Outcome(target.folder, is_complete=False, defects=[defect])
        process.join()


def main() -> None:
    """Fuzz the readers, print a line for each, and exit with 1 if there are defects."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--executions", type=int, default=400, help="per reader")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, help="stop earlier, after S seconds")
    parser.add_argument("--reader", action="append", help="a name in the report; all by default")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--keep", type=Path, help="a folder for inputs")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    chosen = [one for one in targets() if not asked.reader or one.folder in asked.reader]
    end = float("inf") if asked.seconds is None else time.monotonic() + asked.seconds
    outcomes = []
    for outcome in fuzz_all(chosen, asked.executions, asked.seed, end, asked.keep, asked.jobs):
        outcomes.append(outcome)
        if not asked.json:
            note = "" if outcome.is_complete else ", stopped early"
            print(
                f"{outcome.reader}: {outcome.executions} executions, {outcome.seeds} seeds, "
                f"{outcome.lines} lines, {outcome.kept} kept, {len(outcome.defects)} defects{note}",
                *outcome.defects,
                sep="\n  ",
                flush=True,
            )
    total = sum(outcome.executions for outcome in outcomes)
    defects = sum(len(outcome.defects) for outcome in outcomes)
    if asked.json:
        readers = [asdict(outcome) for outcome in outcomes]
        print(json.dumps({"seed": asked.seed, "executions": total, "readers": readers}, indent=2))
    else:
        print(f"{total} executions, {defects} defects")
    sys.exit(1 if defects else 0)


if __name__ == "__main__":
    main()
