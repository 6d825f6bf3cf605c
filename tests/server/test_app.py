"""Whole studies on this machine: in one process, on Ray, interrupted and killed."""

from __future__ import annotations

import csv
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pate_fed.privacy import epsilon_of, total_cost, verify
from pate_fed.privacy.ledger.rows import digest_of
from pate_fed.privacy.ledger.terms import guaranteed_epsilon
from pate_fed.protocol.messages import VoteRequest
from pate_fed.report.log import read_result
from pate_fed.simulation import main
from server.federation import Federation
from server.state import Totals

ROOT = Path(__file__).resolve().parents[2]

TINY = """
[data.glyph]
classes = 3
private = 600
public = 300
[parties]
num_clients = 6
[teacher]
epochs = 2
[queries]
labels = 40
batch_size = 50
[student]
epochs = 2
"""


@pytest.fixture(scope="module")
def networks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study whose teachers are networks; one in one process and one on Ray are enough."""
    path = tmp_path_factory.mktemp("networks") / "study.toml"
    path.write_text(TINY, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with teachers that learn at once."""
    path = tmp_path_factory.mktemp("study") / "study.toml"
    path.write_text(TINY.replace("epochs = 2", 'name = "hog-linear"', 1), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def environment(cache: Path) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def _command(config: Path, run_dir: Path, *options: str) -> list[str]:
    base = [sys.executable, "-m", "pate_fed.simulation", "--config", str(config), "--run-dir", str(run_dir)]
    return [*base, "--device", "cpu", *options]


def _run(
    config: Path, environment: dict[str, str], run_dir: Path, *options: str
) -> subprocess.CompletedProcess[str]:
    command = _command(config, run_dir, *options)
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240)


@pytest.fixture(scope="module")
def inline(
    networks: Path, environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, subprocess.CompletedProcess[str]]:
    run_dir = tmp_path_factory.mktemp("inline") / "run"
    return run_dir, _run(networks, environment, run_dir, "--backend", "inline", "--seed", "7")


