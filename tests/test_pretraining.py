"""Pretraining: losses and augmentations against independent references, resume, and what a base model takes over."""

import math
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close
from torchvision.transforms.v2 import functional as theirs
from transformers import BertConfig, BertForMaskedLM

from subnet_utils import checkpoints, training
from subnet_utils.core.lab import Lab
from subnet_utils.core.seeds import generator_for
from subnet_utils.models import StagedModel, build, fingerprint
from subnet_utils.models.language import PADDING, WordPredictor, every_token
from subnet_utils.papers.break_it_down import networks
from subnet_utils.papers.break_it_down.pretraining import Pretraining, hidden_words, start_from
from subnet_utils.papers.break_it_down.pretraining.hidden_words import MASK_ID, grammatical, masked_language_model
from subnet_utils.papers.break_it_down.pretraining.views import (
    Augmentation,
    contrastive_batches,
    nt_xent,
    simclr,
    top_k_accuracy,
)
from subnet_utils.papers.break_it_down.section import Experiment, MaskedLanguageModel, SimCLR
from subnet_utils.tasks import agreement, tokenization
from subnet_utils.tasks.hidden_words import Gaps, make_gaps, word_positions
from subnet_utils.tasks.odd_one_out import VISION_TASKS, OddOneOut
from subnet_utils.training import Recipe
from tests import micro

RESNET = {"family": "resnet", "block": "basic", "depths": [1, 1, 1, 1], "width": 8, "head_width": 16, "embedding": 8}
BERT = {"family": "bert", "layers": 2, "width": 16, "heads": 2, "mlp_width": 32}


class Stopped(Exception):
    """Raised in place of a training step, to interrupt a run."""


def stop_at(step: int):
    """A `precision` that raises at the given step, counted from 0."""
    steps = iter(range(step + 1))

    def precision():
        if next(steps) == step:
            raise Stopped
        return nullcontext()

    return precision


def same_weights(first: StagedModel, second: StagedModel) -> bool:
    return fingerprint(first) == fingerprint(second)


# -- the contrastive loss ----------------------------------------------------------------------------------------------


@pytest.fixture
def embeddings() -> Tensor:
    views = torch.randn(12, 5, generator=generator_for("embeddings"))
    return torch.cat([views, views + 0.8 * torch.randn(12, 5, generator=generator_for("noise"))])


def cosines(embeddings: Tensor) -> np.ndarray:
    e = embeddings.double().numpy()
    e = e / np.sqrt((e**2).sum(1))[:, None]
    return e @ e.T


def test_nt_xent_is_equation_1_of_chen_et_al(embeddings):
    similarity, n, terms = cosines(embeddings), 12, []
    for i in range(2 * n):
        j = (i + n) % (2 * n)
        others = sum(math.exp(similarity[i, k] / 0.07) for k in range(2 * n) if k != i)
        terms.append(-math.log(math.exp(similarity[i, j] / 0.07) / others))
    assert float(nt_xent(embeddings, 0.07)) == pytest.approx(np.mean(terms), rel=1e-5)


@pytest.mark.parametrize("k", [1, 5])
def test_top_k_accuracy_counts_partners_among_the_nearest(embeddings, k):
    similarity = cosines(embeddings)
    np.fill_diagonal(similarity, -np.inf)
    nearest = [row.argsort()[::-1][:k].tolist() for row in similarity]
    expected = np.mean([(i + 12) % 24 in found for i, found in enumerate(nearest)])
    assert 0 < expected < 1
    assert top_k_accuracy(embeddings, k) == pytest.approx(expected)


def test_top_k_accuracy_of_a_collapse_is_zero():
    assert top_k_accuracy(torch.ones(16, 3)) == 0
    assert top_k_accuracy(torch.eye(8).repeat(2, 1)) == 1


# -- augmentation ------------------------------------------------------------------------------------------------------


def augment(images, generator):
    return Augmentation.draw(len(images), generator)(images)


def nothing(m: int) -> Augmentation:
    zeros, ones = torch.zeros(m), torch.ones(m)
    return Augmentation(ones, ones, ones, zeros, ones, zeros, torch.zeros(m, 2), zeros)


