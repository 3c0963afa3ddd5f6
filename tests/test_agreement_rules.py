"""A language model and its rules: sentences against the grammar of the agreement tasks, sums against few lines."""

import re

import numpy as np
import pandas as pd
import pytest
import torch

from subnet_utils.core.lab import Lab
from subnet_utils.core.study import Study, StudyError
from subnet_utils.cost.stand_ins import bert
from subnet_utils.models.architectures import Bert
from subnet_utils.papers.identification_methods import composition_figures, composition_tables
from subnet_utils.papers.identification_methods.fine_tuning_steps import FineTuned, fine_tuned
from subnet_utils.papers.identification_methods.steps import every_step
from subnet_utils.problems.agreement_rules import AgreementRules
from subnet_utils.problems.modules import CONTROL
from subnet_utils.tasks import agreement, agreement_rules, tokenization
from tests.test_figures import assert_readable
from tests.test_identification_methods import BRIEF, study

SMALL = {"family": "bert", "layers": 1, "width": 8, "heads": 2, "mlp_width": 16}
WORDS = tokenization.Vocabulary()
problem = AgreementRules(Bert(**SMALL), reads=40, taught=30, tested=20)


def filled(inputs: torch.Tensor, forms: torch.Tensor) -> list[str]:
    """Sentences with these words where they are hidden."""
    tokens = inputs.masked_scatter(inputs == WORDS.mask, forms)
    return [" ".join(WORDS.tokens[i] for i in row if i > 3) for row in tokens.tolist()]


@pytest.mark.parametrize(("rule", "task"), [("main verb", "sv-agreement"), ("pronoun", "anaphora")])
def test_right_sentences_are_the_grammatical_ones_and_wrong_ones_have_the_second_word_flipped(rule, task):
    table = pd.concat([agreement.sentences(f"{task}-{number}") for number in ("singular", "plural")])
    kinds = [set(table.loc[table["kind"] == kind, "sentence"]) for kind in (0, 2)]
    for part in agreement_rules.cloze(rule, 100, 300):
        assert part.right.shape == (len(part.inputs), 1)
        assert set(filled(part.inputs, part.right)) <= kinds[0] and set(filled(part.inputs, part.wrong)) <= kinds[1]


def test_sentences_that_test_teach_nothing():
    for rule in agreement_rules.RULES:
        tested, taught = (filled(part.inputs, part.right) for part in agreement_rules.cloze(rule, 60, 200))
        assert len(tested) == 60 and taught and not set(tested) & set(taught)
        tested, taught = ({tuple(row) for row in part.inputs.tolist()} for part in agreement_rules.cloze(rule, 60, 200))
        assert not tested & taught, "with the words hidden"
    with pytest.raises(ValueError, match="9000 sentences that test 'main verb and pronoun' leave none that teaches it"):
        agreement_rules.cloze("main verb and pronoun", 9000, 20)


def test_two_rules_act_in_a_sentence_that_neither_is_taught_by():
    part, _ = agreement_rules.cloze("main verb and pronoun", 50, 10)
    plural = {row.plural for row in agreement.WORDS.query("slot == 'subject'").itertuples()}
    for sentence, flipped in zip(filled(part.inputs, part.right), filled(part.inputs, part.wrong), strict=True):
        words, others = sentence.split(), flipped.split()
        assert words[2] == "that" and [a == b for a, b in zip(words, others, strict=True)].count(False) == 2
        assert (words[1] in plural) == (words[4] == "themselves") != (others[4] == "themselves")
        assert (words[1] in plural) == (words[5] not in {"laughs", "swims", "smiles", "is"})
    for rule in ("main verb", "pronoun"):
        taught = filled(*agreement_rules.cloze(rule, 10, 300)[1][:2])
        assert not [sentence for sentence in taught if "that hurt" in sentence or "that doubted" in sentence]


