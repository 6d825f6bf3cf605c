"""`pate-fed hospital open`: a hospital's side of a study as pages on loopback, for whoever types no commands.

What is shown, asked and recorded is the commands' own. The address that is printed works once: it is
exchanged for a cookie that no script reads and no other site's page makes a browser send. What changes
anything is a POST of a form on these very pages, and a yes is for the admission that was shown there.
"""

from __future__ import annotations

import argparse
import base64
import hmac
import json
import os
import re
import secrets
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from clients.policy import Policy, find_policy
from clients.state_dir import PART, find_state_dir
from pate_fed.cli import consent
from pate_fed.cli.hospital_compare import PICTURE, SAID
from pate_fed.cli.hospital_log import account_figures, account_lines, last_settings, log_lines
from pate_fed.cli.hospital_predict import student_lines, student_of
from pate_fed.cli.loopback import LoopbackHandler, LoopbackServer
from pate_fed.cli.parser import print_lines
from pate_fed.cli.predict import withdrawn
from pate_fed.cli.terms import make_page, own_pool, preview, read_offer
from pate_fed.disk import read_file
from pate_fed.errors import InputError, PateFedError, naming_refusal
from pate_fed.format import duration_text, printable
from pate_fed.identity import HospitalIdentity
from pate_fed.identity.admission import ADMISSION_FILE, consent_to, login_name
from pate_fed.report.html import asset, render_page
from pate_fed.runtime.signals import hangup_interrupts, interruptible, raise_if
from pate_fed.structure import to_plain

