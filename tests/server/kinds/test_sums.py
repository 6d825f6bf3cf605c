"""Class sums from a coordinator's view: one release, charged once, whenever anybody dies or falls silent."""

from __future__ import annotations

import errno
import html
import json
import tomllib
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from world import World

from pate_fed.flower import prepare_environment
from pate_fed.flower.transport import LinkLostError

prepare_environment()

import server.base
from clients.account import Account
from clients.hospital import Hospital
from pate_fed.config.backend import Engine
from pate_fed.config.defaults import Sums
from pate_fed.config.sections import Aggregation, Data, Parties, Privacy
from pate_fed.config.study import Study, study_from_dict
from pate_fed.config.trust import TrustModel
from pate_fed.data import GlyphSettings
from pate_fed.learning.settings import StudentSettings
from pate_fed.learning.students.class_sums import SumsStudent
from pate_fed.privacy import verify
from pate_fed.privacy.ledger.report import describe, verify_run
from pate_fed.secure_sum import read_reply, read_request
from pate_fed.secure_sum.messages import (
    BatchOpening,
    BatchShares,
    Enrolment,
    MaskedVector,
    MaskRequest,
    SurvivorConsent,
    SurvivorNotice,
    UnmaskRequest,
    UnmaskShares,
)
from server.kinds.sums import SumCourse
from server.masked import MaskedRounds
from server.state import CoordinatorState

PARTIES, POOL, ASKED = 5, 60, 40
TABLE = """
[parties]
num_clients = 5
[data]
pool = "pool.csv"
num_queries = 40
[data.table]
label = "y"
patient = "who"
classes = ["no", "yes"]
columns = { x = "number", sex = ["m", "f"] }
[aggregation]
aggregator = "class-sums"
[sums]
features = "bins"
[sums.cuts]
x = [0.0, 1.0]
[secrecy]
secure_sum = true
[engine]
backend = "grpc"
"""
AT_HOSPITALS = TrustModel(secure_sum=True, noise_at="hospitals")


@pytest.fixture(scope="module")
def exact_study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """Five hospitals with tables of 40 rows, two of each patient; the coordinator adds the noise."""
    folder, rng = tmp_path_factory.mktemp("tables"), np.random.default_rng(4)
    for name, rows in (("pool", POOL), *((f"h{place}", 40) for place in range(PARTIES))):
        x, sex = rng.uniform(0, 1, rows), rng.choice(["m", "f"], rows)
        y = np.where(x > 0.5, "yes", "no")
        lines = [f"{a:.3f},{b},{c},p{n // 2}\n" for n, (a, b, c) in enumerate(zip(x, sex, y, strict=True))]
        (folder / f"{name}.csv").write_text("x,sex,y,who\n" + "".join(lines), encoding="utf-8")
    values = tomllib.loads(TABLE)
    values["data"]["pool"] = str(folder / "pool.csv")
    values["data"]["private"] = [str(folder / f"h{place}.csv") for place in range(PARTIES)]
    return study_from_dict(values).resolve()


