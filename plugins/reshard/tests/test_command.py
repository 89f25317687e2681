"""`collhub reshard`: what it prints and writes, its proof, and one clear line for wrong input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from collhub_reshard.plugin import collhub_checks, collhub_commands
from collhub_reshard.recheck import check_schedule
from collhub_reshard.scheduling import best
from reshard_tasks import changing

import hub_core
from hub_core.plugin_api import CheckRequest, NoOptions
from hub_core.testing import check_examples, ring_all_reduce

pytestmark = pytest.mark.once

README = Path(__file__).resolve().parents[1] / "README.md"
CASE_6 = (
    "--tensor", "3072x1024x170:float32", "--from", "mesh(2,4): S0 R R", "--to",
    "mesh(3,4): S0 R R",
)  # fmt: skip
IDEAL = ("--host-bandwidth", "1.25GiB/s")
SMALL = ("--tensor", "12x8:float32", "--from", "mesh(2,2): S0 R", "--to", "mesh(1,4): R S1")


def test_the_offers_are_a_command_a_check_and_rules() -> None:
    assert [one.name for one in collhub_commands()] == ["reshard"]
    assert [one.name for one in collhub_checks()] == ["reshard", "reshard"]


def test_the_example_of_the_readme_runs() -> None:
    check_examples(README)


def test_the_report_has_the_golden_numbers_of_case_6(collhub) -> None:
    report = collhub("reshard", *CASE_6, *IDEAL, "--json").report()
    assert report["makespan_s"] == report["optimum_s"] == report["bound_s"] == 0.796875
    assert (report["unit_tasks"], report["status"]) == (4, "optimal")
    assert report["binding"] == {"kind": "senders", "hosts": [0, 1], "task": -1, "links": []}


def test_what_is_written_verifies_with_its_proof(collhub, tmp_path: Path) -> None:
    out, network = tmp_path / "r.json", tmp_path / "net.json"
    made = collhub("reshard", *CASE_6, *IDEAL, "-o", out, "--network", network)
    assert made.code == 0
    assert "optimal, proved by the bound" in made.out
    checked = collhub("verify", out, "--certificate", "--topology", network)
    assert checked.code == 0
    assert "certificate  holds: no schedule is faster\n" in checked.out


def test_a_proof_for_other_cards_is_exit_1(collhub, tmp_path: Path) -> None:
    out, network = tmp_path / "r.json", tmp_path / "net.json"
    collhub("reshard", *SMALL, "--host-bandwidth", "2GB/s", "-o", tmp_path / "x.json",
            "--network", network)  # fmt: skip
    collhub("reshard", *SMALL, "--host-bandwidth", "1GB/s", "-o", out)
    run = collhub("verify", out, "--certificate", "--topology", network, "--json")
    assert run.code == 1
    codes = [found["code"] for found in run.report()["certificate"]["diagnostics"]]
    assert codes == ["reshard-topology"]


@pytest.fixture
def proof(collhub, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A schedule with its proof as JSON, which is computed once."""
    file = tmp_path_factory.getbasetemp() / "reshard-proof.json"
    if not file.exists():
        assert collhub("reshard", *CASE_6, *IDEAL, "-o", file).code == 0
    return file.read_text()


def _changed(proof: str, tmp_path: Path, change) -> str:
    """The code of the finding on a proof that was changed."""
    out = tmp_path / "r.json"
    document = json.loads(proof)
    change(document["extensions"]["reshard"])
    out.write_text(json.dumps(document))
    algorithm = hub_core.read(str(out))
    report = check_schedule(CheckRequest(algorithm=algorithm), NoOptions())
    assert not report.ok
    return report.diagnostics[0].code


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (changing("bound", "hosts", value=[2]), "reshard-bound"),
        (changing("bound", "seconds", value="1/2"), "reshard-bound"),
        (changing("schedule", 0, 2, value="1/3"), "reshard-overlap"),
        (changing("schedule", 0, 1, value=7), "reshard-sender"),
        (changing("schedule", 0, 3, value="1/100"), "reshard-duration"),
        (changing("schedule", 0, 5, value="1/2"), "reshard-coverage"),
        (changing("makespan_s", value="1/2"), "reshard-makespan"),
        (changing("tasks", 0, "bytes", value=1), "reshard-tasks"),
        (changing("tasks", value=[]), "reshard-tasks"),
        (changing("moves", 0, "tensor", value="no tensor"), "reshard-form"),
        (changing("moves", 0, "release_s", value=1.0), "reshard-release"),
    ],
)
def test_a_changed_proof_is_found_out(proof: str, tmp_path: Path, change, code: str) -> None:
    assert _changed(proof, tmp_path, change) == code


