"""Sliders over a network of the zoo: every position is drawn, and what is drawn is what the network does."""

from dataclasses import replace
from types import SimpleNamespace

import matplotlib.pyplot as plt
import pytest
from ipywidgets import Dropdown, SelectionSlider
from ipywidgets.widgets import interaction
from matplotlib.figure import Figure
from torch import nn

from subnet_utils import zoo
from subnet_utils.masks import overlap
from subnet_utils.masks.controls import random_like, random_part
from subnet_utils.papers.break_it_down import releases
from subnet_utils.papers.break_it_down.figures import dissection as dissection_figures
from subnet_utils.papers.break_it_down.figures import sliders
from tests.test_figures import assert_readable

pytestmark = pytest.mark.usefixtures("paper_style")


@pytest.fixture(scope="module")
def entry() -> zoo.Entry:
    return zoo.load("sv-agreement-singular")


@pytest.fixture(scope="module")
def few(entry: zoo.Entry) -> zoo.Entry:
    """The same with few examples in its tests."""
    return replace(entry, tests={name: (items[:60], odd[:60]) for name, (items, odd) in entry.tests.items()})


# What is drawn


@pytest.mark.parametrize(("example", "part"), [(0, "subject alone"), (7, "without verb")])
def test_a_part_before_an_example_answers_as_the_subnetwork_does(few, example, part):
    network = few.masks["subject"].apply(few.network) if example == 0 else few.masks["verb"].ablate(few.network)
    figure = dissection_figures.one_part(few, example=example, part=part)
    for ax, test in zip([ax for ax in figure.axes if ax.collections], ("subject", "verb"), strict=True):
        inputs, odd = few.tests[test]
        logits = releases.logits(network, inputs)
        order = [i for i in range(4) if i != odd[example]] + [int(odd[example])]
        probabilities = logits[example].softmax(dim=-1)[order]
        said = [text.get_text() for text in ax.texts if text.get_text() != "accuracy"]
        assert [float(one) for one in said[4:]] == pytest.approx(probabilities.tolist(), abs=0.0051)
        (right,) = ax.child_axes
        accuracy = float((logits.argmax(dim=-1) == odd).float().mean())
        assert float(right.get_yticklabels()[1].get_text()) == pytest.approx(accuracy, abs=0.0051)


@pytest.mark.parametrize(("percent", "draw"), [(100, 0), (40, 3)])
def test_bars_are_the_accuracies_of_a_share_and_of_random_weights(few, percent, draw):
    part, whole = random_part(few.masks["subject"], percent / 100, seed=draw), few.network
    drawn = random_like(part, seed=draw)
    figure = sliders.taken_out(few, subroutine="subject", percent=percent, draw=draw)
    assert heights(figure) == {
        "alone": {"subnetwork": accuracies(few, part.apply(whole)), "random": accuracies(few, drawn.apply(whole))},
        "taken out": {
            "ablated model": accuracies(few, part.ablate(whole)), "random": accuracies(few, drawn.ablate(whole)),
        },
    }  # fmt: skip
    assert f"{part.active:,} weights" in figure.get_suptitle()
    assert_readable(figure)


def test_a_stronger_penalty_keeps_fewer_weights_until_nothing_is_left(capsys):
    """What notebook 04b says beside its slider over lambda."""
    digits, kept = zoo.load("add_mul_mod13"), []
    for power, own in ((-6, 1.0), (-3, 0.98), (-2, 0.08)):
        figure = sliders.by_penalty(digits, function="+", power=power)
        kept.append(int(figure.get_suptitle().split(": ")[1].partition("%")[0]))
        assert heights(figure)["alone"]["subnetwork"][0] == pytest.approx(own, abs=0.03)
        assert_readable(figure)
    assert kept[0] > 50 and 10 < kept[1] < 15 and kept[2] == 0
    assert "a mask may learn" not in capsys.readouterr().err


def test_less_of_the_subnetwork_of_subject_knows_the_verb(entry):
    """What notebook 04b says beside its sliders."""
    for share, said in ((1.0, [1.0, 0.31]), (0.4, [1.0, 0.9])):
        part = entry.part(random_part(entry.masks["subject"], share, seed=0))
        assert accuracies(entry, part) == pytest.approx(said, abs=0.015)


