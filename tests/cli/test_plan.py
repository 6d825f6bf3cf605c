"""`pate-fed plan` and `audit`: figures, and every mistake with its option."""

from __future__ import annotations

import argparse
import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import make_terms

from pate_fed.cli.main import main
from pate_fed.config.defaults import MOST_BY_DEFAULT, SUMS_EPSILON
from pate_fed.config.options import add_study_options, study_from_arguments
from pate_fed.privacy.ledger.terms import guaranteed_epsilon

SMALL = ("--teachers", "20", "--classes", "3", "--max-queries", "400")


def test_plan_gives_the_same_as_text_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["plan", *SMALL, "--epsilon", "2", "--hospitals", "6"]
    assert main(command) == 0
    text = capsys.readouterr().out
    assert main([*command, "--format", "json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["best"]["epsilon"] <= 2
    assert str(plan["best"]["answered"]) in text


def test_a_plan_says_where_nothing_is_affordable(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--epsilon", "0.1", *SMALL]) == 0
    assert "not one useful label" in capsys.readouterr().out


def test_plan_for_whole_hospitals_affords_less(capsys: pytest.CaptureFixture[str]) -> None:
    labels = []
    for options in ([], ["--unit", "hospital", "--hospitals", "12"]):
        assert main(["plan", *SMALL, "--epsilon", "2", "--format", "json", *options]) == 0
        labels.append(json.loads(capsys.readouterr().out)["best"]["answered"])
    assert labels[0] > labels[1]


def test_plan_prints_the_command_that_runs_its_best_offer(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--teachers", "60", "--hospitals", "12", "--epsilon", "3"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("run it: ")]
    program, *options = line.removeprefix("run it: ").split()
    assert program == "flower-simulation"
    parser = argparse.ArgumentParser()
    add_study_options(parser)
    study = study_from_arguments(parser.parse_args(options))
    assert (study.parties.num_clients, study.parties.num_teachers) == (12, 60)
    labels, asked = study.queries.labels or 0, study.queries.max_queries or 0
    # The study's own ledger guarantees it, and its caps keep the budget, so that nothing stops it before.
    terms = make_terms(
        num_clients=12,
        teachers_per_client=5,
        num_classes=10,
        pool_size=9000,
        aggregation=study.aggregation,
        labels=labels,
        max_queries=asked,
        epsilon=study.privacy.epsilon,
    )
    fixed = terms.ledger_terms(noise="n", private=True)
    assert fixed.protection.votes_moved == 2  # five teachers a hospital: the old one's and the new one's
    assert 2.97 < guaranteed_epsilon(fixed) <= 3
    assert fixed.caps_keep_budget


def test_the_command_for_a_study_of_ones_own_names_its_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = tmp_path / "my study.toml"
    study.write_text("[parties]\nnum_clients = 60\n[privacy]\nepsilon = 3.0\n", encoding="utf-8")
    assert main(["plan", "--config", str(study), "--records", "500"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("run it")]
    assert len(lines) >= 2  # class sums or votes, and with the hospitals' noise
    for line in lines:
        program, *options = shlex.split(line.split(": ")[1])
        assert (program, *options[:2]) == ("flower-simulation", "--config", str(study))
    assert main(["plan", "--config", str(study), "--unit", "hospital", "--format", "json"]) == 0
    command = json.loads(capsys.readouterr().out)["command"]
    assert command.count("--config") == 1 and command.endswith('(there unit = "hospital" in [privacy])')


def test_a_patient_is_planned_for_as_many_parties_as_the_study_declares(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = tmp_path / "study.toml"
    own = '[data]\ndataset = "m:load"\n[parties]\nnum_clients = 20\nteachers_per_client = 2\n'
    study.write_text(f"{own}[privacy]\nepsilon = 9.0\nhospitals_per_patient = 3\n", encoding="utf-8")

    def planned(*options: str) -> dict[str, Any]:
        assert main(["plan", "--format", "json", "--aggregator", "gnmax", *options]) == 0
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return found

    three = planned("--config", str(study))
    assert (three["unit"], three["votes_moved"], three["hospitals_per_patient"]) == ("patient", 6, 3)
    assert three["best"]["epsilon"] <= 9
    comes = planned("--config", str(study), "--adjacency", "add-or-remove-one")
    assert (comes["unit"], comes["votes_moved"]) == ("patient", 3)
    one = planned("--config", str(study), "--unit", "record")
    assert (one["unit"], one["votes_moved"], one["hospitals_per_patient"]) == ("record", 2, 1)
    assert one["best"]["answered"] > three["best"]["answered"]
    typed = planned("--epsilon", "9", "--teachers", "40", "--num-clients", "20", "--unit", "patient")
    assert (typed["unit"], typed["votes_moved"]) == ("patient", 2)
    assert typed["command"].endswith('(there unit = "patient" in [privacy])')
    usual = ("plan", "--epsilon", "9", "--teachers", "40", "--num-clients", "20", "--unit", "patient")
    many = planned(*usual[1:], "--hospitals-per-patient", "3")
    assert many["votes_moved"] == 6
    assert main([*usual, "--hospitals-per-patient", "21"]) == 2
    assert "--hospitals-per-patient 21: at most the 20 hospitals" in capsys.readouterr().err
    assert many["command"].endswith('(there unit = "patient" and hospitals_per_patient = 3 in [privacy])')


def test_plan_takes_past_totals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "past.npy", np.tile([40, 15, 5], (500, 1)))
    command = ["plan", "--teachers", "60", "--classes", "3", "--epsilon", "2", "--aggregator", "gnmax"]
    assert main([*command, "--agreement", str(tmp_path / "past.npy")]) == 0
    assert "past" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (["--epsilon", "0"], "epsilon"),
        (["--epsilon", "2", "--delta", "1"], "delta"),
        (["--epsilon", "2", "--teachers", "0"], "--teachers 0"),
        (["--epsilon", "2", "--hospitals", "-4"], "--num-clients -4"),
        (["--epsilon", "2", "--hospitals", "6", "--teachers", "5"], "--num-clients 6"),
        (["--epsilon", "2", "--hospitals", "10", "--unit", "hospital", "--votes-moved", "3"], "25 votes"),
        (["--epsilon", "2", "--agreement", "none.npy"], "none.npy"),
        (["--epsilon", "2", "--aggregator", "interactive-gnmax"], "lnmax can be planned"),
        (["--epsilon", "2", "--agreement", "0.01"], "agreement"),
    ],
)
def test_plan_names_mistakes(options: list[str], word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *options]) == 2
    err = capsys.readouterr().err
    assert word in err
    assert "Traceback" not in err


@pytest.mark.parametrize("option", [["--trials", "0"], ["--confidence", "2.0"], ["--shrink", "0.0"]])
def test_audit_names_the_option_that_is_wrong(option: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", *option]) == 2
    assert f"error: {' '.join(option)}: must be" in capsys.readouterr().err


def test_audit_says_that_few_trials_find_only_large_faults(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "--seed", "1", "--trials", "100", "--shrink", "0.9"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines and all(
        line.endswith("no fault found (so few trials find only large ones)") for line in lines
    )
    with pytest.raises(SystemExit):
        main(["audit", "--help"])
    assert "below 1 the audit must fail, with enough trials" in " ".join(capsys.readouterr().out.split())


def test_audit_passes_the_mechanisms_and_catches_a_fault(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "--seed", "1", "--trials", "4000"]) == 0
    assert "FAULT" not in capsys.readouterr().out
    assert main(["audit", "--seed", "1", "--trials", "4000", "--shrink", "0.5"]) == 6
    assert "FAULT" in capsys.readouterr().out
    assert main(["audit", "--trials", "0"]) == 2


def test_audit_runs_studies_of_canaries(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "--study", "--trials", "100", "--seed", "1", "--format", "json"]) == 0
    places = [each["name"] for each in json.loads(capsys.readouterr().out)]
    assert places == [
        f"a study of class sums, noise at the {place}" for place in ("coordinator", "hospitals")
    ]
    for wrong, said in (
        (["--shrink", "0.5"], "goes without"),
        (["--aggregator", "own_parts:make"], "goes without"),
        (["--trials", "99"], "--trials 99: must be"),
        (["--confidence", "2.0"], "--confidence 2.0: must be"),
    ):
        assert main(["audit", "--study", *wrong]) == 2
        assert said in capsys.readouterr().err


def test_plan_chooses_where_it_is_told_of_records(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["plan", "--hospitals", "8", "--records", "200", "--classes", "3", "--epsilon", "4"]
    assert main(command) == 0
    text = capsys.readouterr().out
    assert "best: class-sums, as " in text and "--aggregator class-sums --secure-sum" in text
    assert main([*command, "--format", "json", "--alone", "0.98", "--public-features"]) == 0
    choice = json.loads(capsys.readouterr().out)["choice"]
    assert [way["name"] for way in choice["ways"]] == ["alone", "votes", "class-sums", "private labels"]
    assert choice["best"] == "alone" and choice["command"] is None


def test_plan_reads_a_study(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = tmp_path / "study.toml"
    text = "[parties]\nnum_clients = 6\n[data.glyph]\nclasses = 4\nprivate = 6000\n[privacy]\nepsilon = 2\n"
    study.write_text(text, encoding="utf-8")
    assert main(["plan", "--config", str(study), "--format", "json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert (made["num_teachers"], made["num_classes"], made["epsilon"]) == (6, 4, 2)
    assert "6,000 records" in made["choice"]["ways"][2]["rests"]
    assert main(["plan", "--config", str(study), "--epsilon", "1", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["epsilon"] == 1
    study.write_text(text.partition("[privacy]")[0], encoding="utf-8")  # each way as it would run
    assert main(["plan", "--config", str(study), "--format", "json"]) == 0
    ways = json.loads(capsys.readouterr().out)["choice"]["ways"]
    assert [way["epsilon"] for way in ways] == [0, MOST_BY_DEFAULT, SUMS_EPSILON]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ([], "--epsilon"),
        (["--epsilon", "1", "--records", "5"], "--num-clients"),
        (["--epsilon", "1", "--records", "5", "--hospitals", "4", "--alone", "2"], "alone"),
    ],
)
def test_what_a_choice_needs_is_asked_for(
    options: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *options]) == 2
    assert named in capsys.readouterr().err


def test_a_mechanism_of_one_s_own_is_planned_with_the_study_s_parameters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = tmp_path / "study.toml"
    study.write_text(
        '[privacy]\nepsilon = 3.0\n[aggregation]\naggregator = "own_parts:GeometricMax"\n'
        "[aggregation.parameters]\nscale = 40.0\n"
    )
    few = ["--max-queries", "400", "--format", "json"]
    assert main(["plan", "--config", str(study), *few]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["best"]["mechanism"] == "own_parts:GeometricMax" and made["best"]["epsilon"] <= 3.0
    assert "scale = 40.0 in [aggregation.parameters]" in made["command"]
    assert main(["plan", "--epsilon", "3", "--aggregator", "own_parts:GeometricMax", *few]) == 0
    assert json.loads(capsys.readouterr().out)["best"]["asked"] < 10  # its default has hardly any noise


def test_audit_holds_a_mechanism_of_one_s_own_against_its_claim(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = ["--seed", "1", "--trials", "300"]
    assert main(["audit", "--aggregator", "own_parts:GeometricMax", *few]) == 0
    assert "own_parts:GeometricMax: sampled RDP >= " in capsys.readouterr().out
    study = tmp_path / "study.toml"
    study.write_text('[aggregation]\naggregator = "own_parts:Bare"\n[aggregation.parameters]\nscale = 40.0\n')
    assert main(["audit", "--config", str(study), *few, "--format", "json"]) == 6
    assert not all(each["passed"] for each in json.loads(capsys.readouterr().out))
    for wrong, said in (
        (["--aggregator", "gnmax"], "is ours, and audited without this option"),
        (["--aggregator", "own_parts:Free"], "claims an RDP of 0.0"),
        (["--aggregator", "no_such_module:make"], "there is no module no_such_module"),
        (["--aggregator", "own_parts:make", "--shrink", "0.5"], "--shrink"),
    ):
        assert main(["audit", *wrong, *few]) == 2
        assert said in capsys.readouterr().err
