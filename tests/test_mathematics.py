"""Questions of mathematics, answered by other few lines, and the networks that learn them."""

import re
from math import perm

import numpy as np
import pytest

from subnet_utils.core.lab import Lab
from subnet_utils.core.study import Study, StudyError
from subnet_utils.papers.functional_modularity import section
from subnet_utils.papers.functional_modularity import sequence_steps as steps
from subnet_utils.papers.functional_modularity import sequence_tables as tables
from subnet_utils.problems.modules import CONTROL
from subnet_utils.tasks import mathematics

BRIEF = {"steps": 4, "interval": 2, "batch_size": 8}
NETWORK = {
    "model": "sort", "task": "sort", "questions": {"train": 12, "test": 6, "entropy": [2, 4]}, "seeds": [0],
    "architecture": {"family": "transformer", "width": 8, "layers": 1, "heads": 2, "mlp_width": 8},
    "training": BRIEF, "masks": BRIEF | {"masking": {"samples": 2}}, "direct": ["easy"],
}  # fmt: skip


def study(**changes) -> dict:
    sequences = [NETWORK | changes]
    return {"name": "micro", "compute": {"workers": 1}, "functional_modularity": {"sequences": sequences}}


def value(expression: str, **values: int) -> int:
    return eval(expression, {"__builtins__": {}}, values)


def questions(task: str) -> list[mathematics.Question]:
    return [question for level in mathematics.levels(task, 60, 20).values() for question in level.train + level.test]


def test_sums_and_differences_are_right():
    for text, answer in questions("add_or_sub"):
        a, b = map(int, re.findall(r"(?<!\d)-?\d+", text.replace(" - -", " minus -").replace(" - ", " minus ")))
        if text.startswith("Subtract"):
            a, b = b, a
        adds = any(word in text for word in ("+", "plus", "Add", "Total"))
        assert int(answer) == (a + b if adds else a - b)


def test_lists_are_sorted():
    for text, answer in questions("sort"):
        given, found = ([int(one) for one in re.findall(r"-?\d+", part)] for part in (text, answer))
        assert found == sorted(given, reverse="de" in re.search(r"in (\w\w)", text)[1])
        assert len(set(given)) == len(given) >= 3


def test_solutions_solve_their_equations_and_nothing_else_does():
    for text, answer in questions("linear_1d"):
        left, right, name = re.fullmatch(r"Solve (.*) = (.*) for (\w)\.", text).groups()
        gaps = [value(left, **{name: x}) - value(right, **{name: x}) for x in (int(answer), int(answer) + 1)]
        assert gaps[0] == 0 != gaps[1]


def test_derivatives_agree_with_those_of_fitted_polynomials():
    for text, answer in questions("differentiate"):
        polynomial, order, by = re.search(r"the (.*?) (?:wrt|with respect to) (\w)", text)[1], 0, text[-2]
        order, polynomial = re.fullmatch(r"(\w+) derivative of (.*)", polynomial).groups()
        order = ("first", "second", "third").index(order) + 1
        others = dict.fromkeys(set(re.findall("[a-z]", polynomial + answer)) - {by}, 3)
        points = range(-4, 5)
        fitted = np.polynomial.Polynomial.fit(points, [value(polynomial, **others, **{by: x}) for x in points], 8)
        expected = [value(answer, **others, **{by: x}) for x in (0, 1)]
        assert fitted.deriv(order)(np.array([0, 1])) == pytest.approx(expected, rel=1e-6, abs=1e-3 * perm(8, order))


def test_collected_polynomials_are_equal_and_have_a_term_a_power():
    for text, answer in questions("collect"):
        polynomial = re.fullmatch(r"Collect the terms in (.*)\.", text)[1]
        for x in (-7, 2, 10):
            given, found = (value(part, **dict.fromkeys(re.findall("[a-z]", part), x)) for part in (polynomial, answer))
            assert given == found
        powers = [term[term.find("**") :] if "**" in term else term.isdigit() for term in re.split(" [+-] ", answer)]
        assert len(powers) == len(set(powers))


@pytest.mark.parametrize("task", mathematics.TASKS)
def test_questions_fit_are_all_different_and_get_longer_by_level(task):
    levels = mathematics.levels(task, 60, 20)
    texts = [question.text for level in levels.values() for question in level.train + level.test]
    assert len(set(texts)) == len(texts) == 240 and list(levels) == ["easy", "medium", "hard"]
    assert all(len(text) <= 160 and len(answer) <= 30 for text, answer in questions(task))
    digits = [np.mean([sum(map(str.isdigit, question.text)) for question in level.train]) for level in levels.values()]
    assert digits[0] < digits[2]
    assert mathematics.levels.__wrapped__(task, 60, 20) == levels


def test_too_many_questions_of_too_few_digits_are_refused():
    with pytest.raises(ValueError, match="only [0-9,]+ different questions at level easy; ask for fewer"):
        mathematics.levels("add_or_sub", 4000, 100, (1.0, 1.5))


def test_rows_spell_questions_and_the_masks_level_is_easy():
    problem = steps.Mathematics(section.TransformerPair(**NETWORK["architecture"]), "sort",
                                   section.Questions(train=5, test=3))  # fmt: skip
    rows, answers = problem.examples("easy", 0)
    question = problem.levels["easy"].train[2]
    spelled = ["".join(steps.CHARACTERS[i] for i in part if i > steps.END) for part in (rows[2, :161], answers[2])]
    assert tuple(spelled) == question and rows.shape == (5, 161 + 31)
    assert len(problem.examples(CONTROL, 0)[0]) == 15
    scores = problem.scores(problem.network(0).eval())
    assert set(scores) == {f"accuracy on {name}" for name in ("easy", "medium", "hard", "all levels")}
    assert problem.columns("easy") == ("accuracy on hard", "accuracy on easy")


def test_tables_have_the_hard_level_and_the_papers_settings(tmp_path):
    lab = Lab.open(study(), tmp_path)
    tables.made(lab)
    accuracies = tables.accuracies(lab)
    (one,) = steps.inspected(lab)
    masked = accuracies[accuracies["part"] == "mask of the split"].iloc[0]
    assert masked["accuracy"] == one.mask("easy").result(lab)["accuracy on hard"] and len(accuracies) == 5
    assert one.parts("easy")["learned directly"].problem.examples(CONTROL, 0)[0].shape[0] == 12
    settings = tables.settings(lab).set_index(["task", "setting"])
    assert settings.loc[("sort", "batch, network"), "ours"] == 8
    assert settings.loc[("collect", "warm-up steps"), "paper"] == 5000 and settings.loc["collect", "ours"].isna().all()
    assert len(tables.output_weights(lab)) == 0 and len(tables.examples()) == 15


@pytest.mark.parametrize(
    ("changes", "said"),
    [({"splits": ["jump"]}, "'jump' is no split of sort; it has easy"),
     ({"task": "scan", "direct": None}, "leave them out, or name another task"),
     ({"questions": {"entropy": [4, 2]}}, "does not rise"),
     ({"tested": 2000}, "set questions.test instead"),
     ({"task": "sorts"}, "'sorts' is not valid"),
     ({"architecture": {"family": "lstm"}}, "'sort' is learned by Transformers")],
)  # fmt: skip
def test_bad_settings_are_one_line(changes, said):
    with pytest.raises(StudyError) as error:
        Study.load(study(**changes))
    assert said in str(error.value) and "\n" not in str(error.value)
