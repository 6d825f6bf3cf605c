"""The second verifier: it needs Python alone, confirms sound runs, and finds errors of our accountant."""

from __future__ import annotations

import ast
import hashlib
import json
import math
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, replace
from fractions import Fraction
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import winner_search
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from ledgers import KEY, MECHANISM, PUBLIC, TERMS, forge, run, tamper
from seeded_studies import STUDIES

from pate_fed.privacy import RECORD, Ledger, LNMax, SeededNoise
from pate_fed.privacy.bounds import cost as costs
from pate_fed.privacy.bounds.hockey_stick import argmax_rdp, bit_rdp
from pate_fed.privacy.ledger import chain, verify_exact, verify_independent
from pate_fed.privacy.ledger.verify_independent import FoundError, is_signed, verify, winner_rdp


@pytest.mark.parametrize(("file", "more"), [(verify_independent, set()), (verify_exact, {"numpy"})])
def test_it_imports_nothing_of_ours(file: ModuleType, more: set[str]) -> None:
    tree = ast.parse(Path(str(file.__file__)).read_text(encoding="utf-8"))
    found = {each.name for node in ast.walk(tree) if isinstance(node, ast.Import) for each in node.names}
    found |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.split(".")[0] for name in found} <= sys.stdlib_module_names | more


