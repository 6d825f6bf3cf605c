"""Records with several labels, each yes or no: bits, two columns a label, one student that tells all."""

from __future__ import annotations

import csv
import json
import shutil
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from pate_fed.cli.main import main
from pate_fed.cli.terms import make_page, make_terms_of
from pate_fed.config.study import read_study
from pate_fed.data.infer import infer_schema
from pate_fed.data.own_columns import OwnColumns
from pate_fed.data.profile import examine, examine_rows
from pate_fed.data.schema import Schema
from pate_fed.data.table import read_table
from pate_fed.errors import InputError
from pate_fed.kinds.sums import SumTerms
from pate_fed.kinds.terms import Terms
from pate_fed.learning.features.build import build_feature_map
from pate_fed.learning.features.feature_map import FeatureSettings

SCHEMA = Schema(
    labels=(("fever", ("0", "1")), ("change", ("No", "Ch")), ("died", ("no", "yes"))),
    columns=(("x", ()), ("ward", ("a", "b"))),
)


@pytest.mark.parametrize("several", [2, 3, 5])
def test_neighbours_differ_by_no_more_than_the_stated_sensitivity(several: int) -> None:
    """Theorem 1 by brute force, of √labels times a record's length: records, patients, all sets of labels."""
    pool = np.linspace(0, 1, 8)[:, None]
    features = build_feature_map(FeatureSettings(name="bins", columns=(1,), lattice=16, bins=3), pool)
    records = list(product((0.0, 0.3, 0.7, np.nan), range(2**several)))

    def summed(rows: list[tuple[float, int]], groups: list[int] | None = None) -> np.ndarray:
        x, y = np.array([[x] for x, _ in rows]), np.array([y for _, y in rows])
        found = None if groups is None else np.array(groups)
        return features.contributions(x, y, num_classes=2 * several, groups=found, several=several)

    most = several * features.squared_norm
    each = [summed([record]) for record in records]
    patients = [summed([one, other], [7, 7]) for one, other in product(records[:8], records[-8:])]
    for own in (*each, *patients):
        assert (own >= 0).all() and 0 < int((own**2).sum()) <= most
    worst = max(int(((one - other) ** 2).sum()) for one, other in product(each[::3], each))
    assert most < worst <= 2 * most
    assert max(int(((one - each[0]) ** 2).sum()) for one in patients) <= 2 * most
    for (x, labels), own in zip(records, each, strict=True):
        whole = features.features(np.array([[x]]))[0]
        for place in range(several):
            yes = labels >> place & 1
            assert np.array_equal(own[:, 2 * place + yes], whole) and not own[:, 2 * place + 1 - yes].any()


def test_the_room_of_a_sum_holds_for_patients_whose_records_all_have_one_feature() -> None:
    """After the cut no entry is longer than √2 records, however many labels share it (`SumTerms.room`)."""
    pool = np.linspace(0, 1, 8)[:, None]
    features = build_feature_map(FeatureSettings(name="bins", columns=(1,), lattice=16, bins=3), pool)
    rng = np.random.default_rng(0)
    for several, count in product((2, 5, 16), (1, 2, 3, 40)):
        x, y = np.full((count, 1), 0.7), rng.integers(0, 2**several, count)
        groups = np.zeros(count, dtype=np.int64)
        own = features.contributions(x, y, num_classes=2 * several, groups=groups, several=several)
        assert own.max() ** 2 <= 2 * features.squared_norm


def test_bits_out_of_range_and_labels_beside_what_is_for_one_are_refused() -> None:
    pool = np.linspace(0, 1, 8)[:, None]
    features = build_feature_map(FeatureSettings(name="bins", columns=(1,), lattice=16, bins=3), pool)
    for label in (-1, 4):
        with pytest.raises(InputError, match="none of the classes 0 to 3"):
            features.contributions(pool[:1], np.array([label]), num_classes=4, several=2)
    with pytest.raises(InputError, match="two columns a label"):
        features.contributions(pool[:1], np.array([0]), num_classes=3, several=2)
    for wrong in (
        {"label": "y"},
        {"target_range": (0.0, 1.0)},
        {"classes": ("a", "b")},
        {"labels": SCHEMA.labels[:1]},
        {"labels": (*SCHEMA.labels, ("late", ("a", "b", "c")))},
        {"labels": (*SCHEMA.labels, ("late", ("a",)))},
        {"labels": (*SCHEMA.labels, ("late", ("a", "a")))},
        {"labels": tuple((f"l{number}", ("0", "1")) for number in range(17))},
        {"labels": (("a", ("b: c", "d")), ("a: b", ("c", "e")))},
    ):
        with pytest.raises(InputError, match="labels"):
            replace(SCHEMA, **wrong)
    for twice in ((*SCHEMA.labels, SCHEMA.labels[0]), (*SCHEMA.labels, ("x", ("0", "1")))):
        with pytest.raises(InputError, match="named more than once"):
            replace(SCHEMA, labels=twice)


