"""`pate-fed reproduce`: names, options, and rows that are only shown to calls with their inputs."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pate_fed import reproduce as reproduction
from pate_fed.cli.main import main
from pate_fed.data import Dataset
from pate_fed.errors import InputError
from pate_fed.reproduce import Reproduction, reproduce, usual_workers

ROWS = {
    "pate++-fashion-mnist": "runs-quick",
    "pate++-mnist-votes": "mnist-votes-runs",
    "interactive-gnmax": "interactive-gnmax-runs",
    "pate-2017-mnist": "pate-2017-mnist-runs-quick",
    "pate-2017-questions": "pate-2017-questions-asked",
}
TAKES_TOTALS = [name for name in ROWS if name != "pate-2017-mnist"]


@pytest.mark.parametrize("name", ROWS)
def test_rows_are_only_shown_to_calls_with_their_inputs(
    name: str,
    small: Reproduction,
    loaded: dict[str, Dataset],
    make_data: Callable[..., Dataset],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda *_, **__: None)  # rows alone

    def plan(totals: str) -> Reproduction:
        given = small.data_dir / totals if small.data_dir and name in TAKES_TOTALS else None
        return replace(small, totals=given)

    lines = reproduce(name, plan("a.npy"))
    path = small.out_dir / f"{ROWS[name]}.csv"
    beside = path.with_name(f"{path.stem}-inputs.json")
    before, kept = path.read_bytes(), beside.read_bytes()
    assert reproduce(name, plan("a.npy")) == lines
    if name in TAKES_TOTALS:
        with pytest.raises(InputError, match=r"other .*totals.* .*--run-dir"):
            reproduce(name, plan("b.npy"))
        few = small.out_dir / "few.npy"
        np.save(few, np.zeros((199, 10), dtype=np.int64))
        with pytest.raises(InputError, match="199 rows, where at least 200"):
            reproduce(name, replace(small, totals=few))
    loaded |= {each: make_data(each, seed=2) for each in loaded}
    with pytest.raises(InputError, match=r"other (.* )?(images|labels|data).*--run-dir"):
        reproduce(name, plan("a.npy"))
    assert path.read_bytes() == before and beside.read_bytes() == kept


def test_a_command_line_with_other_totals_is_refused(
    small: Reproduction, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = small.data_dir
    assert folder is not None
    command = ["reproduce", "pate-2017-questions", "--seeds", "1", "--out", str(small.out_dir)]
    assert main([*command, "--totals", str(folder / "a.npy")]) == 0
    capsys.readouterr()
    assert main([*command, "--totals", str(folder / "b.npy")]) == 2
    said = capsys.readouterr()
    assert "give another --run-dir" in said.err and not said.out


def test_what_cannot_be_done_is_named(small: Reproduction) -> None:
    with pytest.raises(InputError, match=r"pate\+\+-fashion-mnist"):
        reproduce("pate", small)
    reproduce("pate-2017-questions", small)
    (small.out_dir / "pate-2017-questions-asked.csv").write_text("something else\n1\n", encoding="utf-8")
    with pytest.raises(InputError, match="remove it"):
        reproduce("pate-2017-questions", small)


OPTIONS = {
    "--paper": {"pate++-fashion-mnist", "pate-2017-mnist", "label-dp-fashion-mnist"},
    "--totals": set(TAKES_TOTALS),
    "--tables": {"pate++-fashion-mnist"},
    "--seeds": set(reproduction.REPRODUCTIONS) - {"scalable-glyph"},
}


@pytest.mark.parametrize("name", reproduction.REPRODUCTIONS)
@pytest.mark.parametrize("option", OPTIONS)
def test_an_option_is_taken_or_refused(
    option: str,
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    taken = reproduction._MAKERS[name][1]
    monkeypatch.setitem(reproduction._MAKERS, name, (lambda plan, log: ["made"], taken))
    np.save(tmp_path / "t.npy", np.ones((6, 3)))
    value = {"--totals": [str(tmp_path / "t.npy")], "--tables": ["I", "II", "III"], "--seeds": ["2"]}
    code = main(["reproduce", name, "--out", str(tmp_path / "out"), option, *value.get(option, [])])
    said = capsys.readouterr()
    if name in OPTIONS[option]:
        assert code == 0 and "made" in said.out
    else:
        assert code == 2 and f"{name} takes no {option}" in said.err and not (tmp_path / "out").exists()
        assert set(said.err.strip().split("these do: ")[1].split(", ")) == OPTIONS[option]


def test_totals_that_are_not_there_are_not_made_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["reproduce", "pate-2017-questions", "--totals", str(tmp_path / "t.npz")]
    assert main([*command, "--out", str(tmp_path / "out")]) == 2
    assert "no such file" in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_help_says_how_long_each_takes_and_who_takes_an_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["reproduce", "--help"])
    said = capsys.readouterr().out
    lines = {line.split()[0]: line for line in said.splitlines() if line.startswith("  ") and line.split()}
    assert all(len(lines[name].split()) > 1 for name in reproduction.REPRODUCTIONS)
    assert "hours" in lines["pate-2017-mnist"] and "hour" in lines["pate++-fashion-mnist"]
    whole = "".join(said.split())
    for option in ("--paper", "--totals", "--tables"):
        takers = [name for name in reproduction.REPRODUCTIONS if name in OPTIONS[option]]
        assert ",".join(takers) in whole


def test_how_many_workers_there_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pate_fed.reproduce.cores", lambda: 3)
    assert usual_workers("pate++-fashion-mnist", "cpu") == 3
    assert usual_workers("pate-2017-adult", "cpu") == 1
    with pytest.raises(InputError, match="pate-2017-adult takes no --workers"):
        reproduce("pate-2017-adult", Reproduction(data_dir=None, out_dir=tmp_path, workers=2))


# What no public name says yet. The files of floor 0, `runtime` and these rooms' own are no part of it.
NOT_PUBLIC = {
    "pate_fed.kinds.label_dp.learners",
    "pate_fed.kinds.label_dp.methods",
    "pate_fed.kinds.label_dp.public",
    "pate_fed.kinds.label_dp.source",
    "pate_fed.learning.networks.heads",
    "pate_fed.learning.teachers.network",
    "pate_fed.learning.tensors",
    "pate_fed.privacy.bounds.conversion",
    "pate_fed.privacy.bounds.gnmax",
}
BELOW = ("disk", "errors", "format", "reproduce", "runtime", "structure")


def test_it_runs_on_public_names_but_for_these() -> None:
    found = set()
    for path in Path(reproduction.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("pate_fed."):
                room = importlib.import_module(node.module)
                if node.module.split(".")[1] not in BELOW:
                    public = getattr(room, "__all__", ())
                    found |= {node.module for name in node.names if name.name not in public}
    assert found == NOT_PUBLIC
