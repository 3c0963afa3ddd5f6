"use strict";
// The network. Every weight has a region (which subnetworks have it) and a part (a head or an MLP); it is kept if the
// reader keeps both and has not painted it out.
const network = JSON.parse(document.getElementById("network").textContent);
const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
const numbers = new Float32Array(bytes(network.numbers).buffer);
const regions = bytes(network.regions);
const tensor = (name) => {
  const [first, ...shape] = network.tensors[name];
  return numbers.subarray(first, first + shape.reduce((a, b) => a * b));
};
const {layers, heads, eps} = network;
const width = network.tensors["stages.embeddings.word_embeddings.weight"][2];
const perHead = width / heads;
const MLP = heads; // parts of a layer: its heads, then its MLP
const partOf = (layer, part) => layer * (heads + 1) + part;
const subroutines = Object.keys(network.tests);

const matrices = Object.entries(network.matrices).map(([name, [first, rows, columns]]) => {
  const weights = tensor(name), title = network.titles[name], layer = title.split(" ")[0] - 1;
  const byRow = / (query|key|value)$/.test(title), byColumn = / attention out$/.test(title);
  const part = (row, column) =>
    partOf(layer, byRow ? Math.floor(row / perHead) : byColumn ? Math.floor(column / perHead) : MLP);
  const parts = Uint8Array.from(weights, (_, i) => part(Math.floor(i / columns), i % columns));
  const own = regions.subarray(first, first + weights.length);
  return {name, title, layer, rows, columns, weights, parts, regions: own, bias: tensor(name.replace(/weight$/, "bias")),
    painted: new Uint8Array(weights.length), kept: Float32Array.from(weights), isKept: new Uint8Array(weights.length)};
});
const byName = Object.fromEntries(matrices.map((matrix) => [matrix.name, matrix]));

const keptRegions = [true, true, true, true, true]; // neither, the first alone, the second alone, both, not masked
const keptParts = Array(layers * (heads + 1)).fill(true);

function choose(matrix) {
  const {weights, parts, regions, painted, kept, isKept} = matrix;
  for (let i = 0; i < weights.length; i++) {
    isKept[i] = keptRegions[regions[i]] && keptParts[parts[i]] && !painted[i];
    kept[i] = isKept[i] ? weights[i] : 0;
  }
}

// The forward pass of models/language.py, one sentence at a time, so that there is no padding.
function linear(input, count, {kept, bias, rows, columns}) {
  const output = new Float32Array(count * rows);
  for (let row = 0; row < rows; row++) {
    for (let item = 0; item < count; item++) {
      let a = bias[row], b = 0, c = 0, d = 0, w = row * columns, x = item * columns;
      for (let end = w + columns - 3; w < end; w += 4, x += 4) {
        a += kept[w] * input[x];
        b += kept[w + 1] * input[x + 1];
        c += kept[w + 2] * input[x + 2];
        d += kept[w + 3] * input[x + 3];
      }
      for (const end = (row + 1) * columns; w < end; w++, x++) a += kept[w] * input[x];
      output[item * rows + row] = a + b + c + d;
    }
  }
  return output;
}

function normalized(hidden, name) {
  const scale = tensor(`${name}.weight`), shift = tensor(`${name}.bias`);
  for (let first = 0; first < hidden.length; first += width) {
    let mean = 0, variance = 0;
    for (let i = 0; i < width; i++) mean += hidden[first + i] / width;
    for (let i = 0; i < width; i++) variance += (hidden[first + i] - mean) ** 2 / width;
    const factor = 1 / Math.sqrt(variance + eps);
    for (let i = 0; i < width; i++) hidden[first + i] = (hidden[first + i] - mean) * factor * scale[i] + shift[i];
  }
  return hidden;
}

function erf(x) { // Abramowitz and Stegun, equation 7.1.26: wrong by less than 2e-7
  const t = 1 / (1 + 0.3275911 * Math.abs(x));
  const sum = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t;
  return Math.sign(x) * (1 - sum * Math.exp(-x * x));
}
const gelu = (x) => x * 0.5 * (1 + erf(x * Math.SQRT1_2));
const plus = (a, b) => a.map((x, i) => x + b[i]);

function softmax(scores) {
  const largest = Math.max(...scores), powers = scores.map((score) => Math.exp(score - largest));
  const sum = powers.reduce((a, b) => a + b);
  return powers.map((power) => power / sum);
}

function attend(query, key, value, readers, length) {
  const context = new Float32Array(readers * width);
  for (let reader = 0; reader < readers; reader++) {
    for (let first = 0; first < width; first += perHead) {
      const scores = Array.from({length}, (_, token) => {
        let score = 0;
        for (let i = first; i < first + perHead; i++) score += query[reader * width + i] * key[token * width + i];
        return score / Math.sqrt(perHead);
      });
      softmax(scores).forEach((share, token) => {
        for (let i = first; i < first + perHead; i++) context[reader * width + i] += share * value[token * width + i];
      });
    }
  }
  return context;
}

function layer(hidden, number, readers) { // the new states of the first tokens; all tokens are read
  const name = `stages.layer_${number}`, length = hidden.length / width;
  const matrix = (part) => byName[`${name}.${part}.weight`];
  const [query, key, value] = ["query", "key", "value"].map((part) =>
    linear(hidden, part === "query" ? readers : length, matrix(`attention.self.${part}`)));
  const context = linear(attend(query, key, value, readers, length), readers, matrix("attention.output.dense"));
  const attended = normalized(plus(context, hidden), `${name}.attention.output.LayerNorm`);
  const inner = linear(attended, readers, matrix("intermediate.dense")).map(gelu);
  return normalized(plus(linear(inner, readers, matrix("output.dense")), attended), `${name}.output.LayerNorm`);
}

function embedding(tokens) { // of a sentence: the last hidden state of [CLS], its length 1
  const [words, places, kind] = ["word", "position", "token_type"].map((of) =>
    tensor(`stages.embeddings.${of}_embeddings.weight`));
  let hidden = new Float32Array(tokens.length * width);
  tokens.forEach((token, place) => {
    for (let i = 0; i < width; i++)
      hidden[place * width + i] = words[token * width + i] + kind[i] + places[place * width + i];
  });
  hidden = normalized(hidden, "stages.embeddings.LayerNorm");
  for (let number = 1; number <= layers; number++) hidden = layer(hidden, number, number < layers ? tokens.length : 1);
  const length = Math.max(Math.hypot(...hidden), 1e-12);
  return Array.from(hidden, (x) => x / length);
}

function logits({tokens, examples}, example) { // of "this sentence is the odd one", tasks.odd_one_out.similarity_logits
  const four = examples[example].map((sentence) => embedding(tokens[sentence]));
  const sum = four[0].map((_, i) => four[0][i] + four[1][i] + four[2][i] + four[3][i]);
  return four.map((one) => -one.reduce((total, x, i) => total + x * sum[i], 0));
}

const ODD = 3; // the place of the sentence that breaks the rule
function right(scores) { // a tie is a guess
  const largest = Math.max(...scores);
  return scores[ODD] < largest ? 0 : 1 / scores.filter((score) => score === largest).length;
}