def smooth(m: int = 3, side: int = 40) -> Tensor:
    """White images with soft colored blobs near their middle: what is interpolated where matters little."""
    generator = generator_for("smooth")
    y, x = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    ink = torch.zeros(m, 3, side, side)
    for _ in range(5):
        place = side * (0.35 + 0.3 * torch.rand(2, m, 1, 1, 1, generator=generator))
        color = torch.rand(m, 3, 1, 1, generator=generator)
        ink += color * torch.exp(-((x - place[0]) ** 2 + (y - place[1]) ** 2) / (side / 10) ** 2)
    return (255 * (1 - ink.clamp(max=1))).round().byte()


def affine(image: Tensor, *, angle=0.0, shift=(0, 0), scale=1.0, shear=0.0) -> Tensor:
    """Of the ink, because torchvision's own filling with white leaves a gray fringe where it interpolates."""
    bilinear = theirs.InterpolationMode.BILINEAR
    return 1 - theirs.affine(1 - image, angle, list(shift), scale, [shear, 0.0], interpolation=bilinear)


def rotated(image: Tensor, angle: float) -> Tensor:
    return 1 - theirs.rotate(1 - image, angle, interpolation=theirs.InterpolationMode.BILINEAR)


@pytest.mark.parametrize(
    ("name", "values", "reference"),
    [
        ("mirror", [-1.0, 1.0, -1.0], lambda x, v: theirs.horizontal_flip(x) if v < 0 else x),
        ("contrast", [0.5, 1.0, 1.5], theirs.adjust_contrast),
        ("saturation", [0.0, 0.6, 1.5], theirs.adjust_saturation),
        ("angle", [-30.0, 7.0, 30.0], lambda x, v: affine(x, angle=v)),
        ("scale", [0.9, 0.95, 1.0], lambda x, v: affine(x, scale=v)),
        ("shear", [-20.0, 5.0, 20.0], lambda x, v: affine(x, shear=v)),
        ("shift", [[0.05, -0.05], [0.0, 0.025], [-0.05, 0.0]], lambda x, v: affine(x, shift=[40 * s for s in v])),
        ("rotation", [-90.0, 33.0, 80.0], rotated),
    ],
)
def test_each_change_is_torchvisions(name, values, reference):
    images = smooth()
    found = replace(nothing(3), **{name: torch.tensor(values)})(images)
    expected = torch.stack([reference(image / 255, v) for image, v in zip(images, values, strict=True)])
    assert_close(found, expected, atol=2 / 255, rtol=0)
    unchanged = nothing(3)(images)
    assert_close(unchanged, images / 255)
    assert (found - unchanged).abs().max() > 0.1


def test_all_changes_together_come_in_the_order_of_the_authors():
    image = smooth(1, side=160)
    values = {"mirror": -1.0, "contrast": 0.6, "shear": 15.0, "scale": 0.9, "angle": 25.0, "rotation": 60.0}
    drawn = replace(nothing(1), **{name: torch.tensor([v]) for name, v in values.items()})
    drawn = replace(drawn, shift=torch.tensor([[0.05, -0.05]]))
    expected = theirs.adjust_contrast(theirs.horizontal_flip(image / 255), 0.6)
    expected = rotated(affine(expected, angle=25.0, shift=[8, -8], scale=0.9, shear=15.0), 60.0)
    assert_close(drawn(image), expected, atol=0.04, rtol=0)  # they interpolate twice, and cut off twice


def test_views_are_drawn_for_each_image_by_the_generator_alone():
    images = smooth(1).repeat(6, 1, 1, 1)
    before = torch.get_rng_state()
    views = augment(images, generator_for(1))
    assert torch.equal(views, augment(images, generator_for(1)))
    assert torch.equal(torch.get_rng_state(), before)
    other = augment(images, generator_for(2))
    different = torch.cat([views, other]).flatten(1)
    assert torch.cdist(different, different).add(torch.eye(12)).min() > 0.5


