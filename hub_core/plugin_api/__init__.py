"""The border: what plugins offer, what they are asked for, and what they return."""

from __future__ import annotations

from hub_core.plugin_api.algorithm_pass import AlgorithmPass, PassReport
from hub_core.plugin_api.artifacts import Artifact, WriteResult
from hub_core.plugin_api.check import (
    Check,
    CheckLine,
    CheckReport,
    CheckRequest,
    LoadableCall,
    Subject,
    WarmOptions,
)
from hub_core.plugin_api.command import (
    Command,
    CommandContext,
    OpenedInput,
    OutputTarget,
    WrittenFiles,
)
from hub_core.plugin_api.command_group import CommandGroup
from hub_core.plugin_api.command_line import (
    COLLECTIVE,
    FILE,
    Assignments,
    OutputRequest,
    assign,
    check_stdout,
    complete_offers,
    force_flag,
    format_option,
    from_option,
    input_options,
    json_flag,
    number_option,
    offer_option,
    option_pairs,
    output_option,
    output_options,
    source_argument,
    strict_flag,
    verify_option,
)
from hub_core.plugin_api.engine import Engine, EngineRequest
from hub_core.plugin_api.executor import ExecutionRequest, ExecutionResult, Executor
from hub_core.plugin_api.formats import Format, Layout
from hub_core.plugin_api.hooks import API_VERSION, hookimpl
from hub_core.plugin_api.offers import OFFER_KINDS, Offer, OfferKind
from hub_core.plugin_api.options import (
    NoOptions,
    Option,
    OptionType,
    OptionValue,
    choice,
    declared_options,
    option,
    optional,
)
from hub_core.plugin_api.reader import FormatReader
from hub_core.plugin_api.references import Reference, resolve
from hub_core.plugin_api.report_writer import BandwidthSeries, ReportRequest, ReportWriter, Shown
from hub_core.plugin_api.selection_writer import (
    SelectedCollective,
    SelectedWindow,
    Selection,
    SelectionWriter,
    ServedCalls,
)
from hub_core.plugin_api.simulator import (
    LinkLoad,
    LocalWorkOptions,
    SimulationRequest,
    SimulationResult,
    Simulator,
)
from hub_core.plugin_api.sources import Source, SourcePart, log_diagnostic
from hub_core.plugin_api.synthesizer import SynthesisRequest, SynthesisResult, Synthesizer
from hub_core.plugin_api.topology_builder import TopologyBuilder
from hub_core.plugin_api.topology_reader import TopologyReader
from hub_core.plugin_api.topology_writer import TopologyWriter
from hub_core.plugin_api.writer import FormatWriter

__all__ = [
    "API_VERSION", "COLLECTIVE", "FILE", "OFFER_KINDS", "AlgorithmPass", "Artifact",
    "Assignments", "BandwidthSeries", "Check", "CheckLine", "CheckReport", "CheckRequest",
    "Command", "CommandContext", "CommandGroup", "Engine", "EngineRequest", "ExecutionRequest",
    "ExecutionResult", "Executor", "Format", "FormatReader", "FormatWriter", "Layout",
    "LinkLoad", "LoadableCall", "LocalWorkOptions", "NoOptions", "Offer", "OfferKind",
    "OpenedInput", "Option", "OptionType", "OptionValue", "OutputRequest", "OutputTarget",
    "PassReport", "Reference", "ReportRequest", "ReportWriter", "SelectedCollective",
    "SelectedWindow", "Selection", "SelectionWriter", "ServedCalls", "Shown",
    "SimulationRequest", "SimulationResult", "Simulator", "Source", "SourcePart", "Subject",
    "SynthesisRequest", "SynthesisResult", "Synthesizer", "TopologyBuilder", "TopologyReader",
    "TopologyWriter", "WarmOptions", "WriteResult", "WrittenFiles", "assign", "check_stdout",
    "choice", "complete_offers", "declared_options", "force_flag", "format_option",
    "from_option", "hookimpl", "input_options", "json_flag", "log_diagnostic", "number_option",
    "offer_option", "option", "option_pairs", "optional", "output_option",
    "output_options", "resolve", "source_argument", "strict_flag", "verify_option",
]  # fmt: skip
