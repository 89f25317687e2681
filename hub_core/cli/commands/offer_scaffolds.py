"""Templates of `collhub plugins new --offers` for each kind of offer.

The code of a kind is a module of `examples/offers`, written for a plugin named `example`; the
templates declare it in the plugin's module. The format of the tutorial is
`examples/collhub-example`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hub_core.plugin_api import OFFER_KINDS, OfferKind

_MAX_LINE = 100
_FORMAT = 'FORMAT = Format("example", "one line of text a step", (".example",), rb"^example 1\\n")'
_LINKS = 'LINKS = Format("example-links", "one link a line", (".example-links",))'
_RULES = 'RULES = Format("example-rules", "a line a window of sizes", ())'
_JOB = 'JOB = Format("example-job", "a line a node", (".example-job",), rb"^example-job 1\\n")'
_TIMES = 'TIMES = Format("example-times", "a size and its time a line", (), rb"^example-times 1$")'
_PAGE = 'PAGE = Format("example-report", "a network, a line a link", (".example-report",))'


@dataclass(frozen=True, slots=True)
class Scaffold:
    """Template of a kind of offer.

    `name`: name of the offer. `modules`: files with its code. `arguments`: arguments of the offer,
    as source code. `imports`: names of the plugin API in the arguments. `constant`: definition of a
    constant in the arguments. `about`: description for the README.
    """

    name: str
    modules: tuple[str, ...]
    arguments: tuple[str, ...]
    about: str
    imports: tuple[str, ...] = ()
    constant: str = ""


def _reference(function: str) -> str:
    return f'"collhub_example.{function}"'


SCAFFOLDS = {
    "reader": Scaffold(
        "example",
        ("read.py", "samples.py"),
        (
            "FORMAT",
            _reference("read:read"),
            f"samples={_reference('samples:samples')}",
        ),
        "reads `.example`: one line of text a step",
        ("Format",),
        _FORMAT,
    ),
    "workload-reader": Scaffold(
        "example-job",
        ("read_workload.py",),
        (
            "JOB",
            _reference("read_workload:read"),
            f"samples={_reference('read_workload:samples')}",
        ),
        "reads jobs from `.example-job`, a line a node",
        ("Format",),
        _JOB,
    ),
    "measurement-reader": Scaffold(
        "example-times",
        ("read_measurements.py",),
        (
            "TIMES",
            _reference("read_measurements:read"),
            f"samples={_reference('read_measurements:samples')}",
        ),
        "reads measured times from `example-times`, a line a size",
        ("Format",),
        _TIMES,
    ),
    "synthesizer": Scaffold(
        "example",
        ("synthesize.py",),
        ('"example"', '"all-gathers around a ring"', _reference("synthesize:synthesize")),
        "makes all-gathers that pass every part around a ring",
    ),
    "workload-generator": Scaffold(
        "example",
        ("generate.py",),
        (
            '"example"',
            '"compute, then reduce the gradients of all ranks"',
            _reference("generate:generate"),
        ),
        "makes jobs of steps that compute, then reduce the gradients of all ranks",
    ),
    "writer": Scaffold(
        "example",
        ("write.py", "options.py"),
        ("FORMAT", _reference("write:write"), "WriteOptions"),
        "writes `.example`; lost are lanes, durations, source lines, the stated size, extensions",
        ("Format",),
        _FORMAT,
    ),
    "workload-writer": Scaffold(
        "example-job",
        ("write_workload.py",),
        ("JOB", _reference("write_workload:write")),
        "writes jobs as `.example-job`, a line a node",
        ("Format",),
        _JOB,
    ),
    "simulator": Scaffold(
        "example",
        ("simulate.py",),
        ('"example"', '"one message at a time"', _reference("simulate:simulate")),
        "times algorithms as if the network carried one message at a time",
    ),
    "workload-simulator": Scaffold(
        "example",
        ("simulate_workload.py",),
        ('"example"', '"messages take no time"', _reference("simulate_workload:simulate")),
        "times jobs as if messages took no time",
    ),
    "executor": Scaffold(
        "example",
        ("execute.py",),
        ('"example"', '"one step after the other"', _reference("execute:execute")),
        "runs algorithms on arrays, one step after the other",
    ),
    "report-writer": Scaffold(
        "example-report",
        ("report.py",),
        ("PAGE", "Shown.TOPOLOGY", _reference("report:write")),
        "writes networks as `.example-report`, a line a link",
        ("Format", "Shown"),
        _PAGE,
    ),
    "selection-writer": Scaffold(
        "example-rules",
        ("write_selection.py",),
        ("RULES", _reference("write_selection:write"), _reference("write_selection:read")),
        "writes tuned selections as `example-rules`, a line a window of sizes",
        ("Format",),
        _RULES,
    ),
    "topology-reader": Scaffold(
        "example-links",
        ("read_topology.py",),
        (
            "LINKS",
            _reference("read_topology:read"),
            f"samples={_reference('read_topology:samples')}",
        ),
        "reads networks from `.example-links`, a line a link",
        ("Format",),
        _LINKS,
    ),
    "topology-writer": Scaffold(
        "example-links",
        ("write_topology.py",),
        ("LINKS", _reference("write_topology:write")),
        "writes networks without switches as `.example-links`, a line a link",
        ("Format",),
        _LINKS,
    ),
    "topology-builder": Scaffold(
        "example",
        ("build_topology.py",),
        (
            '"example"',
            '"all NPUs joined to NPU 0"',
            _reference("build_topology:build"),
            '"example:4"',
        ),
        "builds networks from texts such as `example:4`",
    ),
    "pass": Scaffold(
        "example",
        ("transform.py",),
        ('"example"', '"forgets the lanes of all steps"', _reference("transform:run")),
        "forgets the lanes of all steps",
    ),
    "check": Scaffold(
        "example",
        ("check.py",),
        ('"example"', "Subject.ALGORITHM", '"at most 32 channels"', _reference("check:run")),
        "checks that an algorithm has at most 32 channels",
        ("Subject",),
    ),
    "rule-set": Scaffold(
        "example",
        ("rules.py",),
        ('"example"', '"findings of the example"', _reference("rules:rules")),
        "explains the findings of the check for `collhub explain`",
    ),
    "command": Scaffold(
        "example",
        ("command.py",),
        (
            '"example"',
            '"Say how many links leave each NPU."',
            _reference("command:command"),
        ),
        "the command `collhub example T`: how many links leave each NPU of a network",
    ),
    "engine": Scaffold(
        "example",
        ("start_engine.py",),
        ('"example"', '"threads of this process"', _reference("start_engine:start")),
        "runs many tasks at once in threads of this process",
    ),
    "lower-bound": Scaffold(
        "example",
        ("prove_bound.py",),
        (
            '"example"',
            '"all-gathers: bytes by the bandwidth into all NPUs"',
            _reference("prove_bound:prove"),
            "(CollectiveKind.ALL_GATHER,)",
            "loading_work=10_000_000",
        ),
        "proves a time that no all-gather beats",
    ),
}
"""By the kind's noun, with `-` for a blank, in the order of `OFFER_KINDS`."""


