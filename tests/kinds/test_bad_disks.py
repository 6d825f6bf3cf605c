"""Disks that fill up, and files of both sides that a crash cut short or filled with zeroes.

    PATE_FED_TORN=834 PATE_FED_FULL=167 pytest -m slow -rP tests/kinds/test_bad_disks.py

PATE_FED_TRIED names a file of what was tried: a run that was stopped goes on after it.

Whatever happens to them: the command ends with an exit code of the contract and no traceback, no question has
two rows, and no hospital masks the same question twice with other noise. Where there is room again the same
command goes on to its end.
"""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import methodcaller
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dying import dying, takes
from kinds import OwnStudy, StudyKind, SumStudy, VoteStudy
from tried import Tried

from clients.base import SummingHospital
from clients.log import HospitalLog
from pate_fed.errors import PateFedError
from pate_fed.protocol.messages import SumReply
from pate_fed.runtime.signals import INTERRUPTED
from pate_fed.secure_sum import read_reply
from pate_fed.secure_sum.messages import BatchShares, MaskedVector, UnmaskShares
from server.masked import MaskedRounds
from server.outcome import HOSPITALS

TEARS, FULL = (int(os.environ.get(f"PATE_FED_{name}", "6")) for name in ("TORN", "FULL"))
CODES = range(7)
REFUSED = (errno.ENOSPC, errno.EROFS, errno.EACCES, errno.ENOENT, errno.EDQUOT)


@contextmanager
def _watching(sent: dict[tuple[int, str], set[bytes]]) -> Iterator[None]:
    """Note each hospital's masked vectors, by the question; no fault there is without a sentence of ours."""
    whole, tell, untold = SummingHospital.sum_step, HospitalLog.fault, list[BaseException]()

    def fault(self: Any, error: BaseException, *event: str) -> None:
        if not isinstance(error, PateFedError | OSError):
            untold.append(error)
        tell(self, error, *event)

    def step(self: Any, request: Any) -> Any:
        reply = whole(self, request)
        if isinstance(reply, SumReply):
            message = read_reply(reply.step)
            if isinstance(message, MaskedVector):
                sent.setdefault((self._site.number, message.batch_digest), set()).add(reply.step)
        return reply

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SummingHospital, "sum_step", step)
        patch.setattr(HospitalLog, "fault", fault)
        yield
    assert not untold, untold


def _tear(path: Path, rng: np.random.Generator) -> str:
    """Cut a file at any byte, or fill it with zeroes from there on; what was done."""
    whole = path.read_bytes()
    at = int(rng.integers(0, max(1, len(whole))))
    zeroes = bool(rng.integers(2))
    path.write_bytes(whole[:at] + bytes(len(whole) - at) * zeroes)
    return f"{path.name} of {len(whole)} bytes {'zeroes' if zeroes else 'cut'} from {at}"


def _start(study: StudyKind) -> int:
    """What the commands of both sides read as they start, and then the study, where it is not over."""
    study.read_as_commands_do()
    return study.run()


def _run(
    study: StudyKind,
    sent: dict[tuple[int, str], set[bytes]],
    capfd: Any,
    what: str,
    start: Callable[[StudyKind], int] = methodcaller("run"),
) -> int:
    """The command's exit code, after what holds of every one."""
    capfd.readouterr()
    with _watching(sent):
        try:
            code = start(study)
        except PateFedError as error:  # what the command makes of it is its exit code
            code = error.exit_code
    said = capfd.readouterr()
    assert code in CODES and "Traceback" not in said.err + said.out, (what, said.err)
    assert all(len(found) == 1 for found in sent.values()), what
    return code


