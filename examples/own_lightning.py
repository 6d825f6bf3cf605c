# ruff: noqa: D101, D102
"""Teachers that Lightning trains: any loop is an object with fit and predict."""

import lightning
import torch

from pate_fed import simulate


class Network(lightning.LightningModule):
    def training_step(self, batch, index):
        return torch.nn.functional.cross_entropy(self.layer(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 0.01)


class Trained:
    def fit(self, x, y):
        self.network, rows = Network(), torch.tensor(x, dtype=torch.float32)
        self.network.layer = torch.nn.Linear(x.shape[1], 10)
        quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary"), False)
        trainer = lightning.Trainer(max_epochs=3, accelerator="cpu", enable_checkpointing=False, **quiet)
        trainer.fit(self.network, torch.utils.data.DataLoader([*zip(rows, torch.tensor(y), strict=True)], 16))

    def predict(self, x):
        return self.network.layer(torch.tensor(x, dtype=torch.float32)).argmax(dim=1).numpy()


print(simulate({"parties": {"num_clients": 20}}, teacher=Trained))
