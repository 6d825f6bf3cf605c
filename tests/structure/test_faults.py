"""A fault in each kind of own part, however it is raised and wherever it runs: told with its line."""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import SMALL_STUDY
from faulty_parts import FAULT, FAULTS, MAIN, told

from pate_fed import simulate
from pate_fed.config.backend import RAY
from pate_fed.errors import InputError, IntegrityError, PateFedError, QuorumError
from pate_fed.structure.faults import Fault, describe, ends_process, place_of
from pate_fed.structure.parts import load_part, release_parts

FEW: dict[str, Any] = tomllib.loads(SMALL_STUDY)
# Hardly any noise: that the four labels were of one class, of which nobody learns, is no matter of chance.
FEW["aggregation"]["sigma2"] = 0.05
SUMS: dict[str, Any] = {
    **{key: FEW[key] for key in ("parties", "data", "engine", "privacy")},
    "aggregation": {"aggregator": "class-sums"},
    "secrecy": {"secure_sum": True, "noise_at": "hospitals"},
    "sums": {"features": "faulty_parts:features"},
}
ROWS = {key: FEW[key] for key in ("parties", "aggregation", "queries", "engine", "privacy")}
# By kind of part: the study, and the error with which it ends. At a party, at the coordinator.
AT_PARTIES: dict[str, dict[str, Any]] = {
    "teacher": {**FEW, "teacher": {"name": "faulty_parts:Teacher"}},
    "network": {**FEW, "teacher": {"name": "faulty_parts:network"}},
    "feature map": SUMS,
}
AT_COORDINATOR: dict[str, tuple[dict[str, Any], type[PateFedError]]] = {
    "mechanism": ({**FEW, "aggregation": {"aggregator": "faulty_parts:Mechanism"}}, IntegrityError),
    "student": ({**FEW, "student": {"name": "faulty_parts:Teacher"}}, InputError),
    "student's network": ({**FEW, "student": {"name": "faulty_parts:network", "epochs": 1}}, InputError),
    "query strategy": (
        {**FEW, "queries": {**FEW["queries"], "strategy": "faulty_parts:strategy"}},
        InputError,
    ),
}
EVERYWHERE: dict[str, dict[str, Any]] = {
    "data set": {**ROWS, "data": {"dataset": "faulty_parts:load"}},
    "partition": {**FEW, "parties": {**FEW["parties"], "partition": "faulty_parts:deal"}},
}


def _cases(*kinds: str) -> list[Any]:
    """Each kind with a plain fault, a teacher with each; all of them are slow."""
    quick = [(kind, "plain") for kind in kinds] + [("teacher", fault) for fault in FAULTS]
    pairs = [(kind, fault) for kind in kinds for fault in FAULTS]
    return [pytest.param(*each, marks=() if each in quick else pytest.mark.slow) for each in pairs]


def _faults(run_dir: Path) -> list[dict[str, Any]]:
    lines = (run_dir / "log.jsonl").read_text(encoding="utf-8").splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == "fault"]


@pytest.mark.parametrize(("kind", "fault"), _cases(*AT_PARTIES))
def test_a_fault_at_simulated_parties_is_told_once_with_its_line(
    kind: str, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FAULT, fault)
    with pytest.raises(QuorumError) as caught:
        simulate(AT_PARTIES[kind], run_dir=tmp_path / "run", quiet=True)
    said, cause = str(caught.value), caught.value.__cause__
    assert said.count(told(fault)) == 1 and said.index("at 6 of 6 parties") > said.index(told(fault))
    assert cause is not None and describe(cause) == told(fault)
    [event] = _faults(tmp_path / "run")
    assert event["parties"] == 6 and event["publish"] is False and told(fault) in event["sentence"]
    assert event["traceback"].startswith("Traceback") and "faulty_parts.py" in event["traceback"]
    assert str(tmp_path / "run" / "log.jsonl") in said
    report = json.loads((tmp_path / "run" / "metrics.json").read_text(encoding="utf-8"))
    assert report["status"] == "failed"


