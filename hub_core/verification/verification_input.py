"""The columns of an algorithm that all its verifications need, each computed once."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from collhub_columns import BoolArray

from hub_core.model import Algorithm, Findings, Messages, match_messages
from hub_core.verification.order_graph import OrderGraph
from hub_core.verification.regions import check_regions
from hub_core.verification.step_order import HappensBefore, happens_before


class VerificationInput:
    """An algorithm, its messages, and the order of its steps.

    Both modes of calling share them, verifications against several expectations do, and whoever
    works on the algorithm afterwards can. What is wrong with messages and regions becomes findings.
    """

    def __init__(self, algorithm: Algorithm) -> None:
        """Match the messages and check the regions; `algorithm` is kept, and never changed."""
        self.algorithm = algorithm
        self._findings = Findings(algorithm.provenance.source_name or None)
        self.messages: Messages = match_messages(algorithm.steps, self._findings)
        self.has_contents = algorithm.has_contents
        # bool[rows]: the regions of the row lie in their buffers, where the source names any.
        self.is_valid: BoolArray = np.ones(len(algorithm.steps), np.bool_)
        if self.has_contents:
            self.is_valid = check_regions(algorithm, self._findings)

    @property
    def findings(self) -> Findings:
        """A copy of the findings on messages and regions, to be added to."""
        return self._findings.copy()

    @cached_property
    def relation(self) -> HappensBefore:
        """The order that every run obeys."""
        return happens_before(self.algorithm.steps, self.messages)

    @cached_property
    def graph(self) -> OrderGraph:
        """That order in the forms in which paths are searched."""
        return OrderGraph(self.algorithm.steps, self.relation)
