"""A study of private labels: on the ledger before it is learnt from, gone on with after a death, verified."""

from __future__ import annotations

import json
import shutil
import signal
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import die_learning, forks
from dying import dying

from clients.hospital import Hospital
from pate_fed.cli.main import main
from pate_fed.kinds.label_dp import learners, methods
from pate_fed.kinds.label_dp.randres import RandRes
from pate_fed.privacy import Ledger, verify
from pate_fed.privacy.ledger.report import verify_run
from pate_fed.protocol.messages import Refusal
from server.kinds.labels import LabelCourse

RECORDS = 80
METHODS = ("randres+normal", "noise-cluster", "lp-2st", "alibi", "pate-fm")


class Killed(BaseException):
    """No handler of the program may take it for a fault that it can tell about."""


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """80 images whose bright half tells the class."""
    folder = tmp_path_factory.mktemp("records")
    labels = np.arange(RECORDS) % 2
    images = np.random.default_rng(0).integers(0, 50, (RECORDS, 16, 16, 1))
    images[labels == 1, :8] += 150
    np.save(folder / "images.npy", images.astype(np.uint8))
    np.save(folder / "labels.npy", labels)
    return folder


def _command(records: Path, method: str, run_dir: Path, *more: str) -> list[str]:
    small = ["--clusters", "4"] if method == "noise-cluster" else ["--epochs", "1"]
    small += ["--teachers", "4"] if method == "pate-fm" else []
    files = [f"--{name}={records / name}.npy" for name in ("images", "labels")]
    return [
        *("label-dp", "--dataset", "files", *files, "--classes", "2", "--epsilon", "2", *small),
        *("--method", method, "--run-dir", str(run_dir), *more),
    ]


def _released(run_dir: Path) -> np.ndarray:
    """The ledger's labels of all records, -1 where there is none."""
    label = np.full(RECORDS, -1)
    for part in verify(run_dir / "ledger.sqlite").chain.outputs:
        label[part.index] = part.label
    return label


# Release, row on the ledger, then learning.


