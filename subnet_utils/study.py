"""A study: everything that a run depends on, in one validated and frozen object.

`params/<profile>.yaml` holds one top-level key, `study`, so that `papermill -f params/laptop.yaml` and
`papermill -p study params/laptop.yaml` mean the same. Unknown keys, wrong types and impossible combinations stop a run
here, before any work. Names follow the paper's symbols where it has them; units are in the field descriptions.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, Strict, ValidationError, model_validator

from subnet_utils.tasks.odd_one_out import LANGUAGE_TASKS, VISION_TASKS, nearest

ROOT = Path(__file__).resolve().parent.parent
"""The checkout: params/, artifacts/, figures/ and runs/ lie here, whatever the working directory."""

PositiveInt = Annotated[int, Field(gt=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
Seeds = Annotated[tuple[Annotated[int, Field(ge=0)], ...], Strict(False), Field(min_length=1)]


class StudyError(ValueError):
    """A parameter is unknown, of the wrong type, or impossible together with the others."""


class Section(BaseModel):
    """A part of a study: frozen, strictly typed, without unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Compute(Section):
    """Where and how to compute. Nothing here changes what is computed beyond rounding."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of the matrix products in training; auto = bfloat16 on GPUs and on CPUs with AVX512-BF16, for convolutions.
    Evaluation is always in float32: accuracies can ride on tiny logit gaps."""
    threads: PositiveInt = 1
    """CPU threads of one job. One thread a job, many jobs at a time, is the fastest for small networks."""
    workers: Literal["auto"] | PositiveInt = "auto"
    """Jobs (bases, masks) at a time; auto = CPU cores / threads, or 1 on a GPU."""
    cache_limit_gb: PositiveFloat = 4.0
    """Largest cache of a frozen prefix's outputs, GiB a job; beyond it they are recomputed."""


class Bert(Section):
    """A BERT encoder; the paper's BERT-small is 4 layers, width 512, 8 heads, MLP width 2048."""

    family: Literal["bert"]
    layers: PositiveInt = 4
    width: PositiveInt = 512
    heads: PositiveInt = 8
    mlp_width: PositiveInt = 2048
    pretrained: str | None = None
    """Folder (or hub name) to take weights and tokenizer from."""

    @property
    def stages(self) -> tuple[str, ...]:
        return (*(f"layer_{i}" for i in range(1, self.layers + 1)), "pooler")

    @model_validator(mode="after")
    def _heads_divide_width(self):
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is not a multiple of heads {self.heads}")
        return self


class ResNet(Section):
    """A four-stage ResNet with instance normalization and an embedding MLP; the paper's is bottleneck 3-4-6-3, width 64."""

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
        return ("stem", "stage_1", "stage_2", "stage_3", "stage_4", "head")


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

    @property
    def stages(self) -> tuple[str, ...]:
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

    search: Literal["grid", "selected"] = "grid"
    """grid: the paper's search, by its rule; selected: the hyperparameters that the authors' search selected."""
    learning_rates: Annotated[tuple[PositiveFloat, ...], Strict(False), Field(min_length=1)] = (0.01, 0.0001)
    inits: Annotated[tuple[float, ...], Strict(False), Field(min_length=1)] = (0.1, 0.05, 0.0, -0.05)
    starts: Annotated[tuple[str, ...], Strict(False), Field(min_length=1)]
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
    tasks: Annotated[tuple[str, ...], Strict(False), Field(min_length=1)]
    data: Data
    base: BaseTraining
    masks: MaskTraining

    @property
    def modality(self) -> str:
        return "language" if self.architecture.family == "bert" else "vision"

    @model_validator(mode="after")
    def _fits_together(self):
        valid = LANGUAGE_TASKS if self.modality == "language" else VISION_TASKS
        for task in self.tasks:
            if task not in valid:
                raise ValueError(f"task '{task}' is not a {self.modality} task; {nearest(task, valid)}")
        for start in self.masks.starts:
            if start not in self.architecture.stages:
                raise ValueError(
                    f"masks.starts '{start}' is not a stage of '{self.model}'; {nearest(start, self.architecture.stages)}"
                )
        for name in ("base", "mask"):
            if getattr(self.data, name).train == 0:
                raise ValueError(f"data.{name}.train is 0; give at least one training example")
        return self


