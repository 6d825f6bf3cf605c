"""`pate-fed sweep`: every combination in a folder of its own, gone on with after an interruption."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builders import SMALL_STUDY
from saved_runs import RECORD, events, make_outcome, save_run

from pate_fed.cli.sweep import combine
from pate_fed.config.study import Study
from pate_fed.errors import InputError, QuorumError
from pate_fed.runtime.signals import INTERRUPTED

Run = Callable[..., Any]


@pytest.fixture
def study(tmp_path: Path) -> Path:
    path = tmp_path / "study.toml"
    path.write_text(SMALL_STUDY, encoding="utf-8")
    return path


class Simulated:
    """Stands in for a simulation: writes what it would leave, or ends as `ends` says for the n-th call."""

    def __init__(self) -> None:
        self.studies: list[Study] = []
        self.ends: dict[int, BaseException] = {}

    def __call__(self, study: Study, *, run_dir: Path, quiet: bool) -> None:
        self.studies.append(study)
        record = replace(RECORD, noise_private=study.seed is None)
        error = self.ends.get(len(self.studies))
        told = events(record, make_outcome(epsilon=10 / (study.aggregation.sigma2 or 1)))
        save_run(run_dir, told if error is None else told[:5], study=study)
        if error is not None:
            raise error


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> Simulated:
    found = Simulated()
    monkeypatch.setattr("pate_fed.cli.side_by_side.most_at_once", lambda studies: 1)
    monkeypatch.setattr("pate_fed.cli.simulate.simulate", found)
    return found


def test_every_combination_and_seed_is_a_run_of_its_own(
    study: Path, simulated: Simulated, run: Run, tmp_path: Path
) -> None:
    command = ("sweep", str(study), "--set", "aggregation.sigma2=2,4.5", "--set", "queries.labels=3,4")
    done = run(*command, "--seeds", "2", "--run-dir", str(tmp_path / "runs"))
    assert done.code == 0
    ran = [(each.aggregation.sigma2, each.queries.labels, each.seed) for each in simulated.studies]
    assert ran == [(s, n, seed) for s in (2, 4.5) for n in (3, 4) for seed in (0, 1)]
    folders = {path.name for path in (tmp_path / "runs").iterdir()}
    assert "sigma2-4.5-labels-3-seed-1" in folders and len(folders) == 9  # and compare.html
    page = (tmp_path / "runs" / "compare.html").read_text(encoding="utf-8")
    assert "Accuracy against ε" in page and "sigma2-4.5-labels-3" in page
    assert "protect nobody" in done.out and "Together" not in done.out  # nothing is spent


def test_an_interrupted_sweep_goes_on_where_it_was(
    study: Path, simulated: Simulated, run: Run, tmp_path: Path
) -> None:
    folder = tmp_path / "runs"
    command = ("sweep", str(study), "--set", "aggregation.sigma2=2,4,8", "--run-dir", str(folder))
    simulated.ends = {2: KeyboardInterrupt()}
    assert run(*command).code == INTERRUPTED
    assert len(simulated.studies) == 2
    done = run(*command)
    assert done.code == 0 and "3 runs, 1 of them finished before" in done.out
    assert [each.aggregation.sigma2 for each in simulated.studies[2:]] == [4, 8]
    assert (folder / "sigma2-4.cut-off-1" / "log.jsonl").is_file()  # its ledger says what it spent
    assert run(*command).code == 0 and len(simulated.studies) == 4  # nothing is left to run


def test_runs_that_are_not_seeded_add_up(study: Path, simulated: Simulated, run: Run, tmp_path: Path) -> None:
    """ε 5 and 2.5, and 3.5 of what was cut off: 11 in all."""
    command = ("sweep", str(study), "--set", "aggregation.sigma2=2,4", "--run-dir", str(tmp_path / "runs"))
    simulated.ends = {2: KeyboardInterrupt()}
    run(*command)
    done = run(*command)
    assert "warning: 2 runs are not seeded. Each spends its own ε on the same private records" in done.out
    total = "Together these 3 runs cost at most ε = 11 at δ = 3e-5 (the sums)."
    assert f"note: {total}" in done.out
    assert total in (tmp_path / "runs" / "compare.html").read_text(encoding="utf-8")


def test_a_run_that_fails_stops_no_other(study: Path, simulated: Simulated, run: Run, tmp_path: Path) -> None:
    simulated.ends = {1: QuorumError("too few hospitals")}
    command = ("sweep", str(study), "--set", "aggregation.sigma2=2,4", "--run-dir", str(tmp_path / "runs"))
    done = run(*command)
    assert done.code == 4 and len(simulated.studies) == 2
    assert "error: sigma2-2: too few hospitals" in done.err


@pytest.mark.parametrize(
    ("extra", "told"),
    [
        (("--set", "sigma2=2"), "aggregation.sigma2=20,40,80"),
        (("--set", "aggregation.sigma2="), "KEY=VALUE"),
        (("--set", "aggregation.sigma3=2"), "sigma3"),
        (("--set", "aggregation.sigma2=-1"), "sigma2"),
        (("--set", "aggregation.sigma2=2,2"), "give each value once"),
        (("--set", "study.seed=1,2", "--seeds", "2"), "one of the two"),
        (("--set", "aggregation.sigma2=2", "--seeds", "0"), "--seeds 0"),
        (("--set", "aggregation.sigma2=2", "--seeds", "9999"), "at most 1,000"),
        ((), "--set"),
    ],
)
def test_errors_are_one_sentence_before_anything_runs(
    study: Path, simulated: Simulated, run: Run, extra: tuple[str, ...], told: str
) -> None:
    done = run("sweep", str(study), *extra)
    assert done.code == 2 and told in done.err and len(done.err.splitlines()) == 1
    assert not simulated.studies


def test_a_folder_of_another_study_is_left_alone(
    study: Path, simulated: Simulated, run: Run, tmp_path: Path
) -> None:
    folder = tmp_path / "runs"
    command = ("sweep", str(study), "--set", "aggregation.sigma2=2,4", "--run-dir", str(folder))
    run(*command)
    study.write_text(SMALL_STUDY.replace("labels = 4", "labels = 3"), encoding="utf-8")
    done = run(*command)
    assert done.code == 2 and "of another study" in done.err and len(simulated.studies) == 2


def test_values_are_toml_or_words() -> None:
    found = combine({}, ["parties.partition=iid,dirichlet:0.5"], seeds=None, where="study.toml")
    assert [each.study.parties.partition for each in found] == ["iid", "dirichlet:0.5"]
    with pytest.raises(InputError, match="given twice"):
        combine({}, ["queries.labels=1", "queries.labels=2"], seeds=None, where="study.toml")


@pytest.mark.slow
def test_real_studies(study: Path, run: Run, tmp_path: Path) -> None:
    command = ("sweep", str(study), "--set", "aggregation.sigma2=2,8", "--seeds", "1")
    done = run(*command, "--run-dir", str(tmp_path / "runs"))
    assert done.code == 0 and done.out.count("checked") == 2
    again = run(*command, "--run-dir", str(tmp_path / "runs"))
    assert again.code == 0 and again.out.count("finished before") == 3