def kinds_of(nouns: Sequence[str]) -> list[OfferKind]:
    """The kinds of these nouns, in the order of `OFFER_KINDS`."""
    # However often one was named.
    return [kind for kind in OFFER_KINDS if kind.word in nouns]


def plugin_module(nouns: Sequence[str]) -> str:
    """Return the source text of a plugin module with one example of each kind in `nouns`.

    `nouns`: kinds of offers, such as `writer` or `lower-bound`. Their order, repeated and
    unknown ones have no effect. The text has imports, the API version, each constant of the
    examples once, then one function per hook. A hook function returns the examples of its
    kinds. Functions and examples are in the order of `OFFER_KINDS`. Without known kinds there
    are no functions. The text has a line break at its end.
    """
    kinds = kinds_of(nouns)
    scaffolds = [SCAFFOLDS[kind.word] for kind in kinds]
    names = {kind.type.__name__ for kind in kinds}.union(
        *(scaffold.imports for scaffold in scaffolds)
    )
    constants = dict.fromkeys(scaffold.constant for scaffold in scaffolds if scaffold.constant)
    lines = [
        '"""What this distribution offers to the hub; listing it imports none of the work."""',
        "",
        "from __future__ import annotations",
        "",
        "from collections.abc import Sequence",
        "",
        *(["from collhub_example.options import WriteOptions"] if "writer" in nouns else []),
        *(["from hub_core.model import CollectiveKind"] if "lower-bound" in nouns else []),
        "from hub_core.plugin_api import (",
        *(f"    {name}," for name in (*sorted(names), "hookimpl")),
        ")",
        "",
        "COLLHUB_PLUGIN_API = (1, 0)",
        *(line for constant in constants for line in ("", constant)),
    ]
    for hook in dict.fromkeys(kind.hook for kind in kinds):
        lines += _generate_hook(hook, [kind for kind in kinds if kind.hook == hook])
    return "\n".join(lines) + "\n"


