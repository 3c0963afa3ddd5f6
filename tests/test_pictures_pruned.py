"""Networks that learn pictures, and pruned ones: what stays, what is 0, and what is tested."""

import pytest
import torch

from subnet_utils.core.lab import Lab
from subnet_utils.masks.partitions import strengths
from subnet_utils.models.staged import maskable
from subnet_utils.problems import pruning
from subnet_utils.problems.modules import CONTROL
from subnet_utils.problems.pictures import PictureClasses, Source
from subnet_utils.problems.pruning import dense_and_pruned, largest
from subnet_utils.problems.tasks import Drawn
from subnet_utils.problems.trainings import PictureNetwork
from tests.test_identification_methods import BRIEF, study

DATA = Drawn(source="drawn", train=60, test=40, resolution=16)


def networks(lab: Lab, architecture: str, **more) -> dict:
    settings = {"model": "m", "architecture": architecture, "widths": [6, 5], "kept": 0.3, "seeds": [0]} | more
    learns = BRIEF | {"learning_rate": 0.01}
    one = PictureNetwork(**settings, training=learns, retraining=learns)
    return dict(dense_and_pruned(one, DATA))


@pytest.mark.parametrize(("architecture", "connected"), [("mlp", [(6, 256), (5, 6), (10, 5)]),
                                                         ("cnn", [(6, 1), (5, 6), (10, 5)])])  # fmt: skip
def test_a_pruned_network_keeps_its_largest_weights_and_trains_them_alone(tmp_path, architecture, connected):
    lab = Lab.open(study(), tmp_path)
    steps = networks(lab, architecture)
    dense, pruned = (steps[name].load(lab) for name in ("m", "m_pruned"))
    assert [own.shape for own in strengths(dense, maskable(dense)).values()] == connected  # a chain
    for name in maskable(dense):
        before, after = dense.get_parameter(name), pruned.get_parameter(name)
        assert int((after != 0).sum()) == round(0.3 * before.numel())
        assert before[after != 0].abs().min() >= before[after == 0].abs().max()
        assert not torch.equal(before[after != 0], after[after != 0])
    assert all(torch.equal(b, pruned.get_parameter(n)) for n, b in dense.named_parameters() if n.endswith("bias"))


def test_pruning_in_rounds_follows_the_cubic_schedule(tmp_path, monkeypatch):
    """Of all that goes 1 - (2/3)^3, 1 - (1/3)^3, then the whole has gone; what has gone does not come back."""
    shares, gone = [], []

    def watched(network, share):
        gone.append([network.get_parameter(name) == 0 for name in maskable(network)])
        shares.append(share)
        return largest(network, share)

    monkeypatch.setattr(pruning, "largest", watched)
    pruned = networks(Lab.open(study(), tmp_path), "mlp", rounds=3)["m_pruned"].load(Lab.open(study(), tmp_path))
    assert shares == pytest.approx([0.3 + 0.7 * 8 / 27, 0.3 + 0.7 / 27, 0.3])
    last = [pruned.get_parameter(name) == 0 for name in maskable(pruned)]
    assert [int((~zero).sum()) for zero in last] == [round(0.3 * zero.numel()) for zero in last]
    assert all((later | ~zero).all() for zeros in gone for zero, later in zip(zeros, last, strict=True))


def test_accuracies_are_those_of_each_class(tmp_path):
    problem = PictureClasses(Source.of(DATA), "mlp", (6, 5))
    network, test = problem.network(0), Source.of(DATA).load("test")
    right = network(test.pixels / 127.5 - 1).argmax(dim=1) == test.labels
    scores = problem.scores(network)
    assert scores["accuracy"] == pytest.approx(float(right.double().mean()))
    assert scores["accuracy on 3"] == pytest.approx(float(right[test.labels == 3].double().mean()))
    pixels, labels = problem.examples("3", 0)
    assert set(labels.tolist()) == {3} and len(problem.examples(CONTROL, 0)[0]) == 60
    assert -1 <= pixels.min() < -0.5 and 0.5 < pixels.max() <= 1