def test_an_algorithm_of_another_maker_is_not_its_subject() -> None:
    report = check_schedule(CheckRequest(algorithm=ring_all_reduce(4)), NoOptions())
    assert (report.ok, report.is_applicable) == (False, False)


@pytest.mark.parametrize("strategy", ["send-recv", "local-all-gather", "scatter-all-gather"])
def test_strategies_are_verified_and_named(collhub, strategy: str) -> None:
    arguments = (*SMALL, *IDEAL, "-O", f"strategy={strategy}", "-O", "chunks=2", "--json")
    report = collhub("reshard", *arguments).report()
    assert list(report["strategies"]) == [strategy]


@pytest.mark.once
def test_trees_are_packed_on_a_topology(collhub, tmp_path: Path) -> None:
    out = tmp_path / "r.json"
    arguments = (*SMALL, "--topology", "switch:8?bandwidth=10GB/s", "-O", "strategy=tree")
    run = collhub("reshard", *arguments, "--json", "-o", out)
    assert list(run.report()["strategies"]) == ["tree"]
    assert collhub("verify", out, "--certificate").code == 0


def test_tiles_row_by_row_take_copies(collhub) -> None:
    packed, rows = (
        collhub("reshard", *SMALL, *IDEAL, "-O", f"layout={kind}", "--json").report()["layout"]
        for kind in ("packed", "rows")
    )
    assert (packed["copies"], packed["copied_bytes"]) == (0, 0)
    assert rows["copies"] > 0


@pytest.mark.once
def test_a_state_dict_is_one_schedule(collhub, tmp_path: Path) -> None:
    file = tmp_path / "state.json"
    entry = {"tensor": "8x8:float32", "from": "mesh(2,2): S0 R", "to": "mesh(2,2): R S0"}
    file.write_text(json.dumps([entry, {**entry, "count": 2, "due_s": 1e-9}]))
    report = collhub("reshard", "--tensors", file, *IDEAL, "--json").report()
    assert (report["tensors"], report["unit_tasks"]) == (3, 12)
    assert report["late_tasks"]


def test_an_empty_tensor_sends_nothing(collhub) -> None:
    sides = ("--from", "mesh(2,4): S0 R", "--to", "mesh(2,4): R S1")
    report = collhub("reshard", "--tensor", "0x8:float32", *sides, *IDEAL, "--json").report()
    assert (report["unit_tasks"], report["makespan_s"], report["status"]) == (0, 0, "optimal")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((*SMALL,), "one of --topology and --host-bandwidth is needed"),
        ((*SMALL, *IDEAL, "--topology", "ring:8"), "one of --topology and --host-bandwidth"),
        ((*SMALL, "--topology", "ring:4"), "8 devices, topology ring:4 has 4 NPUs"),
        (IDEAL, "nothing to move"),
        (("--tensor", "8:int8", *IDEAL), "--tensor needs --from and --to"),
        (("--tensors", "none.json", *IDEAL), "none.json: No such file"),
        ((*SMALL, *IDEAL, "-O", "strategy=fast"), "expected one of auto, send-recv"),
        ((*SMALL, *IDEAL, "-O", "chunks=0"), "expected a whole number from 1"),
        ((*SMALL, *IDEAL, "-O", "chunks=" + "9" * 5000), "expected a whole number from 1"),
        ((*SMALL, *IDEAL, "-O", "split=maybe"), "expected true or false"),
        ((*SMALL, *IDEAL, "-O", "time_limit=1"), "is the option --timeout SECONDS"),
        ((*SMALL, *IDEAL, "--timeout", "-1"), "is not a time above 0"),
        ((*SMALL, *IDEAL, "-O", "effort=nan"), "expected a number from 0 to 1000"),
        ((*SMALL, *IDEAL, "-O", "stratgy=auto"), "there is no option 'stratgy' here"),
        ((*SMALL, *IDEAL, "-O", "strategy=tree"), "the strategy tree needs a topology"),
        ((*SMALL, *IDEAL, "--format", "goal"), "--format has no meaning without -o"),
    ],
)
def test_wrong_input_is_one_line(collhub, arguments, message: str) -> None:
    run = collhub("reshard", *arguments)
    assert run.code in (1, 2)
    assert message in run.err
    assert run.err.startswith("error: ")
    assert run.err.count("\n") == 1


