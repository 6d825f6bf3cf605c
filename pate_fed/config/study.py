"""A study, from `study.toml` or the command line, as frozen values; every error a user can make in one.

Reading a study touches no data and imports nothing heavy. `resolve` fills in what depends on the number of
teachers, so that what is written to the run directory leaves nothing open.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pate_fed.config.backend import AUTO, INLINE, RAY, Engine, cheaper_backend, cluster_address, cores
from pate_fed.config.defaults import (
    SUMS_EPSILON,
    Ensemble,
    Sums,
    fixed_rounds,
    fixed_scores,
    fixed_way,
    known_records,
    with_defaults,
)
from pate_fed.config.registry import own_names
from pate_fed.config.sections import (
    CLASS_SUMS,
    INTERACTIVE,
    About,
    Aggregation,
    Data,
    Parties,
    Privacy,
    Queries,
)
from pate_fed.config.trust import TrustModel
from pate_fed.disk import read_toml
from pate_fed.errors import InputError
from pate_fed.learning import (
    RIDGE,
    STUDENTS,
    TABLE_STUDENTS,
    TABLE_TEACHERS,
    TEACHERS,
    StudentSettings,
    TeacherSettings,
)
from pate_fed.learning.features.feature_map import DIRECTIONS
from pate_fed.learning.settings import CLOSED_FORM
from pate_fed.privacy.protection import HOSPITAL_UNIT, PATIENT_UNIT, RECORD_UNIT, UNITS
from pate_fed.structure import SettingError, check, from_plain, refusal, setting, to_plain

_TOP = ("name", "seed", "reason")  # stand in [study]


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """A whole study. With `seed` the noise is seeded too, so nothing protects anyone."""

    name: str = setting("", "of the study, in reports and in the name of its run directory", most=100)
    seed: int | None = setting(
        None, "repeat a run exactly; the noise is then NOT private", "--seed", low=0, high=2**63 - 1
    )
    reason: str = setting("", "why auto took what stands here", compare=False, most=1000)
    about: About = field(default_factory=About)
    parties: Parties = field(default_factory=Parties)
    data: Data = field(default_factory=Data)
    teacher: TeacherSettings = field(default_factory=TeacherSettings)
    aggregation: Aggregation = field(default_factory=Aggregation)
    queries: Queries = field(default_factory=Queries)
    sums: Sums = field(default_factory=Sums)
    privacy: Privacy = field(default_factory=Privacy)
    secrecy: TrustModel = field(default_factory=TrustModel)
    student: StudentSettings = field(default_factory=StudentSettings)
    engine: Engine = field(default_factory=Engine)

    def __post_init__(self) -> None:
        check(self)
        if not self.name.isprintable():
            raise refusal(self, "name", "at most 100 printable characters are meant")
        self._check_models()
        self._check_unit()
        if not self.privacy.delta:
            raise refusal(self, "privacy.delta", "a number above 0 and below 1 is meant")
        self._check_way()
        self._check_drawn()
        self._check_no_class()
        if self.privacy.sanitise and self.seed is not None:
            raise InputError(
                "--sanitise with --seed: seeded noise protects nobody, so nothing of it may be published; "
                "drop one of the two"
            )

    def _check_unit(self) -> None:
        """A patient is a unit where patients are named, and is at no more hospitals than there are."""
        named, unit, most = self.data.names_patients, self.privacy.unit, self.privacy.hospitals_per_patient
        if unit not in (AUTO, *UNITS):
            raise refusal(self, "privacy.unit", f"{', '.join((AUTO, *UNITS))} is meant")
        self.with_unit(named)
        if most > self.parties.num_clients:
            wanted = f"at most {self.parties.num_clients}, the hospitals, is meant"
            raise refusal(self, "privacy.hospitals_per_patient", wanted)

    def _check_way(self) -> None:
        """Sums and answers leave under masks only; a data-dependent ε is known of our own votes alone.

        A mechanism of the user's own adds its noise to exact totals, in one place.
        """
        given, secrecy = self.aggregation, self.secrecy
        way = f"--aggregator {given.aggregator}" if given.kind is None else f"--kind {given.kind}"
        if not given.votes and not secrecy.secure_sum:
            tells = "answer is exact; under masks only the total"
            if given.sums:
                tells = (
                    "sums tell how many of its records have each class and feature; under masks only the sum"
                )
            raise InputError(
                f"{way} without --secure-sum: a hospital's own {tells} over all hospitals can be read; give "
                "--secure-sum (secrecy.secure_sum = true) too"
            )
        if given.own and secrecy.at_hospitals:
            raise InputError(
                f"{way} with --noise-at hospitals: hospitals add shares of Gaussian noise, and a mechanism "
                "of your own adds its own to exact totals; take gnmax or confident-gnmax, or noise at the "
                "coordinator (with --secure-sum it sees totals alone)"
            )
        if self.privacy.sanitise and (given.own or not given.votes):
            why = "nothing is voted on, so there is no data-dependent ε"
            if given.own:
                why = "of a mechanism of your own no data-dependent ε is known"
            raise InputError(
                f"--sanitise with {way}: {why}; the data-independent one may be published as it is"
            )

    def _check_drawn(self) -> None:
        """Sums on declared ranges ask about nothing, and have no threshold."""
        for given, names, why in (
            ("queries", ("labels", "max_queries", "rounds", "strategy"), "nothing is asked about"),
            ("aggregation", ("threshold", "sigma1"), "no votes"),
        ):
            section = getattr(self, given)
            for name in names if self.data.drawn else ():
                if getattr(section, name) != getattr(type(section)(), name):
                    raise refusal(self, f"{given}.{name}", f"none is meant beside data.table.ranges: {why}")

    def _check_no_class(self) -> None:
        """A number or several labels are learnt from sums alone, given once, by record or patient."""
        given, sums = self.aggregation, self.sums
        if not self.data.no_class:
            return
        beside = "data.table.labels" if self.data.several else "data.table.target_range"
        for key, fits, wanted in (
            ("aggregation.aggregator", given.kind is None and (given.sums or given.open), CLASS_SUMS),
            ("student.name", self.student.name == RIDGE or self.aggregation.open, RIDGE),
            ("privacy.unit", self.privacy.unit != HOSPITAL_UNIT, f"{RECORD_UNIT} or {PATIENT_UNIT}"),
            ("data.table.ranges", not self.data.drawn, "a pool and none"),
            ("sums.rounds", not sums.rounds, "0"),
            ("sums.scores", not sums.scores, "false"),
            ("sums.balanced", not sums.balanced, "false"),
        ):
            if not fits:
                raise refusal(self, key, f"{wanted} is meant beside {beside}: {self.data.no_class}, no class")

    def _check_models(self) -> None:
        """Tables want forests, images want networks; of the user's own data only the data can tell."""
        table = self.data.dataset == "table"
        for key, given, choices in (
            ("teacher.name", self.teacher, TABLE_TEACHERS if table else TEACHERS),
            ("student.name", self.student, TABLE_STUDENTS if table else STUDENTS),
        ):
            if self.data.own:
                continue
            if key == "student.name" and (self.aggregation.sums or self.aggregation.aggregator == AUTO):
                choices = (RIDGE, *choices)
            if given.name not in choices and not given.own:
                what = "tables" if table else "images"
                raise refusal(self, key, f"for {what} one of {', '.join(choices)} is meant")
        parties = len(self.data.private)
        if parties and parties != self.parties.num_clients:
            wanted = f"one a party, --num-clients {self.parties.num_clients}, is meant"
            raise refusal(self, "data.private", wanted)

    def require_private(self) -> None:
        """Hold that every party has data here, as in a simulation; real hospitals' stay with them.

        Raises:
            InputError: the study names files of hospitals' own, and none for its parties.
        """
        if self.data.from_files and not self.data.private:
            wanted = f"one a party, --num-clients {self.parties.num_clients}, is meant in a simulation"
            raise SettingError("data.private", f"names no files; {wanted}")

    @property
    def least_clients(self) -> int:
        """Parties below which nothing is released."""
        return self.secrecy.least_voters(self.parties.num_clients, self.parties.quorum)

    @property
    def own_features(self) -> bool:
        """Whether class sums are of a feature map of the user's own."""
        return self.aggregation.sums and self.sums.own

    @property
    def cross_validates(self) -> bool:
        """Whether inputs that were asked about test the student too, each one that had not its label.

        Only a student that learns within seconds is trained so often. Where a student's own predictions
        become labels (interactive), leaving an input's label out does not take away what it taught.
        """
        quick = self.student.name in (*TABLE_STUDENTS, *CLOSED_FORM)
        return quick and self.aggregation.aggregator != INTERACTIVE

    def seed_for(self, *purpose: str | int) -> int:
        """A seed in [0, 2^31) for one use, such as ("teacher", 17, 0); independent uses get unrelated seeds.

        Partitions and training are seeded also where the noise is not.
        """
        text = "/".join(map(str, (self.seed or 0, *purpose)))
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") >> 1

    def with_unit(self, named: bool | None) -> Study:
        """The same with its unit fixed: a patient where patients are `named`; None: not known yet.

        Raises:
            InputError: the unit patient, or several hospitals of one, where nothing names patients.
        """
        unit, most = self.privacy.unit, self.privacy.hospitals_per_patient
        if named is False and (unit == PATIENT_UNIT or most > 1):
            key = "privacy.unit" if unit == PATIENT_UNIT else "privacy.hospitals_per_patient"
            wanted = "record or hospital" if unit == PATIENT_UNIT else "1"
            raise refusal(self, key, f"{wanted} is meant: nothing in these data names patients")
        if unit != AUTO or named is None:
            return self
        return replace(self, privacy=replace(self.privacy, unit=PATIENT_UNIT if named else RECORD_UNIT))

    def resolve(self) -> Study:
        """The same study with every value set that was left open, as far as no data are needed for it.

        Raises:
            InputError: neither votes nor class sums serve where the study leaves it open, noise that so many
                parties cannot add in shares, or rounds that nothing is learnt for.
        """
        fixed = self.with_unit(self.data.names_patients)
        if fixed != self:
            return fixed.resolve()
        if self.aggregation.open:
            return fixed_way(self).resolve()
        clients, secrecy, shares = self.parties.num_clients, replace(self.secrecy, colluders=None), None
        if secrecy.at_hospitals:
            shares = self.secrecy.shares(clients, self.least_clients)
            secrecy = replace(secrecy, colluders=shares.colluders)
        name = self.name or f"{self.data.dataset.partition(':')[0]}-{clients}"
        if not self.aggregation.votes:
            # Nothing is trained. The noise of sums follows from the budget once the feature map is there.
            parties = replace(self.parties, teachers_per_client=1, records_per_teacher=None)
            teacher = TeacherSettings(name=TABLE_TEACHERS[0]) if self.data.table else TeacherSettings()
            privacy = self.privacy
            if self.aggregation.sums and privacy.epsilon is None and self.aggregation.sigma2 is None:
                privacy = replace(privacy, epsilon=SUMS_EPSILON)
            summing = replace(self, parties=parties, teacher=teacher, privacy=privacy, secrecy=secrecy)
            return replace(summing._with_rounds(), name=name, engine=self._engine())
        aggregation, queries = with_defaults(Ensemble.of(self, shares), self.aggregation, self.queries)
        aggregation = aggregation.resolve(self.parties.num_teachers, shares)
        queries = queries.resolve(interactive=aggregation.aggregator == INTERACTIVE)
        return replace(
            self, name=name, aggregation=aggregation, queries=queries, secrecy=secrecy, engine=self._engine()
        )

    def _with_rounds(self) -> Study:
        """With a whole hospital's map, and as many rounds as pay, where it does not say; and the reason."""
        if not self.aggregation.sums:
            return self
        open_map = self.sums.features is None and self.sums.most_records is None and not self.data.drawn
        if self.privacy.unit == HOSPITAL_UNIT and known_records(self) and open_map:
            return replace(self, sums=replace(self.sums, features=DIRECTIONS))._with_rounds()
        if self.sums.scores and self.privacy.unit == HOSPITAL_UNIT:
            raise refusal(
                self.sums,
                "scores",
                "false is meant with the unit hospital, which would be in the sums and in the counts",
            )
        if self.sums.scores is None:
            return replace(self, sums=replace(self.sums, scores=fixed_scores(self)))._with_rounds()
        if self.sums.rounds is not None:
            return self
        rounds, why = fixed_rounds(self)
        reason = "; ".join(filter(None, (self.reason, f"rounds {rounds}: {why}")))
        return replace(self, sums=replace(self.sums, rounds=rounds), reason=reason)

    def _engine(self) -> Engine:
        """With the backend that takes less time on this machine, where it is left open.

        A cluster that was named, here or in the environment, is used.
        """
        engine = self.engine
        if engine.backend not in (AUTO, RAY):
            return engine
        address = engine.ray_address or cluster_address()
        if address is not None:
            return replace(engine, backend=RAY, ray_address=address)
        if engine.shared_dir is not None or engine.insecure_cluster:
            name = "insecure_cluster" if engine.shared_dir is None else "shared_dir"
            raise refusal(
                self, f"engine.{name}", "has an effect only with a cluster (--ray-address or RAY_ADDRESS)"
            )
        if engine.backend != AUTO:
            return engine
        if not self.aggregation.votes:  # nothing is trained
            return replace(engine, backend=INLINE)
        backend = cheaper_backend(
            self.teacher.name,
            num_clients=self.parties.num_clients,
            num_teachers=self.parties.num_teachers,
            available=cores(),
        )
        return replace(engine, backend=backend)

    @property
    def is_planned(self) -> bool:
        """Whether noise and counts are the planner's, which knows of no pool; asks no more than there is."""
        if not self.aggregation.votes:
            return False
        left_open = Aggregation(aggregator=self.aggregation.aggregator)
        _, queries = with_defaults(self.ensemble(), left_open, Queries())
        return queries.labels is not None and (queries.labels, queries.max_queries) == (
            self.queries.labels,
            self.queries.max_queries,
        )

    def ensemble(self) -> Ensemble:
        """Who votes, on what and how, for the planner."""
        clients, noisy = self.parties.num_clients, self.secrecy.at_hospitals
        return Ensemble.of(self, self.secrecy.shares(clients, self.least_clients) if noisy else None)

    def to_toml(self) -> str:
        """The study as a `study.toml` that `load_study` reads back to an equal value."""
        values = to_plain(self)
        top = {key: values.pop(key) for key in _TOP}
        sections = {"study": top, **values}
        return "\n".join(table for name in sections for table in _tables(name, sections[name]))


