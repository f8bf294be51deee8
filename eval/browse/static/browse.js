// A map of problems, answers or spellings over the steps of a run, and beside it what was written at one of them.
// Used by TensorBoard's tab and by pages that carry their data. No build step, no network.
// Model text enters the page as text nodes and canvas text only.

const ROW = 16, HEAD = 34;
const MISSING = ["lost", "perhaps lost"];

// Small pieces of a page

export function el(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (key === "style") Object.assign(made.style, value);
    else if (value === true) made.setAttribute(key, "");
    else if (value !== false && value != null) made.setAttribute(key, value);
  }
  made.append(...children.flat(Infinity).filter((child) => child != null));
  return made;
}

export function choice(name, label, options, value, change) {
  return el("label", {}, label, el("select", { name, onchange: (event) => change(event.target.value) },
    Object.entries(options).map(([key, words]) => el("option", { value: key, selected: key === value }, words))));
}

export const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

// The grid as it is drawn: typed columns, and what became of each row

class Grid {
  constructor(json) {
    Object.assign(this, { level: json.level, names: json.marks, problems: json.problems, rows: json.rows, failed: json.failed || {} });
    this.waiting = json.waiting || [];
    this.words = json.words || {};
    this.steps = [...new Set([...Object.keys(json.steps).map(Number), ...this.waiting])].sort((a, b) => a - b);
    this.base = this.column(json.base);
    this.at = new Map(Object.entries(json.steps).map(([step, found]) => [Number(step), this.column(found)]));
    this.mark = Object.fromEntries(json.marks.map((name, i) => [name, i]));
  }

  column({ hits, n, marks }) {
    const mark = marks === undefined ? null : Uint8Array.from(marks, (digit) => digit.charCodeAt(0) - 48);
    return { hits: Int32Array.from(hits), mark, n: typeof n === "number" ? () => n : (u) => n[this.rows[u][0]] };
  }

  // A column's name: "20" over it, "step 20" in words, or the policy's own.
  called(step) {
    return this.words[step] ?? `step ${step}`;
  }

  since(step) {
    return step in this.words ? `in ${this.words[step]}` : `at ${step}`;
  }

  get counted() {
    return this.steps.filter((step) => this.at.has(step));
  }

  nearest(step) {
    if (step == null) return this.counted.at(-1);
    const known = this.counted.filter((one) => one <= step);
    return this.at.has(step) ? step : known.at(-1) ?? this.counted[0];
  }

  // [[hit or not, first step, sure]...]: the runs of steps at which a row was hit, and at which it was not. Of those
  // without a hit: whether it is lost beyond noise at any.
  runs(u) {
    const found = [];
    for (const step of this.counted) {
      const { hits, mark } = this.at.get(step), hit = hits[u] > 0, sure = this.names[mark[u]] === (hit ? "gained" : "lost");
      if (found.length && found.at(-1).hit === hit) found.at(-1).sure ||= sure;
      else found.push({ hit, step, sure });
    }
    return found;
  }

  // Lost (beyond noise), then hit again, and so on: how often it changed, noise aside.
  turns(u) {
    if (!this.base.hits[u]) return 0;
    let here = true, turns = 0;
    for (const { hit, sure } of this.runs(u)) if (hit !== here && (hit || sure)) (here = hit), turns++;
    return turns;
  }

  // In words: "lost at 70, back at 140, lost again at 200".
  story(u) {
    const had = this.base.hits[u] > 0, said = [];
    let here = had, times = 0;
    for (const { hit, step, sure } of this.runs(u)) {
      if (hit === here) continue;
      here = hit;
      const again = times++ > 1 ? " again" : "";
      if (had) said.push(hit ? `back${again} ${this.since(step)}` : `${sure ? "" : "perhaps "}lost${again} ${this.since(step)}`);
      else said.push(hit ? `${sure ? "" : "perhaps "}gained${again} ${this.since(step)}` : `gone${again} ${this.since(step)}`);
    }
    if (!said.length) return had ? "hit at every step" : "never hit";
    return said.length > 7 ? `${said.slice(0, 6).join(", ")}, and ${said.length - 6} more changes` : said.join(", ");
  }

  text(u) {
    const [p, answer] = this.rows[u];
    return `${this.problems[p].id}\n${this.problems[p].prompt}\n${answer ?? ""}`.toLowerCase();
  }
}

