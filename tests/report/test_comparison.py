"""Runs side by side: their names, settings that differ, and ε in words that say what it rests on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import own_parts
import pytest
from ledgers import TERMS
from saved_runs import LABELS, RECORD, SUMS, events, make_outcome, make_study, save_run

from pate_fed.errors import InputError
from pate_fed.privacy import Ledger
from pate_fed.privacy.mechanisms.own import own_mechanism
from pate_fed.report.comparison import Comparison, load_run, name_runs
from pate_fed.structure.parts import part_identity


def test_a_run_is_named_by_as_many_folders_as_set_it_apart() -> None:
    paths = [Path("/a/x/run"), Path("/a/y/run"), Path("/b/x/other")]
    assert name_runs(paths[:1]) == ["run"] and name_runs(paths) == ["x/run", "y/run", "x/other"]
    with pytest.raises(InputError, match="given twice"):
        name_runs([paths[0], paths[0]])


def test_only_settings_that_differ_and_tell_something_are_set_side_by_side(tmp_path: Path) -> None:
    runs = []
    for name, sigma in (("one", 2.0), ("two", 4.0)):
        study = make_study(aggregator="gnmax", sigma2=sigma)
        engine = replace(study.engine, backend="inline")
        study = replace(study, name=name, engine=engine, reason=f"found for {name}")
        runs.append(load_run(save_run(tmp_path / name, events(), study=study), name=name))
    assert all(run.group == run.name and run.ledger == "missing" for run in runs)
    differing = dict(Comparison(runs=tuple(runs)).differing)
    assert differing["aggregation.sigma2"] == ("2", "4") and not any(
        key.startswith("study.") for key in differing
    )
    assert not any(key.startswith("engine.") for key in differing)


def test_epsilon_says_what_it_rests_on(tmp_path: Path) -> None:
    def epsilon(name: str, **study: bool) -> str:
        told = events(replace(RECORD, **study))  # type: ignore[arg-type]
        return load_run(save_run(tmp_path / name, told), name=name).epsilon

    assert epsilon("plain") == "3.5"
    assert epsilon("seeded", noise_private=False) == "3.5 (seeded: not private)"
    unbounded = make_outcome()
    unbounded = replace(unbounded, privacy=replace(unbounded.privacy, student=None))
    told = load_run(save_run(tmp_path / "none", events(outcome=unbounded)), name="none")
    assert told.epsilon == "unbounded"
    cut = load_run(save_run(tmp_path / "cut", events()[:4]), name="cut")
    assert cut.epsilon == "3.5"  # the most that it may have spent


def test_the_kind_is_what_was_released(tmp_path: Path) -> None:
    kinds = ((RECORD, "votes"), (SUMS, "class sums"), (LABELS, "private labels"))
    for record, kind in kinds:
        assert load_run(save_run(tmp_path / kind, events(record)), name="x").kind == kind


def test_a_claim_that_was_not_computed_again_is_no_broken_ledger(tmp_path: Path) -> None:
    identity = part_identity("own_parts:GeometricMax", "aggregator")
    mechanism = own_mechanism(
        own_parts.GeometricMax, classes=3, num_teachers=10, parameters={"scale": 10.0}, identity=identity
    )
    terms = replace(TERMS, mechanisms=(mechanism,), most_asked=40, most_answered=40)
    runs = []
    for name in ("own", "broken", "none"):
        path = save_run(tmp_path / name, events())
        if name == "own":
            Ledger.create(path / "ledger.sqlite", terms).close()
        elif name == "broken":
            (path / "ledger.sqlite").write_bytes(b"no ledger")
        runs.append(load_run(path, name=name))
    assert [run.ledger for run in runs] == ["intact, claim not checked", "FAILS ITS CHECK", "missing"]
    notes = Comparison(runs=tuple(runs)).notes
    assert any("does not pass its check: broken. Do not rely" in note for note in notes)
    assert any("claims was not computed again: own. pate-fed ledger verify" in note for note in notes)
