"""Remember the resources of algorithms, because comparisons fit equal algorithms repeatedly.

A synthesizer often returns the same steps for several sizes, and a portfolio those of its members.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Hashable

from hub_core.model import COLUMN_DTYPES, Algorithm, InputError
from hub_core.plugin_api import RuntimeFit

# A result has less than a kilobyte.
_MAX_RESULTS = 512


class KnownFits:
    """Resources, or the error, by the content of an algorithm; at most 512, the latest used ones.

    Algorithms of a custom collective, of uneven counts, or with an extension of MSCCL files are not
    remembered.
    """

    def __init__(self) -> None:
        self._results: OrderedDict[Hashable, RuntimeFit | InputError] = OrderedDict()

    def find(
        self, algorithm: Algorithm, conditions: Hashable, measure: Callable[[], RuntimeFit]
    ) -> RuntimeFit:
        """Return the result of `measure()`, which is called only if it is not known.

        `conditions`: values on which the result depends, besides the algorithm. An `InputError` of
        `measure` is remembered too, and raised again. Other errors are not remembered.

        The last `_MAX_RESULTS` used results are kept. For an algorithm without a digest
        (`_compute_digest`: a custom contract, counts per rank, or an extension `msccl`), `measure`
        is called every time and nothing is remembered.
        """
        digest = _compute_digest(algorithm)
        if digest is None:
            return measure()
        key = digest, conditions
        result = self._results.get(key)
        if result is None:
            try:
                result = measure()
            except InputError as error:
                result = error.with_traceback(None)
            self._results[key] = result
            if len(self._results) > _MAX_RESULTS:
                self._results.popitem(last=False)
        self._results.move_to_end(key)
        if isinstance(result, InputError):
            raise result
        return result


def _compute_digest(algorithm: Algorithm) -> bytes | None:
    """Return a SHA-256 digest of everything that the resources of an algorithm depend on.

    Equal digests mean equal programs. The digest covers:

    - the collective: kind, ranks, units, root, modes and reduction
    - the name of the source file, and the units of SCRATCH of each rank
    - all columns and dependencies of the steps, without the durations

    Returns None for an algorithm that must not be remembered: with a custom contract, with
    counts per rank, or with an extension `msccl`.
    """
    collective, steps = algorithm.collective, algorithm.steps
    is_custom = collective.contract is not None or collective.counts is not None
    if is_custom or "msccl" in algorithm.extensions:
        return None
    content = hashlib.sha256()
    values = (
        collective.kind,
        collective.num_ranks,
        collective.unit_count,
        collective.root,
        collective.in_place,
        collective.out_of_place,
        collective.reduce_op,
        algorithm.provenance.source_name,
    )
    content.update(repr(values).encode())
    # Programs have no durations.
    names = [name for name in COLUMN_DTYPES if name != "duration_ns"]
    names += ["data_indptr", "data_indices", "control_indptr", "control_indices"]
    for column in (*(getattr(steps, name) for name in names), algorithm.scratch_units):
        content.update(len(column).to_bytes(8, "little"))
        content.update(column.tobytes())
    return content.digest()
