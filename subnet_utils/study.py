"""A study: everything that a run depends on, in one validated and frozen object.

`params/<profile>.yaml` holds one top-level key, `study`, so that `papermill -f params/laptop.yaml` and
`papermill -p study params/laptop.yaml` mean the same. Unknown keys, wrong types and impossible combinations stop a run
here, before any work. Names follow the paper's symbols where it has them; units are in the field descriptions.
"""

import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import Field, ValidationError, model_validator

from subnet_utils import reference
from subnet_utils.faults import explain, fault
from subnet_utils.names import nearest
from subnet_utils.settings import (
    ROOT,
    BaseTraining,
    Bert,
    Compute,
    Controls,
    Data,
    Distinct,
    MaskedLanguageModel,
    MaskTraining,
    PositiveFloat,
    PositiveInt,
    Pruning,
    ResNet,
    Section,
    Several,
    SimCLR,
    ViT,
)
from subnet_utils.settings.arithmetic import Arithmetic
from subnet_utils.settings.images import Images
from subnet_utils.settings.inference import Inference
from subnet_utils.tasks.odd_one_out import LANGUAGE_TASKS, VISION_TASKS


class StudyError(ValueError):
    """A parameter is unknown, of the wrong type, or impossible together with the others."""


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

    @property
    def modality(self) -> str:
        """`language` or `vision`."""
        return "language" if self.architecture.family == "bert" else "vision"

    @model_validator(mode="after")
    def _fits_together(self):
        _refuse_misfits(self)
        stages = self.architecture.stages
        for start in self.masks.starts:
            if start not in stages:
                raise fault("masks.starts", f"'{start}' is not a stage of '{self.model}'; {nearest(start, stages)}")
        if self.masks.control_deviation is not None and self.architecture.family != "bert":
            raise fault("masks.control_deviation", f"is for family bert, '{self.model}' is of another; remove it")
        if self.data.mask.train == 0:
            raise fault("data.mask.train", "0 is not enough; give at least one training example")
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
    """Raise a fault if the tasks, the sizes or the images do not suit the architecture."""
    architecture, data = experiment.architecture, experiment.data
    modality, valid = ("language", LANGUAGE_TASKS) if architecture.family == "bert" else ("vision", VISION_TASKS)
    for task in experiment.tasks:
        if task not in valid:
            raise fault("tasks", f"'{task}' is not a {modality} task; {nearest(task, valid)}")
    if data.base.train == 0:
        raise fault("data.base.train", "0 is not enough; give at least one training example")
    if architecture.family == "vit" and data.resolution % architecture.patch:
        what = f"{data.resolution} is not a multiple of architecture.patch {architecture.patch}; change one of them"
        raise fault("data.resolution", what)
    if architecture.family == "resnet":
        # the last feature map must have more than one cell: instance normalization makes a single one zero
        least = 16 if architecture.small_stem else 32
        if data.resolution <= least:
            raise fault("data.resolution", f"{data.resolution} is too small for this ResNet; give more than {least}")


def _refuse_other_paper_model(name: str, modality: str) -> None:
    """A misspelt name, or that of a model for other tasks, would find no reference numbers and compare with nothing, in
    silence."""
    effects = reference.load("break_it_down_effects")
    known = tuple(effects["model"].unique())
    if name not in known:
        raise fault("paper_model", f"the paper has no model '{name}'; {nearest(name, known)}")
    of_vision = effects.groupby("model")["task"].agg(lambda tasks: tasks.isin(VISION_TASKS).all())
    fits = [model for model in known if of_vision[model] == (modality == "vision")]
    if name not in fits:
        raise fault("paper_model", f"'{name}' is not a {modality} model; {nearest(name, fits)}")


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
        raise fault("pretraining.batch_size", f"{what}; lower it")
    if family != needed:
        raise fault(
            "pretraining.method", f"{method} is for family {needed}, '{experiment.model}' is of family {family}"
        )
    if getattr(experiment.architecture, "pretrained", None) is not None:
        raise fault("pretraining", "architecture.pretrained gives weights already; remove one of the two")


