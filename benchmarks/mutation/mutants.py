"""Change the modules that give verdicts at random, and count the changes that the tests notice.

    python benchmarks/mutation/mutants.py [--group NAME] [--mutants 40] [--seed 1] [--jobs 2]
        [--json]

A mutant is one change of one line: another comparison, operator or constant, a negated condition,
`and` for `or`, or a statement left out. Not changed: constants of modules (limits), annotations,
decorators, texts and the arguments of errors, which say nothing about a verdict. Each mutant runs
in a process of its own, in which an import hook gives the changed module; the checkout stays as it
is. It gets the tests that execute the changed line, the fastest first, up to `MAX_TESTS_S` of them,
and is killed if a test fails or the tests take ten times as long as without the change.

`explained.toml` lists survivors that are no defect of the tests, each with the reason, by module,
line of code and change; entries without such a line or change are refused. Kernels of groups with
kernels run as Python. Needs what the tests need.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import io
import json
import multiprocessing
import os
import random
import re
import signal
import sys
import time
import tomllib
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXPLAINED = Path(__file__).with_name("explained.toml")
MAX_TESTS_S = 60.0
# The first tests that a mutant gets; most mutants need no more.
FIRST_TESTS_S = 5.0
# Seconds to trace one test file; slower ones are left out.
MAX_TRACE_S = 400.0

# By group: the modules, relative to a folder of packages, and the folders or files of their tests.
GROUPS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "verification": (".", "hub_core/verification", ("tests/verification",)),
    "certificates": (
        "plugins/synthesis/src",
        "collhub_certificates",
        ("plugins/synthesis/tests/certificates",),
    ),
    "msccl-reading": (
        "plugins/msccl/src",
        "collhub_msccl/reading",
        ("plugins/msccl/tests/msccl/reading",),
    ),
    "msccl-load-checks": (
        "plugins/msccl/src",
        "collhub_msccl/runtimes",
        ("plugins/msccl/tests/msccl/runtimes",),
    ),
    "mscclpp-reading": (
        "plugins/msccl/src",
        "collhub_mscclpp/reading",
        (
            "plugins/msccl/tests/mscclpp/reading",
            "plugins/msccl/tests/mscclpp/checking",
            "plugins/msccl/tests/mscclpp/test_executor_model.py",
            "plugins/msccl/tests/mscclpp/writing/test_plans_written.py",
        ),
    ),
    "mscclpp-load-checks": (
        "plugins/msccl/src",
        "collhub_mscclpp/checking",
        (
            "plugins/msccl/tests/mscclpp/checking",
            "plugins/msccl/tests/mscclpp/plans",
            "plugins/msccl/tests/mscclpp/reading",
            "plugins/msccl/tests/mscclpp/test_executor_model.py",
            "plugins/msccl/tests/mscclpp/test_plugin.py",
            "plugins/msccl/tests/mscclpp/language/test_defects.py",
            "plugins/msccl/tests/mscclpp/writing/test_plans_written.py",
        ),
    ),
}
COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE,
    ast.GtE: ast.Gt, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """A change of a module: its place, and the module's new code."""

    module: str
    file: Path
    line: int
    change: str
    code: str = field(repr=False)

    @property
    def text(self) -> str:
        """The line of code that is changed."""
        return self.file.read_text().splitlines()[self.line - 1].strip()

    def __str__(self) -> str:
        return f"{self.file.relative_to(ROOT)}:{self.line}: {self.change}: {self.text}"


