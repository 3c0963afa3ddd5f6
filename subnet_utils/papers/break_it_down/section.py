"""The section of a study for *Break It Down*: architectures, data, training, masks, controls."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from subnet_utils.core.messages import invalid, nearest
from subnet_utils.core.sections import Distinct, PositiveFloat, PositiveInt, Section, Seed, Seeds, Several
from subnet_utils.masks.masking import ContinuousSparsification, any_masking, methods_fit
from subnet_utils.models.architectures import Bert, ResNet, ViT
from subnet_utils.papers.break_it_down import reference
from subnet_utils.tasks.odd_one_out import LANGUAGE_TASKS, VISION_TASKS
from subnet_utils.training import Training


class Sizes(Section):
    """Examples per split."""

    train: Annotated[int, Field(ge=0)] = 0
    validation: PositiveInt
    test: PositiveInt


class Data(Section):
    """How much data, and which."""

    base: Sizes
    mask: Sizes
    probe: Sizes
    resolution: Annotated[int, Field(ge=32)] = 128
    """Side of an image, pixels (vision)."""
    shape_sizes: Literal["ours", "authors"] = "ours"
    """Under the number rules (vision): the authors' vary more, and need a resolution of 128."""
    seed: Seed = 0
    as_printed: bool = False
    """Sample language sets as the authors did: mask sets overlap base and probe sentences."""

    @model_validator(mode="after")
    def _shapes_fit(self):
        if self.shape_sizes == "authors" and self.resolution < 128:
            raise invalid("shape_sizes", f"'authors' do not fit into {self.resolution} pixels; take 128 or 'ours'")
        return self


class BaseTraining(Training):
    """Training of the base models (appendix A): Adam without weight decay, best validation loss kept."""

    learning_rate: PositiveFloat
    batch_size: PositiveInt
    patience: PositiveInt | None = 75
    seeds: Seeds = (0, 1, 2)
    flips: bool = False
    """Mirror images at random while training (vision); the paper does not."""


class _MaskSearch(Section):
    """Continuous sparsification with several settings (appendices B and C)."""

    learning_rates: Distinct[PositiveFloat] = (0.01, 0.0001)
    inits: Distinct[float] = (0.1, 0.05, 0.0, -0.05)
    epochs: PositiveInt = 90
    batch_size: PositiveInt = 64
    masking: any_masking() = ContinuousSparsification()
    """The method. Of one that trains logits the search sets `start_value`."""


class MaskTraining(_MaskSearch):
    """The search for masks of the subroutines."""

    search: Literal["grid", "halving", "selected"] = "grid"
    """grid: the paper's search, by its rule; halving: the same, but after half of the epochs only the better half of
    the settings goes on (successive halving, one rung); selected: the hyperparameters that the authors chose."""
    starts: Distinct[str]
    """Stages to start masking at."""
    search_seed: Seed = 0
    seeds: Seeds = (0, 1, 2)
    control_l0: Annotated[float, Field(ge=0)] | None = None
    """lambda of the masks over untrained networks; None: the same. The gradients of an untrained network are small: a
    lambda above the paper's can outweigh them, and leaves empty masks that say nothing."""
    control_deviation: PositiveFloat | None = None
    """Of the weights of these untrained networks (BERT); None: the architecture's. See `Bert.deviation`."""
    as_printed: bool = False
    """Keep the MLP head's temperature at 1, as in the authors' run (vision)."""


class SimCLR(Training):
    """Contrastive pretraining of a ResNet on the images of the three rules (section 8, appendix G)."""

    method: Literal["simclr"]
    learning_rate: PositiveFloat = 0.0005
    final_share: Annotated[float, Field(gt=0, le=1)] = 0.02
    batch_size: Annotated[int, Field(ge=4, multiple_of=2)] = 256
    """Images, half of them breaking their rule; each gives two views."""
    temperature: PositiveFloat = 0.07
    tasks: Distinct[Literal[VISION_TASKS]] = VISION_TASKS
    """Whose base sets give the images."""
    seed: Seed = 0


class MaskedLanguageModel(Training):
    """Pretraining of a BERT on grammatical sentences of the templates: what a study can do without a model hub.

    The paper starts from BERT-small's published weights instead; see `Bert.pretrained`.
    """

    method: Literal["masked_language_model"]
    learning_rate: PositiveFloat = 0.0005
    batch_size: PositiveInt = 64
    epochs: PositiveInt = 10
    sentences: PositiveInt = 20000
    """Distinct sentences at most, all from training splits."""
    tasks: Distinct[Literal[LANGUAGE_TASKS]] = LANGUAGE_TASKS
    """Whose base sets give the sentences."""
    seed: Seed = 0


class Pruning(_MaskSearch):
    """Continuous sparsification of a whole base model on its own task (appendix J), before masks are looked for in it.

    Of the settings that keep 90% on validation data the one with the fewest weights is taken, else the most accurate.
    """

    models: Distinct[str]
    """Names of experiments."""
    tasks: Distinct[Literal[VISION_TASKS + LANGUAGE_TASKS]]
    seeds: Seeds | None = None
    """Of the base models to prune; None: all that the experiments have."""
    examples: PositiveInt | None = None
    """Of the base training set; None: all of it."""


