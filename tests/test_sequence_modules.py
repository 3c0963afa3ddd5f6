"""SCAN against its own definition in a few other lines, encoder-decoders, and the masks, tables and figures on them."""

import re
from dataclasses import replace

import nbformat
import numpy as np
import pytest
import torch

from subnet_utils.core.lab import Lab
from subnet_utils.core.sections import ROOT
from subnet_utils.core.study import Study, StudyError
from subnet_utils.masks.subnetwork import Subnetwork
from subnet_utils.models.sequences import END, PADDING, START, right, token_loss
from subnet_utils.models.staged import fingerprint, maskable
from subnet_utils.papers.functional_modularity import half_masks, releases, section
from subnet_utils.papers.functional_modularity import sequence_figures as figures
from subnet_utils.papers.functional_modularity import sequence_steps as steps
from subnet_utils.papers.functional_modularity import sequence_tables as tables
from subnet_utils.problems.modules import CONTROL
from subnet_utils.tasks import mathematics, scan
from tests.test_figures import assert_readable

BRIEF = {"steps": 4, "interval": 2, "batch_size": 8}
LSTM = {"family": "lstm", "width": 6, "layers": 2, "embedding": 4, "dropout": 0.2}
TRANSFORMER = {"family": "transformer", "width": 8, "layers": 1, "heads": 2, "mlp_width": 8}
NETWORKS = [
    {"model": "lstm", "architecture": LSTM, "training": BRIEF,
     "masks": BRIEF | {"learning_rate": 1.0, "masking": {"samples": 2, "l0": 0.01}},
     "splits": ["jump"], "seeds": [0], "direct": ["jump"]},
]  # fmt: skip


def study(networks=NETWORKS) -> dict:
    return {"name": "micro", "compute": {"workers": 1}, "functional_modularity": {"sequences": networks}}


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    lab = Lab.open(study(), tmp_path_factory.mktemp("store"))
    tables.made(lab)
    return lab


def acted(command: str) -> list[str]:
    """What a command asks for, by rewriting its text: another way than the grammar's."""
    if " and " in command:
        return [action for part in command.split(" and ") for action in acted(part)]
    if " after " in command:
        return [action for part in reversed(command.split(" after ")) for action in acted(part)]
    if times := re.fullmatch(r"(.*) (twice|thrice)", command):
        return acted(times[1]) * {"twice": 2, "thrice": 3}[times[2]]
    verb, *rest = command.split()
    do = [] if verb == "turn" else [verb.upper()]
    turn = [f"TURN_{rest[-1].upper()}"] if rest else []
    return (turn + do) * 4 if rest[:1] == ["around"] else turn * (2 if rest[:1] == ["opposite"] else 1) + do


def test_all_commands_are_there_with_their_actions():
    commands = scan.commands()
    assert len(commands) == 20910
    assert all(list(actions) == acted(" ".join(command)) for command, actions in commands.items())
    lengths = [len(actions) for actions in commands.values()]
    assert (min(lengths), max(lengths), max(map(len, commands))) == (1, scan.LONGEST, 9)


TRANSFORMER_PAIR = section.TransformerPair(family="transformer")


@pytest.mark.parametrize(
    ("network", "names", "weights"),
    [
        # two LSTMs of four gates and two layers, and the output: 9 actions and tokens
        (steps.Scan(section.LstmPair(family="lstm")), 9, 2 * 4 * (200 * 16 + 3 * 200 * 200) + 9 * 200),
        # attention is 4 d^2, three times in a pair of layers, and an MLP is 2 d m, twice
        (
            steps.Scan(section.TransformerPair(family="transformer")),
            3 * 10 + 1,
            3 * (12 * 100**2 + 4 * 100 * 200) + 9 * 100,
        ),
        (
            steps.Mathematics(section.TransformerPair(family="transformer"), "sort"),
            31,
            3 * (12 * 100**2 + 4 * 100 * 200) + 98 * 100,
        ),
    ],
)
def test_weights_of_layers_are_masked_and_nothing_else(network, names, weights):
    made = network.network(0)
    found, known = maskable(made), dict(made.named_parameters())
    assert len(found) == names and found[-1] == "output.weight"
    assert sum(known[name].numel() for name in found) == weights


