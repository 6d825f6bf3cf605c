"""Why a hospital refuses a step of a secure summation: a fixed list, so that no text can carry data out."""

from __future__ import annotations

from enum import Enum

from pate_fed.errors import IntegrityError


class SumRefusal(Enum):
    """The reasons, each with the sentence that the coordinator and the user read."""

    VERSION = "the message is of another version of secure summation than this hospital's program"
    MALFORMED = "the message is malformed"
    COORDINATOR = "the message is not signed by the coordinator that this hospital knows"
    STUDY = "the message is about another study"
    ROSTER_SMALL = "the roster has fewer hospitals than this hospital demands"
    ROSTER_SELF = "the roster does not hold this hospital with its own keys"
    ROSTER_MEMBER = "a member of the roster is not signed by itself, or listed twice"
    CONFIRMED = "too few of the roster's hospitals are confirmed here by telephone, or one has another key"
    ROSTER_CHANGED = "another roster is pinned for this study"
    ROSTER_STALE = "the message names a roster that is not the pinned one"
    THRESHOLD = "the roster's threshold is lower than this hospital demands"
    BATCH_REPEATED = "a batch with this number or this digest was opened before"
    BATCH_UNKNOWN = "the batch was never opened"
    BATCH_CHANGED = "the batch was opened under another digest"
    BATCH_VOID = "the batch is void since the coordinator broke the protocol in it"
    REPEATED = "the same message was answered before"
    OUT_OF_ORDER = "a step of the batch is missing before this one"
    EQUIVOCATION = "another request for this step of the batch was answered before"
    SHARERS = "the sharing hospitals are too few, unknown, or without this hospital"
    ATTEMPT = "that attempt at the batch was given up before"
    PROOF = "nothing shows that a hospital broke the protocol in the attempt before"
    DEALT = "the shares that are passed on are not those that hospitals have signed"
    SURVIVORS = "the survivors are too few, no sharing hospitals, or without this hospital"
    CONSENT = "too few survivors have signed the set of survivors, or a signature is not theirs"
    UNMASKED = "the batch was unmasked before"
    FAULT = "a fault at the hospital; its own log has the details"


class RefusedError(IntegrityError):
    """A message was refused; `reason` is what the other side may be told, the text is for one's own log."""

    def __init__(self, reason: SumRefusal, detail: str = "") -> None:
        super().__init__(f"{reason.value} ({detail})" if detail else reason.value)
        self.reason = reason
