"""Read a folder of CCL-Bench: a card that describes a workload, with the traces of its ranks.

The card (`workload-card.yaml`, version 1) has the model, the parallelism and the hardware; the
traces are Kineto profiles or exports of Nsight Systems. Source: cclbench/CCL-Bench
`workload_card_template.yaml` (MIT).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from collhub_networks import DocumentValue, document_of

from collhub_pytorch.formats import CCL_BENCH, CCL_BENCH_FORMAT, ProfileOptions
from collhub_pytorch.profile_formats import detect_format, read_files
from collhub_pytorch.trace_files import files_of
from hub_core import parse_topology
from hub_core.model import (
    Diagnostic,
    InputError,
    JsonValue,
    Location,
    Provenance,
    Severity,
    UsageError,
    Workload,
)
from hub_core.network import Topology
from hub_core.plugin_api import NoOptions, Source, SourcePart

_CARD = re.compile(r"\.ya?ml\Z", re.IGNORECASE)
_TRACE = re.compile(r"\.(?:json(?:\.gz)?|sqlite)\Z", re.IGNORECASE)
_PARALLELISM = ("dp_replicate", "dp_shard", "tp", "pp", "cp")
# Texts of cards in place of a bandwidth.
_UNKNOWN = ("", "n/a", "tbd", "unknown")
_MAX_COUNT = 1 << 20


@dataclass(frozen=True, slots=True)
class BenchCard:
    """Facts of a card. `bandwidth_gbit_per_s`: between nodes and within a node, 0 if not given.

    `parallelism`: ranks by kind, 1 if not given. `per_node`: devices of a node, 0 if not given.
    """

    file: str
    total_count: int
    per_node: int
    device: str
    framework: str
    model: str
    parallelism: Mapping[str, int]
    bandwidth_gbit_per_s: tuple[float, float]


def read(source: Source, options: ProfileOptions) -> Workload:
    """Read the traces in the folder of a CCL-Bench card as a workload, with the card's facts.

    Traces are the files `*.json`, `*.json.gz` and `*.sqlite`, in any case; all must have one
    format. The provenance names the folder. The extension `ccl-bench` has model, device, framework,
    device count (0 if missing) and parallelism of the card.

    Notes are reported in this order: those of the reader of the traces; another number of devices
    in the card than ranks in the traces; the network of the card as an option `--topology`; and the
    number of other files. Each is omitted if it does not apply. Raises `InputError` for an invalid
    card, then for a folder without traces (`no-traces`), then for mixed formats (`mixed-formats`).
    Raises `UsageError` for the option `step` if the traces have no steps, and finally the errors of
    the readers of traces.
    """
    card = read_card(source)
    parts = tuple(part for part in source.parts if _TRACE.search(part.name))
    if not parts:
        message = "there are no traces next to the card"
        cure = "put the files *.json, *.json.gz or *.sqlite of all ranks into the folder"
        raise InputError(message, location=Location(card.file), cure=cure, code="no-traces")
    files = files_of(Source(source.name, parts, source.report))
    form = detect_format(files)
    if options.step is not None and not form.has_steps:
        message = f"option step has no meaning for {form.description}"
        raise UsageError(message, cure="leave it out")
    workload, lines = read_files(form, files, options)
    if card.total_count and card.total_count != workload.num_ranks:
        lines.append(f"the card has {card.total_count} devices, the traces {workload.num_ranks}")
    if text := _network_text(card):
        lines.append(f"the network of the card is --topology '{text}'")
    ignored = len(source.parts) - len(parts) - 1
    if ignored:
        lines.append(f"{ignored} other files of the folder are not read")
    for line in lines:
        source.report(Diagnostic("ccl-bench", line, Severity.NOTE, Location(card.file)))
    parallelism: dict[str, JsonValue] = {**card.parallelism}
    facts: dict[str, JsonValue] = {
        "model": card.model,
        "device": card.device,
        "framework": card.framework,
        "devices": card.total_count,
        "parallelism": parallelism,
    }
    return replace(
        workload,
        provenance=Provenance(CCL_BENCH, "", source.name, source.sha256()),
        extensions={**workload.extensions, CCL_BENCH: facts},
    )


def network(source: Source, options: NoOptions) -> Topology:
    """Return the network of a job's card: a switch in each node, and one between the nodes.

    Bandwidths are those of the card, per device, converted from Gbit/s. Latencies are the defaults
    of the topologies `switch:N` and `switch:N*switch:M`. There are two exceptions:

    - With one node, there is only its switch. All devices are one node if the card has no number of
      devices per node.
    - With one device per node, there is only the switch between nodes.

    Raises the errors of `read_card`, and `InputError` (`ccl-bench`) if the card has fewer than two
    devices, a number that is no multiple of the devices per node, or no bandwidth within nodes.
    With several nodes, the bandwidth between them is needed as well.
    """
    del options
    card = read_card(source)
    text = _network_text(card)
    if not text:
        message = "the card does not describe a network: devices, devices per node, bandwidths"
        cure = "give --topology T"
        raise InputError(message, location=Location(card.file), cure=cure, code="ccl-bench")
    return parse_topology(text)


def _network_text(card: BenchCard) -> str:
    """Return the network of a card as topology text, with bandwidths converted from Gbit/s to GB/s.

    The nodes have `per_node` devices each; if it is 0, all devices are in one node.

    - One node of 8 devices with 2400 Gbit/s: `switch:8?bandwidth=300GB/s`
    - Two nodes of 8 devices, with 200 Gbit/s between them:
      `switch:8*switch:2?bandwidth=300GB/s,25GB/s`
    - Nodes of one device: a single switch with the bandwidth between the nodes

    Returns "" in these cases: fewer than 2 devices; a number of devices that is no multiple of
    `per_node`; no bandwidth within nodes, even with one device per node; several nodes and no
    bandwidth between them. A bandwidth of 0 or less counts as missing.
    """
    between, within = card.bandwidth_gbit_per_s
    per_node = card.per_node or card.total_count
    nodes, rest = divmod(card.total_count, max(1, per_node))
    if card.total_count < 2 or rest or within <= 0 or (nodes > 1 and between <= 0):
        return ""
    # The bandwidths are in Gbit/s.
    inner, outer = (f"{value / 8:.6g}GB/s" for value in (within, between))
    if nodes == 1:
        return f"switch:{per_node}?bandwidth={inner}"
    if per_node == 1:
        return f"switch:{nodes}?bandwidth={outer}"
    return f"switch:{per_node}*switch:{nodes}?bandwidth={inner},{outer}"


def lines(workload: Workload) -> list[str]:
    """Describe the card of a workload in one line, followed by the report on its profiles.

    The card is the extension `ccl-bench`. Without it, or if it is no object, the first line is left
    out. The line is such as `card            llama with torchtitan on 2 x A100; dp_shard 2`:

    - model family (if empty `no model`), framework and device (if empty `unknown`)
    - number of devices
    - degrees of parallelism other than 1, or `no parallelism` if there are none

    The other lines are those of `collhub_pytorch.report.lines`.
    """
    # Imported here: only `inspect` needs the report.
    from collhub_pytorch.report import lines as report_lines

    facts = workload.extensions.get(CCL_BENCH)
    described: list[str] = []
    if isinstance(facts, dict):
        parallelism = facts["parallelism"]
        assert isinstance(parallelism, dict)
        ranks = ", ".join(f"{name} {count}" for name, count in parallelism.items() if count != 1)
        described = [
            f"card            {facts['model'] or 'no model'} with {facts['framework'] or 'unknown'}"
            f" on {facts['devices']} x {facts['device'] or 'unknown'}; {ranks or 'no parallelism'}"
        ]
    return described + report_lines(workload)


def read_card(source: Source) -> BenchCard:
    """Parse the card of a folder: devices, software, parallelism and bandwidths.

    The card is the file of `_card_part`. Absent and null values have defaults: "" for texts, 0 for
    numbers of devices, 1 for degrees of parallelism. Texts are cut after 80 characters. The device
    is the `model`, otherwise the `type`. `hardware` is in `workload`, otherwise (in newer cards)
    beside it. Bandwidths are in Gbit/s: (between nodes, within a node) if `bandwidth_gbps` has
    exactly two values, otherwise (0.0, 0.0). Null and the texts of `_UNKNOWN` are 0.0.

    Raises `InputError` in these cases:

    - There is no card, or several.
    - A value is invalid; the message has its path. Numbers of devices and degrees must be integers
      from 1 to 2^20, so 0 is invalid.
    - The card has a plan of parallelism and a `total_count`, and this is neither the product of
      `dp_replicate`, `dp_shard`, `tp`, `pp` and `cp`, nor this product times `ep`. Frameworks
      differ in whether experts have devices of their own.
    """
    part = _card_part(source)
    root = document_of(Source(part.name, (part,), source.report), CCL_BENCH)
    workload, executor = root.get("workload"), root.get("Model-executor")
    hardware = _object(workload, "hardware") or root.get("hardware")
    spec, topology = _object(hardware, "xpu_spec"), _object(hardware, "network_topo")
    plan = _object(executor, "model_plan_parallelization")
    parallelism = {name: _count(plan, name) or 1 for name in (*_PARALLELISM, "ep")}
    total = _count(spec, "total_count")
    product = 1
    for name in _PARALLELISM:
        product *= parallelism[name]
    fitting = (product, product * parallelism["ep"])
    if total and plan is not None and total not in fitting:
        factors = " x ".join(f"{name} {parallelism[name]}" for name in _PARALLELISM)
        plan.fail(f"{factors} = {product}, but total_count is {total}", "correct one of them")
    rates = _object(topology, "bandwidth_gbps")
    values = [_bandwidth(rate) for rate in rates.items()] if rates else []
    return BenchCard(
        part.name,
        total,
        _count(spec, "count_per_node"),
        _text(spec, "model") or _text(spec, "type"),
        _text(_object(executor, "framework"), "name"),
        _text(_object(workload, "model"), "model_family"),
        parallelism,
        (values[0], values[1]) if len(values) == 2 else (0.0, 0.0),
    )


def _card_part(source: Source) -> SourcePart:
    """Return the only file of a folder that is a card.

    A card has a name that ends in `.yaml` or `.yml` (in any case), and the signature of the format
    in its first 64 KiB. Raises `InputError` (`ccl-bench`) if the source has no card or several; the
    message has their number and the first three names.
    """
    cards = []
    for part in source.parts:
        if _CARD.search(part.name):
            with part.stream() as stream:
                if re.search(CCL_BENCH_FORMAT.signature, stream.read(1 << 16)):
                    cards.append(part)
    if len(cards) != 1:
        names = ", ".join(part.name for part in cards[:3]) or "none"
        message = f"{len(cards)} cards in the folder: {names}"
        cure = "name a folder with one workload-card.yaml"
        raise InputError(message, location=Location(source.name), cure=cure, code=CCL_BENCH)
    return cards[0]


def _object(value: DocumentValue | None, key: str) -> DocumentValue | None:
    return None if value is None else value.get(key)


def _count(value: DocumentValue | None, key: str) -> int:
    """Return the count `key` of an object of the card; 0 if it or the object is missing or null.

    Raises `InputError` for values other than integers from 1 to `_MAX_COUNT`, so 0 is invalid.
    """
    child = _object(value, key)
    return 0 if child is None else child.count(_MAX_COUNT)


def _text(value: DocumentValue | None, key: str) -> str:
    child = _object(value, key)
    return "" if child is None or child.raw == "" else child.text()[:80]


def _bandwidth(value: DocumentValue) -> float:
    """Return a bandwidth of the card in Gbit/s; 0.0 if the card leaves it open."""
    raw = value.raw
    if raw is None or (isinstance(raw, str) and raw.strip().casefold() in _UNKNOWN):
        return 0.0
    return float(value.number())


_SAMPLE = b"""\
version: 1
description: a step of two ranks
workload:
  model:
    phase: training
    model_family: example
    iteration:
  hardware:
    network_topo: {topology: slingshot, bandwidth_gbps: [200, 2400]}
    xpu_spec: {type: GPU, model: A100, total_count: 2, count_per_node: 2}
Model-executor:
  framework: {name: torchtitan}
  model_plan_parallelization: {dp_replicate: 1, dp_shard: 2, tp: 1, pp: 1, cp: 1}
metric_source:
  traces: [json]
"""


def samples() -> Sequence[Source]:
    """Return one correct source: a folder in memory with a card and the profiles of two ranks.

    Its method `report` drops findings.
    """
    # Imported here: only tests and the conformance kit need the profiles.
    from collhub_pytorch.samples import profiles

    card = SourcePart("card/workload-card.yaml", lambda: _SAMPLE, None, len(_SAMPLE))
    traces = [replace(part, name=f"card/{part.name}") for part in profiles()[0].parts]
    return [Source("card", (*traces, card), report=lambda finding: None)]
