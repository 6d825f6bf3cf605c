"""A real hospital's site: its settings and policy, its study by the terms alone, the pool that it is sent."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from builders import make_lung_terms, vary
from PIL import Image

from clients.hospital import Hospital
from clients.kinds.votes import VoteSide
from clients.local import LocalSite, check_records, kind_of, local_site, study_of
from clients.log import HospitalLog
from clients.state_dir import LocalSettings
from pate_fed.cli.consent import confirm_in
from pate_fed.config.data import load_study_data
from pate_fed.config.sections import Aggregation, Data, Parties
from pate_fed.config.study import Study
from pate_fed.config.trust import TrustModel
from pate_fed.data import InputSpec, Schema, pool_digest
from pate_fed.errors import InputError, IntegrityError
from pate_fed.kinds.make import make_terms
from pate_fed.kinds.terms import Terms
from pate_fed.learning import StudentSettings, TeacherSettings
from pate_fed.protocol.messages import JoinRequest, Refusal, RefusalReply

TERMS = make_lung_terms()


def test_a_study_on_declared_ranges_is_one_at_a_hospital_too() -> None:
    schema = Schema(
        label="ill", classes=("no", "yes"), columns=(("age", ()),), ranges=(("age", (0.0, 120.0)),)
    )
    study = Study(
        parties=Parties(num_clients=4),
        data=Data(dataset="table", table=schema),
        aggregation=Aggregation(aggregator="class-sums"),
        secrecy=TrustModel(secure_sum=True),
        teacher=TeacherSettings(name="random-forest"),
        student=StudentSettings(name="ridge"),
    )
    terms = Terms.from_json(make_terms(study, load_study_data(study)).to_json())
    assert terms.drawn and "drawn from declared ranges" in dict(terms.words.caps)["labels"]
    assert study_of(terms).data.table == schema
    assert "age (0 to 120)" in dict(terms.words.reads)["columns"]


def test_a_rehearsal_is_held_to_a_policy_too(tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text(
        "[parties]\nnum_clients = 3\n[aggregation]\nsigma2 = 1\n", encoding="utf-8"
    )
    (tmp_path / "policy.toml").write_text('studies = ["hearts"]\nmost_queries_a_day = 5\n', encoding="utf-8")
    settings = LocalSettings(
        hospital="north", data="part:0", config=tmp_path / "study.toml", state_dir=tmp_path / "state"
    )
    free = local_site(settings)
    assert free.objection(vary(TERMS, seed=3)) is None  # a rehearsal may be seeded
    assert free.refuses_more(answered=0, today=0, asked=6) is None
    bound = local_site(replace(settings, policy=tmp_path / "policy.toml"))
    bound.state_dir.mkdir()
    minded = [bound.objection(TERMS), bound.refuses_more(answered=0, today=0, asked=6)]
    minded += [
        local_site(replace(settings, terms_digest="00" * 32)).objection(TERMS),
        VoteSide(local_site(replace(settings, teachers=4)), TERMS, HospitalLog(tmp_path)).objection(),
    ]
    wanted = [Refusal.POLICY_STUDY, Refusal.POLICY_DAY, Refusal.TERMS, Refusal.TERMS]
    assert [found and found[0] for found in minded] == wanted


def test_a_hospital_without_a_policy_sends_no_plain_votes(tmp_path: Path) -> None:
    schema = Schema(label="y", classes=("ill", "well"), columns=(("a", ()), ("b", ()), ("c", ())))
    terms = vary(TERMS, table=schema, teacher=TeacherSettings(name="random-forest"))
    hospital = Hospital(local_site(LocalSettings(hospital="north", data="north.csv", state_dir=tmp_path)))
    reply = hospital.join(JoinRequest(terms=terms.to_json()))
    assert reply == RefusalReply(party="north", code="POLICY_SECURE_SUM")  # all that the coordinator is told
    log = (tmp_path / "log.jsonl").read_text(encoding="utf-8")
    assert "the line plain_votes = true in policy.toml would allow it" in log
    masked = vary(terms, secure_sum=True)
    assert hospital.join(JoinRequest(terms=masked.to_json())).code == "POLICY_CONFIRMED"
    path = tmp_path / "policy.toml"
    confirm_in(path, {f"h{number}": "lusab-babad-gutih-tugad-babab" for number in range(4)})
    settings = LocalSettings(hospital="north", data="north.csv", state_dir=tmp_path, policy=path)
    reply = Hospital(local_site(settings)).join(JoinRequest(terms=masked.to_json()))
    assert reply.code == "NO_POOL"  # nothing else is minded


def test_only_the_pool_of_the_terms_is_kept(tmp_path: Path) -> None:
    pool = np.zeros((100, 3))
    buffer = io.BytesIO()
    np.save(buffer, pool)
    found = local_site(LocalSettings(hospital="north", data="north.csv", state_dir=tmp_path))
    assert isinstance(found, LocalSite)
    schema = Schema(label="y", classes=("ill", "well"), columns=(("a", ()), ("b", ()), ("c", ())))
    forest = TeacherSettings(name="random-forest")
    site = found.under(vary(TERMS, table=schema, pool_digest=pool_digest(pool), teacher=forest))
    for wrong, words in ((b"junk", "no array"), (buffer.getvalue()[:-8], "no array")):
        with pytest.raises(IntegrityError, match=words):
            site.keep_pool(wrong)
    other = io.BytesIO()
    np.save(other, pool + 1)
    for hospital, content in ((site, other.getvalue()), (found, buffer.getvalue())):  # one has no terms yet
        with pytest.raises(IntegrityError, match="not the one in the terms"):
            hospital.keep_pool(content)
    assert not site.has_pool
    site.keep_pool(buffer.getvalue())
    assert site.has_pool


def test_files_that_name_no_patients_are_refused_where_the_unit_is_one(tmp_path: Path) -> None:
    schema = Schema(label="y", classes=("ill", "well"), columns=(("a", ()),), patient="p")
    terms = vary(TERMS, image_shape=(1,), table=schema, teacher=TeacherSettings(name="random-forest"))
    terms = vary(terms, secure_sum=True, unit="patient", teachers_per_client=1)
    arrays, images = tmp_path / "own.npz", tmp_path / "images"
    np.savez(arrays, x=np.ones((4, 1)), y=np.arange(4) % 2)
    pool = tmp_path / "pool.csv"
    pool.write_text("a\n" + "".join(f"{n}\n" for n in range(100)), encoding="utf-8")
    for unit in ("patient", "record"):
        settings = LocalSettings(hospital="north", data=str(arrays), state_dir=tmp_path, pool=pool)
        site = local_site(settings).under(vary(terms, unit=unit))
        if unit == "record":
            assert len(site.teacher_parts()) == 1
            assert len(check_records(arrays, kind_of(terms), unit=unit).labels) == 4
            continue
        with pytest.raises(InputError, match="names no patients"):
            site.teacher_parts()
        with pytest.raises(InputError, match="names no patients"):
            check_records(arrays, kind_of(terms), unit=unit)
    for name in terms.classes:
        (images / name).mkdir(parents=True)
        for number in range(2):
            picture = np.full((8, 8, 3), 60 * number, dtype=np.uint8)
            Image.fromarray(picture).save(images / name / f"{number}.png")
    kind = InputSpec(classes=terms.classes, shape=(8, 8, 3))
    assert len(check_records(images, kind, unit="record").labels) == 4
    with pytest.raises(InputError, match=r"names no patients.*DICOM"):
        check_records(images, kind, unit="patient")


@pytest.mark.parametrize("part", ["part:3", "part:-1", "part:x", "part:"])
def test_a_rehearsed_part_that_the_study_has_not_is_named(part: str, tmp_path: Path) -> None:
    settings = LocalSettings(hospital="north", data=part, state_dir=tmp_path)
    with pytest.raises(InputError, match="--config"):
        local_site(settings)
    (tmp_path / "study.toml").write_text(
        "[parties]\nnum_clients = 3\n[aggregation]\nsigma2 = 1\n", encoding="utf-8"
    )
    with pytest.raises(InputError, match="part:0 to part:2"):
        local_site(replace(settings, config=tmp_path / "study.toml"))
