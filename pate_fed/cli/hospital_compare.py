"""`pate-fed hospital compare`: a hospital's own model beside the study's student, measured at home.

Its own model predicts each record without having seen it or another of its patient (cross-fitting). The
figures stay in the hospital's state directory: nothing is sent.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pate_fed.cli.hospital_log import agreed_terms, settings_of, state_dir_of
from pate_fed.cli.hospital_predict import decimal_of, settings_for, student_of
from pate_fed.cli.parser import print_lines
from pate_fed.cli.predict import predictor_of, withdrawn
from pate_fed.config.registry import find_part
from pate_fed.data import Rows, read_records, split_by_patient
from pate_fed.data.files import file_mark
from pate_fed.data.table import read_table
from pate_fed.disk import check_there, write_private
from pate_fed.errors import InputError
from pate_fed.format import counted, delta_text, epsilon_text, printable
from pate_fed.kinds.terms import Terms
from pate_fed.learning import TeacherSettings
from pate_fed.report.accuracy import Accuracy, Difference
from pate_fed.report.plots import Canvas, Scale
from pate_fed.report.ranking import SPECIFICITY, Subgroup, subgroups

if TYPE_CHECKING:
    from clients.site import Site
    from pate_fed.identity.bundle import StudentFacts

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Figures = Mapping[str, tuple[float, tuple[float, float] | None]]
"""Values by name, each with its 95 % interval."""

SAID, PICTURE = "compare.txt", "compare.svg"  # in a state directory
_FOLDS = 5
_MOST_TAUGHT = 20_000  # records that its own model learns from
_AT_ONCE = 5000  # inputs
_HELD_OUT, _OWN, _OTHER = "held out of the study", "in the study", "not in the study"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class _Tested:
    """Records that test both models, and what its own model says of them, float64 (n, classes)."""

    which: str
    inputs: NDArray[Any]
    labels: Ints
    patients: Ints
    alone: Floats
    left_out: int = 0


def compare(arguments: argparse.Namespace) -> int:
    """Measure both models, say which one is better, and keep the figures."""
    from clients.local import local_site

    for name in ("prevalence", "specificity"):
        if (share := getattr(arguments, name)) is not None and not 0 < share < 1:
            raise InputError(f"--{name} {share:g}: a share above 0 and below 1 is meant")
    state_dir = state_dir_of(arguments.state_dir)
    bundle, where = student_of(state_dir, arguments.dir)
    print_lines(withdrawn(bundle, state_dir))
    terms, site = _terms(state_dir), local_site(settings_of(state_dir))
    tested = _tested(site, terms, arguments)
    model = predictor_of(bundle, where=where, device=arguments.device)
    said = [row for row, _ in model.answers(tested.inputs, Path(where), at_once=_AT_ONCE)]
    both = {"alone": tested.alone, "together": np.array(said)}
    found = {
        name: _figures(each, tested.labels, arguments.prevalence, terms.classes, arguments.specificity)
        for name, each in both.items()
    }
    groups = {name: _groups(each, tested, terms) for name, each in both.items()}
    ranked = all("AUC" in each for each in found.values())
    difference = Difference.of(both["together"], both["alone"], tested.labels, ranked=ranked)
    lines = [
        *_verdict(difference, tested),
        *_table(found),
        *_by_subgroup(groups),
        *_flatters(bundle.facts, terms.privacy.unit, tested, found),
    ]
    print_lines(map(printable, lines))
    kept = {
        "study": bundle.facts.study,
        "terms": bundle.facts.terms_digest,
        "time": round(time.time()),
        "tested_on": tested.which,
        "records": len(tested.labels),
        "patients": len(np.unique(tested.patients)),
        "prevalence": arguments.prevalence,
        "specificity": arguments.specificity,
        "together_minus_alone": {difference.what: [difference.by, difference.interval]},
        **found,
        "subgroups": {name: [asdict(each) for each in own] for name, own in groups.items()},
    }
    write_private(state_dir / "compare.json", json.dumps(kept, indent=1).encode())
    write_private(state_dir / SAID, "\n".join(lines).encode())
    write_private(state_dir / PICTURE, _picture(found, lines[0]).encode())
    print(f"kept for this user alone: {state_dir / 'compare.json'}, and a picture, {PICTURE}")
    return 0


def _terms(state_dir: Path) -> Terms:
    if (terms := agreed_terms(state_dir)) is None:
        raise InputError(f"{state_dir}: no study was agreed to there")
    if not terms.asks.reads_inputs:
        raise InputError(f"{state_dir}: a study of {terms.words.kind} reads no records to compare models on")
    if terms.words.target:
        raise InputError(
            f"{state_dir}: the study tells no class ({terms.words.target}), and models of classes alone are "
            "compared; `pate-fed hospital predict` says how near its student comes on records here"
        )
    return terms


def _tested(site: Site, terms: Terms, arguments: argparse.Namespace) -> _Tested:
    """The records, and what a model of this hospital's own says of each."""
    data, own = site.dataset, site.own_records()
    inputs, labels = data.private_images[own], data.private_labels[own]
    patients = np.arange(len(own)) if data.patients is None else data.patients[own]
    if (few := len(np.unique(patients))) < _FOLDS:
        raise InputError(
            f"records of {counted(few, 'patient')}: {_FOLDS} at least are meant, to leave some out"
        )
    train, everyone, which, share = _trainer(site, terms), np.arange(len(own)), _OTHER, held_out_share(terms)
    if arguments.records is not None:
        rows, keep = _other_records(site, terms, arguments)
        alone = train(inputs, labels)(rows.inputs)
        inputs, labels, patients = rows.inputs, rows.labels, rows.patients
    else:
        alone, which = np.empty((len(own), terms.num_classes)), _HELD_OUT if share else _OWN
        for part in split_by_patient(everyone, patients, folds=_FOLDS, seed=0):
            others = np.setdiff1d(everyone, part)
            alone[part] = train(inputs[others], labels[others])(inputs[part])
        keep = site.held_out(share) if share else np.ones(len(own), dtype=np.bool_)
    if not keep.any():
        raise InputError(
            f"no record {which} is left to measure on; give RECORDS of patients that took no part"
        )
    return _Tested(
        which=which,
        inputs=inputs[keep],
        labels=labels[keep],
        patients=patients[keep],
        alone=alone[keep],
        left_out=int((~keep).sum()) if which == _OTHER else 0,
    )