const LEVELS = { problem: "problems", answer: "answers", spelling: "spellings" };
const SORTS = { lost: "lost first", gained: "gained first", turns: "lost and back first", hits: "hits of the base", order: "problem order" };
const FILTERS = {
  all: "all", lost: "lost at this step", gained: "gained at this step", sure: "beyond noise at this step", ever: "lost beyond noise at any step",
  back: "lost beyond noise, then back", again: "lost, back, lost again",
};

// The map, the cell and their controls. `ask(route, query)` gives the grid and the cells; `state` is shared with the page
// around it: { run, step, level, sort, only, filter, problem, answer }.

export class Browser {
  constructor({ ask, state, onStep = () => {}, link = () => null }) {
    Object.assign(this, { ask, state, onStep, link });
    Object.assign(state, { level: "answer", sort: "lost", only: "all", filter: "", problem: null, answer: null, ...state });
    this.grids = new Map();
    this.asked = 0;
    const keys = [["kept-high", "hit by both"], ["lost", "lost beyond noise"], ["perhaps-lost", "perhaps lost"], ["gained", "gained beyond noise"], ["perhaps-gained", "perhaps gained"]];
    this.box = el("div", { class: "map" });
    this.told = el("span", { class: "told faint" });
    this.hovered = el("div", { class: "hovered faint" }, "\u00a0");
    this.cell = el("div", { class: "cell" }, el("p", { class: "faint" }, "Click a cell of the map: what did base and policy write?"));
    const arrange = (key) => (value) => { state[key] = value; this.map?.arrange(); };
    this.levels = choice("level", "rows", LEVELS, state.level, (level) => { state.level = level; state.answer = null; this.show(); });
    this.element = el("div", { class: "browser" },
      el("div", { class: "bar" }, this.levels, choice("sort", "sort by", SORTS, state.sort, arrange("sort")), choice("only", "show", FILTERS, state.only, arrange("only")),
        el("label", {}, "search", el("input", { name: "search", type: "search", value: state.filter, placeholder: "problem or answer", oninput: (event) => arrange("filter")(event.target.value) })),
        this.told),
      el("div", { class: "look" },
        el("div", {},
          el("div", { class: "keys" }, keys.map(([hue, words]) => el("span", {}, el("i", { style: { background: `var(--${hue})` } }), words)), el("span", {}, el("i", { class: "dot" }), "not hit"),
            el("span", {}, "beyond noise: false discovery rate 5 % within a step")),
          this.box, this.hovered),
        this.cell));
  }

  // Forget what was loaded of a run: it has grown, or was measured again.
  forget(run) {
    for (const key of this.grids.keys()) if (key.startsWith(`${run}\n`)) this.grids.delete(key);
  }

  // Load and draw the grid of the state's run and level; while steps are still being counted, ask again.
  async show() {
    const { run, level } = this.state, key = `${run}\n${level}`, asked = ++this.asked;
    const current = () => asked === this.asked;
    while (current()) {
      let grid = this.grids.get(key);
      if (!grid) {
        try {
          grid = new Grid(await this.ask("grid", { run, level }));
        } catch (error) {
          if (current()) { this.map = null; this.box.replaceChildren(el("p", { class: "error" }, error.message)); this.told.textContent = ""; }
          return;
        }
        if (!current()) return;
        if (!grid.waiting.length) this.grids.set(key, grid);
      }
      if (this.map && this.map.key === key) this.map.update(grid);
      else this.map = new HeatMap(this, key, grid);
      if (this.state.problem != null && this.opened?.key !== key) await this.open(this.state.problem, this.state.answer);
      if (!grid.waiting.length) return void performance.mark("offleash: map complete");
    }
  }

  get step() {
    return this.map ? this.map.grid.nearest(this.state.step) : this.state.step;
  }

  stepChanged() {
    this.map?.arrange();
    if (this.state.problem != null) this.open(this.state.problem, this.state.answer);
  }

