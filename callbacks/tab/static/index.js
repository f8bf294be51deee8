// The Support tab: one page on the monitored runs below TensorBoard's log folder. No build step, no network.
// Model text enters the page as text nodes and canvas text only.

import { Browser, choice, color, el } from "./browse.js";

const POLL_SECONDS = 15;
const T = {
  kept: "support/unit/preserved", lost: "support/unit/shrunk", gained: "support/unit/expanded",
  noiseLost: "support/unit/expected_shrunk", noiseGained: "support/unit/expected_expanded",
  pLost: "support/unit/p_shrunk_strength", pGained: "support/unit/p_expanded_strength",
  sureLost: "support/unit/shrunk_sure", sureGained: "support/unit/expanded_sure",
  problemsLost: "support/problem/shrunk", problemsGained: "support/problem/expanded",
  nscr: "support/unit/nscr", leash: "support/leash/nscr", answerEntropy: "entropy/answer",
};
// TensorBoard's: it gives them to its runs in the order in which it first sees them (light, dark).
const PALETTE = [["#425066", "#8e98a3"], ["#12b5cb", "#12b5cb"], ["#e52592", "#e52592"], ["#f9ab00", "#f9ab00"], ["#9334e6", "#9334e6"], ["#7cb342", "#7cb342"], ["#e8710a", "#e8710a"]];

// Data

const embedded = globalThis.OFFLEASH_EMBEDDED;

async function get(route, query = {}) {
  if (embedded) return embedded(route, query);
  const url = new URL(route, import.meta.url);
  for (const [name, value] of Object.entries(query)) url.searchParams.set(name, value);
  const reply = await fetch(url);
  const found = await reply.json().catch(() => ({ error: `${route}: ${reply.status}` }));
  if (!reply.ok) throw new Error(found.error || `${route}: ${reply.status}`);
  return found;
}

function svg(name, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children.flat());
  return made;
}

const known = (value) => typeof value === "number" && Number.isFinite(value);
const digits = (value, n = 3) => (known(value) ? value.toFixed(n).replace(/^(-?)0\./, "$1.") : "–");
const count = (value) => (known(value) ? (Number.isInteger(value) ? String(value) : value.toFixed(1)) : "–");
const chance = (p) => (!known(p) ? "p unknown" : p < 0.001 ? "p < .001" : `p = ${digits(p)}`);

// Charts: every value in view, nothing smoothed

