"""The kit finds what it promises to find, and passes a plugin without faults."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from hub_core.registry.discovery import discover
from hub_core.testing.conformance import RULES, RuleResult, Verdict, check_plugin, check_rule
from hub_core.testing.isolation import record_accesses

MakePlugin = Callable[..., object]
PLUGINS = (
    "astra_sim",
    "blink",
    "certificates",
    "classic",
    "compose",
    "expansion",
    "goal",
    "jobs",
    "local",
    "models",
    "msccl",
    "nccl",
    "pictures",
    "tacos",
    "topologies",
    "tuning",
)

# A writer and a reader of canonical JSON under another name; each test spoils one of them.
SOUND = """
import importlib

class _Lazy:
    def __getattr__(self, name):
        return getattr(importlib.import_module("hub_core.documents.algorithms"), name)

document = _Lazy()

FORMAT = Format("copy", "canonical JSON again", (".copy",))

@hookimpl
def collhub_producers():
    return [FormatReader(FORMAT, f"{__name__}:read")]

@hookimpl
def collhub_consumers():
    return [FormatWriter(FORMAT, f"{__name__}:write")]

def read(source, options):
    return document.read(source, options)

def write(algorithm, options):
    return document.write(algorithm, options)
"""

FAULTS = {
    "loads-quietly": ("print('hello')", "prints while it loads: 'hello'"),
    "offers-something": (
        'FORMAT = Format("copy", "", (".copy",))',
        "writer copy has no description",
    ),
    "imports-lightly": ("import numpy", "imports numpy"),
    "replaces-nothing": (
        "import json; json.dump = lambda *a, **k: None",
        "loading the plugin replaces json.dump; wrap it where it is called",
    ),
    "references-resolve": ("del read", "has no attribute 'read'"),
    "readers-read-samples": (
        "def read(source, options): return 3",
        "returned int, expected Algorithm",
    ),
    "bad-input-is-refused": (
        "def read(source, options):\n  import json; json.loads(source.content()); return document.read(source, options)",
        "JSONDecodeError",
    ),
    "writers-write-samples": (
        "def write(a, o): return WriteResult((Artifact('../x', bytes),))",
        "'../x' does not fit the layout",
    ),
    "writers-are-deterministic": (
        "def write(a, o): return WriteResult((Artifact('', lambda: ' '.join({'a', 'b', 'c', 'd', 'e'}).encode()),))",
        "differs between two processes",
    ),
    "writers-keep-their-input": (
        "def write(a, o): a.extensions['seen'] = True; return document.write(a, o)",
        "writing changed extensions",
    ),
    "losses-are-honest": (
        "def write(a, o):\n  from dataclasses import replace; return document.write(replace(a, collective_bytes=9), o)",
        "read back with another collective_bytes, and no loss names that as its feature",
    ),
    "formats-leave-the-system-alone": (
        "def read(source, options):\n  open('/dev/null').close(); return document.read(source, options)",
        "reader copy does not only compute: open '/dev/null'",
    ),
}


def _result(name: str, check: str) -> RuleResult:
    (found,) = (c for c in RULES if c.name == check)
    return check_rule(found, name, discover(environment={}))


def test_sound_plugin_passes(make_plugin: MakePlugin) -> None:
    make_plugin("subject", SOUND)
    results = check_plugin("subject", discover(environment={}))
    assert [(r.rule.name, r.details) for r in results if r.verdict is Verdict.FAILED] == []
    assert sum(result.verdict is Verdict.PASSED for result in results) == 14


@pytest.mark.parametrize(
    ("check", "fault", "problem"),
    [(check, *fault) for check, fault in FAULTS.items()],
    ids=FAULTS.keys(),
)
def test_fault_is_found(
    make_plugin: MakePlugin,
    monkeypatch: pytest.MonkeyPatch,
    check: str,
    fault: str,
    problem: str,
) -> None:
    # What the plugin replaces is put back: other tests of this process write JSON.
    monkeypatch.setattr(json, "dump", json.dump)
    make_plugin("subject", SOUND + fault)
    result = _result("subject", check)
    assert result.verdict is Verdict.FAILED
    assert any(problem in line for line in result.details), result.details


@pytest.mark.parametrize("check", ["writers-write-samples", "conversions-are-honest"])
def test_writer_without_a_file_is_found(make_plugin: MakePlugin, check: str) -> None:
    make_plugin("subject", SOUND + "def write(a, o): return WriteResult(())")
    result = _result("subject", check)
    assert result.verdict is Verdict.FAILED
    assert any("returned no file" in line for line in result.details), result.details


def test_printing_reader_is_not_silent(make_plugin: MakePlugin) -> None:
    make_plugin(
        "subject",
        SOUND
        + "def read(source, options):\n  print('reading'); return document.read(source, options)",
    )
    assert (
        "reader copy prints 'reading'"
        in _result("subject", "formats-leave-the-system-alone").details
    )


@pytest.mark.parametrize(
    "call",
    [
        "socket.socket().close()",
        "subprocess.run(['true'])",
        "os.listdir('/')",
        "open('x', 'w').close()",
        "os.system('true')",
    ],
)
def test_access_to_the_system_is_seen(
    make_plugin: MakePlugin, tmp_path: object, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(str(tmp_path))
    code = f"def read(source, options):\n  import os, socket, subprocess\n  {call}; return document.read(source, options)"
    make_plugin("subject", SOUND + code)
    result = _result("subject", "formats-leave-the-system-alone")
    assert any("does not only compute" in line for line in result.details)


def test_unmet_requirement_is_found(make_plugin: MakePlugin) -> None:
    make_plugin("subject", SOUND, requires="no-such-distribution>=2")
    details = _result("subject", "requirements-are-met").details
    assert details == (
        "dist-subject lacks a requirement on collhub with its versions (Requires-Dist)",
        "requirement not met: no-such-distribution>=2 (not installed)",
    )


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (
            "return SimulationResult((1,) * (request.algorithm.num_ranks + 1))",
            "5 finish times for 4 ranks",
        ),
        (
            "return SimulationResult((-1,) * request.algorithm.num_ranks)",
            "are not whole numbers of at least 0",
        ),
        (
            "import itertools; return SimulationResult((next(COUNT),) * request.algorithm.num_ranks)",
            "two runs differ",
        ),
        ("raise ZeroDivisionError('x')", "ZeroDivisionError: x"),
        (
            "from hub_core import InputError; raise InputError('no')",
            "simulator sim refuses every sample: no",
        ),
        ("return 5", "returned int, expected SimulationResult"),
    ],
)
def test_faulty_simulator_is_found(make_plugin: MakePlugin, body: str, problem: str) -> None:
    code = f"""