@pytest.mark.parametrize("moment", [BatchShares, MaskedVector, UnmaskShares], ids=lambda kind: kind.__name__)
def test_a_run_directory_that_is_taken_away_is_a_sentence_and_put_back_the_same_command_goes_on(
    moment: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    study, sent = SumStudy(tmp_path, monkeypatch), dict[tuple[int, str], set[bytes]]()
    whole, is_it, away = MaskedRounds._take, takes(moment), tmp_path / "away"

    def take(self: Any, *arguments: Any) -> None:
        whole(self, *arguments)
        if is_it(arguments) and not away.exists():
            study.run_dir.rename(away)

    monkeypatch.setattr(MaskedRounds, "_take", take)
    with _watching(sent):
        assert study.run() == 2
    said = capfd.readouterr()
    assert "Traceback" not in said.err and "put it back as it was" in said.err and "ε=- " in said.out
    assert not study.run_dir.exists()  # nothing began there anew
    away.rename(study.run_dir)
    away.mkdir()
    assert _run(study, sent, capfd, moment.__name__) == 0
    study.check()


@pytest.fixture(autouse=True)
def no_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody samples memory: a fifth of what each of some thousand runs takes."""
    monkeypatch.setattr("server.app._family_bytes", lambda: 0)


KINDS = pytest.mark.parametrize("made", [SumStudy, VoteStudy, OwnStudy], ids=lambda kind: kind.__name__)


def _cut_at_unmasking(study: StudyKind, pattern: str) -> tuple[Path, bytes]:
    """A file of a coordinator that died as shares came, cut to its half, and what it held."""
    with dying(MaskedRounds, "_take", takes(UnmaskShares), after=True):
        study.run()
    path = next(study.private.glob(pattern))
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    return path, whole


def test_a_damaged_reply_to_a_step_that_is_open_is_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = SumStudy(tmp_path, monkeypatch)
    _cut_at_unmasking(study, "sum-0.3-*.msg")
    assert study.run() == 0
    study.check()


@pytest.mark.parametrize("name", ["identity.key", "roster", "batch.json", "h0.head", "sum-0.1-*.msg"])
def test_a_damaged_file_is_named_costs_nothing_and_hospitals_wait_until_it_is_put_back(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    study = SumStudy(tmp_path, monkeypatch)
    path, whole = _cut_at_unmasking(study, name)
    assert study.run() == 6
    said = capfd.readouterr().err
    assert str(path) in said and "put its folder back as it was" in said
    ended = json.loads((study.run_dir / HOSPITALS).read_text(encoding="utf-8"))
    assert ended["exit_code"] == INTERRUPTED and not study.entries()
    path.write_bytes(whole)
    assert study.run() == 0
    study.check()


@pytest.mark.parametrize(
    "name", ["terms.json", "seen-*", "secure_sum/study.state", "secure_sum/identity.key"]
)
def test_a_damaged_file_of_a_hospitals_is_named_in_its_log_and_nobody_is_blamed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = SumStudy(tmp_path, monkeypatch)
    with dying(MaskedRounds, "_take", takes(MaskedVector), after=True):
        study.run()
    [path] = (study.parties / "h1").glob(name)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert study.run() == 0
    told = [event["sentence"] for event in study.events("fault")]
    where = str(path.parent if path.parent.name == "secure_sum" else path)
    assert told and all(where in each and "put its folder back as it was" in each for each in told)
    assert {event["party"] for event in study.left_out()} == {"h1"}
    assert all("malformed" not in event["reason"] for event in study.left_out())


@pytest.mark.slow
@KINDS
def test_a_disk_that_fills_up_is_a_sentence_and_with_room_the_same_command_goes_on(
    made: type[StudyKind], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """No file of either side grows beyond a size, as if that were all the room there is."""
    study = made(tmp_path, monkeypatch)
    kept = tmp_path / "kept"
    shutil.copytree(study.parties, kept)
    tried = Tried(f"{made.__name__} full")
    for number in range(len(tried.rows), FULL):
        rng = np.random.default_rng([38, number])
        for folder in (study.run_dir, study.parties):
            shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(kept, study.parties)
        most, sent = int(2 ** rng.uniform(0, 17)), dict[tuple[int, str], set[bytes]]()
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
        try:
            code = _run(study, sent, capfd, f"{number}: {most} bytes")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        first = code
        if code:
            code = _run(study, sent, capfd, f"{number}: after {most} bytes")
        assert code == 0, most
        rows = Counter(entry.batch_digest for entry in study.entries())
        assert rows and all(count == 1 for count in rows.values())
        tried.add(code=first)
    codes = Counter(row["code"] for row in tried.rows)
    with capfd.disabled():
        print(f"{made.__name__}: {FULL} full, exit codes {dict(sorted(codes.items()))}")


@contextmanager
def _refusing(folder: Path, *, at: int, why: int) -> Iterator[None]:
    """From its n-th write on nothing below the folder can be opened to be written, made or renamed."""
    done = 0

    def guarded(whole: Any) -> Any:
        def call(path: Any, *given: Any, **named: Any) -> Any:
            nonlocal done
            reads = whole is os_open and not given[0] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
            if not reads and Path(os.fsdecode(path)).is_relative_to(folder):
                done += 1
                if done >= at:
                    raise OSError(why, os.strerror(why), os.fsdecode(path))
            return whole(path, *given, **named)

        return call

    os_open = os.open
    with pytest.MonkeyPatch.context() as patch:
        for name in ("open", "mkdir", "rename", "replace"):
            patch.setattr(os, name, guarded(getattr(os, name)))
        yield


@pytest.mark.slow
@pytest.mark.parametrize("side", ["run", "parties"])
@KINDS
def test_writes_that_are_refused_from_one_on_are_a_sentence_and_then_the_same_command_goes_on(
    made: type[StudyKind],
    side: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """No space and no inodes, a quota, read-only, permission lost, a folder that is gone; on either side."""
    study, kept = made(tmp_path, monkeypatch), tmp_path / "kept"
    monkeypatch.setattr("server.federation.AGAIN_S", 0.0)  # no minutes in which it could pass
    shutil.copytree(study.parties, kept)
    tried = Tried(f"{made.__name__} refused at {side}")
    for number in range(len(tried.rows), FULL):
        rng, sent = np.random.default_rng([39, number]), dict[tuple[int, str], set[bytes]]()
        for folder in (study.run_dir, study.parties):
            shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(kept, study.parties)
        at, why = int(2 ** rng.uniform(0, 8)), REFUSED[number % len(REFUSED)]
        what = f"{number}: {side} from write {at}, {errno.errorcode[why]}"
        with _refusing(tmp_path / side, at=at, why=why):
            code = first = _run(study, sent, capfd, what)
        assert code in ((0, 2) if side == "run" else (0, 2, 4)), what
        if code:
            code = _run(study, sent, capfd, f"after {what}")
        assert code == 0, what
        rows = Counter(entry.batch_digest for entry in study.entries())
        assert rows and all(count == 1 for count in rows.values()), what
        tried.add(code=first)
    codes = Counter(row["code"] for row in tried.rows)
    with capfd.disabled():
        print(f"{made.__name__}: {FULL} refused at {side}, exit codes {dict(sorted(codes.items()))}")


@pytest.mark.slow
@pytest.mark.parametrize("moment", [BatchShares, MaskedVector, UnmaskShares, None], ids=str)
@KINDS
def test_a_torn_file_is_a_sentence_and_nothing_is_given_twice(
    made: type[StudyKind],
    moment: type | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    study, before = made(tmp_path, monkeypatch), dict[tuple[int, str], set[bytes]]()
    with _watching(before):
        if moment is None:
            assert study.run() == 0
        else:
            with dying(MaskedRounds, "_take", takes(moment), after=True):
                study.run()
    kept = tmp_path / "kept"
    for folder in (study.run_dir, study.parties):
        shutil.copytree(folder, kept / folder.name)
    files = sorted(path for path in kept.rglob("*") if path.is_file() and path.stat().st_size)
    tried = Tried(f"{made.__name__} torn after {moment and moment.__name__}")
    for number in range(len(tried.rows), TEARS):
        rng = np.random.default_rng([37, number])
        for folder in (study.run_dir, study.parties):
            shutil.rmtree(folder)
            shutil.copytree(kept / folder.name, folder)
        torn = files[number % len(files)]
        if moment is None and torn.relative_to(kept).parts[0] != study.run_dir.name:
            shutil.rmtree(study.run_dir)  # or nobody would ask the hospitals again
        what = f"{number}: {torn.relative_to(kept).parent}/" + _tear(tmp_path / torn.relative_to(kept), rng)
        sent = {key: set(found) for key, found in before.items()}
        code = _run(study, sent, capfd, what, _start)
        try:
            rows = Counter(entry.batch_digest for entry in study.entries())
        except PateFedError:
            rows = Counter()  # the ledger itself is torn, and says so
        assert all(count == 1 for count in rows.values()), what
        assert code or moment is not None, what  # hospitals answer a study once
        tried.add(code=code)
    codes = Counter(row["code"] for row in tried.rows)
    with capfd.disabled():
        print(f"{made.__name__}, {moment}: {TEARS} torn, exit codes {dict(sorted(codes.items()))}")