function chart(title, series, { log = false, low, high, at, pick, bands = [], note } = {}) {
  const [w, h, left, right, top, bottom] = [330, 190, 38, 10, 8, 22];
  const points = series.flatMap((line) => line.points).filter(([, y]) => known(y));
  const box = el("div", { class: "chart" }, el("h3", {}, title));
  if (!points.length) return box.append(el("p", { class: "faint" }, "not measured")), box;
  const xs = points.map(([x]) => x), ys = [...points.map(([, y]) => y), ...bands.flatMap((band) => band.edges)];
  const range = (values, a, b) => {
    const from = a ?? Math.min(...values), to = b ?? Math.max(...values);
    const room = (to - from) * 0.05;
    return from === to ? [from - 0.5, to + 0.5] : [a ?? from - room, b ?? to + room];
  };
  const scale = log ? Math.log2 : (x) => x;
  const [x0, x1] = [Math.min(...xs.map(scale)), Math.max(...xs.map(scale))], [y0, y1] = range(ys, low, high);
  const px = (x) => (x0 === x1 ? (left + w - right) / 2 : left + ((scale(x) - x0) / (x1 - x0)) * (w - left - right));
  const py = (y) => h - bottom - ((y - y0) / (y1 - y0)) * (h - top - bottom);
  const root = svg("svg", { viewBox: `0 0 ${w} ${h}`, role: "img", "aria-label": title });
  for (const { edges, color: hue } of bands) {
    const y = py(edges[1]), height = Math.max(2, py(edges[0]) - y);
    root.append(svg("rect", { class: "band", x: left, width: w - left - right, y, height, fill: hue, opacity: 0.22 }));
  }
  for (const y of ticks(y0, y1, 4)) {
    root.append(svg("line", { x1: left, x2: w - right, y1: py(y), y2: py(y), stroke: color("line") }));
    root.append(svg("text", { x: left - 4, y: py(y) + 3, "text-anchor": "end" }, short(y)));
  }
  const places = log ? [...new Set(xs)].sort((a, b) => a - b) : x0 === x1 ? [x0] : ticks(x0, x1, 5);
  for (const x of thinned(places, 8)) root.append(svg("text", { x: Math.min(px(x), w - 12), y: h - 7, "text-anchor": "middle" }, short(x)));
  if (known(at) && scale(at) >= x0 && scale(at) <= x1) root.append(svg("line", { x1: px(at), x2: px(at), y1: top, y2: h - bottom, stroke: color("focus"), "stroke-width": 1.5, "stroke-dasharray": "3 3" }));
  for (const line of series) {
    const drawn = line.points.filter(([, y]) => known(y)), few = drawn.length <= 40;
    root.append(svg("polyline", { points: drawn.map(([x, y]) => `${px(x)},${py(y)}`).join(" "), fill: "none", stroke: line.color, "stroke-width": 1.8, "stroke-dasharray": line.dash || "none" }));
    for (const [x, y] of drawn) root.append(svg("circle", { cx: px(x), cy: py(y), r: few && !line.dash ? 2.4 : 3, fill: few && !line.dash ? line.color : "transparent" }, svg("title", {}, `${line.name} at ${short(x)}: ${digits(y)}`)));
  }
  if (pick) root.addEventListener("click", (event) => {
    const at = ((event.clientX - root.getBoundingClientRect().left) / root.getBoundingClientRect().width) * w;
    pick([...new Set(xs)].reduce((best, x) => (Math.abs(px(x) - at) < Math.abs(px(best) - at) ? x : best)));
  });
  const keys = [...new Map(series.map((line) => [line.key ?? line.name, line])).values()];
  box.append(root, el("div", { class: "legend" },
    keys.map((line) => el("span", {}, el("i", { style: { borderTopColor: line.keyColor ?? line.color, borderTopStyle: line.dash ? "dashed" : "solid" } }), line.key ?? line.name)),
    bands.map((band) => el("span", {}, el("i", { class: "area", style: { background: band.color } }), band.name)),
    note ? el("span", {}, note) : null));
  return box;
}

function ticks(low, high, wanted) {
  const rough = (high - low) / wanted, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * power).find((size) => size >= rough);
  const found = [];
  for (let y = Math.ceil(low / step) * step; y <= high + step * 1e-9; y += step) found.push(Math.abs(y) < step * 1e-9 ? 0 : y);
  return found;
}

const thinned = (values, most) => values.filter((_, i) => i % Math.ceil(values.length / most) === 0);
const short = (value) => (Number.isInteger(value) ? String(value) : String(Number(value.toPrecision(3))).replace(/^(-?)0\./, "$1."));

// TensorBoard's colours. Its page keeps them to itself; by its rule (the palette, in the order of its own list of runs)
// they are the same here, but for a colour that somebody picked by hand, and for colours by a regex.

class Colours {
  constructor() {
    this.order = new Map();
    this.listed = false;
  }

  async refresh() {
    if (embedded) return;
    try {
      const reply = await fetch(new URL("../../runs", import.meta.url));
      for (const name of await reply.json()) if (!this.order.has(name)) this.order.set(name, this.order.size);
      this.listed = true;
    } catch {
      this.listed = false;
    }
  }

  nameOf(run) {
    const names = run.events || [];
    return names.find((name) => this.order.has(name)) ?? [...this.order.keys()].find((name) => names.some((of) => name.startsWith(`${of}/`)));
  }

