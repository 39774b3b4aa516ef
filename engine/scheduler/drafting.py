"""Whether to draft, and how far: nobody pays for a drafter that does not help.

The choices are numbers of Markov steps: 0 drafts nothing, the largest drafts the whole block, numbers between them
draft its first tokens only. Decisions rest on older blocks, request counts and times, never on the block in question.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

_MARGIN = 0.003  # of throughput by which another choice has to be ahead
_PATIENCE = 0.5  # rounds' worth of throughput that it has to be ahead by in sum
_EXPLORATION = 0.004  # of the time that may go into drafting for information alone
_LEAST_PRICE = 0.25  # of a probe's time: a probed block is verified, and pays back what it is worth
_DEBT = 4.0  # probes that a change of the load may take in advance
_SAME_LOAD = 1.25  # ratio of request counts up to which an old probe speaks for the present


class DraftSwitch:
    """A state machine over the choices, fed with each one's estimated throughput once a round.

    It leaves a choice when the best other one has been ahead for long enough: advantages beyond a margin are added up,
    and noise about zero never adds up. While it drafts less than whole blocks, now and then it drafts a whole one to
    see what that would bring. Such probes are paid from an account that grows by a fixed share of the time that
    passes. A mistaken return to drafting is charged to it too, with what it is estimated to have cost; so all of it
    together stays below that share but for a constant. A changed number of requests may overdraw the account by a few
    probes.
    """

    def __init__(self, step_options: tuple[int, ...]) -> None:
        """step_options: ascending, above 0; the last is the whole block."""
        self.steps = step_options[-1]
        self._full = step_options[-1]
        self._ahead = dict.fromkeys((0, *step_options), 0.0)
        self._account_s = 0.0
        self._probed_requests = 0

    def decide(self, throughput: Mapping[int, float], *, num_requests: int, round_s: float, probe_s: float) -> int:
        """Markov steps of the next block.

        Args:
            throughput: tokens a second of each choice, estimated.
            round_s: seconds that this round takes.
            probe_s: what a whole block takes beyond what the present choice drafts anyway.
        """
        self._compare(throughput)
        if self.steps == self._full:
            self._probed_requests = num_requests
        loss = max(1 - throughput[self.steps] / throughput[0], 0.0)
        self._account_s = min(self._account_s + (_EXPLORATION - loss) * round_s, _DEBT * probe_s)
        if self.steps == self._full:
            return self.steps
        loss = max(1 - throughput[self._full] / throughput[self.steps], 0.0)
        price_s = min(max(loss * (round_s + probe_s), _LEAST_PRICE * probe_s), probe_s)
        if not self._probes(num_requests, price_s):
            return self.steps
        self._account_s -= price_s
        self._probed_requests = num_requests
        return self._full

    def _compare(self, throughput: Mapping[int, float]) -> None:
        present = throughput[self.steps]
        for steps in self._ahead:
            advantage = math.log(throughput[steps] / present) - _MARGIN
            self._ahead[steps] = max(self._ahead[steps] + advantage, 0.0)
        best = max(self._ahead, key=self._ahead.__getitem__)
        if self._ahead[best] > _PATIENCE:
            self.steps = best
            self._ahead = dict.fromkeys(self._ahead, 0.0)

    def _probes(self, num_requests: int, price_s: float) -> bool:
        if self._account_s >= price_s:
            return True
        ratio = num_requests / max(self._probed_requests, 1)
        return not 1 / _SAME_LOAD <= ratio <= _SAME_LOAD and self._account_s > -_DEBT * price_s
