"""A study's command line: its options are the declared settings, and every mistake is named where it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from pate_fed.config.options import study_options
from pate_fed.simulation import main


def test_the_options_are_those_of_the_design() -> None:
    flags = {flag for entry in study_options().values() for flag in entry.setting.flags}
    assert flags == set(
        """--num-clients --num-supernodes --teachers-per-client --partition --quorum --dataset --data-dir
        --download --teacher --aggregator --threshold --sigma1 --sigma2 --labels --max-queries
        --query-strategy --records --rounds --epsilon --delta --sanitise --secure-sum --noise-at --student
        --student-epochs --backend --device --gpus-per-client --seed --allow-weak-privacy
        --ray-address --shared-dir --insecure-cluster --kind --as-published""".split()
    )
    assert all(entry.setting.help for entry in study_options().values())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--num-clients", "zero"], ["--num-clients zero", "whole number"]),
        (["--num-clients", "0"], ["--num-clients 0: ", "from 1 to 1,000,000"]),
        (["--sigma2", "many"], ["--sigma2 many", "a number"]),
        (["--config", "no-such.toml"], ["no-such.toml"]),
        (["--dataset", "mnits"], ["mnist"]),
        (["--student", "gann"], ["--student gann: one of", "did you mean gan?"]),
        (
            ["--kind", "own_kind:Median", "--secure-sum", "--labels", "9"],
            ["--labels 9 would have no effect: with --kind own_kind:Median nothing is voted on"],
        ),
        (["--student-epochs", "0"], ["--student-epochs 0: ", "from 1 to"]),
        (["--num-client", "3"], ["--num-client: no such option", "did you mean --num-clients"]),
        (["--num-clients", "99999999999999999999"], ["--num-clients 99999999999999999999: ", "1,000,000"]),
        (["--seed", ""], ["--seed : a whole number"]),
        (["--labels"], ["--labels", "expected one argument"]),
    ],
)
def test_the_command_line_ends_with_code_2(
    arguments: list[str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out.splitlines()[-1].startswith("FAILED  ε=0")
    assert "Traceback" not in err
    for word in words:
        assert word in err


@pytest.mark.parametrize(
    ("toml", "options", "words"),
    [
        ("[aggregation]\nsigma2 = 'x'", [], "--sigma2 (aggregation.sigma2 in {path}) is 'x'"),
        ("[aggregation]\nsigma = 3", [], "aggregation.sigma in {path}: no such key; did you mean sigma"),
        ("[student]\nnetwork = 'x'", ["--labels", "3"], "student.network in {path} is 'x'"),
        (
            "[aggregation]\nsigma2 = 3.0",
            ["--sigma2", "-1"],
            "--sigma2 -1: a number of votes from 1e-6 to 1e9",
        ),
    ],
)
def test_a_mistake_in_a_file_names_that_file(
    toml: str, options: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.toml"
    path.write_text(toml, encoding="utf-8")
    assert main(["--config", str(path), *options]) == 2
    said = capsys.readouterr().err
    assert words.format(path=path) in said
    assert "study.toml" not in said
