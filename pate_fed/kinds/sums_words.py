"""What a study of class sums says in words."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from pate_fed.format import counted
from pate_fed.kinds.words import ALSO, Against, AtHome, Facts, Words, masks_hold, noise_and_masks
from pate_fed.structure import to_plain

if TYPE_CHECKING:
    from pate_fed.kinds.sums import SumTerms
    from pate_fed.kinds.terms import Terms


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

    @property
    def values(self) -> dict[str, Any]:
        """All that is asked."""
        return {"sums": to_plain(self.sums)}

    @property
    def leaves(self) -> Facts:
        """One table of sums."""
        terms, sums = self.terms, self.sums
        kind = "public features of a row" if terms.table is not None else "public features of an image"
        one = "patient's" if terms.names_patients else "record's"
        what = (
            f"Once, one table of {sums.dimension:,} rows and {terms.num_classes} columns of whole numbers: "
            f"for each feature and class the sum over your records. The features are {kind}. Your own "
            f"program makes them, by a public file with this SHA-256:\n{sums.features}\n"
            f"One {one} part in the sum is cut to a fixed length."
        )
        if terms.adds_noise:
            how = "Your machine adds noise first. The table then leaves under masks: each is random numbers."
        else:
            how = "The table leaves under masks: each is random numbers. The coordinator adds the noise."
        return (("sums", what), ("how", how), ("also", ALSO))

    @property
    def sees(self) -> Facts:
        """Exact sums or noisy ones."""
        many = f"at least {self.terms.least_clients} hospitals"
        if self.terms.adds_noise:
            sees = f"Sees noisy sums over {many}. Neither exact sums nor your hospital's own."
        else:
            sees = (
                f"Sees the exact sums over {many}: how many of all records have a class and a feature, also "
                "where that is a single one. Never your hospital's own sums."
            )
        public = "Whoever gets the labels or the student sees what was made of the noisy sums."
        return (("coordinator", sees), ("hospitals", "See nothing of your sums."), ("public", public))

    @property
    def caps(self) -> Facts:
        """Once."""
        labels, pool = self.terms.labels, self.terms.pool_size
        return (
            ("answers", "Your hospital gives its sums once. In this study it does not give them again."),
            ("labels", f"Made of the sums for {labels} inputs of the pool's {pool}."),
        )

    @property
    def asked(self) -> str:
        """All features, once."""
        return f"sums of {self.sums.dimension} features by class, once"

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

    def done(self, inputs: str, *, asked: int, answered: int) -> str:
        """Sums, noise, student."""
        return (
            f"{counted(self.terms.num_clients, 'hospital')} took part. Each one added up features of its own "
            "records by class. The sums of all were put together, noise was added, and a model, the student, "
            "was made of them. That happened once."
        )

    def left(self, inputs: str) -> str:
        """Sums, under a mask."""
        noise = " and noise" if self.terms.adds_noise else ""
        return f"Sums over all its records, under a mask{noise}. No record left it."

    def settings(self, records: str) -> Facts:
        """Hospitals, features, and noise in records."""
        terms, sums = self.terms, self.sums
        of = "a table's columns" if sums.settings.columns else "images"
        length = math.sqrt(sums.squared_norm)
        sigma = sums.sigma
        if sigma is None:
            sigma = (terms.sigma_party or 0.0) * math.sqrt(terms.least_clients - terms.colluders)
        return (
            ("Hospitals", f"{terms.num_clients:,}, at least {terms.least_clients:,} in the sum"),
            ("Mechanism", f"{self.mechanism}: one release"),
            ("Features", f"{sums.dimension:,}, {sums.settings.name} of {of}, SHA-256 {sums.features[:12]}…"),
            ("Noise σ", f"{sigma / length:,.4g} records on every sum ({sigma:,.6g} of the features' steps)"),
        )

    def _way(self) -> str:
        terms = self.terms
        if terms.sigma_party is None:
            return "masked: only the sum over hospitals can be read"
        share = terms.sigma_party / math.sqrt(self.sums.squared_norm)
        honest = counted(terms.least_clients - terms.colluders, "hospital")
        return (
            f"masked, with noise of σ = {share:.4g} records of every hospital; counted on are {honest} that "
            "are surely there and tell nobody"
        )

    def _public(self, noise: str) -> Against:
        return Against(
            who="Anyone who gets the student or its labels",
            sees="Noisy sums of features by class, labels and a student made of them",
            hidden=f"Exact sums. {self.at_home}",
            by=f"noise on the one release: {noise}; fixed before the first message",
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
            released=f"{released}, once",
        )

    def question(self, rows: int) -> str:
        """Sums of so many features."""
        return f"sums of {counted(rows, 'feature')}"
