"""A fault in code of the user's own: told by its type, its words, and the last line that is theirs.

A fault is whatever such code raises, an `exit()` among it. An interrupt stays one.
"""

from __future__ import annotations

import json
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from pate_fed.errors import InputError, PateFedError
from pate_fed.format import printable

_ROOT = Path(__file__).resolve().parents[2]
_OURS = tuple(f"{_ROOT / room}/" for room in ("pate_fed", "clients", "server"))
_STANDARD = tuple(f"{Path(sysconfig.get_paths()[key]).resolve()}/" for key in ("stdlib", "platstdlib"))
_INSTALLED = ("site-packages", "dist-packages")
_MOST_WORDS = 500
_MOST_TRACEBACK = 100_000

_modules: set[str] = set()  # top-level modules of the study's own parts; some may be installed ones


def note_module(top: str) -> None:
    """Count what is in this top-level module as the user's, wherever it is installed."""
    _modules.add(top)


def forget_modules() -> None:
    """Forget what `note_module` was told."""
    _modules.clear()


def ends_process(error: BaseException) -> bool:
    """Whether this is an interrupt, or the exit with which Flower or Ray end a process: no fault of code."""
    if not isinstance(error, SystemExit):
        return isinstance(error, KeyboardInterrupt)
    last = [frame.f_globals.get("__name__") for frame, _ in traceback.walk_tb(error.__traceback__)][-1:]
    return bool(last) and str(last[0]).partition(".")[0] in ("flwr", "ray")


def cause_of(error: BaseException) -> BaseException:
    """What was raised first, where sentences of ours stand around it."""
    seen = {id(error)}
    while isinstance(error, PateFedError):
        inner = error.__cause__ or error.__context__
        if inner is None or id(inner) in seen:
            break
        seen.add(id(inner))
        error = inner
    return error


def place_of(error: BaseException) -> str:
    """File, line and function of the last line that is the user's; empty where none is."""
    if isinstance(error, SyntaxError) and error.filename and not error.filename.startswith("<"):
        return f"{error.filename}, line {error.lineno}"
    best, found = 0, ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        code, module = frame.f_code, str(frame.f_globals.get("__name__", ""))
        rank = _rank(code.co_filename, module)
        if rank and rank >= best:
            best = rank
            inside = "" if code.co_name == "<module>" else f", in {code.co_name}"
            found = f"{code.co_filename}, line {line}{inside}"
    return printable(found)


def _rank(file: str, module: str) -> int:
    """How surely a line is the user's: 0 not at all, 1 in an installed part, 2 typed in, 3 in a file."""
    path = str(Path(file).resolve()) if not file.startswith("<") else file
    if path.startswith(_OURS) or file.startswith("<frozen "):
        return 0
    if any(f"/{name}/" in path for name in _INSTALLED):
        return 1 if module.partition(".")[0] in _modules else 0
    if path.startswith(_STANDARD):
        return 0
    if file.startswith("<"):  # code that was made of a text, as dataclasses are, has no line to look at
        return 2 if module == "__main__" else 0
    return 3


def describe(error: BaseException, *, words: bool = True) -> str:
    """Type, words and place of an error, in one line; without `words` nothing that the code made up."""
    kind, said, place = type(error).__name__, _words(error) if words else "", place_of(error)
    told = f"{kind}: {said}" if said and not isinstance(error, PateFedError) else said or kind
    return told + (f", at {place}" if place else "")


def _words(error: BaseException, most: int = _MOST_WORDS) -> str:
    try:
        said = str(error)
    except BaseException as wrong:
        if ends_process(wrong):
            raise
        said = f"its text cannot be made ({type(wrong).__name__})"
    said = " ".join(printable(said).split())
    return said if len(said) <= most else f"{said[:most]}…"


