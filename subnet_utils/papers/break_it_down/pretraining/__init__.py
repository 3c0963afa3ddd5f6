"""Self-supervised pretraining: weights that a base model may start from instead of random ones.

*Break It Down* (section 8, appendix G) pretrains a ResNet50 on its own images with SimCLR (`views`); its BERT-small
starts from published weights (Turc et al. 2019). Where none are to be had, `hidden_words` pretrains a BERT by BERT's
own objective on sentences of the templates.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from subnet_utils.core.lab import Lab
from subnet_utils.core.step import CHECKPOINT, Step
from subnet_utils.core.store import Artefact, save_table, save_tensors
from subnet_utils.models import StagedModel, build, fingerprint
from subnet_utils.models.architectures import Bert, ResNet
from subnet_utils.papers.break_it_down.pretraining.views import simclr
from subnet_utils.papers.break_it_down.section import MaskedLanguageModel, SimCLR
from subnet_utils.papers.break_it_down.sets import Images
from subnet_utils.tasks import tokenization


@dataclass(frozen=True)
class Pretraining(Step):
    """Pretrained weights, with the history, and the accuracy in the result.

    That is the validation top-5 accuracy of SimCLR, or the share of hidden words that are found. It has no part in what
    follows and only tells that something was learned. images: of SimCLR the training and validation sets of every task.
    """

    architecture: Bert | ResNet
    settings: SimCLR | MaskedLanguageModel
    images: tuple[tuple[Images, ...], ...] = ()
    resolution: int | None = None
    precision: str = "auto"
    model: str = field(default="", compare=False)

    def build(self, lab: Lab, folder: Path) -> dict[str, Any]:
        """Train, and keep the weights with the lowest validation loss."""
        settings = self.settings
        images = settings.method == "simclr"
        sizes = {"resolution": self.resolution} if images else {"vocabulary": tokenization.tokenizer().size}
        model = build(self.architecture.model_dump(exclude_none=True), seed=settings.seed, **sizes).to(lab.device)
        label = f"{self.model} {settings.method.replace('_', ' ')}"
        about = {"precision": lab.autocast, "checkpoint": folder / CHECKPOINT, "label": label}
        if images:
            train, validation = ([one.load(lab) for one in of_split] for of_split in self.images)
            history = simclr(model, train, validation, settings, **about)
        else:
            history = self._from_sentences(model, **about)
        best = history.loc[history["validation_loss"].idxmin()]
        save_table(folder / "history.parquet", history)
        save_tensors(folder / "weights.safetensors", model.state_dict())
        result = {name: float(best[name]) for name in ("validation_accuracy", "validation_loss")}
        return result | {"best_epoch": int(best["epoch"]), "epochs": len(history), "network": fingerprint(model)}

    def _from_sentences(self, model: StagedModel, **about: Any) -> pd.DataFrame:
        """The masked language model on sentences of the tasks, validated on a tenth as many others."""
        # not above: it imports transformers, which takes seconds
        from subnet_utils.papers.break_it_down.pretraining.hidden_words import grammatical, masked_language_model

        settings = self.settings
        train = grammatical(settings.tasks, "train", limit=settings.sentences, seed=settings.seed)
        few = max(1, len(train) // 10)
        held_out = grammatical(settings.tasks, "validation", limit=few, seed=settings.seed)
        return masked_language_model(model, train, held_out, settings, **about)


def start_from(model: StagedModel, artefact: Artefact, settings: SimCLR | MaskedLanguageModel) -> None:
    """Put pretrained weights into a fresh network, in place.

    After SimCLR the head stays as it was drawn: its MLP is discarded (appendix G). Raises RuntimeError if the weights
    are of another architecture.
    """
    weights = artefact.tensors("weights")
    if settings.method == "simclr":
        weights |= {name: weight for name, weight in model.state_dict().items() if name.startswith("stages.head.")}
    model.load_state_dict(weights)