def _refuse_unselected(experiment: Experiment, condition: str = "trained") -> None:
    """The authors' selected hyperparameters must exist for every task and base, and start at stages that exist."""
    table = reference.load("break_it_down_selected_masks")
    table = table[(table["condition"] == condition) & (table["model"] == experiment.paper_model)]
    for task in experiment.tasks:
        chosen = table[(table["task"] + "-" + table["number"]).str.rstrip("-") == task]
        missing = sorted(set(experiment.base.seeds) - set(chosen["base"] - 1))
        if missing:
            of = f"{'' if condition == 'trained' else condition + ' '}{task}, base seed {missing[0]}"
            raise fault("masks.search", f"the authors selected nothing for {of}; use grid")
        unknown = sorted(set(chosen["mask_start"]) - set(experiment.architecture.stages))
        if unknown:
            raise fault("masks.search", f"the authors start at '{unknown[0]}', which this network lacks; use grid")


class Study(Section):
    """A whole run: a named profile."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9_-]+$")]
    """Figures go to figures/<name>/."""
    compute: Compute = Compute()
    experiments: Several[Experiment] = ()
    """Compositional tasks: base models, masks, ablations (notebooks 01 to 06)."""
    vit_search: BaseSearch | None = None
    pretrained: Annotated[tuple[Experiment, ...], Field(strict=False)] = ()
    """Experiments whose base models start from pretrained weights (notebook 05)."""
    pruning: Pruning | None = None
    """Base models to prune before masks are looked for in them (notebook 03)."""
    controls: Controls = Controls()
    """Controls of the ablations (notebook 04)."""
    arithmetic: Arithmetic | None = None
    """Subtask induction in modular arithmetic (notebook 07)."""
    images: Images | None = None
    """Subtask induction with images (notebook 07b)."""
    inference: Inference | None = None
    """Structured pruning of a sentence-pair classifier (notebook 08)."""
    check_halving: bool = False
    """Notebook 11 also trains every setting of the search to its half, to tell what halving it would have changed."""

    @model_validator(mode="after")
    def _something_to_do(self):
        if not (self.experiments or self.arithmetic or self.images or self.inference):
            raise fault("experiments", "missing; add it, or 'arithmetic', 'images' or 'inference'")
        return self

    @model_validator(mode="after")
    def _no_pair_twice(self):
        everything = (*self.experiments, *self.pretrained)
        for name in ("model", "paper_model"):
            pairs = [(getattr(e, name), task) for e in everything for task in e.tasks]
            for pair in pairs:
                if pairs.count(pair) > 1:
                    what = f"{name} '{pair[0]}' has task '{pair[1]}' twice; each pair may stand once"
                    raise fault("experiments", what)
        return self

    @model_validator(mode="after")
    def _pretrained_apart(self):
        """Figures and tables tell pretrained from others by the list that an experiment stands in."""
        for experiment in self.experiments:
            if experiment.is_pretrained:
                raise fault(
                    "experiments", f"'{experiment.model}' starts from pretrained weights; move it to 'pretrained'"
                )
        for experiment in self.pretrained:
            if not experiment.is_pretrained:
                raise fault("pretrained", f"'{experiment.model}' has neither pretraining nor architecture.pretrained")
        return self

    @model_validator(mode="after")
    def _controls_for_masks(self):
        """Controls are made for masks that exist."""
        for seed in self.controls.seeds or ():
            for experiment in self.experiments:
                if seed not in experiment.masks.seeds:
                    what = f"{seed} is not a mask seed of '{experiment.model}'; choose among {experiment.masks.seeds}"
                    raise fault("controls.seeds", what)
        return self

    @model_validator(mode="after")
    def _something_to_prune(self):
        if self.pruning is None:
            return self
        models = tuple(experiment.model for experiment in self.experiments)
        for model in self.pruning.models:
            if model not in models:
                raise fault("pruning.models", f"no experiment '{model}'; {nearest(model, models)}")
        if not self.to_prune():
            raise fault("pruning", "no experiment has these models, tasks and seeds together; change one of them")
        for experiment in self.to_prune():
            if experiment.masks.search == "selected":
                _refuse_unselected(experiment, "pruned")
        return self

    @classmethod
    def load(cls, source: "str | Path | Mapping[str, Any] | Study") -> "Study":
        """Read a study from a profile's name, a YAML file or a mapping (with or without the top-level key `study`).

        A relative path is looked for in the working directory, then in the checkout. Raises StudyError, one line per
        fault, naming the key, what is wrong and the nearest valid name.

        >>> Study.load("tiny").name
        'tiny'
        """
        if isinstance(source, Study):
            return source
        values = source if isinstance(source, Mapping) else _read(source)
        if "study" in values:
            beside = [str(key) for key in values if key != "study"]
            if beside:
                raise StudyError(f"{beside[0]}: unknown key beside 'study'; move it into 'study' or remove it")
            values = values["study"]
        if not isinstance(values, Mapping):
            raise StudyError(f"study: {reprlib.repr(values)} is not valid; give a mapping of keys such as 'name'")
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise StudyError("\n".join(explain(cls, error))) from None

    def pairs(self) -> list[tuple[Experiment, str]]:
        """Every (experiment, task) of the study, in order."""
        return [(experiment, task) for experiment in self.experiments for task in experiment.tasks]

    @property
    def names_files(self) -> bool:
        """Whether the study starts from data or published weights that have to be there."""
        own = [getattr(experiment.architecture, "pretrained", None) for experiment in self.pretrained]
        if self.images is not None:
            own += [self.images.folders, *(model.architecture.pretrained for model in self.images.models)]
        if self.inference is not None:
            own += [self.inference.files, getattr(self.inference.architecture, "weights", None)]
        return any(own)

    def to_prune(self) -> tuple[Experiment, ...]:
        """The experiments cut down to the base models that are pruned; none if the study prunes nothing."""
        wanted, only = self.pruning, []
        for experiment, task in self.pairs() if wanted else ():
            seeds = tuple(s for s in experiment.base.seeds if wanted.seeds is None or s in wanted.seeds)
            if experiment.model in wanted.models and task in wanted.tasks and seeds:
                base = experiment.base.model_copy(update={"seeds": seeds})
                only.append(experiment.model_copy(update={"tasks": (task,), "base": base}))
        return tuple(only)

    def parts(self) -> list[str]:
        """Names of the parts into which a study can be cut, `model/task/seed`: all that hangs on one base model."""
        everything = (*self.experiments, *self.pretrained)
        return [f"{e.model}/{task}/{seed}" for e in everything for task in e.tasks for seed in e.base.seeds]

    def part(self, name: str) -> "Study":
        """The study of one base model: its artefacts are those of the whole. Raises StudyError for an unknown part."""
        if name not in self.parts():
            raise StudyError(f"no part '{name}' of profile '{self.name}'; {nearest(name, self.parts())}")
        model, task, seed = name.split("/")
        everything = (*self.experiments, *self.pretrained)
        (experiment,) = [e for e in everything if e.model == model and task in e.tasks]
        base = experiment.base.model_copy(update={"seeds": (int(seed),)})
        only = experiment.model_copy(update={"tasks": (task,), "base": base})
        return self.model_copy(update={"experiments": (only,), "pretrained": (), "vit_search": None})


class _Loader(yaml.SafeLoader):
    """YAML as `safe_load` reads it, but a key that stands twice is a fault: of two values the last would count."""

    def compose_mapping_node(self, anchor: str | None) -> yaml.MappingNode:
        """A mapping as it is written, before anything is merged into it."""
        node = super().compose_mapping_node(anchor)
        keys = [key for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        for i, key in enumerate(keys):
            if key.value in [before.value for before in keys[:i]]:
                what = f"key '{key.value}' stands twice in one section; remove one"
                raise yaml.constructor.ConstructorError(None, None, what, key.start_mark)
        return node


def _read(source: str | Path) -> Mapping[str, Any]:
    path = _locate(source)
    try:
        values = _Loader(path.read_text(encoding="utf-8")).get_single_data()
    except yaml.MarkedYAMLError as error:
        raise StudyError(f"{path.name}, line {error.problem_mark.line + 1}: not valid YAML, {error.problem}") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise StudyError(f"{path.name} cannot be read as YAML: {str(error).splitlines()[0]}") from None
    if not isinstance(values, Mapping):
        raise StudyError(f"{path.name} holds no mapping; it must have one top-level key, 'study'")
    return values


def _locate(source: str | Path) -> Path:
    """The file of a profile: a bare name means params/<name>.yaml."""
    if not isinstance(source, str | Path):
        raise StudyError(f"study: {source!r} is not valid; give the name of a profile, a YAML file or a mapping")
    name = str(source) if str(source).endswith((".yaml", ".yml")) else f"params/{source}.yaml"
    for folder in (Path.cwd(), ROOT):
        if (folder / name).is_file():
            return folder / name
    profiles = sorted(path.stem for path in (ROOT / "params").glob("*.yaml"))
    raise StudyError(f"no profile '{source}'; {nearest(Path(source).stem, profiles)}")