class Controls(Section):
    """Controls of the ablations (appendix I and beyond)."""

    draws: PositiveInt = 99
    """Random subnetworks for each discovered one, of its size and once more in its complement; the smallest possible
    permutation p-value is 1 / (draws + 1)."""
    seeds: Seeds | None = None
    """Of the masks for which there are controls; None: all."""
    l0_factors: Distinct[PositiveFloat] | None = None
    """What lambda is multiplied by for masks of other sizes, whose ablations stand beside those of the masks found with
    lambda itself; none: no such masks."""
    as_printed: bool = False
    """The same three untrained networks under every base model, one for each mask seed, as in the authors' run."""


class Experiment(Section):
    """One architecture on one or more tasks: bases, masks, ablations."""

    model: Annotated[str, Field(pattern=r"^[a-z0-9_]+$")]
    """Name in our tables."""
    paper_model: str
    """Name of the paper's model that this one is compared with."""
    architecture: Annotated[Bert | ResNet | ViT, Field(discriminator="family")]
    tasks: Distinct[str]
    data: Data
    base: BaseTraining
    masks: MaskTraining
    pretraining: Annotated[SimCLR | MaskedLanguageModel, Field(discriminator="method")] | None = None
    """What the base models start from, instead of weights drawn at random."""

    @property
    def is_pretrained(self) -> bool:
        """Whether the base models start from pretrained weights, their own or published ones."""
        return self.pretraining is not None or getattr(self.architecture, "pretrained", None) is not None

    modality = property(lambda self: self.architecture.modality)

    @model_validator(mode="after")
    def _fits_together(self):
        _refuse_misfits(self)
        methods_fit(self)
        stages = self.architecture.stages
        for start in self.masks.starts:
            if start not in stages:
                raise invalid("masks.starts", f"'{start}' is not a stage of '{self.model}'; {nearest(start, stages)}")
        if self.masks.control_deviation is not None and self.architecture.family != "bert":
            raise invalid("masks.control_deviation", f"is for family bert, '{self.model}' is of another; remove it")
        if self.data.mask.train == 0:
            raise invalid("data.mask.train", "0 is not enough; give at least one training example")
        _refuse_other_paper_model(self.paper_model, self.modality)
        _refuse_unsuited_pretraining(self)
        if self.masks.search == "selected":
            _refuse_unselected(self)
        return self


class BaseSearch(Section):
    """A sweep over the base model's hyperparameters without masks (appendix D, Table 4)."""

    model: Annotated[str, Field(pattern=r"^[a-z0-9_]+$")]
    paper_model: str = "vit"
    architecture: ViT
    tasks: Distinct[str]
    data: Data
    base: BaseTraining
    layers: Distinct[PositiveInt]
    learning_rates: Distinct[PositiveFloat]
    batch_sizes: Distinct[PositiveInt]

    @model_validator(mode="after")
    def _fits_together(self):
        _refuse_misfits(self)
        return self


def _refuse_misfits(experiment: "Experiment | BaseSearch") -> None:
    """Raise an error if the tasks, the sizes or the images do not suit the architecture."""
    architecture, data = experiment.architecture, experiment.data
    valid = LANGUAGE_TASKS if architecture.modality == "language" else VISION_TASKS
    for task in experiment.tasks:
        if task not in valid:
            raise invalid("tasks", f"'{task}' is not a {architecture.modality} task; {nearest(task, valid)}")
    if data.base.train == 0:
        raise invalid("data.base.train", "0 is not enough; give at least one training example")
    if architecture.family == "vit" and data.resolution % architecture.patch:
        what = f"{data.resolution} is not a multiple of architecture.patch {architecture.patch}; change one of them"
        raise invalid("data.resolution", what)
    if architecture.family == "resnet":
        # the last feature map must have more than one cell: instance normalization makes a single one zero
        least = 16 if architecture.small_stem else 32
        if data.resolution <= least:
            raise invalid("data.resolution", f"{data.resolution} is too small for this ResNet; give more than {least}")


def _refuse_other_paper_model(name: str, modality: str) -> None:
    """A misspelt name, or that of a model for other tasks, would compare with nothing, in silence."""
    effects = reference.load("effects")
    fits = effects.loc[effects["task"].isin(VISION_TASKS) == (modality == "vision"), "model"].unique().tolist()
    if name not in fits:
        raise invalid("paper_model", f"the paper has no {modality} model '{name}'; {nearest(name, fits)}")


