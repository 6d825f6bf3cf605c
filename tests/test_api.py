"""Studies from Python: the calls that a script or a notebook makes, and what they give."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import threading
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import SMALL_STUDY
from sklearn.linear_model import LogisticRegression

import pate_fed
from pate_fed import Run, Step, Study, simulate
from pate_fed.config.study import study_from_dict
from pate_fed.errors import InputError, QuorumError
from pate_fed.structure.parts import GROUPS

FEW: dict[str, Any] = {"study": {"seed": 1}, **tomllib.loads(SMALL_STUDY)}
MORE = {**FEW, "queries": {"labels": 40, "max_queries": 40}}


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, list[Step]]:
    steps: list[Step] = []
    run = simulate(MORE, run_dir=tmp_path_factory.mktemp("api") / "run", on_progress=steps.append)
    return run, steps


def test_the_public_names() -> None:
    names = ["PateClassifier", "Plan", "Run", "Step", "Study", "__version__", "plan", "simulate"]
    assert pate_fed.__all__ == names and dir(pate_fed) == names
    assert all(getattr(pate_fed, name) is not None for name in names)
    with pytest.raises(AttributeError, match="has no attribute 'simulat'"):
        pate_fed.simulat  # type: ignore[attr-defined]  # noqa: B018


def test_a_run_has_its_figures_labels_student_ledger_and_report(ran: tuple[Run, list[Step]]) -> None:
    run, _ = ran
    assert run.epsilon is not None and run.epsilon == run.metrics["privacy"]["student"]["data_independent"]
    assert run.delta == 1e-5
    assert run.labels.index.shape == run.labels.label.shape == (40,) and len(run.labels) == 40
    images = np.zeros((3, *run.student.image_shape), dtype=np.uint8)
    chances = run.student.predict_proba(images)
    assert chances.shape == (3, 3) and np.allclose(chances.sum(axis=1), 1, atol=1e-4)
    assert sum(entry.event.answered for entry in run.ledger.chain.entries) == 40
    assert run.report.path.is_file() and "<iframe" in run.report._repr_html_()
    assert f"{run.path}" in repr(run) and "not private: seeded noise" in repr(run)


def test_a_student_as_published_is_told_with_what_differs(tmp_path: Path) -> None:
    student = {"name": "pate++", "as_published": True, "network": "small-cnn", "epochs": 1}
    run = simulate({**MORE, "student": student}, run_dir=tmp_path / "run", quiet=True)
    said = "pate++ as published, but for network small-cnn, epochs 1"
    assert f"{said}, β = 0.20, τ = 0.32" in run.report.path.read_text(encoding="utf-8")
    loaded = Run.load(run.path)
    assert loaded.result.study.student_as == said
    assert loaded.student.settings.said == said and loaded.student.settings.rate == 0.01
    kept = tomllib.loads((run.path / "study.toml").read_text(encoding="utf-8"))["student"]
    assert kept["as_published"] and (kept["name"], kept["epochs"]) == ("pate++", 1)


def test_it_is_what_the_command_leaves(ran: tuple[Run, list[Step]], tmp_path: Path) -> None:
    run, _ = ran
    from pate_fed.simulation import main

    (tmp_path / "study.toml").write_bytes((run.path / "study.toml").read_bytes())
    assert (
        main(["--config", str(tmp_path / "study.toml"), "--run-dir", str(tmp_path / "run"), "--quiet"]) == 0
    )
    again = Run.load(tmp_path / "run")
    assert again.epsilon == run.epsilon
    assert np.array_equal(again.labels.label, run.labels.label)


def test_progress_is_told_step_by_step(
    ran: tuple[Run, list[Step]], capfd: pytest.CaptureFixture[str]
) -> None:
    _, steps = ran
    phases = {step.phase: step for step in steps if step.phase}
    assert phases and all(step.done <= step.total for step in phases.values())
    assert any("ε" in step.note for step in steps if not step.phase)


def test_a_quiet_study_from_a_thread_prints_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    found: list[Run] = []
    thread = threading.Thread(
        target=lambda: found.append(simulate(FEW, run_dir=tmp_path / "run", quiet=True))
    )
    thread.start()
    thread.join()
    assert found[0].result.outcome.status == "success"
    assert capfd.readouterr() == ("", "")


def test_errors_are_exceptions_that_say_what_would_be_right(
    ran: tuple[Run, list[Step]], tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=r"parties\.num_clients in the study"):
        simulate({"parties": {"num_clients": 0}})
    with pytest.raises(InputError, match="holds no run"):
        Run.load(tmp_path)
    with pytest.raises(InputError, match="already holds a run"):
        simulate(Study(), run_dir=ran[0].path)


def test_what_ended_a_study_is_raised_and_its_run_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(*_: object) -> None:
        raise InputError("no records here")

    monkeypatch.setattr("clients.kinds.votes.train_missing", absent)
    with pytest.raises(QuorumError):
        simulate(MORE, run_dir=tmp_path / "run", quiet=True)
    run = Run.load(tmp_path / "run")
    assert run.result.outcome.status == "failed" and run.epsilon == 0.0


def test_the_pages_code_runs(ran: tuple[Run, list[Step]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every block of Python, but each study is the small one: its settings and its arguments are checked."""
    run, steps = ran
    root = Path(__file__).parents[1]
    pages = (root / "docs" / "python.md", root / "docs" / "how-to" / "plug-in.md")
    text = "".join(page.read_text(encoding="utf-8") for page in pages)
    blocks = [block.split("```")[0] for block in text.split("```python\n")[1:]]
    signature, asked = inspect.signature(simulate), list[dict[str, Any]]()

    def told(*given: Any, **named: Any) -> Run:
        asked.append(signature.bind(*given, **named).arguments)
        if isinstance(study := asked[-1]["study"], dict):
            study_from_dict(study)
        for step in steps if "on_progress" in named else ():
            named["on_progress"](step)
        return run

    monkeypatch.setattr("pate_fed.cli.simulate.simulate", told)
    images = np.zeros((2, *run.student.image_shape), dtype=np.uint8)
    names: dict[str, Any] = {
        "images": images,
        "study": "study.toml",
        "LogisticRegression": LogisticRegression,
    }
    names |= dict.fromkeys(("make", "x", "y", "pool", "truth", "Spreading"), object)
    for block in blocks:
        exec(block, names)
    assert len(asked) == len(re.findall(r"(?m)^(?:run = )?simulate\(", text)) > 7
    assert names["chances"].shape == (2, 3) and names["again"].epsilon == run.epsilon
    assert callable(names["load"]) and names["strategy"](Seen()) == (1,)


class Seen:
    """What a strategy is shown before the first round."""

    left, probabilities = (1,), None


def test_the_page_s_entry_points_are_groups_that_are_looked_at() -> None:
    page = (Path(__file__).parents[1] / "docs" / "how-to" / "plug-in.md").read_text(encoding="utf-8")
    named = re.findall(r'^\[project\.entry-points\."(.+)"\]', page, re.M)
    assert named and set(named) <= set(GROUPS.values())


def test_importing_is_light() -> None:
    code = (
        "import sys, pate_fed\n"
        "assert pate_fed.__version__\n"
        "heavy = {'numpy', 'torch', 'flwr', 'ray', 'scipy', 'argparse'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
