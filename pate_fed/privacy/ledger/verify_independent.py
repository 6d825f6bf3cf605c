"""A second verifier of a run: Python alone, nothing installed, nothing of pate_fed.

    python verify_independent.py RUN_DIR [PUBLIC_KEY]

With NumPy, and `verify_exact.py` beside it, ε of votes is held to `EXACT`, else to what follows.
It reads `ledger.sqlite`, `seal.json` and `metrics.json` by docs/reference/run-directory.md, and computes ε of
its own: an upper bound by Rényi DP of the released outcomes, and what Gaussian DP of as much RDP would give,
which no bound of pate_fed's should be far below. It ends with 6 where something was changed, or a stated ε is
less than 1/1.25 of the smaller of both; with 3 where it knows no bound, as of bit and winner together. It
takes the last percent of pate_fed's optimal control, and what code of one's own claims, as they are.
"""

from __future__ import annotations

import hashlib
import json
import math
import sqlite3
import sys
from array import array
from collections.abc import Callable, Iterable
from functools import cache, partial
from importlib import import_module
from itertools import accumulate
from pathlib import Path
from typing import Any

FEW, MANY, SOME, WHOLE = 7, 1.05, 60, 1.1
"""What the second tier is held to beyond so many queries; the latter where bit and winner are one."""
NEAR, EXACT = 1.25, 1.02
"""By so much may our figure be above a stated ε: pate_fed also adds up in tighter ways. The second is for
what is no vote, and for votes where NumPy and `verify_exact.py` are there."""
WIDE = 10.0
"""Votes of Laplace noise beyond which neither file has a winner's bound: the lattice would be too long."""
COLUMNS = (
    *("seq", "time", "kind", "mechanism", "parameters", "protection", "coordinator", "asked", "answered"),
    *("batch_digest", "outputs_digest", "noise", "private", "version", "epsilon", "body", "previous"),
    *("hash", "signature"),
)
Law = Callable[[float], float]  # RDP in nats at an order
Given = dict[str, Any]
Charge = tuple[str, Given, int, int]  # mechanism, parameters, queries asked and answered


class FoundError(Exception):
    """Something is not as it was written, or not as it is stated."""


class NoBoundError(Exception):
    """A mechanism that this program has no bound for."""


# Ed25519 (RFC 8032, section 5.1.7), for checking alone: nothing here is secret.

P = 2**255 - 19
Q = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, P - 2, P) % P
Point = tuple[int, int, int, int]  # x·z, y·z, z and x·y·z: no sum needs a division


def _add(one: Point, two: Point) -> Point:
    (x1, y1, z1, t1), (x2, y2, z2, t2) = one, two
    a, b, c, d = (y1 - x1) * (y2 - x2), (y1 + x1) * (y2 + x2), 2 * D * t1 * t2, 2 * z1 * z2
    e, f, g, h = (b - a) % P, (d - c) % P, (d + c) % P, (b + a) % P
    return e * f % P, g * h % P, f * g % P, e * h % P


def _times(scalar: int, point: Point) -> Point:
    found: Point = (0, 1, 1, 0)
    while scalar:
        if scalar & 1:
            found = _add(found, point)
        point, scalar = _add(point, point), scalar >> 1
    return found