  // Show a problem at the current step; `answer` is the row that was chosen.
  async open(problem, answer = null) {
    Object.assign(this.state, { problem, answer });
    const { run } = this.state, step = this.step, turn = (this.turn = (this.turn || 0) + 1);
    this.opened = { key: `${run}\n${this.state.level}` };
    this.map?.paint();
    let found;
    try {
      found = await this.ask("cell", { run, step, problem });
    } catch (error) {
      if (turn === this.turn) this.cell.replaceChildren(el("p", { class: "error" }, error.message));
      return;
    }
    if (turn !== this.turn) return;
    const link = this.link({ run, step, problem, answer, level: this.state.level });
    const move = (by) => this.map?.move(by), top = this.cell.scrollTop;
    this.cell.replaceChildren(
      el("div", { class: "bar" }, el("button", { name: "previous", onclick: () => move(-1) }, "previous"), el("button", { name: "next", onclick: () => move(1) }, "next"),
        link ? el("button", { name: "copy", title: link, onclick: (event) => copy(link, event.target) }, "copy link") : null),
      el("h2", {}, `${found.id}, ${this.map ? this.map.grid.called(step) : `step ${step}`}`), el("pre", { class: "prompt" }, found.prompt),
      found.gold === "" ? null : el("p", {}, el("span", { class: "faint" }, "gold: "), found.gold),
      this.map?.trajectory(problem, answer),
      el("div", { class: "sides" }, side("base", found.base, answer), side("policy", found.policy, answer)));
    this.cell.scrollTop = this.shown === problem ? top : 0;
    this.shown = problem;
  }
}

async function copy(link, button) {
  try {
    await navigator.clipboard.writeText(link);
    button.textContent = "copied";
  } catch {  // browsers give no clipboard to pages of other machines
    button.replaceWith(el("input", { readonly: true, value: link, onfocus: (event) => event.target.select() }));
  }
}

// [[text, samples]...]: the samples with the same text together, the most frequent first.
function alike(samples) {
  const found = new Map();
  for (const sample of samples) {
    const text = sample.text ?? "(not stored)";
    found.has(text) ? found.get(text).push(sample) : found.set(text, [sample]);
  }
  return [...found].sort((a, b) => b[1].length - a[1].length);
}

function side(name, found, chosen) {
  const verdict = (one) => (one.correct ? "correct" : one.status === "ok" ? "wrong" : one.status.replace("_", " "));
  const group = (one) => el("details", { open: one.only_here || (chosen != null && one.answer === chosen), class: chosen != null && one.answer === chosen ? "chosen" : null },
    el("summary", {}, `${one.count} × `, one.answer ?? (one.status === "ok" ? "(any answer)" : "(no answer)"),
      el("span", { class: `tag ${one.correct ? "gained" : "lost"}` }, verdict(one)),
      one.only_here ? el("span", { class: "tag" }, `only ${name}`) : null,
      one.extracted_by.length ? el("span", { class: "faint" }, ` found by: ${one.extracted_by.join(", ")}`) : null),
    alike(one.samples).map(([text, samples]) => el("pre", { title: `${samples.length > 1 ? "samples" : "sample"} ${samples.map((sample) => sample.index).join(", ")}${samples[0].tokens == null ? "" : `; ${samples[0].tokens} tokens`}` },
      samples.length > 1 ? el("span", { class: "faint" }, `${samples.length} × `) : null, text)),
    one.samples.length < one.count ? el("p", { class: "faint" }, `and ${one.count - one.samples.length} more`) : null);
  return el("section", { class: name }, el("h3", {}, `${name}: ${found.correct} of ${found.n} correct`), found.groups.map(group));
}

// The browser alone, in a page without anything around it that would follow the steps: what OFFLEASH_EMBEDDED carries, one
// task at a time.
export function browseTasks(host) {
  const ask = async (route, query) => globalThis.OFFLEASH_EMBEDDED(route, query), tasks = globalThis.OFFLEASH_EMBEDDED("tasks", {});
  const state = { run: tasks[0] };
  const browser = new Browser({ ask, state, onStep: (step) => { state.step = step; browser.stepChanged(); } });
  if (tasks.length > 1) {
    const turn = (run) => { Object.assign(state, { run, problem: null, answer: null }); browser.cell.replaceChildren(); browser.show(); };
    browser.element.prepend(el("div", { class: "bar" }, choice("task", "task", Object.fromEntries(tasks.map((task) => [task, task])), state.run, turn)));
  }
  host.append(browser.element);
  const paint = () => browser.map?.paint();
  globalThis.addEventListener("resize", paint);
  globalThis.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);
  browser.show();
}

class HeatMap {
  constructor(browser, key, grid) {
    Object.assign(this, { browser, key, grid, box: browser.box });
    this.canvas = el("canvas", { tabindex: 0, role: "img", "aria-label": "hits of every row at every step; arrow keys move" });
    this.extent = el("div", { class: "extent" });
    this.box.replaceChildren(this.canvas, this.extent);
    this.box.scrollTop = 0;
    this.box.onscroll = () => this.later();
    this.canvas.addEventListener("click", (event) => this.click(event));
    this.canvas.addEventListener("mousemove", (event) => this.hover(event));
    this.canvas.addEventListener("mouseleave", () => (browser.hovered.textContent = "\u00a0"));
    this.canvas.addEventListener("keydown", (event) => this.press(event));
    this.arrange();
    performance.mark("offleash: map drawn");
  }