import itertools
COUNT = itertools.count()
@hookimpl
def collhub_consumers():
    return [Simulator("sim", "counts", f"{{__name__}}:simulate")]

def simulate(request, options):
    {body}
"""
    make_plugin("subject", code)
    result = _result("subject", "simulators-simulate")
    assert result.verdict is Verdict.FAILED
    assert any(problem in line for line in result.details), result.details


@pytest.mark.parametrize(("exposed", "verdict"), [("()", Verdict.PASSED), ("(0,)", Verdict.FAILED)])
def test_simulators_of_workloads_may_have_no_exposed_times(
    make_plugin: MakePlugin, exposed: str, verdict: Verdict
) -> None:
    code = f"""
@hookimpl
def collhub_consumers():
    return [WorkloadSimulator("sim", "counts", f"{{__name__}}:simulate")]

def simulate(request, options):
    from hub_core.plugin_api import WorkloadTimes
    return WorkloadTimes((0,) * request.workload.num_ranks, rank_exposed_ns={exposed})
"""
    make_plugin("subject", code)
    result = _result("subject", "workload-simulators-simulate")
    assert result.verdict is verdict, result.details


def test_simulator_without_its_program_is_skipped(make_plugin: MakePlugin) -> None:
    code = """
@hookimpl
def collhub_consumers():
    return [Simulator("sim", "runs a program", f"{__name__}:simulate")]

def simulate(request, options):
    from hub_core import PluginError
    raise PluginError("no program is named")
"""
    make_plugin("subject", code)
    result = _result("subject", "simulators-simulate")
    assert (result.verdict, result.details) == (
        Verdict.SKIPPED,
        ("not checked: no program is named",),
    )


EXECUTOR = """
import numpy as np

@hookimpl
def collhub_consumers():
    return [Executor("exec", "adds all inputs", f"{__name__}:execute")]

