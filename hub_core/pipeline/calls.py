"""Call the functions of offers: bind options, attribute failures to plugins, check result types."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, TypeVar

from hub_core.model.diagnostics import PluginError
from hub_core.plugin_api import NoOptions, resolve
from hub_core.plugin_api.offers import Offer, kind_of
from hub_core.plugin_api.synthesis import Engine, EngineRequest
from hub_core.registry.bind_options import OptionText, bind_options
from hub_core.registry.border import blamed_on
from hub_core.registry.descriptions import reference_of
from hub_core.registry.discovery import running_with
from hub_core.registry.plugins import Provided, Registry

if TYPE_CHECKING:
    from concurrent.futures import Executor

T = TypeVar("T")


def bound_options(provided: Provided[Offer], texts: OptionText | None) -> object:
    """Bind texts to the options of an offer; only here the environment provides values.

    Raises `UsageError` for unknown names and for values that do not fit.
    """
    owner = f"{kind_of(provided.offer).noun} {provided.name}"
    record: type = getattr(provided.offer, "options", NoOptions)
    return bind_options(record, texts or {}, os.environ, owner)


def call(provided: Provided[Offer], returns: type[T], *arguments: object) -> T:
    """Call the function of an offer, and check the type of its result.

    During the call, `run_registry` returns the registry of the offer. Exceptions other than
    `HubError`, and a result of another type, raise `PluginError` that names the plugin.
    """
    with running_with(provided.registry), blame(provided):
        result = resolve(reference_of(provided.offer))(*arguments)
    if not isinstance(result, returns):
        raise misfit(provided, f"returned {type(result).__name__}, expected {returns.__name__}")
    return result


def blame(provided: Provided[Offer]) -> AbstractContextManager[None]:
    """Return a context that attributes exceptions of the body to the plugin of the offer."""
    # An exception of the core is not attributed to a plugin: it is a bug.
    if provided.plugin.is_core:
        return nullcontext()
    return blamed_on(str(provided.plugin), reference_of(provided.offer))


def misfit(provided: Provided[Offer], defect: str) -> PluginError:
    """Create the error for a result that breaks the contract of the plugin API."""
    message = f"{provided.plugin}: {reference_of(provided.offer)} {defect}"
    return PluginError(message, cure="report it to the plugin's authors")


def start_engine(
    name: str, request: EngineRequest, *, options: OptionText | None = None, registry: Registry
) -> Executor:
    """Start an engine; the executor is a context manager that stops the workers.

    Raises `HubError`.
    """
    engine = registry.find(Engine, name)
    from concurrent.futures import Executor

    return call(engine, Executor, request, bound_options(engine, options))
