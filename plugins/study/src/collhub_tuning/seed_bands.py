"""Comparisons over several seeds: median, minimum and maximum time of every candidate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median_low
from typing import Annotated

from hub_core.model import UsageError, format_bytes, format_time
from hub_core.reports import Count, Meta, Record, Report

HEADER = ("algorithms", "network", "size", "median", "minimum", "maximum", "fastest for")
RIGHT = ("size", "median", "minimum", "maximum", "fastest for")
PLACEHOLDER = "{seed}"
_MAX_SEEDS = 1000
_SEEDED = ("zipf", "experts")


class SeedBand(Record, frozen=True, kw_only=True):
    """Times of one candidate for all seeds."""

    algorithms: Annotated[str, Meta(description="As in the reports of `compare` of one seed.")]
    topology: str
    bytes: Annotated[Count | None, Meta(description="Size of the full buffer; null for jobs.")]
    median_ns: Annotated[
        Count | None, Meta(description="The lower median of the times; null without a time.")
    ]
    minimum_ns: Count | None
    maximum_ns: Count | None
    fastest_for: Annotated[
        Count, Meta(description="Number of seeds for which no other candidate is faster.")
    ]
    times_ns: Annotated[
        Sequence[Count | None], Meta(description="In the order of the seeds; null without a time.")
    ]


class CompareSeedsReport(Report, tag="collhub/report-compare-seeds-1", frozen=True, kw_only=True):
    """Report of `collhub compare --seeds --json`."""

    source: Annotated[
        str, Meta(description="The JOB, or the collective and its counts, with `{seed}`.")
    ]
    seeds: Sequence[Count]
    backend: str
    results: Sequence[SeedBand]


@dataclass(frozen=True, slots=True)
class CandidateAlgorithms:
    """Algorithms on a network, for a size of the full buffer in bytes (None: a job)."""

    algorithms: str
    topology: str
    size: int | None


@dataclass(slots=True)
class SeedTimes:
    """Times in ns of every candidate by seed; None without a time."""

    by_seed: list[Mapping[CandidateAlgorithms, int | None]] = field(default_factory=list)

    def list_bands(self) -> list[SeedBand]:
        """Return one band per candidate (algorithms, topology, size), by first occurrence.

        Seeds are searched in the order of `by_seed`, the candidates of a seed in the order of its
        mapping. `times_ns` has one entry per seed, in the same order; it is None if the seed lacks
        the candidate or its time. The other fields use only the seeds with a time:

        - The median is the lower one: of 3, 5, 7, 9 it is 5. Minimum, maximum and median are in ns,
          and None without any time.
        - `fastest_for` counts the seeds for which no candidate of the same topology and size has a
          shorter time. Candidates with equal times all count.

        Without seeds the list is empty.
        """
        # By seed, the shortest time in ns by (topology, size); pairs without times are missing.
        best: list[dict[tuple[str, int | None], int]] = []
        for of_seed in self.by_seed:
            shortest: dict[tuple[str, int | None], int] = {}
            for candidate, time_ns in of_seed.items():
                place = candidate.topology, candidate.size
                if time_ns is not None:
                    shortest[place] = min(time_ns, shortest.get(place, time_ns))
            best.append(shortest)
        candidates = dict.fromkeys(each for times in self.by_seed for each in times)
        bands = []
        for candidate in candidates:
            times = [by_candidate.get(candidate) for by_candidate in self.by_seed]
            known = [time_ns for time_ns in times if time_ns is not None]
            place = candidate.topology, candidate.size
            wins = sum(
                time_ns is not None and time_ns == shortest[place]
                for time_ns, shortest in zip(times, best, strict=True)
            )
            bands.append(
                SeedBand(
                    algorithms=candidate.algorithms,
                    topology=candidate.topology,
                    bytes=candidate.size,
                    median_ns=median_low(known) if known else None,
                    minimum_ns=min(known, default=None),
                    maximum_ns=max(known, default=None),
                    fastest_for=wins,
                    times_ns=times,
                )
            )
        return bands


def parse_seeds(text: str) -> list[int]:
    """Parse a range such as `0..9` (both included) or a list such as `1,5,7`, and return the seeds.

    The order of the text is kept; `4..4` and `4` give [4]. Numbers are read by `int`, so spaces
    around them are allowed. Raises `UsageError` (with a cure) for:

    - any other text, also empty text, an empty list entry and a step
    - a range whose end is below its begin
    - a negative seed, or a seed that occurs twice
    - more than `_MAX_SEEDS` (1000) seeds
    """
    low, dots, high = text.partition("..")
    seeds: Sequence[int] = ()
    try:
        seeds = range(int(low), int(high) + 1) if dots else [int(s) for s in text.split(",")]
        # A range may have more entries than memory or than `len` can count.
        is_valid = 0 < len(seeds) <= _MAX_SEEDS
    except (ValueError, OverflowError):
        is_valid = False
    if not is_valid or min(seeds) < 0 or len(set(seeds)) < len(seeds):
        message = f"--seeds {text[:40]!r} is no range or list of 1 to {_MAX_SEEDS} different seeds"
        raise UsageError(message, cure="write for example --seeds 0..9 or --seeds 1,5,7")
    return list(seeds)


def seeded_text(option: str, text: str | None, seed: int) -> str:
    """Return the name of a job, or a text of counts, for one seed.

    Every `{seed}` in the text is replaced by the seed. With `--counts`, a text of the generators
    `zipf` and `experts` without `,seed=` gets `,seed=` and the seed appended. Raises `UsageError`
    (`seeds`) for any other text, and for None. `option`: the option of the text, such as
    `--counts`.
    """
    if text is not None and PLACEHOLDER in text:
        return text.replace(PLACEHOLDER, str(seed))
    name = (text or "").partition(":")[0]
    if option == "--counts" and text and name in _SEEDED and ",seed=" not in text:
        return f"{text},seed={seed}"
    message = f"{option} {(text or '')[:60]!r} does not depend on the seed"
    cure = f"write {PLACEHOLDER} in its name" + (
        ", or --counts zipf:1.2 or experts:64" if option == "--counts" else ""
    )
    raise UsageError(message, cure=cure, code="seeds")


def band_rows(bands: Sequence[SeedBand], num_seeds: int) -> list[tuple[str, ...]]:
    """Return one table row per band, in order: algorithms, topology, size, median, minimum,
    maximum, and `K of N` seeds for which the candidate is fastest. A missing size or time is `-`.
    """
    return [
        (
            band.algorithms,
            band.topology,
            "-" if band.bytes is None else format_bytes(band.bytes),
            *(
                "-" if time_ns is None else format_time(time_ns)
                for time_ns in (band.median_ns, band.minimum_ns, band.maximum_ns)
            ),
            f"{band.fastest_for} of {num_seeds}",
        )
        for band in bands
    ]
