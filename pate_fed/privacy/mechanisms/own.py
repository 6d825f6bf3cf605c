"""Mechanisms of the user's own: what their code claims is fixed before the first query, then it answers.

A part is an object, a class that gives one, or a factory `make(**parameters)`. The object has
- `release(totals, noise)`: the label of one query, a class from 0 on, or None for no answer. `totals` are
  its exact counts of votes, int64 (classes,); `noise` is a `NoiseSource` with `discrete_gaussian(shape,
  sigma=)`, `discrete_laplace(shape, scale=)` and `tie_keys(shape)`, uniform whole numbers from 1 to 2^62. All
  its randomness comes from there, and nothing of one query stays for the next.
- what a query costs, by one or several of these; the smallest that follows is charged:
  `rdp(order, sensitivity)`, a bound in nats on the Rényi divergence of what one query shows, label or none,
  between any two neighbouring totals (see `Sensitivity`), ∞ where there is none at that order;
  `dp_event(sensitivity)`, a DpEvent of dp-accounting; `pure_dp(sensitivity)`, the ε of pure DP; or
  `noise_on_totals()`, a `TotalsNoise`, where the class with the largest noisy total is the answer.
- `parameters()`: plain values (numbers, truth values, texts) by name, from which a factory makes the same
  again; those of a dataclass are its fields.

Every asked query is charged all of it, answered or not. Curve and randomness are the mechanism's word;
whatever states an ε says so. The curve is read once and stands in the terms and the ledger: code that says
something else later is refused, and changes no ε.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pate_fed.errors import InputError, IntegrityError
from pate_fed.privacy.bounds.cost import (
    CLAIMED_ORDERS,
    Claim,
    ClaimedCurve,
    Cost,
    Parameters,
    Plain,
)
from pate_fed.privacy.bounds.noise_law import GAUSSIAN
from pate_fed.privacy.checks import check_count
from pate_fed.privacy.mechanisms.events import (
    PLAIN,
    CoordinatorView,
    Mechanism,
)
from pate_fed.privacy.mechanisms.noise import NoiseSource, SeededNoise, as_noise
from pate_fed.privacy.mechanisms.noisy_max import (
    MOST_TEACHERS,
    NOT_ANSWERED,
    GNMax,
    LNMax,
    Release,
    check_totals,
    finish,
)
from pate_fed.privacy.mechanisms.prices import (
    ROADS,
    Heard,
    Price,
    Sensitivity,
    TotalsNoise,
    law_of,
    price_at,
    whole_price,
)
from pate_fed.privacy.protection import RECORD, Protection
from pate_fed.structure import from_plain, to_plain
from pate_fed.structure.faults import describe, ends_process, telling
from pate_fed.structure.parts import (
    PartIdentity,
    load_part,
    object_identity,
    own_identity,
    part_identity,
    require_same_part,
)

Ints = NDArray[np.int64]
KIND = "aggregator"
_SLACK = 1e-9  # by which another machine's logarithms may differ
_SPOT = CLAIMED_ORDERS[::19]  # at which a curve is read again before each release


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class OwnMechanism(Mechanism):
    """A claimed mechanism as events and ledgers hold it; its code is loaded when it releases.

    Without teachers it is of a kind of question of one's own, which releases a number below `num_classes`.
    """

    num_teachers: int = MOST_TEACHERS
    num_classes: int
    claim: Claim

    def __post_init__(self) -> None:
        check_count("num_teachers", self.num_teachers)
        check_count("num_classes", self.num_classes, least=2)
        if self.claim.noise and not self.num_teachers:
            raise InputError(f"{self.name}: noise on totals of votes is claimed of what is no vote")

    @property
    def name(self) -> str:  # type: ignore[override]
        """The code's, module:attribute."""
        return self.claim.part.name

    @property
    def protection(self) -> Protection:
        """The neighbours for which the curve is claimed."""
        claim = self.claim
        return Protection(unit=claim.unit, adjacency=claim.adjacency, votes_moved=claim.votes_moved)

    def __repr__(self) -> str:
        """Name and parameters: the curve is long."""
        own = "".join(f", {name}={value!r}" for name, value in self.claim.parameters)
        return f"OwnMechanism({self.name}{own}, num_classes={self.num_classes}, curve claimed)"

    def parameters(self) -> dict[str, Any]:
        """All of it as plain values."""
        return {
            "num_teachers": int(self.num_teachers),
            "num_classes": int(self.num_classes),
            "claim": to_plain(self.claim),
        }

    @classmethod
    def from_parameters(cls, name: str, parameters: Mapping[str, Any]) -> OwnMechanism:
        """What `parameters` gave; InputError: it is not that, or another name's."""
        if set(parameters) != {"num_teachers", "num_classes", "claim"}:
            raise InputError(f"mechanism={name!r} has the parameters claim, num_classes, num_teachers")
        claim = from_plain(Claim, parameters["claim"], where=f"mechanism {name!r}")
        if claim.part.name != name:
            raise InputError(f"mechanism={name!r}: the claim is that of {claim.part.name}")
        sizes = {key: parameters[key] for key in ("num_teachers", "num_classes")}
        return cls(**sizes, claim=claim)

    def cost_asked(self, protection: Protection) -> Cost:
        """The claimed curve, for every query that is asked.

        Raises:
            InputError: another protection than the claim is for.
        """
        if replace(protection, hospitals=1) != self.protection:  # of hospitals only their votes count
            raise InputError(
                f"{self.name}: its curve is claimed for {self.protection.text()}, not for {protection.text()}"
            )
        claim = self.claim
        if claim.noise == GAUSSIAN:
            return GNMax(classes=self.num_classes, sigma=claim.scale).cost_asked(self.protection)
        if claim.noise:
            return LNMax(classes=self.num_classes, scale=claim.scale).cost_asked(self.protection)
        return Cost.of_claim(ClaimedCurve(claim.rdp, math.inf if claim.pure is None else claim.pure))

    @property
    def answers_all(self) -> bool:  # type: ignore[override]
        """Whether a class wins every query, by the noise that is claimed."""
        return bool(self.claim.noise)

    def release(
        self,
        totals: ArrayLike,
        noise: NoiseSource | np.random.Generator,
        *,
        max_answers: int | None = None,
        protection: Protection = RECORD,
        coordinator: CoordinatorView = PLAIN,
    ) -> Release:
        """Have its code answer queries in order; none is asked after `max_answers`.

        Shapes: `totals` int (queries, classes).

        Raises:
            InputError: totals that are no vote totals, or code that cannot be loaded.
            IntegrityError: the code claims something else than before, fails, or gives what is no class.
                What it fails with follows from votes, so the message tells nothing of it.
        """
        votes = check_totals(totals, num_teachers=self.num_teachers, num_classes=self.num_classes)
        source, code = as_noise(noise), self.code()  # loaded and held to its claim before any query
        label = np.full(len(votes), NOT_ANSWERED, dtype=np.int64)
        left, asked = len(votes) if max_answers is None else check_count("max_answers", max_answers), 0
        while asked < len(votes) and left > 0:
            # one query at a time: each is charged the whole curve
            label[asked] = self.label(code, votes[asked], source)
            left -= int(label[asked] != NOT_ANSWERED)
            asked += 1
        label = label[:asked]
        return finish(self, label != NOT_ANSWERED, label, source, protection, coordinator)

    def code(self) -> Any:
        """The object of the code that is here, which still claims the same; IntegrityError: it does not."""
        what = f"{KIND} {self.name!r}"
        found = make_aggregator(load_part(self.name, KIND), dict(self.claim.parameters), what=what)
        same = own_parameters(found, what=what) == self.claim.parameters
        curve = dict(zip(CLAIMED_ORDERS, self.claim.rdp, strict=False))
        spots = [order for order in _SPOT if order in curve]
        read = price_at(found, self._sensitivity, spots, what=what)
        fixed = [curve[order] for order in spots]
        same = same and read[1:] == Price.of(self.claim)[1:]
        if not same or len(read.rdp) != len(fixed) or not np.allclose(read.rdp, fixed, rtol=_SLACK, atol=0):
            raise IntegrityError(f"{what}: claims another curve or other parameters than the terms say")
        return found

    @property
    def _sensitivity(self) -> Sensitivity:
        sizes = {"num_teachers": self.num_teachers, "num_classes": self.num_classes}
        return Sensitivity.of(self.protection, **sizes)

    def label(self, code: Any, totals: Ints, noise: NoiseSource) -> int:
        """A class or `NOT_ANSWERED` for totals int64 (classes,); IntegrityError where the code fails."""
        law = law_of(self.claim)
        try:
            given, winner = _answer(code, totals, noise, law)
            found = _class_of(given, self.num_classes)
        except BaseException as error:
            if ends_process(error):
                raise
            # Neither its words nor its trace: they may quote totals.
            raise IntegrityError(
                f"{KIND} {self.name!r}: release fails ({describe(error, words=False)}); nothing of this "
                "batch was released"
            ) from None
        if found is None:
            raise IntegrityError(
                f"{KIND} {self.name!r}: gives neither a class of the study nor None; nothing of this batch "
                "was released"
            )
        if law is not None and found != winner:
            raise IntegrityError(
                f"{KIND} {self.name!r}: {_ANOTHER.format(law.law, law.scale)}; nothing of this batch was "
                "released"
            )
        return found


