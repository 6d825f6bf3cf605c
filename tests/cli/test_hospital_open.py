"""`pate-fed hospital open`: who gets in, what a form may do, and that a yes is the terminal's."""

from __future__ import annotations

import http.client
import json
import re
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

import pytest

from clients.account import Account
from clients.log import HospitalLog
from clients.policy import Policy
from clients.state_dir import default_state_dir
from pate_fed.cli import hospital_open
from pate_fed.cli.hospital_open import SECTIONS, HospitalPages, OpenServer, Rehearsal
from pate_fed.cli.main import make_parser
from pate_fed.disk import hold
from pate_fed.identity import Admission
from pate_fed.identity.admission import login_name


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    text: str


class Browser:
    """Plain requests to the pages of a hospital's folder, with its cookie once it has entered."""

    def __init__(self, *options: str) -> None:
        pages = HospitalPages(make_parser().parse_args(["hospital", "open", *options]))
        self.server, self.cookie = OpenServer(pages), ""

    def ask(self, path: str, *, method: str = "GET", body: str = "", **headers: str) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.server_address[1], timeout=60)
        try:
            cookie = {"Cookie": self.cookie} if self.cookie else {}
            connection.request(method, path, body=body or None, headers={**cookie, **headers})
            answer = connection.getresponse()
            return Answer(answer.status, dict(answer.getheaders()), answer.read().decode())
        finally:
            connection.close()

    def enter(self) -> Browser:
        self.cookie = self.ask("/" + self.server.url.rsplit("/", 1)[1]).headers["Set-Cookie"].split(";")[0]
        return self

    def look(self, section: str = "study") -> str:
        answer = self.ask(f"/{self.server.place}/{section}")
        assert answer.status == 200
        return answer.text

    def fields(self, **given: str) -> dict[str, str]:
        """What the form of a yes would send."""
        sealed = dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]+)"', self.look()))
        return {**sealed, "answer": "yes", "user": login_name(), "yes": "yes", **given}

    def send(self, fields: Mapping[str, str], *, to: str = "study", **headers: str) -> Answer:
        headers = {"Origin": self.server.origin, "Sec-Fetch-Site": "same-origin", **headers}
        headers = {name: value for name, value in headers.items() if value}
        return self.ask(f"/{self.server.place}/{to}", method="POST", body=urlencode(fields), **headers)


@pytest.fixture
def browser(masked: dict[str, str], own: Path) -> Iterator[Browser]:
    """North's pages before its yes, in a study under masks of which it has confirmed nobody."""
    browser = Browser("own/north.admission", "--dir", "own")
    how = {"poll_interval": 0.01}
    thread = threading.Thread(target=browser.server.serve_forever, kwargs=how, daemon=True)
    thread.start()
    yield browser
    browser.server.shutdown()
    browser.server.server_close()
    thread.join()


def _files(own: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in own.iterdir()}


