"""`pate-fed demo`: four hospitals ready to run, and run; together they get more than any of them alone."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from clients.policy import Policy
from pate_fed.cli import demo, label_dp, rehearse, sweep
from pate_fed.cli.demo import HOSPITALS, SITES
from pate_fed.cli.main import main
from pate_fed.config.study import read_study
from pate_fed.identity import sum_fingerprint


def test_a_demonstration_that_waits_is_run_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Any
) -> None:
    seen: list[demo.Demo] = []
    monkeypatch.setattr(demo, "run_demo", lambda made: seen.append(made) or 0)
    folder = tmp_path / "demo"
    command = ("demo", "hospitals", str(folder))
    code, out, _ = run(*command)
    assert code == 0 and out.count("python -m pate_fed.client --hospital") == 4
    assert all(site.treats in out for site in SITES)
    study = read_study(folder / "study.toml").resolve()
    assert study.aggregation.sums and study.secrecy.at_hospitals and study.privacy.epsilon == 1
    for path in folder.rglob("policy.toml"):  # the default policy takes part, once the others are confirmed
        policy, own = Policy.load(path), path.parent.name.removeprefix("identity-")
        assert policy == Policy(trusted=policy.trusted)
        assert policy.trusted == {
            name: sum_fingerprint(folder / f"identity-{name}") for name in HOSPITALS if name != own
        }
    key = (folder / "authority" / "ca.key").read_bytes()
    assert run(*command, "--run")[0] == 0  # the README's two lines, one after the other
    assert [made.folder for made in seen] == [folder]
    assert (folder / "authority" / "ca.key").read_bytes() == key
    (folder / "run").mkdir()
    code, _, err = run(*command, "--run")
    assert code == 2 and "holds a study already" in err


@pytest.mark.parametrize(
    ("command", "place", "name"),
    [
        (("demo", "hospitals", "folder", "--run"), demo, "run_demo"),
        (("label-dp", "--dataset", "glyph", "--epsilon", "1"), label_dp, "_run"),
        (("sweep", "study.toml", "--run-dir", "runs", "--set", "queries.labels=3,4"), sweep, "_run_all"),
        (("hospital", "join", "folder", "--data", "north.csv"), rehearse, "join"),
    ],
)
def test_a_study_is_no_failure_where_what_its_command_says_is_lost(
    command: tuple[str, ...], place: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "study.toml").write_text("", encoding="utf-8")
    monkeypatch.setattr(sweep, "_compare", lambda *_: None)
    monkeypatch.setattr(place, name, lambda *_: print("SUCCESS") or (0 if name != "_run_all" else []))
    with open("/dev/full", "w", encoding="utf-8") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert main(command) == 0


def test_an_interrupted_demonstration_does_not_wait_for_its_hospitals(tmp_path: Path) -> None:
    server, waiting = ("-c", "raise SystemExit(130)"), ("-c", "import time; time.sleep(99)")
    started = time.monotonic()
    four = dict.fromkeys("abcd", waiting)
    assert demo.run_demo(demo.Demo(folder=tmp_path, server=server, hospitals=four)) == 130
    assert time.monotonic() - started < 30


def test_each_hospital_alone_is_worse_on_the_others_patients() -> None:
    drawn = demo.drawn_patients(seed=1)
    pool = drawn["pool"]
    for site in SITES:
        right = demo.alone(drawn[site.name], pool) == pool.classes
        home = (pool.signs[:, 0] >= site.ages[0]) & (pool.signs[:, 0] < site.ages[1])
        assert home.sum() > 250
        assert right[home].mean() > 0.88 and right[~home].mean() < right[home].mean() - 0.03


@pytest.mark.slow
def test_the_demonstration_runs_and_is_worth_it(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "demo"
    assert main(["demo", "hospitals", str(folder), "--run"]) == 0
    out = capfd.readouterr().out
    assert "SUCCESS  ε=1 " in out and "together, ε=1 " in out
    for site in SITES:
        assert "SUCCESS" in (folder / f"{site.name}.log").read_text(encoding="utf-8").splitlines()[-1]
        assert f"{site.name} alone, {site.treats}" in out
    together = json.loads((folder / "run" / "metrics.json").read_text(encoding="utf-8"))["accuracy"][
        "student"
    ]
    drawn = demo.drawn_patients(seed=0)
    pool = drawn["pool"]
    assert together > max((demo.alone(drawn[site.name], pool) == pool.classes).mean() for site in SITES)
