"""Tables and figures' data of subtask induction with images (*Instilling Inductive Biases*, section 5, appendix C).

What is made, and in which order, is in `image_steps`; here its votes become accuracies. Shape bias, after Geirhos et
al. (2019), is the share of shape among those answers to cue-conflict images that are right by either cue.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import skimage
from PIL import Image
from torch import Tensor

from subnet_utils.core.lab import Lab
from subnet_utils.core.step import Step, fault_of, make_all
from subnet_utils.core.store import Artefact
from subnet_utils.papers.subtask_induction import reference
from subnet_utils.papers.subtask_induction.comparison import compared, interval
from subnet_utils.papers.subtask_induction.image_sets import ImageSets, image_sets, settings_of
from subnet_utils.papers.subtask_induction.image_steps import ModelSteps, models
from subnet_utils.papers.subtask_induction.images_section import Folders
from subnet_utils.tasks.images import ImageSet, classical_segments, mean_pool

MEASURES = ("original", "pooled", "shape_accuracy", "robustness", "shape_bias")
"""Accuracy on ordinary and on mean-pooled test images; on conflict images accuracy by shape (mean over classes), share
of answers that are not the texture's, and shape bias."""
CONDITIONS = ("trained", "random")
"""Networks in which masks are found: base networks, and untrained ones."""
BASE, MASK = "base", "mask"
"""Names of the base network and of its subnetwork, next to those of the conditions."""
PHOTOGRAPH_SCALE = Folders.model_fields["segment_scale"].default
ABOUT = ["model", "seed", "network"]


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
    chosen = {(condition, one): one.mask(one.bases[condition]) for condition in CONDITIONS for one in models(lab)}
    make_all(lab, list(chosen.values()), "shape masks")
    rows = []
    for (condition, one), choice in chosen.items():
        taken = choice.taken(lab)
        for mask in choice.candidates:
            found = mask.result(lab)
            own = {} if "fault" in found else {"density": found["active"] / found["total"]}
            about = {"condition": condition, "l0": mask.l0} | own | {"chosen": mask == taken}
            rows.append(_row(lab, one, MASK, mask) | about)
    return pd.DataFrame(rows)


def induced(lab: Lab) -> pd.DataFrame:
    """All networks: base, subnetwork alone, and those trained under each condition; a row each with the measures."""
    found = masks(lab)
    alone = found[found["chosen"] & (found["condition"] == "trained")]
    wanted = [(one, condition, step) for one in models(lab) for condition, step in one.conditions.items()]
    columns = ["paper_model", *ABOUT, *MEASURES, "key"]
    made = _rows(lab, wanted, "induced networks")
    table = pd.concat([bases(lab), alone.reindex(columns=columns), made], ignore_index=True)
    for _, row in table[table.get("fault", pd.Series(index=table.index)).notna()].iterrows():
        print(f"{row['model']}, seed {row['seed']}, {row['network']}: {row['fault']}")
    return table.dropna(subset=["original"])


def table_1(table: pd.DataFrame, *, comparable: bool) -> pd.DataFrame:
    """Mean and 95% interval over seeds of every measure, for every network, next to the paper's number. From `induced`.

    comparable: whether data and networks are the paper's; else there are no verdicts.
    """
    printed = reference.load("shape_bias")
    rows = []
    for (model, paper_model, network), group in table.groupby(["model", "paper_model", "network"], sort=False):
        for measure in MEASURES:
            at = printed[(printed["model"] == paper_model) & (printed["network"] == network)]
            paper = at[at["measure"] == measure]["paper"]
            rows.append({
                "model": model, "network": network, "measure": measure,
                **compared(group[measure], float(paper.iloc[0]) if len(paper) else math.nan, comparable=comparable),
            })  # fmt: skip
    return pd.DataFrame(rows)


