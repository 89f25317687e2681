"""The conformance files of profile v1: the standalone validator and the hub give the same verdict."""

from __future__ import annotations

import ast
import importlib.util
import json
import random
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import jsonschema
import pytest

from hub_core.chakra import AttributeKind
from hub_core.model.diagnostics import HubError
from hub_core.plugin_api import Source, SourcePart
from hub_core.trace_profile.formats import ChakraReadOptions
from hub_core.trace_profile.metadata import KINDS
from hub_core.trace_profile.read import chakra_algorithm

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "conformance"
DOCUMENT = (ROOT / "docs" / "profile-v1.md").read_text()
# The codes of the hub for the violation of each requirement.
CODES = {
    "P-1": {"rank-files"},
    "P-2": {"truncated", "malformed-record", "gzip"},
    "P-3": {"empty-file", "missing-metadata"},
    "P-4": {"no-nodes", "empty-record"},
    "P-5": {"malformed-record", "old-schema"},
    "P-6": {"duplicate-attribute"},
    "P-7": {"unknown-profile"},
    "P-8": {"missing-metadata"},
    "P-9": {"attribute-kind"},
    "P-10": {"rank-files"},
    "P-11": {"rank-files"},
    "P-12": {"rank-files"},
    **{f"P-{number}": {"invalid-metadata", "invalid-collective"} for number in range(13, 19)},
    "P-19": {"invalid-metadata", "missing-metadata"},
    "P-20": {"node-type"},
    "P-21": {"duplicate-id"},
    "P-22": {"dangling-dependency"},
    "P-23": {"cyclic-dependencies"},
    "P-24": {"duplicate-attribute"},
    "P-25": {"attribute-kind"},
    "P-26": {"attribute-range"},
    "P-27": {"missing-attribute"},
    "P-28": {"rank-files", "attribute-range"},
    "P-29": {"missing-attribute", "attribute-range", "receive-reduce"},
    "P-30": {"size-mismatch"},
    "P-31": {"size-mismatch", "missing-metadata"},
    "P-32": {"size-mismatch"},
    "P-33": {"receive-reduce"},
    "P-34": {"receive-reduce"},
    "P-35": {"size-mismatch"},
    "P-36": {"step-count"},
    "P-37": {"dangling-dependency", "cyclic-dependencies"},
    "P-38": {"tag-mismatch"},
    "P-39": {"invalid-metadata", "missing-metadata", "invalid-counts", "invalid-collective"},
}


def load_program(name: str) -> ModuleType:
    """Import a program of the folder `conformance`."""
    specification = importlib.util.spec_from_file_location(
        f"conformance_{name}", FOLDER / f"{name}.py"
    )
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    # Dataclasses look their module up.
    sys.modules[specification.name] = module
    specification.loader.exec_module(module)
    return module


CASES_MODULE, VALIDATOR = load_program("cases"), load_program("validate")
CASES = CASES_MODULE.all_cases()


def read_by_hub(files: dict[str, bytes]) -> str:
    """Return the code of the error with which the hub refuses the files, empty if it reads them."""
    parts = tuple(SourcePart(name, partial(files.__getitem__, name)) for name in files)
    try:
        chakra_algorithm(Source("trace", parts), ChakraReadOptions())
    except HubError as error:
        return error.diagnostics[0].code
    return ""


def validate(files: dict[str, bytes], folder: Path) -> list[Any]:
    """Write the files into a folder that is emptied first, and return the validator's findings."""
    for path in folder.iterdir():
        path.unlink()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    findings: list[Any] = VALIDATOR.check(folder)[1]
    return findings


@pytest.mark.once
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.folder)
def test_validator_and_hub_give_the_expected_verdict(case: Any, tmp_path: Path) -> None:
    requirements = {finding.requirement for finding in validate(case.files, tmp_path)}
    code = read_by_hub(case.files)
    if case.requirement:
        assert case.requirement in requirements
        assert code in CODES[case.requirement]
    else:
        assert (requirements, code) == (set(), "")


def test_the_index_lists_these_files() -> None:
    assert (FOLDER / "index.json").read_text() == CASES_MODULE.build_index(CASES)


def test_there_are_cases_of_every_requirement_of_the_document() -> None:
    numbers = {f"P-{number}" for number in range(1, 40)}
    assert {case.requirement for case in CASES} == numbers | {""}
    assert set(re.findall(r"^\| (P-\d+) \|", DOCUMENT, re.MULTILINE)) == numbers
    assert set(CODES) == numbers
    assert sum(not case.requirement for case in CASES) >= 40
    assert sum(bool(case.requirement) for case in CASES) >= 40


