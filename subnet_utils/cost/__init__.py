"""What a study costs: steps timed side by side (`compare`), and the cost of a profile on this machine (`predict`)."""

from subnet_utils.cost.comparison import bert_small, compare
from subnet_utils.cost.neurosurgeon import INSTALL, NeuroSurgeonMissing, installed
from subnet_utils.cost.prediction import check, kinds, measured, plan, predict, sample_items, waiting

__all__ = [
    "INSTALL",
    "NeuroSurgeonMissing",
    "bert_small",
    "check",
    "compare",
    "installed",
    "kinds",
    "measured",
    "plan",
    "predict",
    "sample_items",
    "waiting",
]