def _point(text: bytes) -> Point:
    value = int.from_bytes(text, "little")
    sign, y = value >> 255, value & (2**255 - 1)
    squared = (y * y - 1) * pow(D * y * y + 1, P - 2, P) % P
    x = pow(squared, (P + 3) // 8, P)
    if (x * x - squared) % P:
        x = x * pow(2, (P - 1) // 4, P) % P
    if y >= P or (x * x - squared) % P or (x == 0 and sign):
        raise ValueError("no point of the curve")
    x = P - x if x & 1 != sign else x
    return x, y, 1, x * y % P


def is_signed(public: str, signature: str, message: bytes) -> bool:
    """Whether an Ed25519 signature (hex) is that of the public key (hex) on the message."""
    try:
        key, given = bytes.fromhex(public), bytes.fromhex(signature)
        s = int.from_bytes(given[32:], "little")
        if len(key) != 32 or len(given) != 64 or s >= Q or given.hex() != signature:
            return False
        h = int.from_bytes(hashlib.sha512(given[:32] + key + message).digest(), "little") % Q
        base = _point((4 * pow(5, P - 2, P) % P).to_bytes(32, "little"))
        (x1, y1, z1, _), (x2, y2, z2, _) = _times(s, base), _add(_point(given[:32]), _times(h, _point(key)))
        return (x1 * z2 - x2 * z1) % P == (y1 * z2 - y2 * z1) % P == 0
    except ValueError:
        return False


# Rows, their chain, and the seal.


def _canonical(values: Any) -> bytes:
    return json.dumps(values, sort_keys=True, separators=(",", ":")).encode()


def read_rows(path: Path) -> list[Given]:
    """The ledger's rows, once chain, head, signatures and released labels are found to be whole."""
    if not path.is_file():
        raise FoundError(f"{path}: there is no ledger")
    connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
    try:
        rows = [
            dict(zip(COLUMNS, values, strict=True))
            for values in connection.execute(f"SELECT {', '.join(COLUMNS)} FROM entries ORDER BY seq")
        ]
        head = connection.execute("SELECT seq, hash FROM head").fetchall()
        released = connection.execute(
            "SELECT seq, query, answered, label FROM released ORDER BY seq, position"
        ).fetchall()
    except sqlite3.Error as error:
        raise FoundError(f"the ledger is damaged ({error})") from error
    finally:
        connection.close()
    previous = "0" * 64
    for place, row in enumerate(rows):
        covered = {name: row[name] for name in COLUMNS if name not in ("hash", "signature")}
        digest = hashlib.sha256(b"pate_fed/v1 ledger row" + _canonical(covered)).hexdigest()
        if (row["seq"], row["hash"], row["previous"]) != (place, digest, previous):
            raise FoundError(f"row {place} was changed, moved, or one before it was removed")
        previous = digest
    if not rows or head != [(len(rows) - 1, previous)]:
        raise FoundError("rows were removed at the end")
    key = json.loads(rows[0]["body"])["public_key"]
    for row in rows:
        message = b"pate_fed/v1 ledger signature" + bytes.fromhex(row["hash"])
        if (
            row["signature"] is not None
            if key is None
            else not is_signed(key, row["signature"] or "", message)
        ):
            raise FoundError(f"row {row['seq']} is not signed by the ledger's key")
    for row in rows[1:]:
        columns = [[values[at] for values in released if values[0] == row["seq"]] for at in (1, 2, 3)]
        state = hashlib.sha256(b"pate_fed/v1 outputs")
        for column in columns:
            state.update(len(column).to_bytes(8, "big") + array("q", column).tobytes())
        if state.hexdigest() != row["outputs_digest"] or len(columns[0]) != row["asked"]:
            raise FoundError(f"row {row['seq']}: its released labels were changed")
        if sum(columns[1]) != row["answered"]:
            raise FoundError(f"row {row['seq']}: answers are there that are not charged")
    return rows


def _read(path: Path) -> bytes:
    """A file of a run, which is regular and has 2 GiB at most."""
    if not path.is_file() or path.stat().st_size > 2**31:
        raise FoundError(f"{path.name} is no file of a run")
    return path.read_bytes()


def check_seal(run_dir: Path, head: str, public_key: str | None) -> str:
    """What the seal says, in words; it may be missing."""
    path = run_dir / "seal.json"
    if not path.exists():
        if public_key is not None:
            raise FoundError("there is no seal that the given key could have signed")
        return "no seal: whoever can write the files can have changed all of them"
    seal = json.loads(_read(path))
    message = _canonical({name: seal[name] for name in ("files", "head", "public_key")})
    if not is_signed(seal["public_key"], seal["signature"], b"pate_fed/v1 seal of a run" + message):
        raise FoundError("the seal is not signed by its key")
    if public_key not in (None, seal["public_key"]):
        raise FoundError(f"the seal's key is {seal['public_key']}, not the given one")
    if seal["head"] != head:
        raise FoundError("the ledger does not end with the row that was sealed")
    for name, digest in seal["files"].items():
        if (run_dir / name).exists():
            content = bytearray(_read(run_dir / name))
            for part in (slice(24, 28), slice(40, 44), slice(92, 100)) if name == "ledger.sqlite" else ():
                content[part] = bytes(part.stop - part.start)
            if hashlib.sha256(content).hexdigest() != digest:
                raise FoundError(f"{name} is not the file that was sealed")
    return f"sealed by {seal['public_key']}"


# The bound. Notation: a class's noisy total is its votes and whole noise Z; ties are broken by a uniform key
# below 1, so a total is above a real number m + κ, 0 <= κ < 1, with chances that are quadratic in κ.


class Noise:
    """Chances of whole noise: the discrete Gaussian or Laplace of `scale`, cut at `reach` (beyond: e^-30)."""

    def __init__(self, kind: str, scale: float, reach: int) -> None:
        far = [abs(x) / scale for x in range(-reach, reach + 1)]
        weights = [math.exp(-(x * x / 2 if kind == "gaussian" else x)) for x in far]
        total = math.fsum(weights)
        self.reach, self.masses = reach, [weight / total for weight in weights]
        self._below = [0.0, *accumulate(self.masses)]

    def mass(self, x: int) -> float:
        """Pr[Z = x]."""
        return self.masses[x + self.reach] if abs(x) <= self.reach else 0.0

    def below(self, x: int) -> float:
        """Pr[Z < x]."""
        return self._below[min(max(x + self.reach, 0), len(self.masses))]

    @cache  # noqa: B019  # lives as long as the program
    def wins(self, gap: int) -> array[float]:
        """For each z from -reach on: Pr[Z >= z, and Z + gap beats another such noise]; the last is 0."""
        down = range(self.reach, -self.reach - 1, -1)
        parts = (self.mass(z) * (self.below(z + gap) + self.mass(z + gap) / 2) for z in down)
        return array("d", [0.0, *accumulate(parts)][::-1])

    def win(self, mine: int, other: int) -> float:
        """Pr[mine + Z beats other + Z' and 0]."""
        return self.wins(mine - other)[min(max(-mine + self.reach, 0), len(self.masses))]


def _outcomes(noise: Noise, u: int, v: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Chances of "a wins", "b wins", "neither" against κ: Bernstein's coefficients 0 and 1 of them."""
    below_a, below_b, at_a, at_b = noise.below(-u), noise.below(-v), noise.mass(-u), noise.mass(-v)
    won, lost, neither = noise.win(u, v), noise.win(v, u), below_a * below_b
    next_ = (
        won - at_a * below_b / 2,
        lost - at_b * below_a / 2,
        neither + (below_a * at_b + at_a * below_b) / 2,
    )
    return (won, lost, neither), next_


Pair = tuple[float, float]  # p of an outcome, ln p/q for a neighbour's q: a moment is Σ p exp((α - 1) ln p/q)


def _pairs(now: Iterable[float], then: Iterable[float]) -> list[Pair]:
    return [
        (p, math.log(p / q) if q > 0 and p / q > 0 else math.inf)
        for p, q in zip(now, then, strict=True)
        if p > 0
    ]


def _most_rdp(laws: Iterable[list[Pair]], order: float) -> float:
    """The largest RDP, with slack for rounding and for noise that was cut; ∞ where it is too large."""
    most = 0.0
    for law in laws:
        if max(power for _, power in law) * (order - 1) > 700:
            return math.inf
        most = max(most, sum(p * math.exp((order - 1) * power) for p, power in law))
    return math.log(most * (1 + 1e-9) + 1e-9) / (order - 1)


def _edge(kind: str, scale: float, moved: int, order: float) -> tuple[int, int]:
    """How far above and below the others a class is looked at, and how far above the other class.

    What lies beyond adds less than 1e-10 to a moment, by lemma 3: the noise's tails there, as the moment of
    both totals weighs them.
    """
    weight = order * moved
    if kind == "laplace":
        return math.ceil(25 * scale + 2 * weight), math.ceil(28 * scale + 2 * weight)
    far = math.hypot(6.6 * scale, 1.42 * weight)
    return math.ceil(far + weight) + 1, math.ceil(1.42 * far + 2 * weight) + 1


@cache
def _winner_laws(kind: str, scale: float, moved: int, most_order: float) -> list[list[Pair]]:
    """The winning class where `moved` votes go from a class to another, against all its neighbours' laws.

    All differences of the two classes to the largest other (docs/proofs/outcomes.md, lemmas 1, 2, 3 and 8),
    on a lattice: of multiples of K where Gaussian noise is large, with the noise s² below σ² (lemma 7). One
    class that gains or loses is at the lattice's edge.
    """
    step = max(1, int(scale // 9)) if kind == "gaussian" else 1
    if step > 1:
        scale = math.sqrt((scale**2 + math.sqrt(scale**4 - (3 * step * scale) ** 2)) / 2)
    edge, apart = (step * math.ceil(each / step) for each in _edge(kind, scale, moved, most_order))
    if edge * apart > 150_000 * step**2:
        return []
    noise, found = Noise(kind, scale, edge + apart + moved + 1), list[list[Pair]]()
    parts = ((0, 2), (1, 1)) if step > 1 else ((0, 2),)
    for low in range(-edge, edge + 1, step):
        for high in range(low, max(edge, low + apart) + 1, step):
            few = 3 if high <= edge else 2  # one far above the others: that neither wins is beyond the edge
            for u, v in {(low, high), (high, low)}:
                for less, most in parts:  # both one lower: coefficient 2, which else is the next cell's 0
                    now = _outcomes(noise, u - less, v - less)
                    then = _outcomes(noise, u - less - moved, v - less + moved)
                    found += (_pairs(now[at][:few], then[at][:few]) for at in range(most))
    for gap in range(-apart, apart + 1, step):  # both far above all others
        one, two = ([noise.wins(at)[0], noise.wins(-at)[0]] for at in (gap, gap - 2 * moved))
        found.append(_pairs(one, two))
    return found


@cache
def winner_rdp(kind: str, scale: float, moved: int, order: float) -> float:
    """RDP of the winning class where `moved` votes go to another; ∞ where that takes too long."""
    laws = _winner_laws(kind, scale, moved, 2.0 ** math.ceil(math.log2(order)))
    return _most_rdp(laws, order) if laws else math.inf


@cache
def bit_rdp(kind: str, scale: float, moved: int, order: float) -> float:
    """RDP of whether a total reaches a threshold, where it changes by `moved` votes."""
    edge, _ = _edge(kind, scale, moved, order)
    noise = Noise(kind, scale, edge + 2 * moved + 1)
    bits = [(noise.below(at), noise.below(1 - at)) for at in range(-edge - moved, edge + moved + 1)]
    both = *zip(bits, bits[moved:], strict=False), *zip(bits[moved:], bits, strict=False)
    return _most_rdp((_pairs(*each) for each in both), order)


def winner(kind: str, scale: float, protection: Given, distance: float = 0.0) -> Law:
    """RDP of one released class: of its outcome, or of the noisy totals if that is less."""
    moved: int = protection["votes_moved"]
    vanish = protection["unit"] == "hospital" and protection["adjacency"] == "add-or-remove-one"
    squared, far = (moved**2, moved) if vanish else (2 * moved**2, 2 * moved)

    def law(order: float) -> float:
        outcome = float((bit_rdp if vanish else winner_rdp)(kind, scale, moved, order))
        if kind == "laplace":
            return min(outcome, far / scale, (far / scale) ** 2 * order / 2)
        outcome += 2 * distance * (2 * order - 1) / (order - 1)
        return min(outcome, order * squared / (2 * scale**2) + distance)

    return law


def _distance(share: float, hospitals: int) -> float:
    """τ of a sum of so many discrete Gaussians (arXiv 2102.06387)."""
    exponents = (-2 * math.pi**2 * share**2 * k / (k + 1) for k in range(1, hospitals))
    return 10 * math.fsum(map(math.exp, exponents)) + 1e-15


def laws(name: str, given: Given, protection: Given) -> tuple[Law, Law]:
    """RDP of each query that is asked, and further of each that is answered."""
    if name == "gnmax":
        return _nothing, winner("gaussian", given["sigma"], protection)
    if name == "lnmax":
        return _nothing, winner("laplace", given["scale"], protection)
    if name in ("confident-gnmax", "interactive-gnmax"):
        check = partial(bit_rdp, "gaussian", given["sigma1"], protection["votes_moved"])
        return check, winner("gaussian", given["sigma2"], protection)
    if name == "distributed-gnmax":
        share, honest = given["sigma_party"], given["least_honest"]
        near = _distance(share, honest)
        return winner("gaussian", share * math.sqrt(honest), protection, near), _nothing
    if ":" in name:  # code of the user's own, which claims a curve at these orders
        return partial(_claimed, given["claim"]["rdp"]), _nothing
    raise NoBoundError(f"no bound here for {name}")


def _nothing(_: float) -> float:
    return 0.0


def _claimed(rdp: list[float], order: float) -> float:
    """At the next order that is claimed, as a Rényi divergence never falls."""
    return next((each for at, each in enumerate(rdp, -40) if 1 + math.exp(at / 10.24) >= order), math.inf)


def gaussian_epsilon(mu: float, delta: float) -> float:
    """ε at δ of a Gaussian mechanism whose sensitivity is μ of its σ (Balle and Wang 2018, Theorem 8)."""

    def over(epsilon: float) -> bool:
        far, near = epsilon / mu + mu / 2, epsilon / mu - mu / 2
        return math.erfc(near / 2**0.5) / 2 - math.exp(epsilon) * math.erfc(far / 2**0.5) / 2 > delta

    return _least(over, mu * mu / 2 + mu * math.sqrt(2 * math.log(1 / delta)) + 1)


def _least(over: Callable[[float], bool], high: float) -> float:
    """The least ε at which δ is not over, by bisection."""
    low = 0.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if over(middle) else (low, middle)
    return high


def counts_epsilon(sigma: float, delta: float) -> float:
    """ε at δ of noisy counts of which one label moves: the loss at noise x, x' is (1 - (x - x'))/σ²."""
    noise = Noise("gaussian", sigma, math.ceil(12 * sigma + 5))
    size = range(-noise.reach, noise.reach + 1)

    def tail(gap: int) -> float:
        return math.fsum(noise.mass(x) * noise.below(x - gap + 1) for x in size)

    def over(epsilon: float) -> bool:
        gap = math.floor(epsilon * sigma**2 - 1) + 1
        return tail(gap) - math.exp(epsilon) * tail(gap + 2) > delta

    return _least(over, 100.0)


def _once(name: str, given: Given, protection: Given, delta: float) -> float | None:
    """ε of what a study releases once; None of what is asked query by query."""
    if name in ("randomised-response", "prior-response", "laplace-response"):
        return float(given["epsilon"])  # by the mechanism's definition, whatever the labels are
    if name.startswith(SUMS[0]):
        return _sums_epsilon(name, given, protection, delta, releases=1)
    if not name.startswith("noise-cluster"):
        return None
    variance, distance = _variance(given)
    delta = float(min(delta, given.get("delta", delta)) * math.exp(-2 * distance))
    return counts_epsilon(math.sqrt(variance), delta) + 4 * distance


def _variance(given: Given) -> tuple[float, float]:
    """Of the noise in a sum, and how far it is from a discrete Gaussian."""
    if "survivors" not in given:
        return float(given["sigma"]) ** 2, 0.0
    honest = given["survivors"] - given["colluders"]
    return given["sigma_party"] ** 2 * honest, _distance(given["sigma_party"], honest)


def _sums_epsilon(name: str, given: Given, protection: Given, delta: float, *, releases: int) -> float:
    """ε at δ of class sums, or of so many rounds of sums: each is nearly Gaussian, and μ² adds up."""
    return _gaussians(*_mu_squared(name, given, protection, releases), delta)


def _gaussians(squared: float, near: float, delta: float) -> float:
    return gaussian_epsilon(math.sqrt(squared), delta * math.exp(-near)) + 2 * near


def _mu_squared(name: str, given: Given, protection: Given, releases: int) -> tuple[float, float]:
    """μ² of so many releases, and how far their noise is from continuous."""
    alone = protection["adjacency"] == "add-or-remove-one"
    squared: float = given["squared_norm"] * (1 if alone else 2)
    if name.startswith(SUMS[1]):  # entries have signs, but in the first round
        squared = max(given["squared_norm"] * (1 if alone else 4), given["class_norm"] * (1 if alone else 2))
    squared *= protection["votes_moved"] ** 2
    # as of a Gaussian of two less variance (docs/proofs/class-sums.md)
    variance, distance = _variance(given)
    near: float = releases * (distance + 3e-17) * given["dimension"] * given["num_classes"]
    return releases * squared / (variance - 2), near


SUMS = ("class-sums", "sums-in-rounds")
COUNTS = "score-counts"  # of held-out records, which are in no sum


def _with_counts(terms: Given, charges: list[Charge]) -> float | None:
    """ε of sums in rounds and counts of other records: the larger of both; None of anything else.

    A unit whose record moves from the ones to the others moves each by at most √½ of what it may.
    """
    names = [name.startswith(COUNTS) for name, *_ in charges]
    known = [count or name.startswith(SUMS[1]) for count, (name, *_) in zip(names, charges, strict=True)]
    if (
        not all(known)
        or terms["sanitise"] is not None
        or (len(names), sum(names)) not in ((1, 0), (1, 1), (2, 1))
    ):
        return None
    found = []
    for name, given, asked, _ in charges:
        rounds = -(-asked // given["labels"])  # a row asks about each label
        if name.startswith(COUNTS) and rounds > 1:
            raise FoundError("held-out records were counted more than once")
        found.append(_mu_squared(name, given, terms["protection"], rounds))
    return _gaussians(max(squared for squared, _ in found), sum(near for _, near in found), terms["delta"])


def own_epsilon(terms: Given, charges: list[Charge]) -> tuple[float, float]:
    """Our ε at the terms' δ: by Rényi DP, an upper bound; and what Gaussian DP of as much RDP would give."""
    protection, delta = terms["protection"], terms["delta"]
    if type(moved := protection["votes_moved"]) is not int or moved < 1:
        raise FoundError(f"the terms say that a unit moves {moved} votes: it is a whole number from 1 on")
    together = _with_counts(terms, charges)
    if together is not None:
        return together, together
    once = [_once(name, given, protection, delta) for name, given, *_ in charges]
    known = [each for each in once if each is not None]
    if terms["sanitise"] is not None or (known and (len(known) < len(once) or (delta and len(once) > 1))):
        raise NoBoundError("no bound here for these releases together")
    if known:
        return max(known), max(known)
    parts = [(*laws(name, given, protection), asked, answered) for name, given, asked, answered in charges]

    def total(order: float) -> float:
        return sum(a * asked(order) + b * answered(order) for asked, answered, a, b in parts)

    if not total(2):
        return 0.0, 0.0
    pure = _pure_epsilon(charges, delta)
    found = pure, pure
    near = round(5 * math.log(math.sqrt(math.log(1 / delta) / (total(2) / 2))))
    for step in range(near - 3, near + 3):  # round orders, so that rows share what was computed
        order = 1 + math.exp(step / 5)
        rdp = total(order)
        epsilon = rdp + math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1)
        found = min(found, (max(epsilon, 0.0), gaussian_epsilon(math.sqrt(2 * rdp / order), delta)))
    return found


def _pure_epsilon(charges: list[Charge], delta: float) -> float:
    """ε at δ of so many queries of one mechanism that claims to be pure DP: as many randomised responses.

    Kairouz, Oh and Viswanath 2015, Theorem 3.3: the best event is that at least j of them tell the truth.
    """
    [(_, given, asked, _), *more] = charges
    one = given.get("claim", {}).get("pure")
    if one is None or more:
        return math.inf
    here, there, found = 0.0, 0.0, 0.0
    for j in range(asked, -1, -1):
        ways = math.lgamma(asked + 1) - math.lgamma(j + 1) - math.lgamma(asked - j + 1)
        scaled = ways - asked * math.log1p(math.exp(-one))
        here += math.exp(scaled - (asked - j) * one)
        there += math.exp(scaled - j * one)
        if here > delta and there > 0:
            found = max(found, math.log((here - delta) / there))
    return float(min(one * asked, found))


def _ours(name: str, given: Given) -> tuple[str, Given]:
    """A mechanism, where it claims a law of noise as that of ours with this law."""
    law, scale = (given.get("claim", {}).get(key) for key in ("noise", "scale"))
    return {"gaussian": ("gnmax", {"sigma": scale}), "laplace": ("lnmax", {"scale": scale})}.get(
        law, (name, given)
    )


def _charges(rows: list[Given]) -> list[Charge]:
    found: dict[tuple[str, str], tuple[int, int]] = {}
    for row in rows:
        asked, answered = found.get(key := (row["mechanism"], row["parameters"]), (0, 0))
        found[key] = asked + row["asked"], answered + row["answered"]
    return [(*_ours(name, json.loads(given)), *counts) for (name, given), counts in found.items()]


def _caps(terms: Given) -> list[Charge]:
    """What the terms allow; mechanisms of equal noise share it."""
    kinds = {
        json.dumps([each["parameters"].get(name) for name in ("sigma", "sigma1", "sigma2", "epsilon")]): each
        for each in terms["mechanisms"]
        if not each["name"].startswith(COUNTS)
    }
    counts = terms["most_asked"], terms["most_answered"]
    held_out = [each for each in terms["mechanisms"] if each["name"].startswith(COUNTS)]
    kept = sum(each["parameters"]["labels"] for each in held_out)
    votes = (_ours(each["name"], each["parameters"]) for each in kinds.values())
    charges: list[Charge] = [(*each, counts[0] - kept, counts[1]) for each in votes]
    return charges + [(each["name"], each["parameters"], kept, counts[1]) for each in held_out]


def verify(run_dir: Path, public_key: str | None = None) -> list[str]:
    """Check a run; what was found, in lines."""
    rows = read_rows(run_dir / "ledger.sqlite")
    terms = json.loads(rows[0]["body"])["terms"]
    lines = [f"{len(rows)} rows, chain whole", check_seal(run_dir, rows[-1]["hash"], public_key)]
    allowed = [(each["name"], each["parameters"]) for each in terms["mechanisms"]]
    fixed = terms["protection"], terms["noise"], terms["private"]
    for row in rows[1:]:
        given = json.loads(row["protection"]), row["noise"], bool(row["private"])
        if given != fixed or (row["mechanism"], json.loads(row["parameters"])) not in allowed:
            raise FoundError(f"row {row['seq']} is not what the terms allow")
        if row["mechanism"].startswith(COUNTS) and row is not rows[-1]:
            raise FoundError(f"row {row['seq']} counts held-out records, and is not the last")
    asked, answered = (sum(row[name] for row in rows[1:]) for name in ("asked", "answered"))
    bound = budget = math.inf if terms["epsilon"] is None else terms["epsilon"]
    caps = None
    if None not in (terms["most_asked"], terms["most_answered"]):
        sums, most = (
            sum(each[2] for each in some if not each[0].startswith(COUNTS))
            for some in (_charges(rows[1:]), _caps(terms))
        )
        if asked > terms["most_asked"] or answered > terms["most_answered"] or sums > most:
            raise FoundError("more was asked or answered than the terms allow")
        if sums < most and any(row["mechanism"].startswith(COUNTS) for row in rows[1:]):
            raise FoundError("a row counts held-out records before all sums of the terms")
        caps = _caps(terms)
        bound = min(budget, *own_epsilon(terms, caps))
    unsure = None
    for row in rows[1:]:
        # The second tier takes a while, so the last row alone is held to it, others to that of the caps.
        charged, stated = _charges(rows[1 : row["seq"] + 1]), row["epsilon"]
        own, far = _own(terms, charged, stated if row is rows[-1] else math.inf)
        if caps and _whole(terms) and stated * far < min(bound, own):
            together, far = _own(terms, caps, stated)
            own = min(together, own)
        unsure = _hold(f"row {row['seq']}", stated, min(bound, own), far, terms) or unsure
    path = run_dir / "metrics.json"
    if path.is_file() and len(rows) > 1:
        metrics = json.loads(_read(path))
        stated, delta = metrics["privacy"]["student"]["data_independent"], metrics["privacy"]["delta"]
        counts = metrics["queries_asked"], metrics["queries_answered"]
        if metrics["status"] == "success" and (counts != (asked, answered) or delta != terms["delta"]):
            raise FoundError(
                f"metrics.json: {counts} queries at δ={delta}; the rows have {(asked, answered)}"
            )
        if stated is not None and bound < math.inf:
            own, far = _own(terms, caps, stated) if caps else (bound, EXACT)
            bound = min(budget, own)
            unsure = _hold("metrics.json", stated, bound, far, terms) or unsure
            lines.append(
                f"ε={stated:.4g} at δ={delta:g} is stated, ours is {bound:.4g}: held to a factor of {far}"
            )
    if unsure is not None:
        raise NoBoundError(unsure)
    return lines


def _whole(terms: Given) -> bool:
    """Whether what is stated may be of bit and winner on the same votes, which cost less together."""
    protection, [first, *more] = terms["protection"], terms["mechanisms"]
    vanish = protection["unit"] == "hospital" and protection["adjacency"] == "add-or-remove-one"
    name, caps = first["name"], (terms["most_asked"], terms["most_answered"])
    plain = terms["coordinator"]["kind"] == "plain" and name == "confident-gnmax" and not more
    return plain and not vanish and None not in caps


def _own(terms: Given, charges: list[Charge], stated: float) -> tuple[float, float]:
    """Our own ε, and by how much it may be above what is `stated`; ∞: held to the first tier."""
    bound, gauss = own_epsilon(terms, charges)
    if bound == gauss or bound <= stated * EXACT < math.inf:
        return bound, EXACT
    most = max(each[2] for each in charges)
    many = most > SOME and _whole(terms)
    if many and min(bound, gauss) <= stated * WHOLE < math.inf:  # what takes the second tier a minute
        return min(bound, gauss), WHOLE
    second = _second_tier() if stated < math.inf else None
    if second is not None:
        honest = len(terms["mechanisms"]) == 1 and terms["coordinator"]["kind"] == "plain"
        found = second(charges, terms["protection"], terms["delta"], bound, honest=honest)
        if found < math.inf:
            return min(bound, found), EXACT if most <= FEW else WHOLE if many else MANY
    return min(bound, gauss), NEAR


def _second_tier() -> Callable[..., float] | None:
    """The second file's ε of votes, if it lies beside this one and there is NumPy."""
    try:
        module = import_module(f"{__package__}.verify_exact" if __package__ else "verify_exact")
    except ImportError:
        return None
    found: Callable[..., float] = module.votes_epsilon
    return found


def _hold(where: str, stated: float, own: float, near: float, terms: Given) -> str | None:
    """Nothing where what is stated is near our own; why not, where ours is known to be far above."""
    if stated * near >= own:
        return None
    name, given = _ours(terms["mechanisms"][0]["name"], terms["mechanisms"][0]["parameters"])
    if near == NEAR and stated >= 0 and _whole(terms):
        return (
            f"{where} states ε={stated:.4g}, ours is {own:.4g} with bit and winner apart; on the same votes "
            "they cost less together: Python with NumPy, and verify_exact.py beside this file, checks that"
        )
    if near == NEAR and stated >= 0 and name == "lnmax" and given["scale"] > WIDE:
        return (
            f"{where} states ε={stated:.4g}, ours is {own:.4g} of all noisy totals; the winner alone costs "
            "less, and of so much Laplace noise no bound of it is known here"
        )
    raise FoundError(f"{where} states ε={stated:.4g}; by our own reckoning it is {own:.4g}")


def main(arguments: list[str]) -> int:
    """Run as a command."""
    if not 1 <= len(arguments) <= 2:
        print("python verify_independent.py RUN_DIR [PUBLIC_KEY]", file=sys.stderr)
        return 2
    if not (Path(arguments[0]) / "ledger.sqlite").is_file():
        print(f"{arguments[0]} is no run directory: it has no ledger.sqlite", file=sys.stderr)
        return 2
    try:
        print("\n".join(verify(Path(arguments[0]), *arguments[1:])))
    except (FoundError, ValueError, KeyError, TypeError, ArithmeticError, RecursionError) as error:
        print(f"NOT AS STATED: {error}", file=sys.stderr)
        return 6
    except NoBoundError as error:
        print(f"chain, rows and seal are whole; {error}", file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
