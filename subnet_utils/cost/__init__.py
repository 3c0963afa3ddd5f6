"""What a study costs: steps timed side by side (`compare`), and the cost of a profile on this machine (`predict`)."""

from subnet_utils.cost.comparison import bert_small, compare, compare_at_once, resnet
from subnet_utils.cost.measurement import Unfinished, measured
from subnet_utils.cost.neurosurgeon import INSTALL, NeuroSurgeonMissing, installed
from subnet_utils.cost.plan import plan
from subnet_utils.cost.prediction import at_best, check, counted, kinds, predict, rehearsed, told, waiting
from subnet_utils.cost.samples import sample_items

__all__ = [
    "INSTALL",
    "NeuroSurgeonMissing",
    "Unfinished",
    "at_best",
    "bert_small",
    "check",
    "compare",
    "compare_at_once",
    "counted",
    "installed",
    "kinds",
    "measured",
    "plan",
    "predict",
    "rehearsed",
    "resnet",
    "sample_items",
    "told",
    "waiting",
]
