"""Arithmetic that is rounded outward, by which what is stated is certified, however it was found.

The ends of an `Interval` are decimals of 40 digits. Python's decimal module rounds sums, differences,
products and quotients as it is asked to; its exp and ln are the nearest of the digits that are asked for
(General Decimal Arithmetic), so one unit is added to some digits more. docs/proofs/rounding.md says which
figures are certified here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import MAX_EMAX, MIN_EMIN, ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from fractions import Fraction
from functools import partial

DIGITS = 40
_UP, _DOWN, _WIDE = (
    Context(prec=digits, rounding=rounding, Emin=MIN_EMIN, Emax=MAX_EMAX, traps=[])
    for digits, rounding in ((DIGITS, ROUND_CEILING), (DIGITS, ROUND_FLOOR), (2 * DIGITS, None))
)
_NEAREST = ("exp", "ln", "sqrt")  # rounded half to even, whatever a context says


def _rounded(context: Context, name: str, *operands: Decimal) -> Decimal:
    """One operation, rounded to a context's side. Nothing here is computed in any other way."""
    if name not in _NEAREST:
        found: Decimal = getattr(context, name)(*operands)
        return found
    near: Decimal = getattr(_WIDE, name)(*operands)
    if name == "sqrt" and _UP.plus(near) == near and _WIDE.multiply(near, near) == operands[0]:
        return near  # the root itself, whose square has no more than twice its digits
    return context.plus(near.next_plus(_WIDE) if context is _UP else near.next_minus(_WIDE))


@dataclass(frozen=True, slots=True)
class Interval:
    """A number between `low` and `high`. A product's or a quotient's factors must not be below 0."""

    low: Decimal
    high: Decimal

    @classmethod
    def of(cls, value: float | Fraction) -> Interval:
        """A whole number or a float itself, which a decimal holds exactly; else a quotient of two."""
        if not isinstance(value, Fraction):
            return cls(Decimal(value), Decimal(value))
        above = cls.of(abs(value.numerator)) / cls.of(value.denominator)
        return above if value >= 0 else ZERO - above

    def __add__(self, other: Interval) -> Interval:
        return Interval(*self._ends("add", other.low, other.high))

    def __sub__(self, other: Interval) -> Interval:
        return Interval(*self._ends("subtract", other.high, other.low))

    def __mul__(self, other: Interval) -> Interval:
        return Interval(*self._ends("multiply", other.low, other.high))

    def __truediv__(self, other: Interval) -> Interval:
        return Interval(*self._ends("divide", other.high, other.low))

    def exp(self) -> Interval:
        """E to the number."""
        return Interval(*self._ends("exp"))

    def ln(self) -> Interval:
        """Natural logarithm."""
        return Interval(*self._ends("ln"))

    def root(self) -> Interval:
        """Square root."""
        return Interval(*self._ends("sqrt"))

    def positive(self) -> Interval:
        """The number, which is known to be 0 or more."""
        return Interval(max(self.low, ZERO.low), self.high)

    def up(self) -> float:
        """A float above it, or the number itself."""
        nearest = float(self.high)
        return math.nextafter(nearest, math.inf) if Decimal(nearest) < self.high else nearest

    def down(self) -> float:
        """A float below it, or the number itself."""
        nearest = float(self.low)
        return math.nextafter(nearest, -math.inf) if Decimal(nearest) > self.low else nearest

    def _ends(self, name: str, *others: Decimal) -> tuple[Decimal, Decimal]:
        if name in ("multiply", "divide") and min(self.low, *others) < 0:
            raise ArithmeticError(f"{name}: a factor below 0")
        first, second = others[:1], others[1:]
        return _rounded(_DOWN, name, self.low, *first), _rounded(_UP, name, self.high, *second)


ZERO, ONE, TWO = (Interval.of(value) for value in (0, 1, 2))
_PI = Decimal("3.141592653589793238462643383279502884197")  # cut
_TWO_PI = TWO * Interval(_PI, _PI.next_plus(_UP))
_NEAR = 6  # up to which a series is summed, and beyond a fraction is
_SMALL = Decimal(10) ** -DIGITS


def fraction_up(exact: Fraction) -> float:
    """The float above it, or the number itself; ∞ where it is too large for one."""
    try:
        nearest = float(exact)
    except OverflowError:
        return math.inf
    return math.nextafter(nearest, math.inf) if nearest < exact else nearest


def plus_up(epsilon: float, more: Fraction) -> float:
    """The sum, rounded up."""
    return fraction_up(Fraction(epsilon) + more) if epsilon < math.inf else epsilon


def times_exp_down(delta: float, exponent: Fraction) -> float:
    """δ e^exponent, rounded down."""
    return (Interval.of(delta) * Interval.of(exponent).exp()).down()


def raised(found: float, holds: Callable[[float], bool]) -> float:
    """The first of `found`, a hair more, twice that more, ... for which it `holds`."""
    step = found * 2.0**-50 or 2.0**-60
    while found < math.inf and not holds(found):
        found, step = found + step, 2 * step
    return found


def _mills(x: Interval) -> Interval:
    """(1 - Φ(x))/φ(x) where x >= 0. Its loops keep both ends by themselves, for time."""
    up, down = partial(_rounded, _UP), partial(_rounded, _DOWN)
    if x.low >= _NEAR:
        # Laplace's 1/(x + 1/(x + 2/(x + ...))), all of whose parts are above 0; so many leave little.
        depth = 12 + int(1200 / x.low**2)
        low, high = ZERO.low, up("divide", Decimal(depth), x.low)
        for part in map(Decimal, range(depth - 1, 0, -1)):
            below, above = down("add", x.low, low), up("add", x.high, high)
            low, high = down("divide", part, above), up("divide", part, below)
        return ONE / (x + Interval(low, high))
    # √(π/2) e^(x²/2) - Σ x^(2k+1)/(2k+1)!!, whose terms at last fall by more than a half.
    square, total, term, odd = x * x, x, x, 1
    while term.high > _SMALL or square.high > odd // 2:
        odd += 2
        by, low = Decimal(odd), down("multiply", term.low, square.low)
        low, high = down("divide", low, by), up("divide", up("multiply", term.high, square.high), by)
        term = Interval(low, high)
        total = Interval(down("add", total.low, low), up("add", total.high, high))
    half = (_TWO_PI.root() / TWO) * (square / TWO).exp()
    return half - Interval(total.low, (total + term).high)


def gaussian_delta_within(mu: Fraction, epsilon: Fraction) -> Interval:
    """δ at ε of μ-Gaussian DP, Φ(-a) - e^ε Φ(-b) with a = ε/μ - μ/2, b = ε/μ + μ/2.

    As e^ε φ(b) = φ(a) that is φ(a) (m(a) - m(b)), m = (1 - Φ)/φ; and 1 - φ(a) (m(-a) + m(b)) where a < 0.
    """
    exact = epsilon / mu - mu / 2
    a, far = Interval.of(abs(exact)), _mills(Interval.of(epsilon / mu + mu / 2))
    half = a * a / TWO
    density = Interval(half.high.copy_negate(), half.low.copy_negate()).exp() / _TWO_PI.root()
    if exact < 0:
        return (ONE - density * (_mills(a) + far)).positive()
    return density * (_mills(a) - far).positive()
