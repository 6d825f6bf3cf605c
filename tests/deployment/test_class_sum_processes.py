"""Class sums with real processes: admitted hospitals with their own noise, and a killed coordinator."""

from __future__ import annotations

import hashlib
import json
import signal
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sum_study import ASKED, STUDY, SumStudy

from pate_fed.cli.consent import confirm_in
from pate_fed.cli.demo import HOSPITALS, make_identities
from pate_fed.identity import make_request, sum_fingerprint
from pate_fed.privacy.ledger.report import verify_run
from pate_fed.protocol.messages import Refusal

pytestmark = pytest.mark.slow

NO_TORCH = """
import sys
from pate_fed.cli.main import main
sys.modules["torch"] = None
sys.exit(main(sys.argv[1:]))
"""


def test_four_hospitals_sum_with_masks_and_their_own_noise(rehearsal: Any) -> None:
    study = SumStudy(rehearsal)
    server = study.coordinator()
    assert server.wait() == 0, server.text + study.hospitals[0].text
    privacy = study.check()["privacy"]
    assert 2.9 < privacy["student"]["data_independent"] <= 3
    assert privacy["coordinator"]["epsilon"] == privacy["student"]["data_independent"]
    assert "guaranteed: ε=3 at δ=1e-5 for one patient" in server.text
    with np.load(study.folder / "run" / "labels.npz") as labels:
        assert labels["answered"].all() and len(labels["label"]) == ASKED
    for name in HOSPITALS:
        state = rehearsal.state_of(name)
        assert stat.S_IMODE((state / "features.bin").stat().st_mode) == 0o600
    predicted = rehearsal.start("predict", "-m", "pate_fed.cli", "predict", "run/student.npz", "north.csv")
    assert predicted.wait() == 0 and predicted.text.count("class ") == 90, predicted.text
    # Every hospital has the student that its coordinator signed, and asks it about its own records.
    sent = (study.folder / "run" / "student.bundle").read_bytes()
    assert "student.bundle" in (study.folder / "run" / "seal.json").read_text(encoding="utf-8")
    for name in HOSPITALS:
        state = rehearsal.state_of(name)
        assert (state / "student.bundle").read_bytes() == sent
        assert any(
            "the study's student came: pate-fed hospital predict" in each.text for each in study.hospitals
        )
        [kept] = [event["kept"] for event in study.log(name) if event["event"] == "student"]
        assert kept == hashlib.sha256(sent).hexdigest()
        asks = rehearsal.start(
            f"{name} asks", "-c", NO_TORCH, "hospital", "predict", str(state), f"{name}.csv"
        )
        assert asks.wait() == 0, asks.text
        assert "class-sums, of 4 hospitals" in asks.text and "ε=3 at δ=1e-5 for one patient" in asks.text
        lines = (study.folder / f"{name}.predictions.csv").read_text(encoding="utf-8").splitlines()
        assert lines[0] == "row,no,yes,predicted" and len(lines) == 1 + 90


def test_without_public_inputs_hospitals_get_a_student_all_the_same(rehearsal: Any) -> None:
    ranges = "[data.table.ranges]\nage = [0, 100]\ndose = [-4, 4]\n[sums]\nrounds = 3\n[aggregation]"
    text = STUDY.replace('pool = "pool.csv"\nnum_queries = 60\n', "").replace("[aggregation]", ranges)
    study = SumStudy(rehearsal, text=text)
    (study.folder / "pool.csv").unlink()
    server = study.coordinator()
    assert server.wait() == 0, server.text + study.hospitals[0].text
    assert [party.wait(60) for party in study.hospitals] == [0] * 4
    entries = verify_run(study.folder / "run").chain.entries
    assert len(entries) == 5  # the first question, three rounds, and counts of held-out records
    assert entries[-1].event.mechanism.name == "score-counts-shares"
    metrics = json.loads((study.folder / "run" / "metrics.json").read_text(encoding="utf-8"))
    own = metrics["own_records"]["accuracy"]
    assert own is None or own["low"] <= own["share"] <= own["high"]  # of some 70 records, under their noise
    assert not (study.folder / "run" / "labels.npz").exists()
    for name in HOSPITALS:
        asks = rehearsal.start(
            f"{name} asks",
            "-c",
            NO_TORCH,
            "hospital",
            "predict",
            str(rehearsal.state_of(name)),
            f"{name}.csv",
        )
        assert asks.wait() == 0, asks.text
        [right] = [line for line in asks.text.splitlines() if line.startswith("accuracy: ")]
        assert float(right.split()[1]) > 65, asks.text  # noise of 3.0 on 360 records; chance is 50


