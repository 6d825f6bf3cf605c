"""What all rooms share: fields that declare type, range, unit, help and flag once; errors; durable files.

`from_plain` reads such a dataclass from what TOML, JSON, a message, a log line or a CSV row holds, `to_plain`
is the inverse, and `check` holds a value that was built in Python to the same declarations. `faults` has how
a fault in a user's own code is told. Every room may use all of it: the standard library, NumPy,
`pate_fed.errors` and `pate_fed.format` are what it imports.

Begin with `declarations.py`. Beside this room lie `pate_fed.errors` (errors with their exit codes),
`pate_fed.format` (ε rounded up) and `pate_fed.disk` (files that are whole or not there).
"""

from __future__ import annotations

from pate_fed.structure.declarations import (
    PART_NAME,
    PARTY_NAME,
    PARTY_NAME_IS,
    DeclaredField,
    Setting,
    SettingError,
    entries,
    same_as,
    setting,
)
from pate_fed.structure.values import check, fit, from_plain, from_record, refusal, to_plain, to_record
from pate_fed.structure.wording import nearest

__all__ = [
    "PARTY_NAME",
    "PARTY_NAME_IS",
    "PART_NAME",
    "DeclaredField",
    "Setting",
    "SettingError",
    "check",
    "entries",
    "fit",
    "from_plain",
    "from_record",
    "nearest",
    "refusal",
    "same_as",
    "setting",
    "to_plain",
    "to_record",
]