@pytest.mark.parametrize(
    ("name", "train", "test"),
    [("simple", 16728, 4182), ("jump", 14670, 7706), ("turn left", 21890, 1208), ("length", 16990, 3920)],
)
def test_splits_have_the_official_sizes_and_hold_what_they_should(name, train, test):
    split = scan.split(name)
    assert (len(split.train), len(split.test)) == (train, test) and not set(split.train) & set(split.test)
    assert set(split.train) | set(split.test) == set(scan.commands())
    text = {"jump": "jump", "turn left": "turn left"}.get(name)
    if text:
        assert all(text in " ".join(command) for command in split.test)
        assert {command for command in split.train if text in " ".join(command)} == {tuple(text.split())}
    if name == "length":
        assert max(len(scan.commands()[command]) for command in split.train) == 22


def test_rows_hold_questions_and_answers_and_the_loss_is_a_sum_over_tokens():
    rows = steps.encoded([("jump",), ("turn", "left", "twice")])
    assert rows.shape == (2, 10 + 49)
    words = [[steps.WORDS[i] for i in row[:10] if i != PADDING] for row in rows.tolist()]
    assert words == [["jump", "end"], ["turn", "left", "twice", "end"]]
    answers = rows[:, 10:]
    assert [steps.ACTIONS[i] for i in answers[1] if i != PADDING] == ["TURN_LEFT", "TURN_LEFT", "end"]
    logits = torch.zeros(2, 3, len(steps.ACTIONS))
    assert token_loss(logits, answers) == pytest.approx(5 / 2 * np.log(len(steps.ACTIONS)))
    exact = torch.nn.functional.one_hot(answers[:, :3], len(steps.ACTIONS)).float()
    assert right(exact, answers).tolist() == [True, True]
    exact[1, 2] = torch.eye(len(steps.ACTIONS))[START]
    assert right(exact, answers).tolist() == [True, False] and END != PADDING


@pytest.mark.parametrize("architecture", [section.LstmPair(**LSTM), section.TransformerPair(**TRANSFORMER)])
def test_answers_look_at_what_came_before_alone_and_a_full_mask_changes_nothing(architecture):
    problem = steps.Scan(architecture)
    network = problem.network(0).eval()
    rows = steps.encoded(list(scan.commands())[:3000:200])
    logits = network(rows)
    later = rows.clone()
    later[:, 10 + 2] = torch.where(rows[:, 10 + 2] == PADDING, rows[:, 10 + 2], END)
    assert torch.allclose(network(later)[:, :3], logits[:, :3], atol=1e-5)
    assert torch.allclose(network(rows[:4])[:, :2], logits[:4, :2], atol=1e-5)  # whatever else is in the batch
    names, weights = maskable(network), dict(network.named_parameters())
    assert names[-1] == "output.weight" and not any("words" in name or "answers" in name for name in names)
    whole = Subnetwork({name: torch.ones_like(weights[name], dtype=bool) for name in names}, fingerprint(network))
    assert torch.equal(whole.apply(network)(rows), logits)


def test_a_decoder_that_reads_its_own_answers_does_so_in_training_alone():
    network = steps.Scan(section.LstmPair(**LSTM | {"own_outputs": 1.0, "dropout": 0.0})).network(0)
    rows = steps.encoded([("run", "around", "left")])
    alone = network.train()(rows)
    open_eyed = network.eval()(rows)
    assert torch.allclose(alone[:, :1], open_eyed[:, :1], atol=1e-6) and not torch.allclose(alone, open_eyed)


def test_scores_are_shares_of_right_answers_in_every_set():
    problem = steps.Scan(section.TransformerPair(**TRANSFORMER))
    network = problem.network(0).eval()
    scores = problem.scores(network)
    rows = steps.encoded(scan.split("jump").test)
    assert scores["accuracy on jump"] == pytest.approx(float(steps.answered(network, rows).float().mean()))
    assert len(scores) == 2 * len(scan.SPLITS)
    assert len(problem.examples("length", 0)[0]) == 16990 and len(problem.examples(CONTROL, 0)[0]) == 16728
    some = set(scan.sampled(scan.commands(), 1500))
    asked = steps.encoded(command for command in scan.split("jump").test if command in some)
    scores = replace(problem, commands=1500).scores(network)
    assert scores["accuracy on jump"] == pytest.approx(float(steps.answered(network, asked).float().mean()))


