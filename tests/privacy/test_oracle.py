"""Parity with every case of the shared reference file: the PATE authors' code and high precision."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from published import (
    gnmax_local_sensitivity,
    gnss_rdp_printed,
    joint_rdp,
    noise_cluster_epsilon,
    nrs_parameters,
    pate_plus_plus_epsilon,
    randomized_response_epsilon,
    threshold_rdp,
)
from threshold_smooth import threshold_local_sensitivity

from pate_fed.errors import InputError
from pate_fed.privacy.bounds.conversion import confident_mu, gaussian_dp_epsilon, to_epsilon
from pate_fed.privacy.bounds.gnmax import (
    exact_bit_rdp,
    gnmax_log_q,
    gnmax_rdp,
    gnmax_rdp_from_log_q,
    lnmax_data_independent,
    lnmax_log_moments,
    lnmax_log_q,
    lnmax_rdp_from_log_q,
    log_answered,
    moments_epsilon,
)
from pate_fed.privacy.bounds.smooth import gnmax_sensitivity, smooth_sensitivity
from pate_fed.privacy.mechanisms.data_dependent import SanitiseSettings, check_sanitisable

Case = dict[str, Any]
Cases = Callable[..., list[Case]]


def close(actual: Any, expected: Any, rtol: float = 1e-8) -> None:
    np.testing.assert_allclose(np.asarray(actual, float), np.asarray(expected, float), rtol=rtol, atol=1e-13)


@pytest.fixture(scope="module")
def reference(shared: Path) -> dict[str, Any]:
    return json.loads((shared / "oracle" / "reference.json").read_text())


@pytest.fixture
def cases(reference: dict[str, Any]) -> Cases:
    def pick(kind: str) -> list[Case]:
        found = [case for case in reference["cases"] if case["kind"] == kind]
        assert len(found) == reference["meta"]["kinds"][kind], kind
        return found

    return pick


def long_orders() -> np.ndarray:
    return np.concatenate((np.arange(2, 101, 0.5), np.logspace(np.log10(100), np.log10(500), 100)))


def short_orders() -> np.ndarray:
    return np.round(np.concatenate((np.arange(2, 51), np.logspace(np.log10(50), np.log10(1000), 20))))


def votes_of(inputs: Case) -> np.ndarray:
    votes = inputs["votes"]
    if "dense" in votes:
        return np.array(votes["dense"])
    out = np.zeros(votes["shape"], dtype=int)
    for row, entries in enumerate(votes["sparse"]):
        for column, count in entries:
            out[row, column] = count
    return out


def author_votes(shared: Path, inputs: Case) -> np.ndarray:
    folder = shared / "data" / "pate_votes"
    votes = np.load(folder / inputs["file"])
    rows = inputs.get("indices", {"first": inputs.get("queries")})
    return votes[np.load(folder / rows["file"])] if "file" in rows else votes[: rows["first"]]


def test_every_kind_is_tested_here(reference: dict[str, Any]) -> None:
    text = Path(__file__).read_text()
    # Nothing in the room bounds an argmax by its outcome alone, so those cases are nobody's.
    kinds = set(reference["meta"]["kinds"]) - {"argmax_outcome_only"}
    assert all(f'"{kind}"' in text for kind in kinds)
    assert len(reference["cases"]) == reference["meta"]["number_of_cases"] == 124


def test_lnmax2017(cases: Cases) -> None:
    for case in cases("lnmax2017"):
        i, o = case["inputs"], case["outputs"]
        q = np.exp(lnmax_log_q([i["counts"]], i["laplace_scale"]))
        close(q, min(o["q_union_bound"], 1 - 1 / len(i["counts"])))
        close(lnmax_log_moments([i["counts"]], i["laplace_scale"], i["moments"])[0], o["log_mgf"])
        moments = np.array(i["moments"])
        independent = moments * lnmax_data_independent(i["per_query_pure_eps"], moments + 1)
        # The reference prints Theorem 2 alone; pure DP caps it.
        close(independent, np.minimum(o["log_mgf_data_independent"], moments * i["per_query_pure_eps"]))


def test_lnmax2018(cases: Cases) -> None:
    for case in cases("lnmax2018"):
        i, o = case["inputs"], case["outputs"]
        log_q = lnmax_log_q([i["counts"]], i["laplace_scale"])
        close(log_q, [o["logq"]])
        close(lnmax_rdp_from_log_q(log_q, i["pure_eps"], i["orders"])[0], o["rdp"])


@pytest.mark.parametrize("kind", ["gnmax", "gnmax_sigma_extremes"])
def test_gnmax(cases: Cases, kind: str) -> None:
    for case in cases(kind):
        i, o = case["inputs"], case["outputs"]
        close(gnmax_log_q([i["counts"]], i["sigma"]), [float(o["logq"])])
        close(gnmax_log_q([i["counts"]], i["sigma"]), [float(o["logq_mpmath"])], 1e-6)
        curve = gnmax_rdp([i["counts"]], i["sigma"], i["orders"])[0]
        close(curve, o["rdp_data_dependent"])
        close(curve, o["rdp_data_dependent_mpmath"], 1e-6)
        close(np.array(i["orders"]) / i["sigma"] ** 2, o["rdp_data_independent"])
        if "exact_rdp_quadrature" in o and i["sigma"] >= 20:
            assert (curve >= np.array(o["exact_rdp_quadrature"]) * (1 - 1e-6) - 1e-12).all(), case["id"]


def test_threshold(cases: Cases) -> None:
    for case in cases("threshold"):
        i, o = case["inputs"], case["outputs"]
        orders = i["orders"]
        for top, expected in o["per_max"].items():
            close(log_answered(float(top), i["T"], i["sigma1"])[0], expected["logpr_answered"])
            close(threshold_rdp(float(top), i["T"], i["sigma1"], orders), expected["rdp"])
            close(exact_bit_rdp(float(top), i["T"], i["sigma1"], orders), expected["exact_rdp"])
        grid = i["T"] + i["sigma1"] * np.arange(-12, 12.0025, 0.005)
        close(exact_bit_rdp(grid, i["T"], i["sigma1"], orders).max(axis=0), o["exact_worst_case_rdp"])


def check_ledger(orders: np.ndarray, step1: Any, step2: Any, delta: float, expected: Case) -> None:
    for conversion, epsilon, order in (
        ("classic", "eps", "order"),
        ("improved", "eps_improved_conversion", "order_improved"),
    ):
        got = to_epsilon(orders, step1 + step2, delta, conversion=conversion)
        close(got.epsilon, expected[epsilon])
        assert math.isclose(got.order, expected[order], rel_tol=1e-12)
        if conversion == "classic":
            at = int(np.argmin(np.abs(orders - got.order)))
            close([step1[at], step2[at]], [expected["rdp_step1"], expected["rdp_step2"]])
            close(-math.log(delta) / (got.order - 1), expected["delta_cost"])


def test_confident_synthetic(cases: Cases) -> None:
    for case in cases("confident_synthetic"):
        i, o = case["inputs"], case["outputs"]
        votes, plain = votes_of(i), i["T"] is None
        top = votes.max(axis=1)
        chance = np.ones(len(votes)) if plain else np.exp(log_answered(top, i["T"], i["sigma1"])[0])
        for orders, name in ((long_orders(), "expected"), (short_orders(), "expected_short_orders")):
            check = 0.0 * orders
            if not plain:
                check = threshold_rdp(top, i["T"], i["sigma1"], orders).sum(axis=0)
            curves = gnmax_rdp(votes, i["sigma2"], orders)
            check_ledger(orders, check, chance @ curves, i["delta"], o[name])
            close(chance.sum(), o[name]["answered"])
            if name == "expected":
                for step, curve in (("rdp_step1_at", check), ("rdp_step2_at", chance @ curves)):
                    for order, value in o[step].items():
                        close(curve[orders == float(order)], [value])
                bits = o["realised"].get("answered_mask_bits")
                mask = np.ones(len(votes)) if bits is None else np.array([float(bit) for bit in bits])
                check_ledger(orders, check, mask @ curves, i["delta"], o["realised"])
                flat = 0.0 * orders if plain else len(votes) * orders / (2 * i["sigma1"] ** 2)
                argmax = chance.sum() * orders / i["sigma2"] ** 2
                check_ledger(orders, flat, argmax, i["delta"], o["data_independent"])


def test_interactive_synthetic(cases: Cases) -> None:
    for case in cases("interactive_synthetic"):
        i, o = case["inputs"], case["outputs"]
        votes, orders = votes_of(i), long_orders()
        difference = (votes - np.array(i["baseline"])).max(axis=1)
        close(difference[:5], o["max_diff_head"])
        top = np.rint(difference)
        close(log_answered(top, i["T"], i["sigma1"])[0][:5], o["logpr_head"])
        chance = np.exp(log_answered(top, i["T"], i["sigma1"])[0])
        check = threshold_rdp(top, i["T"], i["sigma1"], orders).sum(axis=0)
        check_ledger(orders, check, chance @ gnmax_rdp(votes, i["sigma2"], orders), i["delta"], o["expected"])


def test_smooth_gnmax(cases: Cases) -> None:
    for case in cases("smooth_gnmax"):
        i, o = case["inputs"], case["outputs"]
        if not o["ok"]:  # q1 underflows in the reference code; here C6 refuses, and the curve stays finite
            with pytest.raises(InputError, match="C6"):
                settings = SanitiseSettings.at_order(i["order"])
                check_sanitisable(settings, sigma2=max(2.0, i["sigma"]), num_classes=len(i["counts"]))
            assert not all(gnmax_sensitivity(i["sigma"], len(i["counts"]), i["order"]).conditions())
            curve = gnmax_local_sensitivity(
                i["counts"], i["sigma"], i["order"], num_teachers=i["num_teachers"]
            )
            assert np.isfinite(curve).all()
            continue
        pieces = gnmax_sensitivity(i["sigma"], len(i["counts"]), i["order"])
        close([pieces.log_q0, pieces.log_q1], [o["logq0"], o["logq1"]])
        assert list(pieces.conditions()) == o["conditions_C5_C6"]
        curve = gnmax_local_sensitivity(i["counts"], i["sigma"], i["order"], num_teachers=i["num_teachers"])
        for distance, value in o["ls_at"].items():
            close(curve[int(distance)], value, 1e-7)
        close(curve.sum(), o["ls_sum"], 1e-7)
        check_smooth(curve, i["order"], o["smooth"])


def check_smooth(curve: np.ndarray, order: float, expected: Case) -> None:
    for beta, value in expected.items():
        close(smooth_sensitivity(curve, float(beta.split("/")[0]) / order), value, 1e-7)


def test_smooth_threshold(cases: Cases) -> None:
    for case in cases("smooth_threshold"):
        i, o = case["inputs"], case["outputs"]
        table = threshold_rdp(np.arange(i["num_teachers"] + 1), i["T"], i["sigma1"], [i["order"]])[:, 0]
        for top in i["max_votes"]:
            expected = o[str(top)]
            curve = threshold_local_sensitivity(table, [int(top)])
            close([curve.sum(), curve.max()], [expected["ls_sum"], expected["ls_max"]], 1e-7)
            close(curve[0], expected["ls0"], 1e-7)
            assert curve.argmax() == expected["argmax"]
            check_smooth(curve, i["order"], expected["smooth"])


def test_gnss_and_its_parameters(cases: Cases) -> None:
    for case in cases("gnss_rdp"):
        i, o = case["inputs"], case["outputs"]
        if not o["ok"]:  # α >= 1/(2β): there is no bound
            with pytest.raises(InputError, match="order"):
                gnss_rdp_printed(i["order"], beta=i["beta"], sigma_ss=i["sigma_ss"])
        else:
            close(gnss_rdp_printed(i["order"], beta=i["beta"], sigma_ss=i["sigma_ss"]), o["rdp"])
    for case in cases("ss_release_params"):
        alpha, beta = nrs_parameters(case["inputs"]["eps"], case["inputs"]["delta"])
        close([alpha, beta], [case["outputs"]["alpha"], case["outputs"]["beta"]])


def test_check_conditions(cases: Cases) -> None:
    for case in cases("check_conditions"):
        i, o = case["inputs"], case["outputs"]
        pieces = gnmax_sensitivity(float(i["sigma"]), i["num_classes"], i["order"])
        assert pieces.conditions() == (o["C5"], o["C6"])


def best_release(local: np.ndarray, order: float) -> Case:
    """What the scripts do, and a release must not: β and σ_ss tuned on the votes."""
    best: Case = {"cost": math.inf}
    for beta in np.arange(0.3 / order, 0.495 / order, 0.01 / order):
        smooth = smooth_sensitivity(local, beta)
        sigma = (order * math.exp(2 * beta) / smooth) ** (1 / 3)
        rdp = gnss_rdp_printed(order, beta=beta, sigma_ss=sigma)
        cost = rdp + 2 * smooth * sigma
        if cost < best["cost"]:
            best = {"cost": cost, "beta": beta, "ss": smooth, "sigma_ss": sigma, "rdp_gnss": rdp}
            best["sd"] = smooth * sigma
    return best


def summed_local(votes: np.ndarray, i: Case, order: float, num_teachers: int) -> np.ndarray:
    if i["T"] is None:
        return gnmax_local_sensitivity(votes, i["sigma2"], order, num_teachers=num_teachers)
    top = votes.max(axis=1).astype(int)
    chance = np.exp(log_answered(top, i["T"], i["sigma1"])[0])
    table = threshold_rdp(np.arange(num_teachers + 1), i["T"], i["sigma1"], [order])[:, 0]
    argmax = gnmax_local_sensitivity(votes, i["sigma2"], order, num_teachers=num_teachers, weights=chance)
    return argmax + threshold_local_sensitivity(table, top)


def check_release(local: np.ndarray, order: float, expected: Case) -> float:
    best = best_release(local, order)
    for name, value in expected.items():
        close(best[name], value, 1e-7)
    return best["rdp_gnss"]


def test_sanitised_synthetic(cases: Cases) -> None:
    for case in cases("sanitised_synthetic"):
        i, o = case["inputs"], case["outputs"]
        votes, order = votes_of(i), i["order"]
        local = summed_local(votes, i, order, i["num_teachers"])
        close([local[0], local.max()], [o["ls0"], o["ls_max"]], 1e-7)
        top, before = votes.max(axis=1), 0.0
        chance = np.ones(len(votes))
        if i["T"] is not None:
            chance = np.exp(log_answered(top, i["T"], i["sigma1"])[0])
            before = threshold_rdp(top, i["T"], i["sigma1"], [order]).sum()
        before += chance @ gnmax_rdp(votes, i["sigma2"], [order])[:, 0]
        before -= math.log(i["delta"]) / (order - 1)
        close(before, o["eps_before"])
        close(before + check_release(local, order, o["release"]), o["eps_sanitised_mean"], 1e-7)


def test_conversion(cases: Cases) -> None:
    for case in cases("conversion"):
        i, o = case["inputs"], case["outputs"]
        curve = i["n"] * long_orders() / i["sigma"] ** 2
        for conversion in ("classic", "improved"):
            got = to_epsilon(long_orders(), curve, i["delta"], conversion=conversion)
            close(got.epsilon, o[f"eps_{conversion}"])
            assert math.isclose(got.order, o[f"order_{conversion}"], rel_tol=1e-12)
            assert got.epsilon >= o[f"eps_{conversion}"] * (1 - 1e-15)


def test_malformed(cases: Cases) -> None:
    functions: dict[str, Callable[..., Any]] = {
        "gnmax_rdp_from_log_q": lambda q, sigma, orders: gnmax_rdp_from_log_q(float(q), sigma, orders),
        "lnmax_rdp_from_log_q": lnmax_rdp_from_log_q,
        "rdp_to_epsilon": lambda orders, rdp, delta, improved: to_epsilon(orders, rdp, delta),
    }
    for case in cases("malformed"):
        call, o = functions[case["inputs"]["function"]], case["outputs"]
        if o["ok"]:
            close(call(*case["inputs"]["args"]), o["value"])
        else:
            with pytest.raises(InputError):
                call(*case["inputs"]["args"])


def test_author_lnmax2017(cases: Cases, shared: Path) -> None:
    for case in cases("author_lnmax2017"):
        i, o = case["inputs"], case["outputs"]
        total = lnmax_log_moments(author_votes(shared, i), 1 / i["noise_eps"], i["moments"]).sum(axis=0)
        close(total, o["log_mgf"])
        close((total - math.log(i["delta"])) / np.array(i["moments"]), o["eps_list"])
        got = moments_epsilon(total, i["delta"], i["moments"])
        close(got.epsilon, o["eps"])
        assert got.order == o["argmin_l"]
        assert got.at_edge == (got.order in (i["moments"][0], i["moments"][-1]))


def test_author_confident2018(cases: Cases, shared: Path) -> None:
    for case in cases("author_confident2018"):
        i, o = case["inputs"], case["outputs"]
        votes, orders = author_votes(shared, i), long_orders()
        top = votes.max(axis=1)
        chance = np.exp(log_answered(top, i["T"], i["sigma1"])[0])
        check = threshold_rdp(top, i["T"], i["sigma1"], orders).sum(axis=0)
        check_ledger(orders, check, chance @ gnmax_rdp(votes, i["sigma2"], orders), i["delta"], o["expected"])
        flat = len(votes) * orders / (2 * i["sigma1"] ** 2)
        argmax = chance.sum() * orders / i["sigma2"] ** 2
        check_ledger(orders, flat, argmax, i["delta"], o["data_independent"])
        cost = check_release(summed_local(votes, i, o["order"], 250), o["order"], o["release"])
        close(o["expected"]["eps"] + cost, o["eps_sanitised_mean"], 1e-7)


def test_author_joint(cases: Cases, shared: Path) -> None:
    for case in cases("author_joint"):
        i, o = case["inputs"], case["outputs"]
        curve = joint_rdp(
            author_votes(shared, i), i["orders"], threshold=i["T"], sigma1=i["sigma1"], sigma2=i["sigma2"]
        ).sum(axis=0)
        for conversion in ("classic", "improved"):
            got = to_epsilon(i["orders"], curve, i["delta"], conversion=conversion)
            close(got.epsilon, o[f"eps_{conversion}"])
            assert got.order == o[f"order_{conversion}"]


def test_joint_query(cases: Cases) -> None:
    for case in cases("joint_query"):
        i = case["inputs"]
        curve = joint_rdp(
            [i["counts"]], i["orders"], threshold=i["T"], sigma1=i["sigma1"], sigma2=i["sigma2"]
        )
        close(curve[0], case["outputs"]["rdp"])


def test_gaussian_epsilon(cases: Cases) -> None:
    for case in cases("gaussian_epsilon"):
        i, o = case["inputs"], case["outputs"]
        sigma1 = None if i["sigma1"] == "inf" else i["sigma1"]
        mu = confident_mu(i["queries"], i["answered"], sigma1=sigma1, sigma2=i["sigma2"])
        close([mu, gaussian_dp_epsilon(mu, i["delta"])], [o["mu"], o["eps"]])


def test_pate_plus_plus(cases: Cases) -> None:
    for case in cases("pate_plus_plus"):
        i, o = case["inputs"], case["outputs"]
        counts = i["num_queries"], i["num_labelled"]
        terms = {name: i[name] for name in ("sigma1", "sigma2", "delta")}
        close(pate_plus_plus_epsilon(*counts, **terms, order=i["order"]), (o["eps"], i["order"]))
        close(pate_plus_plus_epsilon(*counts, **terms), (o["best_eps"], o["best_order"]))


def test_label_dp(cases: Cases) -> None:
    for case in cases("randomized_response"):
        i = case["inputs"]
        close(randomized_response_epsilon(i["num_classes"], i["p"]), case["outputs"]["eps"])
    for case in cases("noise_cluster"):
        i = case["inputs"]
        close(noise_cluster_epsilon(i["sigma"], i["delta"]), case["outputs"]["eps"])
