"""From a text such as `torus:4x4`, or a file, to a topology."""

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
from hub_core.registry.discovery import core_alone, run_registry
from hub_core.registry.plugins import Provided, Registry


def parse_topology(text: str, registry: Registry | None = None) -> Topology:
    """Build the topology that a text such as `torus:4x4` names, by the core or by a plugin.

    Without a registry, the core's own builders go first; the installed plugins are discovered where
    the text asks for another one. Raises `HubError`.
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
    """Build the topology that a text such as `torus:4x4` or a file names.

    A builder's name goes before a file's. Behind a file, options of its reader may stand as in
    `machine.xml?profile=h100&nodes=2`, and `npus=0-3` for a part of it. Raises `HubError`.
    """
    text = os.fspath(text_or_path)
    registry = registry or run_registry()
    path, stated = _with_query(text)
    if format is None and text != STANDARD_STREAM:
        is_builder = re.split(r"[:?*]", text)[0] in _names(registry)
        if is_builder or not (os.path.lexists(path) or may_be_topology_file(path, registry)):
            return parse_topology(text, registry)
    npus = stated.pop("npus", None)
    source, reader = open_source(path, TopologyReader, format, registry, report)
    given = {**stated, **(options or {})}
    topology = call(reader, Topology, source, bound_options(reader, given))
    if npus is not None:
        topology = topology.subset(parse_ranks(npus))
    return topology if path == text else replace(topology, name=text)


def own_topology(opened: OpenedAlgorithm, registry: Registry) -> Topology | None:
    """The network that an input states beside its algorithm.

    The reader of a job, or a topology reader of the same format, reads it from the same source;
    None where there is none.
    """
    offer = opened.reader.offer
    if isinstance(offer, WorkloadReader) and offer.network:
        network = TopologyReader(offer.format, offer.network)
        stated = Provided(opened.reader.plugin, network)
        return call(stated, Topology, opened.source, NoOptions())
    name = opened.format_name
    if name not in {provided.name for provided in registry.all(TopologyReader)}:
        return None
    reader = registry.find(TopologyReader, name)
    return call(reader, Topology, opened.source, bound_options(reader, None))


def as_topology(topology: Topology | str, registry: Registry) -> Topology:
    """A topology as it is, a text or a file as `read_topology` reads it."""
    return read_topology(topology, registry=registry) if isinstance(topology, str) else topology


@dataclass(slots=True)
class _Builders:
    """Builders by name; plugins are discovered once, for the first name that the core has not.

    Discovery reads what is installed and takes longer than most networks take to be built.
    """

    registry: Registry | None

    def __call__(self, name: str) -> TopologyFunction:
        """The builder. Raises `HubError` where none, or more than one, has the name."""
        if self.registry is None:
            own = core_alone()
            if name in _names(own):
                return _builder(name, own)
            self.registry = run_registry()
        return _builder(name, self.registry)


def _builder(name: str, registry: Registry) -> TopologyFunction:
    """The builder that one plugin alone offers; a name of two is refused."""
    known = _names(registry)
    if name not in known:
        everything = f"use one of {', '.join(known)}, or a file"
        message = f"unknown topology {name!r}"
        raise registry.unknown_name(message, name, known, everything, "unknown-topology")
    return partial(call, registry.find(TopologyBuilder, name), Topology)


def _names(registry: Registry) -> list[str]:
    """The names of all builders, sorted."""
    return sorted({provided.name for provided in registry.all(TopologyBuilder)})


def _with_query(text: str) -> tuple[str, dict[str, str]]:
    """The file that a text names, `?` in its name or not, and the `key=value` pairs behind it."""
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