def _refuse_unsuited_pretraining(experiment: "Experiment") -> None:
    """Contrastive pretraining is for ResNets, a masked language model for a BERT without weights of its own."""
    if experiment.pretraining is None:
        return
    method, family = experiment.pretraining.method, experiment.architecture.family
    needed = {"simclr": "resnet", "masked_language_model": "bert"}[method]
    sizes = experiment.data.base
    name = "train" if sizes.train < sizes.validation else "validation"
    fewest = getattr(sizes, name)
    if method == "simclr" and experiment.pretraining.batch_size > 2 * fewest * len(experiment.pretraining.tasks):
        what = f"{experiment.pretraining.batch_size} images are more than {fewest} {name} examples a task give"
        raise invalid("pretraining.batch_size", f"{what}; lower it")
    if family != needed:
        raise invalid(
            "pretraining.method", f"{method} is for family {needed}, '{experiment.model}' is of family {family}"
        )
    if getattr(experiment.architecture, "pretrained", None) is not None:
        raise invalid("pretraining", "architecture.pretrained gives weights already; remove one of the two")


def _refuse_unselected(experiment: Experiment, condition: str = "trained") -> None:
    """The authors' selected hyperparameters must exist for every task and base, and start at stages that exist."""
    table = reference.load("selected_masks")
    table = table[(table["condition"] == condition) & (table["model"] == experiment.paper_model)]
    for task in experiment.tasks:
        chosen = table[(table["task"] + "-" + table["number"]).str.rstrip("-") == task]
        missing = sorted(set(experiment.base.seeds) - set(chosen["base"] - 1))
        if missing:
            of = f"{'' if condition == 'trained' else condition + ' '}{task}, base seed {missing[0]}"
            raise invalid("masks.search", f"the authors selected nothing for {of}; use grid")
        unknown = sorted(set(chosen["mask_start"]) - set(experiment.architecture.stages))
        if unknown:
            raise invalid("masks.search", f"the authors start at '{unknown[0]}', which this network lacks; use grid")


class BreakItDown(Section):
    """Compositional tasks: base models, masks, ablations (notebooks 01 to 06)."""

    experiments: Several[Experiment]
    """Base models, masks, ablations."""
    vit_search: BaseSearch | None = None
    pretrained: Annotated[tuple[Experiment, ...], Field(strict=False)] = ()
    """Experiments whose base models start from pretrained weights (notebook 05)."""
    pruning: Pruning | None = None
    """Base models to prune before masks are looked for in them (notebook 03)."""
    controls: Controls = Controls()
    """Controls of the ablations (notebooks 04 and 04b)."""
    check_halving: bool = False
    """Notebook 11 also trains every setting of the search to its half, to tell what halving it would have changed."""

    @model_validator(mode="after")
    def _no_pair_twice(self):
        everything = (*self.experiments, *self.pretrained)
        for name in ("model", "paper_model"):
            pairs = [(getattr(e, name), task) for e in everything for task in e.tasks]
            for pair in pairs:
                if pairs.count(pair) > 1:
                    what = f"{name} '{pair[0]}' has task '{pair[1]}' twice; each pair may stand once"
                    raise invalid("experiments", what)
        return self

    @model_validator(mode="after")
    def _pretrained_in_one_list(self):
        """Figures and tables tell pretrained from others by the list that an experiment stands in."""
        for experiment in self.experiments:
            if experiment.is_pretrained:
                raise invalid(
                    "experiments", f"'{experiment.model}' starts from pretrained weights; move it to 'pretrained'"
                )
        for experiment in self.pretrained:
            if not experiment.is_pretrained:
                raise invalid("pretrained", f"'{experiment.model}' has neither pretraining nor architecture.pretrained")
        return self

    @model_validator(mode="after")
    def _controls_for_masks(self):
        """Controls are made for masks that exist."""
        for seed in self.controls.seeds or ():
            for experiment in self.experiments:
                if seed not in experiment.masks.seeds:
                    what = f"{seed} is not a mask seed of '{experiment.model}'; choose among {experiment.masks.seeds}"
                    raise invalid("controls.seeds", what)
        return self

    @model_validator(mode="after")
    def _something_to_prune(self):
        if self.pruning is None:
            return self
        models = tuple(experiment.model for experiment in self.experiments)
        for model in self.pruning.models:
            if model not in models:
                raise invalid("pruning.models", f"no experiment '{model}'; {nearest(model, models)}")
        if not self.to_prune():
            raise invalid("pruning", "no experiment has these models, tasks and seeds together; change one of them")
        for experiment in self.to_prune():
            if experiment.masks.search == "selected":
                _refuse_unselected(experiment, "pruned")
        return self

    def to_prune(self) -> tuple[Experiment, ...]:
        """The experiments cut down to the base models that are pruned; none if the study prunes nothing."""
        pruning, only = self.pruning, []
        pairs = [(experiment, task) for experiment in self.experiments for task in experiment.tasks]
        for experiment, task in pairs if pruning else ():
            seeds = tuple(s for s in experiment.base.seeds if pruning.seeds is None or s in pruning.seeds)
            if experiment.model in pruning.models and task in pruning.tasks and seeds:
                base = experiment.base.model_copy(update={"seeds": seeds})
                only.append(experiment.model_copy(update={"tasks": (task,), "base": base}))
        return tuple(only)