def test_what_is_read_keeps_two_rules_and_breaks_two():
    tokens, hidden = agreement_rules.reading(3000, seed=0)
    assert hidden.shape == (3000, 2) and (tokens == WORDS.mask).sum() == 6000
    plural = set(agreement.WORDS.query("slot in ['subject', 'thing', 'attractor']")["plural"])

    def shares(pattern: str) -> float:
        """How often a noun and what should agree with it, two groups of a pattern, have one number."""
        found = [re.search(pattern, sentence) for sentence in filled(tokens, hidden)]
        pairs = [(one[1] in plural, one[2] in {"themselves", "are", "like", "love"}) for one in found if one]
        assert len(pairs) > 100
        return np.mean([noun == other for noun, other in pairs])

    assert shares(r"^the (\w+) that (likes?|loves?) the") == shares(r"the (\w+) (likes?|loves?) ") == 1.0
    for broken in (r"^the (\w+) .*(himself|herself|themselves)$", r"^the (\w+) .*(is|are) \w+$"):
        assert shares(broken) == pytest.approx(0.5, abs=0.12)
    both = [re.search(r"(himself|herself|themselves) (is|are|\w+s|\w+)$", one) for one in filled(tokens, hidden)]
    both = [(one[1] == "themselves", one[2] not in {"is", "laughs", "swims", "smiles"}) for one in both if one]
    assert np.mean([pronoun == verb for pronoun, verb in both]) == pytest.approx(0.5, abs=0.12) and len(both) > 100
    assert not torch.equal(tokens, agreement_rules.reading(3000, seed=1)[0])


def test_words_of_several_tokens_are_left_out(tmp_path):
    words = sorted(set(agreement.grammar_words()) - {"swims"} | {"##s"})
    folder = bert(tmp_path / "bert", words, vocabulary=140, lowercase=True, num_hidden_layers=1, hidden_size=8,
                  num_attention_heads=2, intermediate_size=16)  # fmt: skip
    own = AgreementRules(Bert(**SMALL, pretrained=str(folder)), reads=9, taught=60, tested=60)
    inputs, right = own.examples("main verb", 0)
    seen = {tokenization.tokenizer(folder)._tokenizer.decode(one) for one in right}
    assert "swim" not in seen and "laughs" in seen and 20 < len(inputs) < 60
    assert (inputs == tokenization.tokenizer(folder).mask).sum() == len(inputs)
    assert own.network(0)(inputs).shape == (len(inputs), 1, 140)


def test_a_rule_is_known_where_the_right_form_is_likelier():
    network = problem.network(3).eval()
    inputs, right, wrong = agreement_rules.cloze("main verb and pronoun", 20, 30)[0]
    with torch.no_grad():
        said = network(inputs).double()
    margin = said.gather(2, right[..., None]) - said.gather(2, wrong[..., None])
    scores = problem.scores(network)
    assert scores["accuracy on main verb and pronoun"] == float((margin[..., 0] > 0).all(dim=1).double().mean())
    expected = -np.log1p(np.exp(-margin.numpy())).sum(axis=(1, 2)).mean()
    assert scores["log-probability on main verb and pronoun"] == pytest.approx(expected, abs=1e-5)
    assert len(scores) == 10 and problem.examples(CONTROL, 0)[1].shape == (40, 2)


def language(**more) -> dict:
    one = {"model": "bert", "learns": {"architecture": SMALL, "reads": 40, "taught": 30, "tested": 20}, "seeds": [0, 1]}
    one |= {"training": BRIEF, "fine_tuning": {"training": BRIEF, "densities": [0.1, 0.5]}} | more
    whole = study(seeds=[0])
    whole["identification_methods"]["language"] = [one]
    return whole


