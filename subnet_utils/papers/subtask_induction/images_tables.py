"""Tables and figures' data of subtask induction with images (*Instilling Inductive Biases*, section 5, appendix C).

What is made, and in which order, is in `image_steps`; here its votes become accuracies. Shape bias, after Geirhos et
al. (2019), is the share of shape among those answers to cue-conflict images that are right by either cue.
"""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pandas as pd
import skimage
from PIL import Image
from torch import Tensor

from subnet_utils.core.jobs import run_jobs
from subnet_utils.core.lab import Lab, make_all
from subnet_utils.core.store import Artefact
from subnet_utils.papers.subtask_induction import reference
from subnet_utils.papers.subtask_induction.arithmetic_tables import interval
from subnet_utils.papers.subtask_induction.image_sets import POOLED, SETS, data_spec, image_set, settings_of
from subnet_utils.papers.subtask_induction.image_steps import (
    ImageBase,
    Induced,
    ShapeMask,
    chosen_shape_mask,
    find_shape_mask,
    induce,
    train_image_base,
)
from subnet_utils.papers.subtask_induction.images_section import Folders, ImageModel, Images
from subnet_utils.report.comparison import AGREES, DIFFERS, NOT_COMPARABLE
from subnet_utils.tasks.images import ImageSet, classical_segments, mean_pool
from subnet_utils.training import TrainingDiverged

MEASURES = ("original", "pooled", "shape_accuracy", "robustness", "shape_bias")
"""Accuracy on ordinary and on mean-pooled test images; on conflict images accuracy by shape (mean over classes), share
of answers that are not the texture's, and shape bias."""
BASE, MASK = "base", "mask"
"""Names of the base network and of its subnetwork, beside those of the conditions."""
PHOTOGRAPH_SCALE = Folders.model_fields["segment_scale"].default
ABOUT = ["model", "seed", "network"]


def open_images(lab: Lab) -> Images:
    """The image section of a study, its folders and published weights looked at before any work.

    Raises ImageError for a folder that lacks classes or images, WeightsError for weights that cannot be had.
    """
    settings = settings_of(lab)
    data_spec(lab)
    for base in _bases(lab):
        base.spec(lab)
    return settings


def prepare(lab: Lab) -> None:
    """Make all sets of images: ordinary ones first, then the mean-pooled ones."""
    settings_of(lab)
    for names in ((*SETS, "mask"), tuple(POOLED)):
        run_jobs(_make_set, [(lab, name) for name in names], compute=lab.study.compute, label="images")


def bases(lab: Lab) -> pd.DataFrame:
    """The base networks: a row each with the measures."""
    prepare(lab)
    wanted = _bases(lab)
    made = make_all(lab, "image_base", train_image_base, wanted, "base networks")
    return pd.DataFrame([_row(lab, one, BASE, artefact) for one, artefact in zip(wanted, made, strict=True)])


def masks(lab: Lab) -> pd.DataFrame:
    """Every mask that was tried, in base networks and in untrained ones: measures, density, and which is taken."""
    bases(lab)
    untrained = [ImageBase(one.model, one.seed, untrained=True) for one in _bases(lab)]
    make_all(lab, "image_base", train_image_base, untrained, "untrained networks")
    wanted = [ShapeMask(base, l0) for base in [*_bases(lab), *untrained] for l0 in base.model.masks.l0]
    made = make_all(lab, "shape_mask", find_shape_mask, wanted, "shape masks")
    rows = []
    for mask, artefact in zip(wanted, made, strict=True):
        result = artefact.json("result")
        about = {"condition": "random" if mask.base.untrained else "trained", "l0": mask.l0}
        own = {"fault": result["fault"]} if "fault" in result else {"density": result["active"] / result["total"]}
        chosen = "fault" not in result and mask == chosen_shape_mask(lab, mask.base)  # else there may be none
        rows.append(_row(lab, mask.base, MASK, artefact) | about | own | {"chosen": chosen})
    return pd.DataFrame(rows)