def test_commands_that_stand_for_all_hold_both_conjunctions():
    """Commands alternate between `and` and `after`: every tenth of a split would have one of them alone."""
    for name in scan.SPLITS:
        test = scan.split(name).test
        some = scan.sampled(test, len(test) // 10)
        assert len(set(some)) == len(some) == len(test) // 10 and set(some) <= set(test)
        shares = [np.mean(["after" in command for command in commands]) for commands in (some, test)]
        assert shares[0] == pytest.approx(shares[1], abs=0.1)
    assert scan.sampled(scan.commands(), section.COMMANDS) == list(scan.commands())


def test_tables_and_figures(lab):
    accuracies, weights, control = tables.accuracies(lab), tables.output_weights(lab), tables.controls(lab)
    assert set(accuracies["part"]) == {"whole network", "control mask", "mask of the split", "random mask",
                                       "learned directly"}  # fmt: skip
    masks = [one.mask("jump").load(lab) for one in steps.inspected(lab)[:1]]
    whole = steps.inspected(lab)[0].controls[-1].load(lab).masks["output.weight"]
    row = weights[(weights["split"] == "jump") & (weights["seed"] == 0) & (weights["token"] == "JUMP")].iloc[0]
    token = steps.ACTIONS.index("JUMP")
    lost = (whole[token] & ~masks[0].masks["output.weight"][token]).sum() / whole[token].sum()
    assert row["lost"] == pytest.approx(float(lost), nan_ok=True) and row["control"] == int(whole[token].sum())
    half = half_masks.accuracies(lab, steps.inspected(lab))
    assert half.groupby(["model", "seed"])["part"].nunique().eq(6).all()
    claims = tables.findings(accuracies, weights, control, half)
    assert set(claims["verdict"]) == {"cannot be told"}  # the network has learned nothing, so no control is adequate
    known = tables.findings(accuracies, weights.assign(lost=weights["token"].eq("JUMP").map({True: 0.4, False: 0})),
                            control.assign(adequate=True), half).set_index("claim")  # fmt: skip
    assert known.loc["the same, less 2 times that of other actions", "ours"] == pytest.approx(0.4)
    removed = "share of JUMP's output weights that are removed"
    of_other = weights.assign(lost=0.0, family="transformer")
    of_other = tables.findings(accuracies, of_other, control, half).set_index("claim")
    assert known.loc[removed, "paper"] == 0.5 and np.isnan(of_other.loc[removed, "paper"]), "it printed an LSTM's"
    along, overlaps = tables.along_steps(lab), tables.overlaps(lab)
    assert along["density"].between(0, 1).all() and overlaps["chance_iou"].dropna().between(0, 1).all()


@pytest.mark.usefixtures("paper_style")
def test_figures_are_legible(lab):
    accuracies = tables.accuracies(lab)
    for figure in (
        figures.accuracies(accuracies),
        figures.accuracies(accuracies, figures.SPLITS),
        figures.output_weights(tables.output_weights(lab)),
        figures.along_steps(tables.along_steps(lab)),
        half_masks.figure(half_masks.accuracies(lab, steps.inspected(lab))),
    ):
        assert_readable(figure)


@pytest.mark.parametrize(
    ("change", "said"),
    [({"splits": ["jumps"]}, "'jumps' is not valid"),
     ({"direct": ["turn left"]}, "'turn left' is not among the splits"),
     ({"masks": BRIEF | {"masking": "magnitude"}}, "masking: 'magnitude' trains no masks, and notebook 09b"),
     ({"architecture": TRANSFORMER | {"heads": 3}}, "8 is not a multiple of heads 3")],
)  # fmt: skip
def test_bad_settings_are_one_line(change, said):
    with pytest.raises(StudyError) as error:
        Study.load(study([NETWORKS[0] | change]))
    assert said in str(error.value) and "\n" not in str(error.value)


def test_networks_are_told_apart_by_name():
    with pytest.raises(StudyError, match="sequences: 'lstm' stands twice"):
        Study.load(study(NETWORKS * 2))


def test_the_notebook_needs_a_network_that_learns_scan(lab, tmp_path):
    steps.require_scan(lab)
    sorts = {"task": "sort", "architecture": TRANSFORMER, "splits": None, "direct": None}
    with pytest.raises(ValueError, match="sequences: none learns scan, which 09b shows; add one that does"):
        steps.require_scan(Lab.open(study([NETWORKS[0] | sorts]), tmp_path))


def test_the_notebook_ends_without_the_split_jump(lab, capsys):
    notebook = nbformat.read(ROOT / "notebooks/09b_sequences.ipynb", as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    found = {"accuracies": tables.accuracies(lab), "weights": tables.output_weights(lab)}
    found = {name: table[table["split"] != "jump"] for name, table in found.items()}
    exec(cells[-1].source, found | {"lab": lab, "scan": scan, "along": tables.along_steps(lab)})  # noqa: S102
    assert "densities are shares: True" in capsys.readouterr().out


def test_every_task_may_stand_in_the_zoo():
    assert {"scan", *mathematics.TASKS} <= {*releases.TASKS.index}