def heights(figure: Figure) -> dict[str, dict[str, list[float]]]:
    """Of the bars: panel, label, and in the order of the tests."""
    return {
        ax.get_title(): {group.get_label(): [bar.get_height() for bar in group] for group in ax.containers}
        for ax in figure.axes
    }


def accuracies(entry: zoo.Entry, network: nn.Module) -> list[float]:
    return [entry.accuracy(network, test) for test in ("subject", "verb")]


def test_bars_of_an_overlap_are_counts_of_weights():
    entry, widths = zoo.load("number-contact"), {}
    for layer, name in ((0, "stages.stage_4.0.conv1.weight"), (3, "stages.head.hidden.weight")):
        figure = sliders.overlap(entry, first="number", second="contact", layer=layer)
        (ax,) = figure.axes
        widths[layer] = {group.get_label(): [bar.get_width() for bar in group][::-1] for group in ax.containers}
        masks = [entry.masks[one] for one in ("number", "contact")]
        a, b = (one.masks[name] for one in masks)
        both = [int((a & b).sum()), float(a.double().mean() * b.double().mean() * a.numel())]
        for label, mask in (("number", a), ("contact", b)):
            assert widths[layer][label] == pytest.approx([int(mask.sum()) - one for one in both])
        assert widths[layer]["both"] == pytest.approx(both)
        assert (
            f"IoU {overlap.iou(masks)[name]:.2f}, by chance {overlap.expected_iou(masks)[name]:.2f}" in ax.get_title()
        )
        assert_readable(figure)
    assert widths[0] != widths[3]


def test_the_solutions_beside_the_sliders(entry):
    """What notebooks 03 and 06 say of a subnetwork that guesses and of what masks share."""
    logits, odd = entry.logits(entry.part("subject"), "verb"), entry.tests["verb"][1]
    right = logits.argmax(dim=-1) == odd
    assert 0.2 < right.float().mean() < 0.4 and logits[right].softmax(dim=-1).max() < 0.255
    masks = zoo.load("number-contact").masks
    within, between = ([masks["number"], masks[other]] for other in ("number-1", "contact"))
    found, chance = overlap.iou(within), overlap.expected_iou(within)
    assert all(found[layer] > chance[layer] for layer in found)
    crossing, chance = overlap.iou(between), overlap.expected_iou(between)
    less = [layer for layer in crossing if crossing[layer] <= chance[layer]]
    assert less == ["stages.stage_4.0.downsample.0.weight"] and all(
        found[layer] > 2 * crossing[layer] for layer in found
    )


# Sliders


def at_notebook(monkeypatch, *, allow_stdin: bool) -> list:
    """What is displayed from now on, in a kernel that was asked to run a cell, with or without a reader."""
    shown, parent = [], {"content": {"allow_stdin": allow_stdin}}
    kernel = SimpleNamespace(get_parent=lambda: parent)
    monkeypatch.setattr(sliders, "get_ipython", lambda: SimpleNamespace(kernel=kernel))
    monkeypatch.setattr(sliders.display, "display", lambda one, **_: shown.append(one))
    monkeypatch.setattr(interaction, "display", shown.append)
    return shown


def draw(_: object, **chosen: object):
    figure = plt.figure()
    figure.suptitle(str(chosen))
    return figure


def test_a_moved_slider_draws_its_position(monkeypatch):
    shown = at_notebook(monkeypatch, allow_stdin=True)
    sliders.show(draw, None, "A caption.", draw=range(3), part=["a", "b"])
    (box,) = [one for one in shown if isinstance(one, interaction.interactive)]
    under = shown[-1]
    number, part, output = box.children
    assert (type(number), type(part)) == (SelectionSlider, Dropdown)
    assert box.result.get_suptitle() == "{'draw': 0, 'part': 'a'}" and not plt.get_fignums()
    number.value = 2
    part.value = "b"
    assert box.result.get_suptitle() == "{'draw': 2, 'part': 'b'}" and not plt.get_fignums()
    assert under["text/html"] == "<p>A caption.</p>" and not number.continuous_update


def test_without_a_reader_the_first_position_stands_still(monkeypatch):
    shown = at_notebook(monkeypatch, allow_stdin=False)
    sliders.show(draw, None, "A caption.", draw=range(3), part=["a", "b"])
    figure, under = shown
    assert figure.get_suptitle() == "{'draw': 0, 'part': 'a'}" and under["text/html"] == "<p>A caption.</p>"
