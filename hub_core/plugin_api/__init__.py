"""The border: what plugins offer, what they are asked for, and what they return."""

from __future__ import annotations

from hub_core.plugin_api.algorithm_pass import AlgorithmPass, PassMove, PassReport
from hub_core.plugin_api.artifacts import Artifact, WriteResult
from hub_core.plugin_api.check import (
    Check,
    CheckLine,
    CheckReport,
    CheckRequest,
    LoadableCall,
    RuntimeVersions,
    Subject,
    WarmOptions,
)
from hub_core.plugin_api.command import Command
from hub_core.plugin_api.engine import Engine, EngineRequest
from hub_core.plugin_api.executor import ExecutionRequest, ExecutionResult, Executor
from hub_core.plugin_api.formats import Format, Layout
from hub_core.plugin_api.gzip_streams import decompressed
from hub_core.plugin_api.hooks import API_VERSION, hookimpl
from hub_core.plugin_api.lower_bound import BoundRequest, BoundResult, LowerBound
from hub_core.plugin_api.offers import OFFER_KINDS, Offer, OfferKind
from hub_core.plugin_api.options import (
    BOOL_WORDS,
    MAX_INTEGER,
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
from hub_core.plugin_api.search_budget import BudgetReached, SearchBudget, SearchCut
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
from hub_core.plugin_api.synthesizer import (
    ONE_SIZE,
    SynthesisRequest,
    SynthesisResult,
    Synthesizer,
)
from hub_core.plugin_api.topology_builder import TopologyBuilder
from hub_core.plugin_api.topology_reader import TopologyReader
from hub_core.plugin_api.topology_writer import TopologyWriter
from hub_core.plugin_api.workload_generator import WorkloadGenerator
from hub_core.plugin_api.workload_reader import WorkloadReader
from hub_core.plugin_api.workload_simulator import WorkloadRequest, WorkloadSimulator, WorkloadTimes
from hub_core.plugin_api.workload_writer import WorkloadWriter
from hub_core.plugin_api.writer import FormatWriter

__all__ = [
    "API_VERSION",
    "BOOL_WORDS",
    "MAX_INTEGER",
    "OFFER_KINDS",
    "ONE_SIZE",
    "AlgorithmPass",
    "Artifact",
    "BandwidthSeries",
    "BoundRequest",
    "BoundResult",
    "BudgetReached",
    "Check",
    "CheckLine",
    "CheckReport",
    "CheckRequest",
    "Command",
    "Engine",
    "EngineRequest",
    "ExecutionRequest",
    "ExecutionResult",
    "Executor",
    "Format",
    "FormatReader",
    "FormatWriter",
    "Layout",
    "LinkLoad",
    "LoadableCall",
    "LocalWorkOptions",
    "LowerBound",
    "NoOptions",
    "Offer",
    "OfferKind",
    "Option",
    "OptionType",
    "OptionValue",
    "PassMove",
    "PassReport",
    "Reference",
    "ReportRequest",
    "ReportWriter",
    "RuntimeVersions",
    "SearchBudget",
    "SearchCut",
    "SelectedCollective",
    "SelectedWindow",
    "Selection",
    "SelectionWriter",
    "ServedCalls",
    "Shown",
    "SimulationRequest",
    "SimulationResult",
    "Simulator",
    "Source",
    "SourcePart",
    "Subject",
    "SynthesisRequest",
    "SynthesisResult",
    "Synthesizer",
    "TopologyBuilder",
    "TopologyReader",
    "TopologyWriter",
    "WarmOptions",
    "WorkloadGenerator",
    "WorkloadReader",
    "WorkloadRequest",
    "WorkloadSimulator",
    "WorkloadTimes",
    "WorkloadWriter",
    "WriteResult",
    "choice",
    "declared_options",
    "decompressed",
    "hookimpl",
    "log_diagnostic",
    "option",
    "optional",
    "resolve",
]