  update(grid) {
    this.grid = grid;
    this.texts = this.changes = null;
    this.arrange();
  }

  later() {
    if (this.waits) return;
    this.waits = true;
    requestAnimationFrame(() => { this.waits = false; this.paint(); });
  }

  arrange() {
    const { grid } = this, { sort, only, filter } = this.browser.state;
    const now = grid.at.get(grid.nearest(this.browser.state.step)), base = grid.base.hits, of = (u) => grid.names[now.mark[u]];
    const word = filter.trim().toLowerCase();
    if (word) this.texts ||= grid.rows.map((_, u) => grid.text(u));
    if (sort === "turns" || ["back", "again", "ever"].includes(only)) this.changes ||= Int32Array.from(grid.rows, (_, u) => grid.turns(u));
    const kept = {
      all: () => true, lost: (u) => MISSING.includes(of(u)), gained: (u) => of(u).endsWith("gained"), sure: (u) => of(u) === "lost" || of(u) === "gained",
      ever: (u) => this.changes[u] > 0, back: (u) => this.changes[u] > 1, again: (u) => this.changes[u] > 2,
    }[only];
    const first = (sure, perhaps) => (u) => (of(u) === sure ? 2e6 : of(u) === perhaps ? 1e6 : 0);
    const lost = first("lost", "perhaps lost"), gained = first("gained", "perhaps gained");
    const score = { lost: (u) => lost(u) + base[u], gained: (u) => gained(u) + now.hits[u], turns: (u) => this.changes[u] * 1e6 + base[u], hits: (u) => base[u], order: (u) => -u }[sort];
    this.rows = [];
    for (let u = 0; u < grid.rows.length; u++) if (kept(u) && (!word || this.texts[u].includes(word))) this.rows.push(u);
    const scores = new Float64Array(grid.rows.length);
    for (const u of this.rows) scores[u] = score(u);
    this.rows.sort((a, b) => scores[b] - scores[a] || a - b);
    const failed = Object.entries(grid.failed), unit = LEVELS[grid.level];
    this.browser.told.textContent = [`${this.rows.length} of ${grid.rows.length} ${unit}`, grid.waiting.length ? `counting steps: ${grid.waiting.length} left` : "",
      failed.length ? `step ${failed[0][0]} cannot be read: ${failed[0][1]}` : ""].filter(Boolean).join(" · ");
    this.paint();
  }

  layout() {
    const width = this.box.clientWidth, columns = this.grid.steps.length + 1;
    const label = Math.max(110, Math.min(width * 0.36, 270), Math.min(width - columns * 36 - 8, 560));
    const column = Math.max(5, Math.min(36, (width - label - 8) / columns));
    return { width, height: this.box.clientHeight, label, column, whole: label + columns * column + 4 };
  }

