"""Methods of noisy gradients: with little noise they learn, and their rows cost what they claim."""

from __future__ import annotations

import importlib.util
from dataclasses import replace

import numpy as np
import pytest
from bench_task import LABELS, ROWS, TASK

from pate_fed.bench.gradients import network, run_dp_sgd, run_fedavg_hospitals, run_fedavg_records
from pate_fed.bench.protocol import HOSPITAL, R2, Method, check_ledger, check_predictions, measured
from pate_fed.errors import InputError

HAS_OPACUS = importlib.util.find_spec("opacus") is not None
NUMBER = replace(TASK, num_classes=0, labels=ROWS[:600, 0], target_range=(-3.0, 6.0), measure=R2)


@pytest.mark.skipif(HAS_OPACUS, reason="Opacus is here")
def test_who_lacks_opacus_is_told_what_brings_it() -> None:
    with pytest.raises(InputError, match=r"pate-fed\[bench\]"):
        run_dp_sgd(TASK, 1.0, 0)


@pytest.mark.skipif(not HAS_OPACUS, reason="needs the extra bench")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("run", [run_dp_sgd, run_fedavg_records])
def test_private_gradients_learn_classes_and_numbers(run: Method) -> None:
    predictions, ledger = run(TASK, 8.0, 0)
    found = check_ledger(TASK, ledger, 8.0, what="m")
    assert found is not None and 7.7 < found <= 8.0
    assert measured(TASK, check_predictions(TASK, predictions, what="m"), LABELS[700:]) > 0.9
    told = check_predictions(NUMBER, run(NUMBER, 8.0, 0)[0], what="m")
    assert measured(NUMBER, told, ROWS[700:, 0]) > 0.4


def test_updates_of_whole_hospitals_are_clipped_and_noised() -> None:
    few = replace(TASK, owners=np.arange(600) % 100)
    predictions, ledger = run_fedavg_hospitals(few, 8.0, 0)
    assert ledger.unit == HOSPITAL and ledger.rows[0].count == 10
    found = check_ledger(few, ledger, 8.0, what="m")
    assert found is not None and 7.7 < found <= 8
    assert measured(few, check_predictions(few, predictions, what="m"), LABELS[700:]) > 0.9


def test_networks_of_other_images_are_refused() -> None:
    images = replace(TASK, inputs=np.zeros((600, 9, 9, 1), np.uint8))
    with pytest.raises(InputError, match=r"images \(9, 9, 1\): \(28, 28, 1\) is meant"):
        network(images, 1)