_ANOTHER = (
    "gives another class than wins by one draw of the {} noise of {:g} votes that it claims, ties by the "
    "largest of tie_keys"
)


def _answer(code: Any, totals: Ints, noise: NoiseSource, law: TotalsNoise | None) -> tuple[Any, int | None]:
    """What the code gives, and the class that wins by the law that it is held to."""
    if law is None:
        return code.release(totals.copy(), noise), None
    heard = Heard(noise)
    given = code.release(totals.copy(), heard)
    return given, heard.winner(totals, law)


def own_mechanism(
    part: Any,
    *,
    classes: int,
    num_teachers: int = MOST_TEACHERS,
    protection: Protection = RECORD,
    parameters: Mapping[str, Plain] | None = None,
    name: str = "",
    identity: PartIdentity | None = None,
) -> OwnMechanism:
    """A mechanism of one's own with its curve read, for an `Accountant` or a study.

    `part` is the object, class or factory. `name` is what errors call it, `identity` its code; without one
    it can be charged, and not released.

    Raises:
        InputError: the part is none, fails, or claims no curve; the message names it.
    """
    known = identity or own_identity(part, name)
    what = f"{KIND} {known.name!r}"
    made = make_aggregator(part, parameters or {}, what=what)
    given = own_parameters(made, what=what)
    sensitivity = Sensitivity.of(protection, num_teachers=num_teachers, num_classes=classes)
    price = whole_price(made, sensitivity, what=what)
    if whole_price(made, sensitivity, what=what) != price:
        raise InputError(f"{what}: claims another curve each time it is asked; one that is fixed is meant")
    again = make_aggregator(part, dict(given), what=what)
    if own_parameters(again, what=what) != given or whole_price(again, sensitivity, what=what) != price:
        raise InputError(
            f"{what}: is another when it is made again from its own parameters(); these must say all of it"
        )
    claim = Claim(
        part=known,
        parameters=given,
        unit=protection.unit,
        adjacency=protection.adjacency,
        votes_moved=protection.votes_moved,
        **price._asdict(),
    )
    mechanism = OwnMechanism(num_teachers=num_teachers, num_classes=classes, claim=claim)
    _try_release(made, mechanism, what=what)
    return mechanism


