"""The table of docs/records.md out of a FHIR server's bulk export, of which the files lie in this folder.

LOINC 8480-6 systolic blood pressure, 13457-7 LDL cholesterol; SNOMED CT 22298006 myocardial infarction.
"""

import csv
import json
from pathlib import Path

CODES = {"8480-6": "systolic", "13457-7": "ldl"}
rows = {}
for line in Path("Patient.ndjson").open():
    person = json.loads(line)
    born = int(person.get("birthDate", "0")[:4]) or None
    rows[f"Patient/{person['id']}"] = {
        "patient": person["id"],
        "age": "" if born is None else 2025 - born,
        "sex": {"male": "m", "female": "f"}.get(person.get("gender"), ""),
        "outcome": "none",
    }
seen = {}
for line in Path("Observation.ndjson").open():
    found = json.loads(line)
    names = [CODES[each["code"]] for each in found["code"]["coding"] if each["code"] in CODES]
    when, whose = found.get("effectiveDateTime", ""), found["subject"]["reference"]
    for name in names:
        if when < "2025" and "valueQuantity" in found and when >= seen.get((whose, name), ""):
            seen[whose, name] = when
            rows[whose][name] = found["valueQuantity"]["value"]
for line in Path("Condition.ndjson").open():
    found = json.loads(line)
    codes = {each["code"] for each in found["code"]["coding"]}
    if "22298006" in codes and found.get("onsetDateTime", "") >= "2025":
        rows[found["subject"]["reference"]]["outcome"] = "infarction"
columns = ["patient", "age", "sex", "systolic", "ldl", "outcome"]
with open("records.csv", "w", newline="") as file:
    writer = csv.DictWriter(file, columns, restval="")
    writer.writeheader()
    writer.writerows(rows.values())
