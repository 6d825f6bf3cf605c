"""Seeded studies whose releases must stay what they are, and what is compared of each: its normal form.

    python tests/support/seeded_studies.py --renew [STUDY ...]

writes `tests/files/same_studies.json` anew. One may renew a study where a change means to release something
else (another order of draws, another default, a new bound), in a commit of its own whose message says why;
never to make a refactoring green.

What is released does not depend on libraries' versions: records are whole numbers, teachers and clusters are
computed from exact sums, and noise is drawn from NumPy's seeded generator. So the same is stored for every
Python and every NumPy and torch. Rows in whose labels a network has a part are left out (`certain`);
`same_weights.py` compares them, and all students, between two commits on one machine.
The form knows no file format: it is read by the ledger's and the run's own readers.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import math
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

STORED = Path(__file__).resolve().parents[1] / "files" / "same_studies.json"
_DIGITS = 1e-6  # by which an ε or a σ may differ, relatively: other versions of scipy search another way

Array = NDArray[Any]
Form = dict[str, Any]


# Parts of one's own: what they compute is exact, so that it is the same everywhere.


class NearestMean:
    """The class whose records' mean is nearest, in whole numbers as far as they go."""

    def fit(self, x: Array, y: Array) -> None:
        """Means of each class that occurs."""
        rows = np.rint(x * 255).astype(np.int64)
        self.classes = np.unique(y)
        self.means = [rows[y == each].sum(axis=0) / (y == each).sum() for each in self.classes]

    def predict(self, x: Array) -> Array:
        """The nearest, the first of equals."""
        rows = np.rint(x * 255)
        far = [np.rint(1024 * ((rows - mean) ** 2).sum(axis=1)) for mean in self.means]
        return np.asarray(self.classes[np.argmin(far, axis=0)])

    def predict_proba(self, x: Array) -> Array:
        """Sure of three quarters, so that no rounding decides."""
        classes = 3
        found = np.full((len(x), classes), 0.25 / (classes - 1))
        found[np.arange(len(x)), self.predict(x)] = 0.75
        return found


def last_first(seen: Any) -> Array:
    """A query strategy: the last inputs first."""
    return np.asarray(seen.left[::-1])


def in_turn(labels: Array, num_parties: int, seed: int) -> list[Array]:
    """A partitioner: record by record to the next party."""
    return [np.arange(first, len(labels), num_parties) for first in range(num_parties)]


def quarters(public: Array) -> Callable[[Array], Array]:
    """A feature map: means of an image's four quarters, half as long as may be."""
    high, wide = public.shape[1] // 2, public.shape[2] // 2
    corners = [(slice(0, high), slice(0, wide)), (slice(0, high), slice(wide, None))]
    corners += [(slice(high, None), slice(0, wide)), (slice(high, None), slice(wide, None))]

    def encode(inputs: Array) -> Array:
        sums = [inputs[:, rows, columns].reshape(len(inputs), -1).sum(axis=1) for rows, columns in corners]
        return np.stack(sums, axis=1) / (high * wide * 255 * 2)

    return encode


def by_place(inputs: Array, num_clusters: int, *, seed: int) -> Array:
    """A clusterer of label-dp: every so-manieth input is in one cluster."""
    return np.arange(len(inputs), dtype=np.int64) % num_clusters


# Data: whole numbers drawn from a raw stream, which no version of NumPy changes.


def _draws(count: int, most: int, key: int) -> Array:
    """Whole numbers from 0 to `most` - 1, int64 (count,)."""
    return (np.random.Philox(key=key).random_raw(count) % np.uint64(most)).astype(np.int64)


def _with_wrong_labels(labels: Array, key: int) -> Array:
    """A fifth of the labels is another class's."""
    wrong = _draws(len(labels), 5, key) == 0
    return np.where(wrong, _draws(len(labels), 3, key + 1), labels)


def rows(**more: Any) -> dict[str, Any]:
    """A table's rows of two numbers, of three classes; teachers of few records are often wrong."""
    private, public = np.arange(120) % 3, np.arange(80) % 3
    points = np.array([[20, 20], [120, 40], [60, 140]])
    spread = [_draws(2 * len(each), 160, key).reshape(-1, 2) for key, each in ((1, private), (2, public))]
    return {
        "private_images": (points[private] + spread[0]) / 255,
        "private_labels": _with_wrong_labels(private, 3),
        "public_images": (points[public] + spread[1]) / 255,
        "public_labels": public,
        "num_queries": 60,
        **more,
    }


