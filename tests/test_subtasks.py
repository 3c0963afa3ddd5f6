"""A BERT and a ResNet with known subtasks: items and labels against other few lines, and what is refused."""

import re

import numpy as np
import pytest
import torch
from scipy import ndimage

from subnet_utils.core.lab import Lab
from subnet_utils.core.study import Study, StudyError
from subnet_utils.models import build
from subnet_utils.models.architectures import Bert, ResNet
from subnet_utils.models.staged import maskable
from subnet_utils.papers.identification_methods import composition_tables, method_figures
from subnet_utils.papers.identification_methods import method_steps as steps
from subnet_utils.papers.identification_methods import method_tables as tables
from subnet_utils.papers.identification_methods.steps import every_step
from subnet_utils.problems.modules import CONTROL
from subnet_utils.problems.odd_one_out import Chooser, Subroutines
from subnet_utils.problems.subtasks import VARIES
from subnet_utils.tasks import agreement
from subnet_utils.tasks.odd_one_out import mirrored
from subnet_utils.tasks.tokenization import Vocabulary
from tests.test_figures import assert_readable
from tests.test_identification_methods import BRIEF, NETWORK, method, study

BERT = {"family": "bert", "layers": 2, "width": 8, "heads": 2, "mlp_width": 16}
RESNET = {"family": "resnet", "block": "basic", "depths": [1, 1, 1, 1], "width": 4, "head_width": 8, "embedding": 8}
sentences = Subroutines("sv-agreement-singular", Bert(**BERT), taught=40, masked=30, tested=20)
images = Subroutines("number-contact", ResNet(**RESNET), taught=12, masked=10, tested=12)


def words(items: torch.Tensor) -> list[list[str]]:
    """Sentences of token ids [m, 4, length], four to an example."""
    tokens = Vocabulary().tokens
    return [[" ".join(tokens[i] for i in row if i > 3) for row in example] for example in items.tolist()]


@pytest.mark.parametrize(("function", "flipped", "other"), [("subject", 1, 2), ("verb", 2, 1)])
def test_sentences_of_a_subroutine_are_those_of_break_it_down(function, flipped, other):
    kind_of = agreement.sentences("sv-agreement-singular").set_index("sentence")["kind"].to_dict()
    taught = {sentence for example in words(sentences.examples(function, 0)[0]) for sentence in example}
    for end, rest in (("", {0}), (VARIES, {0, other})):
        items, odd = sentences.tests(f"{function}{end}")
        assert items.shape[:2] == (20, 4) and odd.shape == (20, 1)
        kinds = np.array([[kind_of[sentence] for sentence in example] for example in words(items)])
        at_odd = np.take_along_axis(kinds, odd.numpy(), axis=1)
        assert (at_odd == flipped).all() and (kinds == flipped).sum() == 20 and set(kinds.ravel()) == {flipped} | rest
        assert not taught & {sentence for example in words(items) for sentence in example}
    assert len(sentences.examples(function, 0)[0]) == 30 and len(sentences.examples(CONTROL, 0)[0]) == 40


@pytest.mark.parametrize("function", ["number", "contact"])
@pytest.mark.parametrize("end", ["", VARIES])
def test_scenes_of_a_subroutine_are_those_of_break_it_down(function, end):
    """Shapes are counted by their colors, and what stands apart by connected pixels."""
    items, odd = images.tests(f"{function}{end}")
    cells = items.flatten(0, 1).numpy()
    drawn = (cells < 255).any(axis=1)
    shapes = [len(np.unique(cell[:, on], axis=1).T) for cell, on in zip(cells, drawn, strict=True)]
    clumps = [ndimage.label(on, np.ones((3, 3)))[1] for on in drawn]
    seen = {"number": np.reshape(shapes, (-1, 4)), "contact": np.reshape(clumps, (-1, 4))}
    other = "contact" if function == "number" else "number"
    for values, fixed, place in zip(seen[function], seen[other], odd[:, 0].tolist(), strict=True):
        assert len({*np.delete(values, place)}) == 1 and values[place] != np.delete(values, place)[0]
        assert end or len({*fixed}) == 1
    assert (seen[other].std(axis=1) > 0).any() == bool(end)


@pytest.mark.parametrize("problem", [sentences, images], ids=["bert", "resnet"])
def test_the_least_similar_item_is_the_odd_one(problem):
    items, network = problem.tests(problem.functions[0])[0][:3], problem.network(3).eval()
    whole = network.embed if problem is images else build(BERT, seed=0, vocabulary=Vocabulary().size)
    whole.load_state_dict(network.embed.state_dict(), strict=False)  # the pooler is of no use
    with torch.no_grad():
        vectors = torch.stack([whole(example) for example in items]).double().numpy()
        found = network(items)
    vectors /= np.linalg.norm(vectors, axis=-1, keepdims=True)
    expected = -np.einsum("mid,mjd->mi", vectors, vectors)
    assert found.shape == (3, 1, 4) and np.allclose(found[:, 0], expected, atol=1e-5)
    same, another = (problem.network(seed).state_dict().values() for seed in (3, 4))
    assert all(torch.equal(a, b) for a, b in zip(network.state_dict().values(), same, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(network.state_dict().values(), another, strict=True))


def test_masks_cover_the_matrices_of_the_layers_and_no_embeddings():
    network = sentences.network(0)
    assert sum(network.get_parameter(name).numel() for name in maskable(network)) == 2 * (4 * 8 * 8 + 2 * 8 * 16)


def test_scores_are_shares_of_right_answers_and_log_probabilities():
    network = sentences.network(0).eval()
    scores = sentences.scores(network)
    assert len(scores) == 8 and sentences.scores(network, ("verb",)).keys() == {
        "accuracy on verb", "log-probability on verb",
    }  # fmt: skip
    items, odd = sentences.tests(f"verb{VARIES}")
    with torch.no_grad():
        chances = network(items)[:, 0].double().softmax(dim=1)
    right = chances.gather(1, odd)
    assert scores[f"accuracy on verb{VARIES}"] == float((chances.argmax(dim=1, keepdim=True) == odd).double().mean())
    assert scores[f"log-probability on verb{VARIES}"] == pytest.approx(float(right.log().mean()), abs=1e-5)


def test_images_are_mirrored_in_training_alone():
    items = torch.arange(2 * 3 * 4 * 4).view(2, 3, 4, 4)
    torch.manual_seed(0)
    views = {tuple(mirrored(items)[0].flatten().tolist()) for _ in range(60)}
    flips = [items[0].flip(dims) for dims in ([], [1], [2], [1, 2])]
    assert views == {tuple(view.flatten().tolist()) for view in flips}
    seen, chooser = [], Chooser(build(RESNET, seed=0))
    chooser.embed.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].clone()))
    some = images.tests("number")[0]
    for mode in (False, True):
        chooser.train(mode)(some)
    assert torch.equal(seen[0], some.flatten(0, 1)) and not torch.equal(seen[1], seen[0])


