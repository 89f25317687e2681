"""Register the commands `compare` and `tune`, the synthesizer `auto`, the engine `processes`.

The rules are those of all packages of this distribution that compare, tune, compose or show.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hub_core.plugin_api import (
    Command,
    Engine,
    OptionType,
    Rule,
    RuleSet,
    Synthesizer,
    declare_rules,
    declare_similar_rules,
    hookimpl,
    option,
)


@dataclass(frozen=True, slots=True)
class AutoOptions:
    """Synthesizers to try, the limit of their work, and the objective."""

    candidates: str = option(
        OptionType.TEXT, "all", "synthesizers to try, as ring,tacos, or all that are installed"
    )
    work: int = option(
        OptionType.INT,
        20_000_000,
        "limit of the counted work, in steps as simulated: the synthesizer at work ends with its "
        "best, and no further one is begun",
        minimum=0,
    )
    robust: str = option(
        OptionType.TEXT,
        "no",
        "links: minimize the largest time over failures of single links, with repairs",
        choices=("no", "links"),
    )
    objective: str = option(
        OptionType.TEXT,
        "messages",
        "of the results within 1 % of the best time, the one with the fewest messages; time: the "
        "fastest",
        choices=("messages", "time"),
    )


COLLHUB_PLUGIN_API = (1, 0)


AUTO = Synthesizer(
    "auto",
    "the fastest of what all other synthesizers make, by the simulator; within 1 %, fewer messages",
    "collhub_tuning.auto:synthesize",
    AutoOptions,
)


@hookimpl
def collhub_producers() -> Sequence[Synthesizer]:
    """Return the plugin's only synthesizer, `AUTO`."""
    return [AUTO]


@hookimpl
def collhub_commands() -> Sequence[Command]:
    """Return the commands `collhub compare` and `collhub tune`, in this order."""
    return [
        Command(
            "compare",
            "Compare algorithms on a topology over a range of sizes.",
            "collhub_tuning.compare_command:compare",
        ),
        Command(
            "tune",
            "Choose the best algorithm by size, as files that runtimes load.",
            "collhub_tuning.tune_command:tune",
        ),
    ]


PROCESSES = Engine(
    "processes",
    "processes of this machine",
    "collhub_tuning.sweep:start",
    shares_files=True,
)


@hookimpl
def collhub_engines() -> Sequence[Engine]:
    """Return the plugin's only engine, `PROCESSES`."""
    return [PROCESSES]


@hookimpl
def collhub_checks() -> Sequence[RuleSet]:
    """Return one set of rules, `study`: those of findings in comparisons and tuned folders.

    The rules are loaded later. The plugin system calls this function.
    """
    rules = "collhub_tuning.plugin:list_rules"
    return [RuleSet("study", "findings in comparisons and tuned folders", rules)]


_FOLDERS = (
    (
        "missing-file",
        "A file of a tuned folder is gone.",
        "It was moved or deleted after `collhub tune`.",
        "Tune again into this folder.",
        "a folder without one of its programs",
    ),
    (
        "falls-back",
        "The runtime uses its own choice for some sizes.",
        "The tuned algorithm serves multiples of a number of elements only.",
        "No action is needed, or allow algorithms with fewer chunks.",
        "sizes that are no multiple of 24 elements",
    ),
)
_COMPOSITIONS = (
    (
        "contract-range",
        "The contract of a custom collective names units or ranks that do not exist.",
        "The contract belongs to another number of ranks or units.",
        "Correct the contract.",
        "a contribution of rank 8 of 8",
    ),
)
_REQUESTS: tuple[tuple[str, str, str], ...] = (
    ("no-measurement", "The files have no measurement of these calls.", "sizes never measured"),
    ("other-machine", "The profile is of another machine.", "`--machine a100` on `dgx-h100`"),
    ("other-collective", "The algorithm is of another collective or size.", "a broadcast file"),
    ("other-mode", "The algorithm does not claim this mode.", "an in-place file out of place"),
    ("nothing-fits", "No synthesizer has an algorithm for the request.", "`auto` without any"),
    ("not-a-tuned-folder", "The folder was not written by `collhub tune`.", "an empty folder"),
    ("seeds", "An option with seeds does not depend on the seed.", "`--seeds 3` without `{seed}`"),
    ("picture-format", "The suffix of the picture is not known.", "`--picture a.bmp`"),
    ("unreadable", "A file cannot be read.", "a file without permission"),
    ("no-model", "The profile has no constants of thread blocks.", "`--machine l40s`"),
    ("no-profile", "No shipped profile describes the machine.", "`--machine known` on a torus"),
    ("no-protocol", "The kernel has no such protocol.", "`-O protocol=LL` for some kernels"),
    ("no-switch", "No switch adds up or copies messages of this algorithm.", "a ring on NVLS"),
    ("no-result", "A part declares no result that the next one could use.", "a custom collective"),
    ("reduce-op", "The parts reduce with different operators.", "a sum and a maximum"),
    ("seam", "Sizes or ranks of the parts do not fit.", "1 MiB, then 2 MiB"),
    ("no-zoo", "The folder or address has no zoo.", "`--zoo .`"),
    ("invalid-zoo", "A card or the list of machines has another form.", "a card without a title"),
    ("invalid-card", "A card is no valid YAML, or a member is wrong.", "a card without a title"),
    ("invalid-report", "The report is not of its schema.", "a report that was changed by hand"),
    (
        "not-checked",
        "An algorithm is too large to be verified, so that the next one is taken.",
        "`auto` on thousands of NPUs",
    ),
    (
        "wrong-candidate",
        "A synthesizer returned an incorrect algorithm, so that the next one is taken.",
        "a plugin with a defect",
    ),
    ("unknown-entry", "The zoo has no entry of this name.", "`collhub zoo show rnig`"),
    ("no-machine", "No network of the entry has its number of ranks.", "an entry of 16 ranks"),
    ("not-fetched", "The file of the entry is not in the zoo.", "an entry of another project"),
    ("not-https", "The address does not use https.", "`--zoo http://example.org`"),
    ("no-dask", "A package of the engine dask is not installed.", "`--engine dask`"),
    ("insecure-scheduler", "The scheduler does not use TLS.", "`tcp://` to another machine"),
    ("unknown-report", "A page cannot show this report.", "a report of `collhub verify`"),
    ("no-step-times", "The simulator does not report times of steps.", "`--view` with astra-sim"),
    ("step-times", "The number of times differs from that of the steps.", "a page of other steps"),
    ("nothing-to-show", "No node runs in the selected ranks and times.", "`--ranks 8` of 8 ranks"),
    ("nothing-to-draw", "No algorithm has a bandwidth to draw.", "a comparison without results"),
    ("too-large-to-draw", "The network is too large for one picture.", "10 000 NPUs"),
    ("load-without-link", "A load is on a link that the network lacks.", "another network"),
)


def list_rules() -> Sequence[Rule]:
    """Return the rules in the order of their declaration."""
    return [
        *declare_rules("tuned folders and comparisons", _FOLDERS),
        *declare_rules("compositions, by `collhub compose`", _COMPOSITIONS),
        *declare_similar_rules(
            "requests: comparisons, compositions, the zoo, pages",
            _REQUESTS,
            cause="Inputs, machine and options of the command do not fit each other.",
            cure="Change the one that the message names.",
        ),
    ]
