"""SciPy's special functions, each loaded when it is asked for: a hospital's process starts without SciPy."""

from __future__ import annotations

from typing import Any


def ndtr(x: Any) -> Any:
    """Φ(x), the normal distribution function. Shapes: any to the same, as in all of these."""
    from scipy import special

    return special.ndtr(x)


def log_ndtr(x: Any) -> Any:
    """Ln Φ(x)."""
    from scipy import special

    return special.log_ndtr(x)


def ndtri(p: Any) -> Any:
    """Φ⁻¹(p)."""
    from scipy import special

    return special.ndtri(p)


def ndtri_exp(log_p: Any) -> Any:
    """Φ⁻¹ of exp(`log_p`)."""
    from scipy import special

    return special.ndtri_exp(log_p)


def chdtri(freedom: Any, p: Any) -> Any:
    """What a chi-square variable exceeds with probability `p`."""
    from scipy import special

    return special.chdtri(freedom, p)


def betaincinv(a: Any, b: Any, p: Any) -> Any:
    """The `p`-quantile of the beta distribution."""
    from scipy import special

    return special.betaincinv(a, b, p)
