"""Private labels of public inputs: what hospitals agree to, what it costs at most, and its words."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from pate_fed.errors import IntegrityError
from pate_fed.format import counted
from pate_fed.kinds.base import Bounds, Check, KindTerms
from pate_fed.kinds.label_dp.noise_cluster import NoiseCluster
from pate_fed.kinds.label_dp.randres import RandRes
from pate_fed.kinds.words import ALSO, Against, AtHome, Facts, Words, listed
from pate_fed.privacy.bounds.cost import epsilon_of
from pate_fed.privacy.label_dp import LabelRelease, SharedClusterCounts
from pate_fed.privacy.ledger.terms import LedgerTerms, is_digest
from pate_fed.privacy.mechanisms.events import NOISY_COUNTS, NOISY_LABELS, CoordinatorView
from pate_fed.privacy.protection import LABEL
from pate_fed.protocol.messages import Packed, digest_of
from pate_fed.structure import check, setting
from pate_fed.structure.parts import PartIdentity

if TYPE_CHECKING:
    from pate_fed.kinds.terms import Terms


Ints = NDArray[np.int64]

PRIVATE_LABELS = "private-labels"
RANDRES = "randres"
COUNTS_UNDER_MASKS = "cluster-counts"
THERE, LABEL_OF = 0, 1
"""Columns of an answer by randomised response: whether an input is the hospital's, and then its label."""

_MOST_COUNTS = 10**8  # in one message
_NUMBER = 8  # bytes of an int64
_CLEARLY = 0.9  # of the asked ε: what is spent below that is said


def clusters_file(clusters: Ints) -> bytes:
    """Public clusters, int64 (n,), as hospitals get them with the terms."""
    return np.asarray(clusters).astype("<i8").tobytes()


