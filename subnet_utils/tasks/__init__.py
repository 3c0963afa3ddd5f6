"""What is learned, in every paper: pure functions from (specification, seed) to data, and readers of files."""

from subnet_utils import torchvision_operators  # noqa: F401 - before the modules here import torchvision