def execute(request, options):
    from hub_core import CollectiveKind, InputError
    if request.algorithm.collective.kind is not CollectiveKind.ALL_REDUCE:
        raise InputError("all-reduce only")
    total = sum(request.inputs) + ERROR
    return ExecutionResult(tuple(total for _ in request.inputs))
"""


@pytest.mark.parametrize(("error", "verdict"), [("0", Verdict.PASSED), ("1", Verdict.FAILED)])
def test_executor_is_held_to_the_collective(
    make_plugin: MakePlugin, error: str, verdict: Verdict
) -> None:
    make_plugin("subject", EXECUTOR.replace("ERROR", error))
    assert _result("subject", "executors-compute").verdict is verdict


SYNTHESIZER = """
@hookimpl
def collhub_producers():
    return [Synthesizer("synth", "rings", f"{__name__}:synthesize")]

@hookimpl
def collhub_passes():
    return [AlgorithmPass("same", "changes nothing", f"{__name__}:run")]

def synthesize(request, options):
    from hub_core import CollectiveKind, UsageError
    from hub_core.testing.samples import ring_all_gather, ring_all_reduce
    if request.collective.kind is not CollectiveKind.ALL_REDUCE:
        raise UsageError("not this one")
    return make(request, ring_all_reduce(request.collective.num_ranks))

def make(request, algorithm):
    return SynthesisResult(algorithm, 100, {"cut": 90})

def run(algorithm, options):
    return algorithm, PassReport(())
"""

FAULTY_SYNTHESIS = {
    "another collective": (
        "return SynthesisResult(ring_all_gather(4), 100)",
        "synthesized all-gather of 4 ranks",
    ),
    "no result": ("return algorithm", "returned Algorithm, expected SynthesisResult"),
    "no time": (
        "return SynthesisResult(algorithm, 0)",
        "the time 0 is no positive whole number of nanoseconds",
    ),
    "fraction of a time": (
        "return SynthesisResult(algorithm, 9.5)",
        "the time 9.5 is no positive whole number",
    ),
    "below a bound": (
        "return SynthesisResult(algorithm, 9, {'cut': 10})",
        "the time 9 ns is below the lower bound 'cut', 10 ns",
    ),
    "runs differ": (
        "return SynthesisResult(replace(algorithm, collective_bytes=next(COUNT)), 9)",
        "two runs differ in collective_bytes",
    ),
    "partial without need": (
        "return SynthesisResult(algorithm, 9, is_partial=True)",
        "partial, although all ranks were requested",
    ),
    "wrong contents": (
        "return SynthesisResult(replace(algorithm, steps=EMPTY), 9)",
        "verification fails",
    ),
    "more than is wanted": (
        "return SynthesisResult(algorithm, 9, is_partial=bool(request.wanted))",
        "a partial result for rank 0 holds steps of other ranks",
    ),
    "parts that lack steps": (
        "some = replace(algorithm, steps=EMPTY)\n"
        "    return SynthesisResult(some if request.wanted else algorithm, 9, is_partial=bool(request.wanted))",
        "the partial results of all ranks do not form a correct algorithm",
    ),
}


def test_synthesizer_is_held_to_the_request(make_plugin: MakePlugin) -> None:
    make_plugin("subject", SYNTHESIZER)
    assert _result("subject", "synthesizers-synthesize").details == ()
    assert _result("subject", "passes-keep-the-promise").verdict is Verdict.PASSED


def test_synthesizer_may_ask_for_the_time_of_an_algorithm(make_plugin: MakePlugin) -> None:
    code = """
def make(request, algorithm):
    from hub_core.network import lower_bound_ns
    bound = lower_bound_ns(request.collective, request.topology, request.collective_bytes)
    return SynthesisResult(algorithm, request.simulate(algorithm), {"traffic": int(bound)})
"""
    make_plugin("subject", SYNTHESIZER + code)
    assert _result("subject", "synthesizers-synthesize").details == ()


def test_synthesizer_of_parts_that_fit_together_passes(make_plugin: MakePlugin) -> None:
    code = """
