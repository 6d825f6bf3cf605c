"""`pate-fed hospital rehearse`: all up to the wire, nothing kept, nothing sent, nothing told to a pipe."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
from builders import make_label_terms, vary

from clients.kinds.votes import count_votes, train_missing
from clients.local import LocalSite, local_site
from clients.state_dir import LocalSettings
from pate_fed.cli.terms import make_terms_of
from pate_fed.config.sections import Aggregation
from pate_fed.config.study import read_study
from pate_fed.config.trust import TrustModel
from pate_fed.identity import Admission
from pate_fed.kinds.terms import Terms
from pate_fed.learning import TeacherSettings
from pate_fed.runtime.signals import Interrupted
from pate_fed.structure.parts import PartIdentity


@pytest.fixture
def demo(demonstration: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The demonstration, with everything temporary beside it, and no network."""
    folder = tmp_path / "demo"
    shutil.copytree(demonstration, folder)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(folder)

    def refuse(*arguments: object) -> NoReturn:
        raise AssertionError("a rehearsal used the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket.socket, "bind", refuse)
    return folder


COMMAND = ("hospital", "rehearse", "identity-north", "--data", "north.csv")


def _left(folder: Path) -> list[str]:
    """What lies anywhere around the demonstration that was not there before."""
    own = {path.relative_to(folder) for path in folder.rglob("*")}
    around = [path for path in folder.parent.rglob("*") if not path.is_relative_to(folder)]
    return sorted(str(path.name) for path in around) + sorted(
        str(path) for path in own if "hospital-" in path.name or "answered" in path.name
    )


def test_what_is_shown_is_what_would_be_voted_and_nothing_is_left(
    demo: Path, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    code, out, err = run(*COMMAND, "--pool", "pool.csv", "--sample", "12")
    assert code == 0, err
    assert _left(demo) == ["tmp"]
    assert max(map(len, out.splitlines())) <= 80
    assert "95 can be read" in out and "12 inputs of the pool" in out and " of 95 right (" in out
    # Votes as this hospital's client would count them; which record is which teacher's, a secret of each
    # state directory decides, and may turn one of them.
    terms = Admission.read(demo / "identity-north" / "admission.json").study_terms
    assert isinstance(terms, Terms)
    settings = LocalSettings(
        hospital="north", data="north.csv", pool=demo / "pool.csv", state_dir=demo.parent / "real"
    )
    settings.state_dir.mkdir()
    found = local_site(settings)
    assert isinstance(found, LocalSite)
    site = found.under(terms)
    train_missing(site, encoder=None, taught=lambda number: None, anew=lambda count: None)
    votes = count_votes(site, site.dataset.public_images[:6])
    rows = [
        line.split() for line in out.splitlines() if line.startswith("    ") and line.split()[0].isdigit()
    ]
    shown = np.array(rows, dtype=int)[:, 1:]
    assert (shown.sum(axis=1) == votes.sum(axis=1)).all() and np.abs(shown - votes).sum() <= 2


def test_a_pipe_is_told_nothing_of_the_records(demo: Path, run: Any) -> None:
    code, out, _ = run(*COMMAND)
    assert code == 0 and "run this without a pipe" in out
    for words in ("WHAT WOULD LEAVE", "GAIN", "95", "right", "malignant"):
        assert words not in out
    assert _left(demo) == ["tmp"]


@pytest.mark.parametrize("number", [None, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_rehearsal_is_erased_too(
    number: signal.Signals | None, demo: Path, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(site: LocalSite, inputs: np.ndarray) -> NoReturn:
        assert any(path.name.startswith("teacher-") for path in site.state_dir.iterdir())
        assert site.state_dir.stat().st_mode & 0o777 == 0o700
        if number is not None:
            assert signal.getsignal(number) is not signal.SIG_DFL  # or it ends this very test
            signal.raise_signal(number)
        raise Interrupted

    monkeypatch.setattr("clients.kinds.votes.count_votes", interrupted)
    assert run(*COMMAND).code == 130
    assert _left(demo) == ["tmp"]


def test_the_policy_has_its_say_before(demo: Path, run: Any) -> None:
    assert "policy.toml allows the study" in run(*COMMAND)[1]
    (demo / "identity-north" / "policy.toml").unlink()
    out = " ".join(run(*COMMAND)[1].split())
    assert (
        "policy the default does not allow it: " in out
        and "the line plain_votes = true in policy.toml" in out
    )
    (demo / "identity-north" / "policy.toml").write_text("plain_votes = true\nepsilon_public_total = 0.5\n")
    assert "too large an ε over all its studies" in " ".join(run(*COMMAND)[1].split())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--sample", "0"), "at least 1 is meant"),
        (("--pool", "west.csv"), "not the study's pool"),
        (("--data", "none.csv"), "none.csv"),
    ],
)
def test_mistakes_are_named_and_leave_nothing(
    options: tuple[str, ...], words: str, demo: Path, run: Any
) -> None:
    code, _, err = run(*COMMAND, *options)
    assert code == 2 and words in err
    assert _left(demo) == ["tmp"]


def test_code_that_the_policy_does_not_list_is_not_run(
    demo: Path, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ran(*_: object, **__: object) -> NoReturn:
        raise AssertionError("a part was loaded")

    monkeypatch.setattr("pate_fed.structure.parts._import", ran)
    terms = Terms.from_json(make_terms_of(demo / "study.toml"))
    part = PartIdentity(name="own_parts:make", digest="ab" * 32)
    theirs = vary(terms, teacher=TeacherSettings(name=part.name), teacher_part=part)
    (demo / "terms.json").write_text(theirs.to_json(), encoding="utf-8")
    code, _, err = run("hospital", "rehearse", "terms.json", "--data", "north.csv")
    assert code == 2 and "nothing was rehearsed, as its code would run" in err
    assert "teachers = ['own_parts:make'] in policy.toml would allow it" in err
    assert _left(demo) == ["tmp"]


def test_private_labels_are_not_rehearsed(demo: Path, run: Any) -> None:
    Path("labels.json").write_text(json.dumps(json.loads(make_label_terms().to_json())))
    code, _, err = run("hospital", "rehearse", "labels.json", "--data", "north.csv")
    assert code == 2 and "hospital terms" in err


def test_class_sums_are_shown_as_they_would_leave(
    demo: Path, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = read_study(demo / "study.toml")
    changed = replace(
        study,
        aggregation=Aggregation(aggregator="class-sums"),
        secrecy=TrustModel(secure_sum=True, noise_at="hospitals"),
    )
    (demo / "sums.toml").write_text(changed.to_toml(), encoding="utf-8")
    (demo / "terms.json").write_text(make_terms_of(demo / "sums.toml"), encoding="utf-8")
    command = ("hospital", "rehearse", "terms.json", "--data", "north.csv")
    code, out, err = run(*command, "--pool", "pool.csv")
    assert code == 0, err
    assert "run this without a pipe" in out and "95" not in out
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    code, out, err = run(*command, "--pool", "pool.csv")
    assert code == 0, err
    assert "2 of the other 3 must be confirmed, 0 are" in " ".join(out.split())
    assert "Your sums by class, of the first features. These stay here:" in out
    assert "the same as above" in out and "alone " in out
    first = next(line.split() for line in out.splitlines() if line.split()[:1] == ["0"])
    assert sum(map(int, first[1:])) == 95 * 110  # a constant: one for each patient
    (demo / "pool.csv").write_text(
        (demo / "pool.csv").read_text(encoding="utf-8").replace("1", "2"), encoding="utf-8"
    )
    code, _, err = run(*command, "--pool", "pool.csv")
    assert code == 2 and "pool" in err


def test_a_kind_of_ones_own_is_shown_with_its_own_noise_once_the_policy_lists_it(
    demo: Path, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = read_study(demo / "study.toml")
    bins = (("bins", 4), ("high", 100.0))
    changed = replace(
        study,
        aggregation=Aggregation(kind="own_kind:Median", parameters=bins),
        secrecy=TrustModel(secure_sum=True, noise_at="hospitals"),
        privacy=replace(study.privacy, epsilon=None),
    )
    (demo / "own.toml").write_text(changed.to_toml(), encoding="utf-8")
    (demo / "terms.json").write_text(make_terms_of(demo / "own.toml"), encoding="utf-8")
    command = ("hospital", "rehearse", "terms.json", "--data", "north.csv", "--policy", "policy.toml")
    (demo / "policy.toml").write_text("", encoding="utf-8")
    code, out, err = run(*command)
    assert code == 2 and "kinds = ['own_kind:Median']" in err and "records" not in out
    (demo / "policy.toml").write_text('kinds = ["own_kind:Median"]\n', encoding="utf-8")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    code, out, err = run(*command)
    assert code == 0, err
    assert (
        "2 of the other 3 must be confirmed, 0 are" in " ".join(out.split())
        and "Your answer, its first rows. These stay here:" in out
    )
    assert "with this hospital's share of the noise they are" in out and "the same as above" in out
    rows = [line.split() for line in out.splitlines() if line.split()[:1] in (["0"], ["1"], ["2"], ["3"])]
    exact = [int(row[1]) for row in rows if len(row) == 2][:4]
    assert sum(exact) == len((demo / "north.csv").read_text(encoding="utf-8").splitlines()) - 1
