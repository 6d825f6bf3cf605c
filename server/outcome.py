"""How a study ended, as hospitals are told it: who took part, who was told, and what each receipt names.

It lies in the run directory, for this user alone: a hospital that was away when the study ended is told by
whoever gives the same command again. Names and digests are all that is kept.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import Message
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from pate_fed.disk import read_file, read_json, write_private
from pate_fed.errors import IntegrityError
from pate_fed.flower.records import from_flower, to_flower
from pate_fed.flower.transport import Untold
from pate_fed.identity.bundle import BUNDLE_FILE
from pate_fed.identity.keys import Receipt
from pate_fed.protocol import messages as wire
from pate_fed.structure import PARTY_NAME, setting, to_plain

HOSPITALS = "hospitals.json"  # in the run directory

# What came from each hospital, by digests: its receipt at the study's end.


class Receipts:
    """Digests of all replies of a study, and the receipts that follow from them, signed with `key`.

    `folder` is where another coordinator process finds them; None: nowhere. Of a vote they tell nothing to
    who has them alone: each reply holds the hospital's own statement, which nobody can guess.
    """

    def __init__(self, key: Ed25519PrivateKey, *, terms_digest: str, folder: Path | None) -> None:
        self._key, self._terms_digest = key, terms_digest
        self._path = None if folder is None else folder / f"received-{terms_digest[:16]}"
        self._received: dict[str, list[str]] = {}
        if folder is not None:  # now, and no more where it is gone later
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._path is not None and self._path.exists():
            # The line that a crash cut short has no digest.
            text = self._path.read_text(encoding="utf-8", errors="replace")
            lines = [line.split() for line in text.splitlines()]
            for party, digest in (line for line in lines if len(line) == 2 and len(line[1]) == 64):
                self._received.setdefault(party, []).append(digest)

    def took(self, party: str, reply: wire.Reply) -> None:
        """Note a reply of the hospital whose key it came with; OSError where it cannot be written."""
        digest = wire.record_digest(reply.to_record())
        self._received.setdefault(party, []).append(digest)
        if self._path is None or not PARTY_NAME.fullmatch(party):
            return
        with open(self._path, "a", encoding="utf-8", opener=partial(os.open, mode=0o600)) as file:
            file.write(f"\n{party} {digest}")  # after a line that was cut, too

    def of(self, party: str) -> str:
        """The signed receipt of one hospital as text; empty where nothing came from it."""
        received = tuple(self._received.get(party, ()))
        if not received:
            return ""
        found = Receipt(hospital=party, terms_digest=self._terms_digest, received=received)
        return found.signed(self._key)


# Who took part, and who was told.


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """The hospitals of a run as they are written, and how it ended; without a status it has not."""

    terms_digest: str
    took_part: tuple[str, ...] = ()
    told: tuple[str, ...] = ()
    status: str = ""
    exit_code: int = setting(0, low=0)
    summary: str = ""


_AGAIN_S = 10.0  # until one that cannot hear it now, as with a full disk, is told again
_AT_ONCE = 16  # hospitals that are told at a time
_KEPT_S = 3600.0  # for which a message waits for its hospital
_AWAY = (ErrorCode.NODE_UNAVAILABLE, ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE)


class Audience:
    """The hospitals that took part in a study, by their names, and which of them were told how it ended.

    `run_dir` is where another process finds that; None: nowhere.

    Raises:
        IntegrityError: what was kept is damaged.
    """

    def __init__(self, run_dir: Path | None, *, terms_digest: str = "") -> None:
        self._path = None if run_dir is None else run_dir / HOSPITALS
        self._kept = _Kept(terms_digest=terms_digest)
        self.receipts: Receipts | None = None
        if self._path is not None and self._path.exists():
            what = "the list of a run's hospitals: remove it, and the run goes on without"
            kept = read_json(_Kept, self._path, what=what, error=IntegrityError)
            if terms_digest in ("", kept.terms_digest):
                self._kept = kept

    @property
    def terms_digest(self) -> str:
        """Names the terms of the study."""
        return self._kept.terms_digest

    @property
    def took_part(self) -> tuple[str, ...]:
        """Who agreed to the terms and got ready, and did not leave the study since."""
        return self._kept.took_part

    @property
    def exit_code(self) -> int:
        """The study's own."""
        return self._kept.exit_code

    def set_admitted(
        self, names: Mapping[int, str], sum_identities: Mapping[str, bytes], *, key: Ed25519PrivateKey
    ) -> None:
        """Sign receipts with `key` from now on."""
        folder = None if self._path is None else self._path.parent
        self.receipts = Receipts(key, terms_digest=self.terms_digest, folder=folder)

    def joins(self, parties: Iterable[str]) -> None:
        """Note who takes part; OSError where it cannot be written."""
        found = sorted({*self._kept.took_part, *parties})
        self._write(replace(self._kept, took_part=tuple(found)))

    def leaves(self, party: str) -> None:
        """One that left the study does not come back; OSError where it cannot be written."""
        left = tuple(each for each in self._kept.took_part if each != party)
        self._write(replace(self._kept, took_part=left))

    def ends(self, notice: wire.EndRequest) -> None:
        """Note how the study ended, which nobody was told yet.

        Raises:
            OSError: it cannot be written; it is known here all the same.
        """
        self._write(
            replace(
                self._kept, told=(), status=notice.status, exit_code=notice.exit_code, summary=notice.summary
            )
        )

    def notice_for(self, party: str) -> wire.EndRequest:
        """What one hospital is told, with its receipt; the name is empty where nobody has a key.

        After a success the student goes to those that took part.
        """
        kept, receipts = self._kept, self.receipts
        gets_student = receipts is not None and kept.exit_code == 0 and party in kept.took_part
        return wire.EndRequest(
            status=kept.status,
            exit_code=kept.exit_code,
            summary=kept.summary,
            receipt="" if receipts is None else receipts.of(party),
            student=self._student if gets_student else b"",
        )

    @cached_property
    def _student(self) -> bytes:
        """The run's signed student; empty where it has none."""
        with suppress(OSError):
            if self._path is not None:
                return read_file(self._path.with_name(BUNDLE_FILE), most=wire.MOST_STUDENT)
        return b""

    def untold(self, admitted: Iterable[str] | None = None) -> tuple[str, ...]:
        """Who took part and was not told; of the `admitted` ones alone, as a revoked one is not heard."""
        known = self._kept.took_part if admitted is None else set(admitted)
        told = self._kept.told
        return tuple(each for each in self._kept.took_part if each in known and each not in told)

    def telling(self, grid: Grid, names: Mapping[int, str] | None) -> Iterator[Untold]:
        """Tell every hospital that is connected or comes; with each look who was not told yet.

        `names` are those of the admitted hospitals by their nodes; None where they have no keys.
        """
        asked, sent, later = set[int](), dict[str, int](), dict[int, float]()
        while True:
            online = {node for node in grid.get_node_ids() if names is None or node in names}
            asked &= online  # who went may come back, and wait
            new = sorted(node for node in online - asked if later.get(node, 0.0) <= time.monotonic())
            new = new[: max(1, _AT_ONCE - len(sent))]  # a student may be large
            notices = [self.notice_for("" if names is None else names.get(node, "")) for node in new]
            messages = [
                Message(to_flower(notice.to_record()), node, wire.END, ttl=_KEPT_S)
                for node, notice in zip(new, notices, strict=True)
            ]
            if messages:
                sent.update(zip(grid.push_messages(messages), new, strict=True))
            asked.update(new)
            for message in list(grid.pull_messages(list(sent))) if sent else ():
                node = sent.pop(message.metadata.reply_to_message_id, None)
                if node is None or (names is not None and node not in names):
                    continue
                heard = self._heard(message, "" if names is None else names.get(node, ""))
                if not heard and node not in sent.values():
                    asked.discard(node)
                    later[node] = time.monotonic() + _AGAIN_S
            pending = asked & set(sent.values())
            yield Untold(pending=len(pending), parties=self.untold(None if names is None else names.values()))

    def _heard(self, message: Message, name: str) -> bool:
        """Note who was told by its answer, without a name by its own; False where it is told once more."""
        if message.has_error():  # an app that fails would fail again
            return message.error.code not in _AWAY
        try:
            reply = wire.parse_reply(from_flower(message.content))
        except IntegrityError:
            return True
        if isinstance(reply, wire.RefusalReply) and reply.refusal is wire.Refusal.LATER:
            return False
        party = name or reply.party
        if isinstance(reply, wire.EndReply) and party in self.untold():
            with suppress(OSError):  # on a full disk another process would tell it once more
                self._write(replace(self._kept, told=(*self._kept.told, party)))
        return True

    def _write(self, kept: _Kept) -> None:
        if kept == self._kept:
            return
        self._kept = kept
        if self._path is not None:
            write_private(self._path, json.dumps(to_plain(kept)).encode())
