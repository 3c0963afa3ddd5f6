"""The section of a study for structured pruning of sentence-pair classifiers (*The Heuristic Core*)."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from subnet_utils.core.messages import invalid, nearest
from subnet_utils.core.sections import (
    Distinct,
    Elsewhere,
    Layers,
    Place,
    PositiveFloat,
    PositiveInt,
    Section,
    Seed,
    Seeds,
    heads_divide_width,
)
from subnet_utils.masks.masking import HardConcrete, any_masking
from subnet_utils.tasks.inference import ADVERSE
from subnet_utils.tasks.pair_files import CLASSES, MAIN_SUBCASES
from subnet_utils.tasks.sentence_pairs import DIFFERENT, ENTAILED, SAME, is_entailed
from subnet_utils.training import StepTraining

Share = Annotated[float, Field(ge=0, lt=1)]
Network = Literal["bert_mnli", "bert_qqp", "roberta_mnli", "gpt2_mnli"]
"""The paper's own: of its main text, and of appendices C, D and E."""


class OwnTransformer(Section):
    """A BERT, RoBERTa or GPT-2 of transformers, from random weights, over the words of the generated pairs.

    Trained and pruned in float32: so small a network gains nothing from bfloat16.
    """

    family: Literal["bert", "roberta", "gpt2"] = "bert"
    layers: Layers = 4
    width: PositiveInt = 128
    heads: PositiveInt = 8
    mlp_width: PositiveInt = 512
    dropout: Share = 0.0
    deviation: PositiveFloat = 0.02
    """Of the normal distribution that the first weights are drawn from; small networks learn sooner with more."""

    _widths = model_validator(mode="after")(heads_divide_width)


class PublishedTransformer(Section):
    """Published weights and their tokenizer, with a new classifier on top."""

    family: Literal["published"]
    weights: Place = "google-bert/bert-base-cased"
    """A folder with config.json, model.safetensors, tokenizer.json and tokenizer_config.json, or a name on the model
    hub."""
    max_length: PositiveInt = 128
    """Tokens of a pair; longer ones are cut."""


class GeneratedPairs(Section):
    """Pairs of the project's own words after HANS's schemes."""

    counter: Annotated[float, Field(ge=0, le=0.5)] = 0.02
    """Share of training pairs for which the heuristic is wrong."""
    train: PositiveInt = 10000
    test: PositiveInt = 1000
    """In-domain pairs, of the same mix."""
    each: PositiveInt = 200
    """Out-of-domain pairs of every kind."""
    seed: Seed = 0

    out_of_domain: ClassVar[tuple[str, ...]] = ADVERSE
    """The kinds that defy the heuristic."""
    classes: ClassVar[tuple[str, ...]] = ("entailment", "non-entailment")
    entailed_class: ClassVar[int] = 0
    """Number of the class that means yes."""


class PairFiles(Section):
    """Pairs from local tables (tsv, parquet, arrow), or `hub:name[:config]:split` through `datasets`.

    Relative paths start at the checkout.
    """

    train: Elsewhere
    test: Elsewhere | None = None
    """In-domain pairs; None: the last `held_out` of a shuffled `train`."""
    held_out: PositiveInt = 1000
    mismatched: Elsewhere | None = None
    """Further pairs like the training ones, from other sources, such as MNLI's mismatched ones: a set of its own."""
    hans: Elsewhere | None = None
    """HANS, or pairs like it: with subcases, and labels 0 (entailed) and 1."""
    paws: Elsewhere | None = None
    """In place of `hans`: PAWS, or pairs like it, with labels 1 (mean the same) and 0."""
    classes: Annotated[Distinct[str], Field(min_length=2)] = CLASSES
    """Names of the labels in `train` and `test`, in the order of their numbers."""
    entailed: str | None = None
    """The class that HANS calls entailed, or PAWS the same; None: the first one."""
    out_of_domain: Distinct[str] = MAIN_SUBCASES
    """Subcases whose mean is the out-of-domain accuracy; of PAWS, `paws_non_equivalent`."""
    each: PositiveInt | None = None
    """Pairs of a subcase at most; None: all."""

    @property
    def entailed_class(self) -> int:
        """Number of the class that means yes."""
        return self.classes.index(self.entailed) if self.entailed else 0

    @model_validator(mode="after")
    def _fits_together(self):
        if (self.hans is None) == (self.paws is None):
            raise invalid("", "give either 'hans' or 'paws'")
        if self.entailed is not None and self.entailed not in self.classes:
            raise invalid("entailed", f"'{self.entailed}' is no class; {nearest(self.entailed, self.classes)}")
        if self.paws is not None and self.entailed is None:
            raise invalid("entailed", f"with 'paws', name the class that means the same; {nearest('', self.classes)}")
        for kind in self.out_of_domain:
            if what := self._no_kind_that_defies(kind):
                raise invalid("out_of_domain", what)
        return self

    def _no_kind_that_defies(self, kind: str) -> str:
        """Why a kind cannot count as out of domain, or ''."""
        if self.paws is not None and kind not in (DIFFERENT, SAME):
            return f"PAWS has no '{kind}'; {nearest(kind, (DIFFERENT, SAME))}"
        try:
            friendly = is_entailed(kind) == ENTAILED
        except ValueError as error:
            return str(error)
        return f"'{kind}' is entailed, as the heuristic says; name kinds that defy it" if friendly else ""


