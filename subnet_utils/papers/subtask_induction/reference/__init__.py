"""Numbers that *Instilling Inductive Biases with Subnetworks* prints. Most of its arithmetic results are pictures only.

The tables:

    subtask_induction   Table 3 and the numbers in the text: sizes of subnetworks, one mean accuracy, one ratio
    induction_measured  not the paper's: accuracies on a^2+ab by condition, from an independent implementation that was
                        written to tell the text's conditions from those of the released code
    shape_bias          Tables 1 and 2
    panels              which inductions Figures 8 to 10 show
    ledger              where print, released code and ours differ
"""

from functools import partial

from subnet_utils.core import reference

load = partial(reference.load, __name__)
names = partial(reference.names, __name__)
