"""One small input per rule that triggers it; `ELSEWHERE` names the tests of the other rules."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import hub_core
from hub_core.chakra import encode_metadata
from hub_core.documents.algorithms import write as write_document
from hub_core.model import (
    Algorithm,
    Diagnostic,
    HubError,
    NodeColumns,
    ProcessGroup,
    StepTable,
    Workload,
    message_bytes,
    placement_of,
)
from hub_core.pipeline.checks import check_runtime, checks_of, run_check
from hub_core.pipeline.measurements import read_measurements
from hub_core.pipeline.outputs import SelectionFolders
from hub_core.plugin_api import (
    CheckRequest,
    NoOptions,
    RuleSet,
    Source,
    SourcePart,
    Subject,
    resolve,
)
from hub_core.registry.discovery import discover
from hub_core.testing import pipeline
from hub_core.testing.samples import ring_all_reduce, uneven_all_gather
from hub_core.trace_profile.formats import ChakraReadOptions, ChakraWriteOptions
from hub_core.trace_profile.read import chakra_algorithm
from hub_core.trace_profile.write import write as write_traces

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


def _step(
    at: int, kind: str, offset: int = 0, wait: tuple[int, int] = (-1, -1), signals: int = 0
) -> str:
    """Return a step within a rank; `wait`: thread block and step; `signals`: its hasdep."""
    place = f'srcbuf="i" srcoff="{offset}" dstbuf="i" dstoff="{offset}" cnt="1"'
    if kind == "nop":
        place = 'srcbuf="i" srcoff="-1" dstbuf="o" dstoff="-1" cnt="0"'
    waits = f'depid="{wait[0]}" deps="{wait[1]}" hasdep="{signals}"'
    return f'<step s="{at}" type="{kind}" {place} {waits}/>'


def _local(number: int, *steps: str) -> str:
    """Return a thread block without peers."""
    return f'<tb id="{number}" send="-1" recv="-1" chan="0">{"".join(steps)}</tb>'


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
    (
        "shared-connection",
        _build(
            _block(1, "s i 0", receives=False) + _block(1, "s i 1", number=1, receives=False),
            _block(0, "r i 0", "r i 1"),
        ),
    ),
    ("reduction-chain", _build(_local(0, *(_step(at, "re") for at in range(33))), "")),
    (
        "nop-in-reduction",
        _build(
            _local(0, _step(0, "re"), _step(1, "nop", wait=(1, 0)), _step(2, "re"))
            + _local(1, _step(0, "cpy", 1, signals=1)),
            "",
        ),
    ),
    (
        "late-dependency",
        _build(
            _local(0, _step(0, "cpy"), _step(1, "cpy", signals=1))
            + _local(1, _step(0, "cpy", 1, wait=(0, 0))),
            "",
        ),
    ),
    (
        "cyclic-dependencies",
        _build(
            _local(0, _step(0, "nop", wait=(1, 0), signals=1), _step(1, "cpy"))
            + _local(1, _step(0, "nop", wait=(0, 0), signals=1), _step(1, "cpy")),
            "",
        ),
    ),
    (
        "scratch-range",
        _build(
            _block(1, "rrs i 0", "cpy s 5"),
            _block(0, "s i 0", "r i 0"),
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
    (
        "heading",
        "nccl-tuner",
        "collective_type,min_bytes,max_bytes,algorithm,protocol,channels,a,b",
    ),
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
    ("unknown-collective", "openmpi-classic", "1\n99\n"),
    ("unknown-algorithm", "openmpi-classic", "1\n2\n1\n0\n1\n0 99 0 0\n"),
    ("other-collective", "openmpi-classic", "1\n1\n1\n0\n1\n0 0 0 0\n"),
    ("communicator-size", "openmpi-classic", "1\n2\n1\n4\n1\n0 3 0 0\n"),
    ("not-ascending", "openmpi-classic", "1\n2\n1\n0\n1\n1024 3 0 0\n"),
    ("unknown-file", "nccl-folder", ""),
)
# By format: the format that is read, and the name of the file.
_TUNER_FILES = {
    "openmpi": ("openmpi", "notes.txt"),
    "openmpi-classic": ("openmpi", "tuned_rules.conf"),
    "nccl-folder": ("nccl-tuner", "notes.txt"),
    "ucc": ("ucc", "ucc.conf"),
    "mpich": ("mpich", "coll_selection.json"),
}
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
    ("not-exported", "a.nsys-rep", "plain text", None),
    ("not-json", "a.json", "plain text", None),
    ("unknown-version", "a.xml", PROGRAM, "rccl@0.1"),
    ("wrong-subject", "a.xml", PROGRAM, "workload"),
    ("not-used-by-version", "a.xml", PROGRAM, "rccl@7.13"),
    ("not-applicable", "a.xml", PROGRAM, "mscclpp"),
)
# Findings with a named format or an option: rule, file, content, format, options.
OPTIONS = (
    ("empty", "a.xml", " \n", "msccl-xml", {}),
    ("not-a-program", "a.py", "x = 1\n", "mscclang", {}),
    (
        "copy-range",
        "a.xml",
        _build('<copy i_off="8" o_off="0"/>', "").replace('"allreduce"', '"custom"'),
        "msccl-xml",
        {"copies": "run"},
    ),
)
# Findings of the reader of job traces: rule, ranks whose files exist, options.
JOB_FILES: dict[str, tuple[tuple[int, ...], dict[str, str]]] = {
    "rank-files": ((0, 2), {}),
    "rank-range": ((0, 2), {"ranks_missing": "assume-same", "ranks": "2"}),
    "ranks-assumed": ((0, 2), {"ranks_missing": "assume-same"}),
}
# Changes of the document of an all-reduce of 2 ranks: rule, path of the value, the new value.
DOCUMENTS: tuple[tuple[str, tuple[Any, ...], Any], ...] = (
    ("invalid-json", ("steps",), 3),
    ("cyclic-dependencies", ("steps", "data"), [[1], [0], [1], [0], [], [], [5], [4]]),
    ("crossing-dependency", ("steps", "data"), [[4], [], [1], [0], [], [], [5], [4]]),
    ("invalid-collective", ("collective", "root"), 1),
    ("invalid-collective", ("collective", "kind"), "broadcast"),
)
# Changes of the files of ranks 0 and 1 of an algorithm, which is a Chakra trace; rules of the
# remaining findings of traces are in tests/trace_profile/test_conformance.py.
_TEXT = b"<algo/>"
TRACES: dict[str, Callable[[list[bytes]], list[bytes]]] = {
    "empty-file": lambda files: [files[0], b""],
    "gzip": lambda files: [files[0], b"\x1f\x8b" + files[1]],
    "not-a-trace": lambda files: [_TEXT, files[1]],
    "json-form": lambda files: [b'{"version": "0.0.4"} {"id": "x"}', files[1]],
    "malformed-metadata": lambda files: [b"\x02\x07\x07" + files[0], files[1]],
    "legacy-eg": lambda files: [b"\x02\x08\x00" + files[0], files[1]],
    "no-nodes": lambda files: [encode_metadata("0.0.4", ()), files[1]],
    "truncated": lambda files: [files[0], files[1][:-1]],
}
# Errors of models that are built in memory: no reader creates such an algorithm.
MODELS: dict[str, Callable[[Algorithm], object]] = {
    "rank-count": lambda ring: replace(ring, steps=ring_all_reduce(3).steps),
    "invalid-placement": lambda ring: placement_of(replace(ring, extensions={"npus": [0]})),
    "size-range": lambda ring: message_bytes(1 << 61, 1, ring.steps.count),
    "rank-range": lambda ring: _build_table(rank=[7, 0]),
    "invalid-input": lambda ring: _build_table(rank=[0, 1], count=[1]),
    "uneven-parts": lambda ring: uneven_all_gather(2).collective.units_per_rank,
    "invalid-extension": lambda ring: [
        artifact.content()
        for artifact in write_traces(
            replace(ring, extensions={"chakra": {"ranks": {"0": {"ids": [0]}}}}),
            ChakraWriteOptions(),
        ).artifacts
    ],
    "invalid-topology-text": lambda ring: hub_core.parse_topology("ring:x"),
    "unknown-measurements": lambda ring: read_measurements([str(ROOT / "LICENSE")]),
    "undecided-format": lambda ring: hub_core.write(ring, "ring.txt"),
}


def _build_table(**columns: list[int]) -> StepTable:
    """Build the steps of two ranks."""
    return StepTable.from_columns(2, {"kind": [0, 0], **columns}, ([], []), ([], []), "a")


# Rules of which an input is large, or needs a process or other plugins: the test that triggers it.
ELSEWHERE = {
    "core": {
        "invalid-topology": "tests/test_reader_rules.py",
        "ambiguous-format": "tests/cli/test_report_files.py",
        "bound-beaten": "tests/pipeline/test_bounds.py",
        "lossy": "tests/test_rules_by_command.py",
        "blocked": "tests/verification/test_verification_rules.py",
        "checked-by-ranges": "tests/verification/test_uniform_ranges.py",
        "checked-in-blocks": "tests/verification/test_unit_blocks.py",
        "dangling": "tests/documents/test_algorithm_document.py",
        "empty-step": "tests/verification/test_verification_rules.py",
        "fifo-deadlock": "tests/verification/test_verification_rules.py",
        "invalid-counts": "tests/model/test_counts.py",
        "limit": "tests/sandbox/test_source_programs.py",
        "memory-limit": "tests/sandbox/test_source_programs.py",
        "not-available": "tests/pipeline/test_topology_input.py",
        "several-files": "tests/pipeline/test_sources.py",
        "not-used-by-newest": "tests/cli/test_load_check.py",
        "not-verified": "tests/cli/test_gate.py",
        "output-too-small": "tests/verification/test_verification_rules.py",
        "program-answer": "tests/sandbox/test_source_programs.py",
        "program-prints": "tests/sandbox/test_source_programs.py",
        "program-failed": "tests/sandbox/test_source_programs.py",
        "self-message": "tests/verification/test_verification_rules.py",
        "syntax": "tests/sandbox/test_source_programs.py",
        "time-limit": "plugins/msccl/tests/msccl/test_language_reader.py",
        "timing-only": "tests/verification/test_verification_rules.py",
        "too-large": "tests/verification/test_verification_rules.py",
        "workload-trace": "tests/trace_profile/test_refusals.py",
        **dict.fromkeys(
            (
                *(
                    "attribute-kind",
                    "attribute-range",
                    "dangling-dependency",
                    "duplicate-attribute",
                ),
                *("duplicate-id", "empty-record", "invalid-metadata", "malformed-record"),
                *("missing-attribute", "missing-metadata", "node-type", "old-schema", "rank-files"),
                *("receive-reduce", "size-mismatch", "step-count", "tag-mismatch"),
                "unknown-profile",
            ),
            "tests/trace_profile/test_conformance.py",
        ),
    },
    "jobs": {
        **dict.fromkeys(
            (
                *("empty", "no-schedule", "pipeline-csv", "simai", "simai-flows"),
                *("simccl", "too-large"),
            ),
            "tests/test_reader_rules.py",
        ),
        "algorithm": "plugins/jobs/tests/job_traces/test_embedded.py",
        "invalid-counts": "plugins/jobs/tests/job_traces/test_embedded.py",
        "groups-assumed": "plugins/jobs/tests/job_traces/test_stated_groups.py",
        "node": "plugins/jobs/tests/job_traces/test_nodes.py",
    },
    "msccl": {
        "check-failed": "plugins/msccl/tests/msccl/test_language_reader.py",
        "fifo-deadlock": "plugins/msccl/tests/msccl/runtimes/test_fifo_safety.py",
        "mscclpp-program": "plugins/msccl/tests/msccl/test_language_reader.py",
        "no-program": "plugins/msccl/tests/msccl/test_language_reader.py",
        "too-large": "tests/test_rules_by_command.py",
        "thread-block-assignment": "plugins/msccl/tests/msccl/test_language_lowering.py",
        "too-many-dependencies": "plugins/msccl/tests/msccl/reading/test_dependencies.py",
        "two-buffers": "plugins/msccl/tests/msccl/test_language_reader.py",
    },
    "nccl": {"too-many": "plugins/nccl/tests/tuner/test_tuner_faults.py"},
}

# Rules of folders of plans: a part of the message in the tests of MSCCL++.
PLAN_FOLDERS = {
    "not-registered": "register.py does not name it",
    "call": "a call of allgather with 16 bytes throws",
    "calls-tried": "calls tried as the runtime names them",
    "missing-file": "register.py is missing",
    "changed-program": "not as 'collhub tune' writes it",
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
    form, name = _TUNER_FILES.get(form, (form, "a.conf"))
    content = text.encode()
    part = SourcePart(name, lambda: content, None, len(content))
    source = "folder" if name == "notes.txt" else name
    folders = SelectionFolders(discover())
    found = _collect(lambda report: folders.served_calls(Source(source, (part,), report), form))
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


@pytest.mark.parametrize(("rule", "name", "text", "form", "options"), OPTIONS)
def test_an_input_with_options_triggers_its_rule(
    rule: str, name: str, text: str, form: str, options: dict[str, str], tmp_path: Path
) -> None:
    file = tmp_path / name
    file.write_text(text)

    def read(report: Callable[[Diagnostic], None]) -> object:
        return hub_core.read(file, format=form, options=options, report=report)

    assert rule in _collect(read)


@pytest.mark.parametrize("rule", JOB_FILES)
def test_files_of_a_job_trigger_its_rule(rule: str, tmp_path: Path) -> None:
    ranks, options = JOB_FILES[rule]
    hub_core.write(pipeline(), tmp_path / "job.et", format="chakra-workload")
    for rank in {0, 1, 2, 3} - {*ranks}:
        (tmp_path / f"job.{rank}.et").unlink()

    def read(report: Callable[[Diagnostic], None]) -> object:
        return hub_core.read_workload(tmp_path / "job.0.et", options=options, report=report)

    assert rule in _collect(read)


@pytest.mark.parametrize(("rule", "path", "value"), DOCUMENTS)
def test_a_document_triggers_its_rule(
    rule: str, path: tuple[Any, ...], value: Any, tmp_path: Path
) -> None:
    (artifact,) = write_document(ring_all_reduce(2), NoOptions()).artifacts
    document = json.loads(artifact.content())
    place = document
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    (tmp_path / "a.json").write_text(json.dumps(document))
    assert rule in _verify(tmp_path / "a.json")


@pytest.mark.parametrize("rule", TRACES)
def test_a_trace_triggers_its_rule(rule: str) -> None:
    written = write_traces(ring_all_reduce(2), ChakraWriteOptions()).artifacts
    contents = TRACES[rule]([bytes(artifact.content()) for artifact in written])
    parts = [
        SourcePart(f"a.{rank}.et", lambda content=content: content, rank)  # type: ignore[misc]
        for rank, content in enumerate(contents)
    ]
    source = Source("a", tuple(parts))
    assert rule in _collect(lambda report: chakra_algorithm(source, ChakraReadOptions()))


@pytest.mark.parametrize("rule", MODELS)
def test_a_model_triggers_its_rule(rule: str) -> None:
    assert rule in _collect(lambda report: MODELS[rule](ring_all_reduce(2)))


def test_every_rule_is_triggered_or_listed() -> None:
    triggered = {
        "core": {one[0] for one in (*READING, *CHOOSING, *DOCUMENTS)} | {*TRACES, *MODELS},
        "jobs": {*JOBS, *JOB_FILES},
        "mpi": {rule for rule, form, _ in TUNING if form in _TUNER_FILES},
        "msccl": {one[0] for one in (*LOADING, *READING, *OPTIONS)},
        "nccl": {rule for rule, form, _ in TUNING if form not in _TUNER_FILES or "nccl" in form},
    }
    for provided in discover().all(RuleSet):
        name = provided.name
        # Classes of request errors are in test_rules_by_command.py.
        declared = {
            rule.name
            for rule in resolve(provided.offer.rules)()  # type: ignore[attr-defined]
            if not rule.subject.startswith("requests: ")
        }
        if name == "mscclpp":
            # Plans have mutations of their own.
            folder = ROOT / "plugins" / "msccl" / "tests" / "mscclpp"
            text = "".join(file.read_text() for file in sorted(folder.rglob("*.py")))
            in_text = {rule for rule in declared if f'"{rule}"' in text}
            in_text |= {rule for rule, message in PLAN_FOLDERS.items() if message in text}
            assert sorted(declared - in_text) == []
            continue
        if name not in triggered:
            # Rules of readers, in test_reader_rules.py.
            continue
        elsewhere = ELSEWHERE.get(name, {})
        missing = declared - triggered[name] - elsewhere.keys()
        assert missing == set(), name
        for rule, file in elsewhere.items():
            assert rule in declared - triggered[name], rule
            assert f'"{rule}"' in (ROOT / file).read_text(), (rule, file)
