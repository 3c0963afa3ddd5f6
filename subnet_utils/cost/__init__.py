"""What a study has cost (`spent`), what it will cost (`predict`), and steps of training side by side (`race`)."""

from subnet_utils.cost.estimate import predict, spent, summary
from subnet_utils.cost.neurosurgeon import INSTALL, NeuroSurgeonMissing, installed
from subnet_utils.cost.race import bert_small, resnet18

__all__ = ["INSTALL", "NeuroSurgeonMissing", "bert_small", "installed", "predict", "resnet18", "spent", "summary"]
