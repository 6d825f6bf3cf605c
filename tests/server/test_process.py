"""The coordinator's process takes its study from the file, as it is with separate hospitals."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from pate_fed.config.backend import PROCESSES
from pate_fed.errors import InputError
from server.outcome import Audience
from server.process import _tell, study_to_run


def test_separate_hospitals_are_as_many_as_given_and_are_asked_nothing_only_to_measure(
    tmp_path: Path,
) -> None:
    path = tmp_path / "study.toml"
    path.write_text(
        "[parties]\nnum_clients = 3\n[aggregation]\nsigma2 = 1\n[queries]\nevaluate = true\n",
        encoding="utf-8",
    )
    study = study_to_run(path, num_hospitals=None)
    assert (study.parties.num_clients, study.queries.evaluate) == (3, False)
    assert study.engine.backend == PROCESSES
    assert study == study.resolve()
    assert study_to_run(path, num_hospitals=5).parties.num_clients == 5


@pytest.mark.parametrize("text", [None, "[parties]\nnum_client = 3\n", "[parties\n"])
def test_a_file_that_is_no_study_is_named(text: str | None, tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match="study"):
        study_to_run(path, num_hospitals=None)


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyError(7), InputError("gone")])
def test_an_outcome_stands_whether_hospitals_hear_of_it_or_not(error: Exception) -> None:
    said: list[str] = []

    def tell(audience: object) -> None:
        raise error

    _tell(SimpleNamespace(tell=tell), Audience(None), SimpleNamespace(report=said.append))  # type: ignore[arg-type]
    assert len(said) == 1 and said[0].startswith("hospitals could not be told how the study ended: ")
