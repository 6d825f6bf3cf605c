"""What a study of private labels says in words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from pate_fed.format import counted
from pate_fed.kinds.words import ALSO, Against, AtHome, Facts, Words, listed
from pate_fed.privacy.protection import LABEL

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
        return (
            ("Hospitals", "" if self._seen == _IN_ONE_PLACE else hospitals),
            ("Method", self.mechanism),
        )

    @property
    def way(self) -> tuple[str, str]:
        """What the coordinator sees says it."""
        return "", ""

    def against(self, noise: str, sees: str) -> list[Against]:
        """Without other hospitals where all labels lie in one place."""
        if self._seen != _IN_ONE_PLACE:
            return super().against(noise, sees)
        trust = "trust alone: whoever runs this study has the labels"
        return [
            self._public(noise),
            Against(who="Whoever ran it", sees=sees, hidden="Nothing", by=trust),
        ]

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
                name="One place",
                holds="has all labels",
                sends="its own labels",
                released="labels with noise",
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
