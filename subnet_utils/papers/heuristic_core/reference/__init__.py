"""The numbers that *The Heuristic Core* prints, and those that its authors publish.

*The Heuristic Core* (Bhaskar, Friedman and Chen, 2024), whose authors publish their accuracies:

    subnetworks     accuracies of all pruned networks of section 3, every evaluation set, BERT on MNLI and on QQP
    sparsity_grid   the same over sparsities and checkpoints, behind Figures 4 and 6; -1 stands for a missing run
    tables          Tables 3 to 8 as printed: ablated heads, and the spreads of RoBERTa and GPT-2
    panels          where something is shown of a network that is shown of BERT on MNLI elsewhere; else it is not shown
    ledger          where the text, the authors' released code and ours differ
    claims          what the text says, between which values a number must lie to agree,
                    and what was counted in the authors' heat maps
"""

from functools import partial

from subnet_utils.core import reference

load = partial(reference.load, __name__)
names = partial(reference.names, __name__)
