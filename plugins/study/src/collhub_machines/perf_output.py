"""Read the text output of nccl-tests, rccl-tests and mscclpp-test.

A file may hold several tests and lines of other programs. A table has a header of three lines:
the first orders out-of-place and in-place, the second names the columns.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from collhub_machines.reading import (
    PlaceOptions,
    are_ranks_missing,
    collective_name,
    contradicts_bandwidth,
    finite_number,
    note,
    refuse,
    refuse_without_results,
    text_of,
    whole_number,
    without_rank,
)
from hub_core.model import Diagnostic, format_count
from hub_core.plugin_api import Library, Measurement, MeasurementRequest, MeasurementSet

_PLACES = {"out": "out-of-place", "in": "in-place"}
# Colours of a terminal.
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_FIRST_COMMENT = re.compile(
    r"^([^\"{#\n]{0,160})#\s*(?:nThread\s+\d+\s+nGpus\s|\w{2,20}-tests version\s"
    r"|Collective test starting:)"
)
# Comment lines of a test that a web page, such as an issue, has stripped of their `#`.
_BARE_COMMENT = re.compile(
    r"nThread\s+\d+\s|minBytes\s+\d+\s|Rank\s+\d+\s+(?:Group|Pid)\s+\d|size\s+count\s|\([A-Za-z]+\)\s"
    r"|(?:out-of-place|in-place)\s|Using devices$|Out of bounds values\s*:|Avg bus bandwidth\s*:"
    r"|\w{1,20}-tests(?: version|: Version)\b|Collective test (?:starting|concluded):"
)
# Program of a test with an option, as in the command line `./build/all_reduce_perf -b 8`. The
# option distinguishes it from lines of a build, which name the programs too.
_PROGRAM = re.compile(
    r"(?<![a-z_])([a-z]+(?:_[a-z]+)*?)(?:_test)?_perf(?:_mpi)?\s+(?:-[a-zA-Z]\s|--[a-z])"
)
_TEST_NAME = re.compile(r"#\s*Collective test (starting|concluded):\s*(\S+)")
_VERSION = re.compile(r"#\s*(?:nccl|rccl)-tests version .*?(nccl|rccl)-library=(\d+)")
# Printed by NCCL with NCCL_DEBUG=VERSION and higher levels.
_LIBRARY_VERSION = re.compile(r"\b(NCCL|RCCL) version (\d+\.\d+\.\d+)")
_RANK = re.compile(
    r"#\s*Rank\s+(\d+)\s+(?:Group\s+(\d+)\s+)?Pid\s+\d+\s+on\s+(\S+)\s+device\s+\d+\s+"
    r"\[[^\]]*\]\s*(.*)"
)
_PARAMETERS = re.compile(r"#\s*(?:nThread\s+\d+.*)?minBytes\s+\d+")
# Row of a table, wherever it is: size, elements and type, then times and bandwidths.
_ROW = re.compile(
    r"\d+\s+\d+\s+(?:u?int\d+|half|float|double|bfloat16|fp?8\w*|float8\w*)\s+(?:\w+\s+(?:-?\d+\s+)?)?"
    r"\d+(?:\.\d+)?\s+\d+\.\d+\s+\d+\.\d+\s+\S"
)
# A choice that a setting takes from NCCL: in the environment of a command, or as NCCL reports it.
_FORCED = re.compile(
    r"\b(NCCL_(?:ALGO|PROTO|M(?:IN|AX)_(?:NCHANNELS|CTAS)))"
    r"(?:=| set by environment to )[\"']?([^\s=\"']+?)[.\"']?(?=,[A-Z_]+=|\s|\Z)"
)
# Names of the columns, and the line with their units, such as `# (B) (elements) (us) (GB/s)`.
_COLUMNS = re.compile(r"#\s+size\s.*\b(?:cpu)?time\b|#\s+size\s+count\b")
_UNITS = re.compile(r"#\s*\([A-Za-z]+\)(?:\s|\Z)")
_OTHER_UNITS = re.compile(r"\((?:[KMGT]i?B|[mn]?s|m?sec)\)", re.IGNORECASE)
_DAY = re.compile(r"\d{4}-\d\d-\d\d\Z")
_MIN_FIELDS = 3
_MIN_BANDWIDTH = 10.0  # GB/s
_MAX_UNCHECKED_BANDWIDTH = 1.0  # GB/s


class _Rank(NamedTuple):
    """A line of the list of ranks."""

    number: int
    group: str
    host: str
    device: str


@dataclass(slots=True)
class _Test:
    """State of one test while its lines are read.

    `name`: collective as the test prints it; `program`: that of the command line before the test.
    `has_own_version`: False if `library` and `version` are those of the test before it.
    `forced`: choices that settings take from NCCL, such as `NCCL_ALGO`, with their values.
    `following`: the test of a command line or version within the table, should another test start.
    """

    name: str | None = None
    program: str = ""
    library: str = "NCCL"
    version: str = ""
    has_own_version: bool = False
    variant: str = ""
    forced: dict[str, str] = field(default_factory=dict)
    is_mscclpp: bool = False
    ranks: list[_Rank] = field(default_factory=list)
    has_cut_ranks: bool = False
    places: tuple[str, ...] = ("out", "in")
    prefix: tuple[str, ...] = ()
    groups: tuple[tuple[str, ...], ...] = ()
    time_ends: tuple[int, ...] = ()
    first_line: int = 0
    rows: list[_Row] = field(default_factory=list)
    is_complete: bool = False
    following: _Test | None = None


@dataclass(frozen=True, slots=True)
class _Row:
    """One time of a table. `bandwidth`: that of the algorithm in GB/s, 0 if unknown."""

    line: int
    size: int
    dtype: str
    redop: str
    place: str
    time_us: float
    ratio: float | None
    bandwidth: float
    day: str


def read_perf_output(facts: MeasurementRequest, options: PlaceOptions) -> MeasurementSet:
    """Read all tables of the output of a test as measurements, in the order of the file.

    `options` select times of calls in place or out of place. Rows that cannot be used, and a table
    without its summary line (the run was aborted), give notes; all usable rows are returned.
    `facts` has the file, and values that it lacks. Raises `InputError` for a text that is empty or
    not UTF-8, for unusable columns (`_set_header`), and for a table with rows that lacks ranks or a
    collective (`_points`), even if other tables are usable. If no row is selected, raises
    `InputError` (`no-results`) for the first reason that applies:

    - rows without any line that names columns, at the first row
    - the notes, if there are any, with an error
    - the selected calls were not timed, at the first table
    - no results were printed
    """
    text, file = text_of(facts.source), facts.source.name
    skipped: list[Diagnostic] = []
    tests = _tests(text, file, skipped)
    points: list[Measurement] = []
    rows = [test for test in tests if test.rows]
    for test in rows:
        points += options.select(_points(test, file, facts, skipped))
        if test.rows and not test.is_complete:
            cure = "the run was aborted: repeat it if larger sizes are missing"
            line = test.rows[-1].line
            skipped.append(note(file, line, "the table ends without its summary line", cure))
    if points:
        return MeasurementSet(points, skipped, {})
    bare_rows = [
        number
        for number, raw in enumerate(text.splitlines(), 1)
        if _ROW.match(without_rank(raw).lstrip())
    ]
    if bare_rows and not tests:
        message = "rows of nccl-tests without the lines that name their columns"
        cure = "keep the lines of the test that begin with #, from 'nThread' to 'size count'"
        raise refuse(file, bare_rows[0], message, cure, "no-results")
    if skipped:
        raise refuse_without_results(file, skipped)
    if rows:
        raise options.refuse(file, rows[0].first_line)
    raise refuse_without_results(file, line=tests[0].first_line if tests else 1)


def _remove_prefixes(text: str) -> list[str]:
    """Return the lines of a text without colours and without the prefix of a launcher.

    The prefix is the text before the first comment of a test, with any numbers in place of
    its own: a process and its rank, a host, or a time stamp. It is removed from the lines
    that begin with it. Then the prefixes that `without_rank` knows are removed, also if no
    comment has a prefix, and blanks at the ends of lines. No line is dropped, so the line
    numbers are those of the text.
    """
    lines = _ESCAPE.sub("", text).splitlines()
    firsts = (_FIRST_COMMENT.match(line) for line in lines)
    first = next((match[1] for match in firsts if match), "")
    if first.strip():
        numbered = re.split(r"\d+", first.strip())
        pattern = re.compile(r"\s*" + r"\d+".join(re.escape(part) for part in numbered))
        lines = [line[match.end() :] if (match := pattern.match(line)) else line for line in lines]
    return [without_rank(line.rstrip()) for line in lines]


def _tests(text: str, file: str, skipped: list[Diagnostic]) -> list[_Test]:
    """Divide the output of a benchmark into its tests, and parse the rows of their tables.

    Prefixes that a launcher adds to lines are removed first. The first rule that fits applies:
    1. Blank line: ignored.
    2. Comment (`#`, or a known comment without it): describes the last test, or starts a new one if
       the last test has columns or rows and the comment is a header of a test (`_comment`).
    3. First character is a digit, and the last test has columns: a row of its table.
    4. `...` after the list of ranks and before the columns: the list of ranks is incomplete.
    5. Any other line is foreign. Command lines and library versions in it are used; a version after
       the last table belongs to that table, unless it already has one.

    Returns the tests with columns or rows, in order. Appends notes to `skipped`: unusable rows,
    wrong results (`wrong-results`), and the number of foreign lines, at the first of them. Raises
    `InputError` for unusable columns.
    """
    tests = [_Test(first_line=1)]
    noise: list[int] = []
    for number, line in enumerate(_remove_prefixes(text), 1):
        stripped = line.strip()
        if not stripped:
            continue
        if _BARE_COMMENT.match(stripped):
            stripped = f"# {stripped}"
        if stripped.startswith("#"):
            _note_command(tests, stripped, number)
            if re.match(r"#\s*Out of bounds values\s*:.*FAILED", stripped):
                message = "the test reports wrong results (Out of bounds values: FAILED)"
                cure = "repair the installation before its times are used"
                skipped.append(note(file, number, message, cure, "wrong-results"))
            _comment(tests, line, stripped, number, file)
        elif stripped[0].isdigit() and tests[-1].groups:
            _add_row(tests[-1], line, number, file, skipped)
        elif stripped == "..." and tests[-1].ranks and not tests[-1].groups:
            tests[-1].has_cut_ranks = True
        else:
            noise.append(number)
            _note_command(tests, stripped, number)
            version = _LIBRARY_VERSION.search(stripped)
            if version is not None:
                _note_version(tests, version[1], version[2], number)
    # The error output of a run may follow its table.
    if len(tests) > 1 and not (tests[-1].rows or tests[-1].groups or tests[-2].version):
        tests[-2].library, tests[-2].version = tests[-1].library, tests[-1].version
    if noise:
        message = f"{format_count(len(noise), 'line')} of other programs skipped, from this line on"
        skipped.append(note(file, noise[0], message))
    return [test for test in tests if test.rows or test.groups]


def _note_command(tests: list[_Test], line: str, number: int) -> None:
    """Store the collective and the forced choices of a line in the test to which they belong.

    A forced choice is the value of a variable such as `NCCL_ALGO`. A line is a command if it runs
    a test program of a known collective with an option, or if it has a choice but not the text
    "set by environment", which marks a report by NCCL. The first case that applies decides:

    - A command, and the last test has its summary line, columns or rows: the next test
      (`_next_test`), which inherits library and version. It is appended to `tests` after a summary
      line. Otherwise it is stored as `following` of the last test.
    - No command, and the last test has its summary line: nothing is stored.
    - Otherwise: the last test. This includes choices in a report by NCCL.

    A collective replaces that of the test. A choice replaces the one of the same variable.
    """
    program = _PROGRAM.search(line)
    name = collective_name(program[1]) if program else None
    forced = forced_choices(line)
    is_command = name is not None or (bool(forced) and "set by environment" not in line)
    test = tests[-1]
    if is_command and (test.is_complete or test.rows or test.groups):
        test = _next_test(tests, number)
    elif test.is_complete:
        return
    test.program = name or test.program
    test.forced.update(forced)


def _next_test(tests: list[_Test], number: int) -> _Test:
    """Return the test that follows the last one of `tests`; call it if that has columns or rows.

    If the last test has its summary line (`is_complete`), the new test is appended to `tests`.
    Otherwise it is only stored as `following` of the last test; it is appended when a line shows
    that a test starts. An existing `following` test is returned again.

    A new test has the library and version of the last one. `number`: first line of a new test.
    """
    test = tests[-1]
    following = test.following or _Test(
        first_line=number, library=test.library, version=test.version
    )
    if test.is_complete:
        tests.append(following)
    else:
        test.following = following
    return following


def _note_version(
    tests: list[_Test], library: str, version: str, number: int, *, starts_run: bool = False
) -> None:
    """Store the version that line `number` prints in the test to which it belongs.

    `starts_run`: the test program has printed it, otherwise NCCL or RCCL. Rules in order:
    1. If the last test has no columns and no rows, the line belongs to it.
    2. If NCCL or RCCL repeats library and version of the last test, the line is ignored.
    3. If it starts a run, the last table is complete, or the last test has its own (not
       inherited) version, the line belongs to the next test (`_next_test`).
    4. Otherwise it belongs to the last test.

    With `starts_run`, the version of this test is replaced. Otherwise it is stored only if
    the test has no own version yet, so the first of several lines counts.
    """
    test = tests[-1]
    if test.groups or test.rows:
        is_next = starts_run or test.is_complete or test.has_own_version
        if not starts_run and (test.library, test.version) == (library, version):
            return
        if is_next:
            test = _next_test(tests, number)
    if starts_run or not test.has_own_version:
        test.library, test.version, test.has_own_version = library, version, True


def forced_choices(text: str) -> dict[str, str]:
    """Return the choices that settings in `text` take from NCCL: names of variables and values."""
    return {choice[1]: choice[2] for choice in _FORCED.finditer(text)}


def _comment(tests: list[_Test], line: str, stripped: str, number: int, file: str) -> None:
    """Apply a comment line of the output of nccl-tests to the last test of `tests`.

    `line`: original text, for column positions; `stripped`: without outer blanks. If the last test
    has rows or columns, the name of a starting test, or parameters, first append a test:
    `following` of the last one if it exists, else a new test with its library and version.

    A line with a name sets only the name; at the end of a test only if it has none. For any other
    line the first fitting case of each list is applied, if any:

    1. library version; the word rccl before any row (library RCCL); parameters; final `...` after
       ranks and before columns (the list of ranks is cut)
    2. rank; order of in place and out of place; column names; units; summary (test complete)

    Raises `InputError` for column names without `time` or with `cputime`, and for other units than
    bytes and us.
    """
    test = tests[-1]
    name = _TEST_NAME.match(stripped)
    starts = (name is not None and name[1] == "starting") or _PARAMETERS.match(stripped)
    if starts and (test.rows or test.groups):
        test = test.following or _Test(
            first_line=number, library=test.library, version=test.version
        )
        tests.append(test)
    if name:
        # The last line of an aborted run may be cut within the name.
        test.name = name[2] if name[1] == "starting" else test.name or name[2]
        return
    version = _VERSION.match(stripped)
    if version:
        text = version_text(version[2])
        _note_version(tests, version[1].upper(), text, number, starts_run=True)
    elif "rccl" in stripped.lower() and not test.rows:
        test.library = "RCCL"
    elif _PARAMETERS.match(stripped):
        _set_parameters(test, stripped)
    elif stripped.endswith("...") and test.ranks and not test.groups:
        test.has_cut_ranks = True
    rank = _RANK.match(stripped)
    if rank:
        test.ranks.append(_Rank(int(rank[1]), rank[2] or "0", rank[3], rank[4].strip()))
    elif "out-of-place" in stripped and "in-place" in stripped.replace("out-of-place", ""):
        first_is_in = stripped.find("in-place") < stripped.find("out-of-place")
        test.places = ("in", "out") if first_is_in else ("out", "in")
    elif _COLUMNS.match(stripped):
        _set_header(test, line, number, file)
    elif _UNITS.match(stripped) and (unit := _OTHER_UNITS.search(stripped)):
        message = f"the unit {unit[0]} is not one of nccl-tests, whose tables are in bytes and us"
        raise refuse(file, number, message, "give the output of nccl-tests as it was printed")
    elif "Avg bus bandwidth" in stripped or "Out of bounds values" in stripped:
        test.is_complete = True


def _set_parameters(test: _Test, line: str) -> None:
    """Store the settings of a parameter line that change the meaning of a time in `test`.

    The settings are aggregation, graphs and the kernel number. They replace the variant of
    the library, such as "agg iters 4, graph 1" or "kernel 6"; the defaults `agg iters: 1`
    and `graph: 0` are omitted, and without settings the variant is "". A line with a kernel
    number is from MSCCL++, which becomes the library of the test.
    """
    settings: list[str] = []
    for label, default in (("agg iters", "1"), ("graph", "0"), ("kernel num", "")):
        match = re.search(rf"\b{label}:\s*(\d+)", line)
        if match and match[1] != default:
            settings.append(f"{label.removesuffix(' num')} {match[1]}")
    test.is_mscclpp = "kernel num:" in line
    if test.is_mscclpp:
        test.library = "MSCCL++"
    test.variant = ", ".join(settings)


def _set_header(test: _Test, line: str, number: int, file: str) -> None:
    """Store the names of a table's columns in `test`: `prefix`, `groups` and `time_ends`.

    - `prefix`: the columns before the first `time`, which describe the call.
    - `groups`: one tuple per column `time`, with this column and those up to the next `time`.
      Columns `timestamp` are dropped. A group has the values of calls in place or out of place.
    - `time_ends`: position in `line` after the last letter of each word `time`.

    A leading `#` is removed, and `#wrong` is named `wrong`. Raises `InputError` (`measurements`)
    at line `number` for CPU times (`cputime`), else for a header without `time`.
    """
    names = line.replace("#wrong", " wrong").lstrip().removeprefix("#").split()
    if "cputime" in names:
        message = "the table has CPU times (cputime), not times of the GPU"
        raise refuse(file, number, message, "run the test without -C 1")
    starts = [index for index, name in enumerate(names) if name == "time"]
    if not starts:
        message = "the table has no column 'time'"
        raise refuse(file, number, message, "keep the header of the test as it was printed")
    group_ends = [*starts[1:], len(names)]
    test.prefix = tuple(names[: starts[0]])
    groups = [tuple(names[start:end]) for start, end in zip(starts, group_ends, strict=True)]
    test.groups = tuple(tuple(n for n in group if n != "timestamp") for group in groups)
    test.time_ends = tuple(match.end() for match in re.finditer(r"\btime\b", line))


def _add_row(test: _Test, line: str, number: int, file: str, skipped: list[Diagnostic]) -> None:
    """Append a row per time (us) of a line of a table to `test.rows`.

    A line has a time out of place, in place or both; rows have the order of the header. A line is
    skipped with a note in `skipped` if it does not fit the columns, its first field is no integer,
    or a value before the times is invalid. Each time is then checked by itself:

    - "N/A": skipped without a note
    - not a number, a wrong result (`#wrong` is a number other than 0), or an unreadable `#wrong`:
      skipped with a note
    - the algorithm bandwidth is above 1 GB/s and differs from size / time by a factor of 4 or more:
      used, with a note. Not checked for MSCCL++, and for a size or time of 0 or less.

    A date (2025-01-31) and the fields after it are no values. The date becomes the day of the rows,
    "" without one. `ratio` is bus bandwidth / algorithm bandwidth, None if one of them is unknown
    or 0. An unknown algorithm bandwidth becomes 0.
    """
    fields = line.split()
    day = ""
    for index, text in enumerate(fields):
        if _DAY.match(text):
            day, fields = text, fields[:index]
            break
    width = len(test.prefix)
    size = whole_number(fields[0]) if fields else None
    values = fields[width:]
    groups = _placed(test, values, line)
    if size is None or len(fields) <= width or groups is None:
        cure = "keep the lines of the test as they were printed"
        message = f"{len(fields)} fields do not fit the columns of the table"
        skipped.append(note(file, number, message, cure))
        return
    named = dict(zip(test.prefix, fields[:width], strict=False))
    defect = _prefix_defect(named)
    if defect:
        skipped.append(
            note(file, number, defect, "keep the lines of the test as they were printed")
        )
        return
    for place, group in groups:
        time_us = finite_number(group.get("time", ""))
        if group.get("time") == "N/A":
            continue
        if time_us is None:
            message = f"{_PLACES[place]} time {group.get('time', '')[:20]!r} is not a number"
            skipped.append(note(file, number, message))
            continue
        # Old versions print `error`, a relative deviation that may differ from 0.
        wrong = finite_number(group.get("wrong", "N/A"))
        if wrong:
            message = f"{_PLACES[place]} result is wrong (#wrong {group['wrong']}): time skipped"
            cure = "repair the installation before its times are used"
            skipped.append(note(file, number, message, cure))
            continue
        if wrong is None and group.get("wrong", "N/A") != "N/A":
            message = (
                f"{_PLACES[place]} #wrong {group['wrong'][:20]!r} is not a number: time skipped"
            )
            skipped.append(note(file, number, message))
            continue
        algorithm, bus = (finite_number(group.get(key, "")) for key in ("algbw", "busbw"))
        if (
            # Lower bandwidths are rounded too much: they have two decimals.
            (algorithm is not None and algorithm > _MAX_UNCHECKED_BANDWIDTH)
            and (size > 0 and time_us > 0 and not test.is_mscclpp)
            and contradicts_bandwidth(algorithm, size, time_us)
        ):
            message = f"{_PLACES[place]} time {time_us:g} us contradicts algbw {algorithm:g} GB/s"
            cure = "times must be in us; remove the line if it is damaged"
            skipped.append(note(file, number, message, cure, "contradicting-bandwidth"))
        ratio = bus / algorithm if algorithm and bus and algorithm > 0 else None
        dtype, redop = named.get("type", ""), named.get("redop", "")
        row = _Row(number, size, dtype, redop, place, time_us, ratio, algorithm or 0.0, day)
        test.rows.append(row)


def _prefix_defect(named: dict[str, str]) -> str | None:
    """Return the reason why the values before the first time are not those of a call, or None.

    `named`: values by the names of their columns. `count` must be an integer without a sign, and
    `type` must begin with a letter; an absent column is no defect. Others are not checked.
    """
    if "count" in named and whole_number(named["count"]) is None:
        return f"count {named['count'][:20]!r} is not a whole number"
    if "type" in named and not named["type"][0].isalpha():
        return f"type {named['type'][:20]!r} is not a data type"
    return None


def _placed(test: _Test, values: list[str], line: str) -> list[tuple[str, dict[str, str]]] | None:
    """Assign the values of a line to groups of columns: ("in" or "out" of place, values by column).

    `values`: the fields after the prefix of the table. A complete line has the values of all groups
    and gives one entry per group, in order. A line of a single group, as in replays and in
    mscclpp-test, gives one entry. It has at least 3 values: as many as some group, or one less than
    the first group (the last column is then missing). Its group is the one whose time column in the
    header ends nearest to the end of the line's first value, of equal ones the first. Returns None
    for any other number of values.
    """
    lengths = [len(group) for group in test.groups]
    complete = sum(lengths)
    if len(values) == complete:
        result, start = [], 0
        for place, group in zip(test.places, test.groups, strict=False):
            chosen = values[start : start + len(group)]
            result.append((place, dict(zip(group, chosen, strict=True))))
            start += len(group)
        return result
    # One half is blank, as in replays and in mscclpp-test: the position of its time decides.
    if len(values) < _MIN_FIELDS or len(values) not in {*lengths, lengths[0] - 1}:
        return None
    matches = list(re.finditer(r"\S+", line))
    end = matches[len(test.prefix)].end()
    nearest = min(range(len(test.time_ends)), key=lambda index: abs(test.time_ends[index] - end))
    nearest = min(nearest, len(test.groups) - 1, len(test.places) - 1)
    return [(test.places[nearest], dict(zip(test.groups[nearest], values, strict=False)))]


def _points(
    test: _Test, file: str, facts: MeasurementRequest, skipped: list[Diagnostic]
) -> Iterator[Measurement]:
    """Yield the measurements of one test in row order.

    A test without rows yields none. A test that is no collective yields none and adds one note to
    `skipped`; so does each invalid row. Ranks and nodes are the printed ones, otherwise those of
    `facts`. The collective is the first that is known of: the printed name, the command line before
    the test, `facts`, the file name, the ratio of the bandwidths. If the bandwidths of an
    all-reduce contradict the listed ranks, ranks and nodes of `facts` count (by default 1 node).

    The machine is the device name, "" if none is printed. The library is RCCL if it is printed as
    NCCL without a version and the device begins with `AMD `. Its variant lists test parameters,
    then the forced choices, sorted by their names.

    Raises `InputError` (`missing-facts`), in this order: unknown ranks or collective, or a rank
    listed twice; bandwidths of an all-reduce that fit no ranks; different device names.
    """
    if not test.rows:
        return
    if test.name is not None and collective_name(test.name) is None:
        message = f"{test.name[:40]} is not a collective with a model: its table is skipped"
        skipped.append(note(file, test.first_line, message))
        return
    ranks, nodes = _shape(test, file, facts)
    collective = _collective(test, file, facts, ranks)
    if test.ranks and collective == "all-reduce" and not _fit_bandwidths(test, ranks):
        if facts.ranks is None or not _fit_bandwidths(test, facts.ranks):
            message = f"the bandwidths are not those of an all-reduce of the {ranks} ranks listed"
            cure = "give the complete list of ranks, or --ranks N and --nodes M"
            raise refuse(file, test.first_line, message, cure, "missing-facts")
        ranks, nodes = facts.ranks, facts.nodes or 1
    names = [rank.device for rank in test.ranks if rank.device]
    machine = names[0] if names else ""
    if len(set(names)) > 1:
        device_names = ", ".join(sorted(set(names))[:4])
        message = f"ranks use different devices: {device_names}"
        raise refuse(
            file, test.first_line, message, "measure one kind of device at a time", "missing-facts"
        )
    # Older versions of rccl-tests print the name of no library.
    is_of_amd = test.library == "NCCL" and not test.version and machine.startswith("AMD ")
    forced = (f"{name}={value}" for name, value in sorted(test.forced.items()))
    variant = ", ".join(setting for setting in (test.variant, *forced) if setting)
    library = Library("RCCL" if is_of_amd else test.library, test.version, variant)
    for row in test.rows:
        # NVLS cannot sum 8-bit integers; other types of the same size take the same time.
        is_int8 = row.dtype in {"int8", "uint8"} and row.redop not in {"none", ""}
        point = Measurement(
            collective, ranks, nodes, row.size, row.time_us, library, machine, row.place,
            "int8" if is_int8 else "", row.day, "nccl-tests", file, row.line,
        )  # fmt: skip
        reason = point.defect()
        if reason is None:
            yield point
        else:
            skipped.append(note(file, row.line, reason))


def _fit_bandwidths(test: _Test, ranks: int) -> bool:
    """Return whether the last row has the bandwidths of an all-reduce of `ranks` ranks.

    It has if bus / algorithm bandwidth is 2 (n - 1) / n for n = `ranks`, within 1 %; never for
    one rank. The bandwidths are rounded to two decimals, so they are not checked, and the result
    is true, below 10 GB/s. It is also true if one of them is unknown or 0, and for mscclpp-test.
    """
    ratio, bandwidth = test.rows[-1].ratio, test.rows[-1].bandwidth
    if ratio is None or bandwidth < _MIN_BANDWIDTH or test.is_mscclpp:
        return True
    return abs(ratio / (2 * (ranks - 1) / ranks) - 1) < 0.01 if ranks > 1 else False


def _shape(test: _Test, file: str, facts: MeasurementRequest) -> tuple[int, int]:
    """Return the numbers of ranks and of nodes of a test.

    - Usually: the number of ranks of the first group in the printed list, and the number of their
      different hosts.
    - If the list is missing or cut, or lacks ranks at its start (`are_ranks_missing`): the numbers
      of the request `facts`, with 1 node if it has no number of nodes.

    Raises `InputError` (`missing-facts`) in the second case if the request has no number of ranks.
    Raises it in both cases for a rank that the first group lists twice: then each process has
    measured only its GPUs, as a separate test.
    """
    first = [rank for rank in test.ranks if rank.group == test.ranks[0].group]
    numbers = {rank.number for rank in first}
    if len(numbers) < len(first):
        message = "a rank is listed twice: each process has measured its own GPUs only"
        cure = "build the tests with MPI=1, and measure again"
        raise refuse(file, test.first_line, message, cure, "missing-facts")
    all_numbers = {rank.number for rank in test.ranks}
    if test.has_cut_ranks or not first or are_ranks_missing(numbers, len(first), all_numbers):
        if facts.ranks is None:
            reason = "is cut" if first else "is missing"
            message = f"the list of ranks {reason}"
            raise refuse(
                file, test.first_line, message, "give --ranks N and --nodes M", "missing-facts"
            )
        return facts.ranks, facts.nodes or 1
    return len(first), len({rank.host for rank in first})


def _collective(test: _Test, file: str, facts: MeasurementRequest, ranks: int) -> str:
    """Return the collective that a test has measured, under the hub's name, such as `all-gather`.

    The first source that gives a collective decides; a name that is unknown counts as no source:

    1. the name that the test prints
    2. the command line before the test
    3. `facts.collective`, the request, which is returned as given
    4. the file name (`all_reduce_perf...`)
    5. the bandwidths, if n = `ranks` > 2 and the test is not of MSCCL++. The last row with both
       bandwidths has the ratio bus / algorithm bandwidth. Within 2 %, 2 (n - 1) / n means
       all-reduce. (n - 1) / n means reduce-scatter if the last row of the test names a reduction
       operator.

    Raises `InputError` (`missing-facts`), at the first line of the test, if no source gives a
    collective.
    """
    named = collective_name(test.name or "")
    if named is not None:
        return named
    if test.program or facts.collective is not None:
        return test.program or facts.collective or ""
    stem = re.search(r"([a-z]+(?:_[a-z]+)?)_perf", file.rpartition("/")[2])
    name = collective_name(stem[1]) if stem else None
    if name is not None:
        return name
    # nccl-tests round bandwidths to two decimals: the ratio of the largest size is the best.
    ratios = [row.ratio for row in test.rows if row.ratio is not None]
    if ratios and not test.is_mscclpp and ranks > 2:
        if abs(ratios[-1] / (2 * (ranks - 1) / ranks) - 1) < 0.02:
            return "all-reduce"
        if abs(ratios[-1] / ((ranks - 1) / ranks) - 1) < 0.02 and test.rows[-1].redop not in {
            "none",
            "",
        }:
            return "reduce-scatter"
    message = "the file does not name its collective"
    raise refuse(
        file, test.first_line, message, "give --collective, such as all-gather", "missing-facts"
    )


def version_text(code: str) -> str:
    """Convert NCCL's numeric version code to a version, such as 23007 to `2.30.7`.

    Codes below 10000 have an older form: 2804 is `2.8.4`. Only the first 9 characters are used.
    Raises `ValueError` if they are not an integer.
    """
    number = int(code[:9])
    if number >= 10000:
        return f"{number // 10000}.{number // 100 % 100}.{number % 100}"
    return f"{number // 1000}.{number // 100 % 10}.{number % 100}"
