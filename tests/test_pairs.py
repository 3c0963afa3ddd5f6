"""Sentence pairs become tokens as BERT writes them, and attention is shared out by an independent count."""

from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
import transformers

from subnet_utils.papers.heuristic_core import pair_networks
from subnet_utils.papers.heuristic_core.attention_patterns import PATTERNS, example_maps, patterns
from subnet_utils.papers.heuristic_core.pair_networks import Encoded, PretrainedError, Transformer, published_tokenizer
from subnet_utils.papers.heuristic_core.section import OwnTransformer
from subnet_utils.tasks import inference

TINY = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
FAMILIES = pytest.mark.parametrize("family", ["bert", "roberta", "gpt2"])


def transformer(family: str = "bert") -> Transformer:
    return Transformer.of(OwnTransformer(family=family, layers=2, width=16, heads=4, mlp_width=24, deviation=0.5))


def number(word: str) -> int:
    return len(pair_networks.SPECIAL) + inference.words().index(word)


def encoded(family: str = "bert") -> Encoded:
    pairs = {"premise": ["the poet sang ,", "monk"], "hypothesis": ["sang the", "monk and"], "label": [0, 1]}
    return transformer(family).encode(pd.DataFrame(pairs))


def test_a_pair_is_written_as_bert_writes_it():
    data = encoded()
    the, poet, sang, comma, monk, also = map(number, ["the", "poet", "sang", ",", "monk", "and"])
    assert data.inputs["input_ids"].tolist() == [[2, the, poet, sang, comma, 3, sang, the, 3],
                                                 [2, monk, 3, monk, also, 3, 0, 0, 0]]  # fmt: skip
    assert data.inputs["attention_mask"].tolist() == [[1] * 9, [1] * 6 + [0] * 3]
    assert data.inputs["token_type_ids"].tolist() == [[0] * 6 + [1] * 3, [0, 0, 0, 1, 1, 1, 0, 0, 0]]
    assert data.segments.tolist() == [[-1, 0, 0, 0, 0, -1, 1, 1, -1], [-1, 0, -1, 1, 1, -1, -1, -1, -1]]
    assert "token_type_ids" not in encoded("gpt2").inputs
    assert data.batch(torch.tensor([1]))["input_ids"].shape == (1, 6), "no column that nobody needs"


@FAMILIES
def test_networks_are_functions_of_their_seed_and_padding_changes_nothing(family):
    """The logits of a short pair are the same alone and beside a longer one."""
    model, same, other = (transformer(family).classifier(classes=2, seed=seed).eval() for seed in (0, 0, 1))
    data = encoded(family)
    with torch.no_grad():
        together = model(**data.batch(torch.arange(2))).logits
        torch.testing.assert_close(together[1:], model(**data.batch(torch.tensor([1]))).logits, rtol=1e-4, atol=1e-5)
        assert torch.equal(together, same(**data.batch(torch.arange(2))).logits)
        assert not torch.equal(together, other(**data.batch(torch.arange(2))).logits)


def test_published_weights_that_cannot_be_had_are_named(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    for load in (partial(pair_networks.published_network, classes=2, seed=0), published_tokenizer):
        with pytest.raises(PretrainedError, match="give a folder with config.json"):
            load(str(tmp_path))


def test_a_cased_tokenizer_that_makes_letters_small_is_refused(tmp_path):
    """What transformers makes of a cased BERT's files without its tokenizer_config.json."""
    words = [*pair_networks.SPECIAL, "The", "man", "##s", "the"]
    vocabulary = {word: i for i, word in enumerate(words)}
    transformers.BertTokenizer(vocab=vocabulary, do_lower_case=False).save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    assert published_tokenizer(str(tmp_path)).tokenize("The mans") == ["The", "man", "##s"]
    (tmp_path / "tokenizer_config.json").unlink()
    with pytest.raises(PretrainedError, match="makes all letters small, .* put its tokenizer_config.json beside"):
        published_tokenizer(str(tmp_path))


def by_hand(attention: np.ndarray, tokens: list[int], segments: list[int], *, causal: bool) -> dict[str, float]:
    """The four shares of one head on one pair, word by word; nan where no word can look."""
    words = [i for i, segment in enumerate(segments) if segment >= 0]
    shares = {name: [] for name in PATTERNS}
    for i in words:
        aims = {
            "repeated": [j for j in words if tokens[j] == tokens[i] and segments[j] != segments[i]],
            "previous": [i - 1] if i else [],
            "next": [i + 1],
            "separator": [j for j, token in enumerate(tokens) if token == pair_networks.SEPARATOR],
        }
        for name, positions in aims.items():
            reached = [j for j in positions if j <= i or not causal]
            if reached:
                shares[name].append(sum(attention[i, j] for j in reached))
    return {name: float(np.mean(values)) if values else np.nan for name, values in shares.items()}


@pytest.mark.parametrize("family", ["bert", "gpt2"])
@pytest.mark.parametrize("same", [(), ("poet", "sang")])
def test_shares_of_attention_are_those_counted_word_by_word(family, same):
    """same: words that count as one."""
    model = transformer(family).classifier(classes=2, seed=0).eval()
    model.set_attn_implementation("eager")
    pairs = pd.DataFrame({"premise": ["the poet sang"], "hypothesis": ["sang the"], "label": [0]})
    data, alike = transformer(family).encode(pairs), transformer(family).word_numbers()
    alike[[number(word) for word in same]] = 99
    table = patterns(model, data, alike)
    maps = example_maps(model, data, 0)
    assert maps.shape == (2, 4, 8, 8) and torch.allclose(maps.sum(dim=-1), torch.ones(2, 4, 8), atol=1e-5)
    tokens, segments = alike[data.inputs["input_ids"][0]].tolist(), data.segments[0].tolist()
    for row in table.itertuples():
        expected = by_hand(maps[row.layer, row.head].numpy(), tokens, segments, causal=family == "gpt2")
        assert np.isnan(expected["next"]) == (family == "gpt2")
        for name, share in expected.items():
            assert getattr(row, name) == pytest.approx(share, abs=1e-5, nan_ok=True)
        largest = max((name for name in PATTERNS if expected[name] >= 0), key=expected.get)
        assert row.category == (largest if expected[largest] >= 0.5 else "other")