def clusters_digest(clusters: Ints) -> str:
    """SHA-256 hex of public clusters, int64 (n,)."""
    return hashlib.sha256(clusters_file(clusters)).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseBounds(Bounds):
    """Of labels of `classes` after randomised response: a row an input, (1, label) where it is there, else 0.

    So the sum over hospitals lists whose inputs are whose, where no two claim one.
    """

    classes: int

    def check(self, answer: Packed, *, rows: int) -> None:
        """Refuse an answer that no honest hospital can give.

        Raises:
            IntegrityError: wrong type or shape, no label, or one that is no class.
        """
        Bounds.check(self, answer, rows=rows)
        there, label = answer[:, THERE], answer[:, LABEL_OF]
        if not np.isin(there, (0, 1)).all() or not there.any():
            raise IntegrityError("the answer does not mark the hospital's own inputs")
        if (label < 0).any() or (label >= self.classes).any() or label[there == 0].any():
            raise IntegrityError("the answer holds labels that are no classes, or of others' inputs")


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelTerms(KindTerms):
    """How the labels of the pool's inputs, which hospitals have, are made private at each of them.

    `method` is "randres", by which each hospital responds about its own labels (δ = 0, nothing is masked),
    or "cluster-counts": each counts its labels in `num_clusters` public clusters, adds noise of
    `Terms.sigma_party` labels to each count and masks; the budget ε at δ is kept by the sum over the fewest
    hospitals, less those that may tell their noise. A hospital is asked once.

    Raises:
        InputError: a value of the wrong type or out of range.
    """

    reads_inputs: ClassVar[bool] = False
    once_for_all: ClassVar[bool] = True
    units: ClassVar[tuple[str, ...]] = (LABEL.unit,)
    kind: str = setting(PRIVATE_LABELS, choices=(PRIVATE_LABELS,))
    method: str = setting(choices=(RANDRES, COUNTS_UNDER_MASKS))
    num_clusters: int = setting(0, low=0, high=10**6)
    clusters: str = setting("", most=64)

    def __post_init__(self) -> None:
        check(self)

    def checks(self, terms: Terms) -> Iterator[Check]:
        """A budget that the mechanism keeps, and masks and shares of noise for counts alone."""
        epsilon, summed = terms.privacy.epsilon, self.method == COUNTS_UNDER_MASKS
        yield "privacy.epsilon", epsilon is not None, "a budget"
        yield "privacy.adjacency", terms.privacy.adjacency == LABEL.adjacency, LABEL.adjacency
        yield "privacy.sanitise", not terms.privacy.sanitise, "false"
        yield "secrecy.secure_sum", terms.secure_sum == summed, "masks, for counts alone,"
        yield "secrecy.noise_at", terms.adds_noise == summed, "noise at hospitals, for counts alone,"
        yield "secrecy.colluders", summed or terms.secrecy.colluders is None, "a number, for counts alone,"
        named = is_digest(self.clusters) if summed else not self.clusters
        yield "asks.clusters", named, "a SHA-256, for counts alone,"
        yield "asks.num_clusters", bool(self.num_clusters) == summed, "a number, for counts alone,"
        few = self.num_clusters * terms.num_classes <= _MOST_COUNTS
        yield "asks.num_clusters", few, f"at most {_MOST_COUNTS:,} counts"
        self._exact(terms)  # refuses what the mechanism has none for
        yield "sigma_party", not summed or self.hides_enough(terms), "more noise, or ε is passed,"

    def _exact(self, terms: Terms) -> RandRes | NoiseCluster:
        """The mechanism with all of its noise in one place."""
        classes, epsilon = terms.num_classes, terms.privacy.epsilon or 0.0
        if self.method == RANDRES:
            return RandRes(num_classes=classes, epsilon=epsilon)
        return NoiseCluster(
            num_clusters=self.num_clusters, num_classes=classes, epsilon=epsilon, delta=terms.delta
        )

    @property
    def labels(self) -> int:
        """Labels are not counted: every input may have one."""
        return 1

    @property
    def max_queries(self) -> int:
        """A hospital answers once about all of its labels."""
        return 1

    @property
    def mechanism(self) -> str:
        """The method."""
        return self.method

    @property
    def noisy_alone(self) -> bool:
        """A response is private by itself."""
        return self.method == RANDRES

    def answer_digest(self, terms: Terms) -> str:
        """Randomised response is drawn once for labels, and kept: it tells nothing new under like terms."""
        if not self.noisy_alone:
            return terms.digest
        drawn = (terms.num_classes, terms.pool_size, terms.privacy.epsilon, terms.seed)
        return digest_of(b"pate_fed/v2 response", terms.pool_digest.encode(), repr(drawn).encode())

    def bounds(self, terms: Terms) -> Bounds:
        """Counts of all clusters at once, or a response about all inputs."""
        if self.method == RANDRES:
            return ResponseBounds(rows=terms.pool_size, columns=2, classes=terms.num_classes)
        return Bounds(rows=self.num_clusters, columns=terms.num_classes, file=_NUMBER * terms.pool_size)

    def release(self, terms: Terms) -> LabelRelease:
        """What leaves all hospitals, as a row of the ledger states it."""
        return self._exact(terms).on_ledger if terms.sigma_party is None else self.shared(terms)

    def shared(self, terms: Terms) -> SharedClusterCounts:
        """The counts of all hospitals, with the noise of the fewest that may be in the sum."""
        return SharedClusterCounts(
            num_clusters=self.num_clusters,
            num_classes=terms.num_classes,
            sigma_party=terms.sigma_party or 0.0,
            survivors=terms.least_clients,
            colluders=terms.colluders,
        )

    def spent(self, terms: Terms) -> float:
        """ε at δ of what leaves all hospitals, against the coordinator and everyone else alike."""
        return epsilon_of(self.release(terms).cost_asked(LABEL), terms.delta)

    def spendable(self, terms: Terms) -> float:
        """How much of ε is spent: clearly less only where least shares of noise are more than it asks for."""
        spent, epsilon = self.spent(terms), terms.privacy.epsilon or 0.0
        return spent if spent < _CLEARLY * epsilon else epsilon

    def how(self, terms: Terms) -> str:
        """The mechanism as text."""
        if terms.sigma_party is None:
            return self._exact(terms).how
        return (
            f"noisy majority of {self.num_clusters} clusters, noise of at least "
            f"{terms.least_clients - terms.colluders} hospitals, σ={terms.sigma_party:.4g} labels each, "
            "summed under masks"
        )

    def ledger_terms(self, terms: Terms, *, noise: str, private: bool, together: bool = False) -> LedgerTerms:
        """One release about all inputs."""
        return LedgerTerms(
            study_digest=terms.digest,
            delta=terms.delta,
            mechanisms=(self.release(terms),),
            protection=LABEL,
            noise=noise,
            private=private,
            coordinator=self.view(terms, terms.least_clients),
            most_asked=terms.pool_size,
            most_answered=terms.pool_size,
        )

    def view(self, terms: Terms, voters: int) -> CoordinatorView:
        """Noisy counts over all hospitals, or each one's response."""
        return NOISY_COUNTS if terms.secure_sum else NOISY_LABELS

    def require_use(self, terms: Terms) -> None:
        """Labels always serve."""

    def hides_enough(self, terms: Terms) -> bool:
        """Whether the sum of all shares keeps the budget."""
        return terms.sigma_party is not None and self.spent(terms) <= (terms.privacy.epsilon or 0.0)

    @property
    def parts(self) -> tuple[tuple[str, PartIdentity], ...]:
        """None: its mechanisms are ours."""
        return ()

    def words(self, terms: Terms) -> Words:
        """What people read of it."""
        return LabelWords(terms, self.method)

    @property
    def file(self) -> str | None:
        """The public clusters."""
        return self.clusters or None


