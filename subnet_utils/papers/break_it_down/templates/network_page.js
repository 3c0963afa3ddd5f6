// The page: what the reader switches, what the tests say, and the map of all weights.
const SLICE = 30; // milliseconds in which a slice of the tests is computed, so that a click never waits for long
const all = (selector) => [...document.querySelectorAll(selector)];
const percent = (share) => `${(100 * share).toFixed(0)}%`;
const tests = subroutines.map((name) => ({...network.tests[name], place: document.getElementById(`test-${name}`)}));
const presets = all("[data-keep]"), regionBoxes = all("[data-region]"), partBoxes = all("[data-part]");
const layerBoxes = all("[data-layer]"), canvases = all("canvas");
const touched = new Set(); // matrices that the brush has met since the last frame
let example = 0, timer;

function showExample() {
  document.getElementById("example").textContent = `Example ${example + 1} of ${tests[0].examples.length}`;
  for (const test of tests) {
    const probabilities = softmax(logits(test, example)), largest = Math.max(...probabilities);
    [...test.place.querySelectorAll("li")].forEach((item, i) => {
      item.querySelector(".text").textContent = test.sentences[test.examples[example][i]];
      item.querySelector(".bar i").style.width = percent(probabilities[i]);
      item.classList.toggle("answer", probabilities[i] === largest);
      showNumber(item, probabilities[i]);
    });
  }
}

function showNumber(place, share) {
  const number = place.querySelector("data");
  [number.value, number.textContent] = [share, percent(share)];
}

function measure(done = 0, sums = tests.map(() => 0)) { // both tests, slice by slice
  const count = tests[0].examples.length, end = performance.now() + SLICE;
  for (; done < count && performance.now() < end; done++)
    tests.forEach((test, i) => { sums[i] += right(logits(test, done)); });
  tests.forEach(({place}, i) => {
    const score = place.querySelector(".score");
    showNumber(score, sums[i] / done);
    score.querySelector(".bar i").style.width = percent(sums[i] / done);
    score.querySelector(".of").textContent = done < count ? `the first ${done} of ${count}` : `all ${count}`;
  });
  document.body.classList.toggle("measuring", done < count);
  if (done < count) timer = setTimeout(measure, 0, done, sums);
}

function showSwitches() {
  const kept = keptRegions.flatMap((keep, region) => keep && region < 4 ? region : []).join("");
  for (const button of presets) button.setAttribute("aria-pressed", button.dataset.keep === kept);
  for (const box of regionBoxes) box.checked = keptRegions[box.dataset.region];
  for (const box of partBoxes) box.checked = keptParts[box.dataset.part];
  for (const box of layerBoxes) {
    const own = keptParts.slice(partOf(+box.dataset.layer, 0), partOf(+box.dataset.layer + 1, 0));
    box.checked = own.some(Boolean);
    box.indeterminate = box.checked && !own.every(Boolean);
  }
  const total = matrices.reduce((sum, {weights}) => sum + weights.length, 0);
  const left = matrices.reduce((sum, {isKept}) => sum + isKept.reduce((a, b) => a + b), 0);
  document.getElementById("kept").textContent =
    `${left.toLocaleString("en")} of ${total.toLocaleString("en")} weights are in the network (${percent(left / total)}).`;
}

function update(changed = matrices) {
  clearTimeout(timer);
  changed.forEach(choose);
  changed.forEach(draw);
  showSwitches();
  showExample();
  document.body.classList.add("measuring");
  timer = setTimeout(measure, 0);
}

// The map
let colors;
function readColors() { // of the regions, light or dark, as the numbers that a canvas takes
  const style = getComputedStyle(document.documentElement);
  colors = [0, 1, 2, 3, 4].map((region) => {
    const [red, green, blue] = style.getPropertyValue(`--region-${region}`).match(/[0-9a-f]{2}/gi).map((x) => parseInt(x, 16));
    return new Uint32Array(Uint8Array.of(red, green, blue, 255).buffer)[0];
  });
}

