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

__all__ = ["Connection"]

_RETRY_S = 5.0
_LOCKED_S = 75.0  # Flower holds a lost connection's key for up to 60 s

# What the SuperNode's log says, and what that means to the hospital's user.
_REFUSED = {
    "[code: 2004]": (
        "the coordinator does not admit this hospital's key: it was never admitted or is revoked, or the "
        "last connection with it has not expired yet (up to 60 s)"
    ),
    "[code: 2001]": "the coordinator admits known hospitals only: give --tls-dir",
    # All that Flower says where the coordinator takes no signature of this node: the time is signed too.
    "SuperNode terminated gracefully": (
        "the coordinator does not accept what this hospital signs: this machine's clock is more than 5 "
        "seconds ahead of the coordinator's or 5 minutes behind it, or the key was revoked; set the clocks"
    ),
    "handshake": (
        "the coordinator's certificate is not of this study's authority, has expired, or is for another "
        "address"
    ),
}


class Connection:
    """One hospital's SuperNode, started again while there is hope.

    `wait_s` is how long the coordinator may be out of reach before the hospital gives up.
    """

    def __init__(
        self, start: Callable[[], SuperNode], *, report: Callable[[str], None], wait_s: float
    ) -> None:
        self._start, self._report, self._wait_s = start, report, wait_s
        self._lost_since: float | None = time.monotonic()
        self._refused_since: float | None = None
        self._reason = ""
        self._retry_at = 0.0
        self._ever = False
        self._sent = 0
        self.node: SuperNode | None = start()

    def watch(self) -> None:
        """Read the SuperNode's log and act on it; call often.

        Raises:
            InputError: the coordinator refuses this hospital for good.
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
                self.node, self._retry_at = None, now + _RETRY_S
        elif now >= self._retry_at:
            self.node = self._start()
        self._give_up(now)

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
        for sign, sentence in _REFUSED.items():
            if sign in line:
                self._lose(now)
                if self._refused_since is None or self._reason != sentence:
                    self._refused_since, self._reason = self._refused_since or now, sentence
                    self._report(f"refused for now: {sentence}; trying again")

    def _lose(self, now: float) -> None:
        if self._lost_since is None:
            self._lost_since = now
            self._report("the coordinator is out of reach; trying again")

    def _give_up(self, now: float) -> None:
        if self._refused_since is not None and now - self._refused_since > _LOCKED_S:
            raise InputError(self._reason)
        if self._lost_since is not None and now - self._lost_since > self._wait_s:
            raise PateFedError(f"the coordinator was out of reach for {self._wait_s:.0f} s (--wait)")
