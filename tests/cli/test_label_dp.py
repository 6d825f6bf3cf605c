"""`pate-fed label-dp` from the outside: what it prints and writes, and every mistake with its code."""

from __future__ import annotations

import html
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pate_fed.cli.main import main

ROOT = Path(__file__).resolve().parents[2]


def _command(records: Path, *more: str) -> list[str]:
    files = ["--dataset", "files"]
    for option, part in (("", "train"), ("test-", "test")):
        for kind in ("images", "labels"):
            files += [f"--{option}{kind}", str(records / f"{part}-{kind}.npy")]
    method = more[more.index("--method") + 1] if "--method" in more else "randres+denoise-ssl"
    small = [] if method == "noise-cluster" else ["--epochs", "8"]
    small += ["--clusters", "6"] if "noise-cluster" in method or "denoise" in method else []
    small += ["--teachers", "4"] if method.startswith("pate-fm") else []
    return ["label-dp", *files, "--classes", "3", *small, *more]


@pytest.mark.parametrize("method", ["randres+normal", "noise-cluster", "alibi", "pate-fm"])
@pytest.mark.parametrize("change", [lambda labels: labels.clip(0, 1), lambda labels: labels * 0])
def test_which_classes_occur_decides_neither_whether_a_run_ends_nor_what_it_writes(
    records: Path, method: str, change: Callable[[np.ndarray], np.ndarray], capsys: pytest.CaptureFixture[str]
) -> None:
    # The rarest class may have one record. A run that refused the labels without it would tell, by having
    # released anything at all, that this record is there, whatever ε is.
    path, out = records / "train-labels.npy", records / "out"
    np.save(path, change(np.load(path)))
    small = ["--epochs", "1"] if method != "noise-cluster" else []
    assert main(_command(records, "--epsilon", "1", "--method", method, *small, "--out", str(out))) == 0
    error = capsys.readouterr().err.splitlines()[0]
    assert error.startswith("warning: class") and (" has no records" in error or " have no records" in error)
    assert np.load(out / "labels.npz")["label"].max() < 3
    assert "no records" not in (out / "metrics.json").read_text()


