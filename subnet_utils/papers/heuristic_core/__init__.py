"""*The Heuristic Core*: do all pruned networks share a core of heuristics?"""

from subnet_utils.core.papers import Notebook, Paper
from subnet_utils.papers.heuristic_core.section import HeuristicCore

MADE_BY = {
    "paper_qqp": ("Figure 8", "Figure 14", "Table 4"),
    "paper_roberta": ("Figure 15", "Table 5", "Table 6"),
    "paper_gpt2": ("Figure 16", "Table 7", "Table 8"),
}
"""Profile -> what no other makes."""
PAPER = Paper(
    name="heuristic_core",
    title="The Heuristic Core: Understanding Subnetwork Generalization in Pretrained Language Models",
    reference="Bhaskar, Friedman and Chen 2024, arXiv:2403.03942",
    section=HeuristicCore,
    notebooks=(
        Notebook("08_heuristic_core"),
        Notebook("08b_our_network", requires="pair_sets:require_pairs"),
        Notebook("08c_core_of_heads", requires="pair_sets:require_pairs", after=("08b_our_network",)),
    ),
    releases="releases:releases",
    stand_ins="stand_ins:MAKERS",
    reproduces={
        "Heuristic Core, Figure 1": "The idea, drawn",
        "Heuristic Core, Figure 2": "Accuracies of pruned networks",
        "Heuristic Core, Figure 3": "Three that generalize differently",
        "Heuristic Core, Figure 4": "Accuracy by sparsity",
        "Heuristic Core, Figure 5": "Heads that subnetworks share",
        "Heuristic Core, Figure 6": "Effective size while fine-tuning",
        "Heuristic Core, Figure 7": "Attention of heads of the core",
        "Heuristic Core, Figure 8": "Attention of heads of the core, QQP",
        "Heuristic Core, Figure 9": "Where heads of the core look",
        "Heuristic Core, Figure 10": "Learning of heuristics and of more",
        "Heuristic Core, Figure 11": "Heads that subnetworks share, QQP",
        "Heuristic Core, Figure 12": "All subcases of HANS",
        "Heuristic Core, Figure 13": "Frequencies of heads",
        "Heuristic Core, Figure 14": "Frequencies of heads, QQP",
        "Heuristic Core, Figure 15": "Effective size while fine-tuning, RoBERTa",
        "Heuristic Core, Figure 16": "Effective size while fine-tuning, GPT-2",
        "Heuristic Core, Table 1": "Cases of HANS",
        "Heuristic Core, Table 2": "Questions of PAWS",
        "Heuristic Core, Table 3": "Ablation of heads of the core",
        "Heuristic Core, Table 4": "Ablation of heads of the core, QQP",
        "Heuristic Core, Table 5": "Accuracies of pruned networks, RoBERTa",
        "Heuristic Core, Table 6": "Ablation of heads of the core, RoBERTa",
        "Heuristic Core, Table 7": "Accuracies of pruned networks, GPT-2",
        "Heuristic Core, Table 8": "Ablation of heads of the core, GPT-2",
    },
    elsewhere={
        "Heuristic Core, Figure 1": "a drawing without numbers",
        "Heuristic Core, Table 2": "notebook 08b shows questions of PAWS at the profile paper_qqp, and files none",
    }
    | {f"Heuristic Core, {one}": f"the profile {name} makes it" for name, made in MADE_BY.items() for one in made},
)
