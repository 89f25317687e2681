"""One invalid input per kind of file: error line with place, rule and exit code, no other output."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.needs_plugins, pytest.mark.once]
ALL_TO_ALL = (
    "synthesize direct --collective all-to-all-v --topology ring:2 --size 1MiB --counts FILE"
)
# File, content, command, exit code, start of the error after `error: `, rule.
CASES = (
    ("a.xml", "<algo ngpus=", "verify FILE", 1, "a.xml:1: the file ends", "truncated"),
    ("a.xml", "\n", "verify FILE", 1, "a.xml: the file is empty", "empty"),
    ("a.xml", "<graph/>", "verify FILE", 1, "a.xml:1: the root element is <graph>", "wrong-root"),
    ("a.json", "{}", "verify FILE", 1, "a.json: no reader recognises", "unknown-format"),
    ("a.json", "hello", "verify FILE", 1, "a.json: is not JSON", "not-json"),
    (
        "a.json",
        '{"schema": "collhub/algorithm-9"}',
        "verify FILE",
        1,
        "a.json: $.schema: the schema is",
        "invalid-json",
    ),
    ("a.0.et", "hello", "verify FILE", 1, "a.0.et: byte 1: the file is truncated", "truncated"),
    ("a.py", "def f(\n", "verify FILE", 1, "a.py:1: is no Python program", "syntax"),
    (
        "a.py",
        "from msccl.language import *\n1 / 0\n",
        "verify FILE",
        1,
        "a.py:2: ZeroDivisionError",
        "program-failed",
    ),
    ("a.goal", "num_ranks 1\nrank 0 {\na: x\n}\n", "verify FILE", 1, "a.goal:3: ", "goal-syntax"),
    ("a.hlo", "HloModule x\nENTRY e {\n", "inspect FILE", 1, "a.hlo:2: ", "cut"),
    ("a.mlir", "module {\n func.func @main(\n", "inspect FILE", 1, "a.mlir:2: ", "cut"),
    ("a.aicb.txt", "HYBRID\n", "inspect FILE", 1, "a.aicb.txt:1: ", "simai"),
    ("a.flows.csv", "a,b\n", "inspect FILE", 1, "a.flows.csv:1: ", "simccl"),
    ("a.flows.txt", "1\n", "inspect FILE", 1, "a.flows.txt:1: ", "empty"),
    ("a.pt2", "no archive", "inspect FILE", 1, "a.pt2: no readable archive", "archive"),
    ("a.0.pt.trace.json", "{}", "inspect FILE", 1, "a.0.pt.trace.json: ", "unknown-format"),
    ("a.0.sqlite", "text", "inspect FILE", 1, "a.0.sqlite: this is no SQLite file", "format"),
    ("a.0.inspector.jsonl", "x\n", "inspect FILE", 1, "a.0.inspector.jsonl:1: ", "empty"),
    ("a.log", "no line\n", "nccl explain --log FILE", 1, "a.log: ", "no-tuning-lines"),
    ("a.txt", "hello\n", "calibrate FILE -o OUT", 1, "a.txt:1: ", "unknown-measurements"),
    ("a.json", "{}", "machines check FILE", 1, "a.json: ", "invalid-profile"),
    (
        "a.yml",
        "topology: [ Ring ]\nnpus_count: [ two ]\nbandwidth: [ 5 ]\nlatency: [ 5 ]\n",
        "topology show FILE",
        1,
        "a.yml:2: npus_count 'two'",
        "invalid-network-yaml",
    ),
    ("a.topo", "Nodes many\n", "topology show FILE", 1, "a.topo:1: ", "invalid-htsim-topology"),
    (
        "a.conf",
        "SwitchName=s Nodes=a[0-\n",
        "topology show FILE",
        1,
        "a.conf:1: ",
        "invalid-fabric",
    ),
    ("a.json", '{"entries": 3}', "diagnose FILE", 1, "a.json: ", "no-rank"),
    ("a_0.json", '{"entries": 3}', "diagnose FILE", 1, "a_0.json: ", "invalid-dump"),
    ("a.csv", "F0,X1\n", "pipeline FILE", 1, "a.csv:1: cell ", "pipeline-csv"),
    ("a.csv", "1,2\n3\n", ALL_TO_ALL, 1, "a.csv: the row of rank 1 has 1 counts", "invalid-counts"),
    ("a.csv", "1,x\n3,4\n", ALL_TO_ALL, 1, "a.csv:1: column 2: 'x'", "invalid-counts"),
    ("a.csv", "1,2\n3,-4\n", ALL_TO_ALL, 1, "a.csv: rank 1 to rank 1: -4", "invalid-counts"),
    ("a.json", "3", "verify FILE --baseline FILE", 1, "a.json: is not a rea", "invalid-baseline"),
    ("a.txt", "", "verify none.xml", 1, "none.xml: there is no such file", "unreadable-input"),
    ("a.txt", "", "topology show rnig:4", 2, "unknown topology 'rnig'", "unknown-topology"),
    ("a.txt", "", "topology show ring:4?x=1", 2, "topology 'ring:4?x=1'", "invalid-topology-text"),
    ("a.txt", "", "verify a.txt --runtime ncl", 2, "there is no runtime 'ncl'", "unknown-name"),
    ("a.txt", "", "verify a.txt --from xm", 2, "there is no reader 'xm'", "unknown-name"),
    ("a.txt", "", "generate moe -O rank=2 -o OUT", 2, "there is no option", "unknown-option"),
    (
        "a.txt",
        "",
        "generate moe -O ranks=two -o OUT",
        2,
        "workload generator moe: ",
        "option-value",
    ),
    ("a.txt", "", "explain racee", 2, "there is no rule 'racee'", "unknown-rule"),
    ("a.txt", "", "zoo get nobody -o OUT", 2, "the zoo installed has no entry", "unknown-entry"),
    ("a.txt", "", "verfy a.txt", 2, "there is no command 'verfy'", "unknown-command"),
)


@pytest.mark.parametrize(
    ("name", "content", "command", "code", "start", "rule"),
    CASES,
    ids=[f"{number}-{case[-1]}" for number, case in enumerate(CASES)],
)
def test_an_invalid_input_is_an_error_with_place_and_rule(
    name: str,
    content: str,
    command: str,
    code: int,
    start: str,
    rule: str,
    collhub: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).write_text(content)
    run = collhub(*(command.replace("FILE", name).replace("OUT", "out").split()))
    assert (run.code, run.out) == (code, "")
    first = run.error_lines[0]
    assert first.startswith(f"error: {start}")
    assert first.endswith(f" [{rule}]")
    # No output file is written.
    assert [path.name for path in tmp_path.iterdir()] == [name]
    # The rule has a page.
    assert collhub("explain", rule).code == 0
