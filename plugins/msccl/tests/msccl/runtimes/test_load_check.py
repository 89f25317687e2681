"""The load check agrees with the runtimes' own parsers, on real and on changed files."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from collhub_msccl.plugin import WriteOptions
from collhub_msccl.runtimes.load_check import check_executor, check_msccl, check_rccl
from collhub_msccl.runtimes.raw_xml import read_number
from collhub_msccl.writing.write_xml import write

from hub_core import UsageError
from hub_core.model import Severity
from hub_core.plugin_api import CheckReport, CheckRequest, NoOptions, Source
from hub_core.testing import direct_all_to_all, ring_all_gather, ring_all_reduce

FOLDER = Path(__file__).resolve().parents[6] / "shared" / "corpus" / "msccl"
CHECKS = {"M": check_msccl, "E": check_executor, "R": check_rccl}
RUNTIMES = {"M": "msccl", "E": "executor", "R": "rccl"}
Row = Mapping[str, str]


def _rows() -> list[Row]:
    if not (FOLDER / "index.csv").is_file():
        return []
    with (FOLDER / "index.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def _check(letter: str, text: str) -> CheckReport:
    return _check_bytes(letter, "test.xml", text.encode())


def _check_bytes(letter: str, name: str, content: bytes) -> CheckReport:
    request = CheckRequest(source=Source.of_bytes(name, content))
    return CHECKS[letter](request, NoOptions())


def _errors(report: CheckReport) -> set[str]:
    return {found.code for found in report.diagnostics if found.severity is Severity.ERROR}


def _words(report: CheckReport) -> set[str]:
    """The reasons in the words of the index, which come from the parsers themselves."""
    patterns = {
        "missing-attribute": (r"attribute '(\w+)'", "missing-attr:"),
        "unknown-collective": (r"coll='?(\w+)'?", "coll:"),
        "refused-type": (r"step type '(\w+)'", "type:"),
    }
    words = set()
    for found in report.diagnostics:
        if found.severity is Severity.ERROR and found.code != "never-selected":
            pattern, start = patterns.get(found.code, ("()", found.code))
            match = re.search(pattern, found.message)
            assert match is not None
            words.add(start + match[1])
    return words


@pytest.mark.once
@pytest.mark.parametrize("letter", CHECKS)
def test_every_real_file_is_judged_as_the_parsers_do(corpus: Path, letter: str) -> None:
    rows = _rows()
    assert rows or not (corpus / "msccl" / "index.csv").is_file()
    for row in rows:
        report = _check_bytes(letter, row["file"], (FOLDER / row["file"]).read_bytes())
        assert report.facts["is_accepted"] == (row[f"accept_{letter}"] == "1"), row["file"]
        assert _words(report) == set(row[f"reject_{letter}"].split()), row["file"]
        if letter == "M" and report.facts["is_accepted"]:
            assert report.ok == (row["selectable_M"] == "1"), row["file"]


def _valid(letter: str) -> str:
    (artifact,) = write(
        ring_all_reduce(4), WriteOptions(RUNTIMES[letter], max_bytes=1 << 20)
    ).artifacts
    return artifact.content().decode()


def _first(pattern: str, replacement: str) -> Callable[[str], str]:
    def change(text: str) -> str:
        changed, number = re.subn(pattern, replacement, text, count=1)
        assert number
        return changed

    return change


@pytest.mark.parametrize("letter", CHECKS)
def test_what_is_written_for_a_runtime_is_used_by_it(letter: str) -> None:
    report = _check(letter, _valid(letter))
    assert (report.ok, report.diagnostics) == (True, ())
    (call,) = report.calls
    assert (call.collective, call.num_ranks, call.in_place) == ("allreduce", 4, True)
    assert (call.min_bytes, call.max_bytes) == (0, 1 << 20)
    assert call.conditions == ("number of elements divisible by 4", "operators sum, prod, min, max")


# One change to a valid file, and what the three parsers make of it.
REFUSED_BY_ALL = {
    "xml-declaration": lambda text: '<?xml version="1.0"?>\n' + text,
    "tab": _first("\n  <gpu", "\n\t<gpu"),
    "line-break": _first(' proto="', '\nproto="'),
    "single-quote": _first('coll="allreduce"', "coll='allreduce'"),
    "not-xml": _first("\n  <gpu", "\n text <gpu"),
    "doctype": lambda text: "<!DOCTYPE algo>\n" + text,
    "truncated": lambda text: text[: len(text) // 2].rpartition("<")[0],
    "count-limit": _first('cnt="1"', 'cnt="72"'),
    "attribute-range": _first('hasdep="0"', 'hasdep="2"'),
    "out-of-bounds": _first('type="s" srcbuf="o" srcoff="0"', 'type="s" srcbuf="o" srcoff="4"'),
    "thread-block-gap": _first('<tb id="0"', '<tb id="1"'),
    "too-long": _first('name="[^"]*"', f'name="{"x" * 256}"'),
    "missing-attribute": _first(' nchannels="1"', ""),
    "unknown-collective": _first('coll="allreduce"', 'coll="allreduces"'),
    "unknown-protocol": _first('proto="Simple"', 'proto="simple"'),
    "unknown-buffer": _first('srcbuf="o"', 'srcbuf="x"'),
    "refused-type": _first('type="s"', 'type="sx"'),
    "channel-range": _first('chan="0"', 'chan="129"'),
    "peer-range": _first('send="1"', 'send="0"'),
    "no-peer": _first('recv="3"', 'recv="-1"'),
}
NOP = (
    '      <step s="0" type="nop" srcbuf="i" srcoff="-1" dstbuf="o" dstoff="-1" cnt="0"'
    ' depid="{}" deps="0" hasdep="0"/>\n'
)
ACCEPTED_BY_ALL = {
    "comment": lambda text: "<!-- a comment\n -->\n" + text,
    "two spaces": _first(' proto="', '  proto="'),
    "entity": _first('name="[^"]*"', 'name="&lt;"'),
    "octal number": _first('cnt="1"', 'cnt="01"'),
    "unknown attribute": _first("<gpu ", '<gpu unknown="1" '),
    "unknown element": _first("\n  <gpu", '\n  <copy i="1"><deeper/></copy>\n  <gpu'),
    "closing tag": _first('hasdep="0"/>', 'hasdep="0"></step>'),
    "space before the end": _first('hasdep="0"/>', 'hasdep="0" />'),
    "count of nothing": _first('cnt="1"', 'cnt="0"'),
    "offset of -1": _first('srcoff="0"', 'srcoff="-1"'),
    "comment at the end": lambda text: text + "<!-- the end -->\n",
    "element at the end": lambda text: text + '<other><step x="1"/></other>\n',
    "nop without a wait": _first("( *<step)", NOP.format(-1) + r"\1"),
    "flag of a nop": _first("( *<step)", NOP.format(-1).replace('"0"/>', '"2"/>') + r"\1"),
}


@pytest.mark.parametrize("letter", CHECKS)
@pytest.mark.parametrize("code", REFUSED_BY_ALL)
def test_change_that_every_parser_refuses(letter: str, code: str) -> None:
    report = _check(letter, REFUSED_BY_ALL[code](_valid(letter)))
    assert not report.facts["is_accepted"]
    assert code in _errors(report)
    assert all(
        found.location.file == "test.xml" and found.location.line for found in report.diagnostics
    )


@pytest.mark.parametrize("letter", CHECKS)
@pytest.mark.parametrize("change", ACCEPTED_BY_ALL)
def test_change_that_every_parser_takes(letter: str, change: str) -> None:
    assert _check(letter, ACCEPTED_BY_ALL[change](_valid(letter))).facts["is_accepted"]


@pytest.mark.parametrize(
    ("change", "verdicts"),
    [
        (_first('<step s="0"', '<step s="64"'), "M"),
        (_first('type="r"', 'type="ra"'), "M"),
        (_first('coll="allreduce"', 'coll="reduce_scatter"'), ""),
        (_first('coll="allreduce"', 'coll="custom"'), "M"),
        (_first('coll="allreduce"', 'coll="alltoallv"'), "ER"),
        (_first('nchannels="1"', 'nchannels="40"'), "MR"),
        (_first('chan="0"', 'chan="32"'), "MER"),
        (_first(' name="[^"]*"', ""), "ER"),
        (_first(' minBytes="0"', ""), "M"),
        (_first('recv="3"', 'recv="9"'), "ER"),
    ],
)
def test_change_on_which_the_parsers_differ(change: Callable[[str], str], verdicts: str) -> None:
    assert (
        "".join(
            letter
            for letter in CHECKS
            if _check(letter, change(_valid(letter))).facts["is_accepted"]
        )
        == verdicts
    )


def test_nop_without_a_waiting_step_behind_it_is_refused() -> None:
    report = _check("E", _first("( *<step)", NOP.format(0) + r"\1")(_valid("E")))
    assert _errors(report) == {"unfinished-nop-chain"}


@pytest.mark.parametrize(
    ("nops", "step_waits", "is_accepted"),
    [((0, -1), False, False), ((-1, 0, -1), True, True), ((0, -1), True, True)],
)
def test_nop_without_a_wait_neither_ends_nor_begins_a_chain(
    nops: tuple[int, ...], step_waits: bool, is_accepted: bool
) -> None:
    text = _first("( *<step)", "".join(map(NOP.format, nops)) + r"\1")(_valid("E"))
    if step_waits:
        text = _first('(type="s".*?)depid="-1" deps="-1"', r'\1depid="0" deps="0"')(text)
    assert _check("E", text).facts["is_accepted"] == is_accepted


RUN = (
    '      <step s="0" type="re" srcbuf="i" srcoff="{}" dstbuf="i" dstoff="0" cnt="1"'
    ' depid="-1" deps="-1" hasdep="0"/>\n'
)


@pytest.mark.parametrize(
    ("before", "lines"),
    [
        # The second reduction joins the first; the wait passes to the step behind them.
        (RUN.format(1) + NOP.format(0) + RUN.format(2), [7]),
        (RUN.format(1) + RUN.format(2) + NOP.format(-1), []),
        # The 17th does not join, and so it has to wait itself.
        (RUN.format(1) * 16 + NOP.format(0) + RUN.format(2), [21]),
    ],
)
def test_wait_of_a_nop_passes_over_reductions_that_join_the_one_before(
    before: str, lines: list[int]
) -> None:
    # The steps of the first thread block begin in line 4.
    report = _check("E", _first("( *<step)", before + r"\1")(_valid("E")))
    refused = [found for found in report.diagnostics if found.severity is Severity.ERROR]
    assert [found.location.line for found in refused] == lines


@pytest.mark.parametrize("letter", CHECKS)
@pytest.mark.parametrize("tail", ["text", "</algo>", "<", "<!-- open", "\t", '<?xml version="1"?>'])
def test_what_is_no_element_behind_the_last_one_is_refused(letter: str, tail: str) -> None:
    report = _check(letter, _valid(letter) + tail)
    assert not report.facts["is_accepted"]
    assert len(report.diagnostics) == 1


def test_steps_that_fail_for_one_reason_are_one_finding() -> None:
    text = _valid("E")
    (finding,) = _check("E", _first('recv="3"', 'recv="-1"')(text)).diagnostics
    receiving = re.findall('type="r', text[: text.index("</tb>")])
    assert finding.message.startswith("rank 0, thread block 0, step 1: ")
    assert finding.message.endswith(f"(and {len(receiving) - 1} more for this reason)")


def test_doubts_name_thread_block_and_step_of_the_file() -> None:
    report = _check("E", _first('depid="-1" deps="-1"', 'depid="0" deps="3"')(_valid("E")))
    (finding,) = report.diagnostics
    assert finding.message.startswith("rank 0, thread block 0, step 0: loads, but cannot run")
    lonely = re.sub(r' *<step s="6".*\n', "", _valid("E"), count=1)
    (finding,) = _check("E", lonely).diagnostics
    assert re.match(r"rank \d, thread block 0, step \d: loads, but cannot run", finding.message)


def test_attributes_beyond_the_sixteenth_place_are_not_seen() -> None:
    spaces = _first("<algo ", "<algo " + " " * 12)(_valid("E"))
    assert _errors(_check("E", spaces)) >= {"missing-attribute"}


@pytest.mark.parametrize(("letter", "is_used"), [("M", False), ("E", True), ("R", True)])
def test_max_bytes_of_0_is_no_limit_or_no_use(letter: str, is_used: bool) -> None:
    report = _check(letter, _first(r'maxBytes="\d+"', 'maxBytes="0"')(_valid(letter)))
    assert (report.facts["is_accepted"], report.ok) == (True, is_used)
    assert _errors(report) == (set() if is_used else {"never-selected"})


def test_file_that_claims_no_mode_is_never_used() -> None:
    report = _check("E", _first('inplace="1"', 'inplace="0"')(_valid("E")))
    assert (report.facts["is_accepted"], report.ok) == (True, False)
    assert _errors(report) == {"never-selected"}


def test_both_modes_are_two_kinds_of_calls() -> None:
    (artifact,) = write(ring_all_gather(4), WriteOptions("executor")).artifacts
    assert [call.in_place for call in _check("E", artifact.content().decode()).calls] == [
        True,
        False,
    ]


def test_all_to_all_is_called_out_of_place_whatever_the_file_says() -> None:
    (artifact,) = write(direct_all_to_all(4), WriteOptions("msccl")).artifacts
    text = _first('inplace="0"', 'inplace="1"')(artifact.content().decode())
    assert [call.in_place for call in _check("M", text).calls] == [False]


def test_file_that_loads_but_hangs_is_told_as_a_warning() -> None:
    report = _check("E", _first('depid="-1" deps="-1"', 'depid="0" deps="3"')(_valid("E")))
    assert report.ok
    assert [found.code for found in report.diagnostics] == ["endless-wait"]


def test_nothing_but_findings_comes_of_garbage() -> None:
    for text in (
        "",
        "\n",
        "<",
        "<algo",
        "<algo>",
        "</algo>",
        "<a><b/></a>",
        "<!--",
        "\x00",
        "<gpu/>" * 3,
        "<algo a=>",
    ):
        for letter in CHECKS:
            assert not _check(letter, text).ok


@pytest.mark.parametrize(("number", "is_refused"), [(32, False), (33, True)])
@pytest.mark.parametrize("side", ["send", "recv"])
def test_a_rank_has_at_most_32_peers_on_a_channel_and_side(
    xml, side: str, number: int, is_refused: bool
) -> None:
    other = "recv" if side == "send" else "send"
    kinds = {"send": xml.step("s"), "recv": xml.step("r")}
    many = [xml.block(kinds[side], **{side: rank}) for rank in range(number)]
    few = [xml.gpu(xml.block(kinds[other], **{other: number})) for _ in range(number)]
    report = _check("M", xml.algo(*few, xml.gpu(*many)))
    found = [one.message for one in report.diagnostics if one.code == "too-many-thread-blocks"]
    assert len(found) == is_refused
    if is_refused:
        assert found[0] == f"rank 33: more than 32 thread blocks {side} on channel 0"


def test_a_closing_tag_of_another_element_is_named_with_the_expected_one() -> None:
    text = _valid("M").replace("</tb>", "</gpu>", 1)
    messages = [found.message for found in _check("M", text).diagnostics]
    assert "found </gpu>, expected </tb>" in messages


def test_the_size_without_deadlock_is_in_bytes_of_the_call(xml) -> None:
    """Two buffers of a slice: 8 chunks in transfers of at least 4 chunks never fill them."""
    ranks = [
        xml.gpu(
            xml.block(
                xml.step("s", "i0", cnt=8), xml.step("r", dst="o0", cnt=8), send=peer, recv=peer
            ),
            i=8,
            o=8,
        )
        for peer in (1, 0)
    ]
    text = xml.algo(*ranks, nchunksperloop=8, coll="allreduce")
    report = _check("E", text)
    # The buffer of the protocol Simple has two slices of 2 MiB (msccl-executor-nccl).
    messages = [one.message for one in report.diagnostics if one.code == "fifo-deadlock"]
    assert messages == [
        f"above {8 * (2 << 20) // 4} bytes the FIFOs of connections can fill up and the file"
        " can deadlock"
    ]


@pytest.mark.parametrize("letter", CHECKS)
def test_a_check_without_a_file_is_a_usage_error(letter: str) -> None:
    with pytest.raises(UsageError, match="a file is needed"):
        CHECKS[letter](CheckRequest(), NoOptions())


def test_the_verdict_says_whether_a_call_uses_the_file() -> None:
    text = _valid("M")
    assert _check("M", text).verdict == "msccl uses it for these calls"
    unused = _check("M", _first('maxBytes="[0-9]+"', 'maxBytes="0"')(text))
    assert unused.verdict == "msccl loads it, but uses it for no call"
    assert _check("M", "<").verdict == "msccl refuses it"


def test_ids_of_ranks_are_compared_with_their_number() -> None:
    text = _valid("M").replace('<gpu id="3"', '<gpu id="7"')
    warnings = [found.message for found in _check("M", text).diagnostics]
    assert (
        "the ids of <gpu> are not 0..3, each once: some rank has no program, or a mixed one"
        in warnings
    )
    assert _check("M", text).ok


def test_a_huge_number_of_ranks_is_compared_in_little_memory() -> None:
    text = _first('ngpus="[0-9]+"', 'ngpus="99999999999"')(_valid("M"))
    messages = [found.message for found in _check("M", text).diagnostics]
    assert any("the ids of <gpu> are not 0..99999999998" in message for message in messages)


def test_only_msccl_compares_the_sizes_of_a_call() -> None:
    reversed_sizes = _first('minBytes="[0-9]+" maxBytes="[0-9]+"', 'minBytes="9" maxBytes="8"')
    for letter in CHECKS:
        report = _check(letter, reversed_sizes(_valid(letter)))
        assert ("size-range" in _errors(report)) == (letter == "M")
    equal = _first('minBytes="[0-9]+" maxBytes="[0-9]+"', 'minBytes="8" maxBytes="8"')
    assert "size-range" not in _errors(_check("M", equal(_valid("M"))))


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("12", 12),
        ("12x", 12),
        ("x", 0),
        ("9" * 18, 10**18 - 1),
        ("9" * 19, 2**63 - 1),
        ("-" + "9" * 18, 1 - 10**18),
        ("-" + "9" * 19, -(2**63)),
        ("99999999999x", 99999999999),
        ("0x100000000", 2**32),
        ("020000000000", 2**31),
        ("+4294967296", 2**32),
        ("-0x" + "f" * 5000, -(2**63)),
        ("0" * 50 + "7", 7),
    ],
)
def test_numbers_are_read_as_strtol_does(text: str, number: int) -> None:
    assert read_number(text) == number


@pytest.mark.parametrize(("count", "is_refused"), [(71, False), (72, True)])
def test_counts_are_below_72(count: int, is_refused: bool) -> None:
    report = _check("M", _first('cnt="1"', f'cnt="{count}"')(_valid("M")))
    assert ("count-limit" in {found.code for found in report.diagnostics}) == is_refused


@pytest.mark.parametrize(("length", "is_refused"), [(254, False), (255, True)])
def test_names_of_elements_fit_into_254_bytes(length: int, is_refused: bool) -> None:
    element = f"<{'x' * length}/>"
    report = _check("M", _first("\n  <gpu", f"\n  {element}\n  <gpu")(_valid("M")))
    assert ("too-long" in _errors(report)) == is_refused


def test_text_between_elements_is_shown() -> None:
    (found,) = _check("M", REFUSED_BY_ALL["not-xml"](_valid("M"))).diagnostics
    assert found.message.startswith("text 'text <gpu")
    assert found.message.endswith("between elements, which the runtimes' parser does not accept")


@pytest.mark.parametrize(("peer", "is_refused"), [(3, False), (4, True)])
def test_peers_are_below_the_number_of_ranks(peer: int, is_refused: bool) -> None:
    text = _first('send="1"', f'send="{peer}"')(_valid("M"))
    assert ("peer-range" in _errors(_check("M", text))) == is_refused


@pytest.mark.parametrize(
    ("name", "value", "is_refused"),
    [(254, 1, False), (255, 1, True), (1, 255, False), (1, 256, True)],
)
def test_names_and_values_of_attributes_fit_into_arrays(
    name: int, value: int, is_refused: bool
) -> None:
    attribute = f'{"x" * name}="{"y" * value}"'
    report = _check("M", _first("<gpu ", f"<gpu {attribute} ")(_valid("M")))
    assert ("too-long" in _errors(report)) == is_refused
