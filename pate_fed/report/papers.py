"""Papers that go with a student: model card, data protection impact assessment, a page for a board, ethics.

They say what the run itself says, and leave open what only people know: None is for the controller to fill
in. Nothing of private votes is in them. The model card follows Mitchell et al. 2019 (Model Cards for Model
Reporting), and is there for programs too, as a `modelCard` of CycloneDX 1.6 (ECMA-424). The assessment has
the four parts of Article 35(7) of the GDPR.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pate_fed.config.sections import About
from pate_fed.disk import MOST_TABLE, read_file, write_result
from pate_fed.errors import InputError
from pate_fed.format import VERSION, delta_text, epsilon_text, interval_text, share_text
from pate_fed.kinds.terms import Terms
from pate_fed.kinds.words import ALSO
from pate_fed.report.html import plain_answers, render_page
from pate_fed.report.metrics import make_metrics, without_private
from pate_fed.report.result import LabelStudyRecord, RunResult, StudyRecord, reservations
from pate_fed.report.run import Run
from pate_fed.report.text import describe_terms, guarantees, to_a_patient_of

Rows = tuple[tuple[str, str | None], ...]
_STUDENTS = ("student.npz", "student.pt", "predictions.npz")
_NOT_TESTED = "It was not tested as a medical device. This paper is no approval for use on patients."


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A heading, sentences, and names with values; None is to be filled in, `asks` are boxes to tick."""

    title: str
    text: tuple[str, ...] = ()
    rows: Rows = ()
    asks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Paper:
    """A paper by the name of its file."""

    name: str
    title: str
    parts: tuple[Part, ...]

    @property
    def markdown(self) -> str:
        """It as Markdown, in which nothing of a study's own texts is markup."""
        lines = [f"# {_plain(self.title)}"]
        for part in self.parts:
            lines += ["", f"## {_plain(part.title)}"]
            lines += [line for text in part.text for line in ("", _plain(text))]
            if part.rows:
                lines += ["", "| | |", "| --- | --- |"]
                lines += [f"| {_plain(name)} | {_plain(value or _TO_FILL)} |" for name, value in part.rows]
            lines += [""] * bool(part.asks) + [f"- [ ] {_plain(each)}" for each in part.asks]
        return "\n".join(lines) + "\n"

    @property
    def html(self) -> str:
        """It as a page that prints, and needs nothing from outside."""
        return render_page("paper.html.jinja", {"paper": self, "to_fill": _TO_FILL})


_TO_FILL = "(to be filled in by the controller)"


def _plain(text: str) -> str:
    return re.sub(r"([\\`*_\[\]<>|#~])", r"\\\1", text)


def _answers(result: RunResult) -> list[tuple[str, str]]:
    """As the report has them; of a hospital's own papers without what only the coordinator knows."""
    if result.whole:
        return plain_answers(result)
    known = {_DONE: f"The hospitals agreed to {result.study.words.asked}.", _GOOD: _TO_FILL}
    return [(name, known.get(name, answer)) for name, answer in plain_answers(result)]


