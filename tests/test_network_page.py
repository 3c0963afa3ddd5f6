"""The page that takes a network apart computes what PyTorch computes, whatever the reader takes out."""

import pytest
import torch

from subnet_utils.core.lab import Lab
from subnet_utils.masks.subnetwork import Subnetwork
from subnet_utils.papers.break_it_down import dissection, network_page
from tests import micro
from tests.browser import needs_browser

NAMES = ("subject", "verb")
MINE = "mine"


def study(**masks) -> dict:
    """A BERT of the size that is shown, hardly trained. Its weights are wide, so that its answers differ."""
    made = micro.language({"starts": ["layer_1"], "inits": [0.05], "seeds": [0], **masks})
    (bert,) = made["break_it_down"]["experiments"]
    sizes = {"family": "bert", "layers": 2, "width": 128, "heads": 4, "mlp_width": 512, "deviation": 0.15}
    return micro.but(made, experiments=[bert | {"architecture": sizes}])


@pytest.fixture(scope="module")
def lab(tmp_path_factory) -> Lab:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(network_page, "LEARNED", 0.0)
        yield Lab.open(study(), tmp_path_factory.mktemp("page"))


@pytest.fixture(scope="module")
def pair(lab) -> dissection.Parts:
    return network_page.learned(lab)


@pytest.fixture(scope="module")
def page(lab, pair, tmp_path_factory):
    return network_page.write(lab, pair, tmp_path_factory.mktemp("site"))


@pytest.fixture
def opened(page, browser):
    """The browser with the page as it is at first."""
    browser.open(page)
    return browser


def shown(browser) -> list[float]:
    """The probability of each sentence shown, first test first."""
    return browser.evaluate("[...document.querySelectorAll('li data')].map(one => +one.value)")


def computed(lab, pair, part: Subnetwork | None, example: int = 0) -> list[float]:
    """The same by PyTorch."""
    answers = dissection.dissect(lab, pair, {} if part is None else {MINE: part}, example=example).answers
    return answers[answers["part"] == (dissection.WHOLE if part is None else MINE)]["probability"].tolist()


def test_the_page_is_small_and_complete(page, pair):
    assert page.stat().st_size < network_page.LARGEST
    assert "https://" not in page.read_text() and "http://" not in page.read_text()
    assert pair.title in page.read_text()


def test_regions_are_those_of_the_masks():
    masks = [Subnetwork({"w": torch.tensor(bits, dtype=torch.bool)}, "n") for bits in ([[0, 1, 0, 1]], [[0, 0, 1, 1]])]
    assert network_page._regions("w", torch.zeros(1, 4), masks).tolist() == [[0, 1, 2, 3]]
    assert network_page._regions("other", torch.zeros(2), masks).tolist() == [network_page.UNMASKED] * 2