class BaseSearch(Section):
    """A sweep over the base model's hyperparameters without masks (appendix D, Table 4)."""

    model: Annotated[str, Field(pattern=r"^[a-z0-9_]+$")]
    paper_model: str = "vit"
    architecture: Annotated[ResNet | ViT, Field(discriminator="family")]
    tasks: Annotated[tuple[str, ...], Strict(False), Field(min_length=1)]
    data: Data
    base: BaseTraining
    layers: Annotated[tuple[PositiveInt, ...], Strict(False), Field(min_length=1)]
    learning_rates: Annotated[tuple[PositiveFloat, ...], Strict(False), Field(min_length=1)]
    batch_sizes: Annotated[tuple[PositiveInt, ...], Strict(False), Field(min_length=1)]

    @model_validator(mode="after")
    def _vision_tasks(self):
        for task in self.tasks:
            if task not in VISION_TASKS:
                raise ValueError(f"task '{task}' is not a vision task; {nearest(task, VISION_TASKS)}")
        return self


class Study(Section):
    """A whole run: a named profile."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9_-]+$")]
    """Figures go to figures/<name>/."""
    compute: Compute = Compute()
    experiments: Annotated[tuple[Experiment, ...], Strict(False), Field(min_length=1)]
    vit_search: BaseSearch | None = None

    @model_validator(mode="after")
    def _no_pair_twice(self):
        for name in ("model", "paper_model"):
            pairs = [(getattr(e, name), task) for e in self.experiments for task in e.tasks]
            for pair in pairs:
                if pairs.count(pair) > 1:
                    raise ValueError(f"{name} '{pair[0]}' has task '{pair[1]}' twice; each pair may stand once")
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
        values = source if isinstance(source, Mapping) else _read(str(source))
        if set(values) == {"study"}:
            values = values["study"]
            if not isinstance(values, Mapping):
                return cls.load(values)
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise StudyError("\n".join(_explain(fault) for fault in error.errors())) from None

    def pairs(self) -> list[tuple[Experiment, str]]:
        """Every (experiment, task) of the study, in order."""
        return [(experiment, task) for experiment in self.experiments for task in experiment.tasks]


def _read(source: str) -> Mapping[str, Any]:
    path = _locate(source)
    try:
        values = yaml.safe_load(path.read_text())
    except yaml.YAMLError as error:
        raise StudyError(f"{path.name} is not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, Mapping):
        raise StudyError(f"{path.name} holds no mapping; it must have one top-level key, 'study'")
    return values


def _locate(source: str) -> Path:
    """The file of a profile: a bare name means params/<name>.yaml."""
    name = source if source.endswith((".yaml", ".yml")) else f"params/{source}.yaml"
    for folder in (Path.cwd(), ROOT):
        if (folder / name).is_file():
            return folder / name
    profiles = sorted(path.stem for path in (ROOT / "params").glob("*.yaml"))
    raise StudyError(f"no profile '{source}'; {nearest(Path(source).stem, profiles)}")


def _explain(fault: Mapping[str, Any]) -> str:
    """One line on one pydantic fault: where, what, and what would be right."""
    where = ".".join(str(part) for part in fault["loc"] if part not in ("bert", "resnet", "vit"))
    where = where or "study"
    kind, given = fault["type"], fault.get("input")
    if kind == "extra_forbidden":
        return f"{where}: unknown key; {nearest(str(fault['loc'][-1]), _keys_at(fault['loc'][:-1]))}"
    if kind == "missing":
        return f"{where}: missing; add it"
    if kind == "value_error":
        return f"{where}: {fault['ctx']['error']}"
    hint = ""
    if kind == "float_type" and isinstance(given, str) and _is_number(given):
        hint = f"; YAML reads {given} as text, write {float(given):f}".rstrip("0")
    return f"{where}: {given!r} is not valid: {fault['msg']}{hint}"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _keys_at(location: tuple) -> list[str]:
    """Valid keys of the section at a pydantic error location."""
    families = {"bert": Bert, "resnet": ResNet, "vit": ViT}
    named = {
        "compute": Compute, "experiments": Experiment, "vit_search": BaseSearch, "data": Data, "masks": MaskTraining,
    }  # fmt: skip
    section: type[Section] = Study
    for part in location:
        if part == "base":
            section = Sizes if section is Data else BaseTraining
        elif part in ("mask", "probe"):
            section = Sizes
        elif part in families:
            section = families[part]
        else:
            section = named.get(part, section)
    return list(section.model_fields)