@pytest.mark.parametrize("method", ["randres+denoise-ssl", "noise-cluster", "lp-1st"])
def test_a_run_prints_its_promise_and_writes_what_was_released(
    records: Path, method: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = records / "out"
    more = ["--epsilon", "3", "--method", method, "--out", str(out), "--seed", "1"]
    assert main(_command(records, *more)) == 0
    said = capsys.readouterr()
    text, table = said.out.splitlines(), said.err.splitlines()
    delta = "1e-5" if method == "noise-cluster" else "0"
    assert text[-1].startswith(f"SUCCESS  ε=3 δ={delta} unit=label labels=240 accuracy=")
    assert text[-1].endswith(f"report={out / 'report.html'}")
    assert "not private: seeded noise" in text[0] and "one record's label replaced" in text[0]
    (private,) = [line for line in text if "not to be published" in line]
    assert "labels: " in private and " right (n 240, " in private and "majority " in private
    figures = json.loads((out / "metrics.json").read_text())
    assert {"study", "method", "labels", "student", "ε"} <= {line.split(" ")[0] for line in table}
    assert " n=" in text[-1] and any(line.startswith("  balanced ") for line in table)
    assert any(line.startswith("ε 3 of 3") for line in table)
    assert (
        sum(each["n"] for each in figures["accuracy"]["recall"].values()) == figures["accuracy"]["student_n"]
    )
    # Named clusters tell classes alone.
    report = (out / "report.html").read_text()
    assert ("The student's calibration" in html.unescape(report)) is (method != "noise-cluster")
    assert "The student's recall by class" in html.unescape(report)
    assert figures["privacy"]["unit"] == "label" and figures["privacy"]["private"] is False
    assert figures["accuracy"]["test"] == figures["accuracy"]["student"] > 0.5
    assert not any(name.endswith("_measured") for name in figures["figures"])
    # How many released labels are right is counted with the true ones: whoever knows all but one, knows it.
    assert all(path.stat().st_mode & 0o077 == 0 for path in out.iterdir())
    released = np.load(out / "labels.npz")["label"]
    assert released.shape == (240,)
    if method == "randres+denoise-ssl":
        assert 0 < figures["figures"]["kept_right_equation8"] <= 1
        assert 0 < figures["from_true_labels_do_not_publish"]["kept_right_measured"] <= 1
    if method != "randres+denoise-ssl":
        pictures = str(records / "test-images.npy")
        assert main(["predict", str(out / "student.ts"), pictures]) == 0
        assert len(capsys.readouterr().out.splitlines()) == 60


def test_noise_that_protects_is_the_default(records: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(_command(records, "--epsilon", "1", "--method", "lp-1st", "--format", "json")) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["status"], told["epsilon"], told["delta"], told["unit"]) == ("success", 1.0, 0.0, "label")
    (run_dir,) = (records / "runs").iterdir()
    assert (
        run_dir.name.startswith("label-dp-lp-1st-") and told["report"] == f"runs/{run_dir.name}/report.html"
    )
    figures = json.loads((run_dir / "metrics.json").read_text())
    assert figures["privacy"]["private"] is True and "CSPRNG" in figures["privacy"]["noise"]
    assert figures["seed"] is None and figures["privacy"]["delta"] == 0


def test_labels_at_hospitals_from_the_command_line(records: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = records / "out"
    more = ["--epsilon", "4", "--method", "noise-cluster", "--hospitals", "5", "--seed", "0"]
    assert main(_command(records, *more, "--out", str(out))) == 0
    said = capsys.readouterr()
    lines = said.out.splitlines()
    assert "summed under masks; not private: seeded noise" in lines[0]
    assert lines[1].startswith("hospitals: 5 of 5 answered, 4 were needed; the coordinator saw noisy counts")
    assert "getting ready: 5/5" in said.err and "noisy counts under masks: 20/20" in said.err
    figures = json.loads((out / "metrics.json").read_text())
    assert figures["hospitals"]["coordinator"]["epsilon"] == figures["privacy"]["epsilon"] <= 4
    assert figures["hospitals"]["left_out"] == [] and figures["hospitals"]["colluders"] == 1


@pytest.mark.slow  # studies on Ray are among the default tests, and take the same way
def test_ray_gives_the_same_labels_from_hospitals(records: Path) -> None:
    more = ["--epsilon", "3", "--method", "noise-cluster", "--hospitals", "4", "--seed", "3"]
    command = _command(records, *more, "--out", str(records / "inline"))
    assert main(command) == 0
    code = "import sys; from pate_fed.cli.main import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, *command[:-1], str(records / "ray"), "--backend", "ray"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "hospitals: 4 of 4 answered" in done.stdout
    inline, ray = (np.load(records / backend / "labels.npz")["label"] for backend in ("inline", "ray"))
    np.testing.assert_array_equal(inline, ray)


def test_hospitals_policies_end_a_study_below_its_quorum(
    records: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = records / "policy.toml"
    policy.write_text("epsilon_public = 0.5")
    more = ["--method", "lp-1st", "--hospitals", "5", "--policy", str(policy)]
    assert main(_command(records, "--epsilon", "1", *more)) == 4
    said = capsys.readouterr()
    error = said.err.splitlines()[-1]
    assert said.out.startswith("FAILED  ε=0 δ=0 unit=label labels=0 accuracy=- report=runs/label-dp-lp-1st-")
    assert "0 of 5 parties are ready to answer" in error and "too large an ε against the public" in error
    assert main(_command(records, "--epsilon", "0.5", *more)) == 0
    assert "labels after each hospital's own noise" in capsys.readouterr().out


@pytest.mark.parametrize("refusing", [5, 2])
def test_a_study_that_nobody_was_asked_in_leaves_who_was_left_out_and_cost_nothing(
    refusing: int,
    records: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from clients.hospital import Hospital
    from pate_fed.protocol.messages import Refusal

    join = Hospital.join

    def some(hospital: Hospital, request: Any) -> Any:
        refuses = int(hospital._site.party[-1]) < refusing
        return hospital.refuse(Refusal.POLICY_STUDY) if refuses else join(hospital, request)

    monkeypatch.setattr(Hospital, "join", some)
    out = records / "out"
    command = _command(records, "--epsilon", "1", "--method", "lp-1st", "--hospitals", "5", "--out", str(out))
    assert main(command) == 4
    told = capsys.readouterr().err.splitlines()
    assert told[-1].startswith("error: ")
    assert (out / "ledger.sqlite").exists() and not len(np.load(out / "labels.npz")["label"])
    figures = json.loads((out / "metrics.json").read_text())
    left_out = [each["hospital"] for each in figures["hospitals"]["left_out"]]
    assert left_out == [f"hospital-{number}" for number in range(refusing)]
    assert (figures["status"], figures["privacy"]["epsilon"]) == ("failed", 0.0)
    assert figures["hospitals"]["answered"] == 5 - refusing and "the quorum is 4" in figures["error"]
    monkeypatch.setattr(Hospital, "join", lambda hospital, _: hospital.refuse(Refusal.POLICY_STUDY))
    assert main(command) == 4
    assert json.loads((out / "metrics.json").read_text())["privacy"]["epsilon"] == 0.0
    capsys.readouterr()
    assert main(["ledger", "verify", str(out)]) == 0
    said = capsys.readouterr().out
    assert "whatever it knows of its own labels: " in said and "did not come to the study's end" in said
    monkeypatch.undo()
    monkeypatch.chdir(records)
    assert main(command) == 0
    again = json.loads((out / "metrics.json").read_text())
    assert again["status"] == "success"
    capsys.readouterr()
    assert main(command) == 2
    assert "holds a run that is finished" in capsys.readouterr().err
    assert json.loads((out / "metrics.json").read_text()) == again  # what was released stays accounted for


@pytest.mark.parametrize(
    ("change", "more", "message"),
    [
        (None, ["--epsilon", "0"], "--epsilon 0.0: must be"),
        (None, ["--epsilon", "-1"], "--epsilon -1.0: must be"),
        (None, ["--epsilon", "nan"], "--epsilon nan"),
        (None, ["--epsilon", "1", "--clusters", "2"], "--clusters 2: must be at least the 3 classes"),
        (None, ["--epsilon", "1", "--delta", "2", "--method", "noise-cluster"], "--delta 2.0"),
        (None, ["--epsilon", "1", "--method", "randres+denoise"], "did you mean randres+denoise-ssl"),
        (None, ["--epsilon", "1", "--network", "resnet"], "network is 'resnet'"),
        (None, ["--epsilon", "1", "--clusterer", "mine"], "--clusterer mine"),
        (None, ["--epsilon", "1", "--hospitals", "0"], "--num-clients 0"),
        (None, ["--epsilon", "0", "--hospitals", "5"], "--epsilon 0.0: must be"),
        (None, ["--epsilon", "1", "--hospitals", "3", "--method", "noise-cluster"], "--num-clients 3: a sum"),
        (None, ["--epsilon", "1", "--hospitals", "5", "--clusters", "2", "--method", "noise-cluster"],
         "--clusters 2: must be at least the 3 classes"),
        (None, ["--epsilon", "1", "--hospitals", "5", "--classes", "2"], "outside the classes: 0 to 1"),
        (None, ["--epsilon", "1", "--hospitals", "5", "--quorum", "0"], "--quorum 0.0: a share"),
        (None, ["--epsilon", "1", "--hospitals", "5", "--backend", "mpi"], "invalid choice: 'mpi'"),
        (None, ["--epsilon", "1", "--hospitals", "5", "--policy", "none.toml"], "--policy none.toml"),
        (None, ["--epsilon", "1", "--quorum", "1"], "--quorum 1.0: goes with --num-clients"),
        (None, ["--epsilon", "1", "--classes", "2"], "outside the classes: 0 to 1"),
        (None, ["--epsilon", "1", "--method", "pate-fm", "--teachers", "1"], "--teachers 1"),
        (lambda labels: labels - 1, ["--epsilon", "1"], "outside the classes"),
        (lambda labels: labels[:-1], ["--epsilon", "1"], "239 labels for 240 images"),
        (lambda labels: labels / 2, ["--epsilon", "1"], "whole numbers (n,)"),
    ],
)  # fmt: skip
def test_bad_input_ends_with_2_and_a_sentence(
    records: Path, change: object, more: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = records / "train-labels.npy"
    if change is not None:
        np.save(path, change(np.load(path)))  # type: ignore[operator]
    assert main(_command(records, *more)) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("error: ") and message in error
    assert not (records / "runs").exists()


def test_what_was_released_outlives_a_failed_test(
    records: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from pate_fed.kinds.label_dp.public import PublicInputs

    def broken(*_: object) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(PublicInputs, "probabilities", broken)
    command = ["--epsilon", "3", "--method", "lp-1st", "--seed", "1", "--epochs", "1"]
    assert main(_command(records, *command, "--out", str(records / "out"))) == 2
    assert "RuntimeError: out of memory" in capsys.readouterr().err.splitlines()[-1]
    assert np.load(records / "out" / "labels.npz")["label"].shape == (240,)
    figures = json.loads((records / "out" / "metrics.json").read_text())
    assert figures["privacy"]["epsilon"] == 3 and figures["accuracy"]["test"] is None
    assert (records / "out" / "student.ts").exists()


def test_an_interrupted_run_says_what_is_spent_and_goes_on(
    records: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    command = _command(records, "--epsilon", "1", "--method", "lp-1st", "--run-dir", "run")
    with monkeypatch.context() as patch:
        patch.setattr("pate_fed.kinds.label_dp.learners.train", interrupted)
        assert main(command) == 130
    said = capsys.readouterr()
    assert "interrupted; what was released is on the ledger" in said.err
    line = "ABORTED  ε=1 δ=0 unit=label labels=240 accuracy=- report=run/report.html"
    assert said.out.splitlines() == [line]
    assert json.loads((records / "run" / "metrics.json").read_text())["status"] == "aborted"
    assert main(command) == 0
    assert "SUCCESS  ε=1 δ=0 unit=label labels=240" in capsys.readouterr().out


@pytest.mark.parametrize("method", ["lp-1st", "noise-cluster"])
def test_keys_are_made_for_the_very_terms(
    records: Path, method: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from pate_fed.cli.terms import cost_text
    from pate_fed.identity import Authority
    from pate_fed.kinds.terms import Terms

    monkeypatch.chdir(records)
    command = ["label-dp", "--dataset", "files", "--images", "train-images.npy", "--classes", "3"]
    command += ["--hospitals", "4", "--method", method, "--epsilon", "2"]
    command += ["--clusters", "6"] if method == "noise-cluster" else []
    assert main([*command, "--init", "keys", "--address", "localhost:9999"]) == 0
    assert "--tls-dir keys" in capsys.readouterr().out
    terms = Terms.from_json(Authority(records / "keys").study.terms)
    words = "by cluster-counts, once; at δ=1e-5" if method == "noise-cluster" else "by randres, once; at δ=0"
    assert f"'label-dp': private labels {words} ε=2 against the public" in cost_text(terms.to_json())
    assert terms.pool_size == 240 and terms.privacy.epsilon == 2
    assert terms.secure_sum == (method == "noise-cluster") and terms.seed is None


def test_advice(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["label-dp", "--advise", "--epsilon", "1", "--classes", "10", "--records", "60000"]) == 0
    text = capsys.readouterr().out
    assert "--method randres+denoise-ssl" in text and "23.20 %" in text
    command = ["label-dp", "--advise", "--epsilon", "1", "--format", "json"]
    assert main([*command, "--classes", "10", "--records", "100"]) == 0
    assert json.loads(capsys.readouterr().out)["method"] == "noise-cluster"
    assert main(["label-dp", "--advise", "--epsilon", "0"]) == 2
    assert "--epsilon 0.0" in capsys.readouterr().err