def held_out_share(terms: Terms) -> float | None:
    """The share of each hospital's records that the study's sums leave out; None: none are."""
    return getattr(terms.asks, "held_out", None)


def _other_records(site: Site, terms: Terms, arguments: argparse.Namespace) -> tuple[Rows, NDArray[np.bool_]]:
    """Records in another file, and which are of no patient, or equal to no record, in the study's own."""
    from clients.local import kind_of

    path, decimal = Path(arguments.records), decimal_of(arguments)
    kind = replace(kind_of(terms), decimal=decimal)
    check_there(path, option="RECORDS")
    if kind.schema is None or path.suffix == ".npz":
        rows = read_records(path, kind)
    else:
        own, told = settings_for(path, kind.schema, state_dir_of(arguments.state_dir))
        print_lines([printable(told)] if told else [])
        rows = read_table(path, kind.schema, labelled=True, decimal=decimal, own=own)
    known = site.dataset.patients
    if known is None or not rows.named:
        own_records = {each.tobytes() for each in site.dataset.private_images[site.own_records()]}
        return rows, np.array([each.tobytes() not in own_records for each in rows.inputs])
    return rows, ~np.isin(rows.patients, known ^ file_mark(0))


def _trainer(site: Site, terms: Terms) -> Callable[[NDArray[Any], Ints], Callable[[NDArray[Any]], Floats]]:
    """What trains a model of this hospital's own, from inputs and labels to probabilities of inputs."""
    classes = terms.num_classes

    def some(inputs: NDArray[Any], labels: Ints) -> tuple[NDArray[Any], Ints]:
        chosen = np.random.default_rng(0).permutation(len(labels))[:_MOST_TAUGHT]
        return inputs[chosen], labels[chosen]

    if terms.table is not None:
        return lambda inputs, labels: table_model(*some(inputs, labels), classes)
    from pate_fed.learning.networks.encoder import encoder_for

    settings = TeacherSettings()
    teach = find_part(settings.name, "teacher")
    encoder = encoder_for(settings, site.dataset.public_images)

    def train(inputs: NDArray[Any], labels: Ints) -> Callable[[NDArray[Any]], Floats]:
        how: dict[str, Any] = {"num_classes": classes, "settings": settings, "seed": 0, "encoder": encoder}
        teacher = teach(*some(inputs, labels), **how)
        return lambda asked: np.asarray(teacher.scores(asked), dtype=np.float64)

    return train


