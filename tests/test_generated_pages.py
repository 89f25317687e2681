"""Generated pages equal the declarations of rules and commands, which are complete."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from hub_core.pipeline.core_rules import collect_rules, list_rules
from hub_core.plugin_api import RuleSet, resolve
from hub_core.registry.discovery import discover, load_core_only
from hub_core.testing.generated_pages import format_command_page, format_rules_page

ROOT = Path(__file__).resolve().parents[1]
# Modules whose findings a rule set declares, by the name of the set.
MODULES = {
    "core": (
        "hub_core/verification/*.py",
        "hub_core/model/messages.py",
        *(f"hub_core/model/{name}.py" for name in ("algorithm", "collectives", "counts", "steps")),
        "hub_core/chakra/*.py",
        "hub_core/trace_profile/*.py",
        "hub_core/documents/algorithms.py",
        "hub_core/documents/strict_json.py",
        "hub_core/documents/topologies.py",
        "hub_core/network/texts.py",
        "hub_core/network/topology.py",
        "hub_core/pipeline/measurements.py",
        "hub_core/pipeline/sources.py",
        "hub_core/pipeline/checks.py",
        "hub_core/pipeline/detection.py",
        "hub_core/pipeline/bounded_reads.py",
        "hub_core/cli/session_inputs.py",
        "hub_core/sandbox/*.py",
    ),
    "msccl": (
        *("collhub_msccl/runtimes/*.py", "collhub_msccl/reading/*.py"),
        *("collhub_msccl/read_program.py", "collhub_msccl/language/operation_columns.py"),
        "collhub_msccl/language/child.py",
    ),
    "mscclpp": ("collhub_mscclpp/checking/*.py", "collhub_mscclpp/reading/*.py"),
    "jobs": (
        *("collhub_jobs/check.py", "collhub_jobs/documents.py", "collhub_job_traces/*.py"),
        *("collhub_simai/*.py", "collhub_pipeline/schedule_csv.py"),
    ),
    "goal": ("collhub_goal/*.py",),
    "sccl": ("collhub_sccl/*.py",),
    "teccl": ("collhub_teccl/*.py",),
    "profiles": (
        *("collhub_pytorch/analysis/*.py", "collhub_pytorch/kineto/*.py"),
        *("collhub_pytorch/nccl/*.py", "collhub_pytorch/nsys/*.py", "collhub_nccl_records/*.py"),
        *(
            f"collhub_pytorch/{name}.py"
            for name in (
                *("calls", "ccl_bench", "execution_trace", "formats", "job", "profile_formats"),
                *("profile_reading", "rank_nodes", "trace_files", "predicted_times"),
            )
        ),
    ),
    "hlo": (
        "collhub_hlo/*.py",
        *(
            f"collhub_hlo_modules/{name}.py"
            for name in ("collectives", "groups", "module", "shardings", "text", "work")
        ),
    ),
    "diagnosis": (
        *("collhub_diagnosis/dump_entries.py", "collhub_diagnosis/nccl_evidence.py"),
        *("collhub_diagnosis/pickle_values.py", "collhub_diagnosis/read_evidence.py"),
    ),
    "coconet": (
        *("collhub_coconet/documents/*.py", "collhub_coconet/program/*.py"),
        *("collhub_coconet/torch_programs/reading.py", "collhub_hlo_modules/program_graph.py"),
        "collhub_coconet/torch_programs/graph_meshes.py",
        "collhub_coconet/torch_programs/typing_graphs.py",
        *(f"collhub_captured_graphs/{name}.py" for name in ("export_archive", "graph", "meshes")),
    ),
    "nccl-files": (
        *("collhub_nccl/graphs/*.py", "collhub_nccl/topologies/*.py"),
        *("collhub_nccl/explain/tuning_log.py", "collhub_nccl/explain/log_check.py"),
        "collhub_nccl/explain/command.py",
    ),
    "measurements": (
        *("collhub_machines/reading.py", "collhub_machines/*_results.py"),
        *("collhub_machines/perf_output.py", "collhub_machine_profiles/*.py"),
    ),
    "fabrics": ("collhub_fabrics/*.py", "collhub_networks/*.py"),
    "infragraph": ("collhub_infragraph/*.py",),
    "astra-sim": (
        *("collhub_astra_sim/folders/configurations.py", "collhub_astra_sim/folders/read.py"),
        *("collhub_astra_sim/folders/folder.py", "collhub_astra_sim/networks/*.py"),
        *("collhub_astra_sim/workloads/*.py", "collhub_astra_sim/simulating/*.py"),
        "collhub_astra_sim/binary.py",
    ),
    "nccl": ("collhub_nccl/tuner/*.py",),
    "mpi": ("collhub_mpi/tuned/*.py",),
    "topologies": ("collhub_topologies/connectedness.py",),
    "synthesis": (
        *("collhub_certificates/*.py", "collhub_tacos/phases/fused.py"),
        "collhub_blink/packing/single_root.py",
    ),
    "reshard": ("collhub_reshard/recheck.py", "collhub_reshard/scheduling/best.py"),
    "execution": ("collhub_execution/*.py", "collhub_local/run_command.py"),
    "study": ("collhub_tuning/tuned_folder.py", "collhub_compose/inputs.py"),
}
# Identifiers that are formatted (`unknown-{attribute}`, `limit-{resource}-of-operation`), and the
# default of errors without one.
_FORMATTED = {
    *("unknown-type", "unknown-srcbuf", "unknown-dstbuf"),
    *("limit-semaphores-of-operation", "limit-channels-of-operation", "invalid-input"),
}
# Prefixes that a class of errors puts before its identifiers, by rule set; the rest is literal.
_PREFIXES = {"reshard": "reshard-", "synthesis": "certificate-"}
_IDENTIFIER = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*\Z")
# Functions of the repository that create a finding; its identifier is among the first arguments.
_CREATING = {
    *("Diagnostic", "add", "add_rows", "note", "refuse_once", "warn", "report", "at"),
    *("on_plan", "on_rank", "refuse_rank", "_fail", "_make_finding"),
    *("_create_finding", "add_error", "add_errors_at", "_warn", "_add_error", "_warn_at_starts"),
}
# Functions that get the identifier after other arguments, and the classes of such errors.
_CREATING_LATER = {
    *("fail", "refuse", "error_at", "warn_at", "error_report", "WireError", "TypingMistakeError"),
    *("invalid", "build_error", "_build_error", "_report_note", "_report_warning", "document_of"),
    *("_refuse", "refuse_at", "_evaluate"),
}
# Identifiers of errors in the request, such as options of readers and writers, which are no findings
# in files, and words that the search takes for identifiers.
_USAGE = {"usage", "option-value", "several-programs", "unknown-option", "invalid-subset"}
_USAGE_OF_SET = {
    "goal": {"collective", "duration", "extensions"},
    "diagnosis": {"communicators"},
    "nccl-files": {"all-reduce", "bus-id", "profile-size"},
    "infragraph": {"unknown-link"},
    "astra-sim": {"dimensions", "links"},
}


def _list_modules(name: str) -> list[Path]:
    found = []
    for pattern in MODULES[name]:
        prefix = "" if name == "core" else "plugins/*/src/"
        found += sorted(ROOT.glob(prefix + pattern))
    assert found
    return found


def _list_sources(name: str) -> list[Path]:
    """Return all modules of the distributions of which a rule set has modules."""
    files = _list_modules(name)
    roots = {"hub_core" if name == "core" else file.relative_to(ROOT).parts[1] for file in files}
    folders = (
        [ROOT / "hub_core"] if name == "core" else [ROOT / "plugins" / one / "src" for one in roots]
    )
    return [file for folder in folders for file in sorted(folder.rglob("*.py"))]


def _find_identifiers(module: Path) -> set[str]:
    """Return the identifiers of the findings that the source of a module creates.

    These are the first argument (of some functions any argument) and the argument `code` of calls
    that create findings, also in both branches of a conditional expression, the default of a
    parameter `code`, and the elements of tuples before a message: a text with a blank, or a
    formatted one. `InputError` without a code has `invalid-input`, which is not listed.
    """
    names: set[str] = set()
    for node in ast.walk(ast.parse(module.read_text("utf-8"))):
        if isinstance(node, ast.Call):
            function = node.func
            called = getattr(function, "attr", getattr(function, "id", ""))
            given = [keyword.value for keyword in node.keywords if keyword.arg == "code"]
            if called in _CREATING_LATER:
                given += node.args
            elif called in _CREATING:
                given += node.args[:1] if called != "_make_finding" else node.args[2:3]
            names.update(name for value in given for name in _list_texts(value))
        if isinstance(node, ast.FunctionDef):
            named = node.args.args[-len(node.args.defaults) :] if node.args.defaults else []
            pairs = zip(named, node.args.defaults, strict=True)
            given = [default for parameter, default in pairs if parameter.arg == "code"]
            names.update(name for value in given for name in _list_texts(value))
        if isinstance(node, ast.Tuple):
            at = next((k for k, part in enumerate(node.elts) if _is_message(part)), 0)
            names.update(name for value in node.elts[:at] for name in _list_texts(value))
    return {name for name in names if _IDENTIFIER.match(name)}


def _is_message(value: ast.expr) -> bool:
    if isinstance(value, ast.Name):
        return value.id == "message"
    is_text = isinstance(value, ast.Constant) and isinstance(value.value, str)
    return isinstance(value, ast.JoinedStr) or (is_text and " " in ast.unparse(value))


def _list_texts(value: ast.expr) -> Iterator[str]:
    if isinstance(value, ast.IfExp):
        yield from _list_texts(value.body)
        yield from _list_texts(value.orelse)
    elif isinstance(value, ast.Constant) and isinstance(value.value, str):
        yield value.value


@pytest.mark.needs_plugins
def test_every_rule_set_has_its_modules_here() -> None:
    assert {provided.name for provided in discover().all(RuleSet)} == set(MODULES)


@pytest.mark.needs_plugins
@pytest.mark.parametrize("name", MODULES)
def test_every_finding_of_the_source_code_is_declared(name: str) -> None:
    (offer,) = [one.offer for one in discover().all(RuleSet) if one.name == name]
    declared = [rule.name for rule in resolve(offer.rules)()]  # type: ignore[attr-defined]
    assert len(set(declared)) == len(declared)
    emitted = set().union(*map(_find_identifiers, _list_modules(name)))
    emitted -= _USAGE | _USAGE_OF_SET.get(name, set())
    if name != "core":
        emitted -= {rule.name for rule in list_rules()}
    assert sorted(emitted - set(declared)) == []
    # A declared rule is in the source text, so that no page describes a finding that was removed.
    sources = [path.read_text() for path in _list_sources(name)]
    text = "".join(source for source in sources if "declare_rules" not in source)
    texts = {rule: {rule, rule.removeprefix(_PREFIXES.get(name, ""))} for rule in declared}
    found = {rule for rule in declared if any(f'"{one}"' in text for one in texts[rule])}
    assert sorted(set(declared) - found - _FORMATTED) == []


@pytest.mark.needs_plugins
def test_the_page_of_rules_equals_the_declarations() -> None:
    page = format_rules_page(collect_rules(discover()))
    assert (ROOT / "docs" / "rules.md").read_text() == page, (
        "run: python -m hub_core.testing.generated_pages rules > docs/rules.md"
    )


@pytest.mark.needs_plugins
def test_the_page_for_scripts_equals_the_declarations_of_the_commands() -> None:
    assert (ROOT / "docs" / "scripts.md").read_text() == format_command_page(discover()), (
        "run: python -m hub_core.testing.generated_pages commands > docs/scripts.md"
    )


def test_the_page_for_scripts_has_schema_and_exit_codes_of_the_core_commands() -> None:
    page = format_command_page(load_core_only())
    section = page.partition("\n### verify\n")[2].partition("\n### ")[0]
    assert "Exit 0 if every mode that an algorithm claims is correct and every --check" in section
    assert "[`collhub/report-load-all-1`](../schemas/report-load-all-1.json)" in section


def test_rules_are_sentences() -> None:
    for declarations in collect_rules(discover()).values():
        for rule in declarations:
            assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", rule.name)
            for text in (rule.meaning, rule.cause, rule.cure):
                assert re.fullmatch(r"[A-Z<`a-z].*\.", text), (rule.name, text)
            assert rule.example


def test_a_rule_is_explained(collhub) -> None:
    run = collhub("explain", "race")
    assert run.code == 0
    assert "meaning  Two steps access the same units" in run.out
    report = collhub("explain", "race", "--json").report()
    assert {item["rule"] for item in report["rules"]} == {"race"}
    assert len(collhub("explain", "--json").report()["rules"]) >= 25
    unknown = collhub("explain", "racee")
    assert (unknown.code, "did you mean 'race'?" in unknown.err) == (2, True)
