"""examples/records/: its SQL and its Python make the table of docs/records.md, each from a small store."""

from __future__ import annotations

import csv
import json
import sqlite3
import subprocess
import sys
from pathlib import Path

from pate_fed.data.infer import infer_schema

FOLDER = Path(__file__).parents[2] / "examples" / "records"
EXPECTED = [
    ["patient", "age", "sex", "systolic", "ldl", "outcome"],
    ["1", "60", "m", "141", "130", "infarction"],
    ["2", "44", "f", "120", "", "none"],
]


def rows_of(path: Path) -> list[list[str]]:
    with open(path, newline="") as file:
        rows = list(csv.reader(file))
    return [rows[0], *([cell.removesuffix(".0") for cell in row] for row in rows[1:])]


def test_the_query_of_an_omop_store(tmp_path: Path) -> None:
    store = sqlite3.connect(":memory:")
    store.executescript(
        """
        CREATE TABLE person (person_id, year_of_birth, gender_concept_id);
        CREATE TABLE measurement (person_id, measurement_concept_id, value_as_number, measurement_date);
        CREATE TABLE condition_occurrence (person_id, condition_concept_id, condition_start_date);
        INSERT INTO person VALUES (1, 1965, 8507), (2, 1981, 8532);
        INSERT INTO measurement VALUES
          (1, 3004249, 150, '2023-05-01'), (1, 3004249, 141, '2024-05-01'), (1, 3004249, 99, '2025-05-01'),
          (1, 3028437, 130, '2024-01-01'), (2, 3004249, 120, '2024-02-02'), (2, 1, 7, '2024-02-02');
        INSERT INTO condition_occurrence VALUES (1, 4329847, '2025-03-01'), (2, 4329847, '2020-03-01');
        """
    )
    answer = store.execute((FOLDER / "omop.sql").read_text(encoding="utf-8"))
    path = tmp_path / "records.csv"
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([column[0] for column in answer.description])
        writer.writerows(answer)
    store.close()
    assert rows_of(path) == EXPECTED
    assert infer_schema([path]).schema.classes == ("infarction", "none")


def test_the_table_of_a_fhir_export(tmp_path: Path) -> None:
    def observed(person: str, code: str, value: float, when: str) -> dict[str, object]:
        coding = {"coding": [{"system": "http://loinc.org", "code": code}]}
        who = {"reference": f"Patient/{person}"}
        return {"code": coding, "subject": who, "effectiveDateTime": when, "valueQuantity": {"value": value}}

    resources: dict[str, list[dict[str, object]]] = {
        "Patient": [
            {"id": "1", "birthDate": "1965-02-03", "gender": "male"},
            {"id": "2", "birthDate": "1981-02-03", "gender": "female"},
        ],
        "Observation": [
            observed("1", "8480-6", 141, "2024-05-01"),
            observed("1", "8480-6", 150, "2023-05-01"),
            observed("1", "8480-6", 99, "2025-05-01"),
            observed("1", "13457-7", 130, "2024-01-01"),
            observed("2", "8480-6", 120, "2024-02-02"),
        ],
        "Condition": [
            {
                "code": {"coding": [{"code": "22298006"}]},
                "subject": {"reference": f"Patient/{person}"},
                "onsetDateTime": when,
            }
            for person, when in (("1", "2025-03-01"), ("2", "2020-03-01"))
        ],
    }
    for name, found in resources.items():
        (tmp_path / f"{name}.ndjson").write_text("".join(json.dumps(each) + "\n" for each in found))
    subprocess.run([sys.executable, str(FOLDER / "fhir.py")], cwd=tmp_path, check=True)
    assert rows_of(tmp_path / "records.csv") == EXPECTED