  of(run, place) {
    const dark = document.documentElement.classList.contains("dark") ? 1 : 0, name = this.nameOf(run);
    return PALETTE[(name === undefined ? place : this.order.get(name)) % PALETTE.length][dark];
  }

  told(runs) {
    if (embedded) return null;
    const strange = runs.filter((run) => this.nameOf(run) === undefined).map((run) => run.name);
    if (!this.listed || strange.length) return `colours are this tab's own${strange.length ? `: TensorBoard does not list ${strange.join(", ")}` : ""}`;
    if (new URLSearchParams(outer().search).has("runColorGroup")) return "TensorBoard colours by a regex now; here each run has its default colour";
    return "TensorBoard's default colours";
  }
}

// The page

class Page {
  constructor() {
    this.runs = [];
    this.off = new Set();
    this.noises = new Map();
    this.colours = new Colours();
    this.state = { run: null, step: null, k: null, ...fromLink() };
    this.main = el("main");
    document.body.append(this.main);
    this.browser = null;
  }

  async refresh() {
    let runs;
    try {
      [runs] = await Promise.all([get("runs"), this.colours.refresh()]);
    } catch (error) {
      if (!this.browser) this.main.replaceChildren(el("p", { class: "error" }, `The Support tab cannot read its data: ${error.message}`));
      else this.said(`No answer from TensorBoard (${error.message}); this is what was loaded last.`);
      return;
    }
    this.said("");
    const readable = runs.filter((run) => !run.error && Object.keys(run.steps).length), before = JSON.stringify(this.runs);
    this.failed = runs.filter((run) => run.error);
    if (JSON.stringify(readable) === before && (this.browser || this.empty)) return;
    const stamps = new Map(this.runs.map((run) => [run.name, run.stamp])), follows = this.runs.length && this.steps.at(-1) === this.step;
    this.runs = readable;
    for (const run of readable) if (stamps.get(run.name) !== run.stamp) { this.browser?.forget(run.name); this.noises.delete(run.name); }
    if (!this.runs.length) return this.nothing();
    if (!this.runs.some((run) => run.name === this.state.run)) Object.assign(this.state, { run: this.runs[0].name, ...(stamps.size ? { problem: null } : {}) });
    if (follows || !this.steps.includes(this.state.step)) this.state.step = this.steps.at(-1);
    if (!this.browser) this.build();
    this.update();
    await this.browser.show();
    if (stamps.size && this.state.problem != null) this.browser.open(this.state.problem, this.state.answer);
    this.loadNoise();
  }

  nothing() {
    this.empty = true;
    this.browser = null;
    this.main.replaceChildren(el("p", {}, "No monitored run here yet: a run is a folder with support.json, which the monitor writes at its first measured step. This page looks again by itself."),
      ...this.failed.map((run) => el("p", { class: "error" }, run.error)));
  }

  said(words) {
    if (this.notice) Object.assign(this.notice, { textContent: words, hidden: !words });
  }

  get run() {
    return this.runs.find((run) => run.name === this.state.run) || this.runs[0];
  }

  get steps() {
    return Object.keys(this.run.steps).map(Number).sort((a, b) => a - b);
  }

  get step() {
    return this.steps.includes(this.state.step) ? this.state.step : this.steps.at(-1);
  }

  get shown() {
    return this.runs.filter((run) => !this.off.has(run.name));
  }

  colorOf(run) {
    return this.colours.of(run, this.runs.indexOf(run));
  }

  build() {
    this.empty = false;
    const slide = (id, change) => el("input", { id, type: "range", min: 0, oninput: (event) => change(Number(event.target.value)) });
    this.sliders = { step: slide("step", (i) => this.setStep(this.steps[i])), k: slide("k", (i) => { this.state.k = this.ks[i]; this.drawCharts(); this.tellSliders(); }) };
    this.now = { step: el("output", { id: "step-now" }), k: el("output", { id: "k-now" }) };
    this.choices = el("div", { class: "bar" });
    this.notice = el("p", { class: "error", hidden: true });
    this.verdict = el("div", { class: "verdict", id: "verdict" });
    this.charts = el("div", { class: "charts" });
    this.browser = new Browser({ ask: get, state: this.state, onStep: (step) => this.setStep(step), link: linkTo });
    this.main.replaceChildren(this.choices, this.notice, this.verdict, this.charts, this.browser.element);
  }

