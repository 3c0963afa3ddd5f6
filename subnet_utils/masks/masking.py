"""The masking section of a study: by which method subnetworks are found, and how that method is set.

A profile names the method: `masking: {method: gumbel_sigmoid, l0: 0.000001}`, or `masking: gumbel_sigmoid` with all
settings at their defaults. Methods train a logit for every weight (`TrainedMasking`), or give every weight a score and
keep the highest (`ScoredMasking`). A new one is a class derived from either; a room in SUBNET_PAPERS may bring it.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeVar, Union

from pydantic import BeforeValidator, Field

from subnet_utils.core.messages import invalid
from subnet_utils.core.sections import PositiveFloat, PositiveInt, Section

# torch is imported where it is used: to read a profile takes a fraction of a second without it
if TYPE_CHECKING:
    from torch import Tensor, nn

    from subnet_utils.masks.discover import Discovery
    from subnet_utils.masks.methods import MaskMethod
    from subnet_utils.masks.task_loss import TaskLoss

S = TypeVar("S", bound=Section)
METHODS: dict[str, type["Masking"]] = {}
"""All methods by the name that a profile gives."""


class Masking(Section):
    """How subnetworks are found. Subclasses have a field `method` whose only value is their name."""

    trains: ClassVar[bool]
    """Whether the method trains logits, so that a search over learning rates and first values makes sense."""
    families: ClassVar[tuple[str, ...] | None] = None
    """Architectures of a profile whose networks it can take; None: all."""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        field = cls.model_fields.get("method")
        if field is not None:
            METHODS[field.default] = cls

    def find(self, model: "nn.Module", items, batches, loss, *, recipe, before=None, **options) -> "Discovery":
        """The subnetwork of a model for a task. items, batches, loss, recipe, options: see `discover`.

        before(): the model as it was before it was trained, for methods that look at what has changed.
        """
        raise TypeError(f"{type(self).__name__} has no find(); write one")


class TrainedMasking(Masking):
    """A logit for every weight is trained: the loss of the task, and a penalty on the size of the mask."""

    trains: ClassVar[bool] = True

    l0: Annotated[float, Field(ge=0)] = 1e-8
    """lambda, the weight of the penalty in the loss."""
    start_value: float = 0.05
    """Of all logits."""
    units: Literal["weights", "neurons"] = "weights"
    """neurons: one logit a row of a weight (its first dimension: an output, a filter), so that whole rows are kept. The
    penalty then counts rows, not weights."""

    @classmethod
    def parameterization(cls) -> type["MaskMethod"]:
        """The class of the method, a dataclass: here that of the same name in `methods`. A new method gives its own."""
        from subnet_utils.masks import methods

        if found := getattr(methods, cls.__name__, None):
            return found
        raise TypeError(f"{cls.__name__} has no parameterization(); write one that returns its MaskMethod")

    def build(self, epochs: int, **options: Any) -> "MaskMethod":
        """The method with these settings, for a training of so many epochs.

        options: what it has besides, such as `unannealed`.
        """
        method = self.parameterization()
        settings = self.model_dump() | {"epochs": epochs} | options
        return method(**{field.name: settings[field.name] for field in fields(method) if field.name in settings})

    def find(self, model, items, batches, loss, *, recipe, before=None, **options) -> "Discovery":
        """See `Masking.find`."""
        from subnet_utils.masks.discover import discover

        return discover(model, items, batches, loss, method=self.build(recipe.epochs), recipe=recipe, **options)


class ContinuousSparsification(TrainedMasking):
    """See `methods.ContinuousSparsification`."""

    method: Literal["continuous_sparsification"] = "continuous_sparsification"
    beta_max: Annotated[float, Field(ge=1)] = 200.0


class GumbelSigmoid(TrainedMasking):
    """See `methods.GumbelSigmoid`; `l0` is its alpha."""

    method: Literal["gumbel_sigmoid"] = "gumbel_sigmoid"
    l0: Annotated[float, Field(ge=0)] = 1e-6
    start_value: float = 2.0
    temperature: PositiveFloat = 1.0
    samples: PositiveInt = 1
    """Parts of a batch, each with a draw of its own; 4 or 8 in the paper."""


class HardConcrete(TrainedMasking):
    """See `methods.HardConcrete`."""

    method: Literal["hard_concrete"] = "hard_concrete"
    start_value: float = 10.0


class ScoredMasking(Masking):
    """Every weight gets a score; the highest are kept."""

    trains: ClassVar[bool] = False

    density: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """Share of the maskable weights that is kept."""
    units: Literal["weights", "neurons"] = "weights"
    """neurons: scores are summed over each row of a weight (its first dimension: an output, a filter), and whole rows
    are kept. The density is then met as nearly as rows allow, not exactly."""

    def scores(
        self, model: "nn.Module", names: Iterable[str], *, seed: int, before: "Callable[[], nn.Module] | None",
        task: "TaskLoss",
    ) -> "dict[str, Tensor]":  # fmt: skip
        """A score for every entry of the named weights, of the weight's shape: higher is kept first.

        task: the loss of the network with any weights (`task.losses`), for methods that look at it.
        """
        raise TypeError(f"{type(self).__name__} has no scores(); write one")

    def find(
        self, model, items, batches, loss, *, start=None, only=None, recipe, before=None, **options
    ) -> "Discovery":
        """See `Masking.find`. Of the options `autocast` and `limit_gb` matter here."""
        import pandas as pd

        from subnet_utils.masks.discover import Discovery
        from subnet_utils.masks.select import select, select_rows
        from subnet_utils.masks.task_loss import TaskLoss
        from subnet_utils.models.staged import fingerprint, maskable, require_own_weights

        about = {name: options[name] for name in ("autocast", "limit_gb") if name in options}
        names, network = maskable(model, start, only), fingerprint(model)
        require_own_weights(model, names)
        task = TaskLoss(model, items, batches, loss, start=start, seed=recipe.seed, **about)
        scores = self.scores(model, names, seed=recipe.seed, before=before, task=task)
        if fingerprint(model) != network:
            raise ValueError("the model changed while it ran; take out what writes to its buffers")
        count = max(1, round(self.density * sum(score.numel() for score in scores.values())))
        choose = select_rows if self.units == "neurons" else select
        found = choose(scores, count, network=network)
        history = pd.DataFrame({"epoch": [0], "density": [found.density]})
        scores = {name: score.detach().cpu() for name, score in scores.items()}
        return Discovery(found, history, history[["epoch"]], scores, task.passes)


class Magnitude(ScoredMasking):
    """The weights that are furthest from 0, over all layers at once (global magnitude pruning, Han et al. 2015)."""

    method: Literal["magnitude"] = "magnitude"

    def scores(self, model, names, *, seed, before, task) -> "dict[str, Tensor]":
        """|w|."""
        weights = dict(model.named_parameters())
        return {name: weights[name].detach().abs() for name in names}


class WeightChange(ScoredMasking):
    """The weights that training has moved furthest (lottery-ticket sparse fine-tuning, Ansell et al. 2022).

    In a network that was not trained none has moved; there they are drawn at random.
    """

    method: Literal["weight_change"] = "weight_change"

    def scores(self, model, names, *, seed, before, task) -> "dict[str, Tensor]":
        """|w - w before training|."""
        if before is None:
            what = "masking.method 'weight_change' needs the network before training"
            raise ValueError(f"{what}; give before, or take another method")
        first = before if hasattr(before, "named_parameters") else before()
        weights, first = dict(model.named_parameters()), dict(first.named_parameters())
        for name in names:
            if name not in first or first[name].shape != weights[name].shape:
                what = f"has no '{name}' of shape {[*weights[name].shape]}"
                raise ValueError(f"the network before training {what}; give one of the same architecture")
        found = {name: (weights[name] - first[name].to(weights[name].device)).detach().abs() for name in names}
        moved = any(score.any() for score in found.values())
        return found if moved else Random().scores(model, names, seed=seed, before=before, task=task)


class Random(ScoredMasking):
    """Weights drawn at random: what a method must beat."""

    method: Literal["random"] = "random"

    def scores(self, model, names, *, seed, before, task) -> "dict[str, Tensor]":
        """Uniform numbers."""
        import torch

        from subnet_utils.core.seeds import generator_for

        generator, weights = generator_for("random masking", seed), dict(model.named_parameters())
        return {name: torch.rand(weights[name].shape, generator=generator) for name in names}


class Attribution(ScoredMasking):
    """The weights whose product with the loss's gradient is largest (SNIP, Lee et al. 2019; attribution patching)."""

    method: Literal["attribution"] = "attribution"

    def scores(self, model, names, *, seed, before, task) -> "dict[str, Tensor]":
        """See `attribution.attributed`."""
        from subnet_utils.masks.attribution import attributed

        return {name: effect.abs() for name, effect in attributed(task, task.weights(names)).items()}