@pytest.mark.once
def test_mutated_files_get_the_same_verdict(tmp_path: Path) -> None:
    chosen = random.Random(40)
    for _ in range(60):
        case = chosen.choice([case for case in CASES if not case.requirement])
        name = chosen.choice(sorted(case.files))
        content = bytearray(case.files[name])
        content[chosen.randrange(len(content))] ^= 1 << chosen.randrange(8)
        files = {**case.files, name: bytes(content)}
        findings = validate(files, tmp_path)
        # Files without a profile are read as other traces.
        if "profile is missing" not in str(findings):
            code = read_by_hub(files)
            assert bool(findings) == bool(code), (case.folder, name, list(map(str, findings)), code)


def test_the_programs_need_the_standard_library_only() -> None:
    for path in FOLDER.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported = [alias.name for alias in node.names]
            else:
                imported = [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            roots = {name.partition(".")[0] for name in imported}
            assert roots <= sys.stdlib_module_names | {"__future__"}, path.name


def test_the_validator_prints_findings_and_exit_codes(tmp_path: Path) -> None:
    for case in CASES:
        if case.folder in ("valid/relay", "invalid/cycle"):
            (tmp_path / case.folder).mkdir(parents=True)
            for name, content in case.files.items():
                (tmp_path / case.folder / name).write_bytes(content)
    wrong = tmp_path / "invalid" / "cycle"

    def run(*arguments: object) -> tuple[int, str]:
        command = [sys.executable, str(FOLDER / "validate.py"), *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    assert run(tmp_path / "valid" / "relay") == (0, "3 files, 0 findings\n")
    code, printed = run("--json", wrong / "trace.0.et")
    assert code == 1
    report = json.loads(printed)
    (finding,) = report["findings"]
    assert (report["ok"], report["files"]) == (False, 1)
    assert (finding["requirement"], finding["node"]) == ("P-23", "COMP_NODE 0")
    assert finding["cure"] == "remove one dependency of the cycle"
    assert run(tmp_path / "absent.0.et")[0] == 2


@pytest.mark.parametrize("subject", ["metadata", "node"])
def test_schemas_have_the_attributes_and_kinds_of_the_tables(subject: str) -> None:
    properties = load_schema(subject)["properties"]
    kinds = {name: entry["chakraKind"] for name, entry in properties.items()}
    rows = re.findall(r"^\| (`.*?) \| (\w+_(?:val|list)) \|", DOCUMENT, re.MULTILINE)
    documented = {
        name: kind for cells, kind in rows for name in re.findall(r"`(\w+)`", cells)
    }  # fmt: skip
    expected = {name: kind.field for name, kind in KINDS.items()}
    if subject == "node":
        expected = {name: kind for name, kind in documented.items() if name not in expected}
    assert kinds == expected
    assert kinds.items() <= documented.items()
    assert all(AttributeKind[kind.removesuffix("_val").upper()] for kind in kinds.values())


@pytest.mark.once
def test_attributes_of_valid_files_follow_the_schemas() -> None:
    validators = [
        jsonschema.Draft202012Validator(load_schema(subject)) for subject in ("metadata", "node")
    ]
    # Cases of unusual kinds have the same values.
    for case in (case for case in CASES if not case.requirement and "kind" not in case.folder):
        for content in case.files.values():
            metadata: dict[str, tuple[int, object]] = {}
            first, *others = VALIDATOR.split_records(content)
            VALIDATOR.parse_metadata(first, metadata)
            validators[0].validate({name: value for name, (_, value) in metadata.items()})
            for record in others:
                attributes = VALIDATOR.parse_node(record).attributes
                known = {n: value for n, (_, value) in attributes.items() if "vendor" not in n}
                validators[1].validate(known)


@pytest.mark.parametrize(
    ("subject", "change"),
    [
        ("metadata", {"collective": "broadcast"}),
        ("metadata", {"root": 0}),
        ("metadata", {"out_of_place": False}),
        ("metadata", {"collective": "custom"}),
        ("metadata", {"expected_rank": [0]}),
        ("metadata", {"unit_count": 0}),
        ("node", {"region": [0, 1]}),
        ("node", {"region": [4, 0, 1]}),
        ("node", {"comm_tag": -1}),
        ("node", {"comm_dst": "1"}),
    ],
)
def test_schemas_refuse_other_values(subject: str, change: dict[str, object]) -> None:
    (case,) = [case for case in CASES if case.folder == "valid/absolute"]
    first, _, send, *_ = VALIDATOR.split_records(case.files["trace.0.et"])
    attributes: dict[str, tuple[int, object]] = {}
    VALIDATOR.parse_metadata(first, attributes)
    if subject == "node":
        attributes = VALIDATOR.parse_node(send).attributes
    values = {name: value for name, (_, value) in attributes.items()}
    schema = load_schema(subject)
    jsonschema.validate(values, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(values | change, schema)


def load_schema(subject: str) -> dict[str, Any]:
    """Load the schema of the attributes of the metadata or of a node."""
    path = ROOT / "schemas" / f"trace-profile-{subject}-1.json"
    schema: dict[str, Any] = json.loads(path.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    return schema
