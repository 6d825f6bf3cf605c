"""What a study hides: who is counted on, how much noise a share needs, and what does not go together."""

from __future__ import annotations

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pate_fed.config.sections import Aggregation, Parties, Queries
from pate_fed.config.study import Study, study_from_dict
from pate_fed.config.trust import TrustModel, fit_noise
from pate_fed.errors import InputError
from pate_fed.privacy.mechanisms.distributed import party_sigma
from pate_fed.privacy.mechanisms.events import hospital_noise
from pate_fed.privacy.protection import LEAST_PARTIES, Shares
from pate_fed.secure_sum import threshold_for

NOISY = TrustModel(secure_sum=True, noise_at="hospitals")


@given(clients=st.integers(LEAST_PARTIES, 5000), quorum=st.floats(0.01, 1.0))
def test_no_sum_is_formed_of_fewer_than_quorum_and_two_thirds(clients: int, quorum: float) -> None:
    least = TrustModel(secure_sum=True).least_voters(clients, quorum)
    assert max(quorum * clients, threshold_for(clients)) <= least <= clients
    assert TrustModel().least_voters(clients, quorum) <= least


@given(clients=st.integers(LEAST_PARTIES, 3000), quorum=st.floats(0.01, 1.0))
def test_the_least_noise_leaves_every_share_large_enough(clients: int, quorum: float) -> None:
    least = NOISY.least_voters(clients, quorum)
    shares = NOISY.shares(clients, least)
    assert 1 <= shares.colluders < least
    sigma = fit_noise(shares, None, None)
    share = party_sigma(sigma, parties=least, colluders=shares.colluders)
    assert share**2 >= 2
    sight = hospital_noise(sigma_party=share, survivors=least, colluders=shares.colluders)
    assert float(sight.variance or 0) == pytest.approx(sigma**2)
    with pytest.raises(InputError, match=f"--sigma2 {shares.least_sigma:g} or more"):
        fit_noise(shares, 0.99 * shares.least_sigma, None)


@given(clients=st.integers(LEAST_PARTIES, 3000))
def test_a_plan_counts_on_whom_a_study_counts_by_default(clients: int) -> None:
    least = NOISY.least_voters(clients, Parties(num_clients=clients).quorum)
    assert Shares.usual(clients) == NOISY.shares(clients, least)


def test_a_resolved_study_leaves_nothing_open() -> None:
    study = Study(parties=Parties(num_clients=250), secrecy=NOISY, queries=Queries(labels=500)).resolve()
    assert (study.secrecy.colluders, study.aggregation.sigma2, study.least_clients) == (25, 40.0, 200)
    assert study_from_dict(tomllib.loads(study.to_toml())) == study == study.resolve()
    votes = Aggregation(aggregator="confident-gnmax")
    small = Study(parties=Parties(num_clients=5), secrecy=NOISY, aggregation=votes).resolve()
    assert small.aggregation.sigma2 == NOISY.shares(5, 4).least_sigma > 0.16 * 5
    given = Study(secrecy=NOISY, aggregation=Aggregation(sigma2=60.0)).resolve()
    assert given.aggregation.sigma2 == 60.0


@pytest.mark.parametrize(
    ("secrecy", "words"),
    [
        ({"noise_at": "hospitals"}, "--noise-at hospitals"),
        ({"secure_sum": True, "noise_at": "home"}, "coordinator, hospitals"),
        ({"secure_sum": True, "colluders": -1}, "secrecy.colluders"),
        ({"secure_sum": True, "colluders": 2.5}, "secrecy.colluders"),
        ({"secure_sum": 1}, "secrecy.secure_sum"),
        ({"secure_sun": True}, "did you mean secure_sum"),
    ],
)
def test_every_mistake_is_named(secrecy: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        study_from_dict({"secrecy": secrecy})


def test_too_many_colluders_and_too_few_parties_are_named() -> None:
    for clients, colluders, words in ((10, 8, "at most 7"), (3, None, "--num-clients 3")):
        secrecy = TrustModel(secure_sum=True, noise_at="hospitals", colluders=colluders)
        with pytest.raises(InputError, match=words):
            Study(parties=Parties(num_clients=clients), secrecy=secrecy).resolve()