# What a study of private labels says in words.

_IN_ONE_PLACE, _SUMMED = "labels", "noisy-counts"  # what the coordinator sees, by `CoordinatorView.kind`


class LabelWords(Words):
    """Labels of public inputs, which are private, by a method: of terms, or of a run's record without any.

    `seen` is what the coordinator sees, by `CoordinatorView.kind`; None: what it does under the terms.
    """

    terms: Any
    kind: ClassVar[str] = "private labels"
    answers: ClassVar[str] = "labels"
    at_home: ClassVar[str] = "Every hospital's own labels"
    prepares: ClassVar[bool] = False
    labels_on_ledger: ClassVar[bool] = False
    brings_student: ClassVar[bool] = False

    def __init__(self, terms: Any, method: str, *, seen: str | None = None) -> None:
        self.terms, self._method = terms, method
        self._seen: str = seen or terms.view(terms.least_clients).kind

    @property
    def reads(self) -> Facts:
        """Labels, and whose they are."""
        terms = self.terms
        classes = listed(terms.classes) if terms.classes else f"numbers 0 to {terms.num_classes - 1}"
        return (
            ("records", "A table of two columns: index, a public input's place, and label, its class."),
            ("classes", classes),
        )

    @property
    def leaves(self) -> Facts:
        """Counts, or labels after randomised response."""
        if self.terms.secure_sum:
            clusters = self.terms.asks.num_clusters
            what = f"Counts of your labels in {clusters} public clusters: with your noise, under masks."
        else:
            what = "Your labels after randomised response: chance changes each on your machine first."
        return (("labels", what), ("also", ALSO))

    @property
    def sees(self) -> Facts:
        """Noisy sums, or changed labels."""
        if self.terms.secure_sum:
            least = self.terms.least_clients
            sees = f"Sees noisy sums over at least {least} hospitals. Never your own counts."
        else:
            sees = "Sees these changed labels, and which public inputs are yours."
        public = "Whoever gets the labels or the student sees what was made of these."
        return (("coordinator", sees), ("hospitals", "See nothing of your labels."), ("public", public))

    @property
    def protects(self) -> str:
        """One record's label."""
        return LABEL.text()

    @property
    def caps(self) -> Facts:
        """Once."""
        once = "Your hospital answers about its labels once. Under other terms it does not answer again."
        return (("answers", once),)

    @property
    def mechanism(self) -> str:
        """The mechanism's or method's name."""
        return self._method

    @property
    def labels(self) -> None:
        """One for each public input that a hospital has."""

    @property
    def asked(self) -> str:
        """All labels, once."""
        return f"private labels by {self.mechanism}, once"

    def together(self, accuracy: float) -> Iterator[str]:
        """Nothing is trained at a hospital."""
        yield "not known beforehand"

    @property
    def at_once(self) -> int:
        """All of the one answer."""
        return int(self.terms.max_queries)

    def given(self, rows: int, *, left: bool) -> str:
        """An answer, once."""
        return "answers about its labels" if left else "no answer about its labels"

    def question(self, rows: int) -> str:
        """Counts in so many clusters, or labels of inputs."""
        counts = self._seen == _SUMMED
        return f"counts of {counted(rows, 'cluster')}" if counts else f"labels of {counted(rows, 'input')}"

    # After it.

    @property
    def quorum(self) -> str:
        """Unless all labels lie in one place."""
        return "labels in one place" if self._seen == _IN_ONE_PLACE else super().quorum

    def done(self, inputs: str, *, asked: int, answered: int) -> str:
        """Labels with noise, student."""
        return (
            f"The {inputs} were public, and their labels private. {answered:,} labels were released with "
            "noise. A new model, the student, learnt from them."
        )

    def left(self, inputs: str) -> str:
        """Nothing, or labels with noise."""
        if self._seen == _IN_ONE_PLACE:
            return "Nothing was sent: all labels lay in one place, whose keeper ran the study."
        return "Labels, after noise was added at home. Nothing else."

    @property
    def records_apart(self) -> bool:
        """One label is protected, whoever has it."""
        return False

    def why_large(self, answered: int) -> str:
        """Methods suit differently."""
        return "A smaller --epsilon brings it down; pate-fed label-dp --advise says which method suits."

    def settings(self, records: str) -> Facts:
        """Hospitals and the method."""
        terms = self.terms
        hospitals = f"{terms.num_clients:,}, at least {terms.least_clients:,} must answer"
        return (("Hospitals", "" if self._seen == _IN_ONE_PLACE else hospitals), ("Method", self.mechanism))

    @property
    def way(self) -> tuple[str, str]:
        """What the coordinator sees says it."""
        return "", ""

    def against(self, noise: str, sees: str) -> list[Against]:
        """Without other hospitals where all labels lie in one place."""
        if self._seen != _IN_ONE_PLACE:
            return super().against(noise, sees)
        trust = "trust alone: whoever runs this study has the labels"
        return [self._public(noise), Against(who="Whoever ran it", sees=sees, hidden="Nothing", by=trust)]

    def _public(self, noise: str) -> Against:
        return Against(
            who="Anyone who gets the student or the released labels",
            sees="Features and released labels",
            hidden="The records' own labels",
            by=f"{noise}; fixed before the first label was asked about, by {self.mechanism}",
        )

    def _from_coordinator(self) -> tuple[str, str]:
        masks = ", and masks" if self._seen == _SUMMED else ""
        return self.at_home, f"noise that every hospital adds at home{masks}"

    def _other_hospitals(self) -> Against:
        hidden, by = self._from_coordinator()
        return Against(who="The other hospitals", sees="The same as the public", hidden=hidden, by=by)

    @property
    def home(self) -> AtHome:
        """Whoever has the private labels of public features."""
        if self._seen == _IN_ONE_PLACE:
            return AtHome(
                name="One place", holds="has all labels", sends="its own labels", released="labels with noise"
            )
        way = "masked counts with noise" if self._seen == _SUMMED else "labels with noise added at home"
        return AtHome(
            name=f"{self.terms.num_clients:,} hospitals",
            holds="keep their own labels",
            sends=way,
            released="noisy labels",
        )

    def summary(self, hospitals: str, *, asked: int, answered: int, apart: bool) -> Facts:
        """The method, and of how many records labels are there."""
        rows: Facts = (("method", self.mechanism),)
        rows += (("hospitals", hospitals),) if apart else ()
        return (*rows, ("labels", f"{answered:,} of {self.terms.pool_size:,} records"))


def lost_text(spent: str) -> str:
    """What follows from counts that hospitals give once, and that never came."""
    return (
        f"{spent} counts as spent at every hospital that was asked (its own log says whether it answered), "
        "and none of them answers about these labels again"
    )