def patient_table(folder: Path) -> dict[str, Any]:
    """The same with a column that says whose each row is: three rows a patient."""
    made = table(folder)
    for path in folder.glob("*.csv"):
        header, *lines = path.read_text(encoding="utf-8").splitlines()
        whose = [f"{line},{number // 3}" for number, line in enumerate(lines)]
        path.write_text("\n".join((f"{header},who", *whose, "")), encoding="utf-8")
    return made | {"table": {**made["table"], "patient": "who"}}


def table(folder: Path) -> dict[str, Any]:
    """The section [data] of eight parties' CSV files, written to a folder, with the same rows as numbers."""
    made = rows()
    parts = {"pool": (made["public_images"], made["public_labels"])}
    for party in range(8):
        own = slice(party, None, 8)
        parts[f"party-{party}"] = made["private_images"][own], made["private_labels"][own]
    for name, (inputs, labels) in parts.items():
        whole = np.rint(inputs * 255).astype(int).tolist()
        lines = [f"{a},{b},{label}" for (a, b), label in zip(whole, labels.tolist(), strict=True)]
        (folder / f"{name}.csv").write_text("\n".join(("a,b,class", *lines, "")), encoding="utf-8")
    columns = {"a": "number", "b": "number"}
    return {
        "dataset": "table",
        "pool": str(folder / "pool.csv"),
        "private": [str(folder / f"{name}.csv") for name in parts if name != "pool"],
        "num_queries": 60,
        "table": {"label": "class", "classes": ["0", "1", "2"], "columns": columns},
    }


def images() -> dict[str, Any]:
    """Images of 16 times 16 whose bright stripe is the class."""
    made = {}
    for name, count, key in (("private", 96, 5), ("public", 72, 6)):
        labels = np.arange(count) % 3
        pixels = _draws(count * 256, 120, key).reshape(count, 16, 16, 1)
        for row in range(4):
            pixels[np.arange(count), 5 * labels + row] += 100
        made |= {f"{name}_images": pixels.astype(np.uint8), f"{name}_labels": labels}
    return made | {"private_labels": _with_wrong_labels(made["private_labels"], 7), "num_queries": 54}


# The studies.


@dataclass(frozen=True)
class SeededStudy:
    """One study: `run` has its run directory written, and gives the weights of class sums' own student.

    Of the ledger's rows the first `certain` are the same everywhere, None: all; torch has a part in others.
    """

    run: Callable[[Path], Array | None]
    certain: int | None = None


STUDIES: dict[str, SeededStudy] = {}


def _study(
    name: str, *, data: Any = rows, teacher: Any = NearestMean, student: Any = NearestMean, **settings: Any
) -> None:
    """A simulated study; settings by SECTION__KEY, parts of one's own by their kind."""
    parts = {
        key: settings.pop(key)
        for key in ("aggregator", "partitioner", "query_strategy", "feature_map")
        if key in settings
    }
    certain = settings.pop("certain", None)
    values: dict[str, Any] = {
        "study": {"seed": 11},
        "parties": {"num_clients": 8},
        "aggregation": {"aggregator": "gnmax", "sigma2": 1.5},
        "queries": {"labels": 30, "max_queries": 45},
        "privacy": {"allow_weak": True},
        "engine": {"backend": "inline"},
        "student": {"epochs": 1},
    }
    for path, value in settings.items():
        section, _, key = path.partition("__")
        if key:
            values.setdefault(section, {})[key] = value
        else:
            values[section] = value
    linear = student == "ridge"
    if isinstance(student, str):
        values["student"]["name"], student = student, None
    if isinstance(teacher, str):
        values["teacher"], teacher = {"name": teacher}, None
    parts |= {"teacher": teacher, "student": student}

    def run(folder: Path) -> Array | None:
        from pate_fed import simulate

        with tempfile.TemporaryDirectory() as place:
            if data in (table, patient_table):
                ran = simulate({**values, "data": data(Path(place))}, run_dir=folder, quiet=True, **parts)
            else:
                ran = simulate(values, run_dir=folder, quiet=True, **parts, dataset=data)
        return ran.student.weights if linear else None

    STUDIES[name] = SeededStudy(run, certain)


