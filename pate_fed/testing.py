"""Checks of parts of one's own, as our tests have them of ours: for a test of the package that has the part.

Each makes the part, runs it on made-up inputs and says in words what it found. What passes is not proven.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pate_fed.errors import InputError, IntegrityError, PateFedError
from pate_fed.privacy.mechanisms.noise import SeededNoise
from pate_fed.privacy.mechanisms.own import KIND, OwnMechanism, make_aggregator, own_mechanism
from pate_fed.privacy.mechanisms.prices import Heard
from pate_fed.privacy.planning.attack import (
    MANY_TRIALS,
    AttackResult,
    Row,
    attack,
    audit_own,
    check_sampling,
    one_run_bound,
)
from pate_fed.privacy.protection import RECORD, Protection
from pate_fed.structure.parts import hold_part, release_parts

if TYPE_CHECKING:
    from pate_fed.privacy.bounds.cost import Plain

_ENOUGH = 0.5  # nats at order 2, that a unit is to cost where a claim is tried: less shows in too few samples
_SECOND = 40  # of the claimed orders: 2
_SEEDS = 32
_CANARIES = 10  # for each trial
_PAIRS = 250  # of classes, in the study that canaries are in
_GUESSED = 100  # canaries for each one that is guessed


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """What a check found of `name`: faults, a sentence each, and what was tried."""

    name: str
    faults: tuple[str, ...]
    tried: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether no fault was found."""
        return not self.faults

    def require(self) -> None:
        """Refuse a part with faults: InputError has them."""
        if self.faults:
            raise InputError(f"{self.name}: {'; '.join(self.faults)}")

    def __str__(self) -> str:
        """All of it, in lines."""
        found = [f"  FAULT: {fault}" for fault in self.faults] or ["  no fault found, which proves nothing"]
        return "\n".join([f"{self.name}:", *found, *(f"  tried: {each}" for each in self.tried)])


def check_mechanism(
    part: Any,
    *,
    classes: int = 3,
    num_teachers: int = 250,
    protection: Protection = RECORD,
    parameters: Mapping[str, Plain] | None = None,
    seed: int = 0,
    trials: int = 15_000,
) -> Check:
    """Attack a mechanism of votes (`pate_fed.privacy.mechanisms.own`): its price, its noise, its memory.

    It is made twice and asked the same with the same noise, before and after other queries. Then small and
    close votes, and those at which its answers change most, are sampled for an event that tells neighbours
    apart by more than its curve allows (`pate_fed.privacy.planning.attack`): with `protection`, and with so
    many votes moved that they cost enough to show. A right one is accused once in 500 checks at most.
    """
    name = getattr(part, "__name__", type(part).__name__)
    faults, tried = list[str](), list[str]()
    clean = copy.deepcopy(part)  # asked nothing yet
    try:
        mechanism = own_mechanism(
            part, classes=classes, num_teachers=num_teachers, protection=protection, parameters=parameters
        )
    except InputError as error:
        return Check(name=name, faults=(str(error),), tried=("its price, and some releases",))

    def fresh() -> Any:
        return copy.deepcopy(
            make_aggregator(clean, dict(mechanism.claim.parameters), what=f"{KIND} {name!r}")
        )

    try:
        faults += _memory(mechanism, fresh)
        tried.append(f"{_SEEDS} votes with the same noise twice, before other queries and after them")
        for one in _units(mechanism, fresh()):
            found = audit_own(one, SeededNoise(seed), code=fresh(), trials=trials)
            tried.append(f"{one.protection.text()}: {found.text}")
            faults += [] if found.passed else [f"leaks more than it is charged for, {tried[-1]}"]
    except IntegrityError as error:
        faults.append(str(error))
    return Check(name=name, faults=tuple(faults), tried=tuple(tried))


def _memory(mechanism: OwnMechanism, fresh: Any) -> list[str]:
    """Labels that do not follow from votes and the given noise alone."""
    used, silent, found = fresh(), True, dict[str, None]()
    even = mechanism.num_teachers // mechanism.num_classes
    for seed in range(_SEEDS):
        votes = np.full(mechanism.num_classes, even, dtype=np.int64)
        votes[seed % mechanism.num_classes] += seed % 3
        heard = Heard(SeededNoise(seed))
        first = mechanism.label(fresh(), votes, heard)
        silent &= heard.silent
        if mechanism.label(fresh(), votes, SeededNoise(seed)) != first:
            found["has randomness of its own: the same votes and the same noise give another label"] = None
        elif mechanism.label(used, votes, SeededNoise(seed)) != first:
            found["remembers: other queries before change the label of the same votes and noise"] = None
    return [*found, *(["asks for none of the noise that it is given"] if silent else [])]


