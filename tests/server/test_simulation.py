"""A whole study as a command: in one process, on Ray with the same labels, and from another directory."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pate_fed.privacy import verify
from pate_fed.privacy.ledger.terms import guaranteed_epsilon
from pate_fed.report.log import read_result
from pate_fed.simulation import main

ROOT = Path(__file__).resolve().parents[2]

# `flower-simulation`, of whose Ray the coordinator's side writes down what happens to it.
COMMAND = """
from pate_fed.runtime import isolation
import json, os, signal, subprocess, sys, time
from pathlib import Path
import psutil
from pate_fed.flower import prepare_environment
prepare_environment()
from flwr.app import Message
from flwr.serverapp import ServerApp
from pate_fed import simulation
from pate_fed.flower import engine
from pate_fed.flower.records import from_flower, to_flower

joining = "import ray, sys; ray.init(address=sys.argv[1]); print('joined')"
run_apps, seen, facts = engine.run_apps, [], {}

def join(address, token):
    base = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")}
    known = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token} if token else {}
    if token != os.environ["RAY_AUTH_TOKEN"]:
        known["RAY_NUM_REDIS_GET_RETRIES"] = "2"  # a stranger is not tried for 20 seconds
    return subprocess.Popen(
        [sys.executable, "-c", joining, address],
        env={**base, **known},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )

def probe(grid):
    import ray
    os.killpg(0, signal.SIGTERM)
    begun = time.monotonic()
    address, token = ray.get_runtime_context().gcs_address, os.environ["RAY_AUTH_TOKEN"]
    tried = {name: join(address, key) for name, key in (("none", ""), ("wrong", "0" * 64), ("own", token))}
    [reply] = grid.send_and_receive([Message(to_flower({}), list(grid.get_node_ids())[0], "query.path")])
    facts["path"] = from_flower(reply.content)["path"].split(os.pathsep)
    facts["joined"] = {name: "joined" in child.communicate(timeout=60)[0] for name, child in tried.items()}
    shown = " ".join(" ".join(each.info["cmdline"] or []) for each in psutil.process_iter(["cmdline"]))
    session = Path(ray._private.worker._global_node.get_session_dir_path())
    files = [file for file in session.rglob("*") if file.is_file()]
    facts["token shown"] = token in shown or any(token.encode() in file.read_bytes() for file in files)
    facts["files"] = len(files)
    time.sleep(max(0, begun + 4 - time.monotonic()))  # one second more than Ray's patience with SIGTERM

def watched(server_app, load_client, **named):
    app, client = ServerApp(), load_client()

    @client.query("path")
    def path(message, context):
        return Message(to_flower({"path": os.pathsep.join(sys.path)}), reply_to=message)

    @app.main()
    def main(grid, context):
        probe(grid)
        server_app(grid, context)

    stopping = signal.signal(signal.SIGTERM, lambda number, _: seen.append(number))
    run_apps(app, lambda: client, **named)
    signal.signal(signal.SIGTERM, stopping)
    facts["signals"] = len(seen)
    facts["token after"] = os.environ["RAY_AUTH_TOKEN"]

os.environ["RAY_AUTH_TOKEN"] = "the user's own"
engine.run_apps = watched
code = simulation.main()
Path("facts.json").write_text(json.dumps(facts))
sys.exit(code)
"""


@pytest.fixture(scope="module")
def inline(
    networks: Path, cache: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """The command in this process, which has the libraries loaded; on Ray it has one of its own."""
    run_dir, out, err = tmp_path_factory.mktemp("inline") / "run", io.StringIO(), io.StringIO()
    command = ["--config", str(networks), "--run-dir", str(run_dir), "--device", "cpu"]
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setenv("PATE_FED_SITE", "")  # the command sets it; the fixture takes it away again
        code = main([*command, "--backend", "inline", "--seed", "7"])
    return run_dir, subprocess.CompletedProcess(command, code, out.getvalue(), err.getvalue())


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
        "student.ts",
        "seal.json",
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
    assert metrics["accuracy_do_not_publish"]["ensemble"] is not None
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
    votes = [event for event in events if event["event"] == "vote"]
    asked, measured = (sum(event[name] for event in votes) for name in ("queries", "measured"))
    assert 0 < asked <= study["terms"]["asks"]["max_queries"] and measured == study["test_size"] > 0
    assert asked + measured < study["terms"]["pool_size"]
    assert votes[0]["measured"] == measured  # with the first question, and never again
    metrics = json.loads((inline[0] / "metrics.json").read_text(encoding="utf-8"))
    assert metrics["accuracy_do_not_publish"]["n"] == asked + measured


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


def test_the_installed_package_has_all_it_needs(
    inline: tuple[Path, subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    """From another directory, so that what was installed is used and not the checkout."""
    code = (
        "import sys, pate_fed.flower; pate_fed.flower.prepare_environment(); import clients.app, server.app; "
        "from pate_fed.cli.main import main; sys.exit(main())"
    )
    command = [sys.executable, "-c", code, "report", str(inline[0]), "--publishable"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    assert "wrote" in done.stdout


LATE = """
import os, sys, time
from sklearn.linear_model import LogisticRegression