def readme(nouns: Sequence[str]) -> str:
    """Return the README of a new distribution, with a table of its offers.

    `nouns`: kinds of offers, with hyphens (`lower-bound`). Unknown and repeated ones are
    ignored. The table has one row per kind, in the order of `OFFER_KINDS`: the kind (with
    blanks), the name of its example, and the description of this example. Without kinds it
    has no rows. The README still has the name of the example distribution; the caller
    replaces it.
    """
    rows = []
    for kind in kinds_of(nouns):
        scaffold = SCAFFOLDS[kind.word]
        rows.append(f"| {kind.noun} | `{scaffold.name}` | {scaffold.about} |")
    return _README.replace("ROWS", "\n".join(rows))


def _generate_hook(name: str, kinds: Sequence[OfferKind]) -> Iterator[str]:
    """Yield the source of the hook function `name`, which returns one example object per kind.

    The parts are: two empty lines, `@hookimpl`, the signature, the docstring, and a `return` of a
    list. The list has one object per kind, in order: the type name with `(`, one line for each of
    the arguments in `SCAFFOLDS`, and `),`.

    - Docstring: `Offer the NOUN, the NOUN.`; if this line is longer than `_MAX_LINE` (100), it is
      `Offer N kinds of work.`
    - Signature: it returns `Sequence[TYPE | TYPE]`. If it is longer than `_MAX_LINE`, the types
      stand on a line of their own. If that line too is longer, each type has its own line. A
      signature of several lines is one yielded text.
    """
    types = " | ".join(kind.type.__name__ for kind in kinds)
    offered = ", ".join(f"the {kind.noun}" for kind in kinds)
    signature = f"def {name}() -> Sequence[{types}]:"
    if len(signature) > _MAX_LINE:
        fits = len(types) + 4 <= _MAX_LINE
        listed = types if fits else types.replace(" | ", "\n    | ")
        signature = f"def {name}() -> Sequence[\n    {listed}\n]:"
    yield from ("", "", "@hookimpl", signature)
    summary = f'    """Offer {offered}."""'
    is_long = len(summary) > _MAX_LINE
    yield f'    """Offer {len(kinds)} kinds of work."""' if is_long else summary
    yield "    return ["
    for kind in kinds:
        yield f"        {kind.type.__name__}("
        yield from (f"            {argument}," for argument in SCAFFOLDS[kind.word].arguments)
        yield "        ),"
    yield "    ]"


_README = """# collhub-example

What `example` offers to Collective Hub:

| offer | name | what it does |
|---|---|---|
ROWS

```
python -m pip install .
collhub plugins check example
```

Tests: `python -m pip install .[test] && pytest`. They run the conformance kit of the hub, which
also runs as `pytest --collhub-plugin example --pyargs hub_core.testing.suite`.
"""
