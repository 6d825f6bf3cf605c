"""What a hospital remembers of its answers, also from a process that is gone."""

from __future__ import annotations

import stat
import time
from pathlib import Path

import numpy as np
import pytest

from clients.journal import Journal
from pate_fed.errors import IntegrityError
from pate_fed.protocol.messages import Question

KEY = b"a coordinator's key"


def _asked(first: int, end: int, batch: int = 0) -> Question:
    index = np.arange(first, end, dtype=np.int64)
    return Question(terms_digest="0" * 64, batch=batch, index=index)


def test_claims_survive_and_days_pass(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    assert journal.claim(_asked(0, 30))
    assert journal.claim(_asked(30, 42))
    assert Journal(tmp_path).claim(_asked(0, 30))  # the same question, of which one answer is kept
    assert not journal.claim(_asked(0, 30, batch=1))
    assert Journal(tmp_path).answered() == 42
    assert Journal(tmp_path).answered(since=time.time() + 60) == 0


def test_no_query_is_claimed_twice(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    assert journal.claim(_asked(0, 3)) and journal.claimed(_asked(0, 3, batch=7).content_digest)
    assert (
        not journal.claim(_asked(2, 5))
        and journal.overlaps(np.array([2]))
        and not journal.overlaps(np.array([3]))
    )
    assert journal.answered() == 3


def test_a_claim_of_an_earlier_release_is_nobodys_to_repeat(tmp_path: Path) -> None:
    journal, question = Journal(tmp_path), _asked(0, 3)
    (tmp_path / "answered" / question.content_digest).write_bytes(question.index.tobytes())
    (tmp_path / "answered" / f"{_asked(5, 9).content_digest}.x.part").write_bytes(b"")  # a crash cut it short
    votes = np.ones((3, 2), dtype=np.int64)
    assert journal.claimed(question.content_digest) and journal.answered() == 3
    assert not journal.claim(question) and journal.answer_once(question, votes, asker=KEY) is None
    assert journal.claim(_asked(5, 9))


def test_a_question_has_one_answer_which_only_its_asker_gets_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, first, other = Journal(tmp_path), np.ones((3, 2), dtype=np.int64), np.zeros((3, 2), np.int64)
    for votes in (first, other):
        answer = journal.answer_once(_asked(0, 3), votes, asker=KEY)
        assert answer is not None
        np.testing.assert_array_equal(answer, first)
    assert journal.answer_once(_asked(0, 3), other, asker=b"another key") is None
    assert journal.answer_once(_asked(0, 3, batch=1), other, asker=KEY) is None
    assert journal.answer_once(_asked(2, 5), other, asker=KEY) is None
    path = tmp_path / "answer.npz"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert journal.answer_once(_asked(3, 6), other, asker=KEY) is not None  # the next, so this one is over
    assert journal.kept_answer(_asked(0, 3), asker=KEY) is None
    with monkeypatch.context() as patch, pytest.raises(OSError, match="Permission"):  # it may pass

        def closed(path: Path) -> bytes:
            raise PermissionError(13, "Permission denied")

        patch.setattr(Path, "read_bytes", closed)
        journal.answer_once(_asked(3, 6), other, asker=KEY)
    path.write_bytes(path.read_bytes()[:60])
    with pytest.raises(IntegrityError, match="the answer that was kept is damaged"):
        journal.answer_once(_asked(3, 6), other, asker=KEY)
    journal.forget_answer()
    journal.forget_answer()
    assert not path.exists() and journal.answer_once(_asked(3, 6), other, asker=KEY) is None


def test_an_answer_without_its_claim_was_never_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It dies between the two: other questions may come first, and then this one gets none."""
    journal, votes = Journal(tmp_path), np.ones((3, 2), dtype=np.int64)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("clients.journal.write_private", _die)
        journal.answer_once(_asked(0, 3), votes, asker=KEY)
    assert (tmp_path / "answer.npz").exists() and journal.kept_answer(_asked(0, 3), asker=KEY) is None
    assert journal.claim(_asked(2, 5))
    assert journal.answer_once(_asked(0, 3), votes, asker=KEY) is None


def _die(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def test_what_was_revealed_is_noted_and_counts_as_no_claim(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    question = _asked(1, 3)
    assert not journal.revealed(question.digest)
    journal.note_revealed(question.digest)
    again = Journal(tmp_path)
    assert again.revealed(question.digest) and not again.revealed("ab" * 32)
    assert not again.claimed(question.content_digest) and not again.overlaps(question.index)
    assert again.claim(question)
    assert again.overlaps(question.index) and not again.overlaps(question.index, but=question)
    assert again.overlaps(question.index, but=_asked(1, 4))
