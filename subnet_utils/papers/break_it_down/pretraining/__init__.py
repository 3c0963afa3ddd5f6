"""Self-supervised pretraining: weights that a base model may start from instead of random ones.

*Break It Down* (section 8, appendix G) pretrains a ResNet50 on its own images with SimCLR (`views`); its BERT-small
starts from published weights (Turc et al. 2019). Where none are to be had, `hidden_words` pretrains a BERT by BERT's
own objective on sentences of the templates. `pretrain` makes either an artefact, `start_from` puts it into a fresh
network.
"""

from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from subnet_utils.core.devices import autocast, resolve_device
from subnet_utils.core.sections import Compute, MaskedLanguageModel, SimCLR
from subnet_utils.core.store import Artefact, Store, save_json, save_table, save_tensors
from subnet_utils.core.study import Experiment
from subnet_utils.models import StagedModel, build, fingerprint
from subnet_utils.papers.break_it_down import stimuli
from subnet_utils.papers.break_it_down.pretraining.views import simclr
from subnet_utils.papers.break_it_down.tasks import tokenization

CHECKPOINT = "checkpoint.safetensors"


def spec(experiment: Experiment, compute: Compute) -> dict[str, Any]:
    """What the pretrained weights of an experiment depend on."""
    settings, data = experiment.pretraining, experiment.data
    if settings.method == "simclr":
        sizes = data.base.model_dump(include={"train", "validation"})
        on = {"sizes": sizes, "stimuli": {task: stimuli.sampling(task, data) for task in settings.tasks}}
    else:
        on = {"stimuli": {"generator": stimuli.VERSIONS["language"]}}  # of all sentences, so no set's sampling matters
    return {
        "architecture": experiment.architecture.model_dump(),
        "pretraining": settings.model_dump(),
        "precision": compute.precision,
        **on,
    }


def pretrain(store: Store, experiment: Experiment, compute: Compute) -> Artefact:
    """The pretrained weights of an experiment, with the history, and the accuracy in `result`.

    That is the validation top-5 accuracy of SimCLR, or the share of hidden words that are found. It has no part in what
    follows and only tells that something was learned.
    """
    build_it = partial(_build_pretraining, store, experiment, compute)
    return store.make("pretraining", spec(experiment, compute), build_it)


def start_from(model: StagedModel, artefact: Artefact, settings: SimCLR | MaskedLanguageModel) -> None:
    """Put pretrained weights into a fresh network, in place.

    After SimCLR the head stays as it was drawn: its MLP is discarded (appendix G). Raises RuntimeError if the weights
    are of another architecture.
    """
    weights = artefact.tensors("weights")
    if settings.method == "simclr":
        weights |= {name: weight for name, weight in model.state_dict().items() if name.startswith("stages.head.")}
    model.load_state_dict(weights)


def _build_pretraining(store: Store, experiment: Experiment, compute: Compute, folder: Path) -> None:
    settings, sizes = experiment.pretraining, {"resolution": experiment.data.resolution}
    if settings.method == "masked_language_model":
        sizes = {"vocabulary": tokenization.tokenizer().size}
    model = build(experiment.architecture.model_dump(), seed=settings.seed, **sizes).to(resolve_device(compute))
    learn = {"simclr": _from_images, "masked_language_model": _from_sentences}[settings.method]
    options = settings.model_dump(exclude={"method", "tasks", "sentences"})
    history = learn(
        store,
        experiment,
        model,
        **options,
        precision=partial(autocast, compute, resolve_device(compute)),
        checkpoint=folder / CHECKPOINT,
        label=f"{experiment.model} {settings.method.replace('_', ' ')}",
    )
    best = history.loc[history["validation_loss"].idxmin()]
    save_table(folder / "history.parquet", history)
    save_tensors(folder / "weights.safetensors", model.state_dict())
    result = {name: float(best[name]) for name in ("validation_accuracy", "validation_loss")}
    result |= {"best_epoch": int(best["epoch"]), "epochs": len(history), "network": fingerprint(model)}
    save_json(folder / "result.json", result)


def _from_images(store: Store, experiment: Experiment, model: StagedModel, **options: Any) -> pd.DataFrame:
    """SimCLR on the base sets of the tasks."""
    train, validation = (
        [stimuli.load(store, experiment, task, "base", split) for task in experiment.pretraining.tasks]
        for split in ("train", "validation")
    )
    return simclr(model, train, validation, **options)


def _from_sentences(store: Store, experiment: Experiment, model: StagedModel, **options: Any) -> pd.DataFrame:
    """The masked language model on sentences of the tasks, validated on a tenth as many others."""
    from subnet_utils.papers.break_it_down.pretraining.hidden_words import (  # seconds to import
        grammatical,
        masked_language_model,
    )

    settings = experiment.pretraining
    draw = partial(grammatical, settings.tasks, seed=settings.seed, tokenizer=tokenization.tokenizer())
    sentences = draw("train", limit=settings.sentences)
    return masked_language_model(model, sentences, draw("validation", limit=max(1, len(sentences) // 10)), **options)
