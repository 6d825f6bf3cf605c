"""`pate-fed hospital open`: a hospital's side of a study as pages on loopback, for whoever types no commands.

What is shown, asked and recorded is the commands' own. The address that is printed works once: it is
exchanged for a cookie that no script reads and no other site's page makes a browser send. What changes
anything is a POST of a form on these very pages, and a yes is for the terms that were shown there.
"""

from __future__ import annotations

import argparse
import base64
import hmac
import os
import secrets
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from clients.log import LOG_FILE
from clients.log_check import check_log
from clients.policy import Policy, find_policy
from clients.state_dir import PART, find_state_dir
from pate_fed.cli.consent import (
    NOT_ACCEPTED,
    READS,
    TYPE_YES,
    accepted_before,
    give_consent,
    go_on,
    policy_of,
    read_confirmed,
    take,
    to_confirm,
)
from pate_fed.cli.hospital import REHEARSAL
from pate_fed.cli.hospital_compare import COMPARED, PICTURE
from pate_fed.cli.hospital_log import account_figures, account_lines, identity_of, last_settings, log_lines
from pate_fed.cli.hospital_predict import student_lines, student_of
from pate_fed.cli.loopback import LoopbackHandler, LoopbackServer
from pate_fed.cli.parser import print_lines
from pate_fed.cli.predict import withdrawn
from pate_fed.cli.terms import make_page, own_pool, preview, read_offer
from pate_fed.disk import read_file, read_json
from pate_fed.errors import InputError, PateFedError
from pate_fed.format import duration_text, printable
from pate_fed.identity import Admission, HospitalIdentity
from pate_fed.identity.admission import ADMISSION_FILE, Consent, consent_to, login_name
from pate_fed.identity.bundle import BUNDLE_FILE
from pate_fed.report.html import asset, render_page
from pate_fed.runtime.signals import hangup_interrupts

SECTIONS = {"": "The study", "rehearsal": "Rehearsal", "left": "What left", "account": "Account"}
SECTIONS |= {"student": "The student"}
_CHECKED = "checked"  # what left, with the log's check
_IDLE_S = 1800.0
_LOOK_S = 5.0  # so long a look at a rehearsal waits for its end
_STOP_S = 20.0
_MOST_BODY = 65_536
_MOST_LINES = 500  # of the log