@pytest.mark.parametrize(
    ("learns", "what"),
    [
        ({"task": "sv-agreement", "architecture": BERT}, "learns.task: 'sv-agreement' is not valid; did you mean"),
        ({"task": "number-contact", "architecture": BERT}, "items of 'number-contact' are images; give a resnet"),
        ({"task": "anaphora-plural", "architecture": RESNET}, "are sentences; give a bert"),
        ({"task": "number-contact", "architecture": {"family": "vit"}}, "architecture.family: 'vit' is not valid"),
        ({"task": "anaphora-plural", "architecture": BERT | {"pretrained": "x"}}, "start from random weights"),
        ({"task": "anaphora-plural", "architecture": BERT}, "fine_tuning: is for networks that learn add_mul"),
        ({"task": "add_mull"}, "learns.task: 'add_mull' is not valid; did you mean 'add_mul'"),
    ],
)  # fmt: skip
def test_what_is_no_network_is_one_line(learns, what):
    with pytest.raises(StudyError, match=re.escape(what)) as error:
        Study.load(study(learns=learns))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("call", [lambda name: sentences.examples(name, 0), sentences.tests])
def test_an_unknown_function_is_named_with_the_nearest(call):
    with pytest.raises(
        ValueError, match=r"^task 'sv-agreement-singular' has no set '\w+-subjct'; did you mean"
    ) as error:
        call("subjct")
    assert "\n" not in str(error.value)


def other_kinds() -> dict:
    """A study with a micro BERT and a micro ResNet, one mask a function."""
    whole = study()
    small = {"taught": 12, "masked": 10, "tested": 12}  # images are drawn once, for all tests
    own = {name: NETWORK[name] for name in ("densities", "draws", "reference")} | {"training": BRIEF, "seeds": [0]}
    own |= {"methods": [method("hard_concrete", l0=0.001), method("magnitude"), method("random")], "repeats": 1}
    own |= {"parts": 1, "sampled": 2}
    for model, task, architecture in (("bert", sentences.task, BERT), ("resnet", images.task, RESNET)):
        learns = small | {"task": task, "architecture": architecture}
        whole["identification_methods"]["networks"].append(
            {"model": model, "learns": learns, "parts": 1, "sampled": 2} | own
        )
    return whole


@pytest.mark.usefixtures("paper_style")
def test_networks_of_other_kinds_are_in_the_same_tables_and_figures(tmp_path):
    lab = Lab.open(other_kinds(), tmp_path)
    assert {"Composed", "Compared", "Cut"} <= {type(step).__name__ for step in every_step(lab)}
    found = steps.inspected(lab)[2:]
    tables.made(lab, found)
    curve = tables.along_densities(lab, found)
    table = tables.side_by_side(lab, found, curve)
    assert len(table) == 6 and table["same_iou"].isna().all() and table["chance_iou"].notna().all()
    for one in found:
        measured = curve.query("model == @one.settings.model and method == 'magnitude' and part == 'alone'")
        network, functions = one.network.load(lab), one.network.problem.functions
        for name, other in (functions, functions[::-1]):
            kept = one.identified(one.settings.methods[1], name).cut(lab, 0.5)
            scores = one.network.problem.scores(kept.apply(network))
            row = measured.query("function == @name and asked == 0.5").iloc[0]
            assert row["own_varied"] == scores[f"accuracy on {name}{VARIES}"]
            assert (row["own"], row["other"]) == (scores[f"accuracy on {name}"], scores[f"accuracy on {other}"])
    claims = tables.findings(table)
    assert len(claims) == 6 * 5 and "also where the other one varies" in set(claims["claim"])
    agree = tables.agreement(lab, found)
    assert len(agree) == 2 * 6 and (agree["method"] != agree["with_method"]).all()
    assert len(tables.faithfulness(lab, found, curve)) == 2 * 2 * 2  # two rankings, by two measures
    parts = composition_tables.compositions(lab, found)
    assert set(parts["model"]) == {"bert", "resnet"} and parts[["a", "b"]].notna().all(axis=None)
    assert_readable(method_figures.side_by_side(curve, table, "bert"))
    assert_readable(method_figures.agreement(agree, "bert"))


def test_the_first_network_is_the_one_that_shows_the_methods_by_hand():
    whole = other_kinds()
    whole["identification_methods"]["networks"] = whole["identification_methods"]["networks"][1:]
    with pytest.raises(StudyError, match="put one that learns add_mul first"):
        Study.load(whole)
