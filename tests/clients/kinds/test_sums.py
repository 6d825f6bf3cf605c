"""Class sums at a hospital: what it agrees to, what is summed, and what is refused before anything leaves."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import own_parts
import pytest

from pate_fed.flower import prepare_environment

prepare_environment()

from clients.account import COORDINATOR, PUBLIC, Account, StudyCost, total_epsilon
from clients.hospital import Hospital
from clients.kinds.sums import FEATURES_FILE, SumSide
from clients.leave import erase
from clients.local import local_site
from clients.site import Site
from clients.state_dir import LocalSettings
from pate_fed.config.data import load_study_data
from pate_fed.config.study import Study, study_from_dict
from pate_fed.errors import InputError, IntegrityError
from pate_fed.kinds.make import make_terms, public_file
from pate_fed.kinds.sums import SumTerms
from pate_fed.kinds.terms import Terms
from pate_fed.learning.features.feature_map import FeatureSettings
from pate_fed.protocol.messages import (
    JoinReply,
    JoinRequest,
    Question,
    Refusal,
    RefusalReply,
    SumRequest,
)
from pate_fed.secure_sum import CoordinatorSum, Identity
from pate_fed.secure_sum.messages import Enrolment

POOL = "age,sex,y\n" + "".join(f"{20 + n},{'mf'[n % 2]},no\n" for n in range(40))
OWN = "age,sex,y,who\n20,m,no,a\n20,m,no,a\n59,f,yes,b\n59,?,yes,c\n"
LATTICE = 1024


def _study(folder: Path, **more: Any) -> Study:
    (folder / "pool.csv").write_text(POOL, encoding="utf-8")
    (folder / "own.csv").write_text(OWN, encoding="utf-8")
    values: dict[str, Any] = {
        "parties": {"num_clients": 4},
        "data": {
            "pool": str(folder / "pool.csv"),
            "num_queries": 30,
            "table": {
                "label": "y",
                "patient": "who",
                "classes": ["no", "yes"],
                "columns": {"age": "number", "sex": ["m", "f"]},
            },
        },
        "aggregation": {"aggregator": "class-sums"},
        "sums": {"features": "bins", "cuts": {"age": [20.0, 59.0]}},
        "secrecy": {"secure_sum": True, "noise_at": "hospitals"},
        **more,
    }
    return study_from_dict(values).resolve()


class Asked:
    """A real hospital of four with four records of three patients, and the requests that it gets."""

    def __init__(self, folder: Path, **more: Any) -> None:
        study = _study(folder, **more)
        dataset = load_study_data(study)
        self.terms, self.features = make_terms(study, dataset), public_file(study, dataset)
        self.coordinator = CoordinatorSum(
            Identity.generate(), study=self.terms.digest, colluders=self.terms.colluders
        )
        self.settings = LocalSettings(
            hospital="north",
            data=str(folder / "own.csv"),
            state_dir=folder / "state",
            pool=folder / "pool.csv",
            policy=folder / "policy.toml",
        )
        self.settings.state_dir.mkdir(mode=0o700)
        self.set_policy("")

    def set_policy(self, text: str) -> None:
        """Have its policy say this; nobody is there to be telephoned."""
        lines = f"least_confirmed = 0\nleast_colluders = 0\n{text}"
        (self.settings.state_dir.parent / "policy.toml").write_text(lines, encoding="utf-8")

    @property
    def hospital(self) -> Hospital:
        """As another process finds it."""
        return Hospital(local_site(self.settings))

    @property
    def site(self) -> Site:
        """Its site in the study."""
        return local_site(self.settings).under(self.terms)

    def join(self, terms: Terms | None = None, features: bytes | None = None) -> JoinReply | RefusalReply:
        """Ask it to agree."""
        request = JoinRequest(
            terms=(terms or self.terms).to_json(),
            file=self.features if features is None else features,
            enrol=self.coordinator.enrol_request().to_bytes(),
        )
        return self.hospital.join(request)

    def step(self, index: list[int], **changes: Any) -> Any:
        """Ask it one step of its sum; of which nothing but the question is real."""
        values = {"terms_digest": self.terms.digest, "batch": 0, **changes}
        return self.hospital.sum_step(
            SumRequest(index=np.array(index, dtype=np.int64), roster=b"", step=b"", **values)
        )

    def sums(self) -> np.ndarray:
        """Its sums without noise."""
        side = SumSide(self.site, self.terms, self.hospital.log)
        index = np.arange(SumTerms.of(self.terms).dimension, dtype=np.int64)
        return side.answer(Question(terms_digest=self.terms.digest, batch=0, index=index))

    def log(self) -> list[Any]:
        """Its own log."""
        lines = (self.settings.state_dir / "log.jsonl").read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))


@pytest.fixture
def asked(tmp_path: Path) -> Asked:
    return Asked(tmp_path)


def _code(reply: object) -> Refusal:
    assert isinstance(reply, RefusalReply), reply
    return reply.refusal


def test_it_agrees_trains_nothing_and_enrols(asked: Asked) -> None:
    reply = asked.join()
    assert isinstance(reply, JoinReply)
    assert Enrolment.from_bytes(reply.enrolment).party == "north"
    state = asked.settings.state_dir
    assert (state / FEATURES_FILE).read_bytes() == asked.features
    assert not [*state.glob("teacher-*")]


def test_its_sums_are_of_clipped_features_with_a_patients_rows_as_one(asked: Asked) -> None:
    asked.join()
    sums = asked.sums()
    # A constant; age 20, 59, missing; sex m, f, missing. By class no, yes.
    want = np.zeros((7, 2), dtype=np.int64)
    want[[0, 1, 4], 0] = LATTICE  # a's two equal rows, cut to the length of one
    want[[0, 2], 1] = 2 * LATTICE
    want[[5, 6], 1] = LATTICE
    assert np.abs(sums - want).max() <= 1  # rounded towards 0
    assert (sums <= want).all()


@pytest.mark.parametrize("what", ["none", "damaged", "of another pool", "with other bounds"])
def test_a_feature_map_that_is_not_the_one_in_the_terms_is_refused(what: str, asked: Asked) -> None:
    terms, sums = asked.terms, SumTerms.of(asked.terms)
    features = asked.features
    if what == "none":
        features = b""
    elif what == "damaged":
        features = features[:-9]
    elif what == "of another pool":
        features = features.replace(b"59.0", b"58.0")
    else:  # the noise would be made for records of less weight than they have
        terms = replace(terms, asks=replace(sums, squared_norm=sums.squared_norm // 2))
    assert _code(asked.join(terms, features)) is Refusal.FILE
    assert not (asked.settings.state_dir / FEATURES_FILE).exists()
    assert not (asked.settings.state_dir / "terms.json").exists()


def test_a_lattice_of_which_the_terms_say_another_is_refused(asked: Asked) -> None:
    sums = SumTerms.of(asked.terms)
    other = replace(sums, settings=FeatureSettings(name="bins", columns=(1, 2), lattice=16))
    assert _code(asked.join(replace(asked.terms, asks=other))) is Refusal.FILE


def test_it_gives_nothing_in_the_open(asked: Asked) -> None:
    asked.join()
    question = Question(terms_digest=asked.terms.digest, batch=0, index=np.arange(7, dtype=np.int64))
    assert _code(asked.hospital.answer(question)) is Refusal.PLAIN
    assert not [event for event in asked.log() if event["event"] == "answered"]


def test_a_policy_that_has_become_stricter_holds_in_the_middle_of_a_sum(asked: Asked, tmp_path: Path) -> None:
    asked.join()
    asked.set_policy('class_sums = "no"')
    assert _code(asked.step([])) is Refusal.POLICY_SUMS
    assert _code(asked.join()) is Refusal.POLICY_SUMS


def test_sums_that_the_coordinator_would_read_exactly_need_a_line_in_the_policy(tmp_path: Path) -> None:
    asked = Asked(tmp_path, secrecy={"secure_sum": True})
    assert _code(asked.join()) is Refusal.POLICY_EXACT_SUMS
    asked.set_policy('class_sums = "exact"')
    assert isinstance(asked.join(), JoinReply)


def test_more_records_than_32_bits_have_room_for_are_refused(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pate_fed.kinds.sums._LARGEST", 2**17)
    assert _code(asked.join()) is Refusal.DATA
    [why] = [event["sentence"] for event in asked.log() if "sentence" in event]
    assert "more records than the " in why and "right is a study with sums.lattice = " in why
    assert Account("north").bookings()[0].asked  # that they are refused follows from records


def test_it_is_on_the_hospitals_account_at_what_the_one_release_costs(asked: Asked) -> None:
    asked.join()
    [booked] = Account("north").bookings()
    assert booked.study == asked.terms.study and not booked.asked  # it agreed, and costs nothing yet
    made = StudyCost.of(asked.terms)
    target = "patient, replace-one"
    assert made.stated == target
    for against in (PUBLIC, COORDINATOR):
        spent = total_epsilon([made], target, against, delta=1e-5)
        assert spent is not None and 0.99 < spent <= 1.1
        # One of a patient's records that is another, or comes or goes, makes of the patient another one.
        for record in ("record, replace-one", "record, add-or-remove-one"):
            assert total_epsilon([made], record, against, delta=1e-5) == spent
    # A patient who comes or goes moves less; a hospital's whole sum is bounded by nothing.
    less = total_epsilon([made], "patient, add-or-remove-one", PUBLIC, delta=1e-5)
    assert less is not None and less < 0.8
    assert total_epsilon([made], "hospital, replace-one", PUBLIC, delta=1e-5) is None
    twice = total_epsilon([made, made], target, PUBLIC, delta=1e-5)
    assert twice is not None and 1.3 < twice < 2


def test_with_the_unit_record_each_row_of_a_patient_counts_by_itself(tmp_path: Path) -> None:
    asked = Asked(tmp_path, privacy={"unit": "record"})
    asked.join()
    sums = asked.sums()
    assert abs(int(sums[0, 0]) - 2 * LATTICE) <= 2  # both of a's rows: two records' length
    [booked] = Account("north").bookings()
    assert booked.cost.stated == "record, replace-one"
    # How many records a patient has bounds nothing, so nothing is stated for one.
    assert total_epsilon([booked.cost], "patient, replace-one", PUBLIC, delta=1e-5) is None


def test_who_leaves_erases_the_feature_map(asked: Asked) -> None:
    asked.join()
    assert FEATURES_FILE in erase(asked.settings.state_dir)
    assert not (asked.settings.state_dir / FEATURES_FILE).exists()


def test_without_its_feature_map_it_sums_nothing(asked: Asked) -> None:
    asked.join()
    (asked.settings.state_dir / FEATURES_FILE).unlink()
    with pytest.raises(IntegrityError, match="is gone"):
        asked.sums()


def test_noise_that_no_bound_is_known_for_is_refused(asked: Asked) -> None:
    weak = replace(asked.terms, sigma_party=0.5)
    with pytest.raises(InputError):
        StudyCost.of(weak)
    assert _code(asked.join(weak)) in (Refusal.TERMS, Refusal.DATA)


def test_a_feature_map_of_one_s_own_runs_only_where_the_policy_lists_its_very_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Asked(tmp_path, sums={"features": "own_parts:rows", "lattice": LATTICE})
    sums = SumTerms.of(asked.terms)
    assert sums.part is not None and sums.dimension == 2
    monkeypatch.setattr(own_parts, "rows", None)  # whoever calls it fails
    assert _code(asked.join()) is Refusal.POLICY_FEATURE_MAP
    monkeypatch.undo()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    asked.set_policy('feature_maps = ["own_parts:rows"]')
    other = replace(sums, part=replace(sums.part, digest="0" * 64))
    assert _code(asked.join(replace(asked.terms, asks=other))) is Refusal.PART
    assert _code(asked.join(features=asked.features.replace(b"own_parts", b"own_prats"))) is Refusal.FILE
    assert isinstance(asked.join(), JoinReply)
    total = asked.sums()
    # Two patients and one more, each cut to one record's length.
    assert (total >= 0).all() and (total**2).sum() <= (3 * LATTICE) ** 2 and total.sum() > 0
    asked.set_policy("")
    assert _code(asked.step(list(range(2)))) is Refusal.POLICY_FEATURE_MAP
