"""How fast the privacy analysis is, beside a plain version of the same formulas timed in the same run."""

from __future__ import annotations

import math
import os
import platform
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from published import gnmax_local_sensitivity
from scipy.special import erfcinv, ndtr
from scipy.stats import norm

from pate_fed.privacy import ConfidentGNMax, SanitiseSettings, SeededNoise, sanitised_epsilon
from pate_fed.privacy.bounds.conversion import to_epsilon
from pate_fed.privacy.bounds.gnmax import gnmax_rdp
from pate_fed.privacy.bounds.smooth import gnmax_sensitivity
from pate_fed.privacy.checks import DEFAULT_ORDERS
from pate_fed.privacy.mechanisms.data_dependent import data_dependent_rdp

pytestmark = pytest.mark.benchmark
HUNDRED = np.linspace(1.5, 64.0, 100)


def votes(queries: int, teachers: int, classes: int, seed: int = 0) -> np.ndarray:
    """Agreement as on MNIST: a plurality of about 0.72 of the votes."""
    rng = np.random.default_rng(seed)
    right, rest = rng.beta(6, 2, size=(queries, 1)), rng.dirichlet([0.5] * (classes - 1), size=queries)
    chances = np.concatenate((right, (1 - right) * rest), axis=1)
    return rng.multinomial(teachers, chances / chances.sum(axis=1, keepdims=True))


def plain_log_q(counts: np.ndarray, sigma: float) -> float:
    winner = counts.argmax()
    gaps = counts[winner] - np.delete(counts, winner)
    logs = norm.logcdf(-gaps / (math.sqrt(2) * sigma))
    return min(float(np.logaddexp.reduce(logs)), math.log1p(-1 / len(counts)))


def plain_theorem6(log_q: float, sigma: float, orders: np.ndarray) -> np.ndarray:
    """One query at a time, straight from the paper."""
    flat = orders / sigma**2
    mu2 = sigma * math.sqrt(-log_q)
    if mu2 <= 1:
        return flat
    mu1, e1, e2 = mu2 + 1, (mu2 + 1) / sigma**2, mu2 / sigma**2
    cap = (mu2 - 1) * e2 - mu2 * math.log(mu1 / (mu1 - 1) * mu2 / (mu2 - 1))
    if -log_q <= e2 or log_q > cap:
        return flat
    out = flat.copy()
    for k, order in enumerate(orders):
        if order <= mu1:
            kept = math.log1p(-math.exp(log_q))
            a = kept - math.log1p(-math.exp((log_q + e2) * (1 - 1 / mu2)))
            b = e1 - log_q / (mu1 - 1)
            total = np.logaddexp(kept + (order - 1) * a, log_q + (order - 1) * b)
            out[k] = min(out[k], total / (order - 1))
    return out


def plain_curve(counts: np.ndarray, sigma: float, order: float, teachers: int) -> np.ndarray:
    """Algorithms 4 and 5 of P18, vote by vote."""
    pieces, m = gnmax_sensitivity(sigma, len(counts), order), len(counts)
    grid = np.array([order])

    def bound(log_q: float) -> float:
        return plain_theorem6(log_q, sigma, grid)[0] if log_q < pieces.log_q0 else order / sigma**2

    def step(log_q: float, direction: int) -> float:
        x = erfcinv(2 * math.exp(log_q) / (m - 1)) - direction / sigma
        return min(0.0, math.log((m - 1) * ndtr(-math.sqrt(2) * x)))

    def local(log_q: float) -> float:
        if pieces.log_q1 <= log_q <= pieces.log_q0:
            log_q = pieces.log_q1
        here = bound(log_q)
        return max(bound(step(log_q, 1)) - here, here - bound(step(log_q, -1)))

    out = np.full(teachers, local(pieces.log_q1))
    hand, log_q, at = np.sort(counts)[::-1].copy(), plain_log_q(counts, sigma), 0
    apart = log_q > pieces.log_q0
    while log_q > pieces.log_q0 if apart else log_q < pieces.log_q1:
        out[at], at = local(log_q), at + 1
        hand[:2] += (1, -1) if apart else (-1, 1)
        hand = np.sort(hand)[::-1]
        log_q = plain_log_q(hand, sigma)
    return out


def best_of(call: Callable[[], object], repeat: int) -> float:
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


Row = tuple[str, float, float, float, str]
"""What was timed, seconds of ours and of the plain version (NaN: none), the mark, and of what."""


