"""examples/records/: its SQL and its FHIR searches make the table of docs/records.md, from small stores."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path

from pate_fed.data.csv_file import CsvFile
from pate_fed.data.infer import infer_schema

FOLDER = Path(__file__).parents[2] / "examples" / "records"


def rows_of(path: Path) -> list[list[str]]:
    file = CsvFile(path)
    return [file.header, *([cell.removesuffix(".0") for cell in cells] for _, cells in file.rows(plain=True))]


def test_the_query_of_an_omop_store(tmp_path: Path) -> None:
    store = sqlite3.connect(tmp_path / "store.db")
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
    store.close()
    path = tmp_path / "omop.sql"
    shutil.copy(FOLDER / "omop.sql", path)
    (tmp_path / "omop.sql.url").touch(0o600)
    (tmp_path / "omop.sql.url").write_text(f"sqlite:///{tmp_path}/store.db")
    assert rows_of(path) == [
        ["patient", "age", "sex", "systolic", "ldl", "outcome"],
        ["1", "60", "m", "141", "130", "infarction"],
        ["2", "44", "f", "120", "", "none"],
    ]
    assert infer_schema([path]).schema.classes == ("infarction", "none")


def test_the_table_of_a_fhir_export(tmp_path: Path) -> None:
    def observed(person: str, code: str, value: float, when: str) -> dict[str, object]:
        coding = {"coding": [{"system": "http://loinc.org", "code": code}]}
        who = {"reference": f"Patient/{person}"}
        quantity = {"value": value, "code": "mg/dL"}
        return {"code": coding, "subject": who, "effectiveDateTime": when, "valueQuantity": quantity}

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
    (tmp_path / "export").mkdir()
    for name, found in resources.items():
        lines = "".join(json.dumps({"resourceType": name, **each}) + "\n" for each in found)
        (tmp_path / "export" / f"{name}.ndjson").write_text(lines)
    path = tmp_path / "records.fhir"
    shutil.copy(FOLDER / "records.fhir", path)
    assert rows_of(path) == [
        ["patient", "age", "sex", "systolic", "ldl", "stays", "infarction"],
        ["1", "59", "male", "141", "130", "0", "yes"],
        ["2", "43", "female", "120", "", "0", "no"],
    ]
    assert infer_schema([path]).schema.classes == ("no", "yes")
