"""Counts of uneven exchanges from tables in files, and from generators with a seed.

Generators model the dispatch of a mixture of experts: ranks send tokens to the ranks of their
experts, and popular experts receive more of them (Zipf's law).
"""

from __future__ import annotations

import csv
import io
import json
from dataclasses import dataclass

import numpy as np

from hub_core.columns import Float64Array, Int64Array
from hub_core.model.counts import UnitCounts
from hub_core.model.diagnostics import InputError, UsageError
from hub_core.model.kinds import COUNTS_HELP, CollectiveKind

# Units that a rank sends with `zipf`, and tokens of a rank with `experts`, unless given.
_DEFAULT_UNITS = 4096
_MAX_DRAWN = 1 << 26
_MAX_EXPERTS = 1 << 16
# Valid first values of generators, for errors.
_EXAMPLES = {"shift": "1", "zipf": "1.2", "experts": "64"}


@dataclass(frozen=True, slots=True, eq=False)
class LayerCounts:
    """Tokens of a layer with experts.

    `per_rank`, `per_node`: copies from every rank to every rank and node, int64[ranks, places];
    `computed`: pairs of token and expert that every rank computes, int64[ranks].
    """

    per_rank: Int64Array
    per_node: Int64Array
    computed: Int64Array


@dataclass(frozen=True, slots=True)
class TokenRouting:
    """Parameters of a random assignment of tokens to experts.

    `experts`: their number, a multiple of the number of ranks; expert e is on rank e * ranks //
    experts. `top`: different experts of each token. `tokens`: tokens of each rank. `skew`: exponent
    of Zipf's law; 0 for equally popular experts. `replicas`: number of the most popular experts
    that every rank has a copy of; their tokens stay on their rank.
    """

    experts: int
    top: int = 8
    tokens: int = _DEFAULT_UNITS
    skew: float = 1.0
    seed: int = 0
    replicas: int = 0

    def draw(self, num_ranks: int) -> list[Int64Array]:
        """Draw the experts of every token: per rank an array int64[tokens, top] of expert numbers.

        The k-th of all popularities is k^-skew, k from 1. They are assigned to the experts in
        random order, equally for all ranks. Each token gets `top` different experts: those with
        the largest sums of a random Gumbel number and the logarithm of their popularity. So they
        are drawn without repetition in proportion to popularity. Their order within a token is
        arbitrary. Equal parameters and numbers of ranks give the same result. Raises `ValueError`
        if `top` is above `experts`.
        """
        generator = np.random.default_rng(self.seed)
        popularity = np.arange(1, self.experts + 1, dtype=np.float64) ** -self.skew
        popularity = popularity[generator.permutation(self.experts)]
        chosen = []
        for _ in range(num_ranks):
            noise = generator.gumbel(size=(self.tokens, self.experts))
            scores = np.log(popularity) + noise
            chosen.append(np.argpartition(-scores, self.top - 1, axis=1)[:, : self.top])
        return chosen

    def count_tokens(self, num_ranks: int) -> Int64Array:
        """Return the tokens of every rank for every expert: int64[ranks, experts]."""
        return self._count_by_expert(self.draw(num_ranks))

    def _count_by_expert(self, chosen: list[Int64Array]) -> Int64Array:
        return np.stack(
            [np.bincount(experts.ravel(), minlength=self.experts) for experts in chosen]
        )

    def _find_replicated(self, table: Int64Array) -> Int64Array:
        """Return the experts with the most tokens of all ranks that every rank has a copy of."""
        return np.argsort(-table.sum(axis=0), kind="stable")[: self.replicas]

    def count_layer(self, num_ranks: int, num_nodes: int) -> LayerCounts:
        """Count the copies of tokens that ranks and nodes receive, and the work of every rank.

        Tokens and experts are those of `draw`, so that equal calls give equal results. Rank r
        has the experts of the r-th of `num_ranks` equal ranges of expert numbers; node m has
        those of the m-th of `num_nodes` equal ranges. `num_ranks` must divide the number of
        experts (otherwise `ValueError`). `num_nodes` should divide `num_ranks`, which is not
        checked; a node then consists of consecutive ranks.

        `per_rank[s, t]` (int64[ranks, ranks]) is the number of tokens of rank s with at least
        one expert on rank t. `per_node[s, m]` (int64[ranks, nodes]) is the same for node m. A
        token with several experts on one rank or node is one copy there. Copies from a rank to
        itself or to its node are included. Replicated experts (those with the most tokens of
        all ranks) give no copies.

        `computed` (int64[ranks]) is the number of (token, expert) pairs that a rank computes. A
        pair with a replicated expert is computed on the rank of the token, any other pair on
        the rank of the expert.
        """
        chosen = self.draw(num_ranks)
        table = self._count_by_expert(chosen)
        is_replicated = np.zeros(self.experts, np.bool_)
        is_replicated[self._find_replicated(table)] = True
        copies = []
        for places in (num_ranks, num_nodes):
            # The last place is that of experts which every rank has.
            place = np.where(
                is_replicated, places, np.arange(self.experts) * places // self.experts
            )
            counts = np.zeros((num_ranks, places + 1), np.int64)
            for rank, experts in enumerate(chosen):
                is_needed = np.zeros((self.tokens, places + 1), np.bool_)
                is_needed[np.arange(self.tokens)[:, None], place[experts]] = True
                counts[rank] = is_needed.sum(axis=0)
            copies.append(counts[:, :places])
        local = table[:, is_replicated].sum(axis=1)
        owned = np.where(is_replicated, 0, table.sum(axis=0))
        computed = owned.reshape(num_ranks, -1).sum(axis=1) + local
        return LayerCounts(copies[0], copies[1], computed)

    def count_units(self, num_ranks: int) -> Int64Array:
        """Return the tokens that every rank sends to every rank: int64[ranks, ranks] (from, to).

        A token counts once for each of its experts. Rank r has the r-th of `num_ranks` equal
        ranges of expert numbers; `num_ranks` must divide the number of experts (otherwise
        `ValueError`). The `replicas` experts with the most tokens of all ranks (the lower
        number first if equal) are on every rank, so tokens for them count on the diagonal, as
        do those for other experts of the sender's rank.
        """
        table = self.count_tokens(num_ranks)
        replicated = self._find_replicated(table)
        local = table[:, replicated].sum(axis=1)
        table[:, replicated] = 0
        units: Int64Array = table.reshape(num_ranks, num_ranks, -1).sum(axis=2)
        units[np.diag_indices(num_ranks)] += local
        return units


