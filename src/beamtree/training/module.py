"""A model in training, as Lightning's Trainer drives it: the steps, the optimiser, and what an epoch adds up to."""

from dataclasses import replace
from typing import Any, NamedTuple

import lightning.pytorch as L
import torch
from jaxtyping import Float
from torch import Tensor, nn

from beamtree.data.batching import Buckets
from beamtree.optim import Ranger
from beamtree.recipes.settings import OptimizerSettings
from beamtree.tasks import Model
from beamtree.training.loading import Loader, Materials, Share


class Means(NamedTuple):
    """Over samples."""

    loss: float
    accuracy: float
    samples: int


class Tally:
    """Losses and hits of the samples so far. They stay on the device: reading them makes the host wait for it."""

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.loss = torch.zeros((), dtype=torch.float64, device=device)
        self.hits = torch.zeros((), dtype=torch.int64, device=device)
        self.samples = 0

    def add(self, loss: Float[Tensor, ""], hit: Tensor) -> None:
        """The mean loss of some samples, and which of them were hits."""
        self.loss.add_(loss.detach(), alpha=len(hit))
        self.hits.add_(hit.sum())
        self.samples += len(hit)

    def sums(self) -> Float[Tensor, "3"]:
        return torch.stack((self.loss, self.hits.double(), self.loss.new_tensor(self.samples)))

    def load(self, sums: Float[Tensor, "3"]) -> None:
        self.loss.copy_(sums[0])
        self.hits.copy_(sums[1])
        self.samples = int(sums[2])


def means(sums: Float[Tensor, "3"]) -> Means:
    loss, hits, samples = sums.tolist()
    return Means(loss / max(samples, 1), hits / max(samples, 1), int(samples))


class Training(L.LightningModule):
    """A model with the data and the settings of its run."""

    def __init__(self, model: Model, materials: Materials) -> None:
        super().__init__()
        self.model, self.materials, self.settings = model, materials, materials.config.settings
        self.tally = Tally()
        # Several devices must look for parameters that a batch does not use. Where there is none in the first batch,
        # torch warns that they look in vain; so here is one that no batch uses.
        self.unused = nn.Parameter(torch.zeros(()))

    @property
    def accumulate(self) -> int:
        """Micro-batches of a step."""
        training = self.settings.training
        return training.batch_size // training.micro_batch

    def train_dataloader(self) -> Loader:
        training = self.settings.training
        buckets = Buckets(
            self.materials.train.lengths,
            max_samples=training.micro_batch,
            bucket_factor=training.bucket_factor,
            seed=self.settings.seed,
        )
        pin = self.trainer.strategy.root_device.type == "cuda"
        return Loader(
            self.materials.train, buckets, self.accumulate, self.trainer.global_rank, self.trainer.world_size, pin
        )

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        return replace(batch, batch=batch.batch.to(device, non_blocking=True))

    def training_step(self, share: Share, index: int) -> Tensor:
        batch = share.batch
        assert batch.labels is not None
        logits = self.model.read(batch).logits
        loss = self.model.loss(logits, batch.labels)
        if share.count:
            self.tally.add(loss, self.model.predictions(logits) == batch.labels)
        return loss * share.weight

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Of all that is learned; the weights decay alike, biases and norms too, as the paper has it.

        The learning rate is changed by `Course`: Lightning would do it only after the epoch's checkpoint is written.
        """
        return make_optimizer([p for p in self.model.parameters() if p.requires_grad], self.settings.optimizer)


def make_optimizer(parameters: list[Tensor], settings: OptimizerSettings) -> torch.optim.Optimizer:
    make = {"ranger": Ranger, "adamw": torch.optim.AdamW}[settings.name]
    return make(parameters, lr=settings.lr, weight_decay=settings.weight_decay)