def test_hospitals_sum_by_a_number_and_get_a_student_that_tells_it(rehearsal: Any) -> None:
    text = STUDY.replace('label = "ill"', 'label = "age"')
    text = text.replace('classes = ["no", "yes"]', "target_range = [0, 100]")
    text = text.replace('age = "number"\n', "").replace("age = [20, 40, 60, 90]\n", "")
    study = SumStudy(rehearsal, text=text)
    study.kill_at("after the row")
    server = study.coordinator()
    assert server.wait(300) == 0, server.text + study.hospitals[0].text
    assert [party.wait(60) for party in study.hospitals] == [0] * 4
    [entry] = verify_run(study.folder / "run").chain.entries
    assert (entry.event.asked, entry.event.mechanism.name) == (ASKED, "class-sums-shares")
    metrics = json.loads((study.folder / "run" / "metrics.json").read_text(encoding="utf-8"))
    assert metrics["target"]["what"] == "age from 0 to 100" and metrics["target"]["count"] > 0
    for name in HOSPITALS[:2]:
        state = str(rehearsal.state_of(name))
        asks = rehearsal.start(f"{name} asks", "-c", NO_TORCH, "hospital", "predict", state, f"{name}.csv")
        assert asks.wait() == 0 and "age: a number from 0 to 100" in asks.text, asks.text
        header, *lines = (study.folder / f"{name}.predictions.csv").read_text(encoding="utf-8").splitlines()
        assert header == "row,predicted" and len(lines) == 90
        assert all(0 <= float(line.split(",")[1]) <= 100 for line in lines)


def test_hospitals_sum_by_two_labels_and_get_a_student_that_tells_both(rehearsal: Any) -> None:
    text = STUDY.replace('label = "ill"\n', "").replace(
        'classes = ["no", "yes"]', 'labels = [["ill", ["no", "yes"]], ["sex", ["f", "m"]]]'
    )
    study = SumStudy(rehearsal, text=text.replace('sex = ["f", "m"]\n', ""))
    study.kill_at("after the row")
    server = study.coordinator()
    assert server.wait(300) == 0, server.text + study.hospitals[0].text
    assert [party.wait(60) for party in study.hospitals] == [0] * 4
    run = verify_run(study.folder / "run")
    [entry] = run.chain.entries
    mechanism: Any = entry.event.mechanism
    assert (mechanism.name, mechanism.num_classes) == ("class-sums-shares", 4)
    assert mechanism.squared_norm % 2 == 0  # of both labels
    metrics = json.loads((study.folder / "run" / "metrics.json").read_text(encoding="utf-8"))
    assert [each["label"] for each in metrics["by_label"]["each"]] == ["ill: yes", "sex: m"]
    for name in HOSPITALS[:2]:
        state = str(rehearsal.state_of(name))
        asks = rehearsal.start(f"{name} asks", "-c", NO_TORCH, "hospital", "predict", state, f"{name}.csv")
        assert asks.wait() == 0 and "by label: mean AUC" in asks.text, asks.text
        assert "labels, each with what yes means: ill: yes, sex: m" in asks.text
        header, *lines = (study.folder / f"{name}.predictions.csv").read_text(encoding="utf-8").splitlines()
        assert header == "row,ill: yes,sex: m" and len(lines) == 90
        assert all(0 <= float(share) <= 1 for line in lines for share in line.split(",")[1:])


def test_a_coordinator_that_is_killed_before_and_after_the_row_goes_on(rehearsal: Any) -> None:
    study = SumStudy(rehearsal)
    for moment in ("before the row", "after the row"):
        study.kill_at(moment)
    last = study.coordinator()
    assert last.wait(300) == 0, last.text
    assert study.check()["status"] == "success"


# The coordinator as it is, but its student cannot be tested, as with a library of another version.
BROKEN = """
import sys
from pate_fed.server import main
from server.kinds.base import StudyCourse
StudyCourse._measure_student = None
sys.exit(main(sys.argv[1:]))
"""