  paint() {
    const { canvas, box, grid, rows } = this, { state } = this.browser, { width, height, label, column, whole } = this.layout();
    Object.assign(this.extent.style, { height: `${HEAD + rows.length * ROW}px`, width: `${whole}px` });
    const ratio = globalThis.devicePixelRatio || 1;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
      Object.assign(canvas.style, { width: `${width}px`, height: `${height}px` });
    }
    const pen = canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    const style = getComputedStyle(document.documentElement), hue = (name) => style.getPropertyValue(`--${name}`).trim();
    const hues = Object.fromEntries(["ground", "panel", "kept-low", "kept-high", "lost", "perhaps-lost", "gained", "perhaps-gained", "text", "faint", "line", "focus", "on-dark", "on-light"].map((name) => [name, hue(name)]));
    pen.fillStyle = hues.ground;
    pen.fillRect(0, 0, width, height);
    const first = Math.floor(box.scrollTop / ROW), shift = HEAD - (box.scrollTop % ROW), left = label - box.scrollLeft;
    const names = grid.names.map((name) => name.replace(" ", "-"));
    pen.font = "11px Roboto, system-ui, sans-serif";
    pen.textBaseline = "middle";
    const columns = [[null, grid.base], ...grid.steps.map((step) => [step, grid.at.get(step)])];
    const from = Math.max(0, Math.floor(box.scrollLeft / column)), chosen = grid.nearest(state.step);
    for (let i = 0; i <= (height - HEAD) / ROW + 1 && first + i < rows.length; i++) {
      const u = rows[first + i], y = shift + i * ROW;
      for (let c = from; c < columns.length; c++) {
        const [step, found] = columns[c], x = left + c * column + (c ? 4 : 0);
        if (x > width) break;
        if (!found) continue;
        const hits = found.hits[u], n = Math.max(found.n(u), 1), name = found.mark ? names[found.mark[u]] : hits ? "kept" : "out";
        if (name === "out") {
          pen.fillStyle = hues.line;
          pen.fillRect(x + column / 2 - 1, y + ROW / 2 - 1, 2, 2);
          continue;
        }
        const share = Math.sqrt(hits / n);
        pen.fillStyle = name === "kept" ? mix(hues["kept-low"], hues["kept-high"], share) : hues[name];
        pen.fillRect(x, y, column - 1, ROW - 1);
        if (column >= 20) {
          pen.textAlign = "center";
          pen.fillStyle = name === "lost" || name === "gained" || (name === "kept" && share > 0.6) ? hues["on-dark"] : hues["on-light"];
          pen.fillText(String(hits), x + (column - 1) / 2, y + ROW / 2);
        }
        if (step === chosen && this.isChosen(u)) { pen.strokeStyle = hues.focus; pen.lineWidth = 2; pen.strokeRect(x, y, column - 1, ROW - 1); }
      }
      pen.fillStyle = hues.ground;
      pen.fillRect(0, y, label - 2, ROW);
      if (this.isChosen(u)) { pen.fillStyle = hues.focus; pen.fillRect(0, y, 3, ROW - 1); }
      pen.textAlign = "left";
      const [bold, plain, used] = this.label(pen, u, label - 12);
      pen.fillStyle = hues.text;
      pen.fillText(bold, 6, y + ROW / 2);
      pen.fillStyle = hues.faint;
      if (plain) pen.fillText(plain, 6 + used, y + ROW / 2);
    }
    this.head(pen, hues, columns, { width, label, column, left, chosen });
    if (!rows.length) { pen.fillStyle = hues.faint; pen.fillText("no such row", 8, HEAD + 16); }
  }

  // What stands before a row: the answer and the start of its problem, as far as there is room.
  label(pen, u, room) {
    if (this.labels?.room !== room || this.labels.grid !== this.grid) this.labels = { room, grid: this.grid, of: new Map() };
    if (!this.labels.of.has(u)) {
      const [p, answer] = this.grid.rows[u], problem = this.grid.problems[p], prompt = visible(problem.prompt || problem.id);
      const bold = answer == null ? fit(pen, prompt, room) : fit(pen, visible(answer), room * 0.62), used = pen.measureText(bold).width + 10;
      this.labels.of.set(u, [bold, answer == null ? "" : fit(pen, prompt, room - used), used]);
    }
    return this.labels.of.get(u);
  }

  head(pen, hues, columns, { width, label, column, left, chosen }) {
    pen.fillStyle = hues.panel;
    pen.fillRect(0, 0, width, HEAD - 1);
    pen.textAlign = "left";
    const every = Math.ceil((pen.measureText(String(this.grid.steps.at(-1))).width + 8) / column);
    let free = -1;
    columns.forEach(([step], c) => {
      const x = left + c * column + (c ? 4 : 0);
      if (x < label - 2 || x > width) return;
      if (step === chosen) { pen.fillStyle = hues.focus; pen.fillRect(x, HEAD - 5, column - 1, 4); }
      const text = step == null ? "base" : this.grid.words[step] ?? String(step), wide = pen.measureText(text).width;
      if (step !== chosen && (x < free || (c && (c - 1) % every))) return;
      if (step === chosen && x < free) { pen.fillStyle = hues.panel; pen.fillRect(x - 2, 3, wide + 4, HEAD - 10); }
      pen.fillStyle = step === chosen ? hues.text : hues.faint;
      pen.fillText(text, Math.min(x, width - wide - 2), 14);
      free = x + wide + 6;
    });
    pen.fillStyle = hues.panel;
    pen.fillRect(0, 0, label - 2, HEAD - 1);
    pen.fillStyle = hues.faint;
    pen.fillText(`${LEVELS[this.grid.level]}; hits at each step →`, 6, 14);
  }

  isChosen(u) {
    const { problem, answer } = this.browser.state, [p, of] = this.grid.rows[u];
    return this.grid.problems[p].id === problem && (answer == null || of === answer);
  }

  place(event) {
    const box = this.canvas.getBoundingClientRect(), { label, column } = this.layout();
    const x = event.clientX - box.left, y = event.clientY - box.top;
    const row = Math.floor((y - HEAD + this.box.scrollTop) / ROW), at = Math.floor((x - label + this.box.scrollLeft - 4) / column);
    return { u: y < HEAD ? undefined : this.rows[row], step: x < label || at < 1 ? null : this.grid.steps[at - 1] ?? null };
  }

  choose(u, step) {
    const { browser, grid } = this, [p, answer] = grid.rows[u];
    Object.assign(browser.state, { problem: grid.problems[p].id, answer });
    if (step != null && step !== browser.state.step && grid.at.has(step)) browser.onStep(step);
    else browser.open(grid.problems[p].id, answer);
  }

  click(event) {
    const { u, step } = this.place(event);
    if (u !== undefined) this.choose(u, step);
  }

  hover(event) {
    const { u, step } = this.place(event), { grid } = this;
    if (u === undefined) return void (this.browser.hovered.textContent = "\u00a0");
    const found = step == null ? null : grid.at.get(step), answer = grid.rows[u][1];
    const here = step == null ? "" : found ? `${grid.called(step)}: ${found.hits[u]} of ${found.n(u)} hits, ${grid.names[found.mark[u]]} · ` : `${grid.called(step)}: not counted yet · `;
    this.browser.hovered.textContent = `${here}base: ${grid.base.hits[u]} of ${grid.base.n(u)} · ${grid.story(u)}${answer == null ? "" : ` · ${visible(answer).slice(0, 80)}`}`;
  }

  press(event) {
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key], along = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by && !along) return;
    event.preventDefault();
    if (by) return void this.move(by);
    const steps = this.grid.counted, next = steps[steps.indexOf(this.browser.step) + along];
    if (next !== undefined) this.browser.onStep(next);
  }

  // The next row, or the one before, of those shown.
  move(by) {
    const at = this.rows.findIndex((u) => this.isChosen(u)), next = this.rows[Math.min(Math.max(at + by, 0), this.rows.length - 1)];
    if (next === undefined) return;
    const y = this.rows.indexOf(next) * ROW;
    if (y < this.box.scrollTop) this.box.scrollTop = y;
    else if (y > this.box.scrollTop + this.box.clientHeight - HEAD - 2 * ROW) this.box.scrollTop = y - this.box.clientHeight + HEAD + 2 * ROW;
    this.choose(next, null);
  }

  // The chosen row over all steps: a bar for each, and the story in words.
  trajectory(problem, answer) {
    const { grid } = this, u = grid.rows.findIndex((_, row) => this.isChosen(row));
    if (u < 0) return null;
    const most = Math.max(1, grid.base.hits[u], ...grid.counted.map((step) => grid.at.get(step).hits[u]));
    const bar = (step, found) => {
      const name = !found ? "out" : found.mark ? grid.names[found.mark[u]] : found.hits[u] ? "kept" : "out";
      const share = found ? found.hits[u] / most : 0, words = step == null ? "base" : grid.called(step);
      return el("button", { class: `bar-of ${name.replace(" ", "-")}${step === this.browser.step ? " now" : ""}`, title: found ? `${words}: ${found.hits[u]} of ${found.n(u)} hits` : words, "aria-label": words,
        onclick: () => step != null && this.browser.onStep(step) }, el("i", { style: { height: `${Math.max(2, 26 * share)}px` } }));
    };
    return el("div", { class: "trajectory" },
      el("div", {}, el("b", {}, answer == null ? "This problem" : visible(answer)), `: ${grid.base.hits[u]} of ${grid.base.n(u)} in the base; ${grid.story(u)}`),
      el("div", { class: "bars" }, bar(null, grid.base), grid.steps.map((step) => bar(step, grid.at.get(step)))));
  }
}

// Control characters, and those that turn the direction of writing, as marks: a canvas has no isolation of its own.
const visible = (text) => text.slice(0, 300).replace(/[\u0000-\u001f\u007f-\u009f\u200e\u200f\u2028-\u202e\u2066-\u2069]/g, "\u00b7");

function fit(pen, text, width) {
  if (width < 8) return "";
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
