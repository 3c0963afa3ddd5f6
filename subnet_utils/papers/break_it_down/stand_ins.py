"""What stands in for published weights where a study is rehearsed."""

from functools import partial

from subnet_utils.cost.stand_ins import bert
from subnet_utils.tasks.agreement import grammar_words

BERT_SMALL = {"num_hidden_layers": 4, "hidden_size": 512, "num_attention_heads": 8, "intermediate_size": 2048}
MAKERS = {
    "prajjwal1/bert-small": partial(bert, words=list(grammar_words()), vocabulary=30522, lowercase=True, **BERT_SMALL)
}