def parse_counts(text: str, kind: CollectiveKind, num_ranks: int) -> UnitCounts | None:
    """Return the counts of a generator form, or None for any other text, such as a file name.

    The text before the first `:` is the name of the generator. Equal arguments give equal
    counts. The forms, with the limits of their numbers:

    - `uniform[:N]`: N units for every pair or every rank (default 1; 1 to 2^40).
    - `shift:K`: rank r sends one unit to rank (r + K) mod n (1 to n - 1). Only for kinds with
      counts per pair.
    - `zipf:S[,seed=N][,units=U]`: every rank sends U units (default 4096; 1 to 2^40) to random
      ranks, itself included. The receiver at place k of a random order of the ranks, equal for
      all senders, has a probability proportional to k^-S (S from 0 to 16). Default seed: 0.
    - `experts:E[,top=K][,tokens=T][,skew=S][,seed=N][,replicas=R]`: the units of
      `TokenRouting.count_units`; for the numbers see `_parse_routing`.

    For a kind with counts per rank, `zipf` and `experts` give each rank the sum of the units
    that all ranks would send to it.

    Raises `UsageError` (`invalid-counts`) for an unknown key, a missing number, a number
    outside its limits, and `shift` for counts per rank. It is also raised if E is no multiple
    of `num_ranks`. Raises `InputError` (`invalid-counts`) for more than 2^62 units in total.
    """
    name, _, rest = text.partition(":")
    if name not in ("uniform", "shift", "zipf", "experts"):
        return None
    is_per_pair = kind.traits.has_counts_per_pair
    fields = _split_fields(text, name, rest)
    shape = (num_ranks, num_ranks) if is_per_pair else (num_ranks,)
    if name == "uniform":
        units = int(_number(text, fields, "uniform", 1, 1, 1 << 40))
        return UnitCounts.from_table(np.full(shape, units, np.int64), is_per_pair)
    if name == "shift":
        if not is_per_pair:
            raise _usage(text, f"{kind} has counts per rank, shift has counts per pair")
        distance = int(_number(text, fields, "shift", 0, 1, max(1, num_ranks - 1)))
        shifted = np.roll(np.eye(num_ranks, dtype=np.int64), distance, axis=1)
        return UnitCounts.from_table(shifted, is_per_pair)
    if name == "zipf":
        skew = _number(text, fields, "zipf", 0.0, 0.0, 16.0)
        seed = int(_number(text, fields, "seed", 0, 0, 2**63 - 1))
        units = int(_number(text, fields, "units", _DEFAULT_UNITS, 1, 1 << 40))
        generator = np.random.default_rng(seed)
        popularity: Float64Array = np.arange(1, num_ranks + 1, dtype=np.float64) ** -skew
        popularity = popularity[generator.permutation(num_ranks)]
        drawn = generator.multinomial(units, popularity / popularity.sum(), num_ranks)
        table: Int64Array = drawn.astype(np.int64)
    else:
        table = _parse_routing(text, fields, num_ranks).count_units(num_ranks)
    # Per rank, a part has the units that all ranks together send to that rank.
    return UnitCounts.from_table(table if is_per_pair else table.sum(axis=0), is_per_pair)


