"""Options of `pate-fed label-dp`: one without effect is refused, and equal options have one text."""

from __future__ import annotations

import argparse
import tomllib
from dataclasses import replace

import pytest

from pate_fed.cli.main import main
from pate_fed.errors import InputError
from pate_fed.kinds.label_dp.options import METHODS, LabelOptions, check_method

FILES = ["--dataset", "files", "--images", "i.npy", "--labels", "l.npy"]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ([*FILES, "--test-labels", "t.npy"], "--test-labels t.npy: give --test-images FILE too"),
        ([*FILES, "--records", "10"], "--records 10: goes with --advise or a named data set"),
        ([*FILES, "--records", "0"], "--records 0: goes with --advise or a named data set"),
        ([*FILES, "--data-dir", "d"], "--data-dir d: goes with a named data set"),
        ([*FILES, "--download"], "--download: goes with a named data set"),
        (["--classes", "10"], "--classes 10: goes with --advise or --dataset files; fashion-mnist says"),
        (["--images", "i.npy"], "--images i.npy: goes with --dataset files"),
        (["--test-labels", "t.npy"], "--test-labels t.npy: goes with --dataset files"),
        (["--abundant-compute"], "--abundant-compute: goes with --advise"),
        (["--teachers", "9"], "--teachers 9: goes with --method pate-fm"),
        (["--method", "lp-1st", "--clusters", "9"], "--clusters 9: goes with --method noise-cluster or"),
        (
            ["--method", "alibi", "--clusterer", "scan"],
            "--clusterer scan: goes with --method noise-cluster or",
        ),
        (["--method", "noise-cluster", "--epochs", "9"], "--epochs 9: does not go with"),
        (["--method", "noise-cluster", "--network", "light"], "--network light: does not go with"),
        (["--advise", "--out", "o"], "--run-dir o: does not go with --advise"),
        (["--advise", "--method", "alibi"], "--method alibi: does not go with --advise"),
        (["--advise", "--seed", "0"], "--seed 0: does not go with --advise"),
    ],
)
def test_an_option_without_effect_is_refused(
    more: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["label-dp", "--epsilon", "1", *more]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("error: ") and message in error


def test_only_methods_that_need_no_labels_beside_each_other_go_with_hospitals() -> None:
    for method in METHODS:
        check_method(method, at_hospitals=False)
    assert {method for method in METHODS if _refused(method)} == {
        method for method in METHODS if method.startswith("pate-fm") or method in ("alibi", "lp-2st")
    }
    with pytest.raises(InputError, match="did you mean lp-1st"):
        check_method("lp-1sr", at_hospitals=False)


def _refused(method: str) -> bool:
    try:
        check_method(method, at_hospitals=True)
    except InputError:
        return True
    return False


def test_the_study_on_record_holds_what_is_known_of_the_records_over_what_was_asked() -> None:
    given = argparse.Namespace(
        method="alibi", epsilon=1.0, delta=1e-5, dataset="files", network="light", records=None
    )
    given.clusterer, given.teachers, given.epochs, given.device, given.seed = "light", 250, 5, "cpu", None
    options = LabelOptions.of(given, records=240, num_classes=3, pool_digest="ab" * 32)
    kept = tomllib.loads(options.to_toml())["label-dp"]
    assert (kept["records"], kept["num_classes"], kept["epsilon"]) == (240, 3, 1.0)
    assert "clusters" not in kept and "seed" not in kept
    assert options.name == "label-dp-alibi"
    assert options.digest == replace(options).digest != replace(options, epsilon=2.0).digest
