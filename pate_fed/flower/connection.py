"""A hospital's connection to the coordinator: watched through the SuperNode's log, and made again when lost.

Flower's SuperNode prints an error and ends, or lingers; here every case has a sentence, and waiting an end.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from pate_fed.errors import InputError, PateFedError

if TYPE_CHECKING:
    from pate_fed.flower.supernode import SuperNode

_RETRY_S = 3.0
_SLOW_RETRY_S = 60.0  # starting a SuperNode costs two seconds of a core: not all day long
_FINAL_S = 75.0
_ASK_S = 10.0

# What the SuperNode's log says, and what that means to the hospital's user.
_NO_SEAT = "[code: 2004]"  # the one refusal that mends itself, or is mended at the coordinator
_REFUSED = {
    _NO_SEAT: (
        "the coordinator does not admit this hospital's key: it was never admitted or is revoked, or the "
        "last connection with it has not expired yet (up to 20 s)"
    ),
    "[code: 2001]": "the coordinator admits known hospitals only: give --tls-dir",
    # All that Flower says where the coordinator takes no signature of this node: the time is signed too.
    "SuperNode terminated gracefully": (
        "the coordinator does not accept what this hospital signs: this machine's clock is more than 5 "
        "seconds ahead of the coordinator's or 5 minutes behind it (set the clocks), the key was revoked, or "
        "the coordinator has only just started"
    ),
    "handshake": (
        "the coordinator's certificate is not of this study's authority, is not valid by this machine's "
        "clock, or is for another address"
    ),
}


class Connection:
    """One hospital's SuperNode, started again while there is hope.

    `wait_s` is how long the coordinator may be out of reach, or have no seat for this hospital, before the
    hospital gives up. What no waiting mends, such as keys that are not the study's, ends it sooner.
    """

    def __init__(
        self, start: Callable[[], SuperNode], *, report: Callable[[str], None], wait_s: float
    ) -> None:
        self._start, self._report, self._wait_s = start, report, wait_s
        self._lost_since: float | None = time.monotonic()
        self._refused_since: float | None = None
        self._reason = ""
        self._retry_at = self._ask_at = 0.0
        self._ever = self._received = False
        self._sent = 0
        self.node: SuperNode | None = start()

    def watch(self) -> None:
        """Read the SuperNode's log and act on it; call often.

        Raises:
            InputError: the coordinator refuses this hospital, and did for too long.
            PateFedError: the coordinator was out of reach for too long.
        """
        now = time.monotonic()
        if self.node is not None:
            ended = not self.node.running
            for line in self.node.new_lines():
                self._read(line, now)
            if ended:
                self._lose(now)
                self.node.stop()
                refused_s = 0.0 if self._refused_since is None else now - self._refused_since
                self._retry_at = now + min(_SLOW_RETRY_S, max(_RETRY_S, refused_s / 10))
                self.node, self._received = None, False
        elif now >= self._retry_at:
            self.node = self._start()
        self._give_up(now)

    def may_have_request(self) -> bool:
        """Whether to ask the SuperNode for a request: its log told of one, or it was not asked for long.

        Asking costs it and this process more than all else that a hospital does at rest.
        """
        now = time.monotonic()
        if not self._received and now < self._ask_at:
            return False
        self._ask_at = now + _ASK_S
        return self.node is not None

    def note_answered(self) -> None:
        """The request that the log told of is answered; the SuperNode brings one after the other."""
        self._received = False

    def wait_until_sent(self, seconds: float) -> None:
        """Return when the reply in hand has reached the coordinator, at most `seconds` later."""
        before, end = self._sent, time.monotonic() + seconds
        while self._sent == before and self.node is not None and time.monotonic() < end:
            self.watch()
            time.sleep(0.1)

    def stop(self) -> None:
        """End the SuperNode."""
        if self.node is not None:
            self.node.stop()

    def _read(self, line: str, now: float) -> None:
        if "Received successfully" in line:
            self._received = True
        if "Sent successfully" in line:
            self._sent += 1
        if "SuperNode ID:" in line or "Connection successful" in line:
            if self._lost_since is not None:
                self._report(
                    "connected again" if self._ever else "connected; waiting for the coordinator's requests"
                )
            self._lost_since, self._refused_since, self._ever = None, None, True
        elif "Connection attempt failed" in line:
            self._lose(now)
            if self._refused_since is not None:  # it would take this hospital now, but is gone
                self._refused_since = None
                self._report("the coordinator is out of reach; trying again")
        for sign in _REFUSED:
            if sign in line:
                self._refuse(sign, now)

    def _refuse(self, sign: str, now: float) -> None:
        self._lose(now)
        if self._refused_since is None or self._reason != sign:
            self._refused_since, self._reason = now, sign
            most = self._wait_s if sign == _NO_SEAT else min(_FINAL_S, self._wait_s)
            self._report(
                f"refused for now: {_REFUSED[sign]}; trying again for up to {most:.0f} s, Ctrl-C ends it"
            )

    def _lose(self, now: float) -> None:
        if self._lost_since is None:
            self._lost_since = now
            self._report("the coordinator is out of reach; trying again")

    def _give_up(self, now: float) -> None:
        refused_s = 0.0 if self._refused_since is None else now - self._refused_since
        lost_s = 0.0 if self._lost_since is None else now - self._lost_since
        if lost_s > self._wait_s or (self._reason != _NO_SEAT and refused_s > _FINAL_S):
            if self._refused_since is not None:
                raise InputError(_REFUSED[self._reason])
            raise PateFedError(f"the coordinator was out of reach for {self._wait_s:.0f} s (--wait)")
