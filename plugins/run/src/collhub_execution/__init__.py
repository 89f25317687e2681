"""Levelled programs and their execution on real data, shared by executors and emitters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hub_core import names_from

if TYPE_CHECKING:
    from collhub_execution.data.element_types import (
        DTYPE_NAMES,
        REDUCTIONS,
        Array,
        Reduction,
        element_type,
    )
    from collhub_execution.data.inputs import block_elements, exact_inputs, random_inputs
    from collhub_execution.data.memory import (
        RecordMoves,
        all_outputs,
        fill_rank,
        find_moves,
        fused_moves,
        fused_reductions,
        step_times,
        used_elements,
    )
    from collhub_execution.job_folder import FAILED, JobFolder, RankPart, serve_rank
    from collhub_execution.levelling.levelled_program import levelled_program
    from collhub_execution.levelling.program import (
        BlockCounts,
        LevelledProgram,
        RecordKind,
        block_counts,
    )
    from collhub_execution.output_judgement import Comparison, OutputJudgement, judge, same_bits
    from collhub_execution.rank_engine import (
        DONE,
        NOT_STARTED,
        EngineMemory,
        NativeCollective,
        NumpyMemory,
        Post,
        PostLevel,
        RankEngine,
        RankLog,
        Transport,
        Waiting,
        run_task,
    )
    from collhub_execution.rank_launcher import launch
    from collhub_execution.rank_plans import RankPlans, RankTask, rank_task, rank_tasks
    from collhub_execution.rendezvous import (
        RunOrder,
        is_well_levelled,
        positions,
        run_order,
        simulate_rendezvous,
    )
    from collhub_execution.request_levelling import (
        LevelledRequest,
        execute_levelled,
        levelled_request,
    )
    from collhub_execution.running.options import RunOptions, run_options, run_options_of
    from collhub_execution.running.outcome import RunOutcome, algorithm_bandwidth, bus_bandwidth
    from collhub_execution.running.setup import RunSetup
    from collhub_execution.running.started_ranks import (
        ByteChannel,
        StartedRun,
        StartedRunReport,
        print_findings,
        run_rank,
        run_script,
        script_command,
        script_rank,
    )

__all__ = [
    "DONE",
    "DTYPE_NAMES",
    "FAILED",
    "NOT_STARTED",
    "REDUCTIONS",
    "Array",
    "BlockCounts",
    "ByteChannel",
    "Comparison",
    "EngineMemory",
    "JobFolder",
    "LevelledProgram",
    "LevelledRequest",
    "NativeCollective",
    "NumpyMemory",
    "OutputJudgement",
    "Post",
    "PostLevel",
    "RankEngine",
    "RankLog",
    "RankPart",
    "RankPlans",
    "RankTask",
    "RecordKind",
    "RecordMoves",
    "Reduction",
    "RunOptions",
    "RunOrder",
    "RunOutcome",
    "RunSetup",
    "StartedRun",
    "StartedRunReport",
    "Transport",
    "Waiting",
    "algorithm_bandwidth",
    "all_outputs",
    "block_counts",
    "block_elements",
    "bus_bandwidth",
    "element_type",
    "exact_inputs",
    "execute_levelled",
    "fill_rank",
    "find_moves",
    "fused_moves",
    "fused_reductions",
    "is_well_levelled",
    "judge",
    "launch",
    "levelled_program",
    "levelled_request",
    "positions",
    "print_findings",
    "random_inputs",
    "rank_task",
    "rank_tasks",
    "run_options",
    "run_options_of",
    "run_order",
    "run_rank",
    "run_script",
    "run_task",
    "same_bits",
    "script_command",
    "script_rank",
    "serve_rank",
    "simulate_rendezvous",
    "step_times",
    "used_elements",
]

_HOMES = {
    "collhub_execution.data.element_types": ("Array DTYPE_NAMES REDUCTIONS Reduction element_type"),
    "collhub_execution.data.inputs": "block_elements exact_inputs random_inputs",
    "collhub_execution.data.memory": (
        "RecordMoves all_outputs fill_rank find_moves fused_moves fused_reductions step_times "
        "used_elements"
    ),
    "collhub_execution.job_folder": "FAILED JobFolder RankPart serve_rank",
    "collhub_execution.output_judgement": "Comparison OutputJudgement judge same_bits",
    "collhub_execution.rank_launcher": "launch",
    "collhub_execution.levelling.levelled_program": "levelled_program",
    "collhub_execution.levelling.program": ("BlockCounts LevelledProgram RecordKind block_counts"),
    "collhub_execution.rank_engine": (
        "DONE EngineMemory NOT_STARTED NativeCollective NumpyMemory Post PostLevel RankEngine "
        "RankLog Transport Waiting run_task"
    ),
    "collhub_execution.rank_plans": "RankPlans RankTask rank_task rank_tasks",
    "collhub_execution.rendezvous": (
        "RunOrder is_well_levelled positions run_order simulate_rendezvous"
    ),
    "collhub_execution.request_levelling": "LevelledRequest execute_levelled levelled_request",
    "collhub_execution.running.outcome": "RunOutcome algorithm_bandwidth bus_bandwidth",
    "collhub_execution.running.options": "RunOptions run_options run_options_of",
    "collhub_execution.running.setup": "RunSetup",
    "collhub_execution.running.started_ranks": (
        "ByteChannel StartedRun StartedRunReport print_findings run_rank run_script "
        "script_command script_rank"
    ),
}

__getattr__ = names_from(__name__, _HOMES)
