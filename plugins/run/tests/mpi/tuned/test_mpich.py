"""Selection files of MPICH: what is put into the release's own, and what MPICH would not obey."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from collhub_mpi.executor import find_launcher
from collhub_mpi.plugin import MpichOptions
from collhub_mpi.tuned.mpich import COLLECTIVES, VARIABLE, read, write
from hypothesis import given
from hypothesis import strategies as st

from hub_core.model import Collective, CollectiveKind, Diagnostic, InputError, Severity
from hub_core.plugin_api import SelectedCollective, Selection, Source, SourcePart
from hub_core.testing import ring_all_reduce, selected

SIZES = (1 << 10, 1 << 13, 1 << 20)
BEFORE: dict[str, Any] = {"algorithm=MPIR_Any_intra_smp": {}}
NAMES = [name for names in COLLECTIVES.values() for name in names]
# The shape of maint/tuning/coll/mpir/generic.json of MPICH 5.0.2, shortened.
DEFAULTS: dict[str, Any] = {
    f"collective={name}": {"comm_type=intra": BEFORE, "comm_type=inter": {}} for name in NAMES
} | {"collective=barrier": BEFORE}


@pytest.fixture(scope="module")
def defaults(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("mpich") / "generic.json"
    file.write_text(json.dumps(DEFAULTS))
    return file


def _selected(
    kind: CollectiveKind,
    times: dict[str, Sequence[int]],
    ranks: int = 16,
    sizes: Sequence[int] = SIZES,
) -> SelectedCollective:
    root = 0 if kind.traits.is_rooted else None
    collective = Collective(kind, ranks, ranks, root, in_place=True)
    return selected(collective, sizes, times, lambda name, size: ring_all_reduce(2))


def _written(
    defaults: Path, *found: SelectedCollective, ranks: int = 16
) -> tuple[dict[str, Any], list[str]]:
    result = write(Selection("t", ranks, 1, found), MpichOptions(str(defaults)))
    (artifact,) = result.artifacts
    return json.loads(artifact.content()), [str(loss) for loss in result.losses]


def _read(document: object) -> tuple[list[tuple[object, ...]], list[str]]:
    found: list[Diagnostic] = []
    part = SourcePart("coll_selection.json", json.dumps(document).encode)
    served = read(Source("mpich", (part,), found.append))
    rows = [(str(s.kind), s.in_place, s.min_bytes, s.max_bytes, s.by) for s in served]
    # A file of a release has other collectives too, which are noted.
    return rows, [str(one) for one in found if one.code != "other-collective"]


# MPICH's own file is in its library, as text.
LIBRARY = Path(sys.prefix, "lib", "libmpi.so.12")
START = b'{"collective=bcast":{"comm_type=intra":{"comm_size<8"'
REDUCE = """
import numpy as np
from mpi4py import MPI

