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
from subnet_utils.papers.break_it_down.architectures import Bert, ResNet
from subnet_utils.papers.break_it_down.pretraining.views import simclr
from subnet_utils.papers.break_it_down.section import MaskedLanguageModel, SimCLR
from subnet_utils.papers.break_it_down.sets import Images
from subnet_utils.papers.break_it_down.tasks import tokenization


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
        settings, simple = self.settings, self.settings.method != "simclr"
        sizes = {"vocabulary": tokenization.tokenizer().size} if simple else {"resolution": self.resolution}
        model = build(self.architecture.model_dump(exclude_none=True), seed=settings.seed, **sizes).to(lab.device)
        options = {"recipe": settings.recipe(settings.seed), "batch_size": settings.batch_size}
        options |= {
            "precision": lab.autocast,
            "checkpoint": folder / CHECKPOINT,
            "label": f"{self.model} {settings.method.replace('_', ' ')}",
        }
        history = self._from_sentences(model, **options) if simple else self._from_images(lab, model, **options)
        best = history.loc[history["validation_loss"].idxmin()]
        save_table(folder / "history.parquet", history)
        save_tensors(folder / "weights.safetensors", model.state_dict())
        result = {name: float(best[name]) for name in ("validation_accuracy", "validation_loss")}
        return result | {"best_epoch": int(best["epoch"]), "epochs": len(history), "network": fingerprint(model)}

    def _from_images(self, lab: Lab, model: StagedModel, **options: Any) -> pd.DataFrame:
        """SimCLR on the base sets of the tasks."""
        train, validation = ([one.load(lab) for one in of_split] for of_split in self.images)
        return simclr(model, train, validation, temperature=self.settings.temperature, **options)

    def _from_sentences(self, model: StagedModel, **options: Any) -> pd.DataFrame:
        """The masked language model on sentences of the tasks, validated on a tenth as many others."""
        from subnet_utils.papers.break_it_down.pretraining.hidden_words import grammatical, masked_language_model

        about = {"seed": self.settings.seed, "tokenizer": tokenization.tokenizer()}
        sentences = grammatical(self.settings.tasks, "train", limit=self.settings.sentences, **about)
        held_out = grammatical(self.settings.tasks, "validation", limit=max(1, len(sentences) // 10), **about)
        return masked_language_model(model, sentences, held_out, **options)


def start_from(model: StagedModel, artefact: Artefact, settings: SimCLR | MaskedLanguageModel) -> None:
    """Put pretrained weights into a fresh network, in place.

    After SimCLR the head stays as it was drawn: its MLP is discarded (appendix G). Raises RuntimeError if the weights
    are of another architecture.
    """
    weights = artefact.tensors("weights")
    if settings.method == "simclr":
        weights |= {name: weight for name, weight in model.state_dict().items() if name.startswith("stages.head.")}
    model.load_state_dict(weights)