@contextmanager
def telling(what: str, *, quoting: bool = True) -> Iterator[None]:
    """Let a fault of the user's code inside be a sentence that `what` begins, which names part and step.

    Without `quoting` neither its words nor its trace go along, as where they may show a record.

    Raises:
        InputError: code inside raised anything but an interrupt; what it raised is the cause.
    """
    try:
        yield
    except BaseException as error:
        if ends_process(error):
            raise
        told = f"{what} ({describe(error, words=quoting)})"
        raise InputError(told) from (error if quoting else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault as it is told: a sentence, the user's last line or else the last of all, the traceback.

    `kind` is the type of what was raised. `parties` is how many of a simulation it hit; 0 where it was at the
    coordinator.
    """

    sentence: str
    kind: str
    place: str
    traceback: str
    parties: int = 0

    @classmethod
    def of(cls, error: BaseException) -> Fault:
        """The fault of an error, with all that it quotes: for whose data they are."""
        cause = cause_of(error)
        place, told = place_of(cause), describe(cause)
        sentence = _words(error, _MOST_TRACEBACK) if isinstance(error, PateFedError) else told
        if place and told not in sentence:
            short = describe(cause, words=False)
            sentence = sentence.replace(short, told) if short in sentence else f"{sentence}: {told}"
        whole, inner = ("".join(traceback.format_exception(each)) for each in (error, cause))
        whole = whole if inner in whole else f"{inner}\n{whole}"  # what stands behind `from None`
        frames = traceback.extract_tb(cause.__traceback__)[-1:]
        last = "".join(f"{frame.filename}, line {frame.lineno}" for frame in frames)
        return cls(
            sentence=sentence,
            kind=type(cause).__name__,
            place=place or printable(last),
            traceback=whole.encode("utf-8", "backslashreplace").decode()[-_MOST_TRACEBACK:],
        )

    def text(self, of: int) -> str:
        """The sentence, with how many `of` all parties it hit."""
        return f"{self.sentence}, at {self.parties} of {of} parties" if self.parties else self.sentence


Tell = Callable[[Sequence[Fault], BaseException | None], None]
"""Hears of what went wrong at simulated parties, and what raised the first of it where that was here."""

PartyFault = tuple[float, str, Fault]
"""When a simulated party met a fault, and its name."""


def read_faults(folder: Path) -> list[PartyFault]:
    """What went wrong at simulated parties whose state directories lie in `folder`, from their own logs.

    The traceback stands with the first of a place. A real hospital shows its log to nobody.
    """
    found: list[PartyFault] = []
    known = set[str]()
    for path in sorted(folder.glob("*/log.jsonl")):
        for line in path.read_bytes().splitlines():
            if b'"place": ' not in line:
                continue
            try:
                event = json.loads(line)
            except ValueError:  # a process died as it wrote
                continue
            trace = "" if event["place"] in known else event["error"]
            told = {key: event[key] for key in ("sentence", "kind", "place")}
            fault = Fault(**told, traceback=trace)
            found.append((event["time"], path.parent.name, fault))
            known |= {fault.place} - {""}
    return found


def grouped(found: Iterable[PartyFault]) -> list[Fault]:
    """Each fault once, by its place or its words, the first one first, with how many parties it hit."""
    first, traces, hit = dict[str, Fault](), dict[str, str](), dict[str, set[str]]()
    for _, party, fault in sorted(found, key=lambda each: each[0]):
        key = fault.place or fault.sentence
        first.setdefault(key, fault)
        traces[key] = traces.get(key) or fault.traceback
        hit.setdefault(key, set()).add(party)
    return [replace(fault, traceback=traces[key], parties=len(hit[key])) for key, fault in first.items()]


_kept: list[BaseException] | None = None  # the first fault of parties that this process plays, if wanted


@contextmanager
def telling_of_parties(folder: Path, tell: Tell) -> Iterator[None]:
    """Play parties inside, whose state directories lie in `folder`; then `tell` hears what went wrong."""
    global _kept
    raised: list[BaseException] = []
    _kept = raised
    try:
        yield
    finally:
        _kept = None
        tell(grouped(read_faults(folder)), raised[0] if raised else None)


def played_here() -> bool:
    """Whether whoever simulates parties has this very process play them."""
    return _kept is not None


def keep(error: BaseException) -> None:
    """Keep a party's fault, if it is the first and `telling_of_parties` is on in this process."""
    if _kept is not None and not _kept:
        _kept.append(cause_of(error))