def table_2(found: pd.DataFrame, base_rows: pd.DataFrame, *, comparable: bool) -> pd.DataFrame:
    """Density of the chosen masks, and accuracy on pooled images of the whole network and of the subnetwork alone.

    found: from `masks`; base_rows: from `bases`.
    """
    printed = reference.load("shape_bias")
    chosen = found[found["chosen"] & (found["condition"] == "trained")]
    rows = []
    for (model, paper_model), group in chosen.groupby(["model", "paper_model"], sort=False):
        own = base_rows[base_rows["model"] == model]
        for network, measure, values in ((MASK, "density", group["density"]), (BASE, "pooled", own["pooled"]),
                                         (MASK, "pooled", group["pooled"])):  # fmt: skip
            at = printed[(printed["model"] == paper_model) & (printed["network"] == network)]
            paper = float(at[at["measure"] == measure]["paper"].iloc[0])
            rows.append({"model": model, "network": network, "measure": measure}
                        | compared(values, paper, comparable=comparable))  # fmt: skip
    return pd.DataFrame(rows)


def advantages(table: pd.DataFrame) -> pd.DataFrame:
    """What the transferred subnetwork is ahead of each baseline, in every measure: mean over seeds of the difference.

    low, high: 95% t interval. table: from `induced`.
    """
    rows = []
    for model, group in table.groupby("model", sort=False):
        wide = group.pivot_table(index="seed", columns="network", values=list(MEASURES), dropna=False)
        for measure in MEASURES:
            own = wide[measure]
            for network in [name for name in group["network"].unique() if name not in ("subnetwork", MASK)]:
                difference = (own["subnetwork"] - own[network]).dropna()
                mean, low, high = interval(difference)
                rows.append({"model": model, "measure": measure, "baseline": network, "ahead": mean,
                             "low": low, "high": high, "n_runs": len(difference)})  # fmt: skip
    return pd.DataFrame(rows)


def dynamics(lab: Lab, conditions: Sequence[str] = ("subnetwork", "random", "scratch")) -> pd.DataFrame:
    """Validation accuracy after every epoch of training (Figure 5), on ordinary and on mean-pooled images."""
    frames = []
    for one in models(lab):
        for condition, artefact in _votes(lab, one, conditions).items():
            frames.append(artefact.table("history").assign(**one.about, network=condition))
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
        for network, artefact in _votes(lab, one, networks).items():
            right = artefact.tensors("votes")["pooled_test"] == shapes
            for i, name in enumerate(one.data.classes):
                own = right[shapes == i]
                accuracy = float(own.double().mean()) if len(own) else math.nan
                rows.append(one.about | {"network": network, "class": name, "accuracy": accuracy})
    return pd.DataFrame(rows)


def examples(lab: Lab) -> list[tuple[str, np.ndarray, np.ndarray]]:
    """The first test image of every class and the same mean-pooled (Figure 4): (class, original, pooled), [h, w, 3]."""
    sets, shown = prepare(lab), []
    original, flat = sets.load(lab, "test"), sets.load(lab, "pooled_test")
    for i, name in enumerate(sets.classes):
        own = (original.shapes == i).nonzero().flatten()
        if len(own):
            pair = (one.pixels[own[0]].permute(1, 2, 0).numpy() for one in (original, flat))
            shown.append((name, *pair))
    return shown