@dataclass
class GroupResult:
    """The mutants of a group: how many were drawn and killed, and the survivors.

    `left_out`: test files that fail without a change, or are too slow to be traced.
    """

    group: str
    mutants: int = 0
    killed: int = 0
    left_out: list[str] = field(default_factory=list)
    survivors: list[str] = field(default_factory=list)
    explained: list[str] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Killed by those that are not explained, 1 without any."""
        counted = self.mutants - len(self.explained)
        return self.killed / counted if counted else 1.0


def sites(tree: ast.Module) -> list[tuple[int, str, Callable[[], None]]]:
    """All changes of a tree: (line, description, function that makes the change in place)."""
    found: list[tuple[int, str, Callable[[], None]]] = []
    for function in _functions(tree):
        for statement in function.body:
            _collect(statement, found)
        _collect_removals(function, found)
    return found


def _functions(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    """Functions and methods, not those within functions, which belong to these."""
    for holder in [tree, *(one for one in tree.body if isinstance(one, ast.ClassDef))]:
        yield from (one for one in holder.body if isinstance(one, ast.FunctionDef))


def _parts(node: ast.AST) -> list[ast.AST]:
    """The parts of a node that are changed: no annotations, texts, or arguments of errors."""
    match node:
        case ast.Raise() | ast.JoinedStr() | ast.Assert() | ast.Expr(value=ast.Constant()):
            return []
        case ast.AnnAssign(value=value):
            return [] if value is None else [value]
        case ast.FunctionDef(body=body):
            return list(body)
    return list(ast.iter_child_nodes(node))


def _collect(node: ast.AST, found: list[tuple[int, str, Callable[[], None]]]) -> None:
    """The changes of a node and of its parts."""
    line = getattr(node, "lineno", 0)
    match node:
        case ast.Compare(ops=ops):
            for place, old in enumerate(ops):
                new = COMPARISONS[type(old)]
                found.append((line, f"{_name(old)} to {_name(new)}", _setter(ops, place, new())))
        case ast.BinOp(op=old) | ast.AugAssign(op=old) if type(old) in OPERATORS:
            other = OPERATORS[type(old)]
            found.append((line, f"{_name(old)} to {_name(other)}", _attribute(node, "op", other())))
        case ast.BoolOp(op=ast.And()):
            found.append((line, "And to Or", _attribute(node, "op", ast.Or())))
        case ast.BoolOp():
            found.append((line, "Or to And", _attribute(node, "op", ast.And())))
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            negated = ast.UnaryOp(ast.Not(), test)
            found.append((line, "negated condition", _attribute(node, "test", negated)))
        case ast.Constant(value=bool() as value):
            found.append((line, f"{value} to {not value}", _attribute(node, "value", not value)))
        case ast.Constant(value=int() as value):
            found.append((line, f"{value} to {value + 1}", _attribute(node, "value", value + 1)))
    for part in _parts(node):
        _collect(part, found)


def _collect_removals(
    function: ast.FunctionDef, found: list[tuple[int, str, Callable[[], None]]]
) -> None:
    """The removals of statements without which a function still runs."""
    for node in ast.walk(function):
        for name in ("body", "orelse", "finalbody"):
            body = getattr(node, name, None)
            if not isinstance(body, list):
                continue
            for place, statement in enumerate(body):
                is_call = isinstance(statement, ast.Expr) and not isinstance(
                    statement.value, ast.Constant
                )
                if is_call or isinstance(
                    statement, ast.AugAssign | ast.Raise | ast.Continue | ast.Break
                ):
                    change = f"without {_name(statement)}"
                    found.append((statement.lineno, change, _setter(body, place, ast.Pass())))


def _name(node: object) -> str:
    return type(node).__name__ if not isinstance(node, type) else node.__name__


def _setter(values: list[Any], place: int, new: ast.AST) -> Callable[[], None]:
    def change() -> None:
        values[place] = new

    return change


def _attribute(node: ast.AST, name: str, new: object) -> Callable[[], None]:
    def change() -> None:
        setattr(node, name, new)

    return change


def draw_mutants(group: str, count: int, seed: int) -> list[Mutant]:
    """So many changes of the modules of a group, drawn without repetition."""
    root, package, _ = GROUPS[group]
    places = []
    for file in sorted((ROOT / root / package).rglob("*.py")):
        tree = ast.parse(file.read_text())
        places += [(file, number) for number in range(len(sites(tree)))]
    chosen = random.Random(f"{seed} {group}").sample(places, min(count, len(places)))
    mutants = []
    for file, number in chosen:
        tree = ast.parse(file.read_text())
        line, change, apply = sites(tree)[number]
        apply()
        code = ast.unparse(ast.fix_missing_locations(tree))
        module = ".".join(file.relative_to(ROOT / root).with_suffix("").parts)
        mutants.append(Mutant(module.removesuffix(".__init__"), file, line, change, code))
    return mutants


class _ChangedModule(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports the changed code in place of one module."""

    def __init__(self, mutant: Mutant) -> None:
        self.mutant = mutant

    def find_spec(
        self, fullname: str, path: Any = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.mutant.module:
            return None
        is_package = self.mutant.file.name == "__init__.py"
        spec = importlib.util.spec_from_loader(fullname, self, is_package=is_package)
        if spec is not None and is_package:
            spec.submodule_search_locations = [str(self.mutant.file.parent)]
        return spec

    def exec_module(self, module: ModuleType) -> None:
        module.__file__ = str(self.mutant.file)
        exec(compile(self.mutant.code, str(self.mutant.file), "exec"), module.__dict__)


def run_tests(
    names: Sequence[str], limit_s: float, mutant: Mutant | None, plugin: object = None
) -> tuple[int, float]:
    """Run tests in this process; return pytest's exit code (124 over the limit) and the seconds."""
    if mutant is not None:
        sys.meta_path.insert(0, _ChangedModule(mutant))
    os.chdir(ROOT)
    signal.signal(signal.SIGALRM, _stop)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    arguments = ["-x", "-q", "--no-header", "-p", "no:cacheprovider", "-m", "not slow"]
    # Rewriting assertions would import the unchanged modules of the core, which is a pytest plugin.
    arguments += ["--assert=plain", "-p", "no:xdist", "--hypothesis-seed=0"]
    # Numbers of 64 bits wrap around in kernels; numpy warns of this only if they are interpreted.
    arguments += ["-W", "ignore:overflow encountered in scalar:RuntimeWarning", *names]
    start = time.monotonic()
    silent = io.StringIO()
    try:
        with contextlib.redirect_stdout(silent), contextlib.redirect_stderr(silent):
            code = int(pytest.main(arguments, [] if plugin is None else [plugin]))
    except BaseException:
        code = 124
    signal.setitimer(signal.ITIMER_REAL, 0)
    return code, time.monotonic() - start


def _stop(number: int, frame: FrameType | None) -> None:
    # Tests may catch exceptions of any kind.
    os._exit(124)


@dataclass(frozen=True)
class TracedTest:
    """A test: its seconds while it was traced, and the lines (file, line) that it executes."""

    name: str
    seconds: float
    lines: frozenset[tuple[str, int]]


class _Tracer:
    """A pytest plugin that records the lines of a folder that each test executes."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.tests: list[TracedTest] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Trace the set-up, the call and the tear-down of a test."""
        lines: set[tuple[str, int]] = set()

        def on_line(frame: FrameType, event: str, argument: object) -> Any:
            lines.add((frame.f_code.co_filename, frame.f_lineno))
            return on_line

        def on_call(frame: FrameType, event: str, argument: object) -> Any:
            return on_line if frame.f_code.co_filename.startswith(self.folder) else None

        start = time.monotonic()
        sys.settrace(on_call)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            seconds = time.monotonic() - start
            self.tests.append(TracedTest(item.nodeid, seconds, frozenset(lines)))


def _trace_file(name: str, folder: str) -> list[TracedTest] | None:
    """Trace the tests of a file; None if one fails or the file is too slow."""
    _choose_compiler(Path(folder))
    tracer = _Tracer(folder)
    code, _ = run_tests([name], MAX_TRACE_S, None, tracer)
    return tracer.tests if code == 0 else None


def _choose_compiler(package: Path) -> None:
    """Interpret kernels in this process if a module of the package has some.

    Mutants of kernels have no stored machine code, and their lines are not traced when compiled.
    """
    if any(
        re.search("(compiling|kernels) import", file.read_text()) for file in package.rglob("*.py")
    ):
        os.environ["NUMBA_DISABLE_JIT"] = "1"


def _judge(mutant: Mutant, tests: Sequence[TracedTest]) -> bool:
    """Whether a test kills the mutant."""
    covering = [test for test in tests if (str(mutant.file), mutant.line) in test.lines]
    names: list[str] = []
    spent = batch_s = 0.0
    limit_s = FIRST_TESTS_S
    for test in sorted(covering, key=lambda test: test.seconds):
        if spent + test.seconds > MAX_TESTS_S:
            break
        if names and batch_s + test.seconds > limit_s:
            if _is_killed_by(mutant, names, batch_s):
                return True
            names, batch_s, limit_s = [], 0.0, MAX_TESTS_S
        names.append(test.name)
        spent, batch_s = spent + test.seconds, batch_s + test.seconds
    return bool(names) and _is_killed_by(mutant, names, batch_s)


def _is_killed_by(mutant: Mutant, names: Sequence[str], seconds: float) -> bool:
    """Whether one of these tests fails with the change, or all take ten times as long."""

    def run() -> tuple[int, float]:
        _choose_compiler(mutant.file.parent)
        return run_tests(names, 10 * seconds + 20, mutant)

    return bool(_in_process(run)[0] != 0)


def _in_process(work: Callable[..., Any], *arguments: Any) -> Any:
    """The result of `work` in a forked process; (124, 0.0) if that ends without one."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=lambda: sender.send(work(*arguments)))
    process.start()
    sender.close()
    try:
        return receiver.recv()
    except EOFError:
        return 124, 0.0
    finally:
        process.join()


def read_explained() -> set[tuple[str, str, str]]:
    """Return (file, line of code, change) of the survivors that `explained.toml` explains.

    Exits with the entries whose file has no such line, or whose line has no such change: the code
    was changed, and the reason may no longer hold.
    """
    explained = {
        (one["file"], one["line"], one["change"])
        for one in tomllib.loads(EXPLAINED.read_text()).get("survivor", [])
    }
    possible = set()
    for name in {name for name, _, _ in explained}:
        if (ROOT / name).is_file():
            code = (ROOT / name).read_text()
            lines = code.splitlines()
            possible |= {
                (name, lines[line - 1].strip(), change)
                for line, change, _ in sites(ast.parse(code))
            }
    if stale := sorted(explained - possible):
        entries = "\n  ".join(": ".join(one) for one in stale)
        raise SystemExit(f"{EXPLAINED.name} explains changes that do not exist:\n  {entries}")
    return explained


def _find_test_files(place: Path) -> list[Path]:
    """Return the test files of a folder, sorted, or the file itself."""
    return [place] if place.is_file() else sorted(place.rglob("test_*.py"))


def measure(group: str, count: int, seed: int, jobs: int) -> GroupResult:
    """Draw mutants of a group, run the tests on each, and sort the survivors."""
    from concurrent.futures import ThreadPoolExecutor

    root, package, folders = GROUPS[group]
    folder = str(ROOT / root / package)
    names = [str(path) for each in folders for path in _find_test_files(ROOT / each)]
    explained = read_explained()
    result = GroupResult(group)
    with ThreadPoolExecutor(jobs) as pool:
        traced = pool.map(lambda name: _in_process(_trace_file, name, folder), names)
        tests: list[TracedTest] = []
        for name, of_file in zip(names, traced, strict=True):
            # Without a list, the process ended with a failed test or at the limit.
            if isinstance(of_file, list):
                tests += of_file
            else:
                result.left_out.append(name.removeprefix(f"{ROOT}/"))
        mutants = draw_mutants(group, count, seed)
        for mutant, is_killed in zip(
            mutants, pool.map(lambda one: _judge(one, tests), mutants), strict=True
        ):
            result.mutants += 1
            key = str(mutant.file.relative_to(ROOT)), mutant.text, mutant.change
            if is_killed:
                result.killed += 1
            elif key in explained:
                result.explained.append(str(mutant))
            else:
                result.survivors.append(str(mutant))
    return result


def main() -> None:
    """Measure the groups and print the survivors; exit with 1 below 90 % in one of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--group", action="append", choices=GROUPS)
    parser.add_argument("--mutants", type=int, default=40, help="per group")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    os.environ |= {"COLLHUB_EXAMPLES": "few", "PYTHONHASHSEED": "0"}
    # Imported once: processes of mutants start with these.
    import hypothesis  # noqa: F401
    import numpy as np  # noqa: F401

    results = []
    for group in asked.group or GROUPS:
        result = measure(group, asked.mutants, asked.seed, asked.jobs)
        results.append(result)
        if not asked.json:
            print(
                f"{group}: {result.killed} of {result.mutants} killed, "
                f"{len(result.explained)} explained, {100 * result.rate:.0f} %",
                *(f"left out: {name}" for name in result.left_out),
                *result.survivors,
                sep="\n  ",
                flush=True,
            )
    if asked.json:
        print(json.dumps([{**asdict(one), "rate": one.rate} for one in results], indent=2))
    sys.exit(1 if any(one.rate < 0.9 for one in results) else 0)


if __name__ == "__main__":
    main()
