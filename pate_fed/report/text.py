"""What the report says in words: outcome, warnings, figures, who is protected against whom, and the terms."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from pate_fed.config.sections import EPSILON_ALARM
from pate_fed.format import counted, delta_text, epsilon_text, interval_text, right_text, share_text
from pate_fed.kinds.words import Against
from pate_fed.privacy.protection import to_a_patient
from pate_fed.report.accuracy import Accuracy
from pate_fed.report.result import LabelStudyRecord, RunResult, StudyRecord, reservations


@dataclass(frozen=True, slots=True)
class Banner:
    """A message at the top; `kind` is danger, warn or note."""

    kind: str
    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Guarantee:
    """What one adversary sees, what is kept from it, and the bound; `kind` is finite, none or broken."""

    against: Against
    bound: str
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
        why = f"It allows the chance of an outcome to change by a factor of {_factor(epsilon)}. "
        found.append(Banner("danger", title, why + study.words.why_large(result.queries_answered)))
    fewer = fewer_labels(result)
    if fewer is not None:
        found.append(Banner("warn", "Fewer labels than meant", fewer))
    warnings = outcome.accuracy.warnings(study.class_name)
    found += [Banner("warn", "The student's accuracy", text) for text in warnings]
    found += [Banner("warn", "What was answered", text) for text in outcome.cautions]
    if result.left_out:
        found.append(_left_out_banner(result, publishable=publishable))
    if not publishable and study.words.figures_of_answers:
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


def fewer_labels(result: RunResult) -> str | None:
    """Why there are fewer labels than meant, and what to do; None where the cap on queries is not why."""
    terms, answered = result.study.terms, result.queries_answered
    if result.study.threshold is None:
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
        answers = result.study.words.answers
        return Banner("warn", title, f"Their {answers} did not count where they were late or failed a check.")
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


def to_a_patient_of(result: RunResult) -> str:
    """The guarantee in one sentence that a patient understands."""
    study, figures, privacy = result.study, result.outcome.privacy, result.study.terms.privacy
    return to_a_patient(
        unit=privacy.unit,
        adjacency=privacy.adjacency,
        hospitals=privacy.hospitals_moved,
        epsilon=None if figures.student is None else epsilon_text(figures.student),
        sees=study.coordinator_sees if figures.coordinator is None else None,
        private=study.noise_private,
    )


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
    """One row for each who could try to learn about a patient: public, coordinator, other hospitals."""
    study, privacy = result.study, result.outcome.privacy
    sees = study.coordinator_sees[:1].upper() + study.coordinator_sees[1:]
    public, coordinator, *others = study.words.against(study.noise, sees)
    why = public.by
    if privacy.student is None:
        why = privacy.unbounded_because
    elif not study.noise_private:
        why = f"{study.noise}; with private noise it would be ε = {epsilon_text(privacy.student)}"
    note = f"; {privacy.coordinator_note}" if privacy.coordinator_note else ""
    return [
        Guarantee(replace(public, by=why), *_bound(study, privacy.student)),
        Guarantee(
            replace(coordinator, by=coordinator.by + note),
            *_bound(study, privacy.coordinator, none="Unbounded: no promise"),
        ),
        *(
            Guarantee(
                each, *(_bound(study, privacy.student) if each.bounded else ("No bound is stated", "none"))
            )
            for each in others
        ),
    ]


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


def unpublishable(result: RunResult) -> list[tuple[str, str]]:
    """Privacy figures that follow from private votes, by name; for the analyst."""
    privacy = result.outcome.privacy
    if privacy.data_dependent_do_not_publish is None:
        return []
    return [("data-dependent ε (do not publish)", epsilon_text(privacy.data_dependent_do_not_publish))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Station:
    """Who holds what: `icon` is the template's picture, `sends` what goes on to the next station.

    `bound` is the ε against whoever stands here, of `kind` finite, none or broken; empty for hospitals.
    """

    icon: str
    name: str
    holds: str
    sends: str = ""
    bound: str = ""
    kind: str = ""


def flow_of(result: RunResult) -> list[Station]:
    """The picture of who sees what: from the records to whoever gets the student."""
    home, (public, middle, *_) = result.study.words.home, guarantees(result)
    labels = counted(result.queries_answered, "label") if result.queries_answered else "labels"
    return [
        Station(icon="house", name=home.name, holds=home.holds, sends=home.sends),
        Station(
            icon="server",
            name=middle.against.who,
            holds=f"sees {middle.against.sees[:1].lower()}{middle.against.sees[1:]}",
            sends=home.released,
            bound=middle.bound,
            kind=middle.kind,
        ),
        Station(
            icon="people",
            name="Anyone",
            holds=f"gets {labels} and the student",
            bound=public.bound,
            kind=public.kind,
        ),
    ]


@dataclass(frozen=True, slots=True)
class KeyFigure:
    """A large number with its name and what belongs to it; `kind` is empty or danger."""

    name: str
    value: str
    details: tuple[str, ...]
    kind: str = ""


def key_figures(result: RunResult) -> list[KeyFigure]:
    """The four numbers a reader looks for first."""
    study, terms, outcome = result.study, result.study.terms, result.outcome
    epsilon = outcome.privacy.student
    asked, answered = result.queries_asked, result.queries_answered
    delta, privacy = delta_text(terms.delta), terms.privacy
    details: tuple[str, ...] = (f"δ = {delta}", privacy.unit, privacy.adjacency)
    if outcome.privacy.spent is not None and epsilon:
        details += (f"spent {epsilon_text(outcome.privacy.spent)}",)
    details += reservations(study)
    bad = not study.noise_private or epsilon is None or epsilon > EPSILON_ALARM or bool(study.assumptions)
    none = "unbounded" if outcome.status == "success" else "unknown"
    share = study.words.share(asked=asked, answered=answered)
    teachers = (counted(terms.num_teachers, "teacher"),) if terms.num_teachers else ()
    return [
        KeyFigure(
            "ε against the public",
            none if epsilon is None else epsilon_text(epsilon),
            details,
            "danger" if bad else "",
        ),
        KeyFigure(
            f"student's {study.words.score}",
            *_right_share(study, outcome.accuracy),
        ),
        KeyFigure(study.words.released, f"{answered:,}", (share, *_right(outcome.accuracy))),
        KeyFigure("hospitals", f"{terms.num_clients:,}", (*teachers, study.words.quorum)),
    ]


def _right(accuracy: Accuracy) -> tuple[str, ...]:
    """How many of the released labels are right, where the public inputs' true ones are known."""
    interval, count = accuracy.labels_interval, accuracy.labels_n
    if interval is None or not count:
        return ()
    return f"{share_text(accuracy.labels, count)} right", f"95 % interval {interval_text(interval, count)}"


