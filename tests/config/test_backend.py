"""The engine where the study leaves it open: the cheaper one, written into the resolved study."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pate_fed.config import study as studies
from pate_fed.config.backend import FEW_TEACHERS, cheaper_backend, cores
from pate_fed.config.sections import Engine, Parties
from pate_fed.config.study import Study
from pate_fed.learning import TeacherSettings


@pytest.mark.parametrize(
    ("teacher", "teachers", "available", "meant"),
    [
        ("encoder-head", 10_000, 64, "inline"),
        ("hog-linear", 10_000, 64, "inline"),
        ("random-forest", 10_000, 64, "inline"),
        ("small-cnn", FEW_TEACHERS, 2, "ray"),
        ("deep-cnn", FEW_TEACHERS, 2, "ray"),
        ("small-cnn", FEW_TEACHERS - 1, 64, "inline"),
        ("small-cnn", 10_000, 1, "inline"),
        ("mine.py:Net", 10_000, 2, "ray"),  # nobody knows how long it takes
    ],
)
def test_ray_where_many_teachers_share_cores(teacher: str, teachers: int, available: int, meant: str) -> None:
    assert cheaper_backend(teacher, num_teachers=teachers, available=available) == meant


def test_a_resolved_study_names_the_engine_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cores() >= 1
    monkeypatch.setattr(studies, "cores", lambda: 4)
    study = Study(parties=Parties(num_clients=250))
    assert study.engine.backend == "auto"
    assert study.resolve().engine.backend == "inline"
    heavy = replace(study, teacher=TeacherSettings(name="small-cnn"))
    assert heavy.resolve().engine.backend == "ray"
    assert heavy.resolve().resolve() == heavy.resolve()
    assert 'backend = "ray"' in heavy.resolve().to_toml()


@pytest.mark.parametrize("backend", ["ray", "inline", "grpc"])
def test_what_a_user_chose_stays(backend: str) -> None:
    study = Study(engine=Engine(backend=backend), teacher=TeacherSettings(name="small-cnn"))
    assert study.resolve().engine.backend == backend
