"""Fixtures of the hospital's side."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import builders
import pytest

from pate_fed.flower import prepare_environment

prepare_environment()

from clients.hospital import Hospital
from clients.site import Site
from pate_fed.config.backend import Engine
from pate_fed.config.sections import Data, Parties
from pate_fed.config.study import Study
from pate_fed.data import GlyphSettings
from pate_fed.identity import Authority, HospitalIdentity, make_request
from pate_fed.kinds.make import make_terms
from pate_fed.learning import TeacherSettings
from pate_fed.protocol.messages import JoinReply, JoinRequest


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Images are drawn once for all tests here."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATE_FED_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="session")
def small_study() -> Study:
    """Four hospitals of three teachers each, and 60 public inputs."""
    return Study(
        parties=Parties(num_clients=4, teachers_per_client=3),
        data=Data(glyph=GlyphSettings(classes=3, private=400, public=60)),
        teacher=TeacherSettings(name="small-cnn", epochs=1),
        engine=Engine(device="cpu"),
    ).resolve()


@pytest.fixture
def site(small_study: Study, tmp_path: Path) -> Site:
    """The second of the four, simulated."""
    return Site(party="party-1", number=1, study=small_study, state_dir=tmp_path / "party-1", simulated=True)


@pytest.fixture
def taught(site: Site) -> Hospital:
    """The hospital of that site, once it has trained its teachers."""
    hospital, terms = Hospital(site), make_terms(site.study, site.dataset)
    reply = hospital.join(JoinRequest(terms=terms.to_json()))
    assert isinstance(reply, JoinReply)
    assert reply == JoinReply(party="party-1", terms_digest=terms.digest)
    return hospital


@pytest.fixture(scope="session")
def admitted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Authority, Path]:
    """A study's authority, and the identity of its hospital north."""
    folder = tmp_path_factory.mktemp("admitted")
    terms = builders.make_terms().to_json()
    authority = Authority.init(folder / "authority", address="a:1", terms=terms, days=9)
    identity = folder / "identity"
    authority.admit(make_request(identity, "north"), days=9).write(folder / "north.admission")
    HospitalIdentity.offered(identity, folder / "north.admission").take()
    return authority, identity