@pytest.mark.usefixtures("paper_style")
def test_fine_tunings_of_a_language_model_are_in_the_same_tables_and_figures(tmp_path):
    lab = Lab.open(language(), tmp_path)
    steps = [(about, network, step) for about, network, step in fine_tuned(lab) if about["model"] == "bert"]
    assert {step for *_, step in steps} <= set(every_step(lab))
    table = composition_tables.fine_tunings(lab)
    assert set(table["model"]) == {"small", "bert"} and set(table.query("model == 'small'")["kind"]) == {"old", "new"}
    own = table.query("model == 'bert' and seed == 0").set_index(["support", "density", "of", "factor", "function"])
    network = steps[0][1].load(lab)
    before = network.state_dict()
    for about, _, step in steps:
        if isinstance(step, FineTuned) and about["seed"] == 0:
            phi = step.load(lab)
            after = phi.apply(network)
            changed = sum(int((before[name] != weight).sum()) for name, weight in after.state_dict().items())
            assert 0 < changed <= phi.changed.active == round(about["density"] * phi.changed.total)
            row = own.loc[(about["support"], about["density"], about["of"], about["factor"], "pronoun")]
            assert row["accuracy"] == problem.scores(after)["accuracy on pronoun"]
    nothing = own.loc[("none", 0.0, "nothing", 0.0, "pronoun"), "accuracy"]
    assert nothing == problem.scores(network)["accuracy on pronoun"]
    assert list(composition_tables.sums(table).groupby("model").size()[["small", "bert"]]) == [4, 10]
    assert_readable(composition_figures.fine_tunings(table, "bert"))


def test_claims_on_sums_are_those_of_a_table_made_by_hand():
    rows = []

    def add(support, density, of, old, new, both, factor=1.0):
        for kind, values in (("old", (old,)), ("new", new), ("both", (both,))):
            for name, value in zip({"old": "o", "new": "ab", "both": "c"}[kind], values, strict=True):
                about = {"model": "m", "support": support, "density": density, "of": of, "factor": factor}
                rows.extend(
                    about | {"kind": kind, "function": name, "accuracy": value + 0.01 * seed, "seed": seed}
                    for seed in (0, 1, 2)
                )

    add("none", 0.0, "nothing", 0.9, (0.5, 0.5), 0.25, 0.0)
    add("all", 1.0, "a", 0.1, (1.0, 0.5), 0.5)
    add("all", 1.0, "b", 0.1, (0.5, 1.0), 0.5)
    add("all", 1.0, "sum", 0.1, (0.6, 0.7), 0.3)
    for support, gain in (("change", 0.1), ("random", 0.0)):
        add(support, 0.2, "a", 0.8, (0.82 + gain, 0.5), 0.4)
        add(support, 0.2, "b", 0.8, (0.5, 0.9 + gain), 0.45)
        add(support, 0.2, "sum", 0.7, (0.7 + gain, 0.75 + gain), 0.6)
        add(support, 0.2, "sum", 0.0, (0.0, 0.0), 0.0, factor=0.5)
    found = composition_tables.sums(pd.DataFrame(rows))
    assert found["ours"].round(6).tolist() == [-0.135, 0.175, 0.1, -0.2, 0.15] and found["n_runs"].eq(3).all()
    assert found["verdict"].tolist() == ["does not hold", "holds", "holds", "does not hold", "holds"]
    table = pd.DataFrame(rows)
    less = composition_tables.sums(table.assign(accuracy=table["accuracy"] - 0.1))  # alone the first has .82 to .84 now
    assert set(less["verdict"]) == {"cannot be told"}


@pytest.mark.parametrize(
    ("more", "what"),
    [
        ({"model": "small"}, "'small' stands twice"),
        ({"learns": {"architecture": SMALL | {"width": 9}}}, "9 is not a multiple of heads 2"),
        ({"fine_tuning": {"densities": [1.5]}}, "densities"),
    ],
)
def test_what_does_not_fit_together_is_one_line(more, what):
    with pytest.raises(StudyError, match=what) as error:
        Study.load(language(**more))
    assert "\n" not in str(error.value)


def test_language_is_shown_beside_networks():
    whole = language()
    del whole["identification_methods"]["networks"]
    with pytest.raises(StudyError, match="is shown beside networks"):
        Study.load(whole)


def test_an_unknown_rule_is_named_with_the_nearest():
    with pytest.raises(ValueError, match=r"^unknown rule 'pronuon'; did you mean 'pronoun'"):
        problem.tests("pronuon")
