"""What stands in for the data sets of this paper where a study is rehearsed."""

from subnet_utils.cost.stand_ins import cifar10, mnist

MAKERS = {"data/cifar10": cifar10, "data/mnist": mnist}
