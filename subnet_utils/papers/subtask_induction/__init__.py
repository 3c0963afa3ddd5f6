"""*Instilling Inductive Biases with Subnetworks*: can a subnetwork teach another network?"""

from subnet_utils.core.papers import Notebook, Paper
from subnet_utils.papers.subtask_induction.section import SubtaskInduction

PAPER = Paper(
    name="subtask_induction",
    title="Instilling Inductive Biases with Subnetworks",
    reference="Zhang, Lepori and Pavlick 2024, arXiv:2310.10899",
    section=SubtaskInduction,
    notebooks=(
        Notebook("07_subtask_induction", about="arithmetic"),
        Notebook("07b_shape_bias", about="images", requires="image_steps:require_images"),
    ),
    releases="releases:releases",
    stand_ins="stand_ins:MAKERS",
    reproduces={
        "Subtask Induction, Figure 1": "The idea, drawn",
        "Subtask Induction, Figure 2": "The two tasks, drawn",
        "Subtask Induction, Figure 3": "Test accuracy by disambiguating samples",
        "Subtask Induction, Figure 4": "Mean-pooled images",
        "Subtask Induction, Figure 5": "Training dynamics with images",
        "Subtask Induction, Figure 6": "Figure 3, depth by depth",
        "Subtask Induction, Figure 7": "Frozen and trained subnetworks",
        "Subtask Induction, Figure 8": "ab for other computations (laptop: 1 of 2 panels)",
        "Subtask Induction, Figure 9": "a^2 for two computations (laptop: 1 of 2 panels)",
        "Subtask Induction, Figure 10": "Two subnetworks for one computation (laptop: 2 of 4 panels)",
        "Subtask Induction, Figure 11": "Discovery of shape subnetworks",
        "Subtask Induction, Table 1": "Accuracies and cue conflict",
        "Subtask Induction, Table 2": "Shape subnetworks on pooled images",
        "Subtask Induction, Table 3": "Sizes of subnetworks by depth",
    },
    elsewhere={f"Subtask Induction, Figure {number}": "a drawing without numbers" for number in (1, 2)},
    also_shows={"Subtask Induction, Appendix C.3": "Accuracies by class"},
)