SIZE_CURE = "give one count per rank that takes part, or choose them with --ranks"
"""Cure of a table for another number of ranks."""


def read_counts(
    content: bytes,
    name: str,
    kind: CollectiveKind,
    num_ranks: int,
    size_cure: str = SIZE_CURE,
) -> UnitCounts:
    """Read the counts of an uneven collective from the content of a JSON or CSV file.

    The text is UTF-8; a byte order mark is ignored. It is JSON if its first character other
    than blanks is `[` or `{`, otherwise CSV. With n = `num_ranks`, a kind with counts per
    pair has n lists (lines) of n integers: list i has the units that rank i sends to each
    rank. A kind with counts per rank has one list (line) of n integers; in CSV also one
    column of n lines.

    Raises `InputError` (`invalid-counts`) for any other content: an empty file, text in a
    cell, a negative number, one of more than 4300 digits, counts whose sum is not in 1 to
    2^62. The message has the file `name`, and the position of a single wrong value. A valid
    table of another number of ranks raises it with the cure `size_cure`.
    """
    is_per_pair = kind.traits.has_counts_per_pair
    try:
        text = content.decode("utf-8-sig")
        starts_list = text.lstrip()[:1] in ("[", "{")
        table: object = json.loads(text) if starts_list else _parse_csv(text, name)
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError, csv.Error) as error:
        raise InputError(
            f"{name}: neither a JSON list nor CSV lines of integers: {error}",
            cure="write one line of integers per sender, separated by commas",
            code="invalid-counts",
        ) from None
    except ValueError:
        # The only remaining cause is an integer with more digits than Python converts.
        raise InputError(
            f"{name}: an integer has too many digits, expected units of 0..2^62",
            cure="give counts in larger units",
            code="invalid-counts",
        ) from None
    if isinstance(table, list) and not is_per_pair and not starts_list:
        table = table[0] if len(table) == 1 else [row[0] if len(row) == 1 else row for row in table]
    counts = UnitCounts.from_table(table, is_per_pair, name)
    if counts.num_ranks != num_ranks:
        raise InputError(
            f"{name}: the table is for {counts.num_ranks} ranks, expected {num_ranks}",
            cure=size_cure,
            code="invalid-counts",
        )
    return counts


def _parse_csv(text: str, name: str) -> list[list[object]]:
    """Return the integers of every line of comma-separated cells, as one list per line.

    Lines without cells, or with only blank cells, are left out. Cells may have quotes, a sign and
    blanks around the integer; the range is not checked. An empty text gives an empty list.

    Raises `InputError` (`invalid-counts`) at the first other cell, such as an empty cell next to a
    filled one (`1,,2`), `1_0`, digits other than 0-9, or more digits than Python converts. The
    message has `name` (of the file), line and column, both from 1. Empty lines count; a quoted cell
    with line breaks counts as one line. `csv.Error` passes through.
    """
    rows: list[list[object]] = []
    for line, cells in enumerate(csv.reader(io.StringIO(text)), 1):
        if not any(cell.strip() for cell in cells):
            continue
        row: list[object] = []
        for column, cell in enumerate(cells, 1):
            try:
                # Python also converts `1_0`, and digits of all scripts.
                if "_" in cell or not cell.strip().isascii():
                    raise ValueError
                row.append(int(cell))
            except ValueError:
                # Python converts no integer of thousands of digits.
                is_long = cell.isascii() and cell.strip().lstrip("+-").isdecimal()
                defect = "has too many digits" if is_long else "is no integer"
                raise InputError(
                    f"{name}:{line}: column {column}: {cell[:40]!r} {defect}, expected units of 0"
                    " or more",
                    cure="write integers only, without a line of titles",
                    code="invalid-counts",
                ) from None
        rows.append(row)
    return rows