@pytest.fixture
def exact(exact_study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(exact_study, tmp_path, monkeypatch, real=True)


@pytest.fixture
def noisy(exact_study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(replace(exact_study, secrecy=AT_HOSPITALS).resolve(), tmp_path, monkeypatch, real=True)


def _metrics(world: World) -> Any:
    return json.loads((world.run_dir / "metrics.json").read_text(encoding="utf-8"))


def _check(world: World, *, summed: int = PARTIES) -> Any:
    """What holds after a success: one row, one sum of each hospital, labels as charged; the row's event."""
    [entry] = world.check(refused=PARTIES - summed)
    assert entry.event.asked == entry.event.answered == ASKED
    assert len(world.events("answered")) == summed
    metrics = _metrics(world)
    assert (metrics["status"], metrics["num_teachers"], metrics["queries_answered"]) == ("success", 0, ASKED)
    assert 0.99 < metrics["privacy"]["student"]["data_independent"] <= 1
    student = SumsStudent.load(world.run_dir / "student.npz")
    assert student.class_names == ("no", "yes")
    return entry.event


def test_noise_at_the_coordinator_leaves_no_bound_against_it(exact: World) -> None:
    assert exact.run(resume=False) == 0
    event = _check(exact)
    assert (event.mechanism.name, event.coordinator.kind) == ("class-sums", "exact-sums")
    privacy = _metrics(exact)["privacy"]
    assert privacy["coordinator"]["epsilon"] is None
    assert "exact class sums" in privacy["coordinator"]["sees"]
    told = html.unescape((exact.run_dir / "report.html").read_text(encoding="utf-8"))
    assert "every hospital's own sums" in told and "own votes" not in told


def test_noise_at_the_hospitals_gives_one_bound_against_everyone(noisy: World) -> None:
    assert noisy.run(resume=False) == 0
    event = _check(noisy)
    mechanism = event.mechanism
    assert (mechanism.name, event.coordinator.kind) == ("class-sums-shares", "noisy-sums")
    assert (mechanism.survivors, mechanism.colluders) == (4, 1)  # four fifths of five, and one in ten
    privacy = _metrics(noisy)["privacy"]
    assert privacy["coordinator"]["epsilon"] == privacy["student"]["data_independent"]
    report = verify(noisy.run_dir / "ledger.sqlite")
    assert report.coordinator_epsilon == report.epsilon
    words = "\n".join(describe(noisy.run_dir / "ledger.sqlite"))
    for told in (
        "noise and threshold in steps of the features",
        "for one patient replaced (its features in the sums",
        "as against the student, also for 1 hospital",
        "by which sums over all hospitals are released once",
        "as against the public: it sees noisy class sums",
    ):
        assert told in words
    assert "vote" not in words.partition("by each accountant")[0]
    verify_run(noisy.run_dir)


def test_what_comes_out_is_the_sum_of_what_hospitals_have(
    exact: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    keep = CoordinatorState.keep_totals
    monkeypatch.setattr(
        CoordinatorState,
        "keep_totals",
        lambda self, name, totals: (seen.append(totals), keep(self, name, totals)),
    )
    assert exact.run(resume=False) == 0
    totals, drawn = seen
    assert totals.voters == PARTIES
    # A constant; two knots and missing; two values and missing. A patient's two rows are cut to one's length.
    assert totals.value.shape == (7, 2)
    patients = totals.value[0].sum() / 1024
    assert PARTIES * 20 <= patients < PARTIES * 40
    assert (totals.value[[3, 6]] == 0).all() and (totals.value[[0, 4, 5]] > 0).all()
    noise = drawn.value - totals.value
    sigma = verify(exact.run_dir / "ledger.sqlite").chain.entries[0].event.mechanism.parameters()["sigma"]
    assert 0.12 * sigma < noise.std() < 2.6 * sigma  # of fourteen draws


@pytest.mark.parametrize(
    ("owner", "name", "after"),
    [
        (CoordinatorState, "keep_totals", True),
        (server.base, "charge", False),
        (server.base, "charge", True),
        pytest.param(CoordinatorState, "keep_totals", False, marks=pytest.mark.slow),
        pytest.param(SumCourse, "_with_noise", True, marks=pytest.mark.slow),
        pytest.param(SumCourse, "learn", True, marks=pytest.mark.slow),
    ],
)
def test_whenever_the_coordinator_dies_there_is_one_sum_one_draw_and_one_row(
    owner: Any, name: str, after: bool, exact: World, dying: Any
) -> None:
    with dying(owner, name, after=after):
        exact.run(resume=False)
    kept = {path: path.read_bytes() for path in (exact.run_dir / "private").glob("totals-*")}
    with dying(SumCourse, "learn", after=False):  # and once more, with the row on the disk
        exact.run(resume=True)
    for path, content in kept.items():
        assert path.read_bytes() == content
    assert len([*(exact.run_dir / "private").glob("totals-*")]) == 2  # exact, and with the one draw
    assert exact.run(resume=True, hospitals=0) == 0  # nobody is asked once it is released
    _check(exact)


MASKING = (BatchShares, MaskedVector, SurvivorConsent, UnmaskShares)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("kind", [Enrolment, *MASKING])
def test_a_link_that_is_lost_at_any_step_changes_nothing_but_the_time(
    kind: type, after: bool, exact: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same process goes on over another one with the same batch, set and masks."""
    count, totals, states = 0, list[Any](), list[dict[str, bytes]]()
    owner, name = (MaskedRounds, "admit") if kind is Enrolment else (CoordinatorState, "keep_sum_reply")
    keep, whole = CoordinatorState.keep_totals, getattr(owner, name)

    def look() -> None:
        files = (exact.run_dir / "private").glob("*")
        states.append(
            {
                path.name: path.read_bytes()
                for path in files
                if path.name[:5] != "batch" and path.suffix != ".head"
            }
        )

    def lose(self: Any, *given: Any, **named: Any) -> None:
        nonlocal count
        count += kind is Enrolment or isinstance(read_reply(given[-1]), kind)
        if after:
            whole(self, *given, **named)
        if count == 3:
            count += PARTIES
            look()
            raise LinkLostError("gone")
        if not after:
            whole(self, *given, **named)

    def note(self: Any, digest: str, found: Any) -> None:
        totals.append(found)
        look()
        keep(self, digest, found)

    monkeypatch.setattr(owner, name, lose)
    monkeypatch.setattr(CoordinatorState, "keep_totals", note)
    assert exact.run(resume=False) == 0
    assert "stays open" not in capsys.readouterr().err
    _check(exact)
    lost, summed = states[:2]
    shown = [path.read_text("utf-8") for path in exact.run_dir.parent.rglob("seen-*")]
    assert len(shown) == PARTIES and all("\n(ledger) 0 " in text for text in shown)
    assert lost.items() <= summed.items()  # keys, roster and all replies, as they were
    replies = 0 if kind is Enrolment else MASKING.index(kind) * PARTIES + 2 + after
    assert len([each for each in lost if each.startswith("sum-")]) == replies
    assert totals[0].voters == PARTIES


@pytest.mark.parametrize(
    ("passes", "kind"),
    [
        *((False, kind) for kind in (None, BatchOpening, MaskRequest, SurvivorNotice, UnmaskRequest)),
        *((True, kind) for kind in (None, MaskRequest)),
        *(
            pytest.param(True, kind, marks=pytest.mark.slow)
            for kind in (BatchOpening, SurvivorNotice, UnmaskRequest)
        ),
    ],
)
def test_a_full_disk_at_any_step_costs_nothing(
    passes: bool, kind: type | None, exact: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of five say that they cannot now: asked again they can, or the same command goes on later."""
    monkeypatch.setattr("server.exchange._AGAIN_EVERY_S", 0.0)
    monkeypatch.setattr("server.federation.AGAIN_S", 5.0 if passes else 0.0)
    folder, tries = exact.run_dir.parent / "accounts", Counter[str]()
    account = property(lambda site: Account(site.party, folder=folder))
    monkeypatch.setattr("clients.site.Site.account", account)
    name = "join" if kind is None else "sum_step"
    whole = getattr(Hospital, name)

    def full(self: Hospital, request: Any) -> Any:
        party = self._site.party
        if party in ("h1", "h3") and (kind is None or isinstance(read_request(request.step), kind)):
            tries[party] += 1
            if tries[party] < 4:
                raise OSError(errno.ENOSPC, "no space left")
        return whole(self, request)

    monkeypatch.setattr(Hospital, name, full)
    code = exact.run(resume=False)
    if not passes:
        assert code == 4 and _metrics(exact)["privacy"]["student"]["data_independent"] == 0
        assert not verify(exact.run_dir / "ledger.sqlite").chain.entries
        booked = [
            each.asked
            for path in folder.glob("*.sqlite")
            for each in Account(path.stem, folder=folder).bookings()
        ]
        # Agreement and the exchange of keys cost nobody anything.
        assert any(booked) == (kind not in (None, BatchOpening)) and booked
        assert tries == {"h1": 1, "h3": 1}
        tries.update({"h1": 4, "h3": 4})
        code = exact.run(resume=True)
    assert code == 0
    [entry] = verify(exact.run_dir / "ledger.sqlite").chain.entries
    assert entry.event.answered == ASKED and len(exact.events("answered")) == PARTIES
    accounts = [Account(path.stem, folder=folder) for path in folder.glob("*.sqlite")]
    assert [[each.asked for each in account.bookings()] for account in accounts] == [[True]] * PARTIES


def test_released_sums_that_are_lost_are_not_asked_for_again(
    exact: World, dying: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    with dying(server.base, "charge"):
        exact.run(resume=False)
    for path in (exact.run_dir / "private").glob("totals-*"):
        path.unlink()
    assert exact.run(resume=True) == 6
    assert "the noisy sums are gone" in capsys.readouterr().err
    assert _metrics(exact)["privacy"]["student"]["data_independent"] > 0.99
    assert len(exact.events("answered")) == PARTIES


def test_damaged_sums_are_told_and_cost_nothing(
    exact: World, dying: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Put back as they were, the same command goes on: a damaged file is no release."""
    with dying(server.base, "charge", after=False):
        exact.run(resume=False)
    files = {path: path.read_bytes() for path in (exact.run_dir / "private").glob("totals-*")}
    assert len(files) == 2
    for path, content in files.items():
        path.write_bytes(content[:-9])
        assert exact.run(resume=True) == 6
        assert "totals are damaged" in capsys.readouterr().err
        assert not verify(exact.run_dir / "ledger.sqlite").chain.entries
        path.write_bytes(content)
    assert exact.run(resume=True) == 0
    _check(exact)


IMAGES = Study(
    parties=Parties(num_clients=4),
    data=Data(glyph=GlyphSettings(classes=3, private=120, public=40)),
    aggregation=Aggregation(aggregator="class-sums"),
    sums=Sums(dimension=12),
    privacy=Privacy(epsilon=3.0, adjacency="add-or-remove-one"),
    secrecy=AT_HOSPITALS,
    student=StudentSettings(name="encoder-head"),
    engine=Engine(backend="grpc", device="cpu"),
).resolve()


def test_images_are_summed_and_another_student_learns_what_the_sums_say_of_the_pool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pate_fed.learning.students import train
    from pate_fed.learning.students.trainer import LabelledPool

    taught: list[LabelledPool] = []
    true = train.train_student

    def spy(pool: LabelledPool, *rest: Any, **options: Any) -> Any:
        taught.append(pool)
        return true(pool, *rest, **options)

    monkeypatch.setattr(train, "train_student", spy)
    world = World(IMAGES, tmp_path, monkeypatch)
    assert world.run(resume=False) == 0
    [entry] = world.check()
    assert entry.event.mechanism.parameters()["dimension"] == 13  # and a constant
    [pool] = taught
    with np.load(world.run_dir / "labels.npz") as labels:
        assert set(labels.files) == {"index", "answered", "label"}
        assert pool.probabilities is not None
        assert np.array_equal(pool.probabilities.argmax(axis=1), labels["label"])
    assert 1 / 3 < pool.probabilities.max(axis=1).mean() < 0.999
    assert (world.run_dir / "student.pt").exists() and not (world.run_dir / "student.npz").exists()
    privacy = _metrics(world)["privacy"]
    assert 2.99 < privacy["student"]["data_independent"] <= 3
    assert privacy["adjacency"] == "add-or-remove-one"


def test_a_whole_hospital_is_protected_where_its_sum_is_cut(
    exact_study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = replace(exact_study, privacy=Privacy(unit="hospital", epsilon=4.0), sums=Sums(most_records=5))
    world = World(study, tmp_path, monkeypatch)
    assert world.run(resume=False) == 0
    [entry] = world.check()
    assert entry.event.protection.votes_moved == 5
    assert "cut to 5 records' length" in (world.run_dir / "log.jsonl").read_text(encoding="utf-8")