def _units(mechanism: OwnMechanism, made: Any) -> list[OwnMechanism]:
    """The mechanism for its own unit, and for one that moves so many votes that it costs enough to show."""
    units, votes = [mechanism], 2 * mechanism.protection.votes_moved
    while votes <= mechanism.num_teachers // 4 and units[-1].claim.rdp[: _SECOND + 1][-1] < _ENOUGH:
        wide = replace(mechanism.protection, votes_moved=votes)
        try:
            found = own_mechanism(
                made,
                classes=mechanism.num_classes,
                num_teachers=mechanism.num_teachers,
                protection=wide,
                parameters=dict(mechanism.claim.parameters),
            )
        except InputError:  # it claims nothing for such a unit
            break
        units, votes = [mechanism, found], 2 * votes
    return units


def check_teacher(part: Any, inputs: NDArray[Any] | None = None, *, classes: int = 3, seed: int = 0) -> Check:
    """Try a teacher (`pate_fed.learning.teachers.own`) on made-up images, or on public `inputs` (n, ...)."""
    from pate_fed.learning.teachers.own import fit_own_teacher, is_network, make_own, try_own

    if inputs is None:
        inputs = np.random.default_rng(0).integers(0, 256, (24, 16, 16, 1), np.uint8)
    name, faults = getattr(part, "__name__", type(part).__name__), list[str]()
    what = f"teacher {name!r}"
    try:
        try_own(part, inputs, what=what, num_classes=classes)
        given: dict[str, Any] = {"what": what, "num_classes": classes}
        made = make_own(part, input_shape=inputs.shape[1:], rows=inputs.ndim == 2, **given)
        if not is_network(made):
            labels = np.arange(len(inputs), dtype=np.int64) % classes
            first, again = (
                fit_own_teacher(copy.deepcopy(made), inputs, labels, seed=seed, **given).predict(inputs)
                for _ in range(2)
            )
            if not np.array_equal(first, again):
                faults.append("has randomness of its own: the same records and seed give another teacher")
    except PateFedError as error:
        faults.append(str(error))
    tried = (f"made, taught and asked twice with {len(inputs)} inputs {inputs.shape[1:]} of made-up classes",)
    return Check(name=name, faults=tuple(faults), tried=tried)


def check_feature_map(part: Any, public: NDArray[Any] | None = None) -> Check:
    """Try a map (`pate_fed.learning.features.own`) on made-up images, or on `public` inputs (n, ...)."""
    from pate_fed.learning.features.feature_map import FeatureSettings
    from pate_fed.learning.features.own import own_features

    rng = np.random.default_rng(0)
    public = rng.integers(0, 256, (64, 16, 16, 1), np.uint8) if public is None else public
    name, faults = getattr(part, "__name__", type(part).__name__), list[str]()
    try:
        made = own_features(FeatureSettings(name=hold_part(part, "feature_map")[0]), public)
        made.contributions(rng.permutation(public), np.arange(len(public)) % 2, num_classes=2)
    except PateFedError as error:
        faults.append(str(error))
    finally:
        release_parts()
    tried = (f"{len(public)} inputs {public.shape[1:]}, alone, beside others, before records and after",)
    return Check(name=name, faults=tuple(faults), tried=tried)


