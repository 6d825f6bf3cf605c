"""What lies beside a ledger: labels that nobody charged for and figures that guarantee more are noticed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ledgers import TERMS
from numpy.typing import NDArray

from pate_fed.errors import InputError, IntegrityError
from pate_fed.kinds.label_dp.randres import RandRes
from pate_fed.privacy import (
    ConfidentGNMax,
    Ledger,
    LedgerTerms,
    PrivacyEvent,
    SanitiseSettings,
    SystemNoise,
    sanitised_epsilon,
)
from pate_fed.privacy.ledger.report import verify_run
from pate_fed.privacy.ledger.run_files import NOT_HELD, STATUSES
from pate_fed.privacy.mechanisms.data_dependent import public_part
from pate_fed.privacy.mechanisms.events import IN_ONE_PLACE, PLAIN, CoordinatorView, hospital_noise
from pate_fed.privacy.protection import LABEL
from pate_fed.report import result

MECHANISM = ConfidentGNMax(num_teachers=20, num_classes=3, threshold=10, sigma1=6, sigma2=4)


Metrics = dict[str, Any]


def _write(
    folder: Path,
    *,
    first: int = 0,
    sanitise: SanitiseSettings | None = None,
    coordinator: CoordinatorView = PLAIN,
) -> Path:
    """A run directory of a study that came to its end."""
    folder.mkdir()
    noise = SystemNoise()
    terms = replace(
        TERMS,
        mechanisms=(MECHANISM,),
        noise=noise.kind,
        private=noise.private,
        sanitise=sanitise,
        coordinator=coordinator,
        most_asked=20,
        most_answered=12,
    )
    with Ledger.create(folder / "ledger.sqlite", terms) as ledger:
        for batch in range(2):
            release = MECHANISM.release(np.tile([19, 1, 0], (6, 1)), noise)
            ledger.charge(
                replace(release.event, coordinator=coordinator),
                batch_digest=f"{batch}" * 64,
                index=np.arange(6) + 6 * batch + first,
                answered=release.answered,
                label=release.label,
            )
        released, guaranteed = ledger.released(), ledger.guaranteed()
    np.savez(folder / "labels.npz", **dict(zip(("index", "answered", "label"), released, strict=True)))
    metrics = {
        "status": "success",
        "num_clients": 4,
        "num_teachers": 20,
        "num_classes": 3,
        "seed": None,
        "queries_asked": 12,
        "queries_answered": int(released[1].sum()),
        "privacy": {
            "delta": 1e-5,
            "unit": "record",
            "adjacency": "replace-one",
            "student": {"data_independent": guaranteed},
            "coordinator": {"epsilon": None},
        },
    }
    (folder / "metrics.json").write_text(json.dumps(metrics), encoding="utf-8")
    return folder


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return _write(tmp_path / "run")


def _labels(run_dir: Path) -> dict[str, Any]:
    with np.load(run_dir / "labels.npz") as held:
        return dict(held)


def test_what_belongs_together_passes_and_says_what_was_looked_at(run_dir: Path) -> None:
    report = verify_run(run_dir)
    assert report.beside == (
        "labels.npz: 12 of 12 queries, each as on the ledger",
        "metrics.json: no ε below the ledger's, queries as on it, and of the same terms",
        "not checked: accuracies, the student, report.html",
    )
    assert set(report.beside) <= set(report.lines())
    assert report.to_dict()["beside"] == list(report.beside)
    for name in ("labels.npz", "metrics.json"):
        (run_dir / name).unlink()
    assert verify_run(run_dir).beside == ("labels.npz: not there", "metrics.json: not there", NOT_HELD)
    (run_dir / "ledger.sqlite").unlink()
    with pytest.raises(InputError, match="holds no ledger"):
        verify_run(run_dir)


def test_a_ledger_of_another_run_is_noticed(run_dir: Path, tmp_path: Path) -> None:
    other = _write(tmp_path / "other", first=100)
    shutil.copy(other / "ledger.sqlite", run_dir / "ledger.sqlite")
    with pytest.raises(IntegrityError, match=r"labels\.npz: index: not what this ledger released"):
        verify_run(run_dir)


@pytest.mark.parametrize(
    "change",
    [
        lambda held: {**held, "label": 1 - held["label"]},
        lambda held: {**held, "answered": ~held["answered"]},
        lambda held: {name: np.append(column, column[:1]) for name, column in held.items()},
        lambda held: {name: column[::-1] for name, column in held.items()},
    ],
    ids=["another label", "another bit", "one more", "another order"],
)
def test_labels_that_are_not_on_the_ledger_are_noticed(run_dir: Path, change: Callable[..., Any]) -> None:
    np.savez(run_dir / "labels.npz", **change(_labels(run_dir)))
    with pytest.raises(IntegrityError, match="not what this ledger released"):
        verify_run(run_dir)


def test_labels_of_a_process_that_was_cut_off_are_a_part(run_dir: Path) -> None:
    np.savez(run_dir / "labels.npz", **{name: column[:6] for name, column in _labels(run_dir).items()})
    assert verify_run(run_dir).beside[0] == "labels.npz: 6 of 12 queries, each as on the ledger"
    whole = (run_dir / "labels.npz").read_bytes()
    place = whole.rindex(b"PK\x01\x02")
    for byte, value in ((8, 1), (10, 99)):  # flags: encrypted; a compression that there is none of
        changed = whole[: place + byte] + bytes([value]) + whole[place + byte + 1 :]
        (run_dir / "labels.npz").write_bytes(changed)
        with pytest.raises(IntegrityError, match="damaged"):
            verify_run(run_dir)
    (run_dir / "labels.npz").write_bytes(b"PK")
    with pytest.raises(IntegrityError, match="damaged"):
        verify_run(run_dir)
    records = np.zeros(6, dtype=[("query", np.int64)])
    np.savez(run_dir / "labels.npz", index=records, answered=np.ones(6, np.bool_), label=np.zeros(6))
    with pytest.raises(IntegrityError, match="damaged"):
        verify_run(run_dir)


def _write_private_labels(folder: Path, mechanism: Any) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The ledger of 30 private labels, the true ones, and what was released of each record, -1 if nothing."""
    truth, noise, responds = np.arange(30) % 4, SystemNoise(), isinstance(mechanism, RandRes)
    on_ledger, delta = (mechanism.on_ledger, 0.0) if responds else (mechanism, 1e-5)
    if responds:
        label = mechanism.release(truth, noise).label
    else:
        label = mechanism.release(20 * np.eye(4, dtype=np.int64)[truth], noise, protection=LABEL).label
    terms = LedgerTerms(
        study_digest="0" * 64,
        delta=delta,
        mechanisms=(on_ledger,),
        protection=LABEL,
        noise=noise.kind,
        private=noise.private,
        coordinator=IN_ONE_PLACE,
        most_asked=30,
        most_answered=30,
    )
    answered = label >= 0
    event = PrivacyEvent(
        mechanism=on_ledger,
        asked=30,
        answered=int(answered.sum()),
        protection=LABEL,
        noise=noise.kind,
        private=noise.private,
        coordinator=IN_ONE_PLACE,
    )
    folder.mkdir()
    with Ledger.create(folder / "ledger.sqlite", terms) as ledger:
        ledger.charge(event, batch_digest="1" * 64, index=np.arange(30), answered=answered, label=label)
    return truth, label