@pytest.mark.parametrize(("kind", "fault"), _cases(*AT_COORDINATOR))
def test_a_fault_at_the_coordinator_is_told_with_its_line(
    kind: str, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FAULT, fault)
    study, error = AT_COORDINATOR[kind]
    with pytest.raises(error) as caught:
        simulate(study, run_dir=tmp_path / "run", quiet=True)
    assert str(caught.value).count(told(fault)) == 1 and "parties" not in str(caught.value)
    [event] = _faults(tmp_path / "run")
    assert event["parties"] == 0 and 'faulty_parts.py", line ' in event["traceback"]


@pytest.mark.parametrize(
    ("kind", "fault"),
    [("data set", "plain"), ("partition", "plain"), ("data set", "odd"), ("partition", "leaving")],
)
def test_what_fails_before_anything_is_asked_is_told_with_its_line(
    kind: str, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FAULT, fault)
    with pytest.raises(InputError) as caught:
        simulate(EVERYWHERE[kind], run_dir=tmp_path / "run", quiet=True)
    assert told(fault) in str(caught.value) and describe(caught.value.__cause__ or caught.value) == told(
        fault
    )
    assert not (tmp_path / "run").exists()


def test_different_faults_are_counted_and_each_is_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "met").mkdir()
    monkeypatch.setenv(FAULT, str(tmp_path / "met"))
    with pytest.raises(QuorumError, match="and 5 other faults") as caught:
        simulate(AT_PARTIES["teacher"], run_dir=tmp_path / "run", quiet=True)
    assert str(caught.value).startswith(
        f"teacher 'faulty_parts:Teacher': fit fails ({told('plain')}), at 1 of 6"
    )
    assert [event["parties"] for event in _faults(tmp_path / "run")] == [1] * len(FAULTS)
    said = "".join(event["sentence"] for event in _faults(tmp_path / "run"))
    assert all(told(fault) in said for fault in FAULTS)


def test_a_study_that_goes_on_without_some_parties_tells_of_their_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Once:
        """Fails for the first party."""

        failed = False

        def fit(self, x: Any, y: Any) -> None:
            if len(x) == 20 and not Once.failed:
                Once.failed = True
                FAULTS["plain"][0]()

        def predict(self, x: Any) -> Any:
            return np.zeros(len(x), dtype=np.int64)

    run = simulate(FEW, teacher=Once(), run_dir=tmp_path / "run", quiet=True)
    assert run.metrics["status"] == "success"
    assert f"{told('plain')}), at 1 of 6 parties (traceback in" in capsys.readouterr().err
    assert [event["parties"] for event in _faults(tmp_path / "run")] == [1]


@pytest.mark.parametrize("kind", [*AT_PARTIES, *AT_COORDINATOR])
def test_an_interrupt_in_a_part_stays_an_interrupt(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FAULT, "interrupted")
    study = AT_PARTIES[kind] if kind in AT_PARTIES else AT_COORDINATOR[kind][0]
    with pytest.raises(KeyboardInterrupt):
        simulate(study, run_dir=tmp_path / "run", quiet=True)
    told_of = json.loads((tmp_path / "run" / "metrics.json").read_text(encoding="utf-8"))
    assert told_of["status"] == "aborted" and not _faults(tmp_path / "run")


def test_what_the_caller_s_own_function_raises_reaches_the_caller(tmp_path: Path) -> None:
    class Enough(Exception):
        pass

    def heard(step: Any) -> None:
        if step.phase == "teaching":
            raise Enough

    with pytest.raises(Enough):
        simulate(FEW, run_dir=tmp_path / "run", quiet=True, on_progress=heard)