  setStep(step) {
    this.state.step = step;
    this.tellSliders();
    this.drawVerdict();
    this.drawCharts();
    this.browser.stepChanged();
  }

  setRun(run) {
    const last = this.step === this.steps.at(-1);
    Object.assign(this.state, { run, problem: null, answer: null });
    if (last || !this.steps.includes(this.state.step)) this.state.step = this.steps.at(-1);
    this.update();
    this.browser.show();
    this.loadNoise();
  }

  update() {
    this.drawChoices();
    this.tellSliders();
    this.drawVerdict();
    this.drawCharts();
  }

  redraw() {
    if (!this.browser) return;
    this.update();
    this.browser.map?.paint();
  }

  drawChoices() {
    const pick = (run) => el("label", {},
      el("input", { type: "checkbox", checked: !this.off.has(run.name), onchange: (event) => { event.target.checked ? this.off.delete(run.name) : this.off.add(run.name); this.drawCharts(); } }),
      el("span", { class: "swatch", style: { background: this.colorOf(run) } }), run.name);
    const many = this.runs.length > 1;
    this.choices.replaceChildren(
      many ? choice("run", "run", Object.fromEntries(this.runs.map((run) => [run.name, run.name])), this.run.name, (name) => this.setRun(name)) : el("b", {}, this.run.name),
      el("label", {}, "step", this.sliders.step, this.now.step), el("label", {}, "k", this.sliders.k, this.now.k),
      ...(many ? [el("div", { class: "runs", id: "runs" }, el("span", { class: "faint" }, "charts:"), this.runs.map(pick), el("span", { class: "faint", id: "colours", title: "A colour that was picked by hand in TensorBoard's run list cannot be seen from here." }, this.colours.told(this.runs)))] : []),
      ...this.failed.map((run) => el("span", { class: "error" }, run.error)));
  }

  get ks() {
    const tags = Object.keys(this.run.steps[this.step]).filter((tag) => /^pass_at_k\/\d+$/.test(tag));
    return tags.map((tag) => Number(tag.slice(10))).sort((a, b) => a - b);
  }

  get k() {
    return this.ks.includes(this.state.k) ? this.state.k : this.ks.at(-1);
  }

  tellSliders() {
    const set = (slider, values, value) => Object.assign(slider, { max: values.length - 1, value: values.indexOf(value) });
    set(this.sliders.step, this.steps, this.step);
    set(this.sliders.k, this.ks, this.k);
    this.now.step.textContent = `${this.step} of ${this.steps.at(-1)}`;
    this.now.k.textContent = String(this.k ?? "");
  }

