"""The numbers that *Break It Down* (Lepori, Serre and Pavlick 2023) prints, and those behind its figures.

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
    ledger          where print, the authors' run and ours differ (`ledger.py`)

Before comparing:

- The tables print where masking starts as 0, 3 or 4; `mask_start` names the stage, as in the selected masks:
  0 is `stem` (ResNets) or `layer_1` (BERT), 3 and 4 are `stage_3`, `stage_4` or `layer_3`, `layer_4`.
- The tables and the selected masks number the bases differently: ResNet50's second base of number-contact in
  Table 5, for one, is base 3 of the selected masks.
- Tables 13 and 14 are headed IoU, but hold |m1 & m2 & m3| / |m3|; Table 15 is a true IoU.
- Table 1 leaves out bases below 90% accuracy (ResNet50's third inside-contact base in Table 2); the effects
  keep them. The standard deviations of the effects divide by n - 1.
"""

from functools import partial

from subnet_utils.core import reference

load = partial(reference.load, __name__)
names = partial(reference.names, __name__)
