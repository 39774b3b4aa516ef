"""Whether to draft: nobody pays for a drafter that does not help.

Decisions rest on older blocks, request counts and times, never on the block in question.
"""

from __future__ import annotations

import math

_MARGIN = 0.003  # of throughput by which the other choice has to be ahead
_PATIENCE = 0.5  # rounds' worth of throughput that it has to be ahead by in sum
_EXPLORATION = 0.004  # of the time that may go into drafting for information alone
_LEAST_PRICE = 0.25  # of a probe's time: a probed block is verified, and pays back what it is worth
_DEBT = 4.0  # probes that a change of the load may take in advance
_SAME_LOAD = 1.25  # ratio of request counts up to which an old probe speaks for the present


class DraftSwitch:
    """A state machine, on or off, fed once a round with what drafting is estimated to be worth.

    It changes sides when the other one has been ahead for long enough: advantages beyond a margin are added up, and
    noise about zero never adds up. While it is off, now and then it drafts a block to see what that would bring. Such
    probes are paid from an account that grows by a fixed share of the time that passes. A mistaken return to drafting
    is charged to it too, with what it is estimated to have cost; so all of it together stays below that share but for a
    constant. A changed number of requests may overdraw the account by a few probes.
    """

    def __init__(self) -> None:
        self.on = True
        self._ahead = 0.0  # log of throughput, added up over rounds: the other side against the present one
        self._account_s = 0.0
        self._probed_requests = 0

    def decide(self, worth: float, *, num_requests: int, round_s: float, probe_s: float) -> bool:
        """Is the next block drafted?

        Args:
            worth: throughput with drafting / throughput without, estimated.
            round_s: seconds that this round takes without drafting.
            probe_s: what a block would add to them; 0 while blocks are drafted anyway.
        """
        self._compare(worth)
        loss = max(1 - worth, 0.0)
        earned = _EXPLORATION - (loss if self.on else 0.0)
        self._account_s = min(self._account_s + earned * round_s, _DEBT * probe_s)
        if self.on:
            self._probed_requests = num_requests
            return True
        price_s = min(max(loss * (round_s + probe_s), _LEAST_PRICE * probe_s), probe_s)
        if not self._probes(num_requests, price_s):
            return False
        self._account_s -= price_s
        self._probed_requests = num_requests
        return True

    def _compare(self, worth: float) -> None:
        advantage = -math.log(worth) if self.on else math.log(worth)
        self._ahead = max(self._ahead + advantage - _MARGIN, 0.0)
        if self._ahead > _PATIENCE:
            self.on = not self.on
            self._ahead = 0.0

    def _probes(self, num_requests: int, price_s: float) -> bool:
        if self._account_s >= price_s:
            return True
        ratio = num_requests / max(self._probed_requests, 1)
        return not 1 / _SAME_LOAD <= ratio <= _SAME_LOAD and self._account_s > -_DEBT * price_s