def test_nobody_waits_for_a_ledger_that_is_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "ledger.sqlite")
    with pytest.raises(FoundError, match="there is no ledger"):
        verify(tmp_path)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study of votes in small batches, so of several rows."""
    folder = tmp_path_factory.mktemp("independent") / "run"
    STUDIES["votes gnmax in small batches"].run(folder)
    return folder


@pytest.fixture
def run_dir(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "run"))


def test_the_copy_beside_a_run_confirms_it_without_anything_installed(run_dir: Path) -> None:
    command = [sys.executable, "-I", "-S", str(run_dir / "verify_independent.py"), str(run_dir)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "rows, chain whole" in done.stdout and "held to a factor of 1.02" in done.stdout
    with_numpy = subprocess.run([sys.executable, *command[3:]], capture_output=True, text=True, check=False)
    assert with_numpy.returncode == 0 and "held to a factor of 1.02" in with_numpy.stdout
    assert subprocess.run([*command, "1" * 64], capture_output=True, check=False).returncode == 6


@pytest.mark.parametrize(
    "edit",
    [
        lambda path: tamper(path, run("UPDATE entries SET epsilon = 0.1 WHERE seq = 2")),
        lambda path: tamper(path, run("UPDATE released SET label = 2 - label WHERE seq = 2")),
        lambda path: path.with_name("labels.npz").write_bytes(b"PK"),
        lambda path: path.with_name("metrics.json").write_text("{}"),
        lambda path: os.truncate(path.with_name("labels.npz"), 2**40),
        lambda path: path.with_name("seal.json").unlink() or os.mkfifo(path.with_name("seal.json")),
    ],
)
def test_what_was_changed_is_found(run_dir: Path, edit: Callable[[Path], object]) -> None:
    path = run_dir / "ledger.sqlite"
    edit(path)
    with pytest.raises(FoundError):
        verify(run_dir)
    with closing(sqlite3.connect(path)) as connection:
        [[least]] = connection.execute("SELECT min(epsilon) FROM entries")
    if least == 0.1:
        forge(path)
        (run_dir / "seal.json").unlink()
        with pytest.raises(FoundError, match=r"row 2 states ε=0\.1; by our own reckoning"):
            verify(run_dir)


def _half_sensitivity(patch: pytest.MonkeyPatch) -> None:
    """The winner charged as if its noise were twice what it is."""
    rdp = costs.OutcomeCost.rdp

    def wrong(self: Any, order: Any) -> Any:
        return rdp(self, order) / 4

    patch.setattr(costs.OutcomeCost, "rdp", wrong)


def _a_little_less(patch: pytest.MonkeyPatch) -> None:
    """Too little for the first tier, which is held to 1.25."""
    rdp = costs.OutcomeCost.rdp
    patch.setattr(costs.OutcomeCost, "rdp", lambda self, order: rdp(self, order) * Fraction(17, 20))


def _row_skipped(patch: pytest.MonkeyPatch) -> None:
    """Every second row is not added to the total."""
    price = chain.Chain.price

    def wrong(self: Any, event: Any, **options: Any) -> Any:
        found = price(self, event, **options)
        return (self.cost, self.epsilon) if len(self.entries) % 2 else found

    patch.setattr(chain.Chain, "price", wrong)


def _delta_split_wrongly(patch: pytest.MonkeyPatch) -> None:
    """Each of a thousand parts takes δ for its own."""
    patch.setattr(chain, "epsilon_of", lambda cost, delta, **_: costs.epsilon_of(cost, 1000 * delta))


@pytest.mark.parametrize("plant", [_half_sensitivity, _a_little_less, _row_skipped, _delta_split_wrongly])
def test_an_error_of_our_accountant_is_found(
    run_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    plant: Callable[[pytest.MonkeyPatch], None],
) -> None:
    """The same releases charged anew by an accountant that errs; its own verifier finds nothing."""
    whole = Ledger.read(run_dir)
    terms, anew = replace(whole.chain.terms, most_asked=None, most_answered=None), tmp_path / "anew"
    anew.mkdir()

    def charge(path: Path) -> None:
        with Ledger.create(path, terms) as ledger:
            for entry, outputs in zip(whole.chain.entries, whole.chain.outputs, strict=True):
                ledger.charge(
                    entry.event,
                    batch_digest=entry.batch_digest,
                    index=outputs.index,
                    answered=outputs.answered,
                    label=outputs.label,
                )

    charge(anew / "ledger.sqlite")
    verify(anew)
    (anew / "ledger.sqlite").unlink()
    with pytest.MonkeyPatch.context() as patch:
        costs._searched_epsilon.cache_clear()
        plant(patch)
        charge(anew / "ledger.sqlite")
        Ledger.read(anew)
    costs._searched_epsilon.cache_clear()
    with pytest.raises(FoundError, match="by our own reckoning"):
        verify(anew)
    if plant is _a_little_less:
        monkeypatch.setattr(verify_independent, "_second_tier", lambda: None)
        verify(anew)


@pytest.mark.parametrize(
    ("kind", "scale", "order"),
    [
        ("gaussian", 1.5, 1.5),
        ("gaussian", 1.5, 4.0),
        ("gaussian", 18.0, 4.0),  # which the verifier looks at coarsely
        ("laplace", 1.5, 1.5),
        ("laplace", 1.5, 4.0),
    ],
)
def test_two_programs_find_the_same_divergence(kind: str, scale: float, order: float) -> None:
    for votes in (1, 2):
        ours, theirs = winner_rdp(kind, scale, votes, order), argmax_rdp(scale, order, shift=votes, kind=kind)
        assert 0.999 * theirs < ours < 1.03 * theirs
        bit = verify_independent.bit_rdp(kind, scale, votes, order)
        assert bit == pytest.approx(bit_rdp(scale, order, shift=votes, kind=kind), rel=1e-4)


@pytest.mark.parametrize(
    ("scale", "order"), [(18.0, 4.0), (27.0, 1.5), pytest.param(36.0, 12.0, marks=pytest.mark.slow)]
)
def test_on_a_coarse_lattice_the_tie_key_s_other_end_is_looked_at(scale: float, order: float) -> None:
    """Lemma 7 for its own noise: at each multiple of K, whatever the tie key of the best other class is."""
    step = int(scale // 9)
    less = math.sqrt((scale**2 + math.sqrt(scale**4 - (3 * step * scale) ** 2)) / 2)
    places = step * np.arange(-math.ceil(3 * less / step), math.ceil(3 * less / step) + 1)
    u, v = (each.ravel() for each in np.meshgrid(places, places))
    noise, key_at = winner_search.Noise("gaussian", less), (0, 1)  # a key of 1 is that of one vote more
    found = [
        winner_search.renyi(order)(noise.crowd(u - key, v - key), noise.crowd(u - key - 1, v - key + 1)).max()
        for key in key_at
    ]
    assert max(found) <= winner_rdp("gaussian", scale, 1, order) <= 1.03 * argmax_rdp(scale, order)


@pytest.mark.parametrize("kind", ["gaussian", "laplace"])
@pytest.mark.parametrize(("scale", "moved"), [(0.7, 1), (1.5, 1), (6.0, 1), (6.0, 3), (17.0, 1), (17.0, 3)])
@pytest.mark.parametrize("order", [1.3, 4.0, 16.0])
def test_what_lies_beyond_the_lattice_is_within_the_slack(
    kind: str, scale: float, moved: int, order: float
) -> None:
    """Each summand of lemma 3, at the distances that are looked at."""
    edge, apart = verify_independent._edge(kind, scale, moved, order)
    x = np.arange(-4 * edge - apart, 4 * edge + apart + 1)
    log = -((x / scale) ** 2) / 2 if kind == "gaussian" else -np.abs(x) / scale
    log -= np.logaddexp.reduce(log)
    mass, m, at = np.exp(log), np.exp(order * log[:-moved] + (1 - order) * log[moved:]), x[:-moved]
    differences = np.arange(2 * x[0], 2 * x[-1] + 1)
    adds = m.sum() * m[at >= edge].sum()
    adds += np.convolve(m, m)[differences[: -2 * moved] >= apart].sum()
    share = mass[x >= edge - moved].sum()
    share += np.convolve(mass, mass)[differences >= apart - 2 * moved].sum()
    assert adds < 1e-10 and order * share < 1e-10


def test_terms_by_which_nothing_moves_are_refused_and_nothing_released_costs_nothing() -> None:
    terms = {"protection": asdict(RECORD), "delta": 1e-5, "sanitise": None}
    assert verify_independent.own_epsilon(terms, [("gnmax", {"sigma": 4.0}, 3, 0)]) == (0.0, 0.0)
    for moved in (0, 0.5, -1, True):
        terms["protection"] = {**asdict(RECORD), "votes_moved": moved}
        with pytest.raises(FoundError, match="a unit moves"):
            verify_independent.own_epsilon(terms, [("gnmax", {"sigma": 4.0}, 3, 3)])


def test_bit_and_winner_on_the_same_votes_are_accepted_or_left_open_and_never_called_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """300 queries, most of them answered, in batches whose rows state what the caps bound."""
    path, mechanism = tmp_path / "ledger.sqlite", replace(MECHANISM, threshold=40, sigma1=30, sigma2=6)
    terms = replace(TERMS, mechanisms=(mechanism,), most_asked=300, most_answered=250)
    with Ledger.create(path, terms) as ledger:
        for batch in range(2):
            out = mechanism.release(np.tile([47, 1, 1, 1], (150, 1)), SeededNoise(batch))
            answered = out.answered & (np.cumsum(out.answered) <= 125)
            made = replace(out.event, answered=int(answered.sum()))
            index, label = np.arange(150) + 150 * batch, np.where(answered, out.label, -1)
            ledger.charge(made, batch_digest=str(batch) * 64, index=index, answered=answered, label=label)
    assert verify_independent.main([str(tmp_path)]) == 0, capsys.readouterr().err
    with monkeypatch.context() as patch:
        patch.setattr(verify_independent, "_second_tier", lambda: None)
        assert verify_independent.main([str(tmp_path)]) == 3
        assert "with bit and winner apart" in capsys.readouterr().err
    tamper(path, run("UPDATE entries SET epsilon = epsilon / 2 WHERE seq = 2"))
    forge(path)
    assert verify_independent.main([str(tmp_path)]) == 6
    assert "row 2 states" in capsys.readouterr().err


def test_of_much_laplace_noise_no_bound_is_known_and_nothing_is_called_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The papers' γ = 0.05: what is stated is of the winner, ours of all noisy totals."""
    path, mechanism = tmp_path / "ledger.sqlite", LNMax(classes=4, scale=20.0)
    terms = replace(TERMS, mechanisms=(mechanism,), most_asked=20, most_answered=20)
    with Ledger.create(path, terms) as ledger:
        out = mechanism.release(np.tile([47, 1, 1, 1], (20, 1)), SeededNoise(0))
        kept = {"index": np.arange(20), "answered": out.answered, "label": out.label}
        ledger.charge(out.event, batch_digest="0" * 64, **kept)
    assert verify_independent.main([str(tmp_path)]) == 3
    assert "of so much Laplace noise no bound" in capsys.readouterr().err


