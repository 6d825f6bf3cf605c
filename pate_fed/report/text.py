"""What the report says in words: outcome, warnings, figures, and who is protected against whom."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pate_fed.config.sections import EPSILON_ALARM
from pate_fed.format import counted, delta_text, epsilon_text
from pate_fed.kinds.sums import SumTerms
from pate_fed.kinds.votes import VoteTerms
from pate_fed.report.result import LabelStudyRecord, Outcome, RunResult, StudyRecord
from pate_fed.report.sums_text import by_coordinator, seen_of_sums
from pate_fed.report.terms_text import IN_ONE_PLACE

# What the coordinator sees of private labels where they are masked: only their sum.
SUMMED = "noisy-counts"


@dataclass(frozen=True, slots=True)
class Banner:
    """A message at the top; `kind` is danger, warn or note."""

    kind: str
    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Guarantee:
    """One adversary: what it sees, what is kept from it, and the bound; `kind` is finite, none or broken."""

    against: str
    sees: str
    hidden: str
    bound: str
    by: str
    kind: str


def banners(result: RunResult, *, publishable: bool) -> list[Banner]:
    """Everything a reader must know before any figure, the gravest first."""
    study, outcome = result.study, result.outcome
    found: list[Banner] = []
    if outcome.status != "success":
        title = "The run failed" if outcome.status == "failed" else "The run was aborted"
        found.append(Banner("danger", title, _sentence(outcome.reason or "no reason was recorded")))
    if not study.noise_private:
        found.append(Banner("danger", "Not private: seeded noise", _SEEDED))
    if study.assumptions:
        found.append(Banner("danger", "ε is claimed, not proven", _sentence(study.assumptions.warning)))
    epsilon = outcome.privacy.student
    if outcome.status == "success" and epsilon is None:
        reason = outcome.privacy.unbounded_because
        found.append(Banner("danger", "No privacy bound", _sentence(reason)))
    if epsilon is not None and epsilon > EPSILON_ALARM:
        title = f"ε = {epsilon_text(epsilon)} promises almost nothing"
        found.append(Banner("danger", title, _why_large(result)))
    fewer = fewer_labels(result)
    if fewer is not None:
        found.append(Banner("warn", "Fewer labels than meant", fewer))
    warnings = outcome.accuracy.warnings(study.class_name)
    found += [Banner("warn", "The student's accuracy", text) for text in warnings]
    found += [Banner("warn", "What was answered", text) for text in outcome.cautions]
    if result.left_out:
        found.append(_left_out_banner(result, publishable=publishable))
    if not publishable and isinstance(study, StudyRecord) and not isinstance(study.terms.asks, SumTerms):
        found.append(Banner("note", "For the analyst", _ANALYST))
    return found


_SEEDED = (
    "The noise of this run can be computed again by anyone who knows the seed, so it protects nobody. Every "
    "ε below is what the same run would cost with noise from the operating system's random source. Leave the "
    "seed out to get that protection."
)
_ANALYST = (
    "Figures marked ◆ were computed from private votes: they help to judge the run and carry no guarantee. "
    "Hand on a copy without them (pate-fed report RUN_DIR --publishable), never log.jsonl or metrics.json."
)


def _why_large(result: RunResult) -> str:
    study, epsilon = result.study, result.outcome.privacy.student or 0.0
    why = f"It allows the chance of an outcome to change by a factor of {_factor(epsilon)}. "
    if isinstance(study, LabelStudyRecord):
        return why + "A smaller --epsilon brings it down; pate-fed label-dp --advise says which method suits."
    terms = study.terms
    if isinstance(terms.asks, SumTerms):
        return why + "A smaller --epsilon brings it down."
    if study.assumptions:
        return why + "More noise of the mechanism, fewer queries or more teachers bring it down."
    noise = f"noise of σ₂ = {VoteTerms.of(terms).aggregation.fixed()[2]:,.4g} votes"
    if terms.num_teachers < 100:
        why += (
            f"The reason: {counted(terms.num_teachers, 'teacher')} can outvote only a little noise "
            f"({noise}), and little noise hides little of one {terms.privacy.unit}. "
        )
    else:
        answers = counted(result.queries_answered, "answered query")
        why += f"The reason: {answers} with {noise} add up. "
    return (
        why + "More teachers, more noise or fewer labels bring it down; pate-fed plan computes by how much."
    )


def fewer_labels(result: RunResult) -> str | None:
    """Why there are fewer labels than meant, and what to do; None where the cap on queries is not why."""
    terms, answered = result.study.terms, result.queries_answered
    if not isinstance(result.study, StudyRecord) or result.study.threshold is None:
        return None
    if result.queries_asked < terms.max_queries or answered >= terms.labels:
        return None
    return (
        f"All {counted(terms.max_queries, 'query')} were asked for {answered:,} of "
        f"{counted(terms.labels, 'label')}: the teachers agree less often than the threshold asks for. "
        "Another study could take a lower --threshold, which costs no ε, or a larger --max-queries, which "
        "costs little. Its ε adds up with this one's."
    )


def _left_out_banner(result: RunResult, *, publishable: bool) -> Banner:
    parties = list(dict.fromkeys(left.party for left in result.left_out))
    title = f"{len(parties)} of {result.study.terms.num_clients} hospitals left out at least once"
    if publishable:
        return Banner("warn", title, "Their votes did not count where they were late or failed a check.")
    shown = "; ".join(f"{left.party} ({left.phase}: {left.reason})" for left in result.left_out[:5])
    more = f"; and {len(result.left_out) - 5} more in log.jsonl" if len(result.left_out) > 5 else ""
    return Banner("warn", title, f"{shown}{more}.")


def _sentence(text: str) -> str:
    text = text[:1].upper() + text[1:]
    return text if text.endswith((".", "!", "?")) else text + "."


_UNTOLD = 13.8


def _factor(epsilon: float) -> str:
    if epsilon > _UNTOLD:
        return "more than a million"
    factor = math.exp(epsilon)  # shown as "at most", so rounded up
    return f"{math.ceil(factor):,}" if factor >= 10 else f"{math.ceil(10 * factor) / 10:.1f}"


def protection_lead(result: RunResult) -> str:
    """What is protected and what ε at δ says about it, in two sentences."""
    study, epsilon = result.study, result.outcome.privacy.student
    unit, adjacency = study.terms.privacy.unit, study.terms.privacy.adjacency
    lead = f"Protected unit: {study.protects}."
    if not result.queries_asked and epsilon == 0:
        return f"{lead} Nothing was released, so nothing was spent."
    if epsilon is None:
        return lead
    change = "replaced by any other" if adjacency == "replace-one" else "added or taken away"
    grows = "grows" if study.noise_private else "would grow, with private noise,"
    size = f"e^ε = {_factor(epsilon)}," if epsilon <= _UNTOLD else "e^ε, which is more than a million,"
    return (
        f"{lead} With one {unit} {change}, the probability of any outcome {grows} at most by a factor "
        f"of {size} plus δ = {delta_text(study.terms.delta)}."
    )


def guarantees(result: RunResult) -> list[Guarantee]:
    """One row for each who could try to learn about a patient."""
    study, outcome = result.study, result.outcome
    if isinstance(study, LabelStudyRecord):
        return _of_labels(study, outcome)
    return [_public(study, outcome), _coordinator(study, outcome), _other_hospitals(study, outcome)]


def _of_labels(study: LabelStudyRecord, outcome: Outcome) -> list[Guarantee]:
    """Features are public, and one private label of a record is protected."""
    bound, kind = _bound(study, outcome.privacy.student)
    by = f"{study.noise}; fixed before the first label was asked about, by {study.mechanism}"
    who = "Anyone who gets the student or the released labels"
    public = Guarantee(who, "Features and released labels", "The records' own labels", bound, by, kind)
    sees = study.coordinator_sees[:1].upper() + study.coordinator_sees[1:]
    if study.coordinator == IN_ONE_PLACE:
        trust = "trust alone: whoever runs this study has the labels"
        return [public, Guarantee("Whoever ran it", sees, "Nothing", "Unbounded: no promise", trust, "none")]
    masks = ", and masks" if study.coordinator == SUMMED else ""
    at_home, own = f"noise that every hospital adds at home{masks}", "Every hospital's own labels"
    return [
        public,
        Guarantee("The coordinator", sees, own, bound, at_home, kind),
        Guarantee("The other hospitals", "The same as the public", own, bound, at_home, kind),
    ]


_AT_HOME = "Records, teachers and their weights, gradients, scores"


def _public(study: StudyRecord, outcome: Outcome) -> Guarantee:
    privacy = outcome.privacy
    bound, kind = _bound(study, outcome.privacy.student)
    sees, hidden = "Which queries were answered, and their noisy labels", f"All votes and totals. {_AT_HOME}"
    by = f"noise on every vote: {study.noise}; fixed before the first query by {_fixed_by(study)}"
    if isinstance(study.terms.asks, SumTerms):
        sees, hidden, by = seen_of_sums(study.noise)
    if not study.noise_private and privacy.student is not None:
        by = f"{study.noise}; with private noise it would be ε = {epsilon_text(privacy.student)}"
    elif privacy.student is None:
        by = privacy.unbounded_because
    return Guarantee(
        "Anyone who gets the student or its labels",
        sees,
        hidden,
        bound,
        by,
        kind,
    )


def _fixed_by(study: StudyRecord) -> str:
    terms = study.terms
    caps = f"at most {counted(terms.max_queries, 'query')} and {counted(terms.labels, 'label')}"
    return caps if terms.privacy.epsilon is None else f"the budget and {caps}"


def _bound(
    study: StudyRecord | LabelStudyRecord, epsilon: float | None, *, none: str = "No bound"
) -> tuple[str, str]:
    """A bound in words and its kind; `none` says that there is none."""
    if epsilon is None:
        return none, "none"
    if not study.noise_private:
        return "None: the noise was seeded", "broken"
    kind = "finite" if epsilon <= EPSILON_ALARM and not study.assumptions else "broken"
    claimed = f" ({study.assumptions.short})" if study.assumptions else ""
    return f"ε = {epsilon_text(epsilon)}, δ = {delta_text(study.terms.delta)}{claimed}", kind


def _coordinator(study: StudyRecord, outcome: Outcome) -> Guarantee:
    hidden, by = {
        "plain": (_AT_HOME, "trust alone: no noise is added before it sees the votes"),
        "secure-sum": (
            "One hospital's own votes. " + _AT_HOME,
            f"masks hide who voted how, {_masks_hold(study)}; the exact sum is shown",
        ),
        "hospital-noise": (
            "Exact totals, one hospital's own votes. " + _AT_HOME,
            f"noise and masks added at home; the masks hold {_masks_hold(study)}; up to "
            f"{counted(study.terms.colluders, 'hospital')} may tell it their own noise",
        ),
    }.get(study.coordinator, by_coordinator(study.terms, masks=_masks_hold(study)))
    bound, kind = _bound(study, outcome.privacy.coordinator, none="Unbounded: no promise")
    if note := outcome.privacy.coordinator_note:
        by = f"{by}; {note}"
    sees = study.coordinator_sees[:1].upper() + study.coordinator_sees[1:]
    return Guarantee("The coordinator", sees, hidden, bound, by, kind)


def _masks_hold(study: StudyRecord) -> str:
    """Against how many hospitals: t shares open a secret, and 2t - n suffice a coordinator that lies."""
    clients, least = study.terms.num_clients, study.terms.least_clients
    honest, lying = least - 1, max(0, 2 * least - clients - 1)
    return (
        f"while at most {counted(honest, 'hospital')} pool what they know with it "
        f"({lying:,} where it breaks the protocol)"
    )


def _other_hospitals(study: StudyRecord, outcome: Outcome) -> Guarantee:
    bound, kind = _bound(study, outcome.privacy.student)
    by = "the same noise, as long as they do not share in what the coordinator sees"
    what = "votes" if not isinstance(study.terms.asks, SumTerms) else "sums"
    if study.coordinator in ("hospital-noise", "noisy-sums"):
        if not study.terms.colluders:
            bound, kind = "No bound is stated", "none"
        by = (
            f"the noise of the others: up to {counted(study.terms.colluders, 'hospital')} may pool their own "
            "shares of it"
        )
    return Guarantee(
        "The other hospitals",
        f"The same as the public, and their own {what}",
        f"Another hospital's {what}. {_AT_HOME}",
        bound,
        by,
        kind,
    )


def unpublishable(result: RunResult) -> list[tuple[str, str]]:
    """Privacy figures that follow from private votes, by name; for the analyst."""
    privacy = result.outcome.privacy
    if privacy.data_dependent_do_not_publish is None:
        return []
    return [("data-dependent ε (do not publish)", epsilon_text(privacy.data_dependent_do_not_publish))]
