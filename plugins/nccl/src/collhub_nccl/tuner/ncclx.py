"""Read tuner files of NCCLX, as CSV and JSON, and report their faults.

A rule has the columns collective, bytesPerRank, algorithm, protocol, channels, nNodes, nLocalRanks
[, chunkSize]. Numbers may be intervals such as `(1024,]`, `*` or an empty field is any number.
Source: `comms/ncclx/meta/tuner` of torchcomms (59426ba4). NCCLX does not start with an invalid
file unless NCCLX_TUNER_IGNORE_CONFIG_ERRORS=1 is set.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from collhub_machine_profiles.nccl_constants import ALGORITHMS, PROTOCOLS

from collhub_nccl.tuner.read import (
    Defect,
    explain_channels,
    explain_size,
    explain_unknown_word,
    find_doubtful_choices,
    find_files,
    note_heading,
)
from collhub_nccl.tuner.rules import (
    COLLECTIVES,
    EVERY,
    LARGEST,
    MAX_RULES,
    Dialect,
    Range,
    TunerRule,
    check_rules,
    explain_refusal,
    find_served_calls,
    find_stated_communicators,
)
from hub_core.model import Diagnostic, Location, Severity, parse_whole
from hub_core.plugin_api import ServedCalls, Source

CSV_FILE, JSON_FILE = "ncclx_tuner.csv", "ncclx_tuner.json"
NCCLX = Dialect("NCCLX", "-1", skips_refused=False, counts_per_rank=True)

_COLUMNS = (
    *("collective", "bytesPerRank", "algorithm", "protocol", "channels", "nNodes"),
    *("nLocalRanks", "chunkSize"),
)
_REQUIRED_FIELDS = 7
_FILTER_KEYS = ("collective", "bytesPerRank", "nNodes", "nLocalRanks")
_CONFIG_KEYS = ("algorithm", "protocol", "channels", "chunkSize")
_EFFECT = "NCCLX does not start"
_INTERVAL = re.compile(r"([\[(])\s*(\d{0,20})\s*,\s*(\d{0,20})\s*([\])])", re.ASCII)
_INTERVAL_CURE = "write a number, *, or an interval such as [1024,2048), [1024,) or (,2048]"


def read(source: Source) -> Sequence[ServedCalls]:
    """Return the calls that NCCLX decides by tuner files; report faults without raising.

    A part with an unexpected name is reported and skipped, unless it is the only file. A name
    with `.json` at its end is read as JSON, any other as CSV. Rules with a fault decide no
    calls. After `MAX_RULES` (2000) valid rules, further ones are reported once and not read.

    Each file is evaluated for one communicator, the first that its rules name; one with both
    numbers (nodes and ranks) is preferred. Of its rules for a collective, the first that
    contains a size decides. Each result is the collective and a range of sizes of one rule.

    The order is: files, rules, sizes. Sizes are bytes of the full buffer if both numbers are
    known, otherwise bytes per rank, and `by` then has the suffix ", sizes per rank".
    """
    served: list[ServedCalls] = []
    for part in find_files(source, (CSV_FILE, JSON_FILE)):
        read_rows = _read_json if part.name.endswith(".json") else _read_csv
        rules: list[TunerRule] = []
        for line, fields in read_rows(part.load(), part.name, source):
            location = Location(part.name, line)
            if len(rules) == MAX_RULES:
                message = f"more than {MAX_RULES} rules; this one and later ones were not checked"
                source.report(Diagnostic("too-many", message, location=location))
                break
            rule = _read_rule(line, fields, part.name, source)
            if rule is not None:
                rules.append(rule)
                for finding in find_doubtful_choices(rule, part.name):
                    source.report(finding)
        for finding in check_rules(rules, NCCLX, part.name):
            source.report(finding)
        stated = find_stated_communicators(rules)
        nodes, local_ranks = stated[0] if stated else (None, None)
        if nodes is not None and local_ranks is not None:
            served += find_served_calls(rules, nodes, local_ranks, nodes * local_ranks)
        else:
            served += [
                replace(calls, by=f"{calls.by}, sizes per rank")
                for calls in find_served_calls(rules, nodes, local_ranks)
            ]
    return served


def parse_interval(text: str) -> Range | None:
    """Return (first, last) of a number or an interval, both included; None for any other text.

    Blanks around the text, and around the numbers in brackets, are ignored. `*` and "" give
    `EVERY`, which is (0, `LARGEST`) with `LARGEST` = 2^64 - 1. A number up to `LARGEST` gives
    itself twice: `8` gives (8, 8). Signs, points and a number above `LARGEST` give None.

    In an interval, `[` and `]` include their end, `(` and `)` exclude it: `[4,8)` gives (4, 7).
    A missing first number means 0, a missing last one `LARGEST`, with either bracket. The last
    is at most `LARGEST`. An interval without a whole number has its first above its last:
    `(4,5)` gives (5, 4).
    """
    text = text.strip()
    if text in ("", "*"):
        return EVERY
    number = parse_whole(text, LARGEST)
    if number is not None:
        return number, number
    match = _INTERVAL.fullmatch(text)
    if match is None:
        return None
    opening, low, high, closing = match.groups()
    first = int(low) + (opening == "(") if low else 0
    last = int(high) - (closing == ")") if high else LARGEST
    return first, min(last, LARGEST)


def _read_csv(content: bytes, file: str, source: Source) -> Iterator[tuple[int, Mapping[str, str]]]:
    """Yield line number and fields by column of each rule of a CSV configuration.

    Commas within brackets belong to a field. Empty lines and comments are ignored, but a comment
    that names minimum or maximum bytes is warned of (`unit`), because NCCLX reads bytes per rank. A
    line that names the columns is a note (`heading`). A line with fewer than `_REQUIRED_FIELDS`
    fields is reported as `not-a-rule` and left out; surplus fields are ignored, missing optional
    ones absent.
    """
    for number, raw in enumerate(content.decode("latin-1").split("\n"), 1):
        line = raw.strip()
        location = Location(file, number)
        if not line or line.startswith("#"):
            if re.search(r"min_?bytes|max_?bytes", line, re.IGNORECASE):
                message = "the comment names smallest and largest sizes; NCCLX reads bytes per rank"
                cure = "divide total sizes by the number of ranks, write intervals"
                source.report(Diagnostic("unit", message, Severity.WARNING, location, cure))
            continue
        if line.lower().startswith("collective,bytesperrank,"):
            source.report(note_heading(location))
            continue
        fields = [field.strip() for field in re.split(r",(?![^\[(]*[\])])", line)]
        if len(fields) < _REQUIRED_FIELDS:
            message = f"{len(fields)} fields; {_EFFECT}: it needs 7: {','.join(_COLUMNS[:7])}"
            cure = "write * for any number"
            source.report(Diagnostic("not-a-rule", message, location=location, cure=cure))
            continue
        yield number, dict(zip(_COLUMNS, fields, strict=False))


def _read_json(
    content: bytes, file: str, source: Source
) -> Iterator[tuple[int, Mapping[str, str]]]:
    """Yield (line, fields) for each valid rule of a JSON document, in the order of the document.

    A rule is an object with the objects `filter` and `config`. `fields` has their values as texts,
    by key. Integers become decimal texts; texts are kept. A key that the rule lacks is absent.
    `line` is that of `_find_rule_lines`, from 1.

    Nothing is raised. All faults are reported to `source` as errors:

    - `not-a-rule`, once, if the text is no JSON or has no list `rules`; then no rule is yielded;
    - `not-a-rule` for an item without the two objects; the item is skipped;
    - `unknown-word` for each key of the two objects that is unknown there, and for each value that
      is neither text nor integer (a boolean is not an integer). Only this field is left out; the
      rule is yielded. Other members of the document or of a rule are ignored.
    """
    text = content.decode("utf-8", "replace")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        line = error.lineno if isinstance(error, json.JSONDecodeError) else None
        # The parser refuses a number of more than 4300 digits with a plain ValueError.
        is_deep = isinstance(error, RecursionError)
        reason = "nested too deeply" if is_deep else getattr(error, "msg", "a number is too long")
        message = f"no JSON; {_EFFECT}: {reason}"
        location = Location(file, line)
        source.report(Diagnostic("not-a-rule", message, location=location, cure="correct it"))
        return
    rules = document.get("rules") if isinstance(document, dict) else None
    if not isinstance(rules, list):
        message = f'no list "rules"; {_EFFECT}'
        cure = '{"rules": [{"filter": {...}, "config": {...}}]} is expected'
        source.report(Diagnostic("not-a-rule", message, location=Location(file), cure=cure))
        return
    for line, rule in zip(_find_rule_lines(text, len(rules)), rules, strict=True):
        location = Location(file, line)
        members = (
            [rule.get(name) for name in ("filter", "config")] if isinstance(rule, dict) else []
        )
        parts = [member for member in members if isinstance(member, dict)]
        if len(parts) < 2:
            message = f"a rule without the objects filter and config; {_EFFECT}"
            cure = 'write {"filter": {...}, "config": {...}}'
            source.report(Diagnostic("not-a-rule", message, location=location, cure=cure))
            continue
        fields: dict[str, str] = {}
        for part, keys in zip(parts, (_FILTER_KEYS, _CONFIG_KEYS), strict=True):
            for key, value in part.items():
                if key in keys and isinstance(value, str | int) and not isinstance(value, bool):
                    fields[key] = str(value)
                    continue
                message = f"{key!r:.40}: {value!r:.40} is not a value of {', '.join(keys)}"
                cure = "write numbers or texts under these keys"
                source.report(Diagnostic("unknown-word", message, location=location, cure=cure))
        yield line, fields


def _find_rule_lines(text: str, count: int) -> list[int]:
    """Return the line (from 1) on which each of the first `count` items of the list `rules` begins.

    `text` is valid JSON. The list is the first `"rules": [` in the text, at any depth. If the text
    has no such list, or the list has fewer than `count` items, the result is `[1] * count`. The
    result is [] if `count` is 0.
    """
    start = re.search(r'"rules"\s*:\s*\[', text)
    decoder, lines = json.JSONDecoder(), []
    position = len(text) if start is None else start.end()
    number, counted = 1, 0
    for _ in range(count):
        while position < len(text) and text[position] in " \t\r\n,":
            position += 1
        number += text.count("\n", counted, position)
        counted = position
        lines.append(number)
        try:
            _, position = decoder.raw_decode(text, position)
        except ValueError:
            return [1] * count
    return lines


def _read_rule(line: int, fields: Mapping[str, str], file: str, source: Source) -> TunerRule | None:
    """Return the rule with these fields (texts by column), or None if it has a fault.

    Every fault that `_find_defects` yields is reported to `source` as an error at `line` of
    `file`. A column that is missing or "" has a default:

    - bytesPerRank, nNodes and nLocalRanks: `EVERY`, as for `*`. Other texts become the range
      (first, last) of `parse_interval`;
    - channels: 0, as for -1 (the library chooses the number);
    - chunkSize: 0.

    Collective, algorithm and protocol have no default: without one of them the rule has a fault.
    The sizes of the rule are bytes per rank, and its `ranks` are the ranks of a node.
    """
    defects = list(_find_defects(fields))
    for code, message, cure in defects:
        location = Location(file, line)
        source.report(Diagnostic(code, message, location=location, cure=cure))
    if defects:
        return None
    channels = fields.get("channels", "")
    nodes, ranks = (
        parse_interval(fields.get(column, "")) or EVERY for column in ("nNodes", "nLocalRanks")
    )
    return TunerRule(
        line,
        COLLECTIVES[fields["collective"]],
        parse_interval(fields.get("bytesPerRank", "")) or EVERY,
        fields["algorithm"],
        fields["protocol"],
        0 if channels in ("", "-1") else int(channels),
        nodes,
        ranks,
        chunk_bytes=int(fields.get("chunkSize") or 0),
    )


def _find_defects(fields: Mapping[str, str]) -> Iterator[Defect]:
    """Yield every fault of a rule as (code, message, cure); nothing for a valid rule.

    `fields` has texts by column; a missing column counts as "". The checks are, in this order:

    1. collective, algorithm, protocol: `unknown-word` for a word that NCCLX does not know.
    2. bytesPerRank, nNodes, nLocalRanks: a number, an interval (`parse_interval`), or "" or `*` for
       any number. `out-of-range` for other text, an interval without a whole number, and 0 nodes or
       ranks. `unit` for bytesPerRank with a unit, such as 64KiB.
    3. channels: `out-of-range` unless it is -1, 0, "" or 1 to 64.
    4. chunkSize: `unit` or `out-of-range` unless it is "" or a whole number of bytes below 2^64.
    5. Only if all words are known: `refused-choice` if no communicator of any size can execute the
       collective with this algorithm and protocol.
    """
    known = True
    for column, words in (
        ("collective", tuple(COLLECTIVES)),
        ("algorithm", ALGORITHMS),
        ("protocol", PROTOCOLS),
    ):
        word = fields.get(column, "")
        if word not in words:
            known = False
            yield explain_unknown_word(word, column, words, _EFFECT)
    for column in ("bytesPerRank", "nNodes", "nLocalRanks"):
        text = fields.get(column, "")
        interval = parse_interval(text)
        if interval is None:
            size = explain_size(text, _EFFECT) if column == "bytesPerRank" else None
            if size is not None and size[0] == "unit":
                yield size
            else:
                message = f"{column} {text!r:.40} is not a number or an interval; {_EFFECT}"
                yield "out-of-range", message, _INTERVAL_CURE
        elif interval[0] > interval[1]:
            message = f"{column} {text!r:.40} contains no whole number"
            yield "out-of-range", message, "write the smaller end first, and include one end"
        elif column != "bytesPerRank" and interval == (0, 0):
            yield "out-of-range", f"{column} is 0, but every communicator has 1 or more", "write *"
    channels = explain_channels(fields.get("channels", "") or "-1", NCCLX)
    if channels:
        yield channels
    chunk = fields.get("chunkSize") or "0"
    if defect := explain_size(chunk, _EFFECT):
        yield defect
    refusal = ""
    if known:
        refusal = explain_refusal(
            COLLECTIVES[fields["collective"]], fields["algorithm"], fields["protocol"]
        )
    if refusal:
        yield (
            "refused-choice",
            f"no communicator of NCCLX executes the rule: {refusal}",
            "write ring",
        )
