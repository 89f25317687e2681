"""Read the files of NCCL's example tuner and of RCCL's tuner, and find lines that they misread.

Both have the columns collective, minBytes, maxBytes, algorithm, protocol, channels, nNodes, nRanks
[, numPipeOps [, regBuff]] and different rules for words, blanks and channels. Sources:
`plugins/tuner/example/plugin.c` of NCCL 2.30.7, `csv_tuner.cc` of RCCL (ROCm 7.13).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from collhub_machine_profiles.nccl_constants import ALGORITHMS, PROTOCOLS

from collhub_nccl.tuner.rules import (
    COLLECTIVES,
    EVERY,
    LARGEST,
    MAX_CHANNELS,
    MAX_RULES,
    Dialect,
    TunerRule,
    check_rules,
    explain_machine_refusal,
    explain_refusal,
    find_served_calls,
    find_stated_communicators,
)
from hub_core.model import CollectiveKind, Diagnostic, Location, Severity, parse_whole
from hub_core.plugin_api import ServedCalls, Source, SourcePart

FILE, RCCL_FILE = "nccl_tuner.conf", "rccl_tuner.csv"
ANY = "-1"
# NCCL's tuner starts with one channel; -1 keeps it, 0 selects NCCL's default number.
OWN_CHANNELS = "0"
NCCL = Dialect("NCCL", OWN_CHANNELS, loses_channels=True)
RCCL = Dialect("RCCL", ANY)

# NCCL runs one ring on every channel, so several rings correspond to its ring too.
_RINGS = {"ring": "ring", "rings": "ring"}
_OF_ALL_REDUCE = {**_RINGS, "double-binary-tree": "tree"}
_WITH_PAT = {**_RINGS, "pat": "pat"}

_COLUMNS = (
    *("collective", "minBytes", "maxBytes", "algorithm", "protocol", "channels", "nNodes"),
    *("nRanks", "numPipeOps", "regBuff"),
)
_REQUIRED_FIELDS = 8
_FIELDS = ",".join(_COLUMNS[:_REQUIRED_FIELDS])
# NCCL's tuner reads it as a rule for 0 nodes, which no communicator has; RCCL's skips it.
_HEADING = re.compile(r"\s*collective\w*\s*,\s*min_?bytes\s*,\s*max_?bytes\s*,", re.IGNORECASE)
# The buffers of the readers: NCCL's reads the rest of a longer line as another line.
_LONGEST_LINE = 255
_WORDS: tuple[tuple[int, tuple[str, ...]], ...] = (
    (0, tuple(COLLECTIVES)), (3, ALGORITHMS), (4, PROTOCOLS)
)  # fmt: skip
# Words that NCCL's example tuner takes in place of unknown ones.
_FALLBACKS = {0: "allreduce", 3: "ring", 4: "simple"}
_END_OF_32_BITS = (1 << 32) - 1
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}

Defect = tuple[str, str, str]
"""Code, message and cure of a fault in one line."""


def own_algorithms(kind: CollectiveKind, num_ranks: int, num_nodes: int) -> Mapping[str, str]:
    """Return NCCL's name of each algorithm of the hub that NCCL has for the collective.

    The keys are names of the hub. Every collective in `COLLECTIVES` has `ring` and `rings`,
    which are both NCCL's `ring`. In addition:

    - All-reduce on several nodes has `double-binary-tree` (NCCL's `tree`). On one node,
      NCCL runs a tree as a chain, which is not faster than its ring.
    - All-gather and reduce-scatter have `pat` (parallel aggregated trees) if each node has
      one rank (`num_nodes == num_ranks`).

    The result is {} for other collectives, which no tuner file can decide.
    """
    if kind is CollectiveKind.ALL_REDUCE:
        return _OF_ALL_REDUCE if num_nodes > 1 else _RINGS
    if kind in (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER):
        return _WITH_PAT if num_nodes == num_ranks else _RINGS
    return _RINGS if kind in COLLECTIVES.values() else {}


def read(source: Source) -> Sequence[ServedCalls]:
    """Return the calls that NCCL's example tuner serves with a file, and report its faults.

    The calls are those of the first communicator that a line states, else those of lines for any
    communicator. A line that the tuner skips or misreads is an error and serves no calls; sizes
    without a line run on one channel: an error in stated communicators, a warning in others.
    `check_rules` lists the other faults. Files of a folder with another name than `FILE` are
    errors.
    """
    return _read_files(source, FILE, NCCL)


def read_rccl(source: Source) -> Sequence[ServedCalls]:
    """Return the calls that RCCL's tuner serves with a file, and report its faults, as `read`.

    Sizes without a line keep RCCL's own choice and channels.
    """
    return _read_files(source, RCCL_FILE, RCCL)


def find_files(source: Source, names: Sequence[str]) -> Iterator[SourcePart]:
    """Yield the files of a source that a tuner loads; report each other file as `unknown-file`.

    `names` are the names that the tuner expects, at least one; the finding lists them. A source
    that is just one file may have any name.
    """
    is_single = len(source.parts) == 1 and source.parts[0].name == source.name
    for part in source.parts:
        if is_single or part.name in names:
            yield part
        else:
            message = f"no file of this format: the name is not {' or '.join(names)}"
            cure = f"name the file {names[0]}"
            location = Location(part.name)
            source.report(Diagnostic("unknown-file", message, location=location, cure=cure))


def read_rules(
    content: bytes, file: str, dialect: Dialect = NCCL, *, as_interpreted: bool = False
) -> tuple[list[TunerRule], list[Diagnostic]]:
    """Return the rules of a tuner file in file order, and its findings line by line.

    The text is decoded as Latin-1, so that no exception is raised. Empty lines and comments
    (`_is_comment`) are skipped; a comment that names bytes per rank gives the warning `unit`. For
    any other line, the first case applies:

    1. It names the columns: a note `heading`, and no rule.
    2. There are already `MAX_RULES` (2000) rules: one error `too-many`; reading ends.
    3. The line has faults (`_find_defects`): each is an error, and there is no rule. With
       `as_interpreted`, a line whose numbers can be read (`_has_numbers`) continues at 4.
    4. It holds only for some numPipeOps or regBuff: a note `conditional-rule`, and no rule.
    5. Its rule is added, with the findings of `find_doubtful_choices` (warning `refused-choice`,
       note `slow-choice`).

    An added rule has allreduce, ring and simple in place of unknown words. Channels of -1 become 1
    with NCCL's tuner, and 0 (the library's own number) with RCCL's.
    """
    rules: list[TunerRule] = []
    diagnostics: list[Diagnostic] = []
    for number, line in enumerate(content.decode("latin-1").split("\n"), 1):
        location = Location(file, number)
        if _is_comment(line, dialect):
            if re.search(r"bytes_?per_?rank", line, re.IGNORECASE):
                message = f"the comment names bytes per rank; {dialect.runtime} reads total bytes"
                cure = "multiply sizes per rank by the number of ranks, and correct the comment"
                diagnostics.append(Diagnostic("unit", message, Severity.WARNING, location, cure))
            continue
        if _HEADING.match(line):
            diagnostics.append(note_heading(location))
            continue
        if len(rules) == MAX_RULES:
            message = f"more than {MAX_RULES} rules; this one and later ones were not checked"
            diagnostics.append(Diagnostic("too-many", message, location=location))
            break
        # NCCL's tuner drops fields without a character, so that later ones move forward; RCCL's
        # keeps them.
        texts = line.rstrip("\r").split(",")
        fields = [text.strip() for text in texts if text or dialect is RCCL]
        defects = list(_find_defects(line, fields, dialect))
        diagnostics += [
            Diagnostic(code, message, location=location, cure=cure)
            for code, message, cure in defects
        ]
        if defects and not (as_interpreted and _has_numbers(line, fields)):
            continue
        rule = _create_rule(number, fields, dialect)
        if rule.is_conditional:
            message = "the line holds for some numPipeOps or regBuff only, and is not counted"
            diagnostics.append(Diagnostic("conditional-rule", message, Severity.NOTE, location))
            continue
        diagnostics += find_doubtful_choices(rule, file)
        rules.append(rule)
    return rules, diagnostics


def note_heading(location: Location) -> Diagnostic:
    """Return the note `heading` on a line that names the columns without a `#`."""
    message = "the line names the columns and decides no call"
    return Diagnostic("heading", message, Severity.NOTE, location, "begin it with #")


def find_doubtful_choices(rule: TunerRule, file: str) -> Iterator[Diagnostic]:
    """Yield findings for a rule without faults whose algorithm is refused or slow on its nodes.

    In this order:

    - `refused-choice`, a warning: the rule chooses `nvls_tree` for exactly one node. Or it
      chooses `pat` for one number of nodes and one, different, number of ranks.
    - `slow-choice`, a note: the rule chooses `tree` for exactly one node, where a tree is a
      chain of GPUs and not faster than a ring.

    An interval or "any" in place of such a number gives no finding. `file` is the name of the
    location.
    """
    location = Location(file, rule.line)
    if refusal := explain_machine_refusal(rule):
        message, _, cure = refusal.partition("; ")
        yield Diagnostic("refused-choice", message, Severity.WARNING, location, cure)
    if rule.algorithm == "tree" and rule.nodes == (1, 1):
        message = "a tree on one node is a chain of GPUs, which is not faster than a ring"
        yield Diagnostic("slow-choice", message, Severity.NOTE, location, "write ring")


def explain_size(text: str, read_as: str) -> Defect | None:
    """Return the fault of a size in bytes, or None for an integer from 0 to `LARGEST`.

    A number of up to 18 digits with a unit K, M, G or T, in any case and also as KB or KiB,
    is the fault `unit`. All units are powers of 1024. Its message contains `read_as`, the
    interpretation of the tuner; its cure is the number of bytes. Any other text is
    `out-of-range`, also `64B`, `1.5MiB` and an empty one.
    """
    if parse_whole(text, LARGEST) is not None:
        return None
    match = re.fullmatch(r"(\d{1,18})\s*([kmgt]?)i?b?", text.strip().lower(), re.ASCII)
    if match and match[2]:
        number = int(match[1]) * _UNITS[match[2]]
        return "unit", f"{text!r:.40} has a unit; sizes are bytes, {read_as}", f"write {number}"
    message = f"{text!r:.40} is not a size, a whole number of bytes up to {LARGEST}"
    return "out-of-range", f"sizes and channels are not all whole numbers: {message}", "write bytes"


def explain_channels(text: str, dialect: Dialect) -> Defect | None:
    """Return the fault (code, message, cure) of a number of channels, or None if it is valid.

    The first rule that applies to `text` decides:

    1. `-1` in a dialect with `loses_channels`: the fault `one-channel`, because such a
       tuner would then use one channel.
    2. The word of the dialect for the library's own number, `0`, and 1 to `MAX_CHANNELS`
       (decimal digits only): None.
    3. Any other text: the fault `out-of-range`.
    """
    if text == ANY and dialect.loses_channels:
        message = "channels -1 leaves one channel; 0 keeps NCCL's own number"
        return "one-channel", message, "write 0, or a number of channels from 1 to 64"
    channels = parse_whole(text, LARGEST)
    if text in (dialect.default_channels, "0") or 1 <= (channels or 0) <= MAX_CHANNELS:
        return None
    default = f"{dialect.default_channels} for {dialect.runtime}'s own number"
    message = f"channels {text!r:.40} are not a number from 1 to {MAX_CHANNELS}, or {default}"
    return "out-of-range", message, f"write {dialect.default_channels}"


def explain_unknown_word(word: str, column: str, known: Sequence[str], effect: str) -> Defect:
    """Return the fault `unknown-word` (code, message, cure) of a word in `column` not in `known`.

    The message has the word (cut to 40 characters), lists `known`, and ends with `effect`,
    a text that describes how the tuner treats the word. The cure is the first one that
    applies:

    1. Write the word in lower case, if that is in `known`.
    2. Remove the line, if `column` is `collective`.
    3. Write a known word.
    """
    message = f"{word!r:.40} is not one of {', '.join(known)}: {effect}"
    if word.lower() in known:
        return "unknown-word", message, f"write {word.lower()}"
    if column == "collective":
        return "unknown-word", message, "remove the line: the tuner decides no other collective"
    return "unknown-word", message, f"write one of these words as {column}"


def _read_files(source: Source, file: str, dialect: Dialect) -> list[ServedCalls]:
    served: list[ServedCalls] = []
    for part in find_files(source, (file,)):
        rules, diagnostics = read_rules(part.load(), part.name, dialect)
        stated = find_stated_communicators(rules)
        nodes, ranks = stated[0] if stated else (None, None)
        served += find_served_calls(rules, nodes, ranks)
        for diagnostic in (
            *diagnostics,
            *_find_ends_of_32_bits(rules, part.name),
            *check_rules(rules, dialect, part.name),
        ):
            source.report(diagnostic)
    return served


def _is_comment(line: str, dialect: Dialect) -> bool:
    """Return whether a line of a tuner file is skipped because it is blank or a comment.

    A line of white space counts as blank. With RCCL, a comment begins with `#`, also after
    white space. With NCCL and all other dialects, `#` must be the first character; a line
    with `#` after white space is a comment too if it has fewer than 7 commas, which is too
    few for a rule.
    """
    if dialect is RCCL:
        return not line.strip() or line.lstrip().startswith("#")
    is_short = line.lstrip().startswith("#") and line.count(",") < _REQUIRED_FIELDS - 1
    return not line.strip() or line.startswith("#") or is_short


def _create_rule(number: int, fields: Sequence[str], dialect: Dialect) -> TunerRule:
    """Return the rule of a line whose numbers are valid; unknown words become defaults.

    `number`: number of the line in the file. `fields`: at least eight, in the order of `_COLUMNS`.
    Unknown words become all-reduce, `ring` and `simple`. The two sizes are inclusive limits in
    bytes; the upper one is reduced to 2^64 - 1. Channels of -1 become 1, with RCCL's tuner 0 (the
    library's own number).

    The conditions are nodes, ranks, numPipeOps and regBuff, each as a range: the value 8 gives (8,
    8). A value of -1 or a missing field gives `EVERY` (0 to 2^64 - 1). Raises `ValueError` for a
    field that is no number.
    """
    channels = 0 if dialect is RCCL and fields[5] == ANY else int(fields[5])
    numbers = [EVERY if field == ANY else (int(field), int(field)) for field in fields[6:10]]
    nodes, ranks, operations, registration = (*numbers, EVERY, EVERY)[:4]
    return TunerRule(
        number,
        COLLECTIVES.get(fields[0], CollectiveKind.ALL_REDUCE),
        (int(fields[1]), min(int(fields[2]), LARGEST)),
        fields[3] if fields[3] in ALGORITHMS else _FALLBACKS[3],
        fields[4] if fields[4] in PROTOCOLS else _FALLBACKS[4],
        1 if channels == -1 else channels,
        nodes,
        ranks,
        operations,
        registration,
    )


def _has_numbers(line: str, fields: Sequence[str]) -> bool:
    """Return whether every number of a rule line can be read, so that the tuner makes a rule of it.

    False if `line` has more than 255 characters (`_LONGEST_LINE`) or fewer than 8 fields
    (`_REQUIRED_FIELDS`). The two sizes must consist of 1 to 20 ASCII digits; so must
    channels, nodes, ranks and the optional conditions, which may also be -1. The values are
    not compared with any limit.
    """
    if len(line) > _LONGEST_LINE or len(fields) < _REQUIRED_FIELDS:
        return False
    numbers = (*fields[1:3], *(field for field in fields[5:10] if field != ANY))
    return all(field.isascii() and field.isdecimal() and len(field) <= 20 for field in numbers)


def _find_defects(line: str, fields: Sequence[str], dialect: Dialect) -> Iterator[Defect]:
    """Yield the faults of a line of a tuner file, each as (code, message, cure).

    If one of these faults applies, only the first of them is yielded, as `not-a-rule`:

    1. More than 255 characters.
    2. With RCCL: an empty field.
    3. Fewer than 8 fields.
    4. With NCCL: two commas without text between them.

    Otherwise all of these checks are made, in this order:

    1. Collective, algorithm, protocol: `unknown-word` for each unknown one.
    2. Both sizes: `unit` (such as `4K`) or `out-of-range`, for each invalid one.
    3. Both sizes are valid and the first exceeds the second: `out-of-range`.
    4. Channels: `one-channel` (-1, if the library would then use one) or `out-of-range`.
    5. Nodes, ranks and optional conditions: `out-of-range`.
    6. If the words of check 1 are known: `refused-choice` if the library does not execute
       this combination. RCCL executes no algorithm `nvls...`.
    """
    if len(line) > _LONGEST_LINE:
        message = (
            f"the line has more than {_LONGEST_LINE} characters, of which the tuner reads so many"
        )
        yield "not-a-rule", message, "remove blanks and comments from it"
        return
    if dialect is RCCL and "" in fields:
        yield "not-a-rule", "an empty field, so that RCCL skips the line", "write -1 for any number"
        return
    if len(fields) < _REQUIRED_FIELDS:
        message = f"{len(fields)} fields, so that the tuner skips the line; it needs 8: {_FIELDS}"
        yield "not-a-rule", message, "write -1 for any nNodes and nRanks"
        return
    if dialect is NCCL and ",," in line:
        message = "an empty field: the tuner drops it, so that later fields move forward"
        yield "not-a-rule", message, "write -1 for any number"
        return
    known = True
    for column, words in _WORDS:
        if fields[column] not in words:
            known = False
            effect = f"the tuner silently reads {_FALLBACKS[column]}"
            if dialect is RCCL:
                effect = "RCCL skips the line"
            yield explain_unknown_word(fields[column], _COLUMNS[column], words, effect)
    sizes = [
        explain_size(field, "and the tuner reads the digits before it only")
        for field in fields[1:3]
    ]
    yield from filter(None, sizes)
    if not any(sizes) and int(fields[1]) > int(fields[2]):
        message = f"no size is at least {fields[1]} and at most {fields[2]}"
        yield "out-of-range", message, "write the smaller size first"
    channels = explain_channels(fields[5], dialect)
    if channels:
        yield channels
    yield from _find_number_defects(fields)
    refusal = explain_refusal(COLLECTIVES[fields[0]], fields[3], fields[4]) if known else ""
    if refusal:
        yield "refused-choice", f"{dialect.runtime} skips the line: {refusal}", "write ring"
    elif dialect is RCCL and known and fields[3].startswith("nvls"):
        message = f"RCCL skips the line: {fields[3]} needs NVSwitch"
        yield "refused-choice", message, "write ring or tree"


def _find_number_defects(fields: Sequence[str]) -> Iterator[Defect]:
    """Yield a defect `out-of-range` for each invalid nNodes, nRanks, numPipeOps and regBuff.

    -1 is valid in every field and means any. The checks, in this order:

    - nNodes, then nRanks: from 1 to 2^31 - 1. After the first invalid one, no further field
      is checked.
    - nRanks is not below nNodes, if both are given.
    - numPipeOps, if the line has this field: at most 9 digits.
    - regBuff, if the line has this field: 0 or 1. It is checked even if numPipeOps is
      invalid.

    Numbers consist of ASCII digits only, without sign or blank.
    """
    numbers = [-1, -1]
    for position, field in enumerate(fields[6:8]):
        if field == ANY:
            continue
        number = parse_whole(field, LARGEST)
        if number is None or not 1 <= number < 1 << 31:
            message = f"nodes and ranks are not whole numbers from 1, or -1 for any: {field!r:.40}"
            yield "out-of-range", message, "write the number, or -1"
            return
        numbers[position] = number
    if 0 < numbers[1] < numbers[0]:
        message = f"{numbers[0]} nodes have at least {numbers[0]} ranks, not {numbers[1]}"
        yield "out-of-range", message, "nNodes comes before nRanks"
    for field, name, expected in zip(
        fields[8:10], _COLUMNS[8:], ("a whole number", "0, 1"), strict=False
    ):
        number = parse_whole(field, 10**9 - 1)
        is_valid = number is not None and (name != "regBuff" or number <= 1)
        if field != ANY and not is_valid:
            message = f"{name} {field!r:.40} is not {expected} or -1 for any"
            yield "out-of-range", message, "write -1"


def _find_ends_of_32_bits(rules: Sequence[TunerRule], file: str) -> Iterator[Diagnostic]:
    """Yield a warning `ends-early` for each rule that ends at 4 GiB - 1 and has no successor.

    Calls from 4 GiB on then have no rule, probably because of 32-bit sizes. A successor is a rule
    for the same collective that begins at 4 GiB, with any numbers of nodes and ranks.
    """
    starts = {(rule.kind, rule.sizes[0]) for rule in rules}
    for rule in rules:
        if rule.sizes[1] == _END_OF_32_BITS and (rule.kind, 1 << 32) not in starts:
            message = f"the window ends at {_END_OF_32_BITS}, so that calls from 4 GiB on have none"
            cure = f"write {LARGEST} as the largest size"
            yield Diagnostic(
                "ends-early", message, Severity.WARNING, Location(file, rule.line), cure
            )
