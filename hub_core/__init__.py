"""Collective Hub: read, verify, simulate and write collective-communication algorithms."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hub_core.columns import names_from

if TYPE_CHECKING:
    from hub_core.chakra import NodeTable, NodeType
    from hub_core.cli.arguments import (
        OutputRequest,
        are_ranks_of_one,
        backend_option,
        check_stdout,
        collective_option,
        collective_rules_option,
        force_flag,
        format_option,
        from_option,
        input_options,
        json_flag,
        machine_option,
        number_option,
        occupancy_option,
        offer_option,
        option_pairs,
        output_option,
        output_options,
        reduce_op_option,
        root_option,
        size_option,
        source_argument,
        strict_flag,
        timeout_option,
        verify_option,
    )
    from hub_core.cli.assignments import Assignments, assign, parse_sizes, topology_option
    from hub_core.cli.command_context import CommandContext, OpenedInput, OutputTarget, WrittenFiles
    from hub_core.cli.completion import CommandGroup
    from hub_core.cli.jobs.job_path import job_partners, trace_critical_path
    from hub_core.cli.jobs.workloads import apply_rules
    from hub_core.cli.output import folded_ranks
    from hub_core.cli.page_options import (
        draw_algorithm_page,
        draw_job_page,
        excerpt_options,
        view_option,
    )
    from hub_core.cli.parameter_types import (
        COLLECTIVE,
        FILE,
        TOPOLOGY,
        OfferName,
        complete_offers,
    )
    from hub_core.cli.reports.report_objects import change_lines, cut_fields
    from hub_core.columns import names_from
    from hub_core.documents.strict_json import (
        SchemaViolation,
        is_finite_number,
        json_document,
        parse_json_object,
        schema_violations,
    )
    from hub_core.documents.topologies import topology_to_json
    from hub_core.installed import installed_distributions, installed_version
    from hub_core.model.algorithm import Algorithm, Provenance
    from hub_core.model.collectives import Collective, Contributions, CustomContract
    from hub_core.model.diagnostics import (
        Diagnostic,
        HubError,
        InputError,
        Location,
        Loss,
        LossPolicy,
        LossyError,
        PluginError,
        Severity,
        UsageError,
    )
    from hub_core.model.kinds import Buffer, CollectiveKind, ReduceOp, StepKind
    from hub_core.model.steps import StepTable, StepTableBuilder
    from hub_core.model.workload import Workload
    from hub_core.network.topology import Topology
    from hub_core.pipeline.bounds import ProvenBound, beaten_bound, best_bounds
    from hub_core.pipeline.calls import execute, run_executor, start_engine, transform
    from hub_core.pipeline.inputs import parse_topology, read, read_topology, read_workload
    from hub_core.pipeline.job_algorithms import (
        DEFAULT_RULE,
        DEFAULT_UNEVEN,
        NATIVE,
        CollectiveRule,
        choose_rule,
        parse_rule,
        with_algorithms,
    )
    from hub_core.pipeline.measurements import read_measurements
    from hub_core.pipeline.outputs import Written, render_report, write
    from hub_core.pipeline.runtimes import (
        choose_runtimes,
        describe_unserved,
        find_runtimes,
        list_runtimes,
        time_on_runtime,
    )
    from hub_core.pipeline.simulation import (
        ExactTime,
        TimingSource,
        choose_timing,
        exact_time,
        predict_library_times,
        run_simulator,
        simulate,
    )
    from hub_core.pipeline.synthesis import (
        add_sufficient_limits,
        create_synthesis_request,
        estimate_synthesis,
        fit_to_runtime,
        resolve_counts,
        run_synthesizer,
        synthesize,
    )
    from hub_core.plugin_api.runs import SimulationResult
    from hub_core.registry.discovery import discover, run_registry
    from hub_core.registry.plugins import Registry
    from hub_core.trace_profile.formats import ChakraReadOptions, TraceOptions
    from hub_core.trace_profile.lowering import chakra_nodes
    from hub_core.trace_profile.metadata import chakra_bytes
    from hub_core.trace_profile.read import chakra_algorithm
    from hub_core.trace_profile.write import chakra_traces
    from hub_core.verification import VerifyReport, verify
    from hub_core.version import __version__

__all__ = [
    "COLLECTIVE",
    "DEFAULT_RULE",
    "DEFAULT_UNEVEN",
    "FILE",
    "NATIVE",
    "TOPOLOGY",
    "Algorithm",
    "Assignments",
    "Buffer",
    "ChakraReadOptions",
    "Collective",
    "CollectiveKind",
    "CollectiveRule",
    "CommandContext",
    "CommandGroup",
    "Contributions",
    "CustomContract",
    "Diagnostic",
    "ExactTime",
    "HubError",
    "InputError",
    "Location",
    "Loss",
    "LossPolicy",
    "LossyError",
    "NodeTable",
    "NodeType",
    "OfferName",
    "OpenedInput",
    "OutputRequest",
    "OutputTarget",
    "PluginError",
    "ProvenBound",
    "Provenance",
    "ReduceOp",
    "Registry",
    "SchemaViolation",
    "Severity",
    "SimulationResult",
    "StepKind",
    "StepTable",
    "StepTableBuilder",
    "TimingSource",
    "Topology",
    "TraceOptions",
    "UsageError",
    "VerifyReport",
    "Workload",
    "Written",
    "WrittenFiles",
    "__version__",
    "add_sufficient_limits",
    "apply_rules",
    "are_ranks_of_one",
    "assign",
    "backend_option",
    "beaten_bound",
    "best_bounds",
    "chakra_algorithm",
    "chakra_bytes",
    "chakra_nodes",
    "chakra_traces",
    "change_lines",
    "check_stdout",
    "choose_rule",
    "choose_runtimes",
    "choose_timing",
    "collective_option",
    "collective_rules_option",
    "complete_offers",
    "create_synthesis_request",
    "cut_fields",
    "describe_unserved",
    "discover",
    "draw_algorithm_page",
    "draw_job_page",
    "estimate_synthesis",
    "exact_time",
    "excerpt_options",
    "execute",
    "find_runtimes",
    "fit_to_runtime",
    "folded_ranks",
    "force_flag",
    "format_option",
    "from_option",
    "input_options",
    "installed_distributions",
    "installed_version",
    "is_finite_number",
    "job_partners",
    "json_document",
    "json_flag",
    "list_runtimes",
    "machine_option",
    "names_from",
    "number_option",
    "occupancy_option",
    "offer_option",
    "option_pairs",
    "output_option",
    "output_options",
    "parse_json_object",
    "parse_rule",
    "parse_sizes",
    "parse_topology",
    "predict_library_times",
    "read",
    "read_measurements",
    "read_topology",
    "read_workload",
    "reduce_op_option",
    "render_report",
    "resolve_counts",
    "root_option",
    "run_executor",
    "run_registry",
    "run_simulator",
    "run_synthesizer",
    "schema_violations",
    "simulate",
    "size_option",
    "source_argument",
    "start_engine",
    "strict_flag",
    "synthesize",
    "time_on_runtime",
    "timeout_option",
    "topology_option",
    "topology_to_json",
    "trace_critical_path",
    "transform",
    "verify",
    "verify_option",
    "view_option",
    "with_algorithms",
    "write",
]

_HOMES = {
    "hub_core.chakra": "NodeTable NodeType",
    "hub_core.cli.arguments": (
        "OutputRequest are_ranks_of_one backend_option check_stdout collective_option "
        "collective_rules_option force_flag format_option from_option input_options json_flag "
        "machine_option number_option occupancy_option offer_option option_pairs output_option "
        "output_options reduce_op_option root_option size_option source_argument strict_flag "
        "timeout_option verify_option"
    ),
    "hub_core.cli.assignments": "Assignments assign parse_sizes topology_option",
    "hub_core.cli.command_context": "CommandContext OpenedInput OutputTarget WrittenFiles",
    "hub_core.cli.completion": "CommandGroup",
    "hub_core.cli.jobs.job_path": "job_partners trace_critical_path",
    "hub_core.cli.jobs.workloads": "apply_rules",
    "hub_core.cli.output": "folded_ranks",
    "hub_core.cli.page_options": "draw_algorithm_page draw_job_page excerpt_options view_option",
    "hub_core.cli.parameter_types": "COLLECTIVE FILE OfferName TOPOLOGY complete_offers",
    "hub_core.cli.reports.report_objects": "change_lines cut_fields",
    "hub_core.columns": "names_from",
    "hub_core.documents.strict_json": (
        "SchemaViolation is_finite_number json_document parse_json_object schema_violations"
    ),
    "hub_core.documents.topologies": "topology_to_json",
    "hub_core.installed": "installed_distributions installed_version",
    "hub_core.model.algorithm": "Algorithm Provenance",
    "hub_core.model.collectives": "Collective Contributions CustomContract",
    "hub_core.model.diagnostics": (
        "Diagnostic HubError InputError Location Loss LossPolicy LossyError PluginError "
        "Severity UsageError"
    ),
    "hub_core.model.kinds": "Buffer CollectiveKind ReduceOp StepKind",
    "hub_core.model.steps": "StepTable StepTableBuilder",
    "hub_core.model.workload": "Workload",
    "hub_core.network.topology": "Topology",
    "hub_core.pipeline.bounds": "ProvenBound beaten_bound best_bounds",
    "hub_core.pipeline.calls": "execute run_executor start_engine transform",
    "hub_core.pipeline.inputs": "parse_topology read read_topology read_workload",
    "hub_core.pipeline.job_algorithms": (
        "CollectiveRule DEFAULT_RULE DEFAULT_UNEVEN NATIVE choose_rule parse_rule with_algorithms"
    ),
    "hub_core.pipeline.measurements": "read_measurements",
    "hub_core.pipeline.outputs": "Written render_report write",
    "hub_core.pipeline.runtimes": (
        "choose_runtimes describe_unserved find_runtimes list_runtimes time_on_runtime"
    ),
    "hub_core.pipeline.simulation": (
        "ExactTime TimingSource choose_timing exact_time predict_library_times run_simulator "
        "simulate"
    ),
    "hub_core.pipeline.synthesis": (
        "add_sufficient_limits create_synthesis_request estimate_synthesis fit_to_runtime "
        "resolve_counts run_synthesizer synthesize"
    ),
    "hub_core.plugin_api.runs": "SimulationResult",
    "hub_core.registry.discovery": "discover run_registry",
    "hub_core.registry.plugins": "Registry",
    "hub_core.trace_profile.formats": "ChakraReadOptions TraceOptions",
    "hub_core.trace_profile.lowering": "chakra_nodes",
    "hub_core.trace_profile.metadata": "chakra_bytes",
    "hub_core.trace_profile.read": "chakra_algorithm",
    "hub_core.trace_profile.write": "chakra_traces",
    "hub_core.verification": "VerifyReport verify",
    "hub_core.version": "__version__",
}

__getattr__ = names_from(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
