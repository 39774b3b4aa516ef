"""How many tokens to draft, if any: nobody pays for a drafter that does not help, nor for tokens that nobody verifies.

Decisions rest on older blocks, request counts and times, never on the block in question.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

_MARGIN = 0.003  # of throughput by which another choice has to be ahead
_PATIENCE = 0.5  # rounds' worth of throughput that it has to be ahead by in sum
_MOST_ROUNDS = 8  # that one comparison speaks for
_EXPLORATION = 0.004  # of the time that may go into drafting for information alone
_LEAST_PRICE = 0.25  # of a probe's time: a probed block is verified, and pays back what it is worth
_DEBT = 4.0  # probes that a change of the load may take in advance
PROBE_DISTANCE = 16  # rounds between probes of one load: what they cost beyond the estimate is to stay small as well
_SAME_LOAD = 1.25  # ratio of request counts up to which an old probe speaks for the present


def draft_lengths(gamma: int) -> tuple[int, ...]:
    """Tokens of the blocks that rounds choose from: one, half of `gamma`, all of them. Rising."""
    return tuple(sorted({1, gamma // 2, gamma} - {0}))


class DraftChoice:
    """A state machine that stands at one block length, or at none, fed every few rounds with what each is worth.

    It changes to another length when that has been ahead for long enough: advantages beyond a margin are added up, and
    noise about zero never adds up. A block tells what shorter ones would be worth, and nothing of longer ones. So while
    it stands below whole blocks, now and then it drafts one to see what that would bring. Such probes are paid from an
    account that grows by a fixed share of the time that passes. A mistaken stay at a length at which a shorter block,
    or none, would do better is charged to it too, with what it is estimated to cost; so all of it together stays below
    that share but for a constant. Probes of one load are some rounds apart in any case; where the number of requests
    changes, the next one need not wait and may overdraw the account by a few probes.

    Args:
        lengths: tokens of a block, rising; the last is a whole one's, at which it stands at first.
        probe_distance: rounds between two probes of one load, at least.
    """

    def __init__(self, lengths: Sequence[int], *, probe_distance: int = PROBE_DISTANCE) -> None:
        self._lengths = (0, *lengths)
        self._at = len(lengths)
        self._ahead = [0.0] * len(self._lengths)  # log of throughput, added up over rounds: each against the present
        self._account_s = 0.0
        self._probed_requests = 0
        self._probe_distance = probe_distance
        self._rounds_since_probe = 0

    @property
    def steps(self) -> int:
        """Tokens of the blocks that it stands at, probes apart; 0: none are drafted."""
        return self._lengths[self._at]

    def decide(
        self,
        log_worth: Sequence[float],
        *,
        num_requests: int,
        round_s: float,
        draft_s: Sequence[float],
        rounds: int = 1,
    ) -> int:
        """Tokens of the next block, 0 if none is drafted.

        Args:
            log_worth: log of the throughput estimated of no drafting and of each length, in their order.
            round_s: seconds that this round takes without drafting.
            draft_s: what the block adds to them: 0 and each length's.
            rounds: that went by since the last time, this one included.
        """
        self._compare(log_worth, min(rounds, _MOST_ROUNDS))
        self._rounds_since_probe += rounds
        present, at = log_worth[self._at], self._at
        regret = max(1 - math.exp(present - max(log_worth[:at])), 0.0) if at else 0.0
        probe_s = max(draft_s[-1] - draft_s[at], 0.0)
        earned_s = (_EXPLORATION - regret) * round_s * rounds
        self._account_s = min(self._account_s + earned_s, _DEBT * probe_s)
        if at == len(self._lengths) - 1:
            self._probed_requests = num_requests
            return self.steps
        loss = max(1 - math.exp(log_worth[-1] - present), 0.0)
        price_s = min(max(loss * (round_s + draft_s[-1]), _LEAST_PRICE * probe_s), probe_s)
        if not self._probes(num_requests, price_s):
            return self.steps
        self._account_s -= price_s
        self._probed_requests = num_requests
        self._rounds_since_probe = 0
        return self._lengths[-1]

    def _compare(self, log_worth: Sequence[float], rounds: int) -> None:
        present = log_worth[self._at]
        for i, worth in enumerate(log_worth):
            self._ahead[i] = max(self._ahead[i] + rounds * (worth - present - _MARGIN), 0.0)
        most = max(self._ahead)
        if most > _PATIENCE:
            self._at = self._ahead.index(most)
            self._ahead = [0.0] * len(self._ahead)

    def _probes(self, num_requests: int, price_s: float) -> bool:
        if self._account_s >= price_s and self._rounds_since_probe >= self._probe_distance:
            return True
        ratio = num_requests / max(self._probed_requests, 1)
        return not 1 / _SAME_LOAD <= ratio <= _SAME_LOAD and self._account_s > -_DEBT * price_s
