"""*The Heuristic Core*: do all pruned networks share a core of heuristics?"""

from subnet_utils.core.papers import Notebook, Paper
from subnet_utils.papers.heuristic_core.section import HeuristicCore

PAPER = Paper(
    name="heuristic_core",
    title="The Heuristic Core: Understanding Subnetworks of Pretrained Language Models",
    reference="Bhaskar, Friedman and Chen 2024, arXiv:2403.03942",
    section=HeuristicCore,
    notebooks=(Notebook("08_heuristic_core", requires="pair_sets:require_pairs"),),
    steps="steps:every_step",
    reproduces={
        "Heuristic Core, Figure 2": "Accuracies of pruned networks",
        "Heuristic Core, Figure 3": "Three that generalize differently",
        "Heuristic Core, Figure 4": "Accuracy by sparsity",
        "Heuristic Core, Figure 5": "Heads that subnetworks share",
        "Heuristic Core, Figure 6": "Effective size while fine-tuning",
        "Heuristic Core, Figure 7": "Attention of heads of the core",
        "Heuristic Core, Figure 9": "Where heads of the core look",
        "Heuristic Core, Figure 10": "Learning of heuristics and of more",
        "Heuristic Core, Figure 12": "All subcases of HANS",
        "Heuristic Core, Figure 13": "Frequencies of heads",
        "Heuristic Core, Table 3": "Ablation of heads of the core",
    },
    also_shows={},
)
