"""A language model with known rules: a BERT that predicts hidden words (notebook 10b).

It is pretrained on sentences in which main verbs and pronouns agree with nothing. So it knows the words, their order
and two rules of agreement. The two other rules are there for fine-tuning. No classifier is added: a rule is known if
the right form of a hidden word is likelier than the wrong one.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from subnet_utils.core.seeds import generator_for
from subnet_utils.models import build
from subnet_utils.models.architectures import Bert
from subnet_utils.problems.modules import CONTROL
from subnet_utils.problems.subtasks import Subtasks
from subnet_utils.tasks import agreement_rules
from subnet_utils.tasks.tokenization import tokenizer


@dataclass(frozen=True)
class AgreementRules(Subtasks):
    """Rules of agreement, and a BERT that predicts hidden words.

    reads: sentences of the pretraining; taught: sentences that teach a rule, at most; tested: of each test.
    """

    architecture: Bert
    reads: int
    taught: int
    tested: int

    version: ClassVar[int] = 2
    functions = ("relative verb", "embedded verb")
    new = ("main verb", "pronoun")
    composed = ("main verb and pronoun",)
    at_once = 256

    @property
    def every_test(self) -> tuple[str, ...]:
        """See `Subtasks`."""
        return self.tests_of_fine_tuning

    def network(self, seed: int) -> nn.Module:
        """See `Problem`."""
        from subnet_utils.models.language import WordPredictor  # imports transformers, which takes seconds

        words = tokenizer(self.architecture.pretrained)
        first = generator_for("agreement rules", seed).initial_seed()
        bert = build(self.architecture.model_dump(exclude_none=True), seed=first, vocabulary=words.size)
        return WordPredictor(bert, seed=first, hidden=words.mask)

    def examples(self, function: str, seed: int) -> tuple[Tensor, Tensor]:
        """See `Problem`; any rule will do."""
        if function == CONTROL:
            return agreement_rules.reading(self.reads, self.architecture.pretrained, seed=seed)
        return self._cloze(function)[1][:2]

    def tests(self, name: str) -> tuple[Tensor, Tensor]:
        """See `Subtasks`, of any rule: of the two forms of a word, the first is right."""
        inputs, right, _ = self._cloze(name)[0]
        return inputs, torch.zeros_like(right)

    def outputs(self, network: nn.Module, name: str) -> Tensor:
        """See `Subtasks`: logits of the two forms."""
        _, right, wrong = self._cloze(name)[0]
        said = super().outputs(network, name)
        return said.gather(2, torch.stack([right, wrong], dim=2).to(said.device))

    def _cloze(self, rule: str) -> tuple[agreement_rules.Cloze, agreement_rules.Cloze]:
        return agreement_rules.cloze(rule, self.tested, self.taught, self.architecture.pretrained)
