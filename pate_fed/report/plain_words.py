"""A run in plain words, for the board of a hospital: what was done, what left the house, what is promised.

Everything here may be published.
"""

from __future__ import annotations

import math

from pate_fed.format import counted, delta_text, epsilon_text, share_text
from pate_fed.kinds.sums import SumTerms
from pate_fed.kinds.votes import VoteTerms
from pate_fed.report.result import LabelStudyRecord, RunResult, StudyRecord
from pate_fed.report.terms_text import IN_ONE_PLACE


def plain_answers(result: RunResult) -> list[tuple[str, str]]:
    """Questions that a board asks, each with its answer in a few sentences."""
    answers = [
        ("What was done?", _done(result)),
        ("What left a hospital?", _left(result)),
        ("What can somebody learn about one patient from what is published?", _learnt(result)),
        ("What is not promised?", _not_promised(result)),
        ("How good is the student?", _good(result)),
        ("How can it be checked?", _checked(result)),
    ]
    return [(question, answer) for question, answer in answers if answer]


def _done(result: RunResult) -> str:
    study, inputs = result.study, result.study.inputs
    asked, answered = result.queries_asked, result.queries_answered
    simulated = " It was a simulation: one machine played every part." if _simulated(study) else ""
    if isinstance(study, LabelStudyRecord):
        return (
            f"The {inputs} were public, and their labels private. {answered:,} labels were released with "
            f"noise. A new model, the student, learnt from them.{simulated}"
        )
    hospitals = counted(study.terms.num_clients, "hospital")
    if isinstance(study.terms.asks, SumTerms):
        return (
            f"{hospitals} took part. Each one added up features of its own records by class. The sums of all "
            f"were put together, noise was added, and a model, the student, was made of them. That happened "
            f"once.{simulated}"
        )
    return (
        f"{hospitals} took part. Each one trained models on its own records, the teachers. The teachers "
        f"voted on {asked:,} public {inputs}, and noise was added to every vote. {answered:,} got a label. A "
        f"new model, the student, learnt from these labels and from public {inputs}.{simulated}"
    )


def _simulated(study: StudyRecord | LabelStudyRecord) -> bool:
    return study.backend in ("ray", "inline")


def _left(result: RunResult) -> str:
    study = result.study
    if isinstance(study, LabelStudyRecord):
        if study.coordinator == IN_ONE_PLACE:
            return "Nothing was sent: all labels lay in one place, whose keeper ran the study."
        return "Labels, after noise was added at home. Nothing else."
    if isinstance(study.terms.asks, SumTerms):
        noise = " and noise" if study.terms.adds_noise else ""
        return f"Sums over all its records, under a mask{noise}. No record left it."
    way = {
        "plain": "Its teachers' votes on public {inputs}, which the coordinator saw.",
        "secure-sum": "Its teachers' votes on public {inputs}, under a mask: only the sum of all was seen.",
        "hospital-noise": "Its teachers' votes on public {inputs}, with noise and under a mask.",
    }.get(study.coordinator, "Its teachers' votes on public {inputs}.")
    return way.format(inputs=study.inputs) + " No record and no model left it."


def _learnt(result: RunResult) -> str:
    study, epsilon = result.study, result.outcome.privacy.student
    if not study.noise_private:
        return (
            "There is no protection: the noise of this run can be computed again by whoever knows its seed. "
            "It was made to try out settings."
        )
    if not result.queries_asked and epsilon == 0:
        return "Nothing: the run ended before anything was published."
    if epsilon is None:
        return f"No bound is known: {result.outcome.privacy.unbounded_because}."
    what = "one label" if study.terms.privacy.unit == "label" else f"one {study.terms.privacy.unit}"
    replaced = study.terms.privacy.adjacency == "replace-one"
    bet_on = f"which of two versions of {what} was used" if replaced else f"whether {what} was among the data"
    best = share_text(_best_guess(epsilon, study.terms.delta), 1000)
    assumed = study.assumptions
    holds = f"It is {assumed.short}: {assumed.warning}." if assumed else "It holds whatever the records are."
    return (
        f"Suppose somebody knows everything but {what}, and bets on {bet_on}, where both were equally "
        f"likely. With all that is published, that bet is right in at most {best} of cases; 50 % is a coin. "
        f"This is what ε = {epsilon_text(epsilon)} and δ = {delta_text(study.terms.delta)} mean. "
        f"{holds}"
    )