def test_responses_are_in_the_column_that_people_read(tmp_path: Path) -> None:
    truth, released = _write_private_labels(tmp_path / "run", RandRes(num_classes=4, epsilon=1.0))
    path, columns = tmp_path / "run" / "labels.npz", {"index": np.arange(30), "answered": np.full(30, True)}
    np.savez(path, **columns, label=released)
    assert verify_run(path.parent).beside[0] == "labels.npz: 30 records, each label as on the ledger"
    assert not np.array_equal(truth, released)
    for more in ({"label": truth}, {"label": truth, "released": released}, {"label": released[::-1]}):
        np.savez(path, **columns, **more)
        with pytest.raises(IntegrityError, match="ledger released"):
            verify_run(path.parent)
    np.savez(path, index=truth, answered=columns["answered"], label=released)
    with pytest.raises(IntegrityError, match="index: not what this ledger released"):
        verify_run(path.parent)


def test_of_pate_fm_the_released_labels_are_held_against_the_ledger_and_not_the_students(
    tmp_path: Path,
) -> None:
    mechanism = ConfidentGNMax(num_teachers=20, num_classes=4, threshold=20, sigma1=6, sigma2=4)
    truth, released = _write_private_labels(tmp_path / "run", mechanism)
    path, columns = tmp_path / "run" / "labels.npz", {"index": np.arange(30), "answered": released >= 0}
    np.savez(path, **columns, label=truth, released=released)
    assert (
        verify_run(path.parent).beside[0]
        == "labels.npz: 30 records, released labels as on the ledger; the student's are on none"
    )
    for more in ({"label": truth, "released": truth}, {"label": truth}):
        np.savez(path, **columns, **more)
        with pytest.raises(IntegrityError, match="not what this ledger released"):
            verify_run(path.parent)