def test_an_inline_study_succeeds_and_leaves_everything(
    inline: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    run_dir, done = inline
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout.splitlines()[-1].startswith("SUCCESS  ε=")
    names = {path.name for path in run_dir.iterdir()}
    assert names >= {
        "study.toml",
        "ledger.sqlite",
        "labels.npz",
        "student.pt",
        "report.html",
        "log.jsonl",
        "metrics.json",
    }
    assert not {name for name in names if "teacher" in name or name.endswith(".part")}
    metrics = json.loads((run_dir / "metrics.json").read_text(encoding="utf-8"))
    assert metrics["status"] == "success"
    assert metrics["num_clients"] == metrics["num_teachers"] == 6
    assert 0 < metrics["queries_answered"] <= 40
    assert metrics["privacy"]["coordinator"]["epsilon"] is None
    assert metrics["privacy"]["student"]["data_independent"] > 0
    assert metrics["accuracy"]["ensemble"] is not None
    assert metrics["seconds"]["total"] >= metrics["seconds"]["teach"] > 0


def test_labels_ledger_and_metrics_agree(inline: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    run_dir, _ = inline
    report = verify(run_dir / "ledger.sqlite")
    metrics = json.loads((run_dir / "metrics.json").read_text(encoding="utf-8"))
    with np.load(run_dir / "labels.npz") as labels:
        assert labels["index"].tolist() == list(range(report.asked))
        assert int(labels["answered"].sum()) == report.answered == metrics["queries_answered"]
        assert ((labels["label"] >= 0) == labels["answered"]).all()
    assert report.asked == metrics["queries_asked"]
    promised = guaranteed_epsilon(report.chain.terms)
    assert promised is not None
    assert metrics["privacy"]["student"]["data_independent"] == pytest.approx(promised, abs=1e-5)
    assert metrics["privacy"]["student"]["data_independent"] >= promised > report.epsilon


def test_teachers_vote_on_what_was_asked_and_on_the_test_inputs(
    inline: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    events = [json.loads(line) for line in (inline[0] / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    study = next(event for event in events if event["event"] == "study")
    *asked, measured = [event["queries"] for event in events if event["event"] == "vote"]
    assert 0 < sum(asked) <= study["terms"]["max_queries"] and measured == study["test_size"] > 0
    assert sum(asked) + measured < study["terms"]["pool_size"]


def test_epsilon_is_shown_along_the_run(inline: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    run_dir, _ = inline
    spent, report = read_result(run_dir).spending, verify(run_dir / "ledger.sqlite")
    assert spent is not None
    assert len(spent.asked) > len(report.chain.entries)
    assert (spent.asked[-1], spent.answered[-1]) == (report.asked, report.answered)
    assert spent.epsilon[-1] == pytest.approx(report.epsilon, rel=1e-6)
    assert list(spent.epsilon) == sorted(spent.epsilon)


def test_seeded_noise_is_called_not_private(inline: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    run_dir, _ = inline
    assert "not private: seeded noise" in (run_dir / "report.html").read_text(encoding="utf-8")


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

    def remember(federation: Federation, question: VoteRequest, *, task: str) -> Totals:
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


def test_the_installed_package_has_all_it_needs(
    inline: tuple[Path, subprocess.CompletedProcess[str]], environment: dict[str, str], tmp_path: Path
) -> None:
    """From another directory, so that what was installed is used and not the checkout."""
    command = [sys.executable, "-m", "pate_fed.cli", "report", str(inline[0]), "--publishable"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    assert "wrote" in done.stdout
    code = "import pate_fed.flower; pate_fed.flower.prepare_environment(); import clients.app, server.app"
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, check=True, timeout=120)


def test_ray_gives_the_same_labels_for_the_same_seed(
    inline: tuple[Path, subprocess.CompletedProcess[str]],
    networks: Path,
    environment: dict[str, str],
    tmp_path: Path,
) -> None:
    run_dir, _ = inline
    done = _run(networks, environment, tmp_path / "run", "--backend", "ray", "--seed", "7", "--quiet")
    assert done.returncode == 0, done.stderr
    with np.load(run_dir / "labels.npz") as ours, np.load(tmp_path / "run" / "labels.npz") as theirs:
        for name in ("index", "answered", "label"):
            np.testing.assert_array_equal(ours[name], theirs[name])
    # Evaluation totals over the whole pool are equal too, as far as the two accuracies can tell.
    first, second = (
        json.loads((path / "metrics.json").read_text(encoding="utf-8"))["accuracy"]
        for path in (run_dir, tmp_path / "run")
    )
    assert first == second
    assert done.stderr == "warning: with --seed the noise can be repeated, so it protects nobody\n"
    assert len(done.stdout.splitlines()) == 1


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


def test_json_and_an_unreachable_threshold(
    here: Callable[..., int], config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing answered is the user's matter, and what was asked is still paid for and reported."""
    run_dir = tmp_path / "run"
    options = ["--threshold", "1000", "--max-queries", "20", "--format", "json"]
    code = here("--config", str(config), "--run-dir", str(run_dir), *options)
    out, err = capsys.readouterr()
    assert code == 2
    outcome = json.loads(out.splitlines()[-1])
    assert (outcome["status"], outcome["labels"]) == ("failed", 0)
    assert outcome["epsilon"] > 0
    assert "--threshold" in err
    assert verify(run_dir / "ledger.sqlite").asked == 20


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
    ("aggregator", "strategy"), [("interactive-gnmax", "random"), ("confident-gnmax", "binary-experts")]
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
        assert digest_of(said["probabilities"], said["scores"]) == last.predictions
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
    noise = ["--sigma2", "40", "--sigma1", "40", "--threshold", "0"]
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
    noise = ["--sigma2", "40", "--sigma1", "40", "--threshold", "0", "--epsilon", "2", "--quiet"]
    asked = []
    for options in ([], ["--sanitise"]):
        run_dir = tmp_path / f"run{len(asked)}"
        assert (
            here("--config", str(config), "--run-dir", str(run_dir), "--labels", "300", *noise, *options) == 0
        )
        report = verify(run_dir / "ledger.sqlite")
        assert report.epsilon <= 2
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

    monkeypatch.setattr("server.app.analysts_epsilon", fail)
    run_dir = tmp_path / "run"
    assert here("--config", str(config), "--run-dir", str(run_dir), "--quiet") == 1
    assert "no figure today" in capsys.readouterr().err
    report = verify(run_dir / "ledger.sqlite")
    metrics = json.loads((run_dir / "metrics.json").read_text(encoding="utf-8"))
    assert metrics["privacy"]["student"]["data_independent"] >= report.epsilon > 0
    assert read_result(run_dir).outcome.privacy.spent == report.epsilon
    assert metrics["privacy"]["student"]["data_dependent_do_not_publish"] is None


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


def test_of_two_runs_at_once_one_gets_the_directory(
    config: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    both = [_start(config, environment, run_dir, "--quiet") for _ in range(2)]
    ended = [(process.communicate(timeout=120), process.returncode) for process in both]
    assert sorted(code for _, code in ended) == [0, 2], ended
    loser = next(err for (_, err), code in ended if code == 2)
    assert "--run-dir" in loser
    assert "Traceback" not in loser
    assert verify(run_dir / "ledger.sqlite").answered > 0


def test_several_teachers_a_client_and_a_whole_hospital_protected(
    here: Callable[..., int], config: Path, tmp_path: Path
) -> None:
    study = config.read_text(encoding="utf-8") + '\n[privacy]\nunit = "hospital"\n'
    (tmp_path / "study.toml").write_text(study, encoding="utf-8")
    epsilons = []
    for path in (tmp_path / "study.toml", config):
        run_dir = tmp_path / f"run{len(epsilons)}"
        options = ["--teachers-per-client", "2", "--partition", "dirichlet:1", "--quiet", "--seed", "3"]
        assert here("--config", str(path), "--run-dir", str(run_dir), *options) == 0
        metrics = json.loads((run_dir / "metrics.json").read_text(encoding="utf-8"))
        assert metrics["num_teachers"] == 12
        epsilons.append(metrics["privacy"]["student"]["data_independent"])
    assert epsilons[0] > 1.9 * epsilons[1]  # two votes move instead of one


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


def _start(config: Path, environment: dict[str, str], run_dir: Path, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        _command(config, run_dir, "--backend", "inline", *options),
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _wait_for(path: Path, seconds: float = 180) -> None:
    end = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < end, f"{path} did not appear"
        time.sleep(0.02)


def test_ctrl_c_ends_cleanly_with_what_was_spent(
    config: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    process = _start(config, environment, run_dir, "--student-epochs", "100000")
    _wait_for(run_dir / "ledger.sqlite")
    end = time.monotonic() + 60
    while '"event": "epoch"' not in (run_dir / "log.jsonl").read_text(encoding="utf-8"):
        assert time.monotonic() < end
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=180)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert out.splitlines()[-1].startswith("ABORTED  ε=")
    metrics = json.loads((run_dir / "metrics.json").read_text(encoding="utf-8"))
    assert metrics["status"] == "aborted"
    assert metrics["privacy"]["student"]["data_independent"] > 0
    assert verify(run_dir / "ledger.sqlite").answered == metrics["queries_answered"] > 0
    assert metrics["accuracy"]["student"] is None


def _releases(run_dir: Path) -> list[dict[str, int]]:
    log = run_dir / "log.jsonl"
    lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
    found = [line for line in lines if line.startswith('{"event": "release"') and line.endswith("}")]
    return [json.loads(line) for line in found]


def test_killed_at_any_moment_the_ledger_holds_every_label(
    config: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    """Small batches, so that many kills fall between a vote, its ledger row and its use."""
    small = config.read_text(encoding="utf-8").replace("batch_size = 50", "batch_size = 3")
    (tmp_path / "study.toml").write_text(small, encoding="utf-8")
    moments = random.Random(20)
    for attempt in range(3):
        run_dir = tmp_path / f"run{attempt}"
        process = _start(tmp_path / "study.toml", environment, run_dir, "--labels", "300")
        _wait_for(run_dir / "ledger.sqlite")
        wanted, end = moments.randint(attempt, 25), time.monotonic() + 60
        while len(_releases(run_dir)) < wanted:
            assert time.monotonic() < end
        time.sleep(moments.uniform(0, 0.02))
        process.kill()
        process.communicate(timeout=180)
        report, released = verify(run_dir / "ledger.sqlite"), _releases(run_dir)
        assert len(released) >= wanted  # so the test could have failed
        assert report.asked >= sum(line["asked"] for line in released)
        assert report.answered >= sum(line["answered"] for line in released)
        assert not (run_dir / "labels.npz").exists()  # it was killed before the end


TABLE = """
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
"""


def _write_table(path: Path, values: np.ndarray) -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["x", "y"], *([x, "yes" if x > 10 else "no"] for x in values)])


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
    assert metrics["accuracy"]["ensemble"] is not None  # the repeated places are voted on to measure alone
