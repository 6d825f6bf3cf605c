"""What a study with votes says in words."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np

from pate_fed.config.defaults import MOST_BY_DEFAULT, USEFUL_LABELS, Ensemble, affordable_offer
from pate_fed.errors import InputError
from pate_fed.format import counted, epsilon_text, share_text
from pate_fed.kinds.words import ALSO, Against, AtHome, Facts, Words, fixed_by
from pate_fed.privacy.planning.vote_model import VoteModel, assumed_votes
from pate_fed.privacy.protection import LEAST_PARTIES

if TYPE_CHECKING:
    from pate_fed.kinds.terms import Terms
    from pate_fed.kinds.votes import VoteTerms

_FEW = 100  # teachers, who outvote only a little noise


class VoteWords(Words):
    """Teachers, their votes, and labels."""

    kind: ClassVar[str] = "votes"
    answers: ClassVar[str] = "votes"
    at_home: ClassVar[str] = "Records, teachers and their weights, gradients, scores"
    label: ClassVar[str] = "which teachers learn to tell"
    shown: ClassVar[tuple[str, str]] = ("teachers' votes", "on the first questions")
    masked: ClassVar[str] = "who voted how"
    figures_of_answers: ClassVar[bool] = True

    def __init__(self, terms: Terms, votes: VoteTerms) -> None:
        super().__init__(terms)
        self.votes = votes

    @property
    def trains(self) -> Facts:
        """How many, which, and what they learn from."""
        terms, votes = self.terms, self.votes
        count, teacher = votes.teachers_per_client, votes.teacher
        size = f", of {counted(teacher.trees, 'tree')} each" if terms.table is not None else ""
        parts = "It learns from all your records."
        one = "patient" if terms.names_patients else "record"
        if count > 1:
            parts = f"Each learns from a part of your {one}s of about equal size. No {one} teaches two."
            parts += "" if terms.names_patients else " A patient with several records may."
        number = f"{count} at your hospital, {terms.num_teachers} in the study."
        if votes.records_per_teacher is not None:
            number = (
                f"{count}, or fewer by --teachers, chosen before your records are read. One for "
                f"every {votes.records_per_teacher} {one}s is proposed. At most {terms.num_teachers} in all."
            )
        return (
            ("number", number),
            ("kind", f"{teacher.name}{size}. {parts}"),
            ("where", "They are trained on your machine and stay on its disk."),
        )

    @property
    def values(self) -> dict[str, Any]:
        """The teachers."""
        return {"teachers": {**asdict(self.votes.teacher), "count": self.votes.teachers_per_client}}

    @property
    def leaves(self) -> Facts:
        """A row of counts for each question."""
        row = (
            f"For each question one row of {self.terms.num_classes} whole numbers: how many of your teachers "
            f"vote for each class. A row sums to {self._sum_of_row()}."
        )
        if not self.terms.secure_sum:
            how = "The rows leave as they are: without masks and without noise."
        elif not self.terms.adds_noise:
            how = "The rows leave under masks: each by itself is random numbers."
        else:
            how = "Your machine adds noise first. The rows then leave under masks: each is random numbers."
        return (("votes", row), ("how", how), ("also", ALSO))

    def _sum_of_row(self) -> str:
        if self.votes.records_per_teacher is None:
            return f"{self.votes.teachers_per_client}"
        return f"the number of your teachers{'' if self.terms.secure_sum else ', which the coordinator sees'}"

    @property
    def sees(self) -> Facts:
        """Votes, exact sums or noisy ones."""
        many = f"at least {self.terms.least_clients} hospitals"
        if not self.terms.secure_sum:
            sees = "Sees your hospital's own votes on every question."
        elif not self.terms.adds_noise:
            sees = f"Sees the exact sum over {many} for each question. Never your hospital's own votes."
        else:
            sees = f"Sees noisy sums over {many}. Neither exact sums nor your hospital's own votes."
        public = "Whoever gets the labels or the student sees the outcome of noisy votes."
        return (("coordinator", sees), ("hospitals", "See nothing of your votes."), ("public", public))

    @property
    def protects(self) -> str:
        """The unit, the adjacency, and how many votes move."""
        return self.terms.privacy.protection(self.votes.teachers_per_client).text()

    @property
    def caps(self) -> Facts:
        """Questions and labels."""
        terms, labels = self.terms, min(self.votes.labels, self.votes.max_queries)
        asked = f"At most {terms.max_queries} of the pool's {terms.pool_size}. Each is answered once."
        return (("questions", asked), ("labels", f"At most {labels} are released."))

    @property
    def limits(self) -> Facts:
        """Also the budget, which may stop the study before the caps do."""
        if (epsilon := self.terms.privacy.epsilon) is None:
            return super().limits
        budget = f"The study stops before ε = {epsilon_text(epsilon)} against the public would be passed."
        return (*super().limits, ("budget", budget))

    @property
    def asked(self) -> str:
        """Queries and labels."""
        return f"up to {self.terms.max_queries} queries, {self.terms.labels} labels"

    @property
    def asked_of_pool(self) -> str:
        """Queries and labels."""
        return f"at most {counted(self.terms.max_queries, 'query')}, {counted(self.terms.labels, 'label')}"

    def together(self, accuracy: float) -> Iterator[str]:
        """Labels that teachers as good as one of this hospital give, and how many are right."""
        terms = self.terms
        try:
            votes = assumed_votes(accuracy, terms.num_classes, terms.num_teachers)
        except InputError:
            yield "no expectation: such teachers are always right, or no better than chance"
            return
        if (claim := self.votes.claim) is not None:
            yield f"not known beforehand: {claim.part.name} is none of our mechanisms"
            return
        labels, right = expect_labels(terms, votes)
        yield (
            f"about {labels} labels, of which {share_text(right)} right: what `pate-fed plan` "
            f"expects of this noise and {terms.num_teachers} teachers, if all are as good as yours on inputs "
            "like these"
        )
        yield "The student learns from these labels; how well it does is not known beforehand."

    @property
    def instead(self) -> str:
        """What a federation of this size could do."""
        terms, votes, privacy = self.terms, self.votes, self.terms.privacy
        if votes.claim is not None:
            return (
                "Give its parameters more noise ([aggregation.parameters]), a budget (--epsilon) or smaller "
                "caps (--labels, --max-queries)"
            )
        teachers = terms.num_teachers
        offer = affordable_offer(
            Ensemble(
                num_teachers=teachers,
                num_classes=terms.num_classes,
                aggregator="confident-gnmax",
                privacy=privacy,
                protection=privacy.protection(votes.teachers_per_client),
            )
        )
        labels, budget = offer.answered if offer else 0, epsilon_text(privacy.epsilon or MOST_BY_DEFAULT)
        if labels >= USEFUL_LABELS:
            return (
                f"{counted(teachers, 'teacher')} can have {labels} labels at ε={budget}: leave out noise, "
                "threshold and counts, give --epsilon, or see pate-fed plan"
            )
        # With more teachers a hospital no unit sways more votes than with two.
        alone = privacy.votes_moved(3) == privacy.votes_moved(2)
        more = "a larger --teachers-per-client (smaller disjoint parts), " if alone else ""
        few = terms.num_clients < LEAST_PARTIES
        sums = "" if few else "class sums (--aggregator class-sums --secure-sum), "
        return (
            f"{counted(teachers, 'teacher')} are too few for a useful vote: ε={budget} buys "
            f"{counted(labels, 'label')}. Labels grow with the square of the teachers. Take {more}more "
            f"hospitals, a larger --epsilon, {sums}or stay alone, each hospital with a model of its own"
        )

    # After it.

    def done(self, inputs: str, *, asked: int, answered: int) -> str:
        """Teachers, votes, labels, student."""
        return (
            f"{counted(self.terms.num_clients, 'hospital')} took part. Each one trained models on its own "
            f"records, the teachers. The teachers voted on {asked:,} public {inputs}, and noise was added to "
            f"every vote. {answered:,} got a label. A new model, the student, learnt from these labels and "
            f"from public {inputs}."
        )

    def left(self, inputs: str) -> str:
        """Votes, in one of three ways."""
        if not self.terms.secure_sum:
            way = ", which the coordinator saw"
        elif not self.terms.adds_noise:
            way = ", under a mask: only the sum of all was seen"
        else:
            way = ", with noise and under a mask"
        return f"Its teachers' votes on public {inputs}{way}. No record and no model left it."

    @property
    def glossary(self) -> Facts:
        """What a teacher is."""
        return (("teacher", "a model that a hospital trained on its own records and keeps"),)

    @property
    def records_apart(self) -> bool:
        """Where they may teach two teachers."""
        return super().records_apart and self.votes.teachers_per_client > 1

    def why_large(self, answered: int) -> str:
        """Few teachers, or many labels."""
        terms, votes = self.terms, self.votes
        if terms.assumptions():
            return "More noise of the mechanism, fewer queries or more teachers bring it down."
        noise = f"noise of σ₂ = {votes.aggregation.fixed()[2]:,.4g} votes"
        more = "More teachers, more noise or fewer labels bring it down; pate-fed plan computes by how much."
        if terms.num_teachers < _FEW:
            return (
                f"The reason: {counted(terms.num_teachers, 'teacher')} can outvote only a little noise "
                f"({noise}), and little noise hides little of one {terms.privacy.unit}. {more}"
            )
        return f"The reason: {counted(answered, 'answered query')} with {noise} add up. {more}"

    def settings(self, records: str) -> Facts:
        """Hospitals, teachers, and the mechanism with its noise."""
        terms, votes = self.terms, self.votes
        each = f"{votes.teachers_per_client:,}"
        if votes.records_per_teacher is not None:
            proposed = counted(votes.records_per_teacher, "record")
            each = f"1 to {each}, as each said before; one for {proposed} was proposed"
        parties: Facts = (
            ("Hospitals", f"{terms.num_clients:,}, at least {terms.least_clients:,} in every batch"),
            ("Teachers a hospital", f"{each} ({votes.teacher.name})"),
            ("Private records", records),
        )
        if (claim := votes.claim) is not None:
            own = ", ".join(f"{name} = {value}" for name, value in claim.parameters)
            return (*parties, ("Mechanism", claim.part.text), ("Its parameters", own))
        _, sigma1, sigma2 = votes.aggregation.fixed()
        checked = votes.threshold is not None and not terms.adds_noise
        return (
            *parties,
            ("Mechanism", self.mechanism),
            ("Threshold T", self._in_votes(votes.threshold)),
            ("Threshold noise σ₁", self._in_votes(sigma1 if checked else None)),
            ("Vote noise σ₂", self._in_votes(sigma2)),
        )

    def _in_votes(self, value: float | None) -> str:
        if value is None:
            return ""
        return f"{value:,.6g} votes ({value / self.terms.num_teachers:.3g} a teacher)"

    def _way(self) -> str:
        terms = self.terms
        if terms.sigma_party is None:
            return super()._way()
        return (
            f"masked, with noise of σ = {terms.sigma_party:.4g} votes of every hospital; counted on are the "
            f"{terms.least_clients - terms.colluders:,} that are surely there and tell nobody"
        )

    @property
    def stop(self) -> str:
        """At the caps."""
        return f"at {counted(self.terms.labels, 'label')} or {counted(self.terms.max_queries, 'query')}"

    def _public(self, noise: str) -> Against:
        return Against(
            who="Anyone who gets the student or its labels",
            sees="Which queries were answered, and their noisy labels",
            hidden=f"All votes and totals. {self.at_home}",
            by=f"noise on every vote: {noise}; fixed before the first query by {fixed_by(self.terms)}",
        )

    @property
    def home(self) -> AtHome:
        """Hospitals with their teachers."""
        terms, votes = self.terms, self.votes
        if not terms.secure_sum:
            way = "votes on public inputs, as they are"
        elif not terms.adds_noise:
            way = "masked votes: only their sum can be read"
        else:
            way = "masked votes with noise added at home"
        each = counted(votes.teachers_per_client, "teacher")
        asked = "noisy answers" if terms.adds_noise else "noise on every answer"
        return AtHome(
            name=counted(terms.num_clients, "hospital"),
            holds=f"keep records and {each} each, whose weights never leave",
            sends=way,
            released=asked + ("" if votes.threshold is None else "; too little agreement, no answer"),
        )


def expect_labels(terms: Terms, votes: VoteModel) -> tuple[int, float]:
    """Labels that the study's own noise and caps would give of such votes, and the share that is right."""
    aggregation = cast("VoteTerms", terms.asks).aggregation
    threshold, sigma1, sigma2 = aggregation.fixed()
    if aggregation.aggregator == "lnmax":
        sigma2 *= math.sqrt(2)  # the deviation of Laplace noise of that scale
    right = votes.right_chance(sigma2, terms.num_teachers)
    passed = np.ones_like(right)
    if aggregation.has_threshold:
        passed = votes.answered(threshold, sigma1, terms.num_teachers)
    answered = float(passed.mean())
    share = float((passed * right).sum() / max(float(passed.sum()), 1e-300))
    return min(terms.labels, round(terms.max_queries * answered)), share