def test_a_study_with_votes_has_no_column_of_released_labels(run_dir: Path) -> None:
    held = _labels(run_dir)
    np.savez(run_dir / "labels.npz", **held, released=held["label"])
    with pytest.raises(IntegrityError, match="released: no such column"):
        verify_run(run_dir)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda m: m["privacy"]["student"].update(data_independent=0.5), "ε against the public is 0.5"),
        (lambda m: m["privacy"]["coordinator"].update(epsilon=9.0), "ε against the coordinator is 9.0"),
        (lambda m: m["privacy"].update(delta=1e-6), "δ: 1e-06, by the ledger 1e-05"),
        (lambda m: m["privacy"].update(unit="hospital"), "unit and adjacency"),
        (lambda m: m["privacy"].update(hospitals_per_patient=2), "hospitals_per_patient"),
        (lambda m: m.update(num_teachers=200), "teachers: 200, by the ledger 20"),
        (lambda m: m.update(seed=4), "whether the noise protects: False"),
        (lambda m: m.update(queries_answered=13), r"queries_answered: 13, by the ledger \d+"),
        (lambda m: m.update(queries_answered=m["queries_answered"] - 1), r"queries_answered: \d+, by the"),
        (lambda m: m.update(queries_asked=11), "queries_asked: 11, by the ledger 12"),
        (
            lambda m: m.update(status="failed", queries_asked=13),
            "queries_asked: 13, by the ledger at most 12",
        ),
        (lambda m: m.update(status="failed", queries_answered=-1), "queries_answered: -1, by the ledger at"),
        (lambda m: m.update(num_clients=40), "num_clients: 40, which cannot share the 20 teachers"),
        (lambda m: m.update(num_clients=0), "num_clients: 0, by the ledger at least 1"),
        (lambda m: m.pop("privacy"), r"not the metrics of a run \(privacy: is missing"),
        (lambda m: m["privacy"].pop("student"), r"\(privacy.student: is missing"),
        (lambda m: m["privacy"].update(student=[]), r"\(privacy.student is \[\]: a table"),
        (lambda m: m["privacy"]["student"].update(data_independent="low"), "data_independent is 'low'"),
        (lambda m: m["privacy"]["student"].update(data_independent=float("nan")), "data_independent is nan"),
        (lambda m: m.update(queries_answered="12"), "queries_answered is '12': a whole number"),
        (
            lambda m: m["privacy"]["student"].update(sanitised=0.01),
            "sanitised is 0.01, and by the ledger none",
        ),
        (lambda m: m["privacy"].update(epsilon=0.01), "of private labels alone"),
        (lambda m: m.update(hospitals={"coordinator": {"epsilon": 0.01}}), "of private labels alone"),
        (lambda m: m.update(status="Success"), "status is 'Success': one of success, failed, aborted is"),
        (lambda m: m.update(status="dry run"), "status is 'dry run'"),
    ],
)
def test_figures_below_the_guarantee_are_noticed(
    run_dir: Path, change: Callable[[Metrics], object], says: str
) -> None:
    path = run_dir / "metrics.json"
    metrics = json.loads(path.read_text(encoding="utf-8"))
    change(metrics)
    path.write_text(json.dumps(metrics), encoding="utf-8")
    with pytest.raises(IntegrityError, match=says):
        verify_run(run_dir)


def test_a_figure_that_is_there_twice_is_noticed(run_dir: Path) -> None:
    path = run_dir / "metrics.json"
    text = path.read_text(encoding="utf-8")
    twice = text.replace('"student": {', '"student": {"data_independent": 0.01}, "student": {')
    path.write_text(twice, encoding="utf-8")
    with pytest.raises(IntegrityError, match="the key 'student' is there twice"):
        verify_run(run_dir)