_DONE, _GOOD = "What was done?", "How good is the student?"
_SHARES = (
    "accuracy",
    "balanced accuracy",
    "sensitivity at 90 % specificity",
    (_MAJORITY := "accuracy of always naming the most frequent class"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A figure of `metrics.json`: its name, of which part of the data, and its 95 % interval."""

    name: str
    value: float
    on: str
    ends: tuple[float, float] | None = None
    count: int | None = None

    @property
    def text(self) -> str:
        """It with its number and interval."""
        of = "" if self.count is None else f", n {self.count:,}"
        if self.name not in _SHARES and not self.name.startswith("recall of "):
            ends = "" if self.ends is None else f" ({self.ends[0]:.3f} to {self.ends[1]:.3f})"
            return f"{self.value:.3f}{ends}{of}, {self.on}"
        ends = "" if self.ends is None else f" ({interval_text(self.ends, self.count)})"
        return f"{share_text(self.value, self.count)}{ends}{of}, {self.on}"


def write_papers(run: Run, folder: Path) -> list[str]:
    """Write all papers of a run into a folder; the names of the files. Without a student an InputError."""
    if run.result.outcome.status != "success":
        raise InputError(
            f"{run.path}: the run ended as {run.result.outcome.status}; papers go with a student"
        )
    student = next((path for name in _STUDENTS if (path := run.path / name).is_file()), None)
    content = None if student is None else hashlib.sha256(read_file(student, most=MOST_TABLE)).hexdigest()
    return write_papers_of(run.result, folder, student=content)


def write_papers_of(result: RunResult, folder: Path, *, student: str | None) -> list[str]:
    """The same of a result; `student` is the SHA-256 of its student's file, in hex."""
    card = json.dumps(model_card_json(result, student), indent=2, ensure_ascii=False)
    files = {"model-card.cdx.json": f"{card}\n"}
    for paper in make_papers(result):
        files[f"{paper.name}.md"], files[f"{paper.name}.html"] = paper.markdown, paper.html
    for name, text in files.items():
        write_result(folder / name, text.encode())
    return sorted(files)


def make_papers(result: RunResult) -> tuple[Paper, ...]:
    """The four papers of a run that has a student."""
    name = result.study.terms.study
    return (
        Paper(name="model-card", title=f"Model card: {name}", parts=tuple(_card(result))),
        Paper(
            name="impact-assessment",
            title=f"Data protection impact assessment, draft: {name}",
            parts=tuple(_assessment(result)),
        ),
        Paper(name="board", title=f"{name}, on one page", parts=tuple(_board(result))),
        Paper(name="ethics", title=f"For the ethics committee: {name}", parts=tuple(_ethics(result))),
    )


def about_of(study: StudyRecord | LabelStudyRecord) -> About:
    """Who asked and what for, as far as the terms say it."""
    return study.terms.about if isinstance(study.terms, Terms) else About()


def figures_of(result: RunResult) -> tuple[Measured, ...]:
    """The student's figures that may be published, those of hospitals' own records last."""
    metrics = without_private(make_metrics(result))
    own = metrics.get("own_records", {})
    groups = metrics["accuracy"].get("subgroups", {})
    whole = (*_on_public(result, metrics["accuracy"]), *_of_no_class(result), *_on_own(own))
    return (*whole, *_of_subgroups(groups, f"public {result.study.inputs}"))


def _of_subgroups(found: Mapping[str, Any], on: str) -> Iterator[Measured]:
    for group, each in found.items():
        part = f"{on} of {group}"
        yield Measured(
            name="accuracy", value=each["accuracy"], on=part, ends=tuple(each["interval"]), count=each["n"]
        )
        if each["auc"] is not None:
            yield Measured(
                name="AUC", value=each["auc"], on=part, ends=tuple(each["auc_interval"]), count=each["n"]
            )


def _of_no_class(result: RunResult) -> Iterator[Measured]:
    if (found := result.outcome.accuracy.no_class) is None:
        return
    on = f"{result.study.words.target}, public {result.study.inputs}"
    for name, value, ends in found.rows:
        yield Measured(name=name, value=value, on=on, ends=ends, count=found.count)


def _on_public(result: RunResult, found: Mapping[str, Any]) -> Iterator[Measured]:
    on, count = f"public {result.study.inputs}", found["student_n"]
    for name, key, ends, of in (
        ("accuracy", "student", "student_interval", count),
        ("balanced accuracy", "balanced_accuracy", "balanced_accuracy_interval", count),
        ("AUC", "auc", "auc_interval", count),
        ("sensitivity at 90 % specificity", "sensitivity_at_90_specificity", "sensitivity_interval", None),
        (_MAJORITY, "majority", None, count),
    ):
        if found.get(key) is not None:
            interval = found.get(ends) if ends else None
            yield Measured(name=name, value=found[key], on=on, ends=interval and tuple(interval), count=of)
    for name, at in (("calibration slope", "slope"), ("calibration intercept", "intercept")):
        if line := found.get("calibration"):
            yield Measured(name=name, value=line[at], on=on, ends=tuple(line[f"{at}_interval"]), count=count)
    for name, each in (found["recall"] or {}).items():
        if each["recall"] is not None:
            low, high = each["interval"]
            recall, tested = each["recall"], each["n"]
            yield Measured(name=f"recall of {name}", value=recall, on=on, ends=(low, high), count=tested)


def _on_own(found: Mapping[str, Any]) -> Iterator[Measured]:
    on = "hospitals' own records, counted with noise"
    named = {"accuracy": "accuracy", "balanced accuracy": "balanced", "AUC": "auc"}
    shares = {name: found.get(key) for name, key in named.items()}
    shares |= {f"recall of {name}": each for name, each in found.get("recall", {}).items()}
    for name, each in shares.items():
        if each is not None:
            yield Measured(name=name, value=each["share"], on=on, ends=(each["low"], each["high"]))
    if found.get("slope") is not None:
        yield Measured(name="calibration slope", value=found["slope"], on=on)


def _privacy(result: RunResult) -> Iterator[tuple[str, str | None]]:
    """Every ε, against whom, and by what."""
    study = result.study
    for row in guarantees(result):
        yield row.against.who, f"{row.bound}. Sees: {row.against.sees}. Kept from it: {row.against.hidden}"
    yield "Protected unit", study.protects
    if reservations(study):
        yield "Reservations", "; ".join(reservations(study))


def _who(result: RunResult) -> Rows:
    about = about_of(result.study)
    return (
        ("Asked for by", about.requester or None),
        ("Purpose", about.purpose or None),
        ("Legal basis", about.legal_basis or None),
        ("Contact", about.contact or None),
        ("Retention", about.retention or None),
        ("Who may use the student", about.licence),
    )


def _read(result: RunResult) -> Rows:
    """What of a hospital's records was read, where the terms say it."""
    terms = result.study.terms
    reads = terms.words.reads if isinstance(terms, Terms) else ()
    return tuple((name.capitalize(), value) for name, value in reads)


def _simulated(result: RunResult) -> tuple[str, ...]:
    if not result.study.simulated:
        return ()
    return ("This run was a simulation on one machine: no hospital took part. The paper is a draft for one.",)


def _card(result: RunResult) -> Iterator[Part]:
    study, answers = result.study, dict(_answers(result))
    terms = dict(describe_terms(result))
    yield Part(
        title="Model details",
        text=_simulated(result),
        rows=(
            ("Kind", terms.get("Student", study.student)),
            ("Made on", result.ended[:10] or None),
            ("Made with", ", ".join(f"{name} {value}" for name, value in sorted(study.versions.items()))),
            *_who(result)[:1],
            *_who(result)[3:4],
            *_who(result)[5:],
        ),
    )
    yield Part(
        title="Intended use",
        text=(_NOT_TESTED,),
        rows=(_who(result)[1], ("Intended users", None), ("Not meant for", None)),
    )
    groups = "Subgroups of patients, such as age or sex, were not measured." if result.whole else _TO_FILL
    if result.outcome.accuracy.groups:
        groups = "Subgroups by columns of few values and by age, of public rows, are among the metrics."
    yield Part(title="Factors", text=(groups,), rows=(("Subgroups to be measured", None),))
    figures = tuple((figure.name, figure.text) for figure in figures_of(result))
    yield Part(title="Metrics", text=(answers[_GOOD],), rows=figures)
    tested = result.outcome.accuracy.how_tested(study.inputs, made_of=study.words.made_of)
    true = study.words.true_ones or "a true label"
    tested = tested or (f"No public input with {true} tested it." if result.whole else _TO_FILL)
    own = result.outcome.accuracy.own_records
    held = () if own is None else (f"Counted on hospitals' own records: {own.text}.",)
    yield Part(title="Evaluation data", text=(tested, *held))
    names = ("Data set", "Public pool", "Hospitals", "Private records", "Mechanism", "Noise from")
    yield Part(
        title="Training data",
        text=(answers[_DONE],),
        rows=(*((name, terms[name]) for name in names if name in terms), *_read(result)),
    )
    yield Part(
        title="Privacy", text=(to_a_patient_of(result), answers[_LEARNT]), rows=tuple(_privacy(result))
    )
    unknown: Rows = () if result.whole else (("What the run itself cautions of", None),)
    yield Part(title="Caveats", text=(answers[_NOT_PROMISED], *result.outcome.cautions), rows=unknown)


_LEARNT = "What can somebody learn about one patient from what is published?"
_NOT_PROMISED = "What is not promised?"


def _assessment(result: RunResult) -> Iterator[Part]:
    study, answers = result.study, dict(_answers(result))
    yield Part(
        title="1. The processing and its purposes",
        text=(*_simulated(result), answers[_DONE], answers["What left a hospital?"]),
        rows=(*_who(result), ("Controller, or joint controllers", None), *_read(result)),
    )
    yield Part(
        title="2. Necessity and proportionality",
        text=(
            "Records stay at each hospital. What leaves it is listed here and above, and nothing else does.",
        ),
        rows=(
            ("Beside the answers leave a hospital", ALSO),
            ("Why the purpose needs these records", None),
            ("Why less would not do", None),
            ("How patients are told, and how they object", None),
        ),
    )
    yield Part(
        title="3. Risks to patients",
        text=(to_a_patient_of(result), answers[_LEARNT], answers[_NOT_PROMISED]),
        rows=(
            ("The student errs on a patient", answers[_GOOD]),
            ("A hospital that takes part lies", "It can spoil what is learnt. It learns nothing by it."),
            ("After a withdrawal", "What was published stays published. The stated ε covers it."),
            ("Likelihood and severity, in the controller's judgement", None),
        ),
    )
    kept = (("Ledger", "Every release, with its cost, is in a chain that any change breaks."),)
    yield Part(
        title="4. Measures",
        rows=(
            *(
                (f"Against {row.against.who.lower()}", f"{row.bound}: {row.against.by}")
                for row in guarantees(result)
            ),
            *kept,
            ("Sealed with the key", result.outcome.sealed_by or "none"),
            ("Noise from", study.noise),
            ("Access to the machines, backups, staff", None),
            ("Advice of the data protection officer", None),
            ("Decision, date and signature", None),
        ),
    )


def _board(result: RunResult) -> Iterator[Part]:
    for place, (question, answer) in enumerate(_answers(result)):
        yield Part(title=question, text=(*(_simulated(result) if not place else ()), answer))
    yield Part(title="Who", rows=_who(result))


def _ethics(result: RunResult) -> Iterator[Part]:
    answers = dict(_answers(result))
    yield Part(
        title="The study",
        text=(*_simulated(result), answers[_DONE], answers["What left a hospital?"]),
        rows=(*_who(result), *_read(result)),
    )
    yield Part(title="What a patient is promised", text=(to_a_patient_of(result), answers[_NOT_PROMISED]))
    yield Part(title="How good it is", text=(answers[_GOOD], _NOT_TESTED))
    yield Part(
        title="To be decided by people",
        asks=(
            "The legal basis covers this purpose and these records.",
            "Patients were told, or the law allows not to tell them.",
            "Who objects can be left out before the study, and knows that nothing is taken back after it.",
            f"ε = {epsilon_text(result.outcome.privacy.student)} is small enough for these records.",
            "A patient's records at several hospitals, and in several studies, were thought of.",
            "Patients whose number it is furthest from are not harmed."
            if result.study.words.target and not result.study.words.several
            else "Classes that the student finds least often do not harm the patients who are of them.",
            "Subgroups (age, sex, origin) are measured before any use.",
            "Somebody is named who answers for the student, and for withdrawing it.",
        ),
    )


def model_card_json(result: RunResult, student: str | None) -> dict[str, Any]:
    """The model card as CycloneDX 1.6, with every figure as it stands in `metrics.json`."""
    study, about = result.study, about_of(result.study)
    epsilon, delta = epsilon_text(result.outcome.privacy.student), delta_text(study.terms.delta)
    read = "; ".join(f"{name}: {value}" for name, value in _read(result))
    facts = {
        "epsilon": epsilon,
        "delta": delta,
        "unit": study.terms.privacy.unit,
        "adjacency": study.terms.privacy.adjacency,
        "protects": study.protects,
        "reservations": "; ".join(reservations(study)),
        "simulated": str(study.simulated).lower(),
        "ledger_head": result.outcome.ledger_head or "",
        "sealed_by": result.outcome.sealed_by or "",
    }
    component: dict[str, Any] = {
        "type": "machine-learning-model",
        "bom-ref": "student",
        "name": study.terms.study,
        "description": about.purpose or "purpose not stated",
        "licenses": [{"license": {"name": about.licence}}],
        "modelCard": {
            "modelParameters": {
                "task": "classification" if study.words.several or not study.words.target else "regression",
                "modelArchitecture": dict(describe_terms(result)).get("Student", study.student),
                "datasets": [
                    {
                        "type": "dataset",
                        "name": study.dataset,
                        "classification": "private",
                        "description": read or study.dataset,
                    }
                ],
            },
            "quantitativeAnalysis": {"performanceMetrics": [_metric(each) for each in figures_of(result)]},
            "considerations": {
                "useCases": [about.purpose or "not stated"],
                "technicalLimitations": [_NOT_TESTED, *result.outcome.cautions],
                "performanceTradeoffs": [f"noise for ε = {epsilon} at δ = {delta}"],
                "ethicalConsiderations": [
                    {"name": to_a_patient_of(result), "mitigationStrategy": row.against.by}
                    for row in guarantees(result)[:1]
                ],
            },
            "properties": [
                {"name": f"pate_fed:{name}", "value": value} for name, value in facts.items() if value
            ],
        },
    }
    if about.requester:
        component["publisher"] = about.requester
    if student is not None:
        component["hashes"] = [{"alg": "SHA-256", "content": student}]
    tool = {"type": "application", "name": "pate_fed", "version": VERSION}
    made = {"timestamp": result.ended} if result.ended else {}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {**made, "tools": {"components": [tool]}},
        "components": [component],
    }


def _metric(figure: Measured) -> dict[str, Any]:
    found: dict[str, Any] = {"type": figure.name, "value": repr(figure.value), "slice": figure.on}
    if figure.ends is not None:
        low, high = map(repr, figure.ends)
        found["confidenceInterval"] = {"lowerBound": low, "upperBound": high}
    return found