def test_the_address_works_once_and_is_exchanged_for_a_cookie(browser: Browser) -> None:
    token = browser.server.url.rsplit("/", 1)[1]
    assert len(token) >= 32 and token not in (browser.server.cookie, browser.server.place)
    for path in ("/", "/study", f"/{browser.server.place}/study", f"/{token}x", f"/{token}/"):
        answer = browser.ask(path)
        assert answer.status == 403 and "opens once" in answer.text and "north" not in answer.text
    first = browser.ask(f"/{token}")
    assert first.status == 200 and first.headers["Refresh"] == f"0; url=/{browser.server.place}/study"
    kept = f"; Path=/{browser.server.place}/; HttpOnly; SameSite=Strict"
    assert first.headers["Set-Cookie"] == f"pate-fed={browser.server.cookie}{kept}"
    assert browser.ask(f"/{token}").status == 403
    # Another server on loopback may have set one of the same name.
    browser.cookie = f"pate-fed=x; other=1; pate-fed={browser.server.cookie}; pate-fed=y"
    text = browser.look()
    assert not any(secret in text for secret in (token, browser.server.cookie)) and "<script" not in text
    for path in (token, "../own/hospital.key", "%2e%2e/", "render", "study?answer=yes"):
        assert browser.ask(f"/{browser.server.place}/{path}").status == 404
    assert browser.ask("/study").status == browser.ask("/other/study").status == 404
    assert browser.ask(f"/{browser.server.place}/study", Host="evil.example").status == 403


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "http://127.0.0.1:1"}, 403),  # a page of another server on this machine
        ({"Origin": "https://evil.example", "Sec-Fetch-Site": ""}, 403),
        ({"Origin": "", "Sec-Fetch-Site": ""}, 403),
        ({"Origin": "null", "Sec-Fetch-Site": ""}, 403),
        ({"Origin": "null", "Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Cookie": ""}, 403),
        ({"Cookie": "pate-fed=other"}, 403),
        ({"Host": "evil.example"}, 403),
        ({"Content-Length": "100000"}, 413),
        ({"Content-Length": "-1"}, 413),
        ({"form": ""}, 403),
        ({"form": "other"}, 403),
    ],
)
def test_a_form_of_others_does_nothing(
    headers: dict[str, str], status: int, browser: Browser, own: Path
) -> None:
    fields, before = browser.enter().fields(), _files(own)
    if (form := headers.pop("form", None)) is not None:
        fields["form"] = form
    if "Cookie" in headers:
        browser.cookie = headers.pop("Cookie")
    assert browser.send(fields, **headers).status == status
    assert _files(own) == before


def test_nothing_consents_but_a_post(browser: Browser, own: Path) -> None:
    fields, before = browser.enter().fields(), _files(own)
    query = urlencode(fields)
    assert browser.ask(f"/{browser.server.place}/study?{query}").status == 404
    for method in ("PUT", "HEAD", "OPTIONS", "DELETE"):
        assert browser.ask(f"/{browser.server.place}/study", method=method, body=query).status == 405
    assert browser.send(fields, to="account").status == 404
    for section in SECTIONS:
        browser.look(section)
    assert _files(own) == before


