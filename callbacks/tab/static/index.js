// The Support tab: one page on the monitored runs below TensorBoard's log folder. No build step, no network.
// Model text enters the page as text nodes and canvas text only.

const POLL_SECONDS = 15;
const ROW = 16, HEAD = 34;
const PALETTE = ["#1f6feb", "#e8710a", "#12a4af", "#c2185b", "#7cb342", "#8e44ad", "#f9ab00", "#5d6d7e"];
const T = {
  lost: "support/unit/shrunk", gained: "support/unit/expanded", noiseLost: "support/unit/expected_shrunk",
  noiseGained: "support/unit/expected_expanded", pLost: "support/unit/p_shrunk_strength",
  pGained: "support/unit/p_expanded_strength", sureLost: "support/unit/shrunk_sure",
  sureGained: "support/unit/expanded_sure", problemsLost: "support/problem/shrunk",
  problemsGained: "support/problem/expanded", nscr: "support/unit/nscr", leash: "support/leash/nscr",
  answerEntropy: "entropy/answer",
};

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

// Small pieces of a page

function el(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (key === "style") Object.assign(made.style, value);
    else if (value === true) made.setAttribute(key, "");
    else if (value !== false && value != null) made.setAttribute(key, value);
  }
  made.append(...children.flat().filter((child) => child != null));
  return made;
}

function svg(name, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children.flat());
  return made;
}

const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const known = (value) => typeof value === "number" && Number.isFinite(value);
const digits = (value, n = 3) => (known(value) ? value.toFixed(n).replace(/^(-?)0\./, "$1.") : "–");
const count = (value) => (known(value) ? (Number.isInteger(value) ? String(value) : value.toFixed(1)) : "–");
const chance = (p) => (!known(p) ? "p unknown" : p < 0.001 ? "p < .001" : `p = ${digits(p)}`);
const plural = (n, word) => `${count(n)} ${word}${n === 1 ? "" : "s"}`;

// Charts