def photographs() -> list[tuple[str, np.ndarray, np.ndarray]]:
    """Photographs that come with scikit-image, and the same mean-pooled: (title, original, pooled), [h, w, 3]."""
    shown = []
    for name in ("coffee", "astronaut", "chelsea"):
        photograph = getattr(skimage.data, name)()
        side = min(photograph.shape[:2])
        top, left = ((length - side) // 2 for length in photograph.shape[:2])
        square = Image.fromarray(photograph[top : top + side, left : left + side]).resize((224, 224))
        pixels = np.asarray(square)
        shown.append((name, pixels, mean_pool(pixels, classical_segments(pixels, scale=PHOTOGRAPH_SCALE))))
    return shown


def typical_seed(table: pd.DataFrame) -> int:
    """The seed whose transferred subnetwork has the median accuracy by shape (of an even number the lower middle).

    table: from `induced`, of one model; the base network decides where no subnetwork was transferred.
    """
    own = table[table["network"] == ("subnetwork" if "subnetwork" in set(table["network"]) else BASE)]
    return int(own.sort_values(["shape_accuracy", "seed"])["seed"].iloc[(len(own) - 1) // 2])


def answers(lab: Lab, model: str, seed: int, *, count: int = 12) -> list[dict[str, Any]]:
    """Conflict images with the answer of every network of a seed: image, shape, texture, cue by network."""
    (one,) = [one for one in models(lab) if (one.model.model, one.base.network.seed) == (model, seed)]
    images, classes = one.data.load(lab, "conflicts"), one.data.classes
    names = getattr(settings_of(lab).data, "textures", classes)
    votes = {name: artefact.tensors("votes")["conflicts"] for name, artefact in _votes(lab, one).items()}
    return [
        {
            "image": images.pixels[i].permute(1, 2, 0).numpy(),
            "shape": classes[images.shapes[i]],
            "texture": names[images.textures[i]],
            "cues": {name: _cue(vote[i], images, i) for name, vote in votes.items()},
        }
        for i in _varied(images, count)
    ]


def conflict_scores(votes: Tensor, images: ImageSet) -> dict[str, float]:
    """Accuracy by shape (mean over classes), robustness and shape bias of answers, int64 [n], to conflict images.

    Shape bias is missing (NaN) where no answer is right by either cue.
    """
    shape, texture = votes == images.shapes, votes == images.textures
    classes = [shape[images.shapes == i].double().mean() for i in images.shapes.unique()]
    decided = int(shape.sum() + texture.sum())
    return {
        "shape_accuracy": float(sum(classes) / len(classes)),
        "robustness": 1 - float(texture.double().mean()),
        "shape_bias": int(shape.sum()) / decided if decided else math.nan,
    }


def _cue(vote: Tensor, images: ImageSet, i: int) -> str:
    """Which cue an answer goes by: shape, texture or neither."""
    return {int(images.shapes[i]): "shape", int(images.textures[i]): "texture"}.get(int(vote), "neither")


def _varied(images: ImageSet, count: int) -> list[int]:
    """Numbers of images of as many classes as can be: the first of each shape, then the second, and so on."""
    by_shape = [(images.shapes == i).nonzero().flatten().tolist() for i in images.shapes.unique()]
    turns = [own[turn] for turn in range(len(images)) for own in by_shape if turn < len(own)]
    return turns[:count]


def is_comparable(lab: Lab) -> bool:
    """Whether images and networks can be the paper's: at the profile `paper`, on its photographs and its segments."""
    data = settings_of(lab).data
    return lab.study.name == "paper" and getattr(data, "segment_anything", None) is not None


def segmentation(lab: Lab) -> str:
    """What the segments of mean-pooled images come from, in words."""
    found = getattr(settings_of(lab).data, "segment_anything", None)
    return "Segment Anything" if found is not None else "Felzenszwalb and Huttenlocher's graph method"


def _rows(lab: Lab, wanted: Sequence[tuple[ModelSteps, str, Step]], label: str) -> pd.DataFrame:
    """Make steps, and a row of each. wanted: model, name of the network, step."""
    make_all(lab, [step for *_, step in wanted], label)
    return pd.DataFrame([_row(lab, *one) for one in wanted])


def _row(lab: Lab, one: ModelSteps, network: str, step: Step) -> dict[str, Any]:
    """The measures of a network from its votes, or its fault."""
    artefact = step.make(lab)
    about = one.about | {"network": network, "key": artefact.key}
    if fault := fault_of(artefact):
        return about | {"fault": fault}
    votes, sets = artefact.tensors("votes"), one.data
    by = {name: float((votes[name] == sets.load(lab, name).shapes).double().mean()) for name in ("test", "pooled_test")}
    scores = conflict_scores(votes["conflicts"], sets.load(lab, "conflicts"))
    return about | {"original": by["test"], "pooled": by["pooled_test"]} | scores


def _votes(lab: Lab, one: ModelSteps, networks: Sequence[str] | None = None) -> dict[str, Artefact]:
    """Artefacts of a model's networks by name, all or some, without those that ended with a fault."""
    mask = one.mask(one.base).taken(lab)
    steps = {BASE: one.base} | ({} if mask is None else {MASK: mask}) | one.conditions
    found = {name: step.make(lab) for name, step in steps.items() if networks is None or name in networks}
    return {name: artefact for name, artefact in found.items() if not fault_of(artefact)}
