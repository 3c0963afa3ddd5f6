"""What is learned: pure functions from (specification, seed) to data."""

from subnet_utils import torchvision_operators  # noqa: F401 - before the modules here import torchvision