# On Ray.


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        pytest.param("teacher", "", marks=pytest.mark.processes),
        pytest.param("data set", "odd", marks=pytest.mark.processes),
        pytest.param("partition", "leaving", marks=pytest.mark.slow),
        pytest.param("network", "in_lambda", marks=pytest.mark.slow),
        pytest.param("feature map", "in_c", marks=pytest.mark.slow),
        pytest.param("mechanism", "in_library", marks=pytest.mark.slow),
        pytest.param("teacher", "interrupted", marks=pytest.mark.slow),
    ],
)
def test_a_fault_on_ray_is_told_with_its_line(
    kind: str, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Without a name each party of six meets another fault."""
    (tmp_path / "met").mkdir()
    monkeypatch.setenv(FAULT, fault or str(tmp_path / "met"))
    monkeypatch.setenv(MAIN, str(os.getpid()))
    study = {**AT_PARTIES, **EVERYWHERE, "mechanism": AT_COORDINATOR["mechanism"][0]}[kind]
    study = {**study, "engine": {"backend": RAY}}
    error = {"mechanism": IntegrityError, "interrupted": KeyboardInterrupt}.get(kind, QuorumError)
    with pytest.raises(KeyboardInterrupt if fault == "interrupted" else error) as caught:
        simulate(study, run_dir=tmp_path / "run", quiet=True)
    said = "".join(event["sentence"] for event in _faults(tmp_path / "run"))
    if fault == "interrupted":
        assert "faulty_parts.py" in said and "Traceback" not in capfd.readouterr().err
        return
    assert all(told(each) in said for each in ([fault] if fault else FAULTS))
    assert "faulty_parts.py" in str(caught.value) and "Traceback" not in capfd.readouterr().err
    parties = [event["parties"] for event in _faults(tmp_path / "run")]
    assert parties == ([0 if kind == "mechanism" else 6] if fault else [1] * len(FAULTS))


# Whose line it is.


def test_the_line_is_the_users_last_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = tmp_path / "site-packages"
    installed.mkdir()
    monkeypatch.syspath_prepend(str(installed))
    (installed / "their_library.py").write_text("def call(f):\n    return f()\ndef fall():\n    1 / 0\n")
    (tmp_path / "their_code.py").write_text("import their_library\ndef make():\n    their_library.fall()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    library = load_part("their_library:fall", "teacher")
    try:
        with pytest.raises(ZeroDivisionError) as caught:
            load_part("their_code:make", "teacher")()
        assert place_of(caught.value) == f"{tmp_path / 'their_code.py'}, line 3, in make"
        # A part that is installed has no other line of the user's than its own.
        error = _raised(library)
        assert place_of(error) == f"{installed / 'their_library.py'}, line 4, in fall"
    finally:
        release_parts()
    assert place_of(_raised(library)) == ""


def _raised(part: Any) -> BaseException:
    """What a part raises, without the lines of this file."""
    try:
        part()
    except BaseException as error:
        trace = error.__traceback__
        return error.with_traceback(None if trace is None else trace.tb_next)
    raise AssertionError("nothing was raised")


def test_a_mistake_in_the_user_s_grammar_is_told_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "half_written.py").write_text("x = 1\ndef make(:\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(InputError, match=r"SyntaxError: .*half_written\.py, line 2"):
        load_part("half_written:make", "teacher")
    (tmp_path / "goes.py").write_text("import sys\nsys.exit('enough')\n")
    with pytest.raises(
        InputError, match=r"fails when it is imported \(SystemExit: enough, at .*goes\.py, line 2\)"
    ):
        load_part("goes:make", "teacher")


def test_words_are_one_line_that_steers_no_terminal_and_can_be_written() -> None:
    said = Fault.of(ValueError("a\n\x1b[2J b" + "c" * 2000 + "\ud800")).sentence
    assert said.startswith("ValueError: a [2J bccc") and len(said) < 600 and said.isprintable()
    assert Fault.of(ValueError("\ud800")).traceback.encode()


def test_the_exit_of_flower_or_ray_is_no_fault() -> None:
    spoken: dict[str, Any] = {"__name__": "flwr.supercore.exit"}
    exec("def leave():\n    raise SystemExit(0)", spoken)
    assert ends_process(_raised(spoken["leave"])) and ends_process(KeyboardInterrupt())
    assert not ends_process(_raised(FAULTS["leaving"][0])) and not ends_process(SystemExit(1))
