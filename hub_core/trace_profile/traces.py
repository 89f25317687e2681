"""Execution traces for plugins:

read algorithms from traces, and convert algorithms to nodes or files.
"""

from __future__ import annotations

from hub_core.model import Algorithm
from hub_core.plugin_api import WriteResult
from hub_core.trace_profile.algorithms.lowering import lower as chakra_nodes
from hub_core.trace_profile.algorithms.profile import default_bytes as chakra_bytes
from hub_core.trace_profile.algorithms.write import write
from hub_core.trace_profile.formats import ChakraWriteOptions, TraceOptions
from hub_core.trace_profile.read import read as chakra_algorithm

__all__ = ["chakra_algorithm", "chakra_bytes", "chakra_nodes", "chakra_traces"]


def chakra_traces(algorithm: Algorithm, options: TraceOptions) -> WriteResult:
    """Return one trace per rank, named `.<rank>.et`, encoded when its content is read.

    Raises `UsageError` for options that do not fit the algorithm.
    """
    return write(algorithm, ChakraWriteOptions(options.size, options.dialect, options.flatten))