def _tables(name: str, values: dict[str, Any]) -> list[str]:
    # JSON's strings, numbers, booleans and lists are TOML's too; None is a key left out.
    lines = [
        f"{key} = {json.dumps(value, ensure_ascii=False)}"
        for key, value in values.items()
        if value is not None and not isinstance(value, dict)
    ]
    nested = {key: value for key, value in values.items() if isinstance(value, dict)}
    own = "\n".join([f"[{name}]", *lines, ""])
    return [own, *(table for key in nested for table in _tables(f"{name}.{key}", nested[key]))]


def read_study(path: Path, *, num_hospitals: int | None = None) -> Study:
    """The study in a `study.toml`, with as many parties as `num_hospitals` says where it is given.

    Raises:
        InputError: as `load_study` and `study_from_dict`; the error names the file.
    """
    values = load_study(path)
    parties = values.get("parties", {})
    if num_hospitals is not None and isinstance(parties, dict):
        values["parties"] = {**parties, "num_clients": num_hospitals}
    try:
        return study_from_dict(values, where=str(path))
    except SettingError as error:
        if num_hospitals is not None and error.path == "parties.num_clients":
            raise InputError(f"--num-clients {num_hospitals}: {error.wanted}") from error
        raise


def load_study(path: Path) -> dict[str, Any]:
    """The nested dictionary in a `study.toml`; an InputError names file and place."""
    return _anchored(read_toml(path, option="--config"), path.parent)