@pytest.mark.parametrize(
    ("texts", "code"),
    [
        (("8x8:float99", "mesh(2,2): S0 R", "mesh(2,2): R S0"), "invalid-tensor"),
        (("8xx:float32", "mesh(2,2): S0 R", "mesh(2,2): R S0"), "invalid-tensor"),
        (("8x8:float32", "mesh(2,2)", "mesh(2,2): R S0"), "invalid-spec"),
        (("8x8:float32", "mesh(2,2): S0 R", "mesh(2,2): R S5"), "invalid-spec"),
        (("8x8:float32", "mes(2,2): S0 R", "mesh(2,2): R S0"), "invalid-mesh"),
    ],
)
def test_wrong_texts_of_the_command_line_are_exit_2(
    collhub, tmp_path: Path, texts: tuple[str, str, str], code: str
) -> None:
    tensor, source, destination = texts
    run = collhub("reshard", "--tensor", tensor, "--from", source, "--to", destination, *IDEAL)
    assert (run.code, f"[{code}]" in run.err) == (2, True)
    # The same texts in a file are an invalid input.
    file = tmp_path / "state.json"
    file.write_text(json.dumps([{"tensor": tensor, "from": source, "to": destination}]))
    run = collhub("reshard", "--tensors", file, *IDEAL)
    assert run.code == 1
    assert "state.json" in run.err


def test_without_solver_the_program_says_how_to_get_it(collhub, monkeypatch) -> None:
    monkeypatch.setattr(best, "is_solver_installed", lambda: False)
    # Three senders, five receivers and ragged boxes: no bound proves the heuristics.
    sides = ("--from", "mesh(3,1): S0 R", "--to", "mesh(5,1): R R")
    run = collhub("reshard", "--tensor", "7x11:float32", *sides, *IDEAL)
    assert run.code == 0
    assert ("pip install" in run.err) == ("optimal" not in run.out)


HARD = (
    "--tensor", "112x489x391:float32", "--from", "mesh(3,1): R S1 R", "--to", "mesh(4,4): R R S01",
    "--host-bandwidth", "1GB/s", "-O", "chunks=2",
)  # fmt: skip


def test_what_is_not_proved_states_its_gap(collhub, tmp_path: Path) -> None:
    out = tmp_path / "r.json"
    report = collhub("reshard", *HARD, "-O", "effort=0", "--json", "-o", out).report()
    assert (report["status"], report["proof"], report["optimum_s"]) == ("feasible", "none", None)
    assert 0 < report["gap"] < 0.1
    assert "longer than any schedule" in collhub("verify", out, "--certificate").out


def test_what_a_solver_alone_proves_is_said_with_its_gap(collhub, tmp_path: Path) -> None:
    out = tmp_path / "r.json"
    # Three whole tasks of 10, 10 and 9 rows for two senders: 19 or more, where halves take 14.5.
    sides = ("--from", "mesh(2,3): R R", "--to", "mesh(3,1): S0 S1")
    arguments = ("--tensor", "29x19:float32", *sides, "--host-bandwidth", "1GB/s")
    report = collhub("reshard", *arguments, "--json", "-o", out).report()
    assert (report["status"], report["proof"]) == ("optimal", "solver")
    checked = collhub("verify", out, "--certificate", "--json").report()["certificate"]
    assert checked["is_optimal"] is False
    assert checked["gap"] == pytest.approx(19 / 14.5 - 1)
    said = collhub("verify", out, "--certificate").out
    assert (
        "at most 31 % longer than any schedule; the solver's proof of optimality is not checked"
        in said
    )


def test_split_tasks_carry_a_proof_that_holds(collhub, tmp_path: Path) -> None:
    out = tmp_path / "r.json"
    report = collhub("reshard", *HARD, "-O", "split=true", "--json", "-o", out).report()
    assert report["makespan_s"] == report["bound_s"]
    assert "holds: no schedule is faster" in collhub("verify", out, "--certificate").out


def test_an_algorithm_that_moves_less_than_its_proof_is_found_out(collhub, tmp_path: Path) -> None:
    sides = ("--from", "mesh(2,2): S0 R", "--to", "mesh(2,2): R S0", *IDEAL)
    files = [tmp_path / "whole.json", tmp_path / "half.json"]
    for tensor, file in zip(("1024x1024:float32", "512x1024:float32"), files, strict=True):
        assert collhub("reshard", "--tensor", tensor, *sides, "-o", file).code == 0
    whole, half = (json.loads(file.read_text()) for file in files)
    half["extensions"] = whole["extensions"]
    files[1].write_text(json.dumps(half))
    report = check_schedule(CheckRequest(algorithm=hub_core.read(files[1])), NoOptions())
    assert [finding.code for finding in report.diagnostics] == ["reshard-traffic"]