def test_killed_before_it_learns_a_run_goes_on_and_spends_nothing_more(records: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    command = _command(records, "randres+normal", run_dir)
    dead = forks().Process(target=die_learning, args=(command,))
    dead.start()
    dead.join(120)
    assert dead.exitcode == -signal.SIGKILL
    assert {path.name for path in run_dir.iterdir()} >= {"study.toml", "ledger.sqlite", "log.jsonl"}
    charged = verify(run_dir / "ledger.sqlite")
    assert (charged.epsilon, charged.answered) == (2.0, RECORDS) and not (run_dir / "labels.npz").exists()
    assert main(command) == 0
    np.testing.assert_array_equal(np.load(run_dir / "labels.npz")["label"], _released(run_dir))
    again = verify_run(run_dir)
    assert again.sealed_by is not None
    assert again.chain.head == charged.chain.head and again.epsilon == 2.0
    assert json.loads((run_dir / "metrics.json").read_text())["queries_answered"] == RECORDS
    names = {"study.toml", "ledger.sqlite", "labels.npz", "metrics.json", "report.html", "log.jsonl"}
    assert {path.name for path in run_dir.iterdir()} == names | {
        "student.ts",
        "seal.json",
        "verify_independent.py",
        "verify_exact.py",
    }


@pytest.mark.parametrize("method", METHODS)
def test_every_release_has_its_row_before_anything_learns_from_it(
    method: str, records: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed at its first look at a release, and again at each further one, until it has come to its end."""
    run_dir, seen, train = tmp_path / "run", list[int](), learners.train
    command = _command(records, method, run_dir, "--seed", "3")

    def dying(*arguments: Any, **named: Any) -> Any:
        rows = len(verify(run_dir / "ledger.sqlite").chain.entries)
        if rows not in seen:
            seen.append(rows)
            raise Killed
        return train(*arguments, **named) if method != "noise-cluster" else named_centres(*arguments)

    named_centres = methods.named_centres
    owner, name = (methods, "named_centres") if method == "noise-cluster" else (learners, "train")
    monkeypatch.setattr(owner, name, dying)
    before = None
    while True:
        try:
            assert main(command) == 0
            break
        except Killed:
            now = _released(run_dir)
            if before is not None:  # what was released stays as it was
                np.testing.assert_array_equal(now[before >= 0], before[before >= 0])
            before = now
    assert seen == {"lp-2st": [1, 2], "pate-fm": [0, 1]}.get(method, [1])  # 0: PATE-FM's teachers learn
    report = verify_run(run_dir)
    assert report.epsilon <= 2.0 and len(report.chain.entries) == seen[-1]
    held = np.load(run_dir / "labels.npz")
    np.testing.assert_array_equal(held["released" if method == "pate-fm" else "label"], _released(run_dir))
    assert held["label"].min() >= 0 and not report.chain.terms.private


def test_labels_in_one_place_none_of_which_was_released_are_no_hospitals_loss(
    records: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = RandRes.release

    def nothing(response: RandRes, labels: np.ndarray, noise: Any) -> Any:
        made = whole(response, labels, noise)
        return replace(made, label=np.full_like(made.label, -1))

    monkeypatch.setattr(RandRes, "release", nothing)
    monkeypatch.setattr(learners, "train", lambda *_, **__: (_ for _ in ()).throw(Killed))
    command = _command(records, "randres+normal", tmp_path / "run")
    for _ in range(2):
        with pytest.raises(Killed):
            main(command)
        [entry] = verify(tmp_path / "run" / "ledger.sqlite").chain.entries
        assert (entry.event.asked, entry.event.answered) == (RECORDS, 0)
    assert "hospitals" not in capsys.readouterr().err


def test_labels_at_hospitals_are_on_the_ledger_too(
    records: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = _command(records, "lp-1st", tmp_path / "run", "--hospitals", "5")
    with dying(LabelCourse, "learn", after=False):
        main(command)
    released = _released(tmp_path / "run")
    monkeypatch.setattr(Hospital, "join", lambda *_: pytest.fail("asked again"))
    assert main(command) == 0
    assert "on the ledger: nobody was asked again" in capsys.readouterr().out
    np.testing.assert_array_equal(_released(tmp_path / "run"), released)
    terms = json.loads((tmp_path / "run" / "metrics.json").read_text())["hospitals"]["terms_digest"]
    assert verify_run(tmp_path / "run").chain.terms.study_digest == terms


def test_a_method_that_fails_after_hospitals_were_asked_costs_nothing_once_it_is_mended(
    records: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = tmp_path / "run"
    command = _command(records, "lp-1st", run_dir, "--hospitals", "5")
    with monkeypatch.context() as patch:
        patch.setattr(learners, "train", lambda *_, **__: (_ for _ in ()).throw(ValueError("no")))
        assert main(command) == 2
    said = capsys.readouterr()
    assert said.out.startswith("FAILED  ε=2 δ=0 unit=label labels=80 ")
    assert f"the labels (80) are kept in {run_dir / 'labels.npz'}" in said.err
    figures = json.loads((run_dir / "metrics.json").read_text())
    assert figures["status"] == "failed" and "the same command with --run-dir" in figures["error"]
    assert figures["privacy"]["epsilon"] == figures["hospitals"]["coordinator"]["epsilon"] == 2
    before, sealed_by = _released(run_dir), verify_run(run_dir).sealed_by
    monkeypatch.setattr(Hospital, "join", lambda *_: pytest.fail("asked again"))
    assert main(command) == 0
    again = verify_run(run_dir).sealed_by
    assert sealed_by is not None and again is not None and again != sealed_by
    np.testing.assert_array_equal(_released(run_dir), before)
    assert not (run_dir / "private").exists() and verify_run(run_dir).epsilon == 2


def test_what_hospitals_sent_a_coordinator_that_was_killed_counts_as_spent(
    records: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had their labels and died before their row; the next ones hear nothing, and are stopped in order."""
    run_dir = tmp_path / "run"
    command = _command(records, "lp-1st", run_dir, "--hospitals", "5")
    with dying(Ledger, "charge", after=False):
        main(command)
    assert not verify(run_dir / "ledger.sqlite").chain.entries
    monkeypatch.setattr(Hospital, "join", lambda own, _: own.refuse(Refusal.POLICY_STUDY))
    for _ in range(2):
        assert main(command) == 4
        figures = json.loads((run_dir / "metrics.json").read_text())
        assert figures["privacy"]["epsilon"] == figures["privacy"]["coordinator"]["epsilon"] == 2
        assert figures["hospitals"]["coordinator"]["epsilon"] == 2
        assert figures["privacy"]["student"]["data_independent"] == 0


def test_noisy_rows_that_are_gone_are_not_drawn_again(
    records: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = tmp_path / "run"
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(learners, "train", lambda *_, **__: (_ for _ in ()).throw(Killed))
        main(_command(records, "alibi", run_dir))
    rows = np.load(run_dir / "noisy_rows.npy")
    np.save(run_dir / "noisy_rows.npy", -rows)
    assert main(_command(records, "alibi", run_dir)) == 6
    assert "not those that the labels on the ledger came from" in capsys.readouterr().err
    (run_dir / "noisy_rows.npy").write_bytes(b"")
    assert main(_command(records, "alibi", run_dir)) == 6
    assert "noisy_rows.npy: is damaged" in capsys.readouterr().err
    (run_dir / "noisy_rows.npy").unlink()
    assert main(_command(records, "alibi", run_dir)) == 3
    assert "are gone; ε=2 is spent by the ledger" in capsys.readouterr().err


# The run directory.


@pytest.fixture(scope="module")
def finished(records: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run directories by method: in one place, and counted at hospitals."""
    folder = tmp_path_factory.mktemp("runs")
    for method in ("lp-2st", "pate-fm", "noise-cluster"):
        more = ["--hospitals", "5"] if method == "noise-cluster" else []
        assert main(_command(records, method, folder / method, *more)) == 0
    return folder


def test_a_finished_run_and_another_study_are_refused(
    records: Path, finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unsaid = "FAILED  ε=- δ=- unit=- labels=- accuracy=- report=-\n"  # its ledger says what was spent
    left = finished / "lp-2st" / "private"  # as a process leaves it that dies just after its metrics
    left.mkdir()
    assert main(_command(records, "lp-2st", finished / "lp-2st")) == 2 and not left.exists()
    said = capsys.readouterr()
    assert "holds a run that is finished" in said.err and said.out == unsaid
    assert main(_command(records, "lp-2st", finished / "lp-2st", "--epsilon", "1")) == 2
    said = capsys.readouterr()
    assert "holds a run of another study" in said.err and said.out == unsaid


def test_a_ledger_that_is_gone_is_missed(
    records: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(learners, "train", lambda *_, **__: (_ for _ in ()).throw(Killed))
        main(_command(records, "randres+normal", tmp_path / "run"))
    (tmp_path / "run" / "ledger.sqlite").unlink()
    assert main(_command(records, "randres+normal", tmp_path / "run")) == 6
    assert "is gone, and log.jsonl tells of 80 queries" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("method", "said"),
    [
        ("lp-2st", "(2, 0)-differential privacy for one record's label replaced"),
        ("pate-fm", "no bound: it sees the labels themselves"),
        ("noise-cluster", "as against the public: it sees noisy counts of all hospitals together"),
    ],
)
def test_the_ledger_is_shown_and_its_epsilon_computed_again(
    method: str, said: str, finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for action in ("show", "verify"):
        assert main(["ledger", action, str(finished / method)]) == 0
        assert said in capsys.readouterr().out
    assert main(["ledger", "verify", str(finished / method), "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    metrics = json.loads((finished / method / "metrics.json").read_text())
    assert found["spent"]["student"] <= metrics["privacy"]["epsilon"] <= 2
    assert found["terms"]["protection"]["unit"] == metrics["privacy"]["unit"] == "label"
    report = (finished / method / "report.html").read_text()
    assert "one record's label replaced" in report.replace("&#39;", "'") and "vote" not in report.lower()


def _row(statement: str) -> Callable[[Path], None]:
    """Change the ledger as somebody could who may write the file."""

    def change(run_dir: Path) -> None:
        with sqlite3.connect(run_dir / "ledger.sqlite") as connection:
            guards = connection.execute(
                "SELECT name, sql FROM sqlite_master WHERE type = 'trigger'"
            ).fetchall()
            for name, _ in guards:
                connection.execute(f"DROP TRIGGER {name}")
            connection.execute(statement)
            for _, sql in guards:
                connection.execute(sql)
        connection.close()

    return change


def _npz(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Path], None]:
    def write(run_dir: Path) -> None:
        path = run_dir / "labels.npz"
        with np.load(path) as held:
            columns = dict(held)
        np.savez(path, **{**columns, "label": change(columns["label"])})

    return write


def _metrics(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def write(run_dir: Path) -> None:
        figures = json.loads((run_dir / "metrics.json").read_text())
        change(figures)
        (run_dir / "metrics.json").write_text(json.dumps(figures))

    return write


@pytest.mark.parametrize(
    ("method", "change", "message"),
    [
        ("lp-2st", _row("UPDATE entries SET epsilon = 0.1 WHERE seq = 1"), "row 1 was changed"),
        ("lp-2st", _row("DELETE FROM entries WHERE seq = 1"), "row 1 was removed"),
        ("lp-2st", _row("DELETE FROM entries WHERE seq = 2"), "row 2 was removed"),
        ("lp-2st", _row("UPDATE released SET label = 1 - label WHERE seq = 2"), "labels were changed"),
        ("lp-2st", _npz(lambda label: 1 - label), "not what this ledger released"),
        ("lp-2st", _npz(lambda label: label[:-1]), "than this ledger released"),
        ("lp-2st", lambda run: (run / "labels.npz").write_bytes(b""), "damaged"),
        ("lp-2st", _metrics(lambda f: f["privacy"].update(epsilon=0.9)), "ε against the public is 0.9"),
        ("lp-2st", _metrics(lambda f: f["privacy"].update(private=None, delta=1e-9)), "δ: 1e-09"),
        ("lp-2st", _metrics(lambda f: f["privacy"].update(unit="record")), "unit and adjacency"),
        ("lp-2st", _metrics(lambda f: f.update(seed=1)), "whether the noise protects"),
        (
            "lp-2st",
            _metrics(lambda f: f.update(queries_answered=81)),
            "queries_answered: 81, by the ledger 80",
        ),
        ("lp-2st", _metrics(lambda f: f["privacy"].update(epsilon=float("nan"))), "privacy.epsilon is nan"),
        (
            "noise-cluster",
            _metrics(lambda f: f["hospitals"]["coordinator"].update(epsilon=0.5)),
            "ε against the public is 0.5",
        ),
        ("noise-cluster", _metrics(lambda f: f["hospitals"].pop("coordinator")), "coordinator: is missing"),
    ],
)
def test_what_does_not_fit_the_ledger_is_named(
    method: str,
    change: Callable[[Path], Any],
    message: str,
    finished: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run_dir = shutil.copytree(finished / method, tmp_path / "run")
    change(run_dir)
    assert main(["ledger", "verify", str(run_dir)]) == 6
    assert message in capsys.readouterr().err


def test_one_process_at_a_time(
    records: Path, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = shutil.copytree(finished / "lp-2st", tmp_path / "run")
    (run_dir / "metrics.json").unlink()
    with Ledger.open(run_dir / "ledger.sqlite"):
        assert main(_command(records, "lp-2st", run_dir)) == 6
    assert "another process writes this ledger" in capsys.readouterr().err