def test_views_are_images_and_white_stays_white():
    noise = torch.randint(0, 256, (64, 3, 33, 33), dtype=torch.uint8, generator=generator_for("noise"))
    views = augment(noise, generator_for(0))
    assert views.dtype == torch.float32 and views.shape == noise.shape
    assert views.min() >= 0 and views.max() <= 1
    white = augment(torch.full_like(noise, 255), generator_for(0))
    assert_close(white, torch.ones_like(white), atol=1e-6, rtol=0)
    turned = replace(nothing(1), rotation=torch.tensor([45.0]))(torch.zeros_like(noise[:1]))
    corners = turned[:, :, [0, 0, -1, -1], [0, -1, 0, -1]]
    assert torch.equal(corners, torch.ones_like(corners)) and turned[0, 0, 16, 16] == 0


def test_draws_have_the_strength_of_appendix_g():
    n = 20_000
    drawn = Augmentation.draw(n, generator_for("draws"))
    share = {
        "mirror": drawn.mirror == -1,
        "jittered": drawn.contrast != 1,
        "moved": drawn.angle != 0,
        "gray": drawn.saturation == 0,
    }
    for name, expected in {"mirror": 0.5, "jittered": 0.5, "moved": 0.5, "gray": 0.2}.items():
        assert float(share[name].double().mean()) == pytest.approx(expected, abs=4 * math.sqrt(0.25 / n))
    jittered, colored = drawn.contrast[share["jittered"]], drawn.saturation[share["jittered"] & ~share["gray"]]
    moved = {name: getattr(drawn, name)[share["moved"]] for name in ("angle", "shear", "scale", "shift")}
    ranges = [(jittered, 0.5, 1.5), (colored, 0.5, 1.5), (drawn.rotation, -90, 90), (moved["angle"], -30, 30)]
    ranges += [(moved["shear"], -20, 20), (moved["scale"], 0.9, 1), (moved["shift"], -0.05, 0.05)]
    for values, low, high in ranges:
        step = (high - low) / 100
        assert low <= values.min() < low + step and high - step < values.max() <= high
    assert ((drawn.scale != 1) <= share["moved"]).all() and ((drawn.shear != 0) == share["moved"]).all()


# -- the images of a batch ---------------------------------------------------------------------------------------------


def numbered(number: int, examples: int) -> OddOneOut:
    """A set whose items are numbers that tell the set, the example and the column."""
    column = torch.arange(4 * examples).reshape(examples, 4)
    shuffled = torch.randperm(4 * examples, generator=generator_for(number))
    items = torch.empty(4 * examples, dtype=torch.int64)
    items[shuffled] = torch.arange(4 * examples) + 1000 * number
    return OddOneOut(items, shuffled[column], torch.zeros(4 * examples, dtype=torch.int8))