world = MPI.COMM_WORLD
for count in (1, 3, 1 << 18):
    target = np.empty(count, np.int64)
    world.Allreduce(np.arange(count) + world.rank, target, MPI.SUM)
    assert (target == world.size * np.arange(count) + world.size * (world.size - 1) // 2).all()
"""


REDUCED = {"recursive-doubling": (1, 5, 9), "halving-doubling": (2, 4, 4)}


def test_only_communicators_of_the_tuned_size_are_changed(defaults: Path) -> None:
    document, losses = _written(defaults, _selected(CollectiveKind.ALL_REDUCE, REDUCED))
    tuned = document["collective=allreduce"].pop("comm_type=intra")
    others = {key: tree for key, tree in DEFAULTS.items() if key != "collective=allreduce"}
    assert document == others | {"collective=allreduce": {"comm_type=inter": {}}}
    assert losses == []
    assert list(tuned) == ["comm_size<16", "comm_size<=16", "comm_size=any"]
    assert tuned["comm_size<16"] == tuned["comm_size=any"] == BEFORE
    doubling = {"algorithm=MPIR_Allreduce_intra_recursive_doubling": {}}
    halving = {"algorithm=MPIR_Allreduce_intra_reduce_scatter_allgather": {}}
    assert tuned["comm_size<=16"] == {
        "is_commutative=yes": {
            "is_op_built_in=yes": {
                "avg_msg_size<=8191": doubling,
                "avg_msg_size=any": {"count<pow2": doubling, "count=any": halving},
            },
            "is_op_built_in=no": BEFORE,
        },
        "is_commutative=no": BEFORE,
    }


def test_what_is_written_is_served(defaults: Path) -> None:
    document, _ = _written(defaults, _selected(CollectiveKind.ALL_REDUCE, REDUCED))
    assert _read(document) == (
        [
            ("all-reduce", True, 0, 8191, "recursive_doubling of 16 ranks"),
            ("all-reduce", True, 8192, None, "reduce_scatter_allgather of 16 ranks"),
        ],
        [],
    )


def test_all_to_all_counts_the_bytes_of_a_pair_and_keeps_calls_in_place(defaults: Path) -> None:
    times = {"bruck": (1, 5, 9), "pairwise": (2, 4, 4)}
    document, _ = _written(defaults, _selected(CollectiveKind.ALL_TO_ALL, times))
    tuned = document["collective=alltoall"]["comm_type=intra"]["comm_size<=16"]
    assert list(tuned["is_sendbuf_inplace=no"]) == ["avg_msg_size<=511", "avg_msg_size=any"]
    assert tuned["is_sendbuf_inplace=yes"] == BEFORE
    assert _read(document)[0] == [
        ("all-to-all", False, 0, 8176, "brucks of 16 ranks"),
        ("all-to-all", False, 8177, None, "pairwise of 16 ranks"),
        ("all-to-all", True, 0, None, "MPICH's own choice"),
    ]


def test_both_functions_of_reduce_scatter_are_tuned(defaults: Path) -> None:
    found = _selected(CollectiveKind.REDUCE_SCATTER, {"halving-doubling": (1, 1, 1)})
    document, _ = _written(defaults, found)
    for name in ("reduce_scatter", "reduce_scatter_block"):
        assert f"MPIR_{name.capitalize()}_intra_recursive_halving" in str(document)
    del document["collective=reduce_scatter_block"]["comm_type=intra"]["comm_size<16"]
    assert "reduce_scatter and reduce_scatter_block choose differently" in _read(document)[1][0]


def test_recursive_doubling_of_all_gather_is_for_powers_of_two(defaults: Path) -> None:
    times = {"recursive-doubling": (1, 1, 1), "ring": (2, 2, 2)}
    document, losses = _written(defaults, _selected(CollectiveKind.ALL_GATHER, times, 6), ranks=6)
    assert _read(document)[0] == [("all-gather", True, 0, None, "ring of 6 ranks")]
    assert "MPICH has no recursive-doubling" in losses[0]


def test_a_size_beyond_an_int_of_c_is_not_tested(defaults: Path) -> None:
    found = _selected(CollectiveKind.ALL_REDUCE, REDUCED, sizes=(1 << 10, 1 << 33, 1 << 34))
    rows, wrong = _read(_written(defaults, found)[0])
    assert (rows, wrong) == ([("all-reduce", True, 0, None, "recursive_doubling of 16 ranks")], [])


@given(
    st.lists(st.integers(1, 1 << 20), min_size=2, max_size=5, unique=True).map(sorted),
    st.integers(2, 9),
)
def test_pairs_leave_no_gap(defaults: Path, sizes: list[int], ranks: int) -> None:
    times = {
        name: [1 + (place % 2 == number) for place in range(len(sizes))]
        for number, name in enumerate(("pairwise", "bruck"))
    }
    found = _selected(CollectiveKind.ALL_TO_ALL, times, ranks, sizes)
    rows, wrong = _read(_written(defaults, found, ranks=ranks)[0])
    assert wrong == []
    ends = [(first, last) for _, in_place, first, last, _ in rows if not in_place]
    assert (ends[0][0], ends[-1][1]) == (0, None)
    assert all(one[1] + 1 == behind[0] for one, behind in pairwise(ends))


def test_without_the_file_of_the_release_nothing_is_written_and_that_is_a_loss() -> None:
    found = _selected(CollectiveKind.ALL_REDUCE, REDUCED)
    result = write(Selection("t", 16, 1, (found,)), MpichOptions())
    assert result.artifacts == []
    assert "-O mpich.defaults=FILE" in str(result.losses[0])


def test_compositions_of_the_device_are_refused_as_defaults_and_in_a_check(tmp_path: Path) -> None:
    composition = {"comm_type=intra": {"composition=MPIDI_Allreduce_intra_composition_beta": {}}}
    file = tmp_path / "generic.json"
    file.write_text(json.dumps(DEFAULTS | {"collective=allreduce": composition}))
    with pytest.raises(InputError, match="_beta is a composition of the device CH4"):
        write(Selection("t", 16, 1, ()), MpichOptions(str(file)))
    reports: list[Diagnostic] = []
    source = Source.of_bytes(file.name, file.read_bytes())
    assert read(Source(source.name, source.parts, reports.append)) == []
    assert ["composition of the device CH4" in found.message for found in reports] == [True]


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"collective=allreduce": 1}'])
def test_another_file_as_defaults_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "other.json"
    file.write_text(text)
    with pytest.raises(InputError, match="no selection file of MPICH") as caught:
        write(Selection("t", 16, 1, ()), MpichOptions(str(file)))
    assert "generic.json" in caught.value.diagnostics[0].cure


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("avg_msg_size<=8191", "avg_msg_size<8191", "is no avg_msg_size<= of ascending sizes"),
        ("avg_msg_size=any", "avg_msg_size<=9000", "avg_msg_size=any is missing"),
        ("avg_msg_size=any", "avg_msg_size<=80", "is no avg_msg_size<= of ascending sizes"),
        ("is_commutative=no", "is_commutative=maybe", "is_commutative=no is missing"),
        ("algorithm=MPIR_Allreduce_intra_recursive", "algorithm=recursive", "is no algorithm"),
        (
            "MPIR_Allreduce_intra_recursive",
            "MPIR_Allgather_intra_recursive",
            "is no algorithm of allreduce",
        ),
        ("avg_msg_size<=8191", "avg_msg_size<=4294967296", "is above 2147483647, a C int"),
        ("collective=bcast", "collective=broadcast", "collective=bcast is missing"),
    ],
)
def test_a_changed_file_serves_nothing(defaults: Path, old: str, new: str, reason: str) -> None:
    document, _ = _written(defaults, _selected(CollectiveKind.ALL_REDUCE, REDUCED))
    text = json.dumps(document)
    assert old in text
    served, found = _read(json.loads(text.replace(old, new)))
    assert served == []
    assert [reason in one for one in found] == [True]


@pytest.mark.skipif(
    not LIBRARY.exists() or importlib.util.find_spec("mpi4py") is None,
    reason="MPICH is not installed beside this Python: python -m pip install mpi4py mpich",
)
def test_mpich_itself_takes_the_file_and_reduces_right(tmp_path: Path) -> None:
    library = LIBRARY.read_bytes()
    start = library.find(START)
    if start < 0:
        pytest.skip("this MPICH has other defaults than 5.0.2")
    file = tmp_path / "generic.json"
    file.write_bytes(library[start : library.index(b"\0", start)])
    found = _selected(CollectiveKind.ALL_REDUCE, REDUCED, ranks=4)
    document, _ = _written(file, found, ranks=4)
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_text(json.dumps(document))
    bad.write_text(json.dumps({"collective=allreduce": document["collective=allreduce"]}))
    command = [*find_launcher(), "-n", "4", sys.executable, "-P", "-c", REDUCE]
    codes = [
        subprocess.run(
            command, env={**os.environ, VARIABLE: str(one)}, capture_output=True, timeout=60
        ).returncode
        for one in (good, bad)
    ]
    # MPICH reads the file: one that lacks collectives ends it.
    assert codes[0] == 0
    assert codes[1] != 0


def test_sizes_between_windows_keep_the_tree_of_the_release(defaults: Path) -> None:
    times = {"recursive-doubling": (1, 5, 9), "ring": (2, 4, 4)}
    reduced = _selected(CollectiveKind.ALL_REDUCE, times)
    first, last = reduced.windows(None)
    gap = replace(first, max_bytes=4095), replace(last, max_bytes=(1 << 20) - 1)
    document, _ = _written(defaults, replace(reduced, windows=lambda names: gap))
    tuned = json.dumps(document["collective=allreduce"]["comm_type=intra"]["comm_size<=16"])
    assert tuned.count(json.dumps(BEFORE)) >= 2
    rows, problems = _read(document)
    assert problems == []
    ranges = [(row[2], row[3]) for row in rows if row[0] == "all-reduce"]
    assert ranges == [(0, 4095), (8192, (1 << 20) - 1)]


TREES: dict[str, Any] = {
    f"collective={name}": {
        "comm_type=intra": {
            "comm_size<8": {f"algorithm=MPIR_{name.capitalize()}_intra_first": {}},
            "comm_size=any": {f"algorithm=MPIR_{name.capitalize()}_intra_second": {"k=2": {}}},
        },
        "comm_type=inter": {f"algorithm=MPIR_{name.capitalize()}_inter_third": {}},
    }
    for name in [*NAMES, "barrier", "iallreduce"]
}


def test_a_file_with_all_collectives_is_checked_with_a_note_on_the_others() -> None:
    assert _read(TREES) == ([], [])
    found: list[Diagnostic] = []
    part = SourcePart("coll_selection.json", json.dumps(TREES).encode)
    assert read(Source("mpich", (part,), found.append)) == []
    assert [(one.code, one.severity) for one in found] == [("other-collective", Severity.NOTE)]
    assert "coll_selection.json: the hub does not model barrier, iallreduce: only" in str(found[0])


def test_trees_of_any_depth_are_read_or_refused_in_one_line() -> None:
    text = json.dumps(TREES)
    for depth in (*range(900, 1000), 2000, 5000):
        nested = '{"comm_size<8": ' * depth + "{}" + "}" * depth
        found: list[Diagnostic] = []
        content = f'{text[:-1]}, "collective=scan": {nested}}}'.encode()
        part = SourcePart("coll_selection.json", lambda content=content: content)
        assert read(Source("mpich", (part,), found.append)) == []
        assert [one.code for one in found] in (["other-collective"], ["not-a-selection"])


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ('"k=2": {}', '"k=2": 2', "no tree below k=2"),
        ('"comm_size<8"', '"comm_size 8"', "'comm_size 8' below comm_type=intra is no test or"),
    ],
)
def test_trees_of_other_collectives_must_have_the_form(old: str, new: str, reason: str) -> None:
    text = json.dumps(TREES)
    at = text.index(old, text.index("collective=barrier"))
    served, (finding,) = _read(json.loads(text[:at] + text[at:].replace(old, new, 1)))
    assert served == []
    assert reason in finding
