"""Mechanisms of the user's own: what their code claims is fixed before the first query, then it answers.

A part is an object, a class that gives one, or a factory `make(**parameters)`. The object has
- `release(totals, noise)`: the label of one query, a class from 0 on, or None for no answer. `totals` are
  its exact counts of votes, int64 (classes,); `noise` is a `NoiseSource` with `discrete_gaussian(shape,
  sigma=)`, `discrete_laplace(shape, scale=)` and `tie_keys(shape)`, uniform whole numbers from 1 to 2^62. All
  its randomness comes from there, and nothing of one query stays for the next.
- `rdp(order, sensitivity)`: a bound in nats on the Rényi divergence of what one query shows, label or none,
  between any two neighbouring totals (see `Sensitivity`); ∞ where there is none at that order. Or
  `dp_event(sensitivity)`, a DpEvent of dp-accounting.
- `parameters()`: plain values (numbers, truth values, texts) by name, from which a factory makes the same
  again; those of a dataclass are its fields.

Every asked query is charged the whole curve, answered or not. Curve and randomness are the mechanism's word;
whatever states an ε says so. The curve is read once and stands in the terms and the ledger: code that says
something else later is refused, and changes no ε.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from fractions import Fraction
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
    check_curve,
)
from pate_fed.privacy.checks import check_count, is_number
from pate_fed.privacy.mechanisms.events import (
    PLAIN,
    CoordinatorView,
    Mechanism,
    cost_of_dp_event,
    is_dp_event,
)
from pate_fed.privacy.mechanisms.noise import NoiseSource, SeededNoise, as_noise
from pate_fed.privacy.mechanisms.noisy_max import MOST_TEACHERS, NOT_ANSWERED, Release, check_totals, finish
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivity(Protection):
    """What a mechanism may rely on of one query's totals: sizes, and how far one unit moves them.

    Shapes: totals are (num_classes,), each from 0 to `num_teachers`. Of neighbouring totals `l1` bounds the
    L1 and `l2_squared` the squared L2 distance, `top` by how much the largest differs, in votes.
    `votes_moved` votes go from class to class, or, with `votes_vanish`, appear or disappear.
    """

    num_teachers: int
    num_classes: int


def _sensitivity(of: Protection, num_teachers: int, num_classes: int) -> Sensitivity:
    return Sensitivity(**asdict(of), num_teachers=num_teachers, num_classes=num_classes)


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
        return Cost.of_claim(ClaimedCurve(self.claim.rdp))

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
        source, code = as_noise(noise), self._code()  # loaded and held to its claim before any query
        label = np.full(len(votes), NOT_ANSWERED, dtype=np.int64)
        left, asked = len(votes) if max_answers is None else check_count("max_answers", max_answers), 0
        while asked < len(votes) and left > 0:
            # one query at a time: each is charged the whole curve
            label[asked] = self.label(code, votes[asked], source)
            left -= int(label[asked] != NOT_ANSWERED)
            asked += 1
        label = label[:asked]
        return finish(self, label != NOT_ANSWERED, label, source, protection, coordinator)

    def _code(self) -> Any:
        """The code, which still claims the same."""
        what = f"{KIND} {self.name!r}"
        found = make_aggregator(load_part(self.name, KIND), dict(self.claim.parameters), what=what)
        same = own_parameters(found, what=what) == self.claim.parameters
        curve = dict(zip(CLAIMED_ORDERS, self.claim.rdp, strict=False))
        spots = [order for order in _SPOT if order in curve]
        read = _curve(found, self._sensitivity, spots, what=what)
        fixed = [curve[order] for order in spots]
        if not same or len(read) != len(fixed) or not np.allclose(read, fixed, rtol=_SLACK, atol=0):
            raise IntegrityError(f"{what}: claims another curve or other parameters than the terms say")
        return found

    @property
    def _sensitivity(self) -> Sensitivity:
        return _sensitivity(self.protection, self.num_teachers, self.num_classes)

    def label(self, code: Any, totals: Ints, noise: NoiseSource) -> int:
        """A class or `NOT_ANSWERED` for totals int64 (classes,); IntegrityError where the code fails."""
        try:
            found = _class_of(code.release(totals.copy(), noise), self.num_classes)
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
        return found


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
    sensitivity = _sensitivity(protection, num_teachers, classes)
    curve = _whole_curve(made, sensitivity, what=what)
    if _whole_curve(made, sensitivity, what=what) != curve:
        raise InputError(f"{what}: claims another curve each time it is asked; one that is fixed is meant")
    again = make_aggregator(part, dict(given), what=what)
    if own_parameters(again, what=what) != given or _whole_curve(again, sensitivity, what=what) != curve:
        raise InputError(
            f"{what}: is another when it is made again from its own parameters(); these must say all of it"
        )
    _try_release(made, sensitivity, what=what)
    claim = Claim(
        part=known,
        parameters=given,
        unit=protection.unit,
        adjacency=protection.adjacency,
        votes_moved=protection.votes_moved,
        rdp=curve,
    )
    return OwnMechanism(num_teachers=num_teachers, num_classes=classes, claim=claim)


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
    curve = getattr(made, "rdp", None) or getattr(made, "dp_event", None)
    if not (callable(getattr(made, "release", None)) and callable(curve)):
        raise InputError(
            f"{what}: made a {type(made).__name__}; an object with release, and rdp or dp_event, is meant"
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


def _whole_curve(made: Any, sensitivity: Sensitivity, *, what: str) -> tuple[float, ...]:
    """RDP at all orders up to the last at which it is finite, held to what a curve can be."""
    claimed = _curve(made, sensitivity, CLAIMED_ORDERS, what=what)
    check_curve(claimed, what)
    return claimed


def _curve(made: Any, sensitivity: Sensitivity, orders: Sequence[float], *, what: str) -> tuple[float, ...]:
    if callable(getattr(made, "rdp", None)):
        with telling(f"{what}: its privacy curve fails"):
            given = [made.rdp(order, sensitivity) for order in orders]
    else:
        with telling(f"{what}: its privacy curve fails"):
            event = made.dp_event(sensitivity)
        if not is_dp_event(event):
            raise InputError(
                f"{what}: dp_event gives a {type(event).__name__}; a DpEvent of dp-accounting is meant"
            )
        with telling(f"{what}: its privacy curve fails"):
            curve = cost_of_dp_event(event)
            given = [math.nextafter(float(curve.rdp(Fraction(order))), math.inf) for order in orders]
    found: list[float] = []
    for order, value in zip(orders, given, strict=True):
        if not is_number(value) or math.isnan(value):
            raise InputError(
                f"{what}: claims an RDP of {value!r} at order {order:.4g}; nats above 0 are meant"
            )
        if value == math.inf:
            break
        found.append(float(value))
    return tuple(found)


def _try_release(made: Any, sensitivity: Sensitivity, *, what: str) -> None:
    """Ask it once about made-up totals, so that a fault is a sentence before any vote is asked for."""
    classes, most = sensitivity.num_classes, min(sensitivity.num_teachers, 250)
    votes = np.zeros((3, classes), dtype=np.int64)
    votes[0, 0], votes[1, :2] = most, most // 2  # all agree, a tie, and nobody voted
    for totals in votes:
        with telling(f"{what}: release fails"):
            given = made.release(totals.copy(), SeededNoise(0))
        if _class_of(given, classes) is None:
            raise InputError(
                f"{what}: release gives {given!r}; a class from 0 to {classes - 1}, or None, is meant"
            )


def _class_of(given: Any, num_classes: int) -> int | None:
    """The class as a number, `NOT_ANSWERED` for None; None for what is neither."""
    if given is None:
        return NOT_ANSWERED
    if isinstance(given, bool | np.bool_) or not isinstance(given, int | np.integer):
        return None
    return int(given) if 0 <= given < num_classes else None
