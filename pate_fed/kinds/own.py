"""A kind of question of one's own: its terms say all that can be said of it without running its code.

A part is an object, or a class or factory `make(**parameters)` that gives one. The object has
- `questions`, `shape` and `places`: the most questions, the (rows, columns) of a hospital's answer to each,
  and how many places there are. A question names `rows` places, rising; none is asked about twice. `says` is
  what is asked, in a few words for people.
- `answer(inputs, labels, patients, places)`: a hospital's exact answer, int64 (rows, columns). Inputs are
  (n, ...), labels int64 (n,), patients int64 (n,) or None: not named, or the unit is a record.
- `noise(shape, source, shares)`: one of `shares` independent shares of the noise on an answer, int64 (rows,
  columns). So many together are the whole of it, and further ones hide no less. The coordinator adds the one
  share of 1. `sigma(shares)` is a share's standard deviation.
- `rdp(order, sensitivity)` or `dp_event(sensitivity)`: what a noisy answer costs, and `parameters()`, as of a
  mechanism of one's own (`pate_fed.privacy.mechanisms.own`). Of `sensitivity` only `unit` and `adjacency` are
  of use: how far such a one moves an answer is the code's own to reckon.
- `release(noisy, source)`: what is released of a noisy answer, int64 (rows · columns,): a number from 0 to
  below rows · columns, or None. `ask(released)`: the next question's places, from the numbers so far, or None
  to end. `tell(released)`: all of it in a sentence.

At a hospital `answer` and `noise` run, and only where its policy lists the kind. ε rests on the word of the
code: that `rdp` bounds a noisy answer, which takes that one unit moves `answer` by no more than it reckons.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from pate_fed.errors import InputError
from pate_fed.format import counted, delta_text, epsilon_text
from pate_fed.kinds.base import Bounds, Check, KindTerms
from pate_fed.kinds.words import ALSO, Against, AtHome, Facts, Words
from pate_fed.privacy import CoordinatorView, LedgerTerms, Protection
from pate_fed.privacy.bounds.cost import Claim, Plain
from pate_fed.privacy.ledger.terms import guaranteed_epsilon
from pate_fed.privacy.mechanisms.events import NOISY_TOTALS, SECURE_SUM, refuse_vanishing_noise
from pate_fed.privacy.mechanisms.own import OwnMechanism, check_claim, make_aggregator, own_mechanism
from pate_fed.privacy.protection import Assumption
from pate_fed.structure import check, refusal, setting
from pate_fed.structure.faults import telling
from pate_fed.structure.parts import PartIdentity, load_part, part_identity

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pate_fed.config.sections import Privacy
    from pate_fed.kinds.terms import Terms


KIND = "kind"
OWN = "own"
LEAST_SIGMA = 1e-6
_MOST_NUMBERS = 10**7  # in one answer
_MOST_QUESTIONS = 10_000
_MOST_SAID = 300  # characters
_CALLS = ("answer", "noise", "sigma", "ask", "tell")


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnTerms(KindTerms):
    """A kind of somebody's own: its code, what that claims of its cost, and the size of what it asks.

    `claim` has the code, its parameters and its curve. At most `questions` are asked, each about `rows` of
    the `places` there are; an answer has `columns` numbers a row. `says` is its author's word on it.

    Raises:
        InputError: a value of the wrong type or out of range.
    """

    totals_tell: ClassVar[bool] = True
    kind: str = setting(OWN, choices=(OWN,))
    claim: Claim
    questions: int = setting(low=1, high=_MOST_QUESTIONS)
    rows: int = setting(low=1, high=_MOST_NUMBERS)
    columns: int = setting(low=1, high=_MOST_NUMBERS)
    places: int = setting(low=1, high=2**53)
    says: str = setting(most=_MOST_SAID)

    def __post_init__(self) -> None:
        check(self)
        for name, fits, wanted in (
            ("says", self.says.isprintable(), "printable text"),
            ("columns", 2 <= self.rows * self.columns <= _MOST_NUMBERS, f"2 to {_MOST_NUMBERS:,} numbers"),
            ("places", self.places >= self.rows, "all that a question names"),
        ):
            if not fits:
                raise refusal(self, name, f"{wanted} is meant")

    def checks(self, terms: Terms) -> Iterator[Check]:
        """Masks, and a claim for whom the study protects."""
        claim, privacy = self.claim, terms.privacy
        yield "secrecy.secure_sum", terms.secure_sum, "true: answers leave hospitals under masks only"
        same = (claim.unit, claim.adjacency, claim.votes_moved) == (privacy.unit, privacy.adjacency, 1)
        yield "asks.claim", same, "a curve for the study's own unit and adjacency"
        alone = privacy.hospitals_moved == 1  # how far several hospitals' answers move together is not known
        yield "privacy.hospitals_per_patient", alone, "1: no bound of a kind of your own for several"
        yield "privacy.sanitise", not privacy.sanitise, "false: it is of votes alone"

    @property
    def labels(self) -> int:
        """One number a question."""
        return self.questions

    @property
    def max_queries(self) -> int:
        """Places that are asked about."""
        return self.questions * self.rows

    @property
    def mechanism(self) -> str:
        """The code's name."""
        return self.claim.part.name

    def bounds(self, terms: Terms) -> Bounds:
        """One answer."""
        return Bounds(rows=self.rows, columns=self.columns)

    @property
    def release(self) -> OwnMechanism:
        """The mechanism of each question, as the ledger has it."""
        return OwnMechanism(num_teachers=0, num_classes=self.rows * self.columns, claim=self.claim)

    def ledger_terms(self, terms: Terms, *, noise: str, private: bool, together: bool = False) -> LedgerTerms:
        """So many questions, each at what its noisy answer costs by the claim.

        Raises:
            InputError: they would pass the study's budget, or a hospital's noise would come and go with it.
        """
        privacy, protection = terms.privacy, protection_by(terms.privacy)
        if terms.adds_noise:
            refuse_vanishing_noise(protection)
        made = LedgerTerms(
            study_digest=terms.digest,
            delta=privacy.delta,
            mechanisms=(self.release,),
            protection=protection,
            noise=noise,
            private=private,
            coordinator=self.view(terms, terms.least_clients),
            most_asked=self.questions,
            most_answered=self.questions,
        )
        epsilon = guaranteed_epsilon(made)
        if privacy.epsilon is not None and not (epsilon is not None and epsilon <= privacy.epsilon):
            raise InputError(
                f"--epsilon {privacy.epsilon:g} at --delta {delta_text(privacy.delta)}: {self.questions} "
                f"questions of {self.mechanism} cost ε={epsilon_text(epsilon)} by its own claim; give it "
                "other [aggregation.parameters], or a larger budget"
            )
        return made

    def view(self, terms: Terms, voters: int) -> CoordinatorView:
        """Exact totals, or noisy ones, which the claim is about."""
        return NOISY_TOTALS if terms.adds_noise else SECURE_SUM

    def require_use(self, terms: Terms) -> None:
        """What serves whom is its author's to say."""

    def hides_enough(self, terms: Terms) -> bool:
        """Its noise is what its code says, which a hospital holds against the terms once it may run."""
        return terms.sigma_party is not None and terms.sigma_party >= LEAST_SIGMA

    @property
    def parts(self) -> tuple[tuple[str, PartIdentity], ...]:
        """The code."""
        return ((KIND, self.claim.part),)

    def words(self, terms: Terms) -> Words:
        """What people read of it."""
        return OwnWords(terms, self)

    def assumptions(self, terms: Terms, *, together: bool) -> Iterator[Assumption]:
        """Its claim."""
        yield self.claim.assumption

    # Its code, which is loaded and run from here on.

    def code(self) -> Any:
        """The object, from what is installed here, held against its claim first.

        Raises:
            InputError: it is not here, cannot be loaded or fails.
            IntegrityError: it is another one here, or claims more.
        """
        name, what = self.claim.part.name, f"{KIND} {self.claim.part.name!r}"
        check_claim(self.release)
        return make_aggregator(load_part(name, KIND), dict(self.claim.parameters), what=what)

    def fits(self, code: Any, terms: Terms) -> bool:
        """Whether its code says of itself what the terms do."""
        share = None if terms.sigma_party is None else sigma_of(code, shares_of(terms))
        sizes = self.questions, self.rows, self.columns, self.places, self.says
        return (*sizes_of(code, self.mechanism), share) == (*sizes, terms.sigma_party)


