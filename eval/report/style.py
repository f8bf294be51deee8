"""How the HTML report looks: light and dark by the reader's system, and plain in print. One string, no network."""

STYLE = """
:root {
  color-scheme: light dark;
  --paper: #ffffff; --ink: #1c2127; --soft: #5a6572; --rule: #d9dee4; --panel: #f6f7f9;
  --base: #b35900; --policy: #1f5fa8; --kept: #6f7c8a; --out: #e3e7eb; --warn: #8a1f11; --warn-panel: #fdf0ed;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #14181d; --ink: #e4e8ec; --soft: #a0abb7; --rule: #323a44; --panel: #1b2027;
    --base: #f0a255; --policy: #7db4f4; --kept: #8592a0; --out: #2a313a; --warn: #ffb4a6; --warn-panel: #33201c;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 2rem 1.25rem 4rem; max-width: 72rem; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
}
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0 0 .5rem; overflow-wrap: anywhere; }
h2 { font-size: 1.3rem; margin: 2.75rem 0 .5rem; padding-top: 1rem; border-top: 1px solid var(--rule);
     overflow-wrap: anywhere; }
h3 { font-size: 1.05rem; margin: 2rem 0 .5rem; }
p { margin: .5rem 0; max-width: 50rem; }
ul.sides { margin: .5rem 0; padding-left: 1.2rem; color: var(--soft); font-size: .9rem; overflow-wrap: anywhere; }
.warning { margin: .75rem 0; padding: .6rem .9rem; max-width: none; background: var(--warn-panel); color: var(--warn);
           border-left: 4px solid var(--warn); overflow-wrap: anywhere; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)); gap: .75rem; margin: 1.25rem 0;
         padding: 0; list-style: none; }
.tiles li { padding: .7rem .9rem; background: var(--panel); border: 1px solid var(--rule); border-radius: 8px; }
.tiles .name { display: block; font-size: .8rem; color: var(--soft); }
.tiles .value { display: block; font-size: 1.3rem; font-variant-numeric: tabular-nums; }
.tiles .more { display: block; font-size: .8rem; color: var(--soft); font-variant-numeric: tabular-nums; }
figure { margin: 1.25rem 0; break-inside: avoid; }
figcaption, .caption { color: var(--soft); font-size: .88rem; max-width: 50rem; }
.panels { display: grid; grid-template-columns: repeat(auto-fit, minmax(19rem, 1fr)); gap: .5rem 1.25rem; }
.pair { display: flex; flex-wrap: wrap; gap: 0 2rem; align-items: flex-start; }
.pair figure { flex: 1 1 34rem; } .pair > div { flex: 0 1 20rem; }
svg { display: block; width: 100%; height: auto; max-width: 52rem; }
svg text { fill: var(--ink); font-size: 12px; }
svg text.note { fill: var(--soft); }
svg .grid { stroke: var(--rule); stroke-width: 1; }
svg .axis { stroke: var(--soft); stroke-width: 1; }
svg .line { fill: none; stroke-width: 2; stroke-linejoin: round; }
svg .line.base { stroke: var(--base); stroke-dasharray: 7 4; }
svg .line.policy { stroke: var(--policy); }
svg .line.kept { stroke: var(--soft); stroke-dasharray: 7 4; }
svg .line.thin { stroke-width: 1; opacity: .55; }
svg .dot { stroke: var(--paper); stroke-width: 1; }
svg .dot.base, svg .band.base { fill: var(--base); }
svg .dot.policy, svg .band.policy { fill: var(--policy); }
svg .dot.kept, svg .band.kept { fill: var(--soft); }
svg .band { opacity: .16; }
svg .mark { stroke: var(--ink); stroke-width: 1.2; stroke-dasharray: 2 3; }
svg .span { fill: var(--soft); opacity: .14; }
svg .cell { stroke: var(--paper); stroke-width: 1; }
svg .cell.base { fill: var(--base); } svg .cell.policy { fill: var(--policy); }
svg .cell.kept { fill: var(--kept); } svg .cell.out { fill: var(--out); stroke: var(--soft); stroke-width: .5; }
svg text.on { fill: var(--paper); font-weight: 600; } svg text.on.out { fill: var(--ink); font-weight: 400; }
.scroll { overflow-x: auto; margin: .75rem 0; }
table { border-collapse: collapse; font-size: .88rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding: .3rem 0; }
th, td { padding: .28rem .8rem .28rem 0; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--rule); }
th:first-child, td:first-child { text-align: left; }
thead th { color: var(--soft); font-weight: 600; border-bottom: 2px solid var(--rule); }
tbody th { font-weight: 400; }
td small { display: block; color: var(--soft); font-size: .82em; line-height: 1.2; }
th, td { vertical-align: top; }
.heard { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
details { margin: .75rem 0; }
summary { cursor: pointer; padding: .25rem 0; overflow-wrap: anywhere; }
details.policy > summary { font-size: 1.15rem; font-weight: 600; }
.texts { display: grid; grid-template-columns: repeat(auto-fit, minmax(20rem, 1fr)); gap: .5rem 1rem; }
.texts h4 { margin: .4rem 0 .2rem; font-size: .85rem; color: var(--soft); }
pre { margin: 0; padding: .6rem .75rem; max-height: 20rem; overflow: auto; background: var(--panel);
      border: 1px solid var(--rule); border-radius: 6px; font: .8rem/1.45 ui-monospace, Menlo, Consolas, monospace;
      white-space: pre-wrap; overflow-wrap: anywhere; unicode-bidi: isolate; }
footer { margin-top: 3rem; color: var(--soft); font-size: .85rem; }
@media print {
  :root { color-scheme: light; --paper: #ffffff; --ink: #000000; --soft: #444444; --rule: #bbbbbb; --panel: #ffffff;
          --base: #b35900; --policy: #1f5fa8; --kept: #6f7c8a; --out: #eceff2; --warn: #8a1f11; --warn-panel: #ffffff; }
  body { max-width: none; padding: 0; font-size: 10pt; -webkit-print-color-adjust: exact; print-color-adjust: exact; }
  .scroll { overflow: visible; } table { font-size: 7.5pt; } th, td { padding-right: .4rem; }
  pre { max-height: none; overflow: visible; } details::details-content { content-visibility: visible; }
  h2, h3, summary { break-after: avoid; } tr { break-inside: avoid; }
}
"""