def test_a_page_that_is_too_large_is_refused(lab, pair, tmp_path, monkeypatch):
    monkeypatch.setattr(network_page, "LARGEST", 1000)
    with pytest.raises(ValueError, match=r"bytes, 1,000 at most; use smaller networks"):
        network_page.write(lab, pair, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_study_without_a_network_that_learned_is_one_line(monkeypatch, lab, capsys):
    monkeypatch.setattr(network_page, "LEARNED", 1.1)
    monkeypatch.setattr(network_page.Lab, "open", lambda name: lab)
    monkeypatch.setattr("sys.argv", ["network_page", "micro"])
    assert network_page.main() == 2
    *_, said = capsys.readouterr().err.splitlines()
    assert said == "no language network of 'micro' has learned its task and has masks of one start"


@needs_browser
def test_what_is_shown_is_what_pytorch_computes(lab, pair, opened, monkeypatch):
    monkeypatch.setattr(dissection, "accuracies", lambda *_: None)  # of whole sets, which are not shown
    found = dissection.subnetworks(lab, pair)
    both = dissection.combined(found)
    subject, verb = found.values()
    whole = computed(lab, pair, None)
    assert max(whole) - min(whole) > 0.05, "a network that only guesses would show nothing"
    clicks = {
        "0123": None, "13": subject, "23": verb, "02": ~subject, "01": ~verb,
        "123": both[dissection.TOGETHER], "3": both[dissection.SHARED], "0": both[dissection.NEITHER],
    }  # fmt: skip
    for example in range(4):
        for kept, part in clicks.items():
            opened.click(f"[data-keep='{kept}']")
            assert opened.evaluate(f"document.querySelector(\"[data-keep='{kept}']\").ariaPressed") == "true"
            assert shown(opened) == pytest.approx(computed(lab, pair, part, example), abs=1e-4), (example, kept)
        opened.click("[data-step='1']")


@needs_browser
def test_heads_layers_and_painted_weights_are_taken_out(lab, pair, opened):
    masks = {name: torch.ones_like(mask) for name, mask in dissection.subnetworks(lab, pair)["subject"].masks.items()}
    network = pair.base.result(lab)["network"]
    opened.click("[data-part='1']")  # the second head of the first layer
    for part in ("query", "key", "value"):
        masks[f"stages.layer_1.attention.self.{part}.weight"][32:64] = False
    masks["stages.layer_1.attention.output.dense.weight"][:, 32:64] = False
    assert shown(opened) == pytest.approx(computed(lab, pair, Subnetwork(masks, network)), abs=1e-4)

    name = "stages.layer_2.intermediate.dense.weight"  # 512 x 128 lies on its side
    opened.evaluate("document.getElementById('brush').selectedIndex = 2")
    opened.click(f"canvas[data-name='{name}']")
    opened.evaluate("new Promise(requestAnimationFrame)")
    painted = opened.evaluate(f"[...byName['{name}'].painted.keys()].filter(i => byName['{name}'].painted[i])")
    rows, columns = torch.tensor(painted) // 128, torch.tensor(painted) % 128
    assert len(painted) == 24 * 24 and abs(rows.double().mean() - 256) < 2 and abs(columns.double().mean() - 64) < 2
    masks[name].view(-1)[painted] = False
    assert shown(opened) == pytest.approx(computed(lab, pair, Subnetwork(masks, network)), abs=1e-4)

    opened.click("[data-layer='1']")
    for name, mask in masks.items():
        mask[:] = mask & ("layer_2" not in name)
    assert shown(opened) == pytest.approx(computed(lab, pair, Subnetwork(masks, network)), abs=1e-4)
    opened.click("#restart")
    assert shown(opened) == pytest.approx(computed(lab, pair, None), abs=1e-4)


@needs_browser
def test_both_tests_are_measured(lab, pair, opened):
    subject = dissection.subnetworks(lab, pair)["subject"]
    opened.click("[data-keep='13']")
    opened.evaluate("new Promise(done => setInterval(() => document.body.matches('.measuring') || done(), 50))")
    table = dissection.accuracies(lab, pair, {MINE: subject}).loc[MINE]
    scores = opened.evaluate("[...document.querySelectorAll('.score data')].map(one => +one.value)")
    assert scores == pytest.approx([table[f"Test {name}"] for name in NAMES])
    assert "all 16" in opened.evaluate("document.querySelector('.score').textContent")


@needs_browser
def test_keys_paint(opened):
    left = "matrices.reduce((sum, one) => sum + one.isKept.reduce((a, b) => a + b), 0)"
    before = opened.evaluate(left)
    opened.evaluate("document.querySelector('canvas').focus()")
    for key in (" ", "ArrowRight", " "):  # two squares of 8 x 8, side by side
        opened.press(key)
    opened.evaluate("new Promise(requestAnimationFrame)")
    assert before - opened.evaluate(left) == 2 * 8 * 8
    opened.evaluate("document.querySelector(\"[data-keep='02']\").focus()")
    opened.press("Enter")
    assert opened.evaluate("document.querySelector(\"[data-keep='02']\").ariaPressed") == "true"


@needs_browser
def test_a_click_takes_less_than_a_fifth_of_a_second(opened):
    press = "(button => { const start = performance.now(); button.click(); return performance.now() - start })"
    taken = [
        opened.evaluate(f"{press}(document.querySelector(\"[data-keep='{kept}']\"))")
        for kept in ("13", "02", "23", "01", "0123", "13", "02", "23", "01", "0123")
    ]
    assert min(taken) < 200, taken  # other programs may hold up some of them


@needs_browser
@pytest.mark.parametrize("width", [400, 1280])
@pytest.mark.parametrize("dark", [False, True])
def test_it_looks_right_and_asks_no_other_machine(page, browser, width, dark):
    browser.open(page, width=width, dark=dark)
    assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")
    paper = browser.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
    assert (max(paper) < 60) == dark
    assert all(address.startswith("file:") for address in browser.requests) and not browser.errors
