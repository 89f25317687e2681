"""Findings of `collhub verify` as files for CI: SARIF 2.1.0, JUnit XML, and accepted findings.

Sources: SARIF 2.1.0 (OASIS, errata 01); the properties that GitHub code scanning reads
(docs.github.com, "SARIF support for code scanning"). All files are deterministic: the same inputs
in the same order give the same bytes, and no file contains a time or an absolute path of a file
below the current folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated
from urllib.parse import quote
from xml.sax.saxutils import escape, quoteattr

import msgspec

from hub_core.cli.reports.finding_lines import FileLines
from hub_core.model.diagnostics import Diagnostic, InputError, Location, Severity
from hub_core.plugin_api.options import Rule
from hub_core.reports import Meta, Record, Report
from hub_core.version import __version__

SARIF_SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)
# Numbers of lines in messages, which change when lines are inserted above a finding.
_LINE_NUMBER = re.compile(r"\b(lines?) \d+|(\.\w+):\d+")
# Characters that XML 1.0 does not allow.
_NOT_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True, slots=True)
class CheckedSource:
    """One input of `collhub verify`: its verdict and its findings, first causes first."""

    source: str
    ok: bool
    findings: Sequence[Diagnostic]


@dataclass(frozen=True, slots=True)
class FileFinding:
    """One finding with its place in a file.

    `source`: input as given. `uri`: the file, relative to the current folder if it is below it.
    `line`: 1-based; 1 if the finding has no known line. `fingerprint`: identifies the finding when
    lines are inserted or removed above it: a hash of rule, file, rank, message without numbers of
    lines, and the number of equal findings before this one.
    """

    source: str
    uri: str
    line: int
    fingerprint: str
    diagnostic: Diagnostic

    @property
    def is_error(self) -> bool:
        """Whether it makes the check fail, unless it is accepted."""
        return self.diagnostic.severity is Severity.ERROR


class AcceptedFinding(Record, frozen=True, kw_only=True):
    """One accepted finding; only `fingerprint` is compared."""

    rule: str
    file: str
    message: str
    fingerprint: str


class Baseline(Report, tag="collhub/baseline-1", frozen=True, kw_only=True):
    """Findings that `collhub verify --baseline FILE` accepts."""

    accepted: Annotated[Sequence[AcceptedFinding], Meta(description="By file and fingerprint.")]


def locate_findings(checked: Sequence[CheckedSource]) -> list[FileFinding]:
    """Return the findings of all inputs with URI, line and fingerprint, in the order of the inputs.

    Findings of an input keep their order. First, a note becomes an error if the same input has an
    error with the same code: such a note gives the number of errors that are not listed. Then, if
    the input failed (`ok` is False) and has no error, the error `not-verified` is added at its end.

    The URI is that of the file that a finding names, or of the input if there is no such file
    (`_find_file`, `_to_uri`). The line is 1 if it is unknown.

    A fingerprint identifies a finding in later runs, also if lines move. It is a hash (32
    hexadecimal digits) of code, URI, rank and message, without line numbers such as `line 7` and
    `.json:7`. It also covers the number of findings before it, in all inputs, that are equal in
    these four.
    """
    located: list[FileFinding] = []
    occurrences: dict[str, int] = {}
    lines = FileLines()
    for one in checked:
        # A note of a rule with errors gives the number of errors that are not listed.
        failing = {entry.code for entry in one.findings if entry.severity is Severity.ERROR}
        findings = [
            replace(finding, severity=Severity.ERROR)
            if finding.severity is Severity.NOTE and finding.code in failing
            else finding
            for finding in one.findings
        ]
        if not one.ok and all(finding.severity is not Severity.ERROR for finding in findings):
            failed = Diagnostic("not-verified", "the check fails", location=Location(one.source))
            findings.append(failed)
        for finding in findings:
            stated = finding.location.file
            file = _find_file(one.source, stated)
            uri = _to_uri(file)
            text = _LINE_NUMBER.sub(r"\1\2", finding.message)
            key = "\0".join((finding.code, uri, str(finding.location.rank), text))
            number = occurrences.get(key, 0)
            occurrences[key] = number + 1
            fingerprint = hashlib.sha256(f"{key}\0{number}".encode(errors="replace")).hexdigest()
            # Bytes of a trace in JSON form refer to the records to which it is converted.
            has_bytes = stated is None or os.path.basename(stated) == os.path.basename(file)
            line = lines.find_line(file, finding, has_bytes=has_bytes)
            located.append(FileFinding(one.source, uri, line, fingerprint[:32], finding))
    return located


def _find_file(source: str, file: str | None) -> str:
    """Return the path of the file to which a finding refers.

    `file`: the name in the finding, often without its folder; `source`: the path of the
    input. The result is `source` if `file` is None, `source` or the base name of `source`.
    Otherwise it is `file` if that is an existing file, else the file of this name in the
    folder of `source`, else `source`.
    """
    if file is None or file == source or os.path.basename(source) == file:
        return source
    beside = os.path.join(os.path.dirname(source), file)
    for path in (file, beside):
        if os.path.isfile(path):
            return path
    return source


def _to_uri(file: str) -> str:
    """Return the URI of a file: relative if it is below the current folder, else `file:` URI.

    Special characters are percent-encoded. Standard input (`-`) has the URI `stdin`.
    Symbolic links are not resolved; the file need not exist.
    """
    if file == "-":
        return "stdin"
    try:
        # Neither follows symbolic links, so that the URI is the name in the repository.
        return quote(Path(os.path.abspath(file)).relative_to(os.getcwd()).as_posix())
    except ValueError:
        return Path(os.path.abspath(file)).as_uri()


def read_baseline(path: str) -> Baseline:
    """Read the accepted findings from a baseline file.

    Raise `InputError` (`invalid-baseline`) if the file cannot be read or is not the JSON
    text of a baseline.
    """
    cure = "write it with 'collhub verify FILE... --write-baseline FILE'"
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=Baseline)
    except (OSError, msgspec.MsgspecError, ValueError) as error:
        reason = error.strerror or str(error) if isinstance(error, OSError) else str(error)
        message = f"is not a readable baseline: {reason}"
        raise InputError(
            message, location=Location(path), cure=cure, code="invalid-baseline"
        ) from None


def build_baseline(findings: Sequence[FileFinding]) -> bytes:
    """Return the JSON text (UTF-8) of a baseline that accepts all these findings.

    The entries are listed under `accepted`, sorted by URI, then by fingerprint. An entry has
    `rule` (the code), `file` (the URI), `message` and `fingerprint`. The text has an indentation of
    2 and a final line break.
    """
    accepted = [
        AcceptedFinding(
            rule=finding.diagnostic.code,
            file=finding.uri,
            message=finding.diagnostic.message,
            fingerprint=finding.fingerprint,
        )
        for finding in sorted(findings, key=lambda item: (item.uri, item.fingerprint))
    ]
    return msgspec.json.format(msgspec.json.encode(Baseline(accepted=accepted)), indent=2) + b"\n"


def build_sarif(findings: Sequence[FileFinding], rules: Mapping[str, Sequence[Rule]]) -> bytes:
    """Return a SARIF 2.1.0 log (UTF-8 JSON) with one result per finding, in the given order.

    The level of a result is the severity of its finding; the text is the message, then `; ` and the
    cure if there is one. URIs are relative to `%SRCROOT%`, the root of the checked repository,
    unless they are absolute (`file:`).

    The log declares each rule that occurs in `findings` once, by ascending identifier. `rules`:
    declarations by identifier. The help of a rule consists of the pages of all its declarations.
    The short description is the meaning if there is exactly one declaration, else `Finding NAME.`;
    without a declaration that is the help too. Without findings, results and rules are empty.
    """
    names = sorted({finding.diagnostic.code for finding in findings})
    positions = {name: position for position, name in enumerate(names)}
    described = []
    for name in names:
        declarations = rules.get(name, ())
        meaning = declarations[0].meaning if len(declarations) == 1 else f"Finding {name}."
        text = "\n\n".join(rule.page for rule in declarations) or f"Finding {name}."
        described.append(
            {
                "id": name,
                "shortDescription": {"text": meaning},
                "help": {"text": text, "markdown": text},
            }
        )
    driver = {"name": "collhub", "version": __version__, "rules": described}
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "results": [
            _build_result(finding, positions[finding.diagnostic.code]) for finding in findings
        ],
    }
    log = {"$schema": SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}
    return (json.dumps(log, indent=2) + "\n").encode()


def _build_result(finding: FileFinding, position: int) -> dict[str, object]:
    diagnostic, location = finding.diagnostic, finding.diagnostic.location
    text = f"{diagnostic.message}; {diagnostic.cure}" if diagnostic.cure else diagnostic.message
    artifact = {"uri": finding.uri}
    if not finding.uri.startswith("file:"):
        artifact["uriBaseId"] = "%SRCROOT%"
    place: dict[str, object] = {
        "physicalLocation": {
            "artifactLocation": artifact,
            "region": {"startLine": finding.line},
        }
    }
    within = {
        name: value
        for name, value in (("rank", location.rank), ("step", location.step))
        if value is not None
    }
    if within:
        path = "/".join(f"{name} {value}" for name, value in within.items())
        place["logicalLocations"] = [{"fullyQualifiedName": path, "kind": "member"}]
    properties: dict[str, object] = {**within}
    if location.byte is not None:
        properties["byte"] = location.byte
    if diagnostic.cure:
        properties["cure"] = diagnostic.cure
    return {
        "ruleId": diagnostic.code,
        "ruleIndex": position,
        "level": str(diagnostic.severity),
        "message": {"text": text},
        "locations": [place],
        "partialFingerprints": {"collhubFinding/v1": finding.fingerprint},
        "properties": properties,
    }


def build_junit(checked: Sequence[CheckedSource], findings: Sequence[FileFinding]) -> bytes:
    r"""Return a JUnit document (XML, UTF-8) with a test case per input, in the order of `checked`.

    The name of a test case is the URI of its input, relative to the current folder if it is below
    it. A finding belongs to all inputs whose `source` equals its own; findings of other sources are
    ignored. Findings keep their order.

    - Errors: the input fails. The first error gives `type` (its code) and `message` of the failure;
      the text of the failure has one line per error.
    - Warnings and notes become `system-out` of the test case, also for an input that fails.

    Only `findings` decide: `ok` and `findings` of `checked` are not read, and accepted findings
    must be removed before. Without inputs the document has an empty test suite. Characters that XML
    does not allow are written as escapes such as `\x00`.
    """
    cases = []
    failures = 0
    for one in checked:
        of_source = [finding for finding in findings if finding.source == one.source]
        errors = [finding for finding in of_source if finding.is_error]
        others = [finding for finding in of_source if not finding.is_error]
        failures += bool(errors)
        name = quoteattr(_to_uri(one.source))
        body = ""
        if errors:
            first = errors[0].diagnostic
            body += (
                f"<failure type={_quote(first.code)} message={_quote(first.message)}>"
                f"{_list_lines(errors)}</failure>"
            )
        if others:
            body += f"<system-out>{_list_lines(others)}</system-out>"
        cases.append(f'    <testcase classname="collhub.verify" name={name}>{body}</testcase>\n')
    counts = f'tests="{len(cases)}" failures="{failures}" errors="0"'
    text = (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f'<testsuites {counts}>\n  <testsuite name="collhub verify" {counts} skipped="0">\n'
        f"{''.join(cases)}  </testsuite>\n</testsuites>\n"
    )
    return text.encode()


def _list_lines(findings: Sequence[FileFinding]) -> str:
    lines = [
        f"{item.uri}:{item.line}: {item.diagnostic.severity} {item.diagnostic.code}: "
        f"{replace(item.diagnostic, location=replace(item.diagnostic.location, file=None))}"
        for item in findings
    ]
    return escape(_mask("\n".join(lines)))


def _quote(text: str) -> str:
    return quoteattr(_mask(text))


def _mask(text: str) -> str:
    r"""Replace characters that XML does not allow by escapes such as `\x00`."""
    return _NOT_XML.sub(lambda match: f"\\x{ord(match[0]):02x}", text)