def check_kind(
    part: Any, inputs: NDArray[Any], labels: NDArray[np.int64], *, seed: int = 0, trials: int = 2_000
) -> Check:
    """Try a kind of question (`pate_fed.kinds.own`) on records (n, ...) with classes, one of them replaced.

    Its first question is answered with each of some records in another's place. What is released is sampled
    as a mechanism's labels are, under whole noise and under that of four hospitals. A right one is accused
    once in 500 checks at most.
    """
    from pate_fed.kinds.own import KIND as OWN_KIND
    from pate_fed.kinds.own import sizes_of

    name, faults, tried = getattr(part, "__name__", type(part).__name__), list[str](), list[str]()
    try:
        made = make_aggregator(part, {}, what=f"{OWN_KIND} {name!r}")
        _, rows, columns, _, _ = sizes_of(made, name)
        rdp = own_mechanism(part, classes=rows * columns, num_teachers=0).claim.rdp
        source, places = SeededNoise(seed), made.ask([])
        answers = [
            tuple(made.answer(inputs[at], labels[at], None, places).ravel().tolist())
            for at in _replaced(len(inputs))
        ]
        for shares in (1, 4):

            def draw(row: Row, count: int, shares: int = shares) -> NDArray[np.int64]:
                exact = np.array(row, dtype=np.int64).reshape(rows, columns)
                noisy = (
                    exact + sum(made.noise(exact.shape, source, shares) for _ in range(shares))
                    for _ in range(count)
                )
                released = [made.release(each, source) for each in noisy]
                return np.bincount(released, minlength=rows * columns)

            pairs = [(answers[0], each) for each in answers[1:]]
            found = attack(name, rdp, pairs, draw, trials=trials)
            tried.append(f"one record replaced, noise in {shares} shares: {found.text}")
            faults += [] if found.passed else [f"leaks more than it is charged for, {tried[-1]}"]
    except PateFedError as error:
        faults.append(str(error))
    return Check(name=name, faults=tuple(faults), tried=tuple(tried))


def _replaced(count: int) -> list[NDArray[np.int64]]:
    """Places of all records, and with one of eight in its neighbour's place."""
    found = [np.arange(count)]
    for one in np.linspace(0, count - 1, 8, dtype=np.int64):
        found.append(np.where(found[0] == one, (one + count // 2) % count, found[0]))
    return found


def audit_study(
    *,
    noise_at: str = "coordinator",
    trials: int = MANY_TRIALS,
    confidence: float = 0.99,
    seed: int | None = None,
) -> AttackResult:
    """Run a study of class sums whose records are canaries, and guess them from its published student.

    Each record is of one of two classes by a fair coin, so that the other side of a coin is another record in
    its place: the unit that is charged. No two have cells of the sums in common. Of the one in a hundred that
    the student is surest about, half for either side, the coin is guessed (`one_run_bound`); there are ten
    times `trials`. By default half the noise is caught. A right study shows about half of its ε. `seed` is of
    the coins and of the study, whose noise protects nobody then.

    Raises:
        InputError: too few trials, a confidence that is none, or another place of noise.
    """
    from pate_fed.cli.simulate import simulate

    check_sampling(trials, confidence)
    size = trials * _CANARIES // _PAIRS
    rows = np.arange(size, dtype=np.float64)[:, None]
    coins = np.random.default_rng(seed).integers(0, 2, (size, _PAIRS))
    data = {
        "private_images": np.repeat(rows, _PAIRS, axis=0),
        "private_labels": (2 * np.arange(_PAIRS) + coins).ravel(),
        "public_images": rows,
        "class_names": tuple(map(str, range(2 * _PAIRS))),
    }
    one_hot = np.eye(size)
    privacy = {"epsilon": 2.0, "delta": round((1 - confidence) / 10_000, 12)}
    sums = {"aggregation": {"aggregator": "class-sums"}, "student": {"name": "ridge"}}
    secrecy, study = {"secure_sum": True, "noise_at": noise_at}, {} if seed is None else {"seed": seed}
    if noise_at == "hospitals":
        secrecy["colluders"] = 0  # else there is more noise than is charged for, which hides faults
    with tempfile.TemporaryDirectory() as folder:
        run = simulate(
            {"study": study, "parties": {"num_clients": 4}, "privacy": privacy, "secrecy": secrecy, **sums},
            run_dir=Path(folder) / "run",
            quiet=True,
            dataset=lambda: data,
            feature_map=lambda _: lambda inputs: one_hot[inputs[:, 0].astype(np.int64)],
        )
        scores = np.log(np.maximum(run.student.predict_proba(rows), 1e-300))
        charged, delta = run.epsilon, run.delta
    half, order = coins.size // _GUESSED // 2, np.argsort((scores[:, 1::2] - scores[:, ::2]).ravel())
    guessed = coins.ravel()[order[-half:]], 1 - coins.ravel()[order[:half]]
    right, seen = int(np.sum(guessed)), {"guesses": 2 * half, "canaries": coins.size}
    return AttackResult(
        name=f"a study of class sums, noise at the {noise_at}",
        delta=delta,
        measured=one_run_bound(right, **seen, delta=delta, confidence=confidence),
        charged=np.inf if charged is None else charged,
        tried=f"{right} of {2 * half} guesses about {coins.size} canaries right",
        confidence=confidence,
        few=trials < MANY_TRIALS,
    )