  drawVerdict() {
    const run = this.run, m = run.steps[this.step], word = run.words[this.step], first = run.steps[this.steps[0]];
    const moved = (verb, n, of, noise, p) => [el("b", { class: verb }, `${count(n)} ${verb}`), of, el("span", { class: "faint" }, ` (noise ${count(noise)}, ${chance(p)})`)];
    const had = m[T.kept] + m[T.lost], before = run.base["pass_at_k/1"] ?? first["pass_at_k/1"];
    const head = { shrinks: "Support shrinks", expands: "Support expands", keeps: "Support is kept" }[word] ?? (word ? `Support: ${word}` : "Support");
    const entropies = [["token", run.token_entropy], ["answer", T.answerEntropy]].filter(([, tag]) => known(m[tag]))
      .map(([name, tag]) => `${name} entropy ${digits(run.base[tag], 2)} → ${digits(m[tag], 2)}`);
    const details = [
      `Beyond chance one by one: ${count(m[T.sureLost])} lost, ${count(m[T.sureGained])} gained.`,
      `Problems lost altogether: ${count(m[T.problemsLost])}; gained: ${count(m[T.problemsGained])}.`,
      known(m[T.nscr]) ? `NSCR ${digits(m[T.nscr])}${known(m[T.leash]) ? `, where the base reweighted to this pass@1 has ${digits(m[T.leash])}` : ""}.` : "",
      entropies.length ? `${entropies.join(", ")} nats.`.replace(/^./, (letter) => letter.toUpperCase()) : "",
    ];
    this.verdict.replaceChildren(
      el("p", {}, this.runs.length > 1 ? `${run.name}: ` : null, el("b", { class: (word || "").split(" ")[0] }, head), ` at step ${this.step}: pass@1 ${digits(before)} → ${digits(m["pass_at_k/1"])}; of ${count(had)} correct answers that the base reached in ${run.k} samples, `,
        moved("lost", m[T.lost], "", m[T.noiseLost], m[T.pLost]), "; ", moved("gained", m[T.gained], "", m[T.noiseGained], m[T.pGained]), "."),
      el("p", { class: "details" }, details.filter(Boolean).join(" ")));
    this.verdict.dataset.word = (word || "").split(" ")[0];
  }

  // What noise alone loses and gains: fetched after everything else, once for a run.
  async loadNoise() {
    const { name } = this.run;
    if (this.noises.has(name)) return;
    this.noises.set(name, {});
    try {
      this.noises.set(name, await get("noise", { run: name }));
    } catch { /* no base pool: the charts do without */ }
    if (this.browser && this.run.name === name) this.drawCharts();
  }

  drawCharts() {
    const { shown, step, k } = this, many = shown.length > 1, noise = this.noises.get(this.run.name) || {};
    const over = (run, tag) => Object.entries(run.steps).map(([at, m]) => [Number(at), m[tag]]).sort((a, b) => a[0] - b[0]);
    const hue = (run, name) => (many ? this.colorOf(run) : color(name));
    const style = (run, word, name, dash) => ({ name: many ? `${run.name}: ${word}` : word, key: word, keyColor: many ? color("faint") : undefined, color: hue(run, name), dash });
    const line = (tag, word, name, dash) => shown.map((run) => ({ ...style(run, word, name, dash), points: over(run, tag(run)) }));
    const flat = (tag) => shown.filter((run) => known(run.base[tag(run)])).map((run) => ({ ...style(run, "base", "base", "5 4"), points: over(run, tag(run)).map(([x]) => [x, run.base[tag(run)]]) }));
    const both = (tag, word) => [...line(tag, word, "policy"), ...flat(tag)];
    const curve = shown.flatMap((run) => {
      const m = run.steps[step] || run.steps[Object.keys(run.steps).at(-1)];
      const points = (of, prefix = "pass_at_k/") => this.ks.map((n) => [n, of[`${prefix}${n}`]]);
      return [{ ...style(run, "policy", "policy"), points: points(m) }, { ...style(run, "base", "base", "5 4"), points: points(run.base) },
        ...(many ? [] : [{ ...style(run, "base reweighted to this pass@1", "leash", "2 3"), points: points(m, "support/leash/pass_at_") }])].filter((one) => one.points.some(([, y]) => known(y)));
    });
    const band = (edges) => (edges?.every(known) ? [{ edges, color: color("base"), name: `noise alone, 19 times in 20${many ? ` (${this.run.name})` : ""}` }] : []);
    const mean = (tag, edges) => (many || edges?.every(known) ? [] : line(() => tag, "expected of noise alone", "base", "3 3"));
    const pick = (at) => this.steps.includes(at) && this.setStep(at), steps = { at: step, pick };
    this.charts.replaceChildren(
      chart(`pass@k at step ${step}`, curve, { log: true, low: 0, high: 1, at: k, pick: (at) => { this.state.k = at; this.drawCharts(); this.tellSliders(); } }),
      chart(`pass@${k} over steps`, both(() => `pass_at_k/${k}`, "policy"), steps),
      chart("correct answers lost", [...line(() => T.lost, "lost", "lost"), ...mean(T.noiseLost, noise.lost)], { ...steps, low: 0, bands: band(noise.lost) }),
      chart("correct answers gained", [...line(() => T.gained, "gained", "gained"), ...mean(T.noiseGained, noise.gained)], { ...steps, low: 0, bands: band(noise.gained) }),
      chart("NSCR: (gained − lost) / union", [...line(() => T.nscr, "policy", "policy"), ...(many ? [] : line(() => T.leash, "base reweighted to this pass@1", "leash", "5 4").filter((one) => one.points.some(([, y]) => known(y))))], { ...steps, bands: band(noise.nscr) }),
      chart("token entropy (nats)", both((run) => run.token_entropy, "policy"), { ...steps, low: 0 }),
      chart("answer entropy (nats)", both(() => T.answerEntropy, "policy"), { ...steps, low: 0 }));
    performance.mark("offleash: charts drawn");
  }
}

