"""Find runtimes by name and by the writers of their files, and time algorithms as they run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from hub_core.model import Algorithm, CollectiveKind, HubError, UsageError
from hub_core.model.quantities import parse_whole
from hub_core.network import Topology
from hub_core.pipeline.calls import transform
from hub_core.pipeline.simulation import TimingSource, simulate
from hub_core.plugin_api import (
    IDEAL,
    RESOURCES,
    FormatWriter,
    Runtime,
    SelectionWriter,
    describe_multiple,
)
from hub_core.plugin_api.offers import Offer
from hub_core.registry.plugins import Provided, Registry
from hub_core.verification import in_largest_units

# Limits above this number count as unlimited.
_MAX_LIMIT = 1 << 24
# Copies of an algorithm, of which the runtime may execute fewer than the fastest number.
_INSTANCES = (16, 8, 4, 2, 1)

Variants = Callable[[Algorithm], Iterable[tuple[Algorithm, int, str]]]
"""Function that returns forms of an algorithm with their times in ns and descriptions."""


@dataclass(frozen=True, slots=True)
class ChosenRuntime:
    """A runtime and the writer whose files it loads.

    `query`: the limits of the user, such as `blocks=16&channels=2`; "" without any.
    """

    runtime: Runtime
    writer: Provided[FormatWriter]
    query: str = ""

    @property
    def text(self) -> str:
        """Return the name of the runtime and the limits of the user: `executor?blocks=16`."""
        return f"{self.runtime.name}?{self.query}" if self.query else self.runtime.name

    def with_limits(self, limits: Mapping[str, int | None]) -> ChosenRuntime:
        """Return the runtime with other limits of the named resources, None for no limit.

        For each limit that is not None and for which the writer has an option (`limit_options`),
        this option is added to those that select the runtime. Other options are unchanged.
        """
        options = {
            self.runtime.limit_options[name]: str(value)
            for name, value in limits.items()
            if name in self.runtime.limit_options and value is not None
        }
        runtime = replace(
            self.runtime,
            limits=self.runtime.limits.with_limits(limits),
            writer_options={**self.runtime.writer_options, **options},
        )
        return replace(self, runtime=runtime)


def list_runtimes(registry: Registry) -> list[ChosenRuntime]:
    """List the runtimes of all writers, sorted by writer, in the order of each writer."""
    return [
        ChosenRuntime(runtime, writer)
        for writer in registry.all(FormatWriter)
        for runtime in writer.offer.runtimes
    ]


def find_runtimes(names: str, registry: Registry) -> tuple[ChosenRuntime, ...]:
    """Return the runtimes of texts separated by commas, in their order; `ideal` gives none.

    A text is a name, or a name with limits, such as `executor?blocks=16&block_operations=256`.
    Each limit replaces that of the runtime for this resource, and adds the writer's option for
    it, if the writer has one. Other limits remain. Blanks around commas and `?` are ignored. A
    runtime that is named several times with the same limits occurs once, at its first place.

    Raises `UsageError` for an unknown name (`unknown-runtime`), also an empty one. Raises it
    also for `ideal` with limits, for one runtime with different limits, and as `parse_limits`
    does, for example for a `?` without limits.
    """
    known = {one.runtime.name: one for one in list_runtimes(registry)}
    chosen: dict[str, ChosenRuntime] = {}
    for text in dict.fromkeys(one.strip() for one in names.split(",")):
        name, mark, query = (part.strip() for part in text.partition("?"))
        if name == IDEAL:
            if mark:
                message = f"--for {text[:80]}: {IDEAL} has no limits to replace"
                raise UsageError(message, cure="leave them out, or name a runtime")
            continue
        if name not in known:
            cure = f"choose one of {', '.join([*known, IDEAL])}"
            if name.partition("=")[0] in RESOURCES:
                cure = "separate the limits of a runtime by &, as executor?blocks=16&channels=2"
            message = f"no runtime {name!r} is known"
            raise UsageError(message, cure=cure, code="unknown-runtime")
        one = known[name]
        if mark:
            one = replace(one.with_limits(parse_limits(query, text)), query=query)
        if name in chosen and chosen[name].query != one.query:
            message = f"--for {names[:80]}: runtime {name!r} is named with different limits"
            raise UsageError(message, cure="name it once")
        chosen[name] = one
    return tuple(chosen.values())


def parse_limits(query: str, source: str) -> dict[str, int]:
    """Parse limits such as `blocks=16&channels=2`: number by resource, in the order of the text.

    Every part between `&` must be RESOURCE=NUMBER, with a key of `RESOURCES` and a decimal number
    from 1 to 2^24. Raises `UsageError` for the first part that has another form, an unknown or
    empty resource, or a resource that occurred before. `source`: name of the text in errors.
    """
    limits: dict[str, int] = {}
    for part in query.split("&"):
        name, _, number = part.partition("=")
        if name not in RESOURCES or name in limits:
            problem = "is given twice" if name in limits else "is not a resource"
            cure = f"limit each of {', '.join(RESOURCES)} at most once, as blocks=16"
            raise UsageError(f"--for {source[:80]}: {name[:40]!r} {problem}", cure=cure)
        value = parse_whole(number, _MAX_LIMIT)
        if not value:
            problem = (
                f"the limit {number[:40]!r} of {name} is no whole number from 1 to {_MAX_LIMIT}"
            )
            raise UsageError(f"--for {source[:80]}: {problem}", cure="give such a number")
        limits[name] = value
    return limits


def find_runtime(name: str, registry: Registry) -> ChosenRuntime | None:
    """Return the first runtime of these names; None for `ideal`. Raises `UsageError`."""
    return next(iter(find_runtimes(name, registry)), None)


def name_runtime(
    writer: Provided[Offer] | None, options: Mapping[str, str], kind: CollectiveKind
) -> str:
    """Return the name of the runtime that will load the files of a writer with these options.

    A runtime of the writer names the options that make the writer write for it. The result is
    the first runtime that executes this kind of collective and contradicts no given option; an
    option that is not given never excludes it. Returns `ideal` (no runtime) if there is none,
    if `writer` is None, or if it is no writer of a format.
    """
    offer = None if writer is None else writer.offer
    runtimes = offer.runtimes if isinstance(offer, FormatWriter) else ()
    return _match(runtimes, options, kind) or IDEAL


def choose_runtimes(
    formats: Mapping[str, Mapping[str, str]], kind: CollectiveKind, registry: Registry
) -> str:
    """Return the names of the runtimes that execute the programs in the files of a selection.

    `formats`: for each format of a folder, its options. The names are separated by commas, each
    once, in the order of the formats. Returns `ideal` (no runtime) if no format has a program for
    this kind of collective. Raises `HubError` for an unknown format.
    """
    names = [
        _match(registry.find(SelectionWriter, name).offer.programs_for, options, kind)
        for name, options in formats.items()
    ]
    return ",".join(dict.fromkeys(filter(None, names))) or IDEAL


def _match(
    runtimes: Sequence[Runtime], options: Mapping[str, str], kind: CollectiveKind
) -> str | None:
    """Return the name of the first runtime for an output with these options, else None.

    The runtime must execute collectives of this kind, and no given option may differ from
    the value that selects it. An option that is not given never excludes a runtime.
    """
    for runtime in runtimes:
        selecting = runtime.writer_options.items()
        is_selected = all(options.get(name, value) == value for name, value in selecting)
        if is_selected and kind in runtime.collectives:
            return runtime.name
    return None


def select_runtime(
    name: str, writer: Provided[Offer] | None, options: Mapping[str, str], registry: Registry
) -> dict[str, str]:
    """Return the options of a writer that select the runtime `name` and the limits in it.

    `name`: text as in `find_runtimes`; of several runtimes, the first one counts. `options`:
    options of the writer that the user gives. The first rule that applies decides:

    - `writer` is None: {}. `name` is not checked then.
    - `name` has an unknown runtime or invalid limits: `UsageError` of `find_runtimes`.
    - `name` is `ideal`, or the runtime belongs to another writer: {}.
    - `options` contains an option for a limit of the runtime with another value than `name`
      selects: `UsageError`, for the first such option in alphabetical order.
    - Otherwise a new dictionary with all options that select the runtime. Options that are not for
      limits may have other values in `options`; the caller decides which ones count.
    """
    if writer is None:
        return {}
    chosen = find_runtime(name, registry)
    if chosen is None or chosen.writer.offer is not writer.offer:
        return {}
    selecting = chosen.runtime.writer_options
    limited = set(chosen.runtime.limit_options.values()) & set(selecting) & set(options)
    for option in sorted(limited):
        if options[option] != selecting[option]:
            message = f"-O {option}={options[option][:40]} contradicts --for {chosen.text[:80]}"
            raise UsageError(message, cure=f"leave out -O {option}=, or change --for")
    return dict(selecting)


def describe_unserved(algorithm: Algorithm, runtime: Runtime, size: int) -> str:
    """Return a sentence if a runtime does not serve calls of `size` bytes, otherwise "".

    The runtime serves multiples of its `unit_bytes` times the number of units of the
    algorithm in its largest units, and every size if `unit_bytes` is 0. The sentence has
    the nearest sizes that are served.
    """
    units = in_largest_units(algorithm).collective.unit_count
    return describe_multiple(runtime.limits.unit_bytes * units, runtime.name, size)


def build_variant(
    algorithm: Algorithm, passes: Sequence[tuple[str, Mapping[str, str]]], registry: Registry
) -> tuple[Algorithm, str]:
    """Apply passes to an algorithm in order; return the result and a text about them.

    `passes`: (name, options) each. The text has the form `a key=value, b`; it is "" without passes.
    Raises `HubError` for an unknown pass or option, and if a pass fails.
    """
    texts = []
    for name, options in passes:
        algorithm, _ = transform(algorithm, name, options=options, registry=registry)
        texts.append(" ".join([name, *(f"{key}={value}" for key, value in options.items())]))
    return algorithm, ", ".join(texts)


def time_on_runtime(timing: TimingSource, names: str, registry: Registry) -> TimingSource:
    """Return the timing with the option `kernel` that all named runtimes have in common.

    A kernel is the method by which a runtime executes steps. `names`: runtimes separated by
    commas; `ideal` counts as no runtime. The option replaces a given one. `timing` itself
    is returned if its times are those of nominal links, if no runtime is named, or if the
    runtimes have no kernel or different ones. Raise `UsageError` for an unknown runtime.
    """
    kernels = {one.runtime.kernel for one in find_runtimes(names, registry)}
    if timing.machine is None or len(kernels) != 1 or "" in kernels:
        return timing
    return replace(timing, options={**timing.options, "kernel": kernels.pop()})


def list_variants(
    timing: TimingSource, topology: Topology, size: int, registry: Registry
) -> Variants:
    """Return a function that yields the forms of an algorithm: (form, simulated time in ns, text).

    `size`: bytes of the collective in the simulation. The text lists the passes that make the form
    from the algorithm, as `a key=value, b`; it is "" for the algorithm itself. The first form is
    the one that the simulator chooses with `timing.options` (with `instances=0` the fastest). If
    `timing.machine` is None (nominal links), it is the only form. On a machine, the forms with 16,
    8, 4, 2 and 1 copies follow, in this order; a form may occur twice. A form without a time (it
    does not finish) is omitted. A later form is also omitted if its simulation or its passes raise
    `HubError`. The iteration raises the `HubError` of the first form.
    """

    def simulate_with(
        algorithm: Algorithm, options: Mapping[str, str]
    ) -> Iterable[tuple[Algorithm, int, str]]:
        result = simulate(
            algorithm,
            topology,
            size,
            backend=timing.backend,
            options={**timing.options, **options},
            registry=registry,
        )
        if result.time_ns is None:
            return
        variant, text = build_variant(algorithm, result.passes, registry)
        yield variant, result.time_ns, text

    def variants(algorithm: Algorithm) -> Iterable[tuple[Algorithm, int, str]]:
        yield from simulate_with(algorithm, {})
        if timing.machine is None:
            return
        for instances in _INSTANCES:
            try:
                yield from simulate_with(algorithm, {"instances": str(instances)})
            except HubError:
                # More copies than the machine has channels or thread blocks.
                continue

    return variants