_CHECKED: set[OwnMechanism] = set()  # whose code this process has loaded, and held its curve against


def check_claim(mechanism: OwnMechanism, part: Any = None) -> None:
    """Hold a claim against the code that is installed here, which is loaded and run.

    `part` is the code itself where it is an object of this process.

    Raises:
        InputError: the code is not installed here, or fails.
        IntegrityError: its source is another, or it claims more than what was charged.
    """
    claim, what = mechanism.claim, f"{KIND} {mechanism.name!r}"
    installed = part is None
    found = part_identity(mechanism.name, KIND) if installed else object_identity(part, mechanism.name)
    require_same_part(found, claim.part)
    if installed and mechanism in _CHECKED:
        return
    code = load_part(mechanism.name, KIND) if installed else part
    ours = own_mechanism(
        code,
        classes=mechanism.num_classes,
        num_teachers=mechanism.num_teachers,
        protection=mechanism.protection,
        parameters=dict(claim.parameters),
        identity=claim.part,
    ).claim
    beyond = len(claim.rdp) > len(ours.rdp)
    more = any(own > charged * (1 + _SLACK) for own, charged in zip(ours.rdp, claim.rdp, strict=False))
    more |= (ours.pure or math.inf) > (claim.pure or math.inf) * (1 + _SLACK)
    more |= (ours.noise, ours.scale) != (claim.noise, claim.scale)
    if ours.parameters != claim.parameters or beyond or more:
        raise IntegrityError(f"{what}: the code claims a larger curve than the one that was charged")
    if installed:
        _CHECKED.add(mechanism)