def make(request, algorithm):
    from dataclasses import replace
    from hub_core.model.steps import COLUMN_DTYPES, StepTable
    if request.wanted is None:
        return SynthesisResult(algorithm, 9)
    steps = algorithm.steps
    rows = slice(*steps.rank_indptr[request.wanted[0] : request.wanted[0] + 2])
    parents, children = steps.edges()
    own = (children >= rows.start) & (children < rows.stop)
    columns = {name: getattr(steps, name)[rows] for name in COLUMN_DTYPES}
    part = StepTable.from_columns(4, columns, (parents[own] - rows.start, children[own] - rows.start))
    return SynthesisResult(replace(algorithm, steps=part), 9, is_partial=True)
"""
    make_plugin("subject", SYNTHESIZER + code)
    assert _result("subject", "synthesizers-synthesize").details == ()


def test_synthesizer_that_refuses_everything_is_found(make_plugin: MakePlugin) -> None:
    make_plugin("subject", SYNTHESIZER.replace("is not CollectiveKind.ALL_REDUCE", "is not None"))
    assert (
        "synthesizer synth refuses every collective"
        in _result("subject", "synthesizers-synthesize").details[0]
    )


def test_synthesizers_share_no_budget(make_plugin: MakePlugin) -> None:
    code = """
@hookimpl
def collhub_producers():
    return [Synthesizer(name, "rings", f"{__name__}:{name}") for name in ("first", "second")]

USED = []

def first(request, options):
    USED.append(request.budget)
    return synthesize(request, options)

def second(request, options):
    from hub_core import UsageError
    if any(request.budget is used for used in USED):
        raise UsageError("this budget has records of another search")
    return synthesize(request, options)
"""
    make_plugin("subject", SYNTHESIZER.replace('{"cut": 90}', "{}") + code)
    assert _result("subject", "synthesizers-synthesize").details == ()


@pytest.mark.parametrize(
    ("fault", "problem"), FAULTY_SYNTHESIS.values(), ids=FAULTY_SYNTHESIS.keys()
)
def test_faulty_synthesis_is_found(make_plugin: MakePlugin, fault: str, problem: str) -> None:
    code = f"""
import itertools
COUNT = itertools.count(1)
def make(request, algorithm):
    from dataclasses import replace
    from hub_core.testing.samples import ring_all_gather
    from hub_core.model.steps import StepTableBuilder
    EMPTY = StepTableBuilder(4).build()
    {fault}
"""
    make_plugin("subject", SYNTHESIZER + code)
    result = _result("subject", "synthesizers-synthesize")
    assert result.verdict is Verdict.FAILED
    assert any(problem in line for line in result.details), result.details


def test_line_without_a_cure_is_found(make_plugin: MakePlugin) -> None:
    code = """
@hookimpl
def collhub_checks():
    return [Check("health", Subject.INSTALLATION, "looks", f"{__name__}:check")]

def check(request, options):
    return CheckReport(False, lines=(CheckLine("device", False),))
"""
    make_plugin("subject", code)
    assert _result("subject", "checks-answer").details == ("check health: device: no cure",)


def test_builder_that_does_not_build_its_example_is_found(make_plugin: MakePlugin) -> None:
    code = """
@hookimpl
def collhub_topologies():
    return [TopologyBuilder("pair", "two NPUs", f"{__name__}:build", "pair")]

def build(text):
    raise text.error("no", "never")
"""
    make_plugin("subject", code)
    result = _result("subject", "builders-build-their-example")
    assert result.verdict is Verdict.FAILED
    assert "topology 'pair': no" in result.details[0]


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (
            "return WriteResult([Artifact('', lambda: b'0 1')])",
            "another num_npus, num_nodes, dimensions, links, and no loss names that",
        ),
        (
            "return WriteResult([Artifact('', lambda: b'0 1')], [Loss('links', 'w', 'c')])",
            "another num_npus, num_nodes, dimensions, and no loss names that",
        ),
        (
            "names = ('number of NPUs, nodes', 'dimensions', 'links')\n"
            "    losses = [Loss(name, 'w', 'c') for name in names]\n"
            "    return WriteResult([Artifact('', lambda: b'0 1')], losses)",
            None,
        ),
        ("return WriteResult([Artifact('x', lambda: b'0 1')])", "one artifact without a name"),
        ("return 1", "returned int, expected WriteResult"),
    ],
)
def test_topology_writer_that_loses_a_link_is_found(
    make_plugin: MakePlugin, body: str, problem: str | None
) -> None:
    code = f"""
from hub_core.model import Loss
from hub_core.network import Links
from hub_core.plugin_api import TopologyReader, TopologyWriter
import numpy as np

