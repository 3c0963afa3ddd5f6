"""How networks that learn several functions, and masks on these, are trained: sections of a study."""

from collections.abc import Iterable
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, Field, model_validator

from subnet_utils.core.messages import invalid
from subnet_utils.core.sections import PositiveFloat, PositiveInt, Section, Seeds, Several
from subnet_utils.masks.masking import GumbelSigmoid, any_masking
from subnet_utils.training import StepTraining

T = TypeVar("T")
ModelName = Annotated[str, Field(pattern=r"^[a-z0-9_]+$")]
"""Of a network in our tables."""


def named_once(networks: tuple[T, ...]) -> tuple[T, ...]:
    """Validator of networks: tables and figures tell them apart by `model`."""
    names = [one.model for one in networks]
    if twice := [name for name in names if names.count(name) > 1]:
        raise invalid("", f"'{twice[0]}' stands twice; give each network a name of its own")
    return networks


def side_by_side(methods: tuple["MaskTraining", ...]) -> tuple["MaskTraining", ...]:
    """Validator of methods that stand side by side: by name each once, and `random` among them."""
    names = [one.masking.method for one in methods]
    if twice := [name for name in names if names.count(name) > 1]:
        raise invalid("", f"'{twice[0]}' stands twice; give each method once")
    if "random" not in names:
        raise invalid("", "'random' is missing, which the others are compared with; add it")
    return methods


def one_trains(methods: tuple["MaskTraining", ...]) -> tuple["MaskTraining", ...]:
    """Validator of methods whose notebook shows masks that were trained beside rankings."""
    if not any(one.masking.trains for one in methods):
        raise invalid("", "none trains masks, so nothing stands beside rankings; add one, such as 'hard_concrete'")
    return methods


def must_train(name: str, training: "MaskTraining", why: str) -> None:
    """Raise for a method that trains no logits, in a section's field of this name."""
    if not training.masking.trains:
        raise invalid(f"{name}.masking", f"'{training.masking.method}' trains no masks, {why}")


def beside_one_each(networks: Iterable[Any]) -> None:
    """Raise for two networks that stand beside the same one of a paper: their seeds would be taken for one."""
    known: dict[str, str] = {}
    for one in networks:
        if one.paper_network and (other := known.setdefault(one.paper_network, one.model)) != one.model:
            what = f"'{one.model}' and '{other}' stand beside the paper's '{one.paper_network}'"
            raise invalid("paper_network", f"{what}, and their seeds would be mixed; give it to one of them")


Networks = Annotated[Several[T], AfterValidator(named_once)]
USUAL = GumbelSigmoid(samples=4)


class WeightTraining(StepTraining):
    """Training of the weights (*Are Neural Nets Modular?*, appendix C.2): Adam at a constant rate. Batches are drawn
    with replacement."""

    batch_size: PositiveInt = 128
    steps: PositiveInt = 20000
    interval: PositiveInt = 1000
    schedule: Literal["linear", "constant"] = "constant"
    clip: PositiveFloat | None = 1.0

    @model_validator(mode="after")
    def _whole_intervals(self):
        if self.steps % self.interval:
            raise invalid("interval", f"{self.interval} does not divide steps {self.steps:,}; change one of them")
        return self


class MaskTraining(WeightTraining):
    """Training of a mask over frozen weights (*Are Neural Nets Modular?*, section 2, appendix C.2)."""

    learning_rate: Annotated[float, Field(gt=0)] = 0.01
    masking: any_masking(USUAL) = USUAL
    """The method. Of the Gumbel-sigmoid `l0` is the paper's alpha, which is its beta divided by the batch size."""

    @model_validator(mode="after")
    def _whole_parts(self):
        samples = getattr(self.masking, "samples", 1)
        if self.batch_size % samples:
            what = f"{samples} samples do not divide the batch of {self.batch_size}; change one of them"
            raise invalid("masking.samples", what)
        return self


Methods = Annotated[Several[MaskTraining], AfterValidator(side_by_side)]


class PictureNetwork(Section):
    """A network that learns classes of pictures, dense and pruned (`problems.pictures`, `problems.pruning`)."""

    model: ModelName
    architecture: Literal["mlp", "cnn"]
    widths: Several[PositiveInt]
    """Neurons, or channels, of the hidden layers."""
    training: WeightTraining = WeightTraining()
    kept: Annotated[float, Field(gt=0, lt=1)] = 0.1
    """Share of the weights that stay in the pruned network, those that are largest in each layer."""
    retraining: WeightTraining = WeightTraining()
    """Of what is left, after each of the `rounds` in which the network is pruned (`problems.pruning`)."""
    rounds: PositiveInt = 1
    seeds: Seeds = (0, 1, 2)