def table_model(rows: Floats, labels: Ints, classes: int) -> Callable[[NDArray[Any]], Floats]:
    """The mean of gradient boosting and logistic regression: strong on large tables and on small ones."""
    from sklearn.linear_model import LogisticRegression

    if len(np.unique(labels)) == 1:
        return lambda asked: np.tile(np.eye(classes)[labels[0]], (len(asked), 1))
    settings = TeacherSettings(name="gradient-boosting")
    boosted = find_part(settings.name, "teacher")(
        rows, labels, num_classes=classes, settings=settings, seed=0
    )
    filled = np.where(np.isnan(rows), boosted.fill, rows)
    middle, scale = filled.mean(axis=0), filled.std(axis=0)
    scale[scale == 0] = 1.0
    line: Any = LogisticRegression(max_iter=1000).fit((filled - middle) / scale, labels)

    def predict(asked: NDArray[Any]) -> Floats:
        scores, shares = boosted.scores(asked), np.zeros((len(asked), classes))
        boost = np.exp(scores - scores.max(axis=1, keepdims=True))
        shares[:, line.classes_] = line.predict_proba(
            (np.where(np.isnan(asked), boosted.fill, asked) - middle) / scale
        )
        return np.asarray((boost / boost.sum(axis=1, keepdims=True) + shares) / 2)

    return predict


def _figures(
    shares: Floats,
    truth: Ints,
    prevalence: float | None,
    classes: tuple[str, ...] = (),
    specificity: float = SPECIFICITY,
) -> Figures:
    """What a model's probabilities are worth; scores only rank, classes alone tell no more than they say."""
    found = Accuracy.of_probabilities(shares, truth)
    assert found.student is not None and found.balanced_accuracy is not None
    told: dict[str, tuple[float, tuple[float, float] | None]] = {}
    soft = bool(np.any((shares != 0) & (shares != 1)))
    probable = soft and shares.min() >= 0 and np.allclose(shares.sum(axis=1), 1, atol=1e-3)
    ranking = found.ranking if soft else None
    if ranking is not None:
        told["AUC"] = ranking.auc, ranking.interval
    told["balanced accuracy"] = found.balanced_accuracy, found.balanced_interval
    told["accuracy"] = found.student, found.student_interval
    for each in found.recall if shares.shape[1] > 2 else ():
        name = classes[each.number] if each.number < len(classes) else str(each.number)
        told[f"accuracy on {name}"] = each.share, each.interval
    if ranking is not None:
        told[f"sensitivity at {100 * specificity:.3g} % specificity"] = ranking.at(specificity)
        if prevalence is not None:
            values = ranking.predictive(prevalence, specificity)
            told["PPV at that prevalence"], told["NPV at that prevalence"] = values
    if probable and found.line is not None:
        told["calibration slope"] = found.line.slope, found.line.slope_interval
        told["calibration intercept"] = found.line.intercept, found.line.intercept_interval
    if found.calibration is not None and probable:
        told["calibration error"] = found.calibration.error, None
    return told


def _groups(shares: Floats, tested: _Tested, terms: Terms) -> tuple[Subgroup, ...]:
    return () if terms.table is None else subgroups(shares, tested.labels, tested.inputs, terms.table)


def _by_subgroup(groups: Mapping[str, tuple[Subgroup, ...]]) -> Iterator[str]:
    for place, (alone, together) in enumerate(zip(*groups.values(), strict=True)):
        if not place:
            yield f"{'accuracy, and AUC, by subgroup':<33}{'ALONE':<26}TOGETHER"
        one, both = (
            f"{each.share:.3f}{'' if each.auc is None else f', {each.auc:.3f}'}" for each in (alone, together)
        )
        yield f"{f'{alone.name[:22]}, n {alone.count}':<33}{one:<26}{both}"


