"""Call the code behind an offer: options checked, failures blamed on the plugin, results typed."""

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


def bound_options(provided: Provided[Offer], given: OptionText | None) -> object:
    """The record of options of an offer; the only place where the environment gives values."""
    owner = f"{kind_of(provided.offer).noun} {provided.name}"
    record: type = getattr(provided.offer, "options", NoOptions)
    return bind_options(record, given or {}, os.environ, owner)


def call(provided: Provided[Offer], returns: type[T], *arguments: object) -> T:
    """Call the function behind an offer, in the run of its registry (`run_registry`).

    What it raises, apart from `HubError`, and a result of another type are its plugin's fault.
    """
    with running_with(provided.registry), blame(provided):
        result = resolve(reference_of(provided.offer))(*arguments)
    if not isinstance(result, returns):
        raise misfit(provided, f"returned {type(result).__name__}, expected {returns.__name__}")
    return result


def blame(provided: Provided[Offer]) -> AbstractContextManager[None]:
    """The context in which code of the offer's plugin runs."""
    # A failure of the core itself is no plugin's: it stays what it is, a bug.
    if provided.plugin.is_core:
        return nullcontext()
    return blamed_on(str(provided.plugin), reference_of(provided.offer))


def misfit(provided: Provided[Offer], what: str) -> PluginError:
    """The error for a result that breaks the contract."""
    message = f"{provided.plugin}: {reference_of(provided.offer)} {what}"
    return PluginError(message, cure="report it to the plugin's authors")


def start_engine(
    name: str, request: EngineRequest, *, options: OptionText | None = None, registry: Registry
) -> Executor:
    """The engine of a name, a context manager that ends its workers. Raises `HubError`."""
    engine = registry.find(Engine, name)
    from concurrent.futures import Executor

    return call(engine, Executor, request, bound_options(engine, options))
