"""The search: canonical states, bounds, and the paper's best schedules."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import collhub_coconet.search.simulation as simulation_module
import pytest
from attention_parallel import ring_attention
from collhub_coconet import (
    LOCAL,
    Binding,
    Program,
    ProgramBuilder,
    all_reduce,
    compare,
    legal_moves,
    program_from_json,
    program_to_json,
    tanh,
)
from collhub_coconet.documents.json_document import canonical_hash
from collhub_coconet.program.operations import Kind
from collhub_coconet.search.collective_times import Demand, Rates, find_fastest_means
from collhub_coconet.search.cost_models import FormulaModel
from collhub_coconet.search.describing import describe_completeness
from collhub_coconet.search.explore import Exploration, explore
from collhub_coconet.search.hub_algorithms import HubAlgorithms
from collhub_coconet.search.simulation import Simulation, run_tasks, simulate_candidates
from flat_programs import clip_by_norm, momentum
from moe import moe
from transformer_blocks import attention, pipeline_boundary

from hub_core import InputError, parse_topology, synthesize, write
from hub_core.model import Collective, CollectiveKind
from hub_core.plugin_api import SearchBudget, Synthesizer

# The V100s of CoCoNet's measurements.
RATES = Rates(90e12, 765e9, 130.5e9, 0.0, 5e-6)
LARGE = Binding(16, {"B": 8, "S": 1024, "K": 3072, "H": 3072})


def searched(program: Program, binding: Binding, states: int = 200) -> Exploration:
    return explore(program, [binding], FormulaModel(RATES), states)


def named(first: str, second: str) -> Program:
    build = ProgramBuilder("p", N=(1, 64))
    x = build.argument("x", "float32", "N")
    one = tanh(x).named(first)
    return build.program((one * x).named(second))


def test_names_of_operations_do_not_make_a_state() -> None:
    assert canonical_hash(named("a", "b")) == canonical_hash(named("c", "d"))
    assert canonical_hash(attention()) != canonical_hash(pipeline_boundary())


def test_scalars_of_different_layouts_are_searched_without_one_fused_stage() -> None:
    build = ProgramBuilder("p")
    local, replicated = (
        build.argument("a", "float32", layout=LOCAL),
        build.argument("w", "float32"),
    )
    program = build.program((local * 2.0).named("x"), (replicated * 3.0).named("y"))
    assert not searched(program, Binding(4, {})).fastest(0).steps


def test_stages_and_chains_make_a_state() -> None:
    moves = legal_moves(attention(), LARGE)
    hashes = {canonical_hash(move.rewrite.program) for move in moves}
    assert len(hashes) == len(moves)
    assert canonical_hash(attention()) not in hashes


def test_unfused_schedule_has_the_time_of_the_ladder() -> None:
    # 0.1074 + 0.7232 ms of product and all-reduce: specification 8.1, B = 8, attention.
    timing = FormulaModel(RATES).timing(attention(), LARGE)
    all_reduce, _ = find_fastest_means(Kind.ALL_REDUCE, 2 * 8 * 1024 * 3072, 16, RATES)
    # Every step of the protocol has a latency.
    assert 0.7232e-3 < all_reduce < 0.7232e-3 + 60e-6
    assert timing.seconds > all_reduce + 0.1074e-3


def test_attention_is_fastest_overlapped_with_a_fused_all_reduce() -> None:
    found = searched(attention(), LARGE)
    best = found.fastest(0)
    kinds = [step.record.transformation for step in best.steps]
    assert kinds == ["split", "reorder", "fuse", "overlap"]
    (stage,) = best.program.stages
    assert stage.family == "RS-C-AG"
    assert best.program.chains[0].members == ("y", stage.name)
    assert compare(attention(), best.program, Binding(4, {"B": 3, "S": 2, "K": 8, "H": 6})).ok
    assert found.is_complete


def test_pipeline_overlaps_reduction_message_and_gathering() -> None:
    binding = Binding(16, {"B": 1, "S": 2048, "H": 12288})
    best = searched(pipeline_boundary(), binding).fastest(0)
    (stage,) = best.program.stages
    assert stage.family == "Send"
    assert best.program.chains[0].members == ("z_S_2", stage.name, "q")


def test_optimizer_is_fastest_fused_with_a_sliced_state() -> None:
    front = searched(momentum(), Binding(16, {"N": 2**28}), 100).pareto_front(0)
    peaks = [one.peaks[0] for one in front]
    assert peaks == sorted(peaks, reverse=True)
    fastest = front[0].program
    assert [stage.family for stage in fastest.stages] == ["RS-C-AG"]
    assert [one.name for one in fastest.arguments if one.type.layout.is_sliced] == ["m"]


def test_workers_change_nothing() -> None:
    bindings = [Binding(4, {"N": 4096})]
    with ThreadPoolExecutor(3) as workers:
        runs = [
            explore(momentum(), bindings, FormulaModel(RATES), 40, workers=one)
            for one in (None, workers)
        ]
    assert [one.steps for one in runs[0].candidates] == [one.steps for one in runs[1].candidates]
    assert runs[0].expanded == runs[1].expanded


def test_dead_worker_is_one_line() -> None:
    with pytest.raises(InputError, match="a worker of the search died: it is gone"):
        run_tasks(Gone(), len, ["a", "b"])


class Gone(ThreadPoolExecutor):
    """Workers that die."""

    def submit(self, *task: Any) -> Any:
        future: Future[int] = Future()
        future.set_exception(BrokenExecutor("it is gone"))
        return future


def test_programs_travel_to_other_processes() -> None:
    program = attention()
    copied = pickle.loads(pickle.dumps(program))
    assert copied == program
    assert dict(copied.types) == dict(program.types)
    assert canonical_hash(copied) == canonical_hash(program)


def test_search_is_the_same_each_time_and_stops_where_it_is_told() -> None:
    runs = [searched(momentum(), Binding(4, {"N": 4096}), 12) for _ in range(2)]
    assert len(runs[0].candidates) == 12
    assert not runs[0].is_complete
    texts = [[program_to_json(one.program) for one in run.candidates] for run in runs]
    assert texts[0] == texts[1]


def test_every_program_of_a_search_is_equal_to_the_first() -> None:
    small = Binding(3, {"A": 2, "S": 7, "D": 3})
    for one in searched(ring_attention(), small, 30).candidates:
        assert compare(ring_attention(), one.program, small).ok


def test_exchanges_are_simulated_too(collhub: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "p.program.json"
    path.write_text(program_to_json(moe()))
    sizes = ("--size", "E=8,C=8,H=4,F=4", "--jobs", "1")
    report = collhub("transform", path, *sizes, "--search", "--topology", "ring:4", "--json")
    lines = [one["change"] for one in report.report()["changes"]]
    assert lines[-1].startswith("times are simulated")
    assert "dispatched: nested" in lines[2]


@pytest.mark.once
def test_every_collective_gets_means_of_its_own_where_that_is_faster() -> None:
    build = ProgramBuilder("two", N=(1, 2**20), M=(1, 2**24))
    small = build.argument("s", "float32", "N", layout=LOCAL)
    large = build.argument("l", "float32", "M", layout=LOCAL)
    program = build.program(all_reduce(small).named("few"), all_reduce(large).named("many"))
    size = Binding(8, {"N": 8, "M": 2**22})
    simulation = Simulation(Rates(1e14, 1e12, 1e11, 1e-6, 1e-6), parse_topology("switch:8"))
    separate = simulation.timing(program, size)
    assert not isinstance(separate, str)
    assert set(separate.choices) == {"few", "many"}
    assert separate.choices["few"] != separate.choices["many"]
    # No common means are faster.
    for means in separate.choices.values():
        common_s = simulation.simulate_means(program, size, {"few": means, "many": means})
        assert isinstance(common_s, str) or common_s >= separate.seconds
    # Nothing more is to be gained.
    assert simulation.refined(program, size, separate) == separate


@pytest.mark.once
def test_search_uses_the_fastest_algorithms_of_the_hub() -> None:
    # On a ring, ring algorithms use one direction; algorithms that use both are twice as fast.
    size = Binding(8, {"N": 2**24})
    simulation = Simulation(Rates(1e15, 1e15, 1e11, 1e-6, 1e-6), parse_topology("ring:8"))
    program = clip_by_norm(2)
    timing = simulation.timing(program, size)
    assert not isinstance(timing, str)
    link_bound_s = 2 * 2 * 7 / 8 * 2**26 / (2 * 50e9)
    assert link_bound_s < timing.seconds < 1.1 * link_bound_s
    # An algorithm near the proven bound is chosen, not a ring in one direction.
    assert "ring" not in {means.algorithm for means in timing.choices.values()}


def test_algorithms_are_built_once_and_omissions_have_reasons(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    built: list[str] = []

    def count(*arguments: Any, **options: Any) -> Any:
        built.append(options["name"])
        return synthesize(*arguments, **options)

    monkeypatch.setattr("collhub_coconet.search.hub_algorithms.synthesize", count)
    hub = HubAlgorithms(parse_topology("ring:4"))
    demands = [Demand(Kind.ALL_REDUCE, size, (0, 1, 2, 3)) for size in (2**20, 2**24)]
    first = [hub.find_fastest(demand) for demand in demands]
    assert [hub.find_fastest(demand) for demand in demands] == first
    patterns = [name for name in built if name not in {"tacos", "blink"}]
    assert len(patterns) == len(set(patterns))
    for demand in demands:
        offers = hub.list_offers(demand)
        omitted = {name for name, other in hub.omissions if other == demand}
        assert omitted.isdisjoint(offer.name for offer in offers)
        assert all(hub.omissions[name, demand].reason for name in omitted)
        # Every offer of the registry is compared or omitted.
        offered = {provided.offer for provided in hub.registry.all(Synthesizer)}
        applicable = {
            offer.name
            for offer in offered
            if CollectiveKind.ALL_REDUCE in offer.collectives and not offer.only_by_name
        }
        assert applicable == omitted | {offer.name for offer in offers}


def test_file_of_the_user_is_compared_too(tmp_path: Path) -> None:
    network = parse_topology("ring:4")
    collective = Collective(CollectiveKind.ALL_REDUCE, 4, 4)
    path = tmp_path / "mine.json"
    write(synthesize(collective, network, 2**20, name="ring").algorithm, path)
    hub = HubAlgorithms(network, named=(str(path),))
    assert str(path) in {
        offer.name for offer in hub.list_offers(Demand(Kind.ALL_REDUCE, 2**20, (0, 1, 2, 3)))
    }
    hub.list_offers(Demand(Kind.ALL_GATHER, 2**20, (0, 1, 2, 3)))
    assert hub.omissions[str(path), Demand(Kind.ALL_GATHER, 2**20, (0, 1, 2, 3))].is_proven


def test_work_limit_of_synthesizers_leaves_the_search_incomplete() -> None:
    hub = HubAlgorithms(parse_topology("torus:2x3"), work=1)
    hub.list_offers(Demand(Kind.ALL_GATHER, 6 * 2**20, tuple(range(6))))
    unproven = [omission for omission in hub.omissions.values() if not omission.is_proven]
    assert any("work limit was reached" in omission.reason for omission in unproven)
    line = describe_completeness(Exploration(), unproven)
    assert line.startswith("search is NOT complete: algorithms were not compared: the rest of")


def test_what_cannot_be_simulated_is_timed_by_formula_and_said() -> None:
    binding = Binding(4, {"N": 4096})
    found = searched(momentum(), binding, 10)
    simulation = Simulation(RATES, parse_topology("ring:2"))
    reason = simulate_candidates(found, [binding], simulation, 1)
    assert isinstance(reason, str)
    assert "ring:2 has 2 NPUs for 4 ranks" in reason


def test_only_errors_of_unfit_means_are_results_of_a_simulation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    simulation = Simulation(RATES, parse_topology("ring:4"))
    binding = Binding(4, {"N": 4096})

    def refuse(code: str) -> Callable[..., Any]:
        def makespan(*arguments: object, **options: object) -> None:
            raise InputError(f"refused for {code}", code=code)

        return makespan

    monkeypatch.setattr(simulation_module, "makespan", refuse("not-a-power"))
    assert simulation.timing(momentum(), binding) == "refused for not-a-power"
    monkeypatch.setattr(simulation_module, "makespan", refuse("deadlock"))
    with pytest.raises(InputError, match="refused for deadlock"):
        simulation.timing(momentum(), binding)


@pytest.mark.once
def test_what_a_search_predicts_is_kept_with_its_machine(
    collhub: Callable[..., Any], tmp_path: Path
) -> None:
    path, out = tmp_path / "p.program.json", tmp_path / "out.program.json"
    path.write_text(program_to_json(momentum()))
    network = ("--search", "--topology", "ring:4?bandwidth=50GB/s", "-O", "search.simulate=0")
    told = []
    for jobs in ("1", "2"):
        done = collhub("transform", path, "--size", "N=4096", *network, "--jobs", jobs, "-o", out)
        assert done.code == 0, done.err
        *_, record = json.loads(out.read_text())["transformations"]
        assert record["transformation"] == "search"
        assert record["machine"]["link_bytes_per_s"] == 50e9
        assert record["predicted_ns"] <= record["predicted_before_ns"]
        first, *_ = [line for line in done.err.splitlines() if "winner for" in line]
        assert f"{record['predicted_ns'] / 1000:.4g}" in first
        told.append((done.err.splitlines()[:-1], out.read_bytes()))
        # Other passes go on from it, and keep it.
        assert collhub("transform", out, "--pass", "dead", "-o", tmp_path / jobs).code == 0
    # Processes of the engine find what one finds, byte by byte.
    assert told[0] == told[1]


@pytest.mark.once
def test_script_of_the_winner_makes_it_again(collhub: Callable[..., Any], tmp_path: Path) -> None:
    path, out = tmp_path / "p.program.json", tmp_path / "out.program.json"
    path.write_text(program_to_json(attention()))
    sizes = ("-O", "num_ranks=4", "--size", "B=4,S=64,K=64,H=64")
    network = (
        "--search",
        "--topology",
        "ring:4",
        "-O",
        "search.simulate=1",
        "-o",
        out,
        "--jobs",
        "1",
    )
    report = collhub("transform", path, *sizes, *network, "--json").report()
    lines = [one["change"] for one in report["changes"]]
    assert any(line.startswith("times are simulated") for line in lines)
    script = lines[1].split()
    again = tmp_path / "again.program.json"
    assert collhub("transform", path, *sizes, *script, "-o", again).code == 0
    assert program_from_json(again.read_bytes()) == program_from_json(out.read_bytes())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--search",), "Missing option '--topology'"),
        (("--pass", "search", "--list"), "option topology, the network to search for, is missing"),
    ],
)
def test_search_without_a_network_is_refused(
    collhub: Callable[..., Any], tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    path = tmp_path / "p.program.json"
    path.write_text(program_to_json(attention()))
    run = collhub("transform", path, "--size", "B=4,S=64,K=64,H=64", *arguments)
    assert run.code == 2
    assert message in run.err


@pytest.mark.once
def test_every_npu_of_the_network_has_a_rank(collhub: Callable[..., Any], tmp_path: Path) -> None:
    path, out = tmp_path / "p.program.json", tmp_path / "out.program.json"
    path.write_text(program_to_json(momentum()))
    network = (
        "--search",
        "--topology",
        "ring:6",
        "-O",
        "search.simulate=1",
        "-o",
        out,
        "--jobs",
        "1",
    )
    sizes = ("--size", "N=4608")
    # The reader alone would take 4 ranks.
    report = collhub("transform", path, *sizes, *network, "--json").report()
    *_, ranks, times = [one["change"] for one in report["changes"]]
    assert ranks == "6 ranks per group, one per NPU of ring:6"
    assert times.startswith("times are simulated")
    assert program_from_json(out.read_bytes()) != momentum()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--pass", "dead", "--jobs", "2"), "--jobs and --engine are for --search"),
        (("--search", "--topology", "ring:4", "--engine", "prosesses"), "no engine 'prosesses'"),
        (("--search", "--topology", "ring:4", "-O", "memory=1GiB"), "no option 'memory' here"),
    ],
)
def test_engines_are_for_searches_and_known(
    collhub: Callable[..., Any], tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    path = tmp_path / "p.program.json"
    path.write_text(program_to_json(momentum()))
    run = collhub("transform", path, "--size", "N=64", *words, "-o", tmp_path / "o.program.json")
    assert run.code == 2
    assert message in run.err
    assert len(run.err.splitlines()) == 1


def test_groups_have_as_many_npus_each(collhub: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "p.program.json"
    path.write_text(program_to_json(pipeline_boundary()))
    network = ("--search", "--topology", "ring:5", "--size", "B=4,S=64,H=64")
    run = collhub("transform", path, *network)
    assert run.code == 1
    assert "ring:5 has 5 NPUs for 2 groups of ranks" in run.err


@pytest.mark.once
def test_at_a_limit_the_search_of_programs_is_cut() -> None:
    budget = SearchBudget(1)
    found = explore(attention(), [LARGE], FormulaModel(RATES), 200, budget=budget)
    assert not found.is_complete
    (cut,) = budget.cuts
    assert (cut.name, cut.work) == ("search of programs", len(found.candidates) - 1)
    whole = SearchBudget(timeout_s=1e6)
    again = explore(attention(), [LARGE], FormulaModel(RATES), 200, budget=whole)
    assert (len(again.candidates), whole.cuts) == (
        len(searched(attention(), LARGE).candidates),
        [],
    )


@pytest.mark.once
def test_at_a_limit_simulated_programs_are_compared() -> None:
    explored = searched(attention(), Binding(4, {"B": 8, "S": 16, "K": 16, "H": 16}))
    binding = Binding(4, {"B": 8, "S": 16, "K": 16, "H": 16})
    budget = SearchBudget(1)
    simulation = Simulation(RATES, parse_topology("ring:4"))
    judged = simulate_candidates(explored, [binding], simulation, 2, budget=budget)
    assert isinstance(judged, Exploration)
    assert len(judged.candidates) == 1
    assert budget.cuts[0].name == "simulation of programs"