def test_a_folder_that_is_no_run_is_wrong_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert verify_independent.main([str(tmp_path)]) == 2
    assert "is no run directory" in capsys.readouterr().err


def test_signatures_are_checked_as_others_check_them() -> None:
    signature = KEY.sign(b"message").hex()
    assert is_signed(PUBLIC, signature, b"message") and not is_signed(PUBLIC, signature, b"messages")
    other = Ed25519PrivateKey.generate().public_key().public_bytes_raw().hex()
    assert not is_signed(other, signature, b"message") and not is_signed(
        PUBLIC, signature.upper(), b"message"
    )
    assert not is_signed("zz", signature, b"message") and not is_signed(PUBLIC, "", b"message")


@pytest.mark.parametrize(("sign", "twist", "signed"), [(1, 1, True), (-1, 1, False), (-1, -1, False)])
def test_points_are_the_same_where_both_coordinates_are(sign: int, twist: int, signed: bool) -> None:
    """With -1 both sides differ in x alone, and where (0, -1) is added to one of them in y alone."""
    p, q, add, times = (getattr(verify_independent, name) for name in ("P", "Q", "_add", "_times"))
    base = verify_independent._point((4 * pow(5, p - 2, p) % p).to_bytes(32, "little"))
    secret = bytearray(hashlib.sha512(KEY.private_bytes_raw()).digest()[:32])
    secret[0], secret[31] = secret[0] & 248, secret[31] & 63 | 64
    x, y, z, _ = add(times(12345, base), (0, twist % p, 1, 0))
    x, y = (each * pow(z, p - 2, p) % p for each in (x, y))
    point = (y | (x & 1) << 255).to_bytes(32, "little")
    hashed = hashlib.sha512(point + bytes.fromhex(PUBLIC) + b"message").digest()
    told = sign * (12345 + int.from_bytes(hashed, "little") * int.from_bytes(secret, "little")) % q
    assert is_signed(PUBLIC, (point + told.to_bytes(32, "little")).hex(), b"message") == signed


def test_its_rules_are_the_documented_ones() -> None:
    """A reader of the page alone could have written it: what it hashes is named there."""
    page = Path(__file__).resolve().parents[3] / "docs" / "reference" / "run-directory.md"
    text = page.read_text(encoding="utf-8")
    for words in ("pate_fed/v1 ledger row", "pate_fed/v1 outputs", "pate_fed/v1 ledger signature"):
        assert words in text
    assert all(f"`{name}`" in text for name in verify_independent.COLUMNS), json.dumps(text)[:0]
