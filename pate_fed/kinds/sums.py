"""Sums of features by class, which hospitals give once: terms, the one release, its cost, its words."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from pate_fed.config.registry import find_part
from pate_fed.config.sections import CLASS_SUMS, Privacy, Queries
from pate_fed.errors import InputError
from pate_fed.format import counted, delta_text, epsilon_text
from pate_fed.kinds.base import SHA256, Bounds, Check, KindTerms
from pate_fed.kinds.words import ALSO, Against, AtHome, Facts, Words, masks_hold, noise_and_masks
from pate_fed.learning.features.feature_map import DIRECTIONS, FeatureSettings
from pate_fed.privacy import CoordinatorView, LedgerTerms, Protection
from pate_fed.privacy.ledger.terms import guaranteed_epsilon
from pate_fed.privacy.mechanisms.class_sums import (
    ClassSums,
    SharedClassSums,
    SumShape,
    least_share,
    least_sigma,
)
from pate_fed.privacy.mechanisms.distributed import party_sigma
from pate_fed.privacy.mechanisms.events import EXACT_SUMS, NOISY_SUMS, Mechanism
from pate_fed.privacy.protection import FEATURE_MAP, Assumption, Shares
from pate_fed.structure import check, refusal, same_as, setting, to_plain
from pate_fed.structure.parts import PartIdentity

if TYPE_CHECKING:
    from pate_fed.kinds.terms import Terms


SumMechanism = ClassSums | SharedClassSums

_MOST_FEATURES = 1_000_000
_MOST_NORM = 10**12  # squared, in steps: beyond, no sum would fit into 32 bits
_MOST_SIGMA = 1e9
_MOST_SUMS = 10**8  # in one message
_LARGEST = 2**31 - 1  # sums under masks are read mod 2^32, around zero
_SIGMAS = 10  # of noise that an entry may have besides
_MAP = 64 * 2**20  # bytes: far more than a feature map's file has


@dataclass(frozen=True, slots=True, kw_only=True)
class SumTerms(KindTerms):
    """A public feature map, and the noise on the sums of its features by class.

    Nothing is trained or voted on: the sums are asked for once, under masks, and `labels` public inputs get a
    label that is made of them. `features` is the SHA-256 of the map's file, `dimension` its number of
    features. All is counted in the map's integer steps, `Terms.sigma_party` too: `squared_norm` bounds the
    squared length of what one record adds (with the unit patient one patient), `sigma` is the noise where
    the coordinator adds it, None where hospitals do. With the unit hospital `most_units` is to how many
    records' length a hospital's whole sum is cut, else None. `part` is the code of a map that is none of
    ours.

    Raises:
        InputError: a value of the wrong type or out of range.
    """

    totals_tell: ClassVar[bool] = True
    cuts_whole: ClassVar[bool] = False  # with the unit hospital, sums whose entries have signs
    kind: str = setting(CLASS_SUMS, choices=(CLASS_SUMS,))
    settings: FeatureSettings
    features: str = setting(**SHA256)
    dimension: int = setting(low=1, high=_MOST_FEATURES)
    squared_norm: int = setting(low=1, high=_MOST_NORM)
    sigma: float | None = setting(unit="steps", low=1e-6, high=_MOST_SIGMA)
    most_units: int | None = setting(unit="records", low=1, high=10**9)
    part: PartIdentity | None = None
    labels: int = same_as(Queries, "labels")

    def __post_init__(self) -> None:
        check(self)
        own = self.settings.name if self.settings.own else None
        if own != (None if self.part is None else self.part.name):
            raise refusal(
                self, "part", "the code of the very feature map, where it is none of ours, is meant"
            )

    def checks(self, terms: Terms) -> Iterator[Check]:
        """Masks, noise of the one who adds it, and a bound on what the unit adds."""
        hospital = terms.privacy.unit == "hospital"
        yield "secrecy.secure_sum", terms.secure_sum, "true: sums leave hospitals under masks only"
        yield "asks.sigma", (self.sigma is None) == terms.adds_noise, "noise, if the coordinator adds it,"
        few = self.dimension * terms.num_classes <= _MOST_SUMS
        yield "asks.dimension", few, f"at most {_MOST_SUMS:,} sums"
        yield "asks.most_units", (self.most_units is not None) == hospital, "a number, for the unit hospital,"
        whole = hospital and self.cuts_whole
        wanted = "a map without signs, or sums in rounds of a whole hospital"
        yield "asks.settings.name", (self.settings.name == DIRECTIONS) == whole, wanted
        yield "asks.labels", self.labels <= terms.pool_size, "the inputs that get a label"

    @property
    def questions(self) -> int:
        """How often sums are asked for."""
        return 1

    @property
    def longest(self) -> int:
        """The most that what one record adds can be, squared and summed up, in steps of the sums."""
        return self.squared_norm

    @property
    def times(self) -> int:
        """How many times a record counts at most in one question."""
        return 1

    def largest_entry(self, terms: Terms) -> int:
        """What an entry of one hospital's sum may be at most, in steps, to have room in 32 bits."""
        noise = (terms.sigma_party or self.sigma or 0.0) * math.sqrt(terms.num_clients)
        return max(0, _LARGEST - int(_SIGMAS * noise)) // terms.num_clients

    def room(self, terms: Terms) -> int:
        """The records, or patients, that one hospital's sum is sure to have room for."""
        longest = self.squared_norm
        if terms.several:  # equally much of what a record, or a patient, adds is of each: docs/proofs
            longest = 2 * longest // terms.several
        return self.largest_entry(terms) // (math.isqrt(longest) * self.times)

    @property
    def max_queries(self) -> int:
        """The inputs that get a label: nobody is asked about one."""
        return self.labels

    def bounds(self, terms: Terms) -> Bounds:
        """All sums at once."""
        return Bounds(rows=self.dimension, columns=terms.num_classes, file=_MAP)

    def ledger_terms(self, terms: Terms, *, noise: str, private: bool, together: bool = False) -> LedgerTerms:
        """One release, at its exact cost.

        Raises:
            InputError: it would pass the study's budget.
        """
        privacy = terms.privacy
        asked = self.labels * self.questions
        made = LedgerTerms(
            study_digest=terms.digest,
            delta=privacy.delta,
            mechanisms=self.releases(terms),
            protection=protection_by(privacy, self.most_units),
            noise=noise,
            private=private,
            coordinator=self.view(terms, terms.least_clients),
            most_asked=asked,
            most_answered=self.labels,
            assumed=terms.assumptions(together=together).at_hospitals,
        )
        epsilon = guaranteed_epsilon(made)
        if privacy.epsilon is not None and not (epsilon is not None and epsilon <= privacy.epsilon):
            raise InputError(
                f"--epsilon {privacy.epsilon:g} at --delta {delta_text(privacy.delta)}: this noise costs "
                f"ε={epsilon_text(epsilon)}; leave --sigma2 out, and the noise follows from the budget"
            )
        return made

    def view(self, terms: Terms, voters: int) -> CoordinatorView:
        """The exact sums over all hospitals, or noisy ones."""
        return NOISY_SUMS if terms.adds_noise else EXACT_SUMS

    def require_use(self, terms: Terms) -> None:
        """Sums always serve."""

    def hides_enough(self, terms: Terms) -> bool:
        """Whether a bound is known for the shares: what they cost follows from them."""
        try:
            sum_mechanism(terms).cost_asked(protection_by(terms.privacy, self.most_units))
        except InputError:
            return False
        return True

    def release(self, terms: Terms) -> SumMechanism:
        """The mechanism of each release, as the ledger has it.

        Raises:
            InputError: noise that no bound is known for.
        """
        shape = {
            "num_classes": terms.num_classes,
            "dimension": self.dimension,
            "squared_norm": self.squared_norm,
        }
        made: SumMechanism = find_part(CLASS_SUMS, "aggregator")(shape, self.sigma, **terms.shares)
        return made

    @property
    def parts(self) -> tuple[tuple[str, PartIdentity], ...]:
        """A feature map of the user's own."""
        return () if self.part is None else (("feature map", self.part),)

    def releases(self, terms: Terms) -> tuple[Mechanism, ...]:
        """All mechanisms of a study, as the ledger has them."""
        return (self.release(terms),)

    def words(self, terms: Terms) -> Words:
        """What people read of it."""
        return SumWords(terms, self)

    def assumptions(self, terms: Terms, *, together: bool) -> Iterator[Assumption]:
        """A map's word that no record changes others' features."""
        if self.part is not None and (together or terms.privacy.unit != "hospital"):
            yield Assumption(kind=FEATURE_MAP, part=self.part)

    @property
    def file(self) -> str | None:
        """The feature map."""
        return self.features