def make_aggregator(part: Any, parameters: Mapping[str, Plain], *, what: str) -> Any:
    """The object that a part is or makes of these parameters; InputError says `what` is none, or fails."""
    made = part
    if isinstance(part, type) or not hasattr(part, "release"):
        if not callable(part):
            raise InputError(
                f"{what}: is a {type(part).__name__}; a class, a factory or an object with release and rdp "
                "is meant"
            )
        with telling(f"{what}: fails when it is made of {dict(parameters)!r}"):
            made = part(**parameters)
    priced = any(callable(getattr(made, name, None)) for name in ROADS)
    if not (callable(getattr(made, "release", None)) and priced):
        raise InputError(
            f"{what}: made a {type(made).__name__}; an object with release, and {', '.join(ROADS[:-1])} or "
            f"{ROADS[-1]}, is meant"
        )
    return made


def own_parameters(made: Any, *, what: str) -> Parameters:
    """The parameters that an object says it has, by name; InputError: values that are not plain."""
    with telling(f"{what}: parameters fails"):
        if callable(getattr(made, "parameters", None)):
            given = dict(made.parameters())
        else:
            given = (
                {each.name: getattr(made, each.name) for each in fields(made)} if is_dataclass(made) else {}
            )
    found = {
        str(key): value.item() if isinstance(value, np.generic) else value for key, value in given.items()
    }
    for key, value in found.items():
        finite = not isinstance(value, float) or math.isfinite(value)
        if not isinstance(value, bool | int | float | str) or not finite:
            raise InputError(
                f"{what}: the parameter {key} is {value!r}; a number, a truth value or a text is meant"
            )
    return tuple(sorted(found.items()))


def _try_release(made: Any, mechanism: OwnMechanism, *, what: str) -> None:
    """Ask it about made-up totals, so that a fault is a sentence before any vote is asked for."""
    classes, most = mechanism.num_classes, min(mechanism.num_teachers, 250)
    law, noise = law_of(mechanism.claim), SeededNoise(0)
    votes = np.zeros((3 if law is None else 20, classes), dtype=np.int64)
    votes[0, 0], votes[1:-1, :2] = most, most // 2  # all agree, ties, and nobody voted
    for totals in votes:
        with telling(f"{what}: release fails"):
            given, winner = _answer(made, totals, noise, law)
        found = _class_of(given, classes)
        if found is None:
            raise InputError(
                f"{what}: release gives {given!r}; a class from 0 to {classes - 1}, or None, is meant"
            )
        if law is not None and found != winner:
            raise InputError(f"{what}: {_ANOTHER.format(law.law, law.scale)}")


def _class_of(given: Any, num_classes: int) -> int | None:
    """The class as a number, `NOT_ANSWERED` for None; None for what is neither."""
    if given is None:
        return NOT_ANSWERED
    if isinstance(given, bool | np.bool_) or not isinstance(given, int | np.integer):
        return None
    return int(given) if 0 <= given < num_classes else None
