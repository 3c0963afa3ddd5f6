"""Tables and figures' data of subtask induction with images (*Instilling Inductive Biases*, section 5, appendix C).

Shape bias, after Geirhos et al. (2019), is the share of shape among those answers to cue-conflict images that are right
by either cue.
"""

import math
from collections.abc import Sequence
from itertools import chain, product, zip_longest
from typing import Any

import numpy as np
import pandas as pd
import skimage
from PIL import Image
from torch import Tensor

from subnet_utils.core.lab import Lab
from subnet_utils.core.step import Step, fault_of, make_all
from subnet_utils.core.store import Artefact
from subnet_utils.papers.subtask_induction.comparison import ahead, compared, printed, say
from subnet_utils.papers.subtask_induction.image_sets import ImageSets, image_sets, settings_of
from subnet_utils.papers.subtask_induction.image_steps import ModelSteps, models
from subnet_utils.papers.subtask_induction.images_section import Folders
from subnet_utils.report.comparison import CLAIM, FINDING, OPEN, POSITIVE, SIZE, at_paper_size, verdict
from subnet_utils.report.findings import groups
from subnet_utils.tasks.images import ImageSet, classical_segments, mean_pool

MEASURES = ("original", "pooled", "shape_accuracy", "robustness", "shape_bias")
"""Accuracy on ordinary and on mean-pooled test images; on conflict images accuracy by shape, share of answers that are
not the texture's, and shape bias. Accuracies are means over classes, as in the authors' code: half of all images are
dogs."""
OVER_IMAGES = {"original": "original_over_images", "pooled": "pooled_over_images"}
"""Measure -> column with the same accuracy, each image counting alike."""
BASE, MASK = "base", "mask"
"""Names of the base network and of its subnetwork, next to those of the conditions."""
FOUND = 0.6
"""Mean accuracy on pooled images from which on a subnetwork alone counts as one of shape: four fifths of the paper's
(.738 and .761, Table 2). Below it there is no shape to transfer, and what inherits it says nothing of the claim."""
INHERIT = ("subnetwork", "strict")
"""The conditions whose networks inherit the subnetwork."""


def prepare(lab: Lab) -> ImageSets:
    """Make all sets of images."""
    sets = image_sets(settings_of(lab))
    make_all(lab, sets.sets, "images")
    return sets


def bases(lab: Lab) -> pd.DataFrame:
    """The base networks: a row each with the measures."""
    return _rows(lab, [(one, BASE, one.base) for one in models(lab)], "base networks")


def masks(lab: Lab) -> pd.DataFrame:
    """Every mask that was tried, in base networks and in untrained ones: measures, density, and which is taken."""
    chosen = [(name, one, one.mask(one.bases[name])) for name in ("trained", "random") for one in models(lab)]
    make_all(lab, [mask for *_, mask in chosen], "shape masks")
    return pd.DataFrame(
        _row(lab, one, MASK, mask) | {"condition": name} | row
        for name, one, choice in chosen
        for mask, row in choice.rows(lab)
    )


def induced(lab: Lab) -> pd.DataFrame:
    """All networks: base, subnetwork alone, and those trained under each condition; a row each with the measures."""
    found, whole = masks(lab), bases(lab)
    alone = found[found["chosen"] & (found["condition"] == "trained")].reindex(columns=whole.columns)
    made = _rows(lab, [(one, *named) for one in models(lab) for named in one.conditions.items()], "induced networks")
    table = pd.concat([whole, alone, made], ignore_index=True)
    missing = table[table["original"].isna()]
    say(f"{row.model}, seed {row.seed}, {row.network}: {row.fault}" for row in missing.itertuples())
    return table.drop(missing.index)


def unfound(table: pd.DataFrame) -> dict[str, str]:
    """Each model whose subnetwork alone stays below `FOUND`, and the reason to tell nothing of it.

    table: from `induced`.
    """
    alone = table[table["network"] == MASK].groupby("model", sort=False)["pooled"].mean()
    return {model: f"no shape to inherit: the subnetwork alone has {share:.0%} of pooled images right, not {FOUND:.0%}"
            for model, share in alone.items() if share < FOUND}  # fmt: skip


def table_1(table: pd.DataFrame, *, comparable: bool) -> pd.DataFrame:
    """Mean and 95% interval over seeds of every measure, for every network, next to the paper's number. From `induced`.

    over_images: our mean where each image counts alike, and not each class; it is shown and not judged.
    comparable: whether data and networks are the paper's; else there are no verdicts. reason: from `unfound`.
    """
    reasons = unfound(table)
    return pd.DataFrame(
        _judged(about, measure, group, comparable, reasons.get(about["model"]) if about["network"] in INHERIT else None)
        for about, group in groups(table, "model", "paper_model", "network")
        for measure in MEASURES
    )