def sum_mechanism(terms: Terms) -> SumMechanism:
    """The release that the terms fix, of which there may be several.

    Raises:
        InputError: noise that no bound is known for.
    """
    return SumTerms.of(terms).release(terms)


def protection_by(privacy: Privacy, most: int | None) -> Protection:
    """What is protected: a record, a patient at as many hospitals as are said, or a hospital's sum as cut.

    `most` is to how many records' length that is. A patient adds one such length at each of its hospitals.

    Raises:
        InputError: the unit hospital, whose sum nothing bounds.
    """
    if privacy.unit == "hospital" and most is None:
        raise InputError(
            "sums.most_records: with the unit hospital a number is meant, to whose length a hospital's whole "
            "sum is cut, or --records, from which one follows; else nothing bounds what it adds"
        )
    at = privacy.hospitals_moved
    moved = most if privacy.unit == "hospital" and most is not None else at
    return Protection(unit=privacy.unit, adjacency=privacy.adjacency, votes_moved=moved, hospitals=at)


def sum_noise(
    shape: SumShape,
    protection: Protection,
    *,
    privacy: Privacy,
    sigma2: float | None,
    shares: Shares | None,
) -> float:
    """Noise in the feature map's steps: of the sum or, where hospitals add it in `shares`, of each of them.

    It follows from the budget, unless `sigma2`, in records, is given.

    Raises:
        InputError: no noise serves this budget, or nothing says how much there should be.
    """
    if sigma2 is not None:
        sigma = sigma2 * math.sqrt(shape.length)
        if shares is None:
            return sigma
        return party_sigma(sigma, parties=shares.least_voters, colluders=shares.colluders)
    if privacy.epsilon is None:
        raise InputError("--epsilon: the noise of class sums follows from it; give it, or --sigma2")
    if shares is None:
        return least_sigma(privacy.epsilon, privacy.delta, shape, protection)
    return least_share(
        privacy.epsilon,
        privacy.delta,
        shape,
        protection,
        survivors=shares.least_voters,
        colluders=shares.colluders,
    )