SECTIONS = ("study", "rehearsal", "left", "account", "student")
_IDLE_S = 1800.0
_LOOK_S, _STOP_S = 5.0, 20.0  # so long a look at a rehearsal waits for its end, and so long Ctrl-C does


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
        self._process = subprocess.Popen(
            [sys.executable, "-m", "pate_fed.cli", "hospital", "rehearse", *options],
            env={**os.environ, "COLUMNS": "88", "PYTHONIOENCODING": "utf-8"},
            stdin=subprocess.DEVNULL,
            stdout=other,
            stderr=other,
            start_new_session=True,  # a Ctrl-C here would end it in the middle of erasing what it made
        )
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

    def wait(self, seconds: float) -> None:
        """Wait for its end, or so long."""
        if self.running:
            self._reader.join(seconds)

    def look(self) -> dict[str, Any]:
        """What it has shown, and whether it goes on."""
        text = bytes(self._shown).decode("utf-8", "replace").replace("\r\n", "\n")
        since = duration_text(time.monotonic() - self._since)
        return {"shown": text.rstrip(), "running": self.running, "since": since}

    def stop(self) -> None:
        """End it, and let it erase what it made."""
        if self._process is not None and self.running:
            self._process.terminate()
            self.wait(_STOP_S)


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
        values: dict[str, Any] = {"section": section, "alarm": alarm, "lacks": "", "typed": typed or {}}
        self.rehearsal.wait(_LOOK_S if section == "rehearsal" else 0)
        with self._one:
            try:
                identity = self.identity()
                values |= self._head(identity)
                values |= getattr(self, f"_show_{section}")(identity)
            except PateFedError as error:
                values["lacks" if isinstance(error, InputError) else "alarm"] = str(error)
            values["told"], self._told = self._told, []
            return render_page("hospital.html.jinja", {**_readable(values), "form": self.form})

    def close(self) -> None:
        """Let what is under way come to its end, begin nothing more, and end a rehearsal."""
        self._one.acquire()  # for good
        self.rehearsal.stop()

    def _head(self, identity: HospitalIdentity) -> dict[str, Any]:
        admission, authority = identity.admission, identity.admission.fingerprint
        before = consent_to(self._folder, terms=admission.terms_digest, authority=authority)
        names = {"hospital": admission.hospital, "study": admission.study_terms.study}
        whole = json.dumps(to_plain(admission), sort_keys=True)  # address and roster are nobody's signature's
        return {**names, "digest": sha256(whole.encode()).hexdigest(), "before": before}

    def _state_dir(self, identity: HospitalIdentity) -> Path:
        admission, given = identity.admission, self._arguments.state_dir
        return find_state_dir(given, admission.hospital, admission.study_terms, admission.fingerprint)

    def _show_study(self, identity: HospitalIdentity) -> dict[str, Any]:
        admission, terms, pool = identity.admission, identity.admission.study_terms, self._arguments.pool
        policy = Policy.load(find_policy(self._arguments.policy, str(self._folder)))
        pool = own_pool(terms, admission) if pool is None else Path(pool)
        shown = None if pool is None else preview(pool, terms)
        page = make_page(terms, admission=admission, preview=shown, policy=policy)
        join = [self._offer, "--dir", self._folder, "--data", self._data(identity) or "RECORDS"]
        return {
            "terms": page.sections,
            "pictures": terms.table is None,
            "ask": {name: consent.READS.format(name) for name in consent.to_confirm(admission, policy)},
            "type_yes": consent.TYPE_YES.format(admission.hospital),
            "join": _command("join", *join, *self._given("pool", "decimal", "policy", "state_dir")),
        }

    def _data(self, identity: HospitalIdentity) -> str | None:
        """The records: as given, else as it last ran with."""
        last, given = last_settings(self._state_dir(identity)), self._arguments.data
        return given or (None if last is None or last.data.startswith(PART) else last.data)

    def _show_rehearsal(self, _: HospitalIdentity) -> dict[str, Any]:
        return {"rehearsal": self.rehearsal.look()}

    def _show_left(self, identity: HospitalIdentity) -> dict[str, Any]:
        state_dir = self._state_dir(identity)
        *lines, total = log_lines(state_dir, as_json=False)
        events = [line.partition("  ")[::2] for line in lines]
        return {"lines": events, "total": total, "more": _command("log", state_dir, "--verify")}

    def _show_account(self, identity: HospitalIdentity) -> dict[str, Any]:
        path = self._arguments.policy  # as for the command: a figure has one δ
        policy = None if path is None else Policy.load(Path(path))
        return {"account": list(account_lines(account_figures(identity.admission.hospital, policy)))}

    def _show_student(self, identity: HospitalIdentity) -> dict[str, Any]:
        state_dir = self._state_dir(identity)
        bundle, _ = student_of(state_dir, self._arguments.dir)
        found = {"notice": list(withdrawn(bundle, state_dir)), "student": list(student_lines(bundle))}
        found["more"] = [_command("compare", state_dir), _command("predict", state_dir, "RECORDS")]
        if (state_dir / SAID).exists():
            with naming_refusal(f"{state_dir}: what `pate-fed hospital compare` kept cannot be read"):
                found["compared"] = read_file(state_dir / SAID).decode("utf-8", "replace").split("\n")
                found["picture"] = [base64.b64encode(read_file(state_dir / PICTURE)).decode()]
        return found

    def rehearse(self, _: Mapping[str, str]) -> None:
        """Begin a rehearsal with the records that are given, or that it last ran with."""
        identity, policy = self.identity(), find_policy(self._arguments.policy, str(self._folder))
        if (data := self._data(identity)) is None:
            raise InputError("--data: give this hospital's records with `pate-fed hospital open` to rehearse")
        given = self._given("pool", "decimal") + ([] if policy is None else ["--policy", str(policy)])
        with self._one:
            self.rehearsal.start([str(self._offer), "--data", data, *given])

    def _given(self, *names: str) -> list[str]:
        """Those options that were given, for another command."""
        given = ((name, getattr(self._arguments, name)) for name in names)
        return [text for name, value in given if value for text in (f"--{name.replace('_', '-')}", value)]

    def answer(self, fields: Mapping[str, str]) -> None:
        """Record a yes to the terms that were shown, as `accept` does; a PateFedError says why it is none."""
        given = {name: text.strip().lower() for name, text in fields.items()}
        with self._one:
            for line in self._answer(given):
                self._told.append(line)
                with suppress(OSError):  # what is recorded must not end where nobody reads along
                    print_lines([line])

    def _answer(self, given: Mapping[str, str]) -> Iterable[str]:
        if given.get("answer") != "yes":
            yield consent.NOT_ACCEPTED
            return
        identity = self.identity(expected=given.get("fingerprint") or None)
        admission, policy = identity.admission, consent.policy_of(self._arguments.policy, identity)
        head = self._head(identity)
        if given.get("digest") != head["digest"]:
            raise InputError("not accepted: the admission is another than this page showed; read it again")
        asked = [(name, given.get(f"reads {name}")) for name in admission.hospitals]
        confirmed = consent.read_confirmed([f"{name}={words}" for name, words in asked if words], admission)
        if head["before"] is not None:
            yield from consent.go_on(head["before"], admission.study_terms, confirmed, policy)
        elif given.get("yes") != "yes":
            raise InputError(consent.NOT_ACCEPTED)
        elif given.get("user") != login_name().lower():
            raise InputError("not accepted: the login name is not that of who runs `pate-fed hospital open`")
        else:
            told = bool(given.get("fingerprint"))
            yield from consent.give_consent(identity, confirmed, policy, "asked on the page", compared=told)
        identity.take()


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
        self.telling(self._get)

    def do_POST(self) -> None:
        """What a form asks for, if it is a form of these pages."""
        self.telling(self._post)

    def _get(self) -> None:
        if self.server.enter(self.path.removeprefix("/")):
            cookie = f"pate-fed={self.server.cookie}; Path=/{self.server.place}/; HttpOnly; SameSite=Strict"
            where = f"/{self.server.place}/study"
            # No redirect: of a click on another site's page it would be that site's request, without cookie.
            text = f'<!doctype html><title>pate-fed</title><p><a href="{where}">To the pages</a>'
            more = {"Set-Cookie": cookie, "Refresh": f"0; url={where}"}
            self.send_text(text, "text/html", HTTPStatus.OK, **more)
        elif (name := self._asked()) == "style.css":
            self.send_text(asset("report.css") + asset("hospital.css"), "text/css")
        elif name in SECTIONS:
            self.send_text(self.server.pages.render(name))
        elif name is not None:
            self.send_error(HTTPStatus.NOT_FOUND)

    def _post(self) -> None:
        name, pages = self._asked(), self.server.pages
        if name is None or (fields := self._fields()) is None:
            return
        if (act := {"study": pages.answer, "rehearsal": pages.rehearse}.get(name)) is None:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        try:
            act(fields)
        except PateFedError as error:
            text = pages.render(name, alarm=str(error), typed=fields)
            self.send_text(text, status=HTTPStatus.BAD_REQUEST)
        else:
            self._redirect(name)

    def _asked(self) -> str | None:
        """The name below the place, for whoever has the cookie; None: it was answered that there is none."""
        cookies = (each.strip().partition("=") for each in self.headers.get("Cookie", "").split(";"))
        right = self.server.cookie.encode()  # others on loopback may set one of the same name beside it
        given = [value.encode() for name, _, value in cookies if name == "pate-fed"]
        if not any(hmac.compare_digest(value, right) for value in given):
            text = "This page opens once, by the address that `pate-fed hospital open` printed.\n"
            self.send_text(text, "text/plain", HTTPStatus.FORBIDDEN)
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
        if not re.fullmatch("[0-9]{1,5}", length):
            self.send_error(HTTPStatus.REQUEST_ENTITY_TOO_LARGE if length else HTTPStatus.LENGTH_REQUIRED)
            return None
        body = self.rfile.read(int(length)).decode("utf-8", "replace")
        fields = dict(parse_qsl(body, keep_blank_values=True))
        origin, site = self.headers.get("Origin"), self.headers.get("Sec-Fetch-Site")
        ours = origin == f"http://{self.headers['Host']}"
        if site is not None:  # of pages that give no referrer the Origin of a form is null
            ours = site == "same-origin" and (ours or origin == "null")
        if ours and hmac.compare_digest(fields.get("form", "").encode(), self.server.pages.form.encode()):
            return fields
        self.send_text("No form of these pages, as this browser says.\n", "text/plain", HTTPStatus.FORBIDDEN)
        return None

    def _redirect(self, name: str, **headers: str) -> None:
        where = f"/{self.server.place}/{name}"
        self.send_text("", status=HTTPStatus.SEE_OTHER, Location=where, **headers)


def open_pages(arguments: argparse.Namespace) -> int:
    """Serve the pages until Ctrl-C, or until nobody has looked for a while."""
    pages, stop = HospitalPages(arguments), threading.Event()
    server, rehearsal = OpenServer(pages), pages.rehearsal
    with server, interruptible(stop, note="a yes that was given is recorded"), hangup_interrupts():
        print(f"{server.url}\nit works once, in a browser on this machine; Ctrl-C ends it", flush=True)
        try:
            while not stop.is_set() and (rehearsal.running or time.monotonic() < server.used + _IDLE_S):
                server.handle_request()
        finally:
            pages.close()
    raise_if(stop)
    print(f"ended: nobody looked for {duration_text(_IDLE_S)}")
    return 0
