// Filter tasks, page through them and their predictions; draws grids as arcnb.arc.drawing does. No kernel, no request.
async function arcnbExplore(root, facts) {
  const bytes = Uint8Array.from(atob(facts.data), (c) => c.charCodeAt(0));
  const plain = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const tasks = await new Response(plain).json();
  const state = { text: "", low: 1, high: 30, colors: new Set(), rate: "any", at: 0, prediction: 0 };

  const make = (tag, attributes = {}, ...children) => {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
      else if (value !== false) element.setAttribute(name, value);
    }
    element.append(...children);
    return element;
  };
  const SVG = "http://www.w3.org/2000/svg";
  const svg = (tag, attributes, ...children) => {
    const element = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children);
    return element;
  };
  const rows = (text) => text.split("/").map((row) => [...row].map(Number));
  const shape = (text) => { const grid = rows(text); return `${grid.length}x${grid[0].length}`; };
  const apart = (text, wanted) => [...text].filter((value, n) => value !== wanted[n]).length;
  const cells = (text) => text.replaceAll("/", "").length;
  const readOut = (text) => shape(text) + (cells(text) <= 100 ? `: ${text.replaceAll("/", " ")}`
    : ` with the values ${[...new Set(text.replaceAll("/", ""))].sort().join(" ")}`);

  // wanted: the expected grid; split: only the difference, expected above the diagonal, produced below
  function draw(text, cell, wanted = null, split = false) {
    const grid = rows(text), other = wanted ? rows(wanted) : null;
    const same = other && other.length === grid.length && other[0].length === grid[0].length;
    const height = grid.length, width = grid[0].length, edge = 1 / cell;
    const shown = svg("svg", {
      class: "arcnb-grid", role: "img",
      "aria-label": split ? `difference ${shape(text)}: ${apart(text, wanted)} of ${cells(text)} cells` : `grid ${readOut(text)}`,
      width: width * cell + 2, height: height * cell + 2,
      viewBox: `${-edge} ${-edge} ${width + 2 * edge} ${height + 2 * edge}`,
    });
    shown.append(svg("rect", { width, height, fill: split ? "#888" : "#000", "fill-opacity": split ? 0.25 : 1,
                                 stroke: "#666", "stroke-width": 2 * edge }));
    const part = (value, d, title) => {
      const fill = value === null ? { fill: "#fff", "fill-opacity": 0 } : { fill: facts.colors[value], class: `c${value}` };
      const path = svg("path", { d, ...fill, stroke: "#666",
                                 "stroke-width": (cell >= 10 ? 1 : 0.6) * edge });
      if (title) path.append(svg("title", {}, title));
      shown.append(path);
    };
    grid.forEach((row, r) => row.forEach((value, c) => {
      const want = same ? other[r][c] : value, differs = want !== value;
      const title = `row ${r}, column ${c}: ${value}` + (differs ? `, expected ${want}` : "");
      if (!split) part(value, `M${c} ${r}h1v1h-1z`, title);
      else if (!differs) part(null, `M${c} ${r}h1v1h-1z`, `${title}, right`);
      else {
        part(want, `M${c} ${r}h1l-1 1z`, title);
        part(value, `M${c + 1} ${r}v1h-1z`, title);
      }
    }));
    if (!split && same) {
      const dots = [];
      grid.forEach((row, r) => row.forEach((value, c) => { if (value !== other[r][c]) dots.push(`M${c}.5 ${r}.5h0`); }));
      for (const [color, size] of [["#000", cell >= 10 ? 0.56 : 0.95], ["#fff", cell >= 10 ? 0.36 : 0.6]])
        if (dots.length) shown.append(svg("path", { d: dots.join(""), stroke: color, "stroke-width": size,
          "stroke-linecap": "round", fill: "none", "pointer-events": "none" }));
    }
    return shown;
  }

  const unknown = (text) => make("div", { class: "arcnb-unknown" }, text);
  const step = (caption, picture) =>
    make("div", { class: "arcnb-step" }, make("div", { class: "arcnb-cap" }, caption), picture);

  function pairRow(task, prediction, [input, output], i) {
    const name = i < task.train ? `train ${i}` : `test ${i - task.train}`;
    const produced = prediction && prediction.outputs ? prediction.outputs[i] : null;
    const sides = [input, output, produced].filter(Boolean).flatMap((text) => shape(text).split("x").map(Number));
    const cell = Math.min(24, Math.max(6, Math.floor((prediction ? 190 : 210) / Math.max(...sides))));
    const steps = [step("input", draw(input, cell)), step("expected", output ? draw(output, cell) : unknown("?"))];
    let says = `${shape(input)} → ${output ? shape(output) : "?"}`;
    if (prediction) {
      steps.push(step("produced", produced ? draw(produced, cell, output) : unknown("no output")));
      if (!produced) says = "no output";
      else if (!output) says = `${shape(produced)}, expected output unknown`;
      else if (shape(produced) !== shape(output)) says = `✗ shape ${shape(produced)} instead of ${shape(output)}`;
      else if (produced === output) says = "✓ right";
      else {
        says = `✗ ${apart(produced, output)} of ${cells(produced)} cells differ`;
        steps.push(step("difference", draw(produced, cell, output, true)));
      }
    }
    const flow = make("div", { class: "arcnb-flow" });
    steps.forEach((one, n) => flow.append(...(n ? [make("span", { "aria-hidden": "true" }, "→"), one] : [one])));
    return make("div", { class: "arcnb-pair" }, make("div", { class: "arcnb-note" }, `${name}: ${says}`), flow);
  }

  const rates = {
    any: () => true, predicted: (rate, task) => task.predictions.length > 0, unknown: (rate) => rate === null,
    unsolved: (rate) => rate === 0, solved: (rate) => rate > 0, "under 10%": (rate) => rate > 0 && rate < 0.1,
    "10% and more": (rate) => rate >= 0.1,
  };
  const matching = () => tasks.filter((task) =>
    task.id.toLowerCase().includes(state.text.trim().toLowerCase()) && task.side >= state.low && task.side <= state.high &&
    [...state.colors].every((color) => task.colors.includes(color)) && rates[state.rate](task.rate, task));

  const refilter = () => { state.at = state.prediction = 0; show(); };
  const number = (label, key) => make("label", {}, label,
    make("input", { type: "number", min: 1, max: 30, value: state[key],
                    oninput: (event) => { state[key] = Number(event.target.value) || (key === "low" ? 1 : 30); refilter(); } }));
  const swatches = facts.colors.map((color, value) => make("button", {
    type: "button", class: "swatch", "aria-pressed": "false", title: `tasks with color ${value}`,
    onclick: (event) => {
      const on = !state.colors.delete(value) && Boolean(state.colors.add(value));
      event.currentTarget.setAttribute("aria-pressed", String(on));
      refilter();
    },
  }, draw(String(value), 16)));
  const chosenRate = make("select", { class: "rate", onchange: (event) => { state.rate = event.target.value; refilter(); } },
    ...Object.keys(rates).map((name) => make("option", {}, name)));
  const picked = make("select", { class: "task", onchange: (event) => { state.at = event.target.selectedIndex; state.prediction = 0; show(); } });
  const count = make("span", { class: "count", role: "status" });
  const view = make("div", { class: "view" });
  const pager = (name, key, limit) => {
    const turn = (by) => () => { state[key] += by; if (key === "at") state.prediction = 0; show(); };
    const button = (sign, way, by) => make("button", {
      type: "button", class: `${name}-${way}`, title: `${way === "back" ? "previous" : "next"} ${name}`,
      "aria-label": `${way === "back" ? "previous" : "next"} ${name}`, onclick: turn(by),
    }, sign);
    const back = button("◀", "back", -1), next = button("▶", "next", 1);
    return { back, next, update: () => { back.disabled = state[key] <= 0; next.disabled = state[key] >= limit() - 1; } };
  };
  let found = [];
  const taskPager = pager("task", "at", () => found.length);
  const predictionPager = pager("prediction", "prediction", () => (found[state.at] || { predictions: [] }).predictions.length);

  function show() {
    const focused = document.activeElement;
    render();
    if (focused && focused !== document.activeElement && root.contains(focused)) (focused.disabled ? root : focused).focus();
  }

  function render() {
    found = matching();
    state.at = Math.max(0, Math.min(state.at, found.length - 1));
    picked.replaceChildren(...found.map((task) =>
      make("option", {}, task.id + (task.rate === null ? "" : ` · ${(100 * task.rate).toFixed(1)}%`))));
    picked.selectedIndex = found.length ? state.at : -1;
    count.textContent = `${found.length} of ${tasks.length} tasks${facts.note}`;
    taskPager.update();
    predictionPager.update();
    const task = found[state.at];
    if (!task) { view.replaceChildren("No task fits."); return; }
    const prediction = task.predictions[state.prediction];
    const row = make("div", { class: "arcnb-row" }, ...task.pairs.map((pair, i) => pairRow(task, prediction, pair, i)));
    view.replaceChildren(make("div", { class: "arcnb-head" }, task.id), row);
    if (prediction) {
      const place = `prediction ${state.prediction + 1} of ${task.predictions.length}`;
      const head = `${place} · ${prediction.set ? prediction.set + " · " : ""}${prediction.says}`;
      const turning = make("div", { class: "bar-row" }, predictionPager.back, predictionPager.next, make("b", { class: "says" }, head));
      const program = make("details", { open: true }, make("summary", {}, "program"), make("pre", {}, prediction.program));
      view.prepend(turning);
      view.append(program);
    }
  }

  root.replaceChildren(
    make("div", { class: "arcnb-head" }, facts.title),
    make("div", { class: "bar-row" },
      make("label", {}, "id", make("input", { class: "text", size: 10, oninput: (event) => { state.text = event.target.value; refilter(); } })),
      number("sides", "low"), number("to", "high"),
      make("label", {}, "solve rate", chosenRate), make("span", { class: "swatches" }, ...swatches)),
    make("div", { class: "bar-row" }, taskPager.back, picked, taskPager.next, count), view,
    make("div", { class: "arcnb-note keys" }, "Keys: ← → prediction, shift ← → task"));
  root.tabIndex = 0;
  root.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: "back", ArrowRight: "next" }[event.key];
    if (!by || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
    (event.shiftKey ? taskPager : predictionPager)[by].click();  // a disabled button does nothing
    event.preventDefault();
  });
  state.at = Math.max(0, tasks.findIndex((task) => task.predictions.length));
  show();
}