// Links to a cell: the state is in the address of the page around the tab.

const outer = () => { try { return globalThis.parent.location; } catch { return globalThis.location; } };
const LINK = "offleash";

function fromLink() {
  const text = new URLSearchParams(outer().search).get(LINK) ?? (embedded ? new URLSearchParams(outer().hash.slice(1)).get(LINK) : null);
  if (!text) return {};
  try {
    const { run, step, problem, answer, level } = JSON.parse(text);
    return Object.fromEntries(Object.entries({ run, step, problem, answer, level }).filter(([, value]) => value != null));
  } catch {
    return {};
  }
}

function linkTo(state) {
  const url = new URL(outer().href), text = JSON.stringify(state);
  if (url.protocol === "about:") return null;
  if (embedded) url.hash = new URLSearchParams({ [LINK]: text });
  else url.searchParams.set(LINK, text);
  return url.href;
}

// TensorBoard around the tab: dark mode, and its reloads

function followTheme(redraw) {
  let body;
  try { body = globalThis.parent.document.body; } catch { body = document.body; }
  const system = globalThis.matchMedia("(prefers-color-scheme: dark)");
  const apply = () => {
    document.documentElement.classList.toggle("dark", embedded ? system.matches : body.classList.contains("dark-mode"));
    redraw();
  };
  new MutationObserver(apply).observe(body, { attributes: true, attributeFilter: ["class"] });
  system.addEventListener("change", apply);
  apply();
}

function followReloads(refresh) {
  if (embedded) return;
  const { port1, port2 } = new MessageChannel();
  port1.onmessage = (event) => {
    try {
      const message = JSON.parse(event.data);
      if (message.type === "experimental.DataReloaded") refresh();
    } catch { /* not a message of TensorBoard's */ }
  };
  globalThis.parent.postMessage("experimental.bootstrap", "*", [port2]);
  setInterval(refresh, POLL_SECONDS * 1000);
}

export async function render() {
  document.head.append(el("meta", { name: "viewport", content: "width=device-width, initial-scale=1" }));
  if (!embedded) {
    const sheets = ["browse.css", "style.css"].map((name) => el("link", { rel: "stylesheet", href: new URL(name, import.meta.url).href }));
    const loaded = sheets.map((sheet) => new Promise((done) => { sheet.onload = sheet.onerror = done; }));
    document.head.append(...sheets);
    await Promise.all(loaded);
  }
  const page = new Page();
  followTheme(() => page.redraw());
  let busy = null;
  const refresh = () => (busy ||= page.refresh().finally(() => { busy = null; }));
  globalThis.addEventListener("resize", () => page.browser?.map?.paint());
  followReloads(refresh);
  await refresh();
}
