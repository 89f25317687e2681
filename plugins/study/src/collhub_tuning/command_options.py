"""Options that `compare` and `tune` share, and the comparisons that they select.

The options name algorithms, the root of rooted collectives, the engine and the cache.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from hub_core import (
    FILE,
    CommandContext,
    assign,
    backend_option,
    complete_offers,
    machine_option,
    number_option,
    offer_option,
    timeout_option,
)
from hub_core.model import CollectiveKind, UsageError
from hub_core.plugin_api import Engine, EngineRequest, MeasurementReader, Option, Synthesizer

if TYPE_CHECKING:
    from collhub_tuning.comparison_report import ComparisonOutcome
    from collhub_tuning.measured_curves import MeasuredCurves
    from collhub_tuning.questions import ComparedAlgorithm, ComparisonQuestion
    from collhub_tuning.sweep import Measuring
    from hub_core import Registry, TimingSource
    from hub_core.network import Topology


algorithms_option = click.option(
    "--with",
    "names",
    metavar="NAME|FILE",
    multiple=True,
    shell_complete=complete_offers(Synthesizer),
    help="A synthesizer, or an algorithm in a file (repeatable; default: all synthesizers).",
)


def select_roots(
    kinds: Sequence[str], root: int | None, topology: Topology
) -> dict[str, int | None]:
    """Return the root of each collective by name, None for collectives without one.

    `root`: the same for all rooted collectives; None means 0. Names keep their order. Raises
    `UsageError` if no collective has a root but one is given, also 0, or if the root is not below
    the number of NPUs (a negative one is not checked); `ValueError` for an unknown collective.
    """
    rooted = [kind for kind in kinds if CollectiveKind(kind).traits.is_rooted]
    if root is not None and not rooted:
        raise UsageError(f"--root has no meaning for {', '.join(kinds)}")
    if root is not None and root >= topology.num_npus:
        raise UsageError(f"the root {root} is no NPU of {topology.name}")
    return {kind: (root or 0) if kind in rooted else None for kind in kinds}


def select_algorithms(names: Sequence[str], registry: Registry) -> list[ComparedAlgorithm]:
    """Return the named synthesizers and files, in order; by default those for general use.

    The default is in the order of the registry. It omits synthesizers that are used only by name,
    and the portfolio `auto` (it returns the result of another synthesizer). Repeated names count
    once. A name is a synthesizer if there is one with this name, otherwise a file, folder or set
    of rank files. For the name `auto`, a file takes precedence over the portfolio. Raises the
    `HubError` of the registry for a name that is none of these, and `UsageError` without names if
    no synthesizer for general use is installed.
    """
    from collhub_tuning.auto import NAME as PORTFOLIO
    from collhub_tuning.questions import ComparedAlgorithm

    # The portfolio is excluded: it returns the result of one of the other synthesizers.
    offers = [provided for provided in registry.all(Synthesizer) if provided.name != PORTFOLIO]
    known = [provided.name for provided in offers]
    default = [provided.name for provided in offers if not provided.offer.only_by_name]
    algorithms = []
    for name in dict.fromkeys(names or default):
        path = Path(name)
        # A set of rank files has a file `NAME.0.et`.
        is_file = name not in known and (
            path.exists() or path.with_name(f"{path.name}.0.et").exists()
        )
        if name not in known and not is_file:
            # Raises an error with the closest name and with broken plugins.
            registry.find(Synthesizer, name)
        algorithms.append(ComparedAlgorithm(name, is_file))
    if not algorithms:
        raise UsageError(
            "there is no synthesizer to compare", cure="install one, or give files: --with FILE"
        )
    return algorithms


Function = TypeVar("Function", bound=Callable[..., object])
Compare = Callable[["ComparisonQuestion", "Topology", "MeasuredCurves | None"], "ComparisonOutcome"]
OptionsBySide = dict[str, dict[str, str]]
_DEFAULT_ENGINE = "processes"
READERS = "measured"
"""Side of the options of readers of `--measured`, in `-O measured.key=value`."""
_SCHEDULER = "scheduler"
_OPTIONS = (
    backend_option("The simulator that times them."),
    number_option(
        "--jobs", "N", "Algorithms at once (default: one a core, or all workers of an engine)."
    ),
    offer_option(
        "--engine",
        Engine,
        "What runs them at once; its options are given as -O key=value.",
        _DEFAULT_ENGINE,
    ),
    click.option(
        "--scheduler",
        metavar="ADDRESS",
        help="The running cluster of an engine that has one, short for -O scheduler=ADDRESS.",
    ),
    timeout_option,
    machine_option,
    click.option(
        "--for",
        "runtime",
        metavar="RUNTIME,...",
        help="Runtimes that will execute the algorithms, as executor: chunks suit all of them,"
        " other limits one of them; ideal: no limits (default of compare: ideal; of tune: those of"
        " the files).",
    ),
    click.option(
        "--measured",
        "measured_files",
        metavar="[NAME=]FILE",
        multiple=True,
        type=FILE,
        help="Measured times, such as output of nccl-tests, to decide by; of the compared algorithm"
        " NAME (default: of the library's own choice). Repeatable.",
    ),
    click.option("--no-cache", is_flag=True, help="Measure anew, and keep nothing."),
)


def comparison_options(function: Function) -> Function:
    """Decorate a command with all options of a comparison, from `--backend` to `--no-cache`.

    The help lists them in the order of `_OPTIONS`. `open_comparisons` evaluates their
    values. Returns the decorated function.
    """
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def choose_comparison_timing(
    context: CommandContext, arguments: Mapping[str, Any], topology: Topology
) -> TimingSource:
    """Choose how a comparison times algorithms: on a machine or by a simulator.

    `arguments`: values of the options by parameter name. The first case that applies:
    1. `--machine` names a profile: the machine of this profile.
    2. The simulator of `--backend` models machines (also with `--machine none`): the machine that
       the network names, if it is known; otherwise this simulator without a machine.
    3. `--machine` is missing, the backend is the default one, and links are not varied (`ranges`,
       `failures`, `slow_links` are empty): the machine that the network names, if it is known.
    4. Otherwise: the simulator of `--backend` with the nominal values of the links.
    On a machine, the time of an algorithm is that of its fastest number of instances.
    Raises `UsageError` for varied links with a `--machine` other than `none`. A profile raises
    `PluginError` if no simulator models machines, then `UsageError` if `--backend` is neither the
    default nor this one, then errors of the machine. Other names of `--backend` are not checked.
    """
    from hub_core import choose_timing

    machine, backend = arguments["machine"], arguments["backend"]
    has_variations = any(map(arguments.get, ("ranges", "failures", "slow_links")))
    if has_variations and machine not in (None, "none"):
        message = (
            "--vary, --without-link and --degrade change the links, "
            "--machine has those of its machine"
        )
        raise UsageError(message, cure="use --machine none")
    return choose_timing(
        machine,
        backend,
        topology,
        context.registry(),
        uses_known=not has_variations,
        tries_instances=True,
    )


def get_side(name: str) -> str:
    """Return the prefix of an offer in `-O prefix.key=value`: its name with `_` for `-`."""
    return name.replace("-", "_")


def assign_options(
    context: CommandContext, arguments: Mapping[str, Any], further: Mapping[str, Sequence[Option]]
) -> OptionsBySide:
    """Return the options by side: the engine, the readers of measurements, and the `further` sides.

    Keys are the engine's name with `_` for `-`, `READERS`, and those of `further`; a side without
    options has an empty dict. Values are texts by option. They come from `-O`
    (`arguments["assignments"]`). `--scheduler` becomes the option `scheduler` of the engine and
    replaces one of `-O`. The side `READERS` accepts the options that any reader of measurements
    declares; of equal names, the first reader counts. Without measured files it accepts none.

    Raises `UsageError` for `--scheduler` if the engine does not have it, then for an option of
    `-O` that no side declares, and `HubError` for an unknown engine.
    """
    name = arguments["engine"]
    declared = context.options_of(Engine, name)
    side = get_side(name)
    assignments = dict(arguments["assignments"])
    if arguments[_SCHEDULER] is not None:
        if _SCHEDULER not in [option.name for option in declared]:
            engines = [
                provided.name
                for provided in context.registry().all(Engine)
                if _SCHEDULER in [one.name for one in context.options_of(Engine, provided.name)]
            ]
            cure = "no engine that is installed has one"
            if engines:
                cure = f"give --engine {' or '.join(engines)}"
            raise UsageError(f"the engine {name} has no --scheduler", cure=cure)
        assignments[f"{side}.{_SCHEDULER}"] = arguments[_SCHEDULER]
    readers: dict[str, Option] = {}
    if arguments["measured_files"]:
        for provided in context.registry().all(MeasurementReader):
            for option in context.options_of(MeasurementReader, provided.name):
                readers.setdefault(option.name, option)
    return assign(assignments, {side: declared, READERS: tuple(readers.values()), **further})


@contextmanager
def open_comparisons(
    context: CommandContext,
    arguments: Mapping[str, Any],
    algorithms: Sequence[ComparedAlgorithm],
    options: OptionsBySide,
    timing: TimingSource,
) -> Iterator[Compare]:
    """Yield a function `compare(question, topology, measured)` that compares all the algorithms.

    `measured`: the measured curves of the question, None without `--measured`. Results are taken
    from the cache of results, and missing ones are measured and stored, unless `--no-cache` is
    given. If a cached time is below a proven lower bound, all results of its algorithm are
    measured again, once. `compare` shows progress. `arguments`: values of `comparison_options`.
    `timing`: simulator and machine; the question names the simulator that is used.

    The workers are stopped when the `with` block ends, also after an exception. After a block
    without an exception, each different reason why the cache could not be written is printed on
    stderr. Raises `HubError` for an unknown engine, before the block.
    """
    # Imported here, because the help of the commands does not need numpy.
    import hub_core
    from collhub_tuning.comparison_report import ComparisonOutcome
    from collhub_tuning.result_cache import ResultCache, collect_versions, find_cache_folder
    from collhub_tuning.sweep import compare_algorithms

    folder = None if arguments["no_cache"] else find_cache_folder(os.environ)
    versions = {} if folder is None else collect_versions(context.registry())
    defects: list[str] = []

    def compare(
        question: ComparisonQuestion, topology: Topology, measured: MeasuredCurves | None
    ) -> ComparisonOutcome:
        cache = ResultCache(folder, hub_core.topology_to_json(topology), versions)
        label = f"{question.kind} on {topology.name}: comparing {len(algorithms)} algorithms"

        def measure() -> ComparisonOutcome:
            with context.progress_bar(label) as progress:
                measurements = compare_algorithms(
                    algorithms,
                    question,
                    cache,
                    measuring=measuring,
                    progress=progress,
                    network=topology,
                )
            cuts = tuple(cut for measurement in measurements for cut in measurement.cuts)
            return ComparisonOutcome(
                question, topology, measurements, context.registry(), cuts, timing, measured
            )

        outcome = measure()
        # A cached time below a proven bound is wrong, so it is measured again.
        if cache.distrust(outcome.defects_by_algorithm):
            outcome = measure()
        defects.append(cache.defect)
        return outcome

    with _create_measuring(context, arguments, len(algorithms), options) as measuring:
        yield compare
    for defect in filter(None, dict.fromkeys(defects)):
        context.say(f"results are not kept: {defect}")


def _create_measuring(
    context: CommandContext, arguments: Mapping[str, Any], count: int, options: OptionsBySide
) -> Measuring:
    """Create the object that measures `count` algorithms on the engine of the arguments.

    The engine `processes` (the default) measures `--jobs` algorithms at once, by default one per
    CPU. Another engine is started when it is first needed, with its own options, and gets `--jobs`
    tasks at once, by default `count`. Both numbers are at most `count`. The time limit is
    `arguments["budget"]`. Raises `HubError` for an unknown engine.
    """
    import hub_core
    from collhub_tuning.sweep import Measuring

    name, registry = arguments["engine"], context.registry()
    budget = arguments["budget"]
    shares_files = registry.find(Engine, name).offer.shares_files
    if name == _DEFAULT_ENGINE:
        return Measuring(
            min(arguments["jobs"] or os.cpu_count() or 1, count), budget, registry=registry
        )

    def start(workers: int, task_timeout_s: float | None) -> Executor:
        request = EngineRequest(workers, task_timeout_s)
        return hub_core.start_engine(
            name, request, options=options[get_side(name)], registry=registry
        )

    # The engine limits the number to its workers; more workers than algorithms are useless.
    return Measuring(min(arguments["jobs"] or count, count), budget, start, shares_files, registry)


def print_baseline(
    context: CommandContext,
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    right: Sequence[str],
    outcome: ComparisonOutcome,
) -> None:
    """Print an empty line, then a table that compares the algorithms with NCCL's own choice.

    `right`: names of the columns that are aligned to the right. Without rows, no line and no note
    is printed. After a table, a note on stderr explains why there are no gains if the timing of
    `outcome` does not model machines.
    """
    from collhub_tuning.baseline import NO_GAIN_NOTE, models_machines

    if not rows:
        return
    context.print_line("")
    context.print_table(header, rows, right)
    if not models_machines(outcome):
        context.say(NO_GAIN_NOTE)
