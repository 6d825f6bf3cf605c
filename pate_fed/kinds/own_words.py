"""What a study says in words whose kind of question is somebody's own; its code is not run for that."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from pate_fed.format import counted
from pate_fed.kinds.words import ALSO, Against, AtHome, Facts, Words

if TYPE_CHECKING:
    from pate_fed.kinds.own import OwnTerms
    from pate_fed.kinds.terms import Terms


class OwnWords(Words):
    """Questions of somebody's own, arrays of numbers, and one number that is released of each."""

    kind: ClassVar[str] = "numbers"
    answers: ClassVar[str] = "answers"
    at_home: ClassVar[str] = "Records and every hospital's own answers"
    shown: ClassVar[tuple[str, str]] = ("answer", "its first rows")
    made_of: ClassVar[str] = "the answers"
    rows: ClassVar[str] = "places"
    labels_on_ledger: ClassVar[bool] = False  # numbers are no classes

    def __init__(self, terms: Terms, own: OwnTerms) -> None:
        super().__init__(terms)
        self.own = own

    @property
    def trains(self) -> Facts:
        """No model, and whose code runs."""
        part = self.own.claim.part
        return (
            ("none", "Nothing is trained at your hospital."),
            (
                "code",
                f"{part.name}, which is not ours, reads your records. Your policy must list it. What is "
                f"installed with you must have this SHA-256:\n{part.digest}",
            ),
        )

    @property
    def leaves(self) -> Facts:
        """So many tables of numbers."""
        own = self.own
        what = (
            f"Up to {counted(own.questions, 'time')} one table of {own.rows:,} rows and {own.columns:,} "
            f"columns of whole numbers. What they are is the code's own word: {own.says}."
        )
        if self.terms.adds_noise:
            how = "The code adds noise first. The table then leaves under masks: each is random numbers."
        else:
            how = "The table leaves under masks: each is random numbers. The coordinator adds the noise."
        return (("answers", what), ("how", how), ("also", ALSO))

    @property
    def sees(self) -> Facts:
        """Exact totals or noisy ones."""
        many = f"at least {self.terms.least_clients} hospitals"
        if self.terms.adds_noise:
            sees = f"Sees noisy totals over {many}. Neither exact totals nor your hospital's own answer."
        else:
            sees = f"Sees the exact total over {many} of each question. Never your hospital's own answer."
        public = "Whoever gets the result sees one number of each question, made of noisy totals."
        return (("coordinator", sees), ("hospitals", "See nothing of your answers."), ("public", public))

    @property
    def caps(self) -> Facts:
        """Questions."""
        asked = counted(self.own.questions, "question")
        return (
            ("questions", f"At most {asked} of {self.own.rows:,} places. No place is asked about twice."),
        )

    @property
    def asked(self) -> str:
        """Questions, by whose code."""
        return f"{counted(self.own.questions, 'question')} of {self.mechanism}: {self.own.says}"

    @property
    def asked_of_pool(self) -> str:
        """Each party's answers."""
        return "each party's answers"

    def together(self, accuracy: float) -> Iterator[str]:
        """Nobody knows beforehand."""
        yield "not known beforehand: what is released is no model"

    @property
    def instead(self) -> str:
        """Its noise is a parameter of its own."""
        return "Give it more noise under [aggregation.parameters]"

    def given(self, rows: int, *, left: bool) -> str:
        """Rows of its answers."""
        return f"answers about {counted(rows, 'place')}"

    def so_far(self, *, asked: int, answered: int) -> str:
        """Questions."""
        return f"{answered:,} numbers of {self.own.questions:,} questions, {asked:,} asked"

    # After it.

    @property
    def records_apart(self) -> bool:
        """Whether its code takes a patient's records together nobody else can tell."""
        return True

    def done(self, inputs: str, *, asked: int, answered: int) -> str:
        """Questions, noise, numbers."""
        return (
            f"{counted(self.terms.num_clients, 'hospital')} took part. Code of somebody's own asked them "
            f"{counted(asked, 'question')}: {self.own.says}. Their answers were put together, noise was "
            f"added, and {counted(answered, 'number')} came out of it."
        )

    def left(self, inputs: str) -> str:
        """Tables under masks."""
        noise = " and noise" if self.terms.adds_noise else ""
        return f"Tables of numbers over all its records, under a mask{noise}. No record left it."

    def settings(self, records: str) -> Facts:
        """Hospitals, code, parameters, shape."""
        terms, own = self.terms, self.own
        given = ", ".join(f"{name} = {value}" for name, value in own.claim.parameters)
        return (
            ("Hospitals", f"{terms.num_clients:,}, at least {terms.least_clients:,} in every total"),
            ("Private records", records),
            ("Mechanism", f"{own.claim.part.text}{': ' if given else ''}{given}"),
            (
                "Asked",
                f"{own.says}; {counted(own.questions, 'answer')} of {own.rows:,} × {own.columns:,} numbers",
            ),
        )

    def _public(self, noise: str) -> Against:
        return Against(
            who="Anyone who gets what was released",
            sees="One number of each question, made of noisy totals",
            hidden=f"Exact totals. {self.at_home}",
            by=f"noise on every question's totals: {noise}; at most {self.own.questions:,} are asked",
        )

    @property
    def home(self) -> AtHome:
        """Hospitals with their answers."""
        noisy = self.terms.adds_noise
        return AtHome(
            name=counted(self.terms.num_clients, "hospital"),
            holds="keep records and each one's own answers",
            sends=f"masked answers{', with noise added at home' if noisy else ''}",
            released=f"one number of noisy totals, {counted(self.own.questions, 'time')}",
        )

    def summary(self, hospitals: str, *, asked: int, answered: int, apart: bool) -> Facts:
        """Questions."""
        return (("hospitals", hospitals), ("questions", f"{asked:,} asked, {answered:,} answered"))

    def question(self, rows: int) -> str:
        """One about so many places."""
        return f"a question of {counted(rows, 'place')}" if rows else "a question"
