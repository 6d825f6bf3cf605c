"""Requests to be admitted: signed, and refused when changed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pate_fed.errors import InputError, IntegrityError
from pate_fed.identity import (
    make_request,
    read_request,
)


def test_a_changed_request_is_refused(tmp_path: Path) -> None:
    request = make_request(tmp_path, "north")
    values = json.loads(request.read_text())
    other = json.loads(make_request(tmp_path / "other", "north").read_text())
    taken = {name: other[name] for name in ("public_key", "signature")}
    for change in (
        {"hospital": "south"},
        {"sum_identity": "ab" * 32},
        {"signature": "zz"},
        taken,
        {**taken, "sum_signature": other["sum_signature"]},
    ):
        request.write_text(json.dumps({**values, **change}))
        with pytest.raises(IntegrityError, match="changed on its way"):
            read_request(request)
    for bad in (
        {},
        {**values, "public_key": "x"},
        {**values, "sum_signature": "zz"},
        {**values, "sum_identity": 3},
        [],
    ):
        request.write_text(json.dumps(bad))
        with pytest.raises(InputError, match="not a request"):
            read_request(request)
    with pytest.raises(InputError, match="there is a key already"):
        make_request(tmp_path, "north")
    with pytest.raises(InputError, match="hospital's name"):
        make_request(tmp_path / "x", "../north")
