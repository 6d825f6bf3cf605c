"""Votes at a hospital: its teachers on its own disk, one file each, networks for images, forests for tables.

All that vote together learnt from disjoint parts of the very same records, or one record would sway more
votes: where records have changed since the first teacher was trained, none of them stays. Who teaches which
follows from each patient's own number (`pate_fed.data.split_among_teachers`), so a part may be empty: its
teacher votes by a fixed rule, which no record has a part in.
"""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clients.kinds.base import HospitalSide
from clients.site import Objection, Site, neighbours
from clients.state_dir import locked
from pate_fed.config.registry import find_part
from pate_fed.data import release_pages, repeated_inputs
from pate_fed.disk import write_private
from pate_fed.errors import IntegrityError, PateFedError
from pate_fed.format import counted
from pate_fed.kinds.votes import VoteTerms, make_mechanism
from pate_fed.kinds.words import Facts
from pate_fed.learning import TABLE_TEACHERS, TEACHERS
from pate_fed.learning.settings import STACKED
from pate_fed.learning.teachers.own import FittedTeacher, fit_own_teacher, is_network, make_own
from pate_fed.privacy.mechanisms.own import OwnMechanism, check_claim
from pate_fed.protocol.messages import Packed, Question, Refusal

if TYPE_CHECKING:
    from pate_fed.learning.networks.encoder import Encoder
    from pate_fed.learning.teachers.forests import Forest
    from pate_fed.learning.teachers.network import Teacher

Ints = NDArray[np.int64]

_PARTS = "parts.sha256"
_NO_RECORDS = b"no records\n"  # the file of a teacher that nobody taught
_TOGETHER, _TOGETHER_GPU = 6, 256  # simulated parties trained at once: what cores' caches and a GPU like


class VoteSide(HospitalSide):
    """A hospital that votes: its teachers lie in the site's state directory."""

    @property
    def asks(self) -> VoteTerms:
        """The terms of votes."""
        return VoteTerms.of(self.terms)

    _encoder: Encoder | None = None  # that came with the terms

    def check_parts(self) -> None:
        """Also that a mechanism of others claims no less here than in the terms."""
        HospitalSide.check_parts(self)
        mechanism = None if self.asks.claim is None else make_mechanism(self.terms)
        if isinstance(mechanism, OwnMechanism):
            check_claim(mechanism)

    def objection(self) -> Objection | None:
        """Another number of teachers than the hospital's own study has, or than it is ready to train."""
        own, parties, settings = self.asks, self.site.study.parties, self.site.settings
        ours = (parties.teachers_per_client, parties.records_per_teacher)
        if ours != (own.teachers_per_client, own.records_per_teacher):
            return Refusal.TERMS, f"this hospital's study has other teachers: {ours}"
        ready = None if settings is None else settings.teachers
        if own.records_per_teacher is None and ready not in (None, own.teachers_per_client):
            return Refusal.TERMS, f"this hospital trains {ready} teachers, not {own.teachers_per_client}"
        return None

    def take(self, file: bytes) -> None:
        """Read the encoder that teachers learn on."""
        if self.asks.encoder is None and not file:
            return
        if self.asks.encoder is None:
            raise IntegrityError("an encoder came, and the study's terms name none")
        from pate_fed.learning.networks.encoder import Encoder

        encoder = Encoder.from_bytes(file, digest=self.asks.encoder)
        if encoder.image_shape != self.terms.image_shape:
            raise IntegrityError(
                f"the encoder is of images {encoder.image_shape}, not {self.terms.image_shape}"
            )
        self._encoder = encoder

    def prepare(self) -> None:
        """Train the teachers that are not there yet; those of the same terms and records are kept."""
        train_missing(
            self.site,
            encoder=self._encoder,
            taught=lambda number: self.log.note("taught", teacher=number),
            anew=lambda count: self.log.note("records changed", teachers_trained_again=count),
        )

    def rehearse(self, inputs: NDArray[np.generic], *, of_pool: bool, sample: int) -> tuple[Ints, Facts]:
        """Train the teachers on an encoder of these inputs.

        The coordinator's is fitted to the pool; which of its inputs that are, only the coordinator knows.
        """
        if self.asks.encoder is not None:
            from pate_fed.learning.networks.encoder import encoder_for

            self._encoder = encoder_for(self.asks.teacher, self.site.dataset.public_images)
        index, told = HospitalSide.rehearse(self, inputs, of_pool=of_pool, sample=sample)
        trained = f"{counted(self.site.num_teachers, 'teacher')} trained, in a private folder"
        return index, (("teachers", trained), *told)

    def refusal(self, question: Question) -> Refusal | None:
        """No teachers yet, no batch of the pool, votes that nobody releases, or the same input again."""
        if not all(path.exists() for path in teacher_paths(self.site)):
            return Refusal.NOT_READY
        if question.measured and (not self.site.simulated or self.terms.adds_noise):
            return Refusal.POLICY
        dataset = self.site.dataset
        if not _is_batch(question.index, len(dataset.public_images)) or not len(question.released):
            return Refusal.MALFORMED
        if repeated_inputs(dataset)[question.released].any():
            return Refusal.REPEATED  # the same input has another place in the pool, and is asked about there
        return None

    def answer(self, question: Question) -> Ints:
        """One vote a teacher on each input: int64 (queries, classes)."""
        return count_votes(self.site, self.site.dataset.public_images[question.index])

    def packed(self, question: Question) -> Packed:
        """The class of each input where one teacher votes: no matrix of classes is made for it."""
        bounds, inputs = self.terms.bounds, self.site.dataset.public_images
        if not bounds.one_vote:
            return HospitalSide.packed(self, question)
        [votes] = _votes(self.site, inputs[question.index])
        return votes.astype(bounds.dtype)

    def counted(self, question: Question) -> int:
        """The inputs about which something is released."""
        return len(question.released)


