(() => {
  "use strict";
  const all = (selector, from = document) => [...from.querySelectorAll(selector)];
  const filter = document.getElementById("filter");
  const unfilter = document.getElementById("unfilter");
  const lists = all("[data-list]").map((section) => ({
    section,
    count: section.querySelector("[data-count]"),
    items: all("[data-item]", section).map((node) => ({ node, text: "" })),
  }));
  let label = null;

  // Text is read at the first filter, because most readers never filter.
  const textOf = (item) => item.text || (item.text = item.node.textContent.toLowerCase() || " ");

  const apply = () => {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    let found = 0;
    for (const { section, count, items } of lists) {
      let shown = 0;
      for (const item of items) {
        const isCard = item.node.dataset.label !== undefined;
        const fits = words.every((word) => textOf(item).includes(word)) &&
          (label === null || !isCard || item.node.dataset.label === label);
        item.node.hidden = !fits;
        shown += fits;
      }
      found += shown;
      section.classList.toggle("empty", words.length > 0 && !shown);
      if (count) {
        count.dataset.whole = count.dataset.whole || count.textContent;
        count.textContent = words.length || label !== null ? shown + " " + count.dataset.what : count.dataset.whole;
      }
    }
    document.body.classList.toggle("filtered", words.length > 0);
    document.getElementById("nothing").hidden = !words.length || found > 0;
    if (unfilter) {
      unfilter.hidden = label === null;
      unfilter.textContent = label === null ? "" : label + " ×";
    }
  };

  filter.addEventListener("input", apply);
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && document.activeElement !== filter) {
      event.preventDefault();
      filter.focus();
    } else if (event.key === "Escape" && document.activeElement === filter) {
      filter.value = "";
      apply();
    }
  });
  document.addEventListener("click", (event) => {
    const chosen = event.target.closest("[data-class]");
    if (chosen && unfilter) {
      label = label === chosen.dataset.class ? null : chosen.dataset.class;
      apply();
      document.getElementById("samples").scrollIntoView({ behavior: "smooth" });
    } else if (event.target === unfilter) {
      label = null;
      apply();
    }
  });

  document.getElementById("theme").addEventListener("click", () => {
    const root = document.documentElement;
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
  });

  // On paper everything is open.
  let closed = [];
  addEventListener("beforeprint", () => {
    closed = all("details.wide:not([open])");
    closed.forEach((node) => { node.open = true; });
  });
  addEventListener("afterprint", () => closed.forEach((node) => { node.open = false; }));

  // On a narrow screen the menu scrolls. Its edges show where more sections follow.
  const menu = document.querySelector(".links");
  const showEdges = () => {
    menu.classList.toggle("before", menu.scrollLeft > 4);
    menu.classList.toggle("more", menu.scrollLeft + menu.clientWidth < menu.scrollWidth - 4);
  };
  menu.addEventListener("scroll", showEdges, { passive: true });
  addEventListener("resize", showEdges);
  showEdges();

  const links = all(".links a");
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      links.forEach((link) => link.classList.toggle("here", link.hash === "#" + entry.target.id));
    }
  }, { rootMargin: "-20% 0px -70% 0px" });
  all("main section").forEach((section) => seen.observe(section));
})();
