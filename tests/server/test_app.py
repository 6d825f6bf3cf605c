"""Whole studies in this process."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pate_fed import server as server_command
from pate_fed import simulate
from pate_fed.cli.sweep import combine
from pate_fed.config.study import load_study
from pate_fed.errors import InputError
from pate_fed.privacy import epsilon_of, total_cost, verify
from pate_fed.privacy.ledger.rows import digest_of
from pate_fed.privacy.ledger.terms import guaranteed_epsilon
from pate_fed.protocol.messages import Question
from pate_fed.report.log import read_result
from pate_fed.simulation import main
from server.federation import Federation
from server.state import Totals


def _spellings(totals: np.ndarray) -> list[bytes]:
    """How a few rows of totals would look in a file."""
    few = totals[:6]
    raw = [few.astype(kind).tobytes() for kind in ("<i8", "<i4", "<i2", "u1", "<f8", "<f4")]
    rows = few.tolist()
    texts = [
        json.dumps(rows),
        json.dumps(rows, separators=(",", ":")),
        str(few),
        json.dumps(few.ravel().tolist()),
    ]
    return [*raw, *(text.encode() for text in texts)]


def test_no_private_vote_is_in_the_run_directory(
    here: Callable[..., int], config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[np.ndarray] = []

    def remember(federation: Federation, question: Question, *, task: str) -> Totals:
        totals = collect(federation, question, task=task)
        seen.append(totals.value)
        return totals

    collect = Federation.collect
    monkeypatch.setattr(Federation, "collect", remember)
    run_dir = tmp_path / "run"
    assert here("--config", str(config), "--run-dir", str(run_dir), "--quiet") == 0
    np.save(run_dir / "leak.npy", seen[0])  # so that the search is seen to find one
    found = [
        path.name
        for path in run_dir.iterdir()
        for totals in seen
        if any(text in path.read_bytes() for text in _spellings(totals))
    ]
    assert found == ["leak.npy"]


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """The command inside this process, which has Flower and torch loaded already."""
    monkeypatch.setenv("PATE_FED_SITE", "")  # the command sets it; the fixture takes it away again
    return lambda *command: main([*command, "--device", "cpu", "--backend", "inline"])


def test_a_budget_stops_before_it_is_passed(
    here: Callable[..., int], config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = tmp_path / "run"
    code = here("--config", str(config), "--run-dir", str(run_dir), "--epsilon", "60", "--quiet")
    out, err = capsys.readouterr()
    assert (code, err) == (0, "")
    assert len(out.splitlines()) == 1
    metrics = json.loads((run_dir / "metrics.json").read_text(encoding="utf-8"))
    assert 0 < metrics["privacy"]["student"]["data_independent"] <= 60
    assert metrics["queries_answered"] < 40
    assert "not private" not in (run_dir / "report.html").read_text(encoding="utf-8")


def test_json_and_a_threshold_that_nothing_passes(
    here: Callable[..., int], config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing answered is the user's matter, and what was asked is still paid for and reported."""
    run_dir = tmp_path / "run"
    options = ["--threshold", "26", "--sigma1", "5", "--seed", "5"]
    options += ["--labels", "20", "--max-queries", "20", "--format", "json"]
    code = here("--config", str(config), "--run-dir", str(run_dir), *options)
    out, err = capsys.readouterr()
    assert code == 2
    outcome = json.loads(out.splitlines()[-1])
    assert (outcome["status"], outcome["labels"]) == ("failed", 0)
    assert outcome["epsilon"] > 0
    assert "--threshold" in err
    assert verify(run_dir / "ledger.sqlite").asked == 20