def _verdict(difference: Difference, tested: _Tested) -> Iterator[str]:
    low, high = difference.interval
    told = "NO DIFFERENCE THAT SO MANY RECORDS SHOW"
    told += ", ALONE IS AHEAD" if difference.by < 0 else ""
    told = "ALONE IS BETTER HERE" if high < 0 else "TOGETHER IS BETTER HERE" if low > 0 else told
    yield f"{told}: {difference.what} {difference.by:+.3f} by the student (95 % {low:+.3f} to {high:+.3f})"
    records, patients = len(tested.labels), len(np.unique(tested.patients))
    of = f" of {counted(patients, 'patient')}: intervals count records, and are too narrow"
    yield f"on {counted(records, 'record')} {tested.which}{of * (patients < records)}"
    if tested.left_out:
        yield f"left out: {counted(tested.left_out, 'record')} of patients that are in the study's records"


def _table(found: Mapping[str, Figures]) -> Iterator[str]:
    alone, together = found["alone"], found["together"]
    yield f"{'':<33}{'ALONE':<26}TOGETHER"
    for name in dict.fromkeys((*alone, *together)):
        yield f"{name[:32]:<33}{_text(alone.get(name)):<26}{_text(together.get(name))}"


def _text(figure: tuple[float, tuple[float, float] | None] | None) -> str:
    if figure is None:
        return "-"
    value, interval = figure
    return f"{value:.3f}" + (f" ({interval[0]:.3f} to {interval[1]:.3f})" if interval else "")


def _flatters(facts: StudentFacts, unit: str, tested: _Tested, found: Mapping[str, Figures]) -> Iterator[str]:
    """By how much the student's figures may flatter, where it has learnt from what tests it.

    As one unit's replacement changes no probability by more than a factor of e^ε, and δ, it is as often wrong
    of a new record, on average, as e^ε times of one that taught it, and δ.
    """
    if tested.which != _OWN:
        return
    yield "the student has learnt from these very records, which its own model here never did: it may flatter"
    right, interval = found["together"]["accuracy"]
    wrong, epsilon = 1 - (interval or (right, right))[0], facts.epsilon
    if epsilon is None or math.exp(min(epsilon, 99.0)) * wrong + facts.delta >= 1:
        yield "no ε bounds by how much; RECORDS that took no part do not flatter"
        return
    least = 1 - math.exp(epsilon) * wrong - facts.delta
    yield (
        f"its noise bounds by how much: at ε={epsilon_text(epsilon)}, δ={delta_text(facts.delta)} for "
        f"one {unit} it is right in at least {least:.3f} of new records, on average; RECORDS that took no "
        "part do not flatter"
    )


_STYLE = (
    "<style>text{font:13px sans-serif}.grid{stroke:#ddd}.c1{stroke:#b5484b;fill:#b5484b}"
    ".c2{stroke:#20639b;fill:#20639b}line.c1,line.c2{stroke-width:2}</style>"
)


def _picture(found: Mapping[str, Figures], title: str) -> str:
    """Both models' shares with their intervals, as an SVG."""
    names = [name for name in found["alone"] if "slope" not in name and "intercept" not in name]
    canvas = Canvas(70.0 + 40 * len(names), 860.0)
    x = Scale(0.0, 1.0, 230.0, canvas.width - 20)
    canvas.text(10, 20, title)
    for tick in (0.0, 0.25, 0.5, 0.75, 1.0):
        canvas.line(x(tick), 34, x(tick), canvas.height - 30, "grid")
        canvas.text(x(tick), canvas.height - 12, f"{tick:g}", anchor="middle")
    for place, name in enumerate(names):
        canvas.text(10, 58.0 + 40 * place, name)
        for kind, (who, figures) in zip(("c1", "c2"), found.items(), strict=True):
            y = (47.0 if kind == "c1" else 61.0) + 40 * place
            if name in figures:
                value, ends = figures[name]
                low, high = (x(min(1.0, max(0.0, end))) for end in ends or (value, value))
                canvas.line(low, y, high, y, kind)
                canvas.dot(x(value), y, kind, tip=f"{who}: {_text(figures[name])}")
                if not place:
                    canvas.text(low - 8, y + 4, who, kind, anchor="end")
    head, rest = canvas.svg(title).split(">", 1)
    return f'{head} xmlns="http://www.w3.org/2000/svg">{_STYLE}{rest}'