function draw(matrix) { // what is taller than wide lies on its side
  const {canvas, rows, columns, lying} = matrix, context = canvas.getContext("2d");
  const image = new ImageData(canvas.width, canvas.height), pixels = new Uint32Array(image.data.buffer);
  for (let row = 0, i = 0; row < rows; row++)
    for (let column = 0; column < columns; column++, i++)
      if (matrix.isKept[i]) pixels[lying ? column * rows + row : i] = colors[matrix.regions[i]];
  context.putImageData(image, 0, 0);
  if (document.activeElement === canvas && matrix.byKeyboard) {
    const size = brush();
    context.strokeStyle = getComputedStyle(canvas).color;
    context.strokeRect(matrix.x - size / 2, matrix.y - size / 2, size, size);
  }
}

const brush = () => +document.getElementById("brush").value;
function paint(matrix, x, y) { // a square around a place on the canvas
  const out = document.getElementById("out").checked, size = brush(), {canvas, rows, columns, lying} = matrix;
  const [left, top] = [x, y].map((place) => Math.floor(place - (size - 1) / 2));
  for (let across = Math.max(left, 0); across < Math.min(left + size, canvas.width); across++)
    for (let down = Math.max(top, 0); down < Math.min(top + size, canvas.height); down++)
      matrix.painted[lying ? across * columns + down : down * columns + across] = out;
  if (!touched.size) requestAnimationFrame(() => {
    const changed = [...touched];
    touched.clear();
    update(changed);
  });
  touched.add(matrix);
}

const STEPS = {ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1]};
function prepare(canvas) {
  const matrix = byName[canvas.dataset.name], lying = matrix.rows > matrix.columns;
  Object.assign(matrix, {canvas, lying, x: canvas.width / 2, y: canvas.height / 2});
  const at = (event) => {
    matrix.byKeyboard = false;
    const scale = canvas.width / canvas.clientWidth;
    paint(matrix, Math.floor(event.offsetX * scale), Math.floor(event.offsetY * scale));
  };
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    at(event);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (event.buttons & 1) [...event.getCoalescedEvents(), event].forEach(at);
  });
  canvas.addEventListener("blur", () => draw(matrix));
  canvas.addEventListener("keydown", (event) => {
    matrix.byKeyboard = true;
    if (event.key === " ") paint(matrix, Math.round(matrix.x), Math.round(matrix.y));
    else if (!STEPS[event.key]) return;
    else {
      const [x, y] = STEPS[event.key].map((step) => step * brush());
      matrix.x = Math.min(Math.max(matrix.x + x, 0), canvas.width - 1);
      matrix.y = Math.min(Math.max(matrix.y + y, 0), canvas.height - 1);
      draw(matrix);
    }
    event.preventDefault();
  });
}

const onClick = (selector, act) => all(selector).forEach((one) => one.addEventListener("click", () => {
  act(one);
  update();
}));
const keepRegions = (kept) => [0, 1, 2, 3].forEach((region) => { keptRegions[region] = kept.includes(region); });
onClick("[data-keep]", (button) => keepRegions(button.dataset.keep));
onClick("[data-region]", (box) => { keptRegions[box.dataset.region] = box.checked; });
onClick("[data-part]", (box) => { keptParts[box.dataset.part] = box.checked; });
onClick("[data-layer]", (box) => keptParts.fill(box.checked, partOf(+box.dataset.layer, 0), partOf(+box.dataset.layer + 1, 0)));
onClick("#unpaint", () => matrices.forEach(({painted}) => painted.fill(0)));
onClick("#restart", () => {
  keepRegions("0123");
  keptParts.fill(true);
  matrices.forEach(({painted}) => painted.fill(0));
});
all("[data-step]").forEach((button) => button.addEventListener("click", () => {
  const count = tests[0].examples.length;
  example = (example + +button.dataset.step + count) % count;
  showExample();
}));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  readColors();
  matrices.forEach(draw);
});
readColors();
canvases.forEach(prepare);
update();
