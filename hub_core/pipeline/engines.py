"""Start the engine that runs many tasks at once."""

from __future__ import annotations

from concurrent.futures import Executor

from hub_core.pipeline.calls import bound_options, call
from hub_core.plugin_api.engine import Engine, EngineRequest
from hub_core.registry.bind_options import OptionText
from hub_core.registry.plugins import Registry


def start_engine(
    name: str, request: EngineRequest, *, options: OptionText | None = None, registry: Registry
) -> Executor:
    """The engine of a name, a context manager that ends its workers. Raises `HubError`."""
    engine = registry.find(Engine, name)
    return call(engine, Executor, request, bound_options(engine, options))