def test_a_guarantee_that_means_nothing_is_refused_and_a_meant_one_told_first(
    here: Callable[..., int], config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    strict = tmp_path / "study.toml"
    strict.write_text(config.read_text(encoding="utf-8").replace("allow_weak = true", ""), encoding="utf-8")
    command = ["--config", str(strict), "--run-dir", str(tmp_path / "run")]
    assert here(*command) == 2 == here(*command, "--seed", "1")  # seeded noise changes no ε
    out, err = capsys.readouterr()
    assert out.splitlines()[0].startswith("FAILED  ε=0")
    assert "6 teachers are too few for a useful vote" in err and "--allow-weak-privacy" in err
    assert not (tmp_path / "run").exists()
    assert here(*command, "--epsilon", "9", "--sigma2", "20") == 0
    lines = capsys.readouterr().err.splitlines()
    told = next(number for number, line in enumerate(lines) if line.startswith("guaranteed: ε="))
    assert "δ=1e-5 for one record" in lines[told]
    assert told < next(number for number, line in enumerate(lines) if line.startswith("teaching"))
    assert here(*command[:2], "--run-dir", str(tmp_path / "weak"), "--allow-weak-privacy", "--quiet") == 0


@pytest.mark.parametrize("aggregator", ["gnmax", "lnmax"])
def test_other_mechanisms_answer_everything(
    aggregator: str, here: Callable[..., int], config: Path, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    options = ["--aggregator", aggregator, "--sigma2", "3", "--student", "supervised", "--quiet"]
    assert here("--config", str(config), "--run-dir", str(run_dir), *options) == 0
    metrics = json.loads((run_dir / "metrics.json").read_text(encoding="utf-8"))
    assert metrics["queries_asked"] == metrics["queries_answered"] == 40
    figures = metrics["privacy"]["student"]
    assert 0 < figures["data_dependent_do_not_publish"] <= figures["data_independent"]
    assert verify(run_dir / "ledger.sqlite").answered == 40


@pytest.mark.parametrize(
    ("aggregator", "strategy"), [("interactive-gnmax", "random"), ("confident-gnmax", "least-confident")]
)
def test_a_student_of_the_first_round_shapes_the_second(
    aggregator: str, strategy: str, here: Callable[..., int], config: Path, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    noise = ["--threshold", "3", "--sigma1", "1", "--sigma2", "1", "--student", "supervised", "--quiet"]
    options = ["--aggregator", aggregator, "--query-strategy", strategy, *noise]
    assert here("--config", str(config), "--run-dir", str(run_dir), *options) == 0
    report = verify(run_dir / "ledger.sqlite")
    by_round = [entry.provenance for entry in report.chain.entries]
    assert by_round[0] is None
    last = by_round[-1]
    assert last is not None and (last.round, last.strategy) == (2, strategy)
    assert last.learnt_to in {entry.hash for entry in report.chain.entries[:-1]}
    with np.load(run_dir / "round-2.npz") as said:
        assert digest_of(said["probabilities"]) == last.predictions
    with np.load(run_dir / "labels.npz") as labels:
        assert len(np.unique(labels["index"])) == report.asked
        if aggregator == "interactive-gnmax":
            assert labels["reinforced"].shape == labels["label"].shape
            assert not ((labels["reinforced"] >= 0) & labels["answered"]).any()
    text = (run_dir / "report.html").read_text(encoding="utf-8")
    assert "in 2 rounds" in text and (strategy == "random" or strategy in text)
    # However the mechanisms share the caps, the promise is that of one of them.
    one = report.chain.terms.mechanisms[:1]
    assert guaranteed_epsilon(report.chain.terms) == guaranteed_epsilon(
        replace(report.chain.terms, mechanisms=one)
    )
    figures = json.loads((run_dir / "metrics.json").read_text(encoding="utf-8"))["privacy"]["student"]
    assert 0 < figures["data_dependent_do_not_publish"] <= figures["data_independent"]


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (["--aggregator", "interactive-gnmax", "--rounds", "1"], "at least 2"),
        (["--query-strategy", "least-confident", "--rounds", "1"], "at least 2"),
        (["--rounds", "3"], "--query-strategy"),
        (["--query-strategy", "least-sure"], "least-confident"),
        (["--aggregator", "interactive-gnmax", "--sanitise"], "--sanitise"),
        (["--aggregator", "interactive-gnmax", "--secure-sum", "--noise-at", "hospitals"], "confident-gnmax"),
    ],
)
def test_rounds_that_make_no_sense_are_refused(
    options: list[str],
    word: str,
    here: Callable[..., int],
    config: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert here("--config", str(config), "--run-dir", str(tmp_path / "run"), *options) == 2
    assert word in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_sanitised_epsilon_is_released_where_the_terms_allow_it(
    here: Callable[..., int], config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = tmp_path / "run"
    base = ["--config", str(config), "--run-dir", str(run_dir), "--sanitise", "--quiet"]
    assert here(*base) == 2  # six teachers: noise of 0.96 votes is too little for smooth sensitivity
    assert "--sanitise" in capsys.readouterr().err
    assert not run_dir.exists()
    noise = ["--sigma2", "40", "--sigma1", "40", "--threshold", "1"]
    assert here(*base, *noise) == 0
    report = verify(run_dir / "ledger.sqlite")
    assert report.chain.terms.sanitise is not None
    figures = json.loads((run_dir / "metrics.json").read_text(encoding="utf-8"))["privacy"]["student"]
    promised = guaranteed_epsilon(report.chain.terms)
    assert promised is not None
    assert figures["data_independent"] == pytest.approx(promised, abs=1e-5)
    # The labels without the released figure cost less, and by at least the release's own RDP.
    labels = epsilon_of(total_cost(entry.event for entry in report.chain.entries), 1e-5)
    assert report.epsilon >= labels + float(report.chain.terms.reserved.flat)
    assert 0 < figures["sanitised"] < 2 * figures["data_independent"]


def test_a_sanitised_epsilon_counts_against_the_budget(
    here: Callable[..., int], config: Path, tmp_path: Path
) -> None:
    noise = ["--sigma2", "16", "--sigma1", "16", "--threshold", "1", "--epsilon", "5", "--quiet"]
    asked = []
    for options in ([], ["--sanitise"]):
        run_dir = tmp_path / f"run{len(asked)}"
        assert (
            here("--config", str(config), "--run-dir", str(run_dir), "--labels", "300", *noise, *options) == 0
        )
        report = verify(run_dir / "ledger.sqlite")
        assert report.epsilon <= 5
        asked.append(report.asked)
    assert 0 < asked[1] < asked[0]


def test_a_figure_that_fails_hides_no_spend(
    here: Callable[..., int],
    config: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object, **__: object) -> float:
        raise OverflowError("no figure today")

    monkeypatch.setattr("server.kinds.votes.analysts_epsilon", fail)
    run_dir = tmp_path / "run"
    assert (
        here("--config", str(config), "--run-dir", str(run_dir), "--quiet") == 2
    )  # as code of the user's own
    assert "no figure today" in capsys.readouterr().err
    report = verify(run_dir / "ledger.sqlite")
    metrics = json.loads((run_dir / "metrics.json").read_text(encoding="utf-8"))
    assert metrics["privacy"]["student"]["data_independent"] >= report.epsilon > 0
    assert read_result(run_dir).outcome.privacy.spent == report.epsilon
    assert metrics["privacy"]["student"]["data_dependent_do_not_publish"] is None


def test_a_success_that_cannot_be_told_is_none(
    here: Callable[..., int],
    config: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A disk that fills up at the very end: whoever reads metrics.json must hear that there is none."""
    run_dir = tmp_path / "run"

    def in_the_way(*_: object) -> None:
        (run_dir / "metrics.json").mkdir()  # nobody can write there, root neither
        raise InputError(f"{run_dir / 'report.html'}: cannot be written (No space left on device)")

    monkeypatch.setattr("server.base.write_report", in_the_way)
    command = ["--config", str(config), "--run-dir", str(run_dir), "--quiet", "--format", "json"]
    assert here(*command) == 2
    out, err = capsys.readouterr()
    outcome = json.loads(out.splitlines()[-1])
    assert outcome["status"] == "failed" and "metrics.json" in outcome["reason"] and outcome["epsilon"] > 0
    assert f"error: {run_dir / 'metrics.json'}: cannot be written" in err and "on the ledger" in err
    assert "warning: " in err and "report.html" in err
    assert verify(run_dir / "ledger.sqlite").answered == outcome["labels"] > 0


def test_ctrl_c_before_the_study_begins(
    here: Callable[..., int],
    config: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("server.app.load_study_data", interrupted)
    assert here("--config", str(config), "--run-dir", str(tmp_path / "run")) == 130
    assert capsys.readouterr().out.splitlines()[-1].startswith("ABORTED  ε=0")
    assert not (tmp_path / "run").exists()


def test_several_teachers_a_client_and_a_whole_hospital_protected(
    here: Callable[..., int], config: Path, tmp_path: Path
) -> None:
    study = config.read_text(encoding="utf-8").replace("[privacy]", '[privacy]\nunit = "hospital"')
    (tmp_path / "study.toml").write_text(study, encoding="utf-8")
    epsilons = []
    for path in (tmp_path / "study.toml", config):
        run_dir = tmp_path / f"run{len(epsilons)}"
        options = ["--teachers-per-client", "4", "--partition", "dirichlet:1", "--quiet", "--seed", "3"]
        assert here("--config", str(path), "--run-dir", str(run_dir), *options) == 0
        metrics = json.loads((run_dir / "metrics.json").read_text(encoding="utf-8"))
        assert metrics["num_teachers"] == 24
        epsilons.append(metrics["privacy"]["student"]["data_independent"])
    assert epsilons[0] > 1.9 * epsilons[1]  # four votes move instead of two


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--epsilon", "0.001"], ["--epsilon 0.001", "not even one query"]),
        (["--num-clients", "601"], ["--num-clients 601", "600 private records"]),
        (["--num-clients", "300", "--teachers-per-client", "3"], ["900 teachers"]),
        (["--max-queries", "301"], ["--max-queries 301"]),
        (["--threshold", "1e30"], ["--threshold 1e30", "-1e9 to 1e9"]),
        (["--threshold", "3", "--aggregator", "gnmax"], ["--threshold 3 would have no effect", "gnmax"]),
        (["--student", "encoder-head", "--student-epochs", "9"], ["--student-epochs 9", "learns at once"]),
        (["--sigma1", "3", "--aggregator", "lnmax"], ["--sigma1 3 would have no effect", "lnmax"]),
        (
            ["--sigma1", "3", "--secure-sum", "--noise-at", "hospitals"],
            ["--sigma1 3", "in the totals already"],
        ),
        (["--sigma2", "1e300"], ["--sigma2", "1e-6 to 1e9"]),
        (["--sanitise", "--seed", "1"], ["--sanitise with --seed"]),
        (
            ["--partition", "dirichlet:0.001", "--teachers-per-client", "3"],
            ["dirichlet:0.001", "fewer teachers"],
        ),
        (["--dataset", "mnist", "--data-dir", "/nowhere"], ["/nowhere"]),
        (["--run-dir", "/proc/run"], ["--run-dir /proc/run"]),
    ],
)
def test_what_only_the_data_can_tell_is_told_before_anything_is_written(
    options: list[str],
    words: list[str],
    here: Callable[..., int],
    config: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert here("--config", str(config), "--run-dir", str(tmp_path / "run"), *options) == 2
    out, err = capsys.readouterr()
    assert out.splitlines()[-1].startswith("FAILED  ε=0")
    for word in words:
        assert word in err
    assert not (tmp_path / "run").exists()


TABLE = """
[privacy]
allow_weak = true
[parties]
num_clients = 4
[data]
dataset = "table"
pool = "pool.csv"
private = ["a.csv", "b.csv", "c.csv", "d.csv"]
num_queries = 30
[data.table]
label = "y"
classes = ["no", "yes"]
columns = { x = "number" }
[teacher]
name = "random-forest"
trees = 3
[aggregation]
aggregator = "gnmax"
sigma2 = 0.5
[queries]
labels = 30
max_queries = 30
batch_size = 8
[student]
name = "forest"
trees = 10
"""


def _write_table(path: Path, values: np.ndarray) -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["x", "y"], *([x, "yes" if x > 10 else "no"] for x in values)])


@pytest.mark.parametrize("private", ["", "private = []\n"], ids=["left out", "none"])
def test_a_simulation_of_a_real_study_lacks_the_parties_files(
    private: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _write_table(tmp_path / "pool.csv", np.arange(40))
    config, run_dir = tmp_path / "study.toml", tmp_path / "run"
    text = re.sub(r"private = .*\n", private, TABLE)
    config.write_text(text, encoding="utf-8")
    told = "data.private: names no files; one a party, --num-clients 4, is meant in a simulation"
    for option in ("--quiet", "--dry-run"):
        assert main(["--config", str(config), "--run-dir", str(run_dir), option]) == 2
        assert told in capsys.readouterr().err
    for wrong in (
        lambda: simulate(config, run_dir=run_dir, quiet=True),
        lambda: combine(load_study(config), [], seeds=2, where=str(config)),
    ):
        with pytest.raises(InputError, match="names no files"):
            wrong()
    assert not run_dir.exists()
    # Hospitals of their own bring theirs.
    assert server_command.main(["--config", str(config), "--insecure", "--dry-run"]) == 0


@pytest.mark.parametrize("options", [["--secure-sum"], []], ids=["masked", "plain"])
def test_a_study_asks_about_each_input_once_and_ends(options: list[str], tmp_path: Path) -> None:
    pool = np.tile(np.arange(20), 2)  # places 20 to 39 repeat 0 to 19; 30 to 39 only test
    _write_table(tmp_path / "pool.csv", pool)
    for name in "abcd":
        _write_table(tmp_path / f"{name}.csv", np.arange(20))
    (tmp_path / "study.toml").write_text(TABLE, encoding="utf-8")
    run_dir = tmp_path / "run"
    command = ["--config", str(tmp_path / "study.toml"), "--run-dir", str(run_dir), "--quiet"]
    assert main([*command, "--backend", "inline", "--seed", "3", *options]) == 0
    with np.load(run_dir / "labels.npz") as labels:
        assert sorted(labels["index"].tolist()) == list(range(20))
    metrics = json.loads((run_dir / "metrics.json").read_text(encoding="utf-8"))
    assert metrics["queries_asked"] == metrics["queries_answered"] == 20
    assert (
        metrics["accuracy_do_not_publish"]["ensemble"] is not None
    )  # the repeated places are voted on to measure alone