def _is_batch(index: Ints, pool_size: int) -> bool:
    """Whether `index` is one-dimensional, not empty, inside the pool and without repeats."""
    if index.ndim != 1 or len(index) == 0:
        return False
    if index.min() < 0 or index.max() >= pool_size:
        return False
    return int(np.bincount(index).max()) == 1


def trained_together(teacher: str, device: str) -> int:
    """How many neighbouring simulated parties train their teachers at once on cpu or cuda."""
    if teacher != STACKED:
        return 1
    return _TOGETHER if device == "cpu" else _TOGETHER_GPU


def teacher_paths(site: Site) -> list[Path]:
    """Where the teachers are kept, trained or not."""
    suffix = "npz" if _is_table(site) else "pt"
    return [site.state_dir / f"teacher-{number}.{suffix}" for number in range(site.num_teachers)]


def train_missing(
    site: Site, *, encoder: Encoder | None, taught: Callable[[int], None], anew: Callable[[int], None]
) -> None:
    """Train the teachers that are not on the disk yet, each on its own part of the hospital's records.

    `encoder` is the study's public one, where its teachers need it. `anew` is told how many teachers are
    trained again because the records have changed.

    Raises:
        InputError: the records cannot be learnt from, or the disk cannot be written.
    """
    if site.simulated and site.study.teacher.name == STACKED:
        for number in _train_neighbours(site, anew):
            taught(number)
    for number, path, part in _missing(site, anew):
        teacher = _train(site, number, part, encoder)
        teacher.save(path, durable=site.durable)
        if site.simulated and encoder is not None:
            _TAUGHT.keep(path, teacher)  # type: ignore[arg-type]  # an encoder is for networks alone
        taught(number)
    release_pages(site.dataset.private_images)  # of the next party's records others are needed


def _missing(site: Site, anew: Callable[[int], None]) -> list[tuple[int, Path, Ints]]:
    """Number, file and records of each teacher that is not there; those of other records are taken away."""
    paths, parts = teacher_paths(site), site.teacher_parts()
    if not all(path.exists() for path in paths) and (
        len(parts) > 1 or site.study.parties.records_per_teacher is not None
    ):
        _keep_apart(site, parts, anew)
    for path, part in zip(paths, parts, strict=True):
        if not len(part) and not path.exists():
            write_private(path, _NO_RECORDS, durable=site.durable)
    numbered = enumerate(zip(paths, parts, strict=True))
    return [(number, path, part) for number, (path, part) in numbered if not path.exists()]