# What a study of class sums says in words.


class SumWords(Words):
    """Sums of features by class, once, and a student made of them."""

    kind: ClassVar[str] = "class sums"
    answers: ClassVar[str] = "sums"
    at_home: ClassVar[str] = "Records and every hospital's own sums"
    label: ClassVar[str] = "by which features are summed"
    shown: ClassVar[tuple[str, str]] = ("sums by class", "of the first features")
    made_of: ClassVar[str] = "the sums"
    rows: ClassVar[str] = "features"

    def __init__(self, terms: Terms, sums: SumTerms) -> None:
        super().__init__(terms)
        self.sums = sums
        self.often, self.releases, self.times = "one release", "the one release", "once"

    @property
    def values(self) -> dict[str, Any]:
        """All that is asked."""
        return {"sums": to_plain(self.sums)}

    @property
    def leaves(self) -> Facts:
        """One table of sums."""
        terms, sums = self.terms, self.sums
        kind = "public features of a row" if terms.table is not None else "public features of an image"
        what = (
            f"Once, one table of {sums.dimension:,} rows and {terms.num_classes} columns of whole numbers: "
            f"{self._summed}. The features are {kind}. Your own "
            f"program makes them, by a public file with this SHA-256:\n{sums.features}\n"
            f"{self._cut}"
        )
        if terms.adds_noise:
            how = "Your machine adds noise first. The table then leaves under masks: each is random numbers."
        else:
            how = "The table leaves under masks: each is random numbers. The coordinator adds the noise."
        return (("sums", what), ("how", how), ("also", ALSO))

    @property
    def _summed(self) -> str:
        if count := self.terms.several:
            return (
                f"for each feature and each of {count} labels the sum over your records, in one column for "
                "no and one for yes. A record counts in one of the two, for each label"
            )
        if (ends := self.terms.target_range) is None:
            return "for each feature and class the sum over your records"
        low, high = (f"{end:.15g}" for end in ends)
        return (
            f"for each feature the sum over your records, in two parts by {self._label}. A record at {low} "
            f"has all of its features in the first column, one at {high} in the second, and one between them "
            "a part in each, by how near it is"
        )

    @property
    def _label(self) -> str:
        """What features are summed by."""
        table = self.terms.table
        if self.terms.several:
            return "each of several labels"
        return "class" if table is None or table.target_range is None else table.label

    @property
    def _cut(self) -> str:
        if self.sums.most_units is not None:
            lengths = counted(self.sums.most_units, "record")
            return f"What your whole hospital adds is cut to a fixed length, that of {lengths}."
        one = "patient's" if self.terms.names_patients else "record's"
        labels = ", of all labels together," if self.terms.several else ""
        return f"One {one} part in the sum{labels} is cut to a fixed length."

    @property
    def sees(self) -> Facts:
        """Exact sums or noisy ones."""
        many = f"at least {self.terms.least_clients} hospitals"
        if self.terms.adds_noise:
            sees = f"Sees noisy sums over {many}. Neither exact sums nor your hospital's own."
        else:
            what = "how many of all records have a class and a feature"
            if self.terms.several:
                what = "how many of all records have a label's value and a feature"
            if self.terms.target_range is not None:
                what = f"how many of all records have a feature, and the sum of their {self._label}"
            sees = (
                f"Sees the exact sums over {many}: {what}, also where that is a single one. Never your "
                "hospital's own sums."
            )
        public = "Whoever gets the labels or the student sees what was made of the noisy sums."
        return (("coordinator", sees), ("hospitals", "See nothing of your sums."), ("public", public))

    @property
    def caps(self) -> Facts:
        """Once."""
        labels, pool = self.terms.labels, self.terms.pool_size
        made = f"Made of the sums for {labels} inputs of the pool's {pool}."
        if self.terms.target_range is not None:
            made = (
                f"For {labels} inputs of the pool's {pool} the ledger has the end that is nearer by the sums."
            )
        if self.terms.several:
            made = (
                f"For {labels} inputs of the pool's {pool} the ledger has the one value of all labels' that "
            )
            made += "is surest by the sums."
        if self.terms.drawn:
            made = f"None but of {labels} rows drawn from declared ranges, as there are no public inputs."
        return (
            ("answers", "Your hospital gives its sums once. In this study it does not give them again."),
            ("labels", made),
        )

    @property
    def asked(self) -> str:
        """All features, once."""
        return f"sums of {self.sums.dimension} features by {self._label}, once"

    @property
    def asked_of_pool(self) -> str:
        """Sums of each party."""
        return "each party's sums of features"

    def together(self, accuracy: float) -> Iterator[str]:
        """Nobody knows before it is planned."""
        yield "not known beforehand; `pate-fed plan` tells what sums make of so many records"

    @property
    def instead(self) -> str:
        """Noise follows from ε."""
        return "Give a smaller --epsilon, from which the noise follows, or leave --sigma2 out"

    def given(self, rows: int, *, left: bool) -> str:
        """All or nothing."""
        return "its class sums once" if left else super().given(0, left=False)

    # After it.

    @property
    def released(self) -> str:
        """Of inputs that nobody was asked about, or of rows that stand for them."""
        return "labels of drawn rows" if self.terms.drawn else "labels made of sums"

    def share(self, *, asked: int, answered: int) -> str:
        """Sums, of which all labels are made."""
        return "from one release" if asked else "before the release"

    def done(self, inputs: str, *, asked: int, answered: int) -> str:
        """Sums, noise, student."""
        return (
            f"{counted(self.terms.num_clients, 'hospital')} took part. Each one added up features of its own "
            f"records by {self._label}. The sums of all were put together, noise was added, and a model, the "
            "student, was made of them. That happened once."
        )

    def left(self, inputs: str) -> str:
        """Sums, under a mask."""
        noise = " and noise" if self.terms.adds_noise else ""
        return f"Sums over all its records, under a mask{noise}. No record left it."

    @property
    def sigma(self) -> float:
        """Noise that is counted on, in steps."""
        terms, sigma = self.terms, self.sums.sigma
        if sigma is None:
            sigma = (terms.sigma_party or 0.0) * math.sqrt(terms.least_clients - terms.colluders)
        return sigma

    def settings(self, records: str) -> Facts:
        """Hospitals, features, and noise in records."""
        terms, sums, sigma = self.terms, self.sums, self.sigma
        of = "a table's columns" if sums.settings.columns else "images"
        length = math.sqrt(sums.longest / max(1, terms.several))
        return (
            ("Hospitals", f"{terms.num_clients:,}, at least {terms.least_clients:,} in the sum"),
            ("Mechanism", f"{self.mechanism}: {self.often}"),
            ("Features", f"{sums.dimension:,}, {sums.settings.name} of {of}, SHA-256 {sums.features[:12]}…"),
            ("Noise σ", f"{sigma / length:,.4g} records on every sum ({sigma:,.6g} of the features' steps)"),
        )

    def _way(self) -> str:
        terms = self.terms
        if terms.sigma_party is None:
            return "masked: only the sum over hospitals can be read"
        share = terms.sigma_party / math.sqrt(self.sums.longest / max(1, terms.several))
        honest = counted(terms.least_clients - terms.colluders, "hospital")
        return (
            f"masked, with noise of σ = {share:.4g} records of every hospital; counted on are {honest} that "
            "are surely there and tell nobody"
        )

    def _public(self, noise: str) -> Against:
        return Against(
            who="Anyone who gets the student or its labels",
            sees=f"Noisy sums of features by {self._label}, labels and a student made of them",
            hidden=f"Exact sums. {self.at_home}",
            by=f"noise on {self.releases}: {noise}; fixed before the first message",
        )

    def _from_coordinator(self) -> tuple[str, str]:
        if self.terms.adds_noise:
            return f"Exact sums. {self.at_home}", noise_and_masks(self.terms)
        by = f"masks hide each hospital's own sums, {masks_hold(self.terms)}; the exact sum is shown"
        return self.at_home, by

    @property
    def home(self) -> AtHome:
        """Hospitals with their sums."""
        noisy = self.terms.adds_noise
        released = "sums with noise" if noisy else "sums, after noise is added"
        return AtHome(
            name=counted(self.terms.num_clients, "hospital"),
            holds="keep records and each one's own sums",
            sends=f"masked sums{', with noise added at home' if noisy else ''}",
            released=f"{released}, {self.times}",
        )

    def summary(self, hospitals: str, *, asked: int, answered: int, apart: bool) -> Facts:
        """How often sums came, and the labels that were made of them."""
        return (("hospitals", hospitals), ("class sums", self.often), (self.released, f"{answered:,}"))

    def question(self, rows: int) -> str:
        """Sums of so many features."""
        return f"sums of {counted(rows, 'feature')}"
