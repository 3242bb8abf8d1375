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
  const found = {};
  const step = {
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
    plots: () => { enter("plots-find", "latency"); const n = [...document.querySelectorAll("#figures figure")].filter((f) => f.checkVisibility()).length; enter("plots-find", ""); return [n, document.querySelectorAll("#figures svg[role=img][aria-label]").length]; },
    samples: () => [at("samples-count").textContent, texts("#samples-table tbody tr").length],
    next: () => { at("samples-on").click(); const all = at("samples-count").textContent; at("samples-back").click(); return all; },
    lost: () => { enter("samples-show", "lost"); return at("samples-count").textContent; },
    search: () => { enter("samples-show", "all"); enter("samples-find", "Needle-7 "); const all = at("samples-count").textContent; enter("samples-find", ""); return all; },
    open: () => {
      document.querySelector("#samples-table tbody tr:nth-child(3) button").click();
      return { text: texts("#sample dd"), heading: texts("#sample h3"), methods: texts("#sample tbody th"), predictions: texts("#sample td.text"), focused: document.activeElement.id };
    },
    close: () => {
      at("sample").dispatchEvent(new KeyboardEvent("keydown", { key: "Escape" }));
      return [at("sample").hidden, document.activeElement.textContent];
    },
    // What assistive programs need: names for all controls and headings for all cells.
    unnamed: () => [...document.querySelectorAll("input, select")].filter((e) => e.labels.length === 0).map((e) => e.id),
    unscoped: () => document.querySelectorAll("table th:not([scope])").length,
    uncaptioned: () => document.querySelectorAll("table:not(:has(caption))").length,
    dark: () => { at("theme").click(); return [document.documentElement.dataset.theme, at("theme").getAttribute("aria-pressed"), getComputedStyle(document.body).backgroundColor]; },
    manifests: () => texts("#manifests pre"),
    markup: () => document.querySelectorAll("#sample b, #rows b, #matrix b").length,
  };
  const finish = () => {
    for (const [name, run] of Object.entries(step)) {
      try { found[name] = run(); } catch (error) { found[name] = "failed: " + error.message; }
    }
    const out = document.createElement("pre");
    out.id = "found";
    out.textContent = btoa(unescape(encodeURIComponent(JSON.stringify(found))));
    document.body.append(out);
  };
  if (document.documentElement.dataset.samples === "ready") return finish();
  new MutationObserver((_, watch) => { watch.disconnect(); finish(); }).observe(document.documentElement, { attributes: true, attributeFilter: ["data-samples"] });
});
