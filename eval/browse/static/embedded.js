// First in a page that carries its data: OFFLEASH_EMBEDDED(route, query) reads them where TensorBoard would be asked.

const packed = Uint8Array.from(atob(JSON.parse(document.getElementById("offleash-data").textContent)), (c) => c.charCodeAt(0));
const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
const offleash = JSON.parse(await new Response(stream).text());
const names = ["run", "level", "step", "problem"];
const keyOf = (route, query) => [route, ...names.map((name) => query[name] ?? "")].join("\n");
const waiting = {};
globalThis.OFFLEASH_CELL = (key, cell) => waiting[key]?.(cell);
globalThis.OFFLEASH_EMBEDDED = (route, query) => {
  const key = keyOf(route, query);
  if (key in offleash.data) {
    if (offleash.data[key].error) throw new Error(offleash.data[key].error);
    return offleash.data[key];
  }
  if (!(key in offleash.files)) throw new Error(`This file has no such ${route}: it holds as many as fit.`);
  return new Promise((resolve, reject) => {
    waiting[key] = resolve;
    const script = document.createElement("script");
    script.src = offleash.files[key];
    script.onerror = () => reject(new Error(`${offleash.files[key]} is missing`));
    document.head.append(script);
  });
};
