// Measures the page as it is laid out, and leaves what it found in the document, for the test to read.
"use strict";
addEventListener("load", () => {
  const measure = () => {
    if (location.hash.includes("print")) dispatchEvent(new Event("beforeprint"));
    const all = (selector) => [...document.querySelectorAll(selector)];
    const seen = (element) => element.checkVisibility();
    const right = (element) => Math.ceil(element.getBoundingClientRect().right);
    const colours = (element) => { const style = getComputedStyle(element); return [style.color, style.backgroundColor]; };
    // What a reader sees of a table: its whole width, or a part of it with a bar to scroll.
    const tables = all("main table").filter(seen).map((table) => {
      const box = table.parentElement;
      return { id: table.id, right: right(table), cut: box.scrollWidth - box.clientWidth, scrolls: getComputedStyle(box).overflowX !== "visible" };
    });
    const found = {
      width: innerWidth,
      wide: document.documentElement.scrollWidth,
      tables,
      figures: all("main figure").filter(seen).map(right),
      folded: all("main details:not([open])").filter((d) => !d.closest("#runs, .picker")).length,
      page: colours(document.body),
      head: getComputedStyle(document.querySelector("#rows thead")).display,
      buttons: getComputedStyle(document.querySelector("#rows thead button")).display,
      broken: all("#rows td.number, #rows thead th").filter((cell) => cell.scrollWidth > cell.clientWidth + 1).map((cell) => cell.textContent),
      stuck: all("thead th, tbody th").filter((th) => getComputedStyle(th).position === "sticky").length,
      controls: all(".controls, header").filter(seen).length,
      shaded: all("#matrix-table td[style]").map((td) => getComputedStyle(td).printColorAdjust),
      filters: all("main figure svg").map((svg) => getComputedStyle(svg).filter),
      scores: all("#rows tbody td").filter((td) => td.textContent.startsWith("100.0")).filter(seen).length,
      // What a pointer and assistive programs are told of headings.
      undescribed: all("#rows thead button").filter((b) => b.title.length < 15).map((b) => b.textContent),
      legend: all("#legend dt").map((dt) => dt.textContent),
      said: all(".said-once").map((p) => p.textContent),
      excess: all("ul.excess li").map((li) => li.textContent),
      marks: all("#rows .excess-mark").map((mark) => mark.textContent + mark.getAttribute("aria-label")),
      settings: all("#rows tbody tr").map((tr) => tr.children[0].textContent + " " + tr.children[1].textContent),
      scale: all("#matrix-scale span").map((span) => span.textContent),
      columns: all("#rows thead button").map((b) => b.textContent),
    };
    const out = document.createElement("pre");
    out.id = "found";
    out.textContent = btoa(unescape(encodeURIComponent(JSON.stringify(found))));
    document.body.append(out);
    if (parent !== self) parent.postMessage(out.textContent, "*");
  };
  if (document.documentElement.dataset.samples === "ready") return measure();
  new MutationObserver((_, watch) => { watch.disconnect(); measure(); }).observe(document.documentElement, { attributes: true, attributeFilter: ["data-samples"] });
});
