"""What a study has cost (`spent`), what it will cost (`predict`), and steps of training side by side (`step_times`)."""

from subnet_utils.cost.estimate import predict, spent, summary
from subnet_utils.cost.race import INSTALL, NeuroSurgeonMissing, installed, step_times

__all__ = ["INSTALL", "NeuroSurgeonMissing", "installed", "predict", "spent", "step_times", "summary"]
