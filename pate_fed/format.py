"""ε and δ as they are shown and stored, rounded up, never down; accuracies, times, counts, words."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from decimal import ROUND_CEILING, Decimal

VERSION = "0.1.0"
FEW_TRIALS = 100  # with fewer an interval is some 20 points wide, and a count says more than a percentage

_DIGITS = 4  # significant ones that a small ε keeps
_LONGEST_S = 1e9  # beyond any wait, and within what a calendar holds
_FINE = 1000  # trials of which one is a tenth of a percent


def epsilon_text(epsilon: float | None, *, unbounded: str = "unbounded") -> str:
    """ε for people: up to three decimals, below 0.1 four significant digits; in words without a bound."""
    if epsilon is None or not math.isfinite(epsilon):
        return unbounded
    if 0 < epsilon < 0.1:
        up = _ceil(epsilon, _DIGITS - 1 - Decimal(repr(float(epsilon))).adjusted())
        return f"{float(up):.{_DIGITS}g}".replace("e-0", "e-")
    return f"{_ceil(epsilon, 3):.3f}".rstrip("0").rstrip(".")


def epsilon_json(epsilon: float | None) -> float | None:
    """ε for programs: six decimals, more where it is small; None where there is no bound."""
    if epsilon is None or not math.isfinite(epsilon):
        return None
    if epsilon == 0:
        return 0.0
    return float(_ceil(epsilon, max(6, _DIGITS - 1 - Decimal(repr(float(epsilon))).adjusted())))


def delta_text(delta: float) -> str:
    """A δ as people write it: 1e-5 rather than 1e-05, in three digits."""
    digits = 2 - Decimal(repr(float(delta))).adjusted()
    return f"{float(_ceil(delta, digits)):.3g}".replace("e-0", "e-")


_Z95 = 1.959963984540054  # the standard normal quantile of a two-sided 95 % interval


def wilson_interval(share: float, count: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share that was seen in `count` independent trials (Wilson 1927, JASA)."""
    scale = 1 + _Z95**2 / count
    middle = (share + _Z95**2 / (2 * count)) / scale
    half = _Z95 / scale * math.sqrt(share * (1 - share) / count + _Z95**2 / (4 * count * count))
    return max(0.0, min(share, middle - half)), min(1.0, max(share, middle + half))


def share_text(share: float | None, count: int | None = None) -> str:
    """A share in percent, with a decimal only where one of `count` trials is as little; "-" where unknown."""
    if share is None or not math.isfinite(share):
        return "-"
    digits = 1 if count is not None and count >= _FINE else 0
    if 0 < share < 1 and f"{100 * share:.{digits}f}" in ("0", "100"):
        digits = 1  # neither none nor all
    return f"{100 * share:.{digits}f} %"


def accuracy_text(share: float | None, count: int | None = None, *, majority: float | None = None) -> str:
    """A share of right answers with the number tested and its 95 % interval; "-" where it is not known.

    Fewer than 100 are counted: "12 of 15 right (55 to 93 %)". `majority` is the share of the most frequent
    class among those tested, which is right for whoever always says it.
    """
    if share is None or not math.isfinite(share):
        return "-"
    if not count:
        return f"{share_text(share)} right"
    interval = interval_text(wilson_interval(share, count), count)
    guess = "" if majority is None else f"; majority {share_text(majority, count)}"
    of = "" if count < FEW_TRIALS else f"n {count:,}, "
    return f"{right_text(share, count)} right ({of}{interval}{guess})"


def right_text(share: float | None, count: int | None) -> str:
    """A share in percent, counted where it is of few: "12 of 15"."""
    if share is None or not count or count >= FEW_TRIALS:
        return share_text(share, count)
    return f"{round(share * count)} of {count}"


def interval_text(interval: tuple[float, float] | None, count: int | None = None) -> str:
    """An interval of a share in percent, "55 to 93 %"; "-" where it is not known."""
    if interval is None:
        return "-"
    low, high = (share_text(end, count) for end in interval)
    return f"{low.removesuffix(' %')} to {high}"


def duration_text(seconds: float | None) -> str:
    """Seconds as a person says them; "-" where they are not known."""
    if seconds is None:
        return "-"
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def until_text(seconds: float) -> str:
    """The local time so many seconds from now, with its day where that is not today."""
    now = time.time()
    there = time.localtime(now + min(seconds, _LONGEST_S))
    today = there[:3] == time.localtime(now)[:3]
    return time.strftime("%H:%M:%S" if today else "%Y-%m-%d %H:%M", there)


def printable(text: str, instead: str = " ") -> str:
    """The text without control characters: another's words cannot steer the terminal."""
    return "".join(letter if letter.isprintable() else instead for letter in text)


def named(names: Sequence[str], *, most: int = 20) -> str:
    """The names, or how many hospitals they are where they are more than `most`."""
    return ", ".join(names) if len(names) <= most else counted(len(names), "hospital")


def counted(number: int, thing: str) -> str:
    """A number and its noun, in the plural where it is not 1."""
    plural = thing[:-1] + "ies" if thing.endswith("y") else thing + "s"
    return f"{number:,} {thing if number == 1 else plural}"


def _ceil(value: float, digits: int) -> Decimal:
    """The least number of so many decimals that is not below the value as it is written."""
    exact = Decimal(repr(float(value)))
    if exact.adjusted() + digits > 24:
        return exact  # a float of that size has no decimals
    return exact.quantize(Decimal(1).scaleb(-digits), rounding=ROUND_CEILING)
