// Conveniences. The page is complete without them.
"use strict";
{
  const find = document.getElementById("find"), matches = document.getElementById("matches");
  const unfold = document.getElementById("unfold");
  document.querySelector(".tools").hidden = false;

  const rows = [...document.querySelectorAll(".rows > li, .events > li")];
  let texts;
  const search = () => {
    const query = find.value.trim().toLowerCase();
    texts ??= rows.map((row) => row.textContent.toLowerCase());
    let count = 0;
    rows.forEach((row, index) => {
      const fits = !query || texts[index].includes(query);
      row.classList.toggle("filtered", !fits);
      count += fits;
      if (fits && query) row.closest("details.group")?.setAttribute("open", "");
    });
    matches.textContent = query ? `${count} of ${rows.length} rows` : "";
  };
  find.addEventListener("input", search);

  unfold.addEventListener("click", () => {
    const open = unfold.textContent === "Open all";
    for (const each of document.querySelectorAll("main details")) each.open = open;
    unfold.textContent = open ? "Close all" : "Open all";
  });

  const reveal = () => {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    for (let each = target; each; each = each.parentElement) {
      if (each.tagName === "DETAILS") each.open = true;
    }
    target?.querySelector("details.step")?.setAttribute("open", "");
    target?.classList.remove("filtered");
    target?.scrollIntoView();
  };
  window.addEventListener("hashchange", reveal);
  if (location.hash) reveal();

  // Show a whole prompt on demand by collecting the contents that it shares with earlier prompts.
  const whole = (list) => {
    const own = [...list.querySelectorAll(":scope > li[data-content]:not(.whole)")];
    if (!list.dataset.like) return own;
    const earlier = document.getElementById(list.dataset.like)?.querySelector(".contents");
    const same = Number(list.dataset.same);
    const known = earlier ? whole(earlier) : [];
    return [...known.filter((each) => Number(each.dataset.content) < same), ...own];
  };
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button.all");
    if (!button) return;
    const line = button.closest("li"), list = line.parentElement;
    const own = new Set(list.children);
    for (const each of whole(list).filter((one) => !own.has(one))) {
      const copy = each.cloneNode(true);
      copy.classList.add("whole");
      line.before(copy);
    }
    line.remove();
  });
  for (const line of document.querySelectorAll(".contents > li.before")) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "quiet all";
    button.textContent = "Show them";
    line.append(" ", button);
  }
}
