"""What studies cost a hospital together: RDP curves that were fixed beforehand add up, study by study.

A study states its ε for one unit and adjacency. Its cost is kept for each of them, by its own mechanism, so
that studies that state different ones compose. A bound for replaced records holds for replaced labels too;
where labels alone are private, features count as known, so such a study bounds nothing for records.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from pate_fed.config.sections import Privacy
from pate_fed.errors import InputError
from pate_fed.kinds.terms import Terms
from pate_fed.privacy import BudgetFilter, LedgerTerms, capped_cost_epsilon
from pate_fed.privacy.bounds.cost import Cost, epsilon_of
from pate_fed.privacy.ledger.terms import guaranteed_coordinator_cost, guaranteed_cost
from pate_fed.privacy.protection import ADJACENCIES, UNITS, Protection

PUBLIC, COORDINATOR = "public", "coordinator"
_LABELS = "label, replace-one"
_RECORDS = "record, replace-one"


def target_of(protection: Protection | Privacy) -> str:
    """The unit and the adjacency as one text, by which costs are kept apart."""
    return f"{protection.unit}, {protection.adjacency}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyCost:
    """What one study can cost at most: its ledger's terms for every unit and adjacency with a bound.

    `stated` is the target that the study itself states its ε for.
    """

    stated: str
    terms: dict[str, LedgerTerms]

    @classmethod
    def of(cls, agreed: Terms) -> StudyCost:
        """From the terms that a hospital agrees to.

        Raises:
            InputError: terms that no mechanism has.
        """
        private = agreed.seed is None
        stated = agreed.ledger_terms(noise="as agreed", private=private)
        found = {target_of(stated.protection): stated}
        # The noise of a sanitised ε is made for the stated target.
        for unit in () if agreed.privacy.sanitise else UNITS:
            for adjacency in ADJACENCIES:
                # The budget is one for the stated target alone; the caps bound the others too.
                privacy = replace(agreed.privacy, unit=unit, adjacency=adjacency, epsilon=None)
                try:
                    varied = replace(agreed, privacy=privacy)
                    made = varied.ledger_terms(noise="as agreed", private=private)
                except InputError:  # there is none, such as for a hospital that takes its noise along
                    continue
                found.setdefault(target_of(made.protection), made)
        return cls(stated=target_of(stated.protection), terms=found)

    def bounds(self, target: str, against: str) -> list[Cost]:
        """Costs of which each is the most that the study can cost; empty where nothing bounds it.

        The first follows from the caps. A budget ε at δ is held by its filter at one order, and RDP grows
        with the order: so much is the RDP at every order below it, too. Where the caps alone keep the budget
        the filter is not asked, so only they bound the RDP.
        """
        terms = self.terms.get(_RECORDS if target == _LABELS and not self.about_labels else target)
        if terms is None or not terms.private:
            return []
        public = against == PUBLIC or terms.coordinator.sees_release
        caps = guaranteed_cost(terms) if public else guaranteed_coordinator_cost(terms)
        found = [] if caps is None else [_as_rdp(caps)]
        budget = terms.budget
        if public and budget is not None and not terms.caps_keep_budget:
            found.append(Cost(flat=budget.room, most_order=Fraction(budget.order)))
        return found

    @property
    def about_labels(self) -> bool:
        """Whether labels alone are private in it."""
        return self.stated == _LABELS

    def covers(self, target: str) -> bool:
        """Whether the study bears on what the target protects; where features are public it does not."""
        return target == _LABELS or not self.about_labels


def total_epsilon(studies: Sequence[StudyCost], target: str, against: str, *, delta: float) -> float | None:
    """ε at δ of all studies that cover the target, together, rounded up; None where nothing bounds it.

    Ordinary composition of costs that were fixed beforehand (Mironov 2017, Proposition 1), so it holds where
    no study's terms were chosen by what an earlier one released. One study alone is bounded by its caps.
    """
    counted = [study for study in studies if study.covers(target)]
    price = capped_cost_epsilon if len(counted) == 1 else epsilon_of
    return min((price(each, delta) for each in _sums(counted, target, against, delta)), default=None)


def fits(studies: Sequence[StudyCost], target: str, against: str, *, epsilon: float, delta: float) -> bool:
    """Whether all studies that cover the target stay within (ε, δ) together.

    A coordinator may choose its terms by what earlier studies released, so the limit is held at one order,
    which follows from ε and δ alone (Rényi filter: Feldman and Zrnic 2021), or by pure ε that add up to no
    more (Rogers et al. 2016). Either may hold, as on a course where pure ε add up to ε no loss passes it. The
    first study's terms were chosen by nothing, so its caps may bound it: none fits after it that this order
    has no room for.
    """
    counted = [study for study in studies if study.covers(target)]
    try:
        held = BudgetFilter(epsilon, delta)
    except InputError:  # ε or δ of 0: nothing fits but no study
        return not counted
    sums = _sums(counted, target, against, delta)
    if any(_holds(held, each) or _is_pure(each, epsilon) for each in sums):
        return True
    return len(counted) == 1 and any(capped_cost_epsilon(each, delta) <= epsilon for each in sums)


def _is_pure(cost: Cost, epsilon: float) -> bool:
    """Whether all of a cost is pure ε, and they add up to at most `epsilon`."""
    total = sum((each * times for each, times in cost.pure), Fraction(0))
    return cost == Cost(pure=cost.pure) and total <= Fraction(epsilon)


def _holds(held: BudgetFilter, cost: Cost) -> bool:
    try:
        return held.holds(cost)
    except InputError:  # a cost that is not known at the order
        return False


def _sums(studies: Sequence[StudyCost], target: str, against: str, delta: float) -> list[Cost]:
    """Sums of one bound of each study: of each the first, the last, and the one that is least alone."""
    found = [study.bounds(target, against) for study in studies]
    if not all(found):
        return []
    least = [min(bounds, key=lambda cost: epsilon_of(cost, delta)) for bounds in found]
    chosen = ([bounds[0] for bounds in found], [bounds[-1] for bounds in found], least)
    return [sum(costs, Cost()) for costs in chosen]


def _as_rdp(cost: Cost) -> Cost:
    """The cost with a pure (ε, 0) part known by its RDP (P17, Theorem 2); a part with a δ stays as it is."""
    if not cost.epsilon or cost.delta:
        return cost
    return replace(cost, epsilon=Fraction(0)) + Cost(pure=((cost.epsilon, 1),))