def test_batches_hold_a_rule_following_and_the_rule_breaking_image_of_each_example():
    sets = [numbered(1, 7), numbered(2, 12), numbered(3, 5)]
    batches = list(contrastive_batches(sets, 8, generator_for(0)))
    assert [len(batch) for batch in batches] == [8] * 6  # 24 examples, four a batch
    columns = Counter()
    pairs = [tuple(pair) for batch in batches for pair in batch.reshape(-1, 2).tolist()]
    for follows, breaks in pairs:
        assert breaks % 4 == 3 and follows // 4 == breaks // 4 and follows % 4 < 3
        columns[follows % 4] += 1
    assert len(set(pairs)) == 24 and set(columns) == {0, 1, 2}
    assert all(len({item // 1000 for item in batch.tolist()}) > 1 for batch in batches)
    again, other = (list(contrastive_batches(sets, 8, generator_for(seed))) for seed in (0, 1))
    assert torch.equal(torch.stack(again), torch.stack(batches)) and not torch.equal(torch.stack(other)[0], batches[0])


def test_what_does_not_fill_a_batch_is_left_out_and_too_few_refused():
    sets = [numbered(1, 7), numbered(2, 6)]
    assert [len(batch) for batch in contrastive_batches(sets, 10, generator_for(0))] == [10, 10]
    for size in (9, 0, 28):
        with pytest.raises(ValueError, match=f"batch_size {size}: give an even number from 2 to 26"):
            next(contrastive_batches(sets, size, generator_for(0)))


# -- the learning rate -------------------------------------------------------------------------------------------------


def test_learning_rate_falls_as_torchs_cosine():
    parameter = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.AdamW([parameter], lr=0.0005)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=100, eta_min=0.0005 / 50)
    recipe = Recipe(0.0005, 100, seed=0, final_share=1 / 50)
    for epoch in range(100):
        assert recipe.rate(epoch) == pytest.approx(schedule.get_last_lr()[0], rel=1e-9)
        optimizer.step()
        schedule.step()
    assert {Recipe(0.003, 7, seed=0).rate(epoch) for epoch in range(7)} == {0.003}  # to the bit: results depend on it


def test_fit_follows_the_learning_rate():
    """With one constant gradient an epoch, Adam's step is the learning rate."""
    parameter, positions = torch.zeros((), dtype=torch.float64, requires_grad=True), []
    training.fit({"w": parameter}, lambda epoch: [0], lambda batch, epoch: parameter * 1.0,
                 recipe=Recipe(0.1, 4, seed=0, final_share=0.2),
                 observe=lambda epoch: positions.append(float(parameter.detach())) or {})  # fmt: skip
    rates = [0.02 + 0.08 * (1 + math.cos(math.pi * epoch / 4)) / 2 for epoch in range(4)]
    np.testing.assert_allclose(-np.diff([0, *positions]), rates, rtol=1e-6)


# -- SimCLR ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lab(artifacts) -> Lab:
    return Lab.open(micro.study(precision="float32"), artifacts)


@pytest.fixture(scope="module")
def vision(lab) -> Experiment:
    settings = SimCLR(method="simclr", learning_rate=0.002, batch_size=24, epochs=3, tasks=VISION_TASKS[1:], seed=3)
    return lab.study.break_it_down.experiments[1].model_copy(update={"pretraining": settings})


@pytest.fixture(scope="module")
def images(lab, vision) -> dict[str, list[OddOneOut]]:
    both = pretraining_of(lab, vision).images
    return {split: [one.load(lab) for one in sets] for split, sets in zip(("train", "validation"), both, strict=True)}


def base_of(lab: Lab, experiment: Experiment) -> networks.Trained:
    return networks.trained(lab, experiment, experiment.tasks[0], experiment.base, 9)


def pretraining_of(lab: Lab, experiment: Experiment) -> Pretraining:
    return base_of(lab, experiment).pretraining


def contrast(images: dict[str, list[OddOneOut]], training: dict | None = None, **more):
    model = build(RESNET, seed=5, resolution=48)
    settings = {"learning_rate": 0.003, "epochs": 3, "batch_size": 12, "seed": 3} | (training or {})
    return model, simclr(model, images["train"], images["validation"], SimCLR(method="simclr", **settings), **more)


def test_simclr_learns_to_tell_images_apart(images):
    _, history = contrast(images, {"epochs": 12})
    assert history["validation_nt_xent"].iloc[-1] < math.log(2 * 12 - 1) - 0.3  # of a collapse
    assert history["validation_accuracy"].max() > 5 / 23 + 0.2
    assert history["train_loss"].iloc[-1] < history["train_loss"].iloc[0]
    np.testing.assert_allclose(history["validation_loss"], 1 - history["validation_accuracy"])


def test_simclr_depends_on_the_seed_alone_and_resumes_to_the_same_bits(images, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoints, "SECONDS", 0.0)
    torch.manual_seed(77)
    before = torch.get_rng_state()
    model, history = contrast(images)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(78)
    with pytest.raises(Stopped):
        contrast(images, precision=stop_at(20), checkpoint=tmp_path / "checkpoint")  # eight steps an epoch
    resumed, found = contrast(images, checkpoint=tmp_path / "checkpoint")
    pd.testing.assert_frame_equal(found, history, check_exact=True)
    assert same_weights(resumed, model)
    assert not same_weights(contrast(images, {"seed": 4})[0], model)


def test_simclr_keeps_the_best_weights_by_top_5(images):
    """At this rate the accuracy goes up and down, and the last epoch is hardly the best."""
    model, history = contrast(images, {"learning_rate": 0.3, "epochs": 6})
    held_out = contrastive_batches(images["validation"], 12, generator_for(3, "validation"))
    views = generator_for(3, "views")
    with torch.no_grad():
        again = [top_k_accuracy(model(augment(batch.repeat(2, 1, 1, 1), views))) for batch in held_out]
    assert history["validation_accuracy"].max() == pytest.approx(np.mean(again))
    assert history["validation_accuracy"].nunique() > 1


# -- gaps --------------------------------------------------------------------------------------------------------------


def corpus(n: int, length: int, words: int = 40) -> Tensor:
    """Sentences of 1 to `length` words with numbers from 5 on, between 2 and 3."""
    generator = generator_for("corpus", n, length)
    tokens = torch.zeros(n, length + 2, dtype=torch.int64)
    for row, count in zip(tokens, torch.randint(1, length + 1, (n,), generator=generator).tolist(), strict=True):
        row[: count + 2] = torch.randint(5, 5 + words, (count + 2,), generator=generator)
        row[0], row[count + 1] = 2, 3
    return tokens


def gaps_of(tokens: Tensor, seed: int = 0) -> Gaps:
    return make_gaps(tokens, share=0.15, mask_id=1, lexicon=torch.arange(5, 45), generator=generator_for(seed))


def test_gaps_are_in_words_alone_as_many_as_the_share():
    tokens = corpus(500, 30)
    gaps = gaps_of(tokens)
    again, other = gaps_of(tokens), gaps_of(tokens, seed=1)
    assert torch.equal(gaps.inputs, again.inputs) and not torch.equal(gaps.where, other.where)
    assert torch.equal(word_positions(tokens), tokens >= 5)  # what stands between the special tokens
    assert (tokens[gaps.where] >= 5).all() and torch.equal(gaps.words, tokens[gaps.where])
    assert torch.equal(gaps.inputs[~gaps.where], tokens[~gaps.where])
    counts = (tokens >= 5).sum(1).double().numpy()
    assert gaps.where.sum(1).tolist() == np.maximum(1, np.round(0.15 * counts)).tolist()


def test_gaps_are_masked_replaced_or_kept_as_by_bert():
    tokens = corpus(4000, 30)
    gaps = gaps_of(tokens)
    inputs, words = gaps.inputs[gaps.where], gaps.words
    n = len(words)
    masked, kept = inputs == 1, inputs == words
    replaced = ~masked & ~kept
    # a random word is the same one once in 40
    for found, share in ((masked, 0.8), (kept, 0.1 + 0.1 / 40), (replaced, 0.1 * 39 / 40)):
        assert float(found.double().mean()) == pytest.approx(share, abs=4 * math.sqrt(share * (1 - share) / n))
    assert set(inputs[replaced].tolist()) == set(range(5, 45))
    positions = gaps.where[(tokens >= 5).all(1) | (tokens[:, 30] >= 5)].double().mean(0)[1:31]
    assert positions.std() < 0.03  # no place in a sentence is chosen more often than another


# -- the masked language model -----------------------------------------------------------------------------------------


def test_every_token_is_the_network_itself_for_its_class_token():
    model, tokens = build(BERT, seed=0, vocabulary=45), corpus(20, 9)
    hidden, keep = every_token(model)(tokens)
    assert hidden.shape == (20, 11, 16) and torch.equal(keep, tokens != PADDING)
    assert_close(hidden[:, 0], model(tokens))
    shared = dict(model.named_parameters())
    assert all(parameter is shared[name] for name, parameter in every_token(model).named_parameters())


def test_predictions_and_gradients_are_those_of_transformers():
    """The tied output layer among them: the word embeddings get a gradient from both of their places."""
    config = BertConfig(
        vocab_size=45, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, pad_token_id=0,
    )  # fmt: skip
    reference, model = BertForMaskedLM(config), build(BERT, seed=0, vocabulary=45)
    network = WordPredictor(model, seed=0, hidden=MASK_ID)
    encoder, generator = network.encoder, generator_for("head")
    head = {name: weight for name, weight in network.named_parameters() if not name.startswith("encoder.")}
    with torch.no_grad():
        for weight in head.values():
            weight.add_(torch.randn(weight.shape, generator=generator))
    renamed = {
        f"bert.{name.replace('stages.embeddings', 'embeddings')}": weight
        for name, weight in encoder.state_dict().items() if "layer_" not in name
    } | {
        f"bert.encoder.layer.{int(name.split('.')[1][6:]) - 1}.{name.split('.', 2)[2]}": weight
        for name, weight in encoder.state_dict().items() if "layer_" in name
    }  # fmt: skip
    names = {"dense.weight": "transform.dense.weight", "dense.bias": "transform.dense.bias", "bias": "bias"}
    names |= {"norm.weight": "transform.LayerNorm.weight", "norm.bias": "transform.LayerNorm.bias"}
    renamed |= {f"cls.predictions.{names[name]}": weight.detach() for name, weight in head.items()}
    missing, unexpected = reference.load_state_dict(renamed, strict=False)
    assert not unexpected and all(".decoder." in name or "_ids" in name for name in missing)

    gaps = gaps_of(corpus(20, 9))
    logits = network.predict(gaps.inputs, gaps.where)
    expected = reference(gaps.inputs, attention_mask=(gaps.inputs != 0).long()).logits[gaps.where]
    assert_close(logits, expected, atol=1e-5, rtol=1e-4)
    logits.logsumexp(dim=1).sum().backward()
    expected.logsumexp(dim=1).sum().backward()
    table = encoder.stages["embeddings"].word_embeddings.weight
    theirs_table = reference.bert.embeddings.word_embeddings.weight
    used = torch.arange(45) != 0  # theirs never changes the row of padding
    assert_close(table.grad[used], theirs_table.grad[used], atol=1e-4, rtol=1e-3)


def pairs_of_words(n: int) -> Tensor:
    """Sentences 'a b c d' in which each word follows from any other: the one before it plus ten."""
    first = 5 + torch.arange(n) % 10
    words = torch.stack([first, first + 10, first + 20, first + 30], dim=1)
    return torch.cat([torch.full((n, 1), 2), words, torch.full((n, 1), 3)], dim=1)


def fill_gaps(training: dict | None = None, **more) -> tuple[StagedModel, pd.DataFrame]:
    model = build(BERT, seed=5, vocabulary=45)
    settings = {"learning_rate": 0.01, "epochs": 10, "batch_size": 16, "seed": 3} | (training or {})
    settings = MaskedLanguageModel(method="masked_language_model", **settings)
    return model, masked_language_model(model, pairs_of_words(320), pairs_of_words(60), settings, **more)


@pytest.fixture(scope="module")
def filled() -> tuple[StagedModel, pd.DataFrame]:
    return fill_gaps()


def test_masked_language_model_learns_and_leaves_the_pooler_alone(filled):
    model, history = filled
    assert history["validation_loss"].min() < math.log(10) - 0.5  # of one who knows what words occur in each place
    assert history["validation_accuracy"].max() > 0.1 + 0.15
    untouched = dict(build(BERT, seed=5, vocabulary=45).named_parameters())
    same = {name for name, weight in model.named_parameters() if torch.equal(weight, untouched[name])}
    assert same == {"stages.pooler.dense.weight", "stages.pooler.dense.bias"}


def test_masked_language_model_depends_on_the_seed_alone_and_resumes_to_the_same_bits(filled, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoints, "SECONDS", 0.0)
    torch.manual_seed(77)
    before = torch.get_rng_state()
    with pytest.raises(Stopped):
        fill_gaps(precision=stop_at(127), checkpoint=tmp_path / "checkpoint")  # twenty steps an epoch
    model, history = fill_gaps(checkpoint=tmp_path / "checkpoint")
    assert torch.equal(torch.get_rng_state(), before)
    pd.testing.assert_frame_equal(history, filled[1], check_exact=True)
    assert same_weights(model, filled[0])
    assert not same_weights(fill_gaps({"seed": 4, "epochs": 1})[0], fill_gaps({"epochs": 1})[0])


# -- sentences ---------------------------------------------------------------------------------------------------------


def decoded(tokens: Tensor) -> list[str]:
    names = tokenization.Vocabulary().tokens
    return [" ".join(names[i] for i in row if i > 3) for row in tokens.tolist()]


def test_sentences_are_grammatical_and_of_their_split():
    tasks = ("sv-agreement-singular", "anaphora-plural")
    encode = partial(grammatical, tasks, seed=0)
    train = encode("train", limit=100_000)
    assert not (train == MASK_ID).any()  # the number is free
    found = decoded(train)
    grammar = {s for task in tasks for s in agreement.sentences(task).query("kind == 0")["sentence"]}
    assert len(set(found)) == len(found) == pytest.approx(0.8 * len(grammar), rel=0.01)
    assert set(found) <= grammar
    for task in tasks:
        for split in ("validation", "test"):
            data = agreement.generate(task, "base", 200, split=split, seed=0)
            seen = {s for s, kind in zip(data.sentences, data.kinds.tolist(), strict=True) if kind == 0}
            assert seen and not seen & set(found)
    assert not set(decoded(encode("validation", limit=1000))) & set(found)


def test_a_sentence_with_the_token_of_hidden_words_is_refused(monkeypatch):
    monkeypatch.setattr(hidden_words, "MASK_ID", 7)
    with pytest.raises(ValueError, match="token 7, which stands for a hidden word, is in the sentences"):
        fill_gaps()


def test_sentences_are_limited_and_drawn_by_the_seed():
    draw = partial(grammatical, ["anaphora-plural"], "train")
    first, again, other = (decoded(draw(limit=50, seed=seed)) for seed in (0, 0, 1))
    assert len(first) == 50 and first == again and set(first) != set(other)


# -- artefacts ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def language(lab) -> Experiment:
    settings = MaskedLanguageModel(
        method="masked_language_model", learning_rate=0.003, epochs=2, batch_size=32, sentences=300,
        tasks=["anaphora-singular", "anaphora-plural"], seed=3,
    )  # fmt: skip
    return lab.study.break_it_down.experiments[0].model_copy(update={"pretraining": settings})


@pytest.mark.parametrize("name", ["vision", "language"])
def test_a_network_starts_from_the_best_weights_of_pretraining(lab, name, request):
    experiment = request.getfixturevalue(name)
    base = base_of(lab, experiment)
    artefact, result = base.pretraining.make(lab), base.pretraining.result(lab)
    history = artefact.table("history")
    assert len(history) == result["epochs"] == experiment.pretraining.epochs
    best = history.iloc[result["best_epoch"]]
    assert best["validation_loss"] == history["validation_loss"].min() == result["validation_loss"]
    assert best["validation_accuracy"] == result["validation_accuracy"]

    model, drawn, weights = base.first(lab), dict(base.fresh().named_parameters()), artefact.tensors("weights")
    kept = {key for key, weight in model.named_parameters() if torch.equal(weight, drawn[key])}
    taken = {key for key, weight in model.named_parameters() if torch.equal(weight, weights[key])}
    head = {key for key in drawn if key.startswith("stages.head.")}
    assert taken == drawn.keys() - head and head <= kept and (name == "vision") == bool(head)


def test_pretrained_weights_of_another_architecture_are_refused(lab, language):
    artefact = pretraining_of(lab, language).make(lab)
    wider = build(language.architecture.model_dump(exclude_none=True) | {"width": 32}, seed=0,
                  vocabulary=tokenization.tokenizer().size)  # fmt: skip
    with pytest.raises(RuntimeError, match="size mismatch"):
        start_from(wider, artefact, language.pretraining)


def test_pretraining_is_named_by_what_its_weights_depend_on(lab, vision, language):
    def changed(experiment: Experiment, section: str, **values) -> bool:
        other = experiment.model_copy(update={section: getattr(experiment, section).model_copy(update=values)})
        return pretraining_of(lab, other).name != pretraining_of(lab, experiment).name

    base = vision.data.base
    for experiment in (vision, language):
        assert changed(experiment, "pretraining", seed=4) and changed(experiment, "architecture", width=8)
        assert not changed(experiment, "masks", epochs=9)
    assert changed(vision, "data", resolution=64) and changed(vision, "data", seed=1)
    assert changed(vision, "data", base=base.model_copy(update={"validation": 13}))
    assert not changed(vision, "data", base=base.model_copy(update={"test": 13}))
    assert not changed(language, "data", base=base.model_copy(update={"train": 13}))  # sentences are not from sets
