"""Steps that are written alike are added at once: nobody can tell that the parser saw but one."""

from __future__ import annotations

from typing import Any

import pytest
from collhub_msccl.findings import FileFindings
from collhub_msccl.reading import alike_steps, scan
from hypothesis import example, given
from hypothesis import strategies as st

from hub_core.model import InputError

_STEP = '<step s="{}" type="{}" srcbuf="i" srcoff="{}" cnt="1" other="x"/>\n'
_HEAD = '<algo name="a" nchannels="1">\n<gpu id="0">\n<tb id="0" send="1">\n'
_BETWEEN = '</tb>\n<tb id="1" recv="1">\n'
_TAIL = "</tb>\n</gpu>\n</algo>\n<!-- the end -->\n"
_STEPS = "".join(_STEP.format(number, "scpy"[number % 3 :], 70 * number) for number in range(30))
_TEXT = _HEAD + _STEPS + _BETWEEN + _STEPS + _TAIL
_INSERTED = [
    "<!--", "-->", "<![CDATA[", "]]>", "&amp;", "&#10;", "&", "<", ">", '"', "'", "/", " ", "\n",
    "\r\n", "\r", "\0", "\t", "\x7f", "é", "0123456789", "<step/>", "<step s='1'>", "</step>",
    "<nop/>", "<?pi ?>", "<!DOCTYPE a>", "</tb>", "</gpu>", "<tb>", _STEP.format(1, "s", 2),
]  # fmt: skip


def _scanned(content: bytes) -> Any:
    """All that a scan tells: tables with their texts, and findings; or its refusal."""
    findings: list[str] = []
    try:
        found = scan.scan_xml(
            content, "f", FileFindings("f", lambda one: findings.append(str(one)))
        )
    except InputError as error:
        return str(error)
    tables = [found.table(tag) for tag in ("gpu", "tb", "step")]
    texts = [[[found.texts[code] for code in row] for row in one.codes] for one in tables]
    places = [(one.line.tolist(), one.first_child.tolist()) for one in tables]
    return texts, places, found.algo, found.algo_line, findings


def _both(monkeypatch: pytest.MonkeyPatch, content: bytes) -> tuple[Any, Any, int]:
    """With runs and without, and the number of steps that the parser did not get."""
    monkeypatch.setattr(alike_steps, "_MIN_FILE_BYTES", 16)
    monkeypatch.setattr(alike_steps, "_SEGMENT_BYTES", 1500)
    left_out = sum(len(run.codes) - 1 for run in alike_steps.find_step_runs(content))
    with_runs = _scanned(content)
    monkeypatch.setattr(scan, "find_step_runs", lambda content: ())
    plain = _scanned(content)
    monkeypatch.setattr(scan, "find_step_runs", alike_steps.find_step_runs)
    return with_runs, plain, left_out


@pytest.fixture(scope="module")
def patches() -> Any:
    with pytest.MonkeyPatch.context() as monkeypatch:
        yield monkeypatch


def test_the_parser_gets_only_the_first_step_of_a_run(patches) -> None:
    patches.setattr(alike_steps, "_MIN_FILE_BYTES", 16)
    added: list[int] = []
    add_run = scan._Scanner.add_run

    def count(scanner: Any, run: alike_steps.StepRun) -> None:
        added.append(len(run.codes))
        add_run(scanner, run)

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(scan._Scanner, "add_run", count)
        _scanned(_TEXT.encode())
    assert added == [30, 30]


def test_runs_are_found_and_equal(patches) -> None:
    with_runs, plain, left_out = _both(patches, _TEXT.encode())
    assert with_runs == plain
    assert left_out > 40


@given(
    st.lists(
        st.tuples(st.integers(0, len(_TEXT)), st.integers(0, 12), st.sampled_from(_INSERTED)),
        max_size=4,
    )
)
@example([(len(_HEAD), 0, "<!--")])
@example([(len(_HEAD), 0, "<![CDATA["), (len(_HEAD) + 900, 0, "]]>")])
@example([(len(_HEAD) + 9, 2, "&amp;")])
@example([(len(_HEAD) - 1, 1, "")])
def test_damaged_files_are_scanned_as_by_the_parser_alone(patches, edits) -> None:
    text = _TEXT
    for place, length, inserted in edits:
        text = text[:place] + inserted + text[place + length :]
    with_runs, plain, _ = _both(patches, text.encode())
    assert with_runs == plain


@pytest.mark.parametrize(
    "change",
    [
        ('other="x"', 'othen="x"'),
        ('<step s="', '<stop s="'),
        ("\n<step", "\t<step"),
        ('cnt="1"', 'cnt="2"'),
        ('cnt="1" other', "cnt='1' other"),
    ],
)
@pytest.mark.parametrize("number", [0, 7, 29])
def test_a_step_that_differs_in_one_character_is_scanned_as_it_is(
    patches, number: int, change: tuple[str, str]
) -> None:
    step = _STEPS.splitlines(keepends=True)[number]
    before = step if step.startswith(change[0]) or change[0] in step else "\n" + step
    text = _TEXT.replace(before, before.replace(*change), 1)
    assert text != _TEXT
    with_runs, plain, _ = _both(patches, text.encode())
    assert with_runs == plain


@pytest.mark.parametrize("encoding", ["utf-8", "iso-8859-1", "cp037", "utf-16"])
def test_declared_encodings_are_those_of_the_parser(patches, encoding: str) -> None:
    text = f'<?xml version="1.0" encoding="{encoding}"?>\n' + _TEXT
    with_runs, plain, _ = _both(patches, text.encode())
    assert with_runs == plain


def test_steps_in_one_line_have_its_number(patches) -> None:
    with_runs, plain, left_out = _both(patches, _TEXT.replace("\n", " ").encode())
    assert with_runs == plain
    assert left_out > 40
