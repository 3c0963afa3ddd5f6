"""The numbers that the papers print, and those behind their figures, as tidy tables to compare ours with.

`load(name)` returns one of the csv files beside this module. All values are transcriptions, none was
computed by this package. Accuracies, differences and densities are fractions (the papers print accuracies in percent);
`number` is the empty string where a task has no grammatical number; `base` and `mask` count from 1.

*Break It Down* (Lepori, Serre and Pavlick, 2023); names begin with `break_it_down_`:

    table1          Table 1: one-factor GLM, z of the intercept and chi2 of the ablated model
    table2          Table 2: test accuracy of each base trained from scratch
    table3          Table 3: test accuracy of each pretrained base
    table4          Table 4: validation accuracies of the ViT search
    table5          Table 5: active and masked weights of each subnetwork, ResNet50
    table6          Table 6: the same, ResNet50 pretrained with SimCLR
    table7          Table 7: the same, Wide ResNet50
    table8          Table 8: the same, BERT-small, subject-verb agreement
    table9          Table 9: the same, BERT-small, reflexive anaphora
    table10         Table 10: the same, pretrained BERT-small, subject-verb agreement
    table11         Table 11: the same, pretrained BERT-small, reflexive anaphora
    table12         Table 12: two-factor GLM, z of Random and chi2 of the ablated model
    table13         Table 13: overlap of the three subnetworks for inside, by layer, of one ResNet50
    table14         Table 14: overlap of the three subnetworks for number, by layer, of the same ResNet50
    table15         Table 15: overlap of the intersections of these two triples (subroutine `inside+number`)
    effects         the authors' results behind Figures 4-12 and 16-18, which are printed as pictures only
    selected_masks  the hyperparameters that the authors' mask search selected

*Instilling Inductive Biases with Subnetworks* (Zhang, Lepori and Pavlick, 2024), which prints most of its arithmetic
results as pictures only:

    subtask_induction   Table 3 and the numbers in the text: sizes of subnetworks, one mean accuracy
    induction_measured  not the paper's: accuracies on a^2+ab by condition, from an independent implementation that was
                        written to tell the text's conditions from those of the released code

*The Heuristic Core* (Bhaskar, Friedman and Chen, 2024), whose authors publish their accuracies; names begin with
`heuristic_core_`:

    subnetworks     accuracies of all pruned networks of section 3, every evaluation set, BERT on MNLI and on QQP
    sparsity_grid   the same over sparsities and checkpoints, behind Figures 4 and 6; -1 stands for a missing run
    tables          Tables 3 to 8 as printed: ablated heads, and the spreads of RoBERTa and GPT-2
    mask_counts     what was counted in the authors' masks, beside what is printed

Before comparing:

- The tables print where masking starts as 0, 3 or 4; `mask_start` names the stage, as in the selected masks:
  0 is `stem` (ResNets) or `layer_1` (BERT), 3 and 4 are `stage_3`, `stage_4` or `layer_3`, `layer_4`.
- The tables and the selected masks number the bases differently: ResNet50's second base of number-contact in
  Table 5, for one, is base 3 of the selected masks.
- Tables 13 and 14 are headed IoU, but hold |m1 & m2 & m3| / |m3|; Table 15 is a true IoU.
- Table 1 leaves out bases below 90% accuracy (ResNet50's third inside-contact base in Table 2); the effects
  keep them. The standard deviations of the effects divide by n - 1.
"""

from difflib import get_close_matches
from importlib import resources

import pandas as pd


def names() -> tuple[str, ...]:
    """Return the names that `load` knows, sorted."""
    files = (entry.name for entry in resources.files(__name__).iterdir())
    return tuple(sorted(name.removesuffix(".csv") for name in files if name.endswith(".csv")))


def load(name: str) -> pd.DataFrame:
    """Return one reference table (see the module's list) as a fresh DataFrame.

    Empty cells (no grammatical number, no significance stars) are empty strings, so that grouping and merging
    on them keeps every row. Raises ValueError for an unknown name.
    """
    known = names()
    if name not in known:
        nearest = get_close_matches(str(name), known, n=1, cutoff=0.0)[0]
        raise ValueError(f"unknown reference table {name!r}; did you mean {nearest!r}? There are {known}")
    with resources.files(__name__).joinpath(f"{name}.csv").open("rb") as file:
        return pd.read_csv(file, keep_default_na=False)
