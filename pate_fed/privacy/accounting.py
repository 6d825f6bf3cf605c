"""The accountant of a script or a notebook: what mechanisms released, the ε of it, and how much is left."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

from pate_fed.errors import InputError
from pate_fed.format import counted
from pate_fed.privacy.bounds.control import capped_cost_epsilon
from pate_fed.privacy.bounds.cost import NOTHING, Cost
from pate_fed.privacy.bounds.profiles import pld_epsilon
from pate_fed.privacy.checks import check_count
from pate_fed.privacy.filter import BudgetFilter
from pate_fed.privacy.mechanisms.events import (
    Mechanism,
    PrivacyEvent,
    cost_of_dp_event,
    is_dp_event,
    to_dp_event,
)
from pate_fed.privacy.protection import RECORD, Protection

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent

Spent: TypeAlias = "Mechanism | PrivacyEvent | DpEvent | Iterable[PrivacyEvent | DpEvent]"

_MANY = 10**9  # queries, more than any budget affords


class Accountant:
    """Privacy that mechanisms spend on one data set, against all who see labels.

    A query is charged by its outcome, the class that wins or the check's bit. That bounds what is learnt by
    those who see labels, or a student of them. Whoever sees totals, noisy or not, is not covered; the cost of
    noisy totals is `to_dp_event`'s, and a study's coordinator has a charge of its own in the ledger.

    >>> from pate_fed.privacy import Accountant, ConfidentGNMax
    >>> study = ConfidentGNMax(classes=10, threshold=200, sigma1=150, sigma2=40)
    >>> accountant = Accountant()
    >>> accountant.spend(study, queries=640, labels=283)
    >>> accountant
    Accountant(1 release, 640 queries, 283 labels)
    >>> round(accountant.epsilon(delta=1e-5), 3)
    2.009
    >>> accountant.remaining(study, epsilon=4, delta=1e-5)
    605
    """

    def __init__(self, *, protection: Protection = RECORD) -> None:
        """Nothing spent; `protection` says what neighbouring data sets differ in."""
        self._protection = protection
        self._spent: list[PrivacyEvent | Any] = []

    def spend(self, what: Spent, *, queries: int | None = None, labels: int | None = None) -> None:
        """Add a release, or several.

        `what` is a mechanism with the `queries` that it looked at and the `labels` that it gave (as many as
        queries where it answers all), an event such as `release.event`, a DpEvent of dp-accounting, or a list
        of events.

        Raises:
            InputError: counts that are missing, out of range or not asked for, another protection than the
                accountant's, or a DpEvent that has no Rényi bound here. Nothing was added then.
        """
        if isinstance(what, Mechanism):
            made: list[Any] = [self._event(what, queries, labels)]
        elif queries is not None or labels is not None:
            raise InputError("queries and labels go with a mechanism; an event knows its own")
        else:
            made = [what] if isinstance(what, PrivacyEvent) or is_dp_event(what) else list(_events(what))
        for event in made:
            self._cost(event)
        self._spent += made

    def epsilon(self, delta: float = 1e-5) -> float:
        """ε at δ of all that was spent, rounded up: the least of RDP and optimal control.

        It is a guarantee where the numbers of queries and labels were fixed beforehand, as caps: in any
        order, each query chosen from earlier labels, and with fewer in the end. Where they followed from the
        labels, as in a run that stops by its own count, it is a reading; fix caps, or ask `remaining` first.
        """
        return capped_cost_epsilon(self.cost, delta)

    def pld_epsilon(self, delta: float = 1e-5) -> float:
        """ε at δ by privacy loss distributions, a second opinion by dp-accounting; not below `epsilon`.

        Raises:
            InputError: δ outside (0, 1), no dp-accounting, or a cost without such a distribution.
        """
        return pld_epsilon(self.cost, delta)

    def remaining(
        self, mechanism: Mechanism, *, epsilon: float, delta: float = 1e-5, queries: int | None = None
    ) -> int:
        """How many more queries of `mechanism` fit into the budget (ε, δ), if all of them are answered.

        By the Rényi filter, so it may be asked again after each release: a stop that follows it keeps the
        budget however queries were chosen. `queries` is the most that is of interest.
        """
        known = [event for event in self._spent if isinstance(event, PrivacyEvent)]
        others = [self._cost(event) for event in self._spent if not isinstance(event, PrivacyEvent)]
        budget = BudgetFilter(epsilon, delta, self._protection, sum(others, NOTHING))
        return budget.affordable(mechanism, events=known, queries=_MANY if queries is None else queries)

    @property
    def cost(self) -> Cost:
        """The total cost, exact, in any order."""
        return sum((self._cost(event) for event in self._spent), NOTHING)

    @property
    def events(self) -> tuple[PrivacyEvent | Any, ...]:
        """What was spent, oldest first."""
        return tuple(self._spent)

    def to_dp_event(self) -> DpEvent:
        """All of it as one DpEvent of dp-accounting, which charges noisy totals: an upper bound.

        Raises:
            InputError: no dp-accounting, or a mechanism that has no such event.
        """
        return to_dp_event(self._spent)

    def __repr__(self) -> str:
        """Counts of what was spent."""
        known = [event for event in self._spent if isinstance(event, PrivacyEvent)]
        asked, answered = sum(each.asked for each in known), sum(each.answered for each in known)
        text = [counted(len(known), "release"), counted(asked, "query"), counted(answered, "label")]
        if len(known) < len(self._spent):
            text.append(counted(len(self._spent) - len(known), "DpEvent"))
        if self.cost.claimed:
            text.append("claimed by mechanisms of one's own, not proven")
        if not all(each.private for each in known):
            text.append("not private: noise for simulation")
        return f"Accountant({', '.join(text)})"

    def _event(self, mechanism: Mechanism, queries: int | None, labels: int | None) -> PrivacyEvent:
        if queries is None or (labels is None and not mechanism.answers_all):
            raise InputError(f"{mechanism}: say how many queries it looked at, and how many labels it gave")
        asked = check_count("queries", queries)
        answered = asked if labels is None else check_count("labels", labels)
        if answered > asked:
            raise InputError(f"labels={answered}: must not be more than the {asked} queries")
        if mechanism.answers_all:
            asked = answered
        return PrivacyEvent(
            mechanism=mechanism,
            asked=asked,
            answered=answered,
            protection=self._protection,
            noise="planned",
            private=True,
        )

    def _cost(self, event: Any) -> Cost:
        if not isinstance(event, PrivacyEvent):
            return cost_of_dp_event(event)
        if event.protection != self._protection:
            raise InputError(
                "an event protects another unit, adjacency or number of votes than the accountant"
            )
        return event.cost()


def _events(what: Any) -> Iterable[Any]:
    try:
        listed = list(what)
    except TypeError as error:
        raise InputError(f"{what!r}: a mechanism, an event or a list of events is meant") from error
    for event in listed:
        if not (isinstance(event, PrivacyEvent) or is_dp_event(event)):
            raise InputError(f"{event!r}: a list of events is meant; a mechanism is spent with its queries")
    return listed
