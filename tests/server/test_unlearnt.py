"""Where a student fails: labels that are paid for are kept, the same command goes on with them."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import SMALL_STUDY
from tables_study import write_tables_study

from pate_fed import simulate
from pate_fed.errors import InputError
from pate_fed.privacy import verify
from pate_fed.simulation import main
from server.federation import Federation
from server.kinds.base import StudyCourse

VOTES: dict[str, Any] = tomllib.loads(SMALL_STUDY)
SHARED = {key: VOTES[key] for key in ("parties", "data", "engine", "privacy", "student")}
SUMS = {"aggregation": {"aggregator": "class-sums"}, **SHARED}
STUDIES: dict[str, dict[str, Any]] = {
    "votes": VOTES,
    "votes, sanitised": {**VOTES, "privacy": {**VOTES["privacy"], "sanitise": True}},
    "class sums": {**SUMS, "secrecy": {"secure_sum": True}},
    "class sums with noise at hospitals": {
        **SUMS,
        "secrecy": {"secure_sum": True, "noise_at": "hospitals"},
    },
}


def _leave(*_: Any, **__: Any) -> None:
    raise SystemExit(3)


BROKEN: Any = None  # what is called so fails without a line of the user's, as in a library of another version


def _refuse(*_: Any, **__: Any) -> None:
    raise InputError("no such thing can be learnt")


def _nobody(*_: Any, **__: Any) -> None:
    raise AssertionError("hospitals are asked again")


def _simulate(study: dict[str, Any], run_dir: Path) -> Any:
    return simulate(study, run_dir=run_dir, quiet=True)


@pytest.mark.parametrize(
    ("study", "fault"), [*((name, BROKEN) for name in STUDIES), ("votes", _refuse), ("votes", _leave)]
)
def test_a_student_that_fails_costs_nothing_once_it_is_mended(
    study: str, fault: Callable[..., None] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = tmp_path / "run"
    with monkeypatch.context() as broken:
        broken.setattr(StudyCourse, "_measure_student", fault)
        with pytest.raises((TypeError, InputError)) as caught:
            _simulate(STUDIES[study], run_dir)
    error = caught.value
    said = "\n".join((str(error), *getattr(error, "__notes__", ())))
    with np.load(run_dir / "labels.npz") as held:
        labels = {name: held[name] for name in held.files}
    assert f"the labels ({labels['answered'].sum()}) are kept in {run_dir / 'labels.npz'}" in said
    assert f"the same command with --run-dir {run_dir} goes on with them" in said
    before = verify(run_dir / "ledger.sqlite").chain.entries
    failed = json.loads((run_dir / "metrics.json").read_text(encoding="utf-8"))
    assert failed["status"] == "failed"

    monkeypatch.setattr(Federation, "collect", _nobody)
    run = _simulate(STUDIES[study], run_dir)
    assert (
        run.metrics["status"] == "success" and run.epsilon == failed["privacy"]["student"]["data_independent"]
    )
    assert verify(run_dir / "ledger.sqlite").chain.entries == before and len(before) == 1
    with np.load(run_dir / "labels.npz") as held:
        for name, column in labels.items():
            np.testing.assert_array_equal(held[name], column)
    assert run.student is not None and not (run_dir / "private").exists()
    with pytest.raises(InputError, match="already holds a run"):
        _simulate(STUDIES[study], run_dir)


def test_the_command_says_so_after_its_traceback_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "study.toml").write_text(SMALL_STUDY, encoding="utf-8")
    run_dir = tmp_path / "run"
    command = ["--config", str(tmp_path / "study.toml"), "--run-dir", str(run_dir), "--quiet"]
    monkeypatch.setenv("PATE_FED_SITE", "")
    with monkeypatch.context() as broken:
        broken.setattr(StudyCourse, "_measure_student", BROKEN)
        assert main(command) == 1
    out, err = capsys.readouterr()
    assert out.startswith("FAILED  ε=") and "labels=4 " in out
    assert err.splitlines()[-1].endswith(f"the same command with --run-dir {run_dir} goes on with them")
    reason = json.loads((run_dir / "log.jsonl").read_text(encoding="utf-8").splitlines()[-1])["reason"]
    assert "goes on with them" in reason
    # Another study, or other public inputs under the same settings, learn nothing of these labels.
    assert main([*command, "--labels", "3"]) == 2
    assert "holds a run of another study" in capsys.readouterr().err
    monkeypatch.setattr(Federation, "collect", _nobody)
    assert main(command) == 0
    assert capsys.readouterr().out.startswith("SUCCESS  ε=")


def test_labels_of_other_public_inputs_are_not_learnt_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tables_study(tmp_path)
    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as broken:
        broken.setattr(StudyCourse, "_measure_student", BROKEN)
        with suppress(TypeError):
            simulate("simulated.toml", run_dir="run", quiet=True)
    pool = tmp_path / "pool.csv"
    first, *rows = pool.read_text(encoding="utf-8").splitlines(keepends=True)
    pool.write_text("".join((first, *reversed(rows))), encoding="utf-8")
    with pytest.raises(InputError, match="labels are of other public data"):
        simulate("simulated.toml", run_dir="run", quiet=True)
