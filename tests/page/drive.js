// Works the page as a reader would and leaves what it found in the document, for the test to read.
"use strict";
addEventListener("load", async () => {
  const at = (id) => document.getElementById(id);
  const texts = (selector) => [...document.querySelectorAll(selector)].map((e) => e.textContent);
  const enter = (id, value) => {
    at(id).value = value;
    at(id).dispatchEvent(new Event(at(id).type === "search" ? "input" : "change", { bubbles: true }));
  };
  const column = (key) => {
    const keys = [...document.querySelectorAll("#rows thead button")].map((b) => b.dataset.key);
    return texts(`#rows tbody tr > :nth-child(${keys.indexOf(key) + 1})`);
  };
  const sort = (key) => {
    document.querySelector(`#rows thead button[data-key="${key}"]`).click();
    return { order: column(key), aria: document.querySelector(`#rows button[data-key="${key}"]`).closest("th").getAttribute("aria-sort"), focused: document.activeElement.dataset.key };
  };
  // What is saved: the text that the page makes, taken where the browser is given it.
  const saved = async (click) => {
    let blob;
    const made = URL.createObjectURL;
    URL.createObjectURL = (of) => { blob = of; return made.call(URL, of); };
    let name;
    const keep = (event) => { if (event.target.download) { name = event.target.download; event.preventDefault(); } };
    const clicked = HTMLAnchorElement.prototype.click;
    HTMLAnchorElement.prototype.click = function () { keep({ target: this, preventDefault() {} }); };
    click();
    URL.createObjectURL = made;
    HTMLAnchorElement.prototype.click = clicked;
    return { name, type: blob.type, text: await blob.text() };
  };
  const arrived = () => new Promise((done) => setTimeout(done, 50));
  const found = {};
  // How the page was when it opened, with what stood in its address.
  const opened = () => ({
    count: at("table-count").textContent, order: column("score"), columns: texts("#rows thead button"), matrix: at("matrix-caption").textContent,
    theme: document.documentElement.dataset.theme ?? "", sample: texts("#sample h3"), samples: at("samples-count").textContent, top: Math.round(scrollY),
    warned: document.querySelector("#warning-list details")?.open, width: innerWidth, wide: document.documentElement.scrollWidth,
  });
  const step = {
    opened,
    heading: () => [at("what").textContent, texts("#verdict .lead"), texts("#verdict li"), texts("#verdict td")],
    rows: () => column("method").length,
    up: () => sort("score"),
    down: () => sort("score"),
    back: () => sort("score").aria,
    find: () => { enter("table-find", "quest ruler/vt"); const all = [column("method"), at("table-count").textContent]; enter("table-find", ""); return all; },
    pick: () => { enter("table-filters-task", "ruler/cwe"); const all = column("task"); enter("table-filters-task", ""); return [...new Set(all)]; },
    nothing: () => { enter("table-find", "no such method"); const all = at("table-count").textContent; enter("table-find", ""); return all; },
    hide: () => { const box = document.querySelector('#table-columns input[value="density"]'); box.click(); return texts("#rows thead button").includes("density"); },
    warned: () => texts("#rows .warned"),
    folded: () => {
      const details = document.querySelector("#warning-list details");
      const closed = !details.open;
      document.querySelector("#rows .warned").click();
      return [details.querySelector("summary").textContent, closed, details.open];
    },
    matrix: () => { enter("matrix-columns", "length"); enter("matrix-value", "delta_full"); return [texts("#matrix-table thead button"), texts("#matrix-table tbody tr:nth-child(2) > *"), at("matrix-caption").textContent]; },
    over: () => {
      const select = at("matrix-over");
      const [shown, sets] = [at("matrix-over-label").checkVisibility(), [...select.options].map((o) => o.textContent)];
      enter("matrix-value", "score");
      const methods = () => texts("#matrix-table tbody tr > :first-child").join(", ");
      const all = [methods()];
      if (sets.length > 1) { enter("matrix-over", select.options[1].value); all.push(methods(), at("matrix-caption").textContent); }
      return [shown, sets, all];
    },
    plots: () => { enter("plots-find", "density"); const n = [...document.querySelectorAll("#figures figure")].filter((f) => f.checkVisibility()).length; enter("plots-find", ""); return [n, document.querySelectorAll("#figures svg[role=img][aria-label]").length]; },
    samples: () => [at("samples-count").textContent, texts("#samples-table tbody tr").length],
    next: () => { at("samples-on").click(); const all = at("samples-count").textContent; at("samples-back").click(); return all; },
    lost: () => { enter("samples-show", "lost"); return at("samples-count").textContent; },
    search: () => { enter("samples-show", "all"); enter("samples-find", "Needle-7 "); const all = at("samples-count").textContent; enter("samples-find", ""); return all; },
    open: () => {
      document.querySelector("#samples-table tbody tr:nth-child(3) button").click();
      return { text: texts("#sample dd"), heading: texts("#sample h3"), methods: texts("#sample tbody th"), predictions: texts("#sample td.text"), focused: document.activeElement.id };
    },
    // Of the same example, of another task: what the run kept of it comes when it is asked for.
    prompt: async () => {
      const third = () => document.querySelector("#samples-table tbody tr:nth-child(3) button").click();
      const all = () => { enter("sample-filters-task", ""); third(); };
      enter("sample-filters-task", [...at("sample-filters-task").options].find((o) => o.textContent === "ruler/cwe").value);
      third();
      const kept = document.querySelector("#sample details.prompt");
      if (kept === null) return all();
      const before = kept.querySelector("pre") !== null;
      const toggled = new Promise((done) => kept.addEventListener("toggle", () => setTimeout(done)));
      kept.open = true;
      await toggled;
      const found = [before, kept.querySelector("summary").textContent, kept.querySelector("pre").textContent];
      all();
      return found;
    },
    close: () => {
      at("sample").dispatchEvent(new KeyboardEvent("keydown", { key: "Escape" }));
      return [at("sample").hidden, document.activeElement.textContent];
    },
    // What assistive programs need: names for all controls and headings for all cells.
    unnamed: () => [...document.querySelectorAll("input, select")].filter((e) => e.labels.length === 0).map((e) => e.id),
    unscoped: () => document.querySelectorAll("table th:not([scope])").length,
    uncaptioned: () => document.querySelectorAll("table:not(:has(caption))").length,
    // One hue, deeper where better.
    colours: () => {
      enter("matrix-columns", "task");
      const of = (value) => { enter("matrix-value", value); return [...document.querySelectorAll("#matrix-table tbody tr td:nth-child(2)")].map((td) => td.style.backgroundColor); };
      const all = { score: of("score"), delta: of("delta_full"), density: of("density") };
      enter("matrix-value", "score");
      return all;
    },
    sticky: () => {
      const box = at("rows").parentElement;
      Object.assign(box.style, { maxHeight: "150px", maxWidth: "300px" });
      box.scrollTo(120, 90);
      const [whole, head, side] = [box, box.querySelector("thead th"), box.querySelector("tbody tr:nth-child(6) th")].map((e) => e.getBoundingClientRect());
      const all = [box.scrollLeft, box.scrollTop, Math.round(head.top - whole.top), Math.round(head.left - whole.left), Math.round(side.left - whole.left)];
      Object.assign(box.style, { maxHeight: "", maxWidth: "" });
      return all;
    },
    zoom: () => {
      const button = document.querySelector("#figures .enlarge");
      const svg = () => document.querySelector("#zoom-view svg");
      const size = () => svg().getBoundingClientRect().width;
      button.focus();
      button.click();
      const open = [at("zoom").open, at("zoom-title").textContent === button.closest("figure").dataset.title, svg().getBoundingClientRect().width > button.closest("figure").querySelector("svg").getBoundingClientRect().width];
      const first = size();
      at("zoom-in").click();
      const second = size();
      at("zoom-view").dispatchEvent(new WheelEvent("wheel", { deltaY: -100, clientX: 200, clientY: 200, cancelable: true }));
      const third = size();
      const left = () => svg().getBoundingClientRect().left;
      const before = left();
      const drag = (type, x) => new PointerEvent(type, { pointerId: 1, clientX: x, clientY: 200 });
      at("zoom-view").setPointerCapture = () => {};
      for (const [type, x] of [["pointerdown", 200], ["pointermove", 230], ["pointerup", 230]]) at("zoom-view").dispatchEvent(drag(type, x));
      const moved = Math.round(left() - before);
      at("zoom-fit").click();
      const fit = size() === first;
      at("zoom-close").click();
      return { open, grew: [second / first, third / second].map((x) => x.toFixed(2)), moved, fit, closed: !at("zoom").open, focused: document.activeElement === button };
    },
    saveTable: async () => {
      enter("table-find", "quest");
      document.querySelector('#rows thead button[data-key="length"]').click();
      document.querySelector('#rows thead button[data-key="length"]').click();
      const all = await saved(() => at("table-save").click());
      document.querySelector('#rows thead button[data-key="length"]').click();
      enter("table-find", "");
      return all;
    },
    saveSamples: async () => { enter("samples-find", "Needle-7 "); const all = await saved(() => at("samples-save").click()); enter("samples-find", ""); return all; },
    saveFigure: async () => {
      const { name, type, text } = await saved(() => document.querySelector("#figures .save-svg").click());
      return [name, type, new DOMParser().parseFromString(text, "image/svg+xml").documentElement.localName, [...document.querySelectorAll("#figures > figure:first-child figcaption a")].map((a) => a.getAttribute("href"))];
    },
    address: async () => {
      const steps = history.length;
      enter("table-find", "quest");
      document.querySelector('#rows thead button[data-key="score"]').click();
      enter("matrix-value", "density");
      document.querySelector("#samples-table tbody tr:nth-child(3) button").click();
      const kept = [location.hash, history.length - steps];
      location.hash = "#plots";
      await arrived();
      const gone = location.hash;
      location.hash = "#warnings&find=topk";
      await arrived();
      const set = [at("table-find").value, at("table-count").textContent, at("matrix-value").value, at("sample").hidden];
      location.hash = "#";
      await arrived();
      return { kept, gone, set, empty: [at("table-find").value, at("table-count").textContent, location.hash] };
    },
    dark: () => { at("theme").click(); return [document.documentElement.dataset.theme, at("theme").getAttribute("aria-pressed"), getComputedStyle(document.body).backgroundColor]; },
    manifests: () => texts("#manifests pre"),
    markup: () => document.querySelectorAll("#sample b, #rows b, #matrix b").length,
  };
  const finish = async () => {
    for (const [name, run] of Object.entries(step)) {
      try { found[name] = await run(); } catch (error) { found[name] = "failed: " + error.message; }
    }
    const out = document.createElement("pre");
    out.id = "found";
    out.textContent = btoa(unescape(encodeURIComponent(JSON.stringify(found))));
    document.body.append(out);
    // Where the page stands in a frame, the test sees only what is around it.
    if (parent !== self) parent.postMessage(out.textContent, "*");
  };
  if (document.documentElement.dataset.samples === "ready") return finish();
  new MutationObserver((_, watch) => { watch.disconnect(); finish(); }).observe(document.documentElement, { attributes: true, attributeFilter: ["data-samples"] });
});
