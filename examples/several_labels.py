"""Records with two labels each, which may both be true: four hospitals' CSV files, and class sums of them."""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from pate_fed import simulate

with TemporaryDirectory() as folder:
    rng, files = np.random.default_rng(0), [str(Path(folder) / f"{name}.csv") for name in "abcdp"]
    for file in files:
        age, pressure = rng.normal(60, 10, 400), rng.normal(130, 20, 400)
        rows = np.c_[age, pressure, age > 60, pressure > 130]
        np.savetxt(file, rows, "%.0f", ",", header="age,pressure,stroke,failure", comments="")
    yes_no = {"stroke": ["0", "1"], "failure": ["0", "1"]}  # each with the value for no and the one for yes
    table = {"labels": yes_no, "columns": {"age": "number", "pressure": "number"}}
    study = {
        "parties": {"num_clients": 4},
        "data": {"dataset": "table", "pool": files[-1], "private": files[:-1], "table": table},
        "secrecy": {"secure_sum": True},
    }
    run = simulate(study)
    print(run, run.metrics["by_label"])
