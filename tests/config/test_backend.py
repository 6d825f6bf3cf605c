"""The engine where the study leaves it open: the cheaper one, written into the resolved study."""

from __future__ import annotations

import argparse
from dataclasses import replace

import pytest

from pate_fed.config import study as studies
from pate_fed.config.backend import Engine, cheaper_backend, cores, teaching_seconds
from pate_fed.config.options import add_study_options, study_from_arguments
from pate_fed.config.sections import Parties
from pate_fed.config.study import Study
from pate_fed.errors import InputError
from pate_fed.learning import TeacherSettings


@pytest.mark.parametrize(
    ("teacher", "clients", "available", "meant"),
    [
        ("encoder-head", 250, 2, "inline"),
        ("encoder-head", 1000, 2, "inline"),
        ("encoder-head", 10_000, 64, "ray"),
        ("small-cnn", 250, 2, "inline"),
        ("small-cnn", 10_000, 16, "ray"),
        ("random-forest", 50, 2, "inline"),
        ("deep-cnn", 250, 2, "ray"),
        ("deep-cnn", 250, 1, "inline"),
        ("deep-cnn", 4, 2, "inline"),
        ("mine.py:Net", 100, 2, "ray"),  # nobody knows how long it takes
    ],
)
def test_ray_where_it_saves_time(teacher: str, clients: int, available: int, meant: str) -> None:
    size = {"num_clients": clients, "num_teachers": clients}
    assert cheaper_backend(teacher, **size, available=available) == meant


def test_teaching_takes_what_the_choice_of_the_engine_counts_with() -> None:
    size = {"num_clients": 250, "num_teachers": 500, "available": 2}
    assert teaching_seconds("encoder-head", backend="inline", **size) == 50
    assert teaching_seconds("encoder-head", backend="grpc", **size) == 0.2  # at each hospital
    assert teaching_seconds("encoder-head", backend="ray", **size) == 15 + (50 + 37.5) / 2
    assert teaching_seconds("mine.py:Net", backend="inline", **size) is None


def test_more_cores_never_speak_against_ray() -> None:
    found = [
        cheaper_backend("small-cnn", num_clients=2000, num_teachers=2000, available=cores)
        for cores in (1, 2, 4, 8, 64)
    ]
    assert found == sorted(found) and found[0] != found[-1]


def test_a_resolved_study_names_the_engine_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cores() >= 1
    monkeypatch.setattr(studies, "cores", lambda: 4)
    study = Study(parties=Parties(num_clients=250))
    assert study.engine.backend == "auto"
    assert study.resolve().engine.backend == "inline"
    heavy = replace(study, teacher=TeacherSettings(name="deep-cnn"))
    assert heavy.resolve().engine.backend == "ray"
    assert heavy.resolve().resolve() == heavy.resolve()
    assert 'backend = "ray"' in heavy.resolve().to_toml()


@pytest.mark.parametrize("backend", ["ray", "inline", "grpc"])
def test_what_a_user_chose_stays(backend: str) -> None:
    study = Study(engine=Engine(backend=backend), teacher=TeacherSettings(name="small-cnn"))
    assert study.resolve().engine.backend == backend


@pytest.mark.parametrize("backend", ["auto", "ray"])
def test_a_named_cluster_is_joined(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    engine = Study(engine=Engine(backend=backend)).resolve().engine
    assert (engine.backend, engine.ray_address) == ("ray", "10.0.0.1:6379")
    # What the study says goes before what the environment does.
    engine = Study(engine=Engine(backend=backend, ray_address="auto")).resolve().engine
    assert (engine.backend, engine.ray_address) == ("ray", "auto")
    monkeypatch.setenv("RAY_ADDRESS", "local")
    assert Study(engine=Engine(backend=backend)).resolve().engine.ray_address is None


def test_other_engines_heed_no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "ray://10.0.0.1:10001")
    for backend in ("inline", "grpc"):
        assert Study(engine=Engine(backend=backend)).resolve().engine == Engine(backend=backend)
    with pytest.raises(InputError, match=r"RAY_ADDRESS ray://10\.0\.0\.1:10001: auto or HOST:PORT"):
        Study().resolve()


@pytest.mark.parametrize("address", ["ray://a:1", "a", "a:b", "http://a:8265", "a:1 b"])
def test_only_auto_and_host_and_port_are_addresses(address: str) -> None:
    with pytest.raises(InputError, match=r"--ray-address .*auto or HOST:PORT"):
        Engine(ray_address=address)


@pytest.mark.parametrize(
    "url", ["file:///disk", "memory://a", "s3://key:secret@bucket/a", "s3://", "abfs://a/b"]
)
def test_a_store_that_cannot_be_shared_is_refused_and_no_key_is_repeated(url: str) -> None:
    with pytest.raises(InputError, match=r"--shared-dir: .*s3://BUCKET") as told:
        Engine(shared_dir=url)
    assert "secret" not in str(told.value)
    for fine in ("/disk", "disk", "s3://bucket", "gs://bucket/some/folder"):
        assert Engine(shared_dir=fine).shared_dir == fine


def test_options_of_a_cluster_without_one_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    for engine, option in (
        (Engine(shared_dir="/disk"), "--shared-dir"),
        (Engine(insecure_cluster=True), "--insecure-cluster"),
    ):
        with pytest.raises(InputError, match=f"{option}.*only with a cluster"):
            Study(engine=engine).resolve()
    for options in ({"ray_address": "auto"}, {"shared_dir": "/disk"}, {"insecure_cluster": True}):
        with pytest.raises(InputError, match=r"no effect with --backend inline, one process; leave it out$"):
            Engine(backend="inline", **options)


def _typed(*words: str) -> Study:
    parser = argparse.ArgumentParser()
    add_study_options(parser)
    return study_from_arguments(parser.parse_args(words))


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        (["--backend", "inline", "--gpus-per-client", "1"], "--gpus-per-client 1 would have no effect"),
        (["--backend", "inline", "--shared-dir", "d"], "--shared-dir d: would have no effect"),
        (["--backend", "inline", "--insecure-cluster"], "--insecure-cluster: would have no effect"),
        (["--backend", "inline", "--ray-address", "h:5"], "--ray-address h:5: would have no effect"),
        (["--download"], "--download would have no effect: nothing of glyph is fetched"),
        (
            ["--download", "--dataset", "a:b", "--teacher", "a:c", "--student", "a:d"],
            "--download would have no effect",
        ),
    ],
)
def test_an_option_that_would_be_ignored_is_refused(typed: list[str], told: str) -> None:
    with pytest.raises(InputError, match=f"^{told}.*; leave it out$"):
        _typed(*typed)


def test_what_may_have_an_effect_is_taken() -> None:
    # Where auto takes one process, the share of a GPU was said for the case that it takes Ray.
    study = _typed("--gpus-per-client", "1")
    assert (study.engine.backend, study.engine.gpus_per_client) == ("inline", 1)
    assert Study(engine=study.engine).resolve().engine == study.engine  # a run's own study.toml
    assert _typed("--dataset", "mnist", "--download").data.download


def test_logs_tell_a_cluster_from_a_ray_of_ones_own() -> None:
    assert Engine(backend="ray", ray_address="auto").played_on == "cluster"
    assert Engine(backend="ray").played_on == "ray"
    assert Engine(backend="grpc", ray_address="auto").played_on == "grpc"  # hospitals of their own