def _right_share(study: StudyRecord | LabelStudyRecord, accuracy: Accuracy) -> tuple[str, tuple[str, ...]]:
    """The student's accuracy on public inputs, else on hospitals' own records, for its card."""
    own, found = accuracy.own_records, accuracy.no_class
    if found is not None:
        _, value, (low, high) = found.rows[0]
        told = f"95 % interval {low:.3g} to {high:.3g}"
        return f"{value:.3f}", (f"on {found.count:,} public {study.inputs}", told)
    if accuracy.student is None and own is not None and own.accuracy is not None:
        share, ends = own.accuracy.text.split(" (")
        return share, (f"on about {own.records:,.0f} hospitals' records", f"95 %, with noise: {ends[:-1]}")
    return right_text(accuracy.student, accuracy.student_n), _tested(study, accuracy)


def _tested(study: StudyRecord | LabelStudyRecord, accuracy: Accuracy) -> tuple[str, ...]:
    interval, count = accuracy.student_interval, accuracy.student_n
    if interval is None or not count:
        return (f"no public {study.inputs} with {study.words.true_ones or 'true labels'} tested it",)
    found = [f"on {count:,} public {study.inputs}", f"95 % interval {interval_text(interval, count)}"]
    if accuracy.majority is not None:
        found.append(f"majority {share_text(accuracy.majority, count)}")
    return (*found, f"balanced {accuracy.balanced_text}")


def describe_terms(result: RunResult) -> list[tuple[str, str]]:
    """The study's terms as names and values, in reading order; what does not apply is left out."""
    study, words = result.study, result.study.words
    terms, budget = study.terms, study.terms.privacy.epsilon
    records = study.partition or "every hospital's own"
    pool = f"{terms.pool_size:,} {study.inputs}, SHA-256 {terms.pool_digest[:12]}…"
    shown = [
        ("Data set", f"{study.dataset}, {words.outcomes}"),
        ("Public pool", f"none; drawn from declared ranges: {pool}" if terms.drawn else pool),
        *words.settings(records),
        ("Noise from", study.noise),
        words.way,
        ("Protected", study.protects),
        ("Budget", "none was set; ε is reported" if budget is None else f"ε = {budget:,.6g}"),
        ("Stop", words.stop),
        ("Questions", "" if words.made_of else _questions(study)),
        ("Student", _student(result)),
        ("Ran on", engine_text(study.backend)),
        ("Seed", "none" if terms.seed is None else f"{terms.seed} (repeatable, not private)"),
    ]
    return [(name, value) for name, value in shown if value]


_ENGINES = {
    "ray": "Flower's simulation engine on Ray",
    "cluster": "a Ray cluster",
    "inline": "one process",
    "grpc": "a process for each hospital, over gRPC",
}


def engine_text(backend: str) -> str:
    """Where parties run, in words."""
    return _ENGINES.get(backend, backend)


def _student(result: RunResult) -> str:
    """Its name, whether it is as published, and what it takes to be wrong of its labels."""
    values = result.epochs[-1].values if result.epochs else {}
    shares = (("β", values.get("noise_rate")), ("τ", values.get("removal")))
    found = [f"{name} = {share:.2f}" for name, share in shares if share is not None]
    study = result.study
    return ", ".join([study.student_as or study.student, *found]) if study.student else ""


def _questions(study: StudyRecord | LabelStudyRecord) -> str:
    asked = study.queries
    if (asked.rounds or 1) == 1:
        return ""
    own = study.dataset in ("table", "images") or ":" in study.dataset
    order = f"{asked.strategy} first"
    if asked.strategy == "random":
        order = "at random" if own else "in the pool's order"
    return f"in {asked.rounds} rounds, {order}; a student of the labels so far shapes all but the first"
