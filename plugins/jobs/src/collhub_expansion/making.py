"""Make the algorithms of collectives: each one once, and its nodes once for every size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import prod

import numpy as np
from collhub_templates import Template, marker, template_of

from collhub_expansion.blocks import spread
from collhub_expansion.composed import Phase, PhaseSteps, composed
from collhub_expansion.native import (
    NATIVE_KINDS,
    NativePhase,
    NativeSystem,
    native_choice,
    native_phases,
    tree_root,
)
from hub_core import NATIVE, CollectiveRule, HubError, InputError, Registry, synthesize
from hub_core.model import Algorithm, Collective, CollectiveKind, NodeKind, format_bytes
from hub_core.network import GroupNetwork, Topology, group_network
from hub_core.plugin_api import Synthesizer

# A step a unit, and a unit a rank: more would take longer than all else.
_MOST_JUDGED = 256


@dataclass(frozen=True, slots=True)
class Wanted:
    """A collective, or a piece of one, that needs an algorithm.

    `size`: bytes that its workload states. `members`: ranks in the order of the group. `root`: a
    position. `turn`: which one of its kind among all ranks it is.
    """

    kind: CollectiveKind
    size: int
    members: tuple[int, ...]
    root: int
    turn: int

    @property
    def full_bytes(self) -> int:
        """Bytes of the full buffer of its algorithm."""
        # Jobs count what a rank puts in, algorithms the whole.
        parts = len(self.members) if self.kind.traits.input_is_part else 1
        return self.size * parts


@dataclass(frozen=True, slots=True)
class Made:
    """An algorithm by the name of its maker, for collectives of a kind, ranks and bytes."""

    maker: str
    kind: CollectiveKind
    num_ranks: int
    size: int
    steps: int


class Maker:
    """Makes algorithms by rules; `templates` and `made` grow by one for each that is new."""

    def __init__(
        self,
        topology: Topology,
        system: NativeSystem,
        num_ranks: int,
        registry: Registry,
        *,
        read: Callable[[str], Algorithm],
        admit: Callable[[Algorithm, str], object],
    ) -> None:
        """For a job of so many ranks; `read`: an algorithm by the name of its file, judged.

        `admit`: judges an algorithm that is called by the text; raises `InputError`.
        """
        self._topology, self._system, self._registry = topology, system, registry
        self._read, self._admit = read, admit
        self._num_ranks = num_ranks
        self.templates: list[Template] = []
        self.made: list[Made] = []
        self._numbers: dict[Hashable, int] = {}
        self._places: dict[tuple[int, ...], GroupNetwork] = {}
        self._files: dict[str, Algorithm] = {}
        self._turns: Counter[tuple[CollectiveKind, int]] = Counter()
        # By template of a phase: its identity apart from bytes, its algorithm and its NPUs.
        self._judged: dict[int, tuple[Hashable, tuple[Algorithm, tuple[int, ...]]]] = {}
        self._series: set[Hashable] = set()

    def template(self, rule: CollectiveRule, wanted: Wanted) -> int:
        """The number of the template of a collective. Raises `HubError`, naming the rule."""
        return self._placed(
            f"--collective {rule.text}", wanted, lambda: self._template(rule, wanted)
        )

    def own(self, index: int, algorithm: Algorithm, wanted: Wanted) -> int:
        """The number of the template of an algorithm that the job names. Raises `HubError`."""
        name = f"algorithm {index} of the job"
        return self._placed(name, wanted, lambda: self._own(name, algorithm, wanted))

    def _placed(self, chosen: str, wanted: Wanted, make: Callable[[], int]) -> int:
        """What `make` returns; its errors say for which collective, and what was chosen."""
        # Alone, a rank has nothing to exchange.
        if len(wanted.members) == 1:
            return self._numbered(("nothing",), lambda: (_nothing(wanted), marker(1)))
        with _named(chosen, wanted):
            return make()

    def streams(
        self, rule: CollectiveRule, whole: Wanted, sizes: Sequence[int], mask: int
    ) -> list[list[Phase]]:
        """The phases of native streams of these bytes; none where the rule wants no such.

        `mask`: the dimensions that take part. Raises `HubError`, naming the rule.
        """
        is_native = rule.algorithm == NATIVE and not rule.options and self._system.is_stated
        # Smaller groups know no dimensions.
        is_of_all = 1 < len(whole.members) == self._num_ranks
        is_custom = whole.kind in self._system.custom
        is_known = whole.kind in NATIVE_KINDS
        if not is_known or is_custom:
            return []
        if not (is_native and is_of_all):
            return []
        with _named(f"--collective {rule.text}", whole):
            return [self._stream(replace(whole, size=size), mask) for size in sizes]

    def _stream(self, wanted: Wanted, mask: int) -> list[Phase]:
        sizes = [dimension.size for dimension in self._topology.dimensions]
        if prod(sizes) != self._num_ranks:
            # ASTRA-sim knows no other networks than regular ones.
            sizes = [self._num_ranks]
        found = native_phases(self._system, wanted.kind, wanted.size, sizes, mask)
        phases = [self._phase(phase, wanted) for phase in found]
        self._judge(wanted.kind, found, phases)
        return phases

    def _judge(
        self, kind: CollectiveKind, found: Sequence[NativePhase], phases: Sequence[Phase]
    ) -> None:
        """Have the phases judged as one algorithm, once for every series of algorithms.

        Of more than 256 ranks only the phases themselves are, each for its own.
        """
        named = tuple((one.kind, one.level, self._judged[phase.template][0])
                      for one, phase in zip(found, phases, strict=True))  # fmt: skip
        ranks = prod({one.level: one.ranks for one in found}.values())
        if len(phases) == 1 or ranks > _MOST_JUDGED or (kind, named) in self._series:
            return
        self._series.add((kind, named))
        steps = [
            PhaseSteps(one.kind, one.level, *self._judged[phase.template][1])
            for one, phase in zip(found, phases, strict=True)
        ]
        self._admit(composed(kind, steps), f"native phases ({kind}, {ranks} ranks)")

    def _phase(self, phase: NativePhase, whole: Wanted) -> Phase:
        """A phase with the number of its template, of all ranks."""
        members = tuple(rank * phase.stride for rank in range(phase.ranks))
        wanted = Wanted(phase.kind, phase.size, members, -1, 0)
        name, options = phase.choice.synthesizer, phase.choice.options
        if phase.choice.alternates:
            # ASTRA-sim makes its two trees in turn, by collective and dimension.
            turn = self._turns[whole.kind, phase.level]
            self._turns[whole.kind, phase.level] += 1
            options = {**options, "root": tree_root(turn)}

        def make() -> tuple[Made, Template]:
            place = self._place(members)
            algorithm = self._admitted(name, options, wanted, place)
            self._judged[len(self.templates)] = (asked, phase.ranks), (algorithm, place.npus)
            template = template_of(algorithm, place.npus, wanted.full_bytes)
            return _made(name, wanted, algorithm), spread(template, whole.members, phase.stride)

        asked = name, *sorted(options.items())
        key: Hashable = "phase", asked, phase.kind, phase.size, members, whole.members
        number = self._numbered(key, make)
        time_ns = self._rough_ns(self.templates[number], phase.level)
        return Phase(number, phase.level, time_ns)

    def _rough_ns(self, template: Template, level: int) -> int:
        """The time of a phase as if a rank sent one message after the other."""
        if not self._topology.dimensions:
            return 1
        dimension = self._topology.dimensions[level]
        own = slice(int(template.first[0]), int(template.first[1]))
        sent = template.bytes[own][template.kind[own] == NodeKind.SEND]
        waited_ns = int(np.maximum(template.duration_ns[own], 0).sum())
        seconds = sent.sum() / dimension.bandwidth_bytes_per_s + len(sent) * dimension.latency_s
        return waited_ns + int(seconds * 1e9)

    def _template(self, rule: CollectiveRule, wanted: Wanted) -> int:
        maker, options = rule.algorithm, rule.options
        if maker == NATIVE:
            # A folder may state an algorithm for a kind itself.
            if wanted.kind in self._system.custom and not options:
                algorithm = self._system.custom[wanted.kind]
                return self._own("the job's own", algorithm, wanted)
            maker, options = self._native(wanted, options.get("algorithm"))
        if maker not in self._synthesizers():
            return self._given(maker, self._file(maker), wanted, wanted.full_bytes)
        # Groups whose networks are equal share what is made.
        size, place = wanted.full_bytes, self._place(wanted.members)
        asked = maker, *sorted(options.items())
        key = asked, wanted.kind, size, len(wanted.members), wanted.root, place.identity
        return self._numbered(key, lambda: self._synthesized(maker, options, wanted, place))

    def _numbered(self, key: Hashable, make: Callable[[], tuple[Made, Template]]) -> int:
        """The number of the template of this key, made where it is new."""
        if key not in self._numbers:
            made, template = make()
            self._numbers[key] = len(self.templates)
            self.templates.append(template)
            self.made.append(made)
        return self._numbers[key]

    def _native(self, wanted: Wanted, name: str | None) -> tuple[str, Mapping[str, str]]:
        # ASTRA-sim treats groups smaller than the job in a way of their own.
        is_small = len(wanted.members) < self._num_ranks
        choice = native_choice(self._system, wanted.kind, name, is_small=is_small)
        if not choice.alternates:
            return choice.synthesizer, choice.options
        return choice.synthesizer, {**choice.options, "root": tree_root(wanted.turn)}

    def _synthesizers(self) -> set[str]:
        # All other names are files.
        return {provided.name for provided in self._registry.all(Synthesizer)}

    def _file(self, name: str) -> Algorithm:
        """The algorithm of a file. Raises `UsageError` for a misspelt synthesizer."""
        if name not in self._files:
            try:
                self._files[name] = self._read(name)
            except HubError:
                if not {"/", "."} & set(name):
                    self._registry.find(Synthesizer, name)
                raise
        return self._files[name]

    def _own(self, name: str, algorithm: Algorithm, wanted: Wanted) -> int:
        """The template of an algorithm that came with the job."""
        size = wanted.full_bytes
        if not algorithm.has_contents:
            # Messages have the bytes of the trace, whatever the job states, as in ASTRA-sim.
            size = algorithm.collective_bytes or size
        return self._given(name, algorithm, wanted, size)

    def _given(self, name: str, algorithm: Algorithm, wanted: Wanted, size: int) -> int:
        """The template of an algorithm that is at hand, which has to fit, for so many bytes."""
        _check_fit(algorithm, wanted, size)
        # Its ranks are the positions in the group.
        ranks = range(algorithm.num_ranks)
        return self._numbered(
            (name, wanted.kind, size, wanted.root),
            lambda: (_made(name, wanted, algorithm), template_of(algorithm, ranks, size)),
        )

    def _place(self, members: tuple[int, ...]) -> GroupNetwork:
        """Where a group stands; equal networks are one, whichever ranks they join."""
        if members not in self._places:
            self._places[members] = group_network(self._topology, members)
        # Subsets of a large network are slow to make.
        return self._places[members]

    def _synthesized(
        self, maker: str, options: Mapping[str, str], wanted: Wanted, place: GroupNetwork
    ) -> tuple[Made, Template]:
        algorithm = self._admitted(maker, options, wanted, place)
        nodes = template_of(algorithm, place.npus, wanted.full_bytes)
        return _made(maker, wanted, algorithm), nodes

    def _admitted(
        self, maker: str, options: Mapping[str, str], wanted: Wanted, place: GroupNetwork
    ) -> Algorithm:
        """What a synthesizer makes, judged."""
        algorithm = self._called(maker, options, wanted, place)
        ranks = len(wanted.members)
        # A plugin's word is not enough.
        name = f"{maker} ({wanted.kind}, {ranks} ranks)"
        self._admit(algorithm, name)
        return algorithm

    def _called(
        self, name: str, options: Mapping[str, str], wanted: Wanted, place: GroupNetwork
    ) -> Algorithm:
        """What a synthesizer makes."""
        ranks = len(wanted.members)
        kind = wanted.kind
        collective = Collective(
            kind,
            ranks,
            kind.traits.parts(ranks),
            root=max(wanted.root, 0) if kind.traits.is_rooted else None,
            in_place=True,
        )
        return synthesize(
            collective,
            place.topology,
            wanted.full_bytes,
            name=name,
            options=options,
            npus=place.npus,
            registry=self._registry,
        ).algorithm


@contextmanager
def _named(chosen: str, wanted: Wanted) -> Iterator[None]:
    """Errors inside say for which collective, and what was chosen."""
    try:
        yield
    except HubError as error:
        size = format_bytes(wanted.size)
        # A rule may be for many collectives, of which one alone is wrong.
        place = f"{wanted.kind} of {size} on {len(wanted.members)} ranks"
        found = [
            replace(one, message=f"{chosen}: {place}: {one.message}") for one in error.diagnostics
        ]
        raise type(error)(found) from None


def _nothing(wanted: Wanted) -> Made:
    # A group of one has nobody to send to.
    return Made("nothing", wanted.kind, 1, wanted.size, 0)


def _made(name: str, wanted: Wanted, algorithm: Algorithm) -> Made:
    return Made(name, wanted.kind, len(wanted.members), wanted.size, len(algorithm.steps))


def _check_fit(algorithm: Algorithm, wanted: Wanted, size: int) -> None:
    """Raise `InputError` for an algorithm of another kind, number of ranks, root or size."""
    collective = algorithm.collective
    if collective.num_ranks != len(wanted.members):
        wrong = f"it is for {collective.num_ranks} ranks"
    elif collective.kind not in (wanted.kind, CollectiveKind.CUSTOM):
        wrong = f"it is an algorithm of {collective.kind}"
    elif wanted.root >= 0 and collective.root not in (None, wanted.root):
        wrong = f"its root is rank {collective.root}, not {wanted.root}"
    elif not algorithm.has_contents and algorithm.collective_bytes != size:
        stated = algorithm.collective_bytes or 0
        wrong = f"it is a trace of {format_bytes(stated)}, whose sizes cannot be changed"
    else:
        return
    cure = "name another algorithm, or narrow the rule by @SIZE or /GROUP"
    raise InputError(wrong, cure=cure, code="algorithm-does-not-fit")