def table_2(found: pd.DataFrame, base_rows: pd.DataFrame, *, comparable: bool) -> pd.DataFrame:
    """Density of the chosen masks, and accuracy on pooled images of the whole network and of the subnetwork alone.

    found: from `masks`; base_rows: from `bases`.
    """
    taken, rows = found[found["chosen"] & (found["condition"] == "trained")], []
    for about, group in groups(taken, "model", "paper_model"):
        whole = base_rows[base_rows["model"] == about["model"]]
        for network, measure, own in ((MASK, "density", group), (BASE, "pooled", whole), (MASK, "pooled", group)):
            reason = unfound(taken).get(about["model"]) if measure == "density" else None
            rows.append(_judged(about | {"network": network}, measure, own, comparable, reason))
    return pd.DataFrame(rows)


def _judged(
    about: dict[str, str], measure: str, rows: pd.DataFrame, comparable: bool, reason: str | None
) -> dict[str, Any]:
    """A network's measure next to the paper's. about: model, paper_model and network; rows: one a seed; reason: why
    it cannot be told, if it cannot."""
    own = {"network": about["network"], "measure": measure}
    paper = printed("shape_bias", model=about["paper_model"], **own)
    margin = SIZE * paper if measure == "density" else CLAIM
    judged = compared(rows[measure], paper, margin=margin, comparable=comparable)
    over_images = {"over_images": rows[OVER_IMAGES[measure]].mean() if measure in OVER_IMAGES else math.nan}
    judged |= {"verdict": OPEN if comparable and reason else judged["verdict"], "reason": reason or ""}
    return {"model": about["model"]} | own | over_images | judged


def advantages(table: pd.DataFrame) -> pd.DataFrame:
    """What the subnetwork is ahead of each baseline: means over seeds with 95% t intervals. table: from `induced`.

    verdict: whether it is ahead, which cannot be told of a model that is `unfound`.
    """
    rows, reasons = [], unfound(table)
    for model, group in table.set_index("seed").groupby("model", sort=False):
        networks = dict(list(group.groupby("network", sort=False)))
        for measure, (network, own) in product(MEASURES, networks.items()):
            if network not in ("subnetwork", MASK):
                about = {"model": model, "measure": measure, "baseline": network}
                found = ahead(networks["subnetwork"][measure], own[measure], "ahead")
                judged = OPEN if model in reasons else verdict(found["low"], found["high"], POSITIVE, FINDING)
                rows.append(about | found | {"verdict": judged, "reason": reasons.get(model, "")})
    return pd.DataFrame(rows)


def dynamics(lab: Lab, conditions: Sequence[str] = ("subnetwork", "random", "scratch")) -> pd.DataFrame:
    """Validation accuracy after every epoch of training (Figure 5), on ordinary and on mean-pooled images."""
    frames = [artefact.table("history").assign(**one.about, network=condition)
              for one in models(lab) for condition, artefact in _made(lab, one, conditions).items()]  # fmt: skip
    return pd.concat(frames, ignore_index=True)


def discovery(lab: Lab) -> pd.DataFrame:
    """Accuracy of thresholded masks on pooled validation images after every epoch, trained and untrained (Figure 11).

    With it `base`, that of the whole trained network. Of a method that does not train masks there is one epoch.
    """
    frames = []
    for one in models(lab):
        epochs = one.base.make(lab).table("history")
        whole = epochs["pooled_accuracy"][epochs["validation_accuracy"].idxmax()]  # of the epoch that was kept
        for condition, base in one.bases.items():
            mask = one.mask(base).taken(lab)
            if mask is not None:  # else the table of masks says why
                history = mask.make(lab).table("history")
                if "validation_accuracy" not in history:
                    history["validation_accuracy"] = mask.result(lab)["validation_accuracy"]
                own = history[["epoch", "validation_accuracy"]]
                frames.append(own.assign(**one.about, condition=condition, base=whole))
    return pd.concat(frames, ignore_index=True)


def by_class(lab: Lab, *, networks: Sequence[str] = (BASE, "subnetwork")) -> pd.DataFrame:
    """Accuracy on mean-pooled test images class by class, a row for every network, seed and class (appendix C.3)."""
    rows = []
    for one in models(lab):
        shapes = one.data.load(lab, "pooled_test").shapes
        for network, artefact in _made(lab, one, networks).items():
            right = (artefact.tensors("votes")["pooled_test"] == shapes).double()
            rows += [one.about | {"network": network, "class": name, "accuracy": float(right[shapes == i].mean())}
                     for i, name in enumerate(one.data.classes)]  # fmt: skip
    return pd.DataFrame(rows)


def examples(lab: Lab) -> list[tuple[str, np.ndarray, np.ndarray]]:
    """The first test image of every class and the same mean-pooled (Figure 4): (class, original, pooled), [h, w, 3]."""
    sets = prepare(lab)
    original, flat = sets.load(lab, "test"), sets.load(lab, "pooled_test")
    shapes = original.shapes.tolist()
    first = {name: shapes.index(i) for i, name in enumerate(sets.classes) if i in shapes}
    return [(name, _picture(original, i), _picture(flat, i)) for name, i in first.items()]


