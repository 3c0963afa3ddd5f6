"""A study: everything that a run depends on, in one validated and frozen object.

`params/<profile>.yaml` holds one top-level key, `study`, so that `papermill -f params/laptop.yaml` and
`papermill -p study params/laptop.yaml` mean the same. Unknown keys, wrong types and impossible combinations stop a run
here, before any work. Names follow the paper's symbols where it has them; units are in the field descriptions.
"""

import reprlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, Strict, ValidationError, model_validator
from pydantic.functional_validators import AfterValidator, PlainValidator

from subnet_utils import reference
from subnet_utils.faults import auto_or_positive, distinct, explain, fault, not_empty
from subnet_utils.names import nearest
from subnet_utils.tasks.odd_one_out import LANGUAGE_TASKS, VISION_TASKS

ROOT = Path(__file__).resolve().parent.parent
"""The checkout: params/, artifacts/, figures/ and runs/ lie here, whatever the working directory."""

T = TypeVar("T")
Several = Annotated[tuple[T, ...], Strict(False), AfterValidator(not_empty)]
Distinct = Annotated[Several[T], AfterValidator(distinct)]
PositiveInt = Annotated[int, Field(gt=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
Seeds = Distinct[Annotated[int, Field(ge=0)]]


class StudyError(ValueError):
    """A parameter is unknown, of the wrong type, or impossible together with the others."""


class Section(BaseModel):
    """A part of a study: frozen, strictly typed, without unknown keys, NaN or infinities."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Compute(Section):
    """Where and how to compute. Nothing here changes what is computed beyond rounding."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of the matrix products in training; auto = bfloat16 on GPUs and on CPUs with AVX512-BF16.
    Evaluation is always in float32: accuracies can ride on tiny logit gaps."""
    threads: PositiveInt = 1
    """CPU threads of one job. One thread a job, many jobs at a time, is the fastest for small networks."""
    workers: Annotated[Literal["auto"] | int, PlainValidator(auto_or_positive)] = "auto"
    """Jobs (bases, masks) at a time; auto = CPU cores / threads, or 1 on a GPU."""
    masks_at_once: Annotated[Literal["auto"] | int, PlainValidator(auto_or_positive)] = "auto"
    """Masks of one base model trained as one computation; auto = 1 on a CPU and for ResNets, else as many as half of
    the GPU's memory holds by a rough count, at most 24."""
    cache_limit_gb: PositiveFloat = 4.0
    """Cache of frozen prefixes' outputs, GiB a job, besides those in use; what does not fit is recomputed."""


def _heads_divide_width(architecture: "Bert | ViT") -> "Bert | ViT":
    if architecture.width % architecture.heads:
        what = f"{architecture.width} is not a multiple of heads {architecture.heads}; change one of them"
        raise fault("width", what)
    return architecture


class Bert(Section):
    """A BERT encoder; the paper's BERT-small is 4 layers, width 512, 8 heads, MLP width 2048."""

    family: Literal["bert"]
    layers: PositiveInt = 4
    width: PositiveInt = 512
    heads: PositiveInt = 8
    mlp_width: PositiveInt = 2048
    pretrained: str | None = None
    """Folder (or hub name) to take weights and tokenizer from."""

    _widths = model_validator(mode="after")(_heads_divide_width)

    @property
    def stages(self) -> tuple[str, ...]:
        """Stages at which masking may start."""
        return (*(f"layer_{i}" for i in range(1, self.layers + 1)), "pooler")


class ResNet(Section):
    """A four-stage ResNet, instance-normalized, with an embedding MLP; in the paper bottleneck 3-4-6-3, width 64."""

    family: Literal["resnet"]
    block: Literal["basic", "bottleneck"] = "bottleneck"
    depths: Annotated[tuple[PositiveInt, PositiveInt, PositiveInt, PositiveInt], Strict(False)] = (3, 4, 6, 3)
    width: PositiveInt = 64
    width_factor: PositiveInt = 1
    head_width: PositiveInt = 2048
    embedding: PositiveInt = 128
    small_stem: bool = False
    """A 3x3 stem without pooling instead of the 7x7 one, for small images."""

    @property
    def stages(self) -> tuple[str, ...]:
        """Stages at which masking may start."""
        return ("stem", "stage_1", "stage_2", "stage_3", "stage_4", "head")

    @model_validator(mode="after")
    def _wide_bottlenecks(self):
        if self.block == "basic" and self.width_factor != 1:
            raise fault("width_factor", f"{self.width_factor} needs block bottleneck; basic blocks have no inner width")
        return self


class ViT(Section):
    """A vision transformer with an embedding MLP; the paper's are 6 and 12 layers, width 768, 12 heads, patch 16."""

    family: Literal["vit"]
    layers: PositiveInt = 6
    width: PositiveInt = 768
    heads: PositiveInt = 12
    mlp_width: PositiveInt = 3072
    patch: PositiveInt = 16
    head_width: PositiveInt = 2048
    embedding: PositiveInt = 128

    _widths = model_validator(mode="after")(_heads_divide_width)

    @property
    def stages(self) -> tuple[str, ...]:
        """Stages at which masking may start."""
        return ("patches", *(f"layer_{i}" for i in range(1, self.layers + 1)), "head")


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
    seed: Annotated[int, Field(ge=0)] = 0
    as_printed: bool = False
    """Sample language sets as the authors did: mask sets overlap base and probe sentences."""


class BaseTraining(Section):
    """Training of the base models (appendix A): Adam without weight decay, best validation loss kept."""

    learning_rate: PositiveFloat
    batch_size: PositiveInt
    epochs: PositiveInt = 100
    patience: PositiveInt = 75
    """Epochs without a better validation loss before training stops."""
    seeds: Seeds = (0, 1, 2)
    flips: bool = False
    """Mirror images at random while training (vision); the paper does not."""


class MaskTraining(Section):
    """Continuous sparsification (appendices B and C)."""

    search: Literal["grid", "halving", "selected"] = "grid"
    """grid: the paper's search, by its rule; halving: the same, but after half of the epochs only the better half of
    the settings goes on (successive halving, one rung); selected: the hyperparameters that the authors chose."""
    learning_rates: Distinct[PositiveFloat] = (0.01, 0.0001)
    inits: Distinct[float] = (0.1, 0.05, 0.0, -0.05)
    starts: Distinct[str]
    """Stages to start masking at."""
    search_seed: Annotated[int, Field(ge=0)] = 0
    seeds: Seeds = (0, 1, 2)
    epochs: PositiveInt = 90
    batch_size: PositiveInt = 64
    beta_max: Annotated[float, Field(ge=1)] = 200.0
    l0: Annotated[float, Field(ge=0)] = 1e-8
    """lambda, the weight of the sum of soft mask entries in the loss."""
    as_printed: bool = False
    """Keep the MLP head's temperature at 1, as in the authors' run (vision)."""


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
        if self.data.mask.train == 0:
            raise fault("data.mask.train", "0 is not enough; give at least one training example")
        _refuse_unknown_paper_model(self.paper_model)
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


def _refuse_unknown_paper_model(name: str) -> None:
    """A misspelt name would find no reference numbers and compare with nothing, in silence."""
    known = tuple(reference.load("break_it_down_effects")["model"].unique())
    if name not in known:
        raise fault("paper_model", f"the paper has no model '{name}'; {nearest(name, known)}")


def _refuse_unselected(experiment: Experiment) -> None:
    """The authors' selected hyperparameters must exist for every task and base, and start at stages that exist."""
    table = reference.load("break_it_down_selected_masks")
    table = table[(table["condition"] == "trained") & (table["model"] == experiment.paper_model)]
    for task in experiment.tasks:
        chosen = table[(table["task"] + "-" + table["number"]).str.rstrip("-") == task]
        missing = sorted(set(experiment.base.seeds) - set(chosen["base"] - 1))
        if missing:
            raise fault("masks.search", f"the authors selected nothing for {task}, base seed {missing[0]}; use grid")
        unknown = sorted(set(chosen["mask_start"]) - set(experiment.architecture.stages))
        if unknown:
            raise fault("masks.search", f"the authors start at '{unknown[0]}', which this network lacks; use grid")


class Study(Section):
    """A whole run: a named profile."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9_-]+$")]
    """Figures go to figures/<name>/."""
    compute: Compute = Compute()
    experiments: Several[Experiment]
    vit_search: BaseSearch | None = None
    check_halving: bool = False
    """Notebook 11 also trains every setting of the search to its half, to tell what halving it would have changed."""

    @model_validator(mode="after")
    def _no_pair_twice(self):
        for name in ("model", "paper_model"):
            pairs = [(getattr(e, name), task) for e in self.experiments for task in e.tasks]
            for pair in pairs:
                if pairs.count(pair) > 1:
                    what = f"{name} '{pair[0]}' has task '{pair[1]}' twice; each pair may stand once"
                    raise fault("experiments", what)
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

    def parts(self) -> list[str]:
        """Names of the parts into which a study can be cut, `model/task/seed`: all that hangs on one base model."""
        return [f"{e.model}/{task}/{seed}" for e, task in self.pairs() for seed in e.base.seeds]

    def part(self, name: str) -> "Study":
        """The study of one base model: its artefacts are those of the whole. Raises StudyError for an unknown part."""
        if name not in self.parts():
            raise StudyError(f"no part '{name}' of profile '{self.name}'; {nearest(name, self.parts())}")
        model, task, seed = name.split("/")
        (experiment,) = [e for e, its_task in self.pairs() if (e.model, its_task) == (model, task)]
        base = experiment.base.model_copy(update={"seeds": (int(seed),)})
        only = experiment.model_copy(update={"tasks": (task,), "base": base})
        return self.model_copy(update={"experiments": (only,), "vit_search": None})


def _read(source: str | Path) -> Mapping[str, Any]:
    path = _locate(source)
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
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


def main(arguments: list[str]) -> int:
    """Check profiles: `python -m subnet_utils.study tiny`. One line per fault on stderr and exit status 2."""
    try:
        for name in arguments:
            Study.load(name)
    except StudyError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