def test_cells_are_read_and_bad_ones_named_without_their_value(tmp_path: Path) -> None:
    path, head = tmp_path / "h.csv", "x,ward,fever,change,died\n"
    path.write_text(f"{head}1,a,1,No,yes\n2,b,0.0,Ch,nein\n3,a,0,No,no\n")
    rows = read_table(path, SCHEMA, labelled=True)
    assert rows.labels.tolist() == [0b101, 0b010, 0]
    path.write_text(f"{head}1,a,1,No,yes\n2,b,,Ch,no\n")
    assert read_table(path, SCHEMA, labelled=False).labels.tolist() == [0b101, -1]
    for cells, told in (
        ("2,b,,Ch,no", "row 3, column fever: the label is missing; one of 0, 1 is meant"),
        ("2,b,1,Secret,no", "row 3, column change is none of the classes No, Ch"),
    ):
        path.write_text(f"{head}1,a,1,No,yes\n{cells}\n")
        with pytest.raises(InputError, match=told) as caught:
            read_table(path, SCHEMA, labelled=True)
        assert "Secret" not in str(caught.value)
    path.write_text("x,ward,fever,died\n1,a,1,yes\n")
    with pytest.raises(InputError, match="the study's column 'change' is missing"):
        read_table(path, SCHEMA, labelled=True)
    path.write_text("x,ward,fever,chenge,died\n1,a,1,No,yes\n")
    with pytest.raises(InputError, match="label 'change' is missing; there is 'chenge'"):
        read_table(path, SCHEMA, labelled=False)


def test_a_table_is_looked_at_label_by_label(tmp_path: Path) -> None:
    path = tmp_path / "h.csv"
    told: list[tuple[object, ...]] = [("x", "ward", "fever", "change", "died")]
    told += [
        (number % 7, "ab"[number % 2], number % 2, ("No", "Ch")[number % 3 == 0], "no")
        for number in range(60)
    ]
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(told)
    found = examine(path, SCHEMA)
    assert [each.name for each in found.columns if each.kind == "label"] == ["fever", "change", "died"]
    notes = {(each.column, each.text.split(":")[0]) for each in found.notes}
    assert ("died", "no record of yes") in notes and ("ward", "tells 100 % of the labels alone") in notes
    rows = read_table(path, SCHEMA, labelled=True)
    assert any(each.column == "ward" for each in examine_rows(rows, SCHEMA, OwnColumns()))


def test_no_stands_before_yes_and_other_than_two_values_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("x,a,b,c,d,one\n" + "1,Ch,1,ja,pos,7\n2,No,0,nein,neg,7\n3,No,0,ja,pos,7\n" * 9)
    schema = infer_schema([path], labels=["a", "b", "c", "d"]).schema
    assert dict(schema.labels) == {
        "a": ("No", "Ch"),
        "b": ("0", "1"),
        "c": ("nein", "ja"),
        "d": ("neg", "pos"),
    }
    assert [name for name, _ in schema.columns] == ["x", "one"] and schema.class_names[:2] == (
        "a: No",
        "a: Ch",
    )
    for name, told in (
        ("one", "--label one: 1 value"),
        ("x", "--label x: 3 values"),
        ("y", "no such column"),
    ):
        with pytest.raises(InputError, match=told):
            infer_schema([path], labels=["a", name])