class Late(LogisticRegression):
    def fit(self, x, y):
        if "default_worker" in " ".join(sys.argv):
            try:
                os.close(os.open(os.environ["LATE"], os.O_CREAT | os.O_EXCL))
                time.sleep(900)
            except FileExistsError:
                pass
        return super().fit(x, y)

def make(shape, classes):
    return Late()
"""


@pytest.mark.processes
def test_a_party_that_never_answers_on_ray_is_left_out_in_silence(tmp_path: Path) -> None:
    """Neither Flower nor Ray says a word, and nobody waits for it when the study is over."""
    (tmp_path / "late_teacher.py").write_text(LATE, encoding="utf-8")
    settings = ["--dataset", "glyph", "--num-clients", "6", "--aggregator", "gnmax", "--sigma2", "2"]
    settings += ["--labels", "4", "--max-queries", "4", "--student", "encoder-head", "--seed", "1"]
    (tmp_path / "study.toml").write_text(
        "[data.glyph]\nclasses = 3\nprivate = 120\npublic = 60\n[parties]\nquorum = 0.6\n"
        "[engine]\nteach_timeout_s = 20\n[queries]\nevaluate = false\n",
        encoding="utf-8",
    )
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pate_fed.simulation", "--config", "study.toml", *settings),
            *("--teacher", "late_teacher:make", "--backend", "ray", "--allow-weak-privacy"),
            *("--run-dir", "run"),
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{tmp_path}", "LATE": str(tmp_path / "late")},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    [left] = read_result(tmp_path / "run").left_out
    assert (left.phase, left.reason) == ("teach", "no answer within 20 s")
    ours = ("warning: with --seed", "not private", "drawing", "guaranteed", "against", "hospitals", "ε")
    ours += ("every ε rests", "teaching", "voting", "learning")
    table = done.stderr.index("\nstudy ")
    assert all(line.startswith(ours) for line in done.stderr[:table].splitlines()), done.stderr


@pytest.mark.processes
def test_ray_gives_the_same_labels_and_keeps_strangers_foreign_code_and_signals_out(
    inline: tuple[Path, subprocess.CompletedProcess[str]],
    networks: Path,
    tmp_path: Path,
    plant_foreign_code: Callable[[Path], None],
) -> None:
    """One start of Ray for all that is asked of a real one."""
    run_dir, _ = inline
    plant_foreign_code(tmp_path)  # a whole study, up to its student, imports none of it
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "flower-simulation"
    command.write_text(COMMAND, encoding="utf-8")
    study = ["--config", str(networks), "--run-dir", str(tmp_path / "run"), "--device", "cpu"]
    done = subprocess.run(
        [sys.executable, str(command), *study, "--backend", "ray", "--seed", "7", "--quiet"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f":{ROOT}"},  # an empty entry means the current folder
        capture_output=True,
        text=True,
        timeout=240,
        start_new_session=True,
    )
    assert done.returncode == 0, done.stderr
    with np.load(run_dir / "labels.npz") as ours, np.load(tmp_path / "run" / "labels.npz") as theirs:
        for name in ("index", "answered", "label"):
            np.testing.assert_array_equal(ours[name], theirs[name])
    # Evaluation totals over the whole pool are equal too, as far as the two accuracies can tell.
    first, second = (
        json.loads((path / "metrics.json").read_text(encoding="utf-8"))
        for path in (run_dir, tmp_path / "run")
    )
    for name in ("accuracy", "accuracy_do_not_publish"):
        assert first[name] == second[name]
    # So no traceback, no colours, nothing of Ray.
    assert done.stderr == "warning: with --seed the noise can be repeated, so it protects nobody\n"
    assert len(done.stdout.splitlines()) == 1
    facts: dict[str, Any] = json.loads((tmp_path / "facts.json").read_text(encoding="utf-8"))
    assert facts["joined"] == {"none": False, "wrong": False, "own": True}
    assert facts["files"] > 5
    assert not facts["token shown"]
    assert facts["token after"] == "the user's own"
    assert str(tmp_path) not in facts["path"]
    assert "" not in facts["path"]
    # A signal to the whole process group reached the command alone, and Ray did not abort it.
    assert facts["signals"] == 1