def induced(lab: Lab) -> pd.DataFrame:
    """All networks: base, subnetwork alone, and those trained under each condition; a row each with the measures."""
    found = masks(lab)
    alone = found[found["chosen"] & (found["condition"] == "trained")]
    wanted = [Induced(base, condition) for base in _bases(lab) for condition in base.model.conditions]
    made = make_all(lab, "induced", induce, wanted, "induced networks")
    rows = [_row(lab, one.base, one.condition, artefact) for one, artefact in zip(wanted, made, strict=True)]
    table = pd.concat(
        [bases(lab), alone.reindex(columns=["paper_model", *ABOUT, *MEASURES, "key"]), pd.DataFrame(rows)],
        ignore_index=True,
    )
    for _, row in table[table.get("fault", pd.Series(index=table.index)).notna()].iterrows():
        print(f"{row['model']}, seed {row['seed']}, {row['network']}: {row['fault']}")
    return table.dropna(subset=["original"])


def table_1(table: pd.DataFrame, *, comparable: bool) -> pd.DataFrame:
    """Mean and 95% interval over seeds of every measure, for every network, beside the paper's number. From `induced`.

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
                **_beside(group[measure], float(paper.iloc[0]) if len(paper) else math.nan, comparable=comparable),
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
                        | _beside(values, paper, comparable=comparable))  # fmt: skip
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
                mean, low, high = interval(difference) if len(difference) else (math.nan,) * 3
                rows.append({"model": model, "measure": measure, "baseline": network, "ahead": mean,
                             "low": low, "high": high, "n_runs": len(difference)})  # fmt: skip
    return pd.DataFrame(rows)


def dynamics(lab: Lab, conditions: Sequence[str] = ("subnetwork", "random", "scratch")) -> pd.DataFrame:
    """Validation accuracy after every epoch of training (Figure 5), on ordinary and on mean-pooled images."""
    frames = []
    for base in _bases(lab):
        for condition in [one for one in conditions if one in base.model.conditions]:
            artefact = induce(lab, Induced(base, condition))
            if "fault" not in artefact.json("result"):
                about = {"model": base.model.model, "seed": base.seed, "network": condition}
                frames.append(artefact.table("history").assign(**about))
    return pd.concat(frames, ignore_index=True)


def discovery(lab: Lab) -> pd.DataFrame:
    """Accuracy of thresholded masks on pooled validation images after every epoch, trained and untrained (Figure 11).

    With it `base`, that of the whole trained network.
    """
    frames = []
    for one in _bases(lab):
        epochs = train_image_base(lab, one).table("history")
        whole = epochs["pooled_accuracy"][epochs["validation_accuracy"].idxmax()]  # of the epoch that was kept
        for base in (one, ImageBase(one.model, one.seed, untrained=True)):
            try:
                artefact = find_shape_mask(lab, chosen_shape_mask(lab, base))
            except TrainingDiverged:  # none of this base's masks came to its end; the table of masks says so
                continue
            about = {"model": one.model.model, "seed": one.seed, "condition": "random" if base.untrained else "trained"}
            frames.append(artefact.table("history")[["epoch", "validation_accuracy"]].assign(**about, base=whole))
    return pd.concat(frames, ignore_index=True)


def by_class(lab: Lab, *, networks: Sequence[str] = (BASE, "subnetwork")) -> pd.DataFrame:
    """Accuracy on mean-pooled test images class by class, a row for every network, seed and class (appendix C.3)."""
    images, classes = image_set(lab, "pooled_test"), settings_of(lab).data.classes
    rows = []
    for base in _bases(lab):
        for network in networks:
            artefact = train_image_base(lab, base) if network == BASE else induce(lab, Induced(base, network))
            if "fault" in artefact.json("result"):
                continue
            right = artefact.tensors("votes")["pooled_test"] == images.shapes
            for i, name in enumerate(classes):
                own = right[images.shapes == i]
                rows.append({"model": base.model.model, "seed": base.seed, "network": network, "class": name,
                             "accuracy": float(own.double().mean()) if len(own) else math.nan})  # fmt: skip
    return pd.DataFrame(rows)


def examples(lab: Lab) -> list[tuple[str, np.ndarray, np.ndarray]]:
    """The first test image of every class and the same mean-pooled (Figure 4): (class, original, pooled), [h, w, 3]."""
    original, flat = image_set(lab, "test"), image_set(lab, "pooled_test")
    shown = []
    for i, name in enumerate(settings_of(lab).data.classes):
        places = (original.shapes == i).nonzero().flatten()
        if len(places):
            pair = (one.pixels[places[0]].permute(1, 2, 0).numpy() for one in (original, flat))
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


def ballots(lab: Lab, model: str, seed: int, *, count: int = 12) -> list[dict[str, Any]]:
    """Conflict images with the vote of every network of a seed: image, shape, texture, votes by network."""
    images, classes = image_set(lab, "conflicts"), settings_of(lab).data.classes
    (base,) = [one for one in _bases(lab) if one.model.model == model and one.seed == seed]
    made = {BASE: train_image_base(lab, base)}
    with suppress(TrainingDiverged):  # none of this base's masks came to its end; the table of masks says so
        made[MASK] = find_shape_mask(lab, chosen_shape_mask(lab, base))
    made |= {condition: induce(lab, Induced(base, condition)) for condition in base.model.conditions}
    votes = {name: artefact.tensors("votes")["conflicts"] for name, artefact in made.items()
             if "fault" not in artefact.json("result")}  # fmt: skip
    return [
        {
            "image": images.pixels[i].permute(1, 2, 0).numpy(),
            "shape": classes[images.shapes[i]],
            "texture": getattr(settings_of(lab).data, "textures", classes)[images.textures[i]],
            "votes": {name: _cue(vote[i], images, i) for name, vote in votes.items()},
        }
        for i in _varied(images, count)
    ]


def measured(lab: Lab, artefact: Artefact) -> dict[str, float]:
    """The measures of a network from its votes."""
    votes = artefact.tensors("votes")
    conflicts = image_set(lab, "conflicts")
    by = {name: float((votes[name] == image_set(lab, name).shapes).double().mean()) for name in ("test", "pooled_test")}
    return {"original": by["test"], "pooled": by["pooled_test"]} | conflict_scores(votes["conflicts"], conflicts)


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
    places = {int(i): (images.shapes == i).nonzero().flatten().tolist() for i in images.shapes.unique()}
    turns = [own[turn] for turn in range(len(images)) for own in places.values() if turn < len(own)]
    return turns[:count]


def _beside(values: pd.Series, paper: float, *, comparable: bool) -> dict[str, Any]:
    """The paper's number, ours with its interval over the runs that have one, and the verdict."""
    values = values.dropna()
    mean, low, high = interval(values) if len(values) else (math.nan,) * 3
    judged = comparable and not math.isnan(paper + low)
    verdict = (AGREES if low <= paper <= high else DIFFERS) if judged else NOT_COMPARABLE
    return {"paper": paper, "ours": mean, "ours_low": low, "ours_high": high, "n_runs": len(values), "verdict": verdict}


def is_comparable(lab: Lab) -> bool:
    """Whether images and networks can be the paper's: at the profile `paper`, on its photographs and its segments."""
    data = settings_of(lab).data
    return lab.study.name == "paper" and getattr(data, "segment_anything", None) is not None


def segmentation(lab: Lab) -> str:
    """What the segments of mean-pooled images come from, in words."""
    found = getattr(settings_of(lab).data, "segment_anything", None)
    return "Segment Anything" if found is not None else "Felzenszwalb and Huttenlocher's graph method"


def _bases(lab: Lab) -> list[ImageBase]:
    return [ImageBase(model, seed) for model in settings_of(lab).models for seed in model.seeds]


def _row(lab: Lab, base: ImageBase, network: str, artefact: Artefact) -> dict[str, Any]:
    about: Mapping[str, Any] = _about(base.model) | {"seed": base.seed, "network": network, "key": artefact.key}
    fault = artefact.json("result").get("fault")
    return dict(about) | ({"fault": fault} if fault else measured(lab, artefact))


def _about(model: ImageModel) -> dict[str, str]:
    return {"model": model.model, "paper_model": model.paper_model}


def _make_set(lab: Lab, name: str) -> None:
    image_set(lab, name)
