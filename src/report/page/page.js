"use strict";
// Everything shown is text from the report's data; nothing of it is ever parsed as markup.
(() => {
  const data = JSON.parse(document.getElementById("report-data").textContent);
  const at = (id) => document.getElementById(id);
  const REFERENCE = "full";
  // With parameters it is `full` on keys and values that are stored in another type.
  const isReference = (r) => r.method === REFERENCE && !r.params;

  // ---- making elements ----

  // Controls, and what turns the order of letters around (bidirectional overrides, embeddings and isolates): written out.
  const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u2028-\u202e\u2066-\u2069]/g;
  const visible = (text) => text.replace(HIDDEN, (c) => `\\u{${c.charCodeAt(0).toString(16)}}`);
  const SPOKEN = ["title", "aria-label"];

  function make(tag, content, attributes = {}) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (value !== undefined && value !== null) element.setAttribute(name, SPOKEN.includes(name) ? visible(String(value)) : value);
    }
    const parts = [content].flat().filter((c) => c !== undefined && c !== null);
    element.append(...parts.map((part) => (typeof part === "string" ? visible(part) : part)));
    return element;
  }

  const distinct = (values) => [...new Set(values)];
  const options = (select, pairs) => select.replaceChildren(...pairs.map(([value, text]) => make("option", text, { value })));

  // ---- numbers as people read them ----

  const missing = (x) => x === null || x === undefined || Number.isNaN(x);
  const number = (x) => {
    if (missing(x)) return "";
    const size = Math.abs(x);
    if (size === 0) return "0";
    if (size >= 1e9) return x.toExponential(2).replace("e+", "e");
    if (size >= 99.95) return x.toFixed(0);
    if (size >= 9.995) return x.toFixed(1);
    if (size >= 0.9995) return x.toFixed(2);
    if (size >= 0.0995) return x.toFixed(3);
    return size >= 0.0005 ? x.toFixed(4) : x.toExponential(0);
  };
  const fixed = (digits) => (x) => (missing(x) ? "" : x.toFixed(digits).replace(/^-(0(\.0*)?)$/, "$1"));
  const signed = (digits) => (x) => {
    const text = fixed(digits)(x);
    return x > 0 && Number(text) !== 0 ? "+" + text : text;
  };
  const tokens = (n) => (n === 0 ? "as is" : n % 1048576 === 0 ? n / 1048576 + "M" : n % 1024 === 0 ? n / 1024 + "K" : String(n));
  const count = (n, what) => `${n} ${what}${n === 1 ? "" : "s"}`;
  const setting = (method, params) => (params ? method + " " + params : method);
  const isPerplexity = (row) => row.measure === "perplexity";
  const digits = (row) => (isPerplexity(row) ? 3 : 1);

  // Text with the numbers in it by value.
  const order = new Intl.Collator("en", { numeric: true });
  const compare = (a, b) => {
    if (missing(a) || missing(b)) return Number(missing(a)) - Number(missing(b));
    return typeof a === "number" && typeof b === "number" ? a - b : order.compare(String(a), String(b));
  };

  // ---- warnings ----

  const isAbout = (w, r) =>
    w.model === r.model && w.protocol === r.protocol && w.task === r.task && w.length === r.length &&
    (w.method === null || w.method === r.method) && (w.params === null || w.params === r.params);
  data.warnings.forEach((w, i) => { w.id = "warning-" + (i + 1); });
  // What rows have beside the columns of summary.csv.
  const OF_PAGE = ["timed_apart", "shown_params", "excess"];
  const FILE_COLUMNS = Object.keys(data.rows[0] ?? {}).filter((key) => !OF_PAGE.includes(key));
  data.rows.forEach((r, i) => {
    r.place = i;
    r.warnings = data.warnings.filter((w) => isAbout(w, r));
  });

  const marks = (warnings) =>
    warnings.map((w) => make("a", "⚠ " + w.code, { href: "#" + w.id, class: "warned", title: w.text, "aria-label": "warning: " + w.text }));

  // Marks of what costs more than dense attention, which the list below the table explains.
  const excessMarks = (r) =>
    r.excess.map(([mark, text]) => make("span", mark, { class: "excess-mark", title: text, role: "img", "aria-label": text }));

  // What rows do not show because all have it, and whose costs are more than those of dense attention.
  function showBesideRows() {
    for (const p of document.querySelectorAll(".said-once")) p.replaceChildren(...(data.said_once ? [visible(data.said_once)] : []));
    for (const p of document.querySelectorAll(".kv-type")) p.replaceChildren(visible(data.kv_types.join(" ")));
    for (const list of document.querySelectorAll("ul.excess")) list.replaceChildren(...data.excess.map((line) => make("li", line)));
  }

  // Warnings of one kind in larger numbers are folded, so that the results are not far below them.
  const MOST_UNFOLDED = 3;

  function showWarnings() {
    const item = (w) => make("li", [make("code", w.code), " " + w.text], { id: w.id });
    const list = (warnings) => make("ul", warnings.map(item), { class: "warnings" });
    const kinds = distinct(data.warnings.map((w) => w.code)).map((code) => data.warnings.filter((w) => w.code === code));
    const folded = kinds.filter((kind) => kind.length > MOST_UNFOLDED);
    const unfolded = kinds.filter((kind) => kind.length <= MOST_UNFOLDED).flat();
    const parts = folded.map((kind) =>
      make("details", [make("summary", [make("code", kind[0].code), ": " + count(kind.length, "result")]), list(kind)]));
    if (unfolded.length) parts.unshift(list(unfolded));
    if (!data.warnings.length) parts.push(make("p", "The self-checks found nothing to warn about."));
    at("warning-list").replaceChildren(...data.notes.map((n) => make("p", n, { class: "note" })), ...parts);
    document.addEventListener("click", (event) => {
      const link = event.target.closest('a[href^="#warning-"]');
      if (link) unfold(link.hash);
    });
  }

  function unfold(hash) { at(hash.slice(1))?.closest("details")?.setAttribute("open", ""); }

  // Text in which what stands between backticks is a name.
  const named = (text) => text.split("`").map((part, i) => (i % 2 ? make("code", part) : visible(part)));

  function showHeading() {
    at("what").replaceChildren(...named(data.heading));
  }

  function showFacts() {
    at("facts").textContent =
      `${count(data.records, "record")}, ${count(data.rows.length, "row")}. Score: mean with its 95 % interval.`
      + (data.detectable ? ` On one task: ${data.detectable}.` : "");
  }

  // ---- saving what is shown ----

  // A file made of text that the page has.
  function save(name, type, text) {
    const url = URL.createObjectURL(new Blob([text], { type }));
    make("a", [], { href: url, download: name }).click();
    // Not at once: the browser reads it after the click.
    setTimeout(() => URL.revokeObjectURL(url), 10000);
  }

  // What a spreadsheet would compute is text there, by an apostrophe before it; numbers are none of that.
  const isFormula = (text) => /^[=@\t\r\n＝＋－＠]/.test(text) || (/^[+-]/.test(text) && (text.trim() !== text || Number.isNaN(Number(text))));
  const csvCell = (text) => (isFormula(text.replace(/^'+/, "")) ? "'" + text : text);
  const quoted = (text) => (/[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  const csvField = (x) => (missing(x) ? "" : quoted(csvCell(String(x))));
  const csv = (keys, rows) => [keys, ...rows.map((r) => keys.map((key) => r[key]))].map((line) => line.map(csvField).join(",") + "\n").join("");

  // ---- a table that sorts ----

  // Columns: {key, label, text?, value(row), cell(row)}; `text` columns are aligned left.
  function inOrder(columns, rows, state) {
    const by = columns.find((c) => c.key === state.key);
    return by ? [...rows].sort((a, b) => {
      const [x, y] = [by.value(a), by.value(b)];
      // What is missing stays at the end.
      if (missing(x) || missing(y)) return compare(x, y) || a.place - b.place;
      return state.sign * compare(x, y) || a.place - b.place;
    }) : rows;
  }

  // Draws the rows in order, which it returns.
  function sortable(table, columns, rows, caption, state, redraw) {
    const sorted = inOrder(columns, rows, state);
    const heading = (column) => {
      const button = make("button", column.label, { type: "button", "data-key": column.key });
      button.addEventListener("click", () => {
        const again = state.key === column.key;
        // Up, down, and back to the order of the summary.
        if (again && state.sign < 0) state.key = null;
        else Object.assign(state, { key: column.key, sign: again ? -1 : 1 });
        redraw();
        table.querySelector(`button[data-key="${column.key}"]`).focus();
      });
      const sort = column.key !== state.key ? "none" : state.sign > 0 ? "ascending" : "descending";
      // Its title is the accessible description of the button as well.
      if (column.about) button.title = column.about.replaceAll("`", "");
      return make("th", button, { scope: "col", "aria-sort": sort, class: column.text ? "" : "number" });
    };
    const line = (row) => make("tr", columns.map((c, i) => make(i === 0 ? "th" : "td", c.cell(row), {
      class: c.text ? "" : "number", scope: i === 0 ? "row" : null, style: c.style?.(row),
    })));
    table.replaceChildren(
      make("caption", caption, { class: "hidden" }),
      make("thead", make("tr", columns.map(heading))),
      make("tbody", sorted.map(line)),
    );
    return sorted;
  }

  // ---- the table ----

  const withInterval = (text, low, high, form) =>
    missing(low) ? text : [text, make("span", ` [${form(low)} ${form(high)}]`, { class: "interval" })];
  const kilobytes = (x) => (missing(x) ? "" : number(x / 1000));
  const percent = (x) => (missing(x) ? "" : number(100 * x));
  // The cells of columns that are more than a number.
  const CELLS = {
    method: (r) => [r.method, ...excessMarks(r)],
    params: (r) => make("span", r.shown_params, { title: r.params }),
    length: (r) => tokens(r.length),
    n: (r) => (r.contexts < r.n ? `${r.n} (${r.contexts})` : String(r.n)),
    score: (r) => withInterval(fixed(digits(r))(r.score), r.ci_low, r.ci_high, fixed(digits(r))),
    delta_full: (r) => (isReference(r) || missing(r.delta_full) ? ""
      : withInterval(signed(digits(r))(r.delta_full), r.delta_low, r.delta_high, signed(digits(r)))),
    decode_ms_per_token: (r) => (missing(r.decode_ms_per_token) ? "" : make("span", [
      withInterval(number(r.decode_ms_per_token), r.decode_ms_low, r.decode_ms_high, number), r.timed_apart ? "*" : "",
      { shared: " share", solo: " solo" }[r.latency] ?? "",
    ].flat(), { title: r.timed ?? "" })),
  };
  const FORMS = { text: (x) => x, number, kilobytes, percent };
  const COLUMNS = [
    ...data.columns.map(({ key, label, about, form, better, shown }) => ({
      key, label, about, better, shown, text: form === "text",
      value: key === "delta_full" ? (r) => (isReference(r) ? null : r.delta_full) : (r) => r[key],
      cell: CELLS[key] ?? ((r) => FORMS[form](r[key])),
    })),
    { key: "warnings", label: "look at", about: "Warnings about this row.", text: true, shown: true, value: (r) => -r.warnings.length, cell: (r) => marks(r.warnings).flatMap((m) => [m, " "]) },
  ];
  const differs = (key) => distinct(data.rows.map((r) => r[key])).length > 1;
  const hasValue = (c) => c.text || data.rows.some((r) => !missing(c.value(r)));
  const columns = COLUMNS.filter(hasValue).filter((c) => c.key !== "warnings" || data.warnings.length > 0);
  // Only times of a method alone are latencies; shares of common steps are shown to those who ask for them.
  const isTimedAlone = data.rows.some((r) => r.latency === "solo");
  for (const c of columns) {
    c.shown = c.shown || (["model", "protocol"].includes(c.key) && differs(c.key)) || (c.key === "decode_ms_per_token" && isTimedAlone);
  }

  // Which way a value is better: 1 where more is, -1 where less is, 0 where neither is.
  const OF_PERPLEXITY = ["score", "delta_full"];
  const better = (key, row) => (isPerplexity(row) && OF_PERPLEXITY.includes(key) ? -1 : COLUMNS.find((c) => c.key === key)?.better ?? 0);
  const LOST_MOST = 50; // points to full at which the colour ends
  const DEEPEST = 0.5;

  const rowState = { key: null, sign: 1 };
  const filters = [];
  let rowsShown = [];

  function addFilter(into, key, label, values, changed, shownAs = String) {
    if (values.length < 2) return () => "";
    const select = make("select", []);
    options(select, [["", "all"], ...values.map((v) => [String(v), shownAs(v)])]);
    select.id = into.id + "-" + key;
    select.addEventListener("change", changed);
    into.append(make("label", [label + " ", select]));
    return () => select.value;
  }

  function showRows() {
    const words = at("table-find").value.toLowerCase().split(/\s+/).filter(Boolean);
    // Not the protocol: "quest" is not to find all that is sparse from "question".
    const text = (r) => `${r.model} ${r.task} ${r.length} ${setting(r.method, r.params)} ${r.warnings.map((w) => w.code).join(" ")}`.toLowerCase();
    const rows = data.rows.filter((r) =>
      filters.every(([key, value]) => value() === "" || String(r[key]) === value()) && words.every((w) => text(r).includes(w)));
    at("table-count").textContent = `${rows.length} of ${data.rows.length} rows`;
    rowsShown = sortable(at("rows"), columns.filter((c) => c.shown), rows, "Results by method, task and length", rowState, showRows);
    keepView();
  }

  function setUpTable() {
    const into = at("table-filters");
    for (const [key, label, form] of [["method", "method"], ["task", "task"], ["length", "length", tokens], ["model", "model"], ["protocol", "sparse from"]]) {
      filters.push([key, addFilter(into, key, label, distinct(data.rows.map((r) => r[key])), showRows, form)]);
    }
    at("table-find").addEventListener("input", showRows);
    at("table-save").addEventListener("click", () => save("rows.csv", "text/csv", csv(FILE_COLUMNS, rowsShown)));
    at("table-columns").append(...columns.map((c) => {
      const box = make("input", [], { type: "checkbox", value: c.key });
      box.checked = c.shown;
      box.addEventListener("change", () => { c.shown = box.checked; showRows(); });
      return make("label", [box, " " + c.label]);
    }));
    at("legend").replaceChildren(...columns.filter((c) => c.about).flatMap((c) => [make("dt", c.label), make("dd", named(c.about))]));
    showRows();
  }

  // ---- the overview ----

  const matrixState = { key: null, sign: 1 };

  // What is to be said beside a mean over these tasks.
  function standIns(tasks) {
    const found = tasks.filter((task) => Object.hasOwn(data.stand_ins, task));
    const are = found.length === 1 ? "is a synthetic stand-in for a published one" : "are synthetic stand-ins for published ones";
    const pairs = found.map((task) => `${task} for ${data.stand_ins[task]}`).join(", ");
    return found.length && tasks.length > 1 ? `; ${found.length} of ${tasks.length} tasks ${are} (${pairs})` : "";
  }

  // What a value of the overview is averaged over: its task and length, as far as they are no columns.
  const scopeKey = (r, by) => JSON.stringify([by === "task" ? "" : r.task, by === "length" ? 0 : r.length]);
  const scopeLabel = (key) => {
    const [task, length] = JSON.parse(key);
    return [task, length ? tokens(length) : ""].filter(Boolean).join(" at ");
  };

  // The tasks and lengths that all means of the overview are over. Where cells have different ones the reader chooses: one
  // of these sets, or what all have in common; cells that lack some of them are empty.
  function chooseScope(lines, by) {
    const sets = lines.flatMap((l) => [...l.cells.values()].map((rs) => rs.map((r) => scopeKey(r, by)).sort()));
    const common = sets.length ? sets.reduce((a, b) => a.filter((key) => b.includes(key))) : [];
    const scopes = distinct([...sets, common].filter((keys) => keys.length).map((keys) => JSON.stringify(keys)))
      .sort((a, b) => JSON.parse(b).length - JSON.parse(a).length);
    const select = at("matrix-over");
    const chosen = scopes.includes(select.value) ? select.value : scopes[0];
    options(select, scopes.map((scope) => [scope, JSON.parse(scope).map(scopeLabel).join(", ")]));
    select.value = scopes[matrixState.over] ?? chosen ?? "";
    matrixState.over = undefined;
    at("matrix-over-label").hidden = scopes.length < 2;
    return select.value ? new Set(JSON.parse(select.value)) : null;
  }

  function showMatrix() {
    const by = at("matrix-columns").value;
    const value = COLUMNS.find((c) => c.key === at("matrix-value").value);
    const rows = data.rows.filter((r) => !missing(value.value(r)));
    const headings = distinct(rows.map((r) => r[by]));
    if (by === "length") headings.sort(compare);
    const lines = new Map();
    for (const r of rows) {
      // Rows of different models, protocols and measures are never averaged.
      const key = JSON.stringify([r.model, r.protocol, r.method, r.params, r.measure, isPerplexity(r) ? [r.task, r.length] : 0]);
      if (!lines.has(key)) lines.set(key, { place: lines.size, head: r, cells: new Map() });
      const cells = lines.get(key).cells;
      cells.set(r[by], [...(cells.get(r[by]) ?? []), r]);
    }
    const all = [...lines.values()];
    const over = chooseScope(all.filter((l) => !isPerplexity(l.head)), by);
    const averaged = (l, heading) => {
      const rs = l.cells.get(heading);
      if (!rs || isPerplexity(l.head) || !over) return rs;
      const kept = rs.filter((r) => over.has(scopeKey(r, by)));
      return kept.length === over.size ? kept : undefined;
    };
    // Means of scores come with the report, as do their intervals; other values have none.
    const ENDS = { score: ["ci_low", "ci_high"], delta_full: ["delta_low", "delta_high"], decode_ms_per_token: ["decode_ms_low", "decode_ms_high"] };
    const keyOf = (rs) => rs.map((r) => r.place).sort((a, b) => a - b).join(",");
    const estimate = (rs) => {
      const known = rs.length > 1 && data.means[keyOf(rs)]?.[value.key];
      if (known) return known;
      const ends = rs.length === 1 && ENDS[value.key] ? ENDS[value.key].map((key) => rs[0][key]) : [null, null];
      return [rs.reduce((sum, r) => sum + value.value(r), 0) / rs.length, ...ends];
    };
    // The mean of a line over all columns, which the report has where the line has all that others have.
    const overAll = (l) => {
      const all = headings.map((h) => averaged(l, h));
      if (all.includes(undefined)) return undefined;
      const rs = all.flat();
      return rs.length > 1 && data.means[keyOf(rs)]?.[value.key] ? rs : undefined;
    };
    const mean = (rs) => (rs ? estimate(rs)[0] : null);
    const most = Math.max(1, ...all.flatMap((l) => headings.map((h) => (averaged(l, h) ?? []).length)));
    const isDelta = value.key === "delta_full";
    // One hue, deeper where a value is better: scores and their differences on a scale of their own, others between the
    // worst and the best of what is beside them.
    const scales = new Map();
    const scaleOf = (row, heading) => JSON.stringify([heading, isPerplexity(row), isPerplexity(row) ? [row.task, row.length] : 0]);
    for (const l of all) {
      for (const h of headings) {
        const x = mean(averaged(l, h));
        if (missing(x)) continue;
        const [low, high] = scales.get(scaleOf(l.head, h)) ?? [x, x];
        scales.set(scaleOf(l.head, h), [Math.min(low, x), Math.max(high, x)]);
      }
    }
    const merit = (x, row, heading) => {
      const sign = better(value.key, row);
      if (missing(x) || sign === 0) return null;
      if (!isPerplexity(row) && value.key === "score") return x / 100;
      if (!isPerplexity(row) && isDelta) return 1 + x / LOST_MOST;
      const [low, high] = scales.get(scaleOf(row, heading));
      return high > low ? (sign > 0 ? x - low : high - x) / (high - low) : null;
    };
    const shade = (x, row, heading) => {
      const m = merit(x, row, heading);
      return m === null ? null : `background-color: rgba(var(--good), ${(DEEPEST * Math.min(1, Math.max(0, m))).toFixed(3)})`;
    };
    const form = (x, row) => (value.key === "score" ? fixed(digits(row))(x) : isDelta ? signed(digits(row))(x) : value.cell({ ...row, [value.key]: x }));
    const nameOf = (l, params) => [
      setting(l.head.method, params), differs("model") ? l.head.model : "", differs("protocol") ? "from " + l.head.protocol : "",
      isPerplexity(l.head) && by !== "task" ? l.head.task : "", isPerplexity(l.head) && by !== "length" ? tokens(l.head.length) : "",
    ].filter(Boolean).join(", ");
    const name = (l) => nameOf(l, l.head.params);
    const rowsOf = (l) => headings.flatMap((h) => averaged(l, h) ?? []);
    // Each mark once, with what the first row says that has it.
    const marksOf = (l) => excessMarks({ excess: [...new Map(rowsOf(l).flatMap((r) => r.excess).reverse()).entries()].sort() });
    const nameCell = (l) => [make("span", nameOf(l, l.head.shown_params), { title: name(l) }), ...marksOf(l)];
    const cell = (l, rs) => {
      if (!rs) return "";
      const warnings = rs.flatMap((r) => r.warnings).filter((w) => w.method !== null);
      const [x, low, high] = estimate(rs);
      const isTime = value.key === "decode_ms_per_token";
      const end = (e) => (isTime ? number(e) : isDelta ? signed(digits(l.head))(e) : fixed(digits(l.head))(e));
      // Times say their own intervals where they are of one row.
      const text = isTime && rs.length === 1 ? form(x, rs[0]) : withInterval(form(x, l.head), low, high, end);
      const mark = warnings.length ? make("a", " ⚠", { href: "#" + warnings[0].id, class: "warned", title: warnings.map((w) => w.text).join("\n"), "aria-label": "warning: " + warnings.map((w) => w.text).join("; ") }) : "";
      return [text, mark].flat();
    };
    const isMeanShown = ["task", "length"].includes(by) && headings.length > 1 && all.some(overAll);
    const shown = (heading) => (by === "length" ? tokens(heading) : String(heading));
    sortable(at("matrix-table"), [
      { key: "setting", label: "method", text: true, value: name, cell: nameCell },
      ...headings.map((h, i) => ({ key: "column" + i, label: shown(h), value: (l) => mean(averaged(l, h)), cell: (l) => cell(l, averaged(l, h)), style: (l) => shade(mean(averaged(l, h)), l.head, h) })),
      ...(isMeanShown ? [{ key: "mean", label: "mean", value: (l) => mean(overAll(l)), cell: (l) => cell(l, overAll(l)), style: (l) => shade(mean(overAll(l)), l.head) }] : []),
    ], all.filter((l) => headings.some((h) => averaged(l, h))), "Methods by " + by, matrixState, showMatrix);
    const what = by === "task" ? "lengths" : by === "length" ? "tasks" : "tasks and lengths";
    const used = all.filter((l) => !isPerplexity(l.head)).flatMap((l) => headings.flatMap((h) => averaged(l, h) ?? []));
    const note = by === "task" ? "" : standIns(distinct(used.map((r) => r.task)));
    at("matrix-caption").textContent = visible(most > 1 ? `${value.label}: mean over ${most} ${what}${note}` : value.label)
      + (all.some((l) => better(value.key, l.head)) ? " (darker is better)" : "");
    showScale(value.key, all.some((l) => better(value.key, l.head)), all.some((l) => isPerplexity(l.head)));
    keepView();
  }

  // The scale of the colours, with its ends.
  function showScale(key, isShaded, isRelative) {
    at("matrix-scale").hidden = !isShaded;
    const ends = isRelative ? null : { score: ["0 %", "100 %"], delta_full: ["−" + LOST_MOST + " points or worse", "0 or better"] }[key];
    const [worst, best] = ends ?? ["worst here", "best here"];
    at("matrix-scale").querySelectorAll("span").forEach((span, i) => { span.textContent = [worst, best][i]; });
  }

  function setUpMatrix() {
    options(at("matrix-columns"), [["task", "tasks"], ["length", "lengths"], ["protocol", "protocols"], ["model", "models"]]
      .filter(([key]) => key === "task" || differs(key)));
    options(at("matrix-value"), columns.filter((c) => !c.text && !["length", "detectable"].includes(c.key)).map((c) => [c.key, c.label]));
    at("matrix-value").value = "score";
    at("matrix-columns").addEventListener("change", () => { matrixState.key = null; showMatrix(); });
    at("matrix-value").addEventListener("change", showMatrix);
    at("matrix-over").addEventListener("change", showMatrix);
    showMatrix();
  }

  // ---- plots ----

  function findPlots() {
    const all = [...document.querySelectorAll("#figures figure")];
    const words = at("plots-find").value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const f of all) f.hidden = !words.every((w) => f.dataset.title.toLowerCase().includes(w) || f.id.includes(w));
    // What is looked for may be among the plots behind the line.
    if (words.length && at("plots-more")) at("plots-more").open = true;
    at("plots-count").textContent = `${all.filter((f) => !f.hidden).length} of ${all.length} plots`;
    keepView();
  }

  function setUpPlots() {
    for (const figure of document.querySelectorAll("#figures figure:has(> svg)")) {
      const svg = figure.querySelector("svg");
      const larger = make("button", "Enlarge", { type: "button", class: "enlarge", "aria-label": "Enlarge: " + figure.dataset.title });
      const keep = make("button", "Save SVG", { type: "button", class: "save-svg", "aria-label": "Save as SVG: " + figure.dataset.title });
      larger.addEventListener("click", () => zoom.open(figure));
      // The focus comes back to where the keyboard can be.
      svg.addEventListener("click", () => { larger.focus(); zoom.open(figure); });
      keep.addEventListener("click", () => save(figure.id.replace("plot-", "") + ".svg", "image/svg+xml", new XMLSerializer().serializeToString(svg)));
      figure.querySelector("figcaption").append(larger, keep);
    }
    at("plots-find").addEventListener("input", findPlots);
    findPlots();
    zoom.setUp();
  }

  // ---- a plot at the size of the window ----

  const zoom = {
    LEAST: 1, MOST: 20, STEP: 1.4, ARROW: 60,
    scale: 1, x: 0, y: 0, svg: null,
    fingers: new Map(),

    open(figure) {
      this.svg = figure.querySelector("svg").cloneNode(true);
      at("zoom-title").textContent = figure.dataset.title;
      at("zoom-view").replaceChildren(this.svg);
      this.place(1, 0, 0);
      // A modal dialog keeps the focus in it, closes by Escape and gives the focus back.
      at("zoom").showModal();
    },

    place(scale, x, y) {
      Object.assign(this, { scale, x, y });
      this.svg.style.transform = `translate(${x}px, ${y}px) scale(${scale})`;
    },

    // Larger by a factor, with a point of the window kept where it is.
    by(factor, toX, toY) {
      const scale = Math.min(this.MOST, Math.max(this.LEAST, this.scale * factor));
      const grown = scale / this.scale;
      if (scale === this.LEAST) this.place(scale, 0, 0);
      else this.place(scale, toX - (toX - this.x) * grown, toY - (toY - this.y) * grown);
    },

    move(x, y) { this.place(this.scale, this.x + x, this.y + y); },

    setUp() {
      const view = at("zoom-view");
      const inView = (event) => { const box = view.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; };
      const fromMiddle = (factor) => this.by(factor, view.clientWidth / 2, view.clientHeight / 2);
      at("zoom-in").addEventListener("click", () => fromMiddle(this.STEP));
      at("zoom-out").addEventListener("click", () => fromMiddle(1 / this.STEP));
      at("zoom-fit").addEventListener("click", () => this.place(1, 0, 0));
      at("zoom-close").addEventListener("click", () => at("zoom").close());
      at("zoom").addEventListener("close", () => { view.replaceChildren(); this.fingers.clear(); });
      at("zoom").addEventListener("keydown", (event) => {
        const act = {
          "+": () => fromMiddle(this.STEP), "=": () => fromMiddle(this.STEP), "-": () => fromMiddle(1 / this.STEP), "0": () => this.place(1, 0, 0),
          ArrowLeft: () => this.move(this.ARROW, 0), ArrowRight: () => this.move(-this.ARROW, 0),
          ArrowUp: () => this.move(0, this.ARROW), ArrowDown: () => this.move(0, -this.ARROW),
        }[event.key];
        if (act) { act(); event.preventDefault(); }
      });
      view.addEventListener("wheel", (event) => {
        event.preventDefault();
        this.by(this.STEP ** (-event.deltaY / 100), ...inView(event));
      }, { passive: false });
      // One finger or the mouse drags, two also zoom by how far they are apart.
      view.addEventListener("pointerdown", (event) => { this.fingers.set(event.pointerId, inView(event)); view.setPointerCapture(event.pointerId); });
      for (const end of ["pointerup", "pointercancel"]) view.addEventListener(end, (event) => this.fingers.delete(event.pointerId));
      view.addEventListener("pointermove", (event) => {
        if (!this.fingers.has(event.pointerId)) return;
        const gauge = () => {
          const all = [...this.fingers.values()];
          const middle = [0, 1].map((i) => all.reduce((sum, p) => sum + p[i], 0) / all.length);
          return [...middle, all.length > 1 ? Math.hypot(all[0][0] - all[1][0], all[0][1] - all[1][1]) : 0];
        };
        const [x, y, apart] = gauge();
        this.fingers.set(event.pointerId, inView(event));
        const [newX, newY, newApart] = gauge();
        this.move(newX - x, newY - y);
        if (apart && newApart) this.by(newApart / apart, newX, newY);
      });
    },
  };

  // ---- samples ----

  const PAGE = 50;
  const samples = { all: null, found: [], page: 0, chosen: null, filters: [] };

  async function unpack() {
    const packed = Uint8Array.from(atob(at("samples-data").textContent), (c) => c.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    return JSON.parse(await new Response(stream).text());
  }

  // Rows of records by example, and what is asked of an example when it is looked for.
  function index({ texts, examples, records }) {
    const n = examples.task.length;
    const of = Array.from({ length: n }, () => []);
    records.example.forEach((example, i) => of[example].push(i));
    const full = of.map((list) => list.find((i) => isReference({ method: texts[records.method[i]], params: texts[records.params[i]] })));
    const merit = (i) => (records.perplexity[i] ? -records.score[i] : records.score[i]);
    const least = of.map((list) => Math.min(...list.map(merit)));
    const most = of.map((list) => Math.max(...list.map(merit)));
    return { texts, examples, records, n, of, full, merit, least, most };
  }

  const KINDS = {
    all: () => true,
    differ: (s, e) => s.most[e] > s.least[e],
    lost: (s, e) => s.full[e] !== undefined && s.least[e] < s.merit(s.full[e]),
    gained: (s, e) => s.full[e] !== undefined && s.most[e] > s.merit(s.full[e]),
    wrong: (s, e) => s.full[e] !== undefined && !s.records.perplexity[s.full[e]] && s.records.score[s.full[e]] < 1,
  };

  function findSamples() {
    const s = samples.all;
    const kind = KINDS[at("samples-show").value];
    const sought = at("samples-find").value.toLowerCase();
    const hits = sought && new Set(s.texts.flatMap((text, i) => (text.toLowerCase().includes(sought) ? [i] : [])));
    const hasText = (e) => !sought || hits.has(s.examples.question[e]) || hits.has(s.examples.prompt[e]) || s.examples.references[e].some((i) => hits.has(i)) ||
      s.of[e].some((i) => hits.has(s.records.prediction[i]));
    const wanted = (e) => samples.filters.every(([of, value]) => value() === "" || String(of(e)) === value());
    samples.found = [];
    for (let e = 0; e < s.n; e++) if (wanted(e) && kind(s, e) && hasText(e)) samples.found.push(e);
    samples.page = 0;
    showSamples();
  }

  // The records of the examples that were found, one JSON object a line.
  function sampleLines() {
    const { texts, examples: x, records: r, of } = samples.all;
    const text = (i) => texts[i];
    const record = (e, i) => ({
      model: text(x.model[e]), protocol: text(x.protocol[e]), task: text(x.task[e]), length: x.length[e], seed: x.seed[e], sample: x.sample[e],
      depth: x.depth[e], source: text(x.source[e]), question: text(x.question[e]), references: x.references[e].map(text),
      prompt_tokens: x.prompt_tokens[e], prefix_tokens: x.prefix_tokens[e], prefill_s: x.prefill_s[e],
      method: text(r.method[i]), params: text(r.params[i]), prediction: text(r.prediction[i]),
      measure: r.perplexity[i] ? "perplexity" : "score", score: r.score[i], stopped: Boolean(r.stopped[i]), new_tokens: r.new_tokens[i],
      density: r.density[i], cost1: r.cost1[i], cost2: r.cost2[i], kv_bytes_per_token: r.kv_bytes_per_token[i],
      index_s: r.index_s[i], decode_s: r.decode_s[i], steps: r.steps[i], output_error: r.output_error[i],
    });
    return samples.found.flatMap((e) => of[e].map((i) => JSON.stringify(record(e, i)) + "\n")).join("");
  }

  const scoreText = (s, i) => (i === undefined ? "" : s.records.perplexity[i] ? fixed(3)(s.records.score[i]) : fixed(1)(100 * s.records.score[i]));

  function showSamples() {
    const s = samples.all;
    const first = samples.page * PAGE;
    const page = samples.found.slice(first, first + PAGE);
    at("samples-count").textContent = samples.found.length
      ? `${first + 1} to ${first + page.length} of ${samples.found.length} examples (${s.n} in all, ${s.records.score.length} records)`
      : `no example of ${s.n}`;
    at("samples-back").disabled = samples.page === 0;
    at("samples-on").disabled = first + PAGE >= samples.found.length;
    const several = (key) => distinct(s.examples[key]).length > 1;
    const shown = [
      ["task", "task", (e) => s.texts[s.examples.task[e]], true],
      ["model", "model", (e) => s.texts[s.examples.model[e]], several("model")],
      ["protocol", "sparse from", (e) => s.texts[s.examples.protocol[e]], several("protocol")],
      ["length", "length", (e) => tokens(s.examples.length[e]), true],
      ["seed", "seed", (e) => String(s.examples.seed[e]), several("seed")],
      ["depth", "depth %", (e) => number(s.examples.depth[e]), s.examples.depth.some((d) => d !== null)],
      ["full", "full", (e) => scoreText(s, s.full[e]), s.full.some((i) => i !== undefined)],
      ["worst", "worst", (e) => scoreText(s, s.of[e].find((i) => s.merit(i) === s.least[e])), true],
      ["references", "references", (e) => s.examples.references[e].map((i) => s.texts[i]).join(" | ").slice(0, 120), true],
    ].filter((c) => c[3]);
    const line = (e) => {
      const button = make("button", "Sample " + s.examples.sample[e], { type: "button", "data-example": e });
      button.addEventListener("click", () => openSample(e));
      return make("tr", [make("th", button, { scope: "row" }), ...shown.map(([key, , text]) =>
        make("td", text(e), { class: ["length", "seed", "depth", "full", "worst"].includes(key) ? "number" : "" }))],
      { "aria-selected": String(samples.chosen === e) });
    };
    at("samples-table").replaceChildren(
      make("caption", "Examples; each opens to the predictions of all methods", { class: "hidden" }),
      make("thead", make("tr", [make("th", "example", { scope: "col" }), ...shown.map(([, label]) => make("th", label, { scope: "col" }))])),
      make("tbody", page.map(line)),
    );
    keepView();
  }

  function closeSample() {
    at("sample").hidden = true;
    samples.chosen = null;
  }

  // What the model read, where the run kept it, opened on demand.
  function wholePrompt(e) {
    const kept = samples.all.examples.prompt[e];
    if (missing(kept)) return [];
    const shown = make("details", make("summary", "what the model read"), { class: "prompt" });
    shown.addEventListener("toggle", () => shown.append(make("pre", samples.all.texts[kept], { tabindex: "0" })), { once: true });
    return [shown];
  }

  function openSample(e) {
    const s = samples.all;
    const x = s.examples;
    samples.chosen = e;
    showSamples();
    const text = (i) => s.texts[i];
    const facts = [
      ["question", text(x.question[e]) || "not recorded"],
      ["references", x.references[e].map(text).join("\n") || "none"],
      ["prompt", [`${x.prompt_tokens[e]} tokens, ${x.prefix_tokens[e]} of them dense prefix (${number(x.prefill_s[e])} s)`, ...wholePrompt(e)]],
      ["source", text(x.source[e]) || "not recorded"],
    ];
    const r = s.records;
    const own = s.of[e].map((i, place) => ({ i, place }));
    const column = (key, label, form = number) => ({ key, label, value: (o) => r[key][o.i], cell: (o) => form(r[key][o.i]) });
    const total = (i) => (missing(r.cost1[i]) ? null : r.cost1[i] + r.cost2[i]);
    const shown = [
      { key: "method", label: "method", text: true, value: (o) => setting(text(r.method[o.i]), text(r.params[o.i])), cell: (o) => setting(text(r.method[o.i]), text(r.params[o.i])) },
      { key: "score", label: "score", value: (o) => s.merit(o.i), cell: (o) => scoreText(s, o.i) },
      { key: "prediction", label: "prediction", text: true, value: (o) => text(r.prediction[o.i]), cell: (o) => prediction(o.i) },
      column("density", "density"),
      { key: "cost", label: "FLOPs %", value: (o) => total(o.i), cell: (o) => percent(total(o.i)) },
      { key: "bytes", label: "KB/token", value: (o) => r.kv_bytes_per_token[o.i], cell: (o) => (missing(r.kv_bytes_per_token[o.i]) ? "" : number(r.kv_bytes_per_token[o.i] / 1000)) },
      column("index_s", "index s"),
      column("new_tokens", "new tokens", String),
      column("output_error", "output error"),
    ].filter((c) => c.text || own.some((o) => !missing(c.value(o))));
    const prediction = (i) => {
      const kept = r.stopped[i] || r.new_tokens[i] === 0 ? [] : [make("span", " (ran into the token limit)", { class: "warned" })];
      return [text(r.prediction[i]) || make("span", "empty", { class: "interval" }), ...kept];
    };
    const table = make("table", []);
    const state = { key: null, sign: 1 };
    const draw = () => {
      sortable(table, shown, own, "Predictions of all methods", state, draw);
      table.querySelectorAll("tbody tr").forEach((tr) => tr.children[shown.findIndex((c) => c.key === "prediction")].classList.add("text"));
    };
    draw();
    const close = make("button", "Close", { type: "button", id: "sample-close" });
    const shut = () => {
      closeSample();
      showSamples();
      document.querySelector(`#samples-table button[data-example="${e}"]`)?.focus();
    };
    close.addEventListener("click", shut);
    at("sample").onkeydown = (event) => { if (event.key === "Escape") shut(); };
    at("sample").replaceChildren(
      make("h3", `${text(x.task[e])}, ${tokens(x.length[e])}, sample ${x.sample[e]}, seed ${x.seed[e]}`),
      make("dl", facts.flatMap(([name, value]) => [make("dt", name), make("dd", value)])),
      make("div", table, { class: "scroll", tabindex: "0", role: "region", "aria-label": "Predictions of all methods" }),
      close,
    );
    at("sample").hidden = false;
    at("sample").focus();
    at("sample").scrollIntoView({ block: "nearest" });
  }

  async function setUpSamples() {
    try {
      samples.all = index(await unpack());
    } catch (error) {
      at("samples-count").textContent = "The samples cannot be unpacked here (" + error.message + "); they are in samples.jsonl.";
      return;
    }
    const { examples, texts } = samples.all;
    const into = at("sample-filters");
    for (const [key, label, shownAs] of [
      ["task", "task", (i) => texts[i]], ["length", "length", tokens], ["model", "model", (i) => texts[i]], ["protocol", "sparse from", (i) => texts[i]],
    ]) {
      const values = distinct(examples[key]);
      samples.filters.push([(e) => examples[key][e], addFilter(into, key, label, values, findSamples, shownAs)]);
    }
    at("samples-find").addEventListener("input", findSamples);
    at("samples-show").addEventListener("change", findSamples);
    at("samples-back").addEventListener("click", () => { samples.page--; showSamples(); });
    at("samples-save").addEventListener("click", () => save("examples.jsonl", "application/jsonl", sampleLines()));
    at("samples-on").addEventListener("click", () => { samples.page++; showSamples(); });
    addSamplesToView();
    restoreView();
    document.documentElement.dataset.samples = "ready";
  }

  // ---- the view in the address ----

  // The address after # is the part of the page that was gone to, then what was chosen: "#table&find=quest&sort=-score".
  // What is as it was at first is left out. Each part of the view can be asked and set.
  const sorting = (state) => ({
    get: () => (state.key === null ? "" : (state.sign < 0 ? "-" : "") + state.key),
    set: (text) => Object.assign(state, { key: text.replace(/^-/, "") || null, sign: text.startsWith("-") ? -1 : 1 }),
  });
  const control = (id, initial = "") => ({
    get: () => (at(id).value === initial ? "" : at(id).value),
    set: (text) => {
      at(id).value = text || initial;
      // A choice that is not offered here.
      if (at(id).selectedIndex === -1) at(id).value = initial;
    },
  });
  const view = new Map();
  let isViewKept = false;

  function addSummaryToView() {
    for (const [name, id] of [["by", "matrix-columns"], ["value", "matrix-value"]]) view.set(name, control(id, at(id).value));
    view.set("over", { get: () => (at("matrix-over").selectedIndex > 0 ? String(at("matrix-over").selectedIndex) : ""), set: (text) => { matrixState.over = Number(text); } });
    view.set("order", sorting(matrixState));
    view.set("find", control("table-find"));
    for (const select of at("table-filters").querySelectorAll("select")) view.set(select.id.replace("table-filters-", ""), control(select.id));
    view.set("sort", sorting(rowState));
    const initial = columns.filter((c) => c.shown).map((c) => c.key).join(",");
    const shown = () => columns.filter((c) => c.shown).map((c) => c.key).join(",");
    view.set("columns", {
      get: () => (shown() === initial ? "" : shown() || "none"),
      set: (text) => {
        const keys = (text || initial).split(",");
        for (const c of columns) c.shown = keys.includes(c.key);
        for (const box of at("table-columns").querySelectorAll("input")) box.checked = keys.includes(box.value);
      },
    });
  }

  function addRestToView() {
    view.set("plots", control("plots-find"));
    view.set("theme", {
      get: () => document.documentElement.dataset.theme ?? "",
      set: (text) => {
        if (["light", "dark"].includes(text)) document.documentElement.dataset.theme = text;
        else delete document.documentElement.dataset.theme;
      },
    });
  }

  function addSamplesToView() {
    view.set("text", control("samples-find"));
    view.set("show", control("samples-show", "all"));
    for (const select of at("sample-filters").querySelectorAll("select[id^=sample-filters-]")) view.set(select.id.replace("sample-filters-", "of-"), control(select.id));
    view.set("page", { get: () => (samples.page ? String(samples.page + 1) : ""), set: (text) => { samples.wanted = Math.max(0, Number(text) - 1 || 0); } });
    view.set("example", { get: () => (samples.chosen === null ? "" : String(samples.chosen)), set: (text) => { samples.asked = text; } });
  }

  function inAddress() {
    const [first, ...rest] = location.hash.slice(1).split("&");
    const hasAnchor = first !== "" && !first.includes("=");
    return { anchor: hasAnchor ? first : "", chosen: new URLSearchParams((hasAnchor ? rest : [first, ...rest]).join("&")) };
  }

  // Puts the view into the address, without a step in the browser's history.
  function keepView() {
    if (!isViewKept) return;
    // What stands there of samples stays until they are unpacked.
    const chosen = new URLSearchParams([...inAddress().chosen].filter(([name]) => !samples.all && !view.has(name)));
    for (const [name, part] of view) if (part.get() !== "") chosen.set(name, part.get());
    const hash = [inAddress().anchor, chosen.toString()].filter(Boolean).join("&");
    if (hash !== location.hash.slice(1)) history.replaceState(null, "", hash ? "#" + hash : location.pathname + location.search);
  }

  function restoreView() {
    isViewKept = false;
    const { anchor, chosen } = inAddress();
    for (const [name, part] of view) part.set(chosen.get(name) ?? "");
    showTheme();
    if (data.rows.length) {
      showMatrix();
      showRows();
    }
    findPlots();
    if (samples.all) {
      findSamples();
      if (samples.wanted * PAGE < samples.found.length) samples.page = samples.wanted;
      const example = samples.asked === "" ? NaN : Number(samples.asked);
      if (example in samples.all.of) openSample(example);
      else { closeSample(); showSamples(); }
    }
    isViewKept = true;
    // The browser goes to an anchor by itself only where nothing stands behind it.
    if (anchor) { unfold("#" + anchor); at(anchor)?.scrollIntoView(); }
  }

  // ---- runs, theme ----

  function showRuns() {
    const one = (source) => make("details", [
      make("summary", `${source.name}: ${source.records} records, ${source.manifest.identity?.model ?? "unknown model"}, ${source.manifest.created ?? "no date"}`),
      make("pre", JSON.stringify(source.manifest, null, 2), { tabindex: "0" }),
    ]);
    at("manifests").replaceChildren(...(data.sources.length ? data.sources.map(one) : [make("p", "No manifest is known.")]));
  }

  let showTheme = () => {};

  function setUpTheme() {
    const button = at("theme");
    const isDark = () => (document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
    const show = () => { button.setAttribute("aria-pressed", String(isDark())); };
    button.addEventListener("click", () => {
      document.documentElement.dataset.theme = isDark() ? "light" : "dark";
      show();
      keepView();
    });
    show();
    showTheme = show;
  }

  // On paper all that is folded is open, but for the manifests.
  function setUpPrint() {
    const folded = () => [...document.querySelectorAll("main details:not([open])")].filter((d) => !d.closest("#runs, .picker"));
    let opened = [];
    addEventListener("beforeprint", () => { opened = folded(); for (const details of opened) details.open = true; });
    addEventListener("afterprint", () => { for (const details of opened) details.open = false; });
  }

  showHeading();
  showFacts();
  showBesideRows();
  setUpPrint();
  showWarnings();
  if (data.rows.length) {
    setUpMatrix();
    setUpTable();
  } else {
    at("matrix-caption").textContent = at("table-count").textContent = "no results";
  }
  setUpPlots();
  showRuns();
  setUpTheme();
  if (data.rows.length) addSummaryToView();
  addRestToView();
  restoreView();
  setUpSamples();
  addEventListener("hashchange", () => {
    const { anchor, chosen } = inAddress();
    // A bare anchor is a link of this page: what was chosen stays.
    if (anchor && chosen.size === 0) { unfold("#" + anchor); keepView(); } else restoreView();
  });
})();