CONFIDENT = {"aggregator": "confident-gnmax", "threshold": 4.0, "sigma1": 2.0, "sigma2": 1.5}
INTERACTIVE = {**CONFIDENT, "aggregator": "interactive-gnmax"}
HOSPITAL_NOISE = {"secure_sum": True, "noise_at": "hospitals"}
MASKS = {"secure_sum": True}


def _votes() -> None:
    _study("votes gnmax", privacy__delta=1e-4)
    _study("votes gnmax not measured", queries__evaluate=False)
    _study("votes gnmax in small batches", queries__batch_size=7)
    _study("votes lnmax unit hospital", aggregation__aggregator="lnmax", privacy__unit="hospital")
    _study("votes confident-gnmax", aggregation=CONFIDENT)
    _study(
        "votes confident-gnmax add-or-remove", aggregation=CONFIDENT, privacy__adjacency="add-or-remove-one"
    )
    _study("votes confident-gnmax under masks", aggregation=CONFIDENT, secrecy=MASKS)
    _study("votes gnmax under masks with noise at hospitals", secrecy=HOSPITAL_NOISE, aggregation__sigma2=6.0)
    _study(
        "votes confident-gnmax with noise at hospitals, unit hospital",
        aggregation=CONFIDENT | {"sigma1": 6.0, "sigma2": 6.0},
        secrecy=HOSPITAL_NOISE,
        privacy__unit="hospital",
    )
    _study(
        "votes unit hospital add-or-remove",
        privacy__unit="hospital",
        privacy__adjacency="add-or-remove-one",
    )
    _study("votes interactive-gnmax", aggregation=INTERACTIVE)
    _study("votes interactive-gnmax under masks", aggregation=INTERACTIVE, secrecy=MASKS, queries__rounds=3)
    _study("votes own strategy", query_strategy=last_first, queries__rounds=2)
    _study("votes 3 teachers a party", parties__teachers_per_client=3)
    _study(
        "votes 2 teachers a party, unit hospital, masks",
        parties__teachers_per_client=2,
        privacy__unit="hospital",
        secrecy=MASKS,
    )
    _study("votes teachers by records", parties__teachers_per_client=4, parties__records_per_teacher=6)
    _study("votes gnmax budget stop", privacy__epsilon=6.0, aggregation__sigma2=3.0)
    _study("votes confident-gnmax budget stop", aggregation=CONFIDENT, privacy__epsilon=20.0)
    _study("votes dirichlet", parties__partition="dirichlet:0.5")
    _study("votes own partition", partitioner=in_turn)
    _study("votes patients", data=rows(patients=np.arange(120) // 3, owners=np.arange(120) // 15))
    _study(
        "votes patients dealt whole, add-or-remove",
        data=rows(patients=np.arange(120) // 3),
        parties__teachers_per_client=2,
        privacy__adjacency="add-or-remove-one",
    )
    _study(
        "votes patients in two parties, noise at hospitals",
        data=rows(patients=np.arange(120) // 2, owners=np.arange(120) % 8),
        privacy__hospitals_per_patient=2,
        secrecy=HOSPITAL_NOISE,
        aggregation__sigma2=6.0,
    )


def _own_mechanisms() -> None:
    from own_parts import GeometricMax, Picky

    _study("votes own mechanism", aggregator=GeometricMax(1.5), aggregation={})
    _study("votes own mechanism that abstains, masks", aggregator=Picky(1.5), aggregation={}, secrecy=MASKS)


def _students() -> None:
    few = {"labels": 20, "max_queries": 20}
    for name in ("supervised", "gan", "co-teaching", "pate+", "pate++", "fixmatch", "vat", "encoder-head"):
        _study(f"student {name}", data=images, student=name, queries=few)
    _study("student forest", student="forest", student__trees=3)
    _study(
        "student of interactive-gnmax, co-teaching",
        data=images,
        student="co-teaching",
        aggregation=INTERACTIVE,
        certain=1,
    )


def _sums() -> None:
    cuts = {"a": [50, 100, 150, 200], "b": [50, 100, 150, 200]}
    usual: dict[str, Any] = {
        "data": table,
        "teacher": None,
        "student": "ridge",
        "aggregation": {"aggregator": "class-sums", "sigma2": 4.0},
        "queries": {},
        "sums__cuts": cuts,
        "secrecy": MASKS,
    }
    ways: dict[str, dict[str, Any]] = {
        "ridge, noise at coordinator": {},
        "ridge, noise at hospitals": {"secrecy": HOSPITAL_NOISE},
        "by the budget": {"aggregation": {"aggregator": "class-sums"}, "privacy__epsilon": 20.0},
        "unit hospital": {"privacy__unit": "hospital", "sums__most_records": 5},
        "patients": {"data": patient_table},
        "patients one row at a time": {"data": patient_table, "privacy__unit": "record"},
        "patients, add-or-remove": {"data": patient_table, "privacy__adjacency": "add-or-remove-one"},
        "add-or-remove": {"privacy__adjacency": "add-or-remove-one", "sums__balanced": True},
        "forest": {"student": "forest", "student__trees": 3},
        "found by auto": {"aggregation": {"aggregator": "auto"}, "student": None, "secrecy": {}},
        # What later rounds sum follows from weights of floats.
        "in rounds": {"sums__rounds": 2, "secrecy": HOSPITAL_NOISE, "certain": 2},
        "in rounds, patients": {"sums__rounds": 2, "data": patient_table, "certain": 2},
        "and scores": {"sums__scores": True, "secrecy": HOSPITAL_NOISE, "certain": 1},
        "own map": {"data": images, "feature_map": quarters, "sums__cuts": {}, "secrecy": HOSPITAL_NOISE},
    }
    for name, way in ways.items():
        _study(f"class-sums {name}", **{**usual, **way})


def _labels() -> None:
    """Private labels, by the command."""

    def add(method: str, *more: str, certain: int | None = None) -> None:
        def run(folder: Path) -> None:
            _by_command(method, folder, *more)

        at = " at hospitals" if "--num-clients" in more else ""
        STUDIES[f"labels {method}{at}"] = SeededStudy(run, certain)

    for learner in ("normal", "ssl", "denoise-ssl", "aug-descent"):
        add(f"randres+{learner}")
        add(f"pate-fm+{learner}", certain=0)
    add("pate-fm", certain=0)
    add("noise-cluster")
    add("alibi")
    add("lp-1st")
    add("lp-2st", certain=1)
    for method in ("randres+normal", "lp-1st", "noise-cluster"):
        add(method, "--num-clients", "5")


def _by_command(method: str, folder: Path, *more: str) -> None:
    from pate_fed.cli.main import main

    made, files = images(), []
    with tempfile.TemporaryDirectory() as place:
        for option, name in (("images", "private_images"), ("labels", "private_labels")):
            np.save(Path(place, f"{option}.npy"), made[name])
            files += [f"--{option}", str(Path(place, f"{option}.npy"))]
        small = [] if method == "noise-cluster" else ["--epochs", "1"]
        if method == "noise-cluster" or method.endswith("denoise-ssl"):
            small += ["--clusters", "6", "--clusterer", "seeded_studies:by_place"]
        small += ["--teachers", "4"] if method.startswith("pate-fm") else []
        fixed = ["--method", method, "--epsilon", "3", "--delta", "1e-4", "--seed", "5", "--classes", "3"]
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            code = main(
                ["label-dp", "--dataset", "files", *files, *fixed, *small, *more, "--run-dir", str(folder)]
            )
    if code:
        raise RuntimeError(said.getvalue())


for _add in (_votes, _own_mechanisms, _students, _sums, _labels):
    _add()


# The normal form.


def normal_form(folder: Path, *, weights: Array | None = None, certain: int | None = None) -> Form:
    """What a run stated and released; of rows after the `certain` ones, and of all labels then, nothing.

    `weights` are of the student of class sums: they follow from the noisy sums, which are on no ledger.
    """
    from pate_fed.privacy import Ledger

    metrics = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    privacy, report = metrics["privacy"], Ledger.read(folder)
    form: Form = {
        "status": metrics["status"],
        "epsilon": privacy["student"]["data_independent"],
        "epsilon_coordinator": privacy["coordinator"]["epsilon"],
        "delta": privacy["delta"],
        "unit": privacy["unit"],
        "adjacency": privacy["adjacency"],
        "claimed_by": [[each["kind"], _part(each["name"])] for each in privacy.get("claimed_by", [])],
        "rows": _rows(report, certain),
    }
    if certain is None:
        form |= {"epsilon_spent": report.epsilon, "asked": report.asked, "answered": report.answered}
        with np.load(folder / "labels.npz", allow_pickle=False) as held:
            form["labels"] = {name: digest_of(held[name]) for name in sorted(held.files)}
    if weights is not None:
        form["weights"] = [float(f"{each:.9g}") for each in weights.ravel()[:12]]
    return form


def _rows(report: Any, certain: int | None) -> list[Form]:
    """The ledger's charges: mechanism, counts, and a digest of what was released."""
    outputs, rows, start = report.released(), [], 0
    for entry in report.chain.entries[:certain]:
        event, provenance, end = entry.event, entry.provenance, start + entry.event.asked
        row: Form = {
            "mechanism": _parameters(event.mechanism),
            "sees": event.coordinator.kind,
            "private": event.private,
            "asked": event.asked,
            "answered": event.answered,
            "released": digest_of(*(np.asarray(each)[start:end] for each in outputs)),
        }
        if provenance is not None:
            row |= {"round": provenance.round, "strategy": _part(provenance.strategy)}
        rows.append(row)
        start = end
    return rows


def _part(name: str) -> str:
    """A part's own name, without the module that it was found in."""
    return re.split(r"[.:]", name)[-1]


def _parameters(mechanism: Any) -> Form:
    """A mechanism's name and numbers; what one's own code claims by texts and curves is left out."""
    numbers = {
        name: value for name, value in mechanism.parameters().items() if isinstance(value, bool | int | float)
    }
    return {"name": _part(mechanism.name), **numbers}


def digest_of(*arrays: Array) -> str:
    """Of arrays of whole numbers and truth values, whatever their width; and their length in clear."""
    state = hashlib.sha256()
    for each in arrays:
        state.update(repr(each.shape).encode() + np.ascontiguousarray(each, dtype="<i8").tobytes())
    return f"{len(arrays[0])}:{state.hexdigest()[:16]}"


def differences(stored: Any, found: Any, path: str = "") -> Iterator[str]:
    """A line for each figure that differs, by its place in the form."""
    if isinstance(stored, Mapping) and isinstance(found, Mapping):
        for key in sorted({*stored, *found}):
            missing = "nothing"
            yield from differences(stored.get(key, missing), found.get(key, missing), f"{path}.{key}"[:200])
    elif isinstance(stored, list) and isinstance(found, list) and len(stored) == len(found):
        for number, pair in enumerate(zip(stored, found, strict=True)):
            yield from differences(*pair, f"{path}[{number}]")
    elif isinstance(stored, float) and isinstance(found, float):
        if not math.isclose(stored, found, rel_tol=_DIGITS, abs_tol=1e-9):
            yield f"{path[1:]}: stored {stored!r}, now {found!r}"
    elif stored != found:
        yield f"{path[1:]}: stored {stored!r}, now {found!r}"


def observe(name: str) -> Form:
    """Run a study in a folder of its own, which the second verifier confirms, and give its form."""
    from pate_fed.privacy.ledger.verify_independent import verify

    study = STUDIES[name]
    with tempfile.TemporaryDirectory() as folder:
        weights = study.run(Path(folder, "run"))
        verify(Path(folder, "run"))
        return normal_form(Path(folder, "run"), weights=weights, certain=study.certain)


def stored() -> dict[str, Form]:
    """The forms that were stored, by study."""
    found: dict[str, Form] = json.loads(STORED.read_text(encoding="utf-8"))
    return found


def _renew(names: list[str]) -> None:
    before = stored() if STORED.exists() else {}
    forms = {
        name: observe(name) if not names or name in names or name not in before else before[name]
        for name in STUDIES
    }
    for name, form in forms.items():
        for line in differences(before[name], form) if name in before else ["new"]:
            print(f"{name}: {line}")
    lines = [f"{json.dumps(name)}: {json.dumps(form, sort_keys=True)}" for name, form in forms.items()]
    STORED.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:2] != ["--renew"] or any(name not in STUDIES for name in sys.argv[2:]):
        sys.exit(f"{sys.argv[0]} --renew [STUDY ...], of {', '.join(STUDIES)}")
    _renew(sys.argv[2:])