class AttributionIG(ScoredMasking):
    """The same with gradients along the way from weights of 0 to the network's (integrated gradients, Sundararajan et
    al. 2017)."""

    method: Literal["attribution_ig"] = "attribution_ig"
    points: PositiveInt = 10
    """Of the way, at which gradients are taken."""

    def scores(self, model, names, *, seed, before, task) -> "dict[str, Tensor]":
        """See `attribution.integrated`."""
        from subnet_utils.masks.attribution import integrated

        return {name: effect.abs() for name, effect in integrated(task, task.weights(names), self.points).items()}


class Exact(ScoredMasking):
    """The weights without which the loss rises most, each left out alone. For small networks."""

    method: Literal["exact"] = "exact"

    def scores(self, model, names, *, seed, before, task) -> "dict[str, Tensor]":
        """See `attribution.left_out`."""
        from subnet_utils.masks.attribution import left_out

        return left_out(task, task.weights(names))


class SpectralClusters(ScoredMasking):
    """The weights inside the clusters of units that the task misses most (Filan et al. 2021, Casper et al. 2022).

    Clusters are found without the task; see `partitions.spectral`. The network is a chain of linear or convolutional
    layers. Weights between two clusters come last.
    """

    families: ClassVar[tuple[str, ...] | None] = ("feedforward", "mlp", "cnn")

    method: Literal["spectral_clusters"] = "spectral_clusters"
    clusters: Annotated[int, Field(ge=2)] = 4

    def scores(self, model, names, *, seed, before, task) -> "dict[str, Tensor]":
        """Of a weight how much the loss rises without all weights inside its cluster."""
        from subnet_utils.core.messages import of_companion
        from subnet_utils.masks.attribution import parts_left_out

        with of_companion():
            from subnet_utils.masks.partitions import require_chain, spectral

        require_chain(task, names)
        found = spectral(model, tuple(names), self.clusters, seed=seed)
        inside = [found.subnetwork(model, cluster).masks for cluster in range(found.count)]
        return parts_left_out(task, task.weights(names), inside)


def methods_fit(section: S) -> S:
    """Validator of a section with an `architecture`, `masks` and maybe `others`: each method takes such a network."""
    family = section.architecture.family
    for training in (section.masks, *getattr(section, "others", ())):
        if family not in (training.masking.families or (family,)):
            what = f"'{training.masking.method}' needs a chain of layers, and a {family} is none; take another method"
            raise invalid("masks.masking", what)
    return section


def any_masking(usual: Masking = ContinuousSparsification()) -> Any:  # noqa: B008
    """The type of a masking field in a section: all methods that are known now, told apart by `method`.

    A profile may give the name of a method alone. Settings without a name are for the usual method, and those that it
    leaves out are as in `usual`.
    """

    def named(value: Any) -> Any:
        value = {"method": value} if isinstance(value, str) else value
        if isinstance(value, Mapping) and value.get("method", usual.method) == usual.method:
            return {**usual.model_dump(), **value}
        return value

    return Annotated[Union[tuple(METHODS.values())], Field(discriminator="method"), BeforeValidator(named)]  # noqa: UP007
