"""A study's terms as the report names them."""

from __future__ import annotations

from pate_fed.format import counted
from pate_fed.kinds.sums import SumTerms
from pate_fed.kinds.terms import Terms
from pate_fed.kinds.votes import VoteTerms
from pate_fed.report.result import LabelStudyRecord, RunResult, StudyRecord
from pate_fed.report.sums_text import method_of_sums, ways_of_sums

IN_ONE_PLACE = "labels"  # what a coordinator of private labels sees where no hospital keeps them


def describe_terms(result: RunResult) -> list[tuple[str, str]]:
    """The study's terms as names and values, in reading order; what does not apply is left out."""
    study = result.study
    summed = (
        study.terms if isinstance(study, StudyRecord) and isinstance(study.terms.asks, SumTerms) else None
    )
    voted = study if isinstance(study, StudyRecord) and summed is None else None
    terms, budget = study.terms, study.terms.privacy.epsilon
    stop = f"at {counted(terms.labels, 'label')} or {counted(terms.max_queries, 'query')}"
    shown = [
        ("Data set", f"{study.dataset}, {terms.num_classes} classes"),
        ("Public pool", f"{terms.pool_size:,} {study.inputs}, SHA-256 {terms.pool_digest[:12]}…"),
        *_method(study),
        ("Noise from", study.noise),
        ("Votes reach the coordinator", _ways(voted) if voted else ""),
        ("Sums reach the coordinator", "" if summed is None else ways_of_sums(summed)),
        ("Protected", study.protects),
        ("Budget", "none was set; ε is reported" if budget is None else f"ε = {budget:,.6g}"),
        ("Stop", stop if voted else ""),
        ("Questions", _questions(voted) if voted else ""),
        ("Student", _student(result)),
        ("Ran on", engine_text(study.backend)),
        ("Seed", "none" if terms.seed is None else f"{terms.seed} (repeatable, not private)"),
    ]
    return [(name, value) for name, value in shown if value]


def _teachers_each(terms: Terms) -> str:
    votes = VoteTerms.of(terms)
    if votes.records_per_teacher is None:
        return f"{votes.teachers_per_client:,}"
    return f"1 to {votes.teachers_per_client:,}, one for {counted(votes.records_per_teacher, 'record')}"


def _method(study: StudyRecord | LabelStudyRecord) -> list[tuple[str, str]]:
    if isinstance(study, LabelStudyRecord):
        return _of_method(study)
    return _of_votes(study) if not isinstance(study.terms.asks, SumTerms) else method_of_sums(study.terms)


def _of_votes(study: StudyRecord) -> list[tuple[str, str]]:
    terms = study.terms
    parties = [
        ("Hospitals", f"{terms.num_clients:,}, at least {terms.least_clients:,} in every batch"),
        ("Teachers a hospital", f"{_teachers_each(terms)} ({VoteTerms.of(terms).teacher.name})"),
        ("Private records", study.partition or "every hospital's own"),
    ]
    if (claim := VoteTerms.of(terms).claim) is not None:
        own = ", ".join(f"{name} = {value}" for name, value in claim.parameters)
        return [*parties, ("Mechanism", claim.part.text), ("Its parameters", own)]
    _, sigma1, sigma2 = VoteTerms.of(terms).aggregation.fixed()
    checked = study.threshold is not None and not terms.adds_noise
    return [
        *parties,
        ("Mechanism", VoteTerms.of(terms).aggregation.aggregator),
        ("Threshold T", _in_votes(study.threshold, terms)),
        ("Threshold noise σ₁", _in_votes(sigma1 if checked else None, terms)),
        ("Vote noise σ₂", _in_votes(sigma2, terms)),
    ]


def _of_method(study: LabelStudyRecord) -> list[tuple[str, str]]:
    hospitals = f"{study.num_clients:,}, at least {study.least_clients:,} must answer"
    return [
        ("Hospitals", "" if study.coordinator == IN_ONE_PLACE else hospitals),
        ("Method", study.mechanism),
    ]


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
    """Its name, and what it takes to be wrong of its labels, where it estimates that."""
    values = result.epochs[-1].values if result.epochs else {}
    shares = (("β", values.get("noise_rate")), ("τ", values.get("removal")))
    found = [f"{name} = {share:.2f}" for name, share in shares if share is not None]
    return ", ".join([result.study.student, *found]) if result.study.student else ""


def _questions(study: StudyRecord) -> str:
    asked = study.queries
    if (asked.rounds or 1) == 1:
        return ""
    own = study.dataset in ("table", "images") or ":" in study.dataset
    order = f"{asked.strategy} first"
    if asked.strategy == "random":
        order = "at random" if own else "in the pool's order"
    return f"in {asked.rounds} rounds, {order}; a student of the labels so far shapes all but the first"


def _ways(study: StudyRecord) -> str:
    terms = study.terms
    if terms.sigma_party is not None:
        return (
            f"masked, with noise of σ = {terms.sigma_party:.4g} votes of every hospital; counted on are the "
            f"{terms.least_clients - terms.colluders:,} that are surely there and tell nobody"
        )
    return "masked: only their sum can be read" if terms.secure_sum else "as they are"


def _in_votes(value: float | None, terms: Terms) -> str:
    return "" if value is None else f"{value:,.6g} votes ({value / terms.num_teachers:.3g} a teacher)"