def photographs() -> list[tuple[str, np.ndarray, np.ndarray]]:
    """Photographs that come with scikit-image, and the same mean-pooled: (title, original, pooled), [h, w, 3]."""
    shown, scale = [], Folders.model_fields["segment_scale"].default
    for name in ("coffee", "astronaut", "chelsea"):
        photograph = getattr(skimage.data, name)()
        side = min(photograph.shape[:2])
        top, left = ((length - side) // 2 for length in photograph.shape[:2])
        pixels = np.asarray(Image.fromarray(photograph[top : top + side, left : left + side]).resize((224, 224)))
        shown.append((name, pixels, mean_pool(pixels, classical_segments(pixels, scale=scale))))
    return shown


def typical_seed(table: pd.DataFrame) -> int:
    """The seed whose transferred subnetwork has the median accuracy by shape (of an even number the lower middle).

    table: from `induced`, of one model; the base network decides where no subnetwork was transferred.
    """
    own = table[table["network"] == ("subnetwork" if "subnetwork" in set(table["network"]) else BASE)]
    return int(own.sort_values(["shape_accuracy", "seed"])["seed"].iloc[(len(own) - 1) // 2])


def answers(lab: Lab, model: str, seed: int, *, count: int = 12) -> list[dict[str, Any]]:
    """Conflict images with the answer of every network of a seed: image, shape, texture, cue by network.

    They are of as many classes as can be: the first of each shape, then the second, and so on.
    """
    (one,) = [one for one in models(lab) if (one.model.model, one.base.network.seed) == (model, seed)]
    images, classes = one.data.load(lab, "conflicts"), one.data.classes
    names = getattr(settings_of(lab).data, "textures", classes)
    votes = {name: artefact.tensors("votes")["conflicts"] for name, artefact in _made(lab, one).items()}
    by_shape = [(images.shapes == i).nonzero().flatten().tolist() for i in images.shapes.unique()]
    turns = [i for i in chain.from_iterable(zip_longest(*by_shape)) if i is not None]
    shown = []
    for i in turns[:count]:
        shape, texture = int(images.shapes[i]), int(images.textures[i])
        cues = {name: {shape: "shape", texture: "texture"}.get(int(vote[i]), "neither") for name, vote in votes.items()}
        shown.append({"image": _picture(images, i), "shape": classes[shape], "texture": names[texture], "cues": cues})
    return shown


def _picture(images: ImageSet, i: int) -> np.ndarray:
    return images.pixels[i].permute(1, 2, 0).numpy()


def conflict_scores(votes: Tensor, images: ImageSet) -> dict[str, float]:
    """Accuracy by shape (mean over classes), robustness and shape bias of answers, int64 [n], to conflict images.

    Shape bias is missing (NaN) where no answer is right by either cue.
    """
    shape, texture = (votes == images.shapes).double(), (votes == images.textures).double()
    return {
        "shape_accuracy": class_mean(shape, images.shapes),
        "robustness": 1 - float(texture.mean()),
        "shape_bias": float(shape.sum() / (shape + texture).sum()),
    }


def class_mean(right: Tensor, classes: Tensor) -> float:
    """Mean over the classes that there are of the mean of each. right: [n], classes: int64 [n]."""
    means = [right[classes == i].double().mean() for i in classes.unique()]
    return float(sum(means) / len(means))


def is_comparable(lab: Lab) -> bool:
    """Whether images and networks can be the paper's: at the profile `paper`, on its photographs and its segments."""
    return at_paper_size(lab.study.name) and segmentation(lab) == "Segment Anything"


def segmentation(lab: Lab) -> str:
    """What the segments of mean-pooled images come from, in words."""
    found = getattr(settings_of(lab).data, "segment_anything", None)
    return "Segment Anything" if found is not None else "Felzenszwalb and Huttenlocher's graph method"


def _rows(lab: Lab, steps: Sequence[tuple[ModelSteps, str, Step]], label: str) -> pd.DataFrame:
    """Make steps, and a row of each. steps: model, name of the network, step."""
    make_all(lab, [step for *_, step in steps], label)
    return pd.DataFrame([_row(lab, *one) for one in steps])


def _row(lab: Lab, one: ModelSteps, network: str, step: Step) -> dict[str, Any]:
    """The measures of a network from its votes, or its fault."""
    artefact = step.make(lab)
    about = one.about | {"network": network, "key": artefact.key}
    if fault := fault_of(artefact):
        return about | {"fault": fault}
    votes = artefact.tensors("votes")
    for measure, title in {"original": "test", "pooled": "pooled_test"}.items():
        shapes = one.data.load(lab, title).shapes
        right = votes[title] == shapes
        about |= {measure: class_mean(right, shapes), OVER_IMAGES[measure]: float(right.double().mean())}
    return about | conflict_scores(votes["conflicts"], one.data.load(lab, "conflicts"))


def _made(lab: Lab, one: ModelSteps, networks: Sequence[str] | None = None) -> dict[str, Artefact]:
    """Artefacts of a model's networks by name, all or some, without those that ended with a fault."""
    mask = one.mask(one.base).taken(lab)
    steps = {BASE: one.base} | ({} if mask is None else {MASK: mask}) | one.conditions
    found = {name: step.make(lab) for name, step in steps.items() if networks is None or name in networks}
    return {name: artefact for name, artefact in found.items() if not fault_of(artefact)}