ENDS = Format("ends", "ends of links", (".ends",))

@hookimpl
def collhub_topologies():
    read, write = f"{{__name__}}:read", f"{{__name__}}:write"
    return [TopologyReader(ENDS, read), TopologyWriter(ENDS, write)]

def read(source, options):
    one = np.zeros(1, np.int64)
    return Links.uniform(one, one + 1, 1e9, 1e-6).topology(source.name, 2, 2)

def write(topology, options):
    {body}
"""
    make_plugin("subject", code)
    result = _result("subject", "topologies-come-back")
    assert (result.verdict is Verdict.FAILED) == (problem is not None)
    assert problem is None or problem in result.details[0]


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("def act(): pass", "is function, no click command"),
        ("@click.command()\ndef act(): pass", "command act has no help"),
    ],
)
def test_command_that_is_none_is_found(make_plugin: MakePlugin, body: str, problem: str) -> None:
    code = f"""
import click
@hookimpl
def collhub_commands():
    return [Command("act", "acts", f"{{__name__}}:act")]

{body}
"""
    make_plugin("subject", code)
    result = _result("subject", "commands-are-click-commands")
    assert any(problem in line for line in result.details), result.details


@pytest.mark.parametrize("name", ["absent", "subject"])
def test_absent_or_broken_plugin_fails_every_check(make_plugin: MakePlugin, name: str) -> None:
    make_plugin("subject", "import nowhere_to_be_found")
    results = check_plugin(name, discover(environment={}))
    assert {result.verdict for result in results} == {Verdict.FAILED}
    assert len(results) == len(RULES)


def test_core_conforms_to_its_own_kit() -> None:
    failed = [(r.rule.name, r.details) for r in check_plugin("core") if r.verdict is Verdict.FAILED]
    assert failed == []


@pytest.mark.once
@pytest.mark.needs_plugins
@pytest.mark.parametrize("name", PLUGINS)
def test_plugins_of_this_repository_conform(name: str) -> None:
    failed = [(r.rule.name, r.details) for r in check_plugin(name) if r.verdict is Verdict.FAILED]
    assert failed == []


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ("[(A, 0, None), (G, 0, None)]", None),
        ("[(A, 0, 99), (G, 0, None)]", "all-reduce, in place, 1024 bytes: not served"),
        (
            "[(A, 0, None), (A, 9999, None), (G, 0, None)]",
            "all-reduce, in place, 16384 bytes: served twice",
        ),
    ],
)
def test_selection_writer_that_leaves_sizes_out_is_found(
    make_plugin: MakePlugin, rows: str, problem: str | None
) -> None:
    code = f"""
from hub_core.model import CollectiveKind
from hub_core.plugin_api import SelectionWriter, ServedCalls

A, G = CollectiveKind.ALL_REDUCE, CollectiveKind.ALL_GATHER

@hookimpl
def collhub_consumers():
    rules = Format("rules", "rules", ())
    return [SelectionWriter(rules, f"{{__name__}}:write", f"{{__name__}}:read")]

def write(selection, options):
    return WriteResult([Artifact('rules', b'')])

def read(source):
    return [ServedCalls(kind, True, True, least, most, "x") for kind, least, most in {rows}]
"""
    make_plugin("subject", code)
    result = _result("subject", "selections-come-back")
    assert (result.verdict is Verdict.FAILED) == (problem is not None), result.details
    assert problem is None or any(problem in line for line in result.details)


def test_a_database_in_memory_is_no_file(tmp_path: Path) -> None:
    def connect(place: str) -> None:
        sqlite3.connect(place).close()

    assert record_accesses(lambda: connect(":memory:"), ()) == []
    path = str(tmp_path / "x.sqlite")
    assert record_accesses(lambda: connect(path), ()) == [f"sqlite3.connect {path!r}"[:120]]


def test_a_folder_beside_a_readable_one_is_not_readable(tmp_path: Path) -> None:
    for name in ("data", "data-of-others"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x").write_text("")
    readable = [str(tmp_path / "data")]
    assert record_accesses((tmp_path / "data" / "x").read_text, readable) == []
    other = tmp_path / "data-of-others" / "x"
    assert record_accesses(other.read_text, readable) == [f"open {str(other)!r}"[:120]]