def _train_neighbours(site: Site, anew: Callable[[int], None]) -> list[int]:
    """Train the teachers of simulated parties together: those of the asked party's group, each its own part.

    Its own that are new here, by number.

    Whoever of the group is asked first does it, and the others find theirs where they look for them. While
    another process is at the group, one that nobody is at is trained: it will be asked next.
    """
    count = site.together or trained_together(site.study.teacher.name, site.device)
    groups = neighbours(site, count)  # as they are needed: of 10,000 parties there are many
    own = next(groups)

    def lacks() -> list[int]:
        return [number for number, path in enumerate(teacher_paths(site)) if not path.exists()]

    before = lacks()
    if before and not _train_group(own, site, anew, wait=False):
        for group in groups:
            there = all(path.exists() for each in group for path in teacher_paths(each))
            if not there and _train_group(group, site, anew, wait=False):
                break
        _train_group(own, site, anew, wait=True)
    return sorted({*before} - {*lacks()})


def _train_group(group: list[Site], asked: Site, anew: Callable[[int], None], *, wait: bool) -> bool:
    """Train what a group of simulated parties lacks; False where another process is at it."""
    from pate_fed.learning.teachers.batched import train_many

    for each in group:
        each.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    how = fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB)
    # An error is one teacher's; each trains alone, and says so itself where it is its own.
    with suppress(PateFedError), ExitStack() as held:
        try:
            held.enter_context(locked(group[0].state_dir, how=how))
        except BlockingIOError:
            return False
        told = [anew if each.party == asked.party else lambda _: None for each in group]
        wanted = [
            (each, *missing)
            for each, tell in zip(group, told, strict=True)
            for missing in _missing(each, tell)
        ]
        if not wanted:
            return True
        dataset, study = group[0].dataset, group[0].study
        with _one_thread():
            teachers = train_many(
                [dataset.private_images[part] for *_, part in wanted],
                [dataset.private_labels[part] for *_, part in wanted],
                num_classes=dataset.num_classes,
                settings=study.teacher,
                seeds=[study.seed_for("teacher", each.seeding, number) for each, number, *_ in wanted],
                device=group[0].device,
            )
        for (each, _, path, _), teacher in zip(wanted, teachers, strict=True):
            teacher.save(path, durable=each.durable)
    return True


def _keep_apart(site: Site, parts: list[Ints], anew: Callable[[int], None]) -> None:
    """Take away teachers that did not learn from these very parts, also those beyond their number."""
    digest, dataset, note = sha256(), site.dataset, site.state_dir / _PARTS
    for part in parts:
        for array in (part, dataset.private_images[part], dataset.private_labels[part]):
            digest.update(f"{array.dtype}{array.shape}".encode() + np.ascontiguousarray(array).tobytes())
    if note.exists() and note.read_bytes() == digest.digest():
        return
    old = sorted(site.state_dir.glob("teacher-*"))
    for path in old:
        path.unlink()
    if old:
        anew(len(old))
    write_private(note, digest.digest(), durable=site.durable)


def _make_own(site: Site) -> Any:
    """A fresh network or estimator of the user's own; None where teachers are ours."""
    dataset, settings = site.dataset, site.study.teacher
    if not settings.own:
        return None
    return make_own(
        find_part(settings.name, "teacher"),
        what=f"teacher {settings.name!r}",
        input_shape=dataset.input_shape,
        num_classes=dataset.num_classes,
        rows=dataset.private_images.ndim == 2,
        settings=settings,
    )


def _train(site: Site, number: int, part: Ints, encoder: Encoder | None) -> Teacher | Forest | _Fitted:
    """A teacher of a part of the records."""
    dataset, settings, made = site.dataset, site.study.teacher, _make_own(site)
    records = dataset.private_images[part], dataset.private_labels[part]
    seed = site.study.seed_for("teacher", site.seeding, number)
    known: dict[str, Any] = {"num_classes": dataset.num_classes, "seed": seed}
    if made is not None and not is_network(made):
        return _Fitted(fit_own_teacher(made, *records, what=f"teacher {settings.name!r}", **known))
    train = find_part(settings.name if made is None else TEACHERS[0], "teacher")
    if _is_table(site):
        forest: Forest = train(*records, settings=settings, **known)
        return forest
    more = {"encoder": encoder} if made is None else {"make": lambda: _make_own(site)}
    with _one_thread():
        network: Teacher = train(*records, settings=settings, device=site.device, **known, **more)
    return network


@dataclass(frozen=True, slots=True)
class _Fitted:
    """An estimator that has learnt.

    What others wrote has no file that is safe to read. So its file only says that it was taught, and a
    process that does not have it any more fits it again.
    """

    teacher: FittedTeacher

    def save(self, path: Path, *, durable: bool = True) -> None:
        """Keep it in this process, as many as there is room for."""
        while len(_FITTED) >= _MOST_FITTED:
            del _FITTED[next(iter(_FITTED))]
        _FITTED[path] = self.teacher
        write_private(path, b"fitted\n", durable=durable)


