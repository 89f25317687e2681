"""One small input per rule that triggers it; `UNTRIGGERED` lists the rules without one here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import hub_core
from hub_core.model import Diagnostic, HubError, NodeColumns, ProcessGroup, Workload
from hub_core.pipeline.checks import check_runtime, checks_of, run_check
from hub_core.pipeline.outputs import SelectionFolders
from hub_core.plugin_api import CheckRequest, RuleSet, Source, SourcePart, Subject, resolve
from hub_core.registry.discovery import discover

pytestmark = [pytest.mark.needs_plugins, pytest.mark.once]
ROOT = Path(__file__).resolve().parents[1]
PROGRAM = (ROOT / "examples" / "ring_all_reduce_8.xml").read_text()
STEP = '<step s="1" type="rrcs" srcbuf="i" srcoff="7" dstbuf="i" dstoff="7" cnt="1"'
FIRST = '<step s="0" type="s" srcbuf="i" srcoff="0" dstbuf="i" dstoff="0" cnt="1"'
NO_WAIT = 'depid="-1" deps="-1" hasdep="0"/>'
BLOCK = '<tb id="0" send="1" recv="7" chan="0">'
GPU = '<gpu id="0" i_chunks="8" o_chunks="0" s_chunks="0">'


def _change(*pairs: tuple[str, str]) -> str:
    """Return the program with the first occurrence of each text replaced."""
    text = PROGRAM
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new, 1)
    return text


def _repeat_steps(count: int) -> str:
    """Return the program with further sends in the first thread block."""
    start = PROGRAM.index(f"{FIRST} ")
    steps = "".join(f"{FIRST.replace('s=', 's=', 1)} {NO_WAIT}" for _ in range(count))
    return PROGRAM[:start] + steps + PROGRAM[start:]


def _build(*blocks: str, collective: str = "allreduce") -> str:
    """Return a program of two ranks, with the given thread blocks per rank."""
    head = f'<algo name="a" proto="Simple" coll="{collective}" inplace="1" outofplace="0"'
    sizes = 'i_chunks="2" o_chunks="0" s_chunks="2"'
    gpus = "".join(f'<gpu id="{rank}" {sizes}>{part}</gpu>' for rank, part in enumerate(blocks))
    return f'{head} nchannels="1" nchunksperloop="2" ngpus="2" minBytes="0">{gpus}</algo>'


def _block(
    peer: int, *steps: str, number: int = 0, sends: bool = True, receives: bool = True
) -> str:
    """Return a thread block that sends to and receives from a rank; steps: `TYPE BUFFER OFFSET`."""
    parts = []
    for at, step in enumerate(steps):
        kind, buffer, offset = step.split()
        place = f'srcbuf="{buffer}" srcoff="{offset}" dstbuf="{buffer}" dstoff="{offset}"'
        parts.append(f'<step s="{at}" type="{kind}" {place} cnt="1" {NO_WAIT}')
    ends = f'send="{peer if sends else -1}" recv="{peer if receives else -1}"'
    return f'<tb id="{number}" {ends} chan="0">{"".join(parts)}</tb>'


# What a runtime refuses or warns of: rule, runtime, file.
LOADING = (
    ("not-xml", "executor", _change((GPU, f"text{GPU}"))),
    ("truncated", "executor", PROGRAM.replace("</algo>", "")),
    ("misplaced-element", "executor", _change((GPU, f"{FIRST} {NO_WAIT}{GPU}"))),
    ("single-quote", "executor", _change(('proto="LL128"', "proto='LL128'"))),
    ("line-break", "executor", _change(('proto="LL128" coll', 'proto="LL128"\ncoll'))),
    ("too-long", "executor", _change(("ring_all_reduce_8", "x" * 300))),
    ("tab", "executor", _change(("  <gpu", "\t<gpu"))),
    ("xml-declaration", "executor", f'<?xml version="1.0"?>{PROGRAM}'),
    ("doctype", "executor", f"<!DOCTYPE algo>{PROGRAM}"),
    ("missing-attribute", "executor", _change((' minBytes="0"', ""))),
    ("unknown-collective", "rccl", _change(('"allreduce"', '"all_reduce"'))),
    ("unknown-protocol", "executor", _change(("LL128", "ll128"))),
    (
        "size-range",
        "msccl",
        _change(('minBytes="0" maxBytes="134217728"', 'minBytes="9" maxBytes="1"')),
    ),
    ("channel-range", "executor", _change(('nchannels="1"', 'nchannels="999"'))),
    ("too-many-elements", "executor", _repeat_steps(4200)),
    ("missing-rank", "executor", _change(('ngpus="8"', 'ngpus="9"'))),
    ("attribute-range", "executor", _change(('s_chunks="0"', 's_chunks="-1"'))),
    ("chunks-inconsistent", "msccl", _change(('i_chunks="8"', 'i_chunks="7"'))),
    ("thread-block-gap", "executor", _change(('<tb id="0"', '<tb id="1"'))),
    ("peer-range", "executor", _change(('send="1"', 'send="8"'))),
    ("too-many-steps", "executor", _change((STEP, STEP.replace('s="1"', 's="300"')))),
    ("count-limit", "executor", _change((STEP, STEP.replace('cnt="1"', 'cnt="72"')))),
    ("no-peer", "executor", _change(('send="1"', 'send="-1"'))),
    (
        "dependency-limit",
        "executor",
        _change((f"{STEP} {NO_WAIT}", f'{STEP} depid="130" deps="0" hasdep="0"/>')),
    ),
    ("refused-type", "rccl", PROGRAM),
    ("unknown-buffer", "executor", _change((STEP, STEP.replace('srcbuf="i"', 'srcbuf="x"')))),
    ("out-of-bounds", "executor", _change((STEP, STEP.replace('srcoff="7"', 'srcoff="9"')))),
    (
        "unfinished-nop-chain",
        "executor",
        _change(
            (
                FIRST,
                f'<step s="0" type="nop" srcbuf="i" srcoff="-1" dstbuf="o" dstoff="-1" cnt="0" depid="0" deps="5" hasdep="0"/>{FIRST}',
            )
        ),
    ),
    ("never-selected", "executor", _change(('inplace="1"', 'inplace="0"'))),
    (
        "too-many-thread-blocks",
        "rccl",
        _change(
            (
                BLOCK,
                "".join(f'<tb id="{k}" send="-1" recv="-1" chan="0"></tb>' for k in range(1, 70))
                + BLOCK,
            )
        ),
    ),
)
# What the reader or the verification finds: rule, file.
READING = (
    ("wrong-root", "<algos/>"),
    ("ignored-elements", _change((GPU, f"<note/>{GPU}"))),
    ("ignored-attributes", _change((STEP, f'{STEP} foo="1"'))),
    ("unknown-attribute", _change(("<algo ", '<algo chanels="1" '))),
    ("unknown-type", _change(('type="rrcs"', 'type="xyz"'))),
    ("unknown-srcbuf", _change((STEP, STEP.replace('srcbuf="i"', 'srcbuf="x"')))),
    ("unknown-dstbuf", _change((STEP, STEP.replace('dstbuf="i"', 'dstbuf="x"')))),
    ("not-a-number", _change(('ngpus="8"', 'ngpus="eight"'))),
    ("odd-number", _change((STEP, STEP.replace('cnt="1"', 'cnt="1x"')))),
    ("no-mode", _change(('inplace="1"', 'inplace="0"'))),
    (
        "short-form",
        '<algo name="a" nchunksperloop="1" nchannels="1" proto="Simple" ngpus="2"><gpu id="0" i_chunks="1" o_chunks="1" s_chunks="0"><tb id="0" send="1" recv="-1" chan="0"><op step="0" type="s" buf="i" off="0" cnt="1" depid="-1" deps="-1" hasdep="0"/></tb></gpu></algo>',
    ),
    ("rank-range", _change(('<gpu id="7"', '<gpu id="8"'))),
    ("duplicate-rank", _change(('<gpu id="7"', '<gpu id="6"'))),
    ("missing-rank", _change(('ngpus="8"', 'ngpus="9"'))),
    (
        "duplicate-thread-block",
        _change((BLOCK, f'<tb id="0" send="-1" recv="-1" chan="0"></tb>{BLOCK}')),
    ),
    ("count-range", _change((STEP, STEP.replace('cnt="1"', 'cnt="0"')))),
    ("channel-count", _change(('chan="0"', 'chan="1"'))),
    ("self-peer", _change(('send="1" recv="7"', 'send="0" recv="7"'))),
    ("endless-wait", _change((f"{STEP} {NO_WAIT}", f'{STEP} depid="0" deps="5" hasdep="0"/>'))),
    ("step-number", _change((STEP, STEP.replace('s="1"', 's="9"')))),
    (
        "nop-without-dependency",
        _change(
            (
                FIRST,
                f'<step s="0" type="nop" srcbuf="i" srcoff="-1" dstbuf="o" dstoff="-1" cnt="0" {NO_WAIT}{FIRST}',
            )
        ),
    ),
    ("channel-range", _change(('chan="0"', 'chan="-1"'))),
    ("no-peer", _change(('send="1"', 'send="-1"'))),
    ("peer-range", _change(('send="1"', 'send="8"'))),
    ("doctype", f"<!DOCTYPE algo>{PROGRAM}"),
    ("unmatched-send", _change((FIRST, f"{FIRST} {NO_WAIT}{FIRST}"))),
    ("unmatched-receive", _change((f"{FIRST} {NO_WAIT}", ""))),
    ("count-mismatch", _change((FIRST, FIRST.replace('cnt="1"', 'cnt="2"')))),
    ("out-of-bounds", _change((STEP, STEP.replace('srcoff="7"', 'srcoff="9"')))),
    ("wrong-output", _change((FIRST, FIRST.replace('srcoff="0"', 'srcoff="1"')))),
    ("deadlock", _build(_block(1, "r i 0", "s i 1"), _block(0, "r i 1", "s i 0"))),
    ("undefined-read", _build(_block(1, "s s 0"), _block(0, "r i 0"))),
    (
        "race",
        _build(
            _block(1, "r i 0", sends=False) + _block(1, "s i 0", number=1, receives=False),
            _block(0, "s i 0", "r i 1"),
        ),
    ),
    ("contents-not-judged", _build(_block(1, "s i 0"), _block(0, "r i 0"), collective="custom")),
)
# What a tuner ignores or misunderstands: rule, format, file.
TUNING = (
    ("not-a-rule", "nccl-tuner", "allreduce,0,65536,tree,simple"),
    ("unknown-word", "nccl-tuner", "allreduce,0,65536,rign,simple,2,1,8"),
    ("out-of-range", "nccl-tuner", "allreduce,65536,0,ring,simple,2,1,8"),
    ("unit", "nccl-tuner", "allreduce,0,64K,ring,simple,2,1,8"),
    ("refused-choice", "nccl-tuner", "broadcast,0,65536,tree,simple,2,1,8"),
    ("slow-choice", "nccl-tuner", "allreduce,0,65536,tree,simple,2,1,8"),
    ("conditional-rule", "nccl-tuner", "allreduce,0,65536,ring,simple,2,1,8,1,-1"),
    ("ends-early", "nccl-tuner", "allreduce,0,4294967295,ring,simple,2,-1,-1"),
    (
        "never-reached",
        "nccl-tuner",
        "allreduce,0,9,ring,simple,2,1,8\nallreduce,0,9,tree,simple,2,1,8",
    ),
    (
        "overlap",
        "nccl-tuner",
        "allreduce,0,99,ring,simple,2,1,8\nallreduce,9,999,tree,simple,2,1,8",
    ),
    ("gap", "rccl-tuner", "allreduce,0,99,ring,simple,2,1,8\nallreduce,900,999,tree,simple,2,1,8"),
    (
        "short-gap",
        "rccl-tuner",
        "allreduce,0,99,ring,simple,2,1,8\nallreduce,104,999,tree,simple,2,1,8",
    ),
    ("one-channel", "nccl-tuner", "allreduce,0,99,ring,simple,2,1,8"),
    (
        "not-searched",
        "nccl-tuner",
        "".join(f"allreduce,0,99,ring,simple,2,{n},{8 * n}\n" for n in range(1, 40)),
    ),
    ("unknown-file", "openmpi", ""),
    ("not-a-rule", "ucc", "no rule"),
    ("not-a-selection", "mpich", "{"),
)
_TUNER_FILES = {"openmpi": "notes.txt", "ucc": "ucc.conf", "mpich": "coll_selection.json"}
# Jobs as columns of their nodes; kind 0 computes, 1 is a collective, 2 sends, 3 receives.
JOBS: dict[str, tuple[dict[str, list[int]], tuple[list[int], list[int]]]] = {
    "cycle": ({"rank": [0, 0], "kind": [0, 0], "duration_ns": [1, 1]}, ([0, 1], [1, 0])),
    "peer": ({"rank": [0, 1], "kind": [2, 0], "peer": [9, -1], "bytes": [1, 0]}, ([], [])),
    "unmatched": ({"rank": [0, 1], "kind": [2, 0], "peer": [1, -1], "bytes": [1, 0]}, ([], [])),
    "group": ({"rank": [0, 1], "kind": [1, 1], "collective": [0, 0], "group": [0, 0]}, ([], [])),
    "collectives-differ": (
        {"rank": [0, 1], "kind": [1, 1], "collective": [0, 0], "bytes": [4, 8]},
        ([], []),
    ),
    "deadlock": (
        {"rank": [0, 0, 1, 1], "kind": [3, 2, 3, 2], "peer": [1, 1, 0, 0], "bytes": [1] * 4},
        ([0, 2], [1, 3]),
    ),
}
# Findings on the choice of the format and on versions: rule, name of the file, content, runtime.
CHOOSING = (
    ("unreadable-input", "missing.xml", None, None),
    ("unknown-format", "a.txt", "plain text", None),
    ("not-json", "a.json", "plain text", None),
    ("unknown-version", "a.xml", PROGRAM, "rccl@0.1"),
    ("wrong-subject", "a.xml", PROGRAM, "workload"),
    ("not-used-by-version", "a.xml", PROGRAM, "rccl@7.13"),
)
# Rules without an input above. Tests of their package name most of them; no test names
# ambiguous-format, undecided-format, copy-range, those of mpi, and those of executed programs.
UNTRIGGERED = {
    "core": {
        *("ambiguous-format", "blocked", "checked-in-blocks", "empty-step", "fifo-deadlock"),
        *("not-available", "not-used-by-newest", "not-verified", "output-too-small"),
        *("self-message", "timing-only", "too-large", "undecided-format"),
        *(
            "limit",
            "memory-limit",
            "program-answer",
            "program-failed",
            "program-prints",
            "syntax",
            "time-limit",
        ),
    },
    "mpi": {"communicator-size", "not-ascending", "unknown-collective"},
    "msccl": {
        *("copy-range", "cyclic-dependencies", "empty", "fifo-deadlock", "late-dependency"),
        *("nop-in-reduction", "reduction-chain", "scratch-range", "shared-connection"),
        *("too-large", "too-many-dependencies"),
    },
    "nccl": {"too-many", "unknown-file"},
}


def _collect(action: Callable[[Callable[[Diagnostic], None]], object]) -> set[str]:
    """Return the rules of all findings that an action reports or raises."""
    findings: list[Diagnostic] = []
    try:
        action(findings.append)
    except HubError as error:
        findings += error.diagnostics
    return {finding.code for finding in findings}


def _verify(path: Path, runtime: str | None = None) -> set[str]:
    def act(report: Callable[[Diagnostic], None]) -> None:
        if runtime is None:
            findings = hub_core.verify(hub_core.read(path, report=report)).diagnostics
        else:
            findings = check_runtime(path, runtime=runtime, report=report).diagnostics
        for finding in findings:
            report(finding)

    return _collect(act)


@pytest.mark.parametrize(("rule", "runtime", "text"), LOADING, ids=[one[0] for one in LOADING])
def test_a_load_check_triggers_its_rule(rule: str, runtime: str, text: str, tmp_path: Path) -> None:
    (tmp_path / "a.xml").write_text(text)
    assert rule in _verify(tmp_path / "a.xml", runtime)


@pytest.mark.parametrize(("rule", "text"), READING, ids=[one[0] for one in READING])
def test_a_file_triggers_its_rule(rule: str, text: str, tmp_path: Path) -> None:
    (tmp_path / "a.xml").write_text(text)
    assert rule in _verify(tmp_path / "a.xml")


@pytest.mark.parametrize(("rule", "name", "text", "runtime"), CHOOSING)
def test_an_input_triggers_its_rule(
    rule: str, name: str, text: str | None, runtime: str | None, tmp_path: Path
) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    assert rule in _verify(tmp_path / name, runtime)


@pytest.mark.parametrize(("rule", "form", "text"), TUNING, ids=[one[0] for one in TUNING])
def test_a_tuner_file_triggers_its_rule(rule: str, form: str, text: str) -> None:
    name, content = _TUNER_FILES.get(form, "a.conf"), text.encode()
    part = SourcePart(name, lambda: content, None, len(content))
    folders = SelectionFolders(discover())
    found = _collect(lambda report: folders.served_calls(Source(name, (part,), report), form))
    assert rule in found


@pytest.mark.parametrize("rule", JOBS)
def test_a_job_triggers_its_rule(rule: str) -> None:
    columns, (parents, children) = JOBS[rule]
    columns = {"group": [-1] * len(columns["rank"])} | columns
    nodes = NodeColumns.from_columns(2, columns, (parents, children))
    job = Workload(nodes, groups=(ProcessGroup("1", (0,)),))
    request = CheckRequest(workload=job, is_thorough=True)
    reports = [run_check(check, request) for check in checks_of(Subject.WORKLOAD, discover())]
    assert rule in {finding.code for report in reports for finding in report.diagnostics}


def test_every_rule_is_triggered_or_listed() -> None:
    triggered = {
        "core": {*(one[0] for one in READING), *(one[0] for one in CHOOSING)},
        "jobs": set(JOBS),
        "mpi": {rule for rule, form, _ in TUNING if form in _TUNER_FILES},
        "msccl": {*(one[0] for one in LOADING), *(one[0] for one in READING)},
        "nccl": {rule for rule, form, _ in TUNING if form not in _TUNER_FILES},
    }
    for provided in discover().all(RuleSet):
        # Plans have a test of their own, with mutations of plans: mscclpp/checking.
        if provided.name == "mscclpp":
            continue
        declared = {rule.name for rule in resolve(provided.offer.rules)()}  # type: ignore[attr-defined]
        missing = declared - triggered[provided.name]
        assert missing == UNTRIGGERED.get(provided.name, set()), provided.name
