"""Levelled programs and their execution on real data, shared by executors and emitters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hub_core import names_from

if TYPE_CHECKING:
    from collhub_execution.command_options import RunOptions, run_options, run_options_of
    from collhub_execution.input_data import (
        DTYPE_NAMES,
        REDUCTIONS,
        Array,
        Reduction,
        block_elements,
        element_type,
        exact_inputs,
        random_inputs,
    )
    from collhub_execution.job_folder import FAILED, JobFolder, RankPart, serve_rank
    from collhub_execution.levelling import (
        LevelledRequest,
        execute_levelled,
        levelled_program,
        levelled_request,
    )
    from collhub_execution.memory import (
        RecordMoves,
        all_outputs,
        fill_rank,
        find_moves,
        fused_moves,
        fused_reductions,
        step_times,
        used_elements,
    )
    from collhub_execution.output_judgement import (
        ComparisonMethod,
        OutputJudgement,
        judge,
        same_bits,
    )
    from collhub_execution.program_levels import (
        BlockCounts,
        LevelledProgram,
        RecordKind,
        block_counts,
    )
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
    from collhub_execution.run_setup import RunOutcome, RunSetup, algorithm_bandwidth, bus_bandwidth
    from collhub_execution.started_ranks import (
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
    "ComparisonMethod",
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
    "collhub_execution.command_options": "RunOptions run_options run_options_of",
    "collhub_execution.input_data": (
        "Array DTYPE_NAMES REDUCTIONS Reduction block_elements element_type "
        "exact_inputs random_inputs"
    ),
    "collhub_execution.job_folder": "FAILED JobFolder RankPart serve_rank",
    "collhub_execution.levelling": (
        "LevelledRequest execute_levelled levelled_program levelled_request"
    ),
    "collhub_execution.program_levels": "BlockCounts LevelledProgram RecordKind block_counts",
    "collhub_execution.memory": (
        "RecordMoves all_outputs fill_rank find_moves fused_moves fused_reductions "
        "step_times used_elements"
    ),
    "collhub_execution.output_judgement": "ComparisonMethod OutputJudgement judge same_bits",
    "collhub_execution.rank_engine": (
        "DONE EngineMemory NOT_STARTED NativeCollective NumpyMemory Post PostLevel "
        "RankEngine RankLog Transport Waiting run_task"
    ),
    "collhub_execution.rank_launcher": "launch",
    "collhub_execution.rank_plans": "RankPlans RankTask rank_task rank_tasks",
    "collhub_execution.rendezvous": (
        "RunOrder is_well_levelled positions run_order simulate_rendezvous"
    ),
    "collhub_execution.run_setup": "RunOutcome RunSetup algorithm_bandwidth bus_bandwidth",
    "collhub_execution.started_ranks": (
        "ByteChannel StartedRun StartedRunReport print_findings run_rank run_script "
        "script_command script_rank"
    ),
}

__getattr__ = names_from(__name__, _HOMES)