function chart(title, series, { log = false, low, high, mark, at } = {}) {
  const [w, h, left, right, top, bottom] = [330, 190, 38, 8, 8, 22];
  const points = series.flatMap((line) => [...line.points, ...(line.band || []).flatMap(([x, a, b]) => [[x, a], [x, b]])]);
  const xs = points.map(([x]) => x), ys = points.map(([, y]) => y).filter(known);
  const box = el("div", { class: "chart" }, el("h3", {}, title));
  if (!ys.length) return box.append(el("p", { class: "faint" }, "not measured")), box;
  const range = (values, a, b) => {
    const from = a ?? Math.min(...values), to = b ?? Math.max(...values);
    return from === to ? [from - 0.5, to + 0.5] : [from, to];
  };
  const scale = log ? Math.log2 : (x) => x;
  const [x0, x1] = range(xs.map(scale)), [y0, y1] = range(ys, low, high);
  const px = (x) => left + ((scale(x) - x0) / (x1 - x0)) * (w - left - right);
  const py = (y) => h - bottom - ((y - y0) / (y1 - y0)) * (h - top - bottom);
  const root = svg("svg", { viewBox: `0 0 ${w} ${h}`, role: "img", "aria-label": title });
  for (const y of ticks(y0, y1, 4)) {
    root.append(svg("line", { x1: left, x2: w - right, y1: py(y), y2: py(y), stroke: color("line") }));
    root.append(svg("text", { x: left - 4, y: py(y) + 3, "text-anchor": "end" }, short(y)));
  }
  const places = log ? [...new Set(xs)].sort((a, b) => a - b) : ticks(x0, x1, 5);
  for (const x of thinned(places, 8)) root.append(svg("text", { x: px(x), y: h - 7, "text-anchor": "middle" }, short(x)));
  for (const line of series) {
    if (line.band?.length) {
      const there = line.band.map(([x, , b]) => `${px(x)},${py(b)}`), back = line.band.map(([x, a]) => `${px(x)},${py(a)}`).reverse();
      root.append(svg("polygon", { points: [...there, ...back].join(" "), fill: line.color, opacity: 0.16 }));
    }
    const drawn = line.points.filter(([, y]) => known(y)).map(([x, y]) => `${px(x)},${py(y)}`);
    root.append(svg("polyline", { points: drawn.join(" "), fill: "none", stroke: line.color, "stroke-width": 1.8, "stroke-dasharray": line.dash || "none" }));
    for (const [x, y] of line.points) if (known(y)) root.append(svg("circle", { cx: px(x), cy: py(y), r: 2.2, fill: line.color }, svg("title", {}, `${line.name}: ${short(x)}, ${digits(y)}`)));
  }
  if (known(at)) root.append(svg("line", { x1: px(at), x2: px(at), y1: top, y2: h - bottom, stroke: color("focus"), "stroke-dasharray": "3 3" }));
  box.append(root, el("div", { class: "legend" }, series.map((line) =>
    el("span", {}, el("i", { style: { borderTopColor: line.color, borderTopStyle: line.dash ? "dashed" : "solid" } }), line.name))));
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

// The page

class Page {
  constructor() {
    this.runs = [];
    this.off = new Set();
    this.state = { run: null, step: null, k: null, level: "answer", sort: "lost", filter: "", only: "all", problem: null, ...fromLink() };
    this.main = el("main");
    document.body.append(this.main);
    this.map = null;
  }

  async refresh() {
    const before = JSON.stringify(this.runs);
    try {
      this.runs = (await get("runs")).filter((run) => !run.error && Object.keys(run.steps).length);
    } catch (error) {
      this.main.replaceChildren(el("p", { class: "error" }, `The Support tab cannot read its data: ${error.message}`));
      return;
    }
    if (JSON.stringify(this.runs) === before && this.main.childElementCount) return;
    await this.draw();
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

  colorOf(run) {
    return PALETTE[this.runs.indexOf(run) % PALETTE.length];
  }

  set(changes) {
    Object.assign(this.state, changes);
    return this.draw();
  }

  async draw() {
    if (!this.runs.length) {
      this.main.replaceChildren(el("p", {}, "No monitored run here yet: a run is a folder with support.json."));
      return;
    }
    const top = this.map?.box.scrollTop ?? 0;
    this.main.replaceChildren(this.choices(), this.verdict(), this.charts(), this.controls(), this.look());
    await this.drawMap(top);
    if (this.state.problem != null) await this.openCell(this.state.problem, this.step);
  }

  choices() {
    const pick = (run) => el("label", {},
      el("input", { type: "checkbox", checked: !this.off.has(run.name), onchange: (event) => { event.target.checked ? this.off.delete(run.name) : this.off.add(run.name); this.draw(); } }),
      el("span", { class: "swatch", style: { background: this.colorOf(run) } }), run.name);
    const steps = this.steps, at = steps.indexOf(this.step);
    return el("div", { class: "bar" },
      el("label", {}, "run", el("select", { id: "run", onchange: (event) => this.set({ run: event.target.value, problem: null }) },
        this.runs.map((run) => el("option", { value: run.name, selected: run === this.run }, run.name)))),
      el("label", {}, "step", el("input", { id: "step", type: "range", min: 0, max: steps.length - 1, value: at, oninput: (event) => this.set({ step: steps[Number(event.target.value)] }) }), el("output", { id: "step-now" }, String(this.step))),
      this.runs.length > 1 ? el("div", { class: "runs" }, this.runs.map(pick)) : null);
  }

  verdict() {
    const run = this.run, m = run.steps[this.step], word = run.words[this.step], first = run.steps[this.steps[0]];
    const moved = (verb, n, noise, p, sure) => [el("span", { class: verb }, `${verb} ${count(n)}`), ` (noise ${count(noise)}, ${chance(p)}, ${count(sure)} beyond chance)`];
    const line = known(m[T.leash]) ? `; the base reweighted to this pass@1 would have ${digits(m[T.leash])}` : "";
    const entropies = [["token", run.token_entropy], ["answer", T.answerEntropy]].filter(([, tag]) => known(m[tag]))
      .map(([name, tag]) => `${name} entropy ${digits(run.base[tag], 2)} → ${digits(m[tag], 2)}`);
    return el("div", { class: "verdict", id: "verdict" },
      `Step ${this.step}: pass@1 ${digits(run.base["pass_at_k/1"] ?? first["pass_at_k/1"])} → ${digits(m["pass_at_k/1"])}. Of the correct answers that the base reached in ${run.k} samples the policy `,
      moved("lost", m[T.lost], m[T.noiseLost], m[T.pLost], m[T.sureLost]), ", and it ",
      moved("gained", m[T.gained], m[T.noiseGained], m[T.pGained], m[T.sureGained]),
      `. ${plural(m[T.problemsLost], "problem")} lost altogether, ${count(m[T.problemsGained])} gained. NSCR ${digits(m[T.nscr])}${line}. `,
      word ? ["Support ", el("b", { class: word.split(" ")[0] }, word), ". "] : "", entropies.length ? `${entropies.join(", ")} nats.` : "");
  }

  charts() {
    const shown = this.runs.filter((run) => !this.off.has(run.name));
    const many = shown.length > 1;
    const over = (run, tag) => Object.entries(run.steps).map(([step, m]) => [Number(step), m[tag]]).sort((a, b) => a[0] - b[0]);
    const named = (run, word) => (many ? `${run.name}: ${word}` : word);
    const series = (tag, word, base, hue) => shown.flatMap((run) => [
      { name: named(run, word), color: many ? this.colorOf(run) : color(hue || "policy"), points: over(run, tag(run)) },
      ...(base && known(run.base[tag(run)]) ? [{ name: named(run, "base"), color: many ? this.colorOf(run) : color("base"), dash: "5 4", points: over(run, tag(run)).map(([x]) => [x, run.base[tag(run)]]) }] : []),
    ]);
    const line = (tag, word, hue, dash) => shown.map((run) => ({ name: named(run, word), color: many ? this.colorOf(run) : color(hue), dash, points: over(run, tag) }));
    const ks = (metrics) => Object.keys(metrics).filter((tag) => /^pass_at_k\/\d+$/.test(tag)).map((tag) => Number(tag.slice(10))).sort((a, b) => a - b);
    const curve = shown.flatMap((run) => {
      const m = run.steps[this.step] || run.steps[Object.keys(run.steps).at(-1)], points = (of, prefix = "pass_at_k/") => ks(m).map((k) => [k, of[`${prefix}${k}`]]);
      return [{ name: named(run, "policy"), color: many ? this.colorOf(run) : color("policy"), points: points(m) },
        { name: named(run, "base"), color: many ? this.colorOf(run) : color("base"), dash: "5 4", points: points(run.base) },
        ...(many ? [] : [{ name: "base reweighted to this pass@1", color: color("leash"), dash: "2 3", points: points(m, "support/leash/pass_at_").filter(([, y]) => known(y)) }])];
    });
    const all = ks(this.run.steps[this.step]), k = all.includes(this.state.k) ? this.state.k : all.at(-1);
    const slider = el("label", { class: "faint" }, "k ", el("input", { id: "k", type: "range", min: 0, max: all.length - 1, value: all.indexOf(k), oninput: (event) => this.set({ k: all[Number(event.target.value)] }) }), ` ${k}`);
    const passes = chart(`pass@k at step ${this.step}`, curve, { log: true, low: 0, high: 1, at: k });
    const overSteps = chart(`pass@${k} over steps`, series(() => `pass_at_k/${k}`, `pass@${k}`, true), { at: this.step });
    overSteps.append(slider);
    return el("div", { class: "charts" }, passes, overSteps,
      chart("answers lost and gained", [...line(T.lost, "lost", "lost"), ...(many ? [] : line(T.noiseLost, "lost by noise", "lost", "3 3")), ...line(T.gained, "gained", "gained", many ? "2 3" : undefined), ...(many ? [] : line(T.noiseGained, "gained by noise", "gained", "3 3"))], { low: 0, at: this.step }),
      chart("NSCR", [...line(T.nscr, "policy", "policy"), ...(many ? [] : line(T.leash, "base reweighted to this pass@1", "leash", "5 4"))], { at: this.step }),
      chart("token entropy (nats)", series((run) => run.token_entropy, "policy", true), { at: this.step }),
      chart("answer entropy (nats)", series(() => T.answerEntropy, "policy", true), { at: this.step }));
  }

  controls() {
    const select = (id, label, options, value, change) => el("label", {}, label, el("select", { id, onchange: (event) => change(event.target.value) },
      Object.entries(options).map(([key, words]) => el("option", { value: key, selected: key === value }, words))));
    const levels = { problem: "problems", answer: "answers", spelling: "spellings" };
    return el("div", { class: "bar" },
      select("level", "rows", levels, this.state.level, (level) => this.set({ level })),
      select("sort", "sort by", { lost: "lost first", gained: "gained first", trajectory: "most changes", hits: "hits of the base", order: "problem order" }, this.state.sort, (sort) => { this.state.sort = sort; this.map.arrange(); }),
      select("only", "show", { all: "all", lost: "lost", gained: "gained", changed: "lost or gained at any step" }, this.state.only, (only) => { this.state.only = only; this.map.arrange(); }),
      el("label", {}, "search", el("input", { id: "search", type: "search", value: this.state.filter, placeholder: "problem or answer", oninput: (event) => { this.state.filter = event.target.value; this.map.arrange(); } })),
      el("span", { id: "rows", class: "faint" }));
  }

  look() {
    const keys = [["kept-high", "hit by both"], ["lost", "lost beyond noise"], ["perhaps-lost", "perhaps lost"], ["gained", "gained beyond noise"], ["perhaps-gained", "perhaps gained"], ["ground", "not hit"]];
    this.box = el("div", { class: "map", id: "map" });
    this.cell = el("div", { class: "cell", id: "cell" }, el("p", { class: "faint" }, "Click a cell: what did base and policy write?"));
    return el("div", { class: "look" },
      el("div", {}, el("div", { class: "keys" }, keys.map(([hue, words]) => el("span", {}, el("i", { style: { background: color(hue) } }), words)),
        el("span", {}, "beyond noise: at a false discovery rate of 5 % within a step")), this.box), this.cell);
  }

  async drawMap(top) {
    const run = this.run, box = this.box;
    let grid;
    try {
      grid = await get("grid", { run: run.name, level: this.state.level });
    } catch (error) {
      box.replaceChildren(el("p", { class: "error" }, error.message));
      return;
    }
    if (box !== this.box) return;  // drawn again meanwhile
    this.map = new HeatMap(this, grid, box, document.getElementById("rows"));
    box.scrollTop = top;
    this.map.paint();
  }

  async openCell(problem, step) {
    this.state.problem = problem;
    const cell = this.cell, run = this.run;
    let found;
    try {
      found = await get("cell", { run: run.name, step, problem });
    } catch (error) {
      cell.replaceChildren(el("p", { class: "error" }, error.message));
      return;
    }
    if (cell !== this.cell) return;
    const link = linkTo({ run: run.name, step, problem, level: this.state.level });
    const move = (by) => { const next = this.map?.neighbour(problem, by); if (next != null) this.openCell(next, step); };
    cell.replaceChildren(
      el("div", { class: "bar" }, el("button", { onclick: () => move(-1) }, "previous"), el("button", { onclick: () => move(1) }, "next"),
        link ? el("button", { id: "copy", title: link, onclick: (event) => { navigator.clipboard?.writeText(link); event.target.textContent = "copied"; } }, "copy link") : null),
      el("h2", {}, `${found.id}, step ${step}`), el("pre", { class: "prompt" }, found.prompt),
      el("p", {}, el("span", { class: "faint" }, "gold: "), found.gold),
      el("div", { class: "sides" }, side("base", found.base), side("policy", found.policy)));
    this.map?.paint();
  }
}

function side(name, found) {
  const group = (one) => el("details", { open: one.only_here },
    el("summary", {}, `${one.count} × `, one.answer ?? (one.status === "ok" ? "(any answer)" : "(no answer)"),
      el("span", { class: `tag ${one.correct ? "gained" : "lost"}` }, one.correct ? "correct" : one.status === "ok" ? "wrong" : one.status.replace("_", " ")),
      one.only_here ? el("span", { class: "tag" }, `only ${name}`) : null,
      one.extracted_by.length ? el("span", { class: "faint" }, ` by ${one.extracted_by.join(", ")}`) : null),
    one.samples.map((sample) => el("pre", { title: `sample ${sample.index}${sample.tokens == null ? "" : `, ${sample.tokens} tokens`}` }, sample.text ?? "(not stored)")),
    one.samples.length < one.count ? el("p", { class: "faint" }, `and ${one.count - one.samples.length} more`) : null);
  return el("section", {}, el("h3", {}, `${name}: ${found.correct} of ${found.n} correct`), found.groups.map(group));
}

class HeatMap {
  constructor(page, grid, box, told) {
    Object.assign(this, { page, grid, box, told });
    this.steps = Object.keys(grid.steps).map(Number).sort((a, b) => a - b);
    this.columns = [grid.base, ...this.steps.map((step) => grid.steps[step])];
    this.canvas = el("canvas", { tabindex: 0, "aria-label": "hits of every row at every step" });
    this.height = el("div", { class: "height" });
    box.replaceChildren(this.canvas, this.height);
    box.addEventListener("scroll", () => requestAnimationFrame(() => this.paint()));
    this.canvas.addEventListener("click", (event) => this.click(event));
    this.canvas.addEventListener("mousemove", (event) => this.hover(event));
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    this.arrange();
  }

  arrange() {
    const { grid, page, steps } = this, { sort, only, filter } = page.state;
    const at = String(page.step in grid.steps ? page.step : steps.at(-1)), now = grid.steps[at];
    const mark = (name) => grid.marks.indexOf(name);
    const [perhapsLost, lost, perhapsGained, gained] = ["perhaps lost", "lost", "perhaps gained", "gained"].map(mark);
    const of = (u) => now.marks[u], word = filter.toLowerCase();
    const moved = (u, marks) => steps.some((step) => marks.includes(grid.steps[step].marks[u]));
    const kept = {
      all: () => true, lost: (u) => of(u) === lost || of(u) === perhapsLost, gained: (u) => of(u) === gained || of(u) === perhapsGained,
      changed: (u) => moved(u, [lost, gained]),
    }[only];
    const matches = (u) => {
      const [p, answer] = grid.rows[u], problem = grid.problems[p];
      return [problem.id, problem.prompt, answer ?? ""].some((text) => text.toLowerCase().includes(word));
    };
    const changes = (u) => steps.reduce((sum, step, i) => sum + (i > 0 && (grid.steps[step].hits[u] > 0) !== (grid.steps[steps[i - 1]].hits[u] > 0)), 0);
    const rank = { [lost]: 3, [perhapsLost]: 2 }, rise = { [gained]: 3, [perhapsGained]: 2 };
    const score = {
      lost: (u) => (rank[of(u)] || 0) * 1e6 + grid.base.hits[u], gained: (u) => (rise[of(u)] || 0) * 1e6 + now.hits[u],
      trajectory: changes, hits: (u) => grid.base.hits[u], order: (u) => -u,
    }[sort];
    this.rows = grid.rows.map((_, u) => u).filter((u) => kept(u) && (!word || matches(u)));
    const scores = new Map(this.rows.map((u) => [u, score(u)]));
    this.rows.sort((a, b) => scores.get(b) - scores.get(a) || a - b);
    this.told.textContent = `${this.rows.length} of ${grid.rows.length} rows`;
    this.height.style.height = `${HEAD + this.rows.length * ROW}px`;
    this.paint();
  }

  layout() {
    const width = this.box.clientWidth - 2, label = Math.min(260, Math.max(120, width * 0.42));
    return { width, label, column: Math.max(6, Math.min(34, (width - label - 4) / this.columns.length)) };
  }

  paint() {
    const { canvas, box, grid, page, columns, rows } = this;
    const { width, label, column } = this.layout(), height = Math.max(100, box.clientHeight - 2), ratio = globalThis.devicePixelRatio || 1;
    canvas.width = width * ratio;
    canvas.height = height * ratio;
    Object.assign(canvas.style, { width: `${width}px`, height: `${height}px` });
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    pen.fillStyle = color("ground");
    pen.fillRect(0, 0, width, height);
    const hues = Object.fromEntries(["kept-low", "kept-high", "lost", "perhaps-lost", "gained", "perhaps-gained", "text", "faint", "line", "focus", "base"].map((name) => [name, color(name)]));
    const first = Math.floor(box.scrollTop / ROW), shift = HEAD - (box.scrollTop % ROW);
    const names = grid.marks.map((name) => name.replace(" ", "-"));
    pen.font = "11px Roboto, system-ui, sans-serif";
    pen.textBaseline = "middle";
    for (let i = 0; i <= (height - HEAD) / ROW + 1 && first + i < rows.length; i++) {
      const u = rows[first + i], y = shift + i * ROW, [p, answer] = grid.rows[u], problem = grid.problems[p];
      if (problem.id === page.state.problem) { pen.fillStyle = hues.focus; pen.fillRect(0, y, 3, ROW - 1); }
      pen.fillStyle = hues.text;
      pen.fillText(fit(pen, answer == null ? problem.prompt || problem.id : `${answer}  ${problem.prompt}`, label - 10), 6, y + ROW / 2);
      columns.forEach((found, c) => {
        const hits = found.hits[u], n = found.n[u], name = c === 0 ? (hits ? "kept" : "out") : names[found.marks[u]];
        pen.fillStyle = name === "out" ? hues.line : name === "kept" ? mix(hues["kept-low"], hues["kept-high"], Math.sqrt(hits / Math.max(n, 1))) : hues[name];
        const x = label + c * column;
        name === "out" ? pen.fillRect(x + column / 2 - 1, y + ROW / 2 - 1, 2, 2) : pen.fillRect(x, y, column - 1, ROW - 1);
      });
    }
    this.head(pen, hues, width, label, column);
  }

  head(pen, hues, width, label, column) {
    pen.fillStyle = color("panel");
    pen.fillRect(0, 0, width, HEAD - 1);
    pen.fillStyle = hues.faint;
    const every = Math.ceil(40 / column);
    pen.fillText("base", label, 10);
    this.steps.forEach((step, i) => {
      const x = label + (i + 1) * column;
      if (i % every === 0 || step === this.page.step) pen.fillText(String(step), x, 24);
      if (step === this.page.step) { pen.fillStyle = hues.focus; pen.fillRect(x, HEAD - 4, column - 1, 3); pen.fillStyle = hues.faint; }
    });
  }

  place(event) {
    const box = this.canvas.getBoundingClientRect(), { label, column } = this.layout();
    const x = event.clientX - box.left, y = event.clientY - box.top;
    const row = Math.floor((y - HEAD + this.box.scrollTop) / ROW), at = Math.floor((x - label) / column);
    return { u: y < HEAD ? undefined : this.rows[row], column: at >= 0 && at < this.columns.length ? at : null };
  }

  click(event) {
    const { u, column } = this.place(event);
    if (u === undefined) return;
    const step = column > 0 ? this.steps[column - 1] : this.page.step, problem = this.grid.problems[this.grid.rows[u][0]].id;
    if (step !== this.page.step) this.page.set({ step, problem });
    else this.page.openCell(problem, step);
  }

  hover(event) {
    const { u, column } = this.place(event);
    if (u === undefined) return void (this.canvas.title = "");
    const [p, answer] = this.grid.rows[u], found = this.columns[column ?? 0];
    const where = column ? `step ${this.steps[column - 1]}: ${this.grid.marks[found.marks[u]]}, ` : "base: ";
    this.canvas.title = `${this.grid.problems[p].id}${answer == null ? "" : `\n${answer}`}\n${where}${found.hits[u]} of ${found.n[u]} hits`;
  }

  key(event) {
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    const next = this.neighbour(this.page.state.problem, by);
    if (next != null) this.page.openCell(next, this.page.step);
  }

  neighbour(problem, by) {
    const ids = [...new Set(this.rows.map((u) => this.grid.problems[this.grid.rows[u][0]].id))];
    return ids[Math.min(Math.max(ids.indexOf(problem) + by, 0), ids.length - 1)];
  }
}

function fit(pen, text, width) {
  if (pen.measureText(text).width <= width) return text;
  let low = 0, high = Math.min(text.length, 200);
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    pen.measureText(`${text.slice(0, middle)}…`).width <= width ? (low = middle) : (high = middle - 1);
  }
  return `${text.slice(0, low)}…`;
}

function mix(from, to, share) {
  const parts = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
  const [a, b] = [parts(from), parts(to)];
  return `rgb(${a.map((value, i) => Math.round(value + (b[i] - value) * share)).join(",")})`;
}

// Links to a cell: the state is in the address of the page around the tab.

const outer = () => { try { return globalThis.parent.location; } catch { return globalThis.location; } };
const LINK = "offleash";

function fromLink() {
  const text = new URLSearchParams(outer().search).get(LINK);
  if (!text) return {};
  try {
    const { run, step, problem, level } = JSON.parse(text);
    return { run, step, problem, level };
  } catch {
    return {};
  }
}

function linkTo(state) {
  const url = new URL(outer().href);
  if (url.protocol === "about:") return null;
  url.searchParams.set(LINK, JSON.stringify(state));
  return url.href;
}

// TensorBoard around the tab: dark mode, and its reloads

function followTheme(redraw) {
  let body;
  try { body = globalThis.parent.document.body; } catch { body = document.body; }
  const dark = () => body.classList.contains("dark-mode") || (embedded && globalThis.matchMedia("(prefers-color-scheme: dark)").matches);
  const apply = () => { document.documentElement.classList.toggle("dark", dark()); redraw(); };
  new MutationObserver(apply).observe(body, { attributes: true, attributeFilter: ["class"] });
  document.documentElement.classList.toggle("dark", dark());
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
  if (!embedded) document.head.append(el("link", { rel: "stylesheet", href: new URL("style.css", import.meta.url).href }));
  const page = new Page();
  followTheme(() => page.draw());
  await page.refresh();
  followReloads(() => page.refresh());
  globalThis.addEventListener("resize", () => page.map?.paint());
}