def test_a_yes_needs_these_terms_this_name_and_the_word(
    browser: Browser, own: Path, masked: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    right, before = browser.enter().fields(), _files(own)
    for given, told in (
        ({"digest": "0" * 64}, "the admission is another than this page showed"),
        ({"user": "somebody"}, "the login name is not that of who runs"),
        ({"user": ""}, "the login name is not that of who runs"),
        ({"yes": "y"}, "not accepted: nothing was changed"),
        ({"fingerprint": masked["east"]}, "not the expected one: do not join, call the coordinator"),
        ({"reads east": masked["west"]}, f"the coordinator says {masked['east']}"),
        ({"reads east": "<script>alert(1)</script>"}, "five words of five letters"),
    ):
        answer = browser.send({**right, **given})
        assert answer.status == 400 and told in answer.text.replace("&#39;", "'")
        assert 'role="alert"' in answer.text and "<script" not in answer.text
    offer = own / "north.admission"
    said = json.loads(offer.read_text())
    for other in ({"address": "evil.example:666"}, {"hospitals": {"east": masked["east"]}}):
        offer.write_text(json.dumps(said | other))
        assert "another than this page showed" in browser.send(right).text
    offer.write_bytes(before[offer.name])
    no = browser.send({"form": right["form"], "digest": right["digest"], "answer": "no"})
    assert no.status == 303 and "not accepted: nothing was changed, and nobody was told" in browser.look()
    assert _files(own) == before and "nobody was told" not in browser.look()
    assert capsys.readouterr().out == "not accepted: nothing was changed, and nobody was told\n"


def test_a_yes_is_recorded_as_the_terminals_and_once(
    browser: Browser, own: Path, masked: dict[str, str]
) -> None:
    offered = Admission.read(own / "north.admission")
    given = browser.enter().fields(**{"reads east": masked["east"].upper(), "fingerprint": offered.words})
    assert browser.send(given, Origin="null").status == 303  # as browsers send where no referrer is given
    [consent] = map(json.loads, (own / "consent.jsonl").read_text().splitlines())
    assert consent["terms"] == offered.terms_digest and consent["authority"] == offered.fingerprint
    assert (consent["answer"], consent["user"]) == ("asked on the page", login_name())
    assert consent["fingerprint_given"] is True and (own / "admission.json").exists()
    assert Policy.load(own / "policy.toml").trusted == {"east": masked["east"]}
    text = browser.look()
    assert "confirmed east: written into [trusted]" in text and "accepted by" in text
    assert "pate-fed hospital join own/north.admission --dir own --data RECORDS" in text
    assert "What west reads" in text and "What east reads" not in text and 'name="yes"' not in text
    assert browser.send({**given, "reads west": masked["west"]}).status == 303
    assert "not asked again" in browser.look()
    browser.send({**given, "answer": "no"})  # of a page that was loaded before the yes
    assert "not accepted: nothing was changed" in browser.look()
    assert len((own / "consent.jsonl").read_text().splitlines()) == 1
    assert set(Policy.load(own / "policy.toml").trusted) == {"east", "west"}
    # Without the file's name: what was accepted.
    again = ["hospital", "open", "--dir", "own", "--data", "my records.csv", "--pool", "lost.csv"]
    pages = HospitalPages(make_parser().parse_args(again))
    text = pages.render("study")
    assert "lost.csv" in text and 'role="status"' in text and "not accepted yet" not in text
    pages = HospitalPages(make_parser().parse_args(again[:-2]))
    assert "own/admission.json --dir own --data &#39;my records.csv&#39;" in pages.render("study")


def test_what_left_and_what_it_cost_is_read_while_the_hospital_runs(browser: Browser, own: Path) -> None:
    browser.enter()
    assert "no hospital ran there" in browser.look("left")
    assert "no study was agreed to yet" in browser.look("account")
    assert "no student came" in browser.look("student")
    admission = Admission.read(own / "north.admission")
    terms = admission.study_terms
    state = default_state_dir("north", terms, admission.fingerprint)
    state.mkdir(parents=True)
    with hold(state, what="STATE_DIR"):
        HospitalLog(state).note("sent", bytes=77, message_type="<b>\u202evote")
        Account("north").book(terms, state="here", data="records.csv", policy=None)
        text = browser.look("left")
        assert "sent 77 bytes (&lt;b&gt; vote)" in text and "77 bytes sent" in text
        assert f"log {state} --verify" in text
        assert f"{terms.study} ({terms.digest[:12]}…)" in browser.look("account")
        assert "WHO SEES IT" in browser.look().upper()


def test_a_rehearsal_without_records_says_what_is_missing(browser: Browser) -> None:
    answer = browser.enter().send(browser.fields(), to="rehearsal")
    assert answer.status == 400 and "--data: give this hospital&#39;s records" in answer.text


def test_a_rehearsal_shows_what_a_terminal_shows_and_can_be_ended(tmp_path: Path) -> None:
    rehearsal = Rehearsal()
    rehearsal.start(["--help"])
    rehearsal.wait(20)
    found = rehearsal.look()
    assert not found["running"] and "up to the wire" in found["shown"]
    assert "\r" not in found["shown"]
    rehearsal.start([str(tmp_path / "none"), "--data", "none"])
    rehearsal.stop()
    assert not rehearsal.running


def test_words_of_others_have_no_control_characters_on_a_page() -> None:
    told = hospital_open._readable({"facts": (("a\u202eb", "\x1b[2Jc\nd"),), "number": 1})
    assert told == {"facts": [["a b", " [2Jc\nd"]], "number": 1}


def test_wrong_files_are_told_before_a_page_is_there(own: Path, run: Any) -> None:
    code, out, err = run("hospital", "open", "--dir", "own")
    assert code == 2 and out == "" and "no admission was accepted there yet: give its file" in err
    code, out, err = run("hospital", "open", "own/north.admission")
    assert code == 2 and out == "" and "holds no hospital.key" in err


def test_it_ends_when_nobody_looks(own: Path, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hospital_open, "_IDLE_S", 0.1)
    monkeypatch.setattr(OpenServer, "timeout", 0.01)
    started = time.monotonic()
    code, out, _ = run("hospital", "open", "own/north.admission", "--dir", "own")
    assert code == 0 and re.match(r"http://127\.0\.0\.1:\d+/\S{32}\n", out) and "nobody looked" in out
    assert time.monotonic() - started < 5
