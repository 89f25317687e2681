"""Data of an algorithm that several verifications share, each computed once."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from hub_core.columns import BoolArray
from hub_core.model import Algorithm, Findings, Messages, match_messages
from hub_core.verification.order_graph import OrderGraph
from hub_core.verification.regions import check_regions
from hub_core.verification.step_order import HappensBefore, happens_before


class VerificationInput:
    """An algorithm, its messages, and the order of its steps.

    Shared by both modes of calling and by verifications against several expectations; later work on
    the algorithm can use them too. Errors in messages and regions become findings.
    """

    def __init__(self, algorithm: Algorithm) -> None:
        """Match the messages and check the regions. `algorithm` is stored and never changed."""
        self.algorithm = algorithm
        self._findings = Findings(algorithm.provenance.source_name or None)
        self.messages: Messages = match_messages(algorithm.steps, self._findings)
        self.has_contents = algorithm.has_contents
        # bool[rows]: the regions are within their buffers; all True for timing-only algorithms.
        self.is_valid: BoolArray = np.ones(len(algorithm.steps), np.bool_)
        if self.has_contents:
            self.is_valid = check_regions(algorithm, self._findings)

    @property
    def findings(self) -> Findings:
        """A new copy of the findings on messages and regions, to which the caller adds its own."""
        return self._findings.copy()

    @cached_property
    def relation(self) -> HappensBefore:
        """The happens-before relation: the order of steps in every run."""
        return happens_before(self.algorithm.steps, self.messages)

    @cached_property
    def graph(self) -> OrderGraph:
        """The happens-before relation as a graph for path searches."""
        return OrderGraph(self.algorithm.steps, self.relation)
