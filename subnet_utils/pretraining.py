"""Self-supervised pretraining: weights that a base model may start from instead of random ones.

*Break It Down* (section 8, appendix G) pretrains a ResNet50 on its own images with SimCLR (Chen et al. 2020): two
augmented views of an image shall have similar embeddings, and views of different images dissimilar ones. Its BERT-small
starts from published weights (Turc et al. 2019). Where none are to be had, `masked_language_model` pretrains a BERT by
BERT's own objective (Devlin et al. 2019), on grammatical sentences of the templates: a stand-in, not a replication.
`pretrain` makes either an artefact, `start_from` puts it into a fresh network.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from torch.nn import functional

from subnet_utils import stimuli
from subnet_utils.models import StagedModel, build, fingerprint
from subnet_utils.models.frozen import CHUNK, full_precision
from subnet_utils.models.language import PADDING, Layer, trim_padding
from subnet_utils.settings import Compute, MaskedLanguageModel, SimCLR
from subnet_utils.store import Artefact, Store, save_json, save_table, save_tensors
from subnet_utils.study import Experiment
from subnet_utils.tasks import agreement
from subnet_utils.tasks.odd_one_out import OddOneOut
from subnet_utils.training import Recipe, autocast, fit, generator_for, resolve_device

CHECKPOINT = "checkpoint.safetensors"
Precision = Callable[[], AbstractContextManager]
"""Makes the context in which networks run forward while they are trained."""

LUMA = (0.299, 0.587, 0.114)
"""Shares of red, green and blue in the gray of a color."""
DEGREES, SHIFT, SHRINK, SHEAR, TURN, JITTER, GRAY = 30.0, 0.05, 0.1, 20.0, 90.0, 0.5, 0.2
"""Strength of the augmentation: affine angle, shift in image widths, most that is lost in scale, shear, rotation,
contrast and saturation, and the probability of gray. Appendix G names the kinds; the numbers are those of the authors'
code, in which jitter and affine map are applied to half of the images each and the jitter leaves brightness and hue."""

MASK_ID = agreement.SPECIAL_TOKENS.index("[UNK]")
"""Stands in the place of a hidden word. The word-level vocabulary has no [MASK], and no sentence has a word that it
lacks, so the number of [UNK] is free; a token more would change the shape and the random weights of every BERT."""
EPS = 1e-12
"""Of BERT's layer normalization."""


@dataclass(frozen=True)
class Augmentation:
    """What happens to each of m images; every field is a tensor with one row an image.

    In this order: mirrored left-right where `mirror` is -1 (else 1); contrast and saturation multiplied; affine map,
    that is sheared by an angle along x, scaled, turned clockwise by `angle` and shifted [m, 2] by image widths along x
    and y; turned counter-clockwise by `rotation`. Angles are in degrees; saturation 0 is gray.
    """

    mirror: Tensor
    contrast: Tensor
    saturation: Tensor
    shear: Tensor
    scale: Tensor
    angle: Tensor
    shift: Tensor
    rotation: Tensor

    @classmethod
    def draw(cls, m: int, generator: torch.Generator) -> "Augmentation":
        """An independent draw for each of m images."""
        chance = torch.rand(4, m, generator=generator)
        spread = 2 * torch.rand(8, m, generator=generator) - 1
        jittered, moved = chance[1] < 0.5, chance[2] < 0.5
        return cls(
            mirror=torch.where(chance[0] < 0.5, -1.0, 1.0),
            contrast=1 + JITTER * spread[0] * jittered,
            saturation=(1 + JITTER * spread[1] * jittered) * (chance[3] >= GRAY),
            shear=SHEAR * spread[2] * moved,
            scale=1 - SHRINK * (1 + spread[3]) / 2 * moved,
            angle=DEGREES * spread[4] * moved,
            shift=SHIFT * (spread[5:7] * moved).T,
            rotation=TURN * spread[7],
        )

    def __call__(self, images: Tensor) -> Tensor:
        """The changed images, floats in [0, 1] [m, 3, H, H], of uint8 [m, 3, H, H]; what moves in is white.

        The map is one bilinear sampling: two would blur twice. What the affine map alone would push over the edge and
        the rotation brings back is therefore still there.
        """
        contrast, saturation, inverse = (t.to(images.device) for t in (self.contrast, self.saturation, self.inverse()))
        images = images.float() / 255
        images = _blend(images, _gray(images).mean(dim=(2, 3), keepdim=True), contrast)
        images = _blend(images, _gray(images), saturation)
        grid = functional.affine_grid(inverse, list(images.shape), align_corners=False)
        ink = functional.grid_sample(1 - images, grid, align_corners=False)  # pads with no ink, which is white
        return (1 - ink).clamp_(min=0)

    def inverse(self) -> Tensor:
        """Matrices [m, 2, 3] from a place in the changed image to its origin, in half image widths from the center."""
        shear = torch.eye(2).repeat(len(self.shear), 1, 1)
        shear[:, 0, 1] = self.shear.deg2rad().tan()
        back = shear @ _turn(-self.angle) / self.scale[:, None, None]
        back[:, 0] *= self.mirror[:, None]
        return torch.cat([back @ _turn(self.rotation), -2 * back @ self.shift[:, :, None]], dim=2)


