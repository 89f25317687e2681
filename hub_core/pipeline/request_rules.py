"""Rules of requests: errors of options and arguments, of plugins and outputs, and of results.

The errors of a class have one cause and one cure; each identifier has its meaning and an example.
"""

from __future__ import annotations

from collections.abc import Sequence

from hub_core.plugin_api.options import Rule, declare_rules, declare_similar_rules

_Rows = tuple[tuple[str, str, str], ...]
_ARGUMENTS: _Rows = (
    (
        "usage",
        "The request is wrong in a way that has no rule of its own.",
        "`--baseline` together with `--write-baseline`",
    ),
    (
        "unknown-name",
        "No installed plugin offers this name: reader, synthesizer, pass, simulator, runtime, ...",
        "`--from jsn`",
    ),
    ("unknown-topology", "There is no network of this name, and no such file.", "`rnig:4`"),
    ("unknown-command", "There is no command of this name.", "`collhub verfy`"),
    ("unknown-option", "The reader, writer or synthesizer has no such option.", "`-O chanels=2`"),
    (
        "option-value",
        "The value of an option has a wrong form or is out of range.",
        "`-O chunks=many`",
    ),
    ("unknown-rule", "No finding has this identifier.", "`collhub explain racee`"),
    ("unknown-runtime", "No runtime of this name is known.", "`--for ncl`"),
    ("unknown-plugin", "No plugin of this name is installed.", "`--disable-plugin mscl`"),
    (
        "unknown-offer",
        "A plugin cannot offer something of this kind.",
        "`collhub plugins new x --offers readr`",
    ),
    (
        "plugin-name",
        "The name of a new plugin is taken, or is no name of a package.",
        "`collhub plugins new 7up`",
    ),
    ("invalid-ranks", "The text is no list of different ranks or NPUs.", "`--ranks 0,0`"),
    ("invalid-subset", "The part of a network has unknown or repeated NPUs.", "`ring:4?npus=0,9`"),
    (
        "npu-range",
        "The NPUs of the ranks are not in the network, or one is named twice.",
        "`--ranks 0-8` on `ring:8`",
    ),
    (
        "root-outside",
        "The root of the collective is no participating NPU.",
        "`--root 9` on `ring:8`",
    ),
    (
        "not-connected",
        "Without the named links, some NPUs have no path between them.",
        "`--without-link 0-1,1-2` on `ring:3`",
    ),
    ("subject", "The pass changes something else.", "a pass of workloads for an algorithm"),
    (
        "no-match",
        "A rule for collectives matches none of the job.",
        "`--collective broadcast=ring` for a job of all-reduces",
    ),
    ("no-size", "The size of the collective is not given.", "`collhub simulate` without `--size`"),
    (
        "no-topology",
        "A network is needed and not given.",
        "`collhub simulate` without `--topology`",
    ),
    (
        "placed",
        "The simulator cannot place the ranks on these NPUs.",
        "ranks on NPUs 0, 2, 4 for a simulator that takes NPUs 0, 1, 2",
    ),
    (
        "no-certificate",
        "The algorithm has no certificate that could be checked.",
        "`collhub verify --certificate` of an algorithm without a bound",
    ),
    (
        "invalid-baseline",
        "The file with accepted findings is missing or has another form.",
        "`--baseline` with a file of another schema",
    ),
)
_OUTPUTS: _Rows = (
    ("output-exists", "The output exists already.", "`-o out` for a folder with files"),
    ("output-is-input", "The output would replace an input.", "`collhub convert a.xml -o a.xml`"),
    ("unwritable-output", "The output cannot be written.", "`-o /proc/out.json`"),
)
_PLUGINS: _Rows = (
    (
        "plugin",
        "A plugin, or a program that it needs, is missing, broken or incompatible.",
        "an executor whose library is not installed",
    ),
    ("no-such-plugin", "No plugin of this name is installed.", "`collhub plugins show mscl`"),
    ("name-clash", "Two plugins offer the same name.", "two readers with the name `msccl-xml`"),
    (
        "skipped-plugin",
        "The plugin is skipped, because its import stopped an earlier start of the program.",
        "a plugin whose library crashes",
    ),
    ("no-pip", "This Python has no pip, which installs plugins.", "an environment of uv"),
    ("pip", "The installation of a plugin by pip failed.", "a distribution without a wheel"),
)
_LIMITS: _Rows = (
    (
        "collective-unsupported",
        "The synthesizer or the runtime has no such collective.",
        "`collhub synthesize bruck --collective broadcast`",
    ),
    (
        "limit-reached",
        "The synthesis or search reached its limit of work before any result.",
        "`-O work=1`",
    ),
    (
        "disconnected",
        "The network has no path between two NPUs.",
        "a document with two separate rings",
    ),
    (
        "schedule-acausal",
        "A schedule sends a chunk before it has arrived.",
        "a send at time 0 of a chunk that arrives at 1 us",
    ),
    (
        "algorithm-does-not-fit",
        "The algorithm is of another collective, or needs other ranks than the collective has.",
        "an algorithm of 8 ranks for a group of 4",
    ),
)
_RESULTS = (
    (
        "lossy",
        "The conversion loses a feature of the input.",
        "The target format cannot express it.",
        "Choose another format, or accept the loss: `--strict` refuses it.",
        "lanes in a format without thread blocks",
    ),
    (
        "bound-beaten",
        "A time is below a lower bound, so that one of them is wrong.",
        "The algorithm is incorrect, or a bound has a defect.",
        "Verify the algorithm; report the bound if it is correct.",
        "an all-reduce that omits half of the data",
    ),
)


def list_request_rules() -> Sequence[Rule]:
    """Return the rules of requests, by class."""
    return [
        *declare_similar_rules(
            "requests: arguments and options",
            _ARGUMENTS,
            cause="An argument is mistyped, missing, or does not fit the input.",
            cure="Correct it according to the message; `--help` lists arguments and options.",
        ),
        *declare_similar_rules(
            "requests: outputs",
            _OUTPUTS,
            cause="The place of the output is taken or protected.",
            cure="Choose another place, or overwrite with `--force`.",
        ),
        *declare_similar_rules(
            "requests: plugins",
            _PLUGINS,
            cause="A distribution is missing, in another version, or has a defect.",
            cure="Install or remove the distribution that is named; `collhub doctor` checks it.",
        ),
        *declare_similar_rules(
            "requests: algorithms and schedules",
            _LIMITS,
            cause="Collective, network, size and algorithm do not fit each other.",
            cure="Change the one that the message names.",
        ),
        *declare_rules("results of conversions and simulations", _RESULTS),
    ]
