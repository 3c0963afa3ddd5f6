"""The section of a study on methods that identify subnetworks (Wold 2024, *Identifying Subnetworks*)."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, Strict, model_validator

from subnet_utils.core.messages import invalid
from subnet_utils.core.sections import Distinct, DistinctOrNone, PositiveInt, Section, Seeds, has_a_part
from subnet_utils.problems import trainings
from subnet_utils.problems.tasks import AddMul, Drawn, ImageData, LanguageModel, Learned
from subnet_utils.problems.trainings import Methods, ModelName, Networks, PictureNetwork, WeightTraining

Share = Annotated[float, Field(gt=0, lt=1)]
TwoOrMore = Annotated[int, Field(ge=2)]


class Clusters(Section):
    """Clusters of units, and what they are compared with."""

    counts: Distinct[TwoOrMore] = (4, 12)
    """Numbers of clusters."""
    shuffles: TwoOrMore = 50
    """Networks with the weights of each layer in another order, whose cuts are compared."""
    lesions: PositiveInt = 50
    """Random sets of units that are silenced beside each cluster."""


class FineTuning(Section):
    """Sparse fine-tunings on functions that the network has not learned (Ansell et al. 2022)."""

    training: WeightTraining = WeightTraining(steps=1000, interval=100)
    densities: Distinct[Share] = (0.03, 0.1, 0.3)
    """Shares of the weights that may change."""


class IdentifiedNetwork(Section):
    """A network with two functions, and the methods that look for both in it."""

    model: ModelName
    learns: Learned = AddMul()
    training: WeightTraining = WeightTraining()
    seeds: Seeds = (0, 1, 2)
    repeats: PositiveInt = 2
    """Masks for each function, with seeds of their own."""
    methods: Methods
    densities: Distinct[Share] = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
    """At which rankings are cut."""
    searched: DistinctOrNone[Share] = ()
    """To which trained masks are brought by their penalty; each takes up to four trainings."""
    reference: Share = 0.1
    """Density at which rankings stand beside trained masks."""
    clusters: Clusters = Clusters()
    """Of units in a chain of layers; other networks have none."""
    draws: PositiveInt = 39
    """Random subnetworks that each one is compared with."""
    parts: PositiveInt = 3
    """Random parts that each composition is compared with."""
    sampled: PositiveInt = 200
    """Weights of a subnetwork that are left out one by one, to see whether they matter."""
    fine_tuning: FineTuning | None = None

    @model_validator(mode="after")
    def _fits_together(self):
        names = [one.masking.method for one in self.methods]
        only = ["spectral_clusters"] * ("spectral_clusters" in names) + ["fine_tuning"] * (self.fine_tuning is not None)
        if only and self.learns.task != "add_mul":
            raise invalid(only[0], "is for networks that learn add_mul; leave it out")
        if len(self.densities) < 2:
            raise invalid("densities", "is one number, but areas are along several; add one")
        if self.reference not in self.densities:
            raise invalid("reference", f"{self.reference} is none of the densities; add it to them")
        if self.searched and any(one.masking.trains and not getattr(one.masking, "l0", 0) for one in self.methods):
            raise invalid("searched", "needs an l0 above 0 to vary; raise it, or leave 'searched' out")
        if self.learns.task == "add_mul" and max(self.clusters.counts) > sum(self.learns.widths):
            raise invalid("clusters.counts", f"more than the {sum(self.learns.widths)} hidden units; ask for fewer")
        return self


class LanguageNetwork(Section):
    """A language model that is pretrained (`training`), and its sparse fine-tunings on rules of agreement."""

    model: ModelName
    learns: LanguageModel
    training: WeightTraining
    seeds: Seeds = (0, 1, 2)
    fine_tuning: FineTuning = FineTuning()


class ClusteredPictures(Section):
    """Networks of pictures whose clusters stand beside published ones (Filan et al. 2021)."""

    data: ImageData = Drawn(source="drawn")
    networks: Networks[PictureNetwork]
    clusters: Clusters = Clusters()

    @model_validator(mode="after")
    def _units_suffice(self):
        units = min(sum(one.widths) for one in self.networks) + len(self.data.classes)
        if max(self.clusters.counts) > units:
            raise invalid("clusters.counts", f"more than the {units} hidden units and outputs; ask for fewer")
        return self


class PlantedNetworks(Section):
    """Networks into which subnetworks are planted; see `planted.Design`."""

    name: ModelName
    """In tables."""
    kind: Literal["groups", "scattered"] = "groups"
    architecture: Literal["mlp", "cnn", "transformer"] = "mlp"
    overlap: Annotated[float, Field(ge=0, lt=1)] = 0.0
    density: Share = 0.22
    noise: Literal["start", "scaled", "clamped"] = "start"
    redundancy: Annotated[int, Field(ge=0)] = 0
    hidden: Annotated[tuple[PositiveInt, ...], Strict(False)] = ()
    """Widths; () for the usual ones of the architecture."""

    model = property(lambda self: self.name)


class Benchmark(Section):
    """The benchmark with known truth."""

    designs: Networks[PlantedNetworks]
    seeds: Seeds = (0, 1, 2)
    """A network of each design for each seed."""
    compiled: DistinctOrNone[Literal["plain", "noise", "shared", "redundant"]] = ()
    """Networks whose weights were set by hand; see `compiled.Compiled`."""
    methods: Annotated[Methods, AfterValidator(trainings.one_trains)]
    """`l0` is for 14,000 weights, and is scaled for networks that have more or less."""

    @model_validator(mode="after")
    def _nothing_tells_the_truth(self):
        if "weight_change" in [one.masking.method for one in self.methods]:
            what = "'weight_change' needs the network before training, which tells what was planted; leave it out"
            raise invalid("methods", what)
        return self


class IdentificationMethods(Section):
    """Methods side by side (notebook 10a), composition (10b), and the benchmark with known truth (10c)."""

    networks: Networks[IdentifiedNetwork] | None = None
    language: Networks[LanguageNetwork] | None = None
    """Further networks of 10b."""
    pictures: ClusteredPictures | None = None
    benchmark: Benchmark | None = None

    _something_to_do = model_validator(mode="after")(has_a_part)

    @model_validator(mode="after")
    def _shows_methods(self):
        if self.networks and self.networks[0].learns.task != "add_mul":
            raise invalid("networks", "the first one shows the methods by hand; put one that learns add_mul first")
        for name in ("pictures", "language"):
            if getattr(self, name) and not self.networks:
                raise invalid(name, f"is shown beside networks (10a, 10b); add some, or leave {name} out")
        trainings.named_once((*(self.networks or ()), *(self.language or ())))
        return self