def augment(images: Tensor, generator: torch.Generator) -> Tensor:
    """Random views of square images uint8 [m, 3, H, H], each drawn for itself: floats in [0, 1] of the same shape."""
    return Augmentation.draw(len(images), generator)(images)


def _blend(images: Tensor, other: Tensor, factors: Tensor) -> Tensor:
    """`other` at factor 0, the images at 1, beyond them above, cut off at black and white."""
    return torch.lerp(other, images, factors[:, None, None, None]).clamp_(0, 1)


def _gray(images: Tensor) -> Tensor:
    """Gray of colors: [m, 3, H, W] to [m, 1, H, W]."""
    return sum(share * images[:, [i]] for i, share in enumerate(LUMA))


def _turn(degrees: Tensor) -> Tensor:
    """Matrices [m, 2, 2] that turn clockwise, y pointing down."""
    cos, sin = degrees.deg2rad().cos(), degrees.deg2rad().sin()
    return torch.stack([cos, -sin, sin, cos], dim=1).unflatten(1, (2, 2))


def contrastive_batches(sets: Sequence[OddOneOut], batch_size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """One pass over the examples of all sets, shuffled: images uint8 [batch_size, 3, H, W] a batch (appendix G).

    Each example gives one of its three rule-following images, drawn at random, and its rule-breaking one. What does not
    fill a batch is left out: the fewer images, the easier it is to tell two views of one from the rest.
    Raises ValueError for an odd batch size and for one that the examples do not fill.
    """
    pairs, examples = batch_size // 2, sum(map(len, sets))
    if batch_size % 2 or not 0 < pairs <= examples:
        raise ValueError(f"batch_size {batch_size}: give an even number from 2 to {2 * examples}, as many as there are")
    owners = torch.cat([torch.full((len(data),), i) for i, data in enumerate(sets)])
    places = torch.cat([torch.arange(len(data)) for data in sets])
    columns = torch.randint(3, (examples,), generator=generator)
    order = torch.randperm(examples, generator=generator)
    for part in order[: examples - examples % pairs].split(pairs):
        yield torch.cat([
            data.items[_pairs(data, places[mine], columns[mine])]
            for i, data in enumerate(sets)
            for mine in [part[owners[part] == i]]
        ])  # fmt: skip


def _pairs(data: OddOneOut, examples: Tensor, columns: Tensor) -> Tensor:
    """Rows [2k] of the rule-following items in the given columns of k examples, each followed by the odd one's."""
    chosen = data.examples[examples]
    return torch.stack([chosen.gather(1, columns[:, None]).squeeze(1), chosen[:, 3]], dim=1).flatten()


def nt_xent(embeddings: Tensor, temperature: float) -> Tensor:
    """The normalized temperature-scaled cross-entropy of Chen et al. (2020, equation 1), a scalar in nats.

    embeddings: [2n, d], rows i and i + n being views of one image. For each view it is the cross-entropy of finding its
    partner among the 2n - 1 others by cosine similarity over the temperature.
    """
    return functional.cross_entropy(_similarities(embeddings) / temperature, _partners(embeddings))


def top_k_accuracy(embeddings: Tensor, k: int = 5) -> float:
    """Share of views [2n, d] whose partner is among the k most similar of the 2n - 1 others.

    Another view that is just as similar counts as more similar: embeddings that have all become one score 0, not 1.
    Raises ValueError where nothing could be wrong, because there are no more than k others.
    """
    if len(embeddings) - 1 <= k:
        raise ValueError(f"{len(embeddings)} views are too few for a top-{k} accuracy; give at least {k + 2}")
    similarities = _similarities(embeddings)
    partner = similarities.gather(1, _partners(embeddings)[:, None])
    return float(((similarities >= partner).sum(dim=1) <= k).double().mean())


def _similarities(embeddings: Tensor) -> Tensor:
    """Cosine similarities [2n, 2n], minus infinity for a view with itself."""
    directions = functional.normalize(embeddings, dim=1)
    itself = torch.eye(len(embeddings), dtype=torch.bool, device=embeddings.device)
    return (directions @ directions.T).masked_fill(itself, -math.inf)


def _partners(embeddings: Tensor) -> Tensor:
    """Row of the other view of each view's image."""
    return torch.arange(len(embeddings), device=embeddings.device).roll(len(embeddings) // 2)


def simclr(
    model: StagedModel,
    train: Sequence[OddOneOut],
    validation: Sequence[OddOneOut],
    *,
    learning_rate: float,
    epochs: int,
    batch_size: int,
    temperature: float,
    seed: int,
    precision: Precision = nullcontext,
    checkpoint: Path | None = None,
    label: str = "SimCLR",
) -> pd.DataFrame:
    """Pretrain a ResNet, whose `head` is the projection MLP, on the images of several sets (appendix G).

    The learning rate falls to a fiftieth by a cosine. Kept are the weights of the epoch with the best top-5 accuracy on
    the validation sets, measured on the same views every time, batch by batch. Returns the history, whose
    validation_loss, the number that decides, is 1 - top-5 accuracy; validation_nt_xent is the contrastive loss.
    Raises ValueError if either list of sets does not fill a batch, TrainingDiverged as `fit` does.
    """
    device = next(model.parameters()).device
    held_out = list(contrastive_batches(validation, batch_size, generator_for(seed, "validation")))

    def two_views(images: Tensor, generator: torch.Generator) -> Tensor:
        return augment(images.to(device).repeat(2, 1, 1, 1), generator)

    def one_pass(epoch: int) -> Iterator[tuple[Tensor, torch.Generator]]:
        generator = generator_for(seed, epoch)
        for images in contrastive_batches(train, batch_size, generator):
            yield images, generator

    def loss(batch: tuple[Tensor, torch.Generator], epoch: int) -> Tensor:
        views = two_views(*batch)
        with precision():
            embeddings = model(views)
        return nt_xent(embeddings.float(), temperature)

    @torch.no_grad()
    def validate() -> dict[str, float]:
        generator = generator_for(seed, "views")
        with full_precision(device):
            embeddings = [model(two_views(images, generator)) for images in held_out]
            contrast = mean(float(nt_xent(e, temperature)) for e in embeddings)
            top = mean(top_k_accuracy(e) for e in embeddings)
        return {"validation_loss": 1 - top, "validation_accuracy": top, "validation_nt_xent": contrast}

    recipe = Recipe(learning_rate, epochs, seed, patience=epochs, final_share=1 / 50)
    return fit(
        dict(model.named_parameters()),
        one_pass,
        loss,
        recipe=recipe,
        validate=validate,
        checkpoint=checkpoint,
        label=label,
    )


def grammatical(tasks: Sequence[str], split: str, *, limit: int, seed: int, tokenizer: agreement.Tokenizer) -> Tensor:
    """At most `limit` distinct grammatical sentences of a split of the given tasks, as token ids [n, longest].

    They are drawn from the partition that all sets of a task share, so those of the training split occur in no
    validation or test set; unless `as_printed`, by which sets ignore the partition.
    Raises ValueError for an unknown task or split.
    """
    if split not in agreement.SPLITS:
        raise ValueError(f"unknown split '{split}'; choose one of {', '.join(agreement.SPLITS)}")
    parts = pd.concat([agreement.splits(task, seed=0) for task in tasks])
    found = parts.loc[(parts["split"] == split) & (parts["kind"] == 0), "sentence"].drop_duplicates()
    order = torch.randperm(len(found), generator=generator_for("grammatical", split, seed))[:limit]
    return tokenizer.encode(found.iloc[order.numpy()].tolist())


@dataclass(frozen=True)
class Gaps:
    """Sentences with words to be filled in: inputs [b, L], the booleans [b, L] that say where, the words [k] there."""

    inputs: Tensor
    where: Tensor
    words: Tensor

    def to(self, device: torch.device) -> "Gaps":
        """The same on a device."""
        return Gaps(self.inputs.to(device), self.where.to(device), self.words.to(device))


def make_gaps(tokens: Tensor, *, share: float, mask_id: int, lexicon: Tensor, generator: torch.Generator) -> Gaps:
    """Choose words of sentences [b, L] to be predicted, as BERT does (Devlin et al. 2019, section 3.1).

    A share of each sentence's words, rounded, but at least one; of these 80% are replaced by `mask_id`, 10% by a word
    of the lexicon, and 10% stay. [CLS], [SEP] and padding are never chosen.
    """
    words = word_places(tokens)
    number = (share * words.sum(dim=1)).round().clamp(min=1)
    order = torch.rand(tokens.shape, generator=generator).masked_fill(~words, 2.0).argsort(dim=1).argsort(dim=1)
    where = words & (order < number[:, None])
    fate = torch.rand(tokens.shape, generator=generator)
    random = lexicon[torch.randint(len(lexicon), tokens.shape, generator=generator)]
    inputs = torch.where(where & (fate < 0.8), mask_id, tokens)
    inputs = torch.where(where & (fate >= 0.9), random, inputs)
    return Gaps(inputs, where, tokens[where])


def word_places(tokens: Tensor) -> Tensor:
    """Booleans [b, L]: which tokens are words, neither the first, [CLS], nor the last, [SEP], nor padding after it."""
    places = (tokens != PADDING).roll(-1, dims=1)  # a word is followed by a token, [SEP] is not
    places[:, [0, -1]] = False
    return places


def every_token(model: StagedModel) -> StagedModel:
    """A BERT up to its pooler, with the same weights, that returns the last hidden state of all tokens, not of [CLS].

    A state (tokens [m, L],) becomes (hidden [m, L, width], keep [m, L]).
    """
    prefix, _ = model.cut("pooler")
    stages = {
        name: Layer(stage, first_only=False) if isinstance(stage, Layer) else stage
        for name, stage in prefix.stages.items()
    }
    return StagedModel(stages, trim=trim_padding)


def prediction_head(width: int, vocabulary: int, *, seed: int) -> dict[str, Tensor]:
    """Weights of BERT's prediction head but for the word embeddings, with which it shares its output layer.

    Initialized as BERT: normal with deviation .02, biases 0.
    """
    dense = 0.02 * torch.randn(width, width, generator=generator_for("prediction head", seed))
    head = {"dense.weight": dense, "dense.bias": torch.zeros(width), "output.bias": torch.zeros(vocabulary)}
    return head | {"norm.weight": torch.ones(width), "norm.bias": torch.zeros(width)}


def predict_words(encoder: StagedModel, head: Mapping[str, Tensor], gaps: Gaps) -> Tensor:
    """Logits [k, vocabulary] of the words in the gaps; `encoder` is made by `every_token`."""
    hidden = encoder(gaps.inputs)[0][gaps.where]
    hidden = functional.gelu(functional.linear(hidden, head["dense.weight"], head["dense.bias"]))
    hidden = functional.layer_norm(hidden, hidden.shape[-1:], head["norm.weight"], head["norm.bias"], EPS)
    embeddings = encoder.stages["embeddings"].word_embeddings.weight
    return functional.linear(hidden, embeddings, head["output.bias"])


def masked_language_model(
    model: StagedModel,
    sentences: Tensor,
    validation: Tensor,
    *,
    learning_rate: float,
    epochs: int,
    batch_size: int,
    seed: int,
    share: float = 0.15,
    mask_id: int = MASK_ID,
    precision: Precision = nullcontext,
    checkpoint: Path | None = None,
    label: str = "masked language model",
) -> pd.DataFrame:
    """Pretrain a BERT on sentences, token ids [n, L], by predicting the words in gaps (`make_gaps`).

    Kept are the weights of the epoch with the lowest cross-entropy on the validation sentences [v, L], whose gaps are
    the same every time. The prediction head is trained along and thrown away; the pooler is not trained. Returns the
    history; validation_accuracy is the share of words that are found.
    Raises ValueError if `mask_id` is a token of the sentences, TrainingDiverged as `fit` does.
    """
    if (sentences == mask_id).any():
        raise ValueError(f"mask_id {mask_id} is a token of the sentences; give a number that none has")
    encoder, device = every_token(model), next(model.parameters()).device
    table = encoder.stages["embeddings"].word_embeddings.weight
    head = {n: t.to(device).requires_grad_() for n, t in prediction_head(table.shape[1], len(table), seed=seed).items()}
    cloze = partial(make_gaps, share=share, mask_id=mask_id, lexicon=sentences[word_places(sentences)].unique())
    held_out = list(_cloze_batches(validation, CHUNK, cloze, generator_for(seed, "validation"), shuffled=False))

    def one_pass(epoch: int) -> Iterator[Gaps]:
        return _cloze_batches(sentences, batch_size, cloze, generator_for(seed, epoch), shuffled=True)

    def loss(gaps: Gaps, epoch: int) -> Tensor:
        gaps = gaps.to(device)
        with precision():
            logits = predict_words(encoder, head, gaps)
        return functional.cross_entropy(logits.float(), gaps.words)

    @torch.no_grad()
    def validate() -> dict[str, float]:
        words = torch.cat([gaps.words for gaps in held_out])
        with full_precision(device):
            logits = torch.cat([predict_words(encoder, head, gaps.to(device)) for gaps in held_out]).cpu()
        right = (logits.argmax(dim=1) == words).double().mean()
        return {"validation_loss": float(functional.cross_entropy(logits, words)), "validation_accuracy": float(right)}

    return fit(
        dict(encoder.named_parameters()) | {f"head.{name}": tensor for name, tensor in head.items()},
        one_pass,
        loss,
        recipe=Recipe(learning_rate, epochs, seed, patience=epochs),
        validate=validate,
        checkpoint=checkpoint,
        label=label,
    )


def _cloze_batches(
    tokens: Tensor, size: int, cloze: Callable[..., Gaps], generator: torch.Generator, *, shuffled: bool
) -> Iterator[Gaps]:
    """One pass over sentences [n, L], padding cut off where no sentence of a batch needs it."""
    order = torch.randperm(len(tokens), generator=generator) if shuffled else torch.arange(len(tokens))
    for rows in order.split(size):
        (batch,) = trim_padding((tokens[rows],))
        yield cloze(batch, generator=generator)


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
        sizes = {"vocabulary": agreement.tokenizer().size}
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
    settings = experiment.pretraining
    draw = partial(grammatical, settings.tasks, seed=settings.seed, tokenizer=agreement.tokenizer())
    sentences = draw("train", limit=settings.sentences)
    return masked_language_model(model, sentences, draw("validation", limit=max(1, len(sentences) // 10)), **options)
