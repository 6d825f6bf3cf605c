"""A run in plain words, for the board of a hospital: what was done, what left the house, what is promised.

Everything here may be published.
"""

from __future__ import annotations

import math

from pate_fed.format import delta_text, epsilon_text, share_text
from pate_fed.report.result import RunResult


def plain_answers(result: RunResult) -> list[tuple[str, str]]:
    """Questions that a board asks, each with its answer in a few sentences."""
    study = result.study
    simulated = " It was a simulation: one machine played every part." if study.simulated else ""
    done = study.words.done(study.inputs, asked=result.queries_asked, answered=result.queries_answered)
    answers = [
        ("What was done?", done + simulated),
        ("What left a hospital?", study.words.left(study.inputs)),
        ("What can somebody learn about one patient from what is published?", _learnt(result)),
        ("What is not promised?", _not_promised(result)),
        ("How good is the student?", _good(result)),
        ("How can it be checked?", _checked(result)),
    ]
    return [(question, answer) for question, answer in answers if answer]


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
    if study.terms.privacy.unit == "record":
        several = "several records" if study.words.records_apart else "records at several hospitals"
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
    return [
        ("ε (epsilon)", "how much one person's data can change what is published: the smaller, the less"),
        ("δ (delta)", "the small probability with which that bound may fail"),
        *result.study.words.glossary,
        ("label", "the class that was given to a public input"),
        ("student", "the model that is published; it never saw a private record"),
        ("coordinator", "whoever puts the hospitals' answers together and adds up what they cost"),
        ("95 % interval", "where the true share lies, but for one study in twenty"),
        ("recall", "of all inputs of a class, the share that the student finds"),
        ("calibration", "whether the student is right as often as it is sure"),
    ]