class PairPretraining(StepTraining):
    """Predicting hidden words of the generated pairs (GPT-2: the next word), before fine-tuning."""

    pairs: PositiveInt = 12000
    share: Annotated[float, Field(gt=0, lt=1)] = 0.15
    """Of the words, to be predicted (BERT, RoBERTa)."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    steps: PositiveInt = 2000
    warmup: Annotated[int, Field(ge=0)] = 200
    interval: PositiveInt = 50


class FineTuning(StepTraining):
    """Fine-tuning on the pairs (appendix A) with AdamW."""

    learning_rate: PositiveFloat = 0.00002
    steps: PositiveInt = 61360
    interval: PositiveInt = 500
    checkpoints: Distinct[PositiveInt] = (500, 10000, 20000, 30000, 40000, 50000)
    """Steps after which the weights are kept for pruning, multiples of `interval`; the last ones always are."""

    @property
    def kept(self) -> tuple[int, ...]:
        """All steps after which the weights are kept, in order."""
        return (*sorted(self.checkpoints), self.steps)

    @model_validator(mode="after")
    def _checkpoints_are_evaluated(self):
        for step in self.checkpoints:
            if step % self.interval or step >= self.steps:
                what = f"{step:,} is not a multiple of interval {self.interval} below steps {self.steps:,}"
                raise invalid("checkpoints", f"{what}; choose another")
        return self


class UnitPruning(Section):
    """Pruning of attention heads and MLPs (appendix B)."""

    sparsities: Annotated[Distinct[Share], Field(min_length=2, max_length=2)] = (0.5, 0.7)
    """Two targets, the lower one first."""
    seeds: Seeds = tuple(range(42, 54))
    grid_sparsities: Distinct[Share] = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7)
    """To which the last network is pruned, and every checkpoint, for the effective size."""
    grid_seeds: Seeds = (42, 43, 44)
    steps: PositiveInt | None = None
    """None: the paper's 6500 + 56 steps a percent of sparsity."""
    warmup_share: Annotated[float, Field(gt=0, le=1)] = 0.8
    """Of `steps`, until the target sparsity is reached."""
    learning_rate: PositiveFloat = 0.1
    rate_warmup: Annotated[int, Field(ge=0)] = 200
    """Steps until the learning rate is reached."""
    batch_size: PositiveInt = 128
    by_length: bool = False
    """Batches of pairs of like length: half as much padding where sentences are real, and batches less random."""
    masking: any_masking(HardConcrete()) = HardConcrete()
    """Whose gates are trained. At the paper's `start_value` of 10 hardly a gate is ever below 1, where alone it has a
    gradient: it takes thousands of steps, of weight decay too, before pruning begins. A short run starts lower."""
    ablation: Literal["mean", "zero"] = "mean"
    mean_examples: PositiveInt = 100000
    """Training pairs over which mean activations are taken, at most."""
    discretization: Literal["exact", "threshold"] = "exact"
    """exact: as many units as the target says; threshold: the paper's grid of thresholds."""
    draws: PositiveInt = 49
    """Random unit subnetworks at each sparsity, of the sizes of the pruned ones in turn, and random groups of heads for
    the joint ablation. With fewer than 40 no two-sided p of a group can be below .05."""

    @model_validator(mode="after")
    def _fits_together(self):
        if list(self.sparsities) != sorted(self.sparsities):
            raise invalid("sparsities", f"{list(self.sparsities)} is not in order; give the lower one first")
        if self.steps is not None and self.rate_warmup >= self.steps:
            raise invalid("rate_warmup", f"{self.rate_warmup} steps are not fewer than steps {self.steps}; lower it")
        if not self.masking.trains:
            what = f"'{self.masking.method}' ranks weights and cannot prune heads; take one that trains, hard_concrete"
            raise invalid("masking.method", what)
        if getattr(self.masking, "units", "weights") != "weights":
            raise invalid("masking.units", "heads and MLPs are pruned whole in any case; leave it out")
        return self


class HeuristicCore(Section):
    """A sentence-pair classifier, pruned with many seeds (notebooks 08b and 08c)."""

    model: Annotated[str, Field(pattern=r"^[a-z0-9_]+$")]
    """Name in our tables."""
    architecture: Annotated[OwnTransformer | PublishedTransformer, Field(discriminator="family")]
    generated: GeneratedPairs | None = None
    files: PairFiles | None = None
    pretraining: PairPretraining | None = None
    finetuning: FineTuning = FineTuning()
    pruning: UnitPruning = UnitPruning()
    paper_network: Network = "bert_mnli"
    """The paper's network whose numbers stand beside ours."""

    @property
    def data(self) -> GeneratedPairs | PairFiles:
        """Where the pairs come from."""
        return self.generated or self.files

    @model_validator(mode="after")
    def _fits_together(self):
        if (self.generated is None) == (self.files is None):
            raise invalid("", "give either 'generated' or 'files'")
        published = self.architecture.family == "published"
        if self.files is not None and not published:
            raise invalid("architecture.family", f"'{self.architecture.family}' knows the generated words only; "
                                               "take 'published' for pairs from files")  # fmt: skip
        if self.pretraining is not None and published:
            raise invalid("pretraining", "published weights are pretrained already; remove one of the two")
        return self
