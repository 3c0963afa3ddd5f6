"""*Are Neural Nets Modular?*: do networks have modules for their functions, and do they use them again?"""

from subnet_utils.core.papers import Notebook, Paper
from subnet_utils.papers.functional_modularity.section import FunctionalModularity

PAPER = Paper(
    name="functional_modularity",
    title="Are Neural Nets Modular? Inspecting Functional Modularity Through Differentiable Weight Masks",
    reference="Csordas, van Steenkiste and Schmidhuber 2021, arXiv:2010.02066",
    section=FunctionalModularity,
    notebooks=(
        Notebook("09a_functional_modularity", about="arithmetic"),
        Notebook("09b_sequences", about="sequences", requires="sequence_steps:require_scan"),
        Notebook("09c_images", about="images", requires="image_steps:require_images"),
        Notebook("09d_what_masks_depend_on", about="arithmetic", after=("09a_functional_modularity",)),
    ),
    releases="releases:releases",
    stand_ins="stand_ins:MAKERS",
    reproduces={
        f"Functional Modularity, {label}": title
        for label, title in (
            ("Figure 1", "Shared weights, addition and multiplication"),
            ("Figure 2", "Shared weights, double addition"),
            ("Figure 3", "Shared weights, permuted images"),
            ("Figure 4", "Accuracy on the splits of SCAN, and output weights that a mask lacks"),
            ("Figure 5", "Accuracy on hard questions of mathematics"),
            ("Figure 6", "Classes that masks are trained without"),
            ("Figure 7", "Half masks"),
            ("Figure 8", "Shared weights after copying a pair"),
            ("Figure 9", "Probabilities of masks"),
            ("Figure 10", "Accuracy and sharing by beta"),
            ("Figure 11", "Sharing by size"),
            ("Figure 12", "Kept weights by layer"),
            ("Figure 13", "Which operation is performed"),
            ("Figure 14", "Permuted images, starts in favour of used weights"),
            ("Figure 15", "Splits of SCAN learned directly"),
            ("Figure 16", "Questions of mathematics"),
            ("Figure 17", "Answers under control masks"),
            ("Figure 18", "Changes of answers, simple CNN"),
            ("Figure 19", "Changes of answers, CNN without dropout"),
            ("Figure 20", "Changes of answers, ResNet-110"),
            ("Table 1", "Accuracies, double addition"),
            ("Table 2", "Accuracies, addition and multiplication"),
            ("Table 3", "Accuracies with first and last layer from the control mask"),
            ("Table 4", "Settings for mathematics"),
            ("Table 5", "Layers of the simple CNN"),
        )
    },
    also_shows={"Functional Modularity, Appendix B.1": "Overlap of two masks of one function"},
)