def protection_by(privacy: Privacy) -> Protection:
    """Whom a study protects; how far such a one moves an answer is the code's own to reckon.

    Raises:
        InputError: a patient at several hospitals: the claim is for one's answer.
    """
    if privacy.hospitals_moved > 1:
        raise InputError(
            f"privacy.hospitals_per_patient is {privacy.hospitals_per_patient}: of a kind of your own no "
            "bound is known for a patient at several hospitals; 1 is meant"
        )
    return Protection(unit=privacy.unit, adjacency=privacy.adjacency)


def shares_of(terms: Terms) -> int:
    """Hospitals whose noise is counted on where they add it."""
    return terms.least_clients - terms.colluders


def sigma_of(code: Any, shares: int) -> float:
    """The standard deviation of one of so many shares of its noise."""
    with telling(f"{KIND}: sigma fails"):
        return float(code.sigma(shares))


def sizes_of(code: Any, name: str) -> tuple[int, int, int, int, str]:
    """Questions, rows, columns and places, and what it says, of the object that a part gave.

    Raises:
        InputError: it lacks one, or a method.
    """
    if lacking := [each for each in _CALLS if not callable(getattr(code, each, None))]:
        raise InputError(f"{KIND} {name!r}: has no {lacking[0]}; {', '.join(_CALLS)} are meant")
    with telling(f"{KIND} {name!r}: does not say questions, shape, places and says"):
        rows, columns = code.shape
        return int(code.questions), int(rows), int(columns), int(code.places), str(code.says)


def own_terms(name: str, parameters: Mapping[str, Plain], privacy: Privacy) -> tuple[OwnTerms, Any]:
    """The terms of a kind whose code is installed here, and the object, as a study names it.

    Raises:
        InputError: it cannot be loaded, fails, or claims no curve.
    """
    what, part = f"{KIND} {name!r}", load_part(name, KIND)
    code = make_aggregator(part, dict(parameters), what=what)
    questions, rows, columns, places, says = sizes_of(code, name)
    mechanism = own_mechanism(
        part,
        classes=rows * columns,
        num_teachers=0,
        protection=protection_by(privacy),
        parameters=dict(parameters),
        identity=part_identity(name, KIND),
    )
    terms = OwnTerms(
        claim=mechanism.claim, questions=questions, rows=rows, columns=columns, places=places, says=says
    )
    return terms, code


# What a study says in words whose kind of question is somebody's own; its code is not run for that.


class OwnWords(Words):
    """Questions of somebody's own, arrays of numbers, and one number that is released of each."""

    kind: ClassVar[str] = "numbers"
    answers: ClassVar[str] = "answers"
    at_home: ClassVar[str] = "Records and every hospital's own answers"
    made_of: ClassVar[str] = "the answers"
    rows: ClassVar[str] = "places"
    labels_on_ledger: ClassVar[bool] = False  # numbers are no classes
    brings_student: ClassVar[bool] = False

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