_FITTED: dict[Path, FittedTeacher] = {}
_MOST_FITTED = 1000


class _Taught:
    """Teachers of simulated parties that this process taught, as long as their files are the same.

    Reading one takes longer than its votes. The first of a simulation are kept, as many as fit into `most`
    bytes; others are read each time.
    """

    def __init__(self, most: int) -> None:
        self._most, self._bytes, self._folder = most, 0, Path()
        self._held: dict[Path, tuple[tuple[int, int, int], Teacher]] = {}

    def keep(self, path: Path, teacher: Teacher) -> None:
        """Keep a teacher whose file was written just now, if there is room."""
        folder = path.parent.parent  # of all parties' disks
        if folder != self._folder:
            from pate_fed.data.dataset import spare

            self.forget()
            self._folder = folder
            spare(self.forget)
        if self._bytes < self._most:
            self._held[path] = _file_mark(path), teacher
            self._bytes += teacher.own_bytes

    def forget(self) -> None:
        """Let go of all: their files are still there."""
        self._folder, self._bytes = Path(), 0
        self._held.clear()

    def find(self, path: Path) -> Teacher | None:
        """The teacher in this very file, if it is kept."""
        if path not in self._held or not path.exists():
            return None
        mark, teacher = self._held[path]
        return teacher if mark == _file_mark(path) else None


def _file_mark(path: Path) -> tuple[int, int, int]:
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns


_TAUGHT = _Taught(most=2**27)


def count_votes(site: Site, inputs: NDArray[Any]) -> Ints:
    """One vote a teacher on each input: int64 (queries, classes), rows sum to the number of teachers."""
    votes = np.zeros((len(inputs), site.dataset.num_classes), dtype=np.int64)
    for vote in _votes(site, inputs):
        votes[np.arange(len(inputs)), vote] += 1
    return votes


def _votes(site: Site, inputs: NDArray[Any]) -> Iterator[Ints]:
    """Each teacher's classes of the inputs, int64 (queries,)."""
    for number, path in enumerate(teacher_paths(site)):
        untaught = path.stat().st_size == len(_NO_RECORDS) and path.read_bytes() == _NO_RECORDS
        classes = site.dataset.num_classes
        yield fixed_votes(inputs, number, classes) if untaught else _predict(site, path, inputs)


def fixed_votes(inputs: NDArray[Any], number: int, num_classes: int) -> Ints:
    """What a teacher without records votes for: a class that follows from the input and its number alone.

    Another one for each input and teacher, so that such votes do not add up on one class.
    """
    drawn = [sha256(b"%d/" % number + np.ascontiguousarray(each).tobytes()).digest() for each in inputs]
    return np.array([int.from_bytes(each[:8], "little") % num_classes for each in drawn], dtype=np.int64)


def _predict(site: Site, path: Path, inputs: NDArray[Any]) -> Ints:
    if site.study.teacher.own:
        return _predict_own(site, path, inputs)
    if _is_table(site):
        from pate_fed.learning.teachers.forests import Forest

        return Forest.load(path).predict(np.asarray(inputs, dtype=np.float64))
    from pate_fed.learning.teachers.network import Teacher

    with _one_thread():
        teacher = _TAUGHT.find(path) or Teacher.load(path, device=site.device)
        return teacher.predict(inputs)


def _predict_own(site: Site, path: Path, inputs: NDArray[Any]) -> Ints:
    if path in _FITTED:
        return _FITTED[path].predict(inputs)
    made = _make_own(site)
    if is_network(made):
        from pate_fed.learning.teachers.network import Teacher

        with _one_thread():
            return Teacher.load(path, device=site.device, network=made).predict(inputs)
    number = teacher_paths(site).index(path)
    again = _train(site, number, site.teacher_parts()[number], None)
    again.save(path, durable=site.durable)
    return _FITTED[path].predict(inputs)


def _is_table(site: Site) -> bool:
    return site.study.teacher.name in TABLE_TEACHERS


@contextmanager
def _one_thread() -> Iterator[None]:
    """One thread in torch: the order of additions, and so a vote, must not depend on the machine's cores."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