def _best_guess(epsilon: float, delta: float) -> float:
    """The most that a bet between two neighbours can win (Kairouz, Oh and Viswanath 2015), rounded up.

    The total variation of what (ε, δ)-DP allows is (e^ε - 1 + 2δ) / (e^ε + 1).
    """
    shrunk = math.exp(-epsilon)
    best = (1 + delta * shrunk) / (1 + shrunk)
    return min(1.0, math.ceil(1000 * best) / 1000)


def _not_promised(result: RunResult) -> str:
    study, outcome = result.study, result.outcome
    told = []
    if outcome.privacy.coordinator is None:
        told.append(f"Against the coordinator there is no bound: it sees {study.coordinator_sees}.")
    if isinstance(study, StudyRecord) and study.terms.privacy.unit == "record":
        terms = study.terms
        apart = not terms.names_patients and (
            isinstance(terms.asks, SumTerms) or VoteTerms.of(terms).teachers_per_client > 1
        )
        several = "several records" if apart else "records at several hospitals"
        told.append(f"A patient with {several} is protected less.")
    told.append(
        "What is true of patients in general may be learnt; that is what a study is for. Studies on the same "
        "records add up."
    )
    return " ".join(told)


def _good(result: RunResult) -> str:
    accuracy, name = result.outcome.accuracy, result.study.class_name
    interval, count = accuracy.student_interval, accuracy.student_n
    if interval is None or not count or accuracy.student is None:
        return "Nobody knows yet: no public input with a true label tested it."
    low, high = (share_text(end, count) for end in interval)
    told = (
        f"It was right in {share_text(accuracy.student, count)} of {count:,} test {result.study.inputs}. "
        f"Chance leaves the true share between {low} and {high} (95 % interval)."
    )
    if accuracy.majority is not None:
        told += f" Always naming the most frequent class is right in {share_text(accuracy.majority, count)}."
    weakest = accuracy.weakest
    if weakest is not None and len(accuracy.recall) > 1:
        told += f" It does worst on class {name(weakest.number)}: {weakest.right} of {weakest.count:,} found."
    return " ".join([told, "Whether that is enough to be used on patients, this report does not say."])


def _checked(result: RunResult) -> str:
    reason = result.outcome.reason
    ended = {
        "success": "The run came to its end.",
        "failed": f"The run failed: {reason}.",
    }.get(result.outcome.status, f"The run was cut off: {reason}.")
    return (
        f"{ended} Every release stands in a ledger whose rows are chained, so that none can be changed "
        "unseen. pate-fed ledger verify computes every ε again from it."
    )


def glossary(result: RunResult) -> list[tuple[str, str]]:
    """The report's words, for whoever meets them for the first time; only those that this study needs."""
    study = result.study
    votes = isinstance(study, StudyRecord) and not isinstance(study.terms.asks, SumTerms)
    words = [
        ("ε (epsilon)", "how much one person's data can change what is published: the smaller, the less"),
        ("δ (delta)", "the small probability with which that bound may fail"),
        ("teacher", "a model that a hospital trained on its own records and keeps" if votes else ""),
        ("label", "the class that was given to a public input"),
        ("student", "the model that is published; it never saw a private record"),
        ("coordinator", "whoever puts the hospitals' answers together and adds up what they cost"),
        ("95 % interval", "where the true share lies, but for one study in twenty"),
        ("recall", "of all inputs of a class, the share that the student finds"),
        ("calibration", "whether the student is right as often as it is sure"),
    ]
    return [(name, text) for name, text in words if text]