def _split_fields(text: str, name: str, rest: str) -> dict[str, str]:
    """Return the values of a generator form as texts by name; they are not converted here.

    `text`: the complete form, for messages. `name`: the generator (`uniform`, `shift`, `zipf`
    or `experts`). `rest`: the part after the colon. The first value, before the first comma,
    has the name of the generator as key: `zipf` with `1.2,seed=3` gives `{"zipf": "1.2",
    "seed": "3"}`. Further values are KEY=VALUE with blanks around KEY ignored; the last value
    of a repeated key counts. The keys are `seed` and `units` for `zipf`, and `top`, `tokens`,
    `skew`, `seed` and `replicas` for `experts`; others have none.

    `uniform` may omit the first value; its key is then missing. Raises `UsageError`
    (`invalid-counts`) for an entry with another key or without a value, then for a missing
    first value of another generator.
    """
    first, *others = rest.split(",") if rest else [""]
    allowed = {
        "uniform": (),
        "shift": (),
        "zipf": ("seed", "units"),
        "experts": ("top", "tokens", "skew", "seed", "replicas"),
    }[name]
    fields = {name: first} if first else {}
    for entry in others:
        key, _, value = entry.partition("=")
        if key.strip() not in allowed or not value:
            expected = ", ".join(f"{each}=NUMBER" for each in allowed) or "no further values"
            raise _usage(text, f"{entry!r} is not expected, but {expected}")
        fields[key.strip()] = value
    if name != "uniform" and name not in fields:
        raise _usage(text, f"{name} needs a number, as {name}:{_EXAMPLES[name]}")
    return fields


def _number(
    text: str, fields: dict[str, str], name: str, default: float, low: float, high: float
) -> float:
    """Return the number `name` of `fields`, or `default` if it is missing.

    The number is a float for `skew` and `zipf`, otherwise an integer. The default is not checked.
    Raises `UsageError`, which shows the complete form `text`, for a value that is no number and for
    one outside `low`..`high`.
    """
    if name not in fields:
        return default
    is_float = name in ("skew", "zipf")
    try:
        value = float(fields[name]) if is_float else int(fields[name])
    except ValueError:
        raise _usage(text, f"{name} is {fields[name][:40]!r}, expected a number") from None
    if not low <= value <= high:
        raise _usage(text, f"{name} is {fields[name][:40]}, expected {low:g}..{high:g}")
    return value


def _parse_routing(text: str, fields: dict[str, str], num_ranks: int) -> TokenRouting:
    """Return the routing of a form `experts:E,...`, checked for this number of ranks.

    `fields`: numbers of the form as text by name, with E as `experts`. Defaults and limits:

    - `experts`: 1 to 2^16, always in `fields`
    - `top`: by default 8, or E if that is smaller; 1 to E
    - `tokens` of each rank: by default 4096; 1 to 2^24
    - `skew`: by default 1; 0 to 16, the only number that may have a fraction
    - `seed`: by default 0; 0 to 2^63 - 1
    - `replicas`: by default 0; 0 to E

    Raises `UsageError` (`invalid-counts`), which shows `text`, for a value that is no number or
    outside its limits. It is also raised if E is no multiple of `num_ranks`, and if `tokens` *
    E exceeds 2^26.
    """
    experts = int(_number(text, fields, "experts", 0, 1, _MAX_EXPERTS))
    if experts % num_ranks:
        raise _usage(text, f"{experts} experts, expected a multiple of the {num_ranks} ranks")
    routing = TokenRouting(
        experts,
        int(_number(text, fields, "top", min(8, experts), 1, experts)),
        int(_number(text, fields, "tokens", _DEFAULT_UNITS, 1, 1 << 24)),
        _number(text, fields, "skew", 1.0, 0.0, 16.0),
        int(_number(text, fields, "seed", 0, 0, 2**63 - 1)),
        int(_number(text, fields, "replicas", 0, 0, experts)),
    )
    if routing.tokens * routing.experts > _MAX_DRAWN:
        limit = f"expected at most {_MAX_DRAWN} (tokens of a rank times experts)"
        raise _usage(text, f"{routing.tokens} tokens for {experts} experts are too many, {limit}")
    return routing


def _usage(text: str, message: str) -> UsageError:
    cure = f"give {COUNTS_HELP}"
    return UsageError(f"--counts {text[:80]}: {message}", cure=cure, code="invalid-counts")