def _tables(folder: Path) -> list[str]:
    rng = np.random.default_rng(0)
    for name, count in (("h0", 300), ("h1", 300), ("h2", 300), ("h3", 300), ("pool", 300)):
        x, noise = rng.normal(size=(count, 3)).round(2), rng.normal(size=(count, 3))
        fever, change, died = (x + noise / 3 > (0.0, 1.0, 0.5)).T
        rows = zip(
            x[:, 0], x[:, 1], x[:, 2], fever.astype(int), np.where(change, "Ch", "No"), died, strict=True
        )
        with (folder / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([("x", "y", "z", "fever", "change", "died"), *rows])
    return [str(folder / f"h{number}.csv") for number in range(4)]


def test_a_study_from_files_to_predictions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from pate_fed.simulation import main as simulate

    study, run, files = str(tmp_path / "study.toml"), str(tmp_path / "run"), _tables(tmp_path)
    labels = ["--label", "fever", "--label", "change", "--label", "died"]
    asked = ["study", "new", "--csv", *files, *labels, "--out", study]
    assert main(asked) == 0
    assert "labels: fever (no: 0, yes: 1), change (no: No, yes: Ch), died" in capsys.readouterr().out
    table = read_study(Path(study)).data.table
    assert table is not None and [name for name, _ in table.labels] == ["fever", "change", "died"]
    assert simulate(["--config", study, "--epsilon", "3", "--seed", "1", "--run-dir", run]) == 0
    assert " mean_AUC=0.9" in capsys.readouterr().out
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    by_label = metrics["by_label"]
    tested = metrics["accuracy"]["tested"]
    assert tested["kept"] + tested["not_asked"] == by_label["count"]
    assert metrics["accuracy"]["student"] is None and metrics["num_classes"] == 6
    assert by_label["what"] == "3 yes/no labels" and by_label["mean_auc"] > 0.85 and by_label["count"] == 300
    assert [each["label"] for each in by_label["each"]] == ["fever: 1", "change: Ch", "died: True"]
    assert all(each["auc"] > 0.8 and each["accuracy"] > each["majority"] for each in by_label["each"])
    assert main(["ledger", "verify", run]) == 0
    page = (tmp_path / "run" / "report.html").read_text()
    assert "How well it tells: 3 yes/no labels" in page and "always the more frequent" in page
    shutil.copytree(run, f"{run}-2")
    for more, told in (
        (["compare", run, f"{run}-2", "--html", str(tmp_path / "c.html")], "mean AUC"),
        (["plan", "--config", study], "records have several labels: nothing is voted on"),
    ):
        capsys.readouterr()
        assert main(more) == 0
        assert told in capsys.readouterr().out
    assert main(["predict", run, str(tmp_path / "pool.csv"), "--format", "json"]) == 0
    *told_of, last = map(json.loads, capsys.readouterr().out.splitlines())
    assert all(set(each["probabilities"]) == {"fever: 1", "change: Ch", "died: True"} for each in told_of)
    assert all(0 <= share <= 1 for each in told_of for share in each["probabilities"].values())
    assert last["evaluation"]["mean_auc"] > 0.85
    papers = tmp_path / "papers"
    assert main(["report", run, "--papers", str(papers)]) == 0
    card = (papers / "model-card.md").read_text(encoding="utf-8")
    assert "| mean AUC | " in card and "| AUC, died: True | " in card and "| accuracy |" not in card
    for refused in (
        ["--aggregator", "gnmax"],
        ["--unit", "hospital"],
        ["--student", "random-forest", "--aggregator", "class-sums"],
    ):
        assert simulate(["--config", study, "--seed", "1", "--run-dir", f"{run}-no", *refused]) == 2
        assert not (tmp_path / "run-no").exists()
    for key in ("rounds = 3", "scores = true", "balanced = true"):
        other = tmp_path / "other.toml"
        other.write_text(f"{Path(study).read_text()}\n".replace("[sums]", f"[sums]\n{key}"))
        capsys.readouterr()
        assert simulate(["--config", str(other), "--seed", "1", "--run-dir", f"{run}-no"]) == 2
        assert "is meant beside data.table.labels" in capsys.readouterr().err
    for wrong, message in (
        (["--label", "fever"], "--label fever: is given twice"),
        (["--target-range", "0:1"], "several are yes or no"),
        (["--range", "x=0:1"], "several want public inputs"),
        (["--label", "x"], "--label x: "),
    ):
        assert main([*asked[:-1], f"{study}-no", *wrong]) == 2
        assert message in capsys.readouterr().err


def test_a_hospital_reads_of_labels_before_it_agrees_and_checks_its_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    files, labels = _tables(tmp_path), ["--label", "fever", "--label", "died"]
    assert main(["study", "new", "--csv", *files, *labels, "--out", "study.toml"]) == 0
    terms = Terms.from_json(make_terms_of(Path("study.toml")))
    sums = SumTerms.of(terms)
    assert (terms.several, terms.num_classes, terms.classes[2]) == (2, 4, "died: False")
    assert sums.squared_norm == 2 * sums.settings.lattice**2
    page = " ".join(" ".join(make_page(terms).lines()).split())
    assert "2 columns, by which features are summed: fever (0 for no, 1 for yes)" in page
    assert "one column for no and one for yes" in page and "of all labels together, is cut" in page
    for wrong in ({"num_classes": 2, "classes": ()}, {"privacy": replace(terms.privacy, unit="hospital")}):
        with pytest.raises(InputError, match="class sums once by record or patient"):
            replace(terms, **wrong)
    assert main(["hospital", "check", "h0.csv", "--study", "study.toml"]) == 0
    lacking = Path("h0.csv").read_text().replace("died", "outcome", 1)
    Path("lacks.csv").write_text(lacking)
    capsys.readouterr()
    assert main(["hospital", "check", "lacks.csv", "--study", "study.toml"]) == 2
    assert "died: the file has no such column" in capsys.readouterr().out
    assert main(["doctor", "--config", "study.toml", "--hospital", "a", "--data", "h0.csv"]) in (0, 1, 2)
    assert "no model is tried: what is learnt is several labels" in capsys.readouterr().out