def test_a_coordinator_whose_student_fails_learns_from_the_sums_it_has(rehearsal: Any) -> None:
    study = SumStudy(rehearsal)
    options = ("--config", "study.toml", "--tls-dir", "authority", "--run-dir", "run")
    first = rehearsal.start("server", "-c", BROKEN, *options)
    assert first.wait() == 1, first.text
    assert "the same command with --run-dir run goes on with them" in first.text
    assert "FAILED  ε=3 δ=1e-5 unit=patient labels=60 " in first.last_line
    [entry] = verify_run(study.folder / "run").chain.entries
    assert [party.wait(60) for party in study.hospitals] == [1] * 4  # as the coordinator
    again = study.coordinator()
    again.wait_for("SUCCESS")  # without waiting for anyone
    study.hospitals = [study.join(name) for name in HOSPITALS]  # they heard of the failure alone
    assert again.wait(300) == 0, again.text
    assert [party.wait(60) for party in study.hospitals] == [0] * 4
    assert again.text.count("listening on") == 1  # the first one's, whose text is in the same file
    sent = (study.folder / "run" / "student.bundle").read_bytes()
    assert all((rehearsal.state_of(name) / "student.bundle").read_bytes() == sent for name in HOSPITALS)
    assert list(verify_run(study.folder / "run").chain.entries) == [entry]
    assert not (study.folder / "run" / "private").exists()


def test_hospitals_wait_for_a_coordinator_that_was_interrupted(rehearsal: Any) -> None:
    study = SumStudy(rehearsal, joined=3)
    first = study.coordinator()
    first.wait_for("3 of 4 connected")
    first.process.send_signal(signal.SIGINT)
    assert first.wait(60) == 130 and "the hospitals wait" in first.text, first.text
    for party in study.hospitals:
        party.wait_for("the coordinator ended before the study and may go on", 30)
    study.hospitals.append(study.join(HOSPITALS[3]))
    assert study.coordinator().wait(300) == 0
    assert study.check()["status"] == "success"


def test_a_hospital_among_invented_ones_gives_nothing(rehearsal: Any) -> None:
    """The other three run with keys that their coordinator made up under the names of real hospitals."""
    study = SumStudy(rehearsal, joined=0)
    policy = study.folder / "identity-north" / "policy.toml"
    for name in HOSPITALS[1:]:
        make_request(study.folder / f"real-{name}", name)  # whom north telephoned
    confirm_in(policy, {name: sum_fingerprint(study.folder / f"real-{name}") for name in HOSPITALS[1:]})
    hospitals = {name: study.join(name) for name in HOSPITALS}
    server = study.coordinator()
    assert hospitals["north"].wait(200) == 5, hospitals["north"].text
    assert server.wait(300) not in (0, 1), server.text
    text = " ".join(hospitals["north"].text.split())
    assert (
        "north: the coordinator says, since the admission: new key east=" in text
        and ", new key south=" in text
    )
    assert "2 of the other 3 must be confirmed as they are now, 0 are" in text
    assert "answered under masks" not in text
    assert "answered" not in [event["event"] for event in study.log("north")]
    told = server.text + (study.folder / "run" / "log.jsonl").read_text(encoding="utf-8")
    assert Refusal.POLICY_CONFIRMED.value in told  # from the fixed list, and nothing of why
    assert "another key" not in told


def test_hospitals_that_were_not_asked_for_exact_sums_refuse_them(rehearsal: Any) -> None:
    """Their default policy allows sums with their own noise alone; one that says no gives none at all."""
    folder: Path = rehearsal.folder
    rehearsal.write_tables(private=False, names=HOSPITALS)
    (folder / "study.toml").write_text(STUDY.replace('noise_at = "hospitals"\n', ""), encoding="utf-8")
    make_identities(folder)
    base = ("-m", "pate_fed.client", "--hospital", "north", "--data", "north.csv")
    north = rehearsal.start("north", *base, "--tls-dir", "identity-north")
    server = ("-m", "pate_fed.server", "--config", "study.toml", "--tls-dir", "authority", "--run-dir", "run")
    coordinator = rehearsal.start("server", *server, "--wait", "20")
    assert coordinator.wait() == 4, coordinator.text
    assert north.wait(60) == 5, north.text
    assert 'class_sums = "exact"' in north.text