def test_a_sanitised_figure_may_be_below_the_guarantee_but_not_below_what_no_vote_moves(
    tmp_path: Path,
) -> None:
    settings = SanitiseSettings.at_order(4)
    path = _write(tmp_path / "run", sanitise=settings) / "metrics.json"
    metrics = json.loads(path.read_text(encoding="utf-8"))
    least = public_part(MECHANISM, 12, settings=settings, delta=1e-5)
    assert least < metrics["privacy"]["student"]["data_independent"]
    totals, answered = np.tile([19, 1, 0], (12, 1)), np.full(12, True)
    options = {"settings": settings, "delta": 1e-5, "noise": SystemNoise()}
    drawn = sanitised_epsilon(MECHANISM, totals, answered, **options).epsilon
    for figure in (least, drawn):
        metrics["privacy"]["student"]["sanitised"] = figure
        path.write_text(json.dumps(metrics), encoding="utf-8")
        assert verify_run(path.parent).beside[1] == (
            "metrics.json: no ε below the ledger's, queries as on it, and of the same terms; the sanitised "
            "one is a reading, no bound"
        )
    metrics["privacy"]["student"]["sanitised"] = 0.999 * least
    path.write_text(json.dumps(metrics), encoding="utf-8")
    with pytest.raises(IntegrityError, match=r"sanitised is .*, by the ledger at least"):
        verify_run(path.parent)


@pytest.mark.parametrize("status", result.STATUSES)
def test_every_end_that_a_run_can_have_is_known(run_dir: Path, status: str) -> None:
    assert result.STATUSES == STATUSES
    path = run_dir / "metrics.json"
    metrics = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(metrics | {"status": status}), encoding="utf-8")
    assert verify_run(run_dir).beside[1].startswith("metrics.json: ")


@pytest.mark.parametrize("text", ["", "{", "[]", "7", "[" * 100_000])
def test_a_damaged_metrics_file_is_named(run_dir: Path, text: str) -> None:
    (run_dir / "metrics.json").write_text(text, encoding="utf-8")
    with pytest.raises(IntegrityError, match=r"metrics\.json: not the metrics of a run"):
        verify_run(run_dir)


def test_figures_older_than_the_ledger_guarantee_nothing_and_that_is_said(run_dir: Path) -> None:
    """A process failed with nothing released; the next one released, and was killed."""
    path = run_dir / "metrics.json"
    metrics = json.loads(path.read_text(encoding="utf-8"))
    metrics["privacy"]["student"]["data_independent"] = 0.0
    metrics |= {"status": "failed", "queries_asked": 0, "queries_answered": 0}
    path.write_text(json.dumps(metrics), encoding="utf-8")
    assert verify_run(run_dir).beside[1] == (
        "metrics.json: of a process that did not come to the study's end, and may be older than the ledger; "
        "its ε was NOT compared; what the ledger says holds"
    )


@pytest.mark.parametrize("status", ["failed", "aborted"])
def test_figures_of_a_process_that_failed_are_held_against_the_rows_that_it_counts(
    run_dir: Path, status: str
) -> None:
    path = run_dir / "metrics.json"
    metrics = json.loads(path.read_text(encoding="utf-8")) | {"status": status}
    path.write_text(json.dumps(metrics), encoding="utf-8")
    said = verify_run(run_dir).beside[1]
    assert "no ε below the ledger's" in said and "did not come to the study's end" in said
    metrics["privacy"]["student"]["data_independent"] = 0.01
    path.write_text(json.dumps(metrics), encoding="utf-8")
    with pytest.raises(IntegrityError, match=r"ε against the public is 0\.01"):
        verify_run(run_dir)


def test_fewer_hospitals_than_must_add_noise_are_noticed(tmp_path: Path) -> None:
    view = hospital_noise(sigma_party=3.0, survivors=4)
    path = _write(tmp_path / "run", coordinator=view) / "metrics.json"
    metrics = json.loads(path.read_text(encoding="utf-8"))
    assert "no ε below" in verify_run(path.parent).beside[1]
    path.write_text(json.dumps(metrics | {"num_clients": 2}), encoding="utf-8")
    with pytest.raises(IntegrityError, match="num_clients: 2, by the ledger at least 4"):
        verify_run(path.parent)
