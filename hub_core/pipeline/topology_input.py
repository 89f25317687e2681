"""Build topologies from texts such as `torus:4x4`, and read them from files."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from functools import partial

from hub_core.model import UsageError, parse_ranks
from hub_core.network import Topology, TopologyFunction, build_topology
from hub_core.pipeline.calls import bound_options, call
from hub_core.pipeline.detection import may_be_topology_file
from hub_core.pipeline.inputs import OpenedAlgorithm, PathText, Report, open_source
from hub_core.pipeline.sources import STANDARD_STREAM
from hub_core.plugin_api import (
    NoOptions,
    TopologyBuilder,
    TopologyReader,
    WorkloadReader,
    log_diagnostic,
)
from hub_core.registry.bind_options import OptionText
from hub_core.registry.discovery import load_core_only, run_registry
from hub_core.registry.plugins import Provided, Registry


def parse_topology(text: str, registry: Registry | None = None) -> Topology:
    """Build the topology of a text such as `torus:4x4`, with a builder of the core or a plugin.

    Without a registry, the core's builders are tried first; the installed plugins are discovered
    only if the text names another builder. Raises `HubError`.
    """
    return build_topology(text, _Builders(registry))


def read_topology(
    text_or_path: PathText,
    *,
    format: str | None = None,
    options: OptionText | None = None,
    registry: Registry | None = None,
    report: Report = log_diagnostic,
) -> Topology:
    """Build the topology that a text such as `torus:4x4` or a file describes.

    The name of a builder takes precedence over a file. Options of the reader may follow the name of
    a file, as in `machine.xml?profile=h100&nodes=2`; `npus=0-3` selects NPUs. Raises `HubError`.
    """
    text = os.fspath(text_or_path)
    registry = registry or run_registry()
    path, query = _split_query(text)
    if format is None and text != STANDARD_STREAM:
        is_builder = re.split(r"[:?*]", text)[0] in _list_builders(registry)
        if is_builder or not (os.path.lexists(path) or may_be_topology_file(path, registry)):
            return parse_topology(text, registry)
    npus = query.pop("npus", None)
    source, reader = open_source(path, TopologyReader, format, registry, report)
    merged = {**query, **(options or {})}
    topology = call(reader, Topology, source, bound_options(reader, merged))
    if npus is not None:
        topology = topology.subset(parse_ranks(npus))
    return topology if path == text else replace(topology, name=text)


def own_topology(opened: OpenedAlgorithm, registry: Registry) -> Topology | None:
    """Read the network that an input contains in addition to its model.

    It is read from the same source by the reader of the job, or by a topology reader of the same
    format; None if there is none.
    """
    offer = opened.reader.offer
    if isinstance(offer, WorkloadReader) and offer.network:
        network = TopologyReader(offer.format, offer.network)
        provided = Provided(opened.reader.plugin, network)
        return call(provided, Topology, opened.source, NoOptions())
    name = opened.format_name
    if name not in {provided.name for provided in registry.all(TopologyReader)}:
        return None
    reader = registry.find(TopologyReader, name)
    return call(reader, Topology, opened.source, bound_options(reader, None))


def as_topology(topology: Topology | str, registry: Registry) -> Topology:
    """Return a topology unchanged; read a text or a file as `read_topology` does."""
    return read_topology(topology, registry=registry) if isinstance(topology, str) else topology


@dataclass(slots=True)
class _Builders:
    """Builders by name.

    Plugins are discovered once, for the first name that the core does not have.

    Discovery reads the installed distributions, which takes longer than building most networks.
    """

    registry: Registry | None

    def __call__(self, name: str) -> TopologyFunction:
        """Return the builder. Raises `HubError` if no plugin, or more than one, offers the name."""
        if self.registry is None:
            core = load_core_only()
            if name in _list_builders(core):
                return _find_builder(name, core)
            self.registry = run_registry()
        return _find_builder(name, self.registry)


def _find_builder(name: str, registry: Registry) -> TopologyFunction:
    """Return the builder that exactly one plugin offers. Raises `HubError`."""
    known = _list_builders(registry)
    if name not in known:
        everything = f"use one of {', '.join(known)}, or a file"
        message = f"unknown topology {name!r}"
        raise registry.unknown_name(message, name, known, everything, "unknown-topology")
    return partial(call, registry.find(TopologyBuilder, name), Topology)


def _list_builders(registry: Registry) -> list[str]:
    """List the names of all builders, sorted."""
    return sorted({provided.name for provided in registry.all(TopologyBuilder)})


def _split_query(text: str) -> tuple[str, dict[str, str]]:
    """Split a text into the path of a file and the `key=value` pairs after `?`.

    The text itself may be the path of an existing file. Raises `UsageError` for invalid pairs.
    """
    path, mark, query = text.partition("?")
    if not mark or os.path.lexists(text) or not os.path.lexists(path):
        return text, {}
    pairs = [item.partition("=") for item in filter(None, query.split("&"))]
    wrong = [key for key, equals, _ in pairs if not (key and equals)]
    if wrong:
        message = f"topology {text!r}: {wrong[0]!r} is not KEY=VALUE"
        raise UsageError(message, cure="write for example FILE?nodes=2&latency=1us")
    if len({key for key, _, _ in pairs}) < len(pairs):
        raise UsageError(f"topology {text!r}: a key is stated twice", cure="state each option once")
    return path, {key: value for key, _, value in pairs}