class Rehearsal:
    """`pate-fed hospital rehearse` as a process on a terminal of its own, and what it has shown so far."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._reader = threading.Thread()
        self._shown, self._since = bytearray(), 0.0

    @property
    def running(self) -> bool:
        """Whether it has not come to its end."""
        return self._reader.is_alive()

    def start(self, options: Sequence[str]) -> None:
        """Begin anew, unless one runs; `options` are the command's."""
        if self.running:
            return
        own, other = os.openpty()  # as off a terminal it withholds what it shows of records
        command = [sys.executable, "-m", "pate_fed.cli", "hospital", "rehearse", *options]
        how = {**os.environ, "COLUMNS": "88", "PYTHONIOENCODING": "utf-8"}
        try:
            # Its own session: a Ctrl-C here would end it in the middle of erasing what it made.
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=other, stderr=other, env=how, start_new_session=True
            )
        except BaseException:
            os.close(own)
            raise
        finally:
            os.close(other)
        self._shown, self._since = bytearray(), time.monotonic()
        self._reader = threading.Thread(target=self._read, args=(own, self._process), daemon=True)
        self._reader.start()

    def _read(self, own: int, process: subprocess.Popen[bytes]) -> None:
        with suppress(OSError):  # so a terminal ends whose other side is closed
            while some := os.read(own, 65_536):
                self._shown += some
        process.wait()
        os.close(own)

    def look(self, seconds: float) -> dict[str, Any]:
        """What it has shown, once it is over or the time is up."""
        if self.running:
            self._reader.join(seconds)
        text = bytes(self._shown).decode("utf-8", "replace").replace("\r\n", "\n")
        since = duration_text(time.monotonic() - self._since)
        return {"shown": text.rstrip(), "running": self.running, "since": since}

    def stop(self) -> None:
        """End it, and let it erase what it made."""
        if self._process is not None and self.running:
            self._process.terminate()
            self._reader.join(_STOP_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """What `pate-fed hospital compare` said."""

    said: tuple[str, ...]


class HospitalPages:
    """Each section as it is now, and what its buttons do."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments, self._folder = arguments, Path(arguments.dir)
        if arguments.admission is None:
            read_offer(self._folder)  # says what is missing
        self._offer = Path(arguments.admission or self._folder / ADMISSION_FILE)
        self.identity()
        self.rehearsal = Rehearsal()
        self.form = secrets.token_urlsafe(24)
        self._told, self._one = list[str](), threading.Lock()

    def identity(self, *, expected: str | None = None) -> HospitalIdentity:
        """The identity that the admission makes, checked, as `accept` checks it."""
        return HospitalIdentity.offered(self._folder, self._offer, expected=expected)

    def render(self, section: str, *, alarm: str = "", typed: Mapping[str, str] | None = None) -> str:
        """A section's page; a fault stands on it as the sentence that the command would end with."""
        values: dict[str, Any] = {"section": section.replace(_CHECKED, "left")}
        try:
            identity = self.identity()
            values |= self._head(identity)
            values |= self._shown_in(section)(identity)
        except PateFedError as error:
            alarm = alarm or str(error)
        with self._one:
            told, self._told = self._told, []
        values |= {"alarm": alarm, "told": told, "typed": typed or {}, "sections": SECTIONS}
        return render_page("hospital.html.jinja", {**_readable(values), "form": self.form})

    def _shown_in(self, section: str) -> Callable[[HospitalIdentity], dict[str, Any]]:
        return {
            "": self._study,
            "rehearsal": lambda _: {"rehearsal": self.rehearsal.look(_LOOK_S), "about": REHEARSAL},
            "left": self._left,
            _CHECKED: self._checked,
            "account": self._account,
            "student": self._student,
        }[section]

    def _before(self, admission: Admission) -> Consent | None:
        return consent_to(self._folder, terms=admission.terms_digest, authority=admission.fingerprint)

    def _head(self, identity: HospitalIdentity) -> dict[str, Any]:
        admission, before = identity.admission, self._before(identity.admission)
        accepted = "" if before is None else f"on {before.time} by {before.user}"
        return {"hospital": admission.hospital, "study": admission.study_terms.study, "accepted": accepted}

    def _state_dir(self, identity: HospitalIdentity) -> Path:
        admission, given = identity.admission, self._arguments.state_dir
        return find_state_dir(given, admission.hospital, admission.study_terms, admission.fingerprint)

    def _policy(self) -> tuple[Path | None, Policy]:
        path = find_policy(self._arguments.policy, str(self._folder))
        return path, Policy.load(path)

    def _study(self, identity: HospitalIdentity) -> dict[str, Any]:
        admission, (_, policy) = identity.admission, self._policy()
        terms, pool = admission.study_terms, self._arguments.pool
        pool = own_pool(terms, admission) if pool is None else Path(pool)
        shown = None if pool is None else preview(pool, terms)
        page = make_page(terms, admission=admission, preview=shown, policy=policy)
        data = self._data(identity) or "RECORDS"
        return {
            "terms": page.sections,
            "digest": admission.terms_digest,
            "ask": {name: READS.format(name) for name in to_confirm(admission, policy)},
            "type_yes": TYPE_YES.format(admission.hospital),
            "join": _command("join", self._offer, "--dir", self._folder, "--data", data),
        }

    def _data(self, identity: HospitalIdentity) -> str | None:
        """The records: as given, else as it last ran with."""
        last, given = last_settings(self._state_dir(identity)), self._arguments.data
        return given or (None if last is None or last.data.startswith(PART) else last.data)

    def _left(self, identity: HospitalIdentity) -> dict[str, Any]:
        state_dir = self._state_dir(identity)
        if not (state_dir / LOG_FILE).exists():
            return {"lines": [], "where": str(state_dir)}
        lines = list(log_lines(state_dir, as_json=False))
        events = [line.partition("  ")[::2] for line in lines[-_MOST_LINES - 1 : -1]]
        return {"lines": events, "total": lines[-1], "earlier": len(lines) - 1 - len(events)}

    def _checked(self, identity: HospitalIdentity) -> dict[str, Any]:
        found = check_log(state_dir := self._state_dir(identity), identity_of(state_dir, self._arguments.dir))
        broken = [f"PROBLEM: {what}" for what in found.broken]
        return {**self._left(identity), "checked": [*found.holds, *broken, found.verdict], "broken": broken}

    def _account(self, identity: HospitalIdentity) -> dict[str, Any]:
        path, policy = self._policy()
        found = account_figures(identity.admission.hospital, None if path is None else policy)
        return {"account": list(account_lines(found))}

    def _student(self, identity: HospitalIdentity) -> dict[str, Any]:
        state_dir = self._state_dir(identity)
        if not (state_dir / BUNDLE_FILE).exists():
            return {"student": []}
        bundle, _ = student_of(state_dir, self._arguments.dir)
        found = {"notice": list(withdrawn(bundle, state_dir)), "student": list(student_lines(bundle))}
        found["more"] = [_command("compare", state_dir), _command("predict", state_dir, "RECORDS")]
        if (state_dir / COMPARED).exists():
            what = "figures of `pate-fed hospital compare` of this release"
            found["compared"] = list(read_json(_Kept, state_dir / COMPARED, what=what, aside=True).said)
            picture = read_file(state_dir / PICTURE) if (state_dir / PICTURE).exists() else b""
            return {**found, "picture": base64.b64encode(picture).decode()}
        return found

    def rehearse(self) -> None:
        """Begin a rehearsal with the records that are given, or that it last ran with."""
        identity, policy = self.identity(), find_policy(self._arguments.policy, str(self._folder))
        if (data := self._data(identity)) is None:
            raise InputError("--data: give this hospital's records with `pate-fed hospital open` to rehearse")
        last = last_settings(self._state_dir(identity))
        decimal = self._arguments.decimal or (last and last.decimal)
        options = (("pool", self._arguments.pool), ("decimal", decimal), ("policy", policy))
        given = [text for name, value in options if value for text in (f"--{name}", str(value))]
        with self._one:
            self.rehearsal.start([str(self._offer), "--data", data, *given])

    def answer(self, fields: Mapping[str, str]) -> None:
        """Record a yes to the terms that were shown, as `accept` does, or change nothing.

        Raises:
            PateFedError: it is no yes, or not to these terms; the sentence says why.
        """
        given = {name: text.strip().lower() for name, text in fields.items()}
        with self._one:
            self._tell(self._answer(self.identity(expected=given.get("fingerprint") or None), given))

    def _answer(self, identity: HospitalIdentity, given: Mapping[str, str]) -> Iterable[str]:
        admission, policy = identity.admission, policy_of(self._arguments.policy, identity)
        if given.get("digest") != admission.terms_digest:
            raise InputError("not accepted: the terms are others than this page showed; read them again")
        before, yes = self._before(admission), given.get("answer") == "yes"
        asked = [(name, given.get(f"reads {name}")) for name in admission.hospitals]
        confirmed = read_confirmed([f"{name}={words}" for name, words in asked if words], admission)
        if not yes:
            yield NOT_ACCEPTED if before is None else accepted_before(before)
            return
        if before is not None:
            yield from go_on(before, identity, confirmed, policy)
        elif given.get("yes") != "yes":
            raise InputError(NOT_ACCEPTED)
        elif given.get("user") != login_name().lower():
            raise InputError("not accepted: the login name is not that of who runs `pate-fed hospital open`")
        else:
            known = bool(given.get("fingerprint"))
            yield from give_consent(identity, confirmed, policy, "asked on the page", fingerprint_given=known)
        yield take(identity)

    def _tell(self, lines: Iterable[str]) -> None:
        """Keep each line for the next page, and print it, as what it tells of is done then."""
        for line in lines:
            self._told.append(line)
            print_lines([line])


def _readable(value: Any) -> Any:
    """The same, every text in it without control characters but its line feeds."""
    if isinstance(value, str):
        return "\n".join(map(printable, value.split("\n")))
    if isinstance(value, Mapping):
        return {key: _readable(each) for key, each in value.items()}
    return [_readable(each) for each in value] if isinstance(value, list | tuple) else value


def _command(action: str, *given: object) -> str:
    return shlex.join(["pate-fed", "hospital", action, *map(str, given)])


class OpenServer(LoopbackServer):
    """Serves the pages to the one browser that came with the address while it was new."""

    timeout = 0.5  # between looks at the clock

    def __init__(self, pages: HospitalPages) -> None:
        self.pages, self.used = pages, time.monotonic()
        # Cookies know no ports. The place is no secret: it keeps ours from other servers on loopback.
        self.place, self.cookie = secrets.token_urlsafe(16), secrets.token_urlsafe(24)
        self._once: str | None = secrets.token_urlsafe(24)
        self._entering = threading.Lock()
        super().__init__(_Handler)
        self.url = f"{self.origin}/{self._once}"

    def enter(self, given: str) -> bool:
        """Whether this is the address's token, and nobody came with it before."""
        with self._entering:
            right = self._once is not None and hmac.compare_digest(given.encode(), self._once.encode())
            self._once = None if right else self._once
            return right


class _Handler(LoopbackHandler):
    server: OpenServer
    may = "style-src 'self'; img-src data:; form-action 'self'"

    def do_GET(self) -> None:
        """The cookie for the address, or a page for the cookie."""
        if self.server.enter(self.path.removeprefix("/")):
            cookie = f"pate-fed={self.server.cookie}; Path=/{self.server.place}/; HttpOnly; SameSite=Strict"
            self._redirect("", {"Set-Cookie": cookie})
        elif (name := self._asked()) == "style.css":
            self.send_text(asset("report.css") + asset("hospital.css"), "text/css")
        elif name in SECTIONS or name == _CHECKED:
            self.send_text(self.server.pages.render(name))
        elif name is not None:
            self.send_error(HTTPStatus.NOT_FOUND)

    def do_POST(self) -> None:
        """What a form asks for, if it is a form of these pages."""
        name = self._asked()
        if name is None or (fields := self._fields()) is None:
            return
        try:
            if name == "rehearse":
                self.server.pages.rehearse()
            elif name == "answer":
                self.server.pages.answer(fields)
            else:
                self.send_error(HTTPStatus.NOT_FOUND)
                return
        except PateFedError as error:
            section = "rehearsal" if name == "rehearse" else ""
            text = self.server.pages.render(section, alarm=str(error), typed=fields)
            self.send_text(text, status=HTTPStatus.BAD_REQUEST)
        else:
            self._redirect("rehearsal" if name == "rehearse" else "")

    def _asked(self) -> str | None:
        """The name below the place, for whoever has the cookie; None: it was answered that there is none."""
        cookies = (each.strip().partition("=")[::2] for each in self.headers.get("Cookie", "").split(";"))
        given = dict(cookies).get("pate-fed", "")
        if not hmac.compare_digest(given.encode(), self.server.cookie.encode()):
            text = "This page opens once, by the address that `pate-fed hospital open` printed.\n"
            self.send_text(text, "text/plain", status=HTTPStatus.FORBIDDEN)
            return None
        self.server.used = time.monotonic()
        place, slash, name = self.path.removeprefix("/").partition("/")
        if place == self.server.place and slash:
            return name
        self.send_error(HTTPStatus.NOT_FOUND)
        return None

    def _fields(self) -> dict[str, str] | None:
        """A form's fields; None: it was refused, as it is no form of these pages."""
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit()):
            refused = HTTPStatus.LENGTH_REQUIRED
        elif len(length) > 9 or int(length) > _MOST_BODY:
            refused = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
        elif not self._of_these_pages():
            refused = HTTPStatus.FORBIDDEN
        else:
            body = self.rfile.read(int(length)).decode("utf-8", "replace")
            fields = dict(parse_qsl(body, keep_blank_values=True))
            if hmac.compare_digest(fields.get("form", "").encode(), self.server.pages.form.encode()):
                return fields
            refused = HTTPStatus.FORBIDDEN
        self.send_error(refused)
        return None

    def _of_these_pages(self) -> bool:
        """Whether the browser says that a page of this very server sent it.

        As our pages give no referrer, their forms' Origin is null, and Sec-Fetch-Site says whose it is.
        """
        origin, site = self.headers.get("Origin"), self.headers.get("Sec-Fetch-Site")
        ours = origin == f"http://{self.headers['Host']}"
        return site == "same-origin" and (ours or origin == "null") if site is not None else ours

    def _redirect(self, name: str, headers: Mapping[str, str] | None = None) -> None:
        where = {"Location": f"/{self.server.place}/{name}"}
        self.send_text("", status=HTTPStatus.SEE_OTHER, headers={**where, **(headers or {})})


def open_pages(arguments: argparse.Namespace) -> int:
    """Serve the pages until Ctrl-C, or until nobody has looked for a while."""
    pages = HospitalPages(arguments)
    with OpenServer(pages) as server, hangup_interrupts():
        print(
            f"{server.url}\nthis address works once, in a browser on this machine; Ctrl-C ends it", flush=True
        )
        try:
            while pages.rehearsal.running or time.monotonic() < server.used + _IDLE_S:
                server.handle_request()
        finally:
            pages.rehearsal.stop()
    print(f"ended: nobody looked for {duration_text(_IDLE_S)}")
    return 0
