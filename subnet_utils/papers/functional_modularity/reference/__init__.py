"""The numbers that the paper prints, and where its text departs from the released code."""

from functools import partial

from subnet_utils.core import reference

load = partial(reference.load, __name__)
ADEQUATE = 0.95
"""Of the network's accuracy, what a control mask should keep (appendix C.3)."""
