"""Hospitals with records of their own, several of a patient, and the patient as the unit of protection."""

import numpy as np

from pate_fed import simulate

rng = np.random.default_rng(0)
patients = rng.integers(0, 1500, 6000)  # equal for records of one patient, in whichever hospital
hospital = patients % 6  # here each patient is at one
y = (patients // 6) % 2
x = rng.normal(size=(6000, 12)) + y[:, None]
data = {
    "private_images": x[:5000],
    "private_labels": y[:5000],
    "owners": hospital[:5000],
    "patients": patients[:5000],
    "public_images": x[5000:],
    "public_labels": y[5000:],
    "public_patients": patients[5000:],
}
study = {
    "parties": {"num_clients": 6},
    "aggregation": {"aggregator": "class-sums"},
    "secrecy": {"secure_sum": True, "noise_at": "hospitals"},
    "privacy": {"unit": "patient"},
}
print(simulate(study, dataset=data))