def theorem6_rows(small: np.ndarray) -> list[Row]:
    def plain(counts: np.ndarray) -> list[np.ndarray]:
        return [plain_theorem6(plain_log_q(row, 40.0), 40.0, HUNDRED) for row in counts]

    np.testing.assert_allclose(gnmax_rdp(small[:40], 40.0, HUNDRED), plain(small[:40]), rtol=1e-8, atol=1e-13)
    many = votes(640, 250, 1000)
    ours = best_of(lambda: gnmax_rdp(small, 40.0, HUNDRED), 20) / 640
    plain_ours = best_of(lambda: plain(small[:40]), 3) / 40
    tails = best_of(lambda: gnmax_rdp(small, 40.0, HUNDRED, discrete=True), 20) / 640
    ours_many = best_of(lambda: gnmax_rdp(many, 40.0, HUNDRED), 10) / 640
    plain_many = best_of(lambda: plain(many[:20]), 3) / 20
    return [
        ("ln q and Theorem 6, 250x10, 100 orders", ours, plain_ours, 5e-6, "query"),
        ("the same with the tails of integer noise", tails, math.nan, 5e-6, "query"),
        ("ln q and Theorem 6, 250x1000, 100 orders", ours_many, plain_many, 30e-6, "query"),
    ]


def sensitivity_rows(small: np.ndarray) -> list[Row]:
    def ours(counts: np.ndarray) -> np.ndarray:
        return gnmax_local_sensitivity(counts, 40.0, 14.0, num_teachers=250)

    curves = [plain_curve(row, 40.0, 14.0, 250) for row in small[:20]]
    np.testing.assert_allclose(ours(small[:20]), np.sum(curves, axis=0), rtol=1e-7)
    large = votes(50, 5000, 10)
    alone = float(np.mean([best_of(partial(ours, row), 30) for row in small[:20]]))
    together = best_of(lambda: ours(small), 5) / 640
    plain = best_of(lambda: [plain_curve(row, 40.0, 14.0, 250) for row in small[:20]], 2) / 20
    ours_large = best_of(lambda: gnmax_local_sensitivity(large, 100.0, 20.5, num_teachers=5000), 3) / 50
    plain_large = best_of(lambda: [plain_curve(row, 100.0, 20.5, 5000) for row in large[:3]], 1) / 3
    return [
        ("local sensitivity, 250x10, one query at a time", alone, plain, 300e-6, "query"),
        ("local sensitivity, 250x10, one order", together, plain, 300e-6, "query"),
        ("local sensitivity, 5000x10, one order", ours_large, plain_large, 5e-3, "query"),
    ]


def run_row() -> Row:
    run, answered = votes(640, 250, 10, seed=1), np.random.default_rng(0).random(640) < 0.45
    study = SanitiseSettings.at_order(14.0)
    mechanism = ConfidentGNMax(num_teachers=250, num_classes=10, threshold=200, sigma1=150.0, sigma2=40.0)

    def whole_run() -> None:
        to_epsilon(DEFAULT_ORDERS, data_dependent_rdp(mechanism, run, answered), 1e-5)
        sanitised_epsilon(mechanism, run, answered, settings=study, delta=1e-5, noise=SeededNoise(0))

    def plain_run() -> None:
        for row in run[answered]:
            plain_theorem6(plain_log_q(row, 40.0), 40.0, DEFAULT_ORDERS)
            plain_curve(row, 40.0, 14.0, 250)

    name = "a run of 640 queries with a sanitised epsilon"
    return name, best_of(whole_run, 3), best_of(plain_run, 1), 0.3, "run"


def test_speed() -> None:
    small = votes(640, 250, 10)
    rows = [*theorem6_rows(small), *sensitivity_rows(small), run_row()]
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    print(f"\nprivacy analysis on one core of {machine}, NumPy {np.__version__}")
    print(f"{'':48}{'ours':>12}{'plain':>12}{'ratio':>8}{'mark':>10}")
    for name, ours_s, plain_s, mark, unit in rows:
        ratio = "-" if math.isnan(plain_s) else f"{plain_s / ours_s:.0f}x"
        plain = "-" if math.isnan(plain_s) else f"{1e6 * plain_s:.0f} us"
        print(f"{name:48}{1e6 * ours_s:9.1f} us{plain:>12}{ratio:>8}{1e6 * mark:7.0f} us  a {unit}")
