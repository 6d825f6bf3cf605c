"""A run for MLflow, read by its own library."""

from __future__ import annotations

from pathlib import Path

import pytest

from pate_fed.cli.main import main


@pytest.mark.parametrize("analyst", [False, True])
def test_mlflow_reads_what_was_written(made_up: Path, tmp_path: Path, analyst: bool) -> None:
    pytest.importorskip("mlflow", reason="MLflow is large, and no dependency of ours: pip install mlflow")
    from mlflow.tracking import MlflowClient

    for _ in range(2):  # two runs of one study are in one experiment
        assert main(["export", str(made_up), "--mlflow", str(tmp_path), *["--analyst"][: int(analyst)]]) == 0
    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("made-up")
    run, _ = client.search_runs([experiment.experiment_id])
    assert run.data.metrics["privacy.student.data_independent"] == 3.5
    assert run.data.tags["noise"] == "private" and run.data.tags["epsilon"] == "3.5 at δ = 1e-5"
    assert len(client.get_metric_history(run.info.run_id, "student/test_accuracy")) == 8
    assert run.info.status == "FINISHED" and run.info.run_name == "made-up"
    assert any("do_not_publish" in name for name in run.data.metrics) is analyst
