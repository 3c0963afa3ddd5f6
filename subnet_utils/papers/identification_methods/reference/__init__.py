"""The survey's vocabulary, its slips, and published numbers on clusters."""

from functools import partial

from subnet_utils.core import reference

load = partial(reference.load, __name__)
