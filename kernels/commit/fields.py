"""The columns of what the device keeps of a request, and of what it reports of a round."""

from enum import IntEnum

# Fills a list of stop ids that would be empty; no token has this id.
NO_STOP = -1


class SlotField(IntEnum):
    """Columns of a request's state [S, fields] int64, a row a slot."""

    START = 0  # text position of the anchor
    ANCHOR = 1  # token id
    TOKENS_LEFT = 2  # completion tokens that may still come
    FINISHED = 3  # 1: a stop token came, or the last token that may
    IGNORE_EOS = 4  # 1: stop tokens do not end it


class ResultField(IntEnum):
    """Leading columns of a request's result [R, fields + G] int64; its drafted tokens follow."""

    LENGTH = 0  # drafted tokens that were verified; -1: the request had finished before, or there is none
    ACCEPTED = 1  # drafted tokens that passed
    EMITTED = 2  # tokens that the request got: accepted + 1, or up to a stop token among them
    STOPPED = 3  # 1: the last of them is a stop token
    FINITE = 4  # 0: the target's logits overflowed
    NEXT_TOKEN = 5  # the token behind the accepted ones
