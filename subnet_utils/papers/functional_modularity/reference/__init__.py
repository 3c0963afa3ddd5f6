"""The numbers that the paper prints, and where its text departs from the released code."""

from functools import partial

from subnet_utils.core import reference

load = partial(reference.load, __name__)
