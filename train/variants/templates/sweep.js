// Figures and tables of a sweep, joined by data-arm: hover shows a name and its numbers, a filter hides arms, a click on
// a column sorts. Text goes into the page as text only.
(() => {
  const page = document.querySelector("main");
  const parts = [...page.querySelectorAll("[data-arm]")];
  const first = page.querySelector("table");
  const heads = [...first.tHead.rows[0].cells].map((cell) => cell.textContent);
  const rowOf = new Map([...first.tBodies[0].rows].filter((row) => row.dataset.arm).map((row) => [row.dataset.arm, row]));
  const tip = page.appendChild(document.createElement("div"));
  tip.className = "tip";
  tip.hidden = true;

  const value = (cell) => (cell.firstChild ? cell.firstChild.textContent.trim() : "");
  const pick = (arm) => {
    page.classList.toggle("picked", arm !== null);
    for (const part of parts) part.classList.toggle("lit", part.dataset.arm === arm);
  };
  const show = (arm, x, y) => {
    const row = rowOf.get(arm);
    if (!row) return;
    const name = document.createElement("b");
    name.textContent = row.cells[0].textContent;
    const words = [...row.cells].slice(1, 8).map((cell, i) => `${heads[i + 1]} ${cell.textContent.trim() ? value(cell) : "–"}`);
    tip.replaceChildren(name, words.join(" · "));
    tip.hidden = false;
    tip.style.left = `${Math.min(x + 14, innerWidth - tip.offsetWidth - 8)}px`;
    tip.style.top = `${Math.min(y + 14, innerHeight - tip.offsetHeight - 8)}px`;
  };
  const leave = () => { pick(null); tip.hidden = true; };

  for (const svg of page.querySelectorAll("svg")) {
    const mine = parts.filter((part) => svg.contains(part));
    if (!mine.length) continue;
    svg.addEventListener("pointermove", (event) => {
      let best = null, nearest = 18; // pixels
      for (const part of mine) {
        if (part.classList.contains("off")) continue;
        const use = part.querySelector("use, text");
        if (!use) continue;
        const box = use.getBoundingClientRect();
        const dx = Math.max(box.left - event.clientX, 0, event.clientX - box.right);
        const dy = Math.max(box.top - event.clientY, 0, event.clientY - box.bottom);
        if (Math.hypot(dx, dy) < nearest) { nearest = Math.hypot(dx, dy); best = part.dataset.arm; }
      }
      if (best === null) leave();
      else { pick(best); show(best, event.clientX, event.clientY); }
    });
    svg.addEventListener("pointerleave", leave);
  }
  for (const row of parts.filter((part) => part.tagName === "TR")) {
    row.addEventListener("pointerenter", () => pick(row.dataset.arm));
    row.addEventListener("pointerleave", leave);
  }

  const tools = document.getElementById("arms");
  tools.className = "tools";
  const search = document.createElement("input");
  search.type = "search";
  search.placeholder = "Filter by name";
  search.setAttribute("aria-label", "Filter by name");
  const count = document.createElement("span");
  count.className = "soft";
  tools.append(search, count);
  const filter = () => {
    const wanted = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const kept = new Set([...rowOf].filter(([, row]) => {
      const name = row.cells[0].textContent.toLowerCase();
      return wanted.every((word) => name.includes(word));
    }).map(([arm]) => arm));
    for (const part of parts) part.classList.toggle("off", !kept.has(part.dataset.arm));
    count.textContent = `${kept.size} of ${rowOf.size} shown. Hover a point, a name or a row; click a column to sort.`;
  };
  search.addEventListener("input", filter);
  filter();

  const number = (cell) => {
    const found = value(cell).replaceAll(",", "").match(/^[<-]?\d*\.?\d+/);
    return found ? parseFloat(found[0].replace("<", "")) : NaN;
  };
  const compare = (a, b) => {
    const x = number(a), y = number(b);
    if (Number.isNaN(x) && Number.isNaN(y)) return a.textContent.localeCompare(b.textContent);
    return Number.isNaN(x) ? 1 : Number.isNaN(y) ? -1 : x - y;
  };
  for (const table of page.querySelectorAll("table")) {
    [...table.tHead.rows[0].cells].forEach((head, c) => {
      head.setAttribute("aria-sort", "none");
      head.tabIndex = 0;
      const sort = () => {
        const down = head.getAttribute("aria-sort") === "descending";
        for (const other of table.tHead.rows[0].cells) other.setAttribute("aria-sort", "none");
        head.setAttribute("aria-sort", down ? "ascending" : "descending");
        const rows = [...table.tBodies[0].rows].sort((a, b) => (down ? 1 : -1) * compare(a.cells[c], b.cells[c]));
        table.tBodies[0].append(...rows);
      };
      head.addEventListener("click", sort);
      head.addEventListener("keydown", (event) => { if (event.key === "Enter") sort(); });
    });
  }
})();