def _anchored(values: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The same with the names of data files taken from where the study lies."""
    data = values.get("data")
    if isinstance(data, dict):
        if isinstance(data.get("pool"), str):
            data["pool"] = str((folder / data["pool"]).absolute())
        if isinstance(data.get("private"), list):
            data["private"] = [
                str((folder / name).absolute()) if isinstance(name, str) else name for name in data["private"]
            ]
    return values


def study_from_dict(values: Mapping[str, Any], *, where: str = "study.toml") -> Study:
    """A study from nested dictionaries, as `tomllib` gives them; `where` names their file in errors.

    Raises:
        InputError: an unknown or misspelt key (the nearest is suggested), a value of the wrong type or out of
            range, or values that do not go together.
    """
    top = values.get("study", {})
    if not isinstance(top, Mapping):
        raise SettingError("study", "a table of settings is meant", repr(top), where=where)
    for key in top:
        if key not in _TOP:
            raise SettingError(f"study.{key}", f"no such key (known: {', '.join(_TOP)})", where=where)
    for key in _TOP:
        if key in values:
            raise SettingError(key, "stands in [study]", where=where)
    try:
        sections = own_names(_implied({key: value for key, value in values.items() if key != "study"}))
        study = from_plain(Study, {**sections, **top}, where=where)
    except SettingError as error:
        raise (error.placed(path=f"study.{error.path}") if error.path in _TOP else error) from error
    student = values.get("student")
    if study.aggregation.open and isinstance(student, Mapping) and "name" in student:
        fixed = fixed_way(study, keep_student=True)  # the default student too, where it is named
        return fixed if fixed.aggregation.sums else study
    return study


def _implied(values: dict[str, Any]) -> dict[str, Any]:
    """The same with what class sums imply, a ridge student; and a table, models of tables and its name."""
    given, aggregation = values.get("student", {}), values.get("aggregation")
    if isinstance(aggregation, Mapping) and aggregation.get("aggregator") == CLASS_SUMS:
        if isinstance(given, Mapping):
            values["student"] = {"name": RIDGE, **given}
    data = values.get("data")
    if not isinstance(data, Mapping) or data.get("dataset", "table" if "table" in data else "") != "table":
        return values
    implied = {"data": {"dataset": "table"}, "teacher": {"name": TABLE_TEACHERS[0]}}
    implied["student"] = {"name": TABLE_STUDENTS[0]}
    for key, table in implied.items():
        given = values.get(key, {})
        if isinstance(given, Mapping):
            values[key] = {**table, **given}
    return values
